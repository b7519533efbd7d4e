"""What changed between two versions of a model, counted in a database and judged with statistics."""

from lowchurn._extras import importing

with importing("lowchurn.audit", "audit"):
    from lowchurn.audit._audit import audit
    from lowchurn.audit._compare import compare
    from lowchurn.audit._runs import read_run
from lowchurn.audit._gate import Gate, Limits, Verdict
from lowchurn.audit._result import Audit

__all__ = ["Audit", "Gate", "Limits", "Verdict", "audit", "compare", "read_run"]
