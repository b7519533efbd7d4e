"""CatBoost on soft targets: natively for two classes, by weighted rows for more.

Two classes: the library's ``CrossEntropy`` loss takes probabilities as labels. For more classes its custom objectives
learned poorly, so a row becomes one row a class, weighted by its targets.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from lowchurn.learners.base import Job
from lowchurn.learners.boosting import BoostedModel, BoostingLearner, plain_table
from lowchurn.learners.rows import soft_rows

OWN = {"loss_function", "objective", "class_weights", "auto_class_weights", "scale_pos_weight", "eval_metric"}


class CatBoostModel(BoostedModel):
    """Models of CatBoost whose raw scores add up."""

    def raw(self, X: Any) -> np.ndarray:
        X = plain_table(X)
        total = np.zeros(self.columns)
        for booster in self.boosters:
            scores = np.asarray(booster.predict(X, prediction_type="RawFormulaVal"))
            total = total + scores.reshape(len(scores), -1)
        return total

    @staticmethod
    def booster_bytes(booster: Any) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.cbm")
            booster.save_model(path)
            with open(path, "rb") as file:
                return file.read()

    @staticmethod
    def booster_from(data: bytes) -> Any:
        import catboost

        return catboost.CatBoost().load_model(blob=data)


class CatBoostLearner(BoostingLearner):
    """CatBoost: native soft labels for two classes, weighted rows for more; continued boosting from a base.

    Examples
    --------
    >>> from lowchurn.learners.catboost import CatBoostLearner
    >>> CatBoostLearner.name
    'catboost'
    """

    name = "catboost"
    model = CatBoostModel

    @classmethod
    def handles(cls, estimator: Any) -> bool:
        library = sys.modules.get("catboost")
        return library is not None and isinstance(estimator, library.CatBoostClassifier)

    def fit(self, X: Any, job: Job, base: Any = None) -> CatBoostModel:
        import catboost

        X = plain_table(X)
        before = self.stages(base) if job.base_share else None
        given = self._given(job)
        if before is None and job.hard:
            y = job.targets.argmax(axis=1)
            if len(np.unique(y)) == len(self.classes):
                fitted = catboost.CatBoostClassifier(**given)
                return CatBoostModel([fitted.fit(X, y, sample_weight=job.sample_weight)], self.classes)
        parameters = {k: v for k, v in given.items() if k not in OWN}
        baseline = None if before is None else before.raw(X)
        targets, weight = self.aims(job)
        if len(self.classes) == 2:
            parameters["loss_function"] = "CrossEntropy"
            data = self._pool(X, targets[:, 1], weight, None if baseline is None else baseline[:, 0], given)
        else:
            parameters.update(loss_function="MultiClass", classes_count=len(self.classes))
            row, column, share = soft_rows(targets, weight)
            data = self._pool(
                _safe_indexing(X, row), column, share, None if baseline is None else baseline[row], given
            )  # fmt: skip
        booster = catboost.CatBoost(parameters).fit(data)
        return CatBoostModel([*(before.boosters if before is not None else ()), booster], self.classes)

    def _pool(self, X: Any, label: Any, weight: Any, baseline: Any, given: dict[str, Any]) -> Any:
        import catboost

        kinds = {k: given[k] for k in ("cat_features", "text_features", "embedding_features") if k in given}
        return catboost.Pool(X, label=label, weight=weight, baseline=baseline, **kinds)

    def _given(self, job: Job) -> dict[str, Any]:
        given = {k: v for k, v in self.estimator.get_params().items() if v is not None}
        if job.seed is not None and not {"random_state", "random_seed"} & set(given):
            given["random_seed"] = int(job.seed)
        if not {"verbose", "silent", "logging_level", "verbose_eval"} & set(given):
            given["verbose"] = False
        given.setdefault("allow_writing_files", False)
        return given

    def aims(self, job: Job) -> tuple[np.ndarray, np.ndarray | None]:
        given = self.estimator.get_params()
        weights = given.get("class_weights")
        balanced = given.get("auto_class_weights")
        if weights is None and balanced is None and given.get("scale_pos_weight") is None:
            return super().aims(job)
        targets = job.targets * self._class_weights(given, job)
        return super().aims(Job(targets, job.strategy, job.sample_weight, job.seed))

    def _class_weights(self, given: dict[str, Any], job: Job) -> np.ndarray:
        weights = given.get("class_weights")
        if given.get("scale_pos_weight") is not None:
            return np.array([1.0, float(given["scale_pos_weight"])])
        if weights is not None:
            listed = weights if not isinstance(weights, dict) else [weights.get(c, 1.0) for c in self.classes.tolist()]
            return np.asarray(listed, dtype=float)
        mass = job.targets.sum(axis=0) if job.sample_weight is None else job.sample_weight @ job.targets
        ratio = mass.max() / np.maximum(mass, 1e-12)
        return np.asarray(np.sqrt(ratio) if str(given["auto_class_weights"]) == "SqrtBalanced" else ratio)

    def stages(self, base: Any) -> CatBoostModel | None:
        if isinstance(base, CatBoostModel):
            return base
        if base is None or not self.handles(base) or not base.is_fitted():
            return None
        return CatBoostModel([base], base.classes_)
