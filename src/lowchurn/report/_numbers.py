"""The audit of numbers on the page: cards, slices, the histogram of moves, and old against new numbers."""

from __future__ import annotations

import math

import numpy as np

from lowchurn._charts import Axis, Chart, Key, Mark, Panel, Size, count_text, root_ticks, ticks
from lowchurn._display import interval_text, number_interval_text, number_text
from lowchurn.audit import NumberAudit
from lowchurn.audit._number_summary import figure_text, names, surest_slices, tolerance_text
from lowchurn.audit._words import p_equals, p_text
from lowchurn.report._figures import MOST_DRIVERS, MOST_TABLE_SLICES, NUMBERS, SHARES, Forest, Scale, forest
from lowchurn.report._flips import Flips, cell, head

CARDS = ("moved", "worse", "better", "loss_change", "mean_move", "mean_size")
MOST_CARDS = 4
SHADES = 6


def number_values(audit: NumberAudit) -> dict[str, object]:
    """What the templates need beyond what all audits share."""
    return {
        **_figures(audit),
        **_slices(audit),
        "moves": moves_chart(audit),
        "density": density_chart(audit),
        "flips": biggest_moves(audit),
    }


def _figures(audit: NumberAudit) -> dict[str, object]:
    words = names(audit)
    cards = []
    for name in [name for name in CARDS if name in words and getattr(audit, name).defined][:MOST_CARDS]:
        value, _, interval = figure_text(name, getattr(audit, name)).partition(" (")
        cards.append((words[name].partition(" (")[0], value, interval.rstrip(")")))
    test = ""
    if audit.loss_change.defined:
        p_value = f"p{p_equals(audit.paired_test.p_value)}".replace(" ", "\u00a0")
        method, loss = audit.paired_test.method, audit.compared.loss
        test = f"{method[0].upper()}{method[1:]}, two-sided, that the mean {loss} did not change: {p_value}."
    known = f"{audit.whole.counts.n['labelled']:,}"
    truth = "a target" if audit.columns.label is not None else f"a known {audit.compared.loss}"
    return {
        "cards": cards,
        "test": test,
        "rows_words": f"{audit.rows.paired:,} rows"
        + (f", {known} of them with {truth}." if audit.compared.loss else "."),
    }


def _slices(audit: NumberAudit) -> dict[str, object]:
    shown = surest_slices(audit)[:MOST_TABLE_SLICES]
    loss = audit.compared.loss
    heads, caption = ["slice", "rows", "moved", "median move"], "Slices"
    rows = [
        [s.name, f"{s.rows:,}", interval_text(s.moved), number_interval_text(s.quantiles["0.5"], signed=True)]
        for s in shown
    ]
    if loss is not None:
        heads += ["worse", "mean before", "change in the mean", "q"]
        caption = f"Slices, those with the surest change in the mean {loss} first"
        for row, s in zip(rows, shown, strict=True):
            row += [interval_text(s.worse), number_text(s.loss_old.value)]
            row += [number_interval_text(s.loss_change, signed=True), p_text(s.q_value)]
    return {
        "forests": _forests(audit) if shown else [],
        "slice_heads": heads,
        "slice_rows": rows,
        "slice_caption": caption,
        "slice_numbers": (1, 5, 7),
        "drivers": [
            (s.name, f"{s.rows:,}", interval_text(s.moved), f"{s.lift:.2f}", f"{s.excess:,.0f}", p_text(s.flips_q))
            for s in audit.drivers[:MOST_DRIVERS]
        ],
        "driver_heads": ("slice or bin", "rows", "moved", "times the overall rate", "moves in excess", "q"),
        "driver_caption": "Where more numbers move than chance would have it (false-discovery rate 5 %)",
        "no_drivers": "No slice or feature bin contains more moves than chance would put there "
        "(false-discovery rate 5 %).",
    }


def _forests(audit: NumberAudit) -> list[Forest]:
    made = []
    if audit.loss_change.defined:
        overall = audit.loss_change.value
        harm = "Left" if audit.compared.gain else "Right"
        caption = f"With its interval. {harm} of zero is worse; dashed: all rows, {number_text(overall, signed=True)}."
        scale = Scale(NUMBERS.text, NUMBERS.tick, signed=True, up_is_good=audit.compared.gain)
        title = f"Change in the mean {audit.compared.loss}"
        made.append(forest(title, caption, audit.slices, "loss_change", overall, scale))
    caption = f"Share of rows, with its interval; dashed: all rows, {interval_text(audit.moved).partition(' (')[0]}."
    return [*made, forest(f"Moved {tolerance_text(audit)}", caption, audit.slices, "moved", audit.moved.value, SHARES)]


def moves_chart(audit: NumberAudit) -> Chart:
    """Rows by their move, on a root scale: often most of them hardly move."""
    edges, rows = audit.histogram.edges, audit.histogram.rows
    most = float(max(rows.max(), 1))
    up = Axis(0.0, most, [(v, count_text(v)) for v in root_ticks(most)], "↑ rows in a bin (square-root scale)", "root")
    low, high = float(edges[0]), float(edges[-1])
    across = Axis(low, high, _ticks(low, high), "move: new less old →")
    marks = []
    for start, end, n in zip(edges, edges[1:], rows, strict=False):
        style = "bar-old" if start < 0 < end else "bar-rose" if start >= 0 else "bar-fell"
        if n:
            marks.append(Mark("bar", [(float(start), float(end)), (0.0, float(n))], style))
    tolerance = audit.compared.tolerance
    limits = [] if audit.compared.relative or not tolerance else [v for v in (-tolerance, tolerance) if low < v < high]
    marks += [Mark("rule", [(limit,)], "limit", along="across") for limit in limits]
    title = "Moves"
    described = f"Histogram of {int(rows.sum()):,} moves in {len(rows)} bins: " + "; ".join(
        f"{start:.3g} to {end:.3g}: {int(n):,}" for start, end, n in zip(edges, edges[1:], rows, strict=False) if n
    )
    notes = ["Rows by how far their number moved. The first and the last bar also contain what lies beyond them."]
    key = [Key(f"tolerance {tolerance:.6g}", "limit")] if limits else []
    return Chart(title, [Panel(across, up, marks, title, described + ".")], key, notes)


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Ticks of an axis of numbers, short however large they are; none so near to the end that it would be cut."""
    found = [v for v in ticks(low, high, 5) if not 0.94 < (v - low) / (high - low) < 0.98]
    return [(v, _short(v)) for v in found]


def _short(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{'-' if value < 0 else ''}{count_text(abs(value))}"


def density_chart(audit: NumberAudit) -> Chart:
    """Rows by old and new number: on the line nothing moved."""
    shift = audit.density
    low, high = float(shift.edges[0]), float(shift.edges[-1])
    places = _ticks(low, high)
    largest = max(int(shift.joint.max()), 1)
    marks = []
    for i, j in np.argwhere(shift.joint > 0).tolist():
        part = math.log1p(float(shift.joint[i, j])) / math.log1p(largest)
        box = [(float(shift.edges[k]), float(shift.edges[k + 1])) for k in (i, j)]
        shade = min(SHADES, 1 + int(SHADES * part))
        marks.append(Mark("cell", box, f"shade shade{shade}", title=f"{int(shift.joint[i, j]):,} rows"))
    marks.append(Mark("line", [(low, low), (high, high)], "limit"))
    title = "Old against new"
    described = (
        f"Rows by old and new number, {len(shift.joint)} bins each from {low:.4g} to {high:.4g}: "
        f"{int(shift.joint.trace()):,} stay in their bin, {int(np.triu(shift.joint, 1).sum()):,} rise to a higher one, "
        f"{int(np.tril(shift.joint, -1).sum()):,} fall to a lower one."
    )
    notes = [f"{described} Darker: more rows (logarithmic shades). On the dashed line nothing moved."]
    panel = Panel(Axis(low, high, places, "old →"), Axis(low, high, places, "↑ new"), marks, title, described)
    return Chart(title, [panel], notes=notes, size=Size(380, 380, rem=24))


def biggest_moves(audit: NumberAudit) -> Flips:
    """The biggest moves that the audit kept."""
    columns = list(dict.fromkeys(name for flip in audit.flips for name in flip if name != "kind"))
    known = audit.compared.loss is not None
    ours = {
        "old": "old",
        "new": "new",
        "move": "move",
        "target": "target",
        "old loss": "old loss",
        "new loss": "new loss",
    }
    heads = [*(["kind"] if known else []), *(head(name, ours) for name in columns)]
    rows = [(str(flip.get("kind", "")), [cell(flip.get(name)) for name in columns]) for flip in audit.flips]
    total, size = audit.whole.counts.n["changed"], len(rows)
    noun = "items that moved" if audit.coverage is not None else "moves"
    caption = (
        f"The {size:,} biggest of {total:,} {noun}" if size < total else f"All {total:,} {noun}, the biggest first"
    )
    empty = f"{total:,} numbers moved; no examples were kept." if total else f"No number moved {tolerance_text(audit)}."
    return Flips(heads, rows, known, total, "Biggest moves", caption, empty)
