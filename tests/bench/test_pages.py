"""The pages of long tables in docs/results, from a store made by hand."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("vl_convert")

from lowchurn.bench import _plans
from lowchurn.bench._past_paper import by_network, dial_table, dial_variants
from lowchurn.bench._report import all_tables, make_figures
from lowchurn.bench._store import Store
from lowchurn.bench._tables import of_variant
from tests.bench.test_tables import BASE, parameters

ROOT = Path(_plans.__file__).parents[3]


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


@pytest.fixture(scope="module")
def result_pages():
    yield from script("result_pages")


@pytest.fixture(scope="module")
def keep_rows():
    yield from script("keep_rows")


def rows_of(dataset, network, **more):
    """Two trials of the cold start, of distillation and of a soup, which has the least churn."""
    settings = (
        ("cold", "", 0.20),
        ("distill", "lam=0.5, start=warm", 0.10),
        ("soup", "members=8, toward_base=0.5", 0.05),
    )
    return [
        BASE
        | {"dataset": dataset, "network": network, "strategy": name, "parameters": parameters(words), "start": "warm"}
        | {"accuracy": 0.9, "churn": churn + trial / 100, "trial": trial}
        | more
        for name, words, churn in settings
        for trial in (0, 1)
    ]


def test_a_page_for_each_experiment_that_was_run(result_pages):
    rows = [
        *rows_of("kmnist", "convnet-4"),
        *rows_of("kmnist", "convnet-4", initial=100),
        *rows_of("celeba_bald", "convnet-4"),
        *rows_of("imdb", "transformer-1"),
        *rows_of("adult", "fcn-1000", loss="squared"),
    ]
    tables = list(all_tables(rows))
    files = result_pages.pages(tables, make_figures(rows, tables))
    pages = {"table2", "convnets", "celeba", "imdb", "images_past_paper", "imdb_past_paper", "squared"}
    assert {name for name in files if name.endswith(".md")} == {f"{name}.md" for name in pages}
    assert "| kmnist | 20.50 | missing |" in files["table2.md"]
    assert "| emnist_balanced | not run |" in files["table2.md"]
    assert "initial size 100," in files["convnets.md"]
    assert "part 1 of 4" in files["celeba.md"]
    assert "(imdb-1000-raw-warm.svg)" in files["imdb.md"]
    assert files["imdb-1000-raw-warm.svg"].startswith("<svg")
    assert "losssquared" in files["squared.md"]
    assert all("losssquared" not in text for name, text in files.items() if name != "squared.md")
    # Sizes are compared apart from each other.
    named = {table.name for _, table in tables}
    assert {"dial-convnet-4-ratio", "dial-convnet-4-100-ratio"} <= named
    assert files["images_past_paper.md"].count("rows can be compared") >= 2


def test_rows_that_are_kept_make_the_same_tables(keep_rows, tmp_path):
    rows = [*rows_of("kmnist", "convnet-4"), *rows_of("imdb", "transformer-1", validation_loss=0.5)]
    Store(tmp_path / "made").append(rows)
    kept = Store(tmp_path / "kept")
    assert keep_rows.keep(tmp_path / "made", kept) == len(rows)
    assert keep_rows.keep(tmp_path / "made", kept) == 0
    assert all(row["validation_loss"] is None and row["seconds"] is None for row in kept.rows())
    assert _in_words(all_tables(kept.rows())) == _in_words(all_tables(rows))


def _in_words(tables):
    return [table.markdown() for _, table in tables]


def test_the_published_numbers_are_those_of_the_rows_in_this_repository():
    pages = [ROOT / "docs" / "results" / f"{name}_past_paper.md" for name in ("images", "imdb")]
    lines = [re.split(r" *\| *", line) for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    published = {tuple(line[1:4]): [_bare(cell) for cell in line[4:-1]] for line in lines if len(line) > 5}
    rows = Store(ROOT / "benchmarks" / "rows").rows()
    assert rows
    for variant in dial_variants(rows):
        for network, some in by_network(rows).items():
            table = dial_table(of_variant(some, variant), variant, network)
            for labels, cells in table.rows:
                assert published[labels] == [_bare(table.cell(cell)) for cell in cells], labels


def _bare(cell):
    """A cell without the mark of the best, and without the number of its trials."""
    return re.sub(r" \[[0-9]+\]|\*", "", cell)
