"""The long tables of docs/results for images and text, from a store: python benchmarks/result_pages.py STORE DOCS

Writes a page of tables for each experiment, the figures of IMDB, and the table of claims on the standard output, for
the page that people read. It makes tables and no sentences: what they mean is written by hand.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from lowchurn._files import write_file
from lowchurn.bench._report import all_tables, make_figures
from lowchurn.bench._segments import Row
from lowchurn.bench._store import Store
from lowchurn.bench._tables import table_rows, variant_name

SIZES = (1000, 100, 10000)
CONVNETS = [f"convnet-{2**k}" for k in range(5)]
TRANSFORMERS = [f"transformer-{2**k}" for k in range(5)]
RESNETS = ["resnet-50", "resnet-101", "resnet-152"]
PAST = ("", "-wins", "-one-wins", "-two-wins", "-ratio", "-best-ratio", "-resampled-ratio")


def _of_paper(*names: str) -> list[str]:
    parts = ("-paper", "", *(f"-part{k}" for k in range(1, 5)), "-wins", "-errors")
    return [f"{name}{part}" for name in names for part in parts]


def _past(networks: list[str]) -> list[str]:
    sizes = ("", *(f"-{size}" for size in SIZES))
    return [f"dial-{network}{size}{table}" for network in networks for size in sizes for table in PAST]


# Page -> its title, and its tables in order; those that the store does not fill are left out.
PAGES = {
    "table2": ("Table 2 of the paper: MNIST variants, SVHN and CIFAR10, convnet-4", _of_paper("table2")),
    "convnets": (
        "Convolutional networks of all sizes: MNIST variants, SVHN and CIFAR10",
        _of_paper(*(f"{family}{size}" for family in ("mnist", "cifar") for size in SIZES)),
    ),
    "resnet": ("Residual networks: CIFAR10 and CIFAR100", _of_paper("resnet")),
    "imdb": ("IMDB, transformers", _of_paper(*(f"imdb{size}" for size in SIZES))),
    "images_past_paper": ("Past the paper on images: the soup's dial and sticky decisions", _past(CONVNETS + RESNETS)),
    "imdb_past_paper": ("Past the paper on text: the soup's dial and sticky decisions", _past(TRANSFORMERS)),
}
FACES = {
    "celeba": ("The 40 tasks of CelebA", _of_paper(*(f"celeba{size}" for size in SIZES))),
    "celeba_past_paper": ("Past the paper on CelebA: the soup's dial and sticky decisions", _past(CONVNETS)),
}
SQUARED = {
    "squared": (
        "The squared score in place of the logarithmic one: OpenML, fcn-1000",
        [*_of_paper("table1"), *_past(["fcn-1000"])],
    )
}
PATIENCE = {
    "patience": (
        "The patience of the paper's code: Tables 1 and 2 with early stopping after three epochs",
        _of_paper("table1", "table2"),
    )
}
ORDER = {
    "order": (
        "Tables 1 and 2 with early stopping after three epochs and rows in the same order in every epoch",
        _of_paper("table1", "table2"),
    )
}
# Where a page's figures are not named after it.
FIGURES = dict.fromkeys(("patience", "order"), ("table1-paper-", "table2-paper-"))
# By loss, patience and whether the order of rows is the same in every epoch.
OTHERS = {
    ("log", 5, False): PAGES,
    ("squared", 5, False): SQUARED,
    ("log", 3, False): PATIENCE,
    ("log", 3, True): ORDER,
}


def _heading(table: str) -> list[str]:
    """A heading above the first table of a network and size on pages that compare all methods."""
    first = re.fullmatch(r"dial-([a-z]+-\d+(-\d+)?)", table)
    return [f"### {first[1]}\n"] if first else []


def pages(rows: list[Row]) -> dict[str, str]:
    """File -> content: a page for each experiment of which there are rows, with its figures as files beside it.

    ``claims.md`` sets the paper's claims beside what was found. CelebA's tasks are compared apart from other images.
    """
    files: dict[str, str] = {}
    faces = [row for row in rows if row["dataset"].startswith("celeba_")]
    others = [row for row in rows if not row["dataset"].startswith("celeba_")]
    for some, named in ((others, OTHERS), (faces, {("log", 5, False): FACES})):
        tables = list(all_tables(some))
        figures = make_figures(some, tables)
        for kind, wanted in named.items():
            alike = {
                variant_name(v): v for v, _ in tables if (v["loss"], v["patience"], v["one_order"]) == kind
            }.values()
            for name, (title, parts) in wanted.items():
                made: list[str] = []
                for variant in alike:
                    own = {table.name: table for v, table in tables if v == variant}
                    found = [text for one in parts if one in own for text in (*_heading(one), own[one].markdown())]
                    about = FIGURES.get(name, f"{name}-")
                    drawn = [(n, chart) for v, n, chart in figures if v == variant and n.startswith(about)]
                    files |= {f"{figure}.svg": chart.svg() for figure, chart in drawn}
                    found += [f"![{chart.title}]({figure}.svg)\n" for figure, chart in drawn]
                    if found:
                        made += [f"## {variant_name(variant)}\n", *found]
                if made:
                    files[f"{name}.md"] = "\n".join([f"# {title}\n", *made])
        claims = "\n".join(table.markdown() for _, table in tables if table.name == "claims")
        files["claims.md"] = "\n".join(filter(None, [files.get("claims.md"), claims]))
    return files


def main() -> None:
    store, out = Path(sys.argv[1]), Path(sys.argv[2])
    files = pages(table_rows(Store(store)))
    print(files.pop("claims.md"))
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_file(out / name, content)
        print(f"written: {out / name}", file=sys.stderr)


if __name__ == "__main__":
    main()
