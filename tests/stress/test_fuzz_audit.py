"""``lowchurn audit`` on tables that it was not made for: a right number, or one line and exit code 2."""

import datetime as dt
import json
import re
import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.stress.oracle import count
from tests.stress.running import run_clean

DAY = dt.datetime(2024, 2, 29, 12, 30)
ZONED = DAY.replace(tzinfo=dt.UTC)
CLASSES = {
    "int8": ([-1, 0, 1, 7], pa.int8()),
    "int64": ([0, 1, 2, 3], pa.int64()),
    "large": ([2**53, 2**53 + 1, 2**53 + 2, 2**62 + 1], pa.int64()),
    "uint64": ([2**63, 2**63 + 1, 2**64 - 1, 5], pa.uint64()),
    "float32": ([0.5, 0.25, -2.0, 16777217.0], pa.float32()),
    "float64": ([0.1, 0.2, 0.30000000000000004, 0.3], pa.float64()),
    "bool": ([True, False], pa.bool_()),
    "text": (["1", "01", " 1", "1.0", "1e0", "\u0661", "a", "A", "\u00e9", "e\u0301", "nan", "null"], pa.string()),
    "markup": (["<b>", "[red]x[/]", "\x1b[31m", "a\nb", "{{x}}", "'; drop table pairs; --"], pa.string()),
    "decimal": ([Decimal("9007199254740993.1"), Decimal("9007199254740993.2"), Decimal("1.0")], pa.decimal128(30, 1)),
    "date": ([DAY.date(), DAY.date() + dt.timedelta(1)], pa.date32()),
    "timestamp": ([DAY, DAY + dt.timedelta(microseconds=1)], pa.timestamp("us")),
    "zoned": ([ZONED, ZONED + dt.timedelta(hours=1)], pa.timestamp("us", "UTC")),
    "categorical": (["low", "high", "mid"], pa.dictionary(pa.int8(), pa.string())),
}  # fmt: skip
IDS = {
    "int": (lambda n: list(range(n)), pa.int64()),
    "large": (lambda n: [2**53 + k for k in range(n)], pa.int64()),
    "text": (lambda n: [f"{k:03d}" for k in range(n)], pa.string()),
    "spaces": (lambda n: [" " * k + "x" for k in range(n)], pa.string()),
    "date": (lambda n: [DAY.date() + dt.timedelta(k) for k in range(n)], pa.date32()),
    "decimal": (lambda n: [Decimal(k).scaleb(-2) for k in range(n)], pa.decimal128(20, 2)),
}
NAMES = ("prediction", "old", "new", "label", "k0", "b0", "w", "order by", 'a"b', "a'b", "\u00e4", "x\ty")
OUTPUTS = ("a.json", "a.html", "a.md", "a.csv")


def tables(old_kind, new_kind, label_kind, id_kind, old_codes, new_codes, label_codes, name):
    """Both sides as arrow tables, and as dictionaries for the oracle."""
    n = len(old_codes)
    ids, id_type = IDS[id_kind][0](n), IDS[id_kind][1]

    def values(kind, codes):
        known, kind_type = CLASSES[kind]
        return pa.array([None if c is None else known[c % len(known)] for c in codes], type=kind_type)

    old, new = values(old_kind, old_codes), values(new_kind, new_codes)
    key = pa.array(ids, type=id_type)
    columns = {"row": key, name: old}
    labels = None
    if label_kind is not None:
        columns["truth"] = values(label_kind, label_codes)
        labels = dict(zip(ids, columns["truth"].to_pylist(), strict=True))
    order = np.random.default_rng(n).permutation(n)
    right = pa.table({name: new, "row": key}).take(order)
    return (
        pa.table(columns),
        right,
        dict(zip(ids, old.to_pylist(), strict=True)),
        dict(zip(ids, new.to_pylist(), strict=True)),
        labels,
    )


def write(table, path):
    if path.suffix == ".csv":
        plain = [
            c.cast(pa.string()) if pa.types.is_decimal(c.type) or pa.types.is_dictionary(c.type) else c for c in table
        ]
        pyarrow.csv.write_csv(pa.table(plain, names=table.column_names), path)
    else:
        pyarrow.parquet.write_table(table, path)


def check_numbers(folder, expected, labelled):
    found = json.loads((folder / "a.json").read_text())["estimates"]
    names = ["churn", *(("broken", "fixed", "accuracy_old", "accuracy_new") if labelled else ())]
    for name in names:
        assert found[name]["value"] == pytest.approx(expected[name], abs=1e-12), name


codes = st.lists(st.tuples(*[st.integers(0, 11)] * 3), min_size=1, max_size=30)


@st.composite
def clean_cases(draw):
    kind = draw(st.sampled_from(sorted(CLASSES)))
    return {
        "old": kind,
        "new": kind,
        "label": draw(st.sampled_from([None, kind])),
        "id": draw(st.sampled_from(sorted(IDS))),
        "codes": draw(codes),
        "name": draw(st.sampled_from(NAMES)),
        "ending": draw(st.sampled_from([".parquet", ".parquet", ".csv"])),
    }


@st.composite
def mixed_cases(draw):
    case = draw(clean_cases())
    case["new"] = draw(st.sampled_from(sorted(CLASSES)))
    case["label"] = draw(st.sampled_from([None, *sorted(CLASSES)]))
    return case | {"ending": ".parquet"}


def made(case, folder):
    old_codes, new_codes, label_codes = zip(*case["codes"], strict=True)
    built = tables(case["old"], case["new"], case["label"], case["id"], old_codes, new_codes, label_codes, case["name"])
    for table, side in zip(built[:2], ("old", "new"), strict=True):
        write(table, folder / f"{side}{case['ending']}")
    return built


def arguments(case):
    label = [] if case["label"] is None else ["--label", "truth"]
    files = [f"{side}{case['ending']}" for side in ("old", "new")]
    return [
        "audit",
        *files,
        "--id",
        "row",
        "--prediction",
        case["name"],
        *label,
        "--json",
        "a.json",
        "--html",
        "a.html",
    ]


def as_csv_reads(*sides):
    """A CSV has no types: where every value is a number, 1 and 1.0 are the same one, as pandas writes them."""
    values = [value for side in sides if side is not None for value in side.values()]
    if not all(re.fullmatch(r"[1-9]\d*(\.\d+)?", value) for value in values):
        return sides
    return [None if side is None else {key: float(value) for key, value in side.items()} for side in sides]


def judge_clean(case):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _, _, old, new, labels = made(case, folder)
        ended = run_clean(folder, OUTPUTS, *arguments(case))
        if case["ending"] == ".csv" and ended.code == 2:
            return  # a CSV has no types: what cannot be read in one way is refused
        assert ended.code == 0, ended.err
        if case["ending"] == ".csv" and case["old"] == "text":
            old, new, labels = as_csv_reads(old, new, labels)
        check_numbers(folder, count(old, new, labels), labels is not None)


def judge_mixed(case):
    """Types that differ: the exact answer or a refusal."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _, _, old, new, labels = made(case, folder)
        ended = run_clean(folder, OUTPUTS, *arguments(case))
        if ended.code == 0:
            check_numbers(folder, count(old, new, labels), labels is not None)


def few(examples):
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


@few(15)
@given(clean_cases())
def test_clean_tables_give_the_oracles_numbers(case):
    judge_clean(case)


@few(15)
@given(mixed_cases())
def test_other_types_give_the_oracles_numbers_or_are_refused(case):
    judge_mixed(case)


@pytest.mark.stress
@few(500)
@given(clean_cases())
def test_500_clean_tables_give_the_oracles_numbers(case):
    judge_clean(case)


@pytest.mark.stress
@few(500)
@given(mixed_cases())
def test_500_mixed_tables_give_the_oracles_numbers_or_are_refused(case):
    judge_mixed(case)


TABLE_DAMAGES = ("no id", "twice", "gap", "null decision", "null id", "other ids")
DAMAGES = ("cut", "flip", "empty", "folder", "garbage", *TABLE_DAMAGES)


def damage(folder, case, kind, at):
    """Spoil the new table in one way."""
    path = folder / f"new{case['ending']}"
    raw = path.read_bytes()
    table = None
    if kind in TABLE_DAMAGES:
        if case["ending"] != ".parquet":
            return damage(folder, case, "empty", at)
        table = pyarrow.parquet.read_table(folder / "new.parquet")
    if kind == "cut":
        path.write_bytes(raw[: at % max(len(raw), 1)])
    elif kind == "flip":
        spoiled = bytearray(raw)
        spoiled[at % len(raw)] ^= 1 << (at % 8)
        path.write_bytes(bytes(spoiled))
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind == "garbage":
        path.write_bytes(np.random.default_rng(at).bytes(at % 3000 + 1))
    elif kind == "no id":
        write(table.drop_columns(["row"]), path)
    elif kind == "twice":
        write(pa.concat_tables([table, table.slice(0, 1)]), path)
    elif kind == "gap":
        write(table.slice(1), path)
    elif kind in ("null decision", "null id"):
        name = "row" if kind == "null id" else case["name"]
        place = table.column_names.index(name)
        column = table.column(name).to_pylist()
        column[at % len(column)] = None
        write(table.set_column(place, name, pa.array(column, type=table.schema.field(name).type)), path)
    elif kind == "other ids":
        write(table.set_column(1, "row", pa.array([[k] for k in range(len(table))])), path)


def judge_damaged(case, kind, at):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        made(case, folder)
        damage(folder, case, kind, at)
        ended = run_clean(folder, OUTPUTS, *arguments(case))
        if kind not in ("flip", "cut"):  # after these the file may still be a table, another one
            assert ended.code == 2, (kind, ended.out)


@few(15)
@given(clean_cases(), st.sampled_from(DAMAGES), st.integers(0, 10**6))
def test_damaged_tables_are_refused(case, kind, at):
    judge_damaged(case, kind, at)


@pytest.mark.stress
@few(500)
@given(clean_cases(), st.sampled_from(DAMAGES), st.integers(0, 10**6))
def test_500_damaged_tables_are_refused(case, kind, at):
    judge_damaged(case, kind, at)


TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
VALUES = st.one_of(
    TEXTS, st.floats().map(str), st.integers(-(10**30), 10**30).map(str), st.sampled_from(["", "-1", "nan", "1e400"])
)
OPTIONS = (
    "--id", "--label", "--by", "--feature", "--weight", "--group", "--prediction", "--score", "--threshold", "--proba",
    "--class", "--on-mismatch", "--confidence", "--max-churn", "--max-broken", "--not-worse-than", "--min-rows",
    "--slice-max-churn", "--slice-min-rows", "--config", "--answers", "--frontier", "--margin", "--power", "--seed",
    "--memory-limit", "--threads", "--temp-directory", "--disputed-rows", "--inconclusive",
)  # fmt: skip


def judge_options(given_options):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        case = {"old": "text", "new": "text", "label": "text", "id": "int", "codes": [(1, 2, 3), (4, 4, 5), (6, 7, 6)],
                "name": "prediction", "ending": ".parquet"}  # fmt: skip
        made(case, folder)
        # --option=value, so that a value may start with a dash
        run_clean(folder, OUTPUTS, *arguments(case), *[f"{name}={value}" for name, value in given_options])


@few(15)
@given(st.lists(st.tuples(st.sampled_from(OPTIONS), VALUES), min_size=1, max_size=3))
def test_odd_values_of_options_are_refused_in_words(options):
    judge_options(options)


@pytest.mark.stress
@few(500)
@given(st.lists(st.tuples(st.sampled_from(OPTIONS), VALUES), min_size=1, max_size=3))
def test_500_odd_values_of_options_are_refused_in_words(options):
    judge_options(options)
