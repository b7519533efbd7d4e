"""HTML and SVG that is escaped by construction: text is text unless it was made by :func:`tag`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

VOID = {"meta", "input", "br", "link", "wbr"}
PLAIN = {"title", "desc"}  # they hold text alone
LONGEST_WORD = 20  # characters; a longer one may break where it has to, a shorter one never does


class Markup(str):
    """Text that is already HTML. Only this module and constant assets make it."""

    __slots__ = ()


def text(value: Any) -> Markup:
    """Any value as escaped text; control characters, which HTML cannot hold, are shown as a replacement mark."""
    if isinstance(value, Markup):
        return value
    shown = "".join(
        c if c in "\t\n" or (ord(c) >= 32 and not 0xD800 <= ord(c) <= 0xDFFF) else "\ufffd" for c in str(value)
    )
    return Markup(html.escape(shown, quote=True))


def join(children: Iterable[Any]) -> Markup:
    """Several pieces after each other; nested lists are flattened and None is nothing."""
    parts = []
    for child in children:
        if child is None:
            continue
        parts.append(join(child) if isinstance(child, list | tuple) else words(child))
    return Markup("".join(parts))


def words(value: Any) -> Markup:
    """Text that breaks between its words. Long ones may also break, after a separator where they have one.

    Examples
    --------
    >>> from lowchurn.report._markup import words
    >>> words("in Some-college")
    'in <span class="whole">Some-college</span>'
    >>> words("/data/release/candidate.parquet")
    '<span class="long">/<wbr>data/<wbr>release/<wbr>candidate.<wbr>parquet</span>'
    """
    if isinstance(value, Markup):
        return value
    return Markup("".join(_word(part) for part in re.split(r"(\s+)", str(value))))


def _word(part: str) -> Markup:
    if len(part) > LONGEST_WORD:
        pieces = [p for p in re.split(r"(?<=[/\\_=,.:;&?])", part) if p]
        return tag("span", [[tag("wbr") if i else None, _kept(p)] for i, p in enumerate(pieces)], class_="long")
    return _kept(part)


def _kept(part: str) -> Markup:
    """A short word in one piece: a browser would break it at its hyphens."""
    apart = len(part) <= LONGEST_WORD and re.search(r"\w[-/?]\w|--", part)
    return tag("span", text(part), class_="whole") if apart else text(part)


def tag(name: str, *children: Any, **attributes: Any) -> Markup:
    """An element. ``class_`` is class, ``aria_label`` is aria-label, False and None leave an attribute out."""
    shown = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        shown.append(f" {key}" if value is True else f' {key}="{text(value)}"')
    if name in VOID:
        return Markup(f"<{name}{''.join(shown)}>")
    content = "".join(map(text, children)) if name in PLAIN else join(children)
    return Markup(f"<{name}{''.join(shown)}>{content}</{name}>")


def section(name: str, title: str, *children: Any, class_: str | None = None) -> Markup:
    """A part of the page that a link can lead to."""
    return tag(
        "section",
        tag("h2", title, id=f"{name}-title"),
        *children,
        id=name,
        class_=class_,
        aria_labelledby=f"{name}-title",
    )


def data_table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    numbers: Iterable[int] = (),
    class_: str = "",
    keys: Sequence[Any] | None = None,
) -> Markup:
    """A table whose rows are named by their first cell. Where it is too wide it scrolls in a frame of its own, and on
    a phone each row is a card, whose lines are named by the heads.

    ``keys`` name the rows for the script.
    """
    right = set(numbers)
    shown = []
    for number, row in enumerate(rows):
        cells = [tag("th", row[0], scope="row")]
        cells += [
            tag("td", cell, data_head=heads[i] or None, class_="number" if i in right else None)
            for i, cell in enumerate(row[1:], start=1)
        ]
        shown.append(tag("tr", cells, data_row=None if keys is None else keys[number]))
    head = [tag("th", h, scope="col", class_="number" if i in right else None) for i, h in enumerate(heads)]
    whole = tag("table", tag("caption", caption), tag("thead", tag("tr", head)), tag("tbody", shown))
    frame = f"scroll stacked {class_}".strip()
    return tag("div", whole, class_=frame, tabindex="0", role="region", aria_label=caption)
