"""The limits that what is served has to keep: how many decisions may change, and how many may break."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from lowchurn.estimator._frontier import Candidate

ROUNDING = 1e-9  # sums of weights may carry a share that equals its limit over it by rounding


@dataclass(frozen=True)
class Limit:
    """The most that may change, or break, on average over ``rows`` rows."""

    of: Literal["churn", "broken"]
    most: float
    rows: float

    def spent(self, candidate: Candidate) -> float:
        """What a candidate does of it on the rows that it was measured on."""
        return candidate.churn if self.of == "churn" else candidate.broken

    @property
    def parameter(self) -> str:
        return f"max_{self.of}={self.most:g}"

    @property
    def words(self) -> str:
        """What is limited, in words."""
        return "churn" if self.of == "churn" else "broken decisions"


@dataclass(frozen=True)
class Limits:
    """All limits together; a candidate keeps each of them or is not feasible. Without any, every candidate does."""

    each: tuple[Limit, ...] = ()

    @classmethod
    def of(
        cls, max_churn: float | None, max_broken: float | None, rows: float = math.nan, labelled: float = math.nan
    ) -> Limits:
        """The limits that parameters stand for; churn is measured on ``rows`` rows, the other on ``labelled`` ones."""
        churn = () if max_churn is None else (Limit("churn", max_churn, rows),)
        return cls((*churn, *(() if max_broken is None else (Limit("broken", max_broken, labelled),))))

    def __iter__(self) -> Iterator[Limit]:
        return iter(self.each)

    def __bool__(self) -> bool:
        return bool(self.each)

    def keep(self, candidate: Candidate) -> bool:
        """Whether a candidate keeps all limits on the rows that it was measured on."""
        return all(limit.spent(candidate) <= limit.most * (1 + ROUNDING) for limit in self)

    def lowered(self, aim: Callable[[Limit], float]) -> Limits:
        """The limits as they are aimed at, a little below."""
        return Limits(tuple(dataclasses.replace(limit, most=min(aim(limit), limit.most)) for limit in self))

    @property
    def churn(self) -> float | None:
        """The limit of churn, where there is one."""
        return next((limit.most for limit in self if limit.of == "churn"), None)

    @property
    def broken(self) -> float | None:
        """The limit of broken decisions, where there is one."""
        return next((limit.most for limit in self if limit.of == "broken"), None)

    @property
    def tightest(self) -> float | None:
        """The smallest limit above 0, which asks for most rows."""
        return min((limit.most for limit in self if limit.most > 0), default=None)

    @property
    def frozen(self) -> bool:
        """Whether no decision may change."""
        return self.churn == 0

    def load(self, candidate: Candidate) -> float:
        """How much of the limits a candidate spends: of one limit what it spends, of several the largest share."""
        return self.load_of([limit.spent(candidate) for limit in self])

    def load_of(self, spent: list[float]) -> float:
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
        return " and ".join(limit.parameter for limit in self)

    def spent(self, candidate: Candidate) -> str:
        """What a candidate spends of each limit, in words."""
        return " and ".join(f"{limit.of} {limit.spent(candidate):.3g}" for limit in self)

    def enough(self, candidate: Candidate) -> str:
        """Limits that a candidate would keep, in words."""
        needed = ((limit, math.ceil(1000 * limit.spent(candidate)) / 1000) for limit in self)
        return " and ".join(f"max_{limit.of} to {least:g}" for limit, least in needed if least > limit.most)

    def rule(self, hard: bool) -> str:
        """The limits in the words of a rule."""
        kinds = {"churn": "hard churn" if hard else "soft churn", "broken": "broken"}
        return " and ".join(f"{kinds[limit.of]} {limit.most:g}" for limit in self)
