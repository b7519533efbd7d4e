"""Numbers and settings in words: shares in percent, differences of shares in percentage points."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lowchurn._estimates import Estimate


def setting_words(parameters: Mapping[str, object]) -> str:
    """The parameters of a strategy, such as ``lam=0.5, start=cold``."""
    return ", ".join(f"{name}={value}" for name, value in parameters.items())


def share_text(value: float, signed: bool = False, digits: int | None = None) -> str:
    """A share in percent, with as many digits as it deserves; ``signed``: a difference of shares, in points."""
    if signed:
        return points(value, digits)
    return "undefined" if math.isnan(value) else f"{_hundredfold(value, digits)}%"


def points(value: float, digits: int | None = None) -> str:
    """A difference of two shares, in percentage points: a fall from 90 % to 89 % is not one of 1 %."""
    return "undefined" if math.isnan(value) else f"{_hundredfold(value, digits, '+')} points"


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
    if signed:
        low, high = (_hundredfold(v, digits, "+") for v in (estimate.low, estimate.high))
        return f"{points(estimate.value, digits)} ({low} to {high})"
    value, low, high = (share_text(v, digits=digits) for v in (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low} to {high})"
