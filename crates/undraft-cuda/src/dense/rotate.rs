//! `dense_rotate`.

use super::select::DenseKernel;
use crate::error::Result;
use crate::raw::{CUstream, DevicePtr, Grid, Launcher};
use crate::select::Kernel;

/// Parameters of [`Launcher::dense_rotate`].
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RotateParams {
    /// A token's row: `[num_heads, 2, D]` (query, gate), `[num_kv_heads, D]` keys, `[num_kv_heads, D]` values.
    pub qkv: DevicePtr,
    /// `[D]`: `1 + weight` of the queries' norm.
    pub q_factor: DevicePtr,
    /// `[D]`: `1 + weight` of the keys' norm.
    pub k_factor: DevicePtr,
    /// `[capacity, rotary_dim]`: cosines, then sines, of a position's angles.
    pub rope: DevicePtr,
    /// One i32, positions held: token t stands at `len + offset + t`, below the capacity.
    pub len_held: DevicePtr,
    /// `[num_tokens, num_heads, D]`.
    pub query: DevicePtr,
    /// `[capacity, num_kv_heads, D]`.
    pub keys: DevicePtr,
    /// `[capacity, num_kv_heads, D]`.
    pub values: DevicePtr,
    pub qkv_stride: i64,
    pub num_tokens: i32,
    pub num_heads: i32,
    pub num_kv_heads: i32,
    pub head_dim: i32,
    /// Values of a head that are turned, the first ones; even.
    pub rotary_dim: i32,
    pub offset: i32,
    pub eps: f32,
    /// Of the queries.
    pub scale: f32,
}

impl Launcher {
    /// Norms and rotates queries and keys; puts keys and values into the cache.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_rotate(&self, stream: CUstream, params: &RotateParams) -> Result<()> {
        let heads = params.num_heads.max(0) as u64 + 2 * params.num_kv_heads.max(0) as u64;
        let blocks = (params.num_tokens.max(0) as u64 * heads).div_ceil(4);
        let grid = Grid { blocks: (blocks, 1), threads: 128, shared: 0 };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch("dense_rotate", Kernel::Dense(DenseKernel::Rotate), grid, stream, params) }
    }
}
