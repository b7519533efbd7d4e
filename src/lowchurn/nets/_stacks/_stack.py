"""What a stack of models is: K networks of one architecture whose weights lie side by side.

A stack trains all its models for an epoch, gives their logits, and lets finished models leave. How it does that is
the business of its subclasses; each must give what a loop over single models would.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import torch
from torch import nn

from lowchurn.nets._losses import batch_gradient

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-7  # Keras' Adam


@dataclass(frozen=True)
class Settings:
    """How a stack trains; the same for all its models."""

    device: torch.device
    dtype: torch.dtype
    batch_size: int = 32
    learning_rate: float = 1e-3
    squared: bool = False
    precision: str = "auto"
    threads: int = 1


@dataclass
class Batches:
    """What one epoch of a stack sees. All tensors lie on the stack's device.

    Attributes
    ----------
    pool : tensor (N, ...)
        Rows that all models share.
    rows : tensor (K, n)
        Each model's training rows in the pool.
    targets, weights : tensors (K, n, m), (K, n)
        Of those rows.
    order : tensor (K, n)
        Each model's shuffled positions 0 .. n - 1.
    mate, mix : tensors (K, n), (K, steps), or None
        Positions that are mixed in, and the share of the first in each batch.
    coupling : tensor (K / 2,), or None
        Models 2p and 2p + 1 are twins with this share of the loss between them.
    """

    pool: torch.Tensor
    rows: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    order: torch.Tensor
    mate: torch.Tensor | None = None
    mix: torch.Tensor | None = None
    coupling: torch.Tensor | None = None

    def batch(self, step: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Inputs (K, B, ...), targets (K, B, m) and weights (K, B) of one step; the last one may be partial."""
        part = slice(step * size, (step + 1) * size)
        x, targets, weights = self._take(self.order[:, part])
        if self.mate is None or self.mix is None:
            return x, targets, weights
        mixed = (x, targets, weights), self._take(self.mate[:, part])
        share = self.mix[:, step]

        def blend(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            s = share.view(-1, *[1] * (first.ndim - 1)).to(first.dtype)
            return s * first + (1 - s) * second

        x, targets, weights = (blend(a, b) for a, b in zip(*mixed, strict=True))
        return x, targets, weights

    def _take(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        wide = positions.unsqueeze(-1).expand(-1, -1, self.targets.shape[-1])
        x = self.pool[self.rows.gather(1, positions)]
        return x, self.targets.gather(1, wide), self.weights.gather(1, positions)


class Stack(abc.ABC):
    """K models of one architecture."""

    params: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]

    def __init__(self, module: nn.Module, settings: Settings) -> None:
        self.module, self.settings = module, settings
        self.steps = 0  # of Adam; all models of a stack start together
        self.buffers = {}

    @property
    def models(self) -> int:
        return next(iter(self.params.values())).shape[0]

    @abc.abstractmethod
    def train_epoch(self, batches: Batches) -> None:
        """Train every model for one epoch, in place."""

    @abc.abstractmethod
    def logits(self, pool: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Logits (K, B, m), in evaluation mode, of each model's rows (K, B) of a pool, or of all of it."""

    def decisions(self, pool: torch.Tensor) -> torch.Tensor:
        """The likeliest class (K, N) of every row of a pool for every model; bytes, if there are not too many."""
        logits = self.logits(pool)
        return logits.argmax(dim=-1).to(torch.uint8 if logits.shape[-1] <= 256 else torch.int64)

    def row_bytes(self, pool: torch.Tensor) -> int:
        """A generous estimate of what one row of a pool takes in one model while its logits are made."""
        weights = sum(p[0].numel() for p in self.params.values())
        return 16 * max(1, pool[:1].numel() + weights // 64)

    @abc.abstractmethod
    def keep(self, index: torch.Tensor) -> None:
        """Let all models leave but these."""

    def rate(self) -> float:
        """Adam's step size with its bias corrections, for the step that was just counted."""
        return self.settings.learning_rate * math.sqrt(1 - BETA2**self.steps) / (1 - BETA1**self.steps)

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers, name -> (K, ...)."""
        return {**self.params, **self.buffers}


class StepStack(Stack):
    """A stack that trains batch by batch: forward to logits, the loss's gradient there, backward, Adam."""

    def train_epoch(self, batches: Batches) -> None:
        size = self.settings.batch_size
        for step in range(math.ceil(batches.order.shape[1] / size)):
            x, targets, weights = batches.batch(step, size)
            self.steps += 1
            self.step(x, targets, weights, batches.coupling)

    @abc.abstractmethod
    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (K, B, m) of inputs (K, B, ...), in evaluation mode."""

    def logits(self, pool: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        if rows is None:
            rows = torch.arange(pool.shape[0], device=pool.device).expand(self.models, -1)
        size = max(self.settings.batch_size, 256 // max(1, self.models))
        parts = [self.outputs(pool[part]) for part in rows.split(size, dim=1)]
        return torch.cat(parts, dim=1)

    @abc.abstractmethod
    def step(
        self, x: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, coupling: torch.Tensor | None
    ) -> None:
        """One Adam step of every model on its own batch."""

    def slope(
        self,
        logits: torch.Tensor,
        targets: torch.Tensor,
        weights: torch.Tensor,
        coupling: torch.Tensor | None,
    ) -> torch.Tensor:
        return batch_gradient(logits, targets, weights, self.settings.squared, coupling)


def adam_(w: torch.Tensor, m: torch.Tensor, v: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
    """One step of Keras' Adam, in place."""
    m.lerp_(gradient, 1 - BETA1)
    v.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    w.addcdiv_(m, v.sqrt().add_(EPSILON), value=-rate)


class FlatParameters:
    """Parameters of K models in one flat buffer, name by name, with room for moments of the same layout.

    Each name's block is a contiguous (K, ...) tensor that batched products take as it is, and Adam runs over the
    whole buffer at once.
    """

    def __init__(self, params: dict[str, torch.Tensor]) -> None:
        first = next(iter(params.values()))
        self.shapes = {name: tuple(value.shape) for name, value in params.items()}
        self.offsets: dict[str, int] = {}
        total = 0
        for name, shape in self.shapes.items():
            self.offsets[name] = total
            total += -(-math.prod(shape) // 64) * 64  # aligned wide loads
        self.flat = torch.zeros(total, device=first.device, dtype=first.dtype)
        for name, view in self.views(self.flat).items():
            view.copy_(params[name])

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Name -> (K, ...) view of a buffer laid out like this one."""
        return {
            name: flat[self.offsets[name] : self.offsets[name] + math.prod(shape)].view(shape)
            for name, shape in self.shapes.items()
        }


class FlatStack(StepStack):
    """A stack whose weights and moments lie in flat buffers; subclasses lay views over them."""

    store: FlatParameters

    def __init__(self, module: nn.Module, params: dict[str, torch.Tensor], settings: Settings) -> None:
        super().__init__(module, settings)
        self.lay_out(params)
        self.first, self.second = torch.zeros_like(self.store.flat), torch.zeros_like(self.store.flat)

    @abc.abstractmethod
    def lay_out(self, params: dict[str, torch.Tensor]) -> None:
        """Put parameters (K, ...) into ``self.store``, and make the views and buffers that go with them."""

    def keep(self, index: torch.Tensor) -> None:
        kept = [
            {name: view[index] for name, view in self.store.views(flat).items()}
            for flat in (self.store.flat, self.first, self.second)
        ]
        self.lay_out(kept[0])
        self.first, self.second = (FlatParameters(k).flat for k in kept[1:])
