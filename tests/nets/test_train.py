"""The engine against its slow twin, in float64: every strategy, every kind of network, every path."""

import numpy as np
import pytest
import torch
from torch import nn

from lowchurn import strategies
from lowchurn.nets import Task, _train, strategy_tasks, train
from lowchurn.nets._stacks import Settings
from lowchurn.nets._stacks._module import ModuleStack
from lowchurn.nets._trained import TrainingInterrupted
from lowchurn.nets._training_data import TrainingData
from lowchurn.nets.networks import Resnet, convnet, fcn, transformer
from lowchurn.strategies import (
    Anchor,
    CoDistill,
    ColdStart,
    Constrained,
    Distill,
    Mixup,
    ShrinkPerturb,
    Soup,
    TwoTeachers,
    WarmStart,
    paper_grid,
)
from tests.nets.slow_twin import plain_training

RNG = np.random.default_rng(0)


class SmallConv(nn.Module):
    """A user's own module with batch normalisation of both kinds."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.dense = nn.Linear(4 * 36, 8, bias=False)
        self.norm1 = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.relu(self.norm1(self.dense(x.flatten(1)))))


def tabular(n=150, d=5, m=3):
    X = RNG.normal(size=(n, d))
    y = (X @ RNG.normal(size=(d, m)) + RNG.normal(size=(n, m))).argmax(axis=1)
    return X, y


WORLDS = {
    "fcn": (fcn(7, inputs=5, classes=3), tabular()),
    "fcn wide": (fcn(300, inputs=5, classes=3), tabular()),
    "convnet": (
        convnet(1, shape=(12, 14, 2), classes=3),
        (RNG.normal(size=(110, 12, 14, 2)), RNG.integers(3, size=110)),
    ),
    "transformer": (
        transformer(1, length=6, classes=3, vocabulary=11),
        (RNG.integers(11, size=(110, 6)), RNG.integers(3, size=110)),
    ),
    "own": (SmallConv(), (RNG.normal(size=(110, 2, 8, 8)), RNG.integers(3, size=110))),
}

# The strategies at a setting that shows what is particular to each.
SETTINGS = [
    ColdStart(),
    WarmStart(),
    ShrinkPerturb(0.4),
    Mixup(0.3),
    strategies.LabelSmoothing(0.2),
    CoDistill(0.3),
    CoDistill(0.6, start="cold"),
    Anchor(0.4, 0.7),
    Distill(0.3),
    Distill(0.7, start="warm"),
    Constrained(0.02),
    Constrained(0.3, start="warm"),
]


def make_tasks(network, X, y, settings, seed=5, classes=3):
    n = len(y)
    state = {k: v.detach().double() for k, v in network.state_dict().items()}
    rows, validation = np.arange(n - 40), np.arange(n - 40, n)
    proba = np.random.default_rng(1).dirichlet(np.ones(classes), len(rows))
    tasks = strategy_tasks(
        [ColdStart() if s.base_share else s for s in settings],
        rows=rows,
        y=y,
        classes=classes,
        validation=validation,
        seed=seed,
        base_proba=proba,
    )
    full = []
    for i, (task, s) in enumerate(zip(tasks, settings, strict=True)):
        targets = s.targets(np.eye(classes)[y[rows]], proba)
        keys = vars(task) | {
            "targets": targets,
            "seed": seed + i,
            "mixing": s.mixing,
            "coupling": s.coupling,
            "limit": s.limit,
            "pull": None if s.limit is None else s.pull(proba),
            "base_share": s.base_share,
            "start": state if s.base_share else None,
        }
        if i % 2:
            keys["weights"] = np.random.default_rng(i).uniform(0, 2, len(rows))
        full.append(Task(**keys))
    return full


def assert_same(trained, i, module, epochs, loss, X, tolerance=1e-8):
    assert trained.status[i] == "finished"
    assert trained.epochs[i] == epochs
    assert trained.loss[i] == pytest.approx(loss, abs=tolerance)
    for name, value in module.state_dict().items():
        if name == "qkv.bias":
            continue  # the keys' bias has no gradient at all, so that Adam amplifies rounding in it
        np.testing.assert_allclose(trained.state[name][i].numpy(), value.numpy(), atol=tolerance, err_msg=name)


# The way that a CPU takes, and the others.
CASES = [*((world, None) for world in WORLDS), ("fcn", True), ("convnet", False), ("transformer", False)]
NAMES = [world + {None: "", True: " generic", False: " stacked"}[generic] for world, generic in CASES]


@pytest.mark.parametrize(("world", "generic"), CASES, ids=NAMES)
def test_every_strategy_equals_a_plain_loop(world, generic):
    network, (X, y) = WORLDS[world]
    tasks = make_tasks(network, X, y, SETTINGS)
    options = {"epochs": 3, "batch_size": 16}
    trained = train(network, X, tasks, device="cpu", dtype="float64", generic=generic, **options)
    for i, task in enumerate(tasks):
        module, epochs, loss = plain_training(network, X, task, **options)
        assert_same(trained, i, module, epochs, loss, X)


@pytest.mark.parametrize("world", ["fcn", "convnet"])
def test_rows_in_one_order_equal_a_plain_loop(world):
    network, (X, y) = WORLDS[world]
    tasks = make_tasks(network, X, y, SETTINGS)
    options = {"epochs": 3, "batch_size": 16}
    kept = train(network, X, tasks, device="cpu", dtype="float64", one_order=True, **options)
    drawn = train(network, X, tasks, device="cpu", dtype="float64", **options)
    for i, task in enumerate(tasks):
        module, epochs, loss = plain_training(network, X, task, one_order=True, **options)
        assert_same(kept, i, module, epochs, loss, X)
        assert kept.loss[i] != drawn.loss[i]


@pytest.mark.parametrize("world", ["convnet", "transformer", "own"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # attention under vmap: slow, but right
def test_images_and_tokens_that_are_mapped_as_on_a_gpu_equal_one_after_the_other(world, monkeypatch):
    network, (X, y) = WORLDS[world]
    tasks = make_tasks(network, X, y, SETTINGS)
    options = {"epochs": 3, "batch_size": 16, "device": "cpu", "dtype": "float64", "generic": True}
    apart = train(network, X, tasks, **options)
    monkeypatch.setattr(ModuleStack, "one_by_one", lambda self, x: False)
    together = train(network, X, tasks, **options)
    for name, value in apart.state.items():
        if name != "qkv.bias":
            torch.testing.assert_close(together.state[name], value, rtol=0, atol=1e-8)
    np.testing.assert_allclose(together.loss, apart.loss, atol=1e-8)


@pytest.mark.parametrize(("world", "generic"), [("fcn", None), ("convnet", None), ("convnet", False), ("own", None)])
@pytest.mark.parametrize("restore_best", [False, True])
def test_early_stopping_and_squared_loss_equal_a_plain_loop(world, generic, restore_best):
    network, (X, y) = WORLDS[world]
    settings = [ColdStart(), Distill(0.4), CoDistill(0.5, start="cold"), Mixup(0.5)]
    tasks = make_tasks(network, X, y, [*settings, Constrained(0.02), Constrained(0.4, start="warm")])
    rate = {"fcn": 0.05, "convnet": 0.0005, "own": 0.02}[world]
    options = {"epochs": 25, "patience": 2, "learning_rate": rate, "restore_best": restore_best}
    trained = train(network, X, tasks, device="cpu", dtype="float64", loss="squared", generic=generic, **options)
    options["lr"] = options.pop("learning_rate")
    stopped = []
    for i, task in enumerate(tasks):
        module, epochs, loss = plain_training(network, X, task, squared=True, **options)
        stopped.append(epochs)
        assert_same(trained, i, module, epochs, loss, X, tolerance=1e-7)
    assert len(set(stopped)) > 1  # models have left the stack at different times


def test_a_limit_on_churn_works_beside_mixing_and_coupling():
    network, (X, y) = WORLDS["fcn"]
    limited = make_tasks(network, X, y, [Constrained(0.05)])[0]
    tasks = [
        Task(**vars(limited) | {"mixing": 0.4, "seed": 3}),
        Task(**vars(limited) | {"coupling": 0.3, "seed": 4}),
        Task(**vars(limited) | {"coupling": 0.6, "limit": 0.5, "seed": 5}),
    ]
    options = {"epochs": 8, "patience": 1}
    trained = train(network, X, tasks, device="cpu", dtype="float64", **options)
    for i, task in enumerate(tasks):
        assert_same(trained, i, *plain_training(network, X, task, **options), X)


def test_a_lower_limit_on_churn_gives_fewer_changed_decisions():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(500, 5))
    y = (X[:, 0] + 0.7 * rng.normal(size=500) > 0).astype(int)
    decided = (X[:, 0] + X[:, 1] > 0).astype(int)  # a base that looks at something else, too
    limits = (1.0, 0.2, 0.1, 0.02)
    tasks = [
        task
        for seed in range(6)
        for task in strategy_tasks(
            [ColdStart(), *(Constrained(limit) for limit in limits)],
            rows=np.arange(400),
            y=y,
            classes=2,
            validation=np.arange(400, 500),
            seed=seed,
            base_proba=np.eye(2)[decided[:400]],
        )
    ]
    options = {"epochs": 80, "patience": 80, "learning_rate": 0.003, "device": "cpu"}
    trained = train(fcn(50, inputs=5, classes=2), X, tasks, **options)
    for value in trained.state.values():
        torch.testing.assert_close(value[0], value[1], rtol=0, atol=0)  # a limit of 1 is none
    churn = (trained.predict(X[:400]) != decided[:400]).mean(axis=1).reshape(6, -1).mean(axis=0)
    assert (np.diff(churn[1:]) < -0.03).all()
    np.testing.assert_allclose(churn[2:], limits[1:], atol=0.06)  # it swings around the limit


@pytest.mark.parametrize("generic", [False, True])
def test_residual_networks_train_as_in_a_plain_loop(generic):
    network = Resnet((8, 8, 3), 3, 50)
    network.blocks = nn.Sequential(*list(network.blocks)[:4])
    network.head = type(network.head)(512, 3)
    network.reset()
    X, y = RNG.normal(size=(24, 8, 8, 3)), RNG.integers(3, size=24)
    tasks = strategy_tasks([ColdStart()], rows=np.arange(16), y=y, classes=3, validation=np.arange(16, 24), seed=1)
    trained = train(network, X, tasks, epochs=2, batch_size=8, device="cpu", dtype="float64", generic=generic)
    module, _, loss = plain_training(network, X, tasks[0], epochs=2, batch_size=8)
    assert trained.loss[0] == pytest.approx(loss, abs=1e-6)
    np.testing.assert_allclose(
        trained.state["norm.running_var"][0].numpy(), module.state_dict()["norm.running_var"].numpy(), atol=1e-8
    )


@pytest.mark.parametrize(("world", "generic"), CASES, ids=NAMES)
def test_a_model_does_not_depend_on_its_neighbours(world, generic):
    network, (X, y) = WORLDS[world]
    tasks = make_tasks(network, X, y, SETTINGS)
    options = {"epochs": 4, "patience": 1, "device": "cpu", "dtype": "float64", "generic": generic}
    together = train(network, X, tasks, **options)
    again = train(network, X, tasks, **options)
    apart = train(network, X, tasks, memory_limit=1.0, **options)  # one model a stack
    reordered = train(network, X, tasks[::-1], **options)
    for name, value in together.state.items():
        torch.testing.assert_close(again.state[name], value, rtol=0, atol=0)
        if name == "qkv.bias":
            continue
        torch.testing.assert_close(apart.state[name], value, rtol=0, atol=1e-10)
        torch.testing.assert_close(reordered.state[name].flip(0), value, rtol=0, atol=1e-10)
    assert (together.epochs == apart.epochs).all()


def test_groups_that_are_trained_at_the_same_time_take_turns(monkeypatch):
    network, (X, y) = WORLDS["fcn"]
    tasks = make_tasks(network, X, y, SETTINGS)
    options = {"epochs": 12, "patience": 2, "device": "cpu", "dtype": "float64"}
    one_after_the_other = train(network, X, tasks, **options)
    stacks = []
    plain = TrainingData.batches

    def batches(self, epoch):
        stacks.append(id(self))
        return plain(self, epoch)

    monkeypatch.setattr(TrainingData, "batches", batches)
    monkeypatch.setattr(_train, "AT_ONCE", ("cpu",))
    for limit in (None, 8e5, 1.0):  # bytes that suffice for all, for some models of each group, and for none
        stacks.clear()
        trained = train(network, X, tasks, memory_limit=limit, **options)
        for name, value in one_after_the_other.state.items():
            torch.testing.assert_close(trained.state[name], value, rtol=0, atol=1e-10)
        assert (trained.epochs == one_after_the_other.epochs).all()
        assert trained.status == one_after_the_other.status
        first = stacks.index(stacks[0], 1)  # the second epoch of the first stack
        assert len(set(stacks[:first])) == (1 if limit == 1.0 else 4)  # plain, mixup, twins, limited


@pytest.mark.parametrize("limit", [1.0, 5e4, 1e5, 2e5, 1e9])
def test_groups_share_the_memory_that_there_is(limit, monkeypatch):
    monkeypatch.setattr(_train, "AT_ONCE", ("cpu",))
    network = WORLDS["fcn"][0]
    settings = Settings(torch.device("cpu"), torch.float32)
    sizes = _train._Sizes(network, settings, 3, 20)
    kinds = [_train._Kind(100, 20, *own) for own in ((False, False, False), (True, False, False), (False, True, False))]
    groups = dict(zip(kinds, (list(range(12)), [12, 13], [14, 15, 16]), strict=True))
    queues = sizes.queues(groups, limit)
    assert sorted(i for chunks in queues for chunk in chunks for i in chunk) == list(range(17))
    if len(queues) == 1:  # at least one model at a time, however little there is
        assert limit * 2 / 17 < max(map(sizes.bytes_of, kinds))
    else:
        largest = [max(map(len, chunks)) * sizes.bytes_of(kind) for chunks, kind in zip(queues, kinds, strict=True)]
        assert sum(largest) <= limit
    monkeypatch.setattr(_train, "AT_ONCE", ())
    assert len(sizes.queues(groups, limit)) == 1


def test_trained_models_predict_as_their_modules():
    for network, (X, y) in WORLDS.values():
        tasks = make_tasks(network, X, y, [ColdStart(), Distill(0.5)])
        trained = train(network, X, tasks, epochs=2, device="cpu", dtype="float64")
        inputs = torch.as_tensor(X)
        for i in range(2):
            expected = trained.module(i)(inputs).detach().numpy()
            np.testing.assert_allclose(trained.logits(X)[i], expected, atol=1e-9)
        np.testing.assert_allclose(trained.proba(X).sum(axis=-1), 1)
        assert (trained.predict(X) == trained.logits(X).argmax(-1)).all()


def test_a_base_is_taken_from_an_earlier_training():
    network, (X, y) = WORLDS["fcn"]
    first = train(network, X, make_tasks(network, X, y, [ColdStart(), ColdStart()]), epochs=2, device="cpu")
    rows = np.arange(50)
    tasks = strategy_tasks(
        [WarmStart(), ShrinkPerturb(0.5)],
        rows=rows,
        y=y,
        classes=3,
        validation=np.arange(50, 90),
        seed=3,
        base=(first, 1),
    )
    untouched = train(network, X, tasks, epochs=1, learning_rate=0.0, device="cpu")
    for name, value in untouched.state.items():
        torch.testing.assert_close(value[0], first.state[name][1])
        assert not torch.equal(value[1], first.state[name][1])


def test_float32_is_close_to_float64():
    network, (X, y) = WORLDS["fcn wide"]
    tasks = make_tasks(network, X, y, SETTINGS)
    single = train(network, X, tasks, epochs=5, device="cpu")
    double = train(network, X, tasks, epochs=5, device="cpu", dtype="float64")
    assert single.state["hidden.weight"].dtype == torch.float32
    np.testing.assert_allclose(single.loss, double.loss, rtol=1e-3)


def test_a_diverging_model_fails_by_itself():
    network, (X, y) = WORLDS["fcn"]
    tasks = make_tasks(network, X, y, [ColdStart(), WarmStart(), ColdStart()])
    broken = {name: value * np.nan for name, value in tasks[1].start.items()}
    alone = train(network, X, [tasks[0], tasks[2]], epochs=3, device="cpu", dtype="float64")
    tasks[1] = Task(**vars(tasks[1]) | {"start": broken})
    trained = train(network, X, tasks, epochs=3, device="cpu", dtype="float64")
    assert trained.status == ["finished", "failed: validation loss is not finite after epoch 1", "finished"]
    torch.testing.assert_close(trained.state["hidden.weight"][[0, 2]], alone.state["hidden.weight"], rtol=0, atol=0)


def test_ctrl_c_leaves_finished_models_usable(monkeypatch):
    network, (X, y) = WORLDS["fcn"]
    tasks = make_tasks(network, X, y, [ColdStart(), Mixup(0.4)])  # two stacks, one after the other
    from lowchurn.nets._stacks._fcn import CpuFcnStack

    train_epoch = CpuFcnStack.train_epoch

    def interrupted(self, batches):
        if batches.mix is not None:
            raise KeyboardInterrupt
        train_epoch(self, batches)

    monkeypatch.setattr(CpuFcnStack, "train_epoch", interrupted)
    with pytest.raises(TrainingInterrupted, match="1 of 2 models") as caught:
        train(network, X, tasks, epochs=2, device="cpu", dtype="float64")
    trained = caught.value.trained
    assert trained.status == ["finished", "interrupted"]
    assert np.isfinite(trained.logits(X)[0]).all()


def test_the_paper_says_distillation_changes_fewer_predictions():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(3000, 10)).astype("float32")
    y = ((X[:, :5] ** 2).sum(axis=1) + rng.normal(size=3000) > 5).astype(int)
    network = fcn(100, inputs=10, classes=2)
    trials, test = 6, slice(1500, None)
    validation = np.arange(1300, 1500)
    common = {"y": y, "classes": 2, "validation": validation}
    bases = train(
        network,
        X,
        [t for k in range(trials) for t in strategy_tasks([ColdStart()], rows=np.arange(600), seed=k, **common)],
        device="cpu",
    )
    rows = np.arange(1200)
    teachers = bases.proba(X[rows])
    methods = [
        ColdStart(),
        Distill(0.5, start="warm"),
        *(paper_grid(cls)[4 % len(paper_grid(cls))] for cls in strategies.PAPER),
    ]
    tasks = [
        t
        for k in range(trials)
        for t in strategy_tasks(methods, rows=rows, seed=100 + k, base=(bases, k), base_proba=teachers[k], **common)
    ]
    trained = train(network, X, tasks, device="cpu")
    assert set(trained.status) == {"finished"}
    predicted = trained.predict(X[test]).reshape(trials, len(methods), -1)
    before = bases.predict(X[test])[:, None]
    churn = (predicted != before).mean(axis=(0, 2))
    accuracy = (predicted == y[test]).mean(axis=(0, 2))
    assert churn[1] < 0.75 * churn[0]
    assert accuracy[1] > accuracy[0] - 0.01


BAD = {
    "validation must be a list of at least one row": {"validation": np.array([], dtype=int)},
    "rows must lie in 0 to 149, got 0 to 900": {"rows": np.array([0, 900])},
    "targets must have shape .110, classes.": {"targets": np.ones((3, 3))},
    "targets must be finite": {"targets": np.full((110, 3), np.nan)},
    "weights must contain 110 finite": {"weights": -np.ones(110)},
    "base_share is 1.0, but there is no start": {"base_share": 1.0},
    "same number of classes": {"targets": np.ones((110, 2))},
    "limit is 0.1, but there is no pull": {"limit": 0.1},
    r"limit must be in \[0, 1\], got 2.0": {"limit": 2.0, "pull": np.ones((110, 3))},
    "pull must have shape .110, classes.": {"limit": 0.1, "pull": np.ones((3, 3))},
    "targets and pull must have the same number": {"limit": 0.1, "pull": np.ones((110, 2))},
}


@pytest.mark.parametrize(("message", "change"), BAD.items(), ids=list(BAD))
def test_bad_tasks_are_refused_before_training(message, change):
    network, (X, y) = WORLDS["fcn"]
    (task,) = make_tasks(network, X, y, [ColdStart()])
    with pytest.raises(ValueError, match=f"train: task 0: .*{message}"):
        train(network, X, [Task(**vars(task) | change)], device="cpu")


def test_bad_calls_are_refused_before_training():
    network, (X, y) = WORLDS["fcn"]
    tasks = make_tasks(network, X, y, [ColdStart()])
    with pytest.raises(ValueError, match="must give logits of shape .rows, classes., here .2, 3., got .2, 4."):
        train(fcn(4, inputs=5, classes=4), X, tasks, device="cpu")
    with pytest.raises(ValueError, match="does not take rows of shape"):
        train(fcn(4, inputs=9, classes=3), X, tasks, device="cpu")
    with pytest.raises(ValueError, match="device 'cuda:77' is not there"):
        train(network, X, tasks, device="cuda:77")
    with pytest.raises(ValueError, match="device must be"):
        train(network, X, tasks, device="abacus")
    with pytest.raises(ValueError, match="loss must be one of"):
        train(network, X, tasks, loss="huber")
    with pytest.raises(ValueError, match="patience must be a whole number"):
        train(network, X, tasks, patience=0)
    with pytest.raises(ValueError, match="at least one task"):
        train(network, X, [], device="cpu")
    with pytest.raises(ValueError, match="X must have at least one row"):
        train(network, X[:0], tasks, device="cpu")
    with pytest.raises(ValueError, match="network must be a torch module"):
        train(lambda: 3, X, tasks, device="cpu")
    with pytest.raises(ValueError, match="starts from the base's weights"):
        strategy_tasks([WarmStart()], rows=[0], y=[0, 1], classes=2, validation=[1], seed=0)
    with pytest.raises(ValueError, match="is an average of trained models and not trained itself"):
        strategy_tasks([Soup()], rows=[0], y=[0, 1], classes=2, validation=[1], seed=0)
    with pytest.raises(ValueError, match="learns from teachers, but teacher_proba is None"):
        strategy_tasks([TwoTeachers()], rows=[0], y=[0, 1], classes=2, validation=[1], seed=0, base_proba=[[0.5, 0.5]])

    class Unresettable(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(5, 3))

        def forward(self, x):
            return x @ self.weight.to(x.dtype)

    with pytest.raises(ValueError, match="Hand in a function"):
        train(Unresettable(), X, tasks, device="cpu")
    assert train(Unresettable, X, tasks, epochs=1, device="cpu").status == ["finished"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mixing": -1.0}, "mixing must be in"),  # its draws would never end
        ({"mixing": float("inf")}, "mixing must be in"),
        ({"mixing": float("nan")}, "mixing must be in"),
        ({"coupling": 1.5}, "coupling must be in"),
        ({"base_share": float("nan")}, "base_share must be in"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"seed": None}, "seed must be a whole number"),
        ({"targets": [["a", "b"]] * 3}, "targets must contain numbers"),
        ({"targets": np.ones((3, 2)) * 1j}, "targets must contain numbers"),
        ({"weights": ["a"] * 3}, "weights must contain numbers"),
        ({"start": {}, "base_share": 1.0}, "hidden.weight has shape .* got none"),
        ({"start": "base", "base_share": 1.0}, "start must be a training"),
    ],
)
def test_tasks_that_cannot_be_trained_are_named(change, message):
    whole = {"rows": [0, 1, 2], "targets": np.eye(2)[[0, 1, 0]], "validation": [3], "validation_targets": [[0, 1]]}
    with pytest.raises(ValueError, match=f"train: task 1: .*{message}"):
        train(fcn(4, inputs=2, classes=2), np.eye(4)[:, :2], [Task(**whole), Task(**(whole | change))], device="cpu")


def test_a_start_is_of_the_same_network():
    """Other weights would be trained in the place of the network's own."""
    whole = {"rows": [0, 1, 2], "targets": np.eye(2)[[0, 1, 0]], "validation": [3], "validation_targets": [[0, 1]]}
    X = np.eye(4)[:, :2]
    base = train(fcn(5, inputs=2, classes=2), X, [Task(**whole)], device="cpu", epochs=1)
    for start in ((base, 0), base.state_dict(0)):
        with pytest.raises(ValueError, match="weights of the same network"):
            train(fcn(4, inputs=2, classes=2), X, [Task(**whole, start=start, base_share=1.0)], device="cpu")
    for model in (1, -1, 0.5):
        with pytest.raises(ValueError, match="the number of one of its models"):
            train(fcn(5, inputs=2, classes=2), X, [Task(**whole, start=(base, model), base_share=1.0)], device="cpu")


@pytest.mark.parametrize(
    "change",
    [{"epochs": True}, {"patience": 10**30}, {"learning_rate": float("nan")}, {"learning_rate": "fast"},
     {"learning_rate": -1.0}, {"memory_limit": float("nan")}, {"memory_limit": 0}, {"device": None}],
)  # fmt: skip
def test_settings_of_a_training_are_checked(change):
    task = Task([0, 1], np.eye(2), [2], [[0, 1]])
    with pytest.raises(ValueError, match=f"train: {next(iter(change))}"):
        train(fcn(4, inputs=2, classes=2), np.eye(3)[:, :2], [task], **({"device": "cpu"} | change))


def test_tasks_may_come_from_a_generator():
    """Arrays are checked once by their identity, which another array may take over once the first is gone."""
    X = np.eye(6)

    def task(k):
        return Task(np.array([k, 5]), np.eye(2)[[k % 2, 0]], np.array([k]), np.eye(2)[[k % 2]], seed=1)

    options = {"epochs": 2, "device": "cpu", "dtype": "float64"}
    listed, made = (train(fcn(4, inputs=6, classes=2), X, tasks, **options)
                    for tasks in ([task(k) for k in range(5)], (task(k) for k in range(5))))  # fmt: skip
    assert listed.loss.tolist() == made.loss.tolist()


@pytest.mark.parametrize("kind", [">f4", "longdouble", "object"])
def test_rows_of_every_type_of_number_are_read(kind):
    X = np.eye(3)[:, :2]
    task = Task([0, 1], np.eye(2), [2], [[0, 1]])
    plain, other = (
        train(fcn(4, inputs=2, classes=2), rows, [task], device="cpu", epochs=np.int64(1))
        for rows in (X, X.astype(kind))
    )
    assert plain.logits(X).tolist() == other.logits(X).tolist()


@pytest.mark.parametrize("X", [[["a", "b"]], [[None, {}]], None])
def test_rows_that_are_no_numbers_are_refused(X):
    with pytest.raises(ValueError, match="train: X must"):
        train(fcn(4, inputs=2, classes=2), X, [Task([0], [[1, 0]], [0], [[1, 0]])], device="cpu")
