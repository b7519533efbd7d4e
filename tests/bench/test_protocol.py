"""The protocol against a slow twin, and its draws."""

import copy
import functools

import numpy as np
import pytest
import torch

from lowchurn import nets
from lowchurn.bench import _retraining as retraining
from lowchurn.bench._ablation import AnchorToDistill, ablation_settings
from lowchurn.bench._loading import as_numbers, is_text, load
from lowchurn.bench._protocol import (
    Protocol,
    dial_settings,
    draw,
    make_network,
    paper_settings,
    settings_of,
    start_of,
    sticky_settings,
)
from lowchurn.bench._segments import setting_of
from lowchurn.bench._trials import run_trials
from lowchurn.bench._within import CHOICES, Within, budget_settings
from lowchurn.nets import Task, average, train
from lowchurn.strategies import (
    ALL,
    PAPER,
    Anchor,
    CoDistill,
    ColdStart,
    Constrained,
    Dissonance,
    Distill,
    FocalDistill,
    Interpolate,
    LabelSmoothing,
    LocalSmoothing,
    Mixup,
    ServedMixture,
    ShrinkPerturb,
    Soup,
    Sticky,
    TwoTeachers,
    WarmStart,
    member_seed,
    one_hot,
    plan,
)
from lowchurn.strategies._sticky import MARGINS
from lowchurn.theory import Margin, optimal_margin
from tests.nets.slow_twin import plain_training

SMALL = Protocol(network="fcn-6", initial=40, validation=20, batch=30, epochs=4, scale=True)
SETTINGS = [
    ColdStart(),
    WarmStart(),
    ShrinkPerturb(0.4),
    Mixup(0.3, start="warm"),
    LabelSmoothing(0.2),
    CoDistill(0.3),
    Anchor(0.4, 0.7, start="warm"),
    Distill(0.3),
    Distill(0.3, start="warm"),
    AnchorToDistill(0.5, 0.4),
    Soup(3),
    Soup(3, 0.4),
    Soup(2, 1.0),
    Interpolate(0.3),
    TwoTeachers(2, 0.6),
    TwoTeachers(2, 0.6, students=2),
    ServedMixture(3, 0.7, start="warm"),
    ServedMixture(2, 1.0),
    FocalDistill(0.4, start="warm"),
    Dissonance(0.4),
    Constrained(0.03, start="warm"),
    LocalSmoothing(0.5, 4, start="warm"),
    Sticky(1, 0.0),
    Sticky(1, 0.2, toward_base=0.4),
    Sticky(1, 0.02, start="warm"),
    Sticky(3, 0.0, start="warm"),
    Sticky(3, 0.05, start="warm", toward_base=0.3),
    Sticky(3, 0.0, start="warm", average="weights"),
    Sticky(3, 0.03, start="warm", average="weights"),
    Sticky(3, 0.03, start="warm", average="weights", toward_base=0.4),
    Sticky(2, 0.0, start="both"),
    Sticky(2, 0.02, start="both"),
    Sticky(2, 0.02, start="both", toward_base=0.2),
    Sticky(2, 0.9, start="both", toward_base=0.2),
    Sticky(1, 0.05, trust=5.0),
    Sticky(3, 0.02, start="warm", average="weights", trust=3.0),
    Sticky(2, 0.02, start="both", toward_base=0.2, trust=1.0),
]
UNDER_BUDGETS = [
    Within("distill", 0.2),
    Within("soup", 0.05),
    Within("sticky 1 cold", 0.2),
    Within("sticky soup", 0.04),
    Within("sticky 8+8", 0.1),
    Within("sticky 8+8 + base", 0.1),
]


def as_setting(strategy):
    return setting_of({"strategy": strategy.name, "parameters": strategy.parameters})


class SlowTrial:
    """One trial, one model after the other, the obvious way."""

    def __init__(self, data, protocol, trial):
        self.data, self.drawn = data, draw(data, protocol, trial)
        self.template = make_network(protocol.network, data)
        self.X = data.X if is_text(data.X) else as_numbers(data.X).astype(float)
        self.onehot = one_hot(data.y, data.classes)
        self.options = {"epochs": protocol.epochs, "patience": protocol.patience, "squared": protocol.loss == "squared"}
        held_out = self.drawn.validation
        self.held_out = {"validation": held_out, "validation_targets": self.onehot[held_out]}
        rows = self.drawn.initial
        first = Task(rows=rows, targets=self.onehot[rows], seed=self.drawn.base_seed, **self.held_out)
        self.base, _, _ = plain_training(self.template, self.X, first, **self.options)
        self.rows = np.concatenate([self.drawn.initial, self.drawn.batch])
        self.train = functools.cache(self._train)

    def proba(self, model, rows):
        with torch.no_grad():
            return model(torch.as_tensor(self.X[rows])).softmax(-1).numpy()

    def _train(self, strategy, member):
        labels, proba = self.onehot[self.rows], self.proba(self.base, self.rows)
        if strategy.teachers is not None:
            teachers = [self.train(strategy.teachers.strategy, j)[0] for j in range(strategy.teachers.count)]
            labels = np.mean([self.proba(teacher, self.rows) for teacher in teachers], axis=0)
        task = Task(
            rows=self.rows,
            targets=strategy.targets(labels, proba),
            seed=member_seed(self.drawn.seed, member),
            start=self.base.state_dict() if strategy.base_share else None,
            base_share=strategy.base_share,
            mixing=strategy.mixing,
            coupling=strategy.coupling,
            limit=strategy.limit,
            pull=strategy.pull(proba),
            **self.held_out,
        )
        return plain_training(self.template, self.X, task, **self.options)

    def answers(self, strategy, rows):
        """The probabilities of what a strategy makes."""
        if strategy.blend is None:
            return self.proba(self.train(strategy, 0)[0], rows)
        groups, share = strategy.blend.groups, strategy.blend.base
        members = [self.train(group.strategy, j)[0] for group in groups for j in range(group.count)]
        if strategy.blend.of == "proba":
            mean = np.mean([self.proba(m, rows) for m in members], axis=0)
            return (1 - share) * mean + share * self.proba(self.base, rows)
        state = {
            name: (1 - share) * sum(m.state_dict()[name] for m in members) / len(members) + share * value
            for name, value in self.base.state_dict().items()
        }
        model = copy.deepcopy(self.template).double()
        model.load_state_dict(state)
        return self.proba(model.eval(), rows)

    def decisions(self, strategy):
        test, traffic = self.data.test, self.drawn.traffic
        before, on_traffic = (self.proba(self.base, rows).argmax(axis=1) for rows in (test, traffic))
        if isinstance(strategy, Within):
            best, most = before, 0.0
            for choice in strategy.choices:
                if isinstance(choice, Sticky):
                    rule = optimal_margin(self.answers(choice, traffic), on_traffic, strategy.max_churn)
                    return rule.decisions(self.answers(choice, test), before)
                changed = np.mean(self.answers(choice, traffic).argmax(axis=1) != on_traffic)
                if most < changed <= strategy.max_churn:
                    best, most = self.answers(choice, test).argmax(axis=1), changed
            return best
        if isinstance(strategy, Sticky) and strategy.trust:
            return trusting(strategy, self.answers(strategy, test), self.proba(self.base, test))
        margin = None if strategy.blend is None else strategy.blend.margin
        after = self.answers(strategy, test)
        return after.argmax(axis=1) if margin is None else Margin(margin).decisions(after, before)

    def row(self, strategy):
        test, truth = self.data.test, self.data.y[self.data.test]
        epochs = sum(self.train(one, member)[1] for one, member in plan([strategy]).trainings)
        loss = self.train(strategy, 0)[2] if strategy.blend is None else None
        before, after = self.proba(self.base, test).argmax(axis=1), self.decisions(strategy)
        return {
            "accuracy": np.mean(after == truth),
            "churn": np.mean(after != before),
            "broken": np.mean((before == truth) & (after != truth)),
            "fixed": np.mean((before != truth) & (after == truth)),
            "base_accuracy": np.mean(before == truth),
            "validation_loss": loss,
            "epochs": epochs,
        }


@pytest.mark.parametrize("loss", ["log", "squared"])
def test_every_setting_equals_a_plain_loop(loss):
    data = load("wine").scaled()
    protocol = Protocol(**(vars(SMALL) | {"loss": loss}))
    wanted = {0: SETTINGS, 1: SETTINGS[::2], 5: SETTINGS[1:3]}
    rows = run_trials(data, protocol, wanted, device="cpu", dtype="float64")
    assert len(rows) == sum(map(len, wanted.values()))
    found = {(r["trial"], setting_of(r)): r for r in rows}
    assert {s.name for s in SETTINGS} > {cls.name for cls in ALL}
    for trial, settings in wanted.items():
        slow = SlowTrial(data, protocol, trial)
        for strategy in settings:
            row = found[trial, as_setting(strategy)]
            assert row["status"] == "finished"
            assert row["left_out"] == ""
            for name, value in slow.row(strategy).items():
                assert row[name] == pytest.approx(value, abs=1e-8), (name, strategy)


OF_IMAGES = [
    ColdStart(),
    WarmStart(),
    ShrinkPerturb(0.4),
    Mixup(0.3, start="warm"),
    CoDistill(0.3, start="warm"),
    Anchor(0.4, 0.7, start="warm"),
    Distill(0.3, start="warm"),
    Soup(2),
    Soup(2, 0.5),
    Sticky(2, 0.02, start="warm", average="weights"),
]


@pytest.mark.parametrize("network", ["convnet-1", "transformer-1", "resnet-50"])
def test_images_and_words_equal_a_plain_loop(network, made_data, monkeypatch):
    monkeypatch.setattr(nets.networks, "resnet", short_resnet)
    data = load("imdb" if network == "transformer-1" else "cifar10", made_data)
    protocol = Protocol(network=network, initial=20, validation=8, batch=12, epochs=2)
    settings = OF_IMAGES if network != "resnet-50" else [ColdStart(), Distill(0.3, start="warm")]
    rows = run_trials(data, protocol, {3: settings}, device="cpu", dtype="float64")
    slow = SlowTrial(data, protocol, 3)
    assert len(rows) == len(settings)
    found = {setting_of(r): r for r in rows}
    for strategy in settings:
        row = found[as_setting(strategy)]
        assert row["status"] == "finished"
        for name, value in slow.row(strategy).items():
            assert row[name] == pytest.approx(value, abs=1e-6), (name, strategy)


def short_resnet(depth, shape, classes):
    """The paper's residual network without most of its blocks, which take minutes on a CPU."""
    network = nets.networks.Resnet(shape, classes, depth)
    network.blocks = torch.nn.Sequential(*list(network.blocks)[:2])
    network.head = type(network.head)(256, classes)
    network.reset()
    return network


def test_budgets_equal_a_plain_loop():
    data = load("wine").scaled()
    rows = run_trials(data, SMALL, {0: UNDER_BUDGETS, 3: UNDER_BUDGETS[1:4]}, device="cpu", dtype="float64")
    found = {(r["trial"], setting_of(r)): r for r in rows}
    for trial, settings in ((0, UNDER_BUDGETS), (3, UNDER_BUDGETS[1:4])):
        slow = SlowTrial(data, SMALL, trial)
        for strategy in settings:
            row = found[trial, as_setting(strategy)]
            assert (row["status"], row["left_out"]) == ("finished", "")
            for name, value in slow.row(strategy).items():
                assert row[name] == pytest.approx(value, abs=1e-8), (name, strategy)


def test_a_row_does_not_depend_on_what_else_is_run():
    data = load("wine").scaled()
    together = run_trials(data, SMALL, {0: SETTINGS, 1: SETTINGS}, device="cpu")
    found = {(r["trial"], setting_of(r)): r for r in together}
    for strategy in (SETTINGS[3], *SETTINGS[10:]):
        (alone,) = run_trials(data, SMALL, {1: [strategy]}, device="cpu")
        same = found[1, as_setting(strategy)]
        for name in ("accuracy", "churn", "epochs", "validation_loss", "seed", "base_accuracy"):
            assert alone[name] == same[name]


def test_the_ends_of_the_dials():
    data = load("wine").scaled()
    retrain = [WarmStart(), Interpolate(0.0), Soup(1), ServedMixture(1, 1.0, start="warm")]
    retrain += [Sticky(1, start="warm"), Sticky(1, start="warm", average="weights")]
    base = [Interpolate(1.0), Soup(3, 1.0), ServedMixture(3, 0.0)]
    base += [
        Sticky(2, 1.0, trust=5.0),
        Sticky(2, 1.0, start="both"),
        Sticky(2, 1.0, start="warm", average="weights"),
        Sticky(2, toward_base=1.0),
    ]
    rows = run_trials(data, SMALL, {trial: [*retrain, *base] for trial in range(4)}, device="cpu")
    found = {(r["trial"], setting_of(r)): r for r in rows}
    for trial in range(4):
        for strategy in retrain[1:]:
            for name in ("accuracy", "churn", "broken", "fixed", "epochs", "seed"):
                one, other = (found[trial, as_setting(s)][name] for s in (strategy, retrain[0]))
                assert one == other, (name, strategy)
        for strategy in base:
            row = found[trial, as_setting(strategy)]
            assert row["churn"] == 0
            assert row["accuracy"] == row["base_accuracy"]


def test_averages_are_made_some_at_a_time(monkeypatch):
    data = load("wine").scaled()
    blends = [s for s in SETTINGS if s.blend is not None or s.teachers is not None]
    whole = run_trials(data, SMALL, dict.fromkeys(range(3), blends), device="cpu")
    monkeypatch.setattr(retraining, "BLEND_BYTES", 1)
    parts = run_trials(data, SMALL, dict.fromkeys(range(3), blends), device="cpu")
    order = ("trial", "strategy", "parameters")
    for one, other in zip(
        *(sorted(r, key=lambda row: (row["trial"], setting_of(row))) for r in (whole, parts)), strict=True
    ):
        for name in (*order, "accuracy", "churn", "epochs"):
            assert one[name] == other[name]


def test_all_margins_of_an_average_come_from_one_average(monkeypatch):
    data = load("wine").scaled()
    made = []

    def counted(trained, groups, *arguments, **options):
        made.append(len(groups))
        return average(trained, groups, *arguments, **options)

    monkeypatch.setattr(nets, "average", counted)
    soups = [Sticky(3, t, "warm", "weights", share) for share in (0.0, 0.5) for t in (0.0, 0.05, 0.1, 0.4, 0.9)]
    rows = run_trials(data, SMALL, dict.fromkeys(range(2), soups), device="cpu")
    assert len(rows) == 2 * len(soups)
    assert sum(made) == 2 * 2  # trials and shares
    means = []
    real = retraining.Retrains.means
    monkeypatch.setattr(retraining.Retrains, "means", lambda *some: means.append(some) or real(*some))
    mixed = [Sticky(2, t, "both", toward_base=share) for share in (0.0, 0.5) for t in (0.0, 0.05, 0.1, 0.4, 0.9)]
    assert len(run_trials(data, SMALL, dict.fromkeys(range(2), mixed), device="cpu")) == 2 * len(mixed)
    assert len(means) == 1


def test_churn_falls_along_the_margin():
    data = load("wine").scaled()
    for estimate in ({"start": "both"}, {"start": "warm", "average": "weights"}, {"trust": 5.0}):
        settings = [Sticky(2, t / 50, **estimate) for t in range(51)]
        churns = [r["churn"] for r in sorted(run_trials(data, SMALL, {0: settings}, device="cpu"), key=at_margin)]
        assert churns == sorted(churns, reverse=True)
        assert churns[-1] == 0


def test_budgets_are_kept_on_traffic_and_by_everybody(monkeypatch):
    data = load("digits").scaled()
    protocol = Protocol(network="fcn-16", initial=100, validation=50, batch=100, epochs=5, scale=True)
    settings = [*budget_settings(), *(Within(method, budget) for method in CHOICES for budget in (0.0, 1.0))]
    rows = run_trials(data, protocol, {0: settings}, device="cpu")
    found = {(r["parameters"]["method"], r["parameters"]["max_churn"]): r for r in rows}
    assert {r["status"] for r in rows} == {"finished"}
    for method in CHOICES:
        churns = [found[method, budget]["churn"] for budget in (0.0, 0.005, 0.01, 0.02, 0.05, 1.0)]
        assert churns == sorted(churns)
        assert churns[0] < 0.01
        assert churns[-2] < 0.09 < churns[-1]
    (plain,) = run_trials(data, protocol, {0: [Sticky(8, start="both")]}, device="cpu")
    assert found["sticky 8+8", 1.0]["churn"] == plain["churn"]
    assert len(draw(data, protocol, 0).traffic) == len(data.train) - 250


def test_without_rows_for_traffic_a_budget_fails_with_the_reason():
    data = load("wine").scaled()
    protocol = Protocol(**(vars(SMALL) | {"initial": 60, "batch": len(data.train) - 80}))
    rows = run_trials(data, protocol, {0: [ColdStart(), *budget_settings()]}, device="cpu")
    assert {r["status"] for r in rows if r["strategy"] == "within"} == {"failed: no training rows are left as traffic"}
    with pytest.raises(ValueError, match="bench: method must be one of"):
        Within("soap")


def trusting(strategy, p, g):
    """Row by row: the class whose evidence is farthest beyond a margin that grows with the base's lead."""
    decided = []
    for own, base in zip(p, g, strict=True):
        b = base.argmax()
        beyond = own - own[b] - strategy.margin * (1 + strategy.trust * (base[b] - base))
        beyond[b] = 0.0
        decided.append(beyond.argmax())
    return np.array(decided)


def at_margin(row):
    return row["parameters"]["margin"]


def test_a_member_that_failed_is_left_out_and_named(monkeypatch):
    data = load("wine").scaled()
    settings = [Soup(3, 0.2), ServedMixture(3, 0.5, start="warm"), TwoTeachers(3, 0.5), Interpolate(0.5), Distill(0.5)]
    monkeypatch.setattr(nets, "train", failing(train, is_retrain, first=1))
    rows = {r["strategy"]: r for r in run_trials(data, SMALL, {0: settings}, device="cpu")}
    reason = "failed: by the test"
    assert {name: row["left_out"] for name, row in rows.items() if row["left_out"]} == {
        "soup": f"member 0 ({reason})",
        "served-mix": f"member 0 ({reason})",
    }
    finished = {name: row["status"] for name, row in rows.items()}
    nobody = f"failed: no member finished: member 0 ({reason})"
    assert finished == dict.fromkeys(rows, "finished") | {"interpolate": nobody}
    monkeypatch.setattr(nets, "train", failing(train, is_retrain, first=99))
    rows = {r["strategy"]: r for r in run_trials(data, SMALL, {0: settings}, device="cpu")}
    assert rows["two-teachers"]["status"] == "failed: no teacher finished"
    assert rows["soup"]["status"].startswith(f"failed: no member finished: member 0 ({reason}); member 1")
    assert rows["distill"]["status"] == "finished"


def is_retrain(task):
    """A warm start that learns from labels."""
    return task.base_share == 1 and set(task.targets.unique().tolist()) == {0.0, 1.0}


def failing(real, which, first):
    """A training of which the first few of these tasks fail."""

    def sometimes(network, X, tasks, **options):
        trained = real(network, X, tasks, **options)
        for k in [k for k, task in enumerate(tasks) if which(task)][:first]:
            trained.status[k] = "failed: by the test"
        return trained

    return sometimes


def test_draws_are_disjoint_and_repeatable():
    data = load("digits")
    protocol = Protocol(network="fcn-6", initial=400, validation=100, batch=500)
    for trial in range(20):
        one, again = draw(data, protocol, trial), draw(data, protocol, trial)
        parts = [one.initial, one.validation, one.batch, one.traffic]
        assert [len(p) for p in parts] == [400, 100, 500, len(data.train) - 1000]
        assert len(np.unique(np.concatenate(parts))) == len(data.train)
        assert set(np.concatenate(parts)) <= set(data.train)
        np.testing.assert_array_equal(one.batch, again.batch)
        assert (one.seed, one.base_seed) == (again.seed, again.base_seed)
        assert one.seed != one.base_seed
    assert len({draw(data, protocol, t).seed for t in range(50)}) == 50
    other = draw(data, Protocol(**(vars(protocol) | {"seed": 1})), 0)
    assert not np.array_equal(other.initial, draw(data, protocol, 0).initial)
    assert not np.array_equal(draw(data, protocol, 1).initial, draw(data, protocol, 0).initial)


def test_the_papers_settings():
    assert len(paper_settings("warm")) == len(paper_settings("cold")) == len(paper_settings("default")) == 74
    both = paper_settings("both")
    assert len(both) == len(set(both)) == 137
    assert {start_of(s) for s in settings_of(["distill"], "warm")} == {"warm"}
    assert start_of(ShrinkPerturb(0.3)) == "between"
    with pytest.raises(ValueError, match="unknown strategy 'distil'. Did you mean 'distill'"):
        settings_of(["distil"])
    with pytest.raises(ValueError, match="start must be one of"):
        paper_settings("hot")


def test_settings_past_the_paper():
    dial = dial_settings()
    assert {s.name for s in dial} == {"cold"} | {cls.name for cls in ALL} - {cls.name for cls in PAPER} - {"sticky"}
    field = [s for s in dial if s.name not in ("cold", "soup", "interpolate", "two-teachers", "served-mix")]
    assert len(field) >= 4 * 9
    assert len(plan(dial).trainings) == 1 + 8 + 4 * 10 + len(field)  # cold, retrains, students, the field
    assert settings_of(["dial"]) == dial
    assert settings_of(["paper"], "both") == paper_settings("both")
    assert len(settings_of(["all"])) == len(set(paper_settings() + dial + sticky_settings()))
    assert {s.students for s in settings_of(["two-teachers"])} == {1, 4}
    assert {cls.name for cls in ALL} == {s.name for s in settings_of(["all"])}
    with pytest.raises(ValueError, match="unknown strategy 'dail'. Did you mean 'dial'"):
        settings_of(["dail"])


def test_sticky_settings():
    sticky = settings_of(["sticky"])
    assert sticky == sticky_settings(8)
    assert len(sticky) == len(set(sticky)) == 12 * len(MARGINS)
    assert len(plan(sticky).trainings) == 8 + 8
    # They share their warm retrains with the dial, and the first cold one is the cold start.
    everything = settings_of(["all"])
    assert len(plan(everything).trainings) == len(plan([*paper_settings(), *dial_settings()]).trainings) + 7
    estimates = {(s.members, s.start, s.average, s.toward_base) for s in sticky}
    assert {e[:3] for e in estimates} == {
        (1, "cold", "proba"),
        (1, "warm", "proba"),
        (8, "warm", "weights"),
        (8, "warm", "proba"),
        (8, "both", "proba"),
    }
    assert {e[3] for e in estimates if e[1] == "both"} == {0.0, 0.2, 0.4, 0.6}
    trusting = {(s.members, s.start, s.average, s.toward_base) for s in sticky if s.trust}
    assert trusting == {(1, "cold", "proba", 0.0), (8, "warm", "weights", 0.0), (8, "both", "proba", 0.0)}
    assert [start_of(Sticky(start=start)) for start in ("cold", "warm", "both")] == ["cold", "warm", "both"]
    assert start_of(Soup()) == start_of(TwoTeachers(students=2)) == start_of(ServedMixture(start="warm")) == "warm"


def test_the_ablation_lies_between_distillation_and_anchor():
    rng = np.random.default_rng(0)
    labels, base = one_hot(rng.integers(3, size=200), 3), rng.dirichlet(np.ones(3), 200)
    np.testing.assert_allclose(AnchorToDistill(0.3, 0.0).targets(labels, base), Distill(0.3).targets(labels, base))
    np.testing.assert_allclose(AnchorToDistill(0.3, 1.0).targets(labels, base), Anchor(0.7, 1.0).targets(labels, base))
    targets = AnchorToDistill(0.3, 0.5).targets(labels, base)
    wrong = base.argmax(axis=1) != labels.argmax(axis=1)
    hard = (targets == labels).all(axis=1)
    assert hard.sum() == round(0.5 * wrong.sum())
    belief = (labels * base).sum(axis=1)
    assert belief[hard].max() <= belief[wrong & ~hard].min()
    tensors = AnchorToDistill(0.3, 0.5).targets(torch.as_tensor(labels), torch.as_tensor(base))
    np.testing.assert_allclose(tensors.numpy(), targets)
    assert len(ablation_settings()) == 100


def test_a_failed_base_is_a_reason_in_the_rows():
    data = load("wine")
    broken = data.X.copy()
    broken[:, 0] = 1e38  # far too large for any network
    data = type(data)(**(vars(data) | {"X": broken * 1e30 if broken.dtype == float else broken}))
    rows = run_trials(data, SMALL, {0: [ColdStart(), Distill(0.5)]}, device="cpu")
    assert {r["status"].split(":")[0] for r in rows} == {"failed"}
    assert all(r["accuracy"] is None for r in rows)


def test_networks_fit_their_data(tmp_path):
    data = load("wine")
    with pytest.raises(ValueError, match="convnet-1 reads images, but wine has rows of shape"):
        make_network("convnet-1", data)
    with pytest.raises(ValueError, match="transformer-1 reads words, but wine contains numbers"):
        make_network("transformer-1", data)
    words = type(data)(**(vars(data) | {"X": np.ones((len(data.y), 200), np.int64)}))
    with pytest.raises(ValueError, match="fcn-3 reads numbers, but wine contains words"):
        make_network("fcn-3", words)
    images = type(data)(**(vars(data) | {"X": np.zeros((len(data.y), 12, 12, 1), np.float32)}))
    assert make_network("convnet-2", images).shape == (12, 12, 1)
    assert make_network("fcn-3", images).hidden.weight.shape == (144, 3)


def test_sizes_that_do_not_fit_are_said():
    with pytest.raises(ValueError, match=r"wine has 119 training rows, but a trial needs 2100 \(1000 initial"):
        draw(load("wine"), Protocol(), 0)
    with pytest.raises(ValueError, match="initial must be a whole number of at least 1, got 0"):
        Protocol(initial=0)
    with pytest.raises(ValueError, match="loss must be one of"):
        Protocol(loss="hinge")
