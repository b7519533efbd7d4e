"""Triton kernels without a GPU: Triton's interpreter runs them on the CPU, where Triton is installed."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

there = importlib.util.find_spec("triton") is not None and np.lib.NumpyVersion(np.__version__) < "2.4.0"


pytestmark = pytest.mark.skipif(not there, reason="needs Triton, whose interpreter takes a numpy before 2.4")


def interpreted(module):
    """What a program prints last, as JSON; its kernels are run by Triton's interpreter."""
    done = subprocess.run(
        [sys.executable, "-m", module],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_an_epoch_of_fully_connected_networks_is_that_of_the_cpu():
    for errors in interpreted("tests.nets.fcn_twins"):
        assert errors.pop("logits") < 1e-6
        assert max(errors.values()) < 2e-4, errors  # of what training changed


def test_kernels_of_transformers_give_the_gradients_of_plain_ones():
    *exact, rounded, by_the_library = interpreted("tests.nets.transformer_twins")
    for errors in exact:
        assert max(errors.values()) < 2e-6, errors
    for errors in (rounded, by_the_library):
        assert max(errors.values()) < 2e-3, errors
    assert rounded != by_the_library  # which adds up in another order


def test_kernels_of_convnets_train_as_plain_ones():
    found = interpreted("tests.nets.convnet_twins")
    for gradients, moved in found["steps"]:
        assert gradients.pop("dense1.weight") < 5e-3  # a first moment in 16 bits, which the interpreter cuts off
        assert max(gradients.values()) < 2e-6, gradients
        assert max(moved.values()) < 1e-4, moved  # of what training changed
    for errors in found["dense"]:
        assert max(errors.values()) < 2e-6, errors
