"""Time candidates trained on a Ray cluster of two nodes on this machine, and count the bytes that are sent to it.

``once`` is what lowchurn does: the rows are put into the object store and every task has a reference. ``each`` hands
them to every task, as joblib does by itself. ``here`` trains one after the other without Ray.

    python benchmarks/ray_retrain.py --rows 1000000 --columns 50 --candidates 16
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

WAYS = ("here", "once", "each")


def make_data(rows, columns):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns))
    y = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=rows) > 0).astype(int)
    return X, y


def fit(rows, columns, candidates, n_jobs):
    """Train candidates of distillation as the estimator does; their seconds and a number that they agree in."""
    from sklearn.naive_bayes import GaussianNB

    from lowchurn.learners import Job, learner_for
    from lowchurn.strategies import Distill

    X, y = make_data(rows, columns)
    onehot = np.eye(2)[y]
    base = np.clip(onehot * 0.6 + 0.2, 0, 1)
    strategies = [Distill(lam) for lam in np.linspace(0.05, 0.95, candidates)]
    jobs = [Job(s.targets(onehot, base), s, None, i, y) for i, s in enumerate(strategies)]
    learner = learner_for(GaussianNB(), np.array([0, 1]))
    began = time.perf_counter()
    models = learner.fit_many(X, jobs, None, n_jobs)
    seconds = time.perf_counter() - began
    return seconds, float(sum(model.predict_proba(X[:1000])[:, 1].sum() for model in models))


def child(way, arguments):
    shape = arguments.rows, arguments.columns, arguments.candidates
    if way == "here":
        seconds, agreed = fit(*shape, None)
        print(json.dumps({"seconds": seconds, "bytes": 0, "agreed": agreed}))
        return
    from ray._private.serialization import SerializationContext
    from ray.cluster_utils import Cluster

    from lowchurn import _ray

    cluster = Cluster()
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=arguments.store * 2**30)
    os.environ["RAY_ADDRESS"] = cluster.address
    sizes, serialize = [], SerializationContext.serialize

    def counted(self, value):
        found = serialize(self, value)
        sizes.append(found.total_bytes)
        return found

    SerializationContext.serialize = counted
    if way == "each":
        _ray.Calls.sent = lambda self, value: value
    try:
        with _ray.training_on("benchmark"):
            seconds, agreed = fit(*shape, -1)
        print(json.dumps({"seconds": seconds, "bytes": sum(sizes), "agreed": agreed}))
    finally:
        cluster.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--store", type=int, default=2, help="GiB of the object store of a node")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments)
        return
    found = {}
    print("| way | seconds | GB sent |\n| --- | --- | --- |")
    for way in arguments.ways:
        command = [sys.executable, __file__, "--child", way, *sys.argv[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"| {way} | failed: {done.stderr.strip().splitlines()[-1]} | |")
            continue
        found[way] = json.loads(done.stdout.strip().splitlines()[-1])
        print(f"| {way} | {found[way]['seconds']:.1f} | {found[way]['bytes'] / 1e9:.2f} |", flush=True)
    assert len({run["agreed"] for run in found.values()}) <= 1, "the models must be equal"


if __name__ == "__main__":
    main()
