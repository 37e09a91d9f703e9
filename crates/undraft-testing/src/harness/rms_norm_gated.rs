//! Runs a case of the gated norm.

use undraft_core::ops::RmsNormGatedArgs;
use undraft_core::{Backend, Capture, Op};

use super::{Inputs, Memory, Outputs, settle, supports};
use crate::cases::rms_norm_gated::NormCase;

/// The outputs, or `None` if the back end refuses as declared.
///
/// # Errors
/// A failed call, or a write out of place.
pub fn run(backend: &dyn Backend, case: &NormCase, memory: Memory) -> Result<Option<Vec<f32>>, String> {
    let row = case.num_heads * case.head_dim;
    let inputs = Inputs::new(memory, case.io, case.num_rows, &[(&case.z, row), (&case.x, row)]);
    let mut out = Outputs::new(memory, case.io, case.num_rows, row);
    let args = RmsNormGatedArgs {
        num_rows: case.num_rows,
        num_heads: case.num_heads,
        head_dim: case.head_dim,
        x: inputs.rows(1),
        z: inputs.rows(0),
        weight: &case.weight,
        eps: case.eps,
        activation: case.activation,
        out: out.rows_mut(),
    };
    let result = args.check().and_then(|args| backend.rms_norm_gated(args));
    let dims = (case.head_dim, case.head_dim);
    if !settle(supports(backend, Op::RmsNormGated, case.io, dims, Capture::Final), result)? {
        return out.untouched("out").map(|()| None);
    }
    out.finish("out").map(Some)
}
