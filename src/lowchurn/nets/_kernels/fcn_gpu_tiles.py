"""Device functions of the fully connected networks' GPU kernels: batches, tiles of hidden units, losses, Adam.

See `fcn_gpu` for the storage and the orientation that they share.
"""

import triton
import triton.language as tl


@triton.jit
def _adam(weight, m, v, gradient, step_size, rate1, rate2, epsilon):
    """One Adam update, as Keras orders the operations; ``rate`` is one minus beta."""
    m += (gradient - m) * rate1
    v += (gradient * gradient - v) * rate2
    weight -= step_size * m / (tl.sqrt(v) + epsilon)
    return weight, m, v


@triton.jit
def _class_number(D: tl.constexpr, CW: tl.constexpr, WIDE: tl.constexpr):
    """Class of each column of a (rows, CW) logits tile; outside ``0..C-1`` it is padding.

    A wide output layer is done by matrix products with the whole parameter tile, so its logits
    come out in the tile's own columns, behind the inputs and the bias.
    """
    columns = tl.arange(0, CW)
    if WIDE:
        columns = columns - (D + 1)
    return columns


@triton.jit
def _gather_rows(x_ptr, pool_row, valid, D: tl.constexpr, RP: tl.constexpr):
    """Load features of the given pool rows, (rows, RP): inputs, a one for the bias, zeros."""
    column = tl.arange(0, RP)
    features = tl.load(
        x_ptr + pool_row.to(tl.int64)[:, None] * D + column[None, :],
        mask=valid[:, None] & (column[None, :] < D),
        other=0.0,
    )
    return tl.where(valid[:, None] & (column[None, :] == D), 1.0, features)


@triton.jit
def _gather_targets(targets_ptr, position, valid, stride_row, C: tl.constexpr, class_number):
    """Load soft targets of the given rows of a model, zero outside the classes."""
    is_class = (class_number >= 0) & (class_number < C)
    return tl.load(
        targets_ptr + position.to(tl.int64)[:, None] * stride_row + class_number[None, :],
        mask=valid[:, None] & is_class[None, :],
        other=0.0,
    )


@triton.jit
def _load_batch(
    x_ptr, rows_ptr, targets_ptr, weights_ptr, order_ptr, mate_ptr, mix_ptr, step, n, stride_target_row,
    D: tl.constexpr, C: tl.constexpr, RP: tl.constexpr, CW: tl.constexpr, WIDE: tl.constexpr, BATCH: tl.constexpr,
    BP: tl.constexpr, MIXUP: tl.constexpr,
):  # fmt: skip
    """Features, targets and row weights (already over the batch size) of one minibatch."""
    lane = tl.arange(0, BP)
    place = step * BATCH + lane
    valid = (lane < BATCH) & (place < n)
    class_number = _class_number(D, CW, WIDE)
    position = tl.load(order_ptr + place, mask=valid, other=0)
    features = _gather_rows(x_ptr, tl.load(rows_ptr + position, mask=valid, other=0), valid, D, RP)
    targets = _gather_targets(targets_ptr, position, valid, stride_target_row, C, class_number)
    weights = tl.load(weights_ptr + position, mask=valid, other=0.0)
    if MIXUP:
        share = tl.load(mix_ptr + step)
        mate = tl.load(mate_ptr + place, mask=valid, other=0)
        mate_row = tl.load(rows_ptr + mate, mask=valid, other=0)
        features = share * features + (1.0 - share) * _gather_rows(x_ptr, mate_row, valid, D, RP)
        targets = share * targets + (1.0 - share) * _gather_targets(
            targets_ptr, mate, valid, stride_target_row, C, class_number
        )
        weights = share * weights + (1.0 - share) * tl.load(weights_ptr + mate, mask=valid, other=0.0)
    batch_rows = tl.minimum(n - step * BATCH, BATCH)
    return features, targets, weights / batch_rows.to(tl.float32)


@triton.jit
def _tile_column(tile, column):
    """One column of a register tile, as a vector over its rows."""
    columns = tl.arange(0, tile.shape[1])
    return tl.sum(tl.where(columns[None, :] == column, tile, 0.0), axis=1)


@triton.jit
def _load_tile(
    base_ptr, first_unit, D: tl.constexpr, H: tl.constexpr, C: tl.constexpr, BH: tl.constexpr, RP: tl.constexpr,
):  # fmt: skip
    """Load a (units, RP) tile of parameters or moments; padding is zero and stays zero."""
    unit = first_unit + tl.arange(0, BH)
    row = tl.arange(0, RP)
    inside = (unit[:, None] < H) & (row[None, :] < D + 1 + C)
    return tl.load(base_ptr + row[None, :] * H + unit[:, None], mask=inside, other=0.0)


@triton.jit
def _store_tile(
    base_ptr, tile, first_unit, D: tl.constexpr, H: tl.constexpr, C: tl.constexpr, BH: tl.constexpr, RP: tl.constexpr,
):  # fmt: skip
    unit = first_unit + tl.arange(0, BH)
    row = tl.arange(0, RP)
    inside = (unit[:, None] < H) & (row[None, :] < D + 1 + C)
    tl.store(base_ptr + row[None, :] * H + unit[:, None], tile, mask=inside)


@triton.jit
def _output_weights(
    base_ptr, tile, first_unit, class_index, D: tl.constexpr, H: tl.constexpr, BH: tl.constexpr,
    FROM_MEMORY: tl.constexpr,
):  # fmt: skip
    """Output weights of a tile's units for one class: a vector (units,).

    From memory it is one cached load straight into the layout that needs it; from the tile it is a
    reduction across lanes, the only way when the parameters live in registers.
    """
    if FROM_MEMORY:
        unit = first_unit + tl.arange(0, BH)
        out = tl.load(base_ptr + (D + 1 + class_index) * H + unit, mask=unit < H, other=0.0)
    else:
        out = _tile_column(tile, D + 1 + class_index)
    return out


@triton.jit
def _tile_logits(
    base_ptr, tile, features, first_unit, D: tl.constexpr, H: tl.constexpr, C: tl.constexpr, BH: tl.constexpr,
    CW: tl.constexpr, WIDE: tl.constexpr, FROM_MEMORY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Contribution of one tile of hidden units to the logits, (rows, CW)."""
    hidden = tl.maximum(tl.dot(tile, tl.trans(features), input_precision=PRECISION), 0.0)
    if WIDE:
        # The columns of the inputs and the bias come out as garbage that nobody reads.
        logits = tl.trans(tl.dot(tl.trans(tile), hidden, input_precision=PRECISION))
    else:
        class_number = tl.arange(0, CW)
        logits = tl.zeros((features.shape[0], CW), tl.float32)
        for j in tl.static_range(C):
            w2 = _output_weights(base_ptr, tile, first_unit, j, D, H, BH, FROM_MEMORY)
            logit = tl.sum(hidden * w2[:, None], axis=0)
            logits += tl.where(class_number[None, :] == j, logit[:, None], 0.0)
    return logits


@triton.jit
def _tile_gradient(
    base_ptr, tile, features, logit_gradient, first_unit, D: tl.constexpr, H: tl.constexpr, C: tl.constexpr,
    BH: tl.constexpr, RP: tl.constexpr, WIDE: tl.constexpr, FROM_MEMORY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of the batch loss with respect to a tile of parameters, (units, RP)."""
    row = tl.arange(0, RP)
    before = tl.dot(tile, tl.trans(features), input_precision=PRECISION)
    hidden = tl.maximum(before, 0.0)
    if WIDE:
        # logit_gradient is zero outside the class columns: only the output weights count.
        back = tl.dot(tile, tl.trans(logit_gradient), input_precision=PRECISION)
        back = tl.where(before > 0.0, back, 0.0)
        gradient = tl.dot(back, features, input_precision=PRECISION)
        gradient = tl.dot(hidden, logit_gradient, acc=gradient, input_precision=PRECISION)
    else:
        back = tl.zeros((BH, features.shape[0]), tl.float32)
        for j in tl.static_range(C):
            w2 = _output_weights(base_ptr, tile, first_unit, j, D, H, BH, FROM_MEMORY)
            back += w2[:, None] * _tile_column(logit_gradient, j)[None, :]
        back = tl.where(before > 0.0, back, 0.0)
        gradient = tl.dot(back, features, input_precision=PRECISION)
        for j in tl.static_range(C):
            of_w2 = tl.sum(hidden * _tile_column(logit_gradient, j)[None, :], axis=1)
            gradient += tl.where(row[None, :] == D + 1 + j, of_w2[:, None], 0.0)
    return gradient


@triton.jit
def _log_softmax(logits, class_number, C: tl.constexpr):
    """Log probabilities (0 in padding) and probabilities (0 in padding)."""
    is_class = ((class_number >= 0) & (class_number < C))[None, :]
    shifted = tl.where(is_class, logits, float("-inf"))
    shifted = shifted - tl.max(shifted, axis=1)[:, None]
    exponential = tl.exp(shifted)
    total = tl.sum(exponential, axis=1)
    log_p = tl.where(is_class, shifted - tl.log(total)[:, None], 0.0)
    return log_p, exponential / total[:, None]


@triton.jit
def _through_softmax(p, gradient_of_p):
    return p * (gradient_of_p - tl.sum(p * gradient_of_p, axis=1)[:, None])


@triton.jit
def _logit_gradient(p, targets, C: tl.constexpr, LOSS: tl.constexpr):
    """Gradient at the logits of each row's loss against its targets."""
    if LOSS == 0:
        gradient = tl.sum(targets, axis=1)[:, None] * p - targets
    else:
        gradient = _through_softmax(p, (p - targets) * (2.0 / C))
    return gradient


@triton.jit
def _coupling_gradient(p, other_log_p, other_p, C: tl.constexpr, LOSS: tl.constexpr):
    """Gradient of each row's co-distillation loss at the FIRST network's logits.

    The loss is symmetric and the gradient goes through both arguments.
    """
    if LOSS == 0:
        # Relative to the likeliest class: the difference of two large numbers would leave their rounding. On an H200 it
        # grew over the epochs until wide pairs on raw features were wrong (magic04: 70 % accuracy instead of 78 %).
        likeliest = p == tl.max(p, axis=1)[:, None]
        shift = tl.sum(tl.where(likeliest, other_log_p, 0.0), axis=1) / tl.sum(likeliest.to(tl.float32), axis=1)
        relative = other_log_p - shift[:, None]
        gradient = p * (tl.sum(p * relative, axis=1)[:, None] - relative) + (p - other_p)
    else:
        gradient = _through_softmax(p, (p - other_p) * (4.0 / C))
    return gradient


@triton.jit
def _pair_gradient(logits_a, logits_b, targets, coupling, class_number, C: tl.constexpr, LOSS: tl.constexpr):
    """Gradients of each row's loss at the logits of both networks of a co-distilled pair."""
    log_p_a, p_a = _log_softmax(logits_a, class_number, C)
    log_p_b, p_b = _log_softmax(logits_b, class_number, C)
    gradient_a = _logit_gradient(p_a, targets, C, LOSS)
    gradient_b = _logit_gradient(p_b, targets, C, LOSS)
    joint_a = _coupling_gradient(p_a, log_p_b, p_b, C, LOSS)
    joint_b = _coupling_gradient(p_b, log_p_a, p_a, C, LOSS)
    gradient_a = (1.0 - coupling) * gradient_a + coupling * joint_a
    gradient_b = (1.0 - coupling) * gradient_b + coupling * joint_b
    return gradient_a, gradient_b


@triton.jit
def _load_output_bias(bias_ptr, class_number, C: tl.constexpr):
    is_class = (class_number >= 0) & (class_number < C)
    return tl.load(bias_ptr + class_number, mask=is_class, other=0.0)


@triton.jit
def _store_output_bias(bias_ptr, bias, class_number, C: tl.constexpr):
    is_class = (class_number >= 0) & (class_number < C)
    tl.store(bias_ptr + class_number, bias, mask=is_class)


@triton.jit
def _forward_logits(
    params_ptr, output_bias, features, D: tl.constexpr, H: tl.constexpr, C: tl.constexpr, BH: tl.constexpr,
    RP: tl.constexpr, CW: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Logits of one batch, streaming the parameters tile by tile."""
    logits = tl.zeros((features.shape[0], CW), tl.float32) + output_bias[None, :]
    if WIDE:
        for first_unit in tl.range(0, H, BH):
            tile = _load_tile(params_ptr, first_unit, D, H, C, BH, RP)
            logits += _tile_logits(
                params_ptr, tile, features, first_unit, D, H, C, BH, CW, WIDE, True, PRECISION,
            )  # fmt: skip
    else:
        # The sum over the units crosses warps, so it is done once, behind the loop: until then
        # each class has a tile of partial sums (those of absent classes are optimised away).
        sums0 = tl.zeros((BH, features.shape[0]), tl.float32)
        sums1 = tl.zeros((BH, features.shape[0]), tl.float32)
        sums2 = tl.zeros((BH, features.shape[0]), tl.float32)
        sums3 = tl.zeros((BH, features.shape[0]), tl.float32)
        for first_unit in tl.range(0, H, BH):
            tile = _load_tile(params_ptr, first_unit, D, H, C, BH, RP)
            hidden = tl.maximum(tl.dot(tile, tl.trans(features), input_precision=PRECISION), 0.0)
            w2 = _output_weights(params_ptr, tile, first_unit, 0, D, H, BH, True)
            sums0 += hidden * w2[:, None]
            if C > 1:
                w2 = _output_weights(params_ptr, tile, first_unit, 1, D, H, BH, True)
                sums1 += hidden * w2[:, None]
            if C > 2:
                w2 = _output_weights(params_ptr, tile, first_unit, 2, D, H, BH, True)
                sums2 += hidden * w2[:, None]
            if C > 3:
                w2 = _output_weights(params_ptr, tile, first_unit, 3, D, H, BH, True)
                sums3 += hidden * w2[:, None]
        class_number = tl.arange(0, CW)[None, :]
        logits += tl.where(class_number == 0, tl.sum(sums0, axis=0)[:, None], 0.0)
        if C > 1:
            logits += tl.where(class_number == 1, tl.sum(sums1, axis=0)[:, None], 0.0)
        if C > 2:
            logits += tl.where(class_number == 2, tl.sum(sums2, axis=0)[:, None], 0.0)
        if C > 3:
            logits += tl.where(class_number == 3, tl.sum(sums3, axis=0)[:, None], 0.0)
    return logits


@triton.jit
def _backward_and_adam(
    params_ptr, m_ptr, v_ptr, features, logit_gradient, step_size, rate1, rate2, epsilon, D: tl.constexpr,
    H: tl.constexpr, C: tl.constexpr, BH: tl.constexpr, RP: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient and Adam update of all hidden units, streaming tile by tile."""
    for first_unit in tl.range(0, H, BH):
        # All loads stand before the products: the products exchange data through shared memory,
        # so at least one barrier separates every load of this tile from its stores below, also
        # where several threads load the same element.
        tile = _load_tile(params_ptr, first_unit, D, H, C, BH, RP)
        m = _load_tile(m_ptr, first_unit, D, H, C, BH, RP)
        v = _load_tile(v_ptr, first_unit, D, H, C, BH, RP)
        gradient = _tile_gradient(
            params_ptr, tile, features, logit_gradient, first_unit, D, H, C, BH, RP, WIDE, True, PRECISION,
        )  # fmt: skip
        tl.debug_barrier()
        tile, m, v = _adam(tile, m, v, gradient, step_size, rate1, rate2, epsilon)
        _store_tile(params_ptr, tile, first_unit, D, H, C, BH, RP)
        _store_tile(m_ptr, m, first_unit, D, H, C, BH, RP)
        _store_tile(v_ptr, v, first_unit, D, H, C, BH, RP)
