"""XGBoost on soft targets without copies of rows.

Two classes: ``binary:logistic`` takes probabilities as labels. More: a custom objective with the gradient of
cross-entropy and the curvature that XGBoost itself uses for ``multi:softprob``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from lowchurn.learners.base import Job
from lowchurn.learners.boosting import BoostedModel, BoostingLearner, log_shares, plain_table
from lowchurn.learners.native_trees import check_xgboost


class XGBoostModel(BoostedModel):
    """Boosters of XGBoost that add up; ``settings`` keeps ``missing`` and ``enable_categorical``."""

    def raw(self, X: Any) -> np.ndarray:
        import xgboost

        data = xgboost.DMatrix(plain_table(X), **matrix_settings(self.settings))
        n = data.num_row()
        margin = None if self.start is None else np.broadcast_to(self.start, (n, self.columns))
        for booster in self.boosters:
            if margin is not None:
                data.set_base_margin(np.ascontiguousarray(margin, dtype=np.float32))
            margin = np.asarray(booster.predict(data, output_margin=True)).reshape(n, -1)
        return np.asarray(margin)

    @staticmethod
    def booster_bytes(booster: Any) -> bytes:
        return bytes(booster.save_raw("ubj"))

    @staticmethod
    def booster_from(data: bytes) -> Any:
        import xgboost

        booster = xgboost.Booster()
        booster.load_model(bytearray(check_xgboost(data)))
        return booster


class XGBoostLearner(BoostingLearner):
    """XGBoost: native soft labels for two classes, a custom objective for more; continued boosting from a base.

    Examples
    --------
    >>> from lowchurn.learners.xgboost import XGBoostLearner
    >>> XGBoostLearner.name
    'xgboost'
    """

    name = "xgboost"
    model = XGBoostModel

    @classmethod
    def handles(cls, estimator: Any) -> bool:
        library = sys.modules.get("xgboost")
        return library is not None and isinstance(estimator, library.XGBClassifier)

    def fit(self, X: Any, job: Job, base: Any = None) -> XGBoostModel:
        import xgboost

        X = plain_table(X)
        settings = self._settings()
        before = self.stages(base) if job.base_share else None
        if before is None and job.hard:
            y = job.targets.argmax(axis=1)
            if len(np.unique(y)) == len(self.classes):
                fitted = self.prepared(job).fit(X, y, sample_weight=job.sample_weight)
                return XGBoostModel([fitted.get_booster()], self.classes, **settings)
        targets, weight = self.aims(job)
        parameters, rounds = self._parameters(job)
        many = len(self.classes) > 2
        start = log_shares(targets, weight) if before is None else None
        if before is not None:
            margin = before.raw(X)
        else:
            assert start is not None
            margin = np.broadcast_to(start, (len(targets), len(start)))
        kind = xgboost.QuantileDMatrix if parameters.get("tree_method") in (None, "auto", "hist") else xgboost.DMatrix
        binning = {"max_bin": parameters["max_bin"]} if "max_bin" in parameters else {}
        data = kind(
            X,
            label=None if many else targets[:, 1],
            weight=None if many else weight,
            base_margin=np.ascontiguousarray(margin if many else margin[:, 0], dtype=np.float32),
            **matrix_settings(settings),
            **(binning if kind is xgboost.QuantileDMatrix else {}),
        )
        objective = None
        if many:
            parameters.update(num_class=len(self.classes), disable_default_eval_metric=1)
            parameters["objective"] = "multi:softprob"
            objective = soft_objective(targets, weight)
        else:
            parameters["objective"] = "binary:logistic"
        booster = xgboost.train(parameters, data, num_boost_round=rounds, obj=objective)
        if before is not None:
            return XGBoostModel([*before.boosters, booster], self.classes, before.start, **settings)
        return XGBoostModel([booster], self.classes, start, **settings)

    def _settings(self) -> dict[str, Any]:
        given = self.estimator.get_params()
        missing = given.get("missing")
        absent = missing is None or missing != missing
        return {"missing": None if absent else float(missing), "enable_categorical": bool(given["enable_categorical"])}

    def _parameters(self, job: Job) -> tuple[dict[str, Any], int]:
        prepared = self.prepared(job)
        given = {k: v for k, v in prepared.get_xgb_params().items() if v is not None}
        for name in ("objective", "eval_metric", "base_score", "num_class", "missing"):
            given.pop(name, None)
        return given, int(prepared.get_num_boosting_rounds())

    def stages(self, base: Any) -> XGBoostModel | None:
        if isinstance(base, XGBoostModel):
            return base
        if base is None or not self.handles(base) or not base.__sklearn_is_fitted__():
            return None
        if callable(base.objective):
            raise ValueError("it was trained with an objective of its own")
        return XGBoostModel([base.get_booster()], base.classes_, **self._settings())


def matrix_settings(settings: dict[str, Any]) -> dict[str, Any]:
    missing = settings.get("missing")
    return {
        "missing": np.nan if missing is None else missing,
        "enable_categorical": settings.get("enable_categorical", False),
    }


def soft_objective(targets: np.ndarray, weight: np.ndarray | None) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Cross-entropy against soft targets: gradient ``p - t``, curvature ``2 p (1 - p)`` as in XGBoost.

    XGBoost keeps scores row by row. Maxima and sums over a handful of classes are taken column by column, which is
    several times faster in numpy than along such short rows.
    """
    n, m = targets.shape
    aims = np.ascontiguousarray(targets, dtype=np.float32)
    scale = None if weight is None else np.asarray(weight, dtype=np.float32)[:, None]
    p, slope, curve = (np.empty((n, m), dtype=np.float32) for _ in range(3))
    row = np.empty(n, dtype=np.float32)

    def objective(scores: Any, _: Any) -> tuple[Any, Any]:
        scores = np.asarray(scores, dtype=np.float32).reshape(n, m)
        np.copyto(row, scores[:, 0])
        for k in range(1, m):
            np.maximum(row, scores[:, k], out=row)
        np.subtract(scores, row[:, None], out=p)
        np.exp(p, out=p)
        np.copyto(row, p[:, 0])
        for k in range(1, m):
            np.add(row, p[:, k], out=row)
        np.divide(p, row[:, None], out=p)
        np.subtract(p, aims, out=slope)
        np.subtract(1, p, out=curve)
        np.multiply(curve, p, out=curve)
        np.multiply(curve, 2, out=curve)
        np.maximum(curve, 1e-16, out=curve)
        if scale is not None:
            np.multiply(slope, scale, out=slope)
            np.multiply(curve, scale, out=curve)
        return slope, curve

    return objective
