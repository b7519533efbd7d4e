"""kill -9 at any moment: every output is the old one or a whole new one, and the next run clears what is left."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import lowchurn
from tests.stress.running import run_and_kill, run_clean
from tests.stress.test_fuzz_retrain import base_file, rows

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")

OLD = b"what was there before"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Rows, a base and predictions; scratch folders are made inside, where leftovers are seen."""
    base = base_file()
    place = tmp_path / "work"
    place.mkdir()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    X, y = rows()
    pyarrow.parquet.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "y": y}), place / "rows.parquet")
    shutil.copy(base / "base.skops", place / "base.skops")
    n = 20_000
    rng = np.random.default_rng(0)
    old = rng.integers(0, 3, n)
    new = np.where(rng.random(n) < 0.05, rng.integers(0, 3, n), old)
    truth = rng.integers(0, 3, n)
    pyarrow.parquet.write_table(pa.table({"id": np.arange(n), "prediction": old, "y": truth}), place / "old.parquet")
    pyarrow.parquet.write_table(pa.table({"id": np.arange(n), "prediction": new}), place / "new.parquet")
    many = 5 * n
    week = {"id": np.arange(many), "a": rng.normal(size=many), "b": rng.normal(size=many)}
    pyarrow.parquet.write_table(pa.table(week), place / "week.parquet")
    last = pa.table({"id": np.arange(many)[::-1], "decision": rng.integers(0, 2, many)})
    pyarrow.parquet.write_table(last, place / "last.parquet")
    return place


COMMANDS = {
    "audit": (
        ("audit", "old.parquet", "new.parquet", "--label", "y", "--json", "a.json", "--html", "a.html"),
        {"a.json": json.loads, "a.html": lambda raw: raw.index(b"</html>")},
    ),
    "retrain": (
        ("retrain", "--data", "rows.parquet", "--target", "y", "--base", "base.skops", "--max-churn", "0.2", "--out",
         "next.skops", "--report", "next.json"),
        {"next.skops": None, "next.json": json.loads},
    ),
    "score": (
        ("score", "--model", "base.skops", "--data", "week.parquet", "--previous", "last.parquet", "--out",
         "this.parquet"),
        {"this.parquet": lambda raw: len(pyarrow.parquet.read_table(pa.BufferReader(raw))) == 100_000 or 1 / 0},
    ),
}  # fmt: skip


def whole(folder, name, check):
    """The old content, or all of the new one."""
    raw = (folder / name).read_bytes()
    if raw == OLD:
        return
    if check is None:
        lowchurn.load(folder / name)
    else:
        check(raw)


def kill_often(folder, command, times):
    arguments, outputs = COMMANDS[command]
    scratch = folder.parent / "scratch"
    assert run_clean(folder, outputs, *arguments).code == 0
    for _ in range(2):  # the first one starts the server that the others are forked from
        began = time.perf_counter()
        assert not run_and_kill(60, folder, scratch, *arguments), "it does not end"
    seconds = time.perf_counter() - began
    kept = {path.name for path in folder.iterdir()}
    moments = random.Random(0)
    tried = killed = 0
    while tried < times or killed < times / 4:
        assert tried < 4 * times, "hardly any run was killed before its end"
        tried += 1
        for name in outputs:
            (folder / name).write_bytes(OLD)
        # Half of the kills near the end, where outputs are written.
        share = moments.uniform(0.7, 1.1) if moments.random() < 0.5 else moments.random()
        began = time.perf_counter()
        if run_and_kill(seconds * share, folder, scratch, *arguments):
            killed += 1
        else:  # it was quicker than the one that was timed
            seconds = min(seconds, time.perf_counter() - began)
        for name, check in outputs.items():
            whole(folder, name, check)
    assert run_clean(folder, outputs, *arguments).code == 0
    assert {path.name for path in folder.iterdir()} == kept, "the next run clears what the killed ones left"
    left = [path.name for path in scratch.iterdir() if not path.name.startswith("pymp-")]  # of the server's own
    assert not left


@pytest.mark.parametrize("command", COMMANDS)
def test_three_kills(folder, command):
    kill_often(folder, command, 3)


@pytest.mark.stress
@pytest.mark.parametrize("command", COMMANDS)
def test_100_kills(folder, command):
    kill_often(folder, command, 100)


def _size(path):
    """Of a file that may be gone by now: before a command writes, it tries whether it could."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_in_the_middle_of_scoring_leaves_the_old_file_and_nothing_else(folder, ending, name):
    """It is sent when the draft has grown: some batches are written, others are not."""
    out = f"this{ending}"
    (folder / out).write_bytes(OLD)
    kept = {path.name for path in folder.iterdir()}
    command = ["score", "--model", "base.skops", "--data", "week.parquet", "--out", out]
    slow = (
        "import sys, time\n"
        "from lowchurn.cli import main\n"
        "from lowchurn.retrain import _score\n"
        "_score.BATCH_ROWS = 1000\n"
        "decided = _score._decided\n"
        "_score._decided = lambda *given: (time.sleep(0.05), decided(*given))[1]\n"
        f"sys.argv = ['lowchurn', *{command!r}]\n"
        "main()\n"
    )
    scratch = folder.parent / "scratch"
    child = subprocess.Popen(
        [sys.executable, "-c", slow], cwd=folder, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(scratch)}
    )
    until = time.monotonic() + 60
    while sum(_size(path) for path in folder.iterdir() if path.name not in kept) < 2000:
        assert child.poll() is None, child.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.01)
    child.send_signal(getattr(signal, name))
    _, err = child.communicate(timeout=60)
    assert child.returncode == 128 + getattr(signal, name)
    assert err == b"stopped.\n"
    assert (folder / out).read_bytes() == OLD
    assert {path.name for path in folder.iterdir()} == kept
    assert list(scratch.iterdir()) == []
