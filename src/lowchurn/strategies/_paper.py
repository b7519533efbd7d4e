"""The paper's eight strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import array_namespace

from lowchurn._checks import Array
from lowchurn.strategies._strategy import (
    TENTHS,
    Aimed,
    Checked,
    Grid,
    Parameters,
    Start,
    Started,
    Strategy,
    base_is_right,
)


@dataclass(frozen=True)
class ColdStart(Strategy):
    """Plain retraining from a fresh initialisation: the yardstick.

    Examples
    --------
    >>> from lowchurn.strategies import ColdStart
    >>> ColdStart().targets([[0, 1], [1, 0]])
    array([[0., 1.],
           [1., 0.]])
    """

    name: ClassVar[str] = "cold"


@dataclass(frozen=True)
class WarmStart(Strategy):
    """Plain retraining from the base's weights.

    Examples
    --------
    >>> from lowchurn.strategies import WarmStart
    >>> WarmStart().base_share
    1.0
    """

    name: ClassVar[str] = "warm"
    neutral: ClassVar[Parameters | None] = None

    @property
    def base_share(self) -> float:
        return 1.0


@dataclass(frozen=True)
class ShrinkPerturb(Checked):
    """Start between the base and a fresh initialisation (Ash and Adams, 2020).

    Parameters
    ----------
    alpha : float
        Share of the base's weights in the start.

    Examples
    --------
    >>> from lowchurn.strategies import ShrinkPerturb
    >>> ShrinkPerturb(alpha=0.3).base_share
    0.3
    """

    alpha: float = 0.5
    name: ClassVar[str] = "s-perturb"
    grid: ClassVar[Grid] = {"alpha": TENTHS}
    neutral: ClassVar[Parameters | None] = {"alpha": 0.0}

    @property
    def base_share(self) -> float:
        return self.alpha


@dataclass(frozen=True)
class Mixup(Started):
    """Train on convex combinations of pairs of rows (Zhang et al., 2018).

    Parameters
    ----------
    alpha : float
        Each batch is mixed with another one in a share drawn from Beta(alpha, alpha); 0 is no mixing.
    start : {"cold", "warm"}
        Where the weights start.

    Examples
    --------
    >>> from lowchurn.strategies import Mixup
    >>> Mixup(alpha=0.2).mixing, Mixup(alpha=0.0).mixing
    (0.2, None)
    """

    alpha: float = 0.5
    start: Start = "cold"
    name: ClassVar[str] = "mixup"
    grid: ClassVar[Grid] = {"alpha": TENTHS}
    neutral: ClassVar[Parameters | None] = {"alpha": 0.0, "start": "cold"}

    @property
    def mixing(self) -> float | None:
        return self.alpha or None


@dataclass(frozen=True)
class LabelSmoothing(Started):
    """Mix the labels with the uniform distribution (Szegedy et al., 2016).

    Parameters
    ----------
    alpha : float
        Weight of the uniform distribution.
    start : {"cold", "warm"}
        Where the weights start.

    Examples
    --------
    >>> from lowchurn.strategies import LabelSmoothing
    >>> LabelSmoothing(alpha=0.2).targets([[0, 1]])
    array([[0.1, 0.9]])
    """

    alpha: float = 0.1
    start: Start = "cold"
    name: ClassVar[str] = "ls"
    grid: ClassVar[Grid] = {"alpha": TENTHS}
    neutral: ClassVar[Parameters | None] = {"alpha": 0.0, "start": "cold"}

    def _targets(self, onehot: Array, base_proba: Array) -> Array:
        return (1 - self.alpha) * onehot + self.alpha / onehot.shape[1]


@dataclass(frozen=True)
class CoDistill(Started):
    """Train two networks at once that also aim at each other's predictions; the first is served (Anil et al., 2018).

    The loss is ``(1 - alpha)`` times the two losses against the labels plus ``alpha`` times the cross-entropy
    between the two, both ways. A pair that starts from the same weights and sees the same batches stays equal,
    and the coupling then only sharpens it; ``start="cold"`` gives each twin its own initialisation.

    Parameters
    ----------
    alpha : float
        Weight of the twin's predictions.
    start : {"warm", "cold"}
        Where the weights of both start; warm as in the paper.

    Examples
    --------
    >>> from lowchurn.strategies import CoDistill
    >>> CoDistill(alpha=0.4).coupling
    0.4
    """

    alpha: float = 0.5
    start: Start = "warm"
    name: ClassVar[str] = "co-dist"
    grid: ClassVar[Grid] = {"alpha": TENTHS}
    neutral: ClassVar[Parameters | None] = {"alpha": 0.0, "start": "cold"}

    @property
    def coupling(self) -> float | None:
        return self.alpha or None


@dataclass(frozen=True)
class Anchor(Aimed):
    """Aim at the base only where it is right (Fard et al., 2016), in its multiclass form.

    ``alpha * base + (1 - alpha) * label`` where the base's decision is the label, ``eta * label`` elsewhere.
    Ties of the base go to the larger class. Targets may sum to ``eta``, less than one: they weigh the row, too.

    Parameters
    ----------
    alpha : float
        Weight of the base where it is right.
    eta : float
        Weight of the label where the base is wrong.
    start : {"cold", "warm"}
        Where the weights start.

    Examples
    --------
    >>> from lowchurn.strategies import Anchor
    >>> Anchor(alpha=0.5, eta=0.7).targets([[0, 1], [1, 0]], [[0.2, 0.8], [0.2, 0.8]])
    array([[0.1, 0.9],
           [0.7, 0. ]])
    """

    alpha: float = 0.5
    eta: float = 1.0
    start: Start = "cold"
    name: ClassVar[str] = "anchor"
    grid: ClassVar[Grid] = {"alpha": TENTHS, "eta": (0.5, 0.7, 1.0)}
    neutral: ClassVar[Parameters | None] = {"alpha": 0.0, "eta": 1.0, "start": "cold"}

    def _targets(self, onehot: Array, base_proba: Array) -> Array:
        xp = array_namespace(onehot, base_proba)
        mixed = self.alpha * base_proba + (1 - self.alpha) * onehot
        return xp.where(base_is_right(onehot, base_proba), mixed, self.eta * onehot)


@dataclass(frozen=True)
class Distill(Aimed):
    """The paper's method: aim at ``lam * label + (1 - lam) * base``.

    Parameters
    ----------
    lam : float
        Weight of the true label: 1 is plain retraining, 0 imitates the base.
    start : {"cold", "warm"}
        Where the weights start.

    Examples
    --------
    >>> from lowchurn.strategies import Distill
    >>> Distill(lam=0.5).targets([[0, 1]], [[0.4, 0.6]])
    array([[0.2, 0.8]])
    >>> Distill(lam=1.3)
    Traceback (most recent call last):
    ...
    ValueError: Distill: lam must be in [0, 1], got 1.3.
    """

    lam: float = 0.5
    start: Start = "cold"
    name: ClassVar[str] = "distill"
    grid: ClassVar[Grid] = {"lam": TENTHS}
    neutral: ClassVar[Parameters | None] = {"lam": 1.0, "start": "cold"}

    def _targets(self, onehot: Array, base_proba: Array) -> Array:
        return self.lam * onehot + (1 - self.lam) * base_proba
