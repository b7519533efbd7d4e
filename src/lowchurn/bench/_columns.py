"""The columns of the evidence for what is past the paper: which settings a column contains, and what it serves."""

from __future__ import annotations

from collections.abc import Iterable

from lowchurn.bench._segments import Setting
from lowchurn.bench._tables import METHODS

REFERENCE = "distill"
DIAL = "soup"
BEST = "best of the paper"  # in the place of a reference: the least of the paper's methods, row by row
STICKY = "sticky"  # a column for each estimate
COLD = Setting("cold")
# The columns besides those of sticky: strategies, and "two-teachers soup" for several students that are averaged.
COLUMNS = (
    *METHODS,
    DIAL,
    "interpolate",
    "two-teachers",
    "two-teachers soup",
    "served-mix",
    "focal",
    "dissonance",
    "constrained",
    "local-ls",
)
PAST = {*COLUMNS, STICKY} - set(METHODS)  # strategies past the paper
SERVING = ("1", "2", "many")  # models that answer a request
SERVE_MANY = ("served-mix",)  # the base and all members
# The base and one more model; the base's probabilities in an estimate cost no other model.
SERVE_TWO = {f"{STICKY} {one}{base}" for one in ("1 cold", "1 warm", "soup") for base in ("", " + base", ", trust")}


def column_of(setting: Setting) -> str:
    """The column of the evidence that a setting belongs to."""
    if setting.strategy == "two-teachers" and setting.parameters["students"] != 1:
        return "two-teachers soup"
    return _estimate(setting) if setting.strategy == STICKY else setting.strategy


def _estimate(setting: Setting) -> str:
    """A column for each estimate of sticky, such as ``sticky 8 warm`` or, of as many warm and cold, ``sticky 8+8``."""
    known = setting.parameters
    start, members = known["start"], f"{known['members']}"
    which = f"{members}+{members}" if start == "both" else f"{members} {start}"
    estimate = "soup" if known["average"] == "weights" else which
    base = " + base" if known["toward_base"] else ""
    return f"{STICKY} {estimate}{base}" + (", trust" if known.get("trust") else "")


def served(column: str) -> str:
    """How many models answer a request: one of :data:`SERVING`."""
    if column in COLUMNS:
        return "many" if column in SERVE_MANY else "1"
    return "2" if column in SERVE_TWO else "many"


def in_order(columns: Iterable[str]) -> tuple[str, ...]:
    """Columns as a table has them: the paper's, those past it, and sticky by what it serves."""
    there = set(columns)
    sticky = sorted(there - set(COLUMNS), key=lambda name: (SERVING.index(served(name)), name))
    return (*(name for name in COLUMNS if name in there), *sticky)


def is_shown(setting: Setting) -> bool:
    """Whether there is a column for a setting."""
    return setting.strategy == STICKY or column_of(setting) in COLUMNS


def columns_of(reference: str) -> tuple[str, ...]:
    """The columns that a reference is the least of."""
    return METHODS if reference == BEST else (reference,)


def paper_note(columns: Iterable[str]) -> list[str]:
    """A note where the best of the paper is not that of all its methods."""
    ran = [name for name in METHODS if name in set(columns)]
    return [f"Of the paper's methods only these were run: {', '.join(ran)}."] if len(ran) < len(METHODS) else []
