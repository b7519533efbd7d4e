"""The parameters of LowChurnClassifier, checked before anything is read or trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lowchurn._checks import check_choice, check_number
from lowchurn.estimator._labels import WHO
from lowchurn.scoring import get_score

CHOICES = {"churn": ("hard", "soft"), "select": ("single", "mixture"), "search": ("auto", "grid")}


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise an error for a value that is not allowed; ``parameters`` are those of ``get_params(deep=False)``."""
    for name, choices in CHOICES.items():
        check_choice(WHO, name, parameters[name], choices)
    if not isinstance(parameters["compress"], bool | np.bool_):
        raise ValueError(f"{WHO}: compress must be True or False, got {parameters['compress']!r}.")
    bound = get_score(parameters["proper_score"]).bound
    max_churn, soft = parameters["max_churn"], parameters["churn"] == "soft"
    if max_churn is not None:
        _check_budget(max_churn, hard=not soft)
    for name in ("confidence", "validation_fraction", "threshold"):
        if parameters[name] is not None:
            check_number(WHO, name, parameters[name], 0, 1, open_low=True, open_high=True)
    if parameters["confidence"] is None:
        return
    if not max_churn:
        raise ValueError(f"{WHO}: confidence certifies a budget above 0, got max_churn={max_churn}. Give max_churn.")
    if soft and (bound is None or max_churn >= bound):
        raise ValueError(
            f"{WHO}: soft churn can only be certified below the score's bound {bound}, got max_churn={max_churn:g}."
        )


def _check_budget(max_churn: float, hard: bool) -> None:
    """A share of decisions, or a divergence above 0; a percentage gets a hint."""
    try:
        check_number(WHO, "max_churn", max_churn, 0, 1.0 if hard else math.inf, open_low=not hard, open_high=True)
    except ValueError as error:
        hint, number = "", isinstance(max_churn, int | float | np.integer | np.floating)
        if hard and number and not isinstance(max_churn, bool) and 1 <= max_churn <= 100:
            hint = f" It is a share of the decisions: did you mean {max_churn / 100:g}?"
        raise ValueError(f"{error}{hint}") from None
