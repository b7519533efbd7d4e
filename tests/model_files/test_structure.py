"""A field of another kind is a ValueError of one line."""

import functools
import json

import numpy as np
import pytest
import skops.io
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from tests.model_files.files import (
    OTHERS,
    X,
    Y,
    changed,
    network_part,
    outcome,
    packed,
    refused,
    saved,
    spots,
    tampered,
    unpacked,
)


def structure_cases(kind, share, seed=0):
    data, _ = saved(kind)
    about = json.loads(unpacked(data)["lowchurn.json"])
    del about["sha256"]
    for rows in (about["frontier"], (about.get("dial") or {}).get("offers", [])):
        del rows[2:-1]
    if about.get("dial"):
        del about["dial"]["models"][3:]
    every = [(path, value) for path in spots(about) if path for value in OTHERS]
    chosen = np.random.default_rng(seed).permutation(len(every))[: int(share * len(every))]
    return [every[k] for k in sorted(chosen)]


def check_structure_case(kind, path, value, tmp_path):
    data, proba = saved(kind)
    found = outcome(tampered(data, about=lambda about: changed(about, path, value)), tmp_path)
    if not isinstance(found, str):  # a field that predictions do not need
        assert found.predict_proba(X).shape == proba.shape
        str(found.selection_), repr(found.frontier_), str(found.certificate_), found.get_params()
        try:
            found.dial(0.1)
        except ValueError as error:
            assert "there is no dial here" in str(error)  # noqa: PT017
    else:
        assert "\x1b" not in found


@pytest.mark.parametrize(("kind", "share"), [("logistic", 0.1), ("dial", 0.03), ("mixture", 0.05), ("groups", 0.03)])
def test_a_field_of_another_kind_is_one_line(kind, share, tmp_path):
    for path, value in structure_cases(kind, share):
        check_structure_case(kind, path, value, tmp_path)


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["logistic", "dial", "mixture"])
def test_every_field_of_every_other_kind_is_one_line(kind, tmp_path):
    for path, value in structure_cases(kind, 1.0):
        check_structure_case(kind, path, value, tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("format",), "2", "format"),
        (("n_features_in",), 0, "n_features_in must be in"),
        (("n_features_in",), 5, "3 features"),
        (("classes",), [0, 0], "different"),
        (("classes",), [0, 7], "other classes"),
        (("dtype",), "<U99999999", "dtype"),
        (("dtype",), "O8,O8", "dtype"),
        (("members",), [], "weights"),
        (("members", 0, "weight"), (0.5).hex(), "sum to 1"),
        (("members", 0, "weight"), "nan", "finite"),
        (("members", 0, "weight"), "0x1p99999", "finite"),
        (("members", 0, "learner"), "row", "unknown learner 'row'"),
        (("members", 0, "learner"), "torch", "member 0 is damaged"),
        (("members", 0, "folder"), "elsewhere/", "no files"),
        (("parameters", "churn"), "harsh", "churn"),
        (("parameters", "base"), "x.onnx", "unknown parameter 'base'"),
        (("selection", "rows"), {}, "number of rows"),
    ],
)
def test_what_is_wrong_is_said(path, value, words, tmp_path):
    refused(tampered(saved("logistic")[0], about=lambda about: changed(about, path, value)), tmp_path, words)


def test_texts_that_are_no_description_are_refused(tmp_path):
    parts = unpacked(saved("logistic")[0])
    deep = b"[" * 100_000
    for text in (
        b"",
        b"{",
        deep,
        b'{"format": ' + deep,
        b"\xff\xfe",
        b"null",
        b"\x00",
        b'{"format": 1e999}',
        b"9" * 5000,
    ):
        refused(packed(parts | {"lowchurn.json": text}), tmp_path)
    nested = functools.reduce(lambda inner, _: {"a": inner}, range(500), 1)
    refused(tampered(packed(parts), about=lambda about: {**about, "members": nested}), tmp_path, "nested too deeply")


def test_skops_of_odd_nodes_are_refused(tmp_path):
    parts = unpacked(skops.io.dumps(LogisticRegression().fit(X, Y)))
    schema = json.loads(parts["schema.json"])
    deep = b"[" * 100_000
    for text in (b"", b"{}", b"[]", b"null", deep, b"\xff"):
        refused(packed(parts | {"schema.json": text}), tmp_path)
    rng = np.random.default_rng(0)
    every = [(path, value) for path in spots(schema) if path for value in OTHERS]
    for k in rng.permutation(len(every))[:120]:
        other = json.dumps(changed(schema, *every[k])).encode()
        outcome(packed(parts | {"schema.json": other}), tmp_path)
    refused(packed({k: v for k, v in parts.items() if k == "schema.json"}), tmp_path)


def test_a_network_that_its_weights_do_not_fit_takes_no_memory(tmp_path):
    for name in ("fcn-4", "fcn-999999999999", "rnn-3", "convnet-1", "fcn-0"):
        parts = {f"model0/{k}": v for k, v in network_part(name).items()}
        refused(tampered(saved("network")[0], parts), tmp_path)
    about = json.loads(network_part("fcn-3")["network.json"])
    for path, value in [(p, v) for p in spots(about) if p for v in OTHERS][::4]:
        part = json.dumps(changed(about, path, value)).encode()
        found = outcome(tampered(saved("network")[0], {"model0/network.json": part}), tmp_path)
        assert isinstance(found, str) or found.predict_proba(X).shape == (240, 2)


def test_a_model_of_another_kind_is_refused(tmp_path):
    data, _ = saved("logistic")
    for model, words in [
        (StandardScaler().fit(X), "fitted classifier"),
        (LogisticRegression(), "fitted classifier"),
        (LogisticRegression().fit(X, Y + 5), "other classes"),
    ]:
        refused(tampered(data, {"model0/model.skops": skops.io.dumps(model)}), tmp_path, words)
    other = LogisticRegression().fit(X, Y)
    part = {"model0/preprocessing/model.skops": skops.io.dumps(other)}
    refused(tampered(data, part), tmp_path, "must transform rows")
    refused(tampered(data, {"estimator.skops": skops.io.dumps([1])}), tmp_path, "must be an estimator")
