//! Generations with drafts held against plain decoding on the same device: tokens, and the bits of the logits that they were
//! drawn from.

use std::ops::ControlFlow;

use undraft_model::drafters::{Drafter, Drafts, LookupDrafter, LookupFirst, LookupOptions, ScriptedDrafter};
use undraft_model::generate::{GenerateOptions, Generation, Observer, Quiet, RoundInfo, generate};
use undraft_model::sampling::SamplingParams;
use undraft_testing::Rng;

use super::{Cache, HiddenRows, Model, MtpDrafter, cache, load, options};
use crate::runner::{NEXT, ODD, TRAINED, bits};

const MAX_WINDOW: usize = 8;

/// What was drawn, and from what.
#[derive(Clone, Debug, Default, PartialEq)]
struct Record {
    tokens: Vec<u32>,
    logits: Vec<u32>,
}

impl Observer<Cache> for Record {
    fn round(&mut self, round: &RoundInfo<'_>, _cache: &mut Cache) -> ControlFlow<()> {
        self.tokens.extend_from_slice(round.tokens);
        self.logits.extend(bits(round.logits));
        ControlFlow::Continue(())
    }
}

struct Bench<'m> {
    model: &'m Model,
    cache: Cache,
    prompt: Vec<u32>,
    num_tokens: usize,
    rounds: usize,
    accepted: usize,
}

impl<'m> Bench<'m> {
    fn new(model: &'m Model, prompt: Vec<u32>, num_tokens: usize) -> Self {
        let cache = cache(model, prompt.len() + num_tokens + MAX_WINDOW, MAX_WINDOW + 1);
        Self { model, cache, prompt, num_tokens, rounds: 0, accepted: 0 }
    }

    fn run(
        &mut self,
        options: &GenerateOptions,
        drafter: Option<&mut dyn Drafter<HiddenRows>>,
    ) -> (Record, Generation) {
        let mut record = Record::default();
        let run = generate(self.model, &mut self.cache, &self.prompt, options, drafter, &mut record).unwrap();
        assert_eq!(record.tokens, run.tokens);
        assert_eq!(record.logits.len(), run.tokens.len() * self.model.config().vocab_size);
        (record, run)
    }

    fn plain(&mut self, sampling: &SamplingParams) -> Record {
        self.run(&options(sampling, 0, self.num_tokens), None).0
    }

    #[track_caller]
    fn check(
        &mut self,
        reference: &Record,
        sampling: &SamplingParams,
        window: usize,
        drafter: &mut dyn Drafter<HiddenRows>,
    ) {
        let options = options(sampling, window, self.num_tokens);
        let (record, run) = self.run(&options, Some(drafter));
        assert_eq!(record.tokens, reference.tokens, "window {window}, {sampling:?}");
        assert!(record == *reference, "logits differ, window {window}, {sampling:?}");
        self.rounds += run.rounds;
        self.accepted += run.accepted;
    }
}

fn samplings() -> [SamplingParams; 2] {
    [SamplingParams::default(), SamplingParams { temperature: 0.8, top_k: 40, top_p: 0.9, seed: 3 }]
}

fn prompt(model: &Model, len: usize) -> Vec<u32> {
    let mut rng = Rng::new(17);
    (0..len).map(|_| rng.below(model.config().vocab_size) as u32).collect()
}

/// Right for a while, then wrong, at every length: windows stay whole, in part, and not at all.
fn scripted(reference: &Record, prompt_len: usize, vocab_size: usize, seed: u64) -> impl Drafter<HiddenRows> {
    let (tokens, mut rng) = (reference.tokens.clone(), Rng::new(seed));
    ScriptedDrafter::new(move |known: &[u32], max: usize| {
        let at = known.len() - prompt_len;
        let num_right = rng.below(max + 1);
        let drafts: Vec<u32> = (0..1 + rng.below(max))
            .map(|i| {
                let right = tokens.get(at + i).copied().unwrap_or(0);
                if i < num_right { right } else { (right + 1 + rng.below(vocab_size - 1) as u32) % vocab_size as u32 }
            })
            .collect();
        Drafts::from(drafts)
    })
}

#[test]
fn scripted_drafts() {
    let all: Vec<usize> = (1..=MAX_WINDOW).collect();
    let cases = match crate::is_fast() {
        true => vec![(NEXT, 200, all.clone()), (ODD, 200, all.clone()), (TRAINED, 400, all)],
        false => vec![(NEXT, 16, vec![1, 2, 4, MAX_WINDOW]), (ODD, 12, vec![3, 4])],
    };
    for (path, num_tokens, windows) in cases {
        let Some(model) = load(path) else { return };
        let mut bench = Bench::new(&model, prompt(&model, 5), num_tokens);
        for sampling in samplings() {
            let reference = bench.plain(&sampling);
            for window in windows.clone() {
                let mut drafter = scripted(&reference, 5, model.config().vocab_size, window as u64);
                bench.check(&reference, &sampling, window, &mut drafter);
            }
        }
        println!("{path}: {} rounds, {} drafts stay", bench.rounds, bench.accepted);
        assert!(bench.rounds > 20 && bench.accepted > 10);
    }
}

#[test]
fn mtp_drafts() {
    let cases = match crate::is_fast() {
        true => vec![(NEXT, 100, 1..=8), (ODD, 100, 1..=8), (TRAINED, 400, 1..=8)],
        false => vec![(NEXT, 10, 7..=8), (ODD, 8, 3..=3), (TRAINED, 12, 3..=3)],
    };
    for (path, num_tokens, windows) in cases {
        let Some(model) = load(path) else { return };
        let mut bench = Bench::new(&model, prompt(&model, 6), num_tokens);
        let mut drafter = MtpDrafter::new(model.mtp().unwrap(), bench.cache.capacity()).unwrap();
        for sampling in samplings() {
            let reference = bench.plain(&sampling);
            for window in windows.clone() {
                bench.check(&reference, &sampling, window, &mut drafter);
            }
        }
        println!("{path}: {} rounds, {} drafts stay", bench.rounds, bench.accepted);
        // The head of the trained model is right now and then.
        assert!(bench.accepted > 0 || path != TRAINED);
    }
}

#[test]
fn lookup_drafts() {
    let Some(model) = load(NEXT) else { return };
    let (num_tokens, windows) = if crate::is_fast() { (200, vec![1, 3, 5]) } else { (12, vec![2, 5]) };
    let mut bench = Bench::new(&model, prompt(&model, 3).repeat(4), num_tokens);
    let capacity = bench.cache.capacity();
    for sampling in samplings() {
        let reference = bench.plain(&sampling);
        for &window in &windows {
            let ngrams = LookupOptions::new(1, 3).unwrap();
            bench.check(&reference, &sampling, window, &mut LookupDrafter::new(ngrams));
            let mtp = MtpDrafter::new(model.mtp().unwrap(), capacity).unwrap();
            bench.check(&reference, &sampling, window, &mut LookupFirst::new(2, mtp).unwrap());
        }
    }
    println!("{} rounds, {} drafts stay", bench.rounds, bench.accepted);
    assert!(bench.rounds > 40);
}

/// Without anyone who wants logits, ids alone come down.
#[test]
fn the_largest_logit_is_found_on_the_device() {
    for path in [NEXT, ODD] {
        let Some(model) = load(path) else { return };
        let mut bench = Bench::new(&model, prompt(&model, 7), 10);
        let reference = bench.plain(&SamplingParams::default());
        let capacity = bench.cache.capacity();
        for window in [0, 3] {
            let mut drafter = MtpDrafter::new(model.mtp().unwrap(), capacity).unwrap();
            let drafter: Option<&mut dyn Drafter<HiddenRows>> = if window > 0 { Some(&mut drafter) } else { None };
            let options = options(&SamplingParams::default(), window, 10);
            let run = generate(&model, &mut bench.cache, &bench.prompt, &options, drafter, &mut Quiet).unwrap();
            assert_eq!(run.tokens, reference.tokens, "{path}, window {window}");
        }
    }
}
