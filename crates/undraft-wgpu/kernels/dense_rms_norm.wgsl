// dense_rms_norm: x += delta, then out = x / sqrt(mean(x^2) + eps) * factor, row by row.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | x | [num_rows, len], rows x_stride elements apart | f32 | in, with delta out |
// | delta | [num_rows, len], rows delta_stride apart; with has_delta | f32 | in |
// | factor | [len] | f32 | in |
// | out | [num_rows, len], rows out_stride apart | f32 | out |
//
// One workgroup a row; invocation t sums the squares of elements t, t + THREADS, .., then the workgroup as block_sum does.

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> delta: array<f32>;
@group(0) @binding(2) var<storage, read> factor: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let row = workgroup.x + workgroup.y * num_workgroups.x;
    if row >= p.num_rows { return; }
    let of_x = p.x_first + row * p.x_stride;
    let of_delta = p.delta_first + row * p.delta_stride;
    let of_out = p.out_first + row * p.out_stride;
    var sum = 0.0;
    for (var j = index; j < p.len; j += THREADS) {
        var value = x[of_x + j];
        if p.has_delta == 1u {
            value = add(value, delta[of_delta + j]);
            x[of_x + j] = value;
        }
        sum = mad(value, value, sum);
    }
    let mean = divide(block_sum(sum, index), f32(p.len));
    let scale = inverse_root(add(mean, p.eps));
    for (var j = index; j < p.len; j += THREADS) { out[of_out + j] = mul(mul(x[of_x + j], scale), factor[j]); }
}
