"""Fetching, with stand-ins for the two libraries that reach the internet."""

import gzip
import sys
import types

import numpy as np
import pytest

from lowchurn.bench._datasets import CELEBA_TASKS
from lowchurn.bench._fetch import check, fetch
from lowchurn.bench._loading import load


class Rows:
    """A part of a Hugging Face data set."""

    def __init__(self, **columns):
        self.columns, self.column_names = columns, list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name):
        return self.columns[name]

    def __iter__(self):
        return (dict(zip(self.columns, values, strict=True)) for values in zip(*self.columns.values(), strict=True))


@pytest.fixture
def hub(monkeypatch):
    asked = []

    def serve(parts):
        module = types.ModuleType("datasets")
        module.load_dataset = lambda *names: asked.append(names) or parts
        monkeypatch.setitem(sys.modules, "datasets", module)
        return asked

    return serve


def test_openml_through_scikit_learn(tmp_path, monkeypatch):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": [1, 2, 3], "job": pd.Categorical(["b", None, "a"])})
    found = types.SimpleNamespace(data=frame, target=pd.Series(["yes", "no", "yes"], dtype="category"))
    asked = []
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda **options: asked.append(options) or found)
    path = fetch("adult", tmp_path)
    assert path == tmp_path / "tabular" / "adult.parquet"
    assert asked[0]["data_id"] == 1590
    data = load("adult", tmp_path)
    assert data.X.tolist() == [[1, 1], [2, 2], [3, 0]]
    assert data.y.tolist() == [1, 0, 1]
    fetch("adult", tmp_path)  # is there
    assert len(asked) == 1
    fetch("adult", tmp_path, again=True)
    assert len(asked) == 2


def test_images_through_hugging_face(tmp_path, hub):
    rng = np.random.default_rng(0)
    parts = {
        part: Rows(img=list(rng.integers(256, size=(n, 32, 32, 3), dtype=np.uint8)), label=[i % 3 for i in range(n)])
        for part, n in (("train", 6), ("test", 3))
    }
    asked = hub(parts)
    fetch("svhn", tmp_path)
    assert asked == [("ufldl-stanford/svhn", "cropped_digits")]
    data = load("svhn", tmp_path)
    assert data.X.shape == (9, 32, 32, 3)
    assert data.classes == 3


def test_faces_through_hugging_face(tmp_path, hub):
    image = pytest.importorskip("PIL.Image")
    tasks = {task: [i % 2 == 0, True] for i, task in enumerate(CELEBA_TASKS)}
    parts = {part: Rows(image=[image.new("RGB", (178, 218))] * 2, **tasks) for part in ("train", "test")}
    hub(parts)
    assert fetch("celeba_smiling", tmp_path).name == "celeba.npz"
    assert load("celeba_young", tmp_path).X.shape == (4, 32, 32, 3)


def test_texts_through_hugging_face(tmp_path, hub):
    hub({"train": Rows(text=["good film"], label=[1]), "test": Rows(text=["bad"], label=[0])})
    fetch("imdb", tmp_path)
    assert load("imdb", tmp_path).train.tolist() == [0]


def test_files_in_the_format_of_mnist(tmp_path, monkeypatch):
    def idx(array):
        return gzip.compress(bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes())

    images = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28)

    def download(repository, name, repo_type):
        path = tmp_path / name
        path.write_bytes(idx(images if "images" in name else np.array([0, 1], np.uint8)))
        return str(path)

    module = types.ModuleType("huggingface_hub")
    module.hf_hub_download = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    fetch("emnist_balanced", tmp_path)
    data = load("emnist_balanced", tmp_path)
    np.testing.assert_array_equal(data.X[0, :, :, 0], images[0].T)


def test_a_changed_file_is_named(tmp_path, hub):
    hub({"train": Rows(text=["good"], label=[1]), "test": Rows(text=["bad"], label=[0])})
    path = fetch("imdb", tmp_path)
    check(tmp_path, path)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ValueError, match="imdb.parquet is not what was fetched"):
        fetch("imdb", tmp_path)


def test_a_failed_fetch_leaves_nothing(tmp_path, hub):
    hub({"train": Rows(text=["good"], label=[1])})
    with pytest.raises(ValueError, match="stanfordnlp/imdb has no part 'test'"):
        fetch("imdb", tmp_path)
    assert list((tmp_path / "text").iterdir()) == []


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r'pip install "lowchurn\[data\]"'):
        fetch("mnist", tmp_path)
    with pytest.raises(ValueError, match="unknown data set 'mnst'. Did you mean 'mnist'"):
        fetch("mnst", tmp_path)
    assert fetch("digits", tmp_path) is None
