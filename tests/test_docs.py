"""What the documents show runs, and every public name is documented with an example."""

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import lowchurn

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def python_blocks(path):
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if python_blocks(p)], ids=lambda p: p.name)
def test_python_examples_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "example"}
    for block in python_blocks(path):
        exec(compile(block, str(path), "exec"), namespace)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def public_objects():
    for info in pkgutil.iter_modules(lowchurn.__path__):
        if info.name.startswith("_") or info.name in {"checks", "cli"}:
            continue
        module = importlib.import_module(f"lowchurn.{info.name}")
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            ours = getattr(value, "__module__", "").startswith(module.__name__)
            if not name.startswith("_") and ours and (inspect.isclass(value) or inspect.isfunction(value)):
                yield pytest.param(value, id=f"{info.name}.{name}")


# Documented, but shown by the example of the thing that uses them.
WITHOUT_EXAMPLE = {
    "TrainingInterrupted",
    "Strategy",
    "OptimalMixture",
    "DemoRow",
    "show_demo",
    "row_dot",
    "Learner",
    "RowsLearner",
    "TorchLearner",
}


@pytest.mark.parametrize("value", list(public_objects()))
def test_public_names_have_a_docstring_with_an_example(value):
    assert inspect.getdoc(value)
    if value.__name__ not in WITHOUT_EXAMPLE:
        assert doctest.DocTestParser().get_examples(inspect.getdoc(value)), f"{value.__name__} shows no example"
