"""The stages of the recipe for DVC, run one after the other as ``dvc repro`` does; the others are run by test_docs."""

import copy
import dataclasses
import re
import shlex
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


def test_the_stages_of_dvc_run_and_write_what_they_declare(tmp_path, monkeypatch):
    yaml = pytest.importorskip("yaml")
    monkeypatch.chdir(tmp_path)
    rows = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "y"})
    rows = rows.assign(id=range(len(rows)))
    rows[:400].to_parquet("train.parquet")
    rows[400:].to_parquet("test.parquet")
    features = rows.drop(columns=["y", "id"])
    base = make_pipeline(StandardScaler(), LogisticRegression(C=0.1)).fit(features[:100], rows.y[:100])
    skops.io.dump(base, "production.skops")
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
