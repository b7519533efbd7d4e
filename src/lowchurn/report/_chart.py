"""A chart that keeps its text at every width.

Lines and areas are an SVG that is stretched to the room there is; ticks, names and dots are HTML on top of it, placed
in percent, so that they are never scaled, distorted or cut. Colours come from the page's style.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lowchurn.report._markup import Markup, tag


@dataclass(frozen=True)
class Axis:
    """The range of an axis, the ticks on it and what it shows; ``root`` gives small numbers more room."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    name: str = ""
    root: bool = False

    def at(self, value: float) -> float:
        """Where a value lies, in percent of the way from the low end to the high one."""
        low, high, value = map(self._scaled, (self.low, self.high, min(max(value, self.low), self.high)))
        return round(100 * (value - low) / (high - low), 2)

    def labels(self) -> list[Markup]:
        """The ticks of an axis from left to right; one at its very end is kept inside."""
        places = [(self.at(v), words) for v, words in self.ticks]
        return [
            tag("span", words, class_="tick x end" if at > 97 else "tick x", style=f"left:{at:g}%")
            for at, words in places
        ]

    def _scaled(self, value: float) -> float:
        return math.copysign(math.sqrt(abs(value)), value) if self.root else value


@dataclass(frozen=True)
class Chart:
    """Two axes, and where points lie between them: from the left and from the top, in percent."""

    across: Axis
    up: Axis

    def x(self, value: float) -> float:
        return self.across.at(value)

    def y(self, value: float) -> float:
        return round(100 - self.up.at(value), 2)

    def points(self, pairs: Iterable[tuple[float, float]]) -> str:
        """The ``points`` of a line or an area."""
        return " ".join(f"{self.x(a):g},{self.y(b):g}" for a, b in pairs)

    def dot(self, across: float, up: float, title: str, **attributes: Any) -> Markup:
        """A mark that stays round. Its title is shown to the mouse; the numbers are in a table for everyone else."""
        place = f"left:{self.x(across):g}%;top:{self.y(up):g}%"
        return tag("span", title=title, style=place, **attributes)

    def draw(self, title: str, description: str, shapes: Sequence[Markup], dots: Sequence[Markup] = ()) -> Markup:
        """The chart, with a name and a description for those who do not see it."""
        grid = [tag("line", x1=f"{self.x(v):g}", x2=f"{self.x(v):g}", y1="0", y2="100") for v, _ in self.across.ticks]
        grid += [tag("line", x1="0", x2="100", y1=f"{self.y(v):g}", y2=f"{self.y(v):g}") for v, _ in self.up.ticks]
        labels = self.across.labels()
        labels += [tag("span", words, class_="tick y", style=f"top:{self.y(v):g}%") for v, words in self.up.ticks]
        drawn = tag(
            "svg",
            tag("title", title),
            tag("desc", description),
            tag("g", grid, class_="grid"),
            *shapes,
            viewBox="0 0 100 100",
            preserveAspectRatio="none",
            role="img",
        )
        return tag(
            "div",
            tag("div", self.up.name, class_="axis-name", aria_hidden="true"),
            tag("div", drawn, tag("div", labels, *dots, class_="over", aria_hidden="true"), class_="area"),
            tag("div", self.across.name, class_="axis-name across", aria_hidden="true"),
            class_="chart",
        )


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that cover a range."""
    span = high - low
    if not 1e-300 < span < math.inf:
        return [low]
    raw = span / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def root_ticks(high: float, apart: float = 0.16) -> list[float]:
    """Round numbers from 0 that lie well apart on a root scale: 0 and a few of 1, 2, 5, 10, 20, 50, ..."""
    found = [m * 10.0**power for power in range(16) for m in (1, 2, 5)]
    kept: list[float] = [0.0]
    for value in (v for v in found if v <= high):
        if math.sqrt(value / high) - math.sqrt(kept[-1] / high) >= apart:
            kept.append(value)
    return kept


def percent_text(value: float, unit: str = "%", signed: bool = False) -> str:
    """A tick of a share."""
    percent = 100 * value
    shown = f"{percent:.3f}".rstrip("0").rstrip(".")
    return ("+" if signed and percent > 0 else "") + (shown if shown not in ("-0", "") else "0") + unit


def count_text(value: float) -> str:
    """A tick of a number of rows, never longer than five characters."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            unit = size / 10 if letter == "k" else size
            return f"{value / unit:.3g}{letter}"
    return f"{value:,.0f}"
