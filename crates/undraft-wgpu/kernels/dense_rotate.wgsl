// dense_rotate: norm of each query and key head and rotation of its first values; keys and values go into the cache.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | qkv | [num_tokens] of [num_heads, 2, D] (query, gate), [num_kv_heads, D] keys, [num_kv_heads, D] values | f32 | in |
// | q_factor, k_factor | [D] | f32 | in |
// | rope | [capacity, rotary_dim]: cosines, then sines of a position | f32 | in |
// | words | element len_at: positions held; token t stands at that + offset + t, below the capacity | u32 | in |
// | query | [num_tokens, num_heads, D], scaled | f32 | out |
// | keys, values | [capacity, num_kv_heads, D] | f32 | out, rows of the tokens |
//
// One workgroup a head of a token; invocation t sums the squares of elements t, t + THREADS, .., then the workgroup as block_sum
// does. Value i turns with i + rotary_dim / 2.

@group(0) @binding(0) var<storage, read> qkv: array<f32>;
@group(0) @binding(1) var<storage, read> q_factor: array<f32>;
@group(0) @binding(2) var<storage, read> k_factor: array<f32>;
@group(0) @binding(3) var<storage, read> rope: array<f32>;
@group(0) @binding(4) var<storage, read> words: array<u32>;
@group(0) @binding(5) var<storage, read_write> query: array<f32>;
@group(0) @binding(6) var<storage, read_write> keys: array<f32>;
@group(0) @binding(7) var<storage, read_write> values: array<f32>;

fn normed(value: f32, norm: f32, i: u32, is_query: bool) -> f32 {
    if is_query { return mul(mul(value, norm), q_factor[i]); }
    return mul(mul(value, norm), k_factor[i]);
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let unit = workgroup.x + workgroup.y * num_workgroups.x;
    let heads = p.num_heads + 2u * p.num_kv_heads;
    if unit >= p.num_tokens * heads { return; }
    let t = unit / heads;
    let head = unit % heads;
    let D = p.head_dim;
    let position = words[p.len_at] + p.offset + t;
    let row = t * (2u * p.num_heads + 2u * p.num_kv_heads) * D;
    if head >= p.num_heads + p.num_kv_heads {
        let v_head = head - p.num_heads - p.num_kv_heads;
        let source = row + (2u * p.num_heads + p.num_kv_heads + v_head) * D;
        let place = (position * p.num_kv_heads + v_head) * D;
        for (var i = index; i < D; i += THREADS) { values[place + i] = qkv[source + i]; }
        return;
    }
    let is_query = head < p.num_heads;
    let k_head = head - p.num_heads;
    let source = row + select((2u * p.num_heads + k_head) * D, 2u * head * D, is_query);
    var sum = 0.0;
    for (var i = index; i < D; i += THREADS) { sum = mad(qkv[source + i], qkv[source + i], sum); }
    let norm = inverse_root(add(divide(block_sum(sum, index), f32(D)), p.eps));
    let angles = position * p.rotary_dim;
    let half = p.rotary_dim / 2u;
    for (var i = index; i < D; i += THREADS) {
        var turned = normed(qkv[source + i], norm, i, is_query);
        if i < p.rotary_dim {
            let first = i < half;
            let other = select(i - half, i + half, first);
            let angle = select(other, i, first);
            let along = mul(turned, rope[angles + angle]);
            let across = mul(normed(qkv[source + other], norm, other, is_query), rope[angles + half + angle]);
            turned = select(add(along, across), sub(along, across), first);
        }
        if is_query {
            query[(t * p.num_heads + head) * D + i] = mul(turned, p.scale);
        } else {
            keys[(position * p.num_kv_heads + k_head) * D + i] = turned;
        }
    }
}
