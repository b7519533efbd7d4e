"""What the models of one stack see: their rows, targets and shuffles, epoch by epoch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from lowchurn.nets import _random as draws
from lowchurn.nets._losses import target_gradient
from lowchurn.nets._stacks import Batches, Settings, Stack
from lowchurn.nets._tasks import Task

# How fast the multiplier of `strategies.Constrained` climbs, `mu += STEP * (churn - limit)`: after one epoch that is
# 5 points above its limit, the base's decisions count as much as the labels.
STEP = 20.0
BYTES_AT_ONCE = 2**31  # of what logits need, while churn on the training rows is counted


class Data:
    """Rows, targets and shuffles of the models of one stack, twins side by side."""

    def __init__(self, tasks: list[Task], device: torch.device, dtype: torch.dtype, each: int) -> None:
        self.each, self.device, self.dtype = each, device, dtype
        self.keys = torch.tensor([as_int64(task.seed) for task in tasks], device=device).repeat_interleave(each)
        self.rows = self._gather([t.rows for t in tasks], torch.int64, each)
        self.targets = self._gather([t.targets for t in tasks], dtype, each)
        if not bool(torch.isfinite(self.targets).all()):
            raise ValueError("train: targets must be finite, got NaN or infinite ones.")
        ones = np.ones(self.rows.shape[1])
        self.weights = self._gather([ones if t.weights is None else t.weights for t in tasks], dtype, each)
        self.held_out = self._gather([t.validation for t in tasks], torch.int64, each)
        self.labels = self._gather([t.validation_targets for t in tasks], dtype, 1)
        self.mixing = self._numbers([t.mixing for t in tasks])
        self.coupling = self._numbers([t.coupling for t in tasks])
        self.limit = self._numbers([t.limit for t in tasks])
        if self.limit is not None:
            self.labels_only = self.targets
            self.pull = self._gather([t.pull for t in tasks], dtype, each)
            self.multiplier = torch.zeros_like(self.limit)

    def _gather(self, values: list[Any], kind: torch.dtype, times: int) -> torch.Tensor:
        """Stack what each model has; an array that many of them share travels to the device once."""
        unique = {id(value): value for value in values}
        tensors = [torch.as_tensor(value) for value in unique.values()]
        if len({t.device for t in tensors}) > 1:
            tensors = [t.to(self.device) for t in tensors]
        stacked = torch.stack(tensors).to(self.device, kind)
        position = {key: place for place, key in enumerate(unique)}
        index = torch.tensor([position[id(value)] for value in values for _ in range(times)], device=self.device)
        return stacked if len(index) == len(stacked) else stacked[index]

    def _numbers(self, values: list[float | None]) -> torch.Tensor | None:
        if values[0] is None:
            return None
        return torch.tensor(values, device=self.device, dtype=torch.float64)

    def batches(self, pool: torch.Tensor, epoch: int, settings: Settings) -> Batches:
        n = self.rows.shape[1]
        mate = mix = None
        if self.mixing is not None:
            steps = math.ceil(n / settings.batch_size)
            shares = draws.mixup_shares(self.keys[:: self.each], self.mixing, epoch, steps)
            mix = shares.to(self.dtype).repeat_interleave(self.each, dim=0)
            mate = draws.shuffles(self.keys, epoch, n, draws.MATE)
        order = draws.shuffles(self.keys, epoch, n)
        coupling = None if self.coupling is None else self.coupling.to(self.dtype)
        return Batches(pool, self.rows, self.targets, self.weights, order, mate, mix, coupling)

    def validation_loss(self, stack: Stack, pool: torch.Tensor, squared: bool) -> torch.Tensor:
        logits = stack.logits(pool, self.held_out)[:: self.each]
        loss, _ = target_gradient(logits, self.labels, squared)
        return loss.double().mean(dim=1)

    def steer(self, stack: Stack, pool: torch.Tensor) -> None:
        """Move each multiplier by how far churn on the training rows is from its limit; the next epoch aims there."""
        if self.limit is None:
            return
        size = max(1, BYTES_AT_ONCE // (stack.models * stack.row_bytes(pool)))
        changed = torch.zeros_like(self.limit)
        for part, pull in zip(self.rows.split(size, 1), self.pull[:: self.each].split(size, 1), strict=True):
            decided = stack.logits(pool, part.contiguous())[:: self.each].argmax(dim=-1)
            changed += (decided != pull.argmax(dim=-1)).sum(dim=1)
        churn = changed / self.rows.shape[1]
        self.multiplier = (self.multiplier + STEP * (churn - self.limit)).clamp(min=0)
        mu = self.multiplier.to(self.dtype).repeat_interleave(self.each).view(-1, 1, 1)
        self.targets = (self.labels_only + mu * self.pull) / (1 + mu)

    def keep(self, index: torch.Tensor) -> None:
        both = index
        if self.each == 2:
            both = (2 * index.unsqueeze(1) + torch.arange(2, device=index.device)).flatten()
        self.labels = self.labels[index]
        wide = ["keys", "rows", "targets", "weights", "held_out"]
        own = [name for name in ("mixing", "coupling", "limit") if getattr(self, name) is not None]
        if self.limit is not None:
            wide += ["labels_only", "pull"]
            own.append("multiplier")
        for name in wide:
            setattr(self, name, getattr(self, name)[both])
        for name in own:
            setattr(self, name, getattr(self, name)[index])


def as_int64(seed: int) -> int:
    return (int(seed) + 2**63) % 2**64 - 2**63
