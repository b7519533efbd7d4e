"""What a column of a file contains, numbers, booleans or text: known only when all of its values have been seen."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lowchurn.retrain._labels import MISSING

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

# Of the text in a CSV file; a column of a Parquet file has a type of its own.
WHOLE, NUMBER, FLAG, TEXT = "whole numbers", "numbers", "true and false", "text"
OF_THE_FILE = "the type of the file"
TRUE_FALSE = ("True", "False", "TRUE", "FALSE", "true", "false")
# Of a column that is not all numbers, the share of numbers from which on the rest looks like a mistake.
MOSTLY_NUMBERS = 0.9


@dataclass(frozen=True)
class Kind:
    """How the values of a column are read; the same for all batches of a file, also for those with nothing missing."""

    name: str
    missing: bool

    def values(self, column: pa.ChunkedArray) -> pd.Series:
        """The values of a column, or of a batch of it."""
        found = self._read(column)
        if self.missing and found.dtype.kind in "iu":
            return found.astype(np.float64)
        return found.astype(object) if self.missing and found.dtype == bool else found

    def _read(self, column: pa.ChunkedArray) -> pd.Series:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.name == OF_THE_FILE:
            plain = pa.types.is_decimal(column.type) or pa.types.is_null(column.type)
            return (column.cast(pa.float64()) if plain else column).to_pandas()
        if self.name == TEXT:
            return _with_nan(_text_or_null(column).to_pandas())
        text = _trimmed(column)
        if self.name == FLAG:
            return _with_nan(pc.equal(pc.utf8_lower(text), "true").to_pandas())
        return _numeric(text).cast(pa.int64() if self.name == WHOLE else pa.float64()).to_pandas()


@dataclass
class Seen:
    """The values of a column, batch after batch.

    ``fixed`` is the kind where it does not depend on the values; otherwise the kind is the first of ``possible`` that
    all values allow.
    """

    fixed: str | None = None
    missing: bool = False
    possible: tuple[str, ...] = (WHOLE, NUMBER, FLAG)
    rows: int = 0
    there: int = 0
    no_numbers: int = 0
    example: tuple[str, int] = ("", 0)  # the first value that is no number, and its row

    def see(self, column: pa.ChunkedArray) -> None:
        """Look at the next values."""
        if self.fixed is not None:
            self.missing = self.missing or column.null_count > 0
            return
        text = _trimmed(column)
        self.missing = self.missing or text.null_count > 0
        self.possible = tuple(kind for kind in self.possible if _allows(kind, text))
        if NUMBER not in self.possible:
            self._count_words(column)
        self.there += len(text) - text.null_count
        self.rows += len(text)

    @property
    def kind(self) -> Kind:
        """What the values are that have been seen so far."""
        return Kind(self.fixed or next(iter(self.possible), TEXT), self.missing)

    def warn_of_typos(self, who: str, name: str) -> None:
        """Name a column that is text because of a few values among numbers."""
        if self.kind.name == TEXT and 0 < self.no_numbers < (1 - MOSTLY_NUMBERS) * self.there:
            warnings.warn(
                f"{who}: the column {name!r} is taken for text: {self.no_numbers} of {self.there} values are not "
                f"numbers, such as {self.example[0]!r} in row {self.example[1]}.",
                stacklevel=2,
            )

    def _count_words(self, column: pa.ChunkedArray) -> None:
        import pandas as pd

        there = _text_or_null(column).to_pandas().dropna()
        wrong = there[pd.to_numeric(there, errors="coerce").isna().to_numpy()]
        if len(wrong) and not self.no_numbers:
            self.example = str(wrong.iloc[0]), self.rows + int(wrong.index[0]) + 1
        self.no_numbers += len(wrong)


def _allows(kind: str, text: pa.ChunkedArray) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind == FLAG:
        return bool(pc.all(pc.is_in(pc.drop_null(text), value_set=pa.array(TRUE_FALSE)), min_count=0).as_py())
    try:
        _numeric(text).cast(pa.int64() if kind == WHOLE else pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _trimmed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.utf8_trim_whitespace(_text_or_null(column))


def _numeric(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text in which numbers are written as pyarrow reads them: without a plus."""
    import pyarrow.compute as pc

    return pc.replace_substring_regex(text, r"^\+([0-9.])", r"\1")


def _text_or_null(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text, where what pandas takes for missing is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    missing = pc.is_in(column, value_set=pa.array(sorted(MISSING)))
    return pc.if_else(missing, pa.scalar(None, pa.string()), column)


def _with_nan(column: pd.Series) -> pd.Series:
    """Missing values as NaN, as pandas reads them from CSV: encoders take None for another category."""
    return column.where(column.notna(), np.nan) if column.dtype == object else column
