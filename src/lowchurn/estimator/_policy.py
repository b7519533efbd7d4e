"""From measured candidates to what is served: single candidates or mixtures, within the budget, certified or not."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowchurn._display import brief_share, churn_text
from lowchurn._estimates import share_of_rows, weighted_mean
from lowchurn._types import Rows
from lowchurn.estimator._compressing import Compression
from lowchurn.estimator._frontier import Candidate, Frontier, Selection
from lowchurn.estimator._limits import Limit, Limits
from lowchurn.estimator._measuring import Offer, Ruler, Terms, Trials, Tried
from lowchurn.estimator._production import Base
from lowchurn.estimator._serving import OnDial, Part, Weights, base_alone, count_models, weighted
from lowchurn.estimator._split import whole_numbers
from lowchurn.estimator._to_try import Goal, aimed
from lowchurn.metrics import dial_key
from lowchurn.selection import Certificate, InfeasibleBudget, combine, select_single
from lowchurn.selection._certify import Claim, certify_together
from lowchurn.strategies import Sticky

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
        offers.append(trials.ruled(served, candidate).offer)
    return offers


def choose(
    offers: Sequence[Offer], terms: Terms, limits: Limits, plain: Offer, aims: Limits | None = None
) -> tuple[Offer | None, str]:
    """The offer to serve and the rule in words; None where no offer keeps the limits.

    Offers on a dial come as close to the budget as one likes, and the best of many that just keep it on these rows
    is over it on new ones half of the time. So beside a dial offers have to keep ``aims``, a little below, if any
    does. Each dial stands here with one position, the one that spends the budget (see :func:`spend`), and gives
    way to other offers only where they are clearly better (see :func:`best_of`).
    """
    what = "accurate" if terms.hard else f"accurate (by {terms.score} score)"
    if not limits:
        rule = f"least churn among those at least as {what} as a plain retrain"
        fine = [offer for offer in offers if offer.cost <= plain.cost + 1e-12] or [plain]
        return min(fine, key=lambda offer: (offer.churn, offer.cost)), rule
    rule = f"most {what} within {limits.rule()}"
    for some in (limits if aims is None else aims, limits):
        feasible = spend([offer for offer in offers if some.keep(offer.candidate)], terms)
        if feasible:
            best = best_of(feasible, terms)
            return without_margin(best, offers), rule
    return None, rule


def without_margin(offer: Offer, offers: Sequence[Offer]) -> Offer:
    """A sticky offer without a margin may as well be its models alone, unless rows that tie are kept."""
    rule = offer.rule
    if rule is None or rule.margin or rule.ratio or any(rule.groups):
        return offer
    models = {part for part, weight in offer.weights.items() if weight > 0}
    alone = (o for o in offers if o.rule is None and set(o.weights) == models and o.churn == offer.churn)
    return next(alone, offer)


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

    sticky = [offer for offer in offers if offer.candidate.strategy == Sticky.name]
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
    offers: Sequence[Offer], trials: Trials, ruler: Ruler, limits: Limits, base: Base | None
) -> tuple[Offer, str]:
    """A blend with the base, or the nearest candidate where the base cannot be served; and, in words, the reason."""
    nearest, least = nearest_to(limits, offers or trials.offers)
    failed = f"no candidate keeps {limits.parameters} on held-out rows; {least}."
    if base is None:
        return nearest, (
            f"{failed} {nearest.candidate.name} has it and is served. The base cannot answer new rows or be blended "
            "in: it is known only by a table of its answers, or serve_base=False. To keep this budget let it stay in "
            "service (base= the model itself, a function or a file); or give strategies='sticky' and, at predict, "
            f"previous=; or set {limits.enough(nearest.candidate)} or more."
        )
    kept = ruler.offer({base: 1.0}, Candidate("base", status="kept"), ruler.base_proba)
    if limits.frozen and kept.churn == 0:
        return kept, ""
    blends = [*mixtures(trials, ruler, limits.churn, base), kept]
    picked, _ = choose(blends, ruler.terms, limits, blends[0])
    if picked is None:  # even the base changes decisions where classes are gone
        picked, _ = nearest_to(limits, blends)
        if limits.load(nearest.candidate) <= limits.load(picked.candidate):
            return nearest, f"{failed} {nearest.candidate.name} has it and is served. Raise the budget."
    what = "The base is kept as it is" if base_alone(picked.weights) else "A blend with the base is served"
    return picked, (
        f"{failed} {what}. Raise the budget, or try a start from the base or other strategies, to serve one model."
    )


def nearest_to(limits: Limits, offers: Sequence[Offer]) -> tuple[Offer, str]:
    """The offer that spends least of the limits, and what it spends in words."""
    nearest = min(offers, key=lambda offer: (limits.load(offer.candidate), offer.cost))
    return nearest, f"the least is {limits.spent(nearest.candidate)}"


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

    ``evidence`` is for the certificate, where there are rows for it.
    """

    offers: Sequence[Offer]
    plain: Offer
    terms: Terms
    bound: float
    evidence: Evidence | None
    base: Base | None
    trainings: int
    rows: Mapping[str, int]
    notes: Sequence[str] = ()
    base_accuracy: float = math.nan
    compression: Compression | None = None  # its students are among the offers, and are preferred to the others

    def compressed(self, found: Compression, evidence: Evidence | None, trainings: int) -> Choices:
        """The same with students among the offers; ``evidence`` is theirs."""
        both = self.evidence
        if both is not None and evidence is not None:
            churn, broken = [*both.churn, *evidence.churn], [*both.broken, *evidence.broken]
            both = dataclasses.replace(both, churn=churn, broken=broken)
        offers = [*self.offers, *found.students]
        return dataclasses.replace(self, offers=offers, evidence=both, compression=found, trainings=trainings)

    def teacher(self, goal: Goal, last_resort: Callable[[], tuple[Offer, str]]) -> Offer:
        """What would be served, and is compressed; rows for the certificate have no part in it."""
        if goal.confidence is None or not goal.limits:
            return self.choose(goal.limits, None, last_resort).offer
        aims = goal.aims(self.terms)
        return choose(self.offers, self.terms, goal.limits, self.plain, aims)[0] or last_resort()[0]

    def uncompressed(self, choice: Choice, limits: Limits) -> str:
        """Why what is served is not one model, or that it is clearly worse than several; empty where all is well."""
        found, served = self.compression, choice.offer
        if found is not None and served in found.less_accurate:
            return (
                f"compress=True: the compressed model is clearly less accurate. {found.cost(served, self.terms.hard)}"
            )
        count = count_models(served.weights)
        chosen = found is not None and found.teacher is not None and served.weights is found.teacher.weights
        if count == 1 and not chosen:
            return ""
        why = (found or Compression([])).why_not(limits, self.terms.hard)
        many = f"the {count} models" if count > 1 else "the model"
        churn = churn_text(served.churn, self.terms.hard)
        return (
            f"{why} What was to be compressed is served, {many} with a churn of {churn}. Raise the budget, give "
            "traffic= to learn from more rows, or leave compress out."
        )

    @property
    def parts(self) -> list[Part]:
        """The models of all offers, and those at the new end of their dials, each once."""
        found: dict[Part, None] = {}
        for part in (part for offer in self.offers for part in offer.weights):
            found |= {part.new: None, part: None} if isinstance(part, OnDial) else {part: None}
        return list(found)

    def measured_on(self, ruler: Ruler, X: Rows, evidence: Evidence | None, counts: Mapping[str, int]) -> Choices:
        """The same offers with their churn on other rows, which have no labels; the rest stays as it was measured."""
        asked = self.offers if self.plain in self.offers else [*self.offers, self.plain]
        found = []
        for offer, values in zip(asked, evidence_of(asked, ruler, X).churn, strict=True):
            each = np.ones(len(values))
            share = share_of_rows(values > 0, each, copies=True) if self.terms.hard else weighted_mean(values, each)
            measured: dict[str, Any] = {
                "churn": share.value,
                "churn_interval": (share.low, share.high),
                "rows": float(len(values)),
            }
            if ruler.groups is not None:
                measured["churn_by"] = ruler.churn_by(values)
            candidate = dataclasses.replace(offer.candidate, **measured)
            found.append(dataclasses.replace(offer, candidate=candidate))
        terms = dataclasses.replace(self.terms, rows=ruler.terms.rows, groups=ruler.terms.groups)
        if evidence is not None and self.evidence is not None:
            evidence = dataclasses.replace(evidence, broken=self.evidence.broken)  # which needs labels
        plain, offers = found[asked.index(self.plain)], found[: len(self.offers)]
        rows = {**self.rows, "certify": 0, **counts}
        made = dataclasses.replace(self, offers=offers, plain=plain, terms=terms, evidence=evidence, rows=rows)
        if self.compression is None:
            return made
        students = [new for new, old in zip(offers, self.offers, strict=True) if old in self.compression.students]
        return dataclasses.replace(made, compression=Compression(students))

    def seen_in(self, frontier: Frontier) -> Frontier:
        """A frontier with what these choices were measured to do, where they are its candidates."""
        measured = {offer.candidate.name: offer.candidate for offer in (*self.offers, self.plain)}
        return Frontier((measured.get(row.name, row) for row in frontier), frontier.hard)

    def choose(self, limits: Limits, confidence: float | None, last_resort: Callable[[], tuple[Offer, str]]) -> Choice:
        """The choice within limits; ``last_resort`` returns what is served where no offer keeps them, and why."""
        has_dial = any(offer.candidate.dial > 0 for offer in self.offers)
        aims = aimed(limits, self.terms) if has_dial else None
        picked, rule = self._choose(self.offers, limits, aims)
        certificate = None
        if confidence is not None and limits and self.offers:
            certificate, best = self._certify(self._in_order(picked, limits, aims), limits, confidence)
            if certificate.certified:
                picked, rule = best, f"{rule}, certified with {brief_share(confidence)} confidence"
        if picked is not None:
            return Choice(picked, rule, certificate)
        picked, why = last_resort()
        return Choice(picked, rule, certificate, why)

    def _choose(self, offers: Sequence[Offer], limits: Limits, aims: Limits | None) -> tuple[Offer | None, str]:
        """The offer to serve: a compressed model where one will do."""
        students = [] if self.compression is None else [one for one in self.compression.students if one in offers]
        if not limits:
            students = [one for one in students if one.cost <= self.plain.cost + 1e-12]
        picked, rule = choose(students, self.terms, limits, self.plain, aims) if students else (None, "")
        if picked is not None:
            return picked, rule
        return choose([one for one in offers if one not in students], self.terms, limits, self.plain, aims)

    def _in_order(self, picked: Offer | None, limits: Limits, aims: Limits | None) -> list[Offer]:
        """Offers as one would choose them if those before were taken away; last those above a limit."""
        left, order = list(self.offers), []
        while picked is not None:
            order.append(picked)
            left.remove(picked)
            picked, _ = self._choose(left, limits, aims)
        return order + sorted(left, key=lambda offer: (offer.cost, offer.churn))

    def _certify(self, prefer: Sequence[Offer], limits: Limits, confidence: float) -> tuple[Certificate, Offer]:
        """Test offers from the least spent upward, an order that other rows fixed; take the first accepted one."""
        evidence = self.evidence
        assert evidence is not None
        spent = [(limits.load(offer.candidate), offer.churn) for offer in self.offers]
        order = sorted(range(len(self.offers)), key=lambda k: (*spent[k], k))
        best = [self.offers.index(one) for one in prefer]
        claims = []
        for limit in limits:
            if limit.most and not limit.small:  # where no decision may change, the rule of every offer keeps them all
                bound = self.bound if limit.of == "churn" else 1.0
                values = {str(k): evidence.values(limit, k) for k in order}
                claims.append(Claim(limit.words, limit.most, values, bound))
        certificate, accepted = certify_together(claims, confidence, prefer=[str(k) for k in best])
        pick = next((k for k in best if str(k) in accepted), best[0])
        named = tuple((self.offers[int(k)].candidate.name, p) for k, p in certificate.tested)
        return dataclasses.replace(certificate, tested=named), self.offers[pick]

    def nearest(self, limits: Limits) -> tuple[Offer, str]:
        """The last resort on a dial: what changes least, which is not the base where classes are gone."""
        picked, least = nearest_to(limits, self.offers)
        return picked, f"nothing on the dial keeps {limits.parameters} on held-out rows; {least}, which is served."

    def selection(self, choice: Choice, limits: Limits, owed: str = "") -> Selection:
        """What is served, in words and numbers."""
        picked, row = choice.offer, choice.offer.candidate
        notes = [*self.notes, owed]
        if base_alone(picked.weights):
            why = choice.why or "of all candidates within the budget it is the most accurate on the held-out rows."
            why = "max_churn=0 allows no change." if limits.frozen else why
            notes.insert(0, f"This is the base unchanged: {why}")
        elif picked.churn == 0 and self.terms.hard:
            notes.insert(0, "It decides every held-out row as the base does.")
        rows = dict(self.rows)
        if self.compression is not None and picked in self.compression.students:
            notes.insert(0, self.compression.cost(picked, self.terms.hard))
            rows |= {"traffic": self.compression.traffic} if "traffic" in rows else {}
        served = {row.name: 1.0}
        if row.strategy == "mixture":  # of several candidates, which the row does not name
            served = {}
            for part, weight in picked.weights.items():
                served[part.name] = served.get(part.name, 0.0) + weight
        return Selection(
            served=served,
            rule=choice.rule,
            feasible=limits.keep(row),
            risk=row.risk,
            accuracy=row.accuracy,
            churn=row.churn,
            broken=row.broken,
            trainings=self.trainings,
            rows=rows,
            notes=tuple(filter(None, (*notes, *limits.notes(row)))),
            base_accuracy=self.base_accuracy,
            plain_accuracy=self.plain.candidate.accuracy,
            plain_churn=self.plain.candidate.churn,
            models=count_models(picked.weights),
            fixed=row.fixed,
            accuracy_change=row.accuracy_change,
            accuracy_change_interval=row.accuracy_change_interval,
            accuracy_cost=self.plain.candidate.accuracy - row.accuracy,
            budget_left=math.nan if limits.churn is None else limits.churn - row.churn,
            hard=self.terms.hard,
        )


@dataclass(frozen=True, eq=False)
class Evidence:
    """What each offer does on each row for the certificate: its churn, and whether it breaks a decision.

    ``codes`` are the numbers of the groups of the rows with churn.
    """

    churn: Sequence[np.ndarray]
    broken: Sequence[np.ndarray]
    codes: np.ndarray | None = None

    def values(self, limit: Limit, k: int) -> np.ndarray:
        """What offer k does of what a limit is about."""
        values = self.churn[k] if limit.of == "churn" else self.broken[k]
        return values if limit.whole or self.codes is None else values[self.codes == limit.number]

    def covers(self, limits: Limits) -> bool:
        """Whether there are rows for the certificate of each kind of limit."""
        return all(len((self.churn if limit.of == "churn" else self.broken)[0]) for limit in limits)


def evidence_of(offers: Sequence[Offer], judge: Ruler, X: Rows) -> Evidence:
    """What offers do on some rows; rows that count several times are written out."""
    churned, labelled = _counted(judge.churn_weights), _counted(judge.weights)
    uses = Counter(part for offer in offers for part in offer.weights)
    kept: dict[Part, np.ndarray] = {}
    churn, broken = [], []
    for offer in offers:
        each = {part: kept[part] if part in kept else judge.proba(part, X) for part in offer.weights}
        kept |= {part: proba for part, proba in each.items() if uses[part] > 1}
        proba = weighted(each, offer.weights)
        if offer.rule is not None:
            proba = offer.rule.proba(proba, judge.base_decisions, judge.codes)
        alone = base_alone(offer.weights)
        churn.append(judge.changes(proba, alone)[churned])
        broken.append((judge.base_right & ~judge.right(proba, alone))[labelled].astype(float))
    return Evidence(churn, broken, None if judge.codes is None else judge.codes[churned])


def _counted(weights: np.ndarray) -> np.ndarray:
    """Positions of the rows that count, each as often as it does; weights that are no counts have no part in it."""
    return np.repeat(np.arange(len(weights)), weights.astype(int) if whole_numbers(weights) else weights > 0)
