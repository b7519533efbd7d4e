"""Proper scores: one function phi gives the loss and the churn that belong together.

``loss(y, v) = phi_y(v)`` and ``divergence(u, v) = sum_y u_y (phi_y(v) - phi_y(u))``. With ``phi = -log`` these
are cross-entropy and KL divergence; with the squared error, the Brier score and the squared L2 distance.
Everything takes numpy arrays or torch tensors and returns one value per row; the caller reduces.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from array_api_compat import array_namespace, device

from lowchurn._checks import (
    Array,
    as_floats,
    check_class_index,
    check_number,
    check_proba,
    check_rows,
    check_weightlike,
    unknown_name,
)
from lowchurn._types import Values

__all__ = ["BrierScore", "LogScore", "Score", "SphericalScore"]


class Score(abc.ABC):
    """A strictly proper score. Subclass it and write :meth:`phi`; everything else follows.

    Attributes
    ----------
    name : str
        What :func:`get_score` calls it.
    bound : float or None
        B, an upper bound of every ``phi_y`` on the simplex (Theorem 2). None where there is none, or it is not known.
    alpha, norm : float and int, or None
        ``u . phi(u)`` is alpha-strongly concave with respect to the L_norm norm (Proposition 1).
    lipschitz : float or None
        Every ``phi_y`` is Lipschitz with this constant with respect to the L1 norm (Proposition 7).
    convex : bool
        Whether every ``phi_y`` is convex. Where it is not (or not known, the default), programs over
        mixtures are solved from several starts, since a local optimum need not be the global one.

    Examples
    --------
    The power score with exponent 3 (the Brier score is the one with exponent 2):

    >>> import numpy as np
    >>> from lowchurn.scoring import Score
    >>> class PowerScore(Score):
    ...     name = "power3"
    ...     def phi(self, proba):
    ...         return 2 * (proba**3).sum(axis=1)[:, None] - 3 * proba**2 + 3
    >>> score = PowerScore()
    >>> truth, other = np.array([[0.7, 0.3]]), np.array([[0.6, 0.4]])
    >>> bool(score.divergence(truth, other)[0] > score.divergence(truth, truth)[0])
    True
    """

    name: ClassVar[str] = ""
    bound: ClassVar[Any] = None
    alpha: ClassVar[float | None] = None
    norm: ClassVar[int | None] = None
    lipschitz: ClassVar[Any] = None
    convex: ClassVar[bool] = False

    @abc.abstractmethod
    def phi(self, proba: Array) -> Array:
        """Score of every class for every row: shape (n, m) in, shape (n, m) out. Inputs are not checked."""

    def strong_concavity(self, classes: int) -> tuple[float, int] | None:
        """``(alpha, norm)`` for this number of classes, or None where it is not known."""
        return None if self.alpha is None or self.norm is None else (self.alpha, self.norm)

    def gradient(self, targets: Array, proba: Array) -> Array:
        """Gradient of ``expected(targets, proba)`` with respect to ``proba``, shape (n, m).

        By central differences of :meth:`phi`, one class at a time. The built-in scores have it in closed form;
        override it where speed matters.
        """
        xp = array_namespace(targets, proba)
        classes = int(proba.shape[1])
        step = float(xp.finfo(proba.dtype).eps) ** (1 / 3)
        columns = []
        for c in range(classes):
            bump = xp.zeros((1, classes), dtype=proba.dtype, device=device(proba))
            bump[0, c] = step
            change = self.phi(proba + bump) - self.phi(proba - bump)
            columns.append(row_dot(targets, change) / (2 * step))
        return xp.stack(columns, axis=1)

    def curvature(self, targets: Array, proba: Array) -> Array | None:
        """Second derivatives of ``expected(targets, proba)`` by each probability, shape (n, m).

        Only for scores in which no two probabilities of a row interact; None (the default) for all others,
        whose curvature is then found by differences of :meth:`gradient`.
        """
        return None

    def loss(self, y: Values, proba: Values) -> Array:
        """``phi_y(proba)`` for class indices ``y``: one loss per row.

        Examples
        --------
        >>> from lowchurn.scoring import BrierScore
        >>> BrierScore().loss([0, 1], [[1.0, 0.0], [1.0, 0.0]])
        array([0., 2.])
        """
        v = check_proba(self._who, "proba", proba)
        index = check_class_index(self._who, "y", y, int(v.shape[1]))
        check_rows(self._who, y=index, proba=v)
        xp = array_namespace(v)
        classes = xp.arange(int(v.shape[1]), device=device(v))
        chosen = xp.asarray(index, device=device(v))[:, None] == classes[None, :]
        return xp.sum(xp.where(chosen, self.phi(v), xp.zeros_like(v)), axis=1)

    def divergence(self, u: Values, v: Values) -> Array:
        """Soft churn from ``u`` (the base) to ``v`` (the new model): zero where they agree, one value per row.

        Examples
        --------
        >>> from lowchurn.scoring import BrierScore, LogScore
        >>> BrierScore().divergence([[0.5, 0.5]], [[0.9, 0.1]]).round(4)    # squared L2 distance
        array([0.32])
        >>> LogScore().divergence([[0.5, 0.5]], [[0.9, 0.1]]).round(4)      # Kullback-Leibler
        array([0.5108])
        """
        before, after = check_proba(self._who, "u", u), check_proba(self._who, "v", v)
        if before.shape != after.shape:
            raise ValueError(
                f"{self._who}: u and v must have the same shape, got {tuple(before.shape)} and {tuple(after.shape)}."
            )
        return row_dot(before, self.phi(after) - self.phi(before))

    def expected(self, targets: Values, proba: Values) -> Array:
        """``sum_y targets_y phi_y(proba)``: the loss against soft targets, one value per row.

        Targets need not sum to one (those of :class:`~lowchurn.strategies.Anchor` do not), but must not be negative.

        Examples
        --------
        >>> from lowchurn.scoring import LogScore
        >>> LogScore().expected([[0.9, 0.1]], [[0.9, 0.1]]).round(4)       # the entropy
        array([0.3251])
        """
        v = check_proba(self._who, "proba", proba)
        soft = as_floats(self._who, "targets", targets)
        if soft.shape != v.shape:
            raise ValueError(
                f"{self._who}: targets must have the shape of proba, {tuple(v.shape)}, got {tuple(soft.shape)}."
            )
        check_weightlike(self._who, "targets", soft)
        return row_dot(soft, self.phi(v))

    @property
    def _who(self) -> str:
        return type(self).__name__


def row_dot(weights: Array, values: Array) -> Array:
    """Row-wise dot product in which a weight of zero silences even an infinite value."""
    xp = array_namespace(weights, values)
    return xp.sum(xp.where(weights == 0, xp.zeros_like(values), weights * values), axis=1)


@dataclass(frozen=True)
class LogScore(Score):
    """``phi_y(v) = -log(v_y)``: cross-entropy and Kullback-Leibler divergence.

    Parameters
    ----------
    epsilon : float, default 1e-7
        Probabilities below it are raised to it before the logarithm, so that ``bound = -log(epsilon)`` exists.
        Within ``epsilon`` of the simplex' border the score is therefore flat and not strictly proper.

    Examples
    --------
    >>> from lowchurn.scoring import LogScore
    >>> LogScore().loss([0], [[0.5, 0.5]]).round(4)
    array([0.6931])
    >>> round(LogScore().bound, 2)
    16.12
    """

    epsilon: float = 1e-7
    name: ClassVar[str] = "log"
    alpha: ClassVar[float] = 1.0
    norm: ClassVar[int] = 1
    convex: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("LogScore", "epsilon", self.epsilon, 0, 0.1, open_low=True)

    @property
    def bound(self) -> float:
        return -math.log(self.epsilon)

    @property
    def lipschitz(self) -> float:
        return 1 / self.epsilon

    def phi(self, proba: Array) -> Array:
        xp = array_namespace(proba)
        return -xp.log(xp.clip(proba, self.epsilon, None))

    def gradient(self, targets: Array, proba: Array) -> Array:
        xp = array_namespace(targets, proba)
        slope = -targets / xp.clip(proba, self.epsilon, None)
        return xp.where(proba < self.epsilon, xp.zeros_like(slope), slope)

    def curvature(self, targets: Array, proba: Array) -> Array:
        xp = array_namespace(targets, proba)
        curved = targets / xp.clip(proba, self.epsilon, None) ** 2
        return xp.where(proba < self.epsilon, xp.zeros_like(curved), curved)


@dataclass(frozen=True)
class BrierScore(Score):
    """``phi_y(v) = sum_i (1[i = y] - v_i)^2``: squared error and squared L2 distance.

    Examples
    --------
    >>> from lowchurn.scoring import BrierScore
    >>> BrierScore().loss([0], [[0.5, 0.5]])
    array([0.5])
    >>> BrierScore().bound, BrierScore().alpha, BrierScore().norm
    (2.0, 2.0, 2)
    """

    name: ClassVar[str] = "brier"
    bound: ClassVar[float] = 2.0
    alpha: ClassVar[float] = 2.0
    norm: ClassVar[int] = 2
    lipschitz: ClassVar[float] = 2.0
    convex: ClassVar[bool] = True

    def phi(self, proba: Array) -> Array:
        xp = array_namespace(proba)
        return 1 - 2 * proba + xp.sum(proba * proba, axis=1)[:, None]

    def gradient(self, targets: Array, proba: Array) -> Array:
        xp = array_namespace(targets, proba)
        return 2 * (xp.sum(targets, axis=1)[:, None] * proba - targets)

    def curvature(self, targets: Array, proba: Array) -> Array:
        xp = array_namespace(targets, proba)
        return 2 * xp.sum(targets, axis=1)[:, None] + xp.zeros_like(proba)


@dataclass(frozen=True)
class SphericalScore(Score):
    """``phi_y(v) = 1 - v_y / ||v||_2``: strictly proper, bounded by one, but not convex.

    ``u . phi(u) = 1 - ||u||_2`` is 1/m-strongly concave with respect to L2 on the simplex of m classes, so
    ``alpha`` is None and :meth:`strong_concavity` asks for the number of classes. Proposition 1 holds for it
    (the proof needs a continuous proper score only); the convex program of Algorithm 1 is then solved from
    several starts.

    Examples
    --------
    >>> from lowchurn.scoring import SphericalScore
    >>> SphericalScore().loss([0, 1], [[1.0, 0.0], [0.6, 0.4]]).round(4)
    array([0.    , 0.4453])
    >>> SphericalScore().strong_concavity(4)
    (0.25, 2)
    """

    name: ClassVar[str] = "spherical"
    bound: ClassVar[float] = 1.0
    norm: ClassVar[int] = 2

    def phi(self, proba: Array) -> Array:
        xp = array_namespace(proba)
        return 1 - proba / xp.sqrt(xp.sum(proba * proba, axis=1))[:, None]

    def strong_concavity(self, classes: int) -> tuple[float, int]:
        return 1 / classes, 2

    def gradient(self, targets: Array, proba: Array) -> Array:
        xp = array_namespace(targets, proba)
        length = xp.sqrt(xp.sum(proba * proba, axis=1))[:, None]
        along = xp.sum(targets * proba, axis=1)[:, None]
        return along * proba / length**3 - targets / length


ALL: tuple[type[Score], ...] = (LogScore, BrierScore, SphericalScore)


def get_score(score: str | Score) -> Score:
    """The score of this name; a score is returned as it is."""
    if isinstance(score, Score):
        return score
    known = {cls.name: cls for cls in ALL}
    if score not in known:
        raise unknown_name("get_score", "score", score, known)
    return known[score]()
