// One epoch of many one-hidden-layer networks of few classes (at most 4): the weights and moments of a network stay in
// the shared memory of a cluster of thread blocks from the first step to the last, so that a step touches no other
// memory than its batch's rows.
//
// A cluster has SPLIT blocks for a network, each with a slice of its hidden units, and twice as many for a pair. A warp
// has MT tiles of 16 units. Products are those of mma.m16n8k8 with operands split in two tf32 parts (three products).
// Lane 4 g + t of a warp has of a tile: units g and g + 8, and columns (or rows of the batch) 2 t and 2 t + 1 of 8.
// Weights, gradients, hidden units and their gradients all lie so; the inner index of a product may be in any order, so
// that what one product gives can be read by the next without an exchange between lanes.
//
// There is one barrier per step: each warp sends its part of the logits to all blocks of the cluster, and behind the
// barrier every warp adds all parts in the same order and computes the loss's gradient for itself.

struct Shared {
    Quad weight[WARPS][MT][KT][32], first[WARPS][MT][KT][32], second[WARPS][MT][KT][32];
    float out[3][C][UNITS];                  // output weights and their moments
    float x[3][ROWS][XS];                    // rows of this step and of the next; others may still read those before
    float parts[2][NETS][PARTS][C][ROWS];    // of the logits
    int row[2][2][ROWS];
};

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

KERNEL void train(Given of) {
    SHARED_MEMORY(Shared, shared);
    const int thread = THREAD, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const int rank = CLUSTER_RANK, net = rank / SPLIT, part = rank % SPLIT;
    const long long given = (long long)(BLOCK / CLUSTER) * NETS;
    const int begun = of.done[given], n = (int)of.n;
    choose(of, given, given + net);
    const int base = part * UNITS;  // this block's first unit

    // The state: from packed columns to the tiles of lanes, and back at the end.
    auto for_state = [&](auto visit) {
        for (int tile = 0; tile < MT; tile++)
            for (int k = 0; k < KT; k++)
                UNROLL for (int i = 0; i < 4; i++) {
                    const int unit = base + (warp * MT + tile) * 16 + g + 8 * (i / 2), column = 8 * k + 2 * t + i % 2;
                    if (unit < H && column < D + 1) visit(tile, k, i, column * H + unit);
                }
    };
    load_state(shared, of, warp, lane, KT, for_state);
    for (int i = thread; i < C * UNITS; i += THREADS) {
        const int c = i / UNITS, unit = i % UNITS, at = (D + 1 + c) * H + base + unit;
        const bool there = base + unit < H;
        shared.out[0][c][unit] = there ? of.params[at] : 0.0f;
        shared.out[1][c][unit] = there ? of.m[at] : 0.0f;
        shared.out[2][c][unit] = there ? of.v[at] : 0.0f;
    }
    float b[NETS][C], b_m[NETS][C], b_v[NETS][C];  // of both twins, the same in every thread
    UNROLL for (int k = 0; k < NETS; k++)
        UNROLL for (int c = 0; c < C; c++) {
            b[k][c] = of.bias[(given + k) * C + c];
            b_m[k][c] = of.bias_m[(given + k) * C + c];
            b_v[k][c] = of.bias_v[(given + k) * C + c];
        }
    for (int i = thread; i < 3 * ROWS * XS; i += THREADS) (&shared.x[0][0][0])[i] = 0.0f;

    Feeder feeder = {of, shared.row, {}};
    const int steps = feeder.steps();
    feeder.begin(shared.x[0]);

    for (int step = 0; step < steps; step++) {
        const float(*x)[XS] = shared.x[step % 3];
        feeder.fetch(step + 1);

        // This lane's row of the batch: its targets and weight.
        float target[C], weight = 0.0f;
        const int place = step * BATCH + lane, size = minimum(n - step * BATCH, BATCH);
        UNROLL for (int c = 0; c < C; c++) target[c] = 0.0f;
        if (lane < size) {
            const long long at = of.order[place];
            weight = of.weights[at];
            UNROLL for (int c = 0; c < C; c++) target[c] = of.targets[at * of.stride_target_row + c];
#if MIXUP
            const long long other = of.mate[place];
            const float share = of.mix[step];
            weight = share * weight + (1.0f - share) * of.weights[other];
            UNROLL for (int c = 0; c < C; c++)
                target[c] = share * target[c] + (1.0f - share) * of.targets[other * of.stride_target_row + c];
#endif
            weight /= (float)size;
        }

        // Forward: hidden units before their relu, and this warp's part of the logits.
        float hidden[MT][4][4], logits[C][4][2];
        UNROLL for (int c = 0; c < C; c++)
            UNROLL for (int r = 0; r < 4; r++) logits[c][r][0] = logits[c][r][1] = 0.0f;
        {
            Factors f;
            factors_of_rows(f, x, g, t);
            UNROLL for (int tile = 0; tile < MT; tile++) {
                UNROLL for (int r = 0; r < 4; r++)
                    UNROLL for (int i = 0; i < 4; i++) hidden[tile][r][i] = 0.0f;
                UNROLL for (int k = 0; k < KT; k++) {
                    const Quad w = shared.weight[warp][tile][k][lane];
                    float high[4], low[4];
                    split_tile(high, low, w.x, w.y, w.z, w.w);
                    UNROLL for (int r = 0; r < 4; r++) multiply(hidden[tile][r], high, low, f.high[k][r], f.low[k][r]);
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
        feeder.keep(step + 1, shared.x[(step + 1) % 3]);
        feeder.find(step + 2);
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
            const float both = of.coupling[BLOCK / CLUSTER];
            UNROLL for (int k = 0; k < 2; k++) {
                float joint[C];
                coupling_gradient(joint, p[k], log_p[1 - k], p[1 - k]);
                UNROLL for (int c = 0; c < C; c++) gradient[k][c] = (1.0f - both) * gradient[k][c] + both * joint[c];
            }
#endif
        }
        const Adam a = {of.step_sizes[minimum((long long)begun + step, of.last_step_size)], of.rate1, of.rate2, of.epsilon};
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
        Factors f;
        factors_of_columns(f, x, g, t);
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
                float high[4], low[4];
                split_tile(high, low, back[r][0], back[r][1], back[r][2], back[r][3]);
                UNROLL for (int k = 0; k < KT; k++) multiply(of_weight[k], high, low, f.high[k][r], f.low[k][r]);
            }
            UNROLL for (int k = 0; k < KT; k++)
                adam(shared.weight[warp][tile][k][lane], shared.first[warp][tile][k][lane],
                     shared.second[warp][tile][k][lane], of_weight[k], a);
        }
        WARP_BARRIER();  // the next step's forward pass reads output weights that other lanes have written
    }

    CLUSTER_BARRIER();  // no block ends while others may still write into it
    store_state(shared, of, warp, lane, for_state);
    for (int i = thread; i < C * UNITS; i += THREADS) {
        const int c = i / UNITS, unit = i % UNITS, at = (D + 1 + c) * H + base + unit;
        if (base + unit < H) {
            of.params[at] = shared.out[0][c][unit];
            of.m[at] = shared.out[1][c][unit];
            of.v[at] = shared.out[2][c][unit];
        }
    }
    if (rank == 0 && thread == 0)
        UNROLL for (int k = 0; k < NETS; k++)
            UNROLL for (int c = 0; c < C; c++) {
                of.bias[(given + k) * C + c] = b[k][c];
                of.bias_m[(given + k) * C + c] = b_m[k][c];
                of.bias_v[(given + k) * C + c] = b_v[k][c];
            }
}
