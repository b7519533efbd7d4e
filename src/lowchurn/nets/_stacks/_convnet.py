"""Stacks of convolutional networks: hand-written forward and backward passes with a leading model axis.

Plain torch on any device and in any floating dtype: windows are copied once per step (im2col) and every product is a
``bmm`` over models.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from lowchurn.nets._stacks._stack import FlatStack

SIDE = 5  # both convolutions are 5 x 5


class Block(NamedTuple):
    """What the backward pass needs of a convolution, its relu and its pooling."""

    columns: torch.Tensor  # the windows of the inputs
    which: torch.Tensor  # the winners of the pooling
    size: tuple[int, int]  # height and width before the pooling


class Dense(NamedTuple):
    """What the backward pass needs of the dense layers: their inputs."""

    flat: torch.Tensor
    hidden1: torch.Tensor
    hidden2: torch.Tensor


class ConvnetStack(FlatStack):
    """K networks of :func:`~lowchurn.nets.networks.convnet`."""

    def _conv_block(self, x: torch.Tensor, name: str, pad: int, record: bool) -> tuple[torch.Tensor, Block]:
        """Convolution, bias, relu and pooling, and what the backward pass needs of them."""
        models, rows, height, width, _ = x.shape
        high, wide = height + 2 * pad - SIDE + 1, width + 2 * pad - SIDE + 1
        columns = im2col(x, pad)
        weight = self.params[f"{name}.weight"].flatten(1, 3)
        y = torch.baddbmm(self.params[f"{name}.bias"].unsqueeze(1), columns, weight)
        out, which = relu_pool(y.view(models, rows, high, wide, -1), record)
        return out, Block(columns if record else columns.new_empty(0), which, (high, wide))

    def _forward(self, x: torch.Tensor, record: bool) -> tuple[torch.Tensor, Block, Block, Dense]:
        """Logits, and what the backward pass needs of each layer, which is whole with ``record`` only."""
        x, block1 = self._conv_block(x, "conv1", SIDE // 2, record)
        x, block2 = self._conv_block(x, "conv2", 0, record)
        dense = self._dense_layers(x.flatten(2))  # height, width, channel: Keras' order
        return self._product("dense3", dense.hidden2), block1, block2, dense

    def _dense_layers(self, flat: torch.Tensor) -> Dense:
        hidden1 = self._product("dense1", flat).relu_()
        return Dense(flat, hidden1, self._product("dense2", hidden1).relu_())

    def _product(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.params[f"{name}.bias"].unsqueeze(1), x, self.params[f"{name}.weight"])

    @torch.no_grad()
    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(x, record=False)[0]

    @torch.no_grad()
    def step(
        self, x: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, coupling: torch.Tensor | None
    ) -> None:
        logits, block1, block2, dense = self._forward(x, record=True)
        slope = self.slope(logits, targets, weights, coupling)
        back = self._dense_gradients("dense3", slope, dense.hidden2).mul_(dense.hidden2 > 0)
        back = self._dense_gradients("dense2", back, dense.hidden1).mul_(dense.hidden1 > 0)
        pooled = self._conv_gradients("conv2", self._dense_gradients("dense1", back, dense.flat), block2)
        columns = torch.bmm(pooled, self.params["conv2.weight"].flatten(1, 3).mT)
        self._conv_gradients("conv1", col2im(columns, block1.which.shape), block1)
        self.adam({"flat": self.gradient})

    def _dense_gradients(self, name: str, slope: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Fill in a dense layer's gradients; return the one at its inputs."""
        torch.sum(slope, 1, out=self.slopes[f"{name}.bias"])
        torch.bmm(inputs.mT, slope, out=self.slopes[f"{name}.weight"])
        return torch.bmm(slope, self.params[f"{name}.weight"].mT)

    def _conv_gradients(self, name: str, pooled: torch.Tensor, block: Block) -> torch.Tensor:
        """Fill in a convolution's gradients; return the one before its pooling."""
        which = block.which
        spread = unpool(pooled.view(which.shape), which, *block.size).view(which.shape[0], -1, which.shape[-1])
        torch.sum(spread, 1, out=self.slopes[f"{name}.bias"])
        torch.bmm(block.columns.mT, spread, out=self.slopes[f"{name}.weight"].flatten(1, 3))
        return spread


def im2col(x: torch.Tensor, pad: int) -> torch.Tensor:
    """Windows of x (K, B, H, W, C) as a (K, B * OH * OW, 25 * C) matrix."""
    if pad:
        x = F.pad(x, (0, 0, pad, pad, pad, pad))
    x = x.contiguous()
    models, rows, height, width, channels = x.shape
    high, wide = height - SIDE + 1, width - SIDE + 1
    line = width * channels
    windows = x.as_strided(
        (models, rows, high, wide, SIDE, SIDE * channels),
        (rows * height * line, height * line, line, channels, line, 1),
    )
    return windows.reshape(models, rows * high * wide, SIDE * SIDE * channels)


def col2im(columns: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Adjoint of the unpadded :func:`im2col`: 25 shifted sums."""
    models, rows, height, width, channels = shape
    high, wide = height - SIDE + 1, width - SIDE + 1
    columns = columns.view(models, rows, high, wide, SIDE, SIDE, channels)
    image = columns.new_zeros(shape)
    for i in range(SIDE):
        for j in range(SIDE):
            image[:, :, i : i + high, j : j + wide] += columns[:, :, :, :, i, j]
    return image


def relu_pool(y: torch.Tensor, record: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """2 x 2 max pooling and relu of y (K, B, H, W, N), and with ``record`` which won (4: the relu closed)."""
    height, width = y.shape[2] // 2 * 2, y.shape[3] // 2 * 2
    quarters = torch.stack([y[:, :, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1)])
    if not record:
        return quarters.amax(0).relu(), quarters.new_empty(0)
    best, which = quarters.max(0)
    return best.relu(), torch.where(best > 0, which, 4).to(torch.uint8)


def unpool(pooled: torch.Tensor, which: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """The gradient before pooling (K, B, height, width, N) from the one behind it."""
    spread = pooled.new_zeros(*pooled.shape[:2], height, width, pooled.shape[-1])
    high, wide = pooled.shape[2] * 2, pooled.shape[3] * 2
    for quarter in range(4):
        spread[:, :, quarter // 2 : high : 2, quarter % 2 : wide : 2] = pooled * (which == quarter)
    return spread
