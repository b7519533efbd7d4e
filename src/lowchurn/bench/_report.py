"""Everything that a store contains: tables as files, figures as files, and one page with all of it."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowchurn._files import check_outputs, real_place, write_files
from lowchurn.bench._paper import TABLES
from lowchurn.bench._past_paper import BOTH, dial_tables, dial_variants
from lowchurn.bench._segments import FINISHED, Row
from lowchurn.bench._store import Store
from lowchurn.bench._tables import (
    Table,
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

STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 1180px; margin: 2em auto; padding: 0 1em; color: #222; background: #fff; }
table { border-collapse: collapse; margin: 0.5em 0; font-size: 13px; }
th, td { padding: 2px 8px; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th { vertical-align: bottom; }
th.label, td.label { text-align: left; }
h3 { font-size: 13px; margin: 0; }
.notes { font-size: 13px; margin: 0.3em 0; }
td.best { font-weight: bold; }
.scroll { overflow-x: auto; margin-bottom: 1.5em; }
figure { margin: 1.5em 0; overflow-x: auto; }
nav { font-size: 13px; }
nav a { white-space: nowrap; }
dt { margin-top: 0.8em; }
dd { margin: 0 0 0 1.5em; }
"""


def all_tables(rows: list[Row]) -> Iterator[tuple[dict[str, Any], Table]]:
    """Every table that the rows fill, variant by variant."""
    for variant in variants(rows):
        some = averages(choose(rows, variant))
        whole = cold_accuracy_table(some, variant)
        if any(cell.value is not None for _, cells in whole.rows for cell in cells):
            for paper in TABLES:
                table = cold_accuracy_table(some, variant, paper)
                if table.rows:
                    yield variant, table
                    beside = beside_the_paper(table)
                    if beside is not None:
                        yield variant, beside
                    yield variant, win_counts(table, paper)
                    yield variant, error_bands(some, variant, paper)
            yield variant, whole
            yield variant, win_counts(whole)
            yield variant, error_bands(some, variant)
        ablation = ablation_table(some, variant)
        if ablation.rows:
            yield variant, ablation
    yield from dial_tables(rows)


@dataclass(frozen=True)
class Picture:
    """A figure as files: the name of its variant, its own name, and what its SVG and PNG file contain."""

    variant: str
    name: str
    svg: bytes
    png: bytes


def write_tables(store: Store, out: Path) -> list[Path]:
    """Write every table as Markdown, CSV and LaTeX, all of them or none, and return where."""
    _check_out(store, out)
    return _write(store, out, table_files(list(all_tables(table_rows(store)))))


def table_files(tables: list[tuple[dict[str, Any], Table]]) -> dict[str, bytes | str]:
    """Name -> content of the files of all tables."""
    files: dict[str, bytes | str] = {}
    for variant, table in tables:
        name = _file_name(f"{table.name}-{variant_name(variant)}")
        files |= {f"{name}.md": table.markdown(), f"{name}.csv": table.csv(), f"{name}.tex": table.latex()}
    return files


def make_figures(rows: list[Row]) -> list[Picture]:
    """Every figure that the rows fill."""
    from lowchurn.bench import _figures as figures

    made = []

    def add(name: str, chart: Any, variant: dict[str, Any]) -> None:
        if chart is not None:
            words = variant_name(variant)
            made.append(Picture(words, _file_name(f"{name}-{words}"), *figures.rendered(chart)))

    for variant in variants(rows):
        some = averages(choose(rows, variant))
        for paper in TABLES[:2]:
            add(f"{paper.name}-paper", figures.paper_figure(some, variant, paper), variant)
        for name, part in figures.by_network(some).items():
            add(f"pareto-{name}", figures.pareto_figure(part, variant), variant)
            add(f"cost-{name}", figures.cost_figure(part, variant), variant)
        add("ablation", figures.ablation_figure(some, variant), variant)
    for variant in dial_variants(rows):
        for network in sorted({row["network"] for row in rows}):
            add(f"dial-{network}", figures.dial_figure(rows, variant, network), variant)
    # The soup beside distillation, raw and scaled features in one figure, which stands with the first of them.
    kinds: dict[tuple, list[dict[str, Any]]] = {}
    for variant in dial_variants(rows):
        kinds.setdefault(tuple(value for name, value in variant.items() if name != "scale"), []).append(variant)
    for variants_of_kind in kinds.values():
        for network in sorted({row["network"] for row in rows if row["strategy"] == "soup"}):
            chart = figures.compared_figure(rows, variants_of_kind, network)
            add(f"dial-compared-{network}", chart, variants_of_kind[0])
    return made


def write_report(store: Store, out: Path) -> Path:
    """Write one page with all tables and figures, and these as files beside it: all of them or none."""
    _check_out(store, out)
    rows = table_rows(store)
    tables, pictures = list(all_tables(rows)), make_figures(rows)
    files: dict[str, bytes | str] = {f"tables/{name}": text for name, text in table_files(tables).items()}
    for one in pictures:
        files |= {f"figures/{one.name}.svg": one.svg, f"figures/{one.name}.png": one.png}
    return _write(store, out, files | {"report.html": _page(rows, tables, pictures)})[-1]


def _page(rows: list[Row], tables: list[tuple[dict[str, Any], Table]], pictures: list[Picture]) -> str:
    failed = [row for row in rows if row["status"] != FINISHED]
    parts = [
        f"<p>{len(rows):,} rows, one for each setting and trial, {len(failed):,} of them failed; made by "
        f"{_words(rows, 'version')} on {_words(rows, 'device')}.</p>"
    ]
    if failed:
        reasons = sorted({row["status"] for row in failed})
        parts.append("<p>Failures:</p><ul>" + "".join(f"<li>{html.escape(r)}</li>" for r in reasons) + "</ul>")
    sections: dict[str, list[str]] = {}
    contents: dict[str, dict[str, list[str]]] = {}
    for variant, table in tables:
        name = variant_name(variant)
        anchor = f"{table.name}-{name}"
        sections.setdefault(name, []).append(f'<div id="{html.escape(anchor)}">{as_html(table)}</div>')
        contents.setdefault(name, {}).setdefault("Tables", []).append(_link(anchor, table.name))
    for one in pictures:
        anchor = f"figure-{one.name}"
        picture = f'<figure id="{html.escape(anchor)}">{_inline(one.svg)}</figure>'
        sections.setdefault(one.variant, []).append(picture)
        short = one.name.removesuffix(f"-{one.variant}")
        contents.setdefault(one.variant, {}).setdefault("Figures", []).append(_link(anchor, short))
    words = {variant_name(variant): _in_words(variant) for variant in (*variants(rows), *dial_variants(rows))}
    parts.append("<nav><dl>")
    for name in sections:
        parts.append(f"<dt>{_link(name, name)}: {words[name]}</dt>")
        parts += [f"<dd>{kind}: {' · '.join(links)}</dd>" for kind, links in contents[name].items()]
    parts.append("</dl></nav>")
    for name, some in sections.items():
        parts.append(f'<h2 id="{html.escape(name)}">{html.escape(name)}</h2><p>{words[name]}</p>')
        parts += some
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>lowchurn bench</title>'
        f"<style>{STYLE}</style></head><body><h1>lowchurn bench</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
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


def _link(anchor: str, text: str) -> str:
    return f'<a href="#{html.escape(anchor)}">{html.escape(text)}</a>'


def _in_words(variant: dict[str, Any]) -> str:
    features = "standardised" if variant["scale"] else "raw"
    starts = {"warm": "the base's weights", "cold": "fresh weights", BOTH: "where they do better, fresh or the base's"}
    start = starts.get(variant["start"], variant["start"])
    return html.escape(
        f"{features} features; mixup, label smoothing, co-distillation, anchor and distillation start from {start}; "
        f"patience {variant['patience']}, {variant['loss']} loss, at most {variant['epochs_limit']} epochs, "
        f"seed {variant['run_seed']}"
    )


def as_html(table: Table) -> str:
    """A table as a piece of a page."""
    head = [f'<th class="label">{html.escape(text)}</th>' for text in table.labels]
    head += [f"<th>{html.escape(text).replace(', ', ',<br>')}</th>" for text in table.columns]
    lines = []
    for labels, cells in table.rows:
        best = table.bold(cells) if table.bold else set()
        line = [f'<td class="label">{html.escape(text)}</td>' for text in labels]
        line += [f"<td{' class=best' * (i in best)}>{table.cell(cell)}</td>" for i, cell in enumerate(cells)]
        lines.append(f"<tr>{''.join(line)}</tr>")
    notes = f'<p class="notes">{html.escape(" ".join(table.notes))}</p>' if table.notes else ""
    return (
        f'<h3>{html.escape(table.caption)}</h3><div class="scroll"><table>'
        f"<tr>{''.join(head)}</tr>{''.join(lines)}</table>{notes}</div>"
    )


def _words(rows: list[Row], column: str) -> str:
    return html.escape(", ".join(sorted({row[column] for row in rows if row[column]})))


def _inline(svg: bytes) -> str:
    text = svg.decode()
    return text[text.index("<svg") :]
