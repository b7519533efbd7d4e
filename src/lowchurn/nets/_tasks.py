"""What to train: a task per model, and the tasks that retrain a base by each of several strategies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from lowchurn._checks import check_number, to_numpy
from lowchurn._types import ArrayLike
from lowchurn.nets._trained import Numbers, Origin, Trained
from lowchurn.strategies import Strategy, one_hot

T = TypeVar("T")
Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # of a network's weights, by name


@dataclass(frozen=True)
class Task:
    """One model to train.

    Parameters
    ----------
    rows : array of int, shape (n,)
        Its training rows in the pool.
    targets : array of shape (n, m)
        Soft targets of those rows; they need not sum to one. A tensor on the training device is not copied.
    validation : array of int, shape (v,)
        Rows of the pool on whose loss training stops.
    validation_targets : array of shape (v, m)
        Their true labels as rows of zeros and a one.
    seed : int
        Decides the fresh weights, the shuffles and the mixing, and nothing else does.
    start : (Trained, int), dict or None
        The base's weights: a model of an earlier training, or a state dict. None for a fresh start.
    base_share : float
        Weights start at ``base_share * start + (1 - base_share) * fresh``.
    weights : array of shape (n,), optional
        Row weights.
    mixing : float, optional
        Alpha of mixup's Beta distribution.
    coupling : float, optional
        Train a coupled pair with this share of the loss between the two; the first of it is the result.
    limit : float, optional
        Steer the share of the training rows whose decision differs from ``pull`` to this limit: after each epoch a
        multiplier mu, at first 0, moves by how far that share is from it, and the next one's targets are
        ``(targets + mu * pull) / (1 + mu)``.
    pull : array of shape (n, m), optional
        The base's decisions as rows of zeros and a one; needed with a limit.

    Examples
    --------
    A task by hand; :func:`strategy_tasks` makes those of the paper's strategies.

    >>> from lowchurn.nets import Task
    >>> task = Task(rows=[0, 1], targets=[[1, 0], [0.2, 0.8]], validation=[2], validation_targets=[[0, 1]], seed=7)
    >>> task.base_share
    0.0
    """

    rows: Numbers
    targets: Numbers
    validation: Numbers
    validation_targets: Numbers
    seed: int = 0
    start: Origin | None = None
    base_share: float = 0.0
    weights: Numbers | None = None
    mixing: float | None = None
    coupling: float | None = None
    limit: float | None = None
    pull: Numbers | None = None


def strategy_tasks(
    strategies: Sequence[Strategy],
    *,
    rows: Numbers,
    y: ArrayLike,
    classes: int,
    validation: Numbers,
    seed: int,
    base: Origin | None = None,
    base_proba: Numbers | None = None,
    teacher_proba: Numbers | None = None,
) -> list[Task]:
    """Tasks that retrain one base by each of these strategies on the same rows.

    The base's probabilities are given once and shared by all strategies that use them.

    Parameters
    ----------
    strategies : list of Strategy
        One task each, in this order. What is averaged of trained models (a soup) is no training: hand in the members
        that :func:`lowchurn.strategies.plan` lists, and average them by :func:`lowchurn.nets.average`.
    rows, validation : arrays of int
        Rows of the pool to train on and to stop on.
    y : array of int, shape (N,)
        Class indices of all rows of the pool.
    classes : int
        Number of classes.
    seed : int
        The same for all, so that they differ in nothing but the strategy.
    base : (Trained, int), optional
        The base, for strategies that start from its weights.
    base_proba : array of shape (len(rows), classes), optional
        The base's probabilities of ``rows``, for strategies that aim at them.
    teacher_proba : array of shape (len(rows), classes), optional
        The mean probabilities of ``rows`` by a strategy's teachers, for strategies that have them.

    Examples
    --------
    >>> from lowchurn.nets import strategy_tasks
    >>> from lowchurn.strategies import ColdStart, LabelSmoothing
    >>> tasks = strategy_tasks(
    ...     [ColdStart(), LabelSmoothing(0.1)], rows=[0, 1], y=[0, 1, 0], classes=2, validation=[2], seed=0
    ... )
    >>> tasks[1].targets
    array([[0.95, 0.05],
           [0.05, 0.95]])
    """
    y = np.asarray(y)
    onehot, held_out = (one_hot(y[np.asarray(part)], classes) for part in (rows, validation))
    pull = None  # made once: arrays that tasks share are moved to the device once
    tasks = []
    for strategy in strategies:
        if strategy.blend is not None:
            raise ValueError(
                f"strategy_tasks: {strategy!r} is an average of trained models and not trained itself. "
                "Train what lowchurn.strategies.plan() lists for it."
            )
        if strategy.teachers is not None and teacher_proba is None:
            raise ValueError(f"strategy_tasks: {strategy!r} learns from teachers, but teacher_proba is None.")
        targets = strategy.targets(onehot if strategy.teachers is None else teacher_proba, base_proba)
        if strategy.limit is not None and pull is None:
            pull = strategy.pull(base_proba)
        if strategy.base_share and base is None:
            raise ValueError(f"strategy_tasks: {strategy!r} starts from the base's weights, but base is None.")
        tasks.append(by_strategy(strategy, Task(rows, targets, validation, held_out, seed, start=base, pull=pull)))
    return tasks


def by_strategy(strategy: Strategy, task: Task) -> Task:
    """The task as a strategy trains it, with the base's ``start`` and ``pull`` only where it needs them."""
    return dataclasses.replace(
        task,
        start=task.start if strategy.base_share else None,
        base_share=strategy.base_share,
        mixing=strategy.mixing,
        coupling=strategy.coupling,
        limit=strategy.limit,
        pull=None if strategy.limit is None else task.pull,
    )


def check_tasks(tasks: Sequence[Task], pool_rows: int, shapes: dict[str, tuple[int, ...]]) -> list[Task]:
    """The same tasks with plain arrays, or an error that names the first bad one; shared arrays are checked once."""
    if isinstance(tasks, Task) or not isinstance(tasks, Iterable):
        raise ValueError(f"train: tasks must be a list of tasks, got {type(tasks).__name__}.")
    tasks = list(tasks)  # kept, because what was checked is found again by its id
    seen: dict[tuple, Any] = {}
    checked: list[Task] = []
    for i, task in enumerate(tasks):
        if not isinstance(task, Task):
            raise ValueError(f"train: task {i} must be a Task, got {type(task).__name__}.")
        checked.append(_check_task(f"train: task {i}", task, pool_rows, tuple(shapes.items()), seen))
        if checked[i].targets.shape[1] != checked[0].targets.shape[1]:  # type: ignore[union-attr]
            raise ValueError(f"train: task {i}: targets must have the same number of classes in all tasks.")
    if not checked:
        raise ValueError("train: tasks must contain at least one task, got none.")
    return checked


def _check_task(who: str, task: Task, pool_rows: int, shapes: Shapes, seen: dict[tuple, Any]) -> Task:
    def once(check: Callable[..., T], name: str, *more: object) -> T:
        value = getattr(task, name)
        key = (check, id(value), *more)
        if key not in seen:
            seen[key] = check(f"{who}: {name}", value, *more)
        return seen[key]

    rows, validation = once(_row_numbers, "rows", pool_rows), once(_row_numbers, "validation", pool_rows)
    targets = once(_targets, "targets", len(rows))
    held_out = once(_targets, "validation_targets", len(validation))
    if targets.shape[1] != held_out.shape[1]:
        raise ValueError(f"{who}: targets and validation_targets must have the same number of classes.")
    if not isinstance(task.seed, int | np.integer):
        raise ValueError(f"{who}: seed must be a whole number, got {task.seed!r}.")
    check_number(who, "base_share", task.base_share, 0, 1)
    if task.mixing is not None:
        check_number(who, "mixing", task.mixing, 0, math.inf, open_low=True, open_high=True)
    if task.coupling is not None:
        check_number(who, "coupling", task.coupling, 0, 1)
    if task.start is not None:
        once(_check_start, "start", shapes)
    elif task.base_share:
        raise ValueError(f"{who}: base_share is {task.base_share}, but there is no start to take it from.")
    checked: dict[str, Any] = {"rows": rows, "targets": targets, "validation": validation, "pull": None}
    checked["validation_targets"] = held_out
    if task.weights is not None:
        checked["weights"] = once(_weights, "weights", len(rows))
    if task.limit is not None:
        if task.pull is None:
            raise ValueError(f"{who}: limit is {task.limit}, but there is no pull to compare decisions with.")
        check_number(who, "limit", task.limit, 0, 1)
        checked["pull"] = pull = once(_targets, "pull", len(rows))
        if pull.shape != targets.shape:
            raise ValueError(f"{who}: targets and pull must have the same number of classes.")
    return dataclasses.replace(task, **checked)


def _check_start(who: str, value: object, shapes: Shapes) -> bool:
    """Whether the weights are those of this network; others would be trained in its place or broadcast."""
    state, models = value, 0  # axes in front of those of the network
    if isinstance(value, tuple):
        trained, model = value if len(value) == 2 else (None, None)
        if not isinstance(trained, Trained) or not isinstance(model, int | np.integer) or not 0 <= model < len(trained):
            raise ValueError(f"{who} must be a training and the number of one of its models, or a state dict.")
        state, models = trained.state, 1
    if not isinstance(state, dict) or not all(isinstance(weights, torch.Tensor) for weights in state.values()):
        raise ValueError(f"{who} must be a training and the number of one of its models, or a dict of tensors.")
    for name, shape in shapes:
        found = tuple(state[name].shape[models:]) if name in state else None
        if found != shape:
            raise ValueError(
                f"{who} must be weights of the same network: {name} has shape {shape}, got "
                f"{'none' if found is None else found}."
            )
    return True


def _row_numbers(who: str, value: Numbers, pool_rows: int) -> np.ndarray:
    index = to_numpy(value)
    if index.ndim != 1 or index.size == 0 or index.dtype.kind not in "iu":
        raise ValueError(f"{who} must be a list of at least one row number, got shape {index.shape}.")
    if index.min() < 0 or index.max() >= pool_rows:
        raise ValueError(f"{who} must lie in 0 to {pool_rows - 1}, got {index.min()} to {index.max()}.")
    return index.astype(np.int64)


def _targets(who: str, value: Numbers, rows: int) -> np.ndarray | torch.Tensor:
    # Tensors may lie on a GPU, where a check of each would cost more than training on it: the stack checks all at once.
    targets = value if isinstance(value, torch.Tensor) else _numbers(who, value)
    if targets.ndim != 2 or len(targets) != rows:
        raise ValueError(f"{who} must have shape ({rows}, classes) to match its rows, got {tuple(targets.shape)}.")
    if isinstance(targets, np.ndarray) and not np.isfinite(targets).all():
        raise ValueError(f"{who} must be finite.")
    return targets


def _numbers(who: str, value: Numbers) -> np.ndarray:
    array = to_numpy(value)
    if array.dtype.kind not in "fiubO":
        raise ValueError(f"{who} must contain numbers, got dtype {array.dtype}.")
    try:
        return array.astype(float)
    except (TypeError, ValueError):
        raise ValueError(f"{who} must contain numbers, got other objects.") from None


def _weights(who: str, value: Numbers, rows: int) -> np.ndarray:
    weights = _numbers(who, value)
    if weights.shape != (rows,) or not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError(f"{who} must contain {rows} finite, non-negative numbers, got shape {weights.shape}.")
    return weights
