//! A token of a tree gets the bits that decoding its path gives, and a path that is kept leaves what its tokens leave.

mod runner;

use runner::{Mode, NEXT, ODD, Rows, TRAINED, bits, cache, cache_bits, device, load, load_on, random_tokens, run};
use undraft::cpu::Isa;
use undraft_model::Model;
use undraft_model::drafters::{Candidate, Drafts};
use undraft_model::error::ModelError;
use undraft_model::model::{DraftStep, Forward, HybridCache, TreeShape};
use undraft_model::sampling::{Sampler, SamplingParams};
use undraft_testing::Rng;

/// Random parents: chains, bushes and several roots.
fn random_parents(rng: &mut Rng, n: usize) -> Vec<i32> {
    let parent = |i: usize, rng: &mut Rng| match rng.below(3) {
        0 => i as i32 - 1,
        _ => rng.below(i + 1) as i32 - 1,
    };
    (0..n).map(|i| parent(i, rng)).collect()
}

/// The path to a token, root first.
fn path_to(parents: &[i32], token: usize) -> Vec<usize> {
    let mut path = vec![token];
    while let Ok(parent) = usize::try_from(parents[path[path.len() - 1]]) {
        path.push(parent);
    }
    path.reverse();
    path
}

/// What decoding these tokens gives, and leaves.
fn decoded(model: &Model, tokens: &[u32]) -> (Rows, HybridCache) {
    let mut cache = cache(model);
    let rows = run(model, &mut cache, tokens, Mode::Decode);
    (rows, cache)
}

fn check(model: &Model, prefix_len: usize, rng: &mut Rng, what: &str) {
    let (vocab_size, hidden_size) = (model.config().vocab_size, model.config().hidden_size);
    let mut committed = random_tokens(model, prefix_len as u64, prefix_len);
    let (mut tree, mut out) = (cache(model), Forward::new());
    run(model, &mut tree, &committed, Mode::Verify(8));
    for round in 0..4 {
        let n = 1 + rng.below(8);
        let parents = random_parents(rng, n);
        let tokens: Vec<u32> = (0..n).map(|_| rng.below(vocab_size) as u32).collect();
        let kept = if rng.one_in(6) { Vec::new() } else { path_to(&parents, rng.below(n)) };
        // A tree that is taken back was never there.
        model.verify_tree(&mut tree, &tokens, &parents, &mut out).unwrap().rollback();
        let window = model.verify_tree(&mut tree, &tokens, &parents, &mut out).unwrap();
        assert_eq!(window.num_tokens(), n);
        window.commit_path(&kept).unwrap();
        for token in 0..n {
            let mut sequence = committed.clone();
            sequence.extend(path_to(&parents, token).iter().map(|&at| tokens[at]));
            let (rows, _) = decoded(model, &sequence);
            let what = format!("{what}, round {round}, {parents:?}, token {token}");
            let logits = &rows.logits[(sequence.len() - 1) * vocab_size..];
            assert!(bits(out.token_logits(token).unwrap()) == bits(logits), "{what}: logits");
            let hidden = &rows.hidden[(sequence.len() - 1) * hidden_size..];
            assert!(bits(out.token_hidden(token).unwrap()) == bits(hidden), "{what}: hidden state");
        }
        committed.extend(kept.iter().map(|&at| tokens[at]));
        assert_eq!(tree.len(), committed.len());
        // The next round replays what is kept, unless it is looked at.
        if round % 2 == 1 {
            let (_, mut want) = decoded(model, &committed);
            assert!(cache_bits(model, &mut tree) == cache_bits(model, &mut want), "{what}, round {round}: what stays");
        }
    }
}

#[test]
fn every_token_of_a_tree_is_decoding_its_path() {
    for (path, isas, seeds) in [
        (TRAINED, &[Isa::Avx2, Isa::Avx512, Isa::Neon][..], 1),
        (NEXT, &[Isa::Avx2, Isa::Avx512, Isa::Neon], 3),
        (ODD, &[Isa::Avx2, Isa::Avx512, Isa::Neon], 3),
        (ODD, &[Isa::Scalar], 1),
    ] {
        for &isa in isas {
            let Some(device) = device(isa, 2) else { continue };
            let model = load_on(path, &device);
            for seed in 0..seeds {
                let mut rng = Rng::new(seed);
                // Behind almost a block of keys, so that trees reach into the next one; behind little; behind nothing.
                for prefix_len in if isa == Isa::Scalar { [3, 0] } else { [60, 0] } {
                    check(&model, prefix_len, &mut rng, &format!("{path}, {isa}, seed {seed}, behind {prefix_len}"));
                }
            }
        }
    }
}

#[test]
fn a_chain_is_a_tree_too() {
    for path in [NEXT, ODD] {
        let model = load(path);
        let tokens = random_tokens(&model, 4, 8);
        let (mut chain, mut tree, mut out) = (cache(&model), cache(&model), Forward::new());
        let window = model.verify(&mut chain, &tokens, &mut out).unwrap();
        let want = bits(out.logits());
        window.commit_path(&[0, 1, 2]).unwrap();
        let window = model.verify_tree(&mut tree, &tokens, &[-1, 0, 1, 2, 3, 4, 5, 6], &mut out).unwrap();
        assert!(bits(out.logits()) == want, "{path}");
        window.commit(3).unwrap();
        assert!(cache_bits(&model, &mut chain) == cache_bits(&model, &mut tree), "{path}");
    }
}

#[test]
fn wrong_trees_and_paths_are_refused_and_leave_the_cache_as_it_was() {
    let model = load(NEXT);
    let (mut cache, mut out) = (cache(&model), Forward::new());
    run(&model, &mut cache, &[5, 6, 7], Mode::Decode);
    let before = cache_bits(&model, &mut cache);
    for (parents, index) in [([0, 0, 1], 0), ([-1, 1, 0], 1), ([-1, -2, 0], 1), ([-1, 0, i32::MAX], 2)] {
        let error = model.verify_tree(&mut cache, &[1, 2, 3], &parents, &mut out).unwrap_err();
        assert!(matches!(error, ModelError::TreeParent { index: i, .. } if i == index), "{error}");
    }
    let error = model.verify_tree(&mut cache, &[1, 2, 3], &[-1, 0], &mut out).unwrap_err();
    assert!(matches!(error, ModelError::TreeParents { found: 2, num_tokens: 3 }), "{error}");
    let error = model.verify_tree(&mut cache, &[1; 9], &[-1; 9], &mut out).unwrap_err();
    assert!(matches!(error, ModelError::Pool(_)), "{error}");
    // 0 and 1 follow what is committed, 2 follows 0, 3 follows 1.
    let parents = [-1, -1, 0, 1];
    for (path, index) in [(&[2][..], 0), (&[0, 1], 1), (&[0, 3], 1), (&[0, 2, 3], 2), (&[4], 0), (&[0, 0], 1)] {
        let window = model.verify_tree(&mut cache, &[1, 2, 3, 4], &parents, &mut out).unwrap();
        let error = window.commit_path(path).unwrap_err();
        assert!(matches!(error, ModelError::TreePath { index: i, .. } if i == index), "{path:?}: {error}");
    }
    let window = model.verify_tree(&mut cache, &[1, 2, 3, 4], &parents, &mut out).unwrap();
    assert!(matches!(window.commit(2).unwrap_err(), ModelError::TreePath { index: 1, .. }));
    let window = model.verify(&mut cache, &[1, 2, 3], &mut out).unwrap();
    assert!(matches!(window.commit_path(&[0, 2]).unwrap_err(), ModelError::TreePath { index: 1, found: 2, .. }));
    assert!(cache_bits(&model, &mut cache) == before);
}

#[test]
fn trees_of_the_head_depend_on_true_pairs_alone() {
    for path in [TRAINED, NEXT, ODD] {
        let model = load(path);
        let mtp = model.mtp().unwrap();
        let tokens = random_tokens(&model, 9, 71);
        let hidden = run(&model, &mut cache(&model), &tokens[..70], Mode::Decode).hidden;
        let mut pairs = mtp.new_cache(120).unwrap();
        mtp.feed(&mut pairs, &hidden, &tokens[1..]).unwrap();
        let before = (bits(&pairs.kv().keys()), bits(&pairs.kv().values()));
        let shape = TreeShape::new(&[3, 2, 2, 2]).unwrap();
        let mut drafts = Drafts::new();
        // Every state that the tree comes from, by depth and the token that is likeliest behind it.
        let mut seen = Vec::new();
        let mut rank = |step: DraftStep<'_>, width: usize, candidates: &mut Vec<Candidate>| {
            seen.push((step.index, bits(step.logits)));
            Sampler::new(SamplingParams::default())?.candidates(step.logits, step.position as u64, width, candidates)
        };
        let n = mtp.draft_tree(&mut pairs, &shape, (40, 4), &mut rank, &mut drafts).unwrap();
        assert_eq!((n, drafts.len()), (3 + 6 + 12 + 19, 40), "{path}");
        assert!((bits(&pairs.kv().keys()), bits(&pairs.kv().values())) == before, "{path}: pairs");
        // The head's logits behind a path are those of the chain that drafts this path.
        for node in 0..drafts.len() {
            let path_tokens: Vec<u32> = path_to(drafts.parents(), node).iter().map(|&at| drafts.tokens()[at]).collect();
            let (mut chain, mut forced) = (Vec::new(), path_tokens.iter());
            let mut last = Vec::new();
            let mut force = |step: DraftStep<'_>| {
                last = bits(step.logits);
                Ok(*forced.next().unwrap())
            };
            mtp.draft(&mut pairs, path_tokens.len(), &mut force, &mut chain).unwrap();
            let depth = path_tokens.len() - 1;
            assert!(seen.contains(&(depth, last)), "{path}: {path_tokens:?}");
        }
        // Fewer drafts than the shape has room for are the likeliest paths.
        let few = mtp.draft_tree(
            &mut pairs,
            &shape,
            (5, 2),
            &mut |step, width, candidates| {
                Sampler::new(SamplingParams::default())?.candidates(
                    step.logits,
                    step.position as u64,
                    width,
                    candidates,
                )
            },
            &mut drafts,
        );
        assert_eq!(few.unwrap(), 5);
        assert!((0..5).all(|node| path_to(drafts.parents(), node).len() <= 2));
    }
}
