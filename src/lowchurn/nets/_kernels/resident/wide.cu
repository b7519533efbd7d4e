// One epoch of many one-hidden-layer networks of 5 to 32 classes: as narrow.cu, with the output layer in products, too.
//
// CT tiles of 8 columns for classes lie behind the KT of inputs and bias, in the same form. Hidden units are made twice,
// as (units, rows) for the gradients and as (rows, units) for the logits, since a product needs its inner index spread
// over the lanes t. The logits' parts of all warps go to the block of the cluster that owns the row; it computes the
// loss's gradient there and sends it to all blocks of the network: two barriers per step.

#define CT ((C + 7) / 8)
#define OWN (ROWS / CLUSTER)           // rows of a block
#define PART_STRIDE ((C + 1) / 2 * 2)  // numbers of a row of logits, which go in pairs
#define SLOPE_STRIDE (8 * CT + 4)

struct Shared {
    Quad weight[WARPS][MT][KT + CT][32], first[WARPS][MT][KT + CT][32], second[WARPS][MT][KT + CT][32];
    float x[2][ROWS][XS];                        // rows of this step and of the next
    float parts[NETS][PARTS][OWN][PART_STRIDE];  // of the logits of this block's rows
    float slope[ROWS][SLOPE_STRIDE];             // the loss's gradient at the logits
    float bias[3][32];                           // of the outputs, and its moments; in the first block
    int row[2][2][ROWS];
};

// Where the numbers of a lane lie, so that lanes 8 t + ... of which the logits' product reads lie in two kinds of banks.
DEVICE int slot_of(int lane) { return lane ^ ((lane >> 1) & 4); }

DEVICE float sum_of_lanes(float value) {
    UNROLL for (int far = 16; far > 0; far /= 2) value += shuffle_xor(value, far);
    return value;
}

DEVICE float maximum_of_lanes(float value) {
    UNROLL for (int far = 16; far > 0; far /= 2) value = maximum(value, shuffle_xor(value, far));
    return value;
}

// Log probability and probability of this lane's class; 0 where it is none.
DEVICE void log_softmax(float logit, bool is_class, float &log_p, float &p) {
    const float most = maximum_of_lanes(is_class ? logit : -3e38f);
    log_p = is_class ? logit - most : 0.0f;
    p = is_class ? exponential(log_p) : 0.0f;
    const float total = sum_of_lanes(p);
    log_p = is_class ? log_p - logarithm(total) : 0.0f;
    p = p / total;
}

DEVICE float through_softmax(float g, float p) { return p * (g - sum_of_lanes(p * g)); }

DEVICE float logit_gradient(float p, float target) {
#if SQUARED
    return through_softmax((p - target) * (2.0f / C), p);
#else
    return sum_of_lanes(target) * p - target;
#endif
}

// Of the loss between twins, at the logits of the first; relative to its likeliest class, as in fcn_gpu_tiles.py.
DEVICE float coupling_gradient(float p, float other_log_p, float other_p) {
#if SQUARED
    return through_softmax((p - other_p) * (4.0f / C), p);
#else
    const bool best = p == maximum_of_lanes(p);
    const float shift = sum_of_lanes(best ? other_log_p : 0.0f) / sum_of_lanes(best ? 1.0f : 0.0f);
    const float far = other_log_p - shift;
    return p * (sum_of_lanes(p * far) - far) + (p - other_p);
#endif
}

KERNEL void train(Given of) {
    SHARED_MEMORY(Shared, shared);
    const int thread = THREAD, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const int rank = CLUSTER_RANK, net = rank / SPLIT, part = rank % SPLIT, slot = slot_of(lane);
    const long long given = (long long)(BLOCK / CLUSTER) * NETS;
    const int begun = of.done[given], n = (int)of.n;
    choose(of, given, given + net);
    const int base = part * UNITS;  // this block's first unit
    const bool has_bias = part == 0 && warp == 0, is_class = lane < C;

    // The state: from packed columns to the tiles of lanes, and back at the end.
    auto for_state = [&](auto visit) {
        for (int tile = 0; tile < MT; tile++)
            for (int k = 0; k < KT + CT; k++)
                UNROLL for (int i = 0; i < 4; i++) {
                    const int unit = base + (warp * MT + tile) * 16 + g + 8 * (i / 2);
                    const int column = 8 * (k < KT ? k : k - KT) + 2 * t + i % 2, columns = k < KT ? D + 1 : C;
                    if (unit < H && column < columns) visit(tile, k, i, ((k < KT ? 0 : D + 1) + column) * H + unit);
                }
    };
    load_state(shared, of, warp, slot, KT + CT, for_state);
    if (has_bias) {
        const long long at = (given + net) * C + lane;
        shared.bias[0][lane] = is_class ? of.bias[at] : 0.0f;
        shared.bias[1][lane] = is_class ? of.bias_m[at] : 0.0f;
        shared.bias[2][lane] = is_class ? of.bias_v[at] : 0.0f;
    }
    for (int i = thread; i < 2 * ROWS * XS; i += THREADS) (&shared.x[0][0][0])[i] = 0.0f;

    Feeder feeder = {of, shared.row, {}};
    const int steps = feeder.steps();
    feeder.begin(shared.x[0]);

    for (int step = 0; step < steps; step++) {
        const float(*x)[XS] = shared.x[step % 2];
        const int size = minimum(n - step * BATCH, BATCH);
        feeder.fetch(step + 1);

        // Forward: hidden units before their relu, and this warp's part of the logits.
        float hidden[MT][4][4];
        {
            float logits[2][CT][4];  // of rows 16 m + g and 8 more, classes 8 j + 2 t and one more
            UNROLL for (int m = 0; m < 2; m++)
                UNROLL for (int j = 0; j < CT; j++)
                    UNROLL for (int i = 0; i < 4; i++)
                        logits[m][j][i] = has_bias ? shared.bias[0][8 * j + 2 * t + i % 2] : 0.0f;
            Factors f;
            factors_of_rows(f, x, g, t);
            UNROLL for (int tile = 0; tile < MT; tile++) {
                float across[2][2][4];  // the same hidden units as (rows, units)
                UNROLL for (int r = 0; r < 4; r++)
                    UNROLL for (int i = 0; i < 4; i++) hidden[tile][r][i] = across[r / 2][r % 2][i] = 0.0f;
                UNROLL for (int k = 0; k < KT; k++) {
                    const Quad w = shared.weight[warp][tile][k][slot];
                    float high[4], low[4];
                    split_tile(high, low, w.x, w.y, w.z, w.w);
                    UNROLL for (int r = 0; r < 4; r++) multiply(hidden[tile][r], high, low, f.high[k][r], f.low[k][r]);
                    UNROLL for (int m = 0; m < 2; m++) {
                        const float row_high[4] = {f.high[k][2 * m][0], f.high[k][2 * m + 1][0], f.high[k][2 * m][1], f.high[k][2 * m + 1][1]};
                        const float row_low[4] = {f.low[k][2 * m][0], f.low[k][2 * m + 1][0], f.low[k][2 * m][1], f.low[k][2 * m + 1][1]};
                        UNROLL for (int s = 0; s < 2; s++) {
                            const float unit_high[2] = {high[s], high[s + 2]}, unit_low[2] = {low[s], low[s + 2]};
                            multiply(across[m][s], row_high, row_low, unit_high, unit_low);
                        }
                    }
                }
                UNROLL for (int s = 0; s < 2; s++) {
                    float high[2][4], low[2][4];
                    UNROLL for (int m = 0; m < 2; m++) {
                        float *h = across[m][s];
                        split_tile(high[m], low[m], maximum(h[0], 0.0f), maximum(h[1], 0.0f), maximum(h[2], 0.0f), maximum(h[3], 0.0f));
                    }
                    UNROLL for (int j = 0; j < CT; j++) {  // weights of units 8 s + 2 t and one more to class 8 j + g
                        const Quad *quads = shared.weight[warp][tile][KT + j];
                        float w_high[2], w_low[2];
                        UNROLL for (int i = 0; i < 2; i++) {
                            const float *quad = &quads[slot_of(4 * (2 * t + i) + g / 2)].x;
                            split(w_high[i], w_low[i], quad[2 * s + g % 2]);
                        }
                        UNROLL for (int m = 0; m < 2; m++) multiply(logits[m][j], high[m], low[m], w_high, w_low);
                    }
                }
            }
            UNROLL for (int m = 0; m < 2; m++)
                UNROLL for (int j = 0; j < CT; j++)
                    UNROLL for (int i = 0; i < 2; i++) {
                        const int row = 16 * m + 8 * i + g, column = 8 * j + 2 * t;
                        if (column >= C) continue;
                        float *to = &shared.parts[net][part * WARPS + warp][row % OWN][column];
                        store_pair_in_block(to, row / OWN, logits[m][j][2 * i], logits[m][j][2 * i + 1]);
                    }
        }
        CLUSTER_BARRIER();

        // The loss's gradient at the logits of this block's rows: a row for a warp, a class for a lane.
        feeder.keep(step + 1, shared.x[(step + 1) % 2]);
        feeder.find(step + 2);
        for (int i = warp; i < OWN; i += WARPS) {
            const int row = rank * OWN + i, place = step * BATCH + row;
            float target = 0.0f, weight = 0.0f;
            if (row < size) {
                const long long at = of.order[place];
                weight = of.weights[at];
                target = is_class ? of.targets[at * of.stride_target_row + lane] : 0.0f;
#if MIXUP
                const long long other = of.mate[place];
                const float share = of.mix[step];
                weight = share * weight + (1.0f - share) * of.weights[other];
                if (is_class) target = share * target + (1.0f - share) * of.targets[other * of.stride_target_row + lane];
#endif
                weight /= (float)size;
            }
            float log_p[NETS], p[NETS], gradient[NETS];
            UNROLL for (int k = 0; k < NETS; k++) {
                float logit = 0.0f;
                if (is_class) {
                    UNROLL for (int q = 0; q < PARTS; q++) logit += shared.parts[k][q][i][lane];
                }
                log_softmax(logit, is_class, log_p[k], p[k]);
                gradient[k] = logit_gradient(p[k], target);
            }
#if TWIN
            const float both = of.coupling[BLOCK / CLUSTER];
            UNROLL for (int k = 0; k < 2; k++)
                gradient[k] = (1.0f - both) * gradient[k] + both * coupling_gradient(p[k], log_p[1 - k], p[1 - k]);
#endif
            UNROLL for (int k = 0; k < NETS; k++)
                UNROLL for (int q = 0; q < SPLIT; q++)
                    if (lane < 8 * CT) store_in_block(&shared.slope[row][lane], k * SPLIT + q, gradient[k] * weight);
        }
        CLUSTER_BARRIER();

        // Backward, and Adam.
        const Adam a = {of.step_sizes[minimum((long long)begun + step, of.last_step_size)], of.rate1, of.rate2, of.epsilon};
        UNROLL for (int tile = 0; tile < MT; tile++) {
            float back[4][4];
            UNROLL for (int r = 0; r < 4; r++)
                UNROLL for (int i = 0; i < 4; i++) back[r][i] = 0.0f;
            UNROLL for (int j = 0; j < CT; j++) {
                const Quad w = shared.weight[warp][tile][KT + j][slot];
                float high[4], low[4];
                split_tile(high, low, w.x, w.y, w.z, w.w);
                UNROLL for (int r = 0; r < 4; r++) {
                    float s_high[2], s_low[2];
                    UNROLL for (int i = 0; i < 2; i++) split(s_high[i], s_low[i], shared.slope[8 * r + g][8 * j + 2 * t + i]);
                    multiply(back[r], high, low, s_high, s_low);
                }
            }
            float high[4][4], low[4][4];
            UNROLL for (int r = 0; r < 4; r++) {
                float *h = hidden[tile][r];
                UNROLL for (int i = 0; i < 4; i++) back[r][i] = h[i] > 0.0f ? back[r][i] : 0.0f;
                split_tile(high[r], low[r], maximum(h[0], 0.0f), maximum(h[1], 0.0f), maximum(h[2], 0.0f), maximum(h[3], 0.0f));
            }
            UNROLL for (int j = 0; j < CT; j++) {
                float of_weight[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                UNROLL for (int r = 0; r < 4; r++) {
                    float s_high[2], s_low[2];
                    UNROLL for (int i = 0; i < 2; i++) split(s_high[i], s_low[i], shared.slope[8 * r + 2 * t + i][8 * j + g]);
                    multiply(of_weight, high[r], low[r], s_high, s_low);
                }
                adam(shared.weight[warp][tile][KT + j][slot], shared.first[warp][tile][KT + j][slot],
                     shared.second[warp][tile][KT + j][slot], of_weight, a);
            }
            float of_weight[KT][4];
            UNROLL for (int k = 0; k < KT; k++)
                UNROLL for (int i = 0; i < 4; i++) of_weight[k][i] = 0.0f;
            UNROLL for (int r = 0; r < 4; r++) {
                float b_high[4], b_low[4];
                split_tile(b_high, b_low, back[r][0], back[r][1], back[r][2], back[r][3]);
                UNROLL for (int k = 0; k < KT; k++) {
                    float x_high[2], x_low[2];
                    UNROLL for (int i = 0; i < 2; i++) split(x_high[i], x_low[i], x[8 * r + 2 * t + i][8 * k + g]);
                    multiply(of_weight[k], b_high, b_low, x_high, x_low);
                }
            }
            UNROLL for (int k = 0; k < KT; k++)
                adam(shared.weight[warp][tile][k][slot], shared.first[warp][tile][k][slot],
                     shared.second[warp][tile][k][slot], of_weight[k], a);
        }
        if (has_bias) {
            float sum = 0.0f;
            if (lane < 8 * CT) {
                UNROLL for (int r = 0; r < ROWS; r++) sum += shared.slope[r][lane];
            }
            adam(shared.bias[0][lane], shared.bias[1][lane], shared.bias[2][lane], sum, a);
        }
        WARP_BARRIER();  // the next step's forward pass reads output weights and the bias that other lanes have written
    }

    CLUSTER_BARRIER();  // no block ends while others may still write into it
    store_state(shared, of, warp, slot, for_state);
    if (has_bias && is_class) {
        const long long at = (given + net) * C + lane;
        of.bias[at] = shared.bias[0][lane];
        of.bias_m[at] = shared.bias[1][lane];
        of.bias_v[at] = shared.bias[2][lane];
    }
}
