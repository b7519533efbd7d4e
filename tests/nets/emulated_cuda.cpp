// Runs a kernel on a CPU, every thread as a fiber: warps exchange and barriers wait as on a GPU, in a shuffled order.
#include <cmath>
#include <cstring>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>
#include <ucontext.h>

struct Fiber { ucontext_t context; std::vector<char> stack; bool over = false; int block, thread; };
static ucontext_t home;
static Fiber *now;
struct Barrier { int waiting = 0; long generation = 0; };
struct WarpState { float a[32][4], b[32][2], value[32]; Barrier barrier; };
struct BlockState { char *memory; Barrier barrier; std::vector<WarpState> warps; };
static std::vector<BlockState> blocks;
static Barrier cluster_barrier;
static int first_block;

static void give_way() { swapcontext(&now->context, &home); }
static void wait_for(Barrier &b, int count) {
    const long mine = b.generation;
    if (++b.waiting == count) { b.waiting = 0; b.generation++; return; }
    while (b.generation == mine) give_way();
}

#define DEVICE static inline
#define METHOD inline
#define KERNEL
#define UNROLL
#define THREAD now->thread
#define BLOCK (first_block + now->block)
#define CLUSTER_RANK now->block
#define SHARED_MEMORY(type, name) type &name = *reinterpret_cast<type *>(blocks[now->block].memory)
#define BLOCK_BARRIER() wait_for(blocks[now->block].barrier, 32 * WARPS)
#define CLUSTER_BARRIER() wait_for(cluster_barrier, 32 * WARPS * CLUSTER)
static inline WarpState &my_warp() { return blocks[now->block].warps[now->thread / 32]; }
#define WARP_BARRIER() wait_for(my_warp().barrier, 32)
static inline float maximum(float a, float b) { return a > b ? a : b; }
template <class T> static inline T minimum(T a, T b) { return a < b ? a : b; }
static inline float divide(float a, float b) { return a / b; }
static inline float square_root(float a) { return std::sqrt(a); }
static inline float exponential(float a) { return std::exp(a); }
static inline float logarithm(float a) { return std::log(a); }
static inline unsigned bits_of(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
static inline float from_bits(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline float shuffle(float value, int from) {
    auto &w = my_warp();
    w.value[now->thread % 32] = value; WARP_BARRIER();
    const float found = w.value[from]; WARP_BARRIER();
    return found;
}
static inline float shuffle_xor(float value, int far) { return shuffle(value, (now->thread % 32) ^ far); }
static inline float read_by_matrix_unit(float x) { return from_bits(bits_of(x) & 0xffffe000u); }
static inline void mma(float *acc, const float *a, const float *b) {
    auto &w = my_warp();
    const int lane = now->thread % 32, g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) w.a[lane][i] = read_by_matrix_unit(a[i]);
    for (int i = 0; i < 2; i++) w.b[lane][i] = read_by_matrix_unit(b[i]);
    WARP_BARRIER();
    for (int i = 0; i < 4; i++) {
        const int row = g + 8 * (i / 2), column = 2 * t + i % 2;
        for (int k = 0; k < 8; k++)
            acc[i] += w.a[4 * (row % 8) + k % 4][row / 8 + 2 * (k / 4)] * w.b[4 * column + k % 4][k / 4];
    }
    WARP_BARRIER();
}
static inline void store_in_block(float *slot, int other, float value) {
    char *at = reinterpret_cast<char *>(slot);
    *reinterpret_cast<float *>(blocks[other].memory + (at - blocks[now->block].memory)) = value;
}
static inline void store_pair_in_block(float *slot, int other, float one, float two) {
    store_in_block(slot, other, one);
    store_in_block(slot + 1, other, two);
}

#include "common.cu"
#if WIDE
#include "wide.cu"
#else
#include "narrow.cu"
#endif

static std::function<void()> work;
static void enter() { work(); now->over = true; swapcontext(&now->context, &home); }

extern "C" int shared_bytes() { return sizeof(Shared); }
extern "C" int given_bytes() { return sizeof(Given); }
extern "C" void run(int networks, const Given *given, int seed) {
    srand(seed);
    for (int c = 0; c < networks / NETS; c++) {
        first_block = c * CLUSTER;
        blocks.assign(CLUSTER, BlockState());
        std::vector<std::unique_ptr<char[]>> memory;
        for (auto &b : blocks) {
            memory.emplace_back(new char[sizeof(Shared)]);
            b.memory = memory.back().get();
            float *noise = reinterpret_cast<float *>(b.memory);
            for (size_t i = 0; i < sizeof(Shared) / 4; i++) noise[i] = NAN;  // what is read was written
            b.warps.resize(WARPS);
        }
        work = [=] { train(*given); };
        std::vector<std::unique_ptr<Fiber>> fibers;
        for (int i = 0; i < CLUSTER * THREADS; i++) {
            auto f = std::make_unique<Fiber>();
            f->stack.resize(1 << 16); f->block = i / THREADS; f->thread = i % THREADS;
            getcontext(&f->context);
            f->context.uc_stack.ss_sp = f->stack.data(); f->context.uc_stack.ss_size = f->stack.size(); f->context.uc_link = &home;
            makecontext(&f->context, enter, 0);
            fibers.push_back(std::move(f));
        }
        size_t left = fibers.size();
        while (left) {  // warps take turns in a random order, and some of them often not at all
            const int warps = fibers.size() / 32, start = rand() % warps, stay = rand() % 3;
            for (int k = 0; k < warps; k++) {
                const int wi = (start + k) % warps;
                if (stay && rand() % 4 == 0) continue;
                for (int l = 0; l < 32; l++) {
                    Fiber *f = fibers[wi * 32 + l].get();
                    if (f->over) continue;
                    now = f; swapcontext(&home, &f->context);
                    if (f->over) left--;
                }
            }
        }
    }
}
