"""Churn, flips and the paper's metric on tables small enough to check by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lowchurn.metrics import (
    accuracy,
    churn,
    churn_at_cold_accuracy,
    cost_curve,
    dial_curves,
    flips,
    pareto_front,
    soft_churn,
    standard_error,
)
from lowchurn.scoring import LogScore


def test_churn_counts_differences_of_any_kind_of_label():
    assert churn([1, 2, 3], [1, 2, 4]) == pytest.approx(1 / 3)
    assert churn(np.array(["a", "b"]), np.array(["b", "b"])) == 0.5
    assert churn([True, False], [True, False]) == 0
    assert churn(torch.tensor([1, 0]), torch.tensor([0, 1])) == 1
    assert churn(np.array(["a", "b"], dtype=object), ["a", "c"]) == 0.5
    assert churn([0, 0, 0], [0, 1, 1], sample_weight=[2, 1, 0]) == pytest.approx(1 / 3)


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1))
def test_flips_partition_the_changes(rows):
    y, base, new = (np.array(column) for column in zip(*rows, strict=True))
    f = flips(y, base, new)
    assert f.changed_rate == pytest.approx(churn(base, new))
    assert accuracy(y, new) - accuracy(y, base) == pytest.approx(f.fixed_rate - f.broken_rate)
    mirrored = flips(y, new, base)
    assert (mirrored.broken, mirrored.fixed, mirrored.lateral) == (f.fixed, f.broken, f.lateral)
    assert f.broken + f.fixed + f.lateral == int((base != new).sum())


def test_soft_churn_is_per_row():
    u = np.array([[0.5, 0.5], [0.9, 0.1]])
    v = np.array([[0.5, 0.5], [0.5, 0.5]])
    result = soft_churn(u, v, "log")
    assert result.shape == (2,)
    np.testing.assert_allclose(result, LogScore().divergence(u, v))


RESULTS = [
    # two runs a setting: only the averages decide
    ("cold", "", 0.80, 0.20),
    ("cold", "", 0.90, 0.30),
    ("warm", "", 0.84, 0.10),
    ("warm", "", 0.85, 0.10),
    ("distill", "0.1", 0.80, 0.01),
    ("distill", "0.1", 0.80, 0.01),
    ("distill", "0.5", 0.95, 0.10),  # as accurate as cold only on average
    ("distill", "0.5", 0.75, 0.02),
    ("distill", "0.9", 0.90, 0.15),
    ("distill", "0.9", 0.90, 0.15),
]
NAMES = ("method", "setting", "accuracy", "churn")
RECORDS = [dict(zip(NAMES, row, strict=True)) for row in RESULTS]
COLUMNS = {name: [r[name] for r in RECORDS] for name in NAMES}


@pytest.mark.parametrize("results", [RECORDS, COLUMNS, RECORDS[::-1]], ids=["records", "columns", "reversed"])
def test_churn_at_cold_accuracy_by_hand(results):
    assert churn_at_cold_accuracy(results, "cold") == pytest.approx(0.25)  # cold is as accurate as itself
    assert churn_at_cold_accuracy(results, "distill") == pytest.approx(0.06)
    assert math.isnan(churn_at_cold_accuracy(results, "warm"))  # 0.845 < 0.85: N/A


def test_churn_at_cold_accuracy_ties_count_whatever_the_order_of_runs():
    values = [0.1, 0.2, 0.3, 0.7, 0.9]
    rows = [("cold", "", a, 0.5) for a in values] + [("warm", "", a, 0.4) for a in reversed(values)]
    assert churn_at_cold_accuracy([dict(zip(NAMES, r, strict=True)) for r in rows], "warm") == pytest.approx(0.4)


def test_churn_at_cold_accuracy_refuses_bad_tables():
    with pytest.raises(ValueError, match="Did you mean 'distill'"):
        churn_at_cold_accuracy(RECORDS, "distil")
    with pytest.raises(ValueError, match="unknown method 'cold'"):
        churn_at_cold_accuracy([r for r in RECORDS if r["method"] != "cold"], "distill")
    with pytest.raises(ValueError, match=r"missing \['churn'\]"):
        churn_at_cold_accuracy({k: v for k, v in COLUMNS.items() if k != "churn"}, "cold")
    with pytest.raises(ValueError, match="must be finite"):
        churn_at_cold_accuracy([*RECORDS, dict(zip(NAMES, ("warm", "", math.nan, 0.1), strict=True))], "warm")
    with pytest.raises(ValueError, match="at least one row"):
        churn_at_cold_accuracy([], "cold")
    with pytest.raises(ValueError, match="must have one setting"):
        churn_at_cold_accuracy([*RECORDS, dict(zip(NAMES, ("cold", "2", 0.9, 0.1), strict=True))], "warm")


def test_standard_error_of_the_mean():
    values = np.random.default_rng(0).normal(size=50)
    assert standard_error(values) == pytest.approx(values.std(ddof=1) / math.sqrt(50))
    assert math.isnan(standard_error([1.0]))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_pareto_front_against_the_definition(points):
    points = np.array(points, dtype=float)

    def beaten(p):
        return any((q <= p).all() and (q < p).any() for q in points)

    front = pareto_front(points)
    assert sorted(front) == [i for i, p in enumerate(points) if not beaten(p)]
    assert (np.diff(points[front, 0]) >= 0).all()


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8))
def test_cost_curve_is_the_least_cost_and_needs_only_the_front(points):
    weights = np.linspace(0, 1, 5)
    curve = cost_curve(points, weights)
    slow = [min((1 - w) * e + w * c for e, c in points) for w in weights]
    np.testing.assert_allclose(curve, slow)
    np.testing.assert_allclose(cost_curve(np.array(points)[pareto_front(points)], weights), curve)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="churn: all arrays must have the same number of rows; base has 1"):
        churn([1], [1, 2])
    with pytest.raises(ValueError, match="at least one row"):
        churn([], [])
    with pytest.raises(ValueError, match="base holds numbers, new holds text"):
        churn([1, 2], ["1", "2"])
    with pytest.raises(ValueError, match="missing labels"):
        churn([1.0, np.nan], [1.0, 2.0])
    with pytest.raises(ValueError, match="missing labels, got 1"):
        churn(np.array(["a", None], dtype=object), ["a", "b"])
    with pytest.raises(ValueError, match="mixes text and other"):
        churn(np.array(["a", 1], dtype=object), ["a", "b"])
    with pytest.raises(ValueError, match="argmax"):
        churn([[0.1, 0.9]], [[0.1, 0.9]])
    with pytest.raises(ValueError, match="sample_weight must not be negative"):
        churn([1, 2], [1, 2], sample_weight=[1, -1])
    with pytest.raises(ValueError, match="must not be all zero"):
        churn([1, 2], [1, 2], sample_weight=[0, 0])
    with pytest.raises(ValueError, match="one weight for each of 2 rows"):
        churn([1, 2], [1, 2], sample_weight=[1])
    with pytest.raises(ValueError, match=r"weights must be in \[0, 1\]"):
        cost_curve([[0.1, 0.1]], [1.5])
    with pytest.raises(ValueError, match="two columns"):
        cost_curve([[0.1, 0.1, 0.1]], [0.5])
    with pytest.raises(ValueError, match="must not be NaN"):
        pareto_front([[0.1, np.nan]])
    with pytest.raises(ValueError, match="one-dimensional"):
        standard_error([[1.0]])


def on_dial(dial, strategy, dial_parameter="", **parameters):
    return SimpleNamespace(strategy=strategy, parameters=parameters, dial=dial, dial_parameter=dial_parameter)


def test_dials_are_found_by_strategy_and_parameters_without_the_position():
    assert dial_curves([]) == []
    assert dial_curves([on_dial(math.nan, "cold"), on_dial(0.5, "soup")]) == []
    assert dial_curves([on_dial(0.0, "new"), on_dial(1.0, "base")]) == [[0, 1]]
    two = [
        on_dial(1 - lam, "served-mix", "lam", members=m, lam=lam, start="cold") for m in (1, 4) for lam in (1.0, 0.5, 0)
    ]
    assert dial_curves(two) == [[0, 1, 2], [3, 4, 5]]
    base = on_dial(1.0, "base")
    shared = [
        base,
        *(on_dial(d, "soup", "a", a=d) for d in (0.2, 0.0)),
        *(on_dial(d, "one", "a", a=d) for d in (0.1, 0.6)),
    ]
    assert dial_curves(shared) == [[2, 1, 0], [3, 4, 0]]
    # A lone position of another dial belongs to none; the base ends those that do not reach it.
    soups = [on_dial(a, "soup", "toward_base", members=8, toward_base=a) for a in (0.0, 0.5)]
    assert dial_curves([*soups, on_dial(0.3, "interpolate", "toward_base", toward_base=0.3), base]) == [[0, 1, 3]]
