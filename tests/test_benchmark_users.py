"""The benchmark of users' learners: its own rule by hand, its file and its tables."""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

PATH = Path(__file__).parent.parent / "benchmarks" / "users.py"
sys.path.append(str(PATH.parent))  # where its tables are
spec = importlib.util.spec_from_file_location("benchmark_users", PATH)
users = importlib.util.module_from_spec(spec)
spec.loader.exec_module(users)
users_tables = sys.modules["users_tables"]


def rows(n=60, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(classes), n).round(1)  # ties
    return p, rng.integers(0, classes, n), rng.integers(0, classes, n)


def test_parts_are_30_30_10_and_30_percent():
    assert [(part.start, part.stop) for part in users.cuts(200)] == [(0, 60), (60, 120), (120, 140), (140, 200)]


def test_time_order_keeps_the_order_of_a_sample_and_random_order_does_not():
    timed, mixed = users.draw(100, "time", 3, 40), users.draw(100, "random", 3, 40)
    assert (np.diff(timed) > 0).all()
    assert sorted(mixed) == list(timed) != list(mixed)


@pytest.mark.parametrize("budget", [0.0, 0.1, 0.25, 0.9])
@pytest.mark.parametrize("seed", range(5))
def test_margin_is_the_least_that_keeps_the_budget(budget, seed):
    p, before, _ = rows(seed=seed)
    margin = users.margin_for(budget, p, before)
    assert np.mean(users.decide(p, before, margin) != before) <= budget
    gains = users.evidence(p, before)[0]
    for smaller in [g - 1e-9 for g in gains if 0 < g <= margin]:
        assert np.mean(users.decide(p, before, smaller) != before) > budget


def test_margin_of_nothing_follows_the_retrain():
    p, before, _ = rows()
    after = users.decide(p, before, 0.0)
    assert (p[np.arange(60), after] == p.max(axis=1)).all()
    kept = p[np.arange(60), before] == p.max(axis=1)
    assert (after[kept] == before[kept]).all()


@pytest.mark.parametrize("seed", range(5))
def test_accuracy_at_so_many_changes(seed):
    p, before, y = rows(seed=seed)
    for margin in (0.0, 0.15, 0.35, 1.0):
        after = users.decide(p, before, margin)
        found = users.accuracy_at(int(np.sum(after != before)), p, before, y)
        assert found == pytest.approx(np.mean(after == y))
    everything = users.decide(p, before, 0.0)
    assert users.accuracy_at(60, p, before, y) == pytest.approx(np.mean(everything == y))


def test_ties_at_the_margin_change_by_lot():
    p, before, y = np.tile([0.2, 0.8], (4, 1)), np.zeros(4, dtype=int), np.array([1, 1, 1, 0])
    assert [users.accuracy_at(k, p, before, y) for k in range(5)] == pytest.approx([0.25, 0.375, 0.5, 0.625, 0.75])


def test_survival_is_a_ratio_of_sums():
    some = pd.DataFrame({"accuracy": [0.72, 0.81], "base accuracy": [0.7, 0.8], "plain accuracy": [0.74, 0.79]})
    some["draw"] = ["a", "b"]
    share, error = users_tables.survival(some)
    assert share == pytest.approx(0.03 / 0.03)
    # Without one case after the other: 0.01 / -0.01 and 0.02 / 0.04.
    assert error == pytest.approx(np.sqrt(0.5 * np.sum((np.array([-1, 0.5]) + 0.25) ** 2)))


def test_learners_on_the_same_rows_count_as_one_cluster():
    values = np.array([1.0, 2.0, 4.0, 9.0])
    alone = users_tables.mean_error(values, list("abcd"))
    assert alone == pytest.approx((4.0, values.std(ddof=1) / 2))
    twice = users_tables.mean_error(np.repeat(values, 2), list("aabbccdd"))
    assert twice == pytest.approx(alone)
    assert np.isnan(users_tables.mean_error(values, list("aabc"))[1])


def line(seed, method="sticky", **more):
    return {"learner": "tree", "set": "digits", "order": "random", "seed": seed, "method": method} | more


def test_a_file_goes_on_where_it_was_stopped(tmp_path):
    path = tmp_path / "users.jsonl"
    words = [json.dumps(one) for one in (line(0, results=[]), line(1, failed="E: a"), line(2, results=[]))]
    path.write_text("\n".join(words)[:-5])  # killed while the last line was written
    done = users_tables.lines_of(path)
    assert [key[3] for key in done] == [0, 1]
    args = argparse.Namespace(
        seeds=(0, 3), sets=["digits"], learners=["tree"], orders=["random", "time"], methods=["sticky"],
        data=None, rows=9, retry=False,
    )  # fmt: skip
    assert [job[3] for job in users.left_to_do(args, done)] == [2]
    args.retry = True
    assert [job[3] for job in users.left_to_do(args, done)] == [1, 2]


def test_only_complete_cases_are_compared():
    found = pd.DataFrame(
        [{"case": c, "method": m, "budget": b} for c in "ab" for m in ("hand", "sticky") for b in users_tables.BUDGETS]
    )
    assert set(users_tables.common(found.drop(index=8), ["hand", "sticky"]).case) == {"a"}


def test_a_small_run_and_its_tables(tmp_path, capsys):
    path = tmp_path / "users.jsonl"
    words = [
        "run",
        "--sets",
        "digits",
        "--learners",
        "naive bayes",
        "--rows",
        "400",
        "--jobs",
        "1",
        "--seeds",
        "0",
        "2",
    ]
    users.main([*words, "--out", str(path)])
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert len(lines) == 2 * len(users.METHODS)
    assert not [one for one in lines if "failed" in one]
    users.main([*words, "--out", str(path)])
    assert "0 of 0 cases" in capsys.readouterr().out
    users.main(["tables", str(path)])
    text = capsys.readouterr().out
    assert "2 cases: 1 learners, 1 sets" in text
    assert "**sticky** beside **hand**" in text
    assert "No run failed" in text
    # On the same rows with the same margin lowchurn's rule is the rule by hand.
    for one in lines:
        if one["method"] == "sticky, traffic":
            for result in one["results"]:
                assert result["accuracy"] == pytest.approx(result["at_same"], abs=0.02)


def test_a_case_that_fails_is_a_line_with_its_reason():
    (failed,) = users.run_case("tree", "no such set", "random", 0, ["sticky"], ".", 100)
    assert failed["failed"].startswith("FileNotFoundError")
    assert users_tables.key_of(failed) == ("tree", "no such set", "random", 0, "sticky")
