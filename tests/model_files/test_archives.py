"""Archives that are bombs, that lie about their sizes or lead out of their folder are refused."""

import io
import json
import warnings
import zipfile

import numpy as np
import pytest
import skops.io
from sklearn.preprocessing import FunctionTransformer

import lowchurn
from lowchurn import _model_files
from lowchurn._model_files import read_zip
from lowchurn.estimator._archive import FORMAT
from lowchurn.learners._skops import load_skops
from tests.model_files.files import X, outcome, packed, refused, saved, tampered, unpacked


def test_bombs_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(_model_files, "ALWAYS_ALLOWED", 2**20)
    zeros = bytes(40 * 2**20)
    bomb = packed({"schema.json": b"{}", "zeros": zeros}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < len(zeros) / 500
    refused(bomb, tmp_path, "would unpack")
    parts = unpacked(saved("logistic")[0])
    refused(packed(parts | {"zeros": zeros}, zipfile.ZIP_DEFLATED), tmp_path, "would unpack")
    refused(tampered(packed(parts), {"model0/model.skops": bomb}), tmp_path, "would unpack")
    monkeypatch.setattr(zipfile.ZipFile, "open", None)  # nothing was opened
    refused(bomb, tmp_path, "would unpack")


def test_sizes_that_lie_are_found_out(tmp_path):
    data = bytearray(saved("logistic")[0])
    start = data.index(b"PK\x01\x02")
    for size in (0, 1, 2**31):
        other = data.copy()
        other[start + 24 : start + 28] = size.to_bytes(4, "little")
        refused(bytes(other), tmp_path)


def test_one_entry_cannot_be_read_a_thousand_times(tmp_path, monkeypatch):
    monkeypatch.setattr(_model_files, "ALWAYS_ALLOWED", 2**20)
    monkeypatch.setattr(_model_files, "RATIO", 2)
    model = FunctionTransformer(kw_args={"a": [np.zeros(60_000) for _ in range(3)]})
    parts = unpacked(skops.io.dumps(model))
    schema = json.loads(parts["schema.json"])
    load_skops(packed(parts))
    arrays = schema["content"]["content"]["kw_args"]["content"]["a"]["content"]
    for k in range(40):
        arrays.append({**arrays[0], "__id__": -k - 1})
    refused(packed(parts | {"schema.json": json.dumps(schema).encode()}), tmp_path, "so often")


@pytest.mark.parametrize("name", ["../up", "/abs", "a/../../up", "C:\\x", "..\\up", "\\\\host\\share\\x"])
def test_names_that_lead_out_are_refused(name, tmp_path):
    refused(packed(unpacked(saved("logistic")[0]) | {name: b"x"}), tmp_path, "outside of itself")


def test_odd_archives_are_refused(tmp_path, monkeypatch):
    parts = unpacked(saved("logistic")[0])
    buffer = io.BytesIO(packed(parts))
    with zipfile.ZipFile(buffer, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("lowchurn.json", b"{}")
    refused(buffer.getvalue(), tmp_path, "two entries called 'lowchurn.json'")
    refused(packed(parts, zipfile.ZIP_LZMA), tmp_path, "ZIP_DEFLATED")
    encrypted = bytearray(packed(parts, zipfile.ZIP_DEFLATED))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(mark) + offset] |= 1
    refused(bytes(encrypted), tmp_path, "encrypted")
    refused(packed({}), tmp_path)
    refused(b"", tmp_path, "neither")
    refused(bytes(3 * 2**20), tmp_path, "neither")
    refused(b"PK" + bytes(3 * 2**20), tmp_path, "not a zip file")
    refused(packed({"lowchurn.json": b"{}"}), tmp_path, "format")
    monkeypatch.setattr(_model_files, "MOST_ENTRIES", 2)
    refused(packed(parts), tmp_path, "entries")
    with pytest.raises(ValueError, match="file that is there"):
        lowchurn.load(tmp_path)


def test_parts_have_checksums(tmp_path):
    data, _ = saved("logistic")
    parts = unpacked(data)
    refused(packed(parts | {"model0/model.skops": b"other"}), tmp_path, "damaged, in its part 'model0/model.skops'")
    refused(packed(parts | {"more": b""}), tmp_path, "'more' is not one that was saved")
    refused(
        packed({k: v for k, v in parts.items() if k != "estimator.skops"}), tmp_path, "'estimator.skops' is missing"
    )


def in_words(about, version):
    """A description as formats 1 and 2 have it: candidates have a sentence for their parameters."""

    def row(found):
        setting = ", ".join(f"{name}={value}" for name, value in found["parameters"].items())
        return {k: v for k, v in found.items() if k not in ("parameters", "dial_parameter")} | {"setting": setting}

    made = {**about, "format": version, "frontier": [row(found) for found in about["frontier"]]}
    if about["dial"] is not None:
        offers = [one | {"candidate": row(one["candidate"])} for one in about["dial"]["offers"]]
        made["dial"] = about["dial"] | {"offers": offers}
    return made


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", ["logistic", "dial", "mixture", "network"])
def test_files_of_older_formats_are_still_read(kind, version, tmp_path):
    data, proba = saved(kind)
    now, older = (
        outcome(data, tmp_path),
        outcome(tampered(data, about=lambda found: in_words(found, version)), tmp_path),
    )
    assert (older.predict_proba(X) == proba).all()
    assert repr(older.frontier_.records()) == repr(now.frontier_.records())
    assert older.selection_ == now.selection_
    if now.has_dial:
        for budget in (0.02, 0.1, 0.5):
            assert older.dial(budget).selection_ == now.dial(budget).selection_
            assert (older.dial(budget).predict_proba(X) == now.dial(budget).predict_proba(X)).all()
    refused(tampered(data, about=lambda found: {**found, "format": FORMAT + 1}), tmp_path, "Upgrade lowchurn")


def test_an_archive_is_unpacked_whole():
    parts = {"a": b"1" * 3_000_000, "b/c": b""}
    assert read_zip("'m'", packed(parts, zipfile.ZIP_DEFLATED)) == parts
    with pytest.raises(ValueError, match="would unpack"):
        read_zip("'m'", packed(parts, zipfile.ZIP_DEFLATED), nested=True)
    assert read_zip("'m'", packed(parts), nested=True) == parts
