"""The audit of decisions: figures with their intervals, and what can be asked of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lowchurn._checks import check_number
from lowchurn._estimates import Estimate, proportion
from lowchurn.audit import _counts as counts
from lowchurn.audit import _statistics as stats
from lowchurn.audit._answers import read_answers
from lowchurn.audit._audited import Audited, figure
from lowchurn.audit._inference import FIGURES, Slice, Tally
from lowchurn.audit._joins import Table
from lowchurn.audit._review import Review, ReviewPlan, plan_review, review_change
from lowchurn.audit._rules import DECISIONS, Rules
from lowchurn.audit._sources import Fetched, TableLike
from lowchurn.audit._statistics import Test

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Shift:
    """How numbers moved: rows by bins of the old (rows) and the new (columns) number."""

    quantity: str
    edges: np.ndarray
    joint: np.ndarray

    @classmethod
    def from_counts(cls, rows: Fetched, bins: int, quantity: str, low: float = 0.0, high: float = 1.0) -> Shift:
        """From rows of (old bin, new bin, n)."""
        joint = np.zeros((bins, bins), dtype=np.int64)
        for old, new, n in zip(rows["old"], rows["new"], rows["n"], strict=True):
            joint[int(old), int(new)] += int(n)
        return cls(quantity, np.linspace(low, high, bins + 1), joint)


@dataclass(eq=False, repr=False, kw_only=True)
class Audit(Audited[Tally, Slice]):
    """What changed between the decisions of two versions. Made by :func:`lowchurn.audit.audit`.

    Examples
    --------
    >>> import pandas as pd
    >>> from lowchurn.audit import audit
    >>> old = pd.DataFrame({"id": range(4), "prediction": ["a", "a", "b", "b"], "y": ["a", "b", "b", "b"]})
    >>> new = pd.DataFrame({"id": range(4), "prediction": ["a", "b", "b", "a"]})
    >>> found = audit(old, new, label="y")
    >>> found.classes, found.flip_matrix.tolist()
    (['a', 'b'], [[1, 1], [1, 1]])
    >>> print(found.estimate("churn", confidence=0.9))
    0.5 [0.09761, 0.9024] (n = 4)
    >>> found.gate(max_churn=0.01).outcome
    'FAIL'
    >>> found.disputed(2).columns.tolist()
    ['id', 'answer_1', 'answer_2', 'label']
    >>> found.with_labels(found.disputed().assign(label="b")).accuracy_change.value
    0.0
    """

    kind = "audit"
    figures = FIGURES
    cells: Fetched
    counted: Table
    """What was counted of the pairs, with every changed row; stored."""
    soft: dict[str, Estimate] = field(default_factory=dict)
    """``soft_churn`` and the log-loss, Brier score and calibration error before, after and their change."""
    shift: Shift | None = None
    moved: int | None = None
    """Rows whose probabilities are not the same on both sides."""

    @property
    def rules(self) -> Rules:
        """What limits can be set."""
        return DECISIONS

    def _figure(self, tally: Tally, name: str, confidence: float | None = None) -> Estimate:
        return self.design.figure(tally, name, confidence)

    def _counts(self, tally: Tally) -> Tally:
        return tally

    def _rows_by_id(self, names: Sequence[str]) -> Fetched:
        return self.engine.fetch(counts.rows_by_id(self.pairs, names))

    churn = figure("churn", "Share of rows whose decision changed.")
    broken = figure("broken", "Share of labelled rows that were right and are wrong now.")
    fixed = figure("fixed", "Share of labelled rows that were wrong and are right now.")
    lateral = figure("lateral", "Share of labelled rows that were wrong and are wrong in another way now.")
    accuracy_old = figure("accuracy_old", "Share of labelled rows that the old model decided rightly.")
    accuracy_new = figure("accuracy_new", "Share of labelled rows that the new model decides rightly.")
    accuracy_change = figure("accuracy_change", "Accuracy after less accuracy before.")

    @cached_property
    def mcnemar(self) -> Test:
        """Is the accuracy changed at all?"""
        return self.design.mcnemar(self.whole)

    def not_worse_than(self, margin: float) -> Test:
        """One-sided test that the accuracy did not fall by ``margin`` or more (non-inferiority)."""
        fixed, broken, change = self.fixed.value, self.broken.value, self.accuracy_change
        return stats.non_inferiority(fixed, broken, change.n, margin, change.effective)

    @property
    def identical(self) -> bool:
        """No decision and, where they are known, no probability differs."""
        return self.whole.n["changed"] == 0 and not self.moved

    @cached_property
    def classes(self) -> list[Any]:
        """Every decision that either side made, in order."""
        return sorted({value for old, new, _ in self._whole_cells() for value in (old, new)})

    @cached_property
    def flip_matrix(self) -> np.ndarray:
        """Rows by old (row) and new (column) decision."""
        position = {c: i for i, c in enumerate(self.classes)}
        matrix = np.zeros((len(position), len(position)), dtype=np.int64)
        for old, new, n in self._whole_cells():
            matrix[position[old], position[new]] += int(n)
        return matrix

    def _whole_cells(self) -> Iterable[tuple[Any, Any, int]]:
        cells = zip(*(self.cells[name] for name in ("cut", "old", "new", "n")), strict=True)
        return ((old, new, n) for cut, old, new, n in cells if cut == -1)

    def review_plan(self, margin: float = 0.005, power: float = 0.8) -> ReviewPlan:
        """Rows to score and disagreements to label for a proof that the accuracy fell by less than ``margin``."""
        decisive = 1.0
        if self.whole.n["labelled"] and len(self.classes) > 2:
            changed = self.whole.n["broken"] + self.whole.n["fixed"] + self.whole.n["lateral"]
            settled = self.whole.n["broken"] + self.whole.n["fixed"]
            decisive = proportion(settled / changed, changed, self.confidence).high if changed else 1.0
        return plan_review(
            self.churn.value, self.rows.paired, self.whole.n["changed"], margin, power, self.confidence, decisive
        )

    def disputed(self, n: int | None = None, seed: int | None = None) -> pd.DataFrame:
        """A random ``n`` of the disagreements to be labelled, shuffled and blinded, as a pandas table.

        ``answer_1`` and ``answer_2`` hold the two decisions in random order, so that nobody sees which model decided
        what; ``label`` is to be filled in.
        """
        import pandas as pd

        if n is not None:
            check_number("disputed", "n", n, 1, math.inf)
        seed = self.seed if seed is None else seed
        found = self.engine.fetch(counts.shuffled(counts.changed(self.counted), seed, n))
        size = len(found["old"])
        rng = np.random.default_rng(seed)
        order, swap = rng.permutation(size), rng.random(size) < 0.5
        table = {name: [found[f"k{i}"][j] for j in order] for i, name in enumerate(self.columns.id)}
        pairs = [(found["old"][j], found["new"][j]) for j in order]
        table["answer_1"] = [b if s else a for (a, b), s in zip(pairs, swap, strict=True)]
        table["answer_2"] = [a if s else b for (a, b), s in zip(pairs, swap, strict=True)]
        return pd.DataFrame(table | {"label": pd.array([None] * size, dtype="object")})

    def with_labels(self, table: TableLike, label: str = "label") -> Review:
        """The change in accuracy from answers to a random part of the disagreements.

        Parameters
        ----------
        table : path or table
            The ids and a column of labels: what :meth:`disputed` returned, filled in. A CSV file is read as text, and
            labels and ids are converted to the types of the audited ones; what is not a class is refused with its row.
            Empty labels are counted as not answered yet.
        label : str, default "label"
        """
        answers = read_answers(self.engine, self.counted, self.pairs, self.columns, self.classes, table, label)
        disputed = self.whole.n["changed"]
        weights = answers.weights if self.design.weighted else None
        plain = not (self.design.weighted or self.design.grouped)
        return review_change(
            answers.outcomes,
            disputed,
            self.rows.paired,
            self.confidence,
            weights,
            self.churn.value,
            None if plain else self.churn.effective,
            answers.agreeing,
            answers.empty,
        )

    def _content(self) -> dict[str, Any]:
        return {
            "soft": {name: asdict(value) for name, value in self.soft.items()},
            "mcnemar": asdict(self.mcnemar),
            # Infinity is a class like any other, and no number of JSON.
            "classes": [str(c) if isinstance(c, float) and math.isinf(c) else c for c in self.classes],
            "flip_matrix": self.flip_matrix.tolist(),
        }
