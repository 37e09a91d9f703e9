//! `dense_embed`.

use super::select::DenseKernel;
use crate::error::Result;
use crate::raw::{Call, Elements, EncoderHandle, Launcher, Slice, check_sizes};
use crate::select::Kernel;

const OP: &str = "dense_embed";

/// Parameters of [`Launcher::dense_embed`].
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct EmbedParams {
    /// `[vocab_size, len]`, of `dtype`.
    pub table: Slice,
    /// `[num_tokens]` u32; an id beyond the table reads its last row.
    pub tokens: Slice,
    /// `[num_tokens, len]` f32.
    pub out: Slice,
    pub len: i64,
    pub num_tokens: i32,
    pub vocab_size: i32,
    pub dtype: Elements,
}

/// As in the kernel's source.
#[repr(C)]
struct Words {
    len: i64,
    vocab_size: i32,
    dtype: Elements,
}

impl Launcher {
    /// Rows of an embedding, widened.
    ///
    /// # Errors
    /// [`crate::MetalError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_embed(&self, encoder: EncoderHandle, params: &EmbedParams) -> Result<()> {
        let &EmbedParams { table, tokens, out, len, num_tokens, vocab_size, dtype } = params;
        check_sizes(OP, 0, &[("len", len), ("num_tokens", num_tokens.into())])?;
        check_sizes(OP, 1, &[("vocab_size", vocab_size.into())])?;
        let call = Call {
            op: OP,
            kernel: Kernel::Dense(DenseKernel::Embed),
            buffers: &[table, tokens, out],
            params_slot: 3,
            threadgroups: [(len as u64).div_ceil(128), num_tokens as u64, 1],
            threads: [128, 1, 1],
            threadgroup_bytes: 0,
        };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch(encoder, call, &Words { len, vocab_size, dtype }) }
    }
}
