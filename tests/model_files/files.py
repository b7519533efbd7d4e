"""Model files to attack, and what became of them."""

import copy
import functools
import io
import json
import warnings
import zipfile

import numpy as np
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBClassifier

import lowchurn
from lowchurn import LowChurnClassifier
from lowchurn.learners._torch import NetworkClassifier

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 3))
Y = (X[:, 0] + 0.3 * RNG.normal(size=240) > 0).astype(int)
LEARNERS = {
    "logistic": make_pipeline(StandardScaler(), LogisticRegression()),
    "forest": RandomForestClassifier(3, max_depth=2, random_state=0),
    "hist": HistGradientBoostingClassifier(max_iter=2),
    "neighbors": KNeighborsClassifier(),
    "lightgbm": LGBMClassifier(n_estimators=2, num_leaves=3, verbosity=-1, n_jobs=1),
    "xgboost": XGBClassifier(n_estimators=2, max_depth=2, n_jobs=1),
    "catboost": CatBoostClassifier(iterations=2, depth=2, verbose=0, allow_writing_files=False, thread_count=1),
    "network": NetworkClassifier("fcn-3", epochs=2, device="cpu", random_state=0),
}


@functools.cache
def saved(kind):
    """The content of a model file, and what the model predicts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = LogisticRegression(C=0.01).fit(X[:60], Y[:60])
        if kind == "dial":
            model = LowChurnClassifier(
                LogisticRegression(), base=base, max_churn=0.2, confidence=0.5, strategies="dial", random_state=0
            )
        elif kind == "mixture":
            options = {"max_churn": 0.02, "select": "mixture", "strategies": "distill", "random_state": 0}
            first = LowChurnClassifier(LogisticRegression(), base=base, **options).fit(X, Y)
            model = LowChurnClassifier(LogisticRegression(), base=first, **options)
        elif kind == "sticky":
            options = {"threshold": 0.4 if len(set(Y)) == 2 else None, "strategies": "sticky", "random_state": 0}
            model = LowChurnClassifier(LogisticRegression(), base=base, max_churn=0.2, **options)
        elif kind == "groups":
            options = {"max_broken": 0.2, "confidence": 0.5, "strategies": "sticky", "random_state": 0}
            model = LowChurnClassifier(
                LogisticRegression(), base=base, max_churn={0: 0.0, 1: 0.3, None: 0.2}, **options
            )
        else:
            model = LowChurnClassifier(LEARNERS[kind], random_state=0)
        model.fit(X, Y)
    return written(model, dial=kind in ("dial", "sticky", "groups")), model.predict_proba(X)


def written(model, **options):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/m.skops", **options)
        with open(f"{folder}/m.skops", "rb") as file:
            return file.read()


def unpacked(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tampered(data, parts=None, about=None):
    """A model file with other parts, or with a description that a function has changed; its checksums are gone."""
    found = unpacked(data) | (parts or {})
    description = json.loads(found["lowchurn.json"])
    del description["sha256"]
    description = (about or (lambda d: d))(description) or description
    return packed(found | {"lowchurn.json": json.dumps(description).encode()})


def outcome(data, tmp_path, trusted=()):
    """The loaded model, or the one line that says why there is none; anything else fails the test."""
    path = tmp_path / "m.skops"
    path.write_bytes(data)
    try:
        return lowchurn.load(path, trusted)
    except ValueError as error:
        line = str(error)
    assert line.isprintable()
    assert "m.skops" in line
    assert len(line) < 2000
    return line


def refused(data, tmp_path, words="", trusted=()):
    found = outcome(data, tmp_path, trusted)
    assert isinstance(found, str), "it was read"
    assert words in found
    return found


def network_part(name):
    """The files of a network, with another one named."""
    parts = {k.removeprefix("model0/"): v for k, v in unpacked(saved("network")[0]).items() if k.startswith("model0/")}
    about = json.loads(parts["network.json"])
    about["parameters"]["network"] = name
    return parts | {"network.json": json.dumps(about).encode()}


def spots(value, path=()):
    """Every place in plain data."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from spots(inner, (*path, key))


DELETED = object()
OTHERS = [DELETED, None, "x", "", -1, 0.5, 10**30, float("nan"), [], {}, ["a"], {"a": 1}, True, "\x1b[31m\n"]


def changed(about, path, value):
    about = copy.deepcopy(about)
    if not path:
        return value
    inside = about
    for key in path[:-1]:
        inside = inside[key]
    if value is DELETED:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return about
