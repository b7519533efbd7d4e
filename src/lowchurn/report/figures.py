"""The figures of the page as inline SVG. Colours come from the page's style, so light, dark and print all work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowchurn.audit import Audit, Shift, Slice
from lowchurn.audit.gate import interval_text, share_text
from lowchurn.report.markup import Markup, tag

MOST_FOREST = 40
MOST_CLASSES = 12
CHARACTER = 7.2  # width of a character at 13 px, enough to keep labels apart


def svg(width: float, height: float, title: str, description: str, *children: Any) -> Markup:
    """A figure with a name and a description for those who do not see it."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        width=f"{width:g}",
        height=f"{height:g}",
    )


def short(value: Any, most: int = 26) -> str:
    shown = str(value)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that cover a range."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    raw = span / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float, signed: bool = False) -> str:
    percent = 100 * value
    shown = f"{percent:.3f}".rstrip("0").rstrip(".")
    return ("+" if signed and percent > 0 else "") + (shown if shown not in ("-0", "") else "0") + "%"


def forest(slices: Sequence[Slice], quantity: str, overall: float, title: str, signed: bool) -> Markup:
    """Slices with their intervals, one line a slice; the dashed line is the value of all rows."""
    shown = [s for s in slices if getattr(s, quantity).defined]
    if len(shown) > MOST_FOREST:
        kept = sorted(shown, key=lambda s: abs(getattr(s, quantity).value - overall) * math.sqrt(s.rows))[-MOST_FOREST:]
        shown = [s for s in shown if s in kept]
    if not shown:
        return Markup("")
    estimates = [getattr(s, quantity) for s in shown]
    low = min([overall, *(e.low for e in estimates), *([0.0] if signed else [])])
    high = max([overall, *(e.high for e in estimates), *([0.0] if signed else [])])
    low = 0.0 if not signed else low
    pad = 0.04 * ((high - low) or 0.01)
    low, high = (low if not signed else low - pad), high + pad
    labels = [short(s.name, 34) for s in shown]
    left = 24 + max(len(label) for label in labels) * CHARACTER
    right, top, line = 190.0, 12.0, 24.0
    width = left + 420 + right
    height = top + line * len(shown) + 36

    def x(value: float) -> float:
        return left + 420 * (min(max(value, low), high) - low) / (high - low)

    bottom = top + line * len(shown)
    parts: list[Any] = []
    for tick in ticks(low, high):
        parts.append(tag("line", x1=f"{x(tick):.1f}", x2=f"{x(tick):.1f}", y1=f"{top}", y2=f"{bottom}", class_="grid"))
        parts.append(
            tag(
                "text",
                tick_text(tick, signed),
                x=f"{x(tick):.1f}",
                y=f"{bottom + 18}",
                class_="tick",
                text_anchor="middle",
            )
        )
    if signed:
        parts.append(tag("line", x1=f"{x(0):.1f}", x2=f"{x(0):.1f}", y1=f"{top}", y2=f"{bottom}", class_="axis"))
    parts.append(
        tag("line", x1=f"{x(overall):.1f}", x2=f"{x(overall):.1f}", y1=f"{top}", y2=f"{bottom}", class_="overall")
    )
    for i, (s, e) in enumerate(zip(shown, estimates, strict=True)):
        y = top + line * (i + 0.5)
        real = (s.q_value if signed else s.flips_q) <= 0.05
        mood = "neutral" if not real else ("bad" if (signed and e.value < 0) or not signed else "good")
        size = 3.2 + 3.3 * math.sqrt(s.rows / max(t.rows for t in shown))
        parts += [
            tag("text", labels[i], x=f"{left - 12:.1f}", y=f"{y + 4.5:.1f}", text_anchor="end", class_="name"),
            tag("line", x1=f"{x(e.low):.1f}", x2=f"{x(e.high):.1f}", y1=f"{y}", y2=f"{y}", class_=f"whisker {mood}"),
            tag("circle", cx=f"{x(e.value):.1f}", cy=f"{y}", r=f"{size:.1f}", class_=f"dot {mood}"),
            tag("text", interval_text(e, signed), x=f"{left + 432:.1f}", y=f"{y + 4.5:.1f}", class_="value"),
        ]
    words = "; ".join(f"{s.name} {interval_text(e, signed)}" for s, e in zip(shown[:15], estimates, strict=False))
    return svg(width, height, title, f"All rows: {share_text(overall, signed)}. {words}", *parts)


def flip_matrix(audit: Audit) -> tuple[Markup, int]:
    """Old decisions (rows) by new ones (columns) as a table, shaded by the share that flips; and classes left out."""
    matrix, classes = audit.flip_matrix, audit.classes
    off = matrix.sum(axis=0) + matrix.sum(axis=1) - 2 * matrix.diagonal()
    kept = sorted(np.argsort(-off, kind="stable")[:MOST_CLASSES].tolist())
    sums = matrix.sum(axis=1)
    largest = max((matrix[i, j] / sums[i] for i in kept for j in kept if i != j and sums[i]), default=0.0)
    head = [tag("th", "old decision ↓ / new →", scope="col", class_="corner")]
    head += [tag("th", short(classes[j]), scope="col") for j in kept]
    rows = []
    for i in kept:
        cells = [tag("th", short(classes[i]), scope="row")]
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


def shift_figure(shift: Shift) -> Markup:
    """Two histograms of the probability, before and after."""
    old, new = shift.joint.sum(axis=1), shift.joint.sum(axis=0)
    bins = len(old)
    left, top, wide, tall = 62.0, 12.0, 640.0, 210.0
    most = max(int(old.max()), int(new.max()), 1)
    step = wide / bins

    def y(n: float) -> float:
        return top + tall * (1 - n / most)

    parts: list[Any] = []
    for tick in ticks(0, most, 4):
        parts += [
            tag("line", x1=f"{left}", x2=f"{left + wide}", y1=f"{y(tick):.1f}", y2=f"{y(tick):.1f}", class_="grid"),
            tag("text", f"{tick:,.0f}", x=f"{left - 8}", y=f"{y(tick) + 4:.1f}", text_anchor="end", class_="tick"),
        ]
    for i in range(bins):
        x = left + i * step
        parts.append(
            tag(
                "rect",
                x=f"{x + 1:.1f}",
                y=f"{y(old[i]):.1f}",
                width=f"{step - 2:.1f}",
                height=f"{max(top + tall - y(old[i]), 0):.1f}",
                class_="bar-old",
            )
        )
    outline = []
    for i in range(bins):
        outline += [f"{left + i * step:.1f},{y(new[i]):.1f}", f"{left + (i + 1) * step:.1f},{y(new[i]):.1f}"]
    parts.append(tag("polyline", points=" ".join(outline), class_="line-new"))
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(
            tag(
                "text",
                f"{tick:g}",
                x=f"{left + wide * tick:.1f}",
                y=f"{top + tall + 20}",
                text_anchor="middle",
                class_="tick",
            )
        )
    parts.append(
        tag("text", shift.quantity, x=f"{left + wide / 2}", y=f"{top + tall + 40}", text_anchor="middle", class_="name")
    )
    moved = int(shift.joint.sum() - np.trace(shift.joint))
    words = f"Histogram of the {shift.quantity} over {int(old.sum()):,} rows in {bins} bins; {moved:,} rows move."
    return svg(left + wide + 16, top + tall + 52, "Score shift", words, *parts)
