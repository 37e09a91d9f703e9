// dense_moe_sum: the sum of what the experts of a token give.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | logits | [num_tokens, num_experts + 1]: of the experts, then of the shared expert's gate | f32 | in |
// | weights | [num_tokens, top_k] | f32 | in |
// | results | [num_tokens, top_k, len] of the experts, in the order of `weights` | f32 | in |
// | shared | [num_tokens, len] of the shared expert | f32 | in |
// | out | [num_tokens, len] | f32 | out |
//
// One invocation an element: the experts in the order of their numbers, then the shared one.

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> weights: array<f32>;
@group(0) @binding(2) var<storage, read> results: array<f32>;
@group(0) @binding(3) var<storage, read> shared_results: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let i = (workgroup.x + workgroup.y * num_workgroups.x) * THREADS + index;
    if i >= p.num_tokens * p.len { return; }
    let t = i / p.len;
    let j = i % p.len;
    var acc = 0.0;
    for (var s = 0u; s < p.top_k; s++) {
        acc = mad(results[(t * p.top_k + s) * p.len + j], weights[t * p.top_k + s], acc);
    }
    let gate = sigmoid(logits[t * (p.num_experts + 1u) + p.num_experts]);
    out[i] = mad(shared_results[i], gate, acc);
}
