// Small kernels with one mistake each, and two without, to test that the emulator finds it. Blocks of 128 threads;
// out [gridDim.x, 128].
#include "prelude.cuh"

struct FaultParams {
    const float* in;  // [128]
    float* out;
};

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(128) name(const __grid_constant__ FaultParams p)

__device__ __forceinline__ float* shared_floats() {
    extern __shared__ __align__(16) unsigned char shared[];
    return (float*)shared;
}
__device__ __forceinline__ float& result(const FaultParams& p) { return p.out[blockIdx.x * 128 + threadIdx.x]; }

// ---- right ------------------------------------------------------------------------------------------------------

// The warp's sum, and a neighbour's element by way of shared memory and an asynchronous copy.
KERNEL(right) {
    float* s = shared_floats();
    int t = threadIdx.x;
    copy_async(s + t, p.in + t);
    float sum = warp_sum(p.in[t]);
    copies_done();
    __syncthreads();
    result(p) = s[(t + 37) % 128] + sum;
}
// Halves of a warp go different ways, each with its own mask.
KERNEL(right_in_halves) {
    float x = p.in[threadIdx.x];
    if (threadIdx.x % 32 < 16)
        x = __shfl_xor_sync(0x0000ffffu, x, 1);
    else
        x = x + __shfl_xor_sync(0xffff0000u, x, 2);
    result(p) = __shfl_sync(~0u, x, 31 - threadIdx.x % 32);
}

// ---- collectives and barriers -----------------------------------------------------------------------------------

KERNEL(shuffle_in_branch) {
    float x = p.in[threadIdx.x];
    if (threadIdx.x % 32 < 16) x = __shfl_xor_sync(~0u, x, 1);
    result(p) = x;
}
KERNEL(different_shuffles) {
    float x = p.in[threadIdx.x];
    if (threadIdx.x % 32 < 16)
        x = __shfl_xor_sync(~0u, x, 1);
    else
        x = __shfl_xor_sync(~0u, x, 2);
    result(p) = x;
}
KERNEL(shuffle_of_others) { result(p) = __shfl_sync(0x0000ffffu, p.in[threadIdx.x], 0); }
KERNEL(returned_before_shuffle) {
    if (threadIdx.x == 40) return;
    result(p) = __shfl_xor_sync(~0u, p.in[threadIdx.x], 1);
}
KERNEL(barrier_in_branch) {
    if (threadIdx.x < 64) __syncthreads();
    result(p) = p.in[threadIdx.x];
}
KERNEL(barrier_in_half_a_warp) {
    if (threadIdx.x % 32 < 16) __syncthreads();
    result(p) = p.in[threadIdx.x];
}
KERNEL(different_barriers) {
    if (threadIdx.x < 64)
        __syncthreads();
    else
        __syncthreads();
    result(p) = p.in[threadIdx.x];
}
KERNEL(barrier_meets_shuffle) {
    float x = p.in[threadIdx.x];
    if (threadIdx.x % 32 < 16)
        __syncthreads();
    else
        x = __shfl_xor_sync(~0u, x, 1);
    result(p) = x;
}

// ---- order ------------------------------------------------------------------------------------------------------

KERNEL(missing_barrier) {
    float* s = shared_floats();
    int t = threadIdx.x;
    s[t] = p.in[t];
    result(p) = s[(t + 37) % 128];
}
KERNEL(missing_warp_barrier) {
    float* s = shared_floats();
    int t = threadIdx.x;
    s[t] = p.in[t];
    result(p) = s[t ^ 1];
}
// The next round's writes meet this round's reads.
KERNEL(missing_second_barrier) {
    float* s = shared_floats();
    int t = threadIdx.x;
    float sum = 0.0f;
    for (int round = 0; round < 3; ++round) {
        s[t] = p.in[t] + round;
        __syncthreads();
        sum += s[(t + 37) % 128];
    }
    result(p) = sum;
}
// Blocks add up in whatever order they come.
KERNEL(blocks_in_order) {
    if (blockIdx.x == 0) return;
    p.out[threadIdx.x] = p.out[threadIdx.x] * 0.5f + blockIdx.x;
}

// ---- memory -----------------------------------------------------------------------------------------------------

KERNEL(past_the_end) { p.out[blockIdx.x * 128 + threadIdx.x + 1] = p.in[threadIdx.x]; }
KERNEL(before_the_begin) { p.out[(int)(blockIdx.x * 128 + threadIdx.x) - 1] = p.in[threadIdx.x]; }
KERNEL(wild_pointer) { p.out[-((i64)1 << 40)] = p.in[threadIdx.x]; }
KERNEL(null_pointer) { result(p) = *(float*)(i64)(threadIdx.x * 4); }
KERNEL(division_by_zero) { result(p) = (float)(7 / ((int)threadIdx.x / 40)); }
KERNEL(too_large_a_frame) {
    volatile float frame[60000];
    frame[threadIdx.x] = p.in[threadIdx.x];
    result(p) = frame[threadIdx.x];
}
KERNEL(past_shared_memory) {
    shared_floats()[threadIdx.x + 1] = p.in[threadIdx.x];
    result(p) = 0.0f;
}
KERNEL(unwritten_shared_memory) {
    float* s = shared_floats();
    if (threadIdx.x != 5) s[threadIdx.x] = p.in[threadIdx.x];
    __syncthreads();
    result(p) = s[threadIdx.x ^ 1];
}
KERNEL(missing_copies_done) {
    float* s = shared_floats();
    copy_async(s + threadIdx.x, p.in + threadIdx.x);
    result(p) = s[threadIdx.x];
    copies_done();
}
// Each thread waits for its own copies alone.
KERNEL(copies_of_others) {
    float* s = shared_floats();
    copy_async(s + threadIdx.x, p.in + threadIdx.x);
    copies_done();
    result(p) = s[threadIdx.x ^ 64];
}
// What is overwritten may have been copied already, or not yet.
KERNEL(source_changes_under_copy) {
    float* s = shared_floats();
    p.out[blockIdx.x * 128 + threadIdx.x] = 1.0f;
    copy_async(s + threadIdx.x, &result(p));
    result(p) = 2.0f;
    copies_done();
    result(p) = s[threadIdx.x];
}
KERNEL(returns_before_copies) {
    copy_async(shared_floats() + threadIdx.x, p.in + threadIdx.x);
    result(p) = 0.0f;
}
KERNEL(misaligned_copy) {
    copy_async((float4*)shared_floats() + threadIdx.x % 8, (const float4*)(p.in + 1));
    copies_done();
    result(p) = 0.0f;
}
