"""placeholder"""

from typing import Any


def html_page(*a: Any, **k: Any) -> str:
    return "<html></html>"


def write_html(*a: Any, **k: Any) -> None:
    pass
