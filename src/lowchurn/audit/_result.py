"""The audit itself: figures with their intervals, and what can be asked of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lowchurn._checks import check_number, unknown_name
from lowchurn._estimates import Estimate, proportion
from lowchurn._json import dumps, plain
from lowchurn.audit import _counts as counts
from lowchurn.audit import _statistics as stats
from lowchurn.audit._answers import read_answers
from lowchurn.audit._columns import Columns
from lowchurn.audit._gate import Evidence, Gate, Protected, Verdict, judge
from lowchurn.audit._inference import FIGURES, Design, Key, Slice, Tally
from lowchurn.audit._joins import Table
from lowchurn.audit._pairs import Rows
from lowchurn.audit._provenance import Provenance, versions
from lowchurn.audit._review import Review, ReviewPlan, plan_review, review_change
from lowchurn.audit._schema import version_of
from lowchurn.audit._sources import Engine, Fetched, TableLike
from lowchurn.audit._statistics import Test
from lowchurn.audit._summary import notebook, text

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Shift:
    """How probabilities moved: rows by bins of the old (rows) and the new (columns) probability."""

    quantity: str
    edges: np.ndarray
    joint: np.ndarray

    @classmethod
    def from_counts(cls, rows: Fetched, bins: int, quantity: str) -> Shift:
        """From rows of (old bin, new bin, n)."""
        joint = np.zeros((bins, bins), dtype=np.int64)
        for old, new, n in zip(rows["old"], rows["new"], rows["n"], strict=True):
            joint[int(old), int(new)] += int(n)
        return cls(quantity, np.linspace(0, 1, bins + 1), joint)


@dataclass(frozen=True)
class Coverage:
    """Which outcomes of two evaluation runs could be compared; an item has one for each repeat."""

    old: int
    new: int
    compared: int
    only_old: int
    only_new: int
    changed: int = 0
    """Items of both runs that are asked or expected otherwise: they are not the same item."""
    open: int = 0
    """Items of both runs without an outcome in one of them."""
    answers: int = 0
    """Compared items whose answers differ, right or wrong."""
    missing: tuple[str, ...] = ()
    """Old items that could not be compared."""

    def lacks(self, name: str) -> bool:
        """Whether an item, or the items of a task, could not be compared."""
        return any(name == m or m.startswith(f"{name}/") or name.startswith(f"{m}/") for m in self.missing)

    def __str__(self) -> str:
        gaps = {
            "missing in the new run": self.only_old,
            "missing in the old run": self.only_new,
            "asked or expected otherwise": self.changed,
            "without an outcome in one run": self.open,
        }
        shown = ", ".join(f"{n:,} {what}" for what, n in gaps.items() if n)
        left_out = f" Not compared, and not taken for wrong: {shown}." if shown else ""
        return f"{self.compared:,} of {self.old:,} old and {self.new:,} new outcomes are compared.{left_out}"


def _figure(name: str, meaning: str) -> cached_property[Estimate]:
    found = cached_property(lambda audit: audit.estimate(name))
    found.__doc__ = meaning
    return found


@dataclass(eq=False, repr=False)
class Audit:
    """What changed between two versions. Made by :func:`lowchurn.audit.audit`.

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

    columns: Columns
    rows: Rows
    design: Design
    tallies: dict[Key, Tally]
    cells: Fetched
    judged: tuple[Slice, ...]
    flips: list[dict[str, object]]
    """A random sample of changed rows."""
    notes: tuple[str, ...]
    seed: int
    seconds: float
    sources: tuple[str, str]
    engine: Engine
    pairs: Table
    """The judged rows of both tables, joined; not stored, so that reading them reads the tables."""
    counted: Table
    """What was counted of them, with every changed row; stored."""
    soft: dict[str, Estimate] = field(default_factory=dict)
    """``soft_churn`` and the log-loss, Brier score and calibration error before, after and their change."""
    shift: Shift | None = None
    moved: int | None = None
    """Rows whose probabilities are not the same on both sides."""
    command: str = ""
    provenance: Provenance = field(default_factory=Provenance)
    """What was audited: names, files with checksums, settings."""
    coverage: Coverage | None = None
    """Of a comparison of evaluation runs."""

    @property
    def confidence(self) -> float:
        return self.design.confidence

    @cached_property
    def whole(self) -> Tally:
        """Counts over all rows."""
        return self.tallies[-1, None]

    def estimate(self, quantity: str, confidence: float | None = None, slice: str | None = None) -> Estimate:
        """Any of the figures, at any confidence, of all rows or of a slice (``"country=DE"``)."""
        if slice is None:
            return self.design.figure(self.whole, quantity, confidence)
        found = [tally for s, tally in self._judged_tallies() if s.name == slice]
        if not found:
            raise unknown_name("audit", "slice", slice, [s.name for s in self.judged])
        if len(found) > 1:
            raise ValueError(f"audit: two slices are called {slice!r}. Rename a value of the column.")
        return self.design.figure(found[0], quantity, confidence)

    def _judged_tallies(self) -> Iterable[tuple[Slice, Tally]]:
        return zip(self.judged, list(self.tallies.values())[1:], strict=True)

    churn = _figure("churn", "Share of rows whose decision changed.")
    broken = _figure("broken", "Share of labelled rows that were right and are wrong now.")
    fixed = _figure("fixed", "Share of labelled rows that were wrong and are right now.")
    lateral = _figure("lateral", "Share of labelled rows that were wrong and are wrong in another way now.")
    accuracy_old = _figure("accuracy_old", "Share of labelled rows that the old model decided rightly.")
    accuracy_new = _figure("accuracy_new", "Share of labelled rows that the new model decides rightly.")
    accuracy_change = _figure("accuracy_change", "Accuracy after less accuracy before.")

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

    @property
    def slices(self) -> list[Slice]:
        """The slices of the ``by`` columns."""
        return [s for s in self.judged if s.column in self.columns.by]

    @property
    def drivers(self) -> list[Slice]:
        """Slices and feature bins with more flips than chance (false-discovery rate of 5 %), most excess first."""
        found = [s for s in self.judged if s.flips_q <= 0.05 and s.lift > 1]
        return sorted(found, key=lambda s: -s.excess)

    def gate(
        self, gate: Gate | Mapping[str, object] | None = None, *, review: Review | None = None, **limits: object
    ) -> Verdict:
        """Judge limits: a :class:`Gate`, a mapping as in ``lowchurn.toml``, or keywords.

        Parameters
        ----------
        gate : Gate or mapping, optional
        review : Review, optional
            What :meth:`with_labels` returned. Where rows lack labels, limits on accuracy over all rows are judged by
            its estimates, since only disagreements can change the accuracy. Slices are judged by labels alone.
        **limits
            The fields of :class:`Gate`, instead of ``gate``.
        """
        if gate is None:
            gate = Gate.from_dict(limits)
        elif limits:
            raise ValueError(f"gate: give a gate or limits, not both; got {gate!r} and {sorted(limits)}.")
        elif not isinstance(gate, Gate):
            gate = Gate.from_dict(gate)

        slices = [
            (s.column, Evidence(s.name, s.rows, partial(self.design.figure, tally), is_slice=True))
            for s, tally in self._judged_tallies()
        ]
        used = None if self.fully_labelled else review
        whole = Evidence("all rows", self.rows.paired, partial(self.design.figure, self.whole), used)
        return judge(gate, whole, slices, self.confidence, self._protected(gate.never_break))

    def _protected(self, names: Sequence[str]) -> list[Protected]:
        """The rows that must not break, by the name of their slice or by their id."""
        found = {s.name: [tally.n["labelled"], tally.n["broken"]] for s, tally in self._judged_tallies()}
        ids = [name for name in names if name not in found]
        rows = self.engine.fetch(counts.rows_by_id(self.pairs, ids)) if ids else {"name": [], "n": [], "broken": []}
        for name, n, broken in zip(rows["name"], rows["n"], rows["broken"], strict=True):
            before = found.setdefault(name, [0, 0])
            found[name] = [before[0] + int(n), before[1] + int(broken)]
        for name in ids:
            if name not in found and not (self.coverage and self.coverage.lacks(name)):
                known = [s.name for s in self.judged] or ["the ids of the audited rows"]
                raise unknown_name("gate", "slice or id to never break", name, known)
        return [Protected(name, *found.get(name, (0, 0))) for name in names]

    @property
    def fully_labelled(self) -> bool:
        """Every row has its label, so there is nothing to review."""
        return self.whole.n["labelled"] == self.rows.paired

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

    def to_dict(self, verdict: Verdict | None = None, review: Review | None = None) -> dict[str, Any]:
        """Everything as plain values, for JSON: undefined numbers are None."""
        result: dict[str, Any] = {
            "kind": "audit",
            "schema_version": version_of("audit"),
            "identical": self.identical,
            "rows": asdict(self.rows),
            "confidence": self.confidence,
            "estimates": {name: asdict(getattr(self, name)) for name in FIGURES},
            "soft": {name: asdict(value) for name, value in self.soft.items()},
            "mcnemar": asdict(self.mcnemar),
            # Infinity is a class like any other, and no number of JSON.
            "classes": [str(c) if isinstance(c, float) and math.isinf(c) else c for c in self.classes],
            "flip_matrix": self.flip_matrix.tolist(),
            "slices": [asdict(s) for s in self.slices],
            "drivers": [asdict(s) for s in self.drivers],
            "notes": list(self.notes),
            "made": self.made(),
            "provenance": asdict(self.provenance),
        }
        if self.coverage is not None:
            result |= {"coverage": asdict(self.coverage), "changed_items": self.flips}
        if verdict is not None:
            result["verdict"] = {
                "outcome": verdict.outcome,
                "exit_code": verdict.exit_code,
                "checks": [asdict(c) for c in verdict.checks],
                "unjudged": list(verdict.unjudged),
                "limits": verdict.gate.given,
            }
        if review is not None:
            result["review"] = asdict(review)
        cleaned: dict[str, Any] = plain(result)
        return cleaned

    def to_json(self, verdict: Verdict | None = None, review: Review | None = None) -> str:
        """:meth:`to_dict` as text."""
        return dumps(self.to_dict(verdict, review), indent=2) + "\n"

    def made(self) -> dict[str, object]:
        """How the figures were made: command, inputs, versions, time."""
        return {
            "command": self.command,
            "old": self.sources[0],
            "new": self.sources[1],
            "decision_old": self.columns.side("old").words(),
            "decision_new": self.columns.side("new").words(),
            "id": list(self.columns.id),
            "label": self.columns.label,
            "weight": self.columns.weight,
            "group": self.columns.group,
            "design": self.design.words(),
            "engine": self.engine.backend.name,
            "seconds": round(self.seconds, 3),
            "versions": versions(),
        }

    def __repr__(self) -> str:
        return text(self)

    def _repr_html_(self) -> str:
        return notebook(self)
