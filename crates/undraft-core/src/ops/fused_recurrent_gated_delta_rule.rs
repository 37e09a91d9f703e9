//! The recurrence, token by token: decode, verify and exact prefill.

use super::Checked;
use super::causal_conv1d_update::check_window;
use crate::capture::{Capture, CaptureMut, DeltaLogMut, check_path};
use crate::conventions::{Beta, Decay, DecayShape, HeadMap, QkNorm, Rounding};
use crate::dims::GdnDims;
use crate::error::{Error, Result, check_len};
use crate::rows::{DataMut, Rows, RowsMut};
use crate::seqlens::{CuSeqlens, StateIndices, check_parents, is_chain};

/// What the recurrent and the chunked form read.
///
/// | name | shape | dtype |
/// | --- | --- | --- |
/// | `q`, `k` | `[num_tokens, H, K]`, heads contiguous in a row | f32, bf16, f16 |
/// | `v` | `[num_tokens, HV, V]`, heads contiguous in a row | f32, bf16, f16 |
/// | `decay` | `[num_tokens, HV]`, with [`DecayShape::PerChannel`] `[num_tokens, HV, K]` | f32 |
/// | `beta` | `[num_tokens, HV]` | f32 |
/// | `cu_seqlens` | `[num_seqs + 1]` | i32 |
/// | `state_indices` | `[num_seqs]`, -1 = padding | i32 |
/// | `parents` | `[num_tokens]` or empty | i32 |
#[derive(Clone, Copy, Debug)]
pub struct DeltaRuleInputs<'a> {
    /// Sizes.
    pub dims: GdnDims,
    /// Queries.
    pub q: Rows<'a>,
    /// Keys.
    pub k: Rows<'a>,
    /// Values.
    pub v: Rows<'a>,
    /// Decay of the state.
    pub decay: Decay<'a>,
    /// Strength of the update.
    pub beta: Beta<'a>,
    /// Factor on the output; [`DeltaRuleInputs::default_scale`] is `K^-0.5`.
    pub scale: f32,
    /// Which key head a value head reads.
    pub head_map: HeadMap,
    /// Whether q and k are normalised in the operation.
    pub qk_norm: QkNorm,
    /// Rounding of beta, q and k.
    pub rounding: Rounding,
    /// Sequences.
    pub cu_seqlens: &'a [i32],
    /// Slots.
    pub state_indices: &'a [i32],
    /// Draft trees: the token, by its position in the sequence's window, that a token follows; -1 = the committed state.
    /// Parents come before their children. Empty: every window is a chain.
    pub parents: &'a [i32],
}

impl DeltaRuleInputs<'_> {
    /// `head_k_dim^-0.5`.
    pub fn default_scale(dims: &GdnDims) -> f32 {
        (1.0 / (dims.head_k_dim() as f64).sqrt()) as f32
    }

    /// Checks all but the state and the output; gives the sequences.
    pub(super) fn check(&self, num_slots: usize) -> Result<CuSeqlens<'_>> {
        let seqs = CuSeqlens::new(self.cu_seqlens)?;
        StateIndices::new(self.state_indices, seqs.num_seqs(), num_slots)?;
        let n = seqs.num_tokens();
        self.q.check("q", n, self.dims.key_dim())?;
        self.k.check("k", n, self.dims.key_dim())?;
        self.v.check("v", n, self.dims.value_dim())?;
        let hv = ("num_v_heads", self.dims.num_v_heads());
        let per_head = [("num_tokens", n), hv];
        let per_channel = [("num_tokens", n), hv, ("head_k_dim", self.dims.head_k_dim())];
        let of_decay = match self.dims.decay_shape() {
            DecayShape::PerHead => &per_channel[..2],
            DecayShape::PerChannel => &per_channel,
        };
        match self.decay {
            Decay::Log(g) | Decay::Linear(g) | Decay::NegLog(g) => check_len("decay", g.len(), of_decay)?,
            Decay::Gate { a, a_log, dt_bias } => {
                check_len("a", a.len(), of_decay)?;
                check_len("A_log", a_log.len(), &[hv])?;
                check_len("dt_bias", dt_bias.len(), &of_decay[1..])?;
            }
        }
        check_parents(self.parents, &seqs)?;
        match self.beta {
            Beta::Value(b) | Beta::Logit(b) => check_len("beta", b.len(), &per_head)?,
        }
        if !self.scale.is_finite() {
            return Err(Error::Number { arg: "scale", got: self.scale, expected: "a finite number" });
        }
        if let QkNorm::L2Norm { eps } = self.qk_norm
            && !(eps.is_finite() && eps >= 0.0)
        {
            return Err(Error::Number { arg: "eps", got: eps, expected: "a finite number, at least 0" });
        }
        Ok(seqs)
    }
}

/// Arguments of `fused_recurrent_gated_delta_rule`.
///
/// | name | shape | dtype | direction |
/// | --- | --- | --- | --- |
/// | `state` | `[num_slots, HV, V, K]` | f32, bf16, f16 | in, out |
/// | `log` | see [`DeltaLogMut`] | f32 | in, out |
/// | `num_pending` | `[num_seqs]` or empty | u32 | in |
/// | `pending_path` | `[num_seqs, log.max_tokens]` or empty | u32 | in |
/// | `out` | `[num_tokens, HV, V]` | f32, bf16, f16 | out |
///
/// Per value head and row `i` of V (design: the recurrence), in this order and with these roundings:
///
/// ```text
/// S[i][j] = S[i][j] * decay
/// p       = sum_j S[i][j] * k[j]
/// delta   = (v[i] - p) * beta
/// S[i][j] = fma(delta, k[j], S[i][j])
/// o[i]    = scale * sum_j S[i][j] * q[j]
/// S[i][j] = round(S[i][j])                  with a 16-bit state alone
/// ```
///
/// The arithmetic is f32 with every dtype of the state. A 16-bit state is rounded to nearest even after every token, in
/// every mode; numbers beyond its range become infinities (and then NaN), nothing saturates.
///
/// First the `num_pending[s]` oldest entries of the slot's log, or those that `pending_path` lists, are replayed into the
/// state (the kept tokens of the window before) and the state is stored; then the window runs, and `capture` says what
/// it leaves. In a draft tree each token starts from the state after its parent.
#[derive(Debug)]
pub struct FusedRecurrentArgs<'a> {
    /// What is read.
    pub inputs: DeltaRuleInputs<'a>,
    /// Number of slots in `state`.
    pub num_slots: usize,
    /// States.
    pub state: DataMut<'a>,
    /// Log; needed with [`CaptureMut::DeltaLog`] and where `num_pending` is not zero.
    pub log: Option<DeltaLogMut<'a>>,
    /// Kept tokens of the window before that are not in the state yet.
    pub num_pending: &'a [u32],
    /// Which log entries those are, rising; empty: the first ones.
    pub pending_path: &'a [u32],
    /// What the window leaves.
    pub capture: CaptureMut<'a>,
    /// Outputs.
    pub out: RowsMut<'a>,
}

impl<'a> FusedRecurrentArgs<'a> {
    /// Checks shapes, sequences, slots and capacities.
    ///
    /// Facts for kernels: every sequence's tokens lie in q, k, v, decay, beta and out; every slot lies in `state` and
    /// `log` and stands once; windows, `num_pending` and `pending_path` fit the log or the captured states where they use
    /// them; parents lie before their children; trees have a capture that keeps the state.
    ///
    /// # Errors
    /// [`Error`] naming the argument; nothing was touched.
    pub fn check(self) -> Result<Checked<Self>> {
        let dims = self.inputs.dims;
        let seqs = self.inputs.check(self.num_slots)?;
        self.out.check("out", seqs.num_tokens(), dims.value_dim())?;
        check_states("state", self.state.len(), &[("num_slots", self.num_slots)], &dims)?;
        if let Some(log) = &self.log {
            log.check(&dims, self.num_slots)?;
        }
        let kind = match &self.capture {
            CaptureMut::Final => Capture::Final,
            CaptureMut::DeltaLog => Capture::DeltaLog,
            CaptureMut::PerToken { states, max_tokens } => {
                let outer = [("num_seqs", seqs.num_seqs()), ("max_tokens", *max_tokens)];
                check_states("capture.states", states.len(), &outer, &dims)?;
                if states.dtype() != self.state.dtype() {
                    return Err(Error::DType {
                        arg: "capture.states",
                        got: states.dtype(),
                        of_arg: "state",
                        expected: self.state.dtype(),
                    });
                }
                for seq in 0..seqs.num_seqs() {
                    let got = seqs.range(seq).len();
                    if self.inputs.state_indices[seq] != crate::PAD_SLOT && got > *max_tokens {
                        return Err(Error::OverCapacity { arg: "windows", seq, got, capacity: *max_tokens });
                    }
                }
                Capture::PerToken
            }
        };
        let capacity = self.log.as_ref().map(|l| l.max_tokens);
        check_window(&seqs, self.inputs.state_indices, self.num_pending, kind, capacity)?;
        let max_tokens = capacity.unwrap_or(0);
        check_path("pending_path", self.pending_path, self.inputs.state_indices, self.num_pending, max_tokens)?;
        check_tree(&seqs, self.inputs.parents, kind)?;
        Ok(Checked::new(self))
    }
}

/// A draft tree needs the state before it for as long as it is undecided.
pub(super) fn check_tree(seqs: &CuSeqlens<'_>, parents: &[i32], capture: Capture) -> Result<()> {
    let chain = |seq| is_chain(&parents[seqs.range(seq)]);
    if capture == Capture::Final && !parents.is_empty() && !(0..seqs.num_seqs()).all(chain) {
        return Err(Error::Unsupported {
            backend: "any",
            what: "a draft tree with capture `Final`".into(),
            hint: "use `DeltaLog`, which keeps the state until a path is chosen",
        });
    }
    Ok(())
}

/// `[outer.., HV, V, K]`.
pub(super) fn check_states(
    arg: &'static str,
    got: usize,
    outer: &[(&'static str, usize)],
    dims: &GdnDims,
) -> Result<()> {
    // On the stack: this runs in every layer of every decoded token.
    let mut shape = [("", 0); 5];
    let (first, rest) = shape.split_at_mut(outer.len());
    first.copy_from_slice(outer);
    rest[..3].copy_from_slice(&[
        ("num_v_heads", dims.num_v_heads()),
        ("head_v_dim", dims.head_v_dim()),
        ("head_k_dim", dims.head_k_dim()),
    ]);
    check_len(arg, got, &shape[..outer.len() + 3])
}
