"""The search for lambda against the full grid: trainings used, churn reached and accuracy on unseen rows.

make bench-search        (or with more tasks: python benchmarks/search.py --data DIR, a folder of Parquet files)
"""

import argparse
import functools
import os
import platform
import warnings
from pathlib import Path

import numpy as np
from lightgbm import LGBMClassifier
from rich.console import Console
from rich.table import Table
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lowchurn import LowChurnClassifier
from lowchurn.strategies import Distill


def built_in():
    """Tasks that need no download; the made ones are hard enough that a retrain flips decisions."""
    yield "digits", *load_digits(return_X_y=True)
    yield "breast cancer", *load_breast_cancer(return_X_y=True)
    for name, classes, informative, noise in (
        ("made, 2 classes", 2, 6, 0.1),
        ("made, 5 classes", 5, 10, 0.05),
        ("made, noisy", 2, 4, 0.3),
    ):
        X, y = make_classification(
            9000, 20, n_informative=informative, n_classes=classes, flip_y=noise, class_sep=0.8, random_state=1
        )
        yield name, X, y


def from_folder(folder, most=12_000):
    """Parquet files with a column ``target``, in the folder or under ``tabular/`` in it; words become codes."""
    import pandas as pd

    inside = Path(folder, "tabular")
    for path in sorted((inside if inside.is_dir() else Path(folder)).glob("*.parquet")):
        table = pd.read_parquet(path).sample(frac=1, random_state=0)[:most]
        X = table.drop(columns="target")
        codes = {c: pd.factorize(X[c])[0] for c in X.columns if X[c].dtype.kind not in "fiub"}
        yield path.stem, X.assign(**codes).to_numpy(dtype=float), pd.factorize(table["target"], sort=True)[0]


def run(task, X, y, estimator, budget, variant, seed):
    rng = np.random.default_rng(seed)
    old, new, test = np.split(rng.permutation(len(y)), [int(0.25 * len(y)), int(0.6 * len(y))])
    rows = np.r_[old, new]
    base = clone(estimator).fit(X[old], y[old])
    start, search = variant
    model = LowChurnClassifier(
        estimator, base=base, max_churn=budget, search=search, random_state=seed,
        strategies=[functools.partial(Distill, start=start)],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X[rows], y[rows], new=np.arange(len(rows)) >= len(old))
    before, after = base.predict(X[test]), model.predict(X[test])
    plain = clone(estimator).fit(X[rows], y[rows]).predict(X[test])
    return {
        "trainings": model.selection_.trainings,
        "held-out": model.selection_.churn,
        "churn": (before != after).mean(),
        "accuracy": (after == y[test]).mean(),
        "plain churn": (before != plain).mean(),
        "plain accuracy": (plain == y[test]).mean(),
        "one model": float(len(model.selection_.served) == 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("LOWCHURN_DATA"), help="folder of Parquet files to add")
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.01, 0.02, 0.05])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    tasks = [*built_in(), *(from_folder(args.data) if args.data else ())]
    estimators = {
        "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
        "lightgbm": LGBMClassifier(n_estimators=40, n_jobs=args.threads, verbose=-1),
    }
    variants = [(start, search) for start in ("cold", "warm") for search in ("auto", "grid")]
    headings = [
        "learner",
        "task",
        "budget",
        "start",
        "search",
        "trainings",
        "held-out",
        "churn",
        "accuracy",
        "plain churn",
        "plain accuracy",
        "one model",
    ]
    rows = []
    if args.markdown:
        print("| " + " | ".join(headings) + " |\n|" + " --- |" * len(headings), flush=True)
    for name, estimator in estimators.items():
        for task, X, y in tasks:
            for budget in args.budgets:
                for variant in variants:
                    results = [run(task, X, y, estimator, budget, variant, seed) for seed in range(args.seeds)]
                    mean = {k: float(np.mean([r[k] for r in results])) for k in results[0]}
                    rows.append([name, task, budget, *variant, *mean.values()])
                    if args.markdown:  # as it goes: a long run that is cut short still has something to show
                        print("| " + " | ".join(words(rows[-1])) + " |", flush=True)
    summary = []
    for name in estimators:
        for budget in args.budgets:
            for variant in variants:
                kept = np.array([r[5:] for r in rows if r[0] == name and r[2] == budget and tuple(r[3:5]) == variant])
                summary.append([name, f"mean of {len(kept)}", budget, *variant, *kept.mean(axis=0)])
    show(headings, rows, summary, args.markdown)


def words(row):
    numbers = [f"{row[5]:.1f}", *(f"{100 * v:.2f}" for v in row[6:11]), f"{100 * row[11]:.0f}"]
    return [row[0], row[1], f"{100 * row[2]:g}", *row[3:5], *numbers]


def show(headings, rows, summary, markdown):
    title = f"shares in percent; {platform.machine()}, {os.cpu_count()} cores"
    for part in (summary,) if markdown else (rows, summary):
        if markdown:
            print("\n| " + " | ".join(headings) + " |\n|" + " --- |" * len(headings))
            for row in part:
                print("| " + " | ".join(words(row)) + " |")
        else:
            table = Table(*headings, title=title)
            for row in part:
                table.add_row(*words(row))
            Console(width=160).print(table)


if __name__ == "__main__":
    main()
