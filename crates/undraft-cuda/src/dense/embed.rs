//! `dense_embed`.

use super::select::DenseKernel;
use crate::error::Result;
use crate::raw::{CUstream, DevicePtr, Elements, Grid, Launcher};
use crate::select::Kernel;

/// Parameters of [`Launcher::dense_embed`].
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct EmbedParams {
    /// `[vocab_size, len]`, of `dtype`.
    pub table: DevicePtr,
    /// `[num_tokens]` u32; an id beyond the table reads its last row.
    pub tokens: DevicePtr,
    /// `[num_tokens, len]` f32.
    pub out: DevicePtr,
    pub len: i64,
    pub num_tokens: i32,
    pub vocab_size: i32,
    pub dtype: Elements,
}

impl Launcher {
    /// Rows of an embedding, widened.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_embed(&self, stream: CUstream, params: &EmbedParams) -> Result<()> {
        let blocks = (params.num_tokens.max(0) as u64, (params.len.max(0) as u64).div_ceil(128) as u32);
        let grid = Grid { blocks, threads: 128, shared: 0 };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch("dense_embed", Kernel::Dense(DenseKernel::Embed), grid, stream, params) }
    }
}
