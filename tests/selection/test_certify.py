"""Certificates against exact probabilities, and their coverage in worlds where churn is known."""

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.tree import DecisionTreeClassifier

from lowchurn import LowChurnClassifier
from lowchurn.selection import certify, rows_to_certify
from lowchurn.selection._certify import aim_for_certificate, churn_upper_bound, p_value
from lowchurn.strategies import Distill


def test_p_value_is_the_exact_binomial_tail():
    values = np.r_[np.ones(7), np.zeros(493)]
    assert p_value(values, 0.02) == pytest.approx(sum(binom.pmf(k, 500, 0.02) for k in range(8)))


def test_upper_bound_is_where_the_tail_is_the_level():
    values = np.r_[np.ones(7), np.zeros(493)]
    bound = churn_upper_bound(values, 0.9)
    assert binom.cdf(7, 500, bound) == pytest.approx(0.1)
    assert churn_upper_bound(np.ones(5), 0.9) == 1.0


def test_rows_to_certify_is_the_least_number():
    for budget, confidence, churn in ((0.01, 0.95, 0.0), (0.05, 0.9, 0.02)):
        n = rows_to_certify(budget, confidence, churn)
        assert binom.cdf(np.ceil(churn * n), n, budget) <= 1 - confidence
        assert binom.cdf(np.ceil(churn * (n - 1)), n - 1, budget) > 1 - confidence


def test_rows_and_bounds_by_hand():
    assert (rows_to_certify(0.01, 0.95), rows_to_certify(0.02, 0.95, churn=0.01)) == (299, 719)
    assert rows_to_certify(0.02, 0.95, churn=0.03) is None
    assert churn_upper_bound(np.zeros(299), confidence=0.95) == pytest.approx(0.01, abs=1e-4)
    assert aim_for_certificate(0.02, 0.95, rows=2000) == pytest.approx(0.0116, abs=1e-4)
    assert aim_for_certificate(0.02, 0.95, rows=100) == 0.0


def test_aim_is_certified_with_the_stated_power():
    aim = aim_for_certificate(0.02, 0.95, 1500, power=0.9)
    rng = np.random.default_rng(0)
    got = np.mean([binom.cdf(rng.binomial(1500, aim), 1500, 0.02) <= 0.05 for _ in range(4000)])
    assert got == pytest.approx(0.9, abs=0.03)


def test_the_order_is_fixed_and_testing_stops_at_the_first_failure():
    safe, bold, lucky = np.zeros(400), np.r_[np.ones(30), np.zeros(370)], np.zeros(400)
    certificate, accepted = certify({"safe": safe, "bold": bold, "lucky": lucky}, 0.05, 0.95)
    assert accepted == ["safe"]
    assert [name for name, _ in certificate.tested] == ["safe", "bold"]


def test_where_rows_cannot_certify_the_certificate_says_what_would():
    certificate, accepted = certify({"only": np.zeros(100)}, 0.01, 0.95)
    assert not accepted
    assert not certificate.certified
    assert certificate.rows_needed == 299
    assert certificate.upper_bound == pytest.approx(1 - 0.05 ** (1 / 100))
    assert "299 rows" in str(certificate)
    hopeless, _ = certify({"only": np.r_[np.ones(10), np.zeros(90)]}, 0.05, 0.95)
    assert hopeless.rows_needed is None
    assert "more rows alone would not do" in str(hopeless)


@pytest.mark.parametrize(
    ("values", "words"), [([], "at least one row"), ([2.0], "at most bound=1"), ([-1.0], "negative")]
)
def test_bad_values_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        certify({"a": values}, 0.05, 0.95)


@pytest.mark.parametrize("draw", ["hard", "soft"])
def test_coverage_of_the_fixed_sequence(draw):
    """Candidates whose true churn is known: accepting one above the budget happens at most as often as stated."""
    rng = np.random.default_rng(1)
    true, budget, confidence, n, draws = [0.02, 0.045, 0.0505, 0.06], 0.05, 0.9, 400, 1000
    wrong = 0
    for _ in range(draws):
        if draw == "hard":
            rows = {str(t): rng.uniform(size=n) < t for t in true}
        else:  # divergences with a known mean on [0, 2]
            rows = {str(t): 2 * rng.beta(0.5, 0.5 * (2 / t - 1), size=n) for t in true}
        _, accepted = certify(rows, budget, confidence, bound=1.0 if draw == "hard" else 2.0)
        wrong += any(float(name) > budget for name in accepted)
    assert wrong / draws <= 1 - confidence + 3 * np.sqrt(0.09 / draws)
    if draw == "hard":
        assert wrong > 0  # the test has power: this close to the budget mistakes do happen


CELLS = 40
SHARES = np.random.default_rng(2).dirichlet(np.full(CELLS, 2.0))
TRUTH = np.random.default_rng(3).uniform(0.1, 0.9, CELLS)
BEFORE = np.clip(TRUTH + np.random.default_rng(4).normal(scale=0.15, size=CELLS), 0.02, 0.98)


class CellBase:
    """A base with known decisions on a world of cells."""

    classes_ = np.array([0, 1])

    def __call__(self, X):
        p = BEFORE[np.asarray(X).argmax(axis=1)]
        return np.stack([1 - p, p], axis=1)


def true_churn(model):
    """Exact: every cell is asked once and weighed by its share."""
    return SHARES[model.predict(np.eye(CELLS)) != (BEFORE > 0.5)].sum()


def draw_and_fit(seed, budget, strategies, n=1200):
    rng = np.random.default_rng(seed)
    cell = rng.choice(CELLS, size=n, p=SHARES)
    y = (rng.uniform(size=n) < TRUTH[cell]).astype(int)
    model = LowChurnClassifier(
        DecisionTreeClassifier(),
        base=CellBase(),
        max_churn=budget,
        confidence=0.9,
        random_state=seed,
        strategies=strategies,
    )
    return model.fit(np.eye(CELLS)[cell], y)


def coverage(draws, strategies):
    budget = 0.1
    fitted = [draw_and_fit(seed, budget, strategies) for seed in range(draws)]
    certified = [m for m in fitted if m.certificate_.certified]
    wrong = sum(true_churn(m) > budget for m in certified)
    assert len(certified) > 0.5 * draws  # a certificate that is never given proves nothing
    assert wrong / draws <= 0.1 + 3 * np.sqrt(0.09 / draws)


@pytest.mark.filterwarnings("ignore:LowChurnClassifier")
@pytest.mark.parametrize("strategies", [[Distill], "dial"], ids=["distill", "dial"])
def test_certified_budgets_hold_in_a_closed_form_world(strategies):
    coverage(60, strategies)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LowChurnClassifier")
@pytest.mark.parametrize("strategies", [[Distill], "dial"], ids=["distill", "dial"])
def test_certified_budgets_hold_over_500_draws(strategies):
    coverage(500, strategies)
