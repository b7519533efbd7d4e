"""The shape of the package, read from its source: what imports what, how long and wide things are, what is public."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import lowchurn

PACKAGE = Path(lowchurn.__file__).parent
ROOT = Path(__file__).parent.parent
FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in FILES}


def name_of(path):
    """The module that a file is: ``lowchurn.audit._gate``."""
    parts = ["lowchurn", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))

# Each room, and the rooms of lowchurn that it may import. A room may always import itself.
FLOOR = {
    "_types",
    "_estimates",
    "_display",
    "_extras",
    "_json",
    "_html",
    "_checks",
    "_files",
    "_model_files",
    "_options",
    "_ray",
    "_reading",
    "_terminal",
}
MATHS = FLOOR | {"scoring", "metrics"}
WORDS = MATHS | {"strategies", "theory"}
TRAINED = WORDS | {"learners", "nets"}
CHOSEN = TRAINED | {"selection"}
FRONT = CHOSEN | {"estimator", "_charts", "_frontier_chart", "_tried"}
ALLOWED = {
    "_checks": {"_types"},
    "_types": set(),
    "_display": {"_types", "_estimates"},
    "_json": {"_types"},
    "_estimates": {"_types", "_checks"},
    "_html": {"_types", "_display", "_extras", "_files"},
    "_extras": {"_terminal"},
    "_files": set(),
    "_options": set(),
    "_ray": {"_extras", "_terminal"},
    "_reading": {"_extras", "_terminal"},
    "_terminal": set(),
    "_exits": FLOOR,
    "_pytest_plugin": {"_checks", "audit", "report"},
    "_model_files": {"_reading", "_terminal", "_types"},
    "_charts": FLOOR,
    "_tried": MATHS,
    "_frontier_chart": MATHS | {"_charts", "_tried"},
    "scoring": FLOOR,
    "metrics": FLOOR | {"scoring"},
    "strategies": MATHS,
    "theory": WORDS,
    "nets": WORDS,
    "learners": TRAINED,
    "selection": TRAINED,
    "estimator": FRONT,
    "retrain": FRONT,
    "audit": MATHS,
    "report": MATHS | {"audit", "_charts", "_frontier_chart", "_tried"},
    "bench": FRONT | {"_exits"},
    "integrations": FRONT | {"audit", "report"},
    "cli": FRONT | {"_exits", "audit", "report", "bench", "retrain", "integrations"},
    "__main__": {"cli"},
}

# Heavy libraries, and the only places that may import them.
EDGES = {
    "torch": ("nets/", "learners/_torch.py", "bench/", "integrations/"),
    "triton": ("nets/",),
    "cuda": ("nets/",),
    "numba": ("nets/",),
    "lightgbm": ("learners/_lightgbm.py",),
    "xgboost": ("learners/_xgboost.py",),
    "catboost": ("learners/_catboost.py",),
    "ibis": (
        "audit/_cells.py",
        "audit/_connections.py",
        "audit/_counts.py",
        "audit/_csv.py",
        "audit/_exact.py",
        "audit/_joins.py",
        "audit/_number_counts.py",
        "audit/_releases.py",
        "audit/_sources.py",
        "audit/_values.py",
    ),
    "duckdb": ("audit/_sources.py", "bench/"),
    "pyspark": ("audit/_connections.py",),
    "altair": (),
    "jinja2": ("_html.py",),
    "markupsafe": ("_html.py",),
    "vl_convert": ("_charts.py",),
    "ray": ("_ray.py", "bench/_cluster.py"),
    "skops": ("learners/_skops.py",),
    "onnxruntime": ("estimator/_production.py",),
    "pandas": (
        "retrain/",
        "estimator/_frontier.py",
        "estimator/_split.py",
        "bench/",
        "report/",
        "audit/",
        "integrations/",
        "cli/_demo.py",
    ),
    "datasets": ("bench/_fetch.py", "integrations/huggingface.py"),
    "transformers": ("integrations/_checkpoints.py", "integrations/huggingface.py"),
    "peft": ("integrations/_checkpoints.py",),
    "mlflow": ("integrations/mlflow.py", "cli/_promote.py"),
    "huggingface_hub": ("bench/_fetch.py",),
    "pyarrow": ("audit/", "bench/", "retrain/"),
    "msgspec": ("_reading.py",),
    "inspect_ai": ("audit/_run_logs.py",),
}

MOST_LINES = 60  # of a function's body, docstring aside
MOST_ATTRIBUTES = 12
MOST_PUBLIC_NAMES = 81
# Classes with more attributes, because their fields are not of our choice.
WIDE = {
    "lowchurn.audit._audited.Audited": "a public result: its fields are what a user reads",
    "lowchurn.audit._inference.Slice": "a public result: its fields are what a user reads",
    "lowchurn.audit._number_inference.NumberSlice": "a public result: its fields are what a user reads",
    "lowchurn.audit._settings.Settings": "the settings of an audit: one field per key of the TOML file",
    "lowchurn.estimator._archive.Description": "a file: one field per key",
    "lowchurn.estimator._archive.Entry": "a part of a file: one field per key",
    "lowchurn.estimator._frontier.Candidate": "a public result: its fields are the columns of the frontier",
    "lowchurn.estimator._frontier.Selection": "a public result: its fields are what a user reads",
    "lowchurn.nets.networks.Transformer": "a network: one attribute per layer",
    "lowchurn.report._frontier_file.Record": "a file that may be written by hand: one field per key",
}


def nodes_that_run(tree):
    """Every node of a module but those under ``if TYPE_CHECKING``."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            skipped.update(id(inner) for line in node.body for inner in ast.walk(line))
    return [node for node in ast.walk(tree) if id(node) not in skipped]


def imported(path):
    """Every module and every (module, name) that a file imports, at its top or inside a function."""
    for node in nodes_that_run(TREES[path]):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner, None) if inner in MODULES else (node.module, alias.name)


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@every_file
def test_imports_point_one_way(path):
    here = room(path)
    if here == "__init__":
        return  # the public names may come from everywhere
    assert here in ALLOWED, f"{here} is a new room: say in this test what it may import"
    for module, _ in imported(path):
        parts = module.split(".")
        if parts[0] == "lowchurn" and len(parts) > 1:
            assert parts[1] in ALLOWED[here] | {here}, f"{path.name} imports {module}"


@every_file
def test_heavy_libraries_stay_at_the_edge(path):
    inside = str(path.relative_to(PACKAGE))
    for module, _ in imported(path):
        places = EDGES.get(module.split(".")[0])
        assert places is None or inside.startswith(tuple(places)), f"{inside} imports {module}"


@every_file
def test_private_names_stay_in_their_file(path):
    """A private module may be imported by the whole package, a private name by its own file only (kernels aside)."""
    for module, name in imported(path):
        private = name is not None and name.startswith("_") and not name.startswith("__")
        assert not (module.startswith("lowchurn") and "_kernels" not in module and private), (
            f"{path.name} imports {name} from {module}"
        )


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name)
def test_documents_show_public_names_only(path):
    for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), flags=re.MULTILINE | re.DOTALL):
        assert not re.search(r"\blowchurn(\.\w+)*\._|from lowchurn\S* import .*\b_\w", block)
        for module, name in re.findall(r"^from (lowchurn[.\w]*) import \(?([\w, ]+)", block, flags=re.MULTILINE):
            found = pytest.importorskip(module, exc_type=ImportError)  # an extra may be missing
            listed = getattr(found, "__all__", None)
            for each in re.findall(r"\w+", re.sub(r" as \w+", "", name)):
                assert listed is None or each in listed, f"{path.name} imports {each}, which {module} does not list"


def test_no_module_imports_itself_through_others():
    """Cycles make a reader hold all files of a circle at once; imports inside functions count as well."""
    left = {name: {module for module, _ in imported(path) if module in MODULES} for name, path in MODULES.items()}
    while free := {name for name, needs in left.items() if not needs & (left.keys() - {name})}:
        left = {name: needs for name, needs in left.items() if name not in free}
    while over := set(left) - set().union(*left.values()):  # they lead to a cycle and are none
        left = {name: needs for name, needs in left.items() if name not in over}
    assert not left, f"these import each other: {sorted(left)}"


def body_lines(function):
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


@every_file
def test_functions_fit_on_a_screen(path):
    if "_kernels" in path.parts:
        return  # unrolled by hand, where a call costs time
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.FunctionDef):
            assert body_lines(node) <= MOST_LINES, f"{path.name}: {node.name} has {body_lines(node)} lines"


def attributes(node):
    """What a class declares or sets on self; of an estimator, without its parameters and what it learns (``name_``)."""
    found = {
        line.target.id
        for line in node.body
        if isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line.annotation)
    }
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self":
            found.add(inner.attr)
    methods = {line.name: line for line in node.body if isinstance(line, ast.FunctionDef)}
    if any("Estimator" in ast.unparse(parent) for parent in node.bases):
        arguments = methods["__init__"].args
        found -= {a.arg for a in (*arguments.args, *arguments.kwonlyargs)}
        found = {name for name in found if not name.endswith("_")}
    return found


def test_no_class_has_more_than_a_dozen_attributes():
    wide = {
        f"{name}.{node.name}": sorted(attributes(node))
        for name, path in MODULES.items()
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.ClassDef) and len(attributes(node)) > MOST_ATTRIBUTES
    }
    assert set(wide) == set(WIDE), {name: found for name, found in wide.items() if name not in WIDE}


def public_rooms():
    """Rooms and modules whose name is not private; the package itself names some of them again."""
    return [name for name in MODULES if re.fullmatch(r"lowchurn(\.[a-z]\w*)?", name)]


def test_every_room_lists_its_public_names_and_they_are_few():
    public = set()
    for name in public_rooms():
        room = importlib.import_module(name)
        assert hasattr(room, "__all__"), f"{name} has no __all__"
        found = {each: getattr(room, each) for each in room.__all__}
        public |= {each for each, value in found.items() if not inspect.ismodule(value)}
    assert len(public) <= MOST_PUBLIC_NAMES, sorted(public)
