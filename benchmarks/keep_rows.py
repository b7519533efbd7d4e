"""Keep the rows behind the pages of docs/results in this repository: python benchmarks/keep_rows.py STORE_OR_TAR...

They are added to the store in benchmarks/rows, or in another one with ``--to``. `python benchmarks/result_pages.py
benchmarks/rows DIR` makes the tables and figures of all of them, without a GPU. Numbers that no table reads are left
out, and rows of one setting lie side by side: about 4 bytes per row remain.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from lowchurn.bench._segments import Row, setting_of
from lowchurn.bench._store import Store, copy_rows, opened_store
from lowchurn.bench._tables import place_of

ROWS = Path(__file__).parent / "rows"
UNREAD = ("broken", "fixed", "validation_loss", "seconds", "block_seconds")


def packed(rows: list[Row]) -> list[Row]:
    """Rows in an order that packs well, without the numbers that no table reads."""
    ordered = sorted(rows, key=lambda row: (place_of(row), row["loss"], row["scale"], setting_of(row), row["trial"]))
    return [row | dict.fromkeys(UNREAD) for row in ordered]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", type=Path, metavar="STORE_OR_TAR")
    parser.add_argument("--to", type=Path, default=ROWS, metavar="STORE")
    chosen = parser.parse_args()
    for source in chosen.sources:
        with opened_store(source) as store:
            print(f"{source}: {copy_rows(store, Store(chosen.to), packed):,} rows are new")


if __name__ == "__main__":
    main()
