//! `dense_attention`.

use super::select::DenseKernel;
use crate::error::Result;
use crate::raw::{CUstream, DevicePtr, Grid, Launcher};
use crate::select::Kernel;

/// Positions of a segment, and threads of its block, as in the kernel.
const SEGMENT: usize = 128;

/// Segments of a cache of `capacity` positions.
pub fn attention_segments(capacity: usize) -> usize {
    capacity.div_ceil(SEGMENT).max(1)
}

/// Parameters of [`Launcher::dense_attention`].
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct AttentionParams {
    /// `[num_tokens, num_heads, D]`, scaled.
    pub query: DevicePtr,
    /// `[capacity, num_kv_heads, D]`; head `h` reads `h / (num_heads / num_kv_heads)`.
    pub keys: DevicePtr,
    /// `[capacity, num_kv_heads, D]`.
    pub values: DevicePtr,
    /// One i32, positions held: token t stands at `len + offset + t`, and sees the positions up to its own.
    pub len_held: DevicePtr,
    /// `[num_tokens, num_heads, num_segments, D + 2]`: room for sums.
    pub parts: DevicePtr,
    /// `[num_tokens, num_heads]`, heads `2 D` apart.
    pub gate: DevicePtr,
    /// `[num_tokens, num_heads, D]`.
    pub out: DevicePtr,
    pub gate_stride: i64,
    pub num_tokens: i32,
    pub num_heads: i32,
    pub num_kv_heads: i32,
    pub head_dim: i32,
    /// [`attention_segments`] of the capacity.
    pub num_segments: i32,
    pub offset: i32,
}

impl Launcher {
    /// Attends, and multiplies by the sigmoid of the gate: two kernels.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_attention(&self, stream: CUstream, params: &AttentionParams) -> Result<()> {
        const OP: &str = "dense_attention";
        let (tokens, heads) = (params.num_tokens.max(0) as u32, params.num_heads.max(0) as u64);
        let shared = (SEGMENT + 2 * SEGMENT / 32) * size_of::<f32>();
        let blocks = (heads * params.num_segments.max(0) as u64, tokens);
        let parts = Grid { blocks, threads: SEGMENT as u32, shared };
        let whole = Grid { blocks: (heads, tokens), threads: 128, shared: 0 };
        // SAFETY: both kernels take these parameters; the caller's promise.
        unsafe {
            self.launch(OP, Kernel::Dense(DenseKernel::AttentionParts), parts, stream, params)?;
            self.launch(OP, Kernel::Dense(DenseKernel::Attention), whole, stream, params)
        }
    }
}
