"""Stacks of residual networks: hand-written forward and backward passes with a leading model axis.

The layers come from one of two modules with the same functions: plain torch (:mod:`._resnet_plain`; any device, any
floating dtype), or Triton kernels (``_kernels/resnet_gpu.py``), where activations and products are in bfloat16 with
float32 sums, and weights, moments, statistics, the last layer and the loss in float32.

A convolution's bias moves only the mean that the normalisation behind it takes away: in training it is left out, its
gradient is exactly zero, and it counts in the running mean.
"""

from __future__ import annotations

import importlib.util
import math
from types import ModuleType
from typing import NamedTuple

import torch

from lowchurn.nets._stacks import _resnet_plain
from lowchurn.nets._stacks._stack import FlatParameters, FlatStack, Settings, State
from lowchurn.nets.networks import Bottleneck, Resnet


class Layer(NamedTuple):
    """The names of a convolution and of the normalisation behind it."""

    conv: str
    norm: str


class Block(NamedTuple):
    """The layers of one bottleneck."""

    layers: tuple[Layer, Layer, Layer]
    shortcut: Layer | None
    stride: int


class Saved(NamedTuple):
    """What the backward pass needs of a layer: its inputs, what it convolved them to, and the normalisation of that."""

    x: torch.Tensor
    y: torch.Tensor
    coefs: torch.Tensor


class SavedBlock(NamedTuple):
    """What the backward pass needs of a block."""

    size: tuple[int, int]  # height and width of its inputs
    layers: tuple[Saved, Saved, Saved]
    shortcut: Saved | None


class ResnetStack(FlatStack):
    """K networks of :func:`~lowchurn.nets.networks.resnet`."""

    def __init__(self, module: Resnet, params: State, buffers: State, settings: Settings) -> None:
        self.ops: ModuleType = _resnet_plain
        fast = settings.device.type == "cuda" and settings.dtype == torch.float32
        if fast and settings.precision in ("auto", "bfloat16") and importlib.util.find_spec("triton") is not None:
            from lowchurn.nets._kernels import resnet_gpu

            self.ops = resnet_gpu
        self.blocks = [_named(i, block) for i, block in enumerate(module.blocks) if isinstance(block, Bottleneck)]
        self.epsilon, self.momentum = module.norm.eps, module.norm.momentum
        super().__init__(params, settings, buffers)

    @property
    def recordable(self) -> bool:  # type: ignore[override]
        return self.rounded is not None

    def row_bytes(self, pool: torch.Tensor) -> int:
        # The inputs, the shortcut and the outputs of a block of the first stage, and in plain torch its windows.
        channels = 4 * 256 if self.rounded is not None else 4 * 256 + 2 * 9 * 64
        return channels * pool.shape[1] * pool.shape[2] * self.compute.itemsize

    @property
    def compute(self) -> torch.dtype:
        """The precision of activations and products."""
        return self.layout.flat.dtype if self.ops is _resnet_plain else torch.bfloat16

    def _lay_out(self, layout: FlatParameters) -> None:
        super()._lay_out(layout)
        # Weights rounded to the precision of the products, as a flat buffer and as views by name.
        self.rounded = None if self.compute == layout.flat.dtype else layout.flat.to(self.compute)
        self.low = self.views if self.rounded is None else layout.views(self.rounded)

    def _head(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits, and the means over positions that they are computed from."""
        pooled = x.mean((2, 3), dtype=self.settings.dtype)
        logits = self.ops.conv(pooled[:, :, None, None], self._head_weight(self.params))
        return logits.flatten(2) + self.params["head.bias"].unsqueeze(1), pooled

    @staticmethod
    def _head_weight(params: State) -> torch.Tensor:
        return params["head.weight"][:, None, None]

    # evaluation: normalisations are a scale and a shift

    @torch.no_grad()
    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        x = self._folded(STEM, x.to(self.compute).contiguous())
        for block in self.blocks:
            x = _strided(x, block.stride)
            shortcut = x if block.shortcut is None else self._folded(block.shortcut, x, relu=False)
            for layer in block.layers[:2]:
                x = self._folded(layer, x)
            x = self._folded(block.layers[2], x, shortcut)
        return self._head(x)[0]

    def _folded(
        self, layer: Layer, x: torch.Tensor, add: torch.Tensor | None = None, relu: bool = True
    ) -> torch.Tensor:
        weight = self.low[f"{layer.conv}.weight"]
        return self.ops.conv_folded(x, weight, self._norm(layer), self.epsilon, add, relu)

    def _norm(self, layer: Layer) -> _resnet_plain.Norm:
        conv, norm = layer
        names = (f"{norm}.weight", f"{norm}.bias", f"{conv}.bias")
        running = (f"{norm}.running_mean", f"{norm}.running_var")
        return _resnet_plain.Norm(*(self.params[name] for name in names), *(self.buffers[name] for name in running))

    # training: normalisations by the batch

    def _layer(self, layer: Layer, x: torch.Tensor) -> Saved:
        if x[0, ..., 0].numel() == 1:
            raise ValueError("train: batch normalisation needs more than 1 value per channel. Use larger batches.")
        weight = self.low[f"{layer.conv}.weight"]
        return Saved(x, *self.ops.conv_norm(x, weight, self._norm(layer), self.epsilon, self.momentum))

    def _block(self, block: Block, x: torch.Tensor) -> tuple[torch.Tensor, SavedBlock]:
        size = (x.shape[2], x.shape[3])
        x = _strided(x, block.stride)
        apply = self.ops.apply
        first = self._layer(block.layers[0], x)
        second = self._layer(block.layers[1], apply(first.y, first.coefs))
        third = self._layer(block.layers[2], apply(second.y, second.coefs))
        if block.shortcut is None:
            return apply(third.y, third.coefs, x), SavedBlock(size, (first, second, third), None)
        shortcut = self._layer(block.shortcut, x)
        out = apply(third.y, third.coefs, shortcut.y, shortcut.coefs)
        return out, SavedBlock(size, (first, second, third), shortcut)

    @torch.no_grad()
    def renew_statistics(self, pool: torch.Tensor, rows: torch.Tensor) -> None:
        """Set running statistics to plain averages over batches of each model's rows (K, n) of a pool."""
        for value in self.buffers.values():
            value.zero_()
        usual = self.momentum
        # Parts of nearly the same size: a last batch of a single row could not be normalised.
        for seen, part in enumerate(torch.tensor_split(rows, math.ceil(rows.shape[1] / self.settings.batch_size), 1)):
            self.momentum = 1 / (seen + 1)
            stem = self._layer(STEM, pool[part].to(self.compute))
            x = self.ops.apply(stem.y, stem.coefs)
            for block in self.blocks:
                x, _ = self._block(block, x)
            self._count_batch()
        self.momentum = usual

    def _count_batch(self) -> None:
        torch._foreach_add_([b for name, b in self.buffers.items() if name.endswith("num_batches_tracked")], 1)

    @torch.no_grad()
    def step(
        self, x: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, coupling: torch.Tensor | None
    ) -> None:
        stem = self._layer(STEM, x.to(self.compute).contiguous())
        x = self.ops.apply(stem.y, stem.coefs)
        saved = []
        for block in self.blocks:
            x, kept = self._block(block, x)
            saved.append(kept)
        logits, pooled = self._head(x)
        g = self._head_gradients(self.slope(logits, targets, weights, coupling), pooled, x)
        for block in reversed(self.blocks):
            g = self._block_gradients(block, saved.pop(), g)
        self._layer_gradients(STEM, stem, g)
        self._count_batch()
        if self.rounded is None:
            self.adam({"flat": self.gradient})
        else:
            moments = (moment["flat"] for moment in self.moments)
            self.ops.adam(self.layout.flat, *moments, self.gradient, rate=self.step_size, copy=self.rounded)

    def _head_gradients(self, slope: torch.Tensor, pooled: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Fill in the last layer's gradients; return the one before the relu that made x."""
        torch.sum(slope, 1, out=self.slopes["head.bias"])
        slope = slope[:, :, None, None].contiguous()
        self.ops.weight_grad(pooled[:, :, None, None], slope, self._head_weight(self.slopes))
        g = self.ops.input_grad(slope, self._head_weight(self.params)) / (x.shape[2] * x.shape[3])
        return g.to(self.compute) * (x > 0)

    def _layer_gradients(self, layer: Layer, saved: Saved, g: torch.Tensor) -> torch.Tensor:
        """Fill in a layer's gradients from that behind its normalisation; return the one at its convolution."""
        slopes = (self.slopes[f"{layer.norm}.weight"], self.slopes[f"{layer.norm}.bias"])
        d = self.ops.norm_grad(g, saved.y, saved.coefs, *slopes)
        self.ops.weight_grad(saved.x, d, self.slopes[f"{layer.conv}.weight"])
        return d

    def _block_gradients(self, block: Block, saved: SavedBlock, g: torch.Tensor) -> torch.Tensor:
        """Fill in a block's gradients from that before its last relu; return the one before the relu ahead of it."""
        add = g
        if block.shortcut is not None and saved.shortcut is not None:
            d = self._layer_gradients(block.shortcut, saved.shortcut, g)
            add = self.ops.input_grad(d, self.low[f"{block.shortcut.conv}.weight"])
        for layer, kept in zip(block.layers[:0:-1], saved.layers[:0:-1], strict=True):
            d = self._layer_gradients(layer, kept, g)
            g = self.ops.input_grad(d, self.low[f"{layer.conv}.weight"], mask=kept.x)
        first, kept = block.layers[0], saved.layers[0]
        d = self._layer_gradients(first, kept, g)
        g = self.ops.input_grad(d, self.low[f"{first.conv}.weight"], add, kept.x)
        if block.stride == 1:
            return g
        spread = g.new_zeros(*g.shape[:2], *saved.size, g.shape[-1])
        spread[:, :, :: block.stride, :: block.stride] = g
        return spread


STEM = Layer("stem", "norm")


def _named(place: int, block: Bottleneck) -> Block:
    first, second, third = (Layer(f"blocks.{place}.conv{i}", f"blocks.{place}.norm{i}") for i in (1, 2, 3))
    projected = Layer(f"blocks.{place}.shortcut.0", f"blocks.{place}.shortcut.1")
    return Block((first, second, third), None if block.shortcut is None else projected, block.conv1.stride)


def _strided(x: torch.Tensor, stride: int) -> torch.Tensor:
    """Every ``stride``-th position in height and width: what a strided 1 x 1 convolution reads."""
    return x if stride == 1 else x[:, :, ::stride, ::stride].contiguous()
