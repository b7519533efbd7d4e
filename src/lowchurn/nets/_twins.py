"""Where the models of each task lie in a stack: alone, or as coupled twins side by side, of which the first counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lowchurn.nets import _random
from lowchurn.nets._stacks import State
from lowchurn.nets._tasks import Task


@dataclass(frozen=True)
class Twins:
    """The layout of a stack whose tasks have ``each`` models: task p has the models from ``each * p`` on."""

    each: int

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> Twins:
        return cls(1 if tasks[0].coupling is None else 2)

    def spread(self, value: torch.Tensor) -> torch.Tensor:
        """A value per task as one per model."""
        return value if self.each == 1 else value.repeat_interleave(self.each, dim=0)

    def first_state(self, state: State) -> State:
        """The weights of the first model of each task."""
        return {name: value[:: self.each] for name, value in state.items()}

    def models(self, tasks: torch.Tensor) -> torch.Tensor:
        """The places of all models of these tasks."""
        return (self.each * tasks.unsqueeze(1) + torch.arange(self.each, device=tasks.device)).flatten()

    def seeds(self, seeds: torch.Tensor) -> torch.Tensor:
        """The seeds of the starts of all models; a second twin has one of its own."""
        return seeds if self.each == 1 else torch.stack([seeds, _random.twin_seeds(seeds)], 1).flatten()
