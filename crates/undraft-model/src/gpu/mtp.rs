//! The multi-token prediction head on the device: see [`crate::model::MtpHead`].

use std::sync::Arc;

use super::args::{ArgMax, Ids, Kv, Place, Rows};
use super::block::{Attention, Block, Pass};
use super::cache::rope;
use super::device::{Gpu, Memory};
use super::outputs::HiddenRows;
use super::weights::{Matrix, Norm};
use super::workspace::{Header, HeaderWords, Workspace};
use super::{CHUNK, INVALID};
use crate::config::ModelConfig;
use crate::drafters::{Choose, DraftLimits, Drafter, Drafts};
use crate::error::{ModelError, Result};
use crate::model::{check_capacity, check_room, check_tokens};

/// The head; embedding and output head are the trunk's.
#[derive(Debug)]
pub struct GpuMtpHead<G: Gpu> {
    pub(super) gpu: G,
    pub(super) config: ModelConfig,
    pub(super) norm_embedding: Norm<G>,
    pub(super) norm_hidden: Norm<G>,
    /// `[H, 2 H]`: columns of the embedding, then of the hidden state.
    pub(super) fc: Matrix<G>,
    pub(super) block: Block<G, Attention<G>>,
    pub(super) norm: Norm<G>,
    pub(super) embed: Arc<Matrix<G>>,
    pub(super) head: Arc<Matrix<G>>,
}

/// Drafts with a model's MTP head on the device, each guess fed back for the next one, as
/// [`crate::drafters::MtpDrafter`] does on the CPU.
///
/// Greedy drafts of a round are made in one go: one launch, and one copy of their ids.
#[derive(Debug)]
pub struct GpuMtpDrafter<'m, G: Gpu> {
    head: &'m GpuMtpHead<G>,
    kv: Kv<G>,
    rope: G::Buffer<f32>,
    header: Header<G>,
    work: Workspace<G>,
    /// State of the last true pair behind the head's norm, `[H]`.
    last: G::Buffer<f32>,
    /// The same of a draft's last step.
    own: G::Buffer<f32>,
    /// Ids of a draft made on the device.
    drafted: G::Buffer<u32>,
    /// Of as many drafts, once they were asked for.
    recordings: Vec<Option<G::Recording>>,
    /// Of as many true pairs of a round, once they have come.
    feeds: Vec<Option<Feed<G>>>,
    /// Pairs held.
    len: usize,
    capacity: usize,
    host_logits: Vec<f32>,
}

/// Recorded work over states that lie in a buffer of the trunk's.
#[derive(Debug)]
struct Feed<G: Gpu> {
    recording: G::Recording,
    hidden: Arc<G::Buffer<f32>>,
}

/// Where the tokens of pairs come from.
#[derive(Clone, Copy)]
enum Tokens {
    Header,
    /// A draft that was made on the device.
    Drafted(usize),
}

impl<'m, G: Gpu> GpuMtpDrafter<'m, G> {
    /// Most drafts that are made in one go.
    const MAX_DRAFTS: usize = 64;
    /// Most pairs of a round for which a recording is kept.
    const MAX_PAIRS: usize = 16;

    /// A drafter for sequences of up to `capacity` tokens.
    ///
    /// # Errors
    /// [`ModelError::Capacity`], or that of the device without memory for it.
    pub fn new(head: &'m GpuMtpHead<G>, capacity: usize) -> Result<Self> {
        let config = &head.config;
        check_capacity(capacity, config.max_position_embeddings)?;
        let gpu = &head.gpu;
        let keys = capacity * head.block.mixer.sizes.keys();
        Ok(Self {
            head,
            kv: Kv { keys: gpu.zeroed(keys)?, values: gpu.zeroed(keys)? },
            rope: rope(gpu, config, capacity)?,
            header: Header::new(gpu, CHUNK)?,
            work: Workspace::new(gpu, config, (CHUNK, 1), capacity)?,
            last: gpu.zeroed(config.hidden_size)?,
            own: gpu.zeroed(config.hidden_size)?,
            drafted: gpu.zeroed(Self::MAX_DRAFTS)?,
            recordings: (0..=Self::MAX_DRAFTS).map(|_| None).collect(),
            feeds: (0..=Self::MAX_PAIRS).map(|_| None).collect(),
            len: 0,
            capacity,
            host_logits: Vec::new(),
        })
    }

    /// Bytes of the head's keys and values.
    pub fn memory(&self) -> usize {
        4 * (self.kv.keys.len() + self.kv.values.len())
    }

    /// Pairs held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no pair is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The block over `n` pairs of tokens and states, `offset` behind those held; `to` gets the state of the last one.
    fn run(&self, tokens: Tokens, hidden: Rows<'_, G>, n: usize, offset: usize, to: &G::Buffer<f32>) -> Result<()> {
        let Self { head, work, .. } = self;
        let gpu = &head.gpu;
        assert!(n <= work.max_tokens, "{n} pairs in a pass");
        let hidden_size = head.config.hidden_size;
        let x = Rows::new(&work.x, hidden_size);
        let h = Rows::new(&work.h, hidden_size);
        let delta = Rows::new(&work.delta, hidden_size);
        let pairs = Rows::new(&work.wide, 2 * hidden_size);
        let tokens = match tokens {
            Tokens::Header => self.header.tokens(),
            Tokens::Drafted(index) => Ids::new(&self.drafted, index),
        };
        gpu.embed(&head.embed, tokens, x, n)?;
        gpu.rms_norm(&head.norm_embedding, x, None, pairs, n)?;
        gpu.rms_norm(&head.norm_hidden, hidden, None, pairs.columns(hidden_size), n)?;
        gpu.linear(&head.fc, pairs, x, n)?;
        let place = Place { header: &self.header, offset, rope: &self.rope, capacity: self.capacity };
        let pass = Pass { gpu, work, place, n, num_out: 1, undecided: false, max_window: 0 };
        gpu.rms_norm(&head.block.input_norm, x, None, h, n)?;
        head.block.mixer.forward(pass, &self.kv)?;
        // Of the other pairs nothing but keys and values is needed.
        let x = x.rows(n - 1);
        gpu.rms_norm(&head.block.post_norm, x, Some(delta), h, 1)?;
        head.block.mlp.forward(pass, 1)?;
        gpu.rms_norm(&head.norm, x, Some(delta), Rows::new(to, hidden_size), 1)
    }

    /// State that draft `index` is made from, once the block has run over the draft before it.
    fn step(&self, index: usize, before: Tokens) -> Result<&G::Buffer<f32>> {
        if index == 0 {
            return Ok(&self.last);
        }
        let state = if index == 1 { &self.last } else { &self.own };
        self.run(before, Rows::new(state, self.head.config.hidden_size), 1, index - 1, &self.own)?;
        Ok(&self.own)
    }

    /// Logits behind a state, and the largest of them, as draft `index`.
    fn logits(&self, state: &G::Buffer<f32>, index: usize) -> Result<()> {
        let Self { head, work, .. } = self;
        let vocab_size = head.config.vocab_size;
        let hidden = Rows::new(state, head.config.hidden_size);
        head.gpu.linear(&head.head, hidden, Rows::new(&work.logits, vocab_size), 1)?;
        let out = Ids::new(&self.drafted, index);
        head.gpu.argmax(ArgMax { logits: &work.logits, len: vocab_size, scratch: &work.argmax_scratch, out, n: 1 })
    }

    /// Puts true pairs behind those held, as many as a pass takes.
    fn feed(&mut self, hidden: &HiddenRows<G>, tokens: &[u32]) -> Result<()> {
        let (gpu, n) = (&self.head.gpu, tokens.len());
        self.header.write(gpu, HeaderWords { len: self.len, ..HeaderWords::default() }, tokens)?;
        let rows = Rows::new(&*hidden.buffer, self.head.config.hidden_size).rows(hidden.first);
        let is_round = hidden.first == 0 && n < self.feeds.len();
        if !is_round {
            self.run(Tokens::Header, rows, n, 0, &self.last)?;
        } else {
            if !self.feeds[n].as_ref().is_some_and(|feed| Arc::ptr_eq(&feed.hidden, &hidden.buffer)) {
                let recording = gpu.record(|| self.run(Tokens::Header, rows, n, 0, &self.last))?;
                self.feeds[n] = Some(Feed { recording, hidden: hidden.buffer.clone() });
            }
            if let Some(feed) = &self.feeds[n] {
                // SAFETY: it was recorded for this drafter, which keeps all memory that it uses but the weights; those
                // are of the head, which is borrowed. The header has `n` tokens; pairs stay within the capacity.
                unsafe { gpu.replay(&feed.recording)? };
            }
        }
        self.len += n;
        Ok(())
    }

    /// Greedy drafts; false if logits had no largest one.
    fn draft_at_once(&mut self, num_drafts: usize, drafts: &mut Vec<u32>) -> Result<bool> {
        let gpu = &self.head.gpu;
        self.header.write(gpu, HeaderWords { len: self.len, ..HeaderWords::default() }, &[])?;
        if self.recordings[num_drafts].is_none() {
            let recording = gpu.record(|| {
                for index in 0..num_drafts {
                    let state = self.step(index, Tokens::Drafted(index.saturating_sub(1)))?;
                    self.logits(state, index)?;
                }
                Ok(())
            })?;
            self.recordings[num_drafts] = Some(recording);
        }
        if let Some(recording) = &self.recordings[num_drafts] {
            // SAFETY: as in `feed`; pairs held and drafts stay within the capacity.
            unsafe { gpu.replay(recording)? };
        }
        drafts.resize(num_drafts, 0);
        gpu.read(&self.drafted, drafts)?;
        Ok(!drafts.contains(&INVALID))
    }

    /// Drafts one by one, each taken from its logits by `choose`.
    fn draft_each(&mut self, num_drafts: usize, choose: &mut dyn Choose, drafts: &mut Vec<u32>) -> Result<()> {
        let (head, vocab_size) = (self.head, self.head.config.vocab_size);
        drafts.clear();
        self.host_logits.resize(vocab_size, 0.0);
        for index in 0..num_drafts {
            let words = HeaderWords { len: self.len, ..HeaderWords::default() };
            self.header.write(&head.gpu, words, drafts.last().map_or(&[], std::slice::from_ref))?;
            let state = self.step(index, Tokens::Header)?;
            self.logits(state, 0)?;
            head.gpu.read(&self.work.logits, &mut self.host_logits)?;
            // With n pairs the tokens up to position n are known.
            let token = choose.token((self.len + index + 1) as u64, &self.host_logits)?;
            check_tokens(&[token], vocab_size)?;
            drafts.push(token);
        }
        Ok(())
    }
}

impl<G: Gpu> Drafter<HiddenRows<G>> for GpuMtpDrafter<'_, G> {
    fn begin(&mut self, _first_token: u32) -> Result<()> {
        self.len = 0;
        Ok(())
    }

    fn observe(&mut self, hidden: &HiddenRows<G>, next_tokens: &[u32]) -> Result<()> {
        let head = self.head;
        let hidden_size = head.config.hidden_size;
        if hidden.num_rows != next_tokens.len() {
            let (found, num_tokens) = (hidden.num_rows * hidden_size, next_tokens.len());
            return Err(ModelError::HiddenRows { found, num_tokens, hidden_size });
        }
        check_tokens(next_tokens, head.config.vocab_size)?;
        check_room(self.len, next_tokens.len(), self.capacity)?;
        for (index, tokens) in next_tokens.chunks(CHUNK).enumerate() {
            let first = hidden.first + index * CHUNK;
            self.feed(&HiddenRows { first, num_rows: tokens.len(), ..hidden.clone() }, tokens)?;
        }
        Ok(())
    }

    fn propose(&mut self, limits: DraftLimits, choose: &mut dyn Choose, drafts: &mut Drafts) -> Result<()> {
        let drafts = drafts.begin_chain();
        if self.is_empty() {
            return Ok(());
        }
        // A draft's own pairs lie behind those held; the last draft has none.
        let num_drafts = limits.max_depth.min(1 + self.capacity - self.len);
        let at_once = num_drafts <= Self::MAX_DRAFTS && choose.is_greedy();
        if at_once && self.draft_at_once(num_drafts, drafts)? {
            return Ok(());
        }
        self.draft_each(num_drafts, choose, drafts)
    }
}
