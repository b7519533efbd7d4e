"""lowchurn: retrain a classifier so that few of its decisions change, and prove it."""

from lowchurn import metrics, scoring, selection, strategies, theory

__version__ = "0.1.0"

__all__ = ["__version__", "metrics", "scoring", "selection", "strategies", "theory"]
