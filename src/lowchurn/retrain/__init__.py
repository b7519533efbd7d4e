"""Retrain and score from files, for the command line: read rows and a model, write a model or decisions."""

from lowchurn.retrain._command import Retrained, Roles, dial_file, report_json, retrain_files
from lowchurn.retrain._score import Previous, Scored, score_file

__all__: list[str] = []  # nothing for users: in Python, LowChurnClassifier does the same
