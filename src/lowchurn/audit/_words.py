"""Words that the summaries of all audits share: p-values, checks of the gate, what was audited."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lowchurn.audit._gate import FAIL, INCONCLUSIVE, PASS, Check
from lowchurn.audit._markdown import cell

if TYPE_CHECKING:
    from lowchurn.audit._audited import Outcome
    from lowchurn.audit._provenance import Provenance

MOST_SLICES = 50  # of evaluation runs, in words
MOST_ITEMS = 20
HEADLINES = {
    PASS: "It may ship: every limit is kept, even at the unfavourable end of its interval.",
    FAIL: "It should not ship: a limit is broken, even at the favourable end of its interval.",
    INCONCLUSIVE: "Not settled: an interval straddles its limit, or evidence is missing.",
}


def p_text(p: float) -> str:
    """A p-value in words."""
    return "undefined" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def p_equals(p: float) -> str:
    """The same behind a letter: " = 0.0100" or " < 0.0001"."""
    text = p_text(p)
    return f" {text}" if text.startswith("<") else f" = {text}"


def short(value: object, most: int) -> str:
    """One line of text, cut off where it is long."""
    text = " ".join(str(value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def item_of(audit: Outcome, flip: Mapping[str, object]) -> str:
    """How an item is named in ``never_break``."""
    return "/".join(str(flip[name]) for name in audit.columns.id)


def answers_text(item: Mapping[str, object]) -> str:
    """Both answers to an item of evaluation runs, where they are known."""
    answers = [short(item[side], 60) for side in ("old answer", "new answer") if side in item]
    return f": {' -> '.join(map(repr, answers))}" if answers else ""


def table_lines(head: str, rows: list[str]) -> list[str]:
    """A table of Markdown whose cells are safe already."""
    return [f"| {row} |" for row in (head, " | ".join("---" for _ in head.split(" | ")), *rows)]


def check_row(check: Check) -> str:
    """A check of the gate as the cells of a table."""
    shown = check.measured
    for more, noun in ((check.more_rows, "rows"), (check.more_labels, "labels")):
        if check.outcome == INCONCLUSIVE and math.isfinite(more):
            shown += f"; about {more:,.0f} more {noun} needed"
    return f"{check.outcome} | {cell(check.where)} | `{check.name}` | {check.allowed} | {shown}"


def item_table(audit: Outcome, items: list[dict[str, object]], wanted: tuple[str, ...]) -> list[str]:
    """Items of evaluation runs with their answers side by side, as a table of Markdown."""
    columns = [name for name in wanted if any(name in item for item in items)]

    def shown(value: object) -> str:
        return cell(f"{value:.4g}" if isinstance(value, float) else short("" if value is None else value, 200))

    rows = [" | ".join(map(shown, (item_of(audit, i), *(i.get(c) for c in columns)))) for i in items]
    return table_lines(" | ".join(("item", *columns)), rows)


def audited_lines(made: Provenance) -> list[str]:
    """What was audited: names of the models, files with their checksums, settings."""
    lines = []
    for side, source in (("Old", made.old), ("New", made.new)):
        known = [source.name, source.path, f"sha256 {source.sha256}" if source.sha256 else None]
        shown = ", ".join(cell(part) for part in known if part) or "a table in memory"
        lines.append(f"- {side}: {shown}, {source.rows:,} rows")
    if made.settings:
        shown = ", ".join(
            f"{cell(name)} = {cell(value)}{' (file)' if name in made.from_config else ''}"
            for name, value in made.settings.items()
        )
        lines.append(f"- Settings: {shown}" + (f"; file: {cell(made.config)}" if made.config else ""))
    return [*lines, f"- lowchurn {made.lowchurn}"]
