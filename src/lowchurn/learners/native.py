"""Model files of the boosting libraries themselves, read as fitted classifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NATIVE_ENDINGS = (".txt", ".json", ".ubj", ".cbm")


def native_model(path: str | Path, classes: Any = None) -> Any:
    raise NotImplementedError


def lightgbm_booster(who: str, name: str, data: bytes) -> Any:
    import lightgbm

    return lightgbm.Booster(model_str=data.decode())


def xgboost_booster(who: str, name: str, data: bytes) -> Any:
    import xgboost

    booster = xgboost.Booster()
    booster.load_model(bytearray(data))
    return booster


def catboost_model(who: str, name: str, data: bytes) -> Any:
    import catboost

    return catboost.CatBoostClassifier().load_model(blob=data)
