"""LightGBM on soft targets without copies of rows.

Two classes: the library's own ``cross_entropy`` objective takes probabilities as labels. More: a custom objective with
the gradient of cross-entropy and the curvature that LightGBM itself uses for its multiclass objective.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from joblib import effective_n_jobs
from sklearn.utils.validation import has_fit_parameter

from lowchurn._types import Rows
from lowchurn.learners._boosted import BoostedModel, Stage
from lowchurn.learners._boosting import BoostingLearner, HeldOut, cross_entropy, first_given, soft_objective
from lowchurn.learners._learner import Data
from lowchurn.learners._trees import check_lightgbm, reading

if TYPE_CHECKING:
    from lightgbm import Booster, Dataset, LGBMClassifier

ROUNDS = (
    *("n_estimators", "num_iterations", "num_iteration", "n_iter", "num_tree", "num_trees", "num_round", "num_rounds"),
    *("nrounds", "num_boost_round", "max_iter"),
)
STOPPING = ("early_stopping_round", "early_stopping_rounds", "early_stopping", "n_iter_no_change")
METRICS = ("metric", "metrics", "metric_types", "eval_metric", "first_metric_only")
THREADS = ("n_jobs", "num_threads", "num_thread", "nthread", "nthreads")
# Set by ours: the objective, and what class weights become.
NOT_NATIVE = {
    *("class_weight", "importance_type", "boosting_type", "random_state", "scale_pos_weight", "is_unbalance"),
    *("unbalance", "unbalanced_sets", "objective", "objective_type", "app", "application", "loss"),
    *(*ROUNDS, *STOPPING, *THREADS),
}
PREDICTING = ("pred_early_stop", "start_iteration_predict", "num_iteration_predict")

LEAST_CURVATURE = 1e-10  # LightGBM guesses counts from curvature, and must not see zeros
# Without regularisation, which is LightGBM's default, the Newton step of a leaf has no bound where a model is nearly
# certain of wrong classes; continued boosting starts there. LogitBoost (Friedman, Hastie, Tibshirani 2000) limits it
# to 4.
LONGEST_STEP = 4.0


class LightGBMModel(BoostedModel):
    """Boosters of LightGBM that add up."""

    module = "lightgbm"
    check = staticmethod(check_lightgbm)

    def ask(self, stage: Stage, X: Rows, raw: bool) -> np.ndarray:
        threads = {} if self.thread_count is None else {"num_threads": self.thread_count}
        return np.asarray(stage.booster.predict(X, raw_score=raw, **threads))

    @staticmethod
    def booster_bytes(booster: Booster) -> bytes:
        return str(booster.model_to_string()).encode()

    @staticmethod
    def parse(library: Any, data: bytes) -> Booster:
        return library.Booster(model_str=data.decode())


class LightGBMLearner(BoostingLearner):
    """LightGBM: native cross-entropy for two classes, a custom objective for more; continued boosting from a base."""

    name = "lightgbm"
    model = LightGBMModel
    classifier = "LGBMClassifier"
    endings = (".txt",)
    seeds = ("random_state", "seed", "random_seed")
    rounds_names = (*ROUNDS[1:], ROUNDS[0])  # the library's own names override the wrapper's
    rate_names = ("shrinkage_rate", "eta", "learning_rate")
    thread_names = (*THREADS[1:], THREADS[0])

    @classmethod
    def rounds_of(cls, base: LGBMClassifier) -> int | None:
        best = getattr(base, "best_iteration_", None) if cls.is_fitted(base) else None
        return int(best) if best and best < cls.rounds_in(base) else None

    @classmethod
    def stops_early(cls, estimator: LGBMClassifier) -> bool:
        return int(first_given(estimator.get_params(), STOPPING) or 0) > 0

    @classmethod
    def with_rounds(cls, estimator: LGBMClassifier, rounds: int) -> LGBMClassifier:
        given = estimator.get_params()
        changed = {name: 0 for name in STOPPING if name in given}
        return estimator.set_params(**changed, **{name: rounds for name in ROUNDS if name in given})

    def fit_labels(self, estimator: LGBMClassifier, data: Data, held_out: Data | None = None) -> LGBMClassifier:
        X, y, weight = data
        given = estimator.get_params()
        if isinstance(given["class_weight"], dict):  # by label, and y are the places of the labels
            places = {label: k for k, label in enumerate(self.classes.tolist())}
            by_place = {places[label]: w for label, w in given["class_weight"].items() if label in places}
            estimator.set_params(class_weight=by_place)
        if not {"verbose", "verbosity"} & set(given):
            estimator.set_params(verbosity=-1)
        if held_out is None:
            return estimator.fit(X, y, sample_weight=weight)
        rows, labels, weights = held_out
        renamed = has_fit_parameter(estimator, "eval_X")  # since 4.7
        part: dict[str, Any] = {"eval_X": rows, "eval_y": labels} if renamed else {"eval_set": [(rows, labels)]}
        part["eval_sample_weight"] = None if weights is None else [weights]
        return estimator.fit(X, y, sample_weight=weight, **part)

    @classmethod
    def booster_of(cls, fitted: LGBMClassifier) -> Booster:
        return fitted.booster_

    def fit_soft(
        self,
        estimator: LGBMClassifier,
        data: Data,
        scores: np.ndarray | None,
        *,
        continued: bool = False,
        held_out: HeldOut | None = None,
    ) -> Booster:
        import lightgbm

        X, targets, weight = data
        assert scores is not None
        parameters = self._parameters(estimator)
        if continued and not first_given(parameters, ("max_delta_step", "max_tree_output", "max_leaf_output")):
            parameters["max_delta_step"] = LONGEST_STEP
        many = len(self.classes) > 2
        if many:
            parameters["num_class"] = len(self.classes)
            # LightGBM's own curvature for several classes is K / (K - 1) p (1 - p).
            factor = len(self.classes) / (len(self.classes) - 1.0)
            parameters["objective"] = soft_objective(targets, weight, factor, LEAST_CURVATURE, by_row=False)
        else:
            parameters["objective"] = "cross_entropy"
        dataset = self._dataset((X, targets, None if many else weight), scores)
        rounds = self.rounds_in(estimator)
        if held_out is None:
            return lightgbm.train(parameters, dataset, num_boost_round=rounds).free_dataset()
        (rows, aims, weights), later = held_out
        assert later is not None
        given = estimator.get_params()
        patience = int(first_given(given, STOPPING) or 0)
        stop = lightgbm.early_stopping(
            patience, verbose=False, min_delta=float(given.get("early_stopping_min_delta") or 0)
        )
        booster = lightgbm.train(
            {k: v for k, v in parameters.items() if k not in METRICS} | {"metric": "None" if many else "cross_entropy"},
            dataset,
            num_boost_round=rounds,
            valid_sets=[self._dataset((rows, aims, None if many else weights), later, reference=dataset)],
            feval=(lambda raw, _: ("soft_log_loss", cross_entropy(raw, aims, weights), False)) if many else None,
            callbacks=[stop],
        )
        return lightgbm.Booster(model_str=booster.model_to_string(num_iteration=booster.best_iteration))

    @staticmethod
    def _dataset(data: Data, scores: np.ndarray, reference: Dataset | None = None) -> Dataset:
        import lightgbm

        X, targets, weight = data
        label = np.zeros(len(targets), dtype=np.float32) if targets.shape[1] > 2 else targets[:, 1]
        start = np.ravel(scores, order="F")
        return lightgbm.Dataset(X, label=label, weight=weight, init_score=start, reference=reference)

    @classmethod
    def rounds_trained(cls, booster: Booster) -> int:
        return int(booster.current_iteration())

    def _parameters(self, estimator: LGBMClassifier) -> dict[str, Any]:
        given = {k: v for k, v in estimator.get_params().items() if v is not None}
        parameters = {k: v for k, v in given.items() if k not in NOT_NATIVE}
        parameters["boosting"] = given.get("boosting_type", "gbdt")
        threads = first_given(given, self.thread_names)
        parameters["num_threads"] = 0 if threads is None else effective_n_jobs(threads)
        if "random_state" in given:
            parameters["seed"] = int(given["random_state"])
        if "verbose" not in parameters:
            parameters.setdefault("verbosity", -1)
        return parameters

    def weights_of_classes(self, given: dict[str, Any], mass: np.ndarray) -> np.ndarray | None:
        if len(self.classes) == 2 and first_given(given, ("is_unbalance", "unbalance", "unbalanced_sets")):
            return mass.max() / np.maximum(mass, 1e-300)
        return super().weights_of_classes(given, mass)

    @classmethod
    def check_scores(cls, base: LGBMClassifier) -> None:
        if callable(base.objective):
            raise ValueError("it was trained with an objective of its own")
        if changed := [name for name in PREDICTING if base.get_params().get(name)]:
            raise ValueError(f"it predicts with {changed[0]}")
        check_objective(base.booster_)

    @classmethod
    def read_native(cls, who: str, path: Path, data: bytes) -> LightGBMModel:
        booster = cls.model.booster_from(data, who, repr(str(path)))
        with reading(who, repr(str(path))):
            check_objective(booster)
        return LightGBMModel([Stage(booster)], np.arange(max(booster.num_model_per_iteration(), 2)))

    @classmethod
    def blueprint_of_stages(cls, base: BoostedModel) -> LGBMClassifier:
        import lightgbm

        booster = base.boosters[-1]
        found = {PARAMETERS[k]: v for k, v in booster.params.items() if k in PARAMETERS}
        if "learning_rate" not in found:
            return super().blueprint_of_stages(base)
        found["n_estimators"] = max(booster.current_iteration(), 1)
        return lightgbm.LGBMClassifier(**found)


# Parameters in a model file, and their names in LGBMClassifier.
RENAMED = {
    "boosting": "boosting_type",
    "min_data_in_leaf": "min_child_samples",
    "min_sum_hessian_in_leaf": "min_child_weight",
    "bagging_fraction": "subsample",
    "bagging_freq": "subsample_freq",
    "feature_fraction": "colsample_bytree",
    "lambda_l1": "reg_alpha",
    "lambda_l2": "reg_lambda",
    "min_gain_to_split": "min_split_gain",
    "seed": "random_state",
}
SAME = (
    *("learning_rate", "num_leaves", "max_depth", "feature_fraction_bynode", "extra_trees", "linear_tree", "max_bin"),
    *("max_delta_step", "path_smooth", "drop_rate", "max_drop", "skip_drop", "cat_smooth", "cat_l2", "verbosity"),
)
PARAMETERS = RENAMED | dict(zip(SAME, SAME, strict=True))


def check_objective(booster: Booster) -> None:
    """Raise where probabilities are not the sigmoid or softmax of raw scores."""
    head = booster.model_to_string(num_iteration=1).partition("\n\n")[0].splitlines()
    objective = next((line.partition("=")[2] for line in head if line.startswith("objective=")), "")
    name, *details = objective.split() or [""]
    scaled = any(detail.startswith("sigmoid:") and float(detail[8:]) != 1 for detail in details)
    if name not in ("binary", "cross_entropy", "multiclass") or scaled or "average_output" in head:
        kind = "random forest" if "average_output" in head else f"objective {objective or 'unknown'}"
        raise ValueError(f"its probabilities are not those of its scores ({kind})")
