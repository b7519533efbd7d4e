"""What probabilities show beyond decisions: soft churn, log-loss, Brier score and calibration, by paired bootstrap.

The database reduces rows to sums by unit (a row, a group, or one of about 2,000 bags of them where there are more
than 10,000), and whole units are resampled: the cost does not grow with the rows, and groups stay together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from lowchurn._estimates import Estimate, undefined
from lowchurn.audit import _statistics as stats

if TYPE_CHECKING:
    from lowchurn.audit._settings import Settings
    from lowchurn.audit._sources import Fetched

# Means of a loss, from sums of the weights and of the old and the new loss.
RATIOS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "old": lambda t: t[:, 1] / t[:, 0],
    "new": lambda t: t[:, 2] / t[:, 0],
    "change": lambda t: (t[:, 2] - t[:, 1]) / t[:, 0],
}


def soft_estimates(sums: Fetched, calibration: Fetched | None, bins: int, settings: Settings) -> dict[str, Estimate]:
    """Each soft figure with its interval; those that need labels are undefined without them."""
    order = sorted(range(len(sums["unit"])), key=lambda i: str(sums["unit"][i]))
    column = {name: np.asarray([values[i] for i in order]) for name, values in sums.items() if name != "unit"}
    how: dict[str, Any] = {"confidence": settings.confidence, "draws": int(settings.bootstrap), "seed": settings.seed}
    ones = np.c_[column["weight"], column["soft"]].astype(float)
    found = {"soft_churn": stats.bootstrap(ones, RATIOS["old"], int(column["n"].sum()), **how)}
    if calibration is None or int(column["labelled_rows"].sum()) == 0:
        names = (f"{kind}_{part}" for kind in ("log_loss", "brier", "calibration_error") for part in RATIOS)
        return found | {name: undefined(0, "no labelled rows") for name in names}
    n = int(column["labelled_rows"].sum())
    losses = np.c_[[column[c] for c in ("labelled", "ll_o", "ll_n", "br_o", "br_n")]].T.astype(float)
    for kind, first in (("log_loss", 1), ("brier", 3)):
        of_kind = losses[:, [0, first, first + 1]]
        for part, ratio in RATIOS.items():
            found[f"{kind}_{part}"] = stats.bootstrap(of_kind, ratio, n, **how)
    unit_index = {sums["unit"][i]: position for position, i in enumerate(order)}
    cube = np.zeros((len(order), 2, 3, bins))
    for row, unit in enumerate(calibration["unit"]):
        here = (unit_index[unit], calibration["side"][row], slice(None), calibration["bin"][row])
        cube[here] = [calibration[c][row] for c in ("weight", "sure", "hit")]
    flat = cube.reshape(len(order), -1)

    def error(totals: np.ndarray, side: int) -> np.ndarray:
        weight, sure, hit = np.moveaxis(totals.reshape(-1, 2, 3, bins)[:, side], 1, 0)
        result: np.ndarray = np.abs(sure - hit).sum(axis=1) / weight.sum(axis=1)
        return result

    errors = {"old": lambda t: error(t, 0), "new": lambda t: error(t, 1), "change": lambda t: error(t, 1) - error(t, 0)}
    for part, of_part in errors.items():
        found[f"calibration_error_{part}"] = stats.bootstrap(flat, of_part, n, centred=True, **how)
    return found
