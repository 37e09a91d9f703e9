//! The oracle against numbers worked by hand, laws of the recurrence, and the matrix form.

use undraft_core::ops::GateActivation;
use undraft_core::{Activation, DType, HeadMap};
use undraft_testing::Rng;
use undraft_testing::oracle::causal_conv1d_update::Conv;
use undraft_testing::oracle::chunk_gated_delta_rule::Chunk;
use undraft_testing::oracle::commit_states::Commit;
use undraft_testing::oracle::fused_gdn_gating::Gating;
use undraft_testing::oracle::fused_recurrent_gated_delta_rule::{Beta, Decay, DeltaRule, Log, Sizes, key_head};
use undraft_testing::oracle::rms_norm_gated::Norm;

/// One head, K = V = 2, one sequence in slot 0.
fn two_by_two(tokens: usize) -> DeltaRule {
    DeltaRule {
        sizes: Sizes { h: 1, hv: 1, k: 2, v: 2, decay: 1 },
        q: vec![0.0; 2 * tokens],
        k: vec![0.0; 2 * tokens],
        v: vec![0.0; 2 * tokens],
        decay: Decay::Linear(vec![1.0; tokens]),
        beta: Beta::Value(vec![1.0; tokens]),
        scale: 1.0,
        head_map: HeadMap::Grouped,
        l2_norm_eps: None,
        rounding: None,
        lens: vec![tokens],
        parents: chain(tokens),
        slots: vec![Some(0)],
        state: vec![0.0; 4],
        state_dtype: DType::F32,
        log: Log::default(),
        pending: vec![vec![]],
    }
}

/// Each token after the one before it.
fn chain(tokens: usize) -> Vec<Option<usize>> {
    (0..tokens).map(|t| t.checked_sub(1)).collect()
}

fn close(got: &[f64], expected: &[f64], bound: f64) {
    assert_eq!(got.len(), expected.len());
    let scale = expected.iter().fold(1e-300, |m: f64, x| m.max(x.abs()));
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!((g - e).abs() <= bound * scale, "[{i}]: got {g}, expected {e}");
    }
}

#[test]
fn one_token_by_hand() {
    let rule = DeltaRule {
        q: vec![1.0, 2.0],
        k: vec![0.5, -1.0],
        v: vec![3.0, 5.0],
        decay: Decay::Linear(vec![0.5]),
        beta: Beta::Value(vec![0.25]),
        scale: 2.0,
        state: vec![4.0, 8.0, -2.0, 6.0],
        ..two_by_two(1)
    };
    let solution = rule.solve(true);
    // Decayed: [2 4; -1 3]. S k = [2 * 0.5 - 4, -0.5 - 3] = [-3, -3.5]. delta = [6, 8.5] / 4 = [1.5, 2.125].
    close(&solution.delta, &[1.5, 2.125], 0.0);
    // S + delta k^T = [2 + 0.75, 4 - 1.5; -1 + 1.0625, 3 - 2.125].
    close(&solution.state_after, &[2.75, 2.5, 0.0625, 0.875], 0.0);
    // 2 * [2.75 + 5, 0.0625 + 1.75].
    close(&solution.out, &[15.5, 3.625], 0.0);
    assert_eq!(solution.states[0], solution.state_after);
    assert_eq!((solution.k, solution.decay), (vec![0.5, -1.0], vec![0.5]));
    assert_eq!(solution.state_before, rule.state);
}

#[test]
fn two_tokens_by_hand() {
    let rule = DeltaRule {
        q: vec![1.0, 0.0, 1.0, 1.0],
        k: vec![1.0, 0.0, 0.0, 1.0],
        v: vec![2.0, 4.0, 6.0, 8.0],
        decay: Decay::Linear(vec![1.0, 0.5]),
        beta: Beta::Value(vec![1.0, 0.5]),
        ..two_by_two(2)
    };
    let solution = rule.solve(true);
    // S_1 = v_0 k_0^T = [2 0; 4 0]; halved [1 0; 2 0]; S_1 k_1 = 0; delta = v_1 / 2 = [3, 4]; S_2 = [1 3; 2 4].
    close(&solution.states[0], &[2.0, 0.0, 4.0, 0.0], 0.0);
    close(&solution.states[1], &[1.0, 3.0, 2.0, 4.0], 0.0);
    close(&solution.out, &[2.0, 4.0, 4.0, 6.0], 0.0);
}

#[test]
fn forms_of_decay_and_beta_by_hand() {
    let half = 0.5f64.ln();
    let gate = Decay::Gate {
        // softplus(a + dt_bias) = ln(1 + e^(ln 3)) = ln 4 and exp(A_log) = 1/2: factor 4^(-1/2).
        a: vec![3f64.ln() - 0.25],
        a_log: vec![half],
        dt_bias: vec![0.25],
    };
    for decay in [Decay::Linear(vec![0.5]), Decay::Log(vec![half]), Decay::NegLog(vec![-half]), gate] {
        for beta in [Beta::Value(vec![0.75]), Beta::Logit(vec![3f64.ln()])] {
            let rule = DeltaRule {
                k: vec![1.0, 0.0],
                v: vec![1.0, 0.0],
                state: vec![4.0, 2.0, 0.0, 0.0],
                decay: decay.clone(),
                beta,
                ..two_by_two(1)
            };
            // [2 1], read 2, delta = (1 - 2) * 0.75.
            close(&rule.solve(false).state_after, &[1.25, 1.0, 0.0, 0.0], 1e-15);
        }
    }
}

#[test]
fn normalised_and_rounded_keys_by_hand() {
    // |k|^2 + eps = 9 + 16 - 24: the root is 1. Without eps it is 5.
    for (eps, expected) in [(-24.0, [3.0, 4.0]), (0.0, [0.6, 0.8])] {
        let rule = DeltaRule { k: vec![3.0, 4.0], l2_norm_eps: Some(eps), ..two_by_two(1) };
        close(&rule.solve(false).k, &expected, 1e-15);
    }
    // bf16 has 7 bits after the leading one: 0.6 = 1.2 / 2 rounds to 154 / 256, 0.8 = 1.6 / 2 to 205 / 256.
    let rule = DeltaRule {
        k: vec![3.0, 4.0],
        l2_norm_eps: Some(0.0),
        rounding: Some(DType::Bf16),
        beta: Beta::Value(vec![1.0 + 1.0 / 256.0 + 1e-9]),
        v: vec![1.0, 0.0],
        ..two_by_two(1)
    };
    let solution = rule.solve(false);
    close(&solution.k, &[154.0 / 256.0, 205.0 / 256.0], 0.0);
    // Beta lies just over the middle of 1 and 1 + 2/256.
    close(&solution.delta, &[1.0 + 2.0 / 256.0, 0.0], 0.0);
}

#[test]
fn head_maps_by_hand() {
    let map = |map| (0..6).map(|hv| key_head(map, hv, 2, 6)).collect::<Vec<_>>();
    assert_eq!(map(HeadMap::Grouped), [0, 0, 0, 1, 1, 1]);
    assert_eq!(map(HeadMap::Tiled), [0, 1, 0, 1, 0, 1]);
    // Key heads [1] and [10], value heads v = 1: S = k.
    for (head_map, expected) in [(HeadMap::Grouped, [1.0, 1.0, 10.0, 10.0]), (HeadMap::Tiled, [1.0, 10.0, 1.0, 10.0])] {
        let rule = DeltaRule {
            sizes: Sizes { h: 2, hv: 4, k: 1, v: 1, decay: 1 },
            q: vec![1.0, 1.0],
            k: vec![1.0, 10.0],
            v: vec![1.0; 4],
            decay: Decay::Linear(vec![1.0; 4]),
            beta: Beta::Value(vec![1.0; 4]),
            head_map,
            state: vec![0.0; 4],
            ..two_by_two(1)
        };
        close(&rule.solve(false).state_after, &expected, 0.0);
    }
}

#[test]
fn ragged_padded_and_pending_by_hand() {
    // Sequences of 1 token (slot 2), 2 tokens (padding), 0 tokens (slot 0, two entries pending). K = V = 1.
    let rule = DeltaRule {
        sizes: Sizes { h: 1, hv: 1, k: 1, v: 1, decay: 1 },
        q: vec![1.0, f64::NAN, f64::NAN],
        k: vec![1.0, f64::NAN, f64::NAN],
        v: vec![5.0, f64::NAN, f64::NAN],
        decay: Decay::Linear(vec![0.5, f64::NAN, f64::NAN]),
        beta: Beta::Value(vec![1.0, f64::NAN, f64::NAN]),
        lens: vec![1, 2, 0],
        parents: vec![None, None, Some(0)],
        slots: vec![Some(2), None, Some(0)],
        state: vec![8.0, 7.0, 6.0],
        log: Log {
            k: vec![2.0, 3.0, 0.0, 0.0, 1.0, 0.0],
            decay: vec![0.5, 0.25, 0.0, 0.0, 0.5, 0.0],
            delta: vec![1.0, 4.0, 0.0, 0.0, -1.0, 0.0],
            max_tokens: 2,
        },
        pending: vec![vec![0], vec![7], vec![0, 1]],
        ..two_by_two(3)
    };
    let solution = rule.solve(true);
    // Slot 0: 8 * 0.5 + 1 * 2 = 6; 6 * 0.25 + 4 * 3 = 13.5. Slot 2: 6 * 0.5 - 1 = 2, then v = 5 is read back.
    close(&solution.state_before, &[13.5, 7.0, 2.0], 0.0);
    close(&solution.state_after, &[13.5, 7.0, 5.0], 0.0);
    close(&solution.out, &[5.0, 0.0, 0.0], 0.0);
    assert_eq!(solution.states, [vec![5.0], vec![], vec![]]);
    let commit = Commit {
        sizes: rule.sizes,
        head_map: rule.head_map,
        state: rule.state.clone(),
        state_dtype: DType::F32,
        log: rule.log.clone(),
        slots: rule.slots.clone(),
        kept: rule.pending.clone(),
    };
    close(&commit.solve(), &[13.5, 7.0, 2.0], 0.0);
}

#[test]
fn decay_per_channel_by_hand() {
    let rule = DeltaRule {
        sizes: Sizes { h: 1, hv: 1, k: 2, v: 2, decay: 2 },
        q: vec![1.0, 2.0],
        k: vec![0.5, -1.0],
        v: vec![3.0, 5.0],
        decay: Decay::Linear(vec![0.5, 0.25]),
        state: vec![4.0, 8.0, -2.0, 4.0],
        ..two_by_two(1)
    };
    let solution = rule.solve(false);
    // Decayed: [2 2; -1 1]. S k = [1 - 2, -0.5 - 1]. delta = [4, 6.5]. S = [2 + 2, 2 - 4; -1 + 3.25, 1 - 6.5].
    close(&solution.state_after, &[4.0, -2.0, 2.25, -5.5], 0.0);
    close(&solution.out, &[0.0, -8.75], 0.0);
    assert_eq!(solution.decay, [0.5, 0.25]);
    // The gate: one A_log a head, a bias a channel. softplus(ln 3) = ln 4, so exp(A_log) = 1/2 gives 1/2 and 4^-(1/2) = 1/2.
    let gate = Decay::Gate { a: vec![0.0, 3f64.ln()], a_log: vec![0.5f64.ln()], dt_bias: vec![3f64.ln(), 0.0] };
    close(&DeltaRule { decay: gate, ..rule.clone() }.solve(false).decay, &[0.5, 0.5], 1e-15);
    // A replayed entry: column j of [4 8; -2 4] by [0.5, 0.25], then delta [1, 2] times k [1, 0].
    let log = Log { k: vec![1.0, 0.0], decay: vec![0.5, 0.25], delta: vec![1.0, 2.0], max_tokens: 1 };
    let replayed = DeltaRule { log, pending: vec![vec![0]], ..rule }.solve(false);
    close(&replayed.state_before, &[3.0, 2.0, 1.0, 1.0], 0.0);
}

#[test]
fn sixteen_bit_states_by_hand() {
    // bf16 keeps 7 bits after the leading one. 1 + 2^-8 lies in the middle of 1 and 1 + 2^-7: to the even one, 1.
    let middle = 1.0 + 2f64.powi(-8);
    let rule = DeltaRule {
        sizes: Sizes { h: 1, hv: 1, k: 1, v: 2, decay: 1 },
        q: vec![1.0, 1.0],
        k: vec![1.0, 1.0],
        v: vec![middle, 1.0 + 3.0 * 2f64.powi(-8), 0.0, 0.0],
        decay: Decay::Linear(vec![1.0, 1.0]),
        beta: Beta::Value(vec![1.0, 0.0]),
        state: vec![0.0; 2],
        state_dtype: DType::Bf16,
        ..two_by_two(2)
    };
    let solution = rule.solve(true);
    // The first output sees the state before its rounding, the second one that after it.
    close(&solution.out, &[middle, 1.0 + 3.0 * 2f64.powi(-8), 1.0, 1.0 + 2f64.powi(-6)], 0.0);
    close(&solution.states[0], &[1.0, 1.0 + 2f64.powi(-6)], 0.0);
    // Every replayed entry is rounded: 1 + 2^-8 twice stays 1, and rounding at the end would give 1 + 2^-7.
    let log = Log {
        k: vec![1.0; 2],
        decay: vec![1.0; 2],
        delta: vec![2f64.powi(-8), 0.0, 2f64.powi(-8), 0.0],
        max_tokens: 2,
    };
    let replayed =
        DeltaRule { log, state: vec![1.0, 1.0], lens: vec![0], parents: vec![], pending: vec![vec![0, 1]], ..rule };
    close(&replayed.solve(false).state_before, &[1.0, 1.0], 0.0);
}

#[test]
fn trees_and_paths_by_hand() {
    // K = V = 1, k = q = 1, no decay, beta 1/2: each token moves the state halfway to its v.
    //   8 -> 0 (v 4): 6 -> 1 (v 2): 4 -> 3 (v 0): 2
    //                   -> 2 (v 10): 8
    //     -> 4 (v 0): 4
    let rule = DeltaRule {
        sizes: Sizes { h: 1, hv: 1, k: 1, v: 1, decay: 1 },
        q: vec![1.0; 5],
        k: vec![1.0; 5],
        v: vec![4.0, 2.0, 10.0, 0.0, 0.0],
        decay: Decay::Linear(vec![1.0; 5]),
        beta: Beta::Value(vec![0.5; 5]),
        lens: vec![5],
        parents: vec![None, Some(0), Some(0), Some(1), None],
        state: vec![8.0],
        ..two_by_two(5)
    };
    let solution = rule.solve(true);
    close(&solution.out, &[6.0, 4.0, 8.0, 2.0, 4.0], 0.0);
    close(&solution.delta, &[-2.0, -2.0, 2.0, -2.0, -4.0], 0.0);
    close(&solution.states.concat(), &[6.0, 4.0, 8.0, 2.0, 4.0], 0.0);
    // The path 0, 1, 3 of the log, not its first three entries.
    let log =
        Log { k: solution.k.clone(), decay: solution.decay.clone(), delta: solution.delta.clone(), max_tokens: 5 };
    let commit = Commit {
        sizes: rule.sizes,
        head_map: rule.head_map,
        state: rule.state.clone(),
        state_dtype: DType::F32,
        log: log.clone(),
        slots: vec![Some(0)],
        kept: vec![vec![0, 1, 3]],
    };
    close(&commit.solve(), &[2.0], 0.0);
    let next = DeltaRule { log, pending: vec![vec![0, 2]], ..rule };
    close(&next.solve(false).state_before, &[8.0], 0.0);
}

/// Random values for one head.
fn random(rng: &mut Rng, tokens: usize, k: usize, v: usize) -> DeltaRule {
    let mut normals = |n: usize| (0..n).map(|_| rng.normal()).collect::<Vec<f64>>();
    let (q, keys, values, state) = (normals(tokens * k), normals(tokens * k), normals(tokens * v), normals(v * k));
    DeltaRule {
        sizes: Sizes { h: 1, hv: 1, k, v, decay: 1 },
        q,
        k: keys,
        v: values,
        decay: Decay::Log((0..tokens).map(|_| -rng.uniform()).collect()),
        beta: Beta::Value((0..tokens).map(|_| 2.0 * rng.uniform()).collect()),
        scale: 0.5,
        l2_norm_eps: Some(1e-6),
        lens: vec![tokens],
        parents: chain(tokens),
        state,
        ..two_by_two(1)
    }
}

#[test]
fn no_decay_and_no_beta_leave_the_state() {
    let mut rng = Rng::new(2);
    let rule =
        DeltaRule { decay: Decay::Log(vec![0.0; 7]), beta: Beta::Value(vec![0.0; 7]), ..random(&mut rng, 7, 5, 3) };
    assert_eq!(rule.solve(false).state_after, rule.state);
}

#[test]
fn beta_one_reads_the_value_back() {
    let mut rng = Rng::new(3);
    let mut rule = random(&mut rng, 6, 5, 3);
    rule.q = rule.k.clone();
    rule.l2_norm_eps = Some(0.0);
    rule.beta = Beta::Value(vec![1.0; 6]);
    rule.scale = 1.0;
    close(&rule.solve(false).out, &rule.v, 1e-14);
}

#[test]
fn alpha_zero_forgets() {
    let mut rng = Rng::new(4);
    let mut rule = random(&mut rng, 4, 5, 3);
    rule.decay = Decay::Linear(vec![0.9, 0.9, 0.0, 0.9]);
    let whole = rule.solve(true);
    let mut other = rule.clone();
    other.state = vec![1e6; 15];
    close(&other.solve(true).states[2], &whole.states[2], 1e-14);
    close(&other.solve(true).states[3], &whole.states[3], 1e-14);
}

#[test]
fn the_final_state_is_affine_in_the_first() {
    // S_T = S_0 M + N: so S(a + b) - S(a) - S(b) + S(0) = 0 and S(2a) - 2 S(a) + S(0) = 0.
    let mut rng = Rng::new(5);
    for (tokens, k, v) in [(1, 1, 1), (5, 3, 4), (17, 8, 2)] {
        let rule = random(&mut rng, tokens, k, v);
        let b: Vec<f64> = (0..k * v).map(|_| rng.normal()).collect();
        let run = |state: Vec<f64>| DeltaRule { state, ..rule.clone() }.solve(false).state_after;
        let sum = run(rule.state.iter().zip(&b).map(|(a, b)| a + b).collect());
        let (of_a, of_b, of_zero) = (run(rule.state.clone()), run(b.clone()), run(vec![0.0; k * v]));
        let expected: Vec<f64> = (0..k * v).map(|i| of_a[i] + of_b[i] - of_zero[i]).collect();
        close(&sum, &expected, 1e-12);
        // Rows are independent, and each is moved by the same M: K runs of one row give it.
        let m: Vec<Vec<f64>> = (0..k)
            .map(|j| {
                let unit: Vec<f64> = (0..k * v).map(|i| f64::from(i % k == j)).collect();
                run(unit).iter().zip(&of_zero).map(|(a, n)| a - n).collect()
            })
            .collect();
        let affine: Vec<f64> =
            (0..k * v).map(|i| of_zero[i] + (0..k).map(|j| rule.state[i / k * k + j] * m[j][i]).sum::<f64>()).collect();
        close(&of_a, &affine, 1e-12);
    }
}

#[test]
fn the_matrix_form_agrees() {
    let mut rng = Rng::new(6);
    for (tokens, k, v) in [(0, 2, 2), (1, 2, 2), (2, 1, 3), (7, 4, 3), (64, 16, 5), (65, 3, 17)] {
        let rule = random(&mut rng, tokens, k, v);
        let solution = rule.solve(false);
        let (Decay::Log(g), Beta::Value(beta)) = (&rule.decay, &rule.beta) else { panic!("as `random` makes it") };
        let rows = |values: &[f64], len: usize| values.chunks(len).map(<[f64]>::to_vec).collect::<Vec<_>>();
        let unit = |row: &[f64]| {
            let length = (row.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            row.iter().map(|x| x / length).collect::<Vec<f64>>()
        };
        let chunk = Chunk {
            q: rule.q.chunks(k).map(unit).collect(),
            k: rule.k.chunks(k).map(unit).collect(),
            v: rows(&rule.v, v),
            g: g.clone(),
            beta: beta.clone(),
            scale: rule.scale,
        };
        let (out, state) = chunk.solve(&rows(&rule.state, k));
        close(&solution.out, &out.concat(), 1e-12);
        close(&solution.state_after, &state.concat(), 1e-12);
    }
}

#[test]
fn convolution_by_hand() {
    // W = 3, C = 2, weight [1 10; 2 20; 3 30] tap-major; slot 1 holds [1 5; 2 6]; one entry [3 7] pending.
    let conv = Conv {
        channels: 2,
        width: 3,
        x: vec![4.0, 8.0, 5.0, 9.0, f64::NAN, f64::NAN],
        weight: vec![1.0, 10.0, 2.0, 20.0, 3.0, 30.0],
        bias: Some(vec![0.5, -1.0]),
        activation: Activation::None,
        lens: vec![2, 1],
        slots: vec![Some(1), None],
        state: vec![0.0, 0.0, 0.0, 0.0, 1.0, 5.0, 2.0, 6.0],
        log: vec![0.0, 0.0, 3.0, 7.0],
        max_tokens: 1,
        parents: vec![None, Some(0), None],
        pending: vec![vec![0], vec![0]],
    };
    let solution = conv.solve();
    // Channel 0: 0.5 + 1*2 + 2*3 + 3*4 = 20.5, 0.5 + 1*3 + 2*4 + 3*5 = 26.5. Channel 1: -1 + 60 + 140 + 240, -1 + 70 + 160 + 270.
    close(&solution.out, &[20.5, 439.0, 26.5, 499.0, 0.0, 0.0], 0.0);
    close(&solution.state_before, &[0.0, 0.0, 0.0, 0.0, 2.0, 6.0, 3.0, 7.0], 0.0);
    close(&solution.state_after, &[0.0, 0.0, 0.0, 0.0, 4.0, 8.0, 5.0, 9.0], 0.0);
    // silu(ln 3) = ln 3 * 3/4; the sum is the present token times its tap.
    let silu = Conv {
        channels: 1,
        width: 2,
        x: vec![3f64.ln()],
        weight: vec![9.0, 1.0],
        bias: None,
        activation: Activation::Silu,
        lens: vec![1],
        slots: vec![Some(0)],
        state: vec![0.0],
        log: vec![],
        max_tokens: 0,
        parents: vec![None],
        pending: vec![vec![]],
    };
    close(&silu.solve().out, &[0.75 * 3f64.ln()], 1e-15);
}

#[test]
fn convolution_of_a_tree_by_hand() {
    // W = 3, weight [1 2 4]; state [1, 2], entries 10, 20, 30 of the log, of which 0 and 2 are pending: [10, 30].
    //   [10, 30] -> 0 (x 1): 10 + 60 + 4 -> 1 (x 2): 30 + 2 + 8
    //                                    -> 2 (x 3): 30 + 2 + 12 -> 3 (x 5): 1 + 6 + 20
    let conv = Conv {
        channels: 1,
        width: 3,
        x: vec![1.0, 2.0, 3.0, 5.0],
        weight: vec![1.0, 2.0, 4.0],
        bias: None,
        activation: Activation::None,
        lens: vec![4],
        slots: vec![Some(0)],
        state: vec![1.0, 2.0],
        log: vec![10.0, 20.0, 30.0],
        max_tokens: 3,
        parents: vec![None, Some(0), Some(0), Some(2)],
        pending: vec![vec![0, 2]],
    };
    let solution = conv.solve();
    close(&solution.out, &[74.0, 40.0, 44.0, 27.0], 0.0);
    close(&solution.state_before, &[10.0, 30.0], 0.0);
    close(&solution.state_after, &[3.0, 5.0], 0.0);
}

#[test]
fn gate_by_hand() {
    let gating = Gating {
        num_tokens: 1,
        num_v_heads: 2,
        decay_dim: 1,
        a: vec![3f64.ln() - 1.0, -40.0],
        b: vec![0.0, 3f64.ln()],
        a_log: vec![2f64.ln(), 0.0],
        dt_bias: vec![1.0, 0.0],
    };
    let (g, beta) = gating.solve();
    close(&g[..1], &[-2.0 * 4f64.ln()], 1e-15);
    close(&g[1..], &[-(-40f64).exp()], 1e-15);
    close(&beta, &[0.5, 0.75], 1e-15);
}

#[test]
fn gate_per_channel_by_hand() {
    let gating = Gating {
        num_tokens: 1,
        num_v_heads: 2,
        decay_dim: 2,
        a: vec![0.0, 3f64.ln(), 0.0, 0.0],
        b: vec![0.0, 3f64.ln()],
        a_log: vec![2f64.ln(), 0.0],
        dt_bias: vec![3f64.ln(), 0.0, 0.0, 3f64.ln()],
    };
    let (g, beta) = gating.solve();
    close(&g, &[-2.0 * 4f64.ln(), -2.0 * 4f64.ln(), -(2f64.ln()), -(4f64.ln())], 1e-15);
    close(&beta, &[0.5, 0.75], 1e-15);
}

#[test]
fn norm_by_hand() {
    // mean(x^2) = (9 + 16) / 2 = 12.5, eps 3.5: the root is 4.
    let norm = Norm {
        num_rows: 1,
        num_heads: 1,
        head_dim: 2,
        x: vec![3.0, 4.0],
        z: vec![3f64.ln(), -3f64.ln()],
        weight: vec![2.0, -1.0],
        eps: 3.5,
        activation: GateActivation::Sigmoid,
    };
    close(&norm.solve(), &[1.5 * 0.75, -0.25], 1e-15);
    let silu = Norm { activation: GateActivation::Silu, ..norm };
    close(&silu.solve(), &[1.5 * 0.75 * 3f64.ln(), 0.25 * 3f64.ln()], 1e-15);
}
