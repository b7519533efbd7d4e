"""Sticky decisions: the margin rule by hand, traffic without labels, previous decisions at prediction."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import lowchurn
from lowchurn import LowChurnClassifier
from lowchurn._estimates import paired_difference
from lowchurn.strategies import Sticky

X, LABELS = make_classification(
    5000, 12, n_informative=6, n_classes=3, class_sep=0.8, flip_y=0.05, random_state=0
)  # fmt: skip
Y = np.array(["no", "maybe", "yes"])[LABELS]
OLD, TRAIN, TRAFFIC, NEW = slice(0, 300), slice(0, 2000), slice(2000, 3500), slice(3500, None)
HELD_OUT = np.arange(1200, 2000)
ESTIMATOR = make_pipeline(StandardScaler(), LogisticRegression())


@pytest.fixture(scope="module")
def base():
    return clone(ESTIMATOR).fit(X[OLD], Y[OLD])


def fitted(base, max_churn=0.05, **given):
    model = LowChurnClassifier(clone(ESTIMATOR), base=base, max_churn=max_churn, strategies="sticky", random_state=0)
    return model.fit(X[TRAIN], Y[TRAIN], **given)


@pytest.fixture(scope="module")
def held_out(base):
    return fitted(base, held_out=HELD_OUT)


@pytest.fixture(scope="module")
def on_traffic(base):
    return fitted(base, traffic=X[TRAFFIC])


def by_hand(retrain, base_decisions, rows, margin):
    """The class of the largest probability, unless it beats the base's by no more than the margin."""
    proba = retrain.predict_proba(rows)
    classes = retrain.classes_.tolist()
    decided = []
    for p, kept in zip(proba, base_decisions, strict=True):
        b = classes.index(kept)
        best = max((j for j in range(len(classes)) if j != b), key=lambda j: p[j])
        decided.append(classes[best] if p[best] - p[b] > margin else kept)
    return np.array(decided)


def margin_of(model):
    (name,) = model.selection_.served
    (row,) = [row for row in model.frontier_ if row.name == name]
    return row.parameters["margin"]


def test_it_serves_the_rule(base, held_out):
    retrain = clone(ESTIMATOR).fit(X[:1200], Y[:1200])
    expected = by_hand(retrain, base.predict(X[NEW]), X[NEW], margin_of(held_out))
    np.testing.assert_array_equal(held_out.predict(X[NEW]), expected)
    assert held_out.selection_.trainings == 1


def test_probabilities_agree_with_decisions(held_out):
    proba = held_out.predict_proba(X[NEW])
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(held_out.classes_[proba.argmax(axis=1)], held_out.predict(X[NEW]))


def test_the_budget_is_spent_and_kept(base, held_out):
    churn = np.mean(held_out.predict(X[HELD_OUT]) != base.predict(X[HELD_OUT]))
    assert churn == pytest.approx(held_out.selection_.churn)
    assert 0.03 < churn <= 0.05
    plain = held_out.frontier_[0]
    assert plain.strategy == "cold"
    assert plain.churn > 0.05


def test_churn_falls_along_the_margin(held_out):
    sticky = sorted((row for row in held_out.frontier_ if row.strategy == "sticky"), key=lambda row: row.dial)
    churn = [row.churn for row in sticky]
    assert churn == sorted(churn, reverse=True)
    assert churn[0] == held_out.frontier_[0].churn
    assert sticky[-1].parameters["margin"] == 1
    assert churn[-1] == 0
    assert len(sticky) > 20


def test_all_rows_with_labels_are_trained_on_where_there_is_traffic(base, on_traffic):
    retrain = clone(ESTIMATOR).fit(X[TRAIN], Y[TRAIN])
    expected = by_hand(retrain, base.predict(X[NEW]), X[NEW], margin_of(on_traffic))
    np.testing.assert_array_equal(on_traffic.predict(X[NEW]), expected)
    churn = np.mean(on_traffic.predict(X[TRAFFIC]) != base.predict(X[TRAFFIC]))
    assert churn == pytest.approx(on_traffic.selection_.churn)
    assert 0.04 < churn <= 0.05
    assert on_traffic.selection_.rows == {"train": 2000, "choose": 0, "certify": 0, "traffic": 1500}
    assert np.isnan(on_traffic.selection_.accuracy)
    assert "accuracy is not measured" in str(on_traffic.selection_)


def test_accuracy_is_measured_on_held_out_rows_and_churn_on_traffic(base):
    model = fitted(base, traffic=X[TRAFFIC], held_out=HELD_OUT)
    assert model.selection_.accuracy == pytest.approx(np.mean(model.predict(X[HELD_OUT]) == Y[HELD_OUT]))
    assert model.selection_.churn == pytest.approx(np.mean(model.predict(X[TRAFFIC]) != base.predict(X[TRAFFIC])))
    assert model.selection_.rows["choose"] == 800
    assert "on 1500 rows of traffic" in str(model.selection_)


def test_a_certificate_comes_from_traffic_that_nothing_else_has_seen(base):
    model = LowChurnClassifier(
        clone(ESTIMATOR), base=base, max_churn=0.05, strategies="sticky", random_state=0, confidence=0.9
    ).fit(X[TRAIN], Y[TRAIN], traffic=X[TRAFFIC])
    assert model.certificate_.certified
    rows = model.selection_.rows
    assert rows["train"] == 2000
    assert rows["traffic"] + rows["certify"] == 1500
    assert rows["certify"] > 100


@pytest.mark.parametrize("kind", [pd.DataFrame, lambda rows: pl.DataFrame(rows, orient="row"), sparse.csr_matrix])
def test_traffic_of_any_kind_of_table(base, kind, on_traffic):
    estimator = LogisticRegression()
    older = estimator.fit(kind(X[OLD]), Y[OLD])
    model = LowChurnClassifier(LogisticRegression(), base=older, max_churn=0.05, strategies="sticky", random_state=0)
    model.fit(kind(X[TRAIN]), Y[TRAIN], traffic=kind(X[TRAFFIC]), held_out=HELD_OUT)
    churn = np.mean(model.predict(kind(X[TRAFFIC])) != older.predict(kind(X[TRAFFIC])))
    assert churn == pytest.approx(model.selection_.churn)


def test_previous_decisions_take_the_place_of_the_base(base, held_out):
    decided = base.predict(X[NEW])
    expected = held_out.predict(X[NEW])
    np.testing.assert_array_equal(held_out.predict(X[NEW], previous=decided), expected)
    np.testing.assert_array_equal(held_out.predict(X[NEW], previous=pd.Series(decided)), expected)
    np.testing.assert_array_equal(
        held_out.predict_proba(X[NEW], previous=decided), held_out.predict_proba(X[NEW])
    )  # fmt: skip
    some = decided.astype(object)
    some[::3] = None  # the base is asked about these
    np.testing.assert_array_equal(held_out.predict(X[NEW], previous=some), expected)
    other = np.where(decided == "yes", "no", "yes")
    assert (held_out.predict(X[NEW], previous=other) != expected).any()


def test_a_base_known_by_its_decisions_alone(base):
    model = LowChurnClassifier(clone(ESTIMATOR), max_churn=0.01, strategies="sticky", random_state=0)
    model.fit(X[TRAIN], Y[TRAIN], base_proba=base.predict(X[TRAIN]), held_out=HELD_OUT)
    assert model.selection_.feasible
    assert model.selection_.churn <= 0.01
    decided = base.predict(X[NEW])
    assert np.mean(model.predict(X[NEW], previous=decided) != decided) < 0.02
    with pytest.raises(ValueError, match="Give previous=, the decisions that these rows have now"):
        model.predict(X[NEW])
    nothing = np.full(len(decided), None)  # rows that nobody decided before get the plain decision
    retrain = clone(ESTIMATOR).fit(X[:1200], Y[:1200])
    np.testing.assert_array_equal(model.predict(X[NEW], previous=nothing), retrain.predict(X[NEW]))


def test_a_saved_model_decides_alike(base, held_out, tmp_path):
    held_out.save(tmp_path / "next.skops", dial=True)
    again = lowchurn.load(tmp_path / "next.skops")
    np.testing.assert_array_equal(again.predict_proba(X[NEW]), held_out.predict_proba(X[NEW]))
    decided = base.predict(X[NEW])
    np.testing.assert_array_equal(
        again.predict(X[NEW], previous=decided), held_out.predict(X[NEW], previous=decided)
    )  # fmt: skip
    for one in (again, held_out):
        calmer = one.dial(0.02)
        assert calmer.selection_.churn <= 0.02
    np.testing.assert_array_equal(again.dial(0.02).predict(X[NEW]), held_out.dial(0.02).predict(X[NEW]))


def test_a_sticky_model_is_a_base_like_any_other(held_out, tmp_path):
    following = LowChurnClassifier(clone(ESTIMATOR), base=held_out, max_churn=0.02, strategies="sticky", random_state=0)
    following.fit(X[TRAIN], Y[TRAIN], held_out=HELD_OUT)
    assert np.mean(following.predict(X[NEW]) != held_out.predict(X[NEW])) < 0.04
    following.save(tmp_path / "following.skops")
    again = lowchurn.load(tmp_path / "following.skops")
    np.testing.assert_array_equal(again.predict_proba(X[NEW]), following.predict_proba(X[NEW]))


def test_the_dial_on_the_traffic_of_the_day(base, on_traffic):
    today = X[NEW][:800]
    model = on_traffic.dial(0.03, traffic=today)
    assert model.selection_.churn == pytest.approx(np.mean(model.predict(today) != base.predict(today)))
    assert 0.02 < model.selection_.churn <= 0.03
    certified = on_traffic.dial(0.05, traffic=today, confidence=0.8)
    assert certified.certificate_.certified
    assert on_traffic.selection_.rows["traffic"] == 1500  # it stays as it is


def test_classes_that_are_gone_always_change(base):
    kept = Y != "maybe"
    rows, labels = X[TRAIN][kept[TRAIN]], Y[TRAIN][kept[TRAIN]]
    model = LowChurnClassifier(clone(ESTIMATOR), base=base, max_churn=0.9, strategies="sticky", random_state=0)
    model.fit(rows, labels)
    decided = model.predict(X[NEW])
    assert set(decided) == {"no", "yes"}
    calm = model.dial(0.2)
    before = base.predict(X[NEW])
    assert (calm.predict(X[NEW]) == before)[before != "maybe"].mean() > 0.9


def test_sticky_estimates_of_several_retrains(base):
    model = LowChurnClassifier(
        clone(ESTIMATOR), base=base, max_churn=0.05, random_state=0,
        strategies=[Sticky(members=1, margin=0.1), Sticky(margin=0.1, toward_base=0.4), Sticky(margin=0.1, members=2)],
    ).fit(X[TRAIN], Y[TRAIN], held_out=HELD_OUT)  # fmt: skip
    rows = {row.name: row for row in model.frontier_ if row.strategy == "sticky"}
    assert [row.status for row in rows.values()] == ["trained"] * 3
    one, mixed, two = rows.values()
    assert mixed.churn < one.churn
    assert two.churn == one.churn  # retrains of a convex model are all the same


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"traffic": X[:0]}, "minimum of 1 is required|at least one row"),
        ({"traffic": X[:9, :3]}, "3 features"),
        ({"traffic": pd.DataFrame(X[:9])}, "of the kind of X, got DataFrame beside ndarray"),
    ],
)
@pytest.mark.filterwarnings("ignore:X has feature names")
def test_bad_traffic(base, given, message):
    with pytest.raises(ValueError, match=message):
        fitted(base, **given)


def test_traffic_needs_a_base_to_ask(base):
    model = LowChurnClassifier(clone(ESTIMATOR), max_churn=0.05)
    with pytest.raises(ValueError, match="traffic needs a base that can be asked about it, got a table"):
        model.fit(X[TRAIN], Y[TRAIN], base_proba=base.predict_proba(X[TRAIN]), traffic=X[TRAFFIC])
    with pytest.raises(ValueError, match="got none"):
        LowChurnClassifier(clone(ESTIMATOR)).fit(X[TRAIN], Y[TRAIN], traffic=X[TRAFFIC])


@pytest.mark.parametrize(
    ("previous", "message"),
    [(["yes"] * 3, "one decision for each of 1500 rows"), (np.full(1500, 7), "previous holds none of the classes")],
)
def test_bad_previous(held_out, previous, message):
    with pytest.raises(ValueError, match=message):
        held_out.predict(X[NEW], previous=previous)


def test_without_labels_rows_that_tie_keep_their_decision():
    rows = np.r_[np.zeros(100), np.ones(900)][:, None]
    labels = np.r_[np.arange(100) % 2, np.ones(900, dtype=int)]
    constant = DummyClassifier(strategy="constant", constant=1).fit(rows, labels)
    model = LowChurnClassifier(DecisionTreeClassifier(), base=constant, max_churn=0.2, strategies="sticky")
    model.fit(rows, labels, traffic=rows)
    assert (model.predict(rows) == 1).all()  # the tree has 50 % for both classes in the first 100 rows


@pytest.mark.parametrize("strategies", ["sticky", "dial", None])
def test_no_churn_at_all_is_the_base(base, strategies, recwarn):
    model = LowChurnClassifier(clone(ESTIMATOR), base=base, max_churn=0, strategies=strategies, random_state=0)
    model.fit(X[TRAIN], Y[TRAIN], held_out=HELD_OUT)
    np.testing.assert_array_equal(model.predict(X[NEW]), base.predict(X[NEW]))
    np.testing.assert_array_equal(model.predict_proba(X[NEW]), base.predict_proba(X[NEW]))
    assert "This is the base unchanged: max_churn=0 allows no change." in str(model.selection_)
    assert not [str(one.message) for one in recwarn if "max_churn" in str(one.message)]


def test_a_table_of_decisions_can_be_frozen(base):
    model = LowChurnClassifier(clone(ESTIMATOR), max_churn=0, strategies="sticky", random_state=0)
    model.fit(X[TRAIN], Y[TRAIN], base_proba=base.predict(X[TRAIN]), held_out=HELD_OUT)
    decided = base.predict(X[NEW])
    np.testing.assert_array_equal(model.predict(X[NEW], previous=decided), decided)


# Decision thresholds


BINARY = (LABELS > 0).astype(int)
RARE = 0.8


@pytest.fixture(scope="module")
def thresholded():
    return FixedThresholdClassifier(LogisticRegression(), threshold=RARE).fit(X[OLD], BINARY[OLD])


@pytest.mark.parametrize("strategies", ["sticky", "dial", None])
@pytest.mark.parametrize("given", ["by the base", "by a parameter"])
def test_decisions_budgets_and_accuracy_are_those_of_the_threshold(thresholded, strategies, given):
    own = {"threshold": RARE} if given == "by a parameter" else {}
    base = thresholded
    if own:

        def base(rows):
            return thresholded.predict(rows)

    model = LowChurnClassifier(
        LogisticRegression(), base=base, max_churn=0.03, strategies=strategies, random_state=0, **own
    ).fit(X[TRAIN], BINARY[TRAIN], held_out=HELD_OUT)
    assert model.threshold_ == RARE
    decided, before = model.predict(X[HELD_OUT]), thresholded.predict(X[HELD_OUT])
    np.testing.assert_array_equal(decided, model.predict_proba(X[HELD_OUT])[:, 1] >= RARE)
    assert model.selection_.churn == pytest.approx(np.mean(decided != before))
    assert model.selection_.accuracy == pytest.approx(np.mean(decided == BINARY[HELD_OUT]))
    assert model.selection_.churn <= 0.03
    assert np.mean(model.predict(X[NEW]) != thresholded.predict(X[NEW])) < 0.05


def test_the_margin_is_on_the_expected_gain(thresholded):
    model = LowChurnClassifier(LogisticRegression(), base=thresholded, max_churn=0.03, strategies="sticky")
    model.fit(X[TRAIN], BINARY[TRAIN], held_out=HELD_OUT)
    p = LogisticRegression().fit(X[:1200], BINARY[:1200]).predict_proba(X[NEW])[:, 1]
    margin, before = margin_of(model), thresholded.predict(X[NEW])
    expected = np.where(before == 1, p >= RARE - margin, p > RARE + margin)
    np.testing.assert_array_equal(model.predict(X[NEW]), expected)


@pytest.mark.parametrize("strategies", ["sticky", "dial", None])
def test_a_saved_threshold(thresholded, strategies, tmp_path):
    model = LowChurnClassifier(LogisticRegression(), base=thresholded, max_churn=0.05, strategies=strategies)
    model.fit(X[TRAIN], BINARY[TRAIN], held_out=HELD_OUT)
    model.save(tmp_path / "model.skops")
    again = lowchurn.load(tmp_path / "model.skops")
    assert again.threshold_ == RARE
    np.testing.assert_array_equal(again.predict(X[NEW]), model.predict(X[NEW]))
    following = LowChurnClassifier(LogisticRegression(), base=again, max_churn=0.02, strategies="sticky")
    following.fit(X[TRAIN], BINARY[TRAIN], held_out=HELD_OUT)
    assert following.threshold_ == RARE
    following.save(tmp_path / "following.skops")
    loaded = lowchurn.load(tmp_path / "following.skops")
    np.testing.assert_array_equal(loaded.predict(X[NEW]), following.predict(X[NEW]))


def test_a_plain_retrain_has_the_threshold_as_well():
    model = LowChurnClassifier(LogisticRegression(), threshold=0.1).fit(X[TRAIN], BINARY[TRAIN])
    np.testing.assert_array_equal(model.predict(X[NEW]), model.predict_proba(X[NEW])[:, 1] >= 0.1)


def test_a_tuned_threshold():
    base = TunedThresholdClassifierCV(LogisticRegression(), scoring="f1").fit(X[OLD], BINARY[OLD])
    model = LowChurnClassifier(LogisticRegression(), base=base, max_churn=0.05, strategies="sticky")
    assert model.fit(X[TRAIN], BINARY[TRAIN], held_out=HELD_OUT).threshold_ == base.best_threshold_


def test_bad_thresholds(base):
    with pytest.raises(ValueError, match="threshold decides between two classes, got 3 classes"):
        LowChurnClassifier(clone(ESTIMATOR), base=base, threshold=0.3).fit(X[TRAIN], Y[TRAIN])
    with pytest.raises(ValueError, match="threshold must be in"):
        LowChurnClassifier(LogisticRegression(), threshold=1.5).fit(X[TRAIN], BINARY[TRAIN])


# What is shown of it


def test_candidates_have_the_paired_change_against_the_base_and_the_models_that_answer(base, held_out):
    rows = len(HELD_OUT)
    for row in held_out.frontier_.records():
        assert row["accuracy_change"] == pytest.approx(row["fixed"] - row["broken"])
        change = paired_difference(row["fixed"], row["broken"], rows, effective=rows)
        assert row["accuracy_change_interval"] == pytest.approx((change.low, change.high))
    assert {row.models for row in held_out.frontier_ if row.strategy == "sticky" and row.dial < 1} == {2}
    assert held_out.frontier_[-1].models == 1  # a margin of 1 is the base alone
    assert held_out.frontier_[0].models == 1
    decided = held_out.predict(X[HELD_OUT])
    won = np.mean(decided == Y[HELD_OUT]) - np.mean(base.predict(X[HELD_OUT]) == Y[HELD_OUT])
    assert held_out.selection_.accuracy_change == pytest.approx(won)


def test_the_change_is_measured_on_the_rows_with_labels_and_churn_on_traffic(base):
    row = fitted(base, traffic=X[TRAFFIC], held_out=HELD_OUT).frontier_[0]
    change = paired_difference(row.fixed, row.broken, len(HELD_OUT))
    assert row.rows == 1500
    assert row.accuracy_change_interval == pytest.approx((change.low, change.high))


def test_what_the_selection_gives_in_words(held_out, on_traffic):
    chosen = held_out.selection_
    words = str(chosen)
    assert chosen.budget_left == pytest.approx(0.05 - chosen.churn)
    assert f"{100 * (0.05 - chosen.churn) / 0.05:.0f} % of the budget is left" in words
    assert chosen.accuracy_cost == pytest.approx(held_out.frontier_[0].accuracy - chosen.accuracy)
    assert f"a plain retrain {100 * chosen.plain_accuracy:.3g} % with churn {100 * chosen.plain_churn:.3g} %" in words
    assert "2 models answer every row." in words
    assert words == " ".join(chosen.sentences)
    churn = 100 * on_traffic.selection_.plain_churn
    assert f"A plain retrain has a churn of {churn:.3g} %." in str(on_traffic.selection_)


def test_a_dial_on_other_traffic_has_a_frontier_of_its_own(base, on_traffic):
    today = X[NEW]
    dialled = on_traffic.dial(0.1, traffic=today)
    plain = clone(ESTIMATOR).fit(X[TRAIN], Y[TRAIN])
    churn = np.mean(plain.predict(today) != base.predict(today))
    assert dialled.frontier_[0].churn == dialled.selection_.plain_churn == pytest.approx(churn)
    assert [row.name for row in dialled.frontier_] == [row.name for row in on_traffic.frontier_]
    assert on_traffic.frontier_[0].churn != dialled.frontier_[0].churn
    assert on_traffic.dial(0.1).frontier_ is on_traffic.frontier_
