"""Evaluation runs are read as their tools write them, and what is wrong in them is named with its place."""

import json
import random
import sys
from types import ModuleType, SimpleNamespace

import pandas as pd
import pyarrow as pa
import pytest

from lowchurn.audit import read_run
from tests.audit.runs import (
    DATE,
    TESTS,
    lm_eval_choice,
    lm_eval_sample,
    promptfoo_result,
    promptfoo_results,
    write_lines,
    write_samples,
)


def outcomes(run, *columns):
    return list(zip(*(run.table[name].to_pylist() for name in (*columns, "outcome")), strict=True))


# lm-evaluation-harness


@pytest.fixture
def samples(tmp_path):
    """A folder as lm-eval writes it: a task with two filters, one with choices, and one without outcomes per item."""
    folder = tmp_path / "results" / "org__model"
    strict = [lm_eval_sample(i, f"It is {3 * i}", i % 3 == 0, "strict-match") for i in range(9)]
    flexible = [lm_eval_sample(i, f"It is {3 * i}", True, "flexible-extract") for i in range(9)]
    write_samples(folder, "times_three", strict + flexible)
    write_samples(folder, "a_choice", [lm_eval_choice(i, (-3, -2, -4), (False, True)) for i in range(4)])
    write_samples(folder, "words", [lm_eval_sample(i, "-3.1", False, perplexity=[-3.1, 5]) for i in range(4)])
    for path in folder.glob("samples_words*"):
        lines = [json.loads(line) | {"metrics": ["perplexity"]} for line in path.read_text().splitlines()]
        write_lines(path, lines)
    better = {"times_three": {"exact_match": True}, "words": {"perplexity": False}}
    (folder / f"results_{DATE}.json").write_text(json.dumps({"model_name": "org/model", "higher_is_better": better}))
    return folder


def test_each_filter_of_lm_eval_has_a_row_and_one_counts(samples):
    run = read_run(samples)
    assert (run.kind, run.model, run.tasks) == ("lm-eval", "org/model", ("a_choice", "times_three"))
    assert run.metrics == {"a_choice": "acc", "times_three": "exact_match"}
    assert run.filters == {"a_choice": "none", "times_three": "strict-match"}
    assert [right for task, _, right in outcomes(run, "task", "id") if task == "times_three"] == [
        True,
        False,
        False,
    ] * 3
    assert any("'flexible-extract'" in note for note in run.notes)
    assert any("'words' is left out" in note for note in run.notes)
    assert all(right for _, right in outcomes(read_run(samples, task="times_three", filter="flexible-extract"), "id"))


def test_a_metric_or_filter_that_some_tasks_have_is_used_there(samples):
    run = read_run(samples.parent, metric="acc_norm", filter="flexible-extract")
    assert run.metrics == {"a_choice": "acc_norm", "times_three": "exact_match"}
    assert run.filters == {"a_choice": "none", "times_three": "flexible-extract"}


def test_the_newest_file_of_each_task_is_read(samples):
    write_samples(samples, "times_three", [lm_eval_sample(i, "", True) for i in range(2)], "2025-03-02T00-00-00.000001")
    write_samples(
        samples, "times_three", [lm_eval_sample(i, "", False) for i in range(3)], "2024-12-31T23-59-59.999999"
    )
    assert outcomes(read_run(samples, task="times_three"), "id") == [("0", True), ("1", True)]


def test_the_answer_among_choices_is_the_likeliest_by_the_metric(samples):
    """acc takes the largest likelihood, acc_norm the largest per character: -3 of one, -2 of one, -4 of 7 of them."""
    first = read_run(samples, task="a_choice").table.slice(0, 1).to_pylist()[0]
    assert (first["answer"], first["target"], first["outcome"]) == ("1", "0", False)
    normed = read_run(samples, task="a_choice", metric="acc_norm").table.slice(0, 1).to_pylist()[0]
    assert (normed["answer"], normed["outcome"]) == ("2 or so", True)


def test_logs_of_older_versions_have_no_hashes_and_lists_of_arguments(tmp_path):
    old, new = lm_eval_sample(1, "3", True), lm_eval_sample(1, "3", True)
    for name in ("doc_hash", "prompt_hash", "target_hash", "filter", "metrics"):
        del old[name]
    old["arguments"] = [list(old["arguments"]["gen_args_0"].values())]
    runs = [read_run(write_samples(tmp_path / side, "t", [sample])) for side, sample in (("o", old), ("n", new))]
    assert runs[0].metrics == {"t": "exact_match"}
    assert runs[0].table["prompt_hash"] == runs[1].table["prompt_hash"]


def test_samples_of_two_models_are_refused(samples):
    write_samples(samples.parent / "org__other", "times_three", [lm_eval_sample(0, "", True)])
    with pytest.raises(
        ValueError, match="must contain the samples of one model, got those of .*org__model.*org__other"
    ):
        read_run(samples.parent)


def test_lm_eval_itself_writes_what_is_read(tmp_path):
    """The writer of lm-eval, where it is installed."""
    tracker = pytest.importorskip("lm_eval.loggers").EvaluationTracker(output_path=str(tmp_path))
    tracker.general_config_tracker.model_name = tracker.general_config_tracker.model_name_sanitized = "m"
    made = [lm_eval_sample(i, f"It is {i}", i % 2 == 0) for i in range(6)]
    raw = [sample | {"arguments": [tuple(sample["arguments"]["gen_args_0"].values())]} for sample in made]
    tracker.save_results_aggregated({"higher_is_better": {"t": {"exact_match": True}}}, {"t": raw})
    tracker.save_results_samples("t", raw)
    direct = read_run(write_samples(tmp_path / "ours", "t", made))
    assert read_run(tmp_path / "m").table.equals(direct.table)
    assert read_run(tmp_path / "m").model == "m"


# promptfoo


def test_items_of_promptfoo_are_known_by_their_variables(tmp_path):
    """The test index shifts when a test is removed; the variables stay."""
    whole = read_run(write_lines(tmp_path / "whole.jsonl", promptfoo_results()))
    part = [promptfoo_result(i, *test) for i, test in enumerate(TESTS[5:])]
    rest = read_run(write_lines(tmp_path / "rest.jsonl", part))
    assert (whole.kind, whole.model, whole.tasks) == ("promptfoo", "fake-1", ())
    assert whole.metrics == {None: "success"}
    assert outcomes(rest, "id", "content") == outcomes(whole, "id", "content")[5:]
    assert whole.table["id"][0].as_py() == '{"a": 0, "b": 1}'


def test_json_and_jsonl_of_promptfoo_are_the_same_run(tmp_path):
    lines = read_run(write_lines(tmp_path / "out.jsonl", promptfoo_results()))
    document = {"evalId": "eval-1", "results": {"version": 3, "prompts": [], "results": promptfoo_results()}}
    (tmp_path / "out.json").write_text(json.dumps(document))
    assert read_run(tmp_path / "out.json").table.equals(lines.table)


def test_an_error_of_a_provider_is_a_gap_and_not_a_wrong_answer(tmp_path):
    results = [*promptfoo_results()[:3], promptfoo_result(3, {"a": 9, "b": 9}, True, error=True)]
    run = read_run(write_lines(tmp_path / "out.jsonl", results))
    assert [right for _, right in outcomes(run, "id")] == [False, True, True, None]


def test_repeats_of_promptfoo_are_counted_in_the_order_of_the_tests(tmp_path):
    results = [promptfoo_result(i, {"a": 1}, right) for i, right in ((2, False), (0, True), (1, True))]
    run = read_run(write_lines(tmp_path / "out.jsonl", results))
    assert outcomes(run, "epoch") == [(1, True), (2, True), (3, False)]


def test_prompts_are_tasks_where_there_are_several(tmp_path):
    results = promptfoo_results() + promptfoo_results(prompt="Add {{a}} to {{b}}")
    path = write_lines(tmp_path / "out.jsonl", results)
    assert read_run(path).tasks == ("What is {{a}}+{{b}}?", "Add {{a}} to {{b}}")
    one = read_run(path, task="Add {{a}} to {{b}}")
    assert (one.tasks, len(one.table)) == ((), len(TESTS))


def test_of_several_providers_one_has_to_be_named(tmp_path):
    path = write_lines(tmp_path / "out.jsonl", promptfoo_results() + promptfoo_results(provider="fake-2"))
    with pytest.raises(ValueError, match=r"several providers: fake-1, fake-2. Choose one with filter="):
        read_run(path)
    assert read_run(path, filter="fake-2").model is None
    assert len(read_run(path, filter="fake-2").table) == len(TESTS)


def test_scores_of_promptfoo_are_metrics(tmp_path):
    results = [promptfoo_result(i, v, r, namedScores={"tone": 0.25}) for i, (v, r) in enumerate(TESTS)]
    run = read_run(write_lines(tmp_path / "out.jsonl", results), metric="tone")
    assert run.graded
    assert set(run.table["outcome"].to_pylist()) == {0.25}


# Inspect


@pytest.fixture
def inspect_frames(monkeypatch):
    """A stand-in for Inspect's data frames, with the columns that version 0.3.285 gives."""

    def column(name, path=None):
        return SimpleNamespace(name=name)

    rows = [
        {
            "sample_id": f"uuid{task}{i}{epoch}", "eval_id": task, "log": f"/logs/{task}.eval", "model": "mock/model",
            "created": pd.Timestamp("2025-03-01", tz="UTC"), "task_name": task, "score_headline_name": "match",
            "id": str(i), "epoch": epoch, "input": f"user:\nWhat is {i}?\n", "target": str(i), "metadata_topic": "odd",
            "score_graded": 0.25 * epoch, "score_match": None if i == 2 else "C" if i else "I",
            "score_parts": '{"a": 1, "b": 0}', "answer": f"It is {i}", "error": "timeout" if i == 2 else "",
        }
        for task in ("sums", "terms") for i in range(3) for epoch in (1, 2)
    ]  # fmt: skip
    analysis = ModuleType("inspect_ai.analysis")
    analysis.EvalInfo, analysis.EvalTask, analysis.EvalModel = [column("created")], [column("task_name")], []
    analysis.SampleSummary, analysis.SampleColumn = [column("id")], column
    analysis.asked = []

    def samples_df(logs, columns, quiet, exclude_fields=None):
        analysis.asked.append((logs, [c.name for c in columns], exclude_fields))
        return pd.DataFrame(rows)

    analysis.samples_df = samples_df
    package = ModuleType("inspect_ai")
    package.analysis = analysis
    monkeypatch.setitem(sys.modules, "inspect_ai", package)
    monkeypatch.setitem(sys.modules, "inspect_ai.analysis", analysis)
    return SimpleNamespace(analysis=analysis, rows=rows)


def test_inspect_is_read_through_its_data_frames(tmp_path, inspect_frames):
    log = tmp_path / "sums.eval"
    log.write_bytes(b"PK")
    run = read_run(log, by="topic")
    assert (run.kind, run.model, run.tasks) == ("inspect", "mock/model", ("sums", "terms"))
    assert run.metrics == {"sums": "match", "terms": "match"}  # the headline, though others come first
    assert outcomes(run, "id", "epoch")[:6] == [
        ("0", 1, False), ("0", 2, False), ("1", 1, True), ("1", 2, True), ("2", 1, None), ("2", 2, None)
    ]  # fmt: skip
    assert set(run.table["topic"].to_pylist()) == {"odd"}
    path, columns, unread = inspect_frames.analysis.asked[0]
    assert (path, columns[-1]) == (str(log), "answer")
    assert "events" in unread


def test_scores_of_inspect_with_several_values_are_several_metrics(tmp_path, inspect_frames):
    log = tmp_path / "sums.eval"
    log.write_bytes(b"PK")
    assert read_run(log, metric="parts.a").table["outcome"].to_pylist() == [True] * 12
    assert read_run(log, metric="graded").graded
    with pytest.raises(ValueError, match="unknown metric .*'macth'. Did you mean 'match'.*parts.a"):
        read_run(log, metric="macth")


def test_the_newest_log_of_a_task_of_inspect_counts(tmp_path, inspect_frames):
    (tmp_path / "sums.eval").write_bytes(b"PK")
    later = [
        row | {"log": "/logs/later.eval", "created": pd.Timestamp("2025-04-01", tz="UTC"), "score_match": "I"}
        for row in inspect_frames.rows
        if row["task_name"] == "sums"
    ]
    inspect_frames.rows += later
    assert not any(read_run(tmp_path, task="sums").table["outcome"].to_pylist())
    inspect_frames.rows[-1]["model"] = "mock/other"
    with pytest.raises(ValueError, match="must contain the logs of one model, got mock/model, mock/other"):
        read_run(tmp_path)


def test_without_inspect_the_error_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "sums.eval").write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    with pytest.raises(ImportError, match=r'pip install "lowchurn\[inspect\]"'):
        read_run(tmp_path / "sums.eval")


def test_inspect_itself_writes_what_is_read(tmp_path):
    """A log of Inspect, where it is installed: epochs are repeats, crashes are gaps."""
    ai = pytest.importorskip("inspect_ai")
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import match
    from inspect_ai.solver import solver

    @solver
    def answer():
        async def solve(state, generate):
            if state.sample_id == "q2":
                raise RuntimeError("timeout")
            right = (int(state.sample_id[1:]) + state.epoch) % 2
            state.output = ModelOutput.from_content("mock", f"It is {state.target.text if right else 'unknown'}")
            return state

        return solve

    items = [
        Sample(id=f"q{i}", input=f"{i}+{i}?", target=str(2 * i), metadata={"topic": f"t{i % 2}"}) for i in range(5)
    ]
    task = ai.Task(name="sums", dataset=items, solver=answer(), scorer=match(location="end"), epochs=2)
    ai.eval(task, model="mockllm/model", log_dir=str(tmp_path), display="none", fail_on_error=False)
    run = read_run(tmp_path, by="topic")
    wanted = {(f"q{i}", e): None if i == 2 else bool((i + e) % 2) for i in range(5) for e in (1, 2)}
    assert {(i, e): right for i, e, right in outcomes(run, "id", "epoch")} == wanted
    assert set(run.table["topic"].to_pylist()) == {"t0", "t1"}
    assert "It is 2" in run.table["answer"].to_pylist()


# Tables


TABLE = pd.DataFrame(
    {
        "id": ["a", "b", "c"],
        "task": "t",
        "correct": [True, False, None],
        "answer": ["1", "2", "3"],
        "lang": ["de", "en", "de"],
    }
)


def test_any_table_with_an_id_and_an_outcome_is_a_run(tmp_path):
    records = TABLE.astype(object).where(TABLE.notna(), None).to_dict("records")
    write_lines(tmp_path / "run.jsonl", records)
    (tmp_path / "run.json").write_text(json.dumps(records))
    TABLE.to_csv(tmp_path / "run.csv", index=False)
    TABLE.to_parquet(tmp_path / "run.parquet")
    sources = [
        TABLE,
        pa.Table.from_pandas(TABLE),
        *(tmp_path / f"run.{end}" for end in ("jsonl", "json", "csv", "parquet")),
    ]
    runs = [read_run(source, by="lang") for source in sources]
    assert outcomes(runs[0], "task", "id", "lang") == [
        ("t", "a", "de", True), ("t", "b", "en", False), ("t", "c", "de", None)
    ]  # fmt: skip
    for run in runs:
        assert run.table.equals(runs[0].table)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["right", "Wrong", ""], [True, False, None]),
        (["C", "I", "N"], [True, False, False]),
        (["pass", "FAILED", "1.0"], [True, False, True]),
        (["C", "P", "I"], [1.0, 0.5, 0.0]),
        (["0.25", "1e-1", "-3"], [0.25, 0.1, -3.0]),
    ],
)
def test_outcomes_in_words(words, values):
    run = read_run(pd.DataFrame({"id": range(3), "outcome": words}))
    assert run.table["outcome"].to_pylist() == values


def test_the_outcome_is_the_usual_column_the_only_one_or_the_named_one():
    rows = pd.DataFrame({"id": [1, 2], "f1": [0.5, 1.0], "exact": [0, 1]})
    assert read_run(rows[["id", "exact"]]).metrics == {None: "exact"}
    assert read_run(rows, metric="f1").graded
    with pytest.raises(
        ValueError, match=r"found no outcome in the table among \['f1', 'exact'\]. Name it with metric="
    ):
        read_run(rows)


# Baselines


def test_a_baseline_contains_the_run(samples, tmp_path):
    run = read_run(samples, by="topic", task="times_three", filter="flexible-extract")
    run.save(tmp_path / "baseline.parquet")
    again = read_run(tmp_path / "baseline.parquet", by="topic")
    assert again.table.sort_by("id").equals(run.table.sort_by("id"))
    for name in ("kind", "model", "metrics", "filters", "tasks", "by"):
        assert getattr(again, name) == getattr(run, name)
    with pytest.raises(ValueError, match="has the filter 'flexible-extract', got 'strict-match'. Bless a run"):
        read_run(tmp_path / "baseline.parquet", filter="strict-match")


def test_the_bytes_of_a_baseline_depend_on_the_run_alone(samples):
    """Lines in another order, which a parallel run writes, make the same file."""
    first = read_run(samples, task="times_three").to_parquet()
    (path,) = samples.glob("samples_times_three*")
    lines = path.read_text().splitlines()
    random.Random(0).shuffle(lines)
    path.write_text("\n".join(sorted(lines, key=lambda line: '"strict' not in line)))
    assert read_run(samples, task="times_three").to_parquet() == first


def test_long_answers_are_cut_off_in_a_baseline(tmp_path):
    run = read_run(pd.DataFrame({"id": ["a"], "outcome": [1], "answer": ["é" * 10_000]}))
    run.save(tmp_path / "baseline.parquet")
    assert len(read_run(tmp_path / "baseline.parquet").table["answer"][0].as_py()) == 2000
    assert (tmp_path / "baseline.parquet").stat().st_size < 6_000


# Bad input


def cut_off(folder):
    """A file whose last line was not written to its end."""
    whole = "".join(json.dumps(lm_eval_sample(i, "", True)) + "\n" for i in range(3))
    (folder / "samples.jsonl").write_text(whole[:-100])
    return folder / "samples.jsonl"


BAD = {
    "cut off": (cut_off, {}, r"line 3 of .*samples.jsonl' is not valid JSON .*may be cut off. Write the file again"),
    "no object": (lambda f: write_lines(f / "a.jsonl", [{"id": 1, "outcome": 1}, 7]), {}, "line 2 .*must be an object"),
    "empty": (lambda f: write_lines(f / "a.jsonl", []), {}, "has no items"),
    "header only": (lambda f: TABLE[:0], {}, "has no items"),
    "no file": (lambda f: f / "gone.jsonl", {}, "there is no file or folder"),
    "empty folder": (lambda f: f, {}, "has no log of a run.*kind="),
    "kind": (lambda f: TABLE, {"kind": "helm"}, "kind must be one of 'auto', 'lm-eval'"),
    "wrong kind": (lambda f: write_lines(f / "a.jsonl", [{"id": 1}]), {"kind": "lm-eval"}, "line 1 .*no 'doc_id'"),
    "kind of table": (lambda f: TABLE, {"kind": "promptfoo"}, "must be read from a file or folder"),
    "task": (lambda f: TABLE, {"task": "T"}, "unknown task in the table 'T'. .*Known: t"),
    "metric": (lambda f: TABLE, {"metric": "acc"}, "unknown metric in the table 'acc'. Known: correct, lang"),
    "filter": (lambda f: TABLE, {"filter": "strict"}, "unknown filter in the table 'strict'"),
    "by": (lambda f: TABLE, {"by": "langs"}, "unknown value to slice by in the table 'langs'. Did you mean 'lang'"),
    "by ours": (lambda f: TABLE, {"by": "outcome"}, "by must not be one of answer, .*got 'outcome'"),
    "twice": (lambda f: pd.concat([TABLE, TABLE[:2]]), {}, "2 items come more than once in the table: 'a' in row 1"),
    "NaN": (
        lambda f: pa.table({"id": [1, 2], "outcome": [0.5, float("nan")]}),
        {},
        "row 2 of the table: outcome must be finite, got nan. Leave it out",
    ),
    "NaN in JSON": (
        lambda f: write_samples(f, "t", [lm_eval_sample(0, "", True), lm_eval_sample(1, "", float("nan"))]),
        {},
        "line 2 of 'samples_t.*exact_match must be finite, got nan",
    ),
    "word": (lambda f: TABLE, {"metric": "lang"}, "row 1 of the table: lang must be an outcome .*got 'de'"),
    "no id": (lambda f: TABLE.rename(columns={"id": "key"}), {}, "items need one called 'id'.*Known: answer"),
    "missing id": (lambda f: pd.DataFrame({"id": ["a", None], "outcome": [1, 1]}), {}, "row 2 of the table has no id"),
    "some tasks": (
        lambda f: pd.DataFrame({"id": [1, 2], "outcome": [1, 1], "task": ["t", None]}),
        {},
        "must have a task or none, row 2",
    ),
    "epoch": (lambda f: pd.DataFrame({"id": [1], "outcome": [1], "epoch": ["x"]}), {}, "epoch must be a whole number"),
    "no outcome per item": (
        lambda f: write_samples(f, "t", [lm_eval_sample(0, "", True, exact_match=[1, 2])]),
        {},
        "no metric of 't' .*has an outcome per item",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_runs_are_refused_with_the_place_and_the_remedy(tmp_path, name):
    make, arguments, words = BAD[name]
    with pytest.raises(ValueError, match=words):
        read_run(make(tmp_path), **arguments)


def refusal(path, kind):
    """The message of the error, or nothing."""
    try:
        read_run(path, kind=kind)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("kind", "record"), [("lm-eval", lm_eval_sample(1, "3", True)), ("promptfoo", promptfoo_results()[1])]
)
def test_records_of_any_other_form_are_one_error(tmp_path, kind, record):
    """Every field in turn is missing, or of another type: it is read, or refused with a ValueError."""
    junk = [None, 7, -1.5, "text", True, [], {}, [[]], {"a": {}}, [None], 10**400, float("inf")]
    refused = 0
    for name in record:
        for value in (..., *junk):
            changed = {k: v for k, v in record.items() if k != name} if value is ... else record | {name: value}
            path = write_lines(tmp_path / "run.jsonl", [record, changed])
            message = refusal(path, kind)
            assert message == "" or message.startswith("read_run: ")
            refused += bool(message)
    assert refused > 20


JUNK = [None, 7, -1.5, "text", "", True, [], {}, [[]], {"a": {}}, 10**400, float("inf"), "\x00", "\ud800", "é" * 300]


def damaged(value, rng, depth=0):
    """A copy of nested data in which one thing at any depth is missing or replaced."""
    if isinstance(value, dict) and value:
        name = rng.choice(list(value))
        if rng.random() < 0.2:
            return {k: v for k, v in value.items() if k != name}
        return value | {name: damaged(value[name], rng, depth + 1) if depth < 4 else rng.choice(JUNK)}
    return rng.choice(JUNK)


@pytest.mark.parametrize(
    "record", [lm_eval_sample(1, "3", True), lm_eval_choice(1, (-1, -2, -3), (True, False)), promptfoo_results()[1],
               {"id": 1, "outcome": 1, "answer": "a", "task": "t", "epoch": 1, "target": "x", "prompt": "p"}],
    ids=["lm-eval", "choice", "promptfoo", "table"],
)  # fmt: skip
def test_damaged_records_are_read_or_refused(tmp_path, record):
    rng = random.Random(0)
    for _ in range(150):
        path = write_lines(tmp_path / "run.jsonl", [damaged(record, rng)])
        message = refusal(path, "auto")
        assert message == "" or message.startswith("read_run: ")
