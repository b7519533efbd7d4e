"""One file that contains models: a zip archive of native model files and their description, ``lowchurn.json``.

Nothing in it is a pickle. The description lists the SHA-256 of every part, which is checked before a part is parsed:
the libraries that read native models are written for whole files, not for damaged ones. Its structure, and how its
entries refer to each other, is checked before a model is read as well, so that a damaged or tampered file is one line
and not an error somewhere in the middle.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lowchurn._checks import unknown_name
from lowchurn._files import write_file
from lowchurn._model_files import (
    CHUNK,
    Label,
    Refused,
    hex_number,
    labels_from_plain,
    most_unpacked,
    read_record,
    read_zip,
    reading,
    write_zip,
)
from lowchurn._reading import check_structure
from lowchurn._terminal import one_line
from lowchurn.estimator._frontier import Candidate, Selection
from lowchurn.estimator._groups import Groups
from lowchurn.estimator._measuring import Terms
from lowchurn.learners._all import ALL
from lowchurn.selection import Certificate
from lowchurn.theory import Margin
from lowchurn.theory._decisions import threshold_values

ABOUT = "lowchurn.json"
HASHES = "sha256"
FORMAT = 5  # 1 had no checksums; 1 and 2 have the parameters of candidates in words; 4 has rules, 5 groups of rows
MOST_FEATURES = 10**8
COUNTS = ("train", "choose", "certify")
BASE = -1  # the place of the base among the models of a dial

# The archive


def write_archive(path: str | Path, about: dict[str, Any], files: dict[str, bytes]) -> None:
    """Write a description and named files as one archive."""
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    try:
        text = json.dumps({**about, HASHES: hashes}, indent=1)
    except (TypeError, ValueError) as error:
        raise ValueError(f"save: the model has settings that cannot be written as JSON ({one_line(error)}).") from error
    parts = {ABOUT: text.encode(), **files}
    content = write_zip(parts, zipfile.ZIP_DEFLATED)
    if sum(map(len, parts.values())) > most_unpacked(content):  # it would be taken for a bomb
        content = write_zip(parts)
    write_file(path, content)


def read_file(path: str | Path) -> bytes:
    """The content of a file; of a large one that is no archive only the start."""
    try:
        if not Path(path).is_file():
            raise Refused(f"load: path must be a file that is there, got {str(path)!r}.")
        with open(path, "rb") as file:
            start = file.read(CHUNK)
            # A large file that is no archive is refused by its start.
            return start if len(start) == CHUNK and not zipfile.is_zipfile(path) else start + file.read()
    except (OSError, MemoryError, ValueError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(f"load: {str(path)!r} cannot be read ({one_line(error) or type(error).__name__}).") from None


def is_archive(data: bytes) -> bool:
    """Whether this is a zip file, whole or damaged: only then can skops or lowchurn have written it."""
    return data.startswith(b"PK") or zipfile.is_zipfile(io.BytesIO(data))


def parse_archive(data: bytes, what: str, name: str) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """The description and the files; None where the file is an archive of another kind (see :func:`write_archive`)."""
    if not is_archive(data):
        raise Refused(
            f"load: {what} is neither a saved lowchurn model nor a skops file. Pickles can run any code when "
            f"read and are refused; where you trust this one, load with trusted=[{name!r}]."
        )
    files = read_zip(what, data)
    if ABOUT not in files:
        return None
    about = read_record(f"the part {ABOUT!r} of {what}", files.pop(ABOUT), dict[str, Any])
    hashes = about.pop(HASHES, None)
    if hashes is not None:  # files of format 1 have none
        check_hashes(what, hashes, files)
    return about, files


def check_hashes(what: str, hashes: Any, files: dict[str, bytes]) -> None:
    """Refuse an archive whose parts are not the ones that its description lists."""
    if not isinstance(hashes, dict):
        raise Refused(f"load: {what} has the wrong structure: {HASHES} must be an object.")
    for name in sorted(hashes.keys() - files.keys()):
        raise Refused(f"load: {what} is damaged: its part {name!r} is missing.")
    for name in sorted(files.keys() - hashes.keys()):
        raise Refused(f"load: {what} is damaged: its part {name!r} is not one that was saved.")
    for name, data in files.items():
        if hashlib.sha256(data).hexdigest() != hashes[name]:
            raise Refused(f"load: {what} is damaged, in its part {name!r}.")


def model_to_files(model: Any) -> tuple[str, dict[str, bytes]]:
    """The learner's name and the files of a trained model."""
    for learner in ALL:
        if learner.saves(model):
            return learner.name, learner.save(model)
    raise ValueError(
        f"save: a {type(model).__name__} cannot be saved without a pickle. "
        "Models of scikit-learn, LightGBM, XGBoost, CatBoost and torch networks can."
    )


def model_from_files(
    learner: str, files: dict[str, bytes], trusted: Sequence[str] = (), what: str = "the model"
) -> Any:
    """What :func:`model_to_files` wrote; ``what`` is the model in the words of an error message."""
    known = {cls.name: cls for cls in ALL}
    if learner not in known:
        raise unknown_name("load", "learner", learner, known)
    with reading(what):
        return known[learner].load(files, trusted)


# Its description


@dataclass(frozen=True)
class Entry:
    """One model of the file: files in a folder, a mixture of others, or a position between two others on a dial."""

    folder: str = ""
    learner: str = ""
    preprocessing: str | None = None
    features: list[str] | None = None
    weight: str | None = None
    base: bool = False
    mixture: list[Entry] | None = None
    classes: list[Label] | None = None
    dtype: str = ""
    mean: int | None = None
    toward_base: str | None = None
    rule: RuleEntry | None = None
    threshold: str | None = None
    groups: GroupsEntry | None = None


@dataclass(frozen=True)
class RuleEntry:
    """The rule by which decisions of the base are kept."""

    margin: str
    ratio: str
    groups: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class GroupsEntry:
    """Groups of rows by the column that they are values of; classes where there is none."""

    by: str | int | None
    classes: list[Label]
    dtype: str


@dataclass(frozen=True)
class OfferEntry:
    """What could be served from the dial: weights of models by their place, the rule, and what was measured."""

    weights: list[tuple[int, str]]
    candidate: Candidate
    cost: str
    rule: RuleEntry | None = None
    compressed: bool = False


@dataclass(frozen=True)
class DialEntry:
    """Both ends of the dial and what was measured along it; the last offer is the plain retrain."""

    offers: list[OfferEntry]
    terms: Terms
    bound: float
    models: list[tuple[int, Entry]]
    names: dict[str, str]
    base: Entry
    trainings: int
    rows: dict[str, int]
    base_accuracy: float = math.nan


@dataclass(frozen=True)
class Description:
    """All of ``lowchurn.json``."""

    format: int
    members: list[Entry]
    classes: list[Label]
    dtype: str
    n_features_in: int
    feature_names_in: list[str] | None
    parameters: dict[str, bool | int | float | str | list[tuple[Label, float]] | None]
    selection: Selection
    frontier: list[Candidate]
    certificate: Certificate | None
    dial: DialEntry | None = None
    rule: RuleEntry | None = None
    threshold: str | None = None
    groups: GroupsEntry | None = None


def read_description(about: dict[str, Any], names: Iterable[str]) -> Description:
    """The description of a file as a checked record; ``names`` are the parts of the file."""
    found = about.get("format")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise Refused(f"load: the format of the file must be a whole number from 1, got {str(found)[:40]!r}.")
    if found > FORMAT:
        raise Refused(f"load: the file has format {found}, known are up to {FORMAT}. Upgrade lowchurn.")
    try:
        read = check_structure("load", "its description", _read_candidates(about, words=found < 3), Description)
    except ValueError as error:
        raise Refused(str(error)) from None
    parts = list(names)
    if not 1 <= read.n_features_in <= MOST_FEATURES:
        raise Refused(f"load: n_features_in must be in [1, {MOST_FEATURES}], got {read.n_features_in}.")
    if read.feature_names_in is not None and len(read.feature_names_in) != read.n_features_in:
        raise Refused(
            f"load: there must be a name for each of {read.n_features_in} features, got {len(read.feature_names_in)}."
        )
    check_members(read.members, parts)
    _check_counts("the selection", read.selection.rows)
    if not read.selection.served:
        raise Refused("load: the selection must name what is served.")
    if read.dial is not None:
        _check_dial(read.dial, parts)
    return read


def classes_of(what: str, entry: Entry | Description) -> np.ndarray:
    """The labels of a file, or of a mixture in it."""
    return labels_from_plain(what, entry.classes or [], entry.dtype)


def check_members(members: list[Entry], parts: list[str]) -> None:
    """Members have weights that sum to one and files; at most one is the base."""
    check_weights("members", {k: entry.weight for k, entry in enumerate(members)})
    if sum(entry.base for entry in members) > 1:
        raise Refused("load: at most one member can be the base.")
    for k, entry in enumerate(members):
        check_entry(f"member {k}", entry, parts, base=entry.base)


def check_entry(what: str, entry: Entry, parts: list[str], base: bool = False) -> None:
    """A model must have its files; only a base can be a mixture."""
    if entry.mixture is not None:
        if not base:
            raise Refused(f"load: {what} is a mixture, and only a base can be one.")
        classes_of(what, entry)
        check_members(entry.mixture, parts)
        return
    folders = [entry.folder] if entry.preprocessing is None else [entry.folder, f"{entry.folder}preprocessing/"]
    for folder in folders:
        if not entry.folder.endswith("/") or not any(name.startswith(folder) for name in parts):
            raise Refused(f"load: {what} has no files in its folder {folder!r}.")


def read_threshold(what: str, entry: Entry | Description) -> float | None:
    """The threshold of a file, or of a mixture in it."""
    if entry.threshold is None:
        return None
    found = hex_number(f"the threshold of {what}", entry.threshold)
    if not 0 < found < 1 or len(entry.classes or ()) != 2:
        raise Refused(f"load: the threshold of {what} must be in (0, 1) and between two classes, got {found:g}.")
    return found


def read_rule(entry: RuleEntry | None, threshold: float | None, groups: Groups | None) -> Margin | None:
    """The rule that a file contains, for decisions by a threshold where there is one."""
    if entry is None:
        return None
    margin, ratio = (hex_number(f"the {name} of the rule", getattr(entry, name)) for name in ("margin", "ratio"))
    each = tuple(hex_number("a margin of the rule", text) for text in entry.groups)
    if not 0 <= min(margin, ratio, *each):
        raise Refused(f"load: the rule must have a margin and a ratio of at least 0, got {margin:g} and {ratio:g}.")
    if each and len(each) != (0 if groups is None else len(groups.values)):
        raise Refused(f"load: the rule must have a margin for each group, got {len(each)}.")
    return Margin(margin, ratio, threshold_values(threshold), each)


def read_groups(entry: GroupsEntry | None, classes: np.ndarray) -> Groups | None:
    """The groups of a file; by classes, these are those of the file."""
    if entry is None:
        return None
    if entry.by is None:
        return Groups(None, classes)
    return Groups(entry.by, labels_from_plain("the groups", entry.classes, entry.dtype, least=1))


def check_weights(what: str, weights: Mapping[int, str | None]) -> dict[int, float]:
    """Weights as numbers: not negative, with the sum one."""
    read = {k: hex_number(f"the weight of {what} {k}", "" if w is None else w) for k, w in weights.items()}
    if not read or min(read.values()) < 0 or abs(sum(read.values()) - 1) > 1e-6:
        raise Refused(f"load: the weights of {what} must not be negative and sum to 1, got {list(read.values())[:5]}.")
    return read


def _check_dial(dial: DialEntry, parts: list[str]) -> None:
    models = dict(dial.models)
    if len(models) < len(dial.models) or any(k < 0 for k in models):
        raise Refused("load: the models of the dial must have different places.")
    for k, entry in models.items():
        if entry.mean is None:
            check_entry(f"model {k} of the dial", entry, parts, base=entry.base)
            continue
        if entry.mean not in models or models[entry.mean].mean is not None or models[entry.mean].base:
            raise Refused(f"load: model {k} of the dial refers to model {entry.mean}, which is not at its end.")
        if not 0 <= hex_number(f"the position of model {k}", entry.toward_base or "") <= 1:
            raise Refused(f"load: the position of model {k} of the dial must be in [0, 1].")
    check_entry("the base of the dial", dial.base, parts, base=True)
    if sorted(dial.names) != sorted(map(str, models)):
        raise Refused("load: every model of the dial must have a name.")
    if len(dial.offers) < 2:
        raise Refused(f"load: the dial must have offers, got {len(dial.offers)}.")
    *offers, plain = dial.offers
    for k, offer in enumerate(offers):
        check_weights(f"offer {k} of the dial, model", dict(offer.weights))
    for place, _ in [pair for offer in dial.offers for pair in offer.weights]:
        if place != BASE and place not in models:
            raise Refused(f"load: an offer of the dial refers to model {place}, which is not there.")
    for offer in dial.offers:
        hex_number("the cost of an offer", offer.cost, finite=False)
    for row in (offer.candidate for offer in (*offers, plain)):
        if not 0 <= row.churn < math.inf or not (math.isnan(row.dial) or 0 <= row.dial <= 1):
            raise Refused("load: every offer of the dial must have its churn, and its position in [0, 1].")
    if not (math.isfinite(dial.terms.rows) and dial.terms.rows > 0 and dial.bound > 0):
        raise Refused("load: the dial must have been measured on rows.")
    _check_counts("the dial", dial.rows)


def _check_counts(what: str, rows: Mapping[str, int]) -> None:
    if any(rows.get(name, -1) < 0 for name in COUNTS):
        raise Refused(f"load: {what} must have the number of rows for {', '.join(COUNTS)}, got {dict(rows)}.")


def _read_candidates(about: dict[str, Any], words: bool) -> dict[str, Any]:
    """The description with the candidates of the frontier and of the dial as this version has them."""
    rows = about.get("frontier")
    made = {**about, "frontier": [_candidate(row, words) for row in rows] if isinstance(rows, list) else rows}
    dial = about.get("dial")
    if isinstance(dial, dict) and isinstance(dial.get("offers"), list):
        offers = [
            one | {"candidate": _candidate(one.get("candidate"), words)} if isinstance(one, dict) else one
            for one in dial["offers"]
        ]
        made["dial"] = {**dial, "offers": offers}
    return made


def _candidate(row: Any, words: bool) -> Any:
    """A candidate in which bounds that are null are NaN, and a setting in words (formats 1 and 2) is parameters."""
    if not isinstance(row, dict):
        return row
    made = {k: [math.nan if x is None else x for x in v] if isinstance(v, list) else v for k, v in row.items()}
    if words:
        setting = made.pop("setting", None)
        made["parameters"] = parameters = _parameters(setting) if isinstance(setting, str) else setting
        on_dial = isinstance(parameters, dict) and isinstance(dial := made.get("dial"), float) and not math.isnan(dial)
        made["dial_parameter"] = next((n for n in ("toward_base", "lam") if on_dial and n in parameters), "")
    return made


def _parameters(setting: str) -> dict[str, float | int | str]:
    """Parameters from their words in old files, such as ``lam=0.5, start=cold``."""
    found: dict[str, float | int | str] = {}
    for name, _, value in (part.partition("=") for part in setting.split(", ") if part):
        found[name] = value
        for kind in (float, int):
            with contextlib.suppress(ValueError):
                found[name] = kind(value)
    return found
