"""Which candidate, or which mixture of candidates, is served under a churn budget.

``_combine`` is Algorithm 1's last step, ``_search`` finds lambda with few trainings, ``_certify`` tests a budget on
rows that were not used before. A mixture is served as averaged probabilities, never by drawing one of its models:
that would be churn.
"""

from lowchurn.selection._certify import Certificate, certify, rows_to_certify
from lowchurn.selection._combine import InfeasibleBudget, combine, select_single

__all__ = ["Certificate", "InfeasibleBudget", "certify", "combine", "rows_to_certify", "select_single"]
