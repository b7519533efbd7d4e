"""Soft targets for any scikit-learn classifier that takes ``sample_weight``, as weighted rows.

A row with targets (0.7, 0.3) becomes two rows, class 0 with weight 0.7 and class 1 with weight 0.3. For a learner
that minimises log-loss this is exact: the weighted losses add up to the cross-entropy against the targets.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression, Perceptron, SGDClassifier
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import has_fit_parameter

from lowchurn._types import Rows
from lowchurn.learners._learner import Job, Learner, average_weights, class_weights, kind_of, weighted_mass
from lowchurn.learners._skops import dump_skops, load_skops
from lowchurn.metrics import decide


def soft_rows(
    targets: np.ndarray, sample_weight: np.ndarray | None = None, least: float = 1e-3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row, class and weight of every weighted row that soft targets become."""
    # Targets below the least would cost time and change nothing; the largest of each row always counts.
    kept = (targets >= least) | (targets == targets.max(axis=1, keepdims=True))
    weighted = targets if sample_weight is None else targets * sample_weight[:, None]
    row, column = np.nonzero(kept & (weighted > 0))
    return row, column, weighted[row, column]


class RowsLearner(Learner):
    """Any scikit-learn classifier that takes ``sample_weight``: soft targets as weighted rows."""

    name = "rows"

    @classmethod
    def handles(cls, estimator: Any) -> bool:
        return hasattr(estimator, "fit")

    def cannot_start(self, base_share: float, base: Any) -> str | None:
        who = type(self.estimator).__name__
        kind = next((cls for cls in (*COEFFICIENTS, *GROWING) if isinstance(self.estimator, cls)), None)
        if isinstance(self.estimator, HistGradientBoostingClassifier):
            return f"{who} cannot start from the base: its warm start needs the very rows that the base was trained on."
        if kind is None or "warm_start" not in self.estimator.get_params():
            return f"{who} cannot start from the base's weights: scikit-learn has no such start for it."
        if not isinstance(base, kind):
            return f"{who} cannot start from the base, which is {kind_of(base)} and not a fitted {kind.__name__}."
        if not np.array_equal(base.classes_, self.classes):
            return f"{who} cannot start from the base: the classes differ."
        if base_share < 1 and kind not in SHRINKABLE:
            return f"{who} cannot start between the base and fresh weights: it starts from the base or not at all."
        if kind is MLPClassifier:
            sizes = np.atleast_1d(self.estimator.get_params()["hidden_layer_sizes"]).tolist()
            if [len(b) for b in base.intercepts_[:-1]] != sizes:
                return f"{who} cannot start from the base: its layers have other sizes."
        return None

    def contains_base(self, model: Any) -> bool:
        return isinstance(model, GROWING) and len(model.estimators_) > self.estimator.get_params()["n_estimators"]

    def exchangeable(self, model: Any, base: Any) -> int:
        kind = next((cls for cls in FORESTS if isinstance(self.estimator, cls)), None)
        if kind is None or not isinstance(model, kind) or not isinstance(base, kind):
            return 0
        alike = all(
            np.array_equal(getattr(model, name), getattr(base, name)) for name in ("classes_", "n_features_in_")
        )
        return len(model.estimators_) if alike and np.array_equal(model.classes_, self.classes) else 0

    def exchange(self, model: Any, base: Any, parts: int) -> Any:
        old = min(len(model.estimators_) - parts, len(base.estimators_))
        made = copy.copy(model)
        # Evenly from all, because the trees of a base that was made in this way are ordered by their releases.
        made.estimators_ = [
            forest.estimators_[k]
            for forest, trees in ((model, parts), (base, old))
            for k in np.linspace(0, len(forest.estimators_) - 1, trees).round().astype(int)
        ]
        made.n_estimators = len(made.estimators_)
        return made

    def cannot_average(self, base: Any) -> str | None:
        if not isinstance(self.estimator, COEFFICIENTS):
            return super().cannot_average(base)
        if reason := self.cannot_start(1.0, base):
            return reason
        for name in ("loss", "activation"):  # what is made of the weights
            if getattr(base, name, None) != getattr(self.estimator, name, None):
                return f"the base's {name} is another one, so that its weights mean something else."
        return None

    @property
    def one_is_enough(self) -> bool:
        return isinstance(self.estimator, LogisticRegression)  # convex: one optimum, wherever it starts

    def average(self, models: Sequence[Any], shares: Sequence[float], X: Rows) -> Any:
        """Return a model with coefficients in shares; everything else is the first model's."""
        made = copy.deepcopy(models[0])
        if isinstance(made, MLPClassifier):
            for name in ("coefs_", "intercepts_"):
                layers = zip(*(getattr(model, name) for model in models), strict=True)
                setattr(made, name, [average_weights(layer, shares) for layer in layers])
        else:
            for name in ("coef_", "intercept_"):
                setattr(made, name, average_weights([getattr(model, name) for model in models], shares))
        return made

    def fit(self, X: Rows, job: Job, base: Any = None) -> Any:
        model = self.prepared(job)
        if not has_fit_parameter(model, "sample_weight"):
            if job.hard and job.sample_weight is None and not job.base_share:
                return model.fit(X, self.classes[decide(job.targets)])
            raise ValueError(
                f"{type(model).__name__}.fit must take sample_weight for soft targets and weights, and it does not. "
                "Choose a classifier that does."
            )
        if not job.base_share and job.hard and job.held_out is None:
            # Exactly the estimator's own training, without copies of rows.
            y = self.classes[decide(job.targets)]
            return model.fit(X, y) if job.sample_weight is None else model.fit(X, y, sample_weight=job.sample_weight)
        stopping: dict[str, Any] = {}
        if (apart := self._hold_out(model, job, X)) is not None:
            X, job, stopping = apart
        row, column, weight = soft_rows(job.targets, job.sample_weight)
        if model.get_params().get("class_weight") == "balanced":
            # scikit-learn would count rows, and a soft target makes rows of little weight.
            balanced = class_weights("balanced", self.classes, weighted_mass(job.targets, job.sample_weight))
            model.set_params(class_weight=dict(zip(self.classes.tolist(), balanced.tolist(), strict=True)))
        if job.base_share:
            model = _start_from(model, base, job.base_share)
        return model.fit(_safe_indexing(X, row), self.classes[column], sample_weight=weight, **stopping)

    @property
    def stops_on_rows(self) -> bool:
        estimator: Any = self.estimator
        histogram = isinstance(estimator, HistGradientBoostingClassifier) and has_fit_parameter(estimator, "X_val")
        return histogram and estimator.early_stopping is not False

    def _hold_out(self, model: Any, job: Job, X: Rows) -> tuple[Rows, Job, dict[str, Any]] | None:
        """Hold rows out before they are copied: copies of one row must not lie on both sides of early stopping."""
        if not self.stops_on_rows:
            given = model.get_params()
            if given.get("early_stopping", given.get("n_iter_no_change")):
                self.note(
                    f"{type(model).__name__} holds out rows for early stopping by itself, after each became one row "
                    "per class, so that copies of a row are on both sides and it stops late."
                )
            return None
        stops = job.held_out is not None or model.early_stopping is True or len(job.targets) > AUTOMATIC
        model.set_params(early_stopping=stops)
        held_out = job.held_out
        if held_out is None:
            if not stops or model.validation_fraction is None:  # None: on the loss of the training rows
                return None
            y = job.true_classes
            rows, out = train_test_split(
                np.arange(len(y)),
                test_size=model.validation_fraction,
                stratify=y if np.bincount(y)[np.unique(y)].min() > 1 else None,
                random_state=model.random_state if job.seed is None else job.seed,
            )
            weight = job.sample_weight
            part, other = (None if weight is None else weight[which] for which in (rows, out))
            held_out = _safe_indexing(X, out), job.stopping_targets[out], other
            X, job = _safe_indexing(X, rows), replace(job, targets=job.targets[rows], sample_weight=part)
        copies, column, shares = soft_rows(held_out[1], held_out[2])
        known = np.isin(column, soft_rows(job.targets, job.sample_weight)[1])  # classes that are trained on
        stopping = {"X_val": _safe_indexing(held_out[0], copies[known]), "y_val": self.classes[column[known]]}
        return X, job, stopping | {"sample_weight_val": shares[known]}

    @classmethod
    def saves(cls, model: Any) -> bool:
        return isinstance(model, BaseEstimator)

    @classmethod
    def save(cls, model: Any) -> dict[str, bytes]:
        return {"model.skops": dump_skops(model)}

    @classmethod
    def load(cls, files: dict[str, bytes], trusted: Sequence[str] = ()) -> Any:
        return load_skops(files["model.skops"], trusted, nested=True)


SHRINKABLE = (LogisticRegression, SGDClassifier, Perceptron)
COEFFICIENTS = (*SHRINKABLE, MLPClassifier)  # these start from the base's
AUTOMATIC = 10_000  # HistGradientBoostingClassifier stops early by itself with more rows than this
FORESTS = (RandomForestClassifier, ExtraTreesClassifier)  # means of trees, each trained by itself
GROWING = (GradientBoostingClassifier, *FORESTS)  # keep its trees and add others


def _start_from(model: Any, base: Any, share: float) -> Any:
    """Return an estimator that trains on from a share of the base's weights, or from its trees."""
    started = copy.deepcopy(base)
    parameters = {**model.get_params(deep=False), "warm_start": True}
    if isinstance(model, GROWING):
        parameters["n_estimators"] += len(base.estimators_)
    started.set_params(**parameters)
    if share < 1:  # the fresh weights of a linear model are zeros
        started.coef_, started.intercept_ = share * base.coef_, share * base.intercept_
    return started
