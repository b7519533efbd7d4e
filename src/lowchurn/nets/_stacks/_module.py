"""Any user's module, many copies at once, through torch.func."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.func import functional_call, vjp, vmap

from lowchurn.nets._stacks._stack import Settings, StepStack, adam_


class ModuleStack(StepStack):
    """K copies of one module: forward by ``vmap``, backward by its vector-Jacobian product.

    Buffers such as running means are mapped and updated for each model; a module's own random draws (dropout) differ
    between models but cannot be repeated one model at a time.
    """

    def __init__(
        self,
        module: nn.Module,
        params: dict[str, torch.Tensor],
        buffers: dict[str, torch.Tensor],
        settings: Settings,
    ) -> None:
        super().__init__(module, settings)
        self.skeleton = copy.deepcopy(module).to("meta")
        self.params, self.buffers = params, buffers
        self.first = {name: torch.zeros_like(p) for name, p in params.items()}
        self.second = {name: torch.zeros_like(p) for name, p in params.items()}

    def _forward(
        self, params: dict[str, torch.Tensor], x: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        def one(
            params: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor], x: torch.Tensor
        ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            # Clones, handed back, since in-place updates of mapped buffers are not a documented promise of vmap.
            buffers = {name: value.clone() for name, value in buffers.items()}
            return functional_call(self.skeleton, (params, buffers), (x,)), buffers

        return vmap(one, randomness="different")(params, self.buffers, x)

    def step(
        self, x: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, coupling: torch.Tensor | None
    ) -> None:
        self.skeleton.train()
        logits, backward, buffers = vjp(  # type: ignore[misc]
            lambda params: self._forward(params, x), self.params, has_aux=True
        )
        with torch.no_grad():
            (gradients,) = backward(self.slope(logits, targets, weights, coupling))
            for name, value in buffers.items():
                self.buffers[name].copy_(value)
            rate = self.rate()
            for name, gradient in gradients.items():
                adam_(self.params[name], self.first[name], self.second[name], gradient, rate)

    @torch.no_grad()
    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        self.skeleton.eval()
        return self._forward(self.params, x)[0]

    def keep(self, index: torch.Tensor) -> None:
        for tensors in (self.params, self.buffers, self.first, self.second):
            for name in tensors:
                tensors[name] = tensors[name][index]
