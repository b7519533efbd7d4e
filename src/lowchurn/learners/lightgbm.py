"""LightGBM on soft targets without copies of rows.

Two classes: the library's own ``cross_entropy`` objective takes probabilities as labels. More: a custom objective with
the gradient of cross-entropy and the curvature that LightGBM itself uses for its multiclass objective.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from joblib import effective_n_jobs

from lowchurn.learners.base import Job
from lowchurn.learners.boosting import BoostedModel, BoostingLearner, log_shares, plain_table
from lowchurn.learners.native_trees import check_lightgbm

NOT_NATIVE = {"class_weight", "importance_type", "objective", "n_estimators", "n_jobs", "boosting_type", "random_state"}


LEAST_CURVATURE = np.float32(1e-10)  # LightGBM guesses counts from curvature, and must not see zeros


class LightGBMModel(BoostedModel):
    """Boosters of LightGBM that add up."""

    def raw(self, X: Any) -> np.ndarray:
        X = plain_table(X)
        total = np.zeros(self.columns) if self.start is None else self.start
        for booster in self.boosters:
            scores = np.asarray(booster.predict(X, raw_score=True))
            total = total + scores.reshape(len(scores), -1)
        return total

    @staticmethod
    def booster_bytes(booster: Any) -> bytes:
        return str(booster.model_to_string()).encode()

    @staticmethod
    def booster_from(data: bytes) -> Any:
        import lightgbm

        return lightgbm.Booster(model_str=check_lightgbm(data))


class LightGBMLearner(BoostingLearner):
    """LightGBM: native cross-entropy for two classes, a custom objective for more; continued boosting from a base.

    Examples
    --------
    >>> from lowchurn.learners.lightgbm import LightGBMLearner
    >>> LightGBMLearner.name
    'lightgbm'
    """

    name = "lightgbm"
    model = LightGBMModel

    @classmethod
    def handles(cls, estimator: Any) -> bool:
        library = sys.modules.get("lightgbm")
        return library is not None and isinstance(estimator, library.LGBMClassifier)

    def fit(self, X: Any, job: Job, base: Any = None) -> LightGBMModel:
        import lightgbm

        X = plain_table(X)
        before = self.stages(base) if job.base_share else None
        if before is None and job.hard:
            y = job.targets.argmax(axis=1)
            if len(np.unique(y)) == len(self.classes):
                fitted = self.prepared(job)
                if "verbose" not in fitted.get_params() and "verbosity" not in fitted.get_params():
                    fitted.set_params(verbosity=-1)
                return LightGBMModel([fitted.fit(X, y, sample_weight=job.sample_weight).booster_], self.classes)
        targets, weight = self.aims(job)
        many = len(self.classes) > 2
        start = log_shares(targets, weight) if before is None else None
        rounds, parameters = self._parameters(job)
        if before is not None:
            scores = before.raw(X)
        else:
            assert start is not None
            scores = np.broadcast_to(start, (len(targets), len(start)))
        if many:
            parameters["num_class"] = len(self.classes)
            parameters["objective"] = soft_objective(targets, weight)
            label = np.zeros(len(targets), dtype=np.float32)
        else:
            parameters["objective"] = "cross_entropy"
            label = targets[:, 1]
        data = lightgbm.Dataset(
            X,
            label=label,
            weight=None if many else weight,
            init_score=np.ravel(scores, order="F"),
            free_raw_data=True,
        )
        booster = lightgbm.train(parameters, data, num_boost_round=rounds)
        booster.free_dataset()
        if before is not None:
            return LightGBMModel([*before.boosters, booster], self.classes, before.start)
        return LightGBMModel([booster], self.classes, start)

    def _parameters(self, job: Job) -> tuple[int, dict[str, Any]]:
        given = {k: v for k, v in self.prepared(job).get_params().items() if v is not None}
        parameters = {k: v for k, v in given.items() if k not in NOT_NATIVE}
        parameters["boosting"] = given.get("boosting_type", "gbdt")
        parameters["num_threads"] = effective_n_jobs(given["n_jobs"]) if "n_jobs" in given else 0
        if "random_state" in given:
            parameters["seed"] = int(given["random_state"])
        if "verbose" not in parameters:
            parameters.setdefault("verbosity", -1)
        return int(given.get("n_estimators", 100)), parameters

    def stages(self, base: Any) -> LightGBMModel | None:
        if isinstance(base, LightGBMModel):
            return base
        if base is None or not self.handles(base) or not hasattr(base, "booster_"):
            return None
        if callable(base.objective):
            raise ValueError("it was trained with an objective of its own")
        return LightGBMModel([base.booster_], base.classes_)


def soft_objective(targets: np.ndarray, weight: np.ndarray | None) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Cross-entropy against soft targets: gradient ``p - t``, curvature ``K / (K - 1) p (1 - p)`` as in LightGBM.

    LightGBM keeps scores class by class, so all work is on arrays of shape (classes, rows) in its own order, in single
    precision, in place.
    """
    n, m = targets.shape
    aims = np.ascontiguousarray(targets.T, dtype=np.float32)
    factor = np.float32(m / (m - 1.0))
    scale = None if weight is None else np.asarray(weight, dtype=np.float32)
    p, slope, curve = (np.empty((m, n), dtype=np.float32) for _ in range(3))

    def objective(scores: Any, _: Any) -> tuple[Any, Any]:
        by_class = np.asarray(scores).reshape(-1, order="F").reshape(m, n)
        np.copyto(p, by_class, casting="same_kind")
        np.subtract(p, p.max(axis=0), out=p)
        np.exp(p, out=p)
        np.divide(p, p.sum(axis=0), out=p)
        np.subtract(p, aims, out=slope)
        np.subtract(1, p, out=curve)
        np.multiply(curve, p, out=curve)
        np.multiply(curve, factor, out=curve)
        np.maximum(curve, LEAST_CURVATURE, out=curve)
        if scale is not None:
            np.multiply(slope, scale, out=slope)
            np.multiply(curve, scale, out=curve)
        return slope.reshape(-1), curve.reshape(-1)

    return objective
