"""The frontier on the page: every setting that was tried, and a slider for those on a dial.

The slider only points at rows of the table, so the numbers are there without it, on paper and without a script.
"""

from __future__ import annotations

import math
from typing import Any

from lowchurn.report.figures import short, svg, tick_text, ticks
from lowchurn.report.markup import Markup, data_table, section, tag
from lowchurn.report.tried import Figure, Point, Tried

LEFT, TOP, WIDE, TALL = 66.0, 30.0, 640.0, 290.0
COLOURS = 6
# Heads of the table, and what the slider shows of them.
SHOWN = ("churn", "accuracy", "broken", "fixed")
WORDS = {"churn": "changed", "accuracy": "accuracy", "broken": "broken", "fixed": "fixed"}


def frontier_section(tried: Tried) -> Markup:
    """Figure, sliders and table; nothing where no setting was measured."""
    drawn = [p for p in tried.points if p.drawn]
    if not drawn:
        return Markup("")
    curves = tried.curves
    caption = "Up is more accurate, left is fewer changed decisions."
    if curves:
        caption += " The line is the dial between the base and the new model, its band the interval of the accuracy."
    strategies = list(dict.fromkeys(p.strategy for p in drawn))
    on_line = {tried.points[curve[-1]].strategy for curve in curves}
    key = [
        tag("li", short(name, 30), class_=f"s{i % COLOURS}{' line' if name in on_line else ''}")
        for i, name in enumerate(strategies)
        if name
    ]
    if any(p.chosen for p in drawn):
        key.append(tag("li", "served", class_="chosen"))
    if not math.isnan(tried.budget):
        key.append(tag("li", f"budget {tried.churn_text(tried.budget)}", class_="budget"))
    return section(
        "frontier",
        "Frontier",
        tag("p", "Every setting that was tried when the candidate was chosen, on the rows held out for that."),
        tag("figure", _figure(tried, strategies, curves), tag("ul", key, class_="key"), tag("figcaption", caption)),
        [_slider(tried, curve, f"dial{k}", len(curves) > 1) for k, curve in enumerate(curves, start=1)],
        _table(tried, dial=bool(curves)),
    )


class Frame:
    """Where numbers lie on the figure."""

    def __init__(self, tried: Tried) -> None:
        drawn = [p for p in tried.points if p.drawn]
        self.high_x = 1.06 * max(p.churn.ends[1] for p in drawn) or 0.01
        # A budget far beyond all settings would press them into a corner.
        self.budget = tried.budget if tried.budget <= 1.5 * self.high_x else math.nan
        if not math.isnan(self.budget):
            self.high_x = max(self.high_x, 1.06 * self.budget)
        low = min(p.accuracy.ends[0] for p in drawn)
        high = max(p.accuracy.ends[1] for p in drawn)
        pad = 0.08 * ((high - low) or 0.01)
        self.low_y, self.high_y = low - pad, high + pad

    def x(self, churn: float) -> str:
        return f"{LEFT + WIDE * churn / self.high_x:.1f}"

    def y(self, accuracy: float) -> str:
        return f"{TOP + TALL * (self.high_y - accuracy) / (self.high_y - self.low_y):.1f}"

    def cross(self, p: Point) -> str:
        """The path of both intervals."""
        (left, right), (low, high) = p.churn.ends, p.accuracy.ends
        x, y = self.x(p.churn.value), self.y(p.accuracy.value)
        return f"M{self.x(left)} {y}H{self.x(right)}M{x} {self.y(low)}V{self.y(high)}"


def _figure(tried: Tried, strategies: list[str], curves: list[list[int]]) -> Markup:
    """Accuracy against churn: dials as lines with a band, everything else as points with whiskers."""
    frame = Frame(tried)
    bottom, right = f"{TOP + TALL:g}", f"{LEFT + WIDE:g}"
    parts: list[Any] = []
    for tick in ticks(0, frame.high_x):
        x = frame.x(tick)
        words = tick_text(tick) if tried.hard else f"{tick:.4g}"
        parts += [
            tag("line", x1=x, x2=x, y1=f"{TOP:g}", y2=bottom, class_="grid"),
            tag("text", words, x=x, y=f"{TOP + TALL + 20:g}", text_anchor="middle", class_="tick"),
        ]
    for tick in ticks(frame.low_y, frame.high_y, 7):
        y = float(frame.y(tick))
        parts += [
            tag("line", x1=f"{LEFT:g}", x2=right, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid"),
            tag("text", tick_text(tick), x=f"{LEFT - 8:g}", y=f"{y + 4:.1f}", text_anchor="end", class_="tick"),
        ]
    across = "changed decisions →" if tried.hard else "soft churn (mean divergence) →"
    parts += [
        tag("text", "↑ accuracy", x="4", y="16", class_="name"),
        tag("text", across, x=right, y=f"{TOP + TALL + 46:g}", text_anchor="end", class_="name"),
    ]
    if not math.isnan(frame.budget):
        x = frame.x(frame.budget)
        parts.append(tag("line", x1=x, x2=x, y1=f"{TOP:g}", y2=bottom, class_="limit"))

    def colour(p: Point) -> str:
        return f"s{strategies.index(p.strategy) % COLOURS}"

    for curve in curves:
        points = [tried.points[i] for i in curve]
        upper = [f"{frame.x(p.churn.value)},{frame.y(p.accuracy.ends[1])}" for p in points]
        lower = [f"{frame.x(p.churn.value)},{frame.y(p.accuracy.ends[0])}" for p in reversed(points)]
        line = " ".join(f"{frame.x(p.churn.value)},{frame.y(p.accuracy.value)}" for p in points)
        parts += [
            tag("polygon", points=" ".join(upper + lower), class_=f"band {colour(points[-1])}"),
            tag("polyline", points=line, class_=f"curve {colour(points[-1])}"),
        ]
    dialled = {i for curve in curves for i in curve}
    for i, p in enumerate(tried.points):
        if p.drawn and i not in dialled:
            parts += [
                tag("path", d=frame.cross(p), class_=f"error {colour(p)}"),
                _dot(frame, p, tried, f"point {colour(p)}", 7 if p.chosen else 5),
            ]
    for k, curve in enumerate(curves, start=1):
        for p in (tried.points[i] for i in curve):
            parts.append(
                tag(
                    "g",
                    tag("path", d=frame.cross(p)),
                    tag("circle", cx=frame.x(p.churn.value), cy=frame.y(p.accuracy.value), r="10"),
                    _dot(frame, p, tried, "point", 6 if p.chosen else 3.5),
                    class_=f"setting {colour(tried.points[curve[-1]])}",
                    data_dial=f"dial{k}",
                )
            )
    drawn = [p for p in tried.points if p.drawn]
    churns, accuracies = [p.churn.value for p in drawn], [p.accuracy.value for p in drawn]
    words = (
        f"{len(drawn)} settings; churn from {tried.churn_text(min(churns))} to {tried.churn_text(max(churns))}, "
        f"accuracy from {_words(Figure(min(accuracies)))} to {_words(Figure(max(accuracies)))}."
    )
    return svg(LEFT + WIDE + 14, TOP + TALL + 54, "Frontier: accuracy against churn", words, *parts)


def _dot(frame: Frame, p: Point, tried: Tried, class_: str, radius: float) -> Markup:
    label = f"{p.name}: accuracy {_words(p.accuracy)}, churn {_words(p.churn, tried.hard)}"
    return tag(
        "circle",
        tag("title", label),
        cx=frame.x(p.churn.value),
        cy=frame.y(p.accuracy.value),
        r=f"{radius:g}",
        class_=f"{class_}{' chosen' if p.chosen else ''}",
    )


def _slider(tried: Tried, curve: list[int], name: str, several: bool) -> Markup:
    """A range input over the settings of a dial. It is hidden until the script that moves it runs."""
    which = f" of {tried.points[curve[-1]].strategy}" if several else ""
    heads = _columns(tried, dial=True)
    cards = [
        tag(
            "li",
            tag("span", WORDS[what], class_="what"),
            tag("span", class_="figure", data_cell=str(heads.index(what))),
        )
        for what in SHOWN
    ]
    said: list[Any] = [tag("strong", data_cell="0"), " "]
    if "budget" in heads:
        said += [tag("span", data_cell=str(heads.index("budget"))), f" the budget of {tried.churn_text(tried.budget)} "]
    said.append(tag("em", data_cell=str(heads.index("served"))))
    return tag(
        "div",
        tag("label", f"Dial{which}: from the base to the new model", for_=name),
        tag(
            "input",
            type="range",
            id=name,
            min="0",
            max=str(len(curve) - 1),
            step="1",
            value=str(_start(tried, curve)),
            autocomplete="off",
            data_rows=" ".join(map(str, curve)),
        ),
        tag(
            "div",
            tag("span", "base: fewest changes"),
            tag("span", "new model: most"),
            class_="ends",
            aria_hidden="true",
        ),
        tag(
            "div",
            tag("p", said, class_="named"),
            tag("ul", cards, class_="cards"),
            role="status",
            aria_live="polite",
            aria_atomic="true",
        ),
        class_="dial",
        hidden=True,
    )


def _start(tried: Tried, curve: list[int]) -> int:
    """Where the slider starts: at what is served, else the most accurate within the budget, else the new model."""
    points = [tried.points[i] for i in curve]
    served = max(range(len(points)), key=lambda k: points[k].chosen)
    if points[served].chosen:
        return served
    within = [k for k, p in enumerate(points) if tried.within(p)]
    return max(within, key=lambda k: points[k].accuracy.value, default=len(points) - 1)


def _columns(tried: Tried, dial: bool) -> list[str]:
    known = not math.isnan(tried.budget)
    return ["setting", *(["dial"] if dial else []), *SHOWN, *(["budget"] if known else []), "served"]


def _table(tried: Tried, dial: bool) -> Markup:
    heads = _columns(tried, dial)
    rows = []
    for p in tried.points:
        cells: dict[str, Any] = {
            "setting": p.name,
            "dial": "" if math.isnan(p.dial) else f"{p.dial:.4g}",
            **{what: _cell(getattr(p, what), what != "churn" or tried.hard) for what in SHOWN},
            "budget": ("within" if tried.within(p) else "over") if p.churn.known else "",
            "served": p.reason or ("served" if p.chosen == 1 else f"{p.chosen:.0%} of the mixture" if p.chosen else ""),
        }
        rows.append([cells[name] for name in heads])
    shown = [WORDS.get(name, "" if name == "served" else name) for name in heads]
    numbers = [i for i, name in enumerate(heads) if name in (*SHOWN, "dial")]
    caption = "Settings that were tried, each number with its interval where there is one"
    return data_table(caption, shown, rows, numbers=numbers, class_="scroll tall")


def _cell(figure: Figure, share: bool = True) -> list[Any]:
    value, interval = figure.texts(share)
    return [value, *([" ", tag("span", interval, class_="range")] if interval else [])]


def _words(figure: Figure, share: bool = True) -> str:
    return " ".join(filter(None, figure.texts(share)))
