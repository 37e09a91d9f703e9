// Four neighbours of an f32 weight.

@group(0) @binding(0) var<storage, read> weight: array<vec4<f32>>;

fn four(i: u32) -> vec4<f32> { return weight[i]; }
