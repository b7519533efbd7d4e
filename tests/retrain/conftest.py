"""Rows of a week, models that score them and last week's decisions; and the command line in a folder of its own."""

import sys
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from lowchurn import LowChurnClassifier, cli

FEATURES = ["age", "size", "shop", "flag"]


def make_rows(n, seed):
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame({"age": rng.normal(size=n), "size": rng.integers(0, 9, n).astype(float)})
    rows["shop"] = rng.choice(["007", "008", "9"], n)  # text that looks like numbers
    rows["flag"] = rng.uniform(size=n) > 0.5
    score = rows["age"] + 0.8 * (rows["shop"] == "007") + 0.1 * rows["size"] + rng.normal(size=n)
    return rows.assign(y=np.select([score < 0, score < 1], ["low", "mid"], "top"), id=np.arange(n) + 1000 * seed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A base, a sticky model with it and one without it, rows to score and last week's decisions in another order."""
    folder = tmp_path_factory.mktemp("score")
    data, week = make_rows(900, 1), make_rows(300, 2)
    encode = make_column_transformer((OneHotEncoder(), ["shop"]), (StandardScaler(), ["age", "size", "flag"]))
    base = make_pipeline(encode, LogisticRegression()).fit(data[FEATURES][:80], data["y"][:80])
    (folder / "prod.skops").write_bytes(skops.io.dumps(base))
    sticky = LowChurnClassifier(base=base, max_churn=0.05, strategies="sticky", random_state=0)
    sticky.fit(data[FEATURES], data["y"], traffic=week[FEATURES]).save(folder / "sticky.skops", dial=True)
    table = LowChurnClassifier(base, max_churn=0.1, strategies="sticky", random_state=0)
    table.fit(data[FEATURES], data["y"], base_proba=base.predict(data[FEATURES])).save(folder / "without_base.skops")
    week.drop(columns="y").to_parquet(folder / "rows.parquet", index=False)
    week.drop(columns="y").to_csv(folder / "rows.csv", index=False)
    last = week[["id"]].assign(decision=base.predict(week[FEATURES]))
    last.sample(frac=1.0, random_state=0).to_parquet(folder / "last.parquet", index=False)
    last.sample(frac=1.0, random_state=1).to_csv(folder / "last.csv", index=False)
    data.to_parquet(folder / "data.parquet", index=False)
    return folder


@pytest.fixture
def week(folder):
    return pd.read_parquet(folder / "rows.parquet")


class Result(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def score(monkeypatch, capsys, folder, tmp_path):
    """The command, in a folder of its own."""

    def call(*arguments, command="score"):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["lowchurn", command, *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return Result(stopped.value.code or 0, *capsys.readouterr())

    return call
