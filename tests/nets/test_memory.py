"""How much memory there is, and that what does not fit is refused before it is tried."""

import os
import sys

import numpy as np
import pytest
import torch

from lowchurn.bench._loading import load
from lowchurn.bench._protocol import Protocol, settings_of
from lowchurn.bench._room import Room, machine_here
from lowchurn.bench._run import run
from lowchurn.bench._store import Store
from lowchurn.nets import Task, _memory, train
from lowchurn.nets._memory import free_memory, in_words
from lowchurn.nets.networks import fcn
from lowchurn.strategies import ColdStart, WarmStart, plan

CPU = torch.device("cpu")
GIB = 2**30


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def system(tmp_path, monkeypatch):
    """An empty /proc and /sys/fs/cgroup."""
    monkeypatch.setattr(_memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(_memory, "CGROUPS", tmp_path / "cgroup")
    return tmp_path


def test_bytes_in_words():
    assert [in_words(3 * GIB), in_words(5e6)] == ["3.0 GiB", "4.8 MiB"]


def test_the_machine_is_asked(system, monkeypatch):
    write(system / "proc" / "meminfo", "MemTotal:  9 kB\nMemAvailable:    2048 kB\n")
    assert free_memory(CPU) == 2 * 2**20
    (system / "proc" / "meminfo").unlink()
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10}  # as on macOS

    def sysconf(name):
        if name not in pages:
            raise ValueError("unrecognized configuration name")
        return pages[name]

    monkeypatch.setattr(os, "sysconf", sysconf, raising=False)
    assert free_memory(CPU) == 40960
    monkeypatch.delattr(os, "sysconf")
    assert free_memory(CPU) is None
    monkeypatch.setattr(sys, "platform", "win32")
    assert free_memory(CPU) is None  # there is no such library here, and that is no error


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used", "stat"),
    [
        ("0::/a/b\n", "a", "memory.max", "memory.current", "inactive_file 100\n"),
        (
            "4:cpu,memory:/a\n",
            "memory/a",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file 100\n",
        ),
        ("0::/of/the/host\n", "", "memory.max", "memory.current", "inactive_file 100\n"),
    ],
)
def test_the_limit_of_a_container_counts(system, line, folder, limit, used, stat):
    write(system / "proc" / "meminfo", "MemAvailable: 999999 kB\n")
    write(system / "proc" / "self" / "cgroup", line)
    group = system / "cgroup" / folder
    write(group / limit, "5000\n")
    write(group / used, "1100\n")
    write(group / "memory.stat", f"anon 7\n{stat}")
    assert free_memory(CPU) == 4000
    write(group / limit, "max\n")
    assert free_memory(CPU) == 999999 * 1024


def tasks(count):
    targets = np.eye(2)[np.arange(20) % 2]
    return [Task(np.arange(20), targets, np.arange(20), targets, seed=i) for i in range(count)]


def test_models_that_do_not_fit_are_refused_by_name_and_number(monkeypatch):
    X = np.zeros((20, 3), np.float32)
    monkeypatch.setattr(sys.modules["lowchurn.nets._train"], "free_memory", lambda device: 3e6)
    network = fcn(1000, inputs=3, classes=2)
    with pytest.raises(
        ValueError, match=r"train: 500 models of 6,002 weights need about 1\d\.\d MiB .*2.9 MiB is free on cpu"
    ):
        train(network, X, tasks(500), device="cpu", epochs=1)
    assert train(network, X, tasks(2), device="cpu", epochs=1).status == ["finished"] * 2
    monkeypatch.setattr(sys.modules["lowchurn.nets._train"], "free_memory", lambda device: None)
    assert train(network, X, tasks(2), device="cpu", epochs=1).status == ["finished"] * 2


def test_threads_must_be_a_number_of_threads():
    with pytest.raises(ValueError, match="train: threads must be a whole number of at least 1, got 0"):
        train(fcn(2, inputs=3, classes=2), np.zeros((20, 3), np.float32), tasks(1), threads=0)


@pytest.mark.parametrize(("network", "fits"), [("fcn-1000", True), ("fcn-100000", True), ("fcn-10000000", False)])
def test_the_bench_judges_networks_on_24_gib(monkeypatch, network, fits):
    monkeypatch.setattr(_memory, "free_memory", lambda device: 24.0 * GIB)
    settings = settings_of(["paper"])
    room = Room(machine_here("cpu"), "float32", len(plan(settings).trainings))
    place = (load("wine"), Protocol(network=network, initial=40, validation=20, batch=30), {0: settings})
    if fits:
        assert room.check([place]) == 1
        return
    with pytest.raises(ValueError, match=r"fcn-10000000 on wine has 170,000,003 weights.* GiB of memory; 19.2 GiB can"):
        room.check([place])
    done = (*place[:2], {})
    assert room.check([done]) == 1  # nothing is left to do


def test_blocks_and_jobs_are_lowered_before_anything_is_refused(monkeypatch, tmp_path):
    small = Protocol(network="fcn-1000", initial=40, validation=20, batch=30, epochs=2)
    lines, rows = {}, {}
    for name, free in (("plenty", 8.0 * GIB), ("scarce", 5.2e6)):
        monkeypatch.setattr(_memory, "free_memory", lambda device, free=free: free)
        lines[name] = []
        store = Store(tmp_path / name)
        counts = run(
            store, ["wine"], [small], [ColdStart(), WarmStart()], 4, device="cpu", block=4, tell=lines[name].append
        )
        assert counts == {"there": 0, "new": 8, "failed": 0}
        rows[name] = sorted(
            tuple(r[k] for k in ("strategy", "trial", "accuracy", "churn", "epochs")) for r in store.rows()
        )
    assert rows["plenty"] == rows["scarce"]
    assert len(lines["plenty"]) == 1
    assert len(lines["scarce"]) > 1
    monkeypatch.setattr(_memory, "free_memory", lambda device: 8.0 * GIB)
    large = Protocol(network="fcn-1000000", initial=40, validation=20, batch=30)
    room = Room(machine_here("cpu"), "float32", 2, jobs=8)
    assert room.check([(load("wine"), large, {0: [ColdStart()]})]) < 8
    monkeypatch.setattr(_memory, "free_memory", lambda device: 1e6)
    with pytest.raises(ValueError, match="Ask for fewer strategies at a time or for a smaller network"):
        run(Store(tmp_path / "none"), ["wine"], [small], [ColdStart()], 1, device="cpu", tell=lambda line: None)
    assert not (tmp_path / "none").exists()
