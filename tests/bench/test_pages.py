"""The pages of long tables in docs/results, from a store made by hand."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("vl_convert")

from lowchurn.bench import _plans
from lowchurn.bench._report import all_tables, make_figures
from tests.bench.test_tables import BASE, parameters

PATH = Path(_plans.__file__).parents[3] / "benchmarks" / "result_pages.py"


@pytest.fixture(scope="module")
def result_pages():
    spec = importlib.util.spec_from_file_location("result_pages", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["result_pages"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["result_pages"]


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
