"""Triton kernels that train K residual networks at once: normalisations, shortcuts, and what else is not a product.

Activations are channels-last, ``(K, rows, height, width, channels)``, and the model is a grid axis. No atomics: sums over
many programs are stored in parts and added in a fixed order.

The functions have the names and arguments of those in ``_stacks/_resnet_plain.py``, which are their slow twins.
"""

import torch
import triton
import triton.language as tl

from lowchurn.nets._kernels.dense_gpu import adam
from lowchurn.nets._kernels.products_gpu import conv, convolve, input_grad, jit, weight_grad

__all__ = ["adam", "apply", "conv", "conv_folded", "conv_norm", "input_grad", "norm_grad", "weight_grad"]


@jit
def _statistics(
    part_ptr, weight_ptr, bias_ptr, conv_bias_ptr, mean_ptr, var_ptr, coefs_ptr, M, N, epsilon, momentum,
    TILE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Mean, 1 / standard deviation, scale and shift of every channel from the parts of TILE rows; running statistics."""
    model = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    there = n < N
    tiles = tl.cdiv(M, TILE)
    part = part_ptr + model * tiles * 2 * N
    total = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    for first in range(0, tiles, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        count = tl.minimum(M - t * TILE, TILE).to(tl.float32)
        keep = (t < tiles)[:, None] & there[None, :]
        total += tl.load(part + t[:, None] * 2 * N + n[None, :], mask=keep, other=0.0) * count[:, None]
    mean = tl.sum(total, 0) / M
    total = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    for first in range(0, tiles, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        count = tl.minimum(M - t * TILE, TILE).to(tl.float32)
        keep = (t < tiles)[:, None] & there[None, :]
        off = tl.load(part + t[:, None] * 2 * N + n[None, :], mask=keep, other=0.0) - mean[None, :]
        spread = tl.load(part + t[:, None] * 2 * N + N + n[None, :], mask=keep, other=0.0)
        total += tl.where(keep, spread + count[:, None] * off * off, 0.0)
    squares = tl.sum(total, 0)
    inverse = 1.0 / tl.sqrt(squares / M + epsilon)
    at = model * N + n
    scale = tl.load(weight_ptr + at, mask=there, other=0.0) * inverse
    shift = tl.load(bias_ptr + at, mask=there, other=0.0) - mean * scale
    coefs = coefs_ptr + model * 4 * N + n
    tl.store(coefs, mean, mask=there)
    tl.store(coefs + N, inverse, mask=there)
    tl.store(coefs + 2 * N, scale, mask=there)
    tl.store(coefs + 3 * N, shift, mask=there)
    running = tl.load(mean_ptr + at, mask=there, other=0.0)
    seen = mean + tl.load(conv_bias_ptr + at, mask=there, other=0.0)
    tl.store(mean_ptr + at, running + momentum * (seen - running), mask=there)
    running = tl.load(var_ptr + at, mask=there, other=0.0)
    tl.store(var_ptr + at, running + momentum * (squares / (M - 1) - running), mask=there)


@jit
def _apply(
    y_ptr, coefs_ptr, add_ptr, add_coefs_ptr, out_ptr, M, N, ADD: tl.constexpr, ADD_AFFINE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``relu(scale * y + shift + added)``, where what is added may have a scale and a shift of its own."""
    model = tl.program_id(2).to(tl.int64)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = model * M * N + m[:, None] * N + n[None, :]
    keep = (m < M)[:, None] & (n < N)[None, :]
    coefs = coefs_ptr + model * 4 * N + n
    y = tl.load(y_ptr + at, mask=keep, other=0.0).to(tl.float32)
    y = y * tl.load(coefs + 2 * N, mask=n < N)[None, :] + tl.load(coefs + 3 * N, mask=n < N)[None, :]
    if ADD:
        other = tl.load(add_ptr + at, mask=keep, other=0.0).to(tl.float32)
        if ADD_AFFINE:
            coefs = add_coefs_ptr + model * 4 * N + n
            other = other * tl.load(coefs + 2 * N, mask=n < N)[None, :] + tl.load(coefs + 3 * N, mask=n < N)[None, :]
        y += other
    tl.store(out_ptr + at, tl.maximum(y, 0.0).to(out_ptr.dtype.element_ty), mask=keep)


@jit
def _norm_grad_parts(
    g_ptr, y_ptr, coefs_ptr, part_ptr, M, N, EACH, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Sums over a part of the rows of g and of g * (y - mean)."""
    model = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    there = n < N
    mean = tl.load(coefs_ptr + model * 4 * N + n, mask=there, other=0.0)
    plain = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    times = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(0, EACH):
        m = (tl.program_id(1) * EACH + step) * BLOCK_M + tl.arange(0, BLOCK_M)
        at = model * M * N + m[:, None] * N + n[None, :]
        keep = (m < M)[:, None] & there[None, :]
        g = tl.load(g_ptr + at, mask=keep, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + at, mask=keep, other=0.0).to(tl.float32)
        plain += g
        times += g * (y - mean[None, :])
    part = part_ptr + (model * tl.num_programs(1) + tl.program_id(1)) * 2 * N + n
    tl.store(part, tl.sum(plain, 0), mask=there)
    tl.store(part + N, tl.sum(times, 0), mask=there)


@jit
def _norm_grad_sums(
    part_ptr, coefs_ptr, d_weight_ptr, d_bias_ptr, back_ptr, M, N, parts, BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Gradients of scale and shift, and a, b, c of ``a * g + b * y + c``, the gradient before the normalisation."""
    model = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    there = n < N
    part = part_ptr + model * parts * 2 * N
    plain = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    times = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    for first in range(0, parts, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        at = t[:, None] * 2 * N + n[None, :]
        keep = (t < parts)[:, None] & there[None, :]
        plain += tl.load(part + at, mask=keep, other=0.0)
        times += tl.load(part + at + N, mask=keep, other=0.0)
    total = tl.sum(plain, 0)
    coefs = coefs_ptr + model * 4 * N + n
    mean = tl.load(coefs, mask=there, other=0.0)
    inverse = tl.load(coefs + N, mask=there, other=0.0)
    slope = tl.sum(times, 0) * inverse
    tl.store(d_weight_ptr + model * N + n, slope, mask=there)
    tl.store(d_bias_ptr + model * N + n, total, mask=there)
    a = tl.load(coefs + 2 * N, mask=there, other=0.0)
    b = -a * inverse * slope / M
    back = back_ptr + model * 3 * N + n
    tl.store(back, a, mask=there)
    tl.store(back + N, b, mask=there)
    tl.store(back + 2 * N, -a * total / M - b * mean, mask=there)


@jit
def _norm_grad(g_ptr, y_ptr, back_ptr, out_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """``a * g + b * y + c`` with a, b, c of each channel."""
    model = tl.program_id(2).to(tl.int64)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = model * M * N + m[:, None] * N + n[None, :]
    keep = (m < M)[:, None] & (n < N)[None, :]
    back = back_ptr + model * 3 * N + n
    a, b, c = tl.load(back, mask=n < N), tl.load(back + N, mask=n < N), tl.load(back + 2 * N, mask=n < N)
    g = tl.load(g_ptr + at, mask=keep, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + at, mask=keep, other=0.0).to(tl.float32)
    d = a[None, :] * g + b[None, :] * y + c[None, :]
    tl.store(out_ptr + at, d.to(out_ptr.dtype.element_ty), mask=keep)


# Launchers: tensors (K, rows, height, width, channels) and weights (K, side, side, inputs, outputs).


def conv_norm(x, weight, norm, epsilon, momentum):
    """The convolution of x, and (mean, 1 / deviation, scale, shift) of the normalisation behind it: (K, 4, N)."""
    y, part, size = convolve(x, weight, stats=True)
    positions, outputs = y[0].numel() // y.shape[-1], y.shape[-1]
    coefs = torch.empty(len(y), 4, outputs, device=y.device)
    _statistics[(triton.cdiv(outputs, 32), len(y))](
        part, *norm, coefs, positions, outputs, epsilon, momentum, TILE=size, BLOCK_T=32, BLOCK_N=32, num_warps=4
    )
    return y, coefs


def conv_folded(x, weight, norm, epsilon, add=None, relu=True):
    """The convolution of x, normalised by running statistics, with the shortcut and relu."""
    return convolve(x, weight, norm=norm, epsilon=epsilon, add=add, relu=relu)[0]


def _elements(positions, channels):
    """Tiles of what is done element by element."""
    block_n = min(128, triton.next_power_of_2(channels))
    return {"BLOCK_M": 4096 // block_n, "BLOCK_N": block_n, "num_warps": 4}


def apply(y, coefs, add=None, add_coefs=None):
    """``relu(scale * y + shift + add)``, where ``add`` may have a normalisation of its own."""
    positions, channels = y[0].numel() // y.shape[-1], y.shape[-1]
    out = torch.empty_like(y)
    tile = _elements(positions, channels)
    grid = (triton.cdiv(channels, tile["BLOCK_N"]), triton.cdiv(positions, tile["BLOCK_M"]), len(y))
    _apply[grid](
        y, coefs, y if add is None else add, coefs if add_coefs is None else add_coefs, out, positions, channels,
        ADD=add is not None, ADD_AFFINE=add_coefs is not None, **tile,
    )  # fmt: skip
    return out


def norm_grad(g, y, coefs, d_weight, d_bias):
    """The gradient before a normalisation of y; write those of its scale and shift."""
    positions, channels = y[0].numel() // y.shape[-1], y.shape[-1]
    tile = {"BLOCK_M": 64, "BLOCK_N": min(64, triton.next_power_of_2(channels)), "num_warps": 4}
    columns = triton.cdiv(channels, tile["BLOCK_N"])
    steps = triton.cdiv(positions, tile["BLOCK_M"])
    each = triton.cdiv(steps, 64)
    parts = triton.cdiv(steps, each)
    part = torch.empty(len(y), parts, 2, channels, device=y.device)
    _norm_grad_parts[(columns, parts, len(y))](g, y, coefs, part, positions, channels, each, **tile)
    back = torch.empty(len(y), 3, channels, device=y.device)
    _norm_grad_sums[(triton.cdiv(channels, 32), len(y))](
        part, coefs, d_weight, d_bias, back, positions, channels, parts, BLOCK_T=32, BLOCK_N=32, num_warps=4
    )
    out = torch.empty_like(y)
    tile = _elements(positions, channels)
    grid = (triton.cdiv(channels, tile["BLOCK_N"]), triton.cdiv(positions, tile["BLOCK_M"]), len(y))
    _norm_grad[grid](g, y, back, out, positions, channels, **tile)
    return out
