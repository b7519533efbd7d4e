"""Past the paper: several retrains of one base, averaged, and a dial toward the base that needs no training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from lowchurn._checks import Array
from lowchurn.strategies._paper import ColdStart, WarmStart
from lowchurn.strategies._strategy import TENTHS, Blend, Checked, Grid, Group, Parameters, Start, Started

DIAL = (0.0, *TENTHS)


class _TowardBase(Checked):
    """Weights of retrains that start from the base, moved toward it."""

    toward_base: float  # not a field here, so that a strategy's own parameters come first
    grid: ClassVar[Grid] = {"toward_base": DIAL}
    neutral: ClassVar[Parameters | None] = None
    dial_parameter: ClassVar[str] = "toward_base"

    @property
    def base_share(self) -> float:
        return 1.0

    @property
    def dial(self) -> float:
        return self.toward_base


@dataclass(frozen=True)
class Soup(_TowardBase):
    """Average the weights of retrains that all start from the base, then move toward it.

    ``theta = (1 - toward_base) * mean(members) + toward_base * base``: one network is served, and all settings come
    from the same trainings. Members that start from one place stay in one basin of the loss, where averages of weights
    are as good as or better than their parts (Wortsman et al., 2022, "Model soups"; interpolation toward the start as
    in WiSE-FT, Wortsman et al., 2022), and averaging takes out what shuffles put in, which is most of the churn.

    Parameters
    ----------
    members : int
        Retrains that are averaged.
    toward_base : float
        0 is their average, 1 the base itself.

    Examples
    --------
    >>> from lowchurn.strategies import Soup
    >>> Soup(members=4, toward_base=0.3).blend.base
    0.3
    """

    members: int = 8
    toward_base: float = 0.0
    name: ClassVar[str] = "soup"

    @property
    def blend(self) -> Blend:
        return Blend((Group(WarmStart(), self.members),), "weights", self.toward_base)


@dataclass(frozen=True)
class Interpolate(_TowardBase):
    """One retrain from the base's weights, moved back toward them: a :class:`Soup` of one member.

    The dial at no cost but a warm start's (WiSE-FT, Wortsman et al., 2022). A linear model's optimum does not depend
    on its start, so for it this is all that a soup could do.

    Parameters
    ----------
    toward_base : float
        0 is the retrain, 1 the base itself.

    Examples
    --------
    >>> from lowchurn.strategies import Interpolate
    >>> Interpolate(0.25).blend.groups
    (Group(strategy=WarmStart(), count=1),)
    """

    toward_base: float = 0.0
    name: ClassVar[str] = "interpolate"

    @property
    def blend(self) -> Blend:
        return Blend((Group(WarmStart(), 1),), "weights", self.toward_base)


class _OfRetrains(Started):
    """A mixture of the base with plain retrains, in the share ``lam`` of these."""

    members: int  # not fields here, so that each strategy has its own order
    lam: float
    grid: ClassVar[Grid] = {"lam": (*TENTHS, 1.0)}
    neutral: ClassVar[Parameters | None] = None

    @property
    def _retrains(self) -> Group:
        return Group(WarmStart() if self.start == "warm" else ColdStart(), self.members)


@dataclass(frozen=True)
class ServedMixture(_OfRetrains):
    """Proposition 1 served literally: ``lam * mean(members) + (1 - lam) * base``, in probabilities.

    The dial for models without weights to average (trees, pipelines, bases of another kind). Serving costs
    ``members + 1`` predictions per row, and the base has to be kept.

    Parameters
    ----------
    members : int
        Retrains whose probabilities are averaged.
    lam : float
        Weight of the retrains: 1 is their average, 0 the base itself.
    start : {"cold", "warm"}
        Where the retrains start.

    Examples
    --------
    >>> from lowchurn.strategies import ServedMixture
    >>> ServedMixture(members=2, lam=0.75).dial
    0.25
    """

    members: int = 8
    lam: float = 0.5
    start: Start = "cold"
    name: ClassVar[str] = "served-mix"
    dial_parameter: ClassVar[str] = "lam"

    @classmethod
    def at_dial(cls, position: float) -> Parameters:
        return {"lam": round(1 - position, 12)}

    @property
    def blend(self) -> Blend:
        return Blend((self._retrains,), "proba", self.dial)

    @property
    def dial(self) -> float:
        return round(1 - self.lam, 12)


@dataclass(frozen=True)
class TwoTeachers(_OfRetrains):
    """Aim at ``lam * mean prediction of several retrains + (1 - lam) * base``.

    Proposition 1 asks for the truth p, of which one label is a noisy estimate; the mean prediction of several retrains
    is a better one. Alone, or with several students whose weights are averaged as in :class:`Soup`.

    Parameters
    ----------
    members : int
        Retrains that teach beside the base.
    lam : float
        Their weight.
    students : int
        Models that learn from both teachers; more than one are averaged in weights, and have to start warm.
    start : {"warm", "cold"}
        Where teachers and students start.

    Examples
    --------
    >>> from lowchurn.strategies import TwoTeachers
    >>> strategy = TwoTeachers(members=4, lam=0.5)
    >>> strategy.teachers
    Group(strategy=WarmStart(), count=4)
    >>> strategy.targets([[0.3, 0.7]], [[0.5, 0.5]])
    array([[0.4, 0.6]])
    """

    members: int = 8
    lam: float = 0.5
    students: int = 1
    start: Start = "warm"
    name: ClassVar[str] = "two-teachers"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.students > 1 and self.start == "cold":
            raise ValueError(
                f"{self._who}: students must be 1 with start='cold', got {self.students}: weights of networks that "
                "started apart cannot be averaged. Start warm."
            )

    @property
    def needs_base(self) -> bool:
        return True

    @property
    def teachers(self) -> Group:
        return self._retrains

    @property
    def blend(self) -> Blend | None:
        if self.students == 1:
            return None
        return Blend((Group(dataclasses.replace(self, students=1), self.students),), "weights", 0.0)

    def _targets(self, onehot: Array, base_proba: Array) -> Array:
        return self.lam * onehot + (1 - self.lam) * base_proba
