// causal_conv1d_fn: whole prompts. Shapes as in causal_conv1d_update, without log, pending entries and trees.
//
// One invocation two channels of a block of TOKENS tokens of a sequence. That of block 0 reads the state and, as the only one,
// writes the new one: the last W - 1 inputs, which lie in x or in the old state.

const TOKENS = 64u;

// Input of time t of a sequence that begins at `start`; times below 0 lie in the state, which begins at `before`.
fn input_at(start: u32, before: u32, c: u32, t: i32) -> f32 {
    if t >= 0 { return x_element(start + u32(t), c); }
    return state[before + u32(t + i32(p.width) - 1) * p.channels + c];
}
// The inputs of times up to t, t among them.
fn inputs_at(start: u32, before: u32, c: u32, t: i32) -> array<f32, MAX_WIDTH> {
    var inputs: array<f32, MAX_WIDTH>;
    for (var j = 0u; j < MAX_WIDTH; j++) { // unroll
        inputs[j] = 0.0;
        if j >= p.unused { inputs[j] = input_at(start, before, c, t + i32(j) - i32(MAX_WIDTH - 1u)); }
    }
    return inputs;
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let block = workgroup.x + workgroup.y * num_workgroups.x;
    let seq = block / p.token_blocks / p.channel_blocks;
    let token_block = block / p.channel_blocks % p.token_blocks;
    let c = (block % p.channel_blocks * THREADS + index) * 2u;
    if seq >= p.num_seqs || c >= p.channels { return; }
    let both = c + 1u < p.channels;
    let start = ints[p.cu_seqlens + seq];
    let tokens = ints[p.cu_seqlens + seq + 1u] - start;
    let slot = bitcast<i32>(ints[p.state_indices + seq]);
    let before = p.state_first + u32(max(slot, 0)) * p.state_stride;
    for (var begin = token_block * TOKENS; begin < tokens; begin += p.token_blocks * TOKENS) {
        let end = min(begin + TOKENS, tokens);
        if slot < 0 {
            for (var t = begin; t < end; t++) { put(start + t, c, both, vec2<f32>()); }
            continue;
        }
        var first = inputs_at(start, before, c, i32(begin) - 1);
        var second: array<f32, MAX_WIDTH>;
        if both { second = inputs_at(start, before, c + 1u, i32(begin) - 1); }
        if begin == 0u {
            // Row r of the new state is the input of time tokens - (W - 1) + r.
            for (var channel = c; channel < c + select(1u, 2u, both); channel++) {
                let last = inputs_at(start, before, channel, i32(tokens) - 1);
                for (var j = 0u; j < MAX_WIDTH; j++) { // unroll
                    if j > p.unused { state[before + (j - p.unused - 1u) * p.channels + channel] = last[j]; }
                }
            }
        }
        for (var t = begin; t < end; t++) {
            shift_in(&first, x_element(start + t, c));
            var y = vec2<f32>(apply_taps(first, c), 0.0);
            if both {
                shift_in(&second, x_element(start + t, c + 1u));
                y.y = apply_taps(second, c + 1u);
            }
            put(start + t, c, both, y);
        }
    }
}
