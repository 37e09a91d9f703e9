//! `causal_conv1d_update`.

use undraft_core::ops::CausalConv1dUpdateArgs;
use undraft_core::{Activation, Capture, ConvDims};

use crate::backend::WgpuBackend;
use crate::batch::Batch;
use crate::buffer::Binding;
use crate::error::{Result, WgpuError};
use crate::host::{Packed, Upload, count, packed_stride, read_f32, unpack};
use crate::kernel::{Access, KernelSource, Params};
use crate::raw::{Captured, Elements, NONE};

/// Invocations of a workgroup, each with two channels.
pub(super) const THREADS: u32 = 64;
/// Taps that the kernels have room for.
pub(super) const MAX_WIDTH: u32 = 8;

crate::params! {
    /// Parameters of the dispatches of both forms; shapes in [`undraft_core::ops::CausalConv1dUpdateArgs`] and
    /// [`undraft_core::ops::CausalConv1dFnArgs`].
    ///
    /// A log of its own for the window is not needed here: pending entries and the window's may lie in the same slot.
    #[allow(missing_docs)]
    pub struct ConvParams {
        pub state_first: u32,
        /// Elements from one slot's state to the next, at least `(W - 1) C`.
        pub state_stride: u32,
        pub log_first: u32,
        /// Tokens of a slot of the log.
        pub log_max: u32,
        pub x_first: u32,
        pub x_stride: u32,
        /// An even number where `out` is of 16 bits; `out_stride` as well.
        pub out_first: u32,
        pub out_stride: u32,
        /// A [`crate::raw::Elements`].
        pub x_dtype: u32,
        /// A [`crate::raw::Elements`].
        pub out_dtype: u32,
        pub weight_first: u32,
        pub bias_first: u32,
        /// 1 if there is a bias.
        pub has_bias: u32,
        /// First elements of lists in `ints`.
        pub cu_seqlens: u32,
        pub state_indices: u32,
        /// Or [`NONE`](crate::raw::NONE): as `state_indices`.
        pub log_slots: u32,
        /// Or [`NONE`](crate::raw::NONE): nothing is pending.
        pub num_pending: u32,
        /// Or [`NONE`](crate::raw::NONE): the first entries.
        pub pending_path: u32,
        /// Or [`NONE`](crate::raw::NONE): every window is a chain.
        pub parents: u32,
        pub num_seqs: u32,
        pub channels: u32,
        pub width: u32,
        /// 1 if SiLU follows the sum.
        pub silu: u32,
        /// `Final` or `DeltaLog` of [`crate::raw::Captured`].
        pub capture: u32,
        /// Filled in by the dispatch.
        pub unused: u32,
        /// Filled in by the dispatch.
        pub channel_blocks: u32,
        /// Filled in by the dispatch.
        pub token_blocks: u32,
    }
}

/// Buffers of the dispatches of both forms.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct ConvBuffers<'a> {
    pub state: Binding<'a>,
    /// Where anything is pending, and with capture `DeltaLog`.
    pub log: Option<Binding<'a>>,
    pub out: Binding<'a>,
    pub x: Binding<'a>,
    pub weight: Binding<'a>,
    pub bias: Option<Binding<'a>>,
    /// Lengths, slots, counts, paths and parents.
    pub ints: Binding<'a>,
}

/// What the kernels' files declare.
pub(super) const BUFFERS: [Access; 7] =
    [Access::ReadWrite, Access::ReadWrite, Access::ReadWrite, Access::Read, Access::Read, Access::Read, Access::Read];

const KERNEL: KernelSource<'_> = KernelSource {
    name: "causal_conv1d_update",
    files: &[
        include_str!("../../kernels/prelude.wgsl"),
        include_str!("../../kernels/causal_conv1d.wgsl"),
        include_str!("../../kernels/causal_conv1d_update.wgsl"),
    ],
    params: ConvParams::WGSL,
    buffers: &BUFFERS,
    exchanges: false,
    is_large: false,
};

impl ConvParams {
    /// The sizes, contiguous rows, no lists; `cu_seqlens`, `state_indices` and the first elements are to be set.
    pub fn new(dims: &ConvDims, num_seqs: usize) -> Result<Self> {
        let channels = count("channels", dims.channels() as u64)?;
        Ok(Self {
            state_stride: count("state_stride", dims.state_len() as u64)?,
            x_stride: channels,
            out_stride: channels,
            log_slots: NONE,
            num_pending: NONE,
            pending_path: NONE,
            parents: NONE,
            num_seqs: count("num_seqs", num_seqs as u64)?,
            channels,
            width: dims.width() as u32,
            ..Self::default()
        })
    }

    /// The fields that a dispatch fills in.
    pub(super) fn filled(&self, token_blocks: u32) -> Result<Self> {
        if self.out_dtype != Elements::F32.word() && !(self.out_first | self.out_stride).is_multiple_of(2) {
            let why = format!(
                "`out` has its first element at {} and stride {}, expected even numbers: an invocation writes two channels",
                self.out_first, self.out_stride
            );
            return Err(WgpuError::Kernel { kernel: "causal_conv1d".into(), why });
        }
        Ok(Self {
            unused: MAX_WIDTH.saturating_sub(self.width),
            channel_blocks: self.channels.div_ceil(2 * THREADS),
            token_blocks,
            ..self.clone()
        })
    }
    /// Workgroups of a dispatch with these fields.
    pub(super) fn workgroups(&self) -> Result<u64> {
        let blocks = u64::from(self.channel_blocks) * u64::from(self.token_blocks) * u64::from(self.num_seqs);
        count("num_seqs * blocks of channels and tokens", blocks)?;
        Ok(blocks)
    }
}

impl Batch<'_> {
    /// Settles kept inputs, convolves the windows, logs their inputs or moves the states on.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernel or the dispatch.
    pub fn causal_conv1d_update(&mut self, buffers: &ConvBuffers<'_>, params: &ConvParams) -> Result<()> {
        let params = params.filled(1)?;
        let device = self.device().clone();
        let kernel = device.pipeline(&KERNEL, &[("THREADS", THREADS), ("MAX_WIDTH", MAX_WIDTH)])?;
        self.dispatch(&kernel, &buffers.all(&device), &params, params.workgroups()?)
    }
}

impl<'a> ConvBuffers<'a> {
    /// In the order of the kernels' files.
    pub(super) fn all(&self, device: &'a crate::Device) -> [Binding<'a>; 7] {
        let log = self.log.unwrap_or(device.absent(0));
        let bias = self.bias.unwrap_or(device.absent(1));
        [self.state, log, self.out, self.x, self.weight, bias, self.ints]
    }
}

pub(crate) fn run(backend: &WgpuBackend, mut args: CausalConv1dUpdateArgs<'_>) -> Result<()> {
    let device = backend.device();
    let channels = args.dims.channels();
    let num_tokens = args.cu_seqlens.last().map_or(0, |&n| n as usize);
    let mut params = ConvParams::new(&args.dims, args.state_indices.len())?;
    let x = Upload::rows(device, "x", &args.x, num_tokens, channels)?;
    (params.x_stride, params.x_dtype) = (x.stride, x.dtype);
    let mut ints = Packed::default();
    params.cu_seqlens = ints.push("cu_seqlens", args.cu_seqlens)?;
    params.state_indices = ints.push("state_indices", args.state_indices)?;
    params.num_pending = ints.push_some("num_pending", args.num_pending)?;
    params.pending_path = ints.push_some("pending_path", args.pending_path)?;
    params.parents = ints.push_some("parents", args.parents)?;
    params.silu = (args.activation == Activation::Silu).into();
    params.capture = Captured::from(args.capture).word();
    params.has_bias = args.bias.is_some().into();
    let weight = device.buffer_from("weight", args.weight)?;
    let bias = device.buffer_from("bias", args.bias.unwrap_or(&[]))?;
    let state = device.buffer_from("state", args.state)?;
    let log_data: &[f32] = args.log.as_ref().map_or(&[], |log| log.x);
    let log = device.buffer_from("log", log_data)?;
    params.log_max = count("log.max_tokens", args.log.as_ref().map_or(0, |log| log.max_tokens) as u64)?;
    let out_stride = packed_stride(args.out.dtype(), channels);
    params.out_stride = count("out_stride", out_stride as u64)?;
    params.out_dtype = Elements::from(args.out.dtype()).word();
    let out_bytes = (num_tokens * out_stride * args.out.dtype().size()) as u64;
    let out = device.buffer("out", out_bytes)?;
    let ints = ints.upload(device, "ints")?;
    let buffers = ConvBuffers {
        state: (&state).into(),
        log: Some((&log).into()),
        out: (&out).into(),
        x: (&x.buffer).into(),
        weight: (&weight).into(),
        bias: Some((&bias).into()),
        ints: (&ints).into(),
    };
    let mut batch = Batch::new(device);
    batch.causal_conv1d_update(&buffers, &params)?;
    let log_bytes = if args.capture == Capture::DeltaLog { size_of_val(log_data) as u64 } else { 0 };
    let parts = [
        Binding::part(&state, 0..size_of_val(args.state) as u64),
        Binding::part(&out, 0..out_bytes),
        Binding::part(&log, 0..log_bytes),
    ];
    let read = batch.finish()?.run(&parts)?;
    read_f32(&read[0], args.state);
    unpack(&read[1], &mut args.out, num_tokens, channels);
    if let Some(log) = args.log {
        read_f32(&read[2], log.x);
    }
    Ok(())
}
