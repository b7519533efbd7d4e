"""The battery: every kind of base and every type of label.

What we measure is what production decides, on every row; and churn is what a plain loop over the held-out rows counts.
"""

import datetime
import decimal
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier, early_stopping
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from xgboost import XGBClassifier

import lowchurn
from lowchurn import LowChurnClassifier
from lowchurn.estimator._production import Base, find_base
from lowchurn.learners import NetworkClassifier

X, CODES = make_classification(360, 6, n_informative=4, n_classes=3, flip_y=0.15, class_sep=0.8, random_state=3)
X32 = X.astype(np.float32).astype(float)  # what an ONNX file in single precision gets without loss
OLD, HELD = slice(0, 150), np.arange(240, 360)
SEED = {"random_state": 0}
LIGHT = {"n_estimators": 8, "num_leaves": 7, "n_jobs": 1, "verbose": -1, **SEED}
XGB = {"n_estimators": 8, "max_depth": 3, "n_jobs": 1, **SEED}
CAT = {"iterations": 8, "depth": 3, "thread_count": 1, "verbose": False, "allow_writing_files": False, "random_seed": 0}
PLAIN = make_pipeline(StandardScaler(), LogisticRegression())


def stopped(model, y, **options):
    return model.fit(X[OLD], y[OLD], eval_set=[(X[150:240], y[150:240])], **options)


def fitted(model):
    return lambda y, folder: model().fit(X[OLD], y[OLD])


ORIGINALS = {}  # the object behind a native file


def native(model, ending, save):
    def make(y, folder):
        path = folder / f"production{ending}"
        ORIGINALS[path] = model().fit(X[OLD], y[OLD])
        save(ORIGINALS[path], path)
        return path

    return make


def onnx(model, **options):
    def make(y, folder):
        from skl2onnx import to_onnx

        made = model().fit(X32[OLD], y[OLD])
        path = folder / "production.onnx"
        path.write_bytes(to_onnx(made, X32[:1].astype(np.float32), **options).SerializeToString())
        return path

    return make


def low_churn(y, folder):
    base = LogisticRegression(C=100).fit(X[:60], y[:60])
    return LowChurnClassifier(base=base, max_churn=0.2, **SEED).fit(X[OLD], y[OLD])


def saved(y, folder):
    low_churn(y, folder).save(folder / "production.skops")
    return lowchurn.load(folder / "production.skops")


# Each makes a base from labels; those that want two classes, or labels 0 to m - 1, are listed below.
BASES = {
    "logistic": fitted(LogisticRegression),
    "forest": fitted(lambda: RandomForestClassifier(10, n_jobs=1, **SEED)),
    "histogram": fitted(lambda: HistGradientBoostingClassifier(max_iter=8, **SEED)),
    "naive": fitted(GaussianNB),
    "lightgbm": fitted(lambda: LGBMClassifier(**LIGHT)),
    "xgboost": fitted(lambda: XGBClassifier(**XGB)),
    "catboost": fitted(lambda: CatBoostClassifier(**CAT)),
    "network": fitted(lambda: NetworkClassifier("fcn-8", epochs=3, device="cpu", **SEED)),
    "lightgbm-stopped": lambda y, folder: stopped(
        LGBMClassifier(**{**LIGHT, "n_estimators": 60, "learning_rate": 0.5}),
        y,
        callbacks=[early_stopping(2, verbose=False)],
    ),
    "xgboost-stopped": lambda y, folder: stopped(
        XGBClassifier(**{**XGB, "n_estimators": 60, "learning_rate": 0.9}, early_stopping_rounds=2), y, verbose=False
    ),
    "catboost-stopped": lambda y, folder: stopped(
        CatBoostClassifier(**{**CAT, "iterations": 60, "learning_rate": 0.9}), y, early_stopping_rounds=2
    ),
    "calibrated": fitted(lambda: CalibratedClassifierCV(GaussianNB(), cv=2)),
    "voting": fitted(
        lambda: VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())], voting="soft", weights=[1, 2])
    ),
    "pipeline": fitted(lambda: make_pipeline(StandardScaler(), LogisticRegression())),
    "pipeline-lightgbm": fitted(lambda: make_pipeline(SimpleImputer(), LGBMClassifier(**LIGHT))),
    "fixed-threshold": fitted(lambda: FixedThresholdClassifier(LogisticRegression(), threshold=0.3, pos_label=None)),
    "tuned-threshold": fitted(lambda: TunedThresholdClassifierCV(LogisticRegression(), cv=2, thresholds=20)),
    "frozen": lambda y, folder: FrozenEstimator(GaussianNB().fit(X[OLD], y[OLD])),
    "low-churn": low_churn,
    "low-churn-saved": saved,
    "labels-only": fitted(lambda: LinearSVC(C=0.1)),
    "function-probabilities": lambda y, folder: GaussianNB().fit(X[OLD], y[OLD]).predict_proba,
    "function-labels": lambda y, folder: GaussianNB().fit(X[OLD], y[OLD]).predict,
    "onnx": onnx(lambda: RandomForestClassifier(10, n_jobs=1, **SEED)),
    "onnx-logistic": onnx(LogisticRegression),
    "onnx-array": onnx(LogisticRegression, options={"zipmap": False}),
    "native-txt": native(lambda: LGBMClassifier(**LIGHT), ".txt", lambda m, path: m.booster_.save_model(path)),
    "native-json": native(lambda: XGBClassifier(**XGB), ".json", lambda m, path: m.save_model(path)),
    "native-ubj": native(lambda: XGBClassifier(**XGB), ".ubj", lambda m, path: m.save_model(path)),
    "native-cbm": native(lambda: CatBoostClassifier(**CAT), ".cbm", lambda m, path: m.save_model(str(path))),
}
BINARY = ("fixed-threshold", "tuned-threshold")
COUNTED = ("xgboost", "xgboost-stopped", "native-txt", "native-json", "native-ubj")  # labels are 0 to m - 1
NEEDS_ESTIMATOR = (
    *("labels-only", "function-probabilities", "function-labels", "onnx", "onnx-logistic", "onnx-array"),
    *("native-json", "native-ubj"),  # files of XGBoost do not contain the parameters of their training
)
ROWS_OF = {name: X32 if name.startswith("onnx") else X for name in BASES}

LABELS = {
    "int": np.array([3, 5, 8]),
    "negative": np.array([-1, 0, 1]),
    "large": np.array([2**60, 2**60 + 1, 2**60 + 2]),
    "unsigned": np.array([2**63 + 1, 2**63 + 2, 2**63 + 3], dtype=np.uint64),
    "float": np.array([1.0, 2.0, 3.0]),
    "text": np.array(["1", "01", "1.0"]),
    "words": np.array(["cat", "dog", "eel"], dtype=object),
    "day": np.array(["2024-01-01", "2024-01-02", "2024-02-01"], dtype="M8[D]"),
    "moment": np.array(["2024-01-01T00:00:00.000000001", "2024-01-01", "2024-01-02"], dtype="M8[ns]"),
    "date": np.array([datetime.date(2024, 1, d) for d in (1, 2, 3)], dtype=object),
    "decimal": np.array([decimal.Decimal(v) for v in ("9007199254740993.1", "9007199254740993.2", "1")], dtype=object),
    "bytes": np.array([b"cat", b"dog", b"eel"]),
}
# What scikit-learn's own classifiers refuse as labels: a base that decides for them is a function or a table.
UNUSUAL = ("date", "decimal", "bytes")


def production(base, rows):
    """What the object in production decides, asked by hand."""
    if hasattr(base, "predict"):
        return np.asarray(base.predict(rows)).ravel()
    given = np.asarray(base(rows))
    return given if given.ndim == 1 else None


def count_changes(before, after):
    """Churn by a plain loop."""
    changed = 0
    for old, new in zip(before.tolist(), after.tolist(), strict=True):
        changed += old != new
    return changed / len(before)


def fit(base, y, rows=X, estimator=None, max_churn=0.15, **at_fit):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LowChurnClassifier(estimator, base=base, max_churn=max_churn, **SEED)
        return model.fit(rows, y, held_out=HELD, **at_fit)


def check(name, y, folder):
    made = BASES[name](y, folder)
    rows = ROWS_OF[name]
    base = find_base(made, lowchurn.load)
    decided = production(ORIGINALS.get(made, base) if isinstance(made, Path) else base, rows)
    known = Base(base, np.unique(y))
    if decided is None:  # a function of probabilities: production takes the largest
        decided = np.unique(y)[np.asarray(base(rows)).argmax(axis=1)]
    measured = known.decisions(rows)
    assert (measured >= 0).all()
    assert np.unique(y)[measured].tolist() == decided.tolist()
    model = fit(made, y, rows, PLAIN if name in NEEDS_ESTIMATOR else None)
    assert model.classes_.tolist() == np.unique(y).tolist()
    assert model.classes_.dtype == np.asarray(y).dtype
    served = model.predict(rows[HELD])
    assert served.dtype == model.classes_.dtype
    assert model.selection_.churn == pytest.approx(count_changes(decided[HELD], served), abs=1e-12)
    right = [a == b for a, b in zip(served.tolist(), y[HELD].tolist(), strict=True)]
    assert model.selection_.accuracy == pytest.approx(np.mean(right), abs=1e-12)
    before = [a == b for a, b in zip(decided[HELD].tolist(), y[HELD].tolist(), strict=True)]
    broken = [b and not r for b, r in zip(before, right, strict=True)]
    assert model.selection_.broken == pytest.approx(np.mean(broken), abs=1e-12)


def labels_for(name, kind):
    if name in COUNTED:
        return (CODES > 0).astype(int) if kind == "two" else CODES
    if kind in ("bool", "two") or name in BINARY:
        codes = (CODES > 0).astype(int)
        return codes > 0 if kind == "bool" else LABELS.get(kind, np.array([0, 1]))[codes]
    return LABELS[kind][CODES]


@pytest.mark.parametrize("name", BASES)
def test_a_base_is_measured_as_it_decides_in_production(name, tmp_path):
    check(name, labels_for(name, "int"), tmp_path)


@pytest.mark.parametrize("kind", [kind for kind in ("bool", *LABELS) if kind not in UNUSUAL])
def test_labels_of_every_type(kind, tmp_path):
    check("logistic", labels_for("logistic", kind), tmp_path)


@pytest.mark.parametrize("name", ["onnx", "lightgbm", "xgboost", "catboost", "forest"])
def test_two_classes(name, tmp_path):
    check(name, labels_for(name, "two"), tmp_path)


@pytest.mark.stress
@pytest.mark.parametrize("kind", [kind for kind in ("bool", "two", *LABELS) if kind not in UNUSUAL])
@pytest.mark.parametrize("name", BASES)
def test_every_base_with_labels_of_every_type(name, kind, tmp_path):
    library_refuses = {
        "catboost": ("large", "unsigned", "day", "moment"),  # through float32, and dates become text
        "onnx": ("large", "unsigned", "float", "day", "moment", "words", "negative"),
        "low-churn-saved": (),
    }
    first = name.split("-")[0] if name != "native-cbm" else "catboost"
    if kind in library_refuses.get(first, ()):
        pytest.skip(f"{name} does not take such labels itself")
    check(name, labels_for(name, kind), tmp_path)


def as_probabilities(y):
    model = GaussianNB().fit(X[OLD], CODES[OLD])
    return np.round(model.predict_proba(X), 6), np.unique(y)[model.predict(X)]


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("form", ["probabilities", "decisions", "frame", "keyed", "series"])
def test_tables_of_answers(form, kind):
    y = LABELS[kind][CODES]
    proba, decided = as_probabilities(y)
    ids = np.arange(7000, 7360)
    order = np.random.default_rng(0).permutation(360)
    given = {
        "probabilities": {"base_proba": proba[:, ::-1], "base_classes": np.unique(y)[::-1]},
        "decisions": {"base_proba": decided},
        "frame": {"base_proba": pd.DataFrame(proba, columns=list(np.unique(y)))},
        "keyed": {"base_proba": dict(zip(ids[order].tolist(), decided[order].tolist(), strict=True)), "ids": ids},
        "series": {"base_proba": pd.Series(decided.tolist(), dtype=object)},
    }[form]
    if kind == "moment" and form in ("keyed", "series"):
        return  # numpy's nanoseconds are whole numbers in a list
    model = fit(None, y, estimator=PLAIN, max_churn=0.5, **given)
    assert model.classes_.dtype == y.dtype
    assert model.selection_.churn == pytest.approx(count_changes(decided[HELD], model.predict(X[HELD])), abs=1e-12)


@pytest.mark.parametrize(
    "convert",
    [
        lambda y: pd.Series(pd.Categorical(y)),
        lambda y: pd.Categorical(y),
        lambda y: pd.Series(y, dtype="string"),
        lambda y: list(y),
        lambda y: pd.Series((CODES + 2**60), dtype="Int64"),
        lambda y: pd.Series(CODES > 0, dtype="boolean"),
        lambda y: [int(code) + 2**64 for code in CODES],
    ],
    ids=["categorical", "categorical-array", "string", "list", "Int64", "boolean", "huge"],
)
def test_labels_in_other_containers(convert):
    y = convert(np.array(["cat", "dog", "eel"])[CODES])
    plain = y.to_numpy() if hasattr(y, "to_numpy") else np.array(list(y), dtype=object)
    model = fit(None, y, estimator=PLAIN, base_proba=plain[np.r_[1:360, 0]], max_churn=0.9)
    assert set(model.predict(X).tolist()) <= set(plain.tolist())
    assert len(model.classes_) == len(set(plain.tolist()))
    before = plain[np.r_[1:360, 0]][HELD]
    assert model.selection_.churn == pytest.approx(count_changes(before, model.predict(X[HELD])), abs=1e-12)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (["a", 1] * 180, "y must hold labels of one kind, got int and str"),
        (["a", None] * 180, "missing labels"),
        (pd.Series(["a", pd.NA] * 180, dtype="string"), "missing labels"),
        (np.array(["2024-01-01", "NaT"] * 180, dtype="M8[D]"), "missing labels"),
        (np.linspace(0, 1, 360), "Unknown label type"),
    ],
    ids=["mixed", "none", "NA", "NaT", "fractions"],
)
def test_labels_that_are_none_are_refused(y, words):
    with pytest.raises(ValueError, match=words):
        LowChurnClassifier().fit(X, y)
