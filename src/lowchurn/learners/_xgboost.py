"""XGBoost on soft targets without copies of rows.

Two classes: ``binary:logistic`` takes probabilities as labels. More: a custom objective with the gradient of
cross-entropy and the curvature that XGBoost itself uses for ``multi:softprob``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from scipy.special import softmax

from lowchurn.learners._boosting import BoostedModel, BoostingLearner, Stage, plain_table
from lowchurn.learners._learner import extra_missing
from lowchurn.learners._trees import check_xgboost, reading

OBJECTIVES = ("binary:logistic", "multi:softprob", "multi:softmax")  # probabilities of raw scores, as we make them


class Settings(TypedDict, total=False):
    """How the rows of a stage are read, and the kind of its booster."""

    booster: str
    missing: float | None
    enable_categorical: bool
    feature_types: list[str] | None
    softmax: bool


class XGBoostModel(BoostedModel):
    """Boosters of XGBoost that add up, each with its :class:`Settings`."""

    settings_kind = Settings

    def __init__(self, stages: Any, classes: Any, start: np.ndarray | None = None, threads: int | None = None) -> None:
        super().__init__(stages, classes, start, threads)
        if self.thread_count is not None:
            for stage in self.stages:
                stage.booster.set_param({"nthread": self.thread_count})

    def raw(self, X: Any) -> np.ndarray:
        X = plain_table(X)
        margin = None if self.start is None else np.broadcast_to(self.start, (_rows(X), self.columns))
        for stage in self.stages:  # each continues the scores of the one before, in single precision
            margin = self.one_column(self.stage_scores(stage, X, margin))
        return np.asarray(margin, dtype=float)

    def stage_scores(self, stage: Stage, X: Any, margin: Any = None) -> np.ndarray:
        if margin is not None:
            margin = np.ascontiguousarray(margin[:, 0] if self.columns == 1 else margin, dtype=np.float32)
        return self._ask(stage, X, margin, "margin")

    def own_proba(self, stage: Stage, X: Any) -> np.ndarray:
        if stage.settings.get("softmax"):  # values of multi:softmax are classes; XGBClassifier does this
            return np.asarray(softmax(self._ask(stage, X, None, "margin"), axis=1))
        return self._ask(stage, X, None, "value")

    def _ask(self, stage: Stage, X: Any, margin: Any, what: str) -> np.ndarray:
        # Without a copy of the rows where XGBoost can; its dart is wrong there with scores to start from (3.2).
        kind = stage.settings.get("booster")
        if (kind == "gbtree" or (kind == "dart" and margin is None)) and not stage.settings.get("feature_types"):
            missing = stage.settings.get("missing")
            return np.asarray(
                stage.booster.inplace_predict(
                    X,
                    predict_type=what,
                    missing=np.nan if missing is None else missing,
                    base_margin=margin,
                )
            )
        import xgboost

        data = xgboost.DMatrix(X, base_margin=margin, nthread=self.thread_count, **matrix_settings(stage.settings))
        return np.asarray(stage.booster.predict(data, output_margin=what == "margin"))

    @staticmethod
    def booster_bytes(booster: Any) -> bytes:
        return bytes(booster.save_raw("ubj"))

    @staticmethod
    def booster_from(data: bytes) -> Any:
        return read_booster("load", "a stage of the model", data)


class XGBoostLearner(BoostingLearner):
    """XGBoost: native soft labels for two classes, a custom objective for more; continued boosting from a base.

    Examples
    --------
    >>> from lowchurn.learners._xgboost import XGBoostLearner
    >>> XGBoostLearner.name
    'xgboost'
    """

    name = "xgboost"
    model = XGBoostModel
    seeds = ("random_state", "seed")
    rounds_names = ("n_estimators",)
    rate_names = ("learning_rate", "eta")
    thread_names = ("n_jobs", "nthread")

    @classmethod
    def handles(cls, estimator: Any) -> bool:
        library = sys.modules.get("xgboost")
        return library is not None and isinstance(estimator, library.XGBClassifier)

    @classmethod
    def blueprint(cls, base: Any) -> Any:
        made = super().blueprint(base)
        if made.objective in OBJECTIVES and "num_class" not in made.get_params():
            made.set_params(objective=OBJECTIVES[0])  # fit writes the one for the number of classes into it
        return made

    @classmethod
    def rounds_of(cls, base: Any) -> int | None:
        best = base.get_booster().attr("best_iteration") if base.__sklearn_is_fitted__() else None
        return None if best is None or base.booster == "gblinear" else int(best) + 1

    @classmethod
    def stops_early(cls, estimator: Any) -> bool:
        return bool(estimator.early_stopping_rounds) or len(_callbacks(estimator)) < len(estimator.callbacks or ())

    @classmethod
    def with_rounds(cls, estimator: Any, rounds: int) -> Any:
        callbacks = _callbacks(estimator) or None
        return estimator.set_params(n_estimators=rounds, early_stopping_rounds=None, callbacks=callbacks)

    @classmethod
    def settings_of(cls, estimator: Any) -> dict[str, Any]:
        missing = estimator.missing
        absent = missing is None or missing != missing
        types = estimator.feature_types
        return {
            "missing": None if absent else float(missing),
            "enable_categorical": bool(estimator.enable_categorical),
            "feature_types": None if types is None else list(types),
            "booster": estimator.booster or "gbtree",
        }

    def fit_labels(self, estimator: Any, X: Any, y: np.ndarray, weight: Any, held_out: Any = None) -> Any:
        if held_out is None:
            return estimator.fit(X, y, sample_weight=weight)
        for callback in estimator.callbacks or ():
            if isinstance(callback, _early_stopping()):  # a used one remembers other metrics
                callback.stopping_history, callback.current_rounds, callback.best_scores = {}, 0, {}
        rows, labels, weights = held_out
        stopping = {"eval_set": [(rows, labels)], "sample_weight_eval_set": None if weights is None else [weights]}
        return estimator.fit(X, y, sample_weight=weight, verbose=False, **stopping)

    def booster_in(self, fitted: Any) -> Any:
        return fitted.get_booster()

    def fit_soft(
        self, estimator: Any, X: Any, targets: np.ndarray, weight: Any, scores: Any, *, continued: bool
    ) -> Any:
        import xgboost

        parameters = {k: v for k, v in estimator.get_xgb_params().items() if v is not None}
        for name in ("objective", "eval_metric", "base_score", "num_class", "missing", "scale_pos_weight"):
            parameters.pop(name, None)
        many = len(self.classes) > 2
        binned = parameters.get("tree_method") in (None, "auto", "hist") and parameters.get("booster") != "gblinear"
        kind = xgboost.QuantileDMatrix if binned else xgboost.DMatrix
        data = kind(
            X,
            label=None if many else targets[:, 1],
            weight=None if many else weight,
            base_margin=np.ascontiguousarray(scores if many else scores[:, 0], dtype=np.float32),
            **matrix_settings(self.settings_of(estimator)),
            **({"max_bin": parameters["max_bin"]} if binned and "max_bin" in parameters else {}),
        )
        objective = None
        if many:
            parameters.update(num_class=len(self.classes), disable_default_eval_metric=1)
            parameters["objective"] = "multi:softprob"
            objective = soft_objective(targets, weight)
        else:
            parameters["objective"] = "binary:logistic"
        rounds = int(estimator.get_num_boosting_rounds())
        return xgboost.train(parameters, data, num_boost_round=rounds, obj=objective)

    @classmethod
    def read_native(cls, who: str, path: Path, data: bytes) -> XGBoostModel | None:
        name = repr(str(path))
        wrapped = read_booster(who, name, data).attr("scikit_learn") is not None
        import xgboost

        fitted = xgboost.XGBClassifier()
        with reading(who, name):
            fitted.load_model(bytearray(data))
            if not wrapped:  # Booster.predict uses all trees, XGBClassifier's those up to the best round
                fitted.get_booster().set_attr(best_iteration=None)
            return cls.stages_of(fitted)

    @classmethod
    def stages_of(cls, base: Any) -> XGBoostModel | None:
        if not base.__sklearn_is_fitted__():
            return None
        if callable(base.objective):
            raise ValueError("it was trained with an objective of its own")
        if base.objective not in OBJECTIVES:
            raise ValueError(f"its probabilities are not those of its scores (objective {base.objective})")
        booster, rounds = base.get_booster(), cls.rounds_of(base)
        # A copy: the number of threads is set on it.
        booster = booster.copy() if rounds is None else booster[:rounds]
        settings = cls.settings_of(base) | ({"softmax": True} if base.objective == "multi:softmax" else {})
        return XGBoostModel([Stage(booster, settings)], base.classes_, threads=base.n_jobs)


def read_booster(who: str, name: str, data: bytes) -> Any:
    """A booster from its JSON or UBJSON file."""
    try:
        import xgboost
    except ImportError:
        raise extra_missing(who, "xgboost", "boosting") from None
    with reading(who, name):
        check_xgboost(data)
        booster = xgboost.Booster()
        booster.load_model(bytearray(data))
        return booster


def _callbacks(estimator: Any) -> list[Any]:
    """The callbacks of an estimator without early stopping."""
    return [one for one in estimator.callbacks or () if not isinstance(one, _early_stopping())]


def _early_stopping() -> Any:
    import xgboost

    return xgboost.callback.EarlyStopping


def _rows(X: Any) -> int:
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def matrix_settings(settings: dict[str, Any]) -> dict[str, Any]:
    missing = settings.get("missing")
    return {
        "missing": np.nan if missing is None else missing,
        "enable_categorical": settings.get("enable_categorical", False),
        "feature_types": settings.get("feature_types"),
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
