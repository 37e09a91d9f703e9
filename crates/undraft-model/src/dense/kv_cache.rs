//! Keys and values of one attention layer.

use super::block::{BLOCK, Block, F32Block};
use crate::error::{ModelError, Result};

/// Keys (rotated) and values of the positions so far, of one layer and one sequence.
///
/// A window is appended whole; [`KvCache::truncate`] takes back what is not kept. Memory for all positions is taken
/// when the cache is made.
#[derive(Clone, Debug)]
pub struct KvCache {
    num_heads: usize,
    head_dim: usize,
    capacity: usize,
    len: usize,
    /// `[num_heads, capacity, blocks]`, every head of a position padded to whole blocks.
    keys: Vec<F32Block>,
    values: Vec<F32Block>,
}

impl KvCache {
    /// An empty cache for `capacity` positions of `num_heads` heads of `head_dim` (at least 1).
    ///
    /// # Errors
    /// [`ModelError::OutOfMemory`].
    pub fn new(num_heads: usize, head_dim: usize, capacity: usize) -> Result<Self> {
        let num_blocks = num_heads.checked_mul(capacity).and_then(|n| n.checked_mul(head_dim.div_ceil(BLOCK)));
        let bytes = num_blocks.and_then(|n| n.checked_mul(size_of::<F32Block>()));
        let (Some(num_blocks), Some(bytes)) = (num_blocks, bytes) else {
            return Err(ModelError::OutOfMemory { bytes: usize::MAX, what: "keys and values" });
        };
        let zeros = || -> Result<Vec<F32Block>> {
            let mut blocks = Vec::new();
            let out_of_memory = |_| ModelError::OutOfMemory { bytes, what: "keys and values" };
            blocks.try_reserve_exact(num_blocks).map_err(out_of_memory)?;
            blocks.resize(num_blocks, F32Block::ZERO);
            Ok(blocks)
        };
        Ok(Self { num_heads, head_dim, capacity, len: 0, keys: zeros()?, values: zeros()? })
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Positions there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Key and value heads.
    pub fn num_heads(&self) -> usize {
        self.num_heads
    }

    /// Size of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Bytes of all keys and values.
    pub fn memory(&self) -> usize {
        (self.keys.len() + self.values.len()) * size_of::<F32Block>()
    }

    /// Appends positions; `keys` (rotated) and `values` are `[n, num_heads, head_dim]`.
    ///
    /// # Panics
    /// If the two differ in length, are not whole positions, or there is no room.
    pub fn append(&mut self, keys: &[f32], values: &[f32]) {
        let row = self.num_heads * self.head_dim;
        assert_eq!(keys.len(), values.len(), "`keys` and `values` differ in length");
        assert!(keys.len().is_multiple_of(row), "`keys` has {} elements, expected rows of {row}", keys.len());
        let n = keys.len() / row;
        let (len, capacity) = (self.len, self.capacity);
        assert!(n <= capacity - len, "{n} positions to append, {len} of {capacity} in use");
        let blocks = self.head_dim.div_ceil(BLOCK);
        for (to, from) in [(&mut self.keys, keys), (&mut self.values, values)] {
            for (i, head) in from.chunks_exact(self.head_dim).enumerate() {
                let (t, h) = (i / self.num_heads, i % self.num_heads);
                let start = (h * capacity + len + t) * blocks;
                for (to, from) in to[start..start + blocks].iter_mut().zip(head.chunks(BLOCK)) {
                    *to = F32Block::pack(from);
                }
            }
        }
        self.len += n;
    }

    /// Forgets all positions from `len` on; nothing if fewer are held.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Of the positions from `len` on keeps those at `len + path[i]`, one behind the other; `path` rises.
    ///
    /// # Panics
    /// If the path does not rise, or leaves the positions held.
    pub fn keep(&mut self, len: usize, path: &[usize]) {
        assert!(path.is_sorted_by(|a, b| a < b), "`path` {path:?} does not rise");
        assert!(path.last().is_none_or(|&last| len + last < self.len), "`path` {path:?}, {} behind {len}", self.len);
        let blocks = self.head_dim.div_ceil(BLOCK);
        for rows in [&mut self.keys, &mut self.values] {
            for head in rows.chunks_exact_mut(self.capacity * blocks) {
                for (to, &from) in path.iter().enumerate().filter(|&(to, &from)| to != from) {
                    let from = (len + from) * blocks;
                    // Rising, so what is overwritten is not on the path or was moved before.
                    head.copy_within(from..from + blocks, (len + to) * blocks);
                }
            }
        }
        self.truncate(len + path.len());
    }

    /// The keys held, `[num_heads, len, head_dim]`.
    pub fn keys(&self) -> Vec<f32> {
        self.copy(|head| self.head_keys(head))
    }

    /// The values held, `[num_heads, len, head_dim]`.
    pub fn values(&self) -> Vec<f32> {
        self.copy(|head| self.head_values(head))
    }

    fn copy<'a>(&'a self, head_rows: impl Fn(usize) -> &'a [F32Block]) -> Vec<f32> {
        let blocks = self.head_dim.div_ceil(BLOCK);
        let rows = (0..self.num_heads).flat_map(|head| head_rows(head).chunks_exact(blocks));
        rows.flat_map(|row| row.iter().flat_map(|block| block.0.as_flattened()).take(self.head_dim)).copied().collect()
    }

    /// Keys of one head, `[len, blocks]`.
    pub(super) fn head_keys(&self, head: usize) -> &[F32Block] {
        let blocks = self.head_dim.div_ceil(BLOCK);
        &self.keys[head * self.capacity * blocks..][..self.len * blocks]
    }

    /// Values of one head, `[len, blocks]`.
    pub(super) fn head_values(&self, head: usize) -> &[F32Block] {
        let blocks = self.head_dim.div_ceil(BLOCK);
        &self.values[head * self.capacity * blocks..][..self.len * blocks]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_rows_read_back_by_head_and_truncation_forgets() {
        let (heads, dim) = (2, 40);
        let rows: Vec<f32> = (0..3 * heads * dim).map(|i| i as f32).collect();
        let negative: Vec<f32> = rows.iter().map(|x| -x).collect();
        let mut cache = KvCache::new(heads, dim, 4).unwrap();
        cache.append(&rows[..heads * dim], &negative[..heads * dim]);
        cache.append(&rows[heads * dim..], &negative[heads * dim..]);
        assert_eq!((cache.len(), cache.is_empty(), cache.capacity()), (3, false, 4));
        for (all, sign) in [(cache.keys(), 1.0), (cache.values(), -1.0)] {
            for (h, t) in [(0, 0), (0, 2), (1, 1)] {
                let got = &all[(h * 3 + t) * dim..][..dim];
                let want: Vec<f32> = rows[(t * heads + h) * dim..][..dim].iter().map(|x| sign * x).collect();
                assert_eq!(got, want, "head {h}, position {t}");
            }
        }
        cache.truncate(1);
        cache.truncate(3);
        assert_eq!(cache.keys(), rows[..heads * dim]);
    }

    #[test]
    fn a_path_is_kept_one_position_behind_the_other() {
        let (heads, dim) = (2, 40);
        let row = heads * dim;
        let rows: Vec<f32> = (0..6 * row).map(|i| i as f32).collect();
        let negative: Vec<f32> = rows.iter().map(|x| -x).collect();
        for path in [&[][..], &[0], &[3], &[0, 1], &[1, 2, 3], &[0, 2], &[0, 1, 2, 3]] {
            let (mut cache, mut want) = (KvCache::new(heads, dim, 7).unwrap(), KvCache::new(heads, dim, 9).unwrap());
            cache.append(&rows, &negative);
            cache.keep(2, path);
            want.append(&rows[..2 * row], &negative[..2 * row]);
            for at in path.iter().map(|at| (2 + at) * row) {
                want.append(&rows[at..at + row], &negative[at..at + row]);
            }
            assert_eq!((cache.len(), cache.keys(), cache.values()), (2 + path.len(), want.keys(), want.values()));
        }
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        for capacity in [usize::MAX, usize::MAX / 1024, 1 << 50] {
            assert!(matches!(KvCache::new(4, 128, capacity), Err(ModelError::OutOfMemory { .. })));
        }
    }
}
