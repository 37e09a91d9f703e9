// dense_moe_route: which experts a token takes.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | logits | [num_tokens, num_experts + 1]: of the experts, then of the shared expert's gate | f32 | in |
// | experts | [num_tokens, top_k], rising numbers; top_k <= THREADS | u32 | out |
// | weights | [num_tokens, top_k] | f32 | out |
//
// One workgroup a token. Softmax over all experts (invocation t adds t, t + THREADS, .., then the workgroup as block_sum does), then
// the largest one after the other, equal ones in the order of their numbers.

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> experts: array<u32>;
@group(0) @binding(2) var<storage, read_write> weights: array<f32>;

var<workgroup> numbers: array<u32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let token = workgroup.x + workgroup.y * num_workgroups.x;
    if token >= p.num_tokens { return; }
    let first = token * (p.num_experts + 1u);
    var most = logits[first];
    for (var e = index; e < p.num_experts; e += THREADS) { most = max(most, logits[first + e]); }
    most = block_max(most, index);
    var sum = 0.0;
    for (var e = index; e < p.num_experts; e += THREADS) { sum = add(sum, exponential(sub(logits[first + e], most))); }
    sum = block_sum(sum, index);
    var previous = Ranked(0xffffffffu, 0u);
    var mine = 0u;
    var probability = 0.0;
    var total = 0.0;
    for (var rank = 0u; rank < p.top_k; rank++) {
        // The largest below the one before.
        var best = Ranked(0u, p.num_experts);
        for (var e = index; e < p.num_experts; e += THREADS) {
            let candidate = Ranked(order_of(divide(exponential(sub(logits[first + e], most)), sum)), e);
            if above(candidate, best) && above(previous, candidate) { best = candidate; }
        }
        previous = block_best(best, index);
        let expert = min(previous.index, p.num_experts - 1u);
        let weight = divide(exponential(sub(logits[first + expert], most)), sum);
        total = add(total, weight);
        if index == rank {
            mine = expert;
            probability = weight;
        }
    }
    numbers[index] = mine;
    workgroupBarrier();
    if index >= p.top_k { return; }
    var place = 0u;
    for (var rank = 0u; rank < p.top_k; rank++) { place += select(0u, 1u, numbers[rank] < mine); }
    let at = token * p.top_k + place;
    experts[at] = mine;
    weights[at] = select(probability, divide(probability, total), p.norm_topk_prob == 1u);
}
