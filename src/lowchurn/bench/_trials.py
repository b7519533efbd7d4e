"""Trials of one data set, all together: train bases and retrains, make what is averaged of them, measure it all."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lowchurn.bench._loading import Data
from lowchurn.bench._protocol import Draw, Protocol, draw, make_network, start_of
from lowchurn.bench._segments import FINISHED, Row
from lowchurn.metrics import decide
from lowchurn.strategies import Plan, Recipe, Strategy, Training, member_seed, one_hot, plan

if TYPE_CHECKING:
    import torch

    from lowchurn.nets import Task
    from lowchurn.nets._trained import Trained

COPIES = 12  # of a model's weights that training takes at most: state, start, moments and what is moved about
BLEND_BYTES = 2**32  # that averages of weights or probabilities may take at a time
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
NO_TEACHER = "no teacher finished"


def run_trials(
    data: Data,
    protocol: Protocol,
    wanted: dict[int, list[Strategy]],
    *,
    device: str = "auto",
    dtype: str = "float32",
    memory_limit: float | None = None,
    threads: int | None = None,
) -> list[Row]:
    """Train and measure some strategies in some trials, all together; what several are made of is trained once.

    The data are scaled already. There is a row for each strategy and trial; ``left_out`` names the members that failed
    and are not part of an average.
    """
    began = time.perf_counter()
    pool = _Pool(data, protocol, device=device, dtype=dtype, memory_limit=memory_limit, threads=threads)
    bases = _Bases.train(pool, list(wanted))
    plans = {i: plan(strategies) for i, strategies in enumerate(wanted.values())}
    retrains = _Retrains(pool, bases)
    retrains.train({i: plans[i] for i in bases.good})
    measured = _Measured(pool, bases, retrains, plans)
    results = [*measured.failed_bases(), *measured.rows()]
    seconds = time.perf_counter() - began
    models = sum(len(one.trainings) for one in plans.values())
    for row in results:
        row |= {"block_seconds": seconds, "block_models": models, "seconds": seconds / len(results)}
        row |= {"device": pool.device_name, "dtype": dtype}
    return results


class _Pool:
    """What all trials share: the rows on the device, the network, and how it is trained."""

    def __init__(self, data: Data, protocol: Protocol, **options: Any) -> None:
        import torch

        found = "cuda" if torch.cuda.is_available() else "cpu"
        place = torch.device(found if options["device"] == "auto" else options["device"])
        self.data, self.protocol = data, protocol
        self.network = make_network(protocol.network, data)
        self.dtype: torch.dtype = getattr(torch, options["dtype"])
        rows = data.X.reshape(len(data.X), -1) if protocol.network.startswith("fcn-") else data.X
        X = torch.from_numpy(np.ascontiguousarray(rows)).to(place)
        self.X = X.to(self.dtype) if X.is_floating_point() else X
        self.labels = torch.from_numpy(data.y).to(place)
        limit = options["memory_limit"]
        self.bytes_at_once = BLEND_BYTES if limit is None else min(BLEND_BYTES, limit / 4)
        stopping = {"epochs": protocol.epochs, "patience": protocol.patience, "loss": protocol.loss}
        self.options: dict[str, Any] = options | stopping | {"device": str(place), "progress": False}
        test = torch.from_numpy(data.test).to(place)
        self.test, self.truth = self.X[test], self.labels[test]
        self.device_name = torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"

    def onehot(self, rows: np.ndarray) -> torch.Tensor:
        """The labels of some rows as rows of zeros and a one."""
        import torch

        labels = self.labels[torch.from_numpy(rows).to(self.labels.device)]
        made: torch.Tensor = one_hot(labels, self.data.classes).to(self.dtype)
        return made

    def train(self, tasks: list[Task]) -> Trained:
        from lowchurn import nets

        return nets.train(self.network, self.X, tasks, **self.options)


@dataclass(frozen=True, eq=False)
class _Bases:
    """The draws of some trials and the base of each; a trial is known by its place ``i`` among them."""

    pool: _Pool
    trials: list[int]
    draws: list[Draw]
    held_out: list[torch.Tensor]  # labels of the validation rows
    trained: Trained

    @classmethod
    def train(cls, pool: _Pool, trials: list[int]) -> _Bases:
        """Train the base of each trial."""
        from lowchurn.nets import Task

        draws = [draw(pool.data, pool.protocol, trial) for trial in trials]
        held_out = [pool.onehot(d.validation) for d in draws]
        tasks = [
            Task(d.initial, pool.onehot(d.initial), d.validation, labels, seed=d.base_seed)
            for d, labels in zip(draws, held_out, strict=True)
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
    def onehot(self) -> list[torch.Tensor]:
        return [self.pool.onehot(rows) for rows in self.both]

    @cached_property
    def proba(self) -> torch.Tensor:
        """The base's probabilities of the rows that retrains are trained on."""
        return self.trained.outputs(self.pool.X, np.stack(self.both)).softmax(dim=-1)

    @cached_property
    def good(self) -> list[int]:
        """The trials whose base finished."""
        return [i for i, status in enumerate(self.trained.status) if status == FINISHED]

    @cached_property
    def accuracy(self) -> list[float]:
        found: list[float] = self.right.double().mean(dim=1).tolist()
        return found


@dataclass(frozen=True, eq=False)
class _Members:
    """The models of some trainings of one trial: the stack they lie in, and their places there."""

    stack: Trained
    places: list[int]

    @cached_property
    def finished(self) -> list[int]:
        return [k for k in self.places if self.stack.status[k] == FINISHED]

    @property
    def left_out(self) -> str:
        states = [self.stack.status[k] for k in self.places]
        return "; ".join(f"member {j} ({state})" for j, state in enumerate(states) if state != FINISHED)


@dataclass(frozen=True, eq=False)
class _Made:
    """A strategy in one trial, by its place ``i``, and the models that it is made of."""

    i: int
    strategy: Strategy
    recipe: Recipe
    members: _Members


@dataclass(eq=False)
class _Retrains:
    """Executes the plans of some trials, and keeps where the model of each training lies."""

    pool: _Pool
    bases: _Bases
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
        aims = {s: self._targets(s, list(dict.fromkeys(some))) for s, some in trials_of.items()}
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
                    start=(bases.trained, i),
                    pull=None if pulls is None else pulls[i],
                ),
            )
            for i, (strategy, member) in wanted
        ]
        trained = self.pool.train(tasks)
        self.at |= {one: (trained, k) for k, one in enumerate(wanted)}

    def _targets(self, strategy: Strategy, trials: list[int]) -> dict[int, torch.Tensor]:
        """What each of these trials aims at; the labels themselves, not copies, where that is what a strategy wants."""
        import torch

        labels = {i: self.bases.onehot[i] for i in trials}
        if strategy.teachers is not None:
            taught = self._taught(Training(strategy).teachers)
            labels = {i: taught[i] for i in trials if i in taught}
            trials = list(labels)
        if type(strategy)._targets is Strategy._targets or not trials:
            return labels
        if not strategy.rowwise:
            return {i: strategy.targets(labels[i], self.bases.proba[i]) for i in trials}
        # Row by row, so all trials can be done at once.
        flat = strategy.targets(torch.cat([labels[i] for i in trials]), self.bases.proba[trials].flatten(0, 1))
        return dict(zip(trials, flat.view(len(trials), *self.bases.onehot[0].shape), strict=True))

    def _taught(self, teachers: tuple[Training, ...]) -> dict[int, torch.Tensor]:
        """The mean probabilities of each trial's teachers for its training rows; made once for all their students."""
        if teachers not in self.lessons:
            found = {i: self.members(i, teachers) for i in self.bases.good}
            able = {i: members for i, members in found.items() if members is not None and members.finished}
            parts = self.means(able, self.bases.both)
            self.lessons[teachers] = {i: mean for part, means in parts for i, mean in zip(part, means, strict=True)}
        return self.lessons[teachers]

    def members(self, i: int, trainings: tuple[Training, ...]) -> _Members | None:
        """Where the models of some trainings of one trial lie; None where they had no teacher."""
        found = [self.at[i, one] for one in trainings if (i, one) in self.at]
        return _Members(found[0][0], [k for _, k in found]) if found else None  # those of a group are in one stack

    def means(
        self, members: dict[int, _Members], rows: list[np.ndarray] | None = None
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


@dataclass(frozen=True, eq=False)
class _Measured:
    """Makes every strategy of the plans of what was trained, and measures it on the test rows."""

    pool: _Pool
    bases: _Bases
    retrains: _Retrains
    plans: dict[int, Plan]

    def failed_bases(self) -> list[Row]:
        """The rows of trials whose base did not finish."""
        rows = []
        for i, one in self.plans.items():
            if i not in self.bases.good:
                reason = f"failed: the base {self.bases.trained.status[i].removeprefix('failed: ')}"
                rows += [self._row(i, strategy, reason) for strategy in one.recipes]
        return rows

    def rows(self) -> list[Row]:
        """The rows of all strategies of all trials whose base finished."""
        made: dict[str, list[_Made]] = {"model": [], "weights": [], "proba": []}
        failed = []
        for i in self.bases.good:
            for strategy, recipe in self.plans[i].recipes.items():
                members = self.retrains.members(i, recipe.members)
                if members is not None and (members.finished or recipe.of == "model"):
                    made[recipe.of].append(_Made(i, strategy, recipe, members))
                else:
                    what = "" if recipe.of == "model" else "no member finished: "
                    reason = NO_TEACHER if members is None else members.left_out
                    failed.append(self._row(i, strategy, f"failed: {what}{reason}"))
        makers = {"model": self._alone, "weights": self._averages, "proba": self._mixtures}
        return [*failed, *(row for of, make in makers.items() for row in make(made[of]))]

    def _alone(self, made: list[_Made]) -> Iterator[Row]:
        """Strategies that are one trained model each."""
        for some in _by_stack(made):
            some.sort(key=lambda one: one.members.places)
            trained, places = some[0].members.stack, [one.members.places[0] for one in some]
            chosen = trained if len(places) == len(trained) else trained.take(places)
            rows = self._rows(some, chosen.decisions(self.pool.test), chosen.status)
            for row, loss in zip(rows, chosen.loss, strict=True):
                yield row | {"left_out": ""} | ({"validation_loss": float(loss)} if row["status"] == FINISHED else {})

    def _averages(self, made: list[_Made]) -> Iterator[Row]:
        """Strategies that are averages of weights, some at a time; all margins of one average together."""
        import torch

        pool, item = self.pool, self.bases.proba.element_size()
        model = COPIES * item * sum(p.numel() for p in pool.network.parameters())
        proba = COPIES * item * len(pool.test) * pool.data.classes
        for some in _by_stack([one for one in made if one.recipe.margin is None]):
            for part in slices(some, pool.bytes_at_once / model):
                averaged = self._average(part)
                yield from self._rows(part, averaged.decisions(pool.test), averaged.status)
        for some in _by_stack([one for one in made if one.recipe.margin is not None]):
            groups = _grouped(some, lambda one: (one.i, one.recipe.members, one.recipe.base_share))
            for alike in slices(list(groups.values()), pool.bytes_at_once / (model + proba)):
                averaged = self._average([group[0] for group in alike])
                found = torch.softmax(averaged.outputs(pool.test), dim=-1)
                yield from self._decided(alike, found, averaged.status)

    def _average(self, made: Sequence[_Made]) -> Trained:
        """The average of weights that each of these is."""
        from lowchurn.nets import average

        return average(
            made[0].members.stack,
            [one.members.finished for one in made],
            [(self.bases.trained, one.i) for one in made],
            [one.recipe.base_share for one in made],
            X=self.pool.X,
            rows=[self.bases.both[one.i] for one in made],
        )

    def _mixtures(self, made: list[_Made]) -> Iterator[Row]:
        """Strategies that are averages of probabilities, some trials at a time; all of the same members together."""
        import torch

        for some in _grouped(made, lambda one: one.recipe.members).values():
            alike = _grouped(some, lambda one: (one.recipe.base_share, one.i))
            shares = dict.fromkeys(share for share, _ in alike)
            for part, means in self.retrains.means({one.i: one.members for one in some}):
                base = torch.softmax(self.bases.trained.take(part).outputs(self.pool.test), dim=-1)
                for share in shares:
                    places = [k for k, i in enumerate(part) if (share, i) in alike]
                    if places:
                        mixed = (1 - share) * means[places] + share * base[places]
                        groups = [alike[share, part[k]] for k in places]
                        yield from self._decided(groups, mixed, [FINISHED] * len(groups))

    def _decided(self, groups: Sequence[list[_Made]], proba: torch.Tensor, status: Sequence[str]) -> Iterator[Row]:
        """Strategies that decide by the same probabilities, group by group (K, test rows, m), each by its margin."""
        import torch

        before = self.bases.before[[group[0].i for group in groups]].to(torch.int64)
        others = proba.scatter(-1, before.unsqueeze(-1), -1.0)
        best = decide(others)
        gain = (others.gather(-1, best.unsqueeze(-1)) - proba.gather(-1, before.unsqueeze(-1))).squeeze(-1)
        placed = [(k, one) for k, group in enumerate(groups) for one in group]
        for margin, some in _grouped(placed, lambda each: each[1].recipe.margin).items():
            index = torch.tensor([k for k, _ in some], device=proba.device)
            if margin is None:
                after = decide(proba[index])
            else:
                after = torch.where(gain[index] > margin, best[index], before[index])
            states = [status[k] for k, _ in some]
            yield from self._rows([one for _, one in some], after.to(self.bases.before.dtype), states)

    def _rows(self, made: Sequence[_Made], after: torch.Tensor, status: Sequence[str]) -> Iterator[Row]:
        """Rows with what was measured of these models' decisions (K, test rows)."""
        if not made:
            return
        shares = self._shares(after, [one.i for one in made])
        for k, one in enumerate(made):
            row = self._row(one.i, one.strategy, status[k])
            found = (self.retrains.at.get((one.i, training)) for training in one.recipe.trainings)
            row |= {"epochs": int(sum(at[0].epochs[at[1]] for at in found if at is not None))}
            row |= {"base_accuracy": self.bases.accuracy[one.i], "left_out": one.members.left_out}
            if status[k] == FINISHED:
                row |= {name: float(values[k]) for name, values in shares.items()}
            yield row

    def _shares(self, after: torch.Tensor, owners: list[int]) -> dict[str, np.ndarray]:
        """Shares of the test rows for every model, counted on the device, some models at a time."""
        import torch

        index = torch.tensor(owners, device=after.device)
        shares: dict[str, list[torch.Tensor]] = {"accuracy": [], "churn": [], "broken": [], "fixed": []}
        for some in slices(range(len(after)), 2**28 / max(1, after.shape[1])):
            part, own = after[some[0] : some[-1] + 1], index[some[0] : some[-1] + 1]
            right, changed = part == self.pool.truth, part != self.bases.before[own]
            counted = (right, changed, changed & self.bases.right[own], changed & right)
            for name, chosen in zip(shares, counted, strict=True):
                shares[name].append(chosen.sum(dim=1).double() / after.shape[1])
        return {name: torch.cat(parts).cpu().numpy() for name, parts in shares.items()}

    def _row(self, i: int, strategy: Strategy, status: str) -> Row:
        seed = self.bases.draws[i].seed
        return row_of(self.pool.data, self.pool.protocol, self.bases.trials[i], strategy, seed, status)


def _by_stack(made: list[_Made]) -> list[list[_Made]]:
    return list(_grouped(made, lambda one: id(one.members.stack)).values())


def _grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items of each key, keys in the order in which they come first."""
    groups: dict[K, list[T]] = {}
    for one in items:
        groups.setdefault(key(one), []).append(one)
    return groups


def slices(items: Sequence[T], most: float) -> Iterator[Sequence[T]]:
    """Slices of at most so many items, at least one."""
    size = max(1, int(most))
    for first in range(0, len(items), size):
        yield items[first : first + size]


def row_of(data: Data, protocol: Protocol, trial: int, strategy: Strategy, seed: int, status: str) -> Row:
    """A row of which nothing is measured yet."""
    undefined = dict.fromkeys(("accuracy", "churn", "broken", "fixed", "base_accuracy", "validation_loss"))
    return {
        "dataset": data.name,
        **protocol.key,
        "strategy": strategy.name,
        "parameters": strategy.parameters,
        "trial": trial,
        "start": start_of(strategy),
        "seed": seed,
        **undefined,
        "epochs": None,
        "test_rows": len(data.test),
        "status": status,
        "data": data.fingerprint,
        "left_out": "",
    }
