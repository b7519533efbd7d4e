"""Files from outside: a value of the type that was asked for, or one clear line."""

import json
import math
import sys
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowchurn._model_files import Refused, hex_number, read_zip, write_zip
from lowchurn._reading import DEEPEST, check_structure, read_json, read_toml


@dataclass
class Inner:
    churn: float
    name: str = ""


@dataclass
class Outer:
    rows: int
    inner: list[Inner] = field(default_factory=list)
    note: str | None = None


def test_json_becomes_the_type_that_was_asked_for():
    found = read_json("audit", "'a.json'", '{"rows": 3, "inner": [{"churn": 1}], "note": null}', Outer)
    assert found == Outer(3, [Inner(1.0)])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_json_in_every_encoding(encoding):
    assert read_json("audit", "'a.json'", '{"name": "é"}'.encode(encoding), dict[str, str]) == {"name": "é"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        (b"\xff\xfe{", "not valid JSON"),
        (b"\x80", "not valid JSON"),
        ('{"rows": "3"}', r"Expected `int`, got `str` - at `\$.rows`"),
        ('{"rows": true}', "Expected `int`, got `bool`"),
        ('{"rows": 1.5}', "Expected `int`, got `float`"),
        ('{"rows": null}', "Expected `int`, got `null`"),
        ("{}", "missing required field `rows`"),
        ("[]", "Expected `object`, got `array`"),
        ("3", "Expected `object`, got `int`"),
        ('{"rows": 1, "inner": [{"churn": []}]}', r"at `\$.inner\[0\].churn`"),
        ("1" * 5000, "."),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_wrong_json_is_one_line(content, words):
    with pytest.raises(ValueError, match=rf"^audit: 'a.json' .*{words}") as stopped:
        read_json("audit", "'a.json'", content, Outer)
    assert "\n" not in str(stopped.value)


def test_text_with_lone_surrogates_is_no_crash():
    assert read_json("audit", "'a.json'", '{"a": "\ud800"}', dict[str, str]) == {"a": "\ud800"}


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_nesting_is_counted_exactly(opening):
    def nested(depth):
        value = 1
        for _ in range(depth):
            value = [value] if opening == "[" else {"a": value}
        return value

    check_structure("load", "'m'", nested(DEEPEST - 1), object)
    with pytest.raises(ValueError, match="load: 'm' is nested too deeply."):
        check_structure("load", "'m'", nested(DEEPEST + 1), object)
    assert sys.getrecursionlimit() < 10**6


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(plain | st.fixed_dictionaries({"rows": st.integers() | plain}))
def test_any_json_is_read_or_refused(value):
    fits = isinstance(value, dict) and type(value.get("rows")) is int and set(value) == {"rows"}
    if fits:
        assert read_json("audit", "'a.json'", json.dumps(value), Outer).rows == value["rows"]
        return
    with pytest.raises(ValueError, match="^audit: 'a.json' ") as stopped:
        read_json("audit", "'a.json'", json.dumps(value), Outer)
    assert "\n" not in str(stopped.value)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    with pytest.raises(ValueError, match="^audit: 'a.json' "):
        read_json("audit", "'a.json'", data, Outer)


def test_toml(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("\ufeffrows = 3\n[[inner]]\nchurn = 0.5\n", encoding="utf-8")
    assert read_toml("audit", path, Outer) == Outer(3, [Inner(0.5)])


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"rows = ", "not valid TOML"), (b"rows = 'x'", "Expected `int`, got `str`"), (b"\xff", "not valid TOML"),
     (b"a = " + b"[" * 50_000, "nested too deeply"), (b"rows = 2020-01-01", "Expected `int`")],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_wrong_toml_is_one_line(tmp_path, content, words):
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^audit: '.*a.toml' .*{words}") as stopped:
        read_toml("audit", path, Outer)
    assert "\n" not in str(stopped.value)


def test_toml_that_cannot_be_opened(tmp_path):
    for path, words in ((tmp_path, "Is a directory"), (tmp_path / "nowhere.toml", "No such file")):
        with pytest.raises(ValueError, match=f"audit: cannot read '.*{words}"):
            read_toml("audit", path, Outer)


def test_numbers_of_model_files():
    assert hex_number("the weight", (0.1).hex()) == 0.1
    assert hex_number("the weight", "inf", finite=False) == math.inf
    for text in ("inf", "nan", "x", "0x1p99999"):
        with pytest.raises(Refused, match=f"load: the weight must be a finite number, got '{text}'"):
            hex_number("the weight", text)


def test_archives_come_back():
    assert read_zip("'a.skops'", write_zip({"a": b"1"})) == {"a": b"1"}
    with pytest.raises(Refused, match="load: 'a.skops' is damaged or of another kind"):
        read_zip("'a.skops'", b"PK")
