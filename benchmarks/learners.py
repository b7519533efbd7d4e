"""Time SoftTargetClassifier against the library's own training on labels, and against a copy of each row per class.

make bench-learners
"""

import argparse
import os
import platform
import time

import numpy as np
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from rich.console import Console
from rich.table import Table
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from xgboost import XGBClassifier

from lowchurn import SoftTargetClassifier
from lowchurn.scoring import LogScore


def world(rows, classes, features=20, seed=0):
    """Rows with known class probabilities, labels drawn from them, and a noisy base."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, features)).astype(np.float32)
    logits = (
        2 * np.tanh(X[:, :8]) @ rng.normal(size=(8, classes)) + (X[:, 8:12] ** 2) @ rng.normal(size=(4, classes)) / 2
    )
    truth = np.exp(logits - logits.max(axis=1, keepdims=True))
    truth /= truth.sum(axis=1, keepdims=True)
    y = (truth.cumsum(axis=1) < rng.uniform(size=(rows, 1))).sum(axis=1).clip(0, classes - 1)
    base = 0.7 * truth + 0.3 * rng.dirichlet(np.ones(classes), rows)
    return X, y, truth, base


def timed(fit, *data, **more):
    start = time.perf_counter()
    return fit(*data, **more), time.perf_counter() - start


def copied(estimator, X, targets):
    """What people do by hand: every row once per class, weighted by its target."""
    n, m = targets.shape
    return estimator.fit(np.repeat(X, m, axis=0), np.tile(np.arange(m), n), sample_weight=targets.ravel())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-copies", action="store_true", help="skip the slow comparison")
    parser.add_argument("--only", help="name of one classifier")
    args = parser.parse_args()
    X, y, truth, base = world(args.rows + 10_000, args.classes)
    train, test = slice(0, args.rows), slice(args.rows, None)
    targets = 0.5 * np.eye(args.classes)[y[train]] + 0.5 * base[train]
    aim = 0.5 * truth[test] + 0.5 * base[test]
    table = Table(
        title=f"{args.rows:,} rows, {args.classes} classes, {args.rounds} rounds, {args.threads} threads, "
        f"{platform.machine()}; risk: cross-entropy against the expected soft target on new rows"
    )
    for heading in ("learner", "hard s", "soft s", "ratio", "copies s", "soft risk", "copies risk"):
        table.add_column(heading, justify="right")
    quiet = {"verbose": 0, "allow_writing_files": False}
    for estimator in (
        LGBMClassifier(n_estimators=args.rounds, n_jobs=args.threads, verbose=-1),
        XGBClassifier(n_estimators=args.rounds, n_jobs=args.threads),
        CatBoostClassifier(iterations=args.rounds, learning_rate=0.3, thread_count=args.threads, **quiet),
        HistGradientBoostingClassifier(max_iter=args.rounds, early_stopping=False),
    ):
        if args.only not in (None, type(estimator).__name__):
            continue
        hard, soft = [], []
        for _ in range(args.repeats):  # in turn, so that a busy machine slows both
            hard.append(timed(clone(estimator).fit, X[train], y[train])[1])
            model, seconds = timed(SoftTargetClassifier(estimator).fit, X[train], targets)
            soft.append(seconds)
        risk = LogScore().expected(aim, model.predict_proba(X[test])).mean()
        copies_seconds = copies_risk = float("nan")
        if not args.no_copies:
            twin, copies_seconds = timed(copied, clone(estimator), X[train], targets)
            proba = twin.predict_proba(X[test]).astype(float)
            copies_risk = LogScore().expected(aim, proba / proba.sum(axis=1, keepdims=True)).mean()
        ratio = np.median(np.array(soft) / np.array(hard))
        shown = [np.median(hard), np.median(soft), ratio, copies_seconds, risk, copies_risk]
        name = type(estimator).__name__
        table.add_row(name, *(f"{v:.2f}" if k < 4 else f"{v:.4f}" for k, v in enumerate(shown)))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
