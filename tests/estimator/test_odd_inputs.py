"""Odd but valid inputs work, and malformed ones are refused in one line with a remedy."""

import warnings

import numpy as np
import pandas as pd
import pytest
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from sklearn.datasets import make_classification
from sklearn.ensemble import StackingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC

from lowchurn import LowChurnClassifier
from lowchurn.estimator._labels import positions, training_labels
from lowchurn.estimator._production import as_spelled

X, Y = make_classification(240, 5, n_informative=4, n_redundant=0, n_classes=3, flip_y=0.15, random_state=3)
BASE = GaussianNB().fit(X[:100], Y[:100])
PROBA = BASE.predict_proba(X)
HELD = np.arange(180, 240)
MASK = np.isin(np.arange(240), HELD)


def fit(model=BASE, estimator=None, y=Y, max_churn=0.2, **given):
    options = {"max_churn": max_churn, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LowChurnClassifier(estimator, base=model, **options).fit(X, y, **{"held_out": HELD} | given)


def churn(model, old):
    return np.mean([a != b for a, b in zip(model.predict(X[HELD]).tolist(), list(old), strict=True)])


MASKS = {
    "positions": HELD.tolist(),
    "booleans": MASK.tolist(),
    "zeros and ones": MASK.astype(int),
    "objects": MASK.astype(object),
    "nullable": pd.Series(MASK, dtype="boolean"),
    "column": pd.DataFrame({"new": MASK}),
}


@pytest.mark.parametrize("rows", MASKS.values(), ids=MASKS)
def test_rows_named_in_any_form_are_the_same_rows(rows):
    assert fit(held_out=rows).selection_ == fit(held_out=HELD).selection_


@pytest.mark.parametrize("rows", [MASK.astype(float), [-1], [240], MASK[:9], "new", 3, [], {1, 2}])
def test_other_rows_are_refused_with_their_type(rows):
    with pytest.raises(ValueError, match=r"held_out must be a mask of 240 rows \(True or False\) or positions .* got"):
        fit(held_out=rows)


@pytest.mark.parametrize("size", [1e-300, 1e-160, 5e-324, 1e160, 1e300])
def test_extreme_weights_are_refused_with_the_remedy(size):
    with pytest.raises(ValueError, match="sample_weight must be 0 or from 1e-100 to 1e.100, got .* by their mean"):
        fit(sample_weight=np.full(240, size))


@pytest.mark.parametrize("size", [1e-20, 1e20])
def test_large_and_small_weights_of_all_rows_change_no_measured_number(size):
    weights = np.random.default_rng(0).uniform(0.5, 1.5, 240) * size
    model = fit(sample_weight=weights)
    changed = model.predict(X[HELD]) != BASE.predict(X[HELD])
    assert model.selection_.churn == pytest.approx(np.average(changed, weights=weights[HELD]), abs=1e-12)


TABLES = {
    "objects": lambda: PROBA.astype(object),
    "object frame": lambda: pd.DataFrame(PROBA).astype(object),
    "nullable frame": lambda: pd.DataFrame(PROBA).convert_dtypes(),
}


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
def test_tables_of_numbers_in_any_dtype(make):
    model = fit(None, LogisticRegression(), base_proba=make())
    assert model.selection_.churn == pytest.approx(churn(model, PROBA[HELD].argmax(axis=1)))


KEYS = {
    "large": [2**63 + i if i else 1 for i in range(240)],
    "mixed": ["first", *range(1, 240)],
    "tuples": [("a", i) for i in range(240)],
    "numpy": list(np.arange(240)),
}


@pytest.mark.parametrize("ids", KEYS.values(), ids=KEYS)
def test_ids_keep_their_type(ids):
    table = {key: PROBA[i] for i, key in reversed(list(enumerate(ids)))}
    model = fit(None, LogisticRegression(), base_proba=table, ids=ids)
    assert model.selection_.churn == pytest.approx(churn(model, PROBA[HELD].argmax(axis=1)))


def test_a_series_of_decisions_is_keyed_by_its_index():
    decided = pd.Series(PROBA.argmax(axis=1), index=[f"id{i}" for i in range(240)])
    model = fit(None, LogisticRegression(), base_proba=decided[::-1], ids=decided.index)
    assert model.selection_.churn == pytest.approx(churn(model, decided.to_numpy()[HELD]))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda rows: None, "must give labels or probabilities .* got NoneType"),
        (lambda rows: (row for row in rows), "must give labels or probabilities .* got generator"),
        (lambda rows: [{0: 1.0} for _ in rows], "one label or one row of numbers per row, got a dict"),
        (lambda rows: [[1, 0, 0]] * (len(rows) - 1) + [[1, 0]], "one probability per class in every row"),
    ],
)
def test_answers_of_a_base_that_are_no_table_are_refused(answer, words):
    with pytest.raises(ValueError, match=f"LowChurnClassifier: the base .*{words}"):
        fit(answer, LogisticRegression())


def test_what_a_base_raises_is_one_line_without_control_characters():
    def fail(rows):
        raise RuntimeError("first\nsecond \x1b[31m")

    with pytest.raises(ValueError, match="the base cannot predict these rows") as caught:
        fit(fail, LogisticRegression())
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("classes", [3, "abc", {0, 1, 2}, {0: "a"}])
def test_base_classes_must_be_a_list(classes):
    with pytest.raises(ValueError, match="the classes of the base must be a list of 3 labels"):
        fit(BASE.predict_proba, LogisticRegression(), base_classes=classes)


ONE_PER_CLASS = {
    "lightgbm": lambda: LGBMClassifier(n_estimators=5, objective="multiclassova", n_jobs=1, verbose=-1),
    "catboost": lambda: CatBoostClassifier(
        5, loss_function="MultiClassOneVsAll", verbose=False, thread_count=1, allow_writing_files=False
    ),
}


@pytest.mark.parametrize("make", ONE_PER_CLASS.values(), ids=ONE_PER_CLASS)
def test_a_base_of_one_model_per_class_decides_as_in_production(make, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # CatBoost writes a folder
    base = make().fit(X[:100], Y[:100])
    assert np.abs(base.predict_proba(X).sum(axis=1) - 1).max() > 0.01
    with pytest.warns(UserWarning, match="the base do not sum to 1.*Each row is divided by its sum"):
        model = LowChurnClassifier(base=base, max_churn=0.2, random_state=0).fit(X, Y, held_out=HELD)
    assert model.selection_.churn == pytest.approx(churn(model, np.ravel(base.predict(X[HELD]))))


def test_stacking_is_known_to_give_probabilities_before_it_is_fitted():
    parts = [("a", GaussianNB()), ("b", LogisticRegression())]
    model = fit(StackingClassifier(parts, cv=2).fit(X[:100], Y[:100]))
    assert model.predict_proba(X).shape == (240, 3)
    with pytest.raises(ValueError, match="StackingClassifier does not"):
        fit(BASE, StackingClassifier(parts, LinearSVC()))


@pytest.mark.filterwarnings("ignore")
def test_a_retrain_without_finite_probabilities_is_bad_input():
    words = "a plain retrain by GaussianNB gives probabilities that are not finite"
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=words):
        LowChurnClassifier(base=BASE, max_churn=0.1).fit(np.ones_like(X), Y)


@pytest.mark.filterwarnings("ignore:Determining the column names")
@pytest.mark.parametrize("made", [lambda pl: pl.DataFrame(X).lazy(), lambda pl: pl.DataFrame(X).to_arrow()])
def test_tables_that_must_be_converted_are_named(made):
    table = made(pytest.importorskip("polars"))
    with pytest.raises(ValueError, match="X must be an array, .* got (LazyFrame|Table)"):
        LowChurnClassifier(base=BASE, max_churn=0.1).fit(table, Y)


def test_labels_of_pyarrow_and_of_numpys_strings():
    pa = pytest.importorskip("pyarrow")
    names = np.array(["a", "b", "c"])[Y]
    base = GaussianNB().fit(X[:100], names[:100])
    wanted = fit(base, y=names).predict(X)
    assert (fit(base, y=pa.array(names.tolist())).predict(X) == wanted).all()
    assert (fit(base, y=names.astype(np.dtypes.StringDType())).predict(X) == wanted).all()


@pytest.mark.parametrize("wrong", [3, object()])
def test_strategies_must_be_a_list(wrong):
    with pytest.raises(ValueError, match="strategies must be a name, a strategy or a list of them"):
        LowChurnClassifier(base=BASE, max_churn=0.1, strategies=wrong).fit(X, Y)


def test_a_class_is_no_estimator():
    with pytest.raises(ValueError, match="estimator must be a classifier with fit, got the class Log"):
        fit(BASE, LogisticRegression)


def test_percentages_of_numpy_are_recognised():
    with pytest.raises(ValueError, match=r"did you mean 0\.02"):
        LowChurnClassifier(base=BASE, max_churn=np.int64(2)).fit(X, Y)


@pytest.mark.parametrize("select", ["single", "mixture"])
@pytest.mark.parametrize("budget", [1e-300, 1e-12, 1e-9, 1e300])
def test_soft_budgets_of_any_size(select, budget):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LowChurnClassifier(base=BASE, max_churn=budget, churn="soft", select=select).fit(X, Y, held_out=HELD)
    assert model.selection_.churn <= max(budget, 1e-8)
    assert np.isfinite(model.predict_proba(X)).all()


def test_the_reason_of_a_failed_candidate_is_one_line():
    forest = LGBMClassifier(n_estimators=3, boosting_type="rf", bagging_freq=1, bagging_fraction=0.6, verbose=-1)
    model = fit(forest.fit(X[:100], Y[:100]), max_churn=0.01)  # LightGBM's error has two lines
    assert all(row.reason.isprintable() for row in model.frontier_)
    assert str(model.selection_).isprintable()


def test_labels_are_matched_by_what_they_are():
    assert positions([1, 0, "1"], np.array([False, True])).tolist() == [1, 0, -1]
    assert positions([2**60 + 1], np.array([2**60, 2**60 + 1])).tolist() == [1]  # never through float64
    assert training_labels(np.array(["no", "yes"])).tolist() == ["no", "yes"]
    assert training_labels(np.array([b"no", b"yes"])).tolist() == [0, 1]  # learners refuse bytes


def test_names_of_columns_are_spelled_as_the_table_has_them():
    columns = ["zip_code", "zip code", "hours per week"]
    assert as_spelled(["hours_per_week", "zip_code"], columns) == ["hours per week", "zip_code"]
