"""CatBoost on soft targets, natively where boosting starts afresh.

Two classes: the library's ``CrossEntropy`` loss takes probabilities as labels. More: ``MultiCrossEntropy`` takes a
matrix of them, with one sigmoid per class. Each sigmoid learns the probability of its class, so their shares of the sum
are the probabilities. This loss takes no scores to start from: continued boosting makes a row into one row per class,
weighted by its targets, and so does a GPU, where the loss was not tried. Custom objectives are called row by row in
Python, which is tens of times slower.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.special import log_expit
from sklearn.utils import _safe_indexing

from lowchurn._extras import importing
from lowchurn._model_files import Refused
from lowchurn._types import Rows
from lowchurn.learners._boosted import BoostedModel, Stage
from lowchurn.learners._boosting import BoostingLearner, HeldOut, first_given
from lowchurn.learners._learner import Data
from lowchurn.learners._sklearn import soft_rows
from lowchurn.learners._trees import reading, require

if TYPE_CHECKING:
    from catboost import CatBoost, CatBoostClassifier

ROUNDS = ("iterations", "n_estimators", "num_boost_round", "num_trees")
STOPPING = ("early_stopping_rounds", "od_wait", "od_type", "od_pval", "use_best_model")
# What the labels are: indices in training, the learner's classes in the model.
LABELS = {"class_names", "classes_count"}
OWN = {"loss_function", "objective", "class_weights", "auto_class_weights", "scale_pos_weight", "eval_metric"}
QUIET = {"verbose": False, "allow_writing_files": False}
KINDS = ("cat_features", "text_features", "embedding_features")
MATRIX = "MultiCrossEntropy"  # takes a matrix of probabilities as labels
LOSSES = ("Logloss", "CrossEntropy", "MultiClass")  # probabilities of raw scores, as we make them
CLASSIFIERS = (*LOSSES, "MultiClassOneVsAll")
# Reads files of CatBoost and predicts rows with them; what damaged files do to this process is its exit status.
TRIAL = """
import random
import sys
import catboost
random.seed(0)
for path in sys.argv[1:]:
    model = catboost.CatBoost()
    model.load_model(path)
    words = {*model.get_cat_feature_indices(), *model.get_text_feature_indices()}
    count = max([len(model.feature_names_), *(1 + k for k in words)])
    rows = [["0" if k in words else random.choice([-1e30, 0.5, 1e30]) for k in range(count)] for _ in range(200)]
    if not model.get_embedding_feature_indices():
        model.predict(rows, thread_count=1)
"""
TRIED: set[bytes] = set()  # checksums of what this process has tried, or written itself


class CatBoostModel(BoostedModel):
    """Models of CatBoost whose raw scores add up."""

    module = "catboost"

    def ask(self, stage: Stage, X: Rows, raw: bool) -> np.ndarray:
        threads = -1 if self.thread_count is None else self.thread_count
        kind = "RawFormulaVal" if raw else "Probability"
        found = np.asarray(stage.booster.predict(X, prediction_type=kind, thread_count=threads))
        # The softmax of the logarithms of sigmoids is their shares of the sum.
        return log_expit(found) if raw and self.columns > 1 and has_sigmoids(stage.booster) else found

    @staticmethod
    def booster_bytes(booster: CatBoost) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.cbm")
            booster.save_model(path)
            data = Path(path).read_bytes()
        TRIED.add(hashlib.sha256(data).digest())
        return data

    @classmethod
    def from_files(cls, files: dict[str, bytes]) -> Self:
        with importing("load", "boosting"):
            import catboost  # noqa: F401
        stages = [data for name, data in files.items() if name.startswith("stage")]
        with reading("load", "a stage of the model"):
            for data in stages:
                cls.check(data)
        try_reading("load: a stage of the model", stages)
        return super().from_files(files)

    @staticmethod
    def check(data: bytes) -> None:
        size = int.from_bytes(data[4:8], "little")
        require(data[:4] == b"CBM1" and 0 < size <= len(data) - 8, "it is cut short, or no file of CatBoost")

    @staticmethod
    def parse(library: Any, data: bytes) -> CatBoost:
        return library.CatBoostClassifier().load_model(blob=data)


class CatBoostLearner(BoostingLearner):
    """CatBoost: native soft labels, continued boosting from a base (on weighted rows for more than two classes)."""

    name = "catboost"
    model = CatBoostModel
    classifier = "CatBoostClassifier"
    endings = (".cbm",)
    seeds = ("random_seed", "random_state")
    takes_any_seed = True
    rounds_names = ROUNDS
    rate_names = ("learning_rate", "eta")
    thread_names = ("thread_count",)
    default_rounds = 1000
    starts_itself = True

    @classmethod
    def unfitted(cls, estimator: CatBoostClassifier) -> CatBoostClassifier:
        return _made(estimator, {})

    @classmethod
    def blueprint(cls, base: CatBoostClassifier) -> CatBoostClassifier:
        made = super().blueprint(base)
        if isinstance(base, cls.model) or not base.is_fitted():
            return made
        changed: dict[str, Any] = {}
        if cls.rounds_of(base) is not None and first_given(base.get_params(), cls.rate_names) is None:
            changed["learning_rate"] = float(base.learning_rate_)  # chosen for the rounds that were asked for
        names = list(base.feature_names_)
        if names == [str(k) for k in range(len(names))]:
            names = list(range(len(names)))
        ask = (base.get_cat_feature_indices, base.get_text_feature_indices, base.get_embedding_feature_indices)
        for kind, indices in zip(KINDS, ask, strict=True):
            if found := [names[k] for k in indices()]:
                changed[kind] = found
        return _made(made, changed)

    @classmethod
    def rounds_of(cls, base: CatBoostClassifier) -> int | None:
        if not cls.is_fitted(base):
            return None
        asked = base.get_all_params().get("iterations", cls.rounds_in(base))  # get_params may be those of no training
        return int(base.tree_count_) if 0 < base.tree_count_ < asked else None

    @classmethod
    def stops_early(cls, estimator: CatBoostClassifier) -> bool:
        given = estimator.get_params()
        return any(given.get(name) for name in STOPPING)

    @classmethod
    def with_rounds(cls, estimator: CatBoostClassifier, rounds: int) -> CatBoostClassifier:
        name = next((name for name in ROUNDS if name in estimator.get_params()), ROUNDS[0])
        return _made(estimator, {name: rounds} | dict.fromkeys(STOPPING))

    def fit_labels(self, estimator: CatBoostClassifier, data: Data, held_out: Data | None = None) -> CatBoostClassifier:
        X, y, weight = data
        weights = estimator.get_params().get("class_weights")
        changed = self._quiet(estimator) | dict.fromkeys(LABELS)
        if isinstance(weights, dict):  # by label, and y are the places of the labels
            changed["class_weights"] = [float(weights.get(label, 1.0)) for label in self.classes.tolist()]
        estimator = _made(estimator, changed)
        if held_out is None:
            return estimator.fit(X, y, sample_weight=weight)
        return estimator.fit(X, y, sample_weight=weight, eval_set=held_out[:2], use_best_model=True)

    @classmethod
    def is_fitted(cls, base: CatBoostClassifier) -> bool:
        return bool(base.is_fitted())

    @classmethod
    def booster_of(cls, fitted: CatBoostClassifier) -> CatBoost:
        return fitted

    def fit_soft(
        self,
        estimator: CatBoostClassifier,
        data: Data,
        scores: np.ndarray | None,
        *,
        continued: bool = False,
        held_out: HeldOut | None = None,
    ) -> CatBoost:
        import catboost

        given = _made(estimator, self._quiet(estimator)).get_params()
        parameters = {k: v for k, v in given.items() if k not in OWN | LABELS | set(KINDS)}
        kinds = {k: given[k] for k in KINDS if k in given}
        two = len(self.classes) == 2
        matrix = not two and scores is None and str(given.get("task_type", "CPU")) == "CPU"
        parameters["loss_function"] = "CrossEntropy" if two else MATRIX if matrix else "MultiClass"
        if matrix and first_given(given, self.rate_names) is None:
            parameters["learning_rate"] = _usual_rate(parameters, len(data[1]), held_out is not None)
        elif not two and not matrix:
            parameters["classes_count"] = len(self.classes)

        def pool_of(data: Data, scores: np.ndarray | None) -> Any:
            X, targets, weight = data
            if two:
                baseline = None if scores is None else scores[:, 0]
                return catboost.Pool(X, label=targets[:, 1], weight=weight, baseline=baseline, **kinds)
            if matrix:
                return catboost.Pool(X, label=_varied(targets), weight=weight, **kinds)
            row, column, share = soft_rows(targets, weight)
            baseline = None if scores is None else scores[row]
            return catboost.Pool(_safe_indexing(X, row), label=column, weight=share, baseline=baseline, **kinds)

        if held_out is None:
            return catboost.CatBoost(parameters).fit(pool_of(data, scores))
        parameters["use_best_model"] = True
        return catboost.CatBoost(parameters).fit(pool_of(data, scores), eval_set=pool_of(*held_out))

    def cannot_start(self, base_share: float, base: Any) -> str | None:
        reason = super().cannot_start(base_share, base)
        encoded = [kind for kind in KINDS if self.estimator.get_params().get(kind) is not None]
        if reason is None and encoded and len(self.classes) > 2:
            return (
                f"CatBoostClassifier cannot continue boosting on soft targets of {len(self.classes)} classes with "
                f"{encoded[0]}: it encodes them by the targets of earlier rows, among them copies of the same row."
            )
        return reason

    @classmethod
    def rounds_trained(cls, booster: CatBoost) -> int:
        return int(booster.tree_count_)

    @staticmethod
    def _quiet(estimator: CatBoostClassifier) -> dict[str, Any]:
        """Parameters that keep the terminal and the folder clean, where the estimator has no other wish."""
        given = estimator.get_params()
        quiet = {} if {"verbose", "silent", "logging_level", "verbose_eval"} & set(given) else {"verbose": False}
        return quiet if "allow_writing_files" in given else quiet | {"allow_writing_files": False}

    def weights_of_classes(self, given: dict[str, Any], mass: np.ndarray) -> np.ndarray | None:
        weights, balanced = given.get("class_weights"), given.get("auto_class_weights")
        if weights is not None:
            listed = weights if not isinstance(weights, dict) else [weights.get(c, 1.0) for c in self.classes.tolist()]
            return np.asarray(listed, dtype=float)
        if balanced is not None and str(balanced) != "None":
            ratio = mass.max() / np.maximum(mass, 1e-12)
            return np.asarray(np.sqrt(ratio) if str(balanced) == "SqrtBalanced" else ratio)
        return super().weights_of_classes(given, mass)

    @classmethod
    def read_native(cls, who: str, path: Path, data: bytes) -> CatBoostClassifier:
        with importing(who, "boosting"):
            import catboost
        name = repr(str(path))
        with reading(who, name):
            cls.model.check(data)
        try_reading(f"{who}: {name}", [data])
        with reading(who, name):
            model = catboost.CatBoostClassifier().load_model(path)  # by its path: bytes come without parameters
            loss = loss_of(model)
            require(loss in CLASSIFIERS, f"its loss is {loss}, which is not that of a classifier")
            return model

    @classmethod
    def check_scores(cls, base: CatBoostClassifier) -> None:
        if (loss := loss_of(base)) not in LOSSES:
            raise ValueError(f"its probabilities are not those of its scores (loss {loss or 'unknown'})")
        if len(base.classes_) == 2 and base.get_probability_threshold() != 0.5:
            raise ValueError("it decides at a threshold of its own")


def loss_of(model: CatBoostClassifier) -> str:
    """Return the name of the loss that a model was trained with; empty where it is unknown."""
    return str(model.get_all_params().get("loss_function", "")).partition(":")[0]


def has_sigmoids(booster: CatBoost) -> bool:
    """Whether a booster has a sigmoid per class; read from its file, where one that was loaded has it as well."""
    return f'"type":"{MATRIX}"' in booster.get_metadata().get("params", "")  # JSON, which would take longer to parse


def _varied(targets: np.ndarray) -> np.ndarray:
    """Return targets of which no column is constant, such as that of a class without mass, which CatBoost refuses."""
    same = np.ptp(targets.astype(np.float32), axis=0) == 0
    if not same.any():
        return targets
    varied = targets.copy()
    varied[0, same] += np.where(varied[0, same] < 0.5, 1e-6, -1e-6)
    return varied


def _usual_rate(parameters: dict[str, Any], rows: int, stops: bool) -> float:
    """Return the learning rate that CatBoost chooses for labels; it depends on rows and rounds, not on features."""
    import catboost

    few = {name: parameters[name] for name in ROUNDS if name in parameters}
    one = catboost.CatBoost({**few, "loss_function": "MultiClass", "depth": 1, "thread_count": 1, **QUIET})
    pool = catboost.Pool(np.arange(rows)[:, None] % 2, label=np.arange(rows) % 3)
    one.fit(pool, eval_set=pool if stops else None, use_best_model=stops, callbacks=[FirstRound()])
    return float(one.get_all_params()["learning_rate"])


class FirstRound:
    """Ends a training of CatBoost after its first round."""

    def after_iteration(self, info: object) -> bool:
        """Return whether training goes on."""
        return False


def _made(estimator: CatBoostClassifier, changed: dict[str, Any]) -> CatBoostClassifier:
    """Return an unfitted estimator with changed parameters, without those that are None, which CatBoost refuses."""
    given = estimator.get_params() | changed
    return type(estimator)(**{k: v for k, v in given.items() if v is not None})


def try_reading(what: str, files: Sequence[bytes]) -> None:
    """Read files of CatBoost in another process first, which damaged ones can crash; ``what`` begins the error."""
    sums = {hashlib.sha256(data).digest(): data for data in files}
    untried = [data for key, data in sums.items() if key not in TRIED]
    if not untried:
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{k}.cbm") for k in range(len(untried))]
        for path, data in zip(paths, untried, strict=True):
            path.write_bytes(data)
        # -P: a file catboost.py in the current folder is not what is meant.
        command = [sys.executable, "-P", "-c", TRIAL, *map(str, paths)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        except subprocess.TimeoutExpired:
            raise Refused(f"{what} is damaged: reading it does not end.") from None
    if done.returncode:
        raise Refused(f"{what} is damaged, or no model file of CatBoost: it cannot be read.")
    TRIED.update(sums)
