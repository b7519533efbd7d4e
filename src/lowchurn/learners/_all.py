"""The list of all learners, the general one last; and the learner of an estimator, or of a base's own kind."""

from __future__ import annotations

from typing import Any

from lowchurn._types import ArrayLike, Classifier
from lowchurn.learners._catboost import CatBoostLearner
from lowchurn.learners._learner import Learner
from lowchurn.learners._lightgbm import LightGBMLearner
from lowchurn.learners._sklearn import RowsLearner
from lowchurn.learners._torch import TorchLearner
from lowchurn.learners._xgboost import XGBoostLearner

ALL: tuple[type[Learner], ...] = (LightGBMLearner, XGBoostLearner, CatBoostLearner, TorchLearner, RowsLearner)


def learner_for(estimator: Any, classes: ArrayLike, base: Any = None) -> Learner:
    """Return the learner that trains an estimator on soft targets.

    Parameters
    ----------
    estimator : classifier
        Unfitted.
    classes : array of shape (m,)
        The labels, sorted.
    base : fitted model, optional
        The model in production (without its preprocessing). Where it is of the same library and stopped early, its
        number of rounds is taken.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from lowchurn.learners import learner_for
    >>> learner_for(LogisticRegression(), classes=["no", "yes"]).name
    'rows'
    """
    for learner in ALL:
        if learner.handles(estimator):
            return learner(estimator, classes, base)
    raise ValueError(
        f"learner_for: estimator must be a classifier with fit, got {type(estimator).__name__}. "
        f"Known learners: {', '.join(learner.name for learner in ALL)}."
    )


def blueprint(base: Any) -> Classifier:
    """Return an unfitted estimator like a fitted model, also with the settings that only its ``fit`` was given."""
    for learner in ALL:
        if learner.has_blueprint(base):
            return learner.blueprint(base)
    raise ValueError(
        f"blueprint: base must be a classifier with fit, got {type(base).__name__}. Give estimator=, what to train."
    )
