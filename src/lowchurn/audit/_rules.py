"""What the limits of a gate are about: the figure, its words and units, and what more rows would show of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lowchurn._checks import check_number
from lowchurn._display import interval_text, number_interval_text, number_text, share_text
from lowchurn._estimates import Estimate, paired_difference, proportion

if TYPE_CHECKING:
    from lowchurn.audit._gate import Gate

Figure = Callable[[str, float], Estimate]  # a figure of some rows at a confidence
# The limits on shares of decisions, and what numbers have in their place.
IN_PLACE = {"max_churn": "max_moved", "max_broken": "max_worse"}


@dataclass(frozen=True)
class Rule:
    """A limit on a share of rows."""

    quantity: str
    noun: str
    kept: str = "limit"
    broken: str = "above the limit"

    def harm(self, estimate: Estimate) -> Estimate:
        """What has to stay below the limit."""
        return estimate

    def measured(self, estimate: Estimate) -> str:
        """The figure in words."""
        return interval_text(estimate)

    def allowed(self, limit: float) -> str:
        """The limit in words."""
        return share_text(limit)

    def at(self, harm: Estimate, figure: Figure, confidence: float) -> Callable[[float], Estimate]:
        """The harm that an (effective) number of rows would show at the same rates."""
        return lambda size: proportion(harm.value, max(1, round(size)), confidence, size)


@dataclass(frozen=True)
class AccuracyRule(Rule):
    """A limit on how far the accuracy may fall."""

    def harm(self, estimate: Estimate) -> Estimate:
        return mirrored(estimate)

    def measured(self, estimate: Estimate) -> str:
        return interval_text(estimate, signed=True)

    def allowed(self, limit: float) -> str:
        return share_text(0.0 - limit, signed=True)  # no negative zero

    def at(self, harm: Estimate, figure: Figure, confidence: float) -> Callable[[float], Estimate]:
        fixed, broken = (figure(kind, confidence).value for kind in ("fixed", "broken"))
        return lambda size: mirrored(paired_difference(fixed, broken, max(1, round(size)), confidence, size))


@dataclass(frozen=True)
class MeanRule(Rule):
    """A limit on how far a mean may rise or, of a gain, fall."""

    falls: bool = False

    def harm(self, estimate: Estimate) -> Estimate:
        return mirrored(estimate) if self.falls else estimate

    def measured(self, estimate: Estimate) -> str:
        return number_interval_text(estimate, signed=True)

    def allowed(self, limit: float) -> str:
        return number_text(0.0 - limit if self.falls else limit, signed=True)

    def at(self, harm: Estimate, figure: Figure, confidence: float) -> Callable[[float], Estimate]:
        there = self.harm(figure(self.quantity, confidence))

        def interval(size: float) -> Estimate:
            part = math.sqrt(there.effective / size)
            low, high = (there.value + part * (end - there.value) for end in (there.low, there.high))
            return replace(there, low=low, high=high)

        return interval


def mirrored(change: Estimate) -> Estimate:
    """The loss, for the change."""
    return replace(change, value=-change.value, low=-change.high, high=-change.low)


@dataclass(frozen=True)
class Rules:
    """The limits that an audit can be judged by."""

    what: str
    limits: Mapping[str, Rule]
    broke: str
    """What may not happen to a row that must not break."""
    truth: str
    """What a row needs so that this is known."""
    missing: str
    """Why nothing is known of a figure that needs the truth."""

    def check(self, gate: Gate) -> None:
        """Refuse limits of another kind of audit."""
        for limits in (gate, *gate.slices.values()):
            for name in IN_PLACE | {other: one for one, other in IN_PLACE.items()}:
                if name not in self.limits and getattr(limits, name) is not None:
                    instead = next(new for pair in IN_PLACE.items() for new in pair if name in pair and new != name)
                    raise ValueError(
                        f"gate: {name} is no limit of {self.what}. Use {instead}; the others are not_worse_than and "
                        "min_rows."
                    )
            if self is DECISIONS and limits.not_worse_than is not None:
                check_share("not_worse_than", limits.not_worse_than)


def check_share(name: str, value: float) -> None:
    """A limit between 0 and 1; a percentage is hinted at."""
    try:
        check_number("gate", name, value, 0, 1)
    except ValueError as error:
        percent = isinstance(value, int | float) and not isinstance(value, bool) and 1 < value <= 100
        hint = f" It is a share: {value:g} percent is {value / 100:g}." if percent else ""
        raise ValueError(f"{error}{hint}") from None


DECISIONS = Rules(
    "decisions",
    {
        "max_churn": Rule("churn", "changed decisions"),
        "max_broken": Rule("broken", "broken decisions"),
        "not_worse_than": AccuracyRule("accuracy_change", "change in accuracy", "not worse than", "worse than"),
    },
    "went from right to wrong",
    "a label",
    "there are no labelled rows. Give a label column",
)


def number_rules(loss: str, gain: bool) -> Rules:
    """The limits of numbers; ``loss`` names what is averaged, and of a gain more is better."""
    return Rules(
        "numbers",
        {
            "max_moved": Rule("moved", "moved numbers"),
            "max_worse": Rule("worse", "numbers that got worse"),
            "not_worse_than": MeanRule(
                "loss_change", f"change in the mean {loss}", "not worse than", "worse than", falls=gain
            ),
        },
        "got worse by more than the tolerance",
        "a target or a loss",
        "no row has a target or a loss. Give target=, loss= or gain=",
    )
