"""Blocks on this machine: one after the other, or several at a time on one GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

from lowchurn.bench._blocks import Batch, Block, Progress, Show
from lowchurn.bench._room import Machine, machine_here
from lowchurn.bench._segments import Row


class Local:
    """Runs the blocks of one batch before the next batch is asked for."""

    def machine(self, device: str) -> Machine:
        """This machine."""
        return machine_here(device)

    def run(self, batches: Iterable[Batch], show: Show) -> Iterator[tuple[Block, list[Row]]]:
        """The rows of each block as soon as it is done."""
        for blocks, at_once in batches:
            left = len(blocks)
            show(Progress(0, min(at_once, left), max(0, left - at_once), 1))
            for found in _in_parallel(blocks, at_once):
                yield found
                left -= 1
                show(Progress(len(blocks) - left, min(at_once, left), max(0, left - at_once), 1))


def _in_parallel(blocks: list[Block], at_once: int) -> Iterator[tuple[Block, list[Row]]]:
    """Each worker on a stream of its own: kernels of several blocks share the GPU."""
    import torch

    from lowchurn.nets._streams import new_stream

    workers = min(at_once, len(blocks))
    if workers < 2:
        yield from ((one, one.rows()) for one in blocks)
        return

    def take_stream() -> None:  # one for all blocks of a worker, since a stream keeps its memory
        if torch.cuda.is_available():
            torch.cuda.set_stream(new_stream())

    with ThreadPoolExecutor(workers, initializer=take_stream) as pool:
        futures = {pool.submit(one.rows): one for one in blocks}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
