"""Candidates measured on held-out rows against the labels and the base, and what these rows show about the base."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from lowchurn._display import brief_share, churn_text
from lowchurn._estimates import paired_difference, share_of_rows, weighted_mean
from lowchurn._terminal import one_line
from lowchurn._types import Rows
from lowchurn.estimator._frontier import Candidate, Frontier
from lowchurn.estimator._groups import Groups
from lowchurn.estimator._labels import GONE, WHO
from lowchurn.estimator._limits import Limit, Limits
from lowchurn.estimator._production import Base, GivenBase, row_count
from lowchurn.estimator._serving import Part, Weights, base_alone, count_models, weighted
from lowchurn.estimator._split import SomeRows, effective_rows, stacked, whole_numbers
from lowchurn.estimator._training import Trainer
from lowchurn.metrics import decide
from lowchurn.scoring import Score
from lowchurn.strategies import ColdStart, Sticky, Strategy, Training, plan
from lowchurn.theory import Margin
from lowchurn.theory._decisions import threshold_values


@dataclass(frozen=True)
class Terms:
    """What a choice among measured candidates is about: hard or soft churn, by which score, on how many rows.

    ``labelled`` are the rows with labels that broken decisions are counted on, 0 where it is not known; ``groups``
    the rows of each group that has its churn measured.
    """

    hard: bool
    score: str
    rows: float
    labelled: float = 0.0
    groups: dict[str, float] = dataclasses.field(default_factory=dict)

    def limits(
        self, max_churn: float | Mapping[Any, float] | None, max_broken: float | None, groups: Groups | None
    ) -> Limits:
        """Limits that are measured on these rows."""
        rows_by = self.groups if self.hard else None
        return Limits.of(max_churn, max_broken, groups, self.rows, self.labelled or self.rows, rows_by, self.hard)


def held_out_terms(X: Rows, index: np.ndarray, groups: Groups | None, hard: bool) -> Terms:
    """About how many rows can be held out, also of each group: a fifth. Labels stand for what the base decides."""
    n = len(index) / 5
    counts = {} if groups is None else groups.counts(X, index)
    return Terms(hard, "", n, n, {name: count / 5 for name, count in counts.items()})


@dataclass(frozen=True, eq=False)
class Offer:
    """What could be served: weights of models and the rule that keeps decisions, measured on the rows to choose on."""

    weights: Weights
    candidate: Candidate
    cost: float = math.nan
    rule: Margin | None = None

    @property
    def churn(self) -> float:
        return self.candidate.churn

    @property
    def one_model(self) -> bool:
        """Whether one trained model serves it."""
        return len(self.weights) == 1 and not base_alone(self.weights)


@dataclass(frozen=True, eq=False)
class Ruler:
    """Measures probabilities of some rows against their labels and the base.

    Rows of traffic have no label, and no weight in what needs one; where there are any, churn is measured on them
    alone. With ``alone`` the probabilities are those of the base alone, which decides as it does in production.
    """

    y: np.ndarray
    weights: np.ndarray
    base_proba: np.ndarray
    base_decisions: np.ndarray
    score: Score
    hard: bool
    traffic: np.ndarray | None = None  # weights of the rows that churn is measured on, where they are others
    threshold: float | None = None
    groups: Groups | None = None
    codes: np.ndarray | None = None  # the number of each row's group
    base: Base | GivenBase | None = None

    @classmethod
    def on(
        cls,
        base: Base | GivenBase,
        X: Rows,
        index: np.ndarray,
        part: SomeRows,
        traffic: Rows | None,
        groups: Groups | None,
        **terms: Any,
    ) -> tuple[Ruler, Rows]:
        """What measures on some rows with labels and on traffic, and the rows of both."""
        measured = _safe_indexing(X, part.rows) if len(part.rows) or traffic is None else traffic
        if traffic is not None and len(part.rows):
            measured = stacked(measured, traffic)
        more = row_count(measured) - len(part.rows)
        asked = base.at(X, part.rows) if traffic is None else measured
        base_proba, decided = base.answers(asked)
        return cls(
            y=np.append(index[part.rows], np.full(more, -1)),
            weights=np.append(part.weights, np.zeros(more)),
            base_proba=base_proba,
            base_decisions=decided,
            base=base,
            traffic=None if traffic is None else np.append(np.zeros(len(part.rows)), np.ones(more)),
            groups=groups,
            codes=None if groups is None else groups.codes(measured, decided),
            **terms,
        ), measured

    def take(self, rows: np.ndarray) -> Ruler:
        """What measures on some of the rows."""
        names = ("y", "weights", "base_proba", "base_decisions", "traffic", "codes")
        found: dict[str, Any] = {name: part[rows] for name in names if (part := getattr(self, name)) is not None}
        return dataclasses.replace(self, **found)

    @property
    def plain_rule(self) -> Margin:
        """The rule of these decisions without a margin."""
        return Margin(values=threshold_values(self.threshold))

    @property
    def base_follows_its_probabilities(self) -> bool:
        """Whether the base decides every row as its probabilities do."""
        known = self.base_decisions != GONE
        return bool((self.base_decisions == self.decided(self.base_proba))[known].all())

    def reach(self, proba: np.ndarray, trust: float) -> np.ndarray:
        """The margin up to which each row changes, where it grows with the lead of the base's class."""
        worth, base = proba * self._values, self.base_proba * self._values
        rows, known = np.arange(len(worth)), self.base_decisions >= 0
        at = rows[:, None], self.base_decisions[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            reached = (worth - worth[at]) / (1 + trust * np.maximum(base[at] - base, 0.0))
        reached[rows[known], self.base_decisions[known]] = -math.inf
        return np.where(known, reached.max(axis=1), math.inf)

    @property
    def _values(self) -> np.ndarray:
        return np.ones(self.base_proba.shape[1]) if self.threshold is None else np.array(self.plain_rule.values)

    @property
    def churn_weights(self) -> np.ndarray:
        return self.weights if self.traffic is None else self.traffic

    @property
    def labelled(self) -> bool:
        """Whether any row has a label."""
        return bool(self.weights.any())

    @property
    def terms(self) -> Terms:
        among = self.churn_weights
        inside = {name: among[rows] for name, rows in self.each_group()}
        groups = {name: effective_rows(weights) for name, weights in inside.items() if weights.any()}
        return Terms(self.hard, self.score.name, effective_rows(among), effective_rows(self.weights), groups)

    def each_group(self) -> Iterator[tuple[str, np.ndarray]]:
        """The name of each group, and its rows as a mask."""
        for number, name in enumerate([] if self.groups is None else self.groups.names):
            yield name, np.asarray(self.codes == number)

    def churn_by(self, changes: np.ndarray) -> dict[str, float]:
        """The churn of each group that has rows."""
        if self.groups is None or self.codes is None:
            return {}
        known, among, count = self.codes >= 0, self.churn_weights, len(self.groups.values)
        total = np.bincount(self.codes[known], among[known], count)
        spent = np.bincount(self.codes[known], (among * changes)[known], count)
        each = zip(self.groups.names, spent.tolist(), total.tolist(), strict=True)
        return {name: some / rows for name, some, rows in each if rows > 0}

    @property
    def bound(self) -> float:
        """The largest churn that a row can have."""
        return 1.0 if self.hard else float(self.score.bound or math.inf)

    def mean(self, values: np.ndarray) -> float:
        """The mean over the rows with a label; NaN where there is none."""
        return float(np.average(values, weights=self.weights)) if self.labelled else math.nan

    def mean_change(self, values: np.ndarray) -> float:
        """The mean over the rows that churn is measured on."""
        return float(np.average(values, weights=self.churn_weights))

    def proba(self, part: Part, X: Rows) -> np.ndarray:
        """Probabilities of a model; ``X`` are the rows, about which the base has been asked."""
        return self.base_proba if part is self.base else part.proba(X)

    def decided(self, proba: np.ndarray, alone: bool = False) -> np.ndarray:
        """What is decided in each row, as an index."""
        decided = np.asarray(decide(proba, self.threshold))
        return np.where(self.base_decisions >= 0, self.base_decisions, decided) if alone else decided

    def right(self, proba: np.ndarray, alone: bool = False) -> np.ndarray:
        """Which rows are decided rightly."""
        return np.asarray(self.decided(proba, alone) == self.y)

    @property
    def base_right(self) -> np.ndarray:
        return np.asarray(self.base_decisions == self.y)

    def risk(self, proba: np.ndarray) -> float:
        return self.mean(self.score.loss(np.maximum(self.y, 0), proba))

    def cost(self, proba: np.ndarray, alone: bool = False) -> float:
        """What is to be small within the budget: the error for hard churn, the score for soft churn.

        Without labels it is the decisions that stay: the budget is spent.
        """
        if not self.labelled:
            return self.bound - self.mean_change(self.changes(proba, alone))
        return self.mean((~self.right(proba, alone)).astype(float)) if self.hard else self.risk(proba)

    def changes(self, proba: np.ndarray, alone: bool = False) -> np.ndarray:
        """Churn of each row: zeros and ones, or divergences."""
        if self.hard:
            return np.asarray(self.decided(proba, alone) != self.base_decisions, dtype=float)
        return np.maximum(self.score.divergence(self.base_proba, proba), 0.0)

    def churn(self, proba: np.ndarray) -> float:
        return self.mean_change(self.changes(proba))

    def margins_of_groups(self, rule: Margin) -> dict[str, float]:
        """The least margins of groups by the names of parameters."""
        names = [] if self.groups is None else self.groups.names
        return {f"margin[{name}]": float(least) for name, least in zip(names, rule.groups, strict=False)}

    def churn_at(self, proba: np.ndarray, rule: Margin) -> dict[str, float]:
        """The churn that all rows would have at the margin of each group."""
        if self.groups is None or not rule.groups:
            return {}
        beyond = rule.gain(proba, self.base_decisions) - rule.ratio * self.own(proba)
        margins = np.maximum(rule.margin, rule.groups)
        found = {margin: self.mean_change(beyond > margin) for margin in set(margins.tolist())}
        return {name: found[margin] for name, margin in zip(self.groups.names, margins.tolist(), strict=True)}

    def spent(self, limit: Limit, proba: np.ndarray) -> float:
        """What probabilities spend of a limit."""
        if limit.of == "broken":
            return self.mean(self.base_right & ~self.right(proba))
        return self.churn(proba) if limit.on_all else self.churn_by(self.changes(proba)).get(limit.group, 0.0)

    def shares(self, limit: Limit) -> np.ndarray:
        """What the change of each row's decision spends of a limit."""
        if limit.of == "broken":
            return np.asarray(self.weights * self.base_right / self.weights.sum())
        among = self.churn_weights if limit.on_all else self.churn_weights * (self.codes == limit.number)
        return np.asarray(among / max(float(among.sum()), 1e-300))

    def own(self, proba: np.ndarray) -> np.ndarray:
        """The probability of the base's decision, per row; 0 for a class that is gone."""
        return np.where(self.base_decisions >= 0, proba[np.arange(len(proba)), self.base_decisions], 0.0)

    def measure(self, candidate: Candidate, proba: np.ndarray, alone: bool = False) -> Candidate:
        """The candidate with what it does on these rows."""
        changes, right = self.changes(proba, alone), self.right(proba, alone)
        hits = {"accuracy": right, "broken": self.base_right & ~right, "fixed": right & ~self.base_right}
        broken, fixed = self.mean(hits["broken"]), self.mean(hits["fixed"])
        intervals = {}
        if self.labelled:
            copies = whole_numbers(self.weights)
            intervals = {name: share_of_rows(rows, self.weights, copies) for name, rows in hits.items()}
            rows = effective_rows(self.weights)
            intervals["accuracy_change"] = paired_difference(fixed, broken, round(rows), effective=rows)
        among = self.churn_weights
        hard = share_of_rows(changes > 0, among, whole_numbers(among)) if self.hard else None
        intervals["churn"] = weighted_mean(changes, among) if hard is None else hard
        values: dict[str, Any] = {f"{name}_interval": (found.low, found.high) for name, found in intervals.items()}
        return dataclasses.replace(
            candidate,
            risk=self.risk(proba),
            accuracy=1 - self.mean((~right).astype(float)),
            churn=self.mean_change(changes),
            broken=broken,
            fixed=fixed,
            accuracy_change=fixed - broken,
            rows=effective_rows(self.churn_weights),
            churn_by=self.churn_by(changes),
            **values,
        )

    def offer(self, weights: Weights, candidate: Candidate, proba: np.ndarray, rule: Margin | None = None) -> Offer:
        """What could be served, with what it does on these rows."""
        alone = base_alone(weights)
        measured = dataclasses.replace(self.measure(candidate, proba, alone), models=count_models(weights))
        return Offer(weights, measured, self.cost(proba, alone), rule)


DEBT = 0.05  # a share of rows that a budget may cost in accuracy; a retrain in random order gains less in practice


class Diverged(RuntimeError):
    """A training that ran and gave no model to serve."""


def clearly_worse(right: np.ndarray, other: np.ndarray, weights: np.ndarray, points: float = 0.1) -> bool:
    """Whether decisions are right in fewer rows than others: by more than ten points and three standard errors.

    Only rows that one of both decides rightly count: the difference is that of the rows won and lost, its standard
    error the root of their sum (McNemar's). Three of them are a chance of one in a thousand; ten points are more than
    a retrain gains in practice, so that they ask for another cause.
    """
    won, lost = float(weights[right & ~other].sum()), float(weights[~right & other].sum())
    return lost - won > max(points * float(weights.sum()), 3 * math.sqrt(lost + won))


@dataclass(frozen=True, eq=False)
class Tried:
    """An offer (of no models where training failed) and its probabilities of the rows to choose on."""

    offer: Offer
    proba: np.ndarray | None = None


class Trials:
    """Strategies, trained and measured one after the other; the plain retrain is what they are compared with."""

    def __init__(
        self,
        trainer: Trainer,
        ruler: Ruler | None,
        X_choose: Rows,
        held: Margin | None = None,
        out_of_fold: np.ndarray | None = None,
    ) -> None:
        self.trainer = trainer
        self.out_of_fold = out_of_fold  # probabilities of the plain retrain, where it is trained on these rows
        self.ruler = ruler
        self.held = held  # the rule that keeps all decisions of some groups, whatever is served
        self.X_choose = X_choose
        self.records: list[Tried] = []
        self._probas: dict[Part, np.ndarray] = {}
        self._plain: Tried | None = None

    @property
    def plain(self) -> Tried:
        """The plain retrain."""
        assert self._plain is not None
        return self._plain

    def run_plain(self) -> None:
        """Train and measure the plain retrain. That it fails is an error: the data or the estimator is at fault."""
        strategy = ColdStart()
        wanted = plan([strategy])
        self.trainer.run(wanted)
        weights, _ = self.trainer.made(wanted.recipes[strategy])
        if self.out_of_fold is not None:
            self._probas[next(iter(weights))] = self.out_of_fold
        proba = None if self.ruler is None else self.proba(weights)
        if proba is not None and not np.isfinite(proba).all():
            raise ValueError(
                f"{WHO}: a plain retrain by {type(self.trainer.can.learner.estimator).__name__} gives probabilities "
                "that are not finite. Check the features (constant or huge ones?), or choose another estimator."
            )
        offer = Offer(weights, self._candidate(strategy))
        if proba is not None and self.ruler is not None:
            offer = self.ruler.offer(weights, offer.candidate, proba)
        self._plain = Tried(offer, proba)
        self.records.append(self._plain)

    def run(self, strategies: Iterable[Strategy]) -> list[Tried]:
        """Train strategies and measure them; one that fails or is impossible is a record with its reason."""
        asked = list(strategies)
        reasons = {strategy: self.trainer.can.cannot(strategy) for strategy in asked}
        self.trainer.run(plan(strategy for strategy in asked if not reasons[strategy]))
        new = [self._tried(strategy, reasons[strategy]) for strategy in asked]
        self.records += new
        return new

    def run_rules(self, estimate: Sticky, rules: Iterable[Margin]) -> list[Tried]:
        """Measure an estimate that is trained under rules that keep decisions."""
        known = {record.offer.candidate.name for record in self.records}
        tried = (self._tried(dataclasses.replace(estimate, margin=min(one.margin, 1.0)), "", one) for one in rules)
        new = [one for one in tried if one.offer.candidate.name not in known]  # as a plain margin may be
        self.records += new
        return new

    def _candidate(
        self, strategy: Strategy, reason: str = "", status: str = "trained", rule: Margin | None = None
    ) -> Candidate:
        parameters, dial = strategy.parameters, strategy.dial
        along = strategy.dial_parameter
        if rule is not None and rule.ratio:
            parameters["ratio"] = rule.ratio
            if not rule.margin and not rule.groups:
                dial, along = rule.ratio / (1 + rule.ratio), "ratio"
        if rule is not None and rule.groups and self.ruler is not None and self.ruler.groups is not None:
            parameters |= self.ruler.margins_of_groups(rule)
            margins = np.minimum(rule.margins(len(self.ruler.y), self.ruler.codes), 1.0)
            dial = self.ruler.mean_change(margins) if along == "margin" else dial
        return Candidate(
            strategy.name,
            parameters,
            dial=math.nan if dial is None else dial,
            dial_parameter=along,
            seconds=self.trainer.seconds.get(Training(strategy), math.nan),
            status=status,
            reason=reason,
        )

    def _tried(self, strategy: Strategy, cannot: str, given: Margin | None = None) -> Tried:
        if cannot:
            return Tried(Offer({}, self._candidate(strategy, cannot, "skipped")))
        assert self.ruler is not None
        try:
            recipe = plan([strategy]).recipes[strategy]
            weights, left_out = self.trainer.made(recipe)
            self._refuse_diverged(strategy, self.proba(weights))
            rule = None
            if recipe.margin is not None:
                kept = given or self.held or self.ruler.plain_rule
                rule = dataclasses.replace(kept, margin=recipe.margin, values=self.ruler.plain_rule.values)
            return self.ruled(weights, self._candidate(strategy, left_out, rule=rule), rule)
        except Exception as error:
            reason = f"{type(error).__name__}: {one_line(error)}"
            return Tried(Offer({}, self._candidate(strategy, reason, "failed")))

    def ruled(self, weights: Weights, candidate: Candidate, rule: Margin | None = None) -> Tried:
        """Models measured under a rule; without one, under that which keeps the decisions of some groups."""
        assert self.ruler is not None
        proba, base = self.proba(weights), self.trainer.can.kept
        if base_alone(weights):
            return Tried(self.ruler.offer(weights, candidate, proba), proba)
        if rule is None and self.held is not None:
            rule = self.held
            margins = candidate.parameters | self.ruler.margins_of_groups(rule)
            candidate = dataclasses.replace(candidate, parameters=margins)
            weights = {**weights, **({} if base is None else {base: weights.get(base, 0.0)})}
        if rule is not None:
            candidate = dataclasses.replace(candidate, churn_at=self.ruler.churn_at(proba, rule))
            proba = rule.proba(proba, self.ruler.base_decisions, self.ruler.codes)
        return Tried(self.ruler.offer(weights, candidate, proba, rule), proba)

    def proba(self, weights: Weights) -> np.ndarray:
        """Probabilities of the rows to choose on, summed in the order in which they are served."""
        assert self.ruler is not None
        for part in weights:
            if part not in self._probas:
                self._probas[part] = self.ruler.proba(part, self.X_choose)
        return weighted(self._probas, weights)

    def served_proba(self, offer: Offer) -> np.ndarray:
        """Probabilities of the rows to choose on that agree with what an offer decides."""
        assert self.ruler is not None
        proba = self.proba(offer.weights)
        return proba if offer.rule is None else offer.rule.proba(proba, self.ruler.base_decisions, self.ruler.codes)

    def _refuse_diverged(self, strategy: Strategy, proba: np.ndarray) -> None:
        """A candidate that is no model to serve is a failed one.

        Training that starts from the base aims between the base and the truth. So one that is clearly less accurate
        than both the base and a plain retrain has not learned that: it has diverged.
        """
        if not np.isfinite(proba).all():
            raise Diverged("its probabilities are not finite.")
        ruler, plain = self.ruler, self.plain.proba
        if ruler is None or plain is None or strategy.base_share == 0 or strategy.blend is not None:
            return
        right = ruler.right(proba)
        others = ruler.base_right, ruler.right(plain)
        if all(clearly_worse(right, other, ruler.weights) for other in others):
            own, base, retrain = (brief_share(ruler.mean(r)) for r in (right, *others))
            raise Diverged(f"accuracy {own}, where the base has {base} and a plain retrain {retrain}.")

    @property
    def frontier(self) -> Frontier:
        hard = self.ruler is None or self.ruler.hard
        return Frontier((record.offer.candidate for record in self.records), hard)

    @property
    def offers(self) -> list[Offer]:
        """Every candidate that can be served, by itself."""
        return [record.offer for record in self.records if record.proba is not None]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a selection contains about the trainings: what failed, and what the learner decided by itself."""
        failed = [row for row in self.frontier if row.status == "failed"]
        return (
            *(f"{row.name} failed and is not served: {row.reason.rstrip('.')}." for row in failed),
            *self.trainer.can.learner.notes,
        )


# What held-out rows show about the base


def check_base(base: Base | GivenBase, ruler: Ruler, classes: np.ndarray) -> None:
    """A base whose decisions are about other classes is refused."""
    gone = ruler.base_decisions == GONE
    if gone.all() and (ruler.base_proba == ruler.base_proba[:, :1]).all():  # nor any probability for one of these
        raise ValueError(
            f"{WHO}: the base has none of the classes {classes.tolist()[:5]}: it decides for others on every "
            "held-out row. Labels must be of the same kind on both sides."
        )
    if gone.any() and isinstance(base, Base) and not base.names_its_classes and hasattr(base.model, "predict_proba"):
        raise ValueError(
            f"{WHO}: the base decides for classes that y does not have, and its columns of probabilities have no "
            "names. Name them: fit(..., base_classes=)."
        )


def warn_of_base(base: Base | GivenBase, trials: Trials, rows_are_new: bool, stacklevel: int) -> None:
    """Warn of a base that has most likely seen the held-out rows, or does not get what it gets in production."""
    ruler, plain = trials.ruler, trials.plain.proba
    assert ruler is not None
    assert plain is not None
    base_right, plain_right = ruler.base_right, ruler.right(plain)
    if not rows_are_new and clearly_worse(plain_right, base_right, ruler.weights, points=0):
        warnings.warn(
            f"{WHO}: the base is clearly more accurate on the held-out rows than a plain retrain. It was probably "
            "trained on some of them, and then churn and accuracy there mean little for new rows. "
            "Mark the rows that it has not seen with new=.",
            stacklevel=stacklevel + 1,
        )
    # A class that came or went since is no fault of the base.
    both = (ruler.base_decisions != GONE) & base.known_classes[ruler.y]
    weights, rights = ruler.weights[both], (base_right[both], plain_right[both])
    if both.any() and clearly_worse(*rights, weights):
        in_base, retrained = (brief_share(float(np.average(right, weights=weights))) for right in rights)
        warnings.warn(
            f"{WHO}: the base is right in {in_base} of the held-out rows, a plain retrain in {retrained}. "
            "Check that the base gets the same rows as in production. Likely causes: other columns or another order of "
            "them, rows that are already scaled or encoded (inside a Pipeline the base gets the transformed rows: put "
            "the steps into the base), class names in another order. If the rows are right, the data have changed, or "
            "budgets of earlier releases were too small: raise the budget.",
            stacklevel=stacklevel + 1,
        )


def debt(trials: Trials, offer: Offer, limits: Limits) -> str:
    """That the budget makes what is served clearly less accurate than a plain retrain, in words; else empty."""
    ruler, plain = trials.ruler, trials.plain
    if not limits or limits.frozen or ruler is None or plain.proba is None or not ruler.labelled:
        return ""
    rights = ruler.right(trials.served_proba(offer), base_alone(offer.weights)), ruler.right(plain.proba)
    if not clearly_worse(*rights, ruler.weights, points=DEBT):
        return ""
    own, retrained = map(ruler.mean, rights)
    churn = churn_text(plain.offer.churn, ruler.hard)
    return (
        f"{limits.parameters} costs {100 * (retrained - own):.1f} points of accuracy ({brief_share(own)} of the "
        f"held-out rows are right, {brief_share(retrained)} with a plain retrain). The next release starts with this "
        f"debt: raise the budget once, up to the plain retrain's churn of {churn}, or serve a plain retrain once."
    )


def decides_otherwise(ruler: Ruler) -> str:
    """A note that the base does not decide for its largest probability, as candidates do; empty where it does."""
    known = ruler.base_decisions != GONE
    other = known & (ruler.base_decisions != ruler.decided(ruler.base_proba))
    tied = np.sort(ruler.base_proba, axis=1)[:, -2:]
    other &= tied[:, 1] - tied[:, 0] > 1e-6  # equal ones may fall either way
    share = ruler.mean_change(other)
    if share == 0:
        return ""
    return (
        f"The base does not decide for its largest probability in {brief_share(share)} of the held-out rows (a "
        "threshold of its own?); candidates do."
    )


def warn_of_few_rows(limits: Limits, hard: bool, stacklevel: int) -> None:
    """Where one changed row is above a limit, held-out rows cannot show whether it is kept."""
    for limit in limits:
        if limit.most and (hard or limit.of == "broken") and limit.rows * limit.most < 1:
            warnings.warn(
                f"{WHO}: {limit.rows:.0f} held-out rows are few for {limit.parameter}: one "
                f"{'changed' if limit.of == 'churn' else 'broken'} row is above the budget. Give more rows, or hold "
                "more of them out with held_out=.",
                stacklevel=stacklevel + 1,
            )
