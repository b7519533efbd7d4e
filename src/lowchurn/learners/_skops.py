"""scikit-learn models in skops files, which contain no code: what is read is checked before it is used.

skops constructs only types that it or the caller trusts. Beyond that, a file may not name code (a network by its
import path), may not make scikit-learn read outside of its arrays (the nodes of trees), and the folders that it names
(caches, logs) are dropped: they belong to the machine that wrote it.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.preprocessing import FunctionTransformer

from lowchurn._extras import importing
from lowchurn._model_files import MOST_THREADS, Refused, most_unpacked, read_zip, reading, write_zip
from lowchurn._terminal import one_line
from lowchurn.learners._skops_arrays import check_arrays, reachable
from lowchurn.learners._skops_states import check_state
from lowchurn.learners._skops_types import UNFITTED_TYPES, own_types
from lowchurn.learners._torch import NetworkClassifier, name_to_network

# Parameters that name folders, files or machines. joblib reads pickles from "memory"; the others are written to, read
# or connected to in training. An estimator may set them on the one inside it by any attribute or dict of the name.
PLACES = frozenset(
    {
        "memory",
        *("train_dir", "snapshot_file", "input_borders", "output_borders", "json_log", "meta", "learn_error_log"),
        *("test_error_log", "time_left_log", "profile_log"),
        *("forcedsplits_filename", "fs", "forced_splits_filename", "forced_splits_file", "forced_splits"),
        *("forcedbins_filename", "machine_list_filename", "machine_list_file", "machine_list", "mlist", "machines"),
        *("workers", "nodes"),
    }
)
THREADS = {"n_jobs", "num_threads", "num_thread", "nthread", "nthreads", "thread_count"}
MOVED = {  # modules of ours that older files name
    "lowchurn.learners.torch": "lowchurn.learners._torch",
    "lowchurn.estimator.classifier": "lowchurn.estimator._classifier",
}
LIBRARIES = ("sklearn", "lightgbm", "xgboost", "catboost", "lowchurn")


def dump_skops(model: Any) -> bytes:
    """Return a model of scikit-learn as a skops file."""
    skops = _skops()
    try:
        return bytes(skops.dumps(model))
    except Exception as error:  # of skops, or a recursion in the model
        raise ValueError(
            f"save: a {type(model).__name__} cannot be written to a skops file ({one_line(error)})."
        ) from error


def load_skops(data: bytes, trusted: Sequence[str] = (), *, nested: bool = False, unfitted: bool = False) -> Any:
    """Read what skops wrote; types beyond scikit-learn, numpy and scipy must be trusted by name.

    ``nested`` is whether it is a part of a model file, ``unfitted`` whether it contains an estimator to train, which
    may be one of another library.
    """
    skops = _skops()
    what = "the skops file" if not nested else "a part of skops"
    parts = read_zip(what, data, nested)
    with reading(what):
        parts["schema.json"] = _checked_schema(what, parts, most_unpacked(data, nested), unfitted)
        data = write_zip(parts)
        known = [*trusted, *own_types(), *(UNFITTED_TYPES if unfitted else ())]
        unknown = sorted(set(skops.get_untrusted_types(data=data)) - set(known))
        if unknown:
            raise Refused(
                f"load: the file contains types that are not trusted: {', '.join(map(_quoted, unknown))}. "
                f"Where you trust them, load with trusted={unknown!r}."
            )
        model = skops.loads(data, trusted=known)
        for found in reachable(model):
            if type(found).__module__.partition(".")[0] in LIBRARIES:
                _drop_places(found)
                _check_parameters(found, trusted)
            if isinstance(found, NetworkClassifier):
                found.network = name_to_network(found.network, trusted)
        check_arrays(model)
    return model


def _checked_schema(what: str, parts: dict[str, bytes], allowed: int, unfitted: bool) -> bytes:
    """Return the schema with the names of today; refuse entries that unpack to too much or are of another kind."""
    left, counted = allowed, set()
    schema = json.loads(parts["schema.json"])
    for node in containers(schema):
        if not isinstance(node, dict):
            continue
        module, name, number = node.get("__module__"), node.get("file"), node.get("__id__")
        if isinstance(module, str) and module in MOVED:
            node["__module__"] = MOVED[module]
        if isinstance(name, str) and isinstance(number, int | None):
            again = number is not None and (name, number) in counted
            counted.add((name, number))
            left -= 0 if again else _unpacked_size(parts.get(name, b""))
        if left < 0:
            raise Refused(
                f"load: {what} reads its entries so often, or compresses them so much, that they would fill the memory."
            )
        check_state(node, parts)
        if unfitted and "__model" in node:  # CatBoost would read a model from it
            raise Refused(f"load: {what} contains a fitted model where an estimator to train is due.")
    return json.dumps(schema).encode()


def containers(value: Any) -> Iterator[Any]:
    """Yield all dicts, lists and tuples inside each other, each once and before what it contains."""
    level, seen = [value], dict[int, Any]()
    while level:
        found = level.pop()
        if isinstance(found, dict | list | tuple) and id(found) not in seen:
            seen[id(found)] = found
            yield found
            level.extend(found.values() if isinstance(found, dict) else found)


def _unpacked_size(part: bytes) -> int:
    """Return the size of an entry in memory; sparse matrices are archives themselves."""
    if not part.startswith(b"PK"):
        return len(part)
    with zipfile.ZipFile(io.BytesIO(part)) as archive:  # reading stops at the size that is given here
        return sum(entry.file_size for entry in archive.infolist())


def _drop_places(found: Any) -> None:
    """Drop the folders, files and machines that an estimator names: they are those of another machine, or bait."""
    attributes = getattr(found, "__dict__", {})
    for name in _places(attributes):
        attributes[name] = None
    own = ("kw_args", "inv_kw_args") if isinstance(found, FunctionTransformer) else ()  # of the user's function
    for value in containers([value for name, value in attributes.items() if name not in own]):
        if isinstance(value, dict):
            for key in _places(value):
                del value[key]


def _check_parameters(found: Any, trusted: Sequence[str]) -> None:
    """Refuse parameters of estimators that end the process, or that make them open files."""
    own = getattr(found, "__dict__", {})
    for given in (own, *(value for value in own.values() if isinstance(value, dict))):
        for name in THREADS & given.keys():
            if isinstance(given[name], int) and given[name] > MOST_THREADS:
                raise Refused(f"load: {name} must be at most {MOST_THREADS}, got {given[name]}.")
    kind = f"{type(found).__module__}.{type(found).__name__}"
    if own.get("input") in ("filename", "file") and kind not in trusted:
        raise Refused(
            f"load: a {type(found).__name__} opens the files that its rows name (input={own['input']!r}). "
            f"Where you trust it, load with trusted=[{kind!r}]."
        )


def _places(given: dict[Any, Any]) -> list[str]:
    """Return the keys that name places whose values are text."""
    named = ((name, value) for name, value in given.items() if isinstance(name, str))
    return [name for name, value in named if name.rpartition("__")[2] in PLACES and _holds_text(value)]


def _holds_text(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "US" or (value.dtype.kind == "O" and _holds_text(value.ravel().tolist()))
    if isinstance(value, list | tuple | set):
        return any(isinstance(item, str | bytes) for item in value)
    return isinstance(value, str | bytes)


def _quoted(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _skops() -> Any:
    with importing("save and load", "save"):
        import skops.io
    return skops.io
