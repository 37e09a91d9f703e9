//! A naive f32 back end that follows the contracts, and the ways in which it can be made wrong.

use undraft_core::ops::{
    CausalConv1dUpdateArgs, Checked, ChunkGatedDeltaRuleArgs, CommitStatesArgs, DeltaRuleInputs, FusedGdnGatingArgs,
    FusedRecurrentArgs, GateActivation, RmsNormGatedArgs,
};
use undraft_core::{
    Activation, Backend, Beta, Caps, Capture, CaptureMut, CuSeqlens, DType, Data, DataMut, Decay, DeltaLogMut, HeadMap,
    Op, QkNorm, Result, Rounding, Rows, RowsMut, StateIndices, Support, bf16, f16,
};

/// Mistakes, and the list of them.
macro_rules! mutations {
    ($($name:ident)*) => {
        /// One mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutation {
            $($name,)*
        }

        impl Mutation {
            pub const ALL: &[Mutation] = &[$(Mutation::$name,)*];
        }
    };
}

mutations! {
    NoDecay
    DecayOfNextHead
    NegLogTakenAsLog
    DeltaBeforeDecay
    OutputBeforeUpdate
    HeadMapSwapped
    BetaDropped
    BetaLogitTakenAsValue
    ScaleDropped
    NormOverMean
    NormOutsideRoot
    NormIgnored
    RoundingIgnored
    CaptureBeforeUpdate
    WrongSlot
    StateWrittenInLogMode
    PendingIgnored
    PendingReplayedBackwards
    PendingNotStored
    LogHoldsBetaTimesV
    LogEntriesShifted
    PadOutputLeft
    PadTreatedAsSlotZero
    EmptySequenceZeroesState
    GuardWritten
    ForeignSlotCleared
    LaterTokenSeen
    DependsOnBatch
    DependsOnWindow
    DependsOnAlignment
    ChunkLosesLongPrompts
    ChunkIgnoresState
    ConvTapsShifted
    ConvTapsReversed
    ConvBiasDropped
    ConvNoActivation
    ConvStateAfterActivation
    ConvLogKeptShort
    ConvPendingIgnored
    CommitWithoutFma
    CommitAllTokens
    GateWithoutBias
    GateUnderflows
    GateSwapsAAndB
    GateHeadZeroOnly
    NormGateFirst
    NormSiluAlways
    NormWeightPlusOne
    NormRowsCoupled
    RefusesWhatItSupports
    IgnoresRefusal
}

impl Mutation {
    /// The operations whose suites must see it.
    pub fn ops(self) -> &'static [Op] {
        let name = format!("{self:?}");
        let starts = |prefix: &str| name.starts_with(prefix);
        match () {
            () if starts("Gate") => &[Op::FusedGdnGating],
            () if starts("Conv") => &[Op::CausalConv1dUpdate],
            () if starts("Chunk") => &[Op::ChunkGatedDeltaRule],
            () if starts("Commit") => &[Op::CommitStates],
            () if starts("Norm") && !["NormOverMean", "NormOutsideRoot", "NormIgnored"].contains(&&*name) => {
                &[Op::RmsNormGated]
            }
            () => &[Op::FusedRecurrentGatedDeltaRule],
        }
    }
}

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
        };
        Self { caps, mutation }
    }
    /// Less than the suite asks for, and honest about it.
    pub fn limited() -> Self {
        let mut backend = Self::new(None);
        backend.caps.max_head_dim = 100;
        backend.caps.io = &[DType::F32, DType::Bf16];
        backend.caps.captures = &[Capture::DeltaLog, Capture::Final];
        backend.caps.ops = &[Op::FusedRecurrentGatedDeltaRule, Op::CommitStates, Op::FusedGdnGating];
        backend
    }
    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }
    fn supports(&self, op: Op, io: DType, dims: (usize, usize), capture: Capture) -> Result<()> {
        let what = Support { op, io, head_k_dim: dims.0, head_v_dim: dims.1, capture };
        if self.is(Mutation::RefusesWhatItSupports) && dims == (96, 64) {
            return Caps { max_head_dim: 1, ..self.caps.clone() }.supports(&what);
        }
        if self.is(Mutation::IgnoresRefusal) { Ok(()) } else { self.caps.supports(&what) }
    }
}

fn get(data: &Data<'_>, i: usize) -> f32 {
    match data {
        Data::F32(d) => d[i],
        Data::Bf16(d) => d[i].to_f32(),
        Data::F16(d) => d[i].to_f32(),
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

/// What one token feeds into one state.
struct Token {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
}

impl Reference {
    fn key_head(&self, map: HeadMap, hv: usize, h: usize, num_v_heads: usize) -> usize {
        if (map == HeadMap::Grouped) != self.is(Mutation::HeadMapSwapped) { hv / (num_v_heads / h) } else { hv % h }
    }

    fn token(&self, inputs: &DeltaRuleInputs<'_>, t: usize) -> Token {
        let (d, hv) = (&inputs.dims, inputs.dims.num_v_heads());
        let io = match inputs.rounding {
            Rounding::Io if !self.is(Mutation::RoundingIgnored) => inputs.q.dtype(),
            _ => DType::F32,
        };
        let normalised = |mut values: Vec<f32>| {
            for head in values.chunks_exact_mut(d.head_k_dim()) {
                if let QkNorm::L2Norm { eps } = inputs.qk_norm {
                    let mut sum: f32 = head.iter().map(|x| x * x).sum();
                    if self.is(Mutation::NormOverMean) {
                        sum /= head.len() as f32;
                    }
                    let factor = match self.mutation {
                        Some(Mutation::NormIgnored) => 1.0,
                        Some(Mutation::NormOutsideRoot) => 1.0 / (sum.sqrt() + eps),
                        _ => 1.0 / (sum + eps).sqrt(),
                    };
                    head.iter_mut().for_each(|x| *x *= factor);
                }
                head.iter_mut().for_each(|x| *x = io.round(*x));
            }
            values
        };
        let decay = |head: usize| {
            let head = if self.is(Mutation::DecayOfNextHead) { (head + 1) % hv } else { head };
            match inputs.decay {
                _ if self.is(Mutation::NoDecay) => 1.0,
                Decay::NegLog(x) if self.is(Mutation::NegLogTakenAsLog) => x[t * hv + head].exp(),
                decay => decay.factor(t * hv + head, head),
            }
        };
        let beta = |head: usize| match inputs.beta {
            _ if self.is(Mutation::BetaDropped) => 1.0,
            Beta::Logit(b) if self.is(Mutation::BetaLogitTakenAsValue) => io.round(b[t * hv + head]),
            beta => io.round(beta.value(t * hv + head)),
        };
        Token {
            q: normalised(row(&inputs.q, t, d.key_dim())),
            k: normalised(row(&inputs.k, t, d.key_dim())),
            v: row(&inputs.v, t, d.value_dim()),
            decay: (0..hv).map(decay).collect(),
            beta: (0..hv).map(beta).collect(),
        }
    }

    /// One token of one slot; gives outputs and deltas, `[HV, V]` each.
    fn step(&self, inputs: &DeltaRuleInputs<'_>, token: &Token, state: &mut [f32], backwards: bool) -> [Vec<f32>; 2] {
        let d = &inputs.dims;
        let (k, v) = (d.head_k_dim(), d.head_v_dim());
        let (mut out, mut deltas) = (Vec::new(), Vec::new());
        let dot = |a: &[f32], b: &[f32]| {
            let mut sum = 0.0f32;
            for j in 0..k {
                let j = if backwards { k - 1 - j } else { j };
                sum += a[j] * b[j];
            }
            sum
        };
        for hv in 0..d.num_v_heads() {
            let kh = self.key_head(inputs.head_map, hv, d.num_k_heads(), d.num_v_heads());
            let (key, query) = (&token.k[kh * k..][..k], &token.q[kh * k..][..k]);
            for i in 0..v {
                let s = &mut state[(hv * v + i) * k..][..k];
                let before = dot(s, key);
                s.iter_mut().for_each(|x| *x *= token.decay[hv]);
                let read = if self.is(Mutation::DeltaBeforeDecay) { before } else { dot(s, key) };
                let delta = (token.v[hv * v + i] - read) * token.beta[hv];
                let early = dot(s, query);
                s.iter_mut().zip(key).for_each(|(x, &kj)| *x = delta.mul_add(kj, *x));
                let sum = if self.is(Mutation::OutputBeforeUpdate) { early } else { dot(s, query) };
                out.push(if self.is(Mutation::ScaleDropped) { sum } else { inputs.scale * sum });
                let logged =
                    if self.is(Mutation::LogHoldsBetaTimesV) { token.v[hv * v + i] * token.beta[hv] } else { delta };
                deltas.push(logged);
            }
        }
        [out, deltas]
    }

    fn replay(&self, args: &ReplayArgs<'_>, log: &DeltaLogMut<'_>, slot: usize, count: usize, state: &mut [f32]) {
        let d = args.dims;
        let (h, hv, k, v) = (d.num_k_heads(), d.num_v_heads(), d.head_k_dim(), d.head_v_dim());
        for n in 0..count {
            let n = if self.is(Mutation::PendingReplayedBackwards) { count - 1 - n } else { n };
            let entry = slot * log.max_tokens + n;
            for head in 0..hv {
                let kh = self.key_head(args.head_map, head, h, hv);
                for i in 0..v {
                    for j in 0..k {
                        let s = &mut state[(head * v + i) * k + j];
                        let delta = log.delta[(entry * hv + head) * v + i];
                        let key = log.k[(entry * h + kh) * k + j];
                        let decayed = *s * log.decay[entry * hv + head];
                        let fused = !self.is(Mutation::CommitWithoutFma) || args.in_window;
                        *s = if fused { delta.mul_add(key, decayed) } else { delta * key + decayed };
                    }
                }
            }
        }
    }

    fn recurrent(&self, args: FusedRecurrentArgs<'_>) -> Result<()> {
        let FusedRecurrentArgs { inputs, num_slots, state, mut log, num_pending, mut capture, mut out } = args;
        let d = &inputs.dims;
        let len = d.state_len();
        let seqs = CuSeqlens::new(inputs.cu_seqlens)?;
        let slots = StateIndices::new(inputs.state_indices, seqs.num_seqs(), num_slots)?;
        let unaligned = !address(&inputs.q).is_multiple_of(16);
        for seq in 0..seqs.num_seqs() {
            let Some(slot) = slots.slot(seq).or(self.is(Mutation::PadTreatedAsSlotZero).then_some(0)) else {
                for t in seqs.range(seq) {
                    if !self.is(Mutation::PadOutputLeft) {
                        set_row(&mut out, t, &vec![0.0; d.value_dim()]);
                    }
                }
                continue;
            };
            if slot >= num_slots {
                continue;
            }
            let slot = if self.is(Mutation::WrongSlot) { seq.min(num_slots - 1) } else { slot };
            let mut s = state[slot * len..][..len].to_vec();
            let pending = num_pending.get(seq).map_or(0, |&n| n as usize);
            if pending > 0 && !self.is(Mutation::PendingIgnored) {
                if let Some(log) = &log {
                    let args = ReplayArgs { dims: d, head_map: inputs.head_map, in_window: true };
                    self.replay(&args, log, slot, pending.min(log.max_tokens), &mut s);
                }
                if !self.is(Mutation::PendingNotStored) {
                    state[slot * len..][..len].copy_from_slice(&s);
                }
            }
            if self.is(Mutation::EmptySequenceZeroesState) && seqs.range(seq).is_empty() {
                state[slot * len..][..len].fill(0.0);
                continue;
            }
            let tokens = seqs.range(seq);
            for t in tokens.clone() {
                let seen = if self.is(Mutation::LaterTokenSeen) && t + 1 < tokens.end { t + 1 } else { t };
                let mut token = self.token(&inputs, t);
                if seen != t {
                    token.k = self.token(&inputs, seen).k.iter().zip(&token.k).map(|(a, b)| a * 0.0 + b).collect();
                }
                let backwards = (self.is(Mutation::DependsOnBatch) && seqs.num_seqs() > 1)
                    || (self.is(Mutation::DependsOnWindow) && (t - tokens.start) % 4 == 3)
                    || (self.is(Mutation::DependsOnAlignment) && unaligned);
                let before = s.clone();
                let [o, deltas] = self.step(&inputs, &token, &mut s, backwards);
                set_row(&mut out, t, &o);
                if self.is(Mutation::GuardWritten) && out.row_stride > o.len() {
                    set(&mut out.data, t * out.row_stride + o.len(), 0.0);
                }
                let n = t - tokens.start;
                match &mut capture {
                    CaptureMut::Final => {}
                    CaptureMut::PerToken { states, max_tokens } => {
                        let seen = if self.is(Mutation::CaptureBeforeUpdate) { &before } else { &s };
                        states[(seq * *max_tokens + n) * len..][..len].copy_from_slice(seen);
                    }
                    CaptureMut::DeltaLog => {
                        let Some(log) = &mut log else { continue };
                        let n = if self.is(Mutation::LogEntriesShifted) { (n + 1) % log.max_tokens } else { n };
                        let entry = slot * log.max_tokens + n;
                        log.k[entry * d.key_dim()..][..d.key_dim()].copy_from_slice(&token.k);
                        log.decay[entry * d.num_v_heads()..][..d.num_v_heads()].copy_from_slice(&token.decay);
                        log.delta[entry * d.value_dim()..][..d.value_dim()].copy_from_slice(&deltas);
                    }
                }
            }
            if matches!(capture, CaptureMut::Final) || self.is(Mutation::StateWrittenInLogMode) {
                state[slot * len..][..len].copy_from_slice(&s);
            }
            if self.is(Mutation::ForeignSlotCleared) {
                state[(slot + 1) % num_slots * len..][..1].fill(0.0);
            }
        }
        Ok(())
    }
}

struct ReplayArgs<'a> {
    dims: &'a undraft_core::GdnDims,
    head_map: HeadMap,
    in_window: bool,
}

impl Backend for Reference {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn fused_gdn_gating(&self, args: Checked<FusedGdnGatingArgs<'_>>) -> Result<()> {
        let args = args.into_inner();
        self.supports(Op::FusedGdnGating, args.a.dtype(), (1, 1), Capture::Final)?;
        let hv = args.num_v_heads;
        for t in 0..args.num_tokens {
            let (mut a, mut b) = (row(&args.a, t, hv), row(&args.b, t, hv));
            if self.is(Mutation::GateSwapsAAndB) {
                std::mem::swap(&mut a, &mut b);
            }
            for head in 0..hv {
                let from = if self.is(Mutation::GateHeadZeroOnly) { 0 } else { head };
                let dt_bias = if self.is(Mutation::GateWithoutBias) { 0.0 } else { args.dt_bias[from] };
                let (g, beta) = FusedGdnGatingArgs::element(a[head], b[head], args.a_log[from], dt_bias);
                let plain = -args.a_log[from].exp() * (1.0 + (a[head] + dt_bias).exp()).ln();
                args.g[t * hv + head] = if self.is(Mutation::GateUnderflows) { plain } else { g };
                args.beta[t * hv + head] = beta;
            }
        }
        Ok(())
    }

    fn causal_conv1d_update(&self, args: Checked<CausalConv1dUpdateArgs<'_>>) -> Result<()> {
        let mut args = args.into_inner();
        self.supports(Op::CausalConv1dUpdate, args.x.dtype(), (1, 1), args.capture)?;
        let (c, taps) = (args.dims.channels(), args.dims.width());
        let seqs = CuSeqlens::new(args.cu_seqlens)?;
        let slots = StateIndices::new(args.state_indices, seqs.num_seqs(), args.num_slots)?;
        for seq in 0..seqs.num_seqs() {
            let Some(slot) = slots.slot(seq) else {
                seqs.range(seq).for_each(|t| set_row(&mut args.out, t, &vec![0.0; c]));
                continue;
            };
            let state = &mut args.state[slot * (taps - 1) * c..][..(taps - 1) * c];
            let pending = args.num_pending.get(seq).map_or(0, |&n| n as usize);
            if let Some(log) = args.log.as_ref().filter(|_| pending > 0 && !self.is(Mutation::ConvPendingIgnored)) {
                for n in 0..pending {
                    state.rotate_left(c);
                    state[(taps - 2) * c..].copy_from_slice(&log.x[(slot * log.max_tokens + n) * c..][..c]);
                }
            }
            let mut line = state.to_vec();
            for (n, t) in seqs.range(seq).enumerate() {
                let x = row(&args.x, t, c);
                let shift = usize::from(self.is(Mutation::ConvTapsShifted) && taps > 2);
                let mut y = vec![0.0f32; c];
                for ch in 0..c {
                    let mut sum = match args.bias {
                        Some(bias) if !self.is(Mutation::ConvBiasDropped) => bias[ch],
                        _ => 0.0,
                    };
                    for j in 0..taps {
                        let from = if j == taps - 1 { x[ch] } else { line[(j + shift).min(taps - 2) * c + ch] };
                        let tap = if self.is(Mutation::ConvTapsReversed) { taps - 1 - j } else { j };
                        sum = args.weight[tap * c + ch].mul_add(from, sum);
                    }
                    let silu = args.activation == Activation::Silu && !self.is(Mutation::ConvNoActivation);
                    y[ch] = if silu { sum * sigmoid(sum) } else { sum };
                }
                line.rotate_left(c);
                let kept = if self.is(Mutation::ConvStateAfterActivation) { &y } else { &x };
                line[(taps - 2) * c..].copy_from_slice(kept);
                let logged = !(self.is(Mutation::ConvLogKeptShort) && n + 1 == seqs.range(seq).len());
                if let Some(log) = args.log.as_mut().filter(|_| args.capture == Capture::DeltaLog && logged) {
                    log.x[(slot * log.max_tokens + n) * c..][..c].copy_from_slice(&x);
                }
                set_row(&mut args.out, t, &y);
            }
            if args.capture == Capture::Final {
                state.copy_from_slice(&line);
            }
        }
        Ok(())
    }

    fn fused_recurrent_gated_delta_rule(&self, args: Checked<FusedRecurrentArgs<'_>>) -> Result<()> {
        let args = args.into_inner();
        let kind = match args.capture {
            CaptureMut::Final => Capture::Final,
            CaptureMut::PerToken { .. } => Capture::PerToken,
            CaptureMut::DeltaLog => Capture::DeltaLog,
        };
        let dims = (args.inputs.dims.head_k_dim(), args.inputs.dims.head_v_dim());
        self.supports(Op::FusedRecurrentGatedDeltaRule, args.inputs.q.dtype(), dims, kind)?;
        self.recurrent(args)
    }

    fn chunk_gated_delta_rule(&self, args: Checked<ChunkGatedDeltaRuleArgs<'_>>) -> Result<()> {
        let ChunkGatedDeltaRuleArgs { inputs, num_slots, state, out } = args.into_inner();
        let dims = (inputs.dims.head_k_dim(), inputs.dims.head_v_dim());
        self.supports(Op::ChunkGatedDeltaRule, inputs.q.dtype(), dims, Capture::Final)?;
        let len = inputs.dims.state_len();
        let seqs = CuSeqlens::new(inputs.cu_seqlens)?;
        let slots = StateIndices::new(inputs.state_indices, seqs.num_seqs(), num_slots)?;
        let before = state.to_vec();
        for slot in (0..seqs.num_seqs()).filter(|&s| !seqs.range(s).is_empty()).filter_map(|s| slots.slot(s)) {
            if self.is(Mutation::ChunkIgnoresState) {
                state[slot * len..][..len].fill(0.0);
            }
        }
        self.recurrent(FusedRecurrentArgs {
            inputs,
            num_slots,
            state: &mut *state,
            log: None,
            num_pending: &[],
            capture: CaptureMut::Final,
            out,
        })?;
        for seq in 0..seqs.num_seqs() {
            let lost = self.is(Mutation::ChunkLosesLongPrompts) && seqs.range(seq).len() > 64;
            if let Some(slot) = slots.slot(seq).filter(|_| lost) {
                state[slot * len..][..len].copy_from_slice(&before[slot * len..][..len]);
            }
        }
        Ok(())
    }

    fn commit_states(&self, args: Checked<CommitStatesArgs<'_>>) -> Result<()> {
        let args = args.into_inner();
        let dims = (args.dims.head_k_dim(), args.dims.head_v_dim());
        self.supports(Op::CommitStates, DType::F32, dims, Capture::DeltaLog)?;
        let len = args.dims.state_len();
        let slots = StateIndices::new(args.state_indices, args.state_indices.len(), args.num_slots)?;
        for (seq, &kept) in args.num_kept.iter().enumerate() {
            if let Some(slot) = slots.slot(seq) {
                let kept = if self.is(Mutation::CommitAllTokens) { args.log.max_tokens } else { kept as usize };
                let replay = ReplayArgs { dims: &args.dims, head_map: args.head_map, in_window: false };
                self.replay(&replay, &args.log, slot, kept, &mut args.state[slot * len..][..len]);
            }
        }
        Ok(())
    }

    fn rms_norm_gated(&self, args: Checked<RmsNormGatedArgs<'_>>) -> Result<()> {
        let mut args = args.into_inner();
        self.supports(Op::RmsNormGated, args.x.dtype(), (args.head_dim, args.head_dim), Capture::Final)?;
        let d = args.head_dim;
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
