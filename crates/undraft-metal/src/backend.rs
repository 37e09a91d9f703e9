//! The back end over host memory: what it is given is copied to the device, and what comes out copied back.

use std::sync::Arc;

use undraft_core::ops::{
    CausalConv1dFnArgs, CausalConv1dUpdateArgs, ChunkGatedDeltaRuleArgs, CommitStatesArgs, FusedGdnGatingArgs,
    FusedRecurrentArgs, RmsNormGatedArgs,
};
use undraft_core::{Backend, Caps, Capture, Checked, DType, DecayShape, Error, MAX_HEAD_DIM, Op};

use crate::driver::{Commands, Driver, EncoderHandle};
use crate::error::Result;
use crate::ops;
use crate::raw::Launcher;

pub(crate) const NAME: &str = "metal";

/// All but the matrix form.
const OPS: [Op; 6] = [
    Op::FusedGdnGating,
    Op::CausalConv1dUpdate,
    Op::CausalConv1dFn,
    Op::FusedRecurrentGatedDeltaRule,
    Op::CommitStates,
    Op::RmsNormGated,
];

/// The Metal back end: one device.
pub struct MetalBackend {
    launcher: Launcher,
    caps: Caps,
}

impl MetalBackend {
    /// Opens the system's default device.
    ///
    /// # Errors
    /// [`crate::MetalError::NotApple`] on other systems, [`crate::MetalError::NoDevice`] without a device.
    pub fn new() -> Result<Self> {
        #[cfg(target_vendor = "apple")]
        return Ok(Self::with_driver(Arc::new(crate::driver::MetalDriver::open()?)));
        #[cfg(not(target_vendor = "apple"))]
        return Err(crate::error::MetalError::NotApple);
    }

    /// The same on a driver that is open already.
    pub fn with_driver(driver: Arc<dyn Driver>) -> Self {
        let caps = Caps {
            backend: NAME,
            ops: &OPS,
            io: &[DType::F32, DType::Bf16, DType::F16],
            captures: &[Capture::DeltaLog, Capture::PerToken, Capture::Final],
            max_head_dim: MAX_HEAD_DIM,
            states: &[DType::F32, DType::Bf16, DType::F16],
            decay_shapes: &[DecayShape::PerHead, DecayShape::PerChannel],
            trees: true,
            keeps_subnormals: true,
        };
        Self { launcher: Launcher::new(driver), caps }
    }

    /// Launches into encoders of the caller's.
    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }
    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        self.launcher.driver()
    }

    /// Encodes, submits and waits.
    pub(crate) fn run(&self, encode: impl FnOnce(&Launcher, EncoderHandle) -> Result<()>) -> Result<()> {
        let commands = Commands::begin(self.driver())?;
        encode(&self.launcher, commands.encoder())?;
        commands.finish()
    }
}

impl std::fmt::Debug for MetalBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetalBackend").field("name", &self.driver().attributes().name).finish()
    }
}

impl Backend for MetalBackend {
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
    fn chunk_gated_delta_rule(&self, _args: Checked<ChunkGatedDeltaRuleArgs<'_>>) -> Result<(), Error> {
        Err(Error::Unsupported {
            backend: NAME,
            what: "`chunk_gated_delta_rule`".into(),
            hint: "use `fused_recurrent_gated_delta_rule` with capture `Final`",
        })
    }
    fn commit_states(&self, args: Checked<CommitStatesArgs<'_>>) -> Result<(), Error> {
        Ok(ops::commit_states::run(self, args.into_inner())?)
    }
    fn rms_norm_gated(&self, args: Checked<RmsNormGatedArgs<'_>>) -> Result<(), Error> {
        Ok(ops::rms_norm_gated::run(self, args.into_inner())?)
    }
}
