"""What a stack of models is: K networks of one architecture whose weights lie side by side.

A stack trains all its models for an epoch, returns their logits, and lets finished models leave. How it does that is
up to its subclasses; the results must be those of a loop over single models.
"""

from __future__ import annotations

import abc
import copy
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F

from lowchurn.nets._losses import batch_gradient
from lowchurn.nets._streams import recording_stream

State = dict[str, torch.Tensor]  # of one model, or of K models with a leading axis
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-7  # Keras' Adam
ALL_MODELS = slice(None)


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
    one_order: bool = False


@dataclass
class Batches:
    """What one epoch of a stack trains on. All tensors lie on the stack's device."""

    pool: torch.Tensor  # (N, ...), rows that all models share
    rows: torch.Tensor  # (K, n), each model's training rows in the pool
    targets: torch.Tensor  # (K, n, m), of those rows
    weights: torch.Tensor  # (K, n), of those rows
    order: torch.Tensor  # (K, n), each model's shuffled positions 0 .. n - 1
    mate: torch.Tensor | None = None  # (K, n), positions that are mixed in
    mix: torch.Tensor | None = None  # (K, steps), the share of the first in each batch
    coupling: torch.Tensor | None = None  # (K / 2,): models 2p and 2p + 1 are twins with this share between them

    def step(self, step: int, size: int) -> Batches:
        """One step of the epoch; the last one may be smaller."""
        part = slice(step * size, (step + 1) * size)
        if self.mate is None or self.mix is None:
            return replace(self, order=self.order[:, part])
        return replace(self, order=self.order[:, part], mate=self.mate[:, part], mix=self.mix[:, step : step + 1])

    def batch(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Inputs (K, B, ...), targets (K, B, m) and weights (K, B) of what is one step."""
        x = self.pool[self.rows.gather(1, self.order)]
        if self.mate is not None:
            x = self._mixed(x, self.pool[self.rows.gather(1, self.mate)])
        return x, *self.labels()

    def labels(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Targets (K, B, m) and weights (K, B) of what is one step."""
        targets, weights = self._take(self.order)
        if self.mate is None:
            return targets, weights
        other_targets, other_weights = self._take(self.mate)
        return self._mixed(targets, other_targets), self._mixed(weights, other_weights)

    def _mixed(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        assert self.mix is not None
        share = self.mix.view(-1, *[1] * (one.ndim - 1))
        if not one.is_floating_point():
            # Token ids become whole again, as in the paper's code, where the table's lookup rounds them down.
            return (other + share * (one - other)).to(one.dtype)
        share = share.to(one.dtype)
        return share * one + (1 - share) * other

    def copy(self) -> Batches:
        """The same in memory of its own; the pool is shared."""
        own = {name: value.clone() for name, value in vars(self).items() if name != "pool" and value is not None}
        return replace(self, **own)

    def take(self, other: Batches, names: Sequence[str]) -> None:
        """Overwrite some of the tensors, those that are there."""
        for name in names:
            if (own := getattr(self, name)) is not None:
                own.copy_(getattr(other, name))

    def _take(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = positions.unsqueeze(-1).expand(-1, -1, self.targets.shape[-1])
        return self.targets.gather(1, wide), self.weights.gather(1, positions)


class Stack(abc.ABC):
    """K models of one architecture: their weights as Adam updates them, name -> (K, ...), and their buffers."""

    def __init__(self, weights: State, settings: Settings, buffers: State | None = None) -> None:
        self.weights, self.buffers, self.settings = weights, buffers or {}, settings
        self.steps = 0  # of Adam; all models of a stack start together
        self.beside: int | None = None  # of a part, the models of the whole: its rows are cut as there

    @cached_property
    def moments(self) -> tuple[State, State]:
        """Adam's two moments of every weight; made by the first step, so a stack that only predicts has none."""
        first, second = ({name: torch.zeros_like(w) for name, w in self.weights.items()} for _ in range(2))
        return first, second

    @property
    def params(self) -> State:
        """The parameters under the names and in the shapes of the module, name -> (K, ...)."""
        return self.weights

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

    def first_logits(self, each: int, pool: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Logits (K / each, B, m) of every ``each``-th model on its rows (K / each, B) of a pool."""
        if each == 1:
            return self.logits(pool, rows)
        part = copy.copy(self)
        part.weights, part.buffers, part.beside = dict(self.weights), dict(self.buffers), self.models
        part.__dict__.pop("moments", None)
        part.keep(torch.arange(0, self.models, each, device=pool.device))
        return part.logits(pool, rows)

    def row_bytes(self, pool: torch.Tensor) -> int:
        """A generous estimate of what one row of a pool takes in one model while its logits are computed."""
        weights = sum(p[0].numel() for p in self.params.values())
        return 16 * max(1, pool[:1].numel() + weights // 64)

    def keep(self, index: torch.Tensor) -> None:
        """Let all models leave but these."""
        for tensors in (self.weights, self.buffers, *self._made_moments()):
            for name in tensors:
                tensors[name] = tensors[name][index]

    def _made_moments(self) -> tuple[State, ...]:
        return self.moments if "moments" in self.__dict__ else ()

    def rate(self) -> float:
        """Adam's step size with its bias corrections, for the step that was just counted."""
        return self.settings.learning_rate * math.sqrt(1 - BETA2**self.steps) / (1 - BETA1**self.steps)

    def state(self) -> State:
        """Parameters and buffers, name -> (K, ...)."""
        return {**self.params, **self.buffers}


class RecordableStack(Stack):
    """A stack that trains step by step; on a GPU, a step may be recorded as a CUDA graph."""

    recordable = False  # whether a step on a GPU reads nothing from the host but what `step_size` has on the device
    records = True  # whether such steps are recorded
    recorded: RecordedStep | None = None
    outdated: RecordedStep | None = None  # of more models; the next one takes its memory

    def train_epoch(self, batches: Batches) -> None:
        size, rows = self.settings.batch_size, batches.order.shape[1]
        if self.recorded is not None:
            self.recorded.inputs.take(batches, ("rows", "targets", "weights", "coupling"))
        for number in range(math.ceil(rows / size)):
            part = batches.step(number, size)
            self.steps += 1
            if self.recordable:
                self.step_size.fill_(self.rate())
            if self.recorded is not None and part.order.shape[1] == size:
                self.recorded.replay(part)
                continue
            self.train_step(part)
            if self.recordable and self.records and self.recorded is None and part.order.shape[1] == size:
                self.recorded = RecordedStep(self, part, self.outdated)  # after a step that has made all that it needs
                self.outdated = None

    @abc.abstractmethod
    def train_step(self, batches: Batches) -> None:
        """One Adam step of every model on what is one step of its epoch."""

    @cached_property
    def step_size(self) -> torch.Tensor:
        """Adam's step size on the device."""
        return torch.zeros((), device=self.settings.device)

    def keep(self, index: torch.Tensor) -> None:
        self.forget_step()
        super().keep(index)

    def forget_step(self) -> None:
        """Record a step anew, since the weights will lie elsewhere."""
        self.recorded, self.outdated = None, self.recorded or self.outdated


class StepStack(RecordableStack):
    """A stack of networks that take inputs (K, B, ...): forward to logits, the loss's gradient, backward, Adam."""

    def train_step(self, batches: Batches) -> None:
        self.step(*batches.batch(), batches.coupling)

    @abc.abstractmethod
    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (K, B, m) of inputs (K, B, ...), in evaluation mode."""

    def logits(self, pool: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        if rows is None:
            rows = torch.arange(pool.shape[0], device=pool.device).expand(self.models, -1)
        count, (size, even) = rows.shape[1], self.rows_at_once
        parts = (F.pad(rows, (0, -count % size)) if even else rows).split(size, dim=1)
        return torch.cat([self.outputs(pool[part]) for part in parts], dim=1)[:, :count]

    @property
    def rows_at_once(self) -> tuple[int, bool]:
        """The rows of each model whose logits are computed together, and whether the last are filled up to as many."""
        return max(self.settings.batch_size, 256 // (self.beside or self.models)), False

    @abc.abstractmethod
    def step(
        self, x: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, coupling: torch.Tensor | None
    ) -> None:
        """One Adam step of every model on its own batch."""

    def slope(
        self, logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, coupling: torch.Tensor | None
    ) -> torch.Tensor:
        """The loss's gradient at the logits."""
        return batch_gradient(logits, targets, weights, self.settings.squared, coupling)

    def adam(self, gradients: State, models: slice = ALL_MODELS) -> None:
        """One step of Keras' Adam, in place."""
        rate = self.rate()
        first, second = self.moments
        for name, gradient in gradients.items():
            m, v = first[name][models], second[name][models]
            m.lerp_(gradient, 1 - BETA1)
            v.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
            self.weights[name][models].addcdiv_(m, v.sqrt().add_(EPSILON), value=-rate)


class RecordedStep:
    """One step of a stack as a CUDA graph: launched as one, where its kernels one by one would keep the CPU busy.

    The kernels are the same, and so are the results. The inputs of a step are copied to where the graph reads them.
    A graph keeps the memory of its step, which the next graph of the same stack (``earlier``) takes over.
    """

    recording = threading.Lock()  # one at a time, since the memory of all graphs comes from one allocator

    def __init__(self, stack: RecordableStack, batches: Batches, earlier: RecordedStep | None = None) -> None:
        self.inputs = batches.copy()
        self.graph = torch.cuda.CUDAGraph()
        # No stream waits for another: while a step is recorded, nothing is computed.
        with self.recording, torch.cuda.stream(recording_stream()):
            free, total = torch.cuda.mem_get_info()
            if 4 * free < total:  # while a step is recorded, nothing can be given back, and this would be too late
                torch.cuda.empty_cache()
            pool = None if earlier is None else earlier.graph.pool()
            self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                stack.train_step(self.inputs)
            finally:
                self.graph.capture_end()

    def replay(self, batches: Batches) -> None:
        """Train on the batch of one step."""
        self.inputs.take(batches, ("order", "mate", "mix"))
        self.graph.replay()


class FlatParameters:
    """Parameters of K models in one flat buffer, name by name: Adam runs over all at once, products over each."""

    def __init__(self, params: State) -> None:
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

    def views(self, flat: torch.Tensor) -> State:
        """Name -> (K, ...) view of a buffer laid out like this one, or of the part of it that is there."""
        ends = {name: self.offsets[name] + math.prod(shape) for name, shape in self.shapes.items()}
        return {
            name: flat[self.offsets[name] : ends[name]].view(shape)
            for name, shape in self.shapes.items()
            if ends[name] <= flat.numel()
        }


class FlatStack(StepStack):
    """A stack whose weights, moments and gradients lie in flat buffers, each under the name "flat"."""

    def __init__(self, params: State, settings: Settings, buffers: State | None = None) -> None:
        self._lay_out(FlatParameters(params))
        super().__init__({"flat": self.layout.flat}, settings, buffers)

    def _lay_out(self, layout: FlatParameters) -> None:
        self.layout, self.views = layout, layout.views(layout.flat)
        self.__dict__.pop("gradient", None)
        self.__dict__.pop("slopes", None)

    @property
    def params(self) -> State:
        return self.views

    @cached_property
    def gradient(self) -> torch.Tensor:
        """Room for the gradient of all weights."""
        return torch.zeros_like(self.layout.flat)

    @cached_property
    def slopes(self) -> State:
        """Views of the gradient, name -> (K, ...)."""
        return self.layout.views(self.gradient)

    def keep(self, index: torch.Tensor) -> None:
        self.forget_step()
        views = self.layout.views
        kept = []
        for tensors in (self.weights, *self._made_moments()):
            kept.append(FlatParameters({name: view[index] for name, view in views(tensors["flat"]).items()}))
            tensors["flat"] = kept[-1].flat
        for name, value in self.buffers.items():
            self.buffers[name] = value[index]
        self._lay_out(kept[0])
