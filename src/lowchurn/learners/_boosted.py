"""A boosted model as stages that add up, of any library; and its files.

A model is a start (the log of the class shares), a list of stages and the classes; its raw scores are the sum. Every
stage keeps the settings it was trained with, so a base is asked with its own.
"""

from __future__ import annotations

import abc
import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeAlias

import joblib
import numpy as np
from scipy.special import expit

from lowchurn._extras import importing
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
from lowchurn._types import ArrayLike, Rows
from lowchurn.learners._trees import reading
from lowchurn.metrics import decide

WHOLE = "whole"  # the setting of a stage that is a model in production, which predicts to the last bit as it does there
Booster: TypeAlias = Any  # of any library; they share no base class


@dataclass(frozen=True, eq=False)
class Stage:
    """A booster of the library and the settings that its rows are read with."""

    booster: Booster
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BoostedRecord:
    """What a model file contains about a boosted model, beside its stages."""

    classes: list[Label]
    dtype: str
    start: list[str] | None
    stages: int
    settings: dict[str, Any] | list[dict[str, Any]]  # one per stage; one for all in version 0.1
    threads: int | None = None


class BoostedModel(abc.ABC):
    """Served model of a boosting library: ``predict_proba``, ``predict`` and ``classes_`` as in scikit-learn."""

    module: ClassVar[str]  # the one to import
    settings_kind: ClassVar[Any] = dict[str, Any]  # the type of a stage's settings in a file

    def __init__(
        self, stages: Sequence[Stage], classes: ArrayLike, start: np.ndarray | None = None, threads: int | None = None
    ) -> None:
        self.stages = list(stages)
        self.classes_ = np.asarray(classes)
        self.start = start  # (columns,), scores before the first booster, where the boosters do not contain them
        self.threads = threads  # as n_jobs in scikit-learn; None for the library's default
        self.thread_count = None if threads is None else joblib.effective_n_jobs(threads)

    @property
    def boosters(self) -> list[Booster]:
        """The boosters of the stages."""
        return [stage.booster for stage in self.stages]

    @property
    def columns(self) -> int:
        """The number of columns of raw scores: one for two classes."""
        return 1 if len(self.classes_) == 2 else len(self.classes_)

    def raw(self, X: Rows) -> np.ndarray:
        """Return raw scores, shape (n, columns)."""
        X = plain_table(X)
        total: Any = 0.0 if self.start is None else self.start
        for stage in self.stages:
            total = total + self.one_column(self.ask(stage, X, raw=True))
        return np.asarray(total)

    def one_column(self, scores: np.ndarray) -> np.ndarray:
        """Return scores of two classes as one column: the softmax of two is the sigmoid of their difference."""
        table = np.asarray(scores, dtype=float)
        table = table.reshape(table.shape[0], -1)
        return table[:, 1:] - table[:, :1] if self.columns == 1 and table.shape[1] == 2 else table

    @abc.abstractmethod
    def ask(self, stage: Stage, X: Rows, raw: bool) -> np.ndarray:
        """Return raw scores of one stage alone, or its probabilities as the library itself makes them."""

    def predict_proba(self, X: Rows) -> np.ndarray:
        if len(self.stages) == 1 and self.stages[0].settings.get(WHOLE):
            own = self.ask(self.stages[0], plain_table(X), raw=False)
            return own if own.ndim == 2 else np.stack([1 - own, own], axis=1)
        raw = self.raw(X)
        if raw.shape[1] == 1:
            positive = expit(raw[:, 0])
            return np.stack([1 - positive, positive], axis=1)
        raw = np.exp(raw - raw.max(axis=1, keepdims=True))
        return np.asarray(raw / raw.sum(axis=1, keepdims=True))

    def predict(self, X: Rows) -> np.ndarray:
        return np.asarray(self.classes_[decide(self.predict_proba(X))])

    def to_files(self) -> dict[str, bytes]:
        """Return native model files and a small description."""
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
    def booster_bytes(booster: Booster) -> bytes:
        """Return one booster in the library's own format."""

    @classmethod
    def booster_from(cls, data: bytes, who: str = "load", name: str = "a stage of the model") -> Booster:
        """Read what :meth:`booster_bytes` wrote; ValueError where it is something else."""
        with importing(who, "boosting"):
            library = importlib.import_module(cls.module)
        with reading(who, name):
            cls.check(data)
            return cls.parse(library, data)

    @staticmethod
    @abc.abstractmethod
    def check(data: bytes) -> None:
        """Raise where the file of a booster is damaged, which would crash the process, now or when it predicts."""

    @staticmethod
    @abc.abstractmethod
    def parse(library: Any, data: bytes) -> Booster:
        """Return the booster in a file that was checked."""

    def __getstate__(self) -> dict[str, Any]:
        # native files survive a change of the library's version
        stages = [(self.booster_bytes(stage.booster), stage.settings) for stage in self.stages]
        return {**self.__dict__, "stages": stages}

    def __setstate__(self, state: dict[str, Any]) -> None:
        stages = [Stage(self.booster_from(data), settings) for data, settings in state["stages"]]
        self.__dict__.update(state, stages=stages)


def plain_table(X: Rows) -> Rows:
    """Return polars frames as numpy (numbers only) or pandas; everything else as it is."""
    if not type(X).__module__.startswith("polars"):
        return X
    table = X.to_numpy()
    return X.to_pandas() if table.dtype.kind == "O" else table
