"""Triton kernels without a GPU: Triton's interpreter runs them on the CPU, where Triton is installed."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

triton_there = importlib.util.find_spec("triton") is not None
there = triton_there and np.lib.NumpyVersion(np.__version__) < "2.4.0"
interprets = pytest.mark.skipif(not there, reason="needs Triton, whose interpreter takes a numpy before 2.4")


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


@interprets
def test_an_epoch_of_fully_connected_networks_is_that_of_the_cpu():
    for errors in interpreted("tests.nets.fcn_twins"):
        assert errors.pop("logits") < 1e-6
        assert max(errors.values()) < 2e-4, errors  # of what training changed


@interprets
def test_kernels_of_transformers_give_the_gradients_of_plain_ones():
    *exact, rounded, by_the_library = interpreted("tests.nets.transformer_twins")
    for errors in exact:
        assert max(errors.values()) < 2e-6, errors
    for errors in (rounded, by_the_library):
        assert max(errors.values()) < 2e-3, errors
    assert rounded != by_the_library  # which adds up in another order


@interprets
def test_kernels_of_convnets_train_as_plain_ones():
    found = interpreted("tests.nets.convnet_twins")
    for gradients, moved in found["steps"]:
        assert gradients.pop("dense1.weight") < 5e-3  # a first moment in 16 bits, which the interpreter cuts off
        assert max(gradients.values()) < 2e-6, gradients
        assert max(moved.values()) < 1e-4, moved  # of what training changed
    for errors in found["dense"]:
        assert max(errors.values()) < 2e-6, errors


@pytest.mark.skipif(not triton_there, reason="needs Triton")
@pytest.mark.parametrize(("capability", "rows", "room"), [(86, 32, 99 << 10), (86, 128, 99 << 10), (90, 32, 120 << 10)])
def test_the_step_of_the_largest_layer_fits_into_shared_memory(capability, rows, room):
    """Compiled for another GPU than this machine's, if it has one: a 3090 has room for two tiles, an H200 for three."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lowchurn.nets._kernels import dense_gpu

    few = dense_gpu.CROWDED if rows > 32 or room < dense_gpu.AMPLE else {}
    tiles = dense_gpu.TILES | few
    kinds = {"low_ptr": "*i16", "v_ptr": "*fp32", "which_ptr": "*u8", "sums_ptr": "*fp32", "rate_ptr": "*fp32"}
    sizes = {
        "ROWS": rows,
        "N_IN": 2400,
        "N_OUT": 512,
        "PW": 5,
        "OH": 10,
        "OW": 10,
        "N": 96,
        "R": rows,
        "BI": 64,
        "BJ": 64,
    }
    sizes |= {**dense_gpu.KERAS_ADAM, "AHEAD": tiles["AHEAD"], "POOLED": True}
    kernel = dense_gpu._dense_backward
    names = kernel.arg_names
    signature = {name: "constexpr" if name in sizes else kinds.get(name, "*bf16") for name in names}
    values = {(names.index(name),): value for name, value in sizes.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name not in sizes}
    source = ASTSource(kernel, signature, values, aligned)
    made = triton.compile(source, GPUTarget("cuda", capability, 32), {"num_warps": tiles["num_warps"]})
    assert made.metadata.shared <= room
