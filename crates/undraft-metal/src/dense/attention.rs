//! `dense_attention`.

use super::select::DenseKernel;
use crate::error::Result;
use crate::raw::{Call, EncoderHandle, Launcher, Slice, check_sizes};
use crate::select::Kernel;

const OP: &str = "dense_attention";
/// Positions of a segment, threads and simdgroups of its threadgroup, as in the kernel.
const SEGMENT: usize = 128;
const SIMDS: usize = SEGMENT / 32;

/// Segments of a cache of `capacity` positions.
pub fn attention_segments(capacity: usize) -> usize {
    capacity.div_ceil(SEGMENT).max(1)
}

/// Parameters of [`Launcher::dense_attention`].
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct AttentionParams {
    /// `[num_tokens, num_heads, D]`, scaled.
    pub query: Slice,
    /// `[capacity, num_kv_heads, D]`; head `h` reads `h / (num_heads / num_kv_heads)`.
    pub keys: Slice,
    /// `[capacity, num_kv_heads, D]`.
    pub values: Slice,
    /// One u32, positions held: token t stands at that, plus `offset`, plus t, and sees the positions up to its own.
    pub len_held: Slice,
    /// `[num_tokens, num_heads, num_segments, D + 2]`: room for sums.
    pub parts: Slice,
    /// `[num_tokens, num_heads]`, heads `2 D` apart.
    pub gate: Slice,
    /// `[num_tokens, num_heads, D]`.
    pub out: Slice,
    pub gate_stride: i64,
    pub num_tokens: i32,
    pub num_heads: i32,
    pub num_kv_heads: i32,
    pub head_dim: i32,
    /// [`attention_segments`] of the capacity.
    pub num_segments: i32,
    pub offset: i32,
}

/// As in the kernels' source.
#[repr(C)]
struct Words {
    gate_stride: i64,
    num_heads: i32,
    num_kv_heads: i32,
    head_dim: i32,
    num_segments: i32,
    offset: i32,
}

impl Launcher {
    /// Attends, and multiplies by the sigmoid of the gate: two kernels.
    ///
    /// # Errors
    /// [`crate::MetalError`] of the launches.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_attention(&self, encoder: EncoderHandle, params: &AttentionParams) -> Result<()> {
        let &AttentionParams { num_tokens, num_heads, num_kv_heads, head_dim, num_segments, .. } = params;
        check_sizes(OP, 0, &[("num_tokens", num_tokens.into())])?;
        let sizes = [
            ("num_heads", num_heads),
            ("num_kv_heads", num_kv_heads),
            ("head_dim", head_dim),
            ("num_segments", num_segments),
        ];
        check_sizes(OP, 1, &sizes.map(|(name, size)| (name, size.into())))?;
        let buffers =
            [params.query, params.keys, params.values, params.len_held, params.parts, params.gate, params.out];
        let of_segments = Call {
            op: OP,
            kernel: Kernel::Dense(DenseKernel::AttentionParts),
            buffers: &buffers,
            params_slot: 7,
            threadgroups: [num_segments as u64 * num_heads as u64, num_tokens as u64, 1],
            threads: [SEGMENT as u32, 1, 1],
            threadgroup_bytes: (SEGMENT + 2 * SIMDS) * size_of::<f32>(),
        };
        let of_heads = Call {
            kernel: Kernel::Dense(DenseKernel::Attention),
            threadgroups: [num_heads as u64, num_tokens as u64, 1],
            threads: [128, 1, 1],
            threadgroup_bytes: 0,
            ..of_segments
        };
        let words = Words {
            gate_stride: params.gate_stride,
            num_heads,
            num_kv_heads,
            head_dim,
            num_segments,
            offset: params.offset,
        };
        // SAFETY: both kernels take these parameters; the caller's promise.
        unsafe {
            self.launch(encoder, of_segments, &words)?;
            self.launch(encoder, of_heads, &words)
        }
    }
}
