"""Read a data set from the local layout (see :mod:`lowchurn.bench._datasets`) or from one prepared file."""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lowchurn._checks import unknown_name
from lowchurn._extras import importing
from lowchurn._files import check_outputs, write_file
from lowchurn._terminal import one_line, printable
from lowchurn.bench._datasets import BY_NAME, DATASETS, Spec, names_of
from lowchurn.bench._npz import array_names, read_arrays

ENDINGS = {"tabular": ".parquet", "image": ".npz", "text": ".parquet"}
FOLDERS = {"tabular": "tabular", "images": "image", "text": "text"}
VOCABULARY, LENGTH = 20000, 200  # of the paper's transformer
PADDING, START, UNKNOWN, FIRST_WORD = range(4)  # Keras' token ids; words follow, the most frequent first
PIXELS = np.arange(256, dtype=np.float32) / 255  # what a byte of an image stands for


@dataclass(frozen=True)
class Data:
    """Rows, labels and the split of one data set.

    ``X`` are features as float32, images as bytes, channels-last (:func:`as_numbers`), or rows of token ids; ``y``
    class indices; ``train`` and ``test`` row numbers; ``fingerprint`` a hash of all of these before scaling. Data sets
    that are tasks on the same images (CelebA) have the same array.
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
        if is_text(self.X):
            return self  # token ids have no scale
        axes = tuple(range(self.X.ndim - 1))
        known = as_numbers(self.X[self.train]).astype(np.float64)
        mean, deviation = known.mean(axis=axes), known.std(axis=axes)
        deviation[deviation == 0] = 1
        return replace(self, X=((as_numbers(self.X) - mean) / deviation).astype(np.float32))


def is_text(X: np.ndarray) -> bool:
    """Whether rows are token ids."""
    return X.dtype.kind == "i"


def as_numbers(X: np.ndarray) -> np.ndarray:
    """Images as numbers from 0 to 1; other rows are as they are."""
    return PIXELS[X] if X.dtype == np.uint8 else X


def find_data(data: str | Path | None) -> Path | None:
    """The folder (or prepared file) of data: what is given, else ``LOWCHURN_DATA``, else None."""
    chosen = data or os.environ.get("LOWCHURN_DATA")
    if chosen and not Path(chosen).exists():
        raise ValueError(f"data: there is no folder or file {Path(chosen)}. Give --data or set LOWCHURN_DATA.")
    return Path(chosen) if chosen else None


def load(name: str, data: str | Path | None = None) -> Data:
    """Read one data set by name.

    Parameters
    ----------
    name : str
        One of :data:`~lowchurn.bench._datasets.DATASETS`, or a file of the layout.
    data : path, optional
        A folder in the layout, or a file made by :func:`prepare`; by default ``LOWCHURN_DATA``.

    Examples
    --------
    >>> from lowchurn.bench import load
    >>> digits = load("digits")
    >>> digits.X.shape, len(digits.train), len(digits.test), digits.classes
    ((1797, 64), 1198, 599, 10)
    """
    if printable(name) != name:
        raise ValueError(
            f"data: the name of a data set must have no control characters, got {name!r}. Rename its file."
        )
    place = find_data(data)
    if place is not None and place.is_file():
        return _load_prepared(name, place)
    spec = find_spec(name, place)
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
    return next((path for file in spec.files if (path := place / (file + ENDINGS[spec.kind])).exists()), None)


def available(data: str | Path | None = None) -> dict[str, str]:
    """Name -> where it lies, for every data set that can be read here."""
    place = find_data(data)
    if place is not None and place.is_file():
        return {name: str(place) for name in sorted({key.split("/")[0] for key in array_names(place)})}
    found: dict[str, str] = {}
    for spec in DATASETS:
        path = locate(spec, place)
        if spec.kind == "built-in":
            found[spec.name] = "scikit-learn"
        elif path is not None:
            found[spec.name] = str(path)
    if place is not None:
        known = {file.split("/")[1] for spec in DATASETS for file in spec.files}
        for folder, kind in FOLDERS.items():
            for path in sorted((place / folder).glob(f"*{ENDINGS[kind]}")):
                if path.stem not in known:
                    found[path.stem] = str(path)
    return found


def expand(names: Sequence[str]) -> list[str]:
    """Data sets and groups (such as ``openml``) as a plain list of data sets, each once."""
    return list(dict.fromkeys(one for name in names for one in (names_of(name) or (name,))))


def prepare(path: str | Path, names: Sequence[str], data: str | Path | None = None) -> int:
    """Write data sets into one compressed file that needs nothing but numpy to read; return its size in bytes."""
    place = find_data(data)
    read: list[Path | None] = [place] if place is not None and place.is_file() else []
    read += [locate(spec, place) for name in expand(names) if (spec := find_spec(name, place)) is not None]
    check_outputs("bench prepare", {"PATH": path}, {f"the data {source}": source for source in read if source})
    arrays: dict[str, np.ndarray] = {}
    owners: dict[int, tuple[str, np.ndarray]] = {}  # of rows; kept here, so that no other array gets their id
    for name in expand(names):
        one = load(name, data)
        owner, _ = owners.setdefault(id(one.X), (name, one.X))
        arrays |= {f"{name}/X": _narrow(one.X)} if owner == name else {f"{name}/X of": np.array(owner)}
        arrays |= {f"{name}/{part}": _narrow(getattr(one, part)) for part in ("y", "train", "test")}
        arrays[f"{name}/classes"] = np.array(one.classes)
    content = _archive(arrays)
    write_file(path, content)
    return len(content)


def _narrow(values: np.ndarray) -> np.ndarray:
    """Whole numbers of 64 bits in the fewest bytes."""
    return values.astype(np.min_scalar_type(values.max(initial=0))) if values.dtype == np.int64 else values


def _archive(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays as an ``.npz`` file that is a sixth smaller than numpy's for images."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, values, allow_pickle=False)
    return buffer.getvalue()


def _load_prepared(name: str, path: Path) -> Data:
    names = array_names(path)
    if name not in {key.split("/")[0] for key in names}:
        if name in BY_NAME and BY_NAME[name].kind == "built-in":
            return _built_in(BY_NAME[name])
        raise unknown_name(f"data: {path}", "data set", name, {key.split("/")[0] for key in names})
    owner = name
    if f"{name}/X of" in names:
        owner = str(read_arrays(path, [f"{name}/X of"])[f"{name}/X of"])
    rows = _shared_rows(path, _stamp(path), f"{owner}/X")
    part = read_arrays(path, [f"{name}/{key}" for key in ("y", "train", "test", "classes")])
    y, train, test, classes = part.values()
    for key, value in (("y", y), ("train", train), ("test", test), ("classes", classes)):
        if value.dtype.kind not in "iu" or value.ndim != (key != "classes"):
            raise ValueError(
                f"data: {path}: {name}/{key} must be {'one whole number' if key == 'classes' else 'whole numbers'}, "
                f"got dtype {value.dtype} and shape {value.shape}."
            )
    y, train, test = (values.astype(np.int64) for values in (y, train, test))
    return _made(name, rows.X, y, train, test, int(classes), path, rows.digest)


def _stamp(path: Path) -> tuple[int, int]:
    """What differs between two versions of a file."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size


class _Rows(NamedTuple):
    """Rows of a file, the number in each of its parts, and the hash that they begin."""

    X: np.ndarray
    counts: tuple[int, ...]
    digest: Any


@lru_cache(maxsize=1)
def _shared_rows(path: Path, stamp: tuple[int, int], *names: str) -> _Rows:
    """Rows of a file, read once for data sets that have the same, such as CelebA's: one part, or those of images."""
    parts = read_arrays(path, names)
    X = _joined_images(path, parts) if len(parts) > 1 else _prepared_rows(path, *parts.items())
    return _Rows(X, tuple(len(part) for part in parts.values()), _hash_of(X))


def _joined_images(path: Path, parts: Mapping[str, np.ndarray]) -> np.ndarray:
    for name, X in parts.items():
        if X.dtype != np.uint8 or X.ndim not in (3, 4):
            raise ValueError(
                f"data: {path}: {name} must be images as bytes, (n, h, w) or (n, h, w, channels), got dtype "
                f"{X.dtype} and shape {X.shape}."
            )
    shapes = [X.shape[1:] for X in parts.values()]
    if len(set(shapes)) > 1:
        both = " and ".join(map(str, shapes))
        raise ValueError(f"data: {path}: images of train and test must have one shape, got {both}.")
    X = np.concatenate(list(parts.values()))
    return X if X.ndim == 4 else X[..., None]


def _prepared_rows(path: Path, part: tuple[str, np.ndarray]) -> np.ndarray:
    name, X = part
    if X.dtype.kind not in "fiu":
        raise ValueError(f"data: {path}: {name} must contain numbers, got dtype {X.dtype}.")
    if X.dtype == np.uint8 and X.ndim == 4:
        return X
    with np.errstate(over="ignore"):  # what is too large for float32 is infinite, which is refused later
        return X.astype(np.float32 if X.dtype.kind == "f" else np.int64)


def _hash_of(X: np.ndarray) -> Any:
    """The hash of rows as numbers, which more can be added to."""
    digest = hashlib.sha256()
    digest.update(str((np.dtype(np.float32) if X.dtype == np.uint8 else X.dtype, X.shape)).encode())
    for first in range(0, len(X), 4096):
        digest.update(np.ascontiguousarray(as_numbers(X[first : first + 4096])).data)
    return digest


def find_spec(name: str, place: Path | None) -> Spec | None:
    """The data set of this name: one of the list, or a file in a folder of data."""
    if name in BY_NAME or place is None or Path(name).name != name or name in ("", ".", ".."):
        return BY_NAME.get(name)  # no path that leads elsewhere
    own = (Spec(name, "own", kind, "own", (f"{folder}/{name}",)) for folder, kind in FOLDERS.items())
    return next((spec for spec in own if locate(spec, place)), None)


def _made(
    name: str,
    X: np.ndarray,
    y: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    classes: int,
    source: Path | str = "scikit-learn",
    digest: Any = None,
) -> Data:
    """A data set whose parts fit each other; what does not is an error that names its source."""
    who = f"data: {source}: {name}"
    if X.ndim < 2 or X.size == 0 or y.shape != X.shape[:1]:
        raise ValueError(f"{who} must have features and one label per row, got shapes {X.shape} and {y.shape}.")
    if X.dtype.kind == "f":
        if not np.isfinite(X).all():
            raise ValueError(f"{who} has missing or infinite numbers among its features. Fill them in first.")
    elif is_text(X) and (X.ndim != 2 or X.shape[1] > LENGTH or X.min() < 0 or X.max() >= VOCABULARY):
        raise ValueError(
            f"{who} must have rows of at most {LENGTH} token ids from 0 to {VOCABULARY - 1}, got shape {X.shape} and "
            f"ids from {X.min()} to {X.max()}."
        )
    if y.min() < 0 or y.max() != classes - 1 or classes < 2:
        raise ValueError(
            f"{who} must have at least two classes and labels from 0 to the number of classes less one, got {classes} "
            f"classes and labels from {y.min()} to {y.max()}."
        )
    for part, rows in (("train", train), ("test", test)):
        if len(rows) == 0:
            raise ValueError(f"{who} has no {part} rows.")
        if rows.min() < 0 or rows.max() >= len(y):
            raise ValueError(f"{who}: {part} rows must be from 0 to {len(y) - 1}, got {rows.min()} to {rows.max()}.")
    if len(np.union1d(train, test)) < len(train) + len(test):
        raise ValueError(f"{who}: training and test rows must all be different; some occur twice.")
    digest = _hash_of(X) if digest is None else digest.copy()
    for array in (y, train, test):
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


def read_parquet(path: Path, wanted: Sequence[str] = ()) -> Any:
    """A Parquet file as a pyarrow table; one that is damaged, or lacks a column, is an error that names it."""
    with importing(f"data: reading {path}", "bench"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"data: {path} cannot be read as Parquet ({one_line(error)}). Fetch it again.") from error
    names = table.column_names
    for name in wanted:
        if name not in names:
            raise ValueError(f"data: {path} has no column named {name}.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not table.num_rows:
        raise ValueError(f"data: {path} {f'has two columns named {twice[0]}' if twice else 'has no rows'}.")
    return table


NUMBERS, TEXT = ("int", "uint", "float", "double", "halffloat", "decimal", "bool"), ("string", "large_string")


def _values(table: Any, name: str, path: Path, kinds: tuple[str, ...]) -> list[Any]:
    """A column as Python values; one of another kind is an error."""
    kind = table[name].type
    kind = getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind
    if not str(kind).startswith((*kinds, "null")):
        raise ValueError(
            f"data: {path}: column {name} is of type {kind}, which cannot be used there. Convert it to "
            f"{'numbers, booleans or text' if kinds is not TEXT else 'text'}."
        )
    values: list[Any] = table[name].to_pylist()
    return values


def _labels(values: Sequence[Any], path: Path, name: str) -> tuple[np.ndarray, int]:
    """Labels as class indices in the order of the labels, and how many classes there are."""
    missing = sum(value is None or value != value for value in values)
    if missing:
        raise ValueError(f"data: {path}: column {name} must not have missing labels, got {missing}.")
    number = {label: i for i, label in enumerate(sorted(set(values)))}
    return np.array([number[value] for value in values], dtype=np.int64), len(number)


def _split(table: Any, path: Path) -> tuple[np.ndarray, np.ndarray]:
    split = np.asarray(_values(table, "split", path, TEXT), dtype=object)
    others = sorted({str(value) for value in split} - {"train", "test"})
    if others:
        raise ValueError(f"data: {path}: column split must be 'train' or 'test' in every row, got {others[0]!r}.")
    return np.flatnonzero(split == "train"), np.flatnonzero(split == "test")


def _tabular(spec: Spec, path: Path) -> Data:
    table = read_parquet(path, ["target"])
    names = [name for name in table.column_names if name not in ("target", "split")]
    if not names:
        raise ValueError(f"data: {path} has no columns of features.")
    columns = [encode(_values(table, name, path, (*NUMBERS, *TEXT))) for name in names]
    with np.errstate(over="ignore"):  # what is too large for float32 is infinite, which is refused below
        X = np.column_stack(columns).astype(np.float32)
    y, classes = _labels(_values(table, "target", path, (*NUMBERS, *TEXT)), path, "target")
    if not np.isfinite(X).all():
        raise ValueError(f"data: {path} has missing or infinite numbers in its numeric columns. Fill them in first.")
    train, test = _split(table, path) if "split" in table.column_names else fixed_split(spec.name, len(y))
    return _made(spec.name, X, y, train, test, classes, path)


def encode(values: list[Any]) -> np.ndarray:
    """A column as numbers: numbers in disguise are these, other categories their rank, a missing one the next."""
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
    images = _shared_rows(path, _stamp(path), "x_train", "x_test")
    labels = ("attr_train", "attr_test", "attr_names") if spec.task else ("y_train", "y_test")
    found = read_arrays(path, labels)
    chosen: list[np.ndarray] = [found[name] for name in labels[:2]]
    for part, own, count in zip(("train", "test"), chosen, images.counts, strict=True):
        if own.dtype.kind not in "iub" or own.ndim != 1 + bool(spec.task) or len(own) != count:
            raise ValueError(
                f"data: {path}: labels must be whole numbers, one per image, got dtype {own.dtype} and shape "
                f"{own.shape} for {count} images of {part}."
            )
    if spec.task:
        tasks = [str(name) for name in found["attr_names"].ravel()]
        widths = {values.shape[1] for values in chosen}
        if spec.task not in tasks or widths != {len(tasks)}:
            raise ValueError(f"data: {path} has no task {spec.task} among {len(tasks)} names for columns {widths}.")
        chosen = [values[:, tasks.index(spec.task)] for values in chosen]
    kinds, y = np.unique(np.concatenate(chosen), return_inverse=True)
    train, test = np.split(np.arange(len(y)), images.counts[:1])
    return _made(spec.name, images.X, y.astype(np.int64), train, test, len(kinds), path, images.digest)


def _text(spec: Spec, path: Path) -> Data:
    table = read_parquet(path, ["text", "label", "split"])
    train, test = _split(table, path)
    texts = _values(table, "text", path, TEXT)
    if None in texts:
        raise ValueError(f"data: {path}: column text must not have missing texts, got {texts.count(None)}.")
    words = [re.findall(r"[a-z0-9']+", text.lower().replace("<br />", " ")) for text in texts]
    y, classes = _labels(_values(table, "label", path, ("int", "uint")), path, "label")
    return _made(spec.name, token_ids(words, train), y, train, test, classes, path)


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
