"""Everything that a store says: tables as files, figures as files, and one page with all of it."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lowchurn.bench.dial import BOTH, dial_tables, dial_variants
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
    """Write every figure as SVG and PNG; gives the name of its variant and the SVG file of each."""
    from lowchurn.bench import figures

    out.mkdir(parents=True, exist_ok=True)
    rows, made = _rows(store), []
    for variant in variants(rows):
        some = averages(choose(rows, variant))
        charts = {f"{paper.name}-paper": figures.paper_figure(some, variant, paper) for paper in TABLES[:2]}
        for name, part in figures.by_network(some).items():
            charts[f"pareto-{name}"] = figures.pareto_figure(part, variant)
            charts[f"cost-{name}"] = figures.cost_figure(part, variant)
        charts["ablation"] = figures.ablation_figure(some, variant)
        for name, chart in charts.items():
            if chart is not None:
                where = out / f"{name}-{variant_name(variant)}"
                made.append((variant_name(variant), figures.save(chart, where)[0]))
    for variant in dial_variants(rows):
        for network in sorted({row["network"] for row in rows}):
            chart = figures.dial_figure(rows, variant, network)
            if chart is not None:
                where = out / f"dial-{network}-{variant_name(variant)}"
                made.append((variant_name(variant), figures.save(chart, where)[0]))
    made += _compared(rows, out)
    return made


def _compared(rows: list[Row], out: Path) -> Iterator[tuple[str, Path]]:
    """The soup beside distillation, raw and scaled features in one figure, which stands with the first of them."""
    from lowchurn.bench import figures

    kinds: dict[tuple, list[dict[str, Any]]] = {}
    for variant in dial_variants(rows):
        kinds.setdefault(tuple(value for name, value in variant.items() if name != "scale"), []).append(variant)
    for some in kinds.values():
        for network in sorted({row["network"] for row in rows if row["strategy"] == "soup"}):
            chart = figures.compared_figure(rows, some, network)
            if chart is not None:
                name = variant_name(some[0])
                yield name, figures.save(chart, out / f"dial-compared-{network}-{name}")[0]


def write_report(store: Store, out: Path) -> Path:
    """One page with all tables and figures, which stand beside it as files, too."""
    rows = _rows(store)
    write_tables(store, out / "tables")
    pictures = write_figures(store, out / "figures")
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
    for variant, table in all_tables(rows):
        name = variant_name(variant)
        anchor = f"{table.name}-{name}"
        sections.setdefault(name, []).append(f'<div id="{html.escape(anchor)}">{as_html(table)}</div>')
        contents.setdefault(name, {}).setdefault("Tables", []).append(_link(anchor, table.name))
    for name, path in pictures:
        anchor = f"figure-{path.stem}"
        picture = f'<figure id="{html.escape(anchor)}">{_inline(path)}</figure>'
        sections.setdefault(name, []).append(picture)
        short = path.stem.removesuffix(f"-{name}")
        contents.setdefault(name, {}).setdefault("Figures", []).append(_link(anchor, short))
    words = {variant_name(variant): _in_words(variant) for variant in (*variants(rows), *dial_variants(rows))}
    parts.append("<nav><dl>")
    for name in sections:
        parts.append(f"<dt>{_link(name, name)}: {words[name]}</dt>")
        parts += [f"<dd>{kind}: {' · '.join(links)}</dd>" for kind, links in contents[name].items()]
    parts.append("</dl></nav>")
    for name, some in sections.items():
        parts.append(f'<h2 id="{html.escape(name)}">{html.escape(name)}</h2><p>{words[name]}</p>')
        parts += some
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>lowchurn bench</title>'
        f"<style>{STYLE}</style></head><body><h1>lowchurn bench</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )
    path = out / "report.html"
    path.write_text(page)
    return path


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


def _rows(store: Store) -> list[Row]:
    rows = store.rows()
    if not rows:
        raise ValueError(f"bench: the store {store.folder} holds no rows. Fill it with `lowchurn bench run`.")
    if all(row["status"] != FINISHED for row in rows):
        raise ValueError(
            f"bench: no row of the store {store.folder} is finished; the first of {len(rows)} {rows[0]['status']}. "
            "Remove the cause and run again with --retry-failed."
        )
    return rows


def _words(rows: list[Row], column: str) -> str:
    return html.escape(", ".join(sorted({row[column] for row in rows if row[column]})))


def _inline(path: Path) -> str:
    text = path.read_text()
    return text[text.index("<svg") :]
