"""The two kernels of fully connected networks on a GPU: the one for all, and the one that keeps them in shared memory.

    python benchmarks/resident_fcn.py                   # on a GPU of compute capability 9.0: errors and times
    python benchmarks/resident_fcn.py --units 150 300   # of smaller networks
    python benchmarks/resident_fcn.py --then raw --inputs openml.npz --out OUT --parts "warm start"

The last one goes on with `gpu_tables.py` and these arguments twice: with the kernel for all alone, and as the library
chooses. The second kernel can be had in several shapes, and every one is timed: `shape_for` of
``lowchurn.nets._kernels.fcn_resident`` takes the one that was fastest. Errors are those of what an epoch changes,
relative to the same training on a CPU in double precision. A hidden unit that is closer to zero than float32 can tell
costs up to 1e-3.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import torch
from products import milliseconds
from tests.nets.fcn_twins import KINDS, made, placed, relative_errors

from lowchurn.nets._kernels import fcn_resident
from lowchurn.nets._kernels.fcn_resident import Kernel, Shape
from lowchurn.nets._stacks import Settings
from lowchurn.nets._stacks._fcn import GpuFcnStack

# By tiles of eight inputs (the bias is one), for few classes and for many.
NARROW = {
    1: [Shape(1, 16, 4, 1), Shape(2, 8, 4, 2), Shape(4, 4, 4, 3)],
    2: [Shape(2, 8, 4, 1), Shape(4, 4, 4, 2), Shape(4, 8, 2, 2)],
    3: [Shape(2, 8, 4, 1), Shape(4, 4, 4, 2), Shape(4, 8, 2, 2)],
    4: [Shape(4, 8, 2, 1), Shape(4, 4, 4, 1), Shape(8, 4, 2, 2)],
}
WIDE = [Shape(4, 8, 2, 1), Shape(8, 4, 2, 2), Shape(8, 8, 1, 1)]
MOST_BLOCKS = 8  # of a cluster
DEVICE = torch.device("cuda", 0)


@contextmanager
def only(kernel: Kernel | None):
    """Every network is trained by this kernel, or by the one for all."""
    found, fcn_resident.find = fcn_resident.find, lambda *sizes, **options: kernel
    try:
        yield
    finally:
        fcn_resident.find = found


def candidates(inputs, units, classes, twins):
    """Every shape that can be had, by the constants of its kernel."""
    known = NARROW[fcn_resident.input_tiles(inputs)] if classes <= fcn_resident.NARROW else WIDE
    taken = fcn_resident.shape_for(inputs, units, classes, twins=twins)
    for shape in dict.fromkeys([*known, *([] if taken is None else [taken])]):
        c = fcn_resident.constants(inputs, units, classes, shape, twins=twins)
        fits = fcn_resident.shared_bytes(c) <= fcn_resident.MOST_SHARED
        if fits and shape.units >= units and shape.split * (1 + twins) <= MOST_BLOCKS:
            yield shape, shape == taken


def compare(inputs, units, classes, kind, models, rows=2000):
    """Print errors and times of every shape, beside the kernel for all."""
    mixed, twins = kind == "mixed", kind == "twins"
    state, batches = placed(*made(inputs, units, classes, kind, models=models, rows=rows, batch=32), DEVICE)
    stack = GpuFcnStack(state, Settings(DEVICE, torch.float32))

    def microseconds():
        return 1000 * milliseconds(lambda: stack.train_epoch(batches)) / models

    with only(None):
        now = microseconds()
    print(f"{inputs:3} inputs, {units} units, {classes:2} classes, {kind:6}{now:7.2f} us per model-epoch, for all")
    shapes = list(candidates(inputs, units, classes, twins))
    with ThreadPoolExecutor() as pool:
        every = [fcn_resident.constants(inputs, units, classes, one, mixed=mixed, twins=twins) for one, _ in shapes]
        kernels = list(pool.map(lambda c: Kernel(c, DEVICE), every))
    for (shape, taken), kernel in zip(shapes, kernels, strict=True):
        with only(kernel):
            took = microseconds()
            errors = relative_errors(inputs, units, classes, kind, models=6, rows=200, batch=32, device=DEVICE)
        words = f"{kernel.registers} registers, {kernel.shared >> 10} KiB, error {max(errors.values()):.1e}"
        place = "taken" if taken else ""
        print(f"    {tuple(shape)!s:16}{took:7.2f} us, {now / took:5.1f} x; {words} {place}", flush=True)


def run_tables(arguments):
    """`gpu_tables.py` with these arguments, with the kernel for all and as the library chooses; all compiled before."""
    import gpu_tables

    known = argparse.ArgumentParser()
    known.add_argument("--out", type=Path, required=True)
    chosen, rest = known.parse_known_args(arguments)

    def run(name):
        with tempfile.TemporaryDirectory() as folder:
            sys.argv = ["gpu_tables.py", *rest, "--out", folder, "--trials", "1", "--epochs", "1"]
            gpu_tables.main()
        print(f"{name}:", flush=True)
        sys.argv = ["gpu_tables.py", *rest, "--out", str(chosen.out / name)]
        gpu_tables.main()

    with only(None):
        run("for all")
    run("chosen")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=4224)
    parser.add_argument("--units", type=int, nargs="+", default=[1000])
    parser.add_argument("--then", nargs=argparse.REMAINDER, default=[], help="arguments of gpu_tables.py")
    chosen = parser.parse_args()
    for units in chosen.units:
        for inputs, classes in ((5, 2), (14, 2), (20, 2), (30, 2), (16, 26)):
            for kind in KINDS if inputs in (16, 20) else ("plain", "twins"):
                compare(inputs, units, classes, kind, chosen.models)
    if chosen.then:
        run_tables(chosen.then)


if __name__ == "__main__":
    main()
