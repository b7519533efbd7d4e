"""Averages of trained weights: models that are made and not trained."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lowchurn._checks import check_number, to_numpy
from lowchurn.nets._stacks import ResnetStack, State
from lowchurn.nets._trained import FINISHED, Numbers, Trained, as_pool, gather
from lowchurn.nets.networks import Resnet

ELEMENTS_AT_ONCE = 2**27  # of weights that are summed, which is done in float64
MODELS_AT_ONCE = 16  # of residual networks, whose running statistics are computed anew


def average(
    trained: Trained,
    groups: Sequence[Sequence[int]],
    bases: Sequence[tuple[Trained, int]] | None = None,
    shares: Sequence[float] | None = None,
    X: Numbers | None = None,
    rows: Sequence[Numbers] | None = None,
) -> Trained:
    """The mean weights of groups of trained models, each moved by a share toward a base.

    Candidate k has the weights ``(1 - shares[k]) * mean(groups[k]) + shares[k] * bases[k]``: at 0 the mean itself, at 1
    the base itself, bit for bit. Members that did not finish are left out and named in ``left_out``.

    Parameters
    ----------
    trained : Trained
        The members.
    groups : list of lists of int
        For each candidate, which models of ``trained`` are averaged.
    bases : list of (Trained, int), optional
        For each candidate, a model of the same network; needed where a share is above 0.
    shares : list of float, optional
        For each candidate, how far it lies toward its base; 0 by default.
    X : array of shape (N, ...), optional
        Rows for networks with batch normalisation, whose running statistics mean nothing for averaged weights: they
        are computed anew, batch by batch, as ``torch.optim.swa_utils.update_bn`` does.
    rows : list of arrays of int, optional
        For each candidate, its training rows in ``X``; all of them by default.

    Returns
    -------
    Trained
        With ``epochs`` summed over the members and without a ``loss``. A candidate of which no member finished, or
        whose base did not, has a status of "failed: " and the reasons.

    Examples
    --------
    >>> import numpy as np
    >>> from lowchurn.nets import average, strategy_tasks, train
    >>> from lowchurn.nets.networks import fcn
    >>> from lowchurn.strategies import ColdStart, WarmStart, member_seed
    >>> X = np.random.default_rng(0).normal(size=(300, 4)).astype("float32")
    >>> y = (X[:, 0] > 0).astype(int)
    >>> network = fcn(16, inputs=4, classes=2)
    >>> old = dict(rows=np.arange(100), y=y, classes=2, validation=np.arange(200, 300))
    >>> base = train(network, X, strategy_tasks([ColdStart()], seed=0, **old), epochs=3, device="cpu")
    >>> new = old | dict(rows=np.arange(200), base=(base, 0))
    >>> tasks = [t for j in range(3) for t in strategy_tasks([WarmStart()], seed=member_seed(1, j), **new)]
    >>> members = train(network, X, tasks, epochs=3, device="cpu")
    >>> dial = average(members, [[0, 1, 2]] * 3, bases=[(base, 0)] * 3, shares=[0.0, 0.5, 1.0])
    >>> dial.predict(X).shape
    (3, 300)
    >>> bool((dial.logits(X)[2] == base.logits(X)[0]).all())
    True
    """
    members = [[int(i) for i in group] for group in groups]
    dial = [0.0] * len(members) if shares is None else [float(share) for share in shares]
    _check(trained, members, bases, dial, rows)
    finished = [[i for i in group if trained.status[i] == FINISHED] for group in members]
    origins: Sequence[tuple[Trained, int] | None] = [None] * len(members) if bases is None else bases
    result = Trained(
        trained.template,
        trained.settings,
        _blended(trained, finished, bases, dial),
        [_status(trained, *each) for each in zip(members, finished, origins, dial, strict=True)],
        np.array([trained.epochs[group].sum() for group in members], dtype=int),
        np.full(len(members), math.nan),
        left_out=[_named(trained, [i for i in group if trained.status[i] != FINISHED]) for group in members],
    )
    mixed = [
        k
        for k, share in enumerate(dial)
        if result.status[k] == FINISHED and (0 < share < 1 or (share == 0 and len(finished[k]) > 1))
    ]
    if not mixed or not running_norms(trained.template):
        return result
    if X is None:
        raise ValueError(
            "average: the network has batch normalisation, whose statistics have to be computed anew for averaged "
            "weights, but X is None. Give the training rows."
        )
    pool = as_pool(X, trained.settings, trained.template)
    every = torch.arange(len(pool), device=pool.device)
    own = {k: every if rows is None else torch.as_tensor(to_numpy(rows[k]), device=pool.device) for k in mixed}
    _renew(result, pool, own)
    return result


def _renew(result: Trained, pool: torch.Tensor, own: dict[int, torch.Tensor]) -> None:
    """Compute the running statistics of some models anew, each on its own rows; residual networks some at a time."""
    settings, template = result.settings, result.template
    if type(template) is not Resnet:
        for k, rows in own.items():
            module = result.module(k).to(pool.device)
            renew_statistics(module, pool[rows], settings.batch_size)
            for name, value in module.named_buffers():
                result.state[name][k] = value
        return
    alike: dict[int, list[int]] = {}
    for k, rows in own.items():
        alike.setdefault(len(rows), []).append(k)
    for members in (
        some[i : i + MODELS_AT_ONCE] for some in alike.values() for i in range(0, len(some), MODELS_AT_ONCE)
    ):
        state = result.take(members).state
        buffers = {name: state.pop(name) for name, _ in template.named_buffers()}
        stack = ResnetStack(template, state, buffers, settings)
        stack.renew_statistics(pool, torch.stack([own[k] for k in members]))
        for name, value in stack.buffers.items():
            result.state[name][members] = value


def _check(
    trained: Trained,
    groups: list[list[int]],
    bases: Sequence[tuple[Trained, int]] | None,
    shares: Sequence[float],
    rows: Sequence[Numbers] | None,
) -> None:
    if not groups:
        raise ValueError("average: groups must contain at least one group, got none.")
    for name, value in (("bases", bases), ("shares", shares), ("rows", rows)):
        if value is not None and len(value) != len(groups):
            raise ValueError(f"average: {name} must have one entry for each of {len(groups)} groups, got {len(value)}.")
    for k, (group, share) in enumerate(zip(groups, shares, strict=True)):
        if not group or min(group) < 0 or max(group) >= len(trained):
            raise ValueError(
                f"average: group {k} must contain at least one model number from 0 to {len(trained) - 1}, got {group}."
            )
        check_number("average", f"share {k}", share, 0, 1)
        if share > 0 and bases is None:
            raise ValueError(f"average: share {k} is {share}, but there are no bases to move toward.")


def _named(trained: Trained, models: list[int]) -> str:
    return "; ".join(f"model {i} ({trained.status[i]})" for i in models)


def _status(
    trained: Trained, group: list[int], finished: list[int], base: tuple[Trained, int] | None, share: float
) -> str:
    if not finished:
        return f"failed: no member finished: {_named(trained, group)}"
    if share > 0 and base is not None and base[0].status[base[1]] != FINISHED:
        return f"failed: the base {base[0].status[base[1]].removeprefix('failed: ')}"
    return FINISHED


def _blended(
    trained: Trained, finished: list[list[int]], bases: Sequence[tuple[Trained, int]] | None, shares: Sequence[float]
) -> State:
    """Weights and buffers (K, ...): gathered and summed for all candidates at once, some weights at a time."""
    device = trained.settings.device
    unique = {key: place for place, key in enumerate(dict.fromkeys(map(tuple, finished)))}  # a dial shares its members
    most = max(1, max(map(len, unique)))
    members = torch.tensor([[*key, *[0] * (most - len(key))] for key in unique], device=device)
    there = torch.tensor([[float(j < len(key)) for j in range(most)] for key in unique], device=device).double()
    which = torch.tensor([unique[tuple(group)] for group in finished], device=device)
    share = torch.tensor(shares, device=device, dtype=torch.float64)
    state: State = {}
    for name, value in trained.state.items():
        state[name] = weighted_means(value, members, there, there.sum(dim=1).clamp(min=1))[which]
        if bases is not None:
            base = torch.empty_like(state[name])
            gather(name, bases, base)
            state[name] = blend(base, state[name], share)
    return state


def weighted_means(
    value: torch.Tensor, members: torch.Tensor, weights: torch.Tensor, totals: torch.Tensor
) -> torch.Tensor:
    """``sum(weights * value[members]) / totals`` of members (K, n) with weight; of whole numbers the first."""
    if not value.is_floating_point():
        return value[members[:, 0]]
    means = torch.empty((len(members), *value.shape[1:]), device=value.device, dtype=value.dtype)
    size = max(1, ELEMENTS_AT_ONCE // max(1, value[0].numel()))
    for first in range(0, len(members), size):
        some, wide = slice(first, first + size), (-1, *[1] * (value.ndim - 1))
        total = torch.zeros((len(members[some]), *value.shape[1:]), device=value.device, dtype=torch.float64)
        for j in range(members.shape[1]):  # in float64, so that the order of the members does not matter
            weight = weights[some, j].view(wide)
            total += torch.where(weight != 0, value[members[some, j]], 0).double().mul_(weight)
        means[some] = (total / totals[some].view(wide)).to(value.dtype)
    return means


def average_states(states: Sequence[State], shares: Sequence[float]) -> State:
    """The weights of single models in shares; exactly one of them at a share of 1."""
    if 1 in shares:
        return states[list(shares).index(1)]
    members, weights = torch.arange(len(states))[None], torch.tensor([shares], dtype=torch.float64)
    return {
        name: weighted_means(torch.stack([state[name] for state in states]), members, weights, torch.ones(1))[0]
        for name in states[0]
    }


def blend(one: torch.Tensor, other: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """``share * one + (1 - share) * other`` per model; exactly the one or the other at shares of 1 and 0."""
    share = shares.view(-1, *[1] * (one.ndim - 1))
    if not one.is_floating_point():  # such as counters
        return torch.where(share == 1, one, other)
    share = share.to(one)
    mixed = share * one + (1 - share) * other
    return torch.where(share == 1, one, torch.where(share == 0, other, mixed))


def running_norms(module: nn.Module) -> list[_BatchNorm]:
    """The layers of a module that keep running means and variances of their inputs."""
    return [layer for layer in module.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]


@torch.no_grad()
def renew_statistics(module: nn.Module, rows: torch.Tensor, batch_size: int) -> None:
    """Set running statistics to plain averages over batches of rows; all other layers stay in evaluation mode."""
    layers = running_norms(module)
    usual = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # torch's value for the average over all batches
        layer.train()
    # Parts of nearly the same size: a last batch of a single row could not be normalised.
    for part in torch.tensor_split(rows, math.ceil(len(rows) / batch_size)):
        module(part)
    for layer, momentum in zip(layers, usual, strict=True):
        layer.momentum = momentum
        layer.eval()
