"""The audit in words: for the terminal, a pull request, a notebook and a test report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeGuard, cast
from xml.etree import ElementTree

from lowchurn._display import brief_share, interval_text, share_text
from lowchurn._estimates import Estimate
from lowchurn._html import clean, render
from lowchurn._terminal import printable
from lowchurn.audit import _number_summary as numbers
from lowchurn.audit._gate import FAIL, INCONCLUSIVE, PASS, Verdict
from lowchurn.audit._markdown import cell
from lowchurn.audit._words import (
    MOST_ITEMS,
    MOST_SLICES,
    answers_text,
    audited_lines,
    check_row,
    item_of,
    item_table,
    p_equals,
    p_text,
    short,
    table_lines,
)

if TYPE_CHECKING:
    from lowchurn.audit._audited import Outcome
    from lowchurn.audit._inference import Slice
    from lowchurn.audit._number_result import NumberAudit
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


def _soft_text(estimate: Estimate) -> str:
    if not estimate.defined:
        return "undefined"
    return f"{estimate.value:.4g} ({estimate.low:.4g} to {estimate.high:.4g})"


def shares(audit: Audit) -> list[tuple[str, str, bool]]:
    """The figures of an audit; of evaluation runs only right and wrong are known, so none is lateral."""
    if audit.coverage is None:
        return list(SHARES)
    return [
        (name, words.replace("decisions", "outcomes"), signed) for name, words, signed in SHARES if name != "lateral"
    ]


def is_numbers(audit: Outcome) -> TypeGuard[NumberAudit]:
    """Whether outcomes are numbers."""
    return audit.kind == "numbers"


def headline(audit: Outcome, review: Review | None = None) -> str:
    """One sentence about what changed; accuracy comes from a review where rows lack labels, as in the gate."""
    return numbers.headline(audit) if is_numbers(audit) else _headline(cast("Audit", audit), review)


def _headline(audit: Audit, review: Review | None) -> str:
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


def text(audit: Outcome, review: Review | None = None) -> str:
    """For the terminal; names and values of the data are shown without control characters."""
    lines = [headline(audit, review)]
    lines += numbers.lines(audit) if is_numbers(audit) else _lines(cast("Audit", audit))
    lines += [f"  note: {note}" for note in audit.notes]
    return "\n".join(map(printable, lines))


def _lines(audit: Audit) -> list[str]:
    """The figures, slices and drivers of decisions."""
    lines = []
    for name, words, signed in shares(audit):
        estimate = getattr(audit, name)
        if estimate.defined:
            lines.append(f"  {words:<34} {interval_text(estimate, signed):<32} n = {estimate.n:,}, {estimate.method}")
    if audit.accuracy_change.defined:
        lines.append(f"  {audit.mcnemar.method}: p{p_equals(audit.mcnemar.p_value)}")
    for name, words in SOFT:
        if name in audit.soft and audit.soft[name].defined:
            lines.append(f"  {words:<34} {_soft_text(audit.soft[name])}")
    lines += [
        f"  slice {s.name}: accuracy {interval_text(s.accuracy_change, signed=True)}, q{p_equals(s.q_value)}"
        for s in _changed_slices(audit)[:5]
        if audit.coverage is None
    ]
    if audit.coverage is not None:
        lines += _run_lines(audit)
    return lines + [
        f"  more flips than chance in {s.name}: {interval_text(s.churn)}, {s.lift:.1f} times the overall rate"
        for s in audit.drivers[:5]
    ]


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
        lines.append(f"  broken {short(item_of(audit, flip), 60)}{answers_text(flip)}")
    if (more := audit.whole.n["broken"] - MOST_ITEMS) > 0:
        lines.append(f"  and {more:,} more broken items")
    return lines


def _surest(audit: Audit) -> list[Slice]:
    return sorted(audit.slices, key=lambda s: (math.isnan(s.q_value), s.q_value, s.accuracy_change.value))


def broken_items(audit: Audit) -> list[dict[str, object]]:
    """Changed items of evaluation runs that were right and are wrong now."""
    return [flip for flip in audit.flips if flip.get("kind") == "broken"]


def _changed_slices(audit: Audit) -> list[Slice]:
    """Slices whose accuracy changed (false-discovery rate of 5 %), the largest fall first."""
    return sorted((s for s in audit.slices if s.q_value <= 0.05), key=lambda s: s.accuracy_change.value)


def markdown(audit: Outcome, verdict: Verdict | None = None, review: Review | None = None) -> str:
    """For a comment on a pull request."""
    level = brief_share(audit.confidence)
    title = "Model audit" if audit.coverage is None else "Evaluation runs"
    lines = [f"## {title}{'' if verdict is None else ': ' + verdict.outcome}", "", headline(audit, review), ""]
    if verdict is not None:
        lines += table_lines("verdict | where | limit | allowed | measured", [check_row(c) for c in verdict.checks])
        lines += ["", *(f"Not judged, too few rows: {cell(name)}." for name in verdict.unjudged), ""]
    rows = [f"{cell(words)} | {shown} | {estimate.n:,}" for words, estimate, shown in figures(audit)]
    lines += table_lines(f"figure | value ({level} interval) | rows", rows)
    lines += numbers.tables(audit) if is_numbers(audit) else _tables(cast("Audit", audit))
    if review is not None:
        lines += ["", f"Review of the disagreements: {review}"]
    lines += ["", *(f"Note: {cell(note)}" for note in audit.notes)]
    lines += ["", *audited_lines(audit.provenance)]
    return "\n".join(lines).rstrip().replace("\n\n\n", "\n\n") + "\n"


def _tables(audit: Audit) -> list[str]:
    """The slices and drivers of decisions."""
    lines = [] if audit.coverage is None else _run_tables(audit)
    rows = [
        f"{cell(s.name)} | {s.rows:,} | {interval_text(s.accuracy_change, True)} | {p_text(s.q_value)}"
        for s in _changed_slices(audit)[:10]
        if audit.coverage is None
    ]
    if rows:
        lines += ["", "Slices whose accuracy changed (false-discovery rate 5 %):", ""]
        lines += table_lines("slice | rows | change in accuracy | q", rows)
    rows = [f"{cell(s.name)} | {s.rows:,} | {interval_text(s.churn)} | {s.lift:.1f}" for s in audit.drivers[:10]]
    if rows:
        lines += ["", "More flips than chance:", ""]
        lines += table_lines("slice | rows | changed decisions | times the overall rate", rows)
    return lines


def _run_tables(audit: Audit) -> list[str]:
    """Of evaluation runs: every slice, and the broken items with both answers side by side."""
    lines = []
    if slices := _surest(audit)[:MOST_SLICES]:
        rows = [
            f"{cell(s.name)} | {s.rows:,} | {share_text(s.accuracy_old.value)} | {share_text(s.accuracy_new.value)} | "
            f"{interval_text(s.accuracy_change, True)} | {p_text(s.q_value)}"
            for s in slices
        ]
        lines += ["", "By slice, the surest change first (q: false-discovery rate over all slices):", ""]
        lines += table_lines("slice | items | accuracy before | after | change | q", rows)
    if broken := broken_items(audit)[:MOST_ITEMS]:
        total = audit.whole.n["broken"]
        part = "" if total == len(broken) else f", {len(broken)} of {total:,}"
        lines += ["", f"Broken items{part}:", "", *item_table(audit, broken, ("expected", "old answer", "new answer"))]
    return lines


def figures(audit: Outcome) -> list[tuple[str, Estimate, str]]:
    """Every figure: what it is, the estimate, and that in words."""
    return numbers.figures(audit) if is_numbers(audit) else _figures(cast("Audit", audit))


def _figures(audit: Audit) -> list[tuple[str, Estimate, str]]:
    known = [(words, getattr(audit, name), signed) for name, words, signed in shares(audit)]
    found = [(words, estimate, interval_text(estimate, signed)) for words, estimate, signed in known]
    soft = [(words, audit.soft[name]) for name, words in SOFT if name in audit.soft]
    return [*found, *((words, estimate, _soft_text(estimate)) for words, estimate in soft)]


def notebook(audit: Outcome) -> str:
    """A small table for notebooks."""
    values = {"level": brief_share(audit.confidence), "figures": figures(audit), "notes": audit.notes}
    return render("audit/templates/notebook.html.jinja", headline=headline(audit), **values)


def junit(audit: Outcome, verdict: Verdict) -> str:
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
