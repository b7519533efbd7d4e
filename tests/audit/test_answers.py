"""Labels typed by people: an answer is a class of the decisions, in their type, or it is refused with its row."""

import csv
import math
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowchurn
from lowchurn.audit._answers import holds_answers
from lowchurn.audit._values import class_reader

DAY = date(2024, 1, 2)


def changed(classes, ids=(1, 2, 3, 4)):
    """An audit in which every row goes from the first class to the second."""
    old = pd.DataFrame({"id": list(ids), "prediction": [classes[0]] * len(ids)})
    return lowchurn.audit.audit(old, old.assign(prediction=[classes[1]] * len(ids)))


@pytest.fixture(scope="module")
def whole():
    return changed([0, 1])


@pytest.fixture(scope="module")
def words():
    return changed(["cat", "dog"], ids=["007", "7", " 7", "8"])


def answers(folder, text, encoding="utf-8"):
    path = folder / "answers.csv"
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    ("classes", "understood", "refused"),
    [
        ([False, True], {"TRUE": True, "true": True, " False ": False, "1": True, "0": False}, ["yes", "t", "1.0"]),
        ([0, 1, 1000], {"1": 1, "1.0": 1, " 0": 0, "1000": 1000}, ["1e3", "01", "1.50", "TRUE", "1,000", "1_0", "+1"]),
        ([2**60, 2**60 + 1], {str(2**60 + 1): 2**60 + 1}, ["1.15292150460685E+18", str(2**60 + 2)]),
        ([1.0, 1.5, 1000.0], {"1.50": 1.5, "1": 1.0, "1e3": 1000.0}, ["1.5000001", "nan", "inf", "1,5", "0x1"]),
        ([Decimal("1.5"), Decimal("2")], {"1.50": Decimal("1.5"), "2.0": Decimal("2")}, ["1.51", "NaN", "two"]),
        (["1", "01", "1.0", "1e0", "x"], {"01": "01", "1.0": "1.0", "1e0": "1e0", " x ": "x"}, ["1.00", "X", "\u0661"]),
        (["a", " a"], {"a": "a", " a": " a"}, ["a ", "b"]),  # two classes without the spaces: none is taken
        (["True", "no"], {"True": "True"}, ["TRUE", "true", "yes"]),
        ([DAY], {"2024-01-02": DAY, "2024-01-02 00:00:00": DAY}, ["02.01.2024", "1/2/24", "20240102"]),
        ([datetime(2024, 1, 2)], {"2024-01-02": datetime(2024, 1, 2)}, ["2024-01-02T00:00:01", "2024-01-02T00:00:00Z"]),
    ],
)  # fmt: skip
def test_what_is_typed_is_read_in_the_type_of_the_classes(classes, understood, refused):
    read = class_reader(classes)
    for text, value in understood.items():
        assert read(text) == value
        assert type(read(text)) is type(value)
    assert [read(text) for text in refused] == [None] * len(refused)


@given(st.lists(st.integers(), min_size=1), st.integers(), st.floats(allow_nan=False))
def test_numbers_are_compared_exactly(classes, other, fraction):
    read = class_reader(classes)
    assert [read(str(c)) for c in classes] == classes
    for value in (other, fraction):
        assert read(value) == (value if value in classes else None)
    assert read(str(other)) == (other if other in classes else None)


@given(st.lists(st.text(), min_size=1), st.text())
def test_text_is_text(classes, other):
    read = class_reader(classes)
    assert [read(c) for c in classes] == classes
    found = read(other)
    assert found is None or found == other or (found in classes and found.strip() == other.strip())


@pytest.mark.parametrize("label", ["yes", "2", "1e0", "0.5", "2024-01-01", "?"])
def test_a_label_that_no_class_has_is_refused_with_its_row(whole, tmp_path, label):
    """Today's worst kind: the review reported a change of 0.0 from such labels."""
    path = answers(tmp_path, f"id,label\n1,1\n2,\n3,{label}\n")
    with pytest.raises(ValueError, match=r"row 4 of '.*answers.csv' is not a class of the decisions.*Known: '0', '1'"):
        whole.with_labels(path)


def test_near_classes_are_named_and_wrong_ones_counted(words, tmp_path):
    path = answers(tmp_path, "id,label\n007,cta\n7,Dog\n")
    with pytest.raises(ValueError, match=r"'cta' in row 2 .*\(2 labels are none\). Did you mean 'cat'\?"):
        words.with_labels(path)


def test_a_class_that_only_the_truth_has_can_be_named():
    old = pd.DataFrame({"id": [1, 2], "prediction": ["a", "a"]})
    new = old.assign(prediction="b")
    told = pd.DataFrame({"id": [1, 2], "label": ["b", "fox"]})
    with pytest.raises(ValueError, match="'fox' in row 1"):
        lowchurn.audit.audit(old, new).with_labels(told)
    review = lowchurn.audit.audit(old, new, classes=["a", "b", "fox"]).with_labels(told)
    assert (review.fixed.value, review.lateral.value) == (0.5, 0.5)
    known = lowchurn.audit.audit(old.assign(y=["b", "fox"]), new, label="y")
    assert known.with_labels(told).lateral.value == 0.5


def test_empty_answers_are_counted_and_said(whole, tmp_path):
    review = whole.with_labels(answers(tmp_path, "id,label\n1,1\n2,\n3,  \n,\n4,0\n\n"))
    assert (review.labels, review.empty) == (2, 2)
    assert "Rows without an answer: 2." in str(review)
    none = whole.with_labels(answers(tmp_path, "id,label\n1,\n"))
    assert not none.accuracy_change.defined
    assert math.isnan(none.broken_rows.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_however_a_spreadsheet_saves_it(words, tmp_path, encoding, separator, end):
    rows = [["note", "label", "id"], ['"a;b,c"', "dog", "007"], ["", " cat ", '"7"'], ["", "", "8"]]
    text = end.join(separator.join(row) for row in rows) + end
    text = "\ufeff" + text if encoding == "utf-16-le" else text
    review = words.with_labels(answers(tmp_path, text, encoding))
    assert (review.labels, review.empty) == (2, 1)
    assert (review.fixed.value, review.broken.value) == (0.5, 0.5)


def test_the_note_of_the_separator_is_understood(words, tmp_path):
    assert words.with_labels(answers(tmp_path, "sep=;\r\nid;label\r\n007;dog\r\n")).labels == 1


@pytest.mark.parametrize(
    ("raw", "words_"),
    [
        (b"", "is empty"),
        (b"id,label\n7,caf\xe9\n", "is not UTF-8"),
        (b"i\0d\0,\0l\0a\0b\0e\0l\0", "contains zero bytes"),
        (b'id,label\n7,"cat\n', "is not valid CSV"),
        (b"id,label\n7,cat,dog\n", "has 3 cells in row 2 and 2 columns"),
        (b"id,label,label\n7,cat,dog\n", "must have one column 'label', got 2"),
        (b"id,lable\n7,cat\n", "Did you mean 'lable'"),
        (b"id,label\n,cat\n", "row 2 of .* has a label and no id"),
        (b"id,label\n9,cat\n7,cat\n", "1 answered ids are not among the audited rows, such as '9'"),
        (b"id,label\n7,cat\n7,cat\n", "each id must come once, repeated are '7'"),
        (b"id,label\n7 ,cat\n", "not among the audited rows, such as '7 '"),
        (b"\xff\xfe\x00", "is not UTF-8"),
    ],
)
def test_files_that_cannot_be_read_are_refused_in_one_line(words, tmp_path, raw, words_):
    path = tmp_path / "answers.csv"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=words_) as error:
        words.with_labels(path)
    assert "\n" not in str(error.value)


def test_missing_files_and_folders(words, tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        words.with_labels(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match="it is a folder"):
        words.with_labels(tmp_path / "folder.csv")


@pytest.mark.parametrize("text", ["1.5", "1e0", "0x1", "one", "01", str(2**70)])
def test_ids_are_converted_without_loss(whole, tmp_path, text):
    with pytest.raises(ValueError, match=r"in row 2 of .* is not of the type of 'id', int64"):
        whole.with_labels(answers(tmp_path, f"id,label\n{text},1\n"))


def test_ids_of_a_table_in_memory_are_not_rounded(whole):
    assert whole.with_labels(pd.DataFrame({"id": [1.0], "label": [1.0]})).fixed.value == 1
    with pytest.raises(ValueError, match=r"the id 1\.5 in row 0"):
        whole.with_labels(pd.DataFrame({"id": [1.5], "label": [1]}))


@pytest.mark.parametrize(
    "ids",
    [
        [date(2024, 1, 1), date(2024, 1, 2)],
        list(pd.to_datetime(["2024-01-01 10:00:00", "2024-01-01 10:00:00.000000001"], format="ISO8601")),
        list(pd.to_datetime(["2024-01-01 10:00:00", "2024-01-01 11:00:00"], utc=True)),
        [Decimal("1.50"), Decimal("1.51")],
        [0.1, 0.30000000000000004],
        [False, True],
        [2**62, 2**62 + 1],
        ["é", "e\u0301"],
    ],
    ids=str,
)
def test_ids_of_every_type_come_back_from_the_export(tmp_path, ids):
    audit = changed([0, 1], ids)
    table = audit.disputed()
    table["label"] = ["1", None]
    table.to_csv(tmp_path / "answers.csv", index=False)
    review = audit.with_labels(tmp_path / "answers.csv")
    assert (review.labels, review.empty, review.fixed.value) == (1, 1, 1.0)


@pytest.mark.parametrize(
    "classes",
    [
        [False, True],
        [0, 1],
        [2**60, 2**60 + 1],
        pa.array([2**63, 2**64 - 1], pa.uint64()),
        [0.5, 0.1 + 0.2],
        [math.inf, 1.0],
        pa.array([0.1, 0.2], pa.float32()),
        [Decimal("1.50"), Decimal("2.25")],
        ["01", "1"],
        [" a", "a "],
        ["NA", "null"],
        ["a\nb", 'q"u,o;te'],
        [DAY, date(2024, 1, 3)],
        [datetime(2024, 1, 1), datetime(2024, 1, 2, 3, 4, 5, 600)],
        pa.array([1, 2], pa.timestamp("ns")),
        pa.array([1, 2], pa.timestamp("us", "Europe/Berlin")),
        pa.array([1, 2], pa.time64("us")),
        pa.array([b"a", b"\xff"]),
        pa.array(["x", "y"]).dictionary_encode(),
    ],
    ids=str,
)
def test_the_cells_of_the_export_are_answers_whatever_their_type(tmp_path, classes):
    """A person copies one of the two cells: three of four times that of the new model."""
    values = classes if isinstance(classes, pa.Array) else pa.array(classes)
    old, new = (pa.table({"id": range(8), "prediction": values.take(pa.array([i] * 8))}) for i in (0, 1))
    audit = lowchurn.audit.audit(old, new)
    table = audit.disputed()
    table.to_csv(tmp_path / "answers.csv", index=False)
    written = pd.read_csv(tmp_path / "answers.csv", dtype=str, keep_default_na=False)
    is_new = table.answer_1 == audit.engine.fetch(audit.pairs.select("new").limit(1))["new"][0]
    wanted = (table.id % 4 != 0) == is_new
    written.assign(label=written.answer_1.where(wanted, written.answer_2)).to_csv(tmp_path / "answers.csv", index=False)
    review = audit.with_labels(tmp_path / "answers.csv")
    assert (review.labels, review.fixed.value, review.broken.value) == (8, 0.75, 0.25)


def test_a_class_without_a_name_cannot_be_told_from_no_answer(tmp_path):
    audit = changed(["", "a"], ids=[1, 2])
    with pytest.raises(ValueError, match=r"one of the classes is the empty text, so row 3"):
        audit.with_labels(answers(tmp_path, "id,label\n1,a\n2,\n"))
    told = audit.with_labels(pd.DataFrame({"id": [1, 2], "label": ["", None]}))
    assert (told.labels, told.empty, told.broken.value) == (1, 1, 1.0)


NAMES = ["a", "1", "01", "TRUE", "NA", 'x,"y;z', "é\n"]


@pytest.fixture(scope="module")
def many():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"id": [f"r{i}" for i in range(60)], "prediction": rng.choice(NAMES, 60)})
    new = rows.assign(prediction=rng.choice(NAMES, 60))
    return lowchurn.audit.audit(rows, new), dict(
        zip(rows.id, zip(rows.prediction, new.prediction, strict=True), strict=True)
    )


@settings(max_examples=25, deadline=None)
@given(data=st.data(), separator=st.sampled_from(",;\t|"), end=st.sampled_from(["\n", "\r\n"]))
def test_a_review_equals_a_plain_loop(many, tmp_path_factory, data, separator, end):
    audit, decisions = many
    told = data.draw(st.dictionaries(st.sampled_from(sorted(decisions)), st.sampled_from([*NAMES, ""]), min_size=1))
    path = tmp_path_factory.mktemp("answers") / "answers.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator=end)
        writer.writerows([["label", "id"], *([label, id_] for id_, label in told.items())])
    counted = dict.fromkeys(("fixed", "broken", "lateral", "agreeing", "empty"), 0)
    for id_, label in told.items():
        old, new = decisions[id_]
        kind = "fixed" if label == new else "broken" if label == old else "lateral"
        counted["empty" if not label else "agreeing" if old == new else kind] += 1
    review = audit.with_labels(path)
    answered = counted["fixed"] + counted["broken"] + counted["lateral"]
    assert (review.labels, review.empty, review.unknown) == (answered, counted["empty"], counted["agreeing"])
    disputed = sum(old != new for old, new in decisions.values())
    if answered:
        change = (counted["fixed"] - counted["broken"]) / answered * disputed / 60
        assert review.accuracy_change.value == pytest.approx(change)
        assert review.broken_rows.value == pytest.approx(counted["broken"] / answered * disputed / 60)


def test_two_key_columns(tmp_path):
    old = pd.DataFrame({"a": [1, 1, 2], "b": ["x", "y", "x"], "prediction": 0})
    audit = lowchurn.audit.audit(old, old.assign(prediction=1), id=["a", "b"])
    assert audit.with_labels(answers(tmp_path, "b,label,a\nx,1,1\ny,0,1\n")).fixed.value == 0.5
    with pytest.raises(ValueError, match=r"such as \(2, 'y'\)"):
        audit.with_labels(answers(tmp_path, "b,label,a\ny,1,2\n"))


def test_a_filled_in_file_is_recognised_however_it_was_saved(tmp_path):
    path = tmp_path / "label-me.csv"
    for text, filled in [("id,label\n1,\n", False), ("id,label\n1,a\n", True), ("id;Label\r\n1;a\r\n", True)]:
        for encoding in ("utf-8-sig", "utf-16"):
            path.write_bytes(text.encode(encoding))
            assert holds_answers(path) is filled
    path.write_bytes(b"id,label\n1,caf\xe9\n")
    assert holds_answers(path)
    path.write_bytes(bytes(range(256)))
    assert not holds_answers(path)
