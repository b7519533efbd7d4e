"""Plans: what they contain, what is run of them on the data that is here, and that they go on where they stopped."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lowchurn.bench import _blocks as blocks_module
from lowchurn.bench import _plans, settings_of
from lowchurn.bench._datasets import names_of
from lowchurn.bench._plans import PLANS, Part, choose_parts, works
from lowchurn.bench._protocol import Protocol
from lowchurn.bench._store import Store, opened_store
from lowchurn.strategies import Sticky, paper_grid, plan
from tests.bench.test_commands import lowchurn  # noqa: F401

SMALL = {"initial": 12, "batch": 10, "epochs": 1}


def test_the_papers_second_half():
    """The experiments of the paper's second half: (network, initial size) -> data sets and trials."""
    parts = {
        name: {(p.protocols[0].network, p.protocols[0].initial): (len(p.datasets), p.trials) for p in PLANS[name]}
        for name in ("table2", "celeba", "resnet", "imdb", "squared")
    }
    sizes = [f"convnet-{2**k}" for k in range(5)]
    assert parts["table2"].pop(("convnet-4", 1000)) == (12, 100)
    others = {(n, i) for n in sizes for i in (100, 1000)} - {("convnet-4", 1000)} | {("convnet-4", 10000)}
    assert parts["table2"] == dict.fromkeys(others, (12, 10))
    assert parts["celeba"] == {(n, i): (40 if n == "convnet-4" else 10, 10) for n in sizes for i in (100, 1000)} | {
        ("convnet-4", 10000): (40, 10)
    }
    assert parts["resnet"] == {("resnet-50", 1000): (2, 5), ("resnet-101", 1000): (2, 2), ("resnet-152", 1000): (2, 2)}
    assert parts["imdb"].pop(("transformer-1", 1000)) == (1, 100)
    assert Counter(parts["imdb"].values()) == {(1, 10): 9, (1, 5): 5}
    assert parts["squared"] == {("fcn-1000", 1000): (12, 100)}
    assert {(p.protocols[0].loss, p.protocols[0].scale) for p in PLANS["squared"]} == {
        ("squared", False),
        ("squared", True),
    }
    for name in parts:
        for part in PLANS[name]:
            assert part.name == f"{part.protocols[0].network}-{part.protocols[0].initial}"
            validation = (1000, 500) if part.protocols[0].initial == 10000 else (100,)
            assert tuple(protocol.validation for protocol in part.protocols) == validation


def test_few_trainings_are_added_to_the_papers():
    paper, both = (plan(some).trainings for some in (settings_of(["paper"]), PLANS["table2"][0].settings))
    assert (len(paper), len(both)) == (74, 88)  # 7 more from the base and 7 more afresh
    assert {s.name for s in PLANS["celeba"][0].settings} > {"cold", "distill", "soup", "sticky"}


def test_networks_that_take_long_have_a_coarse_grid_which_a_later_run_completes():
    """A third of each method's settings, all of them of the whole grid: what is trained is never trained again."""
    coarse, whole = settings_of(["coarse"]), settings_of(["paper", "sticky"])
    assert set(coarse) < set(whole)
    count = Counter(s.name for s in coarse)
    assert count.pop("sticky") == 4 * len(paper_grid(Sticky))  # one retrain: cold, with the base, warm, with trust
    assert (count.pop("anchor"), count.pop("cold"), count.pop("warm")) == (6, 1, 1)
    assert set(count.values()) == {3}
    assert len(count) == 5
    assert len(plan(coarse).trainings) == 23
    parts = {part.name for name in PLANS for part in PLANS[name] if part.strategies == ("coarse",)}
    assert parts == {
        *("convnet-16-1000", "convnet-16-100", "resnet-101-1000", "resnet-152-1000"),
        *(f"transformer-{n}-{size}" for n in (8, 16) for size in (100, 1000, 10000)),
    }
    assert all(part.strategies != ("coarse",) for part in PLANS["table2"])


def test_every_plan_has_settings_and_protocols():
    for parts in PLANS.values():
        assert parts
        for part in parts:
            assert part.settings
            assert part.datasets
            assert part.trials > 0
    assert {part.protocols[0].scale for part in PLANS["dial"]} == {True, False}
    assert [part.start for part in PLANS["raw"]] == ["warm", "cold"]
    assert len(PLANS["ablation"][0].settings) == 100


def test_some_of_a_plan_with_other_trials():
    (part,) = choose_parts("table2", parts=["convnet-8-100"], datasets=["kmnist", "svhn"], trials=3, epochs=2, seed=7)
    assert (part.name, part.datasets, part.trials) == ("convnet-8-100", ("kmnist", "svhn"), 3)
    assert part.protocols == (Protocol("convnet-8", 100, epochs=2, seed=7),)
    part, _ = choose_parts("squared", start="cold", strategies=["distill"])
    assert {(s.name, s.start) for s in part.settings} == {("distill", "cold")}
    assert len(choose_parts("celeba", datasets=["celeba_young"])) == 3  # in no part of ten tasks
    assert choose_parts("celeba", datasets=["celeba"])[0].datasets == names_of("celeba")
    with pytest.raises(ValueError, match="unknown plan 'tabel2'. Did you mean 'table2'"):
        choose_parts("tabel2")
    with pytest.raises(ValueError, match="unknown part of table2 'convnet-4'. Did you mean 'convnet-4-100' or"):
        choose_parts("table2", parts=["convnet-4"])
    with pytest.raises(ValueError, match="unknown data set of imdb 'mnist'"):
        choose_parts("imdb", datasets=["mnist"])


def test_each_data_set_takes_the_first_protocol_that_it_has_rows_for(made_data):
    protocols = tuple(Protocol("convnet-1", 30, validation, 20) for validation in (20, 10))
    part = Part("part", ("mnist", "kmnist", "svhn", "cifar100"), protocols)
    told = []
    found = [
        (protocol.validation, [one.name for one in some]) for _, protocol, some in works([part], made_data, told.append)
    ]
    assert found == [(20, ["mnist"]), (10, ["svhn"])]
    assert told == ["Not here: cifar100.", "part: fewer than 60 training rows in kmnist (50)."]


def test_the_tasks_of_celeba_share_their_images_in_all_parts(made_data):
    parts = [Part(name, names_of("celeba"), (Protocol("convnet-1", 20, 10, 20),)) for name in "ab"]
    found = list(works(parts, made_data, print))
    assert [len(some) for *_, some in found] == [40, 40]
    assert len({id(one.X) for *_, some in found for one in some}) == 1
    assert len({one.fingerprint for one in found[0][2]}) == 40  # their labels differ


@pytest.fixture
def small_plans(monkeypatch):
    """The plans of the paper's second half as they are, but for smaller networks, sizes and settings."""

    def smaller(part):
        network = {"convnet": "convnet-1", "transformer": "transformer-1"}.get(part.name.split("-")[0], "fcn-4")
        protocols = tuple(replace(p, network=network, validation=p.validation // 20, **SMALL) for p in part.protocols)
        return replace(part, protocols=protocols, strategies=("cold", "warm"), trials=1)

    for name in ("table2", "celeba", "imdb"):
        monkeypatch.setitem(PLANS, name, [smaller(part) for part in PLANS[name][:2]])


def test_a_plan_goes_on_where_it_stopped(small_plans, made_data, lowchurn, monkeypatch):  # noqa: F811
    command = ("bench", "run", "table2", "--data", made_data, "--device", "cpu", "--part", "convnet-4-1000")
    with monkeypatch.context() as broken:
        real = blocks_module.run_trials

        def stops(data, protocol, wanted, **options):
            if data.name == "mnist":
                raise KeyboardInterrupt
            return real(data, protocol, wanted, **options)

        broken.setattr(blocks_module, "run_trials", stops)
        assert lowchurn(*command)[0] == 130
    before = len(Store("bench-store").rows())
    code, out, _ = lowchurn(*command)
    assert code == 0
    assert "Not here: fashion_mnist, emnist_balanced" in out
    assert "table2, convnet-4-1000: mnist, kmnist, svhn, cifar10; 1 trials" in out
    assert f"{8 - before} new rows, 0 failed, {before} were there." in out
    assert 0 < before < 8
    code, out, _ = lowchurn(*command)
    assert "0 new rows, 0 failed, 8 were there." in out


def test_plans_of_images_and_words_run_on_a_cpu(small_plans, made_data, lowchurn):  # noqa: F811
    code, out, errors = lowchurn("bench", "run", "imdb", "--data", made_data, "--device", "cpu")
    assert (code, errors) == (0, "")
    assert "2 new rows, 0 failed, 2 were there." in out  # two parts that are the same in this test
    some = ("celeba_bald", "celeba_young")
    code, out, _ = lowchurn("bench", "run", "celeba", *some, "--data", made_data, "--device", "cpu", "--trials", "2")
    assert "celeba, convnet-4-1000: celeba_bald, celeba_young; 2 trials" in out
    assert {row["dataset"] for row in Store("bench-store").rows()} == {"imdb", *some}


def test_a_plan_with_rows_in_one_order(small_plans, made_data, lowchurn):  # noqa: F811
    command = ("bench", "run", "table2", "mnist", "--data", made_data, "--device", "cpu", "--part", "convnet-4-1000")
    for more in ((), ("--one-order",)):
        code, out, errors = lowchurn(*command, *more)
        assert (code, errors) == (0, "")
        assert "2 new rows, 0 failed, 0 were there." in out
    assert [row["one_order"] for row in Store("bench-store").rows()] == [False, False, True, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table2", "--initial", 100), "--initial is part of a plan, such as table2"),
        (("table2", "--loss", "squared"), "--loss is part of a plan"),
        (("table2", "wine"), "unknown data set of table2 'wine'"),
        (("table2", "--part", "convnet-5-1000"), "unknown part of table2"),
        (("wine", "--part", "convnet-4-1000"), "--part is for plans"),
        (("tabel2",), "unknown plan or data set 'tabel2'. Did you mean 'table2'?"),
        (("wine", "digts"), "unknown plan or data set 'digts'. Did you mean 'digits'"),
        (("table2",), "no data set of table2 is here"),
        (("imdb", "--network", "transformer-1"), "imdb is not here"),  # with a network it is a data set
    ],
)
def test_what_a_plan_does_not_take_is_one_line(lowchurn, arguments, message):  # noqa: F811
    code, _, errors = lowchurn("bench", "run", *arguments, "--device", "cpu")
    assert code == 2
    assert message in errors
    assert len(errors.strip().splitlines()) == 1


def test_a_gpu_machine_runs_the_same_plans(made_data, tmp_path):
    script = Path(_plans.__file__).parents[3] / "benchmarks" / "gpu_tables.py"
    command = [sys.executable, str(script), "digits-convnet", "--inputs", str(made_data), "--out", str(tmp_path)]
    command += ["--parts", "dial", "--strategies", "cold", "--trials", "1", "--epochs", "1", "--device", "cpu"]
    for there in (0, 1):  # the second time everything is there
        made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        assert f"{{'there': {there}, 'new': {1 - there}, 'failed': 0}}" in made.stdout
    with opened_store(tmp_path / "digits-convnet.tar") as store:
        assert [row["dataset"] for row in store.rows()] == ["digit_images"]
