"""CPU training of one-hidden-layer ReLU softmax networks, one epoch per call.

How it is fast
--------------
A call trains one model for one epoch without the GIL, so threads can train
different models at the same time, each with its parameters in its core's L2.
Hidden units are cut into blocks. Inside an epoch the parameters live in a
packed copy: for each block the rows ``w1[0] .. w1[d-1], b1, w2.T[0] .. w2.T[c-1]``
of that block's units, one after the other, padded with zeros to whole vectors.
The bias is an input that is always one. So every product of a step --
forward, gradient at the hidden layer, both weight gradients -- is the same
operation on such rows, `_combine`; and Adam is one flat loop over a block.
Padding units have zero weights and therefore stay zero.
"""

import math

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_features = llvmlite.binding.get_host_cpu_features()
_WIDE = bool(_features.get("avx512f"))
# Sizes of a register tile; a wrong guess costs speed only, LLVM splits vectors.
VECTOR_BYTES = 64 if _WIDE else 32 if _features.get("avx") else 16
TILE_ROWS = 6 if VECTOR_BYTES == 32 else 8  # AVX2 has 16 registers, others 32
TILE_VECTORS = 2
# Units in a block: what one block needs in a step should stay close, in L1 or L2.
BLOCK_UNITS = 128

PLAIN, RELU, GATED = 0, 1, 2  # what `_combine` does with a finished sum

# No 'nnan' or 'ninf': a diverging model must show in its loss.
_jit = njit(
    nogil=True,
    cache=True,
    error_model="numpy",  # no zero checks, they would stop vectorisation
    fastmath={"contract", "reassoc", "arcp", "nsz"},
)


# --- kernels written in LLVM: their sums must stay in registers over a whole
# --- contraction, which the loop vectoriser does not do by itself


class _Emit:
    """Writes a kernel that sums products of vectors for a tile of rows."""

    def __init__(self, context, builder, dtype):
        self.context, self.builder = context, builder
        scalar = context.get_data_type(dtype)
        self.align = context.get_abi_sizeof(scalar)
        self.lanes = VECTOR_BYTES // self.align
        self.vector = ir.VectorType(scalar, self.lanes)
        self.zeros = ir.Constant(self.vector, [0.0] * self.lanes)
        self.intp = context.get_value_type(types.intp)

    def start(self, array_type, array, *offsets):
        """Pointer to an element of an array, `offsets` added up."""
        pointer = self.context.make_array(array_type)(self.context, self.builder, array).data
        for offset in offsets:
            pointer = self.builder.gep(pointer, [offset])
        return pointer

    def address(self, pointer, index):
        return self.builder.bitcast(self.builder.gep(pointer, [index]), self.vector.as_pointer())

    def load(self, pointer, index):
        return self.builder.load(self.address(pointer, index), align=self.align)

    def store(self, value, pointer, index):
        self.builder.store(value, self.address(pointer, index), align=self.align)

    def spread(self, pointer, index):
        """Vector filled with one element."""
        value = self.builder.load(self.builder.gep(pointer, [index]))
        empty = ir.Constant(self.vector, ir.Undefined)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        single = self.builder.insert_element(empty, value, self.intp(0))
        return self.builder.shuffle_vector(single, empty, mask)

    def tiles(self, rows, vectors, depth, factors, finish):
        """Sum products over ``k < depth``; one loop for each possible number of rows.

        ``factors(k, count)`` gives a list of pairs of vectors, one for each of the
        ``count * vectors`` sums, ``finish(sums, count)`` uses the sums.
        """
        build, intp = self.builder, self.intp
        done = build.append_basic_block("done")
        choice = build.switch(rows, done)
        for count in range(1, TILE_ROWS + 1):
            entry, loop, after = (build.append_basic_block(n) for n in ("rows", "loop", "after"))
            choice.add_case(intp(count), entry)
            build.position_at_end(entry)
            build.branch(loop)
            build.position_at_end(loop)
            k = build.phi(intp)
            sums = [build.phi(self.vector) for _ in range(count * vectors)]
            new = []
            for total, (a, b) in zip(sums, factors(k, count), strict=True):
                product = build.fmul(a, b, flags=("contract",))
                new.append(build.fadd(total, product, flags=("contract",)))
                total.add_incoming(self.zeros, entry)
                total.add_incoming(new[-1], loop)
            following = build.add(k, intp(1))
            k.add_incoming(intp(0), entry)
            k.add_incoming(following, loop)
            build.cbranch(build.icmp_signed("<", following, depth), loop, after)
            build.position_at_end(after)
            finish(new, count)
            build.branch(done)
        build.position_at_end(done)


def _make_combine_tile(vectors):
    """Make the kernel of `_combine` for tiles `vectors` vectors wide."""

    @intrinsic
    def tile(typing, out, src, coef, gate, r, j, rows, depth, stride, crow, cstep, mode):
        signature = types.void(out, src, coef, gate, *[types.intp] * 8)

        def codegen(context, builder, signature, args):
            r, j, rows, depth, stride, crow, cstep, mode = args[4:]
            emit = _Emit(context, builder, signature.args[0].dtype)
            row = builder.mul(r, stride)
            out = emit.start(signature.args[0], args[0], row, j)
            src = emit.start(signature.args[1], args[1], j)
            coef = emit.start(signature.args[2], args[2], builder.mul(r, crow))
            gate = emit.start(signature.args[3], args[3], row, j)

            def place(row, v):
                return builder.add(builder.mul(row, stride), emit.intp(v * emit.lanes))

            def factors(k, count):
                inputs = [emit.load(src, place(k, v)) for v in range(vectors)]
                for i in range(count):
                    at = builder.add(builder.mul(emit.intp(i), crow), builder.mul(k, cstep))
                    factor = emit.spread(coef, at)
                    yield from ((factor, value) for value in inputs)

            def finish(sums, count):
                end = builder.append_basic_block("end")
                ends = {m: builder.append_basic_block("mode") for m in (PLAIN, RELU, GATED)}
                choice = builder.switch(mode, ends[PLAIN])
                for m, block in ends.items():
                    if m != PLAIN:
                        choice.add_case(emit.intp(m), block)
                    builder.position_at_end(block)
                    for i, value in enumerate(sums):
                        at = place(emit.intp(i // vectors), i % vectors)
                        if m == RELU:  # this way round a NaN stays a NaN
                            negative = builder.fcmp_ordered("<", value, emit.zeros)
                            value = builder.select(negative, emit.zeros, value)
                        elif m == GATED:
                            opened = builder.fcmp_ordered(">", emit.load(gate, at), emit.zeros)
                            value = builder.select(opened, value, emit.zeros)
                        emit.store(value, out, at)
                    builder.branch(end)
                builder.position_at_end(end)

            emit.tiles(rows, vectors, depth, factors, finish)
            return context.get_dummy_value()

        return signature, codegen

    return tile


_wide_tile = _make_combine_tile(TILE_VECTORS)
_narrow_tile = _make_combine_tile(1)


@intrinsic
def _dot_tile(typing, sums, left, right, rows, width, step):
    """For rows of `left` add the products with `right`, lane by lane, to vectors in `sums`."""
    signature = types.void(sums, left, right, *[types.intp] * 3)

    def codegen(context, builder, signature, args):
        rows, width, step = args[3:]
        emit = _Emit(context, builder, signature.args[0].dtype)
        sums, left, right = (emit.start(signature.args[i], args[i]) for i in range(3))

        def factors(k, count):
            at = builder.mul(k, emit.intp(emit.lanes))
            value = emit.load(right, at)
            for i in range(count):
                row = builder.mul(emit.intp(i), width)
                yield emit.load(left, builder.add(row, at)), value

        def finish(new, count):
            for i, value in enumerate(new):
                at = builder.mul(emit.intp(i), step)
                emit.store(builder.fadd(emit.load(sums, at), value), sums, at)

        emit.tiles(rows, 1, builder.sdiv(width, emit.intp(emit.lanes)), factors, finish)
        return context.get_dummy_value()

    return signature, codegen


@_jit
def _combine(out, src, coef, across, mode, gate):
    """Sum weighted rows: ``out[r] = sum_k coef[r, k] * src[k]``, or `across` ``coef[k, r]``.

    Rows are whole vectors, one right after the other. `mode` RELU clips the
    sums at zero, GATED keeps those where `gate` is positive.
    """
    rows, width = out.shape
    crow, cstep = (1, coef.shape[1]) if across else (coef.shape[1], 1)
    lanes = VECTOR_BYTES // out.itemsize
    parts = (rows + TILE_ROWS - 1) // TILE_ROWS  # tiles of nearly equal height
    for part in range(parts):
        r = rows * part // parts
        n = rows * (part + 1) // parts - r
        j = 0
        while j + TILE_VECTORS * lanes <= width:
            _wide_tile(out, src, coef, gate, r, j, n, src.shape[0], width, crow, cstep, mode)
            j += TILE_VECTORS * lanes
        while j < width:
            _narrow_tile(out, src, coef, gate, r, j, n, src.shape[0], width, crow, cstep, mode)
            j += lanes


@_jit
def _adam(w, m, v, g, rates):
    """One Adam step (as in Keras) on flat arrays."""
    alpha, keep1, keep2, eps = rates
    for i in range(g.shape[0]):
        m[i] += (g[i] - m[i]) * keep1
        v[i] += (g[i] * g[i] - v[i]) * keep2
        w[i] -= alpha * m[i] / (math.sqrt(v[i]) + eps)


@_jit
def _rates(step, lr, beta1, beta2, eps, like):
    """Numbers of Adam's step `step` (from 1) in `like`'s dtype."""
    alpha = lr * math.sqrt(1 - beta2**step) / (1 - beta1**step)
    cast = like.dtype.type
    return cast(alpha), cast(1 - beta1), cast(1 - beta2), cast(eps)


@_jit
def _room(a, b, c, like):
    """Zeros (a, b, c) of `like`'s dtype from a cache line on; split loads are slow."""
    room = np.zeros(a * b * c + VECTOR_BYTES // like.itemsize, like.dtype)
    skip = (-room.ctypes.data % VECTOR_BYTES) // like.itemsize
    return room[skip : skip + a * b * c].reshape((a, b, c))


@_jit
def _blocks(w1):
    """Return the number of blocks of hidden units and their width."""
    h = w1.shape[1]
    lanes = VECTOR_BYTES // w1.itemsize
    blocks = (h + BLOCK_UNITS - 1) // BLOCK_UNITS
    width = ((h + blocks - 1) // blocks + lanes - 1) // lanes * lanes
    return (h + width - 1) // width, width


@_jit
def _copy(own, packed, back):
    for i in range(own.shape[0]):
        if back:
            own[i] = packed[i]
        else:
            packed[i] = own[i]


@_jit
def _move(packed, w1, b1, w2, back):
    """Copy parameters (or moments) into their packed form, or `back`."""
    d = w1.shape[0]
    for block in range(packed.shape[0]):
        low, high = block * packed.shape[2], min((block + 1) * packed.shape[2], b1.shape[0])
        for k in range(d):
            _copy(w1[k, low:high], packed[block, k], back)
        _copy(b1[low:high], packed[block, d], back)
        for k in range(w2.shape[1]):
            _copy(w2[low:high, k], packed[block, d + 1 + k], back)


@_jit
def _pack(w1, b1, w2):
    """Packed copy of parameters or moments; see the module's docstring."""
    blocks, width = _blocks(w1)
    packed = _room(blocks, w1.shape[0] + 1 + w2.shape[1], width, w1)
    _move(packed, w1, b1, w2, False)
    return packed


@_jit
def _forward(packed, b2, xb, hidden, sums, logits):
    """Hidden values (kept for `_backward`) and logits of a batch; `sums` is scratch."""
    (count, ins), c, width = xb.shape, b2.shape[0], packed.shape[2]
    lanes = sums.shape[2]
    for r in range(count):
        for k in range(c):
            for i in range(lanes):
                sums[r, k, i] = 0
    for block in range(packed.shape[0]):
        h, w = hidden[block], packed[block]
        _combine(h[:count], w[:ins], xb, False, RELU, h)
        for r in range(0, count, TILE_ROWS):
            n = min(TILE_ROWS, count - r)
            for k in range(c):
                _dot_tile(sums[r, k], h[r], w[ins + k], n, width, c * lanes)
    for r in range(count):
        for k in range(c):
            total = b2[k]
            for i in range(lanes):
                total += sums[r, k, i]
            logits[r, k] = total


@_jit
def _backward(packed, m, v, b2, mb2, vb2, xb, hidden, slope, at_hidden, grad, rates):
    """Backward pass and Adam step, block by block; `slope` is the loss's at the logits.

    `at_hidden` and `grad` are scratch for a block's gradients.
    """
    (count, ins), c = xb.shape, b2.shape[0]
    for block in range(packed.shape[0]):
        h, w, back = hidden[block], packed[block], at_hidden[:count]
        _combine(grad[ins:], h[:count], slope, True, PLAIN, h)
        _combine(back, w[ins:], slope, False, GATED, h)
        _combine(grad[:ins], back, xb, True, PLAIN, h)
        _adam(w.ravel(), m[block].ravel(), v[block].ravel(), grad.ravel(), rates)
    total = np.zeros(c, b2.dtype)
    for r in range(count):
        for k in range(c):
            total[k] += slope[r, k]
    _adam(b2, mb2, vb2, total, rates)


@_jit
def _gather(x, rows, targets, weights, order, mate, mix, xb, tb, wb):
    """Fill a batch of (mixed) inputs with a last column of ones, targets and weights."""
    d, c = x.shape[1], targets.shape[1]
    other = 1 - mix
    for r in range(order.shape[0]):
        o = order[r]
        i = rows[o]
        xb[r, d] = 1
        if mix == 1:
            for k in range(d):
                xb[r, k] = x[i, k]
            for k in range(c):
                tb[r, k] = targets[o, k]
            wb[r] = weights[o]
        else:
            q = mate[r]
            p = rows[q]
            for k in range(d):
                xb[r, k] = mix * x[i, k] + other * x[p, k]
            for k in range(c):
                tb[r, k] = mix * targets[o, k] + other * targets[q, k]
            wb[r] = mix * weights[o] + other * weights[q]


@_jit
def _softmax(logits, prob, logp):
    """Fill in probabilities and their logarithms."""
    c = logits.shape[1]
    for r in range(logits.shape[0]):
        top = logits[r, 0]
        for k in range(1, c):
            top = max(top, logits[r, k])
        total = top * 0
        for k in range(c):
            prob[r, k] = math.exp(logits[r, k] - top)
            total += prob[r, k]
        shift = top + math.log(total)
        for k in range(c):
            logp[r, k] = logits[r, k] - shift
            prob[r, k] /= total


@_jit
def _target_loss(prob, logp, tb, wb, scale, squared, slope):
    """Summed loss to the targets times `scale`; `slope` gets its mean's gradient."""
    count, c = prob.shape
    loss = 0.0
    for r in range(count):
        factor = wb[r] * scale
        row = push = 0.0
        if squared:
            for k in range(c):
                row += (prob[r, k] - tb[r, k]) ** 2 / c
                push += prob[r, k] * (prob[r, k] - tb[r, k])
            for k in range(c):
                gap = prob[r, k] - tb[r, k]
                slope[r, k] = factor * 2 / c * prob[r, k] * (gap - push) / count
        else:
            for k in range(c):
                row -= tb[r, k] * logp[r, k]
                push += tb[r, k]
            for k in range(c):
                slope[r, k] = factor * (push * prob[r, k] - tb[r, k]) / count
        loss += factor * row
    return loss


@_jit
def _twin_loss(prob, logp, prob2, logp2, wb, scale, squared, slope, slope2):
    """Summed loss between twins, both ways; its gradient is added to both slopes."""
    count, c = prob.shape
    loss = 0.0
    for r in range(count):
        factor = wb[r] * scale
        cross = cross2 = push = push2 = 0.0
        for k in range(c):
            p, q = prob[r, k], prob2[r, k]
            if squared:
                cross += (p - q) ** 2 / c
                cross2 += (p - q) ** 2 / c
                push += p * (p - q)
                push2 += q * (q - p)
            else:
                cross -= p * logp2[r, k]
                cross2 -= q * logp[r, k]
        for k in range(c):
            p, q = prob[r, k], prob2[r, k]
            if squared:
                slope[r, k] += factor * 4 / c * p * (p - q - push) / count
                slope2[r, k] += factor * 4 / c * q * (q - p - push2) / count
            else:
                slope[r, k] += factor * (p - q - p * (logp2[r, k] + cross)) / count
                slope2[r, k] += factor * (q - p - q * (logp[r, k] + cross2)) / count
        loss += factor * (cross + cross2)
    return loss


@_jit
def _net_room(packed, batch, c):
    """Scratch of one network: hidden values, and logits, prob, logp, slope."""
    return _room(packed.shape[0], batch, packed.shape[2], packed), _room(4, batch, c, packed)


@_jit
def _batch_room(packed, batch, c):
    """Scratch for inputs, targets, weights, `sums`, `at_hidden` and `grad`."""
    _, size, width = packed.shape
    lanes = VECTOR_BYTES // packed.itemsize
    return (
        _room(1, batch, size - c, packed)[0],
        _room(1, batch, c, packed)[0],
        _room(1, 1, batch, packed)[0, 0],
        _room(batch, c, lanes, packed),
        _room(1, batch, width, packed)[0],
        _room(1, size, width, packed)[0],
    )


@_jit
def fcn_epoch(
    w1,
    b1,
    w2,
    b2,
    mw1,
    mb1,
    mw2,
    mb2,
    vw1,
    vb1,
    vw2,
    vb2,
    step,
    x,
    rows,
    targets,
    weights,
    order,
    mate,
    mix,
    batch,
    lr,
    beta1,
    beta2,
    eps,
    squared,
):
    """Train a network for one epoch with Adam, in place.

    Parameters
    ----------
    w1, b1, w2, b2 : arrays (d, h), (h,), (h, c), (c,)
        Parameters. All floating arrays share one dtype, float32 or float64.
    mw1, mb1, mw2, mb2, vw1, vb1, vw2, vb2 : arrays
        Adam's moments, shaped as the parameters.
    step : int
        Adam steps already done.
    x : array (N, d)
        Pool of rows.
    rows : int64 array (n,)
        The model's training rows in the pool.
    targets, weights : arrays (n, c), (n,)
        Soft targets, which need not sum to one, and weights of those rows.
    order, mate : int64 arrays (n,)
        Shuffled positions in `rows`, and those of the rows mixed in.
    mix : float64 array (steps,)
        Each batch's mixup coefficient; at 1 `mate` is not looked at.
    batch : int
        Rows in a batch; the last one may have fewer.
    lr, beta1, beta2, eps : float
        Adam's settings, as in Keras.
    squared : bool
        Mean squared error of the probabilities instead of the cross-entropy.

    Returns
    -------
    float
        Mean weighted loss over the rows, each taken before its batch's step.
    """
    n, c = order.shape[0], b2.shape[0]
    batch = min(batch, n)
    w, m, v = _pack(w1, b1, w2), _pack(mw1, mb1, mw2), _pack(vw1, vb1, vw2)
    hidden, outs = _net_room(w, batch, c)
    xs, ts, ws, sums, at_hidden, grad = _batch_room(w, batch, c)
    loss = 0.0
    for first in range(0, n, batch):
        now, part = first // batch, slice(first, min(first + batch, n))
        count = part.stop - first
        xb, tb, wb = xs[:count], ts[:count], ws[:count]
        logits, prob = outs[0, :count], outs[1, :count]
        logp, slope = outs[2, :count], outs[3, :count]
        rates = _rates(step + now + 1, lr, beta1, beta2, eps, w1)
        _gather(x, rows, targets, weights, order[part], mate[part], mix[now], xb, tb, wb)
        _forward(w, b2, xb, hidden, sums, logits)
        _softmax(logits, prob, logp)
        loss += _target_loss(prob, logp, tb, wb, 1.0, squared, slope)
        _backward(w, m, v, b2, mb2, vb2, xb, hidden, slope, at_hidden, grad, rates)
    _move(w, w1, b1, w2, True)
    _move(m, mw1, mb1, mw2, True)
    _move(v, vw1, vb1, vw2, True)
    return loss / n


@_jit
def twin_epoch(
    w1,
    b1,
    w2,
    b2,
    mw1,
    mb1,
    mw2,
    mb2,
    vw1,
    vb1,
    vw2,
    vb2,
    w1_,
    b1_,
    w2_,
    b2_,
    mw1_,
    mb1_,
    mw2_,
    mb2_,
    vw1_,
    vb1_,
    vw2_,
    vb2_,
    step,
    x,
    rows,
    targets,
    weights,
    order,
    mate,
    mix,
    batch,
    lr,
    beta1,
    beta2,
    eps,
    squared,
    alpha,
):
    """Train two networks for one epoch on the same batches, each also on the other.

    A row's loss is ``(1 - alpha) * (loss(t, p) + loss(t, p_))`` plus `alpha`
    times the losses between the two, both ways, with gradients through both.
    The networks (the second one's names end in ``_``) have the same shape;
    other arguments and the value are as in `fcn_epoch`.
    """
    n, c = order.shape[0], b2.shape[0]
    batch = min(batch, n)
    w, m, v = _pack(w1, b1, w2), _pack(mw1, mb1, mw2), _pack(vw1, vb1, vw2)
    w_, m_, v_ = _pack(w1_, b1_, w2_), _pack(mw1_, mb1_, mw2_), _pack(vw1_, vb1_, vw2_)
    (hidden, outs), (hidden_, outs_) = _net_room(w, batch, c), _net_room(w, batch, c)
    xs, ts, ws, sums, at_hidden, grad = _batch_room(w, batch, c)
    loss = 0.0
    for first in range(0, n, batch):
        now, part = first // batch, slice(first, min(first + batch, n))
        count = part.stop - first
        xb, tb, wb = xs[:count], ts[:count], ws[:count]
        logits, prob = outs[0, :count], outs[1, :count]
        logp, slope = outs[2, :count], outs[3, :count]
        logits_, prob_ = outs_[0, :count], outs_[1, :count]
        logp_, slope_ = outs_[2, :count], outs_[3, :count]
        rates = _rates(step + now + 1, lr, beta1, beta2, eps, w1)
        _gather(x, rows, targets, weights, order[part], mate[part], mix[now], xb, tb, wb)
        _forward(w, b2, xb, hidden, sums, logits)
        _forward(w_, b2_, xb, hidden_, sums, logits_)
        _softmax(logits, prob, logp)
        _softmax(logits_, prob_, logp_)
        loss += _target_loss(prob, logp, tb, wb, 1 - alpha, squared, slope)
        loss += _target_loss(prob_, logp_, tb, wb, 1 - alpha, squared, slope_)
        loss += _twin_loss(prob, logp, prob_, logp_, wb, alpha, squared, slope, slope_)
        _backward(w, m, v, b2, mb2, vb2, xb, hidden, slope, at_hidden, grad, rates)
        _backward(w_, m_, v_, b2_, mb2_, vb2_, xb, hidden_, slope_, at_hidden, grad, rates)
    _move(w, w1, b1, w2, True)
    _move(m, mw1, mb1, mw2, True)
    _move(v, vw1, vb1, vw2, True)
    _move(w_, w1_, b1_, w2_, True)
    _move(m_, mw1_, mb1_, mw2_, True)
    _move(v_, vw1_, vb1_, vw2_, True)
    return loss / n


@_jit
def fcn_logits(w1, b1, w2, b2, x, rows):
    """Logits (len(rows), c) of rows of a pool; arguments as in `fcn_epoch`."""
    n, d, c = rows.shape[0], w1.shape[0], b2.shape[0]
    logits = np.empty((n, c), w1.dtype)
    batch = max(min(32, n), 1)
    w = _pack(w1, b1, w2)
    hidden = _net_room(w, batch, c)[0]
    room = _batch_room(w, batch, c)
    for first in range(0, n, batch):
        count = min(batch, n - first)
        xb = room[0][:count]
        for r in range(count):
            for k in range(d):
                xb[r, k] = x[rows[first + r], k]
            xb[r, d] = 1
        _forward(w, b2, xb, hidden, room[3], logits[first : first + count])
    return logits
