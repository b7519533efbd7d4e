"""lowchurn: retrain a classifier so that few of its decisions change, and prove it."""

import importlib
from typing import Any

__version__ = "0.1.0"

_MODULES = ("metrics", "scoring", "selection", "strategies", "theory")

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    """Import a room when it is first asked for, so that each costs only what it needs."""
    if name in _MODULES:
        return importlib.import_module(f"lowchurn.{name}")
    raise AttributeError(f"module 'lowchurn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
