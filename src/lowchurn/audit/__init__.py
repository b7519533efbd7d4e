"""What changed between two versions of a model, counted in a database and judged with statistics."""

try:
    from lowchurn.audit._audit import audit
except ModuleNotFoundError as error:
    raise ImportError(f'lowchurn.audit needs {error.name}: pip install "lowchurn[audit]"') from error
from lowchurn._estimates import Estimate
from lowchurn.audit._gate import Gate, Limits, Verdict
from lowchurn.audit._result import Audit
from lowchurn.audit._review import plan_review, review_change
from lowchurn.audit._summary import junit, markdown

__all__ = ["Audit", "Gate", "Limits", "Verdict", "audit"]
