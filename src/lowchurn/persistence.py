"""One file that holds models: a zip archive of native model files and plain JSON, written in one step.

Nothing in it is a pickle. A file is written beside its place and moved there when it is complete, so a process that is
killed leaves either the old file or the new one, never a half.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowchurn.checks import unknown_name
from lowchurn.learners import ALL
from lowchurn.learners.skops import load_skops

ABOUT = "lowchurn.json"


def write_whole(path: str | Path, data: bytes) -> None:
    """Write a file so that it is there completely or not at all.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from lowchurn.persistence import write_whole
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(f"{folder}/a.txt", b"all of it")
    ...     pathlib.Path(folder, "a.txt").read_bytes()
    b'all of it'
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"save: the folder of {str(path)!r} must exist. Make it first.")
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(draft, 0o666 & ~mask)  # as any other new file; mkstemp makes private ones
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def write_archive(path: str | Path, about: dict[str, Any], files: dict[str, bytes]) -> None:
    """Write a description and named files as one archive.

    Examples
    --------
    >>> import tempfile
    >>> from lowchurn.persistence import read_archive, write_archive
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_archive(f"{folder}/m.skops", {"kind": "demo"}, {"a": b"1"})
    ...     read_archive(f"{folder}/m.skops")
    ({'kind': 'demo'}, {'a': b'1'})
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(ABOUT, json.dumps(about, indent=1))
        for name, data in files.items():
            archive.writestr(name, data)
    write_whole(path, buffer.getvalue())


def read_archive(path: str | Path) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """The description and the files; None where the file is an archive of another kind (see :func:`write_archive`).

    Examples
    --------
    >>> from lowchurn.persistence import read_archive
    >>> read_archive("nowhere.skops")
    Traceback (most recent call last):
    ...
    ValueError: load: path must be a file that is there, got 'nowhere.skops'.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"load: path must be a file that is there, got {str(path)!r}.")
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f"load: {str(path)!r} is neither a saved lowchurn model nor a skops file. Pickles can run any code when "
            f"read and are refused; where you trust this one, load with trusted=[{path.name!r}]."
        )
    with zipfile.ZipFile(path) as archive:
        broken = archive.testzip()
        if broken is not None:
            raise ValueError(f"load: {str(path)!r} is damaged, in its part {broken!r}.")
        names = archive.namelist()
        if ABOUT not in names:
            return None
        return json.loads(archive.read(ABOUT)), {name: archive.read(name) for name in names if name != ABOUT}


def model_to_files(model: Any) -> tuple[str, dict[str, bytes]]:
    """The learner's name and the files of a trained model.

    Examples
    --------
    >>> from sklearn.dummy import DummyClassifier
    >>> from lowchurn.persistence import model_from_files, model_to_files
    >>> learner, files = model_to_files(DummyClassifier().fit([[0], [1]], ["a", "b"]))
    >>> learner, model_from_files(learner, files).predict([[2]]).tolist()
    ('rows', ['a'])
    """
    for learner in ALL:
        if learner.saves(model):
            return learner.name, learner.save(model)
    raise ValueError(
        f"save: a {type(model).__name__} cannot be saved without a pickle. "
        "Models of scikit-learn, LightGBM, XGBoost, CatBoost and torch networks can."
    )


def model_from_files(learner: str, files: dict[str, bytes], trusted: Sequence[str] = ()) -> Any:
    """What :func:`model_to_files` wrote.

    Examples
    --------
    >>> from lowchurn.persistence import model_from_files
    >>> model_from_files("row", {})
    Traceback (most recent call last):
    ...
    ValueError: load: unknown learner 'row'. Did you mean 'rows'? Known: catboost, lightgbm, rows, torch, xgboost.
    """
    known = {cls.name: cls for cls in ALL}
    if learner not in known:
        raise unknown_name("load", "learner", learner, known)
    return known[learner].load(files, trusted)


def load_other(path: str | Path, trusted: Sequence[str] = ()) -> Any:
    """A plain skops file, or a pickle whose file name is trusted.

    Examples
    --------
    >>> import pathlib, pickle, tempfile
    >>> from lowchurn.persistence import load_other
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "old.pkl")
    ...     _ = path.write_bytes(pickle.dumps([1, 2]))
    ...     load_other(path, trusted=["old.pkl"])
    [1, 2]
    """
    path = Path(path)
    if path.name in trusted and not zipfile.is_zipfile(path):
        import joblib

        return joblib.load(path)
    return load_skops(path.read_bytes(), trusted)
