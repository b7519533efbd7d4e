"""Whether a skops file has the whole state of objects that compiled code sets up without a check of what it is given.

They are the trees of scikit-learn, the trees of nearest neighbours and their distances. What is wrong with them crashes
the process while skops makes them, so that they are looked up in the file before. skops takes a node whose ``__id__``
it has met for the one that it met; parts of these objects lose theirs, so that what is checked is what is read.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.metrics import DistanceMetric
from sklearn.neighbors import BallTree, KDTree
from sklearn.tree._tree import Tree

from lowchurn._model_files import Refused

NEIGHBOURS = (KDTree.__module__, BallTree.__module__)
DISTANCES = DistanceMetric.__module__
TREES = Tree.__module__


def check_state(node: dict[str, Any], parts: Mapping[str, bytes]) -> None:
    """Refuse a node of the file that is one of these objects without its whole state; drop the ids of its parts."""
    module, loader = node.get("__module__"), node.get("__loader__")
    if loader == "TreeNode" or module == TREES:
        whole = loader == "TreeNode" and _is_whole_tree(node, parts)
    elif module in NEIGHBOURS:
        whole = _has_items(node, len(KDTree([[0.0]]).__getstate__()))
    elif module == DISTANCES:
        whole = _has_items(node, len(DistanceMetric.get_metric("euclidean").__getstate__()))
    else:
        return
    if not whole:
        raise Refused(f"load: an object is not whole, {str(node.get('__class__'))[:40]!r}.")


def _content(node: dict[str, Any], loader: str) -> Any:
    """Return what a node contains, which must be of a kind."""
    node.pop("__id__", None)
    if node["__loader__"] != loader:
        raise Refused(f"load: a tree must have a {loader}, got {str(node['__loader__'])[:40]!r}.")
    return node["content"]


def _has_items(node: dict[str, Any], count: int) -> bool:
    """Whether the state is a tuple of this length."""
    return node["__loader__"] == "ObjectNode" and len(_content(node["content"], "TupleNode")) == count


def _is_whole_tree(node: dict[str, Any], parts: Mapping[str, bytes]) -> bool:
    """Whether the numbers of nodes and outputs are those of the arrays."""
    _, classes, outputs = _content(node["__reduce__"]["args"], "TupleNode")
    state = _content(node["content"], "DictNode")
    nodes, values = (_shape(state[name], parts) for name in ("nodes", "values"))
    if len(nodes) != 1 or len(values) != 3 or nodes[0] != values[0]:
        return False
    count, many = (json.loads(_content(one, "JsonNode")) for one in (state["node_count"], outputs))
    return bool(count == nodes[0]) and _shape(classes, parts) == (many,)


def _shape(node: dict[str, Any], parts: Mapping[str, bytes]) -> tuple[int, ...]:
    """Return the shape of an array, from the start of its entry."""
    node.pop("__id__", None)
    if node["__loader__"] != "NdArrayNode" or node["type"] != "numpy":
        raise Refused("load: a tree has other things than arrays.")
    file = io.BytesIO(parts[node["file"]])
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return tuple(read(file)[0])
