//! Runs cases in hostile memory: poisoned, guarded, strided, and looked over bit by bit afterwards.

pub mod causal_conv1d_fn;
pub mod causal_conv1d_update;
pub mod chunk_gated_delta_rule;
pub mod commit_states;
pub mod fused_gdn_gating;
pub mod fused_recurrent_gated_delta_rule;
mod memory;
pub mod rms_norm_gated;

pub use memory::{Guarded, Inputs, Memory, Outputs, Poison};

use undraft_core::{Backend, Capture, DType, Error, Op, Result, Support};

/// Asks the back end whether it does this with f32 states, one decay factor a head and chains.
pub fn supports(backend: &dyn Backend, op: Op, io: DType, (k, v): (usize, usize), capture: Capture) -> bool {
    backend.caps().supports(&Support { io, capture, ..Support::new(op, k, v) }).is_ok()
}

/// What a call gave against what the back end had declared: `Ok(true)` if it ran, `Ok(false)` if it refused as declared.
pub(crate) fn settle(supported: bool, result: Result<()>) -> std::result::Result<bool, String> {
    match (supported, result) {
        (true, Ok(())) => Ok(true),
        (false, Err(Error::Unsupported { .. })) => Ok(false),
        (true, Err(e)) => Err(format!("failed although `supports` said yes: {e}")),
        (false, Ok(())) => Err("gave a result although `supports` said no".to_owned()),
        (false, Err(e)) => Err(format!("`supports` said no, expected `Unsupported`, got: {e}")),
    }
}
