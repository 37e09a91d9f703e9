//! The operations, one file an operation or a family of them: each reads its parameters, checks shapes, and calls the CPU
//! back end on slices or launches the CUDA kernels on addresses.

mod causal_conv1d;
mod chunk_gated_delta_rule;
mod commit_states;
mod delta_rule;
mod fused_gdn_gating;
mod fused_recurrent_gated_delta_rule;
mod rms_norm_gated;
mod verify;

use crate::args::Op;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Every operation, in the order of their numbers.
pub static OPS: [Op; 9] = [
    fused_recurrent_gated_delta_rule::OP,
    verify::OP,
    commit_states::OP,
    commit_states::CONV_OP,
    causal_conv1d::UPDATE_OP,
    causal_conv1d::FN_OP,
    chunk_gated_delta_rule::OP,
    fused_gdn_gating::OP,
    rms_norm_gated::OP,
];

/// The address of an optional tensor, 0 for none.
fn address(tensor: Option<&Tensor>) -> u64 {
    tensor.map_or(0, |tensor| tensor.data as u64)
}

/// A size as kernels take it.
fn i32_of(arg: &'static str, n: usize) -> Result<i32> {
    i32::try_from(n).map_err(|_| Error::Number { arg, got: n as i64, expected: "a size below 2^31" })
}

/// Checks that no count of a sequence with a slot is negative.
fn check_counts(arg: &'static str, counts: &[u32], state_indices: &[i32]) -> Result<()> {
    for (&count, &slot) in counts.iter().zip(state_indices) {
        if slot != undraft::PAD_SLOT && count > i32::MAX as u32 {
            return Err(Error::Number { arg, got: i64::from(count as i32), expected: "0 or more" });
        }
    }
    Ok(())
}
