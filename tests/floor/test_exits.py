"""Every way out of a command: one exit code, at most one line, nothing left behind."""

import os
import signal
import subprocess
import sys
import time
import warnings

import pytest
import typer

from lowchurn._exits import run_command


class LightGBMError(Exception):
    """As LightGBM raises it: neither a ValueError nor ours."""


LightGBMError.__module__ = "lightgbm.basic"


def command(error=None, action=None):
    app = typer.Typer(add_completion=False)

    @app.command()
    def first(
        max_churn: float = 0.1,
        classes: str = typer.Option("", "--class"),
    ) -> None:
        if action is not None:
            action()
        if error is not None:
            raise error

    @app.command()
    def second() -> None:
        pass

    return app


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (None, 0, ""),
        (typer.Exit(0), 0, ""),
        (typer.Exit(3), 3, ""),
        (ValueError("first: max_churn must be in [0, 1], got 2."), 2,
         "error: first: --max-churn must be in [0, 1], got 2."),
        (ValueError("first: use classes='a' or rows='x'."), 2, "error: first: use --class a or --id x."),
        (ValueError(""), 2, "error: ValueError:"),
        (ImportError("first: pandas is needed."), 2, "error: first: pandas is needed."),
        (FileNotFoundError(2, "No such file", "a.csv"), 2, "error: [Errno 2] No such file: 'a.csv'"),
        (MemoryError("Unable to allocate 8. GiB"), 2,
         "error: not enough memory (Unable to allocate 8. GiB). Use fewer rows or columns, or more memory."),
        (MemoryError(), 2, "error: not enough memory. Use fewer rows or columns, or more memory."),
        (LightGBMError("bad name"), 2, "error: LightGBMError: bad name"),
        (KeyError("x"), 4, "internal error: KeyError: 'x'. This is a bug in lowchurn: please report it with the "
         "command; --debug shows the traceback."),
        (RecursionError("too deep."), 4, "internal error: RecursionError: too deep. This is a bug in lowchurn: please "
         "report it with the command; --debug shows the traceback."),
        (TypeError("a\nb"), 4, "internal error: TypeError: a b. This is a bug in lowchurn: please report it with the "
         "command; --debug shows the traceback."),
        (AssertionError(), 4, "internal error: AssertionError: . This is a bug in lowchurn: please report it with the "
         "command; --debug shows the traceback."),
        (KeyboardInterrupt(), 130, "stopped."),
        (typer.Abort(), 130, "stopped."),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
        (SystemExit(5), 5, ""),
        (SystemExit("why"), 1, ""),
    ],
    ids=repr,
)  # fmt: skip
def test_every_error_is_one_line_and_one_code(error, code, line, capsys):
    assert run_command(command(error), ["first"], {"first": {"rows": "--id"}}) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.rstrip() == line
    assert err.count("\n") == bool(line)


def test_usage_errors_name_the_help(capsys):
    app = command()
    assert run_command(app, ["first", "--max-chrn", "1"]) == 2
    assert "No such option: --max-chrn" in capsys.readouterr().err
    assert run_command(app, ["first", "--max-churn", "x"]) == 2
    assert capsys.readouterr().err.endswith("See lowchurn first --help.\n")
    assert run_command(app, ["frst"]) == 2
    assert "'first'" in capsys.readouterr().err
    assert run_command(app, ["first", "--help"]) == 0
    assert "--max-churn" in capsys.readouterr().out


@pytest.mark.parametrize("where", [["--debug", "first"], ["first", "--debug"]])
def test_debug_shows_the_traceback_anywhere_on_the_line(where, capsys):
    assert run_command(command(KeyError("x")), where) == 4
    shown = capsys.readouterr().err
    assert shown.startswith("| Traceback")
    assert shown.count("internal error: KeyError: 'x'.") == 1


def test_debug_by_variable_and_not_behind_two_dashes(capsys, monkeypatch):
    run_command(command(ValueError("x")), ["first", "--", "--debug"])
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("LOWCHURN_DEBUG", "1")
    assert run_command(command(ValueError("x")), ["first"]) == 2
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("LOWCHURN_DEBUG", "0")
    run_command(command(ValueError("x")), ["first"])
    assert "Traceback" not in capsys.readouterr().err


def test_values_cannot_move_the_cursor_or_forge_a_line(capsys):
    evil = "\x1b[2J\x1b]0;x\x07[bold]\nPASS\r\u202e\x9b31m:smile:"
    for error in (ValueError(evil), KeyError(evil), MemoryError(evil)):
        run_command(command(error), ["first"])
    run_command(command(), [evil])
    run_command(command(), ["first", "--max-churn", evil])
    run_command(command(ValueError(evil)), ["first", "--debug"])
    run_command(command(action=lambda: warnings.warn(evil, stacklevel=1)), ["first"])
    shown = capsys.readouterr().err
    assert not any(c in shown for c in "\x1b\x07\r\u202e\x9b")
    assert "\nPASS" not in shown
    assert "[bold]" in shown
    assert ":smile:" in shown


def test_warnings_are_one_plain_line(capsys):
    def action():
        warnings.warn("few rows\nfor max_churn=0.1.", stacklevel=1)
        warnings.warn("later", FutureWarning, stacklevel=1)

    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run_command(command(action=action), ["first"]) == 0
    assert capsys.readouterr().err == "warning: few rows for --max-churn 0.1.\nwarning: later\n"
    assert warnings.showwarning is before


def test_signal_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    run_command(command(), ["first"])
    assert signal.getsignal(signal.SIGTERM) is before


LONG = """
import sys, time
import typer
from joblib import Parallel, delayed
from lowchurn._exits import run_command
from lowchurn._files import scratch_folder
app = typer.Typer()
@app.command()
def wait(folder: str, jobs: int = 1) -> None:
    with scratch_folder(folder):
        print("ready", flush=True)
        if jobs > 1:
            Parallel(n_jobs=jobs)(delayed(time.sleep)(60) for _ in range(jobs))
        time.sleep(60)
sys.exit(run_command(app, sys.argv[1:]))
"""


def started(*arguments, **options):
    process = subprocess.Popen(
        [sys.executable, "-c", LONG, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        **options,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_clean_up_and_print_one_line(tmp_path, number):
    process = started(tmp_path)
    process.send_signal(number)
    if number != signal.SIGINT:
        process.send_signal(number)  # as `timeout` does
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (128 + number, "stopped.\n")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_ends_the_workers(tmp_path):
    process = started(tmp_path, "--jobs", 2, start_new_session=True)
    time.sleep(1.5)
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert err.endswith("stopped.\n")
    assert list(tmp_path.iterdir()) == []
    for _ in range(100):  # the session has no process left
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("workers are still running")


def test_nohup_is_respected(tmp_path):
    process = started(tmp_path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143


PRINTS = """
import sys
import typer
from rich.console import Console
from lowchurn._exits import run_command
app = typer.Typer()
@app.command()
def talk(way: str) -> None:
    for k in range(20_000):
        Console().print(k) if way == "rich" else typer.echo(k) if way == "echo" else print(k)
    raise typer.Exit(1)
sys.exit(run_command(app, sys.argv[1:]))
"""


@pytest.mark.parametrize("way", ["rich", "echo", "print"])
def test_a_closed_pipe_is_quiet_and_no_fail(way):
    process = subprocess.Popen(
        [sys.executable, "-c", PRINTS, way], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) == 141


def test_a_full_or_closed_output(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", PRINTS, "print"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr == b"error: [Errno 28] No space left on device\n"
    closed = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&- 2>&-', "sh", sys.executable, "-c", PRINTS, "rich"], check=False
    )
    assert closed.returncode == 1


def test_letters_that_the_output_does_not_have_are_written_as_escapes():
    script = "import sys, typer\nfrom lowchurn._exits import run_command\napp = typer.Typer()\n"
    script += "app.command()(lambda: print('caf\\xe9'))\nsys.exit(run_command(app, []))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"caf\\xe9\n", b"")


def test_a_folder_that_is_gone_is_one_line(tmp_path, monkeypatch, capsys):
    app = typer.Typer()
    app.command()(lambda: None)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run_command(app, []) == 2
    assert capsys.readouterr().err == "error: the current folder is not there any more. Change to another one.\n"
