//! `causal_conv1d_update`.

use undraft_core::ops::CausalConv1dUpdateArgs;
use undraft_core::{Activation, Capture};

use crate::backend::CudaBackend;
use crate::device::{Input, Output};
use crate::driver::DeviceBuffer;
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
    let x = Input::upload(stream, &args.x)?;
    let weight = DeviceBuffer::from_slice(stream, args.weight)?;
    let bias = DeviceBuffer::from_slice(stream, args.bias.unwrap_or(&[]))?;
    let state = DeviceBuffer::from_slice(stream, args.state)?;
    let log_max = args.log.as_ref().map_or(0, |log| log.max_tokens);
    let mut log_data = args.log.map(|log| log.x);
    let log = DeviceBuffer::from_slice(stream, log_data.as_deref().unwrap_or(&[]))?;
    let cu_seqlens = DeviceBuffer::from_slice(stream, args.cu_seqlens)?;
    let state_indices = DeviceBuffer::from_slice(stream, args.state_indices)?;
    let num_pending = DeviceBuffer::from_slice(stream, args.num_pending)?;
    let pending_path = DeviceBuffer::from_slice(stream, args.pending_path)?;
    let parents = DeviceBuffer::from_slice(stream, args.parents)?;
    let out = Output::upload(stream, args.out.data)?;
    let params = ConvUpdateParams {
        x: x.address(),
        weight: weight.address(),
        bias: bias.address(),
        state: state.address(),
        log: log.address(),
        log_slots: 0,
        cu_seqlens: cu_seqlens.address(),
        state_indices: state_indices.address(),
        num_pending: num_pending.address(),
        pending_path: pending_path.address(),
        parents: parents.address(),
        out: out.address(),
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
    unsafe { backend.launcher().causal_conv1d_update(stream.handle(), &params)? };
    state.read(stream, 0, args.state)?;
    if let (Capture::DeltaLog, Some(data)) = (args.capture, &mut log_data) {
        log.read(stream, 0, data)?;
    }
    out.download(stream)?;
    Ok(())
}
