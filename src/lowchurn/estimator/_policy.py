"""From measured candidates to what is served: single candidates or mixtures, within the budget, certified or not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowchurn.estimator._frontier import Candidate, Selection
from lowchurn.estimator._searching import aim_below
from lowchurn.estimator._split import whole_numbers
from lowchurn.estimator._training import BASE, Dialled, Ruler, Terms, Trained, Trials, only_base, weighted
from lowchurn.metrics import dial_name
from lowchurn.selection import Certificate, InfeasibleBudget, certify, combine, select_single

LEAST_WEIGHT = 1e-4  # a candidate of less weight in a mixture costs a prediction and changes nothing


@dataclass(frozen=True, eq=False)
class Offer:
    """What could be served: weights of models (by place; the base is -1), measured on the rows to choose on."""

    weights: dict[int, float]
    candidate: Candidate
    cost: float

    @property
    def churn(self) -> float:
        return self.candidate.churn


class Served:
    """What answers predictions: trained models, and perhaps the base, averaged with their weights."""

    def __init__(
        self,
        weights: dict[int, float],
        base: Any,
        models: Sequence[Trained | Dialled] | Mapping[int, Trained | Dialled],
        classes: np.ndarray,
    ) -> None:
        self.weights = weights
        self.base = base
        self.models: dict[int, Trained] = {k: models[k].made() for k in weights if k != BASE}
        self.classes = classes

    @property
    def single(self) -> Trained | None:
        (first, *more) = self.weights
        return None if more or first == BASE else self.models[first]

    def part(self, k: int, X: Any) -> np.ndarray:
        """Probabilities of one member."""
        return np.asarray(self.base.proba(X) if k == BASE else self.models[k].proba(X))

    def decisions(self, X: Any) -> np.ndarray:
        """The likeliest class of each row as an index; where the base alone is served, what it decides itself."""
        if only_base(self.weights):
            # These need not be those of its largest probability.
            decided = np.asarray(self.base.decisions(X))
            return decided if (decided >= 0).all() else np.where(decided >= 0, decided, self.proba(X).argmax(axis=1))
        return self.proba(X).argmax(axis=1)

    def proba(self, X: Any) -> np.ndarray:
        # Summed in the order in which it was measured, so that the very same numbers are served.
        return weighted({k: self.part(k, X) for k in self.weights}, self.weights)


def singles(trials: Trials, ruler: Ruler) -> list[Offer]:
    """Every candidate by itself."""
    return [
        Offer(served, row, ruler.cost(proba, only_base(served)))
        for row, served, proba in zip(trials.frontier, trials.served_as, trials.probas, strict=True)
        if proba is not None and served is not None
    ]


def kept_base(ruler: Ruler) -> Offer:
    """The base itself: no decision changes."""
    row = ruler.measure(Candidate("base", "", status="kept"), ruler.base_proba, base_alone=True)
    return Offer({BASE: 1.0}, row, ruler.cost(ruler.base_proba, base_alone=True))


def _mixed_in(row: Candidate, served: Mapping[int, float]) -> bool:
    """Whether a candidate has a place in a mixture; a mixture itself has not, and of a dial every tenth has."""
    return BASE not in served and (math.isnan(row.dial) or round(10 * row.dial, 9).is_integer())


def mixtures(trials: Trials, ruler: Ruler, budget: float | None, servable: bool, steps: int = 20) -> list[Offer]:
    """Algorithm 1's mixtures of all candidates (and the base, where it can be served), over budgets of soft churn.

    The convex program needs soft churn. A budget on soft churn is used as it is, with smaller ones beside it for the
    certificate; for hard churn a path of soft budgets is solved and each mixture is measured in hard churn.
    """
    members: list[tuple[dict[int, float], np.ndarray]] = [
        (served, proba)
        for row, served, proba in zip(trials.frontier, trials.served_as, trials.probas, strict=True)
        if proba is not None and served is not None and _mixed_in(row, served)
    ]
    if servable:
        members.append(({BASE: 1.0}, ruler.base_proba))
    stack = np.stack([proba for _, proba in members])
    reach = max(
        float(np.average(ruler.score.divergence(ruler.base_proba, p), weights=ruler.weights)) for _, p in members
    )
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
        served: dict[int, float] = {}
        for (parts, _), weight in zip(members, weights, strict=True):
            for k, share in parts.items() if weight > 0 else ():
                served[k] = served.get(k, 0.0) + float(weight) * share
        proba = trials.proba(served)
        alone = only_base(served)
        row = ruler.measure(Candidate("mixture", f"epsilon={epsilon:.3g}"), proba, alone)
        offers.append(Offer(served, row, ruler.cost(proba, alone)))
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

    on_dial = [o for o in offers if not math.isnan(o.candidate.dial) and len(o.weights) == 1 and BASE not in o.weights]
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
    dials: dict[str, list[Offer]] = {}
    kept = []
    for offer in offers:
        if math.isnan(offer.candidate.dial):
            kept.append(offer)
        else:
            dials.setdefault(dial_name(offer.candidate.strategy, offer.candidate.setting), []).append(offer)
    for some in dials.values():
        best = min(some, key=lambda offer: (offer.cost, -offer.churn))
        noise = {id(o): math.sqrt(abs(o.churn - best.churn) / terms.rows) if terms.hard else 0.0 for o in some}
        fine = [offer for offer in some if offer.cost <= best.cost + noise[id(offer)]]
        kept.append(max(fine, key=lambda offer: offer.churn))
    return kept


def fall_back(
    offers: Sequence[Offer], trials: Trials, ruler: Ruler, budget: float, servable: bool
) -> tuple[Offer, str]:
    """No candidate keeps the budget: a blend with the base, or the nearest candidate where the base cannot be served.

    The words say what is served and what would keep the budget.
    """
    nearest = min(offers or singles(trials, ruler), key=lambda offer: (offer.churn, offer.cost))
    failed = f"no candidate keeps max_churn={budget:g} on held-out rows; the least churn is {nearest.churn:.3g}."
    if not servable:
        return nearest, (
            f"{failed} {nearest.candidate.name} has it and is served. The base is known only by a table of its "
            "answers, so that it cannot answer new rows or be blended in: to keep this budget give base= the model "
            f"itself, a function or a file; or set max_churn to {math.ceil(1000 * nearest.churn) / 1000:g} or more."
        )
    blends = [*mixtures(trials, ruler, budget, servable), kept_base(ruler)]
    picked, _ = choose(blends, ruler.terms, budget, blends[0])
    if picked is None:  # even the base changes decisions where classes are gone
        picked = min(blends, key=lambda offer: (offer.churn, offer.cost))
    what = "The base is kept as it is" if only_base(picked.weights) else "A blend with the base is served"
    return picked, (
        f"{failed} {what}. Raise the budget, or try a start from the base or other strategies, to serve one model."
    )


@dataclass(frozen=True, eq=False)
class Desk:
    """All that a choice needs, kept after training, so that another budget can be chosen for at once.

    ``changes`` holds the churn of each offer on each row for the certificate, where there are such rows.
    """

    offers: Sequence[Offer]
    plain: Offer
    terms: Terms
    bound: float
    changes: Sequence[np.ndarray] | None
    models: Sequence[Trained | Dialled] | Mapping[int, Trained | Dialled]
    names: Sequence[str] | Mapping[int, str]
    base: Any
    classes: np.ndarray
    trainings: int
    rows: Mapping[str, int]
    notes: Sequence[str] = ()

    @property
    def has_dial(self) -> bool:
        return any(offer.candidate.dial > 0 for offer in self.offers)

    def pick(self, budget: float | None, confidence: float | None) -> tuple[Offer | None, str, Certificate | None]:
        """The offer to serve, the rule in words and the certificate; no offer where none keeps the budget."""
        aim = aim_below(budget, self.terms) if budget is not None and self.has_dial else None
        picked, rule = choose(self.offers, self.terms, budget, self.plain, aim)
        if confidence is None or budget is None or not self.offers:
            return picked, rule, None
        assert self.changes is not None
        prefer = self._in_order(picked, budget, aim)
        certificate, best = certify_offers(self.offers, prefer, self.changes, budget, confidence, self.bound)
        if certificate.certified:
            picked, rule = best, f"{rule}, certified with confidence {confidence:g}"
        return picked, rule, certificate

    def _in_order(self, picked: Offer | None, budget: float, aim: float | None) -> list[Offer]:
        """Offers as one would choose them if those before were taken away; last those above the budget."""
        left, order = list(self.offers), []
        while picked is not None:
            order.append(picked)
            left.remove(picked)
            picked, _ = choose(left, self.terms, budget, self.plain, aim)
        return order + sorted(left, key=lambda offer: (offer.cost, offer.churn))

    def served(self, picked: Offer) -> Served:
        return Served(picked.weights, self.base, self.models, self.classes)

    def selection(self, picked: Offer, rule: str, budget: float | None, why: str = "") -> Selection:
        """What is served, in words and numbers; ``why`` is the reason where no candidate kept the budget."""
        row = picked.candidate
        notes = list(self.notes)
        if only_base(picked.weights):
            why = why or "of all candidates within the budget it is the most accurate on the held-out rows."
            notes.insert(0, f"This is the base unchanged: {why}")
        elif picked.churn == 0 and self.terms.hard:
            notes.insert(0, "It decides every held-out row as the base does.")
        served = {row.name: 1.0}
        if row.strategy == "mixture":  # of several candidates, which the row does not name
            served = {self.names[k] if k != BASE else "base": w for k, w in picked.weights.items()}
        return Selection(
            served=served,
            rule=rule,
            feasible=budget is None or picked.churn <= budget * (1 + 1e-9),
            risk=row.risk,
            accuracy=row.accuracy,
            churn=row.churn,
            broken=row.broken,
            trainings=self.trainings,
            rows=dict(self.rows),
            notes=tuple(notes),
        )


def certify_offers(
    offers: Sequence[Offer],
    prefer: Sequence[Offer],
    changes: Sequence[np.ndarray],
    budget: float,
    confidence: float,
    bound: float,
) -> tuple[Certificate, Offer]:
    """Test offers from the least churn upward, as measured on the rows to choose on; take the first accepted one.

    The order of the test is fixed by other rows, and churn need not rise along it for the certificate to hold.
    """
    order = sorted(range(len(offers)), key=lambda k: (offers[k].churn, k))
    best = [next(k for k, offer in enumerate(offers) if offer is one) for one in prefer]
    values = {str(k): changes[k] for k in order}
    certificate, accepted = certify(values, budget, confidence, bound, prefer=[str(k) for k in best])
    pick = next((k for k in best if str(k) in accepted), best[0])
    named = tuple((offers[int(k)].candidate.name, p) for k, p in certificate.tested)
    return Certificate(**{**certificate.__dict__, "tested": named}), offers[pick]


def certified_changes(
    offers: Sequence[Offer], judge: Ruler, models: Sequence[Trained | Dialled], X: Any
) -> list[np.ndarray]:
    """Churn of each offer on each row for the certificate; rows that count several times are written out."""
    copies = judge.weights.astype(int) if whole_numbers(judge.weights) else None
    uses = Counter(k for offer in offers for k in offer.weights)
    kept: dict[int, np.ndarray] = {BASE: judge.base_proba}
    found = []
    for offer in offers:
        each = {k: kept[k] if k in kept else models[k].proba(X) for k in offer.weights}
        kept |= {k: proba for k, proba in each.items() if uses[k] > 1}
        values = judge.changes(weighted(each, offer.weights), only_base(offer.weights))
        found.append(values if copies is None else np.repeat(values, copies))
    return found
