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
    """Turn the errors of a library about a file into one clear line."""
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


def inside(places: np.ndarray, end: int) -> bool:
    """Whether all numbers are from 0 to below the end."""
    return bool(((places >= 0) & (places < end)).all())


def segments(bounds: np.ndarray, count: int, end: int) -> bool:
    """Whether these are the bounds of so many segments, from 0 to the end."""
    whole = len(bounds) == count + 1 > 0 and bounds[0] == 0 and bounds[-1] == end
    return bool(whole and (np.diff(bounds) >= 0).all())


# LightGBM


def check_lightgbm(data: bytes) -> None:
    """Check the text of a model of LightGBM."""
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


# Lists of numbers in a tree that need not be there, and how many fewer than its leaves they have.
LIGHTGBM_NUMBERS = {"leaf_weight": 0, "leaf_count": 0, "internal_weight": 1, "internal_count": 1}


def _check_lightgbm_tree(fields: Mapping[str, str], features: int) -> None:
    leaves, cats = _count(fields, "num_leaves"), _count(fields, "num_cat")
    require(leaves >= 1, "a tree has no leaf")
    require(len(_floats(fields, "leaf_value")) == leaves, "a tree has leaves without value")
    require("shrinkage" not in fields or len(_floats(fields, "shrinkage")) == 1, "shrinkage must be a number")
    linear = fields.get("is_linear", "0").strip()
    require(linear in ("0", "1"), "is_linear must be 0 or 1")
    for name, fewer in LIGHTGBM_NUMBERS.items():
        if name in fields and (leaves > 1 or fields[name].strip()):
            allowed = (leaves - fewer, 0 if leaves == 1 else -1)
            require(len(_floats(fields, name)) in allowed, f"{name} has a wrong length")
    if linear == "1":
        counts, used = _integers(fields, "num_features"), _integers(fields, "leaf_features")
        require(len(counts) == leaves and (counts >= 0).all() and counts.sum() == len(used), "a linear leaf is damaged")
        require(inside(used, features), "a linear leaf has features that are not there")
        require(len(_floats(fields, "leaf_coeff")) == len(used), "a linear leaf lacks coefficients")
        require(len(_floats(fields, "leaf_const")) == leaves, "a linear leaf lacks its constant")
    if leaves == 1:
        return
    split, kinds = _integers(fields, "split_feature"), _integers(fields, "decision_type")
    thresholds = _floats(fields, "threshold")
    left, right = _integers(fields, "left_child"), _integers(fields, "right_child")
    others = [_floats(fields, name) for name in ("split_gain", "internal_value")]
    lengths = {len(part) for part in (split, kinds, thresholds, left, right, *others)}
    require(lengths == {leaves - 1}, "a tree lacks nodes")
    require(inside(split, features), "a node asks for a feature that is not there")
    children = np.concatenate([left, right])
    require(((children >= -leaves) & (children < leaves - 1) & (children != 0)).all(), "a node lacks a child")
    require(len(np.unique(children)) == len(children), "a node has two parents")
    if cats or (kinds & 1).any():
        bounds, words = _integers(fields, "cat_boundaries"), _integers(fields, "cat_threshold")
        chosen = thresholds[(kinds & 1) == 1]
        whole = inside(chosen, cats) and (chosen == chosen.round()).all()
        require(segments(bounds, cats, len(words)) and whole, "categories are damaged")


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
    """Check a model of XGBoost in JSON or UBJSON."""
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
    require(inside(groups, max(classes, 1)), "a tree belongs to a class that is not there")
    rounds = _array(model, "iteration_indptr", int) if "iteration_indptr" in model else np.array([0, len(trees)])
    require(segments(rounds, len(rounds) - 1, len(trees)), "the rounds are damaged")
    places = {_at(tree, int, "id") for tree in trees}
    require(places == {*range(len(trees))}, "a tree is not where it should be")
    for tree in trees:
        outputs = _check_xgboost_tree(tree, features)
        require(outputs in (1, max(classes, 1)), "a tree has leaves for classes that are not there")
    if model.get("cats"):
        _check_xgboost_categories(_at(model, dict, "cats"), features)


def _check_xgboost_tree(tree: Mapping[str, Any], features: int) -> int:
    """Check one tree and return the number of values of its leaves."""
    shape = _at(tree, dict, "tree_param")
    n, outputs = _number(shape, "num_nodes"), max(_number(shape, "size_leaf_vector"), 1)
    require(n >= 1 and _number(shape, "num_feature") <= features, "a tree is damaged")
    names = ("left_children", "right_children", "parents", "split_indices", "default_left", "split_type")
    ints = {name: _array(tree, name, int) for name in names}
    for name in ("split_conditions", "loss_changes", "sum_hessian"):
        _length(name, _array(tree, name, float), n)
    _length("base_weights", _array(tree, "base_weights", float), n * outputs)
    for name, values in ints.items():
        _length(name, values, n)
    left, right, parents, split, _, kinds = ints.values()
    leaf = left == -1
    inner = np.flatnonzero(~leaf)
    children = np.concatenate([left[inner], right[inner]])
    require(((children > 0) & (children < n)).all(), "a node has children that are not there")
    require(len(np.unique(children)) == len(children), "a node has two parents")
    require(inside(split[inner], features), "a node asks for a feature that is not there")
    require((parents[children] == np.tile(inner, 2)).all(), "a node has no parent")
    require(parents[0] in (-1, 2**31 - 1), "the root has a parent")
    require(np.isin(kinds, (0, 1)).all() and not kinds[leaf].any(), "a node is of an unknown kind")
    if outputs > 1 and "leaf_weights" in tree:  # since XGBoost 3.1; before, values were with the nodes
        count, rest = divmod(len(_array(tree, "leaf_weights", float)), outputs)
        require(rest == 0 and inside(right[leaf], count), "a tree has leaves without value")
    else:
        require((right[leaf] == -1).all(), "a tree has leaves without value")
    words, nodes, begins, sizes = (
        _array(tree, f"categories{part}", int) for part in ("", "_nodes", "_segments", "_sizes")
    )
    whole = len(nodes) == len(begins) == len(sizes) and inside(words, 2**24)
    require(whole and np.array_equal(nodes, inner[kinds[inner] == 1]), "categories are damaged")
    require(((begins >= 0) & (sizes >= 0) & (begins + sizes <= len(words))).all(), "categories are damaged")
    return outputs


def _check_xgboost_categories(cats: Mapping[str, Any], features: int) -> None:
    """Check the names of categories, where a table with names was trained on."""
    bounds, order = _array(cats, "feature_segments", int), _array(cats, "sorted_idx", int)
    encoded = _at(cats, list, "enc")
    if not len(bounds) and not encoded:
        return
    require(len(encoded) == features and segments(bounds, features, len(order)), "categories are damaged")
    for one, first, end in zip(encoded, bounds[:-1], bounds[1:], strict=True):
        count = int(end - first)
        require(np.array_equal(np.sort(order[first:end]), np.arange(count)), "categories are damaged")
        require(isinstance(one, Mapping), "categories are damaged")
        values = _array(one, "values", float)
        if "offsets" not in one:  # numbers
            require(len(values) == count, "categories are damaged")
            continue
        offsets = _array(one, "offsets", int)
        if count or len(values):
            require(segments(offsets, count, len(values)), "categories are damaged")


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
    """Return a JSON object whose keys all differ: of equal ones XGBoost would take another than we check."""
    made = dict(pairs)
    require(len(made) == len(pairs), "a key is there twice")
    return made


def _length(name: str, values: np.ndarray, n: int) -> None:
    require(len(values) == n, f"{name!r} must have {n} values, got {len(values)}")


NUMBERS_OF = {b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8"}
CONSTANTS = {b"T": True, b"F": False, b"Z": None, b"N": None}


def read_ubjson(data: bytes) -> Any:
    """Return UBJSON as XGBoost writes it, decoded; lists of numbers become arrays."""
    reader = _Ubjson(data)
    value = reader.value(0)
    require(reader.place == len(data), "it is longer than its content")
    return value


class _Ubjson:
    """Reads one value after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def _mark(self) -> bytes:
        self.place += 1
        return self.data[self.place - 1 : self.place]

    def _skip(self, mark: bytes) -> bool:
        """Whether this mark comes next, which is then read."""
        found = self.data.startswith(mark, self.place)
        self.place += found
        return found

    def _numbers(self, mark: bytes, count: int, what: str) -> np.ndarray:
        kind, first = np.dtype(NUMBERS_OF[mark]), self.place
        self.place += count * kind.itemsize
        require(self.place <= len(self.data), f"{what} is cut short")
        return np.frombuffer(self.data, kind, count, first)

    def _size(self) -> int:
        mark = self._mark()
        require(mark in NUMBERS_OF and mark not in (b"d", b"D"), "it is cut short, or no file of XGBoost")
        size = int(self._numbers(mark, 1, "it")[0])
        require(0 <= size <= len(self.data) - self.place, "it is cut short")
        return size

    def _text(self) -> str:
        size = self._size()
        self.place += size
        return self.data[self.place - size : self.place].decode()

    def value(self, depth: int) -> Any:
        require(depth <= DEEPEST, "it is nested too deeply")
        mark = self._mark()
        if mark in CONSTANTS:
            return CONSTANTS[mark]
        if mark in NUMBERS_OF:
            return self._numbers(mark, 1, "it")[0].item()
        if mark in (b"S", b"C"):
            return self._text()
        if mark == b"[":
            return self._list(depth)
        require(mark == b"{", "it is cut short, or no file of XGBoost")
        made: dict[str, Any] = {}
        while not self._skip(b"}"):
            key = self._text()
            require(key not in made, f"{key[:40]!r} is there twice")  # XGBoost would take the other one
            made[key] = self.value(depth + 1)
        return made

    def _list(self, depth: int) -> Any:
        kind = self._mark() if self._skip(b"$") else None
        sized = self._skip(b"#")
        require(kind is None or (kind in NUMBERS_OF and sized), "a list is damaged")
        size = self._size() if sized else None
        if kind is not None and size is not None:
            return self._numbers(kind, size, "a list")
        made: list[Any] = []
        while len(made) < size if size is not None else not self._skip(b"]"):
            made.append(self.value(depth + 1))
        return made
