"""Bases and retrains of some trials, all together: the rows on the device, what is trained, and where it lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from lowchurn.bench._loading import PIXELS, Data
from lowchurn.bench._protocol import Draw, Protocol, draw, make_network
from lowchurn.bench._segments import FINISHED
from lowchurn.metrics import decide
from lowchurn.strategies import Plan, Strategy, Training, member_seed, one_hot
from lowchurn.strategies._strategy import targets_of

if TYPE_CHECKING:
    import torch

    from lowchurn.nets import Task
    from lowchurn.nets._trained import Trained

_ON_DEVICE: WeakValueDictionary[tuple, torch.Tensor] = WeakValueDictionary()
_UPLOAD = Lock()
BLEND_BYTES = 2**32  # that averages of weights or probabilities may take at a time
T = TypeVar("T")


def rows_on_device(X: np.ndarray, place: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Rows as a tensor, images as numbers from 0 to 1; one for all blocks and data sets that use it at the same time.

    Images travel as bytes. Whoever keeps the tensor keeps ``X`` as well, which it is known by.
    """
    import torch

    with _UPLOAD:
        key = (id(X), place, dtype)
        found = _ON_DEVICE.get(key)
        if found is None:
            found = torch.from_numpy(np.ascontiguousarray(X)).to(place)
            if found.dtype == torch.uint8:  # looked up, since a GPU divides otherwise than a CPU
                values = torch.from_numpy(PIXELS).to(place, dtype)
                found = values.index_select(0, found.flatten().to(torch.int32)).view(found.shape)
            elif found.is_floating_point():
                found = found.to(dtype)
            if place.type == "cuda":  # other streams may read it from now on
                torch.cuda.current_stream().synchronize()
            _ON_DEVICE[key] = found
        return found


class Pool:
    """What all trials share: the rows on the device, the network, and how it is trained."""

    def __init__(self, data: Data, protocol: Protocol, **options: Any) -> None:
        import torch

        found = "cuda" if torch.cuda.is_available() else "cpu"
        place = torch.device(found if options["device"] == "auto" else options["device"])
        self.data, self.protocol = data, protocol
        self.network = make_network(protocol.network, data)
        self.dtype: torch.dtype = getattr(torch, options["dtype"])
        self._rows = rows_on_device(data.X, place, self.dtype)  # kept for others, while this is
        self.X = self._rows.flatten(1) if protocol.network.startswith("fcn-") else self._rows
        self.labels = torch.from_numpy(data.y).to(place)
        limit = options["memory_limit"]
        self.bytes_at_once = BLEND_BYTES if limit is None else min(BLEND_BYTES, limit / 4)
        training = {name: getattr(protocol, name) for name in ("epochs", "patience", "loss", "one_order")}
        self.options: dict[str, Any] = options | training | {"device": str(place), "progress": False}
        test = torch.from_numpy(data.test).to(place)
        self.test, self.truth = self.X[test], self.labels[test]
        self.device_name = torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"

    def onehot(self, rows: Sequence[np.ndarray]) -> Sequence[torch.Tensor]:
        """The labels of some rows of each trial as rows of zeros and a one; all trials at once."""
        import torch

        labels = self.labels[torch.from_numpy(np.stack(rows)).to(self.labels.device)]
        made: torch.Tensor = one_hot(labels.flatten(), self.data.classes).to(self.dtype)
        return made.view(*labels.shape, -1).unbind()

    def train(self, tasks: list[Task]) -> Trained:
        from lowchurn import nets

        return nets.train(self.network, self.X, tasks, **self.options)


@dataclass(frozen=True, eq=False)
class Bases:
    """The draws of some trials and the base of each; a trial is known by its place ``i`` among them."""

    pool: Pool
    trials: list[int]
    draws: list[Draw]
    held_out: Sequence[torch.Tensor]  # labels of the validation rows
    trained: Trained

    @classmethod
    def train(cls, pool: Pool, trials: list[int]) -> Bases:
        """Train the base of each trial."""
        from lowchurn.nets import Task

        draws = [draw(pool.data, pool.protocol, trial) for trial in trials]
        held_out, targets = pool.onehot([d.validation for d in draws]), pool.onehot([d.initial for d in draws])
        tasks = [
            Task(d.initial, aim, d.validation, labels, seed=d.base_seed)
            for d, aim, labels in zip(draws, targets, held_out, strict=True)
        ]
        return cls(pool, trials, draws, held_out, pool.train(tasks))

    @cached_property
    def before(self) -> torch.Tensor:
        """Decisions on the test rows, a row per trial."""
        return self.trained.decisions(self.pool.test)

    @cached_property
    def right(self) -> torch.Tensor:
        return self.before == self.pool.truth

    @cached_property
    def both(self) -> list[np.ndarray]:
        """The rows that retrains of a trial are trained on: those of the initial draw and the batch."""
        return [d.both for d in self.draws]

    @cached_property
    def onehot(self) -> Sequence[torch.Tensor]:
        return self.pool.onehot(self.both)

    @cached_property
    def starts(self) -> list[tuple[Trained, int]]:
        """Where retrains of each trial may start: one object for all of them, which is checked once."""
        return [(self.trained, i) for i in range(len(self.trials))]

    @cached_property
    def proba(self) -> torch.Tensor:
        """The base's probabilities of the rows that retrains are trained on."""
        return self.trained.outputs(self.pool.X, np.stack(self.both)).softmax(dim=-1)

    @cached_property
    def traffic(self) -> list[np.ndarray]:
        """Rows of each trial whose labels nobody sees."""
        return [d.traffic for d in self.draws]

    @cached_property
    def on_traffic(self) -> torch.Tensor:
        """Decisions on the traffic, a row per trial."""
        found: torch.Tensor = decide(self.trained.outputs(self.pool.X, np.stack(self.traffic)))
        return found

    @cached_property
    def good(self) -> list[int]:
        """The trials whose base finished."""
        return [i for i, status in enumerate(self.trained.status) if status == FINISHED]

    @cached_property
    def accuracy(self) -> list[float]:
        found: list[float] = self.right.double().mean(dim=1).tolist()
        return found


@dataclass(frozen=True, eq=False)
class Members:
    """The models of some trainings of one trial: the stack they lie in, and their places there."""

    stack: Trained
    places: list[int]

    @cached_property
    def finished(self) -> list[int]:
        return [k for k in self.places if self.stack.status[k] == FINISHED]

    @cached_property
    def left_out(self) -> str:
        states = [self.stack.status[k] for k in self.places]
        return "; ".join(f"member {j} ({state})" for j, state in enumerate(states) if state != FINISHED)


@dataclass(eq=False)
class Retrains:
    """Executes the plans of some trials, and keeps where the model of each training lies."""

    pool: Pool
    bases: Bases
    at: dict[tuple[int, Training], tuple[Trained, int]] = field(default_factory=dict)
    lessons: dict[tuple[Training, ...], dict[int, torch.Tensor]] = field(default_factory=dict)  # of teachers, by trial

    def train(self, plans: dict[int, Plan]) -> None:
        """Train what each trial's plan needs, round by round: the same round of all trials together."""
        for number in range(max((len(one.rounds) for one in plans.values()), default=0)):
            owners: dict[Training, list[int]] = {}
            for i, one in plans.items():
                for training in one.rounds[number] if number < len(one.rounds) else ():
                    owners.setdefault(training, []).append(i)
            self._train_round([(i, training) for training, some in owners.items() for i in some])

    def _train_round(self, wanted: list[tuple[int, Training]]) -> None:
        from lowchurn.nets import Task
        from lowchurn.nets._tasks import by_strategy

        trials_of: dict[Strategy, list[int]] = {}
        for i, training in wanted:
            trials_of.setdefault(training.strategy, []).append(i)
        aims = self._aims({strategy: tuple(dict.fromkeys(some)) for strategy, some in trials_of.items()})
        limited = next((s for s in trials_of if s.limit is not None), None)
        pulls = None if limited is None else limited.pull(self.bases.proba.flatten(0, 1)).view(self.bases.proba.shape)
        wanted = [(i, one) for i, one in wanted if i in aims[one.strategy]]  # without a teacher there is no aim
        if not wanted:
            return
        bases = self.bases
        tasks = [
            by_strategy(
                strategy,
                Task(
                    bases.both[i],
                    aims[strategy][i],
                    bases.draws[i].validation,
                    bases.held_out[i],
                    member_seed(bases.draws[i].seed, member),
                    start=bases.starts[i],
                    pull=None if pulls is None else pulls[i],
                ),
            )
            for i, (strategy, member) in wanted
        ]
        trained = self.pool.train(tasks)
        self.at |= {one: (trained, k) for k, one in enumerate(wanted)}

    def _aims(self, trials_of: dict[Strategy, tuple[int, ...]]) -> dict[Strategy, dict[int, torch.Tensor]]:
        """What each strategy aims at in each of its trials; those with the same labels and trials together."""
        alike: dict[tuple, list[Strategy]] = {}
        for strategy, trials in trials_of.items():
            alike.setdefault((strategy.teachers, trials), []).append(strategy)
        aims: dict[Strategy, dict[int, torch.Tensor]] = {}
        for (teachers, trials), some in alike.items():
            labels = {i: self.bases.onehot[i] for i in trials}
            if teachers is not None:
                taught = self._taught(Training(some[0]).teachers)
                labels = {i: taught[i] for i in trials if i in taught}
            aims |= self._targets(some, labels)
        return aims

    def _targets(
        self, strategies: list[Strategy], labels: dict[int, torch.Tensor]
    ) -> dict[Strategy, dict[int, torch.Tensor]]:
        """The targets of strategies in each trial; the labels themselves, not copies, where that is what they want."""
        import torch

        aims = dict.fromkeys(strategies, labels)
        own = [s for s in strategies if type(s)._targets is not Strategy._targets] if labels else []
        for strategy in own:
            if not strategy.rowwise:
                aims[strategy] = {i: strategy.targets(aim, self.bases.proba[i]) for i, aim in labels.items()}
        if rowwise := [strategy for strategy in own if strategy.rowwise]:  # so all trials can be done at once
            every, proba = torch.cat(list(labels.values())), self.bases.proba[list(labels)].flatten(0, 1)
            for strategy, flat in zip(rowwise, targets_of(rowwise, every, proba), strict=True):
                parts = flat.view(len(labels), *self.bases.onehot[0].shape).unbind()
                aims[strategy] = dict(zip(labels, parts, strict=True))
        return aims

    def _taught(self, teachers: tuple[Training, ...]) -> dict[int, torch.Tensor]:
        """The mean probabilities of each trial's teachers for its training rows; made once for all their students."""
        if teachers not in self.lessons:
            found = {i: self.members(i, teachers) for i in self.bases.good}
            able = {i: members for i, members in found.items() if members is not None and members.finished}
            parts = self.means(able, self.bases.both)
            self.lessons[teachers] = {i: mean for part, means in parts for i, mean in zip(part, means, strict=True)}
        return self.lessons[teachers]

    def members(self, i: int, trainings: tuple[Training, ...]) -> Members | None:
        """Where the models of some trainings of one trial lie; None where they had no teacher."""
        found = [self.at[i, one] for one in trainings if (i, one) in self.at]
        return Members(found[0][0], [k for _, k in found]) if found else None  # those of a group are in one stack

    def epochs(self, i: int, trainings: tuple[Training, ...]) -> int:
        """The epochs of some trainings of one trial together."""
        found = (self.at.get((i, one)) for one in trainings)
        return int(sum(at[0].epochs[at[1]] for at in found if at is not None))

    def means(
        self, members: dict[int, Members], rows: list[np.ndarray] | None = None
    ) -> Iterator[tuple[Sequence[int], torch.Tensor]]:
        """Mean probabilities (T, n, m) of the finished members: of each trial's own rows, or of the test rows."""
        import torch

        pool = self.pool
        width = max((len(some.places) for some in members.values()), default=0)
        count = len(pool.test) if rows is None else len(rows[0])
        each = 4 * (width + 1) * count * pool.data.classes * self.bases.proba.element_size()
        for part in slices(list(members), pool.bytes_at_once / each):
            places = [members[i].finished for i in part]
            width = max(map(len, places))
            padded = [k for some in places for k in (*some, *some[:1] * (width - len(some)))]
            own = None if rows is None else np.repeat(np.stack([rows[i] for i in part]), width, axis=0)
            logits = members[part[0]].stack.take(padded).outputs(pool.test if own is None else pool.X, own)
            proba = torch.softmax(logits, dim=-1).unflatten(0, (len(part), width))
            counts = torch.tensor([len(some) for some in places], device=proba.device).view(-1, 1, 1, 1)
            there = torch.arange(width, device=proba.device).view(1, -1, 1, 1) < counts
            yield part, torch.where(there, proba, 0).sum(dim=1) / counts[:, 0]


def slices(items: Sequence[T], most: float) -> Iterator[Sequence[T]]:
    """Slices of at most so many items, at least one."""
    size = max(1, int(most))
    for first in range(0, len(items), size):
        yield items[first : first + size]
