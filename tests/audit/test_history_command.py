"""``lowchurn history`` as a pipeline calls it: the files, the words, and bad input in one line."""

import inspect
import json
from types import SimpleNamespace

import pytest

from lowchurn.audit import history
from lowchurn.cli import main
from lowchurn.cli._history_options import history as options
from tests.audit.test_history import make_releases


@pytest.fixture
def folder(tmp_path):
    for i, table in enumerate(make_releases(3), start=1):
        table.to_parquet(tmp_path / f"v{i}.parquet")
    return tmp_path


@pytest.fixture
def lowchurn(folder, monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.chdir(folder)
        monkeypatch.setattr("sys.argv", ["lowchurn", "history", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return SimpleNamespace(returncode=left.value.code or 0, stdout=said.out, stderr=said.err)

    return call


FILES = ("v1.parquet", "v2.parquet", "v3.parquet")


def test_all_files_are_written(folder, lowchurn):
    outputs = ("--html", "history.html", "--json", "history.json", "--markdown", "history.md")
    done = lowchurn(
        *FILES, "--label", "y", "--by", "country", "--name", "June", "--name", "July", "--name", "|August|", *outputs
    )
    assert done.returncode == 0, done.stderr
    assert "3 releases on 300 rows, June to |August|" in done.stdout
    assert "written: history.html" in done.stdout
    page = (folder / "history.html").read_text()
    assert "June → |August|" in page
    assert "lowchurn history v1.parquet v2.parquet" in page
    read = json.loads((folder / "history.json").read_text())
    there = history([folder / name for name in FILES], label="y", by="country", names=["June", "July", "|August|"])
    expected = there.to_dict()
    for part in ("pairs", "slices", "restless", "by_changes"):
        assert read[part] == expected[part]
    assert [release["path"] for release in read["releases"]] == list(FILES)
    markdown = (folder / "history.md").read_text()
    assert markdown.startswith("## Model history\n")
    assert "| from ↓ to → | July | \\|August\\| |" in markdown
    for line in markdown.splitlines():
        assert not line.startswith("|") or line.endswith("|")


def test_the_table_in_words_has_a_line_for_each_release(lowchurn):
    done = lowchurn(*FILES, "--label", "y")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines if line and line[0] in {"v1", "v2", "v3"}] == ["v1", "v2", "v3"]


def test_on_a_terminal_it_is_a_table(lowchurn, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    assert "┃" in lowchurn(*FILES, "--label", "y").stdout


def test_settings_come_from_the_file_and_options_override_it(folder, lowchurn):
    text = '[audit]\nlabel = "y"\nby = ["country"]\nbootstrap = 500\nold_name = "x"\n[gate]\nmax_churn = 0.1\n'
    (folder / "lowchurn.toml").write_text(text)
    lowchurn(*FILES, "--by", "age", "--json", "out.json")
    made = json.loads((folder / "out.json").read_text())["made"]
    assert (made["label"], made["by"], made["config"]) == ("y", ["age"], "lowchurn.toml")
    assert made["settings"] == {"label": "y", "by": ["age"]}


def test_json_alone_goes_to_the_standard_output(lowchurn):
    done = lowchurn(*FILES, "--json", "/dev/stdout")
    assert done.returncode == 0
    assert "3 releases" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (FILES[:1], "history: releases must be 2 to 100, got 1"),
        ((*FILES, "--html", "v2.parquet"), "--html must not overwrite the release 'v2.parquet'"),
        ((*FILES, "--html", "a", "--json", "a"), "--json"),
        ((*FILES, "--name", "a"), "--name must be one text for each of 3 releases"),
        (("v1.parquet", "v9.parquet"), "no file 'v9.parquet'"),
        ((*FILES, "--label", "z"), "unknown label column 'z'"),
        ((*FILES, "--prediction", "prediction", "--prediction", "prediction"), "one for each of 'v1', 'v2', 'v3'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_written(folder, lowchurn, arguments, words):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = lowchurn(*arguments)
    assert done.returncode == 2
    (error,) = (line for line in done.stderr.splitlines() if not line.startswith("warning:"))
    assert error.startswith("error: ")
    assert words in error
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_ids_that_differ_are_refused_or_left_out(folder, lowchurn):
    table = make_releases(3)[2]
    table[table.id != 2**60].to_parquet(folder / "v3.parquet")
    done = lowchurn(*FILES)
    assert done.returncode == 2
    assert "1 ids are only in the 'v1' table" in done.stderr
    assert "Use --on-mismatch inner" in done.stderr
    assert lowchurn(*FILES, "--on-mismatch", "inner").returncode == 0


def test_every_setting_of_python_is_an_option():
    python, command = (set(inspect.signature(f).parameters) for f in (history, options))
    assert python <= command
    assert command - python == {"config", "html", "json", "markdown"}
