//! Who guesses the next tokens.
//!
//! A drafter only ever guesses: what is generated depends on the model, the prompt and the sampling parameters alone.
//!
//! | drafter | guesses |
//! | --- | --- |
//! | [`LookupDrafter`] | what followed the present n-gram when it last occurred |
//! | [`MtpDrafter`] | a chain from the model's own head for the token after the next |
//! | [`MtpTreeDrafter`] | a tree from that head |
//! | [`LookupFirst`] | by lookup where a long n-gram occurred before, else what another drafter guesses |
//! | [`Adaptive`] | what another drafter guesses, as many as pay; none where none do |
//! | [`ScriptedDrafter`] | what a closure says |

pub mod adaptive;
mod drafts;
pub mod lookup;
mod lookup_first;
mod mtp;
mod scripted;

pub use adaptive::{Adaptive, AdaptiveReport};
pub use drafts::Drafts;
pub use lookup::{LookupDrafter, LookupOptions};
pub use lookup_first::LookupFirst;
pub use mtp::{MtpDrafter, MtpTreeDrafter};
pub use scripted::ScriptedDrafter;

use crate::error::Result;

/// Takes tokens from a drafter's logits, as the generation samples.
pub trait Choose {
    /// The token of a position.
    ///
    /// # Errors
    /// That of the sampler, or for a position that is not to be drafted.
    fn token(&mut self, position: u64, logits: &[f32]) -> Result<u32>;

    /// Whether [`Choose::token`] is the largest logit, of equal ones the lowest token, of any position: a drafter may then
    /// look for it itself.
    fn is_greedy(&self) -> bool {
        false
    }

    /// Clears `candidates` and fills it with up to `width` tokens that the position may get, the likeliest first.
    ///
    /// # Errors
    /// As [`Choose::token`].
    fn candidates(
        &mut self,
        position: u64,
        logits: &[f32],
        width: usize,
        candidates: &mut Vec<Candidate>,
    ) -> Result<()>;
}

pub use crate::sampling::Candidate;

/// How many drafts are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftLimits {
    /// Drafts in all, at least 1.
    pub max_drafts: usize,
    /// Drafts behind one another, `1..=max_drafts`: the length of a chain, the depth of a tree.
    pub max_depth: usize,
}

/// Guesses how a sequence goes on. `H` is how the trunk's states lie: `[f32]` in host memory.
pub trait Drafter<H: ?Sized = [f32]> {
    /// The first token of the sequence; forgets any sequence before.
    ///
    /// # Errors
    /// The drafter's.
    fn begin(&mut self, first_token: u32) -> Result<()>;

    /// Makes room for a sequence of `num_tokens`, so that nothing is allocated while it grows; a hint.
    fn reserve(&mut self, num_tokens: usize) {
        let _ = num_tokens;
    }

    /// True tokens behind those known, each with the state `[H]` of the trunk (behind its last norm) at the position
    /// before it: `hidden` is `[n, H]` for n tokens.
    ///
    /// # Errors
    /// The drafter's.
    fn observe(&mut self, hidden: &H, next_tokens: &[u32]) -> Result<()>;

    /// Fills `drafts`, which are empty, with guesses for the tokens behind those known: a chain or a tree. A guess from
    /// logits is taken through `choose`, with its position in the sequence; any other counts as certain.
    ///
    /// # Errors
    /// The drafter's, or that of `choose`.
    fn propose(&mut self, limits: DraftLimits, choose: &mut dyn Choose, drafts: &mut Drafts) -> Result<()>;
}

/// Passes everything on.
impl<H: ?Sized, D: Drafter<H> + ?Sized> Drafter<H> for Box<D> {
    fn begin(&mut self, first_token: u32) -> Result<()> {
        (**self).begin(first_token)
    }
    fn reserve(&mut self, num_tokens: usize) {
        (**self).reserve(num_tokens);
    }
    fn observe(&mut self, hidden: &H, next_tokens: &[u32]) -> Result<()> {
        (**self).observe(hidden, next_tokens)
    }
    fn propose(&mut self, limits: DraftLimits, choose: &mut dyn Choose, drafts: &mut Drafts) -> Result<()> {
        (**self).propose(limits, choose, drafts)
    }
}

impl<H: ?Sized> Drafter<H> for LookupDrafter {
    fn begin(&mut self, first_token: u32) -> Result<()> {
        self.clear();
        self.extend(&[first_token]);
        Ok(())
    }
    fn reserve(&mut self, num_tokens: usize) {
        LookupDrafter::reserve(self, num_tokens.saturating_sub(self.tokens().len()));
    }
    fn observe(&mut self, _hidden: &H, next_tokens: &[u32]) -> Result<()> {
        self.extend(next_tokens);
        Ok(())
    }
    fn propose(&mut self, limits: DraftLimits, _choose: &mut dyn Choose, drafts: &mut Drafts) -> Result<()> {
        LookupDrafter::propose(self, limits.max_depth, drafts.begin_chain());
        Ok(())
    }
}
