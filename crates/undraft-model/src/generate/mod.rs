//! Generation: prefill, then rounds of draft, verify and commit.

mod decide;
mod engine;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::drafters::{DraftLimits, Drafter, Drafts};
use crate::error::{ModelError, Result};
use crate::model::{HybridCache, Logits};
use crate::sampling::SamplingParams;
use decide::{Decided, Decider, WindowInfo};
pub use engine::{EachChunk, Engine, Outputs, SequenceCache, Undecided};

/// When a draft stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Acceptance {
    /// When it is the token that plain sampling draws at its position. What is generated is then the same, token for
    /// token, whatever the drafter and the window.
    #[default]
    Match,
    /// By the rejection rule: the same distribution as plain sampling, other tokens, more of them accepted. Drafts are
    /// chains then: a tree is refused.
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
    /// Drafts a round, at most, all branches of a tree counted; the cache's `max_window` must be larger.
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
    pub drafts: &'a Drafts,
    /// How many of them stay; a path, in a tree.
    pub accepted: usize,
    /// Tokens that stay: accepted drafts, then the model's own.
    pub tokens: &'a [u32],
    /// Logits that these tokens were drawn from, `[tokens.len(), vocab_size]`; may be empty for an observer that does not
    /// [want](Observer::wants_logits) them.
    pub logits: &'a [f32],
}

/// Watches a generation whose cache is a `C`. Every method has an empty default.
pub trait Observer<C = HybridCache> {
    /// Prompt tokens done, and their logits `[n, vocab_size]` if [`Observer::wants_prompt_logits`].
    fn prefill(&mut self, done: usize, total: usize, logits: &[f32]) {
        let _ = (done, total, logits);
    }
    /// Whether logits of all prompt positions are to be computed.
    fn wants_prompt_logits(&self) -> bool {
        false
    }
    /// Whether a round comes with its logits. A model on another device need not copy them if not.
    fn wants_logits(&self) -> bool {
        true
    }
    /// A decided round (the first token, drawn behind the prompt, comes as a round without drafts); `Break` ends the
    /// generation.
    fn round(&mut self, round: &RoundInfo<'_>, cache: &mut C) -> ControlFlow<()> {
        let _ = (round, cache);
        ControlFlow::Continue(())
    }
}

/// An observer that watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;
impl<C> Observer<C> for Quiet {
    fn wants_logits(&self) -> bool {
        false
    }
}

/// Generates tokens behind a prompt, from an empty cache.
///
/// With [`Acceptance::Match`] the tokens, the logits they were drawn from and the cache after every round are those of
/// plain decoding (`drafter: None`), bit for bit.
///
/// # Errors
/// [`ModelError::EmptyPrompt`], [`ModelError::CacheFull`] for a prompt that does not fit, [`ModelError::Options`],
/// [`ModelError::SamplingParam`], [`ModelError::TokenId`], or what the drafter gives. The cache is then reset by the
/// next call.
pub fn generate<M: Engine>(
    model: &M,
    cache: &mut M::Cache,
    prompt: &[u32],
    options: &GenerateOptions,
    mut drafter: Option<&mut (dyn Drafter<M::Hidden> + '_)>,
    observer: &mut dyn Observer<M::Cache>,
) -> Result<Generation> {
    let needs_logits =
        observer.wants_logits() || options.sampling.temperature != 0.0 || options.acceptance != Acceptance::Match;
    let mut state = State::new(model, cache, options, needs_logits)?;
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
struct State<'a, M: Engine> {
    model: &'a M,
    cache: &'a mut M::Cache,
    options: &'a GenerateOptions,
    decider: Decider,
    out: M::Outputs,
    drafts: Drafts,
    /// The last token, then the drafts.
    window: Vec<u32>,
    /// Parents of the window's tokens, if it is a tree.
    parents: Vec<i32>,
    decided: Decided,
    generation: Generation,
    finish: Option<Finish>,
}

impl<'a, M: Engine> State<'a, M> {
    fn new(model: &'a M, cache: &'a mut M::Cache, options: &'a GenerateOptions, needs_logits: bool) -> Result<Self> {
        if options.max_tokens == 0 {
            return Err(ModelError::Options { option: "max_tokens", found: 0, min: 1, max: usize::MAX });
        }
        if options.window >= cache.max_window() {
            let max = cache.max_window().saturating_sub(1);
            return Err(ModelError::Options { option: "window", found: options.window, min: 0, max });
        }
        cache.reset()?;
        let reserve = options.max_tokens.min(cache.capacity());
        let window = options.window + 1;
        Ok(Self {
            model,
            options,
            decider: Decider::new(options, model.config().vocab_size)?,
            out: model.new_outputs(needs_logits),
            drafts: Drafts::with_capacity(options.window),
            window: Vec::with_capacity(window),
            parents: Vec::with_capacity(window),
            decided: Decided { tokens: Vec::with_capacity(window), path: Vec::with_capacity(window), accepted: 0 },
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
        mut drafter: Option<&mut (dyn Drafter<M::Hidden> + '_)>,
        observer: &mut dyn Observer<M::Cache>,
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
        self.model.prefill(self.cache, prompt, logits, &mut self.out, &mut |tokens, out| {
            // The last state waits for the token behind the prompt.
            let known = tokens.end.min(prompt.len() - 1);
            let next = &prompt[tokens.start + 1..=known];
            if let Some(drafter) = &mut drafter {
                out.show(0..next.len(), next, *drafter)?;
            }
            let logits = if all_logits { out.logits() } else { &[] };
            observer.prefill(tokens.end, prompt.len(), logits);
            Ok(())
        })?;
        self.generation.prompt_tokens = prompt.len();
        self.drafts.clear();
        self.settle(self.out.num_tokens() - 1, drafter, observer)
    }

    /// One window: drafts, verification, commit.
    fn round(
        &mut self,
        mut drafter: Option<&mut (dyn Drafter<M::Hidden> + '_)>,
        observer: &mut dyn Observer<M::Cache>,
    ) -> Result<()> {
        self.drafts.clear();
        let left = self.options.max_tokens - self.generation.tokens.len();
        let room = self.cache.capacity() - self.cache.len();
        // Of a window a whole path may stay and one more token comes; that one is not run.
        let max_drafts = self.options.window.min(room.saturating_sub(1));
        let limits = DraftLimits { max_drafts, max_depth: max_drafts.min(left - 1) };
        if let Some(drafter) = &mut drafter
            && limits.max_depth > 0
        {
            self.propose(*drafter, limits)?;
        }
        let Self { model, cache, options, decider, out, drafts, decided, .. } = self;
        self.window.clear();
        self.window.extend(self.generation.tokens.last());
        self.window.extend_from_slice(drafts.tokens());
        let position = self.generation.prompt_tokens + self.generation.tokens.len();
        let info = WindowInfo { first_row: 0, position, drafts, left };
        // Which tokens stay follows from the logits; the cache is not needed for it.
        if drafts.is_chain() {
            let window = model.verify(cache, &self.window, None, out)?;
            decider.decide(options, out, info, decided)?;
            window.commit_path(&decided.path)?;
        } else {
            // The last token comes before the first draft.
            self.parents.clear();
            self.parents.push(-1);
            self.parents.extend(drafts.parents().iter().map(|parent| parent + 1));
            let window = model.verify(cache, &self.window, Some(&self.parents), out)?;
            decider.decide(options, out, info, decided)?;
            window.commit_path(&decided.path)?;
            out.keep(&decided.path);
        }
        self.generation.rounds += 1;
        self.generation.drafted += self.drafts.len();
        self.record(0, drafter, observer)
    }

    /// Draws the token behind row `row` of the last call and records it.
    fn settle(
        &mut self,
        row: usize,
        drafter: Option<&mut (dyn Drafter<M::Hidden> + '_)>,
        observer: &mut dyn Observer<M::Cache>,
    ) -> Result<()> {
        let position = self.generation.prompt_tokens;
        let info = WindowInfo { first_row: row, position, drafts: &self.drafts, left: 1 };
        self.decider.decide(self.options, &self.out, info, &mut self.decided)?;
        self.record(row, drafter, observer)
    }

    fn propose(&mut self, drafter: &mut (dyn Drafter<M::Hidden> + '_), limits: DraftLimits) -> Result<()> {
        let first = self.generation.prompt_tokens + self.generation.tokens.len();
        let Self { options, decider, drafts, .. } = self;
        drafter.propose(limits, &mut decider.choose(options.acceptance, first, limits.max_depth), drafts)?;
        drafts.truncate(limits.max_drafts);
        if drafts.is_chain() {
            drafts.truncate(limits.max_depth);
        }
        decider.drafted(options.acceptance, drafts)
    }

    /// Tells everyone of the decided tokens, which were drawn from the rows of the last call from `first_row` on.
    fn record(
        &mut self,
        first_row: usize,
        drafter: Option<&mut (dyn Drafter<M::Hidden> + '_)>,
        observer: &mut dyn Observer<M::Cache>,
    ) -> Result<()> {
        let Decided { tokens: kept, accepted, .. } = &self.decided;
        let (n, accepted) = (kept.len(), *accepted);
        self.generation.accepted += accepted;
        self.generation.tokens.extend_from_slice(kept);
        self.finish = kept.last().filter(|t| self.options.stop_tokens.contains(t)).map(|_| Finish::Stop);
        if self.generation.tokens.len() >= self.options.max_tokens {
            self.finish = self.finish.or(Some(Finish::Length));
        }
        if self.cache.len() >= self.cache.capacity() {
            self.finish = self.finish.or(Some(Finish::Context));
        }
        if let Some(drafter) = drafter
            && self.finish.is_none()
        {
            self.out.show(first_row..first_row + n, kept, drafter)?;
        }
        let (vocab_size, mut logits) = (self.model.config().vocab_size, self.out.logits());
        if !logits.is_empty() {
            // Rows without logits lie before those with.
            let skipped = self.out.num_tokens() - logits.len() / vocab_size;
            logits = &logits[(first_row - skipped) * vocab_size..(first_row - skipped + n) * vocab_size];
        }
        let round = RoundInfo { drafts: &self.drafts, accepted, tokens: kept, logits };
        if observer.round(&round, self.cache).is_break() {
            self.finish = self.finish.or(Some(Finish::Interrupted));
        }
        Ok(())
    }
}
