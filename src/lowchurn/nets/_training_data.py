"""What the models of one stack train on: their rows, targets and shuffles, epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from lowchurn.nets import _random
from lowchurn.nets._losses import target_loss
from lowchurn.nets._stacks import Batches, Settings, Stack
from lowchurn.nets._tasks import Numbers, Task
from lowchurn.nets._twins import Twins

# How fast the multiplier of `strategies.Constrained` climbs, `mu += STEP * (churn - limit)`: after one epoch that is
# 5 points above its limit, the base's decisions count as much as the labels.
STEP = 20.0
BYTES_AT_ONCE = 2**31  # of what logits need, while churn on the training rows is counted
# Epochs that are drawn at once, and shuffled positions of all of these, since many small draws keep a GPU waiting.
EPOCHS_AT_ONCE, DRAWN_AT_ONCE = 8, {"cuda": 2**24, "cpu": 2**20}


class ChurnLimit:
    """The limit on each task's churn, and the multiplier that pulls its targets toward the base's decisions."""

    def __init__(self, limit: torch.Tensor, pull: torch.Tensor, targets: torch.Tensor) -> None:
        self.limit, self.pull, self.targets = limit, pull, targets  # the targets without the pull
        self.multiplier = torch.zeros_like(limit)

    def pulled(self, churn: torch.Tensor) -> torch.Tensor:
        """The next epoch's targets, after each multiplier has moved by how far churn is from its limit."""
        self.multiplier = (self.multiplier + STEP * (churn - self.limit)).clamp(min=0)
        mu = self.multiplier.to(self.targets.dtype).view(-1, 1, 1)
        return (self.targets + mu * self.pull) / (1 + mu)

    def keep(self, index: torch.Tensor) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value[index])


class Draws:
    """The shuffles of each task, and where rows are mixed its mates and shares, drawn for several epochs at once."""

    def __init__(self, tasks: Sequence[Task], rows: torch.Tensor, settings: Settings) -> None:
        self.rows, self.settings = rows.shape[1], settings
        self.seeds = seeds_of(tasks, rows.device)
        self.mixing = _numbers([t.mixing for t in tasks], rows.device)
        self.first, self.drawn = 0, [rows[None, :, :0][:0]]  # (epochs, K, ...) from this epoch on; none so far

    def of(self, epoch: int) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """The order of each task's rows in an epoch (K, n), and its mates (K, n) and shares (K, steps) or None."""
        if not self.first <= epoch < self.first + len(self.drawn[0]):
            self.first, self.drawn = epoch, self._draw(epoch)
        order, *mixing = (value[epoch - self.first] for value in self.drawn)
        mate, mix = mixing or (None, None)
        return order, mate, mix

    def _draw(self, epoch: int) -> list[torch.Tensor]:
        models, n = len(self.seeds), self.rows
        count = max(1, min(EPOCHS_AT_ONCE, DRAWN_AT_ONCE[self.seeds.device.type] // (models * n)))
        epochs = torch.arange(epoch, epoch + count, device=self.seeds.device).repeat_interleave(models)
        seeds = self.seeds.repeat(count)
        drawn = [_random.shuffles(seeds, 0 * epochs if self.settings.one_order else epochs, n)]
        if self.mixing is not None:
            steps = math.ceil(n / self.settings.batch_size)
            drawn += [
                _random.shuffles(seeds, epochs, n, _random.MATE),
                _random.mixup_shares(seeds, self.mixing.repeat(count), epochs, steps).to(self.settings.dtype),
            ]
        return [value.view(count, models, -1) for value in drawn]

    def keep(self, tasks: torch.Tensor) -> None:
        """Let all tasks leave but these."""
        self.seeds = self.seeds[tasks]
        self.mixing = None if self.mixing is None else self.mixing[tasks]
        self.drawn = [value[:, tasks] for value in self.drawn]


class TrainingData:
    """Rows, targets and shuffles of the tasks of one stack; all tensors have one entry per task."""

    def __init__(self, tasks: Sequence[Task], pool: torch.Tensor, settings: Settings) -> None:
        self.pool, self.settings, self.twins = pool, settings, Twins.of(tasks)
        dtype = settings.dtype
        self.rows = self._stacked([t.rows for t in tasks], torch.int64)
        self.draws = Draws(tasks, self.rows, settings)
        self.targets = self._stacked([t.targets for t in tasks], dtype)
        if not bool(torch.isfinite(self.targets).all()):
            raise ValueError("train: targets must be finite, got NaN or infinite ones.")
        ones = np.ones(self.rows.shape[1])
        self.weights = self._stacked([ones if t.weights is None else t.weights for t in tasks], dtype)
        self.held_out = self._stacked([t.validation for t in tasks], torch.int64)
        self.labels = self._stacked([t.validation_targets for t in tasks], dtype)
        self.coupling = _numbers([t.coupling for t in tasks], pool.device)
        limit = _numbers([t.limit for t in tasks], pool.device)
        self.limit = None
        if limit is not None:
            self.limit = ChurnLimit(limit, self._stacked([t.pull for t in tasks], dtype), self.targets)

    def _stacked(self, values: Sequence[Numbers | None], kind: torch.dtype) -> torch.Tensor:
        """Stack what each task has; an array that many of them share travels to the device once."""
        device = self.pool.device
        unique = {id(value): value for value in values}
        tensors = [torch.as_tensor(value) for value in unique.values()]
        if len({t.device for t in tensors}) > 1:
            tensors = [t.to(device) for t in tensors]
        stacked = torch.stack(tensors).to(device, kind)
        if len(stacked) == len(values):
            return stacked
        position = {key: place for place, key in enumerate(unique)}
        return stacked[torch.tensor([position[id(value)] for value in values], device=device)]

    def batches(self, epoch: int) -> Batches:
        """What all models train on in one epoch; twins see the same."""
        order, *mixing = self.draws.of(epoch)
        mate, mix = (None if value is None else self.twins.spread(value) for value in mixing)
        coupling = None if self.coupling is None else self.coupling.to(self.settings.dtype)
        rows, targets, weights, order = map(self.twins.spread, (self.rows, self.targets, self.weights, order))
        return Batches(self.pool, rows, targets, weights, order, mate, mix, coupling)

    def validation_loss(self, stack: Stack) -> torch.Tensor:
        """The mean loss of each task's model on its held-out rows."""
        logits = stack.first_logits(self.twins.each, self.pool, self.held_out)
        return target_loss(logits, self.labels, self.settings.squared).double().mean(dim=1)

    def steer(self, stack: Stack) -> None:
        """Where churn is limited, aim the next epoch by how far churn on the training rows is from its limit."""
        if self.limit is None:
            return
        size = max(self.settings.batch_size, BYTES_AT_ONCE // (stack.models * stack.row_bytes(self.pool)))
        changed = torch.zeros_like(self.limit.limit)
        for part, pull in zip(self.rows.split(size, 1), self.limit.pull.split(size, 1), strict=True):
            logits = stack.first_logits(self.twins.each, self.pool, part.contiguous())
            changed += (logits.argmax(dim=-1) != pull.argmax(dim=-1)).sum(dim=1)
        self.targets = self.limit.pulled(changed / self.rows.shape[1])

    def keep(self, tasks: torch.Tensor) -> None:
        """Let all tasks leave but these."""
        for name in ("rows", "targets", "weights", "held_out", "labels", "coupling"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value[tasks])
        self.draws.keep(tasks)
        if self.limit is not None:
            self.limit.keep(tasks)


def _numbers(values: Sequence[float | None], device: torch.device) -> torch.Tensor | None:
    return None if values[0] is None else torch.tensor(values, device=device, dtype=torch.float64)


def seeds_of(tasks: Sequence[Task], device: torch.device) -> torch.Tensor:
    """The tasks' seeds as 64 bits; larger ones wrap around."""
    return torch.tensor([(int(task.seed) + 2**63) % 2**64 - 2**63 for task in tasks], device=device)
