"""The paper's protocol: draw rows, train the base, retrain it by every setting, measure on the test set."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowchurn.bench.loading import LENGTH, VOCABULARY, Data
from lowchurn.checks import check_choice
from lowchurn.strategies import ALL, Strategy, one_hot, paper_grid

NETWORKS = ("fcn", "convnet", "transformer", "resnet")
STARTS = ("warm", "cold", "default", "both")


@dataclass(frozen=True)
class Protocol:
    """What a run does, apart from data set, strategies and trials; recorded with every row.

    Parameters
    ----------
    network : str
        Such as ``fcn-1000``, ``convnet-4``, ``transformer-1`` or ``resnet-50``.
    initial, validation, batch : int
        Rows drawn for the base, for early stopping and for the update.
    scale : bool
        Standardise the features with the training split's statistics; the paper does not.
    patience, loss, epochs : int, str, int
        As in :func:`lowchurn.nets.train`.
    seed : int
        Another seed gives other draws.

    Examples
    --------
    >>> from lowchurn.bench.protocol import Protocol
    >>> Protocol(network="fcn-100").rows_needed
    2100
    >>> Protocol(network="fnc-100")
    Traceback (most recent call last):
    ...
    ValueError: bench: network must be one of fcn, convnet, transformer, resnet and a size, ... got 'fnc-100'.
    """

    network: str = "fcn-1000"
    initial: int = 1000
    validation: int = 100
    batch: int = 1000
    scale: bool = False
    patience: int = 5
    loss: str = "log"
    epochs: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("bench", "loss", self.loss, ("log", "squared"))
        if not re.fullmatch(rf"({'|'.join(NETWORKS)})-[1-9]\d*", self.network):
            raise ValueError(
                f"bench: network must be one of {', '.join(NETWORKS)} and a size, such as fcn-1000, "
                f"got {self.network!r}."
            )
        for name in ("initial", "validation", "batch", "patience", "epochs"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"bench: {name} must be a whole number of at least 1, got {value!r}.")

    @property
    def rows_needed(self) -> int:
        """Training rows that one trial takes."""
        return self.initial + self.validation + self.batch

    @property
    def key(self) -> dict[str, Any]:
        """The columns of the store that this fills."""
        return {
            "network": self.network,
            "initial": self.initial,
            "validation": self.validation,
            "batch": self.batch,
            "scale": self.scale,
            "patience": self.patience,
            "loss": self.loss,
            "epochs_limit": self.epochs,
            "run_seed": self.seed,
        }


@dataclass(frozen=True)
class Draw:
    """The rows of one trial, and the seeds of its base and of its retrains."""

    initial: np.ndarray
    validation: np.ndarray
    batch: np.ndarray
    base_seed: int
    seed: int

    @property
    def both(self) -> np.ndarray:
        """What a retrain sees: the initial rows and the batch."""
        return np.concatenate([self.initial, self.batch])


def draw(data: Data, protocol: Protocol, trial: int) -> Draw:
    """Rows of a trial: disjoint, and the same whenever and wherever it is run.

    Examples
    --------
    >>> from lowchurn.bench.loading import load
    >>> from lowchurn.bench.protocol import Protocol, draw
    >>> one = draw(load("wine"), Protocol(initial=30, validation=10, batch=30), trial=0)
    >>> len(one.both), len(set(one.both) | set(one.validation))
    (60, 70)
    """
    check_size(data, protocol)
    parts = np.random.SeedSequence([zlib.crc32(data.name.encode()), trial, protocol.seed]).spawn(2)
    order = np.random.default_rng(parts[0]).permutation(data.train)
    cuts = np.cumsum([protocol.initial, protocol.validation, protocol.batch])
    base_seed, seed = (int(s >> np.uint64(1)) for s in parts[1].generate_state(2, np.uint64))
    return Draw(order[: cuts[0]], order[cuts[0] : cuts[1]], order[cuts[1] : cuts[2]], base_seed, seed)


def check_size(data: Data, protocol: Protocol) -> None:
    """Refuse a data set that has too few training rows for a draw."""
    if len(data.train) < protocol.rows_needed:
        raise ValueError(
            f"bench: {data.name} has {len(data.train)} training rows, but a trial needs {protocol.rows_needed} "
            f"({protocol.initial} initial + {protocol.validation} validation + {protocol.batch} batch). "
            "Ask for smaller ones."
        )


def paper_settings(start: str = "warm", names: Sequence[str] = ()) -> list[Strategy]:
    """The settings that the paper tunes over, for some or all of its strategies.

    Parameters
    ----------
    start : {"warm", "cold", "default", "both"}
        Where the strategies start that leave it open: mixup, label smoothing, co-distillation, anchor, distillation.
        ``default`` is each strategy's own.
    names : list of str
        Strategies by name, such as ``distill``; all without it.

    Examples
    --------
    >>> from lowchurn.bench.protocol import paper_settings
    >>> len(paper_settings("warm")), len(paper_settings("both"))
    (74, 137)
    """
    from lowchurn.checks import unknown_name

    check_choice("bench", "start", start, STARTS)
    known = {cls.name: cls for cls in ALL}
    for name in names:
        if name not in known:
            raise unknown_name("bench", "strategy", name, known)
    found: list[Strategy] = []
    for name, cls in known.items():
        if names and name not in names:
            continue
        if "start" not in cls.__dataclass_fields__ or start == "default":
            found += paper_grid(cls)
        else:
            for one in ("warm", "cold") if start == "both" else (start,):
                found += paper_grid(cls, start=one)
    return found


def start_of(strategy: Strategy) -> str:
    """Where a strategy starts, in a word."""
    return {0.0: "cold", 1.0: "warm"}.get(strategy.base_share, "between")


def make_network(name: str, data: Data) -> Any:
    """The paper's network of that name for this data set."""
    from lowchurn.nets import networks

    kind, size = name.rsplit("-", 1)
    shape = data.X.shape[1:]
    if kind == "fcn":
        if data.X.dtype.kind != "f":
            raise ValueError(f"bench: {name} reads numbers, but {data.name} holds words. Use a transformer.")
        return networks.fcn(int(size), inputs=int(np.prod(shape)), classes=data.classes)
    if kind == "transformer":
        if data.X.dtype.kind == "f":
            raise ValueError(f"bench: {name} reads words, but {data.name} holds numbers.")
        return networks.transformer(int(size), length=LENGTH, classes=data.classes, vocabulary=VOCABULARY)
    if len(shape) != 3:
        raise ValueError(f"bench: {name} reads images, but {data.name} has rows of shape {shape}.")
    make = {"convnet": networks.convnet, "resnet": networks.resnet}[kind]
    return make(int(size), shape=shape, classes=data.classes)


def run_trials(
    data: Data,
    protocol: Protocol,
    wanted: dict[int, list[Strategy]],
    *,
    device: str = "auto",
    dtype: str = "float32",
    memory_limit: float | None = None,
    threads: int | None = None,
) -> list[dict[str, Any]]:
    """Train and measure some settings in some trials, all together.

    Parameters
    ----------
    data : Data
        Scaled already, if the protocol says so.
    wanted : dict of int to list of Strategy
        Settings for each trial.
    device, dtype, memory_limit, threads
        As in :func:`lowchurn.nets.train`.

    Returns
    -------
    list of dict
        One for each setting and trial, with what was measured.
    """
    import torch

    from lowchurn.nets import Task, train

    began = time.perf_counter()
    network = make_network(protocol.network, data)
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else torch.device(device)
    kind = getattr(torch, dtype)
    rows = data.X.reshape(len(data.X), -1) if protocol.network.startswith("fcn-") else data.X
    pool = torch.from_numpy(np.ascontiguousarray(rows)).to(place)
    pool = pool.to(kind) if pool.is_floating_point() else pool
    labels = torch.from_numpy(data.y).to(place)
    test, truth = pool[torch.from_numpy(data.test).to(place)], labels[torch.from_numpy(data.test).to(place)]
    options: dict[str, Any] = {
        "epochs": protocol.epochs,
        "patience": protocol.patience,
        "loss": protocol.loss,
        "device": str(place),
        "dtype": dtype,
        "memory_limit": memory_limit,
        "threads": threads,
        "progress": False,
    }
    trials = list(wanted)
    draws = [draw(data, protocol, trial) for trial in trials]

    def truth_of(chosen: np.ndarray) -> Any:
        return one_hot(labels[torch.from_numpy(chosen).to(place)], data.classes).to(kind)

    held_out = [truth_of(d.validation) for d in draws]
    base = train(
        network,
        pool,
        [
            Task(d.initial, truth_of(d.initial), d.validation, v, seed=d.base_seed)
            for d, v in zip(draws, held_out, strict=True)
        ],
        **options,
    )
    before = base.decisions(test)
    base_right = before == truth
    base_accuracy = base_right.double().mean(dim=1).tolist()
    both = [d.both for d in draws]
    proba = torch.softmax(base.outputs(pool, np.stack(both)), dim=-1)
    onehot = [truth_of(rows) for rows in both]
    good = [i for i in range(len(trials)) if base.status[i] == "finished"]

    tasks, owners = [], []
    for strategy in dict.fromkeys(s for i in good for s in wanted[trials[i]]):
        members = [i for i in good if strategy in wanted[trials[i]]]
        targets = _targets(strategy, onehot, proba, members)
        for i, target in zip(members, targets, strict=True):
            tasks.append(
                Task(
                    rows=both[i],
                    targets=target,
                    validation=draws[i].validation,
                    validation_targets=held_out[i],
                    seed=draws[i].seed,
                    start=(base, i) if strategy.base_share else None,
                    base_share=strategy.base_share,
                    mixing=strategy.mixing,
                    coupling=strategy.coupling,
                )
            )
            owners.append((i, strategy))
    results = []
    for i, trial in enumerate(trials):
        if i not in good:
            reason = f"failed: the base {base.status[i].removeprefix('failed: ')}"
            results += [_row(data, protocol, trial, s, draws[i].seed, reason) for s in wanted[trial]]
    if tasks:
        trained = train(network, pool, tasks, **options)
        measured = _measure(trained.decisions(test), before, base_right, truth, [i for i, _ in owners])
        for k, (i, strategy) in enumerate(owners):
            row = _row(data, protocol, trials[i], strategy, draws[i].seed, trained.status[k])
            row |= {"epochs": int(trained.epochs[k]), "base_accuracy": base_accuracy[i]}
            if trained.status[k] == "finished":
                row |= {name: float(values[k]) for name, values in measured.items()}
                row["validation_loss"] = float(trained.loss[k])
            results.append(row)
    seconds = time.perf_counter() - began
    where = torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"
    for row in results:
        row |= {"block_seconds": seconds, "block_models": len(results), "seconds": seconds / len(results)}
        row |= {"device": where, "dtype": dtype}
    return results


def _targets(strategy: Strategy, onehot: list[Any], proba: Any, members: list[int]) -> list[Any]:
    """What each of these trials aims at; the labels themselves, not copies, where that is what a strategy wants."""
    import torch

    if type(strategy)._targets is Strategy._targets:
        return [onehot[i] for i in members]
    if not getattr(strategy, "rowwise", True):
        return [strategy.targets(onehot[i], proba[i]) for i in members]
    # Row by row, so all trials can be done at once.
    flat = strategy.targets(torch.cat([onehot[i] for i in members]), proba[members].flatten(0, 1))
    return list(flat.view(len(members), *onehot[0].shape))


def _measure(after: Any, before: Any, base_right: Any, truth: Any, owners: list[int]) -> dict[str, np.ndarray]:
    """Shares of the test rows for every model, counted on the device, some models at a time."""
    import torch

    index = torch.tensor(owners, device=after.device)
    shares: dict[str, list[Any]] = {"accuracy": [], "churn": [], "broken": [], "fixed": []}
    size = max(1, 2**28 // max(1, after.shape[1]))
    for first in range(0, len(after), size):
        part, own = after[first : first + size], index[first : first + size]
        right, changed, was_right = part == truth, part != before[own], base_right[own]
        for name, chosen in (
            ("accuracy", right),
            ("churn", changed),
            ("broken", changed & was_right),
            ("fixed", changed & right),
        ):
            shares[name].append(chosen.sum(dim=1).double() / after.shape[1])
    return {name: torch.cat(parts).cpu().numpy() for name, parts in shares.items()}


def _row(data: Data, protocol: Protocol, trial: int, strategy: Strategy, seed: int, status: str) -> dict[str, Any]:
    undefined = dict.fromkeys(("accuracy", "churn", "broken", "fixed", "base_accuracy", "validation_loss"))
    return {
        "dataset": data.name,
        **protocol.key,
        "strategy": strategy.name,
        "setting": strategy.setting,
        "trial": trial,
        "start": start_of(strategy),
        "seed": seed,
        **undefined,
        "epochs": None,
        "test_rows": len(data.test),
        "status": status,
        "data": data.fingerprint,
    }
