"""A number with its interval: of a share of rows, of a mean, of the difference of two accuracies on the same rows.

``retrain`` and ``audit`` both use these, so the same churn on the same rows has the same interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from lowchurn._checks import check_share


@dataclass(frozen=True)
class Estimate:
    """A number with its interval and the rows that it rests on. Undefined is NaN, never 0.

    Examples
    --------
    >>> from lowchurn._estimates import Estimate
    >>> print(Estimate(0.031, 0.025, 0.038, 4000, "exact (Clopper-Pearson)"))
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
    """Rows of a plain random sample with the same variance; equal to ``n`` without weights and groups."""

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


def exact_bounds(events: float, n: float, tail: float) -> tuple[float, float]:
    """Clopper and Pearson's lower and upper bound of a share, each wrong with probability ``tail`` at most."""
    low = float(special.betaincinv(events, n - events + 1, tail)) if events > 0 else 0.0
    high = float(special.betainccinv(events + 1, n - events, tail)) if events < n else 1.0
    return low, high


def proportion(share: float, n: int, confidence: float = 0.95, effective: float | None = None) -> Estimate:
    """A share of ``n`` rows with Clopper and Pearson's interval; ``effective``: the effective number of rows.

    It is the one interval whose coverage is never below its level, whatever the share and the number of rows, it is the
    same bound that a certificate gives, and with weights or groups it is the interval of Korn and Graubard (1998).
    Wilson's is narrower by about half a row at each end and covers less than its level for some shares.
    """
    check_share("proportion", "confidence", confidence)
    size = float(n) if effective is None else effective
    if n == 0 or not size > 0 or math.isnan(share):
        return undefined(n)
    share = min(max(share, 0.0), 1.0)
    low, high = exact_bounds(share * size, size, (1 - confidence) / 2)
    return Estimate(share, low, high, n, _named("exact (Clopper-Pearson)", effective), size)


def weighted_proportion(
    hits: float, total: float, hits2: float, total2: float, n: int, confidence: float = 0.95
) -> Estimate:
    """A share of weighted rows, from sums of the weights and of their squares over the hits and over all rows.

    The effective number of rows is Kish's, or the smaller one at which a plain sample has the variance of the weighted
    share (Korn and Graubard): Kish's alone covers too little where heavy rows are hit more often than others, and the
    variance alone where few heavy rows decide, since it is then itself uncertain.
    """
    share = hits / total
    variance = ((1 - share) ** 2 * hits2 + share**2 * (total2 - hits2)) / total**2
    kish = total**2 / total2
    return proportion(share, n, confidence, min(kish, effective_rows(share, variance, kish)))


def share_of_rows(hits: np.ndarray, weights: np.ndarray, copies: bool = False, confidence: float = 0.95) -> Estimate:
    """The share of rows that are hits; with ``copies``, weights are whole numbers that count equal rows."""
    total = float(weights.sum())
    if copies:
        return proportion(float(weights[hits].sum()) / total, round(total), confidence)
    squares = weights**2
    sums = float(weights[hits].sum()), total, float(squares[hits].sum()), float(squares.sum())
    return weighted_proportion(*sums, int(np.count_nonzero(weights)), confidence)


def weighted_mean(values: np.ndarray, weights: np.ndarray, confidence: float = 0.95) -> Estimate:
    """The mean of values that are not negative, with the normal interval, cut off at 0."""
    mean = float(np.average(values, weights=weights))
    half = critical(confidence) * math.sqrt(float((weights**2 * (values - mean) ** 2).sum())) / float(weights.sum())
    n = int(np.count_nonzero(weights))
    return Estimate(mean, max(mean - half, 0.0), mean + half, n, "normal", kish_rows(weights))


def kish_rows(weights: np.ndarray) -> float:
    """Kish's effective number of rows."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def effective_rows(share: float, variance: float, kish: float) -> float:
    """The size of a plain random sample in which a share has the given variance; Kish's where there is none."""
    return share * (1 - share) / variance if variance > 0 and 0 < share < 1 else kish


def tango_score(delta: float, fixed: float, broken: float, n: float) -> float:
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

    It inverts the score test of McNemar's setting, so it allows for the agreement of the models, stays inside
    [-1, 1] and is sensible where nothing changed at all; Wald's interval has no width there.
    """
    check_share("paired_difference", "confidence", confidence)
    size = float(n) if effective is None else effective
    if n == 0 or not size > 0 or math.isnan(fixed_rate):
        return undefined(n)
    fixed, broken = fixed_rate * size, broken_rate * size
    value = fixed_rate - broken_rate
    z = critical(confidence)
    edge = 1 - 1e-12

    def crossing(level: float, start: float, end: float) -> float:
        def gap(delta: float) -> float:
            return tango_score(delta, fixed, broken, size) - level

        if gap(start) * gap(end) > 0:  # the statistic never reaches the level before the end of the scale
            return round(end)
        return float(optimize.brentq(gap, start, end, xtol=1e-13))

    centre = min(max(value, -edge), edge)
    low = -1.0 if value <= -edge else crossing(z, centre, -edge)
    high = 1.0 if value >= edge else crossing(-z, centre, edge)
    return Estimate(value, low, high, n, _named("Tango score", effective), size)


def _named(method: str, effective: float | None) -> str:
    return method if effective is None else f"{method} at effective n = {effective:,.1f}"
