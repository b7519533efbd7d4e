"""What a budget is kept with: a method's setting chosen on traffic, recent rows whose labels nobody has seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lowchurn._checks import check_choice
from lowchurn.strategies import Distill, Soup, Sticky, Strategy, paper_grid
from lowchurn.strategies._strategy import Blend, Checked, Grid, Group, Parameters

if TYPE_CHECKING:
    import torch

BUDGETS = (0.005, 0.01, 0.02, 0.05)
MEMBERS = 8
# The settings that a method chooses among; of sticky an estimate, all of whose margins are there.
CHOICES: dict[str, tuple[Strategy, ...]] = {
    "distill": (*paper_grid(Distill, start="warm"), *paper_grid(Distill, start="cold")),
    "soup": tuple(paper_grid(Soup, members=MEMBERS)),
    "sticky 1 cold": (Sticky(),),
    "sticky 1 warm": (Sticky(start="warm"),),
    "sticky soup": (Sticky(MEMBERS, start="warm", average="weights"),),
    "sticky 8+8": (Sticky(MEMBERS, start="both"),),
    "sticky 8+8 + base": (Sticky(MEMBERS, start="both", toward_base=0.4),),
}


@dataclass(frozen=True)
class Within(Checked):
    """A method under a budget: of its settings within the budget on traffic, the one that changes most decisions.

    Where none is within the budget, the base stays. Nothing is chosen on labels or on test rows.
    """

    method: str = "sticky soup"
    max_churn: float = 0.01
    name: ClassVar[str] = "within"
    grid: ClassVar[Grid] = {"max_churn": BUDGETS}
    neutral: ClassVar[Parameters | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("bench", "method", self.method, tuple(CHOICES))

    @property
    def choices(self) -> tuple[Strategy, ...]:
        return CHOICES[self.method]

    @property
    def blend(self) -> Blend:
        """What has to be trained for all choices."""
        blends = [one.blend for one in self.choices]
        if blends[0] is not None:
            return blends[0]
        return Blend(tuple(Group(one, 1) for one in self.choices), "proba", 0.0)


def budget_settings() -> list[Strategy]:
    """Every method at every budget."""
    return [strategy for method in CHOICES for strategy in paper_grid(Within, method=method)]


def least_margin(gain: torch.Tensor, max_churn: float) -> float:
    """The least margin within a budget on rows of these gains, as :func:`lowchurn.theory.optimal_margin` finds it."""
    most = int(max_churn * len(gain) * (1 + 1e-12))
    return 0.0 if most >= len(gain) else max(float(gain.sort(descending=True).values[most]), 0.0)
