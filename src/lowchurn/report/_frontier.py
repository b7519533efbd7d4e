"""The frontier on the page: every setting that was tried, and a slider for those on a dial.

The slider only points at rows of the tables, so the numbers are there without it, on paper and without a script.
"""

from __future__ import annotations

import math
from typing import Any

from lowchurn._estimates import Estimate, paired_difference, undefined
from lowchurn.report._chart import Axis, Chart, percent_text, ticks
from lowchurn.report._figures import short, value_and_interval
from lowchurn.report._markup import Markup, data_table, section, tag
from lowchurn.report._tried import NOTHING, Figure, Point, Tried

COLOURS = 6
# A dial of more positions than this is folded: its ends, every tenth position and what is served stay in sight.
MOST_POSITIONS = 12
MOST_ROWS = 1e15  # more were never measured, and the interval is not computed for them
# Heads of the tables, and what the slider shows of them.
SHOWN = ("churn", "accuracy", "change", "broken", "fixed")
WORDS = {
    "churn": "changed",
    "accuracy": "accuracy",
    "change": "against the base",
    "broken": "broken",
    "fixed": "fixed",
}


def paired_change(p: Point) -> Estimate:
    """How much more accurate a setting is than the base on the same rows; undefined where its record lacks the rows.

    The accuracy's own interval says how well these rows stand for others, which is the same for every setting and
    for the base: it makes all of them look alike. The paired one rests on the broken and fixed rows alone.
    """
    fixed, broken = p.fixed.value, p.broken.value
    shares = p.fixed.known and p.broken.known and min(fixed, broken) >= 0 and fixed + broken <= 1 + 1e-9
    if not (shares and 0 < p.rows < MOST_ROWS):
        return undefined(why="the rows are not known")
    return paired_difference(fixed, broken, round(p.rows), effective=p.rows)


def accuracy_ends(p: Point) -> tuple[float, float]:
    """The base's accuracy plus the paired interval; twice the setting's own where there is none."""
    change = paired_change(p)
    if not change.defined:
        return p.accuracy.value, p.accuracy.value
    base = p.accuracy.value - change.value
    return base + change.low, base + change.high


def base_accuracy(points: list[Point]) -> float:
    """The base's accuracy, which all settings have to imply; NaN where they do not or where it is not known."""
    found = [p.accuracy.value - (p.fixed.value - p.broken.value) for p in points if p.fixed.known and p.broken.known]
    return found[0] if found and max(found) - min(found) < 1e-6 else math.nan


def frontier_section(tried: Tried) -> Markup:
    """Figure, sliders and tables; nothing where no setting was measured."""
    drawn = [p for p in tried.points if p.drawn]
    if not drawn:
        return Markup("")
    curves = tried.curves
    paired = any(paired_change(p).defined for p in drawn)
    said = ["Up is more accurate, left is fewer changed decisions."]
    if curves:
        said.append("The line is the dial between the base and the new model.")
    if paired:
        said.append(
            f"{'Bands and whiskers' if curves else 'Whiskers'} are the 95% interval of the change in accuracy against "
            "the base on the same rows (Tango): where one lies above the base's line, the setting is shown to be "
            "more accurate."
        )
    else:
        said.append("The change in accuracy against the base has no interval here: the rows behind it are not known.")
    strategies = list(dict.fromkeys(p.strategy for p in drawn))
    on_line = {tried.points[curve[-1]].strategy for curve in curves}
    key = [
        tag("li", short(name, 30), class_=f"s{i % COLOURS}{' line' if name in on_line else ''}")
        for i, name in enumerate(strategies)
        if name
    ]
    if any(p.chosen for p in drawn):
        key.append(tag("li", "served", class_="chosen"))
    base = base_accuracy(drawn)
    if not math.isnan(base):
        key.append(tag("li", f"base {_words(Figure(base))}", class_="base"))
    if not math.isnan(tried.budget):
        key.append(tag("li", f"budget {tried.churn_text(tried.budget)}", class_="budget"))
    return section(
        "frontier",
        "Frontier",
        tag("p", "Every setting that was tried when the candidate was chosen, on the rows held out for that."),
        tag("figure", _figure(tried, strategies), tag("ul", key, class_="key"), tag("figcaption", " ".join(said))),
        [_slider(tried, curve, f"dial{k}", len(curves) > 1) for k, curve in enumerate(curves, start=1)],
        _tables(tried),
    )


def _chart(tried: Tried, base: float) -> tuple[Chart, float]:
    """The axes, and the budget where it can be drawn."""
    drawn = [p for p in tried.points if p.drawn]
    right = 1.06 * max(p.churn.ends[1] for p in drawn) or 0.01
    # A budget far beyond all settings would press them into a corner.
    budget = tried.budget if tried.budget <= 1.5 * right else math.nan
    if not math.isnan(budget):
        right = max(right, 1.06 * budget)
    known = [v for p in drawn for v in accuracy_ends(p)] + ([] if math.isnan(base) else [base])
    low, high = min(known), max(known)
    pad = 0.08 * ((high - low) or 0.01)
    low, high = low - pad, high + pad
    name = "changed decisions →" if tried.hard else "soft churn (mean divergence) →"
    across = [(v, percent_text(v) if tried.hard else f"{v:.4g}") for v in ticks(0, right)]
    up = [(v, percent_text(v)) for v in ticks(low, high, 6)]
    return Chart(Axis(0.0, right, across, name), Axis(low, high, up, "↑ accuracy")), budget


def _figure(tried: Tried, strategies: list[str]) -> Markup:
    """Accuracy against churn: dials as lines with a band, everything else as points with whiskers."""
    drawn = [p for p in tried.points if p.drawn]
    base = base_accuracy(drawn)
    chart, budget = _chart(tried, base)
    shapes, dots = [], []
    if not math.isnan(base):
        y = f"{chart.y(base):g}"
        shapes.append(tag("line", x1="0", x2="100", y1=y, y2=y, class_="base"))
    if not math.isnan(budget):
        x = f"{chart.x(budget):g}"
        shapes.append(tag("line", x1=x, x2=x, y1="0", y2="100", class_="limit"))

    def colour(p: Point) -> str:
        return f"s{strategies.index(p.strategy) % COLOURS}"

    def cross(p: Point) -> str:
        """The path of both intervals."""
        (left, right), (low, high) = p.churn.ends, accuracy_ends(p)
        x, y = chart.x(p.churn.value), chart.y(p.accuracy.value)
        return f"M{chart.x(left):g} {y:g}H{chart.x(right):g}M{x:g} {chart.y(low):g}V{chart.y(high):g}"

    def dot(p: Point, class_: str, **attributes: Any) -> Markup:
        title = f"{p.name}: accuracy {p.accuracy.texts()[0]}, churn {p.churn.texts(tried.hard)[0]}"
        class_ += " chosen" if p.chosen else ""
        return chart.dot(p.churn.value, p.accuracy.value, title, class_=class_, **attributes)

    for curve in tried.curves:
        points = [tried.points[i] for i in curve]
        ends = [(p.churn.value, *accuracy_ends(p)) for p in points if paired_change(p).defined]
        if len(ends) > 1:
            band = [(x, high) for x, _, high in ends] + [(x, low) for x, low, _ in reversed(ends)]
            shapes.append(tag("polygon", points=chart.points(band), class_=f"band {colour(points[-1])}"))
        line = chart.points((p.churn.value, p.accuracy.value) for p in points)
        shapes.append(tag("polyline", points=line, class_=f"curve {colour(points[-1])}"))
    dialled = {i for curve in tried.curves for i in curve}
    for i, p in enumerate(tried.points):
        if p.drawn and i not in dialled:
            shapes.append(tag("path", d=cross(p), class_=f"error {colour(p)}"))
            dots.append(dot(p, f"point {colour(p)}"))
    for k, curve in enumerate(tried.curves, start=1):
        for at, p in enumerate(tried.points[i] for i in curve):
            place = {"data_dial": f"dial{k}", "data_at": str(at)}
            shapes.append(tag("path", d=cross(p), class_="setting", **place))
            dots.append(dot(p, f"setting {colour(tried.points[curve[-1]])}", **place))
    churns, accuracies = [p.churn.value for p in drawn], [p.accuracy.value for p in drawn]
    words = (
        f"{len(drawn)} settings; churn from {tried.churn_text(min(churns))} to {tried.churn_text(max(churns))}, "
        f"accuracy from {_words(Figure(min(accuracies)))} to {_words(Figure(max(accuracies)))}."
    )
    return chart.draw("Frontier: accuracy against churn", words, shapes, dots)


def _slider(tried: Tried, curve: list[int], name: str, several: bool) -> Markup:
    """A range input over the settings of a dial. It is hidden until the script that moves it runs."""
    which = f" of {tried.points[curve[-1]].strategy}" if several else ""
    heads = _columns(tried)
    cards = [
        tag(
            "li",
            tag("span", WORDS[what], class_="what"),
            tag("span", class_="figure", data_cell=str(heads.index(what))),
        )
        for what in heads
        if what in SHOWN
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


def _columns(tried: Tried) -> list[str]:
    paired = any(paired_change(p).defined for p in tried.points)
    shown = [what for what in SHOWN if what != "change" or paired]
    known = not math.isnan(tried.budget)
    return ["setting", *(["dial"] if tried.curves else []), *shown, *(["budget"] if known else []), "served"]


def _tables(tried: Tried) -> list[Markup]:
    """All settings; the positions of a long dial but for the ends, every tenth and what is served are folded."""
    folded = {
        i
        for curve in tried.curves
        if len(curve) > MOST_POSITIONS
        for at, i in enumerate(curve)
        if at % 10 and i != curve[-1] and not tried.points[i].chosen
    }
    caption = "Settings that were tried, each number with its interval where there is one"
    seen = [i for i in range(len(tried.points)) if i not in folded]
    tables = [_table(tried, seen, caption)]
    if folded:
        name = f"The other {len(folded)} positions of the dial{'s' if len(tried.curves) > 1 else ''}"
        tables.append(tag("details", tag("summary", name), _table(tried, sorted(folded), name)))
    return tables


def _table(tried: Tried, some: list[int], caption: str) -> Markup:
    heads = _columns(tried)
    rows = []
    for p in (tried.points[i] for i in some):
        cells: dict[str, Any] = {
            "setting": [p.name, tag("small", p.reason, class_="muted") if p.reason else ""],
            "dial": "" if math.isnan(p.dial) else f"{p.dial:.4g}",
            **{what: _cell(getattr(p, what), what != "churn" or tried.hard) for what in SHOWN if what != "change"},
            "budget": ("within" if tried.within(p) else "over") if p.churn.known else "",
            "served": "served" if p.chosen == 1 else f"{p.chosen:.0%} of the mixture" if p.chosen else "",
        }
        change = paired_change(p)
        if change.defined:  # then the accuracy's own interval has nothing to add
            cells["accuracy"] = p.accuracy.texts()[0]
            value, interval = value_and_interval(change, signed=True)
            cells["change"] = [*value, " ", tag("span", f"({interval})", class_="range")]
        else:
            cells["change"] = NOTHING
        rows.append([cells[name] for name in heads])
    shown = [WORDS.get(name, "" if name == "served" else name) for name in heads]
    numbers = [i for i, name in enumerate(heads) if name in (*SHOWN, "dial")]
    return data_table(caption, shown, rows, numbers=numbers, keys=some)


def _cell(figure: Figure, share: bool = True) -> list[Any]:
    value, interval = figure.texts(share)
    return [value, *([" ", tag("span", interval, class_="range")] if interval else [])]


def _words(figure: Figure, share: bool = True) -> str:
    return " ".join(filter(None, figure.texts(share)))
