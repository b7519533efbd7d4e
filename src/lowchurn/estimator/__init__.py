"""LowChurnClassifier: retrain any classifier under a churn budget. Glue, no maths.

``_classifier`` is the estimator, and its ``fit`` reads as a list: ``_production`` is the base, ``_split`` holds rows
out, ``_to_try`` and ``_training`` train candidates, ``_measuring`` measures them, ``_policy`` chooses under the budget,
``_serving`` is what answers, ``_saving`` its files. ``_soft_targets`` is one training on class probabilities.
"""

from lowchurn.estimator._classifier import LowChurnClassifier, load
from lowchurn.estimator._frontier import Candidate, Frontier, Selection
from lowchurn.estimator._soft_targets import SoftTargetClassifier

__all__ = ["Candidate", "Frontier", "LowChurnClassifier", "Selection", "SoftTargetClassifier", "load"]
