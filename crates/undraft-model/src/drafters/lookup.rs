//! Prompt lookup: the tokens that followed the present n-gram when it last occurred.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::error::{ModelError, Result};

/// Lengths of n-grams that are looked up, longest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupOptions {
    max_ngram: usize,
    min_ngram: usize,
}

impl LookupOptions {
    /// The longest n-gram that can be looked up.
    pub const LONGEST: usize = 16;

    /// N-grams of `min_ngram..=max_ngram` tokens. Longer ones are right more often and found less often.
    ///
    /// # Errors
    /// [`ModelError::LookupOptions`] unless `1 <= min_ngram <= max_ngram <= 16`.
    pub fn new(min_ngram: usize, max_ngram: usize) -> Result<Self> {
        if !(1 <= min_ngram && min_ngram <= max_ngram && max_ngram <= Self::LONGEST) {
            return Err(ModelError::LookupOptions { min_ngram, max_ngram });
        }
        Ok(Self { max_ngram, min_ngram })
    }
}

impl Default for LookupOptions {
    /// 2..=5.
    fn default() -> Self {
        Self { max_ngram: 5, min_ngram: 2 }
    }
}

/// A drafter that needs no model: it finds the longest suffix of the sequence that occurred before, and drafts what
/// followed its most recent occurrence.
///
/// It costs one table entry per token and n-gram length, and no search.
///
/// ```
/// use undraft_model::drafters::lookup::{LookupDrafter, LookupOptions};
/// let mut drafter = LookupDrafter::new(LookupOptions::default());
/// drafter.extend(&[1, 2, 3, 4, 9, 1, 2]);
/// let mut drafts = Vec::new();
/// drafter.propose(3, &mut drafts);
/// assert_eq!(drafts, [3, 4, 9]);
/// ```
#[derive(Clone, Debug)]
pub struct LookupDrafter {
    options: LookupOptions,
    tokens: Vec<u32>,
    /// Hash of an n-gram to the index of the token that followed its most recent occurrence.
    followers: HashMap<u64, usize, BuildHasherDefault<KeyIsHash>>,
}

impl LookupDrafter {
    /// A drafter for an empty sequence.
    pub fn new(options: LookupOptions) -> Self {
        Self { options, tokens: Vec::new(), followers: HashMap::default() }
    }

    /// Makes room for `additional` tokens, so that [`LookupDrafter::extend`] does not allocate for them.
    pub fn reserve(&mut self, additional: usize) {
        self.tokens.reserve(additional);
        let lengths = self.options.max_ngram - self.options.min_ngram + 1;
        self.followers.reserve(additional.saturating_mul(lengths));
    }

    /// Forgets the sequence; keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.followers.clear();
    }

    /// Appends true tokens of the sequence: the prompt, then what verification keeps. Drafts do not belong here.
    pub fn extend(&mut self, tokens: &[u32]) {
        for &token in tokens {
            // The n-grams that end before `token` have a follower from now on.
            for (_, hash) in suffix_hashes(&self.tokens, self.options) {
                self.followers.insert(hash, self.tokens.len());
            }
            self.tokens.push(token);
        }
    }

    /// Clears `drafts` and fills it with guesses for the next tokens: `max_drafts` of them, or none.
    ///
    /// Where the occurrence ends less than `max_drafts` tokens ago the sequence is taken to repeat itself, so a loop of
    /// two tokens drafts as many of them as asked for.
    pub fn propose(&self, max_drafts: usize, drafts: &mut Vec<u32>) {
        drafts.clear();
        let Some(follower) = self.follower() else { return };
        for i in follower..follower + max_drafts {
            let token = self.tokens.get(i).copied().unwrap_or_else(|| drafts[i - self.tokens.len()]);
            drafts.push(token);
        }
    }

    /// The tokens so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Index of the token that followed the longest suffix which occurred before.
    fn follower(&self) -> Option<usize> {
        let len = self.tokens.len();
        let mut longest = None;
        for (n, hash) in suffix_hashes(&self.tokens, self.options) {
            if let Some(&follower) = self.followers.get(&hash)
                // Different n-grams may have the same hash.
                && follower >= n
                && self.tokens[follower - n..follower] == self.tokens[len - n..]
            {
                longest = Some(follower);
            }
        }
        longest
    }
}

/// `(n, hash)` of the last n tokens, for each length that is looked up, shortest first.
fn suffix_hashes(tokens: &[u32], options: LookupOptions) -> impl Iterator<Item = (usize, u64)> {
    let mut hash = 0x9e37_79b9_7f4a_7c15;
    tokens
        .iter()
        .rev()
        .take(options.max_ngram)
        .enumerate()
        .map(move |(i, &token)| {
            hash = mix(hash ^ u64::from(token));
            (i + 1, hash)
        })
        .filter(move |&(n, _)| n >= options.min_ngram)
}

/// The finaliser of SplitMix64: a bijection of 64 bits in which each input bit reaches all output bits.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// For keys that are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct KeyIsHash(u64);

impl Hasher for KeyIsHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = mix(self.0 ^ u64::from(byte)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn propose(options: LookupOptions, tokens: &[u32], k: usize) -> Vec<u32> {
        let mut drafter = LookupDrafter::new(options);
        drafter.extend(tokens);
        let mut drafts = vec![99];
        drafter.propose(k, &mut drafts);
        drafts
    }

    /// Every n-gram compared with every place, from the definition.
    fn naive(options: LookupOptions, tokens: &[u32], k: usize) -> Vec<u32> {
        let len = tokens.len();
        for n in (options.min_ngram..=options.max_ngram.min(len)).rev() {
            for follower in (n..len).rev() {
                if tokens[follower - n..follower] == tokens[len - n..] {
                    let mut all = tokens.to_vec();
                    (0..k).for_each(|i| all.push(all[follower + i]));
                    return all.split_off(len);
                }
            }
        }
        Vec::new()
    }

    #[test]
    fn the_longest_then_the_latest_occurrence_wins() {
        let options = LookupOptions::new(1, 3).unwrap();
        assert_eq!(propose(options, &[1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 2), [7, 2]); // [1 2 3] is longer than [2 3]
        assert_eq!(propose(options, &[3, 7, 3, 8, 3], 2), [8, 3]); // the later of two [3]
        assert!(propose(LookupOptions::default(), &[3, 7, 3, 8, 3], 2).is_empty()); // 1-grams are not looked up
    }

    #[test]
    fn a_loop_is_drafted_for_as_long_as_asked() {
        assert_eq!(propose(LookupOptions::default(), &[4, 5, 4, 5, 4, 5], 5), [4, 5, 4, 5, 4]);
        assert_eq!(propose(LookupOptions::default(), &[6, 6, 6], 3), [6, 6, 6]);
    }

    #[test]
    fn nothing_to_say() {
        for tokens in [&[][..], &[1], &[1, 2, 3, 4]] {
            assert!(propose(LookupOptions::default(), tokens, 4).is_empty());
        }
        assert!(propose(LookupOptions::default(), &[1, 2, 1, 2], 0).is_empty());
    }

    #[test]
    fn lengths_are_checked() {
        for (min, max) in [(0, 3), (3, 2), (1, 17)] {
            let message = LookupOptions::new(min, max).unwrap_err().to_string();
            assert!(message.contains(&format!("{min}..={max}")) && message.contains("1..=16"), "{message}");
        }
    }

    proptest! {
        #[test]
        fn equals_the_naive_search(
            tokens in prop::collection::vec(0u32..4, 0..80),
            cut in 0usize..80, min in 1usize..4, more in 0usize..4, k in 0usize..8,
        ) {
            let options = LookupOptions::new(min, min + more).unwrap();
            prop_assert_eq!(propose(options, &tokens, k), naive(options, &tokens, k));
            let mut drafter = LookupDrafter::new(options);
            drafter.reserve(tokens.len());
            let (head, tail) = tokens.split_at(cut.min(tokens.len()));
            drafter.extend(head);
            drafter.extend(tail);
            let mut drafts = Vec::new();
            drafter.propose(k, &mut drafts);
            prop_assert_eq!(drafts, naive(options, &tokens, k));
        }
    }
}
