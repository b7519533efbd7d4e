"""Ids of rows and what was decided for them, in a database on disk: memory does not grow with their number."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from lowchurn.retrain._labels import is_text
from lowchurn.retrain._tables import Table

CACHE_KIB = 1 << 16
EXAMPLES = 5


class Ids:
    """Ids, each with a number; no id is there twice."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{CACHE_KIB}"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute("CREATE TABLE ids (id TEXT NOT NULL, number INTEGER NOT NULL)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._database.close()

    def add(self, ids: Sequence[str], numbers: Sequence[int]) -> None:
        """Add ids with their numbers."""
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO ids VALUES (?, ?)", zip(ids, numbers, strict=True))
        self._database.execute("COMMIT")

    def close_list(self, where: str) -> None:
        """Raise an error for ids that are there more than once; ``where`` starts its message."""
        self._database.execute("CREATE INDEX by_id ON ids (id, number)")
        repeated = "SELECT id, COUNT(*) AS times FROM ids GROUP BY id HAVING times > 1"
        found = self._database.execute(f"{repeated} LIMIT {EXAMPLES}").fetchall()
        if found:
            (number,) = self._database.execute(f"SELECT COUNT(*) FROM ({repeated})").fetchone()
            shown = ", ".join(f"{name!r} ({times} times)" for name, times in found)
            raise ValueError(f"{where} must be different in every row, got {number} that repeat: {shown}.")

    def numbers(self, ids: Sequence[str], otherwise: int) -> list[int]:
        """The number of each id; ``otherwise`` for those that are not there."""
        find = self._database.cursor()
        found = (find.execute("SELECT number FROM ids WHERE id = ?", (each,)).fetchone() for each in ids)
        return [otherwise if row is None else row[0] for row in found]


def id_texts(rows: Table, name: str) -> list[str]:
    """Ids as they are written: the number 7 and the text '7' are one id, '007' is another."""
    import pyarrow as pa

    column = rows.table[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    where = f"{rows.words.who}: the ids {name!r} of {str(rows.path)!r}"
    if not (is_text(column.type) or pa.types.is_integer(column.type)):
        raise ValueError(f"{where} must be text or whole numbers, got {column.type}. Write them as text.")
    texts: list[str] = column.cast(pa.string()).to_pylist()
    missing = sum(not text for text in texts)
    if missing:
        raise ValueError(f"{where} must be there in every row, {missing} row(s) have none. Leave these out.")
    return texts
