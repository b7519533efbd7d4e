"""Model files of the boosting libraries themselves, read as fitted classifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NATIVE_ENDINGS = (".txt", ".json", ".ubj", ".cbm")


def native_model(path: str | Path, classes: Any = None) -> Any:
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
    """
    raise NotImplementedError
