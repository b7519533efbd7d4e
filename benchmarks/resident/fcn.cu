// One epoch of many one-hidden-layer networks: the weights and moments of a network stay in the shared memory of a
// cluster of thread blocks from the first step to the last, so that a step touches no other memory than its batch's rows.
//
// A cluster has SPLIT blocks for a network, each with a slice of its hidden units, and twice as many for a pair. A warp
// has MT tiles of 16 units. Products are those of mma.m16n8k8 with operands split in two tf32 parts (three products).
// Lane 4 g + t of a warp has of a tile: units g and g + 8, and columns (or rows of the batch) 2 t and 2 t + 1 of 8.
// Weights, gradients, hidden units and their gradients all lie so; the inner index of a product may be in any order, so
// that what one product gives can be read by the next without an exchange between lanes.
//
// There is one barrier per step: each warp sends its part of the logits to all blocks of the cluster, and behind the
// barrier every warp adds all parts in the same order and computes the loss's gradient for itself.
//
// Constants of the compilation: D inputs, H units, C classes (at most 4), KT tiles of 8 columns for inputs and bias, XS
// numbers of a row of the batch in shared memory, BATCH rows (at most 32), SPLIT, WARPS, MT, SQUARED, MIXUP, TWIN.

#define NETS (TWIN ? 2 : 1)
#define CLUSTER (SPLIT * NETS)
#define THREADS (32 * WARPS)
#define UNITS (WARPS * MT * 16)
#define ROWS 32
#define PARTS (SPLIT * WARPS)

struct Quad { float x, y, z, w; };

struct Shared {
    Quad weight[WARPS][MT][KT][32], first[WARPS][MT][KT][32], second[WARPS][MT][KT][32];
    float out[3][C][UNITS];                  // output weights and their moments
    float x[3][ROWS][XS];                    // rows of this step and of the next; others may still read those before
    float parts[2][NETS][PARTS][C][ROWS];    // of the logits
    int row[2][2][ROWS];                     // rows in the pool, and those mixed in, of the next step and that after it
};

DEVICE float tf32(float x) { return round_to_tf32(x); }

struct Adam { float size, rate1, rate2, epsilon; };

DEVICE void adam(float &w, float &m, float &v, float g, const Adam &a) {
    m += (g - m) * a.rate1;
    v += (g * g - v) * a.rate2;
    w -= a.size * divide(m, square_root(v) + a.epsilon);
}

DEVICE void adam(Quad &w, Quad &m, Quad &v, const float *g, const Adam &a) {
    adam(w.x, m.x, v.x, g[0], a);
    adam(w.y, m.y, v.y, g[1], a);
    adam(w.z, m.z, v.z, g[2], a);
    adam(w.w, m.w, v.w, g[3], a);
}

// acc += a b in three products of tf32 parts; a is given as a tile of an accumulator, whose columns are the inner index.
DEVICE void multiply(float *acc, const float *high, const float *low, const float *b_high, const float *b_low) {
    mma(acc, low, b_high);
    mma(acc, high, b_low);
    mma(acc, high, b_high);
}

DEVICE void split_tile(float *high, float *low, float c0, float c1, float c2, float c3) {
    const float tile[4] = {c0, c2, c1, c3};  // from the order of an accumulator to that of a left factor
    UNROLL for (int i = 0; i < 4; i++) {
        high[i] = tf32(tile[i]);
        low[i] = tf32(tile[i] - high[i]);
    }
}

// Log probabilities and probabilities of one row.
DEVICE void log_softmax(const float *logits, float *log_p, float *p) {
    float most = logits[0], total = 0.0f;
    UNROLL for (int c = 1; c < C; c++) most = maximum(most, logits[c]);
    UNROLL for (int c = 0; c < C; c++) {
        log_p[c] = logits[c] - most;
        p[c] = exponential(log_p[c]);
        total += p[c];
    }
    const float shift = logarithm(total);
    UNROLL for (int c = 0; c < C; c++) {
        log_p[c] -= shift;
        p[c] = p[c] / total;
    }
}

DEVICE void through_softmax(float *g, const float *p) {
    float sum = 0.0f;
    UNROLL for (int c = 0; c < C; c++) sum += p[c] * g[c];
    UNROLL for (int c = 0; c < C; c++) g[c] = p[c] * (g[c] - sum);
}

DEVICE void logit_gradient(float *g, const float *p, const float *target) {
#if SQUARED
    UNROLL for (int c = 0; c < C; c++) g[c] = (p[c] - target[c]) * (2.0f / C);
    through_softmax(g, p);
#else
    float sum = 0.0f;
    UNROLL for (int c = 0; c < C; c++) sum += target[c];
    UNROLL for (int c = 0; c < C; c++) g[c] = sum * p[c] - target[c];
#endif
}

// Of the loss between twins, at the logits of the first; relative to its likeliest class, as in fcn_gpu_tiles.py.
DEVICE void coupling_gradient(float *g, const float *p, const float *other_log_p, const float *other_p) {
#if SQUARED
    UNROLL for (int c = 0; c < C; c++) g[c] = (p[c] - other_p[c]) * (4.0f / C);
    through_softmax(g, p);
#else
    float most = p[0], shift = 0.0f, ties = 0.0f, sum = 0.0f;
    UNROLL for (int c = 1; c < C; c++) most = maximum(most, p[c]);
    UNROLL for (int c = 0; c < C; c++) {
        if (p[c] == most) {
            shift += other_log_p[c];
            ties += 1.0f;
        }
    }
    shift /= ties;
    UNROLL for (int c = 0; c < C; c++) sum += p[c] * (other_log_p[c] - shift);
    UNROLL for (int c = 0; c < C; c++) g[c] = p[c] * (sum - (other_log_p[c] - shift)) + (p[c] - other_p[c]);
#endif
}

KERNEL void train(
    float *params, float *m, float *v, float *bias, float *bias_m, float *bias_v, const float *pool,
    const long long *rows, const float *targets, const float *weights, const long long *order, const long long *mate,
    const float *mix, const int *done, const float *coupling, const float *step_sizes, long long last_step_size, int n,
    long long stride_rows, long long stride_target_model, long long stride_target_row, long long stride_weights,
    long long stride_order, long long stride_mix, float rate1, float rate2, float epsilon) {
    SHARED_MEMORY(Shared, shared);
    const int thread = THREAD, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const int rank = CLUSTER_RANK, net = rank / SPLIT, part = rank % SPLIT;
    const long long given = (long long)(BLOCK / CLUSTER) * NETS;  // whose rows, targets, weights and shuffles are used
    const long long model = given + net;
    const int steps = (n + BATCH - 1) / BATCH, begun = done[given];
    rows += given * stride_rows;
    targets += given * stride_target_model;
    weights += given * stride_weights;
    order += given * stride_order;
#if MIXUP
    mate += given * stride_order;
    mix += given * stride_mix;
#endif
    params += model * (D + 1 + C) * H;
    m += model * (D + 1 + C) * H;
    v += model * (D + 1 + C) * H;
    const int base = part * UNITS;  // this block's first unit

    // The state: from packed columns to the tiles of lanes, and back at the end.
    auto element = [&](Quad &quad, int i) -> float & { return i == 0 ? quad.x : i == 1 ? quad.y : i == 2 ? quad.z : quad.w; };
    auto for_state = [&](auto visit) {
        for (int tile = 0; tile < MT; tile++)
            for (int k = 0; k < KT; k++)
                UNROLL for (int i = 0; i < 4; i++) {
                    const int unit = base + (warp * MT + tile) * 16 + g + 8 * (i / 2), column = 8 * k + 2 * t + i % 2;
                    if (unit < H && column < D + 1) visit(tile, k, i, column * H + unit);
                }
    };
    const Quad nothing = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int tile = 0; tile < MT; tile++)
        for (int k = 0; k < KT; k++) {
            shared.weight[warp][tile][k][lane] = nothing;
            shared.first[warp][tile][k][lane] = nothing;
            shared.second[warp][tile][k][lane] = nothing;
        }
    for_state([&](int tile, int k, int i, int at) {
        element(shared.weight[warp][tile][k][lane], i) = params[at];
        element(shared.first[warp][tile][k][lane], i) = m[at];
        element(shared.second[warp][tile][k][lane], i) = v[at];
    });
    for (int i = thread; i < C * UNITS; i += THREADS) {
        const int c = i / UNITS, unit = i % UNITS, at = (D + 1 + c) * H + base + unit;
        const bool there = base + unit < H;
        shared.out[0][c][unit] = there ? params[at] : 0.0f;
        shared.out[1][c][unit] = there ? m[at] : 0.0f;
        shared.out[2][c][unit] = there ? v[at] : 0.0f;
    }
    float b[NETS][C], b_m[NETS][C], b_v[NETS][C];  // of both twins, the same in every thread
    UNROLL for (int k = 0; k < NETS; k++)
        UNROLL for (int c = 0; c < C; c++) {
            b[k][c] = bias[(given + k) * C + c];
            b_m[k][c] = bias_m[(given + k) * C + c];
            b_v[k][c] = bias_v[(given + k) * C + c];
        }
    for (int i = thread; i < 3 * ROWS * XS; i += THREADS) (&shared.x[0][0][0])[i] = 0.0f;

    // Rows of a step: positions two steps ahead, features one step ahead.
    auto find_rows = [&](int step) {
        if (thread >= ROWS) return;
        const int place = step * BATCH + thread;
        const bool there = thread < BATCH && place < n && step < steps;
        shared.row[step % 2][0][thread] = there ? (int)rows[order[place]] : -1;
#if MIXUP
        shared.row[step % 2][1][thread] = there ? (int)rows[mate[place]] : -1;
#endif
    };
    const int EACH = (ROWS * D + THREADS - 1) / THREADS;
    float fetched[EACH];
    auto fetch = [&](int step) {
#if MIXUP
        const float share = step < steps ? mix[step] : 1.0f;
#endif
        UNROLL for (int i = 0; i < EACH; i++) {
            const int at = thread + i * THREADS, row = at / D, column = at % D;
            const int from = at < ROWS * D ? shared.row[step % 2][0][row] : -1;
            fetched[i] = from >= 0 ? pool[(long long)from * D + column] : 0.0f;
#if MIXUP
            if (from >= 0) {
                const float other = pool[(long long)shared.row[step % 2][1][row] * D + column];
                fetched[i] = share * fetched[i] + (1.0f - share) * other;
            }
#endif
        }
    };
    auto keep = [&](int step) {
        UNROLL for (int i = 0; i < EACH; i++) {
            const int at = thread + i * THREADS;
            if (at < ROWS * D) shared.x[step % 3][at / D][at % D] = fetched[i];
        }
        if (thread < ROWS) shared.x[step % 3][thread][D] = shared.row[step % 2][0][thread] >= 0 ? 1.0f : 0.0f;
    };
    find_rows(0);
    BLOCK_BARRIER();
    fetch(0);
    BLOCK_BARRIER();  // zeros are there before the features
    keep(0);
    find_rows(1);
    CLUSTER_BARRIER();

    for (int step = 0; step < steps; step++) {
        const float(*x)[XS] = shared.x[step % 3];
        fetch(step + 1);

        // This lane's row of the batch: its targets and weight.
        float target[C], weight = 0.0f;
        const int place = step * BATCH + lane, size = minimum(n - step * BATCH, BATCH);
        UNROLL for (int c = 0; c < C; c++) target[c] = 0.0f;
        if (lane < size) {
            const long long at = order[place];
            weight = weights[at];
            UNROLL for (int c = 0; c < C; c++) target[c] = targets[at * stride_target_row + c];
#if MIXUP
            const long long other = mate[place];
            const float share = mix[step];
            weight = share * weight + (1.0f - share) * weights[other];
            UNROLL for (int c = 0; c < C; c++)
                target[c] = share * target[c] + (1.0f - share) * targets[other * stride_target_row + c];
#endif
            weight /= (float)size;
        }

        // Forward: hidden units before their relu, and this warp's part of the logits.
        float hidden[MT][4][4], logits[C][4][2];
        UNROLL for (int c = 0; c < C; c++)
            UNROLL for (int r = 0; r < 4; r++) logits[c][r][0] = logits[c][r][1] = 0.0f;
        {
            float high[KT][4][2], low[KT][4][2];  // features of 8 rows each, as right factors
            UNROLL for (int k = 0; k < KT; k++)
                UNROLL for (int r = 0; r < 4; r++)
                    UNROLL for (int i = 0; i < 2; i++) {
                        const float value = x[8 * r + g][8 * k + 2 * t + i];
                        high[k][r][i] = tf32(value);
                        low[k][r][i] = tf32(value - high[k][r][i]);
                    }
            UNROLL for (int tile = 0; tile < MT; tile++) {
                UNROLL for (int r = 0; r < 4; r++)
                    UNROLL for (int i = 0; i < 4; i++) hidden[tile][r][i] = 0.0f;
                UNROLL for (int k = 0; k < KT; k++) {
                    const Quad w = shared.weight[warp][tile][k][lane];
                    float a_high[4], a_low[4];
                    split_tile(a_high, a_low, w.x, w.y, w.z, w.w);
                    UNROLL for (int r = 0; r < 4; r++) multiply(hidden[tile][r], a_high, a_low, high[k][r], low[k][r]);
                }
                const int unit = (warp * MT + tile) * 16 + g;
                UNROLL for (int c = 0; c < C; c++) {
                    const float w0 = shared.out[0][c][unit], w1 = shared.out[0][c][unit + 8];
                    UNROLL for (int r = 0; r < 4; r++)
                        UNROLL for (int i = 0; i < 2; i++)
                            logits[c][r][i] += maximum(hidden[tile][r][i], 0.0f) * w0 + maximum(hidden[tile][r][i + 2], 0.0f) * w1;
                }
            }
        }
        UNROLL for (int c = 0; c < C; c++) {
            float own = 0.0f;  // of row 8 (g / 2) + 2 t + g % 2
            UNROLL for (int r = 0; r < 4; r++)
                UNROLL for (int i = 0; i < 2; i++) {
                    float sum = logits[c][r][i];
                    sum += shuffle_xor(sum, 4);
                    sum += shuffle_xor(sum, 8);
                    sum += shuffle_xor(sum, 16);
                    if (g == 2 * r + i) own = sum;
                }
            float *slot = &shared.parts[step % 2][net][part * WARPS + warp][c][8 * (g / 2) + 2 * t + g % 2];
            UNROLL for (int other = 0; other < CLUSTER; other++) store_in_block(slot, other, own);
        }
        keep(step + 1);
        find_rows(step + 2);
        CLUSTER_BARRIER();

        // The loss's gradient at the logits of this lane's row.
        float gradient[NETS][C];
        {
            float log_p[NETS][C], p[NETS][C];
            UNROLL for (int k = 0; k < NETS; k++) {
                float sums[C];
                UNROLL for (int c = 0; c < C; c++) {
                    sums[c] = b[k][c];
                    UNROLL for (int i = 0; i < PARTS; i++) sums[c] += shared.parts[step % 2][k][i][c][lane];
                }
                log_softmax(sums, log_p[k], p[k]);
                logit_gradient(gradient[k], p[k], target);
            }
#if TWIN
            const float both = coupling[BLOCK / CLUSTER];
            UNROLL for (int k = 0; k < 2; k++) {
                float joint[C];
                coupling_gradient(joint, p[k], log_p[1 - k], p[1 - k]);
                UNROLL for (int c = 0; c < C; c++) gradient[k][c] = (1.0f - both) * gradient[k][c] + both * joint[c];
            }
#endif
        }
        const Adam a = {step_sizes[minimum((long long)begun + step, last_step_size)], rate1, rate2, epsilon};
        float mine[C];  // of this block's network
        UNROLL for (int k = 0; k < NETS; k++)
            UNROLL for (int c = 0; c < C; c++) {
                gradient[k][c] *= weight;
                float sum = gradient[k][c];
                UNROLL for (int far = 16; far > 0; far /= 2) sum += shuffle_xor(sum, far);
                adam(b[k][c], b_m[k][c], b_v[k][c], sum, a);
            }
        UNROLL for (int c = 0; c < C; c++) mine[c] = TWIN && net ? gradient[NETS - 1][c] : gradient[0][c];

        // Backward, and Adam.
        float of_logits[C][4][2];
        UNROLL for (int c = 0; c < C; c++)
            UNROLL for (int r = 0; r < 4; r++)
                UNROLL for (int i = 0; i < 2; i++) of_logits[c][r][i] = shuffle(mine[c], 8 * r + 2 * t + i);
        float high[4][KT][2], low[4][KT][2];
        UNROLL for (int r = 0; r < 4; r++)
            UNROLL for (int k = 0; k < KT; k++)
                UNROLL for (int i = 0; i < 2; i++) {
                    const float value = x[8 * r + 2 * t + i][8 * k + g];
                    high[r][k][i] = tf32(value);
                    low[r][k][i] = tf32(value - high[r][k][i]);
                }
        UNROLL for (int tile = 0; tile < MT; tile++) {
            const int unit = (warp * MT + tile) * 16 + g;
            float back[4][4];
            UNROLL for (int r = 0; r < 4; r++)
                UNROLL for (int i = 0; i < 4; i++) back[r][i] = 0.0f;
            float of_out[C][2];
            UNROLL for (int c = 0; c < C; c++) {
                const float w0 = shared.out[0][c][unit], w1 = shared.out[0][c][unit + 8];
                of_out[c][0] = of_out[c][1] = 0.0f;
                UNROLL for (int r = 0; r < 4; r++)
                    UNROLL for (int i = 0; i < 2; i++) {
                        of_out[c][0] += maximum(hidden[tile][r][i], 0.0f) * of_logits[c][r][i];
                        of_out[c][1] += maximum(hidden[tile][r][i + 2], 0.0f) * of_logits[c][r][i];
                        back[r][i] += w0 * of_logits[c][r][i];
                        back[r][i + 2] += w1 * of_logits[c][r][i];
                    }
            }
            UNROLL for (int r = 0; r < 4; r++)
                UNROLL for (int i = 0; i < 4; i++) back[r][i] = hidden[tile][r][i] > 0.0f ? back[r][i] : 0.0f;
            UNROLL for (int c = 0; c < C; c++)
                UNROLL for (int i = 0; i < 2; i++) {
                    float sum = of_out[c][i];
                    sum += shuffle_xor(sum, 1);
                    sum += shuffle_xor(sum, 2);
                    if (t == c) {  // all lanes have read the weights before the shuffles
                        const int at = unit + 8 * i;
                        adam(shared.out[0][c][at], shared.out[1][c][at], shared.out[2][c][at], sum, a);
                    }
                }
            float of_weight[KT][4];
            UNROLL for (int k = 0; k < KT; k++)
                UNROLL for (int i = 0; i < 4; i++) of_weight[k][i] = 0.0f;
            UNROLL for (int r = 0; r < 4; r++) {
                float a_high[4], a_low[4];
                split_tile(a_high, a_low, back[r][0], back[r][1], back[r][2], back[r][3]);
                UNROLL for (int k = 0; k < KT; k++) multiply(of_weight[k], a_high, a_low, high[r][k], low[r][k]);
            }
            UNROLL for (int k = 0; k < KT; k++)
                adam(shared.weight[warp][tile][k][lane], shared.first[warp][tile][k][lane],
                     shared.second[warp][tile][k][lane], of_weight[k], a);
        }
        WARP_BARRIER();  // the next step's forward pass reads output weights that other lanes have written
    }

    CLUSTER_BARRIER();  // no block ends while others may still write into it
    for_state([&](int tile, int k, int i, int at) {
        params[at] = element(shared.weight[warp][tile][k][lane], i);
        m[at] = element(shared.first[warp][tile][k][lane], i);
        v[at] = element(shared.second[warp][tile][k][lane], i);
    });
    for (int i = thread; i < C * UNITS; i += THREADS) {
        const int c = i / UNITS, unit = i % UNITS, at = (D + 1 + c) * H + base + unit;
        if (base + unit < H) {
            params[at] = shared.out[0][c][unit];
            m[at] = shared.out[1][c][unit];
            v[at] = shared.out[2][c][unit];
        }
    }
    if (rank == 0 && thread == 0)
        UNROLL for (int k = 0; k < NETS; k++)
            UNROLL for (int c = 0; c < C; c++) {
                bias[(given + k) * C + c] = b[k][c];
                bias_m[(given + k) * C + c] = b_m[k][c];
                bias_v[(given + k) * C + c] = b_v[k][c];
            }
}
