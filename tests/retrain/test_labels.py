"""Labels: exactly the classes that are in the file, in the type that the base decides in."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowchurn.retrain._labels import MISSING, classes_from_text, classes_from_values

WHERE = "retrain: the target 'y'"
BIG = 2**53


@pytest.mark.parametrize(
    ("texts", "known", "labels"),
    [
        (["0", "1"], None, [0, 1]),
        (["-1", "1"], None, [-1, 1]),
        (["True", "false"], None, [True, False]),
        (["0.0", "1.0"], None, [0.0, 1.0]),
        (["yes", "no"], None, ["yes", "no"]),
        (["01", "1"], None, ["01", "1"]),
        (["1", "1.0"], None, ["1", "1.0"]),
        (["1e0", "2"], None, ["1e0", "2"]),
        ([" 1", "1"], None, [" 1", "1"]),
        (["\u0661", "1"], None, ["\u0661", "1"]),
        ([str(BIG), str(BIG + 1)], None, [BIG, BIG + 1]),
        (["0", "1"], np.array([0, 1]), [0, 1]),
        (["0.0", "1.0"], np.array([0, 1]), [0, 1]),
        (["0", "1"], np.array([0.0, 1.0]), [0.0, 1.0]),
        (["0", "1"], np.array([False, True]), [False, True]),
        (["False", "TRUE"], np.array([False, True]), [False, True]),
        (["0", "01"], np.array(["0", "1"]), ["0", "01"]),
        (["True", "2024-01-01"], np.array(["x", "y"], dtype=object), ["True", "2024-01-01"]),
        (["None", "mild"], np.array(["None", "mild"]), ["None", "mild"]),
        (["0", "3"], np.array([0, 1]), [0, 3]),
        (["True", "false"], np.array([0, 1]), [1, 0]),  # a native file has no other names for its classes
    ],
    ids=str,
)
def test_text_as_labels(texts, known, labels):
    found = classes_from_text(WHERE, texts, known)
    assert found.tolist() == labels
    assert [type(x) for x in found.tolist()] == [type(x) for x in labels]


@pytest.mark.parametrize(
    ("texts", "known", "words"),
    [
        (["a", ""], None, "must not be missing, got 1 row.s. without it"),
        (["a", "NA", "NA"], None, "got 2 row.s. without it .'NA'"),
        (["0", "nan"], np.array([0, 1]), "got 1 row.s. without it"),
        (["0.5", "1.0"], None, "must be classes, got 0.5"),
        (["yes", "no"], np.array([0, 1]), r"type of the classes of the base \(0, 1\), got 'no', 'yes'"),
        (["yes", "no"], np.array([False, True]), "type of the classes of the base"),
        (["2", "1"], np.array([False, True]), "type of the classes of the base"),
        (["9" * 30, "1"], None, "must be within 64 bits"),
    ],
    ids=str,
)
def test_text_that_is_no_label(texts, known, words):
    with pytest.raises(ValueError, match=f"{WHERE} .*{words}"):
        classes_from_text(WHERE, texts, known)


@pytest.mark.parametrize(
    ("column", "known", "labels"),
    [
        (pa.array([0, 1]), None, [0, 1]),
        (pa.array([BIG, BIG + 1]), None, [BIG, BIG + 1]),
        (pa.array([BIG, BIG + 1]), np.array([BIG + 1, 5]), [BIG, BIG + 1]),
        (pa.array([2**63, 1], pa.uint64()), None, [2**63, 1]),
        (pa.array([True, False]), None, [True, False]),
        (pa.array([0.0, 1.0]), None, [0.0, 1.0]),
        (pa.array([0.0, 1.0], pa.float32()), np.array([0, 1]), [0, 1]),
        (pa.array([0, 1], pa.int8()), np.array([0.0, 1.0]), [0.0, 1.0]),
        (pa.array([True, False]), np.array([0, 1]), [1, 0]),
        (pa.array([0, 1]), np.array([False, True]), [False, True]),
        (pa.array([Decimal("1.00"), Decimal("2")]), None, [1, 2]),
        (pa.array([Decimal(BIG), Decimal(BIG + 1)]), np.array([0, 1]), [BIG, BIG + 1]),
        (pa.array(["1", "01"]), None, ["1", "01"]),
        (pa.array(["NA", "None"]), None, ["NA", "None"]),
        (pa.array(["a", "b"], pa.large_string()), np.array(["a", "b"]), ["a", "b"]),
        (pa.array(["a", "b"]).dictionary_encode(), None, ["a", "b"]),
        (pa.array([5, 6]).dictionary_encode(), np.array([5, 6]), [5, 6]),
        (pa.array([BIG + 1, 0]), np.array([0.0, 1.0]), [BIG + 1, 0]),  # a float cannot hold it
    ],
    ids=str,
)
def test_values_as_labels(column, known, labels):
    found = classes_from_values(WHERE, pa.chunked_array([column]), known)
    assert found.tolist() == labels
    assert [type(x) for x in found.tolist()] == [type(x) for x in labels]


@pytest.mark.parametrize(
    ("column", "known", "words"),
    [
        (pa.array([1, None]), None, "must not be missing, got 1 row"),
        (pa.array([2**60, None]), None, "must not be missing, got 1 row"),
        (pa.array(["a", None]).dictionary_encode(), None, "must not be missing, got 1 row"),
        (pa.array([1.0, float("nan"), None]), None, "must not be missing, got 2 row"),
        (pa.nulls(2), None, "must not be missing, got 2 row"),
        (pa.array([datetime.date(2024, 1, 1)] * 2), None, "got date32"),
        (pa.array([datetime.datetime(2024, 1, 1)] * 2, pa.timestamp("us", "UTC")), None, "got timestamp"),
        (pa.array([[1], [2]]), None, "got list"),
        (pa.array([{"a": 1}, {"a": 2}]), None, "got struct"),
        (pa.array([b"a", b"b"]), None, "got binary"),
        (pa.array([0.5, 1.0]), None, "must be classes, got 0.5"),
        (pa.array([np.inf, 1.0]), None, "must be classes, got inf"),
        (pa.array([Decimal("0.5"), Decimal("1")]), None, "got the decimal 0.5"),
        (pa.array([Decimal(10**30), Decimal(1)]), None, "within 64 bits"),
        (pa.array(["0", "1"]), np.array([0, 1]), "type of the classes of the base .0, 1., got '0', '1' of type string"),
        (pa.array([0, 1]), np.array(["0", "1"]), "type of the classes of the base"),
    ],
    ids=str,
)
def test_values_that_are_no_labels(column, known, words):
    with pytest.raises(ValueError, match=f"{WHERE} .*{words}"):
        classes_from_values(WHERE, pa.chunked_array([column]), known)


@given(st.lists(st.text().filter(lambda text: text not in MISSING), min_size=1))
def test_different_texts_are_different_classes(texts):
    try:
        found = classes_from_text(WHERE, texts)
    except ValueError:
        return
    if found.dtype != bool:  # 'True' and 'true' are one
        same = np.array(texts, dtype=object)[:, None] == np.array(texts, dtype=object)[None]
        assert np.array_equal(found[:, None] == found[None], same)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_whole_numbers_are_exact_both_ways(numbers):
    assert classes_from_text(WHERE, list(map(str, numbers))).tolist() == numbers
    assert classes_from_values(WHERE, pa.chunked_array([numbers])).tolist() == numbers
    known = np.array(numbers[:1])
    assert classes_from_text(WHERE, list(map(str, numbers)), known).tolist() == numbers
