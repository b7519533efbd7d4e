"""Shuffles that tasks share are those that each would have alone, also when some of them leave."""

import numpy as np
import pytest
import torch

from lowchurn.nets import Task, _random, _training_data
from lowchurn.nets._stacks import Settings
from lowchurn.nets._training_data import Draws

ROWS, STEPS = 37, 5  # the last batch of eight has five rows


def draws_of(seeds, alphas=None, one_order=False):
    targets, own = np.eye(2)[np.zeros(ROWS, dtype=int)], np.arange(ROWS)
    mixing = [None] * len(seeds) if alphas is None else alphas
    tasks = [
        Task(own, targets, own[:1], targets[:1], seed=seed, mixing=alpha)
        for seed, alpha in zip(seeds, mixing, strict=True)
    ]
    settings = Settings(torch.device("cpu"), torch.float64, batch_size=8, one_order=one_order)
    return Draws(tasks, torch.arange(ROWS).repeat(len(seeds), 1), settings)


def check(draws, epoch, seeds, alphas=None, one_order=False):
    """What is drawn for some tasks is what each of them has alone."""
    order, mate, mix = draws.of(epoch)
    assert len(order) == len(seeds)
    for k, seed in enumerate(seeds):
        own = torch.tensor([_training_data.seeds_of([Task([0], [[1]], [0], [[1]], seed=seed)])[0]])
        assert torch.equal(order[k], _random.shuffles(own, 0 if one_order else epoch, ROWS)[0])
        if alphas is not None:
            assert torch.equal(mate[k], _random.shuffles(own, epoch, ROWS, _random.MATE)[0])
            alpha = torch.tensor([alphas[k]], dtype=torch.float64)
            assert torch.equal(mix[k], _random.mixup_shares(own, alpha, epoch, STEPS)[0])
    if alphas is None:
        assert mate is mix is None


@pytest.mark.parametrize("one_order", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_tasks_have_the_draws_of_their_seeds(mixed, one_order):
    seeds, alphas = [7, 2**64 + 5, 7, -1, 7], [0.2, 0.5, 0.2, 0.3, 0.9]
    draws = draws_of(seeds, alphas if mixed else None, one_order)
    assert len(draws.seeds) == 3
    for epoch, stay in ((0, [0, 1, 2, 3, 4]), (1, [1, 2, 4]), (2, [0, 2]), (8, [1]), (9, [0])):
        draws.keep(torch.tensor(stay))
        seeds, alphas = ([some[k] for k in stay] for some in (seeds, alphas))
        check(draws, epoch, seeds, alphas if mixed else None, one_order)


def test_seeds_that_no_task_has_any_more_are_not_drawn():
    draws = draws_of([1, 2, 2, 3])
    draws.of(0)
    assert draws.drawn[0].shape[1] == 3
    draws.keep(torch.tensor([1, 2]))
    draws.of(1)  # drawn already
    assert draws.drawn[0].shape[1] == 3
    draws.of(_training_data.EPOCHS_AT_ONCE)
    assert draws.drawn[0].shape[1] == 1


def test_what_is_drawn_at_once_is_limited(monkeypatch):
    monkeypatch.setitem(_training_data.DRAWN_AT_ONCE, "cpu", 3 * ROWS)
    draws = draws_of([1] * 10)
    draws.of(0)
    assert draws.drawn[0].shape == (3, 1, ROWS)
    monkeypatch.setitem(_training_data.DRAWN_AT_ONCE, "cpu", 2 * 6 * 10 * STEPS)
    draws = draws_of([1] * 10, [0.5] * 10)
    draws.of(0)
    assert draws.shares.shape == (2, 10, STEPS)
