"""An audit of random tables gives what a plain Python loop gives, or refuses: never a wrong number.

Decisions of both sides and labels are of random types. Python compares whole numbers, floats and decimals exactly, so
``==`` is the oracle of tables that have types; values of a CSV are numbers where all of them are, and else text.
"""

import contextlib
import csv
import datetime
import random
import re
from decimal import Decimal

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, event, given, settings

import lowchurn

BIG = 2**53
DAYS = [datetime.datetime(2024, 3, 31, hour) for hour in (0, 1, 2)]
NUMBER = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")

# Values that a careless comparison confuses are drawn together.
THEMES = {
    "small": [0, 1, 2],
    "large": [BIG - 1, BIG, BIG + 1, BIG + 2],
    "huge": [2**63 - 1, 2**63 - 2, 2**63, 2**64 - 1, 10**37, 10**37 + 1],
    "single": [2**24, 2**24 + 1, 2**24 + 2],
    "fractions": [Decimal("0.1"), Decimal("0.2"), Decimal("0.5"), 1],
}
NUMBERS = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "uint32": pa.uint32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "decimal(4, 2)": pa.decimal128(4, 2),
    "decimal(38, 0)": pa.decimal128(38, 0),
    "decimal(20, 1)": pa.decimal128(20, 1),
}


def pool_of(type, theme):
    """The values of a theme that a type has: floats round them, the others have them or not."""
    if pa.types.is_boolean(type):
        return [True, False]
    if pa.types.is_floating(type):
        return [float(v) for v in THEMES[theme]] + [-0.0, 0.0, float("inf"), float("nan")][: 4 * (theme == "small")]
    found = []
    for value in THEMES[theme]:
        with contextlib.suppress(pa.ArrowException, TypeError, OverflowError):
            pa.array([value if pa.types.is_integer(type) else Decimal(value)], type)
            found.append(value if pa.types.is_integer(type) else Decimal(value))
    return found or pool_of(type, "small")


OTHERS = {
    "text": (pa.string(), ["1", "01", "1.0", " 1", "a", "A", "a ", "", "True", "\u0661", "2024-03-31"]),
    "words": (pa.string(), ["yes", "no", "maybe"]),
    "digits": (pa.string(), ["0", "1", "2"]),
    "categories": (pa.dictionary(pa.int32(), pa.string()), ["1", "a", "b"]),
    "binary": (pa.binary(), [b"a", b"\x00", b"\xff"]),
    "date": (pa.date32(), [datetime.date(2024, 3, 31), datetime.date(2024, 4, 1)]),
    "seconds": (pa.timestamp("s"), DAYS),
    "nanoseconds": (pa.timestamp("ns"), DAYS),
    "zoned": (pa.timestamp("us", "UTC"), [d.replace(tzinfo=datetime.UTC) for d in DAYS]),
    "time": (pa.time64("us"), [d.time() for d in DAYS]),
    "list": (pa.list_(pa.int64()), [[1], [2]]),
    "empty": (pa.null(), [None]),
}


@st.composite
def cases(draw):
    """Names of the types, columns of old decisions, new decisions and labels, the kind of source, a seed."""
    theme = draw(st.sampled_from(sorted(THEMES)))
    numbers = {name: (type, pool_of(type, theme)) for name, type in NUMBERS.items()}
    family = draw(st.sampled_from([numbers, numbers, numbers, OTHERS, numbers | OTHERS]))
    names = [draw(st.sampled_from(sorted(family))) for _ in range(3)]
    if draw(st.booleans()):
        names = [names[0], names[draw(st.integers(0, 1))], names[draw(st.integers(0, 2))]]
    size = draw(st.integers(1, 12))
    columns = []
    for i, name in enumerate(names):
        type, pool = family[name]
        if i < 2 and draw(st.integers(0, 9)):
            pool = [v for v in pool if v is not None and v == v] or pool  # decisions are rarely missing
        values = draw(st.lists(st.sampled_from([*pool, None] if i == 2 else pool), min_size=size, max_size=size))
        columns.append(pa.array(values, type))
    return names, columns, draw(st.sampled_from(["memory", "parquet", "csv"])), draw(st.integers(0, 2**32))


def python_values(column):
    """As Python objects that compare by value; NaN is missing."""
    return [None if v is None or v != v else v for v in column.to_pylist()]


def written(column):
    """As a CSV has them."""
    if pa.types.is_float32(column.type):
        return ["" if v is None else str(np.float32(v)) for v in column.to_pylist()]
    return ["" if v is None else v.decode("latin-1") if isinstance(v, bytes) else str(v) for v in column.to_pylist()]


def read_back(columns):
    """What the texts of several columns mean together: numbers if all of them are, else text."""

    def number(text):
        if text.lower() in ("true", "false"):
            return Decimal(text.lower() == "true")
        if NUMBER.fullmatch(text) or text in ("nan", "inf", "-inf"):
            return Decimal(text)
        return None

    texts = [[t for t in column if t] for column in columns]
    if all(number(t) is not None for column in texts for t in column):
        found = [[number(t) if t else None for t in column] for column in columns]
        return [[None if v is None or v.is_nan() else v for v in column] for column in found]
    return [[t or None for t in column] for column in columns]


def oracle(old, new, label):
    """Churn, broken, fixed and accuracies by a loop."""
    changed = broken = fixed = right = right_new = labelled = 0
    for a, b, y in zip(old, new, label, strict=True):
        changed += a != b
        if y is not None:
            labelled += 1
            broken += a == y and b != y
            fixed += a != y and b == y
            right += a == y
            right_new += b == y
    return {"changed": changed, "labelled": labelled, "broken": broken, "fixed": fixed, "right": right,
            "right_new": right_new}  # fmt: skip


def check(case, folder):
    names, columns, source, seed = case
    size = len(columns[0])
    order = list(range(size))
    random.Random(seed).shuffle(order)
    ids = pa.array([2**60 + i for i in range(size)])
    label_side = seed % 2
    tables = [
        pa.table({"id": ids, "prediction": column} | ({"y": columns[2]} if side == label_side else {})).take(order)
        for side, column in enumerate(columns[:2])
    ]
    values = [python_values(c) for c in columns]
    if source == "csv":
        values = read_back([written(c) for c in columns])
        paths = [folder / f"{side}.csv" for side in ("old", "new")]
        for path, table in zip(paths, tables, strict=True):
            with path.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(table.column_names)
                writer.writerows(zip(*(written(c.combine_chunks()) for c in table.columns), strict=True))
    elif source == "parquet":
        paths = [folder / f"{side}.parquet" for side in ("old", "new")]
        for path, table in zip(paths, tables, strict=True):
            pq.write_table(table, path)
    else:
        paths = tables
    try:
        audit = lowchurn.audit.audit(*paths, label="y")
    except ValueError as error:
        refusal = str(error)
        event(f"{source}: refused")
    else:
        refusal = None
        event(f"{source}: audited")
    if refusal is not None:
        assert refusal.startswith("audit: ")
        assert "\n" not in refusal
        return
    assert None not in (*values[0], *values[1])
    expected = oracle(*values)
    assert {kind: audit.whole.n[kind] for kind in expected} == expected, names
    assert audit.churn.value == expected["changed"] / size


relaxed = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]


@settings(max_examples=60, deadline=None, suppress_health_check=relaxed)
@given(cases())
def test_an_audit_of_any_types_is_right_or_refused(tmp_path, case):
    check(case, tmp_path)


@pytest.mark.stress
@settings(max_examples=600, deadline=None, suppress_health_check=relaxed)
@given(cases())
def test_many_audits_of_any_types_are_right_or_refused(tmp_path, case):
    check(case, tmp_path)
