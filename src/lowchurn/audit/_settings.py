"""The settings of an audit, listed once: for Python, the command line, ``lowchurn.toml`` and the report."""

from __future__ import annotations

import math
import numbers
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from lowchurn._checks import check_choice, check_number, unknown_name
from lowchurn._reading import check_structure, read_toml
from lowchurn.audit._gate import Gate

Names = str | Sequence[str]
Class = str | int | float | bool


@dataclass(frozen=True)
class Settings:
    """What :func:`lowchurn.audit.audit` takes besides the two tables, where each is explained."""

    id: Names = "id"
    label: str | None = None
    by: Names = ()
    weight: str | None = None
    group: str | None = None
    prediction: Names | None = None
    score: Names | None = None
    threshold: float | Sequence[float] = 0.5
    proba: Sequence[str] | Mapping[str, str] | None = None
    classes: Sequence[Class] | None = None
    features: Names = ()
    value: Names | None = None
    target: str | None = None
    loss: Names | None = None
    gain: Names | None = None
    tolerance: float = 0.0
    relative: bool = False
    on_mismatch: str = "error"
    confidence: float = 0.95
    bootstrap: int = 1000
    sample: int = 300
    seed: int = 0
    memory_limit: str | None = None
    threads: int | None = None
    temp_directory: str | None = None
    old_name: str | None = None
    new_name: str | None = None
    partitions: bool = False
    remote: bool = False
    views: bool = False
    engine: str | None = None
    spark_master: str | None = None
    spark_conf: Names = ()

    @property
    def numeric(self) -> bool:
        """Outcomes are numbers."""
        return any(getattr(self, name) is not None for name in ("value", "loss", "gain"))

    def check(self) -> None:
        """Refuse values that are wrong whatever the tables are."""
        self._check_numbers()
        check_choice("audit", "on_mismatch", self.on_mismatch, ("error", "inner"))
        check_number("audit", "confidence", self.confidence, 0, 1, open_low=True, open_high=True)
        check_number("audit", "bootstrap", self.bootstrap, 100, 100_000)
        check_number("audit", "sample", self.sample, 0, 10_000)
        if not isinstance(self.seed, numbers.Integral) or isinstance(self.seed, bool) or self.seed < 0:
            raise ValueError(f"audit: seed must be a whole number, not negative, got {self.seed!r}.")
        if self.engine is None and (self.spark_master or self.spark_conf):
            raise ValueError("audit: spark_master= and spark_conf= are settings of engine='spark'.")
        if self.threads is not None:
            check_number("audit", "threads", self.threads, 1, 10_000)
        for name in ("old_name", "new_name", "engine", "spark_master"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"audit: {name} must be text, got {getattr(self, name)!r}.")

    def _check_numbers(self) -> None:
        """Refuse settings of numbers beside those of decisions, and without numbers."""
        given = self.given
        if not self.numeric:
            for name in ("target", "tolerance", "relative"):
                if name in given:
                    raise ValueError(f"audit: {name}= is about numbers. Name their column with value=.")
            return
        numbers = next(name for name in ("value", "loss", "gain") if name in given)
        for name in ("label", "prediction", "score", "threshold", "proba", "classes"):
            if name in given:
                instead = "The truth of numbers is target=." if name == "label" else "Leave one of them out."
                raise ValueError(f"audit: {name}= is for decisions and {numbers}= for numbers. {instead}")
        costs = [name for name in ("target", "loss", "gain") if name in given]
        if len(costs) > 1:
            raise ValueError(f"audit: give one of target=, loss= and gain=, got {' and '.join(costs)}.")
        check_number("audit", "tolerance", self.tolerance, 0, math.inf, open_high=True)
        if not isinstance(self.relative, bool):
            raise ValueError(f"audit: relative must be True or False, got {self.relative!r}.")

    @property
    def given(self) -> dict[str, object]:
        """The settings that differ from their defaults; an equal value of another type differs."""
        found = {f.name: (getattr(self, f.name), f.default) for f in fields(self)}
        return {
            name: value
            for name, (value, default) in found.items()
            if value is not default and (type(value) is not type(default) or bool(value != default))
        }


NAMES = tuple(f.name for f in fields(Settings))


@dataclass(frozen=True)
class Choices:
    """What :func:`lowchurn.audit.compare` takes to read the runs and to compare them, where each is explained."""

    kind: str = "auto"
    task: Names | None = None
    metric: str | None = None
    filter: str | None = None
    by: Names = ()
    threshold: float | None = None
    tolerance: float | None = None
    other_prompts: bool = False

    @property
    def given(self) -> dict[str, object]:
        """Those that differ from their defaults."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) not in (f.default, [], None)}

    def check(self) -> None:
        """Refuse values that are wrong whatever the runs are."""
        if self.threshold is not None:
            check_number("compare", "threshold", self.threshold, -math.inf, math.inf)
        if self.tolerance is not None:
            check_number("compare", "tolerance", self.tolerance, 0, math.inf, open_high=True)
            if self.threshold is not None:
                raise ValueError(
                    "compare: tolerance= is about numbers, and threshold= makes right and wrong of them. Give one."
                )


CHOICES = tuple(f.name for f in fields(Choices))
SHARED = ("confidence", "sample", "seed", "old_name", "new_name")  # settings of an audit that a comparison has too


@dataclass(frozen=True)
class Origin:
    """Where an audit was asked for, beyond its settings: shown in the report."""

    command: str = "lowchurn.audit.audit(...)"
    config: str | None = None
    """The ``lowchurn.toml`` that was read."""
    from_config: tuple[str, ...] = ()
    """Names of the settings and limits whose value the file gave."""
    limits: Mapping[str, object] = field(default_factory=dict)
    """The limits of the gate as ``gate.max_churn``."""


def read_config(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """The tables ``[audit]``, ``[gate]`` and ``[compare]`` of a ``lowchurn.toml``: names, types and limits are checked.

    The limits of a comparison are in ``[compare.gate]``.
    """
    who = f"audit: {os.fspath(path)!r}"
    found = read_toml("audit", path, dict[str, Any])
    known = ("audit", "gate", "compare")
    for name, table in found.items():
        if name not in known:
            raise unknown_name(who, "table", name, known)
        if not isinstance(table, dict):
            raise ValueError(f"{who}: [{name}] must be a table, got {table!r}.")
    tables: dict[str, dict[str, Any]] = {name: found.get(name, {}) for name in known}
    _check_table(path, "audit", tables["audit"], NAMES)
    compare = {name: value for name, value in tables["compare"].items() if name != "gate"}
    _check_table(path, "compare", compare, (*CHOICES, *SHARED))
    _check_limits(who, tables["gate"], "gate")
    _check_limits(who, tables["compare"].get("gate", {}), "compare.gate")
    return tables


def _check_table(path: str | os.PathLike[str], name: str, table: dict[str, Any], known: Sequence[str]) -> None:
    for setting in table:
        if setting not in known:
            raise unknown_name(f"audit: {os.fspath(path)!r}", "setting", setting, known)
    where = f"[{name}] of {os.fspath(path)!r}"
    if name == "compare":
        check_structure("audit", where, {key: table[key] for key in CHOICES if key in table}, Choices)
        table = {key: table[key] for key in SHARED if key in table}
    check_structure("audit", where, table, Settings)


def _check_limits(who: str, table: Any, name: str) -> None:
    try:
        Gate.from_dict(table)
    except ValueError as error:
        # The limit is named as the file has it: gate.slices.country.max_churn.
        shown = re.sub(r"^(gate[^:]*): (?=[a-z_]+ must)", r"\1.", str(error)).replace("gate", name, 1)
        raise ValueError(f"{who}: {shown}") from None
