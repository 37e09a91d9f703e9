//! Kernels by name, and which of them a call takes.

use undraft_core::DType;

use crate::dense::select::{self as dense, DenseKernel};
use crate::sources::{self, Library};

const STATES: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];
/// Sizes that the recurrence has kernels for; others are padded with zeros to the next.
const PADDED: [usize; 4] = [32, 64, 128, 256];

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    CausalConv1dFn,
    CausalConv1dUpdate,
    FusedGdnGating,
    RmsNormGated,
    CommitStates {
        state: DType,
        /// Neighbours of a thread: 1 or 4.
        lanes: usize,
    },
    Recurrent {
        state: DType,
        padded_k: usize,
    },
    /// The compatible family.
    Decode {
        /// `D_k / 32`: 1, 2 or 4.
        nsg: u32,
        capture: bool,
    },
    WriteWords,
    ClearWords,
    /// Of a model's dense parts.
    Dense(DenseKernel),
}

/// Kernels but those of the dense parts, which come last.
const NUM_OTHERS: usize = 4 + 6 + 12 + 6 + 2;
/// Kernels there are.
pub(crate) const NUM_KERNELS: usize = NUM_OTHERS + dense::NUM_KERNELS;

impl Kernel {
    pub(crate) fn library(self) -> Library {
        match self {
            Kernel::CausalConv1dFn => sources::CAUSAL_CONV1D_FN,
            Kernel::CausalConv1dUpdate => sources::CAUSAL_CONV1D_UPDATE,
            Kernel::FusedGdnGating => sources::FUSED_GDN_GATING,
            Kernel::RmsNormGated => sources::RMS_NORM_GATED,
            Kernel::CommitStates { .. } => sources::COMMIT_STATES,
            Kernel::Recurrent { .. } => sources::FUSED_RECURRENT_GATED_DELTA_RULE,
            Kernel::Decode { .. } => sources::GATED_DELTA_NET_DECODE,
            Kernel::WriteWords | Kernel::ClearWords => sources::MEMORY,
            Kernel::Dense(kernel) => kernel.library(),
        }
    }
    pub(crate) fn name(self) -> String {
        match self {
            Kernel::CommitStates { state, lanes } => format!("commit_states_{}_x{lanes}", state.name()),
            Kernel::Recurrent { state, padded_k } => format!("recurrent_{}_k{padded_k}", state.name()),
            Kernel::Decode { nsg, capture: false } => format!("gated_delta_net_decode_f32_{nsg}"),
            Kernel::Decode { nsg, capture: true } => format!("gated_delta_net_decode_capture_f32_{nsg}"),
            Kernel::WriteWords => "write_words".into(),
            Kernel::ClearWords => "clear_words".into(),
            Kernel::Dense(kernel) => kernel.name(),
            _ => self.library().name.into(),
        }
    }
    /// Its place among all kernels.
    pub(crate) fn index(self) -> usize {
        let of = |dtype| STATES.iter().position(|&s| s == dtype).unwrap_or(0);
        match self {
            Kernel::CausalConv1dFn => 0,
            Kernel::CausalConv1dUpdate => 1,
            Kernel::FusedGdnGating => 2,
            Kernel::RmsNormGated => 3,
            Kernel::CommitStates { state, lanes } => 4 + 2 * of(state) + usize::from(lanes == 4),
            Kernel::Recurrent { state, padded_k } => {
                10 + 4 * of(state) + PADDED.iter().position(|&k| k == padded_k).unwrap_or(0)
            }
            Kernel::Decode { nsg, capture } => 22 + 2 * nsg.trailing_zeros() as usize + usize::from(capture),
            Kernel::WriteWords => 28,
            Kernel::ClearWords => 29,
            Kernel::Dense(kernel) => NUM_OTHERS + kernel.index(),
        }
    }
    /// All kernels, in the order of [`Kernel::index`].
    pub(crate) fn all() -> Vec<Kernel> {
        let mut all =
            vec![Kernel::CausalConv1dFn, Kernel::CausalConv1dUpdate, Kernel::FusedGdnGating, Kernel::RmsNormGated];
        for state in STATES {
            all.extend([1, 4].map(|lanes| Kernel::CommitStates { state, lanes }));
        }
        for state in STATES {
            all.extend(PADDED.map(|padded_k| Kernel::Recurrent { state, padded_k }));
        }
        for nsg in [1, 2, 4] {
            all.extend([false, true].map(|capture| Kernel::Decode { nsg, capture }));
        }
        all.extend([Kernel::WriteWords, Kernel::ClearWords]);
        all.extend(DenseKernel::all().map(Kernel::Dense));
        all
    }
}

/// What a kernel of the recurrence shares out, as in `recurrent.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecurrentPlan {
    pub(crate) padded_k: usize,
    /// Rows of a threadgroup.
    pub(crate) rows: usize,
    /// Tokens in threadgroup memory at a time.
    pub(crate) chunk: usize,
    pub(crate) threadgroup_bytes: usize,
}

/// Most tokens in threadgroup memory at a time: with a decay per channel they still fit the 32 KiB of every Apple GPU.
const MAX_CHUNK: usize = 8;

/// For heads of `head_k_dim`, of which no window or pending path has more than `longest` entries.
pub(crate) fn recurrent(head_k_dim: usize, per_channel: bool, longest: usize) -> RecurrentPlan {
    let padded_k = PADDED.into_iter().find(|&k| k >= head_k_dim).unwrap_or(256);
    let rows = 16
        * match padded_k {
            32 | 64 => 4,
            128 => 2,
            _ => 1,
        };
    let chunk = longest.clamp(1, MAX_CHUNK);
    let decay = if per_channel { padded_k } else { 1 };
    let floats = (2 * chunk + 1) * padded_k + (chunk + 1) * decay + chunk * rows + 2 * chunk;
    RecurrentPlan { padded_k, rows, chunk, threadgroup_bytes: (4 * floats).next_multiple_of(16) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_its_place() {
        let all = Kernel::all();
        assert_eq!(all.len(), NUM_KERNELS);
        for (i, kernel) in all.into_iter().enumerate() {
            assert_eq!(kernel.index(), i, "{kernel:?}");
        }
    }

    #[test]
    fn threadgroup_memory_fits_every_gpu() {
        for k in 1..=256 {
            for per_channel in [false, true] {
                let plan = recurrent(k, per_channel, usize::MAX);
                assert!(plan.threadgroup_bytes <= 32768 && plan.padded_k >= k, "{k} {per_channel}: {plan:?}");
            }
        }
    }
}
