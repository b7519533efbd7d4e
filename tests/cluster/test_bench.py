"""The bench on a cluster of two nodes: the rows of a local run, whatever is killed in the middle."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lowchurn._ray import connected
from lowchurn.bench import _cluster as cluster_module
from lowchurn.bench._blocks import How, Progress
from lowchurn.bench._cluster import OnRay
from lowchurn.bench._loading import load
from lowchurn.bench._local import Local
from lowchurn.bench._protocol import Protocol, settings_of
from lowchurn.bench._room import Machine
from lowchurn.bench._run import Run, run
from lowchurn.bench._store import Store
from lowchurn.strategies import ColdStart, Distill
from tests.bench.conftest import made_data  # noqa: F401
from tests.bench.test_commands import lowchurn  # noqa: F401
from tests.bench.test_plans import small_plans  # noqa: F401
from tests.bench.test_run import measured

pytestmark = pytest.mark.ray
TINY = Protocol(network="fcn-4", initial=40, validation=20, batch=30, epochs=3)
CONVNET = replace(TINY, network="convnet-1")
SETTINGS = settings_of(["cold", "warm", "mixup", "co-dist", "distill", "soup"])
FEW = [ColdStart(), Distill(0.5)]


@pytest.fixture(scope="module")
def ray(cluster):
    """One connection for all tests, so that workers are started once."""
    with connected("bench") as module:
        yield module


def raw_rows(folder):
    """Rows of all segments, where one that was written twice would be counted twice."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in (folder / "segments").glob("*.parquet"))


def on_cluster(ray, folder, asked, show=lambda progress: None, **options):
    lines = []
    counts = Run(Store(folder), OnRay(ray), how=How("auto"), **options).do(asked, lines.append, show)
    return counts, lines


def here(folder, asked, **options):
    for each in asked:
        run(Store(folder), *each, device="cpu", tell=lambda line: None, **options)
    return measured(folder)


def test_two_nodes_give_the_rows_of_a_local_run_bit_for_bit(ray, tmp_path):
    asked = [(["wine", "breast_cancer"], [TINY], SETTINGS, 4), (["digit_images"], [CONVNET], FEW, 2)]
    states = []
    counts, lines = on_cluster(ray, tmp_path / "cluster", asked, states.append)
    rows = 2 * 4 * len(SETTINGS) + 2 * 2
    assert counts == {"there": 0, "new": rows, "failed": 0}
    assert measured(tmp_path / "cluster") == here(tmp_path / "here", asked)
    assert raw_rows(tmp_path / "cluster") == rows
    # Without --block there are at least two blocks for each node and part; both parts are run together.
    assert states[0] == Progress(0, 0, 6, 2)
    assert states[-1] == Progress(len(lines), 0, 0, 2) == Progress(6, 0, 0, 2)
    assert max(state.running for state in states) == 2  # each node has one CPU
    assert all(sum(state[:3]) == 6 for state in states)
    assert on_cluster(ray, tmp_path / "cluster", asked)[0] == {"there": rows, "new": 0, "failed": 0}


def test_a_node_that_is_killed_costs_nothing_but_time(ray, cluster, third_node, tmp_path):
    asked = [(["digits"], [replace(TINY, network="fcn-64", initial=500, batch=500, epochs=60)], SETTINGS, 8)]
    killed = []

    def kill(progress):
        if progress.running == 3 and not killed:
            killed.append(progress)
            cluster.remove_node(third_node, allow_graceful=False)

    counts, _ = on_cluster(ray, tmp_path / "cluster", asked, kill, block=1)
    assert len(killed) == 1
    assert counts == {"there": 0, "new": 8 * len(SETTINGS), "failed": 0}
    assert raw_rows(tmp_path / "cluster") == counts["new"]
    assert measured(tmp_path / "cluster") == here(tmp_path / "here", asked)


class Deadly(str):
    """A text whose reader ends its process."""

    def __reduce__(self):
        return os._exit, (1,)


def test_a_block_that_ends_its_worker_is_rows_with_the_reason(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "RETRIES", 1)
    wine = load("wine")
    asked = [([replace(wine, name="deadly", fingerprint=Deadly(wine.fingerprint)), "wine"], [TINY], FEW, 1)]
    counts, lines = on_cluster(ray, tmp_path, asked)
    assert counts == {"there": 0, "new": 4, "failed": 2}
    failed = {(row["dataset"], row["status"]) for row in Store(tmp_path).rows() if row["status"] != "finished"}
    ((name, status),) = failed
    assert name == "deadly"
    assert status.startswith("failed: WorkerCrashedError: The worker died unexpectedly")
    assert any("2 failed: WorkerCrashedError" in line for line in lines)


def test_an_exception_in_a_task_is_a_row_as_in_a_local_run(ray, tmp_path):
    wine = load("wine")
    y = wine.y.copy()
    y[wine.train] = 7  # a class that the network does not have
    asked = [([replace(wine, name="wrong", y=y), "breast_cancer"], [TINY], FEW, 2)]
    counts, _ = on_cluster(ray, tmp_path / "cluster", asked)
    assert counts == {"there": 0, "new": 8, "failed": 4}
    assert measured(tmp_path / "cluster") == here(tmp_path / "here", asked)
    (reason,) = {row["status"] for row in Store(tmp_path / "cluster").rows() if row["dataset"] == "wrong"}
    assert reason.startswith("failed: ")
    again, _ = on_cluster(ray, tmp_path / "cluster", asked, retry_failed=True)
    assert (again["there"], again["failed"]) == (4, 4)
    assert measured(tmp_path / "cluster") == measured(tmp_path / "here")


def test_a_bug_in_a_task_stops_the_run_as_it_does_here(ray, tmp_path):
    wine = load("wine")
    asked = [([replace(wine, name="wrong", y=wine.y.astype(object))], [TINY], FEW, 1)]
    for executor in (OnRay(ray), Local()):
        with pytest.raises(TypeError, match="can't convert np.ndarray of type numpy.object_"):
            Run(Store(tmp_path), executor, how=How("cpu")).do(asked, print)
    assert len(Store(tmp_path)) == 0


def test_a_plan_of_images_and_of_words_is_one_queue_and_the_rows_of_a_local_run(
    ray,
    small_plans,  # noqa: F811
    made_data,  # noqa: F811
    lowchurn,  # noqa: F811
):
    for plan, rows in (("table2", 8), ("imdb", 2)):
        command = ("bench", "run", plan, "--data", made_data)
        code, out, errors = lowchurn(*command, "--store", f"{plan}-cluster", "--cluster", "ray")
        assert code == 0, errors
        assert f"{rows} new rows, 0 failed, {rows} were there." in out  # two parts that are the same in this test
        assert lowchurn(*command, "--store", f"{plan}-here", "--device", "cpu")[0] == 0
        assert measured(f"{plan}-cluster") == measured(f"{plan}-here")


class Counting:
    """The module ray, with what was put into the object store and the options of tasks."""

    def __init__(self, ray):
        self.ray, self.puts, self.tasks = ray, [], []

    def __getattr__(self, name):
        return getattr(self.ray, name)

    def put(self, value):
        self.puts.append(value)
        return self.ray.put(value)

    def remote(self, **options):
        self.tasks.append(options)
        return self.ray.remote(**options)


def test_data_sets_are_put_once_and_tasks_have_names_and_resources(ray, tmp_path):
    wine = load("wine")
    shared = replace(wine, name="wine_again", y=(wine.y == 0).astype(wine.y.dtype), fingerprint="other")
    seen = Counting(ray)
    executor = OnRay(seen, cpus=0.5, jobs=1)
    states = []
    asked = [([wine, shared], [TINY], FEW, 4), ([wine], [replace(TINY, seed=1)], FEW, 2)]
    Run(Store(tmp_path), executor, block=1).do(asked, lambda line: None, states.append)
    assert max(state.running for state in states) == 1
    assert executor.machine("auto").slots == 4
    arrays = [value for value in seen.puts if isinstance(value, np.ndarray)]
    assert [value is wine.X for value in arrays] == [True]  # two data sets, one array, ten blocks
    assert len(seen.puts) == 3
    blocks = [options for options in seen.tasks if "name" in options]
    assert len(blocks) == 10
    assert blocks[0]["name"] == "wine fcn-4 40: cold, distill, trial 0"
    assert {(options["num_cpus"], options["num_gpus"], options["max_retries"]) for options in blocks} == {(0.5, 0, 3)}
    assert all(0 < options["memory"] < 2**30 for options in blocks)


class EightGpus(Counting):
    """A cluster of two nodes with 8 GPUs and 64 CPUs each, which say what they have and run nothing."""

    def nodes(self):
        has = {"CPU": 64.0, "GPU": 8.0}
        return [{"Alive": True, "NodeID": "0" * 56, "NodeManagerHostname": name, "Resources": has} for name in "ab"]

    def remote(self, **options):
        self.tasks.append(options)
        return lambda function: self

    def options(self, **options):
        found = Machine("any", 100e9), cluster_module.versions_here()
        return SimpleNamespace(remote=lambda device: found)

    def get(self, value):
        return value


@pytest.mark.parametrize(
    ("options", "device", "expected"),
    [
        ({}, "auto", Machine("cuda", 100e9, at_once=1, slots=16)),
        ({}, "cuda", Machine("cuda", 100e9, at_once=1, slots=16)),
        ({"gpus": 0.125}, "auto", Machine("cuda", 100e9, at_once=8, slots=128)),
        ({"cpus": 16}, "auto", Machine("cuda", 100e9, at_once=1, slots=8)),
        ({}, "cpu", Machine("cpu", 100e9, at_once=64, slots=128)),
        ({"gpus": 0, "cpus": 4}, "auto", Machine("cpu", 100e9, at_once=16, slots=32)),
    ],
)
def test_resources_decide_the_device_and_how_many_blocks_share_it(options, device, expected):
    pretended = EightGpus(pytest.importorskip("ray"))
    assert OnRay(pretended, **options).machine(device) == expected
    taken = {"num_cpus": options.get("cpus", 1), "num_gpus": options.get("gpus", float(expected.device == "cuda"))}
    assert pretended.tasks == [taken]


def test_what_the_cluster_does_not_have_is_told_before_anything_is_trained(ray, tmp_path, monkeypatch):
    def refused(message, device="auto", **options):
        wanted = Run(Store(tmp_path / "store"), OnRay(ray, **options), how=How(device))
        with pytest.raises(ValueError, match=message):
            wanted.do([(["wine"], [TINY], FEW, 1)], print)

    refused(r"no node .* has 1 CPUs and 1 GPUs for a block; there are nodes with 1 CPUs and 0 GPUs\.", gpus=1)
    refused("no node of the cluster has 3 CPUs and 0 GPUs", cpus=3)
    refused("no node of the cluster has 1 CPUs and 1 GPUs", device="cuda")
    refused("gpus_per_block=0.5 does not go with device='cpu'", device="cpu", gpus=0.5)
    refused("device on a cluster must be one of 'auto', 'cpu', 'cuda', got 'cuda:1'", device="cuda:1")
    monkeypatch.setattr(cluster_module, "__version__", "9.9")
    refused(r"node .* has lowchurn .*, but the command was given with 9\.9\. Install the same version everywhere")
    assert not (tmp_path / "store").exists()
    with pytest.raises(ValueError, match="bench: gpus_per_block must be in "):
        OnRay(ray, gpus=2)


def command(store):
    sizes = ["--network", "fcn-64", "--initial", "500", "--validation", "100", "--batch", "400", "--epochs", "40"]
    names = [part for name in ("cold", "warm", "mixup", "distill") for part in ("--strategy", name)]
    run_it = [sys.executable, "-m", "lowchurn", "bench", "run", "digits", "--store", str(store), "--cluster", "ray"]
    return [*run_it, *sizes, *names, "--trials", "6", "--block", "1"]


def test_the_driver_is_killed_and_the_same_command_goes_on(cluster, tmp_path):
    store = tmp_path / "cluster"
    process = subprocess.Popen(command(store), stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while process.poll() is None and not list(store.glob("segments/0*")) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = len(Store(store))
    done = subprocess.run(command(store), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = 6 * 20
    assert 0 < before < rows
    assert f"{rows - before} new rows, 0 failed, {before} were there." in done.stdout
    assert raw_rows(store) == rows
    protocol = Protocol(network="fcn-64", initial=500, validation=100, batch=400, epochs=40)
    asked = [(["digits"], [protocol], settings_of(["cold", "warm", "mixup", "distill"]), 6)]
    assert measured(store) == here(tmp_path / "here", asked)
