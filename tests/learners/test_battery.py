"""One battery over every learner: the closed form, weights, missing classes, determinism, starts, saving."""

import pickle

import numpy as np
import pytest
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from sklearn.base import clone
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from xgboost import XGBClassifier

from lowchurn.estimator._archive import model_from_files, model_to_files
from lowchurn.learners import Job, learner_for
from lowchurn.learners._all import ALL
from lowchurn.strategies import Anchor, CoDistill, ColdStart, Distill, Mixup, ShrinkPerturb, WarmStart

ROUNDS = 150
# Estimators that can fit any probabilities of a categorical feature, one or more for each learner.
ESTIMATORS = [
    LGBMClassifier(n_estimators=ROUNDS, min_child_samples=1, min_child_weight=0, n_jobs=1, verbose=-1),
    XGBClassifier(n_estimators=ROUNDS, reg_lambda=0, min_child_weight=0, n_jobs=1),
    CatBoostClassifier(
        iterations=ROUNDS,
        learning_rate=0.3,
        l2_leaf_reg=0,
        bootstrap_type="No",
        random_strength=0,
        thread_count=1,
        verbose=0,
        allow_writing_files=False,
    ),
    LogisticRegression(C=1e8, max_iter=2000, tol=1e-10),
    HistGradientBoostingClassifier(max_iter=ROUNDS, min_samples_leaf=1),
]
NAMES = [type(e).__name__ for e in ESTIMATORS]
LABELS = {2: np.array(["no", "yes"]), 3: np.array([1, 2, 3]), 4: np.array(list("abcd"))}


def world(m, n=240, seed=0):
    """Rows of a categorical feature with soft targets; the best probabilities are the mean target of each category."""
    rng = np.random.default_rng(seed)
    category = rng.integers(3, size=n)
    targets = rng.dirichlet(np.arange(1, m + 1), size=n)
    return np.eye(3)[category], category, targets


def best(category, targets, weights=None):
    return np.stack(
        [
            np.average(targets[category == k], axis=0, weights=None if weights is None else weights[category == k])
            for k in range(3)
        ]
    )


def test_every_learner_is_in_the_battery():
    tested = {type(learner_for(e, LABELS[2])) for e in ESTIMATORS}
    # Networks have a battery of their own beside their engine.
    assert {cls for cls in ALL if cls.name != "torch"} == tested


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_soft_targets_reach_the_closed_form(estimator, m, weighted):
    X, category, targets = world(m)
    weights = np.random.default_rng(1).uniform(0.2, 3, len(X)) if weighted else None
    model = learner_for(estimator, LABELS[m]).fit(X, Job(targets, Distill(), weights))
    assert model.classes_.tolist() == LABELS[m].tolist()
    np.testing.assert_allclose(model.predict_proba(np.eye(3)), best(category, targets, weights), atol=5e-3)
    assert model.predict(np.eye(3)).tolist() == LABELS[m][model.predict_proba(np.eye(3)).argmax(axis=1)].tolist()


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
@pytest.mark.parametrize("m", [2, 3])
def test_targets_that_sum_to_less_than_one_weigh_less(estimator, m):
    X, category, targets = world(m)
    sums = np.random.default_rng(2).uniform(0.3, 1, len(X))
    model = learner_for(estimator, LABELS[m]).fit(X, Job(targets * sums[:, None], Anchor()))
    np.testing.assert_allclose(model.predict_proba(np.eye(3)), best(category, targets, sums), atol=5e-3)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
def test_tiny_weights_change_nothing(estimator):
    X, _, targets = world(3)
    if hasattr(estimator, "C"):
        estimator = clone(estimator).set_params(C=1e12)  # its penalty is measured against the weights
    learner = learner_for(estimator, LABELS[3])
    one = learner.fit(X, Job(targets, Distill(), np.full(len(X), 1.0))).predict_proba(np.eye(3))
    tiny = learner.fit(X, Job(targets, Distill(), np.full(len(X), 1e-3))).predict_proba(np.eye(3))
    np.testing.assert_allclose(one, tiny, atol=6e-3)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
@pytest.mark.parametrize("m", [2, 3])
def test_hard_targets_are_the_estimators_own_training(estimator, m):
    X, _, targets = world(m)
    y = targets.argmax(axis=1)
    model = learner_for(estimator, LABELS[m]).fit(X, Job(np.eye(m)[y], ColdStart()))
    own = clone(estimator).fit(X, y if isinstance(estimator, XGBClassifier) else LABELS[m][y])
    np.testing.assert_allclose(model.predict_proba(X), own.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
def test_a_class_without_rows(estimator):
    X, _, targets = world(3)
    targets = targets * [1, 1, 0]
    targets /= targets.sum(axis=1, keepdims=True)
    hard = np.eye(3)[targets.argmax(axis=1)]
    for job in (Job(targets, Distill()), Job(hard, ColdStart())):
        model = learner_for(estimator, LABELS[3]).fit(X, job)
        shown = dict(zip(model.classes_.tolist(), model.predict_proba(np.eye(3)).T, strict=True))
        assert shown.get(3, np.zeros(3)).max() < 1e-3
        assert set(model.predict(np.eye(3)).tolist()) <= {1, 2}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
@pytest.mark.parametrize("m", [2, 3])
def test_the_same_seed_gives_the_same_model_and_files_give_the_same_bits(estimator, m):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(150, 4))
    job = Job(rng.dirichlet(np.ones(m), 150), Distill(), seed=7)
    learner = learner_for(estimator, LABELS[m])
    first, second = learner.fit(X, job), learner.fit(X, job)
    expected = first.predict_proba(X)
    assert (second.predict_proba(X) == expected).all()
    again = model_from_files(*model_to_files(first))
    assert (again.predict_proba(X) == expected).all()
    assert again.classes_.tolist() == LABELS[m].tolist()
    assert (pickle.loads(pickle.dumps(first)).predict_proba(X) == expected).all()


BOOSTERS = [
    clone(e).set_params(**{"n_estimators": 15} if not isinstance(e, CatBoostClassifier) else {"iterations": 15})
    for e in ESTIMATORS[:3]
]


@pytest.mark.parametrize("estimator", BOOSTERS, ids=NAMES[:3])
@pytest.mark.parametrize("m", [2, 3])
def test_continued_boosting_starts_at_the_base_and_learns_on(estimator, m):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(600, 4))
    y = (X[:, 0] + 0.5 * rng.normal(size=600) > 0).astype(int) + (m == 3) * (X[:, 1] > 0.5)
    labels = np.arange(m)
    base = clone(estimator).fit(X[:200], y[:200])
    learner = learner_for(estimator, labels)
    assert learner.cannot(Distill(start="warm"), base) is None
    given = base.predict_proba(X)
    imitate = learner.fit(X, Job(given, Distill(lam=0.0, start="warm")), base)
    np.testing.assert_allclose(imitate.predict_proba(X), given, atol=2e-3)  # nothing to learn: it stays
    onward = learner.fit(X, Job(np.eye(m)[y], WarmStart()), base)
    assert (onward.predict(X) == y).mean() > (base.predict(X).ravel() == y).mean()
    again = learner.fit(X, Job(np.eye(m)[y], WarmStart()), onward)  # a retrain of a retrain
    assert len(again.boosters) == 3
    loaded = model_from_files(*model_to_files(again))
    assert (loaded.predict_proba(X) == again.predict_proba(X)).all()


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(),
        MLPClassifier((5,), max_iter=1),
        GradientBoostingClassifier(n_estimators=5),
        RandomForestClassifier(5),
    ],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learns_own_warm_starts(estimator):
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(200, 3)), np.repeat([0, 1], 100)
    base = clone(estimator).fit(X, y)
    learner = learner_for(estimator, [0, 1])
    assert learner.cannot(WarmStart(), base) is None
    model = learner.fit(X, Job(np.eye(2)[y], WarmStart(), seed=0), base)
    if hasattr(base, "estimators_"):
        assert len(model.estimators_) == 10
        assert (np.ravel(model.estimators_)[0].predict(X) == np.ravel(base.estimators_)[0].predict(X)).all()
    assert base.predict_proba(X).shape == (200, 2)  # and the base is as it was


def test_shrink_and_perturb_starts_between_the_base_and_zero():
    X = np.random.default_rng(6).normal(size=(100, 3))
    y = np.repeat([0, 1], 50)
    base = LogisticRegression().fit(X, y)
    learner = learner_for(LogisticRegression(max_iter=1, tol=1e9), [0, 1])
    model = learner.fit(X, Job(np.eye(2)[y], ShrinkPerturb(alpha=0.5)), base)
    np.testing.assert_allclose(model.coef_, 0.5 * base.coef_, atol=1e-2)


@pytest.mark.parametrize(
    ("estimator", "strategy", "words"),
    [
        (
            HistGradientBoostingClassifier(),
            WarmStart(),
            "cannot start from the base: its warm start needs",
        ),
        (GaussianNB(), WarmStart(), "GaussianNB cannot start from the base's weights"),
        (LogisticRegression(), Mixup(), "LogisticRegression does not mix rows"),
        (LGBMClassifier(), CoDistill(start="cold"), "LGBMClassifier does not train coupled twins"),
        (XGBClassifier(), WarmStart(), "XGBClassifier cannot continue boosting from the base, which is a GaussianNB"),
        (CatBoostClassifier(), ShrinkPerturb(), "trees start only from trees"),
        (LogisticRegression(), WarmStart(), "the base, which is a GaussianNB and not a fitted LogisticRegression"),
    ],
    ids=str,
)
def test_what_a_learner_cannot_do_is_said_by_name(estimator, strategy, words):
    base = GaussianNB().fit([[0.0], [1.0]], [0, 1])
    assert words in learner_for(estimator, [0, 1]).cannot(strategy, base)


def test_balanced_class_weights_go_by_the_weight_of_a_class():
    X, category, targets = world(2)
    mass = targets.sum(axis=0)
    balanced = targets * (mass.sum() / (2 * mass))
    expected = best(category, balanced / balanced.sum(axis=1, keepdims=True), balanced.sum(axis=1))
    for estimator in (ESTIMATORS[0], ESTIMATORS[3]):
        model = learner_for(clone(estimator).set_params(class_weight="balanced"), LABELS[2]).fit(
            X, Job(targets, Distill())
        )
        np.testing.assert_allclose(model.predict_proba(np.eye(3)), expected, atol=5e-3)


def test_a_failing_job_is_its_exception_and_the_others_go_on():
    X, _, targets = world(2)
    jobs = [Job(targets, Distill()), Job(targets * np.nan, Distill()), Job(targets, Distill())]
    first, second, third = learner_for(LogisticRegression(), LABELS[2]).fit_many(X, jobs)
    assert isinstance(second, Exception)
    assert (first.coef_ == third.coef_).all()
    (refused,) = learner_for(KNeighborsClassifier(), LABELS[2]).fit_many(X, jobs[:1])
    assert "KNeighborsClassifier.fit must take sample_weight" in str(refused)
    with pytest.raises(ValueError, match="estimator must be a classifier with fit, got int"):
        learner_for(3, LABELS[2])


@pytest.mark.parametrize("estimator", BOOSTERS[:2], ids=NAMES[:2])
def test_native_soft_targets_are_as_good_as_weighted_rows(estimator):
    from lowchurn.learners._sklearn import RowsLearner
    from lowchurn.scoring import LogScore

    rng = np.random.default_rng(8)
    m = 4
    X = rng.normal(size=(3000, 5))
    logits = np.stack([2 * X[:, 0], X[:, 1] ** 2, X[:, 2] * X[:, 3], np.zeros(3000)], axis=1)
    truth = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    noisy = 0.8 * truth + 0.2 * rng.dirichlet(np.ones(m), 3000)
    job = Job(noisy[:2000], Distill())
    native = learner_for(estimator, np.arange(m)).fit(X[:2000], job).predict_proba(X[2000:])
    rows = RowsLearner(estimator, np.arange(m)).fit(X[:2000], job).predict_proba(X[2000:])
    risk = [LogScore().expected(noisy[2000:], p / p.sum(axis=1, keepdims=True)).mean() for p in (native, rows)]
    assert risk[0] <= risk[1] + 0.01
