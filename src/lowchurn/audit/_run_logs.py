"""Logs of evaluation runs, each kind read as attempts: one answer to one item, with its scores."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from lowchurn._checks import unknown_name
from lowchurn._extras import importing
from lowchurn._reading import read_json
from lowchurn._terminal import one_line
from lowchurn.audit._settings import Settings
from lowchurn.audit._sources import Engine, TableLike

LONGEST_ID = 200
SHOWN = 5  # names in a message
# Names of the columns of a table, in the order in which they are looked for.
OUTCOMES = ("outcome", "correct", "right", "passed", "success", "score")
ANSWERS = ("answer", "output", "response", "prediction")
EPOCHS = ("epoch", "repeat")
_SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
_LM_EVAL_KEYS = {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"}
_LM_EVAL_KEYS |= {"doc_hash", "prompt_hash", "target_hash"}
ABOUT = b"lowchurn_run"  # key of the metadata of a baseline
PROMPTFOO_ERROR = 2  # the failureReason of an item that was never answered


class Attempt(NamedTuple):
    """One answer to one item, as a log contains it."""

    where: str
    """How an error names it: ``line 3 of 'samples.jsonl'``."""
    task: str | None
    id: str
    scores: Mapping[str, object]
    """Values by metric, the metric that counts by default first; without the metrics that are better when lower."""
    variant: str | None = None
    """The filter of lm-eval or the provider of promptfoo: an item has one attempt for each."""
    epoch: int | None = 1
    """Number of the repeat; None where repeats are counted in the order of the log."""
    answer: str | None = None
    target: str | None = None
    prompt: str | None = None
    """Hash of the prompt."""
    content: str | None = None
    """Hash of what is asked and expected: items with the same id and another content are two items."""
    fields: Mapping[str, object] = {}
    """Further values, for slices."""


@dataclass(frozen=True)
class About:
    """What a baseline contains about the run that it was made of; pairs of a task and its metric or filter."""

    format: int
    kind: str
    model: str | None
    metrics: list[tuple[str | None, str]]
    filters: list[tuple[str | None, str]]


@dataclass(frozen=True)
class Log:
    """The attempts of a run."""

    attempts: Iterable[Attempt]
    files: Sequence[Path] = ()
    model: str | None = None
    about: About | None = None
    """Of a baseline."""
    metric_needed: bool = False
    """No metric counts by default: it has to be named."""
    variant_needed: bool = False
    """Of several variants none counts by default."""
    metric_noted: bool = True
    """Where a metric counts by default, a note names the others."""
    tasks_if_several: bool = False
    """A single task is none."""


def find_kind(path: str) -> str:
    """The kind of a log, by its name or by what is in it."""
    if os.path.isdir(path):
        for kind, pattern in (("lm-eval", "samples_*.jsonl"), ("inspect", "*.eval"), ("inspect", "*_*_*.json")):
            if next(Path(path).rglob(pattern), None) is not None:
                return kind
        raise ValueError(
            f"read_run: the folder {path!r} has no log of a run: no samples_<task>_<date>.jsonl of lm-eval (written "
            "with --log_samples) and no .eval file of Inspect. Give the file itself, or name its kind with kind=."
        )
    lower = path.lower()
    if lower.endswith(".eval"):
        return "inspect"
    if not lower.endswith((".json", ".jsonl", ".ndjson")):
        return "table"
    first = next(_records(path), (0, {}))[1] if not lower.endswith(".json") else _document(path)
    if isinstance(first, Mapping) and "eval" in first and "version" in first:
        return "inspect"
    return _kind_of_record(next(iter(_promptfoo_records(path, first)), {}) if lower.endswith(".json") else first)


def _kind_of_record(record: object) -> str:
    keys = set(record) if isinstance(record, Mapping) else set()
    if {"doc_id", "resps"} <= keys:
        return "lm-eval"
    return "promptfoo" if {"promptIdx", "success"} <= keys else "table"


def lm_eval(path: str, metric: str | None) -> Log:
    """Sample logs of lm-evaluation-harness: a file, or a folder with the newest file of each task."""
    files = _newest_samples(path) if os.path.isdir(path) else {_task_of(path): Path(path)}
    results = {task: _results_beside(file) for task, file in files.items()}

    def attempts() -> Iterator[Attempt]:
        for task, file in files.items():
            better = results[task].get("higher_is_better", {}).get(task, {})
            for line, record in _records(str(file)):
                yield _made(_lm_eval_attempt, f"line {line:,} of {file.name!r}", record, task, better, metric)

    models = [str(found["model_name"]) for found in results.values() if found.get("model_name")]
    return Log(attempts(), list(files.values()), models[0] if models else None)


def _newest_samples(folder: str) -> dict[str, Path]:
    """The newest file of each task."""
    found = sorted(file for file in Path(folder).rglob("samples_*.jsonl") if _SAMPLES.fullmatch(file.name))
    places = sorted({file.parent for file in found})
    if len(places) != 1:
        shown = ", ".join(repr(str(place)) for place in places[:SHOWN]) or "none"
        raise ValueError(f"read_run: {folder!r} must contain the samples of one model, got those of {shown}. Give one.")
    dated = {(m["task"], m["date"]): file for file in found if (m := _SAMPLES.fullmatch(file.name))}
    return {task: dated[task, date] for task, date in sorted(dated)}  # a later date replaces an earlier one


def _task_of(path: str) -> str:
    named = _SAMPLES.fullmatch(os.path.basename(path))
    return named["task"] if named else Path(path).stem


def _results_beside(file: Path) -> dict[str, Any]:
    """The results that lm-eval wrote with the samples, where they are there."""
    named = _SAMPLES.fullmatch(file.name)
    results = file.with_name(f"results_{named['date']}.json") if named else file
    found = _document(str(results)) if named and results.is_file() else {}
    return found if isinstance(found, dict) else {}


def _lm_eval_attempt(
    where: str, record: Mapping[str, Any], task: str, better: Mapping[str, object], metric: str | None
) -> Attempt:
    names = record.get("metrics") or [name for name in record if name not in _LM_EVAL_KEYS]
    arguments = _lm_eval_arguments(record.get("arguments"))
    prompt = record.get("prompt_hash") or (_hash(arguments[0][0]) if arguments and arguments[0] else None)
    answer, target = _lm_eval_answer(record, arguments, metric or str(next(iter(names), "")))
    return Attempt(
        where,
        task,
        id_text(record["doc_id"]),
        {name: record.get(name) for name in names if better.get(name) is not False},
        text_of(record.get("filter")),
        answer=answer,
        target=target,
        prompt=text_of(prompt and str(prompt)[:16]),
        content=_hash(record.get("doc_hash") or record.get("doc"), record.get("target_hash") or record.get("target")),
        fields=_short(record.get("doc")),
    )


def _lm_eval_arguments(arguments: Any) -> list[list[Any]]:
    """The arguments of each request: written as ``{"gen_args_0": {"arg_0": ...}}``, by old versions as lists."""
    requests = list(arguments.values()) if isinstance(arguments, dict) else list(arguments or [])
    return [list(request.values()) if isinstance(request, dict) else list(request) for request in requests]


def _lm_eval_answer(
    record: Mapping[str, Any], arguments: list[list[Any]], metric: str
) -> tuple[str | None, str | None]:
    """The text that was generated and the expected one; of several choices the likeliest and the right one."""
    target, answers = text_of(record.get("target")), record.get("resps") or record.get("filtered_resps")
    try:
        choices = [str(text_of(request[1])).strip() for request in arguments]
        scores = [float(pair[0]) for pair in record["filtered_resps"]]
        if len(scores) < 2 or len(scores) != len(choices):
            raise ValueError
    except (LookupError, TypeError, ValueError, OverflowError):
        while isinstance(answers, list) and len(answers) == 1:
            answers = answers[0]
        return text_of(answers), target
    sizes = [max(len(choice), 1) if metric == "acc_norm" else 1 for choice in choices]
    if target is not None and target.isdigit() and int(target) < len(choices) and target not in choices:
        target = choices[int(target)]  # a number among choices is its position
    return choices[max(range(len(scores)), key=lambda i: scores[i] / sizes[i])], target


def inspect_log(path: str, metric: str | None) -> Log:
    """Logs of Inspect, through its own data frames: a file, or a folder with the newest log of each task."""
    with importing("read_run", "inspect"):
        from inspect_ai import analysis
    wanted = {"task_name", "model", "created", "score_headline_name"}
    columns = [*analysis.EvalInfo, *analysis.EvalTask, *analysis.EvalModel, *getattr(analysis, "EvalResults", ())]
    columns = [column for column in columns if column.name in wanted]
    columns += [*analysis.SampleSummary, analysis.SampleColumn("answer", path="output.completion")]
    known = inspect.signature(analysis.samples_df).parameters
    unread = {"exclude_fields": {"messages", "events", "store"}} if "exclude_fields" in known else {}
    try:
        frame = analysis.samples_df(path, columns=columns, quiet=True, **unread)
        rows = pa.Table.from_pandas(frame, preserve_index=False).to_pylist()
    except Exception as error:
        raise ValueError(f"read_run: Inspect cannot read {path!r}: {one_line(error)}.") from None
    models = sorted({str(row["model"]) for row in rows})
    if len(models) > 1:
        raise ValueError(
            f"read_run: {path!r} must contain the logs of one model, got {', '.join(models)}. Give one log."
        )
    newest: dict[str, tuple[str, str]] = {}
    for row in rows:
        newest[row["task_name"]] = max(newest.get(row["task_name"], ("", "")), (str(row["created"]), row["log"]))
    kept = [row for row in rows if row["log"] == newest[row["task_name"]][1]]
    files = sorted({Path(row["log"]) for row in kept})
    attempts = [
        _made(_inspect_attempt, f"sample {row['id']!r} of {os.path.basename(row['log'])!r}", row) for row in kept
    ]
    return Log(attempts, [file for file in files if file.is_file()], models[0] if models else None)


def _inspect_attempt(where: str, row: Mapping[str, Any]) -> Attempt:
    scores = {name.removeprefix("score_"): value for name, value in row.items() if name.startswith("score_")}
    headline = scores.pop("headline_name", None)
    scores = {name: value for name, value in scores.items() if value is not None}
    for name, value in list(scores.items()):
        if isinstance(value, str) and value.startswith("{"):  # a score with several values
            del scores[name]
            scores |= {f"{name}.{part}": number for part, number in json.loads(value).items()}
    if headline in scores:
        scores = {headline: scores[headline]} | scores
    return Attempt(
        where,
        row["task_name"],
        id_text(row["id"]),
        scores,
        epoch=int(row["epoch"]),
        answer=text_of(row["answer"]),
        target=text_of(row["target"]),
        prompt=_hash(row["input"]),
        content=_hash(row["target"]),
        fields=_short({k.removeprefix("metadata_"): value for k, value in row.items() if k.startswith("metadata_")}),
    )


def promptfoo(path: str, metric: str | None) -> Log:
    """Results of promptfoo, as JSONL or JSON. An item is its variables, since the test index shifts with the tests."""
    records = list(_promptfoo_records(path, _document(path) if path.lower().endswith(".json") else None))
    name = os.path.basename(path)
    placed = [(f"result {i:,} of {name!r}", record) for i, record in enumerate(records, start=1)]
    attempts = [_made(_promptfoo_attempt, where, record) for where, record in sorted(placed, key=_test_index)]
    providers = {a.variant for a in attempts}
    model = next(iter(providers)) if len(providers) == 1 else None
    return Log(attempts, [Path(path)], model, variant_needed=True, metric_noted=False, tasks_if_several=True)


def _test_index(placed: tuple[str, Any]) -> int:
    """Results are in the order in which they came; repeats are counted in that of the tests."""
    index = placed[1].get("testIdx") if isinstance(placed[1], Mapping) else None
    return index if isinstance(index, int) else 0


def _promptfoo_records(path: str, document: Any) -> Iterable[Any]:
    if document is None:
        return (record for _, record in _records(path))
    while isinstance(document, Mapping) and "results" in document:
        document = document["results"]
    return document if isinstance(document, list) else []


def _promptfoo_attempt(where: str, record: Mapping[str, Any]) -> Attempt:
    test = record.get("testCase") or {}
    variables = test.get("vars") or record.get("vars") or {}
    prompt, provider = record["prompt"], record.get("provider") or {}
    answered = record.get("failureReason") != PROMPTFOO_ERROR
    scores = {"success": record["success"], "score": record.get("score"), **(record.get("namedScores") or {})}
    named = provider if isinstance(provider, Mapping) else {"id": provider}
    return Attempt(
        where,
        text_of(prompt.get("label") or prompt.get("raw")),
        id_text(variables),
        {name: value if answered else None for name, value in scores.items()},
        text_of(named.get("label") or named.get("id")),
        epoch=None,
        answer=text_of((record.get("response") or {}).get("output")),
        prompt=_hash(prompt.get("raw")),
        content=_hash(variables, test.get("assert")),
        fields=_short({"description": test.get("description"), **variables, **(test.get("metadata") or {})}),
    )


def table(source: TableLike, metric: str | None) -> Log:
    """A table with an id and an outcome: JSONL, JSON, CSV, Parquet, a baseline, or a table in memory."""
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    about = None
    if path is not None and path.lower().endswith((".jsonl", ".ndjson")):
        rows = [(f"line {line:,} of {os.path.basename(path)!r}", row) for line, row in _records(path)]
    elif path is not None and path.lower().endswith(".json"):
        document = _document(path)
        if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
            raise ValueError(
                f"read_run: {path!r} must be a list of objects with an id and an outcome. Write it as JSONL."
            )
        rows = [(f"entry {i:,} of {os.path.basename(path)!r}", row) for i, row in enumerate(document, start=1)]
    else:
        stored = _stored(source)
        shown = "the table" if path is None else repr(os.path.basename(path))
        about = _about(stored, shown)
        rows = [(f"row {i:,} of {shown}", row) for i, row in enumerate(stored.to_pylist(), start=1)]
    if not rows:
        return Log(())
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    roles = _roles(names, path)
    others = [name for name in names if name not in roles.values()]
    usual = next((name for name in OUTCOMES if name in others), None)
    scored = [usual, *(name for name in others if name != usual)] if usual else others
    attempts = [_table_attempt(where, row, roles, scored) for where, row in rows]
    files = [] if path is None else [Path(path)]
    model = None if about is None else about.model
    return Log(attempts, files, model, about, metric_needed=usual is None and len(others) != 1, metric_noted=False)


def _stored(source: TableLike) -> pa.Table:
    with closing(Engine(Settings())) as engine, engine.errors():
        found: pa.Table = engine.backend.to_pyarrow(engine.open("run", source).table)
        if isinstance(source, str | os.PathLike) and os.fspath(source).lower().endswith((".parquet", ".pq", ".parq")):
            import pyarrow.parquet as pq

            found = found.replace_schema_metadata(pq.read_schema(source).metadata)
        return found


def _about(stored: pa.Table, name: str) -> About | None:
    found = (stored.schema.metadata or {}).get(ABOUT)
    return None if found is None else read_json("read_run", f"the metadata of {name}", found, About)


def _roles(names: Sequence[str], path: str | None) -> dict[str, str]:
    """The columns by their meaning."""
    if "id" not in names:
        raise unknown_name("read_run", f"column in {path!r}: items need one called", "id", names)
    wanted = {"id": ("id",), "task": ("task",), "epoch": EPOCHS, "answer": ANSWERS, "target": ("target",)}
    wanted |= {"prompt": ("prompt_hash", "prompt"), "content": ("content",)}
    found = {role: next((name for name in known if name in names), None) for role, known in wanted.items()}
    return {role: name for role, name in found.items() if name is not None}


def _table_attempt(where: str, row: Mapping[str, Any], roles: Mapping[str, str], scored: Sequence[str]) -> Attempt:
    value = {role: row.get(name) for role, name in roles.items()}
    if value["id"] is None or value["id"] == "":
        raise ValueError(f"read_run: {where} has no id. Give every item one.")
    epoch: Any = 1 if value.get("epoch") is None else value["epoch"]
    try:
        number = int(epoch)
        fits = 0 <= number < 2**53 and float(epoch) == number
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ValueError(f"read_run: {where}: {roles['epoch']} must be a whole number, got {text_of(epoch)!r}.")
    prompt = value.get("prompt")
    return Attempt(
        where,
        text_of(value.get("task")),
        id_text(value["id"]),
        {name: row.get(name) for name in scored},
        epoch=number,
        answer=text_of(value.get("answer")),
        target=text_of(value.get("target")),
        prompt=text_of(prompt) if prompt is None or roles["prompt"] == "prompt_hash" else _hash(prompt),
        content=text_of(value.get("content")) or (_hash(value["target"]) if value.get("target") is not None else None),
        fields=_short(row),
    )


# Each maps a path (of a table, any table) and the metric, where one is named, to a log.
READERS: dict[str, Callable[[Any, str | None], Log]] = {
    "lm-eval": lm_eval,
    "inspect": inspect_log,
    "promptfoo": promptfoo,
    "table": table,
}


def _made(make: Callable[..., Attempt], where: str, record: Any, *more: Any) -> Attempt:
    """An attempt, or an error that names the place of a record of another form."""
    try:
        return make(where, record, *more)
    except (AttributeError, LookupError, TypeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else one_line(error)
        raise ValueError(f"read_run: {where} is not of the form of its kind ({reason}). Name it with kind=.") from None


def _short(record: object) -> dict[str, object]:
    """Values that are short enough for a slice."""
    found = record.items() if isinstance(record, Mapping) else ()
    return {
        str(name): value
        for name, value in found
        if isinstance(value, bool | int | float | None) or (isinstance(value, str) and len(value) <= LONGEST_ID)
    }


def _records(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file with the numbers of their lines; blank lines are skipped."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"read_run: line {number:,} of {path!r}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                cut = "" if line.endswith(b"\n") else " It is the last line and has no end: the file may be cut off."
                raise ValueError(f"{where} is not valid JSON ({one_line(error)}).{cut} Write the file again.") from None
            if not isinstance(record, dict):
                raise ValueError(f"{where} must be an object, got {one_line(line.decode(errors='replace'))!r}.")
            yield number, record


def _document(path: str) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"read_run: {path!r} is not valid JSON ({one_line(error)}). Write the file again.") from None


def text_of(value: object) -> str | None:
    """A value as text: text as it is, anything nested as JSON."""
    if value is None:
        return None
    nested = isinstance(value, dict | list)
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, default=str) if nested else str(value)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()  # lone surrogates have no UTF-8


def id_text(value: object) -> str:
    """An id as text; of a long one the beginning and a hash."""
    text = str(text_of(int(value) if isinstance(value, float) and value.is_integer() else value))
    return text if len(text) <= LONGEST_ID else f"{text[: LONGEST_ID - 20]}... #{_hash(text)}"


def _hash(*values: object) -> str:
    """Sixteen hexadecimal digits; of a single text the beginning of its SHA-256, as lm-eval writes it."""
    text = (
        values[0]
        if len(values) == 1 and isinstance(values[0], str)
        else json.dumps(values, default=str, sort_keys=True)
    )
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
