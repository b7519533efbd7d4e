"""The tables of ``results/*.md`` as CSV files in one archive, ``results/tables.zip``, made by every build."""

import csv
import io
import re
import zipfile
from pathlib import Path

RULE = re.compile(r"^\|(\s*:?-+:?\s*\|)+$")


def tables(text):
    """Each Markdown table of a page as rows of cells, with the last heading above it."""
    heading, rows = "", []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            if not RULE.match(line):
                rows.append([cell.strip().replace("**", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif rows:
            yield heading, rows
            rows = []
        if line.startswith("#"):
            heading = line.lstrip("# ").strip()


def write_tables(folder):
    """Write one CSV file per table, ``page/01-heading.csv``; the same pages give the same bytes."""
    with zipfile.ZipFile(folder / "tables.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for page in sorted(folder.glob("*.md")):
            for number, (heading, rows) in enumerate(tables(page.read_text(encoding="utf-8")), 1):
                words = re.sub(r"\W+", "-", heading.lower()).strip("-")[:60]
                text = io.StringIO()
                csv.writer(text, lineterminator="\n").writerows(rows)
                name = zipfile.ZipInfo(f"{page.stem}/{number:02}-{words}.csv")
                name.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(name, text.getvalue())


def setup(app):
    app.connect("builder-inited", lambda app: write_tables(Path(app.srcdir) / "results"))
    return {"parallel_read_safe": True}
