"""Comparisons are exact or refused: types of decisions, labels, ids and classes, against plain Python."""

import datetime
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.metrics import brier_score_loss

import lowchurn

BIG = 2**53
UTC = datetime.UTC


def table(values, type=None, name="prediction", **more):
    return pa.table({"id": list(range(len(values))), name: pa.array(values, type), **more})


def moments(zone=None):
    return [datetime.datetime(2024, 1, day, tzinfo=zone) for day in (1, 2, 3)]


@pytest.mark.parametrize(
    ("old", "new", "churn"),
    [
        (table([BIG, BIG, 1]), table([BIG + 1, BIG + 1, 2]), 1.0),
        (table([2**63 - 1, 2**63 - 2]), table([2**63 - 2, 2**63 - 2]), 0.5),
        (table([2**64 - 1, 5], pa.uint64()), table([2**64 - 2, 5], pa.uint64()), 0.5),
        (table([2**63, 5], pa.uint64()), table([-1, 5], pa.int64()), 0.5),
        (table([BIG, BIG + 1], pa.uint64()), table([BIG + 1, BIG + 1], pa.int64()), 0.5),
        (table([BIG, 1], pa.decimal128(38, 0)), table([BIG + 1, 1], pa.decimal128(38, 0)), 0.5),
        (table([Decimal("0.10"), Decimal("2.00")]), table([Decimal("0.1"), Decimal("2.5")]), 0.5),
        (table([Decimal(BIG), Decimal(1)]), table([BIG + 1, 1]), 0.5),
        (table([Decimal("1.50"), Decimal("1.00")]), table([1, 1]), 0.5),
        (table([10**37, 1], pa.decimal128(38, 0)), table([10**37 + 1, 1], pa.decimal128(38, 0)), 0.5),
        (table([True, False]), table([1, 1]), 0.5),
        (table([True, False]), table([1.0, 0.0]), 0.0),
        (table([1, 2]), table([1.0, 2.5]), 0.5),
        (table([0.1, 0.2], pa.float32()), table([0.1, 0.3], pa.float32()), 0.5),
        (table([0.5, 2.0], pa.float32()), table([0.5, 2.5], pa.float64()), 0.5),
        (table([1.0, 2.0], pa.float32()), table([1, 1], pa.int32()), 0.5),
        (table([0.0, 1.0]), table([-0.0, 1.0]), 0.0),
        (table([math.inf, -math.inf, 1.0]), table([math.inf, math.inf, 1.0]), 1 / 3),
        (table([math.inf, 1.0]), table([1, 1]), 0.5),
        (table(moments(UTC)), table(moments(UTC), pa.timestamp("us", "Europe/Berlin")), 0.0),
        (table(moments(), pa.timestamp("s")), table(moments(), pa.timestamp("ns")), 0.0),
        (table([1, 2], pa.timestamp("ns")), table([1, 3], pa.timestamp("ns")), 0.5),
        (table([datetime.date(2024, 1, 1)]), table([datetime.date(2024, 1, 2)]), 1.0),
        (table([b"a\x00", b"\xff"], pa.binary()), table([b"a", b"\xff"], pa.binary()), 0.5),
        (table(["1", "01", " 1", "1.0", "\u0661"]), table(["1", "1", "1", "1", "1"]), 0.8),
        (table(["a", "A", "a "]), table(["a", "a", "a"]), 2 / 3),
        (table(["a", ""]), table(["", ""]), 0.5),
        (table(["a", "b"], pa.dictionary(pa.int8(), pa.string())), table(["a", "a"]), 0.5),
        (table([1, 2], pa.dictionary(pa.int8(), pa.int64())), table([1, 1]), 0.5),
    ],
)  # fmt: skip
def test_churn_is_that_of_the_values(old, new, churn):
    # The old decisions are the labels: all of them are right.
    labels = old.column("prediction")
    judged = lowchurn.audit.audit(old, new.append_column("y", labels), label="y")
    assert judged.churn.value == churn
    assert judged.identical == (churn == 0)
    assert (judged.accuracy_old.value, judged.accuracy_new.value) == (1, pytest.approx(1 - churn))
    assert judged.broken.value == churn
    assert judged.to_json()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (table([0.1, 0.2], pa.float32()), table([0.1, 0.2], pa.float64())),
        (table([BIG + 1, 2]), table([float(BIG), 2.0])),
        (table([1, 2]), table([float(2**60), 2.0])),
        (table([BIG + 1, 2], pa.uint64()), table([1.0, 2.0])),
        (table([2**24 + 1, 2]), table([1.0, 2.0], pa.float32())),
        (table([Decimal("0.1"), Decimal("1.0")]), table([0.1, 1.0])),
        (table([10**37, 1], pa.decimal128(38, 0)), table([Decimal("0.0123456789"), Decimal(1)])),
        (table(moments()), table(moments(UTC))),
        (table(moments()), table([m.date() for m in moments()])),
        (table([datetime.time(1), datetime.time(2)]), table(moments()[:2])),
        (table([True, False]), table(["True", "False"])),
        (table([1, 2]), table(["1", "2"])),
        (table(["a", "b"]), table([b"a", b"b"], pa.binary())),
        (table([[1], [2]]), table([[1], [2]])),
        (table([{"a": 1}, {"a": 2}]), table([{"a": 1}, {"a": 2}])),
        (table([datetime.timedelta(1)]), table([datetime.timedelta(1)])),
        (table([None, None]), table([1, 2])),
        (table([math.nan, 1.0]), table([math.nan, 1.0])),
    ],
)
def test_what_cannot_be_compared_exactly_is_refused(old, new):
    with pytest.raises(ValueError, match="^audit: ") as refused:
        lowchurn.audit.audit(old, new)
    assert "\n" not in str(refused.value)


def test_a_refusal_names_values_and_the_remedy():
    with pytest.raises(ValueError, match=r"column 'prediction' of the new table has values such as '0.1', '0.2'. Conv"):
        lowchurn.audit.audit(table([0.1, 0.2], pa.float32()), table([0.1, 0.2]))


def test_the_label_takes_part_in_the_type():
    old, new = table([1, 2]), table([1, 1])
    assert lowchurn.audit.audit(old, new.append_column("y", pa.array([1.0, 2.0])), label="y").broken.value == 0.5
    assert lowchurn.audit.audit(old, new.append_column("y", pa.array([1.0, None])), label="y").rows.labelled == 1
    assert lowchurn.audit.audit(old, new.append_column("y", pa.array([1.0, math.nan])), label="y").rows.labelled == 1
    # 2^53 and 2^53 + 1 are one float: the label cannot say which one is right.
    large = table([BIG, BIG + 1]).append_column("y", pa.array([float(BIG), float(BIG)]))
    with pytest.raises(ValueError, match="not exact as floats"):
        lowchurn.audit.audit(large, table([BIG, BIG]), label="y")
    # The label of either table counts.
    with pytest.raises(ValueError, match="label of the old table is text"):
        lowchurn.audit.audit(
            old.append_column("y", pa.array(["1", "2"])), new.append_column("y", pa.array([1, 2])), label="y"
        )
    both = lowchurn.audit.audit(
        old.append_column("y", pa.array([Decimal("1.0"), None])), new.append_column("y", pa.array([None, 2])), label="y"
    )
    assert (both.rows.labelled, both.broken.value) == (2, 0.5)


@pytest.mark.parametrize(
    ("old", "new", "paired"),
    [
        ([BIG, BIG + 1], [BIG + 1, BIG], 2),
        (pa.array([2**64 - 1, 3], pa.uint64()), pa.array([2**64 - 1, 3], pa.uint64()), 2),
        (pa.array([7, 3], pa.uint64()), pa.array([3, 7], pa.int8()), 2),
        ([Decimal("1.0"), Decimal("2.5")], [Decimal("2.50"), Decimal("1.00")], 2),
        (moments(UTC)[:2], pa.array(moments(UTC)[:2], pa.timestamp("ns", "Europe/Berlin")), 2),
        (pa.array([1, 2], pa.timestamp("ns")), pa.array([1, 2], pa.timestamp("ns")), 2),
        ([0.5, 1.5], pa.array([0.5, 1.5], pa.float32()), 2),
        (["a", "A"], ["A", "a"], 2),
        ([b"\x00", b"\xff"], [b"\xff", b"\x00"], 2),
    ],
)
def test_ids_are_joined_by_value(old, new, paired):
    rows = lowchurn.audit.audit(
        pa.table({"id": old, "prediction": [1, 1]}), pa.table({"id": new, "prediction": [1, 1]})
    ).rows
    assert rows.paired == paired


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([1, 2], [1.0, 2.0]),
        ([1, 2], ["1", "2"]),
        ([1, 2], [Decimal(1), Decimal(2)]),
        ([0.1, 0.2], pa.array([0.1, 0.2], pa.float32())),
        (["a", "b"], ["a ", "b"]),
        (["a", "b"], ["A", "b"]),
        ([1.0, math.nan], [1.0, math.nan]),
        ([0.0, -0.0], [0.0, -0.0]),
        (moments()[:2], moments(UTC)[:2]),
        ([[1], [2]], [[1], [2]]),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]),
        (pa.nulls(2), pa.nulls(2)),
    ],
)
def test_ids_that_only_look_alike_are_refused(old, new):
    with pytest.raises(ValueError, match="^audit: "):
        lowchurn.audit.audit(pa.table({"id": old, "prediction": [1, 1]}), pa.table({"id": new, "prediction": [1, 1]}))


def probabilities(*names, label=None):
    one = np.linspace(0.1, 0.9, 4)
    rest = (1 - one) / (len(names) - 1)
    columns = {f"proba_{n}": one if i == 0 else rest for i, n in enumerate(names)}
    return pa.table({"id": [0, 1, 2, 3], **columns} | ({} if label is None else {"y": label}))


def test_classes_of_probability_columns_that_look_like_one_number_are_different():
    names = ("1", "01", " 1", "1.0", "1e0", "\u0661")
    rows = probabilities(*names)
    assert set(lowchurn.audit.audit(rows, rows).classes) <= set(names)
    columns = lowchurn.audit.audit(rows, rows).columns
    assert columns.classes == names
    numbers = probabilities(*names, label=[1, 1, 1, 1])
    with pytest.raises(ValueError, match="'01' is not a value of type int64. Name them with classes="):
        lowchurn.audit.audit(numbers, numbers, label="y")
    texts = probabilities(*names, label=["1", "1.0", "01", "1"])
    assert lowchurn.audit.audit(texts, texts, label="y").columns.answer == "string"
    named = probabilities("01", "02", label=[1, 2, 1, 2])
    assert lowchurn.audit.audit(named, named, label="y", classes=[1, 2]).accuracy_old.value == 0.5
    with pytest.raises(ValueError, match="classes must differ"):
        lowchurn.audit.audit(named, named, label="y", classes=[1, 1.0])


@pytest.mark.parametrize(
    ("label", "names", "fine"),
    [
        ([0, 1, 1, 0], ("0", "1"), True),
        ([0.0, 1.0, 1.0, 0.0], ("0", "1"), True),
        ([0.5, 1.0, 1.0, 0.5], ("0.5", "1.0"), True),
        ([0.5, 1.0, 1.0, 0.5], ("0.50", "1.0"), False),
        ([True, False, True, True], ("False", "True"), True),
        ([True, False, True, True], ("0", "1"), True),
        ([True, False, True, True], ("no", "yes"), False),
        ([Decimal("0.5"), Decimal(1), None, None], ("0.5", "1"), True),
        ([Decimal("0.5"), Decimal(1), None, None], ("0.55", "1"), False),
        ([datetime.date(2024, 1, 1)] * 4, ("2024-01-01", "2024-01-02"), True),
        (["0", "1", "1", "0"], ("0", "1"), True),
        (["no", "yes", "yes", "no"], ("0", "1"), False),
        ([2**60, 2**60 + 1, 2**60, 2**60], (str(2**60), str(2**60 + 1)), True),
        ([7, 7, 8, 8], ("0", "1"), False),
    ],
)
def test_classes_of_probability_columns_are_of_the_labels_type_or_asked_for(label, names, fine):
    rows = probabilities(*names, label=label)
    if not fine:
        with pytest.raises(ValueError, match="Name (them|the classes) with classes="):
            lowchurn.audit.audit(rows, rows, label="y")
        return
    result = lowchurn.audit.audit(rows, rows, label="y")
    decided = [result.columns.classes[0 if p >= 0.5 else 1] for p in rows.column("proba_" + names[0]).to_pylist()]
    right = [a == b for a, b in zip(decided, label, strict=True) if b is not None]
    assert result.accuracy_old.value == sum(right) / len(right)
    assert result.soft["log_loss_old"].n == len(right)


def test_a_score_does_not_guess_its_classes():
    rows = pa.table({"id": [1, 2, 3], "score": [0.1, 0.7, 0.9], "y": [-1, 1, 1]})
    with pytest.raises(ValueError, match=r"1 of 3 labels, such as -1, are none of the classes \[0, 1\]"):
        lowchurn.audit.audit(rows, rows, label="y")
    assert lowchurn.audit.audit(rows, rows, label="y", classes=(-1, 1)).accuracy_old.value == 1
    # A class that the model was not told of is a label that it misses.
    assert lowchurn.audit.audit(rows, rows, label="y", classes=(0, 1)).accuracy_old.value == pytest.approx(2 / 3)
    decided = pa.table({"id": [1, 2, 3], "prediction": [-1, 1, 1]})
    with pytest.raises(ValueError, match="1 of 3 old decisions, such as -1"):
        lowchurn.audit.audit(decided, rows)
    assert lowchurn.audit.audit(decided, rows, classes=(-1, 1)).churn.value == 0
    dates = rows.set_column(2, "y", pa.array([datetime.date(2024, 1, 1)] * 3))
    with pytest.raises(ValueError, match="name the one that a score above the threshold means"):
        lowchurn.audit.audit(dates, dates, label="y")


@pytest.mark.parametrize("decisions", [[0, 1, 1], ["no", "yes", "yes"]])
def test_the_probability_beside_a_decision_is_not_taken_for_a_score(decisions):
    rows = pa.table({"id": [1, 2, 3], "decision": decisions, "probability": [0.9, 0.8, 0.7], "y": decisions})
    found = lowchurn.audit.audit(rows, rows, label="y")
    assert found.accuracy_old.value == 1
    assert not found.soft
    alone = rows.select(["id", "probability"])
    assert lowchurn.audit.audit(alone, alone, threshold=0.75).churn.value == 0


def test_a_score_beside_decisions_in_words_is_used_where_its_classes_are_known():
    rows = pa.table({"id": [1, 2], "prediction": ["no", "yes"], "score": [0.2, 0.7], "y": ["no", "yes"]})
    assert not lowchurn.audit.audit(rows, rows, label="y").soft
    found = lowchurn.audit.audit(rows, rows, label="y", score="score", classes=("no", "yes"))
    assert found.soft


def test_a_score_in_32_bits_meets_its_threshold():
    rows = pa.table({"id": [1, 2], "score": pa.array([0.7, 0.6], pa.float32())})
    wide = pa.table({"id": [1, 2], "score": [0.7, 0.6]})
    assert lowchurn.audit.audit(rows, wide, threshold=0.7).churn.value == 0


@pytest.mark.parametrize("classes", [2, 3])
def test_the_brier_score_is_that_of_scikit_learn(classes):
    rng = np.random.default_rng(classes)
    proba = rng.dirichlet(np.ones(classes), 50)
    y = rng.integers(0, classes, 50)
    rows = pd.DataFrame({"id": np.arange(50), "y": y} | {f"proba_{c}": proba[:, c] for c in range(classes)})
    found = lowchurn.audit.audit(rows, rows, label="y", bootstrap=100).soft["brier_old"].value
    expected = brier_score_loss(y, proba[:, 1] if classes == 2 else proba, labels=list(range(classes)))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("scale", [1e-300, 1e300, 1e-320])
def test_weights_whose_squares_vanish_or_overflow_are_refused(scale):
    old = table([1, 2]).append_column("w", pa.array([scale, 2 * scale]))
    with pytest.raises(ValueError, match="Multiply all weights by one number"):
        lowchurn.audit.audit(old, table([1, 1]), weight="w")


@pytest.mark.parametrize("scale", [1e-99, 1e-30, 1.0, 1e30, 1e99])
def test_the_scale_of_weights_does_not_matter(scale):
    weights = np.array([1.0, 2.0, 3.0, 4.0, 0.0])
    old = table([1, 2, 1, 2, 1], y=[1, 2, 2, 2, 1], g=["a", "a", "b", "b", "b"])
    new = table([1, 1, 2, 2, 2])

    def figures(w):
        result = lowchurn.audit.audit(old.append_column("w", pa.array(w)), new, label="y", weight="w", by="g")
        shown = [getattr(result, n) for n in ("churn", "broken", "accuracy_new", "accuracy_change")]
        return [x for e in shown for x in (e.value, e.low, e.high)] + [s.flips_p for s in result.slices]

    assert figures(weights * scale) == pytest.approx(figures(weights), nan_ok=True)
    assert figures(weights * scale)[0] == pytest.approx(0.5)


def test_weights_of_very_different_size_do_not_fail():
    old = table([1, 2, 1], g=["a", "a", "b"], w=[1e90, 1e90, 1e-90])
    result = lowchurn.audit.audit(old, table([1, 1, 2]), weight="w", by="g")
    assert result.churn.value == 0.5
    decimal = old.set_column(3, "w", pa.array([Decimal("0.5"), Decimal("1.5"), Decimal(2)]))
    assert lowchurn.audit.audit(decimal, table([1, 1, 2]), weight="w").churn.value == 3.5 / 4


def test_columns_called_as_ours_keep_their_values():
    old = pa.table(
        {"old": [10, 11], "new": ["p", "q"], "label": ["x", "y"], "kind": [1, 2], "k0": [5, 6], "b0": [7, 8],
         "old probability": [3, 4], "prediction": ["a", "b"], "y": ["a", "b"]}
    )  # fmt: skip
    new = pa.table({"old": [10, 11], "new": ["p", "q"], "prediction": ["a", "a"]})
    by = ["label", "kind", "k0", "b0", "old probability"]
    result = lowchurn.audit.audit(old, new, id=["old", "new"], label="y", by=by)
    assert result.flips == [
        {"old (column)": 11, "new (column)": "q", "old": "b", "new": "a", "label": "b", "label (column)": "y",
         "kind (column)": 2, "k0": 6, "b0": 8, "old probability (column)": 4}
    ]  # fmt: skip
    assert (result.churn.value, result.broken.value) == (0.5, 0.5)
    from lowchurn.report._page import html_page

    assert "broken" in html_page(result)
    assert lowchurn.audit.audit(old, new, id="old", by="old").flips == [{"old (column)": 11, "old": "b", "new": "a"}]


@pytest.mark.parametrize("name", ['a"b', "a'b\n", "a; DROP TABLE x; --", "😀.b", "select", "p*{x}%s"])
def test_names_of_columns_are_only_names(name, tmp_path):
    old = pa.table({name: [1, 2], "prediction": [1, 2], f"{name} 2": ["u", "v"]})
    new = pa.table({name: [1, 2], "prediction": [1, 1]})
    result = lowchurn.audit.audit(old, new, id=name, by=f"{name} 2")
    assert [s.churn.value for s in result.slices] == [0, 1]
    for side, rows in (("old", old), ("new", new)):
        rows.to_pandas().to_csv(tmp_path / f"{side}.csv", index=False)
    read = lowchurn.audit.audit(tmp_path / "old.csv", tmp_path / "new.csv", id=name, by=f"{name} 2")
    assert [s.churn.value for s in read.slices] == [0, 1]


def test_names_that_differ_in_case_only_are_refused(tmp_path):
    import pyarrow.parquet as pq

    twins = pa.table({"id": [1], "prediction": [1], "Y": [1], "y": [0]})
    pq.write_table(twins, tmp_path / "twins.parquet")
    (tmp_path / "twins.csv").write_text("id,prediction,Y,y\n1,1,1,0\n")
    for source in (twins, twins.to_pandas(), tmp_path / "twins.parquet", tmp_path / "twins.csv"):
        with pytest.raises(ValueError, match=r"differ by more than upper and lower case, got \['Y', 'y'\]"):
            lowchurn.audit.audit(source, pa.table({"id": [1], "prediction": [1]}), label="y")


def test_slices_with_one_name_are_not_confused():
    rows = table([1, 1, 2], g=["(missing)", None, "x"])
    result = lowchurn.audit.audit(rows, table([1, 2, 2]), by="g")
    assert sorted((s.value, s.churn.value) for s in result.slices) == [("(missing)", 0), ("(missing)", 1), ("x", 0)]
    with pytest.raises(ValueError, match="two slices are called 'g=\\(missing\\)'"):
        result.estimate("churn", slice="g=(missing)")
    large = table([1] * 100, g=[10**9 + i for i in range(100)])
    names = [s.name for s in lowchurn.audit.audit(large, large, by="g").slices]
    assert len(set(names)) == 10


def test_names_that_the_database_cuts_are_refused():
    with pytest.raises(ValueError, match="NUL"):
        lowchurn.audit.audit(table([1, 2], **{"y\0": [1, 2]}), table([1, 2]), label="y")


def test_many_classes():
    names = [f"proba_{i}" for i in range(30)]
    rows = pa.table({"id": [1, 2], "y": [3, 29]} | {n: [1.0 * (i == 3), 1.0 * (i == 29)] for i, n in enumerate(names)})
    result = lowchurn.audit.audit(rows, rows, label="y", bootstrap=100)
    assert (result.accuracy_old.value, result.soft["brier_old"].value) == (1, 0)


def test_tables_of_many_columns():
    wide = pa.table({"id": [1, 2], "prediction": [1, 2]} | {f"f{i}": [i, i] for i in range(3000)})
    assert lowchurn.audit.audit(wide, wide).identical
    with pytest.raises(ValueError, match="and more. Name it") as refused:
        lowchurn.audit.audit(wide.drop_columns("prediction"), wide)
    assert len(str(refused.value)) < 500
