"""Plans: the experiments of the paper and those past it by name, each a list of parts that are run one after the other.

A plan is for everybody's data: a part takes of its data sets those that are here and have enough rows, and every other
one is told. ``lowchurn bench run PLAN`` and ``benchmarks/gpu_tables.py`` run the same plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lowchurn._checks import unknown_name
from lowchurn.bench._ablation import ablation_settings
from lowchurn.bench._datasets import names_of
from lowchurn.bench._loading import Data, available, expand, load
from lowchurn.bench._paper import CONVNET, RESNET, SMALL_COLOUR, TRANSFORMER
from lowchurn.bench._protocol import Protocol, settings_of
from lowchurn.strategies import Strategy

MORE = ("paper", "soup", "sticky")  # the paper's eight, and past it what takes few more trainings
HEAVY = ("resnet-101", "resnet-152", "transformer-8", "transformer-16")  # a coarse grid: a training takes long
FEW = 10  # trials where the paper has 100


@dataclass(frozen=True)
class Part:
    """One network and size for some data sets.

    Parameters
    ----------
    name : str
        Parts that belong together may have the same.
    datasets : tuple of str
        In the order in which they are named in what is told.
    protocols : tuple of Protocol
        Each data set is run through the first that it has enough training rows for.
    strategies, start : tuple of str, str
        As in :func:`~lowchurn.bench.settings_of`, or ``ablation``.
    trials : int
        As many as are run without ``--trials``.
    """

    name: str
    datasets: tuple[str, ...]
    protocols: tuple[Protocol, ...]
    strategies: tuple[str, ...] = ("paper",)
    start: str = "warm"
    trials: int = 100

    @property
    def settings(self) -> list[Strategy]:
        """What is retrained with."""
        if self.strategies == ("ablation",):
            return ablation_settings(self.start)
        return settings_of(self.strategies, self.start)


def _part(network: str, initial: int, datasets: tuple[str, ...], trials: int, **more: Any) -> Part:
    """A part of the paper's second half; from 10000 rows training is stopped on 1000, or on 500 if no more are left."""
    validation = (1000, 500) if initial >= 10000 else (100,)
    protocols = tuple(Protocol(network, initial, rows, **more) for rows in validation)
    strategies = ("coarse",) if network in HEAVY else MORE
    return Part(f"{network}-{initial}", datasets, protocols, strategies, trials=trials)


OPENML, IMAGES, CELEBA = names_of("openml"), names_of("mnist-variants") + SMALL_COLOUR, names_of("celeba")
TEN = CELEBA[:10]  # the first of the four parts of the paper's tables
OTHERS = tuple(network for network in CONVNET if network != "convnet-4")


def _openml(name: str, *protocols: Protocol, strategies: str = "paper", start: str = "warm") -> list[Part]:
    return [Part(name, OPENML, (one,), (strategies,), start) for one in protocols]


def _sizes(name: str, network: str) -> list[Part]:
    return _openml(name, Protocol(network), Protocol(network, 100))


PLANS: dict[str, list[Part]] = {
    # The paper's second half, with what is past it.
    "table2": [
        _part("convnet-4", 1000, IMAGES, 100),
        *(_part(network, 1000, IMAGES, FEW) for network in OTHERS),
        *(_part(network, 100, IMAGES, FEW) for network in CONVNET),
        _part("convnet-4", 10000, IMAGES, FEW),
    ],
    "celeba": [
        *(_part("convnet-4", initial, CELEBA, FEW) for initial in (1000, 100)),
        *(_part(network, initial, TEN, FEW) for initial in (1000, 100) for network in OTHERS[:-1]),
        *(replace(_part(OTHERS[-1], initial, TEN, FEW), strategies=("coarse",)) for initial in (1000, 100)),
        _part("convnet-4", 10000, CELEBA, FEW),
    ],
    "resnet": [
        _part(network, 1000, ("cifar10", "cifar100"), trials) for network, trials in zip(RESNET, (5, 2, 2), strict=True)
    ],
    "imdb": [
        _part(network, initial, ("imdb",), 100 if (network, initial) == ("transformer-1", 1000) else trials)
        for initial, trials in ((1000, FEW), (100, FEW), (10000, 5))
        for network in TRANSFORMER
    ],
    "squared": [_part("fcn-1000", 1000, OPENML, 100, loss="squared", scale=scale) for scale in (False, True)],
    # Its first half: Table 1 with raw and with scaled features, and the other sizes of networks.
    "raw": [one for start in ("warm", "cold") for one in _openml(f"{start} start", Protocol(), start=start)],
    "scaled": [
        one for start in ("warm", "cold") for one in _openml(f"{start} start", Protocol(scale=True), start=start)
    ],
    "small": [
        *_sizes("fcn-10", "fcn-10"),
        *_sizes("fcn-100", "fcn-100"),
        *_openml("fcn-1000 from 100", Protocol("fcn-1000", 100)),
    ],
    "large": [one for n in (1000, 100) for one in _openml(f"from {n}", Protocol("fcn-10000", n))],
    "huge": [one for n in (1000, 100) for one in _openml(f"from {n}", Protocol("fcn-100000", n))],
    "ablation": [Part("phishing", ("phishing",), (Protocol(),), ("ablation",))],
    # Past the paper.
    "dial": [
        one
        for network in ("fcn-1000", "fcn-100")
        for scale, features in ((False, "raw"), (True, "scaled"))
        for one in _openml(f"{network} {features}", Protocol(network, scale=scale), strategies="dial")
    ],
    "small-scaled": [
        *_openml("scaled, warm start", Protocol("fcn-100", scale=True)),
        *_openml("scaled, cold start", Protocol("fcn-100", scale=True), start="cold"),
        *_openml("raw, cold start", Protocol("fcn-100"), start="cold"),
    ],
    "digits-convnet": [
        Part(name, ("digit_images",), (Protocol("convnet-1", initial=400, batch=400),), (name,), start)
        for name, start in (("dial", "warm"), ("paper", "both"))
    ],
}


def choose_parts(
    plan: str,
    *,
    parts: Sequence[str] = (),
    datasets: Sequence[str] = (),
    trials: int | None = None,
    strategies: Sequence[str] = (),
    start: str | None = None,
    **protocol: Any,
) -> list[Part]:
    """The parts of a plan, or those of some names and data sets, with other trials, settings, epochs or seed.

    Examples
    --------
    >>> from lowchurn.bench._plans import choose_parts
    >>> [(part.name, part.trials) for part in choose_parts("resnet", trials=1)]
    [('resnet-50-1000', 1), ('resnet-101-1000', 1), ('resnet-152-1000', 1)]
    >>> choose_parts("imdb", parts=["transformer-3-1000"])
    Traceback (most recent call last):
    ...
    ValueError: bench: unknown part of imdb 'transformer-3-1000'. Did you mean ...
    """
    if plan not in PLANS:
        raise unknown_name("bench", "plan", plan, PLANS)
    names = list(dict.fromkeys(part.name for part in PLANS[plan]))
    there = list(dict.fromkeys(name for part in PLANS[plan] for name in part.datasets))
    wanted = expand(datasets)
    for what, some, known in ((f"part of {plan}", parts, names), (f"data set of {plan}", wanted, there)):
        for name in some:
            if name not in known:
                raise unknown_name("bench", what, name, known)
    changes = {name: value for name, value in protocol.items() if value is not None}
    return [
        replace(
            part,
            datasets=tuple(name for name in part.datasets if not wanted or name in wanted),
            protocols=tuple(replace(one, **changes) for one in part.protocols),
            strategies=tuple(strategies) or part.strategies,
            start=start or part.start,
            trials=trials or part.trials,
        )
        for part in PLANS[plan]
        if (not parts or part.name in parts) and (not wanted or set(wanted) & set(part.datasets))
    ]


def works(
    parts: Sequence[Part], data: str | Path | None, tell: Callable[[str], None]
) -> Iterator[tuple[Part, Protocol, list[Data]]]:
    """Each part with one of its protocols and the data sets that it suits; what cannot be run is told.

    Data sets are read once for all parts.
    """
    here, read = {*available(data), *names_of("built-in")}, dict[str, Data]()
    absent = [name for name in dict.fromkeys(name for part in parts for name in part.datasets) if name not in here]
    if absent:
        tell(f"Not here: {', '.join(absent)}.")
    for part in parts:
        suited: dict[Protocol, list[Data]] = {}
        short = []
        for name in part.datasets:
            if name not in here:
                continue
            one = read[name] = read.get(name) or load(name, data)
            fits = [protocol for protocol in part.protocols if protocol.rows_needed <= len(one.train)]
            if fits:
                suited.setdefault(fits[0], []).append(one)
            else:
                short.append(f"{name} ({len(one.train)})")
        if short:
            needed = min(protocol.rows_needed for protocol in part.protocols)
            tell(f"{part.name}: fewer than {needed} training rows in {', '.join(short)}.")
        yield from ((part, protocol, some) for protocol, some in suited.items())
