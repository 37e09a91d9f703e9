//! One round of speculation: verify every layer, then say how many tokens stay.

use undraft_core::ops::{CausalConv1dUpdateArgs, ConvLogMut, DeltaRuleInputs, FusedRecurrentArgs};
use undraft_core::{Beta, Capture, CaptureMut, Decay, DeltaLogMut, Rows, RowsMut};

use crate::error::{Error, Result};
use crate::layer::GdnLayer;
use crate::pool::{LayerStorage, Slot, StatePool, Status};

/// What a layer reads in a round; N tokens of all windows, sequence by sequence.
#[derive(Clone, Copy, Debug)]
pub struct LayerInputs<'a> {
    /// Parameters.
    pub layer: &'a GdnLayer,
    /// `[N, C]`, the joined q, k, v projections before the convolution; f32, bf16 or f16.
    pub mixed_qkv: Rows<'a>,
    /// `[N, HV]`, the decay's gate projection.
    pub a: &'a [f32],
    /// `[N, HV]`, the logit of beta.
    pub b: &'a [f32],
}

/// Slots, windows and progress of a round.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) slots: Vec<Slot>,
    state_indices: Vec<i32>,
    cu_seqlens: Vec<i32>,
    verified: Vec<bool>,
    num_pending: [Vec<u32>; 2],
    capture: Capture,
}

impl Plan {
    pub(crate) fn set(&mut self, slots: &[Slot], windows: &[usize], capture: Capture, num_layers: usize) {
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
        self.capture = capture;
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
}

/// A round that does not borrow its pool; its slots stay busy until it is resumed.
///
/// If it is dropped instead, its slots stay busy; [`StatePool::reset`] frees them from it.
#[derive(Debug)]
#[must_use = "resume it, or its slots stay busy"]
pub struct DetachedRound {
    plan: Plan,
    id: u64,
}

impl DetachedRound {
    pub(crate) fn into_parts(self) -> (Plan, u64) {
        (self.plan, self.id)
    }
}

impl<'p> Round<'p> {
    pub(crate) fn new(pool: &'p mut StatePool, plan: Plan, id: u64) -> Self {
        Self { pool, plan: Some(plan), id }
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
        let Self { pool, plan: Some(plan), .. } = self else { return Err(Error::ForeignRound) };
        let StatePool { device, layers, conv_out, max_window, .. } = &mut **pool;
        let num_layers = layers.len();
        let storage = layers.get_mut(layer).ok_or(Error::Layer { got: layer, num_layers })?;
        if plan.verified[layer] {
            return Err(Error::VerifiedTwice { layer });
        }
        check_dims(layer, inputs.layer, storage)?;
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
        Call { storage, plan, max_window: *max_window, inputs: &inputs }.recurrent(conv_out, out.reborrow()).check()?;
        let mut call = Call { storage, plan, max_window: *max_window, inputs: &inputs };
        device.backend().causal_conv1d_update(call.conv(conv_out).check()?)?;
        device.backend().fused_recurrent_gated_delta_rule(call.recurrent(conv_out, out).check()?)?;

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
    /// states.
    ///
    /// # Errors
    /// [`Error::Entries`], [`Error::NumKept`], [`Error::FinalKeepsAll`] or [`Error::NotVerified`]; the round is then
    /// rolled back.
    pub fn commit(mut self, num_kept: &[usize]) -> Result<()> {
        let Some(plan) = &self.plan else { return Err(Error::ForeignRound) };
        if num_kept.len() != plan.slots.len() {
            return Err(Error::Entries { arg: "num_kept", expected: plan.slots.len(), got: num_kept.len() });
        }
        for (seq, &got) in num_kept.iter().enumerate() {
            let num_tokens = plan.window(seq);
            if got > num_tokens {
                return Err(Error::NumKept { seq, got, num_tokens });
            }
            if plan.capture == Capture::Final && got != num_tokens {
                return Err(Error::FinalKeepsAll { seq, got, num_tokens });
            }
        }
        if plan.num_tokens() > 0
            && let Some(layer) = plan.verified.iter().position(|&v| !v)
        {
            return Err(Error::NotVerified { layer });
        }
        let Some(plan) = self.plan.take() else { return Err(Error::ForeignRound) };
        let StatePool { layers, max_window, slots, spare, .. } = &mut *self.pool;
        if plan.num_tokens() > 0 && plan.capture != Capture::Final {
            for layer in layers {
                keep(layer, &plan, num_kept, *max_window);
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
    /// [`Error::CannotDetach`] for captures that use memory of the round; the round is then rolled back.
    pub fn detach(mut self) -> Result<DetachedRound> {
        match self.plan.take() {
            Some(plan) if plan.capture == Capture::DeltaLog => Ok(DetachedRound { plan, id: self.id }),
            Some(plan) => {
                let capture = plan.capture;
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
            let torn = plan.capture == Capture::Final && plan.verified.contains(&true);
            let status = if torn { Status::Torn } else { Status::Idle };
            self.pool.slots.close_round(&plan.slots, self.id, status);
            self.pool.spare = Some(plan);
        }
    }
}

/// Notes (or, with captured states, copies) what stays of a round in one layer.
fn keep(layer: &mut LayerStorage, plan: &Plan, num_kept: &[usize], max_window: usize) {
    let state_len = layer.dims.gdn.state_len();
    for (seq, &kept) in num_kept.iter().enumerate() {
        let Ok(slot) = usize::try_from(plan.state_indices[seq]) else { continue };
        let mut recurrent = kept as u32;
        if plan.capture == Capture::PerToken {
            if kept > 0 {
                let from = (seq * max_window + kept - 1) * state_len;
                let to = &mut layer.recurrent[slot * state_len..(slot + 1) * state_len];
                to.copy_from_slice(&layer.captured[from..from + state_len]);
            }
            recurrent = 0;
        }
        layer.pending[slot] = [recurrent, kept as u32];
    }
}

fn check_dims(layer: usize, got: &GdnLayer, storage: &LayerStorage) -> Result<()> {
    let pool = &storage.dims;
    let sizes = [
        ("num_k_heads", got.dims.num_k_heads(), pool.gdn.num_k_heads()),
        ("num_v_heads", got.dims.num_v_heads(), pool.gdn.num_v_heads()),
        ("head_k_dim", got.dims.head_k_dim(), pool.gdn.head_k_dim()),
        ("head_v_dim", got.dims.head_v_dim(), pool.gdn.head_v_dim()),
        ("conv_width", got.conv.width(), pool.conv_width),
    ];
    match sizes.into_iter().find(|(_, got, expected)| got != expected) {
        Some((what, got, expected)) => Err(Error::LayerDims { layer, what, got, expected }),
        None => Ok(()),
    }
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
        let final_capture = plan.capture == Capture::Final;
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
            pending_path: &[],
            parents: &[],
            capture: if final_capture { Capture::Final } else { Capture::DeltaLog },
            out: RowsMut::new(&mut out[..plan.num_tokens() * channels], channels),
        }
    }

    fn recurrent<'c>(&'c mut self, conv_out: &'c [f32], out: RowsMut<'c>) -> FusedRecurrentArgs<'c> {
        let layer = self.inputs.layer;
        let (plan, storage) = (self.plan, &mut *self.storage);
        let dims = storage.dims.gdn;
        let channels = storage.conv.channels();
        let conv_out = &conv_out[..plan.num_tokens() * channels];
        let part = |offset: usize| Rows::new(&conv_out[offset.min(conv_out.len())..], channels);
        let inputs = DeltaRuleInputs {
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
            parents: &[],
        };
        let with_log = !storage.log_k.is_empty();
        let captured = plan.slots.len() * self.max_window * dims.state_len();
        FusedRecurrentArgs {
            inputs,
            num_slots: storage.pending.len(),
            state: (&mut storage.recurrent[..]).into(),
            log: with_log.then_some(DeltaLogMut {
                k: &mut storage.log_k,
                decay: &mut storage.log_decay,
                delta: &mut storage.log_delta,
                max_tokens: self.max_window,
            }),
            num_pending: &plan.num_pending[0],
            pending_path: &[],
            capture: match plan.capture {
                Capture::Final => CaptureMut::Final,
                Capture::DeltaLog => CaptureMut::DeltaLog,
                Capture::PerToken => CaptureMut::PerToken {
                    states: (&mut storage.captured[..captured]).into(),
                    max_tokens: self.max_window,
                },
            },
            out,
        }
    }
}
