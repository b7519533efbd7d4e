"""Quantiles of the move with their intervals, of all rows and of slices.

The interval of a quantile is made of that of the share of rows below it (Woodruff 1952): the quantiles at its two ends.
Of plain rows these are order statistics, whose coverage needs no assumption on how moves are distributed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from scipy import stats

from lowchurn._display import brief_share
from lowchurn._estimates import Estimate
from lowchurn.audit import _number_counts as counts
from lowchurn.audit import _releases as releases
from lowchurn.audit._history_sums import Sums
from lowchurn.audit._inference import Design
from lowchurn.audit._joins import Column, Table
from lowchurn.audit._sources import Engine

LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
SLICE_LEVELS = (0.05, 0.5, 0.95)
ENDS = (0.005, 0.995)  # of histograms; what lies beyond is counted in the last bins
BATCH = 20  # slices whose quantiles are asked for at once
MISSING = "\x1fmissing"
Values = dict[str, dict[float, float]]  # quantiles by slice and level
Ends = tuple[float | None, float | None]


@dataclass
class Sorted:
    """The rows that quantiles are made of, with a column ``value`` for the slice that they belong to."""

    engine: Engine
    rows: Table
    design: Design
    unit: Column | None
    part: float = 1.0
    """The share of all rows that these are."""

    def quantiles(self, column: str, wanted: dict[str, list[float]]) -> Values:
        """The quantiles of each slice at its own levels."""
        found: Values = {}
        names = list(wanted)
        for start in range(0, len(names), BATCH):
            some = names[start : start + BATCH]
            levels = sorted({level for name in some for level in wanted[name]})
            rows = self.rows.filter(self.rows.value.isin(some)) if len(names) > BATCH else self.rows
            fetched = self.engine.fetch(counts.quantiles(rows, column, levels, {"value": rows.value}))
            lists = fetched.get("q") or list(zip(*(fetched[f"q{i}"] for i in range(len(levels))), strict=True))
            for name, values in zip(fetched["value"], lists, strict=True):
                if name in wanted:
                    found[name] = dict(zip(levels, map(float, values), strict=True))
        return found

    def estimates(self, column: str, sizes: dict[str, int], levels: Sequence[float]) -> dict[str, dict[str, Estimate]]:
        """The quantiles of each slice with their intervals; ``sizes`` are the rows of the slices."""
        plain = not (self.design.weighted or self.design.grouped)
        if plain:
            worth = {name: [self.part * n] * len(levels) for name, n in sizes.items()}
        else:
            worth = self._effective(column, self.quantiles(column, {name: list(levels) for name in sizes}), levels)
        ends = {name: [self._ends(*each) for each in zip(levels, held, strict=True)] for name, held in worth.items()}
        known = {name: [end for pair in held for end in pair if end is not None] for name, held in ends.items()}
        wanted = {name: [*levels, *held] for name, held in known.items()}
        found = self.quantiles(column, wanted)
        how = "weighted quantile" if self.design.weighted else "interpolated quantile"
        part = "" if self.part == 1 else f" of {brief_share(self.part)} of the rows, chosen by a hash of the id"
        method = f"{how}{part}, {'order statistics' if plain else f'Woodruff, {self.design.words()}'}"
        return {
            name: {
                f"{level:g}": self._estimate(held, level, ends[name][i], worth[name][i], sizes[name], method)
                for i, level in enumerate(levels)
            }
            for name, held in found.items()
        }

    def _ends(self, level: float, size: float) -> Ends:
        """The levels of the interval of a quantile: of the order statistics that few samples have beyond it.

        None where the rows are too few for a bound: the chance that none of them lies beyond the quantile is too large.
        """
        n = int(size)
        if n < 1:
            return None, None
        tail = (1 - self.design.confidence) / 2
        first, last = (int(stats.binom.ppf(tail, n, level)), int(stats.binom.isf(tail, n, level)) + 1)

        def place(rank: int) -> float:
            return rank / n if self.design.weighted else (rank - 1) / max(n - 1, 1)

        return None if first < 1 else place(first), None if last > n else place(last)

    def _estimate(
        self, held: dict[float, float], level: float, ends: Ends, size: float, n: int, method: str
    ) -> Estimate:
        low = -math.inf if ends[0] is None else held[ends[0]]
        high = math.inf if ends[1] is None else held[ends[1]]
        return Estimate(held[level], low, high, n, method if size > 0 else "one group: no interval", size)

    def _effective(self, column: str, found: Values, levels: Sequence[float]) -> dict[str, list[float]]:
        """The rows that the share up to each quantile is worth, under weights and groups."""
        points: dict[str, Any] = {f"p{i}": [held[level] for held in found.values()] for i, level in enumerate(levels)}
        table = self.engine.hold(pa.table({"value": list(found)} | points))
        rows = self.rows.join(table, "value", how="inner")
        conditions = {f"below{i}": rows[column] <= rows[f"p{i}"] for i in range(len(levels))}
        by = {"value": rows.value} | ({} if self.unit is None else {"unit": rows.unit})
        sums = Sums(self.engine.fetch(releases.sums(rows, {"all": rows[column].notnull(), **conditions}, by)))
        kinds = {"all": "all"} | {below: below for below in conditions}
        tallies = {name: sums.tally(name, kinds) for name in found}
        return {
            name: [self.design.share(tally, below, "all").effective for below in conditions]
            for name, tally in tallies.items()
        }


def sorted_rows(
    engine: Engine, rows: Table, size: int, design: Design, unit: Column | None, value: Column | None = None
) -> Sorted:
    """The rows to sort, all of them or a part of very many; ``value`` is the slice that each belongs to."""
    held: dict[str, Column] = {"value": value.fill_null(MISSING)} if value is not None else {}
    if not held:
        held = {"value": rows.moved.ifelse("all", "all")}
    if unit is not None:
        held["unit"] = unit
    some = counts.some_rows(rows.mutate(**held), size)
    part = 1.0 if size <= counts.MOST_SORTED else 1 / math.ceil(size / counts.MOST_SORTED)
    return Sorted(engine, some, design, unit, part)
