"""The stages of the recipe for DVC, one by one, and by DVC where it is installed; test_docs runs the others."""

import copy
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import skops.io
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lowchurn import LowChurnClassifier
from lowchurn._exits import run_command
from lowchurn.cli import app

RECIPES = Path(__file__).parent.parent / "docs" / "recipes.md"


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", RECIPES.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_an_export_that_would_decide_otherwise_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("skl2onnx")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    for block in blocks("python")[:2]:
        exec(compile(block, "recipe", "exec"), names)
    export, model, X = (names[name] for name in ("export", "model", "X"))
    assert Path("next.onnx").is_file()
    several = copy.copy(model)
    several.selection_ = dataclasses.replace(model.selection_, models=2)  # as where the base answers as well
    with pytest.raises(ValueError, match="not one model with its likeliest class is served"):
        export(several, "sticky.onnx", X[400:])
    model.predict = lambda rows: 1 - LowChurnClassifier.predict(model, rows)  # as if it decided otherwise
    with pytest.raises(ValueError, match="of 169 decisions differ in ONNX"):
        export(model, "other.onnx", X[400:])
    assert not Path("sticky.onnx").exists()
    assert not Path("other.onnx").exists()


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """A folder with the files that the recipe for DVC starts from."""
    monkeypatch.chdir(tmp_path)
    rows = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "y"})
    rows = rows.assign(id=range(len(rows)))
    rows[:400].to_parquet("train.parquet")
    rows[400:].to_parquet("test.parquet")
    features = rows.drop(columns=["y", "id"])
    base = make_pipeline(StandardScaler(), LogisticRegression(C=0.1)).fit(features[:100], rows.y[:100])
    skops.io.dump(base, "production.skops")
    return rows


def test_the_stages_of_dvc_run_and_write_what_they_declare(rows):
    yaml = pytest.importorskip("yaml")
    (text,) = blocks("yaml")
    made = {"train.parquet", "test.parquet", "production.skops"}
    for name, stage in yaml.safe_load(text)["stages"].items():
        assert set(stage["deps"]) <= made, f"{name} needs what no stage before it writes"
        program, *arguments = shlex.split(stage["cmd"])
        assert program == "lowchurn"
        assert run_command(app, arguments) == 0, name
        written = {*stage.get("outs", []), *stage.get("metrics", [])}
        assert all(Path(file).is_file() for file in written)
        made |= written
    assert len(pd.read_parquet("after.parquet")) == len(rows) - 400


def test_dvc_runs_the_stages_and_stops_where_the_audit_fails(rows):
    pytest.importorskip("dvc")  # no extra asks for it
    own = Path("bin")  # a stage calls lowchurn by its name
    own.mkdir()
    (own / "lowchurn").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lowchurn "$@"\n')
    (own / "lowchurn").chmod(0o755)
    paths = {"PATH": f"{own.resolve()}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}

    def dvc(*words):
        environment = {**os.environ, **paths, "DVC_NO_ANALYTICS": "1"}
        return subprocess.run([sys.executable, "-m", "dvc", *words], env=environment, capture_output=True, text=True)

    (text,) = blocks("yaml")
    Path("dvc.yaml").write_text(text)
    assert dvc("init", "--no-scm").returncode == 0
    first = dvc("repro")
    assert first.returncode == 0, first.stderr
    found = json.loads(dvc("metrics", "show", "--json").stdout)
    verdict = found[""]["data"]["audit.json"]["data"]["verdict"]
    assert verdict["outcome"] == "PASS"
    Path("dvc.yaml").write_text(text.replace("--max-churn 0.15", "--max-churn 0.001"))
    stopped = dvc("repro")
    assert stopped.returncode != 0
    assert "failed to reproduce 'gate'" in stopped.stderr
    assert stopped.stdout.count("Running stage") == 1  # the others are as they were
