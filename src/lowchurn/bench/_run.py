"""Run the protocol over data sets, networks and trials, and go on where an earlier run stopped."""

from __future__ import annotations

import datetime
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from lowchurn import __version__
from lowchurn._checks import check_choice
from lowchurn.bench._blocks import Batch, Block, Executor, How, Show
from lowchurn.bench._loading import Data, load
from lowchurn.bench._local import Local
from lowchurn.bench._protocol import Protocol, check_counts, check_size, count_weights
from lowchurn.bench._retraining import slices
from lowchurn.bench._room import Missing, Room
from lowchurn.bench._segments import FINISHED, Row, key_of, setting_of
from lowchurn.bench._store import Store
from lowchurn.bench._tables import VARIANT
from lowchurn.strategies import Strategy, plan

# Data sets, protocols, settings and trials, as :func:`run` takes them.
Asked = tuple[Sequence[str | Data], Sequence[Protocol], Sequence[Strategy], int]


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
    executor: Executor | None = None,
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
    executor : optional
        What runs the blocks; by default this machine.
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
    wanted = Run(store, executor or Local(), data, How(device, dtype, None, threads), jobs, block, retry_failed)
    return wanted.do([(datasets, protocols, settings, trials)], tell)


@dataclass
class Run:
    """Everything that is asked for, made into blocks, run by an executor, and written to a store."""

    store: Store
    executor: Executor
    data: str | Path | None = None
    how: How = field(default_factory=How)
    jobs: int | None = None
    block: int | None = None
    retry_failed: bool = False
    counts: dict[str, int] = field(default_factory=lambda: {"there": 0, "new": 0, "failed": 0})
    planned: set[tuple] = field(default_factory=set)  # keys of rows in blocks

    def do(
        self, asked: Iterable[Asked], tell: Callable[[str], None], show: Show = lambda progress: None
    ) -> dict[str, int]:
        """Run it all and return how many rows were there, are new, and failed; as in :func:`run`."""
        check_choice("bench", "dtype", self.how.dtype, ("float32", "float64"))
        check_counts("bench", {"jobs": self.jobs, "block": self.block, "threads": self.how.threads})
        begun, version = time.perf_counter(), code_version()
        with ExitStack() as lock:
            for one, rows in self.executor.run((self._batch(lock, *each) for each in asked), show):
                seconds, created = time.perf_counter() - begun, datetime.datetime.now(datetime.UTC)
                new = {"version": version, "created": created.isoformat(timespec="seconds")}
                tell(f"{seconds:8.1f} s  {self._write(one, [row | new for row in rows])}")
        return self.counts

    def _batch(
        self,
        lock: ExitStack,
        datasets: Sequence[str | Data],
        protocols: Sequence[Protocol],
        settings: Sequence[Strategy],
        trials: int,
    ) -> Batch:
        """The blocks of what the store does not contain; all is checked before the store is touched."""
        check_counts("bench", {"trials": trials})
        settings = list(dict.fromkeys(settings))
        machine = self.executor.machine(self.how.device)
        room = Room(machine, self.how.dtype, len(plan(settings).trainings), self.jobs)
        places = _loaded(datasets, list(dict.fromkeys(protocols)), self.data)
        at_once = room.check(self._still_missing(places, settings, trials))
        lock.enter_context(self.store.writing())
        self.store.check_same_data((one.name, one.fingerprint) for one, _ in places)
        found = list(self._still_missing(places, settings, trials))
        left = sum(len(missing) for *_, missing in found)
        blocks: list[Block] = []
        for one, protocol, missing in found:
            self.counts["there"] += len(settings) * trials - sum(map(len, missing.values()))
            self.planned.update(key for *_, key in _keys(one.name, protocol, settings, trials))
            for part in slices(sorted(missing), room.trials(one, protocol, at_once, self.block, left)):
                need = room.bytes(one, protocol, len(part))
                blocks.append(Block(one, protocol, {trial: missing[trial] for trial in part}, memory=need))
        blocks.sort(key=lambda one: -one.cost)  # the longest first: no long one is left alone at the end
        workers = machine.at_once or min(at_once, max(1, len(blocks)))
        limit = machine.gpu_memory / workers if machine.on_gpu else None
        how = replace(self.how, device=machine.device, memory_limit=limit)
        blocks = [replace(one, how=how) for one in blocks]
        return Batch(blocks, at_once)

    def _still_missing(
        self, places: list[tuple[Data, Protocol]], settings: Sequence[Strategy], trials: int
    ) -> Iterator[tuple[Data, Protocol, Missing]]:
        """What is neither in the store nor in a block yet, for each data set and protocol."""
        done = self.store.done(retry_failed=self.retry_failed) | self.planned
        for data, protocol in places:
            missing: Missing = {}
            for strategy, trial, key in _keys(data.name, protocol, settings, trials):
                if key not in done:
                    missing.setdefault(trial, []).append(strategy)
            yield data, protocol, missing

    def _write(self, one: Block, rows: list[Row]) -> str:
        """Write the rows of a block, and return it in words."""
        left_out = [note for row in rows if (note := row.pop("left_out"))]
        added = self.store.append(rows)
        failures = [row["status"] for row in rows if row["status"] != FINISHED]
        self.counts["new"] += added
        self.counts["failed"] += len(failures)
        words = [f"{len(one.wanted)} trials, {one.models} models, {added} rows"]
        words += [f"{len(failures)} {failures[0]}"] if failures else []
        words += [f"{len(left_out)} without members that failed, such as {left_out[0]}"] if left_out else []
        place = f"{one.data.name} {one.protocol.network} {one.protocol.initial}"
        return f"{place}: {', '.join(words)}"


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
    names = ("dataset", "network", "sizes", *VARIANT, "start")
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
