"""Retraining from files, as a person would call it."""

import decimal
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skops.io
from lightgbm import LGBMClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.pipeline import Pipeline

import lowchurn
from lowchurn import LowChurnClassifier, cli
from lowchurn.retrain import _command
from lowchurn.retrain._estimators import choose_estimator


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
    labels = Pipeline([("columns", base[0]), ("model", RidgeClassifier())]).fit(rows, old["label"])
    (folder / "labels.skops").write_bytes(skops.io.dumps(labels))
    (folder / "list.skops").write_bytes(skops.io.dumps([1]))
    (folder / "rows.pkl").write_bytes(pickle.dumps([1]))
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
    assert "most accurate within a churn of 5 %" in result.stdout
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
    assert "within a churn of 2 %" in result.stdout
    changed = [(lowchurn.load(p).predict(rows) != before).mean() for p in (calmer, tmp_path / "next.skops")]
    assert changed[0] < min(changed[1], 0.04)
    told = json.loads(report.read_text())
    assert told["parameters"]["max_churn"] == 0.02
    assert (told["data"], told["dialled_from"]) == (None, str(tmp_path / "next.skops"))
    again = lowchurn_cli("dial", calmer, "--max-churn", "0.1", "--out", tmp_path / "back.skops")
    assert again.returncode == 0, again.stderr  # what was dialled can be dialled again
    there_and_back, first = (lowchurn.load(tmp_path / name) for name in ("back.skops", "next.skops"))
    np.testing.assert_array_equal(there_and_back.predict_proba(rows), first.predict_proba(rows))


def printed_table(stdout):
    """The rows of the table that the commands print first."""
    head, *rows = stdout.splitlines()[:4]
    assert head.split()[0] == "accuracy"
    return {row[:13].strip(): re.split(r"\s{2,}", row[13:].strip()) for row in rows}


@pytest.mark.parametrize("strategies", ["sticky", "distill", "dial"])
def test_base_plain_retrain_and_served_model_are_printed_and_reported_beside_each_other(
    folder, tmp_path, lowchurn_cli, strategies
):
    out, report = tmp_path / "next.skops", tmp_path / "report.json"
    result = lowchurn_cli(
        "retrain", "--data", folder / "rows.parquet", "--target", "label", "--base", folder / "prod.skops",
        "--max-churn", "0.01", "--new", "fresh", "--weight", "w", "--out", out, "--report", report,
        "--strategies", strategies,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    told, found = json.loads(report.read_text()), lowchurn.load(out)
    selection, plain = found.selection_, found.frontier_[0]
    shown = printed_table(result.stdout)
    assert list(shown) == [row["model"] for row in told["compared"]] == ["base", "plain retrain", "served"]
    for row in told["compared"]:
        shares = [f"{100 * row[name]:.2f} %" for name in ("accuracy", "churn", "broken", "fixed")]
        assert shown[row["model"]] == [*shares, str(row["models"])]
    base, retrained, served = told["compared"]
    assert (base["accuracy"], base["churn"]) == (selection.base_accuracy, 0)
    assert (retrained["accuracy"], retrained["churn"]) == (plain.accuracy, plain.churn)
    assert (served["accuracy"], served["churn"]) == (selection.accuracy, selection.churn)
    (chosen,) = (row for row in found.frontier_ if row.name in selection.served)
    assert served["models"] == selection.models == chosen.models
    assert all(sentence in result.stdout.splitlines() for sentence in selection.sentences)
    assert told["selection"]["budget_left"] == pytest.approx(0.01 - selection.churn)
    assert told["selection"]["accuracy_cost"] == pytest.approx(plain.accuracy - selection.accuracy)


def test_what_is_not_measured_is_a_dash_and_null(folder, table, tmp_path, lowchurn_cli):
    table.drop(columns="label").to_csv(tmp_path / "traffic.csv", index=False)
    report = tmp_path / "report.json"
    result = lowchurn_cli(
        "retrain", "--data", folder / "rows.csv", "--target", "label", "--base", folder / "prod.skops", "--max-churn",
        "0.05", "--traffic", tmp_path / "traffic.csv", "--strategies", "sticky", "--out", tmp_path / "next.skops",
        "--report", report,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert all(cells[0] == "-" and cells[2:4] == ["-", "-"] for cells in printed_table(result.stdout).values())
    assert [row["accuracy"] for row in json.loads(report.read_text())["compared"]] == [None] * 3


def test_the_base_unchanged_is_named_and_a_first_training_has_nothing_to_compare(folder, tmp_path, lowchurn_cli):
    command = ["retrain", "--data", folder / "rows.csv", "--target", "label", "--out", tmp_path / "next.skops"]
    result = lowchurn_cli(*command, "--base", folder / "prod.skops", "--max-churn", "0")
    assert "This is the base unchanged" in result.stdout
    shown = printed_table(result.stdout)
    assert shown["served"] == shown["base"]
    report = tmp_path / "report.json"
    assert lowchurn_cli(*command, "--report", report).stdout.startswith("cold: plain retrain, there is no base.")
    assert json.loads(report.read_text())["compared"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.skops", "--max-churn", "0.02", "--out", "x.skops"], "nowhere.skops"),
        (
            ["plain.skops", "--max-churn", "0.02", "--out", "x.skops"],
            "there is no dial here, in 'plain.skops'. Retrain with a base and --strategies dial or --strategies auto.",
        ),
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
        ({"--max-churn": "1.5"}, "--max-churn must be in [0, 1)"),
        ({"--out": "no/such/folder/next.skops"}, "there is no folder"),
        ({"--estimator": "forest"}, "--estimator must be one of"),
        ({"--drop": "age"}, "lack 1 of 5 columns"),
        ({"--new": "nothing"}, "unknown column"),
        ({"--held-out": "label"}, "--held-out must be another column than the target"),
        ({"--weight": "label"}, "--weight must be another column than the target"),
        ({"--base": "rows.pkl"}, "where you trust this one, load with --trust rows.pkl."),
        ({"--base": "list.skops"}, "--base must be the file of a fitted classifier, and 'list.skops' contains a list."),
        ({"--base": "labels.skops"}, "RidgeClassifier does not. Choose what to train: --estimator boosting or --est"),
    ],
    ids=str,
)
def test_bad_usage_is_exit_code_2_without_a_traceback(folder, tmp_path, changes, words, lowchurn_cli, monkeypatch):
    options = {
        "--data": folder / "rows.csv", "--target": "label", "--base": folder / "prod.skops", "--max-churn": "0.05",
        "--out": tmp_path / "next.skops", **changes,
    }  # fmt: skip
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    result = lowchurn_cli("retrain", *[x for pair in options.items() for x in pair])
    assert result.returncode == 2
    assert sorted(folder.iterdir()) == before
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


BASE_OPTIONS = ("--target", "label", "--max-churn", "0.05")


def test_columns_that_the_base_does_not_have_are_named_and_left_out(folder, table, tmp_path, lowchurn_cli):
    table.assign(row_id=np.arange(len(table)), day=pd.Timestamp("2024-01-01")).to_parquet(tmp_path / "rows.parquet")
    command = ("retrain", "--data", tmp_path / "rows.parquet", "--base", folder / "prod.skops", *BASE_OPTIONS)
    result = lowchurn_cli(*command, "--out", tmp_path / "next.skops", "--report", tmp_path / "report.json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == (
        "warning: retrain: left out, since the base does not have them: 'row_id', 'day'. Train on them as well with "
        "--all-columns.\n"
    )
    features = ["age", "size", "speed", "colour", "flag"]
    assert lowchurn.load(tmp_path / "next.skops").feature_names_in_.tolist() == features
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["features"], report["left_out"]) == (features, ["row_id", "day"])
    result = lowchurn_cli(*command, "--out", tmp_path / "all.skops", "--all-columns", "--drop", "day",
                          "--estimator", "logistic")  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert lowchurn.load(tmp_path / "all.skops").feature_names_in_.tolist() == [*features, "row_id"]


@pytest.mark.parametrize("values", [("no", "yes"), ("False", "True"), ("0", "1"), (0, 1), (0.0, 1.0), (False, True)])
def test_new_rows_in_every_spelling_are_the_same_rows(folder, table, tmp_path, lowchurn_cli, values):
    """Text is true in Python: all rows were taken for new ones."""
    table.assign(fresh=[values[k >= 300] for k in range(len(table))]).to_parquet(tmp_path / "rows.parquet")
    result = lowchurn_cli(
        "retrain", "--data", tmp_path / "rows.parquet", "--base", folder / "prod.skops", *BASE_OPTIONS, "--new",
        "fresh", "--out", tmp_path / "next.skops",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    expected = lowchurn_cli(
        "retrain", "--data", folder / "rows.parquet", "--base", folder / "prod.skops", *BASE_OPTIONS, "--new",
        "fresh", "--drop", "w", "--out", tmp_path / "other.skops",
    )  # fmt: skip
    assert result.stdout.splitlines()[:-1] == expected.stdout.splitlines()[:-1]


def test_decimals_are_numbers(tmp_path, lowchurn_cli):
    """Taken for words, they gave an accuracy of chance on data that a line separates."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    amounts = pa.array([decimal.Decimal(f"{value:.4f}") for value in x])
    pq.write_table(pa.table({"amount": amounts, "y": (x > 0).astype(int)}), tmp_path / "rows.parquet")
    for estimator in ("boosting", "logistic"):
        result = lowchurn_cli(
            "retrain", "--data", tmp_path / "rows.parquet", "--target", "y", "--out", tmp_path / "m.skops",
            "--estimator", estimator,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        model = lowchurn.load(tmp_path / "m.skops")
        unseen = rng.normal(size=200)
        assert model.score(pd.DataFrame({"amount": unseen}), (unseen > 0).astype(int)) > 0.95


def test_a_text_column_of_digits_reaches_the_base_as_text(tmp_path, lowchurn_cli):
    """'007' read as 7 is a category that the base has never seen."""
    rng = np.random.default_rng(0)
    shop = rng.choice(["007", "008", "010"], 400)
    rows = pd.DataFrame({"shop": shop, "size": rng.normal(size=400)})
    y = np.where((shop == "007") ^ (rng.uniform(size=400) < 0.05), "yes", "no")
    base = choose_estimator("logistic", None, rows).fit(rows[:200], y[:200])
    (tmp_path / "prod.skops").write_bytes(skops.io.dumps(base))
    rows.assign(label=y).to_csv(tmp_path / "rows.csv", index=False)
    result = lowchurn_cli(
        "retrain", "--data", tmp_path / "rows.csv", "--base", tmp_path / "prod.skops", *BASE_OPTIONS,
        "--out", tmp_path / "next.skops",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert lowchurn.load(tmp_path / "next.skops").score(rows, y) > 0.9


def test_the_index_of_a_table_is_no_feature_unless_asked_for(table, tmp_path, lowchurn_cli):
    table[["age", "label"]].to_csv(tmp_path / "rows.csv")
    command = ("retrain", "--data", tmp_path / "rows.csv", "--target", "label", "--out", tmp_path / "next.skops",
               "--estimator", "logistic")  # fmt: skip
    result = lowchurn_cli(*command)
    assert "left out, since they are the index of the table: 'Unnamed: 0'." in result.stderr
    assert lowchurn.load(tmp_path / "next.skops").feature_names_in_.tolist() == ["age"]
    assert lowchurn_cli(*command, "--all-columns").returncode == 0
    assert lowchurn.load(tmp_path / "next.skops").feature_names_in_.tolist() == ["Unnamed: 0", "age"]


def test_an_onnx_base_asks_what_to_train(folder, tmp_path, lowchurn_cli):
    (tmp_path / "prod.onnx").write_bytes(b"")
    for more in ((), ("--estimator", "base")):
        result = lowchurn_cli(
            "retrain", "--data", folder / "rows.csv", "--base", tmp_path / "prod.onnx", *BASE_OPTIONS,
            "--out", tmp_path / "next.skops", *more,
        )  # fmt: skip
        assert result.returncode == 2
        assert result.stderr == (
            "error: retrain: an ONNX file cannot be trained again. Choose what to train: --estimator boosting or "
            "--estimator logistic.\n"
        )


def test_a_native_file_is_a_base_whose_classes_are_named(table, tmp_path, lowchurn_cli):
    rows = table.dropna()[["age", "speed", "label"]]
    old = LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1).fit(
        rows[:300].drop(columns="label"), rows[:300]["label"]
    )
    old.booster_.save_model(tmp_path / "prod.txt")
    rows.assign(row_id=1).to_csv(tmp_path / "rows.csv", index=False)
    command = ("retrain", "--data", tmp_path / "rows.csv", "--base", tmp_path / "prod.txt", *BASE_OPTIONS,
               "--out", tmp_path / "next.skops")  # fmt: skip
    result = lowchurn_cli(*command)
    assert result.returncode == 2
    assert "got 'no', 'yes'" in result.stderr
    assert "give them with --class.\n" in result.stderr
    result = lowchurn_cli(*command, "--class", "no", "--class", "yes")
    assert result.returncode == 0, result.stderr
    model = lowchurn.load(tmp_path / "next.skops")
    assert (model.classes_.tolist(), model.feature_names_in_.tolist()) == (["no", "yes"], ["age", "speed"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--out": "rows.csv"}, "--out must not overwrite --data"),
        ({"--out": "link"}, "--out must not overwrite --base"),
        ({"--report": "prod.skops"}, "--report must not overwrite --base"),
        ({"--report": "./next.skops"}, "--out and --report must be different files"),
        ({"--out": "."}, "--out cannot be written to '.': it is a folder"),
        ({"--report": "nowhere/report.json"}, "--report cannot be written"),
    ],
    ids=str,
)
def test_outputs_are_refused_before_any_work(folder, tmp_path, lowchurn_cli, monkeypatch, changes, words):
    for name in ("rows.csv", "prod.skops"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "link").symlink_to("prod.skops")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LowChurnClassifier, "fit", lambda *_, **__: pytest.fail("trained before the check"))
    options = {"--data": "rows.csv", "--base": "prod.skops", "--out": "next.skops", **changes}
    result = lowchurn_cli("retrain", *BASE_OPTIONS, *[x for pair in options.items() for x in pair])
    assert result.returncode == 2
    assert words in result.stderr
    assert sorted(os.listdir()) == ["link", "prod.skops", "rows.csv"]
    assert (tmp_path / "prod.skops").read_bytes() == (folder / "prod.skops").read_bytes()
    assert (tmp_path / "rows.csv").read_bytes() == (folder / "rows.csv").read_bytes()


def test_written_names_the_true_path_and_links_stay(folder, tmp_path, lowchurn_cli, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "next").symlink_to("models/v2.skops")
    monkeypatch.chdir(tmp_path)
    result = lowchurn_cli("retrain", "--data", folder / "rows.csv", "--target", "label", "--out", "next",
                          "--report", "report.json", "--estimator", "logistic")  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-2:] == [
        f"written: {(tmp_path / 'models' / 'v2.skops').resolve()}",
        "written: report.json",
    ]
    assert (tmp_path / "next").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["models", "next", "report.json"]
    lowchurn.load(tmp_path / "next")


def test_model_and_report_are_written_together_or_not_at_all(folder, tmp_path, lowchurn_cli, monkeypatch):
    (tmp_path / "next.skops").write_bytes(b"old")
    monkeypatch.setattr(_command, "report_json", lambda *_, **__: (_ for _ in ()).throw(KeyError("a bug")))
    result = lowchurn_cli("retrain", "--data", folder / "rows.csv", "--target", "label", "--estimator", "logistic",
                          "--out", tmp_path / "next.skops", "--report", tmp_path / "report.json")  # fmt: skip
    assert result.returncode == 4
    assert result.stderr.startswith("internal error: KeyError: 'a bug'. ")
    assert os.listdir(tmp_path) == ["next.skops"]
    assert (tmp_path / "next.skops").read_bytes() == b"old"


def test_names_with_escape_codes_do_not_reach_the_terminal(tmp_path, lowchurn_cli):
    evil = "\x1b[2J[bold]\nPASS"
    pd.DataFrame({evil: [1, 2] * 30, "y": ["a", "b"] * 30}).to_parquet(tmp_path / "rows.parquet")
    for target, more in (("nothing", ()), ("y", ("--new", evil))):
        result = lowchurn_cli("retrain", "--data", tmp_path / "rows.parquet", "--target", target, *more,
                              "--out", tmp_path / "m.skops")  # fmt: skip
        assert result.returncode == 2
        assert "\x1b" not in result.stderr
        assert result.stderr.count("\n") == 1
    out = tmp_path / "a\x1b[2J\nPASS"
    result = lowchurn_cli("retrain", "--data", tmp_path / "rows.parquet", "--target", "y", "--out", out,
                          "--estimator", "logistic")  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert out.exists()
    assert "\x1b" not in result.stdout
    assert "\nPASS" not in result.stdout


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "lowchurn", *map(str, arguments)], capture_output=True, check=False, **options
    )


def test_a_report_to_the_standard_output_is_alone_there(folder, tmp_path):
    command = ("retrain", "--data", folder / "rows.csv", "--target", "label", "--estimator", "logistic")
    result = run(*command, "--out", tmp_path / "m.skops", "--report", "/dev/stdout")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["selection"]["trainings"] == 1
    assert b"written: " in result.stderr
    assert os.listdir(tmp_path) == ["m.skops"]


INTERRUPTED = """
import time
from lowchurn import LowChurnClassifier, cli
def fit(*arguments, **options):
    print("training", flush=True)
    time.sleep(60)
LowChurnClassifier.fit = fit
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_a_retrain_with_one_line(folder, tmp_path, number):
    path = tmp_path / "next.skops"
    path.write_bytes(b"the old model")
    command = [
        sys.executable, "-c", INTERRUPTED, "retrain", "--data", folder / "rows.csv", "--base", folder / "prod.skops",
        *BASE_OPTIONS, "--out", path,
    ]  # fmt: skip
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=os.environ | {"TMPDIR": str(tmp_path)})  # fmt: skip
    assert process.stdout.readline() == "training\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, "stopped.\n")
    assert path.read_bytes() == b"the old model"
    assert [p for p in tmp_path.iterdir() if p.name.endswith(".lowchurn")] == []


WRITER = """
import sys
from lowchurn.estimator._archive import write_archive
data = bytes(10_000_000)
while True:
    write_archive(sys.argv[1], {"n": len(data)}, {"a": data})
    print("written", flush=True)
"""


def test_kill_9_while_writing_leaves_a_whole_model_or_none(tmp_path):
    """Killed at many moments of writing, the file is always complete."""
    from lowchurn.estimator._archive import parse_archive

    path = tmp_path / "next.skops"
    for delay in np.linspace(0, 0.4, 4):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        about, files = parse_archive(path.read_bytes(), str(path), path.name)
        assert about["n"] == len(files["a"])


def test_kill_9_during_retrain_leaves_the_old_model(folder, tmp_path):
    path = tmp_path / "next.skops"
    path.write_bytes(b"the old model")
    command = [
        sys.executable, "-m", "lowchurn", "retrain", "--data", folder / "rows.csv", "--target", "label", "--base",
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
    with pytest.raises(ValueError, match="dates cannot be features"):
        choose_estimator("boosting", None, rows)
    assert choose_estimator("auto", LogisticRegression(), rows) is None
