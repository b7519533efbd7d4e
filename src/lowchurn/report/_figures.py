"""The figures of the audit: slices with their intervals, the flip matrix, and how scores moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lowchurn._charts import Axis, Chart, Key, Mark, Panel, count_text, percent_text, root_ticks, ticks
from lowchurn._display import interval_text, number_interval_text, share_text
from lowchurn._estimates import Estimate
from lowchurn.audit import Audit
from lowchurn.audit._inference import Slice
from lowchurn.audit._number_inference import NumberSlice
from lowchurn.audit._result import Shift

MOST_TABLE_SLICES = 500
MOST_DRIVERS = 20
MOST_FOREST = 40
MOST_CLASSES = 12


@dataclass(frozen=True)
class ForestRow:
    """A slice: its number in words, and where its interval and dot lie, in percent."""

    name: str
    value: str
    mood: str
    left: float
    right: float
    at: float
    size: float


@dataclass(frozen=True)
class Forest:
    """Slices with their intervals drawn beside the numbers; the dashed line is the value of all rows."""

    title: str
    caption: str
    rows: list[ForestRow]
    axis: Axis
    lines: str
    """The vertical lines behind all rows, as places for the style: they are drawn once, not in each row."""


@dataclass(frozen=True)
class Scale:
    """How the figures of a forest are written, and which of them are good."""

    text: Callable[[Estimate, bool], str]
    tick: Callable[[float, bool], str]
    signed: bool = False
    up_is_good: bool = True


SHARES = Scale(interval_text, lambda value, signed: percent_text(value, "" if signed else " %", signed))
POINTS = replace(SHARES, signed=True)
NUMBERS = Scale(number_interval_text, lambda value, signed: f"{value:{'+' if signed and value else ''}.4g}")


def forests(slices: Sequence[Slice], churn: Estimate, change: Estimate) -> list[Forest]:
    """Change in accuracy, where it is known, and changed decisions; beside slices the figures of all rows."""
    made = []
    if change.defined:
        caption = (
            f"In points, with its interval. Left of zero is worse; dashed: all rows, {share_text(change.value, True)}."
        )
        made.append(forest("Change in accuracy", caption, slices, "accuracy_change", change.value, POINTS))
    caption = f"Share of rows, with its interval; dashed: all rows, {share_text(churn.value)}."
    return [*made, forest("Changed decisions", caption, slices, "churn", churn.value, SHARES)]


def forest(
    title: str,
    caption: str,
    slices: Sequence[Slice] | Sequence[NumberSlice],
    quantity: str,
    overall: float,
    scale: Scale,
) -> Forest:
    """The slices with one of their figures; of many those that differ most surely from all rows."""
    signed = scale.signed
    shown = [(s, getattr(s, quantity)) for s in slices if getattr(s, quantity).defined]
    if len(shown) > MOST_FOREST:
        kept = sorted(shown, key=lambda pair: abs(pair[1].value - overall) * math.sqrt(pair[0].rows))[-MOST_FOREST:]
        shown = [pair for pair in shown if pair in kept]
    ends = [end for _, e in shown for end in (e.low, e.high) if math.isfinite(end)]
    low = min([overall, *ends, 0.0]) if signed else 0.0
    high = max([overall, *ends, 0.0])
    pad = 0.04 * ((high - low) or 0.01)
    low, high = low - pad if signed else 0.0, high + pad
    round_numbers = next(found for about in (4, 6, 8) if len(found := ticks(low, high, about)) >= 3 or about == 8)
    axis = Axis(low, high, [(v, scale.tick(v, signed)) for v in round_numbers])
    largest = max((s.rows for s, _ in shown), default=1)
    rows = []
    for s, e in shown:
        real = (s.q_value if signed else s.flips_q) <= 0.05
        good = signed and (e.value > 0) == scale.up_is_good
        mood = "neutral" if not real else "good" if good else "bad"
        size = 0.42 + 0.42 * math.sqrt(s.rows / largest)
        places = (axis.at(e.low), axis.at(e.high), axis.at(e.value))
        rows.append(ForestRow(s.name, scale.text(e, signed), mood, *places, size))
    grid = ",".join(f"linear-gradient(var(--line) 0 0) {axis.at(v):g}% 0/1px 100% no-repeat" for v, _ in axis.ticks)
    zero = f"--zero:{axis.at(0):g}%;" if signed else ""
    return Forest(title, caption, rows, axis, f"{zero}--all:{axis.at(overall):g}%;--grid:{grid}")


Cell = tuple[int, float, float | None]


def flip_matrix(audit: Audit) -> list[tuple[object, list[Cell]]]:
    """Old decisions by new ones, of the classes with the most flips: rows, their share, and how much it is shaded.

    Cells whose decision did not change are not shaded: None.
    """
    matrix = audit.flip_matrix
    off = matrix.sum(axis=0) + matrix.sum(axis=1) - 2 * matrix.diagonal()
    kept = sorted(np.argsort(-off, kind="stable")[:MOST_CLASSES].tolist())
    sums = matrix.sum(axis=1)
    shares = matrix / np.maximum(sums, 1)[:, None]
    largest = max((shares[i, j] for i in kept for j in kept if i != j), default=0.0)

    def cell(i: int, j: int) -> Cell:
        strength = None if i == j else math.sqrt(shares[i, j] / largest) if largest else 0.0
        return int(matrix[i, j]), float(shares[i, j]), strength

    return [(audit.classes[i], [cell(i, j) for j in kept]) for i in kept]


def _score_axis(shift: Shift) -> Axis:
    return Axis(0.0, 1.0, [(v, f"{v:g}") for v in (0, 0.25, 0.5, 0.75, 1)], f"{shift.quantity} →")


def _bars(shift: Shift, numbers: np.ndarray, style: str, sign: int = 1) -> list[Mark]:
    return [
        Mark("bar", [(float(shift.edges[i]), float(shift.edges[i + 1])), (0.0, sign * float(n))], style)
        for i, n in enumerate(numbers)
    ]


def shift_chart(shift: Shift) -> Chart:
    """Rows by probability, before and after, on a root scale: most rows often lie in one bin."""
    old, new = shift.joint.sum(axis=1), shift.joint.sum(axis=0)
    most = float(max(old.max(), new.max(), 1))
    up = Axis(0.0, most, [(v, count_text(v)) for v in root_ticks(most)], "↑ rows in a bin (square-root scale)", "root")
    outline = [(float(edge), float(n)) for i, n in enumerate(new) for edge in shift.edges[i : i + 2]]
    marks = [*_bars(shift, old, "bar-old"), Mark("line", outline, "line-new")]
    described = f"Histogram of the {shift.quantity} over {int(old.sum()):,} rows in {len(old)} bins, before and after."
    title = "Scores before and after"
    key = [Key("before", "bar-old"), Key("after", "line-new", 5)]
    return Chart(title, [Panel(_score_axis(shift), up, marks, title, described)], key)


def moves_chart(shift: Shift) -> Chart:
    """Of the rows whose score lay in a bin: how many moved to a higher bin (up) and to a lower one (down)."""
    rose, fell = (part.sum(axis=1) for part in (np.triu(shift.joint, 1), np.tril(shift.joint, -1)))
    high, low = float(max(rose.max(), 1)), float(max(fell.max(), 1))
    tops = [v for v in root_ticks(max(high, low), 0.3) if v]
    up = Axis(
        -low,
        high,
        [(s * v, count_text(v)) for s, end in ((1, high), (-1, low)) for v in tops if v <= end] + [(0.0, "0")],
        "↑ rows that moved to a higher bin, ↓ to a lower one (square-root scale)",
        "root",
    )
    bars = [bar for pair in zip(_bars(shift, rose, "bar-rose"), _bars(shift, fell, "bar-fell", -1), strict=True)
            for bar in pair if bar.points[1][1]]  # fmt: skip
    described = f"By bin of the old {shift.quantity}: " + "; ".join(
        f"{shift.edges[i]:.2g} to {shift.edges[i + 1]:.2g}: {int(rose[i]):,} up, {int(fell[i]):,} down"
        for i in range(len(rose))
        if rose[i] or fell[i]
    )
    title = "Rows whose score moved to another bin"
    marks = [*bars, Mark("rule", [(0.0,)], "axis", along="up")]
    notes = [f"By the {shift.quantity} before. Rows that stayed in their bin are not drawn."]
    return Chart(title, [Panel(_score_axis(shift), up, marks, title, described + ".")], notes=notes)
