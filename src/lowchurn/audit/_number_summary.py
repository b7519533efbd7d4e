"""The audit of numbers in words: for the terminal, a pull request and a notebook."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lowchurn._display import interval_text, number_interval_text, number_text, share_text
from lowchurn._estimates import Estimate
from lowchurn.audit._markdown import table
from lowchurn.audit._words import MOST_ITEMS, MOST_SLICES, answers_text, item_of, item_table, p_equals, p_text, short

if TYPE_CHECKING:
    from lowchurn.audit._number_inference import NumberSlice
    from lowchurn.audit._number_result import NumberAudit

SIGNED = {"mean_move", "loss_change", "rmse_change"}
SHARES = {"moved", "worse", "better"}


def tolerance_text(audit: NumberAudit) -> str:
    """What counts as a move: "by more than 0.05" or "by more than 5 % of the old value"."""
    tolerance = audit.compared.tolerance
    if tolerance == 0:
        return "at all"
    if audit.compared.relative:
        return f"by more than {100 * tolerance:.4g} % of the old value"
    return f"by more than {tolerance:.6g}"


def names(audit: NumberAudit) -> dict[str, str]:
    """The figures in words; those that need a target or a loss are left out where there is none."""
    found = {
        "moved": f"moved ({tolerance_text(audit)})",
        "mean_move": "mean move",
        "mean_size": "mean size of the moves",
    }
    loss = audit.compared.loss
    if loss is None:
        return found
    found |= {
        "worse": f"worse ({loss} {'fell' if audit.compared.gain else 'grew'} beyond the tolerance)",
        "better": f"better ({loss} {'grew' if audit.compared.gain else 'fell'} beyond the tolerance)",
        "loss_old": f"mean {loss} before",
        "loss_new": f"mean {loss} after",
        "loss_change": f"change in the mean {loss}",
    }
    if audit.columns.label is not None:
        found |= {
            "rmse_old": "root mean squared error before",
            "rmse_new": "root mean squared error after",
            "rmse_change": "change in the root mean squared error",
        }
    order = ("moved", "worse", "better", "mean_move", "mean_size")
    return {name: found[name] for name in (*order, *(n for n in found if n not in order))}


def figure_text(name: str, estimate: Estimate) -> str:
    """A figure with its interval."""
    return interval_text(estimate) if name in SHARES else number_interval_text(estimate, name in SIGNED)


def figures(audit: NumberAudit) -> list[tuple[str, Estimate, str]]:
    """Every figure: what it is, the estimate, and that in words."""
    found = [(words, getattr(audit, name), name) for name, words in names(audit).items()]
    moves = [
        (f"{100 * float(level):g} % quantile of the move", estimate, "mean_move")
        for level, estimate in audit.quantiles.items()
    ]
    return [(words, estimate, figure_text(name, estimate)) for words, estimate, name in (*found, *moves)]


def judged_better(audit: NumberAudit, change: Estimate) -> str:
    """What a change in the mean loss shows, in words."""
    low, high = (change.low, change.high) if audit.compared.gain else (-change.high, -change.low)
    if low > 0:
        return "the candidate is better"
    return "the candidate is worse" if high < 0 else "neither is shown to be better"


def headline(audit: NumberAudit) -> str:
    """One sentence about what moved, and whether it got better."""
    rows = f"{audit.rows.paired:,}"
    runs = audit.coverage is not None
    if audit.identical:
        if audit.coverage is not None:
            differ = f", though {audit.coverage.answers:,} answers differ" if audit.coverage.answers else ""
            return f"Both runs have the same outcomes on all {rows} items{differ}."
        return f"The candidate is identical to the base: the same numbers on all {rows} rows."
    noun = "outcomes" if runs else "numbers"
    moved = audit.whole.counts.n["changed"]
    found = f"{moved:,} of {rows} {noun} moved {tolerance_text(audit)}, {interval_text(audit.moved)}"
    change = audit.loss_change
    if not change.defined:
        return f"{found}. There is no target and no loss, so it is not known whether they got better."
    shown = number_interval_text(change, signed=True)
    return f"{found}; mean {audit.compared.loss} {shown}: {judged_better(audit, change)}."


def lines(audit: NumberAudit) -> list[str]:
    """The figures, slices and drivers, for the terminal."""
    known = [(words, estimate, shown) for words, estimate, shown in figures(audit) if estimate.defined]
    width = max(34, *(len(words) for words, *_ in known))
    found = [f"  {words:<{width}} {shown:<32} n = {e.n:,}, {e.method}" for words, e, shown in known]
    if audit.loss_change.defined:
        found.append(f"  {audit.paired_test.method}: p{p_equals(audit.paired_test.p_value)}")
    if audit.coverage is not None:
        found += _run_lines(audit)
    else:
        found += [
            f"  slice {s.name}: mean {audit.compared.loss} {number_interval_text(s.loss_change, signed=True)}, "
            f"q{p_equals(s.q_value)}"
            for s in changed_slices(audit)[:5]
        ]
    return found + [
        f"  more moves than chance in {s.name}: {interval_text(s.moved)}, {s.lift:.1f} times the overall rate"
        for s in audit.drivers[:5]
    ]


def changed_slices(audit: NumberAudit) -> list[NumberSlice]:
    """Slices whose mean loss changed (false-discovery rate of 5 %), the largest harm first."""
    sign = 1 if audit.compared.gain else -1
    return sorted((s for s in audit.slices if s.q_value <= 0.05), key=lambda s: sign * s.loss_change.value)


def surest_slices(audit: NumberAudit) -> list[NumberSlice]:
    """Every slice, the surest change in the mean loss first."""
    return sorted(audit.slices, key=lambda s: (math.isnan(s.q_value), s.q_value, s.name))


def worse_items(audit: NumberAudit) -> list[dict[str, object]]:
    """Moved items of evaluation runs that got worse beyond the tolerance."""
    return [flip for flip in audit.flips if flip.get("kind") == "worse"]


def _run_lines(audit: NumberAudit) -> list[str]:
    """Of evaluation runs: every slice, and the items that got worse with both answers."""
    found = []
    if slices := surest_slices(audit)[:MOST_SLICES]:
        width = max(len("slice"), *(len(short(s.name, 40)) for s in slices))
        found.append(f"  {'slice':<{width}} {'items':>7} {'before':>8} {'after':>8}  {'change in the mean':<32} q")
        for s in slices:
            means = (number_text(e.value) for e in (s.loss_old, s.loss_new))
            numbers = f"{s.rows:>7,} {' '.join(f'{mean:>8}' for mean in means)}  "
            change = f"{number_interval_text(s.loss_change, signed=True):<32}"
            found.append(f"  {short(s.name, 40):<{width}} {numbers}{change} {p_text(s.q_value)}")
    for item in worse_items(audit)[:MOST_ITEMS]:
        moved = f"({item['old']:.4g} -> {item['new']:.4g})"
        found.append(f"  worse {short(item_of(audit, item), 60)} {moved}{answers_text(item)}")
    if (more := audit.whole.counts.n["broken"] - MOST_ITEMS) > 0:
        found.append(f"  and {more:,} more items that got worse")
    return found


def tables(audit: NumberAudit) -> list[str]:
    """The slices, drivers and items, for Markdown."""
    runs = audit.coverage is not None
    loss = f"mean {audit.compared.loss}"
    found: list[str] = []
    if slices := (surest_slices(audit)[:MOST_SLICES] if runs else changed_slices(audit)[:10]):
        title = "By slice, the surest change first (q: false-discovery rate over all slices):"
        found += ["", title if runs else f"Slices whose {loss} changed (false-discovery rate 5 %):", ""]
        rows = [
            (
                s.name,
                f"{s.rows:,}",
                number_text(s.loss_old.value),
                number_text(s.loss_new.value),
                number_interval_text(s.loss_change, signed=True),
                share_text(s.worse.value),
                p_text(s.q_value),
            )
            for s in slices
        ]
        found += table(("slice", "items" if runs else "rows", f"{loss} before", "after", "change", "worse", "q"), rows)
    if drivers := audit.drivers[:10]:
        found += ["", "More moves than chance:", ""]
        rows_ = [(s.name, f"{s.rows:,}", interval_text(s.moved), f"{s.lift:.1f}") for s in drivers]
        found += table(("slice", "rows", "moved", "times the overall rate"), rows_)
    if runs and (worse := worse_items(audit)[:MOST_ITEMS]):
        total = audit.whole.counts.n["broken"]
        part = "" if total == len(worse) else f", {len(worse)} of {total:,}"
        shown = ("old", "new", "expected", "old answer", "new answer")
        found += ["", f"Items that got worse{part}:", "", *item_table(audit, worse, shown)]
    return found
