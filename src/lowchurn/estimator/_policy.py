"""From measured candidates to what is served: single candidates or mixtures, within the budget, certified or not."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowchurn._estimates import share_of_rows, weighted_mean
from lowchurn._types import Rows
from lowchurn.estimator._compressing import Compression
from lowchurn.estimator._frontier import Candidate, Selection
from lowchurn.estimator._measuring import Offer, Ruler, Terms, Trials, Tried
from lowchurn.estimator._production import Base
from lowchurn.estimator._serving import OnDial, Part, Weights, base_alone, count_models, weighted
from lowchurn.estimator._split import whole_numbers
from lowchurn.estimator._to_try import Goal, aim_below
from lowchurn.metrics import dial_key
from lowchurn.selection import Certificate, InfeasibleBudget, certify, combine, select_single

LEAST_WEIGHT = 1e-4  # a candidate of less weight in a mixture costs a prediction and changes nothing


def _mixed_in(record: Tried, base_parts: Weights) -> bool:
    """Whether a candidate has a place in a mixture; a mixture itself has not, and of a dial every tenth has."""
    dial = record.offer.candidate.dial
    with_base = base_alone(record.offer.weights) or any(part in base_parts for part in record.offer.weights)
    whole = record.offer.rule is None and not with_base
    return whole and (math.isnan(dial) or round(10 * dial, 9).is_integer())


def mixtures(trials: Trials, ruler: Ruler, budget: float | None, base: Base | None, steps: int = 20) -> list[Offer]:
    """Algorithm 1's mixtures of all candidates (and the base, where it can be served), over budgets of soft churn."""
    # The convex program needs soft churn. A budget on soft churn is used as it is, with smaller ones beside it for the
    # certificate; for hard churn a path of soft budgets is solved and each mixture is measured in hard churn.
    base_parts = trials.trainer.can.base_parts
    members = [(r.offer.weights, r.proba) for r in trials.records if r.proba is not None and _mixed_in(r, base_parts)]
    if base is not None:
        members.append((base_parts, ruler.base_proba))
    stack = np.stack([proba for _, proba in members])
    reach = max(ruler.mean(ruler.score.divergence(ruler.base_proba, proba)) for _, proba in members)
    if not ruler.hard and budget is not None:
        path = [share * budget for share in (0.4, 0.6, 0.8, 1.0)]
    else:
        path = [*np.geomspace(max(1e-4 * reach, 1e-9), max(reach, 1e-8), steps).tolist(), math.inf]
    offers = []
    for epsilon in path:
        try:
            mixture = combine(stack, ruler.y, ruler.base_proba, epsilon, ruler.score, ruler.weights)
        except InfeasibleBudget:
            continue
        weights = np.where(mixture.weights < LEAST_WEIGHT, 0.0, mixture.weights)
        weights /= weights.sum()
        served: dict[Part, float] = {}
        for (parts, _), weight in zip(members, weights, strict=True):
            for part, share in parts.items() if weight > 0 else ():
                served[part] = served.get(part, 0.0) + float(weight) * share
        if base is not None and weights[-1] == 1:
            served = {base: 1.0}
        candidate = Candidate("mixture", {"epsilon": float(f"{epsilon:.3g}")})
        offers.append(ruler.offer(served, candidate, trials.proba(served)))
    return offers


def choose(
    offers: Sequence[Offer], terms: Terms, budget: float | None, plain: Offer, aim: float | None = None
) -> tuple[Offer | None, str]:
    """The offer to serve and the rule in words; None where no offer keeps the budget.

    Offers on a dial come as close to the budget as one likes, and the best of many that just keep it on these rows
    is over it on new ones half of the time. So beside a dial offers have to keep ``aim``, which is a little below, if
    any does. Each dial stands here with one position, the one that spends the budget (see :func:`spend`), and gives
    way to other offers only where they are clearly better (see :func:`best_of`).
    """
    what = "accurate" if terms.hard else f"accurate (by {terms.score} score)"
    if budget is None:
        rule = f"least churn among those at least as {what} as a plain retrain"
        fine = [offer for offer in offers if offer.cost <= plain.cost + 1e-12] or [plain]
        return min(fine, key=lambda offer: (offer.churn, offer.cost)), rule
    rule = f"most {what} within {'hard' if terms.hard else 'soft'} churn {budget:g}"
    within = budget * (1 + 1e-9)  # sums of weights may carry a churn that equals the budget over it by rounding
    for limit in (within if aim is None else min(aim, within), within):
        feasible = spend([offer for offer in offers if offer.churn <= limit], terms)
        if feasible:
            return best_of(feasible, terms), rule
    return None, rule


def best_of(offers: Sequence[Offer], terms: Terms) -> Offer:
    """The offer of least cost; but one on a dial of weights, unless another is clearly better.

    Clearly: by a standard error of the difference. Where two offers differ, at least one of them differs from the base,
    so that the sum of their churns bounds the share of rows in which their errors can differ. On a few hundred rows the
    least error of several offers is a matter of chance, and a dial of weights is on average the better and one model
    to serve. A dial of probabilities is neither always (docs/results/dial_users.md), so it stands beside the others.
    """

    def best(some: Sequence[Offer]) -> Offer:
        return some[select_single([o.cost for o in some], [o.churn for o in some], math.inf)]

    on_dial = [o for o in offers if not math.isnan(o.candidate.dial) and o.one_model]
    if not on_dial or not terms.hard:
        return best(offers)
    first, other = best(on_dial), best(offers)
    noise = math.sqrt((first.churn + other.churn) / terms.rows)
    return other if other.cost < first.cost - noise else first


def spend(offers: Sequence[Offer], terms: Terms) -> list[Offer]:
    """Of each dial the position farthest from the base that is no worse than its best one; the others as they are.

    Neighbours on a dial differ in a few rows, so the best of them is a matter of chance. A budget is there to be spent
    on the new model: "no worse" is within one standard error of the paired difference for hard churn, whose decisions
    change along the dial one by one, and exactly for soft churn, whose score is smooth.
    """
    dials: dict[Hashable, list[Offer]] = {}
    kept = []
    for offer in offers:
        if math.isnan(offer.candidate.dial):
            kept.append(offer)
        else:
            dials.setdefault(dial_key(offer.candidate), []).append(offer)
    for some in dials.values():
        best = min(some, key=lambda offer: (offer.cost, -offer.churn))
        noise = {id(o): math.sqrt(abs(o.churn - best.churn) / terms.rows) if terms.hard else 0.0 for o in some}
        fine = [offer for offer in some if offer.cost <= best.cost + noise[id(offer)]]
        kept.append(max(fine, key=lambda offer: offer.churn))
    return kept


def fall_back(
    offers: Sequence[Offer], trials: Trials, ruler: Ruler, budget: float, base: Base | None
) -> tuple[Offer, str]:
    """A blend with the base, or the nearest candidate where the base cannot be served; and, in words, the reason."""
    nearest = min(offers or trials.offers, key=lambda offer: (offer.churn, offer.cost))
    failed = f"no candidate keeps max_churn={budget:g} on held-out rows; the least churn is {nearest.churn:.3g}."
    if base is None:
        return nearest, (
            f"{failed} {nearest.candidate.name} has it and is served. The base is known only by a table of its "
            "answers, so that it cannot answer new rows or be blended in: to keep this budget give base= the model "
            f"itself, a function or a file; or set max_churn to {math.ceil(1000 * nearest.churn) / 1000:g} or more."
        )
    kept = ruler.offer({base: 1.0}, Candidate("base", status="kept"), ruler.base_proba)
    if budget == 0 and kept.churn == 0:
        return kept, ""
    blends = [*mixtures(trials, ruler, budget, base), kept]
    picked, _ = choose(blends, ruler.terms, budget, blends[0])
    if picked is None:  # even the base changes decisions where classes are gone
        picked = min(blends, key=lambda offer: (offer.churn, offer.cost))
    what = "The base is kept as it is" if base_alone(picked.weights) else "A blend with the base is served"
    return picked, (
        f"{failed} {what}. Raise the budget, or try a start from the base or other strategies, to serve one model."
    )


@dataclass(frozen=True)
class Choice:
    """What is served, the rule by which it was chosen, its certificate, and why no candidate kept the budget."""

    offer: Offer
    rule: str
    certificate: Certificate | None
    why: str = ""


@dataclass(frozen=True, eq=False)
class Choices:
    """All that a choice needs, kept after training, so that another budget can be chosen for at once.

    ``changes`` holds the churn of each offer on each row for the certificate, where there are such rows.
    """

    offers: Sequence[Offer]
    plain: Offer
    terms: Terms
    bound: float
    changes: Sequence[np.ndarray] | None
    base: Base | None
    trainings: int
    rows: Mapping[str, int]
    notes: Sequence[str] = ()
    base_accuracy: float = math.nan
    compression: Compression | None = None  # its students are among the offers, and are preferred to the others

    def compressed(self, found: Compression, changes: Sequence[np.ndarray] | None, trainings: int) -> Choices:
        """The same with students among the offers; ``changes`` are theirs on the rows for the certificate."""
        offers = [*self.offers, *found.students]
        both = None if self.changes is None else [*self.changes, *(changes or ())]
        return dataclasses.replace(self, offers=offers, changes=both, compression=found, trainings=trainings)

    def teacher(self, goal: Goal, last_resort: Callable[[], tuple[Offer, str]]) -> Offer:
        """What would be served, and is compressed; rows for the certificate have no part in it."""
        if goal.confidence is None or goal.budget is None:
            return self.choose(goal.budget, None, last_resort).offer
        aim = aim_below(goal.budget, self.terms, goal.confidence, goal.certified_rows)
        return choose(self.offers, self.terms, goal.budget, self.plain, aim)[0] or last_resort()[0]

    def uncompressed(self, choice: Choice, budget: float | None) -> str:
        """Why what is served is not one model, or that it is clearly worse than several; empty where all is well."""
        found, served = self.compression, choice.offer
        if found is not None and served in found.less_accurate:
            return f"compress=True: the compressed model is clearly less accurate. {found.cost(served)}"
        count = count_models(served.weights)
        chosen = found is not None and found.teacher is not None and served.weights is found.teacher.weights
        if count == 1 and not chosen:
            return ""
        why = "compress=True: max_churn=0 allows no change, and a compressed model would be one."
        if budget != 0:
            why = (found or Compression([])).why_not(budget)
        many = f"the {count} models" if count > 1 else "the model"
        return (
            f"{why} What was to be compressed is served, {many} with a churn of {served.churn:.3g}. Raise max_churn, "
            "give traffic= to learn from more rows, or leave compress out."
        )

    @property
    def parts(self) -> list[Part]:
        """The models of all offers, and those at the new end of their dials, each once."""
        found: dict[Part, None] = {}
        for part in (part for offer in self.offers for part in offer.weights):
            found |= {part.new: None, part: None} if isinstance(part, OnDial) else {part: None}
        return list(found)

    def measured_on(
        self, ruler: Ruler, X: Rows, changes: Sequence[np.ndarray] | None, counts: Mapping[str, int]
    ) -> Choices:
        """The same offers with their churn on other rows, which have no labels; the rest stays as it was measured."""
        found = []
        for offer, values in zip(self.offers, certified_changes(self.offers, ruler, X), strict=True):
            each = np.ones(len(values))
            share = share_of_rows(values > 0, each, copies=True) if self.terms.hard else weighted_mean(values, each)
            measured: dict[str, Any] = {
                "churn": share.value,
                "churn_interval": (share.low, share.high),
                "rows": float(len(values)),
            }
            candidate = dataclasses.replace(offer.candidate, **measured)
            found.append(dataclasses.replace(offer, candidate=candidate))
        terms = dataclasses.replace(self.terms, rows=ruler.terms.rows)
        plain = found[self.offers.index(self.plain)] if self.plain in self.offers else self.plain
        rows = {**self.rows, "certify": 0, **counts}
        made = dataclasses.replace(self, offers=found, plain=plain, terms=terms, changes=changes, rows=rows)
        if self.compression is None:
            return made
        students = [new for new, old in zip(found, self.offers, strict=True) if old in self.compression.students]
        return dataclasses.replace(made, compression=Compression(students))

    def choose(
        self, budget: float | None, confidence: float | None, last_resort: Callable[[], tuple[Offer, str]]
    ) -> Choice:
        """The choice for a budget; ``last_resort`` returns what is served where no offer keeps it, and why."""
        has_dial = any(offer.candidate.dial > 0 for offer in self.offers)
        aim = aim_below(budget, self.terms) if budget is not None and has_dial else None
        picked, rule = self._choose(self.offers, budget, aim)
        certificate = None
        if confidence is not None and budget is not None and self.offers:
            certificate, best = self._certify(self._in_order(picked, budget, aim), budget, confidence)
            if certificate.certified:
                picked, rule = best, f"{rule}, certified with confidence {confidence:g}"
        if picked is not None:
            return Choice(picked, rule, certificate)
        picked, why = last_resort()
        return Choice(picked, rule, certificate, why)

    def _choose(self, offers: Sequence[Offer], budget: float | None, aim: float | None) -> tuple[Offer | None, str]:
        """The offer to serve: a compressed model where one will do."""
        students = [] if self.compression is None else [one for one in self.compression.students if one in offers]
        if budget is None:
            students = [one for one in students if one.cost <= self.plain.cost + 1e-12]
        picked, rule = choose(students, self.terms, budget, self.plain, aim) if students else (None, "")
        if picked is not None:
            return picked, rule
        return choose([one for one in offers if one not in students], self.terms, budget, self.plain, aim)

    def _in_order(self, picked: Offer | None, budget: float, aim: float | None) -> list[Offer]:
        """Offers as one would choose them if those before were taken away; last those above the budget."""
        left, order = list(self.offers), []
        while picked is not None:
            order.append(picked)
            left.remove(picked)
            picked, _ = self._choose(left, budget, aim)
        return order + sorted(left, key=lambda offer: (offer.cost, offer.churn))

    def _certify(self, prefer: Sequence[Offer], budget: float, confidence: float) -> tuple[Certificate, Offer]:
        """Test offers from the least churn upward, an order that other rows fixed; take the first accepted one."""
        assert self.changes is not None
        order = sorted(range(len(self.offers)), key=lambda k: (self.offers[k].churn, k))
        best = [self.offers.index(one) for one in prefer]
        values = {str(k): self.changes[k] for k in order}
        certificate, accepted = certify(values, budget, confidence, self.bound, prefer=[str(k) for k in best])
        pick = next((k for k in best if str(k) in accepted), best[0])
        named = tuple((self.offers[int(k)].candidate.name, p) for k, p in certificate.tested)
        return dataclasses.replace(certificate, tested=named), self.offers[pick]

    def nearest(self, budget: float) -> tuple[Offer, str]:
        """The last resort on a dial: what changes least, which is not the base where classes are gone."""
        picked = min(self.offers, key=lambda offer: (offer.churn, offer.cost))
        return picked, (
            f"nothing on the dial keeps max_churn={budget:g} on held-out rows; the least churn, {picked.churn:.3g}, "
            "is served."
        )

    def selection(self, choice: Choice, budget: float | None, owed: str = "") -> Selection:
        """What is served, in words and numbers."""
        picked, row = choice.offer, choice.offer.candidate
        notes = [*self.notes, owed]
        if base_alone(picked.weights):
            why = choice.why or "of all candidates within the budget it is the most accurate on the held-out rows."
            why = why if budget != 0 else "max_churn=0 allows no change."
            notes.insert(0, f"This is the base unchanged: {why}")
        elif picked.churn == 0 and self.terms.hard:
            notes.insert(0, "It decides every held-out row as the base does.")
        rows = dict(self.rows)
        if self.compression is not None and picked in self.compression.students:
            notes.insert(0, self.compression.cost(picked))
            rows |= {"traffic": self.compression.traffic} if "traffic" in rows else {}
        served = {row.name: 1.0}
        if row.strategy == "mixture":  # of several candidates, which the row does not name
            served = {}
            for part, weight in picked.weights.items():
                served[part.name] = served.get(part.name, 0.0) + weight
        return Selection(
            served=served,
            rule=choice.rule,
            feasible=budget is None or picked.churn <= budget * (1 + 1e-9),
            risk=row.risk,
            accuracy=row.accuracy,
            churn=row.churn,
            broken=row.broken,
            trainings=self.trainings,
            rows=rows,
            notes=tuple(filter(None, notes)),
            base_accuracy=self.base_accuracy,
            plain_accuracy=self.plain.candidate.accuracy,
            plain_churn=self.plain.candidate.churn,
            models=count_models(picked.weights),
        )


def certified_changes(offers: Sequence[Offer], judge: Ruler, X: Rows) -> list[np.ndarray]:
    """Churn of each offer on each row for the certificate; rows that count several times are written out."""
    weights = judge.churn_weights
    copies = weights.astype(int) if whole_numbers(weights) else None
    uses = Counter(part for offer in offers for part in offer.weights)
    kept: dict[Part, np.ndarray] = {}
    found = []
    for offer in offers:
        each = {part: kept[part] if part in kept else judge.proba(part, X) for part in offer.weights}
        kept |= {part: proba for part, proba in each.items() if uses[part] > 1}
        proba = weighted(each, offer.weights)
        if offer.rule is not None:
            proba = offer.rule.proba(proba, judge.base_decisions)
        values = judge.changes(proba, base_alone(offer.weights))
        found.append(values if copies is None else np.repeat(values, copies))
    return found
