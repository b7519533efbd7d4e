"""Whether the arrays of a scikit-learn model belong together, where compiled code follows them without a check.

``fit`` makes arrays that fit each other. A file may contain others, and libsvm, trees, nearest neighbours, splines and
sparse matrices would then read and write outside of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import scipy.sparse
from scipy.interpolate import BSpline
from sklearn.base import is_classifier
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.neighbors import BallTree, KDTree
from sklearn.neighbors._base import NeighborsBase
from sklearn.svm._base import BaseLibSVM
from sklearn.tree._tree import Tree

from lowchurn._model_files import Refused

PLAIN = (str, bytes, int, float, type(None), type, ModuleType, FunctionType, BuiltinFunctionType)
GRADIENT_BOOSTING = (GradientBoostingClassifier, GradientBoostingRegressor)
HIST_BOOSTING = (HistGradientBoostingClassifier, HistGradientBoostingRegressor)


def reachable(model: Any) -> Iterator[Any]:
    """Yield everything inside an object, each once: attributes, items, and what partial functions contain."""
    seen: dict[int, Any] = {}  # keeps what it has seen alive, so that no two have one id
    level = [model]
    while level:
        found = level.pop()
        if isinstance(found, PLAIN) or id(found) in seen:
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


def check_arrays(model: Any) -> None:
    """Refuse a model in which an object of scikit-learn or scipy has arrays that do not belong together."""
    boosting = []
    for found in reachable(model):
        if isinstance(found, GRADIENT_BOOSTING) and hasattr(found, "estimators_"):
            boosting.append(found)
        elif check := next((c for kinds, name, c in CHECKS if isinstance(found, kinds) and hasattr(found, name)), None):
            check(found)
        elif isinstance(getattr(found, "tree_", None), Tree):
            same = found.n_features_in_ == found.tree_.n_features
            _require(same, "a tree has another number of features than its model")
    # Their check asks the model that they start from, which may contain others.
    for found in sorted(boosting, key=lambda one: sum(isinstance(each, GRADIENT_BOOSTING) for each in reachable(one))):
        _check_boosting(found)


def _require(holds: Any, words: str) -> None:
    if not holds:
        raise Refused(f"load: {words}.")


def _check_children(left: np.ndarray, right: np.ndarray, inner: np.ndarray) -> None:
    """There are nodes, and children of inner ones exist and come after their parents."""
    _require(left.ndim == 1 and len(left), "a tree has no nodes")
    at = np.arange(len(left))
    for child in (left, right):
        _require(((child > at) & (child < len(left)))[inner].all(), "a tree has nodes that do not exist")


def _check_places(values: np.ndarray, end: int) -> None:
    inside = not len(values) or (values.min() >= 0 and values.max() < end)
    _require(inside, "a tree refers to features or rows that do not exist")


def _check_tree(found: Any) -> None:
    inner = found.children_left != -1
    _check_children(found.children_left, found.children_right, inner)
    _check_places(found.feature[inner], found.n_features)


def _check_boosting(found: Any) -> None:
    """All trees of a round write to one row of scores, which has as many columns as there are trees."""
    trees = found.estimators_
    _require(isinstance(trees, np.ndarray) and trees.ndim == 2 and trees.size, "boosting must have rounds of trees")
    kinds = {(tree.tree_.n_features, tree.tree_.value.shape[1:]) for tree in trees.ravel()}
    _require(kinds == {(found.n_features_in_, (1, 1))}, "a tree of boosting has another shape than its model")
    columns = found._raw_predict_init(np.zeros((1, found.n_features_in_), dtype=np.float32)).shape[1]
    _require(columns == trees.shape[1], f"boosting has {trees.shape[1]} trees per round for {columns} scores")


def _check_hist_boosting(found: Any) -> None:
    known = np.asarray(found._bin_mapper.is_categorical_)
    _require(known.shape == (found.n_features_in_,), "boosting has another number of features than its bins")
    _require("_in_fit" not in vars(found) or not found._in_fit, "boosting is said to be in the middle of its training")
    for predictor in [p for stage in found._predictors for p in stage]:
        nodes = predictor.nodes
        inner = nodes["is_leaf"] == 0
        _check_children(nodes["left"].astype(np.int64), nodes["right"].astype(np.int64), inner)
        _check_places(nodes["feature_idx"][inner], found.n_features_in_)
        coded = inner & (nodes["is_categorical"] != 0)
        sets = (predictor.raw_left_cat_bitsets, predictor.binned_left_cat_bitsets)
        _check_places(nodes["bitset_idx"][coded], min(map(len, sets)))
        _require(known[nodes["feature_idx"][coded]].all(), "a tree takes numbers for categories")
        _require(all(one.ndim == 2 and one.shape[1] == 8 for one in sets), "a tree has damaged categories")


def _check_neighbour_tree(found: Any) -> None:
    state = found.__getstate__()
    data, order, nodes, bounds = map(np.asarray, state[:4])
    _check_places(order, len(data))
    _check_places(nodes["idx_start"], len(data) + 1)
    _check_places(nodes["idx_end"], len(data) + 1)
    _check_places(2 * np.flatnonzero(nodes["is_leaf"] == 0) + 2, len(nodes))
    shape = (2 if isinstance(found, KDTree) else 1, len(nodes), data.shape[1])
    fits = len(order) == len(data) > 0 and len(nodes) > 0 and bounds.shape == shape and state[6] == len(nodes)
    _require(fits, "a tree of neighbours has arrays that do not belong together")
    state[11].pairwise(np.zeros((1, data.shape[1])))  # its parameters must be of this many features


def _check_neighbours(found: Any) -> None:
    rows, columns = found._fit_X.shape
    fits = columns == getattr(found, "n_features_in_", columns) and rows == found.n_samples_fit_ > 0
    tree, count = getattr(found, "_tree", None), getattr(found, "n_neighbors", None)
    fits &= tree is None or np.asarray(tree.data).shape == (rows, columns)
    fits &= count is None or count >= 1
    if is_classifier(found):
        labels = np.asarray(found._y)
        classes = [found.classes_] if labels.ndim == 1 else found.classes_
        table = labels.reshape(len(labels), -1)
        fits &= table.shape == (rows, len(classes)) and bool(
            ((table >= 0) & (table < [len(one) for one in classes])).all()
        )
    _require(fits, "the neighbours have arrays that do not belong together")


def _check_support(found: Any) -> None:
    """libsvm finds the number of classes, of vectors and of features in different arrays."""
    counts, vectors, weights = found._n_support, found.support_vectors_, found._dual_coef_
    rows, classes = len(found.support_), len(counts)
    pairs = classes * (classes - 1) // 2
    if callable(found.kernel) or found.kernel == "precomputed":
        fits = not rows or 0 <= found.support_.min() <= found.support_.max() < found.shape_fit_[0]
    else:
        fits = vectors.shape == (rows, found.n_features_in_)
    fits &= classes >= 2 and bool((counts >= 0).all()) and rows > 0
    fits &= weights.shape == (classes - 1, rows) and len(found._intercept_) == pairs
    fits &= len(found._probA) in (0, pairs) and len(found._probB) == len(found._probA)
    if is_classifier(found):
        fits &= counts.sum() == rows
    if scipy.sparse.issparse(weights):
        fits &= weights.nnz == (classes - 1) * rows
    fits &= not vars(found).keys() & {"_impl", "_sparse_kernels"}  # of the class, never of an object
    _require(fits, "the support vectors have arrays that do not belong together")


def _check_spline(found: Any) -> None:
    BSpline(found.t, found.c, found.k, found.extrapolate, found.axis)  # it checks what it is given


def _check_sparse(found: Any) -> None:
    _require(found.format in ("csr", "csc"), f"a sparse matrix is of the kind {found.format}, not csr or csc")
    found.check_format(full_check=True)


# Kinds of objects, the attribute that they have once they are fitted, and their check.
CHECKS: tuple[tuple[Any, str, Callable[[Any], None]], ...] = (
    (Tree, "children_left", _check_tree),
    (HIST_BOOSTING, "_predictors", _check_hist_boosting),
    ((KDTree, BallTree), "__getstate__", _check_neighbour_tree),
    (NeighborsBase, "_fit_X", _check_neighbours),
    (BaseLibSVM, "support_", _check_support),
    (BSpline, "__init__", _check_spline),
    ((scipy.sparse.spmatrix, scipy.sparse.sparray), "format", _check_sparse),
)
