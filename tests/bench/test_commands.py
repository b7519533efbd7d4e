"""``lowchurn bench`` and ``lowchurn data``: options, exit codes, what is printed, and other people's stores."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile

import pytest

from lowchurn.bench import _blocks as blocks_module
from lowchurn.bench import _store as store_module
from lowchurn.bench._segments import encode
from lowchurn.bench._store import Store
from lowchurn.cli import main
from lowchurn.cli._printing import blocks_bar
from tests.bench.test_store import row

SMALL = ("--network", "fcn-4", "--initial", "40", "--validation", "20", "--batch", "30", "--epochs", "2")
TINY = ("wine", *SMALL, "--strategy", "cold", "--trials", "2", "--device", "cpu")


@pytest.fixture
def lowchurn(tmp_path, monkeypatch, capsys):
    """Call the command line in this process: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOWCHURN_DATA", raising=False)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["lowchurn", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        return code, *capsys.readouterr()

    return call


def broken_for(trials):
    def run_trials(data, protocol, wanted, **options):
        if set(wanted) & set(trials):
            raise RuntimeError("[red]out[/] of \x1b[31mmemory")
        return real(data, protocol, wanted, **options)

    real = blocks_module.run_trials
    return run_trials


def test_a_run_in_which_everything_failed_is_not_a_success(lowchurn, monkeypatch):
    monkeypatch.setattr(blocks_module, "run_trials", broken_for([0, 1]))
    for _ in range(2):  # also when the failures are there already
        code, out, errors = lowchurn("bench", "run", *TINY)
        assert code == 1
        assert "none of 2 rows is finished; the first failed: RuntimeError: [red]out[/] of" in errors
        assert "\x1b[31m" not in out + errors
    assert "0 new rows" in out
    monkeypatch.undo()


def test_some_failures_are_a_warning_that_counts_them(lowchurn, monkeypatch, tmp_path):
    monkeypatch.setattr(blocks_module, "run_trials", broken_for([1]))
    code, out, errors = lowchurn("bench", "run", *TINY, "--block", 1)
    assert code == 0
    assert "2 new rows, 1 failed, 0 were there." in out
    assert "warning: bench run: 1 of 2 rows failed; the first failed: RuntimeError: [red]out[/]" in errors
    _, out, _ = lowchurn("bench", "status")
    assert "[red]out[/]" in out  # data, not markup
    assert "\\x1b[31mmemory" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--trials", 0), "--trials must be a whole number of at least 1, got 0"),
        (("--trials", -3), "--trials must be a whole number of at least 1, got -3"),
        (("--trials", 10**9), "--trials must be at most 100000"),
        (("--initial", 0), "--initial must be a whole number of at least 1"),
        (("--validation", 0), "--validation must be a whole number of at least 1, got 0"),
        (("--batch", 0), "--batch must be"),
        (("--batch", 10**30), "--batch must be at most"),
        (("--patience", 0), "--patience must be"),
        (("--epochs", 0), "--epochs must be"),
        (("--epochs", 2**63), "--epochs must be at most"),
        (("--seed", -1), "--seed must be a whole number of at least 0"),
        (("--seed", 2**63), f"--seed must be at most {2**63 - 1}, got {2**63}"),
        (("--jobs", 0), "--jobs must be"),
        (("--block", 0), "--block must be"),
        (("--loss", "hinge"), "loss must be one of 'log', 'squared'"),
        (("--dtype", "int8"), "dtype must be one of"),
        (("--start", "hot"), "start must be one of"),
        (("--network", "fcn-0"), "network must be one of"),
        (("--network", "fcn-\u0661"), "network must be one of"),
        (("--network", "fcn-" + "9" * 5000), "network must be one of"),
        (("--network", "fcn-999999999999999999"), "is too large to be made"),
        (("--network", "fcn-10000000", "--strategy", "paper"), "needs about"),
        (("--network", "convnet-1"), "convnet-1 reads images, but wine has rows of shape"),
        (("--network", "resnet-77"), "resnet-77 reads images, but wine has rows of shape"),
        (("--network", "transformer-1"), "reads words, but wine contains numbers"),
        (("--device", "cuda:7"), "device 'cuda:7' is not there"),
        (("--data", "nowhere"), "there is no folder or file nowhere"),
        (("--store", "/dev/null"), "is not a store"),
        (("--store", "/dev/null/x"), "store: cannot write to"),
        (("--address", "127.0.0.1:1"), "--address is for clusters. Add --cluster ray, or leave it out"),
        (("--gpus-per-block", 1), "--gpus-per-block is for clusters"),
        (("--cluster", "spark"), "--cluster must be one of 'ray', got 'spark'"),
        (("--cluster", "ray", "--gpus-per-block", 2), "--gpus-per-block must be in [0, 1], got 2"),
        (("--cluster", "ray", "--cpus-per-block", 0), "--cpus-per-block must be in (0, "),
    ],
)
def test_bad_options_are_one_line_that_names_them(lowchurn, tmp_path, options, message):
    code, _, errors = lowchurn("bench", "run", *TINY, *options)
    assert code == 2, errors
    assert message in errors
    assert len(errors.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_status_of_what_is_no_store(lowchurn, tmp_path):
    code, _, errors = lowchurn("bench", "status", "--store", "nothing")
    assert (code, "there is no store nothing" in errors) == (2, True)
    (tmp_path / "empty").mkdir()
    assert lowchurn("bench", "status", "--store", "empty")[:2] == (0, "empty contains no rows.\n")
    (tmp_path / "bad" / "segments").mkdir(parents=True)
    (tmp_path / "bad" / "segments" / "notes.txt").write_text("")
    for command in (("status",), ("tables",), ("report",), ("run", *TINY), ("import", "bad")):
        code, _, errors = lowchurn("bench", *command, "--store", "bad")
        assert (code, "notes.txt is not a segment" in errors) == (2, True)


def as_tar(path, members, mode="w"):
    with tarfile.open(path, mode) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def segment(*rows):
    content = encode(list(rows))[0]
    return {f"segments/000001-{hashlib.sha256(content).hexdigest()[:16]}.parquet": content}


def test_import_takes_segments_from_a_tar_file_and_nothing_else(lowchurn, tmp_path):
    outside = {"../evil": b"x", "/tmp/evil": b"x", "segments/../../evil": b"x", "notes.txt": b"x"}
    as_tar(tmp_path / "a.tar.gz", segment(row(0), row(1)) | outside, "w:gz")
    code, out, errors = lowchurn("bench", "import", "a.tar.gz", "--store", "store")
    assert (code, out) == (0, "a.tar.gz: 2 new rows\n"), errors
    assert len(Store(tmp_path / "store")) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar.gz", "store"]


def test_import_takes_a_tar_file_of_the_folder_itself(lowchurn, tmp_path):
    files = {f"./bench-store/{name}": content for name, content in segment(row(0), row(1)).items()}
    hidden = {"bench-store/lock": b"", "bench-store/segments/._000001-a.parquet": b"x"}
    as_tar(tmp_path / "a.tar", files | hidden)
    code, out, errors = lowchurn("bench", "import", "a.tar", "--store", "store")
    assert (code, out) == (0, "a.tar: 2 new rows\n"), errors


def test_import_refuses_links_and_two_stores(lowchurn, tmp_path):
    two = {f"{folder}/{name}": content for folder in "ab" for name, content in segment(row(0)).items()}
    as_tar(tmp_path / "two.tar", two)
    with tarfile.open(as_tar(tmp_path / "link.tar", segment(row(0))), "a") as tar:
        link = tarfile.TarInfo("segments/000002-0123456789abcdef.parquet")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    for name, message in {"two.tar": "more than one store", "link.tar": "is a link"}.items():
        code, _, errors = lowchurn("bench", "import", name, "--store", "store")
        assert (code, message in errors, len(errors.splitlines())) == (2, True, 1), errors


def test_import_writes_nothing_where_one_of_the_sources_is_bad(lowchurn, tmp_path):
    as_tar(tmp_path / "good.tar", segment(row(0)))
    code, out, errors = lowchurn("bench", "import", "good.tar", "nowhere", "--store", "store")
    assert (code, out, "is not a store" in errors) == (2, "", True), errors
    assert not (tmp_path / "store").exists()


def test_import_refuses_bombs_cut_files_and_other_things(lowchurn, tmp_path, monkeypatch):
    good = as_tar(tmp_path / "good.tar.gz", segment(row(0)), "w:gz").read_bytes()
    monkeypatch.setattr(store_module, "MOST_BYTES", 2**20)
    as_tar(tmp_path / "bomb.tar.gz", {"segments/000001-a.parquet": bytes(2**21)}, "w:gz")
    many = {f"segments/{i:06d}-a.parquet": bytes(2**20) for i in range(9)}
    as_tar(tmp_path / "many.tar.gz", many, "w:gz")
    (tmp_path / "cut.tar.gz").write_bytes(good[: len(good) // 2])
    (tmp_path / "empty.tar").write_bytes(b"")
    (tmp_path / "text.tar").write_text("no archive")
    as_tar(tmp_path / "none.tar", {"notes.txt": b"x"})
    as_tar(tmp_path / "odd.tar", {"segments/notes.txt": b"x"})
    messages = {
        "bomb.tar.gz": "unpacks to more than a store can hold",
        "many.tar.gz": "unpacks to more than a store can hold",
        "cut.tar.gz": "neither a folder nor a whole tar file",
        "empty.tar": "neither a folder nor a whole tar file",
        "text.tar": "neither a folder nor a whole tar file",
        "none.tar": "is not a store",
        "odd.tar": "is not a segment",
        "nowhere": "is not a store",
    }
    for name, message in messages.items():
        code, _, errors = lowchurn("bench", "import", name, "--store", "store")
        assert (code, message in errors, len(errors.splitlines())) == (2, True, 1), errors
    assert not (tmp_path / "store" / "segments").exists()


def test_a_second_bench_on_a_store_is_refused_in_one_line(lowchurn, tmp_path):
    with Store(tmp_path / "store").writing():
        code, _, errors = lowchurn("bench", "run", *TINY, "--store", "store")
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "another process is writing to store. Wait for it to end." in errors
    assert lowchurn("bench", "run", *TINY, "--store", "store")[0] == 0


def test_a_lock_that_a_killed_process_left_is_no_obstacle(lowchurn, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "lock").write_text("12345")
    assert lowchurn("bench", "run", *TINY, "--store", "store")[0] == 0


def test_prepare_says_where_it_cannot_write(lowchurn, tmp_path):
    assert lowchurn("bench", "prepare", "inputs", "wine")[0] == 0
    assert [p.name for p in tmp_path.iterdir()] == ["inputs"]
    code, _, errors = lowchurn("bench", "prepare", "no/inputs.npz", "wine")
    assert (code, "there is no folder 'no'" in errors) == (2, True)
    assert lowchurn("bench", "run", *TINY, "--data", "inputs")[0] == 0
    code, _, errors = lowchurn("bench", "prepare", "inputs", "wine", "--data", "inputs")
    assert (code, "must not overwrite the data" in errors) == (2, True)


def test_names_with_control_characters_do_not_reach_the_terminal(lowchurn, tmp_path):
    for name in ("\x1b]0;mine\x07", "[bold]a[/bold]", "line\nbreak"):
        code, out, errors = lowchurn("bench", "run", name, "--store", "store")
        assert code == 2
        assert "\x1b" not in out + errors
        assert len(errors.splitlines()) == 1


WITHOUT_UNIX = """
import os, sys
sys.modules["fcntl"] = sys.modules["psutil"] = None  # the psutil of this system asks for what is taken away here
for name in ("sched_getaffinity", "sysconf"):
    if hasattr(os, name):
        delattr(os, name)
from lowchurn.bench._protocol import Protocol
from lowchurn.bench._run import run
from lowchurn.bench._store import Store
from lowchurn.strategies import ColdStart
import pathlib
read = pathlib.Path.read_text
def elsewhere(self, *arguments, **options):
    if str(self).startswith(("/proc", "/sys")):
        raise FileNotFoundError(self)
    return read(self, *arguments, **options)
pathlib.Path.read_text = elsewhere
small = Protocol(network="fcn-4", initial=40, validation=20, batch=30, epochs=2)
print(run(Store(sys.argv[1]), ["wine"], [small], [ColdStart()], 1, device="cpu"))
"""


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_lines_and_a_bar_of_blocks(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    for errors, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        monkeypatch.setattr(sys, "stderr", errors)
        with blocks_bar() as (tell, show):
            show((1, 2, 3, 2))
            tell("a \x1b[31mline")
        assert sys.stdout.getvalue() == "a \\x1b[31mline\n"
        assert ("1 done, 2 running, 3 waiting, 2 nodes" in errors.getvalue()) is shown


def test_a_cluster_without_ray_is_one_line_that_names_the_extra(lowchurn, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, errors = lowchurn("bench", "run", *TINY, "--cluster", "ray")
    assert code == 2
    assert 'bench: a Ray cluster: ray is not installed. Run: pip install "lowchurn[ray]"' in errors
    assert not (tmp_path / "bench-store").exists()


def test_a_bench_runs_where_unix_is_not(tmp_path):
    """No fcntl, no processor affinity, no /proc: what macOS and Windows lack."""
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_UNIX, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert "'new': 1, 'failed': 0" in made.stdout, made.stderr
