"""Trials of one data set, all together: train bases and retrains, make what is averaged of them, measure it all."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from lowchurn.bench._loading import Data
from lowchurn.bench._protocol import Protocol, start_of
from lowchurn.bench._retraining import Bases, Members, Pool, Retrains, slices
from lowchurn.bench._segments import FINISHED, Row
from lowchurn.bench._within import Within, least_margin
from lowchurn.metrics import decide
from lowchurn.strategies import Plan, Recipe, Strategy, Training, plan

if TYPE_CHECKING:
    import torch

    from lowchurn.nets._trained import Trained

COPIES = 12  # of a model's weights that training takes at most: state, start, moments and what is moved about
DECIDED = 2**25  # decisions by margins that are made at a time
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
NO_TEACHER = "no teacher finished"
NO_TRAFFIC = "no training rows are left as traffic"


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
    pool = Pool(data, protocol, device=device, dtype=dtype, memory_limit=memory_limit, threads=threads)
    bases = Bases.train(pool, list(wanted))
    plans = {i: plan(strategies) for i, strategies in enumerate(wanted.values())}
    retrains = Retrains(pool, bases)
    retrains.train({i: plans[i] for i in bases.good})
    measured = _Measured(pool, bases, retrains, plans)
    results = [*measured.failed_bases(), *measured.rows()]
    seconds = time.perf_counter() - began
    models = sum(len(one.trainings) for one in plans.values())
    for row in results:
        row |= {"block_seconds": seconds, "block_models": models, "seconds": seconds / len(results)}
        row |= {"device": pool.device_name, "dtype": dtype}
    return results


@dataclass(frozen=True, eq=False)
class _Made:
    """A strategy in one trial, by its place ``i``, the models that it is made of, and the epochs of their trainings."""

    i: int
    strategy: Strategy
    recipe: Recipe
    members: Members
    epochs: int


@dataclass(frozen=True, eq=False)
class _Measured:
    """Makes every strategy of the plans of what was trained, and measures it on the test rows."""

    pool: Pool
    bases: Bases
    retrains: Retrains
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
        made: dict[str, list[_Made]] = {"model": [], "weights": [], "proba": [], "within": []}
        failed = []
        known: dict[tuple[int, tuple[Training, ...]], tuple[Members | None, int]] = {}  # many settings share members
        for i in self.bases.good:
            for strategy, recipe in self.plans[i].recipes.items():
                key = (i, recipe.members)
                if key not in known:
                    known[key] = self.retrains.members(i, recipe.members), self.retrains.epochs(i, recipe.trainings)
                members, epochs = known[key]
                if members is not None and (members.finished or recipe.of == "model"):
                    of = "within" if isinstance(strategy, Within) else recipe.of
                    made[of].append(_Made(i, strategy, recipe, members, epochs))
                else:
                    what = "" if recipe.of == "model" else "no member finished: "
                    reason = NO_TEACHER if members is None else members.left_out
                    failed.append(self._row(i, strategy, f"failed: {what}{reason}"))
        makers = {"model": self._alone, "weights": self._averages, "proba": self._mixtures, "within": self._within}
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

        pool, (model, proba) = self.pool, self._sizes
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

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """Bytes that an average of weights takes, and its probabilities of the test rows."""
        item = self.bases.proba.element_size()
        weights = sum(p.numel() for p in self.pool.network.parameters())
        return COPIES * item * weights, COPIES * item * len(self.pool.test) * self.pool.data.classes

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

        owners = [group[0].i for group in groups]
        before = self.bases.before[owners].to(torch.int64)
        placed = [(k, one) for k, group in enumerate(groups) for one in group]
        base = None
        for lean, alike in _grouped(placed, lambda each: each[1].recipe.lean).items():
            mixed = proba
            if lean:
                if base is None:
                    base = self.bases.trained.take(owners).outputs(self.pool.test).softmax(dim=-1)
                mixed = (1 - lean) * proba + lean * base
            best, gain = _gain(mixed, before)
            for bare, own in _grouped(alike, lambda each: each[1].recipe.margin is None).items():
                for some in slices(own, DECIDED / proba.shape[1]):
                    index = torch.tensor([k for k, _ in some], device=proba.device)
                    if bare:
                        after = decide(mixed[index])
                    else:
                        margins = gain.new_tensor([cast(float, one.recipe.margin) for _, one in some])
                        after = torch.where(gain[index] > margins.unsqueeze(1), best[index], before[index])
                    states = [status[k] for k, _ in some]
                    yield from self._rows([one for _, one in some], after.to(self.bases.before.dtype), states)

    def _within(self, made: list[_Made]) -> Iterator[Row]:
        """Methods under a budget: what is within it on the traffic of a trial and changes most there."""
        if made and not self.bases.traffic[0].size:
            yield from (self._row(one.i, one.strategy, f"failed: {NO_TRAFFIC}") for one in made)
            return
        for some in _grouped(made, lambda one: _within(one).method).values():
            trials = _grouped(some, lambda one: one.i)
            choose = self._chosen if some[0].recipe.margin is None else self._by_margin
            yield from choose(trials)

    def _by_margin(self, trials: dict[int, list[_Made]]) -> Iterator[Row]:
        """The least margin that keeps a budget on traffic, for every budget and trial of an estimate."""
        import torch

        for part, proba, on_traffic in self._estimates([group[0] for group in trials.values()]):
            owners = [one.i for one in part]
            before = self.bases.before[owners].to(torch.int64)
            best, gain = _gain(proba, before)
            _, there = _gain(on_traffic, self.bases.on_traffic[owners])
            for k, i in enumerate(owners):
                margins = [least_margin(there[k], _within(one).max_churn) for one in trials[i]]
                after = [torch.where(gain[k] > margin, best[k], before[k]) for margin in margins]
                yield from self._rows(
                    trials[i], torch.stack(after).to(self.bases.before.dtype), [FINISHED] * len(after)
                )

    def _estimates(self, made: list[_Made]) -> Iterator[tuple[Sequence[_Made], torch.Tensor, torch.Tensor]]:
        """The probabilities of averages of one kind for the test rows and for the traffic, some at a time."""
        import torch

        pool, traffic, share = self.pool, self.bases.traffic, made[0].recipe.base_share
        if made[0].recipe.of == "weights":
            for part in slices(made, pool.bytes_at_once / sum(self._sizes)):
                averaged, own = self._average(part), np.stack([traffic[one.i] for one in part])
                yield part, averaged.outputs(pool.test).softmax(dim=-1), averaged.outputs(pool.X, own).softmax(dim=-1)
            return
        owner = {one.i: one for one in made}
        for trials, means in self.retrains.means({i: one.members for i, one in owner.items()}):
            base, own = self.bases.trained.take(trials), np.stack([traffic[i] for i in trials])
            parts = self.retrains.means({i: owner[i].members for i in trials}, traffic)
            there = torch.stack([mean for _, some in parts for mean in some])
            both = (means, base.outputs(pool.test)), (there, base.outputs(pool.X, own))
            mixed, mixed_there = ((1 - share) * mean + share * logits.softmax(dim=-1) for mean, logits in both)
            yield [owner[i] for i in trials], mixed, mixed_there

    def _chosen(self, trials: dict[int, list[_Made]]) -> Iterator[Row]:
        """Of several models of a trial the one that changes most of the traffic within a budget, or the base."""
        import torch

        for i, made in trials.items():
            one, choices = made[0], _within(made[0]).choices
            if one.recipe.of == "weights":
                models = self._average([replace(one, recipe=plan([choice]).recipes[choice]) for choice in choices])
            else:
                models = one.members.stack.take(one.members.finished)
            own = np.stack([self.bases.traffic[i]] * len(models))
            changed = (decide(models.outputs(self.pool.X, own)) != self.bases.on_traffic[i]).double().mean(dim=1)
            after = torch.cat([self.bases.before[i : i + 1], models.decisions(self.pool.test)])
            changed = torch.cat([changed.new_zeros(1), changed])
            budgets = [_within(one).max_churn for one in made]
            best = [int(torch.where(changed <= budget * (1 + 1e-12), changed, -1).argmax()) for budget in budgets]
            yield from self._rows(made, after[best], [FINISHED] * len(made))

    def _rows(self, made: Sequence[_Made], after: torch.Tensor, status: Sequence[str]) -> Iterator[Row]:
        """Rows with what was measured of these models' decisions (K, test rows)."""
        if not made:
            return
        shares = self._shares(after, [one.i for one in made])
        for k, one in enumerate(made):
            row = self._row(one.i, one.strategy, status[k])
            row |= {"base_accuracy": self.bases.accuracy[one.i], "epochs": one.epochs, "left_out": one.members.left_out}
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
        # At once, since every answer of a GPU has to be waited for.
        counts = torch.stack([torch.cat(parts) for parts in shares.values()]).cpu().numpy()
        return dict(zip(shares, counts, strict=True))

    def _row(self, i: int, strategy: Strategy, status: str) -> Row:
        seed = self.bases.draws[i].seed
        return row_of(self.pool.data, self.pool.protocol, self.bases.trials[i], strategy, seed, status)


def _gain(proba: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest class besides the base's decision in each row, and how much likelier it is."""
    own = before.unsqueeze(-1)
    others = proba.scatter(-1, own, -1.0)
    best = decide(others)
    return best, (others.gather(-1, best.unsqueeze(-1)) - proba.gather(-1, own)).squeeze(-1)


def _within(one: _Made) -> Within:
    return cast(Within, one.strategy)


def _by_stack(made: list[_Made]) -> list[list[_Made]]:
    return list(_grouped(made, lambda one: id(one.members.stack)).values())


def _grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items of each key, keys in the order in which they come first."""
    groups: dict[K, list[T]] = {}
    for one in items:
        groups.setdefault(key(one), []).append(one)
    return groups


@lru_cache(maxsize=4096)  # the same in all trials
def _described(strategy: Strategy) -> Row:
    return {"strategy": strategy.name, "parameters": strategy.parameters, "start": start_of(strategy)}


def row_of(data: Data, protocol: Protocol, trial: int, strategy: Strategy, seed: int, status: str) -> Row:
    """A row of which nothing is measured yet."""
    undefined = dict.fromkeys(("accuracy", "churn", "broken", "fixed", "base_accuracy", "validation_loss"))
    return {
        "dataset": data.name,
        **protocol.key,
        **_described(strategy),
        "trial": trial,
        "seed": seed,
        **undefined,
        "epochs": None,
        "test_rows": len(data.test),
        "status": status,
        "data": data.fingerprint,
        "left_out": "",
    }
