"""``lowchurn audit`` as a pipeline calls it: every exit code, every file, nothing half-written."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import lowchurn as package
from lowchurn.cli import main
from lowchurn.report.command import run_audit


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
        [sys.executable, "-m", "lowchurn.cli", "audit", *map(str, arguments)],
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
    assert not [name for name in os.listdir(folder) if name.startswith(".lowchurn")]


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
    assert "the budget of 3%" in page
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
        run_audit({"old": "old.parquet", "new": "new.parquet", "json": "report.json"}, Console(quiet=True))
    assert (folder / "report.json").read_text() == "before"
    assert not [name for name in os.listdir(folder) if name.startswith(".lowchurn")]


def test_words_in_brackets_are_shown_as_they_are(lowchurn):
    done = lowchurn("old.parquet", "new.parquet", "--id", "[red]id[/]")
    assert "[red]id[/]" in done.stderr


def test_the_module_can_be_called_whatever_was_imported_first():
    for first in ("import lowchurn", "from lowchurn.audit import Audit"):
        code = (
            f"{first}\nimport lowchurn, pandas as pd\nrows = pd.DataFrame({{'id': [1], 'prediction': [0]}})\n"
            "assert lowchurn.audit(rows, rows).identical\nfrom lowchurn.audit import Audit, audit\n"
            "assert isinstance(audit(rows, rows), Audit)\n"
            "import inspect\nassert 'on_mismatch' in inspect.signature(lowchurn.audit).parameters\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    light = "import sys, lowchurn\nassert 'ibis' not in sys.modules\nassert 'statsmodels' not in sys.modules"
    subprocess.run([sys.executable, "-c", light], check=True, timeout=60)
    with pytest.raises(AttributeError, match="nonsense"):
        package.nonsense  # noqa: B018


@pytest.mark.parametrize("library", ["ibis", "statsmodels"])
def test_a_missing_library_names_the_extra(library):
    code = (
        f"import sys\nsys.modules[{library!r}] = None\nsys.argv = ['lowchurn', 'audit', 'a.csv', 'b.csv']\n"
        "from lowchurn.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert 'pip install "lowchurn[audit]"' in done.stderr
    assert "Traceback" not in done.stderr
