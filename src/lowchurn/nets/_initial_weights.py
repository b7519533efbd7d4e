"""Where weights start: fresh ones drawn from each model's seed, the base's, or a point between the two."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Sequence

import torch
from torch import nn

from lowchurn.nets._averages import blend
from lowchurn.nets._random import START, stream, uniforms
from lowchurn.nets._stacks import Settings, State
from lowchurn.nets._tasks import Task
from lowchurn.nets._trained import gather
from lowchurn.nets._training_data import seeds_of
from lowchurn.nets._twins import Twins
from lowchurn.nets.networks import Network

Factory = nn.Module | Callable[[], nn.Module]
ELEMENTS_AT_ONCE = 2**25  # of random numbers, which are made in float64 with a few copies


def make_template(network: Factory) -> nn.Module:
    """The module that all models of a stack are copies of."""
    module = network if isinstance(network, nn.Module) or not callable(network) else network()
    if not isinstance(module, nn.Module):
        raise ValueError(f"train: network must be a torch module or a function that makes one, got {module!r}.")
    if any(parameter.is_meta for parameter in module.parameters()):
        raise ValueError("train: network must have weights, got one on torch's meta device. Make it on the CPU.")
    return module


def initial_weights(
    network: Factory, template: nn.Module, tasks: Sequence[Task], settings: Settings
) -> tuple[State, State]:
    """Parameters and buffers (K, ...) that a stack of these tasks starts from."""
    twins, device, dtype = Twins.of(tasks), settings.device, settings.dtype
    buffers = fresh_buffers(template, len(tasks), device, dtype)
    for name, value in buffers.items():  # running statistics go with the base's weights, if these are all its own
        gather(name, [task.start if task.base_share == 1 else None for task in tasks], value)
    buffers = {name: twins.spread(value) for name, value in buffers.items()}
    shares = twins.spread(torch.tensor([task.base_share for task in tasks], device=device, dtype=torch.float64))
    drawn = torch.nonzero(shares < 1).flatten()
    state: State = {}
    if len(drawn):
        state = fresh_state(network, template, twins.seeds(torch.from_numpy(seeds_of(tasks)).to(device))[drawn], dtype)
    if not shares.any():
        return state, buffers
    for name, parameter in template.named_parameters():
        base = torch.zeros((len(tasks), *parameter.shape), device=device, dtype=dtype)
        gather(name, [task.start for task in tasks], base)
        base = twins.spread(base)
        if name in state:
            base[drawn] = blend(base[drawn], state[name], shares[drawn])
        state[name] = base
    return state, buffers


def fresh_state(network: Factory, template: nn.Module, seeds: torch.Tensor, dtype: torch.dtype) -> State:
    """Freshly initialised parameters (K, ...), each model from its own seed, on the device of the seeds."""
    if isinstance(template, Network):
        starts = template.starts()
        state = {}
        for part, (name, parameter) in enumerate(template.named_parameters()):
            limit, constant = starts[name]
            shape = (len(seeds), *parameter.shape)
            if limit == 0:
                state[name] = torch.full(shape, constant, device=seeds.device, dtype=dtype)
                continue
            state[name] = torch.empty(shape, device=seeds.device, dtype=dtype)
            _draw(seeds, part, limit, constant, state[name].flatten(1))
        return state
    modules = [dict(_reset(network, seed).named_parameters()) for seed in seeds.tolist()]
    return {
        name: torch.stack([own[name].detach() for own in modules]).to(seeds.device, dtype)
        for name, _ in template.named_parameters()
    }


def _draw(seeds: torch.Tensor, part: int, limit: float, constant: float, out: torch.Tensor) -> None:
    """Fill ``out`` (K, count) with each model's draws for one parameter: uniform in +-limit around the constant."""
    if seeds.is_cuda and importlib.util.find_spec("triton"):
        from lowchurn.nets._kernels.draws_gpu import spread_uniforms

        return spread_uniforms(stream(seeds, START, part), limit, constant, out)
    size = max(1, ELEMENTS_AT_ONCE // out.shape[1])
    for some, own in zip(seeds.split(size), out.split(size), strict=True):
        own.copy_((2 * uniforms(some, part, out.shape[1]) - 1) * limit + constant)


def _reset(network: Factory, seed: int) -> nn.Module:
    """A freshly initialised copy of a user's module, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        if not isinstance(network, nn.Module):
            return network()
        module = copy.deepcopy(network)
        for name, layer in module.named_modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
            elif next(layer.parameters(recurse=False), None) is not None:
                raise ValueError(
                    f"train: layer {name or type(layer).__name__!r} has parameters but no reset_parameters(), so it "
                    "cannot be started afresh. Hand in a function that makes the module instead of the module."
                )
        return module


def fresh_buffers(template: nn.Module, models: int, device: torch.device, dtype: torch.dtype) -> State:
    """The template's buffers, such as running means, once per model."""
    return {
        name: b.detach().to(device, dtype if b.is_floating_point() else b.dtype).expand(models, *b.shape).clone()
        for name, b in template.named_buffers()
    }
