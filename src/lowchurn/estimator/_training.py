"""Train candidates and measure them on held-out rows."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import _safe_indexing

from lowchurn._estimates import share_of_rows, weighted_mean
from lowchurn._terminal import one_line
from lowchurn.estimator._frontier import Candidate, Frontier
from lowchurn.estimator._labels import positions, training_labels
from lowchurn.estimator._production import WHO, align
from lowchurn.estimator._split import Part, effective_rows, whole_numbers
from lowchurn.estimator._to_train import refuse_nan, take_apart
from lowchurn.learners import Job, Learner, learner_for
from lowchurn.scoring import Score
from lowchurn.strategies import Group, Strategy, member_seed, one_hot, trainings

BASE = -1  # stands for the base among the places of models


def only_base(weights: Mapping[int, float]) -> bool:
    """Whether the base alone is served, which then decides as it does in production."""
    return list(weights) == [BASE]


def weighted(each: Mapping[int, np.ndarray], weights: Mapping[int, float]) -> np.ndarray:
    """Probabilities of models, summed with their weights."""
    if len(weights) == 1:
        return each[next(iter(weights))]
    return np.asarray(sum(weight * each[k] for k, weight in weights.items()))


class Diverged(RuntimeError):
    """A training that ran and gave no model to serve."""


def clearly_worse(right: np.ndarray, other: np.ndarray, weights: np.ndarray) -> bool:
    """Whether decisions are right in more than ten points fewer rows than others, and beyond three standard errors.

    Rows that both decide rightly or wrongly say nothing: the difference is that of the rows won and lost, its standard
    error the root of their sum (McNemar's). Three of them are a chance of one in a thousand; ten points are more than
    a retrain gains in practice, so that they ask for another cause.
    """
    won, lost = float(weights[right & ~other].sum()), float(weights[~right & other].sum())
    return lost - won > max(0.1 * float(weights.sum()), 3 * math.sqrt(lost + won))


@dataclass(frozen=True, eq=False)
class Trained:
    """A fitted model behind its fitted preprocessing."""

    preprocessing: Any
    model: Any
    classes: np.ndarray

    def made(self) -> Trained:
        return self

    @functools.cached_property
    def _in_order(self) -> bool:
        """Whether the model's columns are the classes in their order; asked once, not for every row served."""
        place = positions(self.model.classes_, training_labels(self.classes))
        return np.array_equal(place, np.arange(len(self.classes)))

    def proba(self, X: Any) -> np.ndarray:
        rows = X if self.preprocessing is None else self.preprocessing.transform(X)
        proba = np.asarray(self.model.predict_proba(rows), dtype=float)
        if self._in_order and (np.abs(proba.sum(axis=1) - 1) < 1e-9).all():
            return proba
        return align(proba, self.model.classes_, training_labels(self.classes))


@dataclass(frozen=True)
class Terms:
    """What a choice among measured candidates is about: hard or soft churn, by which score, on how many rows."""

    hard: bool
    score: str
    rows: float


@dataclass(frozen=True, eq=False)
class Ruler:
    """Measures probabilities of some rows against their labels and the base."""

    y: np.ndarray
    weights: np.ndarray
    base_proba: np.ndarray
    base_decisions: np.ndarray
    score: Score
    hard: bool

    @property
    def terms(self) -> Terms:
        return Terms(self.hard, self.score.name, effective_rows(self.weights))

    def decided(self, proba: np.ndarray, base_alone: bool = False) -> np.ndarray:
        """The likeliest class of each row; the base by itself decides as it does in production."""
        likeliest = proba.argmax(axis=1)
        return np.where(self.base_decisions >= 0, self.base_decisions, likeliest) if base_alone else likeliest

    def errors(self, proba: np.ndarray, base_alone: bool = False) -> np.ndarray:
        return np.asarray(self.decided(proba, base_alone) != self.y, dtype=float)

    def error(self, proba: np.ndarray, base_alone: bool = False) -> float:
        return float(np.average(self.errors(proba, base_alone), weights=self.weights))

    def risk(self, proba: np.ndarray) -> float:
        return float(np.average(self.score.loss(self.y, proba), weights=self.weights))

    def cost(self, proba: np.ndarray, base_alone: bool = False) -> float:
        """What is to be small within the budget: the error for hard churn, the score for soft churn."""
        return self.error(proba, base_alone) if self.hard else self.risk(proba)

    def changes(self, proba: np.ndarray, base_alone: bool = False) -> np.ndarray:
        """Churn of each row: zeros and ones, or divergences."""
        if self.hard:
            return np.asarray(self.decided(proba, base_alone) != self.base_decisions, dtype=float)
        return np.maximum(self.score.divergence(self.base_proba, proba), 0.0)

    def churn(self, proba: np.ndarray) -> float:
        return float(np.average(self.changes(proba), weights=self.weights))

    def measure(self, candidate: Candidate, proba: np.ndarray, base_alone: bool = False) -> Candidate:
        values = self.changes(proba, base_alone)
        churn = float(np.average(values, weights=self.weights))
        base_right, right = self.base_decisions == self.y, self.errors(proba, base_alone) == 0
        accuracy = 1 - self.error(proba, base_alone)
        broken = float(np.average(base_right & ~right, weights=self.weights))
        fixed = float(np.average(right & ~base_right, weights=self.weights))
        copies = whole_numbers(self.weights)

        def share(hits: np.ndarray) -> tuple[float, float]:
            found = share_of_rows(hits, self.weights, copies)
            return found.low, found.high

        if self.hard:
            churn_interval = share(values == 1)
        else:
            mean = weighted_mean(values, self.weights)
            churn_interval = mean.low, mean.high
        return dataclasses.replace(
            candidate,
            risk=self.risk(proba),
            accuracy=accuracy,
            churn=churn,
            broken=broken,
            fixed=fixed,
            accuracy_interval=share(right),
            churn_interval=churn_interval,
            broken_interval=share(base_right & ~right),
            fixed_interval=share(right & ~base_right),
            rows=effective_rows(self.weights),
        )


@dataclass(frozen=True, eq=False)
class Dialled:
    """A model on a dial, made from the two at its ends when it is asked for, and not kept."""

    preprocessing: Any
    make: Callable[[], Any]
    classes: np.ndarray
    mean: int  # the place of the model at its new end
    toward_base: float
    rows: Any  # of training, where making needs them

    @property
    def needs_rows(self) -> bool:
        """Whether it holds training rows, which batch normalisation needs."""
        return self.rows is not None

    def made(self) -> Trained:
        return Trained(self.preprocessing, self.make(), self.classes)

    def proba(self, X: Any) -> np.ndarray:
        return self.made().proba(X)


def dialled(learner: Learner, start: tuple[Any, Any], mean: Any, place: int, toward_base: float, rows: Any) -> Dialled:
    """A position on the dial from a model (at this place) to the base, given as its preprocessing and its model."""
    preprocessing, base = start
    make = functools.partial(learner.average, [mean, base], [1 - toward_base, toward_base], rows)
    return Dialled(preprocessing, make, learner.classes, place, toward_base, rows)


@dataclass(eq=False)
class Trials:
    """Trains strategies on one set of rows, through preprocessing that is fitted once, and keeps what came out.

    ``models`` are all models, trained or averaged, with their ``names``; ``frontier`` the candidates, with ``probas``
    on the rows to choose on, and ``served_as``, the models (or the base) that serve a candidate and their weights.
    """

    estimator: Any
    classes: np.ndarray
    X: Any
    y: np.ndarray
    train: Part
    base_proba: np.ndarray | None
    start: tuple[Any, Any]  # the base's preprocessing and model, for starts from its weights
    X_choose: Any
    ruler: Ruler | None
    n_jobs: int | None
    seed: int | None
    done: Callable[[], None]
    servable: bool = False  # whether the base can be a part of what is served
    frontier: Frontier = field(default_factory=Frontier)
    probas: list[np.ndarray | None] = field(default_factory=list)
    served_as: list[dict[int, float] | None] = field(default_factory=list)
    models: list[Trained | Dialled] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    trainings: int = 0

    def __post_init__(self) -> None:
        steps, final = take_apart(self.estimator)
        self.labels = training_labels(self.classes)
        self.learner: Learner = learner_for(final, self.labels, self.start[1])
        rows = _safe_indexing(self.X, self.train.rows)
        self.y_train = self.y[self.train.rows]
        self.preprocessing: Any = None
        if steps is not None:
            self.preprocessing = clone(steps)
            rows = self._preprocess(rows)
        refuse_nan(rows, self.learner)
        self.rows = rows
        self.onehot = one_hot(self.y_train, len(self.classes))
        self._reasons: dict[Strategy, str] = {}
        self._trained: dict[tuple[Strategy, int], int | Exception] = {}  # where its model is, or why there is none
        self._seconds: dict[tuple[Strategy, int], float] = {}
        self._means: dict[tuple[int, ...], int] = {}  # averages of several models
        self._taught: dict[Group, np.ndarray | Exception] = {}
        self._model_probas: dict[int, np.ndarray] = {}

    def _preprocess(self, rows: Any) -> Any:
        """Fit the preprocessing once. It takes no weights, so counts of copies are written out for it."""
        weight, y = self.train.weight, self.labels[self.y_train]
        if weight is None or not whole_numbers(weight):
            return self.preprocessing.fit_transform(rows, y)
        copies = np.repeat(np.arange(len(y)), weight.astype(int))
        ready = self.preprocessing.fit_transform(_safe_indexing(rows, copies), y[copies])
        return _safe_indexing(ready, np.unique(copies, return_index=True)[1])

    @property
    def notes(self) -> tuple[str, ...]:
        """What the selection has to tell about the trainings: what failed, and what the learner did by itself."""
        failed = [row for row in self.frontier if row.status == "failed"]
        return (
            *(f"{row.name} failed and is not served: {row.reason.rstrip('.')}." for row in failed),
            *self.learner.notes,
        )

    @functools.cached_property
    def warm_rows(self) -> Any:
        """Rows as the base's own preprocessing gives them: its weights mean nothing elsewhere."""
        preprocessing = self.start[0]
        rows = _safe_indexing(self.X, self.train.rows)
        return rows if preprocessing is None else preprocessing.transform(rows)

    def cannot(self, strategy: Strategy) -> str:
        """Why a strategy cannot be done here, in words; empty where it can."""
        blend = strategy.blend
        if self.base_proba is None and (strategy.needs_base or blend is not None):
            return "it needs a base."
        if blend is not None and blend.of == "weights":
            reason = self._cannot_average
        elif blend is not None and not self.servable:
            reason = "the base is known only by its probabilities of these rows, so that it cannot be served."
        else:
            reason = ""
        parts = dict.fromkeys(one for one, _ in trainings(strategy))
        return next(filter(None, [reason, *map(self._cannot_train, parts)]), "")

    @functools.cached_property
    def _cannot_average(self) -> str:
        return self.learner.cannot_average(self.start[1]) or ""

    def _cannot_train(self, strategy: Strategy) -> str:
        """Asked once for each: every position of a dial has the same members, and a network is made to look."""
        if strategy not in self._reasons:
            self._reasons[strategy] = self.learner.cannot(strategy, self.start[1]) or ""
        return self._reasons[strategy]

    def run(self, strategies: Iterable[Strategy]) -> None:
        """Train strategies and measure them; what fails or cannot be done is a row with its reason."""
        asked = list(strategies)
        reasons = [self.cannot(s) for s in asked]
        wanted = dict.fromkeys(one for s, no in zip(asked, reasons, strict=True) if not no for one in trainings(s))
        for taught in (False, True):  # teachers come before their students
            for warm in (False, True):
                group = [
                    (s, j)
                    for s, j in wanted
                    if (s, j) not in self._trained and (s.teachers is not None) == taught and (s.base_share > 0) == warm
                ]
                if group:
                    self._train(group, warm)
        for strategy, reason in zip(asked, reasons, strict=True):
            if reason:
                self._keep(strategy, None, reason, "skipped")
                continue
            try:
                served, left_out = self._made(strategy)
            except Exception as error:
                if not self.frontier:
                    raise  # not even the plain retrain: the data or the estimator is at fault
                self._keep(strategy, None, f"{type(error).__name__}: {one_line(error)}", "failed")
            else:
                self._keep(strategy, served, left_out, "trained")

    def _made(self, strategy: Strategy) -> tuple[dict[int, float], str]:
        """What serves a strategy, as weights of models, and in words which members were left out."""
        blend = strategy.blend
        if blend is None:
            place = self._trained[strategy, 0]
            if isinstance(place, Exception):
                raise place
            return {place: 1.0}, "; ".join(self._lost(strategy.teachers, "teacher"))
        members = [self._trained[blend.group.strategy, j] for j in range(blend.group.count)]
        good = [place for place in members if not isinstance(place, Exception)]
        lost = self._lost(blend.group.strategy.teachers, "teacher") + self._lost(blend.group, "member")
        if not good:
            raise RuntimeError("; ".join(lost))
        if blend.base == 1 and self.servable:
            return {BASE: 1.0}, "; ".join(lost)
        if blend.of == "weights":
            return {self._averaged(good, blend.base): 1.0}, "; ".join(lost)
        served = {place: (1 - blend.base) / len(good) for place in good}
        return served | ({BASE: blend.base} if blend.base else {}), "; ".join(lost)

    def _lost(self, group: Group | None, what: str) -> list[str]:
        """Which of a group failed, in words."""
        trained = [] if group is None else [self._trained[group.strategy, j] for j in range(group.count)]
        return [f"{what} {j} is left out: {e}" for j, e in enumerate(trained) if isinstance(e, Exception)]

    def _averaged(self, members: list[int], base_share: float) -> int:
        """The place of a model: the mean of some, moved toward the base."""
        many = tuple(members)
        if many not in self._means:
            self._means[many] = members[0]
            if len(members) > 1:
                models = [self._model(k) for k in members]
                mean = self.learner.average(models, [1 / len(models)] * len(models), self.warm_rows)
                self._means[many] = self._add(f"mean of {len(models)}", Trained(self.start[0], mean, self.classes))
        mean_place = self._means[many]
        if base_share == 0:
            return mean_place
        mean = self._model(mean_place)
        rows = self.warm_rows if self.learner.needs_rows(mean) else None  # a dial is kept, and rows with it
        model = dialled(self.learner, self.start, mean, mean_place, base_share, rows)
        return self._add(f"{self.names[mean_place]}, {base_share:g} toward the base", model)

    def _model(self, place: int) -> Any:
        found = self.models[place]
        assert isinstance(found, Trained)
        return found.model

    def _add(self, name: str, model: Trained | Dialled) -> int:
        self.models.append(model)
        self.names.append(name)
        return len(self.models) - 1

    def _train(self, group: Sequence[tuple[Strategy, int]], warm: bool) -> None:
        """A model or an exception for each, and the seconds where they were trained one by one."""
        truths = {s: self._truth(s) for s, _ in group}
        self._trained |= {(s, j): truth for (s, j) in group if isinstance(truth := truths[s], Exception)}
        group = [one for one in group if one not in self._trained]
        jobs = [
            Job(
                np.asarray(s.targets(truths[s], self.base_proba)),
                s,
                self.train.weight,
                self.seed if member == 0 else member_seed(self.seed or 0, member),
                self.y_train,
                None if s.limit is None else np.asarray(s.pull(self.base_proba)),
                member,
            )
            for s, member in group
        ]
        begin = time.perf_counter()
        rows, base = (self.warm_rows, self.start[1]) if warm else (self.rows, None)
        results = self.learner.fit_many(rows, jobs, base, self.n_jobs)
        seconds = (time.perf_counter() - begin) if len(jobs) == 1 else math.nan
        self.trainings += len(jobs)
        preprocessing = self.start[0] if warm else self.preprocessing
        for one, result in zip(group, results, strict=True):
            self.done()
            self._seconds[one] = seconds
            if isinstance(result, Exception):
                self._trained[one] = result
                continue
            strategy, member = one
            name = f"{strategy.name}({strategy.setting})" if strategy.setting else strategy.name
            name = f"{name} #{member + 1}" if member else name
            self._trained[one] = self._add(name, Trained(preprocessing, result, self.classes))

    def _truth(self, strategy: Strategy) -> np.ndarray | Exception:
        """What takes the place of p in the targets: the labels, or the mean prediction of the strategy's teachers."""
        group = strategy.teachers
        if group is None:
            return self.onehot
        if group not in self._taught:
            rows = _safe_indexing(self.X, self.train.rows)
            places = [self._trained[group.strategy, j] for j in range(group.count)]
            probas = [self.models[place].proba(rows) for place in places if not isinstance(place, Exception)]
            failed = [place for place in places if isinstance(place, Exception)]
            self._taught[group] = np.asarray(np.mean(probas, axis=0)) if probas else failed[0]
        return self._taught[group]

    def proba(self, served: dict[int, float]) -> np.ndarray:
        """Probabilities of the rows to choose on, summed in the order in which they are served."""
        for place in served:
            if place != BASE and place not in self._model_probas:
                self._model_probas[place] = self.models[place].proba(self.X_choose)
        assert self.ruler is not None
        return weighted({k: self.ruler.base_proba if k == BASE else self._model_probas[k] for k in served}, served)

    def _refuse_diverged(self, strategy: Strategy, proba: np.ndarray) -> None:
        """A candidate that is no model to serve is a failed one.

        Training that starts from the base aims between the base and the truth. So one that is clearly less accurate
        than both the base and a plain retrain has not learned that: it has diverged.
        """
        assert self.ruler is not None
        if not np.isfinite(proba).all():
            if not self.frontier:
                raise ValueError(
                    f"{WHO}: a plain retrain by {type(self.learner.estimator).__name__} gives probabilities that are "
                    "not finite. Check the features (constant or huge ones?), or choose another estimator."
                )
            raise Diverged("its probabilities are not finite.")
        plain = self.probas[0] if self.probas else None
        if plain is None or strategy.base_share == 0 or strategy.blend is not None:
            return
        right = self.ruler.errors(proba) == 0
        others = self.ruler.base_decisions == self.ruler.y, self.ruler.errors(plain) == 0
        if not all(clearly_worse(right, other, self.ruler.weights) for other in others):
            return
        own, base, retrain = (np.average(r, weights=self.ruler.weights) for r in (right, *others))
        raise Diverged(f"accuracy {own:.1%}, where the base has {base:.1%} and a plain retrain {retrain:.1%}.")

    def _keep(self, strategy: Strategy, served: dict[int, float] | None, reason: str, status: str) -> None:
        row = Candidate(
            strategy.name,
            strategy.setting,
            status=status,
            reason=reason,
            seconds=self._seconds.get((strategy, 0), math.nan),
            dial=math.nan if strategy.dial is None else strategy.dial,
        )
        proba = None
        if served is not None and self.ruler is not None:
            try:
                proba = self.proba(served)
                self._refuse_diverged(strategy, proba)
                row = self.ruler.measure(row, proba, only_base(served))
            except Exception as error:
                if not self.frontier:
                    raise
                row = dataclasses.replace(row, status="failed", reason=f"{type(error).__name__}: {one_line(error)}")
                served = proba = None
        self.frontier.append(row)
        self.probas.append(proba)
        self.served_as.append(served)
