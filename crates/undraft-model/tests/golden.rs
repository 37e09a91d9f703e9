//! The runner against values of transformers in float64, for prefill, decode and verify.

mod runner;

use runner::{Mode, NEXT, ODD, TRAINED, argmax, cache, load, repository, run};
use serde_json::Value;
use undraft_model::Model;
use undraft_model::config::LayerType;
use undraft_model::model::{Forward, Logits, MtpCache};
use undraft_testing::golden::Golden;

/// Largest error of a logit. Logits reach 23; float32 runs of transformers are off by up to 8e-5.
const LOGITS: f64 = 5e-5;
/// Largest error of anything else, relative to the largest value of the tensor.
const RELATIVE: f64 = 2e-5;

const MODES: [Mode; 3] = [Mode::Prefill, Mode::Decode, Mode::Verify(4)];
const PROMPTS: [&str; 6] = ["one_token", "short", "chat", "code", "non_ascii", "long"];

fn golden(path: &str) -> Golden {
    Golden::open(path).unwrap()
}

fn ids(golden: &Golden, name: &str) -> Vec<u32> {
    golden.get(name).unwrap().i64s().unwrap().iter().map(|&id| id as u32).collect()
}

fn floats(golden: &Golden, name: &str) -> Vec<f64> {
    golden.get(name).unwrap().f64s().unwrap().to_vec()
}

/// Largest difference over as many elements as are expected.
#[track_caller]
fn difference(what: &str, got: &[f32], want: &[f64], bound: f64) -> f64 {
    assert!(got.len() >= want.len(), "{what}: {} elements, expected at least {}", got.len(), want.len());
    let mut worst = (0.0, 0);
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(!error.is_nan(), "{what}: {got} at {i}, expected {want}");
        if error > worst.0 {
            worst = (error, i);
        }
    }
    let (error, i) = worst;
    assert!(
        error <= bound,
        "{what}: {} at {i}, expected {}: off by {error:.1e}, more than {bound:.0e}",
        got[i],
        want[i]
    );
    error
}

/// The same, with a bound relative to the largest value.
#[track_caller]
fn relative_difference(what: &str, got: &[f32], want: &[f64]) {
    let largest = want.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    difference(what, got, want, RELATIVE * largest);
}

fn prompts() -> Value {
    let file = repository("testdata/golden/qwen3_5-tiny-mtp/prompts.json");
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

fn json_ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// `[HV, V, K]` as `[HV, K, V]`.
fn key_major(model: &Model, state: &[f32]) -> Vec<f32> {
    let (k, v) = (model.config().linear_key_head_dim, model.config().linear_value_head_dim);
    let at = |i: usize| (i / (k * v), i / v % k, i % v);
    (0..state.len()).map(at).map(|(head, row, column)| state[(head * v + column) * k + row]).collect()
}

#[test]
fn trained_model_logits() {
    let model = load(TRAINED);
    let vocab = model.config().vocab_size;
    for mode in MODES {
        let mut worst = 0.0f64;
        for name in PROMPTS {
            let golden = golden(&format!("qwen3_5-tiny-mtp/logits_{name}.safetensors"));
            let tokens = ids(&golden, "input_ids");
            let rows = run(&model, &mut cache(&model), &tokens, mode);
            let what = |part: &str| format!("{name}, {mode:?}, {part}");
            let last = &rows.logits[(tokens.len() - 1) * vocab..];
            worst = worst.max(difference(&what("last"), last, &floats(&golden, "last_logits_f64"), LOGITS));
            let top = ids(&golden, "top20_ids");
            let top: Vec<f32> = (0..top.len()).map(|i| rows.logits[i / 20 * vocab + top[i] as usize]).collect();
            worst = worst.max(difference(&what("top 20"), &top, &floats(&golden, "top20_f64"), LOGITS));
            let log_sum_exp = |row: &[f32]| row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln() as f32;
            let sums: Vec<f32> = rows.logits.chunks(vocab).map(log_sum_exp).collect();
            difference(&what("logsumexp"), &sums, &floats(&golden, "logsumexp_f64"), LOGITS);
            if golden.names().any(|name| name == "all_logits_f64") {
                worst = worst.max(difference(&what("all"), &rows.logits, &floats(&golden, "all_logits_f64"), LOGITS));
            }
        }
        println!("qwen3_5-tiny-mtp, {mode:?}: worst logit error {worst:.1e}");
    }
}

#[test]
fn trained_model_greedy_continuations() {
    let (model, prompts) = (load(TRAINED), prompts());
    let vocab = model.config().vocab_size;
    for (name, prompt) in prompts.as_object().unwrap() {
        let (tokens, want) = (json_ids(&prompt["input_ids"]), json_ids(&prompt["greedy_f32"]));
        assert_eq!(want.len(), 64);
        let mut out = Forward::new();
        let mut decoding = cache(&model);
        model.prefill(&mut decoding, &tokens, Logits::Last, &mut out, &mut |_| Ok(())).unwrap();
        let mut greedy = vec![argmax(out.logits())];
        while greedy.len() < want.len() {
            model.decode(&mut decoding, greedy[greedy.len() - 1], &mut out).unwrap();
            greedy.push(argmax(out.logits()));
        }
        assert_eq!(greedy, want, "{name}, decode");

        let sequence = [&tokens[..], &want[..63]].concat();
        for mode in [Mode::Prefill, Mode::Verify(4)] {
            let rows = run(&model, &mut cache(&model), &sequence, mode);
            let best: Vec<u32> = rows.logits.chunks(vocab).skip(tokens.len() - 1).map(argmax).collect();
            assert_eq!(best, want, "{name}, {mode:?}");
        }
    }
}

#[test]
fn trained_model_states_and_caches() {
    let model = load(TRAINED);
    let layers = golden("qwen3_5-tiny-mtp/layers_code.safetensors");
    let gdn = golden("qwen3_5-tiny-mtp/gdn0_code.safetensors");
    let caches = golden("qwen3_5-tiny-mtp/cache_code.safetensors");
    let tokens = json_ids(&prompts()["code"]["input_ids"]);

    let mut out = Forward::with_trace();
    model.prefill(&mut cache(&model), &tokens, Logits::None, &mut out, &mut |_| Ok(())).unwrap();
    check_states(&model, &out, &layers);
    check_gdn(&out, 0, |name| floats(&gdn, &format!("{name}_f64")));

    for mode in MODES {
        let mut cache = cache(&model);
        run(&model, &mut cache, &tokens, mode);
        let state = key_major(&model, &cache.recurrent_state(0).unwrap());
        relative_difference("layer 0, state", &state, &floats(&gdn, "state_f64"));
        relative_difference("layer 0, conv", cache.conv_state(0).unwrap(), &floats(&gdn, "conv_state_f64"));
        let (mut num_gdn, mut num_full) = (0, 0);
        for (layer, kind) in model.config().layer_types.iter().enumerate() {
            let part = |part: &str| {
                let name = format!("layers.{layer}.{part}");
                caches.names().any(|n| n == name).then(|| (format!("{mode:?}, {name}"), floats(&caches, &name)))
            };
            if *kind == LayerType::FullAttention {
                for (part, got) in
                    [(part("k"), cache.kv()[num_full].keys()), (part("v"), cache.kv()[num_full].values())]
                {
                    if let Some((what, want)) = part {
                        relative_difference(&what, &got, &want);
                    }
                }
                num_full += 1;
            } else {
                if let Some((what, want)) = part("recurrent") {
                    let got = key_major(&model, &cache.recurrent_state(num_gdn).unwrap());
                    relative_difference(&what, &got, &want);
                }
                let (what, want) = part("conv").unwrap();
                relative_difference(&what, cache.conv_state(num_gdn).unwrap(), &want);
                num_gdn += 1;
            }
        }
    }
}

/// `states_f64` `[layers + 2, T, H]`: embedding, behind each block, behind the last norm.
fn check_states(model: &Model, out: &Forward, golden: &Golden) {
    let states = golden.get("states_f64").unwrap();
    let (row, num_layers) = (states.row_len(), model.config().num_layers);
    let trace = out.trace().unwrap();
    for (depth, want) in states.f64s().unwrap().chunks(row).enumerate() {
        let got = match depth {
            0 => trace.get(0, "embedding").unwrap(),
            d if d <= num_layers => trace.get(d - 1, "state").unwrap(),
            _ => out.hidden(),
        };
        relative_difference(&format!("state at depth {depth}"), got, want);
    }
}

/// Intermediate values of a Gated DeltaNet layer.
fn check_gdn(out: &Forward, layer: usize, want: impl Fn(&str) -> Vec<f64>) {
    for (name, golden_name) in [
        ("input", "input"),
        ("in_proj_qkv", "in_proj_qkv"),
        ("in_proj_z", "z"),
        ("in_proj_b", "in_proj_b"),
        ("in_proj_a", "in_proj_a"),
        ("o", "o"),
        ("normed", "normed"),
        ("output", "output"),
    ] {
        let got = out.trace().unwrap().get(layer, name).unwrap();
        relative_difference(&format!("layer {layer}, {name}"), got, &want(golden_name));
    }
}

/// Looks at one step of a draft: pair, step, hidden state, logits.
type See<'a> = dyn FnMut(usize, usize, &[f32], &[f32]) + 'a;

/// Drafts of every pair, fed one by one; every step goes to `see`.
fn drafts(model: &Model, hidden: &[f32], next_tokens: &[u32], num_drafts: usize, see: &mut See<'_>) -> Vec<u32> {
    let mtp = model.mtp().unwrap();
    let mut cache: MtpCache = mtp.new_cache(next_tokens.len() + num_drafts).unwrap();
    let (mut all, mut drafts) = (Vec::new(), Vec::new());
    for (pair, hidden) in hidden.chunks(model.config().hidden_size).enumerate() {
        mtp.feed(&mut cache, hidden, &next_tokens[pair..=pair]).unwrap();
        let mut choose = |step: undraft_model::model::DraftStep<'_>| {
            assert_eq!(step.position, pair + 2 + step.index);
            see(pair, step.index, step.hidden, step.logits);
            Ok(argmax(step.logits))
        };
        assert_eq!(mtp.draft(&mut cache, num_drafts, &mut choose, &mut drafts).unwrap(), num_drafts);
        assert_eq!(cache.len(), pair + 1);
        all.extend_from_slice(&drafts);
    }
    all
}

#[test]
fn trained_model_mtp_drafts() {
    let model = load(TRAINED);
    let hidden_size = model.config().hidden_size;
    let mut worst = 0.0f64;
    for name in ["one_token", "short", "chat"] {
        let golden = golden(&format!("qwen3_5-tiny-mtp/mtp_{name}.safetensors"));
        let sequence = ids(&golden, "sequence");
        let trunk = run(&model, &mut cache(&model), &sequence[..sequence.len() - 1], Mode::Prefill);
        let states = golden.names().any(|n| n == "states_f64").then(|| floats(&golden, "states_f64"));
        if states.is_some() {
            relative_difference("trunk", &trunk.hidden, &floats(&golden, "trunk_hidden_f64"));
        }
        let (top, top_ids) = (floats(&golden, "first_top20_f64"), ids(&golden, "first_top20_ids"));
        let mut see = |pair: usize, step: usize, hidden: &[f32], logits: &[f32]| {
            let what = format!("{name}, pair {pair}, step {step}");
            if let Some(states) = &states {
                relative_difference(&what, hidden, &states[(pair * 4 + step) * hidden_size..][..hidden_size]);
            }
            if step == 0 {
                let got: Vec<f32> = top_ids[pair * 20..][..20].iter().map(|&id| logits[id as usize]).collect();
                worst = worst.max(difference(&what, &got, &top[pair * 20..][..20], LOGITS));
            }
        };
        let got = drafts(&model, &trunk.hidden, &sequence[1..], 4, &mut see);
        assert_eq!(got, ids(&golden, "drafts_f64"), "{name}");
    }
    println!("qwen3_5-tiny-mtp, MTP head: worst logit error {worst:.1e}");
}

/// Whole rounds of greedy speculative decoding, drafts and acceptance, as float64 makes them.
#[test]
fn trained_model_speculative_traces() {
    let (model, prompts) = (load(TRAINED), prompts());
    let file = repository("testdata/golden/qwen3_5-tiny-mtp/mtp.json");
    let traces: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    for (name, by_window) in traces["speculative_traces_f64"].as_object().unwrap() {
        let prompt = json_ids(&prompts[name]["input_ids"]);
        for (num_drafts, rounds) in by_window.as_object().unwrap() {
            let what = format!("{name}, {num_drafts} drafts");
            let got = speculate(&model, &prompt, num_drafts.parse().unwrap(), rounds.as_array().unwrap(), &what);
            let want = json_ids(&prompts[name]["greedy_f32"]);
            assert_eq!(got[..want.len()], want, "{what}");
        }
    }
}

fn speculate(model: &Model, prompt: &[u32], num_drafts: usize, rounds: &[Value], what: &str) -> Vec<u32> {
    let mtp = model.mtp().unwrap();
    let (hidden_size, vocab) = (model.config().hidden_size, model.config().vocab_size);
    let (mut trunk, mut out) = (cache(model), Forward::new());
    let mut pairs = mtp.new_cache(trunk.capacity()).unwrap();
    model.prefill(&mut trunk, prompt, Logits::Last, &mut out, &mut |_| Ok(())).unwrap();
    let mut sequence = [prompt, &[argmax(out.logits())]].concat();
    // The prompt's states, each with the token after it.
    mtp.feed(&mut pairs, out.hidden(), &sequence[1..]).unwrap();
    let mut drafts = Vec::new();
    for (number, round) in rounds.iter().enumerate() {
        mtp.draft(&mut pairs, num_drafts, &mut |step| Ok(argmax(step.logits)), &mut drafts).unwrap();
        let window = [&sequence[sequence.len() - 1..], &drafts].concat();
        let undecided = model.verify(&mut trunk, &window, &mut out).unwrap();
        let best: Vec<u32> = out.logits().chunks(vocab).map(argmax).collect();
        let accepted = (0..num_drafts).take_while(|&i| drafts[i] == best[i]).count();
        undecided.commit(accepted + 1).unwrap();
        let start = sequence.len();
        assert_eq!(start as u64 - 1, round["at"].as_u64().unwrap(), "{what}, round {number}");
        assert_eq!(drafts, json_ids(&round["drafts"]), "{what}, round {number}");
        assert_eq!(accepted as u64, round["accepted"].as_u64().unwrap(), "{what}, round {number}");
        assert_eq!(u64::from(best[accepted]), round["next"].as_u64().unwrap(), "{what}, round {number}");
        sequence.extend_from_slice(&drafts[..accepted]);
        sequence.push(best[accepted]);
        mtp.feed(&mut pairs, &out.hidden()[..(accepted + 1) * hidden_size], &sequence[start..]).unwrap();
    }
    sequence.split_off(prompt.len())
}

#[test]
fn random_models() {
    for (path, folder, lengths) in
        [(NEXT, "qwen3_next-random", &[1, 3, 9, 64, 150][..]), (ODD, "qwen3_5-odd-random", &[1, 3, 9, 64])]
    {
        let model = load(path);
        let mut worst = [0.0f64; 4];
        for n in lengths {
            let golden = golden(&format!("{folder}/n{n}.safetensors"));
            let has = |name: &str| golden.names().any(|n| n == name);
            let tokens = ids(&golden, "input_ids");
            let mut hidden = Vec::new();
            for (mode, worst) in MODES.into_iter().zip(&mut worst) {
                let rows = run(&model, &mut cache(&model), &tokens, mode);
                let what = format!("{folder}, n{n}, {mode:?}");
                *worst = worst.max(difference(&what, &rows.logits, &floats(&golden, "logits_f64"), LOGITS));
                hidden = rows.hidden;
            }
            let mut out = Forward::with_trace();
            let mut cache = cache(&model);
            model.prefill(&mut cache, &tokens, Logits::None, &mut out, &mut |_| Ok(())).unwrap();
            if has("states_f64") {
                check_states(&model, &out, &golden);
            }
            if has("gdn1.o_f64") {
                check_gdn(&out, 1, |name| floats(&golden, &format!("gdn1.{name}_f64")));
                let state = key_major(&model, &cache.recurrent_state(0).unwrap());
                relative_difference("gdn1, state", &state, &floats(&golden, "gdn1.state_f64"));
                relative_difference(
                    "gdn1, conv",
                    cache.conv_state(0).unwrap(),
                    &floats(&golden, "gdn1.conv_state_f64"),
                );
            }
            if has("mtp_drafts_f64") {
                let part = |name: &str| has(name).then(|| floats(&golden, name));
                let (states, logits) = (part("mtp_states_f64"), part("mtp_logits_f64"));
                let mut see = |pair: usize, step: usize, hidden: &[f32], got: &[f32]| {
                    let what = format!("{folder}, n{n}, pair {pair}, step {step}");
                    let row = |of: &[f64], len: usize| of[(pair * 4 + step) * len..][..len].to_vec();
                    if let Some(states) = &states {
                        relative_difference(&what, hidden, &row(states, hidden.len()));
                    }
                    if let Some(logits) = &logits {
                        worst[3] = worst[3].max(difference(&what, got, &row(logits, got.len()), LOGITS));
                    }
                };
                let got = drafts(&model, &hidden, &ids(&golden, "mtp_next_ids"), 4, &mut see);
                assert_eq!(got, ids(&golden, "mtp_drafts_f64"), "{folder}, n{n}");
            }
        }
        let worst = worst.map(|error| format!("{error:.1e}")).join(", ");
        println!("{folder}: worst logit error of prefill, decode, verify, MTP head: {worst}");
    }
}
