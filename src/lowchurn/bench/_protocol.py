"""The paper's protocol: draw rows, train the base, retrain it by every setting, measure on the test set."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from lowchurn._checks import check_choice, check_whole, unknown_name
from lowchurn.bench._loading import LENGTH, VOCABULARY, Data
from lowchurn.bench._within import budget_settings
from lowchurn.strategies import (
    ALL,
    PAPER,
    ColdStart,
    Interpolate,
    ServedMixture,
    Soup,
    Sticky,
    Strategy,
    TwoTeachers,
    paper_grid,
)
from lowchurn.strategies._sticky import TRUST

if TYPE_CHECKING:
    import torch

NETWORKS = ("fcn", "convnet", "transformer", "resnet")
OF_MODELS = (Soup, Interpolate, TwoTeachers, ServedMixture, Sticky)  # averaged or taught by several retrains
STARTS = ("warm", "cold", "default", "both")
TRAFFIC = 2000  # rows at most
COARSE = (0.2, 0.5, 0.8, 1.0)  # of 0.1, 0.2, ... 0.9, and of anchor's 0.5, 0.7 and 1.0
# The smallest and largest values of what is counted. Rows are written with 64-bit numbers, and more trials than the
# last limit would only be a slip of the keyboard.
LIMITS = {
    **dict.fromkeys(
        ("initial", "validation", "batch", "patience", "epochs", "jobs", "block", "threads"), (1, 2**31 - 1)
    ),
    "seed": (0, 2**63 - 1),
    "trials": (1, 100_000),
}


def check_counts(who: str, counts: Mapping[str, int | None], prefix: str = "") -> None:
    """Refuse numbers outside of :data:`LIMITS`; None is passed over."""
    for name, value in counts.items():
        low, high = LIMITS[name]
        if value is not None:
            check_whole(who, prefix + name, value, low, high)


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
    one_order : bool
        As in :func:`lowchurn.nets.train`.

    Examples
    --------
    >>> from lowchurn.bench import Protocol
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
    one_order: bool = False

    def __post_init__(self) -> None:
        check_choice("bench", "loss", self.loss, ("log", "squared"))
        if not re.fullmatch(rf"({'|'.join(NETWORKS)})-[1-9][0-9]{{0,17}}", self.network):
            raise ValueError(
                f"bench: network must be one of {', '.join(NETWORKS)} and a size, such as fcn-1000, "
                f"got {self.network!r}."
            )
        names = ("initial", "validation", "batch", "patience", "epochs", "seed")
        check_counts("bench", {name: getattr(self, name) for name in names})

    @property
    def rows_needed(self) -> int:
        """Training rows that one trial takes."""
        return self.initial + self.validation + self.batch

    @property
    def key(self) -> dict[str, Any]:
        """The columns of the store that this fills."""
        columns = {"epochs": "epochs_limit", "seed": "run_seed"}
        return {columns.get(one.name, one.name): getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True)
class Draw:
    """The rows of one trial, and the seeds of its base and of its retrains."""

    initial: np.ndarray
    validation: np.ndarray
    batch: np.ndarray
    traffic: np.ndarray  # training rows of no other part, whose labels are not used
    base_seed: int
    seed: int

    @property
    def both(self) -> np.ndarray:
        """What a retrain sees: the initial rows and the batch."""
        return np.concatenate([self.initial, self.batch])


def draw(data: Data, protocol: Protocol, trial: int) -> Draw:
    """The rows of a trial: disjoint, and the same whenever and wherever it is run."""
    check_size(data, protocol)
    parts = np.random.SeedSequence([zlib.crc32(data.name.encode()), trial, protocol.seed]).spawn(2)
    order = np.random.default_rng(parts[0]).permutation(data.train)
    cuts = np.cumsum([protocol.initial, protocol.validation, protocol.batch])
    base_seed, seed = (int(s >> np.uint64(1)) for s in parts[1].generate_state(2, np.uint64))
    initial, validation, batch, traffic = np.split(order[: cuts[2] + TRAFFIC], cuts)
    return Draw(initial, validation, batch, traffic, base_seed, seed)


def check_size(data: Data, protocol: Protocol) -> None:
    """Refuse a data set that has too few training rows for a draw."""
    if len(data.train) < protocol.rows_needed:
        raise ValueError(
            f"bench: {data.name} has {len(data.train)} training rows, but a trial needs {protocol.rows_needed} "
            f"({protocol.initial} initial + {protocol.validation} validation + {protocol.batch} batch). "
            "Ask for smaller ones."
        )


def paper_settings(start: str = "warm") -> list[Strategy]:
    """The settings that the paper tunes over; ``start`` is where the strategies start that leave it open."""
    check_choice("bench", "start", start, STARTS)
    return [strategy for cls in PAPER for strategy in _grids(cls, start)]


def coarse_settings(start: str = "warm") -> list[Strategy]:
    """A third of the paper's settings, and sticky decisions on one retrain: for networks whose training takes long.

    All are settings of the groups ``paper`` and ``sticky`` too, so that these can be run later and train only the rest.
    """
    paper = [s for s in paper_settings(start) if all(getattr(s, name) in COARSE for name in type(s).grid)]
    return paper + [s for s in sticky_settings() if getattr(s, "members", None) == 1]


def dial_settings(start: str = "warm", members: int = 8, students: int = 4) -> list[Strategy]:
    """The settings past the paper, and the cold start; ``start`` is that of the field's strategies, not of averages."""
    check_choice("bench", "start", start, STARTS)
    return [
        ColdStart(),
        *paper_grid(Soup, members=members),
        *paper_grid(Interpolate),
        *paper_grid(TwoTeachers, members=members),
        *paper_grid(TwoTeachers, members=members, students=students),
        *paper_grid(ServedMixture, members=members, start="warm"),
        *(s for cls in ALL if cls not in (*PAPER, *OF_MODELS) for s in _grids(cls, start)),
    ]


def sticky_settings(members: int = 8) -> list[Strategy]:
    """Every margin on each estimate of the probabilities: from one retrain to as many warm and cold ones.

    Estimates that serve two models with the base come first. Those with a share of the base are for retrains that are
    poor; a margin that grows with the base's lead (``trust``) is for data that drift.
    """
    estimates: list[dict[str, Any]] = [
        *({"members": 1, "start": "cold", "toward_base": share} for share in (0.0, 0.4)),
        {"members": 1, "start": "warm"},
        {"members": members, "start": "warm", "average": "weights"},
        {"members": members, "start": "warm"},
        *({"members": members, "start": "both", "toward_base": share} for share in (0.0, 0.2, 0.4, 0.6)),
    ]
    # The first of each number of models to serve.
    estimates += [one | {"trust": TRUST} for one in (estimates[0], estimates[3], estimates[5])]
    return [strategy for estimate in estimates for strategy in paper_grid(Sticky, **estimate)]


def settings_of(names: Sequence[str], start: str = "warm") -> list[Strategy]:
    """The settings of groups and of strategies by name, each once.

    The groups are ``paper``, ``dial``, ``sticky`` (:func:`sticky_settings`, the settings of the strategy of that name),
    ``all`` of these, ``coarse`` (:func:`coarse_settings`, a third of ``paper``), and ``budget``: methods under a
    budget, their settings chosen on traffic, and the cold start.

    Parameters
    ----------
    names : list of str
        Groups, and strategies by name, such as ``distill``.
    start : {"warm", "cold", "default", "both"}
        Where the strategies start that leave it open; ``default`` is each strategy's own. Retrains that are averaged
        or teach start from the base; those of ``sticky`` where each setting wants them.

    Examples
    --------
    >>> from lowchurn.bench import settings_of
    >>> len(settings_of(["paper"])), len(settings_of(["cold", "soup"]))
    (74, 11)
    """
    paper, dial, sticky = paper_settings(start), dial_settings(start), sticky_settings()
    groups = {"paper": paper, "dial": dial, "sticky": sticky, "all": [*paper, *dial, *sticky]}
    groups |= {"coarse": coarse_settings(start), "budget": [ColdStart(), *budget_settings()]}
    known = list(dict.fromkeys([*groups, *(cls.name for cls in ALL)]))
    found: list[Strategy] = []
    for name in names:
        if name not in known:
            raise unknown_name("bench", "strategy", name, known)
        found += groups.get(name, [s for s in groups["all"] if s.name == name])
    return list(dict.fromkeys(found))


def _grids(cls: type[Strategy], start: str) -> list[Strategy]:
    """A strategy's grid at its start or starts."""
    if "start" not in cls.__dataclass_fields__ or start == "default":
        return paper_grid(cls)
    starts = ("warm", "cold") if start == "both" else (start,)
    return [strategy for one in starts for strategy in paper_grid(cls, start=one)]


def start_of(strategy: Strategy) -> str:
    """Where a strategy starts, in a word; what is averaged starts where its members do, ``both`` for some of each."""
    if strategy.blend is not None:
        starts = {start_of(group.strategy) for group in strategy.blend.groups}
        return starts.pop() if len(starts) == 1 else "both"
    return {0.0: "cold", 1.0: "warm"}.get(strategy.base_share, "between")


def make_network(name: str, data: Data) -> torch.nn.Module:
    """The paper's network of that name for this data set."""
    return _network(name, data.name, data.X.shape[1:], data.X.dtype.kind, data.classes)


def _network(name: str, dataset: str, shape: tuple[int, ...], kind: str, classes: int) -> torch.nn.Module:
    from lowchurn.nets import networks

    family, size = name.rsplit("-", 1)
    if family == "fcn":
        if kind == "i":
            raise ValueError(f"bench: {name} reads numbers, but {dataset} contains words. Use a transformer.")
        return networks.fcn(int(size), inputs=int(np.prod(shape)), classes=classes)
    if family == "transformer":
        if kind != "i":
            raise ValueError(f"bench: {name} reads words, but {dataset} contains numbers.")
        return networks.transformer(int(size), length=LENGTH, classes=classes, vocabulary=VOCABULARY)
    if len(shape) != 3:
        raise ValueError(f"bench: {name} reads images, but {dataset} has rows of shape {shape}.")
    make = {"convnet": networks.convnet, "resnet": networks.resnet}[family]
    return make(int(size), shape=shape, classes=classes)


def count_weights(name: str, data: Data) -> int:
    """The weights of the paper's network of that name for this data set; nothing is allocated."""
    return _count_weights(name, data.name, data.X.shape[1:], data.X.dtype.kind, data.classes)


@lru_cache(maxsize=1024)
def _count_weights(name: str, dataset: str, shape: tuple[int, ...], kind: str, classes: int) -> int:
    import torch

    try:
        with torch.device("meta"):
            return sum(p.numel() for p in _network(name, dataset, shape, kind, classes).parameters())
    except (RuntimeError, TypeError, OverflowError):
        raise ValueError(f"bench: network {name!r} is too large to be made. Ask for a smaller one.") from None
