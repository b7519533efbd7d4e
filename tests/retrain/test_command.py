"""Retraining from files, as a person would call it."""

import json
import os
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.linear_model import LogisticRegression

import lowchurn
from lowchurn import cli
from lowchurn.retrain import choose_estimator


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    n = 900
    numbers = pd.DataFrame(rng.normal(size=(n, 3)), columns=["age", "size", "speed"])
    word = rng.choice(["red", "green", "blue"], n)
    score = numbers["age"] + (word == "red") + 0.7 * rng.normal(size=n)
    numbers.loc[::11, "size"] = np.nan
    return numbers.assign(colour=word, flag=rng.uniform(size=n) > 0.5, label=np.where(score > 0.3, "yes", "no"))


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    table.to_csv(folder / "rows.csv", index=False)
    table.assign(fresh=np.arange(len(table)) >= 300, w=1.0).to_parquet(folder / "rows.parquet")
    old = table[:300]
    rows = old.drop(columns="label")
    base = choose_estimator("logistic", None, rows).fit(rows, old["label"].to_numpy())
    (folder / "prod.skops").write_bytes(skops.io.dumps(base))
    return folder


class Result(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def lowchurn_cli(monkeypatch, capsys):
    """The command in this process: importing everything anew for each call would take most of the time."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["lowchurn", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return Result(stopped.value.code or 0, *capsys.readouterr())

    return call


def test_retrain_writes_a_model_and_a_report(folder, table, tmp_path, lowchurn_cli):
    result = lowchurn_cli(
        "retrain", "--data", folder / "rows.parquet", "--target", "label", "--base", folder / "prod.skops",
        "--max-churn", "0.05", "--new", "fresh", "--weight", "w", "--out", tmp_path / "next.skops",
        "--report", tmp_path / "report.json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "most accurate within hard churn 0.05" in result.stdout
    model, base = lowchurn.load(tmp_path / "next.skops"), lowchurn.load(folder / "prod.skops")
    rows = table.drop(columns="label")
    assert (model.predict(rows) != base.predict(rows)).mean() < 0.08
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["selection"]["churn"] <= 0.05
    cold = report["frontier"][0]
    assert cold["strategy"] == "cold"
    assert cold["fixed"] == model.frontier_[0].fixed
    assert cold["dial"] is None  # not on a dial: null, since JSON has no NaN
    assert cold["churn_interval"] == list(model.frontier_[0].churn_interval)


def test_a_dial_from_files(folder, table, tmp_path, lowchurn_cli):
    result = lowchurn_cli(
        "retrain", "--data", folder / "rows.parquet", "--target", "label", "--base", folder / "prod.skops",
        "--max-churn", "0.1", "--new", "fresh", "--weight", "w", "--out", tmp_path / "next.skops",
        "--strategies", "dial",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    rows = table.drop(columns="label")
    before = lowchurn.load(folder / "prod.skops").predict(rows)
    calmer, report = tmp_path / "calmer.skops", tmp_path / "report.json"
    result = lowchurn_cli(
        "dial", tmp_path / "next.skops", "--max-churn", "0.02", "--out", calmer, "--report", report
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "within hard churn 0.02" in result.stdout
    changed = [(lowchurn.load(p).predict(rows) != before).mean() for p in (calmer, tmp_path / "next.skops")]
    assert changed[0] < min(changed[1], 0.04)
    told = json.loads(report.read_text())
    assert told["parameters"]["max_churn"] == 0.02
    assert (told["data"], told["dialled_from"]) == (None, str(tmp_path / "next.skops"))
    again = lowchurn_cli("dial", calmer, "--max-churn", "0.1", "--out", tmp_path / "back.skops")
    assert again.returncode == 0, again.stderr  # what was dialled can be dialled again
    there_and_back, first = (lowchurn.load(tmp_path / name) for name in ("back.skops", "next.skops"))
    np.testing.assert_array_equal(there_and_back.predict_proba(rows), first.predict_proba(rows))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.skops", "--max-churn", "0.02", "--out", "x.skops"], "nowhere.skops"),
        (["plain.skops", "--max-churn", "0.02", "--out", "x.skops"], "there is no dial here"),
        (["plain.skops", "--max-churn", "2", "--out", "plain.skops"], "--out must not overwrite the model"),
        (
            ["PROD", "--max-churn", "0.02", "--out", "x.skops"],
            "must hold a retrained model with its dial, got a Pipeline",
        ),
    ],
)
def test_a_dial_of_files_that_have_none(folder, tmp_path, lowchurn_cli, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    lowchurn_cli("retrain", "--data", folder / "rows.csv", "--target", "label", "--out", "plain.skops",
                 "--estimator", "logistic")  # fmt: skip
    result = lowchurn_cli("dial", *(folder / "prod.skops" if a == "PROD" else a for a in arguments))
    assert result.returncode == 2
    assert words in result.stderr
    assert not (tmp_path / "x.skops").exists()


def test_a_first_training_has_no_base_and_mixed_columns_work(folder, table, tmp_path, lowchurn_cli):
    result = lowchurn_cli(
        "retrain", "--data", folder / "rows.csv", "--target", "label", "--out", tmp_path / "first.skops"
    )
    assert result.returncode == 0, result.stderr
    model = lowchurn.load(tmp_path / "first.skops")
    assert model.score(table.drop(columns="label"), table["label"]) > 0.7
    result = lowchurn_cli(
        "retrain", "--data", folder / "rows.csv", "--target", "label", "--base", tmp_path / "first.skops",
        "--max-churn", "0.05", "--out", tmp_path / "second.skops",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


@pytest.mark.filterwarnings("ignore:LowChurnClassifier")
def test_an_uncertified_budget_is_exit_code_1_and_no_model(folder, tmp_path, lowchurn_cli):
    result = lowchurn_cli(
        "retrain", "--data", folder / "rows.csv", "--target", "label", "--base", folder / "prod.skops", "--max-churn",
        "0.001", "--confidence", "0.99", "--out", tmp_path / "next.skops", "--report", tmp_path / "report.json",
    )  # fmt: skip
    assert result.returncode == 1, result.stderr
    assert "Not certified" in result.stdout
    assert not (tmp_path / "next.skops").exists()
    assert json.loads((tmp_path / "report.json").read_text())["certificate"]["certified"] is False


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--target": "labels"}, "Did you mean 'label'"),
        ({"--data": "nowhere.csv"}, "file that is there"),
        ({"--data": "rows.txt"}, ".csv or .parquet"),
        ({"--base": "nowhere.skops"}, "file that is there"),
        ({"--max-churn": "1.5"}, "--max-churn must be in (0, 1)"),
        ({"--out": "no/such/folder/next.skops"}, "there is no folder"),
        ({"--estimator": "forest"}, "--estimator must be one of"),
        ({"--drop": "age"}, "lack 1 of 5 columns"),
        ({"--new": "nothing"}, "unknown column"),
    ],
    ids=str,
)
def test_bad_usage_is_exit_code_2_without_a_traceback(folder, tmp_path, changes, words, lowchurn_cli, monkeypatch):
    options = {
        "--data": folder / "rows.csv", "--target": "label", "--base": folder / "prod.skops", "--max-churn": "0.05",
        "--out": tmp_path / "next.skops", **changes,
    }  # fmt: skip
    monkeypatch.chdir(tmp_path)
    result = lowchurn_cli("retrain", *[x for pair in options.items() for x in pair])
    assert result.returncode == 2
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


WRITER = """
import sys
from lowchurn.persistence import write_archive
data = bytes(10_000_000)
while True:
    write_archive(sys.argv[1], {"n": len(data)}, {"a": data})
    print("written", flush=True)
"""


def test_kill_9_while_writing_leaves_a_whole_model_or_none(tmp_path):
    """Killed at many moments of writing, the file is always complete."""
    from lowchurn.persistence import read_archive

    path = tmp_path / "next.skops"
    for delay in np.linspace(0, 0.4, 4):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        about, files = read_archive(path)
        assert about["n"] == len(files["a"])


def test_kill_9_during_retrain_leaves_the_old_model(folder, tmp_path):
    path = tmp_path / "next.skops"
    path.write_bytes(b"the old model")
    command = [
        sys.executable, "-m", "lowchurn.cli", "retrain", "--data", folder / "rows.csv", "--target", "label", "--base",
        folder / "prod.skops", "--max-churn", "0.05", "--out", path, "--search", "grid",
    ]  # fmt: skip
    for seconds in (1.0, 3.0):
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        process.kill()
        process.wait()
        if path.read_bytes() != b"the old model":
            lowchurn.load(path)  # it was done before the kill: then it is whole


def test_the_default_for_dates_is_a_clear_error():
    rows = pd.DataFrame({"day": pd.to_datetime(["2024-01-01", "2024-01-02"])})
    with pytest.raises(ValueError, match="hold dates"):
        choose_estimator("boosting", None, rows)
    assert choose_estimator("auto", LogisticRegression(), rows) is None
