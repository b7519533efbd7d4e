"""XGBoost on soft targets without copies of rows.

Two classes: ``binary:logistic`` takes probabilities as labels. More: a custom objective with the gradient of
cross-entropy and the curvature that XGBoost itself uses for ``multi:softprob``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from lowchurn._types import Rows
from lowchurn.learners._boosted import BoostedModel, Stage, plain_table
from lowchurn.learners._boosting import BoostingLearner, HeldOut, cross_entropy, soft_objective
from lowchurn.learners._learner import Data
from lowchurn.learners._trees import check_xgboost, reading

if TYPE_CHECKING:
    from xgboost import Booster, XGBClassifier

OBJECTIVES = ("binary:logistic", "multi:softprob", "multi:softmax")  # probabilities of raw scores, as we make them


class Settings(TypedDict, total=False):
    """How the rows of a stage are read, and the kind of its booster."""

    booster: str
    missing: float | None
    enable_categorical: bool
    feature_types: list[str] | None


class XGBoostModel(BoostedModel):
    """Boosters of XGBoost that add up, each with its :class:`Settings`."""

    module = "xgboost"
    settings_kind = Settings
    check = staticmethod(check_xgboost)

    def __init__(self, stages: Any, classes: Any, start: np.ndarray | None = None, threads: int | None = None) -> None:
        super().__init__(stages, classes, start, threads)
        if self.thread_count is not None:
            for stage in self.stages:
                stage.booster.set_param({"nthread": self.thread_count})

    def raw(self, X: Rows) -> np.ndarray:
        X = plain_table(X)
        rows = int(X.shape[0]) if hasattr(X, "shape") else len(X)
        margin = None if self.start is None else np.broadcast_to(self.start, (rows, self.columns))
        for stage in self.stages:  # each continues the scores of the one before, in single precision
            margin = self.one_column(self.ask(stage, X, True, margin))
        return np.asarray(margin, dtype=float)

    def ask(self, stage: Stage, X: Rows, raw: bool, margin: np.ndarray | None = None) -> np.ndarray:
        if margin is not None:
            margin = np.ascontiguousarray(margin[:, 0] if self.columns == 1 else margin, dtype=np.float32)
        # Without a copy of the rows where XGBoost can; its dart is wrong there with scores to start from (3.2).
        kind, read = stage.settings.get("booster"), matrix_settings(stage.settings)
        if (kind == "gbtree" or (kind == "dart" and margin is None)) and not read["feature_types"]:
            what = "margin" if raw else "value"
            return np.asarray(
                stage.booster.inplace_predict(X, predict_type=what, missing=read["missing"], base_margin=margin)
            )
        import xgboost

        data = xgboost.DMatrix(X, base_margin=margin, nthread=self.thread_count, **read)
        return np.asarray(stage.booster.predict(data, output_margin=raw))

    @staticmethod
    def booster_bytes(booster: Booster) -> bytes:
        return bytes(booster.save_raw("ubj"))

    @staticmethod
    def parse(library: Any, data: bytes) -> Booster:
        booster = library.Booster()
        booster.load_model(bytearray(data))
        return booster


class XGBoostLearner(BoostingLearner):
    """XGBoost: native soft labels for two classes, a custom objective for more; continued boosting from a base."""

    name = "xgboost"
    model = XGBoostModel
    classifier = "XGBClassifier"
    endings = (".json", ".ubj")
    seeds = ("random_state", "seed")
    rounds_names = ("n_estimators",)
    rate_names = ("learning_rate", "eta")
    thread_names = ("n_jobs", "nthread")

    @classmethod
    def blueprint(cls, base: XGBClassifier) -> XGBClassifier:
        made = super().blueprint(base)
        if made.objective in OBJECTIVES and "num_class" not in made.get_params():
            made.set_params(objective=OBJECTIVES[0])  # fit writes the one for the number of classes into it
        return made

    @classmethod
    def rounds_of(cls, base: XGBClassifier) -> int | None:
        best = base.get_booster().attr("best_iteration") if cls.is_fitted(base) else None
        return None if best is None or base.booster == "gblinear" else int(best) + 1

    @classmethod
    def stops_early(cls, estimator: XGBClassifier) -> bool:
        return bool(estimator.early_stopping_rounds) or len(_callbacks(estimator)) < len(estimator.callbacks or ())

    @classmethod
    def with_rounds(cls, estimator: XGBClassifier, rounds: int) -> XGBClassifier:
        callbacks = _callbacks(estimator) or None
        return estimator.set_params(n_estimators=rounds, early_stopping_rounds=None, callbacks=callbacks)

    @classmethod
    def settings_of(cls, estimator: XGBClassifier) -> dict[str, Any]:
        missing = estimator.missing
        absent = missing is None or missing != missing
        types = estimator.feature_types
        return {
            "missing": None if absent else float(missing),
            "enable_categorical": bool(estimator.enable_categorical),
            "feature_types": None if types is None else list(types),
            "booster": estimator.booster or "gbtree",
        }

    def fit_labels(self, estimator: XGBClassifier, data: Data, held_out: Data | None = None) -> XGBClassifier:
        X, y, weight = data
        if held_out is None:
            return estimator.fit(X, y, sample_weight=weight)
        for callback in estimator.callbacks or ():
            if isinstance(callback, _early_stopping()):  # a used one remembers other metrics
                callback.stopping_history, callback.current_rounds, callback.best_scores = {}, 0, {}
        rows, labels, weights = held_out
        stopping = {"eval_set": [(rows, labels)], "sample_weight_eval_set": None if weights is None else [weights]}
        return estimator.fit(X, y, sample_weight=weight, verbose=False, **stopping)

    @classmethod
    def booster_of(cls, fitted: XGBClassifier) -> Booster:
        return fitted.get_booster()

    def fit_soft(
        self,
        estimator: XGBClassifier,
        data: Data,
        scores: np.ndarray | None,
        *,
        continued: bool = False,
        held_out: HeldOut | None = None,
    ) -> Booster:
        import xgboost

        _, targets, weight = data
        assert scores is not None
        parameters = {k: v for k, v in estimator.get_xgb_params().items() if v is not None}
        for name in ("objective", "eval_metric", "base_score", "num_class", "missing", "scale_pos_weight"):
            parameters.pop(name, None)
        many = len(self.classes) > 2
        binned = parameters.get("tree_method") in (None, "auto", "hist") and parameters.get("booster") != "gblinear"
        kind = xgboost.QuantileDMatrix if binned else xgboost.DMatrix

        def matrix_of(data: Data, scores: np.ndarray, **more: Any) -> Any:
            X, targets, weight = data
            return kind(
                X,
                label=None if many else targets[:, 1],
                weight=None if many else weight,
                base_margin=np.ascontiguousarray(scores if many else scores[:, 0], dtype=np.float32),
                **matrix_settings(self.settings_of(estimator)),
                **({"max_bin": parameters["max_bin"]} if binned and "max_bin" in parameters else {}),
                **more,
            )

        matrix = matrix_of(data, scores)
        objective = None
        if many:
            parameters.update(num_class=len(self.classes), disable_default_eval_metric=1)
            parameters["objective"] = "multi:softprob"
            # XGBoost's own curvature for several classes is 2 p (1 - p).
            objective = soft_objective(targets, weight, 2, 1e-16, by_row=True)
        else:
            parameters["objective"] = "binary:logistic"
        rounds = int(estimator.get_num_boosting_rounds())
        if held_out is None:
            return xgboost.train(parameters, matrix, num_boost_round=rounds, obj=objective)
        (_, aims, weights), later = held_out
        assert later is not None
        if not many:
            parameters["eval_metric"] = "logloss"
        booster = xgboost.train(
            parameters,
            matrix,
            num_boost_round=rounds,
            obj=objective,
            evals=[(matrix_of(held_out[0], later, **({"ref": matrix} if binned else {})), "held_out")],
            custom_metric=(lambda raw, _: ("soft_logloss", cross_entropy(raw, aims, weights))) if many else None,
            callbacks=[patience(estimator)],
            verbose_eval=False,
        )
        if estimator.booster == "gblinear":
            return booster  # it has no rounds to take off
        return booster[: booster.best_iteration + 1]

    @classmethod
    def rounds_trained(cls, booster: Booster) -> int:
        return int(booster.num_boosted_rounds())

    @classmethod
    def read_native(cls, who: str, path: Path, data: bytes) -> BoostedModel | None:
        name = repr(str(path))
        wrapped = cls.model.booster_from(data, who, name).attr("scikit_learn") is not None
        import xgboost

        fitted = xgboost.XGBClassifier()
        with reading(who, name):
            fitted.load_model(bytearray(data))
            if not wrapped:  # Booster.predict uses all trees, XGBClassifier's those up to the best round
                fitted.get_booster().set_attr(best_iteration=None)
            return cls.stages_of(fitted)

    @classmethod
    def check_scores(cls, base: XGBClassifier) -> None:
        if callable(base.objective):
            raise ValueError("it was trained with an objective of its own")
        if base.objective not in OBJECTIVES:
            raise ValueError(f"its probabilities are not those of its scores (objective {base.objective})")

    @classmethod
    def predicting_booster(cls, base: XGBClassifier) -> Booster:
        # A copy: the number of threads is set on it.
        rounds = cls.rounds_of(base)
        return base.get_booster().copy() if rounds is None else base.get_booster()[:rounds]


def _callbacks(estimator: XGBClassifier) -> list[Any]:
    """Return the callbacks of an estimator without early stopping."""
    return [one for one in estimator.callbacks or () if not isinstance(one, _early_stopping())]


def patience(estimator: XGBClassifier) -> Any:
    """Return early stopping as an estimator asks for it, by its parameter or by a callback, on one metric."""
    own = next((one for one in estimator.callbacks or () if isinstance(one, _early_stopping())), None)
    rounds = (estimator.early_stopping_rounds or 0) if own is None else own.rounds
    least = 0.0 if own is None else getattr(own, "_min_delta", 0.0)
    return _early_stopping()(rounds=int(rounds), min_delta=least, maximize=False)


def _early_stopping() -> Any:
    import xgboost

    return xgboost.callback.EarlyStopping


def matrix_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a stage as XGBoost takes them with rows."""
    missing = settings.get("missing")
    return {
        "missing": np.nan if missing is None else missing,
        "enable_categorical": settings.get("enable_categorical", False),
        "feature_types": settings.get("feature_types"),
    }
