"""LowChurnClassifier: scikit-learn's contract around strategies, learners and selection."""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils import Tags, _safe_indexing, check_random_state, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from lowchurn._types import ArrayLike, Classifier, Rows
from lowchurn.estimator._compressing import compress
from lowchurn.estimator._frontier import Frontier, Selection
from lowchurn.estimator._groups import By, Groups
from lowchurn.estimator._labels import WHO, target_labels, unusual
from lowchurn.estimator._limits import Limits, budgets
from lowchurn.estimator._measuring import (
    Offer,
    Ruler,
    Terms,
    Trials,
    check_base,
    debt,
    decides_otherwise,
    held_out_terms,
    warn_of_base,
    warn_of_few_rows,
)
from lowchurn.estimator._parameters import check_parameters
from lowchurn.estimator._policy import (
    Choice,
    Choices,
    evidence_of,
    fall_back,
    mixtures,
)
from lowchurn.estimator._production import Asked, Base, GivenBase, find_base, find_threshold
from lowchurn.estimator._rules import rule_that_holds
from lowchurn.estimator._saving import read_model, write_model
from lowchurn.estimator._serving import Served, base_alone, base_of
from lowchurn.estimator._split import (
    NO_ROWS,
    SomeRows,
    Split,
    Traffic,
    as_mask,
    check_weights,
    folds_of,
    split_for_budget,
    split_for_folds,
    split_traffic,
    stacked,
    take_rows,
)
from lowchurn.estimator._to_try import Goal, ToTry, to_try, try_all
from lowchurn.estimator._training import (
    Capability,
    Trainer,
    TrainingRows,
    checked_table,
    find_estimator,
    out_of_fold,
    progress,
    unfitted,
)
from lowchurn.scoring import Score, get_score


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
    max_churn : float or mapping, optional
        The budget. The most accurate candidate within it on held-out rows is served; with 0 the base itself. Without
        it, the candidate with the least churn that is at least as accurate as a plain retrain. A mapping contains the
        budgets of some classes, ``{"positive": 0.05}``: of the rows that the base decides for that class, at most this
        share changes; with ``by``, those of some slices. Under None it contains the budget of all rows.
    max_broken : float, optional
        At most this share of the held-out rows with labels may be decided rightly by the base and wrongly by what is
        served; beside ``max_churn`` or without it.
    by : str, int or callable, optional
        What divides the rows into slices: the name of a column, the position of one in an array, or a function of X
        that returns one value per row. Each slice then keeps ``max_churn``, or those that it names. A value that was
        not there at ``fit`` gets the largest margin at prediction.
    churn : {"hard", "soft"}
        Share of changed decisions, or mean divergence from the base's probabilities.
    strategies : list, "auto", "dial" or "paper"
        What to try: strategies, classes of them, or names. "auto" serves sticky decisions on a plain retrain (on an
        average of several, for networks), or the dial, a blend or distillation where it is clearly better on held-out
        rows. "dial" is everything between the retrain and the base. "paper" is the paper's Algorithm 1 as printed: its
        grid of lambda, and the best convex combination of these models.
    select : {"single", "mixture"}
        Serve one candidate, or the best convex combination of candidates (and of the base, where it can be served).
    search : {"auto", "grid"}
        Find lambda with about three trainings, or train the paper's whole grid.
    confidence : float, optional
        Certify the budget with this confidence on rows that nothing else uses.
    threshold : float, optional
        Decide for the second of two classes where its probability reaches this value. Accuracy, churn, budgets and
        certificates are then those of these decisions. By default that of the base, where it has one of its own
        (``FixedThresholdClassifier``, ``TunedThresholdClassifierCV``).
    cross_fit : int, optional
        Folds instead of held-out rows, where there is no traffic: the margin of sticky decisions is set on rows that
        each of so many retrains has not seen, and the retrain on all rows is served. That is so many more trainings.
    serve_base : bool
        Whether the base may stay in service beside the new model, which sticky decisions and blends need. With False
        one new model is served alone; or, with ``strategies="sticky"``, with the decisions that rows had before
        (``previous`` at :meth:`predict`).
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
    compress : bool
        Where several models would be served (the base among them, or inside one that continues it), train one of the
        estimator's own kind on their probabilities and serve that. Measured, budgeted and certified is what is served.

    Attributes
    ----------
    selection_ : Selection
        What is served and why.
    frontier_ : Frontier
        Every candidate with its risk, accuracy, churn, broken decisions and intervals.
    certificate_ : Certificate or None
        What the rows prove, where ``confidence`` asked for it.
    threshold_ : float or None
        The probability of the second of two classes from which on it is decided; None for the likeliest class.
    model_, preprocessing_
        The fitted model that is served and its fitted preprocessing (None for a mixture).
    estimator_ : classifier
        What was trained: the estimator that was given, or one of the base's own kind; it is not fitted itself.
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
        estimator: Classifier | None = None,
        *,
        base: Asked | str | Path | None = None,
        max_churn: float | Mapping[Any, float] | None = None,
        max_broken: float | None = None,
        by: By = None,
        churn: str = "hard",
        strategies: Any = "auto",
        select: str = "single",
        search: str = "auto",
        confidence: float | None = None,
        threshold: float | None = None,
        cross_fit: int | None = None,
        serve_base: bool = True,
        validation_fraction: float | None = None,
        proper_score: str | Score = "log",
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
        compress: bool = False,
    ) -> None:
        self.estimator = estimator
        self.base = base
        self.max_churn = max_churn
        self.max_broken = max_broken
        self.by = by
        self.churn = churn
        self.strategies = strategies
        self.select = select
        self.search = search
        self.confidence = confidence
        self.threshold = threshold
        self.cross_fit = cross_fit
        self.serve_base = serve_base
        self.validation_fraction = validation_fraction
        self.proper_score = proper_score
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.compress = compress

    def fit(
        self,
        X: Rows,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        base_proba: Any = None,
        base_classes: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        new: ArrayLike | None = None,
        held_out: ArrayLike | None = None,
        traffic: Rows | None = None,
    ) -> Self:
        """Train candidates, choose among them on held-out rows or on traffic, certify if asked.

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
        traffic : table of shape (t, features), optional
            Recent rows without labels, such as those that production decided last week. Churn is then measured,
            budgeted and certified on them, and all rows with labels are trained on, apart from ``held_out``, and from
            those that ``max_broken`` needs.
        """
        check_parameters(self.get_params(deep=False))
        given = base_proba is not None
        asked = self.base is not None and (not given or self.estimator is None)
        model = find_base(self.base, load, base_classes) if asked else None
        self.estimator_ = find_estimator(self.estimator, model, given or asked, self._seed())
        X, y = self._check_rows(X, y)
        weight = check_weights(sample_weight, X)
        if weight is not None and not weight.all():  # a row without weight is no row
            used = np.flatnonzero(weight)
            base_proba, ids, new, held_out = take_rows(used, len(y), base_proba, ids, new, held_out)
            X, y, weight = _safe_indexing(X, used), y[used], weight[used]
        self.classes_, index = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"{WHO}: y must have at least two classes, got 1 class. There is nothing to decide.")
        base: Base | GivenBase | None = None
        if given:
            base = GivenBase(base_proba, base_classes, ids, len(index), self.classes_)
        elif model is not None:
            base = (base_of if answers_as_usual(model) else Base)(model, self.classes_, base_classes)
        elif self._limits() or self.confidence is not None:
            raise ValueError(
                f"{WHO}: max_churn, max_broken and confidence need a base to compare with, got base=None. "
                "Give base=, or base_proba at fit."
            )
        self.threshold_ = find_threshold(self.threshold, base, self.classes_)
        rows = Split(SomeRows(np.arange(len(index)), weight))
        self._groups = self._find_groups([X])
        about = held_out_terms(X, index, self._groups, self.churn == "hard")
        recent = None if traffic is None else self._traffic(traffic, base, about, X)
        if recent is not None:
            self._groups = self._find_groups([X, recent.choose])
        if self.cross_fit is not None and base is not None:
            if held_out is not None or recent is not None:
                raise ValueError(f"{WHO}: cross_fit is for fits without traffic= and held_out=. Leave one of them out.")
            rows = split_for_folds(rows.train, index, as_mask("new", new, len(index)), self.cross_fit)
        elif recent is not None and held_out is None and self.max_broken is None:
            rows = Split(rows.train, NO_ROWS)
        elif base is not None:
            rows = split_for_budget(
                X,
                index,
                weight,
                self.classes_,
                limit=about.limits(self.max_churn if recent is None else None, self.max_broken, self._groups).tightest(
                    about.rows
                ),
                confidence=self.confidence if recent is None or self.max_broken is not None else None,
                validation_fraction=self.validation_fraction,
                new=as_mask("new", new, len(index)),
                held_out=as_mask("held_out", held_out, len(index)),
                seed=self._seed() or 0,
            )
        rows = dataclasses.replace(rows, traffic=recent)
        trials = self._try(X, index, rows, base)
        self.frontier_ = trials.frontier
        if base is None:
            return self._serve_plain(trials, rows)
        warn_of_base(base, trials, new is not None or held_out is not None, stacklevel=2)
        return self._choose(trials, base, X, index, rows)

    def _try(self, X: Rows, index: np.ndarray, rows: Split, base: Base | GivenBase | None) -> Trials:
        """Train and measure; without a base the plain retrain alone, on no rows."""
        ruler, wanted, asked, X_choose = None, ToTry(), None, None
        if base is not None and rows.choose is not None:
            recent = None if rows.traffic is None else rows.traffic.choose
            ruler, X_choose = self._ruler(base, X, index, rows.choose, recent)
            check_base(base, ruler, self.classes_)
            warn_of_few_rows(self._limits(ruler.terms), ruler.hard, stacklevel=3)
        flat = not self._limits().held  # else the base decides as well
        can = Capability(self.estimator_, self.classes_, base, X, self.serve_base, flat)
        if base is not None and ruler is not None:
            wanted = to_try(self.strategies, self.search, can, ruler, self.cross_fit)
            if self._limits().frozen and can.kept is not None:
                wanted = ToTry()  # the base itself
            asked = base.at(X, rows.train.rows)
        X_train = _safe_indexing(X, rows.train.rows)
        data = TrainingRows(X_train, index[rows.train.rows], rows.train.weight, self.classes_, base, asked)
        with progress(self.verbose) as bar:
            limits = Limits() if ruler is None else self._limits(ruler.terms)
            held = None if ruler is None else rule_that_holds(limits, ruler)
            trainer, apart = Trainer(can, data, self.n_jobs, self._seed(), bar), None
            if self.cross_fit is not None and rows.choose is not None:
                folds = folds_of(X, index, rows.choose.rows, self.cross_fit, self._seed() or 0)
                apart = out_of_fold(trainer, rows.choose.rows, folds)
            trials = Trials(trainer, ruler, X_choose, held, apart)
            try_all(wanted, trials, Goal(limits, self.confidence, rows.to_certify), bar)
        return trials

    def _choose(self, trials: Trials, base: Base | GivenBase, X: Rows, index: np.ndarray, rows: Split) -> Self:
        """Choose what is served among all that was measured, and certify it."""
        ruler = trials.ruler
        assert ruler is not None
        servable, limits = trials.trainer.can.kept, self._limits(ruler.terms)
        offers = trials.offers
        if _is_name(self.strategies, "paper"):
            offers = mixtures(trials, ruler, limits.churn, None)
        elif self.select == "mixture":
            offers = mixtures(trials, ruler, limits.churn, servable)
        most = max((offer.churn for offer in offers if offer.rule is not None), default=math.inf)
        if trials.held is not None or (not ruler.labelled and most < trials.plain.offer.churn):
            # Without labels changes cannot be told good from bad: those of rows that tie are left to the rule.
            offers = [offer for offer in offers if offer is not trials.plain.offer]
        judges = None
        unseen = None if rows.traffic is None else rows.traffic.certify
        if any(rows.to_certify.values()):
            judges = self._ruler(base, X, index, rows.certify or NO_ROWS, unseen)
        choices = Choices(
            offers=offers,
            plain=trials.plain.offer,
            terms=ruler.terms,
            bound=ruler.bound,
            evidence=None if judges is None else evidence_of(offers, *judges),
            base=base if isinstance(base, Base) else None,
            trainings=trials.trainer.bar.done,
            rows=rows.counts,
            notes=tuple(filter(None, [decides_otherwise(ruler), *trials.notes])),
            base_accuracy=ruler.mean(ruler.base_right),
        )

        def last_resort() -> tuple[Offer, str]:
            return fall_back(offers, trials, ruler, limits, servable)

        if self.compress and not limits.frozen and not limits.held:
            goal = Goal(limits, self.confidence, rows.to_certify)
            found = compress(trials, choices.teacher(goal, last_resort), goal, rows.traffic)
            seen = None if judges is None else evidence_of(found.students, *judges)
            choices = choices.compressed(found, seen, trials.trainer.bar.done)
            self.frontier_.extend(found.tried)
        self._choices = choices if any(row.dial >= 0 for row in self.frontier_) else None
        choice = self._serve(choices, last_resort, stacklevel=4, costs=lambda offer: debt(trials, offer, limits))
        if choice.why and all(choice.offer.candidate is not row for row in self.frontier_):
            self.frontier_.append(choice.offer.candidate)
        return self

    def _serve(
        self,
        choices: Choices,
        last_resort: Callable[[], tuple[Offer, str]],
        stacklevel: int,
        costs: Callable[[Offer], str] = lambda offer: "",
    ) -> Choice:
        limits = self._limits(choices.terms)
        choice = choices.choose(limits, self.confidence, last_resort)
        self.certificate_ = choice.certificate
        if choice.certificate is not None and not choice.certificate.certified:
            warnings.warn(f"{WHO}: {choice.certificate}", stacklevel=stacklevel)
        uncompressed = choices.uncompressed(choice, limits) if self.compress else ""
        owed = costs(choice.offer)
        for sentence in filter(None, (choice.why, uncompressed, owed)):
            warnings.warn(f"{WHO}: {sentence}", stacklevel=stacklevel)
        self.selection_ = choices.selection(choice, limits, owed)
        rule, groups = choice.offer.rule, self._groups
        self._expose(Served(choice.offer.weights, self.classes_, None, rule, self.threshold_, groups))
        return choice

    def _serve_plain(self, trials: Trials, rows: Split) -> Self:
        nothing: dict[str, Any] = dict.fromkeys(("risk", "accuracy", "churn", "broken"), np.nan)
        counts = rows.counts | {"train": int(rows.train.weights.sum())}
        self.certificate_, self._choices = None, None
        served = {trials.plain.offer.candidate.name: 1.0}
        self.selection_ = Selection(
            served, "plain retrain, there is no base", True, **nothing, trainings=1, rows=counts, notes=trials.notes
        )
        self._expose(Served(trials.plain.offer.weights, self.classes_, threshold=self.threshold_))
        return self

    def _limits(self, terms: Terms | None = None) -> Limits:
        """The limits, by the rows that they are measured on where these are known."""
        if terms is None:
            return Limits.of(self.max_churn, self.max_broken)
        limits = terms.limits(self.max_churn, self.max_broken, self._groups)
        if self.confidence is not None and not limits.certifiable:
            raise ValueError(
                f"{WHO}: confidence needs a limit that rows can prove, and every class or slice that max_churn names "
                "has too few rows. Give more rows, or a limit of all rows under None."
            )
        return limits

    def _find_groups(self, tables: Sequence[Rows]) -> Groups | None:
        """The groups that have limits of their own."""
        named = isinstance(self.max_churn, Mapping) and any(key is not None for key in self.max_churn)
        groups = Groups.of(self.by, tables, self.classes_) if named or self.by is not None else None
        budgets(self.max_churn, groups)  # refuses names that are not known
        return groups

    def dial(
        self,
        max_churn: float | Mapping[Any, float] | None = None,
        *,
        max_broken: float | None = None,
        confidence: float | None = None,
        traffic: Rows | None = None,
    ) -> Self:
        """The model for another budget or for today's traffic, at once and without training.

        It is chosen among the very candidates in ``frontier_``, on the same held-out rows; this model stays as it is.

        Parameters
        ----------
        max_churn : float or mapping, optional
            The other budget; that of ``fit`` by default. Budgets of classes or slices need a ``fit`` with such.
        max_broken : float, optional
            The other limit of broken decisions; that of ``fit`` by default.
        confidence : float, optional
            Certify it with this confidence; that of ``fit`` by default. Needs the rows that a ``fit`` with
            ``confidence`` holds out. Each certificate holds for its own budget alone: to hold several at once, share
            the risk out among them (0.975 each for two at 0.95).
        traffic : table of shape (t, features), optional
            Recent rows without labels: churn is measured again, budgeted and certified on them.

        Returns
        -------
        LowChurnClassifier
            Fitted, with ``selection_`` and ``certificate_`` of its own, and with ``traffic`` a ``frontier_``.

        Examples
        --------
        >>> from lowchurn import LowChurnClassifier
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.naive_bayes import GaussianNB
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> base = GaussianNB().fit(X[:60], y[:60])
        >>> model = LowChurnClassifier(base=base, max_churn=0.05, strategies="dial").fit(X[:400], y[:400])
        >>> calmer = model.dial(max_churn=0.02)
        >>> calmer.selection_.churn <= 0.02 < 0.05, calmer.selection_.trainings == model.selection_.trainings
        (True, True)
        """
        check_is_fitted(self)
        choices = self._choices
        if choices is None:
            raise ValueError(
                f"{WHO}: there is no dial here. Fit with strategies='dial' or 'auto' and a base that is a model; "
                "save with dial=True to dial what is loaded."
            )
        other = copy.copy(self)
        other.base = self.base  # which a copy has without its history
        other.max_churn = self.max_churn if max_churn is None else max_churn
        other.max_broken = self.max_broken if max_broken is None else max_broken
        other.confidence = self.confidence if confidence is None else confidence
        check_parameters(other.get_params(deep=False))
        if isinstance(other.max_churn, Mapping) and self._groups is None:
            raise ValueError(
                f"{WHO}: max_churn of classes or slices asks for margins of their own, and this model was fitted "
                "without. Fit with max_churn of classes, or with by=."
            )
        if traffic is not None:
            choices = other._on_traffic(choices, traffic)
            other.frontier_ = choices.seen_in(self.frontier_)
        if other.max_broken is not None and math.isnan(choices.plain.candidate.broken):
            raise ValueError(
                f"{WHO}: max_broken needs held-out rows with labels, and this model was fitted without. Fit with "
                "max_broken= or held_out=."
            )
        limits = other._limits(choices.terms)
        if other.confidence is not None and (choices.evidence is None or not choices.evidence.covers(limits)):
            raise ValueError(
                f"{WHO}: confidence needs rows that nothing else has seen, and this model was fitted without. "
                "Fit with confidence=, or give traffic=."
            )
        warn_of_few_rows(limits, choices.terms.hard, stacklevel=2)
        other._serve(choices, lambda: choices.nearest(limits), stacklevel=3)
        return other

    def _on_traffic(self, choices: Choices, traffic: Rows) -> Choices:
        """The same offers, with churn as it is on some traffic."""
        recent = self._traffic(traffic, choices.base, choices.terms)
        assert choices.base is not None
        ruler, X = self._ruler(choices.base, recent.choose, NO_ROWS.rows, NO_ROWS, recent.choose)
        unseen = None
        if recent.certify is not None:
            judge, X_certify = self._ruler(choices.base, recent.certify, NO_ROWS.rows, NO_ROWS, recent.certify)
            unseen = evidence_of(choices.offers, judge, X_certify)
        return choices.measured_on(ruler, X, unseen, recent.counts)

    @property
    def has_dial(self) -> bool:
        """Whether :meth:`dial` can choose for another budget."""
        return getattr(self, "_choices", None) is not None

    def _expose(self, served: Served) -> None:
        self._served = served
        self.model_, self.preprocessing_ = served.model_, served.preprocessing_

    def predict_proba(self, X: Rows, previous: ArrayLike | None = None) -> np.ndarray:
        """Probabilities of the classes in the order of ``classes_``; they agree with :meth:`predict`.

        Parameters
        ----------
        X : table of shape (n, features)
            Rows.
        previous : array of shape (n,), optional
            The decisions that the rows have now, which a sticky model keeps where the evidence for a change is small;
            None or NaN where a row has none. Without it the base is asked. Other models do not need it.
        """
        check_is_fitted(self)
        return self._served.predict_proba(self._check_new_rows(X), previous)

    def predict(self, X: Rows, previous: ArrayLike | None = None) -> np.ndarray:
        """The class of each row.

        Parameters
        ----------
        X : table of shape (n, features)
            Rows.
        previous : array of shape (n,), optional
            The decisions that the rows have now: see :meth:`predict_proba`.
        """
        check_is_fitted(self)
        return self._served.predict(self._check_new_rows(X), previous)

    def predict_log_proba(self, X: Rows) -> np.ndarray:
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
        check_is_fitted(self)
        write_model(self, path, dial)

    def _check_rows(self, X: Rows, y: ArrayLike) -> tuple[Rows, np.ndarray]:
        if y is None:
            raise ValueError(f"{WHO} requires y to be passed, but the target y is None.")
        X = checked_table(self, X, self.estimator_)
        y = target_labels(y)
        check_consistent_length(X, y)
        if not unusual(y):
            check_classification_targets(y)
        return X, y

    def _check_new_rows(self, X: Rows) -> Rows:
        """Rows to predict. A trained model checks their values, so that plain ones are looked at for shape alone."""
        columns, names = getattr(X, "columns", None), getattr(self, "feature_names_in_", None)
        if columns is not None:
            if names is None or list(columns) != names.tolist():
                validate_data(self, X, reset=False, skip_check_array=True)
            return X
        plain = type(X) is np.ndarray and X.dtype.kind in "fiub" and names is None
        served = getattr(self, "_served", None)
        trained = served is not None and not base_alone(served.weights)  # a base may be any function
        if plain and trained and X.ndim == 2 and len(X) > 0 and X.shape[1] == self.n_features_in_:
            return X
        return checked_table(self, X, self.estimator_, reset=False)

    def _seed(self) -> int | None:
        if self.random_state is None or isinstance(self.random_state, int | np.integer):
            return None if self.random_state is None else int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _ruler(
        self, base: Base | GivenBase, X: Rows, index: np.ndarray, part: SomeRows, traffic: Rows | None
    ) -> tuple[Ruler, Rows]:
        terms = {"score": get_score(self.proper_score), "hard": self.churn == "hard", "threshold": self.threshold_}
        return Ruler.on(base, X, index, part, traffic, self._groups, **terms)

    def _traffic(self, traffic: Rows, base: Base | GivenBase | None, terms: Terms, X: Rows | None = None) -> Traffic:
        """Traffic, checked as rows to predict are; ``terms`` tell how large groups are."""
        if not isinstance(base, Base):
            raise ValueError(
                f"{WHO}: traffic needs a base that can be asked about it, got {'none' if base is None else 'a table'}. "
                "Give base= as a fitted model, a function or a file."
            )
        traffic = self._check_new_rows(traffic)
        if X is not None:
            stacked(_safe_indexing(X, np.arange(1)), _safe_indexing(traffic, np.arange(0)))  # of one kind
        limit = terms.limits(self.max_churn, None, self._groups).tightest(terms.rows)
        return split_traffic(traffic, limit, self.confidence, self._seed() or 0)

    def __getstate__(self) -> dict[str, Any]:
        # A base that is an earlier release is pickled with what it serves, and without its own base and candidates:
        # else every release would contain all releases before it.
        state = dict(super().__getstate__())  # it may be the very __dict__ of the model
        base = state.get("base")
        if isinstance(base, LowChurnClassifier) and hasattr(base, "_served"):
            state["base"] = lean = type(base).__new__(type(base))
            lean.__dict__.update(vars(base), base=None, _choices=None, frontier_=Frontier())
        return state

    def __sklearn_clone__(self) -> LowChurnClassifier:
        # The base is fitted and stays so: it is what is compared with, not something to train.
        parameters = self.get_params(deep=False)
        copies = {k: clone(v, safe=False) for k, v in parameters.items() if k not in ("base", "estimator")}
        estimator = unfitted(self.estimator) if hasattr(self.estimator, "fit") else clone(self.estimator, safe=False)
        return type(self)(estimator, base=self.base, **copies)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        trained = self.estimator if self.estimator is not None else getattr(self, "estimator_", None)
        try:
            inner = get_tags(LogisticRegression() if trained is None else trained)
        except Exception:  # an estimator without tags
            return tags
        tags.input_tags = inner.input_tags
        if inner.classifier_tags is not None:
            tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
            # Within a budget it can only be so much better than its base.
            tags.classifier_tags.poor_score = inner.classifier_tags.poor_score or bool(self._limits())
        return tags


def answers_as_usual(model: Any) -> bool:
    """Whether a model is a LowChurnClassifier that answers by what it serves, and not by methods of a subclass."""
    methods = ("predict", "predict_proba")
    return isinstance(model, LowChurnClassifier) and all(
        name not in vars(model) and getattr(type(model), name) is getattr(LowChurnClassifier, name) for name in methods
    )


def _is_name(strategies: Any, name: str) -> bool:
    return isinstance(strategies, str) and strategies == name


def load(path: str | Path, trusted: Sequence[str] = ()) -> Any:
    """Read what ``LowChurnClassifier.save`` wrote, or a scikit-learn model in a skops file.

    Parameters
    ----------
    path : path
        The file.
    trusted : list of str
        Names of types beyond scikit-learn, numpy and scipy that the file may contain; networks of one's own by where
        they are imported from ("package.module:function"); the name of a pickle file, to read it although pickles can
        run any code. Nothing else in a file runs code.

    Returns
    -------
    LowChurnClassifier or estimator
        It predicts bit for bit what the saved one did. The base of a LowChurnClassifier is not in the file unless
        it is a part of what is served.

    Raises
    ------
    ValueError
        The file is damaged, of another kind, or contains what is not trusted.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> import lowchurn
    >>> X, y = load_iris(return_X_y=True)
    >>> model = lowchurn.LowChurnClassifier().fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/next.skops")
    ...     again = lowchurn.load(f"{folder}/next.skops")
    >>> bool((again.predict_proba(X) == model.predict_proba(X)).all())
    True
    """
    return read_model(path, trusted, LowChurnClassifier)
