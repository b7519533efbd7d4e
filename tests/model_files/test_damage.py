"""Damaged files are noticed, or predict the same."""

import numpy as np
import pytest
import skops.io
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.model_files.files import LEARNERS, X, Y, outcome, saved


def damages(data, flips, cuts, seed):
    rng = np.random.default_rng(seed)
    for place in rng.integers(8 * len(data), size=flips):
        other = bytearray(data)
        other[place // 8] ^= 1 << (place % 8)
        yield bytes(other)
    for place in rng.integers(len(data), size=cuts):
        yield data[:place]


@pytest.mark.parametrize("kind", ["logistic", "lightgbm", "network"])
def test_damage_is_noticed_or_harmless(kind, tmp_path):
    data, proba = saved(kind)
    for other in damages(data, flips=60, cuts=20, seed=1):
        found = outcome(other, tmp_path)
        assert isinstance(found, str) or (found.predict_proba(X) == proba).all()


def test_damage_to_plain_skops_files_is_noticed_or_harmless(tmp_path):
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    for other in damages(skops.io.dumps(model), flips=60, cuts=20, seed=2):
        found = outcome(other, tmp_path)
        assert isinstance(found, str) or (found.predict_proba(X) == model.predict_proba(X)).all()


@pytest.mark.stress
@pytest.mark.parametrize("kind", [*LEARNERS, "dial", "mixture"])
def test_damage_anywhere(kind, tmp_path_factory):
    data, proba = saved(kind)
    folder = tmp_path_factory.mktemp("damage")

    @settings(max_examples=500, deadline=None)
    @given(st.integers(0, 8 * len(data) - 1), st.integers(1, 255), st.sampled_from(["bit", "byte", "cut", "insert"]))
    def check(place, value, how):
        other, at = bytearray(data), place // 8
        if how == "cut":
            del other[at:]
        elif how == "insert":
            other[at:at] = bytes([value])
        else:
            other[at] ^= value if how == "byte" else 1 << (place % 8)
        found = outcome(bytes(other), folder)
        assert isinstance(found, str) or (found.predict_proba(X) == proba).all()

    check()
