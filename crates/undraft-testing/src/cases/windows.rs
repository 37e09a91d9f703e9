//! Ragged batches: how many tokens each sequence has and which slot it owns.

use std::ops::Range;

use undraft_core::{PAD_SLOT, is_chain};

use super::Topology;
use crate::Rng;

/// Tokens and slot of each sequence of a call, and what each token follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// Tokens of each sequence.
    pub lens: Vec<usize>,
    /// Slot of each sequence, -1 = padding.
    pub slots: Vec<i32>,
    /// Number of slots, at least that of the sequences with one.
    pub num_slots: usize,
    /// Draft trees: the position in its window of the token that each token follows, -1 = the committed state. Empty:
    /// every window is a chain.
    pub parents: Vec<i32>,
}

/// A padding window of `n` tokens.
const fn pad(n: i32) -> i32 {
    -1 - n
}

/// Batches: a number is a sequence of so many tokens.
const BATCHES: [&[i32]; 19] = [
    &[1],
    &[3, 0, pad(2), 5],
    &[8],
    &[1, 1, 1, 1],
    &[0],
    &[2, 7],
    &[17],
    &[pad(1), 4, pad(0), pad(3), 1],
    &[5, 2, 0, 0, 8],
    &[],
    &[2],
    &[pad(2)],
    &[1, 2, 3, 5, 7],
    &[6, pad(9), 3],
    &[3],
    &[0, 0, 1],
    &[16, 1],
    &[1, pad(1), 2, pad(1), 4, 1],
    &[9, 4],
];

/// Batches of prompts for the chunked form, around its 64 tokens.
const PROMPTS: [&[i32]; 13] = [
    &[64],
    &[0],
    &[1],
    &[65, 0, pad(3), 2],
    &[100],
    &[63],
    &[2],
    &[129],
    &[200],
    &[pad(70), 66, 1],
    &[31, 64, 5],
    &[],
    &[128, 17],
];

impl Windows {
    /// Batch `index` of the list for decode and verify; slots are dealt at random.
    pub fn batch(rng: &mut Rng, index: usize) -> Self {
        Self::deal(rng, BATCHES[index % BATCHES.len()])
    }
    /// Batch `index` of the list for prompts.
    pub fn prompt(rng: &mut Rng, index: usize) -> Self {
        Self::deal(rng, PROMPTS[index % PROMPTS.len()])
    }
    fn deal(rng: &mut Rng, batch: &[i32]) -> Self {
        let num_slots = batch.iter().filter(|&&n| n >= 0).count() + rng.below(3);
        let mut free = rng.permutation(num_slots).into_iter();
        let mut windows = Self { num_slots, ..Self::default() };
        for &n in batch {
            let slot = if n >= 0 { free.next().map_or(PAD_SLOT, |slot| slot as i32) } else { PAD_SLOT };
            windows.lens.push(if n >= 0 { n as usize } else { (-1 - n) as usize });
            windows.slots.push(slot);
        }
        windows
    }
    /// Chains, one a sequence.
    pub fn chains(lens: Vec<usize>, slots: Vec<i32>, num_slots: usize) -> Self {
        Self { lens, slots, num_slots, parents: Vec::new() }
    }
    /// Draws a topology for every window, padding too; some are chains, but if there is room not all of them.
    pub fn grow_trees(&mut self, rng: &mut Rng) {
        let first = rng.below(Topology::ALL.len());
        self.parents.clear();
        for (seq, &len) in self.lens.iter().enumerate() {
            let topology = Topology::ALL[(first + seq) % Topology::ALL.len()];
            self.parents.extend(topology.parents(rng, len));
        }
        let longest = self.live().map(|(_, _, tokens)| tokens).max_by_key(Range::len);
        if let (Some(longest), "chain") = (longest, self.kind()) {
            self.parents[longest.clone()].copy_from_slice(&Topology::Star.parents(rng, longest.len()));
        }
    }
    /// Whether a window is no chain, that of padding too.
    pub fn has_tree(&self) -> bool {
        self.ranges().into_iter().any(|tokens| self.is_tree(tokens))
    }
    fn is_tree(&self, tokens: Range<usize>) -> bool {
        !self.parents.is_empty() && !is_chain(&self.parents[tokens])
    }
    /// `chain`, `tree`, or `mixed` where some windows are chains; padding and windows of at most one token do not count.
    pub fn kind(&self) -> &'static str {
        let count = |tree: bool| self.live().filter(|(_, _, t)| t.len() > 1 && self.is_tree(t.clone()) == tree).count();
        match (count(true), count(false)) {
            (0, _) => "chain",
            (_, 0) => "tree",
            _ => "mixed",
        }
    }
    /// Position that the token at position `t` of a sequence follows; `None` is the committed state.
    pub fn parent(&self, seq: usize, t: usize) -> Option<usize> {
        match self.parents[..] {
            [] => t.checked_sub(1),
            _ => usize::try_from(self.parents[self.lens[..seq].iter().sum::<usize>() + t]).ok(),
        }
    }
    /// Positions from a root to `t`.
    pub fn path(&self, seq: usize, t: usize) -> Vec<usize> {
        let mut path: Vec<usize> = std::iter::successors(Some(t), |&t| self.parent(seq, t)).collect();
        path.reverse();
        path
    }
    /// Number of sequences.
    pub fn num_seqs(&self) -> usize {
        self.lens.len()
    }
    /// Tokens of all sequences.
    pub fn num_tokens(&self) -> usize {
        self.lens.iter().sum()
    }
    /// Tokens of the longest sequence that is not padding.
    pub fn longest(&self) -> usize {
        self.live().map(|(_, _, tokens)| tokens.len()).max().unwrap_or(0)
    }
    /// `cu_seqlens`.
    pub fn cu_seqlens(&self) -> Vec<i32> {
        let mut cu = vec![0];
        for &len in &self.lens {
            cu.push(cu[cu.len() - 1] + len as i32);
        }
        cu
    }
    /// Tokens of each sequence in the call's order.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        let mut end = 0;
        self.lens
            .iter()
            .map(|&len| {
                end += len;
                end - len..end
            })
            .collect()
    }
    /// `(sequence, slot, tokens)` of those that are not padding.
    pub fn live(&self) -> impl Iterator<Item = (usize, usize, Range<usize>)> + '_ {
        let slots = self.slots.iter().map(|&slot| usize::try_from(slot).ok());
        slots.zip(self.ranges()).enumerate().filter_map(|(seq, (slot, tokens))| Some((seq, slot?, tokens)))
    }
    /// The sequence that owns a slot.
    pub fn owner(&self, slot: usize) -> Option<usize> {
        self.slots.iter().position(|&s| s == slot as i32)
    }
    /// The sequence that owns each slot.
    pub fn owners(&self) -> Vec<Option<usize>> {
        (0..self.num_slots).map(|slot| self.owner(slot)).collect()
    }
    /// The same sequences in other slots; padding stays padding.
    pub fn relocated(&self, slots: &[usize], num_slots: usize) -> Self {
        let moved = self.slots.iter().zip(slots).map(|(&old, &new)| if old < 0 { PAD_SLOT } else { new as i32 });
        Self { slots: moved.collect(), num_slots, ..self.clone() }
    }
    /// Moves per-slot values to where [`Windows::relocated`] put their sequences; the other slots get zeros.
    pub(crate) fn carry(&self, to: &Self, slot_len: usize, values: &[f32]) -> Vec<f32> {
        let mut moved = vec![0.0; to.num_slots * slot_len];
        for ((_, from, _), (_, into, _)) in self.live().zip(to.live()) {
            moved[into * slot_len..][..slot_len].copy_from_slice(&values[from * slot_len..][..slot_len]);
        }
        moved
    }
    /// Slots as the oracle takes them.
    pub fn optional_slots(&self) -> Vec<Option<usize>> {
        self.slots.iter().map(|&slot| usize::try_from(slot).ok()).collect()
    }
    /// Sequences `picked`, in that order, each cut to a range of its tokens. Also gives the tokens in the old numbering.
    ///
    /// Trees stay where every range starts with the window; other ranges are chains.
    pub fn pick(&self, picked: &[(usize, Range<usize>)]) -> (Self, Vec<usize>) {
        let starts = self.ranges();
        let mut windows = Self { num_slots: self.num_slots, ..Self::default() };
        let mut tokens: Vec<usize> = Vec::new();
        for (seq, range) in picked {
            windows.lens.push(range.len());
            windows.slots.push(self.slots[*seq]);
            tokens.extend(range.clone().map(|t| starts[*seq].start + t));
        }
        if !self.parents.is_empty() && picked.iter().all(|(_, range)| range.start == 0) {
            windows.parents = tokens.iter().map(|&t| self.parents[t]).collect();
        }
        (windows, tokens)
    }
    /// Every sequence cut to those of its tokens that lie in `range`.
    pub fn within(&self, range: Range<usize>) -> Vec<(usize, Range<usize>)> {
        let clamp = |len: usize| range.start.min(len)..range.end.min(len);
        self.lens.iter().enumerate().map(|(seq, &len)| (seq, clamp(len))).collect()
    }
}

/// Rows `tokens` of a `[T, row]` array.
pub(crate) fn gather(values: &[f32], row: usize, tokens: &[usize]) -> Vec<f32> {
    tokens.iter().flat_map(|&t| values[t * row..(t + 1) * row].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picking_keeps_tokens_and_slots() {
        let windows = Windows::chains(vec![2, 3, 0], vec![4, -1, 0], 5);
        assert_eq!(windows.cu_seqlens(), [0, 2, 5, 5]);
        assert_eq!(windows.within(1..9), [(0, 1..2), (1, 1..3), (2, 0..0)]);
        let (picked, tokens) = windows.pick(&[(1, 1..3), (0, 0..1)]);
        assert_eq!((picked.lens, picked.slots, tokens), (vec![2, 1], vec![-1, 4], vec![3, 4, 0]));
    }

    #[test]
    fn dealt_slots_are_distinct() {
        let mut rng = Rng::new(3);
        for i in 0..BATCHES.len() {
            let windows = Windows::batch(&mut rng, i);
            for (seq, slot, _) in windows.live() {
                assert_eq!(windows.owner(slot), Some(seq));
                assert!(slot < windows.num_slots);
            }
        }
    }

    #[test]
    fn trees_have_paths_and_prefixes() {
        let mut windows = Windows::chains(vec![2, 4], vec![1, 0], 2);
        assert_eq!((windows.path(1, 2), windows.kind()), (vec![0, 1, 2], "chain"));
        windows.parents = vec![-1, 0, -1, 0, 0, 1];
        assert_eq!((windows.path(1, 3), windows.path(0, 1), windows.kind()), (vec![0, 1, 3], vec![0, 1], "mixed"));
        assert_eq!(windows.pick(&[(1, 0..3)]).0.parents, [-1, 0, 0]);
        assert_eq!(windows.pick(&[(1, 1..3)]).0.parents, [0i32; 0]);
        let mut rng = Rng::new(9);
        for i in 0..BATCHES.len() {
            let mut windows = Windows::batch(&mut rng, i);
            windows.grow_trees(&mut rng);
            assert!(windows.kind() != "chain" || windows.longest() < 3);
        }
    }
}
