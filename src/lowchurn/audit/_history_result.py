"""The history of releases: figures with their intervals, and what can be asked of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lowchurn._checks import unknown_name
from lowchurn._estimates import Estimate
from lowchurn._json import dumps, plain
from lowchurn.audit._history_summary import notebook, text
from lowchurn.audit._inference import Design, Slice
from lowchurn.audit._provenance import Source
from lowchurn.audit._schema import version_of

FIGURES = ("churn", "broken", "fixed", "accuracy_change")


@dataclass(frozen=True)
class Release:
    """One release."""

    source: Source
    """Its name, file, checksum and rows."""
    table: str
    """What was given: a path, or a kind of table."""
    left_out: int
    """Rows that were not judged: not in all releases, repeated, without a decision, or of weight 0."""
    accuracy: Estimate
    back: Estimate
    """Share of rows whose decision changed in this release to one that an earlier release had made."""

    @property
    def name(self) -> str:
        return self.source.name or ""


@dataclass(frozen=True)
class Change:
    """What changed between two releases."""

    churn: Estimate
    broken: Estimate
    fixed: Estimate
    accuracy_change: Estimate
    p_value: float
    """Of the change in accuracy (McNemar)."""
    q_value: float = math.nan
    """Of two neighbours: the same with the false-discovery rate held over all neighbours."""


@dataclass(frozen=True)
class Drift:
    """A slice over the releases."""

    change: Slice
    """From the first release to the last."""
    beyond: Estimate
    """The change in accuracy from the first release to the last, less that of the other rows."""
    drifts: bool
    """The accuracy changed (false-discovery rate of 5 %), and by more than that of the other rows (on an interval
    widened for the number of slices); without labels, more decisions changed than elsewhere."""
    accuracy: tuple[Estimate, ...]
    """Of each release."""
    churn: tuple[Estimate, ...]
    """From the release before to each release; of the first one 0."""
    since_first: tuple[Estimate, ...]
    """From the first release to each release."""


@dataclass(frozen=True)
class Restless:
    """A row whose decision changed, with all of its decisions."""

    id: Mapping[str, object]
    slices: Mapping[str, object]
    label: object
    decisions: tuple[object, ...]
    changes: int
    back: int
    """Changes to a decision that an earlier release had made."""

    def to_dict(self) -> dict[str, object]:
        """Plain values; infinity is a class like any other, and no number of JSON."""
        label, *decisions = (
            str(v) if isinstance(v, float) and math.isinf(v) else v for v in (self.label, *self.decisions)
        )
        return asdict(self) | {"label": label, "decisions": decisions}


@dataclass(eq=False, repr=False)
class History:
    """What changed from release to release. Made by :func:`lowchurn.audit.history`.

    Examples
    --------
    >>> import pandas as pd
    >>> from lowchurn.audit import history
    >>> rows = pd.DataFrame({"id": range(4), "y": ["a", "b", "b", "b"]})
    >>> answers = ("aabb", "abbb", "aabb")
    >>> found = history([rows.assign(prediction=list(some)) for some in answers], label="y", names=["v1", "v2", "v3"])
    >>> [step.churn.value for step in found.steps], found.back.value
    ([0.25, 0.25], 0.25)
    >>> print(found)
    3 releases on 4 rows, v1 to v3: 0.00 % (0.00 to 60.24) of decisions differ between the first and the last; ...
    """

    releases: tuple[Release, ...]
    pairs: dict[tuple[int, int], Change]
    """What changed between any two releases, by their positions."""
    rows: int
    """Rows that all releases decided."""
    labelled: int
    by_changes: dict[int, int]
    """Rows by how often their decision changed."""
    back: Estimate
    """Share of rows with at least one change to a decision that an earlier release had made."""
    restless: tuple[Restless, ...]
    """The rows that changed most often."""
    slices: tuple[Drift, ...]
    notes: tuple[str, ...]
    design: Design
    made: dict[str, Any]
    """How the figures were made: command, columns, settings, versions, time."""

    @property
    def names(self) -> list[str]:
        return [release.name for release in self.releases]

    @property
    def steps(self) -> list[Change]:
        """From each release to the next."""
        return [self.pairs[i, i + 1] for i in range(len(self.releases) - 1)]

    @property
    def since_first(self) -> list[Change]:
        """From the first release to each later one."""
        return [self.pairs[0, i] for i in range(1, len(self.releases))]

    @property
    def drifting(self) -> list[Drift]:
        """The slices that drift, those that lost most against the other rows (or changed most) first."""

        def order(drift: Drift) -> float:
            return drift.beyond.value if drift.beyond.defined else -drift.change.excess

        return sorted((drift for drift in self.slices if drift.drifts), key=order)

    def between(self, old: str | int, new: str | int) -> Change:
        """What changed between two releases, given by their names or positions; the older one first."""
        i, j = self._position(old), self._position(new)
        if i >= j:
            raise ValueError(f"history: name the older release first, got {old!r} and {new!r}.")
        return self.pairs[i, j]

    def _position(self, release: str | int) -> int:
        if isinstance(release, str):
            if release not in self.names:
                raise unknown_name("history", "release", release, self.names)
            return self.names.index(release)
        size = len(self.releases)
        if not -size <= release < size:
            raise ValueError(f"history: a position must be in [{-size}, {size - 1}], got {release}.")
        return release % size

    def triangle(self, figure: str = "churn") -> np.ndarray:
        """A figure of all pairs, by the older (row) and the newer release (column); NaN below the diagonal.

        ``figure`` is ``"churn"``, ``"broken"``, ``"fixed"`` or ``"accuracy_change"``.
        """
        if figure not in FIGURES:
            raise unknown_name("history", "figure", figure, FIGURES)
        found = np.full((len(self.releases),) * 2, np.nan)
        np.fill_diagonal(found, 0.0)
        for place, change in self.pairs.items():
            found[place] = getattr(change, figure).value
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON: undefined numbers are None."""
        result = {
            "kind": "history",
            "schema_version": version_of("history"),
            "confidence": self.design.confidence,
            "rows": {"judged": self.rows, "labelled": self.labelled},
            "releases": [
                {
                    **asdict(release.source),
                    "table": release.table,
                    "left_out": release.left_out,
                    "accuracy": asdict(release.accuracy),
                    "back": asdict(release.back),
                }
                for release in self.releases
            ],
            "pairs": [{"old": i, "new": j, **asdict(change)} for (i, j), change in self.pairs.items()],
            "by_changes": [{"changes": changes, "rows": n} for changes, n in self.by_changes.items()],
            "back": asdict(self.back),
            "restless": [row.to_dict() for row in self.restless],
            "slices": [
                {
                    **asdict(drift.change),
                    "beyond": asdict(drift.beyond),
                    "drifts": drift.drifts,
                    "releases": {name: _columns(getattr(drift, name)) for name in ("accuracy", "churn", "since_first")},
                }
                for drift in self.slices
            ],
            "notes": list(self.notes),
            "made": self.made,
        }
        cleaned: dict[str, Any] = plain(result)
        return cleaned

    def to_json(self) -> str:
        """:meth:`to_dict` as text."""
        return dumps(self.to_dict(), indent=2) + "\n"

    def __repr__(self) -> str:
        return text(self)

    def _repr_html_(self) -> str:
        return notebook(self)


def _columns(estimates: Sequence[Estimate]) -> dict[str, list[float]]:
    """A series of estimates, one list for each of their numbers."""
    return {name: [getattr(estimate, name) for estimate in estimates] for name in ("value", "low", "high", "n")}
