//! `causal_conv1d_fn`.

use undraft_core::Activation;
use undraft_core::ops::CausalConv1dFnArgs;

use crate::backend::MetalBackend;
use crate::driver::DeviceBuffer;
use crate::error::Result;
use crate::host::{Input, Output};
use crate::raw::{Call, Elements, EncoderHandle, Launcher, Slice, Switch, check_sizes, present};
use crate::select::Kernel;

const OP: &str = "causal_conv1d_fn";
/// Tokens of a block, as in the kernel.
const TOKENS: usize = 64;

/// Parameters of the launch; shapes in [`undraft_core::ops::CausalConv1dFnArgs`].
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct ConvFnParams {
    pub x: Slice,
    pub weight: Slice,
    /// Or none.
    pub bias: Slice,
    pub state: Slice,
    pub cu_seqlens: Slice,
    pub state_indices: Slice,
    pub out: Slice,
    pub x_stride: i64,
    pub out_stride: i64,
    /// Elements from one slot's state to the next, at least `(W - 1) C`.
    pub state_stride: i64,
    pub channels: i64,
    pub num_seqs: i32,
    /// 2 to 8.
    pub width: i32,
    pub x_dtype: Elements,
    pub out_dtype: Elements,
    pub silu: Switch,
}

/// As in the kernel's source.
#[repr(C)]
struct Words {
    x_stride: i64,
    out_stride: i64,
    state_stride: i64,
    channels: i64,
    num_seqs: i32,
    width: i32,
    x_dtype: Elements,
    out_dtype: Elements,
    silu: Switch,
    present: u32,
}

impl Launcher {
    /// Convolves whole prompts. `longest` is about the longest sequence: it sets how many threadgroups share one, not the
    /// result.
    ///
    /// # Errors
    /// [`crate::MetalError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn causal_conv1d_fn(&self, encoder: EncoderHandle, params: &ConvFnParams, longest: usize) -> Result<()> {
        check_sizes(OP, 0, &[("channels", params.channels), ("num_seqs", params.num_seqs.into())])?;
        let buffers =
            [params.x, params.weight, params.bias, params.state, params.cu_seqlens, params.state_indices, params.out];
        let token_blocks = longest.div_ceil(TOKENS).clamp(1, 0xffff) as u64;
        let call = Call {
            op: OP,
            kernel: Kernel::CausalConv1dFn,
            buffers: &buffers,
            params_slot: 7,
            threadgroups: [(params.channels as u64).div_ceil(128), params.num_seqs as u64, token_blocks],
            threads: [128, 1, 1],
            threadgroup_bytes: 0,
        };
        let words = Words {
            x_stride: params.x_stride,
            out_stride: params.out_stride,
            state_stride: params.state_stride,
            channels: params.channels,
            num_seqs: params.num_seqs,
            width: params.width,
            x_dtype: params.x_dtype,
            out_dtype: params.out_dtype,
            silu: params.silu,
            present: present(&buffers),
        };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch(encoder, call, &words) }
    }
}

pub(crate) fn run(backend: &MetalBackend, args: CausalConv1dFnArgs<'_>) -> Result<()> {
    let driver = backend.driver();
    let longest = args.cu_seqlens.windows(2).map(|pair| (pair[1] - pair[0]) as usize).max().unwrap_or(0);
    let x = Input::upload(driver, &args.x)?;
    let weight = DeviceBuffer::from_slice(driver, args.weight)?;
    let bias = DeviceBuffer::from_slice(driver, args.bias.unwrap_or(&[]))?;
    let state = DeviceBuffer::from_slice(driver, args.state)?;
    let cu_seqlens = DeviceBuffer::from_slice(driver, args.cu_seqlens)?;
    let state_indices = DeviceBuffer::from_slice(driver, args.state_indices)?;
    let out_stride = args.out.row_stride as i64;
    let out = Output::upload(driver, args.out.data)?;
    let mut params = ConvFnParams {
        weight: weight.slice(),
        bias: bias.slice(),
        state: state.slice(),
        cu_seqlens: cu_seqlens.slice(),
        state_indices: state_indices.slice(),
        out: out.slice(),
        out_stride,
        state_stride: args.dims.state_len() as i64,
        channels: args.dims.channels() as i64,
        num_seqs: args.state_indices.len() as i32,
        width: args.dims.width() as i32,
        out_dtype: out.dtype().into(),
        silu: (args.activation == Activation::Silu).into(),
        ..ConvFnParams::default()
    };
    (params.x, params.x_stride, params.x_dtype) = x.tensor();
    // SAFETY: the buffers were made from checked arguments and live until the work is done.
    backend.run(|launcher, encoder| unsafe { launcher.causal_conv1d_fn(encoder, &params, longest) })?;
    state.read(0, args.state)?;
    out.download()
}
