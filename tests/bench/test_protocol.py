"""The protocol against a slow twin, and its draws."""

import numpy as np
import pytest
import torch

from lowchurn.bench.ablation import AnchorToDistill, ablation_settings
from lowchurn.bench.loading import load
from lowchurn.bench.protocol import Protocol, draw, make_network, paper_settings, run_trials, start_of
from lowchurn.nets import Task
from lowchurn.strategies import (
    Anchor,
    CoDistill,
    ColdStart,
    Distill,
    LabelSmoothing,
    Mixup,
    ShrinkPerturb,
    WarmStart,
    one_hot,
)
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
]


def slow_trial(data, protocol, trial, strategy):
    """One model of one trial, the obvious way."""
    drawn = draw(data, protocol, trial)
    template = make_network(protocol.network, data)
    X, y = data.X.astype(float), data.y
    onehot = one_hot(y, data.classes)
    options = {"epochs": protocol.epochs, "patience": protocol.patience, "squared": protocol.loss == "squared"}
    held_out = {"validation": drawn.validation, "validation_targets": onehot[drawn.validation]}
    first = Task(rows=drawn.initial, targets=onehot[drawn.initial], seed=drawn.base_seed, **held_out)
    base, _, _ = plain_training(template, X, first, **options)
    rows = np.concatenate([drawn.initial, drawn.batch])
    with torch.no_grad():
        proba = base(torch.as_tensor(X[rows])).softmax(-1).numpy()
        before = base(torch.as_tensor(X[data.test])).argmax(-1).numpy()
    task = Task(
        rows=rows,
        targets=strategy.targets(onehot[rows], proba),
        seed=drawn.seed,
        start=base.state_dict() if strategy.base_share else None,
        base_share=strategy.base_share,
        mixing=strategy.mixing,
        coupling=strategy.coupling,
        **held_out,
    )
    model, epochs, loss = plain_training(template, X, task, **options)
    with torch.no_grad():
        after = model(torch.as_tensor(X[data.test])).argmax(-1).numpy()
    truth = y[data.test]
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
    found = {(r["trial"], r["strategy"], r["setting"]): r for r in rows}
    for trial, settings in wanted.items():
        for strategy in settings:
            row = found[trial, strategy.name, strategy.setting]
            assert row["status"] == "finished"
            for name, value in slow_trial(data, protocol, trial, strategy).items():
                assert row[name] == pytest.approx(value, abs=1e-8), (name, strategy)


def test_a_row_does_not_depend_on_what_else_is_run():
    data = load("wine").scaled()
    together = run_trials(data, SMALL, {0: SETTINGS, 1: SETTINGS}, device="cpu")
    alone = run_trials(data, SMALL, {1: [SETTINGS[3]]}, device="cpu")[0]
    same = next(r for r in together if r["trial"] == 1 and r["setting"] == alone["setting"])
    for name in ("accuracy", "churn", "epochs", "validation_loss", "seed", "base_accuracy"):
        assert alone[name] == same[name]


def test_draws_are_disjoint_and_repeatable():
    data = load("digits")
    protocol = Protocol(network="fcn-6", initial=400, validation=100, batch=500)
    for trial in range(20):
        one, again = draw(data, protocol, trial), draw(data, protocol, trial)
        parts = [one.initial, one.validation, one.batch]
        assert [len(p) for p in parts] == [400, 100, 500]
        assert len(np.unique(np.concatenate(parts))) == 1000
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
    assert {start_of(s) for s in paper_settings("warm", ["distill"])} == {"warm"}
    assert start_of(ShrinkPerturb(0.3)) == "between"
    with pytest.raises(ValueError, match="unknown strategy 'distil'. Did you mean 'distill'"):
        paper_settings("warm", ["distil"])
    with pytest.raises(ValueError, match="start must be one of"):
        paper_settings("hot")


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
    with pytest.raises(ValueError, match="transformer-1 reads words, but wine holds numbers"):
        make_network("transformer-1", data)
    words = type(data)(**(vars(data) | {"X": np.ones((len(data.y), 200), np.int64)}))
    with pytest.raises(ValueError, match="fcn-3 reads numbers, but wine holds words"):
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
