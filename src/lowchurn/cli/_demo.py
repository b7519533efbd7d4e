"""The demonstration behind ``lowchurn demo``: one retrain, the plain way and the low-churn way."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from lowchurn._types import Model
from lowchurn.estimator import LowChurnClassifier
from lowchurn.metrics import Flips, accuracy, flips


@dataclass(frozen=True)
class DemoRow:
    """One line of the demo's table: a model, and its measurements on rows that no model has seen."""

    model: str
    accuracy: float
    flips: Flips | None  # against the base; None for the base itself


def run_demo(max_churn: float = 0.05, seed: int = 0) -> Iterator[DemoRow]:
    """Train a base on old digits, retrain it on old and new ones in two ways; yield a row per model."""
    X, y = load_digits(return_X_y=True)
    # A noisy camera: on clean digits every model is nearly right and there is little to see.
    X = X / 16.0 + np.random.default_rng(0).normal(scale=0.2, size=X.shape)
    rng = np.random.default_rng(seed)
    old, new, test = np.split(rng.permutation(len(y)), [500, 1050])
    rows = np.concatenate([old, new])

    def network(start: int) -> MLPClassifier:
        return MLPClassifier((16,), max_iter=120, random_state=start)

    def measure(name: str, model: Model) -> DemoRow:
        predicted = model.predict(X[test])
        against = None if model is base else flips(y[test], base.predict(X[test]), predicted)
        return DemoRow(name, accuracy(y[test], predicted), against)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        base = network(seed).fit(X[old], y[old])
        yield measure("in production", base)
        yield measure("plain retrain", network(seed + 1).fit(X[rows], y[rows]))
        model = LowChurnClassifier(network(seed + 1), base=base, max_churn=max_churn, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the table shows what came out
            model.fit(X[rows], y[rows], new=np.arange(len(rows)) >= len(old))
        yield measure("low-churn retrain", model)


def show_demo(console: Console, max_churn: float = 0.05, seed: int = 0) -> None:
    """Run the demo and print its table."""
    table = Table(title="Retraining a digit classifier when new data has come in", title_justify="left")
    for heading in ("model", "accuracy", "predictions changed", "predictions broken"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    rows = []
    with console.status("training a few small networks on scikit-learn's digits (a few seconds)"):
        for row in run_demo(max_churn, seed):
            rows.append(row)
            f = row.flips
            shown = ("-", "-") if f is None else (_count(f.changed, f.n), _count(f.broken, f.n))
            table.add_row(row.model, f"{row.accuracy:.1%}", *shown)
    console.print(table)
    unseen = next(row.flips.n for row in rows if row.flips)
    console.print(
        f"Measured on {unseen} noisy digits that no model has seen. 'Changed': the retrained model decides differently "
        "from the one in production; 'broken': it was right before and is wrong now.\n"
        "Both retrains saw the same data. The low-churn one stays near the model in production: networks that start "
        "from it are averaged, and a decision changes only where the evidence beats a margin. It was chosen on "
        f"held-out rows for a budget of {100 * max_churn:g} % changed predictions."
    )


def _count(count: int, n: int) -> str:
    return f"{count} ({count / n:.1%})"
