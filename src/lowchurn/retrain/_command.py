"""What ``lowchurn retrain`` and ``lowchurn dial`` do: read everything, train, write everything."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowchurn._checks import check_choice
from lowchurn._files import PathLike, check_outputs, scratch_folder, write_files
from lowchurn._json import dumps
from lowchurn._types import Model
from lowchurn.estimator import LowChurnClassifier, load
from lowchurn.estimator._parameters import check_parameters
from lowchurn.estimator._production import find_base
from lowchurn.estimator._saving import write_model
from lowchurn.retrain._columns import Words, as_fitted, choose_features, has_text, listed, text_columns
from lowchurn.retrain._estimators import NAMES, WHAT_TO_TRAIN, choose_estimator
from lowchurn.retrain._labels import classes_from_text
from lowchurn.retrain._tables import Table, read_rows
from lowchurn.strategies import ColdStart

if TYPE_CHECKING:
    import pandas as pd

WHO = "retrain"
COMPARED = ("accuracy", "churn", "broken", "fixed", "models")
REPORTED = ("max_broken", "by", "churn", "strategies", "serve_base", "select", "search", "confidence")


@dataclass(frozen=True)
class Retrained:
    """The fitted model, and whether it was written: not where a certificate was asked for and not obtained."""

    model: LowChurnClassifier
    written: bool

    @property
    def compared(self) -> list[dict[str, Any]]:
        return compared(self.model)


@dataclass(frozen=True)
class Roles:
    """The columns that are neither features nor the target."""

    new: str | None = None
    held_out: str | None = None
    weight: str | None = None
    drop: tuple[str, ...] = ()

    def check(self, rows: Table, target: str) -> set[str]:
        """The names of all columns that are no features; each must be in the file, and the target has no other role."""
        marking = {"new": self.new, "held_out": self.held_out, "weight": self.weight}
        given = [name for name in (target, *marking.values(), *self.drop) if name is not None]
        rows.check_known(given)
        for option, name in marking.items():
            if name == target:
                raise ValueError(f"{WHO}: {option}= must be another column than the target, got {name!r}.")
        return set(given)


NO_ROLES = Roles()


def retrain_files(
    data: PathLike,
    target: str,
    out: PathLike,
    base: PathLike | None = None,
    report: PathLike | None = None,
    estimator: str = "auto",
    roles: Roles = NO_ROLES,
    trusted: Sequence[str] = (),
    *,
    traffic: PathLike | None = None,
    all_columns: bool = False,
    base_classes: Sequence[str] | None = None,
    **options: Any,
) -> Retrained:
    """Read rows and a base, retrain within the budget, write the model and a report; see docs/commands.md.

    ``options`` are parameters of :class:`~lowchurn.LowChurnClassifier`. Without a base this is a first, plain training.
    """
    check_choice(WHO, "estimator", estimator, NAMES)
    check_outputs(WHO, {"out=": out, "report=": report}, {"data=": data, "base=": base, "traffic=": traffic})
    if base is not None and Path(base).suffix.lower() == ".onnx" and estimator in ("auto", "base"):
        raise ValueError(f"{WHO}: an ONNX file cannot be trained again. {WHAT_TO_TRAIN}")
    model = LowChurnClassifier(**options)
    check_parameters(model.get_params(deep=False))
    rows = read_rows(data)
    taken = roles.check(rows, target)
    classes = None
    if base_classes is not None:
        classes = classes_from_text(f"{WHO}: base_classes", list(base_classes), np.unique(rows.classes(target)))
    production = None if base is None else find_base(Path(base), functools.partial(load, trusted=trusted), classes)
    chosen = choose_features(production, rows.names, taken, rows.index, all_columns)
    by = options.get("by")
    if by in rows.names and by not in chosen.features:
        raise ValueError(
            f"{WHO}: by must be a column that the model is trained on, and {by!r} is not. Train on it as well with "
            "all_columns=True, or give another."
        )
    y = rows.classes(target, getattr(production, "classes_", None))
    marks = {
        name: None if column is None else rows.flags(column)
        for name, column in (("new", roles.new), ("held_out", roles.held_out))
    }
    weights = None if roles.weight is None else rows.weights(roles.weight)
    X = rows.features(chosen.features, text_columns(production))
    if chosen.left_out:
        why = "they are the index of the table" if production is None else "the base does not have them"
        warnings.warn(
            f"{WHO}: left out, since {why}: {listed(chosen.left_out, 20)}. Train on them as well with "
            "all_columns=True.",
            stacklevel=2,
        )
    recent = None if traffic is None else _traffic(traffic, X, production)
    model.set_params(estimator=choose_estimator(estimator, production, X), base=production)
    try:
        with warnings.catch_warnings():
            # The number of columns has been compared, and a base without names has no more to compare.
            warnings.filterwarnings("ignore", message="X has feature names, but", category=UserWarning)
            model.fit(X, y, weights, **marks, base_classes=classes, traffic=recent)
    except TypeError as error:
        if str(error).startswith("LowChurnClassifier: "):  # worded there: rows that the base cannot take
            raise ValueError(str(error)) from error
        raise
    return _write(model, out, report, {"data": data, "base": base, "traffic": traffic}, chosen.left_out)


def _traffic(path: PathLike, X: pd.DataFrame, production: Model | None) -> pd.DataFrame:
    """Recent rows with the columns of the data, text where these are text."""
    words = Words(WHO, "the model", "traffic")
    rows = read_rows(path, words)
    missing = [name for name in X.columns if name not in rows.names]
    if missing:
        raise ValueError(
            f"{WHO}: {words.rows} lack {len(missing)} of {len(X.columns)} columns of the data: {listed(missing)}. Add "
            "them, or rename yours."
        )
    return rows.features(list(X.columns), text_columns(production) | {name for name in X.columns if has_text(X[name])})


def dial_file(
    path: PathLike,
    max_churn: float | Mapping[Any, float] | None,
    out: PathLike,
    confidence: float | None = None,
    report: PathLike | None = None,
    trusted: Sequence[str] = (),
    traffic: PathLike | None = None,
    *,
    max_broken: float | None = None,
) -> Retrained:
    """Read a retrained model with its dial, choose for other limits, write the model with its dial and a report."""
    check_outputs("dial", {"out=": out, "report=": report}, {"the model": path, "traffic=": traffic})
    found = load(Path(path), trusted)
    if not isinstance(found, LowChurnClassifier):
        raise ValueError(
            f"dial: {str(path)!r} must hold a retrained model with its dial, got a {type(found).__name__}."
        )
    if not found.has_dial:
        raise ValueError(
            f"dial: there is no dial here, in {str(path)!r}. Retrain with a base and strategies='dial' or "
            "strategies='auto'."
        )
    recent = None
    if traffic is not None:
        rows = read_rows(traffic, Words("dial", "the model", "traffic"))
        chosen = choose_features(found, rows.names, (), rows.index, words=rows.words)
        recent = as_fitted(found, rows.features(chosen.features, text_columns(found)))
    other = found.dial(max_churn, max_broken=max_broken, confidence=confidence, traffic=recent)
    return _write(other, out, report, {"dialled_from": path, "traffic": traffic})


def _write(
    model: LowChurnClassifier,
    out: PathLike,
    report: PathLike | None,
    sources: dict[str, PathLike | None],
    left_out: tuple[str, ...] = (),
) -> Retrained:
    """Write model and report together, as the last step."""
    certificate = model.certificate_
    written = certificate is None or certificate.certified
    model.verbose = 0  # it is of the command, not of the model
    files: dict[PathLike, bytes | str] = {}
    if written:
        with scratch_folder() as folder:
            write_model(model, folder / "model", dial=None)
            files[out] = (folder / "model").read_bytes()
    if report is not None:
        files[report] = report_json(model, sources | {"model": out if written else None}, left_out)
    write_files(files)
    return Retrained(model, written)


def report_json(model: LowChurnClassifier, sources: dict[str, PathLike | None], left_out: tuple[str, ...] = ()) -> str:
    """What was measured, as JSON; undefined numbers are null, and so are the data of a model that was only dialled."""
    certificate = model.certificate_
    paths = {name: sources.get(name) for name in ("data", "traffic", "dialled_from", "base", "model")}
    content = {
        **{name: None if path is None else str(path) for name, path in paths.items()},
        "features": list(map(str, getattr(model, "feature_names_in_", []))) or None,
        "left_out": list(left_out),
        "parameters": _budgets(model) | {k: _in_words(getattr(model, k)) for k in REPORTED},
        "selection": asdict(model.selection_),
        "selection_text": str(model.selection_),
        "compared": compared(model),
        "certificate": None if certificate is None else asdict(certificate),
        "certificate_text": None if certificate is None else str(certificate),
        "frontier": model.frontier_.records(),
    }
    return dumps(content, indent=1)


def compared(model: LowChurnClassifier) -> list[dict[str, Any]]:
    """Base, plain retrain and what is served, with the same measurements on the same rows; none without a base."""
    served = model.selection_
    if math.isnan(served.churn):
        return []
    plain = next((row for row in model.frontier_ if row.strategy == ColdStart.name), None)
    base = {"accuracy": served.base_accuracy, "churn": 0.0, "broken": 0.0, "fixed": 0.0, "models": 1}
    if math.isnan(served.base_accuracy):
        base |= {"broken": math.nan, "fixed": math.nan}
    shown = {"base": base, "plain retrain": plain and asdict(plain), "served": asdict(served)}
    return [{"model": name, **{k: found[k] for k in COMPARED}} for name, found in shown.items() if found]


def _budgets(model: LowChurnClassifier) -> dict[str, Any]:
    """The budget of all rows, and those of classes or slices."""
    if not isinstance(model.max_churn, Mapping):
        return {"max_churn": model.max_churn, "max_churn_by": {}}
    groups = {str(key): most for key, most in model.max_churn.items() if key is not None}
    return {"max_churn": model.max_churn.get(None), "max_churn_by": groups}


def _in_words(value: Any) -> Any:
    """Lists of strategies as their names or representations; everything else as it is."""
    return [str(item) for item in value] if isinstance(value, list | tuple) else value
