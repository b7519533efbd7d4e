"""Ids of rows and what was decided for them, in a database on disk: memory does not grow with their number."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from lowchurn.retrain._labels import is_text
from lowchurn.retrain._tables import Table

CACHE_KIB = 1 << 16
EXAMPLES = 5


class Ids:
    """The ids of the rows, in their order, and those of previous decisions with a number for each decision."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{CACHE_KIB}"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute("CREATE TABLE rows (id TEXT NOT NULL)")
        self._database.execute("CREATE TABLE previous (id TEXT NOT NULL, number INTEGER NOT NULL)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._database.close()

    def add_rows(self, ids: Iterable[str]) -> None:
        """Add ids of rows."""
        self._add("INSERT INTO rows VALUES (?)", zip(ids))

    def add_previous(self, ids: Iterable[str], numbers: Iterable[int]) -> None:
        """Add ids of previous decisions."""
        self._add("INSERT INTO previous VALUES (?, ?)", zip(ids, numbers, strict=True))

    def _add(self, insert: str, values: Iterable[tuple[object, ...]]) -> None:
        self._database.execute("BEGIN")
        self._database.executemany(insert, values)
        self._database.execute("COMMIT")

    def check_rows(self, where: str) -> None:
        """Raise an error for ids of rows that repeat; ``where`` starts its message."""
        self._check("rows", where)

    def check_previous(self, where: str) -> None:
        """The same for ids of previous decisions, when all of them have been added."""
        self._database.execute("CREATE INDEX by_id ON previous (id, number)")
        self._check("previous", where)

    def _check(self, table: str, where: str) -> None:
        repeated = f"SELECT id, COUNT(*) AS times FROM {table} GROUP BY id HAVING times > 1"
        found = self._database.execute(f"{repeated} LIMIT {EXAMPLES}").fetchall()
        if found:
            (number,) = self._database.execute(f"SELECT COUNT(*) FROM ({repeated})").fetchone()
            shown = ", ".join(f"{name!r} ({times} times)" for name, times in found)
            raise ValueError(f"{where} must be different in every row, got {number} that repeat: {shown}.")

    def joined(self) -> Joined:
        """The rows in their order, each with the number of its previous decision."""
        previous = "LEFT JOIN previous ON previous.id = rows.id"
        return Joined(self._database.execute(f"SELECT rows.id, number FROM rows {previous} ORDER BY rows.rowid"))


class Joined:
    """Ids of rows with the numbers of their previous decisions, read as far as they are asked for."""

    def __init__(self, found: sqlite3.Cursor) -> None:
        self._found = found

    def numbers(self, ids: list[str], otherwise: int) -> list[int]:
        """The numbers of the next rows, which have these ids; ``otherwise`` where there is no previous decision."""
        rows = self._found.fetchmany(len(ids))
        if [name for name, _ in rows] != ids:
            raise ValueError("score: data must not change while it is read, and its ids did.")
        return [otherwise if number is None else number for _, number in rows]


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
