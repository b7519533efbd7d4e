"""One model in place of the several that would be served: a student of their probabilities, steered into the budget."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from lowchurn._display import brief_share, churn_text
from lowchurn._terminal import one_line
from lowchurn._types import Rows
from lowchurn.estimator._frontier import Candidate
from lowchurn.estimator._limits import Limits
from lowchurn.estimator._measuring import Offer, Ruler, Trials, Tried, clearly_worse
from lowchurn.estimator._production import row_count
from lowchurn.estimator._serving import Member, base_alone, count_models, weighted
from lowchurn.estimator._split import Traffic, halves, stacked
from lowchurn.estimator._to_try import MOST, Goal
from lowchurn.learners import Job, Learner
from lowchurn.learners._model import BehindPreprocessing
from lowchurn.selection._search import LambdaSearch, predicted_lambda

NAME = "compressed"
EXCHANGES = 8  # positions to look at, which take no training
# Parameters that weigh classes, in scikit-learn and the boosting libraries, and their values without weights.
UNWEIGHTED = {
    "class_weight": None,
    "class_weights": None,
    "auto_class_weights": None,
    "scale_pos_weight": 1.0,
    "is_unbalance": False,
}


@dataclass(frozen=True, eq=False)
class Compression:
    """Students of what would be served that keep the budget, and this teacher, all measured on the same rows.

    ``tried`` are all that were trained, for the frontier; the teacher is None where the students come from a file.
    """

    students: Sequence[Offer]
    teacher: Offer | None = None
    tried: Sequence[Candidate] = ()
    traffic: int = 0  # rows of it that churn was measured on
    less_accurate: frozenset[Offer] = frozenset()  # students that are clearly less accurate than the teacher

    def cost(self, student: Offer, hard: bool) -> str:
        """What compression costs, in words."""
        if self.teacher is None:
            return ""
        count = count_models(self.teacher.weights)
        what = f"{count} models"
        if count == 1:
            what = "a model that contains the base" if self.teacher.rule is None else "a model that keeps decisions"
        was, now = self.teacher.candidate, student.candidate
        accuracy = f"accuracy {brief_share(was.accuracy)} before and {brief_share(now.accuracy)} now, "
        accuracy = "" if math.isnan(was.accuracy) else accuracy
        churn = f"churn {churn_text(was.churn, hard)} and {churn_text(now.churn, hard)}"
        return f"Compressed from {what} into one of its own kind: {accuracy}{churn}."

    def why_not(self, limits: Limits, hard: bool) -> str:
        """Why no student is served, in words."""
        if limits.frozen or limits.held:
            return (
                f"compress=True: {limits.parameters} allows no change, and a compressed model may change any decision."
            )
        trained = [row for row in self.tried if row.status == "trained"]
        if self.tried and not trained:
            reasons = "; ".join(dict.fromkeys(row.reason.rstrip(".") for row in self.tried))
            return f"compress=True: the training of the compressed model failed ({reasons})."
        if not trained or (limits and any(limits.keep(row) for row in trained)):
            return "compress=True: the compressed models were trained for another budget, or are not certified."
        nearest = min(trained, key=limits.load) if limits else min(trained, key=lambda row: -row.accuracy)
        limit = limits.parameters if limits else "the accuracy of a plain retrain"
        accuracy = "" if math.isnan(nearest.accuracy) else f" and an accuracy of {brief_share(nearest.accuracy)}"
        return (
            f"compress=True: no compressed model keeps {limit}; the nearest of {len(trained)} that were tried has a "
            f"churn of {churn_text(nearest.churn, hard)}{accuracy}."
        )


def is_large(offer: Offer, trials: Trials) -> bool:
    """Whether more would be served than one model: several, one that contains the base, or one that keeps decisions."""
    models = [part.model.model for part in offer.weights if isinstance(part, Member)]
    grown = any(trials.trainer.can.learner.contains_base(model) for model in models)
    return count_models(offer.weights) > 1 or offer.rule is not None or grown


def without_class_weights(learner: Learner) -> Learner:
    """The learner of the same estimator without weights of classes: probabilities of a model contain them already."""
    given = learner.estimator.get_params()
    weighted_by = {name: value for name, value in UNWEIGHTED.items() if given.get(name) not in (None, value)}
    if not weighted_by:
        return learner
    return type(learner)(learner.unfitted(learner.estimator).set_params(**weighted_by), learner.classes)


def compress(trials: Trials, teacher: Offer, goal: Goal, traffic: Traffic | None) -> Compression:
    """Train students of the teacher until one keeps the budget, or a few have been trained; none of one small model.

    The first aims at the probabilities of the teacher, the next ones at points between these and the base's (see
    :class:`~lowchurn.selection._search.LambdaSearch`). They are taught on the training rows and on one half of the
    traffic; churn is measured on the other half, because on rows that it was taught a student looks like its teacher.
    Forests need no students: trees of the plain retrain take the place of as many trees of the base as the budget
    allows. So every budget is within reach, where a student has noise of its own.
    """
    if not is_large(teacher, trials):
        return Compression([])
    school = School.of(trials, teacher, None if traffic is None else traffic.choose, goal)
    if goal.limits and school.exchangeable:
        school.search(school.exchanged, trials.plain, EXCHANGES)
        if any(school.aims.keep(row) for row in school.tried):
            return school.compression(goal.limits)
    first = school.student(1.0)
    if first.proba is not None and not school.aims.keep(first.offer.candidate):
        school.search(school.student, first, MOST)
    return school.compression(goal.limits)


class School:
    """Teaches students, one after the other, and measures them."""

    def __init__(self, trials: Trials, teacher: Offer, ruler: Ruler, X: Rows, lessons: Lessons, aims: Limits) -> None:
        self.trials = trials
        self.teacher = teacher
        self.ruler = ruler
        self.X = X
        self.lessons = lessons
        self.aims = aims
        self.students: list[Offer] = []
        self.tried: list[Candidate] = []
        self.less_accurate: set[Offer] = set()
        self._exchanged: dict[int, Tried] = {}
        self._learner = without_class_weights(trials.trainer.can.learner)
        self._right = ruler.right(self._asked(teacher), base_alone(teacher.weights))

    @classmethod
    def of(cls, trials: Trials, teacher: Offer, traffic: Rows | None, goal: Goal) -> School:
        ruler, X, taught = trials.ruler, trials.X_choose, None
        assert ruler is not None
        if traffic is not None and row_count(traffic) > 1:
            labelled = row_count(X) - row_count(traffic)
            taught, left = halves(traffic, trials.trainer.seed or 0)
            rows = np.r_[np.arange(labelled), labelled + left]
            ruler, X = ruler.take(rows), _safe_indexing(X, rows)
            taught = _safe_indexing(traffic, taught)
        return cls(trials, teacher, ruler, X, Lessons.of(trials, teacher, taught), goal.aims(ruler.terms))

    def _asked(self, offer: Offer) -> np.ndarray:
        """Probabilities of an offer on the rows that students are measured on."""
        proba = weighted({part: self.ruler.proba(part, self.X) for part in offer.weights}, offer.weights)
        return proba if offer.rule is None else offer.rule.proba(proba, self.ruler.base_decisions, self.ruler.codes)

    def search(self, make: Callable[[float], Tried], at_one: Tried, most: int) -> None:
        """Make students at a few lambdas until one keeps the aim; ``at_one`` is what there is at 1."""
        if at_one.proba is None:
            return
        ruler, aims = self.ruler, self.aims
        proba = at_one.proba if len(at_one.proba) == len(ruler.y) else self._asked(at_one.offer)

        def load(proba: np.ndarray) -> float:
            return aims.load_of([ruler.spent(limit, proba) for limit in aims])

        first = predicted_lambda(proba, ruler.base_proba, keeps=lambda mixed: load(mixed) <= aims.full)
        search = LambdaSearch(first, aim=aims.full, at_one=load(proba), most=most)
        while (lam := search.ask()) is not None:
            found = make(lam)
            search.tell(lam, math.nan if found.proba is None else aims.load(found.offer.candidate))

    def student(self, lam: float) -> Tried:
        """Train and measure a student whose targets have ``lam`` of the teacher and the rest of the base."""
        trainer, lessons = self.trials.trainer, self.lessons
        begin = time.perf_counter()
        job = Job(lessons.targets(lam), sample_weight=lessons.weight, seed=trainer.seed)
        (model,) = self._learner.fit_many(lessons.rows, [job], None, trainer.n_jobs)
        trainer.bar.advance()
        return self._measured(Candidate(NAME, {"lam": lam}, seconds=time.perf_counter() - begin), model)

    @functools.cached_property
    def exchangeable(self) -> int:
        """How many parts of the plain retrain can take the place of parts of the base, on rows as they come."""
        can, start = self.trials.trainer.can, self.trials.trainer.can.start
        if start is None or start.preprocessing is not None or self._retrain.preprocessing is not None:
            return 0
        return can.learner.exchangeable(self._retrain.model, start.model)

    @property
    def _retrain(self) -> BehindPreprocessing:
        (member,) = self.trials.plain.offer.weights
        assert isinstance(member, Member)
        return member.model

    def exchanged(self, lam: float) -> Tried:
        """Measure the model of which ``lam`` is of the plain retrain, one part at least, and the rest of the base."""
        can, count = self.trials.trainer.can, self.exchangeable
        parts = max(round(lam * count), 1)
        if parts not in self._exchanged:
            row = Candidate(NAME, {"lam": float(f"{parts / count:.3g}"), "by": "trees"})
            model = can.learner.exchange(self._retrain.model, can.start_model, parts)
            self._exchanged[parts] = self._measured(row, model)
        return self._exchanged[parts]

    def _measured(self, row: Candidate, model: Any) -> Tried:
        """A student among the others, or the reason why there is none."""
        trainer = self.trials.trainer
        if not isinstance(model, Exception):
            member = Member(row.name, BehindPreprocessing(trainer.preprocessing, model), trainer.data.classes)
            proba = member.proba(self.X)
            if np.isfinite(proba).all():
                offer = self.ruler.offer({member: 1.0}, row, proba)
                if clearly_worse(self.ruler.right(proba), self._right, self.ruler.weights, points=0.01):
                    self.less_accurate.add(offer)
                self.students.append(offer)
                self.tried.append(offer.candidate)
                return Tried(offer, proba)
            model = RuntimeError("its probabilities are not finite.")
        reason = f"{type(model).__name__}: {one_line(model)}"
        failed = Offer({}, Candidate(NAME, row.parameters, status="failed", reason=reason))
        self.tried.append(failed.candidate)
        return Tried(failed)

    def compression(self, limits: Limits) -> Compression:
        teacher = self.ruler.offer(
            self.teacher.weights, self.teacher.candidate, self._asked(self.teacher), self.teacher.rule
        )
        traffic = 0 if self.ruler.traffic is None else int(self.ruler.traffic.sum())
        students = [one for one in self.students if limits.keep(one.candidate)]
        return Compression(students, teacher, self.tried, traffic, frozenset(self.less_accurate) & frozenset(students))


@dataclass(frozen=True, eq=False)
class Lessons:
    """Rows that a student is taught, after the preprocessing, with the probabilities of the teacher and of the base."""

    rows: Rows
    teacher: np.ndarray
    base: np.ndarray
    weight: np.ndarray | None

    @classmethod
    def of(cls, trials: Trials, teacher: Offer, traffic: Rows | None) -> Lessons:
        """The training rows and some traffic."""
        trainer = trials.trainer
        data, base = trainer.data, trainer.can.base
        assert base is not None
        rows, weight = trainer.rows, data.weight
        proba, base_proba = _answers(teacher, trials, data.X, data.asked)
        if traffic is not None:
            ready = traffic if trainer.preprocessing is None else trainer.preprocessing.transform(traffic)
            rows = stacked(rows, ready)
            more, more_base = _answers(teacher, trials, traffic, traffic)
            proba, base_proba = np.concatenate([proba, more]), np.concatenate([base_proba, more_base])
            weight = None if weight is None else np.append(weight, np.full(len(more), weight.mean()))
        return cls(rows, proba, base_proba, weight)

    def targets(self, lam: float) -> np.ndarray:
        """What to aim at, between the base and the teacher."""
        return self.teacher if lam == 1 else lam * self.teacher + (1 - lam) * self.base


def _answers(teacher: Offer, trials: Trials, X: Rows, asked: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of the teacher, which agree with its decisions, and of the base; ``asked`` is what the base is."""
    base = trials.trainer.can.base
    assert base is not None
    base_proba, before = base.answers(asked)
    each = {part: base_proba if part is base else part.proba(X) for part in teacher.weights}
    proba = weighted(each, teacher.weights)
    if teacher.rule is None:
        return proba, base_proba
    groups = None if trials.ruler is None else trials.ruler.groups
    codes = None if groups is None or not teacher.rule.groups else groups.codes(X, before)
    return teacher.rule.proba(proba, before, codes), base_proba
