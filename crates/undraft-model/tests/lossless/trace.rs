//! Plain decoding, recorded position by position, and an observer that holds every round against it.

use std::ops::ControlFlow;

use undraft_model::Model;
use undraft_model::config::LayerType;
use undraft_model::dense::KvCache;
use undraft_model::drafters::{Drafter, Drafts};
use undraft_model::generate::{Acceptance, Finish, GenerateOptions, Generation, Observer, RoundInfo, generate};
use undraft_model::model::{CacheConfig, Forward, HybridCache, Logits};
use undraft_model::sampling::SamplingParams;
use undraft_testing::Rng;

/// A fingerprint of bits: FNV-1a by words, in four chains. Every step is a bijection, so one changed word always shows.
fn print(values: &[f32]) -> u64 {
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    let mut chains = [0xcbf2_9ce4_8422_2325; 4];
    for values in values.chunks(4) {
        for (chain, value) in chains.iter_mut().zip(values) {
            *chain = step(*chain, u64::from(value.to_bits()));
        }
    }
    chains.into_iter().fold(values.len() as u64, step)
}

/// Fingerprints of keys and values of every position, over all heads.
fn kv_prints(kv: &KvCache) -> Vec<[u64; 2]> {
    let (keys, values, len, dim) = (kv.keys(), kv.values(), kv.len(), kv.head_dim());
    let row = |of: &[f32], position: usize| {
        let heads = (0..kv.num_heads()).map(|head| print(&of[(head * len + position) * dim..][..dim]));
        heads.fold(0, |all: u64, head| all.rotate_left(7) ^ head)
    };
    (0..len).map(|position| [row(&keys, position), row(&values, position)]).collect()
}

/// What plain decoding of a prompt leaves, position by position.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    pub prompt: Vec<u32>,
    pub tokens: Vec<u32>,
    pub finish: Finish,
    /// The logits that each token was drawn from.
    logits: Vec<u64>,
    /// Recurrent and convolution state of every Gated DeltaNet layer when a token was drawn.
    states: Vec<Vec<[u64; 2]>>,
    /// Keys and values of every position, by attention layer.
    kv: Vec<Vec<[u64; 2]>>,
}

impl Reference {
    fn new(prompt: &[u32]) -> Self {
        let (tokens, logits, states, kv) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { prompt: prompt.to_vec(), tokens, finish: Finish::Length, logits, states, kv }
    }

    /// Records a token that was drawn from `logits`, the newest of `cache`.
    fn record(&mut self, token: u32, logits: &[f32], cache: &mut HybridCache, num_gdn: usize) {
        self.tokens.push(token);
        self.logits.push(print(logits));
        let mut state =
            |layer| [print(&cache.recurrent_state(layer).unwrap()), print(cache.conv_state(layer).unwrap())];
        self.states.push((0..num_gdn).map(&mut state).collect());
        self.kv = cache.kv().iter().map(kv_prints).collect();
    }
}

/// Records plain decoding.
struct Recorder {
    reference: Reference,
    num_gdn: usize,
}

impl Observer for Recorder {
    fn round(&mut self, round: &RoundInfo<'_>, cache: &mut HybridCache) -> ControlFlow<()> {
        assert_eq!((round.drafts.len(), round.tokens.len()), (0, 1));
        self.reference.record(round.tokens[0], round.logits, cache, self.num_gdn);
        ControlFlow::Continue(())
    }
}

/// In which rounds the states are looked at. Looking settles what is still to be replayed, so what is never looked at
/// takes another way through the kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Look {
    Always,
    /// Each state once in three rounds, at random; all of them at the end.
    Seldom,
}

/// A round as it was observed.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    pub drafts: Drafts,
    pub tokens: Vec<u32>,
    pub accepted: usize,
}

/// Holds every round against a reference.
pub struct Checker<'r> {
    reference: &'r Reference,
    what: String,
    look: Look,
    rng: Rng,
    /// Place among all layers, of the Gated DeltaNet and of the attention layers.
    layers: [Vec<usize>; 2],
    vocab_size: usize,
    num_tokens: usize,
    /// Rounds behind the first token.
    pub rounds: Vec<Observed>,
    /// The round behind which to end the generation; 0 is that of the first token.
    pub break_at: Option<usize>,
}

impl<'r> Checker<'r> {
    pub fn new(model: &Model, reference: &'r Reference, look: Look, what: &str) -> Self {
        let config = model.config();
        let of = |kind| (0..config.num_layers).filter(|&layer| config.layer_types[layer] == kind).collect();
        Self {
            reference,
            what: what.to_owned(),
            look,
            rng: Rng::new(17),
            layers: [of(LayerType::LinearAttention), of(LayerType::FullAttention)],
            vocab_size: config.vocab_size,
            num_tokens: 0,
            rounds: Vec::new(),
            break_at: None,
        }
    }

    #[track_caller]
    fn same(&self, equal: bool, position: usize, layer: Option<usize>, part: &str) {
        let layer = layer.map_or_else(String::new, |layer| format!("layer {layer}, "));
        let round = self.rounds.len();
        assert!(equal, "{}: round {round}, position {position}, {layer}{part}: not those of plain decoding", self.what);
    }

    /// Compares keys and values of all positions, and states: all or some.
    fn compare_cache(&mut self, cache: &mut HybridCache, all_states: bool) {
        let (reference, prompt_len) = (self.reference, self.reference.prompt.len());
        // The newest token is not run yet.
        let len = prompt_len + self.num_tokens - 1;
        self.same(cache.len() == len, cache.len(), None, "number of positions");
        let [gdn, attention] = self.layers.clone();
        assert_eq!((reference.states[0].len(), reference.kv.len()), (gdn.len(), attention.len()));
        for ((layer, kv), want) in attention.into_iter().zip(cache.kv()).zip(&reference.kv) {
            self.same(kv.len() == len, kv.len(), Some(layer), "number of keys and values");
            for (position, (got, want)) in kv_prints(kv).iter().zip(want).enumerate() {
                self.same(got[0] == want[0], position, Some(layer), "keys");
                self.same(got[1] == want[1], position, Some(layer), "values");
            }
        }
        let states = &reference.states[self.num_tokens - 1];
        for (index, (layer, want)) in gdn.into_iter().zip(states).enumerate() {
            if all_states || self.rng.one_in(3) {
                let got = print(&cache.recurrent_state(index).unwrap());
                self.same(got == want[0], len, Some(layer), "recurrent state");
            }
            if all_states || self.rng.one_in(3) {
                let got = print(cache.conv_state(index).unwrap());
                self.same(got == want[1], len, Some(layer), "convolution state");
            }
        }
    }
}

impl Observer for Checker<'_> {
    fn round(&mut self, round: &RoundInfo<'_>, cache: &mut HybridCache) -> ControlFlow<()> {
        let RoundInfo { drafts, accepted, tokens, logits } = *round;
        let mut node = None;
        let follow = |token: &&u32| {
            node = drafts.child(node, **token);
            node.is_some()
        };
        assert_eq!(accepted, tokens.iter().take_while(follow).count(), "{}: {round:?}", self.what);
        // The model's own token comes behind the drafts that stay, unless the text ends with one of those.
        assert!((accepted..=accepted + 1).contains(&tokens.len()) && !tokens.is_empty(), "{}: {round:?}", self.what);
        assert_eq!(logits.len(), tokens.len() * self.vocab_size, "{}", self.what);
        if self.num_tokens > 0 {
            let (drafts, tokens) = (drafts.clone(), tokens.to_vec());
            self.rounds.push(Observed { drafts, tokens, accepted });
        } else {
            assert!(drafts.is_empty() && tokens.len() == 1, "{}: {round:?}", self.what);
        }
        for (&token, logits) in tokens.iter().zip(logits.chunks(self.vocab_size)) {
            let (i, position) = (self.num_tokens, self.reference.prompt.len() + self.num_tokens);
            self.same(self.reference.logits.get(i) == Some(&print(logits)), position, None, "logits");
            self.same(self.reference.tokens.get(i) == Some(&token), position, None, "token");
            self.num_tokens += 1;
        }
        self.compare_cache(cache, self.look == Look::Always);
        match self.break_at == Some(self.rounds.len()) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// A model and a cache that all its generations use.
pub struct Bench<'m> {
    pub model: &'m Model,
    pub cache: HybridCache,
    pub look: Look,
}

/// A generation that was held against plain decoding.
#[derive(Debug)]
pub struct Run {
    pub generation: Generation,
    pub rounds: Vec<Observed>,
}

impl Run {
    /// Accepted drafts of every round.
    pub fn accepted(&self) -> Vec<usize> {
        self.rounds.iter().map(|round| round.accepted).collect()
    }
}

/// Greedy or sampled tokens of which the matching drafts stay, without stop tokens.
pub fn options(sampling: &SamplingParams, window: usize, max_tokens: usize) -> GenerateOptions {
    let (sampling, acceptance) = (sampling.clone(), Acceptance::Match);
    GenerateOptions { max_tokens, sampling, acceptance, window, stop_tokens: Vec::new() }
}

impl<'m> Bench<'m> {
    /// A cache for windows of up to 8 drafts.
    pub fn new(model: &'m Model) -> Self {
        Self::with_capacity(model, 700)
    }

    pub fn with_capacity(model: &'m Model, capacity: usize) -> Self {
        let cache = model.new_cache(CacheConfig { capacity, max_window: 9 }).unwrap();
        Self { model, cache, look: Look::Always }
    }

    fn num_gdn(&self) -> usize {
        self.model.config().num_layers - self.cache.kv().len()
    }

    /// Plain decoding.
    pub fn plain(&mut self, prompt: &[u32], options: &GenerateOptions) -> Reference {
        let mut recorder = Recorder { reference: Reference::new(prompt), num_gdn: self.num_gdn() };
        let plain = generate(self.model, &mut self.cache, prompt, options, None, &mut recorder).unwrap();
        assert_eq!(plain.tokens, recorder.reference.tokens);
        assert_eq!((plain.rounds, plain.drafted, plain.accepted), (plain.tokens.len() - 1, 0, 0));
        recorder.reference.finish = plain.finish;
        recorder.reference
    }

    /// Single steps without a generation: `next` says the tokens, from their index and logits.
    pub fn follow(
        &mut self,
        prompt: &[u32],
        num_tokens: usize,
        next: &mut dyn FnMut(usize, &[f32]) -> u32,
    ) -> Reference {
        let (mut reference, mut out, num_gdn) = (Reference::new(prompt), Forward::new(), self.num_gdn());
        self.cache.reset().unwrap();
        self.model.prefill(&mut self.cache, prompt, Logits::Last, &mut out, &mut |_| Ok(())).unwrap();
        for i in 0..num_tokens {
            if let Some(&token) = reference.tokens.last() {
                self.model.decode(&mut self.cache, token, &mut out).unwrap();
            }
            reference.record(next(i, out.logits()), out.logits(), &mut self.cache, num_gdn);
        }
        reference
    }

    /// Generates with drafts, and holds every round and the end against plain decoding with the same options (which may
    /// have gone on for more tokens).
    pub fn check(
        &mut self,
        reference: &Reference,
        options: &GenerateOptions,
        drafter: &mut dyn Drafter,
        what: &str,
    ) -> Run {
        let what = format!("{what}, {} drafts, {:?}", options.window, options.sampling);
        let mut checker = Checker::new(self.model, reference, self.look, &what);
        let generation =
            generate(self.model, &mut self.cache, &reference.prompt, options, Some(drafter), &mut checker).unwrap();
        checker.compare_cache(&mut self.cache, true);

        let cut = options.max_tokens < reference.tokens.len();
        let (num_tokens, finish) =
            if cut { (options.max_tokens, Finish::Length) } else { (reference.tokens.len(), reference.finish) };
        assert_eq!(generation.tokens, reference.tokens[..num_tokens], "{what}");
        assert_eq!(generation.finish, finish, "{what}");
        assert_eq!(generation.prompt_tokens, reference.prompt.len(), "{what}");
        let rounds = checker.rounds;
        let sum = |of: fn(&Observed) -> usize| rounds.iter().map(of).sum::<usize>();
        assert_eq!(generation.rounds, rounds.len(), "{what}");
        assert_eq!(generation.drafted, sum(|round| round.drafts.len()), "{what}");
        assert_eq!(generation.accepted, sum(|round| round.accepted), "{what}");
        assert_eq!(generation.tokens.len(), 1 + sum(|round| round.tokens.len()), "{what}");
        assert!(rounds.iter().all(|round| round.drafts.len() <= options.window), "{what}");
        Run { generation, rounds }
    }
}
