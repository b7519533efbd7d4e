"""The file of a LowChurnClassifier: the models that it serves, what was measured, and its parameters."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from lowchurn._checks import unknown_name
from lowchurn._json import plain
from lowchurn._model_files import Refused, hex_number, labels_to_plain, reading
from lowchurn._types import Classifier
from lowchurn.estimator._archive import (
    BASE,
    FORMAT,
    DialEntry,
    Entry,
    GroupsEntry,
    RuleEntry,
    check_weights,
    classes_of,
    is_archive,
    model_from_files,
    model_to_files,
    parse_archive,
    read_description,
    read_file,
    read_groups,
    read_rule,
    read_threshold,
    write_archive,
)
from lowchurn.estimator._compressing import Compression
from lowchurn.estimator._frontier import Frontier
from lowchurn.estimator._groups import Groups
from lowchurn.estimator._labels import positions
from lowchurn.estimator._measuring import Offer
from lowchurn.estimator._parameters import check_parameters
from lowchurn.estimator._policy import Choices, Evidence
from lowchurn.estimator._production import Base, callable_only
from lowchurn.estimator._serving import Member, OnDial, Part, Served, Weights
from lowchurn.estimator._training import unfitted
from lowchurn.learners import learner_for
from lowchurn.learners._all import ALL
from lowchurn.learners._model import BehindPreprocessing, split_pipeline, unwrap
from lowchurn.learners._sklearn import RowsLearner
from lowchurn.learners._skops import load_skops
from lowchurn.learners._torch import NetworkClassifier, network_name
from lowchurn.theory import Margin

LIMITS = ("max_churn", "max_broken", "by", "confidence")
KEPT = (
    *LIMITS,
    "churn",
    "select",
    "search",
    "threshold",
    "validation_fraction",
    "n_jobs",
    "verbose",
    "compress",
    "serve_base",
    "cross_fit",
)
SETTINGS = (*KEPT, "random_state", "proper_score", "strategies")


# Writing


def write_model(model: Any, path: str | Path, dial: bool | None = False) -> None:
    """Write a fitted LowChurnClassifier; the base is written where it is a part of what is served, or of the dial.

    ``dial=None`` writes the dial where there is one that can be written.
    """
    choices: Choices | None = model._choices
    if dial is None:
        dial = choices is not None and not dial_refused(choices)
    files: dict[str, bytes] = {}
    members = _members(files, "", model._served)
    files["estimator.skops"] = RowsLearner.save(_named_networks(model.estimator_))["model.skops"]
    if callable(model.by):
        raise ValueError(
            "save: by= is a function, which cannot be written to this file. Give by= as the name or the position of a "
            "column."
        )
    parameters = plain({name: getattr(model, name) for name in KEPT}, exact=True)
    if isinstance(model.max_churn, Mapping):  # whose keys need not be text
        parameters["max_churn"] = [[_plain_key(key), float(most)] for key, most in model.max_churn.items()]
    kinds = {"random_state": int, "proper_score": str, "strategies": str}
    parameters |= {name: value for name, kind in kinds.items() if isinstance(value := getattr(model, name), kind)}
    about = {
        "format": FORMAT,
        "members": members,
        **labels_to_plain(model.classes_),
        "n_features_in": int(model.n_features_in_),
        "feature_names_in": _texts(getattr(model, "feature_names_in_", None)) or None,
        "parameters": parameters,
        "selection": _record(model.selection_),
        "frontier": [_record(row) for row in model.frontier_],
        "certificate": _record(model.certificate_),
        "dial": _dial(choices, files) if dial else None,
        "rule": _rule(model._served.rule),
        "threshold": _hex(model._served.threshold_),
        "groups": _groups(model._groups),
    }
    write_archive(path, about, files)


def _hex(number: float | None) -> str | None:
    return None if number is None else number.hex()


def _rule(rule: Margin | None) -> dict[str, Any] | None:
    if rule is None:
        return None
    numbers = {"margin": float(rule.margin).hex(), "ratio": float(rule.ratio).hex()}
    return {**numbers, "groups": [float(least).hex() for least in rule.groups]}


def _groups(groups: Groups | None) -> dict[str, Any] | None:
    return None if groups is None else {"by": plain(groups.by), **labels_to_plain(groups.values)}


def _plain_key(key: Any) -> Any:
    """A class or slice as JSON has it, or how it reads, by which it is found as well."""
    key = key.item() if isinstance(key, np.generic) else key
    return key if key is None or isinstance(key, str | int | float) else str(key)


def _members(files: dict[str, bytes], folder: str, served: Served) -> list[dict[str, Any]]:
    """Write every model that is served, the base among them; what is needed to read them again, in their order."""
    members: list[dict[str, Any]] = []
    for part, weight in served.weights.items():
        inside, base = f"{folder}model{len(members)}/", isinstance(part, Base)
        entry = _base_entry(files, inside, part) if isinstance(part, Base) else _entry(files, inside, part.made().model)
        members.append({"weight": float(weight).hex(), "base": base} | entry)
    return members


def _base_entry(files: dict[str, bytes], folder: str, base: Base) -> dict[str, Any]:
    """Write a base: one model, or the mixture that an earlier release serves."""
    mixture = getattr(base.model, "_served", base.model)  # inside a subclass with answers of its own, as it was
    if not isinstance(mixture, Served) or (mixture.model_ is not None and mixture.threshold_ is None):
        return _entry(files, folder, saved_form(base.model))
    return {
        "mixture": _members(files, folder, mixture),
        "rule": _rule(mixture.rule),
        "threshold": _hex(mixture.threshold_),
        "groups": _groups(mixture.groups),
        **labels_to_plain(mixture.classes_),
        "features": _texts(getattr(base.model, "feature_names_in_", None)),
    }


def _entry(files: dict[str, bytes], folder: str, part: BehindPreprocessing) -> dict[str, Any]:
    """Write a model behind its preprocessing; what is needed to read it again."""
    entry: dict[str, Any] = {"folder": folder, "learner": _add(files, folder, part.model)}
    if part.preprocessing is not None:
        entry["preprocessing"] = _add(files, f"{folder}preprocessing/", part.preprocessing)
    return entry | {"features": _texts(getattr(part, "feature_names_in_", None))}


def _texts(names: Any) -> list[str] | None:
    return None if names is None else list(map(str, names))


def saved_form(model: Any) -> BehindPreprocessing:
    """A base in the form in which it is saved without a pickle, so that a loaded one gives the same bits."""
    found = None if callable_only(model) else unwrap(model)
    if found is not None and (found is model or hasattr(model, "_served") or isinstance(model, Served)):
        return found
    native = None if found is None else _native(found.model)
    if found is not None and native is not None:
        if _has_threshold(model):  # the native form would decide by its largest probability
            raise ValueError(
                f"save: the base is a part of what is served, and a {type(model).__name__} of a "
                f"{type(found.model).__name__} cannot be written to this file. Raise max_churn=, so that a trained "
                "model keeps it alone."
            )
        return BehindPreprocessing(found.preprocessing, native, getattr(model, "feature_names_in_", None))
    if isinstance(model, Pipeline) and _has_own_files(model[-1]):  # the names of its columns are written as well
        return BehindPreprocessing(model[:-1], model[-1], getattr(model, "feature_names_in_", None))
    if not isinstance(model, BaseEstimator) and not _has_own_files(model):
        raise ValueError(
            f"save: the base is a part of what is served, and a {type(model).__name__} cannot be written to this "
            "file. Raise max_churn=, so that a trained model keeps it alone, or give the base as one fitted estimator."
        )
    return BehindPreprocessing(None, model)


def _has_threshold(model: Any) -> bool:
    while type(model).__name__ == "FrozenEstimator":
        model = model.estimator
    return type(model).__name__ in ("FixedThresholdClassifier", "TunedThresholdClassifierCV")


def _native(model: Any) -> Any:
    """A model in the form in which its learner saves it; None where there is none."""
    for learner in ALL:
        with contextlib.suppress(Exception):  # unfitted, or with an objective of its own
            if (native := learner.as_served(model)) is not None:
                return native
    return None


def _has_own_files(model: Any) -> bool:
    return any(learner.saves(model) for learner in ALL if learner is not RowsLearner)


def _named_networks(estimator: Classifier) -> Any:
    """An unfitted copy of an estimator without code in it: a network is named, not written."""
    copied = unfitted(estimator)
    for found in [copied, *copied.get_params(deep=True).values()]:
        if isinstance(found, NetworkClassifier):
            found.set_params(network=network_name(found.network))
    return copied


def _dial(choices: Choices | None, files: dict[str, bytes]) -> dict[str, Any]:
    """Everything that a choice for another budget needs: both ends of the dial, what was measured along it."""
    if choices is None or choices.base is None:
        raise ValueError(
            "save: there is no dial to write. Fit with strategies='dial' or 'auto', or save without dial=True."
        )
    if refused := dial_refused(choices):
        raise ValueError(f"save: {refused} Save without dial=True, once for each budget.")
    parts = [part for part in choices.parts if part is not choices.base]
    place: dict[Part, int] = {part: k for k, part in enumerate(parts)} | {choices.base: BASE}
    models: list[tuple[int, dict[str, Any]]] = []
    for k, part in enumerate(parts):
        if isinstance(part, OnDial):
            models.append((k, {"mean": place[part.new], "toward_base": part.toward_base.hex()}))
        elif isinstance(part, Base):  # that of the release before
            models.append((k, {"base": True} | _base_entry(files, f"dial/model{k}/", part)))
        else:
            models.append((k, _entry(files, f"dial/model{k}/", part.model)))
    base = _base_entry(files, "dial/base/", choices.base)
    if choices.evidence is not None:
        codes = choices.evidence.codes
        parts_of = {"changes": choices.evidence.churn, "broken": choices.evidence.broken}
        parts_of |= {} if codes is None else {"groups": [codes + 1.0]}  # 0 for rows of no group
        for name, values in parts_of.items():
            text = io.BytesIO()
            np.save(text, np.stack(values), allow_pickle=False)
            if len(values[0]):
                files[f"dial/{name}.npy"] = text.getvalue()
    return {
        "offers": [
            {
                "weights": [[place[part], w.hex()] for part, w in offer.weights.items() if part in place],
                "candidate": _record(offer.candidate),
                "cost": offer.cost.hex(),
                "rule": _rule(offer.rule),
                "compressed": choices.compression is not None and offer in choices.compression.students,
            }
            for offer in [*choices.offers, choices.plain]
        ],
        "terms": dataclasses.asdict(choices.terms),
        "bound": choices.bound,
        "models": models,
        "names": {k: part.name for k, part in enumerate(parts)},
        "base": base,
        "trainings": choices.trainings,
        "rows": dict(choices.rows),
        "base_accuracy": choices.base_accuracy,
    }


def dial_refused(choices: Choices) -> str:
    """The reason why a dial cannot be written, as a sentence; empty where it can."""
    if any(isinstance(part, OnDial) and part.rows is not None for part in choices.parts):
        return "a dial with batch normalisation needs the training rows, which are not written."
    try:
        if choices.base is not None:
            _base_entry({}, "", choices.base)
    except ValueError as error:
        return str(error).removeprefix("save: ")
    return ""


def _add(files: dict[str, bytes], folder: str, model: Any) -> str:
    learner, parts = model_to_files(model)
    files.update({folder + name: data for name, data in parts.items()})
    return learner


def _record(value: Any) -> Any:
    """A dataclass as plain data, in which NaN stays what it is."""
    return None if value is None else plain(dataclasses.asdict(value), exact=True)


# Reading


@dataclass(frozen=True)
class Reader:
    """Reads models from the parts of a file; the models that are served must fit its classes and features."""

    files: dict[str, bytes]
    trusted: Sequence[str]
    classes: np.ndarray
    features: int | None

    def base(self, entry: Entry) -> Base:
        if entry.mixture is not None:
            inside = dataclasses.replace(self, classes=classes_of("the base", entry), features=None)
            own = read_threshold("the base", entry)
            return Base(inside.served(entry.mixture, entry.rule, own, entry.features, entry.groups), self.classes)
        part = self.part("the base", entry)
        if not any(callable(getattr(part.model, name, None)) for name in ("predict_proba", "predict")):
            raise Refused(f"load: the base must be a fitted classifier, got a {type(part.model).__name__}.")
        whole = part.preprocessing is None and entry.learner == "rows"
        return Base(part.model if whole else part, self.classes)

    def served(
        self,
        entries: Sequence[Entry],
        rule: RuleEntry | None,
        threshold: float | None,
        features: Sequence[str] | None = None,
        groups: GroupsEntry | None = None,
    ) -> Served:
        """What :func:`_members` wrote. Members keep their order, so that sums are the same to the last bit."""
        weights = check_weights("members", {k: entry.weight for k, entry in enumerate(entries)})
        parts: Weights = {
            self.base(entry) if entry.base else self.member(f"member {k}", entry): weights[k]
            for k, entry in enumerate(entries)
        }
        found = read_groups(groups, self.classes)
        return Served(parts, self.classes, features, read_rule(rule, threshold, found), threshold, found)

    def member(self, what: str, entry: Entry, name: str = "") -> Member:
        """A model that is served."""
        part = self.part(what, entry)
        own = getattr(part.model, "classes_", None)
        if not callable(getattr(part.model, "predict_proba", None)) or not isinstance(own, np.ndarray) or own.ndim != 1:
            raise Refused(f"load: {what} must be a fitted classifier, got a {type(part.model).__name__}.")
        if len(own) == 0 or (positions(own, self.classes) < 0).any() or len(set(own.tolist())) < len(own):
            raise Refused(f"load: {what} has other classes than the file, {own.tolist()[:5]}.")
        transform = part.preprocessing
        if transform is not None and not callable(getattr(transform, "transform", None)):
            raise Refused(f"load: the preprocessing of {what} must transform rows, a {type(transform).__name__}.")
        takes = None
        with contextlib.suppress(Exception):  # not every model has them
            takes = getattr(part.model if transform is None else transform, "n_features_in_", None)
        if isinstance(takes, int) and self.features is not None and takes != self.features:
            raise Refused(f"load: {what} takes {takes} features, the file has {self.features}.")
        return Member(name, part, self.classes)

    def part(self, what: str, entry: Entry) -> BehindPreprocessing:
        preprocessing = None
        if entry.preprocessing is not None:
            inside = f"{entry.folder}preprocessing/"
            preprocessing = self._take(f"the preprocessing of {what}", inside, entry.preprocessing)
        return BehindPreprocessing(preprocessing, self._take(what, entry.folder, entry.learner), entry.features)

    def _take(self, what: str, folder: str, learner: str) -> Any:
        inside = {name.removeprefix(folder): data for name, data in self.files.items() if name.startswith(folder)}
        inside = {name: data for name, data in inside.items() if "/" not in name}  # a folder in it is of another model
        return model_from_files(learner, inside, self.trusted, what)

    def dial(self, dial: DialEntry, estimator: Classifier, threshold: float | None, groups: Groups | None) -> Choices:
        base = self.base(dial.base)
        learner = learner_for(split_pipeline(estimator)[1], self.classes)
        names = {int(k): name for k, name in dial.names.items()}
        parts: dict[int, Part] = {BASE: base}
        ends = [(k, entry) for k, entry in dial.models if entry.mean is None]
        members = {k: self.member(f"model {k} of the dial", entry, names[k]) for k, entry in ends if not entry.base}
        parts |= members
        parts |= {k: self.base(entry) for k, entry in ends if entry.base}
        for k, entry in dial.models:
            if entry.mean is not None:
                new, start = members[entry.mean], unwrap(base.model)
                old = None if start is None else start.model
                if reason := learner.cannot_average(old) or learner.cannot_average(new.model.model):
                    raise Refused(f"load: the ends of the dial do not belong together: {reason}")
                toward_base = hex_number(f"the position of model {k}", entry.toward_base or "")
                assert start is not None
                parts[k] = OnDial(names[k], new, start, toward_base, learner, None)
        *offers, plain = (
            Offer(
                {parts[k]: hex_number("a weight of the dial", w) for k, w in offer.weights},
                offer.candidate,
                hex_number("the cost of an offer", offer.cost, finite=False),
                read_rule(offer.rule, threshold, groups),
            )
            for offer in dial.offers
        )
        students = [offer for offer, entry in zip(offers, dial.offers, strict=False) if entry.compressed]
        return Choices(
            offers=offers,
            plain=plain,
            terms=dial.terms,
            bound=dial.bound,
            evidence=self._evidence(len(offers), dial.bound, groups),
            base=base,
            trainings=dial.trainings,
            rows=dial.rows,
            base_accuracy=dial.base_accuracy,
            compression=Compression(students) if students else None,
        )

    def _evidence(self, offers: int, bound: float, groups: Groups | None) -> Evidence | None:
        churn = self._values("dial/changes.npy", offers, bound)
        broken = self._values("dial/broken.npy", offers, 1.0)
        codes = None
        if groups is not None:
            (numbers,) = self._values("dial/groups.npy", 1, len(groups.values))
            codes = numbers.astype(np.int64) - 1
            if len(codes) != len(churn[0]):
                raise Refused("load: the part 'dial/groups.npy' must have a number for each row of 'dial/changes.npy'.")
        return Evidence(churn, broken, codes) if len(churn[0]) or len(broken[0]) else None

    def _values(self, name: str, offers: int, bound: float) -> list[np.ndarray]:
        if name not in self.files:
            return [np.zeros(0)] * offers
        with reading(f"the part {name!r}"):
            table = np.load(io.BytesIO(self.files[name]), allow_pickle=False)
        if table.ndim != 2 or table.dtype.kind != "f" or len(table) != offers or table.shape[1] == 0:
            raise Refused(f"load: the part {name!r} must have a row of numbers for each offer.")
        if not ((table >= 0) & (table <= bound)).all():
            raise Refused(f"load: the part {name!r} must have values in [0, {bound:g}].")
        return list(table)


def read_model(path: str | Path, trusted: Sequence[str], kind: Callable[..., Any]) -> Any:
    """Read a file for :func:`lowchurn.load`; ``kind`` is the LowChurnClassifier that is made of its own files."""
    trusted = [trusted] if isinstance(trusted, str) else list(trusted)
    shown = repr(str(path))
    try:
        return _read(Path(path), shown, trusted, kind)
    except ValueError as error:
        text = str(error).removeprefix("load: ")
        raise ValueError(f"load: {text}" if shown in text else f"load: {shown}: {text}") from error.__cause__


def _read(path: Path, shown: str, trusted: Sequence[str], kind: Callable[..., Any]) -> Any:
    data = read_file(path)
    if path.name in trusted and not is_archive(data):
        import joblib

        with reading(f"the pickle {shown}"):
            return joblib.load(path)
    found = parse_archive(data, shown, path.name)
    if found is None:
        return load_skops(data, trusted)
    about, files = found
    read = read_description(about, files)
    if "estimator.skops" not in files:
        raise Refused("load: the part 'estimator.skops' is missing.")
    estimator = load_skops(files["estimator.skops"], trusted, nested=True, unfitted=True)
    if not (hasattr(estimator, "fit") and hasattr(estimator, "get_params")):
        raise Refused(f"load: the part 'estimator.skops' must be an estimator, got a {type(estimator).__name__}.")
    model = kind(estimator)
    for name, value in read.parameters.items():
        if name not in SETTINGS:
            raise Refused(str(unknown_name("load", "parameter", name, SETTINGS)))
        if isinstance(value, list) and name != "max_churn":
            raise Refused(f"load: the parameter {name} must be one value, got a list.")
        setattr(model, name, dict(value) if isinstance(value, list) else value)
    with reading("the list of parameters"):
        check_parameters(model.get_params(deep=False))
    model.estimator_ = estimator
    model.classes_ = classes_of("the file", read)
    model.n_features_in_ = read.n_features_in
    if read.feature_names_in is not None:
        model.feature_names_in_ = np.asarray(read.feature_names_in, dtype=object)
    reader = Reader(files, trusted, model.classes_, model.n_features_in_)
    model.threshold_ = read_threshold("the file", read)
    model._groups = read_groups(read.groups, model.classes_)
    model._expose(reader.served(read.members, read.rule, model.threshold_, groups=read.groups))
    model.selection_ = read.selection
    model.frontier_ = Frontier(read.frontier, read.selection.hard)
    model.certificate_ = read.certificate
    with reading("the dial"):
        model._choices = (
            None if read.dial is None else reader.dial(read.dial, estimator, model.threshold_, model._groups)
        )
    return model
