"""``lowchurn audit`` as a pipeline calls it: every exit code, every file, nothing half-written."""

import hashlib
import inspect
import json
import os
import subprocess
import sys
from dataclasses import asdict
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import lowchurn as package
from lowchurn._tried import read_tried
from lowchurn.audit._settings import NAMES, Settings
from lowchurn.cli import main
from lowchurn.cli._audit import run_audit
from lowchurn.report._frontier_file import read_frontier


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    n = 2000
    y = rng.integers(0, 2, n)
    old = np.where(rng.random(n) < 0.1, 1 - y, y)
    new = np.where(rng.random(n) < 0.04, 1 - old, old)
    country = rng.choice(["de", "fr", "<script>"], n)
    pd.DataFrame({"id": range(n), "y": y, "country": country, "prediction": old}).to_parquet(tmp_path / "old.parquet")
    pd.DataFrame({"id": range(n), "prediction": new}).iloc[::-1].to_parquet(tmp_path / "new.parquet")
    return tmp_path


def in_a_process(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "lowchurn", "audit", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False, cwd=folder,
    )  # fmt: skip


@pytest.fixture
def lowchurn(folder, monkeypatch, capsys):
    """The entry point itself, without the seconds that a new interpreter takes to import everything."""

    def call(*arguments):
        monkeypatch.chdir(folder)
        monkeypatch.setattr("sys.argv", ["lowchurn", "audit", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return SimpleNamespace(returncode=left.value.code or 0, stdout=said.out, stderr=said.err)

    return call


@pytest.mark.parametrize(
    ("limit", "code", "word"), [("0.10", 0, "PASS"), ("0.01", 1, "FAIL"), ("0.041", 3, "INCONCLUSIVE")]
)
def test_the_verdict_is_the_exit_code(folder, limit, code, word):
    done = in_a_process(folder, "old.parquet", "new.parquet", "--id", "id", "--label", "y", "--max-churn", limit)
    assert done.returncode == code
    assert word in done.stdout
    assert not done.stderr


def test_without_limits_nothing_is_judged(lowchurn):
    done = lowchurn("old.parquet", "new.parquet")
    assert done.returncode == 0
    assert "decisions change" in done.stdout


def test_all_files_are_written(folder, lowchurn):
    done = lowchurn(
        "old.parquet", "new.parquet", "--id", "id", "--label", "y", "--by", "country", "--max-churn", "0.03",
        "--slice-max-churn", "0.2", "--slice-min-rows", "10", "--html", "report.html", "--json", "report.json",
        "--junit", "gate.xml", "--markdown", "summary.md", "--disputed", "label-me.csv", "--disputed-rows", "20",
    )  # fmt: skip
    assert done.returncode in (1, 3), done.stderr
    figures = json.loads((folder / "report.json").read_text())
    assert figures["verdict"]["exit_code"] == done.returncode
    assert figures["made"]["command"].startswith("lowchurn audit old.parquet new.parquet")
    assert len(ElementTree.parse(folder / "gate.xml").findall("testcase")) == 4
    assert (folder / "summary.md").read_text().startswith("## Model audit: ")
    page = (folder / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert len(page) < 2_000_000
    table = pd.read_csv(folder / "label-me.csv")
    assert list(table.columns) == ["id", "answer_1", "answer_2", "label"]
    assert len(table) == 20
    truth = pd.read_parquet(folder / "old.parquet").set_index("id").y
    table.assign(label=table.id.map(truth)).to_csv(folder / "answers.csv", index=False)
    done = lowchurn("old.parquet", "new.parquet", "--answers", "answers.csv", "--markdown", "again.md")
    assert "from 20 labels of" in done.stdout
    assert "from 20 labels of" in (folder / "again.md").read_text()
    assert not [name for name in os.listdir(folder) if name.endswith(".lowchurn")]


def test_one_broken_row_that_must_not_break_fails(folder, lowchurn):
    done = lowchurn("old.parquet", "new.parquet", "--label", "y", "--by", "country", "--never-break", "country=de")
    assert done.returncode == 1
    assert "country=de: " in done.stdout
    assert "rows went from right to wrong, none may." in done.stdout
    (folder / "lowchurn.toml").write_text('[audit]\nlabel = "y"\n[gate]\nnever_break = ["9999"]\n')
    done = lowchurn("old.parquet", "new.parquet")
    assert done.returncode == 2
    assert "unknown slice or id to never break '9999'" in done.stderr


def test_a_frontier_is_drawn(folder, lowchurn):
    points = [{"strategy": "distill", "setting": "lam=0.5", "accuracy": 0.9, "churn": 0.03, "chosen": True}]
    (folder / "frontier.json").write_text(json.dumps(points))
    done = lowchurn("old.parquet", "new.parquet", "--frontier", "frontier.json", "--html", "report.html")
    assert done.returncode == 0
    assert "distill(lam=0.5)" in (folder / "report.html").read_text()


def test_a_report_of_retrain_is_a_frontier_with_its_budget_and_what_is_served(folder, lowchurn):
    points = [
        {
            "strategy": "soup",
            "setting": f"toward_base={a}",
            "accuracy": 0.9 - a / 50,
            "churn": 0.04 * (1 - a),
            "dial": a,
        }
        for a in (0.0, 0.5, 1.0)
    ]
    report = {"parameters": {"max_churn": 0.03}, "selection": {"served": {"soup(toward_base=0.5)": 1.0}}}
    (folder / "report.json").write_text(json.dumps(report | {"frontier": points}))
    done = lowchurn("old.parquet", "new.parquet", "--frontier", "report.json", "--html", "report.html")
    assert done.returncode == 0, done.stderr
    page = (folder / "report.html").read_text()
    assert 'max="2" step="1" value="1"' in page
    assert "the budget of 3 %" in page
    (folder / "report.json").write_text(json.dumps(report))
    wrong = lowchurn("old.parquet", "new.parquet", "--frontier", "report.json", "--html", "report.html")
    assert wrong.returncode == 2
    assert "or what lowchurn retrain --report wrote" in wrong.stderr


def test_settings_from_a_file_and_flags_have_the_word(folder, lowchurn):
    (folder / "lowchurn.toml").write_text('[audit]\nlabel = "y"\nby = ["country"]\n[gate]\nmax_churn = 0.01\n')
    assert lowchurn("old.parquet", "new.parquet").returncode == 1
    assert lowchurn("old.parquet", "new.parquet", "--max-churn", "0.2").returncode == 0
    (folder / "other.toml").write_text('[audit]\nlable = "y"\n')
    wrong = lowchurn("old.parquet", "new.parquet", "--config", "other.toml")
    assert wrong.returncode == 2
    assert "Did you mean 'label'" in wrong.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("old.parquet",),
        ("old.parquet", "missing.parquet"),
        ("old.parquet", "new.parquet", "--id", "ids"),
        ("old.parquet", "new.parquet", "--max-churn", "3"),
        ("old.parquet", "new.parquet", "--max-churn", "few"),
        ("old.parquet", "new.parquet", "--nonsense"),
        ("old.parquet", "new.parquet", "--html", "no-such-folder/report.html"),
        ("old.parquet", "new.parquet", "--html", "."),
        ("old.parquet", "new.parquet", "--json", "old.parquet"),
        ("old.parquet", "new.parquet", "--json", "a", "--html", "a"),
        ("old.parquet", "new.parquet", "--junit", "gate.xml"),
        ("old.parquet", "new.parquet", "--html", "/proc/report.html"),
        ("old.parquet", "new.parquet", "--config", "missing.toml"),
        ("old.parquet", "new.parquet", "--frontier", "noise.csv", "--html", "report.html"),
        ("old.parquet", "new.parquet", "--answers", "missing.csv", "--html", "report.html"),
        ("noise.parquet", "new.parquet", "--html", "report.html"),
        ("noise.csv", "new.parquet", "--json", "report.json"),
    ],
)
def test_bad_usage_is_exit_code_2_one_line_and_no_file(folder, lowchurn, arguments):
    (folder / "noise.parquet").write_bytes(np.random.default_rng(0).bytes(3000))
    (folder / "noise.csv").write_bytes(np.random.default_rng(1).bytes(3000))
    before = {name: (folder / name).read_bytes() for name in os.listdir(folder)}
    done = lowchurn(*arguments)
    assert done.returncode == 2, done.stdout
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr
    assert {name: (folder / name).read_bytes() for name in os.listdir(folder)} == before


@pytest.fixture
def unlabelled(folder):
    """The answers to all disagreements of the folder's tables, of which the old one has lost its labels."""
    old = pd.read_parquet(folder / "old.parquet")
    both = old.merge(pd.read_parquet(folder / "new.parquet"), on="id", suffixes=("", "_new"))
    changed = both[both.prediction != both.prediction_new]
    old.drop(columns="y").to_parquet(folder / "old.parquet")
    changed[["id", "y"]].rename(columns={"y": "label"}).to_csv(folder / "answers.csv", index=False)
    return changed


def test_the_gate_uses_the_answers(folder, lowchurn, unlabelled):
    limits = ("--not-worse-than", "0.05", "--max-broken", "0.1")
    blind = lowchurn("old.parquet", "new.parquet", *limits)
    assert blind.returncode == 3
    assert "review plan" in blind.stdout
    done = lowchurn("old.parquet", "new.parquet", *limits, "--answers", "answers.csv", "--json", "report.json")
    assert done.returncode == 0, done.stdout
    assert f"from the review of {len(unlabelled)} of {len(unlabelled)} disagreements" in done.stdout
    assert "review plan" not in done.stdout
    assert "by the review of disagreements: " in done.stdout
    assert "nothing is known" not in done.stdout
    figures = json.loads((folder / "report.json").read_text())
    change = (unlabelled.prediction_new == unlabelled.y).sum() - (unlabelled.prediction == unlabelled.y).sum()
    assert figures["review"]["accuracy_change"]["value"] == pytest.approx(change / 2000)
    assert figures["verdict"]["checks"][1]["estimate"] == figures["review"]["accuracy_change"]


def test_a_wrong_answer_is_refused_with_its_row_and_names_the_option(folder, lowchurn, unlabelled):
    unlabelled[["id", "y"]].rename(columns={"y": "label"}).assign(label="yes").to_csv(folder / "wrong.csv", index=False)
    done = lowchurn("old.parquet", "new.parquet", "--answers", "wrong.csv", "--json", "report.json")
    assert done.returncode == 2
    assert "'yes' in row 2 of 'wrong.csv' is not a class" in done.stderr
    assert "--class" in done.stderr
    assert not (folder / "report.json").exists()


def test_the_review_plan_is_not_printed_where_every_row_has_its_label(lowchurn):
    assert "review plan" not in lowchurn("old.parquet", "new.parquet", "--label", "y").stdout


@pytest.mark.parametrize(("policy", "code"), [("fail", 3), ("warn", 0), ("pass", 0)])
def test_the_policy_for_inconclusive(folder, lowchurn, policy, code):
    arguments = ("old.parquet", "new.parquet", "--max-churn", "0.041", "--junit", "gate.xml")
    done = lowchurn(*arguments, "--inconclusive", policy)
    assert done.returncode == code
    assert "INCONCLUSIVE" in done.stdout
    assert ("warning: the verdict is INCONCLUSIVE" in done.stderr) == (policy == "warn")
    (folder / "lowchurn.toml").write_text(f'[gate]\ninconclusive = "{policy}"\n')
    assert lowchurn(*arguments).returncode == code
    assert lowchurn(*arguments, "--inconclusive", "fail").returncode == 3
    suite = ElementTree.parse(folder / "gate.xml").getroot()
    assert suite.get("errors") == "1"


OUTPUTS = ("--html", "--json", "--junit", "--markdown", "--disputed")


@pytest.fixture
def inputs(folder):
    """Every kind of input, each also under another name."""
    (folder / "set.toml").write_text("[gate]\nmax_churn = 0.5\n")
    (folder / "answers.csv").write_text("id,label\n")
    (folder / "tried.json").write_text("[]")
    (folder / "parts").mkdir()
    (folder / "old.parquet").rename(folder / "parts" / "a.parquet")
    os.symlink(folder / "parts" / "a.parquet", folder / "link.parquet")
    os.link(folder / "new.parquet", folder / "hard.parquet")
    return (
        "parts/*.parquet",
        "new.parquet",
        "--config",
        "set.toml",
        "--answers",
        "answers.csv",
        "--frontier",
        "tried.json",
    )


@pytest.mark.parametrize("option", OUTPUTS)
@pytest.mark.parametrize(
    "path",
    ["parts/a.parquet", "./new.parquet", "link.parquet", "hard.parquet", "set.toml", "answers.csv", "tried.json"],
)
def test_no_output_is_an_input(folder, inputs, monkeypatch, option, path):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("lowchurn.cli._audit.audit_tables", lambda *_, **__: pytest.fail("work before the check"))
    names = ("old", "new", "config", "answers", "frontier")
    given = dict(zip(names, (inputs[0], inputs[1], *inputs[3::2]), strict=True)) | {option.strip("-"): path}
    before = {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=f"{option} must not overwrite"):
        run_audit(given)
    assert {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("old", "path"), [("base.duckdb::t", "base.duckdb"), ("parts", "parts/a.parquet"), ("p[1].csv", "p[1].csv")]
)
def test_databases_folders_and_literal_names_are_inputs_too(folder, monkeypatch, old, path):
    monkeypatch.chdir(folder)
    (folder / "parts").mkdir()
    (folder / path).write_bytes(b"rows")
    with pytest.raises(ValueError, match="--json must not overwrite the old table"):
        run_audit({"old": old, "new": "new.parquet", "json": path})
    with pytest.raises(ValueError, match="--html and --json must be different files"):
        run_audit({"old": "old.parquet", "new": "new.parquet", "json": "./x", "html": "x"})


def test_labels_that_are_filled_in_are_not_replaced_without_force(folder, lowchurn):
    arguments = ("old.parquet", "new.parquet", "--disputed", "label-me.csv")
    assert lowchurn(*arguments).returncode == 0
    assert lowchurn(*arguments).returncode == 0  # nothing is filled in yet
    filled = (folder / "label-me.csv").read_text().replace(",\n", ",1\n", 1)
    (folder / "label-me.csv").write_text(filled)
    done = lowchurn(*arguments)
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert lowchurn("old.parquet", "new.parquet", "--json", "gone/../label-me.csv").returncode == 2
    assert (folder / "label-me.csv").read_text() == filled
    assert lowchurn(*arguments, "--force").returncode == 0
    assert (folder / "label-me.csv").read_text() != filled


def test_links_are_followed_and_the_true_path_is_said(folder, lowchurn):
    (folder / "kept").mkdir()
    os.symlink(folder / "kept" / "report.json", folder / "report.json")
    done = lowchurn("old.parquet", "new.parquet", "--json", "report.json", "--markdown", "summary.md")
    assert (folder / "report.json").is_symlink()
    assert json.loads((folder / "kept" / "report.json").read_text())["rows"]["paired"] == 2000
    assert f"written: {os.path.realpath(folder / 'kept' / 'report.json')}" in done.stdout
    assert "written: summary.md" in done.stdout


def test_devices_and_pipes_are_written_to(folder):
    line = (
        f"{sys.executable} -m lowchurn audit old.parquet new.parquet --json /dev/stdout --html /dev/null "
        "--markdown >(cat > piped.md) | cat > piped.json; sleep 0.2"
    )
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert json.loads((folder / "piped.json").read_text())["rows"]["paired"] == 2000
    assert (folder / "piped.md").read_text().startswith("## Model audit")
    assert "decisions change" in done.stderr
    assert os.path.exists("/dev/null")
    assert not os.path.isfile("/dev/null")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not valid JSON"),
        ("{}", "or what lowchurn retrain --report wrote"),
        ("3", "or what lowchurn retrain --report wrote"),
        ("[3]", "wrong structure"),
        ('[{"accuracy": 0.9}]', "missing required field `churn`"),
        ('[{"accuracy": "high", "churn": 0.1}]', "wrong structure"),
        ('[{"accuracy": NaN, "churn": 0.1}]', r"setting 1: accuracy must be in \[0, 1\], got nan"),
        ('[{"accuracy": 0.9, "churn": 0.1}, {"accuracy": 0.9, "churn": Infinity}]', "setting 2: churn must be"),
        ('[{"accuracy": 0.9, "churn": 1e400}]', "churn must be in"),
        ('[{"accuracy": 0.9, "churn": 1' + "0" * 400 + "}]", "wrong structure|churn must be in|not valid JSON"),
        ('[{"accuracy": 1.5, "churn": 0.1}]', "accuracy must be in"),
        ('[{"accuracy": 0.9, "churn": -0.1}]', "churn must be in"),
        ('[{"accuracy": 0.9, "churn": 0.1, "churn_interval": [0.2, 0.1]}]', "lower end first"),
        ('[{"accuracy": 0.9, "churn": 0.1, "churn_interval": [0.2]}]', "wrong structure"),
        ('[{"accuracy": 0.9, "churn": 0.1, "strategy": ["a"]}]', "wrong structure"),
        ('[{"accuracy": 0.9, "churn": 0.1, "dial": 7}]', "dial must be in"),
        ('{"frontier": 3}', "wrong structure"),
        ('{"frontier": [], "parameters": 3}', "wrong structure"),
        ('{"frontier": [], "parameters": {"max_churn": "low"}}', "wrong structure"),
        ('{"frontier": [], "parameters": {"max_churn": 1e999}}', "max_churn must be in"),
        ('{"frontier": [], "parameters": {"churn": "medium"}}', "wrong structure"),
        ('{"frontier": [], "selection": {"served": [1]}}', "wrong structure"),
        ('{"frontier": [], "selection": {"served": {"a": -1}}}', "a weight in served must be in"),
        ("[" * 100_000, "nested too deeply|not valid JSON"),
        ("\udcff", "is not valid JSON"),
    ],
)
def test_a_damaged_frontier_is_one_clear_line(folder, monkeypatch, text, words):
    monkeypatch.chdir(folder)
    (folder / "tried.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=words) as error:
        run_audit({"old": "old.parquet", "new": "new.parquet", "frontier": "tried.json"})
    assert "\n" not in str(error.value)
    assert "tried.json" in str(error.value)


def test_a_frontier_keeps_what_the_file_has(folder):
    points = [
        {"strategy": "<b>\x1b[2J", "accuracy": 0.9, "churn": None, "churn_interval": None, "risk": 3},
        {"strategy": "cold", "accuracy": 0.9, "accuracy_interval": [0.8, 0.95], "churn": 0.1, "broken_low": 0.01},
    ]
    (folder / "tried.json").write_text(json.dumps(points))
    assert read_tried(read_frontier(str(folder / "tried.json"))) == read_tried(points)
    with pytest.raises(ValueError, match="cannot read the frontier"):
        read_frontier(str(folder))


def test_errors_name_options(folder, lowchurn):
    pd.read_parquet(folder / "new.parquet")[1:].to_parquet(folder / "short.parquet")
    assert "--on-mismatch inner" in lowchurn("old.parquet", "short.parquet").stderr
    text = pd.DataFrame({"id": [1, 2], "score": [0.1, 0.9], "y": ["a", "b"]})
    text.to_csv(folder / "text.csv", index=False)
    assert "--class negative --class positive" in lowchurn("text.csv", "text.csv", "--label", "y").stderr
    for option, value in (
        ("--max-churn", "3"),
        ("--slice-max-churn", "nan"),
        ("--min-rows", "-1"),
        ("--junit", "g.xml"),
    ):
        done = lowchurn("old.parquet", "new.parquet", option, value)
        assert done.returncode == 2
        assert f": {option} " in done.stderr
        assert "_" not in done.stderr


def test_no_value_of_the_data_reaches_the_terminal_raw(folder, lowchurn):
    bad = "\x1b[2J\rPASS\nx\u202e"
    n = 400
    old = pd.DataFrame({"id": range(n), bad: [bad, "plain"] * (n // 2), "y": bad + "1", "prediction": bad + "1"})
    old.to_parquet(folder / "odd.parquet")
    new = old[["id"]].assign(prediction=[bad + "2", bad + "1"] * (n // 2))
    new.to_parquet(folder / "odder.parquet")
    done = lowchurn(
        "odd.parquet", "odder.parquet", "--label", "y", "--by", bad, "--max-churn", "0.1",
        "--slice-max-churn", "0.1", "--markdown", "summary.md",
    )  # fmt: skip
    assert done.returncode == 1
    wrong = lowchurn("odd.parquet", "odder.parquet", "--id", bad + "no")
    assert wrong.returncode == 2
    for said in (done.stdout, wrong.stderr, (folder / "summary.md").read_text()):
        assert not set(said) & set("\x1b\r\u202e")
        assert "\nx" not in said
    assert "\\x1b[2J" in done.stdout


def test_what_was_audited_is_in_the_outputs(folder, lowchurn):
    (folder / "set.toml").write_text(
        '[audit]\nlabel = "y"\nold_name = "v1"\nconfidence = 0.9\n[gate]\nmax_churn = 0.5\n'
        "[gate.slices.country]\nmax_churn = 0.9\n"
    )
    lowchurn(
        "old.parquet", "new.parquet", "--config", "set.toml", "--new-name", "v2 <b>", "--confidence", "0.95",
        "--by", "country", "--max-churn", "0.4", "--json", "report.json", "--markdown", "summary.md",
    )  # fmt: skip
    made = json.loads((folder / "report.json").read_text())["provenance"]
    assert (made["old"]["name"], made["new"]["name"], made["config"]) == ("v1", "v2 <b>", "set.toml")
    assert made["old"]["sha256"] == hashlib.sha256((folder / "old.parquet").read_bytes()).hexdigest()
    # 0.95 is the default, so it is no setting that stands out.
    expected = {"label": "y", "by": ["country"], "gate.max_churn": 0.4, "gate.slices.country.max_churn": 0.9}
    assert made["settings"] == expected
    assert set(made["from_config"]) == {"label", "old_name", "gate.slices.country.max_churn"}
    text = (folder / "summary.md").read_text()
    assert f"v1, old.parquet, sha256 {made['old']['sha256']}" in text
    assert "v2 &lt;b&gt;" in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(folder, lowchurn):
    (folder / "locked").mkdir(mode=0o500)
    done = lowchurn("old.parquet", "new.parquet", "--html", "locked/report.html")
    assert done.returncode == 2
    assert "Permission denied" in done.stderr


def test_a_failure_while_writing_leaves_the_old_file(folder, monkeypatch):
    (folder / "report.json").write_text("before")
    monkeypatch.chdir(folder)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(ValueError, match="No space left on device"):
        run_audit({"old": "old.parquet", "new": "new.parquet", "json": "report.json"})
    assert (folder / "report.json").read_text() == "before"
    assert not [name for name in os.listdir(folder) if name.endswith(".lowchurn")]


def test_words_in_brackets_are_shown_as_they_are(lowchurn):
    done = lowchurn("old.parquet", "new.parquet", "--id", "[red]id[/]")
    assert "[red]id[/]" in done.stderr


def test_the_signature_is_the_list_of_settings():
    parameters = list(inspect.signature(package.audit.audit).parameters.values())[2:]
    assert {p.name: p.default for p in parameters} == asdict(Settings())
    assert [p.name for p in parameters] == list(NAMES)


def test_the_package_imports_no_room_before_it_is_used():
    assert not callable(package.audit)
    light = "import sys, lowchurn\nassert 'ibis' not in sys.modules"
    subprocess.run([sys.executable, "-c", light], check=True, timeout=60)
    with pytest.raises(AttributeError, match="nonsense"):
        package.nonsense  # noqa: B018


@pytest.mark.parametrize("library", ["ibis"])
def test_a_missing_library_names_the_extra(library):
    code = (
        f"import sys\nsys.modules[{library!r}] = None\nsys.argv = ['lowchurn', 'audit', 'a.csv', 'b.csv']\n"
        "from lowchurn.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert 'pip install "lowchurn[audit]"' in done.stderr
    assert "Traceback" not in done.stderr
