"""The most accurate decisions under a budget of changed or broken ones: a margin on the evidence for a change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from scipy.optimize import linprog

from lowchurn._checks import check_number, check_weights, to_numpy
from lowchurn._types import Values
from lowchurn.metrics import decide


@dataclass(frozen=True)
class Margin:
    """Keep the base's decision unless another class is better by a margin.

    With ``b`` the base's decision and ``p`` the class probabilities, the decision changes to the best other class
    ``j`` where ::

        values[j] * p_j - values[b] * p_b > margin + ratio * p_b

    This is the most accurate rule under a budget of changed decisions (``margin``), of broken ones (``ratio``), or of
    both; :func:`optimal_margin` finds the two numbers. Whatever ``p`` is, the decisions that change at a larger margin
    are among those that change at a smaller one.

    Parameters
    ----------
    margin : float
        How much more likely another class has to be than the base's; from 1 on every decision is kept.
    ratio : float
        The same in units of the base's own probability.
    values : tuple of float, optional
        What a right decision for each class is worth, 1 by default. A decision threshold ``t`` for the second of two
        classes is ``(t, 1 - t)``.
    groups : tuple of float
        The least margin of each group of rows, where groups have limits of their own: the margin of a row is the larger
        of ``margin`` and that of its group. The methods then take the number of each row's group; rows whose group is
        not known (-1) have the largest of all margins.

    Notes
    -----
    With a matrix of costs, what a decision is worth is ``-(p @ costs.T)``: give this in place of ``p`` to
    :meth:`gain` and :meth:`decisions`, with ``ratio=0``.

    Examples
    --------
    >>> from lowchurn.theory import Margin
    >>> p = [[0.4, 0.6], [0.1, 0.9], [0.7, 0.3]]
    >>> Margin(0.3).decisions(p, [0, 0, 0])
    array([0, 1, 0])
    >>> Margin(0.3).proba(p, [0, 0, 0]).round(3)       # agrees with the decisions
    array([[0.538, 0.462],
           [0.308, 0.692],
           [0.769, 0.231]])
    >>> Margin(values=(0.2, 0.8)).decisions([[0.75, 0.25], [0.85, 0.15]], [0, 1])      # a threshold of 0.2
    array([1, 0])
    >>> Margin(0.1, groups=(0.0, 1.0)).decisions(p, [0, 0, 1], group=[0, 1, 0])        # group 1 is frozen
    array([1, 0, 0])
    """

    margin: float = 0.0
    ratio: float = 0.0
    values: tuple[float, ...] | None = None
    groups: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_number("Margin", "margin", self.margin, 0, math.inf)
        for least in self.groups:
            check_number("Margin", "groups", least, 0, math.inf)
        check_number("Margin", "ratio", self.ratio, 0, math.inf)
        for value in self.values or ():
            check_number("Margin", "values", value, 0, math.inf, open_low=True, open_high=True)

    def gain(self, p: Values, base: Values) -> np.ndarray:
        """What the best other class is expected to gain over the base's decision, per row.

        It is infinite where ``base`` is -1, a decision for a class that exists no more.
        """
        return _Rows(self, p, base).gain

    def margins(self, n: int, group: Values | None = None) -> np.ndarray:
        """The margin of each of ``n`` rows."""
        if not self.groups:
            return np.full(n, float(self.margin))
        if group is None:
            raise ValueError(
                f"Margin: a rule with {len(self.groups)} groups needs group, one number per row, got None."
            )
        codes = to_numpy(group).astype(np.int64)
        if codes.shape != (n,) or (n and not -1 <= codes.min() <= codes.max() < len(self.groups)):
            raise ValueError(
                f"Margin: group must hold a number from 0 to {len(self.groups) - 1}, or -1, for each of {n} rows."
            )
        return np.maximum(self.margin, np.array([*self.groups, max(self.groups)])[codes])

    def decisions(self, p: Values, base: Values, group: Values | None = None) -> np.ndarray:
        """The class that is decided, per row."""
        rows = _Rows(self, p, base)
        changes = rows.beyond_ratio > self.margins(len(rows.base), group)
        return np.where(changes | (rows.base < 0), rows.best_other, rows.base)

    def proba(self, p: Values, base: Values, group: Values | None = None) -> np.ndarray:
        """Class probabilities that agree with the decisions: ``p`` with the margin added to the base's class.

        For ``ratio=0`` this is Proposition 1 with the base's decision in place of its probabilities,
        ``(1 - a) * p + a * e_b`` with ``a = margin / (1 + margin)``.
        """
        rows = _Rows(self, p, base)
        moved, margins = rows.p.copy(), self.margins(len(rows.base), group)
        frozen = (rows.base >= 0) & (np.isinf(margins) | math.isinf(self.ratio))
        moved[frozen] = np.arange(moved.shape[1]) == rows.base[frozen][:, None]
        kept = np.flatnonzero((rows.base >= 0) & ~frozen)
        at = kept, rows.base[kept]
        moved[at] += (margins[kept] + self.ratio * rows.own[kept]) / rows.values[rows.base[kept]]
        moved /= moved.sum(axis=1, keepdims=True)
        # Where classes tie, the first would be decided, or the second by a threshold: the decision is put in front.
        at = np.arange(len(moved)), self.decisions(rows.p, rows.base, group)
        others = moved * rows.values
        own = others[at]
        others[at] = -math.inf
        best = others.max(axis=1)
        moved[at] = np.where(own > best, moved[at], best / rows.values[at[1]] * (1 + 1e-12))
        return np.asarray(moved / moved.sum(axis=1, keepdims=True))


def threshold_values(threshold: float | None) -> tuple[float, float] | None:
    """The ``values`` of a :class:`Margin` for decisions by a threshold of the second class; None without one."""
    return None if threshold is None else (threshold, 1 - threshold)


class _Rows:
    """Rows as a :class:`Margin` sees them."""

    def __init__(self, rule: Margin, p: Values, base: Values) -> None:
        self.p = to_numpy(p).astype(float)
        self.base = to_numpy(base).astype(np.int64)
        if self.p.ndim != 2 or self.base.shape != self.p.shape[:1]:
            raise ValueError(
                f"Margin: p must have shape (n, m) and base shape (n,), got {self.p.shape} and {self.base.shape}."
            )
        n, m = self.p.shape
        if rule.values is not None and len(rule.values) != m:
            raise ValueError(f"Margin: values must hold one number per class, got {len(rule.values)} for {m} classes.")
        if n and not -1 <= self.base.min() <= self.base.max() < m:
            raise ValueError(f"Margin: base must hold class indices 0 to {m - 1}, or -1, got {self.base.max()}.")
        self.values = np.ones(m) if rule.values is None else np.asarray(rule.values, dtype=float)
        worth = self.p * self.values
        rows, known = np.arange(n), self.base >= 0
        own_worth = np.where(known, worth[rows, self.base], -math.inf)
        worth[rows[known], self.base[known]] = -math.inf
        self.best_other = np.asarray(decide(worth))
        self.gain = worth[rows, self.best_other] - own_worth
        self.own = np.where(known, self.p[rows, self.base], 0.0)
        with np.errstate(invalid="ignore"):  # an infinite ratio of nothing
            self.beyond_ratio = self.gain - np.where(self.own > 0, rule.ratio * self.own, 0.0)


def optimal_margin(
    p: Values,
    base: Values,
    max_changed: float | Mapping[int | None, float] | None = None,
    max_broken: float | None = None,
    *,
    group: Values | None = None,
    values: tuple[float, ...] | None = None,
    sample_weight: Values | None = None,
) -> Margin:
    """The most accurate decisions under a budget: the least margin that keeps it.

    Rows that tie at the margin keep the base's decision, where a randomised rule would change some of them. With
    budgets of groups there is one margin per group, the least that keeps its budget; beside a budget of all rows the
    margin of a row is the larger of its group's and of the least one that keeps that budget.

    Parameters
    ----------
    p : array of shape (n, m)
        Class probabilities, or an estimate of them.
    base : array of shape (n,)
        The base's decisions as class indices; -1 for a class that exists no more, a decision which always changes.
    max_changed : float or mapping, optional
        Budget on the share of changed decisions. It needs no labels. A mapping contains the budgets of some groups of
        rows, and under None that of all rows.
    max_broken : float, optional
        Budget on the share of decisions that were right and are wrong now, expected under ``p``: the mean of the
        probability of the base's class over the rows that change.
    group : array of shape (n,), optional
        The number of each row's group, from 0 on; -1 where it is not known. Groups without a budget have a margin of
        0. Groups by what the base decides are ``group=base``.
    values : tuple of float, optional
        What a right decision for each class is worth.
    sample_weight : array of shape (n,), optional
        Weights of the rows.

    Returns
    -------
    Margin
        With ``margin`` for the first budget, ``ratio`` for the second, both where both bind. The margin is infinite
        where no further change is allowed at all.

    Examples
    --------
    >>> from lowchurn.theory import optimal_margin
    >>> p = [[0.4, 0.6], [0.1, 0.9], [0.3, 0.7], [0.8, 0.2]]
    >>> rule = optimal_margin(p, [0, 0, 0, 0], max_changed=0.5)
    >>> round(rule.margin, 3), rule.decisions(p, [0, 0, 0, 0])
    (0.2, array([0, 1, 1, 0]))
    >>> rule = optimal_margin(p, [0, 0, 0, 0], max_broken=0.03)
    >>> round(rule.ratio, 3), rule.decisions(p, [0, 0, 0, 0])
    (1.333, array([0, 1, 0, 0]))
    >>> rule = optimal_margin(p, [0, 0, 0, 0], {0: 0.0, None: 0.25}, group=[0, 0, 1, 1])
    >>> [round(least, 3) for least in rule.groups], rule.decisions(p, [0, 0, 0, 0], group=[0, 0, 1, 1])
    ([0.8, 0.0], array([0, 0, 1, 0]))
    """
    who = "optimal_margin"
    plain = Margin(values=values)
    rows = _Rows(plain, p, base)
    n = len(rows.base)
    weight = np.ones(n) if sample_weight is None else to_numpy(check_weights(who, "sample_weight", sample_weight, n))
    changed: Mapping[int | None, Any] = max_changed if isinstance(max_changed, Mapping) else {None: max_changed}
    churn = _Budgets.of_changes(who, weight, changed, np.full(n, -1) if group is None else to_numpy(group))
    rule = churn.least(plain, rows)
    if max_broken is None:
        return rule
    weight = weight / max(float(weight.sum()), 1e-300)
    broken = weight * rows.own, check_number(who, "max_broken", max_broken, 0, 1)
    both = replace(churn, whole=(*churn.whole, broken))
    if both.kept(rule, rows):
        return rule
    alone = replace(plain, ratio=_least_ratio(rows, broken), groups=(0.0,) * len(rule.groups))
    if both.kept(alone, rows):
        return alone
    priced = replace(plain, ratio=_price_of_broken(rows.gain, weight, both))
    return both.least(priced, _Rows(priced, rows.p, rows.base))


Budget: TypeAlias = tuple[
    np.ndarray, float
]  # what the change of each row costs, and how much changes may cost together


@dataclass(frozen=True, eq=False)
class _Budgets:
    """Budgets of all rows, the last that of broken decisions where there is one, and of groups of rows."""

    whole: tuple[Budget, ...]
    groups: dict[int, Budget]
    codes: np.ndarray

    @classmethod
    def of_changes(cls, who: str, weight: np.ndarray, most: Mapping[int | None, Any], group: np.ndarray) -> _Budgets:
        """Budgets of changed decisions, as a share of the rows of each group; None stands for all rows."""
        codes = group.astype(np.int64)
        if codes.shape != weight.shape or (len(codes) and codes.min() < -1):
            raise ValueError(f"{who}: group must hold a number from 0 on, or -1, for each of {len(weight)} rows.")
        found: dict[int | None, Budget] = {}
        for g, share in most.items():
            if share is not None:
                cost = weight if g is None else weight * (codes == g)
                found[g] = cost / max(float(cost.sum()), 1e-300), check_number(who, "max_changed", share, 0, 1)
        whole = tuple(budget for g, budget in found.items() if g is None)
        return cls(whole, {g: budget for g, budget in found.items() if g is not None}, codes)

    def kept(self, rule: Margin, rows: _Rows) -> bool:
        """Whether a rule keeps all budgets."""
        changed = rule.decisions(rows.p, rows.base, self.codes) != rows.base
        each = (*self.whole, *self.groups.values())
        return all(float(cost[changed].sum()) <= most * (1 + 1e-12) for cost, most in each)

    def least(self, rule: Margin, rows: _Rows) -> Margin:
        """The rule with the least margins that keep the budgets: of each group by itself, then of all rows."""
        groups = [0.0] * (1 + max([*self.codes.tolist(), *self.groups])) if self.groups else []
        for g, budget in self.groups.items():
            groups[g] = first_left_out(rows.beyond_ratio, [budget], self.codes == g)
        rule = replace(rule, groups=tuple(groups))
        free = rows.beyond_ratio > replace(rule, margin=0.0).margins(len(rows.base), self.codes)
        return replace(rule, margin=first_left_out(rows.beyond_ratio, self.whole, free | (rows.base < 0)))


def _least_ratio(rows: _Rows, budget: Budget) -> float:
    """The least ratio that keeps a budget."""
    with np.errstate(divide="ignore"):
        ratio = first_left_out(np.where(rows.gain > 0, rows.gain / rows.own, 0.0), [budget])
    return math.nextafter(ratio, math.inf) if ratio > 0 else 0.0  # or rounding lets the row change that sets it


def first_left_out(score: np.ndarray, budgets: Sequence[Budget], among: np.ndarray | None = None) -> float:
    """The largest score of a row that cannot change: rows change from the highest score on while budgets last.

    Other rows than those ``among`` which it is set do not change.
    """
    inside = np.arange(len(score)) if among is None else np.flatnonzero(among)
    order = inside[np.argsort(-score[inside], kind="stable")]
    ranked = score[order]
    within = ranked > 0
    for cost, most in budgets:
        within &= np.cumsum(cost[order]) <= most * (1 + 1e-12)
    if within.all():
        return 0.0
    # A row whose score ties with the first one left out is left out as well, because it does not exceed it.
    return max(float(ranked[np.argmin(within)]), 0.0)


def _price_of_broken(gain: np.ndarray, weight: np.ndarray, budgets: _Budgets) -> float:
    """What a broken decision costs where other budgets bind as well: its multiplier in the linear program."""
    free, gone = np.isfinite(gain) & (gain > 0), ~np.isfinite(gain)
    each = (*budgets.groups.values(), *budgets.whole)
    costs = np.stack([cost[free] for cost, _ in each])
    left = [max(most - float(cost[gone].sum()), 0.0) for cost, most in each]
    found = linprog(-gain[free] * weight[free], A_ub=costs, b_ub=left, bounds=(0, 1), method="highs")
    return max(-float(found.ineqlin.marginals[-1]), 0.0)
