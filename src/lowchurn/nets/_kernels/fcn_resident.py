"""Train one-hidden-layer networks that stay in shared memory for a whole epoch, on GPUs of compute capability 9.0.

A cluster of thread blocks keeps the weights and Adam moments of a network (or a co-distilled pair) from the first step
to the last: ``resident/narrow.cu`` for up to four classes, ``resident/wide.cu`` for up to 32. With 1000 units on an H200
an epoch takes about half the time of `fcn_gpu`, which trains whatever does not fit here: see `find`.

The kernels are compiled by NVRTC through ``cuda.bindings``, both of which recent CUDA wheels of torch for Linux install.
This takes about half a second per kind of network, once per machine. Where it fails, for example because they are
missing, there is one warning, and networks are trained by `fcn_gpu`.
"""

import ctypes
import threading
import warnings
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch

try:
    from triton.runtime.cache import get_cache_manager
except ImportError:  # shapes need no Triton
    get_cache_manager = None

from lowchurn.nets._kernels.fcn_packed import STEP_TABLE_LENGTH, step_sizes
from lowchurn.nets._stacks._stack import BETA1, BETA2, EPSILON

SOURCES = Path(__file__).parent / "resident"
NARROW = 4  # classes, at most, whose output layer is not done in products
MOST_CLASSES = 32  # one per lane of a warp
MOST_ROWS = 32  # of a batch
FEWEST_UNITS, MOST_UNITS = 129, 1024  # smaller networks fit into the registers of a program of fcn_gpu
MOST_SHARED = 227 << 10  # bytes of shared memory of a block


class Shape(NamedTuple):
    """How a network is spread."""

    split: int  # blocks of a network, each with a slice of the hidden units
    warps: int  # of a block
    tiles: int  # of 16 hidden units, of a warp
    together: int  # blocks that are to be on a multiprocessor at the same time

    @property
    def units(self):
        """How many hidden units there is room for."""
        return 16 * self.split * self.warps * self.tiles


# The fastest for 1000 units on an H200 (benchmarks/resident_fcn.py), by tiles of eight inputs, of which the bias is one,
# and whether there are twins.
NARROW_SHAPES = {
    (1, False): Shape(1, 16, 4, 1),
    (1, True): Shape(1, 16, 4, 1),
    (2, False): Shape(4, 8, 2, 2),
    (2, True): Shape(4, 4, 4, 2),
    (3, False): Shape(2, 8, 4, 1),
    (3, True): Shape(4, 4, 4, 2),
    (4, False): Shape(8, 4, 2, 2),
    (4, True): Shape(4, 8, 2, 1),
}
# The same of the wide kernel, whether there are twins. It was timed with 16 inputs and 26 classes, and takes no more
# tiles of inputs than the narrow one.
WIDE_SHAPES = {False: Shape(8, 4, 2, 2), True: Shape(4, 8, 2, 1)}


def input_tiles(inputs):
    """Tiles of eight columns for the inputs and the bias."""
    return -(-(inputs + 1) // 8)


def shape_for(inputs, units, classes, *, twins):
    """The fastest shape for networks like this one, or None where there is none that fits or was tried.

    A shape with room for twice the units or more is cut: to fewer blocks, and then to fewer tiles.
    """
    shape = NARROW_SHAPES.get((input_tiles(inputs), twins))
    if shape is None or classes > MOST_CLASSES or not FEWEST_UNITS <= units <= MOST_UNITS:
        return None
    if classes > NARROW:
        shape = WIDE_SHAPES[twins]
    for part in ("split", "tiles"):
        while getattr(shape, part) > 1 and units <= shape.units // 2:
            shape = shape._replace(**{part: getattr(shape, part) // 2})
    fits = shared_bytes(constants(inputs, units, classes, shape, twins=twins)) <= MOST_SHARED
    return shape if fits else None


def constants(inputs, units, classes, shape, *, mixed=False, twins=False, squared=False, batch_size=32):
    """What a kernel is compiled with."""
    columns = input_tiles(inputs)
    width = 8 * columns
    while width % 32 not in (8, 24):  # so that rows of eight lanes lie in different banks
        width += 8
    split, warps, tiles, together = shape
    found = {"D": inputs, "H": units, "C": classes, "KT": columns, "XS": width, "BATCH": batch_size}
    found |= {"SPLIT": split, "WARPS": warps, "MT": tiles, "TOGETHER": together, "WIDE": int(classes > NARROW)}
    return found | {"SQUARED": int(squared), "MIXUP": int(mixed), "TWIN": int(twins)}


def shared_bytes(c):
    """The size of ``Shared`` of the kernel with these constants."""
    units, networks, rows = 16 * c["WARPS"] * c["MT"], 1 + c["TWIN"], MOST_ROWS
    if not c["WIDE"]:
        state = 3 * units * (8 * c["KT"] + c["C"])
        parts = 2 * networks * c["SPLIT"] * c["WARPS"] * c["C"] * rows
        return 4 * (state + 3 * rows * c["XS"] + parts + 4 * rows)
    columns = 8 * -(-c["C"] // 8)
    state = 3 * units * (8 * c["KT"] + columns)
    parts = c["WARPS"] * rows * 2 * -(-c["C"] // 2) + rows * (columns + 4)
    return 4 * (state + 2 * rows * c["XS"] + parts + 3 * 32 + 4 * rows)


_kernels = {}
_locks = {}
_failures = []
_failing = threading.Lock()


def find(inputs, units, classes, *, mixed, twins, loss, batch_size, precision, device):
    """The `Kernel` that trains networks like this one, or None where `fcn_gpu` is to train them.

    It is compiled by the first call, while other calls with the same arguments wait; later ones only look it up.
    """
    key = (inputs, units, classes, mixed, twins, loss, batch_size, precision, device)
    with _locks.setdefault(key, threading.Lock()):
        if key not in _kernels:
            shape = shape_for(inputs, units, classes, twins=twins)
            fits = shape is not None and batch_size <= MOST_ROWS and precision == "tf32x3" and _has_clusters(device)
            options = {"mixed": mixed, "twins": twins, "squared": loss == "squared", "batch_size": batch_size}
            _kernels[key] = _made(constants(inputs, units, classes, shape, **options), device) if fits else None
        return _kernels[key]


def _has_clusters(device):
    """Whether this is a GPU on which the kernels were run; AMD's have numbers of their own."""
    return device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) == (9, 0)


def _made(c, device):
    """A kernel, or None and a warning, which is given once."""
    try:
        return Kernel(c, device)
    except torch.OutOfMemoryError:  # it may be there the next time
        raise
    except Exception as error:  # whatever it is: another kernel can do the work
        with _failing:
            _failures.append(error)
            first = len(_failures) == 1
        if first:
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(
                "Fully connected networks are trained by the slower of two kernels, since the faster one could not be "
                f"compiled with cuda.bindings and NVRTC or loaded ({reason})",
                RuntimeWarning,
                stacklevel=2,
            )
        return None


class Kernel:
    """A kernel with its constants, loaded on a GPU."""

    def __init__(self, c, device):
        binary = compiled(c)
        from cuda.bindings import driver

        self.block, self.shared, self.split = 32 * c["WARPS"], shared_bytes(c), c["SPLIT"]
        with torch.cuda.device(device):
            torch.zeros(1, device=device)  # makes the context that torch uses the current one
            self.context = _good(driver.cuCtxGetCurrent())
            self.function = _good(driver.cuModuleGetFunction(_good(driver.cuModuleLoadData(binary)), b"train"))
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _good(driver.cuFuncSetAttribute(self.function, limit, self.shared))
            registers = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
            self.registers = _good(driver.cuFuncGetAttribute(registers, self.function))

    def train_epoch(self, params, *others, **options):
        """Train every network for one epoch, in place, with one launch; the arguments are those of `Given.of`."""
        from cuda.bindings import driver

        given = Given.of(params, *others, **options)
        places = (ctypes.c_void_p * 1)(ctypes.addressof(given))  # of the arguments, which a launch copies
        grid, where = params.shape[0] * self.split, ctypes.addressof(places)
        with torch.cuda.device(params.device):
            stream = torch.cuda.current_stream().cuda_stream
            _good(driver.cuCtxSetCurrent(self.context))  # a thread that has launched nothing yet has none
            _good(driver.cuLaunchKernel(self.function, grid, 1, 1, self.block, 1, 1, self.shared, stream, where, 0))


INTEGERS = {"rows": torch.int64, "order": torch.int64, "mate": torch.int64, "done": torch.int32}


class Given(ctypes.Structure):
    """``Given`` of common.cu, the argument of a kernel. Its tensors must live until the launch."""

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
    def of(
        cls, params, m, v, bias, bias_m, bias_v, x, rows, targets, weights, order, steps_done, *, mate, mix, coupling,
        learning_rate,
    ):  # fmt: skip
        """From the arguments of `fcn_gpu.train_epoch`; integers are int64, but int32 for ``steps_done``."""
        sizes = step_sizes(params.device, learning_rate)
        tensors = (
            *(params, m, v, bias, bias_m, bias_v, x, rows, targets, weights, order),
            *(mate, mix, steps_done, coupling, sizes),
        )
        for name, one in zip(cls.POINTERS, tensors, strict=True):
            if one is None:
                continue
            # A kernel that reads other types or strides than these would return nonsense.
            if one.dtype != INTEGERS.get(name, torch.float32) or (one.stride(-1) != 1 and one.shape[-1] > 1):
                raise TypeError(f"{name} is {one.dtype} with strides {one.stride()}")
        pointers = (None if one is None else one.data_ptr() for one in tensors)
        strides = (rows.stride(0), *targets.stride()[:2], weights.stride(0), order.stride(0))
        numbers = (STEP_TABLE_LENGTH - 1, order.shape[1], *strides, 0 if mix is None else mix.stride(0))
        return cls(*pointers, *numbers, 1 - BETA1, 1 - BETA2, EPSILON)


def compiled(c):
    """The kernel with these constants as machine code, from disk where Triton keeps its kernels, if it is there."""
    from cuda.bindings import nvrtc

    names = ("cuda.cu", "common.cu", "wide.cu" if c["WIDE"] else "narrow.cu")
    source = "".join((SOURCES / name).read_text(encoding="utf-8") for name in names)
    options = ["--std=c++17", "--gpu-architecture=sm_90", "--device-as-default-execution-space", *defined(c)]
    made_of = repr((source, options, nvrtc.nvrtcVersion()))
    kept = get_cache_manager(sha256(made_of.encode()).hexdigest()) if get_cache_manager else None
    path = kept and kept.get_file("fcn.cubin")
    if path:
        return Path(path).read_bytes()
    binary = _compiled(source, options)
    if kept:
        kept.put(binary, "fcn.cubin", binary=True)
    return binary


def _compiled(source, options):
    from cuda.bindings import nvrtc

    program = _good(nvrtc.nvrtcCreateProgram(source.encode(), b"fcn.cu", 0, [], []))
    try:
        try:
            _good(nvrtc.nvrtcCompileProgram(program, len(options), [one.encode() for one in options]))
        except RuntimeError as error:
            log = b" " * _good(nvrtc.nvrtcGetProgramLogSize(program))
            _good(nvrtc.nvrtcGetProgramLog(program, log))
            raise RuntimeError(log.decode(errors="replace")) from error
        binary = b" " * _good(nvrtc.nvrtcGetCUBINSize(program))
        _good(nvrtc.nvrtcGetCUBIN(program, binary))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return binary


def defined(c):
    """Constants as options of a compiler."""
    return [f"-D{name}={value}" for name, value in c.items()]


def _good(found):
    """What a call of CUDA returns, without its error code, which is raised."""
    code, *values = found
    if int(code):
        raise RuntimeError(f"{code!r}")
    return values[0] if values else None
