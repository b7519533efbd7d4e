"""Intervals cover, in worlds where the truth is known; a retrain and an audit give the same churn the same interval."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import optimize
from scipy.stats import binom, binomtest, multinomial
from sklearn.linear_model import LogisticRegression

from lowchurn import LowChurnClassifier
from lowchurn._estimates import (
    critical,
    effective_rows,
    paired_difference,
    proportion,
    share_of_rows,
    weighted_proportion,
)
from lowchurn.audit import audit
from lowchurn.selection._certify import churn_upper_bound
from lowchurn.strategies import Distill


@pytest.mark.parametrize(("events", "n"), [(0, 1), (1, 1), (0, 50), (3, 50), (25, 50), (500, 10**8)])
def test_a_share_agrees_with_scipy(events, n):
    ours = proportion(events / n, n)
    theirs = binomtest(events, n).proportion_ci(0.95, method="exact")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert ours.low <= ours.value <= ours.high


def test_undefined_is_nan_with_its_count():
    for estimate in (proportion(math.nan, 0), paired_difference(math.nan, math.nan, 0)):
        assert not estimate.defined
        assert math.isnan(estimate.low)
        assert estimate.n == 0


def binomial_coverage(n, p, confidence=0.95):
    """Exact coverage: every outcome, weighted with its probability."""
    covered = 0.0
    for k in range(n + 1):
        estimate = proportion(k / n, n, confidence)
        covered += (estimate.low <= p <= estimate.high) * binom.pmf(k, n, p)
    return covered


@pytest.mark.parametrize("n", [20, 200])
@pytest.mark.parametrize("p", [0.003, 0.02, 0.1, 0.4])
def test_shares_cover(n, p):
    assert binomial_coverage(n, p) >= 0.95


@pytest.mark.slow
def test_shares_cover_over_a_fine_grid():
    shares = np.linspace(0.001, 0.5, 60)
    for n in (30, 300, 1000):
        covered = [binomial_coverage(n, p) for p in shares]
        assert min(covered) >= 0.95  # exact: never below its level


def tango_by_maximisation(delta, fixed, broken, n):
    """The score statistic with the restricted likelihood maximised by a general optimiser."""

    def negative(q):
        # q is the rate of broken rows; fixed is q + delta.
        parts = [(fixed, q + delta), (broken, q), (n - fixed - broken, 1 - 2 * q - delta)]
        return -sum(k * math.log(p) for k, p in parts if k)

    low, high = max(0.0, -delta) + 1e-12, (1 - delta) / 2 - 1e-12
    q = optimize.minimize_scalar(negative, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
    return (fixed - broken - n * delta) / math.sqrt(n * (2 * q + delta * (1 - delta)))


@pytest.mark.parametrize(("fixed", "broken", "n"), [(12, 5, 100), (3, 1, 44), (40, 70, 900)])
def test_the_score_interval_inverts_the_score_test(fixed, broken, n):
    estimate = paired_difference(fixed / n, broken / n, n)
    z = critical(0.95)
    assert tango_by_maximisation(estimate.low, fixed, broken, n) == pytest.approx(z, abs=1e-3)
    assert tango_by_maximisation(estimate.high, fixed, broken, n) == pytest.approx(-z, abs=1e-3)
    mirrored = paired_difference(broken / n, fixed / n, n)
    assert (mirrored.low, mirrored.high) == pytest.approx((-estimate.high, -estimate.low), abs=1e-9)


@pytest.mark.parametrize("rates", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.5, 0.5)])
@pytest.mark.parametrize("n", [1, 2, 1000])
def test_the_score_interval_is_sane_at_the_edges(rates, n):
    estimate = paired_difference(*rates, n)
    assert -1 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert estimate.low < estimate.high
    if rates == (0.0, 0.0):
        z = critical(0.95)
        assert estimate.high == pytest.approx(z**2 / (n + z**2))


def paired_coverage(n, fixed, broken):
    """Exact coverage: every outcome that matters, weighted with its probability."""
    world = multinomial(n, [fixed, broken, 1 - fixed - broken])
    covered = total = 0.0
    reach = [
        range(int(max(0, n * p - 7 * math.sqrt(n * p))), int(n * p + 7 * math.sqrt(n * p) + 6)) for p in (fixed, broken)
    ]
    for f in reach[0]:
        for b in reach[1]:
            chance = world.pmf([f, b, n - f - b]) if f + b <= n else 0.0
            if chance < 1e-7:
                continue
            estimate = paired_difference(f / n, b / n, n)
            covered += chance * (estimate.low <= fixed - broken <= estimate.high)
            total += chance
    assert total > 0.999
    return covered


@pytest.mark.parametrize(("n", "fixed", "broken"), [(50, 0.1, 0.05), (500, 0.006, 0.006), (500, 0.004, 0.01)])
def test_accuracy_changes_cover(n, fixed, broken):
    assert paired_coverage(n, fixed, broken) > 0.93


@pytest.mark.slow
@pytest.mark.parametrize("n", [30, 200, 2000])
def test_accuracy_changes_cover_over_a_grid(n):
    rates = [(0.1, 0.1), (0.05, 0.01), (0.003, 0.001), (0.2, 0.02), (0.01, 0.0), (0.002, 0.002)]
    covered = [paired_coverage(n, *pair) for pair in rates]
    assert min(covered) > 0.925
    assert np.mean(covered) > 0.945


def test_effective_rows_are_those_of_the_variance():
    assert effective_rows(0.5, 0.25 / 80, kish=100.0) == pytest.approx(80)
    assert effective_rows(0.0, 0.0, kish=100.0) == 100
    alike = weighted_proportion(hits=15.0, total=150.0, hits2=22.5, total2=225.0, n=100)  # every weight is 1.5
    assert (alike.low, alike.high) == pytest.approx((proportion(0.1, 100).low, proportion(0.1, 100).high))
    change = paired_difference(fixed_rate=0.03, broken_rate=0.01, n=1000)
    assert (change.low, change.high) == pytest.approx((0.008003, 0.03357), rel=1e-3)


@pytest.mark.parametrize("rates", [(0.02, 0.2), (0.1, 0.01), (0.05, 0.05)])
def test_weighted_shares_cover_whatever_the_weights_have_to_do_with_the_hits(rates):
    """Kish's number of rows alone covers 91 % in the first of these worlds, that of the variance 91 % in the last."""
    rng = np.random.default_rng(0)
    truth = np.average(rates, weights=[0.95, 0.05 * 20])
    inside = 0
    for _ in range(500):
        heavy = rng.random(1000) < 0.05
        hits = rng.random(1000) < np.where(heavy, rates[1], rates[0])
        found = share_of_rows(hits, np.where(heavy, 20.0, 1.0))
        inside += found.low <= truth <= found.high
    assert inside / 500 > 0.925


def test_a_certificate_has_the_bound_of_the_interval():
    changed = np.r_[np.ones(12), np.zeros(388)]
    assert churn_upper_bound(changed, 0.975) == proportion(12 / 400, 400, 0.95).high


@pytest.mark.filterwarnings("ignore:LowChurnClassifier")
@pytest.mark.parametrize("weights", ["none", "copies", "related", "unrelated"])
def test_a_retrain_and_an_audit_agree_on_the_interval(weights):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 4))
    y = (X[:, 0] + X[:, 1] + rng.normal(size=900) > 0).astype(int)
    held_out = np.arange(900) >= 500
    weight = {
        "none": None,
        "copies": rng.integers(1, 4, 900).astype(float),
        "related": np.where(X[:, 1] > 1, 3.5, 0.5),
        "unrelated": rng.uniform(0.2, 3.0, 900),
    }[weights]
    base = LogisticRegression().fit(X[:60, :1], y[:60])
    before = lambda rows: base.predict_proba(rows[:, :1])  # noqa: E731
    model = LowChurnClassifier(LogisticRegression(), base=before, strategies=[Distill(0.5)], max_churn=0.9)
    model.fit(X, y, sample_weight=weight, held_out=held_out)
    candidate = next(c for c in model.frontier_ if c.name in model.selection_.served)

    rows = np.flatnonzero(held_out)
    if weights == "copies":  # for an audit a copy is a row of its own
        rows = np.repeat(rows, weight[rows].astype(int))
    table = pd.DataFrame({"id": np.arange(len(rows)), "prediction": base.predict(X[rows, :1]), "y": y[rows]})
    if weights in ("related", "unrelated"):
        table["w"] = weight[rows]
    new = table[["id"]].assign(prediction=model.predict(X[rows]))
    found = audit(table, new, label="y", weight="w" if "w" in table else None)

    pairs = [(found.churn, "churn"), (found.accuracy_new, "accuracy"), (found.broken, "broken"), (found.fixed, "fixed")]
    for estimate, name in pairs:
        assert 0 < estimate.value < 1
        assert getattr(candidate, name) == pytest.approx(estimate.value, abs=1e-12)
        assert getattr(candidate, f"{name}_interval") == pytest.approx((estimate.low, estimate.high), abs=1e-12)
