"""Blocks of work: trials that are trained together, how they are trained, and what runs them (an executor)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lowchurn.bench._loading import Data
from lowchurn.bench._protocol import Protocol as Experiment
from lowchurn.bench._protocol import count_weights, draw
from lowchurn.bench._room import Machine, Missing
from lowchurn.bench._segments import Row
from lowchurn.bench._trials import row_of, run_trials
from lowchurn.strategies import plan

NAMED = 3  # strategies in the name of a block


@dataclass(frozen=True)
class How:
    """How a block is trained; as in :func:`lowchurn.nets.train`."""

    device: str = "auto"
    dtype: str = "float32"
    memory_limit: float | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Block:
    """Trials of one data set that are trained together; the unit of work and of loss."""

    data: Data
    protocol: Experiment
    wanted: Missing
    how: How = How()
    memory: int = 0  # bytes of a machine that it takes at most, where that is known

    @property
    def models(self) -> int:
        """The number of trainings; strategies may share some."""
        return sum(len(plan(strategies).trainings) for strategies in self.wanted.values())

    @property
    def cost(self) -> float:
        """How long it takes beside others: the weights that are trained, and the rows of an epoch."""
        rows = self.protocol.initial + self.protocol.batch
        return self.models * count_weights(self.protocol.network, self.data) * rows

    @property
    def name(self) -> str:
        """Data set, network, initial rows, strategies and trials in words."""
        names = list(dict.fromkeys(s.name for strategies in self.wanted.values() for s in strategies))
        words = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        first, last = min(self.wanted), max(self.wanted)
        trials = f"trial {first}" if first == last else f"trials {first} to {last}"
        return f"{self.data.name} {self.protocol.network} {self.protocol.initial}: {words}, {trials}"

    def rows(self) -> list[Row]:
        """Train and measure; what goes wrong is written into the rows."""
        import torch

        try:
            return run_trials(self.data, self.protocol, self.wanted, **vars(self.how))
        except (RuntimeError, MemoryError, ValueError, ArithmeticError) as error:
            if isinstance(error, torch.cuda.OutOfMemoryError):
                torch.cuda.empty_cache()
            elif self.how.device.startswith("cuda"):
                _check_gpu()
            return self.failed(f"{type(error).__name__}: {error}")

    def failed(self, reason: str) -> list[Row]:
        """The rows of this block, all of which failed for one reason."""
        data, protocol, status = self.data, self.protocol, " ".join(f"failed: {reason}".split())[:500]
        nothing = {"seconds": None, "block_seconds": None, "block_models": self.models, "device": ""}
        seeds = {trial: draw(data, protocol, trial).seed for trial in self.wanted}
        wanted = [(trial, one) for trial, some in self.wanted.items() for one in some]
        rows = [row_of(data, protocol, trial, one, seeds[trial], status) for trial, one in wanted]
        return [row | nothing | {"dtype": self.how.dtype} for row in rows]


def _check_gpu() -> None:
    """Raise where the GPU has ended all work of this process: every later block would fail for the same reason."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise RuntimeError(
            f"bench: the GPU ended all work of this process: {reason}. Finished rows are kept: give the same command "
            "again."
        ) from error


class Batch(NamedTuple):
    """Blocks that may be run in any order, and how many of them at a time on one machine."""

    blocks: list[Block]
    at_once: int


class Progress(NamedTuple):
    """How many blocks are done, run and wait, on how many machines."""

    done: int
    running: int
    waiting: int
    nodes: int


Show = Callable[[Progress], None]


class Executor(Protocol):
    """Runs blocks: on this machine (``bench._local``) or on a cluster (``bench._cluster``)."""

    def machine(self, device: str) -> Machine:
        """What a block finds where it is run; an error where the device is not there."""

    def run(self, batches: Iterable[Batch], show: Show) -> Iterator[tuple[Block, list[Row]]]:
        """The rows of each block as soon as it is done, in any order."""
