"""What probabilities show beyond decisions: soft churn, log-loss, Brier score and calibration, by paired bootstrap.

The database reduces rows to sums by unit (a row, a group, or one of about 2,000 bags of them where there are more
than 10,000), and whole units are resampled: the cost does not grow with the rows, and groups stay together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lowchurn._estimates import Estimate, undefined
from lowchurn.audit import _statistics as stats

if TYPE_CHECKING:
    from lowchurn.audit._settings import Settings
    from lowchurn.audit._sources import Fetched


def soft_estimates(
    sums: Fetched,
    calibration: Fetched | None,
    bins: int,
    settings: Settings,
) -> dict[str, Estimate]:
    """Each soft figure with its interval; those that need labels are undefined without them."""
    order = sorted(range(len(sums["unit"])), key=lambda i: str(sums["unit"][i]))
    column = {name: np.asarray([values[i] for i in order]) for name, values in sums.items() if name != "unit"}
    how: dict[str, Any] = {
        "confidence": settings.confidence,
        "draws": int(settings.bootstrap),
        "seed": settings.seed,
    }
    ones = np.c_[column["weight"], column["soft"]].astype(float)
    found = {"soft_churn": stats.bootstrap(ones, lambda t: t[:, 1] / t[:, 0], int(column["n"].sum()), **how)}
    names = ("log_loss_old", "log_loss_new", "log_loss_change", "brier_old", "brier_new", "brier_change")
    if calibration is None or int(column["labelled_rows"].sum()) == 0:
        empty = (*names, "calibration_error_old", "calibration_error_new", "calibration_error_change")
        return found | {name: undefined(0, "no labelled rows") for name in empty}
    n = int(column["labelled_rows"].sum())
    losses = np.c_[[column[c] for c in ("labelled", "ll_o", "ll_n", "br_o", "br_n")]].T.astype(float)
    for kind, first in (("log_loss", 1), ("brier", 3)):
        of_kind = losses[:, [0, first, first + 1]]
        found[f"{kind}_old"] = stats.bootstrap(of_kind, lambda t: t[:, 1] / t[:, 0], n, **how)
        found[f"{kind}_new"] = stats.bootstrap(of_kind, lambda t: t[:, 2] / t[:, 0], n, **how)
        found[f"{kind}_change"] = stats.bootstrap(of_kind, lambda t: (t[:, 2] - t[:, 1]) / t[:, 0], n, **how)
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

    centred = how | {"centred": True}
    found["calibration_error_old"] = stats.bootstrap(flat, lambda t: error(t, 0), n, **centred)
    found["calibration_error_new"] = stats.bootstrap(flat, lambda t: error(t, 1), n, **centred)
    found["calibration_error_change"] = stats.bootstrap(flat, lambda t: error(t, 1) - error(t, 0), n, **centred)
    return found
