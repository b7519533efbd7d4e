"""The one way to write HTML: jinja2 templates beside their rooms, with every value escaped.

Nothing reaches a page as markup but what a template contains, a style sheet or script of this package, and the drawing
of a chart. Line breaks of a template that stand beside a tag are not part of the page.
"""

from __future__ import annotations

import re
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from lowchurn._display import interval_text, share_text
from lowchurn._extras import importing

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
LONGEST_WORD = 20  # characters; a longer one may break where it has to, a shorter one never does


def render(template: str, **values: Any) -> str:
    """The page that a template makes of values; the path of the template counts from the package."""
    return environment().get_template(template).render(values)


@cache
def environment() -> jinja2.Environment:
    """Every value is escaped, in text and in attributes, and a name that has no value is an error."""
    with importing("HTML", "report"):
        import jinja2

    class Templates(jinja2.PackageLoader):
        def get_source(self, environment: jinja2.Environment, template: str) -> Any:
            source, *rest = super().get_source(environment, template)
            return _in_one_line(source), *rest

    made = jinja2.Environment(
        loader=Templates("lowchurn", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if hasattr(value, "__html__") else clean(value),
    )
    made.filters |= {
        "words": words,
        "short": short,
        "share": share_text,
        "points": partial(share_text, signed=True),
        "interval": interval_text,
        "change": partial(interval_text, signed=True),
    }
    made.globals["asset"] = asset
    return made


def _in_one_line(source: str) -> str:
    source = re.sub(r"(?<=[>}])\s*\n\s*|\s*\n\s*(?=[<{])", "", source)
    return re.sub(r"\s*\n\s*", " ", source)


def clean(text: object) -> str:
    """Text in which a replacement mark stands for each character that XML and HTML cannot contain."""
    return _NOT_XML.sub("\ufffd", str(text))


@cache
def package_text(path: str) -> str:
    """A style sheet or script of this package without indentation and comments in ``/* */``."""
    text = files("lowchurn").joinpath(path).read_text(encoding="utf-8")
    return re.sub(r"^\s+", "", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL), flags=re.MULTILINE)


def asset(path: str) -> Markup:
    """The same as markup."""
    from markupsafe import Markup

    return Markup(package_text(path))


def short(value: object, most: int) -> str:
    """Text of ``most`` characters at most."""
    shown = str(value)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def words(value: object) -> Markup:
    """Text that breaks between its words. Long ones may also break, after a separator where they have one."""
    from markupsafe import Markup, escape

    def kept(part: str) -> Markup:
        """A short word in one piece: a browser would break it at its hyphens."""
        apart = len(part) <= LONGEST_WORD and re.search(r"\w[-/?]\w|--", part)
        return Markup('<span class="whole">{}</span>').format(part) if apart else escape(part)

    def word(part: str) -> Markup:
        if len(part) <= LONGEST_WORD:
            return kept(part)
        pieces = (kept(piece) for piece in re.split(r"(?<=[/\\_=,.:;&?])", part) if piece)
        return Markup('<span class="long">{}</span>').format(Markup("<wbr>").join(pieces))

    if hasattr(value, "__html__"):
        return Markup(value)
    return Markup("").join(word(part) for part in re.split(r"(\s+)", clean(value)))
