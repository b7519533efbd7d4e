"""A budget that holds on new rows: Learn-then-Test with a fixed order of candidates.

The null hypothesis of a candidate is "its churn on new rows is above the budget". On rows that played no part in
training or choosing, the number of changed decisions is binomial, so the p-value is an exact binomial tail.
Candidates are tested in an order fixed in advance, each at the full level, until one fails (fixed-sequence testing;
Angelopoulos et al., "Learn then Test", 2021): the chance that any accepted one is above the budget is at most
``1 - confidence``, whichever of them is served.

Several limits are certified together: a candidate is accepted only where the test of each limit rejects, each at the
full level (an intersection-union test). Where one limit is broken, its own test alone has to be wrong for the candidate
to be accepted, so that the risk need not be shared out among the limits.

Soft churn is a mean of bounded values, not a count; its p-value is that of Hoeffding and Bentkus (Bates et al., 2021),
which is valid for every distribution on [0, bound] and coarser than the binomial tail.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom

from lowchurn._checks import check_bounded, check_number, check_share
from lowchurn._display import brief_share, churn_text
from lowchurn._estimates import exact_bounds
from lowchurn._types import Values

SHOWN = 3  # claims in a sentence


@dataclass(frozen=True)
class Certificate:
    """What the held-out rows prove about the churn of the served model on new rows.

    Attributes
    ----------
    certified : bool
        Whether, with this confidence, the churn on new rows is at most ``max_churn``.
    max_churn, confidence : float
        The claim; ``max_churn`` is the limit of what ``of`` names.
    rows : int
        Rows that the test used; nothing else has seen them.
    churn : float
        Churn of the served model on those rows.
    upper_bound : float
        What can be certified for the served model with these rows: its churn is at most this.
    rows_needed : int or None
        About how many rows would certify the budget at the churn that was seen; None where the churn itself is
        not below the budget, so that no number of rows would.
    tested : tuple of (name, p-value)
        The candidates in the order of the test, up to the first that failed.
    of : str
        What is limited, in words: "churn", "the share of broken decisions", or churn in some of the rows.
    beside : tuple of Certificate
        The claims about further limits. ``certified`` of the first is true where all hold at once with this confidence,
        that of each other one where it holds by itself.

    Examples
    --------
    >>> from lowchurn.selection import certify
    >>> certificate, accepted = certify({"calm": [0] * 396 + [1] * 4}, max_churn=0.05, confidence=0.95)
    >>> certificate.certified, accepted
    (True, ['calm'])
    """

    certified: bool
    max_churn: float
    confidence: float
    rows: int
    churn: float
    upper_bound: float
    rows_needed: int | None
    tested: tuple[tuple[str, float], ...]
    of: str = "churn"
    beside: tuple[Certificate, ...] = ()
    hard: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "beside", tuple(self.beside))  # a list where it was read from a file

    def __str__(self) -> str:
        each = (self, *self.beside)
        claims = [f"{one._on_new_rows} is at most {one._amount(one.max_churn)}" for one in each]
        together = "" if len(each) == 1 else ", all at once"
        claim = f"{_listed(claims)} with {brief_share(self.confidence)} confidence{together}"
        unseen = "that nothing else has seen"
        seen = f"{_listed([f'{one._amount(one.churn)} on {one.rows} rows' for one in each])} {unseen}"
        if self.certified:
            return f"Certified: {claim} ({seen})."
        missed = [one for one in each if len(each) == 1 or not one.upper_bound <= one.max_churn] or each
        return f"Not certified: {claim} ({seen}). {' '.join(one._cure(len(each) > 1) for one in missed[:SHOWN])}"

    def _amount(self, value: float) -> str:
        return churn_text(value, self.hard)

    @property
    def _on_new_rows(self) -> str:
        what, _, where = self.of.partition(" where ")
        return f"{what} on new rows where {where}" if where else f"{what} on new rows"

    def _cure(self, named: bool) -> str:
        """What can be certified, and with how many rows the limit could be."""
        of = f" for {self.of}" if named else ""
        what = "churn" if self.of.startswith("churn") else "share"
        if self.rows_needed is None:
            cure = f"the {what} that was seen is not below the budget, so more rows alone would not do"
        else:
            cure = f"about {self.rows_needed} rows for the certificate would do at this {what}"
        return f"What can be certified{of} is {self._amount(self.upper_bound)}; {cure}."


@dataclass(frozen=True, eq=False)
class Claim:
    """A limit to certify: of what, how large, and what each candidate does on each row; values are at most ``bound``.

    The order of candidates in ``values`` is that of the test.
    """

    of: str
    limit: float
    values: Mapping[str, np.ndarray]
    bound: float = 1.0

    def p_value(self, name: str) -> float:
        """That of "the limit is broken by this candidate"; 1 where there is no row to show that it is kept."""
        return p_value(self.values[name], self.limit, self.bound) if len(self.values[name]) else 1.0

    def certificate(self, name: str, confidence: float, tested: Sequence[tuple[str, float]]) -> Certificate:
        """What the rows prove about one candidate."""
        rows = np.asarray(self.values[name], dtype=float)
        seen = float(rows.mean()) if len(rows) else math.nan
        share = 0.0 if math.isnan(seen) else min(seen / self.bound, 1.0)
        return Certificate(
            certified=self.p_value(name) <= 1 - confidence,
            max_churn=self.limit,
            confidence=confidence,
            rows=len(rows),
            churn=seen,
            upper_bound=churn_upper_bound(rows, confidence, self.bound) if len(rows) else self.bound,
            rows_needed=rows_to_certify(self.limit / self.bound, confidence, share),
            tested=tuple(tested),
            of=self.of,
            hard=not len(rows) or _counts(rows, self.bound),
        )


def churn_upper_bound(values: Values, confidence: float, bound: float = 1.0) -> float:
    """An upper bound of the mean churn on new rows, for one model that was fixed before the rows were seen.

    Zeros and ones (hard churn, ``bound=1``) get the exact bound of Clopper and Pearson; other values in
    [0, bound] that of Hoeffding and Bentkus.
    """
    values = check_bounded("churn_upper_bound", "values", values, bound)
    confidence = check_share("churn_upper_bound", "confidence", confidence)
    n = len(values)
    if _counts(values, bound):
        return exact_bounds(int(values.sum()), n, 1 - confidence)[1]
    mean = float(values.mean()) / bound
    if _hoeffding_bentkus(mean, n, 1.0 - 1e-9) > 1 - confidence:
        return bound

    def gap(level: float) -> float:
        return _hoeffding_bentkus(mean, n, level) - (1 - confidence)

    return bound * float(brentq(gap, max(mean, 1e-12), 1.0 - 1e-9))


def rows_to_certify(max_churn: float, confidence: float, churn: float = 0.0) -> int | None:
    """How many rows certify a budget on hard churn if the share ``churn`` of them changes; None if none would.

    Parameters
    ----------
    max_churn : float
        The budget.
    confidence : float
        Of the certificate.
    churn : float
        The share of changed decisions to expect.

    Examples
    --------
    >>> from lowchurn.selection import rows_to_certify
    >>> rows_to_certify(0.01, 0.95), rows_to_certify(0.02, 0.95, churn=0.01)
    (299, 719)
    >>> rows_to_certify(0.02, 0.95, churn=0.03) is None
    True
    """
    who = "rows_to_certify"
    max_churn = check_share(who, "max_churn", max_churn)
    confidence = check_share(who, "confidence", confidence)
    churn = check_number(who, "churn", churn, 0, 1)
    if churn >= max_churn:
        return None

    def passes(n: int) -> bool:
        return bool(binom.cdf(math.ceil(churn * n), n, max_churn) <= 1 - confidence)

    high = 1
    while not passes(high):
        high *= 2
        if high > 10**12:
            return None
    low = high // 2
    return low + 1 + bisect_left(range(low + 1, high), True, key=passes)


def aim_for_certificate(max_churn: float, confidence: float, rows: int, power: float = 0.9) -> float:
    """The churn at which a certificate with ``rows`` rows is got with probability ``power``; 0 where none can be.

    A candidate whose churn is just below the budget is hardly ever certified, so this is what to search for.
    """
    allowed = int(binom.ppf(1 - confidence, rows, max_churn))
    while allowed >= 0 and binom.cdf(allowed, rows, max_churn) > 1 - confidence:
        allowed -= 1
    if allowed < 0:
        return 0.0
    return float(brentq(lambda level: binom.cdf(allowed, rows, level) - power, 0.0, max_churn))


def certify(
    values: Mapping[str, Values],
    max_churn: float,
    confidence: float,
    bound: float = 1.0,
    prefer: Sequence[str] | None = None,
) -> tuple[Certificate, list[str]]:
    """Test candidates in the given order until one fails; the accepted ones all keep the budget on new rows.

    Parameters
    ----------
    values : dict of name to array of shape (n,)
        Churn of each candidate on each row: zeros and ones for hard churn, divergences for soft churn. The order of
        the dict is the order of the test and must not depend on these rows: safest first.
    max_churn : float
        The budget.
    confidence : float
        With this probability over the rows, every accepted candidate keeps the budget.
    bound : float, default 1
        The largest value possible.
    prefer : list of names, optional
        Best first, by other rows: the certificate is that of the first accepted one, or of the first of all
        where none is accepted. The order of ``values`` reversed by default.

    Returns
    -------
    certificate : Certificate
    accepted : list of names

    Examples
    --------
    >>> from lowchurn.selection import certify
    >>> rows = {"safe": [0] * 400, "bold": [0] * 390 + [1] * 10, "wild": [1] * 400}
    >>> certificate, accepted = certify(rows, max_churn=0.05, confidence=0.95)
    >>> accepted, certificate.churn
    (['safe', 'bold'], 0.025)
    >>> print(certify({"bold": rows["bold"]}, max_churn=0.03, confidence=0.95)[0])
    Not certified: churn on new rows is at most 3 % with 95 % confidence (2.5 % on 400 rows that nothing else has
    seen). What can be certified is 4.2 %; about 3494 rows for the certificate would do at this churn.
    """
    who = "certify"
    if not values:
        raise ValueError(f"{who}: values must hold at least one candidate, got none.")
    bound = check_number(who, "bound", bound, 0, math.inf, open_low=True, open_high=True)
    max_churn = check_number(who, "max_churn", max_churn, 0, bound, open_low=True, open_high=True)
    confidence = check_share(who, "confidence", confidence)
    checked = {name: check_bounded(who, "values", v, bound) for name, v in values.items()}
    return certify_together([Claim("churn", max_churn, checked, bound)], confidence, prefer)


def certify_together(
    claims: Sequence[Claim], confidence: float, prefer: Sequence[str] | None = None
) -> tuple[Certificate, list[str]]:
    """Test several limits of the same candidates at once: those that are accepted keep all of them on new rows."""
    names = list(claims[0].values)
    tested: list[tuple[str, float]] = []
    accepted: list[str] = []
    for name in names:
        tested.append((name, max(claim.p_value(name) for claim in claims)))
        if tested[-1][1] > 1 - confidence:
            break
        accepted.append(name)
    order = names[::-1] if prefer is None else list(prefer)
    served = next((name for name in order if name in accepted), order[0])
    first, *beside = (claim.certificate(served, confidence, tested) for claim in claims)
    return replace(first, certified=served in accepted, beside=tuple(beside)), accepted


def _listed(words: Sequence[str]) -> str:
    if len(words) > SHOWN + 1:
        words = [*words[:SHOWN], f"{len(words) - SHOWN} more"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def p_value(values: Values, max_churn: float, bound: float = 1.0) -> float:
    """The chance of churn this low if the churn on new rows were above ``max_churn``."""
    values = check_bounded("p_value", "values", values, bound)
    if _counts(values, bound):
        return float(binom.cdf(int(values.sum()), len(values), max_churn))
    return _hoeffding_bentkus(float(values.mean()) / bound, len(values), max_churn / bound)


def _hoeffding_bentkus(mean: float, n: int, level: float) -> float:
    """A valid p-value of "the true mean of n values in [0, 1] is above level"."""
    if mean >= level:
        return 1.0
    inner = mean * math.log(mean / level) if mean > 0 else 0.0
    inner += (1 - mean) * math.log((1 - mean) / (1 - level))
    bentkus = math.e * float(binom.cdf(math.ceil(n * mean), n, level))
    return min(1.0, math.exp(-n * inner), bentkus)


def _counts(values: np.ndarray, bound: float) -> bool:
    return bound == 1.0 and bool(np.isin(values, (0.0, 1.0)).all())
