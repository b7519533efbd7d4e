"""Checks keep what is exact and refuse what is out of bounds."""

import numpy as np
import pytest

from lowchurn._checks import as_labels, check_bounded, check_share


def test_labels_are_kept_exactly():
    assert as_labels([2**63, -1]).tolist() == [2**63, -1]
    assert as_labels([2**53 + 1, 0.5]).tolist() == [2**53 + 1, 0.5]
    assert as_labels(["a", 1]).tolist() == ["a", 1]


def test_bounded_values():
    np.testing.assert_array_equal(check_bounded("who", "values", [True, False], 1.0), [1.0, 0.0])
    np.testing.assert_array_equal(check_bounded("who", "values", [-1e-17], 1.0), [0.0])
    with pytest.raises(ValueError, match=r"who: values must be at most bound=1, got 2\. Give a larger bound"):
        check_bounded("who", "values", [2.0], 1.0)
    with pytest.raises(ValueError, match="one value per row"):
        check_bounded("who", "values", [[1.0]], 1.0)


@pytest.mark.parametrize("value", [0, 1, -0.1, True, "0.5", np.nan])
def test_open_shares(value):
    assert check_share("who", "share", 0.5) == 0.5
    with pytest.raises(ValueError, match=r"who: share must be in \(0, 1\)"):
        check_share("who", "share", value)
