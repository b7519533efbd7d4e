"""Keep the rows behind the pages of docs/results in this repository: python benchmarks/keep_rows.py STORE_OR_TAR...

They are added to the store in benchmarks/rows. `python benchmarks/result_pages.py benchmarks/rows DIR` makes the tables
and figures of all of them, without a GPU. Numbers that no table reads are left out, and rows of one setting lie side
by side: less than 4 bytes per row remain.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from lowchurn.bench._segments import ROWS_AT_ONCE, Row, setting_of
from lowchurn.bench._store import Store, opened_store
from lowchurn.bench._tables import place_of

ROWS = Path(__file__).parent / "rows"
UNREAD = ("broken", "fixed", "validation_loss", "seconds", "block_seconds")


def packed(rows: list[Row]) -> list[Row]:
    """Rows in an order that packs well, without the numbers that no table reads."""
    ordered = sorted(rows, key=lambda row: (place_of(row), row["loss"], row["scale"], setting_of(row), row["trial"]))
    return [row | dict.fromkeys(UNREAD) for row in ordered]


def keep(source: Path, target: Store) -> int:
    """Add the rows of a store that another does not contain yet, and return how many."""
    with opened_store(source) as store, target.writing():
        rows = packed(store.rows())
        return sum(target.append(rows[i : i + ROWS_AT_ONCE]) for i in range(0, len(rows), ROWS_AT_ONCE))


def main() -> None:
    for source in map(Path, sys.argv[1:]):
        print(f"{source}: {keep(source, Store(ROWS)):,} rows are new")


if __name__ == "__main__":
    main()
