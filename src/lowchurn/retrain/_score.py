"""What ``lowchurn score`` does: decide the rows of a file in batches, beside what was decided for them last time."""

from __future__ import annotations

import contextlib
import csv
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowchurn._files import PathLike, check_outputs, drafted, is_stream, scratch_folder
from lowchurn._terminal import one_line
from lowchurn.estimator import LowChurnClassifier, load
from lowchurn.estimator._labels import missing_labels, positions
from lowchurn.estimator._production import feature_names, model_of_file
from lowchurn.estimator._serving import Answers
from lowchurn.retrain._columns import Words, as_fitted, choose_features, text_columns
from lowchurn.retrain._ids import Ids, id_texts
from lowchurn.retrain._kinds import Kind
from lowchurn.retrain._labels import classes_from_text
from lowchurn.retrain._tables import Table, batches, open_rows
from lowchurn.theory import Margin

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

WHO = "score"
BATCH_ROWS = 1 << 16
OUTPUTS = ("decision", "probability", "changed", "margin")
IDS = "column of ids (--id)"
UNKNOWN = -1  # the number of an id without a previous decision


@dataclass(frozen=True)
class Scored:
    """How many rows were decided; of these, how many were compared with a decision before, and how many changed.

    ``unknown`` are the rows whose ids are not among the previous decisions; None where no previous ones were given.
    """

    rows: int
    compared: int
    changed: int
    unknown: int | None


@dataclass(frozen=True)
class Previous:
    """Which column of which file contains the decisions of last time."""

    path: PathLike
    decision: str = "decision"


def score_file(
    model: PathLike,
    data: PathLike,
    out: PathLike,
    previous: Previous | None = None,
    key: str = "id",
    drop: Sequence[str] = (),
    trusted: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    keep: Sequence[str] = (),
) -> Scored:
    """Decide the rows of a file and write id, decision, probability, changed, margin and what to keep of the rows."""
    check_outputs(
        WHO, {"out=": out}, {"model=": model, "data=": data, "previous=": None if previous is None else previous.path}
    )
    as_csv = _writes_csv(out)
    if key in OUTPUTS:
        raise ValueError(f"{WHO}: id must be another column than those that are written, got {key!r}. Rename it.")
    keep = list(dict.fromkeys(keep))
    if wrong := [name for name in keep if name in (key, *OUTPUTS)]:
        raise ValueError(f"{WHO}: keep must name other columns than those that are written anyway, got {wrong[0]!r}.")
    judge = Judge.of_file(Path(model), trusted, classes)
    rows = open_rows(data, Words(WHO, "the model"))
    rows.check_known([key], IDS)
    rows.check_known([*drop, *keep])
    own = feature_names(judge.model, rows.names) or ()
    taken = {*drop, *({key, *keep} - {*own})}  # the id, or what is kept, may be a feature as well
    features = choose_features(judge.model, rows.names, taken, rows.index, words=rows.words).features
    with scratch_folder() as folder, Ids(folder / "ids") as ids:
        kinds = _look_through(rows, features, text_columns(judge.model), key, ids)
        if not len(judge.classes):
            judge.find_classes(next(batches(rows, features, BATCH_ROWS)).features(features, kinds=kinds))
        labels = None if previous is None else _read_previous(previous, key, judge.classes, ids)
        found = ids.joined()
        with drafted(out) as draft, _writer(draft, _schema(rows, key, judge.classes, keep), as_csv) as write:
            total = np.zeros(4, dtype=np.int64)
            for batch in batches(rows, list(dict.fromkeys([key, *keep, *features])), BATCH_ROWS):
                before = None if labels is None else labels[found.numbers(id_texts(batch, key), UNKNOWN)]
                answers = judge.answers(batch.features(features, kinds=kinds), before)
                kept = [_plain(batch.table[name]) for name in keep]
                write([*_decided(batch.table[key], answers, judge.classes), *kept])
                total += _counts(answers, before)
    counted = Scored(*map(int, total))
    return counted if previous is not None else Scored(counted.rows, counted.compared, counted.changed, None)


class Judge:
    """A model that decides batches: a LowChurnClassifier, or another classifier with names for its classes."""

    def __init__(self, model: Any, path: str, classes: np.ndarray | None = None) -> None:
        lacks = [name for name in ("predict", "predict_proba") if not hasattr(model, name)]
        if lacks:
            raise ValueError(
                f"{WHO}: model must be the file of a fitted classifier with probabilities, and {path!r} contains a "
                f"{type(model).__name__} without {lacks[0]}."
            )
        self.model = model
        self.path = path
        self.classes = np.asarray(getattr(model, "classes_", ())) if classes is None else classes

    @classmethod
    def of_file(cls, path: Path, trusted: Sequence[str], classes: Sequence[str] | None) -> Judge:
        """The model of a file of any kind; ``classes`` are its classes in order where its file has no names of them."""
        labels = None if classes is None else classes_from_text(f"{WHO}: classes", list(classes))
        if labels is not None and len(np.unique(labels)) < len(labels):
            raise ValueError(f"{WHO}: classes must be different, got classes={list(classes or ())[:10]}.")
        model = model_of_file(path, functools.partial(load, trusted=trusted), labels)
        own = getattr(model, "classes_", None)
        if labels is not None and own is not None and list(map(str, own)) != list(map(str, labels)):
            raise ValueError(
                f"{WHO}: {str(path)!r} has the classes {np.asarray(own).tolist()[:10]}, got classes="
                f"{list(classes or ())[:10]}. Leave them out."
            )
        return cls(model, str(path), labels if own is None else None)

    def find_classes(self, X: pd.DataFrame) -> None:
        """Take the classes of a model that gives them with its answers only, as some ONNX files do."""
        self._asked(lambda rows: self.model.predict_proba(rows), X)
        self.classes = np.asarray(getattr(self.model, "classes_", ()))
        if not len(self.classes):
            raise ValueError(
                f"{WHO}: the file of the model, {self.path!r}, has no names of its classes. Give them with classes=, "
                "in the order of its outputs."
            )

    def answers(self, X: pd.DataFrame, before: np.ndarray | None) -> Answers:
        """What is decided, what was decided before, and the gain of a change."""
        if isinstance(self.model, LowChurnClassifier):
            served = self.model._served
            return self._asked(lambda rows: served.answers(rows, before), X)
        proba, decided = self._asked(lambda rows: (self.model.predict_proba(rows), self.model.predict(rows)), X)
        return self._plain(np.asarray(proba), np.asarray(decided), before)

    def _asked(self, ask: Callable[[Any], Any], X: pd.DataFrame) -> Any:
        """What the model answers; that it cannot predict such rows is an error of these rows."""
        try:
            return ask(as_fitted(self.model, X))
        except (TypeError, ValueError) as error:
            if str(error).startswith("LowChurnClassifier: "):  # worded there
                raise ValueError(str(error)) from error
            raise ValueError(
                f"{WHO}: the model cannot predict these rows ({type(error).__name__}: {one_line(error)}). Their "
                "columns must be of the types that it was fitted on."
            ) from error

    def _plain(self, proba: np.ndarray, labels: np.ndarray, before: np.ndarray | None) -> Answers:
        """The answers of a model that keeps nothing."""
        if proba.ndim != 2 or proba.shape[1] != len(self.classes) or proba.dtype.kind != "f":
            got = f"{proba.shape[1]} columns" if proba.ndim == 2 else "none"
            raise ValueError(
                f"{WHO}: the model must give a probability for each of its {len(self.classes)} classes, got {got}."
            )
        # A file without labels decides for its largest probability.
        decided = labels.argmax(axis=1) if labels.shape == proba.shape else positions(labels.ravel(), self.classes)
        if (decided < 0).any():
            raise ValueError(
                f"{WHO}: the model decides for {labels.ravel()[decided < 0][0]!r}, which is none of the classes "
                f"{self.classes.tolist()[:5]}. Give classes= as it decides."
            )
        given = np.full(len(proba), None) if before is None else before
        kept = positions(given, self.classes)
        estimate = proba.astype(float)
        return Answers(decided, estimate, kept, ~missing_labels(given), Margin().gain(estimate, kept))


def _look_through(rows: Table, features: Sequence[str], text: set[str], key: str, ids: Ids) -> Mapping[str, Kind]:
    """Read all rows once: the kinds of their columns, which a batch alone does not tell, and whether ids are unique."""
    seen = rows.unseen(features, text)
    count = 0
    for batch in batches(rows, list(dict.fromkeys([key, *features])), BATCH_ROWS):
        for name in features:
            seen[name].see(batch.table[name])
        ids.add_rows(id_texts(batch, key))
        count += batch.table.num_rows
    if not count:
        raise ValueError(f"{WHO}: {str(rows.path)!r} has no rows.")
    ids.check_rows(f"{WHO}: the ids {key!r} of {str(rows.path)!r}")
    for name in features:
        seen[name].warn_of_typos(WHO, name)
    return {name: seen[name].kind for name in features}


def _read_previous(previous: Previous, key: str, classes: np.ndarray, ids: Ids) -> np.ndarray:
    """Read the decisions of last time; return the labels that the numbers of the ids stand for, the last one None."""
    table = open_rows(previous.path, Words(WHO, "the model", "previous"))
    table.check_known([key], IDS)
    table.check_known([previous.decision])
    places: dict[Any, int] = {}
    for batch in batches(table, list(dict.fromkeys([key, previous.decision])), BATCH_ROWS):
        labels = batch.classes(previous.decision, classes, f"in {str(previous.path)!r}, the decision")
        ids.add_previous(id_texts(batch, key), [places.setdefault(label, len(places)) for label in labels.tolist()])
    ids.check_previous(f"{WHO}: the ids {key!r} of {str(previous.path)!r}")
    found = np.empty(len(places) + 1, dtype=object)
    found[: len(places)] = list(places)
    if places and (positions(found[:-1], classes) < 0).all():
        shown = ", ".join(map(repr, classes.tolist()[:5]))
        raise ValueError(
            f"{WHO}: none of the decisions {previous.decision!r} of {str(previous.path)!r} is a class of the model "
            f"({shown}), such as {found[0]!r}. Name their column with previous_decision=."
        )
    return found


def _counts(answers: Answers, before: np.ndarray | None) -> list[int]:
    compared = answers.known
    unknown = 0 if before is None else sum(label is None for label in before.tolist())
    changed = compared & (answers.decided != answers.kept)
    return [len(compared), int(compared.sum()), int(changed.sum()), unknown]


def _decided(key: pa.ChunkedArray, answers: Answers, classes: np.ndarray) -> list[pa.Array]:
    """The columns of a batch: undefined is null where there is no decision to compare with."""
    import pyarrow as pa

    unknown, decided = ~answers.known, answers.decided
    return [
        _plain(key),
        pa.array(classes.tolist()).take(pa.array(decided)),
        pa.array(answers.proba[np.arange(len(decided)), decided].astype(np.float64)),
        pa.array(decided != answers.kept, mask=unknown),
        pa.array(answers.gain.astype(np.float64), mask=unknown),
    ]


def _type_of_values(kind: pa.DataType) -> pa.DataType:
    return getattr(kind, "value_type", kind)  # of text that is written as categories


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(_type_of_values(column.type))


def _schema(rows: Table, key: str, classes: np.ndarray, keep: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    kinds = (pa.array(classes.tolist()).type, pa.float64(), pa.bool_(), pa.float64())
    first, *kept = ((name, _type_of_values(rows.table.schema.field(name).type)) for name in (key, *keep))
    return pa.schema([first, *zip(OUTPUTS, kinds, strict=True), *kept])


def _writes_csv(out: PathLike) -> bool:
    suffix = Path(out).suffix.lower()
    if suffix not in (".csv", ".parquet") and not is_stream(out):
        raise ValueError(f"{WHO}: out must be a .csv or .parquet file, got {str(out)!r}.")
    return suffix != ".parquet"


@contextlib.contextmanager
def _writer(draft: Path, schema: pa.Schema, as_csv: bool) -> Iterator[Callable[[list[pa.Array]], None]]:
    """Write columns, batch after batch, as Parquet or CSV; missing values of CSV are empty."""
    import pyarrow as pa
    import pyarrow.parquet

    if not as_csv:
        with pyarrow.parquet.ParquetWriter(draft, schema) as file:
            yield lambda columns: file.write_table(pa.table(columns, schema=schema))
        return
    with draft.open("w", encoding="utf-8", newline="") as text:
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(schema.names)
        yield lambda columns: lines.writerows(zip(*(column.to_pylist() for column in columns), strict=True))
