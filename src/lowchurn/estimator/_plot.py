"""The frontier as a chart: accuracy against churn, dials as curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from lowchurn._charts import ENDINGS, Chart
from lowchurn._checks import check_choice, check_number
from lowchurn._frontier_chart import frontier_chart, read_tried
from lowchurn.estimator._frontier import Candidate

WHO = "Frontier.plot"


def plot_frontier(
    candidates: Sequence[Candidate],
    path: str | Path | None = None,
    served: Mapping[str, float] | None = None,
    max_churn: float | None = None,
    churn: str = "hard",
) -> Chart:
    """Draw :meth:`Frontier.plot`."""
    check_choice(WHO, "churn", churn, ("hard", "soft"))
    if max_churn is not None:
        check_number(WHO, "max_churn", max_churn, 0, math.inf)
    if path is not None and Path(path).suffix not in ENDINGS:
        raise ValueError(f"{WHO}: path must end in {', '.join(ENDINGS)}, got {str(path)!r}.")
    asked = {"max_churn": max_churn, "churn": churn}
    tried = read_tried({"frontier": candidates, "parameters": asked, "selection": {"served": served}}, who=WHO)
    if not tried.drawn:
        raise ValueError(
            f"{WHO}: there must be a candidate with a measured accuracy and churn, got {len(candidates)} without. "
            "Fit with a base: without one there is no churn."
        )
    chart = frontier_chart(tried)
    if path is not None:
        chart.save(path)
    return chart
