"""LowChurnClassifier: scikit-learn's contract around strategies, learners and selection."""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils import _safe_indexing, check_random_state, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from lowchurn._checks import check_choice, check_number
from lowchurn.estimator._frontier import Selection
from lowchurn.estimator._inputs import (
    as_mask,
    check_budget,
    check_size_of_weights,
    decides_otherwise,
    progress,
    refuse_other_classes,
    rows_for,
    take_rows,
    warn_of_few_rows,
    warn_of_poor_base,
    warn_of_seen_rows,
)
from lowchurn.estimator._labels import WHO, target_labels, unusual
from lowchurn.estimator._policy import (
    Desk,
    Offer,
    Served,
    certified_changes,
    fall_back,
    mixtures,
    singles,
)
from lowchurn.estimator._production import Base, GivenBase, find_base, start_of
from lowchurn.estimator._searching import (
    DEFAULT,
    MOST,
    SPECIAL,
    default_strategies,
    instead_of,
    resolve,
    search_lambda,
    special_strategies,
)
from lowchurn.estimator._split import Part, Split, effective_rows, split_for_budget
from lowchurn.estimator._to_train import find_estimator, may_take_nan, unfitted
from lowchurn.estimator._training import Ruler, Trained, Trials
from lowchurn.scoring import Score, get_score
from lowchurn.strategies import ColdStart, trainings


class LowChurnClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """Retrain a classifier so that few of the decisions of the model in production change.

    Parameters
    ----------
    estimator : classifier, optional
        What to train: any scikit-learn classifier that takes ``sample_weight``, LightGBM, XGBoost, CatBoost, a torch
        network (a module or a :class:`~lowchurn.learners.NetworkClassifier`), or a Pipeline that ends in one. A clone
        of the base by default, or a logistic regression without one.
    base : fitted classifier, callable or path, optional
        The model in production: a fitted estimator, a function of X that gives probabilities or labels, an ONNX file
        or a saved model. Without it (and without ``base_proba`` at ``fit``) this is plain retraining.
    max_churn : float, optional
        The budget. The most accurate candidate within it on held-out rows is served. Without it, the candidate with
        the least churn that is at least as accurate as a plain retrain.
    churn : {"hard", "soft"}
        Share of changed decisions, or mean divergence from the base's probabilities.
    strategies : list, "dial", "auto", optional
        What to try: strategies, classes of them, or names; "dial" for everything between the retrain and the base,
        which :meth:`dial` then reaches without training; "auto" for the dial, or distillation where it is clearly
        better. See the guide for the default.
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
            The classes of the columns of ``base_proba``, or of a base that does not name them (a function, a file
            without labels); sorted labels of ``y``, or a data frame's columns by default.
        ids : array of shape (n,), optional
            Keys of the rows in ``base_proba``.
        new : array, optional
            The rows that the base was not trained on, as a mask or as positions. Rows are then held out among these
            only: on rows that it has learned by heart the base looks better, and churn smaller, than it will be.
        held_out : array, optional
            The rows to hold out, as a mask or as positions, instead of a random share.
        """
        budget = self._check_parameters()
        given = base_proba is not None
        asked = self.base is not None and (not given or self.estimator is None)
        base = find_base(self.base, classes=base_classes) if asked else None
        self._estimator = estimator = find_estimator(self.estimator, base, given or base is not None, self._seed())
        X, y = self._check_rows(X, y)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        check_size_of_weights(weight)
        self.classes_, index = np.unique(y, return_inverse=True)
        if weight is not None and not weight.all():  # a row without weight is no row
            used = np.flatnonzero(weight)
            X, weight = _safe_indexing(X, used), weight[used]
            self.classes_, index = np.unique(y[used], return_inverse=True)
            base_proba, ids, new, held_out = take_rows(used, len(y), base_proba, ids, new, held_out)
        if len(self.classes_) < 2:
            raise ValueError(f"{WHO}: y must have at least two classes, got 1 class. There is nothing to decide.")
        if base is None and base_proba is None:
            if budget is not None or self.confidence is not None:
                raise ValueError(
                    f"{WHO}: max_churn and confidence need a base to compare with, got base=None. "
                    "Give base=, or base_proba at fit."
                )
            return self._fit_plain(estimator, X, index, weight)
        known: Base | GivenBase
        if given:
            known = GivenBase(base_proba, base_classes, ids, len(index), self.classes_)
        else:
            known = Base(base, self.classes_, base_classes)
        rows = split_for_budget(
            X,
            index,
            weight,
            self.classes_,
            max_churn=self.max_churn,
            confidence=self.confidence,
            validation_fraction=self.validation_fraction,
            new=as_mask("new", new, len(index)),
            held_out=as_mask("held_out", held_out, len(index)),
            seed=self._seed() or 0,
        )
        ruler = self._ruler(known, X, index, rows.choose)
        refuse_other_classes(known, ruler, self.classes_)
        warn_of_few_rows(ruler.terms, self.max_churn)
        named = self.strategies is None or isinstance(self.strategies, str)
        default, special = named and self.strategies in DEFAULT, named and self.strategies in SPECIAL
        fixed, families = resolve([] if default or special else self.strategies, self.search)
        with progress(self.verbose) as bar:
            trials = Trials(
                estimator=estimator,
                classes=self.classes_,
                X=X,
                y=index,
                train=rows.train,
                base_proba=known.proba(rows_for(known, X, rows.train.rows)),
                start=start_of(known, X),
                X_choose=_safe_indexing(X, rows.choose.rows),
                ruler=ruler,
                n_jobs=self.n_jobs,
                seed=self._seed(),
                done=bar.advance,
                servable=known.servable,
            )
            if default:
                fixed, families = resolve(default_strategies(trials), self.search)
            elif special:
                fixed, families = special_strategies(self.strategies, trials)
            bar.expect({(ColdStart(), 0)} | {one for s in fixed for one in trainings(s)}, MOST * len(families))
            trials.run([ColdStart()])  # first in every frontier: what the others are compared with
            trials.run(s for s in fixed if s != ColdStart())
            certified = 0 if rows.certify is None else int(rows.certify.weights.sum())
            for family in families:
                found = search_lambda(family, trials, ruler, budget, self.confidence, certified)
                other = instead_of(family) if default or special else None
                if not found and other is not None:
                    search_lambda(other, trials, ruler, budget, self.confidence, certified)
        self.frontier_ = trials.frontier
        warn_of_seen_rows(trials, new is not None or held_out is not None)
        warn_of_poor_base(known, trials)
        self._choose(trials, known, X, index, rows)
        return self

    def _choose(self, trials: Trials, known: Base | GivenBase, X: Any, index: np.ndarray, rows: Split) -> None:
        ruler = trials.ruler
        assert ruler is not None
        parts = {"train": rows.train, "choose": rows.choose, "certify": rows.certify}
        every = singles(trials, ruler)
        offers = mixtures(trials, ruler, self.max_churn, known.servable) if self.select == "mixture" else every
        changes = None
        if rows.certify is not None:
            judge = self._ruler(known, X, index, rows.certify)
            changes = certified_changes(offers, judge, trials.models, _safe_indexing(X, rows.certify.rows))
        desk = Desk(
            offers=offers,
            plain=every[0],
            terms=ruler.terms,
            bound=1.0 if ruler.hard else float(ruler.score.bound or math.inf),
            changes=changes,
            models=trials.models,
            names=trials.names,
            base=known if known.servable else None,
            classes=self.classes_,
            trainings=trials.trainings,
            rows={name: 0 if part is None else round(effective_rows(part.weights)) for name, part in parts.items()},
            notes=tuple(filter(None, [decides_otherwise(ruler), *trials.notes])),
        )
        self._desk = desk if any(row.dial >= 0 for row in trials.frontier) else None
        picked, rule, self.certificate_ = desk.pick(self.max_churn, self.confidence)
        if self.certificate_ is not None and not self.certificate_.certified:
            warnings.warn(f"{WHO}: {self.certificate_}", stacklevel=3)
        words = ""
        if picked is None:
            assert self.max_churn is not None
            picked, words = fall_back(offers, trials, ruler, self.max_churn, known.servable)
            if all(picked.candidate is not row for row in self.frontier_):
                self.frontier_.append(picked.candidate)
            warnings.warn(f"{WHO}: {words}", stacklevel=3)
        self._serve(desk, picked, rule, words)

    def _serve(self, desk: Desk, picked: Offer, rule: str, why: str = "") -> None:
        self.selection_ = desk.selection(picked, rule, self.max_churn, why)
        self._served = desk.served(picked)
        self._expose()

    def dial(self, max_churn: float, *, confidence: float | None = None) -> Self:
        """The model for another budget, at once and without training.

        It is chosen among the very candidates in ``frontier_``, on the same held-out rows; this model stays as it is.

        Parameters
        ----------
        max_churn : float
            The other budget.
        confidence : float, optional
            Certify it with this confidence; that of ``fit`` by default. Needs the rows that a ``fit`` with
            ``confidence`` holds out. Each certificate speaks for its own budget alone: to hold several at once, share
            the risk out among them (0.975 each for two at 0.95).

        Returns
        -------
        LowChurnClassifier
            Fitted, with ``selection_`` and ``certificate_`` of its own.

        Examples
        --------
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> from lowchurn import LowChurnClassifier
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> base = make_pipeline(StandardScaler(), LogisticRegression(C=100)).fit(X[:60], y[:60])
        >>> model = LowChurnClassifier(base=base, max_churn=0.05, strategies="dial").fit(X[:400], y[:400])
        >>> calmer = model.dial(max_churn=0.02)
        >>> calmer.selection_.churn <= 0.02 < 0.05, calmer.selection_.trainings == model.selection_.trainings
        (True, True)
        """
        check_is_fitted(self)
        desk = getattr(self, "_desk", None)
        if desk is None:
            raise ValueError(
                f"{WHO}: there is no dial here. Fit with strategies='dial' or 'auto' and a base that is a model; "
                "save with dial=True to dial what is loaded."
            )
        other = copy.copy(self)
        other.max_churn = max_churn
        other.confidence = self.confidence if confidence is None else confidence
        other._check_parameters()
        if other.confidence is not None and desk.changes is None:
            raise ValueError(
                f"{WHO}: confidence needs rows that nothing else has seen, and this model was fitted without. "
                "Fit with confidence=."
            )
        warn_of_few_rows(desk.terms, max_churn)
        picked, rule, other.certificate_ = desk.pick(max_churn, other.confidence)
        if other.certificate_ is not None and not other.certificate_.certified:
            warnings.warn(f"{WHO}: {other.certificate_}", stacklevel=2)
        if picked is None:  # even the base changes decisions where classes are gone
            picked = min(desk.offers, key=lambda offer: (offer.churn, offer.cost))
            warnings.warn(
                f"{WHO}: nothing on the dial keeps max_churn={max_churn:g} on held-out rows; the least churn, "
                f"{picked.churn:.3g}, is served.",
                stacklevel=2,
            )
        other._serve(desk, picked, rule)
        return other

    def _fit_plain(self, estimator: Any, X: Any, index: np.ndarray, weight: np.ndarray | None) -> Self:
        everything = Part(np.arange(len(index)), weight)
        with progress(self.verbose) as bar:
            bar.expect([ColdStart()])
            trials = Trials(
                estimator, self.classes_, X, index, everything, None, (None, None), None, None, self.n_jobs,
                self._seed(), bar.advance,
            )  # fmt: skip
            trials.run([ColdStart()])
        nothing = dict.fromkeys(("risk", "accuracy", "churn", "broken"), math.nan)
        counts = {"train": int(everything.weights.sum()), "choose": 0, "certify": 0}
        self.frontier_, self.certificate_, self._desk = trials.frontier, None, None
        self.selection_ = Selection({"cold": 1.0}, "plain retrain, there is no base", True, **nothing, trainings=1,
                                    rows=counts, notes=trials.notes)  # fmt: skip
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
        return np.asarray(self.classes_[self._served.decisions(self._check_new_rows(X))])

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))

    def save(self, path: str | Path, *, dial: bool = False) -> None:
        """Write the fitted model to one file; :func:`lowchurn.load` reads it. See the guide for what is in it.

        Parameters
        ----------
        path : path
            The file.
        dial : bool
            Write both ends of the dial as well, the base among them, so that :meth:`dial` works on what is loaded.
        """
        from lowchurn.estimator._saving import save

        check_is_fitted(self)
        save(self, path, dial)

    def _check_parameters(self) -> float | None:
        check_choice(WHO, "churn", self.churn, ("hard", "soft"))
        check_choice(WHO, "select", self.select, ("single", "mixture"))
        check_choice(WHO, "search", self.search, ("auto", "grid"))
        self._chosen_score = get_score(self.proper_score)
        if self.max_churn is not None:
            check_budget(self.max_churn, self.churn == "hard")
        if self.confidence is not None:
            check_number(WHO, "confidence", self.confidence, 0, 1, open_low=True, open_high=True)
            if self.max_churn is None:
                raise ValueError(f"{WHO}: confidence certifies a budget, got max_churn=None. Give max_churn.")
            bound = self._chosen_score.bound
            if self.churn == "soft" and (bound is None or self.max_churn >= bound):
                raise ValueError(
                    f"{WHO}: soft churn can only be certified below the score's bound {bound}, "
                    f"got max_churn={self.max_churn:g}."
                )
        if self.validation_fraction is not None:
            check_number(WHO, "validation_fraction", self.validation_fraction, 0, 1, open_low=True, open_high=True)
        return self.max_churn

    def _check_rows(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
        if y is None:
            raise ValueError(f"{WHO} requires y to be passed, but the target y is None.")
        if hasattr(X, "columns"):  # pandas, polars: columns keep their kinds
            if not hasattr(X, "to_numpy"):
                raise ValueError(
                    f"{WHO}: X must be an array, a sparse matrix or a data frame of pandas or polars, got "
                    f"{type(X).__name__}. Convert it (collect() or to_pandas())."
                )
            validate_data(self, X, skip_check_array=True)
            if len(X) == 0:
                raise ValueError(f"{WHO}: X must have at least one row, got an empty table.")
        else:
            X = validate_data(self, X, dtype=None, accept_sparse="csr", ensure_all_finite=self._must_be_finite)
        y = target_labels(y)
        check_consistent_length(X, y)
        if not unusual(y):
            check_classification_targets(y)
        return X, y

    def _check_new_rows(self, X: Any) -> Any:
        """Rows to predict. The model that answers checks their values, so plain ones are looked at for shape alone."""
        columns, names = getattr(X, "columns", None), getattr(self, "feature_names_in_", None)
        if columns is not None:
            if names is None or list(columns) != names.tolist():
                validate_data(self, X, reset=False, skip_check_array=True)
            return X
        plain = type(X) is np.ndarray and X.dtype.kind in "fiub" and names is None
        if plain and X.ndim == 2 and len(X) > 0 and X.shape[1] == self.n_features_in_:
            return X
        return validate_data(
            self, X, reset=False, dtype=None, accept_sparse="csr", ensure_all_finite=self._must_be_finite
        )  # fmt: skip

    @property
    def _must_be_finite(self) -> bool:
        """Whether missing values are refused here; not where the estimator, or its first step, may take them."""
        return not may_take_nan(self._estimator)

    def _seed(self) -> int | None:
        if self.random_state is None or isinstance(self.random_state, int | np.integer):
            return None if self.random_state is None else int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _ruler(self, known: Base | GivenBase, X: Any, index: np.ndarray, part: Part) -> Ruler:
        rows = rows_for(known, X, part.rows)
        return Ruler(
            index[part.rows], part.weights, known.proba(rows), known.decisions(rows), self._chosen_score,
            self.churn == "hard",
        )  # fmt: skip

    def __sklearn_clone__(self) -> LowChurnClassifier:
        # The base is fitted and stays so: it is what is compared with, not something to train.
        parameters = self.get_params(deep=False)
        copies = {k: clone(v, safe=False) for k, v in parameters.items() if k not in ("base", "estimator")}
        estimator = unfitted(self.estimator) if hasattr(self.estimator, "fit") else clone(self.estimator, safe=False)
        return type(self)(estimator, base=self.base, **copies)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        trained = self.estimator if self.estimator is not None else getattr(self, "_estimator", None)
        try:
            inner = get_tags(LogisticRegression() if trained is None else trained)
        except Exception:  # an estimator without tags
            return tags
        tags.input_tags = inner.input_tags
        if inner.classifier_tags is not None:
            tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
            # Within a budget it can only be so much better than its base.
            tags.classifier_tags.poor_score = inner.classifier_tags.poor_score or self.max_churn is not None
        return tags
