use std::sync::Arc;

use undraft::cpu::{CpuBackend, Isa, ThreadPool};
use undraft_testing::Rng;

use super::*;

struct Case {
    kv_heads: usize,
    num_heads: usize,
    head_dim: usize,
    /// `[positions, heads, head_dim]`.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Case {
    fn new(seed: u64, kv_heads: usize, group: usize, head_dim: usize, positions: usize) -> Self {
        let mut rng = Rng::new(seed);
        let num_heads = kv_heads * group;
        let mut random = |heads: usize| (0..positions * heads * head_dim).map(|_| rng.normal() as f32 * 0.5).collect();
        Self { kv_heads, num_heads, head_dim, q: random(num_heads), k: random(kv_heads), v: random(kv_heads) }
    }

    /// Appends and attends window by window.
    fn run(&self, compute: &Compute, windows: &[usize]) -> Vec<f32> {
        let (kv, row) = (self.kv_heads * self.head_dim, self.num_heads * self.head_dim);
        let mut cache = KvCache::new(self.kv_heads, self.head_dim, self.q.len() / row + 1).unwrap();
        let mut out = vec![f32::NAN; self.q.len()];
        let mut start = 0;
        for n in windows {
            let end = start + n;
            cache.append(&self.k[start * kv..end * kv], &self.v[start * kv..end * kv]);
            attend(
                compute,
                &cache,
                None,
                self.num_heads,
                &self.q[start * row..end * row],
                &mut out[start * row..end * row],
            );
            start = end;
        }
        out
    }

    fn oracle(&self, position: usize, head: usize, column: usize) -> f64 {
        let d = self.head_dim;
        let kv_head = head / (self.num_heads / self.kv_heads);
        let q = &self.q[(position * self.num_heads + head) * d..][..d];
        let at = |x: &[f32], j: usize, i: usize| f64::from(x[(j * self.kv_heads + kv_head) * d + i]);
        let score = |j: usize| (0..d).map(|i| f64::from(q[i]) * at(&self.k, j, i)).sum::<f64>();
        let weights: Vec<f64> = (0..=position).map(|j| score(j).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().enumerate().map(|(j, w)| w / sum * at(&self.v, j, column)).sum()
    }
}

#[test]
fn it_is_softmax_attention_over_the_positions_before() {
    let compute = Compute::new(&CpuBackend::new());
    for (seed, kv_heads, group, head_dim) in [(1, 1, 1, 32), (2, 2, 2, 40), (3, 1, 6, 128), (4, 2, 3, 10)] {
        let case = Case::new(seed, kv_heads, group, head_dim, 150);
        let out = case.run(&compute, &[150]);
        for position in [0, 1, 15, 16, 62, 63, 64, 127, 128, 149] {
            for head in 0..case.num_heads {
                for column in [0, head_dim / 2, head_dim - 1] {
                    let got = f64::from(out[(position * case.num_heads + head) * head_dim + column]);
                    let want = case.oracle(position, head, column);
                    assert!((got - want).abs() < 3e-6, "seed {seed} {position} {head} {column}: {got} {want}");
                }
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_windows_isa_or_threads() {
    for (seed, kv_heads, group, head_dim) in [(5, 2, 2, 64), (6, 1, 5, 40), (7, 3, 1, 160)] {
        let case = Case::new(seed, kv_heads, group, head_dim, 140);
        let want = case.run(&Compute::new(&CpuBackend::with_isa(Isa::Scalar).unwrap()), &[1; 140]);
        for isa in Isa::ALL {
            let Ok(backend) = CpuBackend::with_isa(isa) else { continue };
            for backend in [backend.clone(), backend.with_executor(Arc::new(ThreadPool::new(2)))] {
                let compute = Compute::new(&backend);
                for windows in [&[140][..], &[1, 2, 3, 4, 5, 6, 7, 8, 104], &[60, 9, 71], &[70, 70]] {
                    let got = case.run(&compute, windows);
                    assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "{isa} {windows:?}");
                }
            }
        }
    }
}

/// A random tree behind a number of committed positions; token t of it stands at row `committed + t` of the case.
fn random_tree(rng: &mut Rng, num_tokens: usize) -> Paths {
    let mut paths = Paths::default();
    for token in 0..num_tokens {
        let parent = rng.below(token + 1);
        paths.push((parent > 0 && !rng.one_in(6)).then(|| parent - 1));
    }
    paths
}

#[test]
fn a_token_of_a_tree_sees_what_its_path_alone_would_see() {
    for (seed, kv_heads, group, head_dim) in [(9, 2, 2, 64), (10, 1, 5, 40), (11, 3, 1, 160), (12, 1, 6, 10)] {
        let positions = 160;
        let case = Case::new(seed, kv_heads, group, head_dim, positions);
        let (kv, row) = (kv_heads * head_dim, case.num_heads * head_dim);
        let mut rng = Rng::new(seed);
        for isa in Isa::ALL {
            let Ok(backend) = CpuBackend::with_isa(isa) else { continue };
            for backend in [backend.clone(), backend.with_executor(Arc::new(ThreadPool::new(2)))] {
                let compute = Compute::new(&backend);
                // Trees that lie in one block of keys, over two and over three; behind nothing and behind whole blocks.
                for (committed, n) in [(0, 9), (5, 12), (60, 8), (64, 7), (70, 90), (127, 3)] {
                    let paths = random_tree(&mut rng, n);
                    let end = committed + n;
                    let mut cache = KvCache::new(kv_heads, head_dim, positions).unwrap();
                    cache.append(&case.k[..end * kv], &case.v[..end * kv]);
                    let q = &case.q[committed * row..end * row];
                    let mut all = vec![f32::NAN; n * row];
                    attend(&compute, &cache, Some(&paths), case.num_heads, q, &mut all);
                    // A part of the tree's tokens asks.
                    let part = n / 2;
                    let mut last = vec![f32::NAN; (n - part) * row];
                    attend(&compute, &cache, Some(&paths), case.num_heads, &q[part * row..], &mut last);
                    assert_eq!(bits(&last), bits(&all[part * row..]), "{isa} {committed} {n}");
                    for token in 0..n {
                        let mut alone = KvCache::new(kv_heads, head_dim, positions).unwrap();
                        alone.append(&case.k[..committed * kv], &case.v[..committed * kv]);
                        for &at in paths.path(token) {
                            let at = (committed + at as usize) * kv;
                            alone.append(&case.k[at..at + kv], &case.v[at..at + kv]);
                        }
                        let mut want = vec![f32::NAN; row];
                        let q = &q[token * row..(token + 1) * row];
                        attend(&compute, &alone, None, case.num_heads, q, &mut want);
                        let got = &all[token * row..(token + 1) * row];
                        assert_eq!(bits(got), bits(&want), "{isa}, {committed} committed, {n} in the tree, {token}");
                    }
                }
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn what_comes_later_is_not_read() {
    let mut case = Case::new(8, 1, 2, 48, 20);
    let compute = Compute::new(&CpuBackend::new());
    let want = case.run(&compute, &[20]);
    case.k[19 * 48..].fill(f32::NAN);
    case.v[19 * 48..].fill(f32::INFINITY);
    let got = case.run(&compute, &[20]);
    assert_eq!(got[..19 * 96], want[..19 * 96]);
    assert!(got[19 * 96].is_nan());
}
