"""Algorithm 1's last step against brute force and the optimality conditions."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from lowchurn.scoring import ALL, BrierScore, LogScore, Score, get_score
from lowchurn.selection import InfeasibleBudget, combine, select_single
from lowchurn.selection._combine import Mixture
from lowchurn.selection._search import LambdaSearch, predicted_lambda
from tests.test_scoring import PowerScore

SCORES = [*(cls() for cls in ALL), PowerScore()]


def problem(seed, candidates=3, n=60, m=3):
    rng = np.random.default_rng(seed)
    truth = rng.dirichlet(np.ones(m), n)
    y = np.array([rng.choice(m, p=row) for row in truth])
    base = 0.5 * truth + 0.5 * rng.dirichlet(np.ones(m), n)
    lams = np.linspace(0.1, 1.0, candidates)
    noisy = [0.7 * truth + 0.3 * rng.dirichlet(np.ones(m), n) for _ in lams]
    proba = np.stack([lam * h + (1 - lam) * base for lam, h in zip(lams, noisy, strict=True)])
    return proba, y, base


def costs(weights, proba, y, base, score):
    served = np.tensordot(weights, proba, axes=1)
    return score.loss(y, served).mean(), score.divergence(base, served).mean()


def budgets(proba, y, base, score):
    churns = [costs(w, proba, y, base, score)[1] for w in np.eye(len(proba))]
    return [1.1 * min(churns), 0.5 * (min(churns) + max(churns)), 2 * max(churns)]


def simplex_grid(size, steps):
    axis = np.arange(steps + 1)
    if size == 2:
        return np.stack([axis, steps - axis], axis=1) / steps
    return np.array([(i, j, steps - i - j) for i in axis for j in range(steps + 1 - i)]) / steps


@pytest.mark.parametrize("score", SCORES, ids=lambda s: s.name)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_combine_against_brute_force(score, size, seed):
    data = problem(seed, size)
    points = simplex_grid(size, 400 if size == 2 else 60)
    values = np.array([costs(w, *data, score) for w in points])
    for epsilon in budgets(*data, score):
        mixture = combine(*data, epsilon, score)
        assert mixture.weights.sum() == pytest.approx(1)
        assert (mixture.weights >= 0).all()
        risk, churn = costs(mixture.weights, *data, score)
        assert (mixture.risk, mixture.churn) == pytest.approx((risk, churn), abs=1e-10)
        assert churn <= epsilon + 1e-8
        feasible = values[values[:, 1] <= epsilon]
        assert mixture.risk <= feasible[:, 0].min() + 1e-9


def slopes(weights, proba, y, base, score):
    """Gradients of risk and churn by the weights, by central differences: a slow twin of the solver's own."""
    h = 1e-6
    up = np.array([costs(weights + h * e, *(proba, y, base), Unchecked(score)) for e in np.eye(len(proba))])
    down = np.array([costs(weights - h * e, *(proba, y, base), Unchecked(score)) for e in np.eye(len(proba))])
    return ((up - down) / (2 * h)).T


class Unchecked:
    """A score without the check that rows sum to one, so that one weight can be moved alone."""

    def __init__(self, score):
        self.score = score

    def loss(self, y, v):
        return self.score.phi(v)[np.arange(len(y)), y]

    def divergence(self, u, v):
        return (u * (self.score.phi(v) - self.score.phi(u))).sum(axis=1)


@pytest.mark.parametrize("score", SCORES, ids=lambda s: s.name)
@pytest.mark.parametrize("seed", range(3))
def test_the_optimality_conditions_hold(score, seed):
    data = problem(seed, candidates=6, n=200)
    for epsilon in budgets(*data, score):
        mixture = combine(*data, epsilon, score)
        risk_slope, churn_slope = slopes(mixture.weights, *data, score)
        lagrangian = risk_slope + mixture.multiplier * churn_slope
        used = mixture.weights > 0
        assert lagrangian[used].max() - lagrangian.min() < 1e-6  # stationary on the simplex
        assert mixture.multiplier >= 0
        assert mixture.multiplier * abs(mixture.churn - epsilon) < 1e-6  # complementary slackness


def test_combine_against_a_slow_general_solver():
    data = problem(5, candidates=5, n=300)
    score = LogScore()
    epsilon = budgets(*data, score)[1]
    slow = minimize(
        lambda w: costs(w / w.sum(), *data, score)[0],
        np.full(5, 0.2),
        bounds=[(0, 1)] * 5,
        constraints=[
            {"type": "eq", "fun": lambda w: w.sum() - 1},
            {"type": "ineq", "fun": lambda w: epsilon - costs(w / w.sum(), *data, score)[1]},
        ],
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert combine(*data, epsilon, score).risk == pytest.approx(slow.fun, abs=1e-7)


@pytest.mark.parametrize("score", SCORES, ids=lambda s: s.name)
def test_budgets_of_zero_and_infinity(score):
    proba, y, base = problem(0)
    free = combine(proba, y, base, math.inf, score)
    assert free.multiplier == 0
    assert free.risk <= min(costs(w, proba, y, base, score)[0] for w in np.eye(3)) + 1e-9
    with_base = np.concatenate([proba, base[None]])
    strict = combine(with_base, y, base, 0.0, score)
    assert strict.churn == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(strict.proba(with_base), base, atol=1e-3)
    assert strict.multiplier == math.inf
    assert combine(with_base, y, base, 1e-4, score).churn == pytest.approx(1e-4, rel=1e-3)


@pytest.mark.parametrize("score", [LogScore(), BrierScore()], ids=lambda s: s.name)
def test_infeasible_budgets_name_the_least_churn(score):
    proba, y, base = problem(1)
    with pytest.raises(InfeasibleBudget, match="add the base itself") as caught:
        combine(proba, y, base, 1e-7, score)
    least = caught.value.least_churn
    grid = min(costs(w, proba, y, base, score)[1] for w in simplex_grid(3, 60))
    assert least <= grid + 1e-12
    assert least == pytest.approx(grid, rel=0.05)
    assert combine(proba, y, base, least * 1.0001, score).churn <= least * 1.0001 + 1e-9


def test_a_mixture_can_keep_a_budget_that_no_candidate_keeps():
    base = np.full((2, 2), 0.5)
    left, right = np.tile([0.9, 0.1], (2, 1)), np.tile([0.1, 0.9], (2, 1))
    mixture = combine([left, right], [0, 1], base, 0.01, "brier")
    assert mixture.churn <= 0.01 + 1e-9
    assert (mixture.weights > 0.3).all()


def test_duplicates_single_candidates_and_certain_ones():
    proba, y, base = problem(2)
    twice = combine(np.concatenate([proba, proba]), y, base, 0.05)
    assert twice.risk == pytest.approx(combine(proba, y, base, 0.05).risk, abs=1e-8)
    single = combine(proba[:1], y, base, 1.0)
    np.testing.assert_array_equal(single.weights, [1.0])
    hard = np.eye(3)[y]  # zeros in every row: the log score's clipping is met
    assert combine(np.stack([base, hard]), y, base, 0.1).churn <= 0.1 + 1e-8
    assert combine(torch.tensor(proba), torch.tensor(y), torch.tensor(base), 0.05).risk == pytest.approx(
        combine(proba, y, base, 0.05).risk
    )
    assert combine(proba.astype("float32"), y, base.astype("float32"), 0.05).risk == pytest.approx(
        combine(proba, y, base, 0.05).risk, abs=1e-4
    )


def test_select_single_is_the_best_feasible_candidate():
    assert select_single([0.3, 0.1, 0.2], [0.0, 0.5, 0.1], 0.2) == 2
    assert select_single([0.1, 0.1], [0.2, 0.1], 1.0) == 1  # ties go to less churn
    assert select_single([np.nan, 0.4], [0.0, 0.1], 1.0) == 1  # a failed candidate is never chosen
    assert select_single([0.3, 0.1], [0.0, 0.5], math.inf) == 1
    with pytest.raises(InfeasibleBudget) as caught:
        select_single([0.1, 0.2], [0.3, 0.2], 0.1)
    assert caught.value.least_churn == 0.2


def test_bad_input_is_refused():
    proba, y, base = problem(0)
    with pytest.raises(ValueError, match=r"combine: every row of proba\[1\] must sum to 1"):
        combine(np.stack([base, 2 * base]), y, base, 0.1)
    with pytest.raises(ValueError, match=r"shape \(candidates, 60, 3\)"):
        combine(base, y, base, 0.1)
    with pytest.raises(ValueError, match=r"shape \(candidates, 60, 3\)"):
        combine(np.empty((0, 60, 3)), y, base, 0.1)
    with pytest.raises(ValueError, match="class indices 0 to 2, got 7"):
        combine(proba, np.full(60, 7), base, 0.1)
    with pytest.raises(ValueError, match="y has 5, base_proba has 60"):
        combine(proba, y[:5], base, 0.1)
    with pytest.raises(ValueError, match="epsilon must be in"):
        combine(proba, y, base, -1)
    with pytest.raises(ValueError, match="unknown score"):
        combine(proba, y, base, 0.1, "logg")
    with pytest.raises(ValueError, match="same number of rows"):
        select_single([0.1], [0.1, 0.2], 0.1)
    with pytest.raises(ValueError, match="Did they all fail"):
        select_single([np.nan], [0.1], 0.1)
    with pytest.raises(ValueError, match="one value per candidate"):
        select_single([[0.1]], [[0.1]], 0.1)
    with pytest.raises(ValueError, match=r"shape \(1, rows, classes\)"):
        Mixture(np.ones(1), 0, 0, 0).proba(base)


def test_get_score_by_name_is_used():
    proba, y, base = problem(0)
    assert isinstance(get_score("brier"), Score)
    assert combine(proba, y, base, 0.05, "brier").risk == combine(proba, y, base, 0.05, BrierScore()).risk


def test_whole_weights_are_copies_of_rows():
    proba, y, base = problem(5, 3)
    copies = np.random.default_rng(0).integers(0, 4, len(y))
    epsilon = budgets(proba, y, base, LogScore())[1]
    weighted = combine(proba, y, base, epsilon, sample_weight=copies)
    repeated = combine(np.repeat(proba, copies, axis=1), np.repeat(y, copies), np.repeat(base, copies, axis=0), epsilon)
    np.testing.assert_allclose(weighted.weights, repeated.weights, atol=1e-7)
    assert (weighted.risk, weighted.churn) == pytest.approx((repeated.risk, repeated.churn), abs=1e-9)


def test_the_predicted_lambda_is_the_last_that_keeps_the_rule():
    base, plain = np.array([[0.6, 0.4]]), np.array([[0.2, 0.8]])
    assert predicted_lambda(plain, base, keeps=lambda proba: proba[0, 0] >= 0.5) == 0.25
    assert predicted_lambda(plain, base, keeps=lambda proba: True) == 1.0
    assert predicted_lambda(plain, base, keeps=lambda proba: proba[0, 0] >= 0.6) == 0.0


def test_the_search_corrects_its_forecast_by_what_was_measured():
    search = LambdaSearch(first=0.2, aim=0.02, at_one=0.102)  # churn is 0.002 + 0.1 lam; the forecast forgot the noise
    while (lam := search.ask()) is not None:
        search.tell(lam, 0.002 + 0.1 * lam)
    assert search.told == [(0.2, pytest.approx(0.022)), (0.18, pytest.approx(0.02))]


def test_a_mixture_averages_probabilities():
    mixture = Mixture(np.array([0.75, 0.25]), risk=0.1, churn=0.0, multiplier=0.0)
    assert mixture.proba([[[1.0, 0.0]], [[0.0, 1.0]]]).tolist() == [[0.75, 0.25]]
