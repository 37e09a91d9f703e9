// dense_moe: which experts a token takes, and the sum of what they give.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | logits | [num_tokens, num_experts + 1]: of the experts, then of the shared expert's gate | f32 | in |
// | experts | [num_tokens, top_k], rising numbers; top_k <= 32 | u32 | out |
// | weights | [num_tokens, top_k] | f32 | out, then in |
// | results | [num_tokens, top_k, len] of the experts, in the order of `experts` | f32 | in |
// | shared | [num_tokens, len] of the shared expert | f32 | in |
// | out | [num_tokens, len] | f32 | out |
#include "dense.cuh"

struct MoeParams {
    const float* logits;
    u32* experts;
    float* weights;
    const float *results, *shared;
    float* out;
    i64 len;
    int num_tokens, num_experts, top_k, norm_topk_prob;
};

// One warp a token. Softmax over all experts (lane l adds l, l + 32, ..), then the largest one after the other, equal ones in
// the order of their numbers.
extern "C" __global__ void __launch_bounds__(32) dense_moe_route(const __grid_constant__ MoeParams p) {
    int lane = threadIdx.x;
    const float* logits = p.logits + (i64)blockIdx.x * (p.num_experts + 1);
    float most = logits[0], sum = 0.0f;
    for (int e = lane; e < p.num_experts; e += 32) most = fmaxf(most, logits[e]);
#pragma unroll
    for (int o = 16; o; o >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    for (int e = lane; e < p.num_experts; e += 32) sum = __fadd_rn(sum, expf(__fsub_rn(logits[e], most)));
    sum = warp_sum(sum);
    u64 previous = ~0ull;
    u32 mine = 0;
    float probability = 0.0f, total = 0.0f;
    for (int rank = 0; rank < p.top_k; ++rank) {
        // The largest below the one before; an order with an index in it never comes twice.
        u64 best = 0;
        for (int e = lane; e < p.num_experts; e += 32) {
            u64 order = order_with_index(__fdiv_rn(expf(__fsub_rn(logits[e], most)), sum), (u32)e);
            if (order > best && order < previous) best = order;
        }
        previous = warp_max(best);
        u32 expert = min(index_of(previous), (u32)p.num_experts - 1);
        float weight = __fdiv_rn(expf(__fsub_rn(logits[expert], most)), sum);
        total = __fadd_rn(total, weight);
        if (lane == rank) mine = expert, probability = weight;
    }
    int place = 0;
    for (int rank = 0; rank < p.top_k; ++rank) place += __shfl_sync(~0u, mine, rank) < mine;
    if (lane >= p.top_k) return;
    i64 at = (i64)blockIdx.x * p.top_k + place;
    p.experts[at] = mine;
    p.weights[at] = p.norm_topk_prob ? __fdiv_rn(probability, total) : probability;
}

// One thread an element: the experts in the order of their numbers, then the shared one.
extern "C" __global__ void __launch_bounds__(128) dense_moe_sum(const __grid_constant__ MoeParams p) {
    i64 j = (i64)blockIdx.x * 128 + threadIdx.x, t = blockIdx.y;
    if (j >= p.len) return;
    float acc = 0.0f;
    for (int s = 0; s < p.top_k; ++s)
        acc = __fmaf_rn(p.results[(t * p.top_k + s) * p.len + j], p.weights[t * p.top_k + s], acc);
    float gate = sigmoid32(p.logits[t * (p.num_experts + 1) + p.num_experts]);
    p.out[t * p.len + j] = __fmaf_rn(p.shared[t * p.len + j], gate, acc);
}
