"""Native model files of LightGBM and XGBoost, checked before the library parses them.

Both follow the nodes of a tree wherever they lead: a file whose nodes, features or sizes do not exist ends the
process. So the structure is read here first. The numbers in the nodes are the library's business.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from lowchurn._model_files import Refused

_NUMBER = rb"-?(?:\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|inf|nan)"
_LIGHTGBM_LINE = re.compile(rb"(?:\w+= *(?:" + _NUMBER + rb"(?: +" + _NUMBER + rb")*)? *)?")
_LIGHTGBM_TAIL = re.compile(
    rb"end of trees\n+(?:feature_importances:\n(?:[^\n]+=\d+\n)*\n*)?"
    rb"parameters:\n(?:\[\w+:[^\n]*\]\n)*\n*end of parameters\n+(?:pandas_categorical:[^\n]*\n?)?"
)


def check_lightgbm(data: bytes) -> str:
    """The text of a LightGBM model whose trees refer only to nodes, leaves and features that exist.

    Examples
    --------
    >>> from lowchurn.learners.native_trees import check_lightgbm
    >>> check_lightgbm(b"tree of oak")
    Traceback (most recent call last):
    ...
    lowchurn._model_files.Refused: load: a LightGBM model must start with 'tree' and contain 'end of trees'.
    """
    end = data.find(b"\nend of trees")
    first = data.find(b"\nTree=") + 1
    if not data.startswith(b"tree\n") or end < 0 or b"\0" in data:
        raise Refused("load: a LightGBM model must start with 'tree' and contain 'end of trees'.")
    head = _pairs(data[: first or end])
    sizes = _whole(head.get("tree_sizes", ""))
    features, per_round = int(head["max_feature_idx"]) + 1, int(head["num_tree_per_iteration"])
    if features < 1 or len(head["feature_names"].split(" ")) != features or not 1 <= per_round <= 10**6:
        raise Refused("load: a LightGBM model must have a name for each feature.")
    if len(head["feature_infos"].split(" ")) != features or not 1 <= int(head["num_class"]) <= 10**6:
        raise Refused("load: a LightGBM model must have a range for each feature.")
    if len(sizes) % per_round or (len(sizes) > 0) != (first > 0) or (sizes < 1).any():
        raise Refused("load: a LightGBM model must have trees for every round.")
    at = first
    for k, size in enumerate(sizes.tolist()):
        if at + size > end + 1 or not data.startswith(b"Tree=%d\n" % k, at):
            raise Refused("load: the trees of a LightGBM model must have the sizes that it lists.")
        if not all(map(_LIGHTGBM_LINE.fullmatch, data[at : at + size].split(b"\n"))):
            raise Refused(f"load: tree {k} of a LightGBM model contains something else than numbers.")
        _check_lightgbm_tree(_pairs(data[at : at + size]), features)
        at += size
    if data[at : end + 1].strip():
        raise Refused("load: the trees of a LightGBM model must have the sizes that it lists.")
    if not _LIGHTGBM_TAIL.fullmatch(data, end + 1):
        raise Refused("load: a LightGBM model must end with its parameters and categories.")
    return data.decode()


def _check_lightgbm_tree(tree: Mapping[str, str], features: int) -> None:
    leaves, categorical = int(tree["num_leaves"]), int(tree["num_cat"])
    inner = leaves - 1
    if leaves < 1 or categorical < 0:
        raise Refused("load: a tree must have leaves.")
    _lengths(tree, {"leaf_value": leaves})
    if inner:
        _lengths(
            tree, dict.fromkeys(("split_feature", "threshold", "decision_type", "left_child", "right_child"), inner)
        )
        for name in ("left_child", "right_child"):
            child = _whole(tree[name])
            after = (child > np.arange(inner)) & (child < inner)
            if not np.where(child >= 0, after, ~child < leaves).all():
                raise Refused("load: a tree has nodes that do not exist.")
        _within(_whole(tree["split_feature"]), features)
        by_category = (_whole(tree["decision_type"]) & 1) == 1
        if by_category.any() or categorical:
            bounds = _whole(tree["cat_boundaries"])
            if len(bounds) != categorical + 1 or (np.diff(bounds) < 0).any() or bounds[0] != 0:
                raise Refused("load: a tree has categories that do not exist.")
            _lengths(tree, {"cat_threshold": int(bounds[-1])})
            _within(np.array(tree["threshold"].split(), dtype=float)[by_category], categorical)
    for name in ("split_gain", "internal_value", "internal_weight", "internal_count", "leaf_weight", "leaf_count"):
        if tree.get(name, "").strip():
            _lengths(tree, {name: leaves if name.startswith("leaf") else inner})
    if int(tree.get("is_linear", "0")):
        counts = _whole(tree["num_features"])
        _lengths(tree, {"leaf_const": leaves, "num_features": leaves})
        _lengths(tree, dict.fromkeys(("leaf_features", "leaf_coeff"), int(counts.sum())))
        _within(counts, features + 1)
        _within(_whole(tree["leaf_features"]), features)


def _pairs(text: bytes) -> dict[str, str]:
    lines = (line.partition("=") for line in text.decode().split("\n") if "=" in line)
    return {name: value for name, _, value in lines}


def _whole(text: str) -> np.ndarray:
    return np.array(text.split(), dtype=np.int64)


def _lengths(tree: Mapping[str, Any], lengths: Mapping[str, int]) -> None:
    for name, length in lengths.items():
        values = tree[name].split() if isinstance(tree[name], str) else tree[name]
        if len(values) != length:
            raise Refused(f"load: a tree must have {length} values of {name}, got {len(values)}.")


def _within(values: np.ndarray, end: int) -> None:
    if len(values) and not (values.min() >= 0 and values.max() < end):
        raise Refused("load: a tree refers to features or categories that do not exist.")


def check_xgboost(data: bytes) -> bytes:
    """An XGBoost model (UBJSON or JSON) whose trees refer only to nodes and features that exist.

    Examples
    --------
    >>> from lowchurn.learners.native_trees import check_xgboost
    >>> check_xgboost(b"{L")
    Traceback (most recent call last):
    ...
    lowchurn._model_files.Refused: load: an XGBoost model must be whole, this one ends in the middle.
    """
    text = data[1:].lstrip().startswith(b'"')  # as XGBoost itself tells them apart
    learner = (json.loads(data) if text else _Ubjson(data).read())["learner"]
    features = int(learner["learner_model_param"]["num_feature"])
    classes = max(int(learner["learner_model_param"]["num_class"]), 1)
    booster = learner["gradient_booster"]
    if booster["name"] == "gblinear":
        _lengths(booster["model"], {"weights": (features + 1) * classes})
        return data
    if booster["name"] == "dart":
        _lengths(booster, {"weight_drop": len(booster["gbtree"]["model"]["trees"])})
        booster = booster["gbtree"]
    model = booster["model"]
    trees, rounds = model["trees"], np.asarray(model.get("iteration_indptr", []), dtype=np.int64)
    _lengths(model, {"tree_info": len(trees)})
    _within(np.asarray(model["tree_info"], dtype=np.int64), classes)
    if int(model["gbtree_model_param"]["num_trees"]) != len(trees):
        raise Refused("load: an XGBoost model must have the trees that it counts.")
    if len(rounds) and (rounds[0] != 0 or rounds[-1] != len(trees) or (np.diff(rounds) < 0).any()):
        raise Refused("load: an XGBoost model must have trees for every round.")
    for tree in trees:
        _check_xgboost_tree(tree, features)
    return data


def _check_xgboost_tree(tree: Mapping[str, Any], features: int) -> None:
    n = int(tree["tree_param"]["num_nodes"])
    if int(tree["tree_param"]["num_feature"]) != features:
        raise Refused("load: a tree has another number of features than its model.")
    each = ("left_children", "right_children", "parents", "split_indices", "split_conditions", "default_left")
    _lengths(tree, dict.fromkeys((*each, "loss_changes", "sum_hessian", "split_type"), n))
    vector = max(int(tree["tree_param"].get("size_leaf_vector", 1)), 1)
    _lengths(tree, {"base_weights": n * vector})
    left, right = (np.asarray(tree[name], dtype=np.int64) for name in ("left_children", "right_children"))
    parents = np.asarray(tree["parents"], dtype=np.int64)
    level, seen = np.zeros(1, dtype=np.int64), 0
    while len(level):  # a tree has no cycles: it is left after at most n nodes
        seen += len(level)
        if n < 1 or seen > n or level.min() < 0 or level.max() >= n:
            raise Refused("load: a tree has nodes that do not exist.")
        inner = level[left[level] != -1]
        level = np.concatenate([left[inner], right[inner]])
        if not np.array_equal(np.take(parents, level, mode="clip"), np.concatenate([inner, inner])):
            raise Refused("load: a tree has nodes whose parents do not exist.")
    _within(np.asarray(tree["split_indices"], dtype=np.int64)[left != -1], features)
    by_category = np.flatnonzero((np.asarray(tree["split_type"], dtype=np.int64) != 0) & (left != -1))
    nodes, starts, sizes = (
        np.asarray(tree[f"categories_{name}"], dtype=np.int64) for name in ("nodes", "segments", "sizes")
    )
    if not set(by_category.tolist()) <= set(nodes.tolist()) or not len(nodes) == len(starts) == len(sizes):
        raise Refused("load: a tree has categories that do not exist.")
    _within(nodes, n)
    _within(starts, len(tree["categories"]) + 1)
    _within(starts + sizes, len(tree["categories"]) + 1)
    _within(np.asarray(tree["categories"], dtype=np.int64), 2**24)


class _Ubjson:
    """Reads what XGBoost writes of UBJSON; numbers are big-endian."""

    numbers: ClassVar[dict[str, str]] = {"i": "b", "U": "B", "I": ">h", "l": ">i", "L": ">q", "d": ">f", "D": ">d"}
    words: ClassVar[dict[str, bool | None]] = {"T": True, "F": False, "Z": None}

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise Refused("load: an XGBoost model must be whole, this one ends in the middle.")
        self.at += count
        return self.data[self.at - count : self.at]

    def kind(self) -> str:
        return self.take(1).decode("latin-1")

    def number(self, kind: str) -> Any:
        if kind not in self.numbers:
            raise Refused(f"load: an XGBoost model contains an unknown mark, {kind!r}.")
        form = self.numbers[kind]
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        return self.take(int(self.number(self.kind()))).decode()

    def read(self, kind: str = "") -> Any:
        kind = kind or self.kind()
        if kind == "{":
            found = {}
            while self.data[self.at : self.at + 1] != b"}":
                name = self.text()
                found[name] = self.read()
            self.take(1)
            return found
        if kind == "[":
            return self.array()
        if kind == "S":
            return self.text()
        return self.words[kind] if kind in self.words else self.number(kind)

    def array(self) -> Any:
        following = self.data[self.at : self.at + 1]
        if following == b"$":
            self.take(1)
            form = np.dtype(self.numbers.get(self.kind(), "V"))
            if form.kind == "V" or self.take(1) != b"#":
                raise Refused("load: an XGBoost model contains an array of unknown numbers.")
            return np.frombuffer(self.take(int(self.number(self.kind())) * form.itemsize), dtype=form)
        if following == b"#":
            self.take(1)
            return [self.read() for _ in range(int(self.number(self.kind())))]
        items = []
        while self.data[self.at : self.at + 1] != b"]":
            items.append(self.read())
        self.take(1)
        return items
