"""Retrain from files: read rows and a base, train within the budget, write the model and a report."""

from __future__ import annotations

from lowchurn.retrain._command import Retrained, dial_file, report_json, retrain_files
from lowchurn.retrain._estimators import choose_estimator
from lowchurn.retrain._tables import Rows, read_rows

__all__ = ["Retrained", "Rows", "choose_estimator", "dial_file", "read_rows", "report_json", "retrain_files"]
