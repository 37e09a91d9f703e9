//! 4,000 tokens with speculation are those of plain decoding: tokens, logits and what is left in the cache.

mod runner;

use std::ops::ControlFlow;

use runner::{TRAINED, cache_bits, device, load_on};
use undraft::Device;
use undraft::cpu::Isa;
use undraft_model::Model;
use undraft_model::drafters::{Adaptive, Drafter, LookupFirst, MtpDrafter};
use undraft_model::generate::{Acceptance, GenerateOptions, Generation, Observer, RoundInfo, generate};
use undraft_model::model::{CacheConfig, HybridCache};
use undraft_model::sampling::SamplingParams;

const NUM_TOKENS: usize = 4000;

/// A hash of the logits of every token, FNV-1a by words.
#[derive(Default)]
struct Logits(Vec<u64>);

impl Observer for Logits {
    fn round(&mut self, round: &RoundInfo<'_>, _cache: &mut HybridCache) -> ControlFlow<()> {
        let step = |hash: u64, x: &f32| (hash ^ u64::from(x.to_bits())).wrapping_mul(0x0000_0100_0000_01b3);
        let rows = round.logits.chunks_exact(round.logits.len() / round.tokens.len());
        self.0.extend(rows.map(|row| row.iter().fold(0xcbf2_9ce4_8422_2325, step)));
        ControlFlow::Continue(())
    }
}

struct Left {
    generation: Generation,
    logits: Vec<u64>,
    cache: Vec<Vec<u32>>,
}

fn run(model: &Model, options: &GenerateOptions, drafter: Option<&mut dyn Drafter>) -> Left {
    let mut cache = model.new_cache(CacheConfig { capacity: NUM_TOKENS + 80, max_window: 9 }).unwrap();
    let mut logits = Logits::default();
    let prompt = runner::random_tokens(model, 71, 70);
    let generation = generate(model, &mut cache, &prompt, options, drafter, &mut logits).unwrap();
    Left { generation, logits: logits.0, cache: cache_bits(model, &mut cache) }
}

#[test]
fn four_thousand_tokens() {
    let model = load_on(TRAINED, &device(Isa::best(), 2).unwrap_or_else(Device::cpu));
    // Sampled, so that the text does not fall into a loop.
    let sampling = SamplingParams { temperature: 0.8, top_k: 40, top_p: 0.95, seed: 5 };
    let acceptance = Acceptance::Match;
    let options = GenerateOptions { max_tokens: NUM_TOKENS, sampling, acceptance, window: 8, stop_tokens: Vec::new() };
    let plain = run(&model, &options, None);
    assert_eq!((plain.generation.tokens.len(), plain.logits.len()), (NUM_TOKENS, NUM_TOKENS));
    let head = MtpDrafter::new(model.mtp().unwrap(), NUM_TOKENS + 80).unwrap();
    let mut drafter = Adaptive::new(LookupFirst::new(4, head).unwrap(), 8);
    let speculated = run(&model, &options, Some(&mut drafter));
    println!("{} rounds, {:?}", speculated.generation.rounds, drafter.report());
    assert!(speculated.generation.accepted > 200, "{}", speculated.generation.accepted);
    assert_eq!(speculated.generation.tokens, plain.generation.tokens);
    let other = speculated.logits.iter().zip(&plain.logits).position(|(a, b)| a != b);
    assert_eq!(other, None, "logits of this token are not those of plain decoding");
    assert!(speculated.cache == plain.cache, "the cache is not that of plain decoding");
}
