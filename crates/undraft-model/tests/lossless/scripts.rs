//! Drafters that know how the text goes on.

use undraft_model::drafters::{Drafter, ScriptedDrafter};
use undraft_testing::Rng;

use super::trace::Reference;

/// A drafter whose script gets the tokens to come and how many drafts are wanted. It asserts that it was told the true
/// tokens so far.
pub fn script<'r>(
    reference: &'r Reference,
    mut drafts: impl FnMut(&[u32], usize) -> Vec<u32> + 'r,
) -> impl Drafter + 'r {
    ScriptedDrafter::new(move |known: &[u32], max_drafts| {
        let (prompt, tokens) = (&reference.prompt, &reference.tokens);
        let num_generated = known.len() - prompt.len();
        assert_eq!(&known[..prompt.len()], &prompt[..], "the prompt as the drafter knows it");
        assert_eq!(&known[prompt.len()..], &tokens[..num_generated], "the tokens as the drafter knows them");
        drafts(&tokens[num_generated..], max_drafts)
    })
}

/// Any token but this one.
pub fn wrong(token: u32, vocab_size: usize, rng: &mut Rng) -> u32 {
    ((token as usize + 1 + rng.below(vocab_size - 1)) % vocab_size) as u32
}

/// `num_drafts` drafts of which the first `num_right` are right and the next one is not. Those behind it are what would
/// have come, or anything.
pub fn drafts(truth: &[u32], num_drafts: usize, num_right: usize, vocab_size: usize, rng: &mut Rng) -> Vec<u32> {
    let token = |i: usize| truth.get(i).copied().unwrap_or(0);
    let mut draft = |i: usize| match i {
        i if i < num_right => token(i),
        i if i == num_right => wrong(token(i), vocab_size, rng),
        i if rng.one_in(2) => token(i),
        _ => rng.below(vocab_size) as u32,
    };
    (0..num_drafts).map(&mut draft).collect()
}
