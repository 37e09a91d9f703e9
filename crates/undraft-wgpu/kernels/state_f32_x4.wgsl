// f32 states whose rows are whole vectors of four.

@group(0) @binding(0) var<storage, read_write> state: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> captured: array<vec4<f32>>;

// `n` elements from element i on, a multiple of 4 away from a row's first; the rest of the four is 0.
fn load_state(i: u32, n: u32) -> vec4<f32> { return state[i >> 2u]; }
fn store_state(i: u32, n: u32, x: vec4<f32>) { state[i >> 2u] = x; }
fn load_captured(i: u32, n: u32) -> vec4<f32> { return captured[i >> 2u]; }
fn store_captured(i: u32, n: u32, x: vec4<f32>) { captured[i >> 2u] = x; }
fn round_state(x: vec4<f32>) -> vec4<f32> { return x; }
