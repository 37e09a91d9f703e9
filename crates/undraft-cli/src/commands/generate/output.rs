//! What a generation shows while it runs.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::io::Write;
use std::ops::ControlFlow;

use anyhow::Result;
use indicatif::ProgressBar;
use undraft_model::generate::{Finish, Observer, RoundInfo};
use undraft_model::text::{StreamDecoder, TextCodec};

/// One hash a token of the logits that it was drawn from.
#[derive(Debug, Default)]
pub struct Bits {
    pub logits: Vec<u64>,
}

impl Bits {
    fn add(&mut self, round: &RoundInfo<'_>) {
        let row_len = round.logits.len() / round.tokens.len().max(1);
        for row in round.logits.chunks_exact(row_len.max(1)) {
            let mut hasher = DefaultHasher::new();
            row.iter().for_each(|x| hasher.write_u32(x.to_bits()));
            self.logits.push(hasher.finish());
        }
    }
}

impl<C> Observer<C> for Bits {
    fn round(&mut self, round: &RoundInfo<'_>, _cache: &mut C) -> ControlFlow<()> {
        self.add(round);
        ControlFlow::Continue(())
    }
}

/// Streams text (ids without a tokenizer) to standard output, and keeps logits where they are wanted.
pub struct Printer<'c> {
    decoder: Option<StreamDecoder<'c>>,
    streams: bool,
    text: String,
    printed: usize,
    num_ids: usize,
    bar: ProgressBar,
    wants_bits: bool,
    wants_dump: bool,
    prompt_logits: Vec<f32>,
    logits: Vec<f32>,
    error: Option<std::io::Error>,
    pub bits: Bits,
}

/// Logits of a generation, `[.., vocab_size]`.
pub struct Dump<'a> {
    pub prompt: &'a [f32],
    pub generated: &'a [f32],
}

impl<'c> Printer<'c> {
    /// Keeps the bits of logits for a comparison, and the logits for a dump, where they are wanted.
    pub fn new(codec: Option<&'c TextCodec>, streams: bool, wants_bits: bool, wants_dump: bool) -> Self {
        Self {
            decoder: codec.map(TextCodec::stream),
            streams,
            text: String::new(),
            printed: 0,
            num_ids: 0,
            bar: super::progress("prompt"),
            wants_bits,
            wants_dump,
            prompt_logits: Vec::new(),
            logits: Vec::new(),
            error: None,
            bits: Bits::default(),
        }
    }

    pub fn dump(&self) -> Dump<'_> {
        Dump { prompt: &self.prompt_logits, generated: &self.logits }
    }

    /// Ends the stream; gives the text where there is a tokenizer.
    pub fn finish(&mut self) -> Result<Option<String>> {
        let has_text = self.decoder.is_some();
        if let Some(decoder) = self.decoder.take() {
            decoder.finish(&mut self.text);
        }
        self.flush();
        if self.streams && self.error.is_none() {
            // A reader that has had enough is no error.
            let _ = writeln!(std::io::stdout());
        }
        match self.error.take() {
            Some(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(has_text.then(|| std::mem::take(&mut self.text))),
        }
    }

    fn flush(&mut self) {
        if !self.streams || self.error.is_some() {
            return;
        }
        let mut stdout = std::io::stdout().lock();
        let result = stdout.write_all(&self.text.as_bytes()[self.printed..]).and_then(|()| stdout.flush());
        self.printed = self.text.len();
        self.error = result.err();
    }
}

impl<C> Observer<C> for Printer<'_> {
    fn wants_prompt_logits(&self) -> bool {
        self.wants_dump
    }

    fn wants_logits(&self) -> bool {
        self.wants_bits || self.wants_dump
    }

    fn prefill(&mut self, done: usize, total: usize, logits: &[f32]) {
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        if done == total {
            self.bar.finish_and_clear();
        }
        self.prompt_logits.extend_from_slice(logits);
    }

    fn round(&mut self, round: &RoundInfo<'_>, _cache: &mut C) -> ControlFlow<()> {
        if self.wants_bits {
            self.bits.add(round);
        }
        if self.wants_dump {
            self.logits.extend_from_slice(round.logits);
        }
        for &id in round.tokens {
            match &mut self.decoder {
                Some(decoder) => decoder.push(id, &mut self.text),
                None => {
                    let comma = if self.num_ids == 0 { "" } else { "," };
                    self.text.push_str(&format!("{comma}{id}"));
                }
            }
            self.num_ids += 1;
        }
        self.flush();
        if self.error.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

pub fn finish(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Context => "context",
        Finish::Interrupted => "interrupted",
    }
}
