"""What answers predictions: trained models, and perhaps the base, averaged with their weights."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
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
    """What is served: models and their weights, those of a dial made once; a fitted model like any other.

    ``model_`` and ``preprocessing_`` are the one trained model that is served; None where there is none.
    """

    def __init__(self, weights: Weights, classes: np.ndarray, features: Sequence[str] | None = None) -> None:
        self.weights: dict[Part, float] = {part.made(): weight for part, weight in weights.items()}
        self.classes_ = classes
        if features is not None:
            self.feature_names_in_ = np.asarray(features, dtype=object)
        (first, *more) = self.weights
        single = first.model if not more and isinstance(first, Member) else None
        self.model_ = None if single is None else single.model
        self.preprocessing_ = None if single is None else single.preprocessing

    def predict_proba(self, X: Rows) -> np.ndarray:
        return weighted({part: part.proba(X) for part in self.weights}, self.weights)

    def predict(self, X: Rows) -> np.ndarray:
        """The likeliest class of each row; where the base alone is served, what it decides itself."""
        first = next(iter(self.weights))
        if len(self.weights) > 1 or not isinstance(first, Base):
            return np.asarray(self.classes_[decide(self.predict_proba(X))])
        decided = first.decisions(X)  # these need not be those of its largest probability
        if (decided < 0).any():
            decided = np.where(decided >= 0, decided, decide(self.predict_proba(X)))
        return np.asarray(self.classes_[decided])
