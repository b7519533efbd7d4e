"""Streams without a GPU: torch's streams are replaced by ones that are handed out in a circle, as torch does."""

from itertools import cycle
from types import SimpleNamespace

import torch

from lowchurn.nets import _streams


def test_the_stream_for_recording_is_never_handed_out(monkeypatch):
    handles = cycle(range(32))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(cuda_stream=next(handles)))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(_streams, "_recording", {})
    recording = _streams.recording_stream()
    given = {_streams.new_stream().cuda_stream for _ in range(200)}
    assert given == set(range(32)) - {recording.cuda_stream}
    assert _streams.recording_stream() is recording
