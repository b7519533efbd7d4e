"""``lowchurn audit --value``: verdicts, files, settings, and every kind of bad input."""

import json
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from lowchurn import cli
from lowchurn._pytest_plugin import churn_gate  # noqa: F401 - a fixture
from lowchurn.audit import Gate, audit
from lowchurn.audit._summary import markdown
from tests.audit.numbers import make_numbers, paired
from tests.audit.test_schema import validate

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")
FILES = ("--html", "a.html", "--json", "a.json", "--junit", "a.xml", "--markdown", "a.md")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    old, new = make_numbers(400)
    old.to_parquet(tmp_path / "old.parquet")
    new.to_parquet(tmp_path / "new.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lowchurn(folder, monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["lowchurn", "audit", "old.parquet", "new.parquet", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return SimpleNamespace(code=left.value.code or 0, out=said.out, err=said.err)

    return call


@pytest.mark.parametrize(
    ("limits", "code", "outcome"),
    [
        (("--max-moved", "0.9"), 0, "PASS"),
        (("--max-moved", "0.1"), 1, "FAIL"),
        (("--max-worse", "0.9", "--max-moved", "0.9"), 0, "PASS"),
        (("--max-worse", "0.05"), 1, "FAIL"),
        (("--not-worse-than", "7.5"), 0, "PASS"),  # in units of the loss, which may be more than 1
        (("--not-worse-than", "0.05"), 3, "INCONCLUSIVE"),
        (("--not-worse-than", "0.05", "--inconclusive", "warn"), 0, "INCONCLUSIVE"),
        (("--slice-max-moved", "0.99", "--by", "country"), 0, "PASS"),
        (("--never-break", "country=fr", "--by", "country"), 1, "FAIL"),
    ],
)
def test_verdicts_are_exit_codes(lowchurn, limits, code, outcome):
    done = lowchurn("--value", "yhat", "--target", "y", "--tolerance", "0.2", *limits)
    assert (done.code, outcome in done.out) == (code, True), done.out + done.err


def test_every_output(folder, lowchurn):
    options = ("--value", "yhat", "--target", "y", "--tolerance", "0.2", "--by", "country", "--weight", "w")
    done = lowchurn(*options, "--max-moved", "0.1", "--not-worse-than", "0.5", *FILES)
    assert done.code == 1
    read = validate((folder / "a.json").read_text())
    assert (read["kind"], read["compared"]["tolerance"]) == ("numbers", 0.2)
    rows = paired(*make_numbers(400), weight="w")
    assert read["estimates"]["moved"]["value"] == pytest.approx(np.average(rows.move.abs() > 0.2, weights=rows.weight))
    assert read["verdict"]["checks"][0]["measured"].startswith(f"{100 * read['estimates']['moved']['value']:.2f} %")
    assert len(read["biggest_moves"]) == min(300, (rows.move.abs() > 0.2).sum())
    suite = ElementTree.fromstring((folder / "a.xml").read_text())
    assert [case.get("name") for case in suite] == ["max_moved", "not_worse_than"]
    assert suite.get("failures") == "1"
    text = (folder / "a.md").read_text()
    assert "| FAIL | all rows | `max_moved` | 10.00 % |" in text
    assert "change in the mean absolute error" in text
    page = (folder / "a.html").read_text()
    assert "How numbers moved" in page
    assert "Flip matrix" not in page


def test_a_file_of_settings(folder, lowchurn):
    (folder / "lowchurn.toml").write_text(
        '[audit]\nvalue = "yhat"\ntarget = "y"\ntolerance = 0.2\nby = ["country"]\n'
        "[gate]\nmax_moved = 0.9\nnot_worse_than = 2\n[gate.slices.country]\nmax_worse = 0.9\n"
    )
    done = lowchurn("--json", "a.json")
    assert done.code == 0, done.out
    read = json.loads((folder / "a.json").read_text())
    assert {"value", "tolerance", "gate.max_moved", "gate.slices.country.max_worse"} <= {
        *read["provenance"]["from_config"]
    }
    assert len(read["verdict"]["checks"]) == 5
    assert lowchurn("--max-moved", "0.01").code == 1


BAD = [
    (("--value", "yhta"), "unknown value column in the old table 'yhta'. Did you mean 'yhat'?"),
    (("--value", "yhat", "--target", "why"), "unknown target column 'why'. Did you mean"),
    (("--value", "yhat", "--loss", "costs"), "unknown loss column in the old table 'costs'"),
    (("--value", "country"), "value column 'country' must hold numbers, got text in the old table"),
    (("--value", "yhat", "--target", "country"), "target column 'country' must hold numbers, got text"),
    (("--value", "yhat", "--tolerance", "-0.1"), "--tolerance must be in [0, inf), got -0.1."),
    (("--value", "yhat", "--tolerance", "nan"), "--tolerance must be in [0, inf), got nan."),
    (("--value", "yhat", "--tolerance", "inf"), "--tolerance must be in [0, inf), got inf."),
    (("--value", "yhat", "--label", "y"), "--label is for decisions and --value for numbers. The truth of numbers"),
    (("--value", "yhat", "--prediction", "y"), "--prediction is for decisions and --value for numbers."),
    (("--value", "yhat", "--class", "a", "--class", "b"), "--class is for decisions and --value for numbers."),
    (("--value", "yhat", "--score", "y"), "--score is for decisions and --value for numbers."),
    (("--value", "yhat", "--threshold", "0.3"), "--threshold is for decisions and --value for numbers."),
    (
        ("--value", "yhat", "--target", "y", "--loss", "y"),
        "give one of --target, --loss and --gain, got target and loss",
    ),
    (("--target", "y"), "--target is about numbers. Name their column with --value."),
    (("--prediction", "yhat", "--tolerance", "0.1"), "--tolerance is about numbers. Name their column with --value."),
    (("--value", "yhat", "--max-churn", "0.1"), "--max-churn is no limit of numbers. Use --max-moved;"),
    (("--value", "yhat", "--slice-max-broken", "0.1", "--by", "country"), "--max-broken is no limit of numbers. Use"),
    (("--prediction", "age", "--max-worse", "0.1"), "--max-worse is no limit of decisions. Use --max-broken;"),
    (("--prediction", "age", "--not-worse-than", "5"), "--not-worse-than must be in [0, 1], got 5.0. It is a share"),
    (("--value", "yhat", "--not-worse-than", "-1"), "--not-worse-than must be in [0, inf), got -1.0."),
    (("--value", "yhat", "--max-moved", "5"), "--max-moved must be in [0, 1], got 5.0. It is a share: 5 percent"),
    (("--value", "yhat", "--disputed", "d.csv"), "--disputed is about decisions, and these are numbers."),
    (("--value", "yhat", "--margin", "0.1"), "--margin is about decisions, and these are numbers."),
    (("--value", "yhat", "--never-break", "99"), "unknown slice or id to never break '99'"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[" ".join(options) for options, _ in BAD])
def test_bad_input_is_one_line_exit_code_2_and_no_file(folder, lowchurn, options, words):
    before = sorted(folder.iterdir())
    limits = () if "junit" in options or any("-moved" in o or "-wors" in o for o in options) else ("--min-rows", "1")
    done = lowchurn(*options, *limits, *FILES)
    assert (done.code, done.out) == (2, ""), done.out
    assert words in done.err
    assert done.err.count("\n") == 1
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"yhat": np.nan}, r"1 of 40 rows of the new table have no value \(column 'yhat'\)"),
        ({"yhat": np.inf}, "column 'yhat' of the new table must hold finite numbers .* 1 are not, such as those of 5"),
        ({"yhat": -np.inf}, "column 'yhat' of the new table must hold finite numbers"),
        ({"yhat": 1e200}, "column 'yhat' of the new table must hold finite numbers up to 1e\\+100"),
        ({"y": np.inf}, "column 'y' of the target must hold finite numbers"),
        ({"y": 17.0}, "the two tables have different targets for 1 ids, such as 5. Keep the target column in one"),
        ({"cost": np.inf}, "column 'cost' of the new table must hold finite numbers"),
    ],
)
def test_values_that_are_no_numbers_are_refused(change, words):
    old = pd.DataFrame({"id": range(40), "yhat": 1.0, "y": 2.0, "cost": 1.0})
    new = old.copy()
    for name, value in change.items():
        new.loc[5, name] = value
        if name == "y" and np.isinf(value):
            old.loc[5, name] = value
    with pytest.raises(ValueError, match=words):
        audit(old, new, value="yhat", **({"loss": "cost"} if "cost" in change else {"target": "y"}))
    if "yhat" in change and np.isnan(change["yhat"]):
        assert audit(old, new, value="yhat", on_mismatch="inner").rows.paired == 39


def test_arguments_that_are_no_columns():
    old = pd.DataFrame({"id": range(4), "yhat": 1.0, "flag": [True, False] * 2})
    for arguments, words in (
        ({"value": 3}, "value must be a column name or a pair of them, got 3"),
        ({"value": ("yhat", "yhat", "yhat")}, "give one value for all tables or one for each of old, new"),
        ({"value": "flag"}, "value column 'flag' must hold numbers, got boolean .* Truth values are decisions"),
        ({"value": "yhat", "relative": "yes"}, "relative must be True or False, got 'yes'"),
        ({"value": "yhat", "tolerance": "0.1"}, "tolerance must be in"),
        ({"loss": "yhat", "gain": "yhat"}, "give one of target=, loss= and gain=, got loss and gain"),
    ):
        with pytest.raises(ValueError, match=words):
            audit(old, old, **arguments)
    with pytest.raises(ValueError, match="set at least one limit: max_moved, max_worse, not_worse_than, min_rows"):
        audit(old, old, value="yhat").gate()


def test_missing_targets_and_losses_count_for_moves_only():
    old, new = make_numbers(60)
    old["cost"] = np.where(old.index < 20, np.nan, 1.0)
    new = new.assign(cost=2.0)
    found = audit(old, new, value="yhat", loss="cost")
    assert (found.moved.n, found.loss_change.n, found.loss_change.value) == (60, 40, 1.0)
    empty = audit(old.assign(y=np.nan), new.drop(columns="cost"), value="yhat", target="y")
    assert (empty.moved.n, empty.loss_change.defined) == (60, False)
    validate(empty.to_json())


def test_rows_that_must_not_get_worse():
    old = pd.DataFrame({"id": ["a", "b", "c"], "yhat": [1.0, 2.0, 3.0], "y": [1.0, 2.0, np.nan]})
    new = old[["id"]].assign(yhat=[1.05, 2.5, 9.0])
    found = audit(old, new, value="yhat", target="y", tolerance=0.1)
    verdict = found.gate(never_break=["a", "b", "c"])
    assert [check.outcome for check in verdict.checks] == ["PASS", "FAIL", "INCONCLUSIVE"]
    assert "1 of 1 rows got worse by more than the tolerance, none may" in verdict.checks[1].words
    assert "no row of it has a target or a loss" in verdict.checks[2].words


def test_the_rows_that_are_asked_for_would_settle_it():
    rng = np.random.default_rng(0)

    def verdict(n):
        old = pd.DataFrame({"id": range(n), "loss": rng.normal(10, 1, n)})
        return audit(old, old.assign(loss=old.loss + rng.normal(0.1, 1, n)), loss="loss").gate(not_worse_than=0.2)

    small = verdict(100)
    assert small.outcome == "INCONCLUSIVE"
    (check,) = small.checks
    assert 50 < check.more_rows < 5000
    assert verdict(int(100 + 3 * check.more_rows)).outcome == "PASS"


def test_slices_of_numbers_fail_on_widened_intervals():
    rng = np.random.default_rng(1)
    by = np.repeat([f"s{i}" for i in range(40)], 50)
    old = pd.DataFrame({"id": range(2000), "loss": 0.0, "s": by})
    new = old[["id"]].assign(loss=rng.normal(0, 1, 2000))
    found = audit(old, new, loss="loss", by="s")
    plain = [s for s in found.slices if s.loss_change.low > 0]
    failed = [c for c in found.gate(slices={"*": {"not_worse_than": 0.0}}).checks if c.outcome == "FAIL"]
    assert len(failed) < len(plain) or not plain
    assert Gate(slices={"s": {"not_worse_than": 3.0}}).slices["s"].not_worse_than == 3.0


def test_names_from_data_stay_in_their_cells():
    old = pd.DataFrame({"id": range(30), "cost | a": 1.0, "s": ["<b>|*", "x"] * 15})
    found = audit(old, old.assign(**{"cost | a": 2.0}), gain="cost | a", by="s")
    for line in markdown(found, found.gate(not_worse_than=0.5)).splitlines():
        if line.startswith("| ") and "figure" in line:
            assert line.count("|") - line.count("\\|") == 4
    assert "<b>" not in markdown(found)


def test_pytest_has_the_same_gate(churn_gate):  # noqa: F811
    old, new = make_numbers(100)
    assert (
        churn_gate(old, new, value="yhat", target="y", tolerance=0.5, max_moved=0.9, not_worse_than=5.0).moved.n == 100
    )
    with pytest.raises(pytest.fail.Exception, match="moved numbers"):
        churn_gate(old, new, value="yhat", max_moved=0.01)
