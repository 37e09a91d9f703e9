//! `rms_norm_gated`.

use undraft_core::ops::{GateActivation, RmsNormGatedArgs};

use crate::backend::WgpuBackend;
use crate::batch::Batch;
use crate::buffer::Binding;
use crate::error::Result;
use crate::host::{Upload, count, packed_stride, unpack};
use crate::kernel::{Access, KernelSource, Params};
use crate::raw::Elements;

/// Invocations of a workgroup, eight a head.
const THREADS: u32 = 128;

crate::params! {
    /// Parameters of the dispatch; shapes in [`undraft_core::ops::RmsNormGatedArgs`].
    #[allow(missing_docs)]
    pub struct NormParams {
        pub x_first: u32,
        pub z_first: u32,
        pub weight_first: u32,
        pub out_first: u32,
        pub x_stride: u32,
        pub z_stride: u32,
        pub out_stride: u32,
        /// A [`crate::raw::Elements`], as all fields of this kind.
        pub x_dtype: u32,
        pub z_dtype: u32,
        pub out_dtype: u32,
        pub num_rows: u32,
        pub num_heads: u32,
        pub head_dim: u32,
        /// 1 if the gate is `sigmoid(z)`; else `z * sigmoid(z)`.
        pub gate_is_sigmoid: u32,
        pub eps: f32,
    }
}

/// Buffers of the dispatch.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct NormBuffers<'a> {
    pub x: Binding<'a>,
    pub z: Binding<'a>,
    pub weight: Binding<'a>,
    pub out: Binding<'a>,
}

const KERNEL: KernelSource<'_> = KernelSource {
    name: "rms_norm_gated",
    files: &[include_str!("../../kernels/prelude.wgsl"), include_str!("../../kernels/rms_norm_gated.wgsl")],
    params: NormParams::WGSL,
    buffers: &[Access::Read, Access::Read, Access::Read, Access::ReadWrite],
    exchanges: true,
    is_large: false,
};

impl Batch<'_> {
    /// Norm and gate of every head.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernel or the dispatch.
    pub fn rms_norm_gated(&mut self, buffers: &NormBuffers<'_>, params: &NormParams) -> Result<()> {
        let NormBuffers { x, z, weight, out } = *buffers;
        let heads = u64::from(params.num_rows) * u64::from(params.num_heads);
        count("num_rows * num_heads", heads)?;
        let kernel = self.device().pipeline(&KERNEL, &[("THREADS", THREADS)])?;
        self.dispatch(&kernel, &[x, z, weight, out], params, heads.div_ceil(u64::from(THREADS) / 8))
    }
}

pub(crate) fn run(backend: &WgpuBackend, mut args: RmsNormGatedArgs<'_>) -> Result<()> {
    let device = backend.device();
    let row_len = args.num_heads * args.head_dim;
    let x = Upload::rows(device, "x", &args.x, args.num_rows, row_len)?;
    let z = Upload::rows(device, "z", &args.z, args.num_rows, row_len)?;
    let weight = device.buffer_from("weight", args.weight)?;
    let out_stride = packed_stride(args.out.dtype(), row_len);
    let bytes = (args.num_rows * out_stride * args.out.dtype().size()) as u64;
    let out = device.buffer("out", bytes)?;
    let params = NormParams {
        x_stride: x.stride,
        z_stride: z.stride,
        out_stride: count("out_stride", out_stride as u64)?,
        x_dtype: x.dtype,
        z_dtype: z.dtype,
        out_dtype: Elements::from(args.out.dtype()).word(),
        num_rows: count("num_rows", args.num_rows as u64)?,
        num_heads: args.num_heads as u32,
        head_dim: args.head_dim as u32,
        gate_is_sigmoid: (args.activation == GateActivation::Sigmoid).into(),
        eps: args.eps,
        ..NormParams::default()
    };
    let buffers =
        NormBuffers { x: (&x.buffer).into(), z: (&z.buffer).into(), weight: (&weight).into(), out: (&out).into() };
    let mut batch = Batch::new(device);
    batch.rms_norm_gated(&buffers, &params)?;
    let read = batch.finish()?.run(&[Binding::part(&out, 0..bytes)])?;
    unpack(&read[0], &mut args.out, args.num_rows, row_len);
    Ok(())
}
