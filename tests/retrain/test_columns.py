"""The columns of the base are the features, whatever the base is."""

import numpy as np
import pandas as pd
import pytest
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from xgboost import XGBClassifier

from lowchurn import LowChurnClassifier
from lowchurn.estimator._production import feature_names
from lowchurn.retrain._columns import choose_columns, text_columns

X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["age", "size"])
Y = (X["age"] > 0).astype(int).to_numpy()
LOGISTIC = make_pipeline(StandardScaler(), LogisticRegression())
KINDS = {
    "pipeline": lambda X: make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y),
    "frozen": lambda X: FrozenEstimator(LogisticRegression().fit(X, Y)),
    "calibrated": lambda X: CalibratedClassifierCV(LogisticRegression(), cv=2).fit(X, Y),
    "voting": lambda X: VotingClassifier([("a", LogisticRegression())], voting="soft").fit(X, Y),
    "lightgbm": lambda X: LGBMClassifier(n_estimators=2, verbose=-1).fit(X, Y),
    "lightgbm booster": lambda X: LGBMClassifier(n_estimators=2, verbose=-1).fit(X, Y).booster_,
    "xgboost": lambda X: XGBClassifier(n_estimators=2).fit(X, Y),
    "xgboost booster": lambda X: XGBClassifier(n_estimators=2).fit(X, Y).get_booster(),
    "catboost": lambda X: CatBoostClassifier(iterations=2, verbose=0, allow_writing_files=False).fit(X, Y),
    "lowchurn": lambda X: LowChurnClassifier(LogisticRegression()).fit(X, Y),
}


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_every_kind_of_base(kind):
    base = KINDS[kind](X)
    assert feature_names(base) == ["age", "size"]
    chosen = choose_columns(base, ["row_id", "size", "is_new", "age"])
    assert (chosen.features, chosen.left_out) == (["age", "size"], ("row_id", "is_new"))
    assert choose_columns(base, ["row_id", "size", "age"], all_columns=True).features == ["age", "size", "row_id"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_base_without_names_is_known_by_its_number(kind):
    base = KINDS[kind](X.to_numpy())
    assert feature_names(base) is None
    assert choose_columns(base, ["a", "b"]).features == ["a", "b"]
    if "booster" not in kind:
        with pytest.raises(ValueError, match=r"fitted on 2 columns without names, and the data have 3: 'a', 'b', 'c'"):
            choose_columns(base, ["a", "b", "c"])
        with pytest.raises(ValueError, match="Add the others"):
            choose_columns(base, ["a"])


def test_names_that_look_made_up_are_names_where_the_table_has_them():
    base = LGBMClassifier(n_estimators=2, verbose=-1).fit(X.set_axis(["f0", "f1"], axis=1), Y)
    assert choose_columns(base, ["f1", "row_id", "f0"]).features == ["f0", "f1"]


def test_spaces_that_lightgbm_writes_as_underscores():
    rows = pd.DataFrame({"zip code": [0.0, 1.0] * 30, "size_m": [1.0, 2.0] * 30})
    base = LGBMClassifier(n_estimators=1, verbose=-1, n_jobs=1).fit(rows, [0, 1] * 30)
    assert choose_columns(base, ["size_m", "zip code", "id"]).features == ["zip code", "size_m"]


def test_missing_columns_are_an_error():
    base = LOGISTIC.fit(X, Y)
    with pytest.raises(ValueError, match=r"lack 1 of 2 columns that the base was fitted on: 'size'\. Add them"):
        choose_columns(base, ["age", "other"])
    with pytest.raises(ValueError, match="Do not drop 'size'"):
        choose_columns(base, ["age"], dropped=["size"])
    with pytest.raises(ValueError, match="no columns to train on"):
        choose_columns(None, [])


def test_columns_in_which_the_base_has_text():
    rows = X.assign(shop=["007", "008"] * 30, kind=["a", None] * 30, code=[1, 2] * 30)
    inner = make_pipeline(SimpleImputer(strategy="most_frequent"), OrdinalEncoder())
    columns = make_column_transformer(
        (OneHotEncoder(), ["shop", "code"]), (inner, ["kind"]), (StandardScaler(), ["age", "size"])
    )
    base = make_pipeline(columns, LogisticRegression()).fit(rows, Y)
    wanted = {"shop", "kind"}
    assert text_columns(base) == wanted
    assert text_columns(FrozenEstimator(base)) == wanted
    assert text_columns(CalibratedClassifierCV(base, cv=2).fit(rows, Y)) == wanted
    assert text_columns(LowChurnClassifier(base).fit(rows, Y)) == wanted
    for strategy in ("sticky", "dial"):  # models that answer together, and the base among them
        model = LowChurnClassifier(base=base, max_churn=0.9, strategies=strategy).fit(rows, Y)
        assert text_columns(model) == wanted
    assert text_columns(None) == set()
    assert text_columns(LOGISTIC.fit(X, Y)) == set()
