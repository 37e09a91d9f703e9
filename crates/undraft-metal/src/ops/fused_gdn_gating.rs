//! `fused_gdn_gating`.

use undraft_core::ops::FusedGdnGatingArgs;

use crate::backend::MetalBackend;
use crate::driver::DeviceBuffer;
use crate::error::Result;
use crate::host::Input;
use crate::raw::{Call, Elements, EncoderHandle, Launcher, Slice, check_sizes};
use crate::select::Kernel;

const OP: &str = "fused_gdn_gating";

/// Parameters of the launch; shapes in [`undraft_core::ops::FusedGdnGatingArgs`].
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct GatingParams {
    pub a: Slice,
    pub b: Slice,
    pub a_log: Slice,
    pub dt_bias: Slice,
    pub g: Slice,
    pub beta: Slice,
    pub a_stride: i64,
    pub b_stride: i64,
    pub num_tokens: i64,
    pub num_v_heads: i32,
    /// 1, or `K` with a decay per channel.
    pub decay_dim: i32,
    pub a_dtype: Elements,
    pub b_dtype: Elements,
}

/// As in the kernel's source.
#[repr(C)]
struct Words {
    a_stride: i64,
    b_stride: i64,
    num_v_heads: i32,
    decay_dim: i32,
    a_dtype: Elements,
    b_dtype: Elements,
}

impl Launcher {
    /// Log decay and beta of every token.
    ///
    /// # Errors
    /// [`crate::MetalError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn fused_gdn_gating(&self, encoder: EncoderHandle, params: &GatingParams) -> Result<()> {
        let &GatingParams { a, b, a_log, dt_bias, g, beta, num_tokens, num_v_heads, decay_dim, .. } = params;
        check_sizes(OP, 0, &[("num_tokens", num_tokens)])?;
        check_sizes(OP, 1, &[("num_v_heads", num_v_heads.into()), ("decay_dim", decay_dim.into())])?;
        let call = Call {
            op: OP,
            kernel: Kernel::FusedGdnGating,
            buffers: &[a, b, a_log, dt_bias, g, beta],
            params_slot: 6,
            threadgroups: [(num_v_heads as u64 * decay_dim as u64).div_ceil(128), num_tokens as u64, 1],
            threads: [128, 1, 1],
            threadgroup_bytes: 0,
        };
        let words = Words {
            a_stride: params.a_stride,
            b_stride: params.b_stride,
            num_v_heads,
            decay_dim,
            a_dtype: params.a_dtype,
            b_dtype: params.b_dtype,
        };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch(encoder, call, &words) }
    }
}

pub(crate) fn run(backend: &MetalBackend, args: FusedGdnGatingArgs<'_>) -> Result<()> {
    let driver = backend.driver();
    let (a, b) = (Input::upload(driver, &args.a)?, Input::upload(driver, &args.b)?);
    let a_log = DeviceBuffer::from_slice(driver, args.a_log)?;
    let dt_bias = DeviceBuffer::from_slice(driver, args.dt_bias)?;
    let g = DeviceBuffer::from_slice(driver, args.g)?;
    let beta = DeviceBuffer::from_slice(driver, args.beta)?;
    let mut params = GatingParams {
        a_log: a_log.slice(),
        dt_bias: dt_bias.slice(),
        g: g.slice(),
        beta: beta.slice(),
        num_tokens: args.num_tokens as i64,
        num_v_heads: args.num_v_heads as i32,
        decay_dim: args.decay_dim as i32,
        ..GatingParams::default()
    };
    (params.a, params.a_stride, params.a_dtype) = a.tensor();
    (params.b, params.b_stride, params.b_dtype) = b.tensor();
    // SAFETY: the buffers were made from checked arguments and live until the work is done.
    backend.run(|launcher, encoder| unsafe { launcher.fused_gdn_gating(encoder, &params) })?;
    g.read(0, args.g)?;
    beta.read(0, args.beta)
}
