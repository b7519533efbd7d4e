"""Text from data, safe to print: no value of a table, a file or a name can move the cursor or forge a line."""

from __future__ import annotations

import re
import unicodedata

# Invisible, but part of ordinary words and emoji: zero-width non-joiner and joiner.
_HARMLESS = {"\u200c", "\u200d"}
# Controls, lone surrogates, line and paragraph separators, and format characters such as overrides of direction.
_UNSAFE = {"Cc", "Cs", "Zl", "Zp", "Cf"}
# A message that is quoted in another one is cut off after this many characters.
LONGEST = 300


def printable(text: object) -> str:
    r"""Any text as one line without control characters; these are shown as Python would write them.

    Escape codes (C0 and C1), line breaks, tabs, separators, lone surrogates and characters that override the
    direction of writing are replaced by ``\x1b``, ``\n``, ``\u202e`` and the like; all other characters stay.
    """
    shown = str(text)
    if shown.isascii() and shown.isprintable():
        return shown
    return "".join(repr(c)[1:-1] if _is_unsafe(c) else c for c in shown)


def one_line(text: object, whole: bool = False) -> str:
    r"""A message as one line: line breaks become spaces, control characters are shown as escapes.

    It is to be quoted in another sentence, so its final dot is left out and a long one is cut off, unless ``whole``.
    """
    line = printable(re.sub(r"\s*[\r\n]\s*", " ", str(text).strip()))
    if whole:
        return line
    line = line.rstrip(".")
    return line if len(line) <= LONGEST else line[:LONGEST] + " ..."


def _is_unsafe(character: str) -> bool:
    return character not in _HARMLESS and unicodedata.category(character) in _UNSAFE
