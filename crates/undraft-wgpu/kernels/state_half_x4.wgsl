// 16-bit states (of element type `state_dtype`) whose rows are whole vectors of four.

// Known when the kernel is compiled, unless STATE says that it serves all.
fn state_dtype() -> u32 {
    if STATE == ANY_HALF { return p.state_dtype; }
    return STATE;
}

@group(0) @binding(0) var<storage, read_write> state: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> captured: array<vec2<u32>>;

fn widen_four(x: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(
        from_half(state_dtype(), x.x & 0xffffu), from_half(state_dtype(), x.x >> 16u), from_half(state_dtype(), x.y & 0xffffu), from_half(state_dtype(), x.y >> 16u)
    );
}
fn narrow_four(x: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(
        to_half(state_dtype(), x.x) | (to_half(state_dtype(), x.y) << 16u), to_half(state_dtype(), x.z) | (to_half(state_dtype(), x.w) << 16u)
    );
}
// `n` elements from element i on, a multiple of 4 away from a row's first; the rest of the four is 0.
fn load_state(i: u32, n: u32) -> vec4<f32> { return widen_four(state[i >> 2u]); }
fn store_state(i: u32, n: u32, x: vec4<f32>) { state[i >> 2u] = narrow_four(x); }
fn load_captured(i: u32, n: u32) -> vec4<f32> { return widen_four(captured[i >> 2u]); }
fn store_captured(i: u32, n: u32, x: vec4<f32>) { captured[i >> 2u] = narrow_four(x); }
fn round_state(x: vec4<f32>) -> vec4<f32> { return widen_four(narrow_four(x)); }
