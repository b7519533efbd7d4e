"""The kernels of benchmarks/resident, run by a CPU with every thread as a fiber, against the library in float64."""

import importlib.util
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def resident():
    path = Path(__file__).parents[2] / "benchmarks" / "resident_fcn.py"
    spec = importlib.util.spec_from_file_location("resident_fcn", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# (inputs, units, classes), (split, warps, tiles, together): clusters of one block and of several.
@pytest.mark.parametrize(
    ("sizes", "shape", "kind", "squared"),
    [
        ((5, 60, 2), (2, 2, 1, 1), "plain", False),
        ((9, 40, 4), (1, 2, 2, 1), "mixed", True),
        ((5, 30, 3), (2, 1, 1, 1), "twins", False),
        ((9, 60, 7), (2, 1, 2, 1), "mixed", False),
        ((5, 30, 26), (2, 1, 1, 1), "twins", False),
        ((5, 60, 12), (1, 4, 1, 1), "twins", True),
    ],
)
def test_an_epoch_is_that_of_the_cpu(sizes, shape, kind, squared, resident):
    c = resident.constants(*sizes, shape, kind, squared=squared, batch=8)
    kernel = resident.Emulated(c)
    for seed in range(3):  # another order of warps
        errors = resident.relative_errors(kernel, c, kind, seed=seed)
        assert max(errors.values()) < 1e-4, errors
