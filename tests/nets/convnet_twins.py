"""One step of a stack of convnets by the kernels and by plain torch in float64: how far apart they are.

Run as a program with ``TRITON_INTERPRET=1`` it needs no GPU: see ``test_kernels.py``.
"""

import json

import torch

from lowchurn.nets._initial_weights import fresh_state
from lowchurn.nets._stacks import Batches, Settings
from lowchurn.nets._stacks._convnet import ConvnetStack, relu_pool, unpool
from lowchurn.nets._stacks._convnet_gpu import HALVED, GpuConvnetStack, in_blocks, join, out_of_blocks, split
from lowchurn.nets._stacks._stack import BETA1, BETA2, EPSILON
from lowchurn.nets.networks import convnet

RATE = 0.01  # of Adam, for one dense layer


def relative_errors(size, *, shape, mixed, rows, device, low, models=2, batch=8):
    """Relative errors of logits and gradients, and of what one step changes, with products in ``low``.

    With fewer rows than a batch, the kernels fill it up.
    """
    make = torch.Generator(device).manual_seed(0)

    def draw(*shape):
        return torch.rand(*shape, device=device, generator=make)

    network = convnet(size, shape=shape, classes=3)
    params = fresh_state(network, network, torch.arange(models, device=device), torch.float32)
    for name, value in params.items():  # biases too: none is zero
        value += 0.05 * torch.randn(value.shape, device=device, generator=make)
        if name in HALVED:  # products take the upper halves: so they are all of the weight
            value.copy_(value.bfloat16())
    batches = Batches(
        torch.randn(50, *shape, device=device, generator=make),
        draw(models, 50).argsort(1)[:, :rows],
        draw(models, rows, 3),
        draw(models, rows),
        draw(models, rows).argsort(1),
        draw(models, rows).argsort(1) if mixed else None,
        draw(models, 1) if mixed else None,
    )

    class Fused(GpuConvnetStack):
        compute = low

    def trained(cls, kind):
        """A stack after one step, and its logits before."""
        some = {n: v.to(kind if v.is_floating_point() else None) for n, v in vars(batches).items() if v is not None}
        given = Batches(**some)
        state = {name: value.to(kind, copy=True) for name, value in params.items()}
        stack = cls(state, Settings(torch.device(device), kind, batch_size=batch))
        logits = stack.logits(given.pool)
        stack.steps = 1
        stack.step_size.fill_(stack.rate())
        stack.train_step(given)
        return stack, logits

    (one, logits), (other, exact) = trained(Fused, torch.float32), trained(ConvnetStack, torch.float64)
    got, expected = first_moments(one), first_moments(other)
    errors = {"logits": _error(logits, exact)} | {name: _error(got[name], expected[name]) for name in expected}
    moved = {name: _error(one.params[name] - params[name], other.params[name] - params[name]) for name in expected}
    return errors, moved


def first_moments(stack):
    """Adam's first moments of all layers, name -> (K, ...)."""
    first, _ = stack.moments
    if isinstance(stack, ConvnetStack):
        return stack.layout.views(first["flat"])
    return stack.layout.views(first["rest"]) | {name: stack.whole(name, first[name]).float() for name in HALVED}


def dense_errors(rows, inputs, outputs, block, *, device, low, models=2, **tiles):
    """Relative errors of what one step of a dense layer in halves changes and returns, with products in ``low``.

    Inputs are a number, or height, width and channels of what a pooling made them of.
    """
    from lowchurn.nets._kernels import dense_gpu

    make = torch.Generator(device).manual_seed(rows + outputs)

    def draw(*shape):
        return torch.randn(models, *shape, device=device, generator=make)

    before, which = None, None
    if isinstance(inputs, tuple):
        before = draw(rows, *inputs)
        x, which = relu_pool(before, record=True)
        inputs = x[0, 0].numel()
        x = x.flatten(2).to(low)
    else:
        x = draw(rows, inputs).relu().to(low)
    d = (draw(rows, outputs) / 30).to(low)
    weight, first, second = draw(inputs, outputs), draw(inputs, outputs) / 30, draw(inputs, outputs).square() / 900
    state = [in_blocks(value, *block) for value in (weight, first, second)]
    high, small = split(state[0])
    exact = _adam(weight.double(), first.double(), second.double(), x.double().mT @ d.double())
    upper = out_of_blocks(high, inputs, outputs)
    back = (d.double() @ upper.double().mT) * (x > 0)
    expected_sums = back.sum(1)
    got, sums = torch.empty_like(x), x.new_empty(models, inputs, dtype=torch.float32)
    if before is not None:
        back = unpool(back.view(which.shape), which, *before.shape[2:4])
        got = torch.zeros_like(before, dtype=low)
    rate = torch.full((), RATE, device=device)
    start = weight.double()
    dense_gpu.dense_backward(x, d, high, small, *state[1:], rate, got, sums, which, **tiles)
    after = [out_of_blocks(value, inputs, outputs) for value in (join(high, small), *state[1:])]
    return {
        "back": _error(got, back),
        "sums": _error(sums, expected_sums),
        "weight": _error(after[0] - start, exact[0] - start),
        "first": _error(after[1], exact[1]),
        "second": _error(after[2], exact[2]),
    }


def _adam(weight, first, second, gradient):
    first = first + (gradient - first) * (1 - BETA1)
    second = second + (gradient.square() - second) * (1 - BETA2)
    return weight - RATE * first / (second.sqrt() + EPSILON), first, second


def _error(one, other):
    return float((one.double() - other).norm() / other.norm())


# Even and odd sizes before and after a pooling, mixed and not, whole and partial batches; columns for two tiles.
CASES = [
    {"size": 1, "shape": (12, 12, 1), "mixed": False, "rows": 8},
    {"size": 1, "shape": (13, 15, 3), "mixed": True, "rows": 5},
    {"size": 1, "shape": (16, 14, 2), "mixed": False, "rows": 3},
    {"size": 2, "shape": (12, 19, 1), "mixed": True, "rows": 8},
]
# Rows, inputs, outputs, and the block: of one or several, whole or with zeros behind the last.
DENSE = [
    (8, 40, 84, (16, 32)),
    (5, 70, 20, (16, 32)),
    (20, 64, 150, (64, 64)),
    (8, (4, 6, 24), 40, (16, 32)),
    (7, (5, 7, 48), 130, (64, 64)),
]

if __name__ == "__main__":
    # Not rounded to 16 bits: the interpreter cannot multiply bfloat16.
    options = {"device": "cpu", "low": torch.float32}
    print(json.dumps({
        "steps": [relative_errors(**case, **options) for case in CASES],
        "dense": [dense_errors(*sizes, **options) for sizes in DENSE],
    }))  # fmt: skip
