"""Intervals cover, tests hold their level, discoveries are mostly true: checked in worlds where the truth is known."""

import math

import numpy as np
import pytest
from scipy import optimize
from scipy import stats as scipy_stats
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from lowchurn.audit import _statistics as stats


def test_the_rule_between_exact_and_wilson_is_named():
    assert stats.proportion(9 / 1000, 1000).method.startswith("exact")
    assert stats.proportion(10 / 1000, 1000).method == "Wilson"
    assert stats.proportion(991 / 1000, 1000).method.startswith("exact")


@pytest.mark.parametrize(("events", "n"), [(0, 1), (1, 1), (0, 50), (3, 50), (25, 50), (500, 10**8)])
def test_a_share_agrees_with_scipy(events, n):
    ours = stats.proportion(events / n, n)
    method = "exact" if ours.method.startswith("exact") else "wilson"
    theirs = scipy_stats.binomtest(events, n).proportion_ci(0.95, method=method)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert ours.low <= ours.value <= ours.high


def test_undefined_is_nan_with_its_count():
    for estimate in (stats.proportion(math.nan, 0), stats.paired_difference(math.nan, math.nan, 0)):
        assert not estimate.defined
        assert math.isnan(estimate.low)
        assert estimate.n == 0
    assert math.isnan(stats.mcnemar(0, 0).p_value)
    assert math.isnan(stats.non_inferiority(math.nan, math.nan, 0, 0.1).p_value)


def binomial_coverage(n, p, confidence=0.95):
    """Exact coverage: every outcome, weighted with its probability."""
    covered = 0.0
    for k in range(n + 1):
        estimate = stats.proportion(k / n, n, confidence)
        covered += (estimate.low <= p <= estimate.high) * scipy_stats.binom.pmf(k, n, p)
    return covered


@pytest.mark.parametrize("n", [20, 200])
@pytest.mark.parametrize("p", [0.003, 0.02, 0.1, 0.4])
def test_shares_cover(n, p):
    assert binomial_coverage(n, p) > 0.93


@pytest.mark.slow
def test_shares_cover_over_a_fine_grid():
    shares = np.linspace(0.001, 0.5, 60)
    for n in (30, 300, 1000):
        covered = [binomial_coverage(n, p) for p in shares]
        assert min(covered) > 0.92
        assert np.mean(covered) > 0.945


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
    estimate = stats.paired_difference(fixed / n, broken / n, n)
    z = stats.critical(0.95)
    assert tango_by_maximisation(estimate.low, fixed, broken, n) == pytest.approx(z, abs=1e-3)
    assert tango_by_maximisation(estimate.high, fixed, broken, n) == pytest.approx(-z, abs=1e-3)
    mirrored = stats.paired_difference(broken / n, fixed / n, n)
    assert (mirrored.low, mirrored.high) == pytest.approx((-estimate.high, -estimate.low), abs=1e-9)


@pytest.mark.parametrize("rates", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.5, 0.5)])
@pytest.mark.parametrize("n", [1, 2, 1000])
def test_the_score_interval_is_sane_at_the_edges(rates, n):
    estimate = stats.paired_difference(*rates, n)
    assert -1 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert estimate.low < estimate.high
    if rates == (0.0, 0.0):
        z = stats.critical(0.95)
        assert estimate.high == pytest.approx(z**2 / (n + z**2))


def paired_coverage(n, fixed, broken):
    """Exact coverage: every outcome that matters, weighted with its probability."""
    world = scipy_stats.multinomial(n, [fixed, broken, 1 - fixed - broken])
    covered = total = 0.0
    reach = [
        range(int(max(0, n * p - 7 * math.sqrt(n * p))), int(n * p + 7 * math.sqrt(n * p) + 6)) for p in (fixed, broken)
    ]
    for f in reach[0]:
        for b in reach[1]:
            chance = world.pmf([f, b, n - f - b]) if f + b <= n else 0.0
            if chance < 1e-7:
                continue
            estimate = stats.paired_difference(f / n, b / n, n)
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


@pytest.mark.parametrize(("fixed", "broken"), [(12, 3), (0, 5), (40, 41), (1, 0)])
def test_mcnemar_agrees_with_statsmodels(fixed, broken):
    theirs = statsmodels_mcnemar([[5, fixed], [broken, 5]], exact=True).pvalue
    assert stats.mcnemar(fixed, broken).p_value == pytest.approx(theirs)


def test_non_inferiority_agrees_with_the_interval_and_holds_its_level():
    rng = np.random.default_rng(2)
    n, margin = 800, 0.02
    rejected = 0
    for fixed, broken, _ in rng.multinomial(n, [0.02, 0.04, 0.94], size=2000):  # worse by exactly the margin
        p = stats.non_inferiority(fixed / n, broken / n, n, margin).p_value
        assert (p < 0.025) == (stats.paired_difference(fixed / n, broken / n, n).low > -margin)
        rejected += p < 0.025
    assert rejected / 2000 < 0.035


def test_false_discoveries_are_held():
    rng = np.random.default_rng(3)
    shares = []
    for _ in range(300):
        rows, true = 400, np.r_[np.full(40, 0.05), np.full(10, 0.15)]
        flips = rng.binomial(rows, true)
        p = [stats.more_flips_than_chance(f, rows, flips.sum(), rows * 50) for f in flips]
        found = stats.false_discovery(p) <= 0.05
        shares.append(found[:40].sum() / max(found.sum(), 1))
    assert np.mean(shares) < 0.05


def test_false_discovery_leaves_undefined_alone():
    q = stats.false_discovery([math.nan, 0.5, math.nan])
    assert np.isnan(q[[0, 2]]).all()
    assert q[1] == 0.5
    assert np.isnan(stats.false_discovery([math.nan])).all()
    assert stats.false_discovery([]).shape == (0,)


@pytest.mark.parametrize("size", [1, 8])
def test_the_bootstrap_covers_with_and_without_groups(size):
    """A mean of values that groups share: resampling groups covers, resampling rows would not."""
    rng = np.random.default_rng(4)
    inside = 0
    for seed in range(200):
        shared = np.repeat(rng.normal(size=120), size) + 0.3 * rng.normal(size=120 * size)
        units = np.c_[np.full(120, size), shared.reshape(120, size).sum(axis=1)].astype(float)
        estimate = stats.bootstrap(units, lambda t: t[:, 1] / t[:, 0], n=120 * size, draws=400, seed=seed)
        inside += estimate.low <= 0 <= estimate.high
    assert 0.90 < inside / 200 < 0.99


def test_the_bootstrap_of_one_unit_has_no_interval():
    estimate = stats.bootstrap(np.array([[2.0, 1.0]]), lambda t: t[:, 1] / t[:, 0], n=2)
    assert (estimate.value, estimate.low, estimate.high) == (0.5, -math.inf, math.inf)


@pytest.mark.parametrize(("value", "limit"), [(0.02, 0.03), (0.04, 0.03)])
def test_the_rows_needed_settle_it_and_fewer_do_not(value, limit):
    def interval(size):
        return stats.proportion(value, round(size), 0.95, effective=size)

    needed = stats.rows_needed(stats.proportion(value, 100), limit, 0.95, interval)

    def open_(n):
        return interval(n).low <= limit < interval(n).high

    assert not open_(needed)
    assert open_(0.9 * needed)
    assert stats.rows_needed(stats.proportion(limit, 100), limit, 0.95, interval) == math.inf
