"""Several stacks on one GPU at the same time, launched by one thread: an epoch of each in turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

_own = threading.local()  # streams of each thread, used again and again, since a stream keeps its memory


def in_turn(works: Sequence[Iterator[object]], device: torch.device) -> None:
    """Take a step of each of these in turn until all have ended.

    A step launches work and returns before it is done. Where there are several, each has a stream of its own on a GPU,
    so that one whose kernels are small shares it with the others. Threads would do the same, but wait for each other
    whenever they launch something.
    """
    if device.type != "cuda" or len(works) < 2:
        _take_turns([(nullcontext(), work) for work in works])
        return
    now, streams = torch.cuda.current_stream(device), _streams(len(works), device)
    for stream in streams:
        stream.wait_stream(now)
    try:
        _take_turns([(torch.cuda.stream(stream), work) for stream, work in zip(streams, works, strict=True)])
    finally:
        for stream in streams:
            now.wait_stream(stream)


def _take_turns(left: list[tuple[AbstractContextManager[object], Iterator[object]]]) -> None:
    while left:
        for place, work in list(left):
            with place:
                if next(work, left) is left:
                    left.remove((place, work))


def _streams(count: int, device: torch.device) -> list[torch.cuda.Stream]:
    known = _own.__dict__.setdefault("streams", {}).setdefault(device, [])
    known += [torch.cuda.Stream(device) for _ in range(count - len(known))]
    return list(known[:count])
