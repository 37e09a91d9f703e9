//! undraft's recurrence under ggml's conventions.

use anyhow::Result;
use undraft::cpu::{AlignedBuffer, CpuBackend};
use undraft::ops::{CommitStatesArgs, DeltaRuleInputs, FusedRecurrentArgs};
use undraft::{Backend, Beta, CaptureMut, Decay, DeltaLogMut, GdnDims, HeadMap, QkNorm, Rounding, Rows, RowsMut};

use crate::tokens::{Sizes, Tokens};

/// Delta logs of all slots.
pub struct Log {
    k: AlignedBuffer,
    decay: AlignedBuffer,
    delta: AlignedBuffer,
    max_tokens: usize,
}

impl Log {
    /// Logs that hold `max_tokens` tokens a slot, as tokens without effect on a state.
    pub fn new(dims: &GdnDims, num_slots: usize, max_tokens: usize) -> Result<Self> {
        let n = num_slots * max_tokens;
        let mut decay = AlignedBuffer::zeroed(n * dims.decay_len())?;
        decay.fill(1.0);
        let (k, delta) = (AlignedBuffer::zeroed(n * dims.key_dim())?, AlignedBuffer::zeroed(n * dims.value_dim())?);
        Ok(Self { k, decay, delta, max_tokens })
    }

    fn as_mut(&mut self) -> DeltaLogMut<'_> {
        let Self { k, decay, delta, max_tokens } = self;
        DeltaLogMut { k, decay, delta, max_tokens: *max_tokens }
    }
}

/// A window of one sequence, in slot `slot` of `state`, `[num_slots, HV, V, K]`.
pub struct Window<'a> {
    pub sizes: Sizes,
    pub tokens: &'a Tokens,
    pub head_map: HeadMap,
    pub state: &'a mut [f32],
    pub slot: usize,
    /// `[num_tokens, HV, V]`.
    pub out: &'a mut [f32],
}

impl Window<'_> {
    /// Runs the window and overwrites the state.
    pub fn advance(self, backend: &CpuBackend) -> Result<()> {
        self.run(backend, None, 0)
    }

    /// Replays the slot's first `num_pending` log entries into its state, then runs the window and logs it.
    pub fn verify(self, backend: &CpuBackend, log: &mut Log, num_pending: u32) -> Result<()> {
        self.run(backend, Some(log), num_pending)
    }

    fn run(self, backend: &CpuBackend, mut log: Option<&mut Log>, num_pending: u32) -> Result<()> {
        let Self { sizes: Sizes { dims, num_tokens }, tokens, head_map, state, slot, out } = self;
        let num_slots = state.len() / dims.state_len();
        let inputs = DeltaRuleInputs {
            dims,
            q: Rows::new(&tokens.q[..], dims.key_dim()),
            k: Rows::new(&tokens.k[..], dims.key_dim()),
            v: Rows::new(&tokens.v[..], dims.value_dim()),
            decay: Decay::Log(&tokens.g),
            beta: Beta::Value(&tokens.beta),
            scale: DeltaRuleInputs::default_scale(&dims),
            head_map,
            qk_norm: QkNorm::AsGiven,
            rounding: Rounding::F32,
            cu_seqlens: &[0, i32::try_from(num_tokens)?],
            state_indices: &[i32::try_from(slot)?],
            parents: &[],
        };
        let capture = if log.is_some() { CaptureMut::DeltaLog } else { CaptureMut::Final };
        let args = FusedRecurrentArgs {
            inputs,
            num_slots,
            state: state.into(),
            log: log.as_mut().map(|log| log.as_mut()),
            num_pending: &[num_pending],
            pending_path: &[],
            capture,
            out: RowsMut::new(out, dims.value_dim()),
        };
        Ok(backend.fused_recurrent_gated_delta_rule(args.check()?)?)
    }
}

/// Replays the first `num_kept` entries of a log of one slot into its state.
pub fn commit(backend: &CpuBackend, dims: GdnDims, state: &mut [f32], log: &mut Log, num_kept: u32) -> Result<()> {
    let args = CommitStatesArgs {
        dims,
        head_map: HeadMap::Tiled,
        num_slots: 1,
        state: state.into(),
        log: log.as_mut(),
        state_indices: &[0],
        num_kept: &[num_kept],
        path: &[],
    };
    Ok(backend.commit_states(args.check()?)?)
}
