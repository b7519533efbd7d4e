"""lowchurn: retrain a classifier so that few of its decisions change, and prove it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowchurn.estimator import LowChurnClassifier, SoftTargetClassifier, load

__version__ = "0.2.0.dev0"

_MODULES = ("audit", "metrics", "report", "scoring", "selection", "strategies", "theory")
_FROM_ESTIMATOR = ("LowChurnClassifier", "SoftTargetClassifier", "load")

# Without audit and report, which need an extra that `from lowchurn import *` should not ask for.
__all__ = [
    "LowChurnClassifier",
    "SoftTargetClassifier",
    "__version__",
    "load",
    "metrics",
    "scoring",
    "selection",
    "strategies",
    "theory",
]


def __getattr__(name: str) -> Any:
    """Import a room when it is first asked for, so that each costs only what it needs."""
    if name in _MODULES:
        return importlib.import_module(f"lowchurn.{name}")
    if name in _FROM_ESTIMATOR:
        return getattr(importlib.import_module("lowchurn.estimator"), name)
    raise AttributeError(f"module 'lowchurn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
