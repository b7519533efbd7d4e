"""Triton kernels that train K convolutional networks of one shape at once.

Every kernel takes the model as a grid axis, so one launch serves all K models.
Activations are channels-last, ``(K, rows, height, width, channels)``, because
then the ``(kernel column, channel)`` pairs of one window row are one contiguous
run of memory: the convolution can read its windows in wide loads straight from
the activation (an *implicit* matrix product) and no im2col buffer is written.

Shapes are ``constexpr`` (a stack has one shape for its life) so that divisions
by them are cheap and one compiled kernel serves any number of models.

``which`` is the pooling record: 0..3 names the element of the 2 x 2 window that
won, 4 means that the rectifier closed the whole window, so that the backward pass
needs neither the activations before pooling nor a separate rectifier mask.
"""

import torch
import triton
import triton.language as tl

from lowchurn.nets._stacks._stack import BETA1, BETA2, EPSILON


@triton.jit
def _conv_pool_forward(
    x_ptr, w_ptr, bias_ptr, out_ptr, which_ptr, ROWS: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    N: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, SIDE: tl.constexpr, PAD: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr,
):  # fmt: skip
    """Convolution, bias, relu and 2 x 2 max pooling of one tile of one model.

    The tile's rows are ordered (pooled position, element of its window), so the
    four candidates of a pool are four neighbouring rows of one accumulator.
    N = 96 is no power of two: the columns are done as N1 + N2 (64 + 32).
    """
    model = tl.program_id(1).to(tl.int64)
    KTOT: tl.constexpr = SIDE * SIDE * C
    RUN: tl.constexpr = SIDE * C  # contiguous in x and in w
    POOLED: tl.constexpr = ROWS * PH * PW
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    pos = tl.minimum(m // 4, POOLED - 1)  # clamp, so loads need no mask
    top = 2 * ((pos // PW) % PH) + (m % 4) // 2 - PAD
    left = 2 * (pos % PW) + m % 2 - PAD
    origin = (pos // (PH * PW)) * (H * W * C) + (top * W + left) * C
    x_base = x_ptr + model * (ROWS * H * W * C)
    w_base = w_ptr + model * (KTOT * N)
    n1 = tl.arange(0, N1)
    acc1 = tl.zeros((BLOCK_M, N1), tl.float32)
    if N2 > 0:
        n2 = N1 + tl.arange(0, N2)
        acc2 = tl.zeros((BLOCK_M, N2), tl.float32)
    for k0 in range(0, KTOT, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        offset = origin[:, None] + ((k // RUN) * (W * C) + k % RUN)[None, :]
        if PAD > 0:
            y = top[:, None] + (k // RUN)[None, :]
            x = left[:, None] + ((k % RUN) // C)[None, :]
            inside = (y >= 0) & (y < H) & (x >= 0) & (x < W) & (k < KTOT)[None, :]
            a = tl.load(x_base + offset, mask=inside, other=0.0)
        elif KTOT % BLOCK_K == 0:
            a = tl.load(x_base + offset)
        else:
            a = tl.load(x_base + offset, mask=(k < KTOT)[None, :], other=0.0)
        w_at = w_base + k[:, None] * N
        if (KTOT % BLOCK_K == 0) and (N1 <= N):
            w1 = tl.load(w_at + n1[None, :])
        else:
            w1 = tl.load(w_at + n1[None, :], mask=(k < KTOT)[:, None] & (n1 < N)[None, :], other=0.0)
        acc1 = tl.dot(a, w1, acc1)
        if N2 > 0:
            if (KTOT % BLOCK_K == 0) and (N1 + N2 <= N):
                w2 = tl.load(w_at + n2[None, :])
            else:
                w2 = tl.load(w_at + n2[None, :], mask=(k < KTOT)[:, None] & (n2 < N)[None, :], other=0.0)
            acc2 = tl.dot(a, w2, acc2)
    _pool_and_store(acc1, n1, model, bias_ptr, out_ptr, which_ptr, POOLED, N, BLOCK_M, N1)
    if N2 > 0:
        _pool_and_store(acc2, n2, model, bias_ptr, out_ptr, which_ptr, POOLED, N, BLOCK_M, N2)


@triton.jit
def _pool_and_store(
    acc, n, model, bias_ptr, out_ptr, which_ptr, POOLED: tl.constexpr, N: tl.constexpr, BLOCK_M: tl.constexpr,
    NB: tl.constexpr,
):  # fmt: skip
    """Max over groups of four neighbouring rows, then bias and relu, then store."""
    quad = tl.permute(tl.reshape(acc, (BLOCK_M // 4, 2, 2, NB)), (0, 3, 1, 2))
    even, odd = tl.split(quad)  # window column 0, column 1
    v0, v2 = tl.split(even)
    v1, v3 = tl.split(odd)
    best = v0
    who = tl.zeros((BLOCK_M // 4, NB), tl.int32)
    who = tl.where(v1 > best, 1, who)  # strict: the first winner keeps
    best = tl.maximum(best, v1)
    who = tl.where(v2 > best, 2, who)
    best = tl.maximum(best, v2)
    who = tl.where(v3 > best, 3, who)
    best = tl.maximum(best, v3)
    bias = tl.load(bias_ptr + model * N + n, mask=n < N, other=0.0)
    best = best + bias[None, :].to(tl.float32)  # one bias for all four: add last
    who = tl.where(best > 0, who, 4)
    best = tl.maximum(best, 0.0)
    p = tl.program_id(0) * (BLOCK_M // 4) + tl.arange(0, BLOCK_M // 4)
    at = model * (POOLED * N) + p[:, None] * N + n[None, :]
    keep = (p < POOLED)[:, None] & (n < N)[None, :]
    tl.store(out_ptr + at, best.to(out_ptr.dtype.element_ty), mask=keep)
    tl.store(which_ptr + at, who.to(tl.uint8), mask=keep)


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
    OH: tl.constexpr, OW: tl.constexpr, SIDE: tl.constexpr, BLOCK_KK: tl.constexpr, BLOCK_M: tl.constexpr,
    N1: tl.constexpr, N2: tl.constexpr,
):  # fmt: skip
    """dW[kk, n] = sum over output positions of window[kk] * dY[n] ('valid' only)."""
    model = tl.program_id(1).to(tl.int64)
    KTOT: tl.constexpr = SIDE * SIDE * C
    RUN: tl.constexpr = SIDE * C
    POSITIONS: tl.constexpr = ROWS * OH * OW
    kk = tl.program_id(0) * BLOCK_KK + tl.arange(0, BLOCK_KK)
    kc = tl.minimum(kk // RUN, SIDE - 1) * (W * C) + kk % RUN  # clamp, no mask
    x_base = x_ptr + model * (ROWS * H * W * C)
    dy_base = dy_ptr + model * (POSITIONS * N)
    n1 = tl.arange(0, N1)
    acc1 = tl.zeros((BLOCK_KK, N1), tl.float32)
    if N2 > 0:
        n2 = N1 + tl.arange(0, N2)
        acc2 = tl.zeros((BLOCK_KK, N2), tl.float32)
    for m0 in range(0, POSITIONS, BLOCK_M):
        m = m0 + tl.arange(0, BLOCK_M)
        pos = tl.minimum(m, POSITIONS - 1)  # dY is masked to zero beyond
        origin = ((pos // (OH * OW)) * (H * W) + ((pos // OW) % OH) * W + pos % OW) * C
        a = tl.load(x_base + origin[:, None] + kc[None, :])
        dy_at = dy_base + m[:, None] * N
        if (POSITIONS % BLOCK_M == 0) and (N1 <= N):
            d1 = tl.load(dy_at + n1[None, :])
        else:
            d1 = tl.load(dy_at + n1[None, :], mask=(m < POSITIONS)[:, None] & (n1 < N)[None, :], other=0.0)
        at = tl.trans(a)
        acc1 = tl.dot(at, d1, acc1)
        if N2 > 0:
            if (POSITIONS % BLOCK_M == 0) and (N1 + N2 <= N):
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
    N: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, SIDE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """dX = full convolution of dY with the flipped weights, then the relu mask.

    One program owns one image row y of many images: only the kernel rows that
    can touch y are visited, which saves 29 % of the products against a padded
    full convolution (14 x 14 outputs, 5 x 5 kernel); window columns that fall
    outside are masked, and masked lanes cost no memory traffic.
    """
    model = tl.program_id(1).to(tl.int64)
    TILES: tl.constexpr = (ROWS * W + BLOCK_M - 1) // BLOCK_M
    y = tl.program_id(0) // TILES
    m = (tl.program_id(0) % TILES) * BLOCK_M + tl.arange(0, BLOCK_M)
    keep = m < ROWS * W
    b = tl.minimum(m // W, ROWS - 1)
    x = m % W
    first = tl.maximum(0, y - (OH - 1))  # first kernel row that touches y
    last = tl.minimum(SIDE - 1, y)
    RUN: tl.constexpr = SIDE * N  # (flipped kernel column, n)
    c = tl.arange(0, CB)
    acc = tl.zeros((BLOCK_M, CB), tl.float32)
    dy_base = dy_ptr + model * (ROWS * OH * OW * N)
    w_base = w_ptr + model * (SIDE * SIDE * C * N)
    origin = (b * (OH * OW) + x - (SIDE - 1)) * N
    total = (last - first + 1) * RUN
    for k0 in range(0, total, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        # N is a multiple of 8; the compiler does not see through the divisions
        # by 480 and 96 when BLOCK_K is 64 and would load two bytes at a time
        kh = tl.max_constancy(first + k // RUN, 8)
        rest = tl.max_contiguous(tl.multiple_of(k % RUN, 8), 8)
        flipped = tl.max_constancy(rest // N, 8)  # 0 is the last kernel column
        n = tl.max_contiguous(tl.multiple_of(rest % N, 8), 8)
        column = x[:, None] - (SIDE - 1) + flipped[None, :]
        inside = (column >= 0) & (column < OW) & (k < total)[None, :]
        offset = origin[:, None] + ((y - kh) * (OW * N) + rest)[None, :]
        a = tl.load(dy_base + offset, mask=inside, other=0.0)
        w_off = (kh * SIDE + SIDE - 1 - flipped) * (C * N) + n
        # n is contiguous in memory: load (c, k) and transpose in shared memory
        wt = tl.load(w_base + c[:, None] * N + w_off[None, :], mask=(c < C)[:, None] & (k < total)[None, :], other=0.0)
        acc = tl.dot(a, tl.trans(wt), acc)
    at = (model * (ROWS * H * W) + (b * H + y) * W + x)[:, None] * C + c[None, :]
    ok = keep[:, None] & (c < C)[None, :]
    which = tl.load(which_ptr + at, mask=ok, other=4)
    acc = tl.where(which < 4, acc, 0.0)
    tl.store(dx_ptr + at, acc.to(dx_ptr.dtype.element_ty), mask=ok)


@triton.jit
def _first_conv_weight_grad(
    x_ptr, g_ptr, which_ptr, part_ptr, ROWS: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    N: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, SIDE: tl.constexpr, PAD: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_P: tl.constexpr, KB: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """Weight and bias gradient of the first convolution, from pooled gradients.

    The unpooled gradient (four times larger, three quarters zero) is made in
    registers and never stored. The sum over positions is cut into SPLITS
    programs whose partial sums, (model, split, KTOT + 1, N) with the bias as the
    last row, are added by the caller in a fixed order: no atomics, so repeatable.
    """
    model = tl.program_id(1).to(tl.int64)
    split = tl.program_id(0)
    KTOT: tl.constexpr = SIDE * SIDE * C
    RUN: tl.constexpr = SIDE * C
    POOLED: tl.constexpr = ROWS * PH * PW
    EACH: tl.constexpr = (POOLED + SPLITS * BLOCK_P - 1) // (SPLITS * BLOCK_P)
    k = tl.arange(0, KB)
    n = tl.arange(0, NB)
    x_base = x_ptr + model * (ROWS * H * W * C)
    g_base = model * (POOLED * N)
    acc = tl.zeros((NB, KB), tl.float32)  # transposed: NB >= 64 rows feed
    bias = tl.zeros((NB,), tl.float32)  # the wide matrix instruction
    for step in range(0, EACH):
        p = (split * EACH + step) * BLOCK_P + tl.arange(0, BLOCK_P)
        at = g_base + p[:, None] * N + n[None, :]
        ok = (p < POOLED)[:, None] & (n < N)[None, :]
        g = tl.load(g_ptr + at, mask=ok, other=0.0)
        which = tl.load(which_ptr + at, mask=ok, other=4)
        bias += tl.sum(g.to(tl.float32), axis=0)  # g is already masked by relu
        pos = tl.minimum(p, POOLED - 1)
        for q in tl.static_range(4):
            top = 2 * ((pos // PW) % PH) + q // 2 - PAD
            left = 2 * (pos % PW) + q % 2 - PAD
            row = top[:, None] + (k // RUN)[None, :]
            col = left[:, None] + ((k % RUN) // C)[None, :]
            inside = (row >= 0) & (row < H) & (col >= 0) & (col < W) & (k < KTOT)[None, :]
            offset = ((pos // (PH * PW)) * (H * W * C) + (top * W + left) * C)[:, None] + (
                (k // RUN) * (W * C) + k % RUN
            )[None, :]
            window = tl.load(x_base + offset, mask=inside, other=0.0)
            gq = tl.where(which == q, g, 0.0).to(g_ptr.dtype.element_ty)
            acc = tl.dot(tl.trans(gq), window, acc)
    out = part_ptr + (model * SPLITS + split) * ((KTOT + 1) * N)
    tl.store(out + k[None, :] * N + n[:, None], acc, mask=(k < KTOT)[None, :] & (n < N)[:, None])
    tl.store(out + KTOT * N + n, bias, mask=n < N)


@triton.jit
def _keras_adam(w, m, v, g, rate, B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr):
    m = m + (g - m) * (1 - B1)
    v = v + (g * g - v) * (1 - B2)
    w = w - rate * m / (tl.sqrt(v) + EPS)
    return w, m, v


@triton.jit
def _adam(
    w_ptr, m_ptr, v_ptr, g_ptr, copy_ptr, rate_ptr, size, B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Keras's Adam over a flat buffer; also writes the low-precision weights."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    rate = tl.load(rate_ptr)
    g = tl.load(g_ptr + i, mask=keep, other=0.0).to(tl.float32)
    w, m, v = _keras_adam(
        tl.load(w_ptr + i, mask=keep, other=0.0), tl.load(m_ptr + i, mask=keep, other=0.0),
        tl.load(v_ptr + i, mask=keep, other=0.0), g, rate, B1, B2, EPS,
    )  # fmt: skip
    tl.store(w_ptr + i, w, mask=keep)
    tl.store(m_ptr + i, m, mask=keep)
    tl.store(v_ptr + i, v, mask=keep)
    tl.store(copy_ptr + i, w.to(copy_ptr.dtype.element_ty), mask=keep)


@triton.jit
def _dense_grad_adam(
    x_ptr, d_ptr, w_ptr, m_ptr, v_ptr, copy_ptr, rate_ptr, ROWS: tl.constexpr, N_IN: tl.constexpr, N_OUT: tl.constexpr,
    ROW_BLOCK: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr,
    EPS: tl.constexpr,
):  # fmt: skip
    """Weight gradient x^T d of a dense layer and its Adam update, in one pass.

    With 32 rows the gradient is cheaper to compute than to store: keeping it in
    registers saves writing and reading it, 8 of 34 bytes per parameter.
    """
    model = tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    j = tl.program_id(0) * BLOCK_J + tl.arange(0, BLOCK_J)
    r = tl.arange(0, ROW_BLOCK)
    i_ok = i < N_IN
    j_ok = j < N_OUT
    x = tl.load(
        x_ptr + model * (ROWS * N_IN) + r[:, None] * N_IN + i[None, :],
        mask=(r < ROWS)[:, None] & i_ok[None, :],
        other=0.0,
    )
    d = tl.load(
        d_ptr + model * (ROWS * N_OUT) + r[:, None] * N_OUT + j[None, :],
        mask=(r < ROWS)[:, None] & j_ok[None, :],
        other=0.0,
    )
    at = model * (N_IN * N_OUT) + i[:, None] * N_OUT + j[None, :]
    keep = i_ok[:, None] & j_ok[None, :]
    w = tl.load(w_ptr + at, mask=keep, other=0.0)
    m = tl.load(m_ptr + at, mask=keep, other=0.0)
    v = tl.load(v_ptr + at, mask=keep, other=0.0)
    g = tl.dot(tl.trans(x), d)
    w, m, v = _keras_adam(w, m, v, g, tl.load(rate_ptr), B1, B2, EPS)
    tl.store(w_ptr + at, w, mask=keep)
    tl.store(m_ptr + at, m, mask=keep)
    tl.store(v_ptr + at, v, mask=keep)
    tl.store(copy_ptr + at, w.to(copy_ptr.dtype.element_ty), mask=keep)


# Launchers: shapes in, one call per operation.

TILES = {
    "forward1": {"BLOCK_M": 128, "BLOCK_K": 32, "num_warps": 4, "num_stages": 1},
    "forward2": {"BLOCK_M": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 4},
    "weight2": {"BLOCK_KK": 128, "BLOCK_M": 64, "num_warps": 4, "num_stages": 4},
    "input2": {"BLOCK_M": 128, "BLOCK_K": 32, "num_warps": 4, "num_stages": 5},
    "weight1": {"BLOCK_P": 64, "SPLITS": 7, "num_warps": 4, "num_stages": 2},
    "dense_adam": {"BLOCK_I": 64, "BLOCK_J": 64, "num_warps": 4, "num_stages": 1},
}  # the fastest of a few on an H200
KERAS_ADAM = {"B1": BETA1, "B2": BETA2, "EPS": EPSILON}


def _pow2(n, least=16):
    return max(least, triton.next_power_of_2(n))


def _columns(n):
    """Cut n columns into two power-of-two parts: 96 -> 64 + 32, 64 -> 64 + 0."""
    first = max(16, 1 << (n.bit_length() - 1))
    return first, (_pow2(n - first) if n > first else 0)


def conv_pool_forward(x, w, bias, out, which, pad, kernel):
    """Write relu-pooled convolution of x (K,B,H,W,C) with w (K,5*5*C,N)."""
    k, rows, h, wd, c = x.shape
    n = w.shape[-1]
    side = round((w.shape[1] // c) ** 0.5)
    ph, pw = out.shape[2], out.shape[3]
    n1, n2 = _columns(n)
    cfg = TILES[kernel]
    grid = (triton.cdiv(rows * ph * pw * 4, cfg["BLOCK_M"]), k)
    _conv_pool_forward[grid](
        x, w, bias, out, which, ROWS=rows, H=h, W=wd, C=c, N=n, PH=ph, PW=pw, SIDE=side, PAD=pad, N1=n1, N2=n2, **cfg,
    )  # fmt: skip


def unpool(g, which, dy):
    """Write dy (K,B,OH,OW,N) from pooled g; g is masked by the rectifier."""
    k, rows, ph, pw, n = g.shape
    grid = (triton.cdiv(rows * ph * pw * n, 1024), k)
    _unpool[grid](g, which, dy, ROWS=rows, PH=ph, PW=pw, OH=dy.shape[2], OW=dy.shape[3], N=n, BLOCK=1024, num_warps=4)


def conv_weight_grad(x, dy, dw):
    """Write dw (K,5*5*C,N) of a 'valid' convolution."""
    k, rows, h, wd, c = x.shape
    oh, ow, n = dy.shape[2:]
    n1, n2 = _columns(n)
    cfg = TILES["weight2"]
    grid = (triton.cdiv(dw.shape[1], cfg["BLOCK_KK"]), k)
    _conv_weight_grad[grid](
        x, dy, dw, ROWS=rows, H=h, W=wd, C=c, N=n, OH=oh, OW=ow, SIDE=h - oh + 1, N1=n1, N2=n2, **cfg,
    )  # fmt: skip


def conv_input_grad(dy, w, which, dx):
    """Write dx (K,B,H,W,C) of a 'valid' convolution, masked by ``which < 4``."""
    k, rows, h, wd, c = dx.shape
    oh, ow, n = dy.shape[2:]
    cfg = TILES["input2"]
    grid = (h * triton.cdiv(rows * wd, cfg["BLOCK_M"]), k)
    _conv_input_grad[grid](
        dy, w, which, dx, ROWS=rows, H=h, W=wd, C=c, N=n, OH=oh, OW=ow, SIDE=h - oh + 1, CB=_pow2(c), **cfg,
    )  # fmt: skip


def first_conv_weight_grad(x, g, which, pad, side):
    """Partial sums (K, SPLITS, side*side*C + 1, N); the last row is the bias."""
    k, rows, h, wd, c = x.shape
    ph, pw, n = g.shape[2:]
    cfg = TILES["weight1"]
    if c > 1:  # a wider window needs more registers
        cfg = {**cfg, "BLOCK_P": 32, "SPLITS": 14}
    part = torch.empty(k, cfg["SPLITS"], side * side * c + 1, n, device=x.device)
    _first_conv_weight_grad[(cfg["SPLITS"], k)](
        x, g, which, part, ROWS=rows, H=h, W=wd, C=c, N=n, PH=ph, PW=pw, SIDE=side, PAD=pad, KB=_pow2(side * side * c),
        NB=_pow2(n), **cfg,
    )  # fmt: skip
    return part


def adam(w, m, v, g, rate, copy):
    """Keras's Adam on flat float32 buffers; ``copy`` receives the rounded weights."""
    size = w.numel()
    _adam[(triton.cdiv(size, 1024),)](w, m, v, g, copy, rate, size, **KERAS_ADAM, BLOCK=1024, num_warps=4)


def dense_grad_adam(x, d, w, m, v, rate, copy):
    """Fused weight gradient (x^T d) and Adam of w (K, n_in, n_out); ``copy`` receives the rounded weights."""
    k, rows, n_in = x.shape
    n_out = d.shape[-1]
    cfg = TILES["dense_adam"]
    grid = (triton.cdiv(n_out, cfg["BLOCK_J"]), triton.cdiv(n_in, cfg["BLOCK_I"]), k)
    _dense_grad_adam[grid](
        x, d, w, m, v, copy, rate, ROWS=rows, N_IN=n_in, N_OUT=n_out, ROW_BLOCK=_pow2(rows), **KERAS_ADAM, **cfg
    )  # fmt: skip
