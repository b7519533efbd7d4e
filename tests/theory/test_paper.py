"""The paper's statements in worlds where everything is known."""

import math

import numpy as np
import pytest

from lowchurn.scoring import ALL, BrierScore, LogScore, Score, SphericalScore
from lowchurn.theory import (
    anchor_minimizer,
    excess_risk_bound,
    generalization_bound,
    guaranteed_grid,
    lambda_upper_bound,
    optimal_mixture,
)

SCORES = [cls() for cls in ALL]


def world(seed, n=6, m=3):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(m), n), rng.dirichlet(np.ones(m), n)


@pytest.mark.parametrize("score", SCORES, ids=lambda s: s.name)
@pytest.mark.parametrize("seed", range(4))
def test_the_optimal_mixture_against_a_grid_of_lambdas(score, seed):
    p, g = world(seed)
    largest = score.divergence(g, p).mean()
    for epsilon in (0.05 * largest, 0.5 * largest, 0.99 * largest):
        lam, h = optimal_mixture(p, g, epsilon, score)
        np.testing.assert_allclose(h, lam * p + (1 - lam) * g)
        assert score.divergence(g, h).mean() <= epsilon + 1e-15
        grid = np.linspace(0, 1, 4001)
        churns = [score.divergence(g, t * p + (1 - t) * g).mean() for t in grid]
        assert (np.diff(churns) >= -1e-12).all()  # monotone, so bisection is right
        assert lam == pytest.approx(grid[np.flatnonzero(np.array(churns) <= epsilon)[-1]], abs=1 / 4000)
        assert lam <= lambda_upper_bound(p, g, epsilon, score) + 1e-12


@pytest.mark.parametrize("score", SCORES, ids=lambda s: s.name)
def test_no_other_classifier_is_better_within_the_budget(score):
    p, g = world(1, n=2, m=2)
    epsilon = 0.3 * score.divergence(g, p).mean()
    _, h = optimal_mixture(p, g, epsilon, score)
    best = score.expected(p, h).mean()
    axis = np.linspace(0.001, 0.999, 400)
    q = np.stack([axis, 1 - axis], axis=1)
    risk = [score.expected(np.tile(p[i], (400, 1)), q) for i in range(2)]
    churn = [score.divergence(np.tile(g[i], (400, 1)), q) for i in range(2)]
    feasible = (churn[0][:, None] + churn[1][None]) / 2 <= epsilon
    every = (risk[0][:, None] + risk[1][None]) / 2
    assert every[feasible].min() >= best - 1e-9
    assert every[feasible].min() == pytest.approx(best, abs=1e-3)


def test_budgets_at_the_ends():
    p, g = world(0)
    assert optimal_mixture(p, g, 0.0).lam == pytest.approx(0, abs=1e-7)
    assert optimal_mixture(p, g, math.inf).lam == 1
    assert optimal_mixture(p, p, 0.0).lam == 1
    assert lambda_upper_bound(p, p, 0.1) == math.inf


def test_the_bound_on_lambda_by_hand():
    p, g = world(3)
    l1, l2 = np.abs(p - g).sum(axis=1), np.sqrt(((p - g) ** 2).sum(axis=1))
    assert lambda_upper_bound(p, g, 0.1, "log") == pytest.approx(math.sqrt(0.2 / np.mean(l1**2)))
    assert lambda_upper_bound(p, g, 0.1, "brier") == pytest.approx(math.sqrt(0.2 / (2 * np.mean(l2**2))))
    # for the Brier score churn is exactly ||h - g||^2, so that the bound is attained
    assert lambda_upper_bound(p, g, 0.01, "brier") == pytest.approx(optimal_mixture(p, g, 0.01, "brier").lam)


def test_guaranteed_grid_by_hand():
    np.testing.assert_allclose(guaranteed_grid(1.0, 2.0, 10), [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert guaranteed_grid(0.02, LogScore().bound, 9)[-1] == 1
    assert (np.diff(guaranteed_grid(0.3, 1.0, 50)) > 0).all()


def test_anchor_minimizer_by_hand():
    p = np.array([[0.5, 0.3, 0.2]])
    z = np.array([0.4 * 0.25 + 0.6 * 0.5, (0.7 + 0.4 * 0.5) * 0.3, (0.7 + 0.4 * 0.5) * 0.2])
    np.testing.assert_allclose(anchor_minimizer(p, 0.4, 0.7)[0], z / z.sum())
    np.testing.assert_allclose(anchor_minimizer(p, 0.0, 1.0), p)  # the base is ignored
    hard = np.array([[1.0, 0.0]])
    np.testing.assert_allclose(anchor_minimizer(hard, 0.8, 0.5), hard)
    # z vanishes only for a base that is certain: alpha = 1 keeps p^2 = 1 there, so a minimiser always exists
    np.testing.assert_allclose(anchor_minimizer(hard, 1.0, 0.0), hard)


def test_generalization_bound_by_hand():
    values = np.random.default_rng(0).uniform(0, 2, 100)
    v, mean, n = values.var(ddof=1), values.mean(), 100
    c = math.log(10 / 0.05) + 3.0
    assert generalization_bound(values, 3.0, 0.05, bound=2.0) == pytest.approx(
        mean + math.sqrt(18 * v * c / n) + 15 * 2 * c / (n - 1)
    )
    c = math.log(2 / 0.05)
    assert generalization_bound(values, None, 0.05, bound=2.0) == pytest.approx(
        mean + math.sqrt(2 * v * c / n) + 7 * 2 * c / (3 * (n - 1))
    )
    # in other units it is the same statement
    assert generalization_bound(values / 2, 3.0, 0.05) == pytest.approx(
        generalization_bound(values, 3.0, 0.05, bound=2.0) / 2
    )


def test_generalization_bound_covers():
    rng = np.random.default_rng(1)
    draws = rng.beta(0.5, 5, size=(400, 200))
    failures = sum(generalization_bound(row, None, 0.1) < 0.5 / 5.5 for row in draws)
    assert failures / 400 <= 0.1


def test_excess_risk_bound_by_hand_and_true():
    p, g = world(2)
    score = BrierScore()
    lam, h = optimal_mixture(p, g, 0.05, score)
    bound = excess_risk_bound(p, g, 0.05, 0.01, score)
    assert bound == pytest.approx(0.06 + (2 + 2 * lam) * np.abs(p - g).sum(axis=1).mean())
    # the base itself is feasible and cannot be further from the optimum than the bound says
    assert score.expected(p, g).mean() - score.expected(p, h).mean() <= bound
    with pytest.raises(ValueError, match="SphericalScore states no lipschitz"):
        excess_risk_bound(p, g, 0.05, 0.01, SphericalScore())
    assert excess_risk_bound(p, g, 0.05, 0.01, SphericalScore(), lipschitz=1.0) > 0


def test_bad_input_is_refused():
    p, g = world(0)
    with pytest.raises(ValueError, match=r"optimal_mixture: epsilon must be in \[0, inf\], got -0.1"):
        optimal_mixture(p, g, -0.1)
    with pytest.raises(ValueError, match="epsilon must be in"):
        optimal_mixture(p, g, math.nan)
    with pytest.raises(ValueError, match="same shape"):
        optimal_mixture(p, g[:3], 0.1)
    with pytest.raises(ValueError, match="every row of p must sum to 1"):
        lambda_upper_bound(p * 2, g, 0.1)
    with pytest.raises(ValueError, match="whole number of at least 1"):
        guaranteed_grid(0.1, 1.0, 0)
    with pytest.raises(ValueError, match="bound must be in"):
        guaranteed_grid(0.1, math.inf, 4)
    with pytest.raises(ValueError, match="alpha must be in"):
        anchor_minimizer(p, 2, 0.5)
    with pytest.raises(ValueError, match="at least 16 rows"):
        generalization_bound(np.ones(5), 1.0, 0.1)
    with pytest.raises(ValueError, match="at most bound=1, got 2"):
        generalization_bound(2 * np.ones(20), 1.0, 0.1)
    with pytest.raises(ValueError, match="delta must be in"):
        generalization_bound(np.ones(20), 1.0, 1.0)
    with pytest.raises(ValueError, match="values must be finite"):
        generalization_bound([np.nan, 1.0], None, 0.1)

    class Unstated(Score):
        def phi(self, proba):
            return 1 - proba

    with pytest.raises(ValueError, match="states no strong concavity"):
        lambda_upper_bound(p, g, 0.1, Unstated())
