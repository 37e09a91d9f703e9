//! One round of speculation: verify every layer, then say how many tokens stay.

use undraft_core::ops::{
    CausalConv1dFnArgs, CausalConv1dUpdateArgs, ChunkGatedDeltaRuleArgs, ConvLogMut, DeltaRuleInputs,
    FusedRecurrentArgs,
};
use undraft_core::{Beta, Capture, CaptureMut, Decay, DeltaLogMut, Rows, RowsMut};

use crate::error::{Error, Result};
use crate::layer::GdnLayer;
use crate::pool::{LayerDims, LayerStorage, Slot, StatePool, Status, path};

/// What a layer reads in a round; N tokens of all windows, sequence by sequence.
#[derive(Clone, Copy, Debug)]
pub struct LayerInputs<'a> {
    /// Parameters.
    pub layer: &'a GdnLayer,
    /// `[N, C]`, the joined q, k, v projections before the convolution; f32, bf16 or f16.
    pub mixed_qkv: Rows<'a>,
    /// `[N, HV]`, the decay's gate projection; `[N, HV, K]` with a decay per channel.
    pub a: &'a [f32],
    /// `[N, HV]`, the logit of beta.
    pub b: &'a [f32],
}

/// How a round runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Can be taken back, with the pool's capture.
    Verify(Capture),
    /// Keeps all tokens, token by token.
    Final,
    /// Keeps all tokens, in the matrix form.
    Prefill,
}

impl Default for Mode {
    fn default() -> Self {
        Mode::Verify(Capture::DeltaLog)
    }
}

impl Mode {
    pub(crate) fn capture(self) -> Capture {
        match self {
            Mode::Verify(capture) => capture,
            Mode::Final | Mode::Prefill => Capture::Final,
        }
    }
}

/// Slots, windows and progress of a round.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) slots: Vec<Slot>,
    state_indices: Vec<i32>,
    cu_seqlens: Vec<i32>,
    verified: Vec<bool>,
    num_pending: [Vec<u32>; 2],
    /// `[num_tokens]`, or empty where every window is a chain.
    parents: Vec<i32>,
    /// `[num_seqs, max_window]`.
    paths: Vec<u32>,
    mode: Mode,
}

impl Plan {
    pub(crate) fn set(&mut self, slots: &[Slot], windows: &[usize], parents: &[&[i32]], mode: Mode, num_layers: usize) {
        self.parents.clear();
        parents.iter().for_each(|parents| self.parents.extend_from_slice(parents));
        self.slots.clear();
        self.slots.extend_from_slice(slots);
        self.state_indices.clear();
        self.state_indices.extend(slots.iter().map(|s| s.state_index()));
        self.cu_seqlens.clear();
        self.cu_seqlens.push(0);
        let mut end = 0;
        self.cu_seqlens.extend(windows.iter().map(|&n| {
            end += n as i32;
            end
        }));
        self.verified.clear();
        self.verified.resize(num_layers, false);
        self.mode = mode;
    }
    /// Gathers the slots' paths.
    pub(crate) fn set_paths(&mut self, paths: &[u32], max_window: usize) {
        self.paths.clear();
        for slot in &self.state_indices {
            match usize::try_from(*slot) {
                Ok(slot) => self.paths.extend_from_slice(path(paths, max_window, slot)),
                Err(_) => self.paths.resize(self.paths.len() + max_window, 0),
            }
        }
    }
    /// Position of the parent of token `i` of a window, -1 for the committed state.
    fn parent(&self, seq: usize, i: usize) -> i32 {
        match self.parents.get(self.cu_seqlens[seq] as usize + i) {
            Some(&parent) => parent,
            None => i as i32 - 1,
        }
    }
    pub(crate) fn num_layers(&self) -> usize {
        self.verified.len()
    }
    fn window(&self, seq: usize) -> usize {
        (self.cu_seqlens[seq + 1] - self.cu_seqlens[seq]) as usize
    }
    fn num_tokens(&self) -> usize {
        self.cu_seqlens[self.cu_seqlens.len() - 1] as usize
    }
}

/// An undecided window on some slots of a pool.
///
/// [`Round::verify`] every layer, then [`Round::commit`]. Dropping the round rolls it back: every slot is as it was
/// before [`StatePool::begin`]. While it is undecided the borrow checker keeps the pool from other use; a server that
/// overlaps rounds [detaches](Round::detach) them.
#[derive(Debug)]
#[must_use = "a round that is dropped is rolled back"]
pub struct Round<'p> {
    pool: &'p mut StatePool,
    plan: Option<Plan>,
    id: u64,
    /// Whether a kernel that moves states on, for good, has been called.
    is_moved: bool,
}

/// A round that does not borrow its pool; its slots stay busy until it is resumed.
///
/// If it is dropped instead, its slots stay busy; [`StatePool::reset`] frees them from it.
#[derive(Debug)]
#[must_use = "resume it, or its slots stay busy"]
pub struct DetachedRound {
    plan: Plan,
    id: u64,
    is_moved: bool,
}

impl DetachedRound {
    /// Takes the pool up again.
    ///
    /// # Errors
    /// [`Error::ForeignRound`] if its slots are not in this round.
    pub(crate) fn attach(self, pool: &mut StatePool) -> Result<Round<'_>> {
        let Self { plan, id, is_moved } = self;
        if !pool.slots.is_open(&plan.slots, id) || plan.num_layers() != pool.layers.len() {
            return Err(Error::ForeignRound);
        }
        Ok(Round { pool, plan: Some(plan), id, is_moved })
    }
}

impl<'p> Round<'p> {
    pub(crate) fn new(pool: &'p mut StatePool, plan: Plan, id: u64) -> Self {
        Self { pool, plan: Some(plan), id, is_moved: false }
    }

    /// Tokens of all windows.
    pub fn num_tokens(&self) -> usize {
        self.plan.as_ref().map_or(0, Plan::num_tokens)
    }

    /// Runs the convolution, the gates and the recurrence of one layer over the windows.
    ///
    /// | name | shape | direction |
    /// | --- | --- | --- |
    /// | `inputs` | see [`LayerInputs`] | in |
    /// | `out` | `[N, HV, V]`, f32, bf16 or f16 | out |
    ///
    /// # Errors
    /// [`Error::Layer`], [`Error::VerifiedTwice`], [`Error::LayerDims`], or [`Error::Op`] naming a wrong buffer; the
    /// round is then as it was before the call.
    pub fn verify(&mut self, layer: usize, inputs: LayerInputs<'_>, mut out: RowsMut<'_>) -> Result<()> {
        let Self { pool, plan: Some(plan), is_moved, .. } = self else { return Err(Error::ForeignRound) };
        let StatePool { device, layers, conv_out, max_window, .. } = &mut **pool;
        let num_layers = layers.len();
        let storage = layers.get_mut(layer).ok_or(Error::Layer { got: layer, num_layers })?;
        if plan.verified[layer] {
            return Err(Error::VerifiedTwice { layer });
        }
        let got = LayerDims { gdn: inputs.layer.dims, conv_width: inputs.layer.conv.width() };
        got.check_same(layer, &storage.dims)?;
        for (which, list) in plan.num_pending.iter_mut().enumerate() {
            list.clear();
            list.extend(plan.state_indices.iter().map(|&s| match usize::try_from(s) {
                Ok(slot) => storage.pending[slot][which],
                Err(_) => 0,
            }));
        }
        let channels = storage.conv.channels();
        let num_tokens = plan.num_tokens();
        if conv_out.len() < num_tokens * channels {
            let len = num_tokens * channels;
            let refused = |_| Error::OutOfMemory { bytes: 4 * len, what: "the convolution's outputs" };
            conv_out.try_reserve_exact(len - conv_out.len()).map_err(refused)?;
            conv_out.resize(len, 0.0);
        }

        // Both argument sets are checked before either kernel runs, so that an error leaves everything as it was.
        let mut call = Call { storage, plan, max_window: *max_window, inputs: &inputs };
        call.recurrent(conv_out, out.reborrow()).check()?;
        if plan.mode == Mode::Prefill {
            for (seq, &slot) in plan.state_indices.iter().enumerate() {
                if let Ok(slot) = usize::try_from(slot) {
                    call.storage.settle(device, slot, path(&plan.paths, *max_window, seq))?;
                }
            }
            let conv = call.conv_fn(conv_out).check()?;
            *is_moved = true;
            device.backend().causal_conv1d_fn(conv)?;
            device.backend().chunk_gated_delta_rule(call.chunk(conv_out, out).check()?)?;
        } else {
            let conv = call.conv(conv_out).check()?;
            *is_moved = plan.mode == Mode::Final;
            device.backend().causal_conv1d_update(conv)?;
            device.backend().fused_recurrent_gated_delta_rule(call.recurrent(conv_out, out).check()?)?;
        }

        storage.head_map = inputs.layer.head_map;
        for &slot in &plan.state_indices {
            if let Ok(slot) = usize::try_from(slot) {
                // The kernels have replayed what was pending.
                storage.pending[slot] = [0; 2];
            }
        }
        plan.verified[layer] = true;
        Ok(())
    }

    /// Keeps the first `num_kept[s]` tokens of each window, 0..=T, in all layers; 0 leaves a slot as it was.
    ///
    /// Nothing is computed here with the delta log: the next round's kernels replay the kept tokens while they load the
    /// states. In a draft tree the first tokens must follow one another; see [`Round::commit_path`].
    ///
    /// # Errors
    /// [`Error::Entries`], [`Error::NumKept`], [`Error::NotAPath`], [`Error::FinalKeepsAll`] or [`Error::NotVerified`]; the
    /// round is then rolled back.
    pub fn commit(self, num_kept: &[usize]) -> Result<()> {
        self.decide("num_kept", num_kept, |_, i| i)
    }

    /// Keeps a path through each draft tree: positions in the window, each the parent of the next, from a token that
    /// follows the committed state on; an empty path leaves a slot as it was.
    ///
    /// # Errors
    /// As [`Round::commit`].
    pub fn commit_path(self, paths: &[&[usize]]) -> Result<()> {
        let num_kept: Vec<usize> = paths.iter().map(|path| path.len()).collect();
        self.decide("paths", &num_kept, |seq, i| paths[seq][i])
    }

    /// Keeps `num_kept[s]` tokens of each window: those at `kept(s, 0..num_kept[s])`.
    fn decide(mut self, arg: &'static str, num_kept: &[usize], kept: impl Fn(usize, usize) -> usize) -> Result<()> {
        let Some(plan) = &self.plan else { return Err(Error::ForeignRound) };
        if num_kept.len() != plan.slots.len() {
            return Err(Error::Entries { arg, expected: plan.slots.len(), got: num_kept.len() });
        }
        for (seq, &got) in num_kept.iter().enumerate() {
            let num_tokens = plan.window(seq);
            if got > num_tokens {
                return Err(Error::NumKept { seq, got, num_tokens });
            }
            if plan.mode.capture() == Capture::Final && got != num_tokens {
                return Err(Error::FinalKeepsAll { seq, got, num_tokens });
            }
            let mut before = -1;
            for position in 0..got {
                let token = kept(seq, position);
                if token >= num_tokens || plan.parent(seq, token) != before {
                    return Err(Error::NotAPath { arg, seq, position, got: token, before, num_tokens });
                }
                before = token as i32;
            }
        }
        if plan.num_tokens() > 0
            && let Some(layer) = plan.verified.iter().position(|&v| !v)
        {
            return Err(Error::NotVerified { layer });
        }
        let Some(plan) = self.plan.take() else { return Err(Error::ForeignRound) };
        let StatePool { layers, max_window, slots, spare, paths, .. } = &mut *self.pool;
        if plan.num_tokens() > 0 && plan.mode.capture() != Capture::Final {
            for (seq, &num_kept) in num_kept.iter().enumerate() {
                let Ok(slot) = usize::try_from(plan.state_indices[seq]) else { continue };
                let path = &mut paths[slot * *max_window..(slot + 1) * *max_window];
                path.iter_mut().take(num_kept).enumerate().for_each(|(i, entry)| *entry = kept(seq, i) as u32);
                for layer in &mut *layers {
                    keep(layer, &plan, seq, slot, path, num_kept)?;
                }
            }
        }
        slots.close_round(&plan.slots, self.id, Status::Idle);
        *spare = Some(plan);
        Ok(())
    }

    /// Keeps nothing; the same as dropping the round.
    pub fn rollback(self) {}

    /// Lets go of the pool without deciding the round: other slots may be used meanwhile.
    ///
    /// # Errors
    /// [`Error::CannotDetach`] for `PerToken`, whose states lie in memory that rounds share; the round is then rolled back.
    pub fn detach(mut self) -> Result<DetachedRound> {
        match self.plan.take() {
            Some(plan) if plan.mode.capture() != Capture::PerToken => {
                Ok(DetachedRound { plan, id: self.id, is_moved: self.is_moved })
            }
            Some(plan) => {
                let capture = plan.mode.capture();
                self.plan = Some(plan);
                Err(Error::CannotDetach { capture })
            }
            None => Err(Error::ForeignRound),
        }
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        // Nothing to undo: windows never touch the committed state. A `Final` round does.
        if let Some(plan) = self.plan.take() {
            let status = if self.is_moved { Status::Torn } else { Status::Idle };
            self.pool.slots.close_round(&plan.slots, self.id, status);
            self.pool.spare = Some(plan);
        }
    }
}

/// Notes (or, with captured states, copies) what stays of a sequence in one layer.
fn keep(layer: &mut LayerStorage, plan: &Plan, seq: usize, slot: usize, path: &[u32], num_kept: usize) -> Result<()> {
    let mut recurrent = num_kept as u32;
    if plan.mode.capture() == Capture::PerToken {
        if let Some(&last) = path[..num_kept].last() {
            let len = layer.dims.gdn.state_len();
            let from = (seq * path.len() + last as usize) * len;
            let to = layer.recurrent_range(slot);
            if !layer.recurrent.copy_from(to, &layer.captured, from..from + len) {
                let (got, expected) = (layer.captured.dtype(), layer.recurrent.dtype());
                return Err(
                    undraft_core::Error::DType { arg: "captured states", got, of_arg: "state", expected }.into()
                );
            }
        }
        recurrent = 0;
    }
    layer.pending[slot] = [recurrent, num_kept as u32];
    Ok(())
}

/// One layer's two kernel calls.
struct Call<'a> {
    storage: &'a mut LayerStorage,
    plan: &'a Plan,
    max_window: usize,
    inputs: &'a LayerInputs<'a>,
}

impl Call<'_> {
    fn conv<'c>(&'c mut self, out: &'c mut [f32]) -> CausalConv1dUpdateArgs<'c> {
        let layer = self.inputs.layer;
        let (plan, storage) = (self.plan, &mut *self.storage);
        let channels = storage.conv.channels();
        let final_capture = plan.mode.capture() == Capture::Final;
        CausalConv1dUpdateArgs {
            dims: storage.conv,
            x: self.inputs.mixed_qkv,
            weight: &layer.conv_weight,
            bias: layer.conv_bias.as_deref(),
            activation: layer.activation,
            cu_seqlens: &plan.cu_seqlens,
            state_indices: &plan.state_indices,
            num_slots: storage.pending.len(),
            state: &mut storage.conv_state,
            log: Some(ConvLogMut { x: &mut storage.conv_log, max_tokens: self.max_window }),
            num_pending: &plan.num_pending[1],
            pending_path: &plan.paths,
            parents: &plan.parents,
            capture: if final_capture { Capture::Final } else { Capture::DeltaLog },
            out: RowsMut::new(&mut out[..plan.num_tokens() * channels], channels),
        }
    }

    fn conv_fn<'c>(&'c mut self, out: &'c mut [f32]) -> CausalConv1dFnArgs<'c> {
        let layer = self.inputs.layer;
        let (plan, storage) = (self.plan, &mut *self.storage);
        let channels = storage.conv.channels();
        CausalConv1dFnArgs {
            dims: storage.conv,
            x: self.inputs.mixed_qkv,
            weight: &layer.conv_weight,
            bias: layer.conv_bias.as_deref(),
            activation: layer.activation,
            cu_seqlens: &plan.cu_seqlens,
            state_indices: &plan.state_indices,
            num_slots: storage.pending.len(),
            state: &mut storage.conv_state,
            out: RowsMut::new(&mut out[..plan.num_tokens() * channels], channels),
        }
    }

    fn chunk<'c>(&'c mut self, conv_out: &'c [f32], out: RowsMut<'c>) -> ChunkGatedDeltaRuleArgs<'c> {
        let inputs = self.delta_rule(conv_out);
        let storage = &mut *self.storage;
        let num_slots = storage.pending.len();
        ChunkGatedDeltaRuleArgs { inputs, num_slots, state: storage.recurrent.all_mut(), checkpoints: None, out }
    }

    /// What the recurrence and the matrix form read.
    fn delta_rule<'c>(&self, conv_out: &'c [f32]) -> DeltaRuleInputs<'c>
    where
        Self: 'c,
    {
        let layer = self.inputs.layer;
        let plan = self.plan;
        let dims = self.storage.dims.gdn;
        let channels = self.storage.conv.channels();
        let conv_out = &conv_out[..plan.num_tokens() * channels];
        let part = |offset: usize| Rows::new(&conv_out[offset.min(conv_out.len())..], channels);
        DeltaRuleInputs {
            dims,
            q: part(0),
            k: part(dims.key_dim()),
            v: part(2 * dims.key_dim()),
            decay: Decay::Gate { a: self.inputs.a, a_log: &layer.a_log, dt_bias: &layer.dt_bias },
            beta: Beta::Logit(self.inputs.b),
            scale: layer.scale,
            head_map: layer.head_map,
            qk_norm: layer.qk_norm,
            rounding: layer.rounding,
            cu_seqlens: &plan.cu_seqlens,
            state_indices: &plan.state_indices,
            parents: &plan.parents,
        }
    }

    fn recurrent<'c>(&'c mut self, conv_out: &'c [f32], out: RowsMut<'c>) -> FusedRecurrentArgs<'c> {
        let inputs = self.delta_rule(conv_out);
        let (plan, storage) = (self.plan, &mut *self.storage);
        let dims = storage.dims.gdn;
        let with_log = !storage.log_k.is_empty();
        let captured = plan.slots.len() * self.max_window * dims.state_len();
        FusedRecurrentArgs {
            inputs,
            num_slots: storage.pending.len(),
            state: storage.recurrent.all_mut(),
            log: with_log.then_some(DeltaLogMut {
                k: &mut storage.log_k,
                decay: &mut storage.log_decay,
                delta: &mut storage.log_delta,
                max_tokens: self.max_window,
            }),
            num_pending: &plan.num_pending[0],
            pending_path: if with_log { &plan.paths } else { &[] },
            capture: match plan.mode.capture() {
                Capture::Final => CaptureMut::Final,
                Capture::DeltaLog => CaptureMut::DeltaLog,
                Capture::PerToken => {
                    CaptureMut::PerToken { states: storage.captured.data_mut(0..captured), max_tokens: self.max_window }
                }
            },
            out,
        }
    }
}
