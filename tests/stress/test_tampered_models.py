"""Model files changed on purpose, with checksums that agree: a crash of compiled code is the worst that they could do.

A model with other numbers in it is another model, so that its answers are not judged here. It is loaded and asked in a
process of its own: every file gives a model or one line about the file, and no model ends the process.
"""

import contextlib
import io
import json
import random
import re
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

import lowchurn
from tests.model_files.files import LEARNERS, X, packed, saved, tampered, unpacked

pytestmark = pytest.mark.stress

CASES = 1500
NUMBER = re.compile(rb"-?\d+(\.\d+)?(e[-+]?\d+)?")
NUMBERS = [b"0", b"-1", b"1", b"3", b"7", b"255", b"65536", b"2147483647", b"2147483648", b"-2147483649"]
NUMBERS += [b"9223372036854775807", b"1e308", b"-1e308", b"NaN", b"Infinity", b"1e-320", b"0.5", b"null", b'"x"', b"[]"]


def changed_bytes(data, rng):
    """One small change: a number in a text, a bit, a byte, a word of four bytes, a cut or a doubled piece."""
    found, at = bytearray(data), rng.randrange(max(1, len(data)))
    numbers = list(NUMBER.finditer(data)) if not any(b > 126 for b in data[:2000]) else []
    how = rng.choice(["number"] * 6 * bool(numbers) + ["bit", "byte", "word", "word", "cut", "double"])
    if how == "number":
        place = rng.choice(numbers)
        found[place.start() : place.end()] = rng.choice(NUMBERS)
    elif how == "bit":
        found[at] ^= 1 << rng.randrange(8)
    elif how == "byte":
        found[at] = rng.randrange(256)
    elif how == "word":
        found[at : at + 4] = rng.choice([b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f", b"\1\0\0\0", rng.randbytes(4)])
    elif how == "cut":
        del found[at : at + rng.choice([1, 8, 64, len(data)])]
    else:
        found[at:at] = found[at : at + rng.choice([1, 8, 64])]
    return bytes(found)


def changed_part(data, rng):
    """A part with a change; of a part that is an archive itself, one of its files."""
    if not zipfile.is_zipfile(io.BytesIO(data)) or rng.random() < 0.1:
        return changed_bytes(data, rng)
    inner = unpacked(data)
    name = rng.choice(sorted(inner))
    return packed(inner | {name: changed_bytes(inner[name], rng)})


def changed_file(data, rng):
    """A model file with one part changed, without the checksums that would tell."""
    parts = unpacked(data)
    name = rng.choice(sorted(parts))
    if name != "lowchurn.json":
        return tampered(data, {name: changed_part(parts[name], rng)})
    description = json.loads(parts[name])
    del description["sha256"]
    return packed(parts | {name: changed_bytes(json.dumps(description).encode(), rng)})


def try_many(kind, folder, first, last):
    """Load and ask each; what a child process does. The number of a case is on disk before it is tried."""
    warnings.simplefilter("ignore")
    data, path, log = (folder / "model").read_bytes(), folder / "m.skops", folder / "case"
    counts = {"read": 0, "refused": 0}
    for case in range(first, last):
        log.write_text(str(case))
        path.write_bytes(changed_file(data, random.Random(f"{kind} {case}")))
        try:
            model = lowchurn.load(path)
        except ValueError as error:
            if not str(error).isprintable():
                raise AssertionError(f"case {case}: more than one line") from error
            counts["refused"] += 1
            continue
        counts["read"] += 1
        with contextlib.suppress(Exception):  # the library's own words, as for any model that does not suit the rows
            model.predict_proba(X)
            model.predict(X[:1])
    print(json.dumps(counts))


@pytest.mark.parametrize("kind", [*LEARNERS, "dial", "mixture", "sticky", "groups"])
def test_1500_tampered_files_crash_nothing(kind, tmp_path):
    data, _ = saved(kind)
    (tmp_path / "model").write_bytes(data)
    assert np.isfinite(lowchurn.load(tmp_path / "model").predict_proba(X)).all()
    call = f"try_many({kind!r}, Path({str(tmp_path)!r}), 0, {CASES})"
    program = f"from tests.stress.test_tampered_models import *; {call}"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, f"case {(tmp_path / 'case').read_text()}: {done.returncode}\n{done.stderr[-3000:]}"
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["refused"] > CASES / 10, counts
