//! `fused_gdn_gating`.

use undraft_core::ops::FusedGdnGatingArgs;

use crate::backend::WgpuBackend;
use crate::batch::Batch;
use crate::buffer::Binding;
use crate::error::Result;
use crate::host::{Upload, count, read_f32};
use crate::kernel::{Access, KernelSource, Params};

/// Threads of a workgroup.
const THREADS: u32 = 64;

crate::params! {
    /// Parameters of the dispatch; shapes in [`undraft_core::ops::FusedGdnGatingArgs`].
    #[allow(missing_docs)]
    pub struct GatingParams {
        pub a_first: u32,
        pub b_first: u32,
        pub a_log_first: u32,
        pub dt_bias_first: u32,
        pub g_first: u32,
        pub beta_first: u32,
        pub a_stride: u32,
        pub b_stride: u32,
        /// A [`crate::raw::Elements`].
        pub a_dtype: u32,
        /// A [`crate::raw::Elements`].
        pub b_dtype: u32,
        pub num_tokens: u32,
        pub num_v_heads: u32,
        /// Decays of a value head: 1, or `K`.
        pub decay_dim: u32,
    }
}

/// Buffers of the dispatch.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct GatingBuffers<'a> {
    pub a: Binding<'a>,
    pub b: Binding<'a>,
    pub a_log: Binding<'a>,
    pub dt_bias: Binding<'a>,
    pub g: Binding<'a>,
    pub beta: Binding<'a>,
}

const KERNEL: KernelSource<'_> = KernelSource {
    name: "fused_gdn_gating",
    files: &[
        include_str!("../../kernels/prelude.wgsl"),
        include_str!("../../kernels/gates.wgsl"),
        include_str!("../../kernels/fused_gdn_gating.wgsl"),
    ],
    params: GatingParams::WGSL,
    buffers: &[Access::Read, Access::Read, Access::Read, Access::Read, Access::ReadWrite, Access::ReadWrite],
    exchanges: false,
    is_large: false,
};

impl Batch<'_> {
    /// `g` and `beta` of every token.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernel or the dispatch.
    pub fn fused_gdn_gating(&mut self, buffers: &GatingBuffers<'_>, params: &GatingParams) -> Result<()> {
        let GatingBuffers { a, b, a_log, dt_bias, g, beta } = *buffers;
        let elements = u64::from(params.num_tokens) * u64::from(params.num_v_heads) * u64::from(params.decay_dim);
        count("num_tokens * num_v_heads * decay_dim", elements)?;
        let kernel = self.device().pipeline(&KERNEL, &[("THREADS", THREADS)])?;
        self.dispatch(&kernel, &[a, b, a_log, dt_bias, g, beta], params, elements.div_ceil(u64::from(THREADS)))
    }
}

pub(crate) fn run(backend: &WgpuBackend, args: FusedGdnGatingArgs<'_>) -> Result<()> {
    let device = backend.device();
    let (heads, decays) = (args.num_v_heads, args.num_v_heads * args.decay_dim);
    let a = Upload::rows(device, "a", &args.a, args.num_tokens, decays)?;
    let b = Upload::rows(device, "b", &args.b, args.num_tokens, heads)?;
    let a_log = device.buffer_from("A_log", args.a_log)?;
    let dt_bias = device.buffer_from("dt_bias", args.dt_bias)?;
    let g = device.buffer("g", size_of_val(args.g) as u64)?;
    let beta = device.buffer("beta", size_of_val(args.beta) as u64)?;
    let params = GatingParams {
        a_stride: a.stride,
        b_stride: b.stride,
        a_dtype: a.dtype,
        b_dtype: b.dtype,
        num_tokens: count("num_tokens", args.num_tokens as u64)?,
        num_v_heads: count("num_v_heads", heads as u64)?,
        decay_dim: args.decay_dim as u32,
        ..GatingParams::default()
    };
    let buffers = GatingBuffers {
        a: (&a.buffer).into(),
        b: (&b.buffer).into(),
        a_log: (&a_log).into(),
        dt_bias: (&dt_bias).into(),
        g: (&g).into(),
        beta: (&beta).into(),
    };
    let mut batch = Batch::new(device);
    batch.fused_gdn_gating(&buffers, &params)?;
    let parts =
        [Binding::part(&g, 0..size_of_val(args.g) as u64), Binding::part(&beta, 0..size_of_val(args.beta) as u64)];
    let read = batch.finish()?.run(&parts)?;
    read_f32(&read[0], args.g);
    read_f32(&read[1], args.beta);
    Ok(())
}
