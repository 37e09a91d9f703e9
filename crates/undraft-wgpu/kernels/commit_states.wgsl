// commit_states: replay of log entries into the states.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | state | [num_slots, HV, V, K], slots by stride | STATE | in, out |
// | log | k [num_log_slots, log_max, H, K], decay [.., HV] or [.., HV, K], delta [.., HV, V], each from its first element on | f32 | in |
// | ints | log_slots [num_seqs] or none: as state_indices; state_indices, num_kept [num_seqs]; path [num_seqs, log_max] or none | i32, u32 | in |
//
// S = S * decay, S = fma(delta, k, S), a 16-bit state rounded, entry by entry: no sum, so that an invocation takes four
// neighbours of a row wherever they lie.

@group(0) @binding(2) var<storage, read> log: array<f32>;
@group(0) @binding(3) var<storage, read> ints: array<u32>;

// `n` numbers of the log from number i on; the rest of the four is 0.
fn fetch(i: u32, n: u32) -> vec4<f32> {
    if AT_ONCE == 4u { return vec4<f32>(log[i], log[i + 1u], log[i + 2u], log[i + 3u]); }
    var x = vec4<f32>(log[i], 0.0, 0.0, 0.0);
    if n > 1u { x.y = log[i + 1u]; }
    if n > 2u { x.z = log[i + 2u]; }
    if n > 3u { x.w = log[i + 3u]; }
    return x;
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let block = workgroup.x + workgroup.y * num_workgroups.x;
    let head = block / p.blocks_per_head;
    let seq = head / p.num_v_heads;
    let hv = head % p.num_v_heads;
    if seq >= p.num_seqs { return; }
    let slot = bitcast<i32>(ints[p.state_indices + seq]);
    let kept = ints[p.num_kept + seq];
    if slot < 0 || kept == 0u { return; }
    // Fours of a row, the last one perhaps shorter.
    let fours = (p.head_k_dim + 3u) / 4u;
    let four = block % p.blocks_per_head * (THREADS * NR) + index;
    let column = four % fours * 4u;
    let n = min(4u, p.head_k_dim - column);
    let h = select(hv / (p.num_v_heads / p.num_k_heads), hv % p.num_k_heads, p.tiled == 1u);
    // With more than one row, a workgroup's invocations are whole rows.
    let row = four / fours;
    let apart = THREADS / fours;
    let first_at = p.state_first + u32(slot) * p.state_stride + hv * p.head_v_dim * p.head_k_dim + column;
    var log_slot = u32(slot);
    if p.log_slots != NONE { log_slot = ints[p.log_slots + seq]; }
    var s: array<vec4<f32>, NR>;
    for (var r = 0u; r < NR; r++) { // unroll
        if row + r * apart < p.head_v_dim { s[r] = load_state(first_at + (row + r * apart) * p.head_k_dim, n); }
    }
    for (var first = 0u; first < kept; first += AT_A_TIME) {
        var keys: array<vec4<f32>, AT_A_TIME>;
        var decays: array<vec4<f32>, AT_A_TIME>;
        var deltas: array<array<f32, NR>, AT_A_TIME>;
        for (var e = 0u; e < AT_A_TIME; e++) { // unroll
            let i = first + e;
            if i < kept {
                var entry = i;
                if p.path != NONE { entry = ints[p.path + seq * p.log_max + i]; }
                entry += log_slot * p.log_max;
                let of_delta = p.delta_first + (entry * p.num_v_heads + hv) * p.head_v_dim + row;
                for (var r = 0u; r < NR; r++) { // unroll
                    if row + r * apart < p.head_v_dim { deltas[e][r] = log[of_delta + r * apart]; }
                }
                keys[e] = fetch(p.k_first + (entry * p.num_k_heads + h) * p.head_k_dim + column, n);
                let head = entry * p.num_v_heads + hv;
                if p.per_channel == 1u {
                    decays[e] = fetch(p.decay_first + head * p.head_k_dim + column, n);
                } else {
                    decays[e] = vec4<f32>(log[p.decay_first + head]);
                }
            }
        }
        for (var e = 0u; e < AT_A_TIME; e++) { // unroll
            if first + e < kept {
                for (var r = 0u; r < NR; r++) { // unroll
                    s[r] = round_state(fused4(deltas[e][r], keys[e], scaled(s[r], decays[e])));
                }
            }
        }
    }
    for (var r = 0u; r < NR; r++) { // unroll
        if row + r * apart < p.head_v_dim { store_state(first_at + (row + r * apart) * p.head_k_dim, n, s[r]); }
    }
}
