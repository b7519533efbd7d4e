"""What changed between two versions of a model, counted in a database and judged with statistics.

The module can be called: ``lowchurn.audit(old, new)`` is :func:`lowchurn.audit.audit`, whatever was imported first,
since Python puts a subpackage under its name into its parent.
"""

import inspect
import sys
import types
from typing import Any

try:
    from lowchurn.audit._audit import audit
except ModuleNotFoundError as error:
    raise ImportError(f'lowchurn.audit needs {error.name}: pip install "lowchurn[audit]"') from error
from lowchurn._estimates import Estimate
from lowchurn.audit._gate import Check, Gate, Limits, Verdict
from lowchurn.audit._inference import Slice
from lowchurn.audit._provenance import Provenance, Source
from lowchurn.audit._result import Audit, Rows, Shift
from lowchurn.audit._review import Review, ReviewPlan, plan_review, review_change
from lowchurn.audit._settings import read_config
from lowchurn.audit._statistics import Test
from lowchurn.audit._summary import junit, markdown


class _CallableModule(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Audit:
        return audit(*args, **kwargs)


_module = sys.modules[__name__]
_module.__class__ = _CallableModule
_module.__signature__ = inspect.signature(audit)  # type: ignore[attr-defined]  # for help() and editors

__all__ = [
    "Audit",
    "Check",
    "Estimate",
    "Gate",
    "Limits",
    "Provenance",
    "Review",
    "ReviewPlan",
    "Rows",
    "Shift",
    "Slice",
    "Source",
    "Test",
    "Verdict",
    "audit",
    "junit",
    "markdown",
    "plan_review",
    "read_config",
    "review_change",
]
