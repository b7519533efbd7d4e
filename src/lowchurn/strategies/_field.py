"""What others have proposed against churn and regressions, in the same terms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from array_api_compat import array_namespace

from lowchurn._checks import Array
from lowchurn.strategies._strategy import TENTHS, Aimed, Grid, Parameters, Start, Started, base_is_right

LEAST = 1e-12  # of a probability whose logarithm is taken
CELLS = 2**24  # of a table of distances at a time


@dataclass(frozen=True)
class FocalDistill(Aimed):
    """Distil more where the base is right (positive-congruent training, Yan et al., 2021).

    Their loss adds ``1 + focus`` times the divergence from the base where it is right and 1 times where it is wrong;
    here the base's part of the target is scaled so, which is the same loss but for a factor. A focus of 0 is
    :class:`Distill`.

    Parameters
    ----------
    lam : float
        Weight of the true label.
    focus : float
        How much more the base counts where it is right; 5 as in their paper.
    start : {"cold", "warm"}
        Where the weights start.

    Examples
    --------
    >>> from lowchurn.strategies import FocalDistill
    >>> FocalDistill(lam=0.5, focus=1.0).targets([[0, 1], [1, 0]], [[0.2, 0.8], [0.2, 0.8]])
    array([[0.1 , 0.9 ],
           [0.55, 0.2 ]])
    """

    lam: float = 0.5
    focus: float = 5.0
    start: Start = "cold"
    name: ClassVar[str] = "focal"
    grid: ClassVar[Grid] = {"lam": TENTHS}
    neutral: ClassVar[Parameters | None] = {"lam": 1.0, "start": "cold"}

    def _check_number(self, name: str) -> None:
        if name != "focus":
            super()._check_number(name)
        elif not (isinstance(self.focus, int | float) and 0 <= self.focus < math.inf):
            raise ValueError(f"{self._who}: focus must be at least 0 and finite, got {self.focus!r}.")

    def _targets(self, onehot: Array, base_proba: Array) -> Array:
        xp = array_namespace(onehot, base_proba)
        right = xp.astype(base_is_right(onehot, base_proba), base_proba.dtype)
        weight = (1 + self.focus * right) / (1 + self.focus)
        return self.lam * onehot + (1 - self.lam) * weight * base_proba


@dataclass(frozen=True)
class Dissonance(Aimed):
    """Rows that the base got right weigh more (new-error dissonance, Bansal et al., 2019).

    ``(1 - alpha)`` times the loss plus ``alpha`` times the loss of those rows alone: what the base gets wrong weighs
    ``1 - alpha``. The same as :class:`Anchor` with ``alpha = 0`` and ``eta = 1 - alpha``.

    Parameters
    ----------
    alpha : float
        Weight of the rows that the base got right; 0 is plain retraining.
    start : {"cold", "warm"}
        Where the weights start.

    Examples
    --------
    >>> from lowchurn.strategies import Dissonance
    >>> Dissonance(alpha=0.3).targets([[0, 1], [1, 0]], [[0.2, 0.8], [0.2, 0.8]])
    array([[0. , 1. ],
           [0.7, 0. ]])
    """

    alpha: float = 0.5
    start: Start = "cold"
    name: ClassVar[str] = "dissonance"
    grid: ClassVar[Grid] = {"alpha": TENTHS}
    neutral: ClassVar[Parameters | None] = {"alpha": 0.0, "start": "cold"}

    def _targets(self, onehot: Array, base_proba: Array) -> Array:
        xp = array_namespace(onehot, base_proba)
        return xp.where(base_is_right(onehot, base_proba), onehot, (1 - self.alpha) * onehot)


@dataclass(frozen=True)
class Constrained(Started):
    """Steer the share of changed decisions to a limit while training (rate constraints, Goh et al., 2016).

    The Lagrangian of the loss under a limit on hard churn. Hard churn has no gradient, so the weights descend on its
    surrogate, the cross-entropy against the base's decisions; the multiplier ``mu`` climbs on hard churn itself, as
    measured on the training rows after each epoch: ``mu += STEP * (churn - max_churn)``, never below 0 (the
    proxy-Lagrangian of Cotter et al., 2019). With labels e and the base's decisions d the rows aim at
    ``(e + mu d) / (1 + mu)``, from ``mu = 0`` on. Only torch networks are trained epoch by epoch and can do this.

    Parameters
    ----------
    max_churn : float
        The limit on the training rows; 1 is none.
    start : {"cold", "warm"}
        Where the weights start.

    Examples
    --------
    >>> from lowchurn.strategies import Constrained
    >>> Constrained(max_churn=0.02).limit
    0.02
    >>> Constrained(max_churn=0.02).pull([[0.3, 0.7]])
    array([[0., 1.]])
    """

    max_churn: float = 0.02
    start: Start = "cold"
    name: ClassVar[str] = "constrained"
    grid: ClassVar[Grid] = {"max_churn": (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15)}
    neutral: ClassVar[Parameters | None] = {"max_churn": 1.0, "start": "cold"}

    @property
    def needs_base(self) -> bool:
        return self.limit is not None

    @property
    def limit(self) -> float | None:
        return self.max_churn if self.max_churn < 1 else None


@dataclass(frozen=True)
class LocalSmoothing(Aimed):
    """Mix each label with those of the rows that the base finds alike (Bahri and Jiang, 2021).

    Alike are the nearest rows by the base's centred log-probabilities, which are its logits up to a constant in each
    row. The row itself is one of its neighbours.

    Parameters
    ----------
    alpha : float
        Weight of the neighbours' labels.
    neighbors : int
        How many of them.
    start : {"cold", "warm"}
        Where the weights start.

    Examples
    --------
    >>> from lowchurn.strategies import LocalSmoothing
    >>> base = [[0.9, 0.1], [0.8, 0.2], [0.2, 0.8]]
    >>> LocalSmoothing(alpha=0.5, neighbors=2).targets([[1, 0], [0, 1], [0, 1]], base)
    array([[0.75, 0.25],
           [0.25, 0.75],
           [0.  , 1.  ]])
    """

    alpha: float = 0.5
    neighbors: int = 10
    start: Start = "cold"
    name: ClassVar[str] = "local-ls"
    grid: ClassVar[Grid] = {"alpha": TENTHS}
    neutral: ClassVar[Parameters | None] = {"alpha": 0.0, "start": "cold"}
    rowwise: ClassVar[bool] = False

    def _targets(self, onehot: Array, base_proba: Array) -> Array:
        xp = array_namespace(onehot, base_proba)
        near = _nearest(xp.log(xp.where(base_proba < LEAST, LEAST, base_proba)), min(self.neighbors, onehot.shape[0]))
        around = xp.mean(xp.reshape(onehot[xp.reshape(near, (-1,))], (*near.shape, onehot.shape[1])), axis=1)
        return (1 - self.alpha) * onehot + self.alpha * around


def _nearest(logits: Array, count: int) -> Array:
    """Positions (n, count) of the nearest rows, the row itself among them."""
    xp = array_namespace(logits)
    logits = logits - xp.mean(logits, axis=1, keepdims=True)
    if isinstance(logits, np.ndarray):
        from sklearn.neighbors import NearestNeighbors

        return NearestNeighbors(n_neighbors=count).fit(logits).kneighbors(logits, return_distance=False)
    found = []
    step = max(1, CELLS // math.prod(logits.shape))
    for first in range(0, logits.shape[0], step):
        gaps = logits[first : first + step, None, :] - logits[None, :, :]
        distance = xp.sum(gaps * gaps, axis=2)
        if hasattr(xp, "topk"):  # torch: the nearest few without sorting the rest
            found.append(xp.topk(distance, count, largest=False).indices)
        else:
            found.append(xp.argsort(distance, axis=1)[:, :count])
    return xp.concat(found)
