"""Scoring with files of other libraries: LightGBM, XGBoost, CatBoost and ONNX."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression


@pytest.fixture(scope="module")
def native(folder):
    """Models of other libraries with their own predictions, by the name of their file."""
    import catboost
    import lightgbm
    import xgboost
    from skl2onnx import to_onnx

    data = pd.read_parquet(folder / "data.parquet")
    X, y = data[["age", "size"]], data["y"].to_numpy()
    numbers = np.unique(y, return_inverse=True)[1]
    made = {
        "lgbm.txt": lightgbm.LGBMClassifier(n_estimators=8, verbose=-1).fit(X, numbers),
        "xgb.json": xgboost.XGBClassifier(n_estimators=8).fit(X, numbers),
        "xgb.ubj": xgboost.XGBClassifier(n_estimators=8).fit(X, numbers),
        "cat.cbm": catboost.CatBoostClassifier(iterations=8, verbose=0, allow_writing_files=False).fit(X, y),
    }
    made["lgbm.txt"].booster_.save_model(folder / "lgbm.txt")
    for name in list(made)[1:]:
        made[name].save_model(folder / name)
    linear = LogisticRegression().fit(X.to_numpy(), y)
    for name, options in (("zipped.onnx", {}), ("plain.onnx", {"zipmap": False})):
        raw = to_onnx(linear, X.to_numpy()[:1].astype(np.float32), options={id(linear): options})
        (folder / name).write_bytes(raw.SerializeToString())
        made[name] = linear
    return made


NATIVE = ["lgbm.txt", "xgb.json", "xgb.ubj", "cat.cbm", "zipped.onnx", "plain.onnx"]


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("data", ["rows.csv", "rows.parquet"])
def test_a_native_file_decides_plainly_and_changes_are_counted(folder, week, native, tmp_path, score, name, data):
    classes = ["low", "mid", "top"]
    rows = week[["age", "size"]]
    more = ["--drop", "shop", "--drop", "flag"] if name.endswith("onnx") else []  # it has no names of columns
    if name in ("lgbm.txt", "xgb.json", "xgb.ubj", "plain.onnx"):  # these files have no names of classes
        more += [each for label in classes for each in ("--class", label)]
    result = score("--model", folder / name, "--data", folder / data, "--previous", folder / "last.csv", "--out",
                   "this.parquet", *more)  # fmt: skip
    assert result.returncode == 0, result.stderr
    found, model = pd.read_parquet(tmp_path / "this.parquet"), native[name]
    rows = rows if hasattr(model, "feature_names_in_") or "cat" in name else rows.to_numpy()
    proba = model.predict_proba(rows)
    assert found["decision"].tolist() == [classes[k] for k in proba.argmax(axis=1)]
    np.testing.assert_allclose(found["probability"], proba.max(axis=1), atol=1e-5)
    last = pd.read_csv(folder / "last.csv").set_index("id")["decision"].loc[week["id"]].to_numpy()
    changed = found["decision"].to_numpy() != last
    assert found["changed"].tolist() == changed.tolist()
    assert f"{changed.sum()} of 300 decisions changed" in result.stdout
    assert (found["margin"][changed] > -1e-6).all()
    assert (found["margin"][~changed] < 1e-6).all()


def test_native_files_without_names_of_classes_have_numbers_or_ask_for_them(folder, native, tmp_path, score):
    result = score("--model", folder / "lgbm.txt", "--data", folder / "rows.csv", "--out", "this.csv")
    assert result.returncode == 0, result.stderr
    assert set(pd.read_csv(tmp_path / "this.csv")["decision"]) <= {0, 1, 2}
    drop = ["--drop", "shop", "--drop", "flag"]
    result = score("--model", folder / "plain.onnx", "--data", folder / "rows.csv", "--out", "no.csv", *drop)
    assert result.returncode == 2
    assert "has no names of its classes. Give them with --class, in the order of its outputs." in result.stderr
    assert not (tmp_path / "no.csv").exists()


@pytest.mark.parametrize(
    ("name", "classes", "words"),
    [
        ("lgbm.txt", ["low", "mid"], "--class must name each of the 3 classes"),
        ("cat.cbm", ["a", "b", "c"], "has the classes ['low', 'mid', 'top'], and classes are ['a', 'b', 'c']"),
        ("prod.skops", ["a", "b", "c"], "['low', 'mid', 'top'], got --class a --class b --class c. Leave them out."),
        ("plain.onnx", ["a", "b", "c"], "which is none of the classes ['a', 'b', 'c']. Give --class as it decides."),
        ("plain.onnx", ["low", "low", "mid"], "must be different, got --class low --class low --class mid"),
        ("plain.onnx", ["low", "mid"], "a probability for each of its 2 classes, got 3 columns"),
        ("nowhere.onnx", None, "nowhere.onnx"),
        ("nowhere.cbm", None, "nowhere.cbm"),
        ("broken.onnx", None, "must be a readable ONNX file"),
        ("broken.txt", None, "broken.txt"),
        ("broken.ubj", None, "broken.ubj"),
    ],
)  # fmt: skip
def test_bad_native_files_and_classes_are_one_line(folder, native, tmp_path, score, name, classes, words):
    for ending in ("onnx", "txt", "ubj"):
        (tmp_path / f"broken.{ending}").write_bytes(b"no model at all\n" * 9)
    path = folder / name if name in {*native, "prod.skops"} else tmp_path / name
    more = [each for label in classes or () for each in ("--class", label)]
    more += ["--drop", "shop", "--drop", "flag"] if name.endswith("onnx") else []
    result = score("--model", path, "--data", folder / "rows.csv", "--out", "this.csv", *more)
    assert result.returncode == 2
    assert words in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "this.csv").exists()
