"""Data sets that somebody else made, or that are damaged: refused in one line that names the file."""

import datetime
import decimal
import gzip
import io
import struct
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowchurn.bench._fetch import fetch, read_idx
from lowchurn.bench._loading import VOCABULARY, available, load, prepare
from lowchurn.bench._npz import read_arrays

ROWS = 12
GOOD = {
    "X": np.arange(2.0 * ROWS, dtype=np.float32).reshape(ROWS, 2),
    "y": np.arange(ROWS) % 3,
    "train": np.arange(8),
    "test": np.arange(8, ROWS),
    "classes": np.array(3),
}


def prepared(path, **changes):
    parts = {name: value for name, value in (GOOD | changes).items() if value is not None}
    np.savez(path, **{f"own/{name}": value for name, value in parts.items()})
    return path


def changed(name, place, value):
    values = GOOD[name].copy()
    values[place] = value
    return {name: values}


def test_the_good_one_is_read(tmp_path):
    data = load("own", prepared(tmp_path / "a.npz"))
    np.testing.assert_array_equal(data.X, GOOD["X"])
    assert (len(data.train), len(data.test), data.classes) == (8, 4, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (changed("y", 0, 3), "labels from 0 to 3"),
        (changed("y", 0, -1), "labels from -1 to 2"),
        ({"y": GOOD["y"] * 1.5}, "own/y must be whole numbers, got dtype float64"),
        ({"y": np.where(GOOD["y"] == 0, np.nan, 1)}, "own/y must be whole numbers"),
        ({"y": np.array(["a"] * ROWS)}, "own/y must be whole numbers"),
        ({"y": GOOD["y"][:-1]}, "one label per row"),
        ({"y": GOOD["y"][:, None]}, "own/y must be whole numbers, got dtype int64 and shape"),
        ({"y": np.zeros(ROWS, int), "classes": np.array(1)}, "at least two classes"),
        ({"classes": np.array(10**9)}, "got 1000000000 classes"),
        ({"classes": np.array([3])}, "own/classes must be one whole number"),
        ({"classes": np.array(2.5)}, "own/classes must be one whole number"),
        (changed("train", 0, ROWS), f"train rows must be from 0 to {ROWS - 1}, got 1 to {ROWS}"),
        (changed("test", 0, -1), "test rows must be from 0 to"),
        (changed("train", 0, 1), "some occur twice"),
        (changed("test", 0, 1), "some occur twice"),
        ({"test": np.array([], int)}, "has no test rows"),
        ({"train": np.array([], int)}, "has no train rows"),
        (changed("X", (0, 0), np.inf), "missing or infinite numbers"),
        (changed("X", (0, 0), np.nan), "missing or infinite numbers"),
        ({"X": GOOD["X"][:, 0]}, "must have features"),
        ({"X": GOOD["X"][:, :0]}, "must have features"),
        ({"X": GOOD["X"] > 3}, "own/X must contain numbers, got dtype bool"),
        ({"X": GOOD["X"] * 1j}, "own/X must contain numbers, got dtype complex"),
        ({"X": np.full((ROWS, 2), {}, dtype=object)}, "Python objects, which may run code"),
        ({"X": np.full((ROWS, 5), VOCABULARY)}, "token ids from 0 to 19999"),
        ({"X": np.full((ROWS, 5), -1)}, "token ids from 0 to 19999"),
        ({"X": np.zeros((ROWS, 201), int)}, "rows of at most 200 token ids"),
        ({"y": None}, "it has no array 'own/y'"),
    ],
)
def test_prepared_files_whose_parts_do_not_fit_are_refused(tmp_path, changes, message):
    path = prepared(tmp_path / "a.npz", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        load("own", path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def npz(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(shape, content=b"", dtype="<f4"):
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy((10**12, 10), b"1234"), r"claims the shape \(1000000000000, 10\)"),
        (npy((2, -1), b"1234"), "claims the shape"),
        (npy((2,), b"1234"), "claims the shape"),
        (npy((1,), b"1234", dtype="|O"), "Python objects"),
        (b"\x93NUMPY\x09\x00" + b" " * 100, "version"),
        (b"\x93NUMPY\x01\x00\xff\xff", "cannot be read"),
        (b"", "cannot be read"),
        (npy((1,), b"1234").replace(b"<f4", b"(" * 3), "cannot be read"),
    ],
)
def test_arrays_that_claim_what_they_are_not_are_refused(tmp_path, content, message):
    path = npz(tmp_path / "a.npz", x=content)
    with pytest.raises(ValueError, match=message) as caught:
        read_arrays(path, ["x"])
    assert "\n" not in str(caught.value)


def test_an_archive_that_unpacks_to_more_than_memory_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = npz(tmp_path / "a.npz", x=npy((2**20,), bytes(2**22)))
    assert path.stat().st_size < 10**4
    monkeypatch.setattr("lowchurn.nets._memory.free_memory", lambda device: 2.0**23)
    with pytest.raises(ValueError, match="it unpacks to 4.0 MiB, too much for 8.0 MiB of free memory"):
        read_arrays(path, ["x"])


@pytest.mark.parametrize("content", [b"", b"PK", b"not an archive", b"\x93NUMPY\x01\x00"])
def test_files_that_are_no_archives(tmp_path, content):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    for use in (lambda: load("own", path), lambda: available(path), lambda: load("wine", path)):
        with pytest.raises(ValueError, match="a.npz cannot be read"):
            use()


WHOLE = {}


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_damage_to_a_prepared_file_is_one_line_or_harmless(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("data") / "a.npz"
    if not WHOLE:
        WHOLE["bytes"] = prepared(path).read_bytes()
    content = bytearray(WHOLE["bytes"])
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bytes(content))
    try:
        found = load("own", path)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017 - damage may be harmless, so nothing needs to be raised
        return
    np.testing.assert_array_equal(found.y, GOOD["y"])


def table(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


DAY = datetime.date(2020, 1, 1)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [[1], [2]], "target": [0, 1]}, "column x is of type list"),
        ({"x": [{"a": 1}, {"a": 2}], "target": [0, 1]}, "column x is of type struct"),
        ({"x": [DAY, DAY], "target": [0, 1]}, "column x is of type date32"),
        ({"x": [b"a", b"b"], "target": [0, 1]}, "column x is of type binary"),
        ({"x": [1.0, float("inf")], "target": [0, 1]}, "missing or infinite numbers"),
        ({"x": [1.0, 1e300], "target": [0, 1]}, "missing or infinite numbers"),
        ({"x": ["1", "nan"], "target": [0, 1]}, "missing or infinite numbers"),
        ({"x": [1.0, 2.0], "target": [0, None]}, "column target must not have missing labels, got 1"),
        ({"x": [1.0, 2.0], "target": [0.0, float("nan")]}, "column target must not have missing labels, got 1"),
        ({"x": [1.0, 2.0], "target": ["a", None]}, "column target must not have missing labels, got 1"),
        ({"x": [1.0, 2.0], "target": [DAY, DAY]}, "column target is of type date32"),
        ({"x": [1.0, 2.0], "target": [[1], [2]]}, "column target is of type list"),
        ({"x": [1.0, 2.0], "target": [1, 1]}, "at least two classes"),
        ({"x": pa.array([], pa.float64()), "target": pa.array([], pa.int64())}, "has no rows"),
        ({"target": [0, 1]}, "has no columns of features"),
        ({"x": [1.0, 2.0], "target": [0, 1], "split": ["train", "Test"]}, "'train' or 'test' .*got 'Test'"),
        ({"x": [1.0, 2.0], "target": [0, 1], "split": ["train", None]}, "'train' or 'test' .*got 'None'"),
        ({"x": [1.0, 2.0], "target": [0, 1], "split": [1, 2]}, "column split is of type int64"),
        ({"x": [1.0, 2.0], "target": [0, 1], "split": ["train", "train"]}, "has no test rows"),
    ],
)
def test_tables_that_cannot_be_trained_on_are_refused(tmp_path, columns, message):
    table(tmp_path / "tabular" / "own.parquet", **columns)
    with pytest.raises(ValueError, match=message) as caught:
        load("own", tmp_path)
    assert "own.parquet" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_columns_of_one_name_are_refused(tmp_path):
    path = tmp_path / "tabular" / "own.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table([pa.array([1.0]), pa.array([2.0]), pa.array([1])], names=["x", "x", "target"]), path)
    with pytest.raises(ValueError, match="has two columns named x"):
        load("own", tmp_path)


def test_decimals_and_dictionaries_are_numbers_and_categories(tmp_path):
    numbers = pa.array([decimal.Decimal("1.5"), decimal.Decimal("-2.25"), decimal.Decimal("0")])
    words = pa.array(["b", "a", "b"]).dictionary_encode()
    table(tmp_path / "tabular" / "own.parquet", x=numbers, c=words, target=["n", "y", "n"])
    data = load("own", tmp_path)
    assert data.X.tolist() == [[1.5, 1], [-2.25, 0], [0, 1]]
    assert data.y.tolist() == [0, 1, 0]


def test_a_folder_named_like_a_value_changes_nothing(tmp_path):
    table(tmp_path / "target=7" / "tabular" / "p[1].parquet", x=[1.0, 2.0, 3.0], target=[0, 1, 0])
    assert load("p[1]", tmp_path / "target=7").y.tolist() == [0, 1, 0]


def test_a_name_is_not_a_path(tmp_path):
    table(tmp_path / "tabular" / "own.parquet", x=[1.0, 2.0, 3.0], target=[0, 1, 0])
    for name in ("../tabular/own", str(tmp_path / "tabular" / "own"), "", "..", "own\0"):
        with pytest.raises(ValueError, match="unknown data set|control characters"):
            load(name, tmp_path)


PIXELS = np.zeros((4, 12, 12), np.uint8)
IMAGES = {"x_train": PIXELS, "x_test": PIXELS[:2], "y_train": np.array([0, 1, 0, 1]), "y_test": np.array([1, 0])}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": PIXELS / 255}, "x_train must be images as bytes.*float64"),
        ({"x_train": PIXELS[0]}, "x_train must be images as bytes"),
        ({"x_test": PIXELS[:2, :8]}, r"must have one shape, got \(12, 12\) and \(8, 12\)"),
        ({"x_test": np.zeros((2, 12, 12, 3), np.uint8)}, "must have one shape"),
        ({"y_test": np.array([1, 0, 1])}, "one per image"),
        ({"y_test": np.array([np.nan, 1])}, "labels must be whole numbers"),
        ({"y_test": np.array([{}, {}], dtype=object)}, "Python objects"),
        ({"y_train": np.zeros(4, int), "y_test": np.zeros(2, int)}, "at least two classes"),
        ({"x_train": PIXELS[:0], "y_train": np.zeros(0, int)}, "has no train rows"),
        ({"x_train": None}, "it has no array 'x_train'"),
    ],
)
def test_images_that_cannot_be_trained_on_are_refused(tmp_path, changes, message):
    (tmp_path / "images").mkdir()
    parts = {name: value for name, value in (IMAGES | changes).items() if value is not None}
    np.savez(tmp_path / "images" / "mnist.npz", **parts)
    with pytest.raises(ValueError, match=message) as caught:
        load("mnist", tmp_path)
    assert "mnist.npz" in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", None], "label": [0, 1], "split": ["train", "test"]}, "missing texts, got 1"),
        ({"text": [1, 2], "label": [0, 1], "split": ["train", "test"]}, "column text is of type int64"),
        ({"text": ["a", "b"], "label": [0, None], "split": ["train", "test"]}, "missing labels"),
        ({"text": ["a", "b"], "label": ["n", "y"], "split": ["train", "test"]}, "column label is of type string"),
        ({"text": ["a", "b"], "label": [0, 1]}, "has no column named split"),
        ({"text": ["a", "b"], "split": ["train", "test"]}, "has no column named label"),
    ],
)
def test_texts_that_cannot_be_trained_on_are_refused(tmp_path, columns, message):
    table(tmp_path / "text" / "imdb.parquet", **columns)
    with pytest.raises(ValueError, match=message):
        load("imdb", tmp_path)


def test_labels_of_texts_are_classes_however_large(tmp_path):
    table(tmp_path / "text" / "imdb.parquet", text=["a", "b"], label=[-5, 10**12], split=["train", "test"])
    data = load("imdb", tmp_path)
    assert data.classes == 2
    assert data.y.tolist() == [0, 1]


def test_a_prepared_file_is_whole_or_the_old_one(tmp_path, monkeypatch):
    table(tmp_path / "tabular" / "own.parquet", x=[1.0, 2.0, 3.0], target=[0, 1, 0])
    path = prepared(tmp_path / "a.npz")
    old = path.read_bytes()
    with pytest.raises(ValueError, match="must not overwrite the data"):
        prepare(path, ["own"], path)
    with pytest.raises(ValueError, match="must not overwrite the data"):
        prepare(tmp_path / "tabular" / "own.parquet", ["own"], tmp_path)
    with pytest.raises(ValueError, match="there is no folder"):
        prepare(tmp_path / "nowhere" / "a.npz", ["own"], tmp_path)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(ValueError, match="cannot write .*No space left"):
        prepare(path, ["wine"])
    assert path.read_bytes() == old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "tabular"]


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"a": 1}', b"[" * 10**5, b"\xff\xfe\x00"])
def test_checksums_that_cannot_be_read_are_said_before_the_download(tmp_path, content):
    (tmp_path / "checksums.json").write_bytes(content)
    with pytest.raises(ValueError, match="checksums.json"):
        fetch("mnist", tmp_path)
    assert not (tmp_path / "images").exists()


def test_files_of_mnists_format_that_are_cut_or_lie(tmp_path):
    shape = struct.pack(">I", 3)
    whole = gzip.compress(b"\x00\x00\x08\x01" + shape + b"abc")
    path = tmp_path / "a.gz"
    path.write_bytes(whole)
    assert read_idx(path).tolist() == [97, 98, 99]
    huge = gzip.compress(b"\x00\x00\x08\x03" + b"\xff" * 12 + b"abc")
    more = gzip.compress(b"\x00\x00\x08\x01" + shape + b"abcd")
    for content in (whole[:-9], b"", b"no", gzip.compress(b"\x00\x00\x08"), gzip.compress(b"GIF89a"), huge, more):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not an array of bytes in MNIST's format"):
            read_idx(path)


def test_a_fetch_that_fails_keeps_the_old_file(tmp_path, monkeypatch):
    table(tmp_path / "tabular" / "adult.parquet", x=[1.0])
    old = (tmp_path / "tabular" / "adult.parquet").read_bytes()

    def broken(**options):
        raise OSError("no network")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", broken)
    with pytest.raises(OSError, match="no network"):
        fetch("adult", tmp_path, again=True)
    assert (tmp_path / "tabular" / "adult.parquet").read_bytes() == old
    assert [p.name for p in (tmp_path / "tabular").iterdir()] == ["adult.parquet"]


def test_columns_by_fortran_order_are_the_same(tmp_path):
    values = np.arange(6.0).reshape(2, 3)
    buffer = io.BytesIO()
    np.save(buffer, np.asfortranarray(values))
    found = read_arrays(npz(tmp_path / "a.npz", x=buffer.getvalue()), ["x"])
    np.testing.assert_array_equal(found["x"], values)


def test_labels_that_differ_in_their_last_character_are_two_classes(tmp_path):
    table(tmp_path / "tabular" / "own.parquet", x=[1.0, 2.0, 3.0], target=["a\0", "a", "a\0"])
    own = load("own", tmp_path)
    assert (own.y.tolist(), own.classes) == ([1, 0, 1], 2)


@pytest.mark.parametrize("kind", ["float16", "float64", ">f4", "longdouble"])
def test_prepared_features_become_float32(tmp_path, kind):
    X = np.arange(6.0).reshape(3, 2).astype(kind)
    parts = {"X": X, "y": np.array([0, 1, 0]), "train": np.array([0, 1]), "test": np.array([2]), "classes": np.array(2)}
    np.savez(tmp_path / "a.npz", **{f"own/{name}": value for name, value in parts.items()})
    own = load("own", tmp_path / "a.npz")
    assert own.X.dtype == np.float32
    assert own.X.tolist() == X.tolist()


def test_prepared_features_beyond_float32_are_refused(tmp_path):
    X = np.array([[1e300], [0], [1]])
    parts = {"X": X, "y": np.array([0, 1, 0]), "train": np.array([0, 1]), "test": np.array([2]), "classes": np.array(2)}
    np.savez(tmp_path / "a.npz", **{f"own/{name}": value for name, value in parts.items()})
    with pytest.raises(ValueError, match="missing or infinite numbers"):
        load("own", tmp_path / "a.npz")


@pytest.mark.parametrize(
    "damage", [b"{'descr': ((((", b"{'descr': '<f4', 'shape': 1L 2)", b"\n  x\n y\n", b"\xff", b""]
)
def test_an_array_whose_description_is_damaged_is_one_line(tmp_path, damage):
    np.savez(tmp_path / "whole.npz", **{"own/X": np.zeros((3, 2), np.float32)})
    with zipfile.ZipFile(tmp_path / "whole.npz") as whole:
        array = whole.read("own/X.npy")
    length = int.from_bytes(array[8:10], "little")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("own/X.npy", array[:10] + damage.ljust(length)[:length] + array[10 + length :])
    with pytest.raises(ValueError, match=r"a.npz cannot be read: its array 'own/X' has no description"):
        read_arrays(tmp_path / "a.npz", ["own/X"])
