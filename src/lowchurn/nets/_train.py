"""Train many models at once, each with its own rows, targets, start and shuffles, each stopping in its own time."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import joblib
import numpy as np
import torch
from torch import nn

from lowchurn._checks import check_choice, check_number, check_whole
from lowchurn.nets import _random as draws
from lowchurn.nets._batches import Data, as_int64
from lowchurn.nets._initial_weights import State, blend, fresh_buffers, fresh_state, make_template
from lowchurn.nets._memory import free_memory, in_words
from lowchurn.nets._stacks import Settings, Stack, make_stack
from lowchurn.nets._tasks import Task, check_tasks
from lowchurn.nets._trained import FINISHED, INTERRUPTED, Trained, TrainingInterrupted, as_pool

Factory = nn.Module | Callable[[], nn.Module]


def train(
    network: Factory,
    X: Any,
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
    generic: bool = False,
) -> Trained:
    """Train one model for each task, all together, by Adam with Keras' constants.

    Each model has its own shuffles and stops when its own validation loss has not improved for ``patience`` epochs,
    as in Keras; the last weights are kept. A model's result depends on its task alone: not on the others, nor on the
    order or the memory limit.

    Parameters
    ----------
    network : module, or function that makes one
        The architecture, giving logits of shape (rows, classes). The paper's networks
        (:mod:`lowchurn.nets.networks`) take fast paths; any other module goes through ``torch.func``.
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
        Of products on a GPU: "auto" is bfloat16 for convnets and full float32 accuracy for the rest.
    memory_limit : float, optional
        Bytes that a stack may take; more models are trained in several stacks, one after the other. By default
        60 % of the GPU's free memory, or 25 % of the machine's. The results of all models are not part of it.
    threads : int, optional
        CPU threads for fully connected networks; by default one per core.
    progress : bool, default True
        Show a progress bar where the output is a terminal.
    generic : bool, default False
        Take the path of any module even for the paper's networks.

    Returns
    -------
    Trained

    Raises
    ------
    ValueError
        Also where the weights of all models and one model in training need more memory than is free.
    TrainingInterrupted
        At ctrl-C, with what was finished.

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
        device=_find_device(device),
        dtype=getattr(torch, dtype),
        batch_size=check_whole("train", "batch_size", batch_size),
        learning_rate=check_number("train", "learning_rate", learning_rate, 0, 1e30),
        squared=loss == "squared",
        precision="ieee" if precision == "float32" else precision,
        threads=joblib.cpu_count() if threads is None else check_whole("train", "threads", threads),
    )
    template = make_template(network)
    pool = as_pool(X, settings)
    tasks = check_tasks(tasks, len(pool), {name: tuple(p.shape) for name, p in template.named_parameters()})
    _check_output(template, pool, tasks[0].targets.shape[1])
    run = _Run(network, template, pool, tasks, settings, epochs, patience, restore_best, generic)
    if memory_limit is None or settings.device.type == "cpu":  # a GPU may be shared by runs that give memory back
        run.check_memory()
    with _progress_bar(len(tasks), progress) as advance:
        try:
            for chunk in run.chunks(memory_limit):
                run.train_chunk(chunk, advance)
        except KeyboardInterrupt:
            raise TrainingInterrupted(run.result()) from None
    return run.result()


class _Run:
    """The work of one call of :func:`train`: tasks in, results collected as models finish."""

    def __init__(
        self,
        network: Factory,
        template: nn.Module,
        pool: torch.Tensor,
        tasks: list[Task],
        settings: Settings,
        epochs: int,
        patience: int,
        restore_best: bool,
        generic: bool,
    ) -> None:
        self.network, self.template, self.pool, self.tasks = network, template, pool, tasks
        self.settings, self.epochs, self.patience = settings, epochs, patience
        self.restore_best, self.generic = restore_best, generic
        self.state: State = {}
        self.status = [INTERRUPTED] * len(tasks)
        self.epochs_of = np.zeros(len(tasks), dtype=int)
        self.loss_of = np.full(len(tasks), math.nan)

    def result(self) -> Trained:
        if not self.state:
            self._make_room(self._start([self.tasks[0]], twins=False), fresh_buffers(self.template, 1, *self._place))
        return Trained(self.template, self.settings, self.state, self.status, self.epochs_of, self.loss_of)

    @property
    def _place(self) -> tuple[torch.device, torch.dtype]:
        return self.settings.device, self.settings.dtype

    def _alike(self) -> dict[tuple[int, int, bool, bool, bool], list[int]]:
        """Tasks that can share a stack, by rows, held-out rows and what they need: mixing, twins, a limit on churn."""
        alike: dict[tuple[int, int, bool, bool, bool], list[int]] = {}
        for i, task in enumerate(self.tasks):
            own = (task.mixing is not None, task.coupling is not None, task.limit is not None)
            alike.setdefault((len(task.rows), len(task.validation), *own), []).append(i)
        return alike

    def check_memory(self) -> None:
        """Refuse what cannot fit: the system ends a process that takes more memory than there is."""
        free = free_memory(self.settings.device)
        weights = sum(p.numel() for p in self.template.parameters())
        largest = max(
            self._bytes_of(rows, held_out, steered, twins) for rows, held_out, _, twins, steered in self._alike()
        )
        need = self.settings.dtype.itemsize * weights * len(self.tasks) + largest
        if free is not None and need > free:
            raise ValueError(
                f"train: {len(self.tasks)} models of {weights:,} weights need about {in_words(need)} of memory, "
                f"but {in_words(free)} is free on {self.settings.device}. Train fewer at a time, or a smaller network."
            )

    def chunks(self, memory_limit: float | None) -> Iterator[list[int]]:
        """Tasks that can share a stack, as many at a time as memory allows."""
        limit = _memory_limit(self.settings.device) if memory_limit is None else memory_limit
        for (rows, held_out, _, twins, steered), members in self._alike().items():
            size = max(1, int(limit // self._bytes_of(rows, held_out, steered, twins)))
            for first in range(0, len(members), size):
                yield members[first : first + size]

    @cached_property
    def _activations(self) -> int:
        return _activations(self.template, self.pool)

    def _bytes_of(self, rows: int, held_out: int, steered: bool, twins: bool) -> int:
        """A generous estimate of what one model needs while it trains."""
        item = self.settings.dtype.itemsize
        weights = sum(p.numel() for p in self.template.parameters())
        classes = self.tasks[0].targets.shape[1]
        data = (rows + held_out) * (4 * 8 + (4 if steered else 2) * item * (classes + 1))
        batch = max(self.settings.batch_size, 1) * (self._activations + self.pool[0].numel())
        return (item * (6 * weights + 8 * batch) + data) * (2 if twins else 1)

    def _start(self, tasks: list[Task], twins: bool) -> State:
        """Start weights (K, ...), twins side by side."""
        device, dtype = self._place
        seeds = torch.tensor([as_int64(t.seed) for t in tasks], device=device)
        shares = torch.tensor([t.base_share for t in tasks], device=device, dtype=torch.float64)
        pair_of: list[State] = []
        for own in (seeds, draws.twin_seeds(seeds)) if twins else (seeds,):
            fresh = None
            if bool((shares < 1).any()):
                fresh = fresh_state(self.network, self.template, own, dtype)
            base = self._base_state(tasks, fresh)
            pair_of.append(blend(base, fresh, shares))
        if not twins:
            return pair_of[0]
        first, second = pair_of
        return {name: torch.stack([first[name], second[name]], 1).flatten(0, 1) for name in first}

    def _base_state(self, tasks: list[Task], fresh: State | None) -> State:
        """The base's weights for each task; the fresh ones stand in where a task has no base."""
        device, dtype = self._place
        names = [name for name, _ in self.template.named_parameters()]
        origins = [task.start for task in tasks]
        if all(origin is None for origin in origins):
            assert fresh is not None  # tasks without a base have a share below one
            return fresh
        groups: dict[int, list[int]] = {}  # tasks whose bases lie in the same stack are gathered at once
        for i, origin in enumerate(origins):
            groups.setdefault(id(origin[0] if isinstance(origin, tuple) else origin), []).append(i)
        state: State = {} if fresh is None else {name: fresh[name].clone() for name in names}
        for members in groups.values():
            origin = origins[members[0]]
            if origin is None:
                continue  # the clone of the fresh ones is what it needs
            place = torch.tensor(members, device=device)
            for name in names:
                if isinstance(origin, tuple):
                    source = origin[0].state[name]
                    index = torch.tensor([origins[i][1] for i in members], device=source.device)  # type: ignore[index]
                    value = source[index].to(device, dtype)
                else:
                    value = origin[name].to(device, dtype).expand(len(members), *origin[name].shape)
                if name not in state:
                    state[name] = torch.empty((len(tasks), *value.shape[1:]), device=device, dtype=dtype)
                state[name][place] = value
        return state

    def train_chunk(self, members: list[int], advance: Callable[..., None]) -> None:
        """Train the models of one stack until the last of them has stopped."""
        tasks = [self.tasks[i] for i in members]
        device, dtype = self._place
        twins = tasks[0].coupling is not None
        each = 2 if twins else 1
        data = Data(tasks, device, dtype, each)
        buffers = fresh_buffers(self.template, each * len(tasks), device, dtype)
        for name, value in self._base_buffers(tasks, each).items():
            buffers[name].copy_(value)
        params = self._start(tasks, twins)
        self._make_room(params, buffers)
        stack = make_stack(self.template, params, buffers, self.settings, self.generic)
        active = np.array(members)
        best = torch.full((len(members),), math.inf, device=device, dtype=torch.float64)
        waited = torch.zeros(len(members), device=device, dtype=torch.int64)
        kept: State = {}
        for epoch in range(self.epochs):
            stack.train_epoch(data.batches(self.pool, epoch, self.settings))
            loss = data.validation_loss(stack, self.pool, self.settings.squared)
            improved = loss < best
            if self.restore_best:
                kept = self._keep_best(stack, improved, kept, each)
            best = torch.where(improved, loss, best)
            waited = torch.where(improved, 0, waited + 1)
            broken = ~torch.isfinite(loss)
            stopped = (waited >= self.patience) | broken | (epoch == self.epochs - 1)
            leaving = stopped.cpu().numpy()
            advance(int(leaving.sum()), epoch + 1)
            if not leaving.any():
                data.steer(stack, self.pool)
                continue
            self._collect(stack, kept, active, leaving, broken, best if self.restore_best else loss, epoch + 1, each)
            if leaving.all():
                return
            stay = torch.from_numpy(np.flatnonzero(~leaving)).to(device)
            active, best, waited = active[~leaving], best[stay], waited[stay]
            data.keep(stay)
            both = stay if each == 1 else (2 * stay.unsqueeze(1) + torch.arange(2, device=device)).flatten()
            stack.keep(both)
            kept = {name: value[stay] for name, value in kept.items()}
            data.steer(stack, self.pool)

    def _base_buffers(self, tasks: list[Task], each: int) -> State:
        """Running statistics go with the base's weights; a fresh or blended start has fresh ones."""
        names = [name for name, _ in self.template.named_buffers()]
        if not names or not any(t.base_share == 1 and t.start is not None for t in tasks):
            return {}
        fresh = dict(self.template.named_buffers())

        def one(task: Task, name: str) -> torch.Tensor:
            if task.start is None or task.base_share != 1:
                return fresh[name].detach().to(self.settings.device)
            source = task.start
            value = source[0].state[name][source[1]] if isinstance(source, tuple) else source[name]
            return value.to(self.settings.device)

        return {name: torch.stack([one(t, name) for t in tasks for _ in range(each)]) for name in names}

    def _make_room(self, params: State, buffers: State) -> None:
        if not self.state:
            for name, value in {**params, **buffers}.items():
                self.state[name] = torch.zeros(
                    (len(self.tasks), *value.shape[1:]), device=value.device, dtype=value.dtype
                )

    def _keep_best(self, stack: Stack, improved: torch.Tensor, kept: State, each: int) -> State:
        now = {name: value[::each] for name, value in stack.state().items()}
        if not kept:
            return {name: value.clone() for name, value in now.items()}
        for name, value in now.items():
            kept[name][improved] = value[improved]
        return kept

    def _collect(
        self,
        stack: Stack,
        kept: State,
        active: np.ndarray,
        leaving: np.ndarray,
        broken: torch.Tensor,
        loss: torch.Tensor,
        epoch: int,
        each: int,
    ) -> None:
        """Take the models that leave out of the stack into the result."""
        who = active[leaving]
        index = torch.from_numpy(np.flatnonzero(leaving)).to(self.settings.device)
        place = torch.from_numpy(who).to(self.settings.device)
        for name, value in (kept or {n: v[::each] for n, v in stack.state().items()}).items():
            self.state[name][place] = value[index]
        self.epochs_of[who] = epoch
        self.loss_of[who] = loss[index].cpu().numpy()
        for i, failed in zip(who, broken[index].tolist(), strict=True):
            self.status[i] = f"failed: validation loss is not finite after epoch {epoch}" if failed else FINISHED


def _find_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(f"train: device must be 'auto', 'cpu' or 'cuda', got {name!r}.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"train: device {name!r} is not there; this machine has {torch.cuda.device_count()} GPUs.")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"train: device must be 'auto', 'cpu' or 'cuda', got {name!r}.")
    return device


def _check_output(template: nn.Module, pool: torch.Tensor, classes: int) -> None:
    module = copy.deepcopy(template).to(pool.device).eval()
    if pool.is_floating_point():
        module = module.to(pool.dtype)
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


def _activations(template: nn.Module, pool: torch.Tensor) -> int:
    """Numbers that one row leaves behind in a forward pass."""
    total = 0

    def count(_module: nn.Module, _inputs: Any, output: Any) -> None:
        nonlocal total
        total += output[0].numel() if isinstance(output, torch.Tensor) else 0

    module = copy.deepcopy(template).to(pool.device).eval()
    if pool.is_floating_point():
        module = module.to(pool.dtype)
    for layer in module.modules():
        layer.register_forward_hook(count)
    with torch.no_grad():
        module(pool[:1])
    return total


def _memory_limit(device: torch.device) -> float:
    free = free_memory(device)
    return (0.6 if device.type == "cuda" else 0.25) * (2**32 if free is None else free)


@contextmanager
def _progress_bar(total: int, wanted: bool) -> Iterator[Callable[[int, int], None]]:
    if not (wanted and sys.stderr.isatty()):
        yield lambda finished, epoch: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("models, epoch {task.fields[epoch]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total, epoch=0)

        def advance(finished: int, epoch: int) -> None:
            bar.update(task, advance=finished, epoch=epoch)

        yield advance
