"""Stacks of convolutional networks: hand-written forward and backward passes with a leading model axis.

Two ways compute the same convolutions. In plain torch, windows are copied once per step (im2col) and every product is a
``bmm`` over models: any device, any floating dtype. On a GPU, Triton kernels read the windows straight from the
activation, with relu and pooling fused in, and the largest layer's gradient goes into Adam without being stored.

On a GPU, products run in bfloat16 with float32 accumulation; weights, moments, the last layer and the loss stay in
float32. ``docs/performance.md`` shows that this changes results by less than another seed does.
"""

from __future__ import annotations

from functools import cached_property
from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn.functional as F

from lowchurn.nets._stacks._stack import FlatParameters, FlatStack, Settings, State

SIDE = 5  # both convolutions are 5 x 5
LARGEST = "dense1.weight"  # most of the parameters; last in the flat buffer, so that a fused kernel can take it alone


class Block(NamedTuple):
    """What the backward pass needs of a convolution, its relu and its pooling."""

    inputs: torch.Tensor
    columns: torch.Tensor | None  # the windows of the inputs, where they are stored
    which: torch.Tensor  # the winners of the pooling
    size: tuple[int, int]  # height and width before the pooling


class Dense(NamedTuple):
    """What the backward pass needs of the dense layers: their inputs, the last one's also in full precision."""

    flat: torch.Tensor
    hidden1: torch.Tensor
    hidden2: torch.Tensor
    exact: torch.Tensor


class ConvnetStack(FlatStack):
    """K networks of :func:`~lowchurn.nets.networks.convnet`."""

    def __init__(self, params: State, settings: Settings) -> None:
        self.kernels: ModuleType | None = None
        fast = settings.device.type == "cuda" and settings.dtype == torch.float32
        if fast and settings.precision in ("auto", "bfloat16"):
            from lowchurn.nets._kernels import conv_gpu

            self.kernels = conv_gpu
        super().__init__({name: params[name] for name in sorted(params, key=lambda name: name == LARGEST)}, settings)

    @property
    def recordable(self) -> bool:  # type: ignore[override]
        return self.kernels is not None

    @property
    def compute(self) -> torch.dtype:
        """The precision of the products."""
        return torch.bfloat16 if self.kernels else self.layout.flat.dtype

    def _lay_out(self, layout: FlatParameters) -> None:
        super()._lay_out(layout)
        # Weights rounded to the precision of the products, as a flat buffer and as views by name.
        self.rounded = None if self.compute == layout.flat.dtype else layout.flat.to(self.compute)
        self.low = self.views if self.rounded is None else layout.views(self.rounded)

    @cached_property
    def gradient(self) -> torch.Tensor:
        """Room for the gradient of all weights; the kernels never store that of the largest layer."""
        flat = self.layout.flat
        return torch.zeros_like(flat[: self.layout.offsets[LARGEST]] if self.kernels else flat)

    # forward

    def _conv_block(self, x: torch.Tensor, name: str, pad: int, record: bool) -> tuple[torch.Tensor, Block]:
        """Convolution, bias, relu and pooling, and what the backward pass needs of them."""
        weight, bias = self.low[f"{name}.weight"].flatten(1, 3), self.low[f"{name}.bias"]
        models, rows, height, width, _ = x.shape
        high, wide = height + 2 * pad - SIDE + 1, width + 2 * pad - SIDE + 1
        columns = None
        if self.kernels:
            out = x.new_empty(models, rows, high // 2, wide // 2, weight.shape[-1])
            which = torch.empty(out.shape, device=x.device, dtype=torch.uint8)
            self.kernels.conv_pool_forward(x, weight, bias, out, which, pad, f"forward{name[-1]}")
        else:
            columns = im2col(x, pad)
            y = torch.baddbmm(bias.unsqueeze(1), columns, weight)
            out, which = relu_pool(y.view(models, rows, high, wide, -1), record)
        return out, Block(x, columns if record else None, which, (high, wide))

    def _forward(self, x: torch.Tensor, record: bool) -> tuple[torch.Tensor, Block, Block, Dense]:
        """Logits, and what the backward pass needs of each layer, which is whole with ``record`` only."""
        low = self.low
        x = x.to(self.compute).contiguous()
        x, block1 = self._conv_block(x, "conv1", SIDE // 2, record)
        x, block2 = self._conv_block(x, "conv2", 0, record)
        flat = x.flatten(2)  # height, width, channel: Keras' order
        hidden1 = torch.baddbmm(low["dense1.bias"].unsqueeze(1), flat, low[LARGEST]).relu_()
        hidden2 = torch.baddbmm(low["dense2.bias"].unsqueeze(1), hidden1, low["dense2.weight"]).relu_()
        exact = hidden2.to(self.settings.dtype)
        logits = torch.baddbmm(self.params["dense3.bias"].unsqueeze(1), exact, self.params["dense3.weight"])
        return logits, block1, block2, Dense(flat, hidden1, hidden2, exact)

    @torch.no_grad()
    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[1]
        size = self.settings.batch_size
        if self.kernels and rows % size:
            # Kernels are compiled for one number of rows: pad instead of compiling for another.
            x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, -rows % size))
        parts = [self._forward(part, record=False)[0] for part in (x.split(size, dim=1) if self.kernels else [x])]
        return torch.cat(parts, dim=1)[:, :rows]

    # backward

    @torch.no_grad()
    def step(
        self, x: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, coupling: torch.Tensor | None
    ) -> None:
        rows = x.shape[1]
        if self.kernels and rows != self.settings.batch_size:
            x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, self.settings.batch_size - rows))
        logits, block1, block2, dense = self._forward(x, record=True)
        slope = torch.zeros_like(logits)  # padded rows push nowhere
        slope[:, :rows] = self.slope(logits[:, :rows], targets, weights, coupling)
        back1 = self._dense_gradients(slope, dense)
        pooled = torch.bmm(back1, self.low[LARGEST].mT)
        if self.kernels:
            self._fused_gradients(self.kernels, pooled, block1, block2)
            self._fused_adam(self.kernels, dense.flat, back1)
        else:
            pooled = self._plain_gradients("conv2", pooled, block2)
            pooled = torch.bmm(pooled, self.low["conv2.weight"].flatten(1, 3).mT)
            self._plain_gradients("conv1", col2im(pooled, block2.inputs.shape), block1)
            torch.bmm(dense.flat.mT, back1, out=self.slopes[LARGEST])
            self.adam({"flat": self.gradient})

    def _dense_gradients(self, slope: torch.Tensor, dense: Dense) -> torch.Tensor:
        """Fill in the dense layers' gradients but the largest one; return the gradient at its outputs."""
        exact = self.settings.dtype
        torch.bmm(dense.exact.mT, slope, out=self.slopes["dense3.weight"])
        torch.sum(slope, 1, out=self.slopes["dense3.bias"])
        back2 = torch.bmm(slope, self.params["dense3.weight"].mT).to(self.compute).mul_(dense.hidden2 > 0)
        bmm_into(self.slopes["dense2.weight"], dense.hidden1.mT, back2)
        torch.sum(back2, 1, dtype=exact, out=self.slopes["dense2.bias"])
        back1 = torch.bmm(back2, self.low["dense2.weight"].mT).mul_(dense.hidden1 > 0)
        torch.sum(back1, 1, dtype=exact, out=self.slopes["dense1.bias"])
        return back1

    def _fused_gradients(self, kernels: ModuleType, pooled: torch.Tensor, block1: Block, block2: Block) -> None:
        high, wide = block2.size
        pooled = pooled.view(block2.which.shape)
        models, rows, channels = *pooled.shape[:2], pooled.shape[-1]
        # A dropped odd row or column is never written, hence the zeros then.
        make = pooled.new_zeros if high % 2 or wide % 2 else pooled.new_empty
        spread = make(models, rows, high, wide, channels)
        kernels.unpool(pooled, block2.which, spread)
        torch.sum(pooled.view(models, -1, channels), 1, dtype=self.settings.dtype, out=self.slopes["conv2.bias"])
        weight = self.low["conv2.weight"].flatten(1, 3)
        kernels.conv_weight_grad(block2.inputs, spread, self.slopes["conv2.weight"].view(weight.shape))
        back = torch.empty_like(block2.inputs)
        kernels.conv_input_grad(spread, weight, block1.which, back)
        part = kernels.first_conv_weight_grad(block1.inputs, back, block1.which, SIDE // 2, SIDE).sum(1)
        self.slopes["conv1.weight"].flatten(1, 3).copy_(part[:, :-1])
        self.slopes["conv1.bias"].copy_(part[:, -1])

    def _plain_gradients(self, name: str, pooled: torch.Tensor, block: Block) -> torch.Tensor:
        """Fill in a convolution's gradients; return the one before its pooling."""
        assert block.columns is not None
        which = block.which
        spread = unpool(pooled.view(which.shape), which, *block.size).view(which.shape[0], -1, which.shape[-1])
        torch.sum(spread, 1, out=self.slopes[f"{name}.bias"])
        torch.bmm(block.columns.mT, spread, out=self.slopes[f"{name}.weight"].flatten(1, 3))
        return spread

    def _fused_adam(self, kernels: ModuleType, flat: torch.Tensor, at_flat: torch.Tensor) -> None:
        """Adam over all but the largest layer, then over that layer, whose gradient is ``flat.mT @ at_flat``."""
        rate, split = self.step_size, self.layout.offsets[LARGEST]
        buffers = [self.layout.flat, *(moment["flat"] for moment in self.moments)]
        assert self.rounded is not None
        kernels.adam(*(buffer[:split] for buffer in buffers), self.gradient, rate, self.rounded[:split])
        largest = [self.layout.views(buffer)[LARGEST] for buffer in buffers]
        kernels.dense_grad_adam(flat, at_flat, *largest, rate, self.low[LARGEST])


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


def bmm_into(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """``out <- a @ b`` over models, accumulated in ``out``'s precision where the hardware allows it."""
    if a.dtype == out.dtype:
        torch.bmm(a, b, out=out)
    else:
        out.copy_(torch.bmm(a, b))
