"""One form for a fitted model: behind its preprocessing, found inside classifiers of every kind."""

import numpy as np
import pandas as pd
import pytest
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lowchurn import LowChurnClassifier
from lowchurn._types import Model
from lowchurn.learners._model import BehindPreprocessing, inside_wrappers, split_pipeline, unwrap

X = pd.DataFrame(np.random.default_rng(0).normal(size=(80, 3)), columns=["a", "b", "c"])
Y = np.where(X["a"] + X["b"] > 0, "yes", "no")

CLASSIFIERS = {
    "model": lambda: LogisticRegression().fit(X, Y),
    "pipeline": lambda: make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y),
    "pipeline of one": lambda: make_pipeline(LogisticRegression()).fit(X, Y),
    "frozen": lambda: FrozenEstimator(LogisticRegression().fit(X, Y)),
    "frozen twice": lambda: FrozenEstimator(FrozenEstimator(LogisticRegression().fit(X, Y))),
    "frozen pipeline": lambda: FrozenEstimator(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)),
    "threshold": lambda: FixedThresholdClassifier(LogisticRegression(), threshold=0.3, pos_label="yes").fit(X, Y),
    "tuned": lambda: TunedThresholdClassifierCV(
        make_pipeline(StandardScaler(), LogisticRegression()), cv=2, thresholds=5, scoring="accuracy"
    ).fit(X, Y),
    "lowchurn": lambda: LowChurnClassifier(make_pipeline(StandardScaler(), LogisticRegression())).fit(X, Y),
}


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_model_inside_a_classifier_gives_its_probabilities(kind):
    classifier = CLASSIFIERS[kind]()
    found = unwrap(classifier)
    assert isinstance(found, BehindPreprocessing)
    assert isinstance(found, Model)
    assert isinstance(found.model, LogisticRegression)
    assert (found.preprocessing is not None) == (kind in ("pipeline", "frozen pipeline", "tuned", "lowchurn"))
    assert found.feature_names_in_.tolist() == ["a", "b", "c"]
    assert found.classes_.tolist() == ["no", "yes"]
    np.testing.assert_array_equal(found.predict_proba(X), classifier.predict_proba(X))
    if kind not in ("threshold", "tuned"):
        np.testing.assert_array_equal(found.predict(X), classifier.predict(X))


def test_what_contains_no_model_is_none():
    assert unwrap(lambda rows: None) is None
    assert unwrap(None) is None
    base = LogisticRegression().fit(X, Y)
    mixture = LowChurnClassifier(LogisticRegression(C=0.1), base=base, max_churn=1e-6).fit(X, Y)
    assert unwrap(mixture) is None  # the base alone is served


def test_one_that_is_behind_its_preprocessing_already_is_returned_as_it_is():
    found = unwrap(CLASSIFIERS["pipeline"]())
    assert unwrap(found) is found


def test_wrappers_and_pipelines_are_taken_off_one_by_one():
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    assert inside_wrappers(FrozenEstimator(pipeline.fit(X, Y))) is pipeline
    steps, final = split_pipeline(pipeline)
    assert [type(step) for step in steps] == [StandardScaler]
    assert final is pipeline[-1]
    assert split_pipeline(final) == (None, final)
