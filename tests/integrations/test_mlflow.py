"""MLflow for real: a SQLite store with its registry, a server that the test starts, models logged and loaded."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

mlflow = pytest.importorskip("mlflow")
from mlflow import MlflowClient  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from mlflow.models.evaluation.evaluator_registry import _model_evaluation_registry  # noqa: E402

from lowchurn import LowChurnClassifier, load  # noqa: E402
from lowchurn._exits import run_command  # noqa: E402
from lowchurn.audit import audit  # noqa: E402
from lowchurn.cli import app  # noqa: E402
from lowchurn.integrations.mlflow import ChurnEvaluator, log_model, promote  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
ROWS = 2000


class Column(mlflow.pyfunc.PythonModel):
    """Answers what a column contains."""

    def __init__(self, name):
        self.name = name

    def predict(self, context, model_input, params=None):
        return model_input[self.name].to_numpy()


class Matrix(Column):
    def predict(self, context, model_input, params=None):
        second = model_input[self.name].to_numpy().astype(float)
        return np.stack([1 - second, second], axis=1)


@contextmanager
def tracking(uri):
    """Use an MLflow, and what was used before afterwards. The registry follows: one that is set would outlive this."""
    before = os.environ.get("MLFLOW_TRACKING_URI")  # where MLflow writes what is set
    mlflow.set_tracking_uri(uri)
    yield
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A SQLite store with a registry."""
    folder = tmp_path_factory.mktemp("mlflow")
    with tracking(f"sqlite:///{folder}/mlflow.db"):
        made = MlflowClient().create_experiment("releases", artifact_location=(folder / "artifacts").as_uri())
        mlflow.set_experiment(experiment_id=made)
        yield folder


def data(broken=20, fixed=30, seed=0):
    """Rows whose labels and decisions are columns: so many that were right are wrong now, and the other way round."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=ROWS)
    right = rng.permutation(ROWS)
    old, new = y.copy(), y.copy()
    old[right[:200]] = new[right[:200]] = 1 - y[right[:200]]  # both wrong
    new[right[200 : 200 + broken]] ^= 1
    old[right[300 : 300 + fixed]] ^= 1
    frame = pd.DataFrame({"case": [f"c{i}" for i in range(ROWS)], "country": rng.choice(["DE", "FR"], ROWS)})
    return frame.assign(y=y, old=old, new=new)


@pytest.fixture
def registered(store, request):
    """A registered model of this test's own, with a champion and a challenger."""
    return register(f"m-{request.node.name[:60]}".replace("[", "-").replace("]", "").replace(" ", "-"))


def register(name, kinds=(Column, Column)):
    for kind, column, alias in zip(kinds, ("old", "new"), ("champion", "challenger"), strict=True):
        with mlflow.start_run():
            mlflow.pyfunc.log_model(
                name="model", python_model=kind(column), registered_model_name=name, pip_requirements=["mlflow"]
            )
        newest = max(MlflowClient().search_model_versions(f"name='{name}'"), key=lambda v: int(v.version))
        MlflowClient().set_registered_model_alias(name, alias, newest.version)
    return name


def champion(name):
    return str(MlflowClient().get_model_version_by_alias(name, "champion").version)


def test_a_challenger_that_passes_becomes_the_champion(registered):
    rows = data()
    gate = {"max_churn": 0.05, "not_worse_than": 0.005}
    found = promote(registered, rows, label="y", id="case", by="country", gate=gate)
    assert (found.promoted, found.champion, found.challenger, champion(registered)) == (True, "1", "2", "2")
    assert str(found) == f"{registered}: version 2 is the champion now, it was version 1."
    # The same figures as an audit of the tables.
    tables = [rows[["case", "y"]].assign(prediction=rows[column]) for column in ("old", "new")]
    expected = audit(*tables, id="case", label="y")
    assert found.audit.churn.value == expected.churn.value == 50 / ROWS
    version = MlflowClient().get_model_version(registered, "2")
    run = mlflow.get_run(version.run_id)
    assert run.data.metrics["lowchurn/churn"] == 50 / ROWS
    assert run.data.metrics["lowchurn/broken"] == 20 / ROWS
    assert run.data.metrics["lowchurn/accuracy_change"] == pytest.approx(10 / ROWS)
    assert run.data.metrics["lowchurn/passed"] == 1
    tags = {key: value for key, value in version.tags.items() if key.startswith("lowchurn.")}
    assert tags["lowchurn.verdict"] == "PASS"
    assert (tags["lowchurn.compared_with"], tags["lowchurn.promoted_from"]) == ("1", "1")
    read = json.loads(mlflow.artifacts.load_text(f"{run.info.artifact_uri}/lowchurn/audit.json"))
    assert read["kind"] == "audit"
    assert "<html" in mlflow.artifacts.load_text(f"{run.info.artifact_uri}/lowchurn/report.html")


def test_a_challenger_that_fails_is_logged_and_not_promoted(registered):
    found = promote(registered, data(broken=90, fixed=0), label="y", gate={"not_worse_than": 0.005})
    assert not found.promoted
    assert champion(registered) == "1"
    version = MlflowClient().get_model_version(registered, "2")
    assert version.tags["lowchurn.verdict"] == "FAIL"
    assert mlflow.get_run(version.run_id).data.metrics["lowchurn/passed"] == 0
    assert "stays the champion (FAIL" in str(found)


def test_at_most_half_a_point_worse_is_what_thresholds_of_mlflow_cannot_say(registered):
    """The accuracy falls by 0.1 points: within half a point, as the interval shows."""
    found = promote(registered, data(broken=6, fixed=4), label="y", gate={"not_worse_than": 0.005})
    assert found.audit.accuracy_change.value == pytest.approx(-2 / ROWS)
    assert found.promoted


def test_a_dry_run_changes_nothing(registered):
    version = MlflowClient().get_model_version(registered, "2")
    found = promote(registered, data(), label="y", gate={"max_churn": 0.05}, dry_run=True)
    assert (found.promoted, found.run_id, found.verdict.outcome) == (False, None, "PASS")
    assert champion(registered) == "1"
    assert not MlflowClient().get_model_version(registered, "2").tags
    assert not any(key.startswith("lowchurn") for key in mlflow.get_run(version.run_id).data.metrics)
    assert "stays the champion (dry run" in str(found)


@pytest.mark.parametrize("moved", ["champion", "challenger"])
def test_an_alias_that_moves_meanwhile_is_noticed(registered, moved, monkeypatch):
    """Somebody promotes another version while the audit runs: the alias is theirs."""
    log, seen = MlflowClient.log_text, []

    def meanwhile(self, *arguments, **more):
        if not seen:
            seen.append(self.set_registered_model_alias(registered, moved, "1" if moved == "challenger" else "2"))
        return log(self, *arguments, **more)

    monkeypatch.setattr(MlflowClient, "log_text", meanwhile)
    now, was = ("2", "1") if moved == "champion" else ("1", "2")
    with pytest.raises(ValueError, match=f"'{moved}' of .* is version {now} now, it was {was} when the audit began"):
        promote(registered, data(), label="y", gate={"max_churn": 0.05})
    assert champion(registered) == ("2" if moved == "champion" else "1")  # theirs, not ours
    assert MlflowClient().get_model_version(registered, "2").tags["lowchurn.verdict"] == "PASS"
    assert "lowchurn.promoted_from" not in MlflowClient().get_model_version(registered, "2").tags


def test_inconclusive_is_promoted_only_where_the_gate_lets_it_through(registered):
    rows = data(broken=20, fixed=20).head(120)
    assert not promote(registered, rows, label="y", gate={"max_churn": 0.03}).promoted
    assert champion(registered) == "1"
    assert promote(registered, rows, label="y", gate={"max_churn": 0.03, "inconclusive": "warn"}).promoted


def test_matrices_of_probabilities_need_names(store):
    name = register("matrix", (Matrix, Column))
    with pytest.raises(ValueError, match=r"version 1 of 'matrix' must give one label per row, or .* classes=.*2000, 2"):
        promote(name, data(), label="y", gate={"max_churn": 0.05})
    assert promote(name, data(), label="y", gate={"max_churn": 0.05}, classes=[0, 1], dry_run=True).audit.churn.value


def test_bad_calls_are_refused_before_anything_changes(registered, tmp_path):
    with pytest.raises(ValueError, match="there is no registered model 'nobody'"):
        promote("nobody", data(), gate={"max_churn": 0.1})
    with pytest.raises(ValueError, match=r"has no alias 'best', it has 'challenger' \(version 2\), 'champion'"):
        promote(registered, data(), gate={"max_churn": 0.1}, challenger="best")
    with pytest.raises(ValueError, match="are the same version, 1"):
        promote(registered, data(), gate={"max_churn": 0.1}, challenger="champion")
    with pytest.raises(ValueError, match="the data have no column 'z'"):
        promote(registered, data(), label="z", gate={"max_churn": 0.1})
    with pytest.raises(ValueError, match="unknown limit 'max_chrn'"):
        promote(registered, data(), gate={"max_chrn": 0.1})
    with pytest.raises(ValueError, match="there is no file"):
        promote(registered, tmp_path / "no.parquet", gate={"max_churn": 0.1})
    with pytest.raises(ValueError, match="at least one row"):
        promote(registered, data().head(0), gate={"max_churn": 0.1})
    assert not MlflowClient().get_model_version(registered, "2").tags


def test_polars_and_files_are_read(registered, tmp_path):
    import polars

    rows = data()
    rows.to_csv(tmp_path / "rows.csv", index=False)
    rows.to_parquet(tmp_path / "rows.parquet")
    sources = (polars.from_pandas(rows), tmp_path / "rows.csv", str(tmp_path / "rows.parquet"))
    found = [promote(registered, one, label="y", gate={"max_churn": 0.05}, dry_run=True) for one in sources]
    assert {one.audit.churn.value for one in found} == {50 / ROWS}


# Our own models.


def fitted(seed=0):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(300, 2)), columns=["a", "b"])
    y = np.where(X["a"] + rng.normal(size=300) > 0, "yes", "no")
    return LowChurnClassifier(LogisticRegression(), random_state=0).fit(X, y), X, y


def test_a_logged_model_is_our_file_without_a_pickle(store):
    model, X, y = fitted()
    with mlflow.start_run():
        info = log_model(model, input_example=X.head(), registered_model_name="ours")
    loaded = mlflow.pyfunc.load_model(info.model_uri)
    assert (loaded.predict(X) == model.predict(X)).all()
    proba = loaded.predict(X, params={"proba": True})
    assert list(proba.columns) == ["proba_no", "proba_yes"]
    assert (proba.to_numpy() == model.predict_proba(X)).all()
    folder = Path(mlflow.artifacts.download_artifacts(info.model_uri))
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert not any(name.endswith((".pkl", ".pickle", ".cloudpickle")) for name in names)
    (file,) = folder.rglob("model.lowchurn")
    assert (load(file).predict(X) == model.predict(X)).all()
    assert "lowchurn[retrain]==" in (folder / "requirements.txt").read_text()
    assert info.signature.inputs.input_names() == ["a", "b"]
    # It is promoted like any other.
    MlflowClient().set_registered_model_alias("ours", "champion", "1")
    with mlflow.start_run():
        log_model(model, input_example=X.head(), registered_model_name="ours")
    MlflowClient().set_registered_model_alias("ours", "challenger", "2")
    rows = X.assign(y=y, note="a column that the signature does not have")
    assert promote("ours", rows, label="y", gate={"max_churn": 0.05}).promoted


def test_what_is_not_ours_is_refused():
    for other in (LogisticRegression(), LowChurnClassifier()):
        with pytest.raises(ValueError, match="must be a fitted LowChurnClassifier"):
            log_model(other)


# The evaluator.


@pytest.fixture
def evaluator():
    """The entry point as the package names it, registered also where the installed metadata are older."""
    names = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["mlflow.model_evaluator"]
    module, _, attribute = names["lowchurn"].partition(":")
    found = getattr(import_module(module), attribute)
    assert found is ChurnEvaluator
    if not _model_evaluation_registry.is_registered("lowchurn"):
        _model_evaluation_registry.register("lowchurn", found)


def test_mlflow_evaluates_with_our_figures(registered, evaluator):
    rows = data().drop(columns="case")
    config = {"base": f"models:/{registered}@champion", "by": "country", "gate": {"max_churn": 0.05}}
    with mlflow.start_run() as run:
        found = mlflow.models.evaluate(
            f"models:/{registered}@challenger",
            rows,
            targets="y",
            model_type="classifier",
            evaluators=["default", "lowchurn"],
            evaluator_config={
                "default": {"log_explainer": False, "log_model_explainability": False},
                "lowchurn": config,
            },
        )
    assert found.metrics["lowchurn/churn"] == 50 / ROWS
    assert found.metrics["lowchurn/broken"] == 20 / ROWS
    assert found.metrics["lowchurn/passed"] == 1
    assert found.metrics["accuracy_score"] == pytest.approx(1 - 220 / ROWS)  # MLflow's own
    assert found.artifacts["lowchurn/audit.json"].content["kind"] == "audit"
    assert mlflow.get_run(run.info.run_id).data.metrics["lowchurn/fixed"] == 30 / ROWS
    assert "<html" in mlflow.artifacts.load_text(f"{run.info.artifact_uri}/lowchurn/report.html")


def test_predictions_alone_are_evaluated(store, evaluator):
    rows = data()
    with mlflow.start_run():
        found = mlflow.models.evaluate(
            data=rows[["new", "y"]], predictions="new", targets="y", model_type="classifier", evaluators="lowchurn",
            evaluator_config={"base": rows["old"].to_numpy()},
        )  # fmt: skip
        assert found.metrics["lowchurn/churn"] == 50 / ROWS
        with pytest.raises(ValueError, match="one prediction for each of 2000 rows"):
            mlflow.models.evaluate(
                data=rows[["new", "y"]], predictions="new", targets="y", model_type="classifier",
                evaluators="lowchurn", evaluator_config={"base": [0, 1]},
            )  # fmt: skip


# The command line.


def promote_by_command(name, uri, capsys):
    """A challenger that is too bad, a dry run, and one that passes."""
    data().to_parquet("rows.parquet")
    data(broken=90, fixed=0).to_parquet("worse.parquet")
    call = ["promote", name, "rows.parquet", "--label", "y", "--id", "case", "--tracking-uri", uri]
    assert run_command(app, ["promote", name, "worse.parquet", "--label", "y", "--not-worse-than", "0.005"]) == 1
    assert champion(name) == "1"
    assert run_command(app, [*call, "--max-churn", "0.05", "--dry-run"]) == 0
    assert champion(name) == "1"
    capsys.readouterr()
    assert run_command(app, [*call, "--max-churn", "0.05", "--not-worse-than", "0.005"]) == 0
    out = capsys.readouterr().out
    assert "PASS" in out
    assert re.search(
        r"changed decisions +2.50 % \(1.86 to 3.28\) +n = 2,000, exact \(Clopper-Pearson\)\n", out
    )  # one line
    assert f"{name}: version 2 is the champion now, it was version 1." in out
    assert champion(name) == "2"
    return call


def test_the_command_promotes_and_explains(registered, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    call = promote_by_command(registered, mlflow.get_tracking_uri(), capsys)
    for wrong, message in (
        ([*call, "--max-churn", "5"], "--max-churn must be in [0, 1], got 5"),
        (call, "needs limits to judge"),
        (["promote", "nobody", "rows.parquet", "--max-churn", "0.1"], "no registered model 'nobody'"),
        ([*call, "--max-churn", "0.1", "--challenger", "best"], "has no alias 'best'"),
    ):
        assert run_command(app, wrong) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.strip().splitlines()) == 1
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "get_model_version_by_alias", unreachable)
        assert run_command(app, [*call, "--max-churn", "0.1"]) == 2
    assert "/mlflow.db' cannot be read: no connection" in capsys.readouterr().err
    Path("lowchurn.toml").write_text("[gate]\nmax_churn = 0.001\n")
    MlflowClient().set_registered_model_alias(registered, "challenger", "1")
    assert run_command(app, call) == 1  # the limits of the file


def unreachable(self, name, alias):
    raise MlflowException("no connection")


def test_the_command_makes_no_empty_database(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data().to_parquet("rows.parquet")
    call = ["promote", "credit", "rows.parquet", "--max-churn", "0.1", "--tracking-uri", "sqlite:///typo.db"]
    with tracking(None):
        assert run_command(app, call) == 2
    error = capsys.readouterr().err
    assert "no database 'typo.db'. Set --tracking-uri http://host:5000, or the variable MLFLOW_TRACKING_URI" in error
    assert os.listdir() == ["rows.parquet"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """An MLflow server of its own, with SQLite behind it."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "art")]
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    log = open(folder / "log", "w")  # noqa: SIM115
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": paths}, stdout=log, stderr=log, cwd=folder, start_new_session=True
    )
    uri = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=1).read()
                break
            except OSError:
                time.sleep(0.1)
        with tracking(uri):
            mlflow.set_experiment("releases")
            yield uri
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)
        log.close()


@pytest.mark.slow
def test_the_command_promotes_through_a_server(server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    promote_by_command(register("served"), server, capsys)
