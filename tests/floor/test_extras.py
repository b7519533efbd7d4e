"""The error for a library that is not installed."""

import pytest

from lowchurn._extras import importing


def test_an_import_that_fails_otherwise_keeps_its_reason():
    with (
        pytest.raises(ImportError, match=r"chart: json cannot be imported \(.*'nothing'.*\)\. Run: .*\[report\]"),
        importing("chart", "report"),
    ):
        from json import nothing  # noqa: F401


def test_an_error_of_our_own_modules_is_not_about_an_extra():
    with pytest.raises(ModuleNotFoundError, match="No module named 'lowchurn.nowhere'"), importing("chart", "report"):
        import lowchurn.nowhere  # noqa: F401
