//! Rounding of 16-bit states, bit by bit: ties, subnormals, overflow; and what lies beyond the range stays in its row.

use undraft_core::{Backend, Capture, DType, GdnDims, HeadMap, QkNorm, Rounding};

use super::super::Tally;
use super::exactness::{Outcome, commit_case, commits};
use crate::Rng;
use crate::cases::fused_recurrent_gated_delta_rule::{BetaForm, DecayForm, DeltaRuleCase, LogData};
use crate::cases::{Windows, normals};
use crate::compare;
use crate::harness::fused_recurrent_gated_delta_rule::{DeltaRuleOutcome, run, supports};
use crate::harness::{Memory, commit_states};

/// Sizes of a key; no multiple of 16 but two.
const KEY_SIZES: [usize; 6] = [1, 5, 16, 33, 50, 128];

pub(super) fn check(backend: &dyn Backend, tally: &mut Tally) -> Outcome {
    for dtype in [DType::Bf16, DType::F16] {
        for k in KEY_SIZES {
            let suite = Suite { backend, dtype, k };
            let case = suite.case(1, &[]);
            if ![Capture::Final, Capture::PerToken].map(|c| supports(backend, &case, c)).contains(&true) {
                continue;
            }
            let at = |e| format!("{} states, K={k}: {e}", dtype.name());
            suite.rounds_to_nearest_even(tally).map_err(at)?;
            suite.overflow_stays_in_its_row(tally).map_err(at)?;
        }
    }
    Ok(())
}

/// Numbers around every kind of tie and end of the range; no negative zero, which a sum with zero loses.
fn numbers(dtype: DType) -> Vec<f32> {
    let mut rng = Rng::new(3);
    let tie = if dtype == DType::Bf16 { 1 << 15 } else { 1 << 12 };
    let mut numbers = vec![0.0, f32::MAX, f32::from_bits(1), 65_504.0, 65_519.0, 65_520.0, 65_536.0, 3.39e38];
    for exponent in [1u32, 60, 100, 102, 103, 104, 108, 112, 113, 120, 127, 140, 142, 200, 253, 254] {
        for _ in 0..3 {
            // On a tie, one step of f32 beside it, and anywhere.
            let high = (rng.next_u64() as u32 & 0x7f_ffff) & !(2 * tie - 1);
            let tie = (exponent << 23) | high | tie;
            numbers.extend([tie, tie - 1, tie + 1, tie + rng.below(4096) as u32].map(f32::from_bits));
        }
    }
    for i in 0..40 {
        // Subnormals of f16, in steps of a quarter of the smallest.
        numbers.push((i as f32 + 0.5) * 2f32.powi(-26));
    }
    numbers.into_iter().enumerate().map(|(i, x)| if i % 3 == 1 { -x } else { x }).collect()
}

struct Suite<'a> {
    backend: &'a dyn Backend,
    dtype: DType,
    k: usize,
}

impl Suite<'_> {
    /// One head from a state of zeros that nothing decays, beta 1; q and k are zeros but for their last channel, 1. `v` holds
    /// the first token's values.
    fn case(&self, num_tokens: usize, v: &[f32]) -> DeltaRuleCase {
        let rows = v.len().max(1);
        let dims = GdnDims::new(1, 1, self.k, rows).unwrap_or_else(|e| panic!("the lists hold allowed sizes: {e}"));
        let mut unit = vec![0.0; num_tokens * self.k];
        unit.iter_mut().skip(self.k - 1).step_by(self.k).for_each(|x| *x = 1.0);
        let mut values = v.to_vec();
        values.resize(num_tokens * rows, 0.5);
        DeltaRuleCase {
            dims,
            io: DType::F32,
            head_map: HeadMap::Grouped,
            qk_norm: QkNorm::AsGiven,
            rounding: Rounding::F32,
            scale: 1.0,
            q: unit.clone(),
            k: unit,
            v: values,
            decay_form: DecayForm::Linear,
            decay: vec![1.0; num_tokens],
            beta_form: BetaForm::Value,
            beta: vec![1.0; num_tokens],
            windows: Windows::chains(vec![num_tokens], vec![1], 2),
            state: vec![0.0; 2 * dims.state_len()],
            state_dtype: self.dtype,
            log: LogData::zeros(&dims, 2, num_tokens),
            num_pending: Vec::new(),
            pending_path: Vec::new(),
        }
    }

    fn call(
        &self,
        case: &DeltaRuleCase,
        capture: Capture,
        tally: &mut Tally,
    ) -> Result<Option<DeltaRuleOutcome>, String> {
        let memory = Memory::nth(self.k);
        let outcome = run(self.backend, case, capture, memory)?;
        if outcome.is_some() {
            tally.call(case.options(capture, memory));
        }
        Ok(outcome)
    }

    /// S = v in the last column, which the output reads before it is rounded.
    fn rounds_to_nearest_even(&self, tally: &mut Tally) -> Outcome {
        let mut v = numbers(self.dtype);
        // A device that takes subnormal numbers for 0 is not asked about them.
        let keeps = self.backend.caps().keeps_subnormals;
        v.retain(|&x| keeps || !(x.is_subnormal() || self.dtype.round(x).is_subnormal()));
        let case = self.case(1, &v);
        let expected: Vec<f32> = v
            .iter()
            .flat_map(|&x| (0..self.k).map(move |j| if j + 1 == self.k { self.dtype.round(x) } else { 0.0 }))
            .collect();
        let axes = [("row", v.len()), ("column", self.k)];
        let own = |states: &[f32]| states[case.dims.state_len()..].to_vec();
        if let Some(outcome) = self.call(&case, Capture::PerToken, tally)? {
            compare::bits("capture.states", outcome.captured(0, 0), &expected, &axes)?;
            compare::bits("out", &outcome.out, &v, &[("row", v.len())])?;
        }
        if let Some(outcome) = self.call(&case, Capture::Final, tally)? {
            compare::bits("state", &own(&outcome.state), &expected, &axes)?;
        }
        if commits(self.backend, &case)
            && let Some(outcome) = self.call(&case, Capture::DeltaLog, tally)?
        {
            let commit = commit_case(&case, &outcome.state, &outcome.log, vec![1]);
            if let Some(state) = commit_states::run(self.backend, &commit, Memory::nth(1))? {
                compare::bits("state after commit", &own(&state), &expected, &axes)?;
            }
        }
        Ok(())
    }

    /// Beyond the range a state becomes infinite, then NaN: no other row sees any of it.
    fn overflow_stays_in_its_row(&self, tally: &mut Tally) -> Outcome {
        const ROWS: usize = 9;
        const LARGE: usize = 4;
        let (tokens, k) = (3, self.k);
        let mut rng = Rng::new(k as u64);
        let mut plain = self.case(tokens, &normals(&mut rng, DType::F32, ROWS, 1.0));
        for (i, x) in plain.k.iter_mut().enumerate() {
            // Column 0 overflows whatever the others do.
            *x = if i % k == 0 { 1.0 } else { rng.pick(&[1.0, -1.0, 0.5, -0.25]) };
        }
        plain.q = normals(&mut rng, DType::F32, tokens * k, 1e-4);
        let mut large = plain.clone();
        large.v[LARGE] = if self.dtype == DType::Bf16 { 3.4e38 } else { 1e6 };
        let rest = |values: &[f32], row: usize| -> Vec<f32> {
            let rows = values.chunks_exact(row).enumerate().filter(|(i, _)| i % ROWS != LARGE);
            rows.flat_map(|(_, row)| row.iter().copied()).collect()
        };
        let at_large = |values: &[f32], t: usize| values[t * ROWS + LARGE];
        for capture in [Capture::PerToken, Capture::DeltaLog, Capture::Final] {
            let (Some(a), Some(b)) = (self.call(&plain, capture, tally)?, self.call(&large, capture, tally)?) else {
                continue;
            };
            let at = |e| format!("capture {capture:?}, row {LARGE} beyond the range: {e}");
            let axes = [("token", tokens), ("row but one", ROWS - 1)];
            compare::bits("out", &rest(&b.out, 1), &rest(&a.out, 1), &axes).map_err(at)?;
            if !at_large(&b.out, 0).is_finite() || !at_large(&b.out, 1).is_nan() || !at_large(&b.out, 2).is_nan() {
                let got: Vec<f32> = (0..tokens).map(|t| at_large(&b.out, t)).collect();
                return Err(at(format!("`out` of the row is {got:?}, expected a number, then NaN")));
            }
            if capture == Capture::DeltaLog {
                let delta = |log: &LogData| rest(&log.delta[tokens * ROWS..], 1);
                compare::bits("log.delta", &delta(&b.log), &delta(&a.log), &axes).map_err(at)?;
            }
            let axes = [("row but one", ROWS - 1), ("column", k)];
            compare::bits("state", &rest(&b.state[ROWS * k..], k), &rest(&a.state[ROWS * k..], k), &axes)
                .map_err(at)?;
            for t in (0..tokens).filter(|_| capture == Capture::PerToken) {
                compare::bits("capture.states", &rest(b.captured(0, t), k), &rest(a.captured(0, t), k), &axes)
                    .map_err(at)?;
                let row = &b.captured(0, t)[LARGE * k..][..k];
                let expected: Vec<f32> = large.k[..k].iter().map(|k| self.dtype.round(large.v[LARGE] * k)).collect();
                if t == 0 {
                    compare::bits("capture.states", row, &expected, &[("column", k)]).map_err(at)?;
                }
            }
        }
        Ok(())
    }
}
