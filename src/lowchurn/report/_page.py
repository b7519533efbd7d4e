"""The report: one self-contained HTML page, the verdict first. Nothing is loaded from anywhere."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from lowchurn._display import brief_share, interval_text
from lowchurn._files import write_file
from lowchurn._html import package_text, render
from lowchurn._tried import read_tried, value_and_interval
from lowchurn.audit import Audit, History, NumberAudit, Verdict
from lowchurn.audit._audited import Outcome
from lowchurn.audit._gate import FAIL, INCONCLUSIVE, PASS
from lowchurn.audit._result import Shift
from lowchurn.audit._review import Review, ReviewPlan
from lowchurn.audit._summary import figures, headline
from lowchurn.audit._words import HEADLINES, p_equals, p_text
from lowchurn.report._figures import (
    MOST_DRIVERS,
    MOST_TABLE_SLICES,
    flip_matrix,
    forests,
    moves_chart,
    shift_chart,
)
from lowchurn.report._flips import changed_rows
from lowchurn.report._frontier import frontier_view
from lowchurn.report._history import history_page
from lowchurn.report._numbers import number_values

MOST_CHECKS = 200
NO_BREAK = "\u00a0"
CARDS = {"churn": "changed decisions", "broken": "broken", "fixed": "fixed", "accuracy_change": "change in accuracy"}
# A template per section, in the order of the page.
SECTIONS = {
    "verdict": "Verdict",
    "audited": "What was audited",
    "figures": "Figures",
    "matrix": "Flip matrix",
    "slices": "Slices",
    "drivers": "Drivers of change",
    "scores": "Score shift",
    "frontier": "Frontier",
    "flips": "Changed rows",
    "review": "Review plan",
    "made": "How this was made",
}
NUMBER_SECTIONS = {
    "verdict": "Verdict",
    "audited": "What was audited",
    "figures": "Figures",
    "moves": "How numbers moved",
    "slices": "Slices",
    "drivers": "Drivers of change",
    "flips": "Biggest moves",
    "made": "How this was made",
}


def write_html(
    path: str | Path, audit: Audit | NumberAudit | History, verdict: Verdict | None = None, **extras: Any
) -> None:
    """Write :func:`html_page` to a file, whole or not at all.

    Examples
    --------
    >>> import pandas as pd, tempfile, pathlib
    >>> from lowchurn.audit import audit
    >>> from lowchurn.report import write_html
    >>> rows = pd.DataFrame({"id": [1, 2], "prediction": ["a", "b"]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "report.html"
    ...     write_html(path, audit(rows, rows))
    ...     path.stat().st_size < 2_000_000
    True
    """
    write_file(path, html_page(audit, verdict, **extras))


def html_page(
    audit: Audit | NumberAudit | History,
    verdict: Verdict | None = None,
    *,
    plan: ReviewPlan | None = None,
    review: Review | None = None,
    frontier: object = None,
    title: str | None = None,
) -> str:
    """An audit or a history of releases as one HTML page that needs nothing else.

    Parameters
    ----------
    audit : Audit, NumberAudit or History
        Of numbers the page takes a verdict and a title, of a history no more than a title.
    verdict : Verdict, optional
        The judgement of the gate.
    plan : ReviewPlan, optional
        By default the plan for a margin of half a percentage point. It is left out where every row has its label.
    review : Review, optional
        The result of labelled disagreements.
    frontier : list, mapping or fitted LowChurnClassifier, optional
        Settings that were tried: the model itself, its ``frontier_`` or that as records, the report of
        ``lowchurn retrain``, or any list of mappings with ``churn`` and ``accuracy`` and, where known, ``strategy``,
        ``parameters`` (or ``setting``, these in words), ``broken``, ``fixed``, ``rows`` (held-out rows, without which
        the change in accuracy against the base has no interval, unless it is there as ``accuracy_change_interval``),
        ``dial`` (0 for the new model, 1 for the base), ``models`` that answer every row, ``chosen``, and intervals
        such as ``churn_interval`` or ``churn_low`` and ``churn_high``. Settings on a curve get a slider. Without any
        accuracy the page shows churn along the curves.
    title : str, optional
        By default "Model audit", "Evaluation runs" of a comparison of runs, or "Model history".

    Examples
    --------
    >>> import pandas as pd
    >>> from lowchurn.audit import audit
    >>> from lowchurn.report import html_page
    >>> rows = pd.DataFrame({"id": [1, 2], "prediction": ["a", "<script>"]})
    >>> page = html_page(audit(rows, rows))
    >>> "identical to the base" in page
    True
    """
    if isinstance(audit, History):
        if any(extra is not None for extra in (verdict, plan, review, frontier)):
            raise ValueError("report: the page of a history takes a title only; limits are judged by an audit.")
        return history_page(audit, title or "Model history", policy=_policy())
    if isinstance(audit, NumberAudit):
        if any(extra is not None for extra in (plan, review, frontier)):
            raise ValueError("report: the page of numbers takes a verdict and a title; a review is about decisions.")
        return _page(audit, verdict, title, NUMBER_SECTIONS, number_values(audit) | {"headline": headline(audit)})
    tried = read_tried(frontier, None if verdict is None else verdict.gate.max_churn)
    values: dict[str, object] = {
        "review": review,
        "plan": audit.review_plan() if plan is None else plan,
        "headline": headline(audit, review),
        "matrix": flip_matrix(audit),
        "flips": changed_rows(audit),
        "frontier": frontier_view(tried) if tried.drawn else None,
    }
    values |= _figures(audit) | _slices(audit)
    if audit.shift is not None:
        values |= _scores(audit, audit.shift)
    # What is missing leaves no section.
    absent = {
        "scores": audit.shift is None,
        "frontier": not tried.drawn,
        "review": review is None and audit.fully_labelled,
    }
    sections = {name: heading for name, heading in SECTIONS.items() if not absent.get(name)}
    return _page(audit, verdict, title, sections, values)


def _page(
    audit: Outcome,
    verdict: Verdict | None,
    title: str | None,
    sections: Mapping[str, str],
    values: Mapping[str, object],
) -> str:
    """What all audits have on their page, and the values of their own."""
    absent = {"slices": not audit.slices, "drivers": not audit.judged}
    found = figures(audit)
    common: dict[str, object] = {
        "audit": audit,
        "verdict": verdict,
        "title": title or ("Model audit" if audit.coverage is None else "Evaluation runs"),
        "sections": {name: heading for name, heading in sections.items() if not absent.get(name)},
        "policy": _policy(),
        "level": brief_share(audit.confidence),
        "made": audit.made(),
        "truth": audit.columns.truth,
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "figures": [(what, shown, f"{e.n:,}", e.method) for what, e, shown in found if e.defined],
        "undefined": [what.partition(" (")[0] for what, e, _ in found if not e.defined],
    }
    common |= _verdict(verdict) | _audited(audit)
    return render("report/templates/page.html.jinja", **common, **values) + "\n"


def _policy() -> str:
    """Only this very script may run: should data ever get past the escaping, the browser still refuses it."""
    digest = base64.b64encode(hashlib.sha256(package_text("report/page.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _verdict(verdict: Verdict | None) -> dict[str, object]:
    if verdict is None:
        return {}
    order = (FAIL, INCONCLUSIVE, PASS)
    checks = sorted(verdict.checks, key=lambda check: order.index(check.outcome))[:MOST_CHECKS]
    return {"lead": HEADLINES[verdict.outcome], "checks": checks}


def _audited(audit: Outcome) -> dict[str, object]:
    """Both models in one line, each of them, and the settings that are not the default."""
    source, made = audit.provenance, audit.made()
    names = [side.name or (PurePath(side.path).name if side.path else "") for side in (source.old, source.new)]
    sides = [
        {
            "title": title,
            "source": getattr(source, side),
            "table": made[side],
            "rows": getattr(source, side).rows,
            "decision": made[f"decision_{side}"],
        }
        for title, side in (("Base (old)", "old"), ("Candidate (new)", "new"))
    ]
    settings = [
        (name, _value(value), "configuration file" if name in source.from_config else "given")
        for name, value in source.settings.items()
    ]
    compared = f"{names[0] or 'base'} → {names[1] or 'candidate'}" if any(names) else ""
    return {"compared": compared, "provenance": source, "sides": sides, "settings": settings}


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} = {_value(part)}" for name, part in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _figures(audit: Audit) -> dict[str, object]:
    cards = [
        (what if audit.coverage is None else what.replace("decisions", "outcomes"), value, interval.strip("()"))
        for name, what in CARDS.items()
        for value, interval in [value_and_interval(getattr(audit, name), signed=name == "accuracy_change")]
        if getattr(audit, name).defined
    ]
    test = ""
    if audit.accuracy_change.defined:
        p_value = f"p{p_equals(audit.mcnemar.p_value)}".replace(" ", NO_BREAK)
        test = f"{audit.mcnemar.method}, two-sided, that as many rows were fixed as broken: {p_value}."
    rows = f"{audit.rows.paired:,} rows, {audit.rows.labelled:,} of them with a label."
    return {"cards": cards, "test": test, "rows_words": rows}


def _slices(audit: Audit) -> dict[str, object]:
    shown = sorted(audit.slices, key=lambda s: (math.isnan(s.q_value), s.q_value))[:MOST_TABLE_SLICES]
    heads = ["slice", "rows", "changed"]
    rows = [[s.name, f"{s.rows:,}", interval_text(s.churn)] for s in shown]
    caption = "Slices"
    if audit.accuracy_change.defined:
        heads += ["broken", "change in accuracy", "q"]
        caption = "Slices, those with the surest change in accuracy first"
        for row, s in zip(rows, shown, strict=True):
            row += [interval_text(s.broken), interval_text(s.accuracy_change, signed=True), p_text(s.q_value)]
    drivers = [
        (s.name, f"{s.rows:,}", interval_text(s.churn), f"{s.lift:.2f}", f"{s.excess:,.0f}", p_text(s.flips_q))
        for s in audit.drivers[:MOST_DRIVERS]
    ]
    return {
        "forests": forests(audit.slices, audit.churn, audit.accuracy_change) if audit.slices else [],
        "slice_heads": heads,
        "slice_rows": rows,
        "slice_caption": caption,
        "slice_numbers": (1, 5),
        "drivers": drivers,
        "driver_heads": ("slice or bin", "rows", "changed", "times the overall rate", "flips in excess", "q"),
        "driver_caption": "Where more decisions flip than chance would have it (false-discovery rate 5 %)",
        "no_drivers": "No slice or feature bin contains more flips than chance would put there "
        "(false-discovery rate 5 %).",
    }


def _scores(audit: Audit, shift: Shift) -> dict[str, object]:
    rose, fell = (int(part.sum()) for part in (np.triu(shift.joint, 1), np.tril(shift.joint, -1)))
    text = f"{audit.moved or 0:,} of {audit.rows.paired:,} rows have other probabilities than before."
    bins = len(shift.joint)
    if rose + fell:
        text += (
            f" In {bins} bins of the {shift.quantity}, {rose:,} rows moved to a higher bin and {fell:,} to a lower "
            f"one; {int(shift.joint.trace()):,} stayed in theirs."
        )
    else:
        text += f" None of them moved to another of the {bins} bins of the {shift.quantity}."
    return {
        "shift_words": text,
        "scores": shift_chart(shift),
        "moves": moves_chart(shift) if rose + fell else None,
    }
