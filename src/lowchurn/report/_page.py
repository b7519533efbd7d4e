"""The report: one self-contained HTML page, the verdict first. Nothing is loaded from anywhere."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from lowchurn._display import interval_text, share_text
from lowchurn._files import write_file
from lowchurn.audit import Audit, Estimate, Review, ReviewPlan, Verdict
from lowchurn.audit._gate import FAIL, INCONCLUSIVE, PASS
from lowchurn.audit._summary import HEADLINES, SHARES, SOFT, headline, number_text, p_equals, p_text
from lowchurn.report import _figures as figures
from lowchurn.report._audited import audited_section, compared, made_section
from lowchurn.report._flips import flips_section
from lowchurn.report._frontier import frontier_section
from lowchurn.report._markup import Markup, data_table, section, tag
from lowchurn.report._tried import read_tried

MOST_TABLE_SLICES = 500
MOST_CHECKS = 200
NO_BREAK = "\u00a0"
CARDS = {"churn": "changed decisions", "broken": "broken", "fixed": "fixed", "accuracy_change": "change in accuracy"}


def write_html(path: str | Path, audit: Audit, verdict: Verdict | None = None, **extras: Any) -> None:
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
    audit: Audit,
    verdict: Verdict | None = None,
    *,
    plan: ReviewPlan | None = None,
    review: Review | None = None,
    frontier: Any = None,
    title: str = "Model audit",
) -> str:
    """The audit as one HTML page that needs nothing else.

    Parameters
    ----------
    audit : Audit
    verdict : Verdict, optional
        What the gate said.
    plan : ReviewPlan, optional
        By default the plan for a margin of half a percentage point. It is left out where every row has its label.
    review : Review, optional
        What labelled disagreements said.
    frontier : list, mapping or fitted LowChurnClassifier, optional
        Settings that were tried: the model itself, its ``frontier_`` or that as records, the report of
        ``lowchurn retrain``, or any list of mappings with ``churn`` and ``accuracy`` and, where known, ``strategy``,
        ``setting``, ``broken``, ``fixed``, ``rows`` (held-out rows, without which the change in accuracy against the
        base has no interval), ``dial`` (0 for the new model, 1 for the base), ``chosen``, and intervals such as
        ``churn_interval`` or ``churn_low`` and ``churn_high``. Settings on a dial get a slider.
    title : str, default "Model audit"

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
    plan = audit.review_plan() if plan is None else plan
    tried = read_tried(frontier, None if verdict is None else verdict.gate.max_churn)
    style, script = _asset("page.css"), _asset("page.js")
    # Only this very script may run: should data ever get past the escaping, the browser still refuses it.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    sections = [
        ("verdict", "Verdict", _verdict(audit, verdict, review)),
        ("audited", "What was audited", audited_section(audit)),
        ("figures", "Figures", _figures(audit)),
        ("matrix", "Flip matrix", _matrix(audit)),
        ("slices", "Slices", _slices(audit)),
        ("drivers", "Drivers of change", _drivers(audit)),
        ("scores", "Score shift", _scores(audit)),
        ("frontier", "Frontier", frontier_section(tried)),
        ("flips", "Changed rows", flips_section(audit)),
        ("review", "Review plan", _review(audit, plan, review)),
        ("made", "How this was made", made_section(audit)),
    ]
    present = [part for part in sections if part[2]]
    links = [tag("li", tag("a", heading, href=f"#{name}")) for name, heading, _ in present]
    named = compared(audit)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title}: {verdict.outcome}" if verdict is not None else title),
        tag("style", Markup(style)),
    )
    body = tag(
        "body",
        tag("a", "Skip to the verdict", class_="skip", href="#verdict"),
        tag(
            "header",
            tag("h1", title),
            tag("p", named, class_="compared") if named else None,
            tag("nav", tag("ul", links), aria_label="Sections"),
            class_="top",
        ),
        tag("main", [body for _, _, body in present]),
        tag(
            "footer",
            tag(
                "p",
                f"Made by lowchurn {audit.made()['versions'].get('lowchurn', '')}. "
                "This page loads nothing and sends nothing.",
            ),
        ),
        tag("script", Markup(script)),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def _asset(name: str) -> str:
    return files("lowchurn.report").joinpath(name).read_text(encoding="utf-8")


def _verdict(audit: Audit, verdict: Verdict | None, review: Review | None) -> Markup:
    said: list[Any] = []
    if verdict is not None:
        said += [tag("p", verdict.outcome, class_="word"), tag("p", HEADLINES[verdict.outcome], class_="lead")]
    said.append(tag("p", headline(audit, review), class_="lead" if verdict is None else None))
    if verdict is not None and verdict.checks:
        rows = []
        order = (FAIL, INCONCLUSIVE, PASS)
        for check in sorted(verdict.checks, key=lambda c: order.index(c.outcome))[:MOST_CHECKS]:
            rows.append(
                (
                    check.where,
                    tag("code", check.name),
                    check.words.removeprefix(f"{check.where}: "),
                    tag("span", check.outcome, class_=f"outcome {check.outcome}"),
                )
            )
        said.append(
            data_table(
                "Limits, each judged on the bound of its interval and not on the point",
                ("where", "limit", "what was found", "verdict"),
                rows,
                class_="checks",
            )
        )
    if verdict is not None and len(verdict.checks) > MOST_CHECKS:
        said.append(tag("p", f"The first {MOST_CHECKS} of {len(verdict.checks):,} checks.", class_="muted"))
    if verdict is not None and verdict.unjudged:
        said.append(tag("p", f"Not judged, too few rows: {', '.join(verdict.unjudged)}.", class_="muted"))
    if verdict is None:
        said.append(tag("p", "No limits were set, so nothing was judged.", class_="muted"))
    return section(
        "verdict",
        "May it ship?" if verdict is not None else "What changed",
        said,
        class_=f"verdict {verdict.outcome if verdict is not None else ''}".strip(),
    )


def _figures(audit: Audit) -> Markup:
    level = f"{audit.confidence:.0%}"
    cards = []
    for name, what in CARDS.items():
        e = getattr(audit, name)
        if e.defined:
            value, interval = figures.value_and_interval(e, signed=name == "accuracy_change")
            spans = (("what", what), ("figure", value), ("range", f"{level}: {interval}"))
            cards.append(tag("li", [tag("span", content, class_=class_) for class_, content in spans]))
    found: list[tuple[str, Estimate, Callable[[Estimate], str]]] = [
        (what, getattr(audit, name), partial(interval_text, signed=signed)) for name, what, signed in SHARES
    ]
    found += [(what, audit.soft[name], number_text) for name, what in SOFT if name in audit.soft]
    rows = [
        (what, tag("span", shown(e), class_="range"), f"{e.n:,}", e.method) for what, e, shown in found if e.defined
    ]
    missing = [what.partition(" (")[0] for what, e, _ in found if not e.defined]
    tests = None
    if audit.accuracy_change.defined:
        p_value = f"p{p_equals(audit.mcnemar.p_value)}".replace(" ", NO_BREAK)
        tests = tag("p", f"{audit.mcnemar.method}, two-sided, that as many rows were fixed as broken: {p_value}.")
    counted = f"{audit.rows.paired:,} rows, {audit.rows.labelled:,} of them with a label."
    return section(
        "figures",
        "Figures",
        tag("p", counted),
        tag("ul", cards, class_="cards"),
        data_table(
            f"Every figure with its {level} interval",
            ("figure", "value and interval", "rows", "method"),
            rows,
            numbers=(2,),
            class_="brief",
        ),
        tag("p", f"Undefined, since the rows they need are missing: {', '.join(missing)}.") if missing else None,
        tests,
        tag("ul", [tag("li", note) for note in audit.notes]) if audit.notes else None,
    )


def _matrix(audit: Audit) -> Markup:
    table, hidden = figures.flip_matrix(audit)
    left = tag("p", f"{hidden} classes with fewer flips are not shown.", class_="muted") if hidden else None
    return section(
        "matrix",
        "Flip matrix",
        tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Flip matrix"),
        left,
    )


def _slices(audit: Audit) -> Markup:
    slices = audit.slices
    if not slices:
        return Markup("")
    parts: list[Any] = [
        tag(
            "p",
            "Colour marks what stands out with the false-discovery rate held at 5% over all slices; "
            "grey may be chance.",
        )
    ]
    change = audit.accuracy_change
    if change.defined:
        caption = (
            f"In points, with its interval. Left of zero is worse; dashed: all rows, {share_text(change.value, True)}."
        )
        parts += [
            tag("h3", "Change in accuracy"),
            figures.forest(slices, "accuracy_change", change.value, caption, signed=True),
        ]
    caption = f"Share of rows, with its interval; dashed: all rows, {share_text(audit.churn.value)}."
    parts += [
        tag("h3", "Changed decisions"),
        figures.forest(slices, "churn", audit.churn.value, caption, signed=False),
    ]
    shown = sorted(slices, key=lambda s: (math.isnan(s.q_value), s.q_value))[:MOST_TABLE_SLICES]
    heads: list[str] = ["slice", "rows", "changed"]
    rows: list[list[str]] = [[s.name, f"{s.rows:,}", interval_text(s.churn)] for s in shown]
    caption = "Slices"
    if change.defined:
        heads += ["broken", "change in accuracy", "q"]
        caption = "Slices, those with the surest change in accuracy first"
        for row, s in zip(rows, shown, strict=True):
            row += [interval_text(s.broken), interval_text(s.accuracy_change, signed=True), p_text(s.q_value)]
    table = data_table(caption, heads, rows, numbers=(1, 5))
    parts.append(tag("details", tag("summary", f"Table of {len(shown):,} slices"), table))
    if len(shown) < len(slices):
        parts.append(tag("p", f"{len(slices) - len(shown):,} more slices are in the JSON output.", class_="muted"))
    return section("slices", "Slices", parts)


def _drivers(audit: Audit) -> Markup:
    if not audit.judged:
        return Markup("")
    drivers = audit.drivers[:20]
    if not drivers:
        return section(
            "drivers",
            "Drivers of change",
            tag("p", "No slice or feature bin holds more flips than chance would put there (false-discovery rate 5%)."),
        )
    rows = [
        (s.name, f"{s.rows:,}", interval_text(s.churn), f"{s.lift:.2f}", f"{s.excess:,.0f}", p_text(s.flips_q))
        for s in drivers
    ]
    heads = ("slice or bin", "rows", "changed", "times the overall rate", "flips in excess", "q")
    return section(
        "drivers",
        "Drivers of change",
        data_table(
            "Where more decisions flip than chance would have it (false-discovery rate 5%)",
            heads,
            rows,
            numbers=(1, 3, 4, 5),
        ),
    )


def _scores(audit: Audit) -> Markup:
    shift = audit.shift
    if shift is None:
        return Markup("")
    rose, fell = (int(part.sum()) for part in (np.triu(shift.joint, 1), np.tril(shift.joint, -1)))
    said = f"{audit.moved or 0:,} of {audit.rows.paired:,} rows have other probabilities than before."
    bins = len(shift.joint)
    if rose + fell:
        said += (
            f" In {bins} bins of the {shift.quantity}, {rose:,} rows moved to a higher bin and {fell:,} to a lower "
            f"one; {int(shift.joint.trace()):,} stayed in theirs."
        )
    else:
        said += f" None of them moved to another of the {bins} bins of the {shift.quantity}."
    key = tag(
        "figcaption",
        tag("span", class_="legend old"),
        "before ",
        tag("span", class_="legend new"),
        "after",
    )
    parts = [tag("h3", "All rows"), tag("figure", figures.shift_figure(shift), key)]
    if rose + fell:
        moved = tag("figcaption", f"By the {shift.quantity} before. Rows that stayed in their bin are not drawn.")
        parts = [tag("h3", "Rows that moved"), tag("figure", figures.moves_figure(shift), moved), *parts]
    return section("scores", "Score shift", tag("p", said), parts)


def _review(audit: Audit, plan: ReviewPlan, review: Review | None) -> Markup:
    if review is None and audit.fully_labelled:
        return Markup("")  # every row has its label already
    parts: list[Any] = [
        tag("p", "Accuracy differs only where the two models disagree, so only those rows need a person."),
        tag("p", str(plan)),
    ]
    if review is not None:
        rows = [
            ("change in accuracy", interval_text(review.accuracy_change, signed=True)),
            ("of the answered disagreements: fixed", interval_text(review.fixed)),
            ("broken", interval_text(review.broken)),
            ("wrong both ways", interval_text(review.lateral)),
        ]
        parts += [
            tag("h3", "What the answers say"),
            tag("p", str(review)),
            data_table(f"From {review.labels:,} labels", ("figure", "value and interval"), rows),
        ]
    return section("review", "Review plan", parts)
