"""Rows from a CSV or Parquet file, each column read for the use that is made of it.

A CSV file has no types: its columns are text until all of their values are known, and nothing is guessed from the
first rows. Parquet has types, and the values are taken as they are: decimals as numbers, classes exactly.
"""

from __future__ import annotations

import csv
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowchurn._checks import unknown_name
from lowchurn._extras import importing
from lowchurn._files import PathLike
from lowchurn._types import ArrayLike
from lowchurn.retrain._columns import listed
from lowchurn.retrain._labels import MISSING, classes_from_text, classes_from_values, is_text

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

WHO = "retrain"
# A row of a CSV file must fit into a block.
BLOCK_BYTES = 1 << 26
# What pandas calls the index of a table that it has written to CSV and read again.
INDEX = "Unnamed: 0"
# That other programs write in place of commas.
SEPARATORS = (";", "\t", "|")
# Weights beyond these make sums overflow, or training stop at its first step.
SMALLEST_WEIGHT, LARGEST_WEIGHT = 1e-9, 1e9
PAIRS = (("true", "false"), ("yes", "no"), ("1", "0"), ("1.0", "0.0"))
# Of a column that is not all numbers, the share of numbers from which on the rest looks like a mistake.
MOSTLY_NUMBERS = 0.9


@dataclass(frozen=True)
class Table:
    """The columns of a file; those of a CSV file are all text, and ``typed`` is False.

    ``index`` are the columns that pandas wrote as the index of its table: no features unless asked for by name.
    """

    path: Path
    table: pa.Table
    typed: bool
    index: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the columns, in the order of the file."""
        return list(self.table.column_names)

    def check_known(self, names: Sequence[str]) -> None:
        """Raise an error for a name that is no column."""
        for name in names:
            if name not in self.names:
                raise unknown_name(WHO, f"column of {str(self.path)!r}", name, self.names)

    def features(self, names: Sequence[str], text: Collection[str] = ()) -> pd.DataFrame:
        """The columns as a data frame; those in ``text`` contain text, whatever it looks like: '007' stays '007'."""
        import pandas as pd

        refused = [name for name in names if _is_nested(self.table.schema.field(name).type)]
        if refused:
            raise ValueError(
                f"{WHO}: lists, structures and bytes cannot be features, got {listed(refused)}. Leave them out with "
                "drop=, or write them as columns of numbers or text."
            )
        numbers = [n for n in names if self.typed and n in text and not is_text(self.table.schema.field(n).type)]
        if numbers:
            raise ValueError(
                f"{WHO}: the base was fitted with text in {listed(numbers)}, and {str(self.path)!r} contains "
                f"{self.table.schema.field(numbers[0]).type} there. Write them as text."
            )
        return pd.DataFrame({name: self._feature(name, name in text) for name in names}, copy=False)

    def _feature(self, name: str, text: bool) -> pd.Series:
        import pyarrow as pa

        column = self.table[name]
        if not self.typed:
            return _with_nan(_text_or_null(column).to_pandas()) if text else _guessed(name, column)
        if pa.types.is_decimal(column.type) or pa.types.is_null(column.type):
            column = column.cast(pa.float64())
        return column.to_pandas()

    def classes(self, name: str, known: ArrayLike | None = None) -> np.ndarray:
        """The labels, of the type of the classes of the base where these are known."""
        where = f"{WHO}: the target {name!r}"
        if self.typed:
            return classes_from_values(where, self.table[name], known)
        return classes_from_text(where, self.table[name].to_pylist(), known)

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


def read_rows(path: PathLike) -> Table:
    """Read a CSV or Parquet file."""
    with importing(WHO, "retrain"):
        import pandas  # noqa: F401
        import pyarrow
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise ValueError(f"{WHO}: data must be a .csv or .parquet file, got {str(path)!r}.")
    if not path.is_file():
        raise ValueError(f"{WHO}: data must be a file that is there, got {str(path)!r}.")
    try:
        rows = _read_csv(path) if suffix == ".csv" else _read_parquet(path)
    except (OSError, UnicodeError, csv.Error, pyarrow.ArrowException) as error:
        rule = " It must be text in UTF-8, with a value for each column in every row." if suffix == ".csv" else ""
        raise ValueError(f"{WHO}: {str(path)!r} cannot be read as {suffix[1:]} ({error}).{rule}") from error
    names = rows.names
    double = sorted(name for name, times in Counter(names).items() if times > 1)
    if double:
        raise ValueError(f"{WHO}: {str(path)!r} has more than one column called {listed(double)}. Rename them.")
    if rows.table.num_rows == 0:
        raise ValueError(f"{WHO}: {str(path)!r} has no rows.")
    return rows


def _read_csv(path: Path) -> Table:
    import pyarrow as pa
    import pyarrow.csv

    with path.open(encoding="utf-8-sig", newline="") as file:
        header = next(csv.reader(file), [])
    if not header:
        raise ValueError(f"{WHO}: {str(path)!r} is empty.")
    other = next((sign for sign in SEPARATORS if len(header) == 1 and sign in header[0]), None)
    if other is not None:
        raise ValueError(f"{WHO}: the values in {str(path)!r} must be separated by commas, got {other!r}. Save it so.")
    # One type for all columns, so that nothing is guessed; rows with more or fewer values than names are refused.
    table = pa.csv.read_csv(
        path,
        read_options=pa.csv.ReadOptions(block_size=BLOCK_BYTES),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False
        ),
    )
    if table.column_names != header or not all(is_text(field.type) for field in table.schema):
        raise ValueError(f"{WHO}: the first line of {str(path)!r} cannot be read as names of columns.")
    # as pandas calls them, which writes its index as a column without a name
    names = [name or f"Unnamed: {place}" for place, name in enumerate(header)]
    return Table(path, table.rename_columns(names), typed=False, index=tuple({INDEX} & set(names)))


def _read_parquet(path: Path) -> Table:
    import pyarrow.parquet

    # Not as a data set: a folder called y=1 would become a column y.
    with pyarrow.parquet.ParquetFile(path) as file:
        table = file.read()
    try:
        described = (table.schema.pandas_metadata or {}).get("index_columns", [])
        named = {name for name in described if isinstance(name, str)}
    except (AttributeError, TypeError, ValueError):  # not written by pandas
        named = set()
    index = tuple(name for name in table.column_names if name in {*named, INDEX})
    plain = [
        pyarrow.compute.cast(column, column.type.value_type)
        if pyarrow.types.is_dictionary(column.type) and not is_text(column.type.value_type)
        else column
        for column in table.columns
    ]
    return Table(path, pyarrow.Table.from_arrays(plain, names=table.column_names), typed=True, index=index)


def _is_nested(kind: pa.DataType) -> bool:
    import pyarrow as pa

    simple = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_temporal,
        pa.types.is_null, is_text,
    )  # fmt: skip
    return not any(check(kind) for check in simple)


def _text_or_null(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text, where what pandas takes for missing is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    missing = pc.is_in(column, value_set=pa.array(sorted(MISSING)))
    return pc.if_else(missing, pa.scalar(None, pa.string()), column)


def _with_nan(column: pd.Series) -> pd.Series:
    """Missing values as NaN, as pandas reads them from CSV: encoders take None for another category."""
    return column.where(column.notna(), np.nan) if column.dtype == object else column


def _guessed(name: str, column: pa.ChunkedArray) -> pd.Series:
    """Numbers where all values are numbers, booleans likewise, and text otherwise."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.utf8_trim_whitespace(_text_or_null(column))
    number = pc.replace_substring_regex(text, r"^\+([0-9.])", r"\1")
    for kind in (pa.int64(), pa.float64()):
        try:
            return number.cast(kind).to_pandas()
        except pa.ArrowInvalid:
            continue
    if pc.all(pc.is_in(pc.drop_null(text), value_set=pa.array(["True", "False", "TRUE", "FALSE", "true", "false"]))):
        return _with_nan(pc.equal(pc.utf8_lower(text), "true").to_pandas())
    words = _with_nan(_text_or_null(column).to_pandas())
    _warn_of_typos(name, words)
    return words


def _warn_of_typos(name: str, words: pd.Series) -> None:
    import pandas as pd

    there = words.dropna()
    wrong = there[pd.to_numeric(there, errors="coerce").isna().to_numpy()]
    if len(there) and len(wrong) < (1 - MOSTLY_NUMBERS) * len(there):
        warnings.warn(
            f"{WHO}: the column {name!r} is taken for text: {len(wrong)} of {len(there)} values are no numbers, such "
            f"as {wrong.iloc[0]!r} in row {wrong.index[0] + 1}.",
            stacklevel=2,
        )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
