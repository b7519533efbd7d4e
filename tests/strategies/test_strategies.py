"""One battery over every strategy, then what is particular to each."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from lowchurn import strategies
from lowchurn._display import setting_words
from lowchurn.scoring import BrierScore, LogScore
from lowchurn.strategies import (
    Anchor,
    CoDistill,
    ColdStart,
    Constrained,
    Dissonance,
    Distill,
    FocalDistill,
    Group,
    Interpolate,
    LabelSmoothing,
    LocalSmoothing,
    Mixup,
    Plan,
    Recipe,
    ServedMixture,
    ShrinkPerturb,
    Soup,
    Sticky,
    Strategy,
    Training,
    TwoTeachers,
    WarmStart,
    decide,
    member_seed,
    one_hot,
    paper_grid,
    plan,
    strategy_from,
)
from lowchurn.theory import anchor_minimizer

RNG = np.random.default_rng(0)
BASE = RNG.dirichlet(np.ones(4), 50)
ONEHOT = one_hot(RNG.integers(4, size=50), 4)
SETTINGS = [setting for cls in strategies.ALL for setting in paper_grid(cls)]


@pytest.mark.parametrize("strategy", SETTINGS, ids=repr)
def test_every_setting_answers_every_question(strategy):
    assert 0 <= strategy.base_share <= 1
    assert strategy.limit is None or 0 < strategy.limit < 1
    assert strategy.dial is None or (
        strategy.blend is not None
        and strategy.dial == (strategy.blend.base if strategy.blend.margin is None else strategy.blend.margin)
    )
    for part in (strategy.teachers, *(strategy.blend.groups if strategy.blend else ())):
        assert part is None or (part.count >= 1 and part.strategy.blend is None)  # what is trained is one model
    assert strategy.mixing is None or strategy.mixing > 0
    assert strategy.coupling is None or 0 < strategy.coupling <= 1
    targets = strategy.targets(ONEHOT, BASE)
    assert targets.shape == ONEHOT.shape
    assert (targets >= 0).all()
    assert (targets.sum(axis=1) <= 1 + 1e-12).all()
    if not isinstance(strategy, Anchor | Dissonance | FocalDistill):  # their targets weigh rows as well
        np.testing.assert_allclose(targets.sum(axis=1), 1)
    np.testing.assert_allclose(strategy.targets(torch.tensor(ONEHOT), torch.tensor(BASE)).numpy(), targets, rtol=1e-12)


@pytest.mark.parametrize("cls", strategies.ALL, ids=lambda cls: cls.__name__)
def test_every_strategy_is_a_frozen_value(cls):
    strategy = cls()
    assert cls() == strategy
    assert hash(cls()) == hash(strategy)
    assert eval(repr(strategy), vars(strategies)) == strategy
    for field in dataclasses.fields(cls):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(strategy, field.name, 0)
    assert cls.name
    assert cls.__doc__


@pytest.mark.parametrize("strategy", SETTINGS, ids=repr)
def test_a_strategy_is_its_name_and_parameters(strategy):
    assert strategy_from(strategy.name, strategy.parameters) == strategy
    assert json.loads(json.dumps(strategy.parameters)) == strategy.parameters
    assert strategy.setting == setting_words(strategy.parameters)
    assert (strategy.dial is None) == (strategy.dial_parameter == "")
    if strategy.dial_parameter:
        elsewhere = {strategy.dial_parameter: 0.123}
        assert strategy_from(strategy.name, strategy.parameters | elsewhere).dial in (0.123, 0.877)


def test_strategies_from_data_are_checked():
    assert Distill(np.float64(0.5)).parameters == {"lam": 0.5, "start": "cold"}
    assert type(Distill(np.float64(0.5)).parameters["lam"]) is float
    with pytest.raises(ValueError, match="strategy_from: .*'distil'. Did you mean 'distill'"):
        strategy_from("distil")
    with pytest.raises(ValueError, match=r"strategy_from\('distill'\): .*'lamb'. Did you mean 'lam'"):
        strategy_from("distill", {"lamb": 0.5})
    with pytest.raises(ValueError, match="Distill: lam must be in"):
        strategy_from("distill", {"lam": "0.5"})


@pytest.mark.parametrize("cls", strategies.ALL, ids=lambda cls: cls.__name__)
def test_the_neutral_setting_is_a_cold_start(cls):
    if cls.neutral is None:
        # No parameter turns these into a cold start: they start from the base, or are made of several models.
        assert cls in (WarmStart, Soup, Interpolate, ServedMixture, TwoTeachers, Sticky)
        return
    neutral, cold = cls(**cls.neutral), ColdStart()
    for answer in ("base_share", "mixing", "coupling", "limit", "teachers", "blend"):
        assert getattr(neutral, answer) == getattr(cold, answer)
    np.testing.assert_array_equal(neutral.targets(ONEHOT, BASE), cold.targets(ONEHOT, BASE))


@pytest.mark.parametrize("cls", strategies.ALL, ids=lambda cls: cls.__name__)
def test_parameters_out_of_range_are_refused(cls):
    for field in dataclasses.fields(cls):
        bad = {"start": "lukewarm", "focus": -1.0, "trust": -1.0}.get(field.name, 1.3)
        with pytest.raises(ValueError, match=f"{cls.__name__}: {field.name} must be"):
            cls(**{field.name: bad})


@pytest.mark.parametrize("cls", strategies.ALL, ids=lambda cls: cls.__name__)
def test_bad_rows_are_refused(cls):
    strategy = cls()
    with pytest.raises(ValueError, match=f"{cls.__name__}: every row of onehot must sum to 1"):
        strategy.targets(0.5 * ONEHOT, BASE)
    if strategy.needs_base:
        with pytest.raises(ValueError, match="Give a base"):
            strategy.targets(ONEHOT)
        with pytest.raises(ValueError, match="Align the classes"):
            strategy.targets(ONEHOT, np.full((50, 3), 1 / 3))
        with pytest.raises(ValueError, match="base_proba must be finite"):
            strategy.targets(ONEHOT, np.full((50, 4), np.nan))
    else:
        np.testing.assert_array_equal(strategy.targets(ONEHOT), strategy.targets(ONEHOT, BASE))


@pytest.mark.parametrize("cls", [Mixup, LabelSmoothing, CoDistill, Anchor, Distill])
def test_trained_strategies_start_cold_or_warm(cls):
    assert cls(start="cold").base_share == 0
    assert cls(start="warm").base_share == 1
    assert all(s.start == "warm" for s in paper_grid(cls, start="warm"))


def test_where_weights_start():
    assert (ColdStart().base_share, WarmStart().base_share, ShrinkPerturb(0.3).base_share) == (0, 1, 0.3)


def test_paper_grid_is_the_papers():
    assert strategies.ALL[:8] == strategies.PAPER
    sizes = {cls.name: len(paper_grid(cls)) for cls in strategies.PAPER}
    assert sizes == {
        "cold": 1,
        "warm": 1,
        "s-perturb": 9,
        "mixup": 9,
        "ls": 9,
        "co-dist": 9,
        "anchor": 27,
        "distill": 9,
    }
    assert {(a.alpha, a.eta) for a in paper_grid(Anchor)} == {
        (k / 10, eta) for k in range(1, 10) for eta in (0.5, 0.7, 1.0)
    }
    with pytest.raises(ValueError, match="Did you mean 'start'"):
        paper_grid(Distill, stat="warm")
    with pytest.raises(ValueError, match="strategy class"):
        paper_grid("distill")


def test_ties_go_to_the_first_class_as_in_scikit_learn():
    assert decide([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4], [0.5, 0.3, 0.2]]).tolist() == [0, 1, 0]
    tied = [[0.5, 0.5]]
    np.testing.assert_allclose(Anchor(0.5, 0.7).targets([[1.0, 0.0]], tied), [[0.75, 0.25]])
    np.testing.assert_allclose(Anchor(0.5, 0.7).targets([[0.0, 1.0]], tied), [[0.0, 0.7]])


@given(st.floats(0, 1), st.floats(0, 1))
def test_distillation_is_linear_between_label_and_base(lam, other):
    between = 0.5 * (Distill(lam).targets(ONEHOT, BASE) + Distill(other).targets(ONEHOT, BASE))
    np.testing.assert_allclose(Distill((lam + other) / 2).targets(ONEHOT, BASE), between, atol=1e-12)


def test_what_has_to_be_trained():
    def trained(strategy):
        return list(plan([strategy]).trainings)

    warm = WarmStart()
    eight = [(warm, j) for j in range(8)]
    assert trained(Distill(0.3)) == [(Distill(0.3), 0)]
    # Every setting of a dial, the served mixture and the teachers are made of the same trainings.
    assert trained(Soup(8, 0.4)) == trained(Soup(8)) == trained(ServedMixture(8, 0.3, "warm")) == eight
    assert trained(Interpolate(0.4)) == [(warm, 0)]
    assert trained(ServedMixture(2, 0.3)) == [(ColdStart(), 0), (ColdStart(), 1)]
    student = TwoTeachers(8, 0.5)
    assert trained(student) == [*eight, (student, 0)]
    assert trained(TwoTeachers(8, 0.5, students=3)) == [*eight, (student, 0), (student, 1), (student, 2)]
    with pytest.raises(ValueError, match="started apart"):
        TwoTeachers(students=2, start="cold")


def brute_force(strategy: Strategy) -> tuple[list, object]:
    """The trainings of one strategy in the order they are called for, and what is made, read off the strategy."""
    called = []

    def train(one, member):
        taught = one.teachers and [train(one.teachers.strategy, j) for j in range(one.teachers.count)]
        called.append((one, member))
        return ("model", one, member, tuple(taught or ()))

    blend = strategy.blend
    if blend is None:
        made = train(strategy, 0)
    else:
        members = tuple(train(group.strategy, j) for group in blend.groups for j in range(group.count))
        made = (blend.of, members, blend.base, blend.margin)
    return called, made


def executed(made: Plan) -> dict[Strategy, object]:
    """What comes out when a plan is carried out round by round."""
    models: dict = {}
    for some in made.rounds:
        models |= {one: ("model", *one, tuple(models[teacher] for teacher in one.teachers)) for one in some}
    return {
        strategy: models[recipe.members[0]]
        if recipe.of == "model"
        else (recipe.of, tuple(models[one] for one in recipe.members), recipe.base_share, recipe.margin)
        for strategy, recipe in made.recipes.items()
    }


@given(st.lists(st.sampled_from([*SETTINGS, *paper_grid(TwoTeachers, students=3, members=2)]), max_size=20))
def test_a_plan_against_the_strategies_one_by_one(some):
    made = plan(some)
    assert list(made.recipes) == list(dict.fromkeys(some))
    assert executed(made) == {strategy: brute_force(strategy)[1] for strategy in some}
    assert len(set(made.trainings)) == len(made.trainings)
    assert set(made.trainings) == {one for strategy in some for one in brute_force(strategy)[0]}
    for strategy, recipe in made.recipes.items():
        assert list(recipe.trainings) == list(dict.fromkeys(brute_force(strategy)[0]))
        assert set(recipe.teachers) == set(recipe.trainings) - set(recipe.members)


def test_a_plan_trains_teachers_first_and_shares_members():
    student = TwoTeachers(2, 0.5)
    made = plan([student, Soup(2), Soup(3, 0.4), ColdStart()])
    first = [(WarmStart(), 0), (WarmStart(), 1), (WarmStart(), 2), (ColdStart(), 0)]
    assert [list(some) for some in made.rounds] == [first, [(student, 0)]]
    assert made.recipes[Soup(3, 0.4)] == Recipe("weights", tuple(Training(WarmStart(), j) for j in range(3)), 0.4)
    assert plan([]).trainings == ()

    class Pupil(ColdStart):
        teachers = Group(student, 1)

    assert [len(some) for some in plan([Pupil()]).rounds] == [2, 1, 1]  # teachers may have teachers


@given(st.integers(0, 2**63 - 1), st.integers(0, 50))
def test_member_seeds_are_seeds_that_every_library_takes(seed, member):
    assert member_seed(seed, member) == member_seed(seed, member)
    assert 0 <= member_seed(seed, member) < (2**31 if seed < 2**31 else 2**63)
    assert member_seed(seed, 0) == seed
    assert member_seed(seed, member + 1) != seed
    assert len({member_seed(7, j) for j in range(8)} | {member_seed(8, j) for j in range(8)}) == 16


def test_focal_distillation_is_distillation_without_a_focus():
    np.testing.assert_allclose(
        FocalDistill(0.3, focus=0.0).targets(ONEHOT, BASE), Distill(0.3).targets(ONEHOT, BASE), rtol=1e-12
    )
    right = decide(BASE) == ONEHOT.argmax(axis=1)
    sums = FocalDistill(0.4, focus=5.0).targets(ONEHOT, BASE).sum(axis=1)
    np.testing.assert_allclose(sums, np.where(right, 1.0, 0.4 + 0.6 / 6))


def test_dissonance_is_a_corner_of_the_anchor_method():
    np.testing.assert_allclose(
        Dissonance(0.3).targets(ONEHOT, BASE), Anchor(alpha=0.0, eta=0.7).targets(ONEHOT, BASE), rtol=1e-12
    )


def test_local_smoothing_against_a_plain_loop():
    logits = np.log(BASE)
    logits -= logits.mean(axis=1, keepdims=True)
    expected = np.empty_like(ONEHOT)
    for i in range(len(BASE)):
        near = np.argsort(((logits - logits[i]) ** 2).sum(axis=1))[:7]
        expected[i] = 0.6 * ONEHOT[i] + 0.4 * ONEHOT[near].mean(axis=0)
    np.testing.assert_allclose(LocalSmoothing(0.4, neighbors=7).targets(ONEHOT, BASE), expected, atol=1e-12)
    everyone = LocalSmoothing(1.0, neighbors=1000).targets(ONEHOT, BASE)
    np.testing.assert_allclose(everyone, np.broadcast_to(ONEHOT.mean(axis=0), ONEHOT.shape), atol=1e-12)
    certain = np.eye(4)[RNG.integers(4, size=50)]  # probabilities of zero have a place as well
    assert np.isfinite(LocalSmoothing(0.4).targets(ONEHOT, certain)).all()


def test_a_limit_pulls_toward_the_decisions_of_the_base():
    pull = Constrained(0.02).pull(BASE)
    np.testing.assert_array_equal(pull.argmax(axis=1), decide(BASE))
    np.testing.assert_array_equal(pull.sum(axis=1), 1)


def learned(strategy: Strategy, p: np.ndarray, score) -> np.ndarray:
    """Minimise the expected loss against the strategy's targets when labels are drawn from p and the base is p."""
    m = p.shape[0]
    rows = np.tile(p, (m, 1))
    targets = (p[:, None] * strategy.targets(np.eye(m), rows)).sum(axis=0)  # expectation over the label

    def risk(z):
        proba = np.exp(z - z.max())
        return float(score.expected(targets[None], (proba / proba.sum())[None])[0])

    z = minimize(risk, np.log(p), tol=1e-15, options={"gtol": 1e-10}).x
    proba = np.exp(z - z.max())
    return proba / proba.sum()


@pytest.mark.parametrize("score", [LogScore(), BrierScore()], ids=lambda s: s.name)
@pytest.mark.parametrize("seed", range(3))
def test_proposition_4_what_each_loss_learns_when_the_base_is_the_truth(score, seed):
    p = np.random.default_rng(seed).dirichlet(2 * np.ones(3))
    np.testing.assert_allclose(learned(Distill(0.3), p, score), p, atol=1e-4)
    expected = anchor_minimizer(p[None], alpha=0.6, eta=0.7)[0]
    np.testing.assert_allclose(learned(Anchor(0.6, 0.7), p, score), expected, atol=1e-4)
    assert np.abs(expected - p).max() > 1e-3  # anchor is biased even here


def test_one_hot_checks_its_labels():
    assert one_hot(torch.tensor([1]), 2, like=torch.zeros(1)).dtype == torch.float32
    with pytest.raises(ValueError, match="class indices 0 to 1, got 5"):
        one_hot([5], 2)
