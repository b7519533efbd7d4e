"""Limits beyond one number: broken decisions beside changed ones, budgets of classes."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lowchurn
from lowchurn import LowChurnClassifier
from lowchurn.estimator import Candidate
from lowchurn.estimator._limits import Limit, Limits
from lowchurn.estimator._measuring import Terms
from lowchurn.estimator._to_try import aim_below
from lowchurn.selection._certify import Claim, certify_together

X, LABELS = make_classification(
    6000, 12, n_informative=6, n_classes=3, class_sep=0.8, flip_y=0.05, random_state=0
)  # fmt: skip
Y = np.array(["no", "maybe", "yes"])[LABELS]
OLD, TRAIN, TRAFFIC, NEW = slice(0, 300), slice(0, 2500), slice(2500, 4000), slice(4000, None)
HELD_OUT = np.arange(1300, 2500)
ESTIMATOR = make_pipeline(StandardScaler(), LogisticRegression())


@pytest.fixture(scope="module")
def base():
    return clone(ESTIMATOR).fit(X[OLD], Y[OLD])


def fitted(base, strategies="sticky", given=None, **options):
    model = LowChurnClassifier(clone(ESTIMATOR), base=base, strategies=strategies, random_state=0, **options)
    return model.fit(X[TRAIN], Y[TRAIN], **({"held_out": HELD_OUT} if given is None else given))


def broken(model, base, rows):
    before, now, truth = base.predict(X[rows]), model.predict(X[rows]), Y[rows]
    return float(np.mean((before == truth) & (now != truth)))


# The limits themselves


CHURN, BROKEN = Limit("churn", 0.02, 100), Limit("broken", 0.01, 50)


@settings(deadline=None)
@given(st.floats(0, 0.1), st.floats(0, 0.1))
def test_a_candidate_keeps_all_limits_or_is_not_feasible(churn, wrong):
    candidate = Candidate("any", churn=churn, broken=wrong)
    each = [limit.spent(candidate) <= limit.most * (1 + 1e-9) for limit in (CHURN, BROKEN)]
    assert Limits((CHURN, BROKEN)).keep(candidate) == all(each)
    assert Limits().keep(candidate)
    assert (Limits((CHURN, BROKEN)).load(candidate) <= 1 + 1e-9) == all(each)


def test_what_is_not_measured_keeps_no_limit():
    assert not Limits((BROKEN,)).keep(Candidate("any", churn=0.0))


def test_the_load_of_one_limit_is_what_is_spent_of_it():
    candidate = Candidate("any", churn=0.03, broken=0.001)
    assert Limits((CHURN,)).load(candidate) == 0.03
    assert Limits((CHURN,)).full == 0.02
    assert Limits((CHURN, BROKEN)).load(candidate) == pytest.approx(1.5)
    assert Limits((dataclasses.replace(CHURN, most=0.0), BROKEN)).load(candidate) == math.inf
    lowered = Limits((CHURN, BROKEN)).lowered(lambda limit: 0.015)
    assert [limit.most for limit in lowered] == [0.015, 0.01]  # never above the limit


# Broken decisions


@pytest.mark.parametrize("strategies", ["sticky", "dial", "auto", "distill"])
@pytest.mark.parametrize("max_churn", [None, 0.05])
def test_broken_decisions_are_limited_with_every_strategy(base, strategies, max_churn):
    model = fitted(base, strategies, max_broken=0.01, max_churn=max_churn)
    assert model.selection_.feasible
    assert broken(model, base, HELD_OUT) == pytest.approx(model.selection_.broken)
    assert model.selection_.broken <= 0.01
    assert broken(model, base, NEW) < 0.02
    assert "1 % broken" in model.selection_.rule
    plain = model.frontier_[0]
    assert plain.broken > 0.02  # or nothing was limited
    if max_churn is not None:
        assert model.selection_.churn <= 0.05


def test_candidates_on_the_ratio_are_measured_and_broken_decisions_fall_along_it(base):
    model = fitted(base, max_broken=0.01)
    rows = [row for row in model.frontier_ if row.dial_parameter == "ratio"]
    rows.sort(key=lambda row: row.parameters["ratio"])
    assert len(rows) > 10
    shares = [row.broken for row in rows]
    assert shares == sorted(shares, reverse=True)
    both = fitted(base, max_broken=0.01, max_churn=0.03).frontier_
    assert any(row.parameters.get("ratio", 0) > 0 and 0 < row.parameters["margin"] < 1 for row in both[1:])


def test_the_least_ratio_that_keeps_the_limit_is_among_the_candidates(base):
    """A slow twin: ratios one by one, from the row that gains most per broken decision on."""
    model = fitted(base, max_broken=0.01)
    retrain = clone(ESTIMATOR).fit(X[:1300], Y[:1300])
    p, before = retrain.predict_proba(X[HELD_OUT]), np.searchsorted(retrain.classes_, base.predict(X[HELD_OUT]))
    rows = np.arange(len(p))
    own = p[rows, before]
    others = p.copy()
    others[rows, before] = -1
    score = (others.max(axis=1) - own) / own
    right = before == np.searchsorted(retrain.classes_, Y[HELD_OUT])
    possible = {round(float(np.mean(right & (score > ratio))), 9) for ratio in score[score > 0]}
    measured = {round(row.broken, 9) for row in model.frontier_ if row.dial_parameter == "ratio"}
    assert measured <= possible
    # The aim lies below the limit, between two candidates or at one.
    aim = aim_below(0.01, Terms(True, "log", len(p)))
    assert max(share for share in possible if share <= aim) in measured


def test_served_with_a_margin_and_a_ratio(base, tmp_path):
    model = fitted(base, max_broken=0.008, max_churn=0.03)
    assert model.selection_.feasible
    model.save(tmp_path / "next.skops", dial=True)
    again = lowchurn.load(tmp_path / "next.skops")
    np.testing.assert_array_equal(again.predict_proba(X[NEW]), model.predict_proba(X[NEW]))
    assert again.max_broken == 0.008
    for one in (model, again):
        calmer = one.dial(max_broken=0.003)
        assert calmer.selection_.broken <= 0.003
        assert calmer.selection_.churn <= 0.03
        assert one.dial(0.01).selection_.churn <= 0.01
    np.testing.assert_array_equal(again.dial(0.01).predict(X[NEW]), model.dial(0.01).predict(X[NEW]))


def test_with_traffic_labelled_rows_are_held_out_for_broken_decisions(base):
    model = fitted(base, max_churn=0.04, max_broken=0.01, given={"traffic": X[TRAFFIC]})
    rows = model.selection_.rows
    assert rows["traffic"] == 1500
    assert rows["train"] + rows["choose"] == 2500
    assert rows["choose"] > 100
    assert model.selection_.churn == pytest.approx(np.mean(model.predict(X[TRAFFIC]) != base.predict(X[TRAFFIC])))
    assert model.selection_.broken <= 0.01
    with pytest.raises(ValueError, match="max_broken needs held-out rows with labels"):
        fitted(base, max_churn=0.04, given={"traffic": X[TRAFFIC]}).dial(max_broken=0.01)


def test_mixtures_keep_the_limit(base):
    model = fitted(base, "distill", max_broken=0.01, select="mixture")
    assert model.selection_.feasible
    assert broken(model, base, HELD_OUT) <= 0.01


def test_no_decision_may_break(base):
    model = fitted(base, max_broken=0)
    assert model.selection_.broken == 0
    assert model.selection_.feasible


def test_few_rows_are_warned_of(base):
    with pytest.warns(UserWarning, match="60 held-out rows are few for max_broken=0.01: one broken row"):
        fitted(base, max_broken=0.01, given={"held_out": np.arange(1300, 1360)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_broken": 2}, "max_broken must be in .* did you mean 0.02"),
        ({"max_broken": -0.1}, "max_broken must be in"),
        ({"max_broken": 0, "confidence": 0.9}, "confidence certifies a (limit|budget) above 0"),
        ({"max_broken": 0.1, "max_churn": 0, "confidence": 0.9}, "confidence certifies a budget above 0"),
    ],
)
def test_bad_limits(base, options, message):
    with pytest.raises(ValueError, match=message):
        fitted(base, **options)


def test_limits_need_a_base():
    with pytest.raises(ValueError, match="max_broken and confidence need a base"):
        LowChurnClassifier(max_broken=0.01).fit(X[TRAIN], Y[TRAIN])


# Certificates of several limits


def test_limits_are_certified_together(base):
    model = fitted(base, max_churn=0.08, max_broken=0.03, confidence=0.9)
    certificate = model.certificate_
    assert certificate.certified
    (other,) = certificate.beside
    assert (certificate.of, other.of) == ("churn", "the share of broken decisions")
    assert (certificate.max_churn, other.max_churn) == (0.08, 0.03)
    assert "the share of broken decisions on new rows is at most 3 %" in str(certificate)
    assert "all at once" in str(certificate)
    alone = fitted(base, max_broken=0.03, confidence=0.9).certificate_
    assert alone.certified
    assert alone.of == "the share of broken decisions"
    assert not alone.beside


def test_on_traffic_each_limit_is_certified_on_its_rows(base, tmp_path):
    model = fitted(base, max_churn=0.08, max_broken=0.03, confidence=0.9, given={"traffic": X[TRAFFIC]})
    certificate = model.certificate_
    assert certificate.certified
    assert certificate.rows == model.selection_.rows["certify"]
    assert 100 < certificate.beside[0].rows < 600
    today = model.dial(0.06, traffic=X[NEW])
    assert today.certificate_.beside[0].rows == certificate.beside[0].rows  # labels are not of today
    model.save(tmp_path / "model.skops", dial=True)
    again = lowchurn.load(tmp_path / "model.skops")
    assert again.certificate_ == certificate
    assert again.dial(0.06).certificate_ == model.dial(0.06).certificate_


def test_a_limit_that_is_not_certified_is_named(base):
    with pytest.warns(UserWarning, match="Not certified: .*What can be certified for the share of broken decisions is"):
        model = fitted(base, max_churn=0.08, max_broken=0.001, confidence=0.9)
    assert not model.certificate_.certified


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=6), st.floats(0.6, 0.99))
def test_several_claims_are_the_claim_that_is_hardest(counts, confidence):
    """Accepted together is accepted by each test: a slow twin of the fixed sequence."""
    rows = [{str(k): np.r_[np.ones(one[j]), np.zeros(200 - one[j])] for k, one in enumerate(counts)} for j in (0, 1)]
    claims = [Claim("churn", 0.1, rows[0]), Claim("broken decisions", 0.08, rows[1])]
    certificate, accepted = certify_together(claims, confidence)
    expected = []
    for name in rows[0]:
        if any(claim.p_value(name) > 1 - confidence for claim in claims):
            break
        expected.append(name)
    assert accepted == expected
    assert certificate.certified == bool(expected)


def test_coverage_of_two_limits():
    """Candidates of which one breaks the second limit alone are accepted as rarely as stated, at the full level."""
    rng = np.random.default_rng(0)
    n, draws, confidence, wrong = 400, 2000, 0.9, 0
    for _ in range(draws):
        changed = rng.uniform(size=n) < 0.02
        broke = rng.uniform(size=n) < 0.0501
        claims = [
            Claim("churn", 0.1, {"one": changed.astype(float)}),
            Claim("broken decisions", 0.05, {"one": broke.astype(float)}),
        ]
        wrong += bool(certify_together(claims, confidence)[1])
    assert wrong / draws <= 0.1 + 3 * math.sqrt(0.09 / draws)
    assert wrong > 0


# Budgets of classes


def churn_by_class(model, base, rows):
    before, now = base.predict(X[rows]), model.predict(X[rows])
    return {label: float(np.mean(now[before == label] != label)) for label in np.unique(Y)}


BY_CLASS = {"yes": 0.1, "no": 0.03}


@pytest.fixture(scope="module")
def by_class(base):
    return fitted(base, max_churn=BY_CLASS)


@pytest.mark.parametrize("strategies", ["sticky", "dial", "auto", "distill"])
def test_classes_keep_their_budgets_with_every_strategy(base, strategies):
    model = fitted(base, strategies, max_churn=BY_CLASS)
    assert model.selection_.feasible
    found = churn_by_class(model, base, HELD_OUT)
    assert found["yes"] <= 0.1
    assert found["no"] <= 0.03
    (name,) = model.selection_.served
    (row,) = [row for row in model.frontier_ if row.name == name]
    assert row.churn_by == pytest.approx(found)
    assert row.record()["churn_by"] == row.churn_by
    assert "of 10 % where the base decides 'yes'" in str(model.selection_)


def test_each_class_has_the_margin_that_it_would_have_alone(base, by_class):
    """By hand: the retrain's class unless it beats the base's by no more than the margin of the base's class."""
    (name,) = by_class.selection_.served
    (row,) = [row for row in by_class.frontier_ if row.name == name]
    margins = {label: row.parameters.get(f"margin[{label}]", 0.0) for label in ("maybe", "no", "yes")}
    assert margins["no"] > margins["maybe"] == 0  # which has no limit
    retrain = clone(ESTIMATOR).fit(X[:1300], Y[:1300])
    classes = retrain.classes_.tolist()
    expected = []
    for p, kept in zip(retrain.predict_proba(X[NEW]), base.predict(X[NEW]), strict=True):
        b = classes.index(kept)
        best = max((j for j in range(3) if j != b), key=lambda j: p[j])
        margin = max(row.parameters["margin"], margins[kept])
        expected.append(classes[best] if p[best] - p[b] > margin else kept)
    np.testing.assert_array_equal(by_class.predict(X[NEW]), expected)
    proba = by_class.predict_proba(X[NEW])
    np.testing.assert_array_equal(by_class.classes_[proba.argmax(axis=1)], expected)


@pytest.mark.parametrize("strategies", ["sticky", "dial", "auto", "distill"])
def test_a_class_can_be_frozen(base, strategies):
    model = fitted(base, strategies, max_churn={"yes": 0, None: 0.08})
    assert model.selection_.feasible
    assert churn_by_class(model, base, NEW)["yes"] == 0  # on rows that nothing was measured on
    assert np.mean(model.predict(X[NEW]) != base.predict(X[NEW])) > 0.005


def test_a_class_is_frozen_on_the_dial(base, by_class):
    """That no decision has changed on the held-out rows is not enough."""
    model = by_class.dial({"maybe": 0})
    assert model.selection_.feasible
    assert churn_by_class(model, base, NEW)["maybe"] == 0
    mixed = fitted(base, "distill", max_churn={"yes": 0, None: 0.05}, select="mixture")
    assert mixed.selection_.feasible
    assert churn_by_class(mixed, base, NEW)["yes"] == 0


def test_a_frozen_class_of_a_base_that_is_known_by_its_decisions(base):
    model = LowChurnClassifier(clone(ESTIMATOR), max_churn={"yes": 0, "no": 0.05}, strategies="sticky", random_state=0)
    model.fit(X[TRAIN], Y[TRAIN], base_proba=base.predict(X[TRAIN]), held_out=HELD_OUT)
    decided = base.predict(X[NEW])
    now = model.predict(X[NEW], previous=decided)
    assert (now[decided == "yes"] == "yes").all()
    assert (now[decided == "maybe"] != "maybe").any()


def test_beside_a_budget_of_all_rows(base):
    alone = fitted(base, max_churn={"no": 0.05})
    model = fitted(base, max_churn={"no": 0.05, None: 0.02})
    assert model.selection_.churn <= 0.02 < alone.selection_.churn
    assert churn_by_class(model, base, HELD_OUT)["no"] <= 0.05
    assert not math.isnan(model.selection_.budget_left)
    only = fitted(base, max_churn={None: 0.02})
    plain = fitted(base, max_churn=0.02)
    np.testing.assert_array_equal(only.predict(X[NEW]), plain.predict(X[NEW]))
    assert str(only.selection_) == str(plain.selection_)


def test_budgets_of_classes_on_the_dial_and_in_a_file(base, by_class, tmp_path):
    by_class.save(tmp_path / "model.skops", dial=True)
    again = lowchurn.load(tmp_path / "model.skops")
    assert again.max_churn == BY_CLASS
    np.testing.assert_array_equal(again.predict_proba(X[NEW]), by_class.predict_proba(X[NEW]))
    for one in (by_class, again):
        calmer = one.dial({"no": 0.01, "yes": 0.05})
        found = churn_by_class(calmer, base, HELD_OUT)
        assert found["no"] <= 0.01
        assert found["yes"] <= 0.05
        assert one.dial(0.02).selection_.churn <= 0.02
    today = again.dial({"no": 0.02}, traffic=X[TRAFFIC])
    before = base.predict(X[TRAFFIC])
    assert np.mean(today.predict(X[TRAFFIC])[before == "no"] != "no") <= 0.02
    with pytest.raises(ValueError, match="asks for margins of their own, and this model was fitted without"):
        fitted(base, max_churn=0.05).dial({"no": 0.02})


def test_certificates_of_classes(base, tmp_path):
    model = fitted(base, max_churn={"yes": 0.15, "no": 0.15, "maybe": 0}, confidence=0.8, given={"traffic": X[TRAFFIC]})
    certificate = model.certificate_
    assert certificate.certified
    assert [one.of for one in (certificate, *certificate.beside)] == [
        "churn where the base decides 'yes'",
        "churn where the base decides 'no'",
    ]
    assert certificate.rows + certificate.beside[0].rows < model.selection_.rows["certify"]
    model.save(tmp_path / "model.skops", dial=True)
    again = lowchurn.load(tmp_path / "model.skops")
    assert again.certificate_ == certificate
    assert again.dial({"yes": 0.1}).certificate_ == model.dial({"yes": 0.1}).certificate_


def test_a_sticky_model_with_budgets_of_classes_is_a_base_like_any_other(by_class, tmp_path):
    following = LowChurnClassifier(clone(ESTIMATOR), base=by_class, max_churn=0.02, strategies="sticky", random_state=0)
    following.fit(X[TRAIN], Y[TRAIN], held_out=HELD_OUT)
    following.save(tmp_path / "following.skops")
    again = lowchurn.load(tmp_path / "following.skops")
    np.testing.assert_array_equal(again.predict_proba(X[NEW]), following.predict_proba(X[NEW]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_churn": {"yess": 0.1}}, "unknown class in max_churn 'yess'. Did you mean 'yes'"),
        ({"max_churn": {"yes": 5}}, "max_churn must be in .* did you mean 0.05"),
        ({"max_churn": {}}, "max_churn must name at least one class or slice"),
        ({"max_churn": {"yes": 0, "no": 0}, "confidence": 0.9}, "confidence certifies a budget above 0"),
        ({"max_churn": 0.1, "by": 1.5}, "by must be the name or the position of a column, or a function of X, got 1.5"),
        ({"max_churn": 0.1, "by": 12}, "by must be the name of a column or a position from 0 to 11, got 12"),
        ({"max_churn": 0.1, "by": "region"}, "by='region' is the name of a column, and X has none"),
        ({"max_churn": 0.1, "by": lambda rows: [1, 2]}, "by must return one value for each of 2500 rows"),
        ({"max_churn": 0.1, "by": 0}, "by must have at most 1000 different values, got 2500"),
    ],
)
def test_bad_groups(base, options, message):
    with pytest.raises(ValueError, match=message):
        fitted(base, **options)


def test_parameters_survive_a_clone(base):
    model = LowChurnClassifier(base=base, max_churn={"yes": 0.1, None: 0.02}, by="region", max_broken=0.01)
    copied = clone(model)
    assert copied.max_churn == model.max_churn
    assert copied.by == "region"
    assert copied.max_broken == 0.01
