// causal_conv1d_update: kept inputs of the window before into the state, then the window's outputs; its inputs go into the log,
// or move the state on.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | x | [num_tokens, C], rows x_stride elements apart | f32, bf16, f16 | in |
// | weight, bias | [W, C] (last tap = the present token), [C] | f32 | in |
// | state | [num_slots, W - 1, C], oldest first, slots state_stride elements apart | f32 | in, out |
// | log | [num_log_slots, log_max, C] | f32 | in, out |
// | ints | cu_seqlens [num_seqs + 1], state_indices [num_seqs]; or none: log_slots, num_pending [num_seqs], pending_path [num_seqs, log_max], parents [num_tokens] | i32, u32 | in |
// | out | [num_tokens, C], rows out_stride apart, an even number where out is of 16 bits, and so is out_first | f32, bf16, f16 | out |
//
// One invocation two channels of a sequence: it reads the entries that it replays before it writes the window's.

struct Sequence {
    start: u32,
    tokens: u32,
    pending: u32,
    seq: u32,
    // First elements of a channel.
    state: u32,
    log: u32,
}

// The inputs before the window.
fn inputs_before(w: Sequence, c: u32) -> array<f32, MAX_WIDTH> {
    var inputs: array<f32, MAX_WIDTH>;
    for (var j = 0u; j < MAX_WIDTH; j++) { // unroll
        inputs[j] = 0.0;
        if j > p.unused { inputs[j] = state[w.state + (j - p.unused - 1u) * p.channels + c]; }
    }
    return inputs;
}
fn keep_inputs(w: Sequence, c: u32, inputs: array<f32, MAX_WIDTH>) {
    for (var j = 0u; j < MAX_WIDTH; j++) { // unroll
        if j > p.unused { state[w.state + (j - p.unused - 1u) * p.channels + c] = inputs[j]; }
    }
}
// The inputs of a token of a tree: those before it are its ancestors', before them those of the state.
fn inputs_of_path(w: Sequence, c: u32, t: u32) -> array<f32, MAX_WIDTH> {
    var inputs: array<f32, MAX_WIDTH>;
    inputs[MAX_WIDTH - 1u] = x_element(w.start + t, c);
    var ancestor = bitcast<i32>(ints[p.parents + w.start + t]);
    var row = p.width - 1u;
    for (var back = 1u; back < MAX_WIDTH; back++) {
        let j = MAX_WIDTH - 1u - back;
        inputs[j] = 0.0;
        if j >= p.unused {
            if ancestor >= 0 {
                inputs[j] = x_element(w.start + u32(ancestor), c);
                ancestor = bitcast<i32>(ints[p.parents + w.start + u32(ancestor)]);
            } else {
                row -= 1u;
                inputs[j] = state[w.state + row * p.channels + c];
            }
        }
    }
    return inputs;
}
// Replays what is pending; gives the inputs before the window.
fn settle(w: Sequence, c: u32) -> array<f32, MAX_WIDTH> {
    var inputs = inputs_before(w, c);
    for (var i = 0u; i < w.pending; i++) {
        var entry = i;
        if p.pending_path != NONE { entry = ints[p.pending_path + w.seq * p.log_max + i]; }
        shift_in(&inputs, log[w.log + entry * p.channels + c]);
    }
    if w.pending > 0u { keep_inputs(w, c, inputs); }
    return inputs;
}
// Takes the input of token t; gives its output.
fn next(w: Sequence, c: u32, t: u32, inputs: ptr<function, array<f32, MAX_WIDTH>>) -> f32 {
    let newest = x_element(w.start + t, c);
    if p.capture == CAPTURE_DELTA_LOG { log[w.log + t * p.channels + c] = newest; }
    shift_in(inputs, newest);
    if p.parents != NONE { return apply_taps(inputs_of_path(w, c, t), c); }
    return apply_taps(*inputs, c);
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let block = workgroup.x + workgroup.y * num_workgroups.x;
    var w: Sequence;
    w.seq = block / p.channel_blocks;
    let c = (block % p.channel_blocks * THREADS + index) * 2u;
    if w.seq >= p.num_seqs || c >= p.channels { return; }
    let both = c + 1u < p.channels;
    w.start = ints[p.cu_seqlens + w.seq];
    w.tokens = ints[p.cu_seqlens + w.seq + 1u] - w.start;
    let slot = bitcast<i32>(ints[p.state_indices + w.seq]);
    if slot < 0 {
        for (var t = 0u; t < w.tokens; t++) { put(w.start + t, c, both, vec2<f32>()); }
        return;
    }
    if p.num_pending != NONE { w.pending = ints[p.num_pending + w.seq]; }
    w.state = p.state_first + u32(slot) * p.state_stride;
    var log_slot = u32(slot);
    if p.log_slots != NONE { log_slot = ints[p.log_slots + w.seq]; }
    w.log = p.log_first + log_slot * p.log_max * p.channels;
    var first = settle(w, c);
    var second: array<f32, MAX_WIDTH>;
    if both { second = settle(w, c + 1u); }
    for (var t = 0u; t < w.tokens; t++) {
        var y = vec2<f32>(next(w, c, t, &first), 0.0);
        if both { y.y = next(w, c + 1u, t, &second); }
        put(w.start + t, c, both, y);
    }
    if p.capture == CAPTURE_FINAL && w.tokens > 0u {
        keep_inputs(w, c, first);
        if both { keep_inputs(w, c + 1u, second); }
    }
}
