"""How much of a retrain's churn is noise of its shuffles: retrains of one base against each other and against it.

    python benchmarks/shuffle_noise.py --data DIR        (or LOWCHURN_DATA)

fcn-1000 on standardised features, the paper's protocol, eight retrains from the base's weights in each trial.
"""

from __future__ import annotations

import argparse
import os

import numpy as np

from lowchurn.bench._loading import load
from lowchurn.bench._protocol import Protocol, draw, make_network
from lowchurn.nets import strategy_tasks, train
from lowchurn.strategies import ColdStart, WarmStart, member_seed

MEMBERS = 8


def churns(data, protocol, trial):
    """Mean churn between two retrains, and between a retrain and the base, on the test split."""
    rows, network = draw(data, protocol, trial), make_network(protocol.network, data)
    common = {"y": data.y, "classes": data.classes, "validation": rows.validation}
    first = strategy_tasks([ColdStart()], rows=rows.initial, seed=rows.base_seed, **common)
    base = train(network, data.X, first, progress=False)
    tasks = [
        task
        for j in range(MEMBERS)
        for task in strategy_tasks(
            [WarmStart()], rows=rows.both, seed=member_seed(rows.seed, j), base=(base, 0), **common
        )
    ]
    after = train(network, data.X, tasks, progress=False).predict(data.X[data.test])
    before = base.predict(data.X[data.test])[0]
    between = np.mean([np.mean(after[i] != after[j]) for i in range(MEMBERS) for j in range(i)])
    return between, np.mean(after != before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("LOWCHURN_DATA"))
    parser.add_argument("--sets", nargs="+", default=["magic04", "electricity", "phonemes", "adult"])
    parser.add_argument("--trials", type=int, default=6)
    args = parser.parse_args()
    protocol = Protocol("fcn-1000", scale=True)
    for name in args.sets:
        data = load(name, args.data).scaled()
        found = 100 * np.array([churns(data, protocol, trial) for trial in range(args.trials)])
        error = found.std(axis=0, ddof=1) / len(found) ** 0.5
        shown = [f"{mean:.1f} +- {e:.1f} %" for mean, e in zip(found.mean(axis=0), error, strict=True)]
        print(f"{name:12} between two retrains {shown[0]}, to the base {shown[1]}")


if __name__ == "__main__":
    main()
