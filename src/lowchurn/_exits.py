"""Run a command: every way out has one exit code and at most one line on the standard error, never a traceback.

The codes are those of :data:`CODES`. A closed pipe and a signal end a command as the shell expects it (128 + signal):
exceptions run through the command, so its drafts and scratch folders are removed and its workers are ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import typer
from rich.console import Console

from lowchurn._options import as_options, option_names
from lowchurn._terminal import one_line, printable

BAD_INPUT = 2
INTERNAL_ERROR = 4
CODES = {
    0: "done or PASS",
    1: "FAIL, a certificate that was not obtained, or a bench of which nothing is finished",
    BAD_INPUT: "bad input",
    3: "INCONCLUSIVE",
    INTERNAL_ERROR: "internal error, a bug in lowchurn",
}
CLOSED_PIPE = 128 + 13
DEBUG = "LOWCHURN_DEBUG"

# Typer has a copy of click of its own in some versions and imports click in others.
_ClickException = typer.BadParameter.__mro__[2]
# Libraries that report bad data in exceptions of their own.
_LIBRARIES = ("catboost", "_catboost", "lightgbm", "mlflow", "onnxruntime", "xgboost")


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP, raised in the main thread so that everything is cleaned up as after ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run_command(app: typer.Typer, arguments: Sequence[str], also: Mapping[str, Mapping[str, str]] | None = None) -> int:
    """Run a command line (without the name of the program) and return its exit code.

    ``--debug`` may stand at any place before ``--``. ``also`` maps a command to further names that its settings have in
    Python: ``{"retrain": {"trusted": "--trust"}}``.
    """
    arguments, debug = _without_debug(arguments)
    command = typer.main.get_command(app)
    names = _names(command, arguments, also or {})
    if hasattr(sys.stdout, "reconfigure"):  # a terminal without some letter is no reason to fail when all is done
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _check_folder()
        with _signals_raised(), _plain_warnings(names):
            code = _invoke(command, arguments)
            if sys.stdout is not None:  # closed by the caller
                sys.stdout.flush()
        return code
    except BaseException as error:
        if isinstance(error, GeneratorExit):
            raise
        return _explained(error, names, debug)
    finally:
        _flush_or_drop()


def _check_folder() -> None:
    try:
        os.getcwd()
    except OSError:
        raise ValueError("the current folder is not there any more. Change to another one.") from None


def tell(kind: str, text: object, style: str = "") -> None:
    """Print one line, such as ``warning: ...``, on the standard error, with nothing in it that moves the cursor."""
    console = Console(stderr=True)
    with contextlib.suppress(OSError, ValueError, SystemExit):  # nobody reads it
        console.print(f"{kind}:", style=style, end=" ", highlight=False, soft_wrap=True)
        console.print(one_line(text, whole=True), markup=False, highlight=False, soft_wrap=True, emoji=False)


def _invoke(command: Any, arguments: list[str]) -> int:
    # Not command.main(): it exits with 1, which is FAIL, where a pipe is closed.
    try:
        with command.make_context("lowchurn", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as stop:
        return int(stop.exit_code)
    return 0


def _explained(error: BaseException, names: Mapping[str, str], debug: bool) -> int:
    """Print what went wrong and return the exit code."""
    if isinstance(error, SystemExit):
        # rich raises SystemExit(1) where a pipe is closed
        if isinstance(error.__context__, BrokenPipeError):
            return CLOSED_PIPE
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, BrokenPipeError):
        return CLOSED_PIPE
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        _write_line("stopped.")
        return 128 + (error.number if isinstance(error, Stopped) else signal.SIGINT)
    if isinstance(error, _ClickException):
        return _usage(error)
    if debug:
        for line in "".join(traceback.format_exception(error)).splitlines():
            _write_line(f"| {printable(line)}")
    if isinstance(error, MemoryError):
        details = f" ({error})" if str(error) else ""
        tell("error", f"not enough memory{details}. Use fewer rows or columns, or more memory.", "bold red")
        return BAD_INPUT
    library = type(error).__module__.split(".")[0]
    if isinstance(error, ValueError | ImportError | OSError) or library in _LIBRARIES:
        name = f"{type(error).__name__}: " if library in _LIBRARIES or not str(error) else ""
        tell("error", name + as_options(str(error), names), "bold red")
        return BAD_INPUT
    tell(
        "internal error",
        f"{type(error).__name__}: {str(error).rstrip('.')}. This is a bug in lowchurn: please report it with the "
        "command; --debug shows the traceback.",
        "bold red",
    )
    return INTERNAL_ERROR


def _usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return int(error.exit_code)
    context = getattr(error, "ctx", None)
    see = f" See {context.command_path} --help." if context is not None else ""
    tell("error", f"{error.format_message().strip().rstrip('.')}.{see}", "bold red")
    return BAD_INPUT


def _names(command: Any, arguments: list[str], also: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The options of the command that was called, by their names in Python."""
    called: list[str] = []
    for argument in arguments:
        inner = getattr(command, "commands", {}).get(argument)
        if inner is None:
            break
        command = inner
        called.append(argument)
    return option_names(command, **also.get(" ".join(called), {}))


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    kept = [a for a in given[:end] if a != "--debug"] + given[end:]
    return kept, len(kept) < len(given) or os.environ.get(DEBUG, "") not in ("", "0")


@contextlib.contextmanager
def _signals_raised() -> Iterator[None]:
    """Raise :class:`Stopped` for SIGTERM and SIGHUP; once, since ``timeout`` and shells may send them twice."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    wanted = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {}
    for each in wanted:
        if signal.getsignal(each) is not signal.SIG_IGN:  # ignored under nohup, and to be kept so
            before[each] = signal.signal(each, stop)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def _plain_warnings(names: Mapping[str, str]) -> Iterator[None]:
    def show(message: Warning | str, *place: object, **more: object) -> None:
        tell("warning", as_options(str(message), names), "yellow")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _write_line(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _flush_or_drop() -> None:
    """Leave nothing in the buffers that Python would complain of at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
