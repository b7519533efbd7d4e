"""lowchurn: retrain a classifier so that few of its decisions change, and prove it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowchurn import metrics, scoring, selection, strategies, theory

if TYPE_CHECKING:
    from lowchurn.estimator import LowChurnClassifier, load

__version__ = "0.1.0"

__all__ = [
    "LowChurnClassifier",
    "__version__",
    "load",
    "metrics",
    "scoring",
    "selection",
    "strategies",
    "theory",
]

_FROM_ESTIMATOR = ("LowChurnClassifier", "load")  # imported on first use: metrics alone need no scikit-learn


def __getattr__(name: str) -> Any:
    if name in _FROM_ESTIMATOR:
        from lowchurn import estimator

        return getattr(estimator, name)
    raise AttributeError(f"module 'lowchurn' has no attribute {name!r}")
