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

import lowchurn
from lowchurn import LowChurnClassifier

BUDGETS = (0.01, 0.02, 0.05)
OVER = 1.25  # a run whose churn is above so many budgets has broken it
FEW = 4  # fewer draws of rows than that give no standard error
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


def key_of(line):
    return tuple(line[name] for name in ("learner", "set", "order", "seed", "method"))


def lines_of(path):
    """The lines of a file, of each method in each case the last one; the end of a file may be missing."""
    found = {}
    for text in Path(path).read_text().splitlines() if Path(path).exists() else ():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        found[key_of(line)] = line
    return found


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


# Tables


def table_of(lines):
    """One row for each method, case and budget; base and plain retrain, which have none, in columns of every row."""
    rows, ends = [], {}
    for line in lines:
        if "results" not in line:
            continue
        case = tuple(line[name] for name in ("learner", "set", "order", "seed"))
        if line["method"] in ("base", "plain"):
            ends[case, line["method"]] = line["results"][0]
        else:
            keys = {name: line[name] for name in ("learner", "set", "order", "seed", "method")}
            keys |= {"case": case, "draw": f"{line['set']} {line['order']} {line['seed']}"}
            rows += [{**keys, "plain seconds": line["plain seconds"], **one} for one in line["results"]]
    rows = pd.DataFrame([row for row in rows if all((row["case"], end) in ends for end in ("base", "plain"))])
    for end in ("base", "plain"):
        for what in ("accuracy", "churn"):
            rows[f"{end} {what}"] = [ends[case, end][what] for case in rows["case"]]
    return rows


def common(rows, methods):
    """Only cases in which all methods have a result at every budget."""
    some = rows[rows.method.isin(methods)]
    complete = some.groupby("case").size() == len(methods) * len(BUDGETS)
    return some[some.case.isin(complete.index[complete])]


def survival(some):
    """Share of the plain gain that survives: the sum of gains over the sum of the plain retrain's, and its error.

    A ratio of sums, because the gain of a single case may be nothing or less. The standard error leaves out one draw
    of rows after the other (jackknife).
    """
    sums = pd.DataFrame(
        {
            "gain": some.accuracy - some["base accuracy"],
            "whole": some["plain accuracy"] - some["base accuracy"],
            "draw": some["draw"],
        }
    )
    sums = sums.groupby("draw").sum()
    share = sums.gain.sum() / sums.whole.sum()
    without = (sums.gain.sum() - sums.gain) / (sums.whole.sum() - sums.whole)
    n = len(sums)
    return share, float(np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum())) if n > 1 else np.nan


def mean_error(values, draws):
    """A mean and its standard error; learners that share a draw of rows share its luck and count as one cluster.

    Of fewer than four draws there is no error to speak of.
    """
    values, n = np.asarray(values, dtype=float), len(values)
    if not n:
        return np.nan, np.nan
    sums = pd.Series(values - values.mean()).groupby(np.asarray(draws)).sum()
    k = len(sums)
    return values.mean(), float(np.sqrt(k / (k - 1) * (sums**2).sum()) / n) if k >= FEW else np.nan


def paired(rows, method, other, budget):
    """Accuracy less that of another method in the same case; ``other`` may be a column of the method's own rows."""
    at = rows[rows.budget == budget]
    mine = at[at.method == method].set_index("case")
    than = mine[other] if other in mine else at[at.method == other].set_index("case").accuracy
    return mine.assign(accuracy=mine.accuracy - than).dropna(subset="accuracy")


def points(some, values=None):
    mean, error = mean_error(some.accuracy if values is None else values, some["draw"])
    return f"{100 * mean:+.2f}" + (f" ± {100 * error:.2f}" if np.isfinite(error) else "")


def line_of(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def heading(*cells):
    return [line_of(*cells), "|" + " --- |" * len(cells)]


def each_budget(rows, method, what):
    """A cell of numbers for the budgets, divided by strokes."""
    return " / ".join(what(rows[(rows.method == method) & (rows.budget == budget)]) for budget in BUDGETS)


def show_methods(rows, methods, drift=False):
    """What a method keeps of the gain (or gains, under drift), its churn, its broken budgets and what it costs."""
    some = common(rows, methods)
    cases = some.drop_duplicates("case")
    if not len(cases):
        return ["", "No case has all of these methods."]
    plain = points(cases, cases["plain accuracy"] - cases["base accuracy"])
    first = (
        f"{len(cases)} cases: {cases.learner.nunique()} learners, {cases.set.nunique()} sets. A plain retrain gains "
        f"{plain} points over the base and changes "
        f"{100 * cases['plain churn'].mean():.1f} % of decisions."
    )
    what = "points over the base" if drift else "share of the plain gain, %"
    titles = [f"{what}: {100 * b:g} %" for b in BUDGETS]
    text = ["", first, "", *heading("method", *titles, "churn used, %", "over 1.25 budgets, %", "trainings", "time")]
    for method in methods:
        cells = []
        for budget in BUDGETS:
            at = some[(some.method == method) & (some.budget == budget)]
            if drift:
                cells.append(points(at, at.accuracy - at["base accuracy"]))
            else:
                share, error = survival(at)
                cells.append(f"{100 * share:.0f} ± {100 * error:.0f}")
        text.append(
            line_of(
                method, *cells,
                each_budget(some, method, lambda at: f"{100 * at.churn.mean():.2f}"),
                each_budget(some, method, lambda at: f"{100 * broken_budgets(at):.0f}"),
                each_budget(some, method, lambda at: f"{at.trainings.mean():.1f}"),
                each_budget(some, method, lambda at: f"{(at.seconds / at['plain seconds']).median():.1f}"),
            )
        )  # fmt: skip
    return text


def broken_budgets(at):
    return (at.churn > OVER * at.budget + 1e-12).mean()


def show_paired(rows, methods, other="hand"):
    some = common(rows, [other, *methods])
    if not len(some):
        return []
    text = ["", *heading(f"accuracy less that of {other}", *(f"{100 * b:g} %" for b in BUDGETS), "cases")]
    for method in methods:
        cells = [points(paired(some, method, other, budget)) for budget in BUDGETS]
        text.append(line_of(method, *cells, some.case.nunique()))
    return text


PAIRS = (
    ("sticky", "hand"),
    ("auto", "hand"),
    ("sticky, traffic", "hand, traffic"),
    ("auto, traffic", "hand, traffic"),
    ("auto, folds", "hand, folds"),
)


def show_each(rows, by):
    """Sticky beside the rule by hand for each learner or set: as it is, at the same churn, and broken budgets."""
    text = []
    for method, other in PAIRS:
        some = common(rows, [method, other])
        if not len(some):
            continue
        titles = [f"less {how}, {100 * b:g} %" for how in ("the rule", "it at the same churn") for b in BUDGETS]
        text += ["", f"**{method}** beside **{other}**; * is worse by more than two standard errors:", ""]
        text += heading(by, "cases", *titles, f"{method}: churn", "over", f"{other}: churn", "over")
        for name, mine in [*some.groupby(by, sort=False), ("all", some)]:
            cells = [marked(paired(mine, method, than, budget)) for than in (other, "at_same") for budget in BUDGETS]
            churns = [
                cell
                for one in (method, other)
                for cell in (
                    each_budget(mine, one, lambda at: f"{100 * at.churn.mean():.1f}"),
                    each_budget(mine, one, lambda at: f"{100 * broken_budgets(at):.0f}"),
                )
            ]
            text.append(line_of(name, mine.case.nunique(), *cells, *churns))
    return text


def marked(values):
    mean, error = mean_error(values.accuracy, values["draw"])
    return points(values) + (" *" if mean < -2 * error else "")


def show_times(rows, methods):
    """Median over cases and budgets of the time of a fit over that of one plain retrain in the same case."""
    methods = [method for method in methods if (rows.method == method).any()]
    text = ["", *heading("learner", "plain retrain, s", *methods)]
    for learner, mine in rows.groupby("learner", sort=False):
        times = [(some.seconds / some["plain seconds"]).median() for some in (mine[mine.method == m] for m in methods)]
        text.append(line_of(learner, f"{mine['plain seconds'].median():.2f}", *(f"{one:.1f}" for one in times)))
    return text


def show_failures(lines):
    failed = [line for line in lines if "failed" in line]
    if not failed:
        return ["", "No run failed."]
    counts = pd.DataFrame(failed).groupby(["learner", "method", "failed"]).size()
    text = ["", *heading("learner", "method", "runs", "reason")]
    return text + [line_of(learner, method, n, why) for (learner, method, why), n in counts.items()]


def tables(args):
    lines = [line for file in args.files for line in lines_of(file).values()]
    rows = table_of(lines)
    rows = rows[rows.learner.isin(args.learners or rows.learner.unique())]
    text = []
    for order in ORDERS:
        mine = rows[rows.order == order]
        if not len(mine):
            continue
        every = [method for method in METHODS if method in set(mine.method)]
        short = [method for method in every if method not in ("distill", "dial")]
        text += ["", f"## {order.capitalize()} order"]
        text += ["", "### All methods", *show_methods(mine, every, order == "time"), *show_paired(mine, every[1:])]
        text += ["", "### The margin rules, all cases", *show_methods(mine, short, order == "time")]
        text += show_paired(mine, short[1:])
        text += ["", "### Every learner", *show_each(mine, "learner")]
        if order == "random":
            text += ["", "### Every set", *show_each(mine, "set")]
    text += ["", "## Time over one plain retrain", *show_times(rows, list(OPTIONS))]
    text += ["", "## What failed", *show_failures(lines)]
    print("\n".join(text).strip())


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
