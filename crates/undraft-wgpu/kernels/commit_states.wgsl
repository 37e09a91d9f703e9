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
    // Fours of a row, the last one perhaps shorter.
    let fours = (p.head_k_dim + 3u) / 4u;
    let four = block % p.blocks_per_head * THREADS + index;
    if slot < 0 || kept == 0u || four >= fours * p.head_v_dim { return; }
    let row = four / fours;
    let column = four % fours * 4u;
    let n = min(4u, p.head_k_dim - column);
    let h = select(hv / (p.num_v_heads / p.num_k_heads), hv % p.num_k_heads, p.tiled == 1u);
    let at = p.state_first + u32(slot) * p.state_stride + (hv * p.head_v_dim + row) * p.head_k_dim + column;
    var log_slot = u32(slot);
    if p.log_slots != NONE { log_slot = ints[p.log_slots + seq]; }
    var s = load_state(at, n);
    for (var i = 0u; i < kept; i++) {
        var entry = i;
        if p.path != NONE { entry = ints[p.path + seq * p.log_max + i]; }
        entry += log_slot * p.log_max;
        let delta = log[p.delta_first + (entry * p.num_v_heads + hv) * p.head_v_dim + row];
        let of_k = p.k_first + (entry * p.num_k_heads + h) * p.head_k_dim + column;
        let of_decay = p.decay_first + (entry * p.num_v_heads + hv) * select(1u, p.head_k_dim, p.per_channel == 1u);
        var k = vec4<f32>(log[of_k], 0.0, 0.0, 0.0);
        if n > 1u { k.y = log[of_k + 1u]; }
        if n > 2u { k.z = log[of_k + 2u]; }
        if n > 3u { k.w = log[of_k + 3u]; }
        var decay = vec4<f32>(log[of_decay]);
        if p.per_channel == 1u {
            decay.x = log[of_decay + column];
            if n > 1u { decay.y = log[of_decay + column + 1u]; }
            if n > 2u { decay.z = log[of_decay + column + 2u]; }
            if n > 3u { decay.w = log[of_decay + column + 3u]; }
        }
        s = round_state(fused4(delta, k, scaled(s, decay)));
    }
    store_state(at, n, s);
}
