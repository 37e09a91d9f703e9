//! The recurrence, its chunked form and the replay.

use undraft_core::ops::{CommitStatesArgs, DeltaRuleInputs, FusedRecurrentArgs};
use undraft_core::{
    Beta, CaptureMut, CuSeqlens, DType, DataMut, Decay, DeltaLogMut, GdnDims, HeadMap, QkNorm, Result, Rounding,
    StateIndices,
};

use super::{Mutation, Reference, address, get_mut, row, set, set_row};

/// What one token feeds into one state.
struct Token {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// `[HV, decay_dim]`.
    decay: Vec<f32>,
    beta: Vec<f32>,
}

struct ReplayArgs<'a> {
    dims: &'a GdnDims,
    head_map: HeadMap,
    state: DType,
    in_window: bool,
}

/// `len` elements from `start` on, widened.
fn load(data: &DataMut<'_>, start: usize, len: usize) -> Vec<f32> {
    (start..start + len).map(|i| get_mut(data, i)).collect()
}

impl Reference {
    /// Stores a state, with whatever rounding the dtype still needs.
    fn store(&self, data: &mut DataMut<'_>, start: usize, values: &[f32]) {
        for (i, &x) in values.iter().enumerate() {
            set(data, start + i, self.rounded(data.dtype(), x));
        }
    }

    /// A number as a state of the dtype keeps it.
    fn rounded(&self, dtype: DType, x: f32) -> f32 {
        let y = dtype.round(x);
        if dtype == DType::F32 || x.is_nan() {
            return y;
        }
        // The numbers of the dtype are those whose other bits are zero, but for subnormals of f16, which round as they are.
        let step = if dtype == DType::Bf16 { 16 } else { 13 };
        let is_normal = x.abs() >= 6.2e-5;
        match self.mutation {
            Some(Mutation::StateRoundedTowardsZero) if is_normal => f32::from_bits(x.to_bits() >> step << step),
            Some(Mutation::StateRoundedTiesUp) if is_normal => {
                let bits = x.to_bits() + (1 << (step - 1));
                dtype.round(f32::from_bits(bits >> step << step))
            }
            Some(Mutation::StateSaturates) if y.is_infinite() && x.is_finite() => {
                let largest = if dtype == DType::Bf16 { f32::from_bits(0x7f7f_0000) } else { 65504.0 };
                largest.copysign(x)
            }
            Some(Mutation::StateSubnormalsFlushed) if dtype == DType::F16 && y.abs() < 6.1e-5 => 0.0f32.copysign(x),
            _ => y,
        }
    }

    fn key_head(&self, map: HeadMap, hv: usize, h: usize, num_v_heads: usize) -> usize {
        if (map == HeadMap::Grouped) != self.is(Mutation::HeadMapSwapped) { hv / (num_v_heads / h) } else { hv % h }
    }

    fn factor(&self, inputs: &DeltaRuleInputs<'_>, t: usize, head: usize, channel: usize) -> f32 {
        let (d, hv) = (&inputs.dims, inputs.dims.num_v_heads());
        let head = if self.is(Mutation::DecayOfNextHead) { (head + 1) % hv } else { head };
        let channel = match self.mutation {
            Some(Mutation::DecayOfNextChannel) => (channel + 1) % d.decay_dim(),
            Some(Mutation::DecayOfFirstChannel) => 0,
            _ => channel,
        };
        match inputs.decay {
            _ if self.is(Mutation::NoDecay) => 1.0,
            Decay::NegLog(x) if self.is(Mutation::NegLogTakenAsLog) => {
                x[t * d.decay_len() + head * d.decay_dim() + channel].exp()
            }
            Decay::Gate { a, a_log, dt_bias } if self.is(Mutation::BiasOfHeadForChannel) => {
                let bias = vec![dt_bias[head * d.decay_dim()]; d.decay_len()];
                Decay::Gate { a, a_log, dt_bias: &bias }.factor(d, t, head, channel)
            }
            decay => decay.factor(d, t, head, channel),
        }
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
        let beta = |head: usize| match inputs.beta {
            _ if self.is(Mutation::BetaDropped) => 1.0,
            Beta::Logit(b) if self.is(Mutation::BetaLogitTakenAsValue) => io.round(b[t * hv + head]),
            beta => io.round(beta.value(t * hv + head)),
        };
        let channels = 0..d.decay_dim();
        let decay = |head| channels.clone().map(move |channel| (head, channel));
        Token {
            q: normalised(row(&inputs.q, t, d.key_dim())),
            k: normalised(row(&inputs.k, t, d.key_dim())),
            v: row(&inputs.v, t, d.value_dim()),
            decay: (0..hv).flat_map(decay).map(|(head, channel)| self.factor(inputs, t, head, channel)).collect(),
            beta: (0..hv).map(beta).collect(),
        }
    }

    /// One token of one state of this dtype; gives outputs and deltas, `[HV, V]` each.
    fn step(
        &self,
        inputs: &DeltaRuleInputs<'_>,
        token: &Token,
        (state, dtype): (&mut [f32], DType),
        backwards: bool,
    ) -> [Vec<f32>; 2] {
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
            let decay = &token.decay[hv * d.decay_dim()..][..d.decay_dim()];
            for i in 0..v {
                let s = &mut state[(hv * v + i) * k..][..k];
                let before = dot(s, key);
                s.iter_mut().enumerate().for_each(|(j, x)| *x *= decay[j.min(decay.len() - 1)]);
                let read = if self.is(Mutation::DeltaBeforeDecay) { before } else { dot(s, key) };
                let delta = (token.v[hv * v + i] - read) * token.beta[hv];
                let early = dot(s, query);
                s.iter_mut().zip(key).for_each(|(x, &kj)| *x = delta.mul_add(kj, *x));
                let exact = dot(s, query);
                if !self.is(Mutation::StateRoundedAtTheEnd) {
                    s.iter_mut().for_each(|x| *x = self.rounded(dtype, *x));
                }
                let sum = match self.mutation {
                    Some(Mutation::OutputBeforeUpdate) => early,
                    Some(Mutation::OutputAfterRounding) => dot(s, query),
                    _ => exact,
                };
                out.push(if self.is(Mutation::ScaleDropped) { sum } else { inputs.scale * sum });
                let logged =
                    if self.is(Mutation::LogHoldsBetaTimesV) { token.v[hv * v + i] * token.beta[hv] } else { delta };
                deltas.push(logged);
            }
        }
        [out, deltas]
    }

    fn replay(&self, args: &ReplayArgs<'_>, log: &DeltaLogMut<'_>, slot: usize, entries: &[usize], state: &mut [f32]) {
        let d = args.dims;
        let (h, hv, k, v, factors) = (d.num_k_heads(), d.num_v_heads(), d.head_k_dim(), d.head_v_dim(), d.decay_dim());
        let late = if args.in_window { Mutation::ReplayRoundedAtTheEnd } else { Mutation::CommitRoundedAtTheEnd };
        for n in 0..entries.len() {
            let backwards = self.is(Mutation::PendingReplayedBackwards) || self.is(Mutation::PathBackwards);
            let entry = slot * log.max_tokens + entries[if backwards { entries.len() - 1 - n } else { n }];
            for head in 0..hv {
                let kh = self.key_head(args.head_map, head, h, hv);
                for i in 0..v {
                    for j in 0..k {
                        let s = &mut state[(head * v + i) * k + j];
                        let delta = log.delta[(entry * hv + head) * v + i];
                        let key = log.k[(entry * h + kh) * k + j];
                        let first = self.is(Mutation::CommitDecayOfFirstChannel);
                        let channel = if first { 0 } else { j.min(factors - 1) };
                        let decayed = *s * log.decay[(entry * hv + head) * factors + channel];
                        let fused = !self.is(Mutation::CommitWithoutFma) || args.in_window;
                        *s = if fused { delta.mul_add(key, decayed) } else { delta * key + decayed };
                        if !self.is(late) {
                            *s = self.rounded(args.state, *s);
                        }
                    }
                }
            }
        }
    }

    /// The first `count` entries, or those of a sequence's path.
    fn entries(&self, path: &[u32], seq: usize, count: usize, max_tokens: usize, ignored: Mutation) -> Vec<usize> {
        if path.is_empty() || self.is(ignored) {
            return (0..count).collect();
        }
        let seq = if self.is(Mutation::PathOfFirstSequence) { 0 } else { seq };
        path[seq * max_tokens..][..count].iter().map(|&e| (e as usize).min(max_tokens - 1)).collect()
    }

    /// The position that a token's state comes from.
    fn parent(&self, parents: &[i32], n: usize) -> Option<usize> {
        let parent = match parents {
            [] => return n.checked_sub(1),
            _ if self.is(Mutation::TreeTakenAsChain) => return n.checked_sub(1),
            parents => parents[n],
        };
        match (usize::try_from(parent).ok(), self.mutation) {
            (Some(parent), Some(Mutation::TreeParentOffByOne)) if parent + 1 < n => Some(parent + 1),
            (None, Some(Mutation::TreeRootFollowsLastToken)) => n.checked_sub(1),
            (parent, _) => parent,
        }
    }

    pub(super) fn recurrent(&self, args: FusedRecurrentArgs<'_>) -> Result<()> {
        let FusedRecurrentArgs {
            inputs,
            num_slots,
            mut state,
            mut log,
            num_pending,
            pending_path,
            mut capture,
            mut out,
        } = args;
        let (d, dtype) = (&inputs.dims, state.dtype());
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
            let mut committed = load(&state, slot * len, len);
            let pending = num_pending.get(seq).map_or(0, |&n| n as usize);
            if pending > 0 && !self.is(Mutation::PendingIgnored) {
                if let Some(log) = &log {
                    let replay = ReplayArgs { dims: d, head_map: inputs.head_map, state: dtype, in_window: true };
                    let count = pending.min(log.max_tokens);
                    let entries = self.entries(pending_path, seq, count, log.max_tokens, Mutation::PathIgnored);
                    self.replay(&replay, log, slot, &entries, &mut committed);
                }
                if !self.is(Mutation::PendingNotStored) {
                    self.store(&mut state, slot * len, &committed);
                }
            }
            if self.is(Mutation::EmptySequenceZeroesState) && seqs.range(seq).is_empty() {
                self.store(&mut state, slot * len, &vec![0.0; len]);
                continue;
            }
            let tokens = seqs.range(seq);
            let parents = if inputs.parents.is_empty() { &[] } else { &inputs.parents[tokens.clone()] };
            let mut states: Vec<Vec<f32>> = Vec::new();
            for (n, t) in tokens.clone().enumerate() {
                let mut token = self.token(&inputs, t);
                if self.is(Mutation::LaterTokenSeen) && t + 1 < tokens.end {
                    token.k = self.token(&inputs, t + 1).k.iter().zip(&token.k).map(|(a, b)| a * 0.0 + b).collect();
                }
                let backwards = (self.is(Mutation::DependsOnBatch) && seqs.num_seqs() > 1)
                    || (self.is(Mutation::DependsOnWindow) && n % 4 == 3)
                    || (self.is(Mutation::DependsOnAlignment) && unaligned);
                let parent = self.parent(parents, n);
                let before = parent.map_or(&committed, |parent| &states[parent]).clone();
                let mut s = before.clone();
                let [o, deltas] = self.step(&inputs, &token, (&mut s, dtype), backwards);
                set_row(&mut out, t, &o);
                if self.is(Mutation::GuardWritten) && out.row_stride > o.len() {
                    set(&mut out.data, t * out.row_stride + o.len(), 0.0);
                }
                match &mut capture {
                    CaptureMut::Final => {}
                    CaptureMut::PerToken { states, max_tokens } => {
                        let seen = if self.is(Mutation::CaptureBeforeUpdate) { &before } else { &s };
                        self.store(states, (seq * *max_tokens + n) * len, seen);
                    }
                    CaptureMut::DeltaLog => {
                        let Some(log) = &mut log else { continue };
                        let n = if self.is(Mutation::LogEntriesShifted) { (n + 1) % log.max_tokens } else { n };
                        let entry = slot * log.max_tokens + n;
                        log.k[entry * d.key_dim()..][..d.key_dim()].copy_from_slice(&token.k);
                        log.decay[entry * d.decay_len()..][..d.decay_len()].copy_from_slice(&token.decay);
                        log.delta[entry * d.value_dim()..][..d.value_dim()].copy_from_slice(&deltas);
                    }
                }
                if let (Some(parent), true) = (parent, self.is(Mutation::TreeSiblingsShareState)) {
                    states[parent].clone_from(&s);
                }
                states.push(s);
            }
            let moves = matches!(capture, CaptureMut::Final) || self.is(Mutation::StateWrittenInLogMode);
            if let (Some(last), true) = (states.last(), moves) {
                self.store(&mut state, slot * len, last);
            }
            if self.is(Mutation::ForeignSlotCleared) {
                set(&mut state, (slot + 1) % num_slots * len, 0.0);
            }
        }
        Ok(())
    }

    pub(super) fn commit(&self, args: CommitStatesArgs<'_>) -> Result<()> {
        let CommitStatesArgs { dims, head_map, num_slots, mut state, log, state_indices, num_kept, path } = args;
        let (len, dtype) = (dims.state_len(), state.dtype());
        let slots = StateIndices::new(state_indices, state_indices.len(), num_slots)?;
        for (seq, &kept) in num_kept.iter().enumerate() {
            let Some(slot) = slots.slot(seq) else { continue };
            let all = self.is(Mutation::CommitAllTokens);
            let entries = match kept as usize {
                _ if all => (0..log.max_tokens).collect(),
                kept => self.entries(path, seq, kept, log.max_tokens, Mutation::CommitPathIgnored),
            };
            if entries.is_empty() {
                continue;
            }
            let mut s = load(&state, slot * len, len);
            let replay = ReplayArgs { dims: &dims, head_map, state: dtype, in_window: false };
            self.replay(&replay, &log, slot, &entries, &mut s);
            self.store(&mut state, slot * len, &s);
        }
        Ok(())
    }
}
