"""Triton kernels that train K transformers of one shape at once.

Every kernel takes the model, or the model's row, as a grid axis, so that one launch serves all K models. Rows of tokens are
short (at most :data:`LONGEST`), so that a program has all scores of some queries in registers. Queries, keys and values
are read where the product left them, ``(K, rows, length, 3, heads, head)``, and their gradients are written in the same
layout. The gradient of narrow heads computes their scores again, in one pass; that of wide ones, where scores are small
beside queries and keys, takes the probabilities that were kept.

Sums over rows (gradients of biases, of normalisations and of tokens) are cut into partial sums that are added in a fixed
order: no atomics, so results repeat bit for bit. Products accumulate in float32.

The bias of the keys adds the same number to all scores of a query, which changes no probability: it is left out, and its
gradient is zero.
"""

import torch
import triton
import triton.language as tl

from lowchurn.nets._stacks._stack import BETA1, BETA2, EPSILON

LONGEST = 256  # tokens of a row whose scores fit into registers
NORM_EPSILON = 1e-6
LOG2E = tl.constexpr(1.4426950408889634)
TOKENS = 128  # sorted tokens that one program adds up


@triton.jit(do_not_specialize=["VOCABULARY", "ROWS"])
def _embed(
    ids_ptr,
    table_ptr,
    position_ptr,
    x_ptr,
    VOCABULARY,
    ROWS,
    T: tl.constexpr,
    FULL: tl.constexpr,
    W: tl.constexpr,
    BT: tl.constexpr,
):
    """x = table[ids] + position, of BT tokens of one row."""
    row = tl.program_id(0).to(tl.int64)
    model = row // ROWS
    t = tl.program_id(1) * BT + tl.arange(0, BT)
    w = tl.arange(0, W)
    ok = (t < T)[:, None] & (w < W)[None, :]
    token = tl.load(ids_ptr + row * T + t, mask=t < T, other=0).to(tl.int64)
    value = tl.load(table_ptr + (model * VOCABULARY + token)[:, None] * W + w[None, :], mask=ok, other=0.0)
    value += tl.load(position_ptr + (model * FULL + t)[:, None] * W + w[None, :], mask=ok, other=0.0)
    tl.store(x_ptr + row * (T * W) + t[:, None] * W + w[None, :], value.to(x_ptr.dtype.element_ty), mask=ok)


@triton.jit
def _padded(T: tl.constexpr):
    """Room for the scores of one query, so that every query's lie aligned."""
    return (T + 7) // 8 * 8


@triton.jit
def _chunk(base, t, d, T: tl.constexpr, STRIDE: tl.constexpr):
    """Some columns of the tokens t of one head; zero behind the last token."""
    return tl.load(base + t[:, None] * STRIDE + d[None, :], mask=(t < T)[:, None], other=0.0)


@triton.jit
def _queries(base, bias, t, d, T: tl.constexpr, STRIDE: tl.constexpr):
    """Queries with their bias, rounded as the products take them."""
    q = _chunk(base, t, d, T, STRIDE)
    return (q.to(tl.float32) + tl.load(bias + d)[None, :]).to(base.dtype.element_ty)


@triton.jit(do_not_specialize=["ROWS"])
def _narrow_attention(
    qkv_ptr, bias_ptr, out_ptr, log_ptr, ROWS, SCALE, T: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of BM queries of one head of one row, over blocks of keys with a running maximum.

    ``log`` receives the base-2 logarithm of each query's sum, for the gradient.
    """
    row = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    WIDE: tl.constexpr = HEADS * D
    base = qkv_ptr + row * (T * 3 * WIDE) + head * D
    bias = bias_ptr + (row // ROWS) * (3 * WIDE) + head * D
    low = qkv_ptr.dtype.element_ty
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = _queries(base, bias, m, d, T, 3 * WIDE)
    most = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    out = tl.zeros((BM, D), tl.float32)
    for first in range(0, T, BN):
        n = first + tl.arange(0, BN)
        k = _chunk(base + WIDE, n, d, T, 3 * WIDE)
        v = _chunk(base + 2 * WIDE, n, d, T, 3 * WIDE)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (SCALE * LOG2E)
        scores = tl.where((n < T)[None, :], scores, float("-inf"))
        now = tl.maximum(most, tl.max(scores, axis=1))
        p = tl.exp2(scores - now[:, None])
        shrink = tl.exp2(most - now)
        total = total * shrink + tl.sum(p, axis=1)
        out = tl.dot(p.to(low), v, out * shrink[:, None], input_precision=PRECISION)
        most = now
    tl.store(log_ptr + (row * HEADS + head) * T + m, most + tl.log2(total), mask=m < T)
    out = out * (1 / total)[:, None] + tl.load(bias + 2 * WIDE + d)[None, :]
    out_ptr += row * (T * WIDE) + head * D
    tl.store(out_ptr + m[:, None] * WIDE + d[None, :], out.to(low), mask=(m < T)[:, None])


@triton.jit(do_not_specialize=["ROWS"])
def _narrow_grad(
    qkv_ptr, bias_ptr, log_ptr, out_ptr, back_ptr, dqkv_ptr, part_ptr, ROWS, SCALE, T: tl.constexpr, TP: tl.constexpr,
    HEADS: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, keys and values of one narrow head of one row, in one pass over blocks of queries.

    ``part`` receives the sums that the biases need.
    """
    row = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    WIDE: tl.constexpr = HEADS * D
    base = qkv_ptr + row * (T * 3 * WIDE) + head * D
    into = dqkv_ptr + row * (T * 3 * WIDE) + head * D
    back_at = back_ptr + row * (T * WIDE) + head * D
    out_at = out_ptr + row * (T * WIDE) + head * D
    bias = bias_ptr + (row // ROWS) * (3 * WIDE) + head * D
    low = qkv_ptr.dtype.element_ty
    d = tl.arange(0, D)
    n = tl.arange(0, TP)
    k = _chunk(base + WIDE, n, d, T, 3 * WIDE)  # zero behind the last token, so that its scores move no query
    v = _chunk(base + 2 * WIDE, n, d, T, 3 * WIDE)
    of_values = tl.load(bias + 2 * WIDE + d)
    dk, dv = tl.zeros((TP, D), tl.float32), tl.zeros((TP, D), tl.float32)
    sum_query, sum_value = tl.zeros((D,), tl.float32), tl.zeros((D,), tl.float32)
    for start in range(0, T, BM):
        m = start + tl.arange(0, BM)
        q = _queries(base, bias, m, d, T, 3 * WIDE)
        back = _chunk(back_at, m, d, T, WIDE)
        wide = back.to(tl.float32)
        delta = tl.sum(wide * (_chunk(out_at, m, d, T, WIDE).to(tl.float32) - of_values[None, :]), axis=1)
        log = tl.load(log_ptr + (row * HEADS + head) * T + m, mask=m < T, other=float("inf"))
        p = tl.exp2(tl.dot(k, tl.trans(q), input_precision=PRECISION) * (SCALE * LOG2E) - log[None, :])
        dp = tl.dot(v, tl.trans(back), input_precision=PRECISION)
        ds = (p * (dp - delta[None, :]) * SCALE).to(low)
        dv = tl.dot(p.to(low), back, dv, input_precision=PRECISION)
        dk = tl.dot(ds, q, dk, input_precision=PRECISION)
        dq = tl.dot(tl.trans(ds), k, input_precision=PRECISION)
        tl.store(into + m[:, None] * (3 * WIDE) + d[None, :], dq.to(low), mask=(m < T)[:, None])
        sum_query += tl.sum(dq, axis=0)
        sum_value += tl.sum(wide, axis=0)  # the probabilities of a query sum to one
    at = n[:, None] * (3 * WIDE) + d[None, :]
    tl.store(into + WIDE + at, dk.to(low), mask=(n < T)[:, None])
    tl.store(into + 2 * WIDE + at, dv.to(low), mask=(n < T)[:, None])
    part = part_ptr + row * (2 * WIDE) + head * D + d
    tl.store(part, sum_query)
    tl.store(part + WIDE, sum_value)


@triton.jit(do_not_specialize=["ROWS"])
def _wide_attention(
    qkv_ptr, bias_ptr, out_ptr, p_ptr, ROWS, SCALE, T: tl.constexpr, TP: tl.constexpr, HEADS: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, BM: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of BM queries of one head of one row, with all their scores in registers; KEEP keeps probabilities."""
    row = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    WIDE: tl.constexpr = HEADS * D
    base = qkv_ptr + row * (T * 3 * WIDE) + head * D
    bias = bias_ptr + (row // ROWS) * (3 * WIDE) + head * D
    low = qkv_ptr.dtype.element_ty
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.arange(0, TP)
    c = tl.arange(0, CHUNK)
    scores = tl.zeros((BM, TP), tl.float32)
    for d in range(0, D, CHUNK):
        q = _queries(base, bias, m, d + c, T, 3 * WIDE)
        k = _chunk(base + WIDE, n, d + c, T, 3 * WIDE)
        scores = tl.dot(q, tl.trans(k), scores, input_precision=PRECISION)
    scores = tl.where((n < T)[None, :], scores * (SCALE * LOG2E), float("-inf"))
    p = tl.exp2(scores - tl.max(scores, axis=1)[:, None])
    p = (p * (1 / tl.sum(p, axis=1))[:, None]).to(low)
    if KEEP:
        p_ptr += (row * HEADS + head) * (T * _padded(T))
        tl.store(p_ptr + m[:, None] * _padded(T) + n[None, :], p, mask=(m < T)[:, None] & (n < _padded(T))[None, :])
    out_ptr += row * (T * WIDE) + head * D
    for d in range(0, D, CHUNK):
        v = _chunk(base + 2 * WIDE, n, d + c, T, 3 * WIDE)
        out = tl.dot(p, v, input_precision=PRECISION) + tl.load(bias + 2 * WIDE + d + c)[None, :]
        tl.store(out_ptr + m[:, None] * WIDE + (d + c)[None, :], out.to(low), mask=(m < T)[:, None])


@triton.jit
def _score_grad(
    qkv_ptr, p_ptr, back_ptr, dqkv_ptr, ds_ptr, part_ptr, SCALE, T: tl.constexpr, TP: tl.constexpr, HEADS: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of all scores of BM queries and of these queries; ``part`` receives the sums that the bias needs."""
    row = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    WIDE: tl.constexpr = HEADS * D
    base = qkv_ptr + row * (T * 3 * WIDE) + head * D
    back = back_ptr + row * (T * WIDE) + head * D
    low = qkv_ptr.dtype.element_ty
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.arange(0, TP)
    c = tl.arange(0, CHUNK)
    dp = tl.zeros((BM, TP), tl.float32)
    for d in range(0, D, CHUNK):
        v = _chunk(base + 2 * WIDE, n, d + c, T, 3 * WIDE)
        dp = tl.dot(_chunk(back, m, d + c, T, WIDE), tl.trans(v), dp, input_precision=PRECISION)
    all_scores = (row * HEADS + head) * (T * _padded(T))
    at = m[:, None] * _padded(T) + n[None, :]
    ok = (m < T)[:, None] & (n < _padded(T))[None, :]
    p = tl.load(p_ptr + all_scores + at, mask=ok, other=0.0).to(tl.float32)
    ds = (p * (dp - tl.sum(p * dp, axis=1)[:, None]) * SCALE).to(low)
    tl.store(ds_ptr + all_scores + at, ds, mask=ok)
    part = part_ptr + (row * tl.num_programs(1) + tl.program_id(1)) * WIDE + head * D
    into = dqkv_ptr + row * (T * 3 * WIDE) + head * D + m[:, None] * (3 * WIDE) + c[None, :]
    for d in range(0, D, CHUNK):
        dq = tl.dot(ds, _chunk(base + WIDE, n, d + c, T, 3 * WIDE), input_precision=PRECISION)
        tl.store(part + d + c, tl.sum(dq, axis=0))
        tl.store(into + d, dq.to(low), mask=(m < T)[:, None])


@triton.jit(do_not_specialize=["ROWS"])
def _key_value_grad(
    scores_ptr, x_ptr, bias_ptr, dqkv_ptr, part_ptr, ROWS, T: tl.constexpr, TP: tl.constexpr, HEADS: tl.constexpr,
    D: tl.constexpr, CHUNK: tl.constexpr, BN: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of BN keys, of the scores' gradients and queries, or of values, of probabilities and what comes back."""
    row = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    WIDE: tl.constexpr = HEADS * D
    STRIDE: tl.constexpr = 3 * WIDE if KEYS else WIDE
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    m = tl.arange(0, TP)
    c = tl.arange(0, CHUNK)
    scores_ptr += (row * HEADS + head) * (T * _padded(T))
    ok = (m < T)[:, None] & (n < _padded(T))[None, :]
    scores = tl.load(scores_ptr + m[:, None] * _padded(T) + n[None, :], mask=ok, other=0.0)
    if KEYS:
        bias = bias_ptr + (row // ROWS) * (3 * WIDE) + head * D
        total = tl.sum(scores.to(tl.float32), axis=0)
    x = x_ptr + row * (T * STRIDE) + head * D
    into = dqkv_ptr + row * (T * 3 * WIDE) + (1 if KEYS else 2) * WIDE + head * D + n[:, None] * (3 * WIDE) + c[None, :]
    part = part_ptr + (row * tl.num_programs(1) + tl.program_id(1)) * WIDE + head * D
    for d in range(0, D, CHUNK):
        y = tl.dot(tl.trans(scores), _chunk(x, m, d + c, T, STRIDE), input_precision=PRECISION)
        if KEYS:
            y += total[:, None] * tl.load(bias + d + c)[None, :]
        else:
            tl.store(part + d + c, tl.sum(y, axis=0))
        tl.store(into + d, y.to(dqkv_ptr.dtype.element_ty), mask=(n < T)[:, None])


@triton.jit
def _normalised(x_ptr, y_ptr, bias, at, ok, W: tl.constexpr, EPS: tl.constexpr):
    """(x + y + bias) less its mean over its deviation, and one over that deviation."""
    s = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32) + tl.load(y_ptr + at, mask=ok, other=0.0).to(tl.float32)
    s += bias[None, :]
    s -= (tl.sum(s, axis=1) / W)[:, None]
    inverse = 1 / tl.sqrt(tl.sum(s * s, axis=1) / W + EPS)
    return s * inverse[:, None], inverse


@triton.jit(do_not_specialize=["ROWS"])
def _add_norm(
    x_ptr, y_ptr, bias_ptr, weight_ptr, shift_ptr, out_ptr, ROWS, T: tl.constexpr, W: tl.constexpr, BT: tl.constexpr,
    POOL: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """norm(x + y + bias) of all tokens of one row, or with POOL its mean over them."""
    row = tl.program_id(0).to(tl.int64)
    w = tl.arange(0, W)
    of_model = (row // ROWS) * W + w
    bias, weight, shift = tl.load(bias_ptr + of_model), tl.load(weight_ptr + of_model), tl.load(shift_ptr + of_model)
    pooled = tl.zeros((W,), tl.float32)
    x_ptr += row * (T * W)
    y_ptr += row * (T * W)
    out_ptr += row * W if POOL else row * (T * W)
    for first in range(0, T, BT):
        t = first + tl.arange(0, BT)
        ok = (t < T)[:, None] & (w < W)[None, :]
        at = t[:, None] * W + w[None, :]
        plain, _ = _normalised(x_ptr, y_ptr, bias, at, ok, W, EPS)
        out = plain * weight[None, :] + shift[None, :]
        if POOL:
            pooled += tl.sum(tl.where(ok, out, 0.0), axis=0)
        else:
            tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=ok)
    if POOL:
        tl.store(out_ptr + w, pooled / T)


@triton.jit(do_not_specialize=["ROWS"])
def _add_norm_grad(
    x_ptr, y_ptr, bias_ptr, weight_ptr, back_ptr, out_ptr, part_ptr, ROWS, T: tl.constexpr, W: tl.constexpr,
    BT: tl.constexpr, POOL: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Gradient before :func:`_add_norm` of one row's tokens, and the row's sums for weight, shift and bias."""
    row = tl.program_id(0).to(tl.int64)
    w = tl.arange(0, W)
    of_model = (row // ROWS) * W + w
    bias, weight = tl.load(bias_ptr + of_model), tl.load(weight_ptr + of_model)
    of_weight, of_shift = tl.zeros((W,), tl.float32), tl.zeros((W,), tl.float32)
    of_bias = tl.zeros((W,), tl.float32)
    x_ptr += row * (T * W)
    y_ptr += row * (T * W)
    out_ptr += row * (T * W)
    back_ptr += row * W if POOL else row * (T * W)
    if POOL:
        pooled = tl.load(back_ptr + w) / T
    for first in range(0, T, BT):
        t = first + tl.arange(0, BT)
        ok = (t < T)[:, None] & (w < W)[None, :]
        at = t[:, None] * W + w[None, :]
        plain, inverse = _normalised(x_ptr, y_ptr, bias, at, ok, W, EPS)
        if POOL:
            back = tl.where(ok, pooled[None, :], 0.0)
        else:
            back = tl.load(back_ptr + at, mask=ok, other=0.0).to(tl.float32)
        of_weight += tl.sum(back * plain, axis=0)
        of_shift += tl.sum(back, axis=0)
        back *= weight[None, :]
        back -= (tl.sum(back, axis=1) / W)[:, None] + plain * (tl.sum(back * plain, axis=1) / W)[:, None]
        back *= inverse[:, None]
        of_bias += tl.sum(tl.where(ok, back, 0.0), axis=0)
        tl.store(out_ptr + at, back.to(out_ptr.dtype.element_ty), mask=ok)
    part = part_ptr + row * (3 * W) + w
    tl.store(part, of_weight)
    tl.store(part + W, of_shift)
    tl.store(part + 2 * W, of_bias)


@triton.jit(do_not_specialize=["ROWS"])
def _bias_relu(h_ptr, bias_ptr, ROWS, T: tl.constexpr, W: tl.constexpr, BT: tl.constexpr):
    """h <- relu(h + bias) of BT tokens of one row."""
    row = tl.program_id(0).to(tl.int64)
    w = tl.arange(0, W)
    t = tl.program_id(1) * BT + tl.arange(0, BT)
    ok = (t < T)[:, None] & (w < W)[None, :]
    at = row * (T * W) + t[:, None] * W + w[None, :]
    bias = tl.load(bias_ptr + (row // ROWS) * W + w)
    h = tl.load(h_ptr + at, mask=ok, other=0.0).to(tl.float32) + bias[None, :]
    tl.store(h_ptr + at, tl.maximum(h, 0.0).to(h_ptr.dtype.element_ty), mask=ok)


@triton.jit
def _relu_grad(h_ptr, back_ptr, part_ptr, T: tl.constexpr, W: tl.constexpr, BT: tl.constexpr):
    """back <- back where h > 0, of one row's tokens, and the row's sum."""
    row = tl.program_id(0).to(tl.int64)
    w = tl.arange(0, W)
    of_bias = tl.zeros((W,), tl.float32)
    h_ptr += row * (T * W)
    back_ptr += row * (T * W)
    for first in range(0, T, BT):
        t = first + tl.arange(0, BT)
        ok = (t < T)[:, None] & (w < W)[None, :]
        at = t[:, None] * W + w[None, :]
        h = tl.load(h_ptr + at, mask=ok, other=0.0)
        back = tl.where(h > 0, tl.load(back_ptr + at, mask=ok, other=0.0), 0.0)
        of_bias += tl.sum(back.to(tl.float32), axis=0)
        tl.store(back_ptr + at, back.to(back_ptr.dtype.element_ty), mask=ok)
    tl.store(part_ptr + row * W + w, of_bias)


@triton.jit(do_not_specialize=["PLACES", "VOCABULARY"])
def _token_sums(
    key_ptr, back_ptr, part_ptr, head_ptr, PLACES, VOCABULARY, W: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add up the gradients of equal tokens among BLOCK sorted places of one model.

    A key is ``token * PLACES + place``. The sum stands at the first of the equal tokens in the block; ``head`` receives
    where a token's first block sum stands.
    """
    model = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < PLACES
    keys = key_ptr + model * PLACES
    key = tl.load(keys + i, mask=ok, other=0)
    token = tl.where(ok, key // PLACES, -1).to(tl.int32)
    before = tl.load(keys + i - 1, mask=ok & (i > 0), other=-1)
    first = ok & ((i == 0) | (before // PLACES != token))
    tl.store(head_ptr + model * VOCABULARY + token, i, mask=first)
    leads = first | (ok & (i % BLOCK == 0))
    # The same tokens of the block once more, as a row: the layouts of Triton do not turn.
    token_across = tl.where(ok, tl.load(keys + i, mask=ok, other=0) // PLACES, -2).to(tl.int32)
    low = back_ptr.dtype.element_ty
    same = (token[:, None] == token_across[None, :]).to(low)
    place = (key % PLACES).to(tl.int64)
    c = tl.arange(0, CHUNK)
    for w in tl.static_range(0, W, CHUNK):
        back = tl.load(back_ptr + (model * PLACES + place)[:, None] * W + (w + c)[None, :], mask=ok[:, None], other=0.0)
        sums = tl.dot(same, back, input_precision=PRECISION)
        tl.store(part_ptr + (model * PLACES + i)[:, None] * W + (w + c)[None, :], sums, mask=leads[:, None])


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
    """Keras' Adam over a flat buffer; also writes the low-precision weights."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    rate = tl.load(rate_ptr)
    g = tl.load(g_ptr + i, mask=keep, other=0.0)
    w, m, v = _keras_adam(
        tl.load(w_ptr + i, mask=keep, other=0.0), tl.load(m_ptr + i, mask=keep, other=0.0),
        tl.load(v_ptr + i, mask=keep, other=0.0), g, rate, B1, B2, EPS,
    )  # fmt: skip
    tl.store(w_ptr + i, w, mask=keep)
    tl.store(m_ptr + i, m, mask=keep)
    tl.store(v_ptr + i, v, mask=keep)
    tl.store(copy_ptr + i, w.to(copy_ptr.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["PLACES", "VOCABULARY"])
def _token_adam(
    w_ptr, m_ptr, v_ptr, key_ptr, part_ptr, head_ptr, rate_ptr, PLACES, VOCABULARY, W: tl.constexpr, BV: tl.constexpr,
    BLOCK: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Keras' Adam over BV rows of one model's table, whose gradient is collected from the block sums and never stored."""
    model = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BV + tl.arange(0, BV)
    w = tl.arange(0, W)
    inside = token < VOCABULARY
    at = (model * VOCABULARY + token)[:, None] * W + w[None, :]
    keep = inside[:, None] & (w < W)[None, :]
    weight = tl.load(w_ptr + at, mask=keep, other=0.0)
    m = tl.load(m_ptr + at, mask=keep, other=0.0)
    v = tl.load(v_ptr + at, mask=keep, other=0.0)
    place = tl.load(head_ptr + model * VOCABULARY + token, mask=inside, other=-1)
    g = tl.zeros((BV, W), tl.float32)
    while tl.max(place, axis=0) >= 0:
        here = place >= 0
        g += tl.load(part_ptr + (model * PLACES + place)[:, None] * W + w[None, :], mask=here[:, None], other=0.0)
        following = (place // BLOCK + 1) * BLOCK
        more = here & (following < PLACES)
        key = tl.load(key_ptr + model * PLACES + following, mask=more, other=-1)
        place = tl.where(more & (key // PLACES == token), following, -1)
    weight, m, v = _keras_adam(weight, m, v, g, tl.load(rate_ptr), B1, B2, EPS)
    tl.store(w_ptr + at, weight, mask=keep)
    tl.store(m_ptr + at, m, mask=keep)
    tl.store(v_ptr + at, v, mask=keep)


# Launchers: shapes in, one call per operation.

TILES = {
    "narrow": {
        32: {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2},
        64: {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2},
    },  # by the width of a head
    "narrow grad": {
        32: {"BM": 16, "num_warps": 4, "num_stages": 1},
        64: {"BM": 32, "num_warps": 8, "num_stages": 1},
    },
    "wide": {"BM": 128, "CHUNK": 64, "num_warps": 8, "num_stages": 3},
    "score": {"BM": 128, "CHUNK": 64, "num_warps": 8, "num_stages": 3},
    "key": {"BN": 128, "CHUNK": 64, "num_warps": 8, "num_stages": 3},
    "tokens": 4096,  # numbers of a tile of tokens that is normalised
    "table": 2048,  # numbers of a tile of Adam over the table
}  # the fastest of a few on an H200
KERAS_ADAM = {"B1": BETA1, "B2": BETA2, "EPS": EPSILON}
PRECISION = "ieee"  # of products where the operands are float32, as in tests


def fits(width, length):
    """Whether the kernels take networks of this width on rows of this length."""
    return length <= LONGEST and width >= 16 and width & (width - 1) == 0


def _pow2(n):
    return max(16, triton.next_power_of_2(n))


def _block(width, length, numbers):
    return min(triton.next_power_of_2(length), max(1, numbers // width))


def embed(ids, table, position, x):
    """Write x (K, B, T, W): rows of each model's table (K, V, W) and positions (K, L, W)."""
    k, rows, t, w = x.shape
    bt = _block(w, t, TILES["tokens"])
    _embed[(k * rows, triton.cdiv(t, bt))](
        ids, table, position, x, table.shape[1], rows, T=t, FULL=position.shape[1], W=w, BT=bt, num_warps=4
    )


def _heads(qkv, length, heads):
    """What the kernels of attention share: programs, rows of a model, the scale of scores, compile-time arguments."""
    k, tokens, wide = qkv.shape
    rows, d = tokens // length, wide // (3 * heads)
    return k * rows * heads, rows, d**-0.5, {"T": length, "HEADS": heads, "D": d, "PRECISION": PRECISION}


def attention(qkv, bias, length, heads, record):
    """Outputs (K, B * T, heads * D) of qkv (K, B * T, 3 * heads * D), and with ``record`` what the gradient needs."""
    programs, rows, scale, shape = _heads(qkv, length, heads)
    out = qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)
    if shape["D"] in TILES["narrow"]:
        tile = TILES["narrow"][shape["D"]]
        kept = torch.empty(programs, length, device=qkv.device)
        _narrow_attention[(programs, triton.cdiv(length, tile["BM"]))](
            qkv, bias, out, kept, rows, scale, **shape, **tile
        )
    else:
        tile = TILES["wide"]
        kept = qkv.new_empty(programs, length, -(-length // 8) * 8) if record else None
        _wide_attention[(programs, triton.cdiv(length, tile["BM"]))](
            qkv, bias, out, kept, rows, scale, **shape, TP=_pow2(length), KEEP=record, **tile
        )
    return out, kept


def attention_grad(qkv, bias, kept, out, back, length, heads):
    """Gradients of qkv and of its bias, from ``back`` at the outputs ``out``."""
    programs, rows, scale, shape = _heads(qkv, length, heads)
    shape |= {"TP": _pow2(length)}
    dqkv = torch.empty_like(qkv)
    if shape["D"] in TILES["narrow"]:
        part = torch.empty(qkv.shape[0], rows, 2, back.shape[-1], device=qkv.device)
        _narrow_grad[(programs,)](
            qkv, bias, kept, out, back, dqkv, part, rows, scale, **shape, **TILES["narrow grad"][shape["D"]]
        )
        of_query, of_value = part.sum(1).unbind(1)
    else:
        score, key = TILES["score"], TILES["key"]
        blocks = [triton.cdiv(length, block) for block in (score["BM"], key["BN"])]
        of_query, of_value = (torch.empty(len(qkv), rows * n, back.shape[-1], device=qkv.device) for n in blocks)
        ds = torch.empty_like(kept)
        _score_grad[(programs, blocks[0])](qkv, kept, back, dqkv, ds, of_query, scale, **shape, **score)
        for scores, x in ((ds, qkv), (kept, back)):
            _key_value_grad[(programs, blocks[1])](scores, x, bias, dqkv, of_value, rows, **shape, KEYS=x is qkv, **key)
        of_query, of_value = of_query.sum(1), of_value.sum(1)
    return dqkv, torch.cat([of_query, torch.zeros_like(of_query), of_value], 1)


def add_norm(x, y, bias, weight, shift, out, length):
    """Write norm(x + y + bias) (K, B * T, W), or where ``out`` is (K, B, W) its mean over each row's tokens."""
    k, tokens, w = x.shape
    pool = out.shape[1] != tokens
    _add_norm[(k * tokens // length,)](
        x, y, bias, weight, shift, out, tokens // length, T=length, W=w, BT=_block(w, length, TILES["tokens"]), POOL=pool,
        EPS=NORM_EPSILON, num_warps=4,
    )  # fmt: skip


def add_norm_grad(x, y, bias, weight, back, length):
    """Gradients (K, B * T, W) at x + y, and (K, 3, W) of weight, shift and bias."""
    k, tokens, w = x.shape
    pool = back.shape[1] != tokens
    out = torch.empty_like(x)
    part = torch.empty(k, tokens // length, 3, w, device=x.device)
    _add_norm_grad[(k * tokens // length,)](
        x, y, bias, weight, back, out, part, tokens // length, T=length, W=w, BT=_block(w, length, TILES["tokens"]),
        POOL=pool, EPS=NORM_EPSILON, num_warps=4,
    )  # fmt: skip
    return out, part.sum(1)


def bias_relu(h, bias, length):
    """``h <- relu(h + bias)``, in place."""
    k, tokens, w = h.shape
    bt = _block(w, length, TILES["tokens"])
    _bias_relu[(k * tokens // length, triton.cdiv(length, bt))](
        h, bias, tokens // length, T=length, W=w, BT=bt, num_warps=4
    )


def relu_grad(h, back, length):
    """``back <- back where h > 0``, in place; returns its sum over each model's tokens."""
    k, tokens, w = h.shape
    part = torch.empty(k, tokens // length, w, device=h.device)
    _relu_grad[(k * tokens // length,)](
        h, back, part, T=length, W=w, BT=_block(w, length, TILES["tokens"]), num_warps=4
    )
    return part.sum(1)


def adam(w, m, v, g, rate, copy):
    """Keras' Adam on flat float32 buffers, its step size a tensor; ``copy`` receives the rounded weights."""
    size = w.numel()
    _adam[(triton.cdiv(size, 1024),)](w, m, v, g, copy, rate, size, **KERAS_ADAM, BLOCK=1024, num_warps=4)


def sorted_tokens(ids, vocabulary):
    """Keys ``token * places + place`` of each model's tokens (K, B, T), sorted."""
    places = ids[0].numel()
    kind = torch.int32 if vocabulary * places < 2**31 else torch.int64
    keys = ids.flatten(1).to(kind) * places + torch.arange(places, device=ids.device, dtype=kind)
    return keys.sort(1).values


def token_adam(w, m, v, keys, back, rate):
    """Keras' Adam of tables (K, V, W), whose gradient is that of the sorted tokens' places, ``back`` (K, B * T, W)."""
    k, vocabulary, width = w.shape
    places = keys.shape[1]
    head = torch.full((k, vocabulary), -1, device=w.device, dtype=torch.int32)
    part = torch.empty(k, places, width, device=w.device)
    _token_sums[(triton.cdiv(places, TOKENS), k)](
        keys, back, part, head, places, vocabulary, W=width, BLOCK=TOKENS, CHUNK=min(width, 64), PRECISION=PRECISION,
        num_warps=4,
    )  # fmt: skip
    bv = max(1, TILES["table"] // width)
    _token_adam[(triton.cdiv(vocabulary, bv), k)](
        w, m, v, keys, part, head, rate, places, vocabulary, W=width, BV=bv, BLOCK=TOKENS, **KERAS_ADAM, num_warps=4
    )
