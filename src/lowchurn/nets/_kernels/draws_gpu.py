"""A Triton kernel for fresh weights: the numbers of ``_random.uniforms``, bit for bit, in one pass over memory."""

import torch
import triton
import triton.language as tl


@triton.jit
def _scramble(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _spread_uniforms(keys_ptr, rule_ptr, out_ptr, count, BLOCK: tl.constexpr):
    model = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys_ptr + model).to(tl.uint64, bitcast=True)
    drawn = _scramble(key + (i + 1).to(tl.uint64) * 0x9E3779B97F4A7C15) >> 11
    limit = tl.load(rule_ptr)
    constant = tl.load(rule_ptr + 1)
    value = (2 * (drawn.to(tl.int64).to(tl.float64) * 2.0**-53) - 1) * limit + constant
    tl.store(out_ptr + model * count + i, value.to(out_ptr.dtype.element_ty), mask=i < count)


def spread_uniforms(keys, limit, constant, out):
    """Fill ``out`` (K, count) with numbers that are uniform in +-limit around a constant, hashed from each key."""
    rule = torch.tensor([limit, constant], device=keys.device, dtype=torch.float64)
    count = out.shape[1]
    _spread_uniforms[(triton.cdiv(count, 1024), len(keys))](keys, rule, out, count, BLOCK=1024, num_warps=4)
