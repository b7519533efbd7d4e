"""The parameters of LowChurnClassifier, checked before anything is read or trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lowchurn._checks import check_choice, check_number, check_whole
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
    budgets = list(max_churn.values()) if isinstance(max_churn, Mapping) else [max_churn]
    if not budgets:
        raise ValueError(f"{WHO}: max_churn must name at least one class or slice, got {max_churn!r}.")
    for most in budgets if max_churn is not None else ():
        _check_budget("max_churn", most, hard=not soft)
    by = parameters["by"]
    if not (by is None or callable(by) or (isinstance(by, str | int | np.integer) and not isinstance(by, bool))):
        raise ValueError(f"{WHO}: by must be the name or the position of a column, or a function of X, got {by!r}.")
    if parameters["max_broken"] is not None:
        _check_budget("max_broken", parameters["max_broken"], hard=True)
    for name in ("confidence", "validation_fraction", "threshold"):
        if parameters[name] is not None:
            check_number(WHO, name, parameters[name], 0, 1, open_low=True, open_high=True)
    if not isinstance(parameters["serve_base"], bool | np.bool_):
        raise ValueError(f"{WHO}: serve_base must be True or False, got {parameters['serve_base']!r}.")
    if max_churn == 0 and not parameters["serve_base"]:
        raise ValueError(
            f"{WHO}: max_churn=0 keeps the base itself in service, got serve_base=False. Give serve_base=True, or a "
            "budget above 0."
        )
    _check_folds(parameters)
    if parameters["confidence"] is None:
        return
    most = max((one for one in budgets if one is not None), default=None)
    if not most and (most == 0 or not parameters["max_broken"]):
        raise ValueError(f"{WHO}: confidence certifies a budget above 0, got max_churn={max_churn}. Give max_churn.")
    if parameters["max_broken"] == 0:
        raise ValueError(f"{WHO}: confidence certifies a limit above 0, got max_broken=0. Give max_churn=0 to freeze.")
    if most and soft and (bound is None or most >= bound):
        raise ValueError(
            f"{WHO}: soft churn can only be certified below the score's bound {bound}, got max_churn={most:g}."
        )


def _check_folds(parameters: Mapping[str, Any]) -> None:
    """Folds set a margin for a model that is trained on all rows; what needs rows beside these is not possible."""
    folds = parameters["cross_fit"]
    if folds is None:
        return
    check_whole(WHO, "cross_fit", folds, 2)
    strategies = parameters["strategies"]
    allowed = {
        "churn='hard'": parameters["churn"] == "hard",
        "select='single'": parameters["select"] == "single",
        "compress=False": not parameters["compress"],
        "confidence=None (certify with traffic= instead)": parameters["confidence"] is None,
        "strategies='auto' or 'sticky'": strategies is None
        or (isinstance(strategies, str) and strategies in ("auto", "sticky")),
        "serve_base=True or strategies='sticky'": parameters["serve_base"]
        or (isinstance(strategies, str) and strategies == "sticky"),
    }
    for needed, kept in allowed.items():
        if not kept:
            raise ValueError(f"{WHO}: cross_fit needs {needed}. Leave cross_fit out, or change that.")


def _check_budget(name: str, most: float, hard: bool) -> None:
    """A share of decisions, or a divergence above 0; a percentage gets a hint."""
    try:
        check_number(WHO, name, most, 0, 1.0 if hard else math.inf, open_low=not hard, open_high=True)
    except ValueError as error:
        hint, number = "", isinstance(most, int | float | np.integer | np.floating)
        if hard and number and not isinstance(most, bool) and 1 <= most <= 100:
            hint = f" It is a share of the decisions: did you mean {most / 100:g}?"
        raise ValueError(f"{error}{hint}") from None
