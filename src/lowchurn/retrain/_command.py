"""What ``lowchurn retrain`` and ``lowchurn dial`` do: read everything, train, write everything."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lowchurn._checks import check_choice
from lowchurn._files import PathLike, check_outputs, scratch_folder, write_files
from lowchurn._json import dumps
from lowchurn.estimator import LowChurnClassifier, load
from lowchurn.estimator._production import find_base
from lowchurn.estimator._saving import write_model
from lowchurn.retrain._columns import Chosen, choose_columns, feature_names, listed, text_columns
from lowchurn.retrain._estimators import SAY_WHAT, choose_estimator
from lowchurn.retrain._labels import classes_from_text
from lowchurn.retrain._tables import read_rows

WHO = "retrain"
REPORTED = ("max_churn", "churn", "strategies", "select", "search", "confidence")


@dataclass(frozen=True)
class Retrained:
    """The fitted model, and whether it was written: not where a certificate was asked for and not got.

    Examples
    --------
    >>> from lowchurn.retrain import Retrained
    >>> Retrained(model=None, written=False).written
    False
    """

    model: Any
    written: bool
    left_out: tuple[str, ...] = ()
    """Columns of the data that the base does not have, and the index of a table of pandas."""


def retrain_files(
    data: str | Path,
    target: str,
    out: str | Path,
    base: str | Path | None = None,
    report: str | Path | None = None,
    estimator: str = "auto",
    columns: dict[str, Any] | None = None,
    trusted: list[str] | None = None,
    *,
    all_columns: bool = False,
    base_classes: Sequence[str] | None = None,
    **options: Any,
) -> Retrained:
    """Read rows and a base, retrain within the budget, write the model and a report.

    Parameters
    ----------
    data : path
        CSV or Parquet, with the target column.
    target : str
        Column of the labels.
    out : path
        Where the model goes, whole or not at all.
    base : path, optional
        The model in production; without it this is a first, plain training.
    report : path, optional
        Where what was measured goes, as JSON.
    estimator : {"auto", "base", "boosting", "logistic"}
        ``auto`` trains the base's own kind again, or boosted trees where there is no base.
    columns : dict, optional
        ``new`` (column that marks rows which the base has not seen: true/false, yes/no or 1/0), ``held_out`` (column
        that marks the rows to choose on), ``weight`` (column), ``drop`` (list of columns).
    trusted : list of str, optional
        See :func:`lowchurn.load`.
    all_columns : bool
        Train on columns that the base does not have, and on the index of a table of pandas, as well; without it they
        are left out.
    base_classes : list of str, optional
        The classes in the order of the base's outputs, where its file does not contain them.
    **options
        Parameters of :class:`~lowchurn.LowChurnClassifier`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from lowchurn.retrain import retrain_files
    >>> rows = "\\n".join(f"{k % 7},{'ab'[k % 2]},{'yes' if k % 2 else 'no'}" for k in range(60))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "rows.csv").write_text("size,kind,y\\n" + rows)
    ...     made = retrain_files(f"{folder}/rows.csv", "y", f"{folder}/first.skops", estimator="logistic")
    ...     made.written, pathlib.Path(folder, "first.skops").exists()
    (True, True)
    """
    check_choice(WHO, "estimator", estimator, ("auto", "base", "boosting", "logistic"))
    check_outputs(WHO, {"out=": out, "report=": report}, {"data=": data, "base=": base})
    if base is not None and Path(base).suffix.lower() == ".onnx" and estimator in ("auto", "base"):
        raise ValueError(f"{WHO}: an ONNX file cannot be trained again. {SAY_WHAT}")
    model = LowChurnClassifier(**options)
    model._check_parameters()
    rows = read_rows(data)
    given = columns or {}
    new, held_out, weight = given.get("new"), given.get("held_out"), given.get("weight")
    drop = list(given.get("drop") or [])
    marking = {"new": new, "held_out": held_out, "weight": weight}
    roles = [name for name in (target, *marking.values()) if name is not None]
    rows.check_known([*roles, *drop])
    for option, name in marking.items():
        if name == target:
            raise ValueError(f"{WHO}: {option}= must be another column than the target, got {name!r}.")
    names = None
    if base_classes is not None:
        names = classes_from_text(f"{WHO}: base_classes", list(base_classes), np.unique(rows.classes(target)))
    production = None if base is None else find_base(base, functools.partial(load, trusted=trusted or ()), names)
    named = feature_names(production, rows.names) or ()
    index = [n for n in rows.index if n not in {*roles, *drop, *named} and not all_columns]
    free = [n for n in rows.names if n not in {*roles, *drop, *index}]
    chosen = choose_columns(production, free, {*roles, *drop}, all_columns)
    chosen = replace(chosen, left_out=(*index, *chosen.left_out))
    y = rows.classes(target, getattr(production, "classes_", None))
    marks = {
        name: None if column is None else rows.flags(column) for name, column in (("new", new), ("held_out", held_out))
    }
    weights = None if weight is None else rows.weights(weight)
    X = rows.features(chosen.features, text_columns(production))
    if chosen.left_out:
        why = "they are the index of the table" if production is None else "the base does not have them"
        warnings.warn(
            f"{WHO}: left out, since {why}: {listed(chosen.left_out, 20)}. Train on them as well with "
            "all_columns=True.",
            stacklevel=2,
        )
    model.set_params(estimator=choose_estimator(estimator, production, X), base=production)
    try:
        with warnings.catch_warnings():
            # The number of columns has been compared, and no more is known of a base without names.
            warnings.filterwarnings("ignore", message="X has feature names, but", category=UserWarning)
            model.fit(X, y, weights, **marks, base_classes=names)
    except TypeError as error:
        if str(error).startswith("LowChurnClassifier: "):  # worded there: rows that the base cannot take
            raise ValueError(str(error)) from error
        raise
    return _write(model, out, report, {"data": data, "base": base}, chosen)


def dial_file(
    path: str | Path,
    max_churn: float,
    out: str | Path,
    confidence: float | None = None,
    report: str | Path | None = None,
    trusted: list[str] | None = None,
) -> Retrained:
    """Read a retrained model with its dial, choose for another budget, write the model and a report.

    Parameters
    ----------
    path : path
        What :func:`retrain_files` wrote with ``strategies="dial"`` or ``"auto"``, or ``save(..., dial=True)``.
    max_churn, confidence
        As in :meth:`~lowchurn.LowChurnClassifier.dial`.
    out, report, trusted
        As in :func:`retrain_files`; ``out`` holds the dial again.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from lowchurn import LowChurnClassifier
    >>> from lowchurn.retrain import dial_file
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> base = make_pipeline(StandardScaler(), LogisticRegression(C=100)).fit(X[:60], y[:60])
    >>> model = LowChurnClassifier(base=base, max_churn=0.05, strategies="dial").fit(X[:400], y[:400])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/next.skops", dial=True)
    ...     made = dial_file(f"{folder}/next.skops", max_churn=0.02, out=f"{folder}/calmer.skops")
    >>> made.written, made.model.selection_.churn <= 0.02
    (True, True)
    """
    check_outputs("dial", {"out=": out, "report=": report}, {"the model": path})
    found = load(path, trusted or ())
    if not isinstance(found, LowChurnClassifier):
        raise ValueError(
            f"dial: {str(path)!r} must hold a retrained model with its dial, got a {type(found).__name__}."
        )
    if not found.has_dial:
        raise ValueError(
            f"dial: there is no dial here, in {str(path)!r}. Retrain with a base and strategies='dial' or "
            "strategies='auto'."
        )
    return _write(found.dial(max_churn, confidence=confidence), out, report, {"dialled_from": path})


def _write(
    model: Any,
    out: str | Path,
    report: str | Path | None,
    sources: dict[str, str | Path | None],
    chosen: Chosen | None = None,
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
        files[report] = report_json(model, **sources, out=out if written else None, chosen=chosen)
    write_files(files)
    return Retrained(model, written, () if chosen is None else chosen.left_out)


def report_json(
    model: Any,
    data: str | Path | None = None,
    base: str | Path | None = None,
    out: str | Path | None = None,
    dialled_from: str | Path | None = None,
    chosen: Chosen | None = None,
) -> str:
    """What was measured, as JSON; undefined numbers are null, and so are the data of a model that was only dialled.

    Examples
    --------
    >>> import json
    >>> from sklearn.datasets import load_iris
    >>> from lowchurn import LowChurnClassifier
    >>> from lowchurn.retrain import report_json
    >>> model = LowChurnClassifier().fit(*load_iris(return_X_y=True))
    >>> json.loads(report_json(model, "rows.csv", None, "m.skops"))["selection"]["trainings"]
    1
    """
    certificate = model.certificate_
    content = {
        "data": None if data is None else str(data),
        "dialled_from": None if dialled_from is None else str(dialled_from),
        "base": None if base is None else str(base),
        "model": None if out is None else str(out),
        "features": list(map(str, getattr(model, "feature_names_in_", []))) or None,
        "left_out": [] if chosen is None else list(chosen.left_out),
        "parameters": {k: _in_words(getattr(model, k)) for k in REPORTED},
        "selection": asdict(model.selection_),
        "selection_text": str(model.selection_),
        "certificate": None if certificate is None else asdict(certificate),
        "certificate_text": None if certificate is None else str(certificate),
        "frontier": model.frontier_.records(),
    }
    return dumps(content, indent=1)


def _in_words(value: Any) -> Any:
    """Lists of strategies as their names or representations; everything else as it is."""
    return [str(item) for item in value] if isinstance(value, list | tuple) else value
