"""Users' learners at budgets of changed decisions: lowchurn beside a margin rule written by hand.

python benchmarks/users.py run --data DIR --out out/users.jsonl      (or LOWCHURN_DATA; goes on where it was stopped)
python benchmarks/users.py tables out/users.jsonl                    (make bench-users does both)

The rows of a data set are put in random order (or stay in time order). The base is trained on the first 30 %, the
retrain on the first 60 %, of which ``new=`` names the second half; the next 10 % are traffic without labels, and the
last 30 % are what everything is judged on. A case is a learner, a data set, an order and a seed; every method in a case
has the same base and the same rows. The file has one JSON line for each method in each case.
"""

import os

if __name__ == "__main__":
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # one core for each case; read when numpy is loaded
        os.environ.setdefault(_name, "1")

import argparse
import functools
import itertools
import json
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from users_tables import BUDGETS, lines_of, report

import lowchurn
from lowchurn import LowChurnClassifier

# The last is random order with a base that decides by a threshold; accuracy then counts all right decisions alike.
ORDERS = ("random", "time", "threshold")
THRESHOLD = 0.2  # of the second of two classes
MANY = ("digits", "letters")  # of more than two classes
IN_TIME_ORDER = ("electricity",)  # files whose rows are in time order, and drift
BUILT_IN = {"breast cancer": load_breast_cancer, "digits": load_digits}
SETS = (  # breast cancer may be asked for, but its 57 rows of traffic know nothing about 1 %
    "digits", "phonemes", "churn", "wilt", "magic04", "phishing", "electricity", "adult", "bank",
    "elevators", "eeg", "letters",
)  # fmt: skip
OPTIONS = {
    "distill": {"strategies": "distill"},
    "dial": {"strategies": "dial"},
    "sticky": {"strategies": "sticky"},
    "sticky, traffic": {"strategies": "sticky"},
    "auto": {},
    "auto, traffic": {},
    "auto, folds": {"cross_fit": 5},
}
RULES = ("hand", "hand, traffic", "hand, refit", "hand, folds")
FOLDS = 5
METHODS = ("base", "plain", *RULES, *OPTIONS)


# Learners and data


def learners():
    """Classifiers by name, and the names of those whose library is not there with the reason."""
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    found = {
        "logistic": logistic,
        "naive bayes": GaussianNB(),
        "tree": DecisionTreeClassifier(min_samples_leaf=5, random_state=0),
        "knn": make_pipeline(StandardScaler(), KNeighborsClassifier(15)),
        "lightgbm": None,
        "extra trees": ExtraTreesClassifier(100, random_state=0),
        "forest": RandomForestClassifier(100, random_state=0),
        "xgboost": None,
        "voting": VotingClassifier(
            [("logistic", logistic), ("bayes", GaussianNB()), ("forest", RandomForestClassifier(50, random_state=0))],
            voting="soft",
        ),
        "svc": make_pipeline(StandardScaler(), CalibratedClassifierCV(SVC(), cv=3)),
        "mlp": make_pipeline(StandardScaler(), MLPClassifier((50,), max_iter=60, random_state=0)),
        "hist gradient boosting": HistGradientBoostingClassifier(random_state=0),
        "catboost": None,
    }
    skipped = {}
    for name, make in (("lightgbm", _lightgbm), ("xgboost", _xgboost), ("catboost", _catboost)):
        try:
            found[name] = make()
        except ImportError as error:
            del found[name]
            skipped[name] = str(error)
    return found, skipped


def _lightgbm():
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_jobs=1, verbose=-1, random_state=0)


def _xgboost():
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=100, n_jobs=1, random_state=0)


def _catboost():
    from catboost import CatBoostClassifier

    return CatBoostClassifier(200, thread_count=1, verbose=0, allow_writing_files=False, random_seed=0)


@functools.lru_cache(maxsize=4)
def read(name, folder):
    """All rows of a data set in their own order; words become codes, classes 0, 1, ..."""
    if name in BUILT_IN:
        return BUILT_IN[name](return_X_y=True)
    inside = Path(folder, "tabular")
    table = pd.read_parquet((inside if inside.is_dir() else Path(folder)) / f"{name}.parquet")
    X = table.drop(columns="target")
    codes = {c: pd.factorize(X[c], sort=True)[0] for c in X.columns if X[c].dtype.kind not in "fiub"}
    return X.assign(**codes).to_numpy(dtype=float), pd.factorize(table["target"], sort=True)[0]


def draw(n, order, seed, most):
    """At most so many of n rows: in random order, or in their own."""
    rows = np.random.default_rng(seed).permutation(n)[:most]
    return np.sort(rows) if order == "time" else rows


def cuts(n):
    """Rows of the base, new rows, traffic and rows to judge on, as slices of rows in order."""
    ends = [0, round(0.3 * n), round(0.6 * n), round(0.7 * n), n]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


# The margin rule by hand; nothing of lowchurn


def evidence(p, before):
    """How much likelier the best other class is than the one decided before, and that class."""
    rows, others = np.arange(len(before)), np.array(p, dtype=float)
    others[rows, before] = -1
    best = others.argmax(axis=1)
    return p[rows, best] - p[rows, before], best


def margin_for(budget, p, before):
    """The least margin with which no more than the budget changes: the evidence of the first row left out."""
    ranked = np.sort(evidence(p, before)[0])[::-1]
    return max(float(ranked[int(budget * len(ranked) + 1e-9)]), 0.0)


def decide(p, before, margin):
    gain, best = evidence(p, before)
    return np.where(gain > margin, best, before)


def accuracy_at(changes, p, before, y):
    """Accuracy of the rule if it changed just so many of these rows; rows that tie at the margin change by lot."""
    gain, best = evidence(p, before)
    changes = min(changes, int((gain > 0).sum()))
    better = (best == y).astype(float) - (before == y)
    if changes == 0:
        return float(np.mean(before == y))
    last = np.sort(gain)[::-1][changes - 1]
    above, tied = gain > last, gain == last
    gained = better[above].sum() + (changes - above.sum()) * better[tied].mean()
    return float(np.mean(before == y) + gained / len(y))


# Cases


class Case:
    """A base, the rows of everything, and the plain retrains that the rules by hand need, each trained once."""

    def __init__(self, estimator, X, y, order, seed):
        self.estimator, self.seed = estimator, seed
        old, new, traffic, test = cuts(len(y))
        self.X, self.y = X[: new.stop], y[: new.stop]
        self.traffic, self.X_test, self.y_test = X[traffic], X[test], y[test]
        self.new = np.arange(new.stop) >= old.stop
        self.base, self.values = clone(estimator).fit(X[old], y[old]), np.ones(len(np.unique(y)))
        if order == "threshold":
            self.base = FixedThresholdClassifier(FrozenEstimator(self.base), threshold=THRESHOLD).fit(X[old], y[old])
            self.values = np.array([THRESHOLD, 1 - THRESHOLD])
        self.before = self.decisions(self.base, self.X_test)
        # A fifth of the rows, among the new ones: as many as lowchurn holds out at most.
        held = np.random.default_rng(seed).permutation(np.flatnonzero(self.new))[: new.stop // 5]
        self.held = np.isin(np.arange(new.stop), held)

    @staticmethod
    def decisions(model, X):
        return np.asarray(model.predict(X)).ravel().astype(int)

    def worth(self, model, X):
        """Probabilities, times what a right decision for each class is worth."""
        return model.predict_proba(X) * self.values

    @functools.cached_property
    def plain(self):
        """The retrain on all rows and its seconds."""
        return self._fitted(np.ones(len(self.y), dtype=bool))

    @functools.cached_property
    def short(self):
        """The retrain without the rows held out and its seconds."""
        return self._fitted(~self.held)

    def _fitted(self, rows):
        begin = time.perf_counter()
        model = clone(self.estimator).fit(self.X[rows], self.y[rows])
        return model, time.perf_counter() - begin

    def rule(self, method):
        """The retrain of a rule by hand, its seconds, and the rows that its margin comes from."""
        on_all = method.endswith(("traffic", "folds"))
        return (*self.plain, self.traffic) if on_all else (*self.short, self.X[self.held])

    def results(self, method, budgets=BUDGETS):
        if method == "base":
            return [self.judged(self.before, None)]
        if method == "plain":
            model, seconds = self.plain
            after = self.worth(model, self.X_test).argmax(axis=1)
            return [self.judged(after, None, trainings=1, seconds=seconds)]
        return [(self._by_hand if method in RULES else self._lowchurn)(method, budget) for budget in budgets]

    @functools.cached_property
    def folds(self):
        """Probabilities of the new rows by retrains that did not see them, a fold at a time, and the seconds."""
        new = np.random.default_rng(self.seed).permutation(np.flatnonzero(self.new))
        found, seconds = {}, 0.0
        for fold in np.array_split(new, FOLDS):
            model, took = self._fitted(~np.isin(np.arange(len(self.y)), fold))
            found |= dict(zip(fold.tolist(), self.worth(model, self.X[fold]), strict=True))
            seconds += took
        return np.stack([found[row] for row in np.flatnonzero(self.new)]), seconds

    def _by_hand(self, method, budget):
        if method.endswith("folds"):
            p, seconds = self.folds
            margin = margin_for(budget, p, self.decisions(self.base, self.X[self.new]))
        else:
            model, seconds, rows = self.rule(method)
            margin = margin_for(budget, self.worth(model, rows), self.decisions(self.base, rows))
        if method.endswith(("refit", "folds")):  # on all rows, with the margin of retrains that did not see some
            model, seconds = self.plain[0], seconds + self.plain[1]
        after = decide(self.worth(model, self.X_test), self.before, margin)
        return self.judged(after, budget, trainings=1, seconds=seconds, served=f"margin={margin:.3g}")

    def _lowchurn(self, method, budget):
        more = {"traffic": self.traffic} if method.endswith("traffic") else {}
        begin = time.perf_counter()
        model = LowChurnClassifier(base=self.base, max_churn=budget, random_state=self.seed, **OPTIONS[method])
        model.fit(self.X, self.y, new=self.new, **more)
        seconds, chosen = time.perf_counter() - begin, model.selection_
        after = self.decisions(model, self.X_test)
        p = self.worth(self.rule(method)[0], self.X_test)
        return self.judged(
            after, budget, trainings=chosen.trainings, seconds=seconds, served=" + ".join(chosen.served),
            measured=chosen.churn, feasible=bool(chosen.feasible),
            at_same=accuracy_at(int(np.sum(after != self.before)), p, self.before, self.y_test),
        )  # fmt: skip

    def judged(self, after, budget, **more):
        right, was_right = after == self.y_test, self.before == self.y_test
        return {
            "budget": budget,
            "churn": float(np.mean(after != self.before)),
            "accuracy": float(np.mean(right)),
            "broken": float(np.mean(was_right & ~right)),
            **more,
        }


def run_case(learner, name, order, seed, methods, folder, most):
    """One line for each method; a failure is a line with its reason."""
    key = {"learner": learner, "set": name, "order": order, "seed": seed}
    lines = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            X, y = read(name, folder)
            rows = draw(len(y), order, seed, most)
            case = Case(learners()[0][learner], X[rows], y[rows], order, seed)
            key |= {"rows": len(rows), "version": lowchurn.__version__, "plain seconds": case.plain[1]}
        except Exception as error:
            return [{**key, "method": method, "failed": reason(error)} for method in methods]
        for method in methods:
            try:
                lines.append({**key, "method": method, "results": case.results(method)})
            except Exception as error:
                lines.append({**key, "method": method, "failed": reason(error)})
    return lines


def reason(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def left_to_do(args, done):
    """Cases with the methods that have no line yet, in the order asked for: seeds last, so that all sets come early."""
    jobs = []
    for seed in range(args.seeds[0], args.seeds[1]):
        for name in args.sets:
            for learner in args.learners:
                for order in args.orders:
                    if (order == "time" and name not in IN_TIME_ORDER) or (order == "threshold" and name in MANY):
                        continue
                    case = (learner, name, order, seed)
                    missing = [m for m in args.methods if again((*case, m), done, args.retry)]
                    if missing:
                        jobs.append((*case, missing, args.data, args.rows))
    return jobs


def again(key, done, retry):
    return key not in done or (retry and "failed" in done[key])


def run(args):
    known, skipped = learners()
    for name, why in skipped.items():
        print(f"skipped {name}: {why}")
    unknown = [name for name in args.learners or () if name not in known and name not in skipped]
    if unknown:
        raise SystemExit(f"users: unknown learners {', '.join(unknown)}; there are {', '.join(known)}")
    args.learners = [name for name in args.learners or known if name not in skipped]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    jobs = left_to_do(args, lines_of(args.out))
    begin, until = time.monotonic(), args.minutes * 60
    work = (delayed(run_case)(*job) for job in jobs if time.monotonic() - begin < until)
    done = 0
    with args.out.open("a") as out:
        for lines in Parallel(n_jobs=args.jobs, return_as="generator_unordered", pre_dispatch=args.jobs)(work):
            out.writelines(json.dumps(line) + "\n" for line in lines)
            out.flush()
            done += 1
            first, failed = lines[0], sum("failed" in line for line in lines)
            case = ", ".join(str(first[name]) for name in ("learner", "set", "order", "seed"))
            print(f"{time.monotonic() - begin:6.0f} s  {case}{f': {failed} failed' if failed else ''}", flush=True)
    print(f"{done} of {len(jobs)} cases")


def tables(args):
    lines = [line for file in args.files for line in lines_of(file).values()]
    print(report(lines, args.learners, ORDERS, METHODS, list(OPTIONS)))


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run", help="run what has no line in the file yet")
    one.add_argument("--data", default=os.environ.get("LOWCHURN_DATA"), help="folder of Parquet files")
    one.add_argument("--out", type=Path, default=Path("out/users.jsonl"), help="file of JSON lines to append to")
    one.add_argument("--learners", nargs="+", help="some of the learners")
    one.add_argument("--sets", nargs="+", default=list(SETS))
    one.add_argument("--orders", nargs="+", default=list(ORDERS), choices=ORDERS)
    one.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    one.add_argument("--seeds", nargs=2, type=int, default=(0, 3), help="the first seed and the one after the last")
    one.add_argument("--rows", type=int, default=6000, help="at most so many rows of a set")
    one.add_argument("--jobs", type=int, default=2, help="cases at a time, each on one core")
    one.add_argument("--minutes", type=float, default=np.inf, help="begin no case after so many")
    one.add_argument("--retry", action="store_true", help="run what failed once more")
    one.set_defaults(command=run)
    two = commands.add_parser("tables", help="tables of a file")
    two.add_argument("files", type=Path, nargs="+")
    two.add_argument("--learners", nargs="+", help="some of the learners")
    two.set_defaults(command=tables)
    args = parser.parse_args(words)
    if args.command is run and not args.data and set(args.sets) - set(BUILT_IN):
        parser.error("give --data DIR or set LOWCHURN_DATA")
    args.command(args)


if __name__ == "__main__":
    import users  # by its name, so that other processes find what they run

    users.main()
