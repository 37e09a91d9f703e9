//! `causal_conv1d_fn`.

use undraft_core::Activation;
use undraft_core::ops::CausalConv1dFnArgs;

use crate::backend::CudaBackend;
use crate::device::{Input, Output};
use crate::driver::DeviceBuffer;
use crate::error::Result;
use crate::raw::{CUstream, DevicePtr, Elements, Grid, Launcher, Switch};
use crate::select::Kernel;

/// Tokens of a block, as in the kernel.
const TOKENS: usize = 64;

/// Parameters of the launch; shapes in [`undraft_core::ops::CausalConv1dFnArgs`].
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ConvFnParams {
    pub x: DevicePtr,
    pub weight: DevicePtr,
    /// Or 0.
    pub bias: DevicePtr,
    pub state: DevicePtr,
    pub cu_seqlens: DevicePtr,
    pub state_indices: DevicePtr,
    pub out: DevicePtr,
    pub x_stride: i64,
    pub out_stride: i64,
    /// Elements from one slot's state to the next, at least `(W - 1) C`.
    pub state_stride: i64,
    pub channels: i64,
    pub num_seqs: i32,
    pub width: i32,
    pub x_dtype: Elements,
    pub out_dtype: Elements,
    pub silu: Switch,
    /// Filled in by the launch.
    pub channel_blocks: i32,
}

impl Launcher {
    /// Convolves whole prompts. `longest` is about the longest sequence: it sets how many blocks share one, not the result.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn causal_conv1d_fn(&self, stream: CUstream, params: &ConvFnParams, longest: usize) -> Result<()> {
        let channel_blocks = (params.channels.max(0) as u64).div_ceil(128);
        let params = ConvFnParams { channel_blocks: channel_blocks as i32, ..params.clone() };
        let token_blocks = longest.div_ceil(TOKENS).clamp(1, 0xffff) as u32;
        let blocks = (params.num_seqs.max(0) as u64 * channel_blocks, token_blocks);
        let grid = Grid { blocks, threads: 128, shared: 0 };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch("causal_conv1d_fn", Kernel::CausalConv1dFn, grid, stream, &params) }
    }
}

pub(crate) fn run(backend: &CudaBackend, args: CausalConv1dFnArgs<'_>) -> Result<()> {
    let stream = backend.stream();
    let longest = args.cu_seqlens.windows(2).map(|pair| (pair[1] - pair[0]) as usize).max().unwrap_or(0);
    let x = Input::upload(stream, &args.x)?;
    let weight = DeviceBuffer::from_slice(stream, args.weight)?;
    let bias = DeviceBuffer::from_slice(stream, args.bias.unwrap_or(&[]))?;
    let state = DeviceBuffer::from_slice(stream, args.state)?;
    let cu_seqlens = DeviceBuffer::from_slice(stream, args.cu_seqlens)?;
    let state_indices = DeviceBuffer::from_slice(stream, args.state_indices)?;
    let out = Output::upload(stream, args.out.data)?;
    let params = ConvFnParams {
        x: x.address(),
        weight: weight.address(),
        bias: bias.address(),
        state: state.address(),
        cu_seqlens: cu_seqlens.address(),
        state_indices: state_indices.address(),
        out: out.address(),
        x_stride: args.x.row_stride as i64,
        out_stride: args.out.row_stride as i64,
        state_stride: args.dims.state_len() as i64,
        channels: args.dims.channels() as i64,
        num_seqs: args.state_indices.len() as i32,
        width: args.dims.width() as i32,
        x_dtype: args.x.dtype().into(),
        out_dtype: out.dtype().into(),
        silu: (args.activation == Activation::Silu).into(),
        channel_blocks: 0,
    };
    // SAFETY: the buffers were made from checked arguments and live until the results are back.
    unsafe { backend.launcher().causal_conv1d_fn(stream.handle(), &params, longest)? };
    state.read(stream, 0, args.state)?;
    out.download(stream)?;
    Ok(())
}
