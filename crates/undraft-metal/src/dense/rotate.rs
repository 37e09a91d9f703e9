//! `dense_rotate`.

use super::select::DenseKernel;
use crate::error::Result;
use crate::raw::{Call, EncoderHandle, Launcher, Slice, check_sizes};
use crate::select::Kernel;

const OP: &str = "dense_rotate";

/// Parameters of [`Launcher::dense_rotate`].
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct RotateParams {
    /// A token's row: `[num_heads, 2, D]` (query, gate), `[num_kv_heads, D]` keys, `[num_kv_heads, D]` values.
    pub qkv: Slice,
    /// `[D]`: `1 + weight` of the queries' norm.
    pub q_factor: Slice,
    /// `[D]`: `1 + weight` of the keys' norm.
    pub k_factor: Slice,
    /// `[capacity, rotary_dim]`: cosines, then sines, of a position's angles.
    pub rope: Slice,
    /// One u32, positions held: token t stands at that, plus `offset`, plus t, below the capacity.
    pub len_held: Slice,
    /// `[num_tokens, num_heads, D]`.
    pub query: Slice,
    /// `[capacity, num_kv_heads, D]`.
    pub keys: Slice,
    /// `[capacity, num_kv_heads, D]`.
    pub values: Slice,
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

/// As in the kernel's source.
#[repr(C)]
struct Words {
    qkv_stride: i64,
    num_heads: i32,
    num_kv_heads: i32,
    head_dim: i32,
    rotary_dim: i32,
    offset: i32,
    eps: f32,
    scale: f32,
}

impl Launcher {
    /// Norms and rotates queries and keys; puts keys and values into the cache.
    ///
    /// # Errors
    /// [`crate::MetalError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_rotate(&self, encoder: EncoderHandle, params: &RotateParams) -> Result<()> {
        let &RotateParams { num_tokens, num_heads, num_kv_heads, head_dim, rotary_dim, .. } = params;
        let sizes = [
            ("num_tokens", num_tokens),
            ("num_heads", num_heads),
            ("num_kv_heads", num_kv_heads),
            ("head_dim", head_dim),
            ("rotary_dim", rotary_dim),
        ];
        check_sizes(OP, 0, &sizes.map(|(name, size)| (name, size.into())))?;
        let heads = num_heads as u64 + 2 * num_kv_heads as u64;
        let call = Call {
            op: OP,
            kernel: Kernel::Dense(DenseKernel::Rotate),
            buffers: &[
                params.qkv,
                params.q_factor,
                params.k_factor,
                params.rope,
                params.len_held,
                params.query,
                params.keys,
                params.values,
            ],
            params_slot: 8,
            threadgroups: [heads.div_ceil(4), num_tokens as u64, 1],
            threads: [128, 1, 1],
            threadgroup_bytes: 0,
        };
        let words = Words {
            qkv_stride: params.qkv_stride,
            num_heads,
            num_kv_heads,
            head_dim,
            rotary_dim,
            offset: params.offset,
            eps: params.eps,
            scale: params.scale,
        };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch(encoder, call, &words) }
    }
}
