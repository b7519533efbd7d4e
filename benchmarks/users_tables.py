"""The file of benchmarks/users.py, and its tables."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

BUDGETS = (0.01, 0.02, 0.05)
OVER = 1.25  # a run whose churn is above so many budgets has broken it
FEW = 4  # fewer draws of rows than that give no standard error


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
    both = [(end, what) for end in ("base", "plain") for what in ("accuracy", "churn")]
    return pd.DataFrame(
        [
            row | {f"{end} {what}": ends[row["case"], end][what] for end, what in both}
            for row in rows
            if all((row["case"], end) in ends for end in ("base", "plain"))
        ]
    )


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


def report(lines, learners, orders, methods, timed):
    """All tables of some lines, as Markdown; of some learners, or of all."""
    rows = table_of(lines)
    if rows.empty:
        return "\n".join(["## What failed", *show_failures(lines)])
    rows = rows[rows.learner.isin(learners or rows.learner.unique())]
    text = []
    for order in orders:
        mine = rows[rows.order == order]
        if not len(mine):
            continue
        every = [method for method in methods if method in set(mine.method)]
        short = [method for method in every if method not in ("distill", "dial")]
        text += ["", f"## {order.capitalize()} order"]
        text += ["", "### All methods", *show_methods(mine, every, order == "time"), *show_paired(mine, every[1:])]
        text += ["", "### The margin rules, all cases", *show_methods(mine, short, order == "time")]
        text += show_paired(mine, short[1:])
        text += ["", "### Every learner", *show_each(mine, "learner")]
        if order == "random":
            text += ["", "### Every set", *show_each(mine, "set")]
    text += ["", "## Time over one plain retrain", *show_times(rows, timed)]
    text += ["", "## What failed", *show_failures(lines)]
    return "\n".join(text).strip()
