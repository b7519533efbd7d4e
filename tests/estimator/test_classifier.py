"""LowChurnClassifier: selection, bases of every form, bad input, saving."""

import dataclasses
import functools
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from lightgbm import LGBMClassifier
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

import lowchurn
from lowchurn import LowChurnClassifier
from lowchurn.estimator import Candidate
from lowchurn.estimator import _archive as persistence
from lowchurn.estimator._measuring import Ruler
from lowchurn.scoring import get_score
from lowchurn.strategies import Anchor, ColdStart, Distill, Mixup, WarmStart

X, Y = make_classification(3000, 8, n_informative=4, n_classes=3, flip_y=0.1, class_sep=0.7, random_state=0)
LABELS = np.array(["cat", "dog", "eel"])[Y]
OLD, ROWS, TEST = slice(0, 300), slice(0, 1500), slice(1500, None)
NEW = np.arange(1500) >= 300
LOGISTIC = make_pipeline(StandardScaler(), LogisticRegression(C=100))
BASE = clone(LOGISTIC).fit(X[OLD], LABELS[OLD])


def fit(*arguments, **options):
    at_fit = {
        k: options.pop(k) for k in ("base_proba", "base_classes", "ids", "held_out", "sample_weight") if k in options
    }
    options.setdefault("random_state", 0)
    new = None if "held_out" in at_fit else NEW
    return LowChurnClassifier(*arguments, **options).fit(X[ROWS], LABELS[ROWS], new=new, **at_fit)


def changed(model):
    return (model.predict(X[TEST]) != BASE.predict(X[TEST])).mean()


def test_a_budget_is_kept_and_costs_little_accuracy():
    plain = clone(LOGISTIC).fit(X[ROWS], LABELS[ROWS])
    model = fit(base=BASE, max_churn=0.05)
    assert changed(plain) > 0.08
    assert model.selection_.churn <= 0.05
    assert model.selection_.trainings <= 4
    assert changed(model) < 0.07
    assert model.score(X[TEST], LABELS[TEST]) > BASE.score(X[TEST], LABELS[TEST]) - 0.01


@pytest.mark.parametrize("search", ["auto", "grid"])
def test_the_most_accurate_candidate_within_the_budget_is_served(search):
    model = fit(base=BASE, max_churn=0.05, search=search, strategies="distill")
    inside = [c for c in model.frontier_ if c.churn <= 0.05]
    assert model.selection_.accuracy == max(c.accuracy for c in inside)
    assert len(model.frontier_) == model.selection_.trainings == (10 if search == "grid" else len(model.frontier_))


def test_without_a_budget_the_least_churn_at_the_accuracy_of_a_plain_retrain():
    model = fit(base=BASE, search="grid")
    plain = model.frontier_[0]
    fine = [c for c in model.frontier_ if c.accuracy >= plain.accuracy]
    assert model.selection_.churn == min(c.churn for c in fine)


def test_a_mixture_is_averaged_probabilities_and_deterministic():
    model = fit(base=BASE, max_churn=0.05, select="mixture")
    assert sum(model.selection_.served.values()) == pytest.approx(1)
    assert model.selection_.churn <= 0.05
    assert (model.predict_proba(X[TEST]) == model.predict_proba(X[TEST])).all()
    soft = fit(base=BASE, max_churn=0.01, select="mixture", churn="soft")
    assert soft.selection_.churn <= 0.01 * 1.001


def test_soft_churn_is_a_mean_divergence():
    model = fit(base=BASE, max_churn=0.02, churn="soft", proper_score="brier")
    assert 0 < model.selection_.churn <= 0.02
    again = fit(base=BASE, max_churn=0.02, churn="soft", proper_score="brier", confidence=0.9)
    assert again.certificate_.upper_bound >= again.certificate_.churn


def test_a_certificate_uses_rows_of_its_own():
    model = fit(base=BASE, max_churn=0.1, confidence=0.9)
    assert model.certificate_.certified
    assert model.certificate_.rows == model.selection_.rows["certify"] > 0
    assert sum(model.selection_.rows.values()) == 1500
    with pytest.warns(UserWarning, match="Not certified: churn on new rows is at most 0.5 %"):
        weak = fit(base=BASE, max_churn=0.005, confidence=0.99)
    assert weak.certificate_.rows_needed is None or weak.certificate_.rows_needed > weak.certificate_.rows


def test_every_form_of_a_base_gives_the_same_model():
    given = BASE.predict_proba(X[ROWS])
    expected = fit(LOGISTIC, base=BASE, max_churn=0.05, strategies=[Distill]).predict_proba(X[TEST])
    ids = np.arange(5000, 6500)
    shuffled = np.random.default_rng(0).permutation(1500)
    swapped = pd.DataFrame(given[:, [2, 0, 1]], columns=["eel", "cat", "dog"])
    forms = [
        {"base": FrozenEstimator(BASE)},
        {"base": BASE.predict_proba},
        {"base": lambda rows: pd.DataFrame(BASE.predict_proba(rows), columns=BASE.classes_)},
        {"base_proba": given},
        {"base_proba": swapped},
        {"base_proba": given[:, [1, 0, 2]], "base_classes": ["dog", "cat", "eel"]},
        {"base_proba": dict(zip(ids[shuffled], given[shuffled], strict=True)), "ids": ids},
        {"base_proba": swapped.set_index(ids).iloc[shuffled], "ids": ids},
        {"base_proba": pl.DataFrame(swapped.assign(id=ids).iloc[shuffled].to_dict("list")), "ids": ids},
    ]
    for form in forms:
        model = fit(LOGISTIC, max_churn=0.05, strategies=[Distill], **form)
        np.testing.assert_allclose(model.predict_proba(X[TEST]), expected, atol=1e-6)


def test_an_onnx_file_is_a_base(tmp_path):
    from skl2onnx import to_onnx

    for k, zipmap in enumerate((True, False)):
        path = tmp_path / f"production{k}.onnx"
        onnx = to_onnx(BASE, X[:1].astype(np.float32), options={id(BASE): {"zipmap": zipmap}})
        path.write_bytes(onnx.SerializeToString())
        model = fit(LOGISTIC, base=path, max_churn=0.05)
        assert changed(model) < 0.07
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="readable ONNX file"):
        fit(LOGISTIC, base=tmp_path / "bad.onnx")


def test_hard_labels_are_enough():
    svc = LinearSVC(C=0.01).fit(X[OLD], LABELS[OLD])
    for form in ({"base": svc}, {"base_proba": svc.predict(X[ROWS])}):
        model = fit(LOGISTIC, max_churn=0.1, **form)
        assert (model.predict(X[TEST]) != svc.predict(X[TEST])).mean() < 0.15


def test_new_and_gone_classes_are_aligned_by_name():
    few = clone(LOGISTIC).fit(X[OLD][Y[OLD] < 2], LABELS[OLD][Y[OLD] < 2])  # never saw eels
    model = fit(LOGISTIC, base=few, search="grid")
    assert model.classes_.tolist() == ["cat", "dog", "eel"]
    assert (model.predict(X[TEST]) == "eel").any()
    known = Y[ROWS] > 0  # cats are gone
    model = LowChurnClassifier(LOGISTIC, base=BASE, random_state=0).fit(
        X[ROWS][known], LABELS[ROWS][known], new=NEW[known]
    )
    assert model.classes_.tolist() == ["dog", "eel"]
    gone = (BASE.predict(X[ROWS][known]) == "cat").mean()
    assert min(c.churn for c in model.frontier_) >= gone / 3  # such decisions must change, and are counted


@pytest.mark.parametrize(
    "convert",
    [
        np.array(["a", "b"]).__getitem__,
        lambda y: y + 5,
        lambda y: y > 0,
        lambda y: np.array(["x", "y"], dtype=object)[y],
    ],
)
def test_kinds_of_labels(convert):
    y = convert((Y > 0).astype(int))
    base = clone(LOGISTIC).fit(X[OLD], y[OLD])
    model = LowChurnClassifier(base=base, max_churn=0.05, random_state=0).fit(X[ROWS], y[ROWS])
    assert model.predict(X[TEST]).dtype == y.dtype
    assert set(np.unique(model.predict(X[TEST]))) <= set(np.unique(y))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
@pytest.mark.parametrize(
    "estimator", [LOGISTIC, LGBMClassifier(n_estimators=10, n_jobs=1, verbose=-1)], ids=["logistic", "lightgbm"]
)
def test_data_frames_keep_their_names(frame, estimator):
    names = [f"f{k}" for k in range(8)]
    table = frame({name: X[:, k] for k, name in enumerate(names)})
    base = clone(estimator).fit(X[OLD], LABELS[OLD])
    model = LowChurnClassifier(estimator, base=base.predict_proba, max_churn=0.5, random_state=0)
    model.fit(table[:1500], LABELS[ROWS], base_proba=base.predict_proba(X[ROWS]))
    assert model.feature_names_in_.tolist() == names
    same = LowChurnClassifier(estimator, max_churn=0.5, random_state=0).fit(
        X[ROWS], LABELS[ROWS], base_proba=base.predict_proba(X[ROWS])
    )
    np.testing.assert_allclose(model.predict_proba(table[1500:]), same.predict_proba(X[TEST]), atol=1e-9)


def test_a_pipeline_with_mixed_columns_is_fitted_once():
    table = pd.DataFrame(X[:, :3], columns=list("abc")).assign(word=np.where(X[:, 3] > 0, "hot", "cold"))
    table.loc[::7, "a"] = np.nan
    fits = []

    class Counting(SimpleImputer):
        def fit(self, X, y=None):
            fits.append(len(X))
            return super().fit(X, y)

    columns = make_column_transformer((Counting(), list("abc")), (OneHotEncoder(), ["word"]))
    pipeline = make_pipeline(columns, StandardScaler(with_mean=False), LogisticRegression())
    base = clone(pipeline).fit(table[:300], LABELS[OLD])
    fits.clear()
    model = LowChurnClassifier(pipeline, base=base, max_churn=0.05, search="grid", strategies=[Distill], random_state=0)
    model.fit(table[:1500], LABELS[ROWS])
    assert len(fits) == 1
    assert len(model.frontier_) == 10
    assert (model.predict(table[1500:]) != base.predict(table[1500:])).mean() < 0.08


def test_a_base_may_have_fewer_features():
    table = pd.DataFrame(X, columns=[f"f{k}" for k in range(8)])
    base = clone(LOGISTIC).fit(table[:300][["f3", "f0", "f1"]], LABELS[OLD])
    model = LowChurnClassifier(LOGISTIC, base=base, max_churn=0.1, random_state=0).fit(table[:1500], LABELS[ROWS])
    assert model.n_features_in_ == 8


def test_clone_keeps_the_base_fitted_and_grid_search_works():
    model = LowChurnClassifier(LogisticRegression(), base=BASE, max_churn=0.1, random_state=0)
    assert clone(model).base is BASE
    search = GridSearchCV(model, {"estimator__C": [0.01, 1.0]}, cv=2).fit(X[ROWS], LABELS[ROWS])
    assert search.best_estimator_.selection_.churn <= 0.1


def test_rows_can_be_held_out_by_hand():
    model = fit(base=BASE, max_churn=0.05, held_out=np.arange(1300, 1500))
    assert model.selection_.rows == {"train": 1300, "choose": 200, "certify": 0}
    with pytest.raises(ValueError, match="held_out must leave rows on both sides"):
        fit(base=BASE, held_out=np.ones(1500, dtype=bool))
    with pytest.raises(ValueError, match="held_out must be a mask of 1500 rows"):
        fit(base=BASE, held_out=[3000])


def test_strategies_take_instances_classes_names_and_partials():
    model = fit(
        LOGISTIC,
        base=BASE,
        max_churn=0.05,
        strategies=[Anchor(alpha=0.5), "warm", functools.partial(Distill, start="warm"), Mixup(alpha=0.2)],
    )
    rows = {c.strategy: c for c in model.frontier_}
    assert set(rows) == {"cold", "anchor", "warm", "distill", "mixup"}
    assert rows["mixup"].status == "skipped"
    assert "does not mix rows" in rows["mixup"].reason
    assert np.isnan(rows["mixup"].churn)
    assert "mixup" in repr(model.frontier_)
    assert len(model.frontier_.to_pandas()) == len(model.frontier_)
    assert len(fit(LOGISTIC, base=BASE, strategies="anchor", search="grid").frontier_) == 28
    with pytest.raises(ValueError, match="unknown strategy 'distil'. Did you mean 'distill'"):
        fit(base=BASE, strategies=["distil"])
    with pytest.raises(ValueError, match="strategies must hold strategies"):
        fit(base=BASE, strategies=[3])


class Fragile(LogisticRegression):
    """Fails on soft targets of little weight: a candidate that breaks."""

    def fit(self, X, y, sample_weight=None):
        if sample_weight is not None and 0.3 < sample_weight.max() < 0.75:
            raise RuntimeError("broke down")
        return super().fit(X, y, sample_weight)


def test_a_failing_candidate_is_a_row_and_the_others_go_on():
    model = fit(
        Fragile(), base=lambda rows: np.full((len(rows), 3), 1 / 3), strategies=[Distill(lam=0.5), Distill(lam=0.9)]
    )
    assert [c.status for c in model.frontier_] == ["trained", "failed", "trained"]
    assert model.frontier_[1].reason == "RuntimeError: broke down"


def test_where_no_candidate_keeps_the_budget_a_blend_with_the_base_is_served():
    forest = HistGradientBoostingClassifier(max_iter=10)
    base = clone(forest).fit(X[OLD], LABELS[OLD])
    with pytest.warns(UserWarning, match="no candidate keeps max_churn=0.01"):
        model = fit(forest, base=base, max_churn=0.01, strategies=[ColdStart()])
    assert "base" in model.selection_.served
    assert (model.predict(X[TEST]) != base.predict(X[TEST])).mean() < 0.03
    with pytest.warns(UserWarning, match="known only by a table .*base= the model itself.* or set max_churn to"):
        table = fit(forest, base_proba=base.predict_proba(X[ROWS]), max_churn=0.01, strategies=[ColdStart()])
    assert table.selection_.served == {"cold": 1.0}
    assert not table.selection_.feasible


def test_a_base_that_has_seen_the_held_out_rows_is_noticed():
    forest = RandomForestClassifier(30, min_samples_leaf=1, random_state=0, n_jobs=1)
    base = clone(forest).fit(X[ROWS], LABELS[ROWS])
    with pytest.warns(UserWarning, match="Mark the rows that it has not seen"):
        LowChurnClassifier(forest, base=base, random_state=1, strategies=[ColdStart()]).fit(X[ROWS], LABELS[ROWS])


def test_training_is_repeatable_and_parallel_training_is_the_same():
    one = fit(base=BASE, max_churn=0.05, search="grid")
    two = fit(base=BASE, max_churn=0.05, search="grid", n_jobs=2)
    assert (one.predict_proba(X[TEST]) == two.predict_proba(X[TEST])).all()


def test_progress_is_shown(capsys):
    fit(base=BASE, max_churn=0.05, verbose=1)
    shown = capsys.readouterr()
    assert "training candidates" in shown.err
    assert shown.out == ""  # results go there


@pytest.mark.parametrize("select", ["single", "mixture"])
def test_saved_models_predict_the_same_bits(select, tmp_path):
    table = pd.DataFrame(X, columns=[f"f{k}" for k in range(8)])
    model = LowChurnClassifier(base=BASE, max_churn=0.05, select=select, confidence=0.5, random_state=0)
    model.fit(table[:1500], LABELS[ROWS])
    model.save(tmp_path / "next.skops")
    again = lowchurn.load(tmp_path / "next.skops")
    assert (again.predict_proba(table[1500:]) == model.predict_proba(table[1500:])).all()
    assert (again.predict(table) == model.predict(table)).all()
    assert again.selection_ == model.selection_
    assert again.certificate_ == model.certificate_
    assert repr(again.frontier_) == repr(model.frontier_)
    assert again.feature_names_in_.tolist() == list(table.columns)
    following = LowChurnClassifier(base=again, max_churn=0.05, random_state=0).fit(table[:2500], LABELS[:2500])
    assert type(following.estimator_).__name__ == "Pipeline"


def test_files_carry_fixed_rows_and_dial_positions_and_older_ones_still_load(tmp_path):
    model = fit(LOGISTIC, base=BASE, max_churn=0.05, strategies="distill")
    model.frontier_[0] = dataclasses.replace(model.frontier_[0], dial=0.25)
    model.save(tmp_path / "next.skops")
    again = lowchurn.load(tmp_path / "next.skops").frontier_
    assert repr(again.records()) == repr(model.frontier_.records())
    assert again[0].dial == 0.25
    assert math.isnan(again[1].dial)
    about, files = persistence.parse_archive((tmp_path / "next.skops").read_bytes(), "it", "next.skops")
    for row in about["frontier"]:
        del row["fixed"], row["dial"]
    persistence.write_archive(tmp_path / "older.skops", about, files)
    older = lowchurn.load(tmp_path / "older.skops").frontier_
    assert [c.churn for c in older] == [c.churn for c in model.frontier_]
    assert all(math.isnan(c.fixed) and math.isnan(c.dial) for c in older)


@pytest.mark.parametrize("weights", [np.ones(6), np.array([1.0, 2.0, 0.5, 1.0, 3.0, 1.0])])
def test_measured_shares_add_up(weights):
    y, base = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 2, -1, 0])  # -1: a class that is gone
    proba = np.eye(3)[[1, 0, 1, 2, 2, 1]]
    ruler = Ruler(y, weights, np.full((6, 3), 1 / 3), base, get_score("log"), hard=True)
    row = ruler.measure(Candidate("soup", dial=0.4), proba)
    assert row.dial == 0.4
    assert row.broken == pytest.approx(weights[[0]].sum() / weights.sum())
    assert row.fixed == pytest.approx(weights[[1, 4]].sum() / weights.sum())
    assert row.accuracy == pytest.approx(np.average(base == y, weights=weights) + row.fixed - row.broken)


def test_what_cannot_be_loaded_is_refused(tmp_path):
    import pickle

    (tmp_path / "old.pkl").write_bytes(pickle.dumps(BASE))
    with pytest.raises(ValueError, match=r"Pickles can run any code .* trusted=\['old.pkl'\]"):
        lowchurn.load(tmp_path / "old.pkl")
    assert (lowchurn.load(tmp_path / "old.pkl", trusted=["old.pkl"]).predict(X) == BASE.predict(X)).all()
    with pytest.raises(ValueError, match="file that is there"):
        lowchurn.load(tmp_path / "nothing.skops")
    mixed = fit(LOGISTIC, base=BASE.predict_proba, max_churn=0.02, select="mixture")
    with pytest.raises(ValueError, match="cannot be written to this file"):
        mixed.save(tmp_path / "m.skops")
    assert list(tmp_path.iterdir()) == [tmp_path / "old.pkl"]


TABLE = {"estimator": LOGISTIC}  # what a base known by a table alone does not tell
SMALL = np.where(np.arange(1500) == 7, "once", LABELS[ROWS])


@pytest.mark.parametrize(
    ("options", "data", "words"),
    [
        ({"base": LogisticRegression()}, {}, "the base must be fitted"),
        ({"base": clone(LOGISTIC).fit(X[OLD][:, :5], Y[OLD])}, {}, "on the same features"),
        ({"base": GaussianNB().fit(X[OLD], Y[OLD])}, {}, "the base has none of the classes"),
        ({"base": BASE, "max_churn": -0.1}, {}, r"max_churn must be in \[0, 1\), got -0.1"),
        ({"base": BASE, "max_churn": 1.0}, {}, r"max_churn must be in \[0, 1\), got 1.0"),
        ({"base": BASE, "max_churn": 0.1, "confidence": 1.2}, {}, r"confidence must be in \(0, 1\)"),
        ({"base": BASE, "confidence": 0.9}, {}, "confidence certifies a budget"),
        ({"max_churn": 0.1}, {}, "need a base to compare with"),
        ({"base": BASE, "churn": "firm"}, {}, "churn must be one of 'hard', 'soft'"),
        ({"base": BASE, "search": "all"}, {}, "search must be one of"),
        ({"base": BASE, "select": "both"}, {}, "select must be one of"),
        ({"base": BASE, "proper_score": "logg"}, {}, "unknown score 'logg'"),
        ({"base": BASE, "validation_fraction": 1.5}, {}, r"validation_fraction must be in \(0, 1\)"),
        ({"base": BASE, "estimator": "trees"}, {}, "estimator must be a classifier with fit, got str"),
        ({"base": 3}, {}, "base must be a fitted classifier"),
        ({"base": "nowhere.skops"}, {}, "base must be a file that is there"),
        ({"base": BASE}, {"y": SMALL}, "class 'once' has one row"),
        (
            {"base": BASE},
            {"rows": slice(0, 4), "y": LABELS[:4]},
            "at least two rows|fewer than the split",
        ),
        (
            {"base": BASE, "validation_fraction": 0.99},
            {"rows": slice(0, 40), "y": LABELS[:40]},
            "fewer than the split needs",
        ),
        ({"base": BASE, "estimator": LogisticRegression()}, {"X": np.where(X[ROWS] > 2, np.nan, X[ROWS])}, "NaN"),
        ({"base": BASE}, {"y": np.full(1500, "cat")}, "at least two classes"),
        ({"base": BASE}, {"y": LABELS[:99]}, "inconsistent numbers of samples"),
        (TABLE, {"base_proba": np.full((3, 3), 1 / 3)}, "one row for each of 1500 rows"),
        (TABLE, {"base_proba": np.full((1500, 2), 1 / 2)}, "gives 2 columns for 3 classes"),
        (TABLE, {"base_proba": np.full((1500, 3), 1 / 2)}, "must sum to 1"),
        (TABLE, {"base_proba": {1: [1, 0, 0]}}, "needs ids="),
        (TABLE, {"base_proba": {1: [1, 0, 0]}, "ids": np.arange(1500)}, "base_proba lacks 1499 of 1500 ids"),
        ({"base": BASE}, {"sample_weight": np.zeros(1500)}, "at least one non-zero"),
    ],
    ids=lambda v: None,
)
def test_bad_input_is_a_clear_error_before_any_training(options, data, words, monkeypatch):
    monkeypatch.setattr("lowchurn.learners._sklearn.RowsLearner.fit_many", lambda *a: pytest.fail("it was trained"))
    rows = data.pop("X", X[data.pop("rows", ROWS)])
    y = data.pop("y", LABELS[ROWS])
    with pytest.raises(ValueError, match=words):
        LowChurnClassifier(**options).fit(rows, y, **data)


def test_an_estimator_without_weights_says_so():
    model = fit(KNeighborsClassifier(), base=BASE, max_churn=0.5, strategies=[Distill(lam=0.5), WarmStart()])
    assert "must take sample_weight" in model.frontier_[1].reason
    assert model.selection_.served == {"cold": 1.0}


def test_weights_count_copies_and_zero_weights_are_no_rows():
    weight = np.random.default_rng(0).integers(0, 3, 1500)
    copies = np.repeat(np.arange(1500), weight)
    weighted = LowChurnClassifier(LogisticRegression(tol=1e-10, max_iter=1000), base=BASE, max_churn=0.05).fit(
        X[ROWS], LABELS[ROWS], weight
    )
    repeated = LowChurnClassifier(LogisticRegression(tol=1e-10, max_iter=1000), base=BASE, max_churn=0.05).fit(
        X[ROWS][copies], LABELS[ROWS][copies]
    )
    assert weighted.selection_.rows == repeated.selection_.rows
    np.testing.assert_allclose(weighted.predict_proba(X[TEST]), repeated.predict_proba(X[TEST]), atol=1e-5)
    given = BASE.predict_proba(X[ROWS])
    fit(LOGISTIC, base_proba=given, sample_weight=weight, max_churn=0.05)
