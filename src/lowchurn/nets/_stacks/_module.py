"""Any user's module, many copies at once, through torch.func."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.func import functional_call, vjp, vmap

from lowchurn.nets._stacks._stack import Settings, State, StepStack


class ModuleStack(StepStack):
    """K copies of one module: forward by ``vmap``, backward by its vector-Jacobian product."""

    def __init__(self, module: nn.Module, params: State, buffers: State, settings: Settings) -> None:
        super().__init__(params, settings, buffers)
        self.skeleton = copy.deepcopy(module).to("meta")

    def _forward(self, params: State, x: torch.Tensor) -> tuple[torch.Tensor, State]:
        def one(params: State, buffers: State, x: torch.Tensor) -> tuple[torch.Tensor, State]:
            # Clones, handed back, since in-place updates of mapped buffers are not a documented promise of vmap.
            buffers = {name: value.clone() for name, value in buffers.items()}
            return functional_call(self.skeleton, (params, buffers), (x,)), buffers

        # A module's own draws (dropout) differ between models but cannot be repeated one model at a time.
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
            self.adam(gradients)

    def first_logits(self, each: int, pool: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        # Of all models: the last bits of some layers depend on how many are mapped.
        return self.logits(pool, rows.repeat_interleave(each, dim=0))[::each]

    @torch.no_grad()
    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        self.skeleton.eval()
        return self._forward(self.params, x)[0]
