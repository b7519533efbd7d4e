"""May it ship? Limits, and verdicts that are judged on the interval's bound and not on the point.

Limits on accuracy need labels: those of the tables, or a review of disagreements that people labelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from lowchurn._checks import check_choice, check_number, unknown_name
from lowchurn._display import interval_text, share_text
from lowchurn._estimates import Estimate, paired_difference, proportion
from lowchurn._terminal import printable
from lowchurn.audit import _statistics as stats

if TYPE_CHECKING:
    from lowchurn.audit._review import Review

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
EXIT_CODES = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}
POLICIES = ("fail", "warn", "pass")


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
                _check_share(name, value)
        if self.min_rows is not None and (
            not isinstance(self.min_rows, int) or isinstance(self.min_rows, bool) or self.min_rows < 0
        ):
            raise ValueError(f"gate: min_rows must be a whole number of rows, got {self.min_rows!r}.")

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def _check_share(name: str, value: Any) -> None:
    try:
        check_number("gate", name, value, 0, 1)
    except ValueError as error:
        percent = isinstance(value, int | float) and not isinstance(value, bool) and 1 < value <= 100
        hint = f" It is a share: {value:g} percent is {value / 100:g}." if percent else ""
        raise ValueError(f"{error}{hint}") from None


@dataclass(frozen=True)
class Gate(Limits):
    """Limits for all rows and for slices.

    Parameters
    ----------
    max_churn, max_broken, not_worse_than, min_rows : optional
        See :class:`Limits`.
    slices : mapping, optional
        Limits by slice: the name of a slice column (``"country"``: each of its values), one value
        (``"country=DE"``, which then overrides its column) or ``"*"`` (each slice of every column).
    inconclusive : {"fail", "warn", "pass"}, default "fail"
        What an INCONCLUSIVE verdict means for a pipeline: exit code 3, or 0 with or without a warning.

    Examples
    --------
    >>> from lowchurn.audit import Gate
    >>> gate = Gate(max_churn=0.03, slices={"country": {"max_churn": 0.05, "min_rows": 200}})
    >>> gate.slices["country"].max_churn
    0.05
    """

    slices: Mapping[str, Limits] = field(default_factory=dict)
    inconclusive: str = "fail"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("gate", "inconclusive", self.inconclusive, POLICIES)
        if not isinstance(self.slices, Mapping):
            raise ValueError(f"gate: slices must be a table of slices and their limits, got {self.slices!r}.")
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
        if self.inconclusive != "fail":
            found["inconclusive"] = self.inconclusive
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
    try:
        return kind(**table)
    except ValueError as error:
        raise ValueError(str(error).replace("gate: ", f"{who}: ", 1)) from None


@dataclass(frozen=True)
class Check:
    """One limit, judged.

    Examples
    --------
    >>> import pandas as pd
    >>> from lowchurn.audit import audit
    >>> rows = pd.DataFrame({"id": range(500), "prediction": 0})
    >>> verdict = audit(rows, rows).gate(max_churn=0.01)
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
    more_labels: float = math.nan
    """Labelled disagreements beyond those at hand that would settle it, where it is judged by a review."""

    def __str__(self) -> str:
        return printable(f"{self.outcome}: {self.words}")


@dataclass(frozen=True)
class Verdict:
    """All checks together: one FAIL fails, else one INCONCLUSIVE leaves it open, else it is a PASS.

    Examples
    --------
    >>> import pandas as pd
    >>> from lowchurn.audit import audit
    >>> rows = pd.DataFrame({"id": range(500), "prediction": 0})
    >>> verdict = audit(rows, rows).gate(max_churn=0.01)
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
        """0 for PASS, 1 for FAIL, 3 for INCONCLUSIVE unless the gate's policy is to warn or to pass."""
        open_ = self.outcome == INCONCLUSIVE and self.gate.inconclusive != "fail"
        return 0 if open_ else EXIT_CODES[self.outcome]

    @property
    def passed(self) -> bool:
        return self.outcome == PASS

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return "\n".join([self.outcome, *(f"  {check}" for check in self.checks)])


@dataclass(frozen=True)
class Evidence:
    """What is known of one set of rows: any figure at any confidence, and the review that accuracy comes from."""

    where: str
    rows: int
    figure: Callable[[str, float], Estimate]
    review: Review | None = None
    is_slice: bool = False

    def estimate(self, quantity: str, confidence: float) -> Estimate:
        if self.review is not None and quantity != "churn":
            reviewed = {"broken": "broken_rows", "fixed": "fixed_rows", "accuracy_change": "accuracy_change"}
            found: Estimate = getattr(self.review, reviewed[quantity])
            return found
        return self.figure(quantity, confidence)


def judge(gate: Gate, whole: Evidence, slices: Sequence[tuple[str, Evidence]], confidence: float) -> Verdict:
    """Judge every limit.

    A slice fails on an interval widened for the number of slices under the same rule (Bonferroni), since the
    worst of many slices looks bad by chance; to pass, each must pass at the plain level, which needs no correction.
    """
    checks: list[Check] = []
    unjudged: list[str] = []
    if gate.min_rows is not None:
        checks.append(_min_rows(whole.where, whole.rows, gate.min_rows))
    checks += _judge_limits(gate, whole, confidence, confidence)
    for rule, limits in gate.slices.items():
        chosen = [rows for column, rows in slices if _matches(rule, column, rows.where, gate.slices)]
        known = {column for column, _ in slices} | {rows.where for _, rows in slices} | {"*"}
        if rule not in known:
            raise unknown_name("gate", "slice", rule, known)
        least = limits.min_rows or 0
        judged = [rows for rows in chosen if rows.rows >= least]
        unjudged += [f"{rows.where} ({rows.rows:,} rows)" for rows in chosen if rows.rows < least]
        for rows in judged:
            checks += _judge_limits(limits, rows, confidence, 1 - (1 - confidence) / len(judged))
    if not checks and not unjudged:
        raise ValueError("gate: set at least one limit: max_churn, max_broken, not_worse_than, min_rows or slices.")
    outcomes = {check.outcome for check in checks}
    outcome = FAIL if FAIL in outcomes else INCONCLUSIVE if INCONCLUSIVE in outcomes or not checks else PASS
    return Verdict(outcome, tuple(checks), tuple(unjudged), gate)


def _matches(rule: str, column: str, name: str, rules: Mapping[str, Limits]) -> bool:
    """The most specific rule overrides: one value, then its column, then every slice."""
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


def _judge_limits(limits: Limits, rows: Evidence, confidence: float, strict: float) -> list[Check]:
    checks = []
    for name, quantity in (("max_churn", "churn"), ("max_broken", "broken"), ("not_worse_than", "accuracy_change")):
        limit = getattr(limits, name)
        if limit is None:
            continue
        estimate, wide = rows.estimate(quantity, confidence), rows.estimate(quantity, strict)
        if not estimate.defined:
            checks.append(_no_evidence(name, limit, estimate, rows))
            continue
        beyond = estimate.value < -limit if name == "not_worse_than" else estimate.value > limit
        # More rows have to lead to a PASS at the plain level, or to a FAIL at the stricter one.
        level = strict if beyond else confidence
        question = _Question(name, limit, estimate, wide, rows, level)
        checks.append(_judge_change(question) if name == "not_worse_than" else _judge_share(question))
    return checks


NOUNS = {
    "max_churn": "changed decisions",
    "max_broken": "broken decisions",
    "not_worse_than": "change in accuracy",
}


@dataclass(frozen=True)
class _Question:
    """One limit and the estimate to judge it by, at the plain confidence and at the stricter one of many slices."""

    name: str
    limit: float
    estimate: Estimate
    wide: Estimate
    rows: Evidence
    confidence: float
    """Level at which more rows would settle it."""

    @property
    def review(self) -> Review | None:
        return None if self.name == "max_churn" else self.rows.review

    @property
    def text(self) -> str:
        signed = self.name == "not_worse_than"
        shown = f"{self.rows.where}: {NOUNS[self.name]} {interval_text(self.estimate, signed)}"
        if self.review is not None:
            shown += f", from the review of {self.review.labels:,} of {self.review.disputed:,} disagreements"
        return shown

    def check(self, outcome: str, words: str, more_rows: float = math.nan, more_labels: float = math.nan) -> Check:
        return Check(
            self.name,
            self.rows.where,
            outcome,
            self.limit,
            self.estimate,
            more_rows,
            f"{self.text}{words}",
            more_labels,
        )


def _judge_share(asked: _Question) -> Check:
    limit, estimate = share_text(asked.limit), asked.estimate
    if estimate.high <= asked.limit:
        return asked.check(PASS, f", limit {limit}.")
    if asked.wide.low > asked.limit:
        return asked.check(FAIL, f", above the limit {limit}.")

    def at(size: float) -> Estimate:
        return proportion(estimate.value, max(1, round(size)), asked.confidence, size)

    return _open(asked, limit, stats.rows_needed(estimate, asked.limit, at))


def _judge_change(asked: _Question) -> Check:
    margin, estimate = asked.limit, asked.estimate
    limit = share_text(-margin, signed=True)
    if estimate.low >= -margin:
        return asked.check(PASS, f", not worse than {limit}.")
    if asked.wide.high < -margin:
        return asked.check(FAIL, f", worse than {limit}.")
    # The mirror image: the loss of accuracy has to stay below the margin.
    loss = Estimate(-estimate.value, -estimate.high, -estimate.low, estimate.n, estimate.method, estimate.effective)
    rates = [asked.rows.estimate(kind, asked.confidence).value for kind in ("fixed", "broken")]

    def at(size: float) -> Estimate:
        there = paired_difference(rates[0], rates[1], max(1, round(size)), asked.confidence, size)
        return Estimate(-there.value, -there.high, -there.low, there.n, there.method, size)

    return _open(asked, limit, stats.rows_needed(loss, margin, at))


def _open(asked: _Question, limit: str, needed: float) -> Check:
    estimate = asked.estimate
    review = asked.review
    comma = "" if review is None else ","
    if math.isinf(needed):
        words = f"{comma} straddles the limit {limit} and lies on it: more rows will hardly settle it."
        return asked.check(INCONCLUSIVE, words, math.inf)
    # The interval is off the limit only where a slice would fail by itself, but not as the worst of many.
    beyond = estimate.high < -asked.limit if asked.name == "not_worse_than" else estimate.low > asked.limit
    state = (
        f" is beyond the limit {limit}, but the worst of many slices may be"
        if beyond
        else f" straddles the limit {limit}"
    )
    review = asked.review
    if review is None:
        more = max(needed - estimate.n, 1.0)
        return asked.check(INCONCLUSIVE, f"{state}: about {more:,.0f} more rows would settle it at these rates.", more)
    size = needed * estimate.effective / estimate.n
    labels = review.labels_needed(estimate, size)
    if math.isfinite(labels):
        more = max(labels - review.labels, 1.0)
        words = f"{state}: about {more:,.0f} more labelled disagreements would settle it at these rates."
        return asked.check(INCONCLUSIVE, words, more_labels=more)
    more = max(math.ceil(review.rows * (size / review.full - 1)), 1.0)
    words = f"{state}: about {more:,.0f} more rows with labels for all disagreements would settle it at these rates."
    return asked.check(INCONCLUSIVE, words, more)


def _no_evidence(name: str, limit: float, estimate: Estimate, rows: Evidence) -> Check:
    why = "there are no labelled rows. Give a label column"
    if rows.review is not None:
        why = "no disagreement has an answer yet"
    elif rows.is_slice:
        why += "; answers to disagreements are judged over all rows only"
    else:
        why += ", or answers to disagreements"
    words = f"{rows.where}: {NOUNS[name]} undefined, since {why}."
    return Check(name, rows.where, INCONCLUSIVE, limit, estimate, math.inf, words)
