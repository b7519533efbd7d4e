"""Tables of numbers to audit, and the figures of an audit by pandas and scipy."""

import numpy as np
import pandas as pd
from scipy import stats


def make_numbers(rows=300, seed=0, targets=1.0, spread=0.4):
    """Old and new forecasts in different orders, with targets, slices, weights and groups; some do not move."""
    rng = np.random.default_rng(seed)
    y = rng.normal(20, 5, rows)
    old = pd.DataFrame(
        {
            "id": rng.permutation(rows) + 2**60,
            "y": np.where(rng.random(rows) < targets, y, np.nan),
            "yhat": y + rng.normal(0, 1, rows),
            "country": rng.choice(["de", "fr", ""], rows),
            "age": rng.integers(18, 80, rows),
            "w": rng.integers(0, 4, rows).astype(float),
            "customer": rng.integers(0, max(rows // 5, 2), rows),
        }
    )
    move = np.where(rng.random(rows) < 0.6, rng.normal(0, spread, rows), 0) + np.where(old.country == "fr", 0.2, 0)
    new = pd.DataFrame({"id": old.id, "yhat": old.yhat + move})
    return old, new.sample(frac=1, random_state=seed)


def paired(old, new, value="yhat", weight=None):
    """Both tables joined, with the variables of each row."""
    rows = old.rename(columns={value: "old"}).merge(new.rename(columns={value: "new"}), on="id")
    rows["weight"] = 1.0 if weight is None else rows[weight]
    rows = rows[rows.weight > 0]
    rows["move"] = rows.new - rows.old
    if "y" in rows:
        rows["loss_old"], rows["loss_new"] = (rows.old - rows.y).abs(), (rows.new - rows.y).abs()
        rows["loss_change"] = rows.loss_new - rows.loss_old
    return rows


def mean_interval(values, weights, groups=None, confidence=0.95):
    """A mean and its interval: Student's t, linearised for weights, by group where there are any."""
    values, weights = np.asarray(values, float), np.asarray(weights, float)
    n, total = len(values), weights.sum()
    mean = (weights * values).sum() / total
    residuals = weights * (values - mean)
    if groups is not None:
        residuals = pd.Series(residuals).groupby(np.asarray(groups)).sum().to_numpy()
        n = len(residuals)
    half = stats.t.isf((1 - confidence) / 2, n - 1) * np.sqrt(n / (n - 1) * (residuals**2).sum()) / total
    return mean, mean - half, mean + half


def root_change(rows, groups=None):
    """The change of the root mean squared error and its interval by the delta method, row by row."""
    squares = [(rows[side] - rows.y) ** 2 for side in ("old", "new")]
    means = [np.average(s, weights=rows.weight) for s in squares]
    influence = (squares[1] - means[1]) / (2 * np.sqrt(means[1])) - (squares[0] - means[0]) / (2 * np.sqrt(means[0]))
    _, low, high = mean_interval(influence, rows.weight, groups)
    value = np.sqrt(means[1]) - np.sqrt(means[0])
    return value, value + low, value + high
