"""Stacks of fully connected networks: one model after the other in a core's cache, or all at once on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType

import numpy as np
import torch

from lowchurn.nets._kernels import fcn_packed, fcn_resident
from lowchurn.nets._stacks._stack import BETA1, BETA2, EPSILON, Batches, Settings, Stack, State

NAMES = ("hidden.weight", "hidden.bias", "output.weight", "output.bias")


class CpuFcnStack(Stack):
    """Each thread trains one model for a whole epoch, so that its weights and moments stay in its core's cache."""

    def __init__(self, params: State, settings: Settings) -> None:
        super().__init__({name: params[name].contiguous() for name in NAMES}, settings)
        from lowchurn.nets._kernels import fcn_cpu

        self.kernels: ModuleType = fcn_cpu
        self.threads = ThreadPoolExecutor(settings.threads)

    def train_epoch(self, batches: Batches) -> None:
        s = self.settings
        steps = math.ceil(batches.order.shape[1] / s.batch_size)
        pool, rows, targets, weights, order = (
            t.numpy() for t in (batches.pool, batches.rows, batches.targets, batches.weights, batches.order)
        )
        mate = order if batches.mate is None else batches.mate.numpy()
        mix = np.ones((self.models, steps)) if batches.mix is None else batches.mix.double().numpy()
        adam = (s.learning_rate, BETA1, BETA2, EPSILON)
        arrays = [[t[name].numpy() for name in NAMES] for t in (self.weights, *self.moments)]
        each = 1 if batches.coupling is None else 2

        def train(place: int) -> None:
            k = each * place
            nets = tuple(tuple(tuple(a[i] for a in part) for part in arrays) for i in range(k, k + each))
            share = 0.0 if batches.coupling is None else float(batches.coupling[place])
            data = (rows[k], targets[k], weights[k], order[k], mate[k], mix[k])
            self.kernels.fcn_epoch(nets, self.steps, pool, data, s.batch_size, adam, s.squared, share)

        list(self.threads.map(train, range(self.models // each)))
        self.steps += steps

    def logits(self, pool: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        x, every = pool.numpy(), np.arange(pool.shape[0])
        weights = [self.weights[name].numpy() for name in NAMES]

        def one(k: int) -> np.ndarray:
            chosen = every if rows is None else rows[k].numpy()
            return self.kernels.fcn_logits(*(w[k] for w in weights), x, chosen)

        return torch.from_numpy(np.stack(list(self.threads.map(one, range(self.models)))))

    def row_bytes(self, pool: torch.Tensor) -> int:
        bias = self.weights["output.bias"]
        return 2 * bias.element_size() * bias.shape[1]


class GpuFcnStack(Stack):
    """One launch per epoch, in which one GPU program or cluster trains each model; gradients never reach memory."""

    def __init__(self, params: State, settings: Settings) -> None:
        from lowchurn.nets._kernels import fcn_gpu

        hidden, bias, output, output_bias = (params[name] for name in NAMES)
        packed = fcn_packed.pack_parameters(hidden, bias, output)
        super().__init__({"packed": packed, "output.bias": output_bias.contiguous()}, settings)
        self.kernels: ModuleType = fcn_gpu
        self.inputs, self.units, self.classes = hidden.shape[1], hidden.shape[2], output.shape[2]
        self.tiles: dict[str, int] = fcn_gpu.tiles(self.inputs, self.units, self.classes)

    @property
    def params(self) -> State:
        packed, bias = self.weights.values()
        return dict(zip(NAMES, (*fcn_packed.parameter_views(packed, self.inputs), bias), strict=True))

    def train_epoch(self, batches: Batches) -> None:
        s = self.settings
        (packed, bias), (m, bias_m), (v, bias_v) = (t.values() for t in (self.weights, *self.moments))
        done = torch.full((self.models,), self.steps, device=packed.device, dtype=torch.int32)
        self._epoch_of(batches)(
            *(packed, m, v, bias, bias_m, bias_v),
            *(batches.pool, batches.rows, batches.targets, batches.weights, batches.order, done),
            mate=batches.mate,
            mix=batches.mix,
            coupling=batches.coupling,
            learning_rate=s.learning_rate,
        )
        self.steps += math.ceil(batches.order.shape[1] / s.batch_size)

    def _epoch_of(self, batches: Batches) -> Callable[..., None]:
        """The kernel that keeps networks in shared memory, where there is one for these; else the one for all."""
        s = self.settings
        options = {
            "loss": "squared" if s.squared else "log",
            "batch_size": s.batch_size,
            "precision": s.precision if s.precision in ("tf32", "ieee") else "tf32x3",
        }
        kind = {"mixed": batches.mix is not None, "twins": batches.coupling is not None}
        device = self.weights["packed"].device
        resident = fcn_resident.find(self.inputs, self.units, self.classes, **kind, **options, device=device)
        return partial(self.kernels.train_epoch, **options, **self.tiles) if resident is None else resident.train_epoch

    def logits(self, pool: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        return self.kernels.evaluate(*self.weights.values(), pool, rows=rows)

    def decisions(self, pool: torch.Tensor) -> torch.Tensor:
        """The likeliest class of every row of the pool for every model, (K, N) uint8, without storing logits."""
        return self.kernels.evaluate(*self.weights.values(), pool, argmax=True)

    def row_bytes(self, pool: torch.Tensor) -> int:
        return 4 * self.classes  # the kernel stores nothing but logits
