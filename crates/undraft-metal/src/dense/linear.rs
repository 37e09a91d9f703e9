//! `dense_linear`.

use super::select::{self, DenseKernel};
use crate::error::{MetalError, Result};
use crate::raw::{Call, Elements, EncoderHandle, Launcher, Slice, check_sizes, present};
use crate::select::Kernel;

const OP: &str = "dense_linear";
/// Outputs of a threadgroup, as in the kernel.
const OUTPUTS: u64 = 16;

/// Parameters of [`Launcher::dense_linear`].
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct LinearParams {
    /// `[out_features, in_features]`, aligned to 4 elements; one such matrix for each expert.
    pub weight: Slice,
    /// `[num_rows / rows_per_x, in_features]`, aligned to 16 bytes.
    pub x: Slice,
    /// `[num_rows]` u32: the expert that a row takes; none: all take the one matrix.
    pub experts: Slice,
    /// `[num_rows, out_features]`.
    pub y: Slice,
    /// A multiple of 4.
    pub x_stride: i64,
    pub y_stride: i64,
    /// Elements from one expert's matrix to the next; a multiple of 4.
    pub expert_stride: i64,
    pub num_rows: i32,
    /// A multiple of 4.
    pub in_features: i32,
    pub out_features: i32,
    /// Rows of `y` that read the same row of `x`, one behind the other; at least 1.
    pub rows_per_x: i32,
}

/// As in the kernels' source.
#[repr(C)]
struct Words {
    x_stride: i64,
    y_stride: i64,
    expert_stride: i64,
    num_rows: i32,
    in_features: i32,
    out_features: i32,
    rows_per_x: i32,
    present: u32,
}

impl LinearParams {
    fn check(&self) -> Result<()> {
        let sizes =
            [("num_rows", self.num_rows), ("in_features", self.in_features), ("out_features", self.out_features)];
        check_sizes(OP, 0, &sizes.map(|(name, size)| (name, size.into())))?;
        check_sizes(OP, 1, &[("rows_per_x", self.rows_per_x.into())])?;
        let fours = [
            ("in_features", self.in_features.into()),
            ("x_stride", self.x_stride),
            ("expert_stride", self.expert_stride),
        ];
        match fours.into_iter().find(|(_, got)| got % 4 != 0) {
            Some((arg, got)) => Err(MetalError::Argument { op: OP, arg, got, expected: "a multiple of 4" }),
            None => Ok(()),
        }
    }
}

impl Launcher {
    /// `y = W x` for every row.
    ///
    /// # Errors
    /// [`MetalError::Argument`] for sizes that no kernel takes; [`MetalError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_linear(&self, encoder: EncoderHandle, params: &LinearParams, weight: Elements) -> Result<()> {
        params.check()?;
        let num_rows = params.num_rows as usize;
        let rows = select::linear_rows(num_rows, !params.experts.is_none());
        let buffers = [params.weight, params.x, params.experts, params.y];
        let call = Call {
            op: OP,
            kernel: Kernel::Dense(DenseKernel::Linear { weight: weight.into(), rows }),
            buffers: &buffers,
            params_slot: 4,
            threadgroups: [num_rows.div_ceil(rows) as u64, (params.out_features as u64).div_ceil(OUTPUTS), 1],
            threads: [128, 1, 1],
            threadgroup_bytes: 0,
        };
        let words = Words {
            x_stride: params.x_stride,
            y_stride: params.y_stride,
            expert_stride: params.expert_stride,
            num_rows: params.num_rows,
            in_features: params.in_features,
            out_features: params.out_features,
            rows_per_x: params.rows_per_x,
            present: present(&buffers),
        };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch(encoder, call, &words) }
    }
}
