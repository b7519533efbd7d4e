"""Read a data set from the local layout (see :mod:`lowchurn.bench.datasets`) or from one prepared file."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lowchurn.bench.datasets import BY_NAME, DATASETS, Spec, names_of
from lowchurn.checks import unknown_name

ENDINGS = {"tabular": ".parquet", "image": ".npz", "text": ".parquet"}
FOLDERS = {"tabular": "tabular", "images": "image", "text": "text"}
VOCABULARY, LENGTH = 20000, 200  # of the paper's transformer
PADDING, START, UNKNOWN, FIRST_WORD = range(4)  # Keras' token ids; words follow, the most frequent first


@dataclass(frozen=True)
class Data:
    """Rows, labels and the split of one data set.

    Attributes
    ----------
    X : array of shape (N, ...)
        Features as float32, images in [0, 1] channels-last, or rows of token ids.
    y : array of int, shape (N,)
        Class indices.
    train, test : arrays of int
        Row numbers.
    fingerprint : str
        Hash of all of the above, before scaling.
    """

    name: str
    X: np.ndarray
    y: np.ndarray
    train: np.ndarray
    test: np.ndarray
    classes: int
    fingerprint: str

    def scaled(self) -> Data:
        """Standardised with the mean and deviation of the training rows: each column, or each channel of images."""
        if self.X.dtype.kind != "f":
            return self  # token ids have no scale
        axes = tuple(range(self.X.ndim - 1))
        known = self.X[self.train].astype(np.float64)
        mean, deviation = known.mean(axis=axes), known.std(axis=axes)
        deviation[deviation == 0] = 1
        return replace(self, X=((self.X - mean) / deviation).astype(np.float32))


def find_data(data: str | Path | None) -> Path | None:
    """The folder (or prepared file) of data: what is given, else ``LOWCHURN_DATA``, else None."""
    chosen = data or os.environ.get("LOWCHURN_DATA")
    if not chosen:
        return None
    path = Path(chosen)
    if not path.exists():
        raise ValueError(f"data: there is no folder or file {path}. Give --data or set LOWCHURN_DATA.")
    return path


def load(name: str, data: str | Path | None = None) -> Data:
    """Read one data set by name.

    Parameters
    ----------
    name : str
        One of :data:`~lowchurn.bench.datasets.DATASETS`, or a file of the layout.
    data : path, optional
        A folder in the layout, or a file made by :func:`prepare`; by default ``LOWCHURN_DATA``.

    Examples
    --------
    >>> from lowchurn.bench.loading import load
    >>> digits = load("digits")
    >>> digits.X.shape, len(digits.train), len(digits.test), digits.classes
    ((1797, 64), 1198, 599, 10)
    """
    place = find_data(data)
    if place is not None and place.is_file():
        return _load_prepared(name, place)
    spec = BY_NAME.get(name) or _own_file(name, place)
    if spec is None:
        raise unknown_name("data", "data set", name, BY_NAME)
    if spec.kind == "built-in":
        return _built_in(spec)
    path = locate(spec, place)
    if path is None:
        looked = f"looked for {' and '.join(f + ENDINGS[spec.kind] for f in spec.files)} in {place or 'no folder'}"
        raise ValueError(
            f"data: {name} is not here ({looked}). Get it with `lowchurn data fetch {name} --data DIR` on a machine "
            "with internet, then give --data DIR or set LOWCHURN_DATA."
        )
    return {"tabular": _tabular, "image": _images, "text": _text}[spec.kind](spec, path)


def locate(spec: Spec, place: Path | None) -> Path | None:
    """The file of a data set in a folder, or None."""
    if place is None or not place.is_dir():
        return None
    for file in spec.files:
        path = place / (file + ENDINGS[spec.kind])
        if path.exists():
            return path
    return None


def available(data: str | Path | None = None) -> dict[str, str]:
    """Name -> where it lies, for every data set that can be read here."""
    place = find_data(data)
    found: dict[str, str] = {}
    if place is not None and place.is_file():
        with np.load(place) as archive:
            return {name: str(place) for name in sorted({key.split("/")[0] for key in archive.files})}
    for spec in DATASETS:
        path = locate(spec, place)
        if spec.kind == "built-in":
            found[spec.name] = "scikit-learn"
        elif path is not None:
            found[spec.name] = str(path)
    if place is not None:
        known = {spec.files[0].split("/")[1] for spec in DATASETS if spec.files}
        known |= {file.split("/")[1] for spec in DATASETS for file in spec.files}
        for folder, kind in FOLDERS.items():
            for path in sorted((place / folder).glob(f"*{ENDINGS[kind]}")):
                if path.stem not in known:
                    found[path.stem] = str(path)
    return found


def expand(names: Sequence[str]) -> list[str]:
    """Data sets and groups (such as ``openml``) as a plain list of data sets, each once."""
    return list(dict.fromkeys(one for name in names for one in (names_of(name) or (name,))))


def prepare(path: str | Path, names: Sequence[str], data: str | Path | None = None) -> None:
    """Write data sets into one compressed file that needs nothing but numpy to read."""
    arrays: dict[str, np.ndarray] = {}
    for name in expand(names):
        one = load(name, data)
        for part in ("X", "y", "train", "test"):
            value = getattr(one, part)
            arrays[f"{name}/{part}"] = value.astype(np.int32) if value.dtype == np.int64 else value
        arrays[f"{name}/classes"] = np.array(one.classes)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def _load_prepared(name: str, path: Path) -> Data:
    with np.load(path) as archive:
        names = {key.split("/")[0] for key in archive.files}
        if name not in names and name in BY_NAME and BY_NAME[name].kind == "built-in":
            return _built_in(BY_NAME[name])
        if name not in names:
            raise unknown_name(f"data: {path}", "data set", name, names)
        part = {key: archive[f"{name}/{key}"] for key in ("X", "y", "train", "test", "classes")}
    whole = {key: part[key].astype(np.int64) for key in ("y", "train", "test")}
    X = part["X"] if part["X"].dtype.kind == "f" else part["X"].astype(np.int64)
    return _made(name, X, whole["y"], whole["train"], whole["test"], int(part["classes"]))


def _own_file(name: str, place: Path | None) -> Spec | None:
    for folder, kind in FOLDERS.items():
        if place is not None and (place / folder / f"{name}{ENDINGS[kind]}").exists():
            return Spec(name, "own", kind, "own", (f"{folder}/{name}",))
    return None


def _made(name: str, X: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, classes: int) -> Data:
    digest = hashlib.sha256()
    for array in (X, y, train, test):
        digest.update(str((array.dtype, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return Data(name, X, y, train, test, classes, digest.hexdigest()[:16])


def fixed_split(name: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The same 2:1 split of a data set for everybody: its training and test rows."""
    order = np.random.default_rng(zlib.crc32(name.encode())).permutation(rows)
    cut = round(2 * rows / 3)
    return np.sort(order[:cut]), np.sort(order[cut:])


def _built_in(spec: Spec) -> Data:
    from sklearn import datasets

    X, y = getattr(datasets, spec.source.removeprefix("scikit-learn:"))(return_X_y=True)
    if spec.name == "digit_images":  # 8 x 8 is too small for the paper's convnets: three times as large, and a margin
        grown = np.kron(X.reshape(-1, 8, 8) / 16, np.ones((3, 3)))
        X = np.pad(grown, ((0, 0), (2, 2), (2, 2)))[..., None]
    train, test = fixed_split(spec.name, len(y))
    return _made(spec.name, X.astype(np.float32), y.astype(np.int64), train, test, int(y.max()) + 1)


def read_parquet(path: Path) -> Any:
    """A Parquet file as a pyarrow table; a damaged one is an error that names it."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError(f'reading {path} needs pyarrow: pip install "lowchurn[bench]"') from error
    try:
        return pq.read_table(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"data: {path} cannot be read as Parquet ({error}). Fetch it again.") from error


def _tabular(spec: Spec, path: Path) -> Data:
    table = read_parquet(path)
    if "target" not in table.column_names:
        raise ValueError(f"data: {path} has no column named target.")
    names = [name for name in table.column_names if name not in ("target", "split")]
    X = np.column_stack([encode(table[name].to_pylist()) for name in names]).astype(np.float32)
    labels = np.asarray(table["target"].to_pylist())
    kinds, y = np.unique(labels, return_inverse=True)
    if not np.isfinite(X).all():
        raise ValueError(f"data: {path} has missing or infinite numbers in its numeric columns. Fill them in first.")
    if "split" in table.column_names:
        split = np.asarray(table["split"].to_pylist())
        train, test = np.flatnonzero(split == "train"), np.flatnonzero(split == "test")
    else:
        train, test = fixed_split(spec.name, len(y))
    return _made(spec.name, X, y.astype(np.int64), train, test, len(kinds))


def encode(values: list[Any]) -> np.ndarray:
    """A column as numbers: numbers stay, categories become their rank, and a missing category is one after the last.

    Categories that are numbers in disguise are these numbers.

    Examples
    --------
    >>> from lowchurn.bench.loading import encode
    >>> encode(["b", "a", None, "b"])
    array([1., 0., 2., 1.])
    >>> encode(["10", "-1", None])
    array([10., -1., 11.])
    """
    present = {value for value in values if value is not None}
    if not any(isinstance(value, str) for value in present):
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    try:
        number = {category: float(category) for category in present}
    except ValueError:
        number = {category: float(rank) for rank, category in enumerate(sorted(present))}
    missing = max(number.values()) + 1
    return np.array([missing if value is None else number[value] for value in values], dtype=np.float64)


def _images(spec: Spec, path: Path) -> Data:
    try:
        with np.load(path) as archive:
            X = np.concatenate([archive["x_train"], archive["x_test"]])
            count = len(archive["x_train"])
            if spec.task:
                place = [str(name) for name in archive["attr_names"]].index(spec.task)
                labels = np.concatenate([archive["attr_train"][:, place], archive["attr_test"][:, place]])
            else:
                labels = np.concatenate([archive["y_train"], archive["y_test"]])
    except (OSError, KeyError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(f"data: {path} cannot be read as images ({error}). Fetch it again.") from error
    X = (X if X.ndim == 4 else X[..., None]).astype(np.float32) / 255
    kinds, y = np.unique(labels, return_inverse=True)
    rows = np.arange(len(y))
    return _made(spec.name, X, y.astype(np.int64), rows[:count], rows[count:], len(kinds))


def _text(spec: Spec, path: Path) -> Data:
    table = read_parquet(path)
    split = np.asarray(table["split"].to_pylist())
    train, test = np.flatnonzero(split == "train"), np.flatnonzero(split == "test")
    words = [re.findall(r"[a-z0-9']+", text.lower().replace("<br />", " ")) for text in table["text"].to_pylist()]
    y = np.asarray(table["label"].to_pylist(), dtype=np.int64)
    X = token_ids(words, train)
    return _made(spec.name, X, y, train, test, int(y.max()) + 1)


def token_ids(words: list[list[str]], train: np.ndarray) -> np.ndarray:
    """The last 200 words of each text as Keras numbers them: by how often they occur in the training texts."""
    counts = Counter(word for i in train for word in words[i])
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - FIRST_WORD]
    number = {word: i + FIRST_WORD for i, word in enumerate(ranked)}
    X = np.full((len(words), LENGTH), PADDING, dtype=np.int64)
    for row, text in zip(X, words, strict=True):
        ids = [START, *(number.get(word, UNKNOWN) for word in text)][-LENGTH:]
        row[LENGTH - len(ids) :] = ids
    return X
