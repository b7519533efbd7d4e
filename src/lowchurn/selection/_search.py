"""Find the lambda of distillation that meets a target with few trainings.

By Proposition 1 the best classifier within a budget is ``lam * p + (1 - lam) * g``. A plain retrain estimates
``p``, so its probabilities and the base's alone predict the churn of every lambda before anything is trained
there. A trained student is not that mixture, though: it has noise of its own. So the prediction gives the first lambda,
and what is measured there corrects it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from lowchurn._checks import check_choice, check_number, check_proba, to_numpy
from lowchurn._types import Values

DIGITS = 3  # a finer lambda changes nothing that held-out rows could show
STEPS = 2048


def predicted_lambda(plain_proba: Values, base_proba: Values, keeps: Callable[[np.ndarray], bool]) -> float:
    """The largest lambda whose predicted mixture ``keeps`` a rule that the base keeps, by bisection."""
    plain, base = (to_numpy(check_proba("predicted_lambda", "proba", p)) for p in (plain_proba, base_proba))
    if keeps(plain):
        return 1.0

    def breaks(k: int) -> bool:
        return not keeps(k / STEPS * plain + (1 - k / STEPS) * base)

    return round(bisect_left(range(1, STEPS), True, key=breaks) / STEPS, DIGITS)


class LambdaSearch:
    """The next lambda to train at, given what was measured, until the aim is met or ``most`` trainings are spent.

    The search begins at ``first``, from :func:`predicted_lambda`; ``at_one`` is the value of the plain retrain. With
    ``seek="most"`` it looks for the largest lambda whose value is at most the aim (the most accurate one within a
    budget), and stops from ``near * aim`` on; with "least" for the smallest one (the least churn that is accurate
    enough), by bisection.
    """

    def __init__(
        self, first: float, aim: float, at_one: float, most: int = 3, near: float = 0.8, seek: str = "most"
    ) -> None:
        check_choice("LambdaSearch", "seek", seek, ("most", "least"))
        self.first = check_number("LambdaSearch", "first", first, 0, 1)
        self.aim, self.at_one, self.most, self.near, self.seek = aim, at_one, most, near, seek
        self.told: list[tuple[float, float]] = []

    def tell(self, lam: float, value: float) -> None:
        """Report the value measured at a lambda; NaN for a training that failed."""
        self.told.append((lam, value))

    def ask(self) -> float | None:
        """The next lambda to train at, or None when done."""
        if len(self.told) >= self.most:
            return None
        known = [(lam, value) for lam, value in self.told if not np.isnan(value)]
        if not self.told:
            lam = self.first
        elif not known:
            return None  # the learner fails here: another lambda would fail as well
        elif self.seek == "least":
            lam = self._halve(known)
        elif any(self.near * self.aim <= value <= self.aim for _, value in known):
            return None
        else:
            lam = self._interpolate(known)
        lam = round(min(max(lam, 0.0), 1.0), DIGITS)
        # The plain retrain is lambda = 1 and is always there already.
        return None if lam == 1.0 or any(lam == before for before, _ in self.told) else lam

    def _halve(self, known: list[tuple[float, float]]) -> float:
        fine = min([lam for lam, value in known if value <= self.aim], default=1.0)
        short = max([lam for lam, value in known if value > self.aim and lam < fine], default=0.0)
        return (fine + short) / 2

    def _interpolate(self, known: list[tuple[float, float]]) -> float:
        points = [*known, (1.0, self.at_one)]
        below = max((p for p in points if p[1] <= self.aim), default=None)
        above = min((p for p in points if p[1] > self.aim and (below is None or p[0] > below[0])), default=None)
        if above is None:
            return 1.0
        # Without a point below, follow the line through the two lowest lambdas, but at least halve the last one:
        # near zero churn flattens out to the student's own noise, and a line through noise may point anywhere.
        if below is None:
            if above[0] < 0.02:
                return 0.0
            (low, at_low), (high, at_high) = sorted(points)[:2]
            slope = (at_high - at_low) / (high - low) if high > low else 0.0
            line = low - (at_low - self.aim) / slope if slope > 0 else 0.0
            last = len(self.told) == self.most - 1
            return 0.0 if last and line <= 0 else max(line, 0.5 * low if not last else 0.0)
        middle = 0.5 * (self.near * self.aim + self.aim)
        share = (middle - below[1]) / (above[1] - below[1])
        return below[0] + float(np.clip(share, 0.1, 0.9)) * (above[0] - below[0])
