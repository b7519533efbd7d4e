"""The audit in words: for the terminal, a pull request, a notebook and a test report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from lowchurn._display import brief_share, interval_text, share_text
from lowchurn._estimates import Estimate
from lowchurn._html import clean, render
from lowchurn._terminal import printable
from lowchurn.audit._gate import FAIL, INCONCLUSIVE, PASS, Check, Verdict
from lowchurn.audit._markdown import cell as _cell

if TYPE_CHECKING:
    from lowchurn.audit._inference import Slice
    from lowchurn.audit._result import Audit
    from lowchurn.audit._review import Review

SHARES = (
    ("churn", "changed decisions", False),
    ("broken", "broken (right before, wrong now)", False),
    ("fixed", "fixed (wrong before, right now)", False),
    ("lateral", "lateral (wrong both ways)", False),
    ("accuracy_old", "accuracy before", False),
    ("accuracy_new", "accuracy after", False),
    ("accuracy_change", "change in accuracy", True),
)
SOFT = (
    ("soft_churn", "soft churn (KL divergence from the old to the new probabilities)"),
    ("log_loss_old", "log-loss before"),
    ("log_loss_new", "log-loss after"),
    ("log_loss_change", "change in log-loss"),
    ("brier_change", "change in Brier score"),
    ("calibration_error_old", "calibration error before (ECE, 15 bins)"),
    ("calibration_error_new", "calibration error after (ECE, 15 bins)"),
    ("calibration_error_change", "change in calibration error"),
)
MOST_SLICES = 50  # of evaluation runs, in words
MOST_ITEMS = 20
HEADLINES = {
    PASS: "It may ship: every limit is kept, even at the unfavourable end of its interval.",
    FAIL: "It should not ship: a limit is broken, even at the favourable end of its interval.",
    INCONCLUSIVE: "Not settled: an interval straddles its limit, or evidence is missing.",
}


def number_text(estimate: Estimate) -> str:
    """A number that is no share, with its interval."""
    if not estimate.defined:
        return "undefined"
    return f"{estimate.value:.4g} ({estimate.low:.4g} to {estimate.high:.4g})"


def p_text(p: float) -> str:
    """A p-value in words."""
    return "undefined" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def p_equals(p: float) -> str:
    """The same behind a letter: " = 0.0100" or " < 0.0001"."""
    text = p_text(p)
    return f" {text}" if text.startswith("<") else f" = {text}"


def shares(audit: Audit) -> list[tuple[str, str, bool]]:
    """The figures of an audit; of evaluation runs only right and wrong are known, so none is lateral."""
    if audit.coverage is None:
        return list(SHARES)
    return [
        (name, words.replace("decisions", "outcomes"), signed) for name, words, signed in SHARES if name != "lateral"
    ]


def headline(audit: Audit, review: Review | None = None) -> str:
    """One sentence about what changed; accuracy comes from a review where rows lack labels, as in the gate."""
    rows = f"{audit.rows.paired:,}"
    noun = "decisions" if audit.coverage is None else "outcomes"
    if audit.identical and audit.coverage is not None:
        differ = f", though {audit.coverage.answers:,} answers differ" if audit.coverage.answers else ""
        return f"Both runs are right and wrong on the same of all {rows} items{differ}."
    if audit.identical:
        what = "decisions and probabilities" if audit.moved is not None else "decisions"
        return f"The candidate is identical to the base: the same {what} on all {rows} rows."
    changed = f"{audit.whole.n['changed']:,} of {rows} {noun} change, {interval_text(audit.churn)}"
    reviewed = review is not None and not audit.fully_labelled and review.accuracy_change.defined
    change = review.accuracy_change if review is not None and reviewed else audit.accuracy_change
    if not change.defined:
        return f"{changed}. There are no labels, so nothing is known about accuracy."
    if change.low > 0:
        better = "the candidate is better"
    elif change.high < 0:
        better = "the candidate is worse"
    else:
        better = "neither is shown to be better"
    source = " by the review of disagreements" if reviewed else ""
    return f"{changed}; accuracy {interval_text(change, signed=True)}{source}: {better}."


def text(audit: Audit, review: Review | None = None) -> str:
    """For the terminal; names and values of the data are shown without control characters."""
    lines = [headline(audit, review)]
    for name, words, signed in shares(audit):
        estimate = getattr(audit, name)
        if estimate.defined:
            lines.append(f"  {words:<34} {interval_text(estimate, signed):<32} n = {estimate.n:,}, {estimate.method}")
    if audit.accuracy_change.defined:
        lines.append(f"  {audit.mcnemar.method}: p{p_equals(audit.mcnemar.p_value)}")
    for name, words in SOFT:
        if name in audit.soft and audit.soft[name].defined:
            lines.append(f"  {words:<34} {number_text(audit.soft[name])}")
    lines += [
        f"  slice {s.name}: accuracy {interval_text(s.accuracy_change, signed=True)}, q{p_equals(s.q_value)}"
        for s in _changed_slices(audit)[:5]
        if audit.coverage is None
    ]
    if audit.coverage is not None:
        lines += _run_lines(audit)
    lines += [
        f"  more flips than chance in {s.name}: {interval_text(s.churn)}, {s.lift:.1f} times the overall rate"
        for s in audit.drivers[:5]
    ]
    lines += [f"  note: {note}" for note in audit.notes]
    return "\n".join(map(printable, lines))


def _run_lines(audit: Audit) -> list[str]:
    """Of evaluation runs: every slice, the surest change first, and the broken items with both answers."""
    lines = []
    if slices := _surest(audit)[:MOST_SLICES]:
        width = max(len("slice"), *(len(short(s.name, 40)) for s in slices))
        lines.append(f"  {'slice':<{width}} {'items':>7} {'before':>9} {'after':>9}  {'change in accuracy':<32} q")
    for s in slices:
        before, after = share_text(s.accuracy_old.value), share_text(s.accuracy_new.value)
        figures = f"{s.rows:>7,} {before:>9} {after:>9}  {interval_text(s.accuracy_change, True):<32}"
        lines.append(f"  {short(s.name, 40):<{width}} {figures} {p_text(s.q_value)}")
    for flip in broken_items(audit)[:MOST_ITEMS]:
        answers = [short(flip[side], 60) for side in ("old answer", "new answer") if side in flip]
        shown = f": {' -> '.join(map(repr, answers))}" if answers else ""
        lines.append(f"  broken {short(item_of(audit, flip), 60)}{shown}")
    if (more := audit.whole.n["broken"] - MOST_ITEMS) > 0:
        lines.append(f"  and {more:,} more broken items")
    return lines


def _surest(audit: Audit) -> list[Slice]:
    return sorted(audit.slices, key=lambda s: (math.isnan(s.q_value), s.q_value, s.accuracy_change.value))


def broken_items(audit: Audit) -> list[dict[str, object]]:
    """Changed items of evaluation runs that were right and are wrong now."""
    return [flip for flip in audit.flips if flip.get("kind") == "broken"]


def item_of(audit: Audit, flip: Mapping[str, object]) -> str:
    """How an item is named in ``never_break``."""
    return "/".join(str(flip[name]) for name in audit.columns.id)


def short(value: object, most: int) -> str:
    """One line of text, cut off where it is long."""
    text = " ".join(str(value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _table(head: str, rows: list[str]) -> list[str]:
    return [f"| {row} |" for row in (head, " | ".join("---" for _ in head.split(" | ")), *rows)]


def _check_row(check: Check) -> str:
    signed = check.name == "not_worse_than"
    if check.name == "min_rows":
        allowed, shown = f"{check.limit:,.0f}", f"{check.estimate.n:,}"
    elif check.name == "never_break":
        allowed, shown = "0", f"{check.estimate.value:,.0f} of {check.estimate.n:,} rows broken"
    else:
        allowed = share_text(0.0 - check.limit if signed else check.limit, signed)
        shown = interval_text(check.estimate, signed)
    for more, noun in ((check.more_rows, "rows"), (check.more_labels, "labels")):
        if check.outcome == INCONCLUSIVE and math.isfinite(more):
            shown += f"; about {more:,.0f} more {noun} needed"
    return f"{check.outcome} | {_cell(check.where)} | `{check.name}` | {allowed} | {shown}"


def _changed_slices(audit: Audit) -> list[Slice]:
    """Slices whose accuracy changed (false-discovery rate of 5 %), the largest fall first."""
    return sorted((s for s in audit.slices if s.q_value <= 0.05), key=lambda s: s.accuracy_change.value)


def markdown(audit: Audit, verdict: Verdict | None = None, review: Review | None = None) -> str:
    """For a comment on a pull request."""
    level = brief_share(audit.confidence)
    title = "Model audit" if audit.coverage is None else "Evaluation runs"
    lines = [f"## {title}{'' if verdict is None else ': ' + verdict.outcome}", "", headline(audit, review), ""]
    if verdict is not None:
        lines += _table("verdict | where | limit | allowed | measured", [_check_row(c) for c in verdict.checks])
        lines += ["", *(f"Not judged, too few rows: {_cell(name)}." for name in verdict.unjudged), ""]
    rows = [f"{words} | {shown} | {estimate.n:,}" for words, estimate, shown in figures(audit)]
    lines += _table(f"figure | value ({level} interval) | rows", rows)
    if audit.coverage is not None:
        lines += _run_tables(audit)
    rows = [
        f"{_cell(s.name)} | {s.rows:,} | {interval_text(s.accuracy_change, True)} | {p_text(s.q_value)}"
        for s in _changed_slices(audit)[:10]
        if audit.coverage is None
    ]
    if rows:
        lines += ["", "Slices whose accuracy changed (false-discovery rate 5 %):", ""]
        lines += _table("slice | rows | change in accuracy | q", rows)
    rows = [f"{_cell(s.name)} | {s.rows:,} | {interval_text(s.churn)} | {s.lift:.1f}" for s in audit.drivers[:10]]
    if rows:
        lines += ["", "More flips than chance:", ""]
        lines += _table("slice | rows | changed decisions | times the overall rate", rows)
    if review is not None:
        lines += ["", f"Review of the disagreements: {review}"]
    lines += ["", *(f"Note: {_cell(note)}" for note in audit.notes)]
    lines += ["", *_audited(audit)]
    return "\n".join(lines).rstrip().replace("\n\n\n", "\n\n") + "\n"


def _run_tables(audit: Audit) -> list[str]:
    """Of evaluation runs: every slice, and the broken items with both answers side by side."""
    lines = []
    if slices := _surest(audit)[:MOST_SLICES]:
        rows = [
            f"{_cell(s.name)} | {s.rows:,} | {share_text(s.accuracy_old.value)} | {share_text(s.accuracy_new.value)} | "
            f"{interval_text(s.accuracy_change, True)} | {p_text(s.q_value)}"
            for s in slices
        ]
        lines += ["", "By slice, the surest change first (q: false-discovery rate over all slices):", ""]
        lines += _table("slice | items | accuracy before | after | change | q", rows)
    if broken := broken_items(audit)[:MOST_ITEMS]:
        columns = [name for name in ("expected", "old answer", "new answer") if any(name in flip for flip in broken)]
        rows = [
            " | ".join(_cell(short(cell, 200)) for cell in (item_of(audit, flip), *(flip.get(c, "") for c in columns)))
            for flip in broken
        ]
        total = audit.whole.n["broken"]
        part = "" if total == len(broken) else f", {len(broken)} of {total:,}"
        lines += ["", f"Broken items{part}:", "", *_table(" | ".join(("item", *columns)), rows)]
    return lines


def _audited(audit: Audit) -> list[str]:
    """What was audited: names of the models, files with their checksums, settings."""
    made = audit.provenance
    lines = []
    for side, source in (("Old", made.old), ("New", made.new)):
        known = [source.name, source.path, f"sha256 {source.sha256}" if source.sha256 else None]
        shown = ", ".join(_cell(part) for part in known if part) or "a table in memory"
        lines.append(f"- {side}: {shown}, {source.rows:,} rows")
    if made.settings:
        shown = ", ".join(
            f"{_cell(name)} = {_cell(value)}{' (file)' if name in made.from_config else ''}"
            for name, value in made.settings.items()
        )
        lines.append(f"- Settings: {shown}" + (f"; file: {_cell(made.config)}" if made.config else ""))
    return [*lines, f"- lowchurn {made.lowchurn}"]


def figures(audit: Audit) -> list[tuple[str, Estimate, str]]:
    """Every figure: what it is, the estimate, and that in words."""
    known = [(words, getattr(audit, name), signed) for name, words, signed in shares(audit)]
    found = [(words, estimate, interval_text(estimate, signed)) for words, estimate, signed in known]
    soft = [(words, audit.soft[name]) for name, words in SOFT if name in audit.soft]
    return [*found, *((words, estimate, number_text(estimate)) for words, estimate in soft)]


def notebook(audit: Audit) -> str:
    """A small table for notebooks."""
    values = {"level": brief_share(audit.confidence), "figures": figures(audit), "notes": audit.notes}
    return render("audit/templates/notebook.html.jinja", headline=headline(audit), **values)


def junit(audit: Audit, verdict: Verdict) -> str:
    """For a pipeline: a test case per check; FAIL is a failure, INCONCLUSIVE what the gate's policy makes of it."""
    outcomes = [check.outcome for check in verdict.checks]
    policy = verdict.gate.inconclusive
    undecided = outcomes.count(INCONCLUSIVE)
    suite = ElementTree.Element(
        "testsuite",
        name="lowchurn audit" if audit.coverage is None else "lowchurn compare",
        tests=str(len(outcomes) + len(verdict.unjudged)),
        failures=str(outcomes.count(FAIL)),
        errors=str(undecided if policy == "fail" else 0),
        skipped=str(len(verdict.unjudged) + (undecided if policy == "warn" else 0)),
        time=f"{audit.seconds:.3f}",
    )
    kinds = {FAIL: "failure", INCONCLUSIVE: {"fail": "error", "warn": "skipped", "pass": "system-out"}[policy]}
    for check in verdict.checks:
        case = ElementTree.SubElement(
            suite, "testcase", classname=clean(f"lowchurn.gate.{check.where}"), name=check.name
        )
        if check.outcome == PASS:
            continue
        kind, words = kinds[check.outcome], clean(check.words)
        if kind == "system-out":
            ElementTree.SubElement(case, kind).text = f"{check.outcome}: {words}"
        elif kind == "skipped":
            ElementTree.SubElement(case, kind, message=f"{check.outcome}: {words}")
        else:
            ElementTree.SubElement(case, kind, message=words, type=check.outcome).text = words
    for name in verdict.unjudged:
        case = ElementTree.SubElement(suite, "testcase", classname="lowchurn.gate.slices", name=clean(name))
        ElementTree.SubElement(case, "skipped", message="fewer rows than min_rows")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"
