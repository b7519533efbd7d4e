"""Triton kernels that merge the projections of attention, two and two, for K models at once.

A head's score of two tokens is ``(x Wq + bq) (y Wk + bk)'``. What ``bk`` adds is the same for all y and changes no
probability; the rest is ``(x M + u) y'`` with the width x width matrix ``M = Wq Wk'`` and ``u = Wk bq``. Its contribution
to the output is ``p y Wv Wo + bv Wo``, since the probabilities p sum to one: with ``N = Wv Wo`` and ``c`` the sum of all
``bv Wo``, values are tokens as well. So a step needs two products of tokens and weights instead of four, and four
instead of eight in the backward pass, at the price of products of weights with weights: one part in
``batch * length / width`` of each that is saved.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from lowchurn.nets._kernels.attention_gpu import PRECISION


class Merged(NamedTuple):
    """Weights and bias of the queries, (K, D, H * D) and (K, H * D), and of the output, (K, H * D, D) and (K, D)."""

    queries: torch.Tensor
    query_bias: torch.Tensor
    outputs: torch.Tensor
    output_bias: torch.Tensor


@triton.jit
def _matrices(
    a_ptr, b_ptr, out_ptr, left_ptr, right_ptr, A_MODEL, B_MODEL, OUT_MODEL, LEFT_MODEL, RIGHT_MODEL,
    HEADS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, A_HEAD: tl.constexpr, A_I: tl.constexpr,
    A_L: tl.constexpr, B_HEAD: tl.constexpr, B_L: tl.constexpr, B_J: tl.constexpr, OUT_HEAD: tl.constexpr,
    OUT_I: tl.constexpr, LEFT_HEAD: tl.constexpr, RIGHT_HEAD: tl.constexpr, OUTER: tl.constexpr, LOW: tl.constexpr,
    BI: tl.constexpr, BJ: tl.constexpr, BL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of ``a @ b`` of one head, and with OUTER plus ``left right'``; operands are rounded to LOW."""
    model = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
    i = (tl.program_id(0) // (COLUMNS // BJ)) * BI + tl.arange(0, BI)
    j = (tl.program_id(0) % (COLUMNS // BJ)) * BJ + tl.arange(0, BJ)
    a_ptr += model * A_MODEL + head * A_HEAD
    b_ptr += model * B_MODEL + head * B_HEAD
    acc = tl.zeros((BI, BJ), tl.float32)
    for first in range(0, INNER, BL):
        at = first + tl.arange(0, BL)
        a = tl.load(a_ptr + i[:, None] * A_I + at[None, :] * A_L).to(LOW)
        b = tl.load(b_ptr + at[:, None] * B_L + j[None, :] * B_J).to(LOW)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    if OUTER:
        left = tl.load(left_ptr + model * LEFT_MODEL + head * LEFT_HEAD + i)
        right = tl.load(right_ptr + model * RIGHT_MODEL + head * RIGHT_HEAD + j)
        acc += left[:, None] * right[None, :]
    out = out_ptr + model * OUT_MODEL + head * OUT_HEAD + i[:, None] * OUT_I + j[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty))


@triton.jit
def _times_vector(
    a_ptr, v_ptr, add_ptr, out_ptr, A_MODEL, V_MODEL, ADD_MODEL, OUT_MODEL, HEADS: tl.constexpr, INNER: tl.constexpr,
    A_HEAD: tl.constexpr, A_I: tl.constexpr, A_L: tl.constexpr, V_HEAD: tl.constexpr, OUT_HEAD: tl.constexpr,
    ADD: tl.constexpr, BI: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """``a @ v``, and with ADD plus a vector, of BI rows of one head, in float32."""
    model = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
    i = tl.program_id(0) * BI + tl.arange(0, BI)
    a_ptr += model * A_MODEL + head * A_HEAD
    total = tl.zeros((BI, BL), tl.float32)
    for first in range(0, INNER, BL):
        at = first + tl.arange(0, BL)
        a = tl.load(a_ptr + i[:, None] * A_I + at[None, :] * A_L)
        total += a * tl.load(v_ptr + model * V_MODEL + head * V_HEAD + at)[None, :]
    out = tl.sum(total, axis=1)
    if ADD:
        out += tl.load(add_ptr + model * ADD_MODEL + i)
    tl.store(out_ptr + model * OUT_MODEL + head * OUT_HEAD + i, out)


LOW = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32, torch.float16: tl.float16}  # the last two in tests

# Launchers: views (K, heads, rows, columns) of the weights of all models, vectors (K, heads, n).


def _multiply(a, b, out, low, left=None, right=None):
    """``out = a @ b``, plus ``left right'`` where these vectors are there; ``a`` and ``b`` are rounded to ``low``."""
    (models, heads, rows, inner), columns = a.shape, b.shape[3]
    tile = {name: min(size, n) for name, size, n in (("BI", 128, rows), ("BJ", 128, columns), ("BL", 64, inner))}
    of_left, of_right = ((0, 0) if v is None else v.stride()[:2] for v in (left, right))
    _matrices[((rows // tile["BI"]) * (columns // tile["BJ"]), models * heads)](
        a, b, out, left, right, a.stride(0), b.stride(0), out.stride(0), of_left[0], of_right[0], HEADS=heads,
        COLUMNS=columns, INNER=inner, A_HEAD=a.stride(1), A_I=a.stride(2), A_L=a.stride(3), B_HEAD=b.stride(1),
        B_L=b.stride(2), B_J=b.stride(3), OUT_HEAD=out.stride(1), OUT_I=out.stride(2), LEFT_HEAD=of_left[1],
        RIGHT_HEAD=of_right[1], OUTER=left is not None, LOW=LOW[low], **tile, PRECISION=PRECISION,
        num_warps=8 if tile["BI"] == 128 else 4,
    )  # fmt: skip


def _apply(a, v, out, add=None):
    """``out = a @ v``, plus ``add`` (K, n) where it is there, in float32."""
    models, heads, rows, inner = a.shape
    tile = {"BI": min(16, rows), "BL": min(256, inner)}
    _times_vector[(rows // tile["BI"], models * heads)](
        a, v, add, out, a.stride(0), v.stride(0), 0 if add is None else add.stride(0), out.stride(0), HEADS=heads,
        INNER=inner, A_HEAD=a.stride(1), A_I=a.stride(2), A_L=a.stride(3), V_HEAD=v.stride(1), OUT_HEAD=out.stride(1),
        ADD=add is not None, **tile,
    )  # fmt: skip


def _parts(of, heads):
    """Views of the weights and biases of queries, keys, values and output, by head."""
    weight, bias, out = of["qkv.weight"], of["qkv.bias"], of["out.weight"]
    models, width = weight.shape[:2]
    q, k, v = weight.view(models, width, 3, heads, width).permute(2, 0, 3, 1, 4).unbind(0)
    of_q, _, of_v = bias.view(models, 3, heads, width).unbind(1)
    return q, k, v, out.view(models, heads, width, width), of_q, of_v


def merge(low, exact, heads):
    """The merged weights, from weights rounded as the products take them and as they are."""
    q, k, v, out, *_ = _parts(low, heads)
    models, _, width, _ = q.shape
    queries, outputs = q.new_empty(models, width, heads * width), q.new_empty(models, heads * width, width)
    _multiply(q, k.mT, _by_head(queries, heads), q.dtype)
    _multiply(v, out, outputs.view_as(out), q.dtype)
    _, k, _, out, of_q, of_v = _parts(exact, heads)
    query_bias, output_bias = k.new_empty(models, heads, width), torch.empty_like(exact["out.bias"])
    _apply(k, of_q, query_bias)
    every = out.flatten(1, 2).mT.unsqueeze(1)  # all heads as one
    _apply(every, of_v.reshape(models, 1, -1), output_bias.unsqueeze(1), exact["out.bias"])
    return Merged(queries, query_bias.flatten(1), outputs, output_bias)


def merge_grad(low, exact, back, slopes, heads):
    """Write the gradients of all projections and their biases from those of the merged ones, in float32.

    That of the keys' bias is zero, and is left as it is.
    """
    q, k, v, out, *_ = _parts(low, heads)
    _, exact_k, _, exact_out, of_q, of_v = _parts(exact, heads)
    dq, dk, dv, dout, dof_q, dof_v = _parts(slopes, heads)
    queries, outputs, query_bias = (
        _by_head(back.queries, heads),
        back.outputs.view_as(out),
        back.query_bias.view_as(of_q),
    )
    output_bias = back.output_bias.unsqueeze(1).expand(-1, heads, -1)
    _multiply(queries, k, dq, q.dtype)
    _multiply(queries.mT, q, dk, q.dtype, query_bias, of_q)
    _multiply(outputs, out.mT, dv, q.dtype)
    _multiply(v.mT, outputs, dout, q.dtype, of_v, output_bias)
    _apply(exact_k.mT, query_bias, dof_q)
    _apply(exact_out, output_bias, dof_v)
    slopes["out.bias"].copy_(back.output_bias)


def _by_head(weight, heads):
    """A view (K, heads, D, D) of the weights of all queries."""
    return weight.unflatten(2, (heads, -1)).transpose(1, 2)
