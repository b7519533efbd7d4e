"""The pages of long tables in docs/results, from a store made by hand."""

import importlib.util
import json
import math
import re
import statistics
import sys
from pathlib import Path

import pytest

pytest.importorskip("vl_convert")

from lowchurn.bench import _plans
from lowchurn.bench._paper import TABLES
from lowchurn.bench._past_paper import by_network, dial_table, dial_variants
from lowchurn.bench._report import all_tables
from lowchurn.bench._store import Store, copy_rows, opened_store
from lowchurn.bench._tables import METHODS, averages, choose, cold_accuracy_table, of_variant, trials_of, variants
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
        *rows_of("adult", "fcn-1000", patience=3),
        *rows_of("kmnist", "convnet-4", patience=3),
        *rows_of("kmnist", "convnet-4", patience=3, one_order=True),
    ]
    files = result_pages.pages(rows)
    pages = {"table2", "convnets", "celeba", "imdb", "images_past_paper", "imdb_past_paper", "squared"}
    pages |= {"celeba_past_paper", "patience", "order", "claims"}
    assert {name for name in files if name.endswith(".md")} == {f"{name}.md" for name in pages}
    assert "| kmnist | 20.50 | missing |" in files["table2.md"]
    assert "| emnist_balanced | not run |" in files["table2.md"]
    assert "initial size 100," in files["convnets.md"]
    assert "part 1 of 4" in files["celeba.md"]
    assert "(imdb-1000-raw-warm.svg)" in files["imdb.md"]
    assert files["imdb-1000-raw-warm.svg"].startswith("<svg")
    assert "losssquared" in files["squared.md"]
    assert all("losssquared" not in text for name, text in files.items() if name not in ("squared.md", "claims.md"))
    # What was stopped with another patience stands on a page of its own, with the figures beside the paper's.
    assert [files["patience.md"].count(f"| {name} | 20.50 |") for name in ("adult", "kmnist")] == [2, 2]
    assert "(table1-paper-raw-warm-patience3.svg)" in files["patience.md"]
    assert "(table2-paper-raw-warm-patience3.svg)" in files["patience.md"]
    assert {name for name, text in files.items() if "patience3" in text and name.endswith(".md")} == {
        "patience.md",
        "order.md",
        "claims.md",
    }
    assert "(table2-paper-raw-warm-patience3-one-order.svg)" in files["order.md"]
    assert "one-order" not in files["patience.md"]
    # Sizes are compared apart from each other.
    named = {table.name for _, table in all_tables(rows)}
    assert {"dial-convnet-4-ratio", "dial-convnet-4-100-ratio"} <= named
    assert files["images_past_paper.md"].count("rows can be compared") >= 2
    assert re.findall("### (.*)", files["images_past_paper.md"]) == ["convnet-4", "convnet-4-100"]
    # Faces are compared with faces.
    assert "celeba" not in files["images_past_paper.md"]
    assert "kmnist" not in files["celeba_past_paper.md"]
    # Of table2 two patiences and two orders.
    assert [files["claims.md"].count(f"| {name} |") for name in ("celeba1000", "table2")] == [1, 3]


def test_rows_that_are_kept_make_the_same_tables(keep_rows, tmp_path):
    rows = [*rows_of("kmnist", "convnet-4"), *rows_of("imdb", "transformer-1", validation_loss=0.5)]
    made, kept = Store(tmp_path / "made"), Store(tmp_path / "kept")
    made.append(rows)
    assert copy_rows(made, kept, keep_rows.packed) == len(rows)
    assert copy_rows(made, kept, keep_rows.packed) == 0
    assert all(row["validation_loss"] is None and row["seconds"] is None for row in kept.rows())
    assert _in_words(all_tables(kept.rows())) == _in_words(all_tables(rows))


def test_rows_are_kept_in_the_store_that_is_named(keep_rows, tmp_path, monkeypatch):
    Store(tmp_path / "made").append(rows_of("kmnist", "convnet-4"))
    before = sorted(Store(keep_rows.ROWS).segments.iterdir())
    monkeypatch.setattr(sys, "argv", ["keep_rows.py", str(tmp_path / "made"), "--to", str(tmp_path / "kept")])
    keep_rows.main()
    assert len(Store(tmp_path / "kept").rows()) == 6
    assert sorted(Store(keep_rows.ROWS).segments.iterdir()) == before


def test_rows_that_are_kept_are_packed_for_a_machine_without_pyarrow(keep_rows, tmp_path, monkeypatch):
    kept = Store(tmp_path / "kept")
    kept.append([*rows_of("kmnist", "convnet-4"), *rows_of("imdb", "transformer-1")])
    assert keep_rows.pack(kept, tmp_path / "table2.tar", ["kmnist"], []) == 6
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with opened_store(tmp_path / "table2.tar") as packed:
        assert {row["dataset"] for row in packed.rows()} == {"kmnist"}
        assert all(row in kept._found.values() for row in packed.rows())
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["table2.tar"]


def _in_words(tables):
    return [table.markdown() for _, table in tables]


@pytest.fixture(scope="module")
def kept():
    """Start -> the rows of the paper's methods from there that are in the repository."""
    stores = {"warm": "rows", "cold": "rows_cold"}
    return {start: Store(ROOT / "benchmarks" / name).rows() for start, name in stores.items()}


def test_the_published_numbers_are_those_of_the_rows_in_this_repository(kept):
    published = _published("images_past_paper.md") | _published("imdb_past_paper.md")
    rows = kept["warm"]
    assert rows
    for variant in dial_variants(rows):
        for network, some in by_network(rows).items():
            table = dial_table(of_variant(some, variant), variant, network)
            for labels, cells in table.rows:
                made = [_bare(table.cell(cell)) for cell in cells]
                assert published[labels] == dict(zip(table.columns, made, strict=True)), labels


@pytest.fixture(scope="module")
def reading():
    """The page that people read first and the one behind it, without their line breaks."""
    pages = (ROOT / "docs" / "results" / f"{name}.md" for name in ("images_text", "images_text_details"))
    return " ".join(" ".join(page.read_text(encoding="utf-8").split()) for page in pages)


def test_what_is_said_of_all_convnets_is_what_their_tables_say(reading):
    """Ratios to the best of the paper's eight, over the sets and sizes of networks, by the initial rows."""
    one, both, soup, on_soup = _ratios_to_the_best("1000", rows=25)
    assert (one[:2], both[:2], soup[:2], on_soup[:2]) == ((25, 25), (25, 25), (23, 23), (23, 23))
    assert f"in **25 of 25**, {one[2]} of it (geometric mean); with 8 + 8 retrains also in all, {both[2]}." in reading
    assert f"The soup has less in 23 ({soup[2]}), sticky decisions on it too ({on_soup[2]})" in reading
    one, both, soup, _ = _ratios_to_the_best("100", rows=25)
    assert f"in {one[0]} of {one[1]} rows only ({one[2]} of it), and the soup in {soup[0]} of the {soup[1]}" in reading
    assert both[:2] == (25, 25)
    assert f"have less in all 25 ({both[2]})" in reading
    one, both, soup, _ = _ratios_to_the_best("10000", rows=4)
    assert f"retrain needs {one[2]} of the churn" in reading
    assert f"the soup {soup[2]}, and 8 + 8 retrains {both[2]} (four sets" in reading


def _ratios_to_the_best(initial, rows, page="images_past_paper.md", family="convnet"):
    """Of each method past the paper: how often it has less churn, how often it is defined, its mean ratio."""
    tables = [
        cells
        for labels, cells in _published(page).items()
        if labels[1].startswith(family) and labels[2].startswith(f"{initial}/")
    ]
    assert len(tables) == rows
    for method in ("sticky 1 cold", "sticky 8+8", "soup", "sticky soup"):
        best = [min(float(cells[name]) for name in METHODS if cells[name] != "N/A") for cells in tables]
        defined = ((cells.get(method, "N/A"), b) for cells, b in zip(tables, best, strict=True))
        found = [float(cell) / b for cell, b in defined if cell != "N/A"]
        yield sum(ratio < 1 for ratio in found), len(found), f"{statistics.geometric_mean(found):.2f}"


def test_what_is_said_of_text_past_the_paper_is_what_its_tables_say(reading):
    """Ratios to the best of the paper's eight by the initial rows, over the transformers that were run."""
    found = [
        list(_ratios_to_the_best(initial, rows, "imdb_past_paper.md", "transformer"))
        for initial, rows in (("1000", 4), ("100", 4), ("10000", 4))
    ]
    assert all(less == defined for some in found for less, defined, _ in some)
    one, both, soup, _ = zip(*found, strict=True)
    assert (
        "with every network, on average {} of it from 1000 rows, {} from 100 and {} from 10000".format(
            *(mean for *_, mean in one)
        )
        in reading
    )
    assert "(geometric means of {}, {} and {} networks)".format(*(defined for _, defined, _ in one)) in reading
    assert (
        "the soup {}, {} and {}, 8 + 8 retrains {}, {} and {} (of 3 networks each".format(
            *(mean for *_, mean in (*soup, *both))
        )
        in reading
    )
    assert {defined for _, defined, _ in (*soup, *both)} == {3}


# Tables of which every row is in the repository: table of the paper, start, page, what is said of distillation.
OF_KEPT_ROWS = [
    ("mnist100", "warm", "convnets", "MNIST variants | 24 of 50 | {} of {}, all on fashion_mnist;"),
    ("cifar100", "warm", "convnets", "SVHN and CIFAR10 | 8 of 10 | {} of {} |"),
    ("mnist10000", "warm", "convnets", "label smoothing close | convnet-4: {} of the {} that can be had;"),
    ("cifar10000", "warm", "convnets", "SVHN and CIFAR10 | 10 of 10 | convnet-4: {} of {} |"),
    ("imdb100", "warm", "imdb", "IMDB from 100 rows | the larger networks | none of four:"),
    ("imdb10000", "warm", "imdb", "IMDB from 10000 rows | all networks but one, here and from 1000 | none of four:"),
    (
        "resnet",
        "warm",
        "resnet",
        "residual networks | every case | {} of {} (resnet-50 and 101 on cifar10 and cifar100;",
    ),
    ("table2", "cold", "table2", ""),
    ("imdb1000", "cold", "imdb", ""),
]


@pytest.fixture(scope="module")
def kept_tables(kept):
    """Table of the paper and start -> what the rows in the repository make of it."""
    found = {}
    for start, rows in kept.items():
        variant = next(one for one in variants(rows) if one["start"] == start)
        some = averages(choose(rows, variant))
        found |= {(paper.name, start): cold_accuracy_table(some, variant, paper) for paper in TABLES}
    return found


@pytest.mark.parametrize(("name", "start", "page", "said"), OF_KEPT_ROWS)
def test_tables_and_claims_are_those_of_the_rows_in_this_repository(name, start, page, said, kept_tables, reading):
    table = kept_tables[name, start]
    assert table.markdown() in (ROOT / "docs" / "results" / f"{page}.md").read_text(encoding="utf-8")
    ran = [cells for _, cells in table.rows if any(cell.ran for cell in cells)]
    best = [{table.columns[i] for i in table.bold(cells)} for cells in ran]
    assert said.format(sum("distill" in names for names in best), len(ran)) in reading


@pytest.fixture(scope="module")
def faces():
    """The rows of the paper's methods on CelebA that are in the repository."""
    from pyarrow import dataset

    files = dataset.dataset(ROOT / "benchmarks" / "rows_celeba" / "segments", format="parquet")
    rows = files.to_table(filter=dataset.field("strategy").isin(METHODS)).to_pylist()  # a fortieth of all
    return [{"one_order": False} | row | {"parameters": json.loads(row["parameters"])} for row in rows]


def test_tables_and_claims_of_celeba_are_those_of_the_rows_in_this_repository(faces, reading):
    (variant,) = variants(faces)
    some = averages(choose(faces, variant))
    lines = set((ROOT / "docs" / "results" / "celeba.md").read_text(encoding="utf-8").splitlines())
    for paper, said in (("celeba1000", "rows | 79 % of 200 rows"), ("celeba100", "rows | 96 % of 200 rows")):
        paper = next(one for one in TABLES if one.name == paper)
        parts = [cold_accuracy_table(some, variant, part) for part in paper.split()]
        ran = [part for part in parts if any(cell.ran for _, cells in part.rows for cell in cells)]
        assert {line for part in ran for line in part.markdown().splitlines() if "| convnet-" in line} <= lines
        best = [{part.columns[i] for i in part.bold(cells)} for part in ran for _, cells in part.rows]
        compared = [names for names in best if names]
        wins = sum("distill" in names for names in compared)
        assert f"{said} | {wins} of {len(compared)} ({100 * wins / len(compared):.0f} %)" in reading


def test_what_is_said_of_faces_past_the_paper_is_what_their_tables_say(reading):
    """Ratios to the best of the paper's eight: how many are below one, of how many, and their median."""
    found, published = {}, _published("celeba_past_paper.md")
    for initial in ("1000", "100"):
        tables = [cells for labels, cells in published.items() if labels[2].startswith(f"{initial}/")]
        for method in ("sticky 1 cold", "sticky 8+8", "soup"):
            best = [min(float(cells[name]) for name in METHODS if cells[name] != "N/A") for cells in tables]
            pairs = [(float(c[method]), b) for c, b in zip(tables, best, strict=True) if c[method] != "N/A"]
            ratios = [own / b if b else 1.0 if own == 0 else math.inf for own, b in pairs]
            found[method, initial] = sum(r < 1 for r in ratios), len(ratios), f"{statistics.median(ratios):.2f}"
    one, few = found["sticky 1 cold", "1000"], found["sticky 1 cold", "100"]
    assert f"defined in all {one[1] + few[1]} rows" in reading
    assert f"{one[0]} of {one[1]} from 1000 rows ({one[2]} of it in the median)" in reading
    assert f"{few[0]} of {few[1]} from 100 ({few[2]})" in reading
    one, few = found["sticky 8+8", "1000"], found["sticky 8+8", "100"]
    assert f"8 + 8 retrains in {one[0]} and {few[0]} ({one[2]} and {few[2]})" in reading
    one, few = found["soup", "1000"], found["soup", "100"]
    assert f"in {one[0]} of {one[1]} ({one[2]}) and in {few[0]} of {few[1]} ({few[2]})" in reading


@pytest.mark.parametrize(
    ("name", "page", "rows"), [("mnist1000", "convnets", 6), ("cifar1000", "convnets", 5), ("imdb1000", "imdb", 3)]
)
def test_rows_of_tables_that_are_kept_in_part(name, page, rows, kept_tables):
    """The other rows of these tables are older than the rows in the repository."""
    table = kept_tables[name, "warm"]
    text = (ROOT / "docs" / "results" / f"{page}.md").read_text(encoding="utf-8")
    lines = [_bare(line) for line in text.split(f"**{table.caption}**")[1].split("\n**")[0].splitlines()]
    ran = [(labels, cells) for labels, cells in table.rows if any(cell.ran for cell in cells)]
    assert len(ran) == rows
    for labels, cells in ran:
        shown = [*labels, str(trials_of(cells)), *(_bare(table.cell(cell)) for cell in cells)]
        assert "| " + " | ".join(shown) + " |" in lines


def _published(page):
    """Data set, network and sizes -> column -> cell, of the tables of all methods of a page."""
    found, columns = {}, []
    for line in (ROOT / "docs" / "results" / page).read_text(encoding="utf-8").splitlines():
        cells = re.split(r" *\| *", line)[1:-1]
        if cells[:3] == ["dataset", "network", "sizes"]:
            columns = cells[3:]
        elif len(cells) == 3 + len(columns) and re.fullmatch("[0-9/]+", cells[2]):
            found[tuple(cells[:3])] = dict(zip(columns, map(_bare, cells[3:]), strict=True))
            found[tuple(cells[:3])].pop("trials", None)
    return found


def _bare(cell):
    """A cell without the mark of the best, and without the number of its trials."""
    return re.sub(r" \[[0-9]+\]|\*", "", cell)
