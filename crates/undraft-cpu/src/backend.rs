//! The back end: an instruction set, an executor and the kernels.

use std::sync::{Arc, Mutex};

use undraft_core::ops::{
    CausalConv1dFnArgs, CausalConv1dUpdateArgs, ChunkGatedDeltaRuleArgs, CommitStatesArgs, FusedGdnGatingArgs,
    FusedRecurrentArgs, RmsNormGatedArgs,
};
use undraft_core::{Backend, Caps, Capture, Checked, DType, DecayShape, MAX_HEAD_DIM, Op, Result};

use crate::executor::{Executor, Serial};
use crate::kernels::{self, Workspace};
use crate::simd::{Isa, Token};

/// The CPU back end. Cloning is cheap; clones share the executor and have scratch memory of their own.
///
/// Scratch memory grows to the largest call and stays, so that decode and verify allocate nothing once warm.
pub struct CpuBackend {
    token: Token,
    executor: Arc<dyn Executor>,
    workspace: Mutex<Workspace>,
    caps: Caps,
}

impl CpuBackend {
    /// The best instruction set of this machine, one thread.
    pub fn new() -> Self {
        Self::with_isa(Isa::best()).unwrap_or_else(|_| Self::from_token(scalar()))
    }

    /// The given instruction set, one thread.
    ///
    /// # Errors
    /// [`undraft_core::Error::Unsupported`] if this machine does not have it.
    pub fn with_isa(isa: Isa) -> Result<Self> {
        Token::new(isa).map(Self::from_token)
    }

    fn from_token(token: Token) -> Self {
        let backend = match token.isa() {
            Isa::Scalar => "cpu-scalar",
            Isa::Avx2 => "cpu-avx2",
            Isa::Avx512 => "cpu-avx512",
            Isa::Neon => "cpu-neon",
        };
        let caps = Caps {
            backend,
            ops: &Op::ALL,
            io: &[DType::F32, DType::Bf16, DType::F16],
            captures: &[Capture::DeltaLog, Capture::PerToken, Capture::Final],
            max_head_dim: MAX_HEAD_DIM,
            states: &[DType::F32, DType::Bf16, DType::F16],
            decay_shapes: &[DecayShape::PerHead, DecayShape::PerChannel],
            trees: true,
            keeps_subnormals: true,
        };
        Self { token, executor: Arc::new(Serial), workspace: Mutex::default(), caps }
    }

    /// The same with another executor.
    pub fn with_executor(mut self, executor: Arc<dyn Executor>) -> Self {
        self.executor = executor;
        self
    }
    /// Instruction set.
    pub fn isa(&self) -> Isa {
        self.token.isa()
    }
    /// Proof of the instruction set, for code that adds kernels of its own.
    pub fn token(&self) -> Token {
        self.token
    }
    /// Executor.
    pub fn executor(&self) -> &Arc<dyn Executor> {
        &self.executor
    }

    /// Runs `f` with the kept scratch memory, or with fresh one while another call uses it.
    fn with_workspace(&self, f: impl FnOnce(&mut Workspace)) {
        match self.workspace.try_lock() {
            Ok(mut workspace) => f(&mut workspace),
            Err(_) => f(&mut Workspace::default()),
        }
    }
}

fn scalar() -> Token {
    match fearless_simd::Level::fallback() {
        fearless_simd::Level::Fallback(token) => Token::Scalar(token),
        #[allow(unreachable_patterns)]
        _ => unreachable!("fearless_simd is built with `force_support_fallback`"),
    }
}

impl Default for CpuBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for CpuBackend {
    fn clone(&self) -> Self {
        Self::from_token(self.token).with_executor(self.executor.clone())
    }
}

impl std::fmt::Debug for CpuBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuBackend")
            .field("isa", &self.isa())
            .field("num_threads", &self.executor.num_threads())
            .finish()
    }
}

impl Backend for CpuBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn fused_gdn_gating(&self, args: Checked<FusedGdnGatingArgs<'_>>) -> Result<()> {
        kernels::fused_gdn_gating(&*self.executor, args);
        Ok(())
    }
    fn causal_conv1d_update(&self, args: Checked<CausalConv1dUpdateArgs<'_>>) -> Result<()> {
        kernels::causal_conv1d_update(self.token, &*self.executor, args);
        Ok(())
    }
    fn causal_conv1d_fn(&self, args: Checked<CausalConv1dFnArgs<'_>>) -> Result<()> {
        kernels::causal_conv1d_fn(self.token, &*self.executor, args);
        Ok(())
    }
    fn fused_recurrent_gated_delta_rule(&self, args: Checked<FusedRecurrentArgs<'_>>) -> Result<()> {
        self.with_workspace(|ws| kernels::fused_recurrent_gated_delta_rule(self.token, &*self.executor, ws, args));
        Ok(())
    }
    fn chunk_gated_delta_rule(&self, args: Checked<ChunkGatedDeltaRuleArgs<'_>>) -> Result<()> {
        self.with_workspace(|ws| kernels::chunk_gated_delta_rule(self.token, &*self.executor, ws, args));
        Ok(())
    }
    fn commit_states(&self, args: Checked<CommitStatesArgs<'_>>) -> Result<()> {
        self.with_workspace(|ws| kernels::commit_states(self.token, &*self.executor, ws, args));
        Ok(())
    }
    fn rms_norm_gated(&self, args: Checked<RmsNormGatedArgs<'_>>) -> Result<()> {
        kernels::rms_norm_gated(self.token, &*self.executor, args);
        Ok(())
    }
}
