"""``lowchurn compare`` and ``lowchurn bless`` as a pipeline calls them."""

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import typer

from lowchurn import cli
from lowchurn.audit import Limits
from lowchurn.audit._compare import Choices
from tests.audit.runs import lm_eval_sample, random_runs, write_lines, write_samples
from tests.audit.test_schema import validate

# Of Ibis about DuckDB; outside of pytest nobody sees it.
pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two runs of two tasks: 40 items, of which 2 break and 1 is fixed."""
    right = {"old": lambda i: i % 4 > 0, "new": lambda i: (i % 4 > 0 and i not in (5, 7)) or i == 8}
    for side, rule in right.items():
        for task in ("safety", "sums"):
            samples = [lm_eval_sample(i, f"{side} {i}", rule(i) if task == "sums" else True) for i in range(20)]
            write_samples(tmp_path / side, task, samples)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lowchurn(folder, monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["lowchurn", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return SimpleNamespace(code=left.value.code or 0, out=said.out, err=said.err)

    return call


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 0),
        (("--inconclusive", "fail"), 3),
        (("--inconclusive", "warn"), 0),
        (("--never-break", "safety"), 0),
        (("--never-break", "sums/5"), 1),
        (("--never-break", "task=sums", "--inconclusive", "fail"), 1),
        (("--max-broken", "0.01"), 0),
        (("--max-broken", "0.5", "--inconclusive", "fail"), 0),
        (("--slice-max-broken", "0.001", "--slice-min-rows", "50"), 0),
        (("--metric", "acc"), 2),
    ],
)
def test_the_verdict_is_the_exit_code(lowchurn, options, code):
    done = lowchurn("compare", "old", "new", *options)
    assert done.code == code, done.err
    assert bool(done.err) == (code == 2 or "warn" in options)


def test_all_files_are_written(folder, lowchurn):
    done = lowchurn(
        "compare", "old", "new", "--never-break", "sums/5", "--html", "report.html", "--json", "report.json", "--junit",
        "gate.xml", "--markdown", "summary.md", "--old-name", "v1", "--new-name", "v2",
    )  # fmt: skip
    assert done.code == 1
    assert "broken sums/5: 'old 5' -> 'new 5'" in done.out
    found = json.loads((folder / "report.json").read_text())
    assert found["coverage"]["compared"] == 40
    assert [(item["kind"], item["id"]) for item in found["changed_items"]] == [
        ("broken", "5"), ("broken", "7"), ("fixed", "8")
    ]  # fmt: skip
    assert found["made"]["command"].startswith("lowchurn compare old new --never-break sums/5")
    assert found["provenance"]["old"]["name"] == "v1"
    assert len(found["provenance"]["new"]["sha256"]) == 64
    assert found["provenance"]["settings"] == {"gate.never_break": ["sums/5"]}
    suite = ElementTree.parse(folder / "gate.xml").getroot()
    assert suite.get("name") == "lowchurn compare"
    assert {case.get("name") for case in suite} == {"not_worse_than", "never_break"}
    summary = (folder / "summary.md").read_text()
    assert summary.startswith("## Evaluation runs: FAIL")
    assert "| sums/5 | 15 | old 5 | new 5 |" in summary
    assert "new 5" in (folder / "report.html").read_text()


def test_a_blessed_run_is_compared_with_and_never_changes_by_itself(folder, lowchurn):
    done = lowchurn("bless", "old", "--as", "baseline.parquet")
    assert (done.code, "written: baseline.parquet" in done.out) == (0, True)
    before = (folder / "baseline.parquet").read_bytes()
    assert len(before) < 10_000
    by_logs, by_baseline = (lowchurn("compare", old, "new", "--json", f"{i}.json")
                            for i, old in enumerate(("old", "baseline.parquet")))  # fmt: skip
    assert (by_logs.code, by_baseline.code) == (0, 0)
    first, second = (json.loads((folder / f"{i}.json").read_text()) for i in range(2))
    for part in ("estimates", "slices", "coverage", "changed_items"):
        assert first[part] == second[part]
    assert (folder / "baseline.parquet").read_bytes() == before
    lowchurn("bless", "new", "--as", "baseline.parquet")
    assert lowchurn("compare", "baseline.parquet", "new", "--never-break", "sums").code == 0


def test_runs_of_other_kinds_are_compared_from_files(folder, lowchurn):
    old, new = random_runs(0)
    old.to_csv(folder / "old.csv", index=False)
    write_lines(folder / "new.jsonl", json.loads(new.to_json(orient="records")))
    done = lowchurn("compare", "old.csv", "new.jsonl")
    assert done.code in (0, 1), done.err
    assert "missing in the new run" in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("old", "gone"), "there is no file or folder 'gone'"),
        (("old", "cut.jsonl"), "line 2 of 'cut.jsonl' is not valid JSON"),
        (("old", "new", "--metric", "acc"), "unknown metric in 'old' 'acc'. Known: exact_match."),
        (("old", "new", "--task", "sum"), "unknown task in 'old' 'sum'. Did you mean 'sums'?"),
        (("old", "shots"), "other prompts, such as 'sums/0'"),
        (("old", "shots"), "use --other-prompts."),
        (("old", "new", "--not-worse-than", "5"), "--not-worse-than must be in [0, 1], got 5.0."),
        (("old", "new", "--never-break", "sums/99"), "unknown slice or id to never break 'sums/99'"),
        (("old", "new", "--inconclusive", "maybe"), "--inconclusive must be one of 'fail', 'warn', 'pass'"),
        (("old", "new", "--kind", "helm"), "--kind must be one of 'auto', 'lm-eval'"),
        (
            ("graded.jsonl", "graded.jsonl", "--max-broken", "0.1"),
            "--max-broken is no limit of numbers. Use --max-worse",
        ),
        (("graded.jsonl", "graded.jsonl", "--tolerance", "-1"), "--tolerance must be in [0, inf), got -1.0"),
        (("old", "new", "--tolerance", "0.1", "--threshold", "0.5"), "--tolerance is about numbers, and --threshold"),
        (("old", "new", "--config", "bad.toml"), "'bad.toml': unknown setting 'metrik'. Did you mean 'metric'"),
        (("old", "new", "--config", "limit.toml"), "'limit.toml': compare.gate.max_broken must be in [0, 1], got 3"),
    ],
)
def test_bad_input_is_one_line_exit_code_2_and_no_file(folder, lowchurn, arguments, words):
    write_lines(folder / "graded.jsonl", [{"id": i, "score": i / 4} for i in range(5)])
    (folder / "bad.toml").write_text('[compare]\nmetrik = "acc"\n')
    (folder / "limit.toml").write_text("[compare.gate]\nmax_broken = 3\n")
    (folder / "cut.jsonl").write_text('{"id": 1, "outcome": 1}\n{"id": 2, "outc')
    write_samples(folder / "shots", "sums", [lm_eval_sample(i, "", True, shots="One: 1\n") for i in range(20)])
    before = files(folder)
    outputs = ("--html", "a.html", "--json", "a.json", "--junit", "a.xml", "--markdown", "a.md")
    done = lowchurn("compare", *arguments, *outputs)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert done.err.count("\n") == 1
    assert files(folder) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bless", "gone", "--as", "b.parquet"), "there is no file or folder"),
        (("bless", "old", "--as", "b.csv"), "--as must be a Parquet file, got 'b.csv'"),
        (("bless", "old", "--as", "no/b.parquet"), "there is no folder 'no'"),
        (("bless", "old", "--as", "old/b.parquet"), "must not overwrite the run"),
        (("bless", "old"), "Missing option '--as'"),
        (("compare", "b.parquet", "new", "--json", "b.parquet"), "--json must not overwrite the old run"),
        (("compare", "b.parquet", "new", "--json", "c", "--html", "c"), "must be different files"),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_any_work(folder, lowchurn, arguments, words):
    (folder / "b.parquet").write_bytes(b"kept")
    done = lowchurn(*arguments)
    assert done.code == 2
    assert words in done.err
    assert (folder / "b.parquet").read_bytes() == b"kept"
    assert files(folder) == ["b.parquet"]


def test_options_of_a_comparison_are_its_choices_and_limits():
    options = {option.name for option in typer.main.get_command(cli.app).commands["compare"].params} - {"help"}
    limits = {field.name for field in fields(Limits)}
    shown = {"confidence", "sample", "seed", "old_name", "new_name", "html", "json", "junit", "markdown"}
    others = {"old", "new", "never_break", "inconclusive", "config"} | shown
    choices = {field.name for field in fields(Choices)}
    assert options == choices | limits | {f"slice_{name}" for name in limits} | others


def test_graded_runs_from_the_command_line(folder, lowchurn):
    write_lines(folder / "a.jsonl", [{"id": i, "score": 0.8, "answer": "good"} for i in range(40)])
    write_lines(folder / "b.jsonl", [{"id": i, "score": 0.8 - i / 100, "answer": "bad"} for i in range(40)])
    outputs = ("--html", "a.html", "--json", "a.json", "--junit", "a.xml", "--markdown", "a.md")
    done = lowchurn("compare", "a.jsonl", "b.jsonl", "--tolerance", "0.1", *outputs)
    assert done.code == 1
    assert "29 of 40 outcomes moved by more than 0.1" in done.out
    assert "worse 39 (0.8 -> 0.41): 'good' -> 'bad'" in done.out
    read = validate((folder / "a.json").read_text())
    assert (read["kind"], read["coverage"]["compared"], len(read["changed_items"])) == ("numbers", 40, 29)
    assert "| 39 | 0.8 | 0.41 | good | bad |" in (folder / "a.md").read_text()
    assert "The 29 biggest" not in (folder / "a.html").read_text()
    allowed = ("compare", "a.jsonl", "b.jsonl", "--tolerance", "0.1", "--max-worse", "0.9")
    assert lowchurn(*allowed).code == 0
    assert lowchurn(*allowed, "--never-break", "5").code == 0
    assert lowchurn(*allowed, "--never-break", "39").code == 1


def test_a_file_of_settings_for_comparisons(folder, lowchurn):
    (folder / "lowchurn.toml").write_text(
        '[audit]\nlabel = "y"\n[gate]\nmax_churn = 0.0\n'  # of audits, not of comparisons
        '[compare]\ntask = ["sums"]\nconfidence = 0.9\n[compare.gate]\nmax_broken = 0.01\ninconclusive = "fail"\n'
    )
    done = lowchurn("compare", "old", "new", "--json", "a.json")
    assert done.code == 1
    read = json.loads((folder / "a.json").read_text())
    assert (read["confidence"], read["rows"]["paired"]) == (0.9, 20)
    assert [check["name"] for check in read["verdict"]["checks"]] == ["max_broken"]
    assert read["provenance"]["config"] == "lowchurn.toml"
    assert {*read["provenance"]["from_config"]} == {"task", "confidence", "gate.max_broken", "gate.inconclusive"}
    assert lowchurn("compare", "old", "new", "--max-broken", "0.9").code == 0
    assert lowchurn("compare", "old", "new", "--json", "lowchurn.toml").code == 2


@pytest.mark.parametrize("command", ["compare", "bless"])
def test_help_shows_an_example(lowchurn, command):
    done = lowchurn(command, "--help")
    assert done.code == 0
    assert f"Example: lowchurn {command}" in " ".join(done.out.split())


def test_the_guide_shows_what_is_printed(folder, lowchurn):
    """Its commands run on two folders of logs, and the first prints the lines that are shown."""
    guide = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
    for side in ("base", "candidate"):
        for task in ("safety", "sums"):
            wrong = () if task == "safety" else (0, 4, 8, 12, 16) if side == "base" else (0, 4, 5, 7, 11, 12, 13, 16)
            samples = [
                lm_eval_sample(i, f"about {3 * i - 1}" if i in wrong else str(3 * i), i not in wrong) for i in range(20)
            ]
            write_samples(folder / "results" / side, task, samples)
    blocks = re.findall(r"^```(sh|text)\n(.*?)^```", guide, flags=re.MULTILINE | re.DOTALL)
    commands = [line for kind, block in blocks if kind == "sh" for line in block.splitlines()]
    done = [lowchurn(*shlex.split(command)[1:]) for command in commands]
    assert [result.code for result in done] == [0] * len(commands)
    (shown,) = (block for kind, block in blocks if kind == "text")
    for line in shown.splitlines():
        assert line.strip() == "..." or line in done[0].out.splitlines(), line
