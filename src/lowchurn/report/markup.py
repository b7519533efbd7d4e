"""HTML and SVG that is escaped by construction: text is text unless it was made by :func:`tag`."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

VOID = {"meta", "input", "br", "link"}


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
        parts.append(join(child) if isinstance(child, list | tuple) else text(child))
    return Markup("".join(parts))


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
    return Markup(f"<{name}{''.join(shown)}>{join(children)}</{name}>")


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
    class_: str = "scroll",
) -> Markup:
    """A table whose rows are named by their first cell, in a frame that scrolls where it is too wide."""
    right = set(numbers)
    shown = []
    for row in rows:
        cells = [tag("th", row[0], scope="row")]
        cells += [tag("td", cell, class_="number" if i in right else None) for i, cell in enumerate(row[1:], start=1)]
        shown.append(tag("tr", cells))
    head = [tag("th", h, scope="col", class_="number" if i in right else None) for i, h in enumerate(heads)]
    whole = tag("table", tag("caption", caption), tag("thead", tag("tr", head)), tag("tbody", shown))
    return tag("div", whole, class_=class_, tabindex="0", role="region", aria_label=caption)
