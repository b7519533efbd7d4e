"""One style for all figures: Okabe and Ito's colours, which everybody can tell apart, and files that need nothing else.

Needs altair and vl-convert (``pip install "lowchurn[report]"``), imported where a figure is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

COLOURS = ("#000000", "#999999", "#56B4E9", "#E69F00", "#009E73", "#0072B2", "#CC79A7", "#D55E00")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "circle")
FAINT = "#999999"  # lines that only guide the eye
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def altair() -> Any:
    """The library, or an error that says how to get it.

    Examples
    --------
    >>> from lowchurn._charts import altair
    >>> altair().Chart.__name__
    'Chart'
    """
    try:
        import altair
        import vl_convert  # noqa: F401 - it writes the files
    except ImportError as error:
        raise ImportError('figures need altair and vl-convert: pip install "lowchurn[report]"') from error
    altair.data_transformers.disable_max_rows()
    return altair


def styled(chart: Any, title: Any) -> Any:
    """A chart with its title and the style that all of them share.

    Examples
    --------
    >>> from lowchurn._charts import altair, styled
    >>> styled(altair().Chart().mark_point(), "Churn").to_dict()["title"]
    'Churn'
    """
    return (
        chart.properties(title=title)
        .configure(font="sans-serif", background="white")
        .configure_axis(grid=True, gridColor="#e6e6e6", labelFontSize=11, titleFontSize=12, titleFontWeight="normal")
        .configure_legend(labelFontSize=12, symbolSize=90, orient="bottom", columns=8)
        .configure_title(fontSize=14, anchor="start")
        .configure_header(labelFontSize=12, title=None)
    )


def _drawable(spec: Any) -> Any:
    """A chart's specification with escapes for characters that XML does not have: the renderer aborts the process."""
    if isinstance(spec, dict):
        return {name: _drawable(value) for name, value in spec.items()}
    if isinstance(spec, list):
        return [_drawable(value) for value in spec]
    return _NOT_XML.sub(lambda found: repr(found[0])[1:-1], spec) if isinstance(spec, str) else spec


def _svg(chart: Any) -> bytes:
    import vl_convert

    return bytes(vl_convert.vegalite_to_svg(_drawable(chart.to_dict())).encode())


def _png(chart: Any) -> bytes:
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(_drawable(chart.to_dict()), scale=2))


def _html(chart: Any) -> bytes:
    return bytes(chart.to_html(inline=True).encode())  # scripts inside: it opens without a network


WRITERS: dict[str, Callable[[Any], bytes]] = {".svg": _svg, ".png": _png, ".html": _html}


def rendered(chart: Any, ending: str) -> bytes:
    """What a file of this kind holds.

    Examples
    --------
    >>> from lowchurn._charts import altair, rendered
    >>> alt = altair()
    >>> rendered(alt.Chart(alt.Data(values=[{"a": 1}])).mark_point().encode(x="a:Q"), ".svg")[:4]
    b'<svg'
    """
    if ending not in WRITERS:
        raise ValueError(f"figures: a file must end in {', '.join(WRITERS)}, got {ending!r}.")
    return WRITERS[ending](chart)
