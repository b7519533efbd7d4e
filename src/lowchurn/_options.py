"""Error messages for the command line: settings are named as options there and as arguments in Python.

Errors are worded for Python (``use on_mismatch='inner'``); the command line renames the settings in them, in one place
(``use --on-mismatch inner``).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

_VERBS = "must|cannot|needs|has to|is not|and|or"
_QUOTES = ("'", '"')
# Quoted text is a value, such as a path or the name of a column: nothing in it is a setting.
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_LIST = rf"\[(?:{_QUOTED})(?:, (?:{_QUOTED}))*\]"


def as_options(message: str, names: Mapping[str, str]) -> str:
    """Name the settings in an error message as options of the command line.

    Renamed are ``name=``, ``name='value'``, ``name=(a, b)``, ``name=['a', 'b']``, names with an underscore, and any
    name that is the subject of the message (``audit: classes must differ``). Quoted values and the list behind
    "Known:" are left as they are, since they come from data. ``names`` maps names in Python to options.
    """
    if not names:
        return message
    text, known, listed = message.partition("Known: ")
    each = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    long = "|".join(sorted((re.escape(n) for n in names if "_" in n), key=len, reverse=True)) or "(?!)"
    settings = re.compile(
        rf"(?<![\w.\[=-])(?P<set>{each})=(?P<value>{_QUOTED}|{_LIST}|\([^()'\"]*\)|[\w.+-]*\w)?(?![\w=])"
        rf"|(?P<quoted>{_QUOTED})"
        rf"|(?P<start>^\w+: )(?P<subject>{each})(?= (?:{_VERBS})\b)"
        rf"|(?<![\w.\[=-])(?P<long>{long})(?![\w=])"
    )

    def renamed(found: re.Match[str]) -> str:
        if found["quoted"] is not None:
            return found["quoted"]
        if found["subject"] is not None:
            return found["start"] + names[found["subject"]]
        if found["long"] is not None:
            return names[found["long"]]
        option, value = names[found["set"]], found["value"]
        if value is None or value == "True":
            return option
        if value.startswith("("):
            return " ".join(f"{option} {shlex.quote(v.strip())}" for v in value[1:-1].split(",") if v.strip())
        if value.startswith("["):
            return " ".join(f"{option} {shlex.quote(v[1:-1])}" for v in re.findall(_QUOTED, value))
        return f"{option} {shlex.quote(value[1:-1]) if value[0] in _QUOTES else value}"

    return settings.sub(renamed, text) + known + listed


def option_names(command: Any, **also: str) -> dict[str, str]:
    """Names of a command's parameters in Python and as options, read from the command itself.

    ``command`` is what ``typer.main.get_command`` returns. ``also`` adds names that Python gives to the
    same setting: ``features="--feature"``.
    """
    found = {}
    for parameter in command.params:
        options = [o for o in getattr(parameter, "opts", ()) if o.startswith("-")]
        if options:
            found[parameter.name] = max(options, key=len)
    return found | also
