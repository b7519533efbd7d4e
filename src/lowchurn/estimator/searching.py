"""The search for lambda on trained candidates, and the default strategies."""

from __future__ import annotations

import functools
import math

import numpy as np

from lowchurn.estimator.candidates import Family, Ruler, Trials
from lowchurn.selection import LambdaSearch, aim_for_certificate, predicted_lambda
from lowchurn.strategies import Distill

MOST = 3  # trainings of a family, besides the plain retrain


def default_strategies(trials: Trials) -> list[Family]:
    """Distillation; from the base's weights where the learner can start there, cold otherwise."""
    warm = Distill(start="warm")
    return [functools.partial(Distill, start="cold" if trials.cannot(warm) else "warm")]


def search_lambda(
    family: Family,
    trials: Trials,
    ruler: Ruler,
    budget: float | None,
    confidence: float | None = None,
    certified_rows: int = 0,
) -> None:
    """Train a family of distillation at a few lambdas until the budget is met (see :class:`LambdaSearch`)."""
    plain = trials.probas[0]
    assert plain is not None
    base = ruler.base_proba
    if budget is None:
        needed = ruler.cost(plain)
        grid = np.linspace(0.05, 0.95, 19)
        first = next((lam for lam in grid if ruler.cost(lam * plain + (1 - lam) * base) <= needed), 0.95)
        search = LambdaSearch(round(float(first), 3), aim=needed, at_one=needed, most=MOST, seek="least")
    else:
        aim = aim_below(budget, ruler, confidence, certified_rows)
        if ruler.churn(plain) <= aim:
            return  # the plain retrain keeps the budget by itself
        first = predicted_lambda(plain, base, keeps=lambda proba: ruler.churn(proba) <= aim)
        search = LambdaSearch(first, aim=aim, at_one=ruler.churn(plain), most=MOST)
    while (lam := search.ask()) is not None:
        trials.run([family(lam=lam)])
        proba = trials.probas[-1]
        value = math.nan if proba is None else ruler.cost(proba) if budget is None else ruler.churn(proba)
        search.tell(lam, value)


def aim_below(budget: float, ruler: Ruler, confidence: float | None, certified_rows: int) -> float:
    """Where to steer: half a standard error under the budget, so that new rows mostly keep it as well.

    With a certificate in view, further down: to where it is got nine times in ten.
    """
    if not ruler.hard:
        return 0.9 * budget if confidence is None else 0.6 * budget
    error = math.sqrt(budget * (1 - budget) / ruler.weights.sum())
    aim = max(budget - 0.5 * error, 0.5 * budget)
    if confidence is not None:
        aim = min(aim, aim_for_certificate(budget, confidence, certified_rows) or 0.5 * budget)
    return aim
