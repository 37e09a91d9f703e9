//! Rounds against single-token decoding: outputs, states and convolution windows, bit for bit.

mod common;

use common::{Model, bits, device};
use proptest::prelude::*;
use undraft::{Capture, Device, Error, PoolConfig, Slot, StatePool};

fn sizes() -> Vec<(usize, usize, usize, usize, usize)> {
    vec![(2, 4, 32, 48, 4), (1, 3, 17, 5, 2), (2, 2, 64, 64, 8)]
}

fn pool(model: &Model, device: &Device, num_slots: usize, capture: Capture) -> StatePool {
    let layers = model.layer_dims();
    StatePool::new(device, PoolConfig { capture, ..PoolConfig::new(layers, num_slots, 6) }).unwrap()
}

/// Bits of one token's outputs, layer by layer.
type Outputs = Vec<Vec<u32>>;
/// Bits of one layer's recurrent state and convolution window.
type States = (Vec<u32>, Vec<u32>);

/// Decodes the tokens one by one in a pool of its own: outputs of each token, then states and windows.
fn decode(model: &Model, tokens: &[u64]) -> (Vec<Outputs>, Vec<States>) {
    let mut pool = pool(model, &Device::cpu(), 1, Capture::DeltaLog);
    let slot = pool.alloc().unwrap();
    let mut outputs = Vec::new();
    for &token in tokens {
        let mut round = pool.begin_final(&[slot], &[1]).unwrap();
        outputs.push(model.verify(&mut round, &[token]).iter().map(|o| bits(o)).collect());
        round.commit(&[1]).unwrap();
    }
    (outputs, states(&mut pool, slot))
}

fn states(pool: &mut StatePool, slot: Slot) -> Vec<States> {
    (0..pool.num_layers())
        .map(|i| (bits(&pool.recurrent_state(i, slot).unwrap().to_f32()), bits(pool.conv_state(i, slot).unwrap())))
        .collect()
}

/// Outputs `[layer][N * HV * V]` cut to the tokens `from .. to`.
fn cut(outputs: &[Vec<f32>], num_tokens: usize, from: usize, to: usize) -> Vec<Vec<u32>> {
    outputs.iter().map(|o| bits(&o[from * o.len() / num_tokens..to * o.len() / num_tokens])).collect()
}

#[derive(Clone, Debug)]
enum Step {
    /// Windows and kept tokens of the slots; `None` drops the round.
    Round(Vec<(usize, usize, usize)>, bool),
    Fork(usize),
    Settle(usize),
    /// The first half of the slots in a detached round while the others run theirs.
    Overlap(usize, usize, usize),
    Prefill(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let window = (0..4usize, 0..=6usize, 0..=6usize);
    prop::collection::vec(
        prop_oneof![
            6 => (prop::collection::vec(window, 1..4), prop::bool::weighted(0.8)).prop_map(|(w, c)| Step::Round(w, c)),
            1 => (0..4usize).prop_map(Step::Fork),
            1 => (0..4usize).prop_map(Step::Settle),
            1 => (1..=6usize, 1..=6usize, 0..=6usize).prop_map(|(a, b, c)| Step::Overlap(a, b, c)),
            1 => (0..4usize, 0..9usize).prop_map(|(s, n)| Step::Prefill(s, n)),
        ],
        1..14,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Any sequence of rounds, rollbacks, forks, prefills and overlaps leaves each slot as decoding its kept tokens one
    /// by one, and each round's outputs are those of single steps.
    #[test]
    fn any_history_equals_decoding_the_kept_tokens(
        steps in steps(),
        per_token in any::<bool>(),
        threads in 1..3usize,
    ) {
        let model = Model::new(&sizes());
        let capture = if per_token { Capture::PerToken } else { Capture::DeltaLog };
        let mut pool = pool(&model, &device(threads), 5, capture);
        let mut slots: Vec<Slot> = (0..4).map(|_| pool.alloc().unwrap()).collect();
        let mut kept: Vec<Vec<u64>> = vec![Vec::new(); 4];
        let mut next_token = 1u64;
        let mut take = |n: usize| -> Vec<u64> {
            next_token += n as u64;
            (next_token - n as u64..next_token).collect()
        };
        let mut checks: Vec<(Vec<u64>, usize, Outputs)> = Vec::new();
        for step in steps {
            match step {
                Step::Round(mut parts, commit) => {
                    let mut seen = [false; 4];
                    parts.retain(|&(s, _, _)| !std::mem::replace(&mut seen[s], true));
                    let windows: Vec<usize> = parts.iter().map(|p| p.1).collect();
                    let tokens: Vec<Vec<u64>> = windows.iter().map(|&n| take(n)).collect();
                    let ids: Vec<Slot> = parts.iter().map(|p| slots[p.0]).collect();
                    let mut round = pool.begin(&ids, &windows).unwrap();
                    let all = tokens.concat();
                    let outputs = model.verify(&mut round, &all);
                    let mut at = 0;
                    for (part, tokens) in parts.iter().zip(&tokens).filter(|(_, t)| !t.is_empty()) {
                        let history = [&kept[part.0][..], tokens].concat();
                        checks.push((history, tokens.len(), cut(&outputs, all.len(), at, at + tokens.len())));
                        at += tokens.len();
                    }
                    if commit {
                        let num_kept: Vec<usize> = parts.iter().map(|p| p.2.min(p.1)).collect();
                        round.commit(&num_kept).unwrap();
                        for ((part, tokens), n) in parts.iter().zip(&tokens).zip(num_kept) {
                            kept[part.0].extend(&tokens[..n]);
                        }
                    } else {
                        round.rollback();
                    }
                }
                Step::Fork(from) => {
                    let to = (from + 1) % 4;
                    pool.free(slots[to]).unwrap();
                    slots[to] = pool.fork(slots[from]).unwrap();
                    kept[to] = kept[from].clone();
                }
                Step::Settle(s) => pool.settle(&[slots[s]]).unwrap(),
                Step::Overlap(a, b, n) => {
                    let (first, second) = (take(a), take(b));
                    let mut round = pool.begin(&slots[..1], &[a]).unwrap();
                    model.verify(&mut round, &first);
                    if per_token {
                        prop_assert_eq!(round.detach().err(), Some(Error::CannotDetach { capture }));
                        continue;
                    }
                    let detached = round.detach().unwrap();
                    prop_assert_eq!(pool.begin(&slots[..1], &[1]).err(), Some(Error::SlotBusy { slot: slots[0] }));
                    prop_assert_eq!(pool.fork(slots[0]).err(), Some(Error::SlotBusy { slot: slots[0] }));
                    let mut other = pool.begin(&slots[1..2], &[b]).unwrap();
                    model.verify(&mut other, &second);
                    other.commit(&[n.min(b)]).unwrap();
                    kept[1].extend(&second[..n.min(b)]);
                    pool.resume(detached).unwrap().commit(&[n.min(a)]).unwrap();
                    kept[0].extend(&first[..n.min(a)]);
                }
                Step::Prefill(s, n) => {
                    let tokens = take(n);
                    let mut round = pool.begin_final(&[slots[s]], &[n]).unwrap();
                    model.verify(&mut round, &tokens);
                    round.commit(&[n]).unwrap();
                    kept[s].extend(&tokens);
                }
            }
        }
        for (history, n, outputs) in checks {
            let (want, _) = decode(&model, &history);
            for layer in 0..outputs.len() {
                let want: Vec<u32> = want[history.len() - n..].iter().flat_map(|t| t[layer].clone()).collect();
                prop_assert_eq!(&outputs[layer], &want, "layer {}", layer);
            }
        }
        for s in 0..4 {
            prop_assert_eq!(states(&mut pool, slots[s]), decode(&model, &kept[s]).1, "slot {}", s);
        }
    }
}

#[test]
fn every_number_of_kept_tokens_equals_decoding_them() {
    let model = Model::new(&sizes());
    for capture in [Capture::DeltaLog, Capture::PerToken] {
        for num_kept in 0..=6 {
            let mut pool = pool(&model, &Device::cpu(), 1, capture);
            let slot = pool.alloc().unwrap();
            let tokens: Vec<u64> = (1..=6).collect();
            let mut round = pool.begin(&[slot], &[6]).unwrap();
            model.verify(&mut round, &tokens);
            round.commit(&[num_kept]).unwrap();
            assert_eq!(states(&mut pool, slot), decode(&model, &tokens[..num_kept]).1, "{capture:?}, {num_kept} kept");
        }
    }
}

#[test]
fn padding_sequences_give_zeros_and_touch_nothing() {
    let model = Model::new(&sizes());
    let mut pool = pool(&model, &device(2), 2, Capture::DeltaLog);
    let (a, b) = (pool.alloc().unwrap(), pool.alloc().unwrap());
    let mut round = pool.begin(&[a, Slot::PAD, b], &[2, 3, 1]).unwrap();
    let outputs = model.verify(&mut round, &[1, 2, 90, 91, 92, 3]);
    round.commit(&[2, 1, 1]).unwrap();
    for (layer, out) in cut(&outputs, 6, 2, 5).iter().enumerate() {
        assert!(out.iter().all(|&x| x == 0), "layer {layer}");
    }
    assert_eq!(states(&mut pool, a), decode(&model, &[1, 2]).1);
    assert_eq!(states(&mut pool, b), decode(&model, &[3]).1);
}
