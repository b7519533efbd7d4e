"""Which trainings a set of strategies needs, in which order, and how every strategy is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from lowchurn.strategies._strategy import Group, Strategy


class Training(NamedTuple):
    """One model to train: by which strategy, and which member of its group, which decides its seed."""

    strategy: Strategy
    member: int = 0

    @property
    def teachers(self) -> tuple[Training, ...]:
        """What has to be trained before it, because it learns from their mean prediction."""
        return _members(self.strategy.teachers)


@dataclass(frozen=True)
class Recipe:
    """How a strategy is made of trainings.

    ``of`` is "model" where it is its one training, "weights" or "proba" where it is
    ``(1 - base_share)`` of the mean of its members and ``base_share`` of the base. With a ``margin`` the base's
    decision is kept unless another class is likelier by more than it (see :class:`lowchurn.theory.Margin`), in
    ``(1 - lean)`` of this and ``lean`` of the base's probabilities.
    """

    of: Literal["model", "weights", "proba"]
    members: tuple[Training, ...]
    base_share: float = 0.0
    margin: float | None = None
    lean: float = 0.0

    @cached_property
    def teachers(self) -> tuple[Training, ...]:
        """The trainings that its members learn from, each once."""
        return tuple(dict.fromkeys(one for member in self.members for one in member.teachers))

    @cached_property
    def trainings(self) -> tuple[Training, ...]:
        """All that has to be trained for it, each once, teachers first."""
        return tuple(dict.fromkeys(one for member in self.members for one in _with_teachers(member)))


@dataclass(frozen=True)
class Plan:
    """The recipes of some strategies, and the rounds in which their trainings are done.

    Every training is in one round only, and its teachers are in an earlier one. The trainings of a round do not depend
    on each other, and may be done together.
    """

    recipes: dict[Strategy, Recipe]
    rounds: tuple[tuple[Training, ...], ...]

    @cached_property
    def trainings(self) -> tuple[Training, ...]:
        """All trainings, each once, teachers before their students."""
        return tuple(one for some in self.rounds for one in some)


def plan(strategies: Iterable[Strategy]) -> Plan:
    """What has to be trained for some strategies, and how they are made of it.

    Strategies that share members (a soup and its dial, its served mixture, its students) share their trainings.

    Examples
    --------
    >>> from lowchurn.strategies import Distill, Soup, plan
    >>> both = plan([Distill(0.5), Soup(members=2), Soup(members=2, toward_base=0.3)])
    >>> both.trainings
    (Training(strategy=Distill(lam=0.5, start='cold'), member=0), Training(strategy=WarmStart(), member=0), ...)
    >>> len(both.trainings), both.recipes[Soup(members=2, toward_base=0.3)].base_share
    (3, 0.3)
    """
    return _plan(tuple(strategies))


@lru_cache(maxsize=256)
def _plan(strategies: tuple[Strategy, ...]) -> Plan:
    recipes = {strategy: _recipe(strategy) for strategy in strategies}
    rounds: dict[int, dict[Training, None]] = {}
    for recipe in recipes.values():
        for training in recipe.trainings:
            rounds.setdefault(_depth(training), {})[training] = None
    return Plan(recipes, tuple(tuple(rounds[depth]) for depth in sorted(rounds)))


def _recipe(strategy: Strategy) -> Recipe:
    blend = strategy.blend
    if blend is None:
        return Recipe("model", (Training(strategy),))
    members = tuple(one for group in blend.groups for one in _members(group))
    return Recipe(blend.of, members, blend.base, blend.margin, blend.lean)


def _members(group: Group | None) -> tuple[Training, ...]:
    return () if group is None else tuple(Training(group.strategy, j) for j in range(group.count))


def _with_teachers(training: Training) -> list[Training]:
    return [*(one for teacher in training.teachers for one in _with_teachers(teacher)), training]


def _depth(training: Training) -> int:
    """The number of its round: one more than that of its teachers."""
    return max((1 + _depth(teacher) for teacher in training.teachers), default=0)
