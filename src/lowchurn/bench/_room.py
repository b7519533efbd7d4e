"""What blocks need and what memory there is, so that a run that cannot fit is refused before it is killed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lowchurn.bench._loading import Data
from lowchurn.bench._protocol import Protocol, count_weights
from lowchurn.bench._trials import COPIES
from lowchurn.strategies import Strategy

BLOCK_WEIGHTS = 2.5e7  # of one block on a CPU: about half a minute of work, which a kill may cost
TRAINING = 14  # copies of the weights that the template and one model in training take at most
KEPT = 2  # copies of each model's weights: the result, and what is measured
BLOCKS_PER_SLOT = 2  # at least, so that a short block fills the time in which a long one ends
DRAWN = 2**25  # random numbers at a time that fresh weights are drawn from, in float64 with a few copies

AT_ONCE = 8  # blocks on a GPU, of fully connected networks; others fill it, and their many launches would compete

Missing = dict[int, list[Strategy]]  # strategies that each trial still needs


@dataclass(frozen=True)
class Machine:
    """What a block finds where it is run.

    ``device`` is ``cpu`` or a CUDA device; ``free`` are bytes that are free on it, None where the system does not tell.
    Where an executor decides how many blocks share a machine, that is ``at_once``, and ``slots`` are those of all its
    machines together.
    """

    device: str
    free: float | None
    at_once: int | None = None
    slots: int | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def gpu_memory(self) -> float:
        """Bytes of a GPU that may be used."""
        assert self.free is not None
        return 0.9 * self.free


def machine_here(device: str) -> Machine:
    """This machine; a device that is not there is refused before any model fails on it."""
    import torch

    from lowchurn.nets._memory import free_memory
    from lowchurn.nets._train import find_device

    place = find_device(device)
    if place.type == "cuda":  # what an earlier run in this process has kept
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return Machine(str(place), free_memory(place))


class Room:
    """The memory of a machine, and how many trials and blocks fit into it.

    Training adapts to the memory that is left: some models at a time, at least one. What it cannot do without is the
    weights of all models of a trial, one model in training, the template, and the numbers that fresh weights are drawn
    from. On a GPU too much is an error rather than the end of the process, so only what is sure to fail is refused.
    """

    def __init__(self, machine: Machine, dtype: str, models: int, jobs: int | None = None) -> None:
        import torch

        self.machine, self.on_gpu = machine, machine.on_gpu
        self.models = models  # of a trial, besides its base
        self.jobs = jobs
        self._item: int = getattr(torch, dtype).itemsize
        # Stacks of more models take a part of a CPU's memory.
        self._free = machine.free if machine.free is None or self.on_gpu else 0.8 * machine.free

    def _parts(self, data: Data, protocol: Protocol) -> tuple[float, float]:
        """Bytes that a block takes whatever its size, and for each of its trials."""
        weights = count_weights(protocol.network, data)
        if self.on_gpu:
            return 6.0 * self._item * weights, float(self._item * weights * (self.models + 1))
        drawn = max(min((self.models + 1) * weights, DRAWN), weights)
        fixed = TRAINING * self._item * weights + 4 * 8 * drawn + 2 * max(data.X.nbytes, self._item * data.X.size)
        return float(fixed), float(KEPT * self._item * weights * (self.models + 1))

    def check(self, missing: Iterable[tuple[Data, Protocol, Missing]]) -> int:
        """The number of blocks that can be run at a time; an error where one trial of a block is too large."""
        from lowchurn.nets._memory import in_words

        missing = list(missing)
        default = AT_ONCE if self.on_gpu and all(_is_small(one[1]) for one in missing) else 1
        at_once = self.machine.at_once or self.jobs or default
        for data, protocol, some in missing:
            if not some or self._free is None:
                continue
            need = sum(self._parts(data, protocol))
            if need > self._free:
                raise ValueError(
                    f"bench: {protocol.network} on {data.name} has {count_weights(protocol.network, data):,} weights, "
                    f"and a trial trains {self.models + 1} such models, which needs about {in_words(need)} of memory; "
                    f"{in_words(self._free)} can be used on {self.machine.device}. Ask for fewer strategies at a time "
                    "or for a smaller network."
                )
            if not self.on_gpu:
                at_once = min(at_once, max(1, int(self._free // need)))
        return at_once

    def bytes(self, data: Data, protocol: Protocol, trials: int) -> int:
        """What a block of so many trials takes of a CPU's memory at most; 0 on a GPU."""
        fixed, per_trial = self._parts(data, protocol)
        return 0 if self.on_gpu else int(fixed + trials * per_trial)

    def trials(
        self, data: Data, protocol: Protocol, at_once: int, wanted: int | None = None, left: int | None = None
    ) -> int:
        """The number of trials in a block: as many as wanted, or about half a minute of work on a CPU, if they fit.

        Of all trials that are ``left`` there are blocks for every slot of a cluster.
        """
        if wanted is None and left is not None and self.machine.slots is not None:
            return min(self.trials(data, protocol, at_once), max(1, -(-left // (BLOCKS_PER_SLOT * self.machine.slots))))
        each = self.models * count_weights(protocol.network, data)
        if self.on_gpu:
            per_row = data.classes * 8 + 40  # targets, orders, numbers
            rows = self.models * (protocol.initial + protocol.batch) * per_row
            return wanted or max(1, int(0.8 * self.machine.gpu_memory / at_once // (4 * COPIES * each + rows)))
        size = wanted or max(1, int(BLOCK_WEIGHTS // each))
        if self._free is None:
            return size
        fixed, per_trial = self._parts(data, protocol)
        return min(size, max(1, int((self._free / at_once - fixed) // per_trial)))


def _is_small(protocol: Protocol) -> bool:
    """Whether the network is trained by few launches, so that several blocks at a time do not keep a core busy."""
    return protocol.network.startswith("fcn-")
