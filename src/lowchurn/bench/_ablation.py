"""The paper's ablation between distillation and the anchor method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import array_namespace

from lowchurn._checks import Array
from lowchurn.metrics import decide
from lowchurn.strategies import TENTHS, ColdStart, Start, Strategy, paper_grid
from lowchurn.strategies._strategy import Grid, Started

SHARES = (0.0, *TENTHS, 1.0)


@dataclass(frozen=True)
class AnchorToDistill(Started):
    """Distillation, but with the true label for a share of the rows that the base gets wrong.

    Those come first whose true class the base finds least likely. A share of 0 is distillation with the weight ``lam``
    of the true label, a share of 1 is the anchor method with ``alpha = 1 - lam`` and ``eta = 1``.
    """

    lam: float = 0.5
    share: float = 0.5
    start: Start = "cold"
    name: ClassVar[str] = "anchor-to-distill"
    grid: ClassVar[Grid] = {"lam": TENTHS, "share": SHARES}
    rowwise: ClassVar[bool] = False  # which rows are the worst depends on all of them

    @property
    def needs_base(self) -> bool:
        return True

    def _targets(self, onehot: Array, base_proba: Array) -> Array:
        xp = array_namespace(onehot, base_proba)
        wrong = decide(base_proba) != decide(onehot)
        belief = xp.sum(onehot * base_proba, axis=1)
        order = xp.argsort(xp.where(wrong, belief, belief + 2), stable=True)  # wrong rows first, the worst first
        rank = xp.argsort(order, stable=True)
        count = int(xp.sum(xp.astype(wrong, xp.int64)))
        hard = rank < round(self.share * count)
        mixed = self.lam * onehot + (1 - self.lam) * base_proba
        return xp.where(hard[:, None], onehot, mixed)


def ablation_settings(start: str = "warm") -> list[Strategy]:
    """Every weight and share of the ablation, and the cold start that its metric needs."""
    return [ColdStart(), *paper_grid(AnchorToDistill, start=start)]
