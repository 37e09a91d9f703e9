//! The memory of one layer on the CPU.

use undraft_core::ops::{CausalConv1dUpdateArgs, CommitStatesArgs, ConvLogMut};
use undraft_core::{Activation, Capture, ConvDims, DType, DeltaLogMut, HeadMap, Rows, RowsMut};

use super::states::{StateBuffer, zeros};
use super::{LayerDims, MemoryPerSlot};
use crate::Device;
use crate::error::Result;

/// States, logs and what is pending of every slot. Sizes were checked when it was made.
#[derive(Debug)]
pub(crate) struct LayerStorage {
    pub(crate) dims: LayerDims,
    pub(crate) conv: ConvDims,
    /// `[num_slots, HV, V, K]`.
    pub(crate) recurrent: StateBuffer,
    /// `[num_slots, W - 1, C]`.
    pub(crate) conv_state: Vec<f32>,
    /// `[num_slots, max_window, H, K]`; empty without a delta log.
    pub(crate) log_k: Vec<f32>,
    /// `[num_slots, max_window, HV]`, or `[num_slots, max_window, HV, K]` with a decay per channel.
    pub(crate) log_decay: Vec<f32>,
    /// `[num_slots, max_window, HV, V]`.
    pub(crate) log_delta: Vec<f32>,
    /// `[num_slots, max_window, C]`.
    pub(crate) conv_log: Vec<f32>,
    /// `[num_seqs, max_window, HV, V, K]` of the round, `PerToken` only.
    pub(crate) captured: StateBuffer,
    /// Kept tokens of each slot's log that are not in its states yet, `[num_slots]`: recurrent and convolution.
    pub(crate) pending: Vec<[u32; 2]>,
    /// `[W, C]`, for convolution calls without tokens.
    zero_weight: Vec<f32>,
    /// Head map of the calls that wrote the log.
    pub(crate) head_map: HeadMap,
}

impl LayerStorage {
    pub(crate) fn new(
        dims: LayerDims,
        num_slots: usize,
        max_window: usize,
        capture: Capture,
        state_dtype: DType,
    ) -> Result<Self> {
        let gdn = dims.gdn;
        let conv = ConvDims::new(gdn.conv_dim(), dims.conv_width)?;
        // Without a delta log nothing of the recurrence is pending; the convolution's log is kept in either case.
        let log_tokens = if capture == Capture::DeltaLog { max_window } else { 0 };
        Ok(Self {
            dims,
            conv,
            recurrent: StateBuffer::zeros("recurrent states", state_dtype, &[num_slots, gdn.state_len()])?,
            conv_state: zeros("convolution states", 0.0, &[num_slots, conv.state_len()])?,
            log_k: zeros("the delta log", 0.0, &[num_slots, log_tokens, gdn.key_dim()])?,
            log_decay: zeros("the delta log", 0.0, &[num_slots, log_tokens, gdn.decay_len()])?,
            log_delta: zeros("the delta log", 0.0, &[num_slots, log_tokens, gdn.value_dim()])?,
            conv_log: zeros("the convolution log", 0.0, &[num_slots, max_window, conv.channels()])?,
            captured: StateBuffer::zeros("captured states", state_dtype, &[0])?,
            zero_weight: zeros("a convolution weight", 0.0, &[conv.width(), conv.channels()])?,
            pending: vec![[0; 2]; num_slots],
            head_map: HeadMap::Grouped,
        })
    }

    pub(crate) fn add_memory(&self, max_window: usize, capture: Capture, to: &mut MemoryPerSlot) {
        let gdn = &self.dims.gdn;
        let state = self.recurrent.dtype().size() * gdn.state_len();
        to.recurrent_state += state;
        to.conv_state += 4 * self.conv.state_len();
        to.conv_log += 4 * max_window * self.conv.channels();
        match capture {
            Capture::PerToken => to.captured_states += max_window * state,
            _ => to.delta_log += 4 * max_window * gdn.log_len(),
        }
    }

    /// Room for the captured states of `num_seqs` sequences; kept once made.
    pub(crate) fn reserve_captured(&mut self, num_seqs: usize, max_window: usize) -> Result<()> {
        let factors = [num_seqs, max_window, self.dims.gdn.state_len()];
        let len = factors.iter().fold(1usize, |n, &f| n.saturating_mul(f));
        if self.captured.len() < len {
            self.captured = StateBuffer::zeros("captured states", self.recurrent.dtype(), &factors)?;
        }
        Ok(())
    }

    /// Elements of a slot in `recurrent`.
    pub(crate) fn recurrent_range(&self, slot: usize) -> std::ops::Range<usize> {
        let n = self.dims.gdn.state_len();
        slot * n..(slot + 1) * n
    }
    pub(crate) fn conv_mut(&mut self, slot: usize) -> &mut [f32] {
        let n = self.conv.state_len();
        &mut self.conv_state[slot * n..(slot + 1) * n]
    }

    pub(crate) fn clear_slot(&mut self, slot: usize) {
        self.recurrent.clear(self.recurrent_range(slot));
        self.conv_mut(slot).fill(0.0);
        self.pending[slot] = [0; 2];
    }

    pub(crate) fn copy_slot(&mut self, from: usize, to: usize) {
        let num_slots = self.pending.len();
        self.recurrent.copy_within(self.recurrent_range(from), self.recurrent_range(to).start);
        for buffer in
            [&mut self.conv_state, &mut self.log_k, &mut self.log_decay, &mut self.log_delta, &mut self.conv_log]
        {
            let n = buffer.len() / num_slots;
            buffer.copy_within(from * n..(from + 1) * n, to * n);
        }
        self.pending[to] = self.pending[from];
    }

    /// Replays what is pending on a slot: the log entries of `path`, `[max_window]`.
    pub(crate) fn settle(&mut self, device: &Device, slot: usize, path: &[u32]) -> Result<()> {
        let max_window = path.len();
        let [recurrent, conv] = self.pending[slot];
        let num_slots = self.pending.len();
        let state_indices = [slot as i32];
        if recurrent > 0 {
            let args = CommitStatesArgs {
                dims: self.dims.gdn,
                head_map: self.head_map,
                num_slots,
                state: self.recurrent.all_mut(),
                log: DeltaLogMut {
                    k: &mut self.log_k,
                    decay: &mut self.log_decay,
                    delta: &mut self.log_delta,
                    max_tokens: max_window,
                },
                state_indices: &state_indices,
                num_kept: &[recurrent],
                path,
            };
            device.backend().commit_states(args.check()?)?;
            self.pending[slot][0] = 0;
        }
        if conv > 0 {
            // A window of no tokens only moves the pending inputs into the state.
            let args = CausalConv1dUpdateArgs {
                dims: self.conv,
                x: Rows::new(&[] as &[f32], self.conv.channels()),
                weight: &self.zero_weight,
                bias: None,
                activation: Activation::None,
                cu_seqlens: &[0, 0],
                state_indices: &state_indices,
                num_slots,
                state: &mut self.conv_state,
                log: Some(ConvLogMut { x: &mut self.conv_log, max_tokens: max_window }),
                num_pending: &[conv],
                pending_path: path,
                parents: &[],
                capture: Capture::DeltaLog,
                out: RowsMut::new(&mut [] as &mut [f32], self.conv.channels()),
            };
            device.backend().causal_conv1d_update(args.check()?)?;
            self.pending[slot][1] = 0;
        }
        Ok(())
    }
}
