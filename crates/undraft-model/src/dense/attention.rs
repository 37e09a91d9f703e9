//! Causal softmax attention over a cache, every query on its own.
//!
//! A query at position p goes through keys 0..=p in blocks of 64 that begin at multiples of 64, with a running maximum
//! (the online softmax of Milakov and Gimelshein, arXiv 1805.02867). Where blocks begin depends on positions alone, so
//! a query's result depends neither on the other queries of a call nor on how they are shared out.
//!
//! A query of a tree goes through the committed keys and those on its own path, in the order of their positions: the
//! same additions as if the path lay behind the committed keys alone.

use undraft::cpu::simd::{self, LANES, Simd, Token, f32x16, prelude::*};
use undraft::cpu::{SharedMut, with_vectors};

use super::block::{BLOCK, Block, F32Block};
use super::tile::{self, Vector};
use super::{Compute, KvCache, Paths};

/// Keys of a block.
const KEYS: usize = 64;

/// Queries that share the reading of keys and values.
const MAX_QUERIES: usize = 4;

/// Attends with the newest positions of `cache`, which hold their own keys and values already.
///
/// `q` is `[n, num_heads, head_dim]`, scaled, of the last n positions held; `out` is of the same shape. Query head h
/// reads key and value head `h / (num_heads / cache.num_heads())`. With `paths` the last `paths.len()` positions held are
/// the tokens of a tree, and each of the last n of them sees those on its path; without, every position sees all before
/// it.
///
/// # Panics
/// If the buffers are not of these shapes, or there are more queries than positions or tokens of the tree.
pub fn attend(compute: &Compute, cache: &KvCache, paths: Option<&Paths>, num_heads: usize, q: &[f32], out: &mut [f32]) {
    let (head_dim, kv_heads) = (cache.head_dim(), cache.num_heads());
    let row = num_heads * head_dim;
    assert!(q.len().is_multiple_of(row) && q.len() == out.len(), "`q` and `out` are not [n, {num_heads}, {head_dim}]");
    assert!(num_heads.is_multiple_of(kv_heads), "{num_heads} query heads, {kv_heads} key heads");
    let num_tokens = q.len() / row;
    let num_rows = paths.map_or(cache.len(), Paths::len);
    assert!(num_tokens <= num_rows && num_rows <= cache.len(), "{num_tokens} queries, {num_rows} of {}", cache.len());
    let group = num_heads / kv_heads;
    let mut cut = Cut::new(compute, num_tokens, kv_heads, group);
    if paths.is_some() {
        // Queries of a task share their path.
        cut.tokens = 1;
    }
    let num_tasks = num_tokens.div_ceil(cut.tokens) * kv_heads * group.div_ceil(cut.heads);
    let work = q.len() / LANES * cache.len();
    let out = SharedMut::new(out);
    compute.run(num_tasks, work, &|task| {
        let (task, part) = (task / group.div_ceil(cut.heads), task % group.div_ceil(cut.heads));
        let (first_token, kv_head) = (task / kv_heads * cut.tokens, task % kv_heads);
        let tokens = first_token..(first_token + cut.tokens).min(num_tokens);
        let heads = kv_head * group + part * cut.heads..kv_head * group + ((part + 1) * cut.heads).min(group);
        let (split, path) = match paths {
            Some(paths) => (cache.len() - paths.len(), paths.path(paths.len() - num_tokens + first_token)),
            None => (cache.len(), &[][..]),
        };
        let mut queries = [Query { start: 0, position: 0 }; MAX_QUERIES];
        let mut num_queries = 0;
        for token in tokens {
            let position = match path.len() {
                0 => cache.len() - num_tokens + token,
                n => split + n - 1,
            };
            for head in heads.clone() {
                queries[num_queries] = Query { start: token * row + head * head_dim, position };
                num_queries += 1;
            }
        }
        let (keys, values) = (cache.head_keys(kv_head), cache.head_values(kv_head));
        let call = Call { keys, values, split, path, head_dim, q, out: &out };
        match compute.token() {
            // No registers to share keys and values in: one query at a time.
            Token::Scalar(s) => queries[..num_queries].iter().for_each(|&query| call.run(s, [query])),
            token => with_vectors!(token, scalar => {}, s => match queries[..num_queries] {
                [a, b, c, d] => call.run(s, [a, b, c, d]),
                [a, b, c] => call.run(s, [a, b, c]),
                [a, b] => call.run(s, [a, b]),
                [a] => call.run(s, [a]),
                _ => {}
            }),
        }
    });
}

/// How many tokens and heads of a group a task takes; it changes no result.
struct Cut {
    tokens: usize,
    heads: usize,
}

impl Cut {
    fn new(compute: &Compute, num_tokens: usize, kv_heads: usize, group: usize) -> Self {
        let mut heads = group.min(MAX_QUERIES);
        while heads > 1 && num_tokens * kv_heads * group.div_ceil(heads) < compute.num_threads() {
            heads = heads.div_ceil(2);
        }
        let fits = MAX_QUERIES / heads;
        let enough = num_tokens * kv_heads >= 4 * fits * compute.num_threads();
        Self { heads, tokens: if enough { fits } else { 1 } }
    }
}

/// One head of one token.
#[derive(Clone, Copy)]
struct Query {
    /// Where it begins in `q` and `out`.
    start: usize,
    position: usize,
}

/// Queries of one key and value head.
struct Call<'a, 'o> {
    /// `[positions, blocks]`.
    keys: &'a [F32Block],
    values: &'a [F32Block],
    /// Positions from here on lie at `split + path[position - split]`, those before where they belong.
    split: usize,
    path: &'a [u32],
    head_dim: usize,
    q: &'a [f32],
    out: &'a SharedMut<'o, f32>,
}

impl Call<'_, '_> {
    /// Where keys and values of a position lie.
    #[inline(always)]
    fn row_of(&self, position: usize) -> usize {
        match position.checked_sub(self.split) {
            Some(i) => self.split + self.path[i] as usize,
            None => position,
        }
    }

    fn run<S: Simd, const G: usize>(&self, s: S, queries: [Query; G]) {
        s.vectorize(
            #[inline(always)]
            || self.queries(s, queries),
        );
    }

    #[inline(always)]
    fn queries<S: Simd, const G: usize>(&self, s: S, queries: [Query; G]) {
        let mut q = [Vector::EMPTY; G];
        let mut last = 0;
        for g in 0..G {
            q[g] = Vector::new(&self.q[queries[g].start..queries[g].start + self.head_dim]);
            last = last.max(queries[g].position);
        }
        let mut state = [Softmax { max: f32::NEG_INFINITY, sum: simd::zero(s) }; G];
        let mut scores = [[0.0f32; KEYS]; G];
        for start in (0..=last).step_by(KEYS) {
            // Keys of this block that each query sees.
            let mut seen = [0; G];
            for g in 0..G {
                seen[g] = (queries[g].position + 1).saturating_sub(start).min(KEYS);
            }
            let (mut fewest, mut most) = (KEYS, 0);
            for seen in seen {
                fewest = fewest.min(seen);
                most = most.max(seen);
            }
            self.scores(s, start, most, q, &mut scores);
            for g in 0..G {
                if seen[g] > 0 {
                    let scale = state[g].weigh(s, &mut scores[g], seen[g]);
                    self.scale(s, queries[g], start > 0, scale);
                }
            }
            self.add_values(s, queries, start, 0..fewest, &scores);
            for g in 0..G {
                self.add_values(s, [queries[g]], start, fewest..seen[g], &[scores[g]]);
            }
        }
        for g in 0..G {
            self.scale(s, queries[g], true, 1.0 / simd::sum(state[g].sum));
        }
    }

    /// Scores of the first `most` keys of the block.
    #[inline(always)]
    fn scores<S: Simd, const G: usize>(
        &self,
        s: S,
        start: usize,
        most: usize,
        q: [Vector<'_>; G],
        scores: &mut [[f32; KEYS]; G],
    ) {
        let wide = <S::f32s as SimdBase<S>>::LEN >= LANES;
        let mut j = 0;
        while most - j >= 4 {
            if wide || G == 1 {
                self.score_rows::<S, 4, G>(s, start, j, q, scores);
            } else {
                self.score_rows::<S, 2, G>(s, start, j, q, scores);
                self.score_rows::<S, 2, G>(s, start, j + 2, q, scores);
            }
            j += 4;
        }
        while j < most {
            self.score_rows::<S, 1, G>(s, start, j, q, scores);
            j += 1;
        }
    }

    #[inline(always)]
    fn score_rows<S: Simd, const R: usize, const G: usize>(
        &self,
        s: S,
        start: usize,
        j: usize,
        q: [Vector<'_>; G],
        scores: &mut [[f32; KEYS]; G],
    ) {
        let blocks = self.head_dim.div_ceil(BLOCK);
        let mut rows = [&self.keys[..0]; R];
        for (r, row) in rows.iter_mut().enumerate() {
            let at = self.row_of(start + j + r) * blocks;
            *row = &self.keys[at..at + blocks];
        }
        let sums = tile::sums(tile::tile(s, rows, q));
        for g in 0..G {
            scores[g][j..j + R].copy_from_slice(&sums[g]);
        }
    }

    /// Multiplies what a query has summed up, or sets it to zero if it is `begun` with this block.
    #[inline(always)]
    fn scale<S: Simd>(&self, s: S, query: Query, begun: bool, scale: f32) {
        // SAFETY: a task has queries of its own, and the part lives in this call alone.
        let out = unsafe { self.out.part(query.start..query.start + self.head_dim) };
        if !begun {
            out.fill(0.0);
        } else if scale != 1.0 {
            let (vectors, rest) = out.as_chunks_mut::<LANES>();
            for vector in vectors {
                simd::store(simd::load(s, vector) * scale, vector);
            }
            for x in rest {
                *x *= scale;
            }
        }
    }

    /// Adds the weighted values of some keys of a block, key by key.
    #[inline(always)]
    fn add_values<S: Simd, const G: usize>(
        &self,
        s: S,
        queries: [Query; G],
        start: usize,
        keys: std::ops::Range<usize>,
        weights: &[[f32; KEYS]; G],
    ) {
        if keys.is_empty() {
            return;
        }
        let blocks = self.head_dim.div_ceil(BLOCK);
        let wide = <S::f32s as SimdBase<S>>::LEN >= LANES;
        let mut block = 0;
        while block < blocks {
            let columns = Columns { start, blocks, block, keys: keys.clone(), weights };
            block += match (wide, blocks - block) {
                (true, 4..) if G == 1 => self.add_columns::<S, G, 4>(s, queries, columns),
                (true, 2..) if G <= 2 => self.add_columns::<S, G, 2>(s, queries, columns),
                (false, 2..) if G == 1 => self.add_columns::<S, G, 2>(s, queries, columns),
                _ => self.add_columns::<S, G, 1>(s, queries, columns),
            };
        }
    }

    /// `C` blocks of columns; gives `C`.
    #[inline(always)]
    fn add_columns<S: Simd, const G: usize, const C: usize>(
        &self,
        s: S,
        queries: [Query; G],
        columns: Columns<'_, G>,
    ) -> usize {
        let Columns { start, blocks, block, keys, weights } = columns;
        let mut acc = [[[simd::zero(s); 2]; C]; G];
        for g in 0..G {
            for c in 0..C {
                // SAFETY: a task has queries of its own, and the block lives for one statement.
                let out = unsafe { self.out.part(self.columns_of(queries[g], block + c)) };
                acc[g][c] = F32Block::pack(out).load(s);
            }
        }
        let in_place = self.split.saturating_sub(start).clamp(keys.start, keys.end);
        for j in keys.start..in_place {
            add_value(s, &self.values[(start + j) * blocks + block..], j, weights, &mut acc);
        }
        for j in in_place..keys.end {
            add_value(s, &self.values[self.row_of(start + j) * blocks + block..], j, weights, &mut acc);
        }
        for g in 0..G {
            for c in 0..C {
                let mut whole = F32Block::ZERO;
                simd::store(acc[g][c][0], &mut whole.0[0]);
                simd::store(acc[g][c][1], &mut whole.0[1]);
                // SAFETY: as above.
                let out = unsafe { self.out.part(self.columns_of(queries[g], block + c)) };
                out.copy_from_slice(&whole.0.as_flattened()[..out.len()]);
            }
        }
        C
    }

    /// Where a block of columns of what a query has summed up lies in `out`; the last one may be short.
    #[inline(always)]
    fn columns_of(&self, query: Query, block: usize) -> std::ops::Range<usize> {
        let start = query.start + block * BLOCK;
        start..(start + BLOCK).min(query.start + self.head_dim)
    }
}

/// Adds `C` blocks of the value of key `j`, weighted.
#[inline(always)]
fn add_value<S: Simd, const G: usize, const C: usize>(
    s: S,
    value: &[F32Block],
    j: usize,
    weights: &[[f32; KEYS]; G],
    acc: &mut [[[f32x16<S>; 2]; C]; G],
) {
    for c in 0..C {
        let value = value[c].load(s);
        for g in 0..G {
            let weight = simd::splat(s, weights[g][j]);
            acc[g][c] = [simd::fma(value[0], weight, acc[g][c][0]), simd::fma(value[1], weight, acc[g][c][1])];
        }
    }
}

/// Some columns of the values of some keys of a block.
struct Columns<'a, const G: usize> {
    /// Position of the block's first key.
    start: usize,
    blocks: usize,
    block: usize,
    keys: std::ops::Range<usize>,
    weights: &'a [[f32; KEYS]; G],
}

/// Running maximum and sum of a query.
#[derive(Clone, Copy)]
struct Softmax<S: Simd> {
    max: f32,
    sum: f32x16<S>,
}

impl<S: Simd> Softmax<S> {
    /// Turns the first `seen` scores into weights; gives the factor for what was summed up before.
    #[inline(always)]
    fn weigh(&mut self, s: S, scores: &mut [f32; KEYS], seen: usize) -> f32 {
        let first = scores[0];
        scores[seen..].fill(first);
        let vectors = seen.div_ceil(LANES);
        let chunks = &mut scores.as_chunks_mut::<LANES>().0[..vectors];
        let (mut max, mut poison) = (simd::splat(s, self.max), simd::zero(s));
        for chunk in chunks.iter() {
            let scores = simd::load(s, chunk);
            max = max.max(scores);
            // The maximum and `exp` lose NaN; this does not.
            poison = simd::fma(scores, simd::zero(s), poison);
        }
        let mut lanes = [0.0; LANES];
        simd::store(max, &mut lanes);
        let mut max = lanes[0];
        for lane in lanes {
            max = max.max(lane);
        }
        let factor = if max == self.max {
            1.0
        } else {
            simd::store(simd::exp(s, simd::splat(s, self.max - max)), &mut lanes);
            lanes[0]
        };
        self.max = max;
        self.sum = self.sum * factor + poison;
        for (i, chunk) in chunks.iter_mut().enumerate() {
            simd::store(simd::exp(s, simd::load(s, chunk) - max), chunk);
            // `exp` never gives zero.
            chunk[seen.saturating_sub(i * LANES).min(LANES)..].fill(0.0);
            self.sum += simd::load(s, chunk);
        }
        factor
    }
}

#[cfg(test)]
mod tests;
