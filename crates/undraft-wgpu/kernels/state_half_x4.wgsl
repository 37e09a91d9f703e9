// 16-bit states (of element type STATE) whose rows are whole vectors of four.

@group(0) @binding(0) var<storage, read_write> state: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> captured: array<vec2<u32>>;

fn widen_four(x: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(
        from_half(STATE, x.x & 0xffffu), from_half(STATE, x.x >> 16u), from_half(STATE, x.y & 0xffffu), from_half(STATE, x.y >> 16u)
    );
}
fn narrow_four(x: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(
        to_half(STATE, x.x) | (to_half(STATE, x.y) << 16u), to_half(STATE, x.z) | (to_half(STATE, x.w) << 16u)
    );
}
// `n` elements from element i on, a multiple of 4 away from a row's first; the rest of the four is 0.
fn load_state(i: u32, n: u32) -> vec4<f32> { return widen_four(state[i >> 2u]); }
fn store_state(i: u32, n: u32, x: vec4<f32>) { state[i >> 2u] = narrow_four(x); }
fn load_captured(i: u32, n: u32) -> vec4<f32> { return widen_four(captured[i >> 2u]); }
fn store_captured(i: u32, n: u32, x: vec4<f32>) { captured[i >> 2u] = narrow_four(x); }
fn round_state(x: vec4<f32>) -> vec4<f32> { return widen_four(narrow_four(x)); }
