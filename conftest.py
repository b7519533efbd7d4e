"""What pytest must not import: kernels for GPUs need Triton, and hold no examples; examples whose extra is missing.

Tests write to folders of their own: the run fails where a library has left its files in the root of the repository.
"""

from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest

# No test is about the time of one example, and a shared machine is slow at times. Every run has the same examples;
# those of `make test-slow` and `make test-stress` are drawn anew each time.
hypothesis.settings.register_profile("lowchurn", deadline=None, derandomize=True)
hypothesis.settings.register_profile("drawn", deadline=None)
hypothesis.settings.load_profile("lowchurn")

LEFT_BEHIND = ("mlflow.db", "mlruns", "mlartifacts", "catboost_info", "lightning_logs", "lowchurn-demo")
BEFORE = pytest.StashKey[set[str]]()
collect_ignore_glob = ["src/lowchurn/nets/_kernels/*_gpu*.py"]
if find_spec("transformers") is None or find_spec("datasets") is None:
    collect_ignore_glob += ["src/lowchurn/integrations/huggingface.py"]
    collect_ignore_glob += ["tests/integrations/tiny.py", "tests/integrations/two_processes.py"]
if find_spec("mlflow") is None:
    collect_ignore_glob += ["src/lowchurn/integrations/mlflow.py"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


def _left_behind(config: pytest.Config) -> set[str]:
    return {name for name in LEFT_BEHIND if Path(config.rootpath, name).exists()}


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note what is there already."""
    session.config.stash[BEFORE] = _left_behind(session.config)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run where a test has written to the root; only the process that reports does so."""
    found = _left_behind(session.config) - session.config.stash[BEFORE]
    if found and not hasattr(session.config, "workerinput"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\nFAILED: tests have left {sorted(found)} in {session.config.rootpath}. Let them write to tmp_path.")
