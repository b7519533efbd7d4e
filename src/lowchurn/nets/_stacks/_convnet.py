"""Stacks of convolutional networks: hand-written forward and backward passes with a leading model axis.

Two ways compute the same convolutions. In plain torch, windows are copied once a step (im2col) and every product is a
``bmm`` over models: any device, any floating dtype. On a GPU, Triton kernels read the windows straight from the
activation, with relu and pooling fused in, and the largest layer's gradient goes into Adam without being stored.

On a GPU, products run in bfloat16 with float32 accumulation; weights, moments, the last layer and the loss stay in
float32. ``docs/performance.md`` shows that this changes results by less than another seed does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lowchurn.nets._stacks._stack import FlatParameters, FlatStack, Settings, adam_

SIDE = 5  # both convolutions are 5 x 5
LARGEST = "dense1.weight"  # most of the parameters; last in the flat buffer, so that a fused kernel can take it alone


class ConvnetStack(FlatStack):
    """K networks of :func:`~lowchurn.nets.networks.convnet`."""

    def __init__(self, module: nn.Module, params: dict[str, torch.Tensor], settings: Settings) -> None:
        self.kernels: Any = None
        self.compute = settings.dtype
        fast = settings.device.type == "cuda" and settings.dtype == torch.float32
        if fast and settings.precision in ("auto", "bfloat16"):
            from lowchurn.nets._kernels import conv_gpu

            self.kernels, self.compute = conv_gpu, torch.bfloat16
        super().__init__(module, params, settings)

    def lay_out(self, params: dict[str, torch.Tensor]) -> None:
        names = sorted(params, key=lambda name: name == LARGEST)
        self.store = FlatParameters({name: params[name] for name in names})
        self.params = self.store.views(self.store.flat)
        self.split = self.store.offsets[LARGEST]
        flat = self.store.flat
        self.gradient = torch.zeros(self.split if self.kernels else flat.numel(), device=flat.device, dtype=flat.dtype)
        self.slopes = {
            name: self.gradient[at : at + view.numel()].view(view.shape)
            for name, view in self.params.items()
            for at in [self.store.offsets[name]]
            if at + view.numel() <= self.gradient.numel()
        }
        self.rounded = None if self.compute == flat.dtype else flat.to(self.compute)
        self.low = self.params if self.rounded is None else self.store.views(self.rounded)

    # forward

    def _conv_block(self, x: torch.Tensor, name: str, pad: int, kept: dict[str, Any]) -> torch.Tensor:
        """Convolution, bias, relu and pooling; ``kept`` collects what the backward pass needs."""
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
            out, which = relu_pool(y.view(models, rows, high, wide, -1))
        kept[name] = (x, columns, which, (high, wide))
        return out

    def _forward(self, x: torch.Tensor, kept: dict[str, Any]) -> torch.Tensor:
        low = self.low
        x = x.to(self.compute).contiguous()
        x = self._conv_block(x, "conv1", SIDE // 2, kept)
        x = self._conv_block(x, "conv2", 0, kept)
        flat = x.flatten(2)  # height, width, channel: Keras' order
        hidden1 = torch.baddbmm(low["dense1.bias"].unsqueeze(1), flat, low[LARGEST]).relu_()
        hidden2 = torch.baddbmm(low["dense2.bias"].unsqueeze(1), hidden1, low["dense2.weight"]).relu_()
        exact = hidden2.to(self.settings.dtype)
        kept["dense"] = (flat, hidden1, hidden2, exact)
        return torch.baddbmm(self.params["dense3.bias"].unsqueeze(1), exact, self.params["dense3.weight"])

    @torch.no_grad()
    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[1]
        size = self.settings.batch_size
        if self.kernels and rows % size:
            # Kernels are compiled for one number of rows: pad instead of compiling for another.
            x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, -rows % size))
        parts = [self._forward(part, {}) for part in x.split(size, dim=1)] if self.kernels else [self._forward(x, {})]
        return torch.cat(parts, dim=1)[:, :rows]

    # backward

    @torch.no_grad()
    def step(
        self, x: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, coupling: torch.Tensor | None
    ) -> None:
        rows = x.shape[1]
        if self.kernels and rows != self.settings.batch_size:
            x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, self.settings.batch_size - rows))
        kept: dict[str, Any] = {}
        logits = self._forward(x, kept)
        slope = torch.zeros_like(logits)  # padded rows push nowhere
        slope[:, :rows] = self.slope(logits[:, :rows], targets, weights, coupling)
        flat, at_flat = self._backward(slope, kept)
        self._adam(flat, at_flat)

    def _backward(self, slope: torch.Tensor, kept: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Fill in all gradients but the largest layer's, whose two factors are handed back."""
        exact = self.settings.dtype
        flat, hidden1, hidden2, hidden2_exact = kept["dense"]
        torch.bmm(hidden2_exact.mT, slope, out=self.slopes["dense3.weight"])
        torch.sum(slope, 1, out=self.slopes["dense3.bias"])
        back2 = torch.bmm(slope, self.params["dense3.weight"].mT).to(self.compute).mul_(hidden2 > 0)
        bmm_into(self.slopes["dense2.weight"], hidden1.mT, back2)
        torch.sum(back2, 1, dtype=exact, out=self.slopes["dense2.bias"])
        back1 = torch.bmm(back2, self.low["dense2.weight"].mT).mul_(hidden1 > 0)
        torch.sum(back1, 1, dtype=exact, out=self.slopes["dense1.bias"])
        pooled = torch.bmm(back1, self.low[LARGEST].mT)
        if self.kernels:
            self._fused_convolutions(pooled, kept)
        else:
            self._plain_convolutions(pooled, kept)
        return flat, back1

    def _fused_convolutions(self, pooled: torch.Tensor, kept: dict[str, Any]) -> None:
        x, _, which1, _ = kept["conv1"]
        inner, _, which2, (high, wide) = kept["conv2"]
        pooled = pooled.view(which2.shape)
        models, rows, channels = *pooled.shape[:2], pooled.shape[-1]
        # A dropped odd row or column is never written, hence the zeros then.
        make = pooled.new_zeros if high % 2 or wide % 2 else pooled.new_empty
        spread = make(models, rows, high, wide, channels)
        self.kernels.unpool(pooled, which2, spread)
        torch.sum(pooled.view(models, -1, channels), 1, dtype=self.settings.dtype, out=self.slopes["conv2.bias"])
        weight = self.low["conv2.weight"].flatten(1, 3)
        self.kernels.conv_weight_grad(inner, spread, self.slopes["conv2.weight"].view(weight.shape))
        back = torch.empty_like(inner)
        self.kernels.conv_input_grad(spread, weight, which1, back)
        part = self.kernels.first_conv_weight_grad(x, back, which1, SIDE // 2, SIDE).sum(1)
        self.slopes["conv1.weight"].flatten(1, 3).copy_(part[:, :-1])
        self.slopes["conv1.bias"].copy_(part[:, -1])

    def _plain_convolutions(self, pooled: torch.Tensor, kept: dict[str, Any]) -> None:
        for name, below in (("conv2", "conv1"), ("conv1", None)):
            x, columns, which, (high, wide) = kept[name]
            pooled = pooled.view(which.shape)
            spread = unpool(pooled, which, high, wide).view(x.shape[0], -1, which.shape[-1])
            torch.sum(spread, 1, out=self.slopes[f"{name}.bias"])
            torch.bmm(columns.mT, spread, out=self.slopes[f"{name}.weight"].flatten(1, 3))
            if below:
                weight = self.low[f"{name}.weight"].flatten(1, 3)
                pooled = col2im(torch.bmm(spread, weight.mT), x.shape)

    def _adam(self, flat: torch.Tensor, at_flat: torch.Tensor) -> None:
        rate = self.rate()
        weights, split = self.store.flat, self.split
        if not self.kernels:
            torch.bmm(flat.mT, at_flat, out=self.slopes[LARGEST])
            adam_(weights, self.first, self.second, self.gradient, rate)
            return
        rounded = self.rounded
        self.kernels.adam(
            weights[:split],
            self.first[:split],
            self.second[:split],
            self.gradient,
            rate,
            None if rounded is None else rounded[:split],
        )
        moments = [self.store.views(moment)[LARGEST] for moment in (self.first, self.second)]
        copy = None if rounded is None else self.low[LARGEST]
        self.kernels.dense_grad_adam(flat, at_flat, self.params[LARGEST], *moments, rate, copy)


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


def relu_pool(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """2 x 2 max pooling and relu of y (K, B, H, W, N), with a record of the winners (4: the relu closed)."""
    height, width = y.shape[2] // 2 * 2, y.shape[3] // 2 * 2
    quarters = torch.stack([y[:, :, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1)])
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
