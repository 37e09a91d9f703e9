//! Device memory of a pass, and what the host tells it.

use std::sync::Arc;

use undraft::cuda::driver::{DevicePtr, Stream};
use undraft::cuda::{DeviceBuffer, dense};

use crate::config::ModelConfig;
use crate::error::Result;

/// What kernels read of a round, written in one copy: positions held, entries pending, the log's slots, then token ids.
#[derive(Debug)]
pub(super) struct Header {
    words: DeviceBuffer<u32>,
    /// `[0, n]` for every n, then a 0: bounds of one sequence, and its slot.
    constants: DeviceBuffer<i32>,
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

impl Header {
    const LEN: usize = 0;
    const NUM_PENDING: usize = 1;
    const PENDING_SLOT: usize = 2;
    const LOG_SLOT: usize = 3;
    const TOKENS: usize = 4;

    pub(super) fn new(stream: &Stream, max_tokens: usize) -> Result<Self> {
        let constants: Vec<i32> = (0..=max_tokens as i32).flat_map(|n| [0, n]).chain([0]).collect();
        Ok(Self {
            words: DeviceBuffer::zeroed(stream, Self::TOKENS + max_tokens)?,
            constants: DeviceBuffer::from_slice(stream, &constants)?,
            staged: Vec::with_capacity(Self::TOKENS + max_tokens),
            max_tokens,
        })
    }

    /// Most tokens.
    pub(super) fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Puts the words and token ids on the stream.
    pub(super) fn write(&mut self, stream: &Stream, words: HeaderWords, tokens: &[u32]) -> Result<()> {
        let HeaderWords { len, num_pending, pending_slot } = words;
        self.staged.clear();
        self.staged.extend([len as u32, num_pending as u32, pending_slot, 1 - pending_slot]);
        self.staged.extend_from_slice(tokens);
        Ok(self.words.write(stream, 0, &self.staged)?)
    }

    pub(super) fn len_held(&self) -> DevicePtr {
        self.word(Self::LEN)
    }
    pub(super) fn num_pending(&self) -> DevicePtr {
        self.word(Self::NUM_PENDING)
    }
    pub(super) fn pending_slot(&self) -> DevicePtr {
        self.word(Self::PENDING_SLOT)
    }
    pub(super) fn log_slot(&self) -> DevicePtr {
        self.word(Self::LOG_SLOT)
    }
    /// The token ids.
    pub(super) fn tokens(&self) -> DevicePtr {
        self.word(Self::TOKENS)
    }
    /// Bounds of a sequence of `n` tokens.
    pub(super) fn cu_seqlens(&self, n: usize) -> DevicePtr {
        assert!(n <= self.max_tokens, "{n} tokens, expected at most {}", self.max_tokens);
        self.constants.address() + 8 * n as u64
    }
    /// The slot of the sequence: 0.
    pub(super) fn state_indices(&self) -> DevicePtr {
        self.constants.address() + 8 * (self.max_tokens as u64 + 1)
    }

    fn word(&self, index: usize) -> DevicePtr {
        self.words.address() + 4 * index as u64
    }
}

/// Tokens that attend at a time: sums of segments are kept for as many.
pub(super) const ATTENTION_TOKENS: usize = 8;

/// Scratch memory of a pass through blocks.
#[derive(Debug)]
pub(super) struct Workspace {
    /// The residual stream, `[n, H]`.
    pub(super) x: DeviceBuffer<f32>,
    /// What a mixer or MLP reads, `[n, H]`.
    pub(super) h: DeviceBuffer<f32>,
    /// What it gives, `[n, H]`.
    pub(super) delta: DeviceBuffer<f32>,
    /// Joint projections of a mixer, or gates and what they gate: `[n, ..]`.
    pub(super) wide: DeviceBuffer<f32>,
    /// What the last projection of a mixer or MLP reads: `[n, ..]`.
    pub(super) inner: DeviceBuffer<f32>,
    /// Output of the convolution `[n, C]`, or queries `[n, heads, D]`.
    pub(super) mixed: DeviceBuffer<f32>,
    /// Output of the recurrence, `[n, HV, V]`.
    pub(super) o: DeviceBuffer<f32>,
    /// `[ATTENTION_TOKENS, heads, segments, D + 2]`.
    pub(super) attention_parts: DeviceBuffer<f32>,
    pub(super) experts: Option<ExpertsSpace>,
    /// Logits of up to `max_logits` rows.
    pub(super) logits: DeviceBuffer<f32>,
    pub(super) argmax_parts: DeviceBuffer<u64>,
    /// The token of the largest logit of each row.
    pub(super) largest: DeviceBuffer<u32>,
    /// States behind the last norm, `[n, H]`.
    pub(super) hidden: Arc<DeviceBuffer<f32>>,
    /// Tokens there is room for.
    pub(super) max_tokens: usize,
    pub(super) max_logits: usize,
    /// Segments of the attention.
    pub(super) segments: usize,
}

/// Scratch memory of experts.
#[derive(Debug)]
pub(super) struct ExpertsSpace {
    /// `[n, num_experts + 1]`.
    pub(super) logits: DeviceBuffer<f32>,
    /// `[n, top_k]`.
    pub(super) chosen: DeviceBuffer<u32>,
    /// `[n, top_k]`.
    pub(super) weights: DeviceBuffer<f32>,
    /// `[n, top_k, 2, inner]`.
    pub(super) gate_up: DeviceBuffer<f32>,
    /// `[n, top_k, inner]`.
    pub(super) inner: DeviceBuffer<f32>,
    /// `[n, top_k, H]`.
    pub(super) results: DeviceBuffer<f32>,
    /// Of the shared expert, `[n, H]`.
    pub(super) shared: DeviceBuffer<f32>,
}

impl Workspace {
    /// For `max_tokens` tokens and the logits of `max_logits` of them, with `capacity` positions.
    pub(super) fn new(
        stream: &Stream,
        config: &ModelConfig,
        (max_tokens, max_logits): (usize, usize),
        capacity: usize,
    ) -> Result<Self> {
        let buffer = |len: usize| DeviceBuffer::uninit(stream.driver(), max_tokens * len);
        let hidden_size = config.hidden_size;
        let key_dim = config.linear_num_key_heads * config.linear_key_head_dim;
        let value_dim = config.linear_num_value_heads * config.linear_value_head_dim;
        let conv_dim = 2 * key_dim + value_dim;
        let queries = config.num_attention_heads * config.head_dim;
        let keys = config.num_key_value_heads * config.head_dim;
        let shared = config.moe.as_ref().map_or(0, |moe| moe.shared_expert_intermediate_size);
        let mlp = config.intermediate_size.max(shared);
        let gdn = conv_dim + value_dim + 2 * config.linear_num_value_heads;
        let segments = dense::attention_segments(capacity);
        let experts = match &config.moe {
            None => None,
            Some(moe) => Some(ExpertsSpace {
                logits: buffer(moe.num_experts + 1)?,
                chosen: DeviceBuffer::uninit(stream.driver(), max_tokens * moe.num_experts_per_tok)?,
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
            attention_parts: DeviceBuffer::uninit(
                stream.driver(),
                ATTENTION_TOKENS * config.num_attention_heads * segments * (config.head_dim + 2),
            )?,
            experts,
            logits: DeviceBuffer::uninit(stream.driver(), max_logits * config.vocab_size)?,
            argmax_parts: DeviceBuffer::uninit(stream.driver(), max_logits * dense::argmax_parts(config.vocab_size))?,
            largest: DeviceBuffer::zeroed(stream, max_logits)?,
            hidden: Arc::new(buffer(hidden_size)?),
            max_tokens,
            max_logits,
            segments,
        })
    }
}
