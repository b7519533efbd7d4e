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

# No 'nnan' or 'ninf': a diverging model must show in its validation loss.
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
def _target_slope(prob, tb, wb, scale, squared, slope):
    """Fill in the gradient at the logits of the batch's mean loss to the targets times `scale`."""
    count, c = prob.shape
    for r in range(count):
        factor = wb[r] * scale
        push = 0.0
        if squared:
            for k in range(c):
                push += prob[r, k] * (prob[r, k] - tb[r, k])
            for k in range(c):
                gap = prob[r, k] - tb[r, k]
                slope[r, k] = factor * 2 / c * prob[r, k] * (gap - push) / count
        else:
            for k in range(c):
                push += tb[r, k]
            for k in range(c):
                slope[r, k] = factor * (push * prob[r, k] - tb[r, k]) / count


@_jit
def _twin_slope(prob, logp, prob2, logp2, wb, scale, squared, slope, slope2):
    """Add the gradient of the loss between twins, both ways, to both slopes."""
    count, c = prob.shape
    for r in range(count):
        factor = wb[r] * scale
        # Relative to the likeliest class: the difference of two large numbers would leave their rounding.
        at, at2 = logp2[r, prob[r].argmax()], logp[r, prob2[r].argmax()]
        push = push2 = 0.0
        for k in range(c):
            p, q = prob[r, k], prob2[r, k]
            if squared:
                push += p * (p - q)
                push2 += q * (q - p)
            else:
                push += p * (logp2[r, k] - at)
                push2 += q * (logp[r, k] - at2)
        for k in range(c):
            p, q = prob[r, k], prob2[r, k]
            if squared:
                slope[r, k] += factor * 4 / c * p * (p - q - push) / count
                slope2[r, k] += factor * 4 / c * q * (q - p - push2) / count
            else:
                slope[r, k] += factor * (p - q + p * (push - (logp2[r, k] - at))) / count
                slope2[r, k] += factor * (q - p + q * (push2 - (logp[r, k] - at2))) / count


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
def _open(net, batch):
    """Packed weights and moments of a network, its output biases, and scratch: hidden values, and logits, prob, logp, slope."""
    (w1, b1, w2, b2), (mw1, mb1, mw2, mb2), (vw1, vb1, vw2, vb2) = net
    w = _pack(w1, b1, w2)
    hidden, outs = _room(w.shape[0], batch, w.shape[2], w), _room(4, batch, b2.shape[0], w)
    return w, _pack(mw1, mb1, mw2), _pack(vw1, vb1, vw2), b2, mb2, vb2, hidden, outs


@_jit
def fcn_epoch(nets, step, x, data, batch, adam, squared, coupling):
    """Train a network for one epoch with Adam, in place; or two twins on the same batches, each also on the other.

    A row's loss of twins is ``(1 - coupling) * (loss(t, p) + loss(t, q))`` plus `coupling` times the losses
    between the two, both ways, with gradients through both.

    Parameters
    ----------
    nets : tuple of one or two networks
        Each has its parameters (w1, b1, w2, b2) of shapes (d, h), (h,), (h, c), (c,), and two tuples of Adam's
        moments, shaped as the parameters. All floating arrays share one dtype, float32 or float64.
    step : int
        Adam steps already done.
    x : array (N, d)
        Pool of rows.
    data : tuple of arrays
        rows : int64 (n,), the training rows in the pool; targets (n, c), soft, which need not sum to one, and weights
        (n,) of those rows; order, mate : int64 (n,), shuffled positions in `rows`, and those of the rows mixed in;
        mix : float64 (steps,), each batch's mixup coefficient; at 1 `mate` is not looked at.
    batch : int
        Rows in a batch; the last one may have fewer.
    adam : tuple of float
        Learning rate, beta1, beta2 and epsilon, as in Keras.
    squared : bool
        Mean squared error of the probabilities instead of the cross-entropy.
    coupling : float
        Share of the loss between twins; 0 for a network alone.
    """
    rows, targets, weights, order, mate, mix = data
    lr, beta1, beta2, eps = adam
    n, c = order.shape[0], targets.shape[1]
    batch = min(batch, n)
    opened = [_open(net, batch) for net in nets]
    packed = opened[0][0]
    xs, ts, ws, sums, at_hidden, grad = _batch_room(packed, batch, c)
    for first in range(0, n, batch):
        now, part = first // batch, slice(first, min(first + batch, n))
        count = part.stop - first
        xb, tb, wb = xs[:count], ts[:count], ws[:count]
        rates = _rates(step + now + 1, lr, beta1, beta2, eps, packed)
        _gather(x, rows, targets, weights, order[part], mate[part], mix[now], xb, tb, wb)
        for w, _, _, b2, _, _, hidden, outs in opened:
            _forward(w, b2, xb, hidden, sums, outs[0, :count])
            _softmax(outs[0, :count], outs[1, :count], outs[2, :count])
            _target_slope(outs[1, :count], tb, wb, 1 - coupling, squared, outs[3, :count])
        if len(opened) == 2:
            one, two = opened[0][7], opened[1][7]
            _twin_slope(
                one[1, :count], one[2, :count], two[1, :count], two[2, :count],
                wb, coupling, squared, one[3, :count], two[3, :count],
            )  # fmt: skip
        for w, m, v, b2, mb2, vb2, hidden, outs in opened:
            _backward(w, m, v, b2, mb2, vb2, xb, hidden, outs[3, :count], at_hidden, grad, rates)
    for net, (w, m, v, _, _, _, _, _) in zip(nets, opened):  # noqa: B905 (numba has no strict)
        _move(w, net[0][0], net[0][1], net[0][2], True)
        _move(m, net[1][0], net[1][1], net[1][2], True)
        _move(v, net[2][0], net[2][1], net[2][2], True)


@_jit
def fcn_logits(w1, b1, w2, b2, x, rows):
    """Logits (len(rows), c) of rows of a pool; arguments as in `fcn_epoch`."""
    n, d, c = rows.shape[0], w1.shape[0], b2.shape[0]
    logits = np.empty((n, c), w1.dtype)
    batch = max(min(32, n), 1)
    w = _pack(w1, b1, w2)
    hidden = _room(w.shape[0], batch, w.shape[2], w)
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
