"""What gradient boosting libraries share: a model as stages that add up, soft targets as gradients, one ``fit``.

A model is a start (the log of the class shares), a list of stages and the classes; its raw scores are the sum.
Continued boosting from a base takes the base's stages and adds one that was trained on top of their scores (the
library's own initial scores), so nothing of the base is trained again. Every stage keeps the settings it was trained
with, so a base is asked with its own.
"""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import joblib
import numpy as np
from scipy.special import expit, log_expit, logsumexp
from sklearn.utils import _safe_indexing

from lowchurn._model_files import (
    MOST_THREADS,
    Label,
    Refused,
    hex_number,
    labels_from_plain,
    labels_to_plain,
    read_record,
)
from lowchurn._reading import check_structure
from lowchurn.learners._learner import Job, Learner, NothingToTrain, class_weights, weighted_mass

HELD_OUT = 10  # one row of so many finds the number of rounds, where an estimator stops early
WHOLE = "whole"  # the setting of a stage that is a model in production, which answers to the last bit as it does there
LOSS_ROWS = 1_500  # as many rows at most show whether boosting diverged; to score them costs time with many classes


@dataclass(frozen=True, eq=False)
class Stage:
    """A booster of the library and the settings that its rows are read with."""

    booster: Any
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BoostedRecord:
    """What a model file says about a boosted model, beside its stages."""

    classes: list[Label]
    dtype: str
    start: list[str] | None
    stages: int
    settings: dict[str, Any] | list[dict[str, Any]]  # one per stage; one for all in version 0.1
    threads: int | None = None


class BoostedModel(abc.ABC):
    """Served model of a boosting library: ``predict_proba``, ``predict`` and ``classes_`` as in scikit-learn.

    Parameters
    ----------
    stages : list of Stage
        The library's own boosters with their settings; their raw scores add up.
    classes : array of shape (m,)
        The labels.
    start : array of shape (columns,) or None
        Scores before the first booster, where the boosters do not contain them.
    threads : int or None
        How many threads predict, as ``n_jobs`` in scikit-learn; None for the library's default.
    """

    settings_kind: ClassVar[Any] = dict[str, Any]  # the type of a stage's settings in a file

    def __init__(
        self, stages: Sequence[Stage], classes: Any, start: np.ndarray | None = None, threads: int | None = None
    ) -> None:
        self.stages = list(stages)
        self.classes_ = np.asarray(classes)
        self.start = start
        self.threads = threads
        self.thread_count = None if threads is None else joblib.effective_n_jobs(threads)

    @property
    def boosters(self) -> list[Any]:
        """The boosters of the stages."""
        return [stage.booster for stage in self.stages]

    @property
    def columns(self) -> int:
        """Columns of raw scores: one for two classes."""
        return 1 if len(self.classes_) == 2 else len(self.classes_)

    def raw(self, X: Any) -> np.ndarray:
        """Raw scores, shape (n, columns)."""
        X = plain_table(X)
        total: Any = 0.0 if self.start is None else self.start
        for stage in self.stages:
            total = total + self.one_column(self.stage_scores(stage, X))
        return np.asarray(total)

    def one_column(self, scores: Any) -> np.ndarray:
        """Scores of two classes as one column: the softmax of two is the sigmoid of their difference."""
        table = np.asarray(scores, dtype=float)
        table = table.reshape(table.shape[0], -1)
        return table[:, 1:] - table[:, :1] if self.columns == 1 and table.shape[1] == 2 else table

    @abc.abstractmethod
    def stage_scores(self, stage: Stage, X: Any) -> np.ndarray:
        """Raw scores of one stage alone, one row per row of X."""

    @abc.abstractmethod
    def own_proba(self, stage: Stage, X: Any) -> np.ndarray:
        """Probabilities of one stage as the library itself makes them of the scores; one column for two classes."""

    def predict_proba(self, X: Any) -> np.ndarray:
        if len(self.stages) == 1 and self.stages[0].settings.get(WHOLE):
            own = self.own_proba(self.stages[0], plain_table(X))
            return own if own.ndim == 2 else np.stack([1 - own, own], axis=1)
        raw = self.raw(X)
        if raw.shape[1] == 1:
            positive = expit(raw[:, 0])
            return np.stack([1 - positive, positive], axis=1)
        raw = np.exp(raw - raw.max(axis=1, keepdims=True))
        return np.asarray(raw / raw.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> np.ndarray:
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    def to_files(self) -> dict[str, bytes]:
        """Native model files and a small description."""
        about = {
            **labels_to_plain(self.classes_),
            "start": None if self.start is None else [float(v).hex() for v in self.start],
            "stages": len(self.stages),
            "settings": [stage.settings for stage in self.stages],
            "threads": self.threads,
        }
        files = {f"stage{k}": self.booster_bytes(stage.booster) for k, stage in enumerate(self.stages)}
        return {"about.json": json.dumps(about).encode(), **files}

    @classmethod
    def from_files(cls, files: dict[str, bytes]) -> Self:
        """Read what :meth:`to_files` wrote."""
        about = read_record("the part 'about.json'", files["about.json"], BoostedRecord)
        classes = labels_from_plain("the boosted model", about.classes, about.dtype)
        names = [f"stage{k}" for k in range(min(about.stages, len(files)))]
        settings = [about.settings] * len(names) if isinstance(about.settings, dict) else about.settings
        if not names or sorted(names) != sorted(files.keys() - {"about.json"}) or len(settings) != len(names):
            raise Refused(f"load: the boosted model must have the files of {about.stages} stages.")
        for one in settings:
            check_structure("load", "about.json", one, cls.settings_kind)
        if about.threads == 0 or abs(about.threads or 1) > MOST_THREADS:
            raise Refused(f"load: threads must be at most {MOST_THREADS} and not 0, got {about.threads}.")
        start = None
        if about.start is not None:
            start = np.array([hex_number("the start of the boosted model", v) for v in about.start])
        stages = [Stage(cls.booster_from(files[name]), one) for name, one in zip(names, settings, strict=True)]
        model = cls(stages, classes, start, about.threads)
        if start is not None and len(start) != model.columns:
            raise Refused(f"load: the start of the boosted model must have {model.columns} numbers, got {len(start)}.")
        return model

    @staticmethod
    @abc.abstractmethod
    def booster_bytes(booster: Any) -> bytes:
        """One booster in the library's own format."""

    @staticmethod
    @abc.abstractmethod
    def booster_from(data: bytes) -> Any:
        """Read what :meth:`booster_bytes` wrote; ValueError where it is something else."""

    def __getstate__(self) -> dict[str, Any]:
        # native files survive a change of the library's version
        stages = [(self.booster_bytes(stage.booster), stage.settings) for stage in self.stages]
        return {**self.__dict__, "stages": stages}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "files" in state:  # of lowchurn 0.1.0
            state = type(self).from_files(state["files"]).__dict__
        else:
            stages = [Stage(self.booster_from(data), settings) for data, settings in state["stages"]]
            state = {**state, "stages": stages}
        self.__dict__.update(state)


class BoostingLearner(Learner):
    """The one ``fit`` of the boosting libraries.

    A library gives the names of its parameters, two training calls (on labels, on soft targets), and its fitted
    models as stages.
    """

    takes_nan = True
    model: ClassVar[type[BoostedModel]]
    rounds_names: ClassVar[tuple[str, ...]]  # the number of rounds: the usual name first, then the other ones
    rate_names: ClassVar[tuple[str, ...]]  # the learning rate
    thread_names: ClassVar[tuple[str, ...]]
    default_rounds: ClassVar[int] = 100
    starts_itself: ClassVar[bool] = False  # whether the library finds the shares of the classes by itself

    def __init__(self, estimator: Any, classes: Any, base: Any = None) -> None:
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
    def rounds_of(cls, base: Any) -> int | None:
        """The rounds with which a fitted estimator predicts, where it stopped early; otherwise None."""

    @classmethod
    @abc.abstractmethod
    def stops_early(cls, estimator: Any) -> bool:
        """Whether the parameters of an estimator ask for early stopping, which needs rows for it in ``fit``."""

    @classmethod
    @abc.abstractmethod
    def with_rounds(cls, estimator: Any, rounds: int) -> Any:
        """An unfitted estimator with this number of rounds and without early stopping."""

    @classmethod
    def settings_of(cls, estimator: Any) -> dict[str, Any]:
        """The settings of an estimator that its rows are read with, as plain data."""
        return {}

    @abc.abstractmethod
    def fit_labels(self, estimator: Any, X: Any, y: np.ndarray, weight: Any, held_out: Any = None) -> Any:
        """The library's own training on classes 0 to m - 1; returns the fitted estimator.

        ``held_out`` are rows, classes and weights to stop early on.
        """

    @abc.abstractmethod
    def booster_in(self, fitted: Any) -> Any:
        """The booster of an estimator that :meth:`fit_labels` fitted."""

    @abc.abstractmethod
    def fit_soft(
        self, estimator: Any, X: Any, targets: np.ndarray, weight: Any, scores: Any, *, continued: bool
    ) -> Any:
        """Train a booster on targets, on top of scores of shape (n, columns); they are None only with
        ``starts_itself``."""

    @classmethod
    @abc.abstractmethod
    def stages_of(cls, base: Any) -> BoostedModel | None:
        """A fitted estimator of the library as stages; ValueError with the reason where its probabilities are not
        those of its raw scores."""

    @classmethod
    @abc.abstractmethod
    def read_native(cls, who: str, path: Path, data: bytes) -> Any:
        """Read a model file of the library as a fitted classifier; ValueError where it is damaged or none.

        The libraries' own readers crash the process on damaged files, or later when such a model predicts, so that the
        structure of a file is checked before.
        """

    # What they share.

    def fit(self, X: Any, job: Job, base: Any = None) -> BoostedModel:
        X = plain_table(X)
        estimator = self.settled(X, job)
        before = self.stages(base) if job.base_share else None
        settings, threads = self.settings_of(estimator), first_given(estimator.get_params(), self.thread_names)
        if before is None and job.hard:
            y = job.targets.argmax(axis=1)
            if len(np.unique(y)) == len(self.classes):
                booster = self.booster_in(self.fit_labels(estimator, X, y, job.sample_weight))
                return self.model([Stage(booster, settings)], self.classes, None, threads)
        targets, weight = self.aims(job)
        if before is not None:
            start, scores = before.start, before.raw(X)
        elif self.starts_itself:
            start, scores = None, None
        else:
            start = log_shares(targets, weight)
            scores = np.broadcast_to(start, (len(targets), len(start)))
        booster = self.fit_soft(estimator, X, targets, weight, scores, continued=before is not None)
        stages = [] if before is None else before.stages
        model = self.model([*stages, Stage(booster, settings)], self.classes, start, threads)
        if before is not None:
            self._refuse_divergence(model, X, targets, weight, scores)
        return model

    def fit_many(self, X: Any, jobs: Sequence[Job], base: Any = None, n_jobs: int | None = None) -> list[Any]:
        """Train all jobs; a number of rounds that is to be found is found before, once."""
        if jobs:
            try:
                self.settled(plain_table(X), jobs[0])
            except Exception:  # every job fails for the same reason, which is its result
                self._found_rounds.clear()
        return super().fit_many(X, jobs, base, n_jobs)

    def settled(self, X: Any, job: Job) -> Any:
        """The estimator of a job with its seed, and with its number of rounds where it would stop early."""
        estimator = self.prepared(job)
        rounds = self._rounds(X, job, estimator)
        return estimator if rounds is None else self.with_rounds(estimator, rounds)

    @classmethod
    def rounds_in(cls, estimator: Any) -> int:
        """The number of rounds in an estimator's parameters."""
        given = first_given(estimator.get_params(), cls.rounds_names)
        return cls.default_rounds if given is None else int(given)

    def _rounds(self, X: Any, job: Job, estimator: Any) -> int | None:
        """The number of rounds, where it is not the estimator's own."""
        who, stops = type(estimator).__name__, self.stops_early(estimator)
        same_rate = first_given(estimator.get_params(), self.rate_names) in self._base_rates
        if self._base_rounds and same_rate and (stops or self.rounds_in(estimator) in self._base_rounds):
            rounds = self._base_rounds[0]
            self.note(f"{who} trained {rounds} rounds, the number at which the base stopped early.")
            return rounds
        if not stops:
            return None
        labels = job.targets.argmax(axis=1) if job.labels is None else job.labels
        key = joblib.hash((X, labels, job.sample_weight))
        if key not in self._found_rounds:
            self._found_rounds[key] = self._find_rounds(estimator, X, labels, job.sample_weight, job.seed or 0)
        found = self._found_rounds[key]
        if found is None:
            self.note(f"{who} trained all its rounds: too few rows to hold some out for early stopping.")
            return self.rounds_in(estimator)
        self.note(
            f"{who} trained {found} rounds on all rows, the number at which it stopped early where one row in "
            f"{HELD_OUT} was held out."
        )
        return found

    def _find_rounds(self, estimator: Any, X: Any, labels: np.ndarray, weight: Any, seed: int) -> int | None:
        y = np.unique(labels, return_inverse=True)[1]
        train, held_out = stopping_rows(y, seed)
        if not len(held_out):
            return None
        weights = [None if weight is None else weight[part] for part in (train, held_out)]
        part = (_safe_indexing(X, held_out), y[held_out], weights[1])
        fitted = self.fit_labels(estimator, _safe_indexing(X, train), y[train], weights[0], part)
        return self.rounds_of(fitted) or self.rounds_in(estimator)

    def _refuse_divergence(self, model: BoostedModel, X: Any, targets: np.ndarray, weight: Any, scores: Any) -> None:
        """Newton steps on scores where a wrong class is nearly certain can be without bound."""
        rows = np.arange(0, len(targets), 1 + len(targets) // LOSS_ROWS)
        part = targets[rows], None if weight is None else weight[rows]
        before = cross_entropy(np.asarray(scores)[rows], *part)
        after = cross_entropy(model.raw(_safe_indexing(X, rows)), *part)
        if not after <= 1.01 * before + 1e-3:
            raise RuntimeError(
                f"continued boosting diverged: the log-loss of its own training rows went from {before:.4g} to "
                f"{after:.4g}. A smaller learning rate or stronger regularisation helps."
            )

    def cannot_start(self, base_share: float, base: Any) -> str:
        who = type(self.estimator).__name__
        try:
            found = self.stages(base)
        except Exception as error:
            return f"{who} cannot continue the base: {error}"
        if found is None:
            kind = "not a model" if base is None else f"a {type(base).__name__}"
            return f"{who} cannot continue boosting from the base, which is {kind}: trees start only from trees."
        if base_share < 1:
            return f"{who} cannot start between the base and fresh weights: boosting continues the base or not at all."
        if not np.array_equal(found.classes_, self.classes):
            return f"{who} cannot continue boosting from the base: the classes differ."
        return ""

    def stages(self, base: Any) -> BoostedModel | None:
        """A fitted model of the library as stages; None where it is something else."""
        if isinstance(base, self.model):
            return base
        return self.stages_of(base) if self.handles(base) else None

    def aims(self, job: Job) -> tuple[np.ndarray, np.ndarray | None]:
        """Targets that sum to one, and weights of rows: what a row's targets sum to is a weight."""
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
        """Weights of the classes in the parameters of the estimator; ``mass`` is the weight of each in the rows."""
        by_class = None
        if given.get("class_weight") is not None:
            by_class = class_weights(given["class_weight"], self.classes, mass)
        if len(self.classes) == 2 and given.get("scale_pos_weight") is not None:
            positive = np.array([1.0, float(given["scale_pos_weight"])])
            by_class = positive if by_class is None else by_class * positive
        return by_class

    @classmethod
    def has_blueprint(cls, base: Any) -> bool:
        return cls.handles(base) or isinstance(base, cls.model)

    @classmethod
    def blueprint(cls, base: Any) -> Any:
        if isinstance(base, cls.model):
            return cls.blueprint_of_stages(base)
        rounds = cls.rounds_of(base)
        made = super().blueprint(base)
        return made if rounds is None else cls.with_rounds(made, rounds)

    @classmethod
    def blueprint_of_stages(cls, base: BoostedModel) -> Any:
        """An unfitted estimator with the parameters in the native file of a model."""
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


def first_given(parameters: dict[str, Any], names: Sequence[str]) -> Any:
    """The value of a parameter under the first of its names that has one."""
    return next((parameters[name] for name in names if parameters.get(name) is not None), None)


def stopping_rows(y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows to stop on, one in ten with shares of classes kept; each class stays in training.

    Examples
    --------
    >>> import numpy as np
    >>> from lowchurn.learners._boosting import stopping_rows
    >>> train, held_out = stopping_rows(np.repeat([0, 1], 50), seed=0)
    >>> len(train), len(held_out), len(set(train) & set(held_out))
    (90, 10, 0)
    """
    order = np.random.default_rng(seed).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    held_out = np.arange(len(y)) % HELD_OUT == HELD_OUT - 1
    held_out &= np.r_[False, y[order][1:] == y[order][:-1]]  # never the first of its class
    return np.sort(order[~held_out]), np.sort(order[held_out])


def log_shares(targets: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Where boosting starts: the logarithm of the share of each class (log-odds for two classes)."""
    shares = np.clip(np.average(targets, axis=0, weights=weight), 1e-12, 1.0)
    return np.asarray(np.log(shares[1:]) - np.log(shares[:1]) if len(shares) == 2 else np.log(shares))


def cross_entropy(raw: np.ndarray, targets: np.ndarray, weight: np.ndarray | None) -> float:
    """The weighted mean log-loss of raw scores of shape (n, columns) against targets of shape (n, m)."""
    with np.errstate(invalid="ignore", over="ignore"):
        if raw.shape[1] == 1:
            logs = np.stack([log_expit(-raw[:, 0]), log_expit(raw[:, 0])], axis=1)
        else:
            logs = raw - logsumexp(raw, axis=1, keepdims=True)
        rows = -np.where(targets > 0, targets * logs, 0.0).sum(axis=1)
    return float(np.average(rows, weights=weight))


def plain_table(X: Any) -> Any:
    """Polars frames as numpy (numbers only) or pandas; everything else as it is."""
    if not type(X).__module__.startswith("polars"):
        return X
    table = X.to_numpy()
    return X.to_pandas() if table.dtype.kind == "O" else table
