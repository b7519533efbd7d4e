"""Triton kernels for the products of K models at once: convolutions, and plain matrices as those of one position.

Activations are channels-last, ``(K, rows, height, width, channels)``, and the model is a grid axis, so one launch serves
all K models. A convolution is an implicit matrix product: it reads its windows straight from the activation. What
surrounds it is done on its tile before that is stored: partial statistics for a batch normalisation, or scale, shift,
shortcut and relu; in the backward pass the gradient of the shortcut and the mask of the relu.

Tiles and parts of sums depend on the shape of one model's tensors alone, and parts are added in a fixed order: a model's
bits do not depend on how many are trained beside it, as they do in a library that chooses by the number of products.
"""

import torch
import triton
import triton.language as tl

from lowchurn.nets._kernels import large_gpu

# One compiled kernel serves any number of rows; where sizes of images are divided by in a loop, they are constants.
jit = triton.jit(do_not_specialize=["M", "H", "W", "EACH", "SPLITS", "parts"])


@jit
def _conv(
    x_ptr, w_ptr, out_ptr, part_ptr, weight_ptr, bias_ptr, conv_bias_ptr, mean_ptr, var_ptr, add_ptr, mask_ptr, M, H, W,
    C, N, epsilon, SIDE: tl.constexpr, BACK: tl.constexpr, STATS: tl.constexpr, BIAS: tl.constexpr, FOLD: tl.constexpr,
    ADD: tl.constexpr, RELU: tl.constexpr, MASK: tl.constexpr, EVEN_C: tl.constexpr, EVEN_N: tl.constexpr,
    ROWS_FIRST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of ``SIDE x SIDE`` windows of x (M, C) times weights, to N channels.

    Weights lie as (tap, C, N). With BACK they are those of the forward pass, (tap, N, C), read transposed and in
    reverse order of the taps, which makes the product the gradient at the inputs of that convolution.
    """
    model = tl.program_id(1).to(tl.int64)
    if ROWS_FIRST:
        tile = tl.program_id(0) % tl.cdiv(M, BLOCK_M)
        column = tl.program_id(0) // tl.cdiv(M, BLOCK_M)
    else:
        tile = tl.program_id(0) // tl.cdiv(N, BLOCK_N)
        column = tl.program_id(0) % tl.cdiv(N, BLOCK_N)
    m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = m < M
    if SIDE > 1:
        row = (m // W) % H
        across = m % W
    x_base = x_ptr + model * M * C + m[:, None] * C
    w_base = w_ptr + model * (SIDE * SIDE) * C * N
    steps = tl.cdiv(C, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(0, SIDE * SIDE * steps):
        tap = step // steps
        k = (step % steps) * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = rows
        shift = 0
        if SIDE > 1:
            down = tap // SIDE - SIDE // 2
            right = tap % SIDE - SIDE // 2
            shift = down * W + right
            inside = rows & (row + down >= 0) & (row + down < H) & (across + right >= 0) & (across + right < W)
        wide = inside[:, None]
        if not EVEN_C:
            wide = wide & (k < C)[None, :]
        a = tl.load(x_base + (shift * C + k[None, :]), mask=wide, other=0.0)
        if BACK:
            w_at = w_base + (SIDE * SIDE - 1 - tap) * C * N + n[None, :] * C + k[:, None]
        else:
            w_at = w_base + tap * C * N + k[:, None] * N + n[None, :]
        if EVEN_C and EVEN_N:
            b = tl.load(w_at)
        else:
            b = tl.load(w_at, mask=(k < C)[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    there = n < N
    if STATS:
        acc = acc.to(out_ptr.dtype.element_ty).to(tl.float32)  # of what is stored
        count = tl.minimum(M - tile * BLOCK_M, BLOCK_M).to(tl.float32)
        total = tl.sum(acc, 0)  # rows past the end are zero
        squares = tl.sum(acc * acc, 0)
        part = part_ptr + (model * tl.cdiv(M, BLOCK_M) + tile) * 2 * N + n
        tl.store(part, total / count, mask=there)
        tl.store(part + N, tl.maximum(squares - total * (total / count), 0.0), mask=there)
    if BIAS:
        acc += tl.load(bias_ptr + model * N + n, mask=there, other=0.0)[None, :]
    if FOLD:
        own = model * N + n
        scale = tl.load(weight_ptr + own, mask=there, other=0.0)
        scale = scale / tl.sqrt(tl.load(var_ptr + own, mask=there, other=0.0) + epsilon)
        off = tl.load(conv_bias_ptr + own, mask=there, other=0.0) - tl.load(mean_ptr + own, mask=there, other=0.0)
        acc = acc * scale[None, :] + (tl.load(bias_ptr + own, mask=there, other=0.0) + off * scale)[None, :]
    at = model * M * N + m[:, None] * N + n[None, :]
    keep = rows[:, None]
    if not EVEN_N:
        keep = keep & there[None, :]
    if ADD:
        acc += tl.load(add_ptr + at, mask=keep, other=0.0).to(tl.float32)
    if RELU:
        acc = tl.maximum(acc, 0.0)
    if MASK:
        acc = tl.where(tl.load(mask_ptr + at, mask=keep, other=0.0) > 0, acc, 0.0)
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=keep)


@jit
def _weight_grad(
    x_ptr, d_ptr, out_ptr, M, C, N, EACH, SPLITS, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr,
    EVEN: tl.constexpr, INPUTS_FIRST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Sum over a part of the positions of window (one tap, C channels) times gradient at the outputs (N)."""
    model = tl.program_id(1).to(tl.int64)
    columns = tl.cdiv(N, BLOCK_N)
    across = tl.cdiv(C, BLOCK_C)
    tiles = SIDE * SIDE * across * columns
    split = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    tap = tile // (columns * across)
    within = tile % (columns * across)
    if INPUTS_FIRST:
        n = (within // across) * BLOCK_N + tl.arange(0, BLOCK_N)
        c = (within % across) * BLOCK_C + tl.arange(0, BLOCK_C)
    else:
        n = (within % columns) * BLOCK_N + tl.arange(0, BLOCK_N)
        c = (within // columns) * BLOCK_C + tl.arange(0, BLOCK_C)
    down = tap // SIDE - SIDE // 2
    right = tap % SIDE - SIDE // 2
    x_base = x_ptr + model * M * C + (down * WIDTH + right) * C
    d_base = d_ptr + model * M * N
    acc = tl.zeros((BLOCK_C, BLOCK_N), tl.float32)
    for step in range(0, EACH):
        m = (split * EACH + step) * BLOCK_M + tl.arange(0, BLOCK_M)
        rows = m < M
        inside = rows
        if SIDE > 1:
            row = (m // WIDTH) % HEIGHT + down
            column = m % WIDTH + right
            inside = rows & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        if EVEN:
            a = tl.load(x_base + m[:, None] * C + c[None, :], mask=inside[:, None], other=0.0)
            d = tl.load(d_base + m[:, None] * N + n[None, :], mask=rows[:, None], other=0.0)
        else:
            a = tl.load(x_base + m[:, None] * C + c[None, :], mask=inside[:, None] & (c < C)[None, :], other=0.0)
            d = tl.load(d_base + m[:, None] * N + n[None, :], mask=rows[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(tl.trans(a), d, acc, input_precision="ieee")
    out = out_ptr + (model * SPLITS + split) * (SIDE * SIDE) * C * N + (tap * C + c)[:, None] * N + n[None, :]
    tl.store(out, acc, mask=(c < C)[:, None] & (n < N)[None, :])


@jit
def _add_parts(part_ptr, out_ptr, size, SPLITS, BLOCK: tl.constexpr):
    """Add SPLITS parts of each model, one after the other."""
    model = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(0, SPLITS):
        total += tl.load(part_ptr + (model * SPLITS + split) * size + i, mask=keep, other=0.0)
    tl.store(out_ptr + model * size + i, total, mask=keep)


# Launchers: tensors (K, rows, height, width, channels) and weights (K, side, side, inputs, outputs). Neighbouring tiles
# share the larger of their two factors, which is then read from memory once; the smaller one stays in the cache.


def _tile(inputs, outputs, side, stats, plain, exact):
    """Tiles of a convolution, by the shape of one model's product; the fastest of a few on an H200.

    A ``plain`` one has room in registers for more, since little is done behind it.
    """
    if exact:  # the last layer, in float32
        return {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
    inputs_at_once = min(64, max(16, triton.next_power_of_2(inputs)))
    if outputs <= 64:
        narrow = max(16, triton.next_power_of_2(outputs))
        return {"BLOCK_M": 128, "BLOCK_N": narrow, "BLOCK_K": inputs_at_once, "num_warps": 4, "num_stages": 3}
    tile = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": inputs_at_once, "num_warps": 4 if stats else 8, "num_stages": 3}
    if plain and side == 1 and outputs >= 256 and inputs >= 512:
        return tile | {"BLOCK_N": 256}
    if side > 1 and outputs >= 256 and stats:
        return tile | ({"BLOCK_M": 256} if outputs == 256 else {"BLOCK_N": 256}) | {"num_warps": 8}
    return tile


def convolve(x, weight, back=False, stats=False, bias=None, norm=None, epsilon=0.0, add=None, relu=False, mask=None):
    """Convolve x, or with ``back`` go backward; return the result, with ``stats`` parts of statistics, and their rows.

    Behind it, ``bias`` is added or ``norm`` applied with its running statistics, ``add`` is added, and relu or ``mask``
    follow.
    """
    models, rows, height, width, inputs = x.shape
    side, outputs = weight.shape[1], weight.shape[3 if back else 4]
    positions = rows * height * width
    plain = not stats and norm is None and mask is None
    tile = _tile(inputs, outputs, side, stats, plain, x.dtype == torch.float32)
    out = x.new_empty(models, rows, height, width, outputs)
    parts = triton.cdiv(positions, tile["BLOCK_M"])
    part = torch.empty(models, parts, 2, outputs, device=x.device) if stats else None
    _conv[(parts * triton.cdiv(outputs, tile["BLOCK_N"]), models)](
        x, weight, out, part, *(norm or [None, bias, None, None, None]), add, mask, positions, height, width, inputs,
        outputs, epsilon, SIDE=side, BACK=back, STATS=stats, BIAS=bias is not None, FOLD=norm is not None,
        ADD=add is not None, RELU=relu, MASK=mask is not None, EVEN_C=inputs % tile["BLOCK_K"] == 0, EVEN_N=outputs % tile["BLOCK_N"] == 0,
        ROWS_FIRST=weight[0].numel() > x[0].numel(), **tile,
    )  # fmt: skip
    return out, part, tile["BLOCK_M"]


def conv(x, weight):
    """The convolution of x, without its bias."""
    return convolve(x, weight)[0]


def input_grad(d, weight, add=None, mask=None):
    """The gradient at the inputs of a convolution, plus ``add``, where ``mask`` is positive."""
    return convolve(d, weight, back=True, add=add, mask=mask)[0]


def _weight_tile(inputs, outputs, side, exact):
    """Tiles of the gradient of a convolution's weights; the fastest of a few on an H200."""
    most = 32 if exact else 64 if side == 1 and inputs * outputs <= 256 * 1024 else 128
    block_c, block_n = (min(most, max(16, triton.next_power_of_2(n))) for n in (inputs, outputs))
    if side > 1 and outputs >= 512:
        block_n = 256
    warps = 8 if side > 1 and block_c * block_n >= 128 * 128 else 4
    return {"BLOCK_M": 64, "BLOCK_C": block_c, "BLOCK_N": block_n, "num_warps": warps, "num_stages": 3}


def weight_grad(x, d, out):
    """Write the gradient of a convolution's weights."""
    models, rows, height, width, inputs = x.shape
    side, outputs = out.shape[1], out.shape[4]
    positions = rows * height * width
    tile = _weight_tile(inputs, outputs, side, x.dtype == torch.float32)
    block_m, block_c, block_n = tile["BLOCK_M"], tile["BLOCK_C"], tile["BLOCK_N"]
    tiles = side * side * triton.cdiv(inputs, block_c) * triton.cdiv(outputs, block_n)
    steps = triton.cdiv(positions, block_m)
    splits = max(1, min(triton.next_power_of_2(triton.cdiv(32, tiles)), steps // 8))
    part = out if splits == 1 else torch.empty(models, splits, out[0].numel(), device=x.device)
    height, width = (height, width) if side > 1 else (1, 1)
    _weight_grad[(tiles * splits, models)](
        x, d, part, positions, inputs, outputs, triton.cdiv(steps, splits), splits, HEIGHT=height,
        WIDTH=width, SIDE=side, EVEN=inputs % block_c == 0 and outputs % block_n == 0,
        INPUTS_FIRST=outputs > inputs, **tile,
    )  # fmt: skip
    if splits > 1:
        count = out[0].numel()
        _add_parts[(triton.cdiv(count, 1024), models)](part, out, count, splits, BLOCK=1024, num_warps=4)


# Plain matrices: inputs (K, rows, C), weights (K, C, N).


def product(x, weight, bias=None):
    """``x @ weight``, plus ``bias`` (K, N)."""
    if large_gpu.pays(x, weight.shape[2]):
        return large_gpu.product(x, weight, bias=bias)
    return convolve(x[:, :, None, None], weight[:, None, None], bias=bias)[0].flatten(1, 3)


def product_back(d, weight, add=None):
    """``d @ weight.mT``, the gradient at the inputs of a product, plus ``add``."""
    if large_gpu.pays(d, weight.shape[1]):
        return large_gpu.product(d, weight.mT, add=add)
    return input_grad(
        d[:, :, None, None], weight[:, None, None], None if add is None else add[:, :, None, None]
    ).flatten(1, 3)


def product_grad(x, d, out):
    """Write ``x.mT @ d``, the gradient of a product's weights, in float32."""
    weight_grad(x[:, :, None, None], d[:, :, None, None], out[:, None, None])
