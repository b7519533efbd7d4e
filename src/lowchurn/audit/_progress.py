"""How many rows of its tables a running query of DuckDB has read."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

Show = Callable[[int, int], None]  # takes the rows that were read and all rows
POLL = 0.2  # seconds
# Operators that hand out rows; DuckDB's progress is the share of what all of them are expected to hand out.
SOURCES = ("SCAN", "READ", "GROUP_BY", "HASH_JOIN")


@contextmanager
def shown_progress(con: Any, query: str, rows: int, show: Show) -> Iterator[None]:
    """While ``query`` runs on a connection in this thread, call ``show`` in another one.

    The tables are read before anything else, and they are a part of the work that DuckDB expects; the rest is what it
    hands out after that. So the rows are an estimate: they never shrink, and all of them are read at the end.
    """
    expected = max(_expected(con, query), rows)
    con.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
    ended = threading.Event()

    def watch() -> None:
        done = 0
        while not ended.wait(POLL):
            done = max(done, min(rows, int(con.query_progress() / 100 * expected)))
            show(done, rows)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        con.execute("SET enable_progress_bar = false")
    show(rows, rows)


def _expected(con: Any, query: str) -> int:
    """All rows that the sources of a query are expected to hand out; 0 where the plan does not say."""
    with suppress(Exception):  # a plan is for people: another version may write it in another way
        plan = json.loads(con.execute(f"EXPLAIN (FORMAT json) {query}").fetchall()[0][1])
        return sum(map(_of_sources, plan))
    return 0


def _of_sources(operator: Mapping[str, Any]) -> int:
    name, own = operator["name"], operator.get("extra_info", {}).get("Estimated Cardinality", 0)
    here = int(own) if any(word in name for word in SOURCES) else 0
    return here + sum(map(_of_sources, operator.get("children", ())))
