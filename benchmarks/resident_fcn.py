"""Kernels that keep each fully connected network in shared memory for a whole epoch, beside the one that is used.

    python benchmarks/resident_fcn.py               # on a GPU of compute capability 9.0: errors and times
    python benchmarks/resident_fcn.py --emulated    # on a CPU, with a C++ compiler: errors only, every thread a fiber
    python benchmarks/resident_fcn.py --then raw --inputs openml.npz --out OUT --parts "warm start"

The last one goes on with `gpu_tables.py` and these arguments twice: with the library's kernel, and with the fastest of
these for each network. The kernels are in `benchmarks/resident`, and no part of the library yet: narrow.cu for up to
four classes, wide.cu for up to 32. Errors are those of what an epoch changes, relative to the same training on a CPU in
double precision.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import torch

from lowchurn.nets._stacks import Batches, Settings, make_stack
from lowchurn.nets._stacks._fcn import NAMES, GpuFcnStack
from lowchurn.nets._stacks._stack import BETA1, BETA2, EPSILON
from lowchurn.nets.networks import fcn

SOURCES = Path(__file__).parent / "resident"
KINDS = ("plain", "mixed", "twins")
NARROW = 4  # classes, at most, whose output layer is not done in products
# (split, warps, tiles of units of a warp, blocks of a multiprocessor): those that are timed, by tiles of eight columns.
SHAPES = {
    1: [(1, 16, 4, 1), (2, 8, 4, 2), (4, 4, 4, 3)],
    2: [(2, 8, 4, 1), (4, 4, 4, 2), (4, 8, 2, 2)],
    3: [(2, 8, 4, 1), (4, 4, 4, 2), (4, 8, 2, 2)],
    4: [(4, 8, 2, 1), (4, 4, 4, 1), (8, 4, 2, 2)],
}
WIDE_SHAPES = [(4, 8, 2, 1), (8, 4, 2, 2), (8, 8, 1, 1)]


def constants(inputs, units, classes, shape, kind, *, squared=False, batch=32):
    """What a kernel is compiled with."""
    split, warps, tiles, together = shape
    columns = -(-(inputs + 1) // 8)
    width = 8 * columns
    while width % 32 not in (8, 24):  # so that rows of eight lanes lie in different banks
        width += 8
    names = {"D": inputs, "H": units, "C": classes, "KT": columns, "XS": width, "BATCH": batch}
    names |= {"SPLIT": split, "WARPS": warps, "MT": tiles, "TOGETHER": together, "WIDE": int(classes > NARROW)}
    return names | {"SQUARED": int(squared), "MIXUP": int(kind == "mixed"), "TWIN": int(kind == "twins")}


def shapes(inputs, classes, kind):
    """Shapes that can be had: clusters have eight blocks at most."""
    known = WIDE_SHAPES if classes > NARROW else SHAPES[-(-(inputs + 1) // 8)]
    return [shape for shape in known if shape[0] * (1 + (kind == "twins")) <= 8]


def shared_bytes(c):
    """The size of ``Shared`` of a kernel."""
    units, nets = 16 * c["WARPS"] * c["MT"], c["TWIN"] + 1
    if not c["WIDE"]:
        state = 3 * units * (8 * c["KT"] + c["C"])
        parts = 2 * nets * c["SPLIT"] * c["WARPS"] * c["C"] * 32
        return 4 * (state + 3 * 32 * c["XS"] + parts + 4 * 32)
    columns = 8 * -(-c["C"] // 8)
    state = 3 * units * (8 * c["KT"] + columns)
    parts = c["WARPS"] * 32 * -(-c["C"] // 2) * 2 + 32 * (columns + 4)
    return 4 * (state + 2 * 32 * c["XS"] + parts + 3 * 32 + 4 * 32)


def defined(c):
    return [f"-D{name}={value}" for name, value in c.items()]


class Given(ctypes.Structure):
    """The argument of a kernel; its tensors must outlive the call."""

    POINTERS = (
        *("params", "m", "v", "bias", "bias_m", "bias_v", "pool", "rows", "targets", "weights", "order"),
        *("mate", "mix", "done", "coupling", "step_sizes"),
    )
    NUMBERS = (
        *("last_step_size", "n", "stride_rows", "stride_target_model", "stride_target_row"),
        *("stride_weights", "stride_order", "stride_mix"),
    )
    RATES = ("rate1", "rate2", "epsilon")
    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_longlong) for name in NUMBERS),
        *((name, ctypes.c_float) for name in RATES),
    )

    @classmethod
    def of(cls, state, b, done, learning_rate=1e-3):
        """From packed weights and their moments, output biases and theirs, and the batches of an epoch."""
        sizes = step_sizes(done.device, learning_rate)
        tensors = (*state, b.pool, b.rows, b.targets, b.weights, b.order, b.mate, b.mix, done, b.coupling, sizes)
        strides = [b.rows.stride(0), *b.targets.stride()[:2], b.weights.stride(0), b.order.stride(0)]
        strides.append(0 if b.mix is None else b.mix.stride(0))
        pointers = (None if one is None else one.data_ptr() for one in tensors)
        return cls(*pointers, len(sizes) - 1, b.order.shape[1], *strides, 1 - BETA1, 1 - BETA2, EPSILON)


class Emulated:
    """A kernel compiled for this CPU."""

    def __init__(self, c):
        with tempfile.TemporaryDirectory() as folder:
            library = f"{folder}/kernel.so"
            source = str(SOURCES / "emulated.cpp")
            options = ["-O1", "-std=c++17", "-shared", "-fPIC"]
            subprocess.run(["c++", *options, *defined(c), "-o", library, source], check=True)
            self.loaded = ctypes.CDLL(library)
        assert self.loaded.shared_bytes() == shared_bytes(c)
        assert self.loaded.given_bytes() == ctypes.sizeof(Given)

    def __call__(self, models, given, seed=0):
        self.loaded.run(ctypes.c_int(models), ctypes.byref(given), ctypes.c_int(seed))


def source_of(c):
    """The text of a kernel for a GPU."""
    return "".join((SOURCES / name).read_text() for name in ("cuda.cu", "common.cu", f"{kernel_of(c)}.cu"))


def kernel_of(c):
    return "wide" if c["WIDE"] else "narrow"


def compiled(c):
    """A kernel as machine code of an H100 or H200, by NVRTC, which torch's wheels for CUDA bring along."""
    from cuda.bindings import nvrtc

    options = ["--std=c++17", "--gpu-architecture=sm_90", "--device-as-default-execution-space", *defined(c)]
    program = good(nvrtc.nvrtcCreateProgram(source_of(c).encode(), b"fcn.cu", 0, [], []))
    try:
        good(nvrtc.nvrtcCompileProgram(program, len(options), [one.encode() for one in options]))
    except RuntimeError as error:
        log = b" " * good(nvrtc.nvrtcGetProgramLogSize(program))
        good(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(log.decode()) from error
    binary = b" " * good(nvrtc.nvrtcGetCUBINSize(program))
    good(nvrtc.nvrtcGetCUBIN(program, binary))
    return binary


class OnGpu:
    """A kernel on this GPU."""

    COMPILING = ThreadPoolExecutor()

    @classmethod
    @cache
    def begun(cls, constants):
        """A future of the kernel with these constants, which is compiled beside others."""
        return cls.COMPILING.submit(cls, dict(constants))

    def __init__(self, c):
        from cuda.bindings import driver

        self.binary = compiled(c)
        torch.zeros(1, device="cuda")  # makes torch's context the current one
        self.function = good(driver.cuModuleGetFunction(good(driver.cuModuleLoadData(self.binary)), b"train"))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        good(driver.cuFuncSetAttribute(self.function, limit, shared_bytes(c)))
        registers = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
        self.registers = good(driver.cuFuncGetAttribute(registers, self.function))
        self.block, self.shared, self.split = 32 * c["WARPS"], shared_bytes(c), c["SPLIT"]

    def __call__(self, models, given):
        from cuda.bindings import driver

        stream = torch.cuda.current_stream().cuda_stream
        grid = models * self.split
        places = (ctypes.c_void_p * 1)(ctypes.addressof(given))
        where = ctypes.addressof(places)
        good(driver.cuLaunchKernel(self.function, grid, 1, 1, self.block, 1, 1, self.shared, stream, where, 0))


def good(found):
    """What a call of CUDA returns, without its error code."""
    code, *values = found
    if int(code):
        raise RuntimeError(f"{code!r}")
    return values[0] if values else None


@lru_cache
def step_sizes(device, learning_rate):
    t = torch.arange(1, 20481, dtype=torch.float64)
    return (learning_rate * torch.sqrt(1 - BETA2**t) / (1 - BETA1**t)).float().to(device)


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
    kernel(models, Given.of(state, b, done), **options)
    exact = {
        name: None if value is None else value.cpu().to(torch.float64 if value.is_floating_point() else None)
        for name, value in vars(b).items()
    }
    settings = Settings(torch.device("cpu"), torch.float64, batch_size=batch, squared=bool(c["SQUARED"]))
    network = fcn(units, inputs=inputs, classes=classes)
    twin = make_stack(network, {name: value.cpu().double() for name, value in start.items()}, {}, settings)
    twin.train_epoch(Batches(**exact))
    weights, bias = state[0], state[3]
    found = (weights[:, :inputs], weights[:, inputs], weights[:, inputs + 1 :].transpose(1, 2), bias)
    errors = {}
    for name, value in zip(NAMES, found, strict=True):
        moved = twin.params[name] - start[name].double().cpu()
        errors[name] = float((value.double().cpu() - start[name].double().cpu() - moved).norm() / moved.norm())
    return errors


def compare(inputs, units, classes, kind, models, rows=2000):
    """Errors and times of every shape of the kernel, beside the kernel of the library; returns the fastest shape."""
    from products import milliseconds

    from lowchurn.nets._kernels import fcn_gpu

    start, b = made(inputs, units, classes, kind, models=models, rows=rows, batch=32, device="cuda")
    state, done = packed(start), torch.zeros(models, dtype=torch.int32, device="cuda")
    options = {"mate": b.mate, "mix": b.mix, "coupling": b.coupling, "loss": "log", "batch_size": 32}
    options |= {"learning_rate": 1e-3, "precision": "tf32x3", **fcn_gpu.tiles(inputs, units, classes)}

    def library():
        fcn_gpu.train_epoch(*state, b.pool, b.rows, b.targets, b.weights, b.order, done, **options)

    now = milliseconds(library) / models
    print(
        f"{inputs:3} inputs, {classes:2} classes, {kind:6} {1000 * now:7.2f} us per model-epoch, the library's kernel"
    )
    times = {}
    every = {shape: constants(inputs, units, classes, shape, kind) for shape in shapes(inputs, classes, kind)}
    for c in every.values():
        OnGpu.begun(tuple(c.items()))
    for shape, c in every.items():
        kernel = OnGpu.begun(tuple(c.items())).result()
        errors = relative_errors(kernel, c, kind, models=6, rows=200, device="cuda")
        own = packed(start)
        given = Given.of(own, b, done)
        times[shape] = took = milliseconds(lambda kernel=kernel, given=given: kernel(models, given)) / models
        worst = max(errors.values())
        words = f"{kernel.registers} registers, {kernel.shared >> 10} KiB, error {worst:.1e}"
        print(f"    {shape!s:16}{1000 * took:7.2f} us, {now / took:5.1f} x; {words}", flush=True)
        if not worst < 1e-3:
            times[shape] = math.inf
    return min(times, key=times.__getitem__)


class ResidentStack(GpuFcnStack):
    """Networks of 129 to 1024 units and up to 32 classes are trained by these kernels."""

    FASTEST: ClassVar = {}  # shapes by tiles of inputs, whether there are many classes, and whether there are twins

    def train_epoch(self, batches):
        s, (packed, bias) = self.settings, self.weights.values()
        units, kind = packed.shape[2], "twins" if batches.coupling is not None else "plain"
        kind = "mixed" if batches.mix is not None else kind
        place = (-(-(self.inputs + 1) // 8), self.classes > NARROW, kind == "twins")
        if not 128 < units <= 1024 or self.classes > 32 or s.batch_size > 32 or place not in self.FASTEST:
            return super().train_epoch(batches)
        c = constants(
            self.inputs, units, self.classes, self.FASTEST[place], kind, squared=s.squared, batch=s.batch_size
        )
        kernel = OnGpu.begun(tuple(c.items())).result()
        (m, bias_m), (v, bias_v) = (t.values() for t in self.moments)
        done = torch.full((self.models,), self.steps, device=packed.device, dtype=torch.int32)
        kernel(self.models, Given.of([packed, m, v, bias, bias_m, bias_v], batches, done, s.learning_rate))
        self.steps += math.ceil(batches.order.shape[1] / s.batch_size)


def run_tables(arguments):
    """`gpu_tables.py` with these arguments, once for each kernel; everything is compiled before."""
    import gpu_tables

    from lowchurn.nets import _stacks

    known = argparse.ArgumentParser()
    known.add_argument("--out", type=Path, required=True)
    chosen, rest = known.parse_known_args(arguments)
    for name, stack in (("library", GpuFcnStack), ("resident", ResidentStack)):
        _stacks.GpuFcnStack = stack
        with tempfile.TemporaryDirectory() as folder:
            sys.argv = ["gpu_tables.py", *rest, "--out", folder, "--trials", "1", "--epochs", "1"]
            gpu_tables.main()
        print(f"{name}:", flush=True)
        sys.argv = ["gpu_tables.py", *rest, "--out", str(chosen.out / name)]
        gpu_tables.main()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--models", type=int, default=4224)
    parser.add_argument("--then", nargs=argparse.REMAINDER, default=[], help="arguments of gpu_tables.py")
    chosen = parser.parse_args()
    if chosen.emulated:
        for sizes, shape in (((5, 60, 2), (2, 2, 1, 1)), ((20, 100, 4), (4, 1, 2, 1)), ((16, 100, 26), (4, 2, 1, 1))):
            for kind in KINDS:
                c = constants(*sizes, shape, kind, batch=8)
                print(sizes, shape, kind, relative_errors(Emulated(c), c, kind))
        return
    for inputs, classes in ((5, 2), (14, 2), (20, 2), (30, 2), (16, 26)):
        for kind in KINDS if inputs in (16, 20) else ("plain", "twins"):
            fastest = compare(inputs, 1000, classes, kind, chosen.models)
            if kind != "mixed":
                ResidentStack.FASTEST[-(-(inputs + 1) // 8), classes > NARROW, kind == "twins"] = fastest
    if chosen.then:
        run_tables(chosen.then)


if __name__ == "__main__":
    main()
