"""From measured candidates to what is served: single candidates or mixtures, within the budget, certified or not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowchurn.estimator.candidates import Ruler, Trained, Trials
from lowchurn.estimator.frontier import Candidate
from lowchurn.selection import Certificate, InfeasibleBudget, certify, combine, select_single

BASE = -1  # stands for the base among the indices of trained candidates
LEAST_WEIGHT = 1e-4  # a candidate of less weight in a mixture costs a prediction and changes nothing


@dataclass(frozen=True, eq=False)
class Offer:
    """What could be served: weights of candidates (by index; the base is -1), measured on the rows to choose on."""

    weights: dict[int, float]
    candidate: Candidate
    proba: np.ndarray
    cost: float

    @property
    def churn(self) -> float:
        return self.candidate.churn


class Served:
    """What answers predictions: trained models, and perhaps the base, averaged with their weights."""

    def __init__(self, weights: dict[int, float], base: Any, models: list[Any], classes: np.ndarray) -> None:
        self.weights = weights
        self.base = base
        self.models = {k: model for k, model in enumerate(models) if not weights or k in weights}
        self.classes = classes

    @property
    def single(self) -> Trained | None:
        (first, *more) = self.weights
        return None if more or first == BASE else self.models[first]

    def part(self, k: int, X: Any) -> np.ndarray:
        """Probabilities of one member."""
        return np.asarray(self.base.proba(X) if k == BASE else self.models[k].proba(X))

    def proba(self, X: Any) -> np.ndarray:
        if len(self.weights) == 1:
            return self.part(next(iter(self.weights)), X)
        # Summed in the order in which it was measured, so that the very same numbers are served.
        return np.asarray(sum(weight * self.part(k, X) for k, weight in self.weights.items()))


def singles(trials: Trials, ruler: Ruler) -> list[Offer]:
    """Every trained candidate by itself."""
    return [
        Offer({k: 1.0}, trials.frontier[k], proba, ruler.cost(proba))
        for k, proba in enumerate(trials.probas)
        if proba is not None
    ]


def kept_base(ruler: Ruler) -> Offer:
    """The base itself: no decision changes."""
    row = ruler.measure(Candidate("base", "", status="kept"), ruler.base_proba)
    return Offer({BASE: 1.0}, row, ruler.base_proba, ruler.cost(ruler.base_proba))


def mixtures(trials: Trials, ruler: Ruler, budget: float | None, servable: bool, steps: int = 20) -> list[Offer]:
    """Algorithm 1's mixtures of all candidates (and the base, where it can be served), over budgets of soft churn.

    The convex program needs soft churn. A budget on soft churn is used as it is, with smaller ones beside it for the
    certificate; for hard churn a path of soft budgets is solved and each mixture is measured in hard churn.
    """
    members = [(k, proba) for k, proba in enumerate(trials.probas) if proba is not None]
    if servable:
        members.append((BASE, ruler.base_proba))
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
        used = [(k, float(w), p) for (k, p), w in zip(members, weights, strict=True) if w > 0]
        served = {k: w for k, w, _ in used}
        proba = np.asarray(sum(w * p for _, w, p in used))
        row = ruler.measure(Candidate("mixture", f"epsilon={epsilon:.3g}"), proba)
        offers.append(Offer(served, row, proba, ruler.cost(proba)))
    return offers


def choose(offers: list[Offer], ruler: Ruler, budget: float | None, plain: Offer) -> tuple[Offer | None, str]:
    """The offer to serve and the rule in words; None where no offer keeps the budget."""
    what = "accurate" if ruler.hard else f"accurate (by {ruler.score.name} score)"
    if budget is None:
        rule = f"least churn among those at least as {what} as a plain retrain"
        fine = [offer for offer in offers if offer.cost <= plain.cost + 1e-12] or [plain]
        return min(fine, key=lambda offer: (offer.churn, offer.cost)), rule
    rule = f"most {what} within {'hard' if ruler.hard else 'soft'} churn {budget:g}"
    try:
        # Sums of weights may carry a churn that equals the budget over it by rounding.
        pick = select_single([o.cost for o in offers], [o.churn for o in offers], budget * (1 + 1e-9))
    except InfeasibleBudget:
        return None, rule
    return offers[pick], rule


def certify_offers(
    offers: list[Offer],
    first: Offer | None,
    changes: Callable[[Offer], Any],
    budget: float,
    confidence: float,
    bound: float,
) -> tuple[Certificate, Offer]:
    """Test offers from the least churn upward, in the order of the rows to choose on, and take the best accepted one."""
    order = sorted(range(len(offers)), key=lambda k: (offers[k].churn, k))
    best = sorted(range(len(offers)), key=lambda k: (offers[k].churn > budget, offers[k].cost, offers[k].churn))
    if first is not None:
        best = [offers.index(first), *(k for k in best if offers[k] is not first)]
    values = {str(k): changes(offers[k]) for k in order}
    certificate, accepted = certify(values, budget, confidence, bound, prefer=[str(k) for k in best])
    pick = next((k for k in best if str(k) in accepted), best[0])
    named = tuple((offers[int(k)].candidate.name, p) for k, p in certificate.tested)
    return Certificate(**{**certificate.__dict__, "tested": named}), offers[pick]
