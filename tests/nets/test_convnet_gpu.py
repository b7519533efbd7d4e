"""Parts of the GPU stack of convnets that need no GPU: weights in halves, pools in strips, rows that are filled up."""

import numpy as np
import pytest
import torch

from lowchurn.nets._initial_weights import fresh_state
from lowchurn.nets._stacks import Settings
from lowchurn.nets._stacks._convnet import im2col
from lowchurn.nets._stacks._convnet_gpu import (
    HALVED,
    GpuConvnetStack,
    Images,
    in_blocks,
    join,
    out_of_blocks,
    padded,
    split,
)
from lowchurn.nets.networks import convnet

SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), 1e-40, -1e-45, 3.4e38, -3.4e38, 1 + 2**-8, 1 + 3 * 2**-8]


def test_two_halves_are_the_weight_exactly():
    bits = np.random.default_rng(0).integers(-(2**31), 2**31, size=200_000)
    weights = torch.cat([torch.tensor(SPECIAL), torch.tensor(bits, dtype=torch.int32).view(torch.float32)])
    high, low = split(weights)
    assert (high.dtype, low.dtype) == (torch.bfloat16, torch.int16)
    number = ~weights.isnan()
    assert torch.equal(join(high, low)[number].view(torch.int32), weights[number].view(torch.int32))
    assert bool(join(high, low)[~number].isnan().all())
    assert bool(high[~number].isnan().all())  # what diverged must not look finite in the products


def test_the_upper_half_is_the_nearest_in_bfloat16():
    weights = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    error = (split(weights)[0].float() - weights).abs()
    assert torch.equal(error, (weights.bfloat16().float() - weights).abs())


@pytest.mark.parametrize(("inputs", "outputs"), [(64, 128), (70, 84), (1, 1)])
def test_weights_come_out_of_blocks_as_they_went_in(inputs, outputs):
    weight = torch.randn(3, inputs, outputs, generator=torch.Generator().manual_seed(0))
    blocks = in_blocks(weight, 16, 32)
    assert blocks.shape == (3, -(-inputs // 16), -(-outputs // 32), 16, 32)
    assert torch.equal(blocks[1, 0, 0, 0, 0], weight[1, 0, 0])
    assert torch.equal(out_of_blocks(blocks, inputs, outputs), weight)
    assert blocks.count_nonzero() == weight.count_nonzero()  # zeros behind the last


@pytest.mark.parametrize("shape", [(12, 12, 1), (13, 15, 3), (14, 12, 4)])
def test_strips_contain_the_windows_of_every_pooled_output(shape):
    height, width, channels = shape
    pool = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    strips = Images(pool).strips
    assert strips.shape[-1] % 8 == 0
    windows = im2col(pool.bfloat16().unsqueeze(0), 2).view(5, height, width, 5, 5 * channels)
    for lower in (0, 1):
        for right in (0, 1):
            part = windows[:, lower : height // 2 * 2 : 2, right : width // 2 * 2 : 2]
            for row in range(5):
                first = strips[:, lower + row : lower + row + height // 2 * 2 - 1 : 2]
                got = first[..., right * channels : (right + 5) * channels]
                assert torch.equal(got, part[..., row, :])


def test_rows_are_filled_up_to_whole_batches():
    index = torch.arange(10).view(2, 5)
    assert padded(index, 4).tolist() == [[0, 1, 2, 3, 4, 0, 0, 0], [5, 6, 7, 8, 9, 0, 0, 0]]
    assert padded(index, 5).tolist() == index.tolist()


def test_a_stack_in_halves_keeps_the_models_that_stay():
    pytest.importorskip("triton")
    network, cpu = convnet(1, shape=(12, 13, 2), classes=3), torch.device("cpu")
    params = fresh_state(network, network, torch.arange(5), torch.float32)
    stack = GpuConvnetStack({n: p.clone() for n, p in params.items()}, Settings(cpu, torch.float32))
    assert stack.models == 5
    for name, value in params.items():
        assert torch.equal(stack.params[name], value), name
    for moment, number in zip(stack.moments, (1, 2), strict=True):
        for name in HALVED:
            assert stack.whole(name, moment[name]).shape == params[name].shape
            moment[name] += number * torch.arange(5).view(-1, 1, 1, 1, 1)
        for view in stack.layout.views(moment["rest"]).values():
            view += number * torch.arange(5).view(-1, *[1] * (view.ndim - 1))
    index = torch.tensor([0, 3, 4])
    stack.keep(index)
    assert stack.models == 3
    assert set(stack.params) == set(params)
    for name, value in params.items():
        assert torch.equal(stack.params[name], value[index]), name
    low = stack.layout.views(stack.rounded)
    for name, value in low.items():
        assert torch.equal(value, params[name][index].bfloat16()), name
    for moment, number in zip(stack.moments, (1, 2), strict=True):
        halved = {name: stack.whole(name, moment[name]) for name in HALVED}
        for name, value in (stack.layout.views(moment["rest"]) | halved).items():
            assert torch.equal(value.flatten(1)[:, 0].float(), number * index.float()), name
