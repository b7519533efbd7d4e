"""Trials of one data set, all together: train bases and retrains, make what is averaged of them, measure it all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from lowchurn.bench._loading import Data
from lowchurn.bench._protocol import Protocol, draw, make_network, start_of
from lowchurn.bench._store import FINISHED
from lowchurn.strategies import Group, Strategy, member_seed, one_hot, trainings

if TYPE_CHECKING:
    from lowchurn.nets import Trained

COPIES = 12  # of a model's weights that training takes at most: state, start, moments and what is moved about
BLEND_BYTES = 2**32  # that averages of weights or probabilities may take at a time
Owner = tuple[int, Strategy]  # a trial, by its place in the block, and a setting
Training = tuple[int, Strategy, int]  # the same, and which member of a group


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
        Settings for each trial. What several of them are made of is trained once.
    device, dtype, memory_limit, threads
        As in :func:`lowchurn.nets.train`.

    Returns
    -------
    list of dict
        One for each setting and trial, with what was measured; ``left_out`` names the members that failed and are not
        part of an average.
    """
    began = time.perf_counter()
    block = _Trials(data, protocol, wanted, device, dtype, memory_limit, threads)
    results = block.failed_bases()
    if block.good:
        block.train_members()
        results += block.measured()
    seconds = time.perf_counter() - began
    models = sum(len(needed_by(tuple(settings))) for settings in wanted.values())
    for row in results:
        row |= {"block_seconds": seconds, "block_models": models, "seconds": seconds / len(results)}
        row |= {"device": block.where, "dtype": dtype}
    return results


@lru_cache(maxsize=256)
def needed_by(settings: tuple[Strategy, ...]) -> dict[tuple[Strategy, int], None]:
    """What has to be trained for these settings of one trial, each once; see :func:`lowchurn.strategies.trainings`."""
    return dict.fromkeys(one for strategy in settings for one in trainings(strategy))


class _Trials:
    """The trials of one call of :func:`run_trials`; a trial is known by its place ``i`` in them."""

    def __init__(
        self,
        data: Data,
        protocol: Protocol,
        wanted: dict[int, list[Strategy]],
        device: str,
        dtype: str,
        memory_limit: float | None,
        threads: int | None,
    ) -> None:
        import torch

        from lowchurn.nets import Task, train

        self.data, self.protocol, self.trials = data, protocol, list(wanted)
        self.wanted = [wanted[trial] for trial in self.trials]
        found = "cuda" if torch.cuda.is_available() else "cpu"
        self.place = torch.device(found if device == "auto" else device)
        self.where = torch.cuda.get_device_name(self.place) if self.place.type == "cuda" else "cpu"
        self.kind = getattr(torch, dtype)
        self.budget = BLEND_BYTES if memory_limit is None else min(BLEND_BYTES, memory_limit / 4)
        self.network = make_network(protocol.network, data)
        rows = data.X.reshape(len(data.X), -1) if protocol.network.startswith("fcn-") else data.X
        pool = torch.from_numpy(np.ascontiguousarray(rows)).to(self.place)
        self.pool = pool.to(self.kind) if pool.is_floating_point() else pool
        self.labels = torch.from_numpy(data.y).to(self.place)
        chosen = torch.from_numpy(data.test).to(self.place)
        self.test, self.truth = self.pool[chosen], self.labels[chosen]
        self.options: dict[str, Any] = {
            "epochs": protocol.epochs,
            "patience": protocol.patience,
            "loss": protocol.loss,
            "device": str(self.place),
            "dtype": dtype,
            "memory_limit": memory_limit,
            "threads": threads,
            "progress": False,
        }
        self.draws = [draw(data, protocol, trial) for trial in self.trials]
        self.held_out = [self._truth_of(d.validation) for d in self.draws]
        self.base = train(
            self.network,
            self.pool,
            [
                Task(d.initial, self._truth_of(d.initial), d.validation, v, seed=d.base_seed)
                for d, v in zip(self.draws, self.held_out, strict=True)
            ],
            **self.options,
        )
        self.good = [i for i, status in enumerate(self.base.status) if status == FINISHED]
        self.before = self.base.decisions(self.test)
        self.base_right = self.before == self.truth
        self.base_accuracy = self.base_right.double().mean(dim=1).tolist()
        self.both = [d.both for d in self.draws]
        self.proba = torch.softmax(self.base.outputs(self.pool, np.stack(self.both)), dim=-1)
        self.onehot = [self._truth_of(rows) for rows in self.both]
        self.at: dict[Training, tuple[Trained, int]] = {}  # where each training lies
        self.lessons: dict[Group, dict[int, Any]] = {}  # of teachers, for each trial

    def _truth_of(self, rows: np.ndarray) -> Any:
        import torch

        return one_hot(self.labels[torch.from_numpy(rows).to(self.place)], self.data.classes).to(self.kind)

    # training

    def train_members(self) -> None:
        """Train what the settings are made of, each once: first what learns from labels, then what learns from that."""
        owners: dict[tuple[Strategy, int], list[int]] = {}
        for i in self.good:
            for one in needed_by(tuple(self.wanted[i])):
                owners.setdefault(one, []).append(i)
        for taught in (False, True):
            some = [one for one in owners if (one[0].teachers is not None) == taught]
            self._train([(i, *one) for one in some for i in owners[one]])

    def _train(self, members: list[Training]) -> None:
        from lowchurn.nets import Task, train

        if not members:
            return
        trials_of: dict[Strategy, list[int]] = {}
        for i, strategy, _ in members:
            trials_of.setdefault(strategy, []).append(i)
        aims = {s: self._targets(s, list(dict.fromkeys(some))) for s, some in trials_of.items()}
        pulls = self._pulls([s for s in trials_of if s.limit is not None])
        members = [one for one in members if one[0] in aims[one[1]]]  # a trial whose teachers all failed has no aim
        if not members:
            return
        tasks = [
            Task(
                rows=self.both[i],
                targets=aims[strategy][i],
                validation=self.draws[i].validation,
                validation_targets=self.held_out[i],
                seed=member_seed(self.draws[i].seed, j),
                start=(self.base, i) if strategy.base_share else None,
                base_share=strategy.base_share,
                mixing=strategy.mixing,
                coupling=strategy.coupling,
                limit=strategy.limit,
                pull=None if strategy.limit is None else pulls[i],
            )
            for i, strategy, j in members
        ]
        trained = train(self.network, self.pool, tasks, **self.options)
        self.at |= {member: (trained, k) for k, member in enumerate(members)}

    def _targets(self, strategy: Strategy, trials: list[int]) -> dict[int, Any]:
        """What each of these trials aims at; the labels themselves, not copies, where that is what a strategy wants."""
        import torch

        labels = {i: self.onehot[i] for i in trials}
        if strategy.teachers is not None:
            labels = self._taught(strategy, trials)
            trials = list(labels)
        if type(strategy)._targets is Strategy._targets or not trials:
            return labels
        if not strategy.rowwise:
            return {i: strategy.targets(labels[i], self.proba[i]) for i in trials}
        # Row by row, so all trials can be done at once.
        flat = strategy.targets(torch.cat([labels[i] for i in trials]), self.proba[trials].flatten(0, 1))
        return dict(zip(trials, flat.view(len(trials), *self.onehot[0].shape), strict=True))

    def _taught(self, strategy: Strategy, trials: list[int]) -> dict[int, Any]:
        """The mean probabilities of each trial's teachers for its training rows; made once for all their students."""
        group = strategy.teachers
        assert group is not None
        if group not in self.lessons:
            parts = self._means([i for i in self.good if self._members(i, group).finished], group, self.both)
            self.lessons[group] = {i: mean for part, means in parts for i, mean in zip(part, means, strict=True)}
        return {i: self.lessons[group][i] for i in trials if i in self.lessons[group]}

    def _pulls(self, strategies: list[Strategy]) -> list[Any]:
        """The base's decisions of each trial's training rows, made once."""
        if not strategies:
            return []
        pull = strategies[0].pull(self.proba.flatten(0, 1))
        return list(pull.view(self.proba.shape))

    # what is made of trained members

    def _members(self, i: int, group: Group) -> _Members:
        """Where the members of a group of one trial lie, and what became of those that are left out."""
        where = [self.at.get((i, group.strategy, j)) for j in range(group.count)]
        found = [one for one in where if one is not None]
        if not found:
            return _Members(None, [], "no teacher finished")
        trained = found[0][0]
        places = [k for _, k in found]
        states = [trained.status[k] for k in places]
        left_out = "; ".join(f"member {j} ({state})" for j, state in enumerate(states) if state != FINISHED)
        finished = [k for k, state in zip(places, states, strict=True) if state == FINISHED]
        return _Members(trained, finished, left_out)

    def _means(
        self, trials: list[int], group: Group, rows: list[np.ndarray] | None = None
    ) -> Iterator[tuple[list[int], Any]]:
        """Mean probabilities (T, n, m) of a group's finished members: of each trial's rows, or of the test rows."""
        import torch

        count = len(self.test) if rows is None else len(rows[0])
        each = 4 * (group.count + 1) * count * self.data.classes * self.proba.element_size()
        size = max(1, int(self.budget // each))
        for first in range(0, len(trials), size):
            part = trials[first : first + size]
            members = [self._members(i, group) for i in part]
            trained = members[0].trained
            assert trained is not None
            width = max(len(m.finished) for m in members)
            padded = [k for m in members for k in (*m.finished, *m.finished[:1] * (width - len(m.finished)))]
            own = None if rows is None else np.repeat(np.stack([rows[i] for i in part]), width, axis=0)
            logits = trained.take(padded).outputs(self.test if own is None else self.pool, own)
            proba = torch.softmax(logits, dim=-1).unflatten(0, (len(part), width))
            counts = torch.tensor([len(m.finished) for m in members], device=proba.device).view(-1, 1, 1, 1)
            there = torch.arange(width, device=proba.device).view(1, -1, 1, 1) < counts
            yield part, torch.where(there, proba, 0).sum(dim=1) / counts[:, 0]

    # measuring

    def measured(self) -> list[dict[str, Any]]:
        """The rows of all settings of all trials whose base is trained."""
        kinds: dict[str, list[Owner]] = {"": [], "weights": [], "proba": []}
        for i in self.good:
            for strategy in self.wanted[i]:
                kinds["" if strategy.blend is None else strategy.blend.of].append((i, strategy))
        return [*self._alone(kinds[""]), *self._weights(kinds["weights"]), *self._mixtures(kinds["proba"])]

    def _alone(self, owners: list[Owner]) -> Iterator[dict[str, Any]]:
        """Settings that are one trained model each."""
        stacks: dict[int, list[tuple[int, Owner]]] = {}
        for i, strategy in owners:
            found = self.at.get((i, strategy, 0))
            if found is None:
                yield self._row(i, strategy, "failed: no teacher finished")
            else:
                stacks.setdefault(id(found[0]), []).append((found[1], (i, strategy)))
        for some in stacks.values():
            some.sort(key=lambda one: one[0])
            places, own = [k for k, _ in some], [owner for _, owner in some]
            trained = self.at[(*own[0], 0)][0]
            chosen = trained if len(places) == len(trained) else trained.take(places)
            rows = self._rows(own, chosen.decisions(self.test), chosen.status)
            for row, loss in zip(rows, chosen.loss, strict=True):
                yield row | ({"validation_loss": float(loss)} if row["status"] == FINISHED else {})

    def _weights(self, owners: list[Owner]) -> Iterator[dict[str, Any]]:
        """Settings that are averages of weights, some at a time."""
        from lowchurn.nets import average

        stacks: dict[int, list[Owner]] = {}
        for i, strategy in owners:
            members = self._members(i, _group(strategy))
            if members.finished:
                stacks.setdefault(id(members.trained), []).append((i, strategy))
            else:
                yield self._row(i, strategy, f"failed: no member finished: {members.left_out}")
        weights = sum(p.numel() for p in self.network.parameters())
        size = max(1, int(self.budget // (COPIES * self.proba.element_size() * weights)))
        for some in stacks.values():
            for first in range(0, len(some), size):
                part = some[first : first + size]
                members_of = [self._members(i, _group(strategy)) for i, strategy in part]
                trained = members_of[0].trained
                assert trained is not None
                made = average(
                    trained,
                    [m.finished for m in members_of],
                    [(self.base, i) for i, _ in part],
                    [strategy.blend.base for _, strategy in part if strategy.blend],
                    X=self.pool,
                    rows=[self.both[i] for i, _ in part],
                )
                yield from self._rows(part, made.decisions(self.test), made.status, [m.left_out for m in members_of])

    def _mixtures(self, owners: list[Owner]) -> Iterator[dict[str, Any]]:
        """Settings that are averages of probabilities, some trials at a time."""
        import torch

        groups: dict[Group, dict[Strategy, list[int]]] = {}
        for i, strategy in owners:
            members = self._members(i, _group(strategy))
            if members.finished:
                groups.setdefault(_group(strategy), {}).setdefault(strategy, []).append(i)
            else:
                yield self._row(i, strategy, f"failed: no member finished: {members.left_out}")
        for group, settings in groups.items():
            trials = list(dict.fromkeys(i for some in settings.values() for i in some))
            for part, means in self._means(trials, group):
                base = torch.softmax(self.base.take(part).outputs(self.test), dim=-1)
                notes = {i: self._members(i, group).left_out for i in part}
                for strategy, wanting in settings.items():
                    own = [i for i in part if i in set(wanting)]
                    index = torch.tensor([part.index(i) for i in own], device=means.device, dtype=torch.int64)
                    share = strategy.blend.base if strategy.blend else 0.0
                    decided = ((1 - share) * means[index] + share * base[index]).argmax(dim=-1).to(self.before.dtype)
                    pairs = [(i, strategy) for i in own]
                    yield from self._rows(pairs, decided, [FINISHED] * len(own), [notes[i] for i in own])

    def _rows(
        self, owners: list[Owner], after: Any, status: Sequence[str], left_out: Sequence[str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Rows with what was measured of these models' decisions (K, test rows)."""
        if not owners:
            return
        shares = self._measure(after, [i for i, _ in owners])
        for k, (i, strategy) in enumerate(owners):
            row = self._row(i, strategy, status[k])
            places = [self.at[(i, *one)] for one in trainings(strategy) if (i, *one) in self.at]
            row |= {"epochs": int(sum(trained.epochs[at] for trained, at in places))}
            row |= {"base_accuracy": self.base_accuracy[i], "left_out": left_out[k] if left_out else ""}
            if status[k] == FINISHED:
                row |= {name: float(values[k]) for name, values in shares.items()}
            yield row

    def _measure(self, after: Any, owners: list[int]) -> dict[str, np.ndarray]:
        """Shares of the test rows for every model, counted on the device, some models at a time."""
        import torch

        index = torch.tensor(owners, device=after.device)
        shares: dict[str, list[Any]] = {"accuracy": [], "churn": [], "broken": [], "fixed": []}
        size = max(1, 2**28 // max(1, after.shape[1]))
        for first in range(0, len(after), size):
            part, own = after[first : first + size], index[first : first + size]
            right, changed, was_right = part == self.truth, part != self.before[own], self.base_right[own]
            for name, chosen in (
                ("accuracy", right),
                ("churn", changed),
                ("broken", changed & was_right),
                ("fixed", changed & right),
            ):
                shares[name].append(chosen.sum(dim=1).double() / after.shape[1])
        return {name: torch.cat(parts).cpu().numpy() for name, parts in shares.items()}

    def failed_bases(self) -> list[dict[str, Any]]:
        """The rows of trials whose base did not finish."""
        rows = []
        for i, settings in enumerate(self.wanted):
            if i not in self.good:
                reason = f"failed: the base {self.base.status[i].removeprefix('failed: ')}"
                rows += [self._row(i, strategy, reason) for strategy in settings]
        return rows

    def _row(self, i: int, strategy: Strategy, status: str) -> dict[str, Any]:
        return row_of(self.data, self.protocol, self.trials[i], strategy, self.draws[i].seed, status)


@dataclass(frozen=True)
class _Members:
    """The trainings of one group in one trial: the stack they lie in, the places of those that finished, the others."""

    trained: Trained | None
    finished: list[int]
    left_out: str


def _group(strategy: Strategy) -> Group:
    assert strategy.blend is not None
    return strategy.blend.group


def row_of(data: Data, protocol: Protocol, trial: int, strategy: Strategy, seed: int, status: str) -> dict[str, Any]:
    """A row of which nothing is measured yet."""
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
        "left_out": "",
    }
