"""Targets of many strategies on the same rows are those of each by itself."""

import numpy as np
import pytest

from lowchurn.strategies import PAPER, paper_grid
from lowchurn.strategies._strategy import targets_of


def test_targets_of_many_strategies_are_those_of_each():
    rng = np.random.default_rng(0)
    onehot, proba = np.eye(3)[rng.integers(3, size=20)], rng.dirichlet(np.ones(3), size=20)
    strategies = [strategy for cls in PAPER for strategy in paper_grid(cls)]
    for strategy, together in zip(strategies, targets_of(strategies, onehot, proba), strict=True):
        np.testing.assert_array_equal(together, strategy.targets(onehot, proba))
    with pytest.raises(ValueError, match="every row of base_proba must sum to 1"):
        targets_of(strategies, onehot, proba / 2)
