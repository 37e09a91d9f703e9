//! The back end over host memory: what it is given is copied to the device, and what comes out copied back.

use undraft_core::ops::{
    CausalConv1dFnArgs, CausalConv1dUpdateArgs, ChunkGatedDeltaRuleArgs, CommitStatesArgs, FusedGdnGatingArgs,
    FusedRecurrentArgs, RmsNormGatedArgs,
};
use undraft_core::{Backend, Caps, Capture, Checked, DType, DecayShape, Error, MAX_HEAD_DIM, Op};

use crate::device::{Device, DeviceOptions};
use crate::error::Result;
use crate::ops;

pub(crate) const NAME: &str = "wgpu";

/// Operations that there are kernels for.
const OPS: &[Op] = &[
    Op::FusedGdnGating,
    Op::CausalConv1dUpdate,
    Op::CausalConv1dFn,
    Op::FusedRecurrentGatedDeltaRule,
    Op::CommitStates,
    Op::RmsNormGated,
];

/// The wgpu back end: one device.
#[derive(Debug)]
pub struct WgpuBackend {
    device: Device,
    caps: Caps,
}

impl WgpuBackend {
    /// Opens the adapter of a number; see [`crate::adapters`].
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn new(ordinal: usize) -> Result<Self> {
        Ok(Self::with_device(Device::open(ordinal)?))
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn with_options(ordinal: usize, options: &DeviceOptions) -> Result<Self> {
        Ok(Self::with_device(Device::open_with(ordinal, options)?))
    }

    /// On a device that is open already.
    pub fn with_device(device: Device) -> Self {
        let caps = Caps {
            backend: NAME,
            ops: OPS,
            io: &[DType::F32, DType::Bf16, DType::F16],
            captures: &[Capture::DeltaLog, Capture::PerToken, Capture::Final],
            max_head_dim: MAX_HEAD_DIM,
            states: &[DType::F32, DType::Bf16, DType::F16],
            decay_shapes: &[DecayShape::PerHead, DecayShape::PerChannel],
            trees: true,
            keeps_subnormals: device.facts().keeps_subnormals,
        };
        Self { device, caps }
    }

    /// The device, for dispatches on the caller's buffers.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn refused(&self, op: Op) -> Result<(), Error> {
        let hint = "run this operation on the cpu back end";
        Err(Error::Unsupported { backend: NAME, what: format!("`{}`", op.name()), hint })
    }
}

impl Backend for WgpuBackend {
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
    fn chunk_gated_delta_rule(&self, _: Checked<ChunkGatedDeltaRuleArgs<'_>>) -> Result<(), Error> {
        self.refused(Op::ChunkGatedDeltaRule)
    }
    fn commit_states(&self, args: Checked<CommitStatesArgs<'_>>) -> Result<(), Error> {
        Ok(ops::commit_states::run(self, args.into_inner())?)
    }
    fn rms_norm_gated(&self, args: Checked<RmsNormGatedArgs<'_>>) -> Result<(), Error> {
        Ok(ops::rms_norm_gated::run(self, args.into_inner())?)
    }
}
