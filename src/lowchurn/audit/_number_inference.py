"""From sums to estimates of what moved: shares, means of moves and losses, and their changes, under any design."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import stats as scipy_stats

from lowchurn._checks import unknown_name
from lowchurn._estimates import Estimate, undefined
from lowchurn.audit._history_sums import Sums
from lowchurn.audit._inference import Design, Key, Tally, in_order, slice_tests
from lowchurn.audit._number_counts import SQUARES, Scale
from lowchurn.audit._statistics import Test

if TYPE_CHECKING:
    from lowchurn.audit._counts import Cut
    from lowchurn.audit._sources import Fetched

# Kinds of rows as decisions have them, and the conditions that they are of numbers.
KINDS = {
    "all": "all",
    "changed": "moved",
    "labelled": "known",
    "broken": "worse",
    "fixed": "better",
    "shifted": "shifted",
    "stirred": "stirred",
}
SHARES = {"moved": ("changed", "all"), "worse": ("broken", "labelled"), "better": ("fixed", "labelled")}
MEANS = {
    "mean_move": "move",
    "mean_size": "size",
    "loss_old": "loss_old",
    "loss_new": "loss_new",
    "loss_change": "loss_change",
}
ROOTS = {"rmse_old": "square_old", "rmse_new": "square_new", "rmse_change": "square_change"}
FIGURES = (*SHARES, *MEANS, *ROOTS)
# Changes are zero in all rows but a few where two models are alike: which rows are not, by variable.
STIRRED = {"move": "shifted", "size": "shifted", "loss_change": "stirred", "square_change": "stirred"}
FEW = 10  # rows that differ; below it their number is as uncertain as their size


@dataclass
class NumberTally:
    """Sums over the rows of one slice: rows by what became of them, and the moments of each variable by unit."""

    counts: Tally
    moments: dict[str, np.ndarray]


@dataclass(frozen=True)
class Spread:
    """The largest differences in the table: of two numbers, and of two losses."""

    value: float = 0.0
    loss: float = 0.0


class _Mean(NamedTuple):
    """A mean or a change of one, its variance, and what these rest on."""

    value: float
    variance: float
    df: float
    n: int
    effective: float


@dataclass(frozen=True)
class NumberDesign:
    """The estimates that sums allow; ``design`` decides which variance is right."""

    design: Design
    scales: Mapping[str, Scale] = field(default_factory=dict)
    """How the variables of the sums were shifted and scaled."""
    spread: Spread = field(default_factory=Spread)

    def figure(self, tally: NumberTally, name: str, confidence: float | None = None) -> Estimate:
        """One of :data:`FIGURES`, with its interval."""
        if name not in FIGURES:
            raise unknown_name("audit", "figure", name, FIGURES)
        if name in SHARES:
            found = self.design.share(tally.counts, *SHARES[name], confidence)
            return found if found.defined or name == "moved" else undefined(0, "no row has a target or a loss")
        level = self.design.confidence if confidence is None else confidence
        mean = self._root(tally, name) if name in ROOTS else self._mean(tally, MEANS[name])
        if mean is None:
            return undefined(0, "no row has a target" if name in ROOTS else "no row has a target or a loss")
        positive = name in {"mean_size", "rmse_old", "rmse_new"}
        return _interval(mean, level, self._method(tally, name), 0.0 if positive else -math.inf)

    def test(self, tally: NumberTally) -> Test:
        """Is the mean loss changed?"""
        mean = self._mean(tally, "loss_change")
        words = "paired t-test" + (f", {self.design.words()}" if self.design.grouped or self.design.weighted else "")
        if mean is None or mean.df < 1 or tally.counts.n["stirred"] == 0:
            return Test("is the mean loss changed?", math.nan, 0 if mean is None else mean.n, words)
        p = float(2 * scipy_stats.t.sf(abs(mean.value) / math.sqrt(mean.variance), mean.df)) if mean.variance else 0.0
        return Test("is the mean loss changed?", p, mean.n, words)

    def _method(self, tally: NumberTally, name: str) -> str:
        how = "delta method, Student's t" if name in ROOTS else "Student's t"
        if self._is_thin(tally, ROOTS.get(name) or MEANS[name]):
            how += f", with allowance for few (under {FEW}) differences"
        return how if not (self.design.grouped or self.design.weighted) else f"{how}, {self.design.words()}"

    def _is_thin(self, tally: NumberTally, variable: str) -> bool:
        """Whether hardly a row (or group) differs."""
        kind = STIRRED.get(variable)
        if kind is None:
            return False
        if tally.counts.units is not None:
            return int(np.count_nonzero(tally.counts.units[kind])) < FEW
        return tally.counts.n[kind] < FEW

    def _mean(self, tally: NumberTally, variable: str) -> _Mean | None:
        of = "all" if variable in ("move", "size") else "labelled"
        if f"{variable}_w" not in tally.moments or tally.counts.n[of] == 0:
            return None
        scale = self.scales[variable]
        allowance = 0.0
        if self._is_thin(tally, variable):
            allowance = (self.spread.value if of == "all" else self.spread.loss) / scale.unit
        mean = self._linear(tally, of, {variable: 1.0}, allowance)
        return mean._replace(value=scale.centre + scale.unit * mean.value, variance=scale.unit**2 * mean.variance)

    def _root(self, tally: NumberTally, name: str) -> _Mean | None:
        """A root mean square, or the change of one, with the variance of its linear part."""
        squares = [self._mean(tally, variable) for variable in SQUARES[:2]]
        before, after = squares
        if before is None or after is None:
            return None
        roots = [math.sqrt(max(square.value, 0.0)) for square in (before, after)]
        if name != "rmse_change":
            root, square = (roots[0], before) if name == "rmse_old" else (roots[1], after)
            return square._replace(value=root, variance=square.variance / (4 * square.value) if root > 0 else 0.0)
        change = self._mean(tally, "square_change")
        assert change is not None
        total = sum(roots)
        if total == 0:
            return change._replace(value=0.0, variance=self._thin_variance(tally))
        # The change of the roots is that of the squares over their sum. With s the old square and u its change, a row
        # adds u / (2 new) + s (1 / (2 new) - 1 / (2 old)) to its linear part; a root of zero has no part.
        slopes = [1 / (2 * root) if root > 0 else 0.0 for root in roots]
        gradient = {"square_change": slopes[1], "square_old": slopes[1] - slopes[0]}
        scaled = {name: slope * self.scales[name].unit for name, slope in gradient.items()}
        mean = self._linear(tally, "labelled", scaled, 0.0)
        return mean._replace(value=change.value / total, variance=mean.variance + self._thin_variance(tally))

    def _thin_variance(self, tally: NumberTally) -> float:
        if not self._is_thin(tally, "square_change"):
            return 0.0
        return 2 * (self.spread.loss / self._size(tally, "labelled")) ** 2

    def _size(self, tally: NumberTally, of: str) -> float:
        """Kish's number of rows, or of groups."""
        counts = tally.counts
        if counts.units is not None:
            return counts.weight[of] ** 2 / float(np.sum(counts.units[of] ** 2))
        return counts.weight[of] ** 2 / counts.weight2[of]

    def _linear(self, tally: NumberTally, of: str, gradient: Mapping[str, float], allowance: float) -> _Mean:
        """The mean of a sum of variables and its variance, in the units of the sums.

        Where hardly any row differs, what other rows would show is not known. Then two more rows are allowed for, one
        that rises and one that falls by ``allowance``, the most that any two of them differ (as Agresti and Min add
        to the counts of changed decisions).
        """
        counts, moments = tally.counts, tally.moments
        n, total, total2 = counts.n[of], counts.weight[of], counts.weight2[of]
        value = sum(slope * float(moments[f"{name}_w"].sum()) for name, slope in gradient.items()) / total
        linear = sum(slope * float(moments[f"{name}_v"].sum()) for name, slope in gradient.items())
        square = sum(slope**2 * float(moments[f"{name}_x"].sum()) for name, slope in gradient.items())
        if len(gradient) > 1:
            square += 2 * math.prod(gradient.values()) * float(moments["square_cross"].sum())
        spread = max(square - 2 * value * linear + value**2 * total2, 0.0)
        variance = spread / total**2 * n / (n - 1) if n > 1 else math.nan
        effective, df = total**2 / total2, n - 1
        if counts.units is not None:
            sizes = counts.units[of]
            residual = sum(slope * moments[f"{name}_w"] for name, slope in gradient.items()) - value * sizes
            units = int(np.count_nonzero(sizes))
            df = units - 1
            clustered = units / df * float(np.sum(residual**2)) / total**2 if df > 0 else math.nan
            effective *= variance / clustered if variance > 0 and clustered > 0 else 1.0
            variance = clustered
        if allowance:
            variance += 2 * (allowance / self._size(tally, of)) ** 2
        return _Mean(value, variance, df, n, effective)


def _interval(mean: _Mean, level: float, method: str, least: float) -> Estimate:
    if mean.df < 1:
        return Estimate(mean.value, max(-math.inf, least), math.inf, mean.n, "one row or group: no interval", 0.0)
    half = float(scipy_stats.t.isf((1 - level) / 2, mean.df)) * math.sqrt(mean.variance)
    return Estimate(mean.value, max(mean.value - half, least), mean.value + half, mean.n, method, mean.effective)


def number_tallies(whole: Fetched, by_cut: Sequence[Fetched]) -> dict[Key, NumberTally]:
    """Sums by slice, from the database's answers; the whole table, (-1, None), first; missing values last."""
    found: dict[Key, NumberTally] = {}
    for cut, fetched in enumerate([whole, *by_cut], start=-1):
        sums = Sums(fetched)
        rows = len(fetched["n_all"])
        slots = np.array([sums.values.index(value) for value in fetched.get("value", [None] * rows)], dtype=int)
        units = np.array([sums.units[unit] for unit in fetched.get("unit", [None] * rows)], dtype=int)
        names = [name for name in fetched if name[-2:] in ("_w", "_v", "_x") or name == "square_cross"]
        columns = {name: np.asarray(fetched[name], dtype=float) for name in names if name[1:2] != "_"}
        for slot, value in enumerate(sums.values):
            here = slots == slot
            moments = {name: np.zeros(len(sums.units)) for name in columns}
            for name, column in columns.items():
                np.add.at(moments[name], units[here], column[here])
            found[cut, value] = NumberTally(sums.tally(value, KINDS), moments)
    return {key: found[key] for key in in_order({key: tally.counts for key, tally in found.items()})}


@dataclass(frozen=True)
class NumberSlice:
    """One value (or bin) of a slice column, judged on its own rows."""

    column: str
    value: str
    rows: int
    moved: Estimate
    worse: Estimate
    better: Estimate
    mean_move: Estimate
    mean_size: Estimate
    loss_old: Estimate
    loss_new: Estimate
    loss_change: Estimate
    rmse_old: Estimate
    rmse_new: Estimate
    rmse_change: Estimate
    p_value: float
    """Of the change in the mean loss (paired t-test)."""
    q_value: float
    """The same with the false-discovery rate held over all slices."""
    lift: float
    """Moved rows in the slice over those everywhere, as shares."""
    excess: float
    """Moved rows beyond those that the overall rate would put here (in rows, or weight where weighted)."""
    flips_p: float
    """Of more moved rows than in the other rows."""
    flips_q: float
    """The same with the false-discovery rate held."""
    quantiles: Mapping[str, Estimate] = field(default_factory=dict)
    """Of the move, by level."""

    @property
    def name(self) -> str:
        return f"{self.column}={self.value}"


def judge_number_slices(
    found: Mapping[Key, NumberTally], cuts: Sequence[Cut], design: NumberDesign
) -> list[NumberSlice]:
    """Every slice with its estimates and tests; the q-values are over all slices together."""
    whole, inside = found[-1, None].counts, list(found.items())[1:]
    counts, changes = [tally.counts for _, tally in inside], [design.test(tally) for _, tally in inside]
    tests = slice_tests(counts, whole, design.design, changes)
    figures: list[dict[str, Any]] = [{name: design.figure(tally, name) for name in FIGURES} for _, tally in inside]
    return [
        NumberSlice(
            cuts[cut].name,
            cuts[cut].words(value),
            tally.counts.n["all"],
            **of_slice,
            **tested,
        )
        for ((cut, value), tally), of_slice, tested in zip(inside, figures, tests, strict=True)
    ]
