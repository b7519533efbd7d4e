"""Which candidate, or which mixture of candidates, is served under a churn budget.

``_combine`` is Algorithm 1's last step, ``_search`` finds lambda with few trainings, ``_certify`` tests a budget on
rows that were not used before. A mixture is served as averaged probabilities, never by drawing one of its models:
that would be churn.
"""

from lowchurn.selection._certify import Certificate, certify, churn_upper_bound, rows_to_certify
from lowchurn.selection._certify import aim_for_certificate as aim_for_certificate
from lowchurn.selection._combine import InfeasibleBudget, Mixture, combine, select_single
from lowchurn.selection._search import LambdaSearch as LambdaSearch
from lowchurn.selection._search import predicted_lambda as predicted_lambda

__all__ = ["Certificate", "InfeasibleBudget", "certify", "combine", "rows_to_certify", "select_single"]
