"""The frontier as a chart: accuracy against churn, dials as curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lowchurn import _charts as charts
from lowchurn._checks import check_choice, check_number
from lowchurn._files import write_file
from lowchurn.estimator._frontier import Candidate
from lowchurn.metrics import dial_curves
from lowchurn.strategies import ALL

WHO = "Frontier.plot"
# What strategies get that the paper does not have: the darker colours first.
SPARE = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#D55E00", "#999999", "#000000")


def plot_frontier(
    candidates: Sequence[Candidate],
    path: str | Path | None = None,
    served: Mapping[str, float] | None = None,
    max_churn: float | None = None,
    churn: str = "hard",
) -> Any:
    """Draw :meth:`Frontier.plot`."""
    check_choice(WHO, "churn", churn, ("hard", "soft"))
    if max_churn is not None:
        check_number(WHO, "max_churn", max_churn, 0, math.inf)
    if path is not None and Path(path).suffix not in charts.WRITERS:
        raise ValueError(f"{WHO}: path must end in {', '.join(charts.WRITERS)}, got {str(path)!r}.")
    rows = frontier_rows(candidates, served or {})
    if not rows:
        raise ValueError(
            f"{WHO}: there must be a candidate with a measured accuracy and churn, got {len(candidates)} without. "
            "Fit with a base: without one there is no churn."
        )
    chart = _chart(rows, max_churn, hard=churn == "hard")
    if path is not None:
        write_file(path, charts.rendered(chart, Path(path).suffix))
    return chart


def frontier_rows(candidates: Sequence[Candidate], served: Mapping[str, float]) -> list[dict[str, Any]]:
    """A row for every point that is drawn; one that ends several dials is a row of each. Unknown is None."""
    measured = [c for c in candidates if math.isfinite(c.accuracy) and math.isfinite(c.churn)]
    curves = dial_curves([c.dial for c in measured], [c.strategy for c in measured], [c.setting for c in measured])
    on_dials = {i for curve in curves for i in curve}
    rows = [_row(c, served) for i, c in enumerate(measured) if i not in on_dials]
    for k, curve in enumerate(curves):
        shown = measured[curve[0]].strategy  # the base at the end of a curve is of its colour
        rows += [_row(measured[i], served) | {"strategy": shown, "curve": f"dial {k + 1}"} for i in curve]
    return rows


def _row(c: Candidate, served: Mapping[str, float]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": c.name, "strategy": c.strategy, "curve": None, "served": c.name in served}
    for name in ("accuracy", "churn", "broken", "fixed", "dial"):
        row[name] = _known(getattr(c, name))
    for name in ("accuracy", "churn"):
        row[f"{name}_low"], row[f"{name}_high"] = map(_known, getattr(c, f"{name}_interval"))
    return row


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def colours(names: Iterable[str]) -> dict[str, str]:
    """The paper's strategies in the colours that they have in the benchmark, others in those that are left."""
    paper = dict(zip((cls.name for cls in ALL), charts.COLOURS, strict=False))
    names = list(dict.fromkeys(names))
    chosen = {name: paper[name] for name in names if name in paper}
    free = [colour for colour in SPARE if colour not in chosen.values()] or list(SPARE)
    others = [name for name in names if name not in paper]
    return {**chosen, **{name: free[k % len(free)] for k, name in enumerate(others)}}


def _chart(rows: list[dict[str, Any]], max_churn: float | None, hard: bool) -> Any:
    alt = charts.altair()
    by_name = colours(row["strategy"] for row in rows)
    legend = alt.Legend(symbolOpacity=1)
    shades = alt.Scale(domain=list(by_name), range=list(by_name.values()))
    forms = alt.Scale(domain=list(by_name), range=[charts.SHAPES[k % len(charts.SHAPES)] for k in range(len(by_name))])
    colour = alt.Color("strategy:N", scale=shades, title=None, legend=legend)
    shape = alt.Shape("strategy:N", scale=forms, title=None, legend=legend)
    across = "churn: share of changed decisions" if hard else "soft churn: mean divergence from the base"
    number = ".3~%" if hard else ".3~g"
    x = alt.X("churn:Q", title=across, axis=alt.Axis(format=number), scale=alt.Scale(nice=False, padding=12))
    y = alt.Y("accuracy:Q", title="accuracy", axis=alt.Axis(format=".3~%"), scale=alt.Scale(zero=False))
    place = {"x": x, "y": y, "color": colour}
    shown = {"churn": number.replace("3", "4")} | dict.fromkeys(("accuracy", "broken", "fixed"), ".4~%")
    tooltip = [alt.Tooltip("name:N", title="candidate")]
    for name, form in shown.items():
        ends = ("", "_low", "_high") if name in ("churn", "accuracy") else ("",)
        tooltip += [alt.Tooltip(f"{name}{end}:Q", title=f"{name}{end.replace('_', ', ')}", format=form) for end in ends]

    def chart(some: list[dict[str, Any]]) -> Any:
        return alt.Chart(alt.Data(values=some))

    def interval(some: list[dict[str, Any]], name: str) -> Any:
        """From the lower end, under the name that the axis has; rows without an interval have no mark."""
        known = [row for row in some if row[f"{name}_low"] is not None and row[f"{name}_high"] is not None]
        return chart(known).transform_calculate(**{name: f"datum.{name}_low"})

    layers = []
    single = [row for row in rows if row["curve"] is None]
    dialled = [row for row in rows if row["curve"] is not None]
    served = [row for row in rows if row["served"]]
    if max_churn is not None:
        words = f"budget {100 * max_churn:.4g}%" if hard else f"budget {max_churn:.4g}"
        budget = chart([{"churn": max_churn, "words": words}])
        layers += [
            budget.mark_rule(color=charts.FAINT, strokeDash=[4, 4], strokeWidth=1.5).encode(x=x),
            budget.mark_text(align="left", baseline="top", dx=5).encode(x=x, y=alt.value(4), text="words:N"),
        ]
    if dialled:
        layers += [
            interval(dialled, "accuracy")
            .mark_area(opacity=0.16)
            .encode(**place, y2="accuracy_high:Q", detail="curve:N"),
            interval(dialled, "churn").mark_rule(opacity=0.35).encode(**place, x2="churn_high:Q"),
            chart(dialled).mark_line(strokeWidth=2.2).encode(**place, detail="curve:N", order="dial:Q"),
            chart(dialled).mark_point(filled=True, size=30, opacity=1).encode(**place, shape=shape, tooltip=tooltip),
        ]
    if single:
        layers += [
            interval(single, "accuracy").mark_rule(opacity=0.6).encode(**place, y2="accuracy_high:Q"),
            interval(single, "churn").mark_rule(opacity=0.6).encode(**place, x2="churn_high:Q"),
            chart(single).mark_point(filled=True, size=75, opacity=1).encode(**place, shape=shape, tooltip=tooltip),
        ]
    if served:
        ring = chart(served).mark_point(shape="circle", size=210, strokeWidth=2, color="#000000", opacity=1)
        layers.append(ring.encode(x=x, y=y, tooltip=tooltip))
    notes = ["line and band: the dial with the interval of its accuracy"] if dialled else []
    notes += ["ring: what is served"] if served else []
    title = alt.Title("Accuracy against churn", subtitle="; ".join(notes))
    return charts.styled(alt.layer(*layers).properties(width=520, height=320), title)
