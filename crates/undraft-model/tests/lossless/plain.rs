//! What everything else is compared with: plain generation is prefill, single steps and the sampler.

use undraft_model::sampling::Sampler;

use super::trace::{Bench, options};
use super::{greedy, load, prompt, sampled};
use crate::runner::{NEXT, ODD, TRAINED, random_tokens};

#[test]
fn plain_generation_is_prefill_and_single_steps() {
    for path in [TRAINED, NEXT, ODD] {
        let model = load(path);
        let mut bench = Bench::new(&model);
        let long = random_tokens(&model, 3, 300);
        for prompt in [prompt(path, &model, "short"), long[..1].to_vec(), long] {
            for sampling in [greedy(), sampled(5)] {
                let plain = bench.plain(&prompt, &options(&sampling, 0, 24));
                let mut sampler = Sampler::new(sampling.clone()).unwrap();
                let mut draw = |i, logits: &[f32]| sampler.sample(logits, (prompt.len() + i) as u64).unwrap();
                let steps = bench.follow(&prompt, 24, &mut draw);
                assert!(plain == steps, "{path}, prompt of {}, {sampling:?}", prompt.len());
            }
        }
    }
}
