"""Budgets of slices: named ones, one number for all of them, and values that were not there."""

import io

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import lowchurn
from lowchurn import LowChurnClassifier
from lowchurn.estimator._groups import Groups
from tests.estimator.test_limits import HELD_OUT, LABELS, NEW, OLD, TRAFFIC, TRAIN, X, Y
from tests.model_files.files import X as FILE_ROWS
from tests.model_files.files import outcome, refused, saved, tampered

REGION = np.array(["north", "south", "tiny"])[
    np.searchsorted([0.6, 0.997], np.random.default_rng(0).uniform(size=6000))
]
COLUMNS = [f"x{j}" for j in range(12)]
FRAME = pd.DataFrame(X, columns=COLUMNS).assign(region=REGION, shop=LABELS % 2)
TABLE = make_pipeline(ColumnTransformer([("numbers", StandardScaler(), COLUMNS)]), LogisticRegression())


@pytest.fixture(scope="module")
def table_base():
    return clone(TABLE).fit(FRAME[OLD], Y[OLD])


def sliced(table_base, given=None, strategies="sticky", **options):
    model = LowChurnClassifier(clone(TABLE), base=table_base, strategies=strategies, random_state=0, **options)
    return model.fit(FRAME[TRAIN], Y[TRAIN], **({"held_out": HELD_OUT} if given is None else given))


def churn_by_region(model, base, rows):
    changed = model.predict(FRAME.iloc[rows]) != base.predict(FRAME.iloc[rows])
    return {name: float(changed[REGION[rows] == name].mean()) for name in np.unique(REGION)}


@pytest.fixture(scope="module")
def by_region(table_base):
    return sliced(table_base, max_churn=0.03, by="region")


@pytest.mark.parametrize("strategies", ["sticky", "dial", "distill"])
def test_every_slice_keeps_a_number(table_base, strategies):
    model = sliced(table_base, max_churn=0.03, by="region", strategies=strategies)
    found = churn_by_region(model, table_base, HELD_OUT)
    assert model.selection_.feasible
    assert found["north"] <= 0.03
    assert found["south"] <= 0.03
    assert model.selection_.churn <= 0.03
    notes = " ".join(model.selection_.notes)
    assert "Too few rows to measure a limit of their own, since one changed row is above it: 'tiny'" in notes
    assert "where region is 'north'" in str(model.selection_)


def margins_of(model):
    (name,) = model.selection_.served
    (row,) = [row for row in model.frontier_ if row.name == name]
    parameters = row.parameters
    return {n: max(parameters["margin"], parameters.get(f"margin[{n}]", 0)) for n in ("north", "south", "tiny")}


def test_a_small_slice_has_the_margin_of_all_rows(table_base):
    model = sliced(table_base, max_churn={"tiny": 0.03}, by="region")
    assert model.selection_.feasible
    # Nothing else is limited, so that its margin is that which keeps the budget on all rows.
    everywhere = sliced(table_base, max_churn=0.03)
    (row,) = [row for row in everywhere.frontier_ if row.name in everywhere.selection_.served]
    assert margins_of(model)["tiny"] == pytest.approx(row.parameters["margin"], abs=0.02)
    assert margins_of(model)["north"] == 0


def test_a_value_that_was_not_there_gets_the_largest_margin(table_base, by_region):
    margins = margins_of(by_region)
    assert len(set(margins.values())) > 1
    rows = FRAME.iloc[NEW]
    largest = max(margins, key=margins.get)
    safest = by_region.predict(rows.assign(region=largest))
    np.testing.assert_array_equal(by_region.predict(rows.assign(region="moon")), safest)
    missing = rows.assign(region=None)
    np.testing.assert_array_equal(by_region.predict(missing), safest)
    assert (by_region.predict(rows.assign(region=min(margins, key=margins.get))) != safest).any()


def test_named_slices_and_all_rows(table_base):
    model = sliced(table_base, max_churn={"south": 0.01, None: 0.04}, by="region")
    found = churn_by_region(model, table_base, HELD_OUT)
    assert found["south"] <= 0.01
    assert 0.01 < model.selection_.churn <= 0.04
    with pytest.raises(ValueError, match="unknown slice in max_churn 'suoth'. Did you mean 'south'"):
        sliced(table_base, max_churn={"suoth": 0.01}, by="region")
    with pytest.raises(ValueError, match="unknown column in by= 'regoin'. Did you mean 'region'"):
        sliced(table_base, max_churn=0.01, by="regoin")


def test_slices_by_name_by_position_and_by_a_function_are_the_same(table_base, by_region):
    expected = by_region.predict_proba(FRAME[NEW])
    for by in (12, lambda rows: rows["region"], lambda rows: list(rows["region"])):
        model = sliced(table_base, max_churn=0.03, by=by)
        np.testing.assert_array_equal(model.predict_proba(FRAME[NEW]), expected)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_slices_of_arrays(kind):
    rows = np.column_stack([X, REGION == "south"])
    estimator = LogisticRegression()
    older = clone(estimator).fit(kind(rows[OLD]), Y[OLD])
    model = LowChurnClassifier(estimator, base=older, max_churn={0: 0.01, 1: 0.05}, by=12, strategies="sticky")
    model.fit(kind(rows[TRAIN]), Y[TRAIN], held_out=HELD_OUT)
    changed = model.predict(kind(rows[HELD_OUT])) != older.predict(kind(rows[HELD_OUT]))
    south = REGION[HELD_OUT] == "south"
    assert changed[south].mean() <= 0.05
    assert changed[~south].mean() <= 0.01


def test_polars(by_region, table_base):
    model = sliced(table_base, max_churn=0.03, by="region")
    np.testing.assert_array_equal(model.predict(FRAME[NEW]), by_region.predict(FRAME[NEW]))
    frame = pl.DataFrame(FRAME.drop(columns="shop"))
    estimator = make_pipeline(FunctionTransformer(lambda rows: rows.select(COLUMNS).to_numpy()), LogisticRegression())
    older = clone(estimator).fit(frame[OLD], Y[OLD])
    model = LowChurnClassifier(estimator, base=older, max_churn=0.03, by="region", strategies="sticky")
    model.fit(frame[TRAIN], Y[TRAIN], held_out=HELD_OUT)
    changed = model.predict(frame[TRAIN]) != older.predict(frame[TRAIN])
    for name in ("north", "south"):
        assert changed[HELD_OUT][REGION[HELD_OUT] == name].mean() <= 0.03


def test_slices_on_traffic_with_previous_decisions_and_in_a_file(table_base, tmp_path):
    model = sliced(table_base, max_churn=0.03, by="region", given={"traffic": FRAME[TRAFFIC]})
    found = churn_by_region(model, table_base, np.arange(6000)[TRAFFIC])
    assert max(found["north"], found["south"]) <= 0.03
    model.save(tmp_path / "model.skops", dial=True)
    again = lowchurn.load(tmp_path / "model.skops")
    assert again.by == "region"
    rows = FRAME[NEW].assign(region=np.where(REGION[NEW] == "north", "moon", REGION[NEW]))
    np.testing.assert_array_equal(again.predict_proba(rows), model.predict_proba(rows))
    previous = table_base.predict(rows)
    np.testing.assert_array_equal(again.predict(rows, previous=previous), model.predict(rows))
    np.testing.assert_array_equal(again.dial(0.01).predict(rows), model.dial(0.01).predict(rows))
    following = LowChurnClassifier(clone(TABLE), base=again, max_churn=0.02, strategies="sticky", random_state=0)
    following.fit(FRAME[TRAIN], Y[TRAIN], held_out=HELD_OUT)
    following.save(tmp_path / "following.skops")
    loaded = lowchurn.load(tmp_path / "following.skops")
    np.testing.assert_array_equal(loaded.predict_proba(rows), following.predict_proba(rows))


def test_a_function_cannot_be_saved(table_base, tmp_path):
    model = sliced(table_base, max_churn=0.03, by=lambda rows: rows["region"])
    with pytest.raises(ValueError, match="by= is a function, which cannot be written to this file"):
        model.save(tmp_path / "model.skops")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: about["rule"]["groups"].pop(), "the rule must have a margin for each group, got 1"),
        (lambda about: about["rule"].update(groups=["-0x1p-1", "0x0p+0"]), "at least 0"),
        (lambda about: about.update(groups=None), "the rule must have a margin for each group"),
        (lambda about: about["parameters"].update(max_broken=[[None, 0.1]]), "max_broken must be one value"),
        (lambda about: about["parameters"].update(max_churn=[["a", 7]]), "max_churn must be in"),
    ],
)
def test_tampered_files_of_groups(change, message, tmp_path):
    data, proba = saved("groups")
    assert (outcome(data, tmp_path).predict_proba(FILE_ROWS) == proba).all()
    refused(tampered(data, about=lambda about: change(about) and None), tmp_path, message)


def test_numbers_of_groups_must_be_those_of_the_rows(tmp_path):
    data, _ = saved("groups")
    for values, message in ((np.zeros((1, 3)), "a number for each row"), (np.full((1, 3), 9.0), r"values in \[0, 2\]")):
        text = io.BytesIO()
        np.save(text, values)
        refused(tampered(data, {"dial/groups.npy": text.getvalue()}), tmp_path, message.replace("\\", ""))


def test_values_that_read_alike_are_refused():
    values = np.array(["1", 1] * 20, dtype=object)
    with pytest.raises(ValueError, match="by must have values of one kind, got several that read '1'"):
        Groups.of(lambda rows: values, [np.zeros((40, 1))], np.array([0, 1]))


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "b", None, float("nan"), "c"]), min_size=1, max_size=20))
def test_codes_of_slices(values):
    column = np.array(values, dtype=object)
    known = [value for value in values if isinstance(value, str)]
    if not known:
        return
    groups = Groups.of(lambda rows: rows[:, 0], [column[:, None]], np.array([0, 1]))
    assert groups.names == sorted(set(known))
    expected = [groups.names.index(value) if isinstance(value, str) else -1 for value in values]
    assert groups.codes(column[:, None], np.zeros(len(values))).tolist() == expected
    assert [groups.number(name) for name in groups.names] == list(range(len(groups.names)))


def test_whole_numbers_are_found_as_text_as_well():
    groups = Groups.of(0, [np.array([[3], [7]])], np.array([0, 1]))
    assert groups.number(7) == groups.number("7") == groups.number(7.0) == 1
