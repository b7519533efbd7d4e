"""What changed between two versions of a model, counted in a database and judged with statistics."""

from lowchurn._extras import importing

with importing("lowchurn.audit", "audit"):
    from lowchurn.audit._audit import audit
    from lowchurn.audit._compare import compare
    from lowchurn.audit._history import history
    from lowchurn.audit._runs import read_run
from lowchurn.audit._gate import Gate, Limits, Verdict
from lowchurn.audit._history_result import History
from lowchurn.audit._number_result import NumberAudit
from lowchurn.audit._result import Audit

__all__ = ["Audit", "Gate", "History", "Limits", "NumberAudit", "Verdict", "audit", "compare", "history", "read_run"]
