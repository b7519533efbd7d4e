"""Libraries of an extra: imported where they are used, with an error that names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lowchurn._terminal import one_line


@contextmanager
def importing(who: str, extra: str) -> Iterator[None]:
    """Turn the error of an import into one that names who needs the library and the extra that contains it.

    Examples
    --------
    >>> with importing("chart", "report"):
    ...     import no_such_library
    Traceback (most recent call last):
    ImportError: chart: no_such_library is not installed. Run: pip install "lowchurn[report]"
    """
    try:
        yield
    except ImportError as error:
        library = (error.name or "a library").partition(".")[0]
        if library == "lowchurn":
            raise
        missing = isinstance(error, ModuleNotFoundError)
        state = "is not installed" if missing else f"cannot be imported ({one_line(error)})"
        raise ImportError(f'{who}: {library} {state}. Run: pip install "lowchurn[{extra}]"') from error
