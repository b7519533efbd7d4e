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
    """The shuffles of each task, and where rows are mixed its mates and shares, drawn for several epochs at once.

    Tasks of one seed have the same shuffles, as all settings of a trial do: each is drawn once.
    """

    def __init__(self, tasks: Sequence[Task], rows: torch.Tensor, settings: Settings) -> None:
        self.rows, self.settings = rows.shape[1], settings
        seeds, places = np.unique(seeds_of(tasks), return_inverse=True)
        self.seeds, self.places = (torch.from_numpy(value).to(rows.device) for value in (seeds, places))
        self.mixing = _numbers([t.mixing for t in tasks], rows.device)
        self.steps = math.ceil(self.rows / settings.batch_size)
        self.left = False  # whether tasks have left since the last draw
        self.first = 0  # what is drawn is of this epoch and those behind it
        self.drawn: list[torch.Tensor] = []
        self.shares = torch.empty(0, len(tasks), 0, device=rows.device)

    def of(self, epoch: int) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """The order of each task's rows in an epoch (K, n), and its mates (K, n) and shares (K, steps) or None."""
        now = epoch - self.first
        if not self.drawn or not 0 <= now < len(self.drawn[0]):
            self._draw(epoch)
            now = 0
        order, *mates = (value[now][self.places] for value in self.drawn)
        return (order, mates[0], self.shares[now]) if mates else (order, None, None)

    def _draw(self, first: int) -> None:
        """Shuffles (epochs, seeds, n) and shares (epochs, K, steps) from an epoch on."""
        if self.left:  # seeds that no task has any more
            used, self.places = torch.unique(self.places, return_inverse=True)
            self.seeds, self.left = self.seeds[used], False
        n, each, tasks, steps = self.rows, len(self.seeds), len(self.places), self.steps
        most = max(each * n, 0 if self.mixing is None else 6 * tasks * steps)  # shares take six numbers each
        count = max(1, min(EPOCHS_AT_ONCE, DRAWN_AT_ONCE[self.seeds.device.type] // most))
        numbers = torch.arange(first, first + count, device=self.seeds.device)
        epochs, seeds = numbers.repeat_interleave(each), self.seeds.repeat(count)
        drawn = [_random.shuffles(seeds, 0 * epochs if self.settings.one_order else epochs, n)]
        if self.mixing is not None:
            drawn += [_random.shuffles(seeds, epochs, n, _random.MATE)]
            of_tasks = self.seeds[self.places].repeat(count), self.mixing.repeat(count)
            shares = _random.mixup_shares(*of_tasks, numbers.repeat_interleave(tasks), steps)
            self.shares = shares.to(self.settings.dtype).view(count, tasks, steps)
        self.first, self.drawn = first, [value.view(count, each, n) for value in drawn]

    def keep(self, tasks: torch.Tensor) -> None:
        """Let all tasks leave but these."""
        self.places, self.left = self.places[tasks], True
        if self.mixing is not None:
            self.mixing, self.shares = self.mixing[tasks], self.shares[:, tasks]


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


def seeds_of(tasks: Sequence[Task]) -> np.ndarray:
    """The tasks' seeds as 64 bits; larger ones wrap around."""
    return np.array([(int(task.seed) + 2**63) % 2**64 - 2**63 for task in tasks], dtype=np.int64)
