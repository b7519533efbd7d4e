"""Triton kernels of attention for K models at once: rows of at most :data:`LONGEST` tokens, heads of any width.

Queries, keys and values are read where the product left them, ``(K, rows, length, 3, heads, head)``, and their gradients
are written in the same layout; one program takes one head of one row, or a block of its queries or keys. The gradient of
narrow heads computes their scores again, in one pass; that of wide ones, where scores are small beside queries and keys,
takes the probabilities that were kept. Products accumulate in float32. There are no atomics: results repeat bit for bit.

The bias of the keys adds the same number to all scores of a query, which changes no probability: it is left out, and its
gradient is zero.
"""

import torch
import triton
import triton.language as tl

from lowchurn.nets._kernels.dense_gpu import power

LONGEST = 256  # tokens of a row whose scores fit into registers
LOG2E = tl.constexpr(1.4426950408889634)
PRECISION = "ieee"  # of products where the operands are float32, as in tests


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


# Launchers: shapes in, one call per operation.

TILES = {
    "narrow": {
        32: {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 3},
        64: {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 3},
    },  # by the width of a head
    "narrow grad": {
        32: {"BM": 16, "num_warps": 4, "num_stages": 1},
        64: {"BM": 32, "num_warps": 8, "num_stages": 2},
    },
    "wide": {"BM": 128, "CHUNK": 64, "num_warps": 8, "num_stages": 3},
    "score": {"BM": 128, "CHUNK": 64, "num_warps": 8, "num_stages": 3},
    "key": {"BN": 128, "CHUNK": 64, "num_warps": 8, "num_stages": 3},
}  # the fastest of a few on an H200


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
            qkv, bias, out, kept, rows, scale, **shape, TP=power(length), KEEP=record, **tile
        )
    return out, kept


def attention_grad(qkv, bias, kept, out, back, length, heads):
    """Gradients of qkv and of its bias, from ``back`` at the outputs ``out``."""
    programs, rows, scale, shape = _heads(qkv, length, heads)
    shape |= {"TP": power(length)}
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
