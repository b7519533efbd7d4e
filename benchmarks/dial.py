"""The dial as users meet it: curves of served mixtures, budgets on unseen rows, certificates.

make bench-dial        (needs LOWCHURN_DATA, or python benchmarks/dial.py --data DIR, a folder of Parquet files)
"""

import argparse
import os
import platform
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from lightgbm import LGBMClassifier
from search import from_folder
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lowchurn import LowChurnClassifier
from lowchurn.learners import NetworkClassifier
from lowchurn.strategies import ColdStart, Distill, ServedMixture, plan, strategy_from

BUDGETS = (0.005, 0.01, 0.02, 0.05)
FIT_FOR = 0.02  # the budget of the one fit that is dialled to the others
LAMS = tuple(round(0.1 * k, 1) for k in range(1, 11))
MEMBERS = (1, 4, 8)
CURVE_SETS = ("adult", "electricity", "magic04")
BUDGET_SETS = ("adult", "bank", "electricity", "letters", "magic04")
CERTIFIED = ("lightgbm", "logistic")
CONFIDENCE = 0.9


def learners():
    return {
        "lightgbm": LGBMClassifier(n_estimators=50, n_jobs=1, verbose=-1),
        "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "network": make_pipeline(StandardScaler(), NetworkClassifier("fcn-100", device="cpu", random_state=0)),
        "forest": RandomForestClassifier(50, random_state=0),
    }


class Draw:
    """One trial: other rows, a base on the old ones, and rows that nothing has seen."""

    def __init__(self, data, estimator, trial, old, new, unseen):
        self.X, self.y = data
        order = np.random.default_rng(trial).permutation(len(self.y))
        self.rows, self.test = order[: old + new], order[old + new : old + new + unseen]
        self.new = np.arange(old + new) >= old
        self.trial, self.estimator = trial, estimator
        self.base = clone(estimator).fit(self.X[self.rows[:old]], self.y[self.rows[:old]])
        self.before = self.base.predict(self.X[self.test])

    def fit(self, **options):
        model = LowChurnClassifier(self.estimator, base=self.base, random_state=self.trial, **options)
        return model.fit(self.X[self.rows], self.y[self.rows], new=self.new)

    def fit_apart(self, **options):
        """Trained on all rows, measured on the unseen ones."""
        used = np.r_[self.rows, self.test]
        model = LowChurnClassifier(self.estimator, base=self.base, random_state=self.trial, **options)
        return model.fit(self.X[used], self.y[used], held_out=np.arange(len(used)) >= len(self.rows))

    def measure(self, after):
        return {"churn": np.mean(after != self.before), "accuracy": np.mean(after == self.y[self.test])}


# Curves


def curve(name, data, trial, size, unseen):
    """Every strategy at every lambda, measured on unseen rows only: nothing is chosen."""
    estimator = LGBMClassifier(
        subsample=0.8, subsample_freq=1, colsample_bytree=0.8, random_state=trial, n_jobs=1, verbose=-1
    )  # without randomness all members would be the same
    draw = Draw(data, estimator, trial, size, size, unseen)
    asked = {"retrain": {1.0: ColdStart()}}
    asked |= {f"mixture of {m}": {lam: ServedMixture(members=m, lam=lam) for lam in LAMS} for m in MEMBERS}
    asked |= {f"distill, {start}": {lam: Distill(lam=lam, start=start) for lam in LAMS} for start in ("cold", "warm")}
    every = [strategy for family in asked.values() for strategy in family.values()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frontier = draw.fit_apart(strategies=every).frontier_
    found = {(row.strategy, row.setting): row for row in frontier}
    rows = []
    base = {"set": name, "trial": trial}
    for method, family in asked.items():
        for lam, strategy in family.items():
            row = found[strategy.name, strategy.setting]
            timed = lam == 0.5 or method == "retrain"
            rows.append(
                base
                | {"method": method, "lam": lam, "churn": row.churn, "accuracy": row.accuracy}
                | {"models": models_of(row), "ms": serving_time(draw, row) if timed else np.nan}
            )
    before = draw.measure(draw.before)
    return [*rows, base | before | {"method": "base", "lam": 0.0, "models": 1, "ms": np.nan}]


def models_of(row):
    """How many models serve a candidate, the base among them where it has a share."""
    strategy = strategy_from(row.strategy, row.parameters)
    recipe = plan([strategy]).recipes[strategy]
    if recipe.of != "proba":
        return 1
    return (len(recipe.members) if recipe.base_share < 1 else 0) + (recipe.base_share > 0)


def serving_time(draw, row, times=5):
    """Milliseconds of the fastest of some predictions of 1000 rows, where the candidate is the one that is served."""
    strategy = strategy_from(row.strategy, row.parameters)
    budget = None if strategy == ColdStart() else row.churn  # the plain retrain changes more
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = draw.fit_apart(strategies=[strategy], max_churn=budget)
    if list(model.selection_.served) != [row.name]:
        return np.nan
    seconds = []
    for _ in range(times):  # others use the machine as well
        begin = time.perf_counter()
        model.predict_proba(draw.X[draw.test[:1000]])
        seconds.append(time.perf_counter() - begin)
    return 1000 * min(seconds)


def show_curves(rows, say):
    trainings = {"base": "0", "retrain": "1", **{f"mixture of {m}": f"{m}" for m in MEMBERS}}
    for name, some in rows.groupby("set", sort=False):
        cold = some[some.method == "retrain"]
        base = some[some.method == "base"]
        say(
            f"\n### {name}\n\nA plain retrain: accuracy {with_error(cold.accuracy)}, churn {with_error(cold.churn)}. "
            f"The base: accuracy {with_error(base.accuracy)}.\n"
        )
        methods = [m for m in some.method.unique() if m not in ("retrain", "base")]
        say(*heading("lam", *(f"{m}: churn" for m in methods), *(f"{m}: accuracy" for m in methods)))
        for lam in LAMS:
            at = {m: some[(some.method == m) & (some.lam == lam)] for m in methods}
            cells = [with_error(at[m][what]) for what in ("churn", "accuracy") for m in methods]
            say(line(f"{lam:g}", *cells))
        say("")
        say(*heading("", "churn at cold accuracy", "at lam", "trainings", "models served", "ms for 1000 rows"))
        for method in ("retrain", *methods):
            mine = some[some.method == method]
            mean = mine.groupby("lam")[["churn", "accuracy"]].mean()
            fine = mean[mean.accuracy >= cold.accuracy.mean() - 1e-12]
            reached, at = "none as accurate", ""
            if not fine.empty:
                lam = fine.churn.idxmin()
                reached, at = with_error(mine[mine.lam == lam].churn), f"{lam:g}"
            models = mine[mine.lam == (1.0 if method == "retrain" else 0.5)]
            cost = trainings.get(method, f"1 for each lam ({len(LAMS)})")
            say(line(method, reached, at, cost, int(models.models.iloc[0]), f"{models.ms.median():.1f}"))


# Budgets


def budgets(name, data, learner, estimator, trial, size, unseen):
    """Distillation, the dial and "auto" on the same rows with the same rows held out."""
    draw = Draw(data, estimator, trial, size, size, unseen)
    rows = []

    def note(strategies, budget, model):
        begin = time.perf_counter()
        after = model.predict(draw.X[draw.test])
        rows.append(
            {"learner": learner, "set": name, "trial": trial, "strategies": strategies, "budget": budget}
            | draw.measure(after)
            | {
                "held-out": model.selection_.churn,
                "trainings": model.selection_.trainings,
                "served": " + ".join(s.split("(")[0] for s in model.selection_.served),
                "models": models_served(model),
                "seconds": time.perf_counter() - begin,
            }
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dial, auto = (draw.fit(strategies=s, max_churn=FIT_FOR) for s in ("dial", "auto"))
        for budget in BUDGETS:
            note("distillation", budget, draw.fit(max_churn=budget))
            note("dial", budget, dial.dial(max_churn=budget))
            note("auto", budget, draw.fit(strategies="auto", max_churn=budget) if budget != FIT_FOR else auto)
            note("auto, dialled", budget, auto.dial(max_churn=budget))
        ends = {"base": draw.before}
        ends["retrain"] = draw.fit(strategies=[ColdStart()]).predict(draw.X[draw.test])  # the same rows are held out
    for strategies, after in ends.items():
        shared = {"learner": learner, "set": name, "trial": trial, "strategies": strategies, "budget": np.nan}
        rows.append(shared | draw.measure(after) | {"trainings": 1, "models": 1, "served": strategies})
    return rows


def models_served(model):
    """How many models answer; a blend names each of its own."""
    by_name = {row.name: row for row in model.frontier_ if row.strategy not in ("base", "mixture")}
    return sum(models_of(by_name[name]) if name in by_name else 1 for name in model.selection_.served)


def show_budgets(rows, say):
    ways = ["distillation", "dial", "auto", "auto, dialled"]
    rows = rows.merge(reference(rows, "base"), on=["learner", "set", "trial"])
    rows["gain"] = rows.accuracy - rows["base accuracy"]
    say("\n### Means over the sets\n")
    titles = (
        "churn",
        "trials above",
        "accuracy",
        "against distillation",
        "gain for 100 changes",
        "trainings",
        "models",
    )
    say(*heading("learner", "budget", "strategies", *titles))
    for learner, mine in rows.groupby("learner", sort=False):
        for budget in BUDGETS:
            for way in ways:
                some = mine[(mine.strategies == way) & (mine.budget == budget)]
                say(line(learner, percent(budget), way, *budget_cells(some, mine, budget)))
        for way in ("base", "retrain"):
            some = mine[mine.strategies == way]
            say(line(learner, "", way, *end_cells(some)))
    say("\n### What auto served, and auto beside both of its parts\n")
    say("Accuracy less that of the better of distillation and the dial (by its mean over the trials of a set).\n")
    say(*heading("learner", "budget", "the dial", "distillation", "plain retrain", "auto less the better part"))
    for learner, mine in rows.groupby("learner", sort=False):
        for budget in BUDGETS:
            at = mine[mine.budget == budget]
            auto = at[at.strategies == "auto"]
            kinds = auto.served.map(kind_served).value_counts(normalize=True)
            shares = [percent(kinds.get(k, 0.0), 0) for k in ("dial", "distillation", "retrain")]
            means = at.pivot_table(index="set", columns="strategies", values="accuracy")
            better = means[["distillation", "dial"]].idxmax(axis=1)
            best = at[at.strategies == at.set.map(better)]
            say(line(learner, percent(budget), *shares, difference(auto, best)))
    say("\n### Every set\n")
    others = ways[1:3]
    titles = [f"{way}: {what}" for way in ways[:3] for what in ("churn", "above")]
    less = [f"{way} less distillation" for way in others]
    say(*heading("learner", "set", "budget", *titles, "base", "retrain", "distillation", *less))
    for (learner, name), mine in rows.groupby(["learner", "set"], sort=False):
        ends = [with_error(mine[mine.strategies == way], "accuracy") for way in ("base", "retrain")]
        for budget in BUDGETS:
            at = {way: mine[(mine.strategies == way) & (mine.budget == budget)] for way in ways}
            churns = [f(at[way]) for way in ways[:3] for f in (lambda a: with_error(a, "churn"), share_above)]
            accuracy = [with_error(at["distillation"], "accuracy")]
            accuracy += [difference(at[way], at["distillation"]) for way in others]
            say(line(learner, name, percent(budget), *churns, *ends, *accuracy))


def kind_served(words):
    first = words.split(" + ")[0]
    return {"cold": "retrain", "distill": "distillation"}.get(first, "dial")


def budget_cells(some, mine, budget):
    distilled = mine[(mine.strategies == "distillation") & (mine.budget == budget)]
    return [
        with_error(some, "churn"),
        share_above(some),
        with_error(some, "accuracy"),
        "" if some.strategies.iloc[0] == "distillation" else difference(some, distilled),
        gain(some),
        f"{some.trainings.mean():.1f}",
        f"{some.models.mean():.1f}",
    ]


def share_above(some):
    return percent((some.churn > some.budget).mean(), 0)


def end_cells(some):
    return [with_error(some, "churn"), "", with_error(some, "accuracy"), "", gain(some), "", ""]


def gain(rows):
    """Points of accuracy above the base's for each point of churn: 100 if every change were a mistake mended."""
    return f"{100 * rows.gain.mean() / rows.churn.mean():.0f}" if rows.churn.mean() > 0 else ""


def reference(rows, way):
    only = rows[rows.strategies == way][["learner", "set", "trial", "accuracy"]]
    return only.rename(columns={"accuracy": f"{way} accuracy"})


def difference(some, other):
    both = some.merge(other, on=["set", "trial"], suffixes=("", " other"))
    return with_error(both.assign(d=both.accuracy - both["accuracy other"]), "d", sign=True)


# Certificates


def certificates(name, data, learner, estimator, trial, old, new, unseen):
    draw = Draw(data, estimator, trial, old, new, unseen)
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = draw.fit(strategies="dial", max_churn=0.01, confidence=CONFIDENCE)
        for budget in BUDGETS:
            dialled = model.dial(max_churn=budget)
            rows.append(
                {"learner": learner, "set": name, "trial": trial, "budget": budget}
                | draw.measure(dialled.predict(draw.X[draw.test]))
                | {
                    "certified": bool(dialled.certificate_.certified),
                    "base kept": dialled.selection_.churn == 0,
                    "rows": dialled.selection_.rows["certify"],
                    "base accuracy": np.mean(draw.before == draw.y[draw.test]),
                }
            )
    return rows


def show_certificates(rows, say):
    titles = ("certified", "of these above the budget", "base kept", "churn of certified", "accuracy above the base")
    say(*heading("learner", "set", "budget", "trials", *titles))
    for (learner, name, budget), some in rows.groupby(["learner", "set", "budget"], sort=False):
        sure = some[some.certified]
        above = f"{int((sure.churn > budget).sum())} of {len(sure)}"
        up = sure.accuracy - sure["base accuracy"]
        say(
            line(
                learner, name, percent(budget), len(some), percent(some.certified.mean(), 0), above,
                percent(sure["base kept"].mean(), 0), with_error(sure.churn), with_error(up, sign=True),
            )
        )  # fmt: skip


# Words


def percent(share, digits=None):
    return f"{100 * share:g}" if digits is None else f"{100 * share:.{digits}f}"


def with_error(values, column=None, sign=False):
    """Mean and standard error in percent; over the trials of each set, the sets counting alike."""
    if column is None:
        groups = [values.to_numpy(dtype=float)]
    else:
        groups = [g[column].to_numpy(dtype=float) for _, g in values.groupby("set", sort=False)]
    if not groups or min(map(len, groups)) == 0:
        return ""
    mean = np.mean([g.mean() for g in groups])
    text = f"{100 * mean:{'+' if sign else ''}.2f}"
    if min(map(len, groups)) < 2:
        return text
    error = np.sqrt(sum(g.var(ddof=1) / len(g) for g in groups)) / len(groups)
    return f"{text} ± {100 * error:.2f}"


def line(*cells):
    return "| " + " | ".join(str(c) for c in cells) + " |"


def heading(*cells):
    return line(*cells), "|" + " --- |" * len(cells)


def processor():
    try:
        models = [
            row.split(":")[1].strip() for row in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in row
        ]
        return models[0]
    except (OSError, IndexError):
        return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("LOWCHURN_DATA"), help="folder of Parquet files")
    parser.add_argument("--parts", nargs="+", default=["curves", "budgets", "certificates"])
    parser.add_argument("--trials", type=int, default=8, help="certificates take five times as many")
    parser.add_argument("--sets", nargs="+", help="other data sets than each part's own")
    parser.add_argument("--learners", nargs="+", default=list(learners()))
    parser.add_argument("--rows", type=int, default=1500, help="old rows, and as many new ones")
    parser.add_argument("--unseen", type=int, default=5000)
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time, each on one core")
    parser.add_argument("--out", type=Path, help="folder for the tables and the rows behind them")
    args = parser.parse_args()
    if not args.data:
        parser.error("give --data DIR or set LOWCHURN_DATA")
    sets = {name: (X, y) for name, X, y in from_folder(args.data, None)}
    for name in args.sets or ():
        if name not in sets:
            parser.error(f"{args.data} has no data set {name!r}; there are {', '.join(sets)}")
    known = learners()
    text = []

    def say(*lines):
        for one in lines:
            print(one, flush=True)
            text.append(one)

    def spread(work, jobs):
        begin = time.perf_counter()
        found = Parallel(n_jobs=args.jobs, verbose=0)(delayed(work)(*job) for job in jobs)
        rows = pd.DataFrame([row for some in found for row in some])
        say(f"{len(jobs)} jobs, {args.jobs} at a time, in {time.perf_counter() - begin:.0f} seconds.", "")
        if args.out:
            args.out.mkdir(parents=True, exist_ok=True)
            rows.to_csv(args.out / f"{work.__name__}.csv", index=False)
        return rows

    say(f"{os.cpu_count()} cores, {processor()}; shares in percent, ± a standard error over trials.")
    n, trials = args.rows, range(args.trials)
    if "curves" in args.parts:
        say("\n## Curves of LightGBM\n")
        jobs = [(s, sets[s], t, n, args.unseen) for s in args.sets or CURVE_SETS for t in trials]
        show_curves(spread(curve, jobs), say)
    if "budgets" in args.parts:
        say("\n## Budgets\n")
        jobs = [
            (s, sets[s], k, known[k], t, n, args.unseen)
            for k in args.learners
            for s in args.sets or BUDGET_SETS
            for t in trials
        ]
        show_budgets(spread(budgets, jobs), say)
    if "certificates" in args.parts:
        say("\n## Certificates\n")
        # More rows: 0.5 % cannot be certified on a few hundred. And many unseen ones, to know the truth.
        jobs = [
            (s, sets[s], k, known[k], t, n, 4 * n, 4 * args.unseen)
            for k in args.learners
            if k in CERTIFIED
            for s in args.sets or CURVE_SETS
            for t in range(5 * args.trials)
        ]
        show_certificates(spread(certificates, jobs), say)
    if args.out:
        (args.out / "tables.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
