"""The paper's statements as functions, and the optimal decisions under a budget of changed or broken ones."""

from lowchurn.theory._decisions import Margin, optimal_margin
from lowchurn.theory._paper import (
    anchor_minimizer,
    excess_risk_bound,
    generalization_bound,
    guaranteed_grid,
    lambda_upper_bound,
    optimal_mixture,
)

__all__ = [
    "Margin",
    "anchor_minimizer",
    "excess_risk_bound",
    "generalization_bound",
    "guaranteed_grid",
    "lambda_upper_bound",
    "optimal_margin",
    "optimal_mixture",
]
