"""Which candidate, or which mixture of candidates, is served under a churn budget: Algorithm 1.

A mixture is served as averaged probabilities, never by drawing one of its models: that would be churn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from lowchurn._checks import (
    as_array,
    check_class_index,
    check_number,
    check_proba,
    check_rows,
    check_weights,
    to_numpy,
)
from lowchurn._types import Values
from lowchurn.scoring import Score, get_score, row_dot
from lowchurn.strategies import one_hot


class InfeasibleBudget(ValueError):
    """No candidate, or no mixture of them, keeps the churn budget.

    Attributes
    ----------
    least_churn : float
        The least churn that the candidates can give.

    Examples
    --------
    >>> from lowchurn.selection import InfeasibleBudget, select_single
    >>> try:
    ...     select_single(risk=[0.3, 0.2], churn=[0.04, 0.08], epsilon=0.01)
    ... except InfeasibleBudget as error:
    ...     print(error.least_churn)
    0.04
    """

    def __init__(self, who: str, epsilon: float, least_churn: float) -> None:
        super().__init__(
            f"{who}: epsilon must be at least {least_churn:.6g}, the least churn that these candidates can give, "
            f"got {epsilon:.6g}. Raise the budget, add candidates closer to the base, or add the base itself."
        )
        self.least_churn = least_churn


def select_single(risk: Values, churn: Values, epsilon: float) -> int:
    """The index of the candidate of least risk whose churn is at most ``epsilon``; ties go to less churn.

    This is what the paper does in practice. Candidates whose risk or churn is NaN are never chosen.

    Examples
    --------
    >>> from lowchurn.selection import select_single
    >>> select_single(risk=[0.30, 0.20, 0.10], churn=[0.00, 0.03, 0.09], epsilon=0.05)
    1
    """
    who = "select_single"
    risk, churn = (to_numpy(as_array(values)).astype(float) for values in (risk, churn))
    if risk.ndim != 1 or churn.ndim != 1:
        raise ValueError(
            f"{who}: risk and churn must hold one value per candidate, got shapes {risk.shape} and {churn.shape}."
        )
    check_rows(who, risk=risk, churn=churn)
    epsilon = check_number(who, "epsilon", epsilon, 0, math.inf)
    known = ~(np.isnan(risk) | np.isnan(churn))
    if not known.any():
        raise ValueError(f"{who}: risk and churn are NaN for every candidate. Did they all fail?")
    feasible = np.flatnonzero(known & (churn <= epsilon))
    if feasible.size == 0:
        raise InfeasibleBudget(who, epsilon, float(churn[known].min()))
    return int(feasible[np.lexsort((churn[feasible], risk[feasible]))[0]])


@dataclass(frozen=True, eq=False)
class Mixture:
    """Weights of candidates that are served together; mean score and mean divergence on the rows they were fitted on.

    ``multiplier`` is the Lagrange multiplier mu of the churn constraint, what a unit of budget would save in risk: the
    lambda of the paper is ``1 / (1 + mu)``. It is zero where the budget does not bind, infinite where it is the least
    churn that can be had.
    """

    weights: np.ndarray
    risk: float
    churn: float
    multiplier: float

    def proba(self, candidates: Values) -> np.ndarray:
        """Average the candidates' probabilities, shape (L, n, m), into those that are served, shape (n, m)."""
        candidates = to_numpy(as_array(candidates))
        if candidates.ndim != 3 or candidates.shape[0] != self.weights.shape[0]:
            raise ValueError(
                f"Mixture: candidates must have shape ({self.weights.shape[0]}, rows, classes), got {candidates.shape}."
            )
        return np.tensordot(self.weights, candidates, axes=1)


def combine(
    proba: Values,
    y: Values,
    base_proba: Values,
    epsilon: float,
    score: str | Score = "log",
    sample_weight: Values | None = None,
) -> Mixture:
    """Algorithm 1's last step: the mixture of candidates of least risk whose soft churn is at most ``epsilon``.

    Parameters
    ----------
    proba : array of shape (L, n, m)
        Probabilities of L candidates for n held-out rows.
    y : array of shape (n,)
        True class indices of those rows.
    base_proba : array of shape (n, m)
        The base's probabilities of those rows.
    epsilon : float
        Budget on the mean divergence from the base; may be infinite.
    score : str or Score, default "log"
        The proper score behind risk and churn.
    sample_weight : array of shape (n,), optional
        Weights of the rows in both means.

    Returns
    -------
    Mixture
        With a residual of the optimality (KKT) conditions below 1e-6.

    Raises
    ------
    InfeasibleBudget
        Where no mixture keeps the budget; it names the least churn that can be had.

    Notes
    -----
    A convex program in L variables for convex scores, solved by a primal-dual interior-point method: some fifteen
    Newton steps, each a few passes over the (L, n m) matrix of candidates. (scipy's SLSQP, tried first, needed up to
    2,000 evaluations where candidates are alike.) For scores that are not convex it is solved from several starts
    and the best is taken.

    Examples
    --------
    >>> from lowchurn.selection import combine
    >>> base = [[0.5, 0.5], [0.5, 0.5]]
    >>> fresh = [[0.9, 0.1], [0.1, 0.9]]
    >>> mixture = combine([base, fresh], y=[0, 1], base_proba=base, epsilon=0.02, score="brier")
    >>> mixture.weights.round(3), round(mixture.churn, 3)
    (array([0.75, 0.25]), 0.02)
    """
    proba, y, base_proba = _check_candidates(proba, y, base_proba)
    if sample_weight is not None:
        sample_weight = to_numpy(check_weights("combine", "sample_weight", sample_weight, len(y))).astype(float)
    program = _Program(proba, y, base_proba, get_score(score), sample_weight)
    epsilon = check_number("combine", "epsilon", epsilon, 0, math.inf)
    return program.solve(epsilon)


def _check_candidates(proba: Values, y: Values, base_proba: Values) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    who = "combine"
    base_proba = to_numpy(check_proba(who, "base_proba", base_proba)).astype(float)
    n, m = base_proba.shape
    proba = to_numpy(as_array(proba))
    if proba.ndim != 3 or proba.shape[0] == 0 or proba.shape[1:] != (n, m):
        raise ValueError(f"{who}: proba must have shape (candidates, {n}, {m}) to match base_proba, got {proba.shape}.")
    for k, candidate in enumerate(proba):
        check_proba(who, f"proba[{k}]", candidate)
    y = to_numpy(check_class_index(who, "y", y, m))
    check_rows(who, y=y, base_proba=base_proba)
    return proba.astype(float), y, base_proba


@dataclass
class _Point:
    """Risk and churn of a mixture, with their derivatives by its weights."""

    weights: np.ndarray
    risk: float
    churn: float
    risk_slope: np.ndarray
    churn_slope: np.ndarray


class _Program:
    """min risk(w) s.t. churn(w) <= epsilon, w on the simplex; everything is a mean over rows."""

    def __init__(
        self, proba: np.ndarray, y: np.ndarray, base_proba: np.ndarray, score: Score, weights: np.ndarray | None
    ) -> None:
        self.size, self.rows, self.classes = proba.shape
        self.flat = np.ascontiguousarray(proba).reshape(self.size, -1)
        # Every expectation is linear in the targets, so weights of rows go into them.
        shares = np.ones((self.rows, 1)) if weights is None else (weights * (self.rows / weights.sum()))[:, None]
        self.onehot = one_hot(y, self.classes) * shares
        self.base = base_proba * shares
        self.score = score
        self.base_entropy = float(np.mean(row_dot(self.base, score.phi(base_proba))))

    def at(self, weights: np.ndarray) -> _Point:
        served = self._served(weights)
        phi = self.score.phi(served)
        slopes = np.stack([self.score.gradient(t, served).ravel() for t in (self.onehot, self.base)])
        risk_slope, churn_slope = slopes @ self.flat.T / self.rows
        return _Point(
            weights=weights,
            risk=float(np.mean(row_dot(self.onehot, phi))),
            churn=float(np.mean(row_dot(self.base, phi))) - self.base_entropy,
            risk_slope=risk_slope,
            churn_slope=churn_slope,
        )

    def _served(self, weights: np.ndarray) -> np.ndarray:
        return np.asarray((weights @ self.flat).reshape(self.rows, self.classes))

    def curvature(self, point: _Point, risk_share: float, churn_share: float) -> np.ndarray:
        """Second derivatives of ``risk_share * risk + churn_share * churn`` by the weights."""
        targets = risk_share * self.onehot + churn_share * self.base
        diagonal = self.score.curvature(targets, self._served(point.weights))
        if diagonal is not None:
            return np.asarray((self.flat * diagonal.ravel()) @ self.flat.T / self.rows)
        step = 1e-6
        slope = risk_share * point.risk_slope + churn_share * point.churn_slope
        columns = []
        for direction in np.eye(self.size):
            moved = self.at(point.weights + step * direction)
            columns.append((risk_share * moved.risk_slope + churn_share * moved.churn_slope - slope) / step)
        curved = np.array(columns)
        return _make_convex((curved + curved.T) / 2)

    def solve(self, epsilon: float) -> Mixture:
        starts = [np.full(self.size, 1 / self.size)]
        vertices = [self.at(vertex) for vertex in np.eye(self.size)]
        if self.score.convex and all(vertex.churn < epsilon for vertex in vertices):
            epsilon = math.inf  # then no mixture is above it either
        if not self.score.convex:
            # One optimum is then not the only one: start near the extreme candidates as well.
            extremes = {int(np.argmin([getattr(v, cost) for v in vertices])) for cost in ("risk", "churn")}
            starts += [0.9 * vertices[i].weights + 0.1 / self.size for i in sorted(extremes)]
        if not any(vertex.churn < epsilon for vertex in vertices):
            # No candidate is strictly within the budget by itself; perhaps a mixture is.
            found = [self._interior_point(start, math.inf, least_churn=True)[0] for start in starts]
            least = min(found, key=lambda point: point.churn)
            if least.churn > epsilon + 1e-12:
                raise InfeasibleBudget("combine", epsilon, max(least.churn, 0.0))
            if least.churn > epsilon - 1e-10:
                return _mixture(least, math.inf)
        solutions = [self._interior_point(start, epsilon) for start in starts]
        feasible = [pair for pair in solutions if pair[0].churn <= epsilon + 1e-8]
        if not feasible:
            feasible = [self._pull_inside(*solutions[0], min(vertices, key=lambda v: v.churn), epsilon)]
        return _mixture(*min(feasible, key=lambda pair: pair[0].risk))

    def _pull_inside(self, point: _Point, mu: float, inside: _Point, epsilon: float) -> tuple[_Point, float]:
        """Where double precision ends just outside the budget: go toward the candidate of least churn until inside."""

        def at(share: float) -> _Point:
            return self.at((1 - share) * point.weights + share * inside.weights)

        reached = inside.churn <= epsilon
        found = at(brentq(lambda share: at(share).churn - epsilon, 0.0, 1.0)) if reached else inside
        if found.churn > epsilon + 1e-8:
            raise InfeasibleBudget("combine", epsilon, max(found.churn, 0.0))
        return found, mu

    def _interior_point(self, start: np.ndarray, epsilon: float, least_churn: bool = False) -> tuple[_Point, float]:
        """A primal-dual interior-point method; gives the solution and the multiplier of the budget.

        Unknowns are the weights w, their multipliers z (w z = 0 at the end), the multiplier ``level`` of
        sum(w) = 1, the slack of the budget and its multiplier mu (slack mu = 0 at the end).
        """
        budgeted = math.isfinite(epsilon)
        point = self.at(start)
        z = np.full(self.size, 1.0)
        level, mu = 0.0, 1.0 if budgeted else 0.0
        slack = max(epsilon - point.churn, 1e-3) if budgeted else 1.0
        for _ in range(MAX_STEPS):
            w = point.weights
            gradient = point.churn_slope if least_churn else point.risk_slope + mu * point.churn_slope
            stationarity = gradient + level - z
            overspent = point.churn + slack - epsilon if budgeted else 0.0
            products = np.append(w * z, slack * mu) if budgeted else w * z
            worst = max(np.abs(stationarity).max(), abs(w.sum() - 1), abs(overspent))
            if (worst < TOLERANCE and products.max() < COMPLEMENTARITY) or products.max() < UNDERFLOW:
                break
            barrier = 0.1 * products.mean()
            shares = (0.0, 1.0) if least_churn else (1.0, mu)
            system = np.ones((self.size + 1, self.size + 1))
            system[-1, -1] = 0.0
            system[:-1, :-1] = self.curvature(point, *shares) + np.diag(z / w)
            right = -stationarity + barrier / w - z
            if budgeted:
                system[:-1, :-1] += mu / slack * np.outer(point.churn_slope, point.churn_slope)
                right -= point.churn_slope * (barrier / slack - mu + mu / slack * overspent)
            try:
                solution = np.linalg.solve(system, np.append(right, 1 - w.sum()))
            except np.linalg.LinAlgError:
                break  # at the limit of double precision: no step would improve the point
            dw, dlevel = solution[:-1], float(solution[-1])
            dz = barrier / w - z - z / w * dw
            dslack = -overspent - float(point.churn_slope @ dw) if budgeted else 0.0
            dmu = barrier / slack - mu - mu / slack * dslack if budgeted else 0.0
            primal = _stay_positive(np.append(w, slack), np.append(dw, dslack))
            dual = _stay_positive(np.append(z, mu), np.append(dz, dmu))
            point = self.at(w + primal * dw)
            slack += primal * dslack
            z, level, mu = z + dual * dz, level + dual * dlevel, mu + dual * dmu
        # A candidate whose weight is smaller than its multiplier is on the way to zero.
        kept = np.where(point.weights < z, 0.0, point.weights)
        if not kept.any():  # a budget so small that double precision ends before the weights settle
            kept = point.weights
        return self.at(kept / kept.sum()), mu if budgeted else 0.0


TOLERANCE = 1e-10  # of every optimality condition; the documented promise is 1e-6
COMPLEMENTARITY = 1e-14  # so small that setting a vanishing weight to zero changes nothing
UNDERFLOW = 1e-22  # below it double precision has nothing more to give
MAX_STEPS = 100


def _mixture(point: _Point, multiplier: float) -> Mixture:
    # Below the tolerance a multiplier means that the budget does not bind.
    return Mixture(point.weights, point.risk, max(point.churn, 0.0), multiplier if multiplier > 1e-7 else 0.0)


def _stay_positive(values: np.ndarray, steps: np.ndarray) -> float:
    """The largest share of a step, at most one, that keeps every value clearly positive."""
    falling = steps < 0
    return float(min(1.0, 0.995 * np.min(values[falling] / -steps[falling], initial=math.inf)))


def _make_convex(curvature: np.ndarray) -> np.ndarray:
    """Lift negative eigenvalues, so that a Newton step of a score that is not convex still descends."""
    values, vectors = np.linalg.eigh(curvature)
    return np.asarray((vectors * np.maximum(np.abs(values), 1e-8)) @ vectors.T)
