"""Intervals cover, tests hold their level, discoveries are mostly true: checked in worlds where the truth is known."""

import math

import numpy as np
import pytest
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from lowchurn._estimates import paired_difference, proportion
from lowchurn.audit import _statistics as stats
from lowchurn.audit._counts import LOSS_BAGS


@pytest.mark.parametrize(("fixed", "broken"), [(12, 3), (0, 5), (40, 41), (1, 0)])
def test_mcnemar_agrees_with_statsmodels(fixed, broken):
    theirs = statsmodels_mcnemar([[5, fixed], [broken, 5]], exact=True).pvalue
    assert stats.mcnemar(fixed, broken).p_value == pytest.approx(theirs)


def test_tests_without_evidence_are_undefined():
    assert math.isnan(stats.mcnemar(0, 0).p_value)
    assert math.isnan(stats.non_inferiority(math.nan, math.nan, 0, 0.1).p_value)


def test_non_inferiority_agrees_with_the_interval_and_holds_its_level():
    rng = np.random.default_rng(2)
    n, margin = 800, 0.02
    rejected = 0
    for fixed, broken, _ in rng.multinomial(n, [0.02, 0.04, 0.94], size=2000):  # worse by exactly the margin
        p = stats.non_inferiority(fixed / n, broken / n, n, margin).p_value
        assert (p < 0.025) == (paired_difference(fixed / n, broken / n, n).low > -margin)
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
        return proportion(value, round(size), 0.95, effective=size)

    needed = stats.rows_needed(proportion(value, 100), limit, interval)

    def open_(n):
        return interval(n).low <= limit < interval(n).high

    assert not open_(needed)
    assert open_(0.9 * needed)
    assert stats.rows_needed(proportion(limit, 100), limit, interval) == math.inf


def test_units_are_worth_what_their_variance_shows():
    assert stats.mcnemar_robust(2.0, 6.0, 3, "weights").p_value == pytest.approx(0.414, abs=1e-3)
    assert stats.effective_pairs(0.02, 0.02, 0.04 / 500, kish=900.0) == pytest.approx(500)
    assert stats.effective_pairs(0.0, 0.0, 0.0, kish=900.0) == 900
    assert stats.few_units(10, 0.95) == pytest.approx((1.959964 / 2.262157) ** 2, rel=1e-5)


def test_intervals_of_bags_cover_and_are_as_wide_as_those_of_rows():
    """A bag is a sum of rows, so the interval is right on average; its width is known to 1 in the root of 2 bags."""
    rng = np.random.default_rng(4)
    bags, worlds, draws = LOSS_BAGS, 150, 300
    rows = 40 * bags
    covered, ratios = 0, []
    for world in range(worlds):
        loss = rng.lognormal(0, 1, rows)  # skewed, as log-losses are
        bag = rng.integers(0, bags, rows)
        sums = np.c_[np.bincount(bag, minlength=bags), np.bincount(bag, loss, bags)]
        found = stats.bootstrap(sums, lambda t: t[:, 1] / t[:, 0], rows, draws=draws, seed=world)
        covered += found.low <= math.exp(0.5) <= found.high
        ratios.append((found.high - found.low) / (2 * 1.96 * loss.std() / math.sqrt(rows)))
    assert covered / worlds == pytest.approx(0.95, abs=0.045)  # two and a half standard errors of this test
    assert np.mean(ratios) == pytest.approx(1, abs=0.03)
    # What draws alone leave open of a width: that of two quantiles of a normal distribution.
    of_draws = math.sqrt(2 * 0.025 * (0.975 - 0.025) / draws) / 0.0584 / (2 * 1.96)
    assert np.std(ratios) == pytest.approx(math.sqrt(1 / (2 * bags) + of_draws**2), rel=0.3)
