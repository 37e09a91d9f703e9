//! `causal_conv1d_update`.

use undraft_core::ops::CausalConv1dUpdateArgs;
use undraft_core::{Activation, Capture};

use crate::backend::MetalBackend;
use crate::driver::DeviceBuffer;
use crate::error::Result;
use crate::host::{Input, Output};
use crate::raw::{Call, Captured, Elements, EncoderHandle, Launcher, Slice, Switch, check_sizes, present};
use crate::select::Kernel;

const OP: &str = "causal_conv1d_update";

/// Parameters of the launch; shapes in [`undraft_core::ops::CausalConv1dUpdateArgs`].
///
/// A log of its own for the window is not needed here: pending entries and the window's may lie in the same slot.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct ConvUpdateParams {
    pub x: Slice,
    pub weight: Slice,
    /// Or none.
    pub bias: Slice,
    pub state: Slice,
    /// Or none with capture `Final` and nothing pending.
    pub log: Slice,
    /// `[num_seqs]` i32, slots of the log; none: as `state_indices`.
    pub log_slots: Slice,
    pub cu_seqlens: Slice,
    pub state_indices: Slice,
    /// Or none.
    pub num_pending: Slice,
    /// Or none.
    pub pending_path: Slice,
    /// Or none.
    pub parents: Slice,
    pub out: Slice,
    pub x_stride: i64,
    pub out_stride: i64,
    /// Elements from one slot's state to the next, at least `(W - 1) C`.
    pub state_stride: i64,
    pub channels: i64,
    pub num_seqs: i32,
    /// 2 to 8.
    pub width: i32,
    /// Tokens of a slot of the log.
    pub log_max: i32,
    pub x_dtype: Elements,
    pub out_dtype: Elements,
    pub silu: Switch,
    /// `Final` or `DeltaLog`.
    pub capture: Captured,
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
    log_max: i32,
    x_dtype: Elements,
    out_dtype: Elements,
    silu: Switch,
    capture: Captured,
    present: u32,
}

impl Launcher {
    /// Settles kept inputs, convolves the windows, logs their inputs or moves the states on.
    ///
    /// # Errors
    /// [`crate::MetalError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn causal_conv1d_update(&self, encoder: EncoderHandle, params: &ConvUpdateParams) -> Result<()> {
        let sizes = [("channels", params.channels), ("num_seqs", params.num_seqs.into())];
        check_sizes(OP, 0, &sizes)?;
        let buffers = [
            params.x,
            params.weight,
            params.bias,
            params.state,
            params.log,
            params.log_slots,
            params.cu_seqlens,
            params.state_indices,
            params.num_pending,
            params.pending_path,
            params.parents,
            params.out,
        ];
        let call = Call {
            op: OP,
            kernel: Kernel::CausalConv1dUpdate,
            buffers: &buffers,
            params_slot: 12,
            threadgroups: [(params.channels as u64).div_ceil(128), params.num_seqs as u64, 1],
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
            log_max: params.log_max,
            x_dtype: params.x_dtype,
            out_dtype: params.out_dtype,
            silu: params.silu,
            capture: params.capture,
            present: present(&buffers),
        };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch(encoder, call, &words) }
    }
}

pub(crate) fn run(backend: &MetalBackend, args: CausalConv1dUpdateArgs<'_>) -> Result<()> {
    let driver = backend.driver();
    let x = Input::upload(driver, &args.x)?;
    let weight = DeviceBuffer::from_slice(driver, args.weight)?;
    let bias = DeviceBuffer::from_slice(driver, args.bias.unwrap_or(&[]))?;
    let state = DeviceBuffer::from_slice(driver, args.state)?;
    let log_max = args.log.as_ref().map_or(0, |log| log.max_tokens);
    let mut log_data = args.log.map(|log| log.x);
    let log = DeviceBuffer::from_slice(driver, log_data.as_deref().unwrap_or(&[]))?;
    let cu_seqlens = DeviceBuffer::from_slice(driver, args.cu_seqlens)?;
    let state_indices = DeviceBuffer::from_slice(driver, args.state_indices)?;
    let num_pending = DeviceBuffer::from_slice(driver, args.num_pending)?;
    let pending_path = DeviceBuffer::from_slice(driver, args.pending_path)?;
    let parents = DeviceBuffer::from_slice(driver, args.parents)?;
    let out_stride = args.out.row_stride as i64;
    let out = Output::upload(driver, args.out.data)?;
    let (x, x_stride, x_dtype) = (x.tensor().0, x.tensor().1, x.tensor().2);
    let params = ConvUpdateParams {
        x,
        weight: weight.slice(),
        bias: bias.slice(),
        state: state.slice(),
        log: log.slice(),
        log_slots: Slice::NONE,
        cu_seqlens: cu_seqlens.slice(),
        state_indices: state_indices.slice(),
        num_pending: num_pending.slice(),
        pending_path: pending_path.slice(),
        parents: parents.slice(),
        out: out.slice(),
        x_stride,
        out_stride,
        state_stride: args.dims.state_len() as i64,
        channels: args.dims.channels() as i64,
        num_seqs: args.state_indices.len() as i32,
        width: args.dims.width() as i32,
        log_max: log_max as i32,
        x_dtype,
        out_dtype: out.dtype().into(),
        silu: (args.activation == Activation::Silu).into(),
        capture: args.capture.into(),
    };
    // SAFETY: the buffers were made from checked arguments and live until the work is done.
    backend.run(|launcher, encoder| unsafe { launcher.causal_conv1d_update(encoder, &params) })?;
    state.read(0, args.state)?;
    if let (Capture::DeltaLog, Some(data)) = (args.capture, &mut log_data) {
        log.read(0, data)?;
    }
    out.download()
}
