"""Everything that a store says: tables as files, figures as files, and one page with all of it."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lowchurn.bench.dial import dial_tables, dial_variants
from lowchurn.bench.paper import TABLES
from lowchurn.bench.store import FINISHED, Row, Store
from lowchurn.bench.tables import (
    Table,
    ablation_table,
    averages,
    beside_the_paper,
    choose,
    cold_accuracy_table,
    error_bands,
    variant_name,
    variants,
    win_counts,
)

STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222; background: #fff; }
table { border-collapse: collapse; margin: 0.5em 0; font-size: 13px; }
th, td { padding: 2px 8px; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th.label, td.label { text-align: left; }
caption { text-align: left; font-weight: bold; padding: 4px 0; }
td.best { font-weight: bold; }
.scroll { overflow-x: auto; margin-bottom: 1.5em; }
figure { margin: 1em 0; overflow-x: auto; }
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


def write_tables(store: Store, out: Path) -> list[Path]:
    """Write every table as Markdown, CSV and LaTeX; says where."""
    paths = []
    out.mkdir(parents=True, exist_ok=True)
    for variant, table in all_tables(_rows(store)):
        for ending, text in (("md", table.markdown()), ("csv", table.csv()), ("tex", table.latex())):
            path = out / f"{table.name}-{variant_name(variant)}.{ending}"
            path.write_text(text)
            paths.append(path)
    return paths


def write_figures(store: Store, out: Path) -> list[tuple[str, Path]]:
    """Write every figure as SVG and PNG; gives titles and the SVG files."""
    from lowchurn.bench import figures

    out.mkdir(parents=True, exist_ok=True)
    rows, made = _rows(store), []
    for variant in variants(rows):
        some = averages(choose(rows, variant))
        charts = {
            "pareto": figures.pareto_figure(some, variant),
            "cost": figures.cost_figure(some, variant),
            "ablation": figures.ablation_figure(some, variant),
        }
        for paper in TABLES[:2]:
            charts[f"{paper.name}-paper"] = figures.paper_figure(some, variant, paper)
        for name, chart in charts.items():
            if chart is not None:
                where = out / f"{name}-{variant_name(variant)}"
                made.append((where.name, figures.save(chart, where)[0]))
    for variant in dial_variants(rows):
        for network in sorted({row["network"] for row in rows}):
            chart = figures.dial_figure(rows, variant, network)
            if chart is not None:
                where = out / f"dial-{network}-{variant_name(variant)}"
                made.append((where.name, figures.save(chart, where)[0]))
    return made


def write_report(store: Store, out: Path) -> Path:
    """One page with all tables and figures, which stand beside it as files, too."""
    rows = _rows(store)
    write_tables(store, out / "tables")
    pictures = write_figures(store, out / "figures")
    failed = [row for row in rows if row["status"] != FINISHED]
    parts = [
        f"<p>{len(rows)} trained models, {len(failed)} of them failed; made by "
        f"{_words(rows, 'version')} on {_words(rows, 'device')}.</p>"
    ]
    if failed:
        reasons = sorted({row["status"] for row in failed})
        parts.append("<p>Failures:</p><ul>" + "".join(f"<li>{html.escape(r)}</li>" for r in reasons) + "</ul>")
    last = None
    for variant, table in all_tables(rows):
        if variant != last:
            parts.append(f"<h2>{html.escape(variant_name(variant))}</h2>")
            last = variant
        parts.append(as_html(table))
    parts.append("<h2>Figures</h2>")
    parts += [
        f"<figure>{_inline(path)}<figcaption>{html.escape(name)}</figcaption></figure>" for name, path in pictures
    ]
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>lowchurn bench</title>'
        f"<style>{STYLE}</style></head><body><h1>lowchurn bench</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )
    path = out / "report.html"
    path.write_text(page)
    return path


def as_html(table: Table) -> str:
    """A table as a piece of a page."""
    head = [f'<th class="label">{html.escape(text)}</th>' for text in table.labels]
    head += [f"<th>{html.escape(text)}</th>" for text in table.columns]
    lines = []
    for labels, cells in table.rows:
        best = table.bold(cells) if table.bold else set()
        line = [f'<td class="label">{html.escape(text)}</td>' for text in labels]
        line += [f"<td{' class=best' * (i in best)}>{table.cell(cell)}</td>" for i, cell in enumerate(cells)]
        lines.append(f"<tr>{''.join(line)}</tr>")
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
    return (
        f'<div class="scroll"><table><caption>{html.escape(table.caption)}</caption>'
        f"<tr>{''.join(head)}</tr>{''.join(lines)}</table>{notes}</div>"
    )


def _rows(store: Store) -> list[Row]:
    rows = store.rows()
    if not rows:
        raise ValueError(f"bench: the store {store.folder} holds no rows. Fill it with `lowchurn bench run`.")
    return rows


def _words(rows: list[Row], column: str) -> str:
    return html.escape(", ".join(sorted({row[column] for row in rows if row[column]})))


def _inline(path: Path) -> str:
    text = path.read_text()
    return text[text.index("<svg") :]
