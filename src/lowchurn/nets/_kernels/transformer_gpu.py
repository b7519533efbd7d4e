"""Triton kernels that train K transformers of one shape at once, all but attention.

Every kernel takes the model, or the model's row, as a grid axis, so that one launch serves all K models. Sums over rows
(gradients of biases, of normalisations and of tokens) are cut into partial sums that are added in a fixed order: no
atomics, so results repeat bit for bit.
"""

import torch
import triton
import triton.language as tl

from lowchurn.nets._kernels.attention_gpu import LONGEST, MOST_HEADS, PRECISION, attention, attention_grad
from lowchurn.nets._kernels.dense_gpu import KERAS_ADAM, _keras_adam, adam
from lowchurn.nets._kernels.heads_gpu import Merged, merge, merge_grad
from lowchurn.nets._kernels.products_gpu import product, product_back, product_grad

__all__ = [
    "Merged", "adam", "add_norm", "add_norm_grad", "attention", "attention_grad", "bias_relu", "embed", "fits", "merge",
    "merge_grad", "product", "product_back", "product_grad", "relu_grad", "sorted_tokens", "token_adam",
]  # fmt: skip

NORM_EPSILON = 1e-6
TOKENS = 128  # sorted tokens that one program adds up


@triton.jit(do_not_specialize=["VOCABULARY", "ROWS"])
def _embed(
    ids_ptr, table_ptr, position_ptr, x_ptr, VOCABULARY, ROWS, T: tl.constexpr, FULL: tl.constexpr, W: tl.constexpr,
    BT: tl.constexpr,
):  # fmt: skip
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
    same = (token[:, None] == token[None, :]).to(back_ptr.dtype.element_ty)
    place = (key % PLACES).to(tl.int64)
    c = tl.arange(0, CHUNK)
    for w in tl.static_range(0, W, CHUNK):
        back = tl.load(back_ptr + (model * PLACES + place)[:, None] * W + (w + c)[None, :], mask=ok[:, None], other=0.0)
        sums = tl.dot(same, back, input_precision=PRECISION)
        tl.store(part_ptr + (model * PLACES + i)[:, None] * W + (w + c)[None, :], sums, mask=leads[:, None])


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
    "tokens": 8192,  # numbers of a tile of tokens that is normalised
    "table": 2048,  # numbers of a tile of Adam over the table
}  # the fastest of a few on an H200


def fits(width, heads, length):
    """Whether the kernels take networks of this width and so many heads on rows of this length."""
    powers = all(n & (n - 1) == 0 for n in (width, heads))
    return length <= LONGEST and width >= 16 and heads <= MOST_HEADS and powers


def _block(width, length, numbers):
    return min(triton.next_power_of_2(length), max(1, numbers // width))


def embed(ids, table, position, x):
    """Write x (K, B, T, W): rows of each model's table (K, V, W) and positions (K, L, W)."""
    k, rows, t, w = x.shape
    bt = _block(w, t, TILES["tokens"])
    _embed[(k * rows, triton.cdiv(t, bt))](
        ids, table, position, x, table.shape[1], rows, T=t, FULL=position.shape[1], W=w, BT=bt, num_warps=4
    )


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
