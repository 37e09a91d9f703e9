//! What the recurrence, its verify windows and its matrix form have in common: inputs, sizes, conventions.

use std::borrow::Cow;

use undraft::cuda::raw::{DecayForm, Elements};
use undraft::ops::DeltaRuleInputs;
use undraft::{Beta, DType, Decay, DecayShape, GdnDims, HeadMap, QkNorm, Rounding};

use super::{address, i32_of};
use crate::error::{Error, Result};
use crate::tensor::{Tensor, Tokens};

/// Inputs, states and outputs of a call, their sizes checked.
pub(super) struct DeltaRule {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pub(super) state: Tensor,
    pub(super) out: Tensor,
    cu_seqlens: Tensor,
    pub(super) state_indices: Tensor,
    a_log: Option<Tensor>,
    dt_bias: Option<Tensor>,
    tokens: [Tokens; 6],
    conventions: Conventions,
    pub(super) dims: GdnDims,
    pub(super) num_slots: usize,
    pub(super) num_seqs: usize,
}

struct Conventions {
    decay: DecayForm,
    beta_is_logit: bool,
    head_map: HeadMap,
    qk_norm: QkNorm,
    rounding: Rounding,
    scale: f32,
}

/// Inputs that the CPU takes in f32.
pub(super) struct HostGates<'a> {
    g: Cow<'a, [f32]>,
    beta: Cow<'a, [f32]>,
    a_log: &'a [f32],
    dt_bias: &'a [f32],
}

/// Makes a [`DeltaRule`] of a call's arguments, which have the same names in every operation.
macro_rules! delta_rule {
    ($args:ident) => {
        $crate::ops::delta_rule::DeltaRule::new(
            [&$args.q, &$args.k, &$args.v, &$args.g, &$args.beta, &$args.out],
            &$args.state,
            [&$args.cu_seqlens, &$args.state_indices],
            [&$args.A_log, &$args.dt_bias],
            [$args.decay, $args.beta_is_logit.into(), $args.head_map, $args.rounding],
            [$args.qk_l2norm_eps, $args.scale],
        )
    };
}
pub(super) use delta_rule;

pub(super) fn head_map(number: i64) -> Result<HeadMap> {
    match number {
        0 => Ok(HeadMap::Grouped),
        1 => Ok(HeadMap::Tiled),
        got => Err(Error::Number { arg: "head_map", got, expected: "0 (grouped) or 1 (tiled)" }),
    }
}

impl DeltaRule {
    pub(super) fn new(
        [q, k, v, g, beta, out]: [&Tensor; 6],
        state: &Tensor,
        [cu_seqlens, state_indices]: [&Tensor; 2],
        [a_log, dt_bias]: [&Option<Tensor>; 2],
        [decay, beta_is_logit, head_map_number, rounding]: [i64; 4],
        [eps, scale]: [f64; 2],
    ) -> Result<Self> {
        let decay = match decay {
            0 => DecayForm::Log,
            1 => DecayForm::Linear,
            2 => DecayForm::NegLog,
            3 => DecayForm::Gate,
            got => {
                let expected = "0 (log), 1 (linear), 2 (neg_log) or 3 (gate)";
                return Err(Error::Number { arg: "decay", got, expected });
            }
        };
        let rounding = match rounding {
            0 => Rounding::F32,
            1 => Rounding::Io,
            got => return Err(Error::Number { arg: "rounding", got, expected: "0 (f32) or 1 (io)" }),
        };
        let leading = match q.rank() {
            3 => 1,
            4 => 2,
            _ => {
                let expected = "[B, T, H, K], or [num_tokens, H, K] with `cu_seqlens`";
                return Err(Error::Rank { arg: "q", got: Box::new(q.shape), expected });
            }
        };
        if v.rank() != q.rank() {
            let expected = if leading == 2 { "[B, T, HV, V] as `q`" } else { "[num_tokens, HV, V] as `q`" };
            return Err(Error::Rank { arg: "v", got: Box::new(v.shape), expected });
        }
        let [h, key] = [("num_k_heads", q.size(leading)), ("head_k_dim", q.size(leading + 1))];
        let [hv, value] = [("num_v_heads", v.size(leading)), ("head_v_dim", v.size(leading + 1))];
        let outer = [("B", q.size(0)), ("T", q.size(1))];
        let outer = if leading == 2 { &outer[..] } else { &[("num_tokens", q.size(0))] };
        let shape = |inner: &[(&'static str, usize)]| [outer, inner].concat();
        let dims = GdnDims::new(h.1, hv.1, key.1, value.1)?;
        let per_channel = g.rank() == leading + 2;
        let dims = if per_channel { dims.with_decay_shape(DecayShape::PerChannel) } else { dims };

        k.check_shape(&shape(&[h, key]))?;
        v.check_shape(&shape(&[hv, value]))?;
        let of_decay = [hv, key];
        let of_decay = &of_decay[..if per_channel { 2 } else { 1 }];
        g.check_shape(&shape(of_decay))?;
        beta.check_shape(&shape(&[hv]))?;
        out.check_shape(&shape(&[hv, value]))?;
        for tensor in [q, k, v, g, beta, out] {
            tensor.float()?;
        }
        let num_slots = state.size(0);
        check_states(state, &[("num_slots", num_slots)], &dims)?;
        match decay {
            DecayForm::Gate => {
                let because = "with decay `gate`";
                let a_log = a_log.as_ref().ok_or(Error::Missing { arg: "A_log", because })?;
                let dt_bias = dt_bias.as_ref().ok_or(Error::Missing { arg: "dt_bias", because })?;
                a_log.check_shape(&[hv])?;
                dt_bias.check_shape(of_decay)?;
                for tensor in [a_log, dt_bias] {
                    tensor.check_f32()?;
                    tensor.check_contiguous()?;
                }
            }
            _ => {
                if let Some(tensor) = a_log.as_ref().or(dt_bias.as_ref()) {
                    return Err(Error::Unexpected { arg: tensor.arg, only: "with decay `gate`" });
                }
            }
        }
        let num_seqs = check_sequences(cu_seqlens, state_indices)?;
        let of = |tensor: &Tensor| tensor.tokens(leading);
        Ok(Self {
            tokens: [of(q)?, of(k)?, of(v)?, of(g)?, of(beta)?, of(out)?],
            q: *q,
            k: *k,
            v: *v,
            g: *g,
            beta: *beta,
            state: *state,
            out: *out,
            cu_seqlens: *cu_seqlens,
            state_indices: *state_indices,
            a_log: *a_log,
            dt_bias: *dt_bias,
            conventions: Conventions {
                decay,
                beta_is_logit: beta_is_logit != 0,
                head_map: head_map(head_map_number)?,
                qk_norm: if eps < 0.0 { QkNorm::AsGiven } else { QkNorm::L2Norm { eps: eps as f32 } },
                rounding,
                scale: scale as f32,
            },
            dims,
            num_slots,
            num_seqs,
        })
    }

    pub(super) fn num_tokens(&self) -> usize {
        self.tokens[0].num
    }
    pub(super) fn out_tokens(&self) -> &Tokens {
        &self.tokens[5]
    }

    /// Decay and beta in f32.
    ///
    /// # Safety
    /// The tensors lie in host memory, and nobody writes them for `'a`.
    pub(super) unsafe fn gates<'a>(&self) -> Result<HostGates<'a>> {
        // SAFETY: the caller's promise; the tokens are those of each tensor.
        unsafe {
            Ok(HostGates {
                g: self.g.f32_rows(&self.tokens[3])?,
                beta: self.beta.f32_rows(&self.tokens[4])?,
                a_log: self.a_log.map_or(Ok(&[][..]), |a_log| a_log.f32s())?,
                dt_bias: self.dt_bias.map_or(Ok(&[][..]), |dt_bias| dt_bias.f32s())?,
            })
        }
    }

    /// What the CPU back end reads.
    ///
    /// # Safety
    /// The tensors lie in host memory, and nobody writes them for `'a`.
    pub(super) unsafe fn inputs<'a>(
        &self,
        gates: &'a HostGates<'_>,
        parents: &'a [i32],
        max_window: usize,
    ) -> Result<DeltaRuleInputs<'a>> {
        let HostGates { g, beta, a_log, dt_bias } = gates;
        let decay = match self.conventions.decay {
            DecayForm::Log => Decay::Log(g),
            DecayForm::Linear => Decay::Linear(g),
            DecayForm::NegLog => Decay::NegLog(g),
            DecayForm::Gate => Decay::Gate { a: g, a_log, dt_bias },
        };
        // SAFETY: the caller's promise; the tokens are those of each tensor.
        let (q, k, v, cu_seqlens, state_indices) = unsafe {
            (
                self.q.rows(&self.tokens[0])?,
                self.k.rows(&self.tokens[1])?,
                self.v.rows(&self.tokens[2])?,
                self.cu_seqlens.i32s()?,
                self.state_indices.i32s()?,
            )
        };
        check_ends(cu_seqlens, "q", self.num_tokens(), max_window)?;
        Ok(DeltaRuleInputs {
            dims: self.dims,
            q,
            k,
            v,
            decay,
            beta: if self.conventions.beta_is_logit { Beta::Logit(beta) } else { Beta::Value(beta) },
            scale: self.conventions.scale,
            head_map: self.conventions.head_map,
            qk_norm: self.conventions.qk_norm,
            rounding: self.conventions.rounding,
            cu_seqlens,
            state_indices,
            parents,
        })
    }

    pub(super) fn head_map(&self) -> HeadMap {
        self.conventions.head_map
    }

    /// Elements from one slot's state to the next, as the CUDA kernels need them.
    pub(super) fn state_stride(&self) -> Result<i64> {
        slot_stride(&self.state, 0, &self.dims)
    }
    /// Element type of the states.
    pub(super) fn state_elements(&self) -> Result<Elements> {
        Ok(self.state.float()?.into())
    }
}

/// Fills the fields of a CUDA launch that are named alike in its forms, from a [`DeltaRule`].
macro_rules! set_params {
    ($params:ident, $rule:ident) => {
        $rule.set(&mut $crate::ops::delta_rule::Launched {
            addresses: [
                &mut $params.q,
                &mut $params.k,
                &mut $params.v,
                &mut $params.decay,
                &mut $params.beta,
                &mut $params.out,
                &mut $params.state,
                &mut $params.cu_seqlens,
                &mut $params.state_indices,
                &mut $params.a_log,
                &mut $params.dt_bias,
            ],
            strides: [
                &mut $params.q_stride,
                &mut $params.k_stride,
                &mut $params.v_stride,
                &mut $params.decay_stride,
                &mut $params.beta_stride,
                &mut $params.out_stride,
            ],
            elements: [
                &mut $params.q_dtype,
                &mut $params.k_dtype,
                &mut $params.v_dtype,
                &mut $params.decay_dtype,
                &mut $params.beta_dtype,
                &mut $params.out_dtype,
            ],
            switches: [&mut $params.beta_is_logit, &mut $params.tiled, &mut $params.round_io, &mut $params.l2_norm],
            decay_form: &mut $params.decay_form,
            state_stride: &mut $params.state_stride,
            numbers: [&mut $params.eps, &mut $params.scale],
        })?;
    };
}
pub(super) use set_params;

/// The fields of a launch's parameters that a [`DeltaRule`] fills.
pub(super) struct Launched<'a> {
    pub(super) addresses: [&'a mut u64; 11],
    pub(super) strides: [&'a mut i64; 6],
    pub(super) elements: [&'a mut Elements; 6],
    pub(super) switches: [&'a mut undraft::cuda::raw::Switch; 4],
    pub(super) decay_form: &'a mut DecayForm,
    pub(super) state_stride: &'a mut i64,
    pub(super) numbers: [&'a mut f32; 2],
}

impl DeltaRule {
    pub(super) fn set(&self, launched: &mut Launched<'_>) -> Result<()> {
        i32_of("num_tokens", self.num_tokens())?;
        i32_of("B", self.num_seqs)?;
        self.state.check_alignment(16)?;
        let tensors = [&self.q, &self.k, &self.v, &self.g, &self.beta, &self.out];
        let others = [&self.state, &self.cu_seqlens, &self.state_indices];
        let optional = [self.a_log.as_ref(), self.dt_bias.as_ref()];
        let all = tensors.iter().chain(&others).map(|&tensor| Some(tensor)).chain(optional);
        for (to, tensor) in launched.addresses.iter_mut().zip(all) {
            **to = address(tensor);
        }
        for (i, tensor) in tensors.iter().enumerate() {
            *launched.strides[i] = self.tokens[i].stride as i64;
            *launched.elements[i] = tensor.float()?.into();
        }
        let Conventions { decay, beta_is_logit, head_map, qk_norm, rounding, scale } = self.conventions;
        let eps = if let QkNorm::L2Norm { eps } = qk_norm { Some(eps) } else { None };
        let values = [beta_is_logit, head_map == HeadMap::Tiled, rounding == Rounding::Io, eps.is_some()];
        for (to, value) in launched.switches.iter_mut().zip(values) {
            **to = value.into();
        }
        *launched.decay_form = decay;
        *launched.state_stride = self.state_stride()?;
        for (to, (arg, value)) in launched.numbers.iter_mut().zip([("eps", eps.unwrap_or(0.0)), ("scale", scale)]) {
            if !value.is_finite() {
                return Err(undraft::OpError::Number { arg, got: value, expected: "a finite number" }.into());
            }
            **to = value;
        }
        Ok(())
    }
}

/// `[outer.., HV, V, K]`, with a hint where the two inner axes seem exchanged.
pub(super) fn check_states(state: &Tensor, outer: &[(&'static str, usize)], dims: &GdnDims) -> Result<()> {
    state.float()?;
    let [hv, value, key] =
        [("num_v_heads", dims.num_v_heads()), ("head_v_dim", dims.head_v_dim()), ("head_k_dim", dims.head_k_dim())];
    let inner = outer.len();
    let key_major = value.1 != key.1 && (state.size(inner + 1), state.size(inner + 2)) == (key.1, value.1);
    let hint = if key_major { ": the states look key-major; pass `state_to_value_major(..)` of them" } else { "" };
    state.check_shape_or(&[outer, &[hv, value, key]].concat(), hint)
}

/// Elements from one slot to the next along an axis.
pub(super) fn slot_stride(state: &Tensor, axis: usize, dims: &GdnDims) -> Result<i64> {
    let stride = state.outer_stride(axis)?;
    // Kernels load four elements at once.
    if dims.head_k_dim().is_multiple_of(4) && !stride.is_multiple_of(4) {
        let (arg, shape, strides) = (state.arg, Box::new(state.shape), Box::new(state.strides));
        return Err(Error::Strides { arg, shape, strides, expected: "slots at a multiple of 4 elements" });
    }
    Ok(stride as i64)
}

/// Checks the lists of the sequences; gives their number.
pub(super) fn check_sequences(cu_seqlens: &Tensor, state_indices: &Tensor) -> Result<usize> {
    let num_seqs = state_indices.size(0);
    state_indices.check_shape(&[("num_seqs", num_seqs)])?;
    cu_seqlens.check_shape(&[("num_seqs + 1", num_seqs + 1)])?;
    for tensor in [cu_seqlens, state_indices] {
        tensor.check_i32()?;
        tensor.check_contiguous()?;
    }
    Ok(num_seqs)
}

/// Checks that the sequences end where the tokens do, and keep a promised length.
pub(super) fn check_ends(cu_seqlens: &[i32], of_arg: &'static str, num_tokens: usize, max_window: usize) -> Result<()> {
    let seqs = undraft::CuSeqlens::new(cu_seqlens)?;
    if seqs.num_tokens() != num_tokens {
        return Err(Error::NumTokens { got: seqs.num_tokens() as i32, of_arg, num_tokens });
    }
    for seq in 0..seqs.num_seqs() {
        let got = seqs.range(seq).len();
        if max_window > 0 && got > max_window {
            return Err(Error::MaxWindow { max_window, seq, got });
        }
    }
    Ok(())
}

/// The promise of a longest window: a number that is not negative.
pub(super) fn max_window(number: i64) -> Result<usize> {
    usize::try_from(number).map_err(|_| Error::Number { arg: "max_window", got: number, expected: "0 or more" })
}

/// Whether both are the same dtype; the error names the first.
pub(super) fn check_same_dtype(tensor: &Tensor, of: &Tensor) -> Result<()> {
    let (got, expected): (DType, DType) = (tensor.float()?, of.float()?);
    if got != expected {
        return Err(undraft::OpError::DType { arg: tensor.arg, got, of_arg: of.arg, expected }.into());
    }
    Ok(())
}
