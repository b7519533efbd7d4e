"""What to try: strategies by name, the dial, the default; the search for lambda, and margins from measured gains."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy.stats import beta

from lowchurn._checks import unknown_name
from lowchurn.estimator._labels import WHO
from lowchurn.estimator._limits import Limit, Limits
from lowchurn.estimator._measuring import Ruler, Terms, Trials
from lowchurn.estimator._rules import between, rules_within
from lowchurn.estimator._training import Bar, Capability
from lowchurn.selection._certify import aim_for_certificate
from lowchurn.selection._search import LambdaSearch, predicted_lambda
from lowchurn.strategies import (
    ALL,
    ColdStart,
    Distill,
    Interpolate,
    ServedMixture,
    Soup,
    Sticky,
    Strategy,
    paper_grid,
    plan,
)
from lowchurn.strategies._sticky import TRUST
from lowchurn.theory import Margin

Family: TypeAlias = Callable[..., Strategy]
MOST = 3  # trainings of a family, besides the plain retrain
FEW = 2  # of them where other families are tried as well
MEMBERS = 8  # of a soup
FEW_MEMBERS = 4
POSITIONS = tuple(round(0.02 * k, 2) for k in range(51))  # of a dial, from the new model to the base
LEVELS = tuple(np.geomspace(0.001, 0.5, 40).tolist())  # of churn, at which a sticky model has a margin
SPECIAL = ("auto", "dial", "paper")
OVER = 1.25  # a budget is broken where churn is above so many budgets
MOST_ROWS = 1e15  # more were never measured
RISK = 0.08  # of breaking it on new rows, that a choice on few rows may take


@dataclass(frozen=True)
class ToTry:
    """Strategies as they are, families of distillation in which lambda is searched for, and of sticky decisions.

    ``instead`` is the family to try where all trainings of another one failed, ``most`` how many trainings a search
    for lambda may take.
    """

    fixed: tuple[Strategy, ...] = ()
    families: tuple[Family, ...] = ()
    instead: Family | None = None
    sticky: tuple[Callable[..., Sticky], ...] = ()
    most: int = MOST


@dataclass(frozen=True)
class Goal:
    """What the search for lambda steers to: limits (or none), and a certificate of each on so many rows."""

    limits: Limits
    confidence: float | None
    certified_rows: Mapping[str, int]

    def aims(self, terms: Terms) -> Limits:
        """Where to steer."""
        return aimed(self.limits, terms, self.confidence, self.certified_rows)


def to_try(strategies: Any, search: str, can: Capability, ruler: Ruler, folds: int | None = None) -> ToTry:
    """What the parameter ``strategies`` stands for with this learner, this base and these rows to choose on."""
    if folds is not None:  # of one plain retrain, the only one whose rows to choose on have other probabilities
        trust = 0.0 if strategies == Sticky.name else _trust(can, ruler)
        return ToTry(sticky=(functools.partial(Sticky, trust=trust),))
    if isinstance(strategies, str) and strategies in (Distill.name, "paper"):
        return _distillation("grid" if strategies == "paper" else search, can)
    if strategies is not None and not (isinstance(strategies, str) and strategies in SPECIAL):
        return resolve(strategies, search)
    if strategies is None or strategies == "auto":
        return _auto(search, can, ruler)
    if no_dial := can.cannot(Interpolate()) and can.cannot(ServedMixture(members=1)):
        raise ValueError(
            f"{WHO}: strategies='dial' cannot be used here: {no_dial} Give base= as a fitted model, or leave "
            "strategies out."
        )
    return ToTry(_dial(can))


def _trust(can: Capability, ruler: Ruler) -> float:
    """How much the margin grows with the base's lead: nothing where its probabilities are not there, or misleading."""
    return TRUST if can.kept is not None and ruler.base_follows_its_probabilities else 0.0


def _auto(search: str, can: Capability, ruler: Ruler) -> ToTry:
    """Sticky decisions and blends, which need no training of their own, then the dial of weights and distillation.

    On rows without labels nothing can be compared, so that there the best of them on average is tried alone.
    """
    sticky: list[Callable[..., Sticky]] = []
    averages = not can.cannot(Soup(FEW_MEMBERS)) and not can.learner.one_is_enough
    if ruler.hard and can.kept is not None:
        soup: dict[str, Any] = {"members": FEW_MEMBERS, "start": "warm", "average": "weights"} if averages else {}
        sticky.append(functools.partial(Sticky, trust=_trust(can, ruler), **soup))
    if not ruler.labelled and sticky:
        return ToTry(sticky=tuple(sticky))
    blends: tuple[Strategy, ...] = ()
    positions = POSITIONS[::5] if sticky else POSITIONS  # beside sticky decisions a few will do
    if averages:
        blends += along(functools.partial(Soup, members=FEW_MEMBERS), positions)
    elif not can.cannot(Interpolate()):
        blends += along(Interpolate, positions)
    if not can.cannot(ServedMixture(members=1)) and (sticky or not blends):
        blends += along(functools.partial(ServedMixture, members=1), positions)
    distillation = _distillation(search, can)
    return ToTry(
        blends + distillation.fixed, distillation.families, distillation.instead, tuple(sticky), FEW if blends else MOST
    )


def _distillation(search: str, can: Capability) -> ToTry:
    """Distillation; from the base's weights where the learner can start there, cold otherwise."""
    cold, warm = (functools.partial(Distill, start=start) for start in ("cold", "warm"))
    possible = not can.cannot(warm())
    if search == "grid":
        return ToTry(tuple(paper_grid(Distill, start="warm" if possible else "cold")))
    return ToTry(families=(warm if possible else cold,), instead=cold if possible else None)


def _dial(can: Capability) -> tuple[Strategy, ...]:
    """Every position of the dial: of weights where they can be averaged with the base's, else of probabilities.

    Retrains of a convex or deterministic model are all the same, so that one member is enough there.
    """
    if can.cannot(Soup(MEMBERS)):
        # The soup is tried as well, as a row of the frontier with the reason why it was skipped.
        return (Soup(MEMBERS), *along(functools.partial(ServedMixture, members=1)))
    return along(Interpolate if can.learner.one_is_enough else functools.partial(Soup, members=MEMBERS))


def along(family: Family, positions: Sequence[float] = POSITIONS) -> tuple[Strategy, ...]:
    """A family at positions of its dial."""
    return tuple(family(**_class_of(family).at_dial(a)) for a in positions)


def _class_of(family: Any) -> Any:
    return family.func if isinstance(family, functools.partial) else family


def resolve(strategies: Any, search: str) -> ToTry:
    """What a list contains: strategies, classes of them, their names, or a ``functools.partial`` of a class.

    A class stands for the paper's settings; with ``search="auto"``, ``Distill`` stands for a search, and a class with a
    dial for all of it.
    """
    if isinstance(strategies, str | Strategy | functools.partial | type):
        strategies = [strategies]
    if not isinstance(strategies, Iterable):
        raise ValueError(f"{WHO}: strategies must be a name, a strategy or a list of them, got {strategies!r}.")
    known = {cls.name: cls for cls in ALL}
    fixed: list[Strategy] = []
    families: list[Family] = []
    sticky: list[Callable[..., Sticky]] = []
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
        whole = search == "auto" and not {"lam", cls.dial_parameter} & set(keywords)
        if cls in (Distill, Sticky) and whole:
            if cls is Sticky:
                sticky.append(functools.partial(Sticky, **keywords))
            else:
                families.append(functools.partial(cls, **keywords))
        elif cls.dial_parameter and whole:
            fixed.extend(along(item))
        else:
            fixed.extend(paper_grid(cls, **keywords))
    return ToTry(tuple(fixed), tuple(families), sticky=tuple(sticky))


def try_all(wanted: ToTry, trials: Trials, goal: Goal, bar: Bar) -> None:
    """Train and measure the plain retrain, then everything that is wanted."""
    known = [ColdStart(), *wanted.fixed, *(family() for family in wanted.sticky)]
    bar.expect(bar.done + len(plan(known).trainings) + wanted.most * len(wanted.families))
    trials.run_plain()
    if trials.held is not None:  # the retrain itself changes decisions that are held
        trials.run([ColdStart()])
    for sticky in wanted.sticky:
        try_margins(sticky, trials, goal)
    trials.run(strategy for strategy in wanted.fixed if strategy != ColdStart())
    for family in wanted.families:
        if not search_lambda(family, trials, goal, wanted.most) and wanted.instead is not None:
            search_lambda(wanted.instead, trials, goal, wanted.most)


def try_margins(family: Callable[..., Sticky], trials: Trials, goal: Goal) -> None:
    """Train the estimate of a sticky family, then measure it at margins for many levels of churn and for the limits."""
    ruler, strategy = trials.ruler, family(margin=0.0)
    assert ruler is not None
    (estimate,) = trials.run([strategy])
    if estimate.proba is None:
        return
    aims = goal.aims(ruler.terms)
    levels = list(LEVELS)
    if aims.churn is not None and ruler.hard:
        levels.append(aims.churn)
    reach = ruler.reach(estimate.proba, strategy.trust)
    margins = {between(one, reach) for one in margins_for(reach, ruler.churn_weights, levels) if one > 0}
    trials.run(family(margin=margin) for margin in sorted({*margins, 1.0}))
    if aims.broken is not None or aims.grouped:
        trials.run_rules(dataclasses.replace(strategy, trust=0.0), rules_within(ruler, estimate.proba, aims, LEVELS))


def margins_for(reach: np.ndarray, weights: np.ndarray, levels: Iterable[float]) -> list[float]:
    """For each level of churn the least margin that keeps it, where rows change up to a margin that they reach."""
    order = np.argsort(-reach, kind="stable")
    ranked, spent = np.append(reach[order], 0.0), np.cumsum(weights[order]) / weights.sum()
    first = np.searchsorted(spent, np.asarray(list(levels)) * (1 + 1e-12), side="right")  # that is left out
    return np.maximum(ranked[first], 0.0).tolist()


def search_lambda(family: Family, trials: Trials, goal: Goal, most: int = MOST) -> bool:
    """Train a family of distillation at a few lambdas until the budget is met (see :class:`LambdaSearch`).

    Returns False where every training failed, so that another family may take its place.
    """
    ruler, plain = trials.ruler, trials.plain.proba
    assert ruler is not None
    assert plain is not None
    aims = goal.aims(ruler.terms)
    search = _lambda_search(ruler, plain, aims, most, trials.held)
    if search is None:
        return True  # the plain retrain keeps the budget by itself
    while (lam := search.ask()) is not None:
        (tried,) = trials.run([family(lam=lam)])
        if tried.proba is None:
            search.tell(lam, math.nan)
        else:
            search.tell(lam, aims.load(tried.offer.candidate) if aims else ruler.cost(tried.proba))
    if search.told and all(math.isnan(value) for _, value in search.told):
        return False
    if goal.confidence is not None and search.told:
        # The certificate is tested from the least churn upward: a safe first step is worth a training.
        safe = round(0.5 * min(lam for lam, _ in search.told), 3)
        if safe > 0:
            trials.run([family(lam=safe)])
    return True


def _lambda_search(
    ruler: Ruler, plain: np.ndarray, aims: Limits, most: int, held: Margin | None
) -> LambdaSearch | None:
    """The search, with its first lambda from the plain retrain and the base; None where it is not needed."""
    base = ruler.base_proba
    if not aims:
        needed = ruler.cost(plain)
        grid = np.linspace(0.05, 0.95, 19)
        first = next((lam for lam in grid if ruler.cost(lam * plain + (1 - lam) * base) <= needed), 0.95)
        return LambdaSearch(round(float(first), 3), aim=needed, at_one=needed, most=most, seek="least")

    def load(proba: np.ndarray) -> float:
        proba = proba if held is None else held.proba(proba, ruler.base_decisions, ruler.codes)
        return aims.load_of([ruler.spent(limit, proba) for limit in aims])

    if load(plain) <= aims.full:
        return None
    first = predicted_lambda(plain, base, keeps=lambda proba: load(proba) <= aims.full)
    return LambdaSearch(first, aim=aims.full, at_one=load(plain), most=most)


def aimed(
    limits: Limits, terms: Terms, confidence: float | None = None, certified_rows: Mapping[str, int] | None = None
) -> Limits:
    """Limits as they are aimed at: each a little below, by the rows that it is measured and certified on."""

    def aim(limit: Limit) -> float:
        on = dataclasses.replace(terms, rows=limit.rows, hard=terms.hard or limit.of == "broken")
        certified = (certified_rows or {}).get(limit.of, 0)
        inside = 1.0 if limit.whole else min(limit.rows / terms.rows, 1.0)  # about so many of them are of the group
        return aim_below(limit.most, on, confidence, round(inside * certified))

    return limits.lowered(aim)


def aim_below(budget: float, terms: Terms, confidence: float | None = None, certified_rows: int = 0) -> float:
    """Where to steer, so that new rows mostly keep the budget as well.

    Of n rows those k may change with which a churn above 1.25 budgets has a chance of 8 %: on new rows it has about the
    distribution Beta(k + 1/2, n - k + 1/2). On many rows that is the whole budget. With a certificate in view,
    further down: to where it is got nine times in ten.
    """
    if not terms.hard:
        return 0.9 * budget if confidence is None else 0.6 * budget
    n = min(terms.rows, MOST_ROWS)
    # The chance grows with k, so that the last safe one is found by halves: there may be many rows.
    ks = range(math.floor(budget * n * (1 + 1e-12)) + 1)
    over = min(OVER * budget, 1.0)
    safe = bisect.bisect_right(ks, RISK, key=lambda k: beta.sf(over, k + 0.5, max(n - k, 0.0) + 0.5))
    aim = max(ks[safe - 1] / n if safe else 0.0, 0.5 * budget)
    if confidence is not None:
        aim = min(aim, aim_for_certificate(budget, confidence, certified_rows) or 0.5 * budget)
    return aim
