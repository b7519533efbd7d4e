"""Triton kernels for the convolutions of K networks of one shape at once.

Every kernel takes the model as a grid axis, so one launch serves all K models. Activations are channels-last,
``(K, rows, height, width, channels)``: then the ``(kernel column, channel)`` pairs of one window row are one contiguous
run of memory, and a convolution reads its windows in wide loads straight from the activation (an *implicit* matrix
product) without an im2col buffer.

A pooled output is the largest of four convolutions, one for each element of its 2 x 2 window. Each of the four has an
accumulator of its own, so that the pooling compares registers of one thread.

The first convolution reads images of a pool that all models share, by index. All windows of one pooled output lie in one
patch of ``side + 1`` rows and columns: the patch is read once, and each of the four convolutions has the weights shifted
to its place in the patch.

Shapes are ``constexpr`` (a stack has one shape for its life) so that divisions by them are cheap; numbers of rows and
models are not.

``which`` is the pooling record: 0..3 names the element of the 2 x 2 window that won, 4 means that the rectifier closed
the whole window, so that the backward pass needs neither the activations before pooling nor a separate rectifier mask.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@triton.jit
def _pool_and_store(
    v0, v1, v2, v3, p, n, pooled, model, bias_ptr, out_ptr, which_ptr, N: tl.constexpr, RECORD: tl.constexpr,
):  # fmt: skip
    """The largest of four values, then bias and relu, then store."""
    best = tl.maximum(tl.maximum(v0, v1), tl.maximum(v2, v3))
    bias = tl.load(bias_ptr + model * N + n, mask=n < N, other=0.0).to(tl.float32)
    after = best + bias[None, :]  # one bias for all four: add last
    at = (model * pooled + p)[:, None] * N + n[None, :]
    keep = (p < pooled)[:, None] & (n < N)[None, :]
    tl.store(out_ptr + at, tl.maximum(after, 0.0).to(out_ptr.dtype.element_ty), mask=keep)
    if RECORD:
        who = tl.where(v0 == best, 0, tl.where(v1 == best, 1, tl.where(v2 == best, 2, 3)))  # the first winner
        tl.store(which_ptr + at, tl.where(after > 0, who, 4).to(tl.uint8), mask=keep)


@triton.jit
def _patches(
    images_ptr, index_ptr, mate_ptr, share, p, pooled, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, PATCH: tl.constexpr, MIXED: tl.constexpr, KP: tl.constexpr,
):  # fmt: skip
    """The patches (positions, KP) of pooled outputs p, of images or of mixtures of two."""
    RUN: tl.constexpr = PATCH * C
    k = tl.arange(0, KP)
    # Patches start in even columns and rows have an even length: two numbers at a time.
    shift = tl.max_contiguous(tl.multiple_of((k // RUN) * (W * C) + k % RUN, 2), 2)
    inside = (k < PATCH * RUN)[None, :] & (p < pooled)[:, None]
    corner = (((p // PW) % PH) * (2 * W) + (p % PW) * 2) * C
    row = p // (PH * PW)
    own = tl.load(index_ptr + row, mask=p < pooled, other=0).to(tl.int64) * (H * W * C) + corner
    at = tl.multiple_of(own, 2)[:, None] + shift[None, :]
    patch = tl.load(images_ptr + at, mask=inside, other=0.0)
    if MIXED:
        mate = tl.load(mate_ptr + row, mask=p < pooled, other=0).to(tl.int64) * (H * W * C) + corner
        at = tl.multiple_of(mate, 2)[:, None] + shift[None, :]
        other = tl.load(images_ptr + at, mask=inside, other=0.0).to(tl.float32)
        patch = (share * patch.to(tl.float32) + (1 - share) * other).to(images_ptr.dtype.element_ty)
    return patch


@triton.jit
def _shifted(w_ptr, n, Q: tl.constexpr, C: tl.constexpr, N: tl.constexpr, SIDE: tl.constexpr, KP: tl.constexpr):
    """Weights (KP, n) for the Q-th window of a patch: zero where the window does not reach."""
    RUN: tl.constexpr = (SIDE + 1) * C
    k = tl.arange(0, KP)
    row = k // RUN - Q // 2
    column = k % RUN // C - Q % 2
    there = (row >= 0) & (row < SIDE) & (column >= 0) & (column < SIDE)
    at = ((row * SIDE + column) * C + k % C) * N
    return tl.load(w_ptr + at[:, None] + n[None, :], mask=there[:, None] & (n < N)[None, :], other=0.0)


@triton.jit
def _first_conv_pool(
    images_ptr, index_ptr, mate_ptr, share_ptr, w_ptr, bias_ptr, out_ptr, which_ptr, rows, stride, share_stride,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    SIDE: tl.constexpr, MIXED: tl.constexpr, RECORD: tl.constexpr, KP: tl.constexpr, NB: tl.constexpr,
    BP: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Convolution, bias, relu and pooling of some images of a pool for one model."""
    model = tl.program_id(1).to(tl.int64)
    PARTS: tl.constexpr = (N + NB - 1) // NB
    n = (tl.program_id(0) % PARTS) * NB + tl.arange(0, NB)
    pooled = rows * (PH * PW)
    w = w_ptr + model * (SIDE * SIDE * C * N)
    w0 = _shifted(w, n, 0, C, N, SIDE, KP)
    w1 = _shifted(w, n, 1, C, N, SIDE, KP)
    w2 = _shifted(w, n, 2, C, N, SIDE, KP)
    w3 = _shifted(w, n, 3, C, N, SIDE, KP)
    share = 1.0
    if MIXED:
        share = tl.load(share_ptr + model * share_stride)
    first = (tl.program_id(0) // PARTS) * (TILES * BP)
    for tile in range(0, TILES):
        p = first + tile * BP + tl.arange(0, BP)
        a = _patches(
            images_ptr, index_ptr + model * stride, mate_ptr + model * stride, share, p, pooled, H, W, C, PH, PW,
            SIDE + 1, MIXED, KP,
        )  # fmt: skip
        v0 = tl.dot(a, w0)
        v1 = tl.dot(a, w1)
        v2 = tl.dot(a, w2)
        v3 = tl.dot(a, w3)
        _pool_and_store(v0, v1, v2, v3, p, n, pooled, model, bias_ptr, out_ptr, which_ptr, N, RECORD)


@triton.jit
def _first_conv_weight_grad(
    images_ptr, index_ptr, mate_ptr, share_ptr, g_ptr, which_ptr, part_ptr, bias_ptr, rows, stride, share_stride,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    SIDE: tl.constexpr, MIXED: tl.constexpr, SPLITS: tl.constexpr, KP: tl.constexpr, NB: tl.constexpr,
    BP: tl.constexpr,
):  # fmt: skip
    """Gradients of the shifted weights of the first convolution, from pooled gradients.

    The unpooled gradient (four times larger, three quarters zero) is made in registers and never stored. The sum over
    positions is cut into SPLITS programs whose partial sums, (model, split, 4, N, KP) and for the bias (model, split,
    N), are added by ``_fold`` in a fixed order: no atomics, so repeatable.
    """
    model = tl.program_id(1).to(tl.int64)
    PARTS: tl.constexpr = (N + NB - 1) // NB
    split = tl.program_id(0) // PARTS
    n = (tl.program_id(0) % PARTS) * NB + tl.arange(0, NB)
    k = tl.arange(0, KP)
    pooled = rows * (PH * PW)
    each = tl.cdiv(pooled, SPLITS * BP)
    share = 1.0
    if MIXED:
        share = tl.load(share_ptr + model * share_stride)
    acc0 = tl.zeros((NB, KP), tl.float32)
    acc1 = tl.zeros((NB, KP), tl.float32)
    acc2 = tl.zeros((NB, KP), tl.float32)
    acc3 = tl.zeros((NB, KP), tl.float32)
    bias = tl.zeros((NB,), tl.float32)
    for tile in range(0, each):
        p = (split * each + tile) * BP + tl.arange(0, BP)
        at = (model * pooled + p)[:, None] * N + n[None, :]
        ok = (p < pooled)[:, None] & (n < N)[None, :]
        g = tl.load(g_ptr + at, mask=ok, other=0.0)
        which = tl.load(which_ptr + at, mask=ok, other=4)
        a = _patches(
            images_ptr, index_ptr + model * stride, mate_ptr + model * stride, share, p, pooled, H, W, C, PH, PW,
            SIDE + 1, MIXED, KP,
        )  # fmt: skip
        bias += tl.sum(g.to(tl.float32), axis=0)  # g is already masked by relu
        zero = tl.zeros_like(g)
        acc0 = tl.dot(tl.trans(tl.where(which == 0, g, zero)), a, acc0)
        acc1 = tl.dot(tl.trans(tl.where(which == 1, g, zero)), a, acc1)
        acc2 = tl.dot(tl.trans(tl.where(which == 2, g, zero)), a, acc2)
        acc3 = tl.dot(tl.trans(tl.where(which == 3, g, zero)), a, acc3)
    out = part_ptr + ((model * SPLITS + split) * (4 * N) + n)[:, None] * KP + k[None, :]
    ok = (n < N)[:, None] & (k < KP)[None, :]
    tl.store(out, acc0, mask=ok)
    tl.store(out + N * KP, acc1, mask=ok)
    tl.store(out + 2 * N * KP, acc2, mask=ok)
    tl.store(out + 3 * N * KP, acc3, mask=ok)
    tl.store(bias_ptr + (model * SPLITS + split) * N + n, bias, mask=n < N)


@triton.jit
def _fold(
    part_ptr, bias_part_ptr, dw_ptr, bias_ptr, C: tl.constexpr, N: tl.constexpr, SIDE: tl.constexpr,
    SPLITS: tl.constexpr, KP: tl.constexpr, NB: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    """The gradient of the weights as the sum of those of their shifted copies, over all splits."""
    model = tl.program_id(1).to(tl.int64)
    KTOT: tl.constexpr = SIDE * SIDE * C
    n = tl.program_id(0) * NB + tl.arange(0, NB)
    k = tl.arange(0, KB)
    row = k // (SIDE * C)
    rest = k % (SIDE * C)
    ok = (n < N)[:, None] & (k < KTOT)[None, :]
    total = tl.zeros((NB, KB), tl.float32)
    bias = tl.zeros((NB,), tl.float32)
    for split in range(0, SPLITS):
        base = part_ptr + (model * SPLITS + split) * (4 * N * KP)
        for q in tl.static_range(4):
            at = (row + q // 2) * ((SIDE + 1) * C) + rest + q % 2 * C
            total += tl.load(base + (q * N + n)[:, None] * KP + at[None, :], mask=ok, other=0.0)
        bias += tl.load(bias_part_ptr + (model * SPLITS + split) * N + n, mask=n < N, other=0.0)
    tl.store(dw_ptr + model * (KTOT * N) + k[None, :] * N + n[:, None], total, mask=ok)
    tl.store(bias_ptr + model * N + n, bias, mask=n < N)


@triton.jit
def _conv_pool(
    x_ptr, w_ptr, bias_ptr, out_ptr, which_ptr, rows, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    N: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, SIDE: tl.constexpr, RECORD: tl.constexpr,
    N1: tl.constexpr, N2: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """Convolution, bias, relu and 2 x 2 max pooling of one tile of one model.

    A number of columns that is no power of two is done as N1 + N2 (96 as 64 + 32).
    """
    model = tl.program_id(1).to(tl.int64)
    KTOT: tl.constexpr = SIDE * SIDE * C
    RUN: tl.constexpr = SIDE * C  # contiguous in x and in w
    PARTS: tl.constexpr = (N + N1 + N2 - 1) // (N1 + N2)
    EXACT: tl.constexpr = (KTOT % BK == 0) and (N % (N1 + N2) == 0)
    pooled = rows * (PH * PW)
    p = (tl.program_id(0) // PARTS) * BP + tl.arange(0, BP)
    n1 = (tl.program_id(0) % PARTS) * (N1 + N2) + tl.arange(0, N1)
    pos = tl.minimum(p, pooled - 1)  # clamp, so loads need no mask
    origin = ((pos // (PH * PW)) * (H * W) + ((pos // PW) % PH) * (2 * W) + (pos % PW) * 2) * C
    x_base = x_ptr + model * (H * W * C) * rows
    w_base = w_ptr + model * (KTOT * N)
    u0 = tl.zeros((BP, N1), tl.float32)
    u1 = tl.zeros((BP, N1), tl.float32)
    u2 = tl.zeros((BP, N1), tl.float32)
    u3 = tl.zeros((BP, N1), tl.float32)
    if N2 > 0:
        n2 = (tl.program_id(0) % PARTS) * (N1 + N2) + N1 + tl.arange(0, N2)
        v0 = tl.zeros((BP, N2), tl.float32)
        v1 = tl.zeros((BP, N2), tl.float32)
        v2 = tl.zeros((BP, N2), tl.float32)
        v3 = tl.zeros((BP, N2), tl.float32)
    for k0 in range(0, KTOT, BK):
        k = k0 + tl.arange(0, BK)
        if C % BK == 0:  # all of one kernel row and column
            shift = (k0 // RUN) * (W * C) + k0 % RUN + tl.arange(0, BK)
        else:
            shift = (k // RUN) * (W * C) + k % RUN
        shift = tl.max_contiguous(tl.multiple_of(shift, VEC), VEC)  # the compiler does not see it through the divisions
        at = x_base + (origin[:, None] + shift[None, :])
        if KTOT % BK == 0:
            a0 = tl.load(at)
            a1 = tl.load(at + C)
            a2 = tl.load(at + W * C)
            a3 = tl.load(at + (W + 1) * C)
        else:
            inside = (k < KTOT)[None, :]
            a0 = tl.load(at, mask=inside, other=0.0)
            a1 = tl.load(at + C, mask=inside, other=0.0)
            a2 = tl.load(at + W * C, mask=inside, other=0.0)
            a3 = tl.load(at + (W + 1) * C, mask=inside, other=0.0)
        w_at = w_base + k[:, None] * N
        if EXACT:
            w1 = tl.load(w_at + n1[None, :])
        else:
            w1 = tl.load(w_at + n1[None, :], mask=(k < KTOT)[:, None] & (n1 < N)[None, :], other=0.0)
        u0 = tl.dot(a0, w1, u0)
        u1 = tl.dot(a1, w1, u1)
        u2 = tl.dot(a2, w1, u2)
        u3 = tl.dot(a3, w1, u3)
        if N2 > 0:
            if EXACT:
                w2 = tl.load(w_at + n2[None, :])
            else:
                w2 = tl.load(w_at + n2[None, :], mask=(k < KTOT)[:, None] & (n2 < N)[None, :], other=0.0)
            v0 = tl.dot(a0, w2, v0)
            v1 = tl.dot(a1, w2, v1)
            v2 = tl.dot(a2, w2, v2)
            v3 = tl.dot(a3, w2, v3)
    _pool_and_store(u0, u1, u2, u3, p, n1, pooled, model, bias_ptr, out_ptr, which_ptr, N, RECORD)
    if N2 > 0:
        _pool_and_store(v0, v1, v2, v3, p, n2, pooled, model, bias_ptr, out_ptr, which_ptr, N, RECORD)


@triton.jit
def _unpool(
    g_ptr, which_ptr, dy_ptr, ROWS: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Spread the pooled gradient over the windows; mask it (relu) in place."""
    model = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = i < ROWS * PH * PW * N
    at = model * (ROWS * PH * PW * N) + i
    which = tl.load(which_ptr + at, mask=keep, other=4)
    g = tl.load(g_ptr + at, mask=keep, other=0.0)
    g = tl.where(which < 4, g, 0.0).to(g_ptr.dtype.element_ty)
    tl.store(g_ptr + at, g, mask=keep)  # masked: its sum is the bias grad
    n = i % N
    pos = i // N
    out = ((pos // (PH * PW)) * OH + 2 * ((pos // PW) % PH)) * OW + 2 * (pos % PW)
    base = dy_ptr + model * (ROWS * OH * OW * N)
    for q in tl.static_range(4):
        value = tl.where(which == q, g, 0.0).to(g_ptr.dtype.element_ty)
        tl.store(base + (out + (q // 2) * OW + q % 2) * N + n, value, mask=keep)


@triton.jit
def _conv_weight_grad(
    x_ptr, dy_ptr, dw_ptr, ROWS: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SIDE: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr,
    BLOCK_KK: tl.constexpr, BLOCK_M: tl.constexpr, VEC: tl.constexpr,
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
    kc = tl.max_contiguous(tl.multiple_of(kc, VEC), VEC)
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
        origin = ((pos // (OH * OW)) * (H * W) + ((pos // OW) % OH) * W + pos % OW) * C
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
    N: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, SIDE: tl.constexpr, CB: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """dX = full convolution of dY with the flipped weights, then the relu mask.

    One program owns one image row y of many images: only the kernel rows that can touch y are visited, which saves
    29 % of the products against a padded full convolution (14 x 14 outputs, 5 x 5 kernel); window columns that fall
    outside are masked, and masked lanes cost no memory traffic.
    """
    model = tl.program_id(1).to(tl.int64)
    TILES: tl.constexpr = (ROWS * W + BLOCK_M - 1) // BLOCK_M
    PARTS: tl.constexpr = (C + CB - 1) // CB
    c = (tl.program_id(0) % PARTS) * CB + tl.arange(0, CB)
    y = tl.program_id(0) // (TILES * PARTS)
    m = (tl.program_id(0) // PARTS % TILES) * BLOCK_M + tl.arange(0, BLOCK_M)
    keep = m < ROWS * W
    b = tl.minimum(m // W, ROWS - 1)
    x = m % W
    first = tl.maximum(0, y - (OH - 1))  # first kernel row that touches y
    last = tl.minimum(SIDE - 1, y)
    RUN: tl.constexpr = SIDE * N  # (flipped kernel column, n)
    acc = tl.zeros((BLOCK_M, CB), tl.float32)
    dy_base = dy_ptr + model * (ROWS * OH * OW * N)
    w_base = w_ptr + model * (SIDE * SIDE * C * N)
    origin = (b * (OH * OW) + x - (SIDE - 1)) * N
    total = (last - first + 1) * RUN
    for k0 in range(0, total, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        if N % BLOCK_K == 0:  # all of one kernel row and column
            kh = first + k0 // RUN
            flipped = k0 % RUN // N
            rest = k0 % RUN + tl.arange(0, BLOCK_K)
            n = k0 % N + tl.arange(0, BLOCK_K)
            column = (x - (SIDE - 1) + flipped)[:, None]
            w_ok = (c < C)[:, None]
        else:
            kh = tl.max_constancy(first + k // RUN, 8)
            rest = k % RUN
            flipped = tl.max_constancy(rest // N, 8)  # 0 is the last kernel column
            n = rest % N
            column = x[:, None] - (SIDE - 1) + flipped[None, :]
            w_ok = (c < C)[:, None] & (k < total)[None, :]
        # N is a multiple of 8, which the compiler does not see through the divisions.
        n = tl.max_contiguous(tl.multiple_of(n, 8), 8)
        rest = tl.max_contiguous(tl.multiple_of((y - kh) * (OW * N) + rest, VEC), VEC)
        offset = origin[:, None] + rest[None, :]
        w_off = (kh * SIDE + SIDE - 1 - flipped) * (C * N) + n
        inside = (column >= 0) & (column < OW)
        if N % BLOCK_K != 0:
            inside = inside & (k < total)[None, :]
        a = tl.load(dy_base + offset, mask=inside, other=0.0)
        # n is contiguous in memory: load (c, k) and transpose in shared memory
        wt = tl.load(w_base + c[:, None] * N + w_off[None, :], mask=w_ok, other=0.0)
        acc = tl.dot(a, tl.trans(wt), acc)
    at = (model * (ROWS * H * W) + (b * H + y) * W + x)[:, None] * C + c[None, :]
    ok = keep[:, None] & (c < C)[None, :]
    which = tl.load(which_ptr + at, mask=ok, other=4)
    acc = tl.where(which < 4, acc, 0.0)
    tl.store(dx_ptr + at, acc.to(dx_ptr.dtype.element_ty), mask=ok)


# Launchers: shapes in, one call per operation.

TILES = {
    "first": {"BP": 64, "TILES": 7, "num_warps": 4, "num_stages": 2},
    "first_grad": {"BP": 64, "SPLITS": 4, "num_warps": 8, "num_stages": 2},
    "forward": {"BP": 64, "BK": 32, "VEC": 8, "num_warps": 4, "num_stages": 4},
    "weight": {"BLOCK_KK": 128, "BLOCK_M": 64, "VEC": 8, "num_warps": 4, "num_stages": 4},
    "input": {"BLOCK_M": 128, "BLOCK_K": 32, "VEC": 8, "num_warps": 4, "num_stages": 5},
}


def power(n, least=16):
    """The smallest power of two from ``least`` on that is not below n."""
    return max(least, triton.next_power_of_2(n))


def columns(n):
    """Widths N1 and N2, powers of two or zero, of the parts that n columns are cut into: 96 is 64 + 32."""
    if n > 128:
        return {"N1": 128, "N2": 0} if n % 128 == 0 else {"N1": 64, "N2": 32}
    first = max(16, 1 << (n.bit_length() - 1))
    return {"N1": first, "N2": power(n - first) if n > first else 0}


class Images:
    """A pool of images in bfloat16, with a border of zeros and rows of an even length, as the kernels read them."""

    def __init__(self, pool, side):
        count, self.height, self.width, self.channels = pool.shape
        pad = side // 2
        high, wide = self.height + 2 * pad, self.width + 2 * pad
        self.pixels = torch.zeros(
            count, high + high % 2, wide + wide % 2, self.channels, device=pool.device, dtype=torch.bfloat16
        )
        self.pixels[:, pad : pad + self.height, pad : pad + self.width] = pool

    def shapes(self, side, n):
        """What the kernels of the first convolution are compiled for."""
        high, wide, c = self.pixels.shape[1:]
        sizes = {"H": high, "W": wide, "C": c, "N": n, "PH": self.height // 2, "PW": self.width // 2, "SIDE": side}
        patch = power((side + 1) ** 2 * c)
        return {**sizes, "KP": patch, "NB": min(power(n), 64, 2**13 // patch)}


@dataclass(frozen=True)
class Chosen:
    """Rows of a pool of images, (K, B) or the same (1, B) for all models, and what is mixed into them."""

    images: Images
    index: torch.Tensor
    mate: torch.Tensor | None = None
    share: torch.Tensor | None = None  # (K, 1), of the first

    def arguments(self):
        stride = self.index.stride(0) if len(self.index) > 1 else 0
        if self.mate is None:
            return (self.images.pixels, self.index, self.index, self.index), (self.index.shape[1], stride, 0)
        assert self.mate.stride() == self.index.stride()
        where = self.index.shape[1], stride, self.share.stride(0)
        return (self.images.pixels, self.index, self.mate, self.share), where


def first_conv_pool(chosen, w, bias, out, which, **tiles):
    """Write the relu-pooled convolution of chosen images with w (K, side, side, C, N), padded to their size.

    ``which`` receives the winners of the pooling, unless it is empty.
    """
    k, side, n = len(w), w.shape[1], w.shape[-1]
    inputs, where = chosen.arguments()
    shapes, tiles = chosen.images.shapes(side, n), {**TILES["first"], **tiles}
    blocks = triton.cdiv(where[0] * shapes["PH"] * shapes["PW"], tiles["BP"] * tiles["TILES"])
    _first_conv_pool[(blocks * triton.cdiv(n, shapes["NB"]), k)](
        *inputs, w, bias, out, which, *where, **shapes, MIXED=chosen.mate is not None,
        RECORD=len(which) > 0, **tiles,
    )  # fmt: skip


def first_conv_weight_grad(chosen, g, which, dw, bias, **tiles):
    """Write dw (K, side, side, C, N) and the bias' gradient from the gradient g at the pooled outputs."""
    k, side, n = len(dw), dw.shape[1], dw.shape[-1]
    inputs, where = chosen.arguments()
    shapes, tiles = chosen.images.shapes(side, n), {**TILES["first_grad"], **tiles}
    splits, parts, width = tiles["SPLITS"], triton.cdiv(n, shapes["NB"]), shapes["KP"]
    part = torch.empty(k, splits, 4, n, width, device=g.device)
    bias_part = torch.empty(k, splits, n, device=g.device)
    _first_conv_weight_grad[(splits * parts, k)](
        *inputs, g, which, part, bias_part, *where, **shapes, MIXED=chosen.mate is not None, **tiles
    )
    _fold[(triton.cdiv(n, 16), k)](
        part, bias_part, dw, bias, C=shapes["C"], N=n, SIDE=side, SPLITS=splits, KP=width, NB=16,
        KB=power(side * side * shapes["C"]), num_warps=4,
    )  # fmt: skip


def conv_pool(x, w, bias, out, which, **tiles):
    """Write the relu-pooled 'valid' convolution of x (K, B, H, W, C) with w (K, side, side, C, N)."""
    k, rows, h, wd, c = x.shape
    side, n = w.shape[1], w.shape[-1]
    parts = columns(n)
    wide = {"num_warps": 8} if sum(parts.values()) > 96 else {}  # four accumulators would not fit into the registers
    tiles = {**TILES["forward"], **parts, **wide, **tiles}
    ph, pw = out.shape[2], out.shape[3]
    grid = (triton.cdiv(rows * ph * pw, tiles["BP"]) * triton.cdiv(n, tiles["N1"] + tiles["N2"]), k)
    _conv_pool[grid](
        x, w, bias, out, which, rows, H=h, W=wd, C=c, N=n, PH=ph, PW=pw, SIDE=side,
        RECORD=len(which) > 0, **tiles,
    )  # fmt: skip


def unpool(g, which, dy):
    """Write dy (K, B, OH, OW, N) from pooled g; g is masked by the rectifier."""
    k, rows, ph, pw, n = g.shape
    grid = (triton.cdiv(rows * ph * pw * n, 1024), k)
    _unpool[grid](g, which, dy, ROWS=rows, PH=ph, PW=pw, OH=dy.shape[2], OW=dy.shape[3], N=n, BLOCK=1024, num_warps=4)


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
    tiles = {**TILES["input"], "CB": min(128, power(c)), **tiles}
    grid = (h * triton.cdiv(rows * wd, tiles["BLOCK_M"]) * triton.cdiv(c, tiles["CB"]), k)
    _conv_input_grad[grid](dy, w, which, dx, ROWS=rows, H=h, W=wd, C=c, N=n, OH=oh, OW=ow, SIDE=h - oh + 1, **tiles)
