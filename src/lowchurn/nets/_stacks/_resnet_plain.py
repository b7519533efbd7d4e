"""The layers of residual networks in plain torch, with a leading model axis: any device, any floating dtype.

Activations are (K, rows, height, width, channels), weights (K, side, side, inputs, outputs) with side 1 or 3; every
product is a ``bmm`` over models. The Triton kernels of ``_kernels/resnet_gpu.py`` have the same names and arguments.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F


class Norm(NamedTuple):
    """A normalisation, all (K, N): its scale and shift, the bias ahead of it, its running mean and variance."""

    weight: torch.Tensor
    bias: torch.Tensor
    conv_bias: torch.Tensor
    mean: torch.Tensor
    var: torch.Tensor


def _windows(x: torch.Tensor, side: int) -> torch.Tensor:
    """Windows of x as a (K, positions, side * side * channels) matrix; they reach over the edges with zeros."""
    if side == 1:
        return x.flatten(1, 3)
    height, width, pad = x.shape[2], x.shape[3], side // 2
    x = F.pad(x, (0, 0, pad, pad, pad, pad))
    shifted = [x[:, :, i : i + height, j : j + width] for i in range(side) for j in range(side)]
    return torch.cat(shifted, dim=-1).flatten(1, 3)


def conv(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The convolution of x, without its bias."""
    return torch.bmm(_windows(x, weight.shape[1]), weight.flatten(1, 3)).view(*x.shape[:-1], -1)


def conv_norm(
    x: torch.Tensor, weight: torch.Tensor, norm: Norm, epsilon: float, momentum: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The convolution of x, and (mean, 1 / deviation, scale, shift) of the normalisation behind it: (K, 4, N)."""
    y = conv(x, weight)
    flat = y.flatten(1, 3)
    var, mean = torch.var_mean(flat, 1, correction=0)
    norm.mean.lerp_(mean + norm.conv_bias, momentum)
    norm.var.lerp_(var * (flat.shape[1] / (flat.shape[1] - 1)), momentum)
    inverse = torch.rsqrt(var + epsilon)
    scale = norm.weight * inverse
    return y, torch.stack([mean, inverse, scale, norm.bias - mean * scale], dim=1)


def _affine(y: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(shift[:, None, None, None], y, scale[:, None, None, None])


def conv_folded(
    x: torch.Tensor,
    weight: torch.Tensor,
    norm: Norm,
    epsilon: float,
    add: torch.Tensor | None = None,
    relu: bool = True,
) -> torch.Tensor:
    """The convolution of x, normalised by running statistics, with the shortcut and relu."""
    scale = norm.weight * torch.rsqrt(norm.var + epsilon)
    y = _affine(conv(x, weight), scale, norm.bias + (norm.conv_bias - norm.mean) * scale)
    y = y if add is None else y.add_(add)
    return y.relu_() if relu else y


def apply(
    y: torch.Tensor, coefs: torch.Tensor, add: torch.Tensor | None = None, add_coefs: torch.Tensor | None = None
) -> torch.Tensor:
    """``relu(scale * y + shift + add)``, where ``add`` may have a normalisation of its own."""
    out = _affine(y, coefs[:, 2], coefs[:, 3])
    if add is not None:
        out += add if add_coefs is None else _affine(add, add_coefs[:, 2], add_coefs[:, 3])
    return out.relu_()


def input_grad(
    d: torch.Tensor, weight: torch.Tensor, add: torch.Tensor | None = None, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """The gradient at the inputs of a convolution, plus ``add``, where ``mask`` is positive."""
    gradient = conv(d, weight.flip(1, 2).mT)
    gradient = gradient if add is None else gradient.add_(add)
    return gradient if mask is None else gradient.mul_(mask > 0)


def weight_grad(x: torch.Tensor, d: torch.Tensor, out: torch.Tensor) -> None:
    """Write the gradient of a convolution's weights."""
    torch.bmm(_windows(x, out.shape[1]).mT, d.flatten(1, 3), out=out.flatten(1, 3))


def norm_grad(
    g: torch.Tensor, y: torch.Tensor, coefs: torch.Tensor, d_weight: torch.Tensor, d_bias: torch.Tensor
) -> torch.Tensor:
    """The gradient before a normalisation of y; write those of its scale and shift."""
    mean, inverse, scale, _ = coefs[:, :, None, None, None].unbind(1)
    plain = (y - mean) * inverse
    torch.sum(g.flatten(1, 3), 1, out=d_bias)
    torch.sum((g * plain).flatten(1, 3), 1, out=d_weight)
    count = y[0].numel() // y.shape[-1]
    of_bias, of_weight = (slope[:, None, None, None] / count for slope in (d_bias, d_weight))
    return scale * (g - of_bias - plain * of_weight)
