"""Retrain from files, for the command line: read rows and a base, train within the budget, write model and report."""

from lowchurn.retrain._command import Retrained, Roles, dial_file, report_json, retrain_files

__all__: list[str] = []  # nothing for users: in Python, LowChurnClassifier does the same
