"""Reading data sets: the layout, the encodings, the splits, and what is said when something is not there."""

import hashlib
import weakref

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lowchurn.bench._datasets import BY_NAME, CELEBA_TASKS, DATASETS, names_of
from lowchurn.bench._loading import (
    LENGTH,
    as_numbers,
    available,
    encode,
    expand,
    fixed_split,
    load,
    prepare,
    token_ids,
)
from lowchurn.bench._npz import array_names
from lowchurn.bench._retraining import rows_on_device


def write(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    write(
        tmp_path / "tabular" / "own.parquet",
        number=rng.normal(size=30).astype("float32"),
        colour=[["red", "blue", None][i % 3] for i in range(30)],
        target=["yes" if i % 2 else "no" for i in range(30)],
    )
    (tmp_path / "images").mkdir()
    np.savez(
        tmp_path / "images" / "celeba.npz",
        x_train=rng.integers(256, size=(8, 12, 12, 3), dtype=np.uint8),
        x_test=rng.integers(256, size=(4, 12, 12, 3), dtype=np.uint8),
        y_train=np.zeros(8, np.int16),
        y_test=np.zeros(4, np.int16),
        attr_train=np.arange(8 * 40).reshape(8, 40) // 40 % 2,
        attr_test=np.arange(4 * 40).reshape(4, 40) // 40 % 2,
        attr_names=np.array(CELEBA_TASKS),
    )
    write(
        tmp_path / "text" / "imdb.parquet",
        text=["Good, good film<br />", "Bad film!", "good"],
        label=[1, 0, 1],
        split=["train", "train", "test"],
    )
    return tmp_path


def test_the_list_holds_the_papers_data_sets():
    counts = {group: len(names_of(group)) for group in ("openml", "mnist-variants", "celeba", "built-in")}
    assert counts == {"openml": 12, "mnist-variants": 10, "celeba": 40, "built-in": 4}
    assert {"svhn", "cifar10", "cifar100", "imdb"} <= set(BY_NAME)
    assert len(BY_NAME) == len(DATASETS)
    assert expand(["openml", "adult", "wine"]) == [*names_of("openml"), "wine"]


def test_a_table_of_ones_own_is_encoded_and_split(folder):
    data = load("own", folder)
    assert data.X.dtype == np.float32
    np.testing.assert_array_equal(data.X[:3, 1], [1, 0, 2])  # blue, red, and one more for what is missing
    np.testing.assert_array_equal(data.y[:4], [0, 1, 0, 1])
    assert (len(data.train), len(data.test)) == (20, 10)
    assert not set(data.train) & set(data.test)
    assert available(folder)["own"].endswith("own.parquet")


def test_a_column_named_split_is_the_split(tmp_path):
    write(tmp_path / "tabular" / "own.parquet", x=[1.0, 2.0, 3.0], target=[0, 1, 0], split=["test", "train", "train"])
    data = load("own", tmp_path)
    assert data.train.tolist() == [1, 2]
    assert data.test.tolist() == [0]
    assert data.X.shape == (3, 1)


def test_images_and_their_tasks(folder):
    data = load("celeba_smiling", folder)
    assert data.X.shape == (12, 12, 12, 3)
    assert data.X.dtype == np.uint8  # as numbers they would take four times the memory
    np.testing.assert_array_equal(as_numbers(data.X), data.X.astype(np.float32) / 255)
    assert data.classes == 2
    assert data.train.tolist() == list(range(8))


def test_all_tasks_of_celeba_share_their_images(folder, tmp_path):
    path = tmp_path / "faces.npz"
    prepare(path, ["celeba"], folder)
    assert [name for name in array_names(path) if name.endswith("/X")] == ["celeba_5_o_clock_shadow/X"]
    tasks = expand(["celeba"])
    for place in (folder, path):
        data = [load(name, place) for name in tasks]
        assert len({id(one.X) for one in data}) == 1
        assert [one.name for one in data] == tasks
    assert [load(name, folder).fingerprint for name in tasks] == [one.fingerprint for one in data]


def test_images_are_on_a_device_once(folder):
    bald, young = (load(f"celeba_{task}", folder) for task in ("bald", "young"))
    place = torch.device("cpu")
    one = rows_on_device(bald.X, place, torch.float32)
    assert rows_on_device(young.X, place, torch.float32) is one
    np.testing.assert_array_equal(one.numpy(), as_numbers(bald.X))
    assert rows_on_device(bald.X, place, torch.float64).dtype == torch.float64
    gone = weakref.ref(one)
    del one
    assert gone() is None  # nobody needs it


def test_images_that_were_replaced_are_read_again(folder):
    path, old = folder / "images" / "celeba.npz", load("celeba_bald", folder)
    arrays = dict(np.load(path))
    np.savez(path, **(arrays | {"x_test": arrays["x_test"] + np.uint8(1)}))
    assert load("celeba_bald", folder).fingerprint != old.fingerprint


def test_the_hash_of_images_is_that_of_their_numbers(folder):
    data = load("celeba_young", folder)
    digest = hashlib.sha256()
    for values in (data.X.astype(np.float32) / 255, data.y, data.train, data.test):
        digest.update(str((values.dtype, values.shape)).encode() + values.tobytes())
    assert digest.hexdigest()[:16] == data.fingerprint


def test_images_are_scaled_by_channel(folder):
    data = load("celeba_young", folder)
    known = data.scaled().X[data.train]
    np.testing.assert_allclose(known.mean(axis=(0, 1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(known.std(axis=(0, 1, 2)), 1, atol=1e-6)


def test_texts_become_the_ids_of_keras(folder):
    data = load("imdb", folder)
    assert data.X.shape == (3, LENGTH)
    # Padding in front, then the start mark; "film" and "good" occur twice in training, "bad" once.
    assert data.X[0, -4:].tolist() == [1, 4, 4, 3]
    assert data.X[1, -3:].tolist() == [1, 5, 3]
    assert data.X[2, :-2].max() == 0
    long = token_ids([["a"] * 300], np.array([0]))
    assert (long == 3).all()  # the last words are kept


def test_scaling_uses_the_training_rows_only(folder):
    raw = load("own", folder)
    scaled = raw.scaled()
    np.testing.assert_allclose(scaled.X[raw.train].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.X[raw.train].std(axis=0), 1, atol=1e-6)
    assert abs(scaled.X[raw.test].mean()) > 1e-4
    assert scaled.fingerprint == raw.fingerprint


def test_constant_columns_survive_scaling(tmp_path):
    write(tmp_path / "tabular" / "own.parquet", x=[1.0] * 9, y=list(map(float, range(9))), target=[0, 1, 2] * 3)
    assert np.isfinite(load("own", tmp_path).scaled().X).all()


def test_the_split_is_the_same_for_everybody():
    train, test = fixed_split("wilt", 4839)
    assert (len(train), len(test)) == (3226, 1613)
    assert train[:5].tolist() == fixed_split("wilt", 4839)[0][:5].tolist()
    assert train[:50].tolist() != fixed_split("pollen", 4839)[0][:50].tolist()


def test_a_prepared_file_gives_the_same_data(folder, tmp_path):
    path = tmp_path / "inputs.npz"
    prepare(path, ["own", "wine", "imdb"], folder)
    for name in ("own", "wine", "imdb"):
        one, other = load(name, folder), load(name, path)
        assert one.fingerprint == other.fingerprint
        np.testing.assert_array_equal(one.X, other.X)
    assert set(available(path)) == {"own", "wine", "imdb"}
    with pytest.raises(ValueError, match="unknown data set 'wne'. Did you mean 'wine'"):
        load("wne", path)
    assert load("digits", path).fingerprint == load("digits").fingerprint  # comes with scikit-learn, as ever


def test_digits_are_images_large_enough_for_a_convnet():
    flat, images = load("digits"), load("digit_images")
    assert images.X.shape == (1797, 28, 28, 1)
    assert (images.X.min(), images.X.max()) == (0, 1)
    np.testing.assert_array_equal(images.X[:, 3:26:3, 3:26:3, 0], flat.X.reshape(-1, 8, 8) / 16)
    assert images.X[:, :2].max() == 0


@pytest.mark.parametrize(
    ("column", "codes"),
    [
        (["b", "a", None], [1, 0, 2]),
        (["10", "9", "-1"], [10, 9, -1]),  # numbers in disguise
        (["10", None, "-1"], [10, 11, -1]),
        ([3, 1, 2], [3, 1, 2]),
        ([True, False], [1, 0]),
    ],
)
def test_encoding(column, codes):
    assert encode(column).tolist() == codes


def test_bad_names_and_places_are_said(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("LOWCHURN_DATA", raising=False)
    with pytest.raises(ValueError, match="unknown data set 'digts'. Did you mean 'digits'"):
        load("digts")
    with pytest.raises(ValueError, match=r"adult is not here \(looked for tabular/adult.parquet in .*data fetch adult"):
        load("adult", folder)
    with pytest.raises(ValueError, match="adult is not here .*no folder"):
        load("adult")
    with pytest.raises(ValueError, match="there is no folder or file"):
        load("adult", tmp_path / "nowhere")


def test_damaged_and_unfit_files_are_named(folder):
    (folder / "tabular" / "bad.parquet").write_bytes(b"not a table")
    with pytest.raises(ValueError, match="bad.parquet cannot be read"):
        load("bad", folder)
    write(folder / "tabular" / "untargeted.parquet", x=[1.0])
    with pytest.raises(ValueError, match="untargeted.parquet has no column named target"):
        load("untargeted", folder)
    write(folder / "tabular" / "holes.parquet", x=[1.0, None], target=[0, 1])
    with pytest.raises(ValueError, match="holes.parquet has missing or infinite numbers"):
        load("holes", folder)
    (folder / "images" / "mnist.npz").write_bytes(b"PK not an archive")
    with pytest.raises(ValueError, match="mnist.npz cannot be read"):
        load("mnist", folder)
