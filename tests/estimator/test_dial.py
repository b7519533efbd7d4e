"""The dial: everything between a retrain and the base, made from trained models without training."""

import copy
import functools
import json
import math
import pickle
import warnings
import zipfile

import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, SGDClassifier
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import lowchurn
from lowchurn import LowChurnClassifier
from lowchurn.estimator import Candidate
from lowchurn.estimator._limits import Limits
from lowchurn.estimator._measuring import Offer, Terms
from lowchurn.estimator._policy import choose, spend
from lowchurn.estimator._production import Base
from lowchurn.estimator._serving import Member
from lowchurn.estimator._training import Bar
from lowchurn.learners import Learner, NetworkClassifier, learner_for
from lowchurn.learners._learner import Job, average_weights
from lowchurn.learners._sklearn import RowsLearner
from lowchurn.learners._torch import TorchLearner
from lowchurn.metrics import dial_curves
from lowchurn.strategies import (
    ColdStart,
    Constrained,
    Dissonance,
    Distill,
    FocalDistill,
    Interpolate,
    LocalSmoothing,
    ServedMixture,
    Soup,
    TwoTeachers,
    WarmStart,
    member_seed,
    one_hot,
)

X, Y = make_classification(9000, 12, n_informative=8, n_classes=3, flip_y=0.1, random_state=0)
OLD, BOTH, UNSEEN = slice(0, 1200), slice(0, 3600), slice(3600, 9000)
NEW = np.arange(3600) >= 1200
BUDGETS = (0.005, 0.01, 0.02, 0.05)

LINEAR = make_pipeline(StandardScaler(), LogisticRegression())
SGD = make_pipeline(StandardScaler(), SGDClassifier(loss="log_loss", random_state=0))
NETWORK = make_pipeline(StandardScaler(), NetworkClassifier("fcn-32", epochs=12, random_state=0, device="cpu"))
FOREST = RandomForestClassifier(30, random_state=0)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Networks this small gain nothing from threads, and lose much where other tests run beside them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def fitted(kind, strategies="dial", **options):
    estimator = {"linear": LINEAR, "sgd": SGD, "network": NETWORK, "forest": FOREST}[kind]
    base = copy.deepcopy(estimator).fit(X[OLD], Y[OLD])
    options = {"max_churn": 0.02, "random_state": 0} | options
    return base, LowChurnClassifier(base=base, strategies=strategies, **options).fit(X[BOTH], Y[BOTH], new=NEW)


@functools.cache
def apart(kind, strategies="dial", **options):
    """Trained on exactly the rows BOTH, measured on exactly the rows UNSEEN."""
    base, _ = fitted(kind)
    options = {"max_churn": 0.9, "random_state": 0} | options
    model = LowChurnClassifier(base=base, strategies=strategies, **options)
    return base, model.fit(X, Y, held_out=np.arange(len(Y))[UNSEEN])


def retrains(base, strategy, count):
    """Plain retrains as the members of a group, by the learner alone."""
    final, steps = (base[-1], base[:-1]) if hasattr(base, "steps") else (base, None)
    rows = X[BOTH] if steps is None else steps.transform(X[BOTH])
    targets, labels = one_hot(Y[BOTH], 3), Y[BOTH]
    jobs = [Job(targets, strategy, seed=member_seed(0, j), labels=labels, member=j) for j in range(count)]
    return learner_for(final, np.unique(Y), final).fit_many(rows, jobs, final)


def on_dial(frontier):
    return sorted((c for c in frontier if c.dial >= 0 and c.status == "trained"), key=lambda c: c.dial)


KINDS = ("linear", "sgd", "network", "forest")
NEW_END = {
    "linear": Interpolate(0.0),
    "sgd": Soup(8, 0.0),
    "network": Soup(8, 0.0),
    "forest": ServedMixture(members=1, lam=1.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_ends_are_the_retrain_and_the_base_bit_for_bit(kind):
    base, model = apart(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows for such a budget
        base_end = model.dial(1e-9)
    np.testing.assert_array_equal(base_end.predict_proba(X[UNSEEN]), base.predict_proba(X[UNSEEN]))
    np.testing.assert_array_equal(base_end.predict(X[UNSEEN]), base.predict(X[UNSEEN]))
    _, new_end = apart(kind, strategies=(NEW_END[kind],))
    if kind == "forest":
        (retrain,) = retrains(base, ColdStart(), 1)
        expected = retrain.predict_proba(X[UNSEEN])
    else:
        assert list(new_end.selection_.served) == [new_end.frontier_[-1].name]
        members = retrains(base, WarmStart(), 1 if kind == "linear" else 8)
        learner = learner_for(base[-1], model.classes_)
        mean = learner.average(members, [1 / len(members)] * len(members), None)
        expected = mean.predict_proba(base[:-1].transform(X[UNSEEN]))
    np.testing.assert_array_equal(new_end.predict_proba(X[UNSEEN]), expected)
    first, alone = on_dial(model.frontier_)[0], new_end.frontier_[-1]
    assert (first.dial, first.risk, first.churn, first.accuracy) == (0.0, alone.risk, alone.churn, alone.accuracy)
    assert model.selection_.trainings == 1 + (0 if kind == "forest" else 1 if kind == "linear" else 8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_budgets_are_kept_on_unseen_rows_within_their_intervals(kind, budget):
    base, model = fitted(kind)
    dialled = model.dial(max_churn=budget)
    assert dialled.selection_.feasible
    assert dialled.selection_.trainings == model.selection_.trainings
    churn = np.mean(dialled.predict(X[UNSEEN]) != base.predict(X[UNSEEN]))
    if budget >= 0.02 and kind != "forest":  # whose tied votes all change at the first step from the base
        assert churn > 0.2 * min(budget, model.frontier_[0].churn)  # and it is spent
    # What was steered on some rows is kept on others as far as both samples can tell.
    error = math.sqrt(budget * (1 - budget) * (1 / model.selection_.rows["choose"] + 1 / (9000 - 3600)))
    assert churn <= budget + 2.6 * error


@pytest.mark.parametrize("kind", KINDS)
def test_churn_is_monotone_along_the_dial(kind):
    """Not assumed anywhere: the certificate's order comes from other rows. Checked here, on unseen rows."""
    _, model = apart(kind)
    along = on_dial(model.frontier_)
    assert [c.dial for c in along] == [round(0.02 * k, 2) for k in range(51)]
    assert along[0].rows == len(X[UNSEEN])
    churns = np.array([c.churn for c in along])
    assert churns[-1] == 0
    assert (np.diff(churns) <= 2 / len(X[UNSEEN])).all()  # a row may flip there and back
    # "Almost exactly in proportion": close to the straight line between the two ends.
    line = churns[0] * (1 - np.array([c.dial for c in along]))
    assert np.abs(churns - line).max() < 0.1 * churns[0]


def test_a_soup_is_the_mean_of_its_members_and_a_dial_is_linear_in_weights():
    base, model = apart("network", strategies=(Soup(members=3, toward_base=0.4),))
    model = model.dial(model.frontier_[-1].churn)  # more accurate ones change more
    assert list(model.selection_.served) == ["soup(members=3, toward_base=0.4)"]
    soup = model.model_.module_.state_dict()
    learner, old = learner_for(NETWORK[-1], model.classes_), base[-1]
    members = retrains(base, WarmStart(), 3)
    for name, value in soup.items():
        total = torch.zeros_like(value, dtype=torch.float64)
        for member in members:  # a plain loop
            total += member.module_.state_dict()[name].double() / 3
        mean = total.to(value.dtype)
        expected = 0.6 * mean.double() + 0.4 * old.module_.state_dict()[name].double()
        torch.testing.assert_close(value.double(), expected, rtol=0, atol=1e-7)
    same = learner.average([old, members[0]], [1.0, 0.0], None)
    for name, value in old.module_.state_dict().items():
        assert torch.equal(same.module_.state_dict()[name], value)


def test_linear_models_dial_their_coefficients():
    base, model = apart("linear", strategies=(Interpolate(0.25),))
    assert list(model.selection_.served) == ["interpolate(toward_base=0.25)"]
    (retrain,) = retrains(base, WarmStart(), 1)
    np.testing.assert_allclose(model.model_.coef_, 0.75 * retrain.coef_ + 0.25 * base[-1].coef_, rtol=1e-12)
    np.testing.assert_allclose(
        model.model_.intercept_, 0.75 * retrain.intercept_ + 0.25 * base[-1].intercept_, rtol=1e-12
    )


def test_layers_of_scikit_learns_network_are_averaged():
    rng = np.random.default_rng(0)
    models = [
        MLPClassifier((5,), max_iter=3, random_state=k).fit(rng.normal(size=(30, 4)), np.arange(30) % 2)
        for k in range(2)
    ]
    made = RowsLearner(MLPClassifier((5,)), [0, 1]).average(models, [0.3, 0.7], None)
    for layer, one, other in zip(made.coefs_, models[0].coefs_, models[1].coefs_, strict=True):
        np.testing.assert_allclose(layer, 0.3 * one + 0.7 * other, rtol=1e-12)
    np.testing.assert_array_equal(
        average_weights([np.float32([1.5]), np.float32([2.5])], [0.0, 1.0]), np.float32([2.5])
    )


def test_served_mixtures_are_averaged_probabilities_and_deterministic():
    base, model = apart("forest", strategies=(ServedMixture(members=2, lam=0.25),), max_churn=0.05)
    assert list(model.selection_.served) == ["served-mix(members=2, lam=0.25, start=cold)"]
    one, other = (r.predict_proba(X[UNSEEN]) for r in retrains(base, ColdStart(), 2))
    expected = 0.125 * (one + other) + 0.75 * base.predict_proba(X[UNSEEN])
    np.testing.assert_allclose(model.predict_proba(X[UNSEEN]), expected, rtol=1e-12)
    assert np.abs(one - other).max() > 0  # a seed of its own for each
    np.testing.assert_array_equal(model.predict_proba(X[UNSEEN]), model.predict_proba(X[UNSEEN]))


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)


def test_batch_normalisation_gets_its_statistics_anew():
    torch.manual_seed(0)  # of the dropout in the network, whose draws are torch's own
    estimator = make_pipeline(StandardScaler(), NetworkClassifier(Normalised, epochs=4, random_state=0, device="cpu"))
    base = estimator.fit(X[OLD], Y[OLD])
    asked = [Soup(members=2, toward_base=0.5), Soup(members=2, toward_base=1.0)]
    model = LowChurnClassifier(base=base, max_churn=0.9, strategies=asked, random_state=0)
    model.fit(X, Y, held_out=np.arange(len(Y))[UNSEEN])
    assert list(model.selection_.served) == ["soup(members=2, toward_base=0.5)"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows for such a budget
        end = model.dial(1e-9)
    np.testing.assert_array_equal(end.predict_proba(X[UNSEEN]), base.predict_proba(X[UNSEEN]))  # the base keeps its own
    again = model.dial(0.9)  # made anew, and dropout does not make it another one
    np.testing.assert_array_equal(model.predict_proba(X[UNSEEN]), again.predict_proba(X[UNSEEN]))
    middle = model.model_
    inputs = middle.module_.layers[0]
    rows = base[:-1].transform(X[BOTH])
    with torch.no_grad():
        before = inputs(torch.from_numpy(np.asarray(rows, dtype=np.float32)))
    full = before[: len(before) // 32 * 32]
    torch.testing.assert_close(middle.module_.layers[1].running_mean, full.mean(dim=0), rtol=0, atol=0.02)
    torch.testing.assert_close(middle.module_.layers[1].running_var, full.var(dim=0), rtol=0.05, atol=0.02)
    with pytest.raises(ValueError, match="needs the training rows"):
        model.save("nowhere.skops", dial=True)


class Brittle(RowsLearner):
    """Every second member fails."""

    def fit(self, X, job, base=None):
        if job.member % 2:
            raise RuntimeError("it broke")
        return super().fit(X, job, base)


def test_a_member_that_fails_is_left_out_and_named(monkeypatch):
    monkeypatch.setattr("lowchurn.estimator._training.learner_for", Brittle)
    base = copy.deepcopy(SGD).fit(X[OLD], Y[OLD])
    model = LowChurnClassifier(base=base, max_churn=0.9, strategies=[Soup(members=4)], random_state=0)
    model.fit(X, Y, held_out=np.arange(len(Y))[UNSEEN])
    row = next(c for c in model.frontier_ if c.strategy == "soup")
    assert row.status == "trained"
    assert row.reason == "member 1 is left out: it broke; member 3 is left out: it broke"
    assert list(model.selection_.served) == ["soup(members=4, toward_base=0.0)"]
    members = retrains(base, WarmStart(), 4)[::2]
    np.testing.assert_allclose(model.model_.coef_, np.mean([m.coef_ for m in members], axis=0), rtol=1e-12)


class Broken(RowsLearner):
    def fit(self, X, job, base=None):
        if job.base_share:
            raise RuntimeError("it broke")
        return super().fit(X, job, base)


def test_where_all_members_fail_the_candidates_fail(monkeypatch):
    monkeypatch.setattr("lowchurn.estimator._training.learner_for", Broken)
    base = copy.deepcopy(SGD).fit(X[OLD], Y[OLD])
    asked = [Soup(members=2), TwoTeachers(members=2)]
    model = LowChurnClassifier(base=base, max_churn=0.9, strategies=asked, random_state=0)
    model.fit(X[BOTH], Y[BOTH], new=NEW)
    assert [(c.strategy, c.status) for c in model.frontier_] == [
        ("cold", "trained"), ("soup", "failed"), ("two-teachers", "failed"),
    ]  # fmt: skip
    assert "it broke" in model.frontier_[1].reason


def test_every_strategy_of_the_field_runs_and_what_a_learner_cannot_do_is_said():
    asked = [
        Soup(2, 0.3), Interpolate(0.3), TwoTeachers(2), TwoTeachers(2, students=2), ServedMixture(2, start="warm"),
        FocalDistill(), Dissonance(), Constrained(start="warm"), LocalSmoothing(),
    ]  # fmt: skip
    _, network = fitted("network", strategies=tuple(asked), max_churn=0.9)
    assert {c.status for c in network.frontier_} == {"trained"}
    assert network.selection_.trainings == 1 + 2 + 2 + 4  # plain, warm members, students, those of the field
    _, forest = fitted("forest", strategies=tuple(asked), max_churn=0.9)
    status = {c.strategy: c for c in forest.frontier_}
    assert status["soup"].status == "skipped"
    assert "no weights to average" in status["soup"].reason
    assert "epoch by epoch" in status["constrained"].reason
    assert status["focal"].status == "trained"


def test_members_are_trained_once_for_all_that_is_made_of_them():
    base = copy.deepcopy(SGD).fit(X[OLD], Y[OLD])
    asked = [Soup(4), Soup(4, 0.5), Interpolate(0.5), ServedMixture(3, start="warm"), TwoTeachers(2)]
    model = LowChurnClassifier(base=base, max_churn=0.9, strategies=asked, random_state=0)
    assert model.fit(X[BOTH], Y[BOTH], new=NEW).selection_.trainings == 1 + 4 + 1


def test_what_dial_and_auto_stand_for():
    assert {c.strategy for c in fitted("linear")[1].frontier_} == {"cold", "interpolate"}
    assert {c.strategy for c in fitted("network")[1].frontier_} == {"cold", "soup"}
    forest = fitted("forest")[1].frontier_
    assert {c.strategy for c in forest} == {"cold", "soup", "served-mix"}
    assert [(c.status, "no weights" in c.reason) for c in forest if c.strategy == "soup"] == [("skipped", True)]
    assert fitted("network")[1].selection_.trainings == 9
    auto = fitted("sgd", strategies="auto")[1]
    assert {c.strategy for c in auto.frontier_} == {"cold", "sticky", "soup", "served-mix", "distill"}
    assert auto.selection_.trainings <= 1 + 4 + 2


def test_without_a_base_that_can_be_served_there_is_no_dial():
    base = copy.deepcopy(LINEAR).fit(X[OLD], Y[OLD])
    table = base.predict_proba(X[BOTH])
    with pytest.raises(ValueError, match="strategies='dial' cannot be used here: .* cannot be served"):
        LowChurnClassifier(LINEAR, strategies="dial", max_churn=0.05).fit(X[BOTH], Y[BOTH], base_proba=table)
    auto = LowChurnClassifier(LINEAR, strategies="auto", max_churn=0.05, random_state=0)
    auto.fit(X[BOTH], Y[BOTH], base_proba=table, new=NEW)
    assert {c.strategy for c in auto.frontier_} == {"cold", "distill"}
    with pytest.raises(ValueError, match="there is no dial here"):
        auto.dial(0.01)
    # A base that is a function has no weights, but probabilities that can be served.
    by_function = LowChurnClassifier(LINEAR, base=base.predict_proba, strategies="dial", max_churn=0.05, random_state=0)
    assert "served-mix" in {c.strategy for c in by_function.fit(X[BOTH], Y[BOTH], new=NEW).frontier_}


def test_bad_input_of_the_dial():
    _, model = fitted("linear")
    with pytest.raises(ValueError, match=r"max_churn must be in \[0, 1\), got 1.5"):
        model.dial(1.5)
    with pytest.raises(ValueError, match="Fit with confidence="):
        model.dial(0.05, confidence=0.9)
    with pytest.raises(ValueError, match="'dial' stands alone"):
        LowChurnClassifier(LINEAR, base=model.base, strategies=["dial", "soup"]).fit(X[BOTH], Y[BOTH])
    with pytest.raises(ValueError, match="Did you mean 'dial'"):
        LowChurnClassifier(LINEAR, base=model.base, strategies="dail").fit(X[BOTH], Y[BOTH])
    assert model.max_churn == 0.02  # dialling leaves the model as it is
    with pytest.warns(UserWarning, match="held-out rows are few for max_churn=0.0005"):
        model.dial(0.0005)


@pytest.mark.parametrize("kind", ["linear", "network", "forest"])
def test_certificates_work_along_the_dial(kind):
    base, model = fitted(kind, confidence=0.9, max_churn=0.05)
    for budget in (0.03, 0.05, 0.1):
        dialled = model.dial(budget)
        certificate = dialled.certificate_
        assert certificate.max_churn == budget
        assert certificate.certified, str(certificate)
        p = binom.cdf(round(certificate.churn * certificate.rows), certificate.rows, budget)
        assert p <= 0.1
        assert certificate.tested[0][1] <= p + 1e-12  # the test began with the safest, the base itself
        churn = np.mean(dialled.predict(X[UNSEEN]) != base.predict(X[UNSEEN]))
        assert churn <= budget  # true for all three here; the certificate allows one in ten to fail


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_dial_gives_the_same_bits(kind, tmp_path):
    _, model = fitted(kind, confidence=0.9, max_churn=0.05)
    model.save(tmp_path / "next.skops", dial=True)
    again = lowchurn.load(tmp_path / "next.skops")
    for budget in (0.02, 0.1):
        one, other = model.dial(budget), again.dial(budget)
        np.testing.assert_array_equal(one.predict_proba(X[UNSEEN]), other.predict_proba(X[UNSEEN]))
        assert one.selection_ == other.selection_
        assert one.certificate_ == other.certificate_
    model.save(tmp_path / "small.skops")
    with pytest.raises(ValueError, match="save with dial=True"):
        lowchurn.load(tmp_path / "small.skops").dial(0.05)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.dial(0.02).predict(X[UNSEEN]), model.dial(0.02).predict(X[UNSEEN]))


def test_a_model_without_a_dial_refuses_to_save_one(tmp_path):
    _, model = fitted("linear", strategies=(Distill(0.5),), max_churn=0.9)
    with pytest.raises(ValueError, match="no dial to write"):
        model.save(tmp_path / "next.skops", dial=True)


def offer(churn, cost, dial=math.nan):
    name = "distill" if math.isnan(dial) else "soup"
    return Offer({ONE: 1.0}, Candidate(name, churn=churn, dial=dial), cost)


HARD = Terms(hard=True, score="log", rows=1000)
ONE, IN_PRODUCTION = Member("one", None, np.arange(2)), Base(None, np.arange(2))


def test_a_budget_is_spent_unless_that_is_clearly_worse():
    # One standard error of a difference of 1 % of 1000 rows is sqrt(0.01 / 1000) = 0.0032.
    dial = [offer(0.00, 0.100, 1.0), offer(0.01, 0.102, 0.5), offer(0.02, 0.110, 0.0)]
    assert spend(dial, HARD) == [dial[1]]
    assert spend(dial, Terms(False, "log", 1000)) == [dial[0]]
    apart = [*dial, offer(0.03, 0.2)]
    assert spend(apart, HARD) == [apart[3], dial[1]]
    picked, rule = choose(apart, HARD, within(0.02), apart[3])
    assert picked is dial[1]
    assert rule == "most accurate within a churn of 2 %"


def test_a_dial_gives_way_only_to_what_is_clearly_better():
    dial = offer(0.010, 0.100, 0.5)
    # A standard error of the difference is at most sqrt((0.01 + 0.01) / 1000) = 0.0045.
    near, far = offer(0.010, 0.097), offer(0.010, 0.095)
    assert choose([dial, near], HARD, within(0.02), near)[0] is dial
    assert choose([dial, near, far], HARD, within(0.02), near)[0] is far
    assert choose([near, far], HARD, within(0.02), near)[0] is far
    assert choose([dial, near], Terms(False, "log", 1000), within(0.02), near)[0] is near  # a score is not a count
    served = Offer({ONE: 0.5, IN_PRODUCTION: 0.5}, dial.candidate, dial.cost)  # of probabilities: on equal terms
    assert choose([served, near], HARD, within(0.02), near)[0] is near
    # The aim holds for all that stands beside a dial.
    assert choose([offer(0.018, 0.05), dial], HARD, within(0.02), near, within(0.015))[0] is dial


def test_positions_between_the_aim_and_the_budget_are_the_second_choice():
    dial = [offer(0.004, 0.10, 0.9), offer(0.0095, 0.09, 0.8)]
    assert choose(dial, HARD, within(0.01), dial[0], within(0.008))[0] is dial[0]
    assert choose(dial[1:], HARD, within(0.01), dial[0], within(0.008))[0] is dial[1]
    assert choose(dial[1:], HARD, within(0.005), dial[0], within(0.004))[0] is None


def test_a_learner_says_whether_its_weights_can_be_averaged():
    _, model = fitted("network")
    network = TorchLearner(NETWORK[-1], model.classes_)
    assert network.cannot_average(model.base[-1]) is None
    assert "other layers" in TorchLearner(NetworkClassifier("fcn-7"), model.classes_).cannot_average(model.base[-1])
    assert "not a fitted LogisticRegression" in RowsLearner(LogisticRegression(), [0, 1]).cannot_average(FOREST)
    with pytest.raises(NotImplementedError):
        Learner.average(network, [], [], None)


def test_members_have_seeds_of_their_own_even_where_the_estimator_fixes_one():
    learner = RowsLearner(SGDClassifier(loss="log_loss", random_state=3), [0, 1, 2])
    seeds = [learner.prepared(Job(np.eye(3), member=j)).random_state for j in range(3)]
    assert seeds[0] == 3
    assert len(set(seeds)) == 3


def test_releases_follow_each_other_and_a_mixture_that_became_the_base_is_saved(tmp_path):
    """Trees dial probabilities, so each release serves the one before: nothing may be lost on the way to the file."""
    production = copy.deepcopy(FOREST).fit(X[:800], Y[:800])
    for release in range(3):
        seen, rows = 800 * (release + 1), slice(0, 800 * (release + 2))
        model = LowChurnClassifier(FOREST, base=production, strategies="dial", max_churn=0.04, random_state=0)
        model.fit(X[rows], Y[rows], new=np.arange(rows.stop) >= seen)
        model.save(tmp_path / f"{release}.skops", dial=True)
        again = lowchurn.load(tmp_path / f"{release}.skops")
        np.testing.assert_array_equal(again.predict_proba(X[UNSEEN]), model.predict_proba(X[UNSEEN]))
        np.testing.assert_array_equal(
            again.dial(0.02).predict_proba(X[UNSEEN]), model.dial(0.02).predict_proba(X[UNSEEN])
        )
        churn = np.mean(again.predict(X[UNSEEN]) != production.predict(X[UNSEEN]))
        assert 0 < churn < 0.06
        production = again
    with zipfile.ZipFile(tmp_path / "2.skops") as archive:
        members = json.loads(archive.read("lowchurn.json"))["members"]
    assert [member["base"] for member in members] == [False, False, False, True]  # three retrains and the first model
    assert not any("mixture" in member for member in members)  # a blend of a blend is one blend


def test_a_network_follows_a_soup_with_one_model_each_time(tmp_path):
    production = copy.deepcopy(NETWORK).fit(X[:800], Y[:800])
    for release in range(2):
        seen, rows = 800 * (release + 1), slice(0, 800 * (release + 2))
        model = LowChurnClassifier(base=production, strategies="dial", max_churn=0.04, random_state=0)
        model.fit(X[rows], Y[rows], new=np.arange(rows.stop) >= seen)
        assert {c.strategy for c in model.frontier_} == {"cold", "soup"}
        assert model.model_ is not None
        model.save(tmp_path / "next.skops")
        production = lowchurn.load(tmp_path / "next.skops")


def test_a_base_that_decides_by_a_threshold_is_measured_as_it_decides():
    y = (Y == 0).astype(int)
    base = FixedThresholdClassifier(LogisticRegression().fit(X[OLD], y[OLD]), threshold=0.3).fit(X[OLD], y[OLD])
    model = LowChurnClassifier(LogisticRegression(), base=base, strategies="dial", max_churn=0.02, random_state=0)
    model.fit(X[BOTH], y[BOTH], new=NEW)
    end = next(c for c in model.frontier_ if c.dial == 1)
    assert (end.churn, end.broken, end.fixed) == (0, 0, 0)
    assert model.selection_.feasible
    assert np.mean(model.predict(X[UNSEEN]) != base.predict(X[UNSEEN])) <= 0.03


def test_weights_that_mean_something_else_are_not_averaged():
    def network(activation):
        return nn.Sequential(nn.Linear(12, 8), activation, nn.Linear(8, 3))

    base = NetworkClassifier.wrap(network(nn.Tanh()), [0, 1, 2], 12)
    assert TorchLearner(NetworkClassifier(network(nn.Tanh())), [0, 1, 2]).cannot_average(base) is None
    assert "something else" in TorchLearner(NetworkClassifier(network(nn.ReLU())), [0, 1, 2]).cannot_average(base)
    old = SGDClassifier(loss="modified_huber").fit(X[OLD], Y[OLD])
    assert "loss is another one" in RowsLearner(SGDClassifier(loss="log_loss"), [0, 1, 2]).cannot_average(old)
    deep = MLPClassifier((4,), activation="tanh", max_iter=5).fit(X[OLD], Y[OLD])
    assert "activation" in RowsLearner(MLPClassifier((4,)), [0, 1, 2]).cannot_average(deep)
    assert "cannot start" in RowsLearner(LogisticRegressionCV(), [0, 1]).cannot_average(LogisticRegressionCV())


def test_a_refit_without_a_base_has_no_dial():
    _, model = fitted("linear")
    again = copy.deepcopy(model).set_params(base=None, max_churn=None).fit(X[BOTH][:, :5], Y[BOTH])
    with pytest.raises(ValueError, match="there is no dial here"):
        again.dial(0.01)


@pytest.mark.parametrize("scale", [0.001, 1000.5])
def test_the_scale_of_importance_weights_changes_nothing(scale):
    base, _ = fitted("forest")  # trees do not care for the scale; a penalty would
    weights = np.random.default_rng(0).uniform(0.5, 1.5, len(Y[BOTH]))
    picked = [
        LowChurnClassifier(base=base, strategies="dial", max_churn=0.02, random_state=0)
        .fit(X[BOTH], Y[BOTH], sample_weight=factor * weights, new=NEW)
        .selection_
        for factor in (1.0, scale)
    ]
    assert picked[0].rows == picked[1].rows
    assert list(picked[0].served) == list(picked[1].served)


@pytest.mark.parametrize(
    ("strategies", "expected"), [("dial", 9), ("auto", 7), (None, 7), ("distill", 4), ([Soup(2), Soup(2, 0.5)], 3)]
)
def test_progress_knows_how_many_trainings_there_will_be(strategies, expected, monkeypatch):
    bars = []
    monkeypatch.setattr("lowchurn.estimator._training.Bar.__init__", watched(bars, Bar.__init__))
    base = copy.deepcopy(SGD).fit(X[OLD], Y[OLD])
    model = LowChurnClassifier(base=base, strategies=strategies, max_churn=0.02, random_state=0)
    model.fit(X[BOTH], Y[BOTH], new=NEW)
    (bar,) = bars
    assert bar.total == expected
    assert bar.done == model.selection_.trainings <= bar.total


def within(max_churn):
    return Limits.of(max_churn, None)


def watched(bars, original):
    def init(self, *arguments):
        bars.append(self)
        original(self, *arguments)

    return init


def test_mixtures_may_hold_a_position_of_a_dial_of_weights():
    base, _ = fitted("linear")
    model = LowChurnClassifier(base=base, strategies="dial", select="mixture", max_churn=0.02, random_state=0)
    model.fit(X[BOTH], Y[BOTH], new=NEW)
    served = [model.dial(budget).selection_ for budget in (0.01, 0.02, 0.03, 0.05, 0.1)]
    assert any("toward the base" in name for selection in served for name in selection.served)
    assert served[0].churn <= 0.01


def test_teachers_that_failed_are_named(monkeypatch):
    monkeypatch.setattr("lowchurn.estimator._training.learner_for", Brittle)
    base = copy.deepcopy(SGD).fit(X[OLD], Y[OLD])
    model = LowChurnClassifier(base=base, max_churn=0.9, strategies=[TwoTeachers(members=2)], random_state=0)
    model.fit(X[BOTH], Y[BOTH], new=NEW)
    assert model.frontier_[1].reason == "teacher 1 is left out: it broke"


def test_a_torch_module_as_a_base_says_how_to_wrap_it():
    with pytest.raises(ValueError, match="NetworkClassifier.wrap"):
        LowChurnClassifier(NETWORK, base=nn.Linear(12, 3), max_churn=0.1).fit(X[BOTH], Y[BOTH])


def test_two_dials_of_one_strategy_are_two_curves():
    def mix(members, lam):
        return Candidate("served-mix", {"members": members, "lam": lam, "start": "cold"}, 1 - lam, "lam")

    def toward(strategy, a, **parameters):
        return Candidate(strategy, {**parameters, "toward_base": a}, a, "toward_base")

    assert dial_curves([mix(m, lam) for m in (1, 4) for lam in (1.0, 0.5, 0.0)]) == [[0, 1, 2], [3, 4, 5]]
    # A lone position of another dial belongs to none; the base ends those that do not reach it.
    soup = [toward("soup", a, members=8) for a in (0.0, 0.5)]
    assert dial_curves([*soup, toward("interpolate", 0.3), Candidate("base", dial=1.0)]) == [[0, 1, 3]]
