"""From counts to estimates: sums by slice, and the estimates that they allow under weights and groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from lowchurn._checks import unknown_name
from lowchurn._estimates import Estimate, effective_rows, paired_difference, proportion, undefined, weighted_proportion
from lowchurn.audit import _statistics as stats
from lowchurn.audit._statistics import Test

if TYPE_CHECKING:
    from lowchurn.audit._counts import Cut
    from lowchurn.audit._sources import Fetched

Key = tuple[int, str | None]  # the number of a slice column and its value; (-1, None) is the whole table
# Shares of rows: of which kind, among which; the change in accuracy is no share.
_SHARES = {
    "churn": ("changed", "all"),
    "broken": ("broken", "labelled"),
    "fixed": ("fixed", "labelled"),
    "lateral": ("lateral", "labelled"),
    "accuracy_old": ("right", "labelled"),
    "accuracy_new": ("right_new", "labelled"),
}
FIGURES = (*_SHARES, "accuracy_change")
COUNTED = ("changed", "labelled", "broken", "fixed", "lateral", "right", "right_new")

# The kinds of rows, and what a row of each counts for.
KINDS: dict[str, tuple[str, ...]] = {
    "same": (),
    "changed": ("changed",),
    "right": ("labelled", "right", "right_new"),
    "wrong": ("labelled",),
    "broken": ("changed", "labelled", "right", "broken"),
    "fixed": ("changed", "labelled", "right_new", "fixed"),
    "lateral": ("changed", "labelled", "lateral"),
}


@dataclass
class Tally:
    """Sums over the rows of one slice: rows, weights and squared weights of each kind; and by unit where grouped."""

    n: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("all", *COUNTED), 0))
    weight: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("all", *COUNTED), 0.0))
    weight2: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("all", *COUNTED), 0.0))
    units: dict[str, np.ndarray] | None = None

    def add(self, kinds: Sequence[str], n: int, weight: float, weight2: float) -> None:
        for kind in ("all", *kinds):
            self.n[kind] += n
            self.weight[kind] += weight
            self.weight2[kind] += weight2

    def without(self, part: Tally) -> Tally:
        """The sums over the other rows."""
        rest = Tally(units=None if self.units is None or part.units is None else {})
        for kind in self.n:
            rest.n[kind] = self.n[kind] - part.n[kind]
            rest.weight[kind] = max(self.weight[kind] - part.weight[kind], 0.0) if rest.n[kind] else 0.0
            rest.weight2[kind] = max(self.weight2[kind] - part.weight2[kind], 0.0) if rest.n[kind] else 0.0
            if rest.units is not None and self.units is not None and part.units is not None:
                rest.units[kind] = self.units[kind] - part.units[kind]
        return rest


@dataclass(frozen=True)
class Design:
    """How rows came about: plain, weighted or grouped; it decides which variance is right."""

    weighted: bool
    grouped: bool
    groups: int
    """Distinct groups, where there are any."""
    confidence: float

    def words(self) -> str:
        if self.grouped:
            return f"robust to {self.groups:,} groups{' and weights' if self.weighted else ''}"
        return "weighted rows" if self.weighted else "rows drawn alike and apart from each other"

    def figure(self, tally: Tally, name: str, confidence: float | None = None) -> Estimate:
        """One of :data:`FIGURES`, with its interval."""
        if name not in FIGURES:
            raise unknown_name("audit", "figure", name, FIGURES)
        return self.share(tally, *_SHARES[name], confidence) if name in _SHARES else self.change(tally, confidence)

    def share(self, tally: Tally, kind: str, of: str, confidence: float | None = None) -> Estimate:
        """The share of one kind of row among another, with its interval."""
        level = self.confidence if confidence is None else confidence
        n = tally.n[of]
        if n == 0:
            return undefined(0, "no labelled rows" if of == "labelled" else "no rows")
        if not (self.weighted or self.grouped):
            return proportion(tally.n[kind] / n, n, level)
        if tally.units is None:
            sums = tally.weight[kind], tally.weight[of], tally.weight2[kind], tally.weight2[of]
            return weighted_proportion(*sums, n, level)
        total = tally.weight[of]
        p = tally.weight[kind] / total
        sizes = tally.units[of]
        variance, kish, units = self._unit_variance(tally.units[kind] - p * sizes, sizes, total)
        if units < 2:
            return Estimate(p, 0.0, 1.0, n, "one group: no interval", 0.0)
        return proportion(p, n, level, effective_rows(p, variance, kish) * stats.few_units(units, level))

    def change(self, tally: Tally, confidence: float | None = None) -> Estimate:
        """The change in accuracy, with its interval."""
        level = self.confidence if confidence is None else confidence
        n = tally.n["labelled"]
        if n == 0:
            return undefined(0, "no labelled rows")
        if not (self.weighted or self.grouped):
            return paired_difference(tally.n["fixed"] / n, tally.n["broken"] / n, n, level)
        total = tally.weight["labelled"]
        f, b = tally.weight["fixed"] / total, tally.weight["broken"] / total
        d = f - b
        if tally.units is None:
            fixed, broken, labelled = (tally.weight2[kind] for kind in ("fixed", "broken", "labelled"))
            spread = (1 - d) ** 2 * fixed + (1 + d) ** 2 * broken + d**2 * (labelled - fixed - broken)
            variance, kish, units = spread / total**2, total**2 / labelled, math.inf
        else:
            won, lost, sizes = (tally.units[kind] for kind in ("fixed", "broken", "labelled"))
            variance, kish, units = self._unit_variance(won - lost - d * sizes, sizes, total)
        if units < 2:
            return Estimate(d, -1.0, 1.0, n, "one group: no interval", 0.0)
        return paired_difference(f, b, n, level, stats.effective_pairs(f, b, variance, kish, units, level))

    def mcnemar(self, tally: Tally) -> Test:
        """Is the accuracy changed?"""
        if tally.units is not None:
            moved = tally.units["fixed"] - tally.units["broken"]
            n = int(np.count_nonzero(moved))
            return stats.mcnemar_robust(float(moved.sum()), float(np.sum(moved**2)), n, "groups and weights")
        fixed, broken = tally.n["fixed"], tally.n["broken"]
        if not self.weighted:
            return stats.mcnemar(fixed, broken)
        squares = tally.weight2["fixed"] + tally.weight2["broken"]
        return stats.mcnemar_robust(tally.weight["fixed"] - tally.weight["broken"], squares, fixed + broken, "weights")

    def more_flips(self, inside: Tally, whole: Tally) -> float:
        """P-value that a slice holds no more flips than the other rows do (one-sided)."""
        if inside.n["all"] in (0, whole.n["all"]) or whole.n["changed"] == 0:
            return math.nan
        if not (self.weighted or self.grouped):
            return stats.more_flips_than_chance(
                inside.n["changed"], inside.n["all"], whole.n["changed"], whole.n["all"]
            )
        w_in, w_out = inside.weight["all"], whole.weight["all"] - inside.weight["all"]
        if w_out <= 0:  # too little weight outside to be seen in the sum
            return math.nan
        p_in = inside.weight["changed"] / w_in
        p_out = (whole.weight["changed"] - inside.weight["changed"]) / w_out
        if inside.units is not None and whole.units is not None:
            units = len(whole.units["all"])
            if units < 2:
                return math.nan
            here, all_rows = inside.units, whole.units
            influence = (here["changed"] - p_in * here["all"]) / w_in
            influence -= ((all_rows["changed"] - here["changed"]) - p_out * (all_rows["all"] - here["all"])) / w_out
            variance = units / (units - 1) * float(np.sum(influence**2))
        else:
            flips, rows = inside.weight2["changed"], inside.weight2["all"]
            flips_out, rows_out = whole.weight2["changed"] - flips, whole.weight2["all"] - rows
            variance = ((1 - p_in) ** 2 * flips + p_in**2 * (rows - flips)) / w_in**2
            variance += ((1 - p_out) ** 2 * flips_out + p_out**2 * (rows_out - flips_out)) / w_out**2
        if variance <= 0:
            return math.nan
        return float(special.ndtr(-(p_in - p_out) / math.sqrt(variance)))

    def _unit_variance(self, residual: np.ndarray, sizes: np.ndarray, total: float) -> tuple[float, float, float]:
        """The variance, Kish's effective size and the number of units that the variance rests on."""
        units = int(np.count_nonzero(sizes))
        if units < 2:
            return math.nan, 1.0, units
        variance = units / (units - 1) * float(np.sum(residual**2)) / total**2
        # Bags hold many groups: what one group weighs follows from the number of groups, not of bags.
        kish = total**2 / float(np.sum(sizes**2)) * max(1.0, self.groups / len(sizes))
        return variance, kish, units


def tallies(cells: Fetched, units: Fetched | None) -> dict[Key, Tally]:
    """Counts by slice, from the database's answer; the whole table, (-1, None), first; missing values last."""
    found: dict[Key, Tally] = {}
    n = cells["n"]
    weights, squares = cells.get("w", n), cells.get("w2", n)
    for cut, value, kind, rows, weight, square in zip(
        cells["cut"], cells["value"], cells["kind"], n, weights, squares, strict=True
    ):
        tally = found.setdefault((int(cut), value), Tally())
        tally.add(KINDS[kind], int(rows), float(weight), float(square))
    if units is not None:
        _add_units(found, units)
    return in_order(found)


def in_order(found: Mapping[Key, Tally]) -> dict[Key, Tally]:
    """The whole table first, then slices by their values, missing ones last."""
    return {key: found[key] for key in sorted(found, key=lambda key: (key[0], key[1] is None, _natural(key[1])))}


def _add_units(found: dict[Key, Tally], units: Fetched) -> None:
    position = {unit: i for i, unit in enumerate(sorted(set(units["unit"]), key=str))}
    for tally in found.values():
        tally.units = {kind: np.zeros(len(position)) for kind in ("all", *COUNTED)}
    for cut, value, unit, kind, weight in zip(
        *(units[name] for name in ("cut", "value", "unit", "kind", "weight")), strict=True
    ):
        target = found[int(cut), value].units
        assert target is not None
        for counted in ("all", *KINDS[kind]):
            target[counted][position[unit]] += weight


@dataclass(frozen=True)
class Slice:
    """One value (or bin) of a slice column, judged on its own rows."""

    column: str
    value: str
    rows: int
    churn: Estimate
    broken: Estimate
    fixed: Estimate
    accuracy_old: Estimate
    accuracy_new: Estimate
    accuracy_change: Estimate
    p_value: float
    """Of the change in accuracy (McNemar)."""
    q_value: float
    """The same with the false-discovery rate held over all slices."""
    lift: float
    """Churn in the slice over churn everywhere."""
    excess: float
    """Changed rows beyond those that the overall rate would put here (in rows, or weight where weighted)."""
    flips_p: float
    """Of more flips than in the other rows."""
    flips_q: float
    """The same with the false-discovery rate held."""

    @property
    def name(self) -> str:
        return f"{self.column}={self.value}"


def judge_slices(found: Mapping[Key, Tally], cuts: Sequence[Cut], design: Design) -> list[Slice]:
    """Every slice with its estimates and tests; the q-values are over all slices together."""
    whole, inside = found[-1, None], list(found.items())[1:]
    tests = slice_tests([tally for _, tally in inside], whole, design, [design.mcnemar(tally) for _, tally in inside])
    names = [name for name in FIGURES if name != "lateral"]
    figures: list[dict[str, Any]] = [{name: design.figure(tally, name) for name in names} for _, tally in inside]
    return [
        Slice(
            cuts[cut].name,
            cuts[cut].words(value),
            tally.n["all"],
            **of_slice,
            **tested,
        )
        for ((cut, value), tally), of_slice, tested in zip(inside, figures, tests, strict=True)
    ]


def slice_tests(inside: Sequence[Tally], whole: Tally, design: Design, changes: Sequence[Test]) -> list[dict[str, Any]]:
    """Of each slice, by the names of :class:`Slice`: its test with its q-value, and how its changes stand out."""
    p_values = [test.p_value for test in changes]
    flips = [design.more_flips(tally, whole) for tally in inside]
    overall = _share(whole)
    q_values, flips_q = stats.false_discovery(p_values), stats.false_discovery(flips)
    return [
        {
            "p_value": p_values[i],
            "q_value": float(q_values[i]),
            "lift": _share(tally) / overall if overall > 0 else math.nan,
            "excess": tally.weight["changed"] - overall * tally.weight["all"],
            "flips_p": flips[i],
            "flips_q": float(flips_q[i]),
        }
        for i, tally in enumerate(inside)
    ]


def _share(tally: Tally) -> float:
    """Of changed rows, by weight."""
    weight = tally.weight["all"]
    return tally.weight["changed"] / weight if weight else math.nan


def _natural(value: str | None) -> tuple[int, float, str]:
    """Numbers in their order, then words."""
    try:
        return (0, float(value or ""), "")
    except ValueError:
        return (1, 0.0, value or "")
