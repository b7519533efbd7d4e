"""Triton kernels for the convolutions of K networks of one shape at once.

Every kernel takes the model as a grid axis, so one launch serves all K models. Activations are channels-last,
``(K, rows, height, width, channels)``: then the ``(kernel column, channel)`` pairs of one window row are one contiguous
run of memory, and a convolution reads its windows in wide loads straight from the activation (an *implicit* matrix
product) without an im2col buffer.

The first convolution reads images of a pool that all models share, by index, from strips that contain the
pixels under both windows of a row of a 2 x 2 pooling window. The weights are shifted to the place of the left and of
the right window in a strip, with zeros beside them: four products of the upper and lower strips with the left and right
weights, whose pooling compares registers of one thread.

Shapes are ``constexpr`` (a stack has one shape for its life) so that divisions by them are cheap; numbers of rows and
models are not.

``which`` is the pooling record: 0..3 names the element of the 2 x 2 window that won, 4 means that the rectifier closed
the whole window, so that the backward pass needs neither the activations before pooling nor a separate rectifier mask.
"""

import torch
import triton
import triton.language as tl

from lowchurn.nets._kernels.dense_gpu import power


@triton.jit
def _store_pooled(
    best, who, p, n, pooled, model, bias_ptr, out_ptr, which_ptr, N: tl.constexpr, RECORD: tl.constexpr,
):  # fmt: skip
    """Bias and relu of the winners of a pooling, and which they were."""
    bias = tl.load(bias_ptr + model * N + n, mask=n < N, other=0.0).to(tl.float32)
    best = best + bias[None, :]  # one bias for all four: add last
    at = (model * pooled + p)[:, None] * N + n[None, :]
    keep = (p < pooled)[:, None] & (n < N)[None, :]
    tl.store(out_ptr + at, tl.maximum(best, 0.0).to(out_ptr.dtype.element_ty), mask=keep)
    if RECORD:
        tl.store(which_ptr + at, tl.where(best > 0, who, 4).to(tl.uint8), mask=keep)


@triton.jit
def _winner(v0, v1, v2, v3):
    """The largest of four, and the first of them that is."""
    best = tl.maximum(tl.maximum(v0, v1), tl.maximum(v2, v3))
    return best, tl.where(v0 == best, 0, tl.where(v1 == best, 1, tl.where(v2 == best, 2, 3)))


@triton.jit
def _windows(
    strips_ptr, index_ptr, mate_ptr, share, p, pooled, LOWER: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, SIDE: tl.constexpr, MIXED: tl.constexpr, KP: tl.constexpr,
):  # fmt: skip
    """Strips (positions, KP) under the upper or lower windows of pooled outputs p, of images or mixtures of two."""
    k = tl.arange(0, KP)
    shift = tl.max_contiguous(tl.multiple_of((k // RUN) * (PW * RUN) + k % RUN, 8), 8)
    inside = (k < SIDE * RUN)[None, :] & (p < pooled)[:, None]
    corner = ((((p // PW) % PH) * 2 + LOWER) * PW + p % PW) * RUN
    row = p // (PH * PW)
    own = tl.load(index_ptr + row, mask=p < pooled, other=0).to(tl.int64) * (H * PW * RUN) + corner
    window = tl.load(strips_ptr + (own[:, None] + shift[None, :]), mask=inside, other=0.0)
    if MIXED:
        mate = tl.load(mate_ptr + row, mask=p < pooled, other=0).to(tl.int64) * (H * PW * RUN) + corner
        other = tl.load(strips_ptr + (mate[:, None] + shift[None, :]), mask=inside, other=0.0).to(tl.float32)
        window = (share * window.to(tl.float32) + (1 - share) * other).to(strips_ptr.dtype.element_ty)
    return window


@triton.jit
def _shifted(
    w_ptr, n, RIGHT: tl.constexpr, C: tl.constexpr, N: tl.constexpr, SIDE: tl.constexpr, RUN: tl.constexpr,
    KP: tl.constexpr,
):  # fmt: skip
    """Weights (KP, n) for the left or right windows in strips: zero where the window does not reach."""
    k = tl.arange(0, KP)
    place = k % RUN - RIGHT * C
    there = (k < SIDE * RUN) & (place >= 0) & (place < SIDE * C)
    at = (k // RUN * (SIDE * C) + place) * N
    return tl.load(w_ptr + at[:, None] + n[None, :], mask=there[:, None] & (n < N)[None, :], other=0.0)


@triton.jit
def _first_conv_pool(
    strips_ptr, index_ptr, mate_ptr, share_ptr, w_ptr, bias_ptr, out_ptr, which_ptr, rows, stride, share_stride,
    H: tl.constexpr, RUN: tl.constexpr, C: tl.constexpr, N: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    SIDE: tl.constexpr, MIXED: tl.constexpr, RECORD: tl.constexpr, KP: tl.constexpr, NB: tl.constexpr,
    BP: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Convolution, bias, relu and pooling of some images of a pool for one model."""
    model = tl.program_id(1).to(tl.int64)
    PARTS: tl.constexpr = (N + NB - 1) // NB
    n = (tl.program_id(0) % PARTS) * NB + tl.arange(0, NB)
    pooled = rows * (PH * PW)
    w = w_ptr + model * (SIDE * SIDE * C * N)
    left = _shifted(w, n, 0, C, N, SIDE, RUN, KP)
    right = _shifted(w, n, 1, C, N, SIDE, RUN, KP)
    index_ptr += model * stride
    mate_ptr += model * stride
    share = 1.0
    if MIXED:
        share = tl.load(share_ptr + model * share_stride)
    first = (tl.program_id(0) // PARTS) * (TILES * BP)
    for tile in range(0, TILES):
        p = first + tile * BP + tl.arange(0, BP)
        upper = _windows(strips_ptr, index_ptr, mate_ptr, share, p, pooled, 0, H, RUN, PH, PW, SIDE, MIXED, KP)
        lower = _windows(strips_ptr, index_ptr, mate_ptr, share, p, pooled, 1, H, RUN, PH, PW, SIDE, MIXED, KP)
        best, who = _winner(tl.dot(upper, left), tl.dot(upper, right), tl.dot(lower, left), tl.dot(lower, right))
        _store_pooled(best, who, p, n, pooled, model, bias_ptr, out_ptr, which_ptr, N, RECORD)


@triton.jit
def _first_conv_weight_grad(
    strips_ptr, index_ptr, mate_ptr, share_ptr, g_ptr, which_ptr, part_ptr, bias_ptr, rows, stride, share_stride,
    H: tl.constexpr, RUN: tl.constexpr, C: tl.constexpr, N: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    SIDE: tl.constexpr, MIXED: tl.constexpr, SPLITS: tl.constexpr, KP: tl.constexpr, NB: tl.constexpr,
    BP: tl.constexpr,
):  # fmt: skip
    """Gradients of the shifted weights of the first convolution, from pooled gradients.

    The unpooled gradient (four times larger, three quarters zero) is made in registers and never stored. The sum over
    positions is cut into SPLITS programs whose partial sums, (model, split, 2, KP, N) and for the bias (model, split,
    N), are added by ``_fold`` in a fixed order: no atomics, so repeatable.
    """
    model = tl.program_id(1).to(tl.int64)
    PARTS: tl.constexpr = (N + NB - 1) // NB
    split = tl.program_id(0) // PARTS
    n = (tl.program_id(0) % PARTS) * NB + tl.arange(0, NB)
    k = tl.arange(0, KP)
    pooled = rows * (PH * PW)
    each = tl.cdiv(pooled, SPLITS * BP)
    index_ptr += model * stride
    mate_ptr += model * stride
    share = 1.0
    if MIXED:
        share = tl.load(share_ptr + model * share_stride)
    left = tl.zeros((KP, NB), tl.float32)
    right = tl.zeros((KP, NB), tl.float32)
    bias = tl.zeros((NB,), tl.float32)
    for tile in range(0, each):
        p = (split * each + tile) * BP + tl.arange(0, BP)
        at = (model * pooled + p)[:, None] * N + n[None, :]
        ok = (p < pooled)[:, None] & (n < N)[None, :]
        g = tl.load(g_ptr + at, mask=ok, other=0.0)
        which = tl.load(which_ptr + at, mask=ok, other=4)
        upper = _windows(strips_ptr, index_ptr, mate_ptr, share, p, pooled, 0, H, RUN, PH, PW, SIDE, MIXED, KP)
        lower = _windows(strips_ptr, index_ptr, mate_ptr, share, p, pooled, 1, H, RUN, PH, PW, SIDE, MIXED, KP)
        bias += tl.sum(g.to(tl.float32), axis=0)  # g is already masked by relu
        zero = tl.zeros_like(g)
        left = tl.dot(tl.trans(upper), tl.where(which == 0, g, zero), left)
        right = tl.dot(tl.trans(upper), tl.where(which == 1, g, zero), right)
        left = tl.dot(tl.trans(lower), tl.where(which == 2, g, zero), left)
        right = tl.dot(tl.trans(lower), tl.where(which == 3, g, zero), right)
    out = part_ptr + (model * SPLITS + split) * (2 * KP * N) + k[:, None] * N + n[None, :]
    tl.store(out, left, mask=(k < KP)[:, None] & (n < N)[None, :])
    tl.store(out + KP * N, right, mask=(k < KP)[:, None] & (n < N)[None, :])
    tl.store(bias_ptr + (model * SPLITS + split) * N + n, bias, mask=n < N)


@triton.jit
def _fold(
    part_ptr, bias_part_ptr, dw_ptr, bias_ptr, C: tl.constexpr, N: tl.constexpr, SIDE: tl.constexpr, RUN: tl.constexpr,
    SPLITS: tl.constexpr, KP: tl.constexpr, NB: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    """The gradient of the weights as the sum of those of their shifted copies, over all splits."""
    model = tl.program_id(1).to(tl.int64)
    KTOT: tl.constexpr = SIDE * SIDE * C
    n = tl.program_id(0) * NB + tl.arange(0, NB)
    k = tl.arange(0, KB)
    at = (k // (SIDE * C) * RUN + k % (SIDE * C))[:, None] * N + n[None, :]
    ok = (k < KTOT)[:, None] & (n < N)[None, :]
    total = tl.zeros((KB, NB), tl.float32)
    bias = tl.zeros((NB,), tl.float32)
    for split in range(0, SPLITS):
        base = part_ptr + (model * SPLITS + split) * (2 * KP * N)
        total += tl.load(base + at, mask=ok, other=0.0)
        total += tl.load(base + KP * N + C * N + at, mask=ok, other=0.0)
        bias += tl.load(bias_part_ptr + (model * SPLITS + split) * N + n, mask=n < N, other=0.0)
    tl.store(dw_ptr + model * (KTOT * N) + k[:, None] * N + n[None, :], total, mask=ok)
    tl.store(bias_ptr + model * N + n, bias, mask=n < N)


@triton.jit
def _conv_pool(
    x_ptr, w_ptr, bias_ptr, out_ptr, which_ptr, rows, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    N: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, SIDE: tl.constexpr, RECORD: tl.constexpr, N1: tl.constexpr,
    N2: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Convolution, bias, relu and 2 x 2 max pooling of one tile of one model.

    The tile's rows are ordered (pooled position, element of its window), so the four candidates of a pool are four
    neighbouring rows of one accumulator. A number of columns that is no power of two is done as N1 + N2 (96 as 64 + 32).
    Windows overlap, so most of x is read SIDE * SIDE times, in reads of 8 numbers: reads of 4, which stay in the
    multiprocessor's own cache, are twice as many and slower.
    """
    model = tl.program_id(1).to(tl.int64)
    KTOT: tl.constexpr = SIDE * SIDE * C
    RUN: tl.constexpr = SIDE * C  # contiguous in x and in w
    PARTS: tl.constexpr = (N + N1 + N2 - 1) // (N1 + N2)
    EXACT: tl.constexpr = (KTOT % BLOCK_K == 0) and (N % (N1 + N2) == 0)
    pooled = rows * (PH * PW)
    tile = tl.program_id(0) // PARTS
    m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    n1 = (tl.program_id(0) % PARTS) * (N1 + N2) + tl.arange(0, N1)
    pos = tl.minimum(m // 4, pooled - 1)  # clamp, so loads need no mask
    top = 2 * ((pos // PW) % PH) + m % 4 // 2
    origin = ((pos // (PH * PW)) * (H * W) + top * W + 2 * (pos % PW) + m % 2) * C
    x_base = x_ptr + model * (H * W * C) * rows
    w_base = w_ptr + model * (KTOT * N)
    acc1 = tl.zeros((BLOCK_M, N1), tl.float32)
    if N2 > 0:
        n2 = (tl.program_id(0) % PARTS) * (N1 + N2) + N1 + tl.arange(0, N2)
        acc2 = tl.zeros((BLOCK_M, N2), tl.float32)
    for k0 in range(0, KTOT, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        if C % BLOCK_K == 0:  # all of one kernel row and column
            shift = (k0 // RUN) * (W * C) + k0 % RUN + tl.arange(0, BLOCK_K)
        else:
            shift = (k // RUN) * (W * C) + k % RUN
        # C is a multiple of 8, which the compiler does not see through the divisions.
        shift = tl.max_contiguous(tl.multiple_of(shift, 8), 8)
        offset = origin[:, None] + shift[None, :]
        if KTOT % BLOCK_K == 0:
            a = tl.load(x_base + offset)
        else:
            a = tl.load(x_base + offset, mask=(k < KTOT)[None, :], other=0.0)
        w_at = w_base + k[:, None] * N
        if EXACT:
            w1 = tl.load(w_at + n1[None, :])
        else:
            w1 = tl.load(w_at + n1[None, :], mask=(k < KTOT)[:, None] & (n1 < N)[None, :], other=0.0)
        acc1 = tl.dot(a, w1, acc1)
        if N2 > 0:
            if EXACT:
                w2 = tl.load(w_at + n2[None, :])
            else:
                w2 = tl.load(w_at + n2[None, :], mask=(k < KTOT)[:, None] & (n2 < N)[None, :], other=0.0)
            acc2 = tl.dot(a, w2, acc2)
    p = tile * (BLOCK_M // 4) + tl.arange(0, BLOCK_M // 4)
    best1, who1 = _pool(acc1, BLOCK_M, N1)
    _store_pooled(best1, who1, p, n1, pooled, model, bias_ptr, out_ptr, which_ptr, N, RECORD)
    if N2 > 0:
        best2, who2 = _pool(acc2, BLOCK_M, N2)
        _store_pooled(best2, who2, p, n2, pooled, model, bias_ptr, out_ptr, which_ptr, N, RECORD)


@triton.jit
def _pool(acc, M: tl.constexpr, N: tl.constexpr):
    """The largest of every four neighbouring rows, and which it was."""
    quad = tl.permute(tl.reshape(acc, (M // 4, 2, 2, N)), (0, 3, 1, 2))
    even, odd = tl.split(quad)  # window column 0, column 1
    v0, v2 = tl.split(even)
    v1, v3 = tl.split(odd)
    return _winner(v0, v1, v2, v3)


@triton.jit
def _conv_weight_grad(
    x_ptr, dy_ptr, dw_ptr, ROWS: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SIDE: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr,
    BLOCK_KK: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """dW[kk, n] = sum over output positions of window[kk] * dY[n] ('valid' only)."""
    model = tl.program_id(1).to(tl.int64)
    KTOT: tl.constexpr = SIDE * SIDE * C
    RUN: tl.constexpr = SIDE * C
    POSITIONS: tl.constexpr = ROWS * OH * OW
    PARTS: tl.constexpr = (N + N1 + N2 - 1) // (N1 + N2)
    EXACT: tl.constexpr = (POSITIONS % BLOCK_M == 0) and (N % (N1 + N2) == 0)
    kk = (tl.program_id(0) // PARTS) * BLOCK_KK + tl.arange(0, BLOCK_KK)
    kc = tl.minimum(kk // RUN, SIDE - 1) * (W * C) + kk % RUN  # clamp, no mask
    x_base = x_ptr + model * (ROWS * H * W * C)
    dy_base = dy_ptr + model * (POSITIONS * N)
    n1 = (tl.program_id(0) % PARTS) * (N1 + N2) + tl.arange(0, N1)
    acc1 = tl.zeros((BLOCK_KK, N1), tl.float32)
    if N2 > 0:
        n2 = (tl.program_id(0) % PARTS) * (N1 + N2) + N1 + tl.arange(0, N2)
        acc2 = tl.zeros((BLOCK_KK, N2), tl.float32)
    for m0 in range(0, POSITIONS, BLOCK_M):
        m = m0 + tl.arange(0, BLOCK_M)
        pos = tl.minimum(m, POSITIONS - 1)  # dY is masked to zero beyond
        # A row of the input is SIDE - 1 longer than one of the output, and an image has SIDE - 1 rows more.
        origin = (pos + (SIDE - 1) * (pos // OW) + (SIDE - 1) * W * (pos // (OH * OW))) * C
        a = tl.load(x_base + origin[:, None] + kc[None, :])
        dy_at = dy_base + m[:, None] * N
        if EXACT:
            d1 = tl.load(dy_at + n1[None, :])
        else:
            d1 = tl.load(dy_at + n1[None, :], mask=(m < POSITIONS)[:, None] & (n1 < N)[None, :], other=0.0)
        at = tl.trans(a)
        acc1 = tl.dot(at, d1, acc1)
        if N2 > 0:
            if EXACT:
                d2 = tl.load(dy_at + n2[None, :])
            else:
                d2 = tl.load(dy_at + n2[None, :], mask=(m < POSITIONS)[:, None] & (n2 < N)[None, :], other=0.0)
            acc2 = tl.dot(at, d2, acc2)
    out = dw_ptr + model * (KTOT * N) + kk[:, None] * N
    tl.store(out + n1[None, :], acc1, mask=(kk < KTOT)[:, None] & (n1 < N)[None, :])
    if N2 > 0:
        tl.store(out + n2[None, :], acc2, mask=(kk < KTOT)[:, None] & (n2 < N)[None, :])


@triton.jit
def _conv_input_grad(
    dy_ptr, w_ptr, which_ptr, dx_ptr, ROWS: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    N: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, SIDE: tl.constexpr, CB: tl.constexpr, XG: tl.constexpr,
    YG: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dX = full convolution of dY with the flipped weights, then the relu mask.

    One program owns a patch of YG x XG pixels in many images. Only the kernel rows and columns that reach the patch are
    visited; outputs beyond the border are masked, and masked lanes cost no memory traffic.
    """
    model = tl.program_id(1).to(tl.int64)
    IMAGES: tl.constexpr = BLOCK_M // (XG * YG)
    PARTS: tl.constexpr = (C + CB - 1) // CB
    GROUPS: tl.constexpr = (ROWS + IMAGES - 1) // IMAGES
    ACROSS: tl.constexpr = (W + XG - 1) // XG
    BLOCKS: tl.constexpr = (N + BLOCK_K - 1) // BLOCK_K
    c = (tl.program_id(0) % PARTS) * CB + tl.arange(0, CB)
    rest = tl.program_id(0) // PARTS
    x0 = rest // GROUPS % ACROSS * XG
    y0 = rest // (GROUPS * ACROSS) * YG
    m = tl.arange(0, BLOCK_M)
    b = rest % GROUPS * IMAGES + m // (XG * YG)
    y = y0 + m // XG % YG
    x = x0 + m % XG
    keep = (b < ROWS) & (y < H) & (x < W)
    top = tl.maximum(0, y0 - (OH - 1))  # first kernel row that reaches the patch
    left = tl.maximum(0, x0 - (OW - 1))
    across = tl.minimum(SIDE - 1, x0 + XG - 1) - left + 1
    taps = (tl.minimum(SIDE - 1, y0 + YG - 1) - top + 1) * across
    acc = tl.zeros((BLOCK_M, CB), tl.float32)
    dy_base = dy_ptr + model * (ROWS * OH * OW * N)
    w_base = w_ptr + model * (SIDE * SIDE * C * N)
    origin = (b * (OH * OW) + y * OW + x) * N
    for step in range(0, taps * BLOCKS):
        tap = step // BLOCKS
        kh = top + tap // across
        kw = left + tap % across
        n = step % BLOCKS * BLOCK_K + tl.arange(0, BLOCK_K)
        # N is a multiple of 8, which the compiler does not see through the divisions.
        shift = tl.max_contiguous(tl.multiple_of(n - (kh * OW + kw) * N, 8), 8)
        inside = keep & (y >= kh) & (y < OH + kh) & (x >= kw) & (x < OW + kw)
        w_at = (kh * SIDE + kw) * (C * N) + c[:, None] * N + n[None, :]
        if (N % BLOCK_K == 0) and (C % CB == 0):
            a = tl.load(dy_base + (origin[:, None] + shift[None, :]), mask=inside[:, None], other=0.0)
            wt = tl.load(w_base + w_at)
        else:
            a = tl.load(
                dy_base + (origin[:, None] + shift[None, :]), mask=inside[:, None] & (n < N)[None, :], other=0.0
            )
            wt = tl.load(w_base + w_at, mask=(c < C)[:, None] & (n < N)[None, :], other=0.0)
        # n is contiguous in memory: load (c, n) and transpose in shared memory
        acc = tl.dot(a, tl.trans(wt), acc)
    at = (model * (ROWS * H * W) + (b * H + y) * W + x)[:, None] * C + c[None, :]
    ok = keep[:, None] & (c < C)[None, :]
    which = tl.load(which_ptr + at, mask=ok, other=4)
    acc = tl.where(which < 4, acc, 0.0)
    tl.store(dx_ptr + at, acc.to(dx_ptr.dtype.element_ty), mask=ok)


# Launchers: shapes in, one call per operation.

TILES = {
    "first": {"BP": 64, "TILES": 4, "num_warps": 4, "num_stages": 2},
    "first_grad": {"BP": 64, "SPLITS": 4, "num_warps": 4, "num_stages": 2},
    "forward": {"BLOCK_M": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 4},
    "weight": {"BLOCK_KK": 128, "BLOCK_M": 64, "num_warps": 4, "num_stages": 4},
    "input": {"XG": 2, "YG": 2, "BLOCK_M": 128, "num_warps": 4, "num_stages": 4},
}  # the fastest of some on an H200


def columns(n):
    """Widths N1 and N2, powers of two or zero, of the parts that n columns are cut into: 96 is 64 + 32."""
    if n > 128:
        return {"N1": 128, "N2": 0} if n % 128 == 0 else {"N1": 64, "N2": 32}
    first = max(16, 1 << (n.bit_length() - 1))
    return {"N1": first, "N2": power(n - first) if n > first else 0}


def _shapes(images, side, n):
    """What the kernels of the first convolution are compiled for."""
    high, columns, run = images.strips.shape[1:]
    sizes = {"H": high, "RUN": run, "C": images.channels, "N": n, "PH": images.height // 2, "PW": columns, "SIDE": side}
    return {**sizes, "KP": power(side * run), "NB": min(64, power(n))}


def _arguments(chosen):
    """Pointers to the images, their indices and what is mixed into them; the number of rows and the strides."""
    index, strips = chosen.index, chosen.images.strips
    where = index.shape[1], index.stride(0) if len(index) > 1 else 0
    if chosen.mate is None:
        return (strips, index, index, index), (*where, 0)
    assert chosen.mate.stride() == index.stride()
    return (strips, index, chosen.mate, chosen.share), (*where, chosen.share.stride(0))


def first_conv_pool(chosen, w, bias, out, which, **tiles):
    """Write the relu-pooled convolution of chosen images with w (K, side, side, C, N), padded to their size.

    ``which`` receives the winners of the pooling, unless it is empty.
    """
    k, side, n = len(w), w.shape[1], w.shape[-1]
    inputs, where = _arguments(chosen)
    tiles = {**_shapes(chosen.images, side, n), **TILES["first"], **tiles}
    blocks = triton.cdiv(where[0] * tiles["PH"] * tiles["PW"], tiles["BP"] * tiles["TILES"])
    _first_conv_pool[(blocks * triton.cdiv(n, tiles["NB"]), k)](
        *inputs, w, bias, out, which, *where, MIXED=chosen.mate is not None, RECORD=len(which) > 0, **tiles
    )


def first_conv_weight_grad(chosen, g, which, dw, bias, **tiles):
    """Write dw (K, side, side, C, N) and the bias' gradient from the gradient g at the pooled outputs."""
    k, side, n = len(dw), dw.shape[1], dw.shape[-1]
    inputs, where = _arguments(chosen)
    tiles = {**_shapes(chosen.images, side, n), **TILES["first_grad"], **tiles}
    part = torch.empty(k, tiles["SPLITS"], 2, tiles["KP"], n, device=g.device)
    bias_part = torch.empty(k, tiles["SPLITS"], n, device=g.device)
    _first_conv_weight_grad[(tiles["SPLITS"] * triton.cdiv(n, tiles["NB"]), k)](
        *inputs, g, which, part, bias_part, *where, MIXED=chosen.mate is not None, **tiles
    )
    same = {name: tiles[name] for name in ("C", "N", "SIDE", "RUN", "SPLITS", "KP")}
    _fold[(triton.cdiv(n, 16), k)](
        part, bias_part, dw, bias, **same, NB=16, KB=power(side * side * tiles["C"]), num_warps=4
    )


def conv_pool(x, w, bias, out, which, **tiles):
    """Write the relu-pooled 'valid' convolution of x (K, B, H, W, C) with w (K, side, side, C, N).

    ``which`` receives the winners of the pooling, unless it is empty.
    """
    k, rows, h, wd, c = x.shape
    side, n, tiles = w.shape[1], w.shape[-1], {**TILES["forward"], **columns(w.shape[-1]), **tiles}
    ph, pw = out.shape[2], out.shape[3]
    grid = (triton.cdiv(rows * ph * pw * 4, tiles["BLOCK_M"]) * triton.cdiv(n, tiles["N1"] + tiles["N2"]), k)
    _conv_pool[grid](
        x, w, bias, out, which, rows, H=h, W=wd, C=c, N=n, PH=ph, PW=pw, SIDE=side, RECORD=len(which) > 0, **tiles
    )


def conv_weight_grad(x, dy, dw, **tiles):
    """Write dw (K, side, side, C, N) of a 'valid' convolution."""
    k, rows, h, wd, c = x.shape
    oh, ow, n = dy.shape[2:]
    tiles = {**TILES["weight"], **columns(n), **tiles}
    side = h - oh + 1
    grid = (triton.cdiv(side * side * c, tiles["BLOCK_KK"]) * triton.cdiv(n, tiles["N1"] + tiles["N2"]), k)
    _conv_weight_grad[grid](x, dy, dw, ROWS=rows, H=h, W=wd, C=c, N=n, OH=oh, OW=ow, SIDE=side, **tiles)


def conv_input_grad(dy, w, which, dx, **tiles):
    """Write dx (K, B, H, W, C) of a 'valid' convolution, masked by ``which < 4``."""
    k, rows, h, wd, c = dx.shape
    oh, ow, n = dy.shape[2:]
    exact = {"CB": min(128, power(c)), "BLOCK_K": 16 if n % 32 and n > 32 else 32}
    tiles = {**TILES["input"], **exact, **tiles}
    images = tiles["BLOCK_M"] // (tiles["XG"] * tiles["YG"])
    patches = triton.cdiv(h, tiles["YG"]) * triton.cdiv(wd, tiles["XG"])
    grid = (patches * triton.cdiv(rows, images) * triton.cdiv(c, tiles["CB"]), k)
    _conv_input_grad[grid](dy, w, which, dx, ROWS=rows, H=h, W=wd, C=c, N=n, OH=oh, OW=ow, SIDE=h - oh + 1, **tiles)
