"""Labels for the disagreements only.

Two models' accuracies differ only where they disagree, so only those rows need a person. If a random ``m`` of the
``D`` disagreements among ``N`` rows are labelled, the change in accuracy is ``D / N`` times the mean of +1 (fixed),
-1 (broken) and 0 (both wrong). Its variance has two parts: which disagreements were labelled, and which rows were
scored. With no change in truth they add up to ``c^2 q / m`` with ``c = D / N`` and ``q`` the share of the labelled
rows that are broken or fixed: the labels decide, and rows only have to be enough to hold that many disagreements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from lowchurn._checks import check_number
from lowchurn._display import brief_share, interval_text
from lowchurn._estimates import Estimate, kish_rows, paired_difference, proportion, undefined
from lowchurn.audit import _statistics as stats

LEAST_MARGIN = 1e-9  # a smaller one needs more labels than there are people


@dataclass(frozen=True)
class ReviewPlan:
    """How many rows to score and how many labels to buy."""

    margin: float
    power: float
    confidence: float
    churn: float
    rows: int
    """Rows scored so far."""
    disputed: int
    """Of these, rows on which the models disagree."""
    labels: int
    """Labels to buy: a random part of the disagreements."""
    rows_to_score: int
    """Rows that hold that many disagreements."""
    labels_without_plan: int
    """Labels that the same proof needs when rows are labelled at random instead."""

    @property
    def enough_rows(self) -> bool:
        return self.disputed >= self.labels

    def __str__(self) -> str:
        if self.churn == 0:
            return "The models agree on every row: there is nothing to label."
        fall = f"{100 * self.margin:.4g} points"
        aim = f"a fall in accuracy of {fall} or more is excluded with {brief_share(self.power)} power if there is none"
        if self.enough_rows:
            part = "all of them" if self.labels >= self.disputed else f"a random {self.labels:,} of them"
            return (
                f"The models disagree on {self.disputed:,} of {self.rows:,} rows. Label {part}: then {aim}. "
                f"Labelling rows at random would take about {self.labels_without_plan:,} labels."
            )
        return (
            f"The models disagree on {self.disputed:,} of {self.rows:,} rows, and {self.labels:,} labelled "
            f"disagreements are needed. Score about {self.rows_to_score:,} rows in all and label "
            f"their disagreements: then {aim}. "
            f"Labelling rows at random would take about {self.labels_without_plan:,} labels."
        )


def plan_review(
    churn: float,
    rows: int,
    disputed: int,
    margin: float,
    power: float = 0.8,  # the chance to exclude such a fall if the accuracy did not change at all
    confidence: float = 0.95,  # of the two-sided interval whose lower bound has to stay above -margin
    decisive: float = 1.0,  # share of disagreements on which one is right; 1 is always safe and true of two classes
) -> ReviewPlan:
    """Return the labels and rows for a proof that the accuracy did not fall by ``margin``."""
    check_number("review_plan", "margin", margin, LEAST_MARGIN, 1)
    check_number("review_plan", "power", power, 0, 1, open_low=True, open_high=True)
    check_number("review_plan", "decisive", decisive, 0, 1)
    if churn == 0:
        return ReviewPlan(margin, power, confidence, 0.0, rows, 0, 0, rows, 0)
    z = stats.critical(confidence) + float(special.ndtri(power))
    # In ratio to churn the margin is a shift of the mean of values in {-1, 0, 1}.
    labels = max(1, math.ceil(decisive * (churn * z / margin) ** 2))
    to_score = math.ceil(labels / churn)
    plain = math.ceil(decisive * churn * (z / margin) ** 2)
    return ReviewPlan(margin, power, confidence, churn, rows, disputed, labels, to_score, plain)


@dataclass(frozen=True)
class Review:
    """What the labelled disagreements show about the change in accuracy."""

    labels: int
    """Disagreements with an answer."""
    disputed: int
    rows: int
    fixed: Estimate
    broken: Estimate
    lateral: Estimate
    """The shares of the answered disagreements that were fixed, broken and wrong both ways."""
    accuracy_change: Estimate
    fixed_rows: Estimate
    broken_rows: Estimate
    """The shares of all rows that go from wrong to right and from right to wrong."""
    unknown: int = 0
    """Answers to rows on which the models agree: they contain nothing about a change and were not used."""
    empty: int = 0
    """Rows without an answer."""
    full: float = math.nan
    """Rows that the estimates would be worth if all disagreements were labelled."""

    def __str__(self) -> str:
        change = self.accuracy_change
        open_rows = f" Rows without an answer: {self.empty:,}." if self.empty else ""
        if not change.defined:
            return f"No disagreement has an answer yet.{open_rows}"
        agreeing = f" Answers to rows on which the models agree, not used: {self.unknown:,}." if self.unknown else ""
        return (
            f"Accuracy changed by {interval_text(change, signed=True)}, "
            f"from {self.labels:,} labels of {self.disputed:,} disagreements in {self.rows:,} rows."
            f"{open_rows}{agreeing}"
        )

    def labels_needed(self, estimate: Estimate, size: float) -> float:
        """Labels in all at which an estimate would be worth ``size`` rows; infinite if all would not be enough.

        With ``m`` of ``D`` disagreements labelled, an estimate is worth ``1 / (a + b (1 / m - 1 / D))`` rows.
        """
        open_part = 1 / self.labels - 1 / self.disputed if self.labels else 0.0
        if open_part <= 0 or size >= self.full:
            return math.inf
        slope = max(1 / estimate.effective - 1 / self.full, 1e-300) / open_part
        return float(math.ceil(1 / ((1 / size - 1 / self.full) / slope + 1 / self.disputed) - 1e-9))


def review_change(
    outcomes: np.ndarray,  # +1 (fixed), -1 (broken) or 0 (both wrong) of each labelled disagreement
    disputed: int,
    rows: int,
    confidence: float = 0.95,
    weights: np.ndarray | None = None,
    disputed_share: float | None = None,  # by weight, where rows have weights
    effective: float | None = None,  # number of rows, where they have weights or groups
    unknown: int = 0,
    empty: int = 0,
) -> Review:
    """Return the change in accuracy that a random part of the disagreements shows."""
    m = len(outcomes)
    size = float(rows) if effective is None else effective
    if disputed == 0:
        none = undefined(0, "no disagreements")
        zero = paired_difference(0.0, 0.0, rows, confidence, effective)
        never = proportion(0.0, rows, confidence, effective)
        return Review(0, 0, rows, none, none, none, zero, never, never, unknown, empty, size)
    if m == 0:
        none = undefined(0, "no answers")
        return Review(0, disputed, rows, none, none, none, none, none, none, unknown, empty, size)
    share = disputed / rows if disputed_share is None else disputed_share
    w = np.ones(m) if weights is None else np.asarray(weights, dtype=float)
    kish = kish_rows(w)
    fixed, broken, lateral = (float(w[outcomes == s].sum() / w.sum()) for s in (1, -1, 0))
    mean, decisive = fixed - broken, fixed + broken
    change = share * mean
    per_row = share * decisive - change**2
    left = 1 - m / disputed
    sampling = share**2 * float(np.sum(w**2 * (outcomes - mean) ** 2)) / w.sum() ** 2 * left
    # With few labels that are all the same, the sample shows no variance: fall back on what a label is worth.
    whole = (1 / size) + share * left / kish
    variance = sampling + per_row / size
    # Never take the sample for more than its labels are worth at no change, c^2 q / m.
    worth = min(per_row / variance, 1 / whole) if variance > 0 and per_row > 0 else 1 / whole
    estimate = paired_difference(share * fixed, share * broken, rows, confidence, worth)
    from_labels = f"from {m:,} labels of {disputed:,} disagreements"
    shown = Estimate(change, estimate.low, estimate.high, rows, f"Tango score {from_labels}", worth)

    def of_all_rows(part: float) -> Estimate:
        # Which rows were scored, and which disagreements were labelled. One label of either kind is added for the
        # variance, since few labels that are all the same would show none.
        likely = (kish * part + 1) / (kish + 2)
        rate = share * likely
        spread = rate * (1 - rate) / size + share**2 * likely * (1 - likely) * left / kish
        found = proportion(share * part, rows, confidence, rate * (1 - rate) / spread)
        method = f"{found.method.split(' at ')[0]} {from_labels}"
        return Estimate(found.value, found.low, found.high, rows, method, found.effective)

    sizes = None if weights is None else kish
    return Review(
        labels=m,
        disputed=disputed,
        rows=rows,
        fixed=proportion(fixed, m, confidence, sizes),
        broken=proportion(broken, m, confidence, sizes),
        lateral=proportion(lateral, m, confidence, sizes),
        accuracy_change=shown,
        fixed_rows=of_all_rows(fixed),
        broken_rows=of_all_rows(broken),
        unknown=unknown,
        empty=empty,
        full=size,
    )
