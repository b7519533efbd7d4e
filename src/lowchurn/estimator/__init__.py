"""LowChurnClassifier: retrain any classifier under a churn budget. Glue, no maths.

``base`` reads the model in production, ``split`` holds rows out, ``frontier`` keeps what was measured, ``candidates``
trains and measures, ``classifier`` is the estimator, ``saving`` its files.
"""

from lowchurn.estimator._classifier import LowChurnClassifier
from lowchurn.estimator._frontier import Candidate, Frontier, Selection
from lowchurn.estimator._saving import load

__all__ = ["Candidate", "Frontier", "LowChurnClassifier", "Selection", "load"]
