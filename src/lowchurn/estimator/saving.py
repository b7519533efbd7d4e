"""The file of a LowChurnClassifier: the models that it serves, what was measured, and its parameters."""

from __future__ import annotations

import dataclasses
import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from lowchurn.estimator.base import Base, Behind, inner_model
from lowchurn.estimator.candidates import BASE, Dialled, Terms, Trained, dialled, take_apart
from lowchurn.estimator.choose import Desk, Offer, Served
from lowchurn.estimator.frontier import Candidate, Frontier, Selection
from lowchurn.estimator.own_kind import unfitted
from lowchurn.learners import ALL, learner_for
from lowchurn.learners.rows import RowsLearner, load_skops
from lowchurn.learners.torch import NetworkClassifier, network_name
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
ESTIMATORS = (
    "lightgbm.sklearn.LGBMClassifier",
    "xgboost.sklearn.XGBClassifier",
    "catboost.core.CatBoostClassifier",
    "lowchurn.learners.torch.NetworkClassifier",
)
KEPT = ("max_churn", "churn", "select", "search", "confidence", "validation_fraction", "n_jobs", "verbose")


def save(model: Any, path: str | Path, dial: bool | None = False) -> None:
    """Write a fitted LowChurnClassifier; the base goes along where it is a part of what is served, or of the dial.

    ``dial=None`` writes the dial where there is one that can be written.
    """
    if dial is None:
        desk = getattr(model, "_desk", None)
        dial = desk is not None and not dial_refused(desk)
    served: Served = model._served
    files: dict[str, bytes] = {}
    members = _members(files, "", served)
    files["estimator.skops"] = RowsLearner.save(_unfitted(model._estimator))["model.skops"]
    parameters = {name: getattr(model, name) for name in KEPT}
    if isinstance(model.random_state, int):
        parameters["random_state"] = model.random_state
    if isinstance(model.proper_score, str):
        parameters["proper_score"] = model.proper_score
    if isinstance(model.strategies, str):
        parameters["strategies"] = model.strategies
    about = {
        "format": FORMAT,
        "members": members,
        **_classes_as_text(model.classes_),
        "n_features_in": int(model.n_features_in_),
        "feature_names_in": list(map(str, getattr(model, "feature_names_in_", []))) or None,
        "parameters": parameters,
        "selection": _plain(dataclasses.asdict(model.selection_)),
        "frontier": [_plain(row) for row in model.frontier_.records()],
        "certificate": None if model.certificate_ is None else _plain(dataclasses.asdict(model.certificate_)),
        "dial": _dial(model, files) if dial else None,
    }
    write_archive(path, about, files)


def _classes_as_text(classes: np.ndarray) -> dict[str, Any]:
    return {"classes": classes.tolist(), "dtype": "O" if classes.dtype.kind == "O" else classes.dtype.str}


def _members(files: dict[str, bytes], folder: str, served: Served) -> list[dict[str, Any]]:
    """Write every model that is served, the base among them; what is needed to read them again, in their order."""
    members: list[dict[str, Any]] = []
    for k, weight in served.weights.items():
        inside = f"{folder}model{len(members)}/"
        entry = _base_entry(files, inside, served.base) if k == BASE else _entry(files, inside, served.models[k])
        members.append({"weight": float(weight).hex(), "base": k == BASE} | entry)
    return members


def _base_entry(files: dict[str, bytes], folder: str, base: Base) -> dict[str, Any]:
    """Write a base: one model, or the mixture that an earlier release serves."""
    mixture = getattr(base.served, "_served", None)
    if mixture is None:
        return _entry(files, folder, base_part(base))
    features = getattr(base.served, "feature_names_in_", None)
    return {
        "mixture": _members(files, folder, mixture),
        **_classes_as_text(mixture.classes),
        "features": None if features is None else list(map(str, features)),
    }


def _entry(files: dict[str, bytes], folder: str, part: Any) -> dict[str, Any]:
    """Write a model behind its preprocessing; what is needed to read it again."""
    entry = {"folder": folder, "learner": _add(files, folder, part.model)}
    if part.preprocessing is not None:
        entry["preprocessing"] = _add(files, f"{folder}preprocessing/", part.preprocessing)
    features = getattr(part, "feature_names_in_", None)
    return entry | {"features": None if features is None else list(map(str, features))}


def _dial(model: Any, files: dict[str, bytes]) -> dict[str, Any]:
    """Everything that a choice for another budget needs: both ends of the dial, what was measured along it."""
    desk: Desk | None = getattr(model, "_desk", None)
    if desk is None:
        raise ValueError(
            "save: there is no dial to write. Fit with strategies='dial' or 'auto', or save without dial=True."
        )
    if refused := dial_refused(desk):
        raise ValueError(f"save: {refused} Save without dial=True, once for each budget.")
    places: dict[int, Any] = {}
    used = {k for offer in desk.offers for k in offer.weights if k != BASE}
    for k in sorted(used | {m.mean for k in used if isinstance(m := desk.models[k], Dialled)}):
        part = desk.models[k]
        if isinstance(part, Dialled):
            places[k] = {"mean": part.mean, "toward_base": part.toward_base.hex()}
        else:
            places[k] = _entry(files, f"dial/model{k}/", part)
    base = _base_entry(files, "dial/base/", desk.base)
    if desk.changes is not None:
        text = io.BytesIO()
        np.save(text, np.stack(desk.changes), allow_pickle=False)
        files["dial/changes.npy"] = text.getvalue()
    offers = [*desk.offers, desk.plain]
    return {
        "offers": [
            {
                "weights": [[k, w.hex()] for k, w in offer.weights.items() if k in places or k == BASE],
                "candidate": _plain(dataclasses.asdict(offer.candidate)),
                "cost": offer.cost.hex(),
            }
            for offer in offers
        ],
        "terms": dataclasses.asdict(desk.terms),
        "bound": desk.bound,
        "models": [[k, entry] for k, entry in places.items()],
        "names": {k: desk.names[k] for k in places},
        "base": base,
        "trainings": desk.trainings,
        "rows": dict(desk.rows),
    }


def dial_refused(desk: Desk) -> str:
    """Why a dial cannot be written, in words; empty where it can."""
    if any(isinstance(part, Dialled) and part.needs_rows for part in desk.models):
        return "a dial with batch normalisation needs the training rows, which are not written."
    try:
        _base_entry({}, "", desk.base)
    except ValueError as error:
        return str(error).removeprefix("save: ")
    return ""


def _read_dial(about: dict[str, Any], files: dict[str, bytes], model: Any, trusted: Sequence[str]) -> Desk:
    classes = model.classes_
    base = _read_base(about["base"], files, classes, trusted)
    learner = learner_for(take_apart(model._estimator)[1], classes)
    models: dict[int, Trained | Dialled] = {}
    for k, entry in about["models"]:
        if "mean" not in entry:
            part = _member(entry, files, trusted)
            models[k] = Trained(part.preprocessing, part.model, classes)
    for k, entry in about["models"]:
        if "mean" in entry:
            mean, start = models[entry["mean"]].made().model, inner_model(base.model)
            models[k] = dialled(learner, start, mean, entry["mean"], float.fromhex(entry["toward_base"]), None)
    *offers, plain = (
        Offer(
            {k: float.fromhex(w) for k, w in offer["weights"]},
            Candidate(**_tuples(offer["candidate"])),
            float.fromhex(offer["cost"]),
        )
        for offer in about["offers"]
    )
    changes = None
    if "dial/changes.npy" in files:
        changes = list(np.load(io.BytesIO(files["dial/changes.npy"]), allow_pickle=False))
    return Desk(
        offers=offers,
        plain=plain,
        terms=Terms(**about["terms"]),
        bound=about["bound"],
        changes=changes,
        models=models,
        names={int(k): name for k, name in about["names"].items()},
        base=base,
        classes=classes,
        trainings=about["trainings"],
        rows=about["rows"],
    )


def _read_base(entry: dict[str, Any], files: dict[str, bytes], classes: np.ndarray, trusted: Sequence[str]) -> Base:
    if "mixture" in entry:
        own = np.asarray(entry["classes"], dtype=entry["dtype"])
        return Base(Mixture(_read_members(entry["mixture"], files, own, trusted), entry["features"]), classes)
    part = _member(entry, files, trusted)
    whole = part.preprocessing is None and entry["learner"] == "rows"
    return Base(part.model if whole else part, classes)


def _read_members(
    entries: Sequence[dict[str, Any]], files: dict[str, bytes], classes: np.ndarray, trusted: Sequence[str]
) -> Served:
    """What :func:`_members` wrote. Members keep their order, so that sums are the same to the last bit."""
    weights: dict[int, float] = {}
    models: dict[int, Trained | Dialled] = {}
    base = None
    for k, entry in enumerate(entries):
        weights[BASE if entry["base"] else k] = float.fromhex(entry["weight"])
        if entry["base"]:
            base = _read_base(entry, files, classes, trusted)
        else:
            part = _member(entry, files, trusted)
            models[k] = Trained(part.preprocessing, part.model, classes)
    return Served(weights, base, models, classes)


class Mixture:
    """A mixture that an earlier release serves, read from a file: a base like any other."""

    def __init__(self, served: Served, features: Any = None) -> None:
        self._served = served
        self.classes_ = served.classes
        if features is not None:
            self.feature_names_in_ = np.asarray(features, dtype=object)

    @property
    def _single(self) -> Trained | None:
        return self._served.single

    def predict_proba(self, X: Any) -> np.ndarray:
        return self._served.proba(X)

    def predict(self, X: Any) -> np.ndarray:
        return np.asarray(self.classes_[self._served.decisions(X)])


def _unfitted(estimator: Any) -> Any:
    """A clone of an estimator without code in it: a network is named, not written."""
    estimator = unfitted(estimator)
    final = estimator[-1] if isinstance(estimator, Pipeline) else estimator
    if isinstance(final, NetworkClassifier):
        final.set_params(network=network_name(final.network))
    return estimator


def base_part(base: Base) -> Behind:
    """The base as something that has files; a function has none."""
    served = base.served
    if isinstance(served, Behind):
        return served
    if not isinstance(served, BaseEstimator):
        raise ValueError(
            f"save: the base is a part of what is served, and a {type(base.model).__name__} cannot be written to this "
            "file. Give the base as one fitted estimator, or serve a single trained model."
        )
    if isinstance(served, Pipeline) and any(own.saves(served[-1]) for own in ALL if own is not RowsLearner):
        # Its last step has files of its own kind; the names of its columns go along.
        return Behind(served[:-1], served[-1], getattr(served, "feature_names_in_", None))
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
        raise ValueError(f"load: the file has format {about['format']}, known are up to {FORMAT}. Upgrade lowchurn.")
    from lowchurn.estimator.classifier import LowChurnClassifier

    estimator = load_skops(files["estimator.skops"], [*trusted, *ESTIMATORS])
    model = LowChurnClassifier(estimator, **about["parameters"])
    model._estimator = estimator
    model.classes_ = np.asarray(about["classes"], dtype=about["dtype"])
    model.n_features_in_ = about["n_features_in"]
    if about["feature_names_in"] is not None:
        model.feature_names_in_ = np.asarray(about["feature_names_in"], dtype=object)
    model._served = _read_members(about["members"], files, model.classes_, trusted)
    model.selection_ = Selection(**about["selection"])
    model.frontier_ = Frontier(Candidate(**_tuples(row)) for row in about["frontier"])
    certificate = about["certificate"]
    if certificate is not None:
        certificate["tested"] = tuple((name, p) for name, p in certificate["tested"])
    model.certificate_ = None if certificate is None else Certificate(**certificate)
    model._desk = None if about.get("dial") is None else _read_dial(about["dial"], files, model, trusted)
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
