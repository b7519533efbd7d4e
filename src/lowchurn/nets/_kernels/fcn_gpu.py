"""Train and evaluate thousands of one-hidden-layer ReLU softmax networks at once on one GPU.

Each Triton program trains one network (or one co-distilled pair) for a whole epoch: it loops over
the minibatches inside the kernel, so the parameters and Adam moments of the networks that are in
flight stay in the L2 cache, and gradients never reach memory.

Storage.  Everything that belongs to a hidden unit is one column of ``params`` (see fcn_packed.py): a tile
of units is then ONE load, one Adam update and one store, coalesced along the units, and the bias costs
nothing (the features get a column of ones).

Orientation.  Tiles are (units, rows of the batch): units are the long axis, so all warps find work
in the matrix units, and the reductions over the batch (gradients) stay inside a warp.
"""

import torch
import triton
import triton.language as tl

from lowchurn.nets._kernels.fcn_gpu_tiles import (
    _adam,
    _backward_and_adam,
    _class_number,
    _forward_logits,
    _gather_rows,
    _load_batch,
    _load_output_bias,
    _load_tile,
    _log_softmax,
    _logit_gradient,
    _output_weights,
    _pair_gradient,
    _store_output_bias,
    _store_tile,
    _tile_gradient,
    _tile_logits,
)  # fmt: skip
from lowchurn.nets._kernels.fcn_packed import STEP_TABLE_LENGTH, step_sizes
from lowchurn.nets._stacks._stack import BETA1, BETA2, EPSILON

LOSS_CODES = {"log": 0, "squared": 1}
# Up to this many classes the output layer is done elementwise: a matrix instruction would pad the
# classes to 16.
MAX_NARROW_CLASSES = 4


@triton.jit(do_not_specialize=["n"])
def _train_kernel(
    params_ptr, m_ptr, v_ptr, bias_ptr, bias_m_ptr, bias_v_ptr, x_ptr, rows_ptr, targets_ptr, weights_ptr, order_ptr,
    mate_ptr, mix_ptr, done_ptr, coupling_ptr, step_size_ptr, n, stride_rows, stride_target_model,
    stride_target_row, stride_weights, stride_order, stride_mix, rate1, rate2, epsilon, D: tl.constexpr,
    H: tl.constexpr, C: tl.constexpr, BATCH: tl.constexpr, BP: tl.constexpr, BH: tl.constexpr, RP: tl.constexpr,
    CW: tl.constexpr, WIDE: tl.constexpr, LOSS: tl.constexpr, MIXUP: tl.constexpr, TWIN: tl.constexpr,
    RESIDENT: tl.constexpr, PRECISION: tl.constexpr, LAST_STEP_SIZE: tl.constexpr,
):  # fmt: skip
    """One epoch of the network (or pair) ``program_id(0)``."""
    class_number = _class_number(D, CW, WIDE)
    model_size: tl.constexpr = (D + 1 + C) * H
    model = tl.program_id(0).to(tl.int64)
    if TWIN:
        model = 2 * model
    done = tl.load(done_ptr + model).to(tl.int32)

    my_rows = rows_ptr + model * stride_rows
    my_targets = targets_ptr + model * stride_target_model
    my_weights = weights_ptr + model * stride_weights
    my_order = order_ptr + model * stride_order
    my_mate = my_order
    my_mix = x_ptr
    if MIXUP:
        my_mate = mate_ptr + model * stride_order
        my_mix = mix_ptr + model * stride_mix

    params_a = params_ptr + model * model_size
    m_a = m_ptr + model * model_size
    v_a = v_ptr + model * model_size
    bias_a = _load_output_bias(bias_ptr + model * C, class_number, C)
    bias_m_a = _load_output_bias(bias_m_ptr + model * C, class_number, C)
    bias_v_a = _load_output_bias(bias_v_ptr + model * C, class_number, C)
    if TWIN:
        coupling = tl.load(coupling_ptr + tl.program_id(0))
        params_b = params_a + model_size
        m_b = m_a + model_size
        v_b = v_a + model_size
        bias_b = _load_output_bias(bias_ptr + model * C + C, class_number, C)
        bias_m_b = _load_output_bias(bias_m_ptr + model * C + C, class_number, C)
        bias_v_b = _load_output_bias(bias_v_ptr + model * C + C, class_number, C)
    if RESIDENT:
        # The whole network fits into registers: memory is touched once per epoch.
        tile_a = _load_tile(params_a, 0, D, H, C, BH, RP)
        tile_m_a = _load_tile(m_a, 0, D, H, C, BH, RP)
        tile_v_a = _load_tile(v_a, 0, D, H, C, BH, RP)
        if TWIN:
            tile_b = _load_tile(params_b, 0, D, H, C, BH, RP)
            tile_m_b = _load_tile(m_b, 0, D, H, C, BH, RP)
            tile_v_b = _load_tile(v_b, 0, D, H, C, BH, RP)

    for step in range(0, tl.cdiv(n, BATCH)):
        features, targets, weights = _load_batch(
            x_ptr, my_rows, my_targets, my_weights, my_order, my_mate, my_mix, step, n, stride_target_row, D, C, RP, CW,
            WIDE, BATCH, BP, MIXUP,
        )  # fmt: skip
        step_size = tl.load(step_size_ptr + tl.minimum(done + step, LAST_STEP_SIZE))

        if RESIDENT:
            logits_a = bias_a[None, :] + _tile_logits(
                params_a, tile_a, features, 0, D, H, C, BH, CW, WIDE, False, PRECISION
            )
        else:
            logits_a = _forward_logits(
                params_a, bias_a, features, D, H, C, BH, RP, CW, WIDE, PRECISION,
            )  # fmt: skip
        if TWIN:
            if RESIDENT:
                logits_b = bias_b[None, :] + _tile_logits(
                    params_b, tile_b, features, 0, D, H, C, BH, CW, WIDE, False, PRECISION
                )
            else:
                logits_b = _forward_logits(
                    params_b, bias_b, features, D, H, C, BH, RP, CW, WIDE, PRECISION,
                )  # fmt: skip
            gradient_a, gradient_b = _pair_gradient(logits_a, logits_b, targets, coupling, class_number, C, LOSS)
            gradient_b = gradient_b * weights[:, None]
        else:
            _, p = _log_softmax(logits_a, class_number, C)
            gradient_a = _logit_gradient(p, targets, C, LOSS)
        gradient_a = gradient_a * weights[:, None]

        if RESIDENT:
            tile_gradient = _tile_gradient(
                params_a, tile_a, features, gradient_a, 0, D, H, C, BH, RP, WIDE, False, PRECISION,
            )  # fmt: skip
            tile_a, tile_m_a, tile_v_a = _adam(
                tile_a, tile_m_a, tile_v_a, tile_gradient, step_size, rate1, rate2, epsilon
            )
        else:
            # Nobody overwrites parameters that another warp still reads in its forward pass.
            tl.debug_barrier()
            _backward_and_adam(
                params_a, m_a, v_a, features, gradient_a, step_size, rate1, rate2, epsilon, D, H, C, BH, RP, WIDE,
                PRECISION,
            )  # fmt: skip
        bias_a, bias_m_a, bias_v_a = _adam(
            bias_a, bias_m_a, bias_v_a, tl.sum(gradient_a, axis=0), step_size, rate1, rate2, epsilon,
        )  # fmt: skip
        if TWIN:
            if RESIDENT:
                tile_gradient = _tile_gradient(
                    params_b, tile_b, features, gradient_b, 0, D, H, C, BH, RP, WIDE, False, PRECISION,
                )  # fmt: skip
                tile_b, tile_m_b, tile_v_b = _adam(
                    tile_b, tile_m_b, tile_v_b, tile_gradient, step_size, rate1, rate2, epsilon,
                )  # fmt: skip
            else:
                _backward_and_adam(
                    params_b, m_b, v_b, features, gradient_b, step_size, rate1, rate2, epsilon, D, H, C, BH, RP, WIDE,
                    PRECISION,
                )  # fmt: skip
            bias_b, bias_m_b, bias_v_b = _adam(
                bias_b, bias_m_b, bias_v_b, tl.sum(gradient_b, axis=0), step_size, rate1, rate2, epsilon,
            )  # fmt: skip
        if not RESIDENT:
            # The next step reads in another layout what this one wrote.
            tl.debug_barrier()

    _store_output_bias(bias_ptr + model * C, bias_a, class_number, C)
    _store_output_bias(bias_m_ptr + model * C, bias_m_a, class_number, C)
    _store_output_bias(bias_v_ptr + model * C, bias_v_a, class_number, C)
    if RESIDENT:
        _store_tile(params_a, tile_a, 0, D, H, C, BH, RP)
        _store_tile(m_a, tile_m_a, 0, D, H, C, BH, RP)
        _store_tile(v_a, tile_v_a, 0, D, H, C, BH, RP)
    if TWIN:
        _store_output_bias(bias_ptr + model * C + C, bias_b, class_number, C)
        _store_output_bias(bias_m_ptr + model * C + C, bias_m_b, class_number, C)
        _store_output_bias(bias_v_ptr + model * C + C, bias_v_b, class_number, C)
        if RESIDENT:
            _store_tile(params_b, tile_b, 0, D, H, C, BH, RP)
            _store_tile(m_b, tile_m_b, 0, D, H, C, BH, RP)
            _store_tile(v_b, tile_v_b, 0, D, H, C, BH, RP)


@triton.jit(do_not_specialize=["rows_each"])
def _evaluate_kernel(
    params_ptr, bias_ptr, x_ptr, rows_ptr, out_ptr, rows_each, stride_rows, stride_out, D: tl.constexpr,
    H: tl.constexpr, C: tl.constexpr, BN: tl.constexpr, BH: tl.constexpr, RP: tl.constexpr, CW: tl.constexpr,
    WIDE: tl.constexpr, ARGMAX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Logits (K, n, C), or the most likely class (K, n) uint8, of one block of rows of one network.

    Here rows are the long axis, so the features stay in registers and the reduction over the units
    stays inside a warp.
    """
    model = tl.program_id(0).to(tl.int64)
    class_number = _class_number(D, CW, WIDE)
    is_class = (class_number >= 0) & (class_number < C)
    model_size: tl.constexpr = (D + 1 + C) * H
    params = params_ptr + model * model_size
    output_bias = _load_output_bias(bias_ptr + model * C, class_number, C)
    place = tl.program_id(1) * BN + tl.arange(0, BN)
    valid = place < rows_each
    pool_row = place
    if rows_ptr is not None:
        pool_row = tl.load(rows_ptr + model * stride_rows + place, mask=valid, other=0)
    features = _gather_rows(x_ptr, pool_row, valid, D, RP)
    logits = tl.zeros((BN, CW), tl.float32) + output_bias[None, :]
    for first_unit in tl.range(0, H, BH):
        tile = _load_tile(params, first_unit, D, H, C, BH, RP)
        hidden = tl.dot(features, tl.trans(tile), input_precision=PRECISION)
        hidden = tl.maximum(hidden, 0.0)
        if WIDE:
            logits = tl.dot(hidden, tile, acc=logits, input_precision=PRECISION)
        else:
            for j in tl.static_range(C):
                w2 = _output_weights(params, tile, first_unit, j, D, H, BH, True)
                logit = tl.sum(hidden * w2[None, :], axis=1)
                logits += tl.where(class_number[None, :] == j, logit[:, None], 0.0)
    place = place.to(tl.int64)
    if ARGMAX:
        logits = tl.where(is_class[None, :], logits, float("-inf"))
        best = tl.argmax(logits, axis=1)
        if WIDE:
            best = best - (D + 1)
        tl.store(out_ptr + model * stride_out + place, best.to(tl.uint8), mask=valid)
    else:
        out = out_ptr + model * stride_out + place[:, None] * C + class_number[None, :]
        tl.store(out, logits, mask=valid[:, None] & is_class[None, :])


def tile_widths(d, c):
    """Padded sizes of the tiles for `d` features and `c` classes: RP, CW, WIDE.

    RP : columns of a parameter tile (power of two, at least 16); CW : columns of a logits tile; WIDE : whether the
    output layer is done by matrix products.
    """
    rows = max(16, triton.next_power_of_2(d + 1 + c))
    wide = c > MAX_NARROW_CLASSES
    return rows, rows if wide else max(2, triton.next_power_of_2(c)), wide


def tiles(inputs, units, classes):
    """The tile shape that was fastest on an H200 for networks like this one, as arguments of `train_epoch`."""
    if units <= 128:  # the whole network stays in registers
        block = max(16, triton.next_power_of_2(units))
        return {"block_hidden": block, "num_warps": {16: 1, 32: 2, 64: 4, 128: 4}[block]}
    padded, _, wide = tile_widths(inputs, classes)
    if padded > 64:
        return {"block_hidden": 32, "num_warps": 4}
    if wide or padded > 32:
        return {"block_hidden": 64, "num_warps": 4}
    if units > 4000:
        return {"block_hidden": 128, "num_warps": 8, "maxnreg": 128}
    return {"block_hidden": 64, "num_warps": 4, "maxnreg": 128}


def train_epoch(
    params, m, v, bias, bias_m, bias_v, x, rows, targets, weights, order, steps_done, *, mate, mix, coupling, loss,
    batch_size, learning_rate, precision, block_hidden, num_warps, maxnreg=None,
):  # fmt: skip
    """Train every network for one epoch, in place, with one kernel launch.

    Parameters
    ----------
    params, m, v : torch.Tensor, shape (K, d + 1 + c, h), float32, contiguous
        Packed parameters (see `fcn_packed.pack_parameters`) and their Adam moments; updated.
    bias, bias_m, bias_v : torch.Tensor, shape (K, c), float32, contiguous
        Output bias and its moments; updated.
    x : torch.Tensor, shape (N, d), float32, contiguous
        Pool of feature rows that all networks share.
    rows, order : torch.Tensor of int, shape (K, n)
        Pool rows each network trains on, and shuffled positions ``0..n-1`` in them.
    targets, weights : torch.Tensor, shapes (K, n, c), (K, n), float32
        Soft targets and weights of those rows.
    steps_done : torch.Tensor of int, shape (K,)
        Adam steps done before this epoch.
    mate, mix : torch.Tensor of int, shape (K, n), and of float32, shape (K, steps), or None
        Positions to mix in, strides and dtype as `order`, and the mixup coefficient of each batch.
    coupling : torch.Tensor, shape (K / 2,), float32, or None
        Co-distillation: networks ``2p`` and ``2p + 1`` train as a pair, with this share of the
        coupling loss, on the rows, targets, weights, order and steps given for network ``2p``.
    loss : {"log", "squared"}
    precision : {"ieee", "tf32x3", "tf32"}
        Arithmetic of the matrix products.
    block_hidden, num_warps : int
        Hidden units per tile, a power of two, at least 16; warps per program.
    maxnreg : int, optional
        Bound on registers per thread, which lets more programs run at once.
    """
    K, packed_rows, h = params.shape
    d = x.shape[1]
    c = packed_rows - d - 1
    n = order.shape[1]
    widths, class_width, wide = tile_widths(d, c)
    count = K if coupling is None else K // 2
    options = {} if maxnreg is None else {"maxnreg": maxnreg}
    _train_kernel[(count,)](
        params, m, v, bias, bias_m, bias_v, x, rows, targets, weights, order, mate, mix,
        steps_done, coupling, step_sizes(params.device, learning_rate),
        n, rows.stride(0), targets.stride(0), targets.stride(1), weights.stride(0),
        order.stride(0), 0 if mix is None else mix.stride(0), 1 - BETA1, 1 - BETA2, EPSILON,
        D=d, H=h, C=c, BATCH=batch_size, BP=max(16, triton.next_power_of_2(batch_size)),
        BH=block_hidden, RP=widths, CW=class_width, WIDE=wide, LOSS=LOSS_CODES[loss],
        MIXUP=mix is not None, TWIN=coupling is not None, RESIDENT=h <= block_hidden,
        PRECISION=precision, LAST_STEP_SIZE=STEP_TABLE_LENGTH - 1,
        num_warps=num_warps, num_stages=1, **options,
    )  # fmt: skip


def evaluate(params, bias, x, *, rows=None, argmax=False):
    """Logits (K, n, c), or decisions (K, n) uint8, of every network; products are done in three tf32 parts.

    Parameters
    ----------
    params, bias : torch.Tensor, shapes (K, d + 1 + c, h), (K, c), float32, contiguous
        Packed parameters and output bias.
    x : torch.Tensor, shape (N, d), float32, contiguous
        Rows; all of them for every network, unless `rows` is given.
    rows : torch.Tensor of int, shape (K, n), optional
        Rows of `x` for each network.
    """
    K, packed_rows, h = params.shape
    d = x.shape[1]
    c = packed_rows - d - 1
    n = x.shape[0] if rows is None else rows.shape[1]
    widths, class_width, wide = tile_widths(d, c)
    if argmax:
        out = torch.empty((K, n), dtype=torch.uint8, device=params.device)
    else:
        out = torch.empty((K, n, c), dtype=torch.float32, device=params.device)
    block_rows, block_hidden = (128, 64) if widths <= 64 else (64, 32)
    _evaluate_kernel[(K, triton.cdiv(n, block_rows))](
        params, bias, x, rows, out, n, 0 if rows is None else rows.stride(0), out.stride(0),
        D=d, H=h, C=c, BN=block_rows, BH=block_hidden, RP=widths, CW=class_width, WIDE=wide,
        ARGMAX=argmax, PRECISION="tf32x3", num_warps=4, num_stages=1,
    )  # fmt: skip
    return out
