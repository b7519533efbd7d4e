"""Whether the trees in a model file are trees: counts agree, indices are in range, nothing is a loop."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lowchurn._model_files import Refused
from lowchurn._terminal import one_line

NUMBERS = re.compile(r" *(-?([0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?|inf|nan)( +|$))*")
CONTROLS = re.compile(rb"[\x00-\x09\x0b-\x1f]")
KEY = re.compile(r"[A-Za-z_]+=")
WHOLE = re.compile(r"[-0-9 ]*")
DEEPEST = 64
# What follows the trees of LightGBM: counts of splits, parameters of the training, categories of pandas.
TAIL = re.compile(
    rb"\n*end of trees\n\n*(feature_importances:\n([^\n]+=[0-9.e+]+\n)*\n*)?"
    rb"(parameters:\n(\[[a-z0-9_]+: [^\n]*\]\n)*\n*end of parameters\n\n*)?(pandas_categorical:[^\n]+\n*)?"
)


class Damaged(ValueError):
    """What is wrong with a model file."""


@contextlib.contextmanager
def reading(who: str, name: str) -> Iterator[None]:
    """Errors of a library about a file, as one clear line."""
    try:
        yield
    except (ImportError, Refused):
        raise
    except Exception as error:
        words = one_line(str(error).split("Stack trace")[0]) or type(error).__name__
        raise Refused(f"{who}: {name} cannot be read as a model ({words[:200]}).") from None


def require(holds: Any, words: str) -> None:
    """Raise :class:`Damaged` where something does not hold."""
    if not holds:
        raise Damaged(words)


def check_binary_tree(left: np.ndarray, right: np.ndarray, is_leaf: np.ndarray) -> None:
    """Children of inner nodes must be other nodes, each of one parent, and none the root (node 0)."""
    children = np.concatenate([left[~is_leaf], right[~is_leaf]])
    require(((children > 0) & (children < len(left))).all(), "a node has children that are not there")
    require(len(np.unique(children)) == len(children), "a node has two parents")


# LightGBM


def check_lightgbm(data: bytes) -> None:
    """Check the text of a model of LightGBM.

    Examples
    --------
    >>> from lowchurn.learners._trees import check_lightgbm
    >>> check_lightgbm(b"tree\\nversion=v4\\n")
    Traceback (most recent call last):
    ...
    lowchurn.learners._trees.Damaged: it is cut short, or no text file of LightGBM
    """
    head, blank, _ = data.partition(b"\n\n")
    require(blank and data.startswith(b"tree\n"), "it is cut short, or no text file of LightGBM")
    require(not CONTROLS.search(data), "it contains control characters")
    fields = _fields(head.decode())
    features = _count(fields, "max_feature_idx") + 1
    groups, _ = _count(fields, "num_tree_per_iteration"), _count(fields, "num_class")
    require(groups >= 1, "it has no outputs")
    for name in ("feature_names", "feature_infos"):
        require(len(fields.get(name, "").split()) == features, f"{name} has not one entry for each feature")
    place = len(head) + 2
    sizes = _integers(fields, "tree_sizes")
    require((sizes > 0).all() and len(sizes) % groups == 0, "the number of trees is wrong")
    for k, size in enumerate(sizes):
        block = data[place : place + size]
        require(block.startswith(b"Tree=%d\n" % k) and block.endswith(b"\n"), f"tree {k} is not where it should be")
        require(b"\n\n" not in block.rstrip(b"\n"), f"the end of tree {k} is not where it should be")
        _check_lightgbm_tree(_fields(block.decode()), features)
        place += int(size)
    require(TAIL.fullmatch(data, place), "its end is missing or damaged")


def _check_lightgbm_tree(fields: Mapping[str, str], features: int) -> None:
    leaves, cats = _count(fields, "num_leaves"), _count(fields, "num_cat")
    require(leaves >= 1, "a tree has no leaf")
    require(len(_floats(fields, "leaf_value")) == leaves, "a tree has leaves without value")
    require("shrinkage" not in fields or len(_floats(fields, "shrinkage")) == 1, "shrinkage must be a number")
    require(fields.get("is_linear", "0").strip() in ("0", "1"), "is_linear must be 0 or 1")
    for name, count in LIGHTGBM_NUMBERS.items():
        if name in fields and (leaves > 1 or fields[name].strip()):
            require(
                len(_floats(fields, name)) in (leaves - count, 0 if leaves == 1 else -1), f"{name} has a wrong length"
            )
    if fields.get("is_linear", "0").strip() == "1":
        counts, used = _integers(fields, "num_features"), _integers(fields, "leaf_features")
        require(len(counts) == leaves and (counts >= 0).all() and counts.sum() == len(used), "a linear leaf is damaged")
        require(((used >= 0) & (used < features)).all(), "a linear leaf has features that are not there")
        require(len(_floats(fields, "leaf_coeff")) == len(used), "a linear leaf lacks coefficients")
        require(len(_floats(fields, "leaf_const")) == leaves, "a linear leaf lacks its constant")
    if leaves == 1:
        return
    split, kinds, thresholds = (
        _integers(fields, "split_feature"),
        _integers(fields, "decision_type"),
        _floats(fields, "threshold"),
    )
    left, right = _integers(fields, "left_child"), _integers(fields, "right_child")
    others = [_floats(fields, name) for name in ("split_gain", "internal_value")]
    parts = (split, kinds, thresholds, left, right, *others)
    require({len(part) for part in parts} == {leaves - 1}, "a tree lacks nodes")
    require(((split >= 0) & (split < features)).all(), "a node asks for a feature that is not there")
    children = np.concatenate([left, right])
    require(((children >= -leaves) & (children < leaves - 1) & (children != 0)).all(), "a node lacks a child")
    require(len(np.unique(children)) == len(children), "a node has two parents")
    if cats or (kinds & 1).any():
        bounds, words = _integers(fields, "cat_boundaries"), _integers(fields, "cat_threshold")
        require(len(bounds) == cats + 1 and bounds[0] == 0 and bounds[-1] == len(words), "categories are damaged")
        require((np.diff(bounds) >= 0).all(), "categories are damaged")
        chosen = thresholds[(kinds & 1) == 1]
        require(((chosen >= 0) & (chosen < cats) & (chosen == chosen.round())).all(), "categories are damaged")


# Lists of numbers in a tree, and how many fewer than its leaves they have.
LIGHTGBM_NUMBERS = {
    "leaf_weight": 0,
    "leaf_count": 0,
    "internal_weight": 1,
    "internal_count": 1,
}


def _fields(text: str) -> dict[str, str]:
    lines = [line for line in text.split("\n") if line and line not in ("tree", "average_output")]
    require(all(KEY.match(line) for line in lines), "a line has no name")
    found = {key: value for key, _, value in (line.partition("=") for line in lines)}
    free = ("feature_names", "monotone_constraints")
    require(not any("=" in value for key, value in found.items() if key not in free), "a line has two values")
    return found


def _count(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "")
    require(re.fullmatch(r"[0-9]{1,9}", text), f"{name} must be a number, got {text[:20]!r}")
    return int(text)


def _integers(fields: Mapping[str, str], name: str) -> np.ndarray:
    text = fields.get(name, "?")
    require(WHOLE.fullmatch(text), f"{name} must be whole numbers")
    return np.array(text.split(), dtype=np.int64)


def _floats(fields: Mapping[str, str], name: str) -> np.ndarray:
    text = fields.get(name, "?")
    require(NUMBERS.fullmatch(text), f"{name} must be numbers")
    return np.array(text.split(), dtype=np.float64)


# XGBoost


def check_xgboost(data: bytes) -> None:
    """Check a model of XGBoost in JSON or UBJSON.

    Examples
    --------
    >>> from lowchurn.learners._trees import check_xgboost
    >>> check_xgboost(b"{}")
    Traceback (most recent call last):
    ...
    lowchurn.learners._trees.Damaged: 'learner' is not there
    """
    try:
        # JSON begins with a quoted key, UBJSON with the length of one.
        is_json = data[1:].lstrip()[:1] in (b'"', b"}")
        found = json.loads(data, object_pairs_hook=_once) if is_json else read_ubjson(data)
    except RecursionError:
        raise Damaged("it is nested too deeply") from None
    learner = _at(found, dict, "learner")
    shape = _at(learner, dict, "learner_model_param")
    features, classes = (_number(shape, name) for name in ("num_feature", "num_class"))
    booster = _at(learner, dict, "gradient_booster")
    _at(learner, dict, "objective")
    kind = _at(booster, str, "name")
    if kind == "gblinear":
        weights = _array(_at(booster, dict, "model"), "weights", float)
        require(len(weights) == (features + 1) * max(classes, 1), "weights have a wrong length")
        return
    require(kind in ("gbtree", "dart"), f"the booster {kind[:20]!r} is unknown")
    model = _at(_at(booster, dict, "gbtree") if kind == "dart" else booster, dict, "model")
    trees = _at(model, list, "trees")
    if kind == "dart":
        require(len(_array(booster, "weight_drop", float)) == len(trees), "weight_drop has a wrong length")
    require(_number(_at(model, dict, "gbtree_model_param"), "num_trees") == len(trees), "the number of trees is wrong")
    groups = _array(model, "tree_info", int)
    require(len(groups) == len(trees), "the number of trees is wrong")
    require(((groups >= 0) & (groups < max(classes, 1))).all(), "a tree belongs to a class that is not there")
    rounds = _array(model, "iteration_indptr", int) if "iteration_indptr" in model else np.array([0, len(trees)])
    require(len(rounds) and rounds[0] == 0 and rounds[-1] == len(trees), "the rounds are damaged")
    require((np.diff(rounds) >= 0).all(), "the rounds are damaged")
    for tree in trees:
        require(isinstance(tree, Mapping), "a tree is damaged")
        outputs = _check_xgboost_tree(tree, features)
        require(outputs in (1, max(classes, 1)), "a tree has leaves for classes that are not there")
    if model.get("cats"):
        _check_xgboost_categories(_at(model, dict, "cats"), features)


def _check_xgboost_tree(tree: Mapping[str, Any], features: int) -> int:
    """Check one tree; the number of values of its leaves."""
    shape = _at(tree, dict, "tree_param")
    n, outputs = _number(shape, "num_nodes"), max(_number(shape, "size_leaf_vector"), 1)
    require(n >= 1 and _number(shape, "num_feature") <= features, "a tree is damaged")
    ints = {name: _array(tree, name, int) for name in ("left_children", "right_children", "parents", "split_indices",
                                                       "default_left", "split_type")}  # fmt: skip
    for name in ("split_conditions", "loss_changes", "sum_hessian"):
        _length(name, _array(tree, name, float), n)
    _length("base_weights", _array(tree, "base_weights", float), n * outputs)
    for name, values in ints.items():
        _length(name, values, n)
    left, right, split = ints["left_children"], ints["right_children"], ints["split_indices"]
    leaf = left == -1
    check_binary_tree(left, right, leaf)
    require(((split[~leaf] >= 0) & (split[~leaf] < features)).all(), "a node asks for a feature that is not there")
    inner, parents = np.flatnonzero(~leaf), ints["parents"]
    require((parents[left[inner]] == inner).all() and (parents[right[inner]] == inner).all(), "a node has no parent")
    require(parents[0] in (-1, 2**31 - 1), "the root has a parent")
    require(np.isin(ints["split_type"], (0, 1)).all(), "a node is of an unknown kind")
    if outputs > 1 and "leaf_weights" in tree:  # since XGBoost 3.1; before, values were with the nodes
        count = len(_array(tree, "leaf_weights", float)) / outputs
        require(((right[leaf] >= 0) & (right[leaf] < count)).all(), "a tree has leaves without value")
    else:
        require((right[leaf] == -1).all(), "a tree has leaves without value")
    names = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
    words, nodes, begins, sizes = (_array(tree, name, int) for name in names)
    require(len(nodes) == len(begins) == len(sizes), "categories are damaged")
    require(((nodes >= 0) & (nodes < n)).all() and (np.diff(nodes) > 0).all(), "categories are damaged")
    require(np.array_equal(nodes, np.flatnonzero((ints["split_type"] == 1) & ~leaf)), "categories are damaged")
    require(((begins >= 0) & (sizes >= 0) & (begins + sizes <= len(words))).all(), "categories are damaged")
    require(((words >= 0) & (words < 2**24)).all(), "categories are damaged")
    return outputs


def _check_xgboost_categories(cats: Mapping[str, Any], features: int) -> None:
    """The names of categories, where a table with names was trained on."""
    segments, order = _array(cats, "feature_segments", int), _array(cats, "sorted_idx", int)
    encoded = _at(cats, list, "enc")
    if not len(segments) and not encoded:
        return
    require(len(segments) == features + 1 and len(encoded) == features, "categories are damaged")
    require(
        segments[0] == 0 and (np.diff(segments) >= 0).all() and segments[-1] == len(order), "categories are damaged"
    )
    for k, one in enumerate(encoded):
        count = int(segments[k + 1] - segments[k])
        places = order[segments[k] : segments[k + 1]]
        require(np.array_equal(np.sort(places), np.arange(count)), "categories are damaged")
        require(isinstance(one, Mapping), "categories are damaged")
        values = _array(one, "values", float)
        if "offsets" not in one:  # numbers
            require(len(values) == count, "categories are damaged")
            continue
        offsets = _array(one, "offsets", int)
        if count or len(values):
            require(
                len(offsets) == count + 1 and offsets[0] == 0 and offsets[-1] == len(values), "categories are damaged"
            )
            require((np.diff(offsets) >= 0).all(), "categories are damaged")


def _at(found: Any, kind: type, name: str) -> Any:
    require(isinstance(found, Mapping) and name in found, f"{name!r} is not there")
    value = found[name]
    require(isinstance(value, kind), f"{name!r} must be of type {kind.__name__}, got {type(value).__name__}")
    return value


def _number(found: Mapping[str, Any], name: str) -> int:
    text = _at(found, str, name)
    require(re.fullmatch(r"[0-9]{1,9}", text), f"{name!r} must be a number, got {text[:20]!r}")
    return int(text)


def _array(found: Mapping[str, Any], name: str, kind: type) -> np.ndarray:
    require(name in found, f"{name!r} is not there")
    values = found[name]
    require(isinstance(values, list | np.ndarray), f"{name!r} must be a list")
    try:
        array = np.asarray(values) if len(values) else np.empty(0, dtype=int)
    except (ValueError, OverflowError):
        raise Damaged(f"{name!r} must be a list of numbers") from None
    require(array.ndim == 1 and array.dtype.kind in ("iub" if kind is int else "iufb"), f"{name!r} must be numbers")
    return array.astype(np.int64 if kind is int else np.float64)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys all differ: of equal ones XGBoost would take another than we check."""
    made = dict(pairs)
    require(len(made) == len(pairs), "a key is there twice")
    return made


def _length(name: str, values: np.ndarray, n: int) -> None:
    require(len(values) == n, f"{name!r} must have {n} values, got {len(values)}")


NUMBERS_OF = {b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8"}
CONSTANTS = {b"T": True, b"F": False, b"Z": None, b"N": None}


def read_ubjson(data: bytes) -> Any:
    """Decode UBJSON as XGBoost writes it; lists of numbers become arrays.

    Examples
    --------
    >>> from lowchurn.learners._trees import read_ubjson
    >>> read_ubjson(b"{i\\x01ai\\x05}")
    {'a': 5}
    """
    value, place = _ubjson(data, 0, 0)
    require(place == len(data), "it is longer than its content")
    return value


def _ubjson(data: bytes, place: int, depth: int) -> tuple[Any, int]:
    require(depth <= DEEPEST, "it is nested too deeply")
    mark, place = data[place : place + 1], place + 1
    if mark in CONSTANTS and mark:
        return CONSTANTS[mark], place
    if mark in NUMBERS_OF:
        return _scalar(data, place, mark)
    if mark in (b"S", b"C"):
        return _text(data, place)
    if mark == b"[":
        return _list(data, place, depth)
    require(mark == b"{", "it is cut short, or no file of XGBoost")
    made: dict[str, Any] = {}
    while data[place : place + 1] != b"}":
        key, place = _text(data, place)
        require(key not in made, f"{key[:40]!r} is there twice")  # XGBoost would take the other one
        made[key], place = _ubjson(data, place, depth + 1)
    return made, place + 1


def _scalar(data: bytes, place: int, mark: bytes) -> tuple[Any, int]:
    kind = np.dtype(NUMBERS_OF[mark])
    end = place + kind.itemsize
    require(end <= len(data), "it is cut short")
    return np.frombuffer(data, kind, 1, place)[0].item(), end


def _size(data: bytes, place: int) -> tuple[int, int]:
    mark = data[place : place + 1]
    require(mark in NUMBERS_OF and mark not in (b"d", b"D"), "it is cut short, or no file of XGBoost")
    size, place = _scalar(data, place + 1, mark)
    require(0 <= size <= len(data) - place, "it is cut short")
    return size, place


def _text(data: bytes, place: int) -> tuple[str, int]:
    size, place = _size(data, place)
    return data[place : place + size].decode(), place + size


def _list(data: bytes, place: int, depth: int) -> tuple[Any, int]:
    kind = None
    if data[place : place + 1] == b"$":
        kind, place = data[place + 1 : place + 2], place + 2
        require(kind in NUMBERS_OF and data[place : place + 1] == b"#", "a list is damaged")
    if data[place : place + 1] != b"#":
        made = []
        while data[place : place + 1] != b"]":
            value, place = _ubjson(data, place, depth + 1)
            made.append(value)
        return made, place + 1
    size, place = _size(data, place + 1)
    if kind is None:
        made = []
        for _ in range(size):
            value, place = _ubjson(data, place, depth + 1)
            made.append(value)
        return made, place
    number = np.dtype(NUMBERS_OF[kind])
    require(place + size * number.itemsize <= len(data), "a list is cut short")
    return np.frombuffer(data, number, size, place), place + size * number.itemsize
