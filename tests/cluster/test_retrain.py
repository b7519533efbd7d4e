"""Candidates trained on a cluster of two nodes: the same models as here, and the rows are sent once."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from lowchurn import LowChurnClassifier, _ray, load
from lowchurn._ray import Calls, connected, received, training_on
from lowchurn.cli import main
from lowchurn.learners import Job, learner_for
from lowchurn.strategies import Distill, ServedMixture

pytestmark = pytest.mark.ray


class Placed(DecisionTreeClassifier):
    """A tree that waits in a folder until another node trains one as well."""

    def __init__(self, meeting=None, max_depth=2):
        super().__init__(max_depth=max_depth)
        self.meeting = meeting

    def fit(self, X, y, sample_weight=None):
        import ray

        super().fit(X, y, sample_weight)
        (Path(self.meeting) / ray.get_runtime_context().get_node_id()).touch()
        give_up = time.monotonic() + 60
        while len(os.listdir(self.meeting)) < 2 and time.monotonic() < give_up:
            time.sleep(0.01)
        return self


class Killed(DecisionTreeClassifier):
    """A tree whose process dies in training, the first time or always."""

    def __init__(self, mark=None, always=False):
        super().__init__(max_depth=2)
        self.mark, self.always = mark, always

    def fit(self, X, y, sample_weight=None):
        if self.always or not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().fit(X, y, sample_weight)


def data(rows=3000):
    X, y = make_classification(rows, 12, n_informative=6, flip_y=0.1, random_state=0)
    return X, np.where(y == 1, "yes", "no")


@pytest.mark.parametrize(
    "estimator",
    [LogisticRegression(), HistGradientBoostingClassifier(max_iter=10, early_stopping=False)],
    ids=["logistic", "boosting"],
)
def test_a_retrain_on_two_nodes_is_the_one_here(cluster, estimator):
    """Grid points and members, also those that start from the base."""
    X, y = data()
    base = LogisticRegression().fit(X[:500], y[:500])
    strategies = [Distill(lam) for lam in (0.2, 0.5, 0.8)] + [ServedMixture(members=3)]

    def fitted(**how):
        model = LowChurnClassifier(estimator, base=base, max_churn=0.05, strategies=strategies, random_state=0, **how)
        return model.fit(X, y)

    here = fitted()
    with training_on("retrain"):
        there = fitted(n_jobs=-1)
    pd.testing.assert_frame_equal(
        there.frontier_.to_pandas().drop(columns="seconds", errors="ignore"),
        here.frontier_.to_pandas().drop(columns="seconds", errors="ignore"),
    )
    np.testing.assert_array_equal(there.predict_proba(X), here.predict_proba(X))
    assert str(there.selection_) == str(here.selection_)


def jobs(rows, many, classes=2):
    rng = np.random.default_rng(0)
    weight, labels = rng.random(rows), rng.integers(0, classes, rows)
    return [
        Job(np.eye(classes)[labels] * 0.8 + 0.2 / classes, sample_weight=weight, labels=labels, seed=i)
        for i in range(many)
    ]


@pytest.fixture
def sent(cluster, monkeypatch):
    """The sizes of everything that this process sends to the cluster: what is put there, and arguments of tasks."""
    from ray._private.serialization import SerializationContext

    sizes, serialize = [], SerializationContext.serialize

    def counted(self, value):
        found = serialize(self, value)
        sizes.append(found.total_bytes)
        return found

    monkeypatch.setattr(SerializationContext, "serialize", counted)
    return sizes


def test_jobs_are_trained_on_both_nodes_and_rows_are_sent_once(sent, tmp_path):
    rows, many = 20_000, 8
    X, todo = np.random.default_rng(1).normal(size=(rows, 50)), jobs(rows, many)
    learner = learner_for(Placed(str(tmp_path)), np.array([0, 1]))
    with training_on("retrain"):
        models = learner.fit_many(X, todo, None, n_jobs=2)
    assert [type(model) for model in models] == [type(models[0])] * many
    assert len(os.listdir(tmp_path)) == 2  # both nodes trained at the same time
    shared, own = X.nbytes + todo[0].sample_weight.nbytes + todo[0].labels.nbytes, sum(j.targets.nbytes for j in todo)
    assert shared + own <= sum(sent) <= 1.05 * (shared + own)  # and not X for each of the jobs
    assert sum(size >= X.nbytes for size in sent) == 1


@pytest.mark.parametrize("always", [False, True])
def test_a_job_whose_process_is_killed_is_tried_again(cluster, tmp_path, monkeypatch, always):
    monkeypatch.setattr(_ray, "RETRIES", 1)
    X, todo = np.random.default_rng(1).normal(size=(100, 3)), jobs(100, 1)
    learner = learner_for(Killed(str(tmp_path / "mark"), always), np.array([0, 1]))
    with training_on("retrain"):
        models = learner.fit_many(X, todo, None, n_jobs=2)
    assert [isinstance(model, Exception) for model in models] == [always]  # given up after the second time


def test_results_are_in_the_order_of_the_calls_and_errors_are_raised(cluster):
    with training_on("retrain"):
        assert Calls().run(pow, [(2, i) for i in range(7)], n_jobs=2) == [2**i for i in range(7)]
        assert Calls().run(pow, [], n_jobs=2) == []
        with pytest.raises(ZeroDivisionError):
            Calls().run(pow, [(0, -1), (0, 1)], n_jobs=-1)


def test_the_same_object_has_one_reference(cluster):
    X = np.arange(10.0)
    with training_on("retrain"):
        calls = Calls()
        assert calls.sent(X) is calls.sent(X)
        assert calls.sent(X) is not calls.sent(X.copy())
        assert calls.sent(None) is None
        np.testing.assert_array_equal(received(calls.sent(X)), X)
    with connected("retrain"):  # joblib runs elsewhere
        assert Calls().sent(X) is X


def test_the_command_trains_on_the_cluster(cluster, tmp_path, monkeypatch, capsys):
    X, y = data(800)
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])]).assign(y=y)
    frame.to_parquet(tmp_path / "rows.parquet")

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["lowchurn", "retrain", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, capsys.readouterr().err

    monkeypatch.chdir(tmp_path)
    plain = ["--data", "rows.parquet", "--target", "y", "--estimator", "logistic"]
    assert call(*plain, "--out", "base.skops")[0] == 0
    more = [*plain, "--base", "base.skops", "--max-churn", "0.05", "--strategies", "paper"]
    assert call(*more, "--out", "here.skops", "--report", "here.json")[0] == 0
    assert call(*more, "--out", "there.skops", "--report", "there.json", "--cluster", "ray")[0] == 0
    here, there = (load(tmp_path / f"{name}.skops") for name in ("here", "there"))
    features = frame.drop(columns="y")
    np.testing.assert_array_equal(here.predict_proba(features), there.predict_proba(features))


def test_an_address_without_a_cluster_is_bad_input(tmp_path, monkeypatch, capsys):
    pytest.importorskip("ray")
    for options, words in (
        (["--cluster", "ray", "--address", "127.0.0.1:9"], "no Ray cluster answers at 127.0.0.1:9"),
        (["--cluster", "slurm"], "--cluster must be"),
        (["--address", "auto"], "--address is for clusters"),
    ):
        command = ["lowchurn", "retrain", "--data", "x.csv", "--target", "y", "--out", str(tmp_path / "m.skops")]
        monkeypatch.setattr("sys.argv", [*command, *options])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 2
        assert words in " ".join(capsys.readouterr().err.split())
