//! A naive f32 back end that follows the contracts, and the ways in which it can be made wrong.

mod convolution;
mod mutation;
mod recurrence;

pub use mutation::Mutation;

use undraft_core::ops::{
    CausalConv1dFnArgs, CausalConv1dUpdateArgs, Checked, ChunkGatedDeltaRuleArgs, CommitStatesArgs, DeltaRuleInputs,
    FusedGdnGatingArgs, FusedRecurrentArgs, GateActivation, RmsNormGatedArgs,
};
use undraft_core::{
    Backend, Caps, Capture, CaptureMut, CuSeqlens, DType, Data, DataMut, DecayShape, Op, Result, Rows, RowsMut,
    StateIndices, Support, bf16, f16, is_chain,
};

/// The back end; right without a mutation.
pub struct Reference {
    caps: Caps,
    mutation: Option<Mutation>,
}

impl Reference {
    pub fn new(mutation: Option<Mutation>) -> Self {
        let caps = Caps {
            backend: "reference",
            ops: &Op::ALL,
            io: &[DType::F32, DType::Bf16, DType::F16],
            captures: &[Capture::DeltaLog, Capture::PerToken, Capture::Final],
            max_head_dim: if mutation == Some(Mutation::IgnoresRefusal) { 128 } else { 256 },
            states: &[DType::F32, DType::Bf16, DType::F16],
            decay_shapes: &[DecayShape::PerHead, DecayShape::PerChannel],
            trees: true,
            keeps_subnormals: true,
        };
        Self { caps, mutation }
    }
    /// Less than the suite asks for, and honest about it.
    pub fn limited() -> Self {
        let mut backend = Self::new(None);
        backend.caps.max_head_dim = 100;
        backend.caps.io = &[DType::F32, DType::Bf16];
        backend.caps.captures = &[Capture::DeltaLog, Capture::Final];
        backend.caps.ops =
            &[Op::FusedRecurrentGatedDeltaRule, Op::CommitStates, Op::FusedGdnGating, Op::CausalConv1dUpdate];
        backend.caps.states = &[DType::F32, DType::F16];
        backend.caps.decay_shapes = &[DecayShape::PerHead];
        backend.caps.trees = false;
        backend
    }
    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }
    fn supports(&self, what: Support) -> Result<()> {
        let dims = (what.head_k_dim, what.head_v_dim);
        if self.is(Mutation::RefusesWhatItSupports) && dims == (96, 64) {
            return Caps { max_head_dim: 1, ..self.caps.clone() }.supports(&what);
        }
        if self.is(Mutation::IgnoresRefusal) { Ok(()) } else { self.caps.supports(&what) }
    }
}

/// What a call of the recurrence or of its chunked form asks for.
fn asked(op: Op, inputs: &DeltaRuleInputs<'_>, capture: Capture, state: DType) -> Support {
    let d = &inputs.dims;
    Support {
        io: inputs.q.dtype(),
        capture,
        state,
        decay_shape: d.decay_shape(),
        tree: has_tree(inputs.cu_seqlens, inputs.parents),
        ..Support::new(op, d.head_k_dim(), d.head_v_dim())
    }
}

fn has_tree(cu_seqlens: &[i32], parents: &[i32]) -> bool {
    let window = |pair: &[i32]| &parents[pair[0] as usize..pair[1] as usize];
    !parents.is_empty() && !cu_seqlens.windows(2).map(window).all(is_chain)
}

fn get(data: &Data<'_>, i: usize) -> f32 {
    match data {
        Data::F32(d) => d[i],
        Data::Bf16(d) => d[i].to_f32(),
        Data::F16(d) => d[i].to_f32(),
    }
}

fn get_mut(data: &DataMut<'_>, i: usize) -> f32 {
    match data {
        DataMut::F32(d) => d[i],
        DataMut::Bf16(d) => d[i].to_f32(),
        DataMut::F16(d) => d[i].to_f32(),
    }
}

fn set(data: &mut DataMut<'_>, i: usize, x: f32) {
    match data {
        DataMut::F32(d) => d[i] = x,
        DataMut::Bf16(d) => d[i] = bf16::from_f32(x),
        DataMut::F16(d) => d[i] = f16::from_f32(x),
    }
}

fn row(rows: &Rows<'_>, index: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| get(&rows.data, index * rows.row_stride + i)).collect()
}

fn set_row(rows: &mut RowsMut<'_>, index: usize, values: &[f32]) {
    for (i, &x) in values.iter().enumerate() {
        set(&mut rows.data, index * rows.row_stride + i, x);
    }
}

fn address(rows: &Rows<'_>) -> usize {
    match rows.data {
        Data::F32(d) => d.as_ptr() as usize,
        Data::Bf16(d) => d.as_ptr() as usize,
        Data::F16(d) => d.as_ptr() as usize,
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

impl Backend for Reference {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn fused_gdn_gating(&self, args: Checked<FusedGdnGatingArgs<'_>>) -> Result<()> {
        let args = args.into_inner();
        self.supports(Support { io: args.a.dtype(), ..Support::new(Op::FusedGdnGating, 1, 1) })?;
        let (hv, dim) = (args.num_v_heads, args.decay_dim);
        for t in 0..args.num_tokens {
            let (mut a, mut b) = (row(&args.a, t, hv * dim), row(&args.b, t, hv));
            if self.is(Mutation::GateSwapsAAndB) && dim == 1 {
                std::mem::swap(&mut a, &mut b);
            }
            for i in 0..hv * dim {
                let head = i / dim;
                let from = if self.is(Mutation::GateHeadZeroOnly) { 0 } else { head };
                let dt_bias = match self.mutation {
                    Some(Mutation::GateWithoutBias) => 0.0,
                    Some(Mutation::GateBiasOfHeadForChannel) => args.dt_bias[head * dim],
                    _ => args.dt_bias[from * dim + i % dim],
                };
                let logit = b[if self.is(Mutation::GateBetaOfNextHead) { (head + 1) % hv } else { head }];
                let (g, beta) = FusedGdnGatingArgs::element(a[i], logit, args.a_log[from], dt_bias);
                let plain = -args.a_log[from].exp() * (1.0 + (a[i] + dt_bias).exp()).ln();
                args.g[t * hv * dim + i] = if self.is(Mutation::GateUnderflows) { plain } else { g };
                args.beta[t * hv + head] = beta;
            }
        }
        Ok(())
    }

    fn causal_conv1d_update(&self, args: Checked<CausalConv1dUpdateArgs<'_>>) -> Result<()> {
        let args = args.into_inner();
        self.supports(Support {
            io: args.x.dtype(),
            capture: args.capture,
            tree: has_tree(args.cu_seqlens, args.parents),
            ..Support::new(Op::CausalConv1dUpdate, 1, 1)
        })?;
        self.conv_update(args)
    }

    fn causal_conv1d_fn(&self, args: Checked<CausalConv1dFnArgs<'_>>) -> Result<()> {
        let args = args.into_inner();
        let what = Support { io: args.x.dtype(), capture: Capture::Final, ..Support::new(Op::CausalConv1dFn, 1, 1) };
        self.supports(what)?;
        self.conv_fn(args)
    }

    fn fused_recurrent_gated_delta_rule(&self, args: Checked<FusedRecurrentArgs<'_>>) -> Result<()> {
        let args = args.into_inner();
        let kind = match args.capture {
            CaptureMut::Final => Capture::Final,
            CaptureMut::PerToken { .. } => Capture::PerToken,
            CaptureMut::DeltaLog => Capture::DeltaLog,
        };
        self.supports(asked(Op::FusedRecurrentGatedDeltaRule, &args.inputs, kind, args.state.dtype()))?;
        self.recurrent(args)
    }

    fn chunk_gated_delta_rule(&self, args: Checked<ChunkGatedDeltaRuleArgs<'_>>) -> Result<()> {
        let ChunkGatedDeltaRuleArgs { inputs, num_slots, mut state, checkpoints, out } = args.into_inner();
        self.supports(asked(Op::ChunkGatedDeltaRule, &inputs, Capture::Final, state.dtype()))?;
        let len = inputs.dims.state_len();
        let seqs = CuSeqlens::new(inputs.cu_seqlens)?;
        let slots = StateIndices::new(inputs.state_indices, seqs.num_seqs(), num_slots)?;
        let mut carried: Vec<f32> = (0..state.len()).map(|i| get_mut(&state, i)).collect();
        if self.is(Mutation::ChunkIgnoresState) {
            carried.fill(0.0);
        }
        // The recurrence in f32 with every state kept.
        let longest = (0..seqs.num_seqs()).map(|seq| seqs.range(seq).len()).max().unwrap_or(0);
        let mut states = vec![0.0; seqs.num_seqs() * longest * len];
        self.recurrent(FusedRecurrentArgs {
            inputs,
            num_slots,
            state: DataMut::F32(&mut carried),
            log: None,
            num_pending: &[],
            pending_path: &[],
            capture: CaptureMut::PerToken { states: DataMut::F32(&mut states), max_tokens: longest },
            out,
        })?;
        let after = |seq: usize, n: usize| &states[(seq * longest + n - 1) * len..][..len];
        let mut checkpoints = checkpoints;
        let mut checkpoint = 0;
        for seq in 0..seqs.num_seqs() {
            let num_tokens = seqs.range(seq).len();
            let slot = slots.slot(seq);
            if let Some(checkpoints) = &mut checkpoints {
                for n in (1..=num_tokens / checkpoints.every).map(|n| n * checkpoints.every) {
                    let n = if self.is(Mutation::ChunkCheckpointsEarly) { (n - 1).max(1) } else { n };
                    if slot.is_some() {
                        let from = after(seq, n);
                        (0..len).for_each(|i| set(&mut checkpoints.states, checkpoint * len + i, from[i]));
                    }
                    checkpoint += 1;
                }
            }
            let lost = self.is(Mutation::ChunkLosesLongPrompts) && num_tokens > 64;
            if let Some(slot) = slot.filter(|_| !lost && num_tokens > 0) {
                let from = after(seq, num_tokens);
                (0..len).for_each(|i| set(&mut state, slot * len + i, from[i]));
            }
        }
        Ok(())
    }

    fn commit_states(&self, args: Checked<CommitStatesArgs<'_>>) -> Result<()> {
        let args = args.into_inner();
        self.supports(Support {
            state: args.state.dtype(),
            decay_shape: args.dims.decay_shape(),
            ..Support::new(Op::CommitStates, args.dims.head_k_dim(), args.dims.head_v_dim())
        })?;
        self.commit(args)
    }

    fn rms_norm_gated(&self, args: Checked<RmsNormGatedArgs<'_>>) -> Result<()> {
        let mut args = args.into_inner();
        let d = args.head_dim;
        self.supports(Support { io: args.x.dtype(), capture: Capture::Final, ..Support::new(Op::RmsNormGated, d, d) })?;
        for r in 0..args.num_rows {
            let (mut x, z) = (row(&args.x, r, args.num_heads * d), row(&args.z, r, args.num_heads * d));
            if self.is(Mutation::NormRowsCoupled) && args.num_rows % 2 == 1 && args.num_rows > 1 {
                x.iter_mut().for_each(|x| *x *= 1.0 + f32::EPSILON);
            }
            for at in 0..x.len() {
                let silu = args.activation == GateActivation::Silu || self.is(Mutation::NormSiluAlways);
                let gate = if silu { z[at] * sigmoid(z[at]) } else { sigmoid(z[at]) };
                let weight = args.weight[at % d] + f32::from(self.is(Mutation::NormWeightPlusOne));
                let head = at / d * d..at / d * d + d;
                let first = self.is(Mutation::NormGateFirst);
                let squares = head.map(|i| {
                    let x = if first { x[i] * z[i] * sigmoid(z[i]) } else { x[i] };
                    f64::from(x) * f64::from(x)
                });
                let root = (squares.sum::<f64>() / d as f64 + f64::from(args.eps)).sqrt() as f32;
                set(&mut args.out.data, r * args.out.row_stride + at, x[at] / root * weight * gate);
            }
        }
        Ok(())
    }
}
