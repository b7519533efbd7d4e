"""Hugging Face: soft labels, loss and metrics for ``Trainer``, a dial between fine-tuned checkpoints, an audit.

These fit around a usual fine-tuning::

    train = soften(train, base, lam=0.5)                       # labels become targets
    trainer = Trainer(model, args, train_dataset=train, eval_dataset=test,
                      compute_loss_func=SoftTargetLoss(), compute_metrics=ChurnMetrics(probabilities(base, test)))
    trainer.train()
    print(audit_trainer(trainer, test, base))                  # what changed
    served = dial("production", ["run-1", "run-2"], test, max_churn=0.02)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lowchurn._checks import check_proba, check_share, check_whole, to_numpy
from lowchurn._display import share_text
from lowchurn._extras import importing
from lowchurn._types import Values
from lowchurn.integrations._checkpoints import Model, averaged, loaded
from lowchurn.metrics import decide, flips
from lowchurn.scoring import LogScore, Score, get_score, row_dot
from lowchurn.selection import Certificate, certify
from lowchurn.strategies import Distill, one_hot

if TYPE_CHECKING:
    from lowchurn.audit import Audit

__all__ = ["ChurnMetrics", "Dialed", "SoftTargetLoss", "audit_trainer", "dial", "probabilities", "soften"]

LABELS = ("labels", "label", "label_ids")
OTHER_PROBLEMS = ("multi_label_classification", "regression")
Dataset: TypeAlias = Any  # of the library datasets
Collator: TypeAlias = Callable[[list[Any]], Any] | None


class SoftTargetLoss:
    """The loss against soft labels, for ``Trainer(compute_loss_func=SoftTargetLoss())``.

    It takes rows of probabilities (from :func:`soften`) and class indices, so that soft rows can be trained on and
    labels evaluated. The loss of an optimiser step is the mean over all its rows, however many batches gradients are
    accumulated over and however many processes train: ``Trainer`` counts every number of a matrix of soft labels as an
    item (``num_items_in_batch``), and this loss divides by the number of rows instead.

    Parameters
    ----------
    score : str or Score, default "log"
        The proper score: "log" is cross-entropy, "brier" the squared error of the probabilities.

    Examples
    --------
    >>> import torch
    >>> from lowchurn.integrations.huggingface import SoftTargetLoss
    >>> logits = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    >>> loss = SoftTargetLoss()
    >>> round(loss({"logits": logits}, torch.tensor([[0.5, 0.5], [0.9, 0.1]])).item(), 4)
    0.51
    >>> round(loss({"logits": logits}, torch.tensor([0, 0])).item(), 4)
    0.41
    """

    def __init__(self, score: str | Score = "log") -> None:
        self.score = get_score(score)

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        """Return the loss of a batch as ``Trainer`` asks for it."""
        with importing("SoftTargetLoss", "hf"):
            import torch

        logits = (outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]).float()
        if labels is None:
            raise ValueError(
                "SoftTargetLoss: the batch has no labels. Trainer drops columns that the model does not take: call the "
                "column of soft labels 'labels', as soften does."
            )
        targets = labels.to(logits.device)
        if targets.ndim == 1 and not targets.is_floating_point():
            targets = torch.nn.functional.one_hot(targets.long(), logits.shape[-1])
        targets = targets.to(logits.dtype)
        if logits.ndim != 2 or targets.shape != logits.shape:
            raise ValueError(
                f"SoftTargetLoss: labels must be class indices or have the shape of the logits, {tuple(logits.shape)}, "
                f"got {tuple(targets.shape)}."
            )
        if isinstance(self.score, LogScore):  # from the logits, which has a gradient everywhere
            rows = -(targets * torch.log_softmax(logits, dim=-1)).sum(dim=-1)
        else:
            rows = row_dot(targets, self.score.phi(torch.softmax(logits, dim=-1)))
        if num_items_in_batch is None:
            return rows.mean()
        items = torch.as_tensor(num_items_in_batch, device=logits.device)
        copies = 1
        if items.ndim:  # one entry per GPU of a DataParallel model, whose loss Trainer multiplies by their number
            copies, items = items.shape[0], items.flatten()[0]
        counted = labels.numel() // len(labels)  # numbers in a row, which is what Trainer counts
        return rows.sum() * counted / (items * copies)


class ChurnMetrics:
    """Churn, broken and fixed decisions at every evaluation, for ``Trainer(compute_metrics=ChurnMetrics(base))``.

    Parameters
    ----------
    base_predictions : array of shape (n,) or (n, m)
        What the base decides in each row of the evaluation set, as class indices, or its probabilities or logits, as
        :func:`probabilities` returns them.
    labels : array of shape (n,), optional
        The labels of these rows. Where they are given, an evaluation in another order is refused: ``Trainer`` sorts
        evaluation rows by their length with ``train_sampling_strategy="group_by_length"``.

    Examples
    --------
    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> from lowchurn.integrations.huggingface import ChurnMetrics
    >>> metrics = ChurnMetrics([0, 0, 1, 1])
    >>> logits = np.array([[2.0, 1.0], [0.0, 3.0], [0.0, 1.0], [1.0, 2.0]])
    >>> metrics(SimpleNamespace(predictions=logits, label_ids=np.array([0, 1, 1, 0])))
    {'accuracy': 0.75, 'churn': 0.25, 'broken': 0.0, 'fixed': 0.25}
    """

    def __init__(self, base_predictions: Values, labels: Values | None = None) -> None:
        self.base = decisions_in("ChurnMetrics", "base_predictions", base_predictions)
        self.labels = None if labels is None else to_numpy(labels)

    def __call__(self, prediction: Any) -> dict[str, float]:
        """Return the metrics of an ``EvalPrediction``."""
        answers = prediction.predictions
        new = decisions_in("ChurnMetrics", "predictions", answers[0] if isinstance(answers, tuple) else answers)
        y = np.asarray(prediction.label_ids)
        if y.ndim != 1 or y.dtype.kind not in "iu":
            raise ValueError(
                "ChurnMetrics: the evaluation set must have labels as class indices, got shape "
                f"{y.shape} of {y.dtype}. Soften the training rows alone."
            )
        if len(new) != len(self.base):
            raise ValueError(
                f"ChurnMetrics: the base has decisions for {len(self.base)} rows, the evaluation has {len(new)}. Give "
                "those of the evaluation set, without batch_eval_metrics."
            )
        if self.labels is not None and not np.array_equal(y, self.labels):
            raise ValueError(
                "ChurnMetrics: the evaluation has its labels in another order than labels=, so that decisions cannot "
                "be compared row by row. Leave train_sampling_strategy='group_by_length' out, or use audit_trainer."
            )
        changed = flips(y, base=self.base, new=new)
        return {
            "accuracy": float((new == y).mean()),
            "churn": float((new != self.base).mean()),
            "broken": changed.broken / changed.n,
            "fixed": changed.fixed / changed.n,
        }


def probabilities(
    model: Model, dataset: Dataset, *, collator: Collator = None, batch_size: int = 32, who: str = "probabilities"
) -> np.ndarray:
    """Return what a model answers to the rows of a dataset, in their order and without dropout.

    Parameters
    ----------
    model : PreTrainedModel or PeftModel
        A classifier for one of several classes.
    dataset : datasets.Dataset
        Tokenised or preprocessed rows; labels are not needed.
    collator : callable, optional
        Makes a batch of rows, such as ``DataCollatorWithPadding(tokenizer)``; needed where rows differ in length.
    batch_size : int, default 32
        Rows at once.
    who : str
        Who asks, for messages.

    Returns
    -------
    array of shape (n, m)

    Examples
    --------
    >>> from datasets import Dataset
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> from lowchurn.integrations.huggingface import probabilities
    >>> size = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    >>> model = BertForSequenceClassification(BertConfig(vocab_size=20, max_position_embeddings=4, **size))
    >>> probabilities(model, Dataset.from_dict({"input_ids": [[1, 2], [3, 4]]})).sum(axis=1).round(6)
    array([1., 1.])
    """
    with importing(who, "hf"):
        import torch

    if model.config.num_labels < 2 or model.config.problem_type in OTHER_PROBLEMS:
        raise ValueError(
            f"{who}: the model must decide for one of several classes, got problem_type="
            f"{model.config.problem_type!r} with {model.config.num_labels} output(s)."
        )
    found = []
    with evaluating(model), torch.no_grad():
        for batch in batches(who, model, dataset, collator, batch_size):
            found.append(torch.softmax(model(**batch).logits.double(), dim=-1).cpu().numpy())
    return np.concatenate(found)


def soften(
    dataset: Dataset, base: Any, lam: float = 0.5, *, collator: Collator = None, batch_size: int = 32
) -> Dataset:
    """Return a dataset whose labels are mixed with the probabilities of the base: distillation.

    The column ``labels`` of the result contains ``lam * label + (1 - lam) * base`` for each class. The column of the
    labels is replaced, since a collator would write ``label`` over ``labels``. Train with :class:`SoftTargetLoss`: a
    model that is given such labels itself takes the task for one of several labels per row.

    Parameters
    ----------
    dataset : datasets.Dataset
        Tokenised or preprocessed rows with labels as class indices, called "label", "labels" or "label_ids".
    base : model, path or array of shape (n, m)
        The model in production, its folder, or its probabilities of these rows. It is asked without dropout, in the
        order of the rows.
    lam : float, default 0.5
        The weight of the labels.
    collator : callable, optional
        Makes a batch of rows, such as ``DataCollatorWithPadding(tokenizer)``; needed where rows differ in length.
    batch_size : int, default 32
        Rows that the base is asked about at once.

    Examples
    --------
    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from lowchurn.integrations.huggingface import soften
    >>> rows = Dataset.from_dict({"input_ids": [[1, 2], [3, 4]], "label": [0, 1]})
    >>> soft = soften(rows, np.array([[0.8, 0.2], [0.6, 0.4]]), lam=0.5)
    >>> soft.column_names, np.round(soft["labels"][:], 2).tolist()
    (['input_ids', 'labels'], [[0.9, 0.1], [0.3, 0.7]])
    """
    with importing("soften", "hf"):
        from datasets import List, Value

    y = labels_of("soften", dataset)
    proba = answers_of("soften", base, dataset, collator, batch_size)[1]
    if proba is None:
        raise ValueError("soften: base must give probabilities of shape (rows, classes), got decisions alone.")
    if y.min() < 0 or y.max() >= proba.shape[1]:
        raise ValueError(
            f"soften: labels must be in 0 to {proba.shape[1] - 1}, the classes of the base, got {y.max()}."
        )
    targets = np.asarray(Distill(lam=lam).targets(one_hot(y, proba.shape[1]), proba), dtype=np.float32)
    without = dataset.remove_columns([name for name in LABELS if name in dataset.column_names])
    return without.add_column("labels", list(targets), feature=List(Value("float32"), length=targets.shape[1]))


@dataclass(frozen=True, repr=False)
class Dialed:
    """What :func:`dial` found.

    Attributes
    ----------
    model : PreTrainedModel
        With the weights that were chosen; ``model.save_pretrained(folder)`` writes it.
    share : float
        How far it lies toward the base: 0 is the mean of the runs, 1 the base.
    churn, accuracy : float
        On the rows that it was chosen on; the accuracy is NaN without labels.
    positions : list of dict
        Every position that was tried, with its churn and accuracy.
    certificate : Certificate or None
        What the other rows prove, where ``confidence`` asked for it.

    Examples
    --------
    >>> from lowchurn.integrations.huggingface import Dialed
    >>> print(Dialed(model=None, share=0.5, churn=0.01, accuracy=0.9, positions=[]))
    Moved by 0.5 from the runs (0) toward the base (1): churn 1.00 %, accuracy 90.00 % on the rows that chose.
    """

    model: Model
    share: float
    churn: float
    accuracy: float
    positions: list[dict[str, float]]
    certificate: Certificate | None = None

    def __str__(self) -> str:
        accuracy = "" if np.isnan(self.accuracy) else f", accuracy {share_text(self.accuracy)}"
        place = f"Moved by {self.share:.3g} from the runs (0) toward the base (1)"
        words = f"{place}: churn {share_text(self.churn)}{accuracy} on the rows that chose."
        return words if self.certificate is None else f"{words} {self.certificate}"

    def __repr__(self) -> str:  # without the model, which has a line per layer
        return str(self)


def dial(
    base: Any,
    runs: Sequence[Any],
    dataset: Dataset,
    *,
    max_churn: float,
    confidence: float | None = None,
    positions: int = 21,
    collator: Collator = None,
    batch_size: int = 32,
    seed: int = 0,
) -> Dialed:
    """Average fine-tuned checkpoints and move toward the base until few decisions change. Nothing is trained.

    Parameters
    ----------
    base : path or model
        The model in production: a folder that ``save_pretrained`` wrote (safetensors).
    runs : list of paths or models
        Checkpoints that were fine-tuned from it, with the same layers. A folder of a LoRA adapter is merged into the
        base first, so that its products are averaged and not its factors.
    dataset : datasets.Dataset
        Rows that no training has seen. With labels the most accurate position within the budget is chosen, without
        labels the one nearest to the runs.
    max_churn : float
        The largest share of decisions that may change.
    confidence : float, optional
        Certify the budget with this confidence: half of the rows choose, the other half prove.
    positions : int, default 21
        Positions between the mean of the runs and the base, both included.
    collator, batch_size
        As in :func:`soften`.
    seed : int, default 0
        Decides which rows choose and which prove.

    Examples
    --------
    >>> import torch
    >>> from datasets import Dataset
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> size = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    >>> config = BertConfig(vocab_size=20, max_position_embeddings=4, **size)
    >>> _ = torch.manual_seed(0)
    >>> base, run = (BertForSequenceClassification(config) for _ in range(2))
    >>> rows = Dataset.from_dict({"input_ids": [[i, 19 - i] for i in range(20)]})
    >>> dial(base, [run], rows, max_churn=0.1).churn <= 0.1
    True
    """
    who = "dial"
    max_churn = check_share(who, "max_churn", max_churn)
    shares = np.linspace(1.0, 0.0, check_whole(who, "positions", positions, low=2))
    between = averaged(who, base, runs)
    model = between.model

    def rows() -> Iterator[dict[str, Any]]:
        return batches(who, model, dataset, collator, batch_size)

    y = labels_of(who, dataset) if any(name in dataset.column_names for name in LABELS) else None
    order = np.random.default_rng(seed).permutation(len(dataset))
    prove = np.sort(order[: len(order) // 2]) if confidence is not None else order[:0]
    choose = np.setdiff1d(order, prove)
    decided = {}
    for share in shares.tolist():  # the base first, which is asked as any other
        between.put(share, rows)
        decided[share] = decide(probabilities(model, dataset, collator=collator, batch_size=batch_size, who=who))
    tried = []
    for share, found in decided.items():
        changed, right = found != decided[1.0], np.nan if y is None else float((found[choose] == y[choose]).mean())
        tried.append({"share": share, "churn": float(changed[choose].mean()), "accuracy": right})
    within = [one for one in tried if one["churn"] <= max_churn]  # the base is, always; it is the first
    best = within[::-1] if y is None else sorted(within, key=lambda one: -one["accuracy"])
    chosen, certificate = best[0], None
    if confidence is not None:
        values = {f"{share:g}": (found != decided[1.0])[prove].astype(float) for share, found in decided.items()}
        prefer = [f"{one['share']:g}" for one in best]
        certificate, accepted = certify(values, max_churn, confidence, prefer=prefer)
        chosen = next((one for one in best if f"{one['share']:g}" in accepted), chosen)
    between.put(chosen["share"], rows)
    return Dialed(model, chosen["share"], chosen["churn"], chosen["accuracy"], tried, certificate)


def audit_trainer(
    trainer: Any, dataset: Dataset, base: Any, *, id: str | None = None, by: str | Sequence[str] = (), **settings: Any
) -> Audit:
    """Audit the model of a ``Trainer`` against the base on the same rows.

    Rows are asked in their order, whatever sampler the trainer has, and decisions are named by ``config.id2label``.

    Parameters
    ----------
    trainer : transformers.Trainer
        Its model, collator and batch size are used.
    dataset : datasets.Dataset
        Rows, with or without labels.
    base : model, path or array
        The model in production, its folder, its probabilities (n, m) or its decisions (n,) of these rows.
    id : str, optional
        A column with a key of each row; the number of the row by default.
    by : str or list of str, optional
        Columns whose values are slices.
    **settings
        As in :func:`lowchurn.audit.audit`.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from datasets import Dataset
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> from lowchurn.integrations.huggingface import audit_trainer
    >>> size = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    >>> config = BertConfig(vocab_size=20, max_position_embeddings=4, **size)
    >>> trainer = SimpleNamespace(
    ...     model=BertForSequenceClassification(config), data_collator=None,
    ...     args=SimpleNamespace(per_device_eval_batch_size=8),
    ... )
    >>> rows = Dataset.from_dict({"input_ids": [[i, i + 1] for i in range(10)], "label": [0, 1] * 5})
    >>> audit_trainer(trainer, rows, base=trainer.model).churn.value
    0.0
    """
    who = "audit_trainer"
    with importing(who, "audit"):
        import pandas as pd

        from lowchurn.audit import audit
    collator, batch_size = trainer.data_collator, trainer.args.per_device_eval_batch_size
    columns = [by] if isinstance(by, str) else list(by)
    if missing := [name for name in ([id] if id else []) + columns if name not in dataset.column_names]:
        raise ValueError(f"{who}: the dataset has no column {missing[0]!r}, it has {dataset.column_names}.")
    names = label_names(trainer.model, dataset)
    common = {"id": np.arange(len(dataset)) if id is None else dataset[id][:]}
    common |= {name: dataset[name][:] for name in columns}
    if any(name in dataset.column_names for name in LABELS):
        common["label"] = [names[k] for k in labels_of(who, dataset)]
        settings.setdefault("label", "label")
    tables, known = [], []
    for model in (base, trainer.model):
        decided, proba = answers_of(who, model, dataset, collator, batch_size)
        if decided.max(initial=0) >= len(names):
            raise ValueError(f"{who}: decisions must be in 0 to {len(names) - 1}, got {decided.max()}.")
        table = pd.DataFrame({**common, "prediction": [names[k] for k in decided]})
        known.append(None if proba is None or proba.shape[1] != len(names) else proba)
        tables.append(table)
    if all(proba is not None for proba in known):
        columns_of = [f"proba_{name}" for name in names]
        tables = [
            pd.concat([table, pd.DataFrame(proba, columns=columns_of)], axis=1)
            for table, proba in zip(tables, known, strict=True)
        ]
        settings.setdefault("proba", dict(zip(names, columns_of, strict=True)))
    old, new = tables
    return audit(old, new, "id", by=columns, **{"prediction": "prediction", **settings})


# What the functions share.


def decisions_in(who: str, name: str, values: Values) -> np.ndarray:
    """Return decisions as class indices, from indices (n,) or from probabilities or logits (n, m)."""
    array = to_numpy(values)
    if array.ndim == 2 and array.shape[1] > 1:
        return np.asarray(decide(array))
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{who}: {name} must be class indices of shape (n,) or probabilities of shape (n, m), got shape "
            f"{array.shape} of {array.dtype}."
        )
    return array


def labels_of(who: str, dataset: Dataset) -> np.ndarray:
    """Return the labels of a dataset as class indices."""
    if not hasattr(dataset, "select_columns") or not hasattr(dataset, "__len__"):
        raise ValueError(f"{who}: dataset must be a datasets.Dataset with a length, got {type(dataset).__name__}.")
    name = next((name for name in LABELS if name in dataset.column_names), None)
    if name is None:
        raise ValueError(f"{who}: dataset must have a column 'label' or 'labels', it has {dataset.column_names}.")
    y = np.asarray(dataset[name][:])
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ValueError(
            f"{who}: the labels must be one class index per row, got shape {y.shape} of {y.dtype}. "
            "A dataset is softened once."
        )
    return y


def label_names(model: Model, dataset: Dataset | None = None) -> list[str]:
    """Return the names of the classes: those of the model, or where it has none those of the dataset."""
    names = [str(model.config.id2label[k]) for k in range(model.config.num_labels)]
    if dataset is None or names != [f"LABEL_{k}" for k in range(len(names))]:
        return names
    own = next((getattr(dataset.features[c], "names", None) for c in LABELS if c in dataset.column_names), None)
    return [str(name) for name in own] if own and len(own) == len(names) else names


def answers_of(
    who: str, base: Any, dataset: Dataset, collator: Collator, batch_size: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the decisions and, where they are known, the probabilities of a base, in the order of the dataset."""
    if isinstance(base, str | Path):
        base = loaded(who, base)
    if not hasattr(base, "config"):
        array = to_numpy(base)
        if len(array) != len(dataset):
            raise ValueError(f"{who}: base has answers for {len(array)} rows, the dataset has {len(dataset)}.")
        if array.ndim == 2:
            proba = to_numpy(check_proba(who, "base", array))
            return np.asarray(decide(proba)), proba
        return decisions_in(who, "base", array), None
    proba = probabilities(base, dataset, collator=collator, batch_size=batch_size, who=who)
    own = label_names(base)
    column = next((c for c in LABELS if c in dataset.column_names), None)
    wanted = None if column is None else getattr(dataset.features[column], "names", None)
    if wanted and own != [f"LABEL_{k}" for k in range(len(own))] and own != list(wanted):
        if sorted(own) != sorted(wanted):
            raise ValueError(f"{who}: the base has the classes {own}, the dataset {list(wanted)}. Rename one of them.")
        proba = proba[:, [own.index(name) for name in wanted]]
    return np.asarray(decide(proba)), proba


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Switch dropout off, and on again where it was."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


def batches(who: str, model: Model, dataset: Dataset, collator: Collator, batch_size: int) -> Iterator[dict[str, Any]]:
    """Yield what the model takes of the rows, without labels, in their order, on its device."""
    with importing(who, "hf"):
        from torch.utils.data import DataLoader
        from transformers import default_data_collator

    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    takes = inspect.signature(inner.forward).parameters
    columns = [name for name in dataset.column_names if name in takes and name not in LABELS]
    if not columns:
        raise ValueError(
            f"{who}: the dataset has no column that {type(inner).__name__} takes, it has {dataset.column_names}. "
            "Tokenise or preprocess it first."
        )
    device = next(model.parameters()).device
    loader = DataLoader(dataset.select_columns(columns), batch_size, collate_fn=collator or default_data_collator)
    try:
        for batch in loader:
            yield {name: value.to(device) for name, value in batch.items() if name in columns}
    except ValueError as error:
        if "expected sequence of length" not in str(error):
            raise
        raise ValueError(
            f"{who}: the rows differ in length. Give collator=DataCollatorWithPadding(tokenizer)."
        ) from error
