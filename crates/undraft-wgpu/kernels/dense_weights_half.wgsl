// Four neighbours of a 16-bit weight, widened.

@group(0) @binding(0) var<storage, read> weight: array<vec2<u32>>;

fn four(i: u32) -> vec4<f32> {
    let w = weight[i];
    if DTYPE == BF16 {
        let low = bitcast<vec2<f32>>(w << vec2<u32>(16u));
        let high = bitcast<vec2<f32>>(w & vec2<u32>(0xffff0000u));
        return vec4<f32>(low.x, high.x, low.y, high.y);
    }
    return vec4<f32>(from_f16(w.x & 0xffffu), from_f16(w.x >> 16u), from_f16(w.y & 0xffffu), from_f16(w.y >> 16u));
}
