//! `fused_gdn_gating`.

use undraft_core::ops::FusedGdnGatingArgs;

use crate::backend::CudaBackend;
use crate::device::Input;
use crate::driver::DeviceBuffer;
use crate::error::Result;
use crate::raw::{CUstream, DevicePtr, Elements, Grid, Launcher};
use crate::select::Kernel;

/// Parameters of the launch; shapes in [`undraft_core::ops::FusedGdnGatingArgs`].
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct GatingParams {
    pub a: DevicePtr,
    pub b: DevicePtr,
    pub a_log: DevicePtr,
    pub dt_bias: DevicePtr,
    pub g: DevicePtr,
    pub beta: DevicePtr,
    pub a_stride: i64,
    pub b_stride: i64,
    pub num_tokens: i64,
    pub num_v_heads: i32,
    /// Decays of a value head: 1, or `K`.
    pub decay_dim: i32,
    pub a_dtype: Elements,
    pub b_dtype: Elements,
}

impl Launcher {
    /// `g` and `beta` of every token.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn fused_gdn_gating(&self, stream: CUstream, params: &GatingParams) -> Result<()> {
        let decays = params.num_v_heads.max(0) as u64 * params.decay_dim.max(0) as u64;
        let elements = params.num_tokens.max(0) as u64 * decays;
        let grid = Grid { blocks: (elements.div_ceil(128), 1), threads: 128, shared: 0 };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch("fused_gdn_gating", Kernel::FusedGdnGating, grid, stream, params) }
    }
}

pub(crate) fn run(backend: &CudaBackend, args: FusedGdnGatingArgs<'_>) -> Result<()> {
    let stream = backend.stream();
    let (a, b) = (Input::upload(stream, &args.a)?, Input::upload(stream, &args.b)?);
    let a_log = DeviceBuffer::from_slice(stream, args.a_log)?;
    let dt_bias = DeviceBuffer::from_slice(stream, args.dt_bias)?;
    let (g, beta) = (DeviceBuffer::from_slice(stream, args.g)?, DeviceBuffer::from_slice(stream, args.beta)?);
    let params = GatingParams {
        a: a.address(),
        b: b.address(),
        a_log: a_log.address(),
        dt_bias: dt_bias.address(),
        g: g.address(),
        beta: beta.address(),
        a_stride: args.a.row_stride as i64,
        b_stride: args.b.row_stride as i64,
        num_tokens: args.num_tokens as i64,
        num_v_heads: args.num_v_heads as i32,
        decay_dim: args.decay_dim as i32,
        a_dtype: args.a.dtype().into(),
        b_dtype: args.b.dtype().into(),
    };
    // SAFETY: the buffers were made from checked arguments and live until the results are back.
    unsafe { backend.launcher().fused_gdn_gating(stream.handle(), &params)? };
    g.read(stream, 0, args.g)?;
    beta.read(stream, 0, args.beta)?;
    Ok(())
}
