"""What is written as JSON: plain values, and null for what JSON has no number for."""

import datetime
import json
import math
from decimal import Decimal

import numpy as np
import pytest

from lowchurn._display import setting_words
from lowchurn._json import dumps, plain


def test_numpy_becomes_plain_and_undefined_becomes_null():
    given = {
        1: np.float32(0.5),
        "wide": np.longdouble(2),
        "whole": np.int64(2**53 + 1),
        "flag": np.bool_(True),
        "text": np.str_("\u00e9"),
        "nested": [np.array([1.0, math.nan]), (math.inf, None)],
        "dates": np.array(["2020-01-01T00:00:00.000000001"], dtype="M8[ns]"),
        "date": datetime.date(2020, 1, 2),
        "decimal": Decimal("0.10"),
    }
    assert plain(given) == {
        "1": 0.5,
        "wide": 2.0,
        "whole": 2**53 + 1,
        "flag": True,
        "text": "\u00e9",
        "nested": [[1.0, None], [None, None]],
        "dates": ["2020-01-01T00:00:00.000000001"],
        "date": "2020-01-02",
        "decimal": "0.10",
    }
    assert json.loads(dumps(given)) == plain(given)
    assert type(plain(np.float64(1))) is float


def test_exact_keeps_what_json_has_no_form_for():
    day = datetime.date(2020, 1, 2)
    kept = plain({"a": [math.nan, np.int8(3)], "b": day}, exact=True)
    assert math.isnan(kept["a"][0])
    assert kept["a"][1] == 3
    assert kept["b"] is day
    with pytest.raises(TypeError):
        json.dumps(kept)


def test_settings_in_words():
    assert setting_words({"lam": 0.5, "start": "cold"}) == "lam=0.5, start=cold"
    assert setting_words({}) == ""
