"""Stacks of one-block transformers: one forward pass with a leading model axis, backward by autograd."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lowchurn.nets._stacks._stack import FlatStack, Settings, State
from lowchurn.nets.networks import Transformer

TABLE = "token.weight"


class TransformerStack(FlatStack):
    """K networks of :func:`~lowchurn.nets.networks.transformer`, each with its own table of tokens."""

    def __init__(self, module: Transformer, params: State, settings: Settings) -> None:
        super().__init__(params, settings)
        self.heads, self.vocabulary = module.heads, module.vocabulary
        half = settings.device.type == "cuda" and settings.precision == "bfloat16"
        self.compute = torch.bfloat16 if half else settings.dtype

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
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = norm(x + dense(attended.reshape(models, rows * length, -1), "out"), "norm1")
        x = norm(x + dense(dense(x, "ff1").relu(), "ff2"), "norm2")
        pooled = x.view(models, rows, length, width).mean(2, dtype=self.settings.dtype)
        return torch.baddbmm(params["head.bias"].unsqueeze(1), pooled, params["head.weight"])

    @torch.no_grad()
    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(self._tokens(x)[1], self.params)

    def step(
        self, x: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, coupling: torch.Tensor | None
    ) -> None:
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
            table.index_add_(0, places, of_tokens.reshape(-1, table.shape[-1]))
            self.adam({"flat": self.gradient})
