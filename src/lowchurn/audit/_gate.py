"""May it ship? Limits, and verdicts that are judged on the interval's bound and not on the point.

Limits on accuracy need labels: those of the tables, or a review of disagreements that people labelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from lowchurn._checks import check_choice, check_number, unknown_name
from lowchurn._estimates import Estimate
from lowchurn._terminal import printable
from lowchurn.audit import _statistics as stats
from lowchurn.audit._rules import DECISIONS, Rule, Rules, check_share

if TYPE_CHECKING:
    from lowchurn.audit._review import Review

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
EXIT_CODES = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}
POLICIES = ("fail", "warn", "pass")
SHARES = ("max_churn", "max_broken", "max_moved", "max_worse")
L = TypeVar("L", bound="Limits")


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
    """How far the accuracy may fall; of numbers, how far the mean loss may rise, in units of the loss."""
    min_rows: int | None = None
    """Fewest rows to judge on. Slices with fewer are listed, not judged; a whole table with fewer is inconclusive."""
    max_moved: float | None = None
    """Largest share of numbers that may move by more than the tolerance."""
    max_worse: float | None = None
    """Largest share of rows whose loss may grow by more than the tolerance."""

    def __post_init__(self) -> None:
        for name in SHARES:
            if (value := getattr(self, name)) is not None:
                check_share(name, value)
        if self.not_worse_than is not None:
            check_number("gate", "not_worse_than", self.not_worse_than, 0, math.inf, open_high=True)
        rows = self.min_rows
        if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or rows < 0):
            raise ValueError(f"gate: min_rows must be a whole number of rows, got {self.min_rows!r}.")

    @property
    def given(self) -> dict[str, object]:
        return {f.name: value for f in fields(Limits) if (value := getattr(self, f.name)) is not None}


@dataclass(frozen=True)
class Gate(Limits):
    """Limits for all rows and for slices.

    Parameters
    ----------
    max_churn, max_broken, not_worse_than, min_rows, max_moved, max_worse : optional
        See :class:`Limits`. ``max_churn`` and ``max_broken`` are limits of decisions, ``max_moved`` and ``max_worse``
        of numbers.
    slices : mapping, optional
        Limits by slice: the name of a slice column (``"country"``: each of its values), one value
        (``"country=DE"``, which then overrides its column) or ``"*"`` (each slice of every column).
    inconclusive : {"fail", "warn", "pass"}, default "fail"
        What an INCONCLUSIVE verdict means for a pipeline: exit code 3, or 0 with or without a warning.
    never_break : list of str, optional
        Slices (``"country=DE"``) and ids of which no row may go from right to wrong: a single one fails. Several key
        columns are joined by a slash (``"gsm8k/17"``); the first ones alone mean all rows that begin so. Of numbers,
        none may get worse by more than the tolerance.

    Examples
    --------
    >>> from lowchurn.audit import Gate
    >>> gate = Gate(max_churn=0.03, slices={"country": {"max_churn": 0.05, "min_rows": 200}})
    >>> gate.slices["country"].max_churn
    0.05
    >>> Gate.from_dict({"max_chrn": 0.03})
    Traceback (most recent call last):
    ValueError: gate: unknown limit 'max_chrn'. Did you mean 'max_churn'...
    """

    slices: Mapping[str, Limits] = field(default_factory=dict)
    inconclusive: str = "fail"
    never_break: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        names = self.never_break
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"gate: never_break must be a list of slices and ids, got {names!r}.")
        object.__setattr__(self, "never_break", tuple(dict.fromkeys(names)))
        check_choice("gate", "inconclusive", self.inconclusive, POLICIES)
        if not isinstance(self.slices, Mapping):
            raise ValueError(f"gate: slices must be a table of slices and their limits, got {self.slices!r}.")
        made = {
            name: limits if isinstance(limits, Limits) else _from_table(Limits, limits, f"gate.slices.{name}")
            for name, limits in dict(self.slices).items()
        }
        object.__setattr__(self, "slices", made)

    @property
    def given(self) -> dict[str, object]:
        found = super().given
        if self.slices:
            found["slices"] = {name: limits.given for name, limits in self.slices.items()}
        if self.inconclusive != "fail":
            found["inconclusive"] = self.inconclusive
        if self.never_break:
            found["never_break"] = list(self.never_break)
        return found

    @classmethod
    def from_dict(cls, table: Mapping[str, object]) -> Gate:
        """From plain values, as a TOML file holds them."""
        return _from_table(cls, table, "gate")


LIMITS = tuple(field.name for field in fields(Gate))


def _from_table(kind: type[L], table: object, who: str) -> L:
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
    """One limit, judged."""

    name: str
    """The limit, such as ``max_churn``, ``not_worse_than``, ``min_rows`` or ``never_break``."""
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
    allowed: str = ""
    """The limit in words."""
    measured: str = ""
    """The figure in words."""

    def __str__(self) -> str:
        return printable(f"{self.outcome} {self.words}")


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


class Protected(NamedTuple):
    """Rows that must not break: how many there are with a label, and how many broke."""

    name: str
    rows: int
    broken: int


def judge(
    gate: Gate,
    whole: Evidence,
    slices: Sequence[tuple[str, Evidence]],
    confidence: float,
    protected: Sequence[Protected] = (),
    rules: Rules = DECISIONS,
) -> Verdict:
    """Judge every limit.

    A slice fails on an interval widened for the number of slices under the same rule (Bonferroni), since the
    worst of many slices looks bad by chance; to pass, each must pass at the plain level, which needs no correction.
    """
    rules.check(gate)
    checks: list[Check] = []
    unjudged: list[str] = []
    if gate.min_rows is not None:
        checks.append(_min_rows(whole.where, whole.rows, gate.min_rows))
    checks += _judge_limits(gate, rules, whole, confidence, confidence)
    for rule, limits in gate.slices.items():
        chosen = [rows for column, rows in slices if _matches(rule, column, rows.where, gate.slices)]
        known = {column for column, _ in slices} | {rows.where for _, rows in slices} | {"*"}
        if rule not in known:
            raise unknown_name("gate", "slice", rule, known)
        least = limits.min_rows or 0
        judged = [rows for rows in chosen if rows.rows >= least]
        unjudged += [f"{rows.where} ({rows.rows:,} rows)" for rows in chosen if rows.rows < least]
        for rows in judged:
            checks += _judge_limits(limits, rules, rows, confidence, 1 - (1 - confidence) / len(judged))
    checks += [_never_break(rows, rules) for rows in protected]
    if not checks and not unjudged:
        raise ValueError(f"gate: set at least one limit: {', '.join(rules.limits)}, min_rows, slices or never_break.")
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
    more = limit - n if n < limit else math.nan
    missing = f"{more:,} more are needed for the {limit:,} asked." if n < limit else f"at least {limit:,} asked."
    outcome = INCONCLUSIVE if n < limit else PASS
    words = f"{where}: {n:,} rows, {missing}"
    return Check("min_rows", where, outcome, limit, estimate, more, words, allowed=f"{limit:,}", measured=f"{n:,}")


def _never_break(rows: Protected, rules: Rules) -> Check:
    n, broken = rows.rows, rows.broken
    estimate = Estimate(float(broken), float(broken), float(broken), n, "counted", float(n))
    if n == 0:
        known = f"no row of it has {rules.truth} and is in both tables, so it is not known whether it broke."
        outcome, words = INCONCLUSIVE, known
    elif broken:
        outcome, words = FAIL, f"{broken:,} of {n:,} rows {rules.broke}, none may."
    else:
        outcome, words = PASS, f"0 of {n:,} rows {rules.broke}."
    shown = f"{broken:,} of {n:,} rows broken"
    text = f"{rows.name}: {words}"
    return Check("never_break", rows.name, outcome, 0, estimate, math.nan, text, allowed="0", measured=shown)


def _judge_limits(limits: Limits, rules: Rules, rows: Evidence, confidence: float, strict: float) -> list[Check]:
    given = {name: getattr(limits, name) for name in rules.limits}
    return [_judge(name, limit, rules, rows, confidence, strict) for name, limit in given.items() if limit is not None]


def _judge(name: str, limit: float, rules: Rules, rows: Evidence, confidence: float, strict: float) -> Check:
    """One limit: passed at the plain confidence, failed at the stricter one of many slices, or open."""
    rule = rules.limits[name]
    estimate, wide = rows.estimate(rule.quantity, confidence), rows.estimate(rule.quantity, strict)
    shown, measured = rule.allowed(limit), rule.measured(estimate)
    if not estimate.defined:
        words = f"{rows.where}: {rule.noun} undefined, since {_why_undefined(rows, rules)}."
        return Check(name, rows.where, INCONCLUSIVE, limit, estimate, math.inf, words, math.nan, shown, measured)
    harm, wide_harm = rule.harm(estimate), rule.harm(wide)
    review = None if rule.quantity == "churn" else rows.review
    more_rows = more_labels = math.nan
    if harm.high <= limit:
        outcome, words = PASS, f", {rule.kept} {shown}."
    elif wide_harm.low > limit:
        outcome, words = FAIL, f", {rule.broken} {shown}."
    else:
        # More rows have to lead to a PASS at the plain level, or to a FAIL at the stricter one.
        needed = _rows_needed(rule, harm, limit, rows, strict if harm.value > limit else confidence)
        outcome, (words, more_rows, more_labels) = INCONCLUSIVE, _remedy(harm, limit, shown, needed, review)
    source = "" if review is None else f", from the review of {review.labels:,} of {review.disputed:,} disagreements"
    text = f"{rows.where}: {rule.noun} {measured}{source}{words}"
    return Check(name, rows.where, outcome, limit, estimate, more_rows, text, more_labels, shown, measured)


def _rows_needed(rule: Rule, harm: Estimate, limit: float, rows: Evidence, confidence: float) -> float:
    return stats.rows_needed(harm, limit, rule.at(harm, rows.estimate, confidence))


def _remedy(harm: Estimate, limit: float, shown: str, needed: float, review: Review | None) -> tuple[str, float, float]:
    """What would settle an open check: in words, in rows and in labelled disagreements."""
    if math.isinf(needed):
        words = f" straddles the limit {shown} and lies on it: more rows will hardly settle it."
        return words if review is None else f",{words}", math.inf, math.nan
    state = f" straddles the limit {shown}"
    if harm.low > limit:  # only where a slice would fail by itself, but not as the worst of many
        state = f" is beyond the limit {shown}, but the worst of many slices may be"
    more, more_rows, more_labels, what = max(needed - harm.n, 1.0), math.nan, math.nan, "rows"
    if review is None:
        more_rows = more
    else:
        size = needed * harm.effective / harm.n
        labels = review.labels_needed(harm, size)
        if math.isfinite(labels):
            more = more_labels = max(labels - review.labels, 1.0)
            what = "labelled disagreements"
        else:
            more = more_rows = max(math.ceil(review.rows * (size / review.full - 1)), 1.0)
            what = "rows with labels for all disagreements"
    return f"{state}: about {more:,.0f} more {what} would settle it at these rates.", more_rows, more_labels


def _why_undefined(rows: Evidence, rules: Rules) -> str:
    if rules is not DECISIONS:
        return rules.missing
    if rows.review is not None:
        return "no disagreement has an answer yet"
    if rows.is_slice:
        return f"{rules.missing}; answers to disagreements are judged over all rows only"
    return f"{rules.missing}, or answers to disagreements"
