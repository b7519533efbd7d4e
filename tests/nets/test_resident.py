"""The kernels that keep networks in shared memory: which networks they train, and their errors without a GPU.

There a CPU runs them, with every thread as a fiber, against the library in float64.
"""

import ctypes
import shutil
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lowchurn.nets._kernels import fcn_packed, fcn_resident
from lowchurn.nets._stacks import Settings
from lowchurn.nets._stacks._fcn import NAMES, GpuFcnStack
from tests.nets.fcn_twins import changed, made, on_the_cpu, placed


class Emulated:
    """A kernel compiled for this CPU; its warps take turns in an order that a seed decides."""

    seed = 0

    def __init__(self, c, folder):
        library = f"{folder}/kernel.so"
        source = Path(__file__).parent / "emulated_cuda.cpp"
        options = ["-O1", "-std=c++17", "-shared", "-fPIC", f"-I{fcn_resident.SOURCES}", *fcn_resident.defined(c)]
        subprocess.run(["c++", *options, "-o", library, str(source)], check=True)
        self.loaded = ctypes.CDLL(library)
        assert self.loaded.shared_bytes() == fcn_resident.shared_bytes(c)
        assert self.loaded.given_bytes() == ctypes.sizeof(fcn_resident.Given)

    def train_epoch(self, params, *others, **options):
        given = fcn_resident.Given.of(params, *others, **options)
        self.loaded.run(ctypes.c_int(params.shape[0]), ctypes.byref(given), ctypes.c_int(self.seed))


@pytest.fixture
def stack_of(monkeypatch):
    """Makes stacks as on a GPU, here, that are trained by a kernel or, where it is None, by a stand-in for Triton's."""

    def make(kernel, state, otherwise=None, **settings):
        stub = SimpleNamespace(tiles=lambda *sizes: {"tile": 7}, train_epoch=otherwise)
        monkeypatch.setitem(sys.modules, "lowchurn.nets._kernels.fcn_gpu", stub)
        monkeypatch.delattr("lowchurn.nets._kernels.fcn_gpu", raising=False)
        monkeypatch.setattr(fcn_resident, "find", lambda *sizes, **options: kernel)
        return GpuFcnStack(state, Settings(torch.device("cpu"), torch.float32, **settings))

    return make


# (inputs, units, classes), (split, warps, tiles, together): clusters of one block and of several.
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("sizes", "shape", "kind", "squared"),
    [
        ((5, 60, 2), (2, 2, 1, 1), "plain", False),
        ((9, 40, 4), (1, 2, 2, 1), "mixed", True),
        ((5, 30, 3), (2, 1, 1, 1), "twins", False),
        ((5, 30, 2), (1, 1, 2, 1), "mixed twins", False),
        ((9, 60, 7), (2, 1, 2, 1), "mixed", False),
        ((5, 30, 26), (2, 1, 1, 1), "twins", False),
        ((5, 30, 6), (1, 2, 1, 1), "plain", True),
        ((5, 60, 12), (1, 4, 1, 1), "mixed twins", True),
    ],
)
def test_epochs_are_those_of_the_cpu(sizes, shape, kind, squared, stack_of, tmp_path):
    c = fcn_resident.constants(
        *sizes, shape, mixed="mixed" in kind, twins="twins" in kind, squared=squared, batch_size=8
    )
    kernel = Emulated(c, tmp_path)
    start, batches = made(*sizes, kind)
    twin, exact = on_the_cpu(start, batches, squared=squared)
    for _ in range(2):
        twin.train_epoch(exact)
    for kernel.seed in range(3):
        state, given = placed(start, batches, "cpu")
        stack = stack_of(kernel, state, batch_size=8, squared=squared)
        for _ in range(2):
            stack.train_epoch(given)
        errors = changed(stack.params, twin, start)
        assert max(errors.values()) < 1e-4, errors


def test_other_networks_are_trained_by_triton(stack_of):
    """With the same arguments and what that kernel is compiled with."""
    start, batches = made(5, 20, 2, "mixed twins")
    called = []
    state, given = placed(start, batches, "cpu")
    stack = stack_of(None, state, lambda *arrays, **options: called.append((arrays, options)), squared=True)
    stack.train_epoch(given)
    ((arrays, options),) = called
    assert arrays[0] is stack.weights["packed"]
    assert arrays[6] is given.pool
    assert options.pop("mate") is given.mate
    assert options.pop("mix") is given.mix
    assert options.pop("coupling") is given.coupling
    rest = {"loss": "squared", "batch_size": 32, "learning_rate": 1e-3, "precision": "tf32x3", "tile": 7}
    assert options == rest


@pytest.mark.parametrize("twins", [False, True])
def test_every_shape_holds_its_network(twins):
    there = set()
    for inputs in range(1, 64):
        for classes in range(2, 40):
            for units in (100, 128, 129, 200, 257, 512, 513, 1000, 1024, 1025):
                shape = fcn_resident.shape_for(inputs, units, classes, twins=twins)
                assert shape is None or (inputs < 32 and classes <= 32 and 128 < units <= 1024)
                if shape is None:
                    continue
                there.add((inputs, classes))
                c = fcn_resident.constants(inputs, units, classes, shape, twins=twins)
                assert fcn_resident.shared_bytes(c) <= fcn_resident.MOST_SHARED == 232448
                blocks = shape.split * (1 + twins)
                assert blocks in (1, 2, 4, 8)  # a block of the wide kernel owns 32 / blocks rows
                assert units <= shape.units <= max(256, 2 * units)
                assert 32 * shape.warps * shape.together <= 1024
    assert {(inputs, classes) for inputs in range(1, 32) for classes in (2, 3, 4)} < there
    assert (16, 26) in there
    assert ((30, 26) in there) is not twins  # a pair of these is too large


def test_the_fastest_shapes_are_those_that_were_measured():
    assert fcn_resident.shape_for(20, 1000, 2, twins=False) == (2, 8, 4, 1)
    assert fcn_resident.shape_for(20, 1000, 2, twins=True) == (4, 4, 4, 2)
    assert fcn_resident.shape_for(16, 1000, 26, twins=True) == (4, 8, 2, 1)
    assert fcn_resident.shape_for(20, 300, 2, twins=True) == (2, 4, 4, 2)  # half of it
    assert fcn_resident.shape_for(5, 150, 2, twins=False) == (1, 16, 1, 1)


GPU = torch.device("cuda", 0)


def find(inputs=5, units=1000, classes=2, **options):
    defaults = {"mixed": False, "twins": False, "loss": "log", "batch_size": 32, "precision": "tf32x3", "device": GPU}
    return fcn_resident.find(inputs, units, classes, **(defaults | options))


@pytest.fixture
def h200(monkeypatch):
    """A GPU on which the kernels were run, and no kernel found yet."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "hip", None)
    for name in ("_kernels", "_locks"):
        monkeypatch.setattr(fcn_resident, name, {})
    monkeypatch.setattr(fcn_resident, "_failures", [])


class Made:
    """A kernel that is only asked for."""

    def __init__(self, c, device):
        self.c, self.device = c, device


@pytest.mark.usefixtures("h200")
def test_which_networks_stay_in_shared_memory(monkeypatch):
    monkeypatch.setattr(fcn_resident, "Kernel", Made)
    found = find(14, 600, 3, mixed=True, twins=True, loss="squared", batch_size=7)
    sizes = fcn_resident.constants(14, 600, 3, (4, 4, 4, 2), mixed=True, twins=True, squared=True, batch_size=7)
    assert found.c == sizes
    assert found.device == GPU
    assert find() is find()
    assert find() is not find(device=torch.device("cuda", 1))  # kernels are loaded on one GPU
    assert find(classes=32) is not None
    for others in ({"units": 128}, {"units": 1025}, {"classes": 33}, {"inputs": 32}, {"batch_size": 33}):
        assert find(**others) is None
    for others in ({"precision": "ieee"}, {"precision": "tf32"}, {"device": torch.device("cpu")}):
        assert find(**others) is None


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_other_gpus_train_as_before(capability, monkeypatch):
    monkeypatch.setattr(fcn_resident, "Kernel", Made)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert find() is None


@pytest.mark.usefixtures("h200")
def test_gpus_of_amd_train_as_before(monkeypatch):
    monkeypatch.setattr(fcn_resident, "Kernel", Made)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert find() is None


def refusing(name):
    """A compiler that can be loaded and fails in one of its calls."""

    class Nvrtc:
        def __getattr__(self, called):
            def call(*arguments):
                if called == name:
                    return (1,)
                return (0, 1) if called == "nvrtcCreateProgram" or "Size" in called else (0,)

            return call

    return SimpleNamespace(nvrtc=Nvrtc())


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    "modules",
    [
        {"cuda": None, "cuda.bindings": None},
        {"cuda": SimpleNamespace(), "cuda.bindings": SimpleNamespace()},  # another package of this name
        {"cuda": SimpleNamespace(), "cuda.bindings": refusing("nvrtcCreateProgram")},
        {"cuda": SimpleNamespace(), "cuda.bindings": refusing("nvrtcCompileProgram")},
    ],
    ids=["missing", "other", "broken", "refuses"],
)
def test_without_a_compiler_there_is_one_warning(modules, monkeypatch):
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.warns(RuntimeWarning, match="the slower of two kernels") as given:
        assert find() is None
    assert len(given) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find() is None
        assert find(twins=True) is None


@pytest.mark.usefixtures("h200")
def test_a_kernel_is_compiled_once_and_beside_others(monkeypatch):
    both = threading.Barrier(2, timeout=30)
    compiled = []

    class Slow(Made):
        def __init__(self, c, device):
            super().__init__(c, device)
            compiled.append(c)
            both.wait()  # for the other one, which is compiled at the same time

    monkeypatch.setattr(fcn_resident, "Kernel", Slow)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda k: find(twins=bool(k % 2)), range(8)))
    assert len(compiled) == 2
    assert len({id(one) for one in found}) == 2
    assert all(one.c["TWIN"] == k % 2 for k, one in enumerate(found))


def test_other_types_than_the_kernels_read_are_refused():
    start, b = made(5, 20, 2, "plain")
    hidden, bias, output, output_bias = (start[name] for name in NAMES)
    packed = fcn_packed.pack_parameters(hidden, bias, output)
    state = [packed, packed, packed, output_bias, output_bias, output_bias]
    options = {"mate": None, "mix": None, "coupling": None, "learning_rate": 1e-3}
    done = torch.zeros(2, dtype=torch.int32)
    fcn_resident.Given.of(*state, b.pool, b.rows, b.targets, b.weights, b.order, done, **options)
    for rows, order in ((b.rows.int(), b.order), (b.rows, b.order.T.contiguous().T)):
        with pytest.raises(TypeError, match="rows is torch.int32|order is torch.int64 with strides"):
            fcn_resident.Given.of(*state, b.pool, rows, b.targets, b.weights, order, done, **options)


def chosen():
    """A network of each shape that is chosen, and of fewer units."""
    sizes = [(5, 2), (14, 2), (20, 4), (30, 2), (5, 7), (16, 26), (30, 26)]
    every = [(*pair, units, twins) for pair in sizes for units in (150, 1000) for twins in (False, True)]
    return [one for one in every if fcn_resident.shape_for(one[0], one[2], one[1], twins=one[3])]


@pytest.mark.parametrize(("inputs", "classes", "units", "twins"), chosen())
def test_kernels_can_be_compiled(inputs, classes, units, twins):
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"needs NVRTC: {error}")
    shape = fcn_resident.shape_for(inputs, units, classes, twins=twins)
    c = fcn_resident.constants(inputs, units, classes, shape, mixed=True, twins=twins)
    assert fcn_resident.compiled(c).startswith(b"\x7fELF")
