"""Numbers and settings in words: shares in percent, differences of shares in percentage points."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lowchurn._estimates import Estimate


def setting_words(parameters: Mapping[str, object]) -> str:
    """The parameters of a strategy, such as ``lam=0.5, start=cold``."""
    return ", ".join(f"{name}={value}" for name, value in parameters.items())


def share_text(value: float, signed: bool = False, digits: int | None = None) -> str:
    """A share in percent, with as many digits as it deserves.

    With ``signed`` it is a difference of two shares, in percentage points: a fall from 90 % to 89 % is not one of 1 %.
    """
    if math.isnan(value):
        return "undefined"
    return f"{_hundredfold(value, digits, '+')} points" if signed else f"{_hundredfold(value, digits)} %"


def brief_share(value: float) -> str:
    """A share in percent with three digits that count, and without zeros at its end: 2 %, 1.62 %, 0.0556 %."""
    return "undefined" if math.isnan(value) else f"{float(f'{100 * value:.3g}'):g} %"


def churn_text(value: float, hard: bool = True) -> str:
    """A share of changed decisions in percent; soft churn is a mean divergence and no share."""
    return brief_share(value) if hard else f"{value:.3g}"


def _hundredfold(value: float, digits: int | None = None, sign: str = "") -> str:
    percent = 100 * value
    if digits is None:
        digits = 2 if abs(percent) >= 0.1 or percent == 0 else min(6, 1 - math.floor(math.log10(abs(percent))))
    return f"{percent:{sign}.{digits}f}"


def interval_text(estimate: Estimate, signed: bool = False) -> str:
    """A share (or with ``signed`` a difference) and its interval, with enough digits for its ends to differ."""
    if not estimate.defined:
        return "undefined"
    width = 100 * (estimate.high - estimate.low)
    digits = min(6, max(2, 1 - math.floor(math.log10(width)))) if width > 0 else 2
    low, high = (_hundredfold(end, digits, "+" if signed else "") for end in (estimate.low, estimate.high))
    return f"{share_text(estimate.value, signed, digits)} ({low} to {high})"


def number_text(value: float, signed: bool = False, digits: int | None = None) -> str:
    """A number that is no share: with four significant digits, or as many after the point as are asked for."""
    if math.isinf(value):
        return "no bound"
    sign = "+" if signed else ""
    if digits is None or not (value == 0 or 1e-9 < abs(value) < 1e9):
        return "undefined" if math.isnan(value) else f"{value:{sign if value else ''}.4g}"
    return f"{round(value, digits) + 0.0:{sign},.{digits}f}"  # no negative zero


def number_interval_text(estimate: Estimate, signed: bool = False) -> str:
    """A number that is no share and its interval, with enough digits for its ends to differ."""
    if not estimate.defined:
        return "undefined"
    if math.isinf(estimate.low) and math.isinf(estimate.high):
        return f"{number_text(estimate.value, signed)} (no interval)"
    width = estimate.high - estimate.low
    digits = 1 - math.floor(math.log10(width)) if 0 < width < math.inf else None
    digits = digits if digits is not None and digits <= 9 else None
    value, low, high = (
        number_text(v, signed, None if digits is None else max(digits, 0))
        for v in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low} to {high})"
