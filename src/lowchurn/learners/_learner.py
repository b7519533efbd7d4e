"""What every learner does: train one job or many, give the reason for what it cannot do, save its models.

A learner contains one unfitted estimator. It takes preprocessed rows and jobs and returns fitted models. It never sees
the budget.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
from sklearn.base import clone

from lowchurn._ray import Calls, received
from lowchurn._types import ArrayLike, Classifier, Model, Rows
from lowchurn.metrics import decide
from lowchurn.strategies import ColdStart, Strategy, member_seed, one_hot

PLAIN = ColdStart()
ARRAYS = ("targets", "sample_weight", "labels", "pull", "held_out")  # of a job
Weights: TypeAlias = np.ndarray | None  # one per row
Data: TypeAlias = tuple[Rows, np.ndarray, Weights]  # rows, their classes (or targets) and their weights


@dataclass(frozen=True, eq=False)
class Job:
    """One candidate to train: where it starts, what it aims at, how rows weigh.

    Attributes
    ----------
    targets : array of shape (n, m)
        Non-negative; column j belongs to the learner's ``classes[j]``. A row may sum to less than one
        (:class:`~lowchurn.strategies.Anchor`), and then weighs less.
    strategy : Strategy
        Gives ``base_share`` (the start), ``mixing`` and ``coupling``; its targets are in ``targets`` already.
    sample_weight : array of shape (n,), optional
        Weights of the rows, on top of the targets.
    seed : int, optional
        Decides everything random, where the estimator does not fix its own ``random_state``.
    labels : array of shape (n,), optional
        The true classes as indices, for learners that stop early: on the loss against them, or where they are not
        given on the loss against the targets.
    pull : array of shape (n, m), optional
        The base's decisions, for a strategy with a ``limit`` (:meth:`~lowchurn.strategies.Strategy.pull`).
    member : int
        Which of several trainings by the same strategy; all but the first get seeds of their own, also where the
        estimator fixes its ``random_state``.
    held_out : (rows, targets, weights or None), optional
        Rows to stop early on, beside those that are trained on. By default a learner that stops early holds out some
        of its own.

    Examples
    --------
    >>> from lowchurn.learners import Job
    >>> from lowchurn.strategies import Distill
    >>> strategy = Distill(lam=0.5, start="warm")
    >>> Job(strategy.targets([[0, 1]], [[0.4, 0.6]]), strategy, seed=0).base_share
    1.0
    """

    targets: np.ndarray
    strategy: Strategy = PLAIN
    sample_weight: np.ndarray | None = None
    seed: int | None = None
    labels: np.ndarray | None = None
    pull: np.ndarray | None = None
    member: int = 0
    held_out: Data | None = None

    @property
    def base_share(self) -> float:
        return self.strategy.base_share

    @property
    def hard(self) -> bool:
        """Whether every target is a plain label: such a job is the estimator's own training."""
        return bool(((self.targets == 0) | (self.targets == 1)).all() and (self.targets.sum(axis=1) == 1).all())

    @property
    def true_classes(self) -> np.ndarray:
        """The labels, or where there are none the likeliest classes of the targets, as indices."""
        return decide(self.targets) if self.labels is None else self.labels

    @property
    def stopping_targets(self) -> np.ndarray:
        """What early stopping compares with: the labels, or where there are none the targets."""
        return self.targets if self.labels is None else one_hot(self.labels, self.targets.shape[1])


class Learner(abc.ABC):
    """One library's way to train on soft targets. Subclasses write :meth:`fit`; the rest has defaults.

    Parameters
    ----------
    estimator : classifier
        Unfitted; it is cloned, never changed.
    classes : array of shape (m,)
        The labels, sorted.
    base : fitted model, optional
        The model in production, whose number of boosting rounds is taken where it stopped early.

    Attributes
    ----------
    notes : list of str
        Sentences about decisions made while fitting that the parameters of the estimator do not show, such as the
        number of rounds where the estimator stops early. Each occurs once.
    """

    name: ClassVar[str] = ""
    takes_nan: ClassVar[bool] = False
    seeds: ClassVar[tuple[str, ...]] = ("random_state",)  # the seed's parameter and its other names in the library
    takes_any_seed: ClassVar[bool] = False  # whether it can be set although get_params does not list it

    def __init__(self, estimator: Classifier, classes: ArrayLike, base: Model | None = None) -> None:
        self.estimator = estimator
        self.classes = np.asarray(classes)
        self.notes: list[str] = []

    def note(self, sentence: str) -> None:
        """Add a sentence to :attr:`notes`, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    @classmethod
    def has_blueprint(cls, base: Any) -> bool:
        """Whether :meth:`blueprint` takes this fitted model."""
        return cls.handles(base)

    @classmethod
    def blueprint(cls, base: Any) -> Classifier:
        """Return an unfitted estimator of the kind and with the settings of a fitted one."""
        return cls.unfitted(base)

    @classmethod
    def unfitted(cls, estimator: Classifier) -> Any:
        """Return a copy of an estimator without what it learned."""
        return clone(estimator)

    @classmethod
    @abc.abstractmethod
    def handles(cls, estimator: Any) -> bool:
        """Whether this learner is the one for an estimator. Must not import the library if nobody else has."""

    @abc.abstractmethod
    def fit(self, X: Rows, job: Job, base: Any = None) -> Any:
        """Train one job. ``base`` is the fitted model in production, for starts from its weights."""

    @property
    def stops_on_rows(self) -> bool:
        """Whether training stops early on rows that a job may give (``held_out``)."""
        return False

    def fit_many(self, X: Rows, jobs: Sequence[Job], base: Any = None, n_jobs: int | None = None) -> list[Any]:
        """Train all jobs; a job that fails returns its exception instead of a model, and the others go on."""
        calls = Calls()
        send = calls.sent  # X, the base, labels and weights are the same for all of them
        tasks = [(self, send(X), _with_arrays(job, send), send(base)) for job in jobs]
        tried = [(one, []) if isinstance(one, Exception) else one for one in calls.run(_attempt, tasks, n_jobs)]
        for _, notes in tried:  # a worker process has a copy of this learner
            for sentence in notes:
                self.note(sentence)
        return [result for result, _ in tried]

    def cannot(self, strategy: Strategy, base: Any = None) -> str | None:
        """Return the reason why this learner cannot train a strategy; None where it can."""
        who = type(self.estimator).__name__
        if strategy.mixing is not None:
            return f"{who} does not mix rows (mixup); torch networks do."
        if strategy.coupling is not None:
            return f"{who} does not train coupled twins (co-distillation); torch networks do."
        if strategy.limit is not None:
            return f"{who} is not trained epoch by epoch, as a limit on churn needs it; torch networks are."
        if strategy.base_share > 0:
            return self.cannot_start(strategy.base_share, base)
        return None

    def cannot_start(self, base_share: float, base: Any) -> str | None:
        """Return the reason why training cannot start from the base; None where it can."""
        return f"{type(self.estimator).__name__} cannot start from the base's weights."

    def cannot_average(self, base: Any) -> str | None:
        """Return the reason why weights of this learner's models cannot be averaged with the base's; or None."""
        return f"{type(self.estimator).__name__} has no weights to average; its probabilities can be (ServedMixture)."

    @property
    def one_is_enough(self) -> bool:
        """Whether several retrains with other seeds would all be the same."""
        return False

    def contains_base(self, model: Model) -> bool:
        """Whether a model contains the one that its training started from, and so grows with every release."""
        return False

    def exchangeable(self, model: Any, base: Any) -> int:
        """Return how many parts of a model can take the place of parts of the base, as trees of a forest can."""
        return 0

    def exchange(self, model: Any, base: Any, parts: int) -> Any:
        """Return a model of the estimator's own size with so many parts of a model, and the others of the base."""
        raise NotImplementedError

    def needs_rows(self, model: Model) -> bool:
        """Whether :meth:`average` needs the training rows."""
        return False

    def average(self, models: Sequence[Any], shares: Sequence[float], X: Rows) -> Any:
        """Return a model with the weights of fitted models in these shares; exactly the one whose share is 1.

        ``X`` are the training rows, for networks that keep statistics of them.
        """
        raise NotImplementedError

    def prepared(self, job: Job) -> Any:
        """Return a copy of the estimator with the job's seed, unless it has a seed of its own."""
        model = self.unfitted(self.estimator)
        given = model.get_params()
        name = next((seed for seed in self.seeds if given.get(seed) is not None), self.seeds[0])
        own = given.get(name)
        if own is None and job.seed is not None and (name in given or self.takes_any_seed):
            model.set_params(**{name: int(job.seed)})
        elif job.member and isinstance(own, int | np.integer) and not isinstance(own, bool):
            model.set_params(**{name: member_seed(int(own), job.member)})
        return model

    @classmethod
    def as_served(cls, model: Any) -> Any:
        """Return a fitted model of the library in the form that is saved; None where it is none, or needs none."""
        return None

    @classmethod
    def saves(cls, model: Any) -> bool:
        """Whether :meth:`save` takes this kind of model."""
        return False

    @classmethod
    def save(cls, model: Any) -> dict[str, bytes]:
        """Return a trained model as named files."""
        raise NotImplementedError

    @classmethod
    def load(cls, files: dict[str, bytes], trusted: Sequence[str] = ()) -> Any:
        """Read what :meth:`save` wrote."""
        raise NotImplementedError


def average_weights(values: Sequence[np.ndarray], shares: Sequence[float]) -> np.ndarray:
    """Return arrays summed in shares, in double precision, of the dtype of the first; exactly the one of share 1."""
    for value, share in zip(values, shares, strict=True):
        if share == 1:
            return value.copy()
    total = sum(share * value.astype(np.float64) for value, share in zip(values, shares, strict=True))
    return np.asarray(total).astype(values[0].dtype)


def _with_arrays(job: Job, change: Callable[[Any], Any]) -> Job:
    """Return a job with something else in place of its arrays."""
    return replace(job, **{name: change(getattr(job, name)) for name in ARRAYS})


def _attempt(learner: Learner, X: Any, job: Job, base: Any) -> tuple[Any, list[str]]:
    """Return a model, or the exception in its place, and the notes of the learner; arguments as they were sent."""
    try:
        return learner.fit(received(X), _with_arrays(job, received), received(base)), learner.notes
    except Exception as error:
        return error, learner.notes


class NothingToTrain(ValueError):
    """An estimator that cannot be trained here, or a base that does not show how to train its kind."""

    def __init__(self, reason: str, remedy: str, who: str = "LowChurnClassifier") -> None:
        super().__init__(f"{who}: {reason} {remedy}")
        self.reason = reason  # a sentence; the command line has another remedy


def kind_of(base: Any) -> str:
    """Return what a base is, in the words of a reason."""
    return "not a model" if base is None else f"a {type(base).__name__}"


def weighted_mass(targets: np.ndarray, sample_weight: np.ndarray | None) -> np.ndarray:
    """Return the total weight of each class."""
    mass = targets.sum(axis=0) if sample_weight is None else sample_weight @ targets
    return np.asarray(mass, dtype=float)


def class_weights(class_weight: str | dict[Any, float], classes: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Return scikit-learn's ``class_weight`` as numbers; "balanced" goes by the weight of each class, not by rows."""
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise ValueError(f"class_weight must be None, 'balanced' or a dict, got {class_weight!r}.")
        return mass.sum() / (len(classes) * np.maximum(mass, 1e-300)) * (mass > 0)
    return np.array([float(class_weight.get(label, 1.0)) for label in classes.tolist()])
