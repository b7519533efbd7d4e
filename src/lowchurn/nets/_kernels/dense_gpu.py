"""Triton kernels for the dense layers of K networks of one shape at once, and for Adam.

With 32 rows a step, a large dense layer is bound by the memory of its weights and moments: these kernels read and write
each of them once. Its weights are kept as two halves of 16 bits: the upper one is the weight in bfloat16, which the products
read, and both together are the weight in float32, exactly. Halves and moments lie in blocks, (K, blocks of inputs, blocks of
outputs, BI, BJ), with zeros behind the last input and output: what a program reads and writes at a time is one run of memory.
"""

import functools

import torch
import triton
import triton.language as tl

from lowchurn.nets._stacks._stack import BETA1, BETA2, EPSILON

KERAS_ADAM = {"B1": BETA1, "B2": BETA2, "EPS": EPSILON}


@triton.jit
def _in_blocks(i, j, N_OUT: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr):
    """Where the weights of inputs i and outputs j lie."""
    ACROSS: tl.constexpr = (N_OUT + BJ - 1) // BJ
    down = i // BI * (ACROSS * BI * BJ) + i % BI * BJ
    return down[:, None] + (j // BJ * (BI * BJ) + j % BJ)[None, :]


@triton.jit
def _block_numbers(N_IN: tl.constexpr, N_OUT: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr):
    """The numbers of one model, with the zeros."""
    return (N_IN + BI - 1) // BI * BI * ((N_OUT + BJ - 1) // BJ * BJ)


@triton.jit
def _dense_relu(
    x_ptr, w_ptr, bias_ptr, out_ptr, rows, N_IN: tl.constexpr, N_OUT: tl.constexpr, TI: tl.constexpr, TJ: tl.constexpr,
    BR: tl.constexpr, BJ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """relu(x W + bias) of one tile of one model."""
    model = tl.program_id(1).to(tl.int64)
    PARTS: tl.constexpr = (N_OUT + BJ - 1) // BJ
    j = (tl.program_id(0) % PARTS) * BJ + tl.arange(0, BJ)
    r = (tl.program_id(0) // PARTS) * BR + tl.arange(0, BR)
    x_base = x_ptr + model * N_IN * rows
    w_base = w_ptr + model * _block_numbers(N_IN, N_OUT, TI, TJ)
    acc = tl.zeros((BR, BJ), tl.float32)
    for k0 in range(0, N_IN, BK):
        k = k0 + tl.arange(0, BK)
        x = tl.load(x_base + r[:, None] * N_IN + k[None, :], mask=(r < rows)[:, None] & (k < N_IN)[None, :], other=0.0)
        w_ok = (k < N_IN)[:, None] & (j < N_OUT)[None, :]
        w = tl.load(w_base + _in_blocks(k, j, N_OUT, TI, TJ), mask=w_ok, other=0.0)
        acc = tl.dot(x, w.to(x.dtype), acc)
    bias = tl.load(bias_ptr + model * N_OUT + j, mask=j < N_OUT, other=0.0).to(tl.float32)
    out = tl.maximum(acc + bias[None, :], 0.0).to(out_ptr.dtype.element_ty)
    at = model * N_OUT * rows + r[:, None] * N_OUT + j[None, :]
    tl.store(out_ptr + at, out, mask=(r < rows)[:, None] & (j < N_OUT)[None, :])


@triton.jit
def _head(
    x_ptr, w2_ptr, b2_ptr, w3_ptr, b3_ptr, hidden_ptr, logits_ptr, rows, N_IN: tl.constexpr, N_HIDDEN: tl.constexpr,
    M: tl.constexpr, TI: tl.constexpr, TJ: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """Two dense layers with a relu between them: the first in bfloat16, the second in float32."""
    model = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    h = tl.arange(0, BH)
    acc = tl.zeros((BR, BH), tl.float32)
    for k0 in range(0, N_IN, BK):
        k = k0 + tl.arange(0, BK)
        x_at = model * N_IN * rows + r[:, None] * N_IN + k[None, :]
        x = tl.load(x_ptr + x_at, mask=(r < rows)[:, None] & (k < N_IN)[None, :], other=0.0)
        w_at = model * _block_numbers(N_IN, N_HIDDEN, TI, TJ) + _in_blocks(k, h, N_HIDDEN, TI, TJ)
        w_ok = (k < N_IN)[:, None] & (h < (N_HIDDEN + TJ - 1) // TJ * TJ)[None, :]  # with the zeros, for wide reads
        w = tl.load(w2_ptr + w_at, mask=w_ok, other=0.0)
        acc = tl.dot(x, w.to(x.dtype), acc)
    bias = tl.load(b2_ptr + model * N_HIDDEN + h, mask=h < N_HIDDEN, other=0.0).to(tl.float32)
    hidden = tl.maximum(acc + bias[None, :], 0.0).to(hidden_ptr.dtype.element_ty)
    at = model * N_HIDDEN * rows + r[:, None] * N_HIDDEN + h[None, :]
    tl.store(hidden_ptr + at, hidden, mask=(r < rows)[:, None] & (h < N_HIDDEN)[None, :])
    exact = hidden.to(tl.float32)
    for c0 in range(0, M, BM):
        c = c0 + tl.arange(0, BM)
        w3_at = model * (N_HIDDEN * M) + h[:, None] * M + c[None, :]
        w3 = tl.load(w3_ptr + w3_at, mask=(h < N_HIDDEN)[:, None] & (c < M)[None, :], other=0.0)
        bias3 = tl.load(b3_ptr + model * M + c, mask=c < M, other=0.0)
        logits = tl.dot(exact, w3, input_precision="ieee") + bias3[None, :]
        z_at = model * M * rows + r[:, None] * M + c[None, :]
        tl.store(logits_ptr + z_at, logits, mask=(r < rows)[:, None] & (c < M)[None, :])


@triton.jit
def _head_backward(
    slope_ptr, hidden_ptr, w_ptr, dw_ptr, db_ptr, back_ptr, sums_ptr, pushed, ROWS: tl.constexpr,
    N_HIDDEN: tl.constexpr, M: tl.constexpr, R: tl.constexpr, BH: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Gradients of the second layer of ``_head`` from the one at the logits of the first ``pushed`` rows.

    Also the gradient at its inputs, before the relu that made them, and its sum over rows.
    """
    model = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, R)
    h = tl.arange(0, BH)
    at = model * (ROWS * N_HIDDEN) + r[:, None] * N_HIDDEN + h[None, :]
    ok = (r < ROWS)[:, None] & (h < N_HIDDEN)[None, :]
    hidden = tl.load(hidden_ptr + at, mask=ok, other=0.0)
    total = tl.zeros((R, BH), tl.float32)
    for c0 in range(0, M, BM):
        c = c0 + tl.arange(0, BM)
        s_at = model * M * pushed + r[:, None] * M + c[None, :]
        slope = tl.load(slope_ptr + s_at, mask=(r < pushed)[:, None] & (c < M)[None, :], other=0.0)
        w_at = model * (N_HIDDEN * M) + h[:, None] * M + c[None, :]
        w_ok = (h < N_HIDDEN)[:, None] & (c < M)[None, :]
        w = tl.load(w_ptr + w_at, mask=w_ok, other=0.0)
        total = tl.dot(slope, tl.trans(w), total, input_precision="ieee")
        dw = tl.dot(tl.trans(hidden.to(tl.float32)), slope, input_precision="ieee")
        tl.store(dw_ptr + w_at, dw, mask=w_ok)
        tl.store(db_ptr + model * M + c, tl.sum(slope, axis=0), mask=c < M)
    back = tl.where(hidden > 0, total, 0.0).to(back_ptr.dtype.element_ty)
    tl.store(back_ptr + at, back, mask=ok)
    tl.store(sums_ptr + model * N_HIDDEN + h, tl.sum(back.to(tl.float32), axis=0), mask=h < N_HIDDEN)


@triton.jit
def _keras_adam(w, m, v, g, rate, B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr):
    m = m + (g - m) * (1 - B1)
    v = v + (g * g - v) * (1 - B2)
    w = w - rate * m / (tl.sqrt(v) + EPS)
    return w, m, v


@triton.jit
def _column_sums(x_ptr, out_ptr, ROWS: tl.constexpr, N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr):
    """Sums over the rows of some columns of one model."""
    model = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    for first in range(0, ROWS, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        keep = (t < ROWS)[:, None] & (n < N)[None, :]
        total += tl.load(x_ptr + model * ROWS * N + t[:, None] * N + n[None, :], mask=keep, other=0.0).to(tl.float32)
    tl.store(out_ptr + model * N + n, tl.sum(total, axis=0), mask=n < N)


@triton.jit
def _adam(
    w_ptr, m_ptr, v_ptr, g_ptr, copy_ptr, rate_ptr, size, B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Keras's Adam over a flat buffer; also writes the low-precision weights."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    g = tl.load(g_ptr + i, mask=keep, other=0.0).to(tl.float32)
    w, m, v = _keras_adam(
        tl.load(w_ptr + i, mask=keep, other=0.0), tl.load(m_ptr + i, mask=keep, other=0.0),
        tl.load(v_ptr + i, mask=keep, other=0.0), g, tl.load(rate_ptr), B1, B2, EPS,
    )  # fmt: skip
    tl.store(w_ptr + i, w, mask=keep)
    tl.store(m_ptr + i, m, mask=keep)
    tl.store(v_ptr + i, v, mask=keep)
    tl.store(copy_ptr + i, w.to(copy_ptr.dtype.element_ty), mask=keep)


@triton.jit
def _join(high, low):
    bits = (high.to(tl.int16, bitcast=True).to(tl.int32) << 16) + low.to(tl.int32)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _split(w):
    bits = w.to(tl.int32, bitcast=True)
    upper = tl.where(w == w, (bits + 0x8000) >> 16, 0x7FC0)
    return upper.to(tl.int16).to(tl.bfloat16, bitcast=True), bits.to(tl.int16)


@triton.jit
def _dense_backward(
    x_ptr, d_ptr, high_ptr, low_ptr, m_ptr, v_ptr, which_ptr, back_ptr, sums_ptr, rate_ptr, ROWS: tl.constexpr,
    N_IN: tl.constexpr, N_OUT: tl.constexpr, PW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, N: tl.constexpr,
    R: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr,
    AHEAD: tl.constexpr, POOLED: tl.constexpr,
):  # fmt: skip
    """Weight gradient x^T d of a dense layer and its Adam update, and the gradient d W^T before its inputs' relu.

    With 32 rows the weight gradient is cheaper to compute than to store: it stays in registers. The gradient before the
    relu is stored, and its sums over rows. POOLED inputs are those of N channels at pooled positions, PW in a line: then
    the gradient is spread over OH x OW positions before the pooling, by its record.
    """
    model = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BI + tl.arange(0, BI)
    r = tl.arange(0, R)
    i_ok = i < N_IN
    r_ok = r < ROWS
    x_at = model * (ROWS * N_IN) + r[:, None] * N_IN + i[None, :]
    xt = tl.trans(tl.load(x_ptr + x_at, mask=r_ok[:, None] & i_ok[None, :], other=0.0))
    rate = tl.load(rate_ptr)
    back = tl.zeros((BI, R), tl.float32)
    ACROSS: tl.constexpr = (N_OUT + BJ - 1) // BJ
    first = model * _block_numbers(N_IN, N_OUT, BI, BJ) + tl.program_id(0) * (ACROSS * BI * BJ)
    inside = tl.arange(0, BI)[:, None] * BJ + tl.arange(0, BJ)[None, :]
    for block in tl.range(0, ACROSS, num_stages=AHEAD):
        j = block * BJ + tl.arange(0, BJ)
        d_at = d_ptr + model * (ROWS * N_OUT) + r[:, None] * N_OUT + j[None, :]
        at = first + block * (BI * BJ) + inside
        d = tl.load(d_at, mask=r_ok[:, None] & (j < N_OUT)[None, :], other=0.0)
        high = tl.load(high_ptr + at)
        low = tl.load(low_ptr + at)
        m = tl.load(m_ptr + at).to(tl.float32)
        v = tl.load(v_ptr + at)
        g = tl.dot(xt, d)
        back = tl.dot(high.to(d.dtype), tl.trans(d), back)
        w, m, v = _keras_adam(_join(high, low), m, v, g, rate, B1, B2, EPS)
        new_high, new_low = _split(w)
        tl.store(high_ptr + at, new_high)  # zeros behind the last input and output stay zeros
        tl.store(low_ptr + at, new_low)
        tl.store(m_ptr + at, m.to(m_ptr.dtype.element_ty))
        tl.store(v_ptr + at, v)
    back_at = model * (ROWS * N_IN) + r[None, :] * N_IN + i[:, None]
    back_ok = i_ok[:, None] & r_ok[None, :]
    if POOLED:
        which = tl.load(which_ptr + back_at, mask=back_ok, other=4)
        back = tl.where(which < 4, back, 0.0).to(back_ptr.dtype.element_ty)
        position = i // N
        corner = ((position // PW) * (2 * OW) + 2 * (position % PW)) * N + i % N
        spread_at = model * (ROWS * OH * OW * N) + r[None, :] * (OH * OW * N) + corner[:, None]
        for q in tl.static_range(4):
            value = tl.where(which == q, back, 0.0).to(back_ptr.dtype.element_ty)
            tl.store(back_ptr + spread_at + (q // 2 * OW + q % 2) * N, value, mask=back_ok)
    else:
        back = tl.where(xt > 0, back, 0.0).to(back_ptr.dtype.element_ty)
        tl.store(back_ptr + back_at, back, mask=back_ok)
    tl.store(sums_ptr + model * N_IN + i, tl.sum(back.to(tl.float32), axis=1), mask=i_ok)


def power(n, least=16):
    """The smallest power of two from ``least`` on that is not below n."""
    return max(least, triton.next_power_of_2(n))


# The fastest of some on an H200: of dense_relu for the rows of a step and for more, and of dense_backward.
STEP = {"BJ": 128, "BK": 128, "num_warps": 8, "num_stages": 3}
MANY = {"BJ": 64, "BK": 64, "num_warps": 4, "num_stages": 4}
TILES = {"AHEAD": 3, "num_warps": 4}
CROWDED = {"AHEAD": 2}  # instead, for more rows than 32, which take the registers, or where shared memory is small
AMPLE = 120 << 10  # bytes of shared memory of a block, of which those of three tiles take 108 KiB


def dense_relu(x, w, bias, **tiles):
    """relu(x w + bias) of x (K, B, n_in) and w in blocks."""
    k, rows, n_in = x.shape
    n_out = bias.shape[-1]
    tiles = {"BR": min(128, power(rows)), **(STEP if rows <= 32 else MANY), **tiles}
    out = x.new_empty(k, rows, n_out)
    grid = (triton.cdiv(n_out, tiles["BJ"]) * triton.cdiv(rows, tiles["BR"]), k)
    _dense_relu[grid](x, w, bias, out, rows, N_IN=n_in, N_OUT=n_out, TI=w.shape[3], TJ=w.shape[4], **tiles)
    return out


def head(x, w2, b2, w3, b3):
    """relu(x w2 + b2) in bfloat16 and the logits behind it, in float32; w2 is in blocks."""
    k, rows, n_in = x.shape
    n_hidden, m = w3.shape[1:]
    hidden, logits = x.new_empty(k, rows, n_hidden), w3.new_empty(k, rows, m)
    _head[(triton.cdiv(rows, 32), k)](
        x, w2, b2, w3, b3, hidden, logits, rows, N_IN=n_in, N_HIDDEN=n_hidden, M=m, TI=w2.shape[3], TJ=w2.shape[4],
        BR=32, BH=power(n_hidden), BK=64, BM=16, num_warps=4, num_stages=3,
    )  # fmt: skip
    return hidden, logits


def head_backward(slope, hidden, w, dw, db, sums):
    """Write the gradients of the second layer of :func:`head`; return the gradient before the relu of its inputs.

    ``sums`` receives the sums of that over rows.
    """
    k, rows, n_hidden = hidden.shape
    m, back = w.shape[-1], torch.empty_like(hidden)
    _head_backward[(k,)](
        slope, hidden, w, dw, db, back, sums, slope.shape[1], ROWS=rows, N_HIDDEN=n_hidden, M=m, R=power(rows),
        BH=power(n_hidden), BM=16, num_warps=max(4, power(rows) // 8),  # more rows spill otherwise
    )  # fmt: skip
    return back


def column_sums(x, out):
    """Write the sums over the rows of x (K, rows, n); the order depends on the shape of one model alone."""
    k, rows, n = x.shape
    block = min(128, power(n))
    _column_sums[(triton.cdiv(n, block), k)](x, out, ROWS=rows, N=n, BLOCK_T=4096 // block, BLOCK_N=block, num_warps=4)


def adam(w, m, v, g, *, rate, copy):
    """Keras's Adam on flat float32 buffers; ``copy`` receives the rounded weights."""
    size = w.numel()
    _adam[(triton.cdiv(size, 1024),)](w, m, v, g, copy, rate, size, **KERAS_ADAM, BLOCK=1024, num_warps=4)


@functools.cache
def _ample(device):
    """Whether a block has shared memory for three tiles ahead, as on the GPUs of data centres."""
    return device.type != "cuda" or torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= AMPLE


def dense_backward(x, d, high, low, m, v, rate, back, sums, which=None, **tiles):
    """One Adam step of a dense layer, in blocks, from its inputs x (K, B, n_in) and the gradient d at its outputs.

    ``back`` receives the gradient before the relu of the inputs, which is taken with the weights before the step, and
    ``sums`` (K, n_in) its sums over rows. Where the record ``which`` (K, B, PH, PW, N) of a pooling is there, the inputs
    are its outputs, and ``back`` (K, B, OH, OW, N) is before the pooling; beyond the windows it stays as it is.
    """
    k, rows, n_in = x.shape
    n_out, names = d.shape[-1], ("PW", "OH", "OW", "N")
    where = (1, 1, 1, 1) if which is None else (which.shape[3], *back.shape[2:])
    tiles = {**TILES, **(CROWDED if rows > 32 or not _ample(x.device) else {}), **tiles}
    _dense_backward[(high.shape[1], k)](
        x, d, high, low, m, v, which, back, sums, rate, ROWS=rows, N_IN=n_in, N_OUT=n_out, BI=high.shape[3],
        BJ=high.shape[4], **dict(zip(names, where, strict=True)), R=power(rows), **KERAS_ADAM, POOLED=which is not None,
        **tiles,
    )  # fmt: skip
