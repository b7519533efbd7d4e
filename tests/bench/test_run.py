"""Runs that are stopped and go on, failures that become rows, and the commands."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from lowchurn import __version__
from lowchurn.bench import _blocks as blocks_module
from lowchurn.bench._blocks import Block, How
from lowchurn.bench._loading import load
from lowchurn.bench._protocol import Protocol, count_weights, dial_settings, paper_settings, settings_of
from lowchurn.bench._report import write_report, write_tables
from lowchurn.bench._run import code_version, run, summary
from lowchurn.bench._segments import key_of
from lowchurn.bench._store import Store, copy_rows
from lowchurn.strategies import ColdStart, Distill, Soup

TINY = Protocol(network="fcn-4", initial=40, validation=20, batch=30, epochs=3)
MEASURED = ("start", "seed", "accuracy", "churn", "broken", "fixed", "base_accuracy", "epochs", "status", "data")


def measured(store):
    """What must not depend on when and how a row was made."""
    rows = [(*key_of(row), *(row[n] for n in (*MEASURED, "validation_loss"))) for row in Store(store).rows()]
    assert len(rows) == len(set(rows))
    return sorted(rows, key=str)


def quiet(*arguments, **options):
    return run(*arguments, device="cpu", tell=lambda line: None, **options)


def test_the_same_call_goes_on_and_never_doubles(tmp_path):
    store = Store(tmp_path / "parts")
    some = settings_of(["cold", "distill"])
    assert quiet(store, ["wine"], [TINY], some, 2) == {"there": 0, "new": 20, "failed": 0}
    assert quiet(store, ["wine"], [TINY], some, 2) == {"there": 20, "new": 0, "failed": 0}
    more = settings_of(["cold", "warm", "distill", "mixup"], "both")
    assert quiet(Store(tmp_path / "parts"), ["wine", "breast_cancer"], [TINY], more, 3)["there"] == 20
    whole = Store(tmp_path / "whole")
    quiet(whole, ["wine", "breast_cancer"], [TINY], more, 3, block=2, jobs=2)
    assert measured(tmp_path / "parts") == measured(tmp_path / "whole")


def test_what_is_asked_for_twice_is_done_once(tmp_path):
    lines = []
    again = [ColdStart(), Distill(0.5), ColdStart()]
    counts = run(Store(tmp_path), ["wine", "wine"], [TINY, TINY], again, 2, device="cpu", tell=lines.append)
    assert counts == {"there": 0, "new": 4, "failed": 0}
    assert len(lines) == 1
    with pytest.raises(ValueError, match="bench: threads must be a whole number of at least 1, got 0"):
        quiet(Store(tmp_path), ["wine"], [TINY], [ColdStart()], 2, threads=0)


def command(store, *more):
    sizes = ["--network", "fcn-8", "--initial", "200", "--validation", "100", "--batch", "200", "--epochs", "4"]
    names = [part for name in ("cold", "warm", "mixup", "co-dist", "distill") for part in ("--strategy", name)]
    run_it = [sys.executable, "-m", "lowchurn", "bench", "run", "digits", "--store", str(store)]
    return [*run_it, *sizes, *names, "--trials", "8", "--block", "1", "--device", "cpu", *more]


def test_kill_9_at_any_moment_loses_only_work_in_flight(tmp_path):
    quick = os.environ | {"OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    subprocess.run(command(tmp_path / "whole"), check=True, stdout=subprocess.DEVNULL, env=quick)
    length = time.monotonic() - began
    chance = random.Random()
    rows_after_kill = []
    for _ in range(3):
        process = subprocess.Popen(command(tmp_path / "killed"), stdout=subprocess.DEVNULL, env=quick)
        time.sleep(chance.uniform(0.3, 0.8) * length)
        process.send_signal(signal.SIGKILL)
        process.wait()
        rows_after_kill.append(len(Store(tmp_path / "killed")))  # readable, whatever happened
    assert rows_after_kill == sorted(rows_after_kill)  # nothing that was there is lost
    subprocess.run(command(tmp_path / "killed"), check=True, stdout=subprocess.DEVNULL, env=quick)
    assert measured(tmp_path / "killed") == measured(tmp_path / "whole")
    assert len(Store(tmp_path / "killed")) == 8 * 29
    assert {p.name for p in (tmp_path / "killed").iterdir()} == {"lock", "segments"}
    assert all(p.name[0].isdigit() for p in (tmp_path / "killed" / "segments").iterdir())  # no drafts


def test_a_failure_is_a_row_with_its_reason(tmp_path, monkeypatch):
    store, some = Store(tmp_path), [ColdStart(), Distill(0.5)]
    real = blocks_module.run_trials

    def sometimes(data, protocol, wanted, **options):
        if 1 in wanted:
            raise RuntimeError("out of\nmemory")
        return real(data, protocol, wanted, **options)

    monkeypatch.setattr(blocks_module, "run_trials", sometimes)
    assert quiet(store, ["wine"], [TINY], some, 3, block=1) == {"there": 0, "new": 6, "failed": 2}
    failed = [row for row in store.rows() if row["status"] != "finished"]
    assert {(row["trial"], row["status"]) for row in failed} == {(1, "failed: RuntimeError: out of memory")}
    line = next(line for line in summary(store) if line["failed"])
    assert "out of memory" in line["reason"]
    monkeypatch.undo()
    assert quiet(store, ["wine"], [TINY], some, 3)["new"] == 0
    assert quiet(store, ["wine"], [TINY], some, 3, retry_failed=True)["new"] == 2
    assert {row["status"] for row in Store(tmp_path).rows()} == {"finished"}


def test_a_gpu_that_ended_all_work_ends_the_run(monkeypatch):
    """Otherwise each later block would become rows that failed for a reason that is not its own."""

    def failed(*arguments, **options):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    block = Block(load("wine"), TINY, {0: [ColdStart(), Distill(0.5)]}, How(device="cuda:0"))
    monkeypatch.setattr(blocks_module, "run_trials", failed)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)  # it goes on: the block alone has failed
    assert [row["status"] for row in block.rows()] == [
        "failed: RuntimeError: CUDA error: an illegal memory access was encountered"
    ] * 2
    monkeypatch.setattr(torch.cuda, "synchronize", failed)
    with pytest.raises(
        RuntimeError, match="the GPU ended all work of this process: CUDA error: an illegal.*same command"
    ):
        block.rows()


def test_settings_that_share_trainings_are_counted_once(tmp_path):
    data = load("wine")
    assert Block(data, TINY, {0: paper_settings("both"), 1: dial_settings(), 2: [Soup(4), Soup(8, 0.3)]}).models == (
        137 + 85 + 8
    )
    lines = []
    soups = settings_of(["cold", "soup", "interpolate"])
    assert run(Store(tmp_path), ["wine"], [TINY], soups, 2, device="cpu", tell=lines.append)["new"] == 2 * 21
    (line,) = lines
    assert line.endswith("2 trials, 18 models, 42 rows")
    assert {row["block_models"] for row in Store(tmp_path).rows()} == {18}
    whole = Block(data, TINY, {0: dial_settings()})
    assert whole.cost == 85 * count_weights("fcn-4", data) * (TINY.initial + TINY.batch)


def test_a_member_that_failed_is_told_and_the_row_finishes(tmp_path, monkeypatch):
    real = blocks_module.run_trials

    def short(*arguments, **options):
        rows = real(*arguments, **options)
        rows[-1]["left_out"] = "member 3 (failed: why)"
        return rows

    monkeypatch.setattr(blocks_module, "run_trials", short)
    lines = []
    run(Store(tmp_path), ["wine"], [TINY], [ColdStart(), Soup(2)], 1, device="cpu", tell=lines.append)
    assert lines[0].endswith(
        "1 trials, 3 models, 2 rows, 1 without members that failed, such as member 3 (failed: why)"
    )
    assert {row["status"] for row in Store(tmp_path).rows()} == {"finished"}


def test_a_run_in_which_all_fails_says_why(tmp_path, monkeypatch):
    def never(data, protocol, wanted, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(blocks_module, "run_trials", never)
    lines = []
    run(Store(tmp_path), ["wine"], [TINY], [ColdStart()], 2, device="cpu", tell=lines.append)
    assert lines[0].endswith("2 models, 2 rows, 2 failed: RuntimeError: out of memory")
    for write in (write_tables, write_report):
        with pytest.raises(ValueError, match="the first of 2 failed: RuntimeError: out of memory"):
            write(Store(tmp_path), tmp_path / "out")


def test_two_versions_of_a_data_set_do_not_mix(tmp_path):
    quiet(Store(tmp_path / "one"), ["wine"], [TINY], [ColdStart()], 1)
    (row,) = Store(tmp_path / "one").rows()
    store = Store(tmp_path / "two")
    store.append([row | {"data": "other", "trial": 7}])
    with pytest.raises(ValueError, match="contains rows of wine made from other data"):
        quiet(store, ["wine"], [TINY], [ColdStart()], 2)


def test_everything_is_checked_before_anything_is_trained(tmp_path):
    with pytest.raises(ValueError, match="wine has 119 training rows"):
        quiet(
            Store(tmp_path), ["breast_cancer", "wine"], [Protocol(initial=100, validation=20, batch=100)], [ColdStart()]
        )
    with pytest.raises(ValueError, match="trials must be a whole number of at least 1, got 0"):
        quiet(Store(tmp_path), ["wine"], [TINY], [ColdStart()], 0)
    assert not (tmp_path / "segments").exists()


def test_options_are_part_of_the_key(tmp_path):
    store = Store(tmp_path)
    changes = ({"scale": True}, {"patience": 3}, {"loss": "squared"}, {"one_order": True})
    others = [Protocol(**(vars(TINY) | change)) for change in changes]
    assert quiet(store, ["wine"], [TINY, *others], [ColdStart()], 1)["new"] == 5
    assert {(r["scale"], r["patience"], r["loss"], r["one_order"]) for r in store.rows()} == {
        (False, 5, "log", False),
        (True, 5, "log", False),
        (False, 3, "log", False),
        (False, 5, "squared", False),
        (False, 5, "log", True),
    }
    assert len({r["validation_loss"] for r in store.rows()}) > 3  # they are trained otherwise


def test_rows_of_another_store_are_imported_once(tmp_path, monkeypatch):
    source, target = Store(tmp_path / "source"), Store(tmp_path / "target")
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as on a machine with nothing but torch
    quiet(source, ["wine"], [TINY], [ColdStart(), Distill(0.5)], 2)
    monkeypatch.undo()
    quiet(target, ["wine"], [TINY], [ColdStart()], 1)
    assert copy_rows(source, target) == 3
    assert copy_rows(source, target) == 0
    assert measured(tmp_path / "source") == measured(tmp_path / "target")


def test_the_version_names_the_commit(monkeypatch):
    monkeypatch.setenv("LOWCHURN_COMMIT", "abc123")
    assert code_version() == f"{__version__}+abc123"


def lowchurn(*arguments, **options):
    call = [sys.executable, "-m", "lowchurn", *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, check=False, timeout=300, **options)


def test_the_command_reaches_what_is_past_the_paper(tmp_path):
    sizes = ("--network", "fcn-4", "--initial", 40, "--validation", 20, "--batch", 30, "--epochs", 2, "--trials", 1)
    made = lowchurn("bench", "run", "wine", *sizes, "--device", "cpu", "--store", tmp_path, "--strategies", "dial")
    assert "87 new rows, 0 failed, 0 were there." in made.stdout, made.stderr
    more = lowchurn("bench", "run", "wine", *sizes, "--device", "cpu", "--store", tmp_path, "--strategies", "all")
    assert "817 new rows, 0 failed, 87 were there." in more.stdout, more.stderr


def test_commands_from_run_to_tables(tmp_path):
    store = tmp_path / "store"
    sizes = ("--network", "fcn-4", "--initial", 40, "--validation", 20, "--batch", 30, "--epochs", 2, "--trials", 2)
    made = lowchurn("bench", "run", "wine", *sizes, "--device", "cpu", "--store", store)
    assert made.returncode == 0, made.stderr
    assert "148 new rows, 0 failed, 0 were there." in made.stdout
    assert "fcn-4" in lowchurn("bench", "status", "--store", store).stdout
    tables = lowchurn("bench", "tables", "--store", store, "--out", tmp_path / "tables")
    assert (tmp_path / "tables" / "all-raw-warm-epochs2.md").exists(), tables.stderr
    copied = lowchurn("bench", "import", store, "--store", tmp_path / "copy")
    assert "148 new rows" in copied.stdout
    listed = lowchurn("data", "list")
    assert "openml:1590" in listed.stdout
    assert all(len(line.split("  ")) >= 4 for line in listed.stdout.splitlines())  # no two columns run together


SMALL = ("--initial", "40", "--validation", "20", "--batch", "40")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "run", "digts"), "Did you mean 'digits'"),
        (("bench", "run", "digits"), "a trial needs 2100"),
        (("bench", "run", "adult"), "lowchurn data fetch adult"),
        (("bench", "run", "wine", "--network", "fnc-10"), "network must be one of"),
        (("bench", "run", "wine", *SMALL, "--device", "tpu"), "device must be 'auto', 'cpu' or 'cuda', got 'tpu'"),
        (("bench", "run", "wine", *SMALL, "--device", "cuda:99"), "device 'cuda:99' is not there"),
        (("bench", "run", "wine", "--strategy", "dstill"), "Did you mean 'distill'"),
        (("bench", "tables", "--store", "nothing-here"), "contains no rows"),
        (("bench", "import", "nothing-here"), "is not a store"),
        (("data", "fetch", "adlt", "--data", "somewhere"), "Did you mean 'adult'"),
    ],
)
def test_bad_calls_are_one_clear_line(arguments, message, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "LOWCHURN_DATA"}
    result = lowchurn(*arguments, cwd=tmp_path, env=environment)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "bench-store" / "segments").exists()


@pytest.mark.gpu
def test_a_gpu_comes_to_the_same_averages(tmp_path):
    protocol = Protocol(network="fcn-64", initial=300, validation=100, batch=300, scale=True, epochs=15)
    dial = ["soup", "two-teachers", "served-mix", "constrained", "local-ls"]
    some = settings_of(["cold", "mixup", "co-dist", "distill", *dial])
    for device in ("cpu", "cuda"):
        counts = run(Store(tmp_path / device), ["digits"], [protocol], some, 10, device=device, jobs=2, block=5)
        assert counts == {"there": 0, "new": 10 * len(some), "failed": 0}
    rows = {device: Store(tmp_path / device).rows() for device in ("cpu", "cuda")}
    for name in {row["strategy"] for row in rows["cpu"]}:
        for column in ("accuracy", "churn"):
            means = [
                sum(r[column] for r in some if r["strategy"] == name) / sum(r["strategy"] == name for r in some)
                for some in rows.values()
            ]
            assert means[0] == pytest.approx(means[1], abs=0.01)  # the same seeds: only rounding differs
