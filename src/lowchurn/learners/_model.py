"""Fitted models in one form: a model behind its preprocessing, and how it is found inside a classifier of any kind.

Pipelines, frozen classifiers, thresholds on decisions and a LowChurnClassifier all contain a model that is asked for
probabilities. :func:`unwrap` returns it in the one form in which models are asked, saved and started from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from lowchurn._types import Model, Rows, Transformer

# They decide at a threshold or refuse to be fitted again; the probabilities are those of the classifier inside.
WRAPPERS = ("FrozenEstimator", "FixedThresholdClassifier", "TunedThresholdClassifierCV")


class BehindPreprocessing:
    """A fitted model behind its fitted preprocessing; ``features`` are the names of the columns it was fitted on."""

    def __init__(self, preprocessing: Transformer | None, model: Model, features: Sequence[str] | None = None) -> None:
        self.preprocessing = preprocessing
        self.model = model
        if features is not None:
            self.feature_names_in_ = np.asarray(features, dtype=object)

    @property
    def classes_(self) -> np.ndarray:
        return np.asarray(self.model.classes_)

    def rows(self, X: Rows) -> Rows:
        """Return rows as the model takes them."""
        return X if self.preprocessing is None else self.preprocessing.transform(X)

    def predict_proba(self, X: Rows) -> np.ndarray:
        return np.asarray(self.model.predict_proba(self.rows(X)))

    def predict(self, X: Rows) -> np.ndarray:
        return np.asarray(self.model.predict(self.rows(X))).ravel()


def inside_wrappers(classifier: Any) -> Any:
    """Return the classifier inside wrappers that do not change its probabilities."""
    while type(classifier).__name__ in WRAPPERS:
        classifier = getattr(classifier, "estimator_", classifier.estimator)
    return classifier


def split_pipeline(estimator: Any) -> tuple[Any, Any]:
    """Return the preprocessing (or None) and the final classifier of an estimator, fitted or not."""
    if isinstance(estimator, Pipeline):
        return (estimator[:-1] if len(estimator) > 1 else None), estimator[-1]
    return None, estimator


def unwrap(classifier: Any) -> BehindPreprocessing | None:
    """Return the one model inside a fitted classifier, behind its preprocessing; None where there is none."""
    features = getattr(classifier, "feature_names_in_", None)
    found = inside_wrappers(classifier)
    if isinstance(found, BehindPreprocessing):
        return found
    if hasattr(found, "model_") and hasattr(found, "preprocessing_"):
        return None if found.model_ is None else BehindPreprocessing(found.preprocessing_, found.model_, features)
    preprocessing, model = split_pipeline(found)
    if not (isinstance(found, Pipeline) or hasattr(model, "fit") or hasattr(model, "predict_proba")):
        return None
    return BehindPreprocessing(preprocessing, model, features)
