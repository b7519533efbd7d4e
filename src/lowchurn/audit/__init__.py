"""What changed between two versions of a model, counted in a database and judged with statistics."""

from lowchurn._extras import importing

with importing("lowchurn.audit", "audit"):
    from lowchurn.audit._audit import audit
from lowchurn._estimates import Estimate
from lowchurn.audit._gate import Gate, Limits, Verdict
from lowchurn.audit._result import Audit
from lowchurn.audit._review import plan_review, review_change
from lowchurn.audit._summary import junit, markdown

__all__ = ["Audit", "Gate", "Limits", "Verdict", "audit"]
