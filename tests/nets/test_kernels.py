"""Triton kernels without a GPU: Triton's interpreter runs them on the CPU, where Triton is installed."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

there = importlib.util.find_spec("triton") is not None and np.lib.NumpyVersion(np.__version__) < "2.4.0"


@pytest.mark.skipif(not there, reason="needs Triton, whose interpreter takes a numpy before 2.4")
def test_kernels_of_transformers_give_the_gradients_of_plain_ones():
    done = subprocess.run(
        [sys.executable, "-m", "tests.nets.transformer_twins"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    *exact, rounded = json.loads(done.stdout.splitlines()[-1])
    for errors in exact:
        assert max(errors.values()) < 2e-6, errors
    assert max(rounded.values()) < 2e-3, rounded
