"""Text from data, safe to print: no value of a table, a file or a name can move the cursor or forge a line."""

from __future__ import annotations

import unicodedata

# Invisible, but part of ordinary words and emoji: zero-width non-joiner and joiner.
_HARMLESS = {"\u200c", "\u200d"}
# Controls, lone surrogates, line and paragraph separators, and format characters such as overrides of direction.
_UNSAFE = {"Cc", "Cs", "Zl", "Zp", "Cf"}


def printable(text: object) -> str:
    r"""Any text as one line without control characters; these are shown as Python would write them.

    Escape codes (C0 and C1), line breaks, tabs, separators, lone surrogates and characters that override the
    direction of writing are replaced by ``\x1b``, ``\n``, ``\u202e`` and the like; all other characters stay.

    Examples
    --------
    >>> from lowchurn._terminal import printable
    >>> print(printable("caf\u00e9\x1b[2J\nPASS\u202e"))
    café\x1b[2J\nPASS\u202e
    """
    shown = str(text)
    if shown.isascii() and shown.isprintable():
        return shown
    return "".join(repr(c)[1:-1] if _is_unsafe(c) else c for c in shown)


def _is_unsafe(character: str) -> bool:
    return character not in _HARMLESS and unicodedata.category(character) in _UNSAFE
