"""One file that contains models: a zip archive of native model files and plain JSON, written in one step.

Nothing in it is a pickle. Its description lists the SHA-256 of every part, which is checked before a part is parsed:
the libraries that read native models are written for whole files, not for damaged ones.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowchurn._checks import unknown_name
from lowchurn._files import write_file
from lowchurn._model_files import CHUNK, Refused, most_unpacked, read_record, read_zip, reading, write_zip
from lowchurn._terminal import one_line
from lowchurn.learners import ALL
from lowchurn.learners._skops import load_skops

ABOUT = "lowchurn.json"
HASHES = "sha256"


def write_archive(path: str | Path, about: dict[str, Any], files: dict[str, bytes]) -> None:
    """Write a description and named files as one archive.

    Examples
    --------
    >>> import tempfile
    >>> from lowchurn.estimator._archive import read_archive, write_archive
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_archive(f"{folder}/m.skops", {"kind": "demo"}, {"a": b"1"})
    ...     read_archive(f"{folder}/m.skops")
    ({'kind': 'demo'}, {'a': b'1'})
    """
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    try:
        text = json.dumps({**about, HASHES: hashes}, indent=1)
    except (TypeError, ValueError) as error:
        raise ValueError(f"save: the model has settings that cannot be written as JSON ({one_line(error)}).") from error
    parts = {ABOUT: text.encode(), **files}
    content = write_zip(parts, zipfile.ZIP_DEFLATED)
    if sum(map(len, parts.values())) > most_unpacked(content):  # it would be taken for a bomb
        content = write_zip(parts)
    write_file(path, content)


def read_file(path: str | Path) -> bytes:
    """The content of a file; of a large one that is no archive only the start.

    Examples
    --------
    >>> from lowchurn.estimator._archive import read_file
    >>> read_file("nowhere.skops")
    Traceback (most recent call last):
    ...
    lowchurn._model_files.Refused: load: path must be a file that is there, got 'nowhere.skops'.
    """
    try:
        if not Path(path).is_file():
            raise Refused(f"load: path must be a file that is there, got {str(path)!r}.")
        with open(path, "rb") as file:
            start = file.read(CHUNK)
            # A large file that is no archive is refused by its start.
            return start if len(start) == CHUNK and not zipfile.is_zipfile(path) else start + file.read()
    except (OSError, MemoryError, ValueError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(f"load: {str(path)!r} cannot be read ({one_line(error) or type(error).__name__}).") from None


def is_archive(data: bytes) -> bool:
    """Whether this is a zip file, whole or damaged: only then can skops or lowchurn have written it.

    Examples
    --------
    >>> from lowchurn.estimator._archive import is_archive
    >>> is_archive(b"PK\\x03\\x04..."), is_archive(b"\\x80\\x04\\x95 a pickle")
    (True, False)
    """
    return data.startswith(b"PK") or zipfile.is_zipfile(io.BytesIO(data))


def read_archive(path: str | Path) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """The description and the files; None where the file is an archive of another kind (see :func:`write_archive`).

    Examples
    --------
    >>> from lowchurn.estimator._archive import read_archive
    >>> read_archive("nowhere.skops")
    Traceback (most recent call last):
    ...
    lowchurn._model_files.Refused: load: path must be a file that is there, got 'nowhere.skops'.
    """
    return parse_archive(read_file(path), repr(str(path)), Path(path).name)


def parse_archive(data: bytes, what: str, name: str) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """What :func:`read_archive` reads, from the content of a file.

    Examples
    --------
    >>> from lowchurn.estimator._archive import parse_archive
    >>> parse_archive(b"PK", "'m.skops'", "m.skops")
    Traceback (most recent call last):
    ...
    lowchurn._model_files.Refused: load: 'm.skops' is damaged or of another kind (BadZipFile: File is not a zip file).
    """
    if not is_archive(data):
        raise Refused(
            f"load: {what} is neither a saved lowchurn model nor a skops file. Pickles can run any code when "
            f"read and are refused; where you trust this one, load with trusted=[{name!r}]."
        )
    files = read_zip(what, data)
    if ABOUT not in files:
        return None
    about = read_record(f"the part {ABOUT!r} of {what}", files.pop(ABOUT), dict[str, Any])
    hashes = about.pop(HASHES, None)
    if hashes is not None:  # files of format 1 have none
        check_hashes(what, hashes, files)
    return about, files


def check_hashes(what: str, hashes: Any, files: dict[str, bytes]) -> None:
    """Refuse an archive whose parts are not the ones that its description lists.

    Examples
    --------
    >>> from lowchurn.estimator._archive import check_hashes
    >>> check_hashes("'m.skops'", {"a": "0" * 64}, {"a": b"1"})
    Traceback (most recent call last):
    ...
    lowchurn._model_files.Refused: load: 'm.skops' is damaged, in its part 'a'.
    """
    if not isinstance(hashes, dict):
        raise Refused(f"load: {what} has the wrong structure: {HASHES} must be an object.")
    for name in sorted(hashes.keys() - files.keys()):
        raise Refused(f"load: {what} is damaged: its part {name!r} is missing.")
    for name in sorted(files.keys() - hashes.keys()):
        raise Refused(f"load: {what} is damaged: its part {name!r} is not one that was saved.")
    for name, data in files.items():
        if hashlib.sha256(data).hexdigest() != hashes[name]:
            raise Refused(f"load: {what} is damaged, in its part {name!r}.")


def model_to_files(model: Any) -> tuple[str, dict[str, bytes]]:
    """The learner's name and the files of a trained model.

    Examples
    --------
    >>> from sklearn.dummy import DummyClassifier
    >>> from lowchurn.estimator._archive import model_from_files, model_to_files
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


def model_from_files(
    learner: str, files: dict[str, bytes], trusted: Sequence[str] = (), what: str = "the model"
) -> Any:
    """What :func:`model_to_files` wrote; ``what`` is the model in the words of an error message.

    Examples
    --------
    >>> from lowchurn.estimator._archive import model_from_files
    >>> model_from_files("row", {})
    Traceback (most recent call last):
    ...
    ValueError: load: unknown learner 'row'. Did you mean 'rows'? Known: catboost, lightgbm, rows, torch, xgboost.
    >>> model_from_files("rows", {})
    Traceback (most recent call last):
    ...
    lowchurn._model_files.Refused: load: the model is damaged or of another kind (KeyError: 'model.skops').
    """
    known = {cls.name: cls for cls in ALL}
    if learner not in known:
        raise unknown_name("load", "learner", learner, known)
    with reading(what):
        return known[learner].load(files, trusted)


def load_other(path: str | Path, trusted: Sequence[str] = ()) -> Any:
    """A plain skops file, or a pickle whose file name is trusted.

    Examples
    --------
    >>> import pathlib, pickle, tempfile
    >>> from lowchurn.estimator._archive import load_other
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "old.pkl")
    ...     _ = path.write_bytes(pickle.dumps([1, 2]))
    ...     load_other(path, trusted=["old.pkl"])
    [1, 2]
    """
    path = Path(path)
    data = read_file(path)
    if path.name in trusted and not is_archive(data):
        import joblib

        with reading(f"the pickle {str(path)!r}"):
            return joblib.load(path)
    return load_skops(data, trusted)
