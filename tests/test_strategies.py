"""One battery over every strategy, then what is particular to each."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from lowchurn import strategies
from lowchurn.scoring import BrierScore, LogScore
from lowchurn.strategies import (
    Anchor,
    CoDistill,
    ColdStart,
    Distill,
    LabelSmoothing,
    Mixup,
    ShrinkPerturb,
    Strategy,
    WarmStart,
    decide,
    one_hot,
    paper_grid,
)
from lowchurn.theory import anchor_minimizer

RNG = np.random.default_rng(0)
BASE = RNG.dirichlet(np.ones(4), 50)
ONEHOT = one_hot(RNG.integers(4, size=50), 4)
SETTINGS = [setting for cls in strategies.ALL for setting in paper_grid(cls)]


@pytest.mark.parametrize("strategy", SETTINGS, ids=repr)
def test_every_setting_answers_the_four_questions(strategy):
    assert 0 <= strategy.base_share <= 1
    assert strategy.mixing is None or strategy.mixing > 0
    assert strategy.coupling is None or 0 < strategy.coupling <= 1
    targets = strategy.targets(ONEHOT, BASE)
    assert targets.shape == ONEHOT.shape
    assert (targets >= 0).all()
    assert (targets.sum(axis=1) <= 1 + 1e-12).all()
    if not isinstance(strategy, Anchor):
        np.testing.assert_allclose(targets.sum(axis=1), 1)
    np.testing.assert_allclose(strategy.targets(torch.tensor(ONEHOT), torch.tensor(BASE)).numpy(), targets, rtol=1e-12)


@pytest.mark.parametrize("cls", strategies.ALL, ids=lambda cls: cls.__name__)
def test_every_strategy_is_a_frozen_value(cls):
    strategy = cls()
    assert cls() == strategy
    assert hash(cls()) == hash(strategy)
    assert eval(repr(strategy), vars(strategies)) == strategy
    for field in dataclasses.fields(cls):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(strategy, field.name, 0)
    assert cls.name
    assert cls.__doc__


@pytest.mark.parametrize("cls", strategies.ALL, ids=lambda cls: cls.__name__)
def test_the_neutral_setting_is_a_cold_start(cls):
    if cls.neutral is None:
        assert cls is WarmStart  # the only one that no parameter turns into a cold start
        return
    neutral, cold = cls(**cls.neutral), ColdStart()
    assert (neutral.base_share, neutral.mixing, neutral.coupling) == (
        cold.base_share,
        cold.mixing,
        cold.coupling,
    )
    np.testing.assert_array_equal(neutral.targets(ONEHOT, BASE), cold.targets(ONEHOT, BASE))


@pytest.mark.parametrize("cls", strategies.ALL, ids=lambda cls: cls.__name__)
def test_parameters_out_of_range_are_refused(cls):
    for field in dataclasses.fields(cls):
        bad = "lukewarm" if field.name == "start" else 1.3
        with pytest.raises(ValueError, match=f"{cls.__name__}: {field.name} must be"):
            cls(**{field.name: bad})


@pytest.mark.parametrize("cls", strategies.ALL, ids=lambda cls: cls.__name__)
def test_bad_rows_are_refused(cls):
    strategy = cls()
    with pytest.raises(ValueError, match=f"{cls.__name__}: every row of onehot must sum to 1"):
        strategy.targets(0.5 * ONEHOT, BASE)
    if strategy.needs_base:
        with pytest.raises(ValueError, match="Give a base"):
            strategy.targets(ONEHOT)
        with pytest.raises(ValueError, match="Align the classes"):
            strategy.targets(ONEHOT, np.full((50, 3), 1 / 3))
        with pytest.raises(ValueError, match="base_proba must be finite"):
            strategy.targets(ONEHOT, np.full((50, 4), np.nan))
    else:
        np.testing.assert_array_equal(strategy.targets(ONEHOT), strategy.targets(ONEHOT, BASE))


@pytest.mark.parametrize("cls", [Mixup, LabelSmoothing, CoDistill, Anchor, Distill])
def test_trained_strategies_start_cold_or_warm(cls):
    assert cls(start="cold").base_share == 0
    assert cls(start="warm").base_share == 1
    assert all(s.start == "warm" for s in paper_grid(cls, start="warm"))


def test_where_weights_start():
    assert (ColdStart().base_share, WarmStart().base_share, ShrinkPerturb(0.3).base_share) == (0, 1, 0.3)


def test_paper_grid_is_the_papers():
    sizes = {cls.name: len(paper_grid(cls)) for cls in strategies.ALL[:8]}
    assert sizes == {
        "cold": 1,
        "warm": 1,
        "s-perturb": 9,
        "mixup": 9,
        "ls": 9,
        "co-dist": 9,
        "anchor": 27,
        "distill": 9,
    }
    assert {(a.alpha, a.eta) for a in paper_grid(Anchor)} == {
        (k / 10, eta) for k in range(1, 10) for eta in (0.5, 0.7, 1.0)
    }
    with pytest.raises(ValueError, match="Did you mean 'start'"):
        paper_grid(Distill, stat="warm")
    with pytest.raises(ValueError, match="strategy class"):
        paper_grid("distill")


def test_ties_go_to_the_larger_class():
    assert decide([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4], [0.5, 0.3, 0.2]]).tolist() == [1, 2, 0]
    tied = [[0.5, 0.5]]
    np.testing.assert_allclose(Anchor(0.5, 0.7).targets([[0.0, 1.0]], tied), [[0.25, 0.75]])
    np.testing.assert_allclose(Anchor(0.5, 0.7).targets([[1.0, 0.0]], tied), [[0.7, 0.0]])


@given(st.floats(0, 1), st.floats(0, 1))
def test_distillation_is_linear_between_label_and_base(lam, other):
    between = 0.5 * (Distill(lam).targets(ONEHOT, BASE) + Distill(other).targets(ONEHOT, BASE))
    np.testing.assert_allclose(Distill((lam + other) / 2).targets(ONEHOT, BASE), between, atol=1e-12)


def learned(strategy: Strategy, p: np.ndarray, score) -> np.ndarray:
    """Minimise the expected loss against the strategy's targets when labels are drawn from p and the base is p."""
    m = p.shape[0]
    rows = np.tile(p, (m, 1))
    targets = (p[:, None] * strategy.targets(np.eye(m), rows)).sum(axis=0)  # expectation over the label

    def risk(z):
        proba = np.exp(z - z.max())
        return float(score.expected(targets[None], (proba / proba.sum())[None])[0])

    z = minimize(risk, np.log(p), tol=1e-15, options={"gtol": 1e-10}).x
    proba = np.exp(z - z.max())
    return proba / proba.sum()


@pytest.mark.parametrize("score", [LogScore(), BrierScore()], ids=lambda s: s.name)
@pytest.mark.parametrize("seed", range(3))
def test_proposition_4_what_each_loss_learns_when_the_base_is_the_truth(score, seed):
    p = np.random.default_rng(seed).dirichlet(2 * np.ones(3))
    np.testing.assert_allclose(learned(Distill(0.3), p, score), p, atol=1e-4)
    expected = anchor_minimizer(p[None], alpha=0.6, eta=0.7)[0]
    np.testing.assert_allclose(learned(Anchor(0.6, 0.7), p, score), expected, atol=1e-4)
    assert np.abs(expected - p).max() > 1e-3  # anchor is biased even here


def test_one_hot_checks_its_labels():
    assert one_hot(torch.tensor([1]), 2, like=torch.zeros(1)).dtype == torch.float32
    with pytest.raises(ValueError, match="class indices 0 to 1, got 5"):
        one_hot([5], 2)
