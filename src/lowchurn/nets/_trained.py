"""The result of a training: models that predict together or serve one by one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import nn

from lowchurn._types import ArrayLike
from lowchurn.nets._stacks import Settings, Stack, State, make_stack
from lowchurn.nets.networks import Network

Numbers: TypeAlias = ArrayLike | torch.Tensor
FINISHED, INTERRUPTED = "finished", "interrupted"
Origin: TypeAlias = "tuple[Trained, int] | State"  # one model: its place in a training, or its state dict


@dataclass
class Trained:
    """The models that were trained by :func:`train`, in the order of its tasks.

    Attributes
    ----------
    state : dict of str to tensor
        Name -> (K, ...), parameters and buffers.
    status : list of str
        "finished", "interrupted", or "failed: " and the reason.
    epochs : array of shape (K,)
        Epochs trained.
    loss : array of shape (K,)
        Last validation loss, or the best one with ``restore_best``.
    left_out : list of str
        Of averages (:func:`average`): for each, the members that were left out and why; "" for none.

    Examples
    --------
    >>> import numpy as np
    >>> from lowchurn.nets import Task, train
    >>> from lowchurn.nets.networks import fcn
    >>> X = np.random.default_rng(0).normal(size=(30, 4))
    >>> onehot = np.eye(2)[(X[:, 0] > 0).astype(int)]
    >>> task = Task(np.arange(20), onehot[:20], np.arange(20, 30), onehot[20:])
    >>> trained = train(fcn(8, inputs=4, classes=2), X, [task], epochs=2, device="cpu")
    >>> trained.proba(X).shape, trained.module(0).output.bias.shape
    ((1, 30, 2), torch.Size([2]))
    """

    template: nn.Module
    settings: Settings
    state: State
    status: list[str]
    epochs: np.ndarray
    loss: np.ndarray
    left_out: list[str] = field(default_factory=list)
    _stack: Stack | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.status)

    def state_dict(self, model: int) -> State:
        """One model's weights, as its module takes them."""
        return {name: value[model].detach().cpu().clone() for name, value in self.state.items()}

    def module(self, model: int) -> nn.Module:
        """One model as an ordinary module, in evaluation mode."""
        module = copy.deepcopy(self.template).to(self.settings.dtype)
        module.load_state_dict(self.state_dict(model))
        return module.eval()

    def take(self, models: Sequence[int]) -> Trained:
        """Some of the models, in this order."""
        index = torch.tensor(list(models), device=self.settings.device)
        return Trained(
            self.template,
            self.settings,
            {name: value[index] for name, value in self.state.items()},
            [self.status[k] for k in models],
            self.epochs[list(models)],
            self.loss[list(models)],
            [self.left_out[k] for k in models] if self.left_out else [],
        )

    def outputs(self, X: Numbers, rows: Numbers | None = None) -> torch.Tensor:
        """Logits of every model as a tensor on the device: of every row of X, or of each model's own rows (K, n)."""
        pool = as_pool(X, self.settings, self.template)
        stack, size = self._ready(), self._rows_at_once(pool)
        if rows is None:
            return _joined([stack.logits(part) for part in pool.split(size)])
        rows = torch.as_tensor(rows, device=pool.device)
        return _joined([stack.logits(pool, part.contiguous()) for part in rows.split(size, 1)])

    def decisions(self, X: Numbers) -> torch.Tensor:
        """The likeliest class of every model for every row of X, (K, rows), as a tensor on the device."""
        pool = as_pool(X, self.settings, self.template)
        return _joined([self._ready().decisions(part) for part in pool.split(self._rows_at_once(pool))])

    def logits(self, X: Numbers) -> np.ndarray:
        """Logits of every model for every row of X: shape (K, rows, m)."""
        pool = as_pool(X, self.settings, self.template)
        parts = [self._ready().logits(part).cpu().numpy() for part in pool.split(self._rows_at_once(pool))]
        return np.concatenate(parts, axis=1)

    def proba(self, X: Numbers) -> np.ndarray:
        """Probabilities of every model for every row of X: shape (K, rows, m)."""
        return torch.softmax(torch.from_numpy(self.logits(X)), dim=-1).numpy()

    def predict(self, X: Numbers) -> np.ndarray:
        """The likeliest class of every model for every row of X: shape (K, rows)."""
        return self.decisions(X).cpu().numpy().astype(np.int64)

    def _ready(self) -> Stack:
        if self._stack is None:
            buffers = {name: self.state[name] for name, _ in self.template.named_buffers()}
            params = {name: self.state[name] for name, _ in self.template.named_parameters()}
            self._stack = make_stack(self.template, params, buffers, self.settings)
        return self._stack

    def _rows_at_once(self, pool: torch.Tensor) -> int:
        """Rows that all models together can take in about 2 GB; not fewer than a batch, which they are trained on."""
        size = 2**31 // (len(self) * self._ready().row_bytes(pool))
        return max(1, min(len(pool), max(size, self.settings.batch_size)))


def gather(name: str, origins: Sequence[Origin | None], out: torch.Tensor) -> None:
    """Fill ``out`` (K, ...) with one tensor of each origin where there is one, all of the same training at once."""
    sources: dict[int, list[int]] = {}
    for k, origin in enumerate(origins):
        sources.setdefault(id(origin[0] if isinstance(origin, tuple) else origin), []).append(k)
    for places in sources.values():
        origin = origins[places[0]]
        if origin is None:
            continue
        if isinstance(origin, tuple):
            value = origin[0].state[name]
            value = value[torch.tensor([origins[k][1] for k in places], device=value.device)]  # type: ignore[index]
        else:
            value = origin[name]
        out[torch.tensor(places, device=out.device)] = value.to(out)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C during :func:`train`. What was finished is in ``trained``; the rest has status "interrupted"."""

    def __init__(self, trained: Trained) -> None:
        done = sum(status == FINISHED for status in trained.status)
        super().__init__(f"{done} of {len(trained.status)} models were finished and are in .trained")
        self.trained = trained


def _plain(X: Numbers) -> np.ndarray:
    """Rows as an array of a type that torch has."""
    array = np.asarray(X)
    if array.dtype.kind == "O":  # such as the values of a table with columns of several types
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError("train: X must contain numbers, got other objects.") from None
    if array.dtype.kind not in "fiub":
        raise ValueError(f"train: X must contain numbers, got dtype {array.dtype}.")
    wide = array.dtype.kind == "f" and array.dtype.itemsize > 8
    return np.ascontiguousarray(array, dtype=np.float64 if wide else array.dtype.newbyteorder("="))


def as_pool(X: Numbers, settings: Settings, network: nn.Module) -> torch.Tensor:
    """Rows as a tensor on the stack's device: whole numbers stay whole (token ids), everything else gets its dtype."""
    pool = X.detach() if isinstance(X, torch.Tensor) else torch.from_numpy(_plain(X))
    if pool.ndim < 2 or len(pool) == 0:
        raise ValueError(f"train: X must have at least one row and shape (rows, ...), got {tuple(pool.shape)}.")
    kind = pool.dtype if not pool.is_floating_point() and pool.dtype != torch.uint8 else settings.dtype
    pool = pool.to(settings.device, kind).contiguous()
    if isinstance(network, Network):
        network.check_rows(pool)
    return pool
