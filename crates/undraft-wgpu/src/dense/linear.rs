//! `dense_linear`.

use super::files;
use crate::batch::Batch;
use crate::buffer::Binding;
use crate::error::Result;
use crate::kernel::{Access, KernelSource, Params};
use crate::raw::Elements;

/// Threads of a workgroup, and those that share outputs, as in the kernel.
const THREADS: u32 = 64;
const LANES: u32 = 16;

crate::params! {
    /// Parameters of [`Batch::dense_linear`].
    #[allow(missing_docs)]
    pub struct LinearParams {
        /// A multiple of 4.
        pub x_first: u32,
        pub experts_first: u32,
        pub y_first: u32,
        /// A multiple of 4.
        pub x_stride: u32,
        pub y_stride: u32,
        pub num_rows: u32,
        /// A multiple of 4.
        pub in_features: u32,
        pub out_features: u32,
        /// Rows of `y` that read the same row of `x`, one behind the other; at least 1.
        pub rows_per_x: u32,
    }
}

/// Buffers of [`Batch::dense_linear`].
#[derive(Clone, Copy, Debug)]
pub struct LinearBuffers<'a> {
    /// `[out_features, in_features]`; one such matrix for each expert, one behind the other.
    pub weight: Binding<'a>,
    /// `[num_rows / rows_per_x, in_features]`.
    pub x: Binding<'a>,
    /// `[num_rows]` u32: the expert that a row takes; none: all take the one matrix.
    pub experts: Option<Binding<'a>>,
    /// `[num_rows, out_features]`.
    pub y: Binding<'a>,
}

const OF_F32: KernelSource<'_> = KernelSource {
    name: "dense_linear_f32",
    files: files!("dense_weights_f32.wgsl", "dense_linear.wgsl"),
    params: LinearParams::WGSL,
    buffers: &[Access::Read, Access::Read, Access::Read, Access::ReadWrite],
    exchanges: false,
    is_large: false,
};
const OF_HALF: KernelSource =
    KernelSource { name: "dense_linear_half", files: files!("dense_weights_half.wgsl", "dense_linear.wgsl"), ..OF_F32 };

impl Batch<'_> {
    /// `y = W x` for every row.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernel or the dispatch.
    pub fn dense_linear(&mut self, buffers: &LinearBuffers<'_>, params: &LinearParams, weight: Elements) -> Result<()> {
        // Rows and outputs decide who computes what; the order of a sum knows neither.
        let (rows, outputs) = match (buffers.experts.is_some(), params.num_rows) {
            (true, _) | (false, ..=1) => (1, 2),
            (false, 2..=4) => (4, 4),
            _ => (8, 4),
        };
        let constants = [
            ("THREADS", THREADS),
            ("ROWS", rows),
            ("OUTPUTS", outputs),
            ("EXPERTS", u32::from(buffers.experts.is_some())),
            ("DTYPE", weight.word()),
        ];
        let source = if weight == Elements::F32 { &OF_F32 } else { &OF_HALF };
        let kernel = self.device().pipeline(source, &constants)?;
        let tiles = u64::from(params.num_rows.div_ceil(rows));
        let workgroups = tiles * u64::from(params.out_features.div_ceil(THREADS / LANES * outputs));
        let LinearBuffers { weight, x, experts, y } = *buffers;
        self.dispatch(&kernel, &[weight, x, experts.unwrap_or(x), y], params, workgroups)
    }
}
