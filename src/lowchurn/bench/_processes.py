"""Blocks in several processes that share this machine: what one of them waits for, another one computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import joblib

from lowchurn.bench._blocks import Batch, Block, Progress, Show
from lowchurn.bench._room import Machine, machine_here
from lowchurn.bench._segments import Row

CACHED = 1.05  # bytes that torch may keep of a GPU, of those that a block may use; what is above it is given back


class Processes:
    """Runs all blocks of all batches, the longest first, each in one of some processes.

    A process keeps its kernels and its memory for the next block. Data sets are shared by files in memory.

    Parameters
    ----------
    count : int
        Processes; a GPU's memory is divided among them.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def machine(self, device: str) -> Machine:
        """This machine, for so many blocks at a time."""
        return replace(machine_here(device), at_once=self.count, slots=self.count)

    def run(self, batches: Iterable[Batch], show: Show) -> Iterator[tuple[Block, list[Row]]]:
        """The rows of each block as soon as it is done."""
        every = list(batches)
        blocks = sorted((one for batch in every for one in batch.blocks), key=lambda one: -one.cost)
        if not blocks:
            return
        workers = min(len(blocks), *(batch.at_once for batch in every))  # fewer where a CPU's memory is short
        threads = max(1, joblib.cpu_count() // workers)
        pool = joblib.Parallel(workers, backend="loky", return_as="generator_unordered", batch_size=1, mmap_mode="c")
        left = len(blocks)
        show(Progress(0, workers, left - workers, 1))
        try:
            for k, rows in pool(joblib.delayed(_work)(k, one, threads) for k, one in enumerate(blocks)):
                yield blocks[k], rows
                left -= 1
                show(Progress(len(blocks) - left, min(workers, left), max(0, left - workers), 1))
        except BrokenProcessPool:
            raise OSError(
                f"bench: one of {workers} processes was ended, perhaps since memory ran out. What was finished is in "
                "the store; run the same command again, with fewer jobs."
            ) from None


def _work(k: int, one: Block, threads: int) -> tuple[int, list[Row]]:
    """In a process: the number of a block, and its rows."""
    import torch

    how = replace(one.how, threads=one.how.threads or threads)
    if how.device.startswith("cuda") and how.memory_limit is not None:
        device = torch.device(how.device)
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, CACHED * how.memory_limit / whole), device)
    return k, replace(one, how=how).rows()
