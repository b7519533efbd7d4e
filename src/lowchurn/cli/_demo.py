"""The demonstration behind ``lowchurn demo``: one retrain in four ways, a table, and a report page to open."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from lowchurn._display import brief_share, share_text
from lowchurn._files import PathLike, write_files
from lowchurn._types import Model
from lowchurn.estimator import LowChurnClassifier
from lowchurn.metrics import Flips, flips

WAYS = {
    "distill": "distillation (the paper)",
    "dial": "the dial",
    "sticky": "sticky decisions",
}
KNOWN, LABELLED, SEEN = 1500, 5000, 9000  # rows of the base, of the retrains, and with the traffic; the rest is unseen


@dataclass(frozen=True)
class DemoRow:
    """A model of the demo, and what it decides on rows that no model has seen."""

    name: str
    words: str
    model: Model
    decisions: np.ndarray
    flips: Flips  # against the model in production
    accuracy: float

    @property
    def models(self) -> int:
        chosen = getattr(self.model, "selection_", None)
        return 1 if chosen is None else int(chosen.models)


def run_demo(max_churn: float = 0.03, seed: int = 0) -> Iterator[DemoRow]:
    """Train a base, retrain it in four ways when rows have come in; yield a row per model."""
    X, y = demo_data()
    network = partial(MLPClassifier, (16,), max_iter=30)
    base = network(random_state=seed)

    def measured(name: str, words: str, model: Model) -> DemoRow:
        decided = np.asarray(model.predict(X[SEEN:]))
        found = flips(y[SEEN:], base.predict(X[SEEN:]), decided)
        return DemoRow(name, words, model, decided, found, float(np.mean(decided == y[SEEN:])))

    with _quiet():
        yield measured("production", "in production", base.fit(X[:KNOWN], y[:KNOWN]))
        plain = network(random_state=seed + 1)
        yield measured("retrain", "plain retrain", plain.fit(X[:LABELLED], y[:LABELLED]))
        for name, words in WAYS.items():
            model = LowChurnClassifier(
                network(random_state=seed + 1), base=base, max_churn=max_churn, strategies=name, random_state=seed
            )
            yield measured(name, words, model.fit(X[:LABELLED], y[:LABELLED], traffic=X[LABELLED:SEEN]))


def demo_data() -> tuple[np.ndarray, np.ndarray]:
    """The rows of the demo: two classes, with a tenth of the labels drawn at random."""
    return make_classification(16_000, 20, n_informative=8, class_sep=1.2, flip_y=0.1, random_state=1)


def show_demo(console: Console, max_churn: float, seed: int, folder: Path) -> None:
    """Run the demo, print its table, and write the decisions of all models and a report."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"demo: out must be a folder, got the file {str(folder)!r}.")
    folder.mkdir(parents=True, exist_ok=True)
    table = Table(
        title="Retraining a classifier when rows have come in", title_justify="left", box=None, pad_edge=False
    )
    for heading in ("", "accuracy", "changed", "broken", "fixed", "models"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = []
    with console.status("training some small networks (a few seconds)"):
        for row in run_demo(max_churn, seed):
            rows.append(row)
            counts = (row.flips.changed, row.flips.broken, row.flips.fixed)
            shares = (share_text(count / row.flips.n) for count in counts) if row.name != "production" else "---"
            table.add_row(row.words, share_text(row.accuracy), *shares, str(row.models))
        files = _files(rows, folder)
        write_files(files)
    console.print(table)
    console.print(
        f"Measured on {rows[0].flips.n:,} rows that no model has seen; the budget is {brief_share(max_churn)} changed "
        "decisions. Broken: right before, wrong now. Fixed: wrong before, right now. Models: how many answer a row.",
    )
    page = folder / "report.html"
    if page in files:
        console.print(f"Open this page: {page}", soft_wrap=True)
    else:
        console.print('A report page of it needs: pip install "lowchurn[audit]"', markup=False)
    old, new = folder / "production.csv", folder / "sticky.csv"
    console.print(f"Audit it yourself: lowchurn audit {old} {new} --label y --max-churn 0.05", soft_wrap=True)


def _files(rows: list[DemoRow], folder: Path) -> dict[PathLike, bytes | str]:
    """The decisions of each model as CSV, and the page where its libraries are there."""
    _, y = demo_data()
    files: dict[PathLike, bytes | str] = {folder / f"{row.name}.csv": _csv(y[SEEN:], row.decisions) for row in rows}
    if all(find_spec(library) for library in ("ibis", "duckdb", "jinja2", "pandas")):
        files[folder / "report.html"] = _page(y[SEEN:], rows)
    return files


def _csv(labels: np.ndarray, decisions: np.ndarray) -> str:
    text = io.StringIO()
    lines = zip(range(len(labels)), labels.tolist(), decisions.tolist(), strict=True)
    csv.writer(text, lineterminator="\n").writerows([("id", "y", "prediction"), *lines])
    return text.getvalue()


def _page(labels: np.ndarray, rows: list[DemoRow]) -> str:
    """The audit of sticky decisions, with everything that was tried for them."""
    import pandas as pd

    from lowchurn.audit import audit
    from lowchurn.report import html_page

    old, new = rows[0], rows[-1]
    before, after = (
        pd.DataFrame({"id": range(len(labels)), "y": labels, "prediction": r.decisions}) for r in (old, new)
    )
    result = audit(before, after, label="y", old_name=old.words, new_name=new.words)
    return html_page(result, result.gate(max_churn=0.05, not_worse_than=0.0), frontier=new.model)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of short trainings; the table shows what came out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)
        yield
