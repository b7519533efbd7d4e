"""Any module, many copies: all at once through torch.func, or on a CPU one after the other."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.func import functional_call, vjp, vmap

from lowchurn.nets._stacks._stack import Settings, State, StepStack


class ModuleStack(StepStack):
    """K copies of one module.

    Tables, and everything on a GPU, go through all models at once: forward by ``vmap``, backward by its vector-Jacobian
    product. Images and tokens on a CPU go through one model after the other, whose step then stays in the cache.
    """

    def __init__(self, module: nn.Module, params: State, buffers: State, settings: Settings) -> None:
        super().__init__(params, settings, buffers)
        self.skeleton = copy.deepcopy(module).to("meta")

    def one_by_one(self, x: torch.Tensor) -> bool:
        """Whether models are trained one after the other on inputs (K, B, ...)."""
        return x.device.type == "cpu" and not (x.ndim == 3 and x.is_floating_point())

    def step(
        self, x: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, coupling: torch.Tensor | None
    ) -> None:
        self.skeleton.train()
        if not self.one_by_one(x):
            self._step_together(x, targets, weights, coupling)
            return
        each = 1 if coupling is None else 2
        for first in range(0, self.models, each):
            part = slice(first, first + each)
            share = None if coupling is None else coupling[first // 2 : first // 2 + 1]
            self._step_apart(range(first, first + each), x[part], targets[part], weights[part], share)

    @torch.no_grad()
    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        self.skeleton.eval()
        if self.one_by_one(x):
            return torch.stack([self._one(self._of(self.params, k), k, rows) for k, rows in enumerate(x)])
        return self._together(self.params, x)[0]

    def first_logits(self, each: int, pool: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        # Of all models: the last bits of some layers depend on how many are mapped.
        return self.logits(pool, rows.repeat_interleave(each, dim=0))[::each]

    def _step_together(
        self, x: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, coupling: torch.Tensor | None
    ) -> None:
        logits, backward, buffers = vjp(  # type: ignore[misc]
            lambda params: self._together(params, x), self.params, has_aux=True
        )
        with torch.no_grad():
            (gradients,) = backward(self.slope(logits, targets, weights, coupling))
            for name, value in buffers.items():
                self.buffers[name].copy_(value)
            self.adam(gradients)

    def _together(self, params: State, x: torch.Tensor) -> tuple[torch.Tensor, State]:
        """Logits of all models, and their buffers afterwards."""

        def one(params: State, buffers: State, x: torch.Tensor) -> tuple[torch.Tensor, State]:
            # Clones, handed back, since in-place updates of mapped buffers are not a documented promise of vmap.
            buffers = {name: value.clone() for name, value in buffers.items()}
            return functional_call(self.skeleton, (params, buffers), (x,)), buffers

        # A module's own draws (dropout) differ between models but cannot be repeated one model at a time.
        return vmap(one, randomness="different")(params, self.buffers, x)

    def _step_apart(
        self,
        models: range,
        x: torch.Tensor,
        targets: torch.Tensor,
        weights: torch.Tensor,
        coupling: torch.Tensor | None,
    ) -> None:
        """One step of one model, or of a pair of twins."""
        with torch.enable_grad():
            own = [{name: w.detach().requires_grad_() for name, w in self._of(self.params, k).items()} for k in models]
            logits = [self._one(params, k, rows) for params, k, rows in zip(own, models, x, strict=True)]
        with torch.no_grad():
            slope = self.slope(torch.stack(logits).detach(), targets, weights, coupling)
            found = [  # of both twins before either of them changes: their weights are parts of the same tensors
                torch.autograd.grad(z, list(params.values()), back, materialize_grads=True)
                for z, params, back in zip(logits, own, slope, strict=True)
            ]
            for k, params, gradients in zip(models, own, found, strict=True):
                self.adam({name: g.unsqueeze(0) for name, g in zip(params, gradients, strict=True)}, slice(k, k + 1))

    def _one(self, params: State, k: int, x: torch.Tensor) -> torch.Tensor:
        """Logits of model k, whose buffers are updated in place."""
        return functional_call(self.skeleton, (params, self._of(self.buffers, k)), (x,))

    @staticmethod
    def _of(state: State, k: int) -> State:
        return {name: value[k] for name, value in state.items()}
