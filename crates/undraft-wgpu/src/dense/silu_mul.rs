//! `dense_silu_mul`.

use super::{THREADS, files, workgroups};
use crate::batch::Batch;
use crate::buffer::Binding;
use crate::error::Result;
use crate::kernel::{Access, KernelSource, Params};

crate::params! {
    /// Parameters of [`Batch::dense_silu_mul`].
    #[allow(missing_docs)]
    pub struct SiluMulParams {
        pub num_rows: u32,
        pub len: u32,
    }
}

/// Buffers of [`Batch::dense_silu_mul`].
#[derive(Clone, Copy, Debug)]
pub struct SiluMulBuffers<'a> {
    /// `[num_rows, 2, len]`: the gates of a row, then what they gate.
    pub gate_up: Binding<'a>,
    /// `[num_rows, len]`.
    pub out: Binding<'a>,
}

const KERNEL: KernelSource<'_> = KernelSource {
    name: "dense_silu_mul",
    files: files!("dense_silu_mul.wgsl"),
    params: SiluMulParams::WGSL,
    buffers: &[Access::Read, Access::ReadWrite],
    exchanges: false,
    is_large: false,
};

impl Batch<'_> {
    /// `silu(gate) * up` of every row.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernel or the dispatch.
    pub fn dense_silu_mul(&mut self, buffers: &SiluMulBuffers<'_>, params: &SiluMulParams) -> Result<()> {
        let SiluMulBuffers { gate_up, out } = *buffers;
        let workgroups = workgroups("num_rows * len", u64::from(params.num_rows) * u64::from(params.len))?;
        let kernel = self.device().pipeline(&KERNEL, &[("THREADS", THREADS)])?;
        self.dispatch(&kernel, &[gate_up, out], params, workgroups)
    }
}
