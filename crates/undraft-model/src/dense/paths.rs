//! Which rows behind the committed ones each token of a tree follows.

/// Paths from the root to the tokens of a tree (or of several), root first, the token itself last.
///
/// Tokens are numbered in the order in which they are added, each after its parent.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    /// Where the path of a token ends in `rows`; it begins where that of the token before ends.
    ends: Vec<usize>,
    rows: Vec<u32>,
}

impl Paths {
    /// Forgets all tokens; keeps the memory.
    pub fn clear(&mut self) {
        self.ends.clear();
        self.rows.clear();
    }

    /// Tokens.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds a token behind `parent`, or behind what is committed.
    ///
    /// # Panics
    /// If there is no such parent.
    pub fn push(&mut self, parent: Option<usize>) {
        let path = parent.map_or(0..0, |parent| self.range(parent));
        self.rows.extend_from_within(path);
        self.rows.push(self.ends.len() as u32);
        self.ends.push(self.rows.len());
    }

    /// The path to a token.
    ///
    /// # Panics
    /// If there is no such token.
    pub fn path(&self, token: usize) -> &[u32] {
        &self.rows[self.range(token)]
    }

    /// Tokens before this one on its path.
    ///
    /// # Panics
    /// If there is no such token.
    pub fn depth(&self, token: usize) -> usize {
        self.range(token).len() - 1
    }

    /// The token before this one on its path; none if that is what is committed.
    ///
    /// # Panics
    /// If there is no such token.
    pub fn parent(&self, token: usize) -> Option<usize> {
        self.path(token).iter().nth_back(1).map(|&parent| parent as usize)
    }

    fn range(&self, token: usize) -> std::ops::Range<usize> {
        let start = token.checked_sub(1).map_or(0, |previous| self.ends[previous]);
        start..self.ends[token]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_run_from_the_root() {
        let mut paths = Paths::default();
        for parent in [None, Some(0), Some(0), None, Some(2), Some(4)] {
            paths.push(parent);
        }
        let want: [&[u32]; 6] = [&[0], &[0, 1], &[0, 2], &[3], &[0, 2, 4], &[0, 2, 4, 5]];
        for (token, want) in want.into_iter().enumerate() {
            assert_eq!((paths.path(token), paths.depth(token)), (want, want.len() - 1));
            let parent = [None, Some(0), Some(0), None, Some(2), Some(4)][token];
            assert_eq!(paths.parent(token), parent);
        }
        paths.clear();
        paths.push(None);
        assert_eq!((paths.len(), paths.is_empty(), paths.path(0)), (1, false, &[0][..]));
    }
}
