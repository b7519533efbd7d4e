"""Tests and resampling: pure functions, numbers in and numbers out, without tables or databases.

The intervals of shares and of differences are those of ``lowchurn._estimates``. Where rows have weights or come in
groups, the number of rows is replaced by the effective one, at which a plain sample has the variance of the design
(Korn and Graubard 1998).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

from lowchurn._checks import check_number
from lowchurn._estimates import Estimate, critical, tango_score, undefined
from lowchurn._types import Values


@dataclass(frozen=True)
class Test:
    """A hypothesis test: its question, and the probability of such data if the answer were no."""

    __test__ = False  # pytest: this is not a test case

    question: str
    p_value: float
    n: int
    method: str


def mcnemar(fixed: int, broken: int) -> Test:
    """McNemar's exact test that as many rows were fixed as broken, two-sided; NaN where neither happened."""
    changed = int(fixed) + int(broken)
    p = float(stats.binomtest(int(fixed), changed, 0.5).pvalue) if changed else math.nan
    return Test("is the accuracy changed?", p, changed, "McNemar's exact test")


def mcnemar_robust(difference: float, squares: float, n: int, design: str) -> Test:
    """McNemar's test for weighted or grouped rows (Obuchowski 1998): fixed minus broken weight, and its squares."""
    p = float(2 * special.ndtr(-abs(difference) / math.sqrt(squares))) if squares > 0 else math.nan
    return Test("is the accuracy changed?", p, n, f"McNemar, robust to {design}")


def non_inferiority(
    fixed_rate: float, broken_rate: float, n: int, margin: float, effective: float | None = None
) -> Test:
    """One-sided score test that the accuracy fell by less than ``margin``: small p-values prove it."""
    check_number("non_inferiority", "margin", margin, 0, 1, open_high=True)
    size = float(n) if effective is None else effective
    if n == 0 or not size > 0 or math.isnan(fixed_rate):
        p = math.nan
    else:
        p = float(special.ndtr(-tango_score(-margin, fixed_rate * size, broken_rate * size, size)))
    return Test(f"is the accuracy not worse by {margin:g} or more?", p, n, "score test (Tango), one-sided")


def false_discovery(p_values: Values) -> np.ndarray:
    """Benjamini and Hochberg's adjusted p-values; undefined ones stay NaN and are not counted."""
    p = np.asarray(p_values, dtype=float)
    q = np.full(p.shape, np.nan)
    known = ~np.isnan(p)
    if known.any():
        q[known] = stats.false_discovery_control(np.clip(p[known], 0, 1), method="bh")
    return q


def more_flips_than_chance(inside: int, rows_inside: int, total: int, rows: int) -> float:
    """P-value (one-sided, Fisher's exact) that a slice holds no more flips than chance would put there."""
    if rows_inside in (0, rows) or total == 0:
        return math.nan
    return float(stats.hypergeom.sf(inside - 1, rows, total, rows_inside))


def difference(first: Estimate, second: Estimate) -> Estimate:
    """The difference of two estimates from different rows, with the interval that theirs imply (MOVER, Zou 2008)."""
    n = first.n + second.n
    if not (first.defined and second.defined):
        return undefined(n)
    value = first.value - second.value
    low = value - math.hypot(first.value - first.low, second.high - second.value)
    high = value + math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value, low, high, n, "MOVER", math.nan)


def effective_pairs(
    fixed: float, broken: float, variance: float, kish: float, units: float = math.inf, confidence: float = 0.95
) -> float:
    """The size of a plain random sample in which the difference of two accuracies has the given variance."""
    plain = fixed + broken - (fixed - broken) ** 2
    size = plain / variance if variance > 0 and plain > 0 else kish
    return size * few_units(units, confidence)


def few_units(units: float, confidence: float) -> float:
    """What few units cost, since their variance is itself uncertain: the ratio of normal to t quantile, squared."""
    if math.isinf(units):
        return 1.0
    if units < 2:
        return math.nan
    return float((critical(confidence) / stats.t.isf((1 - confidence) / 2, units - 1)) ** 2)


def resample(sums: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Column sums of as many units as there are, drawn with replacement: from (units, k) to (draws, k)."""
    units = sums.shape[0]
    if units < 2:
        return np.empty((0, sums.shape[1]))
    rng = np.random.default_rng(seed)
    chunk = max(1, min(draws, 4_000_000 // units))
    parts = []
    for start in range(0, draws, chunk):
        times = rng.multinomial(units, np.full(units, 1 / units), size=min(chunk, draws - start))
        parts.append(times @ sums)
    return np.concatenate(parts)


def bootstrap(
    sums: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    n: int,
    *,
    confidence: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    centred: bool = False,
    resampled: np.ndarray | None = None,
) -> Estimate:
    """Paired bootstrap of a statistic of column sums, resampling whole units (rows, groups or bags of them).

    ``sums`` has shape (units, k); ``statistic`` maps totals of shape (draws, k) to values of shape (draws,). With
    ``centred`` the interval is the value plus and minus a t quantile of standard errors instead of percentiles: right
    for statistics that resampling biases, such as a calibration error. ``resampled`` is what :func:`resample` made of
    the sums, where several statistics share it.
    """
    units = sums.shape[0]
    with np.errstate(all="ignore"):
        value = float(statistic(sums.sum(axis=0)[None, :])[0]) if units else math.nan
    if math.isnan(value):
        return undefined(n)
    if units < 2:
        return Estimate(value, -math.inf, math.inf, n, "one unit: no interval", 0.0)
    with np.errstate(all="ignore"):
        drawn = statistic(resample(sums, draws, seed) if resampled is None else resampled)
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


def rows_needed(estimate: Estimate, limit: float, interval: Callable[[float], Estimate]) -> float:
    """Rows at which the interval, at the same rate, would no longer straddle the limit; infinite where none would.

    ``interval`` maps an (effective) number of rows to the estimate that it would give.
    """
    # Rows of a single group show no variance, so they are worth nothing.
    if not estimate.defined or estimate.value == limit or estimate.effective <= 0:
        return math.inf

    def overlap(size: float) -> float:
        there = interval(size)
        return there.high - limit if estimate.value < limit else limit - there.low

    size = max(estimate.effective, 1.0)
    while overlap(size) > 0:
        size *= 2
        if size > 1e15:
            return math.inf
    if overlap(size / 2) > 0:
        size = optimize.brentq(overlap, size / 2, size)
    # Rows are needed of the kind at hand: with weights or groups each is worth effective / n of a plain one.
    return float(math.ceil(size * estimate.n / estimate.effective))
