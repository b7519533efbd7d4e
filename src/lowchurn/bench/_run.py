"""Run the protocol over data sets, networks and trials, and go on where an earlier run stopped."""

from __future__ import annotations

import datetime
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowchurn import __version__
from lowchurn._checks import check_choice
from lowchurn.bench._loading import Data, load
from lowchurn.bench._protocol import Protocol, check_counts, check_size, count_weights, draw
from lowchurn.bench._segments import FINISHED, Row, key_of, setting_of
from lowchurn.bench._store import Store
from lowchurn.bench._trials import COPIES, row_of, run_trials
from lowchurn.strategies import Strategy, plan

BLOCK_WEIGHTS = 2.5e7  # of one block on a CPU: about half a minute of work, which a kill may cost


@dataclass(frozen=True)
class Block:
    """Trials of one data set that are trained together; the unit of work and of loss."""

    data: Data
    protocol: Protocol
    wanted: dict[int, list[Strategy]]

    @property
    def models(self) -> int:
        """How many are trained; settings may share some."""
        return sum(len(plan(settings).trainings) for settings in self.wanted.values())


def run(
    store: Store,
    datasets: Sequence[str],
    protocols: Sequence[Protocol],
    settings: Sequence[Strategy],
    trials: int = 100,
    *,
    data: str | Path | None = None,
    device: str = "auto",
    dtype: str = "float32",
    jobs: int | None = None,
    block: int | None = None,
    threads: int | None = None,
    retry_failed: bool = False,
    tell: Callable[[str], None] = print,
) -> dict[str, int]:
    """Train and measure what the store does not hold yet.

    Parameters
    ----------
    store : Store
        Rows are added block by block; a second call with the same arguments goes on where the first stopped.
    datasets : list of str
        Names of data sets.
    protocols : list of Protocol
        Networks and sizes; each data set is run through each.
    settings : list of Strategy
        What to retrain with.
    trials : int
        Trials 0 to ``trials - 1``.
    data : path, optional
        Where the data lie; see :func:`lowchurn.bench._loading.load`.
    device, dtype, threads
        As in :func:`lowchurn.nets.train`.
    jobs : int, optional
        Blocks at a time on a GPU, by default 4 for small networks, so that the last models of one do not leave it idle.
    block : int, optional
        Trials in a block; by default as many as memory allows, on a CPU about half a minute of work. Fewer where
        memory does not suffice.
    retry_failed : bool
        Try failed rows again.
    tell : function
        Takes a line about each block.

    Returns
    -------
    dict
        How many rows were ``there``, are ``new``, and ``failed`` among the new ones.
    """
    check_choice("bench", "dtype", dtype, ("float32", "float64"))
    check_counts("bench", {"trials": trials, "jobs": jobs, "block": block, "threads": threads})
    datasets, protocols = list(dict.fromkeys(datasets)), list(dict.fromkeys(protocols))
    settings = list(dict.fromkeys(settings))
    on_gpu = _on_gpu(device)
    if on_gpu:
        _give_back_memory()  # what an earlier run in this process has kept
    begun, version = time.perf_counter(), code_version()
    loaded: dict[tuple[str, bool], Data] = {}
    for name in datasets:
        raw = load(name, data)
        for protocol in protocols:
            check_size(raw, protocol)
            count_weights(protocol.network, raw)  # a network that this data set does not suit is refused
            loaded[name, protocol.scale] = raw.scaled() if protocol.scale else raw
    places = [(loaded[name, protocol.scale], protocol) for name in datasets for protocol in protocols]
    room = _Room(device, dtype, len(plan(settings).trainings))
    at_once = room.check(_still_missing(store, places, settings, trials, retry_failed), jobs)
    with store.writing():
        store.check_same_data({name: one.fingerprint for (name, _), one in loaded.items()})
        counts = {"there": 0, "new": 0, "failed": 0}
        blocks: list[Block] = []
        for one, protocol, missing in _still_missing(store, places, settings, trials, retry_failed):
            counts["there"] += len(settings) * trials - sum(map(len, missing.values()))
            size = block or _block_size(one, protocol, room.models, on_gpu, jobs)
            blocks += _cut(one, protocol, missing, min(size, room.trials(one, protocol, at_once)))
        blocks.sort(key=lambda b: -_cost(b))  # the longest first: no long one is left alone at the end
        workers = min(at_once, max(1, len(blocks)))
        limit = _gpu_memory() / workers if on_gpu else None

        def work(one: Block) -> None:
            rows, seconds = _run_block(one, device, dtype, limit, threads), time.perf_counter() - begun
            created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            short = [note for row in rows if (note := row.pop("left_out"))]
            added = store.append(row | {"version": version, "created": created} for row in rows)
            reasons = [row["status"] for row in rows if row["status"] != FINISHED]
            failed = len(reasons)
            counts["new"] += added
            counts["failed"] += failed
            tell(
                f"{seconds:8.1f} s  {one.data.name} {one.protocol.network} {one.protocol.initial}: "
                f"{len(one.wanted)} trials, {one.models} models, {added} rows"
                + (f", {failed} {reasons[0]}" if failed else "")
                + (f", {len(short)} without members that failed, such as {short[0]}" if short else "")
            )

        if workers == 1:
            for next_one in blocks:
                work(next_one)
        else:
            _in_parallel(work, blocks, workers)
    return counts


def _in_parallel(work: Callable[[Block], None], blocks: list[Block], workers: int) -> None:
    """Each worker on a stream of its own: kernels of several blocks share the GPU."""
    import torch

    own = threading.local()  # a stream keeps its memory, so a worker must not take another one for each block

    def on_own_stream(one: Block) -> None:
        if not torch.cuda.is_available():
            work(one)
            return
        if not hasattr(own, "stream"):
            own.stream = torch.cuda.Stream()
        with torch.cuda.stream(own.stream):
            work(one)

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(on_own_stream, one) for one in blocks]
        try:
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in finished:
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def _run_block(block: Block, device: str, dtype: str, limit: float | None, threads: int | None) -> list[Row]:
    """The rows of a block; what goes wrong in it is written into them."""
    import torch

    try:
        return run_trials(
            block.data,
            block.protocol,
            block.wanted,
            device=device,
            dtype=dtype,
            memory_limit=limit,
            threads=threads,
        )
    except (RuntimeError, MemoryError, ValueError, ArithmeticError) as error:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            torch.cuda.empty_cache()
        reason = " ".join(f"failed: {type(error).__name__}: {error}".split())[:500]
        return [failed_row(block, trial, s, reason, dtype) for trial, some in block.wanted.items() for s in some]


def failed_row(block: Block, trial: int, strategy: Strategy, reason: str, dtype: str) -> Row:
    """The row of a model that could not be trained."""
    row = row_of(block.data, block.protocol, trial, strategy, draw(block.data, block.protocol, trial).seed, reason)
    nothing = {"seconds": None, "block_seconds": None, "block_models": block.models, "device": "", "dtype": dtype}
    return row | nothing


Missing = dict[int, list[Strategy]]  # settings that each trial still needs


def _still_missing(
    store: Store, places: list[tuple[Data, Protocol]], settings: Sequence[Strategy], trials: int, retry_failed: bool
) -> Iterator[tuple[Data, Protocol, Missing]]:
    """What the store does not contain yet, for each data set and protocol."""
    done = store.done(retry_failed=retry_failed)
    for data, protocol in places:
        wanted = _keys(data.name, protocol, settings, trials)
        missing: Missing = {}
        for (strategy, trial), key in wanted:
            if key not in done:
                missing.setdefault(trial, []).append(strategy)
        yield data, protocol, missing


def _keys(
    dataset: str, protocol: Protocol, settings: Sequence[Strategy], trials: int
) -> Iterator[tuple[tuple[Strategy, int], tuple]]:
    """The keys of all rows that are asked for."""
    place = {"dataset": dataset, **protocol.key}
    for trial in range(trials):
        for s in settings:
            yield (s, trial), key_of(place | {"strategy": s.name, "parameters": s.parameters, "trial": trial})


@dataclass(frozen=True)
class Outcome:
    """How many of the rows that were asked for are finished and failed, and what happened to the first that failed."""

    finished: int
    failed: int
    reason: str


def outcome(
    store: Store, datasets: Sequence[str], protocols: Sequence[Protocol], settings: Sequence[Strategy], trials: int
) -> Outcome:
    """What the store contains of the rows that were asked for, whenever they were made."""
    states = {key_of(row): row["status"] for row in store.rows()}
    wanted = [key for name in datasets for p in protocols for _, key in _keys(name, p, settings, trials)]
    found = [states[key] for key in wanted if key in states]
    failed = [state for state in found if state != FINISHED]
    return Outcome(len(found) - len(failed), len(failed), failed[0] if failed else "")


def _cut(data: Data, protocol: Protocol, missing: dict[int, list[Strategy]], size: int) -> Iterator[Block]:
    trials = sorted(missing)
    for first in range(0, len(trials), size):
        yield Block(data, protocol, {trial: missing[trial] for trial in trials[first : first + size]})


def _cost(block: Block) -> float:
    return block.models * count_weights(block.protocol.network, block.data)


def _block_size(data: Data, protocol: Protocol, models: int, on_gpu: bool, jobs: int | None) -> int:
    """Trials that fit into memory together, or make about half a minute of work on a CPU.

    Averages of trained models are made some at a time when training has given its memory back.
    """
    each = models * count_weights(protocol.network, data)
    if not on_gpu:
        return max(1, int(BLOCK_WEIGHTS // each))
    rows = models * (protocol.initial + protocol.batch) * (data.classes * 8 + 40)  # targets, orders, row numbers
    return max(1, int(0.8 * _gpu_memory() / (jobs or 4) // (4 * COPIES * each + rows)))


class _Room:
    """What blocks need and what memory there is, so that a run that cannot fit is refused before it is killed.

    Training adapts to the memory that is left: some models at a time, at least one. What it cannot do without is the
    weights of all models of a trial, one model in training, the template, and the numbers that fresh weights are drawn
    from. On a GPU too much is an error rather than the end of the process, so only what is sure to fail is refused.
    """

    TRAINING = 14  # copies of the weights that the template and one model in training take at most
    KEPT = 2  # copies of each model's weights: the result, and what is measured
    DRAWN = 2**25  # random numbers at a time, see `nets.starts`, in float64 with a few copies

    def __init__(self, device: str, dtype: str, models: int) -> None:
        import torch

        from lowchurn.nets._memory import free_memory
        from lowchurn.nets._train import _find_device

        self.place = _find_device(device)
        self.item, self.models = getattr(torch, dtype).itemsize, models
        free = free_memory(self.place)
        self.on_gpu = self.place.type == "cuda"
        self.free = free if free is None or self.on_gpu else 0.8 * free  # stacks of more models take a part

    def _parts(self, data: Data, protocol: Protocol) -> tuple[float, float]:
        """Bytes that a block takes whatever its size, and for each of its trials."""
        weights = count_weights(protocol.network, data)
        if self.on_gpu:
            return 6.0 * self.item * weights, float(self.item * weights * (self.models + 1))
        drawn = max(min((self.models + 1) * weights, self.DRAWN), weights)
        fixed = self.TRAINING * self.item * weights + 4 * 8 * drawn + 2 * data.X.nbytes
        return float(fixed), float(self.KEPT * self.item * weights * (self.models + 1))

    def check(self, missing: Iterator[tuple[Data, Protocol, Missing]], jobs: int | None) -> int:
        """Blocks that can be run at a time; an error where one trial of a block is too large."""
        from lowchurn.nets._memory import in_words

        at_once = jobs or (4 if self.on_gpu else 1)
        for data, protocol, some in missing:
            need = sum(self._parts(data, protocol))
            if not some or self.free is None:
                continue
            if need > self.free:
                raise ValueError(
                    f"bench: {protocol.network} on {data.name} has {count_weights(protocol.network, data):,} weights, "
                    f"and a trial trains {self.models + 1} such models, which needs about {in_words(need)} of memory; "
                    f"{in_words(self.free)} can be used on {self.place}. Ask for fewer strategies at a time or for a "
                    "smaller network."
                )
            if not self.on_gpu:
                at_once = min(at_once, max(1, int(self.free // need)))
        return at_once

    def trials(self, data: Data, protocol: Protocol, at_once: int) -> int:
        """Trials that may be in a block."""
        if self.free is None or self.on_gpu:
            return 2**31
        fixed, each = self._parts(data, protocol)
        return max(1, int((self.free / at_once - fixed) // each))


def _on_gpu(device: str) -> bool:
    """Whether it is one; a device that is not there is refused before any model fails on it."""
    from lowchurn.nets._train import _find_device

    return _find_device(device).type == "cuda"


def _give_back_memory() -> None:
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _gpu_memory() -> float:
    import torch

    return 0.9 * torch.cuda.mem_get_info()[0]


def code_version() -> str:
    """Return the package's version and, in a repository (or from ``LOWCHURN_COMMIT``), its commit."""
    commit = os.environ.get("LOWCHURN_COMMIT", "")
    if not commit:
        here = Path(__file__).parent
        git = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=10"]
        try:
            ours = subprocess.run([*git[:3], "ls-files", __file__], capture_output=True, text=True, check=False)
            if ours.stdout.strip():
                commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
        except OSError:
            pass  # no git here: the version must do
    return f"{__version__}+{commit}" if commit else __version__


def summary(store: Store) -> list[dict[str, Any]]:
    """For each data set, network and protocol: settings, trials, finished and failed rows."""
    groups: dict[tuple, list[Row]] = {}
    names = ("dataset", "network", "sizes", "scale", "patience", "loss", "epochs_limit", "run_seed", "start")
    for row in store.rows():
        sizes = f"{row['initial']}/{row['validation']}/{row['batch']}"
        line = row | {"sizes": sizes, "start": row["start"] if "start" in row["parameters"] else "any"}
        groups.setdefault(tuple(line[name] for name in names), []).append(row)
    return [
        dict(zip(names, group, strict=True))
        | {
            "settings": len({setting_of(r) for r in rows}),
            "trials": len({r["trial"] for r in rows}),
            "finished": sum(r["status"] == FINISHED for r in rows),
            "failed": sum(r["status"] != FINISHED for r in rows),
            "reason": next((r["status"] for r in rows if r["status"] != FINISHED), ""),
        }
        for group, rows in sorted(groups.items())
    ]
