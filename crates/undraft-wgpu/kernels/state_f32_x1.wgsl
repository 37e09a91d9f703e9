// f32 states of any row length.

@group(0) @binding(0) var<storage, read_write> state: array<f32>;
@group(0) @binding(1) var<storage, read_write> captured: array<f32>;

// `n` elements from element i on, 1 or more; the rest of the four is 0.
fn load_state(i: u32, n: u32) -> vec4<f32> {
    var x = vec4<f32>(state[i], 0.0, 0.0, 0.0);
    if n > 1u { x.y = state[i + 1u]; }
    if n > 2u { x.z = state[i + 2u]; }
    if n > 3u { x.w = state[i + 3u]; }
    return x;
}
fn store_state(i: u32, n: u32, x: vec4<f32>) {
    state[i] = x.x;
    if n > 1u { state[i + 1u] = x.y; }
    if n > 2u { state[i + 2u] = x.z; }
    if n > 3u { state[i + 3u] = x.w; }
}
fn load_captured(i: u32, n: u32) -> vec4<f32> {
    var x = vec4<f32>(captured[i], 0.0, 0.0, 0.0);
    if n > 1u { x.y = captured[i + 1u]; }
    if n > 2u { x.z = captured[i + 2u]; }
    if n > 3u { x.w = captured[i + 3u]; }
    return x;
}
fn store_captured(i: u32, n: u32, x: vec4<f32>) {
    captured[i] = x.x;
    if n > 1u { captured[i + 1u] = x.y; }
    if n > 2u { captured[i + 2u] = x.z; }
    if n > 3u { captured[i + 3u] = x.w; }
}
fn round_state(x: vec4<f32>) -> vec4<f32> { return x; }
