"""Count and infer what moved: everything of a :class:`NumberAudit` that comes from the joined rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lowchurn.audit import _number_counts as counts
from lowchurn.audit._columns import Columns
from lowchurn.audit._counts import Cut, unit_of
from lowchurn.audit._inference import Design
from lowchurn.audit._joins import Column, Table
from lowchurn.audit._number_counts import Scale
from lowchurn.audit._number_inference import NumberDesign, NumberSlice, Spread, judge_number_slices, number_tallies
from lowchurn.audit._number_quantiles import ENDS, LEVELS, MISSING, SLICE_LEVELS, Sorted, sorted_rows
from lowchurn.audit._number_result import Histogram
from lowchurn.audit._pairs import shown_ids
from lowchurn.audit._result import Shift
from lowchurn.audit._sources import Engine

MOVE_BINS = 40
DENSITY_BINS = 30


def check_sizes(engine: Engine, pairs: Table, columns: Columns) -> None:
    """Refuse infinite numbers."""
    for name, n in engine.fetch_row(counts.largest_checks(pairs)).items():
        if n:
            side, loss = ("new" if name in ("new", "l_n") else "old"), name.startswith("l_")
            predicted = columns.side(side)
            column = columns.label if name == "label" else predicted.loss if loss else predicted.label
            table = "target" if name == "label" else f"{side} table"
            raise ValueError(
                f"audit: column {column!r} of the {table} must hold finite numbers up to {counts.LARGEST:g} in size, "
                f"{int(n):,} are not, such as those of {shown_ids(engine, pairs.filter(counts.too_large(pairs, name)))}"
                ". Leave these rows out on both sides."
            )


def count_numbers(
    engine: Engine, pairs: Table, columns: Columns, cuts: Sequence[Cut], design: Design, size: int, sample: int
) -> dict[str, Any]:
    """Figures, slices, quantiles, bins and the biggest moves of ``size`` joined rows."""
    assert columns.numbers is not None
    check_sizes(engine, pairs, columns)
    rows = counts.measured(pairs, columns.numbers)
    found = engine.fetch_row(counts.ranges(rows))
    scales = {name: _scale(found, name) for name in counts.variables(rows)}
    unit = unit_of(pairs, columns, design.groups, engine.quick) if columns.group is not None else None
    by: dict[str, Column] = {} if unit is None else {"unit": unit}
    whole = engine.fetch(counts.sums(rows, scales, by))
    by_cut = [engine.fetch(counts.sums(rows, scales, {**counts.slice_of(cut, rows), **by})) for cut in cuts]
    tallies = number_tallies(whole, by_cut)
    numbers = NumberDesign(design, scales, _spread(found))
    judged = judge_number_slices(tallies, cuts, numbers)
    ordered = sorted_rows(engine, rows, size, design, unit)
    return {
        "numbers": numbers,
        "tallies": tallies,
        "judged": tuple(_with_quantiles(engine, rows, cuts, judged, list(tallies)[1:], size, design, unit)),
        "quantiles": ordered.estimates("move", {"all": size}, LEVELS)["all"],
        **_bins(engine, rows, ordered, 0.0 if columns.numbers.relative else columns.numbers.tolerance),
        "flips": engine.fetch(counts.biggest(rows, sample)),
        "pairs": rows,
    }


def _scale(found: Mapping[str, Any], name: str) -> Scale:
    if found[f"{name}_mean"] is None:
        return Scale()
    low, high, centre = (float(found[f"{name}_{part}"]) for part in ("low", "high", "mean"))
    return Scale(centre, max(high - centre, centre - low) or 1.0)


def _spread(found: Mapping[str, Any]) -> Spread:
    """The largest difference of two numbers, and of two losses."""

    def of(old: str, new: str) -> float:
        ends = [found.get(f"{name}_{end}") for name in (old, new) for end in ("low", "high")]
        known = [float(end) for end in ends if end is not None]
        return max(known) - min(known) if known else 0.0

    return Spread(of("old", "new"), of("loss_old", "loss_new"))


def _with_quantiles(
    engine: Engine,
    rows: Table,
    cuts: Sequence[Cut],
    judged: Sequence[NumberSlice],
    keys: Sequence[tuple[int, str | None]],
    size: int,
    design: Design,
    unit: Column | None,
) -> list[NumberSlice]:
    """The slices with the quantiles of their moves."""
    of_cut = []
    for i, cut in enumerate(cuts):
        here = [(value, s.rows) for s, (k, value) in zip(judged, keys, strict=True) if k == i]
        sizes = {MISSING if value is None else value: n for value, n in here}
        ordered = sorted_rows(engine, rows, size, design, unit, counts.slice_of(cut, rows)["value"])
        of_cut.append(ordered.estimates("move", sizes, SLICE_LEVELS))
    return [
        replace(s, quantiles=of_cut[cut].get(MISSING if value is None else value, {}))
        for s, (cut, value) in zip(judged, keys, strict=True)
    ]


def _bins(engine: Engine, rows: Table, ordered: Sorted, tolerance: float) -> dict[str, Any]:
    """The histogram of moves and the density of old and new numbers."""
    ends = {name: list(ordered.quantiles(name, {"all": list(ENDS)})["all"].values()) for name in ("move", "old", "new")}
    edges = _move_edges(*_apart(min(ends["move"][0], 0.0), max(ends["move"][1], 0.0)), tolerance)
    moves = np.zeros(len(edges) - 1, dtype=np.int64)
    fetched = engine.fetch(counts.histogram(rows, float(edges[0]), float(edges[-1]), len(moves)))
    moves[fetched["bin"]] = fetched["n"]
    first, last = _apart(min(ends["old"][0], ends["new"][0]), max(ends["old"][1], ends["new"][1]))
    joint = engine.fetch(counts.density(rows, first, last, DENSITY_BINS))
    return {
        "histogram": Histogram(edges, moves),
        "density": Shift.from_counts(joint, DENSITY_BINS, "value", first, last),
    }


def _move_edges(low: float, high: float, tolerance: float) -> np.ndarray:
    """Edges of about 40 bins, one of them around zero, and where they are not too coarse some at the tolerance."""
    width = (high - low) / MOVE_BINS
    if width / 4 < tolerance < high - low:
        width = 2 * tolerance / (2 * max(round(tolerance / width - 0.5), 0) + 1)
    first, last = (math.ceil(max(end / width - 0.5, 0.0)) for end in (-low, high))
    edges: np.ndarray = (np.arange(-first, last + 2) - 0.5) * width
    return edges


def _apart(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis, apart also where all values are the same."""
    if (high - low) > 1e-9 * max(abs(low), abs(high)):
        return low, high
    pad = 0.5 * abs(low) or 0.5
    return low - pad, high + pad
