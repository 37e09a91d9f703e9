// fused_gdn_gating: g = -exp(A_log) * softplus(a + dt_bias), beta = sigmoid(b), in pairs of f32 and rounded once.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | a | [num_tokens, HV, decay_dim], rows a_stride elements apart | f32, bf16, f16 | in |
// | b | [num_tokens, HV], rows b_stride apart | f32, bf16, f16 | in |
// | a_log | [HV] | f32 | in |
// | dt_bias | [HV, decay_dim] | f32 | in |
// | g | [num_tokens, HV, decay_dim] | f32 | out |
// | beta | [num_tokens, HV] | f32 | out |
//
// One invocation a decay; the first of a head's computes beta.

@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read> b: array<u32>;
@group(0) @binding(2) var<storage, read> a_log: array<f32>;
@group(0) @binding(3) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> g: array<f32>;
@group(0) @binding(5) var<storage, read_write> beta: array<f32>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let i = (workgroup.x + workgroup.y * num_workgroups.x) * THREADS + index;
    let decays = p.num_v_heads * p.decay_dim;
    if i >= p.num_tokens * decays { return; }
    let t = i / decays;
    let at = i % decays;
    let head = at / p.decay_dim;
    let of_a = p.a_first + t * p.a_stride + at;
    let x = element(p.a_dtype, a[word_of(p.a_dtype, of_a)], of_a);
    g[p.g_first + i] = gate_log_decay(x, a_log[p.a_log_first + head], dt_bias[p.dt_bias_first + at]).hi;
    if at % p.decay_dim == 0u {
        let of_b = p.b_first + t * p.b_stride + head;
        beta[p.beta_first + t * p.num_v_heads + head] = gate_sigmoid(element(p.b_dtype, b[word_of(p.b_dtype, of_b)], of_b));
    }
}
