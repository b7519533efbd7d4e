"""What answers predictions: trained models, and perhaps the base, averaged with their weights."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from lowchurn._types import Rows
from lowchurn.estimator._labels import positions, training_labels
from lowchurn.estimator._production import Base, align
from lowchurn.learners import Learner
from lowchurn.learners._model import BehindPreprocessing
from lowchurn.metrics import decide


@dataclass(frozen=True, eq=False)
class Member:
    """A trained model by its name, with probabilities in the order of the classes."""

    name: str
    model: BehindPreprocessing
    classes: np.ndarray

    def made(self) -> Member:
        return self

    @functools.cached_property
    def _in_order(self) -> bool:
        """Whether the model's columns are the classes in their order; computed once, not for every row served."""
        place = positions(self.model.classes_, training_labels(self.classes))
        return np.array_equal(place, np.arange(len(self.classes)))

    def proba(self, X: Rows) -> np.ndarray:
        proba = np.asarray(self.model.predict_proba(X), dtype=float)
        if self._in_order and (np.abs(proba.sum(axis=1) - 1) < 1e-9).all():
            return proba
        return align(proba, self.model.classes_, training_labels(self.classes))


@dataclass(frozen=True, eq=False)
class OnDial:
    """A model between a new one and the base, made from both when it is asked, and not kept."""

    name: str
    new: Member
    base: BehindPreprocessing
    toward_base: float
    learner: Learner
    rows: Rows | None  # of training, where batch normalisation needs them

    def made(self) -> Member:
        shares = [1 - self.toward_base, self.toward_base]
        model = self.learner.average([self.new.model.model, self.base.model], shares, self.rows)
        return Member(self.name, BehindPreprocessing(self.base.preprocessing, model), self.new.classes)

    def proba(self, X: Rows) -> np.ndarray:
        return self.made().proba(X)


Part: TypeAlias = Member | OnDial | Base
Weights: TypeAlias = Mapping[Part, float]  # of the models that answer together, in the order in which they are summed


def base_alone(weights: Weights) -> bool:
    """Whether the base alone is served, which then decides as it does in production."""
    return len(weights) == 1 and isinstance(next(iter(weights)), Base)


def weighted(each: Mapping[Part, np.ndarray], weights: Weights) -> np.ndarray:
    """Probabilities of models, summed with their weights in the order in which they were measured."""
    if len(weights) == 1:
        return each[next(iter(weights))]
    return np.asarray(sum(weight * each[part] for part, weight in weights.items()))


class Served:
    """What is served: models and their weights, those of a dial made once."""

    def __init__(self, weights: Weights, classes: np.ndarray) -> None:
        self.weights: dict[Part, float] = {part.made(): weight for part, weight in weights.items()}
        self.classes = classes

    @property
    def single(self) -> BehindPreprocessing | None:
        """The one trained model that is served, where there is one."""
        (first, *more) = self.weights
        return first.model if not more and isinstance(first, Member) else None

    def proba(self, X: Rows) -> np.ndarray:
        return weighted({part: part.proba(X) for part in self.weights}, self.weights)

    def decisions(self, X: Rows) -> np.ndarray:
        """The likeliest class of each row as an index; where the base alone is served, what it decides itself."""
        (first, *more) = self.weights
        if isinstance(first, Base) and not more:
            # These need not be those of its largest probability.
            decided = first.decisions(X)
            return decided if (decided >= 0).all() else np.where(decided >= 0, decided, decide(self.proba(X)))
        return np.asarray(decide(self.proba(X)))
