"""Chains of releases: the base is an earlier release, of which only what it serves is kept; compression; debt."""

import copy
import pickle
import warnings
import zipfile

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import lowchurn
from lowchurn import LowChurnClassifier
from lowchurn.learners import learner_for

X, LABELS = make_classification(
    9000, 10, n_informative=6, n_classes=3, class_sep=0.9, flip_y=0.05, random_state=0
)  # fmt: skip
Y = np.array(["no", "maybe", "yes"])[LABELS]
NEW = slice(8000, None)
ESTIMATOR = make_pipeline(StandardScaler(), LogisticRegression())
TREE = DecisionTreeClassifier(min_samples_leaf=20, random_state=0)
CALM = {"max_churn": 0.05, "random_state": 0}


def rows_of(release, size=1200):
    return slice(release * size, (release + 1) * size)


def fit_release(base, release, estimator=ESTIMATOR, X=X, Y=Y, **given):
    """One release on rows of its own."""
    part = rows_of(release)
    model = LowChurnClassifier(clone(estimator), base=base, **{**CALM, **given})
    return model.fit(X[part], Y[part], new=np.ones(1200, dtype=bool))


def chain(releases, estimator=ESTIMATOR, **given):
    """All releases, the plain one first."""
    models = [clone(estimator).fit(X[rows_of(0)], Y[rows_of(0)])]
    for release in range(1, releases + 1):
        models.append(fit_release(models[-1], release, estimator, **given))
    return models


class Counting(DecisionTreeClassifier):
    """A tree that counts how often it is asked."""

    asked = 0

    def predict_proba(self, X, check_input=True):
        self.asked += 1
        return super().predict_proba(X, check_input)

    def predict(self, X, check_input=True):
        self.asked += 1
        return super().predict(X, check_input)


# What a base keeps


def test_a_base_is_asked_for_what_it_serves_and_decides_the_same():
    first, second = chain(2, strategies="sticky")[1:]
    (base,) = [part for part in second._served.weights if part.name == "base"]
    assert not isinstance(base.model, LowChurnClassifier)
    proba, decided = base.answers(X)
    np.testing.assert_array_equal(proba, first.predict_proba(X))
    np.testing.assert_array_equal(second.classes_[decided], first.predict(X))


def test_every_model_of_a_chain_is_asked_once_per_prediction():
    """A sticky model needs probabilities and decisions of its base, which needs those of its own, and so on."""
    models = chain(3, Counting(max_depth=4, random_state=0), strategies="sticky")
    sticky = models[-1]
    assert sticky.selection_.models == 4
    trees = all_models(sticky._served)
    assert len(trees) == 4
    for tree in trees:
        tree.asked = 0
    sticky.predict(X[NEW])
    assert [tree.asked for tree in trees] == [1, 1, 1, 1]


def all_models(served):
    found = []
    for part in served.weights:
        inside = part.model
        if hasattr(inside, "weights"):
            found += all_models(inside)
        else:
            found.append(inside.model if hasattr(inside, "preprocessing") else inside)
    return found


def test_the_object_of_the_user_is_not_changed_and_stays_the_parameter():
    first, second = chain(2, strategies="sticky")[1:]
    before = pickle.dumps(first)
    third = fit_release(second, 3, strategies="distill")
    assert third.get_params()["base"] is second
    assert second.get_params()["base"] is first
    assert clone(third).base is second
    assert second._choices is not None
    assert len(second.frontier_) > 10
    assert pickle.dumps(first) == before
    assert third.has_dial is False
    dialled = second.dial(0.02)
    assert dialled.base is first


def test_a_pickle_has_what_the_base_serves_and_not_its_history():
    second, third = chain(3, strategies="sticky")[2:]
    again = pickle.loads(pickle.dumps(third))
    np.testing.assert_array_equal(again.predict_proba(X), third.predict_proba(X))
    np.testing.assert_array_equal(again.dial(0.02).predict_proba(X), third.dial(0.02).predict_proba(X))
    np.testing.assert_array_equal(again.base.predict_proba(X), second.predict_proba(X))
    assert again.base.base is None
    assert not again.base.has_dial
    assert str(again.base.selection_) == str(second.selection_)
    np.testing.assert_array_equal(copy.deepcopy(third).predict(X), third.predict(X))
    part = rows_of(4)
    refitted = clone(again).fit(X[part], Y[part])
    np.testing.assert_array_equal(refitted.predict_proba(X), clone(third).fit(X[part], Y[part]).predict_proba(X))


def test_an_estimator_that_is_not_fitted_keeps_its_base_in_other_processes():
    first = chain(1)[1]
    model = LowChurnClassifier(clone(ESTIMATOR), base=first, **CALM)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.base.predict_proba(X), first.predict_proba(X))
    decided = cross_val_predict(model, X[:1000], Y[:1000], cv=2, n_jobs=2)
    assert np.mean(decided != first.predict(X[:1000])) < 0.1


@pytest.mark.parametrize("strategies", ["distill", "dial"])
def test_the_size_of_a_chain_of_single_models_does_not_grow(strategies, tmp_path):
    models = chain(5, strategies=strategies)[1:]
    assert all(model.selection_.models == 1 for model in models)
    pickles = [len(pickle.dumps(model)) for model in models]
    assert max(pickles[1:]) < 1.1 * min(pickles[1:])
    files = []
    for model in models:
        model.save(tmp_path / "next.skops")
        files.append((tmp_path / "next.skops").stat().st_size)
    assert max(files) < 1.1 * min(files)


def test_pickles_of_sticky_chains_grow_by_the_models_that_answer():
    models = chain(5, TREE, strategies="sticky")[1:]
    pickles = np.array([len(pickle.dumps(model)) for model in models])
    tree = len(pickle.dumps(clone(TREE).fit(X[rows_of(1)], Y[rows_of(1)])))
    assert (np.diff(pickles) < 1.5 * tree).all()


def test_a_release_that_serves_its_base_is_that_base():
    first = chain(1, strategies="distill")[1]
    frozen = fit_release(first, 2, max_churn=0)
    assert "This is the base unchanged" in str(frozen.selection_)
    third = fit_release(frozen, 3, strategies="sticky")
    (base,) = [part for part in third._served.weights if part.name == "base"]
    assert base.model.model_ is first.model_  # and not the release between
    assert third.selection_.models == 2
    np.testing.assert_array_equal(base.proba(X), frozen.predict_proba(X))


def test_a_release_that_serves_its_base_at_another_threshold_stays_itself():
    binary = Y == "yes"
    base = LogisticRegression().fit(X[:500], binary[:500])
    frozen = LowChurnClassifier(base=base, max_churn=0, threshold=0.3).fit(X[:1000], binary[:1000])
    after = LowChurnClassifier(base=frozen, max_churn=0.05, random_state=0).fit(X[:2000], binary[:2000])
    assert after.threshold_ == 0.3
    fixed = FixedThresholdClassifier(base, threshold=0.3, response_method="predict_proba").fit(X[:5], binary[:5])
    thresholded = LowChurnClassifier(base=fixed, max_churn=0).fit(X[:1000], binary[:1000])
    after = LowChurnClassifier(base=thresholded, max_churn=0).fit(X[:2000], binary[:2000])
    np.testing.assert_array_equal(after.predict(X), fixed.predict(X))


def test_a_subclass_that_answers_by_itself_is_asked_itself():
    class Other(LowChurnClassifier):
        def predict(self, X):
            return np.full(len(X), "no")

    part = rows_of(1)
    other = Other(clone(ESTIMATOR)).fit(X[part], Y[part])
    model = LowChurnClassifier(clone(ESTIMATOR), base=other, max_churn=0).fit(X[rows_of(2)], Y[rows_of(2)])
    assert (model.predict(X[NEW]) == "no").all()


def test_names_of_columns_are_kept_along_a_chain():
    names = list("abcdefghij")
    table = pd.DataFrame(X, columns=names)
    first = clone(ESTIMATOR).fit(table[names[:6]][:1200], Y[:1200])
    second = LowChurnClassifier(clone(ESTIMATOR), base=first, strategies="sticky", **CALM)
    second.fit(table[names[:8]][1200:2400], Y[1200:2400])
    third = LowChurnClassifier(clone(ESTIMATOR), base=second, strategies="sticky", **CALM)
    third.fit(table[names[::-1]][2400:3600], Y[2400:3600])
    (base,) = [part for part in third._served.weights if part.name == "base"]
    np.testing.assert_array_equal(base.proba(table[names[::-1]]), second.predict_proba(table[names[:8]]))


# Blends of blends


def blended(releases, estimator=TREE, **given):
    return chain(releases, estimator, strategies="dial", max_churn=0.08, **given)


def test_a_blend_of_a_blend_is_one_sum_of_models():
    second, third = blended(3)[2:]
    weights = list(third._served.weights.items())
    assert [part.name for part, _ in weights][1:] == ["base"] * (len(weights) - 1)
    assert not any(hasattr(part.model, "weights") for part, _ in weights)
    assert third.selection_.models == len(weights) == 4
    assert sum(weight for _, weight in weights) == pytest.approx(1, abs=1e-15)
    (new, share), *_ = weights
    nested = share * new.proba(X) + (1 - share) * second.predict_proba(X)
    np.testing.assert_allclose(third.predict_proba(X), nested, rtol=0, atol=2**-52)
    np.testing.assert_array_equal(third.predict_proba(X), sum(weight * part.proba(X) for part, weight in weights))


def test_what_was_measured_is_what_is_served():
    """On rows of trees many probabilities tie, so that another order of the sums would be other decisions."""
    part, held_out = rows_of(3), np.arange(800, 1200)
    base = blended(2, DecisionTreeClassifier(max_depth=3, random_state=0))[-1]
    model = LowChurnClassifier(
        DecisionTreeClassifier(max_depth=3, random_state=0), base=base, strategies="dial", **CALM
    )
    model.fit(X[part], Y[part], held_out=held_out)
    rows = X[part][held_out]
    assert model.selection_.churn == pytest.approx(np.mean(model.predict(rows) != base.predict(rows)), abs=1e-12)
    assert model.selection_.accuracy == pytest.approx(np.mean(model.predict(rows) == Y[part][held_out]), abs=1e-12)


def test_a_blend_of_other_classes_or_columns_stays_whole():
    base = blended(2)[-1]
    part = rows_of(3)
    two = Y[part] != "maybe"
    model = LowChurnClassifier(clone(TREE), base=base, strategies="dial", max_churn=0.2, random_state=0)
    model.fit(X[part][two], Y[part][two])
    inside = [part.model for part in model._served.weights if part.name == "base"]
    assert len(inside) == 1
    assert hasattr(inside[0], "weights")


def test_flat_blends_are_saved_with_their_dial(tmp_path):
    third = blended(3)[-1]
    third.save(tmp_path / "next.skops", dial=True)
    again = lowchurn.load(tmp_path / "next.skops")
    np.testing.assert_array_equal(again.predict_proba(X), third.predict_proba(X))
    for budget in (0.01, 0.03, 0.2):
        np.testing.assert_array_equal(again.dial(budget).predict_proba(X), third.dial(budget).predict_proba(X))
    fourth, from_file = (fit_release(base, 4, TREE, strategies="sticky") for base in (third, again))
    np.testing.assert_array_equal(fourth.predict_proba(X), from_file.predict_proba(X))
    assert fourth.selection_.models == 6 - 1


def test_mixtures_of_a_blend_name_the_base_once():
    base = blended(2)[-1]
    model = fit_release(base, 3, TREE, select="mixture")
    assert sum(model.selection_.served.values()) == pytest.approx(1)
    assert model.selection_.models == len(model._served.weights)


# Compression


def compressed(base=None, release=1, estimator=ESTIMATOR, **given):
    base = clone(estimator).fit(X[:300], Y[:300]) if base is None else base
    return fit_release(base, release, estimator, **{"strategies": "sticky", "compress": True, **given})


def test_one_model_is_served_and_keeps_the_budget():
    base = clone(ESTIMATOR).fit(X[:300], Y[:300])
    part, held_out = rows_of(1), np.arange(700, 1200)
    model = LowChurnClassifier(clone(ESTIMATOR), base=base, strategies="sticky", compress=True, **CALM)
    model.fit(X[part], Y[part], held_out=held_out)
    assert isinstance(model.model_, LogisticRegression)
    assert model.selection_.models == 1
    assert next(iter(model.selection_.served)).startswith("compressed(lam=")
    rows = X[part][held_out]
    churn = np.mean(model.predict(rows) != base.predict(rows))
    assert churn == pytest.approx(model.selection_.churn)
    assert churn <= 0.05
    row = next(row for row in model.frontier_ if row.name in model.selection_.served)
    assert row.accuracy == model.selection_.accuracy == pytest.approx(np.mean(model.predict(rows) == Y[part][held_out]))
    assert model.selection_.feasible
    assert "Compressed from 2 models into one of its own kind: accuracy" in str(model.selection_)
    students = [row for row in model.frontier_ if row.strategy == "compressed"]
    assert 1 <= len(students) <= 4
    assert model.selection_.trainings == 1 + len(students)


def test_a_student_is_the_model_trained_on_probabilities_between_the_base_and_the_teacher():
    base = clone(ESTIMATOR).fit(X[:300], Y[:300])
    part, held_out = rows_of(1), np.arange(700, 1200)
    given = {"base": base, "strategies": "sticky", **CALM}
    teacher = LowChurnClassifier(clone(ESTIMATOR), **given).fit(X[part], Y[part], held_out=held_out)
    student = LowChurnClassifier(clone(ESTIMATOR), **given, compress=True).fit(X[part], Y[part], held_out=held_out)
    (lam,) = [row.parameters["lam"] for row in student.frontier_ if row.name in student.selection_.served]
    rows = X[part][:700]
    proba = lam * teacher.predict_proba(rows) + (1 - lam) * base.predict_proba(rows)
    scaler = StandardScaler().fit(rows)
    repeated, labels = np.repeat(scaler.transform(rows), 3, axis=0), np.tile(teacher.classes_, len(rows))
    by_hand = LogisticRegression().fit(repeated, labels, sample_weight=proba.ravel())
    np.testing.assert_allclose(
        student.predict_proba(X[NEW]), by_hand.predict_proba(scaler.transform(X[NEW])), atol=2e-3
    )


def test_the_certificate_is_for_what_is_served():
    base = clone(ESTIMATOR).fit(X[:300], Y[:300])
    model = LowChurnClassifier(
        clone(ESTIMATOR), base=base, strategies="sticky", compress=True, max_churn=0.08, confidence=0.8, random_state=0
    ).fit(X[1200:5000], Y[1200:5000])
    assert model.selection_.models == 1
    assert model.certificate_.certified
    assert "compressed" in " ".join(name for name, _ in model.certificate_.tested)
    assert "certified with 80 % confidence" in model.selection_.rule
    assert np.mean(model.predict(X[5000:]) != base.predict(X[5000:])) <= 0.08


def test_students_learn_from_one_half_of_the_traffic_and_are_measured_on_the_other():
    base = clone(ESTIMATOR).fit(X[:300], Y[:300])
    traffic = X[3000:5000]
    model = LowChurnClassifier(clone(ESTIMATOR), base=base, strategies="sticky", compress=True, **CALM)
    model.fit(X[:1200], Y[:1200], traffic=traffic)
    assert model.selection_.rows["traffic"] == 1000
    assert model.selection_.models == 1
    shuffled = clone(model).fit(X[:1200], Y[:1200], traffic=traffic[::-1])
    assert shuffled.selection_.churn == model.selection_.churn
    small = clone(model).set_params(max_churn=0.3).fit(X[:1200], Y[:1200], traffic=X[3000:3001])
    assert small.selection_.rows["traffic"] == 1


def test_a_budget_that_no_student_keeps_is_never_broken():
    """A fresh forest of few random trees cannot decide as another one in all but 3 % of the rows."""
    forest = RandomForestClassifier(10, max_features=1, max_depth=6, random_state=0)
    base = clone(forest).fit(X[rows_of(0)], Y[rows_of(0)])
    with pytest.warns(
        UserWarning, match=r"no compressed model keeps max_churn=0.03; the nearest of . that were tried has"
    ):
        model = compressed(base, estimator=forest, max_churn=0.03)
    assert model.selection_.models == 2
    assert 0 < model.selection_.churn <= 0.03
    assert not any("compressed" in name for name in model.selection_.served)
    plain = fit_release(base, 1, forest, strategies="sticky", max_churn=0.03)
    np.testing.assert_array_equal(model.predict_proba(X), plain.predict_proba(X))
    assert [row.strategy for row in model.frontier_].count("compressed") >= 2
    assert len(pickle.dumps(model)) < 1.3 * len(pickle.dumps(plain))  # students that are not served are not kept


@pytest.mark.filterwarnings("ignore:.*clearly less accurate")
@pytest.mark.parametrize(
    ("estimator", "budget"),
    [(ESTIMATOR, 0.04), (TREE, 0.5), (RandomForestClassifier(20, max_leaf_nodes=8, random_state=0), 0.08)],
)
def test_a_compressed_chain_has_a_constant_size(estimator, budget, tmp_path):
    base = clone(estimator).fit(X[rows_of(0)], Y[rows_of(0)])
    files, pickles = [], []
    for release in range(1, 6):
        base = compressed(base, release, estimator, max_churn=budget, strategies="dial")
        assert base.selection_.models == 1
        assert base.selection_.feasible
        base.save(tmp_path / "next.skops")
        files.append((tmp_path / "next.skops").stat().st_size)
        pickles.append(len(pickle.dumps(base)))
    assert max(files[2:]) < 1.25 * max(files[:2])
    assert max(pickles[2:]) < 1.25 * max(pickles[:2])


def test_trees_of_a_forest_are_exchanged_for_those_of_the_base():
    """The compressed forest is the mean of its trees, some of the plain retrain and the rest of the base."""
    forest = RandomForestClassifier(30, min_samples_leaf=5, random_state=0)
    base = clone(forest).fit(X[rows_of(0)], Y[rows_of(0)])
    model = compressed(base, estimator=forest, max_churn=0.06)
    assert model.selection_.trainings == 1
    assert model.selection_.churn <= 0.06
    trees = model.model_.estimators_
    old = [tree for tree in trees if any(tree is other for other in base.estimators_)]
    assert len(trees) == 30
    assert 0 < len(old) < 30
    assert f"compressed(lam={1 - len(old) / 30:.3g}, by=trees)" in model.selection_.served
    np.testing.assert_allclose(
        model.predict_proba(X[NEW]), np.mean([tree.predict_proba(X[NEW]) for tree in trees], axis=0), atol=1e-12
    )
    assert len(base.estimators_) == 30  # as it was


@pytest.mark.parametrize("parts", [1, 5, 10])
def test_a_forest_keeps_its_size_whatever_the_base_has(parts):
    learner = learner_for(RandomForestClassifier(10, random_state=0), np.unique(Y))
    model, base, small, large = (
        RandomForestClassifier(n, random_state=n).fit(X[:200], Y[:200]) for n in (10, 10, 3, 40)
    )
    assert learner.exchangeable(model, base) == 10
    assert [tree in base.estimators_ for tree in learner.exchange(model, base, parts).estimators_].count(
        True
    ) == 10 - parts
    assert len(learner.exchange(model, large, parts).estimators_) == 10
    assert len(learner.exchange(model, small, parts).estimators_) == min(10, parts + 3)
    assert learner.exchangeable(model, LogisticRegression().fit(X[:200], Y[:200])) == 0
    assert learner.exchangeable(model, clone(base).fit(X[:200], LABELS[:200])) == 0
    assert learner.exchangeable(model, clone(base).fit(X[:200, :5], Y[:200])) == 0


def test_a_model_that_contains_the_base_is_compressed():
    """A forest that starts from the base keeps its trees."""
    forest = RandomForestClassifier(10, min_samples_leaf=10, random_state=0)
    base = clone(forest).fit(X[rows_of(0)], Y[rows_of(0)])
    warm = lowchurn.strategies.Distill(0.5, start="warm")
    grown = fit_release(base, 1, forest, strategies=[warm], max_churn=0.3)
    assert len(grown.model_.estimators_) == 20
    model = fit_release(base, 1, forest, strategies=[warm], max_churn=0.3, compress=True)
    assert len(model.model_.estimators_) == 10
    assert "Compressed from a model that contains the base" in str(model.selection_)


def test_one_small_model_is_left_as_it_is():
    base = clone(ESTIMATOR).fit(X[:300], Y[:300])
    plain, asked = (fit_release(base, 1, strategies="distill", compress=compress) for compress in (False, True))
    np.testing.assert_array_equal(plain.predict_proba(X), asked.predict_proba(X))
    assert str(plain.selection_) == str(asked.selection_)
    part = rows_of(1)
    alone = LowChurnClassifier(clone(ESTIMATOR), compress=True).fit(X[part], Y[part])
    np.testing.assert_array_equal(
        alone.predict_proba(X), LowChurnClassifier(clone(ESTIMATOR)).fit(X[part], Y[part]).predict_proba(X)
    )


def test_a_base_known_by_a_table_is_compressed_into_a_model_that_needs_no_decisions():
    part = rows_of(1)
    table = clone(ESTIMATOR).fit(X[:300], Y[:300]).predict(X[part])
    model = LowChurnClassifier(clone(ESTIMATOR), strategies="sticky", compress=True, **{**CALM, "max_churn": 0.1})
    model.fit(X[part], Y[part], base_proba=table)
    assert len(model.predict(X[NEW])) == 1000
    assert model.selection_.models == 1
    assert "Compressed from a model that keeps decisions into one" in str(model.selection_)


def test_weights_of_classes_count_once():
    """The probabilities of a teacher contain the weights of its classes."""
    rare = np.where(Y == "yes", "yes", "no")
    weighted = make_pipeline(StandardScaler(), LogisticRegression(class_weight={"no": 1, "yes": 9}))
    part = rows_of(1)
    base = clone(weighted).fit(X[:300], rare[:300])
    given = {"base": base, "strategies": "sticky", "max_churn": 0.2, "random_state": 0}
    teacher = LowChurnClassifier(clone(weighted), **given).fit(X[part], rare[part])
    student = LowChurnClassifier(clone(weighted), **given, compress=True).fit(X[part], rare[part])
    assert student.selection_.models == 1
    assert student.estimator_[-1].class_weight == {"no": 1, "yes": 9}
    shares = [np.mean(model.predict(X[NEW]) == "yes") for model in (teacher, student)]
    assert shares[1] == pytest.approx(shares[0], abs=0.03)


def test_a_student_that_cannot_be_trained_is_a_warning():
    class Stubborn(LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            if sample_weight is not None and not np.isin(sample_weight, (0, 1)).all():
                raise ValueError("only plain labels")
            return super().fit(X, y, sample_weight)

    base = Stubborn().fit(X[:300], Y[:300])
    with pytest.warns(UserWarning, match=r"training of the compressed model failed \(ValueError: only plain labels\)"):
        model = compressed(base, estimator=Stubborn())
    assert model.selection_.models == 2
    assert model.selection_.churn <= 0.05


def test_a_dial_prefers_compressed_models_and_says_where_there_is_none(tmp_path):
    model = compressed()
    model.save(tmp_path / "next.skops", dial=True)
    again = lowchurn.load(tmp_path / "next.skops")
    assert again.compress is True
    for one in (model, again):
        np.testing.assert_array_equal(one.dial(0.05).predict_proba(X), model.predict_proba(X))
        with pytest.warns(UserWarning, match="compress=True: .* is served, the 2 models with a churn of"):
            calmer = one.dial(0.01)
        assert calmer.selection_.churn <= 0.01
    on_traffic = model.dial(0.1, traffic=X[NEW])
    assert on_traffic.selection_.models == 1


def test_a_frozen_chain_warns_that_it_is_not_compressed():
    sticky = chain(1, strategies="sticky")[1]
    with pytest.warns(UserWarning, match="max_churn=0 allows no change"):
        frozen = fit_release(sticky, 2, max_churn=0, compress=True)
    np.testing.assert_array_equal(frozen.predict(X), sticky.predict(X))


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_compress_is_true_or_false(value):
    with pytest.raises(ValueError, match="compress must be True or False, got"):
        LowChurnClassifier(compress=value).fit(X[:50], Y[:50])


def test_compress_is_saved_and_cloned(tmp_path):
    model = compressed()
    model.save(tmp_path / "next.skops")
    again = lowchurn.load(tmp_path / "next.skops")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.compress is clone(model).compress is True
    with zipfile.ZipFile(tmp_path / "next.skops") as archive:
        assert not [name for name in archive.namelist() if name.startswith("model1/")]


# Debt


def drifted(rows):
    """Labels of a world that has changed: two of the classes have changed places."""
    return np.array([1, 0, 2])[LABELS][rows]


def test_a_budget_that_costs_much_is_a_warning_with_a_remedy():
    part = rows_of(1)
    base = clone(ESTIMATOR).fit(X[rows_of(0)], LABELS[rows_of(0)])
    with pytest.warns(UserWarning, match=r"max_churn=0.02 costs \d+\.\d points of accuracy .* raise the budget once"):
        model = LowChurnClassifier(clone(ESTIMATOR), base=base, max_churn=0.02, random_state=0).fit(
            X[part], drifted(part)
        )
    cost = 100 * (model.selection_.plain_accuracy - model.selection_.accuracy)
    assert cost > 3
    assert f"max_churn=0.02 costs {cost:.1f} points of accuracy" in str(model.selection_)
    assert f"less churn costs {cost:.1f} points" in str(model.selection_)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("budget", [0.01, 0.05])
def test_healthy_retrains_do_not_warn_of_debt(seed, budget):
    order = np.random.default_rng(seed).permutation(len(X))[:4000]
    rows, labels = X[order], Y[order]
    base = clone(ESTIMATOR).fit(rows[:2000], labels[:2000])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*points of accuracy")
        model = LowChurnClassifier(
            clone(ESTIMATOR), base=base, max_churn=budget, strategies="sticky", random_state=seed
        )
        model.fit(rows, labels, new=np.arange(4000) >= 2000)
    assert "debt" not in str(model.selection_)


def test_without_a_budget_or_labels_there_is_no_debt():
    part = rows_of(1)
    base = clone(ESTIMATOR).fit(X[rows_of(0)], LABELS[rows_of(0)])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*points of accuracy")
        for given in ({}, {"max_churn": 0}):
            LowChurnClassifier(clone(ESTIMATOR), base=base, **given).fit(X[part], drifted(part))
        sticky = LowChurnClassifier(clone(ESTIMATOR), base=base, max_churn=0.02, strategies="sticky")
        sticky.fit(X[part], drifted(part), traffic=X[NEW])


def test_a_compressed_model_keeps_every_limit():
    base = clone(ESTIMATOR).fit(X[:300], Y[:300])
    part = slice(1200, 4200)
    limits = {"max_churn": {"no": 0.1, None: 0.08}, "max_broken": 0.03}
    model = LowChurnClassifier(
        clone(ESTIMATOR), base=base, compress=True, strategies="sticky", random_state=0, **limits
    )
    model.fit(X[part], Y[part])
    assert model.selection_.models == 1
    row = next(row for row in model.frontier_ if row.name in model.selection_.served)
    assert row.strategy == "compressed"
    assert row.churn <= 0.08
    assert row.churn_by["no"] <= 0.1
    assert row.broken <= 0.03


def test_a_class_in_which_nothing_may_change_is_not_compressed():
    """Only the rule keeps every decision of it, also those of rows that were not measured."""
    base = clone(ESTIMATOR).fit(X[:300], Y[:300])
    part = slice(1200, 4200)
    model = LowChurnClassifier(
        clone(ESTIMATOR), base=base, compress=True, strategies="sticky", max_churn={"no": 0, None: 0.08}, random_state=0
    )
    with pytest.warns(UserWarning, match="allows no change, and a compressed model may change any decision"):
        model.fit(X[part], Y[part])
    before = base.predict(X[NEW])
    assert (model.predict(X[NEW])[before == "no"] == "no").all()


def test_a_blend_whose_base_keeps_a_class_asks_the_base_as_a_whole():
    base = blended(2)[-1]
    model = fit_release(base, 3, TREE, strategies="dial", max_churn={"no": 0, None: 0.08})
    before = base.predict(X[NEW])
    assert (model.predict(X[NEW])[before == "no"] == "no").all()


def test_a_base_that_may_not_stay_in_service_is_compressed_into_the_model():
    base = clone(ESTIMATOR).fit(X[:300], Y[:300])
    model = fit_release(base, 1, strategies="sticky", serve_base=False, compress=True, max_churn=0.1)
    assert model.selection_.models == 1
    assert len(model.predict(X[NEW])) == 1000
