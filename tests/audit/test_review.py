"""Labels for the disagreements only: the plan keeps its promise, and the estimate covers."""

import numpy as np
import pandas as pd
import pytest

import lowchurn
from lowchurn.audit._review import plan_review, review_change


def world(rng, rows, fixed, broken, lateral):
    """One sample of rows: outcomes of its disagreements."""
    kinds = rng.multinomial(rows, [fixed, broken, lateral, 1 - fixed - broken - lateral])
    return np.repeat([1.0, -1.0, 0.0], kinds[:3])


@pytest.mark.parametrize(
    ("rows", "labels", "rates"),
    [
        (5000, 80, (0.03, 0.03, 0.0)),
        (5000, 40, (0.05, 0.01, 0.02)),
        (2000, 10_000, (0.02, 0.01, 0.0)),
        (50_000, 60, (0.004, 0.012, 0.01)),
    ],
)
def test_the_change_is_covered_when_a_random_part_is_labelled(rows, labels, rates):
    rng = np.random.default_rng(0)
    inside, draws = 0, 600
    for _ in range(draws):
        outcomes = world(rng, rows, *rates)
        some = rng.choice(outcomes, min(labels, len(outcomes)), replace=False)
        change = review_change(some, len(outcomes), rows).accuracy_change
        inside += change.low <= rates[0] - rates[1] <= change.high
    assert inside / draws > 0.925


@pytest.mark.parametrize(
    ("rows", "labels", "rates"),
    [
        (5000, 80, (0.03, 0.03, 0.0)),
        (5000, 40, (0.05, 0.003, 0.02)),
        (2000, 10_000, (0.02, 0.01, 0.0)),
        (20_000, 60, (0.001, 0.03, 0.0)),
        (20_000, 15, (0.002, 0.03, 0.0)),
    ],
)
def test_the_broken_share_is_covered_when_a_random_part_is_labelled(rows, labels, rates):
    rng = np.random.default_rng(0)
    inside, draws = 0, 600
    for _ in range(draws):
        outcomes = world(rng, rows, *rates)
        some = rng.choice(outcomes, min(labels, len(outcomes)), replace=False)
        broken = review_change(some, len(outcomes), rows).broken_rows
        inside += broken.low <= rates[1] <= broken.high
    assert inside / draws > 0.925


def test_labels_needed_are_those_that_make_it_worth_that_much():
    few = review_change(np.repeat([1.0, -1.0], [50, 50]), 400, 20_000)
    many = int(few.labels_needed(few.accuracy_change, 8_000))
    assert 100 < many < 400
    half = np.repeat([1.0, -1.0], [many // 2, many - many // 2])
    worth = review_change(half, 400, 20_000).accuracy_change.effective
    assert worth == pytest.approx(8_000, rel=0.02)
    assert few.labels_needed(few.accuracy_change, 20_001) == np.inf


def test_the_plan_has_its_power_and_its_labels_are_far_fewer():
    rng = np.random.default_rng(1)
    plan = plan_review(churn=0.04, rows=20_000, disputed=800, margin=0.01, power=0.8)
    assert plan.enough_rows
    assert plan.labels * 20 < plan.labels_without_plan
    proved = 0
    for _ in range(400):
        outcomes = world(rng, plan.rows_to_score, 0.02, 0.02, 0.0)
        some = rng.choice(outcomes, min(plan.labels, len(outcomes)), replace=False)
        proved += review_change(some, len(outcomes), plan.rows_to_score).accuracy_change.low > -plan.margin
    assert 0.72 < proved / 400 < 0.9


def test_all_labelled_is_the_plain_paired_estimate():
    from lowchurn._estimates import paired_difference

    review = review_change(np.repeat([1.0, -1.0, 0.0], [20, 10, 5]), 35, 1000).accuracy_change
    plain = paired_difference(0.02, 0.01, 1000)
    assert (review.value, review.low, review.high) == pytest.approx((plain.value, plain.low, plain.high))


def test_a_plan_without_disagreements_or_rows_enough():
    assert "nothing to label" in str(plan_review(0.0, 100, 0, 0.01))
    short = plan_review(0.1, 100, 10, 0.01)
    assert not short.enough_rows
    assert f"{short.rows_to_score:,}" in str(short)
    with pytest.raises(ValueError, match="margin"):
        plan_review(0.1, 100, 10, 0.0)
    with pytest.raises(ValueError, match="power"):
        plan_review(0.1, 100, 10, 0.1, power=1.0)


@pytest.fixture
def audited(tables):
    old, new = tables
    return lowchurn.audit.audit(old.drop(columns="y"), new), old, new


def test_the_export_is_random_shuffled_and_blind(audited):
    audit, old, new = audited
    table = audit.disputed()
    both = old.merge(new, on="id", suffixes=("", "_new"))
    changed = both[both.prediction != both.prediction_new]
    assert set(table.id) == set(changed.id)
    assert list(table.id) != sorted(table.id)
    assert table.label.isna().all()
    first = table.merge(changed, on="id")
    share = (first.answer_1 == first.prediction).mean()
    assert 0.2 < share < 0.8  # neither column belongs to one of the models
    assert (set(first.answer_1) | set(first.answer_2)) <= set(both.prediction) | set(both.prediction_new)
    assert audit.disputed(5).equals(audit.disputed(5))
    assert not audit.disputed(5).equals(audit.disputed(5, seed=3))
    assert set(audit.disputed(5).id) < set(table.id)


def test_answers_come_back(audited, tmp_path):
    audit, old, new = audited
    truth = old.set_index("id").y
    table = audit.disputed()
    table["label"] = table.id.map(truth)
    full = audit.with_labels(table)
    known = lowchurn.audit.audit(old, new, label="y")
    assert full.accuracy_change.value == pytest.approx(known.accuracy_change.value)
    assert full.accuracy_change.low == pytest.approx(known.accuracy_change.low)
    path = tmp_path / "answers.csv"
    table.assign(label=table.label.where(np.arange(len(table)) < 10)).to_csv(path, index=False)
    part = audit.with_labels(path)
    assert part.labels == 10
    assert part.accuracy_change.low <= part.accuracy_change.value <= part.accuracy_change.high
    assert audit.with_labels(table.assign(label=None)).labels == 0


def test_answers_to_rows_that_agree_are_counted_and_unknown_ones_refused(audited):
    audit, old, _ = audited
    everything = old[["id", "y"]].rename(columns={"y": "label"})
    assert audit.with_labels(everything).unknown == len(old) - audit.whole.n["changed"]
    with pytest.raises(ValueError, match="not among the audited rows"):
        audit.with_labels(pd.DataFrame({"id": [1], "label": ["class 0"]}))
    with pytest.raises(ValueError, match="each id must come once"):
        audit.with_labels(pd.concat([everything, everything]))
    with pytest.raises(ValueError, match="unknown column 'label'"):
        audit.with_labels(old[["id"]])


def test_numbers_and_truth_values_typed_by_hand_are_understood():
    old = pd.DataFrame({"id": [1, 2, 3], "prediction": [0, 0, 0]})
    audit = lowchurn.audit.audit(old, old.assign(prediction=[1, 1, 0]))
    answers = pd.DataFrame({"id": [1, 2], "label": ["1.0", "0"]})
    review = audit.with_labels(answers)
    assert (review.fixed.value, review.broken.value) == (0.5, 0.5)
    with pytest.raises(ValueError, match="'yes' in row 0 of the answers is not a class of the decisions"):
        audit.with_labels(answers.assign(label="yes"))
    truths = lowchurn.audit.audit(old.assign(prediction=False), old.assign(prediction=[True, True, False]))
    assert truths.with_labels(pd.DataFrame({"id": [1], "label": [True]})).fixed.value == 1


def test_weights_scale_the_change(tables):
    old, new = tables
    audit = lowchurn.audit.audit(old.drop(columns="y"), new, weight="w")
    known = lowchurn.audit.audit(old, new, label="y", weight="w")
    answers = audit.disputed()
    answers["label"] = answers.id.map(old.set_index("id").y)
    review = audit.with_labels(answers)
    assert review.accuracy_change.value == pytest.approx(known.accuracy_change.value)
    width = review.accuracy_change.high - review.accuracy_change.low
    assert width == pytest.approx(known.accuracy_change.high - known.accuracy_change.low, rel=0.15)
