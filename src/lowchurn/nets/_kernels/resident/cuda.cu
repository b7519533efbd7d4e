// What the kernels are written in, on a GPU: compiled in front of them.
// TOGETHER is the number of blocks that are to fit on a multiprocessor at the same time.

#if SPLIT * (TWIN + 1) > 1
#define IN_CLUSTERS __cluster_dims__(SPLIT * (TWIN + 1), 1, 1)
#else
#define IN_CLUSTERS
#endif
#define DEVICE __device__ __forceinline__
#define METHOD __device__ __forceinline__
#define KERNEL extern "C" __global__ IN_CLUSTERS __launch_bounds__(32 * WARPS, TOGETHER)
#define UNROLL _Pragma("unroll")
#define THREAD ((int)threadIdx.x)
#define BLOCK ((int)blockIdx.x)
#define SHARED_MEMORY(type, name) \
    extern __shared__ __align__(16) char memory_of_block[]; \
    type &name = *reinterpret_cast<type *>(memory_of_block)
#define BLOCK_BARRIER() __syncthreads()
#define WARP_BARRIER() __syncwarp()
#define EVERY_LANE 0xffffffffu

DEVICE float maximum(float a, float b) { return fmaxf(a, b); }
template <class T> DEVICE T minimum(T a, T b) { return a < b ? a : b; }
DEVICE float divide(float a, float b) {
    float found;
    asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}
DEVICE float square_root(float a) {
    float found;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(a));
    return found;
}
DEVICE float exponential(float a) { return expf(a); }
DEVICE float logarithm(float a) { return logf(a); }
DEVICE unsigned bits_of(float x) { return __float_as_uint(x); }
DEVICE float from_bits(unsigned bits) { return __uint_as_float(bits); }
DEVICE float shuffle(float value, int from) { return __shfl_sync(EVERY_LANE, value, from); }
DEVICE float shuffle_xor(float value, int far) { return __shfl_xor_sync(EVERY_LANE, value, far); }
DEVICE void mma(float *acc, const float *a, const float *b) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

#if SPLIT * (TWIN + 1) > 1
DEVICE int rank_in_cluster() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}
DEVICE void cluster_barrier() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same place in the shared memory of another block of the cluster.
DEVICE unsigned place_in_block(const float *slot, int other) {
    unsigned here = (unsigned)__cvta_generic_to_shared(slot), there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(other));
    return there;
}
DEVICE void store_in_block(float *slot, int other, float value) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(place_in_block(slot, other)), "f"(value) : "memory");
}
DEVICE void store_pair_in_block(float *slot, int other, float one, float two) {
    const unsigned there = place_in_block(slot, other);
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(one), "f"(two) : "memory");
}
#define CLUSTER_RANK rank_in_cluster()
#define CLUSTER_BARRIER() cluster_barrier()
#else
DEVICE void store_in_block(float *slot, int, float value) { *slot = value; }
DEVICE void store_pair_in_block(float *slot, int, float one, float two) {
    slot[0] = one;
    slot[1] = two;
}
#define CLUSTER_RANK 0
#define CLUSTER_BARRIER() __syncthreads()
#endif
