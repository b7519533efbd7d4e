"""Triton kernels without a GPU: Triton's interpreter runs them on the CPU, where Triton is installed."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_kernels_of_transformers_give_the_gradients_of_plain_ones():
    done = subprocess.run(
        [sys.executable, "-m", "tests.nets.transformer_twins"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for errors in json.loads(done.stdout.splitlines()[-1]):
        assert max(errors.values()) < 2e-6, errors
