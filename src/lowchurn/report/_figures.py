"""The figures of the audit: slices with their intervals, the flip matrix, and how scores moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowchurn._display import interval_text, share_text
from lowchurn.audit import Audit, Estimate, Shift, Slice
from lowchurn.report._chart import Axis, Chart, count_text, percent_text, root_ticks, ticks
from lowchurn.report._markup import Markup, tag

MOST_FOREST = 40
MOST_CLASSES = 12


def short(value: Any, most: int) -> str:
    shown = str(value)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def value_and_interval(estimate: Estimate, signed: bool = False) -> tuple[list[Any], str]:
    """A number, its unit set small where it is a word, and its interval: 1.97% and 1.53% to 2.53%."""
    value, _, interval = interval_text(estimate, signed).partition(" (")
    number, _, unit = value.partition(" ")
    return [number, [" ", tag("small", unit)] if unit else None], interval.removesuffix(")")


def forest(slices: Sequence[Slice], quantity: str, overall: float, caption: str, signed: bool) -> Markup:
    """A table of slices with their intervals drawn beside the numbers; the dashed line is the value of all rows."""
    shown = [s for s in slices if getattr(s, quantity).defined]
    if len(shown) > MOST_FOREST:
        kept = sorted(shown, key=lambda s: abs(getattr(s, quantity).value - overall) * math.sqrt(s.rows))[-MOST_FOREST:]
        shown = [s for s in shown if s in kept]
    if not shown:
        return Markup("")
    estimates = [getattr(s, quantity) for s in shown]
    low = min([overall, *(e.low for e in estimates), 0.0]) if signed else 0.0
    high = max([overall, *(e.high for e in estimates), 0.0])
    pad = 0.04 * ((high - low) or 0.01)
    low, high = low - pad if signed else 0.0, high + pad
    unit = "" if signed else "%"
    marks = [(tick, percent_text(tick, unit, signed)) for tick in ticks(low, high, 4)]
    axis = Axis(low, high, marks)
    largest = max(s.rows for s in shown)
    rows = []
    for s, e in zip(shown, estimates, strict=True):
        real = (s.q_value if signed else s.flips_q) <= 0.05
        mood = "neutral" if not real else "good" if signed and e.value > 0 else "bad"
        left, right, size = axis.at(e.low), axis.at(e.high), 0.42 + 0.42 * math.sqrt(s.rows / largest)
        drawn = [
            tag("span", class_=f"whisker {mood}", style=f"left:{left:g}%;width:{right - left:.4g}%"),
            tag("span", class_=f"dot {mood}", style=f"left:{axis.at(e.value):g}%;--size:{size:.2f}rem"),
        ]
        rows.append(
            tag(
                "tr",
                tag("th", short(s.name, 80), scope="row"),
                tag("td", tag("div", drawn, class_="rail"), class_="strip", aria_hidden="true"),
                tag("td", interval_text(e, signed), class_="value"),
            )
        )
    return tag(
        "table",
        tag("caption", caption),
        tag("tbody", rows),
        tag(
            "tfoot",
            tag("tr", tag("td"), tag("td", tag("div", axis.labels(), class_="rail"), class_="strip"), tag("td")),
        ),
        class_="forest",
        style=_lines(axis, overall, signed),
    )


def _lines(axis: Axis, overall: float, signed: bool) -> str:
    """The vertical lines behind all rows of a forest, as places for the style: they are drawn once, not in each row."""
    grid = ",".join(f"linear-gradient(var(--line) 0 0) {axis.at(v):g}% 0/1px 100% no-repeat" for v, _ in axis.ticks)
    zero = f"--zero:{axis.at(0):g}%;" if signed else ""
    return f"{zero}--all:{axis.at(overall):g}%;--grid:{grid}"


def flip_matrix(audit: Audit) -> tuple[Markup, int]:
    """Old decisions (rows) by new ones (columns) as a table, shaded by the share that flips; and classes left out."""
    matrix, classes = audit.flip_matrix, audit.classes
    off = matrix.sum(axis=0) + matrix.sum(axis=1) - 2 * matrix.diagonal()
    kept = sorted(np.argsort(-off, kind="stable")[:MOST_CLASSES].tolist())
    sums = matrix.sum(axis=1)
    largest = max((matrix[i, j] / sums[i] for i in kept for j in kept if i != j and sums[i]), default=0.0)
    head = [tag("th", "old decision ↓ / new →", scope="col", class_="corner")]
    head += [tag("th", short(classes[j], 60), scope="col") for j in kept]
    rows = []
    for i in kept:
        cells = [tag("th", short(classes[i], 60), scope="row")]
        for j in kept:
            n, share = int(matrix[i, j]), matrix[i, j] / sums[i] if sums[i] else 0.0
            if i == j:
                cells.append(tag("td", f"{n:,}", class_="same", title="unchanged"))
                continue
            strength = math.sqrt(share / largest) if largest else 0.0
            cells.append(
                tag("td", f"{n:,}", tag("small", share_text(share)), class_="flip", style=f"--strength:{strength:.3f}")
            )
        rows.append(tag("tr", cells))
    table = tag(
        "table",
        tag("caption", "Rows by old and new decision; the small figure is the share of the old decision's rows."),
        tag("thead", tag("tr", head)),
        tag("tbody", rows),
        class_="matrix",
    )
    return table, len(classes) - len(kept)


def _score_axis(shift: Shift) -> Axis:
    return Axis(0.0, 1.0, [(v, f"{v:g}") for v in (0, 0.25, 0.5, 0.75, 1)], f"{shift.quantity} →")


def _step(shift: Shift, i: int) -> tuple[float, float]:
    return float(shift.edges[i]), float(shift.edges[i + 1])


def _bar(chart: Chart, left: float, right: float, start: float, end: float, class_: str) -> Markup:
    x, top = chart.x(left) + 0.2, chart.y(max(start, end))
    wide, tall = chart.x(right) - 0.2 - x, chart.y(min(start, end)) - top
    return tag("rect", x=f"{x:g}", y=f"{top:g}", width=f"{wide:.4g}", height=f"{tall:.4g}", class_=class_)


def shift_figure(shift: Shift) -> Markup:
    """Rows by probability, before and after, on a root scale: most rows often lie in one bin."""
    old, new = shift.joint.sum(axis=1), shift.joint.sum(axis=0)
    most = float(max(old.max(), new.max(), 1))
    up = Axis(
        0.0, most, [(v, count_text(v)) for v in root_ticks(most)], "↑ rows in a bin (square-root scale)", root=True
    )
    chart = Chart(_score_axis(shift), up)
    bars = [_bar(chart, *_step(shift, i), 0.0, float(n), "bar-old") for i, n in enumerate(old)]
    outline = [(edge, float(n)) for i, n in enumerate(new) for edge in _step(shift, i)]
    described = f"Histogram of the {shift.quantity} over {int(old.sum()):,} rows in {len(old)} bins, before and after."
    line = tag("polyline", points=chart.points(outline), class_="line-new")
    return chart.draw("Scores before and after", described, [*bars, line])


def moves_figure(shift: Shift) -> Markup:
    """Of the rows whose score lay in a bin: how many moved to a higher bin (up) and to a lower one (down)."""
    rose, fell = (part.sum(axis=1) for part in (np.triu(shift.joint, 1), np.tril(shift.joint, -1)))
    high, low = float(max(rose.max(), 1)), float(max(fell.max(), 1))
    most = max(high, low)
    marks = [v for v in root_ticks(most, 0.3) if v]
    up = Axis(
        -low,
        high,
        [(s * v, count_text(v)) for s, end in ((1, high), (-1, low)) for v in marks if v <= end] + [(0.0, "0")],
        "↑ rows that moved to a higher bin, ↓ to a lower one (square-root scale)",
        root=True,
    )
    chart = Chart(_score_axis(shift), up)
    bars = []
    for i in range(len(rose)):
        bars += [
            _bar(chart, *_step(shift, i), 0.0, sign * float(n), class_)
            for sign, n, class_ in ((1, rose[i], "bar-rose"), (-1, fell[i], "bar-fell"))
            if n
        ]
    zero = tag("line", x1="0", x2="100", y1=f"{chart.y(0):g}", y2=f"{chart.y(0):g}", class_="axis")
    described = f"By bin of the old {shift.quantity}: " + "; ".join(
        f"{a:.2g} to {b:.2g}: {int(rose[i]):,} up, {int(fell[i]):,} down"
        for i, (a, b) in ((i, _step(shift, i)) for i in range(len(rose)))
        if rose[i] or fell[i]
    )
    return chart.draw("Rows whose score moved to another bin", described + ".", [*bars, zero])
