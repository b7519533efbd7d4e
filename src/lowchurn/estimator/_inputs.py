"""Rows in the forms that callers give them in, and what to warn of before anything is chosen."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from lowchurn._checks import check_number
from lowchurn.estimator._labels import GONE, WHO
from lowchurn.estimator._production import Base, GivenBase
from lowchurn.estimator._training import Ruler, Terms, Trials, clearly_worse

SMALLEST_WEIGHT = 1e-100  # of a row that has one; its inverse is the largest


def check_budget(max_churn: float, hard: bool) -> None:
    """A share of decisions above 0, or a divergence; a percentage is recognised."""
    try:
        check_number(WHO, "max_churn", max_churn, 0, 1.0 if hard else math.inf, open_low=True, open_high=True)
    except ValueError as error:
        hint = ""
        if hard and isinstance(max_churn, int | float | np.integer | np.floating) and not isinstance(max_churn, bool):
            if 1 <= max_churn <= 100:
                hint = f" It is a share of the decisions: did you mean {max_churn / 100:g}?"
            elif max_churn == 0:
                hint = " No change at all is the base itself: keep serving it."
        raise ValueError(f"{error}{hint}") from None


def refuse_other_classes(known: Base | GivenBase, ruler: Ruler, classes: np.ndarray) -> None:
    """A base whose answers are about other classes cannot be compared with."""
    gone = ruler.base_decisions == GONE
    if gone.all() and (ruler.base_proba == ruler.base_proba[:, :1]).all():  # nor any probability for one of these
        raise ValueError(
            f"{WHO}: the base knows none of the classes {classes.tolist()[:5]}: it decides for others on every "
            "held-out row. Labels must be of the same kind on both sides."
        )
    if not isinstance(known, Base) or known.names is not None or hasattr(known.model, "classes_"):
        return
    if gone.any() and hasattr(known.model, "predict_proba"):
        raise ValueError(
            f"{WHO}: the base decides for classes that y does not have, and its columns of probabilities have no "
            "names. Name them: fit(..., base_classes=)."
        )


def warn_of_poor_base(known: Base | GivenBase, trials: Trials) -> None:
    """A base far worse than a retrain most likely does not get the rows that it gets in production."""
    ruler, plain = trials.ruler, trials.probas[0]
    assert ruler is not None
    if plain is None:
        return
    # A class that came or went since is no fault of the base.
    both = (ruler.base_decisions != GONE) & known.known_classes[ruler.y]
    weights = ruler.weights[both]
    base_right, plain_right = (ruler.base_decisions == ruler.y)[both], (ruler.errors(plain) == 0)[both]
    if not both.any() or not clearly_worse(base_right, plain_right, weights):
        return
    base, retrain = (float(np.average(right, weights=weights)) for right in (base_right, plain_right))
    warnings.warn(
        f"{WHO}: the base is right in {base:.1%} of the held-out rows, a plain retrain in {retrain:.1%}. Does the base "
        "get what it gets in production? Likely causes: other columns or another order of them, rows that are already "
        "scaled or encoded (inside a Pipeline the base gets the transformed rows: put the steps into the base), class "
        "names in another order. Where the world has changed so much, churn is what you want.",
        stacklevel=3,
    )


def decides_otherwise(ruler: Ruler) -> str:
    """In words, that the base does not decide for its largest probability, as candidates do; empty where it does."""
    known = ruler.base_decisions != GONE
    other = known & (ruler.base_decisions != ruler.base_proba.argmax(axis=1))
    tied = np.sort(ruler.base_proba, axis=1)[:, -2:]
    other &= tied[:, 1] - tied[:, 0] > 1e-6  # equal ones may fall either way
    share = float(np.average(other, weights=ruler.weights))
    if share == 0:
        return ""
    return (
        f"The base does not decide for its largest probability in {share:.1%} of the held-out rows (a threshold of its "
        "own?); candidates do."
    )


def warn_of_seen_rows(trials: Trials, said: bool) -> None:
    """A base that beats a retrain on held-out rows has most likely been trained on them."""
    ruler, plain = trials.ruler, trials.probas[0]
    assert ruler is not None
    if said or plain is None:
        return
    base_right, plain_right = ruler.base_decisions == ruler.y, ruler.errors(plain) == 0
    lost = float(ruler.weights[base_right & ~plain_right].sum())
    won = float(ruler.weights[~base_right & plain_right].sum())
    if lost - won > 3 * math.sqrt(lost + won):  # three standard errors of the paired difference
        warnings.warn(
            f"{WHO}: the base is clearly more accurate on the held-out rows than a plain retrain. It was probably "
            "trained on some of them, and then churn and accuracy there say little about new rows. "
            "Say which rows are new with new=.",
            stacklevel=3,
        )


def warn_of_few_rows(terms: Terms, budget: float | None) -> None:
    """Where one changed row is above the budget, the budget cannot be seen."""
    if budget is not None and terms.hard and terms.rows * budget < 1:
        warnings.warn(
            f"{WHO}: {terms.rows:.0f} held-out rows are few for max_churn={budget:g}: one changed "
            "row is above the budget. Give more rows, or hold more of them out with held_out=.",
            stacklevel=3,
        )


def rows_for(known: Base | GivenBase, X: Any, rows: np.ndarray) -> Any:
    """A model is asked about rows, a table about their positions."""
    return rows if isinstance(known, GivenBase) else _safe_indexing(X, rows)


def as_mask(name: str, rows: Any, n: int) -> np.ndarray | None:
    if rows is None:
        return None
    given = np.asarray(rows)
    given = given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given
    if given.dtype.kind == "O" and all(isinstance(value, bool | np.bool_) for value in given.ravel()):
        given = given.astype(bool)
    flags = given.dtype.kind in "iu" and n > 2 and given.max(initial=0) <= 1 and given.min(initial=1) >= 0
    if given.shape == (n,) and (given.dtype.kind == "b" or flags):  # as positions all rows of 0 and 1 would be two rows
        return given.astype(bool)
    if given.dtype.kind in "iu" and given.ndim == 1 and given.size and given.min() >= 0 and given.max() < n:
        mask = np.zeros(n, dtype=bool)
        mask[given] = True
        return mask
    raise ValueError(
        f"{WHO}: {name} must be a mask of {n} rows (True or False) or positions from 0 to {n - 1}, "
        f"got {given.dtype} of shape {given.shape}."
    )


def check_size_of_weights(weight: np.ndarray | None) -> None:
    """Weights whose squares and sums float64 can hold."""
    if weight is None:
        return
    used = weight[weight > 0]
    for extreme in (used.min(initial=1.0), used.max(initial=1.0)):
        if not SMALLEST_WEIGHT <= extreme <= 1 / SMALLEST_WEIGHT:
            raise ValueError(
                f"{WHO}: sample_weight must be 0 or from {SMALLEST_WEIGHT:g} to {1 / SMALLEST_WEIGHT:g}, "
                f"got {extreme:g}. Divide the weights by their mean."
            )


def take_rows(
    used: np.ndarray, n: int, base_proba: Any, ids: Any, new: Any, held_out: Any
) -> tuple[Any, Any, Any, Any]:
    """Leave rows without weight out of everything that is in the order of X."""
    masks = [as_mask(name, rows, n) for name, rows in (("new", new), ("held_out", held_out))]
    kept = [None if mask is None else mask[used] for mask in masks]
    if base_proba is not None and ids is None and not isinstance(base_proba, Mapping):
        base_proba = _safe_indexing(base_proba, used)
    return base_proba, None if ids is None else np.asarray(ids)[used], *kept


class Bar:
    """Counts trainings on a progress bar, or on none."""

    def __init__(self, shown: Any = None) -> None:
        self.shown = shown
        self.total = self.done = 0
        self.task: Any = None if shown is None else shown.add_task("training candidates", total=None)

    def expect(self, trainings: Collection[Any], more: int = 0) -> None:
        """How many there will be, and how many more there may be."""
        self.total = len(trainings) + more
        if self.shown is not None:
            self.shown.update(self.task, total=self.total)

    def advance(self) -> None:
        self.done += 1
        if self.shown is not None:
            self.shown.advance(self.task)


@contextlib.contextmanager
def progress(verbose: int) -> Iterator[Bar]:
    """A bar that is full at the end, whether or not all that may be trained was."""
    if not verbose:
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as shown:  # the standard output is for results
        bar = Bar(shown)
        yield bar
        shown.update(bar.task, completed=bar.total)
