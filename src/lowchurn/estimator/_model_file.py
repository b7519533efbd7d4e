"""The structure of a model file's description, ``lowchurn.json``: its types, and how its entries refer to each other.

Everything here is checked before a model is read, so that a damaged or tampered file is one line and not an error
somewhere in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowchurn._model_files import Label, Refused, hex_number, labels_from_plain
from lowchurn._reading import check_structure
from lowchurn.estimator._frontier import Candidate, Selection
from lowchurn.estimator._training import BASE, Terms
from lowchurn.selection import Certificate

FORMAT = 2  # 1 had no checksums of its parts
MOST_FEATURES = 10**8
COUNTS = ("train", "choose", "certify")


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


@dataclass(frozen=True)
class OfferEntry:
    """What could be served from the dial: weights of models by their place, and what was measured."""

    weights: list[tuple[int, str]]
    candidate: Candidate
    cost: str


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


@dataclass(frozen=True)
class Description:
    """All of ``lowchurn.json``."""

    format: int
    members: list[Entry]
    classes: list[Label]
    dtype: str
    n_features_in: int
    feature_names_in: list[str] | None
    parameters: dict[str, bool | int | float | str | None]
    selection: Selection
    frontier: list[Candidate]
    certificate: Certificate | None
    dial: DialEntry | None = None


def read_description(about: dict[str, Any], names: Iterable[str]) -> Description:
    """The description of a file as a checked record; ``names`` are the parts of the file.

    Examples
    --------
    >>> from lowchurn.estimator._model_file import read_description
    >>> read_description({"format": 99}, [])
    Traceback (most recent call last):
    ...
    lowchurn._model_files.Refused: load: the file has format 99, known are up to 2. Upgrade lowchurn.
    >>> read_description({"format": "1"}, [])
    Traceback (most recent call last):
    ...
    lowchurn._model_files.Refused: load: the format of the file must be a whole number from 1, got '1'.
    """
    found = about.get("format")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise Refused(f"load: the format of the file must be a whole number from 1, got {str(found)[:40]!r}.")
    if found > FORMAT:
        raise Refused(f"load: the file has format {found}, known are up to {FORMAT}. Upgrade lowchurn.")
    try:
        read = check_structure("load", "its description", _without_gaps(about), Description)
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
            check_entry(f"model {k} of the dial", entry, parts)
            continue
        if entry.mean not in models or models[entry.mean].mean is not None:
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


def _without_gaps(about: dict[str, Any]) -> dict[str, Any]:
    """The bounds of intervals that are null as NaN, in the frontier and in the offers of the dial."""
    rows = about.get("frontier")
    made = {**about, "frontier": [_filled(row) for row in rows] if isinstance(rows, list) else rows}
    dial = about.get("dial")
    if isinstance(dial, dict) and isinstance(dial.get("offers"), list):
        offers = [o | {"candidate": _filled(o.get("candidate"))} if isinstance(o, dict) else o for o in dial["offers"]]
        made["dial"] = {**dial, "offers": offers}
    return made


def _filled(row: Any) -> Any:
    if not isinstance(row, dict):
        return row
    return {k: [math.nan if x is None else x for x in v] if isinstance(v, list) else v for k, v in row.items()}
