"""scikit-learn models in skops files, which contain no code: what is read is checked before it is used.

skops constructs only types that it or the caller trusts. Beyond that, a file may not name code (a network by its
import path), may not make scikit-learn read outside of its arrays (the nodes of trees), and the folders that it names
(caches, logs) are dropped: they belong to the machine that wrote it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.neighbors import BallTree, KDTree
from sklearn.preprocessing import FunctionTransformer
from sklearn.tree._tree import Tree

from lowchurn._model_files import ALWAYS_ALLOWED, RATIO, Refused, read_zip, reading
from lowchurn.learners.base import extra_missing
from lowchurn.learners.torch import NetworkClassifier, name_to_network

# Data of scikit-learn's own models that skops does not trust by itself; none of it runs code of the file.
OWN_TYPES = (
    "functools.partial",  # what it calls must be trusted as well
    "numpy.dtype",
    "scipy.interpolate._bsplines.BSpline",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.feature_selection._univariate_selection.f_classif",
    "sklearn.metrics._dist_metrics.EuclideanDistance64",
    "sklearn.neighbors._kd_tree.KDTree",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.tree._tree.Tree",
    "sklearn.utils.validation.check_array",
)
# Unfitted, these are parameters and nothing else.
UNFITTED_TYPES = (
    "lightgbm.sklearn.LGBMClassifier",
    "xgboost.sklearn.XGBClassifier",
    "catboost.core.CatBoostClassifier",
    "lowchurn.learners.torch.NetworkClassifier",
)
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
LIBRARIES = ("sklearn", "lightgbm", "xgboost", "catboost", "lowchurn")


def dump_skops(model: Any) -> bytes:
    """A model of scikit-learn as a skops file."""
    return bytes(_skops().dumps(model))


def load_skops(data: bytes, trusted: Sequence[str] = (), *, nested: bool = False, unfitted: bool = False) -> Any:
    """Read what skops wrote; types beyond scikit-learn, numpy and scipy must be trusted by name.

    Parameters
    ----------
    data : bytes
        The file.
    trusted : list of str
        Names of types, and of networks by import path, that may be read.
    nested : bool
        Whether it is a part of a model file.
    unfitted : bool
        Whether it contains an estimator to train, which may be one of another library.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from lowchurn.learners.skops import dump_skops, load_skops
    >>> load_skops(dump_skops(LogisticRegression(C=3)))
    LogisticRegression(C=3)
    """
    io = _skops()
    what = "the skops file" if not nested else "a part of skops"
    parts = read_zip(what, data, nested)
    with reading(what):
        _check_schema(what, parts, len(data), unfitted)
        known = [*trusted, *OWN_TYPES, *(UNFITTED_TYPES if unfitted else ())]
        unknown = sorted(set(io.get_untrusted_types(data=data)) - set(known))
        if unknown:
            raise Refused(
                f"load: the file contains types that are not trusted: {', '.join(map(_quoted, unknown))}. "
                f"Where you trust them, load with trusted={unknown!r}."
            )
        model = io.loads(data, trusted=known)
        for found in reachable(model):
            _drop_places(found)
            if isinstance(found, NetworkClassifier):
                found.network = name_to_network(found.network, trusted)
            _check_nodes(found)
    return model


def _check_schema(what: str, parts: dict[str, bytes], size: int, unfitted: bool) -> None:
    """Refuse a small file whose entries are read over and over, and a fitted model where an unfitted one is due."""
    left, counted = max(ALWAYS_ALLOWED, RATIO * size), set()
    level: list[Any] = [json.loads(parts["schema.json"])]
    while level:
        node = level.pop()
        if isinstance(node, list):
            level.extend(node)
        elif isinstance(node, dict):
            level.extend(node.values())
            name = node.get("file")
            key = (name, node.get("__id__")) if isinstance(name, str) else None
            if key is not None and isinstance(key[1], int | None) and (key not in counted or key[1] is None):
                counted.add(key)
                left -= len(parts.get(key[0], b""))
            if left < 0:
                raise Refused(f"load: {what} reads its entries so often that they would fill the memory.")
            if unfitted and "__model" in node:  # CatBoost would read a model from it
                raise Refused(f"load: {what} contains a fitted model where an estimator to train is due.")


def reachable(model: Any) -> Iterator[Any]:
    """Everything inside an object, each once: attributes, items, and what partial functions hold.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from lowchurn.learners.skops import reachable
    >>> [type(found).__name__ for found in reachable(make_pipeline(LogisticRegression())) if hasattr(found, "fit")]
    ['Pipeline', 'LogisticRegression']
    """
    seen: dict[int, Any] = {}  # keeps what it has seen alive, so that no two have one id
    level = [model]
    while level:
        found = level.pop()
        if isinstance(found, str | bytes | int | float | None | type | ModuleType | FunctionType | BuiltinFunctionType):
            continue
        if id(found) in seen:
            continue
        seen[id(found)] = found
        yield found
        if isinstance(found, dict):
            level.extend(found.values())
        elif isinstance(found, list | tuple | set | frozenset):
            level.extend(found)
        elif isinstance(found, np.ndarray):
            if found.dtype.kind == "O":
                level.extend(found.ravel().tolist())
            continue
        elif isinstance(found, functools.partial):
            level.extend([found.func, found.args, found.keywords])
        level.extend(getattr(found, "__dict__", {}).values())


def _drop_places(found: Any) -> None:
    """Folders, files and machines that an estimator names are those of another machine, or bait.

    Types that the caller trusts, and what FunctionTransformer hands to its function, keep what they have.
    """
    if type(found).__module__.partition(".")[0] not in LIBRARIES:
        return
    attributes = getattr(found, "__dict__", {})
    for name in [name for name, value in attributes.items() if _is_place(name) and _holds_text(value)]:
        attributes[name] = None
    own = ("kw_args", "inv_kw_args") if isinstance(found, FunctionTransformer) else ()
    level = [value for name, value in attributes.items() if name not in own]
    seen: dict[int, Any] = {}
    while level:
        value = level.pop()
        if not isinstance(value, dict | list | tuple) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, dict):
            for key in [key for key, item in value.items() if _is_place(key) and _holds_text(item)]:
                del value[key]
        level.extend(value.values() if isinstance(value, dict) else value)


def _is_place(name: Any) -> bool:
    return isinstance(name, str) and name.rpartition("__")[2] in PLACES


def _holds_text(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "US" or (value.dtype.kind == "O" and _holds_text(value.ravel().tolist()))
    if isinstance(value, list | tuple | set):
        return any(isinstance(item, str | bytes) for item in value)
    return isinstance(value, str | bytes)


def _check_nodes(found: Any) -> None:
    """Compiled code follows the nodes of a tree without asking whether they exist; children come after parents."""
    if isinstance(found, Tree):
        inner = found.children_left != -1
        _check_children(found.children_left, found.children_right, inner)
        _check_places(found.feature[inner], found.n_features)
    elif isinstance(getattr(found, "tree_", None), Tree):
        if found.n_features_in_ != found.tree_.n_features:
            raise Refused("load: a tree has another number of features than its model.")
    elif isinstance(found, HistGradientBoostingClassifier | HistGradientBoostingRegressor):
        for predictor in [p for stage in getattr(found, "_predictors", []) for p in stage]:
            nodes = predictor.nodes
            inner = nodes["is_leaf"] == 0
            _check_children(nodes["left"].astype(np.int64), nodes["right"].astype(np.int64), inner)
            _check_places(nodes["feature_idx"][inner], found.n_features_in_)
            sets = nodes["bitset_idx"][inner & (nodes["is_categorical"] != 0)]
            _check_places(sets, min(len(predictor.raw_left_cat_bitsets), len(predictor.binned_left_cat_bitsets)))
    elif isinstance(found, KDTree | BallTree):
        data, order, nodes, bounds = map(np.asarray, found.get_arrays())
        _check_places(order, len(data))
        _check_places(nodes["idx_start"], len(data) + 1)
        _check_places(nodes["idx_end"], len(data) + 1)
        _check_places(2 * np.flatnonzero(nodes["is_leaf"] == 0) + 2, len(nodes))
        if len(order) != len(data) or bounds.shape[1] != len(nodes) or found.__getstate__()[6] != len(nodes):
            raise Refused("load: a tree of neighbours has arrays that do not belong together.")


def _check_children(left: np.ndarray, right: np.ndarray, inner: np.ndarray) -> None:
    at = np.arange(len(left))
    for child in (left, right):
        if not ((child > at) & (child < len(left)))[inner].all():
            raise Refused("load: a tree has nodes that do not exist.")


def _check_places(values: np.ndarray, end: int) -> None:
    if len(values) and not (values.min() >= 0 and values.max() < end):
        raise Refused("load: a tree refers to features or rows that do not exist.")


def _quoted(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _skops() -> Any:
    try:
        import skops.io
    except ImportError:
        raise extra_missing("save and load", "skops", "save") from None
    return skops.io
