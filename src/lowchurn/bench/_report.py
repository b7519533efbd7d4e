"""Everything that a store contains: tables as files, figures as files, and one page with all of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from lowchurn._charts import Chart
from lowchurn._files import check_outputs, real_place, write_files
from lowchurn._html import render
from lowchurn.bench import _figures as figures
from lowchurn.bench._budgets import budget_tables
from lowchurn.bench._claims import claims_table
from lowchurn.bench._paper import TABLES
from lowchurn.bench._past_paper import BOTH, by_network, dial_tables, dial_variants
from lowchurn.bench._segments import FINISHED, Row
from lowchurn.bench._store import Store
from lowchurn.bench._tables import (
    Table,
    Variant,
    ablation_table,
    averages,
    beside_the_paper,
    choose,
    cold_accuracy_table,
    error_bands,
    table_rows,
    variant_name,
    variants,
    win_counts,
)

Tables = list[tuple[Variant, Table]]
Figures = list[tuple[Variant, str, Chart]]  # with the names of their files


def all_tables(rows: list[Row]) -> Iterator[tuple[Variant, Table]]:
    """Every table that the rows fill, variant by variant."""
    for variant in variants(rows):
        some = averages(choose(rows, variant))
        whole = cold_accuracy_table(some, variant)
        if any(cell.value is not None for _, cells in whole.rows for cell in cells):
            papers = [(paper, cold_accuracy_table(some, variant, paper)) for paper in TABLES]
            made: list[Table | None] = [claims_table(papers, {place[0] for place in some}, variant)]
            for paper, table in papers:
                if table.rows:
                    parts = paper.split() if paper.parts > 1 else []
                    made += [cold_accuracy_table(some, variant, part) for part in parts] or [table]
                    made += [beside_the_paper(table), win_counts(table, paper), error_bands(some, variant, paper)]
            made += [whole, win_counts(whole), error_bands(some, variant)]
            yield from ((variant, one) for one in made if one is not None and one.rows)
        ablation = ablation_table(some, variant)
        if ablation.rows:
            yield variant, ablation
    yield from dial_tables(rows)
    yield from budget_tables(rows)


def write_tables(store: Store, out: Path) -> list[Path]:
    """Write every table as Markdown, CSV and LaTeX, all of them or none, and return where."""
    _check_out(store, out)
    return _write(store, out, table_files(list(all_tables(table_rows(store)))))


def table_files(tables: Tables) -> dict[str, bytes | str]:
    """Name -> content of the files of all tables."""
    files: dict[str, bytes | str] = {}
    for variant, table in tables:
        name = _file_name(f"{table.name}-{variant_name(variant)}")
        files |= {f"{name}.md": table.markdown(), f"{name}.csv": table.csv(), f"{name}.tex": table.latex()}
    return files


def make_figures(rows: list[Row], tables: Tables) -> Figures:
    """Every figure that the rows and their tables fill."""
    made: Figures = []
    named = {(variant_name(variant), table.name): table for variant, table in tables}

    def add(name: str, chart: Chart | None, variant: Variant) -> None:
        if chart is not None:
            made.append((variant, _file_name(f"{name}-{variant_name(variant)}"), chart))

    for variant in variants(rows):
        name = variant_name(variant)
        for paper in TABLES[:2]:
            if beside := named.get((name, f"{paper.name}-paper")):
                add(beside.name, figures.paper_figure(beside, variant), variant)
        found = averages(choose(rows, variant))
        for kind, part in figures.by_network(found).items():
            add(f"pareto-{kind}", figures.pareto_figure(part, variant), variant)
            add(f"cost-{kind}", figures.cost_figure(part, variant), variant)
        for kind, part in figures.by_size(found, "imdb").items():
            add(kind, figures.fronts_and_costs_figure(part, variant), variant)
        if ablation := named.get((name, "ablation")):
            add("ablation", figures.ablation_figure(ablation, variant), variant)
    kinds: dict[tuple, list[Variant]] = {}  # what differs in its scale alone is drawn in one figure
    networks = by_network(rows)
    for variant in dial_variants(rows):
        kinds.setdefault(tuple(value for name, value in variant.items() if name != "scale"), []).append(variant)
        for network, some in networks.items():
            add(f"dial-{network}", figures.dial_figure(some, variant, network), variant)
    for alike in kinds.values():
        for network in networks:
            there = [(variant, named.get((variant_name(variant), f"dial-{network}"))) for variant in alike]
            chart = figures.compared_figure([(v, table) for v, table in there if table is not None], network)
            add(f"dial-compared-{network}", chart, alike[0])
    return made


def write_report(store: Store, out: Path) -> Path:
    """Write one page with all tables and figures, and these as files beside it: all of them or none."""
    _check_out(store, out)
    rows = table_rows(store)
    tables = list(all_tables(rows))
    made = make_figures(rows, tables)
    files: dict[str, bytes | str] = {f"tables/{name}": text for name, text in table_files(tables).items()}
    for _, name, chart in made:
        files |= {f"figures/{name}{ending}": chart.rendered(ending) for ending in (".svg", ".png")}
    return _write(store, out, files | {"report.html": _page(rows, tables, made)})[-1]


def _page(rows: list[Row], tables: Tables, made: Figures) -> str:
    parts = [
        {
            "name": name,
            "words": _in_words(variant),
            "tables": [(f"{table.name}-{name}", table) for owner, table in tables if owner == variant],
            "figures": [
                (f"figure-{n}", n.removesuffix(f"-{name}"), chart) for owner, n, chart in made if owner == variant
            ],
        }
        for name, variant in {variant_name(v): v for v in [*(v for v, _ in tables), *(v for v, *_ in made)]}.items()
    ]
    failed = [row["status"] for row in rows if row["status"] != FINISHED]
    return render(
        "bench/templates/report.html.jinja",
        rows=len(rows),
        failed=len(failed),
        failures=sorted(set(failed)),
        versions=sorted({row["version"] for row in rows} - {""}),
        devices=sorted({row["device"] for row in rows} - {""}),
        parts_of_page=parts,
    )


def _check_out(store: Store, out: Path) -> None:
    """Refuse, before any work, a folder that is the store, lies in its segments or cannot be written to."""
    place, folder, segments = (real_place(path) for path in (out, store.folder, store.segments))
    if place == folder or segments in (place, *place.parents):
        raise ValueError(f"bench: --out must not be the store {store.folder} or lie in its segments, got {out}.")
    there = next(path for path in (place, *place.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise ValueError(f"bench: --out must be a folder, but {there} is a file.")
    check_outputs("bench", {"--out": there / "report.html"})


def _write(store: Store, out: Path, files: Mapping[str, bytes | str]) -> list[Path]:
    """Write files into a folder, all of them or none; the folders are made when everything else is done."""
    paths = [out / name for name in files]
    try:
        for folder in dict.fromkeys(path.parent for path in paths):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"bench: cannot make a folder in {out}: {error.strerror}.") from None
    # Links may lead into the store, and a file's place may be taken by a folder.
    check_outputs("bench", {f"--out ({name})": out / name for name in files}, {"--store": store.segments})
    write_files(dict(zip(paths, files.values(), strict=True)))
    return paths


def _file_name(name: str) -> str:
    """A name from a store as the name of a file: what could lead elsewhere is replaced."""
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name)[:200]


def _in_words(variant: Variant) -> str:
    features = "standardised" if variant["scale"] else "raw"
    starts = {"warm": "the base's weights", "cold": "fresh weights", BOTH: "where they do better, fresh or the base's"}
    start = starts.get(variant["start"], variant["start"])
    return (
        f"{features} features; mixup, label smoothing, co-distillation, anchor and distillation start from {start}; "
        f"patience {variant['patience']}, {variant['loss']} loss, at most {variant['epochs_limit']} epochs, "
        f"seed {variant['run_seed']}{', the same order of rows in every epoch' * variant['one_order']}"
    )
