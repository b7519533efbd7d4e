"""What gradient boosting libraries share: a model as stages that add up, soft targets as gradients.

A model is a start (the log of the class shares), a list of boosters and the classes; its raw scores are the
sum. Continued boosting from a base takes the base's stages and adds one that was trained on top of their scores
(the library's own initial scores), so nothing of the base is trained again.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import expit

from lowchurn._model_files import Label, Refused, hex_number, labels_from_plain, labels_to_plain, read_record
from lowchurn.learners.base import Job, Learner, class_weights, weighted_mass


@dataclass(frozen=True)
class BoostedRecord:
    """What a model file says about a boosted model, beside its stages."""

    classes: list[Label]
    dtype: str
    start: list[str] | None
    stages: int
    settings: dict[str, Any]


class BoostedModel(abc.ABC):
    """Served model of a boosting library: ``predict_proba``, ``predict`` and ``classes_`` as in scikit-learn.

    Attributes
    ----------
    boosters : list
        The library's own boosters; their raw scores add up.
    start : array of shape (columns,) or None
        Scores before the first booster, where the boosters do not hold them.
    """

    def __init__(
        self, boosters: Sequence[Any], classes: np.ndarray, start: np.ndarray | None = None, **settings: Any
    ) -> None:
        self.boosters = list(boosters)
        self.classes_ = np.asarray(classes)
        self.start = start
        self.settings = settings

    @property
    def columns(self) -> int:
        """Columns of raw scores: one for two classes."""
        return 1 if len(self.classes_) == 2 else len(self.classes_)

    @abc.abstractmethod
    def raw(self, X: Any) -> np.ndarray:
        """Raw scores, shape (n, columns)."""

    def predict_proba(self, X: Any) -> np.ndarray:
        raw = np.asarray(self.raw(X), dtype=float)
        if self.columns == 1:
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
            "stages": len(self.boosters),
            "settings": self.settings,
        }
        files = {f"stage{k}": self.booster_bytes(booster) for k, booster in enumerate(self.boosters)}
        return {"about.json": json.dumps(about).encode(), **files}

    @classmethod
    def from_files(cls, files: dict[str, bytes]) -> Self:
        about = read_record("the part 'about.json'", files["about.json"], BoostedRecord)
        classes = labels_from_plain("the boosted model", about.classes, about.dtype)
        names = [f"stage{k}" for k in range(min(about.stages, len(files)))]
        if not names or sorted(names) != sorted(files.keys() - {"about.json"}):
            raise Refused(f"load: the boosted model must have the files of {about.stages} stages.")
        start = None
        if about.start is not None:
            start = np.array([hex_number("the start of the boosted model", v) for v in about.start])
        model = cls([cls.booster_from(files[name]) for name in names], classes, start, **about.settings)
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
        """What :meth:`booster_bytes` wrote."""

    def __getstate__(self) -> dict[str, Any]:
        # native files survive a change of the library's version
        return {**self.__dict__, "boosters": [self.booster_bytes(booster) for booster in self.boosters]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "files" in state:  # of lowchurn 0.1.0
            state = type(self).from_files(state["files"]).__dict__
        else:
            state = {**state, "boosters": [self.booster_from(data) for data in state["boosters"]]}
        self.__dict__.update(state)


class BoostingLearner(Learner):
    """Shared by the boosting libraries. Subclasses train; the targets and the start are prepared here."""

    takes_nan = True
    model: ClassVar[type[BoostedModel]]

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

    @abc.abstractmethod
    def stages(self, base: Any) -> BoostedModel | None:
        """A fitted model of the library as stages; None where it is something else."""

    def aims(self, job: Job) -> tuple[np.ndarray, np.ndarray | None]:
        """Targets that sum to one, and weights of rows: what a row's targets sum to is a weight."""
        targets = np.asarray(job.targets, dtype=float)
        class_weight = self.estimator.get_params().get("class_weight")
        if class_weight is not None:
            mass = weighted_mass(targets, job.sample_weight)
            targets = targets * class_weights(class_weight, self.classes, mass)
        sums = targets.sum(axis=1)
        weight = job.sample_weight
        if not np.allclose(sums, 1.0, atol=1e-12, rtol=0):
            weight = sums if weight is None else sums * weight
            even = np.full(targets.shape[1], 1 / targets.shape[1])
            targets = np.where(sums[:, None] > 0, targets / np.where(sums > 0, sums, 1.0)[:, None], even)
        return targets, weight

    @classmethod
    def as_served(cls, model: Any) -> Any:
        return cls(model, model.classes_).stages(model) if cls.handles(model) else None

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


def log_shares(targets: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Where boosting starts: the logarithm of the share of each class (log-odds for two classes)."""
    shares = np.clip(np.average(targets, axis=0, weights=weight), 1e-12, 1.0)
    return np.asarray(np.log(shares[1:]) - np.log(shares[:1]) if len(shares) == 2 else np.log(shares))


def plain_table(X: Any) -> Any:
    """Polars frames as numpy (numbers only) or pandas; everything else as it is."""
    if not type(X).__module__.startswith("polars"):
        return X
    table = X.to_numpy()
    return X.to_pandas() if table.dtype.kind == "O" else table
