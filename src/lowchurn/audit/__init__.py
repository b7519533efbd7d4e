"""What changed between two versions of a model, counted in a database and judged with statistics."""

try:
    from lowchurn.audit._audit import audit
except ModuleNotFoundError as error:
    raise ImportError(f'lowchurn.audit needs {error.name}: pip install "lowchurn[audit]"') from error
from lowchurn._estimates import Estimate
from lowchurn.audit._gate import Gate, Limits, Verdict
from lowchurn.audit._inference import Slice
from lowchurn.audit._provenance import Source
from lowchurn.audit._result import Audit, Shift
from lowchurn.audit._review import Review, ReviewPlan, plan_review, review_change
from lowchurn.audit._summary import junit, markdown

__all__ = [
    "Audit",
    "Estimate",
    "Gate",
    "Limits",
    "Review",
    "ReviewPlan",
    "Shift",
    "Slice",
    "Source",
    "Verdict",
    "audit",
    "junit",
    "markdown",
    "plan_review",
    "review_change",
]
