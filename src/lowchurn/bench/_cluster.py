"""Blocks on a Ray cluster: each is a task with resources of its own, and data sets lie in the object store once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from lowchurn import __version__
from lowchurn._checks import check_choice, check_number
from lowchurn._ray import RETRIES
from lowchurn._terminal import one_line
from lowchurn.bench._blocks import Batch, Block, How, Progress, Show
from lowchurn.bench._loading import Data
from lowchurn.bench._protocol import Protocol
from lowchurn.bench._room import Machine, Missing, machine_here
from lowchurn.bench._segments import Row

BEAT = 1.0  # seconds between two looks at the cluster
AHEAD = 8  # blocks that wait on the cluster, so that no worker waits for this process


def check_resources(gpus: float | None, cpus: float) -> None:
    """Refuse what no block can use: nothing, or more than one GPU."""
    check_number("bench", "cpus_per_block", cpus, 0, 2**20, open_low=True)
    check_number("bench", "gpus_per_block", 0.0 if gpus is None else gpus, 0, 1)


class OnRay:
    """Runs all blocks of all batches, the longest first, on whatever nodes the cluster has.

    Parameters
    ----------
    ray : module
        That is connected to a cluster; see :func:`lowchurn._ray.connected`.
    gpus, cpus : float
        Of one block; a part of a GPU is shared. By default one GPU where the cluster has any, and one CPU.
    jobs : int, optional
        Blocks at a time; by default as many as the cluster has resources for.
    """

    def __init__(self, ray: Any, gpus: float | None = None, cpus: float = 1.0, jobs: int | None = None) -> None:
        check_resources(gpus, cpus)
        self.ray, self.gpus, self.cpus, self.jobs = ray, gpus, cpus, jobs
        self._machine: Machine | None = None

    def machine(self, device: str) -> Machine:
        """What a block finds on the node with the least memory; every node is asked once."""
        if self._machine is None:
            check_choice("bench", "device on a cluster", device, ("auto", "cpu", "cuda"))
            if self.gpus is None:
                there = any(node["Resources"].get("GPU", 0) for node in self._alive())
                self.gpus = float(device == "cuda" or (device == "auto" and there))
            if (self.gpus > 0) != (device == "cuda") and device != "auto":
                raise ValueError(f"bench: gpus_per_block={self.gpus:g} does not go with device={device!r}.")
            self._machine = self._asked("cuda" if self.gpus else "cpu")
        return self._machine

    def _asked(self, device: str) -> Machine:
        """Ask every node that can run a block: the same versions, and how much memory is free."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        look = self.ray.remote(num_cpus=self.cpus, num_gpus=self.gpus)(_look)
        asked = [
            (node, look.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote(device))
            for node in self._able()
        ]
        nodes, free = [], []
        for node, reference in asked:
            try:
                machine, versions = self.ray.get(reference)
            except self.ray.exceptions.TaskUnschedulableError:  # the node is gone, which Ray had not noticed yet
                continue
            except self.ray.exceptions.RayError as error:
                reason = one_line(str(error).strip().splitlines()[-1])
                raise ValueError(
                    f"bench: node {node['NodeManagerHostname']} cannot run a block: {reason}. Every node needs "
                    'Python and `pip install "lowchurn[bench,ray]"` as this machine has.'
                ) from None
            _check_same(node["NodeManagerHostname"], versions)
            nodes.append(node)
            free.append(machine.free)
        if not nodes:
            raise ValueError(
                f"bench: no node of the cluster has {self.cpus:g} CPUs and {self.gpus:g} GPUs for a block; "
                f"there are {self._in_words()}. Change cpus_per_block or gpus_per_block, or add a node."
            )
        share = int(1 / self.gpus) if self.gpus else max(self._slots(node) for node in nodes)
        least = min((size for size in free if size is not None), default=None)
        return Machine(device, least, share, sum(self._slots(node) for node in nodes))

    def run(self, batches: Iterable[Batch], show: Show) -> Iterator[tuple[Block, list[Row]]]:
        """The rows of each block as soon as it is done; what a lost worker or node was at is done again."""
        waiting = deque(sorted((one for batch in batches for one in batch.blocks), key=lambda one: -one.cost))
        total, looked, nodes = len(waiting), -BEAT, list[Any]()
        store: dict[int, Any] = {}
        running: dict[Any, Block] = {}
        started: set[Any] = set()
        try:
            while waiting or running:
                if time.monotonic() - looked > BEAT:  # nodes come and go
                    looked, nodes = time.monotonic(), self._able()
                most = self.jobs or sum(map(self._slots, nodes)) + AHEAD
                memory = max((node["Resources"].get("memory", 0) for node in nodes), default=0)
                while waiting and len(running) < most:
                    one = waiting.popleft()
                    running[self._submitted(one, store, memory)] = one
                left = len(running) + len(waiting)
                show(Progress(total - left, len(started), left - len(started), len(nodes)))
                ready, _ = self.ray.wait(list(running), timeout=BEAT, fetch_local=False)
                for task in ready:
                    rows = self._received(task, running[task])
                    if rows is None:
                        started.add(task)
                        continue
                    started.discard(task)
                    yield running.pop(task), rows
            show(Progress(total, 0, 0, len(nodes)))
        finally:
            for task in running:  # of a process that stays connected
                with suppress(Exception):
                    self.ray.cancel(task)

    def _submitted(self, one: Block, store: dict[int, Any], memory: float) -> Any:
        """A task; the arrays of its data set are put into the object store where they are not there yet."""
        for key, make in ((id(one.data.X), lambda: one.data.X), (id(one.data), lambda: _without_rows(one.data))):
            if key not in store:
                store[key] = self.ray.put(make())
        task = self.ray.remote(
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            memory=int(min(one.memory, memory)) or None,
            max_retries=RETRIES,
            num_returns="streaming",
            name=one.name,
        )(_work)
        how = replace(one.how, threads=one.how.threads or max(1, int(self.cpus)))
        return task.remote(versions_here(), store[id(one.data.X)], store[id(one.data)], one.protocol, one.wanted, how)

    def _received(self, task: Any, one: Block) -> list[Row] | None:
        """The rows of a block, or None where it only tells that it was started."""
        try:
            found = self.ray.get(next(task))
        except self.ray.exceptions.RayTaskError as error:  # a bug, as it would be here
            raise getattr(error, "cause", None) or error from None
        except self.ray.exceptions.RayError as error:
            return one.failed(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
        return None if isinstance(found, str) else list(found)

    def _alive(self) -> list[Any]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def _able(self) -> list[Any]:
        """The nodes that can run a block."""
        return [node for node in self._alive() if self._slots(node)]

    def _slots(self, node: Any) -> int:
        """How many blocks a node can run at a time."""
        has, assigned = node["Resources"], (("CPU", self.cpus), ("GPU", self.gpus or 0.0))
        return min(int(has.get(name, 0) / size + 1e-9) for name, size in assigned if size)

    def _in_words(self) -> str:
        words = (
            f"{node['Resources'].get('CPU', 0):g} CPUs and {node['Resources'].get('GPU', 0):g} GPUs"
            for node in self._alive()
        )
        return "nodes with " + "; ".join(dict.fromkeys(words))


def _without_rows(data: Data) -> Data:
    return replace(data, X=np.empty(0))


def versions_here() -> dict[str, str]:
    """What the rows of a block depend on besides its device."""
    import torch

    return {"lowchurn": __version__, "torch": torch.__version__.partition("+")[0], "numpy": np.__version__}


def _check_same(node: str, versions: dict[str, str]) -> None:
    for library, here in versions_here().items():
        if versions[library] != here:
            raise ValueError(
                f"bench: node {node} has {library} {versions[library]}, but the command was given with {here}. "
                "Install the same version everywhere."
            )


def _look(device: str) -> tuple[Machine, dict[str, str]]:
    """On a node: what a block finds there."""
    return machine_here(device), versions_here()


def _work(
    versions: dict[str, str], X: np.ndarray, data: Data, protocol: Protocol, wanted: Missing, how: How
) -> Iterator[str | list[Row]]:
    """On a node: the name of the node, and then the rows of a block."""
    import socket

    _check_same(socket.gethostname(), versions)  # a node may have come after the others were asked
    yield socket.gethostname()
    yield Block(replace(data, X=X), protocol, wanted, how).rows()
