"""Tables from a store made by hand, whose answers are known."""

import csv
import io
import math
import random
import re
from dataclasses import replace

import pytest

from lowchurn.bench._claims import claims_table
from lowchurn.bench._paper import TABLES, printed
from lowchurn.bench._report import all_tables, write_report, write_tables
from lowchurn.bench._segments import COLUMNS
from lowchurn.bench._store import Store
from lowchurn.bench._tables import (
    NOT_RUN,
    Cell,
    Table,
    ablation_table,
    beside_the_paper,
    cold_accuracy_table,
    error_bands,
    variant_name,
    variants,
    win_counts,
)
from tests.bench import parameters

TABLE1 = TABLES[0]
BASE = {name: kind() for name, kind in COLUMNS.items()} | {
    "network": "fcn-1000",
    "initial": 1000,
    "validation": 100,
    "batch": 1000,
    "patience": 5,
    "loss": "log",
    "epochs_limit": 300,
    "status": "finished",
    "version": "0",
}


def model(dataset, strategy, setting, accuracy, churn, trial=0, start="warm", **more):
    shown = f"{setting}, start={start}" if setting else ""
    values = {"dataset": dataset, "strategy": strategy, "parameters": parameters(shown)}
    return BASE | values | {"accuracy": accuracy, "churn": churn, "trial": trial, "start": start} | more


# adult: distillation is best and a tie in accuracy counts; anchor never reaches the cold start; mixup was not run.
ADULT = [
    model("adult", "cold", "", 0.80, 0.10, 0),
    model("adult", "cold", "", 0.90, 0.20, 1),
    model("adult", "distill", "lam=0.1", 0.84, 0.01, 0),
    model("adult", "distill", "lam=0.1", 0.84, 0.01, 1),
    model("adult", "distill", "lam=0.5", 0.85, 0.05, 0),
    model("adult", "distill", "lam=0.5", 0.85, 0.07, 1),
    model("adult", "anchor", "alpha=0.5, eta=1.0", 0.70, 0.02, 0),
    model("adult", "anchor", "alpha=0.5, eta=1.0", 0.70, 0.02, 1),
]
# bank: distillation and label smoothing tie; distillation has one trial less, the other failed.
BANK = [
    model("bank", "cold", "", 0.5, 0.30, 0),
    model("bank", "cold", "", 0.5, 0.30, 1),
    model("bank", "distill", "lam=0.1", 0.5, 0.20, 0),
    model("bank", "distill", "lam=0.1", None, None, 1, status="failed: why"),
    model("bank", "ls", "alpha=0.1", 0.5, 0.20, 0),
    model("bank", "ls", "alpha=0.1", 0.6, 0.20, 1),
]
ROWS = [*ADULT, *BANK]
RAW = variants(ROWS)[0]
METHODS = ("cold", "mixup", "ls", "anchor", "distill")


def cells(table):
    return {labels[0]: dict(zip(table.columns, some, strict=True)) for labels, some in table.rows}


def test_churn_at_cold_accuracy_with_ties_na_and_missing():
    table = cold_accuracy_table(ROWS, RAW, TABLE1, METHODS)
    found = cells(table)
    assert found["adult"]["cold"].value == pytest.approx(15)
    assert found["adult"]["distill"].value == pytest.approx(6)  # as accurate as the cold start, not more
    assert math.isnan(found["adult"]["anchor"].value)
    assert found["adult"]["mixup"].value is None
    assert found["bank"]["distill"] == Cell(pytest.approx(20), 1)
    assert [labels for labels, _ in table.rows] == [(name,) for name in TABLE1.datasets]
    assert {found[name]["cold"] for name in TABLE1.datasets[2:]} == {Cell(None, ran=False)}
    text = table.markdown()
    assert "| magic04 | not run | not run | not run | not run | not run |" in text
    assert "| adult | 15.00 | missing | missing | N/A | **6.00** |" in text
    assert "| bank | 30.00 | missing | **20.00** | missing | **20.00 [1]** |" in text
    assert "1 failed models are left out." in text
    assert "fewer than its row's" in text


def test_rows_in_one_order_do_not_meet_others():
    rows = [model("adult", "cold", "", 0.8, 0.1), model("adult", "cold", "", 0.7, 0.3, one_order=True)]
    assert [variant_name(v) for v in variants(rows)] == ["raw-warm", "raw-warm-one-order"]
    drawn, kept = (cold_accuracy_table(rows, v).markdown() for v in variants(rows))
    assert "| 1000/100/1000 | 10.00 |" in drawn
    assert "| 1000/100/1000 | 30.00 |" in kept


def test_rows_of_fewer_trials_have_a_column_for_them():
    rows = [(("adult",), [Cell(15.0, 10), Cell(6.0, 10)]), (("bank",), [Cell(30.0, 2), Cell(20.0, 1)])]
    table = Table("some", "Some", ("dataset",), ("cold", "distill"), [*rows, (("wilt",), [NOT_RUN, NOT_RUN])], 10)
    assert table.markdown().splitlines()[2:] == [
        "| dataset | trials | cold | distill |",
        "| --- | --: | --: | --: |",
        "| adult | 10 | 15.00 | 6.00 |",
        "| bank | 2 | 30.00 | 20.00 [1] |",
        "| wilt |  | not run | not run |",
    ]
    assert r"\begin{tabular}{lrrr}" in table.latex()
    assert r"bank & 2 & 30.00 & 20.00 [1] \\" in table.latex()
    assert table.csv().splitlines()[2] == "bank,30.0,2,20.0,1"
    alike = replace(table, rows=rows[:1])
    assert "trials" not in alike.markdown()


def test_win_counts_share_ties():
    wins = win_counts(cold_accuracy_table(ROWS, RAW, TABLE1, METHODS), TABLES[2])
    ((_, values),) = wins.rows
    assert [cell.value for cell in values] == [0, 0, 50, 0, 100]
    assert "The paper: distillation is best in 52 % of 60 rows." in wins.notes
    assert "2 of 60 rows can be compared." in wins.notes


def test_error_bands_average_over_settings():
    bands = cells(error_bands(ADULT, RAW, TABLE1))["adult"]
    # Standard errors of two values are half their distance: cold 0.05, the rest 0.
    assert bands["error"].value == pytest.approx(100 * 0.05 / 4)
    assert bands["churn"].value == pytest.approx(100 * (0.05 + 0.01) / 4)


def test_beside_the_paper():
    table = beside_the_paper(cold_accuracy_table(ROWS, RAW, TABLE1, METHODS))
    found = cells(table)
    assert found["adult"]["distill, paper"].value == 4.39
    assert found["bank"]["cold, paper"].value == 10.04
    assert math.isnan(found["adult"]["ls, paper"].value)
    assert beside_the_paper(cold_accuracy_table(ROWS, RAW)) is None


def test_the_papers_numbers_are_all_there():
    numbers = printed()
    assert [len(rows) for rows in numbers.values()] == [12, 12]
    assert set(numbers["table1"]) == set(TABLE1.datasets)
    assert set(numbers["table2"]) == set(TABLES[1].datasets)
    assert sum(math.isnan(v) for row in numbers["table1"].values() for v in row.values()) == 6


def test_starts_and_options_do_not_mix():
    cold = [model("adult", "distill", "lam=0.5", 0.99, 0.001, t, start="cold") for t in range(2)]
    scaled = [row | {"scale": True} for row in ADULT]
    rows = [*ADULT, *cold, *scaled]
    assert [variant_name(v) for v in variants(rows)] == ["raw-warm", "raw-cold", "scaled-warm"]
    for variant, value in zip(variants(rows), (6, 0.1, 6), strict=True):
        found = cells(cold_accuracy_table(rows, variant, TABLE1, METHODS))["adult"]
        assert found["distill"].value == pytest.approx(value)
        assert found["cold"].value == pytest.approx(15)  # belongs to both starts
    odd = RAW | {"patience": 3, "loss": "squared"}
    assert variant_name(odd) == "raw-warm-patience3-losssquared"


def test_a_missing_network_of_a_data_set_is_shown_as_not_run():
    rows = [*ADULT, *(row | {"network": "fcn-10"} for row in BANK)]
    table = cold_accuracy_table(rows, RAW, TABLES[3], METHODS)
    shown = {labels: [table.cell(c) for c in some] for labels, some in table.rows}
    assert shown["adult", "fcn-10"] == ["not run"] * 5
    assert shown["bank", "fcn-10"][0] == "30.00"
    assert shown["wilt", "all"] == ["not run"] * 5  # one row for all networks
    assert len(shown) == 2 * 2 + 10
    assert "Not run: fcn-100, fcn-10000, fcn-100000." in table.notes
    assert "adult,fcn-10,not run,0" in table.csv()


def test_csv_and_latex_say_the_same():
    table = cold_accuracy_table(ROWS, RAW, TABLE1, METHODS)
    lines = list(csv.DictReader(io.StringIO(table.csv())))
    assert float(lines[0]["distill"]) == table.rows[0][1][-1].value
    assert lines[0]["anchor"] == ""
    assert lines[0]["mixup"] == "missing"
    assert lines[1]["distill trials"] == "1"
    latex = table.latex()
    assert r"adult & 15.00 & missing & missing & N/A & \textbf{6.00} \\" in latex
    assert latex.count("{") == latex.count("}")


def test_the_ablation():
    rows = [
        model("phishing", "cold", "", 0.9, 0.5),
        model("phishing", "anchor-to-distill", "lam=0.1, share=0.0", 0.9, 0.1),
        model("phishing", "anchor-to-distill", "lam=0.2, share=0.0", 0.8, 0.0),
        model("phishing", "anchor-to-distill", "lam=0.1, share=1.0", 0.95, 0.3),
    ]
    table = ablation_table(rows, variants(rows)[0])
    assert table.columns == ("0", "1")
    assert [cell.value for cell in table.rows[0][1]] == [pytest.approx(10), pytest.approx(30)]


def test_files_and_the_page(tmp_path):
    pytest.importorskip("vl_convert")
    store = Store(tmp_path / "store")
    store.append(ROWS)
    names = {path.name for path in write_tables(store, tmp_path / "tables")}
    assert {"table1-raw-warm.md", "table1-paper-raw-warm.csv", "all-errors-raw-warm.tex"} <= names
    page = write_report(store, tmp_path / "report").read_text()
    assert page.count("<svg") >= 3
    assert "failed: why" in page
    assert "<td class=best>6.00</td>" in page
    assert re.findall(r'http-equiv="([^"]+)" content="([^;]+);', page) == [
        ("Content-Security-Policy", "default-src 'none'")
    ]
    targets, ids = re.findall(r'href="#([^"]+)"', page), re.findall(r'<(?:h2|div|figure) id="([^"]+)"', page)
    assert targets
    assert sorted(targets) == sorted(ids)
    assert {"raw-warm", "table1-raw-warm", "figure-pareto-fcn-1000-1000-raw-warm"} <= set(ids)
    assert "<script" not in page
    assert len({table.name for _, table in all_tables(store.rows())}) == len(list(all_tables(store.rows())))


def test_another_program_comes_to_the_same_numbers(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    chance = random.Random(3)
    rows = [
        model(dataset, name, setting, chance.randint(80, 90) / 100, chance.random() / 5, trial)
        for dataset in ("adult", "wilt")
        for name, settings in (("cold", [""]), ("distill", ["lam=0.1", "lam=0.2", "lam=0.3"]), ("ls", ["alpha=0.1"]))
        for setting in settings
        for trial in range(7)
    ]
    store = Store(tmp_path)
    store.append(rows)
    query = f"""
        with mean as (
            select dataset, strategy, parameters, avg(accuracy) accuracy, avg(churn) churn
            from '{tmp_path}/segments/*.parquet' where status = 'finished' group by all
        ), cold as (select dataset, accuracy needed from mean where strategy = 'cold')
        select dataset, strategy, 100 * min(churn) from mean join cold using (dataset)
        where accuracy >= needed - 1e-12 group by all
    """
    expected = {(d, s): value for d, s, value in duckdb.sql(query).fetchall()}
    found = cells(cold_accuracy_table(store.rows(), RAW, TABLE1))
    for dataset in ("adult", "wilt"):
        for name in ("cold", "distill", "ls"):
            value = found[dataset][name].value
            assert (None if math.isnan(value) else pytest.approx(value)) == expected.get((dataset, name))


def test_what_ran_from_another_start_only_is_left_out():
    elsewhere = [row | {"network": "fcn-10"} for row in ADULT]  # warm only
    cold = [model("adult", "distill", "lam=0.5", 0.99, 0.001, t, start="cold") for t in range(2)]
    begun = [model("wilt", "cold", "", 0.9, 0.1)]  # nothing yet that says which start: belongs to both
    rows = [*ADULT, *cold, *elsewhere, *begun]
    shown = {variant_name(v): {labels[:2] for labels, _ in cold_accuracy_table(rows, v).rows} for v in variants(rows)}
    both = {("adult", "fcn-1000"), ("wilt", "fcn-1000")}
    assert shown == {"raw-warm": both | {("adult", "fcn-10")}, "raw-cold": both}


def test_wins_say_how_many_rows_have_fewer_trials():
    wins = win_counts(cold_accuracy_table(ROWS, RAW, TABLE1, METHODS))
    assert wins.notes == ["2 of 12 rows can be compared.", "1 of them from fewer than 2 trials."]
    assert len(win_counts(cold_accuracy_table(ADULT, RAW, TABLE1, METHODS)).notes) == 1


def test_a_table_of_the_paper_tells_its_trials_and_error_bands():
    table = cold_accuracy_table(ADULT, RAW, TABLE1, METHODS)
    # As in test_error_bands_average_over_settings: 1.25 points of error, 1.5 of churn.
    assert table.notes == ["2 trials. Standard errors, averaged over settings: error 1.25, churn 1.50 points."]
    assert cold_accuracy_table(ADULT[::2], RAW, TABLE1, METHODS).notes == ["1 trial."]  # which has no error
    single = [row | {"dataset": "bank"} for row in ADULT[::2]]
    assert cold_accuracy_table([*ADULT, *single], RAW, TABLE1, METHODS).notes == [
        "1 to 2 trials. Standard errors, averaged over settings, where there are two trials or more: "
        "error 1.25, churn 1.50 points."
    ]


def test_fewer_validation_rows_are_told_where_there_are_no_more():
    (large,) = (table for table in TABLES if table.name == "cifar10000")
    rows = [
        model(dataset, strategy, setting, 0.9, churn, network="convnet-4", initial=10000, validation=validation)
        for dataset, validation in (("svhn", 1000), ("svhn", 500), ("cifar10", 500))
        for strategy, setting, churn in (("cold", "", validation / 1e4), ("distill", "lam=0.5", validation / 1e5))
    ]
    table = cold_accuracy_table(rows, RAW, large)
    found = cells(table)
    assert found["svhn"]["cold"].value == pytest.approx(10)  # the paper's, where it was run
    assert found["cifar10"]["cold"].value == pytest.approx(5)
    assert "Stopped on 500 validation rows instead of 1000: cifar10." in table.notes


def test_the_tables_of_celeba_are_printed_in_four_parts():
    (paper,) = (table for table in TABLES if table.name == "celeba1000")
    parts = paper.split()
    assert [part.name for part in parts] == [f"celeba1000-part{k}" for k in (1, 2, 3, 4)]
    assert sum((part.datasets for part in parts), ()) == paper.datasets
    assert {len(part.datasets) for part in parts} == {10}
    first, last = parts[0].datasets[0], parts[3].datasets[-1]
    rows = [
        model(name, strategy, setting, 0.9, churn, network=network)
        for name, network in ((first, "convnet-1"), (first, "convnet-4"), (last, "convnet-4"))
        for strategy, setting, churn in (("cold", "", 0.2), ("distill", "lam=0.5", 0.1))
    ]
    tables = {table.name: table for _, table in all_tables(rows)}
    assert {name for name in tables if name.startswith("celeba1000")} == {
        "celeba1000-part1",
        "celeba1000-part4",
        "celeba1000-wins",
        "celeba1000-errors",
    }
    shown = [labels for labels, some in tables["celeba1000-part4"].rows if some[0].ran]
    assert shown == [(last, "convnet-4")]
    assert (first, "convnet-1") in [labels for labels, _ in tables["celeba1000-part1"].rows]
    assert "3 of 200 rows can be compared." in tables["celeba1000-wins"].notes
    assert "The paper: distillation is best in 158 of 200 rows (79 %)." in tables["celeba1000-wins"].notes


def test_the_papers_claims_beside_ours():
    claims = {table.name: table.claim for table in TABLES}
    assert claims["mnist1000"] == "in 42 of 50 rows (84 %)"
    assert claims["mnist100"] == "in 24 of 50 rows (48 %)"
    assert claims["mnist10000"] == "in 32 of 50 rows (64 %)"
    assert [claims[f"cifar{n}"] for n in (1000, 100, 10000)] == [
        "in 10 of 10 rows (100 %)",
        "in 8 of 10 rows (80 %)",
        "in 10 of 10 rows (100 %)",
    ]
    assert [claims[f"celeba{n}"] for n in (100, 10000)] == ["in 192 of 200 rows (96 %)", "in 183 of 200 rows (91.5 %)"]
    assert claims["resnet"] == "in 6 of 6 rows (100 %)"
    assert claims["openml1000"] == "in 84 % of 60 rows"
    papers = [(paper, cold_accuracy_table(ROWS, RAW, paper)) for paper in TABLES]
    table = claims_table(papers, {"adult", "bank"}, RAW)
    shown = {labels[0]: (labels[1:], [table.cell(c) for c in some]) for labels, some in table.rows}
    assert shown["table1"] == (
        ("in 12 of 12 rows (100 %)", "2 of 12", "1 to 2"),
        ["0"] * 4 + ["50"] + ["0"] * 2 + ["100", "0"],
    )
    assert shown["openml100"][0][1:] == ("0 of 60", "-")
    assert set(shown["openml100"][1]) == {"not run"}
    assert set(shown) == {"table1", "openml100", "openml1000"}  # nothing of the others' data sets was run


def test_rows_stand_in_the_papers_order_and_by_size():
    rows = [
        model(dataset, "cold", "", 0.9, 0.1, network=network, initial=initial)
        for dataset in ("own", "wilt", "adult")
        for network in ("convnet-16", "convnet-2")
        for initial in (1000, 100)
    ]
    for table in (cold_accuracy_table(rows, RAW), error_bands(rows, RAW)):
        assert table.labels == ("dataset", "network", "sizes")
        shown = [labels for labels, _ in table.rows]
        assert shown[:3] == [
            ("adult", "convnet-2", "100/100/1000"),
            ("adult", "convnet-2", "1000/100/1000"),
            ("adult", "convnet-16", "100/100/1000"),
        ]
        assert list(dict.fromkeys(labels[0] for labels in shown)) == ["adult", "wilt", "own"]


def test_an_ablation_that_stopped_half_way_keeps_its_columns_apart():
    rows = [
        model("adult", "cold", "", 0.9, 0.5),
        model("adult", "anchor-to-distill", "lam=0.1, share=0.0", 0.9, 0.1),
        model("adult", "anchor-to-distill", "lam=0.1, share=1.0", 0.9, 0.3),
        model("wilt", "cold", "", 0.9, 0.5),
        model("wilt", "anchor-to-distill", "lam=0.1, share=1.0", 0.9, 0.2),
    ]
    table = ablation_table(rows, RAW)
    assert table.columns == ("0", "1")
    assert [[table.cell(c) for c in some] for _, some in table.rows] == [["10.00", "30.00"], ["missing", "20.00"]]


def test_names_of_data_sets_are_text_in_every_form():
    table = Table("t", "Churn", ("dataset",), ("cold",), [((r"a|b\input{x}_1 ~^$<i>",), [Cell(1.0, 1)])])
    assert "| a\\|b\\\\input{x}_1 ~^$\\<i> | 1.00 |" in table.markdown()
    assert r"a|b\textbackslash{}input\{x\}\_1 \textasciitilde{}\textasciicircum{}\$<i> & 1.00 \\" in table.latex()


def test_rows_that_were_tuned_over_fewer_settings_are_named():
    rows = [
        *ADULT,
        *(row | {"dataset": "bank"} for row in ADULT if row["parameters"] != parameters("lam=0.5, start=warm")),
    ]
    table = cold_accuracy_table(rows, variants(rows)[0])
    assert "Tuned over 3 settings instead of 4: bank fcn-1000." in table.notes
    assert not any("Tuned" in note for note in cold_accuracy_table(ADULT, variants(ADULT)[0]).notes)
