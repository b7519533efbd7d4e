"""What is trained, decided once at the top of ``fit``; and the trainings of a plan, each once."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import StackingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.validation import assert_all_finite, validate_data

from lowchurn._types import Classifier, Model, Rows
from lowchurn.estimator._labels import WHO, training_labels
from lowchurn.estimator._production import Asked, Base, GivenBase
from lowchurn.estimator._serving import Member, OnDial, Part, Weights, parts_of
from lowchurn.estimator._split import whole_numbers
from lowchurn.learners import Job, Learner, learner_for
from lowchurn.learners._all import ALL, blueprint
from lowchurn.learners._learner import NothingToTrain
from lowchurn.learners._model import BehindPreprocessing, inside_wrappers, split_pipeline
from lowchurn.learners._torch import NetworkClassifier, is_network
from lowchurn.strategies import ColdStart, Plan, Recipe, Strategy, Training, member_seed, one_hot, plan

if TYPE_CHECKING:
    from rich.progress import Progress

# What is trained


def find_estimator(estimator: Any, base: Asked | None, has_base: bool, seed: int | None, who: str = WHO) -> Classifier:
    """The unfitted estimator to train: the one asked for, else one of the base's own kind.

    ``has_base`` is whether there is a base in any form: ``base`` is None for one of which only a table is given.
    """
    if is_network(estimator):
        return NetworkClassifier(estimator, random_state=seed)
    if estimator is None:
        estimator = own_kind(base) if has_base else LogisticRegression(max_iter=1000)
    elif isinstance(estimator, type) or not hasattr(estimator, "fit"):
        name = f"the class {estimator.__name__}" if isinstance(estimator, type) else type(estimator).__name__
        raise ValueError(
            f"{who}: estimator must be a classifier with fit, got {name}. "
            "Give an unfitted classifier or a Pipeline that ends in one."
        )
    if not gives_probabilities(estimator):
        name = type(split_pipeline(estimator)[1]).__name__
        raise NothingToTrain(
            f"estimator must give probabilities (predict_proba), and {name} does not.",
            f"Give estimator=CalibratedClassifierCV({name}()), or another classifier.",
            who,
        )
    return estimator


def gives_probabilities(estimator: Classifier) -> bool:
    """Whether an unfitted estimator will have ``predict_proba``; a stacking classifier has it only when fitted."""
    final = split_pipeline(estimator)[1]
    if isinstance(final, StackingClassifier):
        return final.final_estimator is None or gives_probabilities(final.final_estimator)
    return hasattr(final, "predict_proba")


def own_kind(base: Any) -> Any:
    """An unfitted estimator of a fitted base's own kind; another kind is never taken in silence."""
    base = inside_wrappers(base)
    if hasattr(base, "_served"):  # a LowChurnClassifier keeps what it trained
        base = inside_wrappers(getattr(base, "estimator_", None))
    if isinstance(base, Pipeline):
        steps = [] if len(base) == 1 else thawed(clone(base[:-1])).steps
        return Pipeline([*steps, (base.steps[-1][0], own_kind(base[-1]))], memory=base.memory)
    if base is None or not any(learner.has_blueprint(base) for learner in ALL):
        what = "a table of its answers" if base is None else f"a {type(base).__name__}"
        raise NothingToTrain(
            f"estimator=None trains the base's own kind again, and the base is {what}, which does not tell how to "
            "train one.",
            "Give estimator=, the classifier to train.",
        )
    return thawed(blueprint(base))


def thawed(estimator: Any) -> Any:
    """The same unfitted estimator with its frozen parts unfitted as well: a retrain trains all of it."""
    for name, part in estimator.get_params(deep=True).items():
        if isinstance(part, FrozenEstimator):
            estimator.set_params(**{name: clone(part.estimator)})
    return estimator


def unfitted(estimator: Any) -> Any:
    """A copy without what was learned; CatBoost's lists of columns go along, which scikit-learn's clone refuses."""
    if isinstance(estimator, Pipeline):
        steps = [(name, unfitted(step) if hasattr(step, "fit") else step) for name, step in estimator.steps]
        return estimator.__class__(steps, memory=estimator.memory)
    for learner in ALL:
        if learner.handles(estimator):
            return learner.unfitted(estimator)
    return clone(estimator, safe=False)


def may_take_nan(estimator: Any) -> bool:
    """Whether missing values are passed on to an estimator: it takes them, or has parts inside that may.

    Only a model of one piece with the tag (scikit-learn's) is known to refuse them; a pipeline is judged by its first
    step, and what wraps other estimators decides by itself when it is fitted.
    """
    if isinstance(estimator, Pipeline):
        return may_take_nan(estimator[0])
    try:
        if get_tags(estimator).input_tags.allow_nan:
            return True
        return any(hasattr(part, "fit") for part in estimator.get_params(deep=True).values())
    except Exception:  # an estimator without tags
        return True


def checked_table(model: Any, X: Rows, estimator: Any, who: str = WHO, reset: bool = True) -> Rows:
    """Rows that a model is fitted on, or with ``reset=False`` predicts: the columns of data frames keep their kinds."""
    if hasattr(X, "columns"):  # pandas, polars
        if not hasattr(X, "to_numpy"):
            raise ValueError(
                f"{who}: X must be an array, a sparse matrix or a data frame of pandas or polars, got "
                f"{type(X).__name__}. Convert it (collect() or to_pandas())."
            )
        validate_data(model, X, skip_check_array=True, reset=reset)
        if reset and len(X) == 0:
            raise ValueError(f"{who}: X must have at least one row, got an empty table.")
        return X
    finite = not may_take_nan(estimator)
    return validate_data(model, X, reset=reset, dtype=None, accept_sparse="csr", ensure_all_finite=finite)


def fit_steps(steps: Any, X: Rows, y: np.ndarray, weight: np.ndarray | None) -> tuple[Any, Rows]:
    """Fitted preprocessing (or None) and its rows. It takes no weights, so counts of copies are written out for it."""
    if steps is None:
        return None, X
    fitted = clone(steps)
    if weight is None or not whole_numbers(weight):
        return fitted, fitted.fit_transform(X, y)
    copies = np.repeat(np.arange(len(y)), weight.astype(int))
    ready = fitted.fit_transform(_safe_indexing(X, copies), y[copies])
    return fitted, _safe_indexing(ready, np.unique(copies, return_index=True)[1])


def refuse_nan(rows: Rows, learner: Learner, who: str = WHO) -> None:
    """Missing values where the learner has no support for them are an error before any training."""
    if learner.takes_nan or may_take_nan(learner.estimator):
        return
    name = type(learner.estimator).__name__
    if hasattr(rows, "dtypes") and hasattr(rows, "isna"):
        empty = [str(column) for column in rows.columns if rows[column].isna().any()]
        if empty:
            raise ValueError(
                f"{who}: Input X contains NaN in {empty[:5]}, and {name} does not accept missing values. "
                "Impute them in a Pipeline, or choose an estimator that does."
            )
    elif hasattr(rows, "dtype"):
        assert_all_finite(rows, estimator_name=name, input_name="X")


class Capability:
    """What can be trained and served: by which learner, from which start, with which base; ``kept`` may be served."""

    def __init__(
        self,
        estimator: Classifier,
        classes: np.ndarray,
        base: Base | GivenBase | None,
        X: Rows,
        serve_base: bool = True,
        flat: bool = True,
    ) -> None:
        self.steps, final = split_pipeline(estimator)
        self.base = base
        self.kept = base if isinstance(base, Base) and serve_base else None
        self.base_parts: Weights = {} if self.kept is None else parts_of(self.kept, X) if flat else {self.kept: 1.0}
        self.start: BehindPreprocessing | None = None if base is None else base.start(X)
        self.learner: Learner = learner_for(final, training_labels(classes), self.start_model)
        self._reasons: dict[Strategy, str] = {}

    @property
    def start_model(self) -> Model | None:
        return None if self.start is None else self.start.model

    def cannot(self, strategy: Strategy) -> str:
        """The reason why a strategy is impossible here, as a sentence; empty where it is possible."""
        recipe = plan([strategy]).recipes[strategy]
        if self.base is None and (strategy.needs_base or recipe.of != "model"):
            return "it needs a base."
        if recipe.of == "weights" and self._cannot_average:
            return self._cannot_average
        # Its decisions alone may be in a table when they are needed.
        asked = recipe.of == "proba" and (recipe.base_share > 0 or recipe.margin is None)
        if (asked or recipe.lean > 0) and self.kept is None:
            if isinstance(self.base, Base):
                return "serve_base=False: the base may not stay in service."
            return "the base is known only by its probabilities of these rows, so that it cannot be served."
        return next(filter(None, (self._cannot_train(one.strategy) for one in recipe.trainings)), "")

    @functools.cached_property
    def _cannot_average(self) -> str:
        return self.learner.cannot_average(self.start_model) or ""

    def _cannot_train(self, strategy: Strategy) -> str:
        """Computed once for each: every position of a dial has the same members, and a network is made to find out."""
        if strategy not in self._reasons:
            self._reasons[strategy] = self.learner.cannot(strategy, self.start_model) or ""
        return self._reasons[strategy]


# Training


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """The rows to train on: labels as class indices, weights (None where all are one), and the base.

    ``asked`` is what the base is asked about these rows, once, where a strategy needs its probabilities.
    """

    X: Rows
    y: np.ndarray
    weight: np.ndarray | None
    classes: np.ndarray
    base: Base | GivenBase | None = None
    asked: Any = None

    @functools.cached_property
    def base_proba(self) -> np.ndarray | None:
        return None if self.base is None else self.base.proba(self.asked)


class Trainer:
    """Trains what a plan contains, each training once, through preprocessing that is fitted once."""

    def __init__(self, can: Capability, data: TrainingRows, n_jobs: int | None, seed: int | None, bar: Bar) -> None:
        self.can = can
        self.data = data
        self.n_jobs = n_jobs
        self.seed = seed
        self.bar = bar
        labels = training_labels(data.classes)[data.y]
        self.preprocessing, self.rows = fit_steps(can.steps, data.X, labels, data.weight)
        refuse_nan(self.rows, can.learner)
        self.results: dict[Training, Member | Exception] = {}
        self.seconds: dict[Training, float] = {}
        self._means: dict[tuple[Member, ...], Member] = {}
        self._lessons: dict[tuple[Training, ...], np.ndarray | Exception] = {}

    @functools.cached_property
    def _warm_rows(self) -> Rows:
        """Rows as the base's own preprocessing returns them: its weights mean nothing elsewhere."""
        assert self.can.start is not None
        return self.can.start.rows(self.data.X)

    def run(self, wanted: Plan) -> None:
        """Train what a plan contains and is not trained yet: teachers first, and cold starts before warm ones."""
        for some in wanted.rounds:
            for warm in (False, True):
                group = [one for one in some if one not in self.results and (one.strategy.base_share > 0) == warm]
                if group:
                    self._train(group, warm)

    def _train(self, group: Sequence[Training], warm: bool) -> None:
        """Keep a model or an exception for each, and the seconds where one was trained by itself."""
        truths = {one: self._truth(one) for one in group}
        self.results |= {one: truth for one, truth in truths.items() if isinstance(truth, Exception)}
        group = [one for one in group if one not in self.results]
        begin = time.perf_counter()
        rows, base = (self._warm_rows, self.can.start_model) if warm else (self.rows, None)
        jobs = [self._job(one, truths[one]) for one in group]
        results = self.can.learner.fit_many(rows, jobs, base, self.n_jobs)
        seconds = (time.perf_counter() - begin) if len(jobs) == 1 else math.nan
        preprocessing = self.can.start.preprocessing if warm and self.can.start is not None else self.preprocessing
        for one, result in zip(group, results, strict=True):
            self.bar.advance()
            self.seconds[one] = seconds
            if not isinstance(result, Exception):
                result = Member(_name(one), BehindPreprocessing(preprocessing, result), self.data.classes)
            self.results[one] = result

    def _job(self, training: Training, truth: Any) -> Job:
        strategy = training.strategy
        return Job(
            np.asarray(strategy.targets(truth, self.data.base_proba if strategy.needs_base else None)),
            strategy,
            self.data.weight,
            self.seed if training.member == 0 else member_seed(self.seed or 0, training.member),
            self.data.y,
            None if strategy.limit is None else np.asarray(strategy.pull(self.data.base_proba)),
            training.member,
        )

    def _truth(self, training: Training) -> np.ndarray | Exception:
        """What takes the place of p in the targets: the labels, or the mean prediction of the teachers."""
        teachers = training.teachers
        if teachers not in self._lessons:
            found = [self.results[one] for one in teachers]
            probas = [one.proba(self.data.X) for one in found if isinstance(one, Member)]
            if not teachers:
                self._lessons[teachers] = np.asarray(one_hot(self.data.y, len(self.data.classes)))
            elif probas:
                self._lessons[teachers] = np.asarray(np.mean(probas, axis=0))
            else:
                self._lessons[teachers] = next(one for one in found if isinstance(one, Exception))
        return self._lessons[teachers]

    def made(self, recipe: Recipe) -> tuple[Weights, str]:
        """What serves a strategy, as weights of models, and which teachers and members were left out, in words."""
        lost = self._lost(recipe.teachers, "teacher")
        if recipe.of == "model":
            found = self.results[recipe.members[0]]
            if isinstance(found, Exception):
                raise found
            return {found: 1.0}, "; ".join(lost)
        lost += self._lost(recipe.members, "member")
        good = [one for one in map(self.results.__getitem__, recipe.members) if isinstance(one, Member)]
        if not good:
            raise RuntimeError("; ".join(lost))
        base, share = self.can.kept, recipe.base_share
        if base is not None and (share == 1 or (recipe.margin or 0) >= 1):
            return {base: 1.0}, "; ".join(lost)
        served: dict[Part, float] = {one: (1 - share) / len(good) for one in good}
        if recipe.of == "weights":
            served, share = {self._averaged(tuple(good), share): 1.0}, 0.0
        if recipe.lean:
            served = {part: (1 - recipe.lean) * weight for part, weight in served.items()}
            share = (1 - recipe.lean) * share + recipe.lean
        if recipe.margin is not None:  # its decisions are kept as well
            served |= {} if base is None else {base: share}
        elif share:
            served |= {part: share * weight for part, weight in self.can.base_parts.items()}
        return served, "; ".join(lost)

    def _lost(self, group: Sequence[Training], what: str) -> list[str]:
        """Which of a group failed, in words."""
        found = [self.results[one] for one in group]
        return [f"{what} {j} is left out: {e}" for j, e in enumerate(found) if isinstance(e, Exception)]

    def _averaged(self, members: tuple[Member, ...], base_share: float) -> Member | OnDial:
        """The model whose weights are the mean of some, moved toward the base."""
        learner, start = self.can.learner, self.can.start
        assert start is not None
        if members not in self._means:
            mean = members[0]
            if len(members) > 1:
                models = [one.model.model for one in members]
                model = learner.average(models, [1 / len(models)] * len(models), self._warm_rows)
                behind = BehindPreprocessing(start.preprocessing, model)
                mean = Member(f"mean of {len(models)}", behind, self.data.classes)
            self._means[members] = mean
        mean = self._means[members]
        if base_share == 0:
            return mean
        rows = self._warm_rows if learner.needs_rows(mean.model.model) else None  # a dial is kept, and rows with it
        return OnDial(f"{mean.name}, {base_share:g} toward the base", mean, start, base_share, learner, rows)


def out_of_fold(trainer: Trainer, rows: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Probabilities of some of the training rows by plain retrains, each without the fold that a row is in."""
    data = trainer.data
    found = np.empty((len(rows), len(data.classes)))
    for fold in np.unique(folds):
        left, out = np.delete(np.arange(len(data.y)), rows[folds == fold]), rows[folds == fold]
        weight = None if data.weight is None else data.weight[left]
        part = TrainingRows(_safe_indexing(data.X, left), data.y[left], weight, data.classes)
        one = Trainer(trainer.can, part, trainer.n_jobs, trainer.seed, trainer.bar)
        wanted = plan([ColdStart()])
        one.run(wanted)
        (member,) = one.made(wanted.recipes[ColdStart()])[0]
        found[folds == fold] = member.proba(_safe_indexing(data.X, out))
    return found


def _name(training: Training) -> str:
    strategy = training.strategy
    name = f"{strategy.name}({strategy.setting})" if strategy.setting else strategy.name
    return f"{name} #{training.member + 1}" if training.member else name


class Bar:
    """Counts trainings on a progress bar, or on none."""

    def __init__(self, shown: Progress | None = None) -> None:
        self.shown = shown
        self.total = self.done = 0
        self.task = None if shown is None else shown.add_task("training candidates", total=None)

    def expect(self, total: int) -> None:
        """How many trainings there may be."""
        self.total = total
        if self.shown is not None and self.task is not None:
            self.shown.update(self.task, total=total)

    def advance(self) -> None:
        self.done += 1
        if self.shown is not None and self.task is not None:
            self.shown.advance(self.task)


@contextlib.contextmanager
def progress(verbose: int) -> Iterator[Bar]:
    """A bar that is full at the end, whether or not all that may be trained was."""
    if not verbose:
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as shown:  # the standard output is for results
        bar = Bar(shown)
        yield bar
        if bar.task is not None:
            shown.update(bar.task, completed=bar.total)
