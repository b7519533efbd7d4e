"""Fast paths against the path of any module, over many shapes; gradients; what a stack takes in memory."""

import gc
from functools import partial

import numpy as np
import pytest
import torch

from lowchurn.nets import Task, _trained, train
from lowchurn.nets._losses import batch_gradient, target_loss
from lowchurn.nets._stacks import Settings, make_stack
from lowchurn.nets._stacks._transformer import TransformerStack
from lowchurn.nets.networks import Resnet, convnet, fcn, resnet, transformer
from tests.nets.slow_twin import pair_loss

SHAPES = [(1, 1, 2), (1, 130, 2), (3, 17, 5), (20, 1000, 2), (110, 33, 26), (7, 129, 3)]


@pytest.mark.parametrize(("inputs", "units", "classes"), SHAPES)
@pytest.mark.parametrize("rows", [5, 70])
def test_fcn_kernels_over_shapes(inputs, units, classes, rows):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows + 10, inputs))

    def task(seed, **kind):
        return Task(
            rows=rng.permutation(rows),
            targets=rng.dirichlet(np.ones(classes), rows) * rng.uniform(0.5, 1, size=(rows, 1)),
            validation=np.arange(rows, rows + 10),
            validation_targets=np.eye(classes)[rng.integers(classes, size=10)],
            weights=rng.uniform(size=rows),
            seed=seed,
            **kind,
        )

    tasks = [task(0), task(1, mixing=0.4), task(2, coupling=0.3), task(3, coupling=0.7, mixing=0.2)]
    network = fcn(units, inputs=inputs, classes=classes)
    for loss in ("log", "squared"):
        options = {"epochs": 2, "device": "cpu", "dtype": "float64", "loss": loss}
        fast = train(network, X, tasks, **options)
        slow = train(network, X, tasks, generic=True, **options)
        for name, value in slow.state.items():
            torch.testing.assert_close(fast.state[name], value, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(fast.loss, slow.loss, rtol=1e-10)
        np.testing.assert_allclose(fast.logits(X), slow.logits(X), atol=1e-8)


@pytest.mark.parametrize("shape", [(12, 12, 1), (13, 15, 3)])
def test_convolutions_over_shapes(shape):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, *shape)), rng.integers(3, size=30)
    task = Task(np.arange(20), np.eye(3)[y[:20]], np.arange(20, 30), np.eye(3)[y[20:]], seed=1)
    network = convnet(2, shape=shape, classes=3)
    options = {"epochs": 2, "batch_size": 8, "device": "cpu", "dtype": "float64"}
    fast, slow = (train(network, X, [task], generic=g, **options) for g in (False, True))
    for name, value in slow.state.items():
        torch.testing.assert_close(fast.state[name], value, rtol=1e-7, atol=1e-9)


def short_resnet(shape, classes, blocks):
    """A residual network with the first blocks of resnet-50: four of them have both kinds of shortcut and a stride."""
    network = Resnet(shape, classes, 50)
    network.blocks = torch.nn.Sequential(*list(network.blocks)[:blocks])
    network.head = type(network.head)(256 if blocks < 4 else 512, classes)
    network.reset()
    return network


@pytest.mark.parametrize("shape", [(5, 5, 1), (6, 7, 3)])
def test_residual_networks_over_shapes(shape):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, *shape)), rng.integers(3, size=30)
    base = short_resnet(shape, 3, 4)
    with torch.no_grad():
        for buffer in base.buffers():  # as of a base that was trained: running statistics, biases, counters
            buffer.add_(1)
        for parameter in base.parameters():
            parameter.add_(0.1 * torch.rand(parameter.shape))

    def task(seed, **kind):
        targets = rng.dirichlet(np.ones(3), size=20)
        weights = rng.uniform(0.5, 1, size=20)
        return Task(np.arange(20), targets, np.arange(20, 30), np.eye(3)[y[20:]], weights=weights, seed=seed, **kind)

    start = {"start": {name: value.double() for name, value in base.state_dict().items()}}
    tasks = [task(0), task(1, mixing=0.4), task(2, coupling=0.3), task(3, **start)]
    options = {"epochs": 2, "batch_size": 8, "device": "cpu", "dtype": "float64"}
    fast, slow = (train(base, X, tasks, generic=g, **options) for g in (False, True))
    for name, value in slow.state.items():
        torch.testing.assert_close(fast.state[name], value, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(fast.logits(X), slow.logits(X), atol=1e-8)


@pytest.mark.parametrize("generic", [False, True])
def test_biases_that_a_normalisation_takes_away_stay_where_they_start(generic):
    """Their gradient is zero, so anything else is rounding, which Adam would blow up to steps of its full rate."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 4, 4, 1)), rng.integers(2, size=30)
    task = Task(np.arange(20), np.eye(2)[y[:20]], np.arange(20, 30), np.eye(2)[y[20:]])
    network = short_resnet((4, 4, 1), 2, 1)
    trained = train(network, X, [task], epochs=2, device="cpu", dtype="float32", generic=generic)
    of_convolutions = [n for n in trained.state if n.endswith(("stem.bias", "shortcut.0.bias")) or ".conv" in n]
    of_convolutions = [name for name in of_convolutions if name.endswith("bias")]
    assert len(of_convolutions) == 5
    for name in of_convolutions:
        assert not trained.state[name].any()
    assert trained.state["norm.bias"].all()


def test_one_position_cannot_be_normalised():
    X = np.zeros((9, 1, 1, 1))
    task = Task(np.arange(9), np.eye(2)[np.arange(9) % 2], np.arange(9), np.eye(2)[np.arange(9) % 2])
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        train(short_resnet((1, 1, 1), 2, 1), X, [task], batch_size=8, device="cpu")


@pytest.mark.parametrize("squared", [False, True])
def test_gradients_at_the_logits_are_those_of_autograd(squared):
    torch.manual_seed(0)
    logits = torch.randn(4, 6, 3, dtype=torch.float64, requires_grad=True)
    targets, weights = torch.rand(4, 6, 3).double(), torch.rand(4, 6).double()
    coupling = torch.tensor([0.3, 0.8], dtype=torch.float64)
    own = target_loss(logits, targets, squared)
    between = pair_loss(logits[::2], logits[1::2], squared).repeat_interleave(2, dim=0)
    share = coupling.repeat_interleave(2).view(-1, 1)
    # each pair's loss between the two counts once, though both rows of the table hold it
    same = weights.view(2, 2, 6)[:, :1].expand(2, 2, 6).reshape(4, 6)  # twins share their rows' weights
    loss = (same * ((1 - share) * own + share * between / 2)).sum() / 6
    (expected,) = torch.autograd.grad(loss, logits)
    got = batch_gradient(logits.detach(), targets, same, squared, coupling)
    torch.testing.assert_close(got, expected)


def bytes_held():
    """Bytes of all tensors that are reachable now, each storage once."""
    gc.collect()
    storages = [
        one.untyped_storage() for one in gc.get_objects() if issubclass(type(one), torch.Tensor) and not one.is_meta
    ]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


OF_ALL_KINDS = {
    "fcn": (lambda: fcn(5000, inputs=8, classes=3), (8,)),
    "convnet": (lambda: convnet(2, shape=(12, 12, 1), classes=3), (12, 12, 1)),
    "transformer": (lambda: transformer(1, length=4, classes=3, vocabulary=3000), (4,)),
    "resnet": (lambda: resnet(50, shape=(4, 4, 1), classes=3), (4, 4, 1)),
    "any module": (lambda: torch.nn.Sequential(torch.nn.Linear(8, 5000), torch.nn.Linear(5000, 3)), (8,)),
}
# Stacks have one copy, laid out for their products.
COPIES = [
    *((kind, None, 0) for kind in OF_ALL_KINDS),
    *((kind, False, 1) for kind in ("convnet", "transformer", "resnet")),
]


@pytest.mark.parametrize(("kind", "generic", "copies"), COPIES)
def test_models_that_only_predict_have_no_optimiser_state(kind, generic, copies, monkeypatch):
    make, shape = OF_ALL_KINDS[kind]
    monkeypatch.setattr(_trained, "make_stack", partial(make_stack, generic=generic))
    rng = np.random.default_rng(0)
    X = rng.integers(3000, size=(12, 4)) if kind == "transformer" else rng.normal(size=(12, *shape))
    task = Task(np.arange(6), np.eye(3)[np.arange(6) % 3], np.arange(6, 9), np.eye(3)[np.arange(3)])
    trained = train(make(), X, [task] * 2, epochs=1, device="cpu")
    weights = sum(trained.state[name].nbytes for name, _ in trained.template.named_parameters())
    before = bytes_held()
    trained.predict(X)  # the stack that predicts is kept for the next call
    assert copies * weights <= bytes_held() - before < (copies + 0.5) * weights


@pytest.mark.parametrize("wrong", [-1, 11])
def test_tokens_outside_the_vocabulary_are_refused(wrong):
    """They would be looked up in the table of the next model of the stack."""
    X = np.zeros((12, 4), dtype=int)
    task = Task(np.arange(6), np.eye(3)[np.arange(6) % 3], np.arange(6, 9), np.eye(3)[np.arange(3)])
    network = transformer(1, length=4, classes=3, vocabulary=11)
    trained = train(network, X, [task] * 2, epochs=1, device="cpu")
    X[5, 3] = wrong
    with pytest.raises(ValueError, match=f"tokens must be in 0 .. 10, the vocabulary, got {wrong}"):
        train(network, X, [task] * 2, epochs=1, device="cpu")
    with pytest.raises(ValueError, match="tokens must be"):
        trained.predict(X)
    with pytest.raises(ValueError, match="rows must have at most 4 tokens, the network's length, got 5"):
        trained.predict(np.zeros((3, 5), dtype=int))


def test_float32_kernels_notice_what_diverges():
    X = np.full((20, 3), 1e30, dtype="float32")
    task = Task(np.arange(10), np.eye(2)[np.arange(10) % 2], np.arange(10, 20), np.eye(2)[np.arange(10) % 2])
    assert train(fcn(8, inputs=3, classes=2), X, [task], device="cpu").status[0].startswith("failed")


def test_transformers_ask_the_library_for_one_number_of_rows(monkeypatch):
    """A library may multiply another number of rows in another way, so it sees the same one whoever is in the stack."""
    module, rows = transformer(1, length=4, classes=3, vocabulary=10), torch.arange(21).repeat(2, 1)
    params = {name: torch.stack([p.detach(), 2 * p.detach()]).double() for name, p in module.named_parameters()}
    stack = TransformerStack(module, params, Settings(torch.device("cpu"), torch.float64, batch_size=8))
    pool = torch.randint(10, (21, 4), generator=torch.Generator().manual_seed(0))
    plain, seen = stack.logits(pool, rows), []

    def outputs(ids):
        seen.append(ids.shape[1])
        return stack._forward(stack._tokens(ids)[1], stack.params)

    monkeypatch.setattr(stack, "outputs", outputs)
    stack.kernels, stack.large_rows = object(), 8
    assert (stack.large, stack.records) == (True, False)
    torch.testing.assert_close(stack.logits(pool, rows), plain)
    assert seen == [8, 8, 8]
    seen.clear()
    stack.large_rows = 12  # a step has too few rows for it, and so has everything else
    assert (stack.large, stack.records) == (False, True)
    torch.testing.assert_close(stack.logits(pool, rows), plain)
    assert seen == [11, 10]
