"""The one way to draw: marks between two axes.

A chart is a description: titles, axes, marks and a key, in the units of the data. It is shown in two forms. As a
picture (``.svg``, ``.png``, a notebook) everything is SVG, text included. On a page lines and areas are an SVG that is
stretched to the available width, and the template sets ticks, names and points on top of it in percent, so that they
are never scaled, distorted or cut. Both take their colours from one style sheet, ``templates/marks.css``.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from lowchurn._extras import importing
from lowchurn._files import write_file
from lowchurn._html import clean, package_text, render

# The paper's strategies have a colour (their position here) and a shape everywhere, others get those that are left:
# first the darker colours.
PAPER = {
    "cold": "circle",
    "warm": "square",
    "s-perturb": "left",
    "mixup": "diamond",
    "ls": "down",
    "co-dist": "cross",
    "anchor": "right",
    "distill": "up",
}
# What is past the paper has a colour of its own as well, unless a strategy of the paper beside it has that one.
PAST = {
    "sticky": (4, "square"),
    "soup": (5, "diamond"),
    "served-mix": (6, "down"),
    "interpolate": (2, "left"),
    "two-teachers": (3, "right"),
}
SPARE = ((5, "diamond"), (4, "square"), (6, "down"), (3, "right"), (2, "left"), (7, "up"), (1, "cross"), (0, "circle"))
# Corners of the shapes that are no circle, around the middle.
SHAPES = {
    "square": "-.85,-.85 .85,-.85 .85,.85 -.85,.85",
    "diamond": "0,-1.2 1.2,0 0,1.2 -1.2,0",
    "up": "0,-1.1 1.1,.9 -1.1,.9",
    "down": "0,1.1 1.1,-.9 -1.1,-.9",
    "left": "-1.1,0 .9,1.1 .9,-1.1",
    "right": "1.1,0 -.9,1.1 -.9,-1.1",
    "cross": "-.4,-1.1 .4,-1.1 .4,-.4 1.1,-.4 1.1,.4 .4,.4 .4,1.1 -.4,1.1 -.4,.4 -1.1,.4 -1.1,-.4 -.4,-.4",
}
ENDINGS = (".svg", ".png", ".html")
_CHARACTER = 6.1  # pixels that a character of a picture's text needs

Pair = tuple[float, float]


def series_styles(names: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Name -> colour and shape: their own for strategies that have one, the first that are left for others."""
    names = list(dict.fromkeys(names))
    own = {name: (k, shape) for k, (name, shape) in enumerate(PAPER.items())}
    chosen = {name: own[name] for name in names if name in own}
    for name in names:
        if name in PAST and PAST[name][0] not in {colour for colour, _ in chosen.values()}:
            chosen[name] = PAST[name]
    taken = {colour for colour, _ in chosen.values()}
    free = [style for style in SPARE if style[0] not in taken] or list(SPARE)
    others = [name for name in names if name not in chosen]
    return chosen | {name: free[k % len(free)] for k, name in enumerate(others)}


def _classes(style: str, colour: int | None, shape: str = "circle") -> str:
    """Style, colour and shape as HTML classes."""
    return style + ("" if colour is None else f" lc{colour}") + ("" if shape == "circle" else f" {shape}")


SCALES: dict[str, Callable[[float], float]] = {
    "linear": lambda value: value,
    "root": lambda value: math.copysign(math.sqrt(abs(value)), value),  # gives small numbers more room
    "log": math.log,
}


@dataclass(frozen=True)
class Axis:
    """The range of an axis, its ticks and its name; ``scale`` is one of SCALES."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    name: str = ""
    scale: str = "linear"

    def at(self, value: float) -> float:
        """Where a value lies, in percent of the way from the low end to the high one."""
        low, high, value = map(SCALES[self.scale], (self.low, self.high, min(max(value, self.low), self.high)))
        return round(100 * (value - low) / (high - low), 2)

    @classmethod
    def around(
        cls,
        values: Iterable[float],
        name: str = "",
        label: Callable[[float], str] = "{:.6g}".format,
        *,
        low: float | None = None,
        about: int = 5,
        scale: str = "linear",
    ) -> Axis:
        """An axis that contains values, with some room and round ticks; it starts at ``low`` where one is given."""
        known = [value for value in values if math.isfinite(value)]
        first, last = min(known, default=0.0), max(known, default=1.0)
        pad = 0.08 * (last - first) or 0.01 * (abs(last) or 1.0)
        first, last = first - pad if low is None else low, last + pad
        return cls(first, last, [(v, label(v)) for v in ticks(first, last, about)], name, scale)


@dataclass(frozen=True)
class Mark:
    """One thing that is drawn, in the units of the axes.

    The points of a line are pairs (NaN: a gap), those of a band (across, low, high), a cross is its point and both of
    its intervals, a bar (left, right) and (start, end), a cell the same without gaps between neighbours. A rule is a
    line over the whole chart at one value.
    """

    kind: str
    """line, band, cross, point, bar, cell or rule."""
    points: Sequence[tuple[float, ...]]
    style: str
    """Its class in ``marks.css``."""
    series: str = ""
    colour: int | None = None
    shape: str = "circle"
    title: str = ""
    chosen: bool = False
    along: str = ""
    """Of a rule: the axis that it stands on."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Attributes for the page's script."""

    @property
    def classes(self) -> str:
        point = self.kind == "point"
        shown = _classes(self.style, self.colour, self.shape if point else "circle")
        return f"{shown} chosen" if point and self.chosen else shown


@dataclass(frozen=True)
class Panel:
    """Two axes and the marks between them. As HTML it is its lines and areas; the template adds ticks and points."""

    across: Axis
    up: Axis
    marks: Sequence[Mark]
    title: str = ""
    description: str = ""

    def x(self, value: float) -> float:
        """From the left, in percent."""
        return self.across.at(value)

    def y(self, value: float) -> float:
        """From the top, in percent."""
        return round(100 - self.up.at(value), 2)

    @property
    def points(self) -> list[Mark]:
        return [mark for mark in self.marks if mark.kind == "point"]

    @property
    def room(self) -> int:
        """Characters of its longest tick on the left."""
        return max((len(text) for _, text in self.up.ticks), default=0)

    def draw(self, parent: Element, box: tuple[float, float, float, float]) -> None:
        """Draw the grid and all marks but points into a box: left, top, width, height."""
        left, top, width, height = box

        def x(value: float) -> float:
            return round(left + width * self.x(value) / 100, 2)

        def y(value: float) -> float:
            return round(top + height * self.y(value) / 100, 2)

        def rule(parent: Element, along: str, value: float, **attributes: str) -> None:
            if along == "across":
                _add(parent, "line", x1=x(value), x2=x(value), y1=top, y2=top + height, **attributes)
            else:
                _add(parent, "line", x1=left, x2=left + width, y1=y(value), y2=y(value), **attributes)

        grid = _add(parent, "g", class_="grid")
        for axis, along in ((self.across, "across"), (self.up, "up")):
            for value, _ in axis.ticks:
                rule(grid, along, value)
        for mark in self.marks:
            attributes = {"class_": mark.classes, **{f"data-{name}": value for name, value in mark.data.items()}}
            if mark.kind == "rule":
                rule(parent, mark.along, mark.points[0][0], **attributes)
            elif mark.kind == "line":
                for run in _runs(mark.points):
                    _add(parent, "polyline", points=_pairs((x(a), y(b)) for a, b in run), **attributes)
            elif mark.kind == "band":
                above = [(x(a), y(high)) for a, _, high in mark.points]
                below = [(x(a), y(low)) for a, low, _ in reversed(mark.points)]
                _add(parent, "polygon", points=_pairs(above + below), **attributes)
            elif mark.kind == "cross":
                (a, b), (first, last), (low, high) = mark.points
                path = f"M{x(first):g} {y(b):g}H{x(last):g}M{x(a):g} {y(low):g}V{y(high):g}"
                _add(parent, "path", d=path, **attributes)
            elif mark.kind in ("bar", "cell"):
                (first, last), ends = mark.points
                gap = 0.002 * width if mark.kind == "bar" else 0.0
                start, highest = x(first) + gap, y(max(ends))
                size = {"width": f"{x(last) - gap - start:.4g}", "height": f"{y(min(ends)) - highest:.4g}"}
                _add(parent, "rect", x=start, y=highest, **size, **attributes)

    def __html__(self) -> str:
        svg = Element("svg", {"class": "marks", "viewBox": "0 0 100 100", "preserveAspectRatio": "none", "role": "img"})
        _add(svg, "title", self.title)
        _add(svg, "desc", self.description)
        self.draw(svg, (0, 0, 100, 100))
        return ElementTree.tostring(svg, encoding="unicode")


@dataclass(frozen=True)
class Key:
    """An entry of the key: a name and the mark that it explains."""

    name: str
    style: str = "point"
    colour: int | None = None
    shape: str = "circle"

    @property
    def classes(self) -> str:
        return _classes(self.style, self.colour, self.shape if self.style == "point" else "circle")


@dataclass(frozen=True)
class Size:
    """Of a panel of a picture, in pixels; on a page it is as wide as there is room, and ``rem`` high where not 0."""

    width: int
    height: int
    columns: int = 1
    rem: float = 0

    @property
    def square(self) -> bool:
        """As wide as high, on a page too."""
        return self.width == self.height and self.rem > 0


@dataclass(frozen=True)
class Chart:
    """A figure: it shows itself in a notebook and writes itself to a file."""

    title: str
    panels: Sequence[Panel]
    key: Sequence[Key] = ()
    notes: Sequence[str] = ()
    size: Size = Size(520, 300)

    @cached_property
    def marks(self) -> list[Mark]:
        """The marks of all panels."""
        return [mark for panel in self.panels for mark in panel.marks]

    def svg(self) -> str:
        """The picture as SVG, which needs nothing else."""
        return _picture(self)

    def png(self) -> bytes:
        """The picture as PNG, two pixels for each of its units."""
        with importing("a PNG file", "report"):
            import vl_convert
        return bytes(vl_convert.svg_to_png(self.svg(), scale=2))

    def page(self) -> str:
        """The chart as a page that loads nothing and keeps its text at every width."""
        return render("templates/figure.html.jinja", chart=self)

    def rendered(self, ending: str) -> bytes:
        """The content of a file with this ending."""
        if ending not in ENDINGS:
            raise ValueError(f"chart: a file must end in {', '.join(ENDINGS)}, got {ending!r}.")
        if ending == ".png":
            return self.png()
        return (self.svg() if ending == ".svg" else self.page()).encode()

    def save(self, path: str | Path) -> None:
        """Write it as ``.svg``, ``.png`` or ``.html``, whole or not at all."""
        write_file(path, self.rendered(Path(path).suffix))

    _repr_svg_ = _repr_html_ = svg


def _add(parent: Element, tag: str, text: str = "", **attributes: object) -> Element:
    """Add an element; ``class_`` is class, ``text_anchor`` is text-anchor. Numbers are written in short."""
    shown = {
        name.rstrip("_").replace("_", "-"): f"{value:g}" if isinstance(value, int | float) else clean(value)
        for name, value in attributes.items()
    }
    element = SubElement(parent, tag, shown)
    if text:
        element.text = clean(text)
    return element


def _pairs(points: Iterable[Pair]) -> str:
    return " ".join(f"{a:g},{b:g}" for a, b in points)


def _runs(points: Sequence[tuple[float, ...]]) -> Iterator[list[Pair]]:
    """The parts of a line between its gaps."""
    run: list[Pair] = []
    for a, b in points:
        if math.isfinite(a) and math.isfinite(b):
            run.append((a, b))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _picture(chart: Chart) -> str:
    """A chart as one SVG: title, panels in rows, key, notes."""
    left, right, above, below = 22 + _CHARACTER * max(panel.room for panel in chart.panels), 18, 30, 52
    if any(panel.title != chart.title for panel in chart.panels):
        above += 18
    if not any(panel.up.name for panel in chart.panels):
        above -= 16
    columns = min(chart.size.columns, len(chart.panels))
    cell, row = left + chart.size.width + right, above + chart.size.height + below
    wide = max(columns * cell, 360)
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "class": "marks"})
    _add(svg, "title", chart.title)
    _add(svg, "desc", " ".join(panel.description for panel in chart.panels))
    SubElement(svg, "style").text = package_text("templates/marks.css")
    paper = _add(svg, "rect", class_="paper")
    down = 8.0
    for line in textwrap.wrap(chart.title, int(wide / 8.5)):
        down += 20
        _add(svg, "text", line, x=12, y=down, class_="title")
    for k, panel in enumerate(chart.panels):
        corner = (k % columns * cell + left, down + k // columns * row + above)
        _draw_panel(svg, panel, chart.title, (*corner, chart.size.width, chart.size.height))
    down = _draw_key(svg, chart.key, down + math.ceil(len(chart.panels) / columns) * row, wide)
    for line in (line for note in chart.notes for line in textwrap.wrap(note, int(wide / 6.3))):
        down += 17
        _add(svg, "text", line, x=12, y=down, class_="soft")
    size = {"width": f"{wide:g}", "height": f"{down + 14:g}"}
    for name, value in size.items():
        svg.set(name, value)
        paper.set(name, value)
    svg.set("viewBox", f"0 0 {size['width']} {size['height']}")
    svg.set("style", "max-width:100%;height:auto")
    return ElementTree.tostring(svg, encoding="unicode")


def _draw_panel(svg: Element, panel: Panel, title: str, box: tuple[float, float, float, float]) -> None:
    left, top, width, height = box
    panel.draw(svg, box)
    if panel.title != title:
        place = {"x": left + width / 2, "y": top - (24 if panel.up.name else 10), "text_anchor": "middle"}
        _add(svg, "text", panel.title, **place)
    _add(svg, "text", panel.up.name, x=12 if left < 150 else left - 24, y=top - 9, class_="soft")
    across = {"x": left + width, "y": top + height + 36, "text_anchor": "end"}
    _add(svg, "text", panel.across.name, class_="soft", **across)
    for value, text in panel.across.ticks:
        place = {"x": round(left + width * panel.x(value) / 100, 2), "y": top + height + 17}
        _add(svg, "text", text, class_="soft", text_anchor="middle", **place)
    for value, text in panel.up.ticks:
        place = {"x": left - 7, "y": round(top + height * panel.y(value) / 100 + 4, 2)}
        _add(svg, "text", text, class_="soft", text_anchor="end", **place)
    for mark in panel.points:
        ((a, b),) = mark.points
        at = (left + width * panel.x(a) / 100, top + height * panel.y(b) / 100)
        point = _draw_point(svg, at, mark.style, mark.colour, mark.shape, 2.6 if mark.style == "setting" else 4.6)
        if mark.title:
            _add(point, "title", mark.title)
        if mark.chosen:
            _add(svg, "circle", class_="ring", cx=round(at[0], 2), cy=round(at[1], 2), r=8.5)


def _draw_point(svg: Element, at: Pair, style: str, colour: int | None, shape: str, size: float) -> Element:
    point = _add(svg, "g", class_=_classes(style, colour), transform=f"translate({at[0]:.2f} {at[1]:.2f})")
    if shape == "circle":
        _add(point, "circle", r=size)
    else:
        corners = ((float(n) * size for n in corner.split(",")) for corner in SHAPES[shape].split())
        _add(point, "polygon", points=_pairs((a, b) for a, b in corners))
    return point


def _draw_key(svg: Element, key: Sequence[Key], down: float, wide: float) -> float:
    """The key in as many lines as it needs; returns where it ends."""
    across = 14.0
    for entry in key:
        needed = 42 + _CHARACTER * len(entry.name)
        if across + needed > wide and across > 14:
            across, down = 14.0, down + 20
        middle = (across + 9, down + 4)
        if entry.style in ("point", "hollow"):
            _draw_point(svg, middle, entry.style, entry.colour, entry.shape, 5)
        elif entry.style == "chosen":
            _add(svg, "circle", class_="ring", cx=middle[0], cy=middle[1], r=6)
        elif entry.style.startswith("bar"):
            _add(svg, "rect", class_=entry.classes, x=across, y=down - 1, width=18, height=10)
        else:
            upright = entry.style == "limit"
            (x1, y1), (x2, y2) = ((9, -4), (9, 12)) if upright else ((0, 4), (18, 4))
            _add(svg, "line", class_=entry.classes, x1=across + x1, x2=across + x2, y1=down + y1, y2=down + y2)
        _add(svg, "text", entry.name, x=across + 24, y=down + 8)
        across += needed
    return down + (14 if key else 0)


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


def percent_text(value: float, unit: str = " %", signed: bool = False) -> str:
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
