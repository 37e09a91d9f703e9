//! What a drafter guesses: a chain of tokens, or a tree.

use crate::error::{ModelError, Result};

/// Guesses for the tokens behind those known. Every guess follows another one, or the last token known.
///
/// ```
/// use undraft_model::drafters::Drafts;
/// let mut drafts = Drafts::new();
/// drafts.push(7); // behind the last token known
/// drafts.push(8); // behind 7
/// assert!(drafts.is_chain());
/// drafts.push_behind(Some(0), 9)?; // behind 7 as well
/// assert_eq!(drafts.parents(), [-1, 0, 0]);
/// assert_eq!(drafts.child(Some(0), 9), Some(2));
/// # Ok::<(), undraft_model::ModelError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drafts {
    tokens: Vec<u32>,
    /// Empty for a chain.
    parents: Vec<i32>,
}

impl Drafts {
    /// No guesses.
    pub fn new() -> Self {
        Self::default()
    }

    /// No guesses, and room for as many.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { tokens: Vec::with_capacity(capacity), parents: Vec::with_capacity(capacity) }
    }

    /// Number of guesses.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The guesses; each comes after the one that it follows.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// For each guess the index of the one that it follows, -1 for the last token known. Empty for a chain, where each
    /// guess follows the one before it.
    pub fn parents(&self) -> &[i32] {
        &self.parents
    }

    /// Whether each guess follows the one before it.
    pub fn is_chain(&self) -> bool {
        self.parents.is_empty()
    }

    /// Forgets all guesses; keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.parents.clear();
    }

    /// Adds a guess behind the newest one.
    pub fn push(&mut self, token: u32) {
        if !self.parents.is_empty() {
            self.parents.push(self.tokens.len() as i32 - 1);
        }
        self.tokens.push(token);
    }

    /// Adds a guess behind guess `parent`, or behind the last token known.
    ///
    /// # Errors
    /// [`ModelError::TreeParent`] if there is no such guess.
    pub fn push_behind(&mut self, parent: Option<usize>, token: u32) -> Result<()> {
        let index = self.tokens.len();
        if let Some(parent) = parent.filter(|&parent| parent >= index) {
            return Err(ModelError::TreeParent { index, found: parent as i64 });
        }
        if parent == index.checked_sub(1) {
            self.push(token);
            return Ok(());
        }
        if self.parents.is_empty() {
            self.parents.extend((0..index).map(|i| i as i32 - 1));
        }
        self.parents.push(parent.map_or(-1, |parent| parent as i32));
        self.tokens.push(token);
        Ok(())
    }

    /// Keeps the first `len` guesses.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.parents.truncate(len);
        if self.parents.iter().zip(-1..).all(|(&parent, previous)| parent == previous) {
            self.parents.clear();
        }
    }

    /// The first guess behind guess `parent` (or the last token known) that is `token`.
    pub fn child(&self, parent: Option<usize>, token: u32) -> Option<usize> {
        let first = parent.map_or(0, |parent| parent + 1);
        if self.is_chain() {
            return self.tokens.get(first).filter(|&&draft| draft == token).map(|_| first);
        }
        let parent = parent.map_or(-1, |parent| parent as i32);
        (first..self.len()).find(|&i| self.parents[i] == parent && self.tokens[i] == token)
    }

    /// The tokens of a chain that is yet to be filled; forgets all guesses.
    pub(crate) fn begin_chain(&mut self) -> &mut Vec<u32> {
        self.clear();
        &mut self.tokens
    }
}

impl From<Vec<u32>> for Drafts {
    /// A chain.
    fn from(tokens: Vec<u32>) -> Self {
        Self { tokens, parents: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_a_chain_as_long_as_nothing_branches() {
        let mut drafts = Drafts::with_capacity(4);
        drafts.push_behind(None, 1).unwrap();
        drafts.push_behind(Some(0), 2).unwrap();
        drafts.push(3);
        assert!(drafts.is_chain() && drafts.parents().is_empty());
        drafts.push_behind(None, 4).unwrap();
        drafts.push(5);
        assert_eq!((drafts.tokens(), drafts.parents()), (&[1, 2, 3, 4, 5][..], &[-1, 0, 1, -1, 3][..]));
        drafts.truncate(4);
        assert_eq!(drafts.parents(), [-1, 0, 1, -1]);
        drafts.truncate(3);
        assert!(drafts.is_chain());
        assert_eq!(drafts, Drafts::from(vec![1, 2, 3]));
    }

    #[test]
    fn children_are_found_by_parent_and_token() {
        let mut drafts = Drafts::new();
        for (parent, token) in [(None, 5), (None, 6), (Some(0), 6), (Some(1), 5), (Some(0), 7), (Some(0), 7)] {
            drafts.push_behind(parent, token).unwrap();
        }
        assert_eq!(drafts.child(None, 6), Some(1));
        assert_eq!(drafts.child(Some(0), 6), Some(2));
        assert_eq!(drafts.child(Some(0), 7), Some(4));
        assert_eq!(drafts.child(Some(1), 6), None);
        assert_eq!(drafts.child(Some(5), 6), None);
        let chain = Drafts::from(vec![5, 6]);
        assert_eq!((chain.child(None, 5), chain.child(Some(0), 6), chain.child(Some(1), 5)), (Some(0), Some(1), None));
    }

    #[test]
    fn a_guess_follows_an_earlier_one() {
        let mut drafts = Drafts::from(vec![1]);
        let message = drafts.push_behind(Some(1), 2).unwrap_err().to_string();
        assert!(message.contains("token 1") && message.contains("-1..=0"), "{message}");
        assert_eq!(drafts.len(), 1);
    }
}
