//! `causal_conv1d_update`.

use undraft_core::ops::CausalConv1dUpdateArgs;
use undraft_core::{Activation, Capture};

use crate::backend::CudaBackend;
use crate::device::{Buffer, Input, Output};
use crate::error::Result;
use crate::raw::{CUstream, Captured, DevicePtr, Elements, Grid, Launcher, Switch};
use crate::select::Kernel;

/// Parameters of the launch; shapes in [`undraft_core::ops::CausalConv1dUpdateArgs`].
///
/// A log of its own for the window is not needed here: pending entries and the window's may lie in the same slot.
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ConvUpdateParams {
    pub x: DevicePtr,
    pub weight: DevicePtr,
    /// Or 0.
    pub bias: DevicePtr,
    pub state: DevicePtr,
    /// Or 0 with capture `Final` and nothing pending.
    pub log: DevicePtr,
    /// `[num_seqs]` i32, slots of the log; 0: as `state_indices`.
    pub log_slots: DevicePtr,
    pub cu_seqlens: DevicePtr,
    pub state_indices: DevicePtr,
    /// Or 0.
    pub num_pending: DevicePtr,
    /// Or 0.
    pub pending_path: DevicePtr,
    /// Or 0.
    pub parents: DevicePtr,
    pub out: DevicePtr,
    pub x_stride: i64,
    pub out_stride: i64,
    /// Elements from one slot's state to the next, at least `(W - 1) C`.
    pub state_stride: i64,
    pub channels: i64,
    pub num_seqs: i32,
    pub width: i32,
    /// Tokens of a slot of the log.
    pub log_max: i32,
    pub x_dtype: Elements,
    pub out_dtype: Elements,
    pub silu: Switch,
    /// `Final` or `DeltaLog`.
    pub capture: Captured,
    /// Filled in by the launch.
    pub channel_blocks: i32,
}

impl Launcher {
    /// Settles kept inputs, convolves the windows, logs their inputs or moves the states on.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn causal_conv1d_update(&self, stream: CUstream, params: &ConvUpdateParams) -> Result<()> {
        let channel_blocks = (params.channels.max(0) as u64).div_ceil(128);
        let params = ConvUpdateParams { channel_blocks: channel_blocks as i32, ..params.clone() };
        let grid = Grid { blocks: (params.num_seqs.max(0) as u64 * channel_blocks, 1), threads: 128, shared: 0 };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch("causal_conv1d_update", Kernel::CausalConv1dUpdate, grid, stream, &params) }
    }
}

pub(crate) fn run(backend: &CudaBackend, args: CausalConv1dUpdateArgs<'_>) -> Result<()> {
    let stream = backend.stream();
    let mut x = Input::upload(stream, &args.x)?;
    let mut weight = Buffer::upload(stream, args.weight)?;
    let mut bias = Buffer::upload(stream, args.bias.unwrap_or(&[]))?;
    let mut state = Buffer::upload(stream, args.state)?;
    let log_max = args.log.as_ref().map_or(0, |log| log.max_tokens);
    let mut log_data = args.log.map(|log| log.x);
    let mut log = Buffer::upload(stream, log_data.as_deref().unwrap_or(&[]))?;
    let mut cu_seqlens = Buffer::upload(stream, args.cu_seqlens)?;
    let mut state_indices = Buffer::upload(stream, args.state_indices)?;
    let mut num_pending = Buffer::upload(stream, args.num_pending)?;
    let mut pending_path = Buffer::upload(stream, args.pending_path)?;
    let mut parents = Buffer::upload(stream, args.parents)?;
    let mut out = Output::upload(stream, args.out.data)?;
    let params = ConvUpdateParams {
        x: x.address(stream),
        weight: weight.address(stream),
        bias: bias.address(stream),
        state: state.address(stream),
        log: log.address(stream),
        log_slots: 0,
        cu_seqlens: cu_seqlens.address(stream),
        state_indices: state_indices.address(stream),
        num_pending: num_pending.address(stream),
        pending_path: pending_path.address(stream),
        parents: parents.address(stream),
        out: out.address(stream),
        x_stride: args.x.row_stride as i64,
        out_stride: args.out.row_stride as i64,
        state_stride: args.dims.state_len() as i64,
        channels: args.dims.channels() as i64,
        num_seqs: args.state_indices.len() as i32,
        width: args.dims.width() as i32,
        log_max: log_max as i32,
        x_dtype: args.x.dtype().into(),
        out_dtype: out.dtype().into(),
        silu: (args.activation == Activation::Silu).into(),
        capture: args.capture.into(),
        channel_blocks: 0,
    };
    // SAFETY: the buffers were made from checked arguments and live until the results are back.
    unsafe { backend.launcher().causal_conv1d_update(stream.cu_stream(), &params)? };
    state.download(stream, args.state)?;
    if let (Capture::DeltaLog, Some(data)) = (args.capture, &mut log_data) {
        log.download(stream, data)?;
    }
    out.download(stream)?;
    backend.finish()
}
