"""What is trained: takes soft targets, gives probabilities. One file a library.

``ALL`` lists the learners, the general one last; ``learner_for`` takes the first that handles an estimator.
"""

from __future__ import annotations

from typing import Any

from lowchurn.learners.base import Job, Learner
from lowchurn.learners.catboost import CatBoostLearner
from lowchurn.learners.lightgbm import LightGBMLearner
from lowchurn.learners.rows import RowsLearner, fit_soft
from lowchurn.learners.xgboost import XGBoostLearner

ALL: tuple[type[Learner], ...] = (LightGBMLearner, XGBoostLearner, CatBoostLearner, RowsLearner)


def learner_for(estimator: Any, classes: Any) -> Learner:
    """The learner that trains an estimator on soft targets.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from lowchurn.learners import learner_for
    >>> learner_for(LogisticRegression(), classes=["no", "yes"]).name
    'rows'
    """
    for learner in ALL:
        if learner.handles(estimator):
            return learner(estimator, classes)
    raise ValueError(
        f"learner_for: estimator must be a classifier with fit, got {type(estimator).__name__}. "
        f"Known learners: {', '.join(learner.name for learner in ALL)}."
    )


__all__ = [
    "ALL",
    "CatBoostLearner",
    "Job",
    "Learner",
    "LightGBMLearner",
    "RowsLearner",
    "XGBoostLearner",
    "fit_soft",
    "learner_for",
]
