"""Churn measured on rows of traffic, in retrains and on the dial, from files."""

import numpy as np
import pytest

import lowchurn
from tests.retrain.conftest import FEATURES, make_rows


@pytest.mark.parametrize("traffic", ["rows.csv", "rows.parquet"])
def test_churn_is_measured_on_traffic(folder, week, tmp_path, score, traffic):
    result = score(
        "--data", folder / "data.parquet", "--target", "y", "--drop", "id", "--base", folder / "prod.skops",
        "--max-churn", "0.05", "--strategies", "sticky", "--traffic", folder / traffic, "--out", "next.skops",
        "--report", "report.json", command="retrain",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "300 rows of traffic" in result.stdout
    model, base = lowchurn.load(tmp_path / "next.skops"), lowchurn.load(folder / "prod.skops")
    churn = (model.predict(week[FEATURES]) != base.predict(week[FEATURES])).mean()
    assert model.selection_.churn == pytest.approx(churn)
    assert f'"traffic": "{folder / traffic}"' in (tmp_path / "report.json").read_text()
    half = week[:150].assign(other=1)
    half.to_csv(tmp_path / "today.csv", index=False)
    result = score("next.skops", "--max-churn", "0.1", "--traffic", "today.csv", "--out", "today.skops", command="dial")
    assert result.returncode == 0, result.stderr
    assert "150 rows of traffic" in result.stdout
    today = lowchurn.load(tmp_path / "today.skops")
    expected = model.dial(0.1, traffic=half[FEATURES])
    np.testing.assert_array_equal(today.predict_proba(week[FEATURES]), expected.predict_proba(week[FEATURES]))


@pytest.mark.parametrize(
    ("command", "change", "words"),
    [
        (
            "retrain",
            {"--traffic": "lacks.csv"},
            "the rows of --traffic lack 2 of 4 columns of the data: 'shop', 'flag'",
        ),
        ("retrain", {"--traffic": "nowhere.csv"}, "--traffic must be a file that is there"),
        ("retrain", {"--out": "lacks.csv"}, "--out must not overwrite --traffic"),
        (
            "dial",
            {"--traffic": "lacks.csv"},
            "dial: the rows of --traffic lack 2 of 4 columns that the model was fitted",
        ),
        ("dial", {"--traffic": "empty.csv"}, "'empty.csv' has no rows"),
        ("dial", {"--out": "lacks.csv"}, "--out must not overwrite --traffic"),
    ],
    ids=str,
)
def test_traffic_that_is_none(folder, week, tmp_path, score, command, change, words):
    week[["id", "age", "size"]].to_csv(tmp_path / "lacks.csv", index=False)
    week[:0].to_csv(tmp_path / "empty.csv", index=False)
    options = {"--max-churn": "0.05", "--traffic": "lacks.csv", "--out": "next.skops", **change}
    if command == "retrain":
        options |= {"--data": folder / "data.parquet", "--target": "y", "--drop": "id", "--base": folder / "prod.skops"}
    model = [folder / "sticky.skops"] if command == "dial" else []
    result = score(*model, *[each for pair in options.items() for each in pair], command=command)
    assert result.returncode == 2
    assert words in result.stderr, result.stderr
    assert not (tmp_path / "next.skops").exists()


def test_one_model_takes_the_place_of_two(folder, week, tmp_path, score):
    asked = ["--data", folder / "data.parquet", "--target", "y", "--drop", "id", "--base", folder / "prod.skops"]
    asked += ["--max-churn", "0.1", "--strategies", "sticky", "--out", "next.skops"]
    result = score(*asked, "--compress", command="retrain")
    assert result.returncode == 0, result.stderr
    model = lowchurn.load(tmp_path / "next.skops")
    assert model.compress
    assert (model.selection_.models == 1) == ("Compressed from 2 models" in result.stdout)
    if model.selection_.models > 1:
        assert "--compress: no compressed model keeps --max-churn 0.1" in result.stderr


def test_digits_are_text_in_traffic_where_the_data_have_words(folder, tmp_path, score):
    """Nothing in the base tells it: boosted trees of a first training take words as categories."""
    data = make_rows(300, 1).assign(shop=lambda rows: rows["shop"].replace("9", "nine"))
    data.drop(columns="id").to_csv(tmp_path / "data.csv", index=False)
    data[data["shop"] != "nine"].drop(columns=["id", "y"]).to_csv(tmp_path / "recent.csv", index=False)
    first = ["--data", "data.csv", "--target", "y", "--estimator", "logistic"]
    assert score(*first, "--out", "first.skops", command="retrain").returncode == 0
    result = score(*first, "--base", "first.skops", "--max-churn", "0.1", "--traffic", "recent.csv", "--out",
                   "next.skops", command="retrain")  # fmt: skip
    assert result.returncode == 0, result.stderr
