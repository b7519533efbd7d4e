"""Past the paper: the optimal rule for changed decisions. An estimate of the probabilities, and a margin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from lowchurn._checks import check_choice, check_number
from lowchurn.strategies._paper import ColdStart, WarmStart
from lowchurn.strategies._strategy import STARTS, Blend, Checked, Grid, Group, Parameters

MARGINS = (*(round(0.01 * k, 2) for k in range(50)), *(round(0.05 * k, 2) for k in range(10, 20)), 0.97, 0.99)
TRUST = 5.0  # hardly worse than 0 on rows in random order, and far better under drift (docs/results/sticky_users.md)


@dataclass(frozen=True)
class Sticky(Checked):
    """Keep the base's decision unless another class is likelier by more than a margin.

    Where churn counts changed decisions this is the most accurate rule within a budget (see
    :class:`lowchurn.theory.Margin`), for any estimate of the class probabilities: here the mean of several retrains.
    All margins come from the same trainings. The base's decisions have to be there when it serves: from the base
    itself, or from a table of what was decided last time.

    Parameters
    ----------
    members : int
        Retrains whose probabilities (or weights) are averaged; with ``start="both"`` so many of each.
    margin : float
        0 follows the retrains, 1 keeps every decision of the base.
    start : {"cold", "warm", "both"}
        Where the retrains start.
    average : {"proba", "weights"}
        Average their probabilities, or the weights of retrains that start warm, as :class:`Soup` does.
    toward_base : float
        Share of the base's probabilities (or weights) in the average. It helps where retrains are poor.
    trust : float
        How much the margin grows with the lead of the base's class in its own probabilities: the margin of a row is
        ``margin * (1 + trust * lead)``. With 0 it is the same for all rows, which is optimal if the estimate is right.
        Larger values let decisions change mostly where the base is unsure, so that a budget is kept under drift.

    Examples
    --------
    >>> from lowchurn.strategies import Sticky, plan
    >>> sticky = [Sticky(members=2, start="both", margin=t) for t in (0.0, 0.2, 0.4)]
    >>> len(plan(sticky).trainings), plan(sticky).recipes[sticky[1]].margin
    (4, 0.2)
    """

    members: int = 1
    margin: float = 0.0
    start: str = "cold"
    average: Literal["proba", "weights"] = "proba"
    toward_base: float = 0.0
    trust: float = 0.0
    name: ClassVar[str] = "sticky"
    grid: ClassVar[Grid] = {"margin": MARGINS}
    neutral: ClassVar[Parameters | None] = None
    dial_parameter: ClassVar[str] = "margin"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self._who, "start", self.start, (*STARTS, "both"))
        check_choice(self._who, "average", self.average, ("proba", "weights"))
        if self.average == "weights" and self.start != "warm":
            raise ValueError(
                f"{self._who}: average='weights' needs start='warm', got {self.start!r}: weights of networks that "
                "started apart cannot be averaged."
            )

    def _check_number(self, name: str) -> None:
        if name == "trust":
            check_number(self._who, name, self.trust, 0, math.inf, open_high=True)
        else:
            super()._check_number(name)

    @property
    def blend(self) -> Blend:
        starts = {"warm": (WarmStart(),), "cold": (ColdStart(),), "both": (WarmStart(), ColdStart())}[self.start]
        groups = tuple(Group(start, self.members) for start in starts)
        # p_j - p_b > t * (1 + trust * (g_b - g_j)) is a margin of t / (1 + t * trust) in a mixture of p and g.
        shrink = 1 / (1 + self.margin * self.trust) if self.margin < 1 else 1.0
        return Blend(groups, self.average, self.toward_base, self.margin * shrink, 1 - shrink)

    @property
    def dial(self) -> float:
        return self.margin
