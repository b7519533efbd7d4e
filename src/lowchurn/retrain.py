"""Retrain from files: what ``lowchurn retrain`` does."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from lowchurn.checks import check_choice, unknown_name
from lowchurn.estimator import LowChurnClassifier
from lowchurn.estimator.base import find_base
from lowchurn.estimator.saving import load, save
from lowchurn.learners.base import extra_missing
from lowchurn.persistence import write_whole

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


def retrain_files(
    data: str | Path,
    target: str,
    out: str | Path,
    base: str | Path | None = None,
    report: str | Path | None = None,
    estimator: str = "auto",
    columns: dict[str, Any] | None = None,
    trusted: list[str] | None = None,
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
        ``auto`` trains the base's own kind again, or boosted trees where it has none.
    columns : dict, optional
        ``new`` (column of booleans: rows that the base has not seen), ``weight`` (column), ``drop`` (list of columns).
    trusted : list of str, optional
        See :func:`lowchurn.load`.
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
    _check_folders(out, report)
    table = read_table(data)
    roles = columns or {}
    for name in (target, roles.get("new"), roles.get("weight"), *roles.get("drop", [])):
        if name is not None and name not in table.columns:
            raise unknown_name(WHO, f"column of {str(data)!r}", name, map(str, table.columns))
    missing = int(table[target].isna().sum())
    if missing:
        raise ValueError(f"{WHO}: the target {target!r} must not be missing, got {missing} row(s) without it.")
    y = table[target].to_numpy()
    new = None if roles.get("new") is None else table[roles["new"]].to_numpy().astype(bool)
    weight = None if roles.get("weight") is None else table[roles["weight"]].to_numpy(dtype=float)
    given = (target, roles.get("new"), roles.get("weight"), *roles.get("drop", []))
    X = table.drop(columns=list({name for name in given if name is not None}))
    production = None if base is None else find_base(base, trusted or ())
    model = LowChurnClassifier(choose_estimator(estimator, production, X), base=production, **options)
    model.fit(X, y.astype(str) if y.dtype.kind == "O" else y, weight, new=new)
    return _write(model, data, base, out, report)


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
    _check_folders(out, report)
    if Path(out).exists() and Path(out).samefile(path):
        raise ValueError(f"dial: out must be another file than {str(path)!r}, which keeps its own budget.")
    found = load(path, trusted or ())
    if not isinstance(found, LowChurnClassifier):
        raise ValueError(
            f"dial: {str(path)!r} must hold a retrained model with its dial, got a {type(found).__name__}."
        )
    return _write(found.dial(max_churn, confidence=confidence), None, None, out, report, dialled_from=path)


def _check_folders(*paths: str | Path | None) -> None:
    for path in paths:
        if path is not None and not Path(path).parent.is_dir():
            raise ValueError(f"{WHO}: the folder of {str(path)!r} must exist. Make it first.")


def _write(
    model: Any,
    data: str | Path | None,
    base: str | Path | None,
    out: str | Path,
    report: str | Path | None,
    dialled_from: str | Path | None = None,
) -> Retrained:
    certificate = model.certificate_
    written = certificate is None or certificate.certified
    if written:
        save(model, out, dial=None)
    if report is not None:
        write_whole(report, report_json(model, data, base, out if written else None, dialled_from))
    return Retrained(model, written)


def read_table(path: str | Path) -> Any:
    """A CSV or Parquet file as a data frame.

    Examples
    --------
    >>> from lowchurn.retrain import read_table
    >>> read_table("rows.txt")
    Traceback (most recent call last):
    ...
    ValueError: retrain: data must be a .csv or .parquet file, got 'rows.txt'.
    """
    try:
        import pandas as pd
    except ImportError:
        raise extra_missing(WHO, "pandas", "retrain") from None
    path = Path(path)
    readers = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    if path.suffix not in readers:
        raise ValueError(f"{WHO}: data must be a .csv or .parquet file, got {str(path)!r}.")
    if not path.is_file():
        raise ValueError(f"{WHO}: data must be a file that is there, got {str(path)!r}.")
    try:
        table = readers[path.suffix](path)
    except Exception as error:
        raise ValueError(f"{WHO}: {str(path)!r} cannot be read as {path.suffix[1:]} ({error}).") from error
    if len(table) == 0:
        raise ValueError(f"{WHO}: {str(path)!r} has no rows.")
    return table


def choose_estimator(name: str, base: Any, X: Any) -> Any:
    """The estimator of a name; None stands for the base's own kind, which LowChurnClassifier finds.

    Examples
    --------
    >>> import pandas as pd
    >>> from lowchurn.retrain import choose_estimator
    >>> rows = pd.DataFrame({"size": [1.0, 2.0], "kind": ["a", "b"]})
    >>> type(choose_estimator("auto", None, rows)[-1]).__name__
    'HistGradientBoostingClassifier'
    """
    trainable = isinstance(base, BaseEstimator) and hasattr(base, "fit")
    if name == "base" and not trainable:
        raise ValueError(f"{WHO}: estimator='base' needs a base that can be trained, got {type(base).__name__}.")
    if name == "base" or (name == "auto" and trainable):
        return None
    numbers = [c for c in X.columns if X[c].dtype.kind in "fiu"]
    words = [c for c in X.columns if X[c].dtype.kind not in "fiumM"]
    dates = [c for c in X.columns if X[c].dtype.kind in "mM"]
    if dates:
        raise ValueError(f"{WHO}: {dates[:5]} hold dates. Leave them out (--drop) or turn them into numbers first.")
    if name == "logistic":
        onehot = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5, sparse_output=False)
        fill = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
        steps = ColumnTransformer([("numbers", fill, numbers), ("words", onehot, words)])
        return Pipeline([("columns", steps), ("model", LogisticRegression(max_iter=1000))])
    # Rare words share a code: trees take at most 255 of them.
    codes = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan, max_categories=250
    )
    steps = ColumnTransformer([("words", codes, words), ("numbers", "passthrough", numbers)])
    trees = HistGradientBoostingClassifier(categorical_features=list(range(len(words))) or None)
    return Pipeline([("columns", steps), ("model", trees)])


def report_json(
    model: Any,
    data: str | Path | None,
    base: str | Path | None,
    out: str | Path | None,
    dialled_from: str | Path | None = None,
) -> bytes:
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
        "parameters": {k: _in_words(getattr(model, k)) for k in REPORTED},
        "selection": asdict(model.selection_),
        "selection_text": str(model.selection_),
        "certificate": None if certificate is None else asdict(certificate),
        "certificate_text": None if certificate is None else str(certificate),
        "frontier": model.frontier_.records(),
    }
    return json.dumps(_without_nan(content), indent=1).encode()


def _in_words(value: Any) -> Any:
    """Lists of strategies as their names or representations; everything else as it is."""
    return [str(item) for item in value] if isinstance(value, list | tuple) else value


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(v) for v in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
