"""Rules that keep decisions within limits that one margin does not keep well: ratios, and margins of groups."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from lowchurn.estimator._limits import Limit, Limits
from lowchurn.estimator._measuring import Ruler
from lowchurn.theory import Margin
from lowchurn.theory._decisions import first_left_out

SCALES = (1.0, 0.8, 0.6, 0.4, 0.3, 0.2, 0.1, 0.05, 1.5, 2.0, 3.0)  # of all limits, for certificates and the dial


def rules_within(ruler: Ruler, proba: np.ndarray, aims: Limits, levels: Sequence[float]) -> list[Margin]:
    """Rules for limits of broken decisions and of groups, from an estimate of the probabilities.

    For broken decisions a margin on the ratio is optimal, for limits of groups one margin per group, and where several
    limits bind a ratio and margins (docs/strategies.md#sticky-decisions): at each of a few ratios the least margins
    that keep all limits on these rows, and all limits scaled.
    """
    scores = _Scores(ruler, proba, aims)
    ratios = scores.ratios(levels)
    tried = [0.0, *(share * ratios[-1] for share in (0.25, 0.5, 0.75, 1.0))] if ratios else [0.0]
    grouped = ruler.hard and aims.grouped
    found = [] if grouped else [Margin(ratio=ratio) for ratio in ratios]
    for ratio in dict.fromkeys(round(one, 4) for one in tried):
        found += [scores.within(ratio, scale) for scale in (SCALES if grouped else SCALES[:1])]
    if grouped:
        found += [scores.within(0.0, 1.0, level) for level in levels]
    some = (rule for rule in dict.fromkeys(found) if rule.margin < 1)
    return [rule for rule in some if rule.margin + rule.ratio + sum(rule.groups) > 0]


def rule_that_holds(limits: Limits, ruler: Ruler) -> Margin | None:
    """The rule that keeps all decisions of the groups in which none may change; None where there is no such group."""
    if not limits.held:
        return None
    return dataclasses.replace(ruler.plain_rule, groups=tuple(float(g in limits.held) for g in range(limits.groups)))


class _Scores:
    """What rows gain by a change, and what their changes spend of limits."""

    def __init__(self, ruler: Ruler, proba: np.ndarray, aims: Limits) -> None:
        self.ruler = ruler
        self.gain = ruler.plain_rule.gain(proba, ruler.base_decisions)
        self.own = ruler.own(proba)
        self.aims = aims
        self._groups: dict[tuple[float, float], tuple[float, ...]] = {}

    def ratios(self, levels: Sequence[float]) -> list[float]:
        """The least ratios for levels of broken decisions, the last for the limit itself; none without a limit."""
        broken = next((limit for limit in self.aims if limit.of == "broken"), None)
        if broken is None:
            return []
        with np.errstate(divide="ignore"):
            scores = np.where(self.gain > 0, self.gain / self.own, 0.0)
        shares = self.ruler.shares(broken)
        found = [first_left_out(scores, [(shares, level)]) for level in (*levels, broken.most)]
        return [ratio for ratio in (between(one, scores, math.inf) for one in found if one > 0) if ratio < math.inf]

    def within(self, ratio: float, scale: float, churn: float | None = None) -> Margin:
        """The least margins at a ratio that keep all limits times ``scale``, and a level of churn in all rows."""
        beyond = self.gain - ratio * self.own
        if (ratio, scale) not in self._groups:
            self._groups[ratio, scale] = self._of_groups(beyond, scale)
        groups = self._groups[ratio, scale]
        free = beyond > Margin(groups=groups).margins(len(beyond), self.ruler.codes)
        free |= self.ruler.base_decisions < 0
        kept = [limit for limit in self.aims if limit.whole and (self.ruler.hard or limit.of == "broken")]
        costs = [(self.ruler.shares(limit), limit.most * scale) for limit in kept]
        if churn is not None:
            costs.append((self.ruler.shares(Limit("churn", churn)), churn))
        margin = between(first_left_out(beyond, costs, free), beyond[free])
        return Margin(margin, ratio, groups=groups)

    def _of_groups(self, beyond: np.ndarray, scale: float) -> tuple[float, ...]:
        """The least margin of each group; none without limits of groups."""
        if not self.ruler.hard or not self.aims.grouped:
            return ()
        groups = [0.0] * self.aims.groups
        for limit in self.aims:
            if not limit.whole:
                groups[limit.number] = self._least(beyond, limit, scale)
        return tuple(groups)

    def _least(self, beyond: np.ndarray, limit: Limit, scale: float) -> float:
        """The least margin of the rows of one limit."""
        if limit.most == 0:
            return 1.0
        inside = np.full(len(beyond), True) if limit.on_all else np.asarray(self.ruler.codes == limit.number)
        left_out = first_left_out(beyond, [(self.ruler.shares(limit), limit.most * scale)], inside)
        return between(left_out, beyond[inside])


def between(margin: float, gains: np.ndarray, most: float = 1.0) -> float:
    """A margin that lets the same rows change, with few digits and away from their gains: rounding changes none."""
    if margin <= 0:
        return 0.0
    above = gains[(gains > margin) & np.isfinite(gains)]
    if margin >= most or len(above) == 0:
        return most
    least = float(above.min())
    middle = (margin + least) / 2
    shorter = (round(middle, digits) for digits in range(2, 17))
    return next((value for value in shorter if margin < value < least), middle)
