"""What is tried and served by default: sticky decisions, few trainings; the aim below a budget; the paper's way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from lowchurn import LowChurnClassifier
from lowchurn.estimator._measuring import Terms
from lowchurn.estimator._to_try import OVER, RISK, aim_below, margins_for
from lowchurn.strategies import Distill, Sticky
from lowchurn.theory import Margin

X, Y = make_classification(6000, 12, n_informative=6, n_classes=3, class_sep=0.8, flip_y=0.05, random_state=0)
OLD, TRAIN, TRAFFIC, TEST = slice(0, 300), slice(0, 2000), slice(2000, 3500), slice(3500, None)
NEW = np.arange(2000) >= 300
ESTIMATOR = make_pipeline(StandardScaler(), LogisticRegression())


@pytest.fixture(scope="module")
def base():
    return clone(ESTIMATOR).fit(X[OLD], Y[OLD])


def fitted(base, max_churn=0.05, traffic=None, **parameters):
    model = LowChurnClassifier(clone(ESTIMATOR), base=base, max_churn=max_churn, random_state=0, **parameters)
    return model.fit(X[TRAIN], Y[TRAIN], new=NEW, traffic=traffic)


def strategies_of(model):
    return {row.strategy for row in model.frontier_}


# What is tried


def test_auto_is_the_default(base):
    one, other, none = fitted(base), fitted(base, strategies="auto"), fitted(base, strategies=None)
    assert one.selection_ == other.selection_ == none.selection_
    assert strategies_of(one) == {"cold", "sticky", "interpolate", "served-mix", "distill"}
    assert one.selection_.trainings <= 4


def test_with_traffic_alone_it_is_one_training(base):
    model = fitted(base, traffic=X[TRAFFIC])
    assert strategies_of(model) == {"cold", "sticky"}
    assert model.selection_.trainings == 1
    assert 0.025 < np.mean(model.predict(X[TRAFFIC]) != base.predict(X[TRAFFIC])) <= 0.05


def test_a_plain_retrain_within_the_budget_is_served_alone(base):
    for traffic in (None, X[TRAFFIC]):
        model = fitted(base, max_churn=0.6, traffic=traffic, strategies="sticky")
        assert model.selection_.served == {"cold": 1.0}
        assert model.selection_.models == 1


def test_soft_churn_has_no_sticky_decisions(base):
    assert "sticky" not in strategies_of(fitted(base, churn="soft"))


def test_sticky_decisions_give_way_only_to_what_is_clearly_better(base):
    for max_churn in (0.02, 0.05, 0.1):
        model = fitted(base, max_churn=max_churn)
        within = [row for row in model.frontier_ if row.churn <= max_churn]
        served = next(row for row in within if row.name in model.selection_.served)
        best = max(row.accuracy for row in within)
        if served.strategy == "sticky":
            assert best - served.accuracy <= np.sqrt(2 * max_churn / served.rows) + 1e-12
        else:
            sticky = max(row.accuracy for row in within if row.strategy == "sticky")
            assert served.accuracy > sticky


# Trust


def test_the_margin_grows_with_the_lead_of_the_base(base):
    """The served rule, row by row: p_j - p_b > t * (1 + trust * (g_b - g_j)) for some j."""
    model = fitted(base, traffic=X[TRAFFIC])
    (name,) = model.selection_.served
    parameters = next(row.parameters for row in model.frontier_ if row.name == name)
    assert parameters["trust"] == 5
    p, g = clone(ESTIMATOR).fit(X[TRAIN], Y[TRAIN]).predict_proba(X[TEST]), base.predict_proba(X[TEST])
    expected = []
    for own, before in zip(p, g, strict=True):
        b = before.argmax()
        beyond = own - own[b] - parameters["margin"] * (1 + parameters["trust"] * (before[b] - before))
        beyond[b] = 0.0
        expected.append(beyond.argmax())
    np.testing.assert_array_equal(model.predict(X[TEST]), expected)
    np.testing.assert_array_equal(model.predict_proba(X[TEST]).argmax(axis=1), expected)


def test_changed_rows_are_nested_along_the_margin(base):
    model = fitted(base, max_churn=0.3, traffic=X[TRAFFIC])
    before, last = base.predict(X[TEST]), None
    for level in (0.2, 0.1, 0.05, 0.02, 0.01):
        changed = model.dial(level).predict(X[TEST]) != before
        assert last is None or not (changed & ~last).any()
        last = changed


def test_a_base_that_decides_otherwise_than_its_probabilities_is_not_trusted():
    y = (Y == 1).astype(int)
    fair = clone(ESTIMATOR).fit(X[OLD], y[OLD])

    class Odd:
        classes_ = np.array([0, 1])

        def predict_proba(self, rows):
            return fair.predict_proba(rows)

        def predict(self, rows):
            return (fair.predict_proba(rows)[:, 1] > 0.9).astype(int)

    model = LowChurnClassifier(fair, base=Odd(), max_churn=0.05, random_state=0).fit(X[TRAIN], y[TRAIN], new=NEW)
    assert {row.parameters["trust"] for row in model.frontier_ if row.strategy == "sticky"} == {0.0}
    # A threshold is known, so that the base does as it should.
    base = FixedThresholdClassifier(fair, threshold=0.2).fit(X[OLD], y[OLD])
    model = LowChurnClassifier(fair, base=base, max_churn=0.05, random_state=0).fit(X[TRAIN], y[TRAIN], new=NEW)
    assert model.threshold_ == 0.2
    assert {row.parameters["trust"] for row in model.frontier_ if row.strategy == "sticky"} == {5.0}


@given(st.floats(0.01, 0.99), st.floats(0.1, 20), st.integers(0, 2**32 - 1))
def test_where_the_base_is_sure_enough_nothing_changes_whatever_the_retrain_says(margin, trust, seed):
    """Drift makes retrains overconfident; what may change then is bounded by the base's own lead."""
    rng = np.random.default_rng(seed)
    p, g = np.eye(3)[rng.integers(3, size=50)], rng.dirichlet(np.ones(3), size=50)
    blend = Sticky(margin=margin, trust=trust).blend
    mixed, before = (1 - blend.lean) * p + blend.lean * g, g.argmax(axis=1)
    changed = Margin(blend.margin).decisions(mixed, before) != before
    lead = np.sort(g, axis=1)
    assert (lead[:, 2] - lead[:, 1])[changed].max(initial=0) < (1 / margin - 1) / trust + 1e-9


@given(
    st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=1, max_size=40),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
)
def test_margins_are_the_least_that_keep_a_level(reach, levels):
    reach, weights = np.array(reach), np.ones(len(reach))
    for level, margin in zip(levels, margins_for(reach, weights, levels), strict=True):
        assert np.mean(reach > margin) <= level * (1 + 1e-9)
        smaller = reach[(reach > 0) & (reach < margin)]
        for less in (*smaller, *([0.0] if margin > 0 else [])):
            assert np.mean(reach > less) > level * (1 - 1e-9)


# Where to aim


@pytest.mark.parametrize("budget", [0.005, 0.01, 0.02, 0.05, 0.2])
def test_the_aim_is_the_most_that_seldom_breaks_the_budget(budget):
    last = 0.0
    for rows in (100, 300, 600, 1500, 5000, 50_000):
        aim = aim_below(budget, Terms(True, "log", rows))
        assert 0.5 * budget <= aim <= budget
        k = round(aim * rows)
        if aim > 0.5 * budget:
            assert k == pytest.approx(aim * rows)
            assert beta.sf(OVER * budget, k + 0.5, rows - k + 0.5) <= RISK
            if (k + 1) / rows <= budget:
                assert beta.sf(OVER * budget, k + 1.5, rows - k - 0.5) > RISK
        if rows >= 1500:
            assert aim >= last - 1 / rows  # more rows, less is held back
        last = aim
    assert last == pytest.approx(budget, rel=0.01)


def test_the_aim_does_what_it_promises():
    """Draw rows, take the margin at the aim, look how often the true churn is above 1.25 budgets: at most 8 %."""
    rng, rows, budget = np.random.default_rng(0), 1500, 0.02
    k = round(aim_below(budget, Terms(True, "log", rows)) * rows)
    gains = np.sort(rng.random((4000, rows)), axis=1)[:, ::-1]  # uniform: the true churn at a margin t is 1 - t
    margins = (gains[:, k - 1] + gains[:, k]) / 2
    broken = int(np.sum(1 - margins > OVER * budget))
    assert broken <= binom.ppf(0.999, 4000, RISK)
    assert broken >= 0.01 * 4000  # nor is more held back than needed


def test_what_is_left_of_the_budget_is_in_the_selection(base):
    selection = fitted(base, traffic=X[TRAFFIC]).selection_
    assert selection.budget_left == pytest.approx(0.05 - selection.churn)


# The paper's way, and one model alone


def test_paper_is_algorithm_1_as_printed(base):
    model = fitted(base, strategies="paper")
    assert strategies_of(model) == {"cold", "distill"}
    assert model.selection_.trainings == 10
    assert set(model.selection_.served) <= {"cold", *(row.name for row in model.frontier_)}
    assert sum(model.selection_.served.values()) == pytest.approx(1)
    assert model.selection_.churn <= 0.05
    assert not any(name.startswith("base") for name in model.selection_.served)


def test_without_the_base_in_service_one_model_is_served(base):
    model = fitted(base, max_churn=0.1, serve_base=False)
    assert strategies_of(model) == {"cold", "interpolate", "distill"}
    assert model.selection_.models == 1
    assert model.model_ is not None
    sgd = SGDClassifier(loss="log_loss", random_state=0).fit(X[OLD], Y[OLD])
    soups = LowChurnClassifier(base=sgd, max_churn=0.1, serve_base=False, random_state=0)
    assert strategies_of(soups.fit(X[TRAIN], Y[TRAIN], new=NEW)) == {"cold", "soup", "distill"}
    tree = DecisionTreeClassifier(max_depth=3, random_state=0).fit(X[OLD], Y[OLD])
    alone = LowChurnClassifier(base=tree, max_churn=0.2, serve_base=False, random_state=0)
    assert strategies_of(alone.fit(X[TRAIN], Y[TRAIN], new=NEW)) == {"cold", "distill"}


def test_without_the_base_in_service_nothing_falls_back_on_it():
    tree = DecisionTreeClassifier(max_depth=6, random_state=0).fit(X[OLD], Y[OLD])
    model = LowChurnClassifier(base=tree, max_churn=0.001, serve_base=False, random_state=0)
    with pytest.warns(UserWarning, match="serve_base=False"):
        model.fit(X[TRAIN], Y[TRAIN], new=NEW)
    assert not model.selection_.feasible
    assert model.selection_.models == 1


def test_sticky_without_the_base_in_service_needs_previous_decisions(base):
    model = fitted(base, serve_base=False, strategies="sticky", traffic=X[TRAFFIC])
    with pytest.raises(ValueError, match="previous="):
        model.predict(X[TEST])
    kept = fitted(base, strategies="sticky", traffic=X[TRAFFIC])
    np.testing.assert_array_equal(model.predict(X[TEST], previous=base.predict(X[TEST])), kept.predict(X[TEST]))


def test_bad_parameters(base):
    with pytest.raises(ValueError, match="serve_base must be True or False, got 'no'"):
        fitted(base, serve_base="no")
    with pytest.raises(ValueError, match="max_churn=0 keeps the base itself in service"):
        fitted(base, max_churn=0, serve_base=False)
    with pytest.raises(ValueError, match="unknown strategy 'papr'. Did you mean 'paper'"):
        fitted(base, strategies="papr")
    with pytest.raises(ValueError, match="'paper' stands alone"):
        fitted(base, strategies=["paper", Distill(0.5)])
    tree = DecisionTreeClassifier().fit(X[OLD], Y[OLD])
    model = LowChurnClassifier(base=tree, strategies="dial", serve_base=False, max_churn=0.1)
    with pytest.raises(ValueError, match="strategies='dial' cannot be used here: serve_base=False"):
        model.fit(X[TRAIN], Y[TRAIN])
