"""What to try: strategies by name, the dial, the default; and the search for lambda on trained candidates."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from lowchurn._checks import unknown_name
from lowchurn.estimator._production import WHO
from lowchurn.estimator._training import Ruler, Terms, Trials
from lowchurn.selection import LambdaSearch, aim_for_certificate, predicted_lambda
from lowchurn.strategies import ALL, Distill, Interpolate, ServedMixture, Soup, Strategy, paper_grid

Family = Callable[..., Strategy]
MOST = 3  # trainings of a family, besides the plain retrain
MEMBERS = 8  # of a soup
POSITIONS = tuple(round(0.02 * k, 2) for k in range(51))  # of a dial, from the new model to the base
SPECIAL = ("dial", "auto")
DEFAULT = (None, "distill")  # the same: distillation in the way that suits the learner


def default_strategies(trials: Trials) -> list[Family]:
    """Distillation; from the base's weights where the learner can start there, cold otherwise."""
    warm = Distill(start="warm")
    return [functools.partial(Distill, start="cold" if trials.cannot(warm) else "warm")]


def special_strategies(name: str, trials: Trials) -> tuple[list[Strategy], list[Family]]:
    """What "dial" and "auto" stand for with this learner and base."""
    if name == "auto":
        dial = [] if no_dial(trials) else dial_strategies(trials)
        return dial, default_strategies(trials)
    reason = no_dial(trials)
    if reason:
        raise ValueError(
            f"{WHO}: strategies='dial' cannot be used here: {reason} Give base= as a fitted model, or leave "
            "strategies out."
        )
    return dial_strategies(trials), []


def no_dial(trials: Trials) -> str:
    """Why there is no dial, in words."""
    return trials.cannot(ServedMixture(members=1))


def dial_strategies(trials: Trials) -> list[Strategy]:
    """Every position of the dial: of weights where they can be averaged with the base's, else of probabilities.

    Retrains of a convex or deterministic model are all the same, so that one member is enough there.
    """
    if trials.cannot(Soup(MEMBERS)):
        # The soup goes along as a row of the frontier that says why it was skipped.
        return [Soup(MEMBERS), *along(functools.partial(ServedMixture, members=1))]
    return along(Interpolate if trials.learner.one_is_enough else functools.partial(Soup, members=MEMBERS))


def along(family: Family) -> list[Strategy]:
    """A family at every position of its dial."""
    if _class_of(family) is ServedMixture:
        return [family(lam=round(1 - a, 2)) for a in POSITIONS]
    return [family(toward_base=a) for a in POSITIONS]


def _class_of(family: Any) -> Any:
    return family.func if isinstance(family, functools.partial) else family


def search_lambda(
    family: Family,
    trials: Trials,
    ruler: Ruler,
    budget: float | None,
    confidence: float | None = None,
    certified_rows: int = 0,
) -> bool:
    """Train a family of distillation at a few lambdas until the budget is met (see :class:`LambdaSearch`).

    Returns False where every training failed, so that another family may take its place.
    """
    plain = trials.probas[0]
    assert plain is not None
    base = ruler.base_proba
    if budget is None:
        needed = ruler.cost(plain)
        grid = np.linspace(0.05, 0.95, 19)
        first = next((lam for lam in grid if ruler.cost(lam * plain + (1 - lam) * base) <= needed), 0.95)
        search = LambdaSearch(round(float(first), 3), aim=needed, at_one=needed, most=MOST, seek="least")
    else:
        aim = aim_below(budget, ruler.terms, confidence, certified_rows)
        if ruler.churn(plain) <= aim:
            return True  # the plain retrain keeps the budget by itself
        first = predicted_lambda(plain, base, keeps=lambda proba: ruler.churn(proba) <= aim)
        search = LambdaSearch(first, aim=aim, at_one=ruler.churn(plain), most=MOST)
    while (lam := search.ask()) is not None:
        trials.run([family(lam=lam)])
        proba = trials.probas[-1]
        value = math.nan if proba is None else ruler.cost(proba) if budget is None else ruler.churn(proba)
        search.tell(lam, value)
    if search.told and all(math.isnan(value) for _, value in search.told):
        return False
    if confidence is not None and search.told:
        # The certificate is tested from the least churn upward: a safe first step is worth a training.
        safe = round(0.5 * min(lam for lam, _ in search.told), 3)
        if safe > 0:
            trials.run([family(lam=safe)])
    return True


def instead_of(family: Family) -> Family | None:
    """The family to try where the default one failed altogether: from fresh weights instead of the base's."""
    warm = isinstance(family, functools.partial) and family.keywords == {"start": "warm"}
    return functools.partial(Distill, start="cold") if warm else None


def aim_below(budget: float, terms: Terms, confidence: float | None = None, certified_rows: int = 0) -> float:
    """Where to steer: half a standard error under the budget, so that new rows mostly keep it as well.

    With a certificate in view, further down: to where it is got nine times in ten.
    """
    if not terms.hard:
        return 0.9 * budget if confidence is None else 0.6 * budget
    error = math.sqrt(budget * (1 - budget) / terms.rows)
    aim = max(budget - 0.5 * error, 0.5 * budget)
    if confidence is not None:
        aim = min(aim, aim_for_certificate(budget, confidence, certified_rows) or 0.5 * budget)
    return aim


def resolve(strategies: Any, search: str) -> tuple[list[Strategy], list[Family]]:
    """Strategies to train as they are, and families of distillation in which lambda is searched for.

    An item is a strategy, a class of them, its name, or a ``functools.partial`` of a class. A class stands for the
    paper's settings; with ``search="auto"``, ``Distill`` stands for a search, and a class with a dial for all of it.
    """
    if isinstance(strategies, str | Strategy | functools.partial | type):
        strategies = [strategies]
    if not isinstance(strategies, Iterable):
        raise ValueError(f"{WHO}: strategies must be a name, a strategy or a list of them, got {strategies!r}.")
    known = {cls.name: cls for cls in ALL}
    fixed: list[Strategy] = []
    families: list[Family] = []
    for item in strategies:
        if isinstance(item, str):
            if item not in known:
                if item in SPECIAL:
                    raise ValueError(f"{WHO}: strategies={item!r} stands alone, got it in a list with others.")
                raise unknown_name(WHO, "strategy", item, [*known, *SPECIAL])
            item = known[item]
        if isinstance(item, Strategy):
            fixed.append(item)
            continue
        cls = _class_of(item)
        if not (isinstance(cls, type) and issubclass(cls, Strategy)):
            raise ValueError(f"{WHO}: strategies must hold strategies, classes of them or names, got {item!r}.")
        keywords = item.keywords if isinstance(item, functools.partial) else {}
        if cls is Distill and search == "auto" and "lam" not in keywords:
            families.append(functools.partial(cls, **keywords))
        elif (
            cls in (Soup, Interpolate, ServedMixture)
            and search == "auto"
            and not {"lam", "toward_base"} & set(keywords)
        ):
            fixed.extend(along(item))
        else:
            fixed.extend(paper_grid(cls, **keywords))
    return fixed, families
