"""HTML and SVG that is escaped by construction: text is text unless it was made by :func:`tag`."""

from __future__ import annotations

import html
from collections.abc import Iterable
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
