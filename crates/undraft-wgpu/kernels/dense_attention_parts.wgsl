// dense_attention_parts: causal softmax attention over every SEGMENT positions of a cache on their own.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | query | [num_tokens, num_heads, D], scaled | f32 | in |
// | keys, values | [capacity, num_kv_heads, D] | f32 | in |
// | words | element len_at: positions held; token t stands at that + offset + t and sees all up to itself | u32 | in |
// | parts | [num_tokens, num_heads, num_segments, D + 2]: weighted values, maximum, sum; num_segments covers all positions | f32 | out |
//
// Segments begin at multiples of SEGMENT. One workgroup a (segment, head, token): a score is summed in rising order, the weights as
// block_sum does (invocation t has those of positions t, t + THREADS, ..), the weighted values key by key.

const SEGMENT = 128u;

@group(0) @binding(0) var<storage, read> query: array<f32>;
@group(0) @binding(1) var<storage, read> keys: array<f32>;
@group(0) @binding(2) var<storage, read> values: array<f32>;
@group(0) @binding(3) var<storage, read> words: array<u32>;
@group(0) @binding(4) var<storage, read_write> parts: array<f32>;

var<workgroup> weights: array<f32, SEGMENT>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let unit = workgroup.x + workgroup.y * num_workgroups.x;
    let segment = unit % p.num_segments;
    let head = unit / p.num_segments % p.num_heads;
    let t = unit / p.num_segments / p.num_heads;
    let D = p.head_dim;
    let position = words[p.len_at] + p.offset + t;
    let first = segment * SEGMENT;
    if t >= p.num_tokens || first > position { return; }
    let seen = min(SEGMENT, position + 1u - first);
    let row = p.num_kv_heads * D;
    let start = first * row + head / (p.num_heads / p.num_kv_heads) * D;
    let of_query = p.query_first + (t * p.num_heads + head) * D;
    var most = bitcast<f32>(0xff800000u ^ p.zero);
    for (var j = index; j < seen; j += THREADS) {
        var dot = 0.0;
        for (var i = 0u; i < D; i++) { dot = mad(query[of_query + i], keys[start + j * row + i], dot); }
        weights[j] = dot;
        most = max(most, dot);
    }
    most = block_max(most, index);
    var sum = 0.0;
    for (var j = index; j < seen; j += THREADS) {
        let weight = exponential(sub(weights[j], most));
        weights[j] = weight;
        sum = add(sum, weight);
    }
    sum = block_sum(sum, index);
    let part = p.parts_first + ((t * p.num_heads + head) * p.num_segments + segment) * (D + 2u);
    for (var i = index; i < D; i += THREADS) {
        var acc = 0.0;
        for (var j = 0u; j < seen; j++) { acc = mad(weights[j], values[start + j * row + i], acc); }
        parts[part + i] = acc;
    }
    if index == 0u {
        parts[part + D] = most;
        parts[part + D + 1u] = sum;
    }
}
