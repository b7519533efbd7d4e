"""Rows from a CSV or Parquet file, each column read for the use that is made of it.

A CSV file has no types: its columns are text until all of their values are known, and nothing is guessed from the
first rows. Parquet has types, and the values are taken as they are: decimals as numbers, classes exactly.
Rows are read all at once, or in batches that are read for the same use.
"""

from __future__ import annotations

import contextlib
import csv
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowchurn._checks import unknown_name
from lowchurn._extras import importing
from lowchurn._files import PathLike
from lowchurn._types import ArrayLike
from lowchurn.retrain._columns import RETRAIN, Words, listed
from lowchurn.retrain._kinds import OF_THE_FILE, TEXT, Kind, Seen
from lowchurn.retrain._labels import MISSING, classes_from_text, classes_from_values, is_text

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

WHO = "retrain"
# A row of a CSV file must fit into a block; blocks are smaller where memory must not grow with the file.
BLOCK_BYTES = 1 << 26
BATCH_BYTES = 1 << 22  # pyarrow reads about 32 of them ahead
# What pandas calls the index of a table that it has written to CSV and read again.
INDEX = "Unnamed: 0"
# That other programs write in place of commas.
SEPARATORS = (";", "\t", "|")
# Weights beyond these make sums overflow, or training stop at its first step.
SMALLEST_WEIGHT, LARGEST_WEIGHT = 1e-9, 1e9
PAIRS = (("true", "false"), ("yes", "no"), ("1", "0"), ("1.0", "0.0"))


@dataclass(frozen=True)
class Table:
    """The columns of a file; those of a CSV file are all text, and ``typed`` is False.

    ``index`` are the columns that pandas wrote as the index of its table: no features unless asked for by name.
    """

    path: Path
    table: pa.Table
    typed: bool
    index: tuple[str, ...] = ()
    words: Words = RETRAIN

    @property
    def names(self) -> list[str]:
        """Names of the columns, in the order of the file."""
        return list(self.table.column_names)

    def check_known(self, names: Sequence[str], what: str = "column") -> None:
        """Raise an error for a name that is no column."""
        for name in names:
            if name not in self.names:
                raise unknown_name(self.words.who, f"{what} of {str(self.path)!r}", name, self.names)

    def features(
        self, names: Sequence[str], text: Collection[str] = (), kinds: Mapping[str, Kind] | None = None
    ) -> pd.DataFrame:
        """The columns as a data frame; those in ``text`` contain text, whatever it looks like: '007' stays '007'.

        ``kinds`` are those of the whole file, where this is a batch of it.
        """
        import pandas as pd

        if kinds is None:
            seen = self.unseen(names, text)
            for name in names:
                seen[name].see(self.table[name])
                seen[name].warn_of_typos(self.words.who, name)
            kinds = {name: seen[name].kind for name in names}
        return pd.DataFrame({name: kinds[name].values(self.table[name]) for name in names}, copy=False)

    def unseen(self, names: Sequence[str], text: Collection[str] = ()) -> dict[str, Seen]:
        """What will be known of the columns when all of their values have been seen; refuses those of wrong types."""
        who, schema = self.words.who, self.table.schema
        refused = [name for name in names if _is_nested(schema.field(name).type)]
        if refused:
            raise ValueError(
                f"{who}: lists, structures and bytes cannot be features, got {listed(refused)}. Leave them out "
                f"{self.words.leave_out}, or write them as columns of numbers or text."
            )
        numbers = [n for n in names if self.typed and n in text and not is_text(schema.field(n).type)]
        if numbers:
            raise ValueError(
                f"{who}: {self.words.model} was fitted with text in {listed(numbers)}, and {str(self.path)!r} contains "
                f"{schema.field(numbers[0]).type} there. Write them as text."
            )
        return {name: Seen(OF_THE_FILE if self.typed else TEXT if name in text else None) for name in names}

    def classes(self, name: str, known: ArrayLike | None = None, what: str = "the target") -> np.ndarray:
        """The labels, of the type of the classes of the base where these are known."""
        where = f"{self.words.who}: {what} {name!r}"
        if self.typed:
            return classes_from_values(where, self.table[name], known, self.words.model)
        return classes_from_text(where, self.table[name].to_pylist(), known, self.words.model)

    def flags(self, name: str) -> np.ndarray:
        """A column of true/false, yes/no or 1/0 as booleans."""
        values = self._present(name)
        words = [str(value).lower() for value in values]
        for yes, no in PAIRS:
            if set(words) <= {yes, no}:
                return np.array(words) == yes
        shown = ", ".join(repr(value) for value in sorted(set(map(str, values)))[:5])
        raise ValueError(
            f"{WHO}: the column {name!r} must contain true and false, yes and no, or 1 and 0, got {shown}."
        )

    def weights(self, name: str) -> np.ndarray:
        """A column of weights as numbers."""
        values = self._present(name)
        where = f"{WHO}: the weights {name!r}"
        try:
            weights = np.array([float(value) for value in values])
        except (TypeError, ValueError):
            wrong = next(value for value in values if not _is_number(value))
            raise ValueError(f"{where} must be numbers, got {wrong!r}.") from None
        wrong = weights[~(np.isfinite(weights) & (weights >= 0))]
        if len(wrong):
            raise ValueError(f"{where} must be finite and not negative, got {wrong[0]:g} in {len(wrong)} row(s).")
        used = weights[weights > 0]
        if not len(used):
            raise ValueError(f"{where} are 0 in every row. There is nothing to train on.")
        wrong = used[(used < SMALLEST_WEIGHT) | (used > LARGEST_WEIGHT)]
        if len(wrong):
            raise ValueError(
                f"{where} must be 0 or from {SMALLEST_WEIGHT:g} to {LARGEST_WEIGHT:g}, got {wrong[0]:g}. Divide them "
                "by their mean."
            )
        return weights

    def _present(self, name: str) -> list[Any]:
        values = self.table[name].to_pylist()
        missing = sum(v is None or v != v or (not self.typed and v in MISSING) for v in values)
        if missing:
            raise ValueError(f"{WHO}: the column {name!r} must have a value in every row, {missing} row(s) have none.")
        return values


def read_rows(path: PathLike, words: Words = RETRAIN) -> Table:
    """Read a CSV or Parquet file."""
    head = open_rows(path, words)
    with _reading(head.path, words):
        table = _whole_csv(head) if head.path.suffix.lower() == ".csv" else _whole_parquet(head.path)
    if table.num_rows == 0:
        raise ValueError(f"{words.who}: {str(head.path)!r} has no rows.")
    return replace(head, table=table)


def open_rows(path: PathLike, words: Words = RETRAIN) -> Table:
    """A CSV or Parquet file as a table without its rows: columns, types and index."""
    with importing(words.who, "retrain"):
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise ValueError(f"{words.who}: {words.source} must be a .csv or .parquet file, got {str(path)!r}.")
    if not path.is_file():
        raise ValueError(f"{words.who}: {words.source} must be a file that is there, got {str(path)!r}.")
    with _reading(path, words):
        head = _open_csv(path, words) if suffix == ".csv" else _open_parquet(path, words)
    double = sorted(name for name, times in Counter(head.names).items() if times > 1)
    if double:
        raise ValueError(f"{words.who}: {str(path)!r} has more than one column called {listed(double)}. Rename them.")
    return head


def batches(head: Table, columns: Sequence[str], most: int) -> Iterator[Table]:
    """Some columns of a file that :func:`open_rows` opened, at most so many rows at a time, in their order."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    with _reading(head.path, head.words), contextlib.ExitStack() as opened:
        if head.path.suffix.lower() == ".csv":
            blocks: Any = opened.enter_context(pa.csv.open_csv(head.path, **_csv_options(head.path, BATCH_BYTES)))
        else:
            file = opened.enter_context(pyarrow.parquet.ParquetFile(head.path))
            blocks = file.iter_batches(batch_size=most, columns=list(columns))
        for block in blocks:
            table = pa.Table.from_batches([block])
            table = _plain(table) if head.typed else _checked_csv(head, table)
            for start in range(0, table.num_rows, most):
                yield replace(head, table=table.select(columns).slice(start, most))


@contextlib.contextmanager
def _reading(path: Path, words: Words) -> Iterator[None]:
    """Errors of reading a file, in one form."""
    import pyarrow

    try:
        yield
    except (OSError, UnicodeError, csv.Error, pyarrow.ArrowException) as error:
        text = path.suffix.lower() == ".csv"
        rule = " It must be text in UTF-8, with a value for each column in every row." if text else ""
        raise ValueError(
            f"{words.who}: {str(path)!r} cannot be read as {path.suffix.lower()[1:]} ({error}).{rule}"
        ) from error


def _open_csv(path: Path, words: Words) -> Table:
    import pyarrow as pa

    header = _header(path)
    if not header:
        raise ValueError(f"{words.who}: {str(path)!r} is empty.")
    other = next((sign for sign in SEPARATORS if len(header) == 1 and sign in header[0]), None)
    if other is not None:
        raise ValueError(
            f"{words.who}: the values in {str(path)!r} must be separated by commas, got {other!r}. Save it so."
        )
    # as pandas calls them, which writes its index as a column without a name
    names = [name or f"Unnamed: {place}" for place, name in enumerate(header)]
    empty = pa.Table.from_arrays([pa.array([], pa.string())] * len(names), names=names)
    return Table(path, empty, typed=False, index=tuple({INDEX} & set(names)), words=words)


def _header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return next(csv.reader(file), [])


def _csv_options(path: Path, block: int = BLOCK_BYTES) -> dict[str, Any]:
    """One type for all columns, so that nothing is guessed; rows with more or fewer values than names are refused."""
    import pyarrow as pa
    import pyarrow.csv

    types = dict.fromkeys(_header(path), pa.string())
    return {
        "read_options": pa.csv.ReadOptions(block_size=block),
        "parse_options": pa.csv.ParseOptions(newlines_in_values=True),
        "convert_options": pa.csv.ConvertOptions(column_types=types, strings_can_be_null=False),
    }


def _whole_csv(head: Table) -> pa.Table:
    import pyarrow.csv

    return _checked_csv(head, pyarrow.csv.read_csv(head.path, **_csv_options(head.path)))


def _checked_csv(head: Table, table: pa.Table) -> pa.Table:
    names = [name or f"Unnamed: {place}" for place, name in enumerate(table.column_names)]
    if names != head.names or not all(is_text(field.type) for field in table.schema):
        raise ValueError(f"{head.words.who}: the first line of {str(head.path)!r} cannot be read as names of columns.")
    return table.rename_columns(names)


def _open_parquet(path: Path, words: Words) -> Table:
    import pyarrow.parquet

    # Not as a data set: a folder called y=1 would become a column y.
    with pyarrow.parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
    try:
        described = (schema.pandas_metadata or {}).get("index_columns", [])
        named = {name for name in described if isinstance(name, str)}
    except (AttributeError, TypeError, ValueError):  # not written by pandas
        named = set()
    index = tuple(name for name in schema.names if name in {*named, INDEX})
    return Table(path, _plain(schema.empty_table()), typed=True, index=index, words=words)


def _whole_parquet(path: Path) -> pa.Table:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        return _plain(file.read())


def _plain(table: pa.Table) -> pa.Table:
    """A table in which only text is written as categories."""
    import pyarrow

    plain = [
        pyarrow.compute.cast(column, column.type.value_type)
        if pyarrow.types.is_dictionary(column.type) and not is_text(column.type.value_type)
        else column
        for column in table.columns
    ]
    return pyarrow.Table.from_arrays(plain, names=table.column_names)


def _is_nested(kind: pa.DataType) -> bool:
    import pyarrow as pa

    simple = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_temporal,
        pa.types.is_null, is_text,
    )  # fmt: skip
    return not any(check(kind) for check in simple)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
