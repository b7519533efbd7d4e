"""Structured files from outside, checked before they are used.

A model file, a report, a frontier or a TOML file may be damaged or made by somebody else. Its structure is written
down once as a type (a dataclass), and reading gives a value of that type or one clear line.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lowchurn._extras import importing
from lowchurn._terminal import one_line

T = TypeVar("T")

# Far more than any of our files needs; deeper nesting exhausts the stack of the parser.
DEEPEST = 64


def read_json(who: str, name: str, data: bytes | str, kind: type[T]) -> T:
    """Decode JSON and check it against a type that msgspec supports, such as a dataclass or ``dict[str, float]``.

    ``who`` and ``name`` ("the frontier 'tried.json'") begin the error message.
    """
    return _parsed(who, name, "JSON", lambda: json.loads(data), kind)  # of bytes it finds the encoding itself


def read_toml(who: str, path: str | os.PathLike[str], kind: type[T]) -> T:
    """Read a TOML file and check it against a type."""
    shown = repr(os.fspath(path))
    try:
        return _parsed(who, shown, "TOML", lambda: tomllib.loads(Path(path).read_text(encoding="utf-8-sig")), kind)
    except OSError as error:
        raise ValueError(f"{who}: cannot read {shown}: {error.strerror}.") from None


def _parsed(who: str, name: str, form: str, parse: Callable[[], object], kind: type[T]) -> T:
    try:
        found = parse()
    except RecursionError:
        raise ValueError(f"{who}: {name} is nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"{who}: {name} is not valid {form} ({one_line(error)}).") from None
    return check_structure(who, name, found, kind)


def check_structure(who: str, name: str, found: object, kind: type[T]) -> T:
    """Check plain data (dicts, lists, strings, numbers) against a type and return it as that type."""
    with importing(who, "save"):
        import msgspec
    if _depth(found) > DEEPEST:
        raise ValueError(f"{who}: {name} is nested too deeply.")
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{who}: {name} has the wrong structure: {one_line(error)}.") from None


def _depth(value: object) -> int:
    """How many lists and dicts are inside each other, without recursion."""
    deepest, level = 0, [value]
    while level and deepest <= DEEPEST:
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        deepest, level = deepest + 1, inner
    return deepest
