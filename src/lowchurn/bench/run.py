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
from lowchurn.bench.loading import Data, load
from lowchurn.bench.protocol import Protocol, check_size, draw, make_network
from lowchurn.bench.store import FINISHED, Row, Store, key_of
from lowchurn.bench.trials import COPIES, needed_by, row_of, run_trials
from lowchurn.checks import check_choice
from lowchurn.strategies import Strategy

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
        return sum(len(needed_by(tuple(settings))) for settings in self.wanted.values())


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
        Where the data lie; see :func:`lowchurn.bench.loading.load`.
    device, dtype, threads
        As in :func:`lowchurn.nets.train`.
    jobs : int, optional
        Blocks at a time on a GPU, by default 4 for small networks, so that the last models of one do not leave it idle.
    block : int, optional
        Trials in a block; by default as many as memory allows, on a CPU about half a minute of work.
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
    for name, value in (("trials", trials), ("jobs", jobs or 1), ("block", block or 1)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"bench: {name} must be a whole number of at least 1, got {value!r}.")
    on_gpu = _on_gpu(device)
    if on_gpu:
        _give_back_memory()  # what an earlier run in this process has kept
    begun, version = time.perf_counter(), code_version()
    loaded: dict[tuple[str, bool], Data] = {}
    for name in datasets:
        raw = load(name, data)
        for protocol in protocols:
            check_size(raw, protocol)
            loaded[name, protocol.scale] = raw.scaled() if protocol.scale else raw
    with store.writing():
        store.check_same_data({name: one.fingerprint for (name, _), one in loaded.items()})
        done = store.done(retry_failed=retry_failed)
        counts = {"there": 0, "new": 0, "failed": 0}
        blocks: list[Block] = []
        for name in datasets:
            for protocol in protocols:
                one = loaded[name, protocol.scale]
                missing = _missing(one, protocol, settings, trials, done)
                counts["there"] += len(settings) * trials - sum(map(len, missing.values()))
                size = block or _block_size(one, protocol, len(needed_by(tuple(settings))), on_gpu, jobs)
                blocks += _cut(one, protocol, missing, size)
        blocks.sort(key=lambda b: -_cost(b))  # the longest first: no long one is left alone at the end
        workers = min(jobs or (4 if on_gpu else 1), max(1, len(blocks)))
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


def _missing(
    data: Data, protocol: Protocol, settings: Sequence[Strategy], trials: int, done: set[tuple]
) -> dict[int, list[Strategy]]:
    """Settings that each trial still needs."""
    place = {"dataset": data.name, **protocol.key}
    found: dict[int, list[Strategy]] = {}
    for trial in range(trials):
        some = [
            s
            for s in settings
            if key_of(place | {"strategy": s.name, "setting": s.setting, "trial": trial}) not in done
        ]
        if some:
            found[trial] = some
    return found


def _cut(data: Data, protocol: Protocol, missing: dict[int, list[Strategy]], size: int) -> Iterator[Block]:
    trials = sorted(missing)
    for first in range(0, len(trials), size):
        yield Block(data, protocol, {trial: missing[trial] for trial in trials[first : first + size]})


def _weights(data: Data, protocol: Protocol) -> int:
    return sum(p.numel() for p in make_network(protocol.network, data).parameters())


def _cost(block: Block) -> float:
    return block.models * _weights(block.data, block.protocol)


def _block_size(data: Data, protocol: Protocol, models: int, on_gpu: bool, jobs: int | None) -> int:
    """Trials that fit into memory together, or make about half a minute of work on a CPU.

    Averages of trained models are made some at a time when training has given its memory back.
    """
    each = models * _weights(data, protocol)
    if not on_gpu:
        return max(1, int(BLOCK_WEIGHTS // each))
    rows = models * (protocol.initial + protocol.batch) * (data.classes * 8 + 40)  # targets, orders, row numbers
    return max(1, int(0.8 * _gpu_memory() / (jobs or 4) // (4 * COPIES * each + rows)))


def _on_gpu(device: str) -> bool:
    """Whether it is one; a device that is not there is refused before any model fails on it."""
    from lowchurn.nets.train import _find_device

    return _find_device(device).type == "cuda"


def _give_back_memory() -> None:
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _gpu_memory() -> float:
    import torch

    return 0.9 * torch.cuda.mem_get_info()[0]


def code_version() -> str:
    """The package's version and, in a repository (or from ``LOWCHURN_COMMIT``), its commit."""
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


def copy_rows(source: Store, target: Store) -> int:
    """Add the rows of one store that another does not hold yet; says how many."""
    return target.append(source.rows())


def summary(store: Store) -> list[dict[str, Any]]:
    """For each data set, network and protocol: settings, trials, finished and failed rows."""
    groups: dict[tuple, list[Row]] = {}
    names = ("dataset", "network", "sizes", "scale", "patience", "loss", "epochs_limit", "run_seed", "start")
    for row in store.rows():
        sizes = f"{row['initial']}/{row['validation']}/{row['batch']}"
        line = row | {"sizes": sizes, "start": row["start"] if "start=" in row["setting"] else "any"}
        groups.setdefault(tuple(line[name] for name in names), []).append(row)
    return [
        dict(zip(names, group, strict=True))
        | {
            "settings": len({(r["strategy"], r["setting"]) for r in rows}),
            "trials": len({r["trial"] for r in rows}),
            "finished": sum(r["status"] == FINISHED for r in rows),
            "failed": sum(r["status"] != FINISHED for r in rows),
            "reason": next((r["status"] for r in rows if r["status"] != FINISHED), ""),
        }
        for group, rows in sorted(groups.items())
    ]


__all__ = ["Block", "code_version", "copy_rows", "run", "summary"]
