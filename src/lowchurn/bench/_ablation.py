"""The paper's ablation between distillation and the anchor method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import array_namespace

from lowchurn._checks import Array
from lowchurn.strategies import TENTHS, ColdStart, Start, Strategy, decide, paper_grid
from lowchurn.strategies._strategy import Grid, Started

SHARES = (0.0, *TENTHS, 1.0)


@dataclass(frozen=True)
class AnchorToDistill(Started):
    """Distillation, but with the true label for a share of the rows that the base gets wrong.

    Those come first whose true class the base finds least likely. A share of 0 is distillation, a share of 1 is the
    anchor method with ``alpha = 1 - lam`` and ``eta = 1``.

    Parameters
    ----------
    lam : float
        Weight of the true label on the other rows.
    share : float
        Share of the wrong rows that get the true label.
    start : {"cold", "warm"}
        Where the weights start.

    Examples
    --------
    >>> from lowchurn.bench._ablation import AnchorToDistill
    >>> labels, base = [[1, 0], [1, 0], [1, 0]], [[0.8, 0.2], [0.4, 0.6], [0.1, 0.9]]
    >>> AnchorToDistill(lam=0.5, share=0.5).targets(labels, base)
    array([[0.9, 0.1],
           [0.7, 0.3],
           [1. , 0. ]])
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
        truth = xp.argmax(onehot, axis=1)
        wrong = decide(base_proba) != truth
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
