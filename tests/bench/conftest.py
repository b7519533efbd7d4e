"""Small data sets in the layout of the bench: images and words whose classes can be learnt."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lowchurn.bench._datasets import CELEBA_TASKS


@pytest.fixture
def made_data(tmp_path):
    """A folder with mnist, kmnist, svhn and cifar10 (12 x 12 pixels), all tasks of CelebA, and imdb."""
    rng, folder = np.random.default_rng(0), tmp_path / "made"
    (folder / "images").mkdir(parents=True)
    (folder / "text").mkdir()
    for name, train, channels in (("mnist", 80, 0), ("kmnist", 50, 0), ("svhn", 60, 3), ("cifar10", 60, 3)):
        y = np.arange(train + 24) % 3
        x = images(rng, y, channels)
        parts = {"x_train": x[:train], "y_train": y[:train], "x_test": x[train:], "y_test": y[train:]}
        np.savez(folder / "images" / f"{name}.npz", **parts)
    attributes = rng.integers(2, size=(84, 40))
    x = images(rng, attributes[:, 0], 3)
    parts = {"x_train": x[:60], "attr_train": attributes[:60], "x_test": x[60:], "attr_test": attributes[60:]}
    np.savez(folder / "images" / "celeba.npz", attr_names=np.array(CELEBA_TASKS), **parts)
    label = np.arange(70) % 2
    texts = [" ".join(rng.choice(["film", "plot", ("bad", "good")[k]], size=12)) for k in label]
    table = pa.table({"text": texts, "label": label, "split": ["train"] * 50 + ["test"] * 20})
    pq.write_table(table, folder / "text" / "imdb.parquet")
    return folder


def images(rng, y, channels):
    """Noise with a bright column whose place is the class."""
    x = rng.integers(100, size=(len(y), 12, 12, *[channels] * bool(channels)), dtype=np.uint8)
    x[np.arange(len(y)), :, 2 + 3 * y] += 120
    return x
