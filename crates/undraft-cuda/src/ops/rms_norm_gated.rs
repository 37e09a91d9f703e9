//! `rms_norm_gated`.

use undraft_core::ops::{GateActivation, RmsNormGatedArgs};

use crate::backend::CudaBackend;
use crate::device::{Input, Output};
use crate::driver::DeviceBuffer;
use crate::error::Result;
use crate::raw::{CUstream, DevicePtr, Elements, Grid, Launcher, Switch};
use crate::select::Kernel;

/// Parameters of the launch; shapes in [`undraft_core::ops::RmsNormGatedArgs`].
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct NormParams {
    pub x: DevicePtr,
    pub z: DevicePtr,
    pub weight: DevicePtr,
    pub out: DevicePtr,
    pub x_stride: i64,
    pub z_stride: i64,
    pub out_stride: i64,
    pub num_rows: i64,
    pub num_heads: i32,
    pub head_dim: i32,
    pub x_dtype: Elements,
    pub z_dtype: Elements,
    pub out_dtype: Elements,
    /// Whether the gate is `sigmoid(z)`; else `z * sigmoid(z)`.
    pub sigmoid: Switch,
    pub eps: f32,
}

impl Launcher {
    /// Norm and gate of every head.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn rms_norm_gated(&self, stream: CUstream, params: &NormParams) -> Result<()> {
        let heads = params.num_rows.max(0) as u64 * params.num_heads.max(0) as u64;
        let grid = Grid { blocks: (heads.div_ceil(4), 1), threads: 128, shared: 0 };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch("rms_norm_gated", Kernel::RmsNormGated, grid, stream, params) }
    }
}

pub(crate) fn run(backend: &CudaBackend, args: RmsNormGatedArgs<'_>) -> Result<()> {
    let stream = backend.stream();
    let (x, z) = (Input::upload(stream, &args.x)?, Input::upload(stream, &args.z)?);
    let weight = DeviceBuffer::from_slice(stream, args.weight)?;
    let out = Output::upload(stream, args.out.data)?;
    let params = NormParams {
        x: x.address(),
        z: z.address(),
        weight: weight.address(),
        out: out.address(),
        x_stride: args.x.row_stride as i64,
        z_stride: args.z.row_stride as i64,
        out_stride: args.out.row_stride as i64,
        num_rows: args.num_rows as i64,
        num_heads: args.num_heads as i32,
        head_dim: args.head_dim as i32,
        x_dtype: args.x.dtype().into(),
        z_dtype: args.z.dtype().into(),
        out_dtype: out.dtype().into(),
        sigmoid: (args.activation == GateActivation::Sigmoid).into(),
        eps: args.eps,
    };
    // SAFETY: the buffers were made from checked arguments and live until the results are back.
    unsafe { backend.launcher().rms_norm_gated(stream.handle(), &params)? };
    out.download(stream)?;
    Ok(())
}
