//! Runs a case of the gate.

use undraft_core::ops::FusedGdnGatingArgs;
use undraft_core::{Backend, Capture, DType, Op};

use super::{Guarded, Inputs, Memory, settle, supports};
use crate::cases::fused_gdn_gating::GatingCase;

/// `(g, beta)`, or `None` if the back end refuses as declared.
///
/// # Errors
/// A failed call, or a write out of place.
pub fn run(backend: &dyn Backend, case: &GatingCase, memory: Memory) -> Result<Option<[Vec<f32>; 2]>, String> {
    let (n, hv) = (case.num_tokens, case.num_v_heads);
    let inputs = Inputs::new(memory, case.io, n, &[(&case.b, hv), (&case.a, hv * case.decay_dim)]);
    let mut g = Guarded::poisoned(DType::F32, memory.poison, n * hv * case.decay_dim);
    let mut beta = Guarded::poisoned(DType::F32, memory.poison, n * hv);
    let args = FusedGdnGatingArgs {
        num_tokens: n,
        num_v_heads: hv,
        decay_dim: case.decay_dim,
        a: inputs.rows(1),
        b: inputs.rows(0),
        a_log: &case.a_log,
        dt_bias: &case.dt_bias,
        g: g.cells_mut(),
        beta: beta.cells_mut(),
    };
    let result = args.check().and_then(|args| backend.fused_gdn_gating(args));
    let ran = settle(supports(backend, Op::FusedGdnGating, case.io, (1, 1), Capture::Final), result)?;
    g.check("g", |_| ran)?;
    beta.check("beta", |_| ran)?;
    Ok(ran.then(|| [g.values(), beta.values()]))
}
