"""An epoch of fully connected networks by the GPU's kernels and by those of the CPU in float64: how far apart they are.

Run as a program with ``TRITON_INTERPRET=1`` it needs no GPU: see ``test_kernels.py``.
"""

import json

import torch

from lowchurn.nets._stacks import Batches, Settings
from lowchurn.nets._stacks._fcn import NAMES, CpuFcnStack, GpuFcnStack

KINDS = ("plain", "mixed", "twins")


def relative_errors(inputs, units, classes, kind, *, squared=False, models=2, rows=21, batch=8, device="cpu"):
    """Relative errors of logits before, and of what an epoch changes; whether decisions are those of the logits."""
    make = torch.Generator().manual_seed(inputs + units + classes)

    def draw(*shape):
        return torch.randn(*shape, generator=make)

    shapes = ((inputs, units), (units,), (units, classes), (classes,))
    start = {name: draw(models, *shape) / 3 for name, shape in zip(NAMES, shapes, strict=True)}
    pool = draw(3 * rows, inputs)
    orders = [torch.stack([torch.randperm(rows, generator=make) for _ in range(models)]) for _ in range(2)]
    mixed = kind == "mixed"
    batches = Batches(
        pool,
        torch.stack([torch.randperm(3 * rows, generator=make)[:rows] for _ in range(models)]),
        torch.softmax(2 * draw(models, rows, classes), -1),
        torch.rand(models, rows, generator=make) + 0.5,
        orders[0],
        orders[1] if mixed else None,
        torch.rand(models, -(-rows // batch), generator=make) if mixed else None,
        torch.full((models // 2,), 0.3) if kind == "twins" else None,
    )
    if kind == "twins":  # which train on the same rows
        for name in ("rows", "targets", "weights", "order"):
            setattr(batches, name, getattr(batches, name)[::2].repeat_interleave(2, 0))

    def stack(cls, place, dtype):
        state = {name: value.to(place, dtype, copy=True) for name, value in start.items()}
        settings = Settings(torch.device(place), dtype, batch_size=batch, squared=squared)
        own = {
            name: value.to(place, dtype if value.is_floating_point() else None)
            for name, value in vars(batches).items()
            if value is not None
        }
        return cls(state, settings), Batches(**own)

    one, given = stack(GpuFcnStack, device, torch.float32)
    other, exact = stack(CpuFcnStack, "cpu", torch.float64)
    logits = other.logits(exact.pool)
    errors = {"logits": _error(one.logits(given.pool), logits)}
    assert torch.equal(one.decisions(given.pool).cpu(), logits.argmax(-1).to(torch.uint8))
    one.train_epoch(given)
    other.train_epoch(exact)
    return errors | {
        name: _error(one.params[name].cpu() - start[name], other.params[name] - start[name]) for name in NAMES
    }


def _error(one, other):
    return float((one.cpu().double() - other).norm() / other.norm())


def cases():
    """Inputs, units and classes that take every kind of tile: in registers and not, few classes and many."""
    return [(5, 20, 3), (14, 20, 2), (5, 150, 2), (30, 150, 4), (16, 150, 26), (70, 140, 3)]


if __name__ == "__main__":
    found = [relative_errors(*sizes, kind) for sizes in cases() for kind in KINDS]
    found += [relative_errors(*sizes, "plain", squared=True) for sizes in cases()]
    print(json.dumps(found))
