"""Run a command of lowchurn as a pipeline does, and hold what must be true of every run.

A command ends with a code of its own, prints no traceback, leaves nothing behind but its outputs, and writes these
only where it succeeded.
"""

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from lowchurn.cli import main

CODES = {"audit": {0, 1, 2, 3}, "retrain": {0, 1, 2}, "dial": {0, 1, 2}, "score": {0, 2}, "bench": {0, 1, 2}}


FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["lowchurn.cli._audit", "lowchurn.retrain", "lowchurn.learners._torch", __name__])


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    code: int
    out: str
    err: str


def run(*arguments):
    """Call the entry point in this process: starting an interpreter takes longer than most runs."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch.object(sys, "argv", ["lowchurn", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        try:
            main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else (0 if left.code is None else 1)
    return Ended(code, out.getvalue(), err.getvalue())


def run_clean(folder, outputs, *arguments):
    """Run inside a folder and check what holds for every run; return how it ended.

    ``outputs`` names the files and folders that the command may make there.
    """
    folder = Path(folder)
    before = _names(folder)
    with contextlib.chdir(folder):
        ended = run(*arguments)
    told = f"lowchurn {' '.join(map(str, arguments))}\nexit {ended.code}\n{ended.out}\n{ended.err}"
    assert ended.code in CODES[arguments[0]], told
    assert "Traceback" not in ended.out + ended.err, told
    added = _names(folder) - before
    if ended.code == 2:
        assert ended.err.strip(), f"no reason given\n{told}"
        assert not added, f"left behind: {added}\n{told}"
    extra = {name for name in added if Path(name).parts[0] not in outputs}
    assert not extra, f"left behind: {extra}\n{told}"
    raw = [c for c in ended.out + ended.err if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0]
    assert not raw, f"control characters {raw!r} reached the terminal\n{told!r}"
    return ended


def _names(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def run_and_kill(seconds, folder, scratch, *arguments):
    """Run in a process that is killed after a while; return True where it was killed before it ended.

    It is forked from a server that has imported everything and run nothing, so that a run starts at once and with
    no threads of an earlier one.
    """
    child = FORKING.Process(target=_run_apart, args=(str(folder), str(scratch), arguments))
    child.start()
    child.join(seconds)
    child.kill()
    child.join()
    return child.exitcode == -signal.SIGKILL


def _run_apart(folder, scratch, arguments):
    os.chdir(folder)
    tempfile.tempdir = scratch
    run(*arguments)
