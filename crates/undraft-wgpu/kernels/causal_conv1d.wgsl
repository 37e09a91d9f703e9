// The taps of the causal depthwise convolution, the same for windows, trees and prompts; and its tensors.

@group(0) @binding(0) var<storage, read_write> state: array<f32>;
@group(0) @binding(1) var<storage, read_write> log: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;
@group(0) @binding(3) var<storage, read> x: array<u32>;
@group(0) @binding(4) var<storage, read> weight: array<f32>;
@group(0) @binding(5) var<storage, read> bias: array<f32>;
@group(0) @binding(6) var<storage, read> ints: array<u32>;

// Taps and inputs are aligned at the end: the last of MAX_WIDTH is the present token, the first `p.unused` are unused.

fn x_element(token: u32, c: u32) -> f32 {
    let i = p.x_first + token * p.x_stride + c;
    return element(p.x_dtype, x[word_of(p.x_dtype, i)], i);
}
// Rising taps, one fma each.
fn apply_taps(inputs: array<f32, MAX_WIDTH>, c: u32) -> f32 {
    var acc = 0.0;
    if p.has_bias == 1u { acc = bias[p.bias_first + c]; }
    for (var j = 0u; j < MAX_WIDTH; j++) { // unroll
        if j >= p.unused { acc = mad(weight[p.weight_first + (j - p.unused) * p.channels + c], inputs[j], acc); }
    }
    if p.silu == 1u { return mul(acc, sigmoid(acc)); }
    return acc;
}
// Every input one place older, then the newest.
fn shift_in(inputs: ptr<function, array<f32, MAX_WIDTH>>, newest: f32) {
    for (var j = 0u; j < MAX_WIDTH - 1u; j++) {
        (*inputs)[j] = (*inputs)[j + 1u];
    }
    (*inputs)[MAX_WIDTH - 1u] = newest;
}
// Outputs of channel c and the one after it, which is there if `both`. An invocation has both elements of a word.
fn put(token: u32, c: u32, both: bool, y: vec2<f32>) {
    let i = p.out_first + token * p.out_stride + c;
    if p.out_dtype == F32 {
        out[i] = bitcast<u32>(y.x);
        if both { out[i + 1u] = bitcast<u32>(y.y); }
        return;
    }
    let high = select(out[i >> 1u] >> 16u, to_half(p.out_dtype, y.y), both);
    out[i >> 1u] = to_half(p.out_dtype, y.x) | (high << 16u);
}
