"""Train candidates and measure them on held-out rows."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.validation import assert_all_finite

from lowchurn.checks import unknown_name
from lowchurn.estimator.base import WHO, align
from lowchurn.estimator.frontier import Candidate, Frontier, mean_interval, share_interval
from lowchurn.estimator.split import Part, whole_numbers
from lowchurn.learners import Job, Learner, learner_for
from lowchurn.scoring import Score
from lowchurn.strategies import ALL, Distill, Strategy, one_hot, paper_grid


@dataclass(frozen=True, eq=False)
class Trained:
    """A fitted model behind its fitted preprocessing."""

    preprocessing: Any
    model: Any
    classes: np.ndarray

    def proba(self, X: Any) -> np.ndarray:
        rows = X if self.preprocessing is None else self.preprocessing.transform(X)
        return align(np.asarray(self.model.predict_proba(rows), dtype=float), self.model.classes_, self.classes)


@dataclass(frozen=True, eq=False)
class Ruler:
    """Measures probabilities of some rows against their labels and the base."""

    y: np.ndarray
    weights: np.ndarray
    base_proba: np.ndarray
    base_decisions: np.ndarray
    score: Score
    hard: bool

    def errors(self, proba: np.ndarray) -> np.ndarray:
        return np.asarray(proba.argmax(axis=1) != self.y, dtype=float)

    def error(self, proba: np.ndarray) -> float:
        return float(np.average(self.errors(proba), weights=self.weights))

    def risk(self, proba: np.ndarray) -> float:
        return float(np.average(self.score.loss(self.y, proba), weights=self.weights))

    def cost(self, proba: np.ndarray) -> float:
        """What is to be small within the budget: the error for hard churn, the score for soft churn."""
        return self.error(proba) if self.hard else self.risk(proba)

    def changes(self, proba: np.ndarray) -> np.ndarray:
        """Churn of each row: zeros and ones, or divergences."""
        if self.hard:
            return np.asarray(proba.argmax(axis=1) != self.base_decisions, dtype=float)
        return np.maximum(self.score.divergence(self.base_proba, proba), 0.0)

    def churn(self, proba: np.ndarray) -> float:
        return float(np.average(self.changes(proba), weights=self.weights))

    def measure(self, candidate: Candidate, proba: np.ndarray) -> Candidate:
        values = self.changes(proba)
        churn = float(np.average(values, weights=self.weights))
        base_right, right = self.base_decisions == self.y, self.errors(proba) == 0
        accuracy = 1 - self.error(proba)
        return Candidate(
            candidate.strategy,
            candidate.setting,
            risk=self.risk(proba),
            accuracy=accuracy,
            churn=churn,
            broken=float(np.average(base_right & ~right, weights=self.weights)),
            accuracy_interval=share_interval(accuracy, self.weights),
            churn_interval=share_interval(churn, self.weights) if self.hard else mean_interval(values, self.weights),
            status=candidate.status,
            seconds=candidate.seconds,
            fixed=float(np.average(right & ~base_right, weights=self.weights)),
            dial=candidate.dial,
        )


@dataclass(eq=False)
class Trials:
    """Trains strategies on one set of rows, through preprocessing that is fitted once, and keeps what came out."""

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
    frontier: Frontier = field(default_factory=Frontier)
    models: list[Trained | None] = field(default_factory=list)
    probas: list[np.ndarray | None] = field(default_factory=list)
    trainings: int = 0

    def __post_init__(self) -> None:
        steps, final = take_apart(self.estimator)
        self.learner: Learner = learner_for(final, self.classes)
        rows = _safe_indexing(self.X, self.train.rows)
        self.y_train = self.y[self.train.rows]
        self.preprocessing: Any = None
        if steps is not None:
            self.preprocessing = clone(steps)
            rows = self._preprocess(rows)
        refuse_nan(rows, self.learner)
        self.rows = rows
        self.onehot = one_hot(self.y_train, len(self.classes))

    def _preprocess(self, rows: Any) -> Any:
        """Fit the preprocessing once. It takes no weights, so counts of copies are written out for it."""
        weight, y = self.train.weight, self.classes[self.y_train]
        if weight is None or not whole_numbers(weight):
            return self.preprocessing.fit_transform(rows, y)
        copies = np.repeat(np.arange(len(y)), weight.astype(int))
        ready = self.preprocessing.fit_transform(_safe_indexing(rows, copies), y[copies])
        return _safe_indexing(ready, np.unique(copies, return_index=True)[1])

    @functools.cached_property
    def warm_rows(self) -> Any:
        """Rows as the base's own preprocessing gives them: its weights mean nothing elsewhere."""
        preprocessing = self.start[0]
        rows = _safe_indexing(self.X, self.train.rows)
        return rows if preprocessing is None else preprocessing.transform(rows)

    def cannot(self, strategy: Strategy) -> str:
        return self.learner.cannot(strategy, self.start[1])

    def run(self, strategies: Iterable[Strategy]) -> None:
        """Train strategies and measure them; what fails or cannot be done is a row with its reason."""
        asked = list(strategies)
        reasons = [self.cannot(s) or self._lacks_base(s) for s in asked]
        results: dict[int, Any] = {}
        for warm in (False, True):
            group = [k for k, s in enumerate(asked) if not reasons[k] and (s.base_share > 0) == warm]
            if group:
                results.update(zip(group, self._train([asked[k] for k in group], warm), strict=True))
        for k, strategy in enumerate(asked):
            if reasons[k]:
                self._keep(strategy, None, reasons[k], "skipped", math.nan)
                continue
            result, seconds = results[k]
            if isinstance(result, Exception):
                if not self.frontier:
                    raise result  # not even the plain retrain: the data or the estimator is at fault
                self._keep(strategy, None, f"{type(result).__name__}: {result}", "failed", seconds)
            else:
                preprocessing = self.start[0] if strategy.base_share > 0 else self.preprocessing
                self._keep(strategy, Trained(preprocessing, result, self.classes), "", "trained", seconds)

    def _lacks_base(self, strategy: Strategy) -> str:
        return "it needs a base." if strategy.needs_base and self.base_proba is None else ""

    def _train(self, group: Sequence[Strategy], warm: bool) -> list[tuple[Any, float]]:
        """A model or an exception for each strategy, and the seconds where they were trained one by one."""
        jobs = [
            Job(np.asarray(s.targets(self.onehot, self.base_proba)), s, self.train.weight, self.seed, self.y_train)
            for s in group
        ]
        begin = time.perf_counter()
        rows, base = (self.warm_rows, self.start[1]) if warm else (self.rows, None)
        results = self.learner.fit_many(rows, jobs, base, self.n_jobs)
        seconds = (time.perf_counter() - begin) if len(jobs) == 1 else math.nan
        self.trainings += len(jobs)
        for _ in jobs:
            self.done()
        return [(result, seconds) for result in results]

    def _keep(self, strategy: Strategy, model: Trained | None, reason: str, status: str, seconds: float) -> None:
        row = Candidate(strategy.name, strategy.setting, status=status, reason=reason, seconds=seconds)
        proba = None
        if model is not None and self.ruler is not None:
            try:
                proba = model.proba(self.X_choose)
                row = self.ruler.measure(row, proba)
            except (ValueError, TypeError, NotFittedError) as error:
                if not self.frontier:
                    raise
                reason = f"{type(error).__name__}: {error}"
                row = Candidate(strategy.name, strategy.setting, status="failed", reason=reason, seconds=seconds)
                model = proba = None
        self.frontier.append(row)
        self.models.append(model)
        self.probas.append(proba)


def take_apart(estimator: Any) -> tuple[Any, Any]:
    """Preprocessing (or None) and final classifier of an estimator."""
    if isinstance(estimator, Pipeline):
        return (estimator[:-1] if len(estimator) > 1 else None), estimator[-1]
    return None, estimator


def refuse_nan(rows: Any, learner: Learner) -> None:
    """Missing values where the learner has no support for them are an error before any training."""
    if learner.takes_nan or takes_nan(learner.estimator):
        return
    name = type(learner.estimator).__name__
    if hasattr(rows, "dtypes") and hasattr(rows, "isna"):
        empty = [str(column) for column in rows.columns if rows[column].isna().any()]
        if empty:
            raise ValueError(
                f"{WHO}: Input X contains NaN in {empty[:5]}, and {name} does not accept missing values. "
                "Impute them in a Pipeline, or choose an estimator that does."
            )
    elif hasattr(rows, "dtype"):
        assert_all_finite(rows, estimator_name=name, input_name="X")


def takes_nan(estimator: Any) -> bool:
    try:
        return bool(get_tags(estimator).input_tags.allow_nan)
    except Exception:  # an estimator without tags speaks for itself in fit
        return True


Family = Callable[..., Strategy]


def resolve(strategies: Any, search: str) -> tuple[list[Strategy], list[Family]]:
    """Strategies to train as they are, and families of distillation in which lambda is searched for.

    An item is a strategy, a class of them, its name, or a ``functools.partial`` of a class. A class stands for the
    paper's settings; with ``search="auto"``, ``Distill`` stands for a search.
    """
    if isinstance(strategies, str | Strategy | functools.partial | type):
        strategies = [strategies]
    known = {cls.name: cls for cls in ALL}
    fixed: list[Strategy] = []
    families: list[Family] = []
    for item in strategies:
        if isinstance(item, str):
            if item not in known:
                raise unknown_name(WHO, "strategy", item, known)
            item = known[item]
        if isinstance(item, Strategy):
            fixed.append(item)
            continue
        cls = item.func if isinstance(item, functools.partial) else item
        if not (isinstance(cls, type) and issubclass(cls, Strategy)):
            raise ValueError(f"{WHO}: strategies must hold strategies, classes of them or names, got {item!r}.")
        keywords = item.keywords if isinstance(item, functools.partial) else {}
        if cls is Distill and search == "auto" and "lam" not in keywords:
            families.append(functools.partial(cls, **keywords))
        else:
            fixed.extend(paper_grid(cls, **keywords))
    return fixed, families
