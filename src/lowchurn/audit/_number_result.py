"""The audit of numbers: moves, losses before and after, and what can be asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from lowchurn._estimates import Estimate
from lowchurn.audit import _number_counts as counts
from lowchurn.audit._audited import Audited, figure
from lowchurn.audit._columns import Numbers
from lowchurn.audit._inference import Tally
from lowchurn.audit._number_inference import FIGURES, NumberDesign, NumberSlice, NumberTally
from lowchurn.audit._result import Shift
from lowchurn.audit._rules import Rules, number_rules
from lowchurn.audit._sources import Fetched
from lowchurn.audit._statistics import Test


@dataclass(frozen=True)
class Histogram:
    """Rows by bins of the move; the first and the last bin contain what lies beyond them."""

    edges: np.ndarray
    rows: np.ndarray


@dataclass(eq=False, repr=False, kw_only=True)
class NumberAudit(Audited[NumberTally, NumberSlice]):
    """What changed between the numbers of two versions. Made by :func:`lowchurn.audit.audit` with ``value=``.

    Examples
    --------
    >>> import pandas as pd
    >>> from lowchurn.audit import audit
    >>> old = pd.DataFrame({"id": range(5), "yhat": [1.0, 2.0, 3.0, 4.0, 5.0], "y": [1.5, 2.0, 3.0, 4.5, 4.0]})
    >>> new = pd.DataFrame({"id": range(5), "yhat": [1.0, 2.1, 3.5, 4.4, 4.5]})
    >>> found = audit(old, new, value="yhat", target="y", tolerance=0.2)
    >>> found.moved.value, found.worse.value, found.better.value
    (0.6, 0.2, 0.4)
    >>> round(found.loss_old.value, 3), round(found.loss_new.value, 3), round(found.quantiles["0.5"].value, 3)
    (0.4, 0.34, 0.1)
    >>> found.gate(max_moved=0.01).outcome
    'FAIL'
    """

    kind = "numbers"
    figures = FIGURES
    numbers: NumberDesign
    """How figures are estimated."""
    quantiles: dict[str, Estimate] = field(default_factory=dict)
    """Of the move, by level: ``"0.5"`` is the median."""
    histogram: Histogram
    density: Shift

    moved = figure("moved", "Share of rows whose number moved by more than the tolerance.")
    worse = figure("worse", "Share of rows whose loss grew by more than the tolerance, of those with a loss.")
    better = figure("better", "Share of rows whose loss shrank by more than the tolerance, of those with a loss.")
    mean_move = figure("mean_move", "Mean of the new number less the old one.")
    mean_size = figure("mean_size", "Mean size of the moves, up or down.")
    loss_old = figure("loss_old", "Mean loss before: of a target the mean absolute error (MAE).")
    loss_new = figure("loss_new", "Mean loss after.")
    loss_change = figure("loss_change", "Mean loss after less mean loss before, of the same rows.")
    rmse_old = figure("rmse_old", "Root of the mean squared error before, where there is a target.")
    rmse_new = figure("rmse_new", "Root of the mean squared error after.")
    rmse_change = figure("rmse_change", "Root of the mean squared error after less that before.")

    @cached_property
    def compared(self) -> Numbers:
        """The tolerance, and what a number costs."""
        assert self.columns.numbers is not None
        return self.columns.numbers

    @cached_property
    def paired_test(self) -> Test:
        """Is the mean loss changed at all?"""
        return self.numbers.test(self.whole)

    @property
    def identical(self) -> bool:
        """No number differs, and no loss."""
        return not (self.whole.counts.n["shifted"] or self.whole.counts.n["stirred"])

    @property
    def rules(self) -> Rules:
        """What limits can be set."""
        return number_rules(self.compared.loss or "loss", self.compared.gain)

    def _figure(self, tally: NumberTally, name: str, confidence: float | None = None) -> Estimate:
        return self.numbers.figure(tally, name, confidence)

    def _counts(self, tally: NumberTally) -> Tally:
        return tally.counts

    def _rows_by_id(self, names: Sequence[str]) -> Fetched:
        return self.engine.fetch(counts.rows_by_id(self.pairs, names))

    def _content(self) -> dict[str, Any]:
        return {
            "compared": asdict(self.compared),
            "quantiles": {level: asdict(value) for level, value in self.quantiles.items()},
            "paired_test": asdict(self.paired_test),
            "histogram": {"edges": self.histogram.edges.tolist(), "rows": self.histogram.rows.tolist()},
            "density": {"edges": self.density.edges.tolist(), "rows": self.density.joint.tolist()},
            "biggest_moves": self.flips,
        }
