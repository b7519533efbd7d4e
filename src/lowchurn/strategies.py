"""How candidates come about: where their weights start, what targets they aim at, how rows are mixed.

A strategy is a frozen dataclass with pure methods on arrays; it never sees a model or a framework. Four answers
describe it, and an engine or learner needs no others:

- ``base_share``: weights start at ``base_share * base + (1 - base_share) * fresh``;
- ``targets(onehot, base_proba)``: what each row aims at;
- ``mixing``: the alpha of mixup's Beta(alpha, alpha), or None;
- ``coupling``: the share of a twin's predictions in the loss, or None where there is no twin.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from array_api_compat import array_namespace, device

from lowchurn.checks import (
    Array,
    as_array,
    check_choice,
    check_class_index,
    check_number,
    check_proba,
    unknown_name,
)

Start = Literal["cold", "warm"]
STARTS = ("cold", "warm")
TENTHS = tuple(round(0.1 * k, 1) for k in range(1, 10))


@dataclass(frozen=True)
class Strategy:
    """What all strategies share. By itself it would be a plain retrain; use :class:`ColdStart` for that.

    Subclasses override what differs. ``grid`` holds the values that the paper tunes each parameter over;
    ``neutral`` the parameters at which the strategy is the same as :class:`ColdStart`, None if there are none.
    """

    name: ClassVar[str] = ""
    grid: ClassVar[dict[str, tuple[float, ...]]] = {}
    neutral: ClassVar[dict[str, Any] | None] = {}

    @property
    def base_share(self) -> float:
        """The share of the base's weights in the start; the rest is a fresh initialisation."""
        return 0.0

    @property
    def mixing(self) -> float | None:
        """Alpha of mixup's Beta distribution, or None."""
        return None

    @property
    def coupling(self) -> float | None:
        """The share of the twin's predictions in the loss of a coupled pair, or None for no twin."""
        return None

    @property
    def needs_base(self) -> bool:
        """Whether the targets depend on the base's probabilities."""
        return False

    @property
    def setting(self) -> str:
        """The parameters in words, such as ``lam=0.5, start=cold``."""
        return ", ".join(f"{f.name}={getattr(self, f.name)}" for f in dataclasses.fields(self))

    def targets(self, onehot: Any, base_proba: Any = None) -> Array:
        """What each row aims at, shape (n, m).

        Parameters
        ----------
        onehot : array of shape (n, m)
            The true labels as rows of zeros and a one (see :func:`one_hot`).
        base_proba : array of shape (n, m)
            The base's probabilities of the same rows and classes. May be None where ``needs_base`` is False.
        """
        onehot = check_proba(self._who, "onehot", onehot)
        if not self.needs_base:
            return self._targets(onehot, onehot)
        if base_proba is None:
            raise ValueError(f"{self._who}: targets need the base's probabilities, got None. Give a base.")
        base_proba = check_proba(self._who, "base_proba", base_proba)
        if onehot.shape != base_proba.shape:
            raise ValueError(
                f"{self._who}: onehot and base_proba must have the same shape, "
                f"got {tuple(onehot.shape)} and {tuple(base_proba.shape)}. Align the classes first."
            )
        return self._targets(onehot, base_proba)

    def _targets(self, onehot: Array, base_proba: Array) -> Array:
        return onehot

    @property
    def _who(self) -> str:
        return type(self).__name__

    def _check_unit(self, *names: str) -> None:
        for name in names:
            check_number(self._who, name, getattr(self, name), 0, 1)


class _Trained(Strategy):
    """A strategy that may start cold or from the base's weights."""

    start: Start  # not a field here, so that a strategy's own parameters come first

    def __post_init__(self) -> None:
        check_choice(self._who, "start", self.start, STARTS)
        self._check_unit(*(f.name for f in dataclasses.fields(self) if f.name != "start"))

    @property
    def base_share(self) -> float:
        return 1.0 if self.start == "warm" else 0.0


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
    neutral: ClassVar[dict[str, Any] | None] = None

    @property
    def base_share(self) -> float:
        return 1.0


@dataclass(frozen=True)
class ShrinkPerturb(Strategy):
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
    grid: ClassVar[dict[str, tuple[float, ...]]] = {"alpha": TENTHS}
    neutral: ClassVar[dict[str, Any] | None] = {"alpha": 0.0}

    def __post_init__(self) -> None:
        self._check_unit("alpha")

    @property
    def base_share(self) -> float:
        return self.alpha


@dataclass(frozen=True)
class Mixup(_Trained):
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
    grid: ClassVar[dict[str, tuple[float, ...]]] = {"alpha": TENTHS}
    neutral: ClassVar[dict[str, Any] | None] = {"alpha": 0.0, "start": "cold"}

    @property
    def mixing(self) -> float | None:
        return self.alpha or None


@dataclass(frozen=True)
class LabelSmoothing(_Trained):
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
    grid: ClassVar[dict[str, tuple[float, ...]]] = {"alpha": TENTHS}
    neutral: ClassVar[dict[str, Any] | None] = {"alpha": 0.0, "start": "cold"}

    def _targets(self, onehot: Array, base_proba: Array) -> Array:
        return (1 - self.alpha) * onehot + self.alpha / onehot.shape[1]


@dataclass(frozen=True)
class CoDistill(_Trained):
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
    grid: ClassVar[dict[str, tuple[float, ...]]] = {"alpha": TENTHS}
    neutral: ClassVar[dict[str, Any] | None] = {"alpha": 0.0, "start": "cold"}

    @property
    def coupling(self) -> float | None:
        return self.alpha or None


@dataclass(frozen=True)
class Anchor(_Trained):
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
    grid: ClassVar[dict[str, tuple[float, ...]]] = {"alpha": TENTHS, "eta": (0.5, 0.7, 1.0)}
    neutral: ClassVar[dict[str, Any] | None] = {"alpha": 0.0, "eta": 1.0, "start": "cold"}

    @property
    def needs_base(self) -> bool:
        return True

    def _targets(self, onehot: Array, base_proba: Array) -> Array:
        xp = array_namespace(onehot, base_proba)
        right = xp.argmax(onehot, axis=1) == decide(base_proba)
        mixed = self.alpha * base_proba + (1 - self.alpha) * onehot
        return xp.where(right[:, None], mixed, self.eta * onehot)


@dataclass(frozen=True)
class Distill(_Trained):
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
    grid: ClassVar[dict[str, tuple[float, ...]]] = {"lam": TENTHS}
    neutral: ClassVar[dict[str, Any] | None] = {"lam": 1.0, "start": "cold"}

    @property
    def needs_base(self) -> bool:
        return True

    def _targets(self, onehot: Array, base_proba: Array) -> Array:
        return self.lam * onehot + (1 - self.lam) * base_proba


ALL: tuple[type[Strategy], ...] = (
    ColdStart,
    WarmStart,
    ShrinkPerturb,
    Mixup,
    LabelSmoothing,
    CoDistill,
    Anchor,
    Distill,
)


def paper_grid(cls: type[Strategy], **fixed: Any) -> list[Strategy]:
    """The settings of a strategy that the paper tunes over: 74 for the eight strategies together.

    Parameters
    ----------
    cls : class
        One of :data:`ALL`.
    **fixed
        Parameters that are the same in every setting, such as ``start="warm"``.

    Examples
    --------
    >>> from lowchurn.strategies import ALL, Anchor, Distill, paper_grid
    >>> [s.lam for s in paper_grid(Distill)]
    [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    >>> len(paper_grid(Anchor)), sum(len(paper_grid(cls)) for cls in ALL)
    (27, 74)
    """
    if not (isinstance(cls, type) and issubclass(cls, Strategy)):
        raise ValueError(f"paper_grid: cls must be a strategy class such as Distill, got {cls!r}.")
    known = {f.name for f in dataclasses.fields(cls)}
    for name in fixed:
        if name not in known:
            raise unknown_name(f"paper_grid({cls.__name__})", "parameter", name, known)
    tuned = {name: values for name, values in cls.grid.items() if name not in fixed}
    return [cls(**dict(zip(tuned, values, strict=True)), **fixed) for values in itertools.product(*tuned.values())]


def one_hot(y: Any, classes: int, like: Array | None = None) -> Array:
    """Class indices as rows of zeros and a one.

    Parameters
    ----------
    y : array of shape (n,)
        Class indices 0 to ``classes - 1``.
    classes : int
        Number of classes.
    like : array, optional
        Take its dtype; float64 without it.

    Examples
    --------
    >>> from lowchurn.strategies import one_hot
    >>> one_hot([2, 0], classes=3)
    array([[0., 0., 1.],
           [1., 0., 0.]])
    """
    y = check_class_index("one_hot", "y", y, classes)
    xp = array_namespace(y)
    columns = xp.arange(classes, device=device(y))
    return xp.astype(y[:, None] == columns[None, :], xp.float64 if like is None else like.dtype)


def decide(proba: Any) -> Array:
    """The class of the largest probability; ties go to the larger class, as in the paper.

    Examples
    --------
    >>> from lowchurn.strategies import decide
    >>> decide([[0.5, 0.5], [0.7, 0.3]])
    array([1, 0])
    """
    proba = as_array(proba)
    xp = array_namespace(proba)
    return proba.shape[1] - 1 - xp.argmax(xp.flip(proba, axis=1), axis=1)
