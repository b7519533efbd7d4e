"""Get data sets from the internet into the local layout (see :mod:`lowchurn.bench._datasets`).

OpenML's come through scikit-learn, the others through Hugging Face ``datasets`` (``pip install "lowchurn[data]"``).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lowchurn._checks import unknown_name
from lowchurn._extras import importing
from lowchurn._files import real_place, scratch_folder, write_file
from lowchurn._reading import read_json
from lowchurn.bench._datasets import BY_NAME, CELEBA_TASKS, Spec
from lowchurn.bench._loading import ENDINGS

CHECKSUMS = "checksums.json"
MOST_BYTES = 2**32  # of one array; the largest that is fetched has 0.6 GB
SIDE = 32  # of CelebA's images: the middle square, made smaller


def fetch(name: str, folder: str | Path, *, again: bool = False) -> Path | None:
    """Get one data set and return where it lies, or None for one that needs no file.

    A file that is there already is checked against its checksum and left alone, unless ``again`` is true.
    """
    spec = BY_NAME.get(name)
    if spec is None:
        raise unknown_name("data fetch", "data set", name, BY_NAME)
    if spec.kind == "built-in":
        return None
    folder = Path(folder)
    path = folder / (spec.files[0] + ENDINGS[spec.kind])
    if path.exists() and not again:
        check(folder, path)
        return path
    where, _, what = spec.source.partition(":")
    get: Callable[[Spec, str, Path], None] = {
        "openml": _openml,
        "openml-images": _openml_images,
        "huggingface": _hugging_face,
        "idx": _idx,
    }[where]
    _checksums(folder)  # one that cannot be read is refused before the download, not after it
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"data fetch: cannot write to {path.parent}: {error.strerror}.") from None
    with scratch_folder(path.parent) as scratch:
        get(spec, what, scratch / path.name)
        os.replace(scratch / path.name, real_place(path))
    noted = _checksums(folder) | {str(path.relative_to(folder)): checksum(path)}
    write_file(folder / CHECKSUMS, json.dumps(noted, indent=1, sort_keys=True) + "\n")
    return path


def check(folder: str | Path, path: Path) -> None:
    """Refuse a file that is not what was fetched; one without a checksum passes."""
    noted = _checksums(Path(folder)).get(str(path.relative_to(folder)))
    if noted is not None and noted != checksum(path):
        raise ValueError(f"data: {path} is not what was fetched: its checksum differs. Fetch it again with --again.")


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksums(folder: Path) -> dict[str, str]:
    path = folder / CHECKSUMS
    return read_json("data", str(path), path.read_bytes(), dict[str, str]) if path.exists() else {}


def _openml(spec: Spec, number: str, path: Path) -> None:
    from sklearn.datasets import fetch_openml

    found = fetch_openml(data_id=int(number), as_frame=True, parser="auto")
    columns = {}
    for name in found.data.columns:
        column = found.data[name]
        kind = str if str(column.dtype) in ("category", "object", "string", "str", "bool") else float
        columns[name] = [None if value is None or value != value else kind(value) for value in column.tolist()]
    _write_parquet(path, columns | {"target": [str(v) for v in found.target.tolist()]})


def _openml_images(spec: Spec, what: str, path: Path) -> None:
    """Square gray images whose training rows come first."""
    from sklearn.datasets import fetch_openml

    number, _, count = what.partition("@")
    found = fetch_openml(data_id=int(number), as_frame=False, parser="auto")
    side = round(found.data.shape[1] ** 0.5)
    X, y = np.asarray(found.data, dtype=np.uint8).reshape(-1, side, side), np.asarray(found.target).astype(np.int16)
    cut = int(count)
    _write_images(path, {"x_train": X[:cut], "y_train": y[:cut], "x_test": X[cut:], "y_test": y[cut:]})


def _idx(spec: Spec, repository: str, path: Path) -> None:
    """EMNIST as its authors publish it, turned upright."""
    with importing(f"data fetch: {spec.name}", "data"):
        from huggingface_hub import hf_hub_download
    stem, arrays = repository.split("/")[1], {}
    for part in ("train", "test"):
        files = [
            hf_hub_download(repository, f"{stem}-{part}-{kind}-ubyte.gz", repo_type="dataset")
            for kind in ("images-idx3", "labels-idx1")
        ]
        arrays[f"x_{part}"] = read_idx(Path(files[0])).swapaxes(1, 2)
        arrays[f"y_{part}"] = read_idx(Path(files[1])).astype(np.int16)
    _write_images(path, arrays)


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes in MNIST's own format, compressed; its size is read before the rest is unpacked."""
    bad = f"data fetch: {path} is not an array of bytes in MNIST's format"
    try:
        with gzip.open(path) as file:
            start = file.read(4)
            if start[:3] != b"\x00\x00\x08" or len(start) < 4:
                raise ValueError(f"{bad}.")
            sizes = file.read(4 * start[3])
            if len(sizes) < 4 * start[3]:
                raise ValueError(f"{bad}: it ends early.")
            shape = tuple(np.frombuffer(sizes, ">u4").tolist())
            if math.prod(shape) > MOST_BYTES:
                raise ValueError(f"{bad}: it claims the shape {shape}.")
            content = file.read(math.prod(shape) + 1)
    except (OSError, EOFError, OverflowError, zlib.error) as error:
        raise ValueError(f"{bad} ({error}).") from None
    if len(content) != math.prod(shape):
        raise ValueError(f"{bad}: it claims the shape {shape}, but does not have as many bytes.")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _write_images(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with open(path, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _write_parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, compression="zstd")


def _hugging_face(spec: Spec, what: str, path: Path) -> None:
    with importing(f"data fetch: {spec.name}", "data"):
        from datasets import load_dataset
    repository, _, configuration = what.partition("@")
    parts = load_dataset(repository, configuration) if configuration else load_dataset(repository)
    for part in ("train", "test"):
        if part not in parts:
            raise ValueError(f"data fetch: {repository} has no part {part!r}, only {sorted(parts)}.")
    if spec.kind == "text":
        columns = {name: [*parts["train"][name], *parts["test"][name]] for name in ("text", "label")}
        split = ["train"] * len(parts["train"]) + ["test"] * len(parts["test"])
        _write_parquet(path, columns | {"split": split})
        return
    arrays: dict[str, np.ndarray] = {}
    for part in ("train", "test"):
        rows = parts[part]
        image = _first(rows.column_names, ("image", "img"))
        if spec.task:
            arrays[f"x_{part}"] = np.stack([_face(row[image]) for row in rows])
            attributes = [np.asarray(rows[task]).astype(np.int8) for task in CELEBA_TASKS]
            arrays[f"attr_{part}"] = np.stack(attributes, axis=1)
            arrays[f"y_{part}"] = arrays[f"attr_{part}"][:, CELEBA_TASKS.index("Smiling")].astype(np.int16)
        else:
            arrays[f"x_{part}"] = np.stack([np.asarray(row[image], dtype=np.uint8) for row in rows])
            label = _first(rows.column_names, ("label", "fine_label"))
            arrays[f"y_{part}"] = np.asarray(rows[label], dtype=np.int16)
    if spec.task:
        arrays["attr_names"] = np.asarray(CELEBA_TASKS)
    _write_images(path, arrays)


def _first(names: list[str], wanted: tuple[str, ...]) -> str:
    for name in wanted:
        if name in names:
            return name
    raise ValueError(f"data fetch: no column {' or '.join(wanted)}, only {', '.join(names)}.")


def _face(picture: Any) -> np.ndarray:
    """The middle square of a face, 32 x 32 pixels."""
    width, height = picture.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    square = picture.crop((left, top, left + side, top + side))
    return np.asarray(square.resize((SIDE, SIDE)).convert("RGB"), dtype=np.uint8)
