"""The margin rule against all other rules: brute force over every possible set of decisions."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lowchurn.metrics import decide
from lowchurn.theory import Margin, optimal_margin, optimal_mixture

SHARES = st.floats(0, 1, allow_subnormal=False)


@st.composite
def worlds(draw, rows=6, classes=3):
    """Class probabilities, decisions of a base, and weights of rows."""
    scores = draw(arrays(float, (rows, classes), elements=st.floats(0.01, 1).map(lambda x: round(x, 3))))
    base = draw(arrays(np.int64, rows, elements=st.integers(0, classes - 1)))
    weight = draw(arrays(float, rows, elements=st.sampled_from([1.0, 2.0, 0.5])))
    return scores / scores.sum(axis=1, keepdims=True), base, weight / weight.sum()


def every_rule(p, base, weight):
    """Accuracy, changed and broken share of each of the ``m ** n`` ways to decide the rows."""
    n, m = p.shape
    for decided in itertools.product(range(m), repeat=n):
        yield outcome(p, base, weight, np.array(decided))


def outcome(p, base, weight, decided):
    rows, changed = np.arange(len(base)), decided != base
    return (
        float(weight @ p[rows, decided]),
        float(weight @ changed),
        float(weight @ (changed * p[rows, base])),
    )


@settings(max_examples=25, deadline=None)
@given(worlds(), SHARES, SHARES, st.sampled_from(["changed", "broken", "both"]))
def test_no_rule_that_spends_no_more_is_more_accurate(world, changed, broken, which):
    p, base, weight = world
    budgets = {"max_changed": changed, "max_broken": broken / 2}
    asked = {name: value for name, value in budgets.items() if which == "both" or name.endswith(which)}
    rule = optimal_margin(p, base, **asked, sample_weight=weight)
    mine = outcome(p, base, weight, rule.decisions(p, base))
    assert mine[1] <= asked.get("max_changed", 1) + 1e-9
    assert mine[2] <= asked.get("max_broken", 1) + 1e-9
    spent = mine[1] if "max_changed" in asked else 1, mine[2] if "max_broken" in asked else 1
    best = max(a for a, c, b in every_rule(p, base, weight) if c <= spent[0] + 1e-12 and b <= spent[1] + 1e-12)
    assert mine[0] >= best - 1e-9


@settings(max_examples=50, deadline=None)
@given(worlds(rows=40), SHARES)
def test_the_margin_is_the_least_that_keeps_the_budget(world, epsilon):
    p, base, weight = world
    rule = optimal_margin(p, base, max_changed=epsilon, sample_weight=weight)
    if rule.margin > 0:
        less = Margin(math.nextafter(rule.margin, 0))
        assert weight @ (less.decisions(p, base) != base) > epsilon


@settings(max_examples=50, deadline=None)
@given(worlds(rows=40), SHARES, SHARES, st.floats(0, 3))
def test_changed_sets_are_nested(world, one, other, ratio):
    p, base, _ = world
    small, large = sorted((one, other))
    changed = [Margin(t, ratio).decisions(p, base) != base for t in (small, large)]
    assert not (changed[1] & ~changed[0]).any()
    assert not (Margin(small, ratio + 1).decisions(p, base) != base)[~changed[0]].any()


@settings(max_examples=50, deadline=None)
@given(worlds(rows=30), SHARES, st.floats(0, 3), st.sampled_from([None, (0.2, 0.5, 0.3)]))
def test_probabilities_agree_with_decisions(world, margin, ratio, values):
    p, base, _ = world
    rule = Margin(margin, ratio, values)
    proba, decided = rule.proba(p, base), rule.decisions(p, base)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    worth = proba * (1 if values is None else np.array(values))
    best = worth.max(axis=1)
    assert (worth[np.arange(len(base)), decided] >= best - 1e-12).all()


@settings(max_examples=50, deadline=None)
@given(worlds(rows=20), st.floats(0, 0.9))
def test_it_is_proposition_1_with_the_decision_in_place_of_probabilities(world, share):
    p, base, _ = world
    kept = np.eye(3)[base]
    np.testing.assert_allclose(Margin(share / (1 - share)).proba(p, base), (1 - share) * p + share * kept)


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("values", [None, (0.5, 1.0, 0.8)])
def test_probabilities_agree_with_decisions_where_rows_tie(margin, values):
    p = np.array([q for q in itertools.product(range(11), repeat=3) if sum(q) == 10]) / 10  # a forest of ten trees
    p, base = np.repeat(p, 3, axis=0), np.tile([0, 1, 2], len(p))
    rule = Margin(margin, values=values)
    moved = rule.proba(p, base)
    np.testing.assert_array_equal((moved * (values or (1, 1, 1))).argmax(axis=1), rule.decisions(p, base))
    np.testing.assert_allclose(moved.sum(axis=1), 1)


# Budgets of groups


def spent_in_groups(base, weight, group, decided):
    """The share of changed decisions among the rows of each group."""
    changed = decided != base
    return {g: float(weight[group == g] @ changed[group == g] / weight[group == g].sum()) for g in np.unique(group)}


@settings(max_examples=25, deadline=None)
@given(
    worlds(),
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
    st.dictionaries(st.sampled_from([0, 1]), SHARES, min_size=1),
    st.none() | SHARES,
    st.none() | SHARES.map(lambda share: share / 2),
)
def test_no_rule_that_spends_no_more_in_any_group_is_more_accurate(world, group, budgets, whole, broken):
    """One margin per group, beside a budget of all rows the larger of both, beside broken decisions a ratio as well."""
    p, base, weight = world
    group = np.array(group)
    asked = budgets if whole is None else {**budgets, None: whole}
    rule = optimal_margin(p, base, asked, broken, group=group, sample_weight=weight)
    decided = rule.decisions(p, base, group)
    mine, mine_in = outcome(p, base, weight, decided), spent_in_groups(base, weight, group, decided)
    assert mine[1] <= (1 if whole is None else whole) + 1e-9
    assert mine[2] <= (1 if broken is None else broken) + 1e-9
    assert all(mine_in.get(g, 0) <= most + 1e-9 for g, most in budgets.items())
    best = 0.0
    for each in itertools.product(range(3), repeat=6):
        other = np.array(each)
        accuracy, changed, broke = outcome(p, base, weight, other)
        inside = spent_in_groups(base, weight, group, other)
        within = all(inside.get(g, 0) <= mine_in.get(g, 0) + 1e-12 for g in budgets)
        within = within and (whole is None or changed <= mine[1] + 1e-12)
        if within and (broken is None or broke <= mine[2] + 1e-12):
            best = max(best, accuracy)
    assert mine[0] >= best - 1e-9


@settings(max_examples=50, deadline=None)
@given(worlds(rows=40), SHARES, SHARES, SHARES)
def test_margins_of_groups_are_those_of_the_groups_by_themselves(world, one, other, whole):
    p, base, weight = world
    group = np.arange(40) % 2
    rule = optimal_margin(p, base, {0: one, 1: other}, group=group, sample_weight=weight)
    for g, most in enumerate((one, other)):
        rows = group == g
        alone = optimal_margin(p[rows], base[rows], most, sample_weight=weight[rows])
        assert rule.groups[g] == pytest.approx(alone.margin)
    assert rule.margin == 0
    beside = optimal_margin(p, base, {0: one, 1: other, None: whole}, group=group, sample_weight=weight)
    assert beside.groups == rule.groups
    if beside.margin > 0:  # it is the least
        less = dataclasses.replace(beside, margin=math.nextafter(beside.margin, 0))
        assert weight @ (less.decisions(p, base, group) != base) > whole


def test_groups_by_what_the_base_decides():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1], size=2000)
    base = rng.integers(2, size=2000)
    rule = optimal_margin(p, base, {0: 0.01, 1: 0.1}, group=base)
    changed = rule.decisions(p, base, group=base) != base
    assert 0.005 < changed[base == 0].mean() <= 0.01
    assert 0.09 < changed[base == 1].mean() <= 0.1


@settings(max_examples=30, deadline=None)
@given(worlds(rows=30), SHARES, SHARES, st.floats(0, 3))
def test_rows_of_an_unknown_group_have_the_largest_margin(world, one, other, ratio):
    p, base, _ = world
    rule = Margin(0.05, ratio, groups=(one, other))
    group = np.arange(30) % 3 - 1
    largest = Margin(max(0.05, one, other), ratio)
    unknown = group == -1
    np.testing.assert_array_equal(rule.decisions(p, base, group)[unknown], largest.decisions(p, base)[unknown])
    np.testing.assert_array_equal(rule.proba(p, base, group)[unknown], largest.proba(p, base)[unknown])
    np.testing.assert_array_equal(decide(rule.proba(p, base, group)), rule.decisions(p, base, group))


def test_a_mixture_of_probabilities_is_not_optimal_for_decisions():
    """The base is sure of row 0 and torn about row 1; the mixture spends the one change where it gains less."""
    p, g = np.array([[0.05, 0.95], [0.3, 0.7]]), np.array([[0.99, 0.01], [0.51, 0.49]])
    base = np.array([0, 0])
    sticky = optimal_margin(p, base, max_changed=0.5).decisions(p, base)
    lams = np.linspace(0, 1, 1001)
    mixed = [(lam * p + (1 - lam) * g).argmax(axis=1) for lam in lams]
    within = [one for one in mixed if (one != base).mean() == 0.5]
    assert sticky.tolist() == [1, 0]
    assert all(one.tolist() == [0, 1] for one in within)
    assert optimal_mixture(p, g, 0.1).lam < 1


def test_a_threshold_is_a_value_per_class():
    rng = np.random.default_rng(0)
    p1 = rng.uniform(size=500)
    p = np.stack([1 - p1, p1], axis=1)
    base = rng.integers(2, size=500)
    rule = Margin(0.07, values=(0.2, 0.8))
    expected = np.where(base == 1, p1 >= 0.2 - 0.07, p1 > 0.2 + 0.07)
    np.testing.assert_array_equal(rule.decisions(p, base), expected)
    np.testing.assert_array_equal(rule.proba(p, base)[:, 1] >= 0.2, expected)
    np.testing.assert_allclose(rule.gain(p, base), np.where(base == 1, 0.2 - p1, p1 - 0.2))


def test_costs_in_place_of_probabilities():
    p, costs = np.array([[0.9, 0.1], [0.6, 0.4]]), np.array([[0.0, 8.0], [1.0, 0.0]])  # of deciding row for column
    worth = -(p @ costs.T)
    assert Margin().decisions(worth, [0, 0]).tolist() == [0, 1]  # 0.8 < 0.9 and 3.2 > 0.6
    assert Margin(3.0).decisions(worth, [0, 0]).tolist() == [0, 0]


def test_classes_that_exist_no_more_always_change():
    p = np.array([[0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
    base = np.array([-1, 0, 1])
    frozen = optimal_margin(p, base, max_changed=0)
    assert frozen.margin == math.inf
    assert frozen.decisions(p, base).tolist() == [0, 0, 1]
    np.testing.assert_array_equal(frozen.proba(p, base), [[0.6, 0.4], [1, 0], [0, 1]])
    assert optimal_margin(p, base, max_changed=0.7).decisions(p, base).tolist() == [0, 1, 1]


def test_no_budget_keeps_no_decision():
    p = np.array([[0.4, 0.6], [0.5, 0.5]])
    assert optimal_margin(p, [0, 1]) == Margin()
    assert Margin().decisions(p, [0, 1]).tolist() == [1, 1]  # a tie is no gain
    assert Margin(1.0).decisions(p, [0, 1]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Margin(-0.1), "margin must be"),
        (lambda: Margin(values=(0.0, 1.0)), "values must be"),
        (lambda: Margin(values=(1.0, 1.0)).gain([[0.2, 0.3, 0.5]], [0]), "one number per class, got 2 for 3"),
        (lambda: Margin().decisions([[0.2, 0.8]], [2]), "class indices 0 to 1, or -1, got 2"),
        (lambda: Margin().decisions([[0.2, 0.8]], [0, 1]), r"shape \(n, m\) and base shape \(n,\)"),
        (lambda: optimal_margin([[0.2, 0.8]], [0], max_changed=2), "max_changed must be in"),
        (lambda: optimal_margin([[0.2, 0.8]], [0], {0: 2.0}, group=[0]), "max_changed must be in"),
        (lambda: optimal_margin([[0.2, 0.8]], [0], {0: 0.1}, group=[0, 1]), "group must hold a number"),
        (lambda: Margin(groups=(0.1,)).decisions([[0.2, 0.8]], [0]), "needs group, one number per row, got None"),
        (lambda: Margin(groups=(0.1,)).decisions([[0.2, 0.8]], [0], [1]), "group must hold a number from 0 to 0"),
        (lambda: Margin(groups=(-0.1,)), "groups must be in"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("threshold", [None, 0.2, 0.5, 0.7])
@pytest.mark.parametrize("margin", [0, 0.05, 0.1, 0.3])
def test_rows_that_tie_are_decided_alike_by_rule_and_probabilities(threshold, margin):
    rng = np.random.default_rng(0)
    p1 = np.round(rng.uniform(size=5000), 2)  # of which many lie at the margin, up to rounding
    p, base = np.stack([1 - p1, p1], axis=1), rng.integers(2, size=5000)
    rule = Margin(margin, values=None if threshold is None else (threshold, 1 - threshold))
    np.testing.assert_array_equal(decide(rule.proba(p, base), threshold), rule.decisions(p, base))
