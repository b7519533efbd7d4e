"""Proper scores against closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from lowchurn.scoring import ALL, BrierScore, LogScore, Score, SphericalScore, get_score


class PowerScore(Score):
    """A user's own score: only phi is written."""

    name = "power"

    def phi(self, proba):
        return 2 * (proba**3).sum(axis=1)[:, None] - 3 * proba**2 + 3


SCORES = [*(cls() for cls in ALL), PowerScore()]


def simplices(rows, classes):
    """Random rows on the simplex, away from its border by more than LogScore's epsilon."""
    cells = arrays(float, (rows, classes), elements=st.floats(0.01, 1.0))
    return cells.map(lambda a: a / a.sum(axis=1, keepdims=True))


def pairs():
    return st.integers(2, 6).flatmap(lambda m: st.tuples(simplices(3, m), simplices(3, m)))


@given(pairs())
def test_divergences_are_kl_and_squared_l2(pair):
    u, v = pair
    np.testing.assert_allclose(LogScore().divergence(u, v), (u * np.log(u / v)).sum(axis=1), atol=1e-12)
    np.testing.assert_allclose(BrierScore().divergence(u, v), ((u - v) ** 2).sum(axis=1), atol=1e-12)
    cosine = (u * v).sum(axis=1) / np.linalg.norm(v, axis=1)
    np.testing.assert_allclose(SphericalScore().divergence(u, v), np.linalg.norm(u, axis=1) - cosine, atol=1e-12)


@pytest.mark.parametrize("score", SCORES, ids=lambda s: s.name)
@given(pair=pairs())
def test_the_truth_minimises_the_expected_score(score, pair):
    truth, other = pair
    assert (score.expected(truth, other) >= score.expected(truth, truth) - 1e-12).all()
    assert (score.divergence(truth, other) >= -1e-12).all()
    np.testing.assert_allclose(score.divergence(truth, truth), 0, atol=1e-12)


@pytest.mark.parametrize("score", SCORES, ids=lambda s: s.name)
def test_the_minimiser_is_unique(score):
    truth = np.array([[0.5, 0.3, 0.2]])

    def risk(z):
        proba = np.exp(z)[None] / np.exp(z).sum()
        return float(score.expected(truth, proba)[0])

    found = minimize(risk, np.zeros(3), tol=1e-14).x
    np.testing.assert_allclose(np.exp(found) / np.exp(found).sum(), truth[0], atol=1e-4)


@pytest.mark.parametrize("score", SCORES, ids=lambda s: s.name)
@given(pair=pairs())
def test_loss_is_expected_against_one_hot(score, pair):
    _, proba = pair
    y = np.arange(3) % proba.shape[1]
    np.testing.assert_allclose(score.loss(y, proba), score.expected(np.eye(proba.shape[1])[y], proba))


@pytest.mark.parametrize("score", SCORES, ids=lambda s: s.name)
@given(pair=pairs())
def test_gradient_is_the_slope_of_expected(score, pair):
    targets, proba = pair
    np.testing.assert_allclose(
        score.gradient(targets, proba), Score.gradient(score, targets, proba), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("score", [LogScore(), BrierScore()], ids=lambda s: s.name)
@given(pair=pairs())
def test_curvature_is_the_slope_of_the_gradient(score, pair):
    targets, proba = pair
    for c in range(proba.shape[1]):
        bump = np.zeros_like(proba)
        bump[:, c] = 1e-6
        slope = (score.gradient(targets, proba + bump) - score.gradient(targets, proba - bump)) / 2e-6
        np.testing.assert_allclose(slope[:, c], score.curvature(targets, proba)[:, c], rtol=1e-4, atol=1e-4)
        others = np.delete(slope, c, axis=1)
        np.testing.assert_allclose(others, 0, atol=1e-6)  # the promise that lets it be a diagonal


@pytest.mark.parametrize("score", [cls() for cls in ALL], ids=lambda s: s.name)
@given(pair=pairs())
def test_constants_hold(score, pair):
    u, v = pair
    assert (score.phi(u) >= 0).all()
    assert (score.phi(u) <= score.bound + 1e-12).all()
    alpha, norm = score.strong_concavity(u.shape[1])
    gap = alpha / 2 * np.linalg.norm(u - v, ord=norm, axis=1) ** 2
    assert (score.divergence(u, v) >= gap - 1e-12).all()
    if score.lipschitz is not None:
        change = np.abs(score.phi(u) - score.phi(v)).max(axis=1)
        assert (change <= score.lipschitz * np.abs(u - v).sum(axis=1) + 1e-12).all()


def test_log_score_clips_at_epsilon():
    score = LogScore(epsilon=1e-3)
    np.testing.assert_allclose(score.loss([1], [[1.0, 0.0]]), -np.log(1e-3))
    assert score.bound == pytest.approx(-np.log(1e-3))


@pytest.mark.parametrize("score", [cls() for cls in ALL], ids=lambda s: s.name)
def test_torch_gives_the_same_numbers_and_gradients(score):
    rng = np.random.default_rng(0)
    u, v = rng.dirichlet(np.ones(4), 5), rng.dirichlet(np.ones(4), 5)
    y = rng.integers(4, size=5)
    tu, tv = torch.tensor(u), torch.tensor(v, requires_grad=True)
    np.testing.assert_allclose(score.divergence(tu, tv).detach().numpy(), score.divergence(u, v))
    np.testing.assert_allclose(score.loss(torch.tensor(y), tv).detach().numpy(), score.loss(y, v))
    expected = score.expected(tu, tv)
    assert isinstance(expected, torch.Tensor)
    expected.sum().backward()
    np.testing.assert_allclose(tv.grad.numpy(), score.gradient(u, v), atol=1e-10)
    assert score.divergence(tu.float(), tv.float()).dtype == torch.float32


def test_get_score_knows_all_and_helps():
    assert all(get_score(cls.name) == cls() for cls in ALL)
    own = PowerScore()
    assert get_score(own) is own
    with pytest.raises(ValueError, match="Did you mean 'spherical'"):
        get_score("sphere")


BAD_ROWS = {
    "must sum to 1, row 0 sums to 0.9": [[0.5, 0.4]],
    "must be finite, got 1 NaN": [[np.nan, 1.0]],
    "must not be negative, got -0.5": [[1.5, -0.5]],
    "at least one row": np.empty((0, 2)),
    "must have shape .rows, classes.": [0.5, 0.5],
    "must hold numbers": [["a", "b"]],
}


@pytest.mark.parametrize(("message", "proba"), [pytest.param(*item, id=item[0]) for item in BAD_ROWS.items()])
def test_bad_rows_are_refused(message, proba):
    with pytest.raises(ValueError, match=f"LogScore: .*{message}"):
        LogScore().loss([0], proba)


def test_bad_labels_and_lengths_are_refused():
    score, proba = BrierScore(), [[0.5, 0.5], [0.5, 0.5]]
    with pytest.raises(ValueError, match=r"class indices 0 to 1, got 2"):
        score.loss([0, 2], proba)
    with pytest.raises(ValueError, match=r"class indices 0 to 1, got -1"):
        score.loss([0, -1], proba)
    with pytest.raises(ValueError, match="whole class indices"):
        score.loss([0.5, 1], proba)
    with pytest.raises(ValueError, match="same number of rows; y has 1, proba has 2"):
        score.loss([0], proba)
    with pytest.raises(ValueError, match="same shape"):
        score.divergence(proba, [[0.5, 0.5]])
    with pytest.raises(ValueError, match="shape of proba"):
        score.expected([[1.0, 0.0]], proba)
    with pytest.raises(ValueError, match="LabelEncoder"):
        score.loss(["a", "b"], proba)
    with pytest.raises(ValueError, match="LogScore: epsilon must be in"):
        LogScore(epsilon=0)
