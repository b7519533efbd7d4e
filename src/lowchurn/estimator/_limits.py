"""The limits that what is served has to keep: how many decisions may change, and how many may break."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lowchurn._display import churn_text
from lowchurn.estimator._frontier import Candidate
from lowchurn.estimator._groups import Groups

ROUNDING = 1e-9  # sums of weights may carry a share that equals its limit over it by rounding
SHOWN = 4  # limits in a sentence


@dataclass(frozen=True)
class Limit:
    """The most that may change, or break, on average over ``rows`` rows: all, or those of a group by its number.

    A group is ``small`` where one changed row is above its limit, which measures nothing. Then all rows stand for its
    own, at the margin that its rows have.
    """

    of: Literal["churn", "broken"]
    most: float
    rows: float = math.nan
    number: int = -1
    group: str = ""
    where: str = ""
    small: bool = False
    hard: bool = True

    @property
    def whole(self) -> bool:
        """Whether it is a limit of all rows."""
        return self.number < 0

    @property
    def on_all(self) -> bool:
        """Whether it is measured on all rows."""
        return self.whole or self.small

    def spent(self, candidate: Candidate) -> float:
        """What a candidate does of it on the rows that it was measured on."""
        if self.of == "broken":
            return candidate.broken
        if self.small:
            return candidate.churn_at.get(self.group, candidate.churn)
        if self.whole:
            return candidate.churn
        return candidate.churn_by.get(self.group, math.nan) if self.most or self._held(candidate) else math.inf

    def text(self, value: float) -> str:
        """What is spent of it or allowed by it, in words."""
        return churn_text(value, self.hard or self.of == "broken")

    def _held(self, candidate: Candidate) -> bool:
        """Whether the rule of a candidate keeps all decisions of the group, or the base is served alone.

        That none has changed on some rows is not enough where none may change.
        """
        margins = [candidate.parameters.get(name) for name in ("margin", f"margin[{self.group}]")]
        kept = any(isinstance(margin, float) and margin >= 1 for margin in margins)
        return kept or candidate.dial == 1 or candidate.status == "kept"

    @property
    def parameter(self) -> str:
        return f"max_{self.of}={self.most:g} {self.where}".rstrip()

    @property
    def words(self) -> str:
        """What is limited, in words."""
        return "the share of broken decisions" if self.of == "broken" else f"churn {self.where}".rstrip()


@dataclass(frozen=True)
class Limits:
    """All limits together; a candidate keeps each of them or is not feasible. Without any, every candidate does.

    ``groups`` is how many groups of rows there are.
    """

    each: tuple[Limit, ...] = ()
    groups: int = 0

    @classmethod
    def of(
        cls,
        max_churn: float | Mapping[Any, float] | None,
        max_broken: float | None,
        groups: Groups | None = None,
        rows: float = math.nan,
        labelled: float = math.nan,
        rows_by: Mapping[str, float] | None = None,
        hard: bool = True,
    ) -> Limits:
        """The limits that parameters stand for; churn is measured on ``rows`` rows, the other on ``labelled`` ones.

        ``rows_by`` are the rows of each group for hard churn, where a row that changes counts as one.
        """
        found: list[Limit] = []
        names = [] if groups is None else groups.names
        for number, most in budgets(max_churn, groups).items():
            if number is None:
                found.append(Limit("churn", most, rows))
            elif groups is None:
                found.append(Limit("churn", most, number=number))
            else:
                inside = rows if rows_by is None else rows_by.get(names[number], 0.0)
                small = most > 0 and inside * most < 1
                on = rows if small else inside
                found.append(Limit("churn", most, on, number, names[number], groups.where(number), small))
        broken = [] if max_broken is None else [Limit("broken", max_broken, labelled)]
        return cls(tuple(dataclasses.replace(limit, hard=hard) for limit in (*found, *broken)), len(names))

    def __iter__(self) -> Iterator[Limit]:
        return iter(self.each)

    def __bool__(self) -> bool:
        return bool(self.each)

    def keep(self, candidate: Candidate) -> bool:
        """Whether a candidate keeps all limits on the rows that it was measured on."""
        return all(limit.spent(candidate) <= limit.most * (1 + ROUNDING) for limit in self)

    def lowered(self, aim: Callable[[Limit], float]) -> Limits:
        """The limits as they are aimed at, a little below."""
        each = (dataclasses.replace(limit, most=min(aim(limit), limit.most)) for limit in self)
        return dataclasses.replace(self, each=tuple(each))

    @property
    def churn(self) -> float | None:
        """The limit of churn in all rows, where there is one."""
        return next((limit.most for limit in self if limit.of == "churn" and limit.whole), None)

    @property
    def broken(self) -> float | None:
        """The limit of broken decisions, where there is one."""
        return next((limit.most for limit in self if limit.of == "broken"), None)

    @property
    def grouped(self) -> bool:
        """Whether groups have limits of their own."""
        return any(not limit.whole for limit in self)

    @property
    def held(self) -> tuple[int, ...]:
        """The groups in which no decision may change."""
        return tuple(limit.number for limit in self if not limit.whole and limit.most == 0)

    @property
    def certifiable(self) -> bool:
        """Whether rows can prove any of them."""
        return any(limit.most and not limit.small for limit in self)

    def tightest(self, rows: float = math.nan) -> float | None:
        """The smallest limit above 0, as a share of ``rows`` rows: the one that asks for most of them."""
        counted = [limit for limit in self if limit.most > 0 and not limit.small]
        part = {limit: 1.0 if limit.whole or math.isnan(rows) else limit.rows / rows for limit in counted}
        return min((limit.most * part[limit] for limit in counted), default=None)

    @property
    def frozen(self) -> bool:
        """Whether no decision at all may change."""
        return self.churn == 0

    def load(self, candidate: Candidate) -> float:
        """How much of the limits a candidate spends: of one limit what it spends, of several the largest share."""
        return self.load_of([limit.spent(candidate) for limit in self])

    def load_of(self, spent: Sequence[float]) -> float:
        if len(self.each) == 1:
            return spent[0]
        shares = (
            x / limit.most if limit.most else math.inf if x else 0.0 for limit, x in zip(self, spent, strict=True)
        )
        return max(shares, default=math.nan)

    @property
    def full(self) -> float:
        """The load at which the limits are just kept."""
        return self.each[0].most if len(self.each) == 1 else 1.0

    @property
    def parameters(self) -> str:
        """As they were given, for a message."""
        return _some([limit.parameter for limit in self])

    def spent(self, candidate: Candidate) -> str:
        """What a candidate spends of each limit, in words."""
        return _some([f"{limit.of} {limit.text(limit.spent(candidate))} {limit.where}".rstrip() for limit in self])

    def enough(self, candidate: Candidate) -> str:
        """Limits that a candidate would keep, in words."""
        needed = ((limit, math.ceil(1000 * limit.spent(candidate)) / 1000) for limit in self)
        over = [(limit, least) for limit, least in needed if least > limit.most]
        return _some([f"max_{limit.of} to {least:g} {limit.where}".rstrip() for limit, least in over])

    def rule(self) -> str:
        """The limits in the words of a rule."""
        kinds = {(True, "churn"): "a churn of {}", (False, "churn"): "a soft churn of {}"}
        each = [kinds.get((limit.hard, limit.of), "{} broken").format(limit.text(limit.most)) for limit in self]
        return _some([f"{words} {limit.where}".rstrip() for words, limit in zip(each, self, strict=True)])

    def notes(self, candidate: Candidate) -> tuple[str, ...]:
        """What to know about limits of groups: what is spent of them, and which could not be measured."""
        groups, small = [limit for limit in self if not limit.on_all], [limit for limit in self if limit.small]
        spent = [f"{limit.text(limit.spent(candidate))} of {limit.text(limit.most)} {limit.where}" for limit in groups]
        found: tuple[str, ...] = (f"Churn is {_some(spent)}.",) if spent else ()
        if small:
            few = _some([repr(limit.group) for limit in small])
            found += (
                f"Too few rows to measure a limit of their own, since one changed row is above it: {few}. All rows "
                "stand for these, at their margin, and no certificate is about them.",
            )
        return found


def budgets(max_churn: float | Mapping[Any, float] | None, groups: Groups | None) -> dict[int | None, float]:
    """Limits of churn by the number of the group; None stands for all rows.

    A number is that of all rows, and with slices of each of them. Without ``groups`` the numbers mean nothing.
    """
    if max_churn is None:
        return {}
    if isinstance(max_churn, Mapping):
        keys = {
            key: None if key is None else k if groups is None else groups.number(key) for k, key in enumerate(max_churn)
        }
        return {keys[key]: most for key, most in max_churn.items()}
    slices = range(0 if groups is None or groups.by is None else len(groups.values))
    return {None: max_churn, **dict.fromkeys(slices, max_churn)}


def _some(words: Sequence[str]) -> str:
    """Words one after the other; of many the first ones."""
    if len(words) > SHOWN:
        return f"{', '.join(words[: SHOWN - 1])} and {len(words) - SHOWN + 1} more"
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
