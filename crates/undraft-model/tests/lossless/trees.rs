//! Draft trees: what is generated, and what stays in the cache, is that of plain decoding whichever path is right.

use undraft::cpu::Isa;
use undraft_model::drafters::{Drafter, Drafts, MtpDrafter, MtpTreeDrafter, ScriptedDrafter};
use undraft_model::error::ModelError;
use undraft_model::generate::{Acceptance, GenerateOptions, Quiet, generate};
use undraft_model::model::{CacheConfig, TreeShape};
use undraft_model::sampling::SamplingParams;
use undraft_testing::Rng;

use super::scripts::wrong;
use super::trace::{Bench, Look, Reference, options};
use super::{MTP_TREES, SCRIPTED_TREES, TREE_ISAS, count, greedy, load, prompt, sampled};
use crate::runner::{NEXT, ODD, TRAINED, device, load_on};

/// `num_drafts` drafts in a random tree, of which a path of `num_right` is right and everything beside it wrong.
fn tree(truth: &[u32], num_drafts: usize, num_right: usize, vocab_size: usize, rng: &mut Rng) -> Drafts {
    let mut drafts = Drafts::new();
    // Drafts of the right path.
    let mut path: Vec<usize> = Vec::new();
    while drafts.len() < num_drafts {
        let (left, missing) = (num_drafts - drafts.len(), num_right - path.len());
        if missing > 0 && (left == missing || rng.one_in(2)) {
            drafts.push_behind(path.last().copied(), truth[path.len()]).unwrap();
            path.push(drafts.len() - 1);
            continue;
        }
        let parent = rng.below(drafts.len() + 1).checked_sub(1);
        let depth = match parent {
            None => Some(0),
            Some(parent) => path.iter().position(|&node| node == parent).map(|depth| depth + 1),
        };
        let token = match depth.and_then(|depth| truth.get(depth)) {
            Some(&right) => wrong(right, vocab_size, rng),
            None => rng.below(vocab_size) as u32,
        };
        drafts.push_behind(parent, token).unwrap();
    }
    drafts
}

/// A drafter whose script gets the tokens to come and how many drafts are wanted.
fn script<'r>(reference: &'r Reference, mut of: impl FnMut(&[u32], usize) -> Drafts + 'r) -> impl Drafter + 'r {
    ScriptedDrafter::trees(move |known: &[u32], max_drafts: usize| {
        let num_generated = known.len() - reference.prompt.len();
        assert_eq!(&known[reference.prompt.len()..], &reference.tokens[..num_generated]);
        of(&reference.tokens[num_generated..], max_drafts)
    })
}

const NUM_TOKENS: usize = 90;

/// Trees with a right path of each length, from none to one as long as the tree.
fn each_path(bench: &mut Bench<'_>, reference: &Reference, sampling: &SamplingParams, window: usize) -> usize {
    let vocab_size = bench.model.config().vocab_size;
    let plan: Vec<usize> = (0..=window).rev().chain(0..=window).collect();
    let max_tokens = (1 + plan.iter().map(|right| right + 1).sum::<usize>()).min(NUM_TOKENS);
    let (mut next, mut rng) = (plan.iter().cycle(), Rng::new(window as u64));
    let mut drafter = script(reference, |truth, k| {
        let right = (*next.next().unwrap()).min(k).min(truth.len());
        tree(truth, k, right, vocab_size, &mut rng)
    });
    let run = bench.check(reference, &options(sampling, window, max_tokens), &mut drafter, "each path");
    // The end of the text may cut the last ones.
    let sure = run.rounds.len() - 2;
    assert_eq!(run.accepted()[..sure], plan[..sure]);
    run.rounds.len()
}

/// Any tree, any path, chains among them.
fn random(bench: &mut Bench<'_>, reference: &Reference, sampling: &SamplingParams, seed: u64) -> usize {
    let vocab_size = bench.model.config().vocab_size;
    let mut rng = Rng::new(seed);
    let mut drafter = script(reference, move |truth, k| {
        let num_drafts = if rng.one_in(5) { 0 } else { rng.below(k + 1) };
        let num_right = rng.below(num_drafts.min(truth.len()) + 1);
        tree(truth, num_drafts, num_right, vocab_size, &mut rng)
    });
    let window = 2 + seed as usize % 7;
    bench.check(reference, &options(sampling, window, NUM_TOKENS), &mut drafter, "random trees").rounds.len()
}

#[test]
fn scripted_trees() {
    let mut rounds = 0;
    for path in [TRAINED, NEXT, ODD] {
        let model = load(path);
        let mut bench = Bench::new(&model);
        let prompt = prompt(path, &model, "short");
        for sampling in [greedy(), sampled(1), sampled(2)] {
            let reference = bench.plain(&prompt, &options(&sampling, 0, NUM_TOKENS));
            for look in [Look::Always, Look::Seldom] {
                bench.look = look;
                for window in [2, 5, 8] {
                    rounds += each_path(&mut bench, &reference, &sampling, window);
                }
                for seed in 0..if path == TRAINED { 1 } else { 4 } {
                    rounds += random(&mut bench, &reference, &sampling, 2 * seed + u64::from(look == Look::Seldom));
                }
            }
        }
    }
    count("scripted trees", rounds, SCRIPTED_TREES);
}

/// Trees that reach over blocks of keys and are wider than the rows that a kernel takes at a time.
#[test]
fn wide_trees_behind_long_prompts() {
    for path in [NEXT, ODD] {
        let model = load(path);
        let mut bench = Bench::new(&model);
        let (vocab_size, window) = (model.config().vocab_size, 40);
        bench.cache = model.new_cache(CacheConfig { capacity: 300, max_window: window + 1 }).unwrap();
        for prompt_len in [60, 120, 130] {
            let prompt = crate::runner::random_tokens(&model, 61, prompt_len);
            let reference = bench.plain(&prompt, &options(&sampled(5), 0, 60));
            let mut rng = Rng::new(prompt_len as u64);
            let mut drafter = script(&reference, |truth, k| {
                let right = rng.below(8).min(truth.len()).min(k);
                tree(truth, k, right, vocab_size, &mut rng)
            });
            bench.check(&reference, &options(&sampled(5), window, 60), &mut drafter, "wide trees");
        }
    }
}

#[test]
fn tree_isas() {
    let mut rounds = 0;
    for (path, isa) in [
        (TRAINED, Isa::Avx2),
        (TRAINED, Isa::Avx512),
        (NEXT, Isa::Avx2),
        (NEXT, Isa::Avx512),
        (ODD, Isa::Avx2),
        (ODD, Isa::Avx512),
        (ODD, Isa::Neon),
        (ODD, Isa::Scalar),
    ] {
        let Some(device) = device(isa, 2) else { continue };
        let model = load_on(path, &device);
        let mut bench = Bench::new(&model);
        let prompt = prompt(path, &model, "short");
        let reference = bench.plain(&prompt, &options(&sampled(4), 0, NUM_TOKENS));
        rounds += random(&mut bench, &reference, &sampled(4), 4);
    }
    count("scripted trees, instruction sets", rounds, TREE_ISAS);
}

#[test]
fn trees_of_the_head() {
    let (mut rounds, mut branched) = (0, 0);
    for (path, num_tokens) in [(TRAINED, 60), (NEXT, 40), (ODD, 40)] {
        let model = load(path);
        let mut bench = Bench::new(&model);
        let prompt = prompt(path, &model, "chat");
        for sampling in [greedy(), sampled(1), SamplingParams { temperature: 1.0, seed: 3, ..greedy() }] {
            let reference = bench.plain(&prompt, &options(&sampling, 0, num_tokens));
            for (widths, window) in [(&[3, 2, 2, 1][..], 8), (&[2, 2], 5), (&[8], 8), (&[1, 3], 3), (&[2; 8], 7)] {
                bench.look = if window % 2 == 0 { Look::Always } else { Look::Seldom };
                let shape = TreeShape::new(widths).unwrap();
                let mut drafter = MtpTreeDrafter::new(model.mtp().unwrap(), 700, shape).unwrap();
                let what = format!("{path}, MTP tree {widths:?}");
                let run = bench.check(&reference, &options(&sampling, window, num_tokens), &mut drafter, &what);
                rounds += run.rounds.len();
                branched += run.rounds.iter().filter(|round| !round.drafts.is_chain()).count();
            }
        }
    }
    assert!(branched > rounds / 2, "{branched} of {rounds} rounds had branches");
    count("MTP trees", rounds, MTP_TREES);
}

#[test]
fn a_tree_of_width_one_is_the_chain() {
    for path in [TRAINED, NEXT] {
        let model = load(path);
        let mut bench = Bench::new(&model);
        let prompt = prompt(path, &model, "short");
        for sampling in [greedy(), sampled(6)] {
            let reference = bench.plain(&prompt, &options(&sampling, 0, 40));
            let head = model.mtp().unwrap();
            let mut chain = MtpDrafter::new(head, 200).unwrap();
            let mut tree = MtpTreeDrafter::new(head, 200, TreeShape::new(&[1; 5]).unwrap()).unwrap();
            let options = options(&sampling, 5, 40);
            let chain = bench.check(&reference, &options, &mut chain, "chain");
            let tree = bench.check(&reference, &options, &mut tree, "tree of width 1");
            assert_eq!(chain.rounds, tree.rounds, "{path}");
        }
    }
}

#[test]
fn wider_trees_are_right_more_often() {
    let model = load(TRAINED);
    let mut bench = Bench::new(&model);
    let mut accepted = [0.0; 2];
    for name in ["code", "chat"] {
        let prompt = prompt(TRAINED, &model, name);
        let reference = bench.plain(&prompt, &options(&greedy(), 0, 64));
        // Of the same depth.
        for (i, (widths, window)) in [(&[1, 1, 1], 3), (&[3, 2, 1], 8)].into_iter().enumerate() {
            let shape = TreeShape::new(widths).unwrap();
            let mut drafter = MtpTreeDrafter::new(model.mtp().unwrap(), 700, shape).unwrap();
            let run = bench.check(&reference, &options(&greedy(), window, 64), &mut drafter, name);
            accepted[i] += run.generation.tokens_per_round();
        }
    }
    assert!(accepted[1] > accepted[0], "{accepted:?}");
}

#[test]
fn trees_end_with_the_cache_and_with_the_head() {
    let model = load(NEXT);
    let prompt = crate::runner::random_tokens(&model, 62, 6);
    for room in 0..=12 {
        let mut bench = Bench::with_capacity(&model, prompt.len() + room);
        let reference = bench.plain(&prompt, &options(&sampled(4), 0, 100));
        let mut tree = MtpTreeDrafter::new(model.mtp().unwrap(), prompt.len() + room, TreeShape::default()).unwrap();
        bench.check(&reference, &options(&sampled(4), 8, 100), &mut tree, "trees at the end of the cache");
    }
}

#[test]
fn the_rejection_rule_refuses_trees() {
    let model = load(ODD);
    let mut bench = Bench::new(&model);
    let prompt = crate::runner::random_tokens(&model, 63, 6);
    let rejection = GenerateOptions { acceptance: Acceptance::Rejection, ..options(&sampled(1), 4, 20) };
    let mut scripted = ScriptedDrafter::trees(|_: &[u32], k: usize| {
        let mut drafts = Drafts::new();
        (0..k as u32).for_each(|token| drafts.push_behind(None, token).unwrap());
        drafts
    });
    let mut head = MtpTreeDrafter::new(model.mtp().unwrap(), 100, TreeShape::default()).unwrap();
    for drafter in [&mut scripted as &mut dyn Drafter, &mut head] {
        let error = generate(&model, &mut bench.cache, &prompt, &rejection, Some(drafter), &mut Quiet).unwrap_err();
        assert!(matches!(error, ModelError::TreeRejection) && error.to_string().contains("Match"), "{error}");
    }
    for (widths, name) in [(&[][..], "depth"), (&[1; 65], "depth"), (&[1, 0], "width"), (&[65], "width")] {
        assert!(matches!(TreeShape::new(widths), Err(ModelError::TreeShape { name: n, .. }) if n == name));
    }
}
