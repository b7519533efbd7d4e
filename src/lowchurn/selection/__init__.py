"""Which candidate, or which mixture of candidates, is served under a churn budget.

``combine`` holds Algorithm 1's last step, ``search`` finds lambda with few trainings, ``certify`` tests a budget on
rows that nothing else has seen. A mixture is served as averaged probabilities, never by drawing one of its models:
that would be churn.
"""

from lowchurn.selection._certify import (
    Certificate,
    aim_for_certificate,
    certify,
    churn_upper_bound,
    rows_to_certify,
)
from lowchurn.selection._combine import InfeasibleBudget, Mixture, combine, select_single
from lowchurn.selection._search import LambdaSearch, predicted_lambda

__all__ = ["Certificate", "InfeasibleBudget", "certify", "combine", "select_single"]
