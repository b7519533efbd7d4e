"""Time the convex program of Algorithm 1 on one core, and measure how exact its solution is.

make bench-combine
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported: the claim is about one core

import argparse
import platform
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from lowchurn.scoring import get_score
from lowchurn.selection import combine


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def world(n, m, candidates, seed):
    """Candidates on the line from a noisy base to the truth, each with noise of its own."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, m))
    truth = softmax(logits)
    y = (truth.cumsum(axis=1) < rng.uniform(size=(n, 1))).sum(axis=1).clip(0, m - 1)
    base = softmax(logits + 0.8 * rng.normal(size=(n, m)))
    lams = np.linspace(0.1, 0.9, candidates)
    proba = np.stack([lam * softmax(logits + 0.4 * rng.normal(size=(n, m))) + (1 - lam) * base for lam in lams])
    return proba, y, base


def optimality_residual(mixture, proba, y, base, score, epsilon):
    """The largest violation of the KKT conditions, computed apart from the solver."""
    served = mixture.proba(proba)
    onehot = np.eye(base.shape[1])[y]
    slope = np.tensordot(proba, score.gradient(onehot + mixture.multiplier * base, served), axes=2) / len(y)
    used = mixture.weights > 0
    spread = slope[used].max() - slope.min()
    excess = mixture.churn - epsilon if np.isfinite(epsilon) else 0.0
    return max(spread, excess, mixture.multiplier * abs(excess))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--candidates", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    proba, y, base = world(args.rows, args.classes, args.candidates, args.seed)
    table = Table(
        title=f"combine: L = {args.candidates}, n = {args.rows:,}, m = {args.classes}; one core, {platform.machine()}"
    )
    for heading in ("score", "budget", "seconds", "candidates used", "KKT residual"):
        table.add_column(heading, justify="right")
    for name in ("log", "brier"):
        score = get_score(name)
        for epsilon in (0.005, 0.01, 0.05, 0.1, np.inf):
            start = time.perf_counter()
            mixture = combine(proba, y, base, epsilon, score)
            seconds = time.perf_counter() - start
            residual = optimality_residual(mixture, proba, y, base, score, epsilon)
            used = int((mixture.weights > 0).sum())
            table.add_row(name, f"{epsilon:g}", f"{seconds:.2f}", str(used), f"{residual:.0e}")
    Console().print(table)


if __name__ == "__main__":
    main()
