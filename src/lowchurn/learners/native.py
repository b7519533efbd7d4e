"""Model files of the boosting libraries themselves, read as fitted classifiers.

The libraries' own readers crash the process on damaged files, or later when such a model predicts. So the structure of
a file is checked here before a library sees it: that trees are trees, and that all indices are in range. The format of
CatBoost is checked by reading it in another process first.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from lowchurn.learners._trees import check_lightgbm, check_xgboost, require
from lowchurn.learners.base import extra_missing

NATIVE_ENDINGS = (".txt", ".json", ".ubj", ".cbm")

# Reads a file of CatBoost and predicts one row with it; what damaged files do to this process is its exit status.
CATBOOST_TRIAL = """
import sys
import catboost
model = catboost.CatBoost()
model.load_model(sys.argv[1])
words = {*model.get_cat_feature_indices(), *model.get_text_feature_indices()}
count = max([len(model.feature_names_), *(1 + k for k in words)])
row = ["0" if k in words else 0.5 for k in range(count)]
if not model.get_embedding_feature_indices():
    model.predict([row], thread_count=1)
"""


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
    if path.suffix not in NATIVE_ENDINGS:
        raise ValueError(f"{who}: path must end in one of {', '.join(NATIVE_ENDINGS)}, got {name}.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{who}: cannot read {name}: {error.strerror}.") from None
    if path.suffix == ".txt":
        model = _lightgbm(who, name, data)
    elif path.suffix == ".cbm":
        model = _catboost(who, path, data)
    else:
        model = _xgboost(who, name, data)
    return model if classes is None else _with_labels(who, name, model, np.asarray(classes))


def _lightgbm(who: str, name: str, data: bytes) -> Any:
    from lowchurn.learners.boosting import Stage
    from lowchurn.learners.lightgbm import LightGBMModel, check_scores

    booster = lightgbm_booster(who, name, data)
    with _refused(who, name):
        check_scores(booster)
    return LightGBMModel([Stage(booster)], np.arange(max(booster.num_model_per_iteration(), 2)))


def _xgboost(who: str, name: str, data: bytes) -> Any:
    import xgboost

    from lowchurn.learners.xgboost import XGBoostLearner

    booster = xgboost_booster(who, name, data)
    best = booster.attr("best_iteration") if booster.attr("scikit_learn") is not None else None
    fitted = xgboost.XGBClassifier()
    with _refused(who, name):
        fitted.load_model(bytearray(data))
        if best is None:  # Booster.predict uses all trees, XGBClassifier's those up to the best round
            fitted.get_booster().set_attr(best_iteration=None)
        return XGBoostLearner.stages_of(fitted)


def _catboost(who: str, path: Path, data: bytes) -> Any:
    catboost = _library(who, "catboost")
    with _refused(who, repr(str(path))):
        check_catboost(data)
    try_catboost(who, path)
    with _refused(who, repr(str(path))):
        model = catboost.CatBoostClassifier().load_model(path)  # by its path: bytes come without parameters
        loss = str(model.get_all_params().get("loss_function", "")).partition(":")[0]
        require(loss in CATBOOST_CLASSIFIERS, f"its loss is {loss}, which is not that of a classifier")
        return model


def _with_labels(who: str, name: str, model: Any, labels: np.ndarray) -> Any:
    if len(labels) != len(model.classes_) or len(np.unique(labels)) != len(labels):
        raise ValueError(
            f"{who}: classes must name each of the {len(model.classes_)} classes of {name} once, got "
            f"{labels.tolist()[:10]}."
        )
    if hasattr(model, "stages"):
        model.classes_ = labels
    elif [str(label) for label in labels] != [str(label) for label in model.classes_]:
        raise ValueError(
            f"{who}: {name} has the classes {model.classes_.tolist()[:10]}, and classes are {labels.tolist()[:10]}."
        )
    return model


CATBOOST_CLASSIFIERS = ("Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll")


def lightgbm_booster(who: str, name: str, data: bytes) -> Any:
    """A booster of LightGBM from the text of its file."""
    lightgbm = _library(who, "lightgbm")
    with _refused(who, name):
        check_lightgbm(data)
        return lightgbm.Booster(model_str=data.decode())


def xgboost_booster(who: str, name: str, data: bytes) -> Any:
    """A booster of XGBoost from its JSON or UBJSON file."""
    xgboost = _library(who, "xgboost")
    with _refused(who, name):
        check_xgboost(data)
        booster = xgboost.Booster()
        booster.load_model(bytearray(data))
        return booster


def catboost_model(who: str, name: str, data: bytes) -> Any:
    """A model of CatBoost from its file."""
    catboost = _library(who, "catboost")
    with _refused(who, name):
        check_catboost(data)
        return catboost.CatBoostClassifier().load_model(blob=data)


def check_catboost(data: bytes) -> None:
    """Check the header of a file of CatBoost: what it is, and that it is as long as it says."""
    size = int.from_bytes(data[4:8], "little")
    require(data[:4] == b"CBM1" and 0 < size <= len(data) - 8, "it is cut short, or no file of CatBoost")


def try_catboost(who: str, path: Path) -> None:
    """Read a file of CatBoost in another process, which damaged files can crash."""
    _library(who, "catboost")
    command = [sys.executable, "-c", CATBOOST_TRIAL, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{who}: {str(path)!r} is damaged: reading it does not end.") from None
    if done.returncode:
        raise ValueError(f"{who}: {str(path)!r} is damaged, or no model file of CatBoost: it cannot be read.")


def _library(who: str, name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise extra_missing(who, name, "boosting") from None


class _refused:
    """Errors of a library about a file, as one clear ValueError."""

    def __init__(self, who: str, name: str) -> None:
        self.start = f"{who}: {name} cannot be read as a model"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, Exception):
            words = " ".join(str(error).split("Stack trace")[0].split()) or type(error).__name__
            raise ValueError(f"{self.start} ({words[:200].rstrip('.')}).") from None
