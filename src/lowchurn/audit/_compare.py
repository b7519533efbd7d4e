"""Two evaluation runs compared item by item: an audit of which answers are right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lowchurn.audit._audit import audit_tables
from lowchurn.audit._audited import Coverage, Outcome
from lowchurn.audit._gate import Gate
from lowchurn.audit._number_result import NumberAudit
from lowchurn.audit._provenance import describe_files
from lowchurn.audit._result import Audit
from lowchurn.audit._runs import KEY, LONGEST_ANSWER, Choice, Run, read_chosen
from lowchurn.audit._settings import Choices, Origin, Settings
from lowchurn.audit._sources import TableLike

SHOWN = 5  # examples in a message


def compare(
    old: Run | TableLike,
    new: Run | TableLike,
    *,
    kind: str = "auto",
    task: str | Sequence[str] | None = None,
    metric: str | None = None,
    filter: str | None = None,
    by: str | Sequence[str] = (),
    threshold: float | None = None,
    tolerance: float | None = None,
    other_prompts: bool = False,
    confidence: float = 0.95,
    sample: int = 300,
    seed: int = 0,
    old_name: str | None = None,
    new_name: str | None = None,
) -> Audit | NumberAudit:
    """Compare two evaluation runs: which items were right and are wrong now, by task, with intervals.

    Items are joined by task, id and number of the repeat. The result is an audit whose decisions are ``right`` and
    ``wrong``: ``broken`` items were right and are wrong now. Where outcomes are numbers (grades, scores from 0 to 1),
    it is an audit of numbers of which more is better. Repeats of an item are one group.

    Parameters
    ----------
    old, new : Run, path or table
        What :func:`read_run` returns or reads.
    kind, task, metric, filter, by : optional
        See :func:`read_run`. A baseline decides the metric and the filter of the new run where none is given. Values of
        ``by`` are slices, as tasks are.
    threshold : float, optional
        The least number that counts as right, to make right and wrong of outcomes that are numbers.
    tolerance : float, optional
        Of outcomes that are numbers: the largest change that does not count (default 0). Where it is given, outcomes
        of 0 and 1 are compared as numbers too.
    other_prompts : bool, default False
        Compare items although their prompts differ.
    confidence, sample, seed, old_name, new_name : optional
        See :func:`audit`.

    Returns
    -------
    Audit or, of numbers, NumberAudit
        With ``coverage``: items that are missing in a run are counted and not taken for wrong.

    Examples
    --------
    >>> import pandas as pd
    >>> from lowchurn.audit import compare
    >>> old = pd.DataFrame({"id": range(6), "correct": [1, 1, 1, 1, 0, 0], "answer": list("abcdef")})
    >>> new = pd.DataFrame({"id": range(5), "correct": [1, 1, 1, 0, 1], "answer": list("abcxe")})
    >>> result = compare(old, new)
    >>> result.broken.value, result.fixed.value, result.coverage.only_old
    (0.2, 0.2, 1)
    >>> result.flips[0]
    {'kind': 'broken', 'id': '3', 'old answer': 'd', 'new answer': 'x'}
    >>> result.gate(not_worse_than=0, inconclusive="pass").exit_code
    0
    >>> old, new = old.assign(correct=[1, 1, 0.5, 0.5, 0, 0]), new.assign(correct=[1, 0.9, 0.5, 0, 0])
    >>> graded = compare(old, new, tolerance=0.2)
    >>> graded.worse.value, round(graded.loss_change.value, 3)
    (0.2, -0.12)
    """
    settings = Settings(confidence=confidence, sample=sample, seed=seed, old_name=old_name, new_name=new_name)
    chosen = Choices(kind, task, metric, filter, by, threshold, tolerance, other_prompts)
    return compare_chosen(old, new, chosen, settings, Origin("lowchurn.audit.compare(...)"))


def compare_chosen(
    old: Run | TableLike, new: Run | TableLike, chosen: Choices, settings: Settings, origin: Origin
) -> Audit | NumberAudit:
    """Read both runs and compare them; by default the new one is read with the metrics (and filters) of the old one."""
    chosen.check()
    kind, task, by = chosen.kind, chosen.task, chosen.by
    before = old if isinstance(old, Run) else read_chosen(old, kind, task, chosen.metric, chosen.filter, by)
    metric = chosen.metric or before.metrics
    filter: Choice = chosen.filter
    if before.kind == "lm-eval":  # another provider of promptfoo is what may be compared
        filter = filter or before.filters
    after = new if isinstance(new, Run) else read_chosen(new, kind, task, metric, filter, by)
    return compare_runs(before, after, chosen, settings, origin)


def compare_runs(old: Run, new: Run, chosen: Choices, settings: Settings, origin: Origin) -> Audit | NumberAudit:
    """The audit of two runs."""
    _check_tasks(old, new)
    _check_metrics(old, new)
    before, after = (run.table.to_pydict() for run in (old, new))
    pairs, coverage = _match(before, after)
    notes = [
        str(coverage),
        f"Outcomes: {new.measured}.",
        *_check_prompts(before, after, pairs, chosen.other_prompts),
        *dict.fromkeys(old.notes + new.notes),
    ]
    numbers = chosen.threshold is None and (chosen.tolerance is not None or old.graded or new.graded)
    values = [[float(run["outcome"][i]) for i in rows] for run, rows in ((before, pairs[0]), (after, pairs[1]))]
    keys = [name for name in KEY if _is_key(name, before, pairs[0])]
    slices = [*(["task"] if len({before["task"][i] for i in pairs[0]}) > 1 else []), *new.by]
    shared = {name: [before[name][i] for i in pairs[0]] for name in keys}
    of_new = {name: [after[name][j] for j in pairs[1]] for name in new.by}
    outcomes: list[list[Any]] = [*values]
    if numbers:
        columns: dict[str, Any] = {"gain": "outcome", "tolerance": chosen.tolerance or 0.0}
    else:
        columns = {"prediction": "outcome", "label": "expected"}
        of_new["expected"] = ["right"] * len(pairs[0])
        outcomes = [_words(each, chosen.threshold) for each in values]
    if "epoch" in keys:
        of_new["item"] = [item_name(before["task"][i], before["id"][i]) for i in pairs[0]]
    used = replace(
        settings,
        id=keys,
        **columns,
        by=slices,
        group="item" if "epoch" in keys else None,
        old_name=settings.old_name or old.model,
        new_name=settings.new_name or new.model,
    )
    tables = (pa.table(shared | {"outcome": outcomes[0]}), pa.table(shared | of_new | {"outcome": outcomes[1]}))
    found = audit_tables(*tables, used, origin)
    sources = [
        replace(describe_files(run.path, run.files, name), rows=len(run.table))
        for run, name in ((old, used.old_name), (new, used.new_name))
    ]
    given = {name: value for name, value in settings.given.items() if name not in ("old_name", "new_name")}
    shown = chosen.given | given | dict(origin.limits)
    made = replace(found.provenance, old=sources[0], new=sources[1], settings=shown)
    return replace(
        found,
        flips=_changed(found.flips, before, after, pairs, keys),
        notes=(*notes, *found.notes),
        sources=(old.path or "a table in memory", new.path or "a table in memory"),
        provenance=made,
        coverage=coverage,
    )


def regression_gate(audit: Outcome, limits: Mapping[str, object]) -> Gate:
    """The limits of a comparison: by default FAIL where a fall in the mean is shown, over all items or in a task."""
    if not {*limits} - {"inconclusive", "never_break"}:
        tasks = any(s.column == "task" for s in audit.slices)
        limits = {"not_worse_than": 0.0, **({"slices": {"task": {"not_worse_than": 0.0}}} if tasks else {}), **limits}
    return Gate.from_dict({"inconclusive": "pass", **limits})


def item_name(task: str | None, id: str) -> str:
    """How an item is named: by its task and id."""
    return id if task is None else f"{task}/{id}"


def _check_tasks(old: Run, new: Run) -> None:
    """Refuse runs of different tasks; a task that one of them lacks is a gap."""
    if (old.tasks or new.tasks) and not {*old.tasks} & {*new.tasks}:
        shown = [", ".join(map(repr, run.tasks[:SHOWN])) or "none" for run in (old, new)]
        raise ValueError(
            f"compare: the runs have no task in common: the old one has {shown[0]}, the new one {shown[1]}. Compare "
            "runs of the same tasks."
        )


def _check_metrics(old: Run, new: Run) -> None:
    """Refuse outcomes of different metrics."""
    if old.kind != new.kind or old.kind == "table":
        return
    for word, before, after in (("metric", old.metrics, new.metrics), ("filter", old.filters, new.filters)):
        for task in before.keys() & after.keys() if word == "metric" or old.kind == "lm-eval" else ():
            if before[task] != after[task]:
                raise ValueError(
                    f"compare: the {word} of {task!r} must be the same in both runs, got {before[task]!r} in the old "
                    f"and {after[task]!r} in the new one. Name it with {word}=."
                )


Columns = Mapping[str, list[Any]]
Pairs = tuple[list[int], list[int]]


def _match(old: Columns, new: Columns) -> tuple[Pairs, Coverage]:
    """The rows of both runs that are about the same item and have an outcome, and what is missing."""
    place = {key: j for j, key in enumerate(zip(*(new[name] for name in KEY), strict=True))}
    pairs: Pairs = ([], [])
    missing: dict[str, None] = {}
    changed = open_ = answers = 0
    for i, key in enumerate(zip(*(old[name] for name in KEY), strict=True)):
        j = place.get(key)
        if j is not None and not _differ(old["content"][i], new["content"][j]):
            if old["outcome"][i] is not None and new["outcome"][j] is not None:
                answers += _differ(*(text and text[:LONGEST_ANSWER] for text in (old["answer"][i], new["answer"][j])))
                pairs[0].append(i)
                pairs[1].append(j)
                continue
            open_ += 1
        elif j is not None:
            changed += 1
        missing[item_name(key[0], key[1])] = None
    sizes = len(old["id"]), len(new["id"])
    both = len(pairs[0]) + open_ + changed
    coverage = Coverage(
        *sizes, len(pairs[0]), sizes[0] - both, sizes[1] - both, changed, open_, answers, tuple(missing)
    )
    if not pairs[0]:
        raise ValueError(f"compare: the runs have no item in common that both have an outcome for. {coverage}")
    return pairs, coverage


def _differ(a: object, b: object) -> bool:
    """Both are known and not the same."""
    return a is not None and b is not None and a != b


def _check_prompts(old: Columns, new: Columns, pairs: Pairs, allowed: bool) -> list[str]:
    differ = [i for i, j in zip(*pairs, strict=True) if _differ(old["prompt_hash"][i], new["prompt_hash"][j])]
    if not differ:
        return []
    state = f"{len(differ):,} of {len(pairs[0]):,} items were asked with other prompts"
    if allowed:
        return [f"{state}: what changed may be the prompt and not the model."]
    shown = ", ".join(repr(item_name(old["task"][i], old["id"][i])) for i in differ[:SHOWN])
    raise ValueError(
        f"compare: {state}, such as {shown}. Run both with the same examples, templates and version of the task; if "
        "the prompt is what you compare, use other_prompts=True."
    )


def _words(values: Iterable[float], threshold: float | None) -> list[str]:
    """Outcomes as right and wrong."""
    least = 1.0 if threshold is None else threshold
    return ["right" if value >= least else "wrong" for value in values]


def _is_key(name: str, run: Columns, rows: Iterable[int]) -> bool:
    """Whether a column tells items apart; tasks and repeats may not be there."""
    if name == "epoch":
        return any(run["epoch"][i] != 1 for i in rows)
    return name == "id" or any(task is not None for task in run["task"])


def _changed(
    flips: Iterable[Mapping[str, object]], old: Columns, new: Columns, pairs: Pairs, keys: Sequence[str]
) -> list[dict[str, object]]:
    """Changed items with both answers side by side, the broken ones first."""
    place = {tuple(old[name][i] for name in keys): (i, j) for i, j in zip(*pairs, strict=True)}
    found: list[dict[str, object]] = []
    for flip in flips:
        i, j = place[tuple(flip[name] for name in keys)]
        numbers = "move" in flip  # these are in the order of their size, and an outcome is its own gain
        row: dict[str, object] = {"kind": flip["kind"] if numbers else "broken" if flip["old"] == "right" else "fixed"}
        row |= {name: flip[name] for name in (*keys, *(("old", "new", "move") if numbers else ()))}
        texts = {"expected": new["target"][j], "old answer": old["answer"][i], "new answer": new["answer"][j]}
        row |= {name: text[:LONGEST_ANSWER] for name, text in texts.items() if text is not None}
        ours = (*keys, "kind", "old", "new", "label", "old loss", "new loss", "move")
        found.append(row | {name: value for name, value in flip.items() if name not in ours})
    if any("move" in flip for flip in found):
        return found
    return sorted(found, key=lambda flip: (str(flip["kind"]), *(_natural(flip[name]) for name in keys)))


def _natural(value: object) -> tuple[int, int, str]:
    """Whole numbers in their order, then words."""
    text = str(value)
    return (0, int(text), "") if text.isascii() and text.isdigit() else (1, 0, text)
