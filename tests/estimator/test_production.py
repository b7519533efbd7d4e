"""What is trained, what is asked, and what is told: the findings of a review and of a trial, one test each."""

import time
import warnings

import numpy as np
import pandas as pd
import pytest
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from xgboost import XGBClassifier

import lowchurn
from lowchurn import LowChurnClassifier, metrics
from lowchurn._checks import check_proba
from lowchurn.estimator._measuring import clearly_worse
from lowchurn.estimator._production import Base
from lowchurn.learners._sklearn import RowsLearner
from lowchurn.strategies import ColdStart, Distill, WarmStart

X, Y = make_classification(600, 6, n_informative=4, flip_y=0.1, random_state=5)
HOLES = np.where(np.random.default_rng(0).random(X.shape) < 0.05, np.nan, X)
HELD = np.arange(400, 600)
SEED = {"random_state": 0}
CAT = {"iterations": 8, "depth": 3, "thread_count": 1, "verbose": False, "allow_writing_files": False}
LOGISTIC = make_pipeline(StandardScaler(), LogisticRegression())
IMPUTING = make_pipeline(SimpleImputer(), LogisticRegression())


def quiet_fit(model, X=X, y=Y, **at_fit):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y, held_out=HELD, **at_fit)


def low(*arguments, **options):
    return LowChurnClassifier(*arguments, **{"max_churn": 0.1, **SEED, **options})


# What is trained


def test_catboost_is_trained_again_as_catboost_with_its_categories(tmp_path):
    table = pd.DataFrame(X[:, :3], columns=list("abc")).assign(kind=np.where(X[:, 3] > 0, "hot", "cold"))
    base = CatBoostClassifier(**CAT).fit(table[:200], Y[:200], cat_features=["kind"])
    model = quiet_fit(low(base=base), table)
    assert isinstance(model.estimator_, CatBoostClassifier)
    assert model.selection_.accuracy > 0.7
    model.save(tmp_path / "next.skops")
    assert (lowchurn.load(tmp_path / "next.skops").predict(table) == model.predict(table)).all()
    clone(low(CatBoostClassifier(**CAT, cat_features=["kind"]), base=base))
    piped = make_pipeline(SimpleImputer(), CatBoostClassifier(**CAT)).fit(X[:200], Y[:200])
    assert isinstance(quiet_fit(low(base=piped)).estimator_[-1], CatBoostClassifier)


@pytest.mark.parametrize("form", ["function", "table", "labels", "onnx"])
def test_a_base_that_does_not_tell_its_kind_asks_for_an_estimator(form, tmp_path):
    naive = GaussianNB().fit(X[:200], Y[:200])
    base, at_fit = naive.predict_proba, {}
    if form == "onnx":
        from skl2onnx import to_onnx

        base = tmp_path / "production.onnx"
        base.write_bytes(to_onnx(naive, X[:1].astype(np.float32)).SerializeToString())
    elif form != "function":
        base, at_fit = None, {"base_proba": naive.predict_proba(X) if form == "table" else naive.predict(X)}
    with pytest.raises(ValueError, match="Give estimator=, the classifier to train"):
        low(base=base).fit(X, Y, **at_fit)
    assert quiet_fit(low(LOGISTIC, base=base), **at_fit).selection_.trainings


@pytest.mark.parametrize(
    ("base", "kind"),
    [
        (FrozenEstimator(GaussianNB().fit(X, Y)), GaussianNB),
        (FixedThresholdClassifier(GaussianNB(), threshold=0.3).fit(X, Y), GaussianNB),
        (CalibratedClassifierCV(FrozenEstimator(GaussianNB().fit(X, Y))).fit(X, Y), CalibratedClassifierCV),
        (low(GaussianNB(), base=GaussianNB().fit(X[:200], Y[:200]), max_churn=0.5).fit(X, Y), GaussianNB),
        (clone(LOGISTIC).fit(X, Y), Pipeline),
        (StackingClassifier([("nb", GaussianNB())], cv=2).fit(X, Y), StackingClassifier),
    ],
    ids=["frozen", "threshold", "calibrated", "low-churn", "pipeline", "stack"],
)
def test_what_is_trained_is_of_the_kind_of_the_base(base, kind):
    model = quiet_fit(low(base=base))
    assert isinstance(model.estimator_, kind)
    if kind is CalibratedClassifierCV:
        assert isinstance(model.estimator_.estimator, GaussianNB)  # a frozen part is trained again as well


def test_an_estimator_without_probabilities_is_refused_with_a_remedy():
    with pytest.raises(ValueError, match=r"LinearSVC does not. Give estimator=CalibratedClassifierCV\(LinearSVC\(\)\)"):
        low(LinearSVC(), base=GaussianNB().fit(X, Y)).fit(X, Y)
    with pytest.raises(ValueError, match="must give probabilities"):
        low(base=LinearSVC().fit(X, Y)).fit(X, Y)
    decided = LinearSVC().fit(X[:200], Y[:200])
    model = quiet_fit(low(CalibratedClassifierCV(LinearSVC(), cv=2), base=decided))
    assert model.selection_.churn == np.mean(model.predict(X[HELD]) != decided.predict(X[HELD]))


def test_a_base_with_a_threshold_is_saved_with_it_or_not_at_all(tmp_path):
    trees = FixedThresholdClassifier(LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1), threshold=0.3).fit(X, Y)
    linear = FixedThresholdClassifier(LogisticRegression(), threshold=0.3).fit(X, Y)
    kept, other = (quiet_fit(low(LogisticRegression(C=1e-6), base=b, max_churn=1e-9)) for b in (linear, trees))
    kept.save(tmp_path / "kept.skops")
    assert (lowchurn.load(tmp_path / "kept.skops").predict(X) == linear.predict(X)).all()
    with pytest.raises(ValueError, match="FixedThresholdClassifier of a LGBMClassifier cannot be written"):
        other.save(tmp_path / "other.skops")


# Missing values


@pytest.mark.parametrize(
    "base",
    [
        IMPUTING,
        CalibratedClassifierCV(IMPUTING, cv=2),
        VotingClassifier([("a", IMPUTING), ("b", make_pipeline(SimpleImputer(), GaussianNB()))], voting="soft"),
        HistGradientBoostingClassifier(max_iter=5),
        make_pipeline(StandardScaler(), HistGradientBoostingClassifier(max_iter=5)),
    ],
    ids=["pipeline", "calibrated", "voting", "trees", "scaled-trees"],
)
@pytest.mark.parametrize("estimator", [None, "same"])
def test_missing_values_are_judged_by_what_is_trained(base, estimator, tmp_path):
    fitted = clone(base).fit(HOLES[:200], Y[:200])
    model = quiet_fit(low(None if estimator is None else base, base=fitted, max_churn=0.4), HOLES)
    assert model.predict(HOLES).shape == (600,)
    assert model.selection_.churn == np.mean(model.predict(HOLES[HELD]) != fitted.predict(HOLES[HELD]))


def test_missing_values_with_a_base_in_a_file(tmp_path):
    data = RowsLearner.save(clone(IMPUTING).fit(HOLES[:200], Y[:200]))["model.skops"]
    (tmp_path / "production.skops").write_bytes(data)
    assert quiet_fit(low(base=tmp_path / "production.skops"), HOLES).predict(HOLES[:1]).shape == (1,)


def test_missing_values_that_nothing_takes_are_refused():
    base = clone(IMPUTING).fit(HOLES[:200], Y[:200])
    with pytest.raises(ValueError, match="NaN"):
        low(LogisticRegression(), base=base).fit(HOLES, Y)
    with pytest.raises(ValueError, match="NaN"):
        low(CalibratedClassifierCV(LogisticRegression()), base=base).fit(HOLES, Y)


# What is asked


def test_a_base_stopped_early_is_asked_with_its_best_number_of_rounds():
    base = XGBClassifier(n_estimators=80, learning_rate=0.9, n_jobs=1, early_stopping_rounds=3, random_state=0)
    base.fit(X[:200], Y[:200], eval_set=[(X[200:400], Y[200:400])], verbose=False)
    assert base.best_iteration < 70
    np.testing.assert_allclose(Base(base, np.array([0, 1])).proba(X), base.predict_proba(X), atol=1e-6)
    whole = base.get_booster().inplace_predict(X, iteration_range=(0, 0))
    assert np.abs(whole - base.predict_proba(X)[:, 1]).max() > 0.01  # what was asked once


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "model",
    [
        LGBMClassifier(n_estimators=8, n_jobs=1, verbose=-1),
        XGBClassifier(n_estimators=8, n_jobs=1),
        CatBoostClassifier(**CAT),
        make_pipeline(SimpleImputer(), XGBClassifier(n_estimators=8, n_jobs=1)),
        HistGradientBoostingClassifier(max_iter=8),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_saved_base_answers_to_the_last_bit_as_in_production(model, classes, tmp_path):
    y = np.where(X[:, 0] > 1, classes - 1, Y)
    base = model.fit(X[:200], y[:200])
    served = quiet_fit(low(base=base, strategies="dial", max_churn=0.02), y=y)
    served.save(tmp_path / "next.skops", dial=True)
    again = lowchurn.load(tmp_path / "next.skops")
    for one, other in ((served, again), (served.dial(0.001), again.dial(0.001)), (served.dial(0.2), again.dial(0.2))):
        assert (one.predict_proba(X) == other.predict_proba(X)).all()
        assert (one.predict(X) == other.predict(X)).all()


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("m.txt", LGBMClassifier(n_estimators=8, n_jobs=1, verbose=-1)),
        ("m.UBJ", XGBClassifier(n_estimators=8, n_jobs=1)),
    ],
)
def test_a_native_file_is_a_part_of_what_is_saved(name, model, tmp_path):
    model.fit(X[:100], Y[:100])
    native = model.booster_ if name == "m.txt" else model
    native.save_model(tmp_path / name.lower())
    (tmp_path / name.lower()).rename(tmp_path / name)
    served = quiet_fit(low(LOGISTIC, base=tmp_path / name, max_churn=0.001))
    assert "base" in str(served.selection_)
    served.save(tmp_path / "next.skops")
    assert (lowchurn.load(tmp_path / "next.skops").predict_proba(X) == served.predict_proba(X)).all()


def test_spaces_that_lightgbm_writes_as_underscores():
    rows = pd.DataFrame(X[:, :2], columns=["hours per week", "zip_code"])
    base = LGBMClassifier(n_estimators=8, n_jobs=1, verbose=-1).fit(rows[:200], Y[:200])
    model = quiet_fit(low(base=base, max_churn=0.3), X=rows.assign(id=1.0))
    was, now = base.predict(rows)[HELD], model.predict(rows.assign(id=1.0))[HELD]
    assert model.selection_.churn == np.mean(was != now)


def test_rounding_is_clipped_and_more_is_refused():
    rounded = np.array([[-1.19e-07, 1.0000001], [0.3, 0.7000004]])
    asked = Base(lambda rows: rounded, np.array([0, 1])).proba(np.zeros((2, 3)))
    assert (asked >= 0).all()
    np.testing.assert_allclose(asked.sum(axis=1), 1, atol=1e-15)
    assert (check_proba("here", "p", np.array([[-1e-7, 1.0]])) >= 0).all()
    for off in ([[-1e-5, 1.00001]], [[0.2, 0.7]]):
        with pytest.raises(ValueError, match="negative|sum to 1"):
            Base(lambda rows, off=off: np.array(off), np.array([0, 1])).proba(np.zeros((1, 3)))


def test_one_column_of_probabilities_is_not_taken_for_labels():
    base = RandomForestClassifier(5, n_jobs=1, **SEED).fit(X[:200], Y[:200])  # many are exactly 0 or 1
    with pytest.raises(ValueError, match=r"numpy.stack\(\[1 - p, p\], axis=1\)"):
        low(LOGISTIC, base=lambda rows: base.predict_proba(rows)[:, 1]).fit(X, Y)


def test_answers_that_cannot_be_meant_are_refused():
    short = GaussianNB().fit(X, Y)
    with pytest.raises(ValueError, match="got 599 answers for 600 rows"):
        Base(lambda rows: short.predict(rows)[:-1], np.array([0, 1])).decisions(X)
    with pytest.raises(ValueError, match=r"got 1 missing decision"):
        low(LOGISTIC).fit(X, Y, base_proba=np.where(np.arange(600) == 3, np.nan, Y))
    with pytest.raises(ValueError, match="must name every class once"):
        low(LOGISTIC).fit(X, Y, base_proba=np.full((600, 2), 0.5), base_classes=[1, 1])
    with pytest.raises(ValueError, match="has none of the classes"):
        low(LOGISTIC).fit(X, Y, base_proba=np.where(Y == 1, "yes", "no"))


def test_a_base_without_names_is_given_them_at_fit():
    words = np.array(["yes", "no"])[Y]  # sorted, "no" is first; this base has "yes" first
    naive = GaussianNB().fit(X[:200], Y[:200])
    model = quiet_fit(low(LOGISTIC, base=naive.predict_proba), y=words, base_classes=["yes", "no"])
    decided = np.array(["yes", "no"])[naive.predict(X[HELD])]
    assert model.selection_.churn == np.mean(model.predict(X[HELD]) != decided)


# What is told


class Diverging(LogisticRegression):
    """A learner whose continued training goes astray."""

    def fit(self, X, y, sample_weight=None):
        super().fit(X, y, sample_weight)
        if self.warm_start:
            self.coef_ = -self.coef_
        return self


def test_continued_training_that_diverges_is_not_served_and_said():
    base = Diverging(C=0.01).fit(X[:60], Y[:60])
    model = quiet_fit(low(base=base, max_churn=0.02))
    rows = [row for row in model.frontier_ if "warm" in row.setting]
    assert rows
    assert all(row.status == "failed" and row.reason.startswith("Diverged: accuracy") for row in rows)
    assert any("failed and is not served: Diverged" in note for note in model.selection_.notes)
    assert any("cold" in row.setting or row.setting.startswith("lam") for row in model.frontier_ if row not in rows)
    assert model.selection_.accuracy > 0.5


def test_the_base_unchanged_is_said():
    base = RandomForestClassifier(5, n_jobs=1, **SEED).fit(X[:200], Y[:200])
    model = low(GaussianNB(), base=base, max_churn=0.001, strategies=[ColdStart()])
    with pytest.warns(UserWarning, match="no candidate keeps"):
        model.fit(X, Y, held_out=HELD)
    if model.selection_.served == {"base": 1.0}:
        assert model.selection_.notes[0].startswith("This is the base unchanged: no candidate keeps max_churn=0.001")
        assert "the base unchanged" in str(model.selection_)
    kept = quiet_fit(low(GaussianNB(), base=base, max_churn=0.001, strategies="dial"))
    assert kept.selection_.churn == 0
    assert kept.selection_.notes[0].startswith(("This is the base unchanged", "It decides every held-out row"))


@pytest.mark.parametrize("form", ["probabilities", "decisions"])
def test_a_table_of_answers_is_served_as_near_as_can_be(form):
    base = RandomForestClassifier(5, n_jobs=1, **SEED).fit(X[:200], Y[:200])
    given = base.predict_proba(X) if form == "probabilities" else base.predict(X)
    model = low(LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1), max_churn=0.001)
    with pytest.warns(UserWarning, match=r"base= the model itself, a function or a file\).* or set max_churn to 0"):
        model.fit(X, Y, held_out=HELD, base_proba=given)
    trained = [row for row in model.frontier_ if row.status == "trained"]
    assert model.selection_.churn == min(row.churn for row in trained)
    assert not model.selection_.feasible
    named = np.ceil(1000 * model.selection_.churn) / 1000
    enough = low(LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1), max_churn=named)
    assert quiet_fit(enough, base_proba=given).selection_.feasible


def test_a_table_of_answers_and_a_mixture_that_cannot_be_had():
    given = GaussianNB().fit(X[:200], Y[:200]).predict_proba(X)
    model = low(LOGISTIC, max_churn=1e-6, churn="soft", select="mixture")
    with pytest.warns(UserWarning, match="no candidate keeps max_churn=1e-06"):
        model.fit(X, Y, held_out=HELD, base_proba=given)
    assert len(model.selection_.served) == 1
    assert not model.selection_.feasible


def test_a_base_that_gets_other_columns_is_noticed():
    raw = X + 20
    base = HistGradientBoostingClassifier(max_iter=20).fit(raw[:200], Y[:200])
    scaled = make_pipeline(StandardScaler(), LowChurnClassifier(LogisticRegression(), base=base, max_churn=0.1, **SEED))
    with pytest.warns(UserWarning, match=r"the base is right in \d.*a plain retrain in .*Likely causes: other columns"):
        scaled.fit(raw, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LowChurnClassifier(LOGISTIC, base=clone(LOGISTIC).fit(X[:200], Y[:200]), max_churn=0.1, **SEED).fit(
            X, Y, held_out=HELD
        )


def test_clearly_worse_is_a_paired_test_with_a_margin():
    ones = np.ones(100)
    other = np.ones(100, dtype=bool)

    def right(wrong):
        return np.arange(100) >= wrong

    assert not clearly_worse(right(10), other, ones)  # ten points
    assert clearly_worse(right(11), other, ones)  # 11 > 3 * sqrt(11)
    assert not clearly_worse(right(5)[:20], other[:20], ones[:20])  # 25 points, but 5 < 3 * sqrt(5)
    assert not clearly_worse(other, right(50), ones)


def test_a_base_with_a_threshold_of_its_own_is_noted():
    base = FixedThresholdClassifier(LogisticRegression(), threshold=0.2).fit(X[:200], Y[:200])
    model = quiet_fit(low(base=base))
    assert model.threshold_ == 0.2  # candidates decide by it as well
    assert not any("largest probability" in note for note in model.selection_.notes)
    other = FixedThresholdClassifier(LogisticRegression(), threshold=0.2, pos_label=np.unique(Y)[0])
    other.fit(X[:200], Y[:200])
    model = quiet_fit(low(base=other))
    assert model.threshold_ is None
    assert any("does not decide for its largest probability" in note for note in model.selection_.notes)
    plain = LogisticRegression().fit(X[:200], Y[:200])
    assert not any("largest probability" in note for note in quiet_fit(low(base=plain)).selection_.notes)


@pytest.mark.parametrize(("value", "hint"), [(2, "did you mean 0.02"), (1.5, "did you mean 0.015")])
def test_a_budget_in_percent_is_recognised(value, hint):
    with pytest.raises(ValueError, match=rf"max_churn must be in \[0, 1\), got {value}.*{hint}"):
        low(base=GaussianNB().fit(X, Y), max_churn=value).fit(X, Y)
    for bad in ("2", float("nan"), True, [2]):
        with pytest.raises(ValueError, match="max_churn must be in"):
            low(base=GaussianNB().fit(X, Y), max_churn=bad).fit(X, Y)


def test_distill_by_name_is_the_distillation_of_the_default():
    base = clone(LOGISTIC).fit(X[:100], Y[:100])
    named, default = (quiet_fit(low(base=base, max_churn=0.03, strategies=s)) for s in ("distill", None))
    found = [[r.name for r in model.frontier_ if r.strategy == "distill"] for model in (named, default)]
    assert found[0][: len(found[1])] == found[1]
    assert len(quiet_fit(low(base=base, strategies=[Distill, WarmStart()])).frontier_) > 1


def test_labels_are_compared_exactly_in_the_metrics_too():
    large = 2**60 + np.arange(3)
    assert metrics.churn(large, (large + 1).astype(object)) == 1
    assert metrics.churn(large, np.float64(large)) == 2 / 3  # float64 holds the first of them alone
    assert metrics.churn(pd.Series(large, dtype="Int64"), large + 1) == 1
    assert metrics.churn([2**63, -1], [2**63 + 1, -1]) == 0.5
    days = np.array(["2024-01-01", "2024-01-02"], dtype="M8[D]")
    assert metrics.churn(days, days.astype("M8[ns]")[::-1]) == 1
    assert metrics.accuracy(np.float32([1, 2]), np.float64([1, 2])) == 1
    with pytest.raises(ValueError, match="one precision, got float32 and float64"):
        metrics.churn(np.float32([0.1]), np.float64([0.1]))
    with pytest.raises(ValueError, match="missing"):
        metrics.churn(np.array(["2024-01-01", "NaT"], dtype="M8[D]"), days)
    with pytest.raises(ValueError, match="mixes text and other"):
        metrics.churn(["a", 1], ["a", "1"])


@pytest.mark.stress
@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        LOGISTIC,
        HistGradientBoostingClassifier(max_iter=20),
        RandomForestClassifier(20, n_jobs=1),
        LGBMClassifier(n_estimators=20, n_jobs=1, verbose=-1),
        XGBClassifier(n_estimators=20, n_jobs=1),
        CatBoostClassifier(**CAT),
    ],
    ids=lambda model: type(model).__name__,
)
def test_one_row_takes_little_longer_than_the_model_itself(model):
    inner = clone(model).fit(X, Y)
    outer = quiet_fit(low(model, base=inner, max_churn=0.9, strategies=[ColdStart()]))
    row = X[:1]

    def seconds(ask):
        begin = time.perf_counter()
        ask(row)
        return time.perf_counter() - begin

    times = np.array([(seconds(inner.predict_proba), seconds(outer.predict_proba)) for _ in range(300)])
    plain, wrapped = np.median(times[50:], axis=0)  # side by side: other work on the machine slows both
    assert wrapped <= 1.5 * plain + 2e-5
