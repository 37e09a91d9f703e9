//! `rms_norm_gated`.

use undraft_core::ops::{GateActivation, RmsNormGatedArgs};

use crate::backend::MetalBackend;
use crate::driver::DeviceBuffer;
use crate::error::Result;
use crate::host::{Input, Output};
use crate::raw::{Call, Elements, EncoderHandle, Launcher, Slice, Switch, check_sizes};
use crate::select::Kernel;

const OP: &str = "rms_norm_gated";

/// Parameters of the launch; shapes in [`undraft_core::ops::RmsNormGatedArgs`].
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct NormParams {
    pub x: Slice,
    pub z: Slice,
    pub weight: Slice,
    pub out: Slice,
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

/// As in the kernel's source.
#[repr(C)]
struct Words {
    x_stride: i64,
    z_stride: i64,
    out_stride: i64,
    num_heads: i32,
    head_dim: i32,
    x_dtype: Elements,
    z_dtype: Elements,
    out_dtype: Elements,
    sigmoid: Switch,
    eps: f32,
}

impl Launcher {
    /// Norm and gate of every head.
    ///
    /// # Errors
    /// [`crate::MetalError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn rms_norm_gated(&self, encoder: EncoderHandle, params: &NormParams) -> Result<()> {
        let &NormParams { x, z, weight, out, num_rows, num_heads, head_dim, .. } = params;
        check_sizes(OP, 0, &[("num_rows", num_rows)])?;
        check_sizes(OP, 1, &[("num_heads", num_heads.into()), ("head_dim", head_dim.into())])?;
        let call = Call {
            op: OP,
            kernel: Kernel::RmsNormGated,
            buffers: &[x, z, weight, out],
            params_slot: 4,
            threadgroups: [(num_heads as u64).div_ceil(4), num_rows as u64, 1],
            threads: [128, 1, 1],
            threadgroup_bytes: 0,
        };
        let words = Words {
            x_stride: params.x_stride,
            z_stride: params.z_stride,
            out_stride: params.out_stride,
            num_heads,
            head_dim,
            x_dtype: params.x_dtype,
            z_dtype: params.z_dtype,
            out_dtype: params.out_dtype,
            sigmoid: params.sigmoid,
            eps: params.eps,
        };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch(encoder, call, &words) }
    }
}

pub(crate) fn run(backend: &MetalBackend, args: RmsNormGatedArgs<'_>) -> Result<()> {
    let driver = backend.driver();
    let (x, z) = (Input::upload(driver, &args.x)?, Input::upload(driver, &args.z)?);
    let weight = DeviceBuffer::from_slice(driver, args.weight)?;
    let out_stride = args.out.row_stride as i64;
    let out = Output::upload(driver, args.out.data)?;
    let mut params = NormParams {
        weight: weight.slice(),
        out: out.slice(),
        out_stride,
        out_dtype: out.dtype().into(),
        num_rows: args.num_rows as i64,
        num_heads: args.num_heads as i32,
        head_dim: args.head_dim as i32,
        sigmoid: (args.activation == GateActivation::Sigmoid).into(),
        eps: args.eps,
        ..NormParams::default()
    };
    (params.x, params.x_stride, params.x_dtype) = x.tensor();
    (params.z, params.z_stride, params.z_dtype) = z.tensor();
    // SAFETY: the buffers were made from checked arguments and live until the work is done.
    backend.run(|launcher, encoder| unsafe { launcher.rms_norm_gated(encoder, &params) })?;
    out.download()
}
