"""The one ``fit`` of gradient boosting libraries: soft targets as gradients, rounds, continued boosting.

Continued boosting from a base takes the base's stages and adds one that was trained on top of their scores (the
library's own initial scores), so nothing of the base is trained again.
"""

from __future__ import annotations

import abc
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import joblib
import numpy as np
from scipy.special import log_expit, logsumexp
from sklearn.utils import _safe_indexing

from lowchurn._types import ArrayLike, Classifier, Rows
from lowchurn.learners._boosted import WHOLE, BoostedModel, Booster, Stage, plain_table
from lowchurn.learners._learner import (
    Data,
    Job,
    Learner,
    NothingToTrain,
    Weights,
    class_weights,
    kind_of,
    weighted_mass,
)
from lowchurn.metrics import decide

HELD_OUT = 10  # one row of so many finds the number of rounds, where an estimator stops early
LOSS_ROWS = 1_500  # as many rows at most show whether boosting diverged; to score them costs time with many classes
Estimator: TypeAlias = Any  # a classifier of any library, fitted or not; they share no base class
HeldOut: TypeAlias = tuple[Data, np.ndarray | None]  # rows with targets, and scores that boosting starts from


class BoostingLearner(Learner):
    """The one ``fit`` of the boosting libraries, which write names of parameters and two training calls."""

    takes_nan = True
    model: ClassVar[type[BoostedModel]]
    classifier: ClassVar[str]  # the name of the library's classifier
    endings: ClassVar[tuple[str, ...]]  # of its native files
    rounds_names: ClassVar[tuple[str, ...]]  # the number of rounds: the usual name first, then the other ones
    rate_names: ClassVar[tuple[str, ...]]  # the learning rate
    thread_names: ClassVar[tuple[str, ...]]
    default_rounds: ClassVar[int] = 100
    starts_itself: ClassVar[bool] = False  # whether the library finds the shares of the classes by itself

    def __init__(self, estimator: Classifier, classes: ArrayLike, base: Estimator = None) -> None:
        super().__init__(estimator, classes, base)
        self._base_rounds: tuple[int, ...] = ()  # at which the base stopped, and which it was to train
        self._base_rates: tuple[Any, ...] = ()  # its learning rate, in its parameters and in its blueprint
        if self.handles(base) and (stopped := self.rounds_of(base)) is not None:
            self._base_rounds = (stopped, self.rounds_in(base))
            self._base_rates = tuple(
                first_given(one.get_params(), self.rate_names) for one in (base, self.blueprint(base))
            )
        self._found_rounds: dict[str, int | None] = {}

    # What a library writes.

    @classmethod
    @abc.abstractmethod
    def rounds_of(cls, base: Estimator) -> int | None:
        """Return the rounds with which a fitted estimator predicts, where it stopped early; otherwise None."""

    @classmethod
    @abc.abstractmethod
    def stops_early(cls, estimator: Estimator) -> bool:
        """Whether the parameters of an estimator ask for early stopping, which needs rows for it in ``fit``."""

    @classmethod
    @abc.abstractmethod
    def with_rounds(cls, estimator: Estimator, rounds: int) -> Estimator:
        """Return an unfitted estimator with this number of rounds and without early stopping."""

    @classmethod
    def settings_of(cls, estimator: Estimator) -> dict[str, Any]:
        """Return the settings of an estimator that its rows are read with, as plain data."""
        return {}

    @abc.abstractmethod
    def fit_labels(self, estimator: Estimator, data: Data, held_out: Data | None = None) -> Estimator:
        """Train on classes 0 to m - 1 as the library does, with rows to stop early on; return the fitted estimator."""

    @abc.abstractmethod
    def fit_soft(
        self,
        estimator: Estimator,
        data: Data,
        scores: np.ndarray | None,
        *,
        continued: bool = False,
        held_out: HeldOut | None = None,
    ) -> Booster:
        """Train a booster on targets, on top of scores (n, columns), which are None only with ``starts_itself``.

        With rows that are held out, training stops early on the cross-entropy against their targets, as the estimator
        asks for it, and the booster contains the rounds up to the best one.
        """

    @classmethod
    @abc.abstractmethod
    def rounds_trained(cls, booster: Booster) -> int:
        """Return the number of rounds in a booster."""

    @classmethod
    def is_fitted(cls, base: Estimator) -> bool:
        return bool(base.__sklearn_is_fitted__())

    @classmethod
    @abc.abstractmethod
    def booster_of(cls, fitted: Estimator) -> Booster:
        """Return the booster of a fitted estimator."""

    @classmethod
    def predicting_booster(cls, base: Estimator) -> Booster:
        """Return the booster with which a base predicts."""
        return cls.booster_of(base)

    @classmethod
    @abc.abstractmethod
    def check_scores(cls, base: Estimator) -> None:
        """Raise ValueError with the reason where the probabilities of a base are not those of its raw scores."""

    @classmethod
    @abc.abstractmethod
    def read_native(cls, who: str, path: Path, data: bytes) -> Any:
        """Read a model file of the library as a fitted classifier; ValueError where it is damaged or none."""

    # What they share.

    @classmethod
    def handles(cls, estimator: object) -> bool:
        library = sys.modules.get(cls.model.module)
        return library is not None and isinstance(estimator, getattr(library, cls.classifier))

    @classmethod
    def stages_of(cls, base: Estimator) -> BoostedModel | None:
        """Return a fitted estimator of the library as stages; None where it is not fitted."""
        if not cls.is_fitted(base):
            return None
        cls.check_scores(base)
        stage = Stage(cls.predicting_booster(base), cls.settings_of(base))
        return cls.model([stage], base.classes_, threads=first_given(base.get_params(), cls.thread_names))

    def fit(self, X: Rows, job: Job, base: Estimator = None) -> BoostedModel:
        X = plain_table(X)
        estimator = self.settled(X, job)
        before = self.stages(base) if job.base_share else None
        settings, threads = self.settings_of(estimator), first_given(estimator.get_params(), self.thread_names)
        if before is None and job.hard and job.held_out is None:
            y = decide(job.targets)
            if len(np.unique(y)) == len(self.classes):
                booster = self.booster_of(self.fit_labels(estimator, (X, y, job.sample_weight)))
                return self.model([Stage(booster, settings)], self.classes, None, threads)
        targets, weight = self.aims(job)
        start = before.start if before is not None else self.start_of(targets, weight)
        scores = spread(start, len(targets)) if before is None else before.raw(X)
        held_out = None
        if job.held_out is not None and self.stops_early(estimator):
            rows = plain_table(job.held_out[0])
            aims = self.aims(Job(job.held_out[1], sample_weight=job.held_out[2]))
            held_out = (rows, *aims), spread(start, len(aims[0])) if before is None else before.raw(rows)
        booster = self.fit_soft(
            estimator, (X, targets, weight), scores, continued=before is not None, held_out=held_out
        )
        if held_out is not None:
            rounds = self.rounds_trained(booster)
            self.note(f"{type(estimator).__name__} trained {rounds} rounds, the best number on the rows given for it.")
        stages = [] if before is None else before.stages
        model = self.model([*stages, Stage(booster, settings)], self.classes, start, threads)
        if before is not None and scores is not None:
            self._refuse_divergence(model, (X, targets, weight), scores)
        return model

    def fit_many(self, X: Rows, jobs: Sequence[Job], base: Estimator = None, n_jobs: int | None = None) -> list[Any]:
        """Train all jobs; a number of rounds that is to be found is found before, once."""
        if jobs:
            try:
                self.settled(plain_table(X), jobs[0])
            except Exception:  # every job fails for the same reason, which is its result
                self._found_rounds.clear()
        return super().fit_many(X, jobs, base, n_jobs)

    def settled(self, X: Rows, job: Job) -> Estimator:
        """Return the estimator of a job with its seed, and with its number of rounds where it would stop early."""
        estimator = self.prepared(job)
        rounds = self._rounds(X, job, estimator)
        return estimator if rounds is None else self.with_rounds(estimator, rounds)

    @classmethod
    def rounds_in(cls, estimator: Estimator) -> int:
        """Return the number of rounds in an estimator's parameters."""
        given = first_given(estimator.get_params(), cls.rounds_names)
        return cls.default_rounds if given is None else int(given)

    def _rounds(self, X: Rows, job: Job, estimator: Estimator) -> int | None:
        """Return the number of rounds, where it is not the estimator's own."""
        who, stops = type(estimator).__name__, self.stops_early(estimator)
        if job.held_out is not None and stops:
            return None  # found while training
        same_rate = first_given(estimator.get_params(), self.rate_names) in self._base_rates
        if self._base_rounds and same_rate and (stops or self.rounds_in(estimator) in self._base_rounds):
            rounds = self._base_rounds[0]
            self.note(f"{who} trained {rounds} rounds, the number at which the base stopped early.")
            return rounds
        if not stops:
            return None
        known = job.true_classes if job.labels is not None or job.hard else None
        key = joblib.hash((X, job.targets if known is None else known, job.sample_weight))
        if key not in self._found_rounds:
            self._found_rounds[key] = self._find_rounds(estimator, X, job, soft=known is None)
        found = self._found_rounds[key]
        if found is None:
            self.note(f"{who} trained all its rounds: too few rows to hold some out for early stopping.")
            return self.rounds_in(estimator)
        self.note(
            f"{who} trained {found} rounds on all rows, the number at which it stopped early where one row in "
            f"{HELD_OUT} was held out."
        )
        return found

    def _find_rounds(self, estimator: Estimator, X: Rows, job: Job, soft: bool) -> int | None:
        """Return the rounds at which training stops early on held-out rows; None where there are too few rows."""
        y = np.unique(job.true_classes, return_inverse=True)[1]
        split = stopping_rows(y, job.seed or 0)
        if not len(split[1]):
            return None
        aims, weight = self.aims(job) if soft else (y, job.sample_weight)
        train, held_out = (
            (_safe_indexing(X, rows), aims[rows], None if weight is None else weight[rows]) for rows in split
        )
        if soft:
            start = self.start_of(*train[1:])
            begin, later = (spread(start, len(rows)) for rows in split)
            return self.rounds_trained(self.fit_soft(estimator, train, begin, held_out=(held_out, later)))
        fitted = self.fit_labels(estimator, train, held_out)
        return self.rounds_of(fitted) or self.rounds_in(estimator)

    def start_of(self, targets: np.ndarray, weight: Weights) -> np.ndarray | None:
        """Return the scores that boosting starts from; None where the library finds them by itself."""
        return None if self.starts_itself else log_shares(targets, weight)

    @property
    def stops_on_rows(self) -> bool:
        return self.stops_early(self.estimator)

    def _refuse_divergence(self, model: BoostedModel, data: Data, scores: np.ndarray) -> None:
        """Newton steps on scores where a wrong class is nearly certain can be without bound."""
        X, targets, weight = data
        rows = np.arange(0, len(targets), 1 + len(targets) // LOSS_ROWS)
        part = targets[rows], None if weight is None else weight[rows]
        before = cross_entropy(np.asarray(scores)[rows], *part)
        after = cross_entropy(model.raw(_safe_indexing(X, rows)), *part)
        if not after <= 1.01 * before + 1e-3:
            raise RuntimeError(
                f"continued boosting diverged: the log-loss of its own training rows went from {before:.4g} to "
                f"{after:.4g}. A smaller learning rate or stronger regularisation helps."
            )

    def cannot_start(self, base_share: float, base: Estimator) -> str | None:
        who = type(self.estimator).__name__
        try:
            found = self.stages(base)
        except Exception as error:
            return f"{who} cannot continue the base: {error}"
        if found is None:
            return (
                f"{who} cannot continue boosting from the base, which is {kind_of(base)}: trees start only from trees."
            )
        if base_share < 1:
            return f"{who} cannot start between the base and fresh weights: boosting continues the base or not at all."
        if not np.array_equal(found.classes_, self.classes):
            return f"{who} cannot continue boosting from the base: the classes differ."
        return None

    def contains_base(self, model: Any) -> bool:
        return isinstance(model, BoostedModel) and len(model.stages) > 1

    def stages(self, base: Estimator) -> BoostedModel | None:
        """Return a fitted model of the library as stages; None where it is something else."""
        if isinstance(base, self.model):
            return base
        return self.stages_of(base) if self.handles(base) else None

    def aims(self, job: Job) -> tuple[np.ndarray, Weights]:
        """Return targets that sum to one, and weights of rows: what a row's targets sum to is a weight."""
        targets = np.asarray(job.targets, dtype=float)
        by_class = self.weights_of_classes(self.estimator.get_params(), weighted_mass(targets, job.sample_weight))
        if by_class is not None:
            targets = targets * by_class
        sums = targets.sum(axis=1)
        weight = job.sample_weight
        if not np.allclose(sums, 1.0, atol=1e-12, rtol=0):
            weight = sums if weight is None else sums * weight
            even = np.full(targets.shape[1], 1 / targets.shape[1])
            targets = np.where(sums[:, None] > 0, targets / np.where(sums > 0, sums, 1.0)[:, None], even)
        return targets, weight

    def weights_of_classes(self, given: dict[str, Any], mass: np.ndarray) -> np.ndarray | None:
        """Return the weights of the classes in the parameters of the estimator; ``mass`` are those in the rows."""
        by_class = None
        if given.get("class_weight") is not None:
            by_class = class_weights(given["class_weight"], self.classes, mass)
        if len(self.classes) == 2 and given.get("scale_pos_weight") is not None:
            positive = np.array([1.0, float(given["scale_pos_weight"])])
            by_class = positive if by_class is None else by_class * positive
        return by_class

    @classmethod
    def has_blueprint(cls, base: Estimator) -> bool:
        return cls.handles(base) or isinstance(base, cls.model)

    @classmethod
    def blueprint(cls, base: Estimator) -> Estimator:
        if isinstance(base, cls.model):
            return cls.blueprint_of_stages(base)
        rounds = cls.rounds_of(base)
        made = super().blueprint(base)
        return made if rounds is None else cls.with_rounds(made, rounds)

    @classmethod
    def blueprint_of_stages(cls, base: BoostedModel) -> Estimator:
        """Return an unfitted estimator with the parameters in the native file of a model."""
        raise NothingToTrain(
            f"a model file of {cls.name} does not contain the parameters of its training.",
            "Give estimator=, what to train.",
        )

    @classmethod
    def as_served(cls, model: Any) -> Any:
        found = cls.stages_of(model) if cls.handles(model) else None
        if found is not None and getattr(model, "objective", None) != "multi:softmax":  # XGBoost's gives labels
            found.stages = [dataclasses.replace(s, settings={**s.settings, WHOLE: True}) for s in found.stages]
        return found

    @classmethod
    def saves(cls, model: Any) -> bool:
        return isinstance(model, cls.model)

    @classmethod
    def save(cls, model: Any) -> dict[str, bytes]:
        files: dict[str, bytes] = model.to_files()
        return files

    @classmethod
    def load(cls, files: dict[str, bytes], trusted: Sequence[str] = ()) -> Any:
        return cls.model.from_files(files)


def spread(start: np.ndarray | None, rows: int) -> np.ndarray | None:
    """Return the scores that boosting starts from, for every row."""
    return None if start is None else np.broadcast_to(start, (rows, len(start)))


def first_given(parameters: dict[str, Any], names: Sequence[str]) -> Any:
    """Return the value of a parameter under the first of its names that has one."""
    return next((parameters[name] for name in names if parameters.get(name) is not None), None)


def stopping_rows(y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows to train on and rows to stop on, one in ten, stratified; each class stays in training."""
    order = np.random.default_rng(seed).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    held_out = np.arange(len(y)) % HELD_OUT == HELD_OUT - 1
    held_out &= np.r_[False, y[order][1:] == y[order][:-1]]  # never the first of its class
    return np.sort(order[~held_out]), np.sort(order[held_out])


def log_shares(targets: np.ndarray, weight: Weights) -> np.ndarray:
    """Return where boosting starts: the logarithm of the share of each class (log-odds for two classes)."""
    shares = np.clip(np.average(targets, axis=0, weights=weight), 1e-12, 1.0)
    return np.asarray(np.log(shares[1:]) - np.log(shares[:1]) if len(shares) == 2 else np.log(shares))


def cross_entropy(raw: np.ndarray, targets: np.ndarray, weight: Weights) -> float:
    """Return the weighted mean log-loss of raw scores of shape (n, columns) against targets of shape (n, m)."""
    with np.errstate(invalid="ignore", over="ignore"):
        if raw.shape[1] == 1:
            logs = np.stack([log_expit(-raw[:, 0]), log_expit(raw[:, 0])], axis=1)
        else:
            logs = raw - logsumexp(raw, axis=1, keepdims=True)
        rows = -np.where(targets > 0, targets * logs, 0.0).sum(axis=1)
    return float(np.average(rows, weights=weight))


def soft_objective(
    targets: np.ndarray, weight: Weights, factor: float, least: float, by_row: bool
) -> Callable[[np.ndarray, object], tuple[np.ndarray, np.ndarray]]:
    """Return cross-entropy against soft targets: gradient ``p - t``, curvature ``factor * p * (1 - p)``."""
    n, m = targets.shape
    # All work is in place on arrays (classes, rows), which with by_row lie row by row in memory, as the library keeps
    # its scores. Class by class, maxima and sums are several times faster in numpy than along short rows.
    arrays = (np.empty((n, m) if by_row else (m, n), dtype=np.float32) for _ in range(4))
    p, slope, curve, aims = (array.T if by_row else array for array in arrays)
    np.copyto(aims, targets.T, casting="same_kind")
    scale = None if weight is None else np.asarray(weight, dtype=np.float32)
    row = np.empty(n, dtype=np.float32)

    def objective(scores: np.ndarray, _: object) -> tuple[np.ndarray, np.ndarray]:
        found = np.asarray(scores)
        found = found.reshape(n, m).T if by_row else found.reshape(-1, order="F").reshape(m, n)
        np.copyto(p, found, casting="same_kind")
        np.copyto(row, p[0])
        for one in p[1:]:
            np.maximum(row, one, out=row)
        np.subtract(p, row, out=p)
        np.exp(p, out=p)
        np.copyto(row, p[0])
        for one in p[1:]:
            np.add(row, one, out=row)
        np.divide(p, row, out=p)
        np.subtract(p, aims, out=slope)
        np.subtract(1, p, out=curve)
        np.multiply(curve, p, out=curve)
        np.multiply(curve, np.float32(factor), out=curve)
        np.maximum(curve, np.float32(least), out=curve)
        if scale is not None:
            np.multiply(slope, scale, out=slope)
            np.multiply(curve, scale, out=curve)
        return (slope.T, curve.T) if by_row else (slope.reshape(-1), curve.reshape(-1))

    return objective
