// dense_moe: which experts a token takes, and the sum of what they give.
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0 | logits | [num_tokens, num_experts + 1]: of the experts, then of the shared expert's gate | f32 | in |
// | 1 | experts | [num_tokens, top_k], rising numbers; top_k <= 32 | u32 | out |
// | 2 | weights | [num_tokens, top_k] | f32 | out, then in |
// | 3 | results | [num_tokens, top_k, len] of the experts, in the order of `experts` | f32 | in |
// | 4 | shared | [num_tokens, len] of the shared expert | f32 | in |
// | 5 | out | [num_tokens, len] | f32 | out |
// | 6 | params | MoeParams | | in |
#include "dense.h"

struct MoeParams {
    long len;
    int num_experts, top_k, norm_topk_prob;
};

// Softmax over all experts (lane l adds l, l + 32, .., then the lanes pairwise), then the largest one after the other, equal ones
// in the order of their numbers. Threadgroups: num_tokens, of 32 threads.
kernel void dense_moe_route(
    device const float* logits [[buffer(0)]], device uint* experts [[buffer(1)]], device float* weights [[buffer(2)]],
    constant MoeParams& p [[buffer(6)]], uint3 at [[threadgroup_position_in_grid]],
    uint lane_index [[thread_index_in_simdgroup]]) {
    long token = at.x;
    int lane = (int)lane_index;
    device const float* row = logits + token * (p.num_experts + 1);
    float most = -INFINITY, sum = 0.0f;
    for (int e = lane; e < p.num_experts; e += 32) most = row[e] > most ? row[e] : most;
    most = lanes_max(most);
    for (int e = lane; e < p.num_experts; e += 32) sum = sum + exp_pair(row[e] - most, 0.0f).hi;
    sum = lanes_sum(sum);
    // Above everything.
    Ranked previous = {0xffffffffu, -1};
    int mine = 0;
    float probability = 0.0f, total = 0.0f;
    for (int rank = 0; rank < p.top_k; ++rank) {
        // The largest below the one before; no two have the same index.
        Ranked best = ranked_none();
        for (int e = lane; e < p.num_experts; e += 32) {
            Ranked candidate = {order_of(exp_pair(row[e] - most, 0.0f).hi / sum), e};
            if (above(candidate, best) && above(previous, candidate)) best = candidate;
        }
        previous = lanes_best(best);
        float weight = exp_pair(row[previous.index] - most, 0.0f).hi / sum;
        total = total + weight;
        if (lane == rank) mine = previous.index, probability = weight;
    }
    int place = 0;
    for (int rank = 0; rank < p.top_k; ++rank) place += simd_broadcast(mine, (ushort)rank) < mine ? 1 : 0;
    if (lane >= p.top_k) return;
    experts[token * p.top_k + place] = (uint)mine;
    weights[token * p.top_k + place] = p.norm_topk_prob ? probability / total : probability;
}

// One thread an element: the experts in the order of their numbers, then the shared one. Threadgroups: (len / 128 rounded up,
// num_tokens), of 128 threads.
kernel void dense_moe_sum(
    device const float* logits [[buffer(0)]], device const float* weights [[buffer(2)]],
    device const float* results [[buffer(3)]], device const float* shared [[buffer(4)]], device float* out [[buffer(5)]],
    constant MoeParams& p [[buffer(6)]], uint3 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
    long j = (long)at.x * 128 + tid, t = at.y;
    if (j >= p.len) return;
    float acc = 0.0f;
    for (int s = 0; s < p.top_k; ++s) {
        long chosen = t * p.top_k + s;
        acc = metal::fma(results[chosen * p.len + j], weights[chosen], acc);
    }
    float gate = quick_sigmoid(logits[t * (p.num_experts + 1) + p.num_experts]);
    out[t * p.len + j] = metal::fma(shared[t * p.len + j], gate, acc);
}
