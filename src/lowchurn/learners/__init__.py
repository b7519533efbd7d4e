"""What is trained: takes soft targets, gives probabilities. One file a library."""

from lowchurn.learners.rows import fit_soft

__all__ = ["fit_soft"]
