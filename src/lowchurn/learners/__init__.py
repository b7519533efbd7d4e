"""What is trained: takes soft targets, returns models with probabilities. One file per library."""

from lowchurn.learners._all import learner_for
from lowchurn.learners._learner import Job, Learner
from lowchurn.learners._native import native_model
from lowchurn.learners._torch import NetworkClassifier

__all__ = ["Job", "Learner", "NetworkClassifier", "learner_for", "native_model"]
