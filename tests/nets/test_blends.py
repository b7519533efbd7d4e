"""Averages of weights against plain loops over state dicts."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from lowchurn.nets import Task, average, train
from lowchurn.nets.networks import fcn
from tests.nets.test_stacks import short_resnet

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 5)).astype("float32")
Y = np.eye(3)[RNG.integers(3, size=96)]


class Normed(nn.Module):
    """Batch normalisation, a constant of its own and a counter."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 3)
        self.register_buffer("constant", torch.linspace(0, 1, 6))

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x)) + self.constant))


def trained_models(network, count, broken=(), start=0):
    def task(i):
        one = Task(np.arange(64), Y[:64], np.arange(64, 96), Y[64:], seed=start + i)
        if i not in broken:
            return one
        state = {name: value * np.nan for name, value in network.state_dict().items() if value.is_floating_point()}
        return Task(**vars(one) | {"start": state, "base_share": 1.0})

    return train(network, X, [task(i) for i in range(count)], epochs=3, learning_rate=0.01, device="cpu")


FCN = fcn(7, inputs=5, classes=3)


def test_averages_equal_a_loop_over_state_dicts():
    members, bases = trained_models(FCN, 6), trained_models(FCN, 2, start=50)
    groups = [[0, 1, 2], [3], [5, 0, 4, 1], [0, 1, 2]]
    shares = [0.0, 0.25, 0.7, 0.9]
    toward = [(bases, 0), (bases, 1), (members, 3), (bases, 1)]
    made = average(members, groups, toward, shares)
    assert made.status == ["finished"] * 4
    assert made.left_out == [""] * 4
    np.testing.assert_array_equal(made.epochs, [9, 3, 12, 9])
    for k, (group, (source, i), share) in enumerate(zip(groups, toward, shares, strict=True)):
        state = [members.state_dict(j) for j in group]
        for name, value in made.state_dict(k).items():
            mean = sum(one[name].double() for one in state) / len(state)
            expected = (1 - share) * mean + share * source.state_dict(i)[name].double()
            np.testing.assert_allclose(value.numpy(), expected.numpy(), atol=1e-7)
    by_hand = copy.deepcopy(FCN)
    by_hand.load_state_dict(
        {name: 0.75 * members.state_dict(3)[name] + 0.25 * value for name, value in bases.state_dict(1).items()}
    )
    np.testing.assert_allclose(made.logits(X)[1], by_hand(torch.as_tensor(X)).detach().numpy(), atol=1e-5)


def test_the_ends_are_the_mean_and_the_base_bit_for_bit():
    for network in (FCN, Normed()):
        members, bases = trained_models(network, 3), trained_models(network, 1, start=50)
        made = average(members, [[0], [0, 1, 2], [2]], [(bases, 0)] * 3, [0.0, 1.0, 1.0], X=X)
        alone = average(members, [[0], [2, 1], [1, 2]], X=X)
        for name, value in made.state.items():
            torch.testing.assert_close(value[0], members.state[name][0], rtol=0, atol=0)
            torch.testing.assert_close(value[1:], bases.state[name].expand(2, *value.shape[1:]), rtol=0, atol=0)
            torch.testing.assert_close(alone.state[name][0], members.state[name][0], rtol=0, atol=0)
            torch.testing.assert_close(alone.state[name][1], alone.state[name][2], rtol=0, atol=0)
        np.testing.assert_allclose(made.logits(X)[1], bases.logits(X)[0], atol=1e-6)


def test_a_member_that_failed_is_left_out_and_named():
    members = trained_models(FCN, 4, broken=(1, 3))
    base = trained_models(FCN, 1, broken=(0,))
    made = average(members, [[0, 1, 2], [1, 3], [0, 2]])
    whole = average(members, [[0, 2]])
    for name, value in made.state.items():
        torch.testing.assert_close(value[0], whole.state[name][0], rtol=0, atol=0)
    reason = "failed: validation loss is not finite after epoch 1"
    assert made.left_out == [f"model 1 ({reason})", f"model 1 ({reason}); model 3 ({reason})", ""]
    assert made.status == [
        "finished",
        f"failed: no member finished: model 1 ({reason}); model 3 ({reason})",
        "finished",
    ]
    dialled = average(members, [[0], [0]], [(base, 0)] * 2, [0.0, 0.5])
    assert dialled.status == ["finished", "failed: the base validation loss is not finite after epoch 1"]
    assert np.isfinite(dialled.logits(X)[0]).all()


def test_statistics_of_batch_normalisation_are_computed_anew():
    network = Normed()
    members, bases = trained_models(network, 3), trained_models(network, 1, start=50)
    rows = [np.arange(64), np.arange(32, 96)]
    made = average(members, [[0, 1, 2], [1]], [(bases, 0)] * 2, [0.0, 0.4], X=X, rows=rows)
    for k, (group, share) in enumerate((([0, 1, 2], 0.0), ([1], 0.4))):
        module = Normed()
        state = {
            name: (1 - share) * torch.stack([members.state_dict(j)[name] for j in group]).mean(0)
            + share * bases.state_dict(0)[name]
            for name, _ in network.named_parameters()
        }
        module.load_state_dict(state, strict=False)
        update_bn(torch.as_tensor(X[rows[k]]).split(32), module)
        for name, value in module.state_dict().items():
            np.testing.assert_allclose(made.state[name][k].numpy(), value.numpy(), atol=1e-5, err_msg=name)
        np.testing.assert_allclose(made.logits(X)[k], module.eval()(torch.as_tensor(X)).detach().numpy(), atol=1e-5)
    with pytest.raises(ValueError, match="has batch normalisation, .* but X is None"):
        average(members, [[0, 1]])


def test_statistics_of_residual_networks_are_computed_for_many_at_once():
    images = RNG.normal(size=(60, 4, 4, 1))
    network = short_resnet((4, 4, 1), 3, 2)
    tasks = [Task(np.arange(20), Y[:20], np.arange(20, 40), Y[20:40], seed=i) for i in range(3)]
    members = train(network, images, tasks, epochs=1, device="cpu", dtype="float64")
    rows = [np.arange(33), np.arange(40), np.arange(20, 60)]  # the first without a last batch of one row
    made = average(members, [[0, 1], [0, 1, 2], [1, 2]], X=images, rows=rows)
    for k, own in enumerate(rows):
        module = made.module(k)
        update_bn(torch.tensor_split(torch.as_tensor(images[own]), 2), module)
        for name, value in module.state_dict().items():
            np.testing.assert_allclose(made.state[name][k].numpy(), value.numpy(), atol=1e-9, err_msg=name)


def test_bad_calls_are_refused():
    members = trained_models(FCN, 2)
    with pytest.raises(ValueError, match="at least one group, got none"):
        average(members, [])
    with pytest.raises(ValueError, match="group 1 must contain at least one model number from 0 to 1"):
        average(members, [[0], [2]])
    with pytest.raises(ValueError, match="shares must have one entry for each of 2 groups, got 1"):
        average(members, [[0], [1]], shares=[0.0])
    with pytest.raises(ValueError, match="share 0 is 0.5, but there are no bases"):
        average(members, [[0]], shares=[0.5])
    with pytest.raises(ValueError, match=r"share 0 must be in \[0, 1\], got 1.5"):
        average(members, [[0]], [(members, 1)], [1.5])
