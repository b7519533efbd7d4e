"""Streams of a GPU: several stacks at the same time, launched by one thread, and one stream for recording alone.

torch hands out 32 streams of a GPU, one after the other, and then the same again. What is launched on a stream while it
is recorded becomes a part of the recording, whoever launches it: so the stream for recording is never handed out here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

_own = threading.local()  # streams of each thread, used again and again, since a stream keeps its memory
_recording: dict[int, torch.cuda.Stream] = {}  # by the number of the GPU
_drawing = threading.Lock()


def recording_stream() -> torch.cuda.Stream:
    """The stream of the current GPU on which steps are recorded: always the same, so that recordings share memory."""
    device = torch.cuda.current_device()
    with _drawing:
        if device not in _recording:
            _recording[device] = torch.cuda.Stream()
        return _recording[device]


def new_stream() -> torch.cuda.Stream:
    """A stream of the current GPU to launch work on: not the one for recording."""
    reserved, stream = recording_stream(), torch.cuda.Stream()
    return torch.cuda.Stream() if stream.cuda_stream == reserved.cuda_stream else stream


def in_turn(works: Sequence[Iterator[object]], device: torch.device) -> None:
    """Take a step of each of these in turn until all have ended.

    A step launches work and returns before it is done. Where there are several, each has a stream of its own on a GPU,
    so that one whose kernels are small shares it with the others. Threads would do the same, but wait for each other
    whenever they launch something.
    """
    if device.type != "cuda" or len(works) < 2:
        _take_turns([(nullcontext(), work) for work in works])
        return
    with torch.cuda.device(device):
        now, streams = torch.cuda.current_stream(), _streams(len(works), device)
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
    known += [new_stream() for _ in range(count - len(known))]
    return list(known[:count])
