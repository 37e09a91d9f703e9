// 16-bit states (of element type `state_dtype`) of any row length. A word may belong to two rows, hence to two workgroups, so that each
// half is replaced by itself.

// Known when the kernel is compiled, unless STATE says that it serves all.
fn state_dtype() -> u32 {
    if STATE == ANY_HALF { return p.state_dtype; }
    return STATE;
}

@group(0) @binding(0) var<storage, read_write> state: array<atomic<u32>>;
@group(0) @binding(1) var<storage, read_write> captured: array<atomic<u32>>;

fn load_element(i: u32) -> f32 { return element(state_dtype(), atomicLoad(&state[i >> 1u]), i); }
fn store_element(i: u32, x: f32) {
    let shift = (i & 1u) * 16u;
    atomicAnd(&state[i >> 1u], ~(0xffffu << shift));
    atomicOr(&state[i >> 1u], to_half(state_dtype(), x) << shift);
}
fn load_captured_element(i: u32) -> f32 { return element(state_dtype(), atomicLoad(&captured[i >> 1u]), i); }
fn store_captured_element(i: u32, x: f32) {
    let shift = (i & 1u) * 16u;
    atomicAnd(&captured[i >> 1u], ~(0xffffu << shift));
    atomicOr(&captured[i >> 1u], to_half(state_dtype(), x) << shift);
}

// `n` elements from element i on, 1 or more; the rest of the four is 0.
fn load_state(i: u32, n: u32) -> vec4<f32> {
    var x = vec4<f32>(load_element(i), 0.0, 0.0, 0.0);
    if n > 1u { x.y = load_element(i + 1u); }
    if n > 2u { x.z = load_element(i + 2u); }
    if n > 3u { x.w = load_element(i + 3u); }
    return x;
}
fn store_state(i: u32, n: u32, x: vec4<f32>) {
    store_element(i, x.x);
    if n > 1u { store_element(i + 1u, x.y); }
    if n > 2u { store_element(i + 2u, x.z); }
    if n > 3u { store_element(i + 3u, x.w); }
}
fn load_captured(i: u32, n: u32) -> vec4<f32> {
    var x = vec4<f32>(load_captured_element(i), 0.0, 0.0, 0.0);
    if n > 1u { x.y = load_captured_element(i + 1u); }
    if n > 2u { x.z = load_captured_element(i + 2u); }
    if n > 3u { x.w = load_captured_element(i + 3u); }
    return x;
}
fn store_captured(i: u32, n: u32, x: vec4<f32>) {
    store_captured_element(i, x.x);
    if n > 1u { store_captured_element(i + 1u, x.y); }
    if n > 2u { store_captured_element(i + 2u, x.z); }
    if n > 3u { store_captured_element(i + 3u, x.w); }
}
fn round_state(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(round_to(state_dtype(), x.x), round_to(state_dtype(), x.y), round_to(state_dtype(), x.z), round_to(state_dtype(), x.w));
}
