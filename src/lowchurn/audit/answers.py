"""Bring answers back: join filled-in labels to the disagreements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lowchurn.audit import counts
from lowchurn.audit.columns import Columns, as_names
from lowchurn.audit.sources import Engine, kinds
from lowchurn.checks import unknown_name


@dataclass(frozen=True)
class Answers:
    """Of each answered disagreement, whether it was fixed (+1), broken (-1) or wrong both ways (0)."""

    outcomes: np.ndarray
    weights: np.ndarray
    agreeing: int


def read_answers(engine: Engine, pairs: Any, columns: Columns, table: Any, label: str) -> Answers:
    """Join answers to the rows that they speak of; unknown and repeated ids are refused."""
    with engine.errors():
        return _read(engine, pairs, columns, table, label)


def _read(engine: Engine, pairs: Any, columns: Columns, table: Any, label: str) -> Answers:
    answers = engine.read("answers", table)
    present = kinds(answers)
    for name in (*columns.id, *as_names("label", label)):
        if name not in present:
            raise unknown_name("with_labels", "column", name, present)
    chosen = {f"k{i}": answers[name] for i, name in enumerate(columns.id)}
    given = answers.select(**chosen, answer=answers[label].cast("string"))
    given = given.filter(given.answer.notnull() & (given.answer.strip() != ""))
    keys = counts.key_names(given)
    for key in keys:
        if kinds(given)[key] != kinds(pairs)[key]:
            given = given.mutate(**{key: given[key].cast(pairs[key].type())})
    repeated = engine.fetch(counts.repeated_ids(given).limit(5))
    if repeated["k0"]:
        raise ValueError(f"with_labels: each id must come once, repeated are {repeated['k0']}.")
    unknown = counts.only_in(given, pairs)
    lost = int(engine.fetch(unknown.aggregate(n=unknown.count()))["n"][0])
    if lost:
        some = engine.fetch(unknown.limit(5))["k0"]
        raise ValueError(f"with_labels: {lost:,} answered ids are not among the audited rows, such as {some}.")
    both = given.join(pairs, keys, how="inner")
    wanted = {"old": both.old, "new": both.new, "answer": both.answer}
    if "w" in pairs.columns:
        wanted["w"] = both.w
    found = engine.fetch(both.select(**wanted))
    outcomes, weights, agreeing = [], [], 0
    read = _reader(columns.answer)
    for i, answer in enumerate(found["answer"]):
        if found["old"][i] == found["new"][i]:
            agreeing += 1
            continue
        truth = read(answer)
        outcomes.append(1.0 if found["new"][i] == truth else -1.0 if found["old"][i] == truth else 0.0)
        weights.append(float(found["w"][i]) if "w" in found else 1.0)
    return Answers(np.asarray(outcomes), np.asarray(weights), agreeing)


def _reader(answer: str) -> Any:
    """A label typed by a person (1, 1.0, "true") as the type of the decisions."""

    def number(text: str) -> float:
        try:
            return float({"true": "1", "false": "0"}.get(text.strip().lower(), text))
        except ValueError:
            raise ValueError(f"with_labels: labels must be {answer} as the decisions are, got {text!r}.") from None

    if answer in {"int64", "float64"}:
        return number
    return (lambda text: bool(number(text))) if answer == "boolean" else str.strip
