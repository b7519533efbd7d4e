"""Model files of the boosting libraries themselves, read as fitted classifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lowchurn._types import ArrayLike
from lowchurn.learners._boosted import BoostedModel
from lowchurn.learners._boosting import BoostingLearner
from lowchurn.learners._catboost import CatBoostLearner
from lowchurn.learners._lightgbm import LightGBMLearner
from lowchurn.learners._xgboost import XGBoostLearner

LIBRARIES: tuple[type[BoostingLearner], ...] = (LightGBMLearner, XGBoostLearner, CatBoostLearner)
READERS = {ending: learner for learner in LIBRARIES for ending in learner.endings}
NATIVE_ENDINGS = tuple(READERS)


def native_model(path: str | Path, classes: ArrayLike | None = None) -> Any:
    """Read a model file of LightGBM, XGBoost or CatBoost.

    Parameters
    ----------
    path : path
        ``.txt`` of LightGBM, ``.json`` or ``.ubj`` of XGBoost, ``.cbm`` of CatBoost.
    classes : array of shape (m,), optional
        The labels of the classes in the order of the model's outputs. Files of LightGBM and XGBoost contain no
        labels; without ``classes`` they are 0 to m - 1. Files of CatBoost contain theirs.

    Returns
    -------
    classifier
        Fitted, with ``classes_``, ``predict_proba`` and ``predict``; boosting can be continued from it.

    Raises
    ------
    ValueError
        Where the file is damaged, or is not a classifier.

    Examples
    --------
    >>> import tempfile
    >>> from lightgbm import LGBMClassifier
    >>> from lowchurn.learners import native_model
    >>> X, y = [[0.0], [1.0]] * 30, [0, 1] * 30
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = LGBMClassifier(verbose=-1).fit(X, y).booster_.save_model(f"{folder}/model.txt")
    ...     model = native_model(f"{folder}/model.txt", classes=["no", "yes"])
    >>> model.predict([[0.0], [1.0]]).tolist()
    ['no', 'yes']
    """
    path = Path(path)
    who, name = "native_model", repr(str(path))
    if path.suffix.lower() not in READERS:
        raise ValueError(f"{who}: path must end in one of {', '.join(NATIVE_ENDINGS)}, got {name}.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{who}: cannot read {name}: {error.strerror}.") from None
    model = READERS[path.suffix.lower()].read_native(who, path, data)
    if classes is None:
        return model
    labels = np.asarray(classes)
    if len(labels) != len(model.classes_) or len(np.unique(labels)) != len(labels):
        raise ValueError(
            f"{who}: classes must name each of the {len(model.classes_)} classes of {name} once, got "
            f"{labels.tolist()[:10]}."
        )
    if isinstance(model, BoostedModel):
        model.classes_ = labels
    elif [str(label) for label in labels] != [str(label) for label in model.classes_]:
        raise ValueError(
            f"{who}: {name} has the classes {model.classes_.tolist()[:10]}, and classes are {labels.tolist()[:10]}."
        )
    return model
