// What both kernels have in common: products, Adam, and the rows of a batch.
//
// Constants of the compilation: D inputs, H units, C classes, KT tiles of 8 columns for inputs and bias, XS numbers of a
// row of the batch in shared memory, BATCH rows (at most 32), SPLIT, WARPS, MT, SQUARED, MIXUP, TWIN.

#define NETS (TWIN ? 2 : 1)
#define CLUSTER (SPLIT * NETS)
#define THREADS (32 * WARPS)
#define UNITS (WARPS * MT * 16)
#define ROWS 32
#define PARTS (SPLIT * WARPS)

// The arguments of a kernel: packed parameters (see fcn_packed.py) with their moments, and an epoch's batches.
struct Given {
    float *params, *m, *v, *bias, *bias_m, *bias_v;
    const float *pool;
    const long long *rows;
    const float *targets, *weights;
    const long long *order, *mate;
    const float *mix;
    const int *done;
    const float *coupling, *step_sizes;
    long long last_step_size, n;
    long long stride_rows, stride_target_model, stride_target_row, stride_weights, stride_order, stride_mix;
    float rate1, rate2, epsilon;
};

// Four numbers of a lane: units g and g + 8 of a tile, columns 2 t and 2 t + 1.
struct alignas(16) Quad { float x, y, z, w; };

struct Adam { float size, rate1, rate2, epsilon; };

DEVICE void adam(float &w, float &m, float &v, float g, const Adam &a) {
    m += (g - m) * a.rate1;
    v += (g * g - v) * a.rate2;
    w -= a.size * divide(m, square_root(v) + a.epsilon);
}

DEVICE void adam(Quad &weight, Quad &first, Quad &second, const float *g, const Adam &a) {
    Quad w = weight, m = first, v = second;  // in one load and one store each
    adam(w.x, m.x, v.x, g[0], a);
    adam(w.y, m.y, v.y, g[1], a);
    adam(w.z, m.z, v.z, g[2], a);
    adam(w.w, m.w, v.w, g[3], a);
    weight = w;
    first = m;
    second = v;
}

// A number as the sum of one with 11 bits and the rest, of which the matrix units read 11 bits more.
DEVICE void split(float &high, float &low, float x) {
    high = from_bits((bits_of(x) + 0x1000u) & 0xffffe000u);
    low = x - high;
}

// acc += a b in three products of their parts.
DEVICE void multiply(float *acc, const float *a_high, const float *a_low, const float *b_high, const float *b_low) {
    mma(acc, a_low, b_high);
    mma(acc, a_high, b_low);
    mma(acc, a_high, b_high);
}

// A tile of an accumulator as a left factor, whose inner index are its columns.
DEVICE void split_tile(float *high, float *low, float c0, float c1, float c2, float c3) {
    const float tile[4] = {c0, c2, c1, c3};
    UNROLL for (int i = 0; i < 4; i++) split(high[i], low[i], tile[i]);
}

// What belongs to a network: whose rows, targets, weights and shuffles are used.
DEVICE void choose(Given &of, long long given, long long model) {
    of.rows += given * of.stride_rows;
    of.targets += given * of.stride_target_model;
    of.weights += given * of.stride_weights;
    of.order += given * of.stride_order;
#if MIXUP
    of.mate += given * of.stride_order;
    of.mix += given * of.stride_mix;
#endif
    of.params += model * (D + 1 + C) * H;
    of.m += model * (D + 1 + C) * H;
    of.v += model * (D + 1 + C) * H;
}

DEVICE float &element(Quad &quad, int i) { return i == 0 ? quad.x : i == 1 ? quad.y : i == 2 ? quad.z : quad.w; }

// Rows of the batches: positions are found two steps ahead, features are fetched one step ahead.
#define EACH ((ROWS * D + THREADS - 1) / THREADS)
struct Feeder {
    const Given &of;
    int (*row)[2][ROWS];  // in the pool, and those mixed in, of an even and an odd step
    float fetched[EACH];

    METHOD int steps() const { return ((int)of.n + BATCH - 1) / BATCH; }

    METHOD void find(int step) {
        if (THREAD >= ROWS) return;
        const int place = step * BATCH + THREAD;
        const bool there = THREAD < BATCH && place < of.n && step < steps();
        row[step % 2][0][THREAD] = there ? (int)of.rows[of.order[place]] : -1;
#if MIXUP
        row[step % 2][1][THREAD] = there ? (int)of.rows[of.mate[place]] : -1;
#endif
    }

    METHOD void fetch(int step) {
#if MIXUP
        const float share = step < steps() ? of.mix[step] : 1.0f;
#endif
        UNROLL for (int i = 0; i < EACH; i++) {
            const int at = THREAD + i * THREADS, column = at % D;
            const int from = at < ROWS * D ? row[step % 2][0][at / D] : -1;
            fetched[i] = from >= 0 ? of.pool[(long long)from * D + column] : 0.0f;
#if MIXUP
            if (from >= 0) {
                const float other = of.pool[(long long)row[step % 2][1][at / D] * D + column];
                fetched[i] = share * fetched[i] + (1.0f - share) * other;
            }
#endif
        }
    }

    METHOD void keep(int step, float (*x)[XS]) {
        UNROLL for (int i = 0; i < EACH; i++) {
            const int at = THREAD + i * THREADS;
            if (at < ROWS * D) x[at / D][at % D] = fetched[i];
        }
        if (THREAD < ROWS) x[THREAD][D] = row[step % 2][0][THREAD] >= 0 ? 1.0f : 0.0f;
    }

    // The rows of the first step, into what other threads have filled with zeros.
    METHOD void begin(float (*x)[XS]) {
        find(0);
        BLOCK_BARRIER();
        fetch(0);
        BLOCK_BARRIER();  // zeros are there before the features
        keep(0, x);
        find(1);
        CLUSTER_BARRIER();
    }
};

// A warp's tiles of weights and moments, of which every lane has one slot: zeros where there is no unit or column.
// for_state(visit) calls visit(tile, k, i, at) for each number i of a slot that lies in the packed parameters.
template <class Shared, class ForState>
DEVICE void load_state(Shared &shared, const Given &of, int warp, int slot, int columns, ForState for_state) {
    const Quad nothing = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int tile = 0; tile < MT; tile++)
        for (int k = 0; k < columns; k++) {
            shared.weight[warp][tile][k][slot] = nothing;
            shared.first[warp][tile][k][slot] = nothing;
            shared.second[warp][tile][k][slot] = nothing;
        }
    for_state([&](int tile, int k, int i, int at) {
        element(shared.weight[warp][tile][k][slot], i) = of.params[at];
        element(shared.first[warp][tile][k][slot], i) = of.m[at];
        element(shared.second[warp][tile][k][slot], i) = of.v[at];
    });
}

template <class Shared, class ForState>
DEVICE void store_state(Shared &shared, const Given &of, int warp, int slot, ForState for_state) {
    for_state([&](int tile, int k, int i, int at) {
        of.params[at] = element(shared.weight[warp][tile][k][slot], i);
        of.m[at] = element(shared.first[warp][tile][k][slot], i);
        of.v[at] = element(shared.second[warp][tile][k][slot], i);
    });
}

// The features of a batch as factors: of row 8 r + g (a right factor), columns 2 t and 2 t + 1 of 8.
struct Factors { float high[KT][4][2], low[KT][4][2]; };

DEVICE void factors_of_rows(Factors &f, const float (*x)[XS], int g, int t) {
    UNROLL for (int k = 0; k < KT; k++)
        UNROLL for (int r = 0; r < 4; r++)
            UNROLL for (int i = 0; i < 2; i++)
                split(f.high[k][r][i], f.low[k][r][i], x[8 * r + g][8 * k + 2 * t + i]);
}

// The same of rows 8 r + 2 t and 8 r + 2 t + 1, column g of 8.
DEVICE void factors_of_columns(Factors &f, const float (*x)[XS], int g, int t) {
    UNROLL for (int k = 0; k < KT; k++)
        UNROLL for (int r = 0; r < 4; r++)
            UNROLL for (int i = 0; i < 2; i++)
                split(f.high[k][r][i], f.low[k][r][i], x[8 * r + 2 * t + i][8 * k + g]);
}
