"""What a strategy is, and the functions on labels that strategies use.

A strategy is a frozen dataclass with pure methods on arrays; it never sees a model or a framework. These properties
describe it, and an engine or learner needs no others. How a model is trained:

- ``base_share``: weights start at ``base_share * base + (1 - base_share) * fresh``;
- ``targets(onehot, base_proba)``: what each row aims at;
- ``mixing``: the alpha of mixup's Beta(alpha, alpha), or None;
- ``coupling``: the share of a twin's predictions in the loss, or None where there is no twin;
- ``limit``: the share of changed decisions that a multiplier is steered to, or None where there is none.

And what is made of trained models:

- ``teachers``: a group of retrains whose mean prediction stands in for the labels, or None;
- ``blend``: models, and perhaps the base, that are averaged instead of trained, or None.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace, device

from lowchurn._checks import (
    Array,
    as_floats,
    check_choice,
    check_class_index,
    check_number,
    check_proba,
    unknown_name,
)
from lowchurn._display import setting_words
from lowchurn.metrics import decide

Start = Literal["cold", "warm"]
Parameter = float | int | str
Parameters = dict[str, Parameter]
Grid = dict[str, tuple[float, ...]]
STARTS = ("cold", "warm")
TENTHS = tuple(round(0.1 * k, 1) for k in range(1, 10))


@dataclass(frozen=True)
class Group:
    """Trainings by one strategy that differ in their seed alone: member j has ``member_seed(seed, j)``."""

    strategy: Strategy
    count: int


@dataclass(frozen=True)
class Blend:
    """``(1 - base)`` of the mean of some groups' models and ``base`` of the base, in weights or in probabilities.

    With a ``margin`` the base's decision is kept unless another class is likelier by more than it, in ``(1 - lean)`` of
    this average and ``lean`` of the base's probabilities.
    """

    groups: tuple[Group, ...]
    of: Literal["weights", "proba"]
    base: float
    margin: float | None = None
    lean: float = 0.0


@dataclass(frozen=True)
class Strategy:
    """What all strategies share. By itself it would be a plain retrain; use :class:`ColdStart` for that.

    Subclasses override what differs. ``grid`` contains the values that the paper tunes each parameter over;
    ``neutral`` the parameters at which the strategy is the same as :class:`ColdStart`, None if there are none;
    ``rowwise`` is whether a row's target depends on that row alone; ``dial_parameter`` the parameter that is the
    position on a dial toward the base, empty where there is none.
    """

    name: ClassVar[str] = ""
    grid: ClassVar[Grid] = {}
    neutral: ClassVar[Parameters | None] = {}
    rowwise: ClassVar[bool] = True
    dial_parameter: ClassVar[str] = ""

    @property
    def parameters(self) -> Parameters:
        """The parameters by name; with ``name`` they are the strategy as data (see :func:`strategy_from`)."""
        values = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in values}

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
    def limit(self) -> float | None:
        """The share of changed decisions that a multiplier is steered to while training, or None."""
        return None

    @property
    def teachers(self) -> Group | None:
        """Retrains whose mean prediction takes the place of the labels in :meth:`targets`, or None."""
        return None

    @property
    def blend(self) -> Blend | None:
        """What is averaged instead of trained, or None for a strategy that trains one model."""
        return None

    @property
    def dial(self) -> float | None:
        """Where a blend lies between the new models (0) and the base (1); None where there is no such place."""
        return None

    @classmethod
    def at_dial(cls, position: float) -> Parameters:
        """The parameter with which the strategy lies at a position of its dial."""
        return {cls.dial_parameter: position}

    @property
    def needs_base(self) -> bool:
        """Whether the targets depend on the base's probabilities."""
        return False

    @property
    def setting(self) -> str:
        """The parameters in words, such as ``lam=0.5, start=cold``, for display only."""
        return setting_words(self.parameters)

    def targets(self, onehot: Any, base_proba: Any = None) -> Array:
        """What each row aims at, shape (n, m).

        Parameters
        ----------
        onehot : array of shape (n, m)
            The true labels as rows of zeros and a one (see :func:`one_hot`), or the mean prediction of
            ``teachers`` where the strategy has them.
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

    def pull(self, base_proba: Any) -> Array:
        """Where the multiplier of ``limit`` pulls: the base's decisions, shape (n, m)."""
        base_proba = as_floats(self._who, "base_proba", base_proba)
        return one_hot(decide(base_proba), base_proba.shape[1], like=base_proba)

    @property
    def _who(self) -> str:
        return type(self).__name__


class Checked(Strategy):
    """A strategy whose parameters are checked by their types: a share, a count, or where weights start."""

    def __post_init__(self) -> None:
        checks = {"Start": self._check_start, "float": self._check_number, "int": self._check_count}
        for kind, check in checks.items():
            for parameter in dataclasses.fields(self):
                if parameter.type == kind:
                    check(parameter.name)

    def _check_start(self, name: str) -> None:
        check_choice(self._who, name, getattr(self, name), STARTS)

    def _check_number(self, name: str) -> None:
        check_number(self._who, name, getattr(self, name), 0, 1)

    def _check_count(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{self._who}: {name} must be a whole number of at least 1, got {value!r}.")


class Started(Checked):
    """A strategy that may start cold or from the base's weights."""

    start: Start  # not a field here, so that a strategy's own parameters come first

    @property
    def base_share(self) -> float:
        return 1.0 if self.start == "warm" else 0.0


class Aimed(Started):
    """A strategy that may start cold or from the base's weights, and whose targets depend on the base."""

    @property
    def needs_base(self) -> bool:
        return True


def paper_grid(cls: type[Strategy], **fixed: Any) -> list[Strategy]:
    """The settings of a strategy that the paper tunes over: 74 for its eight strategies together.

    Parameters
    ----------
    cls : class
        One of :data:`ALL`.
    **fixed
        Parameters that are the same in every setting, such as ``start="warm"``.

    Examples
    --------
    >>> from lowchurn.strategies import PAPER, Anchor, Distill, paper_grid
    >>> [s.lam for s in paper_grid(Distill)]
    [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    >>> len(paper_grid(Anchor)), sum(len(paper_grid(cls)) for cls in PAPER)
    (27, 74)
    """
    if not (isinstance(cls, type) and issubclass(cls, Strategy)):
        raise ValueError(f"paper_grid: cls must be a strategy class such as Distill, got {cls!r}.")
    check_names(f"paper_grid({cls.__name__})", cls, fixed)
    tuned = {name: values for name, values in cls.grid.items() if name not in fixed}
    return [cls(**dict(zip(tuned, values, strict=True)), **fixed) for values in itertools.product(*tuned.values())]


def check_names(who: str, cls: type[Strategy], names: Iterable[str]) -> None:
    """Raise an error for a name that is no parameter of a strategy."""
    known = {f.name for f in dataclasses.fields(cls)}
    for name in names:
        if name not in known:
            raise unknown_name(who, "parameter", name, known)


def targets_of(strategies: Sequence[Strategy], onehot: Any, base_proba: Any) -> list[Array]:
    """What each of several strategies aims at on the same rows, which are checked once."""
    onehot, base_proba = check_proba("targets", "onehot", onehot), check_proba("targets", "base_proba", base_proba)
    return [strategy._targets(onehot, base_proba if strategy.needs_base else onehot) for strategy in strategies]


def member_seed(seed: int, member: int) -> int:
    """The seed of a member of a group; the first has the seed itself, as a strategy by itself would."""
    if member == 0:
        return seed
    high = 2**31 if 0 <= seed < 2**31 else 2**63  # scikit-learn takes seeds below 2**32, the engine any
    return int(np.random.SeedSequence([seed % 2**64, member]).generate_state(1, np.uint64)[0] % high)


def base_is_right(onehot: Array, base_proba: Array) -> Array:
    """Which rows the base decides rightly, shape (n, 1)."""
    xp = array_namespace(onehot, base_proba)
    return (xp.argmax(onehot, axis=1) == decide(base_proba))[:, None]


def one_hot(y: Any, classes: int, like: Array | None = None) -> Array:
    """Class indices 0 to ``classes - 1`` as rows of zeros and a one, of the dtype of ``like`` or float64."""
    y = check_class_index("one_hot", "y", y, classes)
    xp = array_namespace(y)
    columns = xp.arange(classes, device=device(y))
    return xp.astype(y[:, None] == columns[None, :], xp.float64 if like is None else like.dtype)
