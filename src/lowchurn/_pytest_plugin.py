"""The fixture ``churn_gate``, for people whose gate is a test.

pytest imports this module whenever it starts, so everything heavy is imported by the fixture's first call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lowchurn.audit import Audit, NumberAudit


@pytest.fixture(scope="session")
def churn_gate() -> Callable[..., Audit | NumberAudit]:
    """Judge what changed between two tables of predictions: ``churn_gate(old, new, label="y", max_churn=0.02)``.

    Takes the arguments of :func:`lowchurn.audit.audit` and the limits of :class:`lowchurn.audit.Gate`. The test fails
    with the words of the audit where the verdict is FAIL, or INCONCLUSIVE unless ``inconclusive="warn"`` or ``"pass"``.
    ``html="report.html"`` writes the page first. Returns the audit.
    """
    return _judge


def _judge(old: Any, new: Any, *, html: str | Path | None = None, **options: Any) -> Audit | NumberAudit:
    __tracebackhide__ = True
    from lowchurn._checks import unknown_name
    from lowchurn.audit import audit
    from lowchurn.audit._gate import INCONCLUSIVE, LIMITS
    from lowchurn.audit._settings import NAMES

    for name in options:
        if name not in (*NAMES, *LIMITS):
            raise unknown_name("churn_gate", "argument", name, (*NAMES, *LIMITS, "html"))
    result = audit(old, new, **{name: value for name, value in options.items() if name in NAMES})
    verdict = result.gate({name: value for name, value in options.items() if name in LIMITS})
    if html is not None:
        from lowchurn.report import write_html

        write_html(html, result, verdict)
    if verdict.exit_code:
        pytest.fail(f"{verdict}\n{result}", pytrace=False)
    if verdict.outcome == INCONCLUSIVE and verdict.gate.inconclusive == "warn":
        warnings.warn(f"churn_gate: {verdict}", stacklevel=2)
    return result
