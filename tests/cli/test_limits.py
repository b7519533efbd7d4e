"""Limits on the command line: budgets of classes and slices, broken decisions, and errors in the words of options."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import lowchurn
from lowchurn import cli
from lowchurn.cli._retrain import churn_budgets

NUMBERS = [f"x{j}" for j in range(6)]
ROWS, LABELS = make_classification(4000, 6, n_informative=4, flip_y=0.1, weights=[0.7], random_state=0)
REGION = np.random.default_rng(0).choice(["north", "south"], size=4000, p=[0.7, 0.3])
TABLE = pd.DataFrame(ROWS, columns=NUMBERS).assign(region=REGION, y=np.array(["negative", "positive"])[LABELS])
HELD_OUT = np.arange(4000) % 2 == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("limits")
    columns = [("numbers", StandardScaler(), NUMBERS), ("words", OneHotEncoder(), ["region"])]
    base = make_pipeline(ColumnTransformer(columns), LogisticRegression())
    base.fit(TABLE[:200].drop(columns="y"), TABLE["y"][:200])
    skops.io.dump(base, path / "prod.skops")
    TABLE.assign(late=HELD_OUT, shop=1, id=np.arange(4000)).to_parquet(path / "rows.parquet")
    return path


@pytest.fixture
def run(folder, tmp_path, monkeypatch, capsys):
    """The command in this process; returns its exit code and what it prints."""
    monkeypatch.chdir(tmp_path)

    def call(command, *options):
        fixed = ()
        if command == "retrain":
            fixed = ("--data", folder / "rows.parquet", "--target", "y", "--base", folder / "prod.skops",
                     "--held-out", "late", "--drop", "shop", "--drop", "id", "--out", "next.skops")  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["lowchurn", command, *map(str, fixed), *map(str, options)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        shown = capsys.readouterr()
        return stopped.value.code or 0, shown.out, shown.err

    return call


def changes(folder, path):
    """Which held-out decisions a model changes, and those of the base."""
    rows = TABLE[HELD_OUT].drop(columns="y")
    before = lowchurn.load(folder / "prod.skops").predict(rows)
    return lowchurn.load(path).predict(rows) != before, before


def test_budgets_of_classes(run, folder, tmp_path):
    code, out, err = run(
        "retrain", "--max-churn", "0.04", "--max-churn", "positive=0.02", "--max-broken", "0.015", "--strategies",
        "sticky", "--report", "report.json",
    )  # fmt: skip
    assert code == 0, err
    assert "a churn of 2 % where the base decides 'positive' and 1.5 % broken" in " ".join(out.split())
    changed, before = changes(folder, "next.skops")
    assert changed.mean() <= 0.04
    assert changed[before == "positive"].mean() <= 0.02
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["parameters"]["max_churn"] == 0.04
    assert told["parameters"]["max_churn_by"] == {"positive": 0.02}
    assert told["parameters"]["max_broken"] == 0.015
    assert told["frontier"][0]["churn_by"].keys() == {"negative", "positive"}
    code, _, err = run(
        "dial", "next.skops", "--max-churn", "positive=0.01", "--max-broken", "0.005", "--out", "2.skops"
    )
    assert code == 0, err
    changed, before = changes(folder, "2.skops")
    assert changed[before == "positive"].mean() <= 0.01
    assert lowchurn.load("2.skops").selection_.broken <= 0.005


def test_a_class_is_frozen(run, folder):
    code, _, err = run("retrain", "--max-churn", "positive=0", "--max-churn", "negative=0.02")
    assert code == 0, err
    changed, before = changes(folder, "next.skops")
    assert changed.any()
    assert not changed[before == "positive"].any()


def test_slices_and_scoring(run, folder, tmp_path):
    code, out, err = run("retrain", "--max-churn", "0.02", "--by", "region", "--strategies", "sticky")
    assert code == 0, err
    assert "where region is 'north'" in out
    changed, _ = changes(folder, "next.skops")
    south = REGION[HELD_OUT] == "south"
    assert max(changed[south].mean(), changed[~south].mean()) <= 0.02
    rows = TABLE[HELD_OUT].drop(columns="y").assign(id=np.arange(HELD_OUT.sum()))
    rows.to_csv("rows.csv", index=False)
    code, _, err = run("score", "--model", "next.skops", "--data", "rows.csv", "--out", "scored.csv")
    assert code == 0, err
    scored = pd.read_csv("scored.csv")
    np.testing.assert_array_equal(scored["decision"], lowchurn.load("next.skops").predict(rows.drop(columns="id")))
    np.testing.assert_array_equal(scored["changed"], changed)
    code, _, err = run("dial", "next.skops", "--max-churn", "south=0.01", "--out", "calm.skops")
    assert code == 0, err
    changed, _ = changes(folder, "calm.skops")
    assert changed[south].mean() <= 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-churn", "often"), "retrain: --max-churn must be a number or NAME=NUMBER, got 'often'."),
        (("--max-churn", "0.1", "--max-churn", "0.2"), "--max-churn must be given once for each class or slice"),
        (("--max-churn", "positiv=0.1"), "unknown class in --max-churn 'positiv'. Did you mean 'positive'?"),
        (("--max-churn", "positive=5"), "--max-churn must be in [0, 1), got 5.0. It is a share of the decisions"),
        (("--max-broken", "1.5"), "--max-broken must be in [0, 1), got 1.5."),
        (("--max-churn", "0.1", "--by", "regoin"), "unknown column in --by 'regoin'. Did you mean 'region'?"),
        (("--max-churn", "nord=0.1", "--by", "region"), "unknown slice in --max-churn 'nord'. Did you mean 'north'?"),
        (("--max-churn", "0.1", "--by", "shop"), "--by must be a column that the model is trained on, and 'shop' is"),
    ],
)
def test_errors_are_in_the_words_of_options(run, tmp_path, options, message):
    code, out, err = run("retrain", *options)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert not list(tmp_path.iterdir())


def test_a_dial_without_margins_of_classes(run):
    assert run("retrain", "--max-churn", "0.05", "--strategies", "sticky")[0] == 0
    code, _, err = run("dial", "next.skops", "--max-churn", "positive=0.05", "--out", "other.skops")
    assert code == 2
    assert "--max-churn of classes or slices asks for margins of their own" in " ".join(err.split())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        (["0.02"], 0.02),
        (["a=b=0.1"], {"a=b": 0.1}),
        (["0.02", "7=0.5"], {None: 0.02, "7": 0.5}),
        (["=0.5"], {"": 0.5}),
    ],
)
def test_budgets_as_they_are_written(given, expected):
    assert churn_budgets("retrain", given) == expected
