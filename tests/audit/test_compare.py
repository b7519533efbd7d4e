"""Two evaluation runs: figures recomputed by pandas and scipy, what is compared and what is a gap, and the gate."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lowchurn.audit import Gate, audit, compare, read_run
from lowchurn.audit._compare import regression_gate
from lowchurn.audit._summary import junit, markdown, text
from lowchurn.report import html_page
from tests.audit.numbers import mean_interval
from tests.audit.runs import (
    lm_eval_choice,
    lm_eval_sample,
    promptfoo_result,
    promptfoo_results,
    random_runs,
    write_lines,
    write_samples,
)

KEYS = ["task", "id", "epoch"]


def joined(old, new):
    return old.merge(new, on=KEYS, suffixes=("_old", "_new"))


@pytest.mark.parametrize("seed", range(3))
def test_figures_are_those_of_pandas_and_scipy(seed):
    old, new = random_runs(seed)
    result = compare(old, new)
    both = joined(old, new)
    broken, fixed = both.outcome_old & ~both.outcome_new, ~both.outcome_old & both.outcome_new
    assert result.rows.paired == len(both)
    assert result.whole.n["broken"] == broken.sum()
    assert result.whole.n["fixed"] == fixed.sum()
    assert result.accuracy_old.value == pytest.approx(both.outcome_old.mean())
    assert result.accuracy_change.value == pytest.approx(both.outcome_new.mean() - both.outcome_old.mean())
    interval = stats.binomtest(int(broken.sum()), len(both)).proportion_ci(0.95, method="exact")
    assert (result.broken.low, result.broken.high) == pytest.approx((interval.low, interval.high))
    moved = int(broken.sum() + fixed.sum())
    assert result.mcnemar.p_value == pytest.approx(stats.binomtest(int(fixed.sum()), moved).pvalue)


def test_tasks_have_figures_of_their_own_and_false_discoveries_are_controlled_over_them():
    old, new = random_runs(7, tasks=5)
    result = compare(old, new)
    both = joined(old, new)
    p_values = []
    for (task, rows), found in zip(both.groupby("task"), result.slices, strict=True):
        assert (found.column, found.value, found.rows) == ("task", task, len(rows))
        broken = int((rows.outcome_old & ~rows.outcome_new).sum())
        fixed = int((~rows.outcome_old & rows.outcome_new).sum())
        assert found.broken.value == pytest.approx(broken / len(rows))
        assert found.accuracy_change.value == pytest.approx((fixed - broken) / len(rows))
        p_values.append(stats.binomtest(fixed, fixed + broken).pvalue)
    assert [s.p_value for s in result.slices] == pytest.approx(p_values)
    assert [s.q_value for s in result.slices] == pytest.approx(stats.false_discovery_control(p_values))


def test_a_comparison_is_an_audit_of_right_and_wrong():
    """The same rows, given as decisions with the label 'right', have the same figures."""
    old, new = random_runs(1, gaps=0.0)
    words = {True: "right", False: "wrong"}
    tables = [side.assign(decision=side.outcome.map(words)).drop(columns=["outcome", "answer"]) for side in (old, new)]
    tables[1]["y"] = "right"
    twin = audit(*tables, id=["task", "id"], prediction="decision", label="y", by="task")
    result = compare(old, new)
    assert result.to_dict()["estimates"] == twin.to_dict()["estimates"]
    assert result.to_dict()["slices"] == twin.to_dict()["slices"]


def test_repeats_of_an_item_are_one_group():
    """Obuchowski's test: the sum of the differences of items over the root of the sum of their squares."""
    old, new = random_runs(2, repeats=4, gaps=0.05)
    result = compare(old, new)
    both = joined(old, new)
    change = both.outcome_new.astype(int) - both.outcome_old.astype(int)
    items = change.groupby([both.task, both.id]).sum()
    z = items.sum() / math.sqrt((items**2).sum())
    assert result.mcnemar.p_value == pytest.approx(2 * stats.norm.sf(abs(z)))
    assert result.design.groups == len(items)
    mean = change.mean()
    residuals = (change - mean).groupby([both.task, both.id]).sum()
    units = len(items)
    robust = units / (units - 1) * (residuals**2).sum() / len(both) ** 2
    t, z95 = stats.t.isf(0.025, units - 1), stats.norm.isf(0.025)
    rates = [(change == sign).mean() for sign in (1, -1)]
    plain = sum(rates) - mean**2
    assert result.accuracy_change.effective == pytest.approx(plain / robust * (z95 / t) ** 2)


def test_what_is_missing_is_counted_and_not_taken_for_wrong():
    old = pd.DataFrame({"id": list("abcdef"), "outcome": [1, 1, 1, 0, 1, 0], "target": list("uvwxyz")})
    new = pd.DataFrame({"id": list("abcdgh"), "outcome": [1, None, 0, 0, 0, 0], "target": list("uvwXyz")})
    coverage = compare(old, new).coverage
    assert (coverage.old, coverage.new, coverage.compared) == (6, 6, 2)  # a and c
    assert (coverage.only_old, coverage.only_new, coverage.changed, coverage.open) == (2, 2, 1, 1)
    assert coverage.missing == ("b", "d", "e", "f")
    assert "Not compared, and not taken for wrong: 2 missing in the new run, 2 missing in the old run" in str(coverage)
    assert compare(old, new).accuracy_change.value == -0.5
    assert str(coverage) in text(compare(old, new))


def test_broken_items_come_with_both_answers_side_by_side(tmp_path):
    right = [i % 2 == 0 for i in range(12)]
    old = write_samples(tmp_path / "old", "t", [lm_eval_sample(i, f"old {i}", r) for i, r in enumerate(right)])
    new = write_samples(tmp_path / "new", "t", [lm_eval_sample(i, f"new {i}", not r) for i, r in enumerate(right)])
    result = compare(old, new, by="topic")
    broken = [flip for flip in result.flips if flip["kind"] == "broken"]
    assert [flip["id"] for flip in broken] == ["0", "2", "4", "6", "8", "10"]
    assert broken[1] == {
        "kind": "broken", "task": "t", "id": "2", "expected": "6", "old answer": "old 2", "new answer": "new 2",
        "topic": "even",
    }  # fmt: skip
    assert "| t/2 | 6 | old 2 | new 2 |" in markdown(result)
    assert "broken t/2: 'old 2' -> 'new 2'" in text(result)
    page = html_page(result)
    assert "<title>Evaluation runs</title>" in page
    assert page.index("old 2") < page.index("new 2")
    assert result.to_dict()["changed_items"][1] == broken[1]


def test_answers_are_data_on_every_output():
    nasty = "<script>alert(1)</script> | \x1b[31m\nsecond line"
    old = pd.DataFrame({"id": ["a|b"] * 1 + ["c"], "outcome": [1, 1], "answer": [nasty, "x"]})
    new = old.assign(outcome=[0, 1])
    result = compare(old, new)
    assert "<script>alert" not in html_page(result)
    assert "<script>" not in markdown(result)
    row = next(line for line in markdown(result).splitlines() if line.startswith("| a"))
    assert row.replace("\\|", "").count("|") == 4
    assert "\x1b" not in text(result)


def test_equal_outcomes_with_other_answers_are_not_called_identical():
    old = pd.DataFrame({"id": [1, 2, 3], "outcome": [1, 0, 0], "answer": ["a", "b", "c"]})
    result = compare(old, old.assign(answer=["a", "B", "C"]))
    assert text(result).startswith("Both runs are right and wrong on the same of all 3 items, though 2 answers differ.")


# Prompts, tasks, metrics


@pytest.fixture
def samples(tmp_path):
    def write(name, shots="", tasks=("t",), **more):
        for task in tasks:
            made = [lm_eval_sample(i, str(3 * i), i % 3 > 0, shots=shots, **more) for i in range(10)]
            write_samples(tmp_path / name, task, made)
        return tmp_path / name

    return write


def test_other_prompts_are_refused_unless_they_are_what_is_compared(samples):
    old, new = samples("old"), samples("new", shots="Question: 1 times 3?\nAnswer: 3\n\n")
    with pytest.raises(
        ValueError, match=r"10 of 10 items were asked with other prompts, such as 't/0'.*other_prompts=True"
    ):
        compare(old, new)
    result = compare(old, new, other_prompts=True)
    assert result.identical
    assert any("what changed may be the prompt" in note for note in result.notes)
    assert result.provenance.settings["other_prompts"] is True


def test_a_reworded_prompt_of_promptfoo_is_another_prompt(tmp_path):
    old = write_lines(tmp_path / "old.jsonl", promptfoo_results())
    new = write_lines(tmp_path / "new.jsonl", promptfoo_results(prompt="Add {{a}} to {{b}}"))
    with pytest.raises(ValueError, match="12 of 12 items were asked with other prompts"):
        compare(old, new)
    assert compare(old, new, other_prompts=True).rows.paired == 12


def test_a_test_that_expects_something_else_is_another_item(tmp_path):
    old, new = promptfoo_results(), promptfoo_results()
    new[0]["testCase"]["assert"] = [{"type": "contains", "value": "7"}]
    result = compare(write_lines(tmp_path / "old.jsonl", old), write_lines(tmp_path / "new.jsonl", new))
    assert (result.rows.paired, result.coverage.changed) == (11, 1)


def test_runs_without_a_common_task_or_item_are_refused(samples):
    old = samples("old", tasks=("t", "u"))
    with pytest.raises(ValueError, match="no task in common: the old one has 't', 'u', the new one 'v'"):
        compare(old, samples("new", tasks=("v",)))
    rows = pd.DataFrame({"id": [1, 2], "outcome": [1, 0]})
    with pytest.raises(ValueError, match="no item in common that both have an outcome for. 0 of 2 old and 2 new"):
        compare(rows, rows.assign(id=[3, 4]))


def test_a_task_that_one_run_lacks_is_a_gap(samples):
    result = compare(samples("old", tasks=("t", "u")), samples("new", tasks=("t",)))
    assert (result.rows.paired, result.coverage.only_old) == (10, 10)
    check = result.gate(never_break=["u"]).checks[0]
    assert (check.outcome, check.name, check.where) == ("INCONCLUSIVE", "never_break", "u")


def test_the_new_run_is_read_by_the_metric_and_filter_of_the_old_one(tmp_path):
    """A baseline that was blessed with another filter than the first decides what counts."""

    def write(name, right):
        first = [lm_eval_sample(i, "", False, "strict-match") for i in range(6)]
        second = [lm_eval_sample(i, "", right, "flexible-extract") for i in range(6)]
        return write_samples(tmp_path / name, "t", first + second).parent

    old, new = write("old", True), write("new", True)
    read_run(old, filter="flexible-extract").save(tmp_path / "baseline.parquet")
    result = compare(tmp_path / "baseline.parquet", new)
    assert (result.accuracy_old.value, result.accuracy_new.value) == (1.0, 1.0)
    with pytest.raises(ValueError, match="the filter of 't' must be the same in both runs"):
        compare(read_run(old), read_run(new, filter="flexible-extract"))


def test_a_baseline_has_its_metric_whatever_kind_is_named(tmp_path):
    path = write_samples(tmp_path, "t", [lm_eval_choice(i, (-1, -2, -3), (True, False)) for i in range(4)])
    read_run(path, metric="acc_norm").save(tmp_path / "baseline.parquet")
    assert compare(tmp_path / "baseline.parquet", path, kind="lm-eval").accuracy_new.value == 0
    results = [promptfoo_result(i, {"a": i}, i > 2, namedScores={"tone": float(i > 4)}) for i in range(9)]
    path = write_lines(tmp_path / "out.jsonl", results)
    read_run(path, metric="tone").save(tmp_path / "tone.parquet")
    assert compare(tmp_path / "tone.parquet", path).accuracy_new.value == pytest.approx(4 / 9)
    table = pd.DataFrame({"id": [f'{{"a": {i}}}' for i in range(9)], "passed": [i > 4 for i in range(9)]})
    assert compare(tmp_path / "tone.parquet", table).identical


def test_metrics_of_tasks_have_to_agree(tmp_path):
    choices = [lm_eval_choice(i, (-1, -2, -3), (True, False)) for i in range(4)]
    path = write_samples(tmp_path, "t", choices)
    assert compare(path, path, metric="acc_norm").accuracy_old.value == 0
    with pytest.raises(ValueError, match="the metric of 't' must be the same in both runs, got 'acc' .*'acc_norm'"):
        compare(read_run(path), read_run(path, metric="acc_norm"))


def graded_runs(rows=50, seed=0, **columns):
    rng = np.random.default_rng(seed)
    old = pd.DataFrame({"id": range(rows), "score": rng.random(rows), **columns})
    return old, old.assign(score=(old.score + rng.normal(-0.05, 0.2, rows)).clip(0, 1), answer="new")


def test_numbers_are_right_from_a_threshold_on():
    old, new = graded_runs()
    result = compare(old, new, threshold=0.7)
    assert result.accuracy_old.value == (old.score >= 0.7).mean()
    assert result.whole.n["broken"] == ((old.score >= 0.7) & (new.score < 0.7)).sum()


def test_numbers_are_compared_as_numbers_of_which_more_is_better():
    old, new = graded_runs(task=["easy", "hard"] * 25, answer="old")
    result = compare(old, new.iloc[:-1], tolerance=0.1)
    change = new.score.iloc[:-1] - old.score.iloc[:-1]
    assert result.compared.gain
    assert (result.coverage.only_old, result.moved.n) == (1, 49)
    assert result.worse.value == (change < -0.1).mean()
    assert result.better.value == (change > 0.1).mean()
    test = stats.ttest_rel(new.score.iloc[:-1], old.score.iloc[:-1])
    assert result.loss_change.value == pytest.approx(change.mean())
    assert (result.loss_change.low, result.loss_change.high) == pytest.approx(tuple(test.confidence_interval()))
    assert [s.name for s in result.slices] == ["task=easy", "task=hard"]
    sizes = [abs(flip["move"]) for flip in result.flips]
    assert sizes == sorted(sizes, reverse=True)
    assert result.flips[0] | {"old": 0, "new": 0, "move": 0} == {
        "kind": "worse" if result.flips[0]["move"] < 0 else "better",
        "task": result.flips[0]["task"], "id": result.flips[0]["id"],
        "old": 0, "new": 0, "move": 0, "old answer": "old", "new answer": "new",
    }  # fmt: skip
    for made in (text(result), markdown(result)):
        assert "mean outcome" in made
        assert "task=hard" in made
        assert "worse" in made


def test_a_run_of_right_and_wrong_beside_one_of_numbers_is_numbers():
    old = pd.DataFrame({"id": range(30), "score": [0, 1, 1] * 10})
    new = old.assign(score=[0.5, 1, 1] * 10)
    result = compare(old, new)
    assert (result.better.value, result.worse.value, result.kind) == (pytest.approx(1 / 3), 0, "numbers")
    assert compare(old, old).kind == "audit"
    assert compare(old, old, tolerance=0.1).kind == "numbers"  # a pipeline that asks for numbers has them always
    with pytest.raises(ValueError, match="tolerance= is about numbers, and threshold= makes right and wrong of them"):
        compare(old, new, tolerance=0.1, threshold=0.5)
    with pytest.raises(ValueError, match="tolerance must be in"):
        compare(old, new, tolerance=-1)


def test_by_default_a_shown_fall_of_the_mean_fails():
    old, new = graded_runs(200)
    assert compare(old, new).loss_change.high < 0
    for before, after, outcome in ((old, new, "FAIL"), (new, old, "PASS"), (old, old, "INCONCLUSIVE")):
        result = compare(before, after)
        verdict = result.gate(regression_gate(result, {}))
        assert (verdict.outcome, verdict.exit_code) == (outcome, 1 if outcome == "FAIL" else 0)
    fallen = next(flip["id"] for flip in compare(old, new, tolerance=0.2).flips if flip["kind"] == "worse")
    assert compare(old, new, tolerance=0.2).gate(never_break=[fallen]).outcome == "FAIL"
    with pytest.raises(ValueError, match="max_broken is no limit of numbers. Use max_worse"):
        compare(old, new).gate(max_broken=0.1)


def test_repeats_of_a_graded_item_are_one_group():
    rng = np.random.default_rng(0)
    items = np.repeat(np.arange(20), 5)
    old = pd.DataFrame({"id": items, "epoch": [*range(1, 6)] * 20, "score": rng.random(100)})
    new = old.assign(score=(old.score + rng.normal(0, 0.2, 20)[items]).clip(0, 1))
    result = compare(old, new)
    assert result.design.groups == 20
    mean, low, high = mean_interval(new.score - old.score, np.ones(100), items)
    assert (result.loss_change.value, result.loss_change.low, result.loss_change.high) == pytest.approx(
        (mean, low, high)
    )


def test_graded_metrics_of_lm_eval_promptfoo_and_inspect(tmp_path, monkeypatch):
    scores = [0.25, 0.5, 0.75, 1.0] * 5
    samples = [lm_eval_sample(i, f"answer {i}", score, metrics=("rouge",)) for i, score in enumerate(scores)]
    path = write_samples(tmp_path, "summaries", samples)
    result = compare(path, path)
    assert (result.kind, result.loss_old.value) == ("numbers", np.mean(scores))
    read_run(path).save(tmp_path / "baseline.parquet")
    assert compare(tmp_path / "baseline.parquet", path).identical
    runs = [
        write_lines(
            tmp_path / f"{name}.jsonl",
            [promptfoo_result(i, {"a": i}, True, namedScores={"tone": score - fall}) for i, score in enumerate(scores)],
        )
        for name, fall in (("before", 0.0), ("after", 0.2))
    ]
    result = compare(*runs, metric="tone", tolerance=0.1)
    assert (result.kind, result.worse.value, result.loss_change.value) == ("numbers", 1.0, pytest.approx(-0.2))
    letters = pd.DataFrame({"id": range(30), "score": ["C", "P", "I"] * 10})  # P of Inspect is half right
    assert compare(letters, letters).loss_old.value == 0.5


# The gate


def runs_with(broken, fixed, same=40):
    n = broken + fixed + same
    old = [1] * broken + [0] * fixed + [1] * same
    new = [0] * broken + [1] * fixed + [1] * same
    return [pd.DataFrame({"id": range(n), "outcome": side}) for side in (old, new)]


@pytest.mark.parametrize(
    ("broken", "fixed", "outcome"), [(12, 1, "FAIL"), (1, 12, "PASS"), (3, 2, "INCONCLUSIVE"), (0, 0, "INCONCLUSIVE")]
)
def test_by_default_only_a_shown_regression_fails(broken, fixed, outcome):
    result = compare(*runs_with(broken, fixed))
    verdict = result.gate(regression_gate(result, {}))
    assert verdict.outcome == outcome
    assert verdict.exit_code == (1 if outcome == "FAIL" else 0)
    for policy, code in (("fail", 3), ("warn", 0), ("pass", 0)):
        strict = result.gate(regression_gate(result, {"inconclusive": policy}))
        assert strict.exit_code == {"FAIL": 1, "PASS": 0, "INCONCLUSIVE": code}[outcome]


def test_an_open_verdict_names_the_items_that_would_settle_it():
    """At these rates, twice as many items of each kind as the verdict asks for are enough, and half are not."""
    old, new = runs_with(6, 2)
    result = compare(old, new)
    check = result.gate(not_worse_than=0).checks[0]
    assert check.outcome == "INCONCLUSIVE"
    needed = (len(old) + check.more_rows) / len(old)

    def repeated(times):
        sides = [
            pd.concat([side] * times, ignore_index=True).assign(id=range(times * len(side))) for side in (old, new)
        ]
        return compare(*sides).gate(not_worse_than=0).outcome

    assert repeated(math.ceil(needed)) == "FAIL"
    assert repeated(math.ceil(needed) - 1) == "INCONCLUSIVE"


def test_by_default_each_task_is_judged_too():
    old, new = random_runs(0, tasks=2, gaps=0.0)
    new["outcome"] = np.where(
        new.task == "task 1", False, old.set_index(KEYS).loc[list(map(tuple, new[KEYS].values))].outcome
    )
    verdict = (result := compare(old, new)).gate(regression_gate(result, {}))
    assert {check.where: check.outcome for check in verdict.checks}["task=task 1"] == "FAIL"
    assert regression_gate(result, {"max_broken": 0.5}) == Gate(max_broken=0.5, inconclusive="pass")


def test_one_broken_item_that_must_not_break_fails():
    old, new = random_runs(5, tasks=2, gaps=0.0)
    old["lang"] = new["lang"] = np.where(old.id.str.endswith("7"), "de", "en")
    new["lang"] = np.where(new.id.str.endswith("7"), "de", "en")
    result = compare(old, new, by="lang")
    both = joined(old, new)
    both["broken"] = both.outcome_old & ~both.outcome_new
    broken, kept = (both[both.broken == wanted].iloc[0] for wanted in (True, False))
    names = [f"{broken.task}/{broken.id}", f"{kept.task}/{kept.id}", "task 1", "lang=de", "task=task 0"]
    checks = result.gate(never_break=names).checks
    wanted = {
        names[0]: 1,
        names[1]: 0,
        "task 1": both[both.task == "task 1"].broken.sum(),
        "lang=de": both[both.id.str.endswith("7")].broken.sum(),
        "task=task 0": both[both.task == "task 0"].broken.sum(),
    }
    assert {check.where: check.estimate.value for check in checks} == wanted
    assert [check.outcome for check in checks] == ["FAIL" if wanted[name] else "PASS" for name in names]
    assert result.gate(max_churn=1, never_break=names[:1], inconclusive="pass").exit_code == 1
    assert "never_break" in junit(result, result.gate(never_break=names))
    assert "1 of 1 rows broken" in markdown(result, result.gate(never_break=names))


def test_repeats_that_must_not_break_are_named_with_their_item():
    old, new = random_runs(3, tasks=1, repeats=3, gaps=0.0)
    result = compare(old, new)
    both = joined(old, new)
    both["broken"] = both.outcome_old & ~both.outcome_new
    item, times = both.groupby("id").broken.sum().sort_values().index[-1], int(both.groupby("id").broken.sum().max())
    checks = result.gate(never_break=[f"task 0/{item}", *(f"task 0/{item}/{e}" for e in (1, 2, 3))]).checks
    assert (checks[0].estimate.value, checks[0].estimate.n) == (times, 3)
    assert sum(check.estimate.value for check in checks[1:]) == times


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["task 0/item x"], "unknown slice or id to never break 'task 0/item x'. .*'task=task 0'"),
        ("task 0", "never_break must be a list"),
        ([7], "never_break must be a list"),
    ],
)
def test_names_that_are_nowhere_are_refused(names, words):
    with pytest.raises(ValueError, match=words):
        compare(*random_runs(0)).gate(never_break=names)


def test_rows_of_any_audit_may_have_to_stay_right(tables):
    """The same limit on a table of predictions: a slice, or an id of any type."""
    old, new = tables
    result = audit(old, new, label="y", by="country")
    both = old.merge(new, on="id", suffixes=("", "_new"))
    broken = (both.prediction == both.y) & (both.prediction_new != both.y)
    name = str(both[broken].id.iloc[0])
    first, second = result.gate(never_break=[name, "country=de"]).checks
    assert (first.outcome, first.estimate.value, first.estimate.n) == ("FAIL", 1, 1)
    assert second.estimate.value == (broken & (both.country == "de")).sum()
    unlabelled = audit(old.drop(columns="y"), new)
    assert unlabelled.gate(never_break=[name]).outcome == "INCONCLUSIVE"
