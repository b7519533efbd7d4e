"""The paper's experiments: data sets, protocol, store, tables and figures.

A run writes rows to a store; tables and figures are pure functions of the store. The run needs torch
(``pip install "lowchurn[bench]"``), reading and tabulating do not.
"""

from lowchurn.bench._loading import load
from lowchurn.bench._past_paper import dial_tables
from lowchurn.bench._protocol import Protocol, settings_of
from lowchurn.bench._run import run
from lowchurn.bench._store import Store
from lowchurn.bench._tables import cold_accuracy_table, variants

__all__ = ["Protocol", "Store", "cold_accuracy_table", "dial_tables", "run", "settings_of", "variants"]
