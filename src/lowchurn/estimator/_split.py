"""Which rows are held out. A row's place depends on its content, not on its position.

Every row gets a random key from a hash of its values, its label and its turn among equal rows. So the split is random
(equal rows get keys of their own), it does not change when rows are shuffled, and a whole-number weight is the
same as that many copies of the row, as in scikit-learn's contract.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _check_sample_weight

from lowchurn._estimates import kish_rows
from lowchurn._types import ArrayLike, Rows
from lowchurn.estimator._labels import WHO
from lowchurn.estimator._production import row_count
from lowchurn.selection import rows_to_certify

COPIES = 50  # a larger whole-number weight is an importance, not a count
SMALLEST_WEIGHT = 1e-100  # of a row that has one; its inverse is the largest


@dataclass(frozen=True, eq=False)
class SomeRows:
    """Some of the rows, each with a weight (None where all are one)."""

    rows: np.ndarray
    weight: np.ndarray | None

    @property
    def weights(self) -> np.ndarray:
        return np.ones(len(self.rows)) if self.weight is None else self.weight


@dataclass(frozen=True, eq=False)
class Split:
    """Rows to train on, to choose on (where there is a base) and to certify on (where a certificate is wanted).

    Where there is traffic, churn is measured and certified on it.
    """

    train: SomeRows
    choose: SomeRows | None = None
    certify: SomeRows | None = None
    traffic: Traffic | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How many rows there are of each."""
        parts = {"train": self.train, "choose": self.choose, "certify": self.certify}
        counts = {name: 0 if part is None else round(effective_rows(part.weights)) for name, part in parts.items()}
        return counts | ({} if self.traffic is None else self.traffic.counts)

    @property
    def to_certify(self) -> dict[str, int]:
        """How many rows a certificate of churn, and of broken decisions, comes from."""
        labelled = 0 if self.certify is None else int(self.certify.weights.sum())
        if self.traffic is None:
            return {"churn": labelled, "broken": labelled}
        unseen = self.traffic.certify
        return {"churn": 0 if unseen is None else row_count(unseen), "broken": labelled}


@dataclass(frozen=True, eq=False)
class Traffic:
    """Recent rows without labels: some to measure churn on, some to certify on (where a certificate is wanted)."""

    choose: Rows
    certify: Rows | None = None

    @property
    def counts(self) -> dict[str, int]:
        certify = {} if self.certify is None else {"certify": row_count(self.certify)}
        return {"traffic": row_count(self.choose), **certify}


NO_ROWS = SomeRows(np.arange(0), None)


def split_traffic(X: Rows, max_churn: float | None, confidence: float | None, seed: int) -> Traffic:
    """Traffic as a simple random sample to certify on, at most half of it, and the rest."""
    n = row_count(X)
    if n == 0:
        raise ValueError(f"{WHO}: traffic must have at least one row, got an empty table.")
    if confidence is None or max_churn is None:
        return Traffic(X)
    if n < 2:
        raise ValueError(f"{WHO}: traffic must have at least two rows for a certificate, got {n}.")
    wanted = rows_to_certify(max_churn, confidence, 0.6 * max_churn) or n
    certify = min(2 * wanted, n // 2)  # twice what is needed at three fifths of the budget, to come closer to it
    order = _shuffled(X, seed)
    return Traffic(*(_safe_indexing(X, np.sort(some)) for some in (order[certify:], order[:certify])))


def split_for_folds(all_rows: SomeRows, index: np.ndarray, new: np.ndarray | None, folds: int) -> Split:
    """All rows to train on, and all of them (or all new ones) to choose on, by retrains that have not seen them."""
    chosen = np.arange(len(index)) if new is None else np.flatnonzero(new)
    counts = np.bincount(index[chosen])
    least = int(counts[counts > 0].min(initial=len(chosen)))
    if least < 2 or len(chosen) < folds:
        raise ValueError(
            f"{WHO}: cross_fit={folds} needs at least two rows of each class, and a row for each fold"
            f"{'' if new is None else ', among the new rows'}; got {least} and {len(chosen)}."
        )
    return Split(all_rows, SomeRows(chosen, None if all_rows.weight is None else all_rows.weight[chosen]))


def folds_of(X: Rows, y: np.ndarray, rows: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The fold, from 0 on, of each of some rows; those of a class are dealt out one by one, in a random order."""
    keys = _keys(_row_hashes(X, y, seed))[rows]
    order = np.lexsort((keys, y[rows]))
    folds = np.empty(len(rows), dtype=np.int64)
    folds[order] = np.arange(len(rows)) % count
    return folds


def halves(X: Rows, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two random halves of rows without labels, as positions."""
    order = _shuffled(X, seed)
    return np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])


def _shuffled(X: Rows, seed: int) -> np.ndarray:
    """Positions of rows without labels, in an order that their content decides."""
    return np.argsort(_keys(_row_hashes(X, np.zeros(row_count(X), dtype=np.int64), seed)), kind="stable")


def stacked(X: Rows, more: Rows) -> Rows:
    """The rows of two tables of one kind, one after the other."""
    if type(X) is not type(more) and not (sparse.issparse(X) and sparse.issparse(more)):
        raise ValueError(
            f"{WHO}: traffic must be a table of the kind of X, got {type(more).__name__} beside {type(X).__name__}."
        )
    if sparse.issparse(X):
        return sparse.vstack([X, more]).tocsr()
    if not hasattr(X, "columns"):
        return np.concatenate([X, more])
    if hasattr(X, "vstack"):  # polars
        return X.vstack(more.select(X.columns))
    import pandas as pd

    return pd.concat([X, more[X.columns]], ignore_index=True)


def check_weights(sample_weight: ArrayLike | None, X: Rows) -> np.ndarray | None:
    """Weights whose squares and sums float64 can hold."""
    if sample_weight is None:
        return None
    weight = np.asarray(_check_sample_weight(sample_weight, X, ensure_non_negative=True))
    used = weight[weight > 0]
    for extreme in (used.min(initial=1.0), used.max(initial=1.0)):
        if not SMALLEST_WEIGHT <= extreme <= 1 / SMALLEST_WEIGHT:
            raise ValueError(
                f"{WHO}: sample_weight must be 0 or from {SMALLEST_WEIGHT:g} to {1 / SMALLEST_WEIGHT:g}, "
                f"got {extreme:g}. Divide the weights by their mean."
            )
    return weight


def as_mask(name: str, rows: ArrayLike | None, n: int) -> np.ndarray | None:
    """Rows given as a mask or as positions, as a mask."""
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


def take_rows(
    used: np.ndarray, n: int, base_proba: Any, ids: Any, new: ArrayLike | None, held_out: ArrayLike | None
) -> tuple[Any, Any, Any, Any]:
    """Leave rows without weight out of everything that is in the order of X."""
    masks = [as_mask(name, rows, n) for name, rows in (("new", new), ("held_out", held_out))]
    kept = [None if mask is None else mask[used] for mask in masks]
    if base_proba is not None and ids is None and not isinstance(base_proba, Mapping):
        base_proba = _safe_indexing(base_proba, used)
    return base_proba, None if ids is None else np.asarray(ids)[used], *kept


def held_out_rows(n: int, max_churn: float | None, confidence: float | None) -> tuple[int, int]:
    """How many rows to choose on and to certify on, where the caller does not choose.

    Enough to know a churn at the budget to a tenth of it, but at most a fifth of all rows, and at least so many that
    one changed row is within the budget; a certificate takes what it needs at three fifths of the budget, again at most
    a fifth of all rows.
    """
    budget = max_churn if max_churn and max_churn < 1 else 0.02
    choose = min(math.ceil(100 * (1 - budget) / budget), max(round(0.2 * n), math.ceil(1 / budget)), n // 2)
    if confidence is None:
        return max(choose, 1), 0
    wanted = rows_to_certify(budget, confidence, 0.6 * budget) or n
    return max(min(choose, n // 4), 1), max(min(wanted, round(0.2 * n)), 1)


def split_rows(
    X: Rows,
    y: np.ndarray,
    weight: np.ndarray | None,
    choose: int,
    certify: int,
    seed: int,
    held_out: np.ndarray | None = None,
    new: np.ndarray | None = None,
) -> Split:
    """Divide the rows; ``y`` are class indices.

    Rows to certify on are a simple random sample, so that a count on them is binomial. Rows to choose on are drawn
    class by class, and every class keeps at least one row to train on. ``held_out`` is a mask that decides instead;
    ``new`` a mask of rows among which alone rows are held out.
    """
    whole = weight is not None and whole_numbers(weight)
    copies = np.repeat(np.arange(len(y)), weight.astype(int)) if weight is not None and whole else np.arange(len(y))
    order = copies[np.argsort(_keys(_row_hashes(X, y, seed)[copies]), kind="stable")]
    if held_out is not None:
        inside = held_out[order]
        share = certify / max(choose + certify, 1)
        cut = round(share * inside.sum())
        mine = order[inside]
        parts = (order[~inside], mine[cut:], mine[:cut])
    else:
        old = order[:0]
        if new is not None:
            old, order = order[~new[order]], order[new[order]]
        certified, rest = order[:certify], order[certify:]
        chosen = np.zeros(len(rest), dtype=bool)
        for c in np.unique(y[rest]):
            members = np.flatnonzero(y[rest] == c)
            count = min(round(choose * len(members) / len(rest)), len(members) - 1)
            chosen[members[: max(count, 0)]] = True
        if not chosen.any():  # so few rows that every class rounds to none
            chosen[np.flatnonzero(y[rest] == np.bincount(y[rest]).argmax())[0]] = True
        parts = (np.r_[old, rest[~chosen]], rest[chosen], certified)
    train, chosen_part, certified_part = (_part(rows, weight, whole) for rows in parts)
    return Split(train, chosen_part, certified_part if certify else None)


def whole_numbers(weight: np.ndarray) -> bool:
    """Whether weights count copies of rows."""
    return bool((weight == np.rint(weight)).all() and weight.max(initial=0) <= COPIES)


def _part(copies: np.ndarray, weight: np.ndarray | None, whole: bool) -> SomeRows:
    rows, counts = np.unique(copies, return_counts=True)
    if weight is None:
        return SomeRows(rows, None)
    return SomeRows(rows, counts.astype(float) if whole else weight[rows])


def _keys(hashes: np.ndarray) -> np.ndarray:
    """One random key per copy: the hash of the row, stirred with its turn among equal ones."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    turn = np.arange(len(hashes)) - np.maximum.accumulate(np.where(first, np.arange(len(hashes)), 0))
    keys = np.empty(len(hashes), dtype=np.uint64)
    keys[order] = _stir(ordered + turn.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return keys


def _row_hashes(X: Rows, y: np.ndarray, seed: int) -> np.ndarray:
    total = _stir(y.astype(np.uint64) + np.uint64(seed % 2**63))
    for j, column in enumerate(_columns(X)):
        total = _stir(total ^ (column + np.uint64(j + 1)))
    return total


def _columns(X: Rows) -> Iterator[np.ndarray]:
    if sparse.issparse(X):
        # Sums with random factors: the zeros, which are most of it, need not be written out.
        factors = np.random.default_rng(0).normal(size=(X.shape[1], 2))
        X = X @ factors
    if hasattr(X, "columns"):
        for name in X.columns:
            yield _codes(np.asarray(X[name]))
    else:
        for column in np.asarray(X).T:
            yield _codes(column)


def _codes(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind in "fiub":
        values = column.astype(np.float64) + 0.0  # -0.0 becomes 0.0
        values[np.isnan(values)] = np.nan  # one bit pattern for all
        return values.view(np.uint64)
    words: dict[Any, int] = {}
    texts = [words.setdefault(str(v), zlib.crc32(str(v).encode())) for v in column.ravel().tolist()]
    return np.asarray(texts, dtype=np.uint64)


def _stir(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser: neighbouring numbers become unrelated ones."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))


def effective_rows(weights: np.ndarray) -> float:
    """How many rows weights stand for: copies that are counted, else Kish's effective number."""
    return float(weights.sum() if whole_numbers(weights) else kish_rows(weights))


def split_for_budget(
    X: Rows,
    index: np.ndarray,
    weight: np.ndarray | None,
    classes: np.ndarray,
    *,
    limit: float | None,
    confidence: float | None,
    validation_fraction: float | None,
    new: np.ndarray | None,
    held_out: np.ndarray | None,
    seed: int,
) -> Split:
    """Rows to train on, to choose on and to certify with, as many as a limit needs or the caller wants."""
    copies = weight if weight is not None and whole_numbers(weight) else None
    n = len(index) if copies is None else int(copies.sum())
    choose_rows, certify_rows = held_out_rows(n, limit, confidence)
    if validation_fraction is not None:
        total = max(round(validation_fraction * n), 1)
        share = certify_rows / (choose_rows + certify_rows)
        certify_rows = round(share * total)
        choose_rows = total - certify_rows
    if new is not None and held_out is None:
        available = int(new.sum() if copies is None else copies[new].sum())
        if available < 2:
            raise ValueError(f"{WHO}: new must name at least two rows to hold out from, got {available}.")
        # At least half of the new rows are for training: they are what the retrain is about.
        shrink = min(1.0, 0.5 * available / (choose_rows + certify_rows))
        choose_rows, certify_rows = max(int(shrink * choose_rows), 1), int(shrink * certify_rows)
    if held_out is None:
        counts = np.bincount(index, weights=copies)
        if counts.min() < 2:
            label = classes.tolist()[counts.argmin()]
            raise ValueError(
                f"{WHO}: every class must have at least two rows, one to train on and one to hold out; "
                f"class {label!r} has one row. Add rows, leave the class out, or give held_out."
            )
        if n - choose_rows - certify_rows < len(classes):
            lower = "" if validation_fraction is None else " or lower validation_fraction"
            raise ValueError(
                f"{WHO}: {n} rows are fewer than the split needs: {choose_rows + certify_rows} held out and "
                f"at least {len(classes)} to train on. Add rows{lower}."
            )
    elif held_out.all() or not held_out.any() or (confidence is not None and held_out.sum() < 2):
        got = f"{held_out.sum()} of {len(held_out)}"
        raise ValueError(f"{WHO}: held_out must leave rows on both sides, got {got} rows.")
    elif len(np.unique(index[~held_out])) < len(classes):
        raise ValueError(f"{WHO}: held_out must leave rows of every class to train on.")
    return split_rows(X, index, weight, choose_rows, certify_rows, seed, held_out, new)
