"""What the documents show runs, and every public name is documented with an example."""

import contextlib
import doctest
import importlib
import inspect
import io
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import lowchurn

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


# What the examples of a document need.
EXTRAS = {
    "huggingface.md": ("transformers", "datasets", "accelerate"),
    "mlflow.md": ("mlflow",),
    "recipes.md": ("keras", "lightning", "optuna", "skl2onnx", "onnxruntime"),
}


def blocks(path):
    """Each block of code of a document that is run, with its kind; a ``text`` block after Python is what it prints."""
    found = re.findall(r"^```(\w+)\n(.*?)^```(.*?)(?=^```|\Z)", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    before = ""
    for kind, body, after in found:
        if kind in ("python", "console") or (kind == "text" and before == "python"):
            yield kind, body
        before = kind if not after.strip() else ""


def run_python(body, namespace, path):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(body, str(path), "exec"), namespace)
    return printed.getvalue()


def run_shell(body):
    """Run the lines that start with ``$`` and return them with what they print, as the block shows it."""
    lines = []
    for command in re.findall(r"^\$ (.*)$", body, flags=re.MULTILINE):
        words = shlex.split(command, comments=True)
        assert words[0] == "lowchurn", f"documents show commands of lowchurn, not {words[0]}"
        environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
        done = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, env=environment, timeout=120, check=False
        )
        lines += [f"$ {command}", done.stdout, done.stderr]
    return "\n".join(line.rstrip("\n") for line in lines if line) + "\n"


def assert_same(shown, printed):
    """``...`` stands for anything, and spaces are not compared."""
    same = doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert same, f"shown:\n{shown}\nprinted:\n{printed}"


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """Files are written to a folder of the test, and the MLflow in it is not that of later tests."""
    monkeypatch.chdir(tmp_path)
    yield
    if "mlflow" in sys.modules:
        sys.modules["mlflow"].set_tracking_uri(None)


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize("path", [p for p in DOCUMENTS if [*blocks(p)]], ids=lambda p: p.name)
def test_examples_run_and_print_what_is_shown(path):
    if missing := [library for library in EXTRAS.get(path.name, ()) if find_spec(library) is None]:
        pytest.skip(f"{missing[0]} is not installed")  # not imported here: the example sets up what it imports
    namespace, printed = {"__name__": "example"}, ""
    for kind, body in blocks(path):
        if kind == "python":
            printed = run_python(body, namespace, path)
        else:
            assert_same(body, printed if kind == "text" else run_shell(body))


BUILT = {"results/tables.zip"}  # made with the site, whose tests open it


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(path):
    for target in set(re.findall(r"\]\(([^)#:]+)\)", path.read_text())) - BUILT:
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def public_rooms():
    """Rooms, modules and the modules of integrations, which users import by name."""
    return [
        name.removeprefix("lowchurn.")
        for _, name, _ in pkgutil.walk_packages(lowchurn.__path__, "lowchurn.", onerror=lambda name: None)
        if re.fullmatch(r"lowchurn\.([a-z]\w*|integrations\.[a-z]\w*)", name)
    ]


def public_objects():
    for room in public_rooms():
        try:
            module = importlib.import_module(f"lowchurn.{room}")
        except ImportError:
            continue  # an extra that is not installed
        for name in module.__all__:
            value = getattr(module, name)
            if room != "cli" and (inspect.isclass(value) or inspect.isfunction(value)):
                yield pytest.param(value, id=f"{room}.{name}")


# Shown by the example of the thing that uses them; those of the bench by docs/bench.md, which runs.
WITHOUT_EXAMPLE = {"Learner", "Strategy", "dial_tables", "run", "variants"}


@pytest.mark.parametrize("value", list(public_objects()))
def test_public_names_have_a_docstring_with_an_example(value):
    assert inspect.getdoc(value)
    if value.__name__ not in WITHOUT_EXAMPLE:
        assert doctest.DocTestParser().get_examples(inspect.getdoc(value)), f"{value.__name__} shows no example"


PACKAGE = ROOT / "src" / "lowchurn"
FILES_OF_USERS = {"lowchurn.toml", "lowchurn.json"}
MAPS = [ROOT / "docs" / "design.md", ROOT / "CONTRIBUTING.md"]


def names_in(path):
    """What stands between backticks in the text of a document, without its blocks of code."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([^`\s]+)`", text))


@pytest.mark.parametrize("path", MAPS, ids=lambda p: p.name)
def test_files_that_the_map_names_exist(path):
    files = {name for name in names_in(path) if re.fullmatch(r"[\w./-]+(\.(py|md|toml)|/)", name)}
    assert len(files) > 5
    for name in files - FILES_OF_USERS:
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), f"{path.name} names {name}"


@pytest.mark.parametrize("path", MAPS, ids=lambda p: p.name)
def test_functions_that_the_map_names_exist(path):
    pytest.importorskip("mlflow")  # imported by its integration, as all the others are when they are used
    for name in names_in(path) - FILES_OF_USERS:
        dotted = re.fullmatch(r"([a-z]\w*(?:\.\w+)+?)(?:\(.*\))?", name)
        if dotted and not re.search(r"^(self|job)\.|\.(py|md|toml)$", name):
            assert found(dotted[1].removeprefix("lowchurn.").split(".")), f"{path.name} names {name}"


def found(parts):
    """Whether ``["audit", "_gate", "Gate", "check"]`` leads from the package to something."""
    for depth in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(["lowchurn", *parts[:depth]]))
        except ModuleNotFoundError:
            continue
        for part in parts[depth:]:
            fields = getattr(value, "__dataclass_fields__", {})
            value = getattr(value, part, fields.get(part))
        return value is not None
    return False


def test_the_map_has_a_line_for_every_file():
    text = MAPS[0].read_text()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if path.name != "__init__.py" and "_kernels" not in name:
            assert f"`{name}`" in text, f"docs/design.md has no line for {name}"


def test_the_map_lists_the_public_names():
    pytest.importorskip("mlflow")  # imported by its integration, as all the others are when they are used
    listed = {}
    for room, names in re.findall(r"^\| `lowchurn\.([\w.]+)` \| (.*) \|$", MAPS[0].read_text(), flags=re.MULTILINE):
        listed[room] = sorted(re.findall(r"`(\w+)`", names))
    public = {room: sorted(importlib.import_module(f"lowchurn.{room}").__all__) for room in public_rooms()}
    assert listed == {room: names for room, names in public.items() if names}


def test_the_api_pages_list_every_public_name_and_nothing_else():
    pytest.importorskip("mlflow")  # imported by its integration, as all the others are when they are used
    listed, room = {}, ""
    for line in (ROOT / "docs" / "api" / "index.rst").read_text().splitlines():
        if line.startswith(".. currentmodule:: "):
            room = line.split()[-1].removeprefix("lowchurn.")
        elif re.fullmatch(r"   \w+", line):
            listed.setdefault(room, []).append(line.strip())
    public = {room: list(importlib.import_module(f"lowchurn.{room}").__all__) for room in public_rooms()}
    public["nets.networks"] = ["convnet", "fcn", "resnet", "transformer"]  # what the module `networks` has
    assert {room: sorted(names) for room, names in listed.items()} == {
        room: sorted(names) for room, names in public.items() if names
    }


def test_the_citation_file_is_of_this_version():
    assert f"version: {lowchurn.__version__}\n" in (ROOT / "CITATION.cff").read_text()
