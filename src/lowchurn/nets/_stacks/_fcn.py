"""Stacks of fully connected networks: one model after the other in a core's cache, or all at once on a GPU."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import nn

from lowchurn.nets._stacks._stack import BETA1, BETA2, EPSILON, Batches, Settings, Stack

NAMES = ("hidden.weight", "hidden.bias", "output.weight", "output.bias")


class CpuFcnStack(Stack):
    """Each thread trains one model for a whole epoch, so that its weights and moments stay in its core's cache."""

    def __init__(self, module: nn.Module, params: dict[str, torch.Tensor], settings: Settings) -> None:
        super().__init__(module, settings)
        from lowchurn.nets._kernels import fcn_cpu

        self.kernels: Any = fcn_cpu
        self.params = {name: params[name].contiguous() for name in NAMES}
        self.first = {name: torch.zeros_like(p) for name, p in self.params.items()}
        self.second = {name: torch.zeros_like(p) for name, p in self.params.items()}
        self.threads = ThreadPoolExecutor(settings.threads)

    def _arrays(self, model: int) -> list[np.ndarray]:
        return [t[name][model].numpy() for t in (self.params, self.first, self.second) for name in NAMES]

    def train_epoch(self, batches: Batches) -> None:
        s = self.settings
        n = batches.order.shape[1]
        steps = math.ceil(n / s.batch_size)
        pool, rows, targets, weights, order = (
            t.numpy() for t in (batches.pool, batches.rows, batches.targets, batches.weights, batches.order)
        )
        mate = order if batches.mate is None else batches.mate.numpy()
        mix = np.ones((self.models, steps)) if batches.mix is None else batches.mix.double().numpy()
        adam = (s.batch_size, s.learning_rate, BETA1, BETA2, EPSILON, s.squared)
        done = self.steps

        def data(k: int) -> tuple:
            return (done, pool, rows[k], targets[k], weights[k], order[k], mate[k], mix[k])

        def alone(k: int) -> None:
            self.kernels.fcn_epoch(*self._arrays(k), *data(k), *adam)

        def together(pair: int) -> None:
            share = float(batches.coupling[pair])  # type: ignore[index]
            first, second = self._arrays(2 * pair), self._arrays(2 * pair + 1)
            self.kernels.twin_epoch(*first, *second, *data(2 * pair), *adam, share)

        if batches.coupling is None:
            list(self.threads.map(alone, range(self.models)))
        else:
            list(self.threads.map(together, range(self.models // 2)))
        self.steps += steps

    def logits(self, pool: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        x, every = pool.numpy(), np.arange(pool.shape[0])
        weights = [self.params[name].numpy() for name in NAMES]

        def one(k: int) -> np.ndarray:
            chosen = every if rows is None else rows[k].numpy()
            return self.kernels.fcn_logits(*(w[k] for w in weights), x, chosen)

        return torch.from_numpy(np.stack(list(self.threads.map(one, range(self.models)))))

    def row_bytes(self, pool: torch.Tensor) -> int:
        return 2 * self.params["output.bias"].element_size() * self.params["output.bias"].shape[1]

    def keep(self, index: torch.Tensor) -> None:
        for tensors in (self.params, self.first, self.second):
            for name in tensors:
                tensors[name] = tensors[name][index].contiguous()


class GpuFcnStack(Stack):
    """One GPU program a model runs through all batches of an epoch; gradients never reach memory."""

    def __init__(self, module: nn.Module, params: dict[str, torch.Tensor], settings: Settings) -> None:
        super().__init__(module, settings)
        from lowchurn.nets._kernels import fcn_gpu

        self.kernels: Any = fcn_gpu
        hidden, bias, output, self.bias = (params[name] for name in NAMES)
        self.inputs, self.classes = hidden.shape[1], output.shape[2]
        self.tiles: dict[str, Any] = fcn_gpu.tiles(self.inputs, hidden.shape[2], self.classes)
        self.packed = fcn_gpu.pack_parameters(hidden, bias, output)
        self.bias = self.bias.contiguous()
        self.moments = [torch.zeros_like(self.packed) for _ in range(2)]
        self.bias_moments = [torch.zeros_like(self.bias) for _ in range(2)]

    @property
    def params(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        views = self.kernels.parameter_views(self.packed, self.inputs)
        return dict(zip(NAMES, (*views, self.bias), strict=True))

    @property
    def models(self) -> int:
        return self.packed.shape[0]

    def train_epoch(self, batches: Batches) -> None:
        s = self.settings
        done = torch.full((self.models,), self.steps, device=self.packed.device, dtype=torch.int32)
        self.kernels.train_epoch(
            self.packed,
            *self.moments,
            self.bias,
            *self.bias_moments,
            batches.pool,
            batches.rows,
            batches.targets,
            batches.weights,
            batches.order,
            done,
            mate=batches.mate,
            mix=batches.mix,
            coupling=batches.coupling,
            loss="squared" if s.squared else "log",
            batch_size=s.batch_size,
            learning_rate=s.learning_rate,
            precision={"tf32": "tf32", "ieee": "ieee"}.get(s.precision, "tf32x3"),
            **self.tiles,
        )
        self.steps += math.ceil(batches.order.shape[1] / s.batch_size)

    def logits(self, pool: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        return self.kernels.evaluate(self.packed, self.bias, pool, rows=rows, mode="logits", precision="tf32x3")

    def decisions(self, pool: torch.Tensor) -> torch.Tensor:
        """The likeliest class of every row of the pool for every model, (K, N) uint8, without storing logits."""
        return self.kernels.evaluate(self.packed, self.bias, pool, mode="argmax", precision="tf32x3")

    def row_bytes(self, pool: torch.Tensor) -> int:
        return 4 * self.classes  # the kernel leaves nothing but logits

    def keep(self, index: torch.Tensor) -> None:
        self.packed, self.bias = self.packed[index], self.bias[index]
        self.moments = [m[index] for m in self.moments]
        self.bias_moments = [m[index] for m in self.bias_moments]
