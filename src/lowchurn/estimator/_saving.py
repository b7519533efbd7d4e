"""The file of a LowChurnClassifier: the models that it serves, what was measured, and its parameters."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from lowchurn._checks import unknown_name
from lowchurn._json import plain
from lowchurn._model_files import Refused, hex_number, labels_to_plain, reading
from lowchurn.estimator._archive import (
    is_archive,
    load_other,
    model_from_files,
    model_to_files,
    parse_archive,
    read_file,
    write_archive,
)
from lowchurn.estimator._frontier import Frontier
from lowchurn.estimator._labels import positions
from lowchurn.estimator._model_file import FORMAT, DialEntry, Entry, check_weights, classes_of, read_description
from lowchurn.estimator._policy import Desk, Offer, Served
from lowchurn.estimator._production import Base, Behind, inner_model
from lowchurn.estimator._to_train import unfitted
from lowchurn.estimator._training import BASE, Dialled, Trained, dialled, take_apart
from lowchurn.learners import ALL, learner_for
from lowchurn.learners._sklearn import RowsLearner
from lowchurn.learners._skops import load_skops
from lowchurn.learners._torch import NetworkClassifier, network_name

KEPT = ("max_churn", "churn", "select", "search", "confidence", "validation_fraction", "n_jobs", "verbose")
SETTINGS = (*KEPT, "random_state", "proper_score", "strategies")


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
    parameters = plain({name: getattr(model, name) for name in KEPT}, exact=True)
    if isinstance(model.random_state, int):
        parameters["random_state"] = model.random_state
    if isinstance(model.proper_score, str):
        parameters["proper_score"] = model.proper_score
    if isinstance(model.strategies, str):
        parameters["strategies"] = model.strategies
    about = {
        "format": FORMAT,
        "members": members,
        **labels_to_plain(model.classes_),
        "n_features_in": int(model.n_features_in_),
        "feature_names_in": list(map(str, getattr(model, "feature_names_in_", []))) or None,
        "parameters": parameters,
        "selection": plain(dataclasses.asdict(model.selection_), exact=True),
        "frontier": plain(model.frontier_.records(), exact=True),
        "certificate": None
        if model.certificate_ is None
        else plain(dataclasses.asdict(model.certificate_), exact=True),
        "dial": _dial(model, files) if dial else None,
    }
    write_archive(path, about, files)


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
        **labels_to_plain(mixture.classes),
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
                "candidate": plain(dataclasses.asdict(offer.candidate), exact=True),
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


def _read_dial(dial: DialEntry, files: dict[str, bytes], model: Any, trusted: Sequence[str]) -> Desk:
    classes = model.classes_
    base = _read_base(dial.base, files, classes, trusted)
    learner = learner_for(take_apart(model._estimator)[1], classes)
    models: dict[int, Trained | Dialled] = {}
    for k, entry in dial.models:
        if entry.mean is None:
            models[k] = _read_trained(f"model {k} of the dial", entry, files, classes, model.n_features_in_, trusted)
    for k, entry in dial.models:
        if entry.mean is not None:
            mean, start = models[entry.mean].made().model, inner_model(base.model)
            if reason := learner.cannot_average(start[1]) or learner.cannot_average(mean):
                raise Refused(f"load: the ends of the dial do not belong together: {reason}")
            toward_base = hex_number(f"the position of model {k}", entry.toward_base or "")
            models[k] = dialled(learner, start, mean, entry.mean, toward_base, None)
    *offers, plain = (
        Offer(
            {k: hex_number("a weight of the dial", w) for k, w in offer.weights},
            offer.candidate,
            hex_number("the cost of an offer", offer.cost, finite=False),
        )
        for offer in dial.offers
    )
    changes = None
    if "dial/changes.npy" in files:
        with reading("the part 'dial/changes.npy'"):
            table = np.load(io.BytesIO(files["dial/changes.npy"]), allow_pickle=False)
        if table.ndim != 2 or table.dtype.kind != "f" or len(table) != len(offers) or table.shape[1] == 0:
            raise Refused("load: the part 'dial/changes.npy' must have a row of numbers for each offer.")
        if not ((table >= 0) & (table <= dial.bound)).all():
            raise Refused(f"load: the part 'dial/changes.npy' must have values in [0, {dial.bound:g}].")
        changes = list(table)
    return Desk(
        offers=offers,
        plain=plain,
        terms=dial.terms,
        bound=dial.bound,
        changes=changes,
        models=models,
        names={int(k): name for k, name in dial.names.items()},
        base=base,
        classes=classes,
        trainings=dial.trainings,
        rows=dial.rows,
    )


def _read_base(entry: Entry, files: dict[str, bytes], classes: np.ndarray, trusted: Sequence[str]) -> Base:
    if entry.mixture is not None:
        own = classes_of("the base", entry)
        return Base(Mixture(_read_members(entry.mixture, files, own, None, trusted), entry.features), classes)
    part = _read_part("the base", entry, files, trusted)
    if not any(callable(getattr(part.model, name, None)) for name in ("predict_proba", "predict")):
        raise Refused(f"load: the base must be a fitted classifier, got a {type(part.model).__name__}.")
    whole = part.preprocessing is None and entry.learner == "rows"
    return Base(part.model if whole else part, classes)


def _read_members(
    entries: Sequence[Entry], files: dict[str, bytes], classes: np.ndarray, features: int | None, trusted: Sequence[str]
) -> Served:
    """What :func:`_members` wrote. Members keep their order, so that sums are the same to the last bit."""
    read = check_weights("members", {k: entry.weight for k, entry in enumerate(entries)})
    weights = {BASE if entry.base else k: read[k] for k, entry in enumerate(entries)}
    models: dict[int, Trained | Dialled] = {}
    base = None
    for k, entry in enumerate(entries):
        if entry.base:
            base = _read_base(entry, files, classes, trusted)
        else:
            models[k] = _read_trained(f"member {k}", entry, files, classes, features, trusted)
    return Served(weights, base, models, classes)


def _read_trained(
    what: str, entry: Entry, files: dict[str, bytes], classes: np.ndarray, features: int | None, trusted: Sequence[str]
) -> Trained:
    """A model that is served, which must fit the classes and the features of the file."""
    part = _read_part(what, entry, files, trusted)
    own = getattr(part.model, "classes_", None)
    if not callable(getattr(part.model, "predict_proba", None)) or not isinstance(own, np.ndarray) or own.ndim != 1:
        raise Refused(f"load: {what} must be a fitted classifier, got a {type(part.model).__name__}.")
    if len(own) == 0 or (positions(own, classes) < 0).any() or len(set(own.tolist())) < len(own):
        raise Refused(f"load: {what} has other classes than the file, {own.tolist()[:5]}.")
    if part.preprocessing is not None and not callable(getattr(part.preprocessing, "transform", None)):
        raise Refused(f"load: the preprocessing of {what} must transform rows, a {type(part.preprocessing).__name__}.")
    takes = None
    with contextlib.suppress(Exception):  # not every model knows its features
        takes = (part.model if part.preprocessing is None else part.preprocessing).n_features_in_
    if isinstance(takes, int) and features is not None and takes != features:
        raise Refused(f"load: {what} takes {takes} features, the file has {features}.")
    return Trained(part.preprocessing, part.model, classes)


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
    for found in [estimator, *estimator.get_params(deep=True).values()]:
        if isinstance(found, NetworkClassifier):
            found.set_params(network=network_name(found.network))
    return estimator


def base_part(base: Base) -> Behind:
    """The base as something that has files; a function has none."""
    served = base.served
    if isinstance(served, Behind):
        return served
    if isinstance(served, Pipeline) and _has_own_files(served[-1]):  # the names of its columns go along
        return Behind(served[:-1], served[-1], getattr(served, "feature_names_in_", None))
    if not isinstance(served, BaseEstimator) and not _has_own_files(served):
        raise ValueError(
            f"save: the base is a part of what is served, and a {type(base.model).__name__} cannot be written to this "
            "file. Raise max_churn=, so that a trained model keeps it alone, or give the base as one fitted estimator."
        )
    return Behind(None, served)


def _has_own_files(model: Any) -> bool:
    return any(learner.saves(model) for learner in ALL if learner is not RowsLearner)


def load(path: str | Path, trusted: Sequence[str] = ()) -> Any:
    """Read what ``LowChurnClassifier.save`` wrote, or a scikit-learn model in a skops file.

    Parameters
    ----------
    path : path
        The file.
    trusted : list of str
        Names of types beyond scikit-learn, numpy and scipy that the file may contain; networks of one's own by where
        they are imported from ("package.module:function"); the name of a pickle file, to read it although pickles can
        run any code. Nothing else in a file runs code.

    Returns
    -------
    LowChurnClassifier or estimator
        It predicts bit for bit what the saved one did. The base of a LowChurnClassifier is not in the file unless
        it is a part of what is served.

    Raises
    ------
    ValueError
        The file is damaged, of another kind, or contains what is not trusted.

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
    trusted = [trusted] if isinstance(trusted, str) else list(trusted)
    shown = repr(str(path))
    try:
        return _load(Path(path), shown, trusted)
    except ValueError as error:
        text = str(error).removeprefix("load: ")
        raise ValueError(f"load: {text}" if shown in text else f"load: {shown}: {text}") from error.__cause__


def _load(path: Path, shown: str, trusted: Sequence[str]) -> Any:
    data = read_file(path)
    pickled = path.name in trusted and not is_archive(data)
    found = None if pickled else parse_archive(data, shown, path.name)
    if found is None:
        return load_other(path, trusted)
    about, files = found
    read = read_description(about, files)
    from lowchurn.estimator._classifier import LowChurnClassifier

    if "estimator.skops" not in files:
        raise Refused("load: the part 'estimator.skops' is missing.")
    estimator = load_skops(files["estimator.skops"], trusted, nested=True, unfitted=True)
    if not (hasattr(estimator, "fit") and hasattr(estimator, "get_params")):
        raise Refused(f"load: the part 'estimator.skops' must be an estimator, got a {type(estimator).__name__}.")
    model = LowChurnClassifier(estimator)
    for name, value in read.parameters.items():
        if name not in SETTINGS:
            raise Refused(str(unknown_name("load", "parameter", name, SETTINGS)))
        setattr(model, name, value)
    with reading("the list of parameters"):
        model._check_parameters()
    model._estimator = estimator
    model.classes_ = classes_of("the file", read)
    model.n_features_in_ = read.n_features_in
    if read.feature_names_in is not None:
        model.feature_names_in_ = np.asarray(read.feature_names_in, dtype=object)
    model._served = _read_members(read.members, files, model.classes_, model.n_features_in_, trusted)
    model.selection_ = read.selection
    model.frontier_ = Frontier(read.frontier)
    model.certificate_ = read.certificate
    with reading("the dial"):
        model._desk = None if read.dial is None else _read_dial(read.dial, files, model, trusted)
    model._expose()
    return model


def _read_part(what: str, entry: Entry, files: dict[str, bytes], trusted: Sequence[str]) -> Behind:
    folder, preprocessing = entry.folder, None
    if entry.preprocessing is not None:
        inside = f"{folder}preprocessing/"
        preprocessing = _take(f"the preprocessing of {what}", files, inside, entry.preprocessing, trusted)
    return Behind(preprocessing, _take(what, files, folder, entry.learner, trusted), entry.features)


def _add(files: dict[str, bytes], folder: str, model: Any) -> str:
    learner, parts = model_to_files(model)
    files.update({folder + name: data for name, data in parts.items()})
    return learner


def _take(what: str, files: dict[str, bytes], folder: str, learner: str, trusted: Sequence[str]) -> Any:
    inside = {name.removeprefix(folder): data for name, data in files.items() if name.startswith(folder)}
    inside = {name: data for name, data in inside.items() if "/" not in name}  # a folder in it is of another model
    return model_from_files(learner, inside, trusted, what)
