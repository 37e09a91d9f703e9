//! Rounds by hand: kept whole, in part, not at all, and dropped; states, keys and values after them.

use undraft_model::generate::{Engine, Outputs as _, Undecided};
use undraft_model::gpu::Gpu;
use undraft_model::model::Logits;
use undraft_model::{ModelConfig, ModelError};
use undraft_testing::Rng;

use super::{Cache, Model, Outputs, cache, load};
use crate::runner::{self, NEXT, ODD, bits};

/// Bits of all states, keys and values.
fn cache_bits(model: &Model, cache: &mut Cache) -> Vec<Vec<u32>> {
    let num_attention = (0..).take_while(|&i| model.keys_and_values(cache, i).is_ok()).count();
    let num_gdn = model.config().num_layers - num_attention;
    let mut all = Vec::new();
    for layer in 0..num_attention {
        let (keys, values) = model.keys_and_values(cache, layer).unwrap();
        all.extend([bits(&keys), bits(&values)]);
    }
    for layer in 0..num_gdn {
        let (state, conv) = model.states(cache, layer).unwrap();
        all.extend([bits(&state), bits(&conv)]);
    }
    all
}

fn prefill(model: &Model, cache: &mut Cache, tokens: &[u32], out: &mut Outputs) {
    model.prefill(cache, tokens, Logits::Last, out, &mut |_, _| Ok(())).unwrap();
}

fn tokens(config: &ModelConfig, rng: &mut Rng, len: usize) -> Vec<u32> {
    (0..len).map(|_| rng.below(config.vocab_size) as u32).collect()
}

/// Windows of 1 to 8 tokens of which random parts stay are the kept tokens one by one; so is a prompt, wherever it is cut.
#[test]
fn what_stays_is_what_the_kept_tokens_leave() {
    let cases = if crate::is_fast() { [(NEXT, 24), (ODD, 24)] } else { [(NEXT, 12), (ODD, 6)] };
    for (path, num_rounds) in cases {
        let Some(model) = load(path) else { return };
        let mut rng = Rng::new(23);
        let prompt = tokens(model.config(), &mut rng, 9);
        let (mut plain, mut speculative) = (cache(&model, 128, 8), cache(&model, 128, 8));
        let (mut out, mut plain_out) = (model.new_outputs(true), model.new_outputs(true));
        prefill(&model, &mut plain, &prompt, &mut plain_out);
        prefill(&model, &mut speculative, &prompt[..4], &mut out);
        prefill(&model, &mut speculative, &prompt[4..], &mut out);
        assert_eq!(bits(out.logits()), bits(plain_out.logits()));
        for round in 0..num_rounds {
            // What is dropped leaves nothing, whatever was pending.
            let dropped = 1 + rng.below(8);
            let junk = tokens(model.config(), &mut rng, dropped);
            let window = model.verify(&mut speculative, &junk, &mut out).unwrap();
            match round % 3 {
                0 => drop(window),
                1 => window.rollback(),
                _ => window.commit(0).unwrap(),
            }
            if round % 4 == 0 {
                drop(model.verify(&mut speculative, &[], &mut out).unwrap());
            }
            let n = 1 + rng.below(8);
            let window = tokens(model.config(), &mut rng, n);
            let kept = rng.below(n + 1);
            let undecided = model.verify(&mut speculative, &window, &mut out).unwrap();
            for (token, &id) in window[..kept].iter().enumerate() {
                model.verify(&mut plain, &[id], &mut plain_out).unwrap().commit(1).unwrap();
                let (got, want) = (out.token_logits(token).unwrap(), plain_out.logits());
                assert_eq!(bits(got), bits(want), "{path}, round {round}, token {token} of {n}");
            }
            undecided.commit_path(&(0..kept).collect::<Vec<_>>()).unwrap();
            assert_eq!(speculative.len(), plain.len());
            if round % 2 == 1 {
                let same = cache_bits(&model, &mut speculative) == cache_bits(&model, &mut plain);
                assert!(same, "{path}, round {round}: {kept} of {n} tokens left something else than alone");
            }
        }
        // A prompt behind a round, and the same tokens one by one.
        let more = tokens(model.config(), &mut rng, 5);
        prefill(&model, &mut speculative, &more, &mut out);
        for &id in &more {
            model.verify(&mut plain, &[id], &mut plain_out).unwrap().commit(1).unwrap();
        }
        assert_eq!(bits(out.logits()), bits(plain_out.logits()));
        assert!(cache_bits(&model, &mut speculative) == cache_bits(&model, &mut plain));
        // The states are near the CPU's.
        let cpu = runner::load(path);
        let mut cpu_cache = runner::cache(&cpu);
        runner::run(&cpu, &mut cpu_cache, &prompt, runner::Mode::Decode);
        plain.reset().unwrap();
        prefill(&model, &mut plain, &prompt, &mut out);
        let (state, conv) = model.states(&mut plain, 0).unwrap();
        let near = |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
        assert!(near(&state, &cpu_cache.recurrent_state(0).unwrap()) && near(&conv, cpu_cache.conv_state(0).unwrap()));
    }
}

#[track_caller]
fn refused<T>(result: Result<T, ModelError>, says: &str) {
    let message = result.map(drop).unwrap_err().to_string();
    assert!(message.contains(says), "{message}");
}

#[test]
fn wrong_calls_change_nothing() {
    let Some(model) = load(NEXT) else { return };
    let vocab_size = model.config().vocab_size as u32;
    let mut held = cache(&model, 12, 4);
    let mut out = model.new_outputs(true);
    prefill(&model, &mut held, &[1, 2, 3], &mut out);
    let before = cache_bits(&model, &mut held);
    let tree = Engine::verify(&model, &mut held, &[1, 2, 3], Some(&[-1, 0, 0]), &mut out);
    refused(tree, &format!("draft trees is not there on `{}` yet", crate::Gpu::NAME));
    refused(model.verify(&mut held, &[1, vocab_size], &mut out), "token 1 has id 512");
    refused(model.verify(&mut held, &[1; 5], &mut out), "option `window` is 5, expected 0..=4");
    let message =
        model.prefill(&mut held, &[1; 10], Logits::Last, &mut out, &mut |_, _| Ok(())).unwrap_err().to_string();
    assert!(message.contains("10 tokens behind 3 do not fit"), "{message}");
    let other = load(NEXT).unwrap();
    refused(other.verify(&mut held, &[1], &mut out), "another model");
    let window = model.verify(&mut held, &[1, 2], &mut out).unwrap();
    refused(window.commit(3), "option `num_kept` is 3, expected 0..=2");
    let window = model.verify(&mut held, &[1, 2], &mut out).unwrap();
    refused(window.commit_path(&[1]), "entry 0 of the path is 1");
    refused(model.states(&mut held, 9), "option `layer` is 9, expected 0..=2");
    assert!(cache_bits(&model, &mut held) == before);

    let on_cpu = Model::load(&runner::repository(NEXT), &undraft::Device::cpu(), &mut |_, _| {});
    refused(on_cpu, &format!("the device is `cpu`, expected {}", crate::Gpu::EXPECTED));
    let on_gpu = undraft_model::Model::load(&runner::repository(NEXT), model.device(), &mut |_, _| {});
    refused(on_gpu, &format!("the device is `{}`, expected the CPU", crate::Gpu::NAME));
}
