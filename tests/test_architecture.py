"""Dependencies point one way: this reads every import of the package and holds it."""

import ast
from pathlib import Path

import pytest

import lowchurn

PACKAGE = Path(lowchurn.__file__).parent

# Each room, and the rooms of lowchurn that it may import. A room may always import itself.
FLOOR = {
    "_types",
    "_estimates",
    "_display",
    "_json",
    "_html",
    "_checks",
    "_files",
    "_model_files",
    "_options",
    "_reading",
    "_terminal",
}
MATHS = FLOOR | {"scoring", "metrics"}
WORDS = MATHS | {"strategies", "theory"}
TRAINED = WORDS | {"learners", "nets"}
CHOSEN = TRAINED | {"selection"}
FRONT = CHOSEN | {"estimator", "_charts"}
ALLOWED = {
    "_checks": set(),
    "_types": set(),
    "_display": {"_types", "_estimates"},
    "_json": {"_types"},
    "_estimates": {"_types", "_checks"},
    "_html": {"_types", "_display", "_files"},
    "_files": set(),
    "_options": set(),
    "_reading": {"_terminal"},
    "_terminal": set(),
    "_exits": FLOOR,
    "_model_files": {"_reading", "_terminal"},
    "_charts": FLOOR,
    "scoring": FLOOR,
    "metrics": FLOOR | {"scoring"},
    "strategies": MATHS,
    "theory": WORDS,
    "nets": WORDS,
    "learners": TRAINED,
    "selection": TRAINED,
    "estimator": FRONT,
    "demo": FRONT,
    "retrain": FRONT,
    "audit": MATHS | {"_charts"},
    "report": MATHS | {"audit", "_charts"},
    "bench": FRONT | {"_exits"},
    "cli": FRONT | {"_exits", "audit", "report", "bench", "demo", "retrain"},
    "__main__": {"cli"},
}

# Heavy libraries, and the only places that may import them.
EDGES = {
    "torch": ("nets/", "learners/_torch.py", "bench/"),
    "triton": ("nets/",),
    "numba": ("nets/",),
    "lightgbm": ("learners/_lightgbm.py",),
    "xgboost": ("learners/_xgboost.py",),
    "catboost": ("learners/_catboost.py",),
    "ibis": ("audit/_counts.py", "audit/_csv.py", "audit/_exact.py", "audit/_sources.py"),
    "duckdb": ("audit/_sources.py", "bench/"),
    "pyspark": (),
    "altair": ("_charts.py",),
    "vl_convert": ("_charts.py",),
    "ray": (),
    "skops": ("learners/_skops.py",),
    "onnxruntime": ("estimator/_production.py",),
    "pandas": ("retrain/", "estimator/_frontier.py", "bench/", "report/", "audit/"),
    "datasets": ("bench/_fetch.py",),
    "huggingface_hub": ("bench/_fetch.py",),
    "pyarrow": ("audit/", "bench/", "retrain/"),
    "msgspec": ("_reading.py",),
}

FILES = sorted(PACKAGE.rglob("*.py"))


def imported_modules(path):
    """Every module that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            if node.module == "lowchurn":
                yield from (f"lowchurn.{alias.name}" for alias in node.names)
            else:
                yield node.module


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    here = room(path)
    if here == "__init__":
        return  # the public names may come from everywhere
    assert here in ALLOWED, f"{here} is a new room: say in this test what it may import"
    for module in imported_modules(path):
        parts = module.split(".")
        if parts[0] == "lowchurn" and len(parts) > 1:
            there = parts[1]
            known = there in ALLOWED or there.startswith("_")
            assert not known or there in ALLOWED[here] | {here} or there.startswith("__"), (
                f"{path.name} imports {module}"
            )


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_libraries_stay_at_the_edge(path):
    inside = str(path.relative_to(PACKAGE))
    for module in imported_modules(path):
        places = EDGES.get(module.split(".")[0])
        assert places is None or inside.startswith(tuple(places)), f"{inside} imports {module}"
