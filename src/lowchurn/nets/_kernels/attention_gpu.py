"""Triton kernels of attention for K models at once, where the keys and values of all heads are the tokens themselves.

Queries lie as the product left them, ``(K, rows, length, heads, width)``: for attention they are ``length * heads``
queries of a row, which all look at the same ``length`` tokens (:mod:`.heads_gpu` says why that is any attention). The
gradient of narrow networks computes scores again, in one pass; that of wide ones, where scores are small beside
queries, takes the probabilities that were kept. Products accumulate in float32. There are no atomics: results repeat bit
for bit.
"""

import torch
import triton
import triton.language as tl

from lowchurn.nets._kernels import large_gpu
from lowchurn.nets._kernels.dense_gpu import column_sums, power

LONGEST = 256  # tokens of a row whose scores fit into registers
MOST_HEADS = 128  # of which a block of queries contains every one
LOG2E = tl.constexpr(1.4426950408889634)
PRECISION = "ieee"  # of products where the operands are float32, as in tests


@triton.jit
def _rows(base, i, d, COUNT: tl.constexpr, D: tl.constexpr):
    """Some columns of the rows i; zero behind the last of COUNT rows."""
    return tl.load(base + i[:, None] * D + d[None, :], mask=(i < COUNT)[:, None], other=0.0)


@triton.jit
def _by_head(dq, H: tl.constexpr, BM: tl.constexpr, WIDE: tl.constexpr):
    """The sum over the tokens of a block of queries, of every head."""
    return tl.sum(tl.reshape(dq, (BM // H, H, WIDE)), axis=0)


@triton.jit
def _narrow_attention(
    q_ptr, x_ptr, out_ptr, log_ptr, SCALE, T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of BM queries of one row, over blocks of tokens with a running maximum.

    ``log`` receives the base-2 logarithm of each query's sum, for the gradient.
    """
    COUNT: tl.constexpr = T * H
    BLOCKS: tl.constexpr = (COUNT + BM - 1) // BM
    row = (tl.program_id(0) // BLOCKS).to(tl.int64)
    m = (tl.program_id(0) % BLOCKS) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    low = q_ptr.dtype.element_ty
    q = _rows(q_ptr + row * (COUNT * D), m, d, COUNT, D)
    most = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    out = tl.zeros((BM, D), tl.float32)
    for first in range(0, T, BN):
        n = first + tl.arange(0, BN)
        x = _rows(x_ptr + row * (T * D), n, d, T, D)
        scores = tl.dot(q, tl.trans(x), input_precision=PRECISION) * (SCALE * LOG2E)
        scores = tl.where((n < T)[None, :], scores, float("-inf"))
        now = tl.maximum(most, tl.max(scores, axis=1))
        p = tl.exp2(scores - now[:, None])
        shrink = tl.exp2(most - now)
        total = total * shrink + tl.sum(p, axis=1)
        out = tl.dot(p.to(low), x, out * shrink[:, None], input_precision=PRECISION)
        most = now
    tl.store(log_ptr + row * COUNT + m, most + tl.log2(total), mask=m < COUNT)
    out *= (1 / total)[:, None]
    tl.store(out_ptr + row * (COUNT * D) + m[:, None] * D + d[None, :], out.to(low), mask=(m < COUNT)[:, None])


@triton.jit
def _narrow_grad(
    q_ptr, x_ptr, log_ptr, out_ptr, back_ptr, add_ptr, dq_ptr, dx_ptr, part_ptr, SCALE, T: tl.constexpr,
    TP: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries and tokens of one row, in one pass over blocks of queries.

    ``part`` receives the sums of the queries' gradients that their bias needs.
    """
    COUNT: tl.constexpr = T * H
    row = tl.program_id(0).to(tl.int64)
    queries, tokens = row * (COUNT * D), row * (T * D)
    low = q_ptr.dtype.element_ty
    d = tl.arange(0, D)
    n = tl.arange(0, TP)
    x = _rows(x_ptr + tokens, n, d, T, D)  # zero behind the last token, so that its scores move no query
    dx = tl.zeros((TP, D), tl.float32)
    sums = tl.zeros((H, D), tl.float32)
    for start in range(0, COUNT, BM):
        m = start + tl.arange(0, BM)
        q = _rows(q_ptr + queries, m, d, COUNT, D)
        back = _rows(back_ptr + queries, m, d, COUNT, D)
        delta = tl.sum(back.to(tl.float32) * _rows(out_ptr + queries, m, d, COUNT, D).to(tl.float32), axis=1)
        log = tl.load(log_ptr + row * COUNT + m, mask=m < COUNT, other=float("inf"))
        p = tl.exp2(tl.dot(x, tl.trans(q), input_precision=PRECISION) * (SCALE * LOG2E) - log[None, :])
        dp = tl.dot(x, tl.trans(back), input_precision=PRECISION)
        ds = (p * (dp - delta[None, :]) * SCALE).to(low)
        dx = tl.dot(p.to(low), back, dx, input_precision=PRECISION)
        dx = tl.dot(ds, q, dx, input_precision=PRECISION)
        dq = tl.dot(tl.trans(ds), x, input_precision=PRECISION)
        tl.store(dq_ptr + queries + m[:, None] * D + d[None, :], dq.to(low), mask=(m < COUNT)[:, None])
        sums += _by_head(dq, H, BM, D)
    dx += _rows(add_ptr + tokens, n, d, T, D).to(tl.float32)
    tl.store(dx_ptr + tokens + n[:, None] * D + d[None, :], dx.to(low), mask=(n < T)[:, None])
    h = tl.arange(0, H)
    tl.store(part_ptr + row * (H * D) + h[:, None] * D + d[None, :], sums)


@triton.jit
def _probabilities(
    q_ptr, x_ptr, p_ptr, SCALE, T: tl.constexpr, TP: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    CHUNK: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What BM queries of one row give every token of it, with all their scores in registers."""
    COUNT: tl.constexpr = T * H
    BLOCKS: tl.constexpr = (COUNT + BM - 1) // BM
    row = (tl.program_id(0) // BLOCKS).to(tl.int64)
    m = (tl.program_id(0) % BLOCKS) * BM + tl.arange(0, BM)
    n = tl.arange(0, TP)
    c = tl.arange(0, CHUNK)
    scores = tl.zeros((BM, TP), tl.float32)
    for d in range(0, D, CHUNK):
        q = _rows(q_ptr + row * (COUNT * D), m, d + c, COUNT, D)
        x = _rows(x_ptr + row * (T * D), n, d + c, T, D)
        scores = tl.dot(q, tl.trans(x), scores, input_precision=PRECISION)
    scores = tl.where((n < T)[None, :], scores * (SCALE * LOG2E), float("-inf"))
    p = tl.exp2(scores - tl.max(scores, axis=1)[:, None])
    p *= (1 / tl.sum(p, axis=1))[:, None]
    at = row * (COUNT * T) + m[:, None] * T + n[None, :]
    tl.store(p_ptr + at, p.to(p_ptr.dtype.element_ty), mask=(m < COUNT)[:, None] & (n < T)[None, :])


@triton.jit
def _score_grad(
    back_ptr, x_ptr, p_ptr, ds_ptr, SCALE, T: tl.constexpr, TP: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    CHUNK: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of all scores of BM queries of one row."""
    COUNT: tl.constexpr = T * H
    BLOCKS: tl.constexpr = (COUNT + BM - 1) // BM
    row = (tl.program_id(0) // BLOCKS).to(tl.int64)
    m = (tl.program_id(0) % BLOCKS) * BM + tl.arange(0, BM)
    n = tl.arange(0, TP)
    c = tl.arange(0, CHUNK)
    dp = tl.zeros((BM, TP), tl.float32)
    for d in range(0, D, CHUNK):
        back = _rows(back_ptr + row * (COUNT * D), m, d + c, COUNT, D)
        x = _rows(x_ptr + row * (T * D), n, d + c, T, D)
        dp = tl.dot(back, tl.trans(x), dp, input_precision=PRECISION)
    at = row * (COUNT * T) + m[:, None] * T + n[None, :]
    ok = (m < COUNT)[:, None] & (n < T)[None, :]
    p = tl.load(p_ptr + at, mask=ok, other=0.0).to(tl.float32)
    ds = p * (dp - tl.sum(p * dp, axis=1)[:, None]) * SCALE
    tl.store(ds_ptr + at, ds.to(ds_ptr.dtype.element_ty), mask=ok)


@triton.jit
def _weighted_tokens(
    p_ptr, x_ptr, out_ptr, part_ptr, T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
    CHUNK: tl.constexpr, BN: tl.constexpr, SUMS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some columns of the sum of a row's tokens by BM of its weightings; with SUMS also added up for each head."""
    COUNT: tl.constexpr = T * H
    BLOCKS: tl.constexpr = (COUNT + BM - 1) // BM
    CHUNKS: tl.constexpr = D // CHUNK
    block = (tl.program_id(0) // CHUNKS).to(tl.int64)
    row = block // BLOCKS
    m = (block % BLOCKS).to(tl.int32) * BM + tl.arange(0, BM)
    d = (tl.program_id(0) % CHUNKS) * CHUNK + tl.arange(0, CHUNK)
    out = tl.zeros((BM, CHUNK), tl.float32)
    for first in range(0, T, BN):
        n = first + tl.arange(0, BN)
        ok = (m < COUNT)[:, None] & (n < T)[None, :]
        p = tl.load(p_ptr + row * (COUNT * T) + m[:, None] * T + n[None, :], mask=ok, other=0.0)
        out = tl.dot(p, _rows(x_ptr + row * (T * D), n, d, T, D), out, input_precision=PRECISION)
    at = row * (COUNT * D) + m[:, None] * D + d[None, :]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=(m < COUNT)[:, None])
    if SUMS:
        h = tl.arange(0, H)
        tl.store(part_ptr + block * (H * D) + h[:, None] * D + d[None, :], _by_head(out, H, BM, CHUNK))


@triton.jit
def _token_grad(
    p_ptr, back_ptr, ds_ptr, q_ptr, add_ptr, dx_ptr, T: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    CHUNK: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some columns of the gradients of BN tokens of one row, as values and as keys, added to what is there."""
    COUNT: tl.constexpr = T * H
    BLOCKS: tl.constexpr = (T + BN - 1) // BN
    CHUNKS: tl.constexpr = D // CHUNK
    row = (tl.program_id(0) // (BLOCKS * CHUNKS)).to(tl.int64)
    n = (tl.program_id(0) // CHUNKS % BLOCKS) * BN + tl.arange(0, BN)
    d = (tl.program_id(0) % CHUNKS) * CHUNK + tl.arange(0, CHUNK)
    scores, queries = row * (COUNT * T), row * (COUNT * D)
    dx = tl.zeros((BN, CHUNK), tl.float32)
    for first in range(0, COUNT, BM):
        m = first + tl.arange(0, BM)
        at = scores + m[:, None] * T + n[None, :]
        ok = (m < COUNT)[:, None] & (n < T)[None, :]
        p = tl.load(p_ptr + at, mask=ok, other=0.0)
        dx = tl.dot(tl.trans(p), _rows(back_ptr + queries, m, d, COUNT, D), dx, input_precision=PRECISION)
        ds = tl.load(ds_ptr + at, mask=ok, other=0.0)
        dx = tl.dot(tl.trans(ds), _rows(q_ptr + queries, m, d, COUNT, D), dx, input_precision=PRECISION)
    dx += _rows(add_ptr + row * (T * D), n, d, T, D).to(tl.float32)
    tl.store(
        dx_ptr + row * (T * D) + n[:, None] * D + d[None, :], dx.to(dx_ptr.dtype.element_ty), mask=(n < T)[:, None]
    )


# Launchers: shapes in, one call per operation.

TILES = {
    "narrow": {
        32: {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 3},
        64: {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 3},
    },  # by the width of a head
    "narrow grad": {
        32: {"BM": 32, "num_warps": 4, "num_stages": 2},
        64: {"BM": 16, "num_warps": 4, "num_stages": 2},
    },
    "probabilities": {"BM": 64, "CHUNK": 32, "num_warps": 4, "num_stages": 3},
    "score grad": {"BM": 128, "CHUNK": 64, "num_warps": 8, "num_stages": 3},
    "weighted": {"BM": 128, "CHUNK": 128, "BN": 32, "num_warps": 4, "num_stages": 4},
    "token": {"BN": 128, "CHUNK": 128, "BM": 64, "num_warps": 8, "num_stages": 3},
}  # the fastest of a few on an H200


def _shape(q, x, length):
    """What the kernels of attention share: rows of all models, the scale of scores, compile-time arguments."""
    k, tokens, d = x.shape
    return k * (tokens // length), d**-0.5, {"T": length, "H": q.shape[2] // d, "D": d, "PRECISION": PRECISION}


def attention(q, x, length):
    """Outputs like q (K, B * T, heads * D) on tokens x (K, B * T, D), and what the gradient needs besides."""
    rows, scale, shape = _shape(q, x, length)
    queries, out = length * shape["H"], torch.empty_like(q)
    if shape["D"] in TILES["narrow"]:
        tile = TILES["narrow"][shape["D"]]
        kept = torch.empty(rows, queries, device=q.device)
        _narrow_attention[(rows * triton.cdiv(queries, tile["BM"]),)](q, x, out, kept, scale, **shape, **tile)
    else:
        tile = TILES["probabilities"]
        kept = q.new_empty(rows, queries, length)
        _probabilities[(rows * triton.cdiv(queries, tile["BM"]),)](q, x, kept, scale, **shape, TP=power(length), **tile)
        _weigh(kept, x, out, shape)
    return out, kept


def _weigh(weights, x, out, shape, sums=False):
    """Tokens summed by weights (rows, queries, length), and with ``sums`` the sums of these by head, (K, heads * D)."""
    rows, queries, length = weights.shape
    models, width = len(x), shape["D"]
    if large_gpu.pays(out, length):
        apart = weights.unflatten(0, (models, -1)), x.view(models, -1, length, width)
        large_gpu.weighted_tokens(*apart, out.view(models, -1, queries, width))
        return large_gpu.sums_of_weighted_tokens(*apart, shape["H"]).flatten(1) if sums else None
    tile = TILES["weighted"]
    blocks, wide = triton.cdiv(queries, tile["BM"]), out.shape[2]
    part = torch.empty(models, rows // models * blocks, wide, device=x.device) if sums else None
    _weighted_tokens[(rows * blocks * (width // tile["CHUNK"]),)](weights, x, out, part, **shape, **tile, SUMS=sums)
    return _column_sums(part) if sums else None


def _column_sums(part):
    out = torch.empty(len(part), part.shape[2], device=part.device)
    column_sums(part, out)
    return out


def attention_grad(q, x, kept, out, back, add, length):
    """Gradients of q, of x plus ``add``, and of the bias of q (K, heads * D), from ``back`` at the outputs ``out``."""
    rows, scale, shape = _shape(q, x, length)
    queries, dq, dx = length * shape["H"], torch.empty_like(q), torch.empty_like(x)
    if shape["D"] in TILES["narrow"]:
        part = torch.empty(len(q), rows // len(q), q.shape[2], device=q.device)
        _narrow_grad[(rows,)](
            q, x, kept, out, back, add, dq, dx, part, scale, **shape, TP=power(length),
            **TILES["narrow grad"][shape["D"]],
        )  # fmt: skip
        of_bias = _column_sums(part)
    else:
        score, token = TILES["score grad"], TILES["token"]
        ds = torch.empty_like(kept)
        _score_grad[(rows * triton.cdiv(queries, score["BM"]),)](
            back, x, kept, ds, scale, **shape, TP=power(length), **score
        )
        of_bias = _weigh(ds, x, dq, shape, sums=True)
        tiles = triton.cdiv(length, token["BN"]) * (shape["D"] // token["CHUNK"])
        _token_grad[(rows * tiles,)](kept, back, ds, q, add, dx, **shape, **token)
    return dq, dx, of_bias
