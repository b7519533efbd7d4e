"""LowChurnClassifier: scikit-learn's contract around strategies, learners and selection."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, check_random_state, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    assert_all_finite,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from lowchurn.checks import check_choice, check_number
from lowchurn.estimator.base import WHO, Base, GivenBase, find_base, inner_model
from lowchurn.estimator.candidates import Ruler, Trained, Trials, resolve, takes_nan
from lowchurn.estimator.choose import (
    BASE,
    Offer,
    Served,
    certify_offers,
    choose,
    kept_base,
    mixtures,
    singles,
)
from lowchurn.estimator.frontier import Selection
from lowchurn.estimator.searching import default_strategies, search_lambda
from lowchurn.estimator.split import Part, Split, held_out_rows, split_rows, whole_numbers
from lowchurn.scoring import Score, get_score
from lowchurn.selection import InfeasibleBudget
from lowchurn.strategies import ColdStart


class LowChurnClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """Retrain a classifier so that few of the decisions of the model in production change.

    Parameters
    ----------
    estimator : classifier, optional
        What to train: any scikit-learn classifier that takes ``sample_weight``, LightGBM, XGBoost, CatBoost, or a
        Pipeline that ends in one. A clone of the base by default, or a logistic regression without one.
    base : fitted classifier, callable or path, optional
        The model in production: a fitted estimator, a function of X that gives probabilities (or labels), an ONNX file or
        a saved model. Without it (and without ``base_proba`` at ``fit``) this is plain retraining.
    max_churn : float, optional
        The budget. The most accurate candidate within it on held-out rows is served. Without it, the candidate with
        the least churn that is at least as accurate as a plain retrain.
    churn : {"hard", "soft"}
        Share of changed decisions, or mean divergence from the base's probabilities.
    strategies : list, optional
        What to try: strategies, classes of them, or names. See the guide for the default.
    select : {"single", "mixture"}
        Serve one candidate, or the best convex combination of candidates (and of the base, where it can be served).
    search : {"auto", "grid"}
        Find lambda with about three trainings, or train the paper's whole grid.
    confidence : float, optional
        Certify the budget with this confidence on rows that nothing else sees.
    validation_fraction : float, optional
        Share of rows to hold out. By default what the budget needs, at most a fifth (two with ``confidence``).
    proper_score : str or Score
        The proper score behind risk and soft churn.
    n_jobs : int, optional
        Candidates to train at a time, by joblib.
    random_state : int, RandomState or None
        Decides the rows held out, and seeds estimators that have no seed of their own.
    verbose : int
        Show a progress bar.

    Attributes
    ----------
    selection_ : Selection
        What is served and why.
    frontier_ : Frontier
        Every candidate with its risk, accuracy, churn, broken decisions and intervals.
    certificate_ : Certificate or None
        What the rows prove, where ``confidence`` asked for it.
    model_, preprocessing_
        The fitted model that is served and its fitted preprocessing (None for a mixture).
    classes_, n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    The model that is served is the very one that was measured and certified: it is not fitted again on all rows.
    A refit would be another model, with other flips.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from lowchurn import LowChurnClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> base = make_pipeline(StandardScaler(), LogisticRegression(C=100)).fit(X[:60], y[:60])
    >>> model = LowChurnClassifier(base=base, max_churn=0.05).fit(X[:400], y[:400])
    >>> model.selection_.feasible, model.selection_.churn <= 0.05
    (True, True)
    >>> bool((model.predict(X[400:]) != base.predict(X[400:])).mean() < 0.1)
    True
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        base: Any = None,
        max_churn: float | None = None,
        churn: str = "hard",
        strategies: Any = None,
        select: str = "single",
        search: str = "auto",
        confidence: float | None = None,
        validation_fraction: float | None = None,
        proper_score: str | Score = "log",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.base = base
        self.max_churn = max_churn
        self.churn = churn
        self.strategies = strategies
        self.select = select
        self.search = search
        self.confidence = confidence
        self.validation_fraction = validation_fraction
        self.proper_score = proper_score
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        base_proba: Any = None,
        base_classes: Any = None,
        ids: Any = None,
        new: Any = None,
        held_out: Any = None,
    ) -> Self:
        """Train candidates, choose among them on held-out rows, certify if asked.

        Parameters
        ----------
        X : table of shape (n, features)
            Old and new rows: array, sparse matrix, pandas or polars.
        y : array of shape (n,)
            Labels: strings, integers or booleans.
        sample_weight : array of shape (n,), optional
            Weights. Whole numbers (up to 50) count copies of the row; others weigh it.
        base_proba : array, data frame or mapping, optional
            The base's probabilities of these rows (or its labels) instead of ``base``: in the order of X, or keyed by
            id (a mapping, or a data frame indexed by id) together with ``ids``.
        base_classes : list, optional
            The classes of the columns of ``base_proba``; sorted labels of ``y``, or a data frame's columns by default.
        ids : array of shape (n,), optional
            Keys of the rows in ``base_proba``.
        new : array, optional
            The rows that the base was not trained on, as a mask or as positions. Rows are then held out among these
            only: on rows that it has learned by heart the base looks better, and churn smaller, than it will be.
        held_out : array, optional
            The rows to hold out, as a mask or as positions, instead of a random share.
        """
        budget = self._check_parameters()
        X, y = self._check_rows(X, y)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        base = None if self.base is None or base_proba is not None else find_base(self.base)
        self._estimator = estimator = self._find_estimator(base)
        self.classes_, index = np.unique(y, return_inverse=True)
        if weight is not None and not weight.all():  # a row without weight is no row
            used = np.flatnonzero(weight)
            if len(used) == 0:
                raise ValueError(f"{WHO}: sample_weight must not be all zero.")
            X, weight = _safe_indexing(X, used), weight[used]
            self.classes_, index = np.unique(y[used], return_inverse=True)
            base_proba, ids, new, held_out = _take_rows(used, len(y), base_proba, ids, new, held_out)
        if len(self.classes_) < 2:
            raise ValueError(f"{WHO}: y must have at least two classes, got 1 class. There is nothing to decide.")
        if base is None and base_proba is None:
            return self._fit_plain(estimator, X, index, weight)
        known: Base | GivenBase
        if base is not None:
            known = Base(base, self.classes_)
        else:
            known = GivenBase(base_proba, base_classes, ids, len(index), self.classes_)
        rows = self._split(X, index, weight, new, held_out)
        ruler = self._ruler(known, X, index, rows.choose)
        self._warn_of_few_rows(ruler)
        fixed, families = resolve([] if self.strategies is None else self.strategies, self.search)
        with _progress(self.verbose, 4 if self.strategies is None else 1 + len(fixed) + 3 * len(families)) as done:
            trials = Trials(
                estimator=estimator,
                classes=self.classes_,
                X=X,
                y=index,
                train=rows.train,
                base_proba=known.proba(_rows_for(known, X, rows.train.rows)),
                start=inner_model(known.model) if known.servable else (None, None),
                X_choose=_safe_indexing(X, rows.choose.rows),
                ruler=ruler,
                n_jobs=self.n_jobs,
                seed=self._seed(),
                done=done,
            )
            if self.strategies is None:
                fixed, families = resolve(default_strategies(trials), self.search)
            trials.run([ColdStart(), *(s for s in fixed if s != ColdStart())])
            certified = 0 if rows.certify is None else int(rows.certify.weights.sum())
            for family in families:
                search_lambda(family, trials, ruler, budget, self.confidence, certified)
        self.frontier_ = trials.frontier
        _warn_of_seen_rows(trials, new is not None or held_out is not None)
        self._choose(trials, known, X, index, rows)
        return self

    def _choose(self, trials: Trials, known: Base | GivenBase, X: Any, index: np.ndarray, rows: Split) -> None:
        ruler = trials.ruler
        assert ruler is not None
        budget, mixing = self.max_churn, self.select == "mixture"
        plain = singles(trials, ruler)[0]
        offers = mixtures(trials, ruler, budget, known.servable) if mixing else singles(trials, ruler)
        picked, rule = choose(offers, ruler, budget, plain)
        self.certificate_ = None
        if self.confidence is not None and offers:
            assert budget is not None
            assert rows.certify is not None
            judge = self._ruler(known, X, index, rows.certify)
            self._served = Served({}, known if known.servable else None, trials.models, self.classes_)
            X_certify = _safe_indexing(X, rows.certify.rows)
            each = {k: self._served.part(k, X_certify) for k in {k for offer in offers for k in offer.weights}}
            copies = judge.weights.astype(int) if whole_numbers(judge.weights) else None

            def changes(offer: Offer) -> np.ndarray:
                values = judge.changes(sum(w * each[k] for k, w in offer.weights.items()))
                return values if copies is None else np.repeat(values, copies)

            bound = 1.0 if ruler.hard else float(ruler.score.bound)
            self.certificate_, best = certify_offers(offers, picked, changes, budget, self.confidence, bound)
            if self.certificate_.certified:
                picked, rule = best, f"{rule}, certified with confidence {self.confidence:g}"
            else:
                warnings.warn(f"{WHO}: {self.certificate_}", stacklevel=3)
        if picked is None:
            picked = self._fall_back(offers, trials, known.servable)
        feasible = budget is None or picked.churn <= budget * (1 + 1e-9)
        self._served = Served(picked.weights, known if known.servable else None, trials.models, self.classes_)
        self._remember(picked, rule, feasible, trials, rows)

    def _fall_back(self, offers: list[Offer], trials: Trials, servable: bool) -> Offer:
        """No candidate keeps the budget: blend with the base, or refuse where it cannot be served."""
        least = min((offer.churn for offer in offers), default=math.nan)
        assert self.max_churn is not None
        assert trials.ruler is not None
        if not servable:
            raise InfeasibleBudget(WHO, self.max_churn, least)
        blends = [*mixtures(trials, trials.ruler, self.max_churn, servable), kept_base(trials.ruler)]
        picked, _ = choose(blends, trials.ruler, self.max_churn, blends[0])
        if picked is None:  # even the base changes decisions where classes are gone
            picked = min(blends, key=lambda offer: (offer.churn, offer.cost))
        self.frontier_.append(picked.candidate)
        what = "The base is kept as it is" if list(picked.weights) == [BASE] else "A blend with the base is served"
        warnings.warn(
            f"{WHO}: no candidate keeps max_churn={self.max_churn:g} on held-out rows; the least churn is {least:.3g}. "
            f"{what}. Raise the budget, or try a start from the base or other strategies, to serve one model.",
            stacklevel=4,
        )
        return picked

    def _remember(self, picked: Offer, rule: str, feasible: bool, trials: Trials, rows: Split) -> None:
        names = {k: trials.frontier[k].name if k != BASE else "base" for k in picked.weights}
        row = picked.candidate
        parts = {"train": rows.train, "choose": rows.choose, "certify": rows.certify}
        self.selection_ = Selection(
            served={names[k]: w for k, w in picked.weights.items()},
            rule=rule,
            feasible=feasible,
            risk=row.risk,
            accuracy=row.accuracy,
            churn=row.churn,
            broken=row.broken,
            trainings=trials.trainings,
            rows={name: 0 if part is None else int(part.weights.sum()) for name, part in parts.items()},
        )
        self._expose()

    def _fit_plain(self, estimator: Any, X: Any, index: np.ndarray, weight: np.ndarray | None) -> Self:
        everything = Part(np.arange(len(index)), weight)
        with _progress(self.verbose, 1) as done:
            trials = Trials(
                estimator, self.classes_, X, index, everything, None, (None, None), None, None, self.n_jobs,
                self._seed(), done,
            )  # fmt: skip
            trials.run([ColdStart()])
        nothing = {name: math.nan for name in ("risk", "accuracy", "churn", "broken")}
        counts = {"train": int(everything.weights.sum()), "choose": 0, "certify": 0}
        self.frontier_, self.certificate_ = trials.frontier, None
        self.selection_ = Selection({"cold": 1.0}, "plain retrain, there is no base", True, **nothing, trainings=1,
                                    rows=counts)  # fmt: skip
        self._served = Served({0: 1.0}, None, trials.models, self.classes_)
        self._expose()
        return self

    def _expose(self) -> None:
        single = self._single
        self.model_ = None if single is None else single.model
        self.preprocessing_ = None if single is None else single.preprocessing

    @property
    def _single(self) -> Trained | None:
        """The one trained model that is served, where there is one."""
        return self._served.single if hasattr(self, "_served") else None

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes in the order of ``classes_``."""
        check_is_fitted(self)
        return self._served.proba(self._check_new_rows(X))

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row."""
        check_is_fitted(self)
        if self._keeps_base:
            # The base's own decisions, which need not be those of its largest probability.
            decisions = self._served.base.decisions(self._check_new_rows(X))
            if (decisions >= 0).all():
                return np.asarray(self.classes_[decisions])
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    @property
    def _keeps_base(self) -> bool:
        return hasattr(self, "_served") and list(self._served.weights) == [BASE]

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file; :func:`lowchurn.load` reads it. See the guide for what is in it."""
        from lowchurn.estimator.saving import save

        check_is_fitted(self)
        save(self, path)

    def _check_parameters(self) -> float | None:
        check_choice(WHO, "churn", self.churn, ("hard", "soft"))
        check_choice(WHO, "select", self.select, ("single", "mixture"))
        check_choice(WHO, "search", self.search, ("auto", "grid"))
        self._chosen_score = get_score(self.proper_score)
        if self.max_churn is not None:
            high = 1.0 if self.churn == "hard" else math.inf
            check_number(WHO, "max_churn", self.max_churn, 0, high, open_low=True, open_high=True)
        if self.confidence is not None:
            check_number(WHO, "confidence", self.confidence, 0, 1, open_low=True, open_high=True)
            if self.max_churn is None:
                raise ValueError(f"{WHO}: confidence certifies a budget, got max_churn=None. Give max_churn.")
            bound = self._chosen_score.bound
            if self.churn == "soft" and (bound is None or self.max_churn >= bound):
                raise ValueError(
                    f"{WHO}: soft churn can only be certified below the score's bound, got max_churn={self.max_churn:g} "
                    f"with bound {bound}."
                )
        if self.validation_fraction is not None:
            check_number(WHO, "validation_fraction", self.validation_fraction, 0, 1, open_low=True, open_high=True)
        return self.max_churn

    def _check_rows(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
        if y is None:
            raise ValueError(f"{WHO} requires y to be passed, but the target y is None.")
        if hasattr(X, "columns"):  # pandas, polars: columns keep their kinds
            validate_data(self, X, skip_check_array=True)
            if len(X) == 0:
                raise ValueError(f"{WHO}: X must have at least one row, got an empty table.")
        else:
            X = validate_data(self, X, dtype=None, accept_sparse="csr", ensure_all_finite=not self._takes_nan)
        y = column_or_1d(y, warn=True)
        if y.dtype.kind == "f":
            assert_all_finite(y, input_name="y", estimator_name=WHO)
        elif y.dtype.kind == "O" and any(label is None or label != label for label in y):
            raise ValueError(f"{WHO}: y must not have missing labels. Input y contains NaN.")
        check_consistent_length(X, y)
        check_classification_targets(y)
        return X, y

    def _check_new_rows(self, X: Any) -> Any:
        check_is_fitted(self)
        if hasattr(X, "columns"):
            validate_data(self, X, reset=False, skip_check_array=True)
            return X
        return validate_data(
            self, X, reset=False, dtype=None, accept_sparse="csr", ensure_all_finite=not self._takes_nan
        )  # fmt: skip

    @property
    def _takes_nan(self) -> bool:
        """Whether missing values may go on to the estimator, whose first step may well fill them in."""
        first = self.estimator[0] if isinstance(self.estimator, Pipeline) else self.estimator
        return takes_nan(first if first is not None else self._find_estimator(self.base))

    def _find_estimator(self, base: Any) -> Any:
        if self.estimator is not None:
            if not hasattr(self.estimator, "fit"):
                raise ValueError(
                    f"{WHO}: estimator must be a classifier with fit, got {type(self.estimator).__name__}. "
                    "Give an unfitted classifier or a Pipeline that ends in one."
                )
            return self.estimator
        while type(base).__name__ in ("FrozenEstimator", "LowChurnClassifier") and base.estimator is not None:
            base = base.estimator
        if isinstance(base, BaseEstimator) and hasattr(base, "fit") and not isinstance(base, LowChurnClassifier):
            return clone(base)
        return LogisticRegression(max_iter=1000)

    def _seed(self) -> int | None:
        if self.random_state is None or isinstance(self.random_state, int | np.integer):
            return self.random_state
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _split(self, X: Any, index: np.ndarray, weight: np.ndarray | None, new: Any, held_out: Any) -> Split:
        n = int(weight.sum()) if weight is not None and whole_numbers(weight) else len(index)
        choose_rows, certify_rows = held_out_rows(n, self.max_churn, self.confidence)
        if self.validation_fraction is not None:
            total = max(round(self.validation_fraction * n), 1)
            share = certify_rows / (choose_rows + certify_rows)
            certify_rows = round(share * total)
            choose_rows = total - certify_rows
        mask, fresh = _as_mask("held_out", held_out, len(index)), _as_mask("new", new, len(index))
        if fresh is not None and mask is None:
            available = int(fresh.sum() if weight is None or not whole_numbers(weight) else weight[fresh].sum())
            if available < 2:
                raise ValueError(f"{WHO}: new must name at least two rows to hold out from, got {available}.")
            # At least half of the new rows are for training: they are what the retrain is about.
            shrink = min(1.0, 0.5 * available / (choose_rows + certify_rows))
            choose_rows, certify_rows = max(int(shrink * choose_rows), 1), int(shrink * certify_rows)
        if mask is None:
            counts = np.bincount(index, weights=weight if weight is not None and whole_numbers(weight) else None)
            if counts.min() < 2:
                label = self.classes_[counts.argmin()]
                raise ValueError(
                    f"{WHO}: every class must have at least two rows, one to train on and one to hold out; "
                    f"class {label!r} has one row. Add rows, leave the class out, or say held_out."
                )
            if n - choose_rows - certify_rows < len(self.classes_):
                raise ValueError(
                    f"{WHO}: {n} rows are fewer than the split needs: {choose_rows + certify_rows} held out and at least "
                    f"{len(self.classes_)} to train on. Add rows or lower validation_fraction."
                )
        elif mask.all() or not mask.any() or (self.confidence is not None and mask.sum() < 2):
            raise ValueError(f"{WHO}: held_out must leave rows on both sides, got {mask.sum()} of {len(mask)} rows.")
        elif len(np.unique(index[~mask])) < len(self.classes_):
            raise ValueError(f"{WHO}: held_out must leave rows of every class to train on.")
        return split_rows(X, index, weight, choose_rows, certify_rows, self._seed() or 0, mask, fresh)

    def _ruler(self, known: Base | GivenBase, X: Any, index: np.ndarray, part: Part) -> Ruler:
        rows = _rows_for(known, X, part.rows)
        return Ruler(
            index[part.rows], part.weights, known.proba(rows), known.decisions(rows), self._chosen_score,
            self.churn == "hard",
        )  # fmt: skip

    def _warn_of_few_rows(self, ruler: Ruler) -> None:
        if self.max_churn is not None and self.churn == "hard" and ruler.weights.sum() * self.max_churn < 1:
            warnings.warn(
                f"{WHO}: {ruler.weights.sum():.0f} held-out rows are few for max_churn={self.max_churn:g}: one changed "
                "row is above the budget. Give more rows or raise validation_fraction.",
                stacklevel=3,
            )

    def __sklearn_clone__(self) -> LowChurnClassifier:
        # The base is fitted and stays so: it is what is compared with, not something to train.
        parameters = self.get_params(deep=False)
        return type(self)(**{k: v if k == "base" else clone(v, safe=False) for k, v in parameters.items()})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        try:
            inner = get_tags(LogisticRegression() if self.estimator is None else self.estimator)
        except Exception:  # an estimator without tags
            return tags
        tags.input_tags = inner.input_tags
        if inner.classifier_tags is not None:
            tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
            # Within a budget it can only be so much better than its base.
            tags.classifier_tags.poor_score = inner.classifier_tags.poor_score or self.max_churn is not None
        return tags


def _warn_of_seen_rows(trials: Trials, said: bool) -> None:
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
            f"{WHO}: the base is clearly more accurate on the held-out rows than a plain retrain. It was probably trained "
            "on some of them, and then churn and accuracy there say little about new rows. Say which rows are new: "
            "fit(..., new=mask).",
            stacklevel=3,
        )


def _rows_for(known: Base | GivenBase, X: Any, rows: np.ndarray) -> Any:
    """A model is asked about rows, a table about their positions."""
    return rows if isinstance(known, GivenBase) else _safe_indexing(X, rows)


def _as_mask(name: str, rows: Any, n: int) -> np.ndarray | None:
    if rows is None:
        return None
    given = np.asarray(rows)
    if given.dtype.kind == "b" and given.shape == (n,):
        return given
    if given.dtype.kind in "iu" and given.ndim == 1 and given.size and given.min() >= 0 and given.max() < n:
        mask = np.zeros(n, dtype=bool)
        mask[given] = True
        return mask
    raise ValueError(f"{WHO}: {name} must be a mask of {n} rows or positions in it, got shape {given.shape}.")


def _take_rows(
    used: np.ndarray, n: int, base_proba: Any, ids: Any, new: Any, held_out: Any
) -> tuple[Any, Any, Any, Any]:
    """Leave rows without weight out of everything that is in the order of X."""
    masks = [_as_mask(name, rows, n) for name, rows in (("new", new), ("held_out", held_out))]
    kept = [None if mask is None else mask[used] for mask in masks]
    if base_proba is not None and ids is None and not isinstance(base_proba, Mapping):
        base_proba = _safe_indexing(base_proba, used)
    return base_proba, None if ids is None else np.asarray(ids)[used], *kept


@contextlib.contextmanager
def _progress(verbose: int, total: int) -> Iterator[Callable[[], None]]:
    if not verbose:
        yield lambda: None
        return
    from rich.progress import Progress

    with Progress() as bar:
        task = bar.add_task("training candidates", total=total)
        yield lambda: bar.advance(task)
        bar.update(task, completed=total)
