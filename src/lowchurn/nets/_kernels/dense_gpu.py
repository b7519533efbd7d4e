"""Triton kernels for the dense layers of K networks of one shape at once, and for Adam.

With 32 rows a step, a large dense layer is bound by the memory of its weights and moments: these kernels read and write
each of them once. The weights are kept as two halves of 16 bits (:func:`split`): the upper one is the weight in bfloat16,
which the products read, and both together are the weight in float32, exactly.
"""

import torch
import triton
import triton.language as tl

from lowchurn.nets._stacks._stack import BETA1, BETA2, EPSILON

KERAS_ADAM = {"B1": BETA1, "B2": BETA2, "EPS": EPSILON}


@triton.jit
def _keras_adam(w, m, v, g, rate, B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr):
    m = m + (g - m) * (1 - B1)
    v = v + (g * g - v) * (1 - B2)
    w = w - rate * m / (tl.sqrt(v) + EPS)
    return w, m, v


@triton.jit
def _adam(
    w_ptr, m_ptr, v_ptr, g_ptr, copy_ptr, rate, size, B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Keras's Adam over a flat buffer; also writes the low-precision weights."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
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
    x_ptr, d_ptr, high_ptr, low_ptr, m_ptr, v_ptr, back_ptr, rate, ROWS: tl.constexpr, N_IN: tl.constexpr,
    N_OUT: tl.constexpr, R: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr,
    EPS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Gradient d W^T at the inputs of a dense layer, weight gradient x^T d and its Adam update, in one pass.

    With 32 rows the weight gradient is cheaper to compute than to store: it stays in registers.
    """
    model = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BI + tl.arange(0, BI)
    r = tl.arange(0, R)
    i_ok = i < N_IN
    r_ok = r < ROWS
    x_at = model * (ROWS * N_IN) + r[:, None] * N_IN + i[None, :]
    xt = tl.trans(tl.load(x_ptr + x_at, mask=r_ok[:, None] & i_ok[None, :], other=0.0))
    back = tl.zeros((BI, R), tl.float32)
    for j0 in tl.range(0, N_OUT, BJ, num_stages=AHEAD):
        j = j0 + tl.arange(0, BJ)
        d_at = d_ptr + model * (ROWS * N_OUT) + r[:, None] * N_OUT + j[None, :]
        at = model * (N_IN * N_OUT) + i[:, None] * N_OUT + j[None, :]
        keep = i_ok[:, None] & (j < N_OUT)[None, :]
        d = tl.load(d_at, mask=r_ok[:, None] & (j < N_OUT)[None, :], other=0.0)
        high = tl.load(high_ptr + at, mask=keep, other=0.0)
        low = tl.load(low_ptr + at, mask=keep, other=0)
        m = tl.load(m_ptr + at, mask=keep, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + at, mask=keep, other=0.0)
        g = tl.dot(xt, d)
        back = tl.dot(high, tl.trans(d), back)
        w, m, v = _keras_adam(_join(high, low), m, v, g, rate, B1, B2, EPS)
        new_high, new_low = _split(w)
        tl.store(high_ptr + at, new_high, mask=keep)
        tl.store(low_ptr + at, new_low, mask=keep)
        tl.store(m_ptr + at, m.to(m_ptr.dtype.element_ty), mask=keep)
        tl.store(v_ptr + at, v, mask=keep)
    back_at = model * (ROWS * N_IN) + r[None, :] * N_IN + i[:, None]
    tl.store(back_ptr + back_at, back.to(back_ptr.dtype.element_ty), mask=i_ok[:, None] & r_ok[None, :])


TILES = {"BI": 64, "BJ": 64, "AHEAD": 1, "num_warps": 8}


def split(w):
    """Float32 weights as two halves: the upper 16 bits, rounded to bfloat16, and the lower 16 bits."""
    bits = w.view(torch.int32)
    upper = torch.where(w == w, (bits + 0x8000) >> 16, 0x7FC0)
    return upper.to(torch.int16).view(torch.bfloat16), bits.to(torch.int16)


def join(high, low):
    """The float32 weights of two halves, exactly."""
    return ((high.view(torch.int16).to(torch.int32) << 16) + low.to(torch.int32)).view(torch.float32)


def adam(w, m, v, g, rate, copy):
    """Keras's Adam on flat float32 buffers; ``copy`` receives the rounded weights."""
    size = w.numel()
    _adam[(triton.cdiv(size, 1024),)](w, m, v, g, copy, rate, size, **KERAS_ADAM, BLOCK=1024, num_warps=4)


def dense_backward(x, d, high, low, m, v, rate, back, **tiles):
    """One Adam step of a dense layer (K, n_in, n_out) from its inputs x and the gradient d at its outputs.

    ``back`` receives the gradient at the inputs, which is taken with the weights before the step.
    """
    k, rows, n_in = x.shape
    tiles = {**TILES, **tiles}
    _dense_backward[(triton.cdiv(n_in, tiles["BI"]), k)](
        x, d, high, low, m, v, back, rate, ROWS=rows, N_IN=n_in, N_OUT=d.shape[-1],
        R=max(16, triton.next_power_of_2(rows)), **KERAS_ADAM, **tiles,
    )  # fmt: skip
