//! Device memory of a pass, and what the host tells it.

use std::sync::Arc;

use super::args::Ids;
use super::device::Gpu;
use crate::config::ModelConfig;
use crate::error::Result;

/// What kernels read of a round, one buffer: positions held, entries pending, the log's slots, then token ids, which one copy
/// writes; behind them what never changes, bounds of one sequence and its slot.
#[derive(Debug)]
pub struct Header<G: Gpu> {
    words: G::Buffer<u32>,
    staged: Vec<u32>,
    max_tokens: usize,
}

/// The words before the tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeaderWords {
    /// Positions held.
    pub(super) len: usize,
    /// Entries of the log that are to be replayed.
    pub(super) num_pending: usize,
    /// The log's slot that they lie in, 0 or 1; the window's log is the other one.
    pub(super) pending_slot: u32,
}

impl<G: Gpu> Header<G> {
    /// Element of [`Header::words`]: positions held.
    pub const LEN: usize = 0;
    /// Entries of the log that are to be replayed.
    pub const NUM_PENDING: usize = 1;
    /// The log's slot that they lie in.
    pub const PENDING_SLOT: usize = 2;
    /// The slot that the window fills.
    pub const LOG_SLOT: usize = 3;
    /// The first token id.
    pub const TOKENS: usize = 4;

    pub(super) fn new(gpu: &G, max_tokens: usize) -> Result<Self> {
        let mut words = vec![0; Self::TOKENS + max_tokens];
        words.extend((0..=max_tokens as u32).flat_map(|n| [0, n]).chain([0]));
        Ok(Self { words: gpu.copy_of(&words)?, staged: Vec::with_capacity(Self::TOKENS + max_tokens), max_tokens })
    }

    /// Most tokens.
    pub(super) fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Puts the words and token ids on the queue.
    pub(super) fn write(&mut self, gpu: &G, words: HeaderWords, tokens: &[u32]) -> Result<()> {
        let HeaderWords { len, num_pending, pending_slot } = words;
        self.staged.clear();
        self.staged.extend([len as u32, num_pending as u32, pending_slot, 1 - pending_slot]);
        self.staged.extend_from_slice(tokens);
        gpu.write(&mut self.words, &self.staged)
    }

    /// The buffer.
    pub fn words(&self) -> &G::Buffer<u32> {
        &self.words
    }
    /// First of the two elements that bound a sequence of `n` tokens: 0 and n.
    pub fn cu_seqlens(&self, n: usize) -> usize {
        assert!(n <= self.max_tokens, "{n} tokens, expected at most {}", self.max_tokens);
        Self::TOKENS + self.max_tokens + 2 * n
    }
    /// Element that is the slot of the sequence: 0.
    pub fn state_indices(&self) -> usize {
        Self::TOKENS + self.max_tokens + 2 * (self.max_tokens + 1)
    }
    /// The token ids.
    pub(super) fn tokens(&self) -> Ids<'_, G> {
        Ids::new(&self.words, Self::TOKENS)
    }
}

/// Tokens that attend at a time: sums of segments are kept for as many.
pub(super) const ATTENTION_TOKENS: usize = 8;

/// Scratch memory of a pass through blocks.
#[derive(Debug)]
pub(super) struct Workspace<G: Gpu> {
    /// The residual stream, `[n, H]`.
    pub(super) x: G::Buffer<f32>,
    /// What a mixer or MLP reads, `[n, H]`.
    pub(super) h: G::Buffer<f32>,
    /// What it gives, `[n, H]`.
    pub(super) delta: G::Buffer<f32>,
    /// Joint projections of a mixer, or gates and what they gate: `[n, ..]`.
    pub(super) wide: G::Buffer<f32>,
    /// What the last projection of a mixer or MLP reads: `[n, ..]`.
    pub(super) inner: G::Buffer<f32>,
    /// Output of the convolution `[n, C]`, or queries `[n, heads, D]`.
    pub(super) mixed: G::Buffer<f32>,
    /// Output of the recurrence, `[n, HV, V]`.
    pub(super) o: G::Buffer<f32>,
    /// `[ATTENTION_TOKENS, heads, ..]`.
    pub(super) attention_scratch: G::Buffer<f32>,
    pub(super) experts: Option<ExpertsSpace<G>>,
    /// Logits of up to `max_logits` rows.
    pub(super) logits: G::Buffer<f32>,
    pub(super) argmax_scratch: G::Buffer<u32>,
    /// The token of the largest logit of each row.
    pub(super) largest: G::Buffer<u32>,
    /// States behind the last norm, `[n, H]`.
    pub(super) hidden: Arc<G::Buffer<f32>>,
    /// Tokens there is room for.
    pub(super) max_tokens: usize,
    pub(super) max_logits: usize,
}

/// Scratch memory of experts.
#[derive(Debug)]
pub(super) struct ExpertsSpace<G: Gpu> {
    /// `[n, num_experts + 1]`.
    pub(super) logits: G::Buffer<f32>,
    /// `[n, top_k]`.
    pub(super) chosen: G::Buffer<u32>,
    /// `[n, top_k]`.
    pub(super) weights: G::Buffer<f32>,
    /// `[n, top_k, 2, inner]`.
    pub(super) gate_up: G::Buffer<f32>,
    /// `[n, top_k, inner]`.
    pub(super) inner: G::Buffer<f32>,
    /// `[n, top_k, H]`.
    pub(super) results: G::Buffer<f32>,
    /// Of the shared expert, `[n, H]`.
    pub(super) shared: G::Buffer<f32>,
}

impl<G: Gpu> Workspace<G> {
    /// For `max_tokens` tokens and the logits of `max_logits` of them, with `capacity` positions.
    pub(super) fn new(
        gpu: &G,
        config: &ModelConfig,
        (max_tokens, max_logits): (usize, usize),
        capacity: usize,
    ) -> Result<Self> {
        let buffer = |len: usize| gpu.uninit(max_tokens * len);
        let hidden_size = config.hidden_size;
        let key_dim = config.linear_num_key_heads * config.linear_key_head_dim;
        let value_dim = config.linear_num_value_heads * config.linear_value_head_dim;
        let conv_dim = 2 * key_dim + value_dim;
        let queries = config.num_attention_heads * config.head_dim;
        let keys = config.num_key_value_heads * config.head_dim;
        let shared = config.moe.as_ref().map_or(0, |moe| moe.shared_expert_intermediate_size);
        let mlp = config.intermediate_size.max(shared);
        let gdn = conv_dim + value_dim + 2 * config.linear_num_value_heads;
        let attention = config.num_attention_heads * G::attention_scratch(capacity, config.head_dim);
        let experts = match &config.moe {
            None => None,
            Some(moe) => Some(ExpertsSpace {
                logits: buffer(moe.num_experts + 1)?,
                chosen: gpu.uninit(max_tokens * moe.num_experts_per_tok)?,
                weights: buffer(moe.num_experts_per_tok)?,
                gate_up: buffer(moe.num_experts_per_tok * 2 * moe.moe_intermediate_size)?,
                inner: buffer(moe.num_experts_per_tok * moe.moe_intermediate_size)?,
                results: buffer(moe.num_experts_per_tok * hidden_size)?,
                shared: buffer(hidden_size)?,
            }),
        };
        Ok(Self {
            x: buffer(hidden_size)?,
            h: buffer(hidden_size)?,
            delta: buffer(hidden_size)?,
            wide: buffer(gdn.max(2 * queries + 2 * keys).max(2 * mlp).max(2 * hidden_size))?,
            inner: buffer(value_dim.max(queries).max(mlp))?,
            mixed: buffer(conv_dim.max(queries))?,
            o: buffer(value_dim)?,
            attention_scratch: gpu.uninit(ATTENTION_TOKENS * attention)?,
            experts,
            logits: gpu.uninit(max_logits * config.vocab_size)?,
            argmax_scratch: gpu.uninit(max_logits * G::argmax_scratch(config.vocab_size))?,
            largest: gpu.zeroed(max_logits)?,
            hidden: Arc::new(buffer(hidden_size)?),
            max_tokens,
            max_logits,
        })
    }
}
