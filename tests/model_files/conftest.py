"""Quiet tests, and a module that shows whether it was imported."""

import sys
import textwrap
import warnings

import pytest


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def spy(tmp_path, monkeypatch):
    """A module that leaves a file when it is imported or called; its name, and whether anything ran."""
    (tmp_path / "lowchurn_spy.py").write_text(
        textwrap.dedent(
            f"""
            import pathlib, torch
            def leave():
                pathlib.Path({str(tmp_path / "ran")!r}).touch()
            leave()
            def network():
                leave()
                return torch.nn.Linear(3, 2)
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "lowchurn_spy:network", (tmp_path / "ran").exists
    sys.modules.pop("lowchurn_spy", None)
