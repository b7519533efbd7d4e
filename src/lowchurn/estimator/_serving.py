"""What answers predictions: trained models, and perhaps the base, averaged; and the rule that keeps decisions."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from sklearn.utils import _safe_indexing

from lowchurn._checks import as_labels
from lowchurn._types import ArrayLike, Rows
from lowchurn.estimator._groups import Groups
from lowchurn.estimator._labels import GONE, WHO, codes, missing_labels, positions, training_labels
from lowchurn.estimator._production import Asked, Base, align, feature_names, row_count
from lowchurn.learners import Learner
from lowchurn.learners._model import BehindPreprocessing
from lowchurn.metrics import decide
from lowchurn.theory import Margin
from lowchurn.theory._decisions import threshold_values


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
# Of the models that answer together, in the order in which they are summed. A base of weight 0 has its decisions kept.
Weights: TypeAlias = Mapping[Part, float]


def base_alone(weights: Weights) -> bool:
    """Whether the base alone is served, which then decides as it does in production."""
    return len(weights) == 1 and isinstance(next(iter(weights)), Base)


def weighted(each: Mapping[Part, np.ndarray], weights: Weights) -> np.ndarray:
    """Probabilities of models, summed with their weights in the order in which they were measured."""
    asked = {part: weight for part, weight in weights.items() if weight > 0}
    if len(asked) == 1:
        return each[next(iter(asked))]
    return np.asarray(sum(weight * each[part] for part, weight in asked.items()))


class Answers(NamedTuple):
    """What is decided for some rows, beside the decisions that they had; classes are indices.

    ``kept`` is -1 where a row had none, which ``known`` tells apart from a decision for a class that is gone. ``gain``
    is how much likelier the best other class is than the decision that a row had, as the models estimate it.
    """

    decided: np.ndarray
    proba: np.ndarray
    kept: np.ndarray
    known: np.ndarray
    gain: np.ndarray


class Served:
    """What is served: models and their weights, those of a dial made once; a fitted model like any other.

    With a ``rule`` decisions of the base are kept: those of the base among the models, or those that are given.
    ``model_`` and ``preprocessing_`` are the one trained model that is served; None where there is none.
    """

    def __init__(
        self,
        weights: Weights,
        classes: np.ndarray,
        features: Sequence[str] | None = None,
        rule: Margin | None = None,
        threshold: float | None = None,
        groups: Groups | None = None,
    ) -> None:
        self.weights: dict[Part, float] = {part.made(): weight for part, weight in weights.items()}
        self.classes_ = classes
        self.rule = rule
        self.threshold_ = threshold
        self.groups = groups
        if features is not None:
            self.feature_names_in_ = np.asarray(features, dtype=object)
        (first, *more) = self.weights
        single = first.model if not more and rule is None and isinstance(first, Member) else None
        self.model_ = None if single is None else single.model
        self.preprocessing_ = None if single is None else single.preprocessing

    def predict_proba(self, X: Rows, previous: ArrayLike | None = None) -> np.ndarray:
        proba, before = self._asked(X, decisions=self.rule is not None and previous is None)
        if self.rule is None:
            return proba
        kept = self._kept(X, previous, before)
        if (
            previous is not None
            and len(kept)
            and (kept == GONE).all()
            and not missing_labels(as_labels(previous)).all()
        ):
            raise ValueError(
                f"{WHO}: previous holds none of the classes {self.classes_.tolist()[:5]}, got "
                f"{as_labels(previous).tolist()[:3]}. Labels must be of the same kind on both sides."
            )
        return self.rule.proba(proba, kept, self._codes(X, kept))

    def predict(self, X: Rows, previous: ArrayLike | None = None) -> np.ndarray:
        """What is decided in each row; where the base alone is served, what it decides itself."""
        first = next(iter(self.weights))
        if len(self.weights) > 1 or not isinstance(first, Base):
            return np.asarray(self.classes_[decide(self.predict_proba(X, previous), self.threshold_)])
        decided = first.decisions(X)  # these need not be those of its largest probability
        if (decided < 0).any():
            decided = np.where(decided >= 0, decided, decide(self.predict_proba(X), self.threshold_))
        return np.asarray(self.classes_[decided])

    def answers(self, X: Rows, previous: ArrayLike | None = None) -> Answers:
        """What :meth:`predict` and :meth:`predict_proba` return, with probabilities computed once; what was before."""
        alone = base_alone(self.weights)
        estimate, before = self._asked(X, decisions=alone or (self.rule is not None and previous is None))
        n = len(estimate)
        known = np.zeros(n, dtype=bool) if previous is None else ~missing_labels(as_labels(previous))
        kept = np.full(n, GONE)
        if self.rule is not None:
            kept = self._kept(X, previous, before)
            known |= any(isinstance(part, Base) for part in self.weights)
        elif previous is not None:
            kept = self._given(previous, n)
        proba = estimate if self.rule is None else self.rule.proba(estimate, kept, self._codes(X, kept))
        decided = np.asarray(decide(proba, self.threshold_))
        if alone and before is not None:  # these need not be those of its largest probability
            decided = np.where(before >= 0, before, decided)
        plain = Margin(values=threshold_values(self.threshold_))
        return Answers(decided, proba, kept, known, plain.gain(estimate, kept))

    def labels_and_proba(self, X: Rows) -> tuple[np.ndarray, np.ndarray]:
        """What :meth:`predict` and :meth:`predict_proba` return, with every model asked once."""
        found = self.answers(X)
        return np.asarray(self.classes_[found.decided]), found.proba

    def _asked(self, X: Rows, decisions: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """The probabilities of the models together, and where asked for the decisions of the base among them."""
        each: dict[Part, np.ndarray] = {}
        before = None
        for part, weight in self.weights.items():
            if isinstance(part, Base) and decisions:
                each[part], before = part.answers(X) if weight > 0 else (np.empty(0), part.decisions(X))
            elif weight > 0:
                each[part] = part.proba(X)
        return weighted(each, self.weights), before

    def _codes(self, X: Rows, kept: np.ndarray) -> np.ndarray | None:
        """The numbers of the groups of rows, where the rule has margins for them."""
        return None if self.groups is None or self.rule is None or not self.rule.groups else self.groups.codes(X, kept)

    def _kept(self, X: Rows, previous: ArrayLike | None, before: np.ndarray | None) -> np.ndarray:
        """The decisions to keep, as indices; -1 where there is none. Rows without a given one are asked of the base."""
        base = next((part for part in self.weights if isinstance(part, Base)), None)
        if previous is None:
            if before is None:
                raise ValueError(
                    f"{WHO}: this model keeps decisions of the base, which was given as a table and cannot be asked. "
                    "Give previous=, the decisions that these rows have now (None where a row has none)."
                )
            return before
        kept = self._given(previous, row_count(X))
        missing = missing_labels(as_labels(previous))
        if missing.any() and base is not None:
            kept[missing] = base.decisions(_safe_indexing(X, np.flatnonzero(missing)))
        return kept

    def _given(self, previous: ArrayLike, n: int) -> np.ndarray:
        """Decisions that are given, as indices; -1 where there is none."""
        given = as_labels(previous)
        if given.shape != (n,):
            raise ValueError(f"{WHO}: previous must hold one decision for each of {n} rows, got shape {given.shape}.")
        kept, there = np.full(n, GONE), ~missing_labels(given)
        if there.any():
            kept[there] = codes("previous", given[there], self.classes_)
        return kept


# What is served as the base of the next release


def base_of(model: Asked, classes: np.ndarray, names: ArrayLike | None = None) -> Base:
    """The base; of an earlier release what it serves, without its own base, candidates and frontier.

    A release that serves its base unchanged is that base, where both answer alike.
    """
    served = getattr(model, "_served", None)
    if not isinstance(served, Served):
        return Base(model, classes, names)
    features = getattr(model, "feature_names_in_", None)
    first = next(iter(served.weights))
    if (
        isinstance(first, Base)
        and base_alone(served.weights)
        and np.array_equal(first.classes, classes)
        and not first.has_lost_classes
        and first.threshold == served.threshold_
        and (features is None or feature_names(first.model) is not None)
    ):
        return Base(first.model, classes, first.names)
    groups = served.groups
    return Base(Served(served.weights, served.classes_, features, served.rule, served.threshold_, groups), classes)


def parts_of(base: Base, X: Rows) -> Weights:
    """The models whose probabilities, summed with their weights, are those of the base; the base where it is no blend.

    A blend that asks for other columns than ``X`` has, or has other classes, stays whole. Models of a blend are called
    by the name of the base: that of the candidate, in an earlier release, may be the name of one in this.
    """
    found = _spread(base, X)
    return {replace(part, name=base.name) if isinstance(part, Member) else part: w for part, w in found.items()}


def _spread(base: Base, X: Rows) -> Weights:
    blend = base.model
    if not isinstance(blend, Served) or blend.rule is not None or len(blend.weights) == 1:
        return {base: 1.0}
    names, columns = getattr(blend, "feature_names_in_", None), getattr(X, "columns", None)
    same = names is None or (columns is not None and list(columns) == names.tolist())
    if not same or not np.array_equal(blend.classes_, base.classes):
        return {base: 1.0}
    found: dict[Part, float] = {}
    for part, weight in blend.weights.items():
        inside = _spread(part, X) if isinstance(part, Base) else {part: 1.0}
        for one, share in inside.items():
            found[one] = found.get(one, 0.0) + weight * share
    return found


def count_models(weights: Weights) -> int:
    """How many models answer every row, those of earlier releases among them."""
    inside = [part.model for part in weights if isinstance(part, Base)]
    mixed = [count_models(model.weights) for model in inside if isinstance(model, Served)]
    return len(weights) - len(mixed) + sum(mixed)
