"""What reaches the terminal: one safe line, and options under their own names."""

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from lowchurn._options import as_options, option_names
from lowchurn._terminal import one_line, printable

NAMES = {
    "on_mismatch": "--on-mismatch",
    "classes": "--class",
    "proba": "--proba",
    "threshold": "--threshold",
    "id": "--id",
    "trusted": "--trust",
    "max_churn": "--max-churn",
    "features": "--feature",
}


@given(st.text(st.characters()))
def test_no_text_moves_the_cursor_or_breaks_the_line(text):
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in shown)
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029\u200e\u200f\u061c")
    assert printable(shown) == shown


@pytest.mark.parametrize("text", ["", "plain", "ünï", "日本語", "👩\u200d🚀", "a\\b", "a\u200cb", "a\u00a0b"])
def test_ordinary_text_stays(text):
    assert printable(text) == text


def test_values_that_are_no_text_are_shown():
    assert printable(3.5) == "3.5"
    assert printable("\x9b31m\x07\r") == "\\x9b31m\\x07\\r"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("audit: no partner. Use on_mismatch='inner'.", "audit: no partner. Use --on-mismatch inner."),
        ("audit: on_mismatch='inner' left out 3", "audit: --on-mismatch inner left out 3"),
        ("audit: say classes=(negative, positive).", "audit: say --class negative --class positive."),
        ("Name it: proba= (one), threshold=, or id=.", "Name it: --proba (one), --threshold, or --id."),
        ("load: trust it with trusted=['m x.pkl', 'a.B'].", "load: trust it with --trust 'm x.pkl' --trust a.B."),
        ("audit: classes must differ, got ['a'].", "audit: --class must differ, got ['a']."),
        ("audit: threshold must be in [0, 1], got 3.", "audit: --threshold must be in [0, 1], got 3."),
        ("gate: set max_churn or features.", "gate: set --max-churn or features."),
        ("audit: the id=7 row", "audit: the --id 7 row"),
        ("gate: gate.max_churn must be a number", "gate: gate.max_churn must be a number"),
        # Data is left alone, whatever it looks like.
        ("audit: unknown column 'on_mismatch'. Known: max_churn, id=.", None),
        ("audit: no file 'max_churn=3' here", None),
        ('audit: no file "it\'s max_churn=3" here', None),
        ("audit: slice country=DE, --on-mismatch inner", None),
        ("audit: the id of a row", None),
    ],
)
def test_settings_are_named_as_options(message, shown):
    shown = message if shown is None else shown
    assert as_options(message, NAMES) == shown
    assert as_options(shown, NAMES) == shown
    assert as_options(message, {}) == message


def test_the_names_come_from_the_command():
    from lowchurn.cli import app

    names = option_names(typer.main.get_command(app).commands["audit"])
    assert (names["classes"], names["on_mismatch"]) == ("--class", "--on-mismatch")
    assert "old" not in names


def test_one_line():
    assert one_line("  a\n\n   b\r\nc.  ", whole=True) == "a b c."
    assert one_line(ValueError("line 1\n  line \x1b[31m2.")) == r"line 1 line \x1b[31m2"
    assert one_line("x" * 301) == "x" * 300 + " ..."
