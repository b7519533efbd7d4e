"""The paper's statements as functions: Propositions 1, 3, 4, 7, 8 and the grid of Theorem 2.

The conditional distribution ``p`` is known only in worlds that we make ourselves; there these functions are exact,
and the tests hold the rest of the library against them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from lowchurn._checks import check_bounded, check_number, check_proba, check_share, check_whole, to_numpy
from lowchurn._types import Values
from lowchurn.metrics import decide
from lowchurn.scoring import Score, get_score, row_dot


class OptimalMixture(NamedTuple):
    """``lam`` and ``proba = lam * p + (1 - lam) * g`` of Proposition 1."""

    lam: float
    proba: np.ndarray


def optimal_mixture(p: Values, g: Values, epsilon: float, score: str | Score = "log") -> OptimalMixture:
    """Proposition 1: the classifier of least risk whose soft churn against ``g`` is at most ``epsilon``.

    It is ``lam * p + (1 - lam) * g``. Along that line churn rises and risk falls with ``lam``, so the best one is
    the largest ``lam`` within the budget. Rows are equally likely.

    Parameters
    ----------
    p, g : array of shape (n, m)
        The true class probabilities and the base's.
    epsilon : float
        Budget on the mean divergence from ``g``.
    score : str or Score, default "log"
        The proper score behind risk and churn.

    Returns
    -------
    OptimalMixture
        A pair ``(lam, proba)``.

    Examples
    --------
    >>> from lowchurn.theory import optimal_mixture
    >>> lam, h = optimal_mixture([[0.9, 0.1]], [[0.5, 0.5]], epsilon=0.02, score="brier")
    >>> round(lam, 6), h.round(3)          # ||h - g||^2 = 0.32 lam^2 = 0.02
    (0.25, array([[0.6, 0.4]]))
    """
    who = "optimal_mixture"
    p, g = _check_two(who, p, g)
    epsilon = check_number(who, "epsilon", epsilon, 0, math.inf)
    chosen = get_score(score)
    at_base = chosen.phi(g)

    def churn_at(lam: float) -> float:
        return float(np.mean(row_dot(g, chosen.phi(lam * p + (1 - lam) * g) - at_base)))

    if churn_at(1.0) <= epsilon:
        return OptimalMixture(1.0, p)
    lam = float(brentq(lambda lam: churn_at(lam) - epsilon, 0.0, 1.0, xtol=1e-15))
    while churn_at(lam) > epsilon:  # by rounding
        lam = math.nextafter(lam, 0.0)
    return OptimalMixture(lam, lam * p + (1 - lam) * g)


def lambda_upper_bound(p: Values, g: Values, epsilon: float, score: str | Score = "log") -> float:
    """Proposition 1's bound on the optimal lambda: ``sqrt(2 epsilon / (alpha E||p - g||_q^2))``.

    It may exceed one, where it is no restriction; it is infinite where ``p`` equals ``g``.

    Examples
    --------
    >>> from lowchurn.theory import lambda_upper_bound
    >>> round(lambda_upper_bound([[0.9, 0.1]], [[0.5, 0.5]], epsilon=0.02, score="brier"), 6)
    0.25
    """
    who = "lambda_upper_bound"
    p, g = _check_two(who, p, g)
    epsilon = check_number(who, "epsilon", epsilon, 0, math.inf)
    chosen = get_score(score)
    constants = chosen.strong_concavity(p.shape[1])
    if constants is None:
        raise ValueError(
            f"{who}: {type(chosen).__name__} states no strong concavity. Set its alpha and norm to use the bound."
        )
    alpha, norm = constants
    distance = float(np.mean(np.linalg.norm(p - g, ord=norm, axis=1) ** 2))
    return math.inf if distance == 0 else math.sqrt(2 * epsilon / (alpha * distance))


def guaranteed_grid(epsilon: float, bound: float, size: int) -> np.ndarray:
    """Theorem 2's grid of lambdas: ``max(epsilon / (epsilon + 2 B), u)`` for ``u = 1/L, ..., 1``.

    Values that coincide appear once, so that none is trained twice.

    Parameters
    ----------
    epsilon : float
        Budget on soft churn.
    bound : float
        B, the score's bound (``score.bound``).
    size : int
        L, the number of steps.

    Examples
    --------
    >>> from lowchurn.theory import guaranteed_grid
    >>> guaranteed_grid(epsilon=0.1, bound=2.0, size=4)
    array([0.25, 0.5 , 0.75, 1.  ])
    >>> guaranteed_grid(epsilon=4.0, bound=2.0, size=4)
    array([0.5 , 0.75, 1.  ])
    """
    who = "guaranteed_grid"
    epsilon = check_number(who, "epsilon", epsilon, 0, math.inf, open_low=True, open_high=True)
    bound = check_number(who, "bound", bound, 0, math.inf, open_low=True, open_high=True)
    size = check_whole(who, "size", size)
    return np.unique(np.maximum(epsilon / (epsilon + 2 * bound), np.arange(1, size + 1) / size))


def anchor_minimizer(p: Values, alpha: float, eta: float) -> np.ndarray:
    """Proposition 4: what the anchor loss learns when the base is the truth (distillation learns ``p`` itself).

    Examples
    --------
    >>> from lowchurn.theory import anchor_minimizer
    >>> anchor_minimizer([[0.6, 0.4]], alpha=1.0, eta=1.0)      # the likelier class is pushed down
    array([[0.36, 0.64]])
    >>> anchor_minimizer([[0.6, 0.4]], alpha=0.0, eta=1.0)
    array([[0.6, 0.4]])
    """
    who = "anchor_minimizer"
    p = to_numpy(check_proba(who, "p", p))
    alpha, eta = check_number(who, "alpha", alpha, 0, 1), check_number(who, "eta", eta, 0, 1)
    top = np.arange(p.shape[1]) == decide(p)[:, None]
    z = np.where(top, alpha * p**2 + (1 - alpha) * p, (eta + alpha * p.max(axis=1, keepdims=True)) * p)
    return np.asarray(z / z.sum(axis=1, keepdims=True))


def generalization_bound(values: Values, log_covering: float | None, delta: float, bound: float = 1.0) -> float:
    """Propositions 3 and 8: an upper bound on the mean of churn or loss on new rows, from those on ``n`` rows.

    Give one value per row, ``score.divergence(g, h)`` for churn or ``score.loss(y, h)`` for risk; the lower their
    variance, the tighter the bound. The constants are those of Maurer and Pontil, "Empirical Bernstein bounds and
    sample variance penalization" (COLT 2009). With V the sample variance (divisor n - 1), values in [0, B] and
    probability at least 1 - delta over the rows,

    - for all models of a class at once (their Theorem 6, n >= 16), with ``c = log(10 N / delta)``::

          mean + sqrt(18 V c / n) + 15 B c / (n - 1)

      where N is the covering number ``N_inf(1/n, F, 2n)`` of the class of values divided by B;
    - for one model that was fixed before the rows were seen (their Theorem 4; ``log_covering=None``), with
      ``c = log(2 / delta)``::

          mean + sqrt(2 V c / n) + 7 B c / (3 (n - 1))

    Parameters
    ----------
    values : array of shape (n,)
        One divergence or loss per row, in [0, bound].
    log_covering : float or None
        log N, or None for a single model fixed in advance.
    delta : float
        Probability that the bound fails.
    bound : float, default 1
        B, the largest value possible.

    Examples
    --------
    >>> import numpy as np
    >>> from lowchurn.theory import generalization_bound
    >>> churn = np.tile([0.0, 0.0, 0.0, 0.04], 500)
    >>> round(generalization_bound(churn, log_covering=None, delta=0.05), 4)
    0.0154
    >>> round(generalization_bound(churn, log_covering=2.0, delta=0.05), 4)
    0.0692
    """
    who = "generalization_bound"
    delta = check_share(who, "delta", delta)
    bound = check_number(who, "bound", bound, 0, math.inf, open_low=True, open_high=True)
    values = check_bounded(who, "values", values, bound)
    n = len(values)
    least = 2 if log_covering is None else 16
    if n < least:
        raise ValueError(f"{who}: values must have at least {least} rows for this bound, got {n}.")
    mean, variance = float(values.mean()), float(values.var(ddof=1))
    if log_covering is None:
        c = math.log(2 / delta)
        return mean + math.sqrt(2 * variance * c / n) + 7 * bound * c / (3 * (n - 1))
    log_covering = check_number(who, "log_covering", log_covering, 0, math.inf, open_high=True)
    c = math.log(10 / delta) + log_covering
    return mean + math.sqrt(18 * variance * c / n) + 15 * bound * c / (n - 1)


def excess_risk_bound(
    p: Values,
    g: Values,
    epsilon: float,
    churn_gap: float,
    score: str | Score = "log",
    *,
    bound: float | None = None,
    lipschitz: float | None = None,
) -> float:
    """Proposition 7: how far the risk of Algorithm 1's classifier can be above that of the best feasible one.

    ``epsilon + churn_gap + (B + Phi lambda*) E||p - g||_1``: small when the base is close to the truth.

    Parameters
    ----------
    p, g : array of shape (n, m)
        The true class probabilities and the base's.
    epsilon : float
        Budget on soft churn.
    churn_gap : float
        Delta_C, how far churn on new rows can be above churn on the sample
        (:func:`generalization_bound` less the mean).
    score : str or Score, default "log"
        Gives B, Phi and lambda*.
    bound, lipschitz : float, optional
        B and Phi, where the score's own are missing or can be improved.

    Examples
    --------
    >>> from lowchurn.theory import excess_risk_bound
    >>> excess_risk_bound([[0.9, 0.1]], [[0.9, 0.1]], epsilon=0.02, churn_gap=0.01, score="brier")
    0.03
    """
    who = "excess_risk_bound"
    p, g = _check_two(who, p, g)
    chosen = get_score(score)
    churn_gap = check_number(who, "churn_gap", churn_gap, 0, math.inf)

    def constant(name: str, given: float | None) -> float:
        known = getattr(chosen, name) if given is None else given
        if known is None:
            raise ValueError(f"{who}: {type(chosen).__name__} states no {name}. Give {name}= yourself.")
        return check_number(who, name, known, 0, math.inf)

    slope = constant("bound", bound) + constant("lipschitz", lipschitz) * optimal_mixture(p, g, epsilon, chosen).lam
    return epsilon + churn_gap + slope * float(np.mean(np.abs(p - g).sum(axis=1)))


def _check_two(who: str, p: Values, g: Values) -> tuple[np.ndarray, np.ndarray]:
    p = to_numpy(check_proba(who, "p", p)).astype(float)
    g = to_numpy(check_proba(who, "g", g)).astype(float)
    if p.shape != g.shape:
        raise ValueError(f"{who}: p and g must have the same shape, got {p.shape} and {g.shape}.")
    return p, g
