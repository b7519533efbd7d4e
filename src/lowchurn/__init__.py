"""lowchurn: retrain a classifier so that few of its decisions change, and prove it."""

from typing import Any

from lowchurn import metrics, scoring, selection, strategies, theory

__version__ = "0.1.0"

__all__ = ["__version__", "metrics", "scoring", "selection", "strategies", "theory"]


def __getattr__(name: str) -> Any:
    # These need the audit extra, so they are imported when first asked for; `audit` is a module that can be called.
    if name in {"audit", "report"}:
        import importlib

        return importlib.import_module(f"lowchurn.{name}")
    raise AttributeError(f"module 'lowchurn' has no attribute {name!r}")
