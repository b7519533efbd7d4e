"""Intervals under weights and groups cover the truth, end to end; and true slices are found, false ones are not."""

import numpy as np
import pandas as pd
import pytest

import lowchurn
from lowchurn.audit._inference import KINDS, Design, Tally


def tally_of(old, new, y, weights, groups):
    """What the database would have counted."""
    tally = Tally()
    units = {kind: np.zeros(groups.max() + 1) for kind in tally.n} if groups is not None else None
    for i in range(len(old)):
        if old[i] == new[i]:
            kinds = KINDS["right" if old[i] == y[i] else "wrong"]
        else:
            kinds = KINDS["broken" if old[i] == y[i] else "fixed"]
        tally.add(kinds, 1, weights[i], weights[i] ** 2)
        if units is not None:
            for kind in ("all", *kinds):
                units[kind][groups[i]] += weights[i]
    tally.units = units
    return tally


def draw(rng, grouped, weighted):
    """Rows whose chance to flip depends on their group and, so that weights matter, on their weight."""
    rows, size = 600, 6
    groups = np.repeat(np.arange(rows // size), size)
    mood = rng.beta(2, 14, rows // size)[groups] if grouped else np.full(rows, 0.125)
    weights = rng.choice([0.5, 1.0, 3.0], rows) if weighted else np.ones(rows)
    flip = rng.random(rows) < mood * np.where(weights > 2, 1.5, 1.0)
    y = rng.integers(0, 2, rows)
    old = np.where(rng.random(rows) < 0.7, y, 1 - y)
    new = np.where(flip, 1 - old, old)
    return tally_of(old, new, y, weights, groups if grouped else None)


@pytest.mark.parametrize(
    ("grouped", "weighted"),
    [(False, True), pytest.param(True, False, marks=pytest.mark.slow), (True, True)],
)
def test_intervals_cover_under_groups_and_weights(grouped, weighted):
    rng = np.random.default_rng(0)
    worth = np.array([0.5, 1.0, 3.0]) if weighted else np.ones(1)
    churn = 0.125 * np.average(np.where(worth > 2, 1.5, 1.0), weights=worth)
    change = churn * (0.3 - 0.7)
    design = Design(weighted, grouped, 100 if grouped else 0, 0.95)
    draws, inside = 300, np.zeros(2)
    for _ in range(draws):
        tally = draw(rng, grouped, weighted)
        first, second = design.share(tally, "changed", "all"), design.change(tally)
        inside += [first.low <= churn <= first.high, second.low <= change <= second.high]
    assert (inside / draws > 0.915).all(), inside / draws


def test_true_slices_are_found_and_false_ones_are_not():
    rng = np.random.default_rng(1)
    false_shares, found_shares = [], []
    for _ in range(15):
        slices = rng.integers(0, 30, 12_000)
        rate = np.where(slices < 5, 0.15, 0.05)
        old = pd.DataFrame({"id": np.arange(12_000), "prediction": 0, "s": slices, "y": 0})
        new = old[["id"]].assign(prediction=(rng.random(12_000) < rate).astype(int))
        drivers = [int(s.value) for s in lowchurn.audit.audit(old, new, label="y", by="s", sample=0).drivers]
        false_shares.append(sum(d >= 5 for d in drivers) / max(len(drivers), 1))
        found_shares.append(sum(d < 5 for d in drivers) / 5)
    assert np.mean(false_shares) < 0.06
    assert np.mean(found_shares) > 0.9
