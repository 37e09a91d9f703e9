//! `causal_conv1d_fn`.

use undraft_core::Activation;
use undraft_core::ops::CausalConv1dFnArgs;

use super::causal_conv1d_update::{BUFFERS, ConvBuffers, ConvParams, MAX_WIDTH, THREADS};
use crate::backend::WgpuBackend;
use crate::batch::Batch;
use crate::buffer::Binding;
use crate::error::Result;
use crate::host::{Packed, Upload, count, packed_stride, read_f32, unpack};
use crate::kernel::{KernelSource, Params};
use crate::raw::Elements;

/// Tokens of a workgroup, as in the kernel.
const TOKENS: usize = 64;

const KERNEL: KernelSource<'_> = KernelSource {
    name: "causal_conv1d_fn",
    files: &[
        include_str!("../../kernels/prelude.wgsl"),
        include_str!("../../kernels/causal_conv1d.wgsl"),
        include_str!("../../kernels/causal_conv1d_fn.wgsl"),
    ],
    params: ConvParams::WGSL,
    buffers: &BUFFERS,
    exchanges: false,
    is_large: false,
};

impl Batch<'_> {
    /// Convolves whole prompts. `longest` is about the longest sequence: it sets how many workgroups share one, not the result.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernel or the dispatch.
    pub fn causal_conv1d_fn(&mut self, buffers: &ConvBuffers<'_>, params: &ConvParams, longest: usize) -> Result<()> {
        let params = params.filled(longest.div_ceil(TOKENS).clamp(1, 1024) as u32)?;
        let device = self.device().clone();
        let kernel = device.pipeline(&KERNEL, &[("THREADS", THREADS), ("MAX_WIDTH", MAX_WIDTH)])?;
        self.dispatch(&kernel, &buffers.all(&device), &params, params.workgroups()?)
    }
}

pub(crate) fn run(backend: &WgpuBackend, mut args: CausalConv1dFnArgs<'_>) -> Result<()> {
    let device = backend.device();
    let channels = args.dims.channels();
    let num_tokens = args.cu_seqlens.last().map_or(0, |&n| n as usize);
    let longest = args.cu_seqlens.windows(2).map(|pair| (pair[1] - pair[0]) as usize).max().unwrap_or(0);
    let mut params = ConvParams::new(&args.dims, args.state_indices.len())?;
    let x = Upload::rows(device, "x", &args.x, num_tokens, channels)?;
    (params.x_stride, params.x_dtype) = (x.stride, x.dtype);
    let mut ints = Packed::default();
    params.cu_seqlens = ints.push("cu_seqlens", args.cu_seqlens)?;
    params.state_indices = ints.push("state_indices", args.state_indices)?;
    params.silu = (args.activation == Activation::Silu).into();
    params.has_bias = args.bias.is_some().into();
    let weight = device.buffer_from("weight", args.weight)?;
    let bias = device.buffer_from("bias", args.bias.unwrap_or(&[]))?;
    let state = device.buffer_from("state", args.state)?;
    let out_stride = packed_stride(args.out.dtype(), channels);
    params.out_stride = count("out_stride", out_stride as u64)?;
    params.out_dtype = Elements::from(args.out.dtype()).word();
    let out_bytes = (num_tokens * out_stride * args.out.dtype().size()) as u64;
    let out = device.buffer("out", out_bytes)?;
    let ints = ints.upload(device, "ints")?;
    let buffers = ConvBuffers {
        state: (&state).into(),
        log: None,
        out: (&out).into(),
        x: (&x.buffer).into(),
        weight: (&weight).into(),
        bias: Some((&bias).into()),
        ints: (&ints).into(),
    };
    let mut batch = Batch::new(device);
    batch.causal_conv1d_fn(&buffers, &params, longest)?;
    let parts = [Binding::part(&state, 0..size_of_val(args.state) as u64), Binding::part(&out, 0..out_bytes)];
    let read = batch.finish()?.run(&parts)?;
    read_f32(&read[0], args.state);
    unpack(&read[1], &mut args.out, num_tokens, channels);
    Ok(())
}
