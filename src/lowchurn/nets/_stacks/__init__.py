"""Ways to train many models of one architecture together; :func:`make_stack` picks the fastest that fits."""

from __future__ import annotations

import importlib.util

import torch
from torch import nn

from lowchurn.nets._stacks._convnet import ConvnetStack
from lowchurn.nets._stacks._convnet_gpu import GpuConvnetStack
from lowchurn.nets._stacks._fcn import CpuFcnStack, GpuFcnStack
from lowchurn.nets._stacks._module import ModuleStack
from lowchurn.nets._stacks._resnet import ResnetStack
from lowchurn.nets._stacks._stack import Batches, Settings, Stack, State
from lowchurn.nets._stacks._transformer import TransformerStack
from lowchurn.nets.networks import Convnet, Fcn, Resnet, Transformer

__all__ = ["Batches", "ResnetStack", "Settings", "Stack", "State", "copies_held", "make_stack"]


def any_way(module: nn.Module, settings: Settings) -> bool:
    """Whether the way of any module is the fastest for this one: on a CPU, for all that are not fully connected."""
    return settings.device.type == "cpu" and type(module) is not Fcn


def copies_held(module: nn.Module, settings: Settings, generic: bool | None = None) -> float:
    """How often a stack in training holds each number of a forward pass; a generous estimate."""
    generic = any_way(module, settings) if generic is None else generic
    return 1.5 if type(module) is Resnet and not generic else 8


def make_stack(
    module: nn.Module, params: State, buffers: State, settings: Settings, generic: bool | None = None
) -> Stack:
    """Stack K sets of parameters of one module; ``generic`` selects the way that any module can go, or another one."""
    if not (any_way(module, settings) if generic is None else generic):
        if type(module) is Fcn:
            if settings.device.type == "cpu" and _installed("numba"):
                return CpuFcnStack(params, settings)
            # A tile of the GPU kernel contains all weights of some units: with very many inputs it would not fit.
            narrow = sum(params[name].shape[1] for name in ("hidden.weight", "output.bias")) < 128
            exact = settings.dtype == torch.float32
            if settings.device.type == "cuda" and narrow and exact and _installed("triton"):
                return GpuFcnStack(params, settings)
        if type(module) is Convnet:
            fast = settings.device.type == "cuda" and settings.dtype == torch.float32 and _installed("triton")
            # The kernels hold the windows of all channels and the rows of a batch at once.
            few = module.shape[2] <= 4 and settings.batch_size <= 128
            if fast and few and settings.precision in ("auto", "bfloat16"):
                return GpuConvnetStack(params, settings)
            return ConvnetStack(params, settings)
        if type(module) is Transformer:
            return TransformerStack(module, params, settings)
        if type(module) is Resnet:
            return ResnetStack(module, params, buffers, settings)
    return ModuleStack(module, params, buffers, settings)


def _installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None
