"""The pages of long tables in docs/results, from a store made by hand."""

import importlib.util
import re
import statistics
import sys
from pathlib import Path

import pytest

pytest.importorskip("vl_convert")

from lowchurn.bench import _plans
from lowchurn.bench._past_paper import by_network, dial_table, dial_variants
from lowchurn.bench._report import all_tables, make_figures
from lowchurn.bench._store import Store, copy_rows
from lowchurn.bench._tables import METHODS, of_variant
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
    made, kept = Store(tmp_path / "made"), Store(tmp_path / "kept")
    made.append(rows)
    assert copy_rows(made, kept, keep_rows.packed) == len(rows)
    assert copy_rows(made, kept, keep_rows.packed) == 0
    assert all(row["validation_loss"] is None and row["seconds"] is None for row in kept.rows())
    assert _in_words(all_tables(kept.rows())) == _in_words(all_tables(rows))


def _in_words(tables):
    return [table.markdown() for _, table in tables]


def test_the_published_numbers_are_those_of_the_rows_in_this_repository():
    published = _published("images_past_paper.md") | _published("imdb_past_paper.md")
    rows = Store(ROOT / "benchmarks" / "rows").rows()
    assert rows
    for variant in dial_variants(rows):
        for network, some in by_network(rows).items():
            table = dial_table(of_variant(some, variant), variant, network)
            for labels, cells in table.rows:
                made = [_bare(table.cell(cell)) for cell in cells]
                assert published[labels] == dict(zip(table.columns, made, strict=True)), labels


def test_what_is_said_of_all_convnets_is_what_their_tables_say():
    """Ratios to the best of the paper's eight, over the five sets and five sizes from 1000 rows."""
    tables = {labels: cells for labels, cells in _published("images_past_paper.md").items() if "/1000" in labels[2]}
    assert len(tables) == 25
    text = " ".join((ROOT / "docs" / "results" / "images_text.md").read_text(encoding="utf-8").split())
    found = {}
    for method in ("sticky 1 cold", "sticky 8+8", "soup", "sticky soup"):
        ratios = []
        for cells in tables.values():
            best = min(float(cells[name]) for name in METHODS if cells[name] != "N/A")
            if cells[method] != "N/A":
                ratios.append(float(cells[method]) / best)
        found[method] = (sum(ratio < 1 for ratio in ratios), len(ratios), f"{statistics.geometric_mean(ratios):.2f}")
    one, both, soup, on_soup = found.values()
    assert (one[:2], both[:2], soup[:2], on_soup[:2]) == ((25, 25), (25, 25), (23, 23), (23, 23))
    assert f"in **25 of 25**, {one[2]} of it (geometric mean); with 8 + 8 retrains also in all, {both[2]}." in text
    assert f"The soup has less in 23 ({soup[2]}), sticky decisions on it too ({on_soup[2]})" in text


def _published(page):
    """Data set, network and sizes -> column -> cell, of the tables of all methods of a page."""
    found, columns = {}, []
    for line in (ROOT / "docs" / "results" / page).read_text(encoding="utf-8").splitlines():
        cells = re.split(r" *\| *", line)[1:-1]
        if cells[:3] == ["dataset", "network", "sizes"]:
            columns = cells[3:]
        elif len(cells) == 3 + len(columns) and re.fullmatch("[0-9/]+", cells[2]):
            found[tuple(cells[:3])] = dict(zip(columns, map(_bare, cells[3:]), strict=True))
    return found


def _bare(cell):
    """A cell without the mark of the best, and without the number of its trials."""
    return re.sub(r" \[[0-9]+\]|\*", "", cell)
