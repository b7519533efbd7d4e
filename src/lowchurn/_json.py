"""JSON as it is written: numbers and dates of numpy as plain values, NaN and infinities as null."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np


def plain(value: object, exact: bool = False) -> Any:
    """A copy of nested data that JSON can hold: numpy's values as Python's, NaN and infinities as None, others as text.

    With ``exact``, what JSON has no form for (NaN, dates, other objects) is kept as it is.
    """
    if isinstance(value, np.floating):
        value = float(value)
    elif isinstance(value, np.ndarray | np.generic):  # nanoseconds would become whole numbers
        value = (value.astype(str) if value.dtype.kind in "mM" and not exact else value).tolist()
    if isinstance(value, dict):
        return {str(k): plain(v, exact) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, exact) for v in value]
    if exact or isinstance(value, str | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


def dumps(value: object, indent: int | None = None) -> str:
    """Nested data as JSON text, cleaned by :func:`plain`."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False)
