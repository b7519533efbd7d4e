"""A kernel that keeps each fully connected network in shared memory for a whole epoch, beside the one that is used.

    python benchmarks/resident_fcn.py               # on a GPU of compute capability 9.0: errors and times
    python benchmarks/resident_fcn.py --emulated    # on a CPU, with a C++ compiler: errors only, every thread a fiber

The kernel is `benchmarks/resident/fcn.cu`, and no part of the library yet. Errors are those of what an epoch changes,
relative to the library's kernels for CPUs in double precision.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import torch

from lowchurn.nets._stacks import Batches, Settings
from lowchurn.nets._stacks._fcn import NAMES, CpuFcnStack
from lowchurn.nets._stacks._stack import BETA1, BETA2, EPSILON

SOURCES = Path(__file__).parent / "resident"
KINDS = ("plain", "mixed", "twins")
# (split, warps, tiles of units of a warp, blocks of a multiprocessor): those that are timed, by tiles of eight columns.
SHAPES = {
    1: [(1, 16, 4, 1), (2, 8, 4, 2), (4, 4, 4, 3)],
    2: [(2, 8, 4, 1), (4, 4, 4, 2), (4, 8, 2, 2)],
    3: [(2, 8, 4, 1), (4, 4, 4, 2), (4, 8, 2, 2)],
    4: [(4, 8, 2, 1), (4, 4, 4, 1), (8, 4, 2, 2)],
}
POINTERS = 16  # arguments that are tensors


def constants(inputs, units, classes, shape, kind, *, squared=False, batch=32):
    """What the kernel is compiled with."""
    split, warps, tiles, together = shape
    columns = -(-(inputs + 1) // 8)
    width = 8 * columns
    while width % 32 not in (8, 24):  # so that rows of eight lanes lie in different banks
        width += 8
    names = {"D": inputs, "H": units, "C": classes, "KT": columns, "XS": width, "BATCH": batch}
    names |= {"SPLIT": split, "WARPS": warps, "MT": tiles, "TOGETHER": together}
    return names | {"SQUARED": int(squared), "MIXUP": int(kind == "mixed"), "TWIN": int(kind == "twins")}


def shared_bytes(c):
    """The size of ``Shared`` in fcn.cu."""
    units, nets = 16 * c["WARPS"] * c["MT"], c["TWIN"] + 1
    state = 3 * units * (8 * c["KT"] + c["C"])
    parts = 2 * nets * c["SPLIT"] * c["WARPS"] * c["C"] * 32
    return 4 * (state + 3 * 32 * c["XS"] + parts + 4 * 32)


def defined(c):
    return [f"-D{name}={value}" for name, value in c.items()]


class Emulated:
    """The kernel compiled for this CPU."""

    def __init__(self, c):
        with tempfile.TemporaryDirectory() as folder:
            library = f"{folder}/kernel.so"
            source = str(SOURCES / "emulated.cpp")
            options = ["-O1", "-std=c++17", "-shared", "-fPIC"]
            subprocess.run(["c++", *options, *defined(c), "-o", library, source], check=True)
            self.library = ctypes.CDLL(library)
        assert self.library.shared_bytes() == shared_bytes(c)

    def __call__(self, models, values, kinds, seed=0):
        converted = [kind(value) for kind, value in zip(kinds, values, strict=True)]
        self.library.run(ctypes.c_int(models), *converted, ctypes.c_int(seed))


class OnGpu:
    """The kernel compiled for this GPU by NVRTC, which torch's wheels for CUDA bring along."""

    def __init__(self, c):
        from cuda.bindings import driver, nvrtc

        source = "".join((SOURCES / name).read_text() for name in ("cuda.cu", "fcn.cu"))
        options = ["--std=c++17", "--gpu-architecture=sm_90", *defined(c)]
        program = good(nvrtc.nvrtcCreateProgram(source.encode(), b"fcn.cu", 0, [], []))
        try:
            good(nvrtc.nvrtcCompileProgram(program, len(options), [one.encode() for one in options]))
        except RuntimeError as error:
            log = b" " * good(nvrtc.nvrtcGetProgramLogSize(program))
            good(nvrtc.nvrtcGetProgramLog(program, log))
            raise RuntimeError(log.decode()) from error
        self.binary = b" " * good(nvrtc.nvrtcGetCUBINSize(program))
        good(nvrtc.nvrtcGetCUBIN(program, self.binary))
        torch.zeros(1, device="cuda")  # makes torch's context the current one
        self.function = good(driver.cuModuleGetFunction(good(driver.cuModuleLoadData(self.binary)), b"train"))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        good(driver.cuFuncSetAttribute(self.function, limit, shared_bytes(c)))
        registers = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
        self.registers = good(driver.cuFuncGetAttribute(registers, self.function))
        self.block, self.shared, self.split = 32 * c["WARPS"], shared_bytes(c), c["SPLIT"]

    def __call__(self, models, values, kinds):
        from cuda.bindings import driver

        stream = torch.cuda.current_stream().cuda_stream
        grid = models * self.split
        given = (tuple(values), tuple(kinds))
        good(driver.cuLaunchKernel(self.function, grid, 1, 1, self.block, 1, 1, self.shared, stream, given, 0))


def good(found):
    """What a call of CUDA returns, without its error code."""
    code, *values = found
    if int(code):
        raise RuntimeError(f"{code!r}")
    return values[0] if values else None


@lru_cache
def step_sizes(device, count=20480):
    t = torch.arange(1, count + 1, dtype=torch.float64)
    return (1e-3 * torch.sqrt(1 - BETA2**t) / (1 - BETA1**t)).float().to(device)


def arguments(state, b, done):
    """Values and C types of the kernel's arguments, whose tensors must outlive the call.

    ``state``: packed weights and their moments, output biases and theirs.
    """
    sizes = step_sizes(done.device)
    tensors = [*state, b.pool, b.rows, b.targets, b.weights, b.order, b.mate, b.mix, done, b.coupling, sizes]
    assert len(tensors) == POINTERS
    strides = [b.rows.stride(0), *b.targets.stride()[:2], b.weights.stride(0), b.order.stride(0)]
    strides.append(0 if b.mix is None else b.mix.stride(0))
    values = [0 if one is None else one.data_ptr() for one in tensors]
    values += [len(sizes) - 1, b.order.shape[1], *strides, 1 - BETA1, 1 - BETA2, EPSILON]
    kinds = [ctypes.c_void_p] * POINTERS + [ctypes.c_longlong, ctypes.c_int]
    return values, kinds + [ctypes.c_longlong] * len(strides) + [ctypes.c_float] * 3


def made(inputs, units, classes, kind, *, models, rows, batch, device):
    """Networks as they begin, and an epoch of rows for them."""
    make = torch.Generator().manual_seed(inputs + units + classes)

    def draw(*shape):
        return torch.randn(*shape, generator=make).to(device)

    def places(count):
        found = torch.rand(models, count, generator=make).argsort(1)[:, :rows].to(device)
        return found[::2].repeat_interleave(2, 0) if kind == "twins" else found

    shapes = ((inputs, units), (units,), (units, classes), (classes,))
    start = {name: draw(models, *shape) / 3 for name, shape in zip(NAMES, shapes, strict=True)}
    targets, weights = torch.softmax(2 * draw(models, rows, classes), -1), draw(models, rows).sigmoid()
    if kind == "twins":  # which train on the same rows
        targets, weights = (value[::2].repeat_interleave(2, 0) for value in (targets, weights))
    mixed, steps = kind == "mixed", math.ceil(rows / batch)
    return start, Batches(
        draw(3 * rows, inputs),
        places(3 * rows),
        targets,
        weights,
        places(rows),
        places(rows) if mixed else None,
        draw(models, steps).sigmoid() if mixed else None,
        torch.full((models // 2,), 0.3, device=device) if kind == "twins" else None,
    )


def packed(start):
    """Weights and zero moments as the kernels for GPUs have them."""
    hidden, bias, output, output_bias = (start[name] for name in NAMES)
    weights = torch.cat([hidden, bias[:, None], output.transpose(1, 2)], 1).contiguous()
    return [
        weights,
        *(torch.zeros_like(weights) for _ in range(2)),
        output_bias.clone(),
        *(0 * output_bias for _ in range(2)),
    ]


def relative_errors(kernel, c, kind, *, models=2, rows=21, device="cpu", **options):
    """Of what an epoch changes, by the names of the weights."""
    inputs, units, classes, batch = (c[name] for name in ("D", "H", "C", "BATCH"))
    start, b = made(inputs, units, classes, kind, models=models, rows=rows, batch=batch, device=device)
    state, done = packed(start), torch.zeros(models, dtype=torch.int32, device=device)
    kernel(models, *arguments(state, b, done), **options)
    exact = {
        name: None if value is None else value.cpu().to(torch.float64 if value.is_floating_point() else None)
        for name, value in vars(b).items()
    }
    settings = Settings(torch.device("cpu"), torch.float64, batch_size=batch, squared=bool(c["SQUARED"]))
    twin = CpuFcnStack({name: value.double().cpu() for name, value in start.items()}, settings)
    twin.train_epoch(Batches(**exact))
    weights, bias = state[0], state[3]
    found = (weights[:, :inputs], weights[:, inputs], weights[:, inputs + 1 :].transpose(1, 2), bias)
    errors = {}
    for name, value in zip(NAMES, found, strict=True):
        moved = twin.params[name] - start[name].double().cpu()
        errors[name] = float((value.double().cpu() - start[name].double().cpu() - moved).norm() / moved.norm())
    return errors


def milliseconds(call, repeats=5):
    """The least of a few calls."""
    call()
    found = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end))
    return min(found)


def compare(inputs, units, classes, kind, models, rows=2000):
    """Errors and times of every shape of the kernel, beside the kernel of the library."""
    from lowchurn.nets._kernels import fcn_gpu

    start, b = made(inputs, units, classes, kind, models=models, rows=rows, batch=32, device="cuda")
    state, done = packed(start), torch.zeros(models, dtype=torch.int32, device="cuda")
    options = {"mate": b.mate, "mix": b.mix, "coupling": b.coupling, "loss": "log", "batch_size": 32}
    options |= {"learning_rate": 1e-3, "precision": "tf32x3", **fcn_gpu.tiles(inputs, units, classes)}

    def library():
        fcn_gpu.train_epoch(*state, b.pool, b.rows, b.targets, b.weights, b.order, done, **options)

    now = milliseconds(library) / models
    print(
        f"{inputs:3} inputs, {classes} classes, {kind:6} the library's {1000 * now:7.2f} us per model-epoch", flush=True
    )
    for shape in SHAPES[-(-(inputs + 1) // 8)]:
        c = constants(inputs, units, classes, shape, kind)
        kernel = OnGpu(c)
        errors = relative_errors(kernel, c, kind, models=6, rows=200, device="cuda")
        own = packed(start)
        given = arguments(own, b, done)
        took = milliseconds(lambda kernel=kernel, given=given: kernel(models, *given)) / models
        worst = max(errors.values())
        words = f"{kernel.registers} registers, {kernel.shared >> 10} KiB, error {worst:.1e}"
        print(f"    {shape!s:16}{1000 * took:7.2f} us, {now / took:5.1f} x; {words}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--models", type=int, default=4224)
    chosen = parser.parse_args()
    if chosen.emulated:
        for sizes, shape in (((5, 60, 2), (2, 2, 1, 1)), ((20, 100, 4), (4, 1, 2, 1))):
            for kind in KINDS:
                c = constants(*sizes, shape, kind, batch=8)
                print(sizes, shape, kind, relative_errors(Emulated(c), c, kind))
        return
    for inputs in (5, 14, 20, 30):
        for kind in KINDS if inputs == 20 else ("plain",):
            compare(inputs, 1000, 2, kind, chosen.models)


if __name__ == "__main__":
    main()
