"""The paper's experiments: data sets, protocol, runs, a store of results, and the tables and figures made of it."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "Protocol": "_protocol",
    "Store": "_store",
    "run": "_run",
    "settings_of": "_protocol",
    "write_tables": "_report",
}
__all__ = ["Protocol", "Store", "run", "settings_of", "write_tables"]


def __getattr__(name: str) -> Any:
    """Import a module when a name of it is first asked for: ``lowchurn data`` needs no torch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'lowchurn.bench' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lowchurn.bench.{_MODULES[name]}"), name)
