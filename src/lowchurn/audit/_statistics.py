"""Inference from counts: pure functions, numbers in and numbers out; nothing here knows of tables or databases.

Intervals for a share are Clopper-Pearson's (exact) where fewer than ten rows are of either kind and Wilson's
elsewhere; for the difference of two accuracies on the same rows they are Tango's score interval. Where rows have
weights or come in groups, the number of rows is replaced by the effective one, which is chosen so that the
interval's variance is that of the design (Korn and Graubard 1998).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, special, stats
from statsmodels.stats.proportion import proportion_confint

from lowchurn._checks import check_number

# Below this many rows of either kind the exact interval is taken: Wilson's dips below its level there.
EXACT_BELOW = 10


@dataclass(frozen=True)
class Estimate:
    """A number with its interval and the rows that it rests on. Undefined is NaN, never 0.

    Examples
    --------
    >>> from lowchurn.audit import Estimate
    >>> print(Estimate(0.031, 0.025, 0.038, 4000, "Wilson"))
    0.031 [0.025, 0.038] (n = 4,000)
    """

    value: float
    low: float
    high: float
    n: int
    """Rows behind the number (of a weight above zero)."""
    method: str = ""
    """How the interval was made."""
    effective: float = math.nan
    """Rows of a plain random sample that would know as much; equal to ``n`` without weights and groups."""

    @property
    def defined(self) -> bool:
        return not math.isnan(self.value)

    def __str__(self) -> str:
        if not self.defined:
            return f"undefined (n = {self.n:,})"
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}] (n = {self.n:,})"


def undefined(n: int = 0, why: str = "no rows") -> Estimate:
    """NaN with its count: no evidence is not a rate of zero."""
    return Estimate(math.nan, math.nan, math.nan, n, f"undefined: {why}", 0.0)


def critical(confidence: float) -> float:
    """The normal quantile of a two-sided interval."""
    return -float(special.ndtri((1 - confidence) / 2))  # of the lower end: close to 1 there are no floats


def proportion(share: float, n: int, confidence: float = 0.95, effective: float | None = None) -> Estimate:
    """A share of rows with its exact or Wilson interval.

    Parameters
    ----------
    share : float
        The (weighted) share.
    n : int
        Rows that it was counted over.
    confidence : float, default 0.95
    effective : float, optional
        The effective number of rows, where weights or groups make it differ from ``n``.

    Examples
    --------
    >>> from lowchurn.audit._statistics import proportion
    >>> proportion(3 / 200, 200).method
    'exact (Clopper-Pearson)'
    >>> proportion(0.25, 200).method
    'Wilson'
    """
    check_number("proportion", "confidence", confidence, 0, 1, open_low=True, open_high=True)
    plain = effective is None
    size = float(n) if effective is None else effective
    if n == 0 or not size > 0 or math.isnan(share):
        return undefined(n)
    share = min(max(share, 0.0), 1.0)
    events = share * size
    exact = min(events, size - events) < EXACT_BELOW - 1e-9
    low, high = proportion_confint(events, size, alpha=1 - confidence, method="beta" if exact else "wilson")
    low = 0.0 if share == 0 else float(low)
    high = 1.0 if share == 1 else float(high)
    name = "exact (Clopper-Pearson)" if exact else "Wilson"
    return Estimate(share, low, high, n, name if plain else f"{name} at effective n = {size:,.1f}", size)


def _tango_score(delta: float, fixed: float, broken: float, n: float) -> float:
    """Tango's score statistic of ``accuracy change = delta``; ``fixed`` and ``broken`` are counts, whole or not."""
    # The likeliest rate of broken rows under the null solves a quadratic equation: 2 n q^2 + b q + c = 0.
    b = -fixed - broken + (2 * n - fixed + broken) * delta
    c = -broken * delta * (1 - delta)
    root = math.sqrt(max(b * b - 8 * n * c, 0.0))
    null_broken = (root - b) / (4 * n)
    variance = n * (2 * null_broken + delta * (1 - delta))
    gap = fixed - broken - n * delta
    if variance <= 0:
        return 0.0 if gap == 0 else math.copysign(math.inf, gap)
    return gap / math.sqrt(variance)


def paired_difference(
    fixed_rate: float, broken_rate: float, n: int, confidence: float = 0.95, effective: float | None = None
) -> Estimate:
    """The change in accuracy between two models on the same rows, with Tango's (1998) score interval.

    It inverts the score test of McNemar's setting, so it knows that the models mostly agree, stays inside
    [-1, 1] and is sensible where nothing changed at all; Wald's interval has no width there.

    Examples
    --------
    >>> from lowchurn.audit._statistics import paired_difference
    >>> print(paired_difference(fixed_rate=0.03, broken_rate=0.01, n=1000))
    0.02 [0.008003, 0.03357] (n = 1,000)
    """
    check_number("paired_difference", "confidence", confidence, 0, 1, open_low=True, open_high=True)
    size = float(n) if effective is None else effective
    if n == 0 or not size > 0 or math.isnan(fixed_rate):
        return undefined(n)
    fixed, broken = fixed_rate * size, broken_rate * size
    value = fixed_rate - broken_rate
    z = critical(confidence)
    edge = 1 - 1e-12

    def crossing(level: float, start: float, end: float) -> float:
        def gap(delta: float) -> float:
            return _tango_score(delta, fixed, broken, size) - level

        if gap(start) * gap(end) > 0:  # the statistic never reaches the level before the end of the scale
            return round(end)
        return float(optimize.brentq(gap, start, end, xtol=1e-13))

    centre = min(max(value, -edge), edge)
    low = -1.0 if value <= -edge else crossing(z, centre, -edge)
    high = 1.0 if value >= edge else crossing(-z, centre, edge)
    name = "Tango score" if effective is None else f"Tango score at effective n = {size:,.1f}"
    return Estimate(value, low, high, n, name, size)


@dataclass(frozen=True)
class Test:
    """A hypothesis test: what was asked and how surprising the data are if the answer is no.

    Examples
    --------
    >>> from lowchurn.audit._statistics import mcnemar
    >>> mcnemar(fixed=12, broken=3).method
    "McNemar's exact test"
    """

    __test__ = False  # pytest: this is not a test case

    question: str
    p_value: float
    n: int
    method: str


def mcnemar(fixed: int, broken: int) -> Test:
    """McNemar's exact test that as many rows were fixed as broken, two-sided; NaN where neither happened.

    Examples
    --------
    >>> from lowchurn.audit._statistics import mcnemar
    >>> round(mcnemar(fixed=12, broken=3).p_value, 4)
    0.0352
    """
    changed = int(fixed) + int(broken)
    p = float(stats.binomtest(int(fixed), changed, 0.5).pvalue) if changed else math.nan
    return Test("is the accuracy changed?", p, changed, "McNemar's exact test")


def mcnemar_units(differences: np.ndarray) -> Test:
    """McNemar's test for weighted or grouped rows (Obuchowski 1998): each unit's fixed minus broken weight.

    Examples
    --------
    >>> import numpy as np
    >>> from lowchurn.audit._statistics import mcnemar_units
    >>> round(mcnemar_units(np.array([1.0, -1.0, 2.0, 0.0])).p_value, 3)
    0.414
    """
    spread = float(np.sqrt(np.sum(np.square(differences))))
    p = float(2 * special.ndtr(-abs(np.sum(differences)) / spread)) if spread > 0 else math.nan
    return Test(
        "is the accuracy changed?", p, int(np.count_nonzero(differences)), "McNemar, robust to groups and weights"
    )


def non_inferiority(
    fixed_rate: float, broken_rate: float, n: int, margin: float, effective: float | None = None
) -> Test:
    """One-sided score test that the accuracy fell by less than ``margin``: small p-values prove it.

    Examples
    --------
    >>> from lowchurn.audit._statistics import non_inferiority
    >>> non_inferiority(fixed_rate=0.02, broken_rate=0.02, n=5000, margin=0.01).p_value < 0.001
    True
    """
    check_number("non_inferiority", "margin", margin, 0, 1, open_high=True)
    size = float(n) if effective is None else effective
    if n == 0 or not size > 0 or math.isnan(fixed_rate):
        p = math.nan
    else:
        p = float(special.ndtr(-_tango_score(-margin, fixed_rate * size, broken_rate * size, size)))
    return Test(f"is the accuracy not worse by {margin:g} or more?", p, n, "score test (Tango), one-sided")


def false_discovery(p_values: Any) -> np.ndarray:
    """Benjamini and Hochberg's adjusted p-values; undefined ones stay NaN and are not counted.

    Examples
    --------
    >>> from lowchurn.audit._statistics import false_discovery
    >>> false_discovery([0.01, float("nan"), 0.04])
    array([0.02,  nan, 0.04])
    """
    p = np.asarray(p_values, dtype=float)
    q = np.full(p.shape, np.nan)
    known = ~np.isnan(p)
    if known.any():
        q[known] = stats.false_discovery_control(np.clip(p[known], 0, 1), method="bh")
    return q


def more_flips_than_chance(inside: int, rows_inside: int, total: int, rows: int) -> float:
    """P-value (one-sided, Fisher's exact) that a slice holds no more flips than chance would put there.

    Examples
    --------
    >>> from lowchurn.audit._statistics import more_flips_than_chance
    >>> more_flips_than_chance(inside=9, rows_inside=20, total=20, rows=200) < 0.001
    True
    """
    if rows_inside in (0, rows) or total == 0:
        return math.nan
    return float(stats.hypergeom.sf(inside - 1, rows, total, rows_inside))


def effective_rows(
    share: float, variance: float, kish: float, units: float = math.inf, confidence: float = 0.95
) -> float:
    """The size of a plain random sample in which a share has the given variance.

    Where the variance says nothing (a share of 0 or 1) it is Kish's. Few units make the variance itself uncertain:
    the ratio of normal to t quantile (Korn and Graubard) pays for it.

    Examples
    --------
    >>> from lowchurn.audit._statistics import effective_rows
    >>> round(effective_rows(0.5, 0.25 / 80, kish=100.0), 6)
    80.0
    """
    size = share * (1 - share) / variance if variance > 0 and 0 < share < 1 else kish
    return size * _few_units(units, confidence)


def effective_pairs(
    fixed: float, broken: float, variance: float, kish: float, units: float = math.inf, confidence: float = 0.95
) -> float:
    """Like :func:`effective_rows`, for the difference of two accuracies.

    Examples
    --------
    >>> from lowchurn.audit._statistics import effective_pairs
    >>> round(effective_pairs(0.02, 0.02, 0.04 / 500, kish=900.0), 6)
    500.0
    """
    plain = fixed + broken - (fixed - broken) ** 2
    size = plain / variance if variance > 0 and plain > 0 else kish
    return size * _few_units(units, confidence)


def _few_units(units: float, confidence: float) -> float:
    if math.isinf(units):
        return 1.0
    if units < 2:
        return math.nan
    return float((critical(confidence) / stats.t.isf((1 - confidence) / 2, units - 1)) ** 2)


def bootstrap(
    sums: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    n: int,
    *,
    confidence: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    centred: bool = False,
) -> Estimate:
    """Paired bootstrap of a statistic of column sums, resampling whole units (rows, groups or bags of them).

    Parameters
    ----------
    sums : array of shape (units, k)
        What each unit adds to the ``k`` totals.
    statistic : callable
        Totals of shape (draws, k) to values of shape (draws,).
    n : int
        Rows behind the units.
    centred : bool, default False
        Put the interval around the value with the bootstrap's standard error (and a t quantile) instead of taking
        percentiles: right for statistics that resampling biases, such as a calibration error.

    Examples
    --------
    >>> import numpy as np
    >>> from lowchurn.audit._statistics import bootstrap
    >>> rng = np.random.default_rng(0)
    >>> values = rng.normal(1.0, 2.0, size=400)
    >>> mean = bootstrap(np.c_[np.ones(400), values], lambda t: t[:, 1] / t[:, 0], n=400)
    >>> 0.18 < (mean.high - mean.low) / 2 < 0.22
    True
    """
    units = sums.shape[0]
    with np.errstate(all="ignore"):
        value = float(statistic(sums.sum(axis=0)[None, :])[0]) if units else math.nan
    if math.isnan(value):
        return undefined(n)
    if units < 2:
        return Estimate(value, -math.inf, math.inf, n, "one unit: no interval", 0.0)
    rng = np.random.default_rng(seed)
    chunk = max(1, min(draws, 4_000_000 // units))
    parts = []
    for start in range(0, draws, chunk):
        times = rng.multinomial(units, np.full(units, 1 / units), size=min(chunk, draws - start))
        with np.errstate(all="ignore"):
            parts.append(statistic(times @ sums))
    drawn = np.concatenate(parts)
    drawn = drawn[np.isfinite(drawn)]
    if drawn.size < draws / 2:
        return Estimate(value, math.nan, math.nan, n, "bootstrap: undefined in most draws", float(units))
    if centred:
        half = float(stats.t.isf((1 - confidence) / 2, units - 1) * drawn.std(ddof=1))
        low, high = value - half, value + half
    else:
        low, high = (float(q) for q in np.quantile(drawn, [0.5 - confidence / 2, 0.5 + confidence / 2]))
    kind = "standard error" if centred else "percentiles"
    return Estimate(value, low, high, n, f"paired bootstrap ({kind}, {draws} draws of {units:,} units)", float(units))


def rows_needed(estimate: Estimate, limit: float, confidence: float, interval: Callable[[float], Estimate]) -> float:
    """Rows at which the interval, at the same rate, would no longer straddle the limit; infinite where none would.

    ``interval`` maps an (effective) number of rows to the estimate that it would give.

    Examples
    --------
    >>> from lowchurn.audit._statistics import proportion, rows_needed
    >>> small = proportion(0.02, 200)
    >>> rows_needed(small, 0.03, 0.95, lambda size: proportion(0.02, round(size), effective=size))
    1118.0
    """
    # Rows of a single group show no variance, so they are worth nothing.
    if not estimate.defined or estimate.value == limit or estimate.effective <= 0:
        return math.inf

    def settled(size: float) -> bool:
        there = interval(size)
        return there.high <= limit if estimate.value < limit else there.low > limit

    high = max(estimate.effective, 1.0)
    while not settled(high):
        high *= 2
        if high > 1e15:
            return math.inf
    low = max(high / 2, 1.0)
    while high - low > max(0.5, 1e-9 * high):
        middle = (low + high) / 2
        low, high = (low, middle) if settled(middle) else (middle, high)
    # Rows are needed of the kind at hand: with weights or groups each is worth effective / n of a plain one.
    return float(math.ceil(high * estimate.n / estimate.effective))
