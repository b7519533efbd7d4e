"""Errors of a connection to a cluster say what is missing; a connection leaves nothing behind."""

import signal
import socket
import subprocess
import sys

import pytest

from lowchurn._ray import connected
from tests.cluster.conftest import environment


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    rule = r'bench: a Ray cluster: ray is not installed\. Run: pip install "lowchurn\[ray\]"'
    with pytest.raises(ImportError, match=rule), connected("bench"):
        pass


@pytest.mark.ray
@pytest.mark.parametrize("address", ["nonsense", "local", "127.0.0.1:", "127.0.0.1:99999", "ray://127.0.0.1:1"])
def test_an_address_that_is_none_is_refused(address):
    pytest.importorskip("ray")
    rule = "bench: address must be auto or HOST:PORT, got "
    with pytest.raises(ValueError, match=rule), connected("bench", address):
        pass


@pytest.mark.ray
def test_where_nobody_listens_no_cluster_answers():
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    rule = rf"retrain: no Ray cluster answers at {address} \(.*refused\)\. Start one with `ray start --head`"
    with pytest.raises(ConnectionError, match=rule), connected("retrain", address):
        pass


@pytest.mark.ray
def test_a_connection_is_used_again_and_ends_with_the_first(cluster):
    before = signal.getsignal(signal.SIGTERM)
    with connected("bench") as ray:  # by RAY_ADDRESS
        assert sum(node["Alive"] for node in ray.nodes()) == 2
        with connected("bench", "127.0.0.1:1") as again:  # what is connected stays so
            assert again is ray
        assert ray.is_initialized()
        assert signal.getsignal(signal.SIGTERM) is before
    assert not ray.is_initialized()


@pytest.mark.ray
@pytest.mark.parametrize(
    ("mode", "token", "message"),
    [("token", None, "wants a token: set RAY_AUTH_MODE=token"), ("token", "9" * 32, "If it uses token authentication")],
    ids=["no token", "another token"],
)
def test_without_the_token_the_cluster_stays_closed(cluster, mode, token, message):
    code = "from lowchurn._ray import connected\nwith connected('bench'): pass"
    own = environment(RAY_AUTH_MODE=mode, RAY_AUTH_TOKEN=token, HOME="/nowhere")  # where a token could lie as well
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=own, timeout=100, check=False
    )
    assert done.returncode
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ConnectionError: bench: the ")
    assert message in last
    assert "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH" in last
