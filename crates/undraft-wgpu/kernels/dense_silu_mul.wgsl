// dense_silu_mul: out = silu(gate) * up.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | gate_up | [num_rows, 2, len]: the gates of a row, then what they gate | f32 | in |
// | out | [num_rows, len] | f32 | out |
//
// One invocation an element.

@group(0) @binding(0) var<storage, read> gate_up: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let i = (workgroup.x + workgroup.y * num_workgroups.x) * THREADS + index;
    if i >= p.num_rows * p.len { return; }
    let at = i / p.len * 2u * p.len + i % p.len;
    let gate = gate_up[at];
    out[i] = mul(mul(gate, sigmoid(gate)), gate_up[at + p.len]);
}
