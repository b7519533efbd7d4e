"""What audits of decisions and of numbers share: where they come from, figures by slice, the gate, JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from lowchurn._checks import unknown_name
from lowchurn._estimates import Estimate
from lowchurn._json import dumps, plain
from lowchurn.audit._columns import Columns
from lowchurn.audit._gate import Evidence, Gate, Protected, Verdict, judge
from lowchurn.audit._inference import Design, Key, Slice, Tally
from lowchurn.audit._joins import Table
from lowchurn.audit._number_inference import NumberSlice, NumberTally
from lowchurn.audit._pairs import Rows
from lowchurn.audit._provenance import Provenance, versions
from lowchurn.audit._review import Review
from lowchurn.audit._rules import Rules
from lowchurn.audit._schema import version_of
from lowchurn.audit._sources import Engine, Fetched
from lowchurn.audit._summary import notebook, text

T = TypeVar("T", Tally, NumberTally)
S = TypeVar("S", Slice, NumberSlice)
Outcome: TypeAlias = "Audited[Any, Any]"  # of decisions or of numbers


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


def figure(name: str, meaning: str) -> cached_property[Estimate]:
    """A figure of an audit as an attribute."""
    found = cached_property(lambda audit: audit.estimate(name))
    found.__doc__ = meaning
    return found


@dataclass(eq=False, repr=False, kw_only=True)
class Audited(ABC, Generic[T, S]):
    """What changed between two versions."""

    kind: ClassVar[str]
    """Of the JSON, and of its schema."""
    figures: ClassVar[tuple[str, ...]]
    columns: Columns
    rows: Rows
    design: Design
    tallies: dict[Key, T]
    judged: tuple[S, ...]
    flips: list[dict[str, object]]
    """Examples of changed rows."""
    notes: tuple[str, ...]
    seed: int
    seconds: float
    sources: tuple[str, str]
    engine: Engine
    pairs: Table
    command: str = ""
    provenance: Provenance = field(default_factory=Provenance)
    """What was audited: names, files with checksums, settings."""
    coverage: Coverage | None = None
    """Of a comparison of evaluation runs."""

    @property
    def confidence(self) -> float:
        return self.design.confidence

    @cached_property
    def whole(self) -> T:
        """Counts over all rows."""
        return self.tallies[-1, None]

    @property
    @abstractmethod
    def rules(self) -> Rules:
        """What limits can be set."""

    @abstractmethod
    def _figure(self, tally: T, name: str, confidence: float | None = None) -> Estimate:
        """A figure of some rows."""

    @abstractmethod
    def _counts(self, tally: T) -> Tally:
        """Rows by kind."""

    @abstractmethod
    def _rows_by_id(self, names: Sequence[str]) -> Fetched:
        """Rows with a label, and broken ones, by their ids."""

    @property
    @abstractmethod
    def identical(self) -> bool:
        """Nothing that was compared differs."""

    def estimate(self, quantity: str, confidence: float | None = None, slice: str | None = None) -> Estimate:
        """Any of the figures, at any confidence, of all rows or of a slice (``"country=DE"``)."""
        if slice is None:
            return self._figure(self.whole, quantity, confidence)
        found = [tally for s, tally in self._judged_tallies() if s.name == slice]
        if not found:
            raise unknown_name("audit", "slice", slice, [s.name for s in self.judged])
        if len(found) > 1:
            raise ValueError(f"audit: two slices are called {slice!r}. Rename a value of the column.")
        return self._figure(found[0], quantity, confidence)

    def _judged_tallies(self) -> Iterable[tuple[S, T]]:
        return zip(self.judged, list(self.tallies.values())[1:], strict=True)

    @property
    def slices(self) -> list[S]:
        """The slices of the ``by`` columns."""
        return [s for s in self.judged if s.column in self.columns.by]

    @property
    def drivers(self) -> list[S]:
        """Slices and feature bins with more changes than chance (false-discovery rate of 5 %), most excess first."""
        found = [s for s in self.judged if s.flips_q <= 0.05 and s.lift > 1]
        return sorted(found, key=lambda s: -s.excess)

    @property
    def fully_labelled(self) -> bool:
        """Every row has its label, so there is nothing to review."""
        return self._counts(self.whole).n["labelled"] == self.rows.paired

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
            (s.column, Evidence(s.name, s.rows, partial(self._figure, tally), is_slice=True))
            for s, tally in self._judged_tallies()
        ]
        used = None if self.fully_labelled else review
        whole = Evidence("all rows", self.rows.paired, partial(self._figure, self.whole), used)
        return judge(gate, whole, slices, self.confidence, self._protected(gate.never_break), self.rules)

    def _protected(self, names: Sequence[str]) -> list[Protected]:
        """The rows that must not break, by the name of their slice or by their id."""
        found = {
            s.name: [self._counts(t).n["labelled"], self._counts(t).n["broken"]] for s, t in self._judged_tallies()
        }
        ids = [name for name in names if name not in found]
        rows = self._rows_by_id(ids) if ids else {"name": [], "n": [], "broken": []}
        for name, n, broken in zip(rows["name"], rows["n"], rows["broken"], strict=True):
            before = found.setdefault(name, [0, 0])
            found[name] = [before[0] + int(n), before[1] + int(broken)]
        for name in ids:
            if name not in found and not (self.coverage and self.coverage.lacks(name)):
                known = [s.name for s in self.judged] or ["the ids of the audited rows"]
                raise unknown_name("gate", "slice or id to never break", name, known)
        return [Protected(name, *found.get(name, (0, 0))) for name in names]

    @abstractmethod
    def _content(self) -> dict[str, Any]:
        """What only this kind of audit has, for JSON."""

    def to_dict(self, verdict: Verdict | None = None, review: Review | None = None) -> dict[str, Any]:
        """Everything as plain values, for JSON: undefined numbers are None."""
        result: dict[str, Any] = {
            "kind": self.kind,
            "schema_version": version_of(self.kind),
            "identical": self.identical,
            "rows": asdict(self.rows),
            "confidence": self.confidence,
            "estimates": {name: asdict(getattr(self, name)) for name in self.figures},
            **self._content(),
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
