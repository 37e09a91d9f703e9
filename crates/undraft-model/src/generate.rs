//! Generation: prefill, then rounds of draft, verify and commit.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::drafters::Drafter;
use crate::error::{ModelError, Result};
use crate::model::{Forward, HybridCache, Logits, Model};
use crate::sampling::{RejectionSampler, Sampler, SamplingParams, Verdict};

/// When a draft stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Acceptance {
    /// When it is the token that plain sampling draws at its position. What is generated is then the same, token for
    /// token, whatever the drafter and the window.
    #[default]
    Match,
    /// By the rejection rule: the same distribution as plain sampling, other tokens, more of them accepted.
    Rejection,
}

/// How to generate.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Most tokens to generate, at least 1.
    pub max_tokens: usize,
    /// Temperature, top-k, top-p, seed.
    pub sampling: SamplingParams,
    /// When a draft stays.
    pub acceptance: Acceptance,
    /// Drafts a round, at most; the cache's `max_window` must be larger.
    pub window: usize,
    /// Tokens that end the text; the one that did is the last of the tokens.
    pub stop_tokens: Vec<u32>,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// A stop token came.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The cache has no room for more.
    Context,
    /// The observer asked for it.
    Interrupted,
}

/// What came out, and how.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Tokens behind the prompt.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Windows verified.
    pub rounds: usize,
    /// Drafts made.
    pub drafted: usize,
    /// Drafts that stayed.
    pub accepted: usize,
    /// Time for the prompt.
    pub prefill_time: Duration,
    /// Time for everything behind it.
    pub decode_time: Duration,
}

impl Generation {
    /// Tokens a round; the first token comes from the prompt and belongs to none. 1 for plain decoding.
    pub fn tokens_per_round(&self) -> f64 {
        self.tokens.len().saturating_sub(1) as f64 / self.rounds.max(1) as f64
    }
    /// Tokens a second behind the prompt.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens.len().saturating_sub(1) as f64 / self.decode_time.as_secs_f64().max(1e-9)
    }
}

/// A decided round.
#[derive(Debug)]
pub struct RoundInfo<'a> {
    /// Drafts made.
    pub drafts: &'a [u32],
    /// Tokens that stay: accepted drafts, then the model's own.
    pub tokens: &'a [u32],
    /// Logits that these tokens were drawn from, `[tokens.len(), vocab_size]`.
    pub logits: &'a [f32],
}

/// Watches a generation. Every method has an empty default.
pub trait Observer {
    /// Prompt tokens done, and their logits `[n, vocab_size]` if [`Observer::wants_prompt_logits`].
    fn prefill(&mut self, done: usize, total: usize, logits: &[f32]) {
        let _ = (done, total, logits);
    }
    /// Whether logits of all prompt positions are to be computed.
    fn wants_prompt_logits(&self) -> bool {
        false
    }
    /// A decided round (the first token, drawn behind the prompt, comes as a round without drafts); `Break` ends the
    /// generation.
    fn round(&mut self, round: &RoundInfo<'_>, cache: &mut HybridCache) -> ControlFlow<()> {
        let _ = (round, cache);
        ControlFlow::Continue(())
    }
}

/// An observer that watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;
impl Observer for Quiet {}

/// Generates tokens behind a prompt, from an empty cache.
///
/// With [`Acceptance::Match`] the tokens, the logits they were drawn from and the cache after every round are those of
/// plain decoding (`drafter: None`), bit for bit.
///
/// # Errors
/// [`ModelError::EmptyPrompt`], [`ModelError::CacheFull`] for a prompt that does not fit, [`ModelError::Options`],
/// [`ModelError::SamplingParam`], [`ModelError::TokenId`], or what the drafter gives. The cache is then reset by the
/// next call.
pub fn generate(
    model: &Model,
    cache: &mut HybridCache,
    prompt: &[u32],
    options: &GenerateOptions,
    mut drafter: Option<&mut (dyn Drafter + '_)>,
    observer: &mut dyn Observer,
) -> Result<Generation> {
    let mut state = State::new(model, cache, options)?;
    let start = Instant::now();
    state.prefill(prompt, drafter.as_deref_mut(), observer)?;
    state.generation.prefill_time = start.elapsed();
    let start = Instant::now();
    while state.finish.is_none() {
        state.round(drafter.as_deref_mut(), observer)?;
    }
    state.generation.decode_time = start.elapsed();
    state.generation.finish = state.finish.unwrap_or(Finish::Length);
    Ok(state.generation)
}

/// A generation under way.
struct State<'a> {
    model: &'a Model,
    cache: &'a mut HybridCache,
    options: &'a GenerateOptions,
    sampler: Sampler,
    rejection: RejectionSampler,
    out: Forward,
    drafts: Vec<u32>,
    /// Distributions that the drafts were drawn from, for the rejection rule.
    draft_probabilities: Vec<Vec<(u32, f64)>>,
    probabilities: Vec<(u32, f64)>,
    /// The last token, then the drafts.
    window: Vec<u32>,
    /// Tokens that stay of a round.
    kept: Vec<u32>,
    generation: Generation,
    finish: Option<Finish>,
}

impl<'a> State<'a> {
    fn new(model: &'a Model, cache: &'a mut HybridCache, options: &'a GenerateOptions) -> Result<Self> {
        if options.max_tokens == 0 {
            return Err(ModelError::Options { option: "max_tokens", found: 0, min: 1, max: usize::MAX });
        }
        if options.window >= cache.max_window() {
            let max = cache.max_window().saturating_sub(1);
            return Err(ModelError::Options { option: "window", found: options.window, min: 0, max });
        }
        cache.reset()?;
        let reserve = options.max_tokens.min(cache.capacity());
        // The rejection rule alone needs distributions; they hold what top-k leaves.
        let vocab_size = model.config().vocab_size;
        let (num_distributions, num_candidates) = match (options.acceptance, options.sampling.top_k) {
            (Acceptance::Match, _) => (0, 0),
            (Acceptance::Rejection, 0) => (options.window, vocab_size),
            (Acceptance::Rejection, top_k) => (options.window, top_k.min(vocab_size)),
        };
        Ok(Self {
            model,
            options,
            sampler: Sampler::new(options.sampling.clone())?,
            rejection: RejectionSampler::new(options.sampling.seed),
            out: Forward::new(),
            drafts: Vec::with_capacity(options.window),
            draft_probabilities: (0..num_distributions).map(|_| Vec::with_capacity(num_candidates)).collect(),
            probabilities: Vec::with_capacity(num_candidates),
            window: Vec::with_capacity(options.window + 1),
            kept: Vec::with_capacity(options.window + 1),
            generation: Generation {
                tokens: Vec::with_capacity(reserve),
                finish: Finish::Length,
                prompt_tokens: 0,
                rounds: 0,
                drafted: 0,
                accepted: 0,
                prefill_time: Duration::ZERO,
                decode_time: Duration::ZERO,
            },
            finish: None,
            cache,
        })
    }

    /// The prompt, and the first token behind it.
    fn prefill(
        &mut self,
        prompt: &[u32],
        mut drafter: Option<&mut (dyn Drafter + '_)>,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let Some(&first) = prompt.first() else { return Err(ModelError::EmptyPrompt) };
        if let Some(drafter) = &mut drafter {
            drafter.begin(first)?;
            // The last token needs no place in the cache.
            let most = self.cache.capacity().saturating_add(1);
            drafter.reserve(prompt.len().saturating_add(self.options.max_tokens).min(most));
        }
        let all_logits = observer.wants_prompt_logits();
        let logits = if all_logits { Logits::All } else { Logits::Last };
        let hidden_size = self.model.config().hidden_size;
        self.model.prefill(self.cache, prompt, logits, &mut self.out, &mut |chunk| {
            // The last state waits for the token behind the prompt.
            let known = chunk.tokens.end.min(prompt.len() - 1);
            let next = &prompt[chunk.tokens.start + 1..=known];
            if let Some(drafter) = &mut drafter {
                drafter.observe(&chunk.forward.hidden()[..next.len() * hidden_size], next)?;
            }
            let logits = if all_logits { chunk.forward.logits() } else { &[] };
            observer.prefill(chunk.tokens.end, chunk.total, logits);
            Ok(())
        })?;
        self.generation.prompt_tokens = prompt.len();
        self.drafts.clear();
        self.settle(self.out.num_tokens() - 1, drafter, observer)
    }

    /// One window: drafts, verification, commit.
    fn round(&mut self, mut drafter: Option<&mut (dyn Drafter + '_)>, observer: &mut dyn Observer) -> Result<()> {
        self.drafts.clear();
        let left = self.options.max_tokens - self.generation.tokens.len();
        let room = self.cache.capacity() - self.cache.len();
        // Of a window all drafts may stay and one more token comes; that one is not run.
        let max_drafts = self.options.window.min(left - 1).min(room.saturating_sub(1));
        if let Some(drafter) = &mut drafter
            && max_drafts > 0
        {
            self.propose(*drafter, max_drafts)?;
        }
        self.window.clear();
        self.window.extend(self.generation.tokens.last());
        self.window.extend_from_slice(&self.drafts);
        let window = self.model.verify(self.cache, &self.window, &mut self.out)?;
        // Which tokens stay follows from the logits; the cache is not needed for it.
        let mut decision = Decision {
            options: self.options,
            sampler: &mut self.sampler,
            rejection: &self.rejection,
            probabilities: &mut self.probabilities,
        };
        let position = (self.generation.prompt_tokens + self.generation.tokens.len()) as u64;
        let drafted = Drafted { tokens: &self.drafts, probabilities: &self.draft_probabilities };
        decision.decide(&self.out, 0, position, drafted, left, &mut self.kept)?;
        window.commit(self.kept.len())?;
        self.generation.rounds += 1;
        self.generation.drafted += self.drafts.len();
        self.record(0, drafter, observer)
    }

    /// Draws the token behind row `row` of the last call and records it.
    fn settle(
        &mut self,
        row: usize,
        drafter: Option<&mut (dyn Drafter + '_)>,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let mut decision = Decision {
            options: self.options,
            sampler: &mut self.sampler,
            rejection: &self.rejection,
            probabilities: &mut self.probabilities,
        };
        let position = self.generation.prompt_tokens as u64;
        let drafted = Drafted { tokens: &[], probabilities: &[] };
        decision.decide(&self.out, row, position, drafted, 1, &mut self.kept)?;
        self.record(row, drafter, observer)
    }

    fn propose(&mut self, drafter: &mut dyn Drafter, max_drafts: usize) -> Result<()> {
        let first = self.generation.prompt_tokens + self.generation.tokens.len();
        let Self { options, sampler, rejection, drafts, draft_probabilities, .. } = self;
        draft_probabilities.iter_mut().for_each(Vec::clear);
        let mut choose = |position: u64, logits: &[f32]| match options.acceptance {
            Acceptance::Match => sampler.sample(logits, position),
            Acceptance::Rejection => {
                let index = position.wrapping_sub(first as u64);
                let Some(q) = usize::try_from(index).ok().and_then(|index| draft_probabilities.get_mut(index)) else {
                    let (min, max) = (first, first + max_drafts - 1);
                    return Err(ModelError::Options { option: "draft position", found: position as usize, min, max });
                };
                sampler.probabilities(logits, position, q)?;
                rejection.draft(q, position)
            }
        };
        drafter.propose(max_drafts, &mut choose, drafts)?;
        drafts.truncate(max_drafts);
        // A draft that was not drawn was certain.
        for (q, &draft) in draft_probabilities.iter_mut().zip(drafts.iter()).filter(|(q, _)| q.is_empty()) {
            q.push((draft, 1.0));
        }
        Ok(())
    }

    /// Tells everyone of the tokens in `kept`, which were drawn from the rows of the last call from `first_row` on.
    fn record(
        &mut self,
        first_row: usize,
        drafter: Option<&mut (dyn Drafter + '_)>,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let n = self.kept.len();
        let is_draft = |(kept, draft): &(&u32, &u32)| kept == draft;
        self.generation.accepted += self.kept.iter().zip(&self.drafts).take_while(is_draft).count();
        self.generation.tokens.extend_from_slice(&self.kept);
        self.finish = self.kept.last().filter(|t| self.options.stop_tokens.contains(t)).map(|_| Finish::Stop);
        if self.generation.tokens.len() >= self.options.max_tokens {
            self.finish = self.finish.or(Some(Finish::Length));
        }
        if self.cache.len() >= self.cache.capacity() {
            self.finish = self.finish.or(Some(Finish::Context));
        }
        let (hidden_size, vocab_size) = (self.model.config().hidden_size, self.model.config().vocab_size);
        if let Some(drafter) = drafter
            && self.finish.is_none()
        {
            let rows = first_row * hidden_size..(first_row + n) * hidden_size;
            drafter.observe(&self.out.hidden()[rows], &self.kept)?;
        }
        // Rows without logits lie before those with.
        let skipped = self.out.num_tokens() - self.out.logits().len() / vocab_size;
        let rows = (first_row - skipped) * vocab_size..(first_row - skipped + n) * vocab_size;
        let round = RoundInfo { drafts: &self.drafts, tokens: &self.kept, logits: &self.out.logits()[rows] };
        if observer.round(&round, self.cache).is_break() {
            self.finish = self.finish.or(Some(Finish::Interrupted));
        }
        Ok(())
    }
}

/// Drafts with the distributions they were drawn from.
struct Drafted<'a> {
    tokens: &'a [u32],
    probabilities: &'a [Vec<(u32, f64)>],
}

/// Says which tokens stay.
struct Decision<'a> {
    options: &'a GenerateOptions,
    sampler: &'a mut Sampler,
    rejection: &'a RejectionSampler,
    probabilities: &'a mut Vec<(u32, f64)>,
}

impl Decision<'_> {
    /// Fills `kept` with the tokens for `position` on: drafts that stay, then one of the model's own; it ends at a stop
    /// token and after `left` tokens.
    fn decide(
        &mut self,
        out: &Forward,
        first_row: usize,
        position: u64,
        drafted: Drafted<'_>,
        left: usize,
        kept: &mut Vec<u32>,
    ) -> Result<()> {
        kept.clear();
        for i in 0..=drafted.tokens.len() {
            let logits = out.token_logits(first_row + i).unwrap_or_default();
            let position = position + i as u64;
            let draft = drafted.tokens.get(i).copied();
            let token = match self.options.acceptance {
                Acceptance::Match => self.sampler.sample(logits, position)?,
                Acceptance::Rejection => {
                    self.sampler.probabilities(logits, position, self.probabilities)?;
                    match draft {
                        Some(draft) => {
                            let q = &drafted.probabilities[i];
                            match self.rejection.verify(draft, self.probabilities, q, position)? {
                                Verdict::Accept => draft,
                                Verdict::Replace(token) => {
                                    kept.push(token);
                                    return Ok(());
                                }
                            }
                        }
                        None => self.rejection.bonus(self.probabilities, position)?,
                    }
                }
            };
            kept.push(token);
            if draft != Some(token) || kept.len() == left || self.options.stop_tokens.contains(&token) {
                break;
            }
        }
        Ok(())
    }
}
