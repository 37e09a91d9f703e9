// dense_linear: y = W x for every row of x; each weight is read once for up to ROWS rows.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | weight | [out_features, in_features], in_features a multiple of 4; of every expert, one behind the other | f32, bf16, f16 | in |
// | x | [num_rows / rows_per_x, in_features], first element and stride multiples of 4 | f32 | in |
// | experts | [num_rows] with EXPERTS: which weight row t takes; ROWS is 1 then | u32 | in |
// | y | [num_rows, out_features], rows y_stride elements apart | f32 | out |
//
// LANES invocations compute OUTPUTS outputs of ROWS rows: lane l has elements 4 (l + LANES j) .. 4 (l + LANES j) + 3, added in
// rising order; then the lanes are added in order. So the order depends on in_features alone. A weight of equal value gives
// equal bits in any type. Workgroups of the same outputs are neighbours.

const LANES = 16u;
const GROUPS = THREADS / LANES;
const SUMS = OUTPUTS * ROWS;

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> experts: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

var<workgroup> sums: array<f32, THREADS * SUMS>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let unit = workgroup.x + workgroup.y * num_workgroups.x;
    let tiles = (p.num_rows + ROWS - 1u) / ROWS;
    let first_row = unit % tiles * ROWS;
    let first_of_workgroup = unit / tiles * GROUPS * OUTPUTS;
    if first_of_workgroup >= p.out_features { return; }
    let lane = index % LANES;
    let first_out = first_of_workgroup + index / LANES * OUTPUTS;
    let fours = p.in_features / 4u;
    var matrix = 0u;
    if EXPERTS == 1u { matrix = experts[p.experts_first + first_row] * p.out_features * fours; }
    // Beyond the ends lie the last output and row, again.
    var of_weight: array<u32, OUTPUTS>;
    var of_x: array<u32, ROWS>;
    var acc: array<f32, SUMS>;
    for (var r = 0u; r < OUTPUTS; r++) { // unroll
        of_weight[r] = matrix + min(first_out + r, p.out_features - 1u) * fours;
    }
    for (var t = 0u; t < ROWS; t++) { // unroll
        of_x[t] = (p.x_first + min(first_row + t, p.num_rows - 1u) / p.rows_per_x * p.x_stride) / 4u;
    }
    for (var j = lane; j < fours; j += LANES) {
        var w: array<vec4<f32>, OUTPUTS>;
        for (var r = 0u; r < OUTPUTS; r++) { // unroll
            w[r] = four(of_weight[r] + j);
        }
        for (var t = 0u; t < ROWS; t++) { // unroll
            let u = x[of_x[t] + j];
            for (var r = 0u; r < OUTPUTS; r++) { // unroll
                acc[r * ROWS + t] = mad(w[r].w, u.w, mad(w[r].z, u.z, mad(w[r].y, u.y, mad(w[r].x, u.x, acc[r * ROWS + t]))));
            }
        }
    }
    for (var r = 0u; r < OUTPUTS; r++) { // unroll
        for (var t = 0u; t < ROWS; t++) { // unroll
            sums[(r * ROWS + t) * THREADS + index] = acc[r * ROWS + t];
        }
    }
    workgroupBarrier();
    for (var i = index; i < GROUPS * SUMS; i += THREADS) {
        let group = i % GROUPS;
        let sum = i / GROUPS;
        var total = 0.0;
        for (var l = 0u; l < LANES; l++) { total = add(total, sums[sum * THREADS + group * LANES + l]); }
        let out = first_of_workgroup + group * OUTPUTS + sum / ROWS;
        let row = first_row + sum % ROWS;
        if row < p.num_rows && out < p.out_features { y[p.y_first + row * p.y_stride + out] = total; }
    }
}
