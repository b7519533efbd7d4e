"""The command line, as a person would call it."""

import subprocess
import sys

import pytest
from rich.console import Console

from lowchurn import __version__
from lowchurn.demo import show_demo


def lowchurn(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "lowchurn.cli", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_version_and_help():
    assert lowchurn("--version").stdout.strip() == f"lowchurn {__version__}"
    assert "demo" in lowchurn("--help").stdout


@pytest.mark.parametrize("arguments", [("demo", "--max-churn", "1.5"), ("demo", "--seed", "-1"), ("dmo",)])
def test_bad_usage_is_exit_code_2_without_a_traceback(arguments):
    result = lowchurn(*arguments)
    assert result.returncode == 2
    assert result.stderr
    assert "Traceback" not in result.stderr


def test_the_demo_prints_its_table_and_needs_no_torch():
    console = Console(record=True, width=120)
    show_demo(console)
    text = console.export_text()
    for words in ("accuracy", "predictions changed", "predictions broken", "plain retrain", "low-churn retrain"):
        assert words in text
    loaded = "import sys, lowchurn.cli, lowchurn.demo; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0
