"""Releases in a chain, each with the one before as its base: size of file and pickle, seconds, accuracy and churn.

    python benchmarks/chain.py --learners lightgbm forest logistic --strategies distill sticky dial --releases 6
    python benchmarks/chain.py --strategies sticky --compress --max-churn 0.05

Each release is trained on 5,000 new rows. Prints one line per release and a Markdown table of the first and the last.
"""

import argparse
import inspect
import json
import pickle
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from lowchurn import LowChurnClassifier

ASKED = 10_000


def estimators():
    """The learners by name; LightGBM only where it is installed."""
    made = {
        "logistic": LogisticRegression(),
        "forest": RandomForestClassifier(50, min_samples_leaf=5, random_state=0, n_jobs=1),
    }
    try:
        from lightgbm import LGBMClassifier
    except ImportError:
        return made
    return {"lightgbm": LGBMClassifier(n_estimators=50, verbose=-1, random_state=0, n_jobs=1)} | made


def chain(estimator, strategies, releases, rows, max_churn, compress):
    """One record per release; the first is a plain model."""
    X, y = make_classification(
        rows * (releases + 1) + ASKED, 20, n_informative=8, n_classes=3, class_sep=0.8, flip_y=0.05, random_state=0
    )
    asked, truth = X[-ASKED:], y[-ASKED:]
    base = clone(estimator).fit(X[:rows], y[:rows])
    plain = len(pickle.dumps(base))
    more = {"compress": True} if compress else {}
    found = []
    for k in range(1, releases + 1):
        part = slice(k * rows, (k + 1) * rows)
        model = LowChurnClassifier(
            clone(estimator), base=base, max_churn=max_churn, strategies=strategies, random_state=k, **more
        )
        begin = time.perf_counter()
        model.fit(X[part], y[part], new=np.ones(rows, dtype=bool))
        fitted = time.perf_counter() - begin
        begin = time.perf_counter()
        decided = model.predict(asked)
        predicted = time.perf_counter() - begin
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder) / "model.skops")
            file = (Path(folder) / "model.skops").stat().st_size
        found.append(
            {
                "release": k,
                "file": file,
                "pickle": len(pickle.dumps(model)),
                "plain pickle": plain,
                "fit": fitted,
                "predict": predicted,
                "models": model.selection_.models,
                "accuracy": float(np.mean(decided == truth)),
                "churn": float(np.mean(decided != base.predict(asked))),
                "feasible": model.selection_.feasible,
            }
        )
        base = model
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", nargs="+", default=["lightgbm", "forest", "logistic"])
    parser.add_argument("--strategies", nargs="+", default=["distill", "sticky", "dial"])
    parser.add_argument("--releases", type=int, default=6)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--max-churn", type=float, default=0.05)
    parser.add_argument("--compress", action="store_true")
    given = parser.parse_args()
    if given.compress and "compress" not in inspect.signature(LowChurnClassifier).parameters:
        parser.error("this version of lowchurn has no compress=")
    warnings.simplefilter("ignore")
    known = estimators()
    lines = []
    for name in given.learners:
        for strategies in given.strategies:
            tried = None if strategies == "default" else strategies
            found = chain(known[name], tried, given.releases, given.rows, given.max_churn, given.compress)
            for one in found:
                print(json.dumps({"learner": name, "strategies": strategies} | one), flush=True)
            first, last = found[0], found[-1]

            def pair(key, scale=1.0, digits=2, first=first, last=last):
                return " to ".join(f"{one[key] * scale:.{digits}f}" for one in (first, last))

            plain = f"{first['plain pickle'] * 1e-3:.0f}"
            churn = f"{100 * np.mean([one['churn'] for one in found]):.1f}"
            cells = [name, strategies, pair("models", digits=0), pair("file", 1e-3, 0), pair("pickle", 1e-3, 0), plain]
            cells += [pair("fit", digits=1), pair("predict"), pair("accuracy", 100, 1), churn]
            lines.append(f"| {' | '.join(cells)} |")
    head = ["learner", "strategies", "models", "file, kB", "pickle, kB", "plain pickle, kB", "fit, s", "predict, s"]
    head += ["accuracy, %", "churn, %"]
    print(f"\n| {' | '.join(head)} |\n{'| --- ' * len(head)}|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
