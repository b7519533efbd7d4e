"""What probabilities show beyond decisions: soft churn, log-loss, Brier score and calibration, by paired bootstrap.

The database reduces rows to sums by unit (a row, a group, or one of 256 bags of them where there are more than
10,000), and whole units are resampled: the cost does not grow with the rows, and groups stay together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lowchurn._estimates import Estimate, undefined
from lowchurn.audit import _statistics as stats

if TYPE_CHECKING:
    from lowchurn.audit._settings import Settings
    from lowchurn.audit._sources import Fetched

# Columns of the sums by unit: weights and the soft churn, labelled weights and losses before and after, and then for
# both sides and each bin of confidence the labelled weight and how far it is off.
WEIGHT, SOFT, LABELLED, BINNED = 0, 1, 2, 7
LOSSES = {"log_loss": (3, 4), "brier": (5, 6)}  # before and after
PARTS = ("old", "new", "change")


def soft_estimates(sums: Fetched, calibration: Fetched | None, bins: int, settings: Settings) -> dict[str, Estimate]:
    """Each soft figure with its interval; those that need labels are undefined without them."""
    order = sorted(range(len(sums["unit"])), key=lambda i: str(sums["unit"][i]))
    column = {name: np.asarray(values, dtype=float)[order] for name, values in sums.items() if name != "unit"}
    labelled = int(column["labelled"].sum()) if calibration is not None else 0
    totals = np.c_[column["weight"], column["sum_soft"]]
    if calibration is not None and labelled:
        losses = [column[f"sum_{name}"] for name in ("ll_o", "ll_n", "br_o", "br_n")]
        by_bin = np.zeros((len(order), 2, bins, 2))
        place = {sums["unit"][i]: position for position, i in enumerate(order)}
        here = [place[unit] for unit in calibration["unit"]], calibration["side"], calibration["bin"]
        by_bin[here] = np.c_[calibration["weight"], calibration["gap"]]
        totals = np.c_[totals, column.get("labelled_w", column["labelled"]), *losses, by_bin.reshape(len(order), -1)]
    how: dict[str, Any] = {"confidence": settings.confidence, "draws": int(settings.bootstrap), "seed": settings.seed}
    how["resampled"] = stats.resample(totals, how["draws"], how["seed"])
    rows = int(column["n"].sum())
    found = {"soft_churn": stats.bootstrap(totals, lambda t: t[:, SOFT] / t[:, WEIGHT], rows, **how)}
    if not labelled:
        names = (f"{kind}_{part}" for kind in (*LOSSES, "calibration_error") for part in PARTS)
        return found | {name: undefined(0, "no labelled rows") for name in names}

    def loss(t: np.ndarray, side: int, kind: str) -> np.ndarray:
        return t[:, LOSSES[kind][side]] / t[:, LABELLED]

    def error(t: np.ndarray, side: int) -> np.ndarray:
        weight, gap = np.moveaxis(t[:, BINNED:].reshape(len(t), 2, bins, 2)[:, side], -1, 0)
        return np.abs(gap).sum(axis=1) / weight.sum(axis=1)

    figures = {kind: partial(loss, kind=kind) for kind in LOSSES} | {"calibration_error": error}
    for kind, of_side in figures.items():
        parts = (partial(of_side, side=0), partial(of_side, side=1), partial(_change, of_side))
        for part, statistic in zip(PARTS, parts, strict=True):
            found[f"{kind}_{part}"] = stats.bootstrap(totals, statistic, labelled, centred=of_side is error, **how)
    return found


def _change(of_side: Callable[..., np.ndarray], t: np.ndarray) -> np.ndarray:
    return of_side(t, side=1) - of_side(t, side=0)
