//! The back end over host memory: what it is given is copied to the device, and what comes out copied back.

use std::sync::Arc;

use undraft_core::ops::{
    CausalConv1dFnArgs, CausalConv1dUpdateArgs, ChunkGatedDeltaRuleArgs, CommitStatesArgs, FusedGdnGatingArgs,
    FusedRecurrentArgs, RmsNormGatedArgs,
};
use undraft_core::{Backend, Caps, Capture, Checked, DType, DecayShape, Error, MAX_HEAD_DIM, Op};

use crate::driver::{CudaDriver, DeviceAttributes, Driver, Stream};
use crate::error::Result;
use crate::ops;
use crate::raw::Launcher;

pub(crate) const NAME: &str = "cuda";

/// The CUDA back end: one device and a stream of its own.
pub struct CudaBackend {
    launcher: Launcher,
    stream: Stream,
    caps: Caps,
}

impl CudaBackend {
    /// Opens the device and loads the kernels.
    ///
    /// # Errors
    /// [`crate::CudaError::NoDriver`] on a machine without the driver, [`crate::CudaError::NoDevice`] without such a device,
    /// [`crate::CudaError::ComputeCapability`] if it is too old, [`crate::CudaError::Driver`] if the driver fails.
    pub fn new(ordinal: usize) -> Result<Self> {
        Self::with_driver(Arc::new(CudaDriver::open(ordinal)?))
    }

    /// The same on a driver that is open already.
    ///
    /// # Errors
    /// [`crate::CudaError::ComputeCapability`] if the device is too old; or if the driver fails or lacks a kernel.
    pub fn with_driver(driver: Arc<dyn Driver>) -> Result<Self> {
        let launcher = Launcher::new(driver)?;
        let stream = Stream::new(launcher.driver())?;
        let caps = Caps {
            backend: NAME,
            ops: &Op::ALL,
            io: &[DType::F32, DType::Bf16, DType::F16],
            captures: &[Capture::DeltaLog, Capture::PerToken, Capture::Final],
            max_head_dim: MAX_HEAD_DIM,
            states: &[DType::F32, DType::Bf16, DType::F16],
            decay_shapes: &[DecayShape::PerHead, DecayShape::PerChannel],
            trees: true,
            keeps_subnormals: true,
        };
        Ok(Self { launcher, stream, caps })
    }

    /// Launches on pointers and streams of the caller's.
    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }
    /// The stream on which the operations over host memory run.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl std::fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DeviceAttributes { ordinal, name, num_sms, .. } = self.launcher.device.attributes();
        f.debug_struct("CudaBackend").field("ordinal", ordinal).field("name", name).field("num_sms", num_sms).finish()
    }
}

impl Backend for CudaBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn fused_gdn_gating(&self, args: Checked<FusedGdnGatingArgs<'_>>) -> Result<(), Error> {
        Ok(ops::fused_gdn_gating::run(self, args.into_inner())?)
    }
    fn causal_conv1d_update(&self, args: Checked<CausalConv1dUpdateArgs<'_>>) -> Result<(), Error> {
        Ok(ops::causal_conv1d_update::run(self, args.into_inner())?)
    }
    fn causal_conv1d_fn(&self, args: Checked<CausalConv1dFnArgs<'_>>) -> Result<(), Error> {
        Ok(ops::causal_conv1d_fn::run(self, args.into_inner())?)
    }
    fn fused_recurrent_gated_delta_rule(&self, args: Checked<FusedRecurrentArgs<'_>>) -> Result<(), Error> {
        Ok(ops::fused_recurrent_gated_delta_rule::run(self, args.into_inner())?)
    }
    fn chunk_gated_delta_rule(&self, args: Checked<ChunkGatedDeltaRuleArgs<'_>>) -> Result<(), Error> {
        Ok(ops::chunk_gated_delta_rule::run(self, args.into_inner())?)
    }
    fn commit_states(&self, args: Checked<CommitStatesArgs<'_>>) -> Result<(), Error> {
        Ok(ops::commit_states::run(self, args.into_inner())?)
    }
    fn rms_norm_gated(&self, args: Checked<RmsNormGatedArgs<'_>>) -> Result<(), Error> {
        Ok(ops::rms_norm_gated::run(self, args.into_inner())?)
    }
}
