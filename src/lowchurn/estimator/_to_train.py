"""What is trained, decided once at the top of ``fit``; and which rows it takes."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone
from sklearn.ensemble import StackingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import assert_all_finite

from lowchurn.estimator._labels import WHO
from lowchurn.estimator._production import unwrap
from lowchurn.learners import ALL, Learner, blueprint
from lowchurn.learners._learner import NothingToTrain
from lowchurn.learners._torch import NetworkClassifier, is_network


def find_estimator(estimator: Any, base: Any, has_base: bool, seed: int | None) -> Any:
    """The unfitted estimator to train: the one asked for, else one of the base's own kind.

    ``has_base`` is whether there is a base in any form: ``base`` is None for one that is known by a table.
    """
    if is_network(estimator):
        return NetworkClassifier(estimator, random_state=seed)
    if estimator is None:
        estimator = own_kind(base) if has_base else LogisticRegression(max_iter=1000)
    elif isinstance(estimator, type) or not hasattr(estimator, "fit"):
        name = f"the class {estimator.__name__}" if isinstance(estimator, type) else type(estimator).__name__
        raise ValueError(
            f"{WHO}: estimator must be a classifier with fit, got {name}. "
            "Give an unfitted classifier or a Pipeline that ends in one."
        )
    if not gives_probabilities(estimator):
        name = type(take_apart(estimator)[1]).__name__
        raise NothingToTrain(
            f"estimator must give probabilities (predict_proba), and {name} does not.",
            f"Give estimator=CalibratedClassifierCV({name}()), or another classifier.",
        )
    return estimator


def gives_probabilities(estimator: Any) -> bool:
    """Whether an unfitted estimator will have ``predict_proba``; a stacking classifier has it only when fitted."""
    final = take_apart(estimator)[1]
    if isinstance(final, StackingClassifier):
        return final.final_estimator is None or gives_probabilities(final.final_estimator)
    return hasattr(final, "predict_proba")


def own_kind(base: Any) -> Any:
    """An unfitted estimator of a fitted base's own kind; another kind is never taken in silence."""
    base = unwrap(base)
    if hasattr(base, "_served"):  # a LowChurnClassifier, which knows what it trained
        base = unwrap(getattr(base, "_estimator", None))
    if isinstance(base, Pipeline):
        steps = [] if len(base) == 1 else thawed(base[:-1]).steps
        return Pipeline([*steps, (base.steps[-1][0], own_kind(base[-1]))], memory=base.memory)
    if base is None or not any(learner.has_blueprint(base) for learner in ALL):
        what = "a table of its answers" if base is None else f"a {type(base).__name__}"
        raise NothingToTrain(
            f"estimator=None trains the base's own kind again, and the base is {what}, which does not tell how to "
            "train one.",
            "Give estimator=, the classifier to train.",
        )
    return thawed(blueprint(base), copied=True)


def thawed(estimator: Any, copied: bool = False) -> Any:
    """A clone in which frozen parts are unfitted: a retrain trains all of it."""
    made = estimator if copied else clone(estimator)
    for name, part in made.get_params(deep=True).items():
        if isinstance(part, FrozenEstimator):
            made.set_params(**{name: clone(part.estimator)})
    return made


def unfitted(estimator: Any) -> Any:
    """A copy without what was learned; CatBoost's lists of columns go along, which scikit-learn's clone refuses."""
    if isinstance(estimator, Pipeline):
        steps = [(name, unfitted(step) if hasattr(step, "fit") else step) for name, step in estimator.steps]
        return estimator.__class__(steps, memory=estimator.memory)
    for learner in ALL:
        if learner.handles(estimator):
            return learner.unfitted(estimator)
    return clone(estimator, safe=False)


def take_apart(estimator: Any) -> tuple[Any, Any]:
    """Preprocessing (or None) and final classifier of an estimator."""
    if isinstance(estimator, Pipeline):
        return (estimator[:-1] if len(estimator) > 1 else None), estimator[-1]
    return None, estimator


def may_take_nan(estimator: Any) -> bool:
    """Whether missing values go on to an estimator: it takes them, or has parts inside that may.

    Only a model of one piece that says so (scikit-learn's tags) is known to refuse them; a pipeline is judged by its
    first step, and what wraps other estimators decides by itself when it is fitted.
    """
    if isinstance(estimator, Pipeline):
        return may_take_nan(estimator[0])
    try:
        if get_tags(estimator).input_tags.allow_nan:
            return True
        return any(hasattr(part, "fit") for part in estimator.get_params(deep=True).values())
    except Exception:  # an estimator without tags
        return True


def refuse_nan(rows: Any, learner: Learner) -> None:
    """Missing values where the learner has no support for them are an error before any training."""
    if learner.takes_nan or may_take_nan(learner.estimator):
        return
    name = type(learner.estimator).__name__
    if hasattr(rows, "dtypes") and hasattr(rows, "isna"):
        empty = [str(column) for column in rows.columns if rows[column].isna().any()]
        if empty:
            raise ValueError(
                f"{WHO}: Input X contains NaN in {empty[:5]}, and {name} does not accept missing values. "
                "Impute them in a Pipeline, or choose an estimator that does."
            )
    elif hasattr(rows, "dtype"):
        assert_all_finite(rows, estimator_name=name, input_name="X")
