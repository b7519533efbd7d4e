"""CatBoost on a matrix of soft targets: one sigmoid per class, whose shares are the probabilities."""

import numpy as np
import pandas as pd
import pytest
from catboost import CatBoost, CatBoostClassifier

from lowchurn import SoftTargetClassifier
from lowchurn.learners import Job, learner_for
from lowchurn.learners._catboost import MATRIX, CatBoostModel, has_sigmoids
from lowchurn.strategies import Distill

CAT = {"thread_count": 1, "verbose": False, "allow_writing_files": False, "bootstrap_type": "No"}
CLASSES = ["a", "b", "c"]
RNG = np.random.default_rng(0)
GROUP = RNG.integers(4, size=400)
TRUTH = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4], [0.05, 0.05, 0.9]])
ROWS = pd.DataFrame({"word": np.array(list("wxyz"))[GROUP], "noise": RNG.normal(size=400)})


def learner(**given):
    settings = {"iterations": 60, "learning_rate": 0.5, "l2_leaf_reg": 0, "cat_features": ["word"]} | CAT | given
    return learner_for(CatBoostClassifier(**settings), classes=CLASSES)


def test_every_group_gets_its_targets_without_copies():
    model = learner().fit(ROWS, Job(TRUTH[GROUP], Distill(), seed=0))
    assert has_sigmoids(model.stages[0].booster)
    assert np.abs(model.predict_proba(ROWS) - TRUTH[GROUP]).max() < 0.01


def test_weights_and_labels_in_one_group_average():
    """The rows of a group aim at different things: the closed form is their weighted mean."""
    X, targets, weight = np.zeros((4, 1)), np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0.5, 0.5]]), [4, 2, 1, 1]
    rows, aims = np.vstack([X, X + 1]), np.vstack([targets, TRUTH[[0] * 4]])
    model = learner(cat_features=None, iterations=200).fit(
        rows, Job(aims, Distill(), seed=0, sample_weight=np.array(weight * 2, dtype=float))
    )
    expected = np.average(targets, axis=0, weights=weight)
    assert model.predict_proba(rows)[0] == pytest.approx(expected, abs=0.01)
    assert model.predict_proba(rows)[-1] == pytest.approx(TRUTH[0], abs=0.01)


def test_a_file_and_a_continued_model_keep_the_probabilities():
    rows = pd.get_dummies(ROWS["word"], dtype=float)
    model = learner(cat_features=None).fit(rows, Job(TRUTH[GROUP], Distill(), seed=0))
    again = CatBoostModel.from_files(model.to_files())
    assert (again.predict_proba(rows) == model.predict_proba(rows)).all()
    other = TRUTH[:, ::-1]
    later = learner(cat_features=None, l2_leaf_reg=3, learning_rate=0.2, iterations=300).fit(
        rows, Job(other[GROUP], Distill(start="warm"), seed=0), base=model
    )
    assert [has_sigmoids(booster) for booster in later.boosters] == [True, False]
    assert np.abs(later.predict_proba(rows) - other[GROUP]).max() < 0.02


def test_categories_are_not_encoded_by_copies_of_a_row():
    """Statistics of targets in earlier rows would be the target of the row itself: off by 0.7 in these groups."""
    warm = Distill(start="warm")
    model = learner().fit(ROWS, Job(TRUTH[GROUP], Distill(), seed=0))
    assert "of 3 classes with cat_features" in learner().cannot(warm, base=model)
    assert "trees start only from trees" in learner().cannot(warm, base=None)
    later = learner(l2_leaf_reg=3).fit(ROWS, Job(TRUTH[GROUP, ::-1], warm, seed=0), base=model)
    assert np.abs(later.predict_proba(ROWS) - TRUTH[GROUP, ::-1]).max() > 0.5  # what is refused
    numbers = learner(cat_features=None).fit(ROWS[["noise"]], Job(TRUTH[GROUP], Distill(), seed=0))
    assert learner(cat_features=None).cannot(warm, base=numbers) is None


def test_a_class_without_mass_is_unlikely_everywhere():
    aims = np.column_stack([TRUTH[GROUP, 0], 1 - TRUTH[GROUP, 0], np.zeros(400)])
    found = learner().fit(ROWS, Job(aims, Distill(), seed=0)).predict_proba(ROWS)
    assert found[:, 2].max() < 0.01
    assert np.abs(found[:, 0] - aims[:, 0]).max() < 0.02


@pytest.mark.parametrize("rounds", [20, 1000])
def test_the_learning_rate_is_the_one_of_labels(rounds, monkeypatch):
    labels = CatBoostClassifier(iterations=rounds, depth=1, **CAT).fit(ROWS[["noise"]], np.array(CLASSES)[GROUP % 3])
    seen = []
    fit = CatBoost.fit
    monkeypatch.setattr(CatBoost, "fit", lambda self, *rows, **more: seen.append(self) or fit(self, *rows, **more))
    model = SoftTargetClassifier(CatBoostClassifier(iterations=rounds, depth=1, **CAT), classes=CLASSES)
    model.fit(ROWS[["noise"]], TRUTH[GROUP])
    (booster,) = (one for one in seen if one.get_param("loss_function") == MATRIX)
    assert booster.get_param("learning_rate") == pytest.approx(labels.learning_rate_, rel=1e-5)
