// rms_norm_gated: out = x / sqrt(mean(x^2) + eps) * weight * act(z), per head.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | x, z | [num_rows, num_heads, D], rows x_stride, z_stride elements apart | f32, bf16, f16 | in |
// | weight | [D] | f32 | in |
// | out | [num_rows, num_heads, D], rows out_stride apart | f32, bf16, f16 | out |
//
// Eight lanes a head; lane l sums the squares of elements 4 (l + 8 j) .. + 3 in rising order, then lanes l and l ^ 4 are added,
// l and l ^ 2, l and l ^ 1.

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read> z: array<u32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<atomic<u32>>;

fn x_element(i: u32) -> f32 { return element(p.x_dtype, x[word_of(p.x_dtype, i)], i); }
fn z_element(i: u32) -> f32 { return element(p.z_dtype, z[word_of(p.z_dtype, i)], i); }
fn put_half(i: u32, h: u32) {
    let shift = (i & 1u) * 16u;
    atomicAnd(&out[i >> 1u], ~(0xffffu << shift));
    atomicOr(&out[i >> 1u], h << shift);
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let block = workgroup.x + workgroup.y * num_workgroups.x;
    let lane = index & 7u;
    // Groups without a head take part in the sums of the last one.
    let all = p.num_rows * p.num_heads;
    let unit = block * (THREADS / 8u) + (index >> 3u);
    let head = min(unit, all - 1u);
    let row = head / p.num_heads;
    let column = head % p.num_heads * p.head_dim;
    let of_x = p.x_first + row * p.x_stride + column;
    var sum = 0.0;
    for (var i = 4u * lane; i < p.head_dim; i += 32u) {
        for (var e = i; e < min(i + 4u, p.head_dim); e++) {
            let value = x_element(of_x + e);
            sum = mad(value, value, sum);
        }
    }
    sum = sum + lane_xor(index, sum, 4u);
    sum = sum + lane_xor(index, sum, 2u);
    sum = sum + lane_xor(index, sum, 1u);
    if unit >= all { return; }
    let factor = inverse_root(add(divide(sum, f32(p.head_dim)), p.eps));
    let of_z = p.z_first + row * p.z_stride + column;
    let of_out = p.out_first + row * p.out_stride + column;
    for (var i = 4u * lane; i < p.head_dim; i += 32u) {
        for (var e = i; e < min(i + 4u, p.head_dim); e++) {
            let value = z_element(of_z + e);
            var gate = sigmoid(value);
            if p.gate_is_sigmoid == 0u { gate = mul(value, gate); }
            let y = mul(mul(mul(x_element(of_x + e), factor), weight[p.weight_first + e]), gate);
            if p.out_dtype == F32 {
                atomicStore(&out[of_out + e], bitcast<u32>(y));
            } else {
                put_half(of_out + e, to_half(p.out_dtype, y));
            }
        }
    }
}
