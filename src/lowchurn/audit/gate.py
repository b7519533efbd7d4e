"""May it ship? Limits, and verdicts that are judged on the interval's bound and not on the point."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from lowchurn.audit import stats
from lowchurn.audit.formats import interval_text, share_text
from lowchurn.audit.stats import Estimate
from lowchurn.checks import check_number, unknown_name

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
EXIT_CODES = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}


@dataclass(frozen=True)
class Limits:
    """What is allowed of one set of rows.

    Examples
    --------
    >>> from lowchurn.audit import Limits
    >>> Limits(max_churn=0.03).given
    {'max_churn': 0.03}
    """

    max_churn: float | None = None
    """Largest share of decisions that may change."""
    max_broken: float | None = None
    """Largest share of labelled rows that may go from right to wrong."""
    not_worse_than: float | None = None
    """How far the accuracy may fall."""
    min_rows: int | None = None
    """Fewest rows to judge on. Slices with fewer are listed, not judged; a whole table with fewer is inconclusive."""

    def __post_init__(self) -> None:
        for name in ("max_churn", "max_broken", "not_worse_than"):
            if (value := getattr(self, name)) is not None:
                check_number("gate", name, value, 0, 1)
        if self.min_rows is not None and (
            not isinstance(self.min_rows, int) or isinstance(self.min_rows, bool) or self.min_rows < 0
        ):
            raise ValueError(f"gate: min_rows must be a whole number of rows, got {self.min_rows!r}.")

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Gate(Limits):
    """Limits for all rows and for slices.

    Parameters
    ----------
    max_churn, max_broken, not_worse_than, min_rows : optional
        See :class:`Limits`.
    slices : mapping, optional
        Limits by slice: the name of a slice column (``"country"``: each of its values), one value
        (``"country=DE"``, which then has the word for it) or ``"*"`` (each slice of every column).

    Examples
    --------
    >>> from lowchurn.audit import Gate
    >>> gate = Gate(max_churn=0.03, slices={"country": {"max_churn": 0.05, "min_rows": 200}})
    >>> gate.slices["country"].max_churn
    0.05
    """

    slices: Mapping[str, Limits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        made = {
            name: limits if isinstance(limits, Limits) else _from_table(Limits, limits, f"gate.slices.{name}")
            for name, limits in dict(self.slices).items()
        }
        object.__setattr__(self, "slices", made)

    @property
    def given(self) -> dict[str, Any]:
        own = {f.name: getattr(self, f.name) for f in fields(Limits)}
        found: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
        if self.slices:
            found["slices"] = {name: limits.given for name, limits in self.slices.items()}
        return found

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Gate:
        """From plain values, as a TOML file holds them.

        Examples
        --------
        >>> from lowchurn.audit import Gate
        >>> Gate.from_dict({"max_churn": 0.03}).max_churn
        0.03
        >>> Gate.from_dict({"max_chrn": 0.03})
        Traceback (most recent call last):
        ...
        ValueError: gate: unknown limit 'max_chrn'. Did you mean 'max_churn'...
        """
        return _from_table(cls, table, "gate")


def _from_table(kind: type, table: Any, who: str) -> Any:
    if not isinstance(table, Mapping):
        raise ValueError(f"{who}: limits must be a table of names and numbers, got {table!r}.")
    known = [f.name for f in fields(kind)]
    for name in table:
        if name not in known:
            raise unknown_name(who, "limit", name, known)
    return kind(**table)


def read_config(path: str | Path) -> dict[str, dict[str, Any]]:
    """The tables ``[audit]`` and ``[gate]`` of a ``lowchurn.toml``.

    Examples
    --------
    >>> from lowchurn.audit import read_config
    >>> read_config("no-such.toml")
    Traceback (most recent call last):
    ...
    ValueError: gate: cannot read 'no-such.toml': No such file or directory.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"gate: cannot read {str(path)!r}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"gate: {str(path)!r} is not valid TOML: {error}.") from None
    for name, value in table.items():
        if name not in ("audit", "gate"):
            raise unknown_name(f"gate: {str(path)!r}", "table", name, ("audit", "gate"))
        if not isinstance(value, dict):
            raise ValueError(f"gate: [{name}] in {str(path)!r} must be a table, got {value!r}.")
    return {"audit": table.get("audit", {}), "gate": table.get("gate", {})}


@dataclass(frozen=True)
class Check:
    """One limit, judged.

    Examples
    --------
    >>> import pandas as pd, lowchurn
    >>> rows = pd.DataFrame({"id": range(500), "prediction": 0})
    >>> verdict = lowchurn.audit(rows, rows).gate(max_churn=0.01)
    >>> verdict.checks[0].outcome, verdict.checks[0].limit
    ('PASS', 0.01)
    """

    name: str
    """The limit: ``max_churn``, ``max_broken``, ``not_worse_than`` or ``min_rows``."""
    where: str
    """The slice, or ``all rows``."""
    outcome: str
    limit: float
    estimate: Estimate
    more_rows: float
    """Rows beyond those at hand that would settle an inconclusive check, at the same rates; NaN if settled."""
    words: str

    def __str__(self) -> str:
        return f"{self.outcome}: {self.words}"


@dataclass(frozen=True)
class Verdict:
    """All checks together: one FAIL fails, else one INCONCLUSIVE leaves it open, else it is a PASS.

    Examples
    --------
    >>> import pandas as pd, lowchurn
    >>> rows = pd.DataFrame({"id": range(500), "prediction": 0})
    >>> verdict = lowchurn.audit(rows, rows).gate(max_churn=0.01)
    >>> verdict.outcome, verdict.exit_code, bool(verdict)
    ('PASS', 0, True)
    """

    outcome: str
    checks: tuple[Check, ...]
    unjudged: tuple[str, ...] = ()
    """Slices with fewer rows than their ``min_rows``."""
    gate: Gate = field(default_factory=Gate)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]

    @property
    def passed(self) -> bool:
        return self.outcome == PASS

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return "\n".join([self.outcome, *(f"  {check}" for check in self.checks)])


Rows = tuple[str, int, Callable[[str, float], Estimate]]


def judge(gate: Gate, whole: Rows, slices: Sequence[tuple[str, Rows]], confidence: float) -> Verdict:
    """Judge every limit.

    A slice fails on an interval widened for the number of slices under the same rule (Bonferroni), since the
    worst of many slices looks bad by chance; to pass, each must pass at the plain level, which needs no correction.
    """
    checks: list[Check] = []
    unjudged: list[str] = []
    where, n, _ = whole
    if gate.min_rows is not None:
        checks.append(_min_rows(where, n, gate.min_rows))
    checks += _judge_limits(gate, whole, confidence, confidence)
    for rule, limits in gate.slices.items():
        chosen = [rows for column, rows in slices if _matches(rule, column, rows[0], gate.slices)]
        known = {column for column, _ in slices} | {rows[0] for _, rows in slices} | {"*"}
        if rule not in known:
            raise unknown_name("gate", "slice", rule, known)
        judged = [rows for rows in chosen if rows[1] >= (limits.min_rows or 0)]
        unjudged += [f"{rows[0]} ({rows[1]:,} rows)" for rows in chosen if rows[1] < (limits.min_rows or 0)]
        for rows in judged:
            checks += _judge_limits(limits, rows, confidence, 1 - (1 - confidence) / len(judged))
    if not checks and not unjudged:
        raise ValueError("gate: set at least one limit: max_churn, max_broken, not_worse_than, min_rows or slices.")
    outcomes = {check.outcome for check in checks}
    outcome = FAIL if FAIL in outcomes else INCONCLUSIVE if INCONCLUSIVE in outcomes or not checks else PASS
    return Verdict(outcome, tuple(checks), tuple(unjudged), gate)


def _matches(rule: str, column: str, name: str, rules: Mapping[str, Limits]) -> bool:
    """The most special rule has the word: one value, then its column, then every slice."""
    if rule == name:
        return True
    if rule == column:
        return name not in rules
    return rule == "*" and name not in rules and column not in rules


def _min_rows(where: str, n: int, limit: int) -> Check:
    estimate = Estimate(float(n), float(n), float(n), n, "counted", float(n))
    if n >= limit:
        return Check(
            "min_rows", where, PASS, limit, estimate, math.nan, f"{where}: {n:,} rows, at least {limit:,} asked."
        )
    words = f"{where}: {n:,} rows, {limit - n:,} more are needed for the {limit:,} asked."
    return Check("min_rows", where, INCONCLUSIVE, limit, estimate, limit - n, words)


def _judge_limits(limits: Limits, rows: Rows, confidence: float, strict: float) -> list[Check]:
    where, _, estimate_at = rows
    checks = []
    for name, quantity, noun in (
        ("max_churn", "churn", "changed decisions"),
        ("max_broken", "broken", "broken decisions"),
        ("not_worse_than", "accuracy_change", "change in accuracy"),
    ):
        limit = getattr(limits, name)
        if limit is None:
            continue
        estimate, wide = estimate_at(quantity, confidence), estimate_at(quantity, strict)
        if name == "not_worse_than":
            rates = (estimate_at("fixed", confidence).value, estimate_at("broken", confidence).value)
            level = strict if estimate.value < -limit else confidence
            checks.append(_judge_change(name, where, noun, limit, estimate, wide, rates, level))
        else:
            # More rows have to lead to a PASS at the plain level, or to a FAIL at the stricter one.
            level = strict if estimate.value > limit else confidence
            checks.append(_judge_share(name, where, noun, limit, estimate, wide, level))
    return checks


def _judge_share(
    name: str, where: str, noun: str, limit: float, estimate: Estimate, wide: Estimate, confidence: float
) -> Check:
    if not estimate.defined:
        return _no_evidence(name, where, noun, limit, estimate)
    text = f"{where}: {noun} {interval_text(estimate)}"
    if estimate.high <= limit:
        return Check(name, where, PASS, limit, estimate, math.nan, f"{text}, limit {share_text(limit)}.")
    if wide.low > limit:
        return Check(name, where, FAIL, limit, estimate, math.nan, f"{text}, above the limit {share_text(limit)}.")
    needed = stats.rows_needed(
        estimate,
        limit,
        confidence,
        lambda size: stats.proportion(estimate.value, max(1, round(size)), confidence, size),
    )
    return _open(name, where, text, limit, estimate, needed, share_text(limit))


def _judge_change(
    name: str,
    where: str,
    noun: str,
    margin: float,
    estimate: Estimate,
    wide: Estimate,
    rates: tuple[float, float],
    confidence: float,
) -> Check:
    if not estimate.defined:
        return _no_evidence(name, where, noun, margin, estimate)
    text = f"{where}: {noun} {interval_text(estimate, signed=True)}"
    limit = share_text(-margin, signed=True)
    if estimate.low >= -margin:
        return Check(name, where, PASS, margin, estimate, math.nan, f"{text}, not worse than {limit}.")
    if wide.high < -margin:
        return Check(name, where, FAIL, margin, estimate, math.nan, f"{text}, worse than {limit}.")
    # The mirror image: the loss of accuracy has to stay below the margin.
    loss = Estimate(-estimate.value, -estimate.high, -estimate.low, estimate.n, estimate.method, estimate.effective)

    def at(size: float) -> Estimate:
        there = stats.paired_difference(*rates, max(1, round(size)), confidence, size)
        return Estimate(-there.value, -there.high, -there.low, there.n, there.method, size)

    return _open(name, where, text, margin, estimate, stats.rows_needed(loss, margin, confidence, at), limit)


def _open(name: str, where: str, text: str, limit: float, estimate: Estimate, needed: float, shown: str) -> Check:
    if math.isinf(needed):
        words = f"{text} straddles the limit {shown} and lies on it: more rows will hardly settle it."
        return Check(name, where, INCONCLUSIVE, limit, estimate, math.inf, words)
    more = max(needed - estimate.n, 1.0)
    # The interval is off the limit only where a slice would fail by itself, but not as the worst of many.
    beyond = estimate.high < -limit if name == "not_worse_than" else estimate.low > limit
    state = (
        f"is beyond the limit {shown}, but the worst of many slices may be"
        if beyond
        else f"straddles the limit {shown}"
    )
    words = f"{text} {state}: about {more:,.0f} more rows would settle it at these rates."
    return Check(name, where, INCONCLUSIVE, limit, estimate, more, words)


def _no_evidence(name: str, where: str, noun: str, limit: float, estimate: Estimate) -> Check:
    words = f"{where}: {noun} undefined, since there are no labelled rows. Give a label column."
    return Check(name, where, INCONCLUSIVE, limit, estimate, math.inf, words)
