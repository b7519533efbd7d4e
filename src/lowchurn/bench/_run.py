"""Run the protocol over data sets, networks and trials, and go on where an earlier run stopped."""

from __future__ import annotations

import datetime
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lowchurn import __version__
from lowchurn._checks import check_choice
from lowchurn.bench._loading import Data, load
from lowchurn.bench._protocol import Protocol, check_counts, check_size, count_weights, draw
from lowchurn.bench._retraining import slices
from lowchurn.bench._room import Missing, Room, gpu_memory
from lowchurn.bench._segments import FINISHED, Row, key_of, setting_of
from lowchurn.bench._store import Store
from lowchurn.bench._trials import row_of, run_trials
from lowchurn.strategies import Strategy, plan


@dataclass(frozen=True)
class Block:
    """Trials of one data set that are trained together; the unit of work and of loss."""

    data: Data
    protocol: Protocol
    wanted: Missing

    @property
    def models(self) -> int:
        """The number of trainings; strategies may share some."""
        return sum(len(plan(strategies).trainings) for strategies in self.wanted.values())

    @property
    def cost(self) -> float:
        """The number of weights that are trained."""
        return self.models * count_weights(self.protocol.network, self.data)


def run(
    store: Store,
    datasets: Sequence[str | Data],
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
    """Train and measure what the store does not contain yet.

    Parameters
    ----------
    store : Store
        Rows are added block by block; a second call with the same arguments goes on where the first stopped.
    datasets : list of str
        Names of data sets; or data sets that are read already.
    protocols : list of Protocol
        Networks and sizes; each data set is run through each.
    settings : list of Strategy
        What to retrain with.
    trials : int
        Trials 0 to ``trials - 1``.
    data : path, optional
        Where the data lie; see :func:`lowchurn.bench.load`.
    device, dtype, threads
        As in :func:`lowchurn.nets.train`.
    jobs : int, optional
        Blocks at a time on a GPU, by default 8 for fully connected networks, so that the last models of one do not
        leave it idle, and 1 for others.
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

    Examples
    --------
    >>> import tempfile
    >>> from lowchurn.bench import Protocol, Store, run
    >>> from lowchurn.strategies import ColdStart, WarmStart
    >>> small = Protocol(network="fcn-4", initial=40, validation=20, batch=40, epochs=2)
    >>> store = Store(tempfile.mkdtemp())
    >>> run(store, ["wine"], [small], [ColdStart(), WarmStart()], trials=1, device="cpu", tell=lambda line: None)
    {'there': 0, 'new': 2, 'failed': 0}
    """
    check_choice("bench", "dtype", dtype, ("float32", "float64"))
    check_counts("bench", {"trials": trials, "jobs": jobs, "block": block, "threads": threads})
    begun, version = time.perf_counter(), code_version()
    settings = list(dict.fromkeys(settings))
    room = Room(device, dtype, len(plan(settings).trainings), jobs)
    places = _loaded(datasets, list(dict.fromkeys(protocols)), data)
    at_once = room.check(_still_missing(store, places, settings, trials, retry_failed))
    with store.writing():
        store.check_same_data((one.name, one.fingerprint) for one, _ in places)
        counts = {"there": 0, "new": 0, "failed": 0}
        blocks: list[Block] = []
        for one, protocol, missing in _still_missing(store, places, settings, trials, retry_failed):
            counts["there"] += len(settings) * trials - sum(map(len, missing.values()))
            parts = slices(sorted(missing), room.trials(one, protocol, at_once, block))
            blocks += [Block(one, protocol, {trial: missing[trial] for trial in part}) for part in parts]
        blocks.sort(key=lambda one: -one.cost)  # the longest first: no long one is left alone at the end
        workers = min(at_once, max(1, len(blocks)))
        limit = gpu_memory() / workers if room.on_gpu else None

        def work(one: Block) -> None:
            rows, seconds = _run_block(one, device, dtype, limit, threads), time.perf_counter() - begun
            created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            left_out = [note for row in rows if (note := row.pop("left_out"))]
            added = store.append(row | {"version": version, "created": created} for row in rows)
            failures = [row["status"] for row in rows if row["status"] != FINISHED]
            counts["new"] += added
            counts["failed"] += len(failures)
            words = [f"{len(one.wanted)} trials, {one.models} models, {added} rows"]
            words += [f"{len(failures)} {failures[0]}"] if failures else []
            words += [f"{len(left_out)} without members that failed, such as {left_out[0]}"] if left_out else []
            place = f"{one.data.name} {one.protocol.network} {one.protocol.initial}"
            tell(f"{seconds:8.1f} s  {place}: {', '.join(words)}")

        _in_parallel(work, blocks, workers)
    return counts


def _loaded(
    datasets: Sequence[str | Data], protocols: list[Protocol], data: str | Path | None
) -> list[tuple[Data, Protocol]]:
    """Each data set with each protocol, scaled where the protocol asks for it; what does not fit is refused."""
    found = []
    for one in {_name_of(one): one for one in datasets}.values():
        raw = load(one, data) if isinstance(one, str) else one
        scaled = raw.scaled() if any(protocol.scale for protocol in protocols) else raw
        for protocol in protocols:
            check_size(raw, protocol)
            count_weights(protocol.network, raw)  # a network that this data set does not suit is refused
            found.append((scaled if protocol.scale else raw, protocol))
    return found


def _name_of(dataset: str | Data) -> str:
    return dataset if isinstance(dataset, str) else dataset.name


def _in_parallel(work: Callable[[Block], None], blocks: list[Block], workers: int) -> None:
    """Each worker on a stream of its own: kernels of several blocks share the GPU."""
    import torch

    if workers == 1:
        for one in blocks:
            work(one)
        return

    def take_stream() -> None:  # one for all blocks of a worker, since a stream keeps its memory
        if torch.cuda.is_available():
            torch.cuda.set_stream(torch.cuda.Stream())

    with ThreadPoolExecutor(workers, initializer=take_stream) as pool:
        try:
            for future in wait([pool.submit(work, one) for one in blocks], return_when=FIRST_EXCEPTION).done:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run_block(block: Block, device: str, dtype: str, limit: float | None, threads: int | None) -> list[Row]:
    """The rows of a block; what goes wrong in it is written into them."""
    import torch

    try:
        return run_trials(
            block.data, block.protocol, block.wanted, device=device, dtype=dtype, memory_limit=limit, threads=threads
        )
    except (RuntimeError, MemoryError, ValueError, ArithmeticError) as error:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            torch.cuda.empty_cache()
        reason = " ".join(f"failed: {type(error).__name__}: {error}".split())[:500]
        nothing = {"seconds": None, "block_seconds": None, "block_models": block.models, "device": "", "dtype": dtype}
        data, protocol = block.data, block.protocol
        seeds = {trial: draw(data, protocol, trial).seed for trial in block.wanted}
        wanted = [(trial, one) for trial, some in block.wanted.items() for one in some]
        return [row_of(data, protocol, trial, one, seeds[trial], reason) | nothing for trial, one in wanted]


def _still_missing(
    store: Store, places: list[tuple[Data, Protocol]], settings: Sequence[Strategy], trials: int, retry_failed: bool
) -> Iterator[tuple[Data, Protocol, Missing]]:
    """What the store does not contain yet, for each data set and protocol."""
    done = store.done(retry_failed=retry_failed)
    for data, protocol in places:
        missing: Missing = {}
        for strategy, trial, key in _keys(data.name, protocol, settings, trials):
            if key not in done:
                missing.setdefault(trial, []).append(strategy)
        yield data, protocol, missing


def _keys(
    dataset: str, protocol: Protocol, settings: Sequence[Strategy], trials: int
) -> Iterator[tuple[Strategy, int, tuple]]:
    """All rows that are asked for: strategy, trial and key."""
    place = {"dataset": dataset, **protocol.key}
    for trial in range(trials):
        for s in settings:
            yield s, trial, key_of(place | {"strategy": s.name, "parameters": s.parameters, "trial": trial})


@dataclass(frozen=True)
class Outcome:
    """How many of the rows that were asked for are finished and failed, and the reason of the first failure."""

    finished: int
    failed: int
    reason: str


# Data sets, protocols, settings and trials, as :func:`run` takes them.
Asked = tuple[Sequence[str | Data], Sequence[Protocol], Sequence[Strategy], int]


def outcome(store: Store, asked: Sequence[Asked]) -> Outcome:
    """What the store contains of the rows that were asked for, whenever they were made."""
    states = {key_of(row): row["status"] for row in store.rows()}
    wanted = {
        key
        for datasets, protocols, settings, trials in asked
        for one in datasets
        for protocol in protocols
        for *_, key in _keys(_name_of(one), protocol, settings, trials)
    }
    found = [state for key, state in states.items() if key in wanted]
    failed = [state for state in found if state != FINISHED]
    return Outcome(len(found) - len(failed), len(failed), failed[0] if failed else "")


def code_version() -> str:
    """Return the package's version and, in a repository (or from ``LOWCHURN_COMMIT``), its commit."""
    commit = os.environ.get("LOWCHURN_COMMIT", "")
    if not commit:
        git = ["git", "-C", str(Path(__file__).parent)]
        with suppress(OSError):  # without git, the version must do
            if subprocess.run([*git, "ls-files", __file__], capture_output=True, check=False).stdout.strip():
                describe = [*git, "describe", "--always", "--dirty", "--abbrev=10"]
                commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    return f"{__version__}+{commit}" if commit else __version__


def summary(store: Store) -> list[Row]:
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
