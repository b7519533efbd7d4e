"""Sums over the rows of all releases, asked of the database once and read as tallies of any two releases."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lowchurn.audit import _releases as expressions
from lowchurn.audit._counts import Cut
from lowchurn.audit._inference import Tally
from lowchurn.audit._joins import Column, Table
from lowchurn.audit._sources import Engine, Fetched


class Counter:
    """Asks the database for sums: of all rows for every pair of releases, of slices for neighbours and the first."""

    def __init__(self, engine: Engine, rows: Table, unit: Mapping[str, Column], size: int) -> None:
        self.engine, self.rows, self.unit, self.size = engine, rows, unit, size
        self.moved = rows.filter(rows.changes > 0)  # the other rows have nothing to add to what changed

    def whole(self) -> Sums:
        sums = Sums(self._fetch(self.rows, expressions.totals(self.rows, self.size)))
        if self.size > 2:
            sums.add(self._fetch(self.moved, expressions.returns(self.moved, self.size)))
        for i in range(self.size - 1):  # a query for each release keeps each of them small
            pairs = [(i, j) for j in range(i + 1, self.size)]
            sums.add(self._fetch(self.moved, expressions.moves(self.moved, pairs)))
        return sums

    def slices(self, cut: Cut) -> Sums:
        sums = Sums(self._fetch(self.rows, expressions.totals(self.rows, self.size), cut))
        pairs = {(i, i + 1) for i in range(self.size - 1)} | {(0, j) for j in range(1, self.size)}
        sums.add(self._fetch(self.moved, expressions.moves(self.moved, sorted(pairs)), cut))
        return sums

    def _fetch(self, rows: Table, conditions: Mapping[str, Column], cut: Cut | None = None) -> Fetched:
        by = self.unit if cut is None else {"value": cut.value(rows).cast("string"), **self.unit}
        return self.engine.fetch(expressions.sums(rows, conditions, by))


class Sums:
    """Sums of conditions by slice and unit, as the database returned them; what it did not return is 0."""

    def __init__(self, found: Fetched) -> None:
        rows = len(found["n_all"])
        self.values = list(dict.fromkeys(found.get("value", [None] * rows)))
        self.grouped = "unit" in found
        self.units = {unit: i for i, unit in enumerate(sorted(set(found.get("unit", [None])), key=str))}
        self._at = {value: i for i, value in enumerate(self.values)}
        self._held: dict[str, tuple[np.ndarray, np.ndarray, list[np.ndarray]]] = {}
        self.add(found)

    def add(self, found: Fetched) -> None:
        """Take the sums of further conditions."""
        names = [name.removeprefix("n_") for name in found if name.startswith("n_")]
        rows = len(found[f"n_{names[0]}"])
        slots = np.array([self._at[value] for value in found.get("value", [None] * rows)], dtype=int)
        units = np.array([self.units[unit] for unit in found.get("unit", [None] * rows)], dtype=int)
        for name in names:
            held = [np.asarray(found[k], dtype=float) for k in (f"n_{name}", f"w_{name}", f"v_{name}") if k in found]
            self._held[name] = slots, units, held

    def tally(self, value: str | None, kinds: Mapping[str, str]) -> Tally:
        """The sums of one slice, under the names of the kinds of rows that these conditions are."""
        tally = Tally(units={} if self.grouped else None)
        for kind in {*tally.n, *kinds}:
            n, weight, weight2, by_unit = self._of(value, kinds.get(kind, ""))
            tally.n[kind], tally.weight[kind], tally.weight2[kind] = round(n), weight, weight2
            if tally.units is not None:
                tally.units[kind] = by_unit
        return tally

    def _of(self, value: str | None, name: str) -> tuple[float, float, float, np.ndarray]:
        by_unit = np.zeros(len(self.units))
        if name not in self._held:
            return 0.0, 0.0, 0.0, by_unit
        slots, units, held = self._held[name]
        here = slots == self._at[value]
        rows, *weighted = (column[here] for column in held)
        weights, squares = weighted or (rows, rows)
        np.add.at(by_unit, units[here], weights)
        return float(rows.sum()), float(weights.sum()), float(squares.sum()), by_unit

    def pair(self, value: str | None, i: int, j: int) -> Tally:
        """What changed from release ``i`` to release ``j`` in one slice."""
        kinds = {"all": "all", "labelled": "labelled", "right": f"right{i}", "right_new": f"right{j}"}
        return self.tally(value, kinds | {kind: f"{kind}{i}-{j}" for kind in ("changed", "broken", "fixed")})
