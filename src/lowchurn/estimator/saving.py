"""The file of a LowChurnClassifier: the models that it serves, what was measured, and its parameters."""

from __future__ import annotations

import dataclasses
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone

from lowchurn.estimator.base import Base, Behind
from lowchurn.estimator.candidates import Trained
from lowchurn.estimator.choose import BASE, Served
from lowchurn.estimator.frontier import Candidate, Frontier, Selection
from lowchurn.learners.rows import RowsLearner, load_skops
from lowchurn.persistence import (
    load_other,
    model_from_files,
    model_to_files,
    read_archive,
    write_archive,
)
from lowchurn.selection import Certificate

FORMAT = 1
# Unfitted, these are parameters and nothing else.
ESTIMATORS = ("lightgbm.sklearn.LGBMClassifier", "xgboost.sklearn.XGBClassifier", "catboost.core.CatBoostClassifier")
KEPT = ("max_churn", "churn", "select", "search", "confidence", "validation_fraction", "n_jobs", "verbose")


def save(model: Any, path: str | Path) -> None:
    """Write a fitted LowChurnClassifier; the base goes along only where it is a part of what is served."""
    served: Served = model._served
    files: dict[str, bytes] = {}
    members = []
    for k, weight in served.weights.items():
        part = base_part(served.base) if k == BASE else served.models[k]
        folder = f"model{len(members)}/"
        entry = {"weight": float(weight).hex(), "base": k == BASE, "folder": folder}
        entry["learner"] = _add(files, folder, part.model)
        if part.preprocessing is not None:
            entry["preprocessing"] = _add(files, f"{folder}preprocessing/", part.preprocessing)
        features = getattr(part, "feature_names_in_", None)
        entry["features"] = None if features is None else list(map(str, features))
        members.append(entry)
    files["estimator.skops"] = RowsLearner.save(clone(model._estimator))["model.skops"]
    parameters = {name: getattr(model, name) for name in KEPT}
    if isinstance(model.random_state, int):
        parameters["random_state"] = model.random_state
    if isinstance(model.proper_score, str):
        parameters["proper_score"] = model.proper_score
    about = {
        "format": FORMAT,
        "members": members,
        "classes": model.classes_.tolist(),
        "dtype": "O" if model.classes_.dtype.kind == "O" else model.classes_.dtype.str,
        "n_features_in": int(model.n_features_in_),
        "feature_names_in": list(map(str, getattr(model, "feature_names_in_", []))) or None,
        "parameters": parameters,
        "selection": _plain(dataclasses.asdict(model.selection_)),
        "frontier": [_plain(row) for row in model.frontier_.records()],
        "certificate": None if model.certificate_ is None else _plain(dataclasses.asdict(model.certificate_)),
    }
    write_archive(path, about, files)


def base_part(base: Base) -> Behind:
    """The base as something that has files; a function has none, and neither has a mixture."""
    served = base.served
    if isinstance(served, Behind):
        return served
    if hasattr(served, "_served") or not isinstance(served, BaseEstimator):
        raise ValueError(
            f"save: the base is a part of what is served, and a {type(base.model).__name__} "
            f"{'that serves a mixture ' if hasattr(served, '_served') else ''}cannot be written to this file. "
            "Give the base as one fitted estimator, or serve a single trained model."
        )
    return Behind(None, served)


def load(path: str | Path, trusted: Sequence[str] = ()) -> Any:
    """Read what ``LowChurnClassifier.save`` wrote, or a scikit-learn model in a skops file.

    Parameters
    ----------
    path : path
        The file.
    trusted : list of str
        Names of types beyond scikit-learn, numpy and scipy that the file may hold; the name of a pickle file, to read
        it although pickles can run any code.

    Returns
    -------
    LowChurnClassifier or estimator
        It predicts bit for bit what the saved one did. The base of a LowChurnClassifier is not in the file unless
        it is a part of what is served.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> import lowchurn
    >>> X, y = load_iris(return_X_y=True)
    >>> model = lowchurn.LowChurnClassifier().fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/next.skops")
    ...     again = lowchurn.load(f"{folder}/next.skops")
    >>> bool((again.predict_proba(X) == model.predict_proba(X)).all())
    True
    """
    named = Path(path).name in trusted  # a pickle that the caller trusts
    found = None if named and not zipfile.is_zipfile(path) else read_archive(path)
    if found is None:
        return load_other(path, trusted)
    about, files = found
    if about["format"] > FORMAT:
        raise ValueError(f"load: the file has format {about['format']}, this version reads up to {FORMAT}. Upgrade lowchurn.")
    from lowchurn.estimator.classifier import LowChurnClassifier

    estimator = load_skops(files["estimator.skops"], [*trusted, *ESTIMATORS])
    model = LowChurnClassifier(estimator, **about["parameters"])
    model._estimator = estimator
    model.classes_ = np.asarray(about["classes"], dtype=about["dtype"])
    model.n_features_in_ = about["n_features_in"]
    if about["feature_names_in"] is not None:
        model.feature_names_in_ = np.asarray(about["feature_names_in"], dtype=object)
    members = [_member(entry, files, trusted) for entry in about["members"]]
    # Members keep their order, so that sums are the same to the last bit.
    weights, base, models = {}, None, []
    for k, (entry, part) in enumerate(zip(about["members"], members, strict=True)):
        models.append(Trained(part.preprocessing, part.model, model.classes_))
        weights[BASE if entry["base"] else k] = float.fromhex(entry["weight"])
        if entry["base"]:
            whole = part.preprocessing is None and entry["learner"] == "rows"
            base = Base(part.model if whole else part, model.classes_)
    model._served = Served(weights, base, models, model.classes_)
    model.selection_ = Selection(**about["selection"])
    model.frontier_ = Frontier(Candidate(**_tuples(row)) for row in about["frontier"])
    certificate = about["certificate"]
    if certificate is not None:
        certificate["tested"] = tuple((name, p) for name, p in certificate["tested"])
    model.certificate_ = None if certificate is None else Certificate(**certificate)
    model._expose()
    return model


def _member(entry: dict[str, Any], files: dict[str, bytes], trusted: Sequence[str]) -> Behind:
    folder, preprocessing = entry["folder"], None
    if "preprocessing" in entry:
        preprocessing = _take(files, f"{folder}preprocessing/", entry["preprocessing"], trusted)
    return Behind(preprocessing, _take(files, folder, entry["learner"], trusted), entry["features"])


def _add(files: dict[str, bytes], folder: str, model: Any) -> str:
    learner, parts = model_to_files(model)
    files.update({folder + name: data for name, data in parts.items()})
    return learner


def _take(files: dict[str, bytes], folder: str, learner: str, trusted: Sequence[str]) -> Any:
    inside = {name.removeprefix(folder): data for name, data in files.items() if name.startswith(folder)}
    return model_from_files(learner, inside, trusted)


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """Numbers of numpy as numbers of Python."""
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in record.items()}


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    pairs = {k: tuple(math.nan if x is None else x for x in v) for k, v in row.items() if isinstance(v, list)}
    return {**row, **pairs}
