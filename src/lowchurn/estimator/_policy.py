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
from lowchurn.estimator._frontier import Candidate, Selection
from lowchurn.estimator._measuring import Offer, Ruler, Terms, Trials, Tried
from lowchurn.estimator._production import Base
from lowchurn.estimator._serving import OnDial, Part, base_alone, weighted
from lowchurn.estimator._split import whole_numbers
from lowchurn.estimator._to_try import aim_below
from lowchurn.metrics import dial_key
from lowchurn.selection import Certificate, InfeasibleBudget, certify, combine, select_single

LEAST_WEIGHT = 1e-4  # a candidate of less weight in a mixture costs a prediction and changes nothing


def _mixed_in(record: Tried) -> bool:
    """Whether a candidate has a place in a mixture; a mixture itself has not, and of a dial every tenth has."""
    dial = record.offer.candidate.dial
    whole = record.offer.rule is None and not any(isinstance(part, Base) for part in record.offer.weights)
    return whole and (math.isnan(dial) or round(10 * dial, 9).is_integer())


def mixtures(trials: Trials, ruler: Ruler, budget: float | None, base: Base | None, steps: int = 20) -> list[Offer]:
    """Algorithm 1's mixtures of all candidates (and the base, where it can be served), over budgets of soft churn."""
    # The convex program needs soft churn. A budget on soft churn is used as it is, with smaller ones beside it for the
    # certificate; for hard churn a path of soft budgets is solved and each mixture is measured in hard churn.
    members = [(r.offer.weights, r.proba) for r in trials.records if r.proba is not None and _mixed_in(r)]
    if base is not None:
        members.append(({base: 1.0}, ruler.base_proba))
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
            best = best_of(feasible, terms)
            # Without a margin it may as well be the retrain alone, unless rows that tie are kept.
            bare = best.rule is not None and best.rule.margin == best.rule.ratio == 0
            return plain if bare and best.churn == plain.churn else best, rule
    return None, rule


def best_of(offers: Sequence[Offer], terms: Terms) -> Offer:
    """The offer of least cost; but a sticky one, or else one on a dial of weights, unless another is clearly better.

    Clearly: by a standard error of the difference. Where two offers differ, at least one of them differs from the base,
    so that the sum of their churns bounds the share of rows in which their errors can differ. On a few hundred rows the
    least error of several offers is a matter of chance. On average sticky decisions are the best within a budget
    (docs/results/sticky_users.md), and a dial of weights is the best that one model serves. A dial of probabilities is
    neither always (docs/results/dial_users.md), so it stands beside the others.
    """

    def best(some: Sequence[Offer]) -> Offer:
        return some[select_single([o.cost for o in some], [o.churn for o in some], math.inf)]

    sticky = [offer for offer in offers if offer.rule is not None]
    preferred = sticky or [o for o in offers if not math.isnan(o.candidate.dial) and o.one_model]
    if not preferred or not terms.hard:
        return best(offers)
    first, other = best(preferred), best(offers)
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
            f"{failed} {nearest.candidate.name} has it and is served. The base cannot answer new rows or be blended "
            "in: it is known only by a table of its answers, or serve_base=False. To keep this budget let it stay in "
            "service (base= the model itself, a function or a file); or give strategies='sticky' and, at predict, "
            f"previous=; or set max_churn to {math.ceil(1000 * nearest.churn) / 1000:g} or more."
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
        return dataclasses.replace(self, offers=found, plain=plain, terms=terms, changes=changes, rows=rows)

    def choose(
        self, budget: float | None, confidence: float | None, last_resort: Callable[[], tuple[Offer, str]]
    ) -> Choice:
        """The choice for a budget; ``last_resort`` returns what is served where no offer keeps it, and why."""
        has_dial = any(offer.candidate.dial > 0 for offer in self.offers)
        aim = aim_below(budget, self.terms) if budget is not None and has_dial else None
        picked, rule = choose(self.offers, self.terms, budget, self.plain, aim)
        certificate = None
        if confidence is not None and budget is not None and self.offers:
            certificate, best = self._certify(self._in_order(picked, budget, aim), budget, confidence)
            if certificate.certified:
                picked, rule = best, f"{rule}, certified with confidence {confidence:g}"
        if picked is not None:
            return Choice(picked, rule, certificate)
        picked, why = last_resort()
        return Choice(picked, rule, certificate, why)

    def _in_order(self, picked: Offer | None, budget: float, aim: float | None) -> list[Offer]:
        """Offers as one would choose them if those before were taken away; last those above the budget."""
        left, order = list(self.offers), []
        while picked is not None:
            order.append(picked)
            left.remove(picked)
            picked, _ = choose(left, self.terms, budget, self.plain, aim)
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

    def selection(self, choice: Choice, budget: float | None) -> Selection:
        """What is served, in words and numbers."""
        picked, row = choice.offer, choice.offer.candidate
        notes = list(self.notes)
        if base_alone(picked.weights):
            why = choice.why or "of all candidates within the budget it is the most accurate on the held-out rows."
            why = why if budget != 0 else "max_churn=0 allows no change."
            notes.insert(0, f"This is the base unchanged: {why}")
        elif picked.churn == 0 and self.terms.hard:
            notes.insert(0, "It decides every held-out row as the base does.")
        served = {row.name: 1.0}
        if row.strategy == "mixture":  # of several candidates, which the row does not name
            served = {part.name: weight for part, weight in picked.weights.items()}
        return Selection(
            served=served,
            rule=choice.rule,
            feasible=budget is None or picked.churn <= budget * (1 + 1e-9),
            risk=row.risk,
            accuracy=row.accuracy,
            churn=row.churn,
            broken=row.broken,
            trainings=self.trainings,
            rows=dict(self.rows),
            notes=tuple(notes),
            base_accuracy=self.base_accuracy,
            plain_accuracy=self.plain.candidate.accuracy,
            plain_churn=self.plain.candidate.churn,
            models=len(picked.weights),
        )


def certified_changes(offers: Sequence[Offer], judge: Ruler, X: Rows) -> list[np.ndarray]:
    """Churn of each offer on each row for the certificate; rows that count several times are written out."""
    weights = judge.churn_weights
    copies = weights.astype(int) if whole_numbers(weights) else None
    uses = Counter(part for offer in offers for part in offer.weights)
    kept: dict[Part, np.ndarray] = {}
    found = []
    for offer in offers:
        each = {part: kept[part] if part in kept else _proba(part, judge, X) for part in offer.weights}
        kept |= {part: proba for part, proba in each.items() if uses[part] > 1}
        proba = weighted(each, offer.weights)
        if offer.rule is not None:
            proba = offer.rule.proba(proba, judge.base_decisions)
        values = judge.changes(proba, base_alone(offer.weights))
        found.append(values if copies is None else np.repeat(values, copies))
    return found


def _proba(part: Part, judge: Ruler, X: Rows) -> np.ndarray:
    return judge.base_proba if isinstance(part, Base) else part.proba(X)
