"""What changed between two models, as numbers: churn, flips, churn at cold accuracy, Pareto front, cost curve.

Numbers in, numbers out: nothing here calls a model.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace

from lowchurn._checks import (
    Array,
    as_array,
    as_floats,
    check_labels,
    check_rows,
    check_weights,
    to_numpy,
    unknown_name,
)
from lowchurn._types import Rows, Values
from lowchurn.scoring import Score, get_score

__all__ = ["accuracy", "churn", "churn_at_cold_accuracy", "cost_curve", "flips", "pareto_front", "soft_churn"]


def churn(base: Values, new: Values, sample_weight: Values | None = None) -> float:
    """The share of rows on which two models decide differently.

    Parameters
    ----------
    base, new : array of shape (n,)
        Predicted labels, of the same kind on both sides.
    sample_weight : array of shape (n,), optional
        Weights of the rows; the result is their weighted share.

    Examples
    --------
    >>> from lowchurn.metrics import churn
    >>> churn(["a", "b", "a", "b"], ["a", "b", "b", "b"])
    0.25
    """
    labels = check_labels("churn", base=base, new=new)
    return _share(labels["base"] != labels["new"], sample_weight, "churn")


def decide(proba: Values, threshold: float | None = None) -> Array:
    """The class of the largest probability in each row; the first of equals, as scikit-learn decides.

    With a threshold, the second of two classes where its probability reaches it.
    """
    array = as_array(proba)
    xp = array_namespace(array)
    return xp.argmax(array, axis=-1) if threshold is None else xp.astype(array[..., 1] >= threshold, xp.int64)


def accuracy(y: Values, predicted: Values, sample_weight: Values | None = None) -> float:
    """The share of rows that a model decides rightly.

    Examples
    --------
    >>> from lowchurn.metrics import accuracy
    >>> accuracy([0, 1, 1, 0], [0, 1, 0, 0])
    0.75
    """
    labels = check_labels("accuracy", y=y, predicted=predicted)
    return _share(labels["y"] == labels["predicted"], sample_weight, "accuracy")


def _share(chosen: Array, sample_weight: Values | None, who: str) -> float:
    chosen = to_numpy(chosen)
    if sample_weight is None:
        return float(np.count_nonzero(chosen) / len(chosen))
    weights = to_numpy(check_weights(who, "sample_weight", sample_weight, len(chosen)))
    return float(weights[chosen].sum() / weights.sum())


def soft_churn(base_proba: Values, new_proba: Values, score: str | Score = "log") -> Array:
    """The divergence from the base's probabilities to the new ones, one value per row; take the mean yourself.

    Examples
    --------
    >>> from lowchurn.metrics import soft_churn
    >>> soft_churn([[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.5], [0.9, 0.1]], "brier").round(4)
    array([0.  , 0.02])
    """
    return get_score(score).divergence(base_proba, new_proba)


@dataclass(frozen=True)
class Flips:
    """Counts of what changed, against the truth. Rates are of all ``n`` rows.

    Examples
    --------
    >>> from lowchurn.metrics import flips
    >>> f = flips([0, 0, 1, 2], base=[0, 1, 1, 0], new=[1, 0, 1, 1])
    >>> f.broken, f.fixed, f.lateral, f.changed
    (1, 1, 1, 3)
    >>> f.broken_rate
    0.25
    """

    n: int
    broken: int
    """Right before, wrong now."""
    fixed: int
    """Wrong before, right now."""
    lateral: int
    """Wrong before, wrong now in another way."""

    @property
    def changed(self) -> int:
        return self.broken + self.fixed + self.lateral

    @property
    def broken_rate(self) -> float:
        return self.broken / self.n

    @property
    def fixed_rate(self) -> float:
        return self.fixed / self.n

    @property
    def changed_rate(self) -> float:
        return self.changed / self.n


def flips(y: Values, base: Values, new: Values) -> Flips:
    """Sort the changed decisions into broken, fixed and lateral ones.

    Examples
    --------
    >>> from lowchurn.metrics import flips
    >>> flips(["x", "y"], base=["x", "x"], new=["y", "y"])
    Flips(n=2, broken=1, fixed=1, lateral=0)
    """
    labels = check_labels("flips", y=y, base=base, new=new)
    truth, before, after = (to_numpy(labels[name]) for name in ("y", "base", "new"))
    changed = before != after
    return Flips(
        n=truth.shape[0],
        broken=int(np.count_nonzero(changed & (before == truth))),
        fixed=int(np.count_nonzero(changed & (after == truth))),
        lateral=int(np.count_nonzero(changed & (before != truth) & (after != truth))),
    )


def churn_at_cold_accuracy(results: Rows, method: str, cold: str = "cold") -> float:
    """The paper's metric: the least churn of a method's settings that are at least as accurate as a cold start.

    Accuracy and churn are averaged over the runs of each setting first. NaN (the paper's N/A) where no setting
    is as accurate as the cold start.

    Parameters
    ----------
    results : table
        One row per trained model, with columns ``method``, ``setting``, ``accuracy`` and ``churn``: a data frame,
        a mapping of columns or a list of mappings.
    method : str
        Whose settings to choose from.
    cold : str, default "cold"
        The name of the cold start in ``method``.

    Examples
    --------
    >>> from lowchurn.metrics import churn_at_cold_accuracy
    >>> results = [
    ...     {"method": "cold", "setting": "", "accuracy": 0.90, "churn": 0.10},
    ...     {"method": "distill", "setting": "lam=0.1", "accuracy": 0.89, "churn": 0.02},
    ...     {"method": "distill", "setting": "lam=0.5", "accuracy": 0.91, "churn": 0.05},
    ...     {"method": "warm", "setting": "", "accuracy": 0.88, "churn": 0.07},
    ... ]
    >>> churn_at_cold_accuracy(results, "distill")
    0.05
    >>> churn_at_cold_accuracy(results, "warm")
    nan
    """
    who = "churn_at_cold_accuracy"
    runs: dict[str, dict[Hashable, list[tuple[float, float]]]] = {}
    for name, setting, acc, chn in zip(
        *_columns(who, results, ("method", "setting", "accuracy", "churn")), strict=True
    ):
        acc, chn = float(acc), float(chn)
        if not (math.isfinite(acc) and math.isfinite(chn)):
            raise ValueError(
                f"{who}: accuracy and churn must be finite, got {acc} and {chn} for {name!r} {setting!r}. "
                "Leave failed runs out, and report how many there were."
            )
        runs.setdefault(name, {}).setdefault(setting, []).append((acc, chn))
    averages = {
        name: {setting: np.mean(values, axis=0).tolist() for setting, values in settings.items()}
        for name, settings in runs.items()
    }
    for name in (cold, method):
        if name not in averages:
            raise unknown_name(who, "method", name, averages)
    if len(averages[cold]) != 1:
        raise ValueError(
            f"{who}: the cold start {cold!r} must have one setting, got {sorted(map(str, averages[cold]))}."
        )
    needed, _ = next(iter(averages[cold].values()))
    # Averages that are equal on paper may differ in the last bits: a tie counts as accurate enough.
    return min((c for a, c in averages[method].values() if a >= needed - 1e-12), default=math.nan)


def _columns(who: str, table: Rows, names: tuple[str, ...]) -> list[list[Any]]:
    if isinstance(table, Mapping) or hasattr(table, "columns"):
        present = set(table.keys() if isinstance(table, Mapping) else table.columns)
        columns = [list(table[name]) for name in names if name in present]
    else:
        records = list(table)
        present = set.intersection(*(set(r) for r in records)) if records else set(names)
        columns = [[record[name] for record in records] for name in names if name in present]
    missing = [name for name in names if name not in present]
    if missing:
        raise ValueError(f"{who}: results must have the columns {', '.join(names)}; missing {missing}.")
    if not columns[0]:
        raise ValueError(f"{who}: results must have at least one row, got none.")
    return columns


def standard_error(values: Values) -> float:
    """The standard deviation of the mean; NaN for fewer than two values."""
    values = to_numpy(as_floats("standard_error", "values", values))
    if values.ndim != 1:
        raise ValueError(f"standard_error: values must be one-dimensional, got shape {values.shape}.")
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def _check_points(who: str, points: Values) -> np.ndarray:
    points = to_numpy(as_floats(who, "points", points))
    if points.ndim != 2:
        raise ValueError(
            f"{who}: points must have shape (points, costs), such as columns error and churn, got shape {points.shape}."
        )
    check_rows(who, points=points)
    if np.isnan(points).any():
        raise ValueError(f"{who}: points must not be NaN. Leave undefined points out.")
    return points


def pareto_front(points: Values) -> np.ndarray:
    """Indices of the points that no other point beats, sorted by the first cost.

    Costs are to be small: give the error, not the accuracy. A point is beaten by one that is at least as good
    in every cost and better in one; equal points all stay.

    Parameters
    ----------
    points : array of shape (n, k)
        One row per point, one column per cost, such as ``(error, churn)``.

    Examples
    --------
    >>> from lowchurn.metrics import pareto_front
    >>> pareto_front([[0.10, 0.05], [0.12, 0.02], [0.12, 0.06], [0.30, 0.02]])
    array([0, 1])
    """
    points = _check_points("pareto_front", points)
    # In lexicographic order a point can only be beaten by an earlier one.
    order = np.lexsort(points.T[::-1])
    front: list[int] = []
    for i in order:
        kept = points[front]
        beaten = (kept <= points[i]).all(axis=1) & (kept < points[i]).any(axis=1)
        if not beaten.any():
            front.append(int(i))
    return np.asarray(front, dtype=np.intp)


def cost_curve(points: Values, weights: Values) -> np.ndarray:
    """The least cost ``(1 - w) * error + w * churn`` over the points, for each weight ``w`` of churn.

    Parameters
    ----------
    points : array of shape (n, 2)
        Columns error and churn.
    weights : array of shape (k,)
        Weights of churn in [0, 1].

    Returns
    -------
    array of shape (k,)

    Examples
    --------
    >>> from lowchurn.metrics import cost_curve
    >>> cost_curve([[0.10, 0.05], [0.20, 0.01]], weights=[0.0, 0.5, 1.0])
    array([0.1  , 0.075, 0.01 ])
    """
    points = _check_points("cost_curve", points)
    if points.shape[1] != 2:
        raise ValueError(f"cost_curve: points must have two columns, error and churn, got {points.shape[1]}.")
    weights = to_numpy(as_floats("cost_curve", "weights", weights))
    if weights.ndim != 1 or weights.shape[0] == 0:
        raise ValueError(f"cost_curve: weights must be a list with at least one weight, got shape {weights.shape}.")
    if not ((weights >= 0) & (weights <= 1)).all():
        raise ValueError(f"cost_curve: weights must be in [0, 1], got {weights.min()} to {weights.max()}.")
    return np.asarray(((1 - weights)[:, None] * points[:, 0] + weights[:, None] * points[:, 1]).min(axis=1))


class OnDial(Protocol):
    """A record of a candidate: how it came about, and where it stands on a dial (NaN: on none)."""

    @property
    def strategy(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, object]: ...

    @property
    def dial(self) -> float: ...

    @property
    def dial_parameter(self) -> str: ...


def is_position(record: OnDial, name: str) -> bool:
    """Whether a parameter is the position on the dial: for all rows, or for a group of them, as ``margin[north]``."""
    return bool(record.dial_parameter) and name.split("[")[0] == record.dial_parameter


def dial_key(record: OnDial) -> Hashable:
    """What candidates on one dial have in common: the strategy and its parameters without the position."""
    return record.strategy, frozenset((k, v) for k, v in record.parameters.items() if not is_position(record, k))


def dial_curves(records: Sequence[OnDial]) -> list[list[int]]:
    """Indices of the candidates on each dial, in order of their positions from the new model (0) to the base (1).

    The base, at position 1, ends every dial that does not reach it. One point makes no curve.
    """
    positions = [record.dial for record in records]
    dials: dict[Hashable, list[int]] = {}
    for i, record in enumerate(records):
        if not math.isnan(record.dial):
            dials.setdefault(dial_key(record), []).append(i)
    ends = [group[0] for group in dials.values() if len(group) == 1 and positions[group[0]] == 1]
    several = [group for group in dials.values() if len(group) > 1]
    if not several:  # single points that nothing else names are one dial
        several = [[i for group in dials.values() for i in group if i not in ends]]
    curves = [group if any(positions[i] == 1 for i in group) else [*group, *ends] for group in several]
    return [sorted(curve, key=lambda i: positions[i]) for curve in curves if len(curve) > 1]
