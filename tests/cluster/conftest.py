"""A Ray cluster of two nodes on this machine, with token authentication, for all tests of this folder."""

import os
import shutil
import tempfile

import pytest

TOKEN = "0123456789abcdef0123456789abcdef"
NODE = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 * 2**20}
QUICK = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_NUM_REDIS_GET_RETRIES": "2", "OMP_NUM_THREADS": "1"}
# A node that was killed is noticed in three seconds, one that is only slow gets nine.
QUICK |= {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "3000"}
QUICK |= {"RAY_health_check_failure_threshold": "3"}
QUICK |= {"RAY_worker_niceness": "0"}  # as quick as what runs beside the tests


@pytest.fixture(scope="session")
def cluster():
    """Two nodes with one CPU each; this process and its children have the address and the token."""
    pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # the names of sockets have a limit
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_TMPDIR": folder, **QUICK}.items():
            patch.setenv(name, value)
        from ray._raylet import Config
        from ray.cluster_utils import Cluster

        Config.initialize("")  # an earlier import of ray has read the variables without the token
        started = Cluster()
        try:
            started.add_node(**NODE, include_dashboard=False)
            started.add_node(**NODE)
            patch.setenv("RAY_ADDRESS", started.address)
            yield started
        finally:
            started.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def third_node(cluster):
    """One more node, which a test may kill; its names of resources say which tasks run there."""
    node = cluster.add_node(**NODE, resources={"third": 1})
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node)


def environment(**changes):
    """The variables for a command of its own; None takes one away."""
    found = os.environ | {name: value for name, value in changes.items() if value is not None}
    return {name: value for name, value in found.items() if changes.get(name, "") is not None}
