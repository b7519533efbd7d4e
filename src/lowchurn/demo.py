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

from lowchurn.learners import fit_soft
from lowchurn.metrics import Flips, accuracy, churn, flips
from lowchurn.selection import InfeasibleBudget, select_single
from lowchurn.strategies import ColdStart, Distill, Strategy, one_hot, paper_grid


@dataclass(frozen=True)
class DemoRow:
    """One line of the demo's table: a model, and what it does on rows that nobody has seen."""

    model: str
    accuracy: float
    flips: Flips | None
    """Against the base; None for the base itself."""


def run_demo(max_churn: float = 0.05, seed: int = 0) -> Iterator[DemoRow]:
    """Train a base on old digits, retrain it on old and new ones in two ways, and measure both.

    Yields each model's row as soon as it is there.

    Parameters
    ----------
    max_churn : float, default 0.05
        The share of predictions that may change.
    seed : int, default 0
        Decides the split and the initial weights.

    Examples
    --------
    >>> from lowchurn.demo import run_demo
    >>> rows = list(run_demo())
    >>> [row.model for row in rows]
    ['in production', 'plain retrain', 'low-churn retrain']
    >>> rows[2].flips.changed < rows[1].flips.changed
    True
    """
    X, y = load_digits(return_X_y=True)
    # A noisy camera: on clean digits every model is nearly right and there is little to see.
    X = X / 16.0 + np.random.default_rng(0).normal(scale=0.2, size=X.shape)
    classes = np.unique(y)
    rng = np.random.default_rng(seed)
    old, new, held_out, test = np.split(rng.permutation(len(y)), [500, 650, 1050])
    train = np.concatenate([old, new])

    def fit(strategy: Strategy, rows: np.ndarray, base: MLPClassifier | None, start: int) -> MLPClassifier:
        network = MLPClassifier((16,), max_iter=120, random_state=start)
        base_proba = None if base is None else base.predict_proba(X[rows])
        targets = strategy.targets(one_hot(y[rows], len(classes)), base_proba)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return fit_soft(network, X[rows], targets, classes)

    def measure(name: str, model: MLPClassifier) -> DemoRow:
        predicted = model.predict(X[test])
        against = None if model is base else flips(y[test], base.predict(X[test]), predicted)
        return DemoRow(name, accuracy(y[test], predicted), against)

    base = fit(ColdStart(), old, None, start=seed)
    yield measure("in production", base)
    plain = fit(ColdStart(), train, None, start=seed + 1)
    yield measure("plain retrain", plain)
    candidates = [fit(s, train, base, start=seed + 1) for s in paper_grid(Distill)]
    predictions = [c.predict(X[held_out]) for c in candidates]
    before = base.predict(X[held_out])
    changes = [churn(before, p) for p in predictions]
    errors = [1 - accuracy(y[held_out], p) for p in predictions]
    try:
        chosen = select_single(errors, changes, max_churn)
    except InfeasibleBudget:
        chosen = int(np.argmin(changes))
    yield measure("low-churn retrain", candidates[chosen])


def show_demo(console: Console, max_churn: float = 0.05, seed: int = 0) -> None:
    """Run the demo and print its table."""
    table = Table(title="Retraining a digit classifier when new data has come in", title_justify="left")
    for heading in ("model", "accuracy", "predictions changed", "predictions broken"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    rows = []
    with console.status("training 11 small networks on scikit-learn's digits (a few seconds)"):
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
        f"Both retrains saw the same data. The low-churn one aimed at lam * label + (1 - lam) * (what production "
        f"says), with lam chosen on held-out rows for a budget of {max_churn:.0%} changed predictions."
    )


def _count(count: int, n: int) -> str:
    return f"{count} ({count / n:.1%})"
