//! Which tokens belong to which sequence, and which slot holds a sequence's state.

use crate::error::{Error, Result};

/// `state_indices` value of a padding row: nothing is read or written, its outputs are zero.
pub const PAD_SLOT: i32 = -1;

/// Checked `cu_seqlens`: `[num_seqs + 1]`, from 0, never falling; sequence `s` has tokens `[s] .. [s + 1]`.
#[derive(Clone, Copy, Debug)]
pub struct CuSeqlens<'a>(&'a [i32]);

impl<'a> CuSeqlens<'a> {
    /// Checks the list.
    ///
    /// # Errors
    /// [`Error::Seqlens`] with the first bad entry.
    ///
    /// ```
    /// use undraft_core::CuSeqlens;
    /// let seqs = CuSeqlens::new(&[0, 3, 3, 4])?;
    /// assert_eq!((seqs.num_seqs(), seqs.num_tokens(), seqs.range(1)), (3, 4, 3..3));
    /// assert!(CuSeqlens::new(&[0, 3, 2]).is_err());
    /// # Ok::<(), undraft_core::Error>(())
    /// ```
    pub fn new(cu_seqlens: &'a [i32]) -> Result<Self> {
        let bad = |index, got: i32, expected| Error::Seqlens { index, got: i64::from(got), expected };
        match cu_seqlens.first() {
            None => {
                return Err(Error::Missing {
                    arg: "cu_seqlens",
                    because: "it needs num_seqs + 1 entries, at least one",
                });
            }
            Some(&first) if first != 0 => return Err(bad(0, first, "0")),
            Some(_) => {}
        }
        for (i, pair) in cu_seqlens.windows(2).enumerate() {
            if pair[1] < pair[0] {
                return Err(bad(i + 1, pair[1], "at least the entry before it"));
            }
        }
        Ok(Self(cu_seqlens))
    }
    /// Number of sequences.
    pub fn num_seqs(&self) -> usize {
        self.0.len() - 1
    }
    /// Tokens of all sequences.
    pub fn num_tokens(&self) -> usize {
        self.0[self.0.len() - 1] as usize
    }
    /// Tokens of sequence `seq`.
    pub fn range(&self, seq: usize) -> std::ops::Range<usize> {
        self.0[seq] as usize..self.0[seq + 1] as usize
    }
}

/// Whether a window is a chain: every token's parent is the one before it.
///
/// ```
/// use undraft_core::is_chain;
/// assert!(is_chain(&[]) && is_chain(&[-1, 0, 1]));
/// assert!(!is_chain(&[-1, 0, 0]));
/// ```
pub fn is_chain(parents: &[i32]) -> bool {
    parents.iter().enumerate().all(|(position, &parent)| parent == position as i32 - 1)
}

/// Checks `parents`: empty (chains), or `[num_tokens]` with -1 or an earlier position of the same window.
pub(crate) fn check_parents(parents: &[i32], seqs: &CuSeqlens<'_>) -> Result<()> {
    if parents.is_empty() {
        return Ok(());
    }
    crate::error::check_len("parents", parents.len(), &[("num_tokens", seqs.num_tokens())])?;
    for seq in 0..seqs.num_seqs() {
        for (position, token) in seqs.range(seq).enumerate() {
            let got = parents[token];
            if got < -1 || i64::from(got) >= position as i64 {
                return Err(Error::Parent { token, position, got });
            }
        }
    }
    Ok(())
}

/// Checked `state_indices`: `[num_seqs]`, each -1 or a slot, no slot twice.
#[derive(Clone, Copy, Debug)]
pub struct StateIndices<'a>(&'a [i32]);

impl<'a> StateIndices<'a> {
    /// Checks the list against the number of sequences and slots.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::SlotOutOfRange`] or [`Error::DuplicateSlot`].
    pub fn new(state_indices: &'a [i32], num_seqs: usize, num_slots: usize) -> Result<Self> {
        crate::error::check_len("state_indices", state_indices.len(), &[("num_seqs", num_seqs)])?;
        for (position, &slot) in state_indices.iter().enumerate() {
            if slot == PAD_SLOT {
                continue;
            }
            if slot < 0 || slot as usize >= num_slots {
                return Err(Error::SlotOutOfRange { position, got: i64::from(slot), num_slots });
            }
        }
        if let Some((first, position)) = duplicate(state_indices) {
            return Err(Error::DuplicateSlot { position, first, slot: state_indices[position] as usize });
        }
        Ok(Self(state_indices))
    }
    /// Slot of sequence `seq`; `None` for padding.
    pub fn slot(&self, seq: usize) -> Option<usize> {
        usize::try_from(self.0[seq]).ok()
    }
}

/// Positions of the first two equal entries that are not padding. Small batches are compared pairwise, without memory.
fn duplicate(indices: &[i32]) -> Option<(usize, usize)> {
    if indices.len() <= 64 {
        return (1..indices.len())
            .filter(|&j| indices[j] != PAD_SLOT)
            .find_map(|j| indices[..j].iter().position(|&i| i == indices[j]).map(|i| (i, j)));
    }
    let mut order: Vec<usize> = (0..indices.len()).filter(|&i| indices[i] != PAD_SLOT).collect();
    order.sort_unstable_by_key(|&i| (indices[i], i));
    order.windows(2).find(|w| indices[w[0]] == indices[w[1]]).map(|w| (w[0], w[1]))
}
