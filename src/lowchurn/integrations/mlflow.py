"""MLflow: promote the challenger of a registered model when it passes an audit, evaluate, and log a model.

::

    promote("credit", "last_week.parquet", label="y", id="case", gate={"max_churn": 0.02, "not_worse_than": 0.005})
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from lowchurn._extras import importing
from lowchurn._types import Rows

with importing("lowchurn.integrations.mlflow", "mlflow"):
    import mlflow
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.exceptions import MlflowException
    from mlflow.models.evaluation import EvaluationResult, ModelEvaluator
    from mlflow.models.evaluation.artifacts import JsonEvaluationArtifact, TextEvaluationArtifact

from lowchurn import __version__
from lowchurn.audit import Audit, Gate, Verdict, audit
from lowchurn.estimator import LowChurnClassifier, load
from lowchurn.report import html_page

__all__ = ["ChurnEvaluator", "Promotion", "log_model", "promote"]

PREDICTION, LABEL, ID = "prediction", "label", "row"
METRICS = ("churn", "broken", "fixed", "accuracy_change")
FOLDER = "lowchurn"  # of metrics and artifacts in a run
LIBRARIES = ("scikit-learn", "skops", "lightgbm", "xgboost", "catboost", "torch", "safetensors")
Settings: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Promotion:
    """What :func:`promote` found and did.

    Attributes
    ----------
    audit : Audit
        What changes between the champion and the challenger.
    verdict : Verdict
        Of the gate.
    name, champion, challenger : str
        The registered model and the two versions that were compared.
    promoted : bool
        Whether the alias was moved to the challenger.
    run_id : str or None
        The run with the metrics, the page and the JSON; None after a dry run.

    Examples
    --------
    >>> from lowchurn.integrations.mlflow import Promotion
    >>> print(Promotion(None, None, "credit", "3", "4", promoted=True, run_id="a1"))
    credit: version 4 is the champion now, it was version 3.
    """

    audit: Audit
    verdict: Verdict
    name: str
    champion: str
    challenger: str
    promoted: bool
    run_id: str | None

    def __str__(self) -> str:
        if self.promoted:
            return f"{self.name}: version {self.challenger} is the champion now, it was version {self.champion}."
        why = "dry run" if self.verdict.exit_code == 0 else self.verdict.outcome
        return f"{self.name}: version {self.champion} stays the champion ({why}; the challenger is {self.challenger})."


def promote(
    name: str,
    data: Any,
    *,
    label: str | None = None,
    id: str | Sequence[str] | None = None,
    champion: str = "champion",
    challenger: str = "challenger",
    gate: Gate | Settings,
    by: str | Sequence[str] = (),
    classes: Sequence[Any] | None = None,
    dry_run: bool = False,
    **settings: Any,
) -> Promotion:
    """Audit the challenger of a registered model against its champion, and move the alias where it passes.

    Both versions predict the same rows. Metrics, the report page and the JSON are logged to the run of the challenger,
    its version is tagged, and on PASS the alias of the champion is moved to it, after both aliases were read again.

    Parameters
    ----------
    name : str
        The registered model.
    data : data frame or path
        Rows to predict, as a table of pandas, or a Parquet or CSV file.
    label : str, optional
        The column of the truth. Limits on accuracy and broken decisions need it.
    id : str or list of str, optional
        Key columns, which examples in the report are named by; the number of the row by default.
    champion, challenger : str
        Aliases of the version in production and of the candidate.
    gate : Gate or mapping
        The limits, such as ``{"max_churn": 0.02, "not_worse_than": 0.005}``: at most 2 % of decisions may change, and
        the accuracy may fall by at most half a point. They are judged on the bounds of intervals.
    by : str or list of str, optional
        Columns whose values are slices.
    classes : list, optional
        The class of each column, for models that return a matrix of probabilities without names.
    dry_run : bool, default False
        Audit and judge, and change nothing: no logging, no tags, no alias.
    **settings
        Further arguments of :func:`lowchurn.audit.audit`.

    Returns
    -------
    Promotion

    Raises
    ------
    ValueError
        An alias is missing, both are the same version, or an alias was moved while the audit ran. The results are
        logged in the last case, and the alias of the champion stays where it is.

    Examples
    --------
    >>> from lowchurn.integrations.mlflow import promote
    >>> promote("credit", "nowhere.parquet", gate={"max_churn": 0.02})
    Traceback (most recent call last):
    ValueError: promote: data must be a data frame or a file, and there is no file 'nowhere.parquet'.
    """
    rows, client = read_rows(data), MlflowClient()
    limits = gate if isinstance(gate, Gate) else Gate.from_dict(gate)
    old, new = (version_of(client, name, alias) for alias in (champion, challenger))
    number, later = str(old.version), str(new.version)
    if number == later:
        raise ValueError(
            f"promote: {champion!r} and {challenger!r} of {name!r} are the same version, {number}. "
            f"Give the alias {challenger!r} to the version to judge."
        )
    keys = [id] if isinstance(id, str) else list(id or ())
    slices = [by] if isinstance(by, str) else list(by)
    roles = [*keys, *slices, *([label] if label else [])]
    if missing := [column for column in roles if column not in rows.columns]:
        raise ValueError(f"promote: the data have no column {missing[0]!r}, they have {list(rows.columns)}.")
    common = rows[list(dict.fromkeys(roles))]
    if not keys:
        common, keys = common.assign(**{ID: np.arange(len(rows))}), [ID]
    others = [column for column in (label, *(keys if id else ())) if column]
    before, after = (
        pd.concat([common, predicted(name, one, rows, others, classes)], axis=1) for one in (number, later)
    )
    names = {"old_name": f"{name} version {number}", "new_name": f"{name} version {later}"}
    result = audited(before, after, keys, label=label, by=slices, **(names | settings))
    verdict = result.gate(limits)
    if dry_run:
        return Promotion(result, verdict, name, number, later, promoted=False, run_id=None)
    run_id = log_audit(client, new.run_id, result, verdict, f"promote {name} {later}")
    tags = {"verdict": verdict.outcome, "compared_with": number, "churn": result.churn.value, "run_id": run_id}
    for key, value in tags.items():
        client.set_model_version_tag(name, later, f"{FOLDER}.{key}", str(value))
    if verdict.exit_code == 0:
        for alias, was in ((champion, number), (challenger, later)):
            if (now := str(version_of(client, name, alias).version)) != was:
                raise ValueError(
                    f"promote: {alias!r} of {name!r} is version {now} now, it was {was} when the audit began. The "
                    "alias is not moved; promote again."
                )
        client.set_registered_model_alias(name, champion, later)
        client.set_model_version_tag(name, later, f"{FOLDER}.promoted_from", number)
    return Promotion(result, verdict, name, number, later, verdict.exit_code == 0, run_id)


def log_model(
    model: LowChurnClassifier,
    name: str = "model",
    *,
    registered_model_name: str | None = None,
    input_example: Rows | None = None,
    dial: bool = False,
    pip_requirements: Sequence[str] | None = None,
    **kwargs: Any,
) -> Any:
    """Log a fitted ``LowChurnClassifier`` as a pyfunc model that contains its own file and no pickle.

    Parameters
    ----------
    model : LowChurnClassifier
        Fitted.
    name : str, default "model"
        Of the logged model.
    registered_model_name : str, optional
        Register it as a new version of this model.
    input_example : table, optional
        A few rows, of which the signature is inferred; without it the model has none.
    dial : bool, default False
        Write both ends of the dial as well, as :meth:`LowChurnClassifier.save` does.
    pip_requirements : list of str, optional
        By default this version of lowchurn and the versions of the libraries that can be inside.
    **kwargs
        Further arguments of ``mlflow.pyfunc.log_model``.

    Returns
    -------
    mlflow.models.model.ModelInfo

    Notes
    -----
    What is loaded predicts labels; with ``params={"proba": True}`` a data frame of probabilities, for which the
    signature must contain the parameter (it does where it is inferred here).

    Examples
    --------
    >>> from lowchurn.integrations.mlflow import log_model
    >>> log_model(object())
    Traceback (most recent call last):
    ValueError: log_model: model must be a fitted LowChurnClassifier, got object.
    """
    if not isinstance(model, LowChurnClassifier) or not hasattr(model, "classes_"):
        raise ValueError(f"log_model: model must be a fitted LowChurnClassifier, got {type(model).__name__}.")
    if input_example is not None and "signature" not in kwargs:
        output = model.predict(input_example)
        kwargs["signature"] = mlflow.models.infer_signature(input_example, output, params={"proba": False})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.lowchurn"
        model.save(path, dial=dial)
        load(path)  # refuses here what could not be loaded there
        return mlflow.pyfunc.log_model(
            name=name,
            loader_module=__name__,
            data_path=str(path),
            registered_model_name=registered_model_name,
            input_example=input_example,
            pip_requirements=list(pip_requirements or requirements()),
            **kwargs,
        )


class ChurnEvaluator(ModelEvaluator):
    """Churn beside MLflow's own metrics: ``mlflow.models.evaluate(..., evaluators=["default", "lowchurn"])``.

    ``evaluator_config={"lowchurn": {...}}`` contains ``base``, the model in production as a URI
    (``"models:/credit@champion"``) or its predictions of the same rows; and optionally ``gate``, ``by`` (columns of the
    features), ``classes`` and further arguments of :func:`lowchurn.audit.audit`. The metrics ``lowchurn/churn``,
    ``lowchurn/broken``, ``lowchurn/fixed``, ``lowchurn/accuracy_change`` and, with a gate, ``lowchurn/passed`` are
    logged, and the report page and the JSON as artifacts.

    Examples
    --------
    >>> from lowchurn.integrations.mlflow import ChurnEvaluator
    >>> ChurnEvaluator.can_evaluate(model_type="classifier", evaluator_config={"base": "models:/credit@champion"})
    True
    >>> ChurnEvaluator.can_evaluate(model_type="regressor", evaluator_config={})
    False
    """

    @classmethod
    def can_evaluate(cls, *, model_type: str, evaluator_config: Settings | None, **kwargs: Any) -> bool:
        """Whether there is a classifier and a base to compare it with."""
        return model_type == "classifier" and "base" in (evaluator_config or {})

    def evaluate(
        self,
        *,
        model_type: str,
        dataset: Any,
        run_id: str,
        evaluator_config: Settings,
        model: Any = None,
        extra_metrics: Any = None,
        custom_artifacts: Any = None,
        predictions: str | None = None,
        **kwargs: Any,
    ) -> EvaluationResult:
        """Audit the model against the base on the rows of the dataset, and log what changed."""
        config = dict(evaluator_config)
        base, gate, classes = config.pop("base"), config.pop("gate", None), config.pop("classes", None)
        features = dataset.features_data
        slices = config.pop("by", ())
        slices = [slices] if isinstance(slices, str) else list(slices)
        common = pd.DataFrame({ID: np.arange(len(features))})
        common = common.assign(**{column: np.asarray(features[column]) for column in slices})
        if dataset.has_targets:
            common[LABEL] = np.asarray(dataset.labels_data)
        if isinstance(base, str):
            base = mlflow.pyfunc.load_model(base).predict(features)
        new = dataset.predictions_data if model is None else model.predict(features)
        if predictions is not None and isinstance(new, pd.DataFrame):
            new = new[predictions]
        old_new = [answers_in(f"lowchurn evaluator: {w}", a, classes) for w, a in (("base", base), ("model", new))]
        if any(len(one) != len(common) for one in old_new):
            raise ValueError(
                f"lowchurn evaluator: base must have one prediction for each of {len(common)} rows, got "
                f"{[len(one) for one in old_new]}."
            )
        before, after = (pd.concat([common, one], axis=1) for one in old_new)
        label = LABEL if dataset.has_targets else None
        result = audited(before, after, [ID], label=label, by=slices, **config)
        verdict = None if gate is None else result.gate(gate)
        log_audit(MlflowClient(), run_id, result, verdict, "evaluate")
        where = f"{mlflow.get_run(run_id).info.artifact_uri}/{FOLDER}"
        page = TextEvaluationArtifact(f"{where}/report.html", html_page(result, verdict))
        numbers = JsonEvaluationArtifact(f"{where}/audit.json", result.to_dict(verdict))
        return EvaluationResult(
            metrics_of(result, verdict), {f"{FOLDER}/report.html": page, f"{FOLDER}/audit.json": numbers}, run_id
        )


class Served:
    """A ``LowChurnClassifier`` as pyfunc asks it."""

    def __init__(self, model: LowChurnClassifier) -> None:
        self.model = model

    def predict(self, model_input: Rows, params: Settings | None = None) -> Any:
        """Return labels, or with ``params={"proba": True}`` a data frame of probabilities."""
        if not (params or {}).get("proba"):
            return self.model.predict(model_input)
        columns = [f"proba_{label}" for label in self.model.classes_.tolist()]
        return pd.DataFrame(self.model.predict_proba(model_input), columns=columns)


def _load_pyfunc(path: str) -> Served:
    """Read what :func:`log_model` wrote; MLflow asks for this name."""
    return Served(load(path))


def requirements() -> list[str]:
    """Return this version of lowchurn, and those of libraries that can be inside a model."""
    found = [f"lowchurn[retrain]=={__version__}"]
    for library in LIBRARIES:
        try:
            found.append(f"{library}=={version(library)}")
        except PackageNotFoundError:
            continue
    return found


def version_of(client: MlflowClient, name: str, alias: str) -> ModelVersion:
    """Return the version of a registered model that an alias names."""
    try:
        return client.get_model_version_by_alias(name, alias)
    except MlflowException as error:
        where = mlflow.get_registry_uri()
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise ValueError(f"promote: the registry {where!r} cannot be read: {error}") from error
        try:
            known = client.get_registered_model(name).aliases
        except MlflowException:
            raise ValueError(
                f"promote: there is no registered model {name!r} in {where!r}. Register it, or name another MLflow: "
                "the variable MLFLOW_TRACKING_URI, or mlflow.set_tracking_uri."
            ) from error
        has = ", ".join(f"{other!r} (version {number})" for other, number in sorted(known.items())) or "none"
        raise ValueError(f"promote: {name!r} has no alias {alias!r}, it has {has}.") from error


def read_rows(data: Any) -> pd.DataFrame:
    """Return rows to predict as a data frame."""
    if isinstance(data, str | Path):
        path = str(data)
        if not Path(path).is_file():
            raise ValueError(f"promote: data must be a data frame or a file, and there is no file {path!r}.")
        data = pd.read_csv(path) if path.lower().endswith((".csv", ".csv.gz")) else pd.read_parquet(path)
    if not hasattr(data, "columns"):
        raise ValueError(f"promote: data must be a data frame or a Parquet or CSV file, got {type(data).__name__}.")
    if not isinstance(data, pd.DataFrame):
        data = data.to_pandas()
    if not len(data):
        raise ValueError("promote: data must have at least one row, got none.")
    return data.reset_index(drop=True)


def predicted(
    name: str, number: str, rows: pd.DataFrame, others: Sequence[str], classes: Sequence[Any] | None
) -> pd.DataFrame:
    """Return what a version answers; it is loaded by its number, since an alias can be moved."""
    model = mlflow.pyfunc.load_model(f"models:/{name}/{number}")
    output = model.predict(features_for(model, rows, others))
    return answers_in(f"promote: version {number} of {name!r}", output, classes)


def features_for(model: Any, rows: pd.DataFrame, others: Sequence[str]) -> pd.DataFrame:
    """Return the columns that a model was trained on: those of its signature, or all but keys and label."""
    schema = model.metadata.get_input_schema()
    if schema is None or not schema.has_input_names():
        return rows.drop(columns=list(others))
    names = schema.input_names()
    if missing := [name for name in names if name not in rows.columns]:
        raise ValueError(f"promote: the data lack the column {missing[0]!r}, which the model needs.")
    return rows[names]


def answers_in(who: str, output: Any, classes: Sequence[Any] | None) -> pd.DataFrame:
    """Return what a model gave as a column of decisions, and columns of probabilities where they are named."""
    if isinstance(output, pd.DataFrame) and PREDICTION in output:
        named = [column for column in output if str(column).startswith("proba_")]
        return output[[PREDICTION, *named]].reset_index(drop=True)
    array = np.asarray(output)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array.ravel()
    if array.ndim == 1:
        return pd.DataFrame({PREDICTION: array})
    if classes is None or array.ndim != 2 or len(classes) != array.shape[1]:
        raise ValueError(
            f"{who} must give one label per row, or probabilities with classes= for their columns, got shape "
            f"{array.shape}."
        )
    return pd.DataFrame({PREDICTION: np.asarray(classes)[array.argmax(axis=1)]})


def audited(old: pd.DataFrame, new: pd.DataFrame, id: list[str], **settings: Any) -> Audit:
    """Return the audit of two tables of decisions; probabilities count where both sides have the same."""
    if [c for c in old if str(c).startswith("proba_")] != [c for c in new if str(c).startswith("proba_")]:
        old, new = (table[[c for c in table if not str(c).startswith("proba_")]] for table in (old, new))
    return audit(old, new, id, **{"prediction": PREDICTION, **settings})


def metrics_of(result: Audit, verdict: Verdict | None) -> dict[str, float]:
    """Return the figures of an audit as metrics; those that need labels only where there are some."""
    found = {}
    for name in METRICS:
        value = getattr(getattr(result, name), "value", None)
        if value is not None and np.isfinite(value):
            found[f"{FOLDER}/{name}"] = float(value)
    return found if verdict is None else found | {f"{FOLDER}/passed": float(verdict.exit_code == 0)}


def log_audit(client: MlflowClient, run_id: str | None, result: Audit, verdict: Verdict | None, name: str) -> str:
    """Log metrics, page and JSON to a run, or to a new one where a version has none; return the run."""
    if not run_id:
        run_id = str(client.create_run("0", run_name=f"{FOLDER} {name}").info.run_id)
    # All is made before anything is logged.
    files = {"report.html": html_page(result, verdict), "audit.json": result.to_json(verdict)}
    for metric, value in metrics_of(result, verdict).items():
        client.log_metric(run_id, metric, value)
    for file, content in files.items():
        client.log_text(run_id, content, f"{FOLDER}/{file}")
    return run_id
