// dense_attention: causal softmax attention over a cache, in two launches: of every SEGMENT positions on their own, then
// the segments in order, times the sigmoid of the gate.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | query | [num_tokens, num_heads, D], scaled | f32 | in |
// | keys, values | [capacity, num_kv_heads, D] | f32 | in |
// | len | one: positions held; token t stands at len + offset + t and sees all up to itself | i32 | in |
// | parts | [num_tokens, num_heads, num_segments, D + 2]: weighted values, maximum, sum; num_segments covers all positions | f32 | out, then in |
// | gate | [num_tokens, num_heads], heads 2 D and tokens gate_stride elements apart | f32 | in |
// | out | [num_tokens, num_heads, D] | f32 | out |
//
// Segments begin at multiples of SEGMENT. Of a segment, a score is summed by a warp (lane l elements l, l + 32, .., then the
// lanes pairwise), the weights as block_sum does, and the weighted values key by key. Which tokens come together changes nothing.
#include "dense.cuh"

#define SEGMENT 128

struct AttentionParams {
    const float *query, *keys, *values;
    const int* len;
    float* parts;
    const float* gate;
    float* out;
    i64 gate_stride;
    int num_tokens, num_heads, num_kv_heads, head_dim, num_segments, offset;
};

// One block of SEGMENT threads a (segment, head, token).
extern "C" __global__ void __launch_bounds__(SEGMENT) dense_attention_parts(const __grid_constant__ AttentionParams p) {
    constexpr int WARPS = SEGMENT / 32;
    int segment = blockIdx.x % p.num_segments, head = blockIdx.x / p.num_segments, t = blockIdx.y, D = p.head_dim;
    int position = *p.len + p.offset + t, first = segment * SEGMENT;
    if (first > position) return;
    int seen = min(SEGMENT, position + 1 - first), tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    i64 unit = (i64)t * p.num_heads + head, row = (i64)p.num_kv_heads * D;
    i64 start = first * row + (i64)(head / (p.num_heads / p.num_kv_heads)) * D;
    float* scores = dense_shared<float>();  // [SEGMENT], then [WARPS] twice
    float *maxima = scores + SEGMENT, *sums = maxima + WARPS;
    const float* q = p.query + unit * D;
    for (int j = 4 * warp; j < seen; j += 4 * WARPS) {
        // Four keys at a time; beyond the end lies the last one, again.
        float dots[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        const float* k[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) k[r] = p.keys + start + min(j + r, seen - 1) * row;
#pragma unroll 4
        for (int i = lane; i < D; i += 32) {
            float query = q[i];
#pragma unroll
            for (int r = 0; r < 4; ++r) dots[r] = __fmaf_rn(query, k[r][i], dots[r]);
        }
        int index;
        float dot = warp_sums(dots, lane, index);
        if (lane % 8 == 0 && j + index < seen) scores[j + index] = dot;
    }
    __syncthreads();
    // A NaN is lost here, and comes back with its own weight.
    float score = scores[min(tid, seen - 1)], most = score;
#pragma unroll
    for (int o = 16; o; o >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    if (lane == 0) maxima[warp] = most;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; ++w) most = fmaxf(most, maxima[w]);
    float weight = tid < seen ? expf(__fsub_rn(score, most)) : 0.0f;
    scores[tid] = weight;
    float sum = block_sum<WARPS>(weight, sums);
    float* part = p.parts + (unit * p.num_segments + segment) * (D + 2);
    for (int i = tid; i < D; i += SEGMENT) {
        const float* v = p.values + start + i;
        float acc = 0.0f;
#pragma unroll 8
        for (int j = 0; j < seen; ++j) acc = __fmaf_rn(scores[j], v[j * row], acc);
        part[i] = acc;
    }
    if (tid == 0) part[D] = most, part[D + 1] = sum;
}

// One block a (head, token).
extern "C" __global__ void __launch_bounds__(128) dense_attention(const __grid_constant__ AttentionParams p) {
    int head = blockIdx.x, t = blockIdx.y, D = p.head_dim;
    int segments = (*p.len + p.offset + t) / SEGMENT + 1;
    i64 unit = (i64)t * p.num_heads + head;
    const float* parts = p.parts + unit * p.num_segments * (D + 2);
    float most = parts[D];
    for (int s = 1; s < segments; ++s) most = fmaxf(most, parts[(i64)s * (D + 2) + D]);
    for (int i = threadIdx.x; i < D; i += 128) {
        float acc = 0.0f, sum = 0.0f;
        for (int s = 0; s < segments; ++s) {
            const float* part = parts + (i64)s * (D + 2);
            float factor = expf(__fsub_rn(part[D], most));
            acc = __fmaf_rn(part[i], factor, acc);
            sum = __fmaf_rn(part[D + 1], factor, sum);
        }
        float gate = p.gate[t * p.gate_stride + (i64)head * 2 * D + i];
        p.out[unit * D + i] = __fmul_rn(__fdiv_rn(acc, sum), sigmoid32(gate));
    }
}
