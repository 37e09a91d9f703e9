//! Lookup and another drafter together.

use super::{Choose, DraftLimits, Drafter, Drafts, LookupDrafter, LookupOptions};
use crate::error::Result;

/// Drafts by lookup where at least the last `min_match` tokens occurred before, and asks another drafter otherwise.
///
/// Lookup costs nothing, and behind a long match it is right for many tokens (text that is copied or repeats itself);
/// behind a short one a head of the model knows better. Both see every token, so that each drafts as it would alone.
#[derive(Clone, Debug)]
pub struct LookupFirst<D> {
    lookup: LookupDrafter,
    min_match: usize,
    otherwise: D,
    num_by_lookup: usize,
    num_by_other: usize,
}

impl<D> LookupFirst<D> {
    /// [`LookupFirst::new`]'s `min_match` where nothing speaks for another one.
    pub const MIN_MATCH: usize = 6;

    /// Looks up n-grams of `min_match..=16` tokens.
    ///
    /// # Errors
    /// [`LookupOptions`](crate::ModelError::LookupOptions) unless `min_match` is 1..=16.
    pub fn new(min_match: usize, otherwise: D) -> Result<Self> {
        let lookup = LookupDrafter::new(LookupOptions::new(min_match, LookupOptions::LONGEST)?);
        Ok(Self { lookup, min_match, otherwise, num_by_lookup: 0, num_by_other: 0 })
    }

    /// Shortest match that is drafted from.
    pub fn min_match(&self) -> usize {
        self.min_match
    }

    /// The other drafter.
    pub fn otherwise(&self) -> &D {
        &self.otherwise
    }

    /// Rounds of this sequence in which lookup drafted, and in which the other drafter was asked.
    pub fn rounds(&self) -> (usize, usize) {
        (self.num_by_lookup, self.num_by_other)
    }
}

impl<H: ?Sized, D: Drafter<H>> Drafter<H> for LookupFirst<D> {
    fn begin(&mut self, first_token: u32) -> Result<()> {
        (self.num_by_lookup, self.num_by_other) = (0, 0);
        Drafter::<H>::begin(&mut self.lookup, first_token)?;
        self.otherwise.begin(first_token)
    }
    fn reserve(&mut self, num_tokens: usize) {
        Drafter::<H>::reserve(&mut self.lookup, num_tokens);
        self.otherwise.reserve(num_tokens);
    }
    fn observe(&mut self, hidden: &H, next_tokens: &[u32]) -> Result<()> {
        Drafter::observe(&mut self.lookup, hidden, next_tokens)?;
        self.otherwise.observe(hidden, next_tokens)
    }
    fn propose(&mut self, limits: DraftLimits, choose: &mut dyn Choose, drafts: &mut Drafts) -> Result<()> {
        Drafter::<H>::propose(&mut self.lookup, limits, choose, drafts)?;
        if !drafts.is_empty() {
            self.num_by_lookup += 1;
            return Ok(());
        }
        self.num_by_other += 1;
        self.otherwise.propose(limits, choose, drafts)
    }
}
