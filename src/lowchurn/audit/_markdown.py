"""Tables of Markdown whose cells hold any text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from lowchurn._terminal import printable


def cell(value: object) -> str:
    """Text that stays inside a table's cell, whatever it holds."""
    escaped = html.escape(str(value), quote=False)
    for mark in "\\`*_[]|~":
        escaped = escaped.replace(mark, f"\\{mark}")
    return printable(" ".join(escaped.split()))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; every cell is made safe."""
    lines = [list(map(cell, heads)), ["---"] * len(heads), *(list(map(cell, row)) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]
