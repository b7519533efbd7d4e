"""What the paper's experiments take on 1, 8 and 64 GPUs, by list scheduling over measured block times.

    python benchmarks/scale.py extract STORE_OR_TAR ... --add            # to benchmarks/blocks_h200.csv
    python benchmarks/scale.py plan --trials 100 --gpus 1 8 64

`extract` writes the blocks that stores contain: what was trained in each and how long it took. `plan` cuts every plan
of `lowchurn.bench._plans` into the blocks that `lowchurn bench run PLAN --cluster ray` would make for so many GPUs,
gives each the time of measured ones, and lets free GPUs take them in the order in which the command hands them out.
docs/scale.md says what is assumed.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from lowchurn.bench._loading import Data
from lowchurn.bench._plans import MORE, PLANS, Part
from lowchurn.bench._protocol import Protocol, count_weights
from lowchurn.bench._room import Machine, Room
from lowchurn.bench._segments import FINISHED, Row
from lowchurn.bench._store import opened_store
from lowchurn.strategies import plan as trainings_of

MEASURED = Path(__file__).parent / "blocks_h200.csv"
H200 = 139 * 2**30  # bytes
SHARED = 8  # blocks of fully connected networks at a time on one GPU (--gpus-per-block 0.125)
USUAL = 1000  # initial rows
START = 10.0  # seconds for a worker to start, import torch and open the GPU
COMPILE = 20.0  # seconds that the first block of a network and a kind of input takes more, on each GPU
FIXED = 0.4  # of the time of 100 trials that a block of fully connected networks takes whatever its size
WRITTEN = 30_000  # rows a second that the command receives and writes to its store, on one core
# Milliseconds per model-epoch on one H200 (docs/performance.md), for networks of which no blocks were measured.
RATES = {
    "transformer-2": 6.2,
    "transformer-4": 17.4,
    "transformer-8": 61.7,
    "transformer-16": 402.0,
    "resnet-50": 99.0,
    "resnet-101": 361.0,
    "resnet-152": 497.0,
}
# Seconds of 12 data sets and 100 trials beside those of fcn-1000 from 1000 rows (docs/results/README.md).
BESIDE_FCN = {
    ("fcn-10", 1000): 0.82,
    ("fcn-10", 100): 0.82,
    ("fcn-100", 1000): 0.55,
    ("fcn-100", 100): 0.55,
    ("fcn-1000", 100): 0.75,
    ("fcn-10000", 1000): 7.1,
    ("fcn-10000", 100): 4.7,
    ("fcn-100000", 1000): 552.0,  # of one trial
    ("fcn-100000", 100): 330.0,
}
SHAPES = {"gray": (28, 28, 1), "colour": (32, 32, 3), "text": (200,), "tabular": (20,)}


@dataclass(frozen=True)
class Measured:
    """A block of a store: its trials, the models that it trained, seconds, and the mean epochs of a training."""

    network: str
    initial: int
    loss: str
    dataset: str
    trials: int
    models: int
    seconds: float
    epochs: float
    first: bool  # of its network and data set in that store: it has compiled kernels


def extract(sources: Iterable[Path], compiled: bool = False) -> list[Measured]:
    """The blocks of some stores, each once; ``compiled``: none of them had to compile kernels."""
    found: dict[tuple, Measured] = {}
    for source in sources:
        with opened_store(source) as store:
            rows = [row for row in store.rows() if row["block_seconds"] and row["device"] == "NVIDIA H200"]
        blocks: dict[tuple, list[Row]] = {}
        for row in rows:
            place = (row["network"], row["initial"], row["loss"], row["dataset"])
            blocks.setdefault((place, row["created"], row["block_seconds"], row["block_models"]), []).append(row)
        seen = set()
        for (place, _, seconds, models), some in sorted(blocks.items()):
            trained = [
                row["epochs"] for row in some if row["status"] == FINISHED and "members" not in row["parameters"]
            ]
            epochs = round(statistics.fmean(trained), 1) if trained else 0.0
            count = len({row["trial"] for row in some})
            one = Measured(*place, count, models, round(seconds, 2), epochs, not compiled and place not in seen)
            seen.add(place)
            found.setdefault((place, round(seconds, 3)), one)
    return list(found.values())


def write(blocks: Sequence[Measured], path: Path) -> None:
    with path.open("w", newline="") as file:
        lines = csv.DictWriter(file, [one.name for one in fields(Measured)], lineterminator="\n")
        lines.writeheader()
        lines.writerows(asdict(one) | {"first": int(one.first)} for one in blocks)


def read(path: Path) -> list[Measured]:
    kinds = {"network": str, "loss": str, "dataset": str, "seconds": float, "epochs": float}
    with path.open(newline="") as file:
        lines = [{name: kinds.get(name, int)(value) for name, value in line.items()} for line in csv.DictReader(file)]
    return [Measured(**line | {"first": bool(line["first"])}) for line in lines]


def makespan(
    lengths: Sequence[float], workers: int, extra: Callable[[int, int], float] = lambda worker, job: 0.0
) -> float:
    """When the last job ends, where a worker that is free takes the next of the list; ``extra`` is added to a job.

    Whatever the order, this is at most 2 - 1/m times the best schedule of m workers, and at most 4/3 - 1/(3 m) times
    where the longest are first (Graham 1969).
    """
    free = [(0.0, worker) for worker in range(workers)]
    end = 0.0
    for job, length in enumerate(lengths):
        begin, worker = heapq.heappop(free)
        done = begin + length + extra(worker, job)
        heapq.heappush(free, (done, worker))
        end = max(end, done)
    return end


def kind_of(dataset: str) -> str:
    """What decides how long a network takes on a data set: the shape of its rows."""
    if dataset in ("svhn", "cifar10", "cifar100") or dataset.startswith("celeba"):
        return "colour"
    if dataset == "imdb":
        return "text"
    return "gray" if "mnist" in dataset else "tabular"


def _size(models: int, trials: int, fcn: bool) -> float:
    """Trainings that a block counts for: a part of the time of 100 trials is the same for fewer."""
    return models / trials * (100 * FIXED + (1 - FIXED) * trials) if fcn else float(models)


class Times:
    """Seconds of blocks, from measured ones of the same place or of the most similar one."""

    def __init__(self, measured: Sequence[Measured]) -> None:
        places: dict[tuple, list[Measured]] = {}
        for one in measured:
            places.setdefault((one.network, one.initial, one.loss, one.dataset), []).append(one)
        self.each: dict[tuple, float] = {}  # seconds of a training
        self.spread: list[float] = []  # blocks beside the median of their place
        for place, blocks in places.items():
            fcn = place[0].startswith("fcn")  # compiled beforehand, several at a time
            later = blocks if fcn else [one for one in blocks if not one.first]
            compiled = 0.0 if later else COMPILE
            rates = [(one.seconds - compiled) / _size(one.models, one.trials, fcn) for one in later or blocks]
            self.each[place] = statistics.median(rates)
            if not fcn and len(later) > 2:
                self.spread += [rate / self.each[place] for rate in rates]
        usual = [one for one in measured if one.initial == USUAL]
        self.epochs = {
            name: statistics.fmean(one.epochs for one in usual if one.dataset == name) for name in ("imdb", "cifar10")
        }
        # A training from so many initial rows beside one from the usual number, where both were measured.
        ratios: dict[int, list[float]] = {USUAL: [1.0]}
        for (network, initial, loss, dataset), seconds in self.each.items():
            if initial != USUAL and (network, USUAL, loss, dataset) in self.each:
                ratios.setdefault(initial, []).append(seconds / self.each[network, USUAL, loss, dataset])
        self.by_rows = {initial: statistics.median(some) for initial, some in ratios.items()}

    def training(self, protocol: Protocol, dataset: str) -> tuple[float, str]:
        """Seconds of one training among many, and how they are known."""
        network, initial, loss = protocol.network, protocol.initial, protocol.loss
        if network.startswith("fcn"):
            factor = BESIDE_FCN.get((network, initial), 1.0)
            return self._alike("fcn-1000", USUAL, loss, dataset) * factor, "measured" if factor == 1 else "scaled"
        if network in RATES:
            epochs = self.epochs["imdb" if network.startswith("transformer") else "cifar10"]
            return RATES[network] / 1000 * epochs * self.by_rows[initial], "from rates"
        if (network, initial, loss, dataset) in self.each:
            return self.each[network, initial, loss, dataset], "measured"
        if any((network, initial, loss) == place[:3] for place in self.each):
            return self._alike(network, initial, loss, dataset), "scaled"
        return self._alike(network, USUAL, loss, dataset) * self.by_rows[initial], "scaled"

    def _alike(self, network: str, initial: int, loss: str, dataset: str) -> float:
        """Of the place itself; else the mean of this network on data of the same kind, or on any."""
        some = {place[3]: value for place, value in self.each.items() if place[:3] == (network, initial, loss)}
        if dataset in some:
            return some[dataset]
        alike = [value for name, value in some.items() if kind_of(name) == kind_of(dataset)]
        return statistics.fmean(alike or some.values())


@dataclass(frozen=True)
class Job:
    """A block of the plan: seconds where its kernels are compiled, and what has to be compiled for it."""

    seconds: float
    kernels: tuple[str, str]
    cost: float
    known: str


def jobs_of(parts: Sequence[Part], times: Times, gpus: int, trials: int, seed: int = 0) -> tuple[list[Job], int]:
    """The blocks of a plan on so many GPUs, in the order in which the command hands them out, and the slots."""
    rng, jobs = np.random.default_rng(seed), []
    share = SHARED if parts[0].protocols[0].network.startswith("fcn") else 1
    for part in parts:
        models = len(trainings_of(part.settings).trainings)
        protocol = part.protocols[0]
        room = Room(Machine("cuda", H200, share, gpus * share), "float32", models)
        for dataset in part.datasets:
            kind = kind_of(dataset)
            X = np.zeros((1, *SHAPES[kind]), np.int64 if kind == "text" else np.float32)
            data = Data(dataset, X, X[:, 0], X[:, 0], X[:, 0], 10, "")
            size = room.trials(data, protocol, share, None, trials * len(part.datasets))
            each, known = times.training(protocol, dataset)
            fcn = protocol.network.startswith("fcn") and protocol.network not in ("fcn-10000", "fcn-100000")
            for first in range(0, trials, size):
                count = min(size, trials - first)
                noise = 1.0 if share > 1 else float(rng.choice(times.spread))
                seconds = each * _size(models * count, count, fcn) * noise
                cost = count * models * count_weights(protocol.network, data) * (protocol.initial + protocol.batch)
                jobs.append(Job(seconds, (protocol.network, kind), cost, known))
    return sorted(jobs, key=lambda one: -one.cost), gpus * share


def simulate(jobs: Sequence[Job], workers: int) -> float:
    """Seconds until the last block is done: workers start, and compile each kind of block once."""
    ready: set[tuple] = set()

    def extra(worker: int, job: int) -> float:
        new = {(worker,), (worker, *jobs[job].kernels)} - ready
        ready.update(new)
        return sum(START if len(each) == 1 else COMPILE for each in new)

    return makespan([one.seconds for one in jobs], workers, extra)


def in_words(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 600
        else f"{seconds / 60:.0f} min"
        if seconds < 36000
        else f"{seconds / 3600:.0f} h"
    )


def paper_sized(parts: Sequence[Part]) -> list[Part]:
    """The parts with all settings of the paper, also where the plan has a coarse grid."""
    return [replace(part, strategies=MORE) if part.strategies == ("coarse",) else part for part in parts]


def row_count(parts: Sequence[Part], trials: int) -> int:
    """Rows that a plan writes."""
    return sum(len(part.settings) * len(part.datasets) for part in parts) * trials


def table(plans: dict[str, list[Part]], times: Times, gpus: Sequence[int], trials: int) -> list[str]:
    """Lines of Markdown: each plan with its work, its time on so many GPUs, and what no number of them shortens."""
    heads = [f"{count} GPU{'s' * (count > 1)}" for count in gpus]
    lines = [f"| plan | GPU hours | known | {' | '.join(heads)} | use of the last | longest block | writing |"]
    lines.append("| --- | --: | --- |" + " --: |" * (len(gpus) + 3))
    totals = dict.fromkeys(gpus, 0.0)
    for name, parts in plans.items():
        walls, known = {}, {}
        writing = row_count(parts, trials) / WRITTEN
        for count in gpus:
            jobs, slots = jobs_of(parts, times, count, trials)
            walls[count] = max(simulate(jobs, slots), writing)
            totals[count] += walls[count]
            if count == gpus[0]:
                work = sum(one.seconds for one in jobs) / slots * count
                known = {how: sum(one.seconds for one in jobs if one.known == how) for how in {j.known for j in jobs}}
        most = max(known, key=lambda how: known[how])
        share = f"{100 * known[most] / sum(known.values()):.0f} % {most}"
        use = f"{100 * work / (walls[gpus[-1]] * gpus[-1]):.0f} %"
        bounds = [in_words(max(one.seconds for one in jobs)), in_words(writing)]
        cells = [name, f"{work / 3600:.2g}", share, *(in_words(walls[count]) for count in gpus), use, *bounds]
        lines.append(f"| {' | '.join(cells)} |")
    cells = [in_words(totals[count]) for count in gpus]
    return [*lines, f"| all, one after the other | | | {' | '.join(cells)} | | | |"]


PAPER = ("raw", "scaled", "small", "large", "huge", "ablation", "squared", "table2", "celeba", "imdb", "resnet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    extracting = commands.add_parser("extract", help="write the blocks of stores")
    extracting.add_argument("stores", nargs="+", type=Path)
    extracting.add_argument("--out", type=Path, default=MEASURED)
    extracting.add_argument("--add", action="store_true", help="to the blocks that the file contains")
    extracting.add_argument("--compiled", action="store_true", help="kernels were there before the runs")
    planning = commands.add_parser("plan", help="simulate the paper's plans")
    planning.add_argument("plans", nargs="*", default=list(PAPER))
    planning.add_argument("--blocks", type=Path, default=MEASURED)
    planning.add_argument("--trials", type=int, default=100)
    planning.add_argument("--coarse", action="store_true", help="with the coarse grids of the plans")
    planning.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64])
    chosen = parser.parse_args()
    if chosen.command == "extract":
        known = read(chosen.out) if chosen.add else []
        new = [one for one in extract(chosen.stores, chosen.compiled) if one not in known]
        write(known + new, chosen.out)
        return
    plans = {name: PLANS[name] if chosen.coarse else paper_sized(PLANS[name]) for name in chosen.plans}
    print("\n".join(table(plans, Times(read(chosen.blocks)), chosen.gpus, chosen.trials)))


if __name__ == "__main__":
    main()
