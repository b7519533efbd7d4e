"""The paper's networks: parameter counts of the Keras ones in closed form, starts, and forward passes by hand."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from lowchurn.nets import _random as draws
from lowchurn.nets._initial_weights import fresh_state
from lowchurn.nets.networks import convnet, fcn, resnet, transformer


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("size", [10, 100, 1000])
def test_fcn_counts(size):
    assert count(fcn(size, inputs=7, classes=3)) == 7 * size + size + size * 3 + 3


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3)])
def test_convnet_counts(size, shape):
    c1, c2, h = 16 * size, 24 * size, 128 * size
    side = (shape[0] // 2 - 4) // 2
    dense = side * side * c2 * h + h + h * 84 + 84 + 84 * 10 + 10
    assert count(convnet(size, shape=shape, classes=10)) == 25 * shape[2] * c1 + c1 + 25 * c1 * c2 + c2 + dense


@pytest.mark.parametrize("size", [1, 2])
def test_transformer_counts(size):
    e, heads, ff = 32 * size, 2 * size, 32 * size
    attention = 3 * (e * heads * e + heads * e) + heads * e * e + e
    rest = 4 * e + e * ff + ff + ff * e + e + e * 2 + 2
    assert count(transformer(size)) == 20000 * e + 200 * e + attention + rest


# Keras' ResNets without their top, moving statistics included, less the 7 x 7 stem and with a 3 x 3 one instead.
KERAS_WITHOUT_TOP = {50: 23_587_712, 101: 42_658_176, 152: 58_370_944}


@pytest.mark.parametrize("depth", KERAS_WITHOUT_TOP)
def test_resnet_counts(depth):
    stem = (9 * 3 * 64) - (49 * 3 * 64)
    with torch.device("meta"):
        network = resnet(depth, classes=100)
    statistics = sum(b.numel() for name, b in network.named_buffers() if "running" in name)
    assert count(network) + statistics == KERAS_WITHOUT_TOP[depth] + stem + 2048 * 100 + 100


def test_starts_are_keras_defaults():
    network = transformer(1, length=50, vocabulary=500)
    seeds = torch.arange(200)
    state = fresh_state(network, network, seeds, torch.float64)
    limits = {
        "token.weight": 0.05,
        "ff1.weight": math.sqrt(6 / 64),
        "qkv.weight": math.sqrt(6 / (2 * 32 + 32 * 32)),  # Keras' fans of a kernel (32, 2, 32)
        "out.weight": math.sqrt(6 / (2 * 32 + 2 * 32)),
        "head.weight": math.sqrt(6 / 34),
    }
    for name, limit in limits.items():
        drawn = state[name]
        assert drawn.abs().max() <= limit
        assert drawn.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.02)
        assert abs(drawn.mean().item()) < 0.02 * limit
    assert all((state[n] == 0).all() for n in state if n.endswith("bias"))
    assert (state["norm1.weight"] == 1).all()
    conv = fresh_state(convnet(1), convnet(1), seeds[:5], torch.float32)
    assert conv["conv2.weight"].abs().max().item() == pytest.approx(math.sqrt(6 / (25 * 40)), rel=1e-3)
    assert not torch.equal(conv["conv2.weight"][0], conv["conv2.weight"][1])


def test_forward_passes_by_hand():
    x = torch.randn(4, 5)
    network = fcn(6, inputs=5, classes=3)
    by_hand = torch.relu(x @ network.hidden.weight + network.hidden.bias) @ network.output.weight
    torch.testing.assert_close(network(x), by_hand + network.output.bias)
    images = torch.randn(2, 28, 28, 1)
    conv = convnet(1)
    kernel = conv.conv1.weight
    padded = torch.nn.functional.pad(images[0, :, :, 0], (2, 2, 2, 2))
    place = (padded[3:8, 4:9, None] * kernel[:, :, 0]).sum(dim=(0, 1)) + conv.conv1.bias
    torch.testing.assert_close(conv.conv1(images)[0, 3, 4], place)
    assert transformer(1, length=9, vocabulary=5)(torch.randint(5, (3, 9))).shape == (3, 2)
    assert resnet(50, classes=7)(torch.randn(2, 32, 32, 3)).shape == (2, 7)


def test_shuffles_are_permutations_that_depend_on_seed_and_epoch_alone():
    seeds = torch.tensor([3, 4, 3, -7])
    one, two = draws.shuffles(seeds, 0, 101), draws.shuffles(seeds, 1, 101)
    assert (one.sort(dim=1).values == torch.arange(101)).all()
    assert torch.equal(one[0], one[2])
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one[0], two[0])
    assert torch.equal(draws.shuffles(seeds[1:2], 0, 101)[0], one[1])
    places = draws.shuffles(torch.arange(4000), 0, 10).double()
    assert (places.mean(dim=0) - 4.5).abs().max() < 0.25  # every row is equally likely everywhere


def test_uniform_draws_are_uniform():
    u = draws.uniforms(torch.arange(100), 0, 1000).numpy()
    assert 0 <= u.min() < u.max() < 1
    counts = np.histogram(u, bins=20, range=(0, 1))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 45  # chi-squared with 19 degrees of freedom, p near 0.001
    assert abs(np.corrcoef(u[:, :-1].ravel(), u[:, 1:].ravel())[0, 1]) < 0.01


@pytest.mark.parametrize("alpha", [0.001, 0.1, 0.5, 1.0, 4.0])
def test_mixup_shares_follow_their_beta(alpha):
    seeds, alphas = torch.arange(20), torch.full((20,), alpha)
    shares = draws.mixup_shares(seeds, alphas, epoch=0, steps=1000).numpy()
    inside = shares[(shares > 1e-9) & (shares < 1 - 1e-9)]
    if alpha >= 0.1:
        assert scipy.stats.kstest(shares.ravel(), scipy.stats.beta(alpha, alpha).cdf).pvalue > 0.001
    else:
        assert len(inside) < 0.05 * shares.size  # nearly all of it is at the ends
        assert shares.mean() == pytest.approx(0.5, abs=0.02)
    assert len(np.unique(inside)) == len(inside)
    assert abs(np.corrcoef(shares[:, :-1].ravel(), shares[:, 1:].ravel())[0, 1]) < 0.03


def test_a_models_mixup_shares_do_not_depend_on_its_neighbours():
    together = draws.mixup_shares(torch.tensor([5, 7, -3]), torch.tensor([0.2, 0.9, 0.5]), epoch=3, steps=63)
    for i, (seed, alpha) in enumerate(((5, 0.2), (7, 0.9), (-3, 0.5))):
        alone = draws.mixup_shares(torch.tensor([seed]), torch.tensor([alpha]), epoch=3, steps=63)
        np.testing.assert_array_equal(together[i], alone[0])
    again = draws.mixup_shares(torch.tensor([5]), torch.tensor([0.2]), epoch=4, steps=63)
    assert not np.array_equal(again[0], together[0])


def test_draws_of_many_epochs_at_once_are_those_of_each():
    seeds, alphas = torch.tensor([5, -7]), torch.tensor([0.2, 0.9])
    epochs = torch.tensor([3, 3, 4, 4, 299, 299])
    orders = draws.shuffles(seeds.repeat(3), epochs, 40, draws.MATE).view(3, 2, 40)
    shares = draws.mixup_shares(seeds.repeat(3), alphas.repeat(3), epochs, steps=63).view(3, 2, 63)
    for place, epoch in enumerate((3, 4, 299)):
        assert torch.equal(orders[place], draws.shuffles(seeds, epoch, 40, draws.MATE))
        assert torch.equal(shares[place], draws.mixup_shares(seeds, alphas, epoch, 63))


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="fcn: size must be a whole number of at least 1, got 0"):
        fcn(0, inputs=3, classes=2)
    with pytest.raises(ValueError, match="at least 12 x 12"):
        convnet(1, shape=(8, 8, 1))
    with pytest.raises(ValueError, match="resnet: depth must be one of 50, 101, 152"):
        resnet(18)
