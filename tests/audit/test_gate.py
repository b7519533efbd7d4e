"""Verdicts are judged on the bound of an interval, and say what is missing."""

import math
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import lowchurn
from lowchurn._display import share_text
from lowchurn._estimates import proportion
from lowchurn.audit import Gate, Limits
from lowchurn.audit import _statistics as stats
from lowchurn.audit._review import review_change
from lowchurn.audit._settings import read_config
from lowchurn.audit._summary import junit, markdown


def audit_of(n=1000, changed=0, broken=0, fixed=0):
    """Two classes; the first rows are broken, the next fixed, the next changed without a label."""
    y = np.zeros(n)
    old, new = np.zeros(n, int), np.zeros(n, int)
    new[:broken] = 1
    old[broken : broken + fixed] = 1
    new[broken + fixed : broken + fixed + changed] = 1
    y[broken + fixed : broken + fixed + changed] = np.nan
    before = pd.DataFrame({"id": np.arange(n), "prediction": old, "y": y})
    return lowchurn.audit.audit(before, pd.DataFrame({"id": np.arange(n), "prediction": new}), label="y")


@pytest.mark.parametrize(
    ("limit", "outcome", "code"), [(0.06, "PASS", 0), (0.03, "INCONCLUSIVE", 3), (0.005, "FAIL", 1)]
)
@pytest.mark.parametrize("name", ["max_churn", "max_broken"])
def test_shares_are_judged_on_the_bound(name, limit, outcome, code):
    verdict = audit_of(n=1000, broken=27).gate(**{name: limit})
    assert (verdict.outcome, verdict.exit_code) == (outcome, code)
    assert bool(verdict) == (outcome == "PASS")
    assert verdict.checks[0].words.count(f"limit {100 * limit:.2f} %") <= 1  # said once


@pytest.mark.parametrize(("margin", "outcome"), [(0.05, "PASS"), (0.025, "INCONCLUSIVE"), (0.004, "FAIL")])
def test_accuracy_is_judged_on_the_bound(margin, outcome):
    assert audit_of(n=1000, broken=30, fixed=10).gate(not_worse_than=margin).outcome == outcome


@pytest.mark.parametrize("limits", [{"max_churn": 0.035}, {"not_worse_than": 0.03}, {"max_broken": 0.025}])
def test_the_rows_that_are_asked_for_would_settle_it(limits):
    small = audit_of(n=1000, broken=30, fixed=0).gate(**limits)
    assert small.outcome == "INCONCLUSIVE" or limits == {"not_worse_than": 0.03}
    (check,) = small.checks
    if math.isinf(check.more_rows):  # the rate lies on the limit
        assert limits == {"not_worse_than": 0.03}
        return
    factor = (check.estimate.n + check.more_rows) / 1000
    large = audit_of(n=round(1050 * factor), broken=round(31.5 * factor))
    assert large.gate(**limits).outcome in {"PASS", "FAIL"}


def test_no_labels_are_no_evidence():
    verdict = audit_of(n=100, changed=100).gate(max_broken=0.5)
    assert verdict.outcome == "INCONCLUSIVE"
    assert "no labelled rows" in verdict.checks[0].words


def test_min_rows_says_how_many_are_missing():
    verdict = audit_of(n=100).gate(min_rows=250)
    assert verdict.outcome == "INCONCLUSIVE"
    assert verdict.checks[0].more_rows == 150
    assert audit_of(n=100).gate(min_rows=100).outcome == "PASS"


def test_one_fail_outweighs_an_inconclusive_one():
    verdict = audit_of(n=1000, broken=30).gate(max_churn=0.001, max_broken=0.031)
    assert verdict.outcome == "FAIL"
    assert [c.outcome for c in verdict.checks] == ["FAIL", "INCONCLUSIVE"]


def test_slices_the_special_rule_has_the_word_and_small_ones_are_not_judged():
    by = np.array(["a"] * 400 + ["b"] * 590 + ["c"] * 10)
    audit = _sliced(by)
    gate = Gate(slices={"slice": Limits(max_churn=0.1, min_rows=50), "slice=a": {"max_churn": 0.9}})
    verdict = audit.gate(gate)
    assert {c.where: c.outcome for c in verdict.checks} == {"slice=b": "PASS", "slice=a": "PASS"}
    assert verdict.unjudged == ("slice=c (10 rows)",)
    assert audit.gate(slices={"*": {"max_churn": 0.1}}).outcome == "FAIL"
    with pytest.raises(ValueError, match="slice=a"):
        audit.gate(slices={"slice=z": {"max_churn": 0.1}})


def _sliced(by):
    before = pd.DataFrame({"id": np.arange(1000), "prediction": 0, "slice": by})
    after = pd.DataFrame({"id": np.arange(1000), "prediction": (np.arange(1000) < 200).astype(int)})
    return lowchurn.audit.audit(before, after, by="slice")


def test_a_slice_that_only_fails_at_the_plain_level_asks_for_rows_enough_to_fail():
    by = np.repeat([f"s{i}" for i in range(40)], 250)
    flip = np.zeros(10_000, int)
    flip[:38] = 1  # 15.2 % of the first slice, the plain interval starts above 10 %
    before = pd.DataFrame({"id": np.arange(10_000), "prediction": 0, "slice": by})
    audit = lowchurn.audit.audit(before, before[["id"]].assign(prediction=flip), by="slice")
    first = audit.gate(slices={"*": {"max_churn": 0.1}}).checks[0]
    assert first.estimate.low > 0.1
    assert first.outcome == "INCONCLUSIVE"
    assert "worst of many slices" in first.words
    strict = 1 - 0.05 / 40
    assert proportion(0.152, 250, strict).low <= 0.1 < proportion(0.152, 250 + int(first.more_rows), strict).low


def test_many_slices_do_not_fail_by_chance():
    """Sixty slices exactly on the limit: a plain 95 % bound would fail most releases, the widened one few."""
    failed = 0
    rng = np.random.default_rng(0)
    by = np.repeat([f"s{i}" for i in range(60)], 300)
    for _ in range(12):
        before = pd.DataFrame({"id": np.arange(len(by)), "prediction": 0, "slice": by})
        after = before[["id"]].assign(prediction=(rng.random(len(by)) < 0.1).astype(int))
        failed += (
            lowchurn.audit.audit(before, after, by="slice").gate(slices={"*": {"max_churn": 0.1}}).outcome == "FAIL"
        )
    assert failed <= 3


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({}, "at least one limit"),
        ({"max_churn": 1.5}, r"max_churn must be in \[0, 1\]"),
        ({"max_churn": "3%"}, "max_churn must be in"),
        ({"min_rows": 2.5}, "min_rows must be a whole number"),
        ({"max_chrun": 0.1}, "Did you mean 'max_churn'"),
        ({"slices": {"slice": 3}}, "must be a table"),
        ({"slices": {"slice": {"churn": 3}}}, "unknown limit 'churn'"),
    ],
)
def test_bad_limits_are_refused(limits, words):
    with pytest.raises(ValueError, match=words):
        audit_of(n=10).gate(**limits)


def test_a_file_of_limits(tmp_path):
    path = tmp_path / "lowchurn.toml"
    path.write_text('[audit]\nid = "key"\n[gate]\nmax_churn = 0.03\n[gate.slices.country]\nmax_churn = 0.1\n')
    read = read_config(path)
    assert read["audit"] == {"id": "key"}
    assert Gate.from_dict(read["gate"]).given == {"max_churn": 0.03, "slices": {"country": {"max_churn": 0.1}}}
    wrong = {"max_churn =": "not valid TOML", "[gates]\n": "Did you mean 'gate'", "gate = 3": "must be a table"}
    for text, words in wrong.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=words):
            read_config(path)


def test_junit_and_markdown_hold_any_slice_name():
    by = np.array(["<b>|*", "bell \x07", "\ud7ff&", "plain"] * 250)
    audit = _sliced(by)
    verdict = audit.gate(max_churn=0.5, slices={"*": {"max_churn": 0.01, "min_rows": 1}})
    suite = ElementTree.fromstring(junit(audit, verdict))
    assert suite.get("failures") == "4"
    assert len(suite.findall("testcase/failure")) == 4
    text = markdown(audit, verdict)
    assert text.startswith("## Model audit: FAIL")
    assert "&lt;b&gt;\\|\\*" in text
    table = [line for line in text.splitlines() if "slice=" in line]
    assert all(line.replace("\\|", "").count("|") in (5, 6) for line in table)


def test_non_inferiority_is_offered_as_a_test():
    audit = audit_of(n=2000, broken=20, fixed=20)
    assert audit.not_worse_than(0.02).p_value < 0.001
    assert audit.not_worse_than(0.001).p_value > 0.1
    assert audit.mcnemar.p_value == stats.mcnemar(20, 20).p_value


def reviewed(n, broken, fixed, lateral=0, labels=None):
    """An audit without labels, and the review of the first answers to its shuffled disagreements."""
    changed = broken + fixed + lateral
    old = pd.DataFrame({"id": np.arange(n), "prediction": "a"})
    new = old.assign(prediction=np.where(np.arange(n) < changed, "b", "a"))
    truth = np.array(["a"] * broken + ["b"] * fixed + ["c"] * lateral + ["a"] * (n - changed))
    audit = lowchurn.audit.audit(old, new, classes=["a", "b", "c"])
    table = audit.disputed()[:labels]
    return audit, audit.with_labels(table.assign(label=truth[table.id])), (old.assign(y=truth), new)


@pytest.mark.parametrize("limits", [{"not_worse_than": 0.02}, {"max_broken": 0.03}, {"max_broken": 0.001}])
def test_with_all_disagreements_labelled_the_gate_is_that_of_a_labelled_table(limits):
    audit, review, (old, new) = reviewed(1000, broken=12, fixed=9, lateral=4)
    assert audit.gate(**limits).outcome == "INCONCLUSIVE"
    (known,) = lowchurn.audit.audit(old, new, label="y").gate(**limits).checks
    (check,) = audit.gate(review=review, **limits).checks
    assert check.outcome == known.outcome != "INCONCLUSIVE"
    for end in ("value", "low", "high"):
        assert getattr(check.estimate, end) == pytest.approx(getattr(known.estimate, end))
    assert "from the review of 25 of 25 disagreements" in check.words


@pytest.mark.parametrize(("margin", "outcome"), [(0.02, "PASS"), (0.0075, "INCONCLUSIVE"), (0.0002, "FAIL")])
def test_the_review_is_judged_on_its_bound(margin, outcome):
    audit, review, _ = reviewed(4000, broken=65, fixed=35, labels=60)
    (check,) = audit.gate(not_worse_than=margin, review=review).checks
    assert check.outcome == outcome
    assert check.estimate == review.accuracy_change
    assert "points" in check.words


def test_the_labels_that_are_asked_for_would_settle_it():
    audit, review, _ = reviewed(20_000, broken=300, fixed=300, labels=30)
    (check,) = audit.gate(not_worse_than=0.012, review=review).checks
    assert check.outcome == "INCONCLUSIVE"
    assert "more labelled disagreements would settle it" in check.words
    labels = int(30 + check.more_labels)
    assert 30 < labels < 600
    # At the same rates: as many of each kind, in proportion.
    fixed = review.fixed.value
    more = np.repeat([1.0, -1.0], [round(labels * fixed), labels - round(labels * fixed)])
    assert review_change(more, 600, 20_000).accuracy_change.low == pytest.approx(-0.012, abs=1e-3)
    verdict = audit.gate(Gate(not_worse_than=0.012), review=review)
    assert f"about {check.more_labels:,.0f} more labels needed" in markdown(audit, verdict)


def test_where_all_labels_are_not_enough_rows_are_asked_for():
    audit, review, _ = reviewed(500, broken=20, fixed=20)
    (check,) = audit.gate(not_worse_than=0.01, review=review).checks
    assert check.outcome == "INCONCLUSIVE"
    assert "more rows with labels for all disagreements" in check.words
    assert math.isfinite(check.more_rows)


def test_a_review_without_answers_and_slices_are_no_evidence():
    old = pd.DataFrame({"id": range(100), "prediction": 0, "s": "x"})
    audit = lowchurn.audit.audit(old, old.assign(prediction=1), by="s")
    review = audit.with_labels(audit.disputed())
    (check,) = audit.gate(not_worse_than=0.01, review=review).checks
    assert "no disagreement has an answer yet" in check.words
    answered = audit.with_labels(audit.disputed().assign(label=1))
    verdict = audit.gate(not_worse_than=0.01, slices={"s": {"not_worse_than": 0.01}}, review=answered)
    assert [c.outcome for c in verdict.checks] == ["PASS", "INCONCLUSIVE"]
    assert "answers to disagreements are judged over all rows only" in verdict.checks[1].words


def test_labels_of_every_row_are_better_than_a_review():
    audit = audit_of(n=1000, broken=30, fixed=10)
    wrong = review_change(np.ones(40), 40, 1000)
    assert audit.gate(not_worse_than=0.004, review=wrong).outcome == "FAIL"


@pytest.mark.parametrize(("policy", "code"), [("fail", 3), ("warn", 0), ("pass", 0)])
def test_a_policy_decides_what_inconclusive_means(policy, code):
    audit = audit_of(n=1000, broken=27)
    verdict = audit.gate(max_churn=0.03, max_broken=0.5, inconclusive=policy)
    assert (verdict.outcome, verdict.exit_code, verdict.passed) == ("INCONCLUSIVE", code, False)
    assert audit.gate(max_churn=0.001, inconclusive=policy).exit_code == 1
    suite = ElementTree.fromstring(junit(audit, verdict))
    kinds = {"fail": "error", "warn": "skipped", "pass": "system-out"}
    assert [child.tag for case in suite for child in case] == [kinds[policy]]
    assert suite.get("errors") == ("1" if policy == "fail" else "0")
    assert suite.get("skipped") == ("1" if policy == "warn" else "0")
    words = suite.find(f"testcase/{kinds[policy]}")
    assert "straddles the limit" in (words.get("message") or words.text)


def test_policies_are_checked_and_are_no_limit():
    with pytest.raises(ValueError, match="inconclusive must be one of 'fail', 'warn', 'pass', got 'ignore'"):
        Gate(max_churn=0.1, inconclusive="ignore")
    with pytest.raises(ValueError, match="at least one limit"):
        audit_of(n=10).gate(inconclusive="warn")
    assert Gate(max_churn=0.1, inconclusive="warn").given == {"max_churn": 0.1, "inconclusive": "warn"}


def test_differences_are_in_points_and_shares_in_percent():
    verdict = audit_of(n=1000, broken=30, fixed=10).gate(not_worse_than=0.05, max_broken=0.1)
    words = [check.words for check in verdict.checks]
    assert "broken decisions 3.00 % (" in words[0]
    assert "change in accuracy -2.00 points (-3.3" in words[1]
    assert "not worse than -5.00 points" in words[1]
    assert "%" not in words[1]
    assert "-2.00 points" in str(audit_of(n=1000, broken=30, fixed=10))
    assert share_text(0.0033, signed=True) == "+0.33 points"


def test_a_percentage_for_a_share_is_hinted_at():
    with pytest.raises(ValueError, match=r"got 2. It is a share: 2 percent is 0.02"):
        Limits(max_churn=2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[gate]\nmax_churn = "low"', r"gate.max_churn must be in \[0, 1\], got 'low'"),
        ("[gate]\nmax_churn = -0.1", r"gate.max_churn must be in \[0, 1\], got -0.1"),
        ("[gate]\nmax_churn = nan", r"gate.max_churn must be in \[0, 1\], got nan"),
        ("[gate]\nmax_churn = inf", "gate.max_churn must be in"),
        ("[gate]\nmax_churn = true", "gate.max_churn must be in"),
        ("[gate]\nmax_churn = [0.1]", "gate.max_churn must be in"),
        ("[gate]\nmin_rows = 1.5", "gate.min_rows must be a whole number"),
        ("[gate]\nslices = 3", "gate.slices must be a table"),
        ("[gate.slices.country]\nmax_churn = 2", "gate.slices.country.max_churn must be in"),
        ("[gate.slices.country]\nmax_chrun = 0.2", "unknown limit 'max_chrun'. Did you mean 'max_churn'"),
        ('[gate]\ninconclusive = "no"', "gate.inconclusive must be one of"),
        ("[audit]\nby = 3", r"\[audit\] of .* has the wrong structure: Expected .*`\$.by`"),
        ("[audit]\nid = [1]", r"wrong structure: Expected `str`, got `int` - at `\$.id\[0\]`"),
        ('[audit]\nconfidence = "high"', r"\$.confidence"),
        ("[audit]\nseed = 1.5", r"\$.seed"),
        ("[audit]\nlabel = 2024-01-01", r"\$.label"),
        ("[audit]\nlable = 'y'", "unknown setting 'lable'. Did you mean 'label'"),
        ("[audits]", "unknown table 'audits'. Did you mean 'audit'"),
        ("audit = 3", "must be a table"),
        ("[gate", "is not valid TOML"),
        ("x = " + "[" * 100_000, "nested too deeply|not valid TOML"),
    ],
)
def test_a_damaged_file_of_settings_is_one_clear_line(tmp_path, text, words):
    path = tmp_path / "lowchurn.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as error:
        read_config(path)
    assert "\n" not in str(error.value)
    assert "lowchurn.toml" in str(error.value)


def test_a_file_of_settings_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="cannot read"):
        read_config(tmp_path)
    path = tmp_path / "lowchurn.toml"
    path.write_bytes(b"[audit]\nlabel = '\xff'")
    with pytest.raises(ValueError, match="is not valid TOML"):
        read_config(path)
    path.write_bytes(b"")
    assert read_config(path) == {"audit": {}, "gate": {}, "compare": {}}


def test_a_slice_of_one_group_is_inconclusive():
    old = pd.DataFrame(
        {"id": range(8), "prediction": list("abababab"), "s": list("xxxxyyyy"), "g": [0, 0, 0, 0, 1, 2, 3, 4]}
    )
    result = lowchurn.audit.audit(old.assign(prediction=list("aaababab")), old, by="s", group="g")
    assert result.gate(Gate(slices={"s": {"max_churn": 0.2}})).outcome == "INCONCLUSIVE"


@pytest.mark.parametrize("confidence", [1e-9, 0.9999999999999999])
def test_extreme_confidence(confidence):
    rows = pd.DataFrame({"id": range(9), "prediction": list("abababaab"), "g": range(9)})
    result = lowchurn.audit.audit(rows, rows.assign(prediction=list("aaababaab")), group="g", confidence=confidence)
    assert 0 <= result.churn.low <= 1 / 9 <= result.churn.high <= 1
    assert result.review_plan().labels >= 1


def test_extreme_margins_and_seeds_are_refused():
    rows = pd.DataFrame({"id": range(2), "prediction": ["a", "b"]})
    with pytest.raises(ValueError, match="margin must be in"):
        lowchurn.audit.audit(rows, rows.assign(prediction="a")).review_plan(margin=1e-300)
    for seed in (-1, 0.5, True):
        with pytest.raises(ValueError, match="seed must be a whole number, not negative"):
            lowchurn.audit.audit(rows, rows, seed=seed)
