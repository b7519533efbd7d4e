"""Stacks of one-block transformers, in two ways that compute the same.

In plain torch, one forward pass has a leading model axis and autograd goes backward: any device, any floating dtype. On
a GPU in bfloat16, both passes are written by hand in Triton kernels.
Products accumulate in float32; weights, moments, tokens, normalisations, the last layer and the loss stay in float32.
"""

from __future__ import annotations

import importlib.util
import math
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from lowchurn.nets._kernels import large_gpu
from lowchurn.nets._stacks._stack import FlatParameters, FlatStack, Settings, State
from lowchurn.nets.networks import Transformer

TABLE = "token.weight"  # most of the parameters; last in the flat buffer, so that a fused kernel can take it alone


class Block(NamedTuple):
    """What the backward pass of the kernels needs: inputs and outputs of each layer, (K, B * T, ...)."""

    tokens: torch.Tensor
    merged: Any  # the weights of attention as the kernels take them
    queries: torch.Tensor
    kept: torch.Tensor  # what the kernels keep of attention
    attended: torch.Tensor
    out: torch.Tensor
    middle: torch.Tensor  # behind the first normalisation
    hidden: torch.Tensor
    fed: torch.Tensor
    pooled: torch.Tensor  # (K, B, width), in full precision


class TransformerStack(FlatStack):
    """K networks of :func:`~lowchurn.nets.networks.transformer`, each with its own table of tokens."""

    def __init__(self, module: Transformer, params: State, settings: Settings) -> None:
        self.heads, self.vocabulary = module.heads, module.vocabulary
        length, width = module.length, module.token.weight.shape[1]
        # Batches of so many rows may have a product that goes to torch's library, the largest being those of attention.
        self.large_rows = math.ceil(large_gpu.LEAST / (length * self.heads * width * max(length, width)))
        self.kernels: ModuleType | None = None
        gpu = settings.device.type == "cuda"
        fast = gpu and settings.dtype == torch.float32 and settings.precision in ("auto", "bfloat16")
        if fast and importlib.util.find_spec("triton"):
            from lowchurn.nets._kernels import transformer_gpu

            if transformer_gpu.fits(module.token.weight.shape[1], module.heads, module.length):
                self.kernels = transformer_gpu
        half = self.kernels or (gpu and settings.precision == "bfloat16")
        self.compute = torch.bfloat16 if half else settings.dtype
        super().__init__({name: params[name] for name in sorted(params, key=lambda name: name == TABLE)}, settings)

    @property
    def recordable(self) -> bool:  # type: ignore[override]
        return self.kernels is not None

    @property
    def large(self) -> bool:
        """Whether products of a step may go to torch's library."""
        return self.kernels is not None and self.settings.batch_size >= self.large_rows

    @property
    def records(self) -> bool:  # type: ignore[override]
        """Recordings of several stacks would share the library's room for parts of a product, and run side by side."""
        return not self.large

    @property
    def rows_at_once(self) -> tuple[int, bool]:
        """One number where the library is asked, which may go another way for others, and else too few for it."""
        if self.large:
            return self.settings.batch_size, True
        size, even = super().rows_at_once
        return (size if self.kernels is None else min(size, self.large_rows - 1)), even

    def _lay_out(self, layout: FlatParameters) -> None:
        super()._lay_out(layout)
        if self.kernels:  # weights rounded to the precision of the products, all but the table
            self.rounded = layout.flat[: layout.offsets[TABLE]].to(self.compute)
            self.low = layout.views(self.rounded)

    @cached_property
    def gradient(self) -> torch.Tensor:
        """Room for the gradient of all weights; the kernels never store that of the table."""
        flat = self.layout.flat
        return torch.zeros_like(flat[: self.layout.offsets[TABLE]] if self.kernels else flat)

    @torch.no_grad()
    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        if self.kernels:
            return self._fused_logits(self.kernels, self._fused_forward(self.kernels, x))
        return self._forward(self._tokens(x)[1], self.params)

    def step(
        self, x: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, coupling: torch.Tensor | None
    ) -> None:
        if self.kernels:
            with torch.no_grad():
                block = self._fused_forward(self.kernels, x)
                slope = self.slope(self._fused_logits(self.kernels, block), targets, weights, coupling)
                self._fused_step(self.kernels, x, block, slope)
            return
        places, tokens = self._tokens(x)
        tokens = tokens.detach().requires_grad_()
        leaves = {name: view.detach().requires_grad_() for name, view in self.params.items() if name != TABLE}
        with torch.enable_grad():
            logits = self._forward(tokens, leaves)
        slope = self.slope(logits.detach(), targets, weights, coupling)
        of_tokens, *gradients = torch.autograd.grad(logits, [tokens, *leaves.values()], slope)
        with torch.no_grad():
            for name, gradient in zip(leaves, gradients, strict=True):
                self.slopes[name].copy_(gradient)
            self.slopes[TABLE].zero_()
            table = self.slopes[TABLE].flatten(0, 1)
            of_tokens = of_tokens.reshape(-1, table.shape[-1])
            if table.is_cuda:  # sorted, so that equal tokens are added in the same order every time
                table.index_put_((places,), of_tokens, accumulate=True)
            else:
                table.index_add_(0, places, of_tokens)
            self.adam({"flat": self.gradient})

    def _head(self, pooled: torch.Tensor, params: State) -> torch.Tensor:
        return torch.baddbmm(params["head.bias"].unsqueeze(1), pooled, params["head.weight"])

    # plain torch

    def _tokens(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Places in the flattened tables, and the rows there (K, B, T, width)."""
        shift = torch.arange(self.models, device=ids.device).view(-1, 1, 1) * self.vocabulary
        places = (ids.long() + shift).reshape(-1)
        table = self.params[TABLE].flatten(0, 1)
        return places, table[places].view(*ids.shape, table.shape[-1])

    def _forward(self, tokens: torch.Tensor, params: State) -> torch.Tensor:
        models, rows, length, width = tokens.shape
        p = {name: value.to(self.compute) for name, value in params.items() if name != TABLE}

        def dense(x: torch.Tensor, name: str) -> torch.Tensor:
            return torch.baddbmm(p[f"{name}.bias"].unsqueeze(1), x, p[f"{name}.weight"])

        def norm(x: torch.Tensor, name: str) -> torch.Tensor:
            plain = F.layer_norm(x, (width,), eps=1e-6)
            return torch.addcmul(p[f"{name}.bias"].unsqueeze(1), plain, p[f"{name}.weight"].unsqueeze(1))

        position = p["position.weight"][:, :length].unsqueeze(1)
        x = (tokens.to(self.compute) + position).view(models, rows * length, width)
        qkv = dense(x, "qkv").view(models * rows, length, 3, self.heads, width)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if tokens.is_cuda:  # the gradient of torch's attention does not repeat there
            attended = torch.softmax(q @ k.mT * width**-0.5, dim=-1) @ v
        else:
            attended = F.scaled_dot_product_attention(q, k, v)
        x = norm(x + dense(attended.transpose(1, 2).reshape(models, rows * length, -1), "out"), "norm1")
        x = norm(x + dense(dense(x, "ff1").relu(), "ff2"), "norm2")
        pooled = x.view(models, rows, length, width).mean(2, dtype=self.settings.dtype)
        return self._head(pooled, params)

    # with kernels

    def _fused_forward(self, kernels: ModuleType, ids: torch.Tensor) -> Block:
        low, exact = self.low, self.params
        models, rows, length = ids.shape
        width = exact[TABLE].shape[-1]
        x = torch.empty(models, rows, length, width, device=ids.device, dtype=self.compute)
        kernels.embed(ids.contiguous(), exact[TABLE], exact["position.weight"], x)
        x = x.flatten(1, 2)
        merged = kernels.merge(low, exact, self.heads)
        queries = kernels.product(x, merged.queries, merged.query_bias)
        attended, kept = kernels.attention(queries, x, length)
        out = kernels.product(attended, merged.outputs)
        middle = torch.empty_like(x)
        norm = (exact["norm1.weight"], exact["norm1.bias"])
        kernels.add_norm(x, out, merged.output_bias, *norm, middle, length)
        hidden = kernels.product(middle, low["ff1.weight"])
        kernels.bias_relu(hidden, exact["ff1.bias"], length)
        fed = kernels.product(hidden, low["ff2.weight"])
        pooled = torch.empty(models, rows, width, device=ids.device)
        norm = (exact["norm2.weight"], exact["norm2.bias"])
        kernels.add_norm(middle, fed, exact["ff2.bias"], *norm, pooled, length)
        return Block(x, merged, queries, kept, attended, out, middle, hidden, fed, pooled)

    def _fused_logits(self, kernels: ModuleType, block: Block) -> torch.Tensor:
        logits: torch.Tensor = kernels.product(block.pooled, self.params["head.weight"])
        return logits + self.params["head.bias"].unsqueeze(1)

    def _fused_step(self, kernels: ModuleType, ids: torch.Tensor, block: Block, slope: torch.Tensor) -> None:
        """Gradients of all layers, the last one first, and Adam."""
        low, exact, length = self.low, self.params, ids.shape[2]
        kernels.product_grad(block.pooled, slope, self.slopes["head.weight"])
        torch.sum(slope, 1, out=self.slopes["head.bias"])
        back = kernels.product_back(slope, exact["head.weight"])
        back, sums = kernels.add_norm_grad(
            block.middle, block.fed, exact["ff2.bias"], exact["norm2.weight"], back, length
        )
        self._take(sums, "norm2.weight", "norm2.bias", "ff2.bias")
        kernels.product_grad(block.hidden, back, self.slopes["ff2.weight"])
        of_hidden = kernels.product_back(back, low["ff2.weight"])
        self.slopes["ff1.bias"].copy_(kernels.relu_grad(block.hidden, of_hidden, length))
        kernels.product_grad(block.middle, of_hidden, self.slopes["ff1.weight"])
        back = kernels.product_back(of_hidden, low["ff1.weight"], back)
        merged = block.merged
        back, sums = kernels.add_norm_grad(
            block.tokens, block.out, merged.output_bias, exact["norm1.weight"], back, length
        )
        self._take(sums, "norm1.weight", "norm1.bias")
        of_outputs = torch.empty_like(merged.outputs, dtype=torch.float32)
        kernels.product_grad(block.attended, back, of_outputs)
        of_attended = kernels.product_back(back, merged.outputs)
        of_queries, back, of_bias = kernels.attention_grad(
            block.queries, block.tokens, block.kept, block.attended, of_attended, back, length
        )
        of_weights = torch.empty_like(merged.queries, dtype=torch.float32)
        kernels.product_grad(block.tokens, of_queries, of_weights)
        slopes = kernels.Merged(of_weights, of_bias, of_outputs, sums[:, 2])
        kernels.merge_grad(low, exact, slopes, self.slopes, self.heads)
        back = kernels.product_back(of_queries, merged.queries, back)
        torch.sum(
            back.unflatten(1, (-1, length)), 1, dtype=torch.float32, out=self.slopes["position.weight"][:, :length]
        )
        self._fused_adam(kernels, ids, back)

    def _take(self, sums: torch.Tensor, *names: str) -> None:
        for i, name in enumerate(names):
            self.slopes[name].copy_(sums[:, i])

    def _fused_adam(self, kernels: ModuleType, ids: torch.Tensor, back: torch.Tensor) -> None:
        rate, split = self.step_size, self.layout.offsets[TABLE]
        buffers = [self.layout.flat, *(moment["flat"] for moment in self.moments)]
        kernels.adam(*(buffer[:split] for buffer in buffers), self.gradient, rate=rate, copy=self.rounded)
        tables = [self.layout.views(buffer)[TABLE] for buffer in buffers]
        kernels.token_adam(*tables, kernels.sorted_tokens(ids, self.vocabulary), back, rate)
