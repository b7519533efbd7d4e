"""Train many models at once, each with its own rows, targets, start and shuffles, each stopping in its own time."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import joblib
import numpy as np
import torch
from torch import nn

from lowchurn._checks import check_choice, check_number, check_whole
from lowchurn.nets._initial_weights import Factory, initial_weights, make_template
from lowchurn.nets._memory import free_memory, in_words
from lowchurn.nets._stacks import Settings, State, copies_held, make_stack
from lowchurn.nets._streams import in_turn
from lowchurn.nets._tasks import Task, check_tasks
from lowchurn.nets._trained import FINISHED, INTERRUPTED, Numbers, Trained, TrainingInterrupted, as_pool
from lowchurn.nets._training_data import TrainingData

AT_ONCE = ("cuda",)  # devices on which tasks that cannot share a stack are trained at the same time


def train(
    network: Factory,
    X: Numbers,
    tasks: Sequence[Task],
    *,
    epochs: int = 300,
    patience: int = 5,
    restore_best: bool = False,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    loss: str = "log",
    device: str = "auto",
    dtype: str = "float32",
    precision: str = "auto",
    memory_limit: float | None = None,
    threads: int | None = None,
    progress: bool = True,
    generic: bool | None = None,
    one_order: bool = False,
) -> Trained:
    """Train one model for each task, all together, by Adam with Keras' constants.

    Each model has its own shuffles and stops when its own validation loss has not improved for ``patience`` epochs,
    as in Keras; the last weights are kept. A model's result depends on its task alone: not on the others, nor on the
    order or the memory limit.

    Parameters
    ----------
    network : module, or function that makes one
        The architecture, giving logits of shape (rows, classes). The paper's networks
        (:mod:`lowchurn.nets.networks`) take fast paths on a GPU, the fully connected ones on a CPU as well. Any other
        module goes through ``torch.func``, and on a CPU one model after the other where rows are images or tokens.
    X : array of shape (N, ...)
        The pool of rows that tasks point into.
    tasks : list of Task
        What to train.
    epochs : int, default 300
        At most this many.
    patience : int, default 5
        Epochs without improvement after which a model stops.
    restore_best : bool, default False
        Keep the weights of the best epoch instead of the last.
    batch_size : int, default 32
        The last batch of an epoch may be smaller.
    learning_rate : float, default 1e-3
        Adam's.
    loss : {"log", "squared"}
        Cross-entropy, or the mean squared error of the probabilities.
    device : {"auto", "cpu", "cuda", "cuda:1", ...}
        "auto" is the GPU where there is one.
    dtype : {"float32", "float64"}
        Of weights and data.
    precision : {"auto", "float32", "bfloat16", "tf32"}
        Of products on a GPU: "auto" is bfloat16 for convnets, residual networks and transformers (rows of at most 256
        tokens), and full float32 accuracy for the rest.
    memory_limit : float, optional
        Bytes that a stack may take; more models are trained in several stacks, one after the other. By default
        60 % of the GPU's free memory, or 25 % of the machine's. The results of all models are not part of it.
    threads : int, optional
        CPU threads for fully connected networks; by default one per core.
    progress : bool, default True
        Show a progress bar where the output is a terminal.
    generic : bool, optional
        Whether the paper's networks take the path of any module. By default those that are not fully connected do on a
        CPU, where it is the faster one.
    one_order : bool, default False
        Give each model its rows in the same order in every epoch, as Keras 3 on TensorFlow does once a seed is set.
        What mixup mixes them with is drawn anew. Networks are less accurate and churn more.

    Returns
    -------
    Trained

    Raises
    ------
    ValueError
        Also where the weights of all models and one model in training need more memory than is free.
    KeyboardInterrupt
        At ctrl-C; its ``trained`` contains what was finished.

    Examples
    --------
    >>> import numpy as np
    >>> from lowchurn.nets import strategy_tasks, train
    >>> from lowchurn.nets.networks import fcn
    >>> from lowchurn.strategies import ColdStart, WarmStart
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 4)).astype("float32")
    >>> y = (X[:, 0] > 0).astype(int)
    >>> old = dict(rows=np.arange(100), y=y, classes=2, validation=np.arange(200, 300))
    >>> base = train(fcn(16, inputs=4, classes=2), X, strategy_tasks([ColdStart()], seed=0, **old), device="cpu")
    >>> new = old | dict(rows=np.arange(200), base=(base, 0))
    >>> both = train(
    ...     fcn(16, inputs=4, classes=2), X, strategy_tasks([ColdStart(), WarmStart()], seed=1, **new), device="cpu"
    ... )
    >>> both.status
    ['finished', 'finished']
    >>> both.predict(X).shape
    (2, 300)
    """
    check_choice("train", "loss", loss, ("log", "squared"))
    check_choice("train", "dtype", dtype, ("float32", "float64"))
    check_choice("train", "precision", precision, ("auto", "float32", "bfloat16", "tf32"))
    epochs, patience = check_whole("train", "epochs", epochs), check_whole("train", "patience", patience)
    if memory_limit is not None:
        check_number("train", "memory_limit", memory_limit, 0, sys.maxsize, open_low=True)
    settings = Settings(
        device=find_device(device),
        dtype=getattr(torch, dtype),
        batch_size=check_whole("train", "batch_size", batch_size),
        learning_rate=check_number("train", "learning_rate", learning_rate, 0, 1e30),
        squared=loss == "squared",
        precision="ieee" if precision == "float32" else precision,
        threads=joblib.cpu_count() if threads is None else check_whole("train", "threads", threads),
        one_order=one_order,
    )
    template = make_template(network)
    pool = as_pool(X, settings, template)
    tasks = check_tasks(tasks, len(pool), {name: tuple(p.shape) for name, p in template.named_parameters()})
    classes = tasks[0].targets.shape[1]  # type: ignore[union-attr]
    row = pool[0].numel() + _check_output(template, pool, classes)
    sizes = _Sizes(template, settings, classes, copies_held(template, settings, generic) * row)
    groups = _alike(tasks)
    if memory_limit is None or settings.device.type == "cpu":  # a GPU may be shared by runs that give memory back
        sizes.check(groups, len(tasks))
    nothing = np.zeros(len(tasks), dtype=int), np.full(len(tasks), math.nan)
    trained = Trained(template, settings, {}, [INTERRUPTED] * len(tasks), *nothing)
    run = _Run(network, pool, tasks, _Stopping(epochs, patience, restore_best), generic, trained)
    with _progress_bar(len(tasks), progress) as advance:
        try:
            queues = sizes.queues(groups, memory_limit)
            run.result()  # made before the work goes on in several streams
            in_turn([run.train_chunks(chunks, advance) for chunks in queues], settings.device)
        except KeyboardInterrupt:
            raise TrainingInterrupted(run.result()) from None
    return run.result()


@dataclass(frozen=True)
class _Kind:
    """What tasks that share a stack have in common."""

    rows: int
    held_out: int
    mixed: bool
    twins: bool
    limited: bool


def _alike(tasks: list[Task]) -> dict[_Kind, list[int]]:
    """Tasks that can share a stack, by what they have in common."""
    groups: dict[_Kind, list[int]] = {}
    for i, task in enumerate(tasks):
        own = (value is not None for value in (task.mixing, task.coupling, task.limit))
        groups.setdefault(_Kind(len(task.rows), len(task.validation), *own), []).append(i)
    return groups


@dataclass(frozen=True)
class _Sizes:
    """How much memory trainings of one network take; ``row`` counts the numbers that are held of one row."""

    template: nn.Module
    settings: Settings
    classes: int
    row: float

    @property
    def weights(self) -> int:
        return sum(p.numel() for p in self.template.parameters())

    def bytes_of(self, kind: _Kind) -> int:
        """A generous estimate of what one model needs while it trains."""
        item = self.settings.dtype.itemsize
        data = (kind.rows + kind.held_out) * (4 * 8 + (4 if kind.limited else 2) * item * (self.classes + 1))
        held = item * (6 * self.weights + math.ceil(self.settings.batch_size * self.row))
        return (held + data) * (2 if kind.twins else 1)

    def check(self, groups: dict[_Kind, list[int]], models: int) -> None:
        """Refuse what cannot fit: the system ends a process that takes more memory than there is."""
        free = free_memory(self.settings.device)
        need = self.settings.dtype.itemsize * self.weights * models + max(map(self.bytes_of, groups))
        if free is not None and need > free:
            raise ValueError(
                f"train: {models} models of {self.weights:,} weights need about {in_words(need)} of memory, "
                f"but {in_words(free)} is free on {self.settings.device}. Train fewer at a time, or a smaller network."
            )

    def queues(self, groups: dict[_Kind, list[int]], limit: float | None) -> list[list[list[int]]]:
        """Chunks of tasks that can share a stack, as many tasks at a time as the limit in bytes allows.

        Where groups are trained at the same time, each has a queue of its own and its part of the limit. All are in one
        queue on a CPU, and where a part does not suffice for one model.
        """
        if limit is None:
            free = free_memory(self.settings.device)
            limit = (0.6 if self.settings.device.type == "cuda" else 0.25) * (2**32 if free is None else free)
        part = min(1.0, limit / sum(len(members) * self.bytes_of(kind) for kind, members in groups.items()))
        apart = self.settings.device.type in AT_ONCE and all(part * len(members) >= 1 for members in groups.values())
        queues: list[list[list[int]]] = []
        for kind, members in groups.items():
            size = max(1, int(part * len(members) if apart else limit // self.bytes_of(kind)))
            chunks = [members[first : first + size] for first in range(0, len(members), size)]
            queues = [*queues, chunks] if apart else [[*(queues[0] if queues else []), *chunks]]
        return queues


@dataclass(frozen=True)
class _Stopping:
    """When a model stops, and which of its weights are kept."""

    epochs: int
    patience: int
    restore_best: bool


@dataclass(frozen=True)
class _Run:
    """The work of one call of :func:`train`: tasks in, results collected as models finish."""

    network: Factory
    pool: torch.Tensor
    tasks: list[Task]
    stopping: _Stopping
    generic: bool | None
    trained: Trained

    def result(self) -> Trained:
        """All models, the finished ones with their weights."""
        trained = self.trained
        if not trained.state:
            device, dtype, template = trained.settings.device, trained.settings.dtype, trained.template
            for name, value in (*template.named_parameters(), *template.named_buffers()):
                kind = dtype if value.is_floating_point() else value.dtype
                trained.state[name] = torch.zeros((len(trained), *value.shape), device=device, dtype=kind)
        return trained

    def train_chunks(self, chunks: list[list[int]], advance: Callable[[int, int], None]) -> Iterator[None]:
        """Train chunk after chunk."""
        for chunk in chunks:
            yield from self.train_chunk(chunk, advance)

    def train_chunk(self, members: list[int], advance: Callable[[int, int], None]) -> Iterator[None]:
        """Train the models of one stack until the last of them has stopped; goes aside while a GPU trains an epoch."""
        tasks, template, settings = [self.tasks[i] for i in members], self.trained.template, self.trained.settings
        data = TrainingData(tasks, self.pool, settings)
        stack = make_stack(template, *initial_weights(self.network, template, tasks, settings), settings, self.generic)
        active, best, waited = np.array(members), np.full(len(members), math.inf), np.zeros(len(members), dtype=int)
        kept: State = {}  # the weights of the best epoch, where these are wanted
        for epoch in range(1, self.stopping.epochs + 1):
            stack.train_epoch(data.batches(epoch - 1))
            loss = data.validation_loss(stack)
            yield
            last = loss.cpu().numpy()  # all that a GPU is waited for in an epoch
            improved = last < best
            best, waited = np.where(improved, last, best), np.where(improved, 0, waited + 1)
            if self.stopping.restore_best:
                kept = _updated(kept, data.twins.first_state(stack.state()), _on(loss.device, np.flatnonzero(improved)))
            leaving = (waited >= self.stopping.patience) | ~np.isfinite(last) | (epoch == self.stopping.epochs)
            advance(int(leaving.sum()), epoch)
            if leaving.any():
                state = kept or data.twins.first_state(stack.state())
                self._collect(state, active, leaving, last, best if kept else last, epoch)
                del state  # or it would keep the weights of models that left
                if leaving.all():
                    return
                active, best, waited = active[~leaving], best[~leaving], waited[~leaving]
                stay = _on(loss.device, np.flatnonzero(~leaving))
                kept = {name: value[stay] for name, value in kept.items()}
                data.keep(stay)
                stack.keep(data.twins.models(stay))
            data.steer(stack)

    def _collect(
        self, state: State, active: np.ndarray, leaving: np.ndarray, last: np.ndarray, loss: np.ndarray, epoch: int
    ) -> None:
        """Take the models that leave out of the stack into the result."""
        trained, who = self.result(), active[leaving]
        device = trained.settings.device
        index, place = _on(device, np.flatnonzero(leaving)), _on(device, who)
        for name, value in state.items():
            trained.state[name][place] = value[index]
        trained.epochs[who], trained.loss[who] = epoch, loss[leaving]
        failed = f"failed: validation loss is not finite after epoch {epoch}"
        for i, finite in zip(who, np.isfinite(last[leaving]), strict=True):
            trained.status[i] = FINISHED if finite else failed


def _on(device: torch.device, index: np.ndarray) -> torch.Tensor:
    """Positions as a tensor on a device, without waiting for what it does."""
    return torch.from_numpy(index).to(device, non_blocking=True)


def _updated(kept: State, now: State, improved: torch.Tensor) -> State:
    """The kept weights with those of models that improved, by their positions, put in their place."""
    if not kept:
        return {name: value.clone() for name, value in now.items()}
    for name, value in now.items():
        kept[name][improved] = value[improved]
    return kept


def find_device(name: str) -> torch.device:
    """The device of a name; "auto" is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"train: device must be 'auto', 'cpu' or 'cuda', got {name!r}.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"train: device {name!r} is not there; this machine has {torch.cuda.device_count()} GPUs.")
    return device


def _check_output(template: nn.Module, pool: torch.Tensor, classes: int) -> int:
    """The numbers that one row leaves behind in a forward pass, or an error where that does not give logits."""
    left_behind = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal left_behind
        left_behind += output[0].numel() if isinstance(output, torch.Tensor) and output.ndim else 0

    module = copy.deepcopy(template).to(pool.device).eval()
    if pool.is_floating_point():
        module = module.to(pool.dtype)
    for layer in module.modules():
        layer.register_forward_hook(count)
    with torch.no_grad():
        try:
            output = module(pool[:2])
        except (RuntimeError, IndexError, TypeError) as error:
            shape = tuple(pool.shape[1:])
            raise ValueError(f"train: the network does not take rows of shape {shape}: {error}") from error
    expected = (len(pool[:2]), classes)
    if not isinstance(output, torch.Tensor) or tuple(output.shape) != expected:
        got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise ValueError(
            f"train: the network must give logits of shape (rows, classes), here {expected}, got {got}. "
            "Match its last layer to the number of classes."
        )
    return left_behind


@contextmanager
def _progress_bar(total: int, wanted: bool) -> Iterator[Callable[[int, int], None]]:
    if not (wanted and sys.stderr.isatty()):
        yield lambda finished, epoch: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    epochs = TextColumn("models, epoch {task.fields[epoch]}")
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), epochs, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, epoch=0)
        yield lambda finished, epoch: bar.update(task, advance=finished, epoch=epoch)
