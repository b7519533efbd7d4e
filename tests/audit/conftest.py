"""Tables of predictions to audit."""

import numpy as np
import pandas as pd
import pytest


def make_tables(rows=400, classes=3, seed=0, churn=0.1, labelled=1.0):
    """Old and new predictions in different orders, with slices, weights, groups and probabilities."""
    rng = np.random.default_rng(seed)
    names = np.array([f"class {c}" for c in range(classes)])
    y = rng.integers(0, classes, rows)
    old_proba = rng.dirichlet(np.ones(classes) * 0.7, rows) * 0.6 + 0.4 * np.eye(classes)[y]
    new_proba = np.where(rng.random((rows, 1)) < 2 * churn, rng.dirichlet(np.ones(classes), rows), old_proba)
    old_proba, new_proba = (p / p.sum(axis=1, keepdims=True) for p in (old_proba, new_proba))
    old = pd.DataFrame(
        {
            "id": rng.permutation(rows) + 2**60,
            "y": pd.Series(names[y]).where(rng.random(rows) < labelled, None),
            "country": rng.choice(["de", "fr", "ünï", ""], rows),
            "age": rng.integers(18, 80, rows),
            "w": rng.integers(0, 4, rows).astype(float),
            "customer": rng.integers(0, max(rows // 5, 2), rows),
            "prediction": names[old_proba.argmax(axis=1)],
        }
    )
    new = pd.DataFrame({"id": old["id"], "prediction": names[new_proba.argmax(axis=1)]})
    for c, name in enumerate(names):
        old[f"proba_{name}"] = old_proba[:, c]
        new[f"proba_{name}"] = new_proba[:, c]
    return old, new.sample(frac=1, random_state=seed)


@pytest.fixture
def tables():
    return make_tables()
