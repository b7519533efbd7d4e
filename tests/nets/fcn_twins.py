"""An epoch of fully connected networks by the GPU's kernels and by a CPU in float64: how far apart they are.

Run as a program with ``TRITON_INTERPRET=1`` it needs no GPU: see ``test_kernels.py``.
"""

import json
from dataclasses import replace

import torch

from lowchurn.nets._stacks import Batches, Settings, make_stack
from lowchurn.nets._stacks._fcn import NAMES, GpuFcnStack
from lowchurn.nets.networks import fcn

KINDS = ("plain", "mixed", "twins")
EVERY_KIND = (*KINDS, "mixed twins")


def made(inputs, units, classes, kind, *, models=2, rows=21, batch=8):
    """Networks as they begin, and the batches of an epoch."""
    make = torch.Generator().manual_seed(inputs + units + classes)

    def draw(*shape):
        return torch.randn(*shape, generator=make)

    def places(of):
        return torch.rand(models, of, generator=make).argsort(1)[:, :rows]

    shapes = ((inputs, units), (units,), (units, classes), (classes,))
    start = {name: draw(models, *shape) / 3 for name, shape in zip(NAMES, shapes, strict=True)}
    mixed = "mixed" in kind
    batches = Batches(
        draw(3 * rows, inputs),
        places(3 * rows),
        torch.softmax(2 * draw(models, rows, classes), -1),
        torch.rand(models, rows, generator=make) + 0.5,
        places(rows),
        places(rows) if mixed else None,
        torch.rand(models, -(-rows // batch), generator=make) if mixed else None,
        torch.full((models // 2,), 0.3) if "twins" in kind else None,
    )
    if "twins" in kind:  # which train on the same rows
        for name in ("rows", "targets", "weights", "order", "mate", "mix"):
            own = getattr(batches, name)
            setattr(batches, name, None if own is None else own[::2].repeat_interleave(2, 0))
    return start, batches


def placed(start, batches, device, dtype=torch.float32):
    """The same in memory of its own."""

    def there(value):
        return value.to(device, dtype if value.is_floating_point() else None, copy=True)

    own = {name: there(value) for name, value in vars(batches).items() if value is not None}
    return {name: there(value) for name, value in start.items()}, Batches(**own)


def on_the_cpu(start, batches, *, squared=False, batch=8):
    """A stack in float64 that has not been trained yet, and its batches."""
    units, classes = start["output.weight"].shape[1:]
    state, exact = placed(start, batches, "cpu", torch.float64)
    settings = Settings(torch.device("cpu"), torch.float64, batch_size=batch, squared=squared)
    return make_stack(fcn(units, inputs=batches.pool.shape[1], classes=classes), state, {}, settings), exact


def changed(params, stack, start):
    """Relative errors of what training has changed, by the names of the weights."""
    old = {name: value.double() for name, value in start.items()}
    return {name: error(params[name].double().cpu() - old[name], stack.params[name] - old[name]) for name in NAMES}


def relative_errors(inputs, units, classes, kind, *, squared=False, models=2, rows=21, batch=8, epochs=1, device="cpu"):
    """Relative errors of logits before, and of what some epochs change; whether decisions are those of the logits."""
    start, batches = made(inputs, units, classes, kind, models=models, rows=rows, batch=batch)
    other, exact = on_the_cpu(start, batches, squared=squared, batch=batch)
    state, given = placed(start, batches, device)
    one = GpuFcnStack(state, Settings(torch.device(device), torch.float32, batch_size=batch, squared=squared))
    logits = other.logits(exact.pool)
    errors = {"logits": error(one.logits(given.pool), logits)}
    likeliest = logits.topk(2).values
    clear = likeliest[..., 0] - likeliest[..., 1] > 1e-6 * logits.abs().max()
    assert torch.equal(one.decisions(given.pool).cpu()[clear], logits.argmax(-1)[clear].to(torch.uint8))
    for epoch in range(epochs):
        for stack, epoch_of in ((one, given), (other, exact)):
            stack.train_epoch(replace(epoch_of, order=epoch_of.order.roll(epoch, 1)))
    return errors | changed(one.params, other, start)


def error(one, other):
    """Relative to the other."""
    return float((one.cpu().double() - other).norm() / other.norm())


def cases():
    """Inputs, units and classes that take every kind of tile: in registers and not, few classes and many."""
    return [(5, 20, 3), (14, 20, 2), (5, 150, 2), (30, 150, 4), (16, 150, 26), (70, 140, 3)]


if __name__ == "__main__":
    found = [relative_errors(*sizes, kind) for sizes in cases() for kind in KINDS]
    found += [relative_errors(*sizes, "plain", squared=True) for sizes in cases()]
    print(json.dumps(found))
