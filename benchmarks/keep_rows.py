"""Keep the rows behind the pages of docs/results in this repository: python benchmarks/keep_rows.py STORE_OR_TAR...

They are added to the store in benchmarks/rows, or in another one with ``--to``. `python benchmarks/result_pages.py
benchmarks/rows DIR` makes the tables and figures of all of them, without a GPU. Numbers that no table reads are left
out, and rows of one setting lie side by side: about 4 bytes per row remain. ``--pack PLAN.tar`` writes those of some
data sets and networks for `gpu_tables.py`, which goes on from them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from lowchurn.bench._segments import Row, setting_of
from lowchurn.bench._store import Store, copy_rows, opened_store, pack_store
from lowchurn.bench._tables import place_of

ROWS = Path(__file__).parent / "rows"
UNREAD = ("broken", "fixed", "validation_loss", "seconds", "block_seconds")


def packed(rows: list[Row]) -> list[Row]:
    """Rows in an order that packs well, without the numbers that no table reads."""
    ordered = sorted(rows, key=lambda row: (place_of(row), row["loss"], row["scale"], setting_of(row), row["trial"]))
    return [row | dict.fromkeys(UNREAD) for row in ordered]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path, metavar="STORE_OR_TAR")
    parser.add_argument("--to", type=Path, default=ROWS, metavar="STORE")
    parser.add_argument("--pack", type=Path, metavar="PLAN.tar", help="write rows that are kept")
    parser.add_argument("--datasets", nargs="*", default=[], help="of --pack; all where none is named")
    parser.add_argument("--networks", nargs="*", default=[], help="of --pack; all where none is named")
    chosen = parser.parse_args()
    for source in chosen.sources:
        with opened_store(source) as store:
            print(f"{source}: {copy_rows(store, Store(chosen.to), packed):,} rows are new")
    if chosen.pack:
        count = pack(Store(chosen.to), chosen.pack, chosen.datasets, chosen.networks)
        print(f"{chosen.pack}: {count:,} rows")


def pack(store: Store, path: Path, datasets: list[str], networks: list[str]) -> int:
    """Write some rows of a store to a tar file that needs no pyarrow to be read, and return how many."""

    def chosen(rows: list[Row]) -> list[Row]:
        wanted = (("dataset", datasets), ("network", networks))
        return [row for row in rows if all(not names or row[what] in names for what, names in wanted)]

    with tempfile.TemporaryDirectory() as folder:
        some = Store(folder, plain=True)
        count = copy_rows(store, some, chosen)
        if not count:
            raise SystemExit(f"keep_rows: {store.folder} contains no rows of {' '.join([*datasets, *networks])}")
        pack_store(some, path)
    return count


if __name__ == "__main__":
    main()
