"""A loaded model predicts bit for bit, files of older versions and labels of all types among them."""

import copy
import datetime
import decimal
import json

import numpy as np
import pytest
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from sklearn.linear_model import LogisticRegression
from xgboost import XGBClassifier

from lowchurn import LowChurnClassifier
from lowchurn._model_files import labels_from_plain, labels_to_plain
from lowchurn.learners._skops import dump_skops, load_skops
from lowchurn.learners._torch import NetworkClassifier
from lowchurn.strategies import ServedMixture
from tests.model_files.files import LEARNERS, X, Y, outcome, packed, saved, unpacked, written


def test_a_network_of_version_0_1_names_a_module_that_has_moved():
    inner = unpacked(dump_skops(NetworkClassifier("fcn-3", epochs=7)))
    old = inner["schema.json"].replace(b"lowchurn.learners._torch", b"lowchurn.learners.torch")
    assert old != inner["schema.json"]
    assert load_skops(packed(inner | {"schema.json": old}), unfitted=True).epochs == 7


@pytest.mark.parametrize("kind", [*LEARNERS, "dial", "mixture"])
def test_a_loaded_model_predicts_bit_for_bit(kind, tmp_path):
    data, proba = saved(kind)
    again = outcome(data, tmp_path)
    assert (again.predict_proba(X) == proba).all()
    assert (outcome(written(again, dial=kind == "dial"), tmp_path).predict_proba(X) == proba).all()


EARLY = {
    "xgboost": (XGBClassifier(n_estimators=40, max_depth=5, early_stopping_rounds=2, learning_rate=1.0), {}),
    "catboost": (
        CatBoostClassifier(
            iterations=40, early_stopping_rounds=2, learning_rate=1.0, verbose=0, allow_writing_files=False
        ),
        {},
    ),
    "lightgbm": (LGBMClassifier(n_estimators=40, early_stopping_round=2, learning_rate=1.0, verbosity=-1), {}),
}


@pytest.mark.parametrize("kind", EARLY)
def test_an_early_stopped_base_is_saved_as_production_asks_it(kind, tmp_path):
    estimator, options = EARLY[kind]
    base = copy.deepcopy(estimator).fit(X[:120], Y[:120], eval_set=[(X[120:180], Y[120:180])], **options)
    options = {"base": base, "max_churn": 1e-9, "random_state": 0}
    model = LowChurnClassifier(LogisticRegression(C=1e-6), **options).fit(X, Y)
    assert model.selection_.notes[0].startswith("This is the base unchanged")
    again = outcome(written(model), tmp_path)
    assert (again.predict_proba(X) == model.predict_proba(X)).all()
    base_end = [ServedMixture(members=1, lam=0.0)]
    alone = LowChurnClassifier(LogisticRegression(C=1e-6), strategies=base_end, **options).fit(X, Y)
    kept = outcome(written(alone), tmp_path)
    assert (kept.predict(X) == base.predict(X).ravel()).all()
    np.testing.assert_allclose(kept.predict_proba(X), base.predict_proba(X), rtol=0, atol=1e-6)


LABELS = [
    np.array([False, True]),
    np.array([2**53, 2**53 + 1, -(2**63)]),
    np.array([0, 2**64 - 1], dtype=np.uint64),
    np.array([-3, 4], dtype=np.int8),
    np.array([0.1, 1e-300, -np.inf]),
    np.array([0.1, 0.2], dtype=np.float32),
    np.array(["", "ja", "nein\n\x1b\udc80", "💡"]),
    np.array(["2020-01-01", "1969-01-01"], dtype="M8[D]"),
    np.array(["2020-01-01T00:00:00.000000001", "2020-01-01"], dtype="M8[ns]"),
    np.array(["a", "b"], dtype=object),
    np.array([1, 2.5, np.int64(2**60)], dtype=object),
]


@pytest.mark.parametrize("labels", LABELS, ids=lambda labels: str(labels.dtype))
def test_labels_come_back_exactly(labels):
    plain = json.loads(json.dumps(labels_to_plain(labels)))
    again = labels_from_plain("the file", plain["classes"], plain["dtype"])
    assert again.dtype == labels.dtype
    assert again.tolist() == labels.tolist()


@pytest.mark.parametrize(
    "labels",
    [
        [decimal.Decimal("0.1"), decimal.Decimal("0.2")],
        [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)],
        [b"a", b"b"],
        [1 + 2j, 3j],
        [float("nan"), 1.0],
    ],
    ids=str,
)
def test_labels_that_a_file_cannot_hold_are_refused_at_saving(labels):
    dtype = object if isinstance(labels[0], decimal.Decimal | datetime.date) else None
    with pytest.raises(ValueError, match="save: labels must be"):
        labels_to_plain(np.array(labels, dtype=dtype))


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        ([0, 300], "|u1"),
        ([0, -1], "<u8"),
        ([0, 2**64], "<i8"),
        (["aa", "ab"], "<U1"),
        (["a", "b"], "<U999999999"),
        ([0, 1], "|b1"),
        ([True, False], "<i8"),
        ([0.5, 1], "<i8"),
        (["0", "1"], "<f8"),
        ([1.0, 1.0], "<f8"),
        ([1e300, 1e301], "<f4"),
        ([1, 2], "<M8[zz]"),
        ([1, 2**70], "<M8[D]"),
        (["a"], "O"),
        ([], "O"),
        ([0, 1], "O,O"),
        ([0, 1], "V0"),
    ],
)
def test_labels_that_do_not_fit_their_dtype_are_refused(labels, dtype):
    with pytest.raises(ValueError, match="^load: the (list of )?classes"):
        labels_from_plain("the file", labels, dtype)


@pytest.mark.parametrize("labels", [np.array([2**60, 2**60 + 1]), np.array([True, False]), np.array(["n", "y"])])
@pytest.mark.parametrize("kind", ["logistic", "lightgbm"])
def test_models_of_all_kinds_of_labels(labels, kind, tmp_path):
    model = LowChurnClassifier(LEARNERS[kind]).fit(X, labels[Y])
    again = outcome(written(model), tmp_path)
    assert again.predict(X).tolist() == model.predict(X).tolist()
    assert again.classes_.dtype == model.classes_.dtype
