//! The compatible family, `gated_delta_net_decode_f32_{1,2,4}` and `gated_delta_net_decode_capture_f32_{1,2,4}`: near a plain f64
//! loop, and bit for bit what shorter runs give.

use std::ops::Range;

use undraft_metal::driver::Commands;
use undraft_metal::raw::{DecodeParams, Slice};
use undraft_metal::{DeviceBuffer, MetalBackend};
use undraft_testing::Rng;

/// A call; sequences have as many tokens each.
#[derive(Clone)]
struct Case {
    k_dim: usize,
    v_dim: usize,
    k_heads: usize,
    v_heads: usize,
    tokens: usize,
    seqs: usize,
    q_scale: f32,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    g: Vec<f32>,
    beta: Vec<f32>,
    state: Vec<f32>,
}

struct Outcome {
    /// `[seqs, tokens, v_heads, v_dim]`.
    out: Vec<f32>,
    /// `[seqs, v_heads, v_dim, k_dim]`.
    state: Vec<f32>,
    /// `[seqs, tokens, v_heads, v_dim, k_dim]`; empty without capture.
    captures: Vec<f32>,
}

impl Case {
    fn draw(rng: &mut Rng, [k_dim, v_dim, k_heads, v_heads, tokens, seqs]: [usize; 6], q_scale: f32) -> Self {
        let (keys, values) = (seqs * tokens * k_heads * k_dim, seqs * tokens * v_heads * v_dim);
        let (gates, states) = (seqs * tokens * v_heads, seqs * v_heads * v_dim * k_dim);
        let mut normal = |n: usize, scale: f64| -> Vec<f32> { (0..n).map(|_| (rng.normal() * scale) as f32).collect() };
        let unit = (k_dim as f64).powf(-0.5);
        let (q, k, v, state) = (normal(keys, unit), normal(keys, unit), normal(values, 1.0), normal(states, 0.3));
        let g = (0..gates).map(|_| rng.uniform() as f32).collect();
        let beta = (0..gates).map(|_| rng.uniform() as f32).collect();
        Self { k_dim, v_dim, k_heads, v_heads, tokens, seqs, q_scale, q, k, v, g, beta, state }
    }
    /// The same tokens of each sequence, from these states.
    fn part(&self, range: Range<usize>, state: Vec<f32>) -> Self {
        let of = |x: &[f32]| -> Vec<f32> {
            let row = x.len() / (self.seqs * self.tokens);
            let sequences = x.chunks(row * self.tokens);
            sequences.flat_map(|x| x[range.start * row..range.end * row].to_vec()).collect()
        };
        let (q, k, v, g, beta) = (of(&self.q), of(&self.k), of(&self.v), of(&self.g), of(&self.beta));
        Self { q, k, v, g, beta, state, tokens: range.len(), ..self.clone() }
    }

    fn run(&self, backend: &MetalBackend, capture: bool) -> Result<Outcome, String> {
        self.try_run(backend, capture).map_err(|e: undraft_metal::MetalError| e.to_string())
    }
    fn try_run(&self, backend: &MetalBackend, capture: bool) -> undraft_metal::Result<Outcome> {
        let driver = backend.launcher().driver();
        let buffer = |x: &[f32]| DeviceBuffer::from_slice(driver, x);
        let (q, k, v) = (buffer(&self.q)?, buffer(&self.k)?, buffer(&self.v)?);
        let (g, beta, state_in) = (buffer(&self.g)?, buffer(&self.beta)?, buffer(&self.state)?);
        let (out, state) = (buffer(&vec![f32::NAN; self.v.len()])?, buffer(&vec![f32::NAN; self.state.len()])?);
        let captures = buffer(&vec![f32::NAN; if capture { self.tokens * self.state.len() } else { 0 }])?;
        let params = DecodeParams {
            q: q.slice(),
            k: k.slice(),
            v: v.slice(),
            g: g.slice(),
            beta: beta.slice(),
            state_in: state_in.slice(),
            output: out.slice(),
            state_out: state.slice(),
            state_capture: if capture { captures.slice() } else { Slice::NONE },
            head_k_dim: self.k_dim as u32,
            head_v_dim: self.v_dim as u32,
            num_k_heads: self.k_heads as u32,
            num_v_heads: self.v_heads as u32,
            num_tokens: self.tokens as u32,
            num_seqs: self.seqs as u32,
            q_scale: self.q_scale,
        };
        let commands = Commands::begin(driver)?;
        // SAFETY: buffers of the shapes that the parameters name, which live until the work is done.
        unsafe { backend.launcher().gated_delta_net_decode(commands.encoder(), &params)? };
        commands.finish()?;
        let read = |buffer: &DeviceBuffer<f32>| -> undraft_metal::Result<Vec<f32>> {
            let mut x = vec![0.0; buffer.len()];
            buffer.read(0, &mut x)?;
            Ok(x)
        };
        Ok(Outcome { out: read(&out)?, state: read(&state)?, captures: read(&captures)? })
    }

    /// Outputs and captures in f64, one loop an index.
    fn reference(&self) -> (Vec<f64>, Vec<f64>) {
        let (mut out, mut captures) = (vec![0.0; self.v.len()], vec![0.0; self.tokens * self.state.len()]);
        let scale = if self.q_scale == 0.0 { 1.0 } else { f64::from(self.q_scale) };
        for (seq, head) in (0..self.seqs).flat_map(|s| (0..self.v_heads).map(move |h| (s, h))) {
            let of_head = (seq * self.v_heads + head) * self.v_dim * self.k_dim;
            let mut state: Vec<f64> =
                self.state[of_head..][..self.v_dim * self.k_dim].iter().map(|&x| x.into()).collect();
            for t in 0..self.tokens {
                let token = seq * self.tokens + t;
                let key = (token * self.k_heads + head % self.k_heads) * self.k_dim;
                let gate = token * self.v_heads + head;
                for i in 0..self.v_dim {
                    let row = &mut state[i * self.k_dim..][..self.k_dim];
                    let alpha = (-f64::from(self.g[gate])).exp();
                    row.iter_mut().for_each(|x| *x *= alpha);
                    let p: f64 = row.iter().zip(&self.k[key..]).map(|(s, &k)| s * f64::from(k)).sum();
                    let delta = (f64::from(self.v[gate * self.v_dim + i]) - p) * f64::from(self.beta[gate]);
                    row.iter_mut().zip(&self.k[key..]).for_each(|(s, &k)| *s += delta * f64::from(k));
                    let o: f64 = row.iter().zip(&self.q[key..]).map(|(s, &q)| s * f64::from(q)).sum();
                    out[gate * self.v_dim + i] = o * scale;
                }
                captures[gate * self.v_dim * self.k_dim..][..state.len()].copy_from_slice(&state);
            }
        }
        (out, captures)
    }
}

fn same(what: &str, got: &[f32], expected: &[f32]) -> Result<(), String> {
    match got.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits()) {
        None if got.len() == expected.len() => Ok(()),
        None => Err(format!("{what}: {} elements, expected {}", got.len(), expected.len())),
        Some(i) => Err(format!("{what}: element {i} is {:e}, expected {:e}", got[i], expected[i])),
    }
}

fn near(what: &str, got: &[f32], expected: &[f64]) -> Result<(), String> {
    let error: f64 = got.iter().zip(expected).map(|(&g, e)| (f64::from(g) - e).powi(2)).sum();
    let rel_rms = (error / expected.iter().map(|e| e * e).sum::<f64>()).sqrt();
    // NaN is not near.
    if rel_rms < 5e-7 { Ok(()) } else { Err(format!("{what}: {rel_rms:e} off, expected less than 5e-7")) }
}

/// Rows of a sequence at a token, `[seqs, tokens, ..]`.
fn at(x: &[f32], case: &Case, t: usize) -> Vec<f32> {
    let row = x.len() / (case.seqs * case.tokens);
    x.chunks(row * case.tokens).flat_map(|x| x[t * row..][..row].to_vec()).collect()
}

/// All that the family promises.
pub fn check(backend: &MetalBackend) -> Result<(), String> {
    let rng = &mut Rng::new(31);
    // Head sizes of each kernel, rows that fill no threadgroup, tiled heads, several sequences; no token at all.
    let shapes = [[32, 32, 1, 3, 3, 3], [64, 5, 2, 4, 4, 2], [128, 30, 2, 6, 4, 2], [128, 16, 1, 1, 1, 1]];
    for (i, shape) in shapes.into_iter().enumerate() {
        let case = Case::draw(rng, shape, [0.0, 0.25, 0.0, -3.5][i]);
        let label = |e| format!("{shape:?}: {e}");
        check_case(backend, &case).map_err(label)?;
    }
    let none = Case::draw(rng, [64, 6, 1, 2, 0, 2], 0.0);
    same("a state without tokens", &none.run(backend, true)?.state, &none.state)
}

fn check_case(backend: &MetalBackend, case: &Case) -> Result<(), String> {
    let full = case.run(backend, true)?;
    let (out, captures) = case.reference();
    near("outputs", &full.out, &out)?;
    near("captures", &full.captures, &captures)?;
    same("the last capture", &at(&full.captures, case, case.tokens - 1), &full.state)?;
    let plain = case.run(backend, false)?;
    same("outputs without capture", &plain.out, &full.out)?;
    same("the state without capture", &plain.state, &full.state)?;
    for t in 0..case.tokens {
        let short = case.part(0..t + 1, case.state.clone());
        let outcome = short.run(backend, true)?;
        same("a shorter run's state", &outcome.state, &at(&full.captures, case, t))?;
        same("a shorter run's output", &at(&outcome.out, &short, t), &at(&full.out, case, t))?;
        // Back to a capture, and on from there one by one.
        let mut state = at(&full.captures, case, t);
        for next in t + 1..case.tokens {
            let single = case.part(next..next + 1, state).run(backend, false)?;
            same("an output behind a capture", &single.out, &at(&full.out, case, next))?;
            state = single.state;
        }
        same("a state behind a capture", &state, &full.state)?;
    }
    let unscaled = Case { q_scale: 0.0, ..case.clone() }.run(backend, true)?;
    let scale = if case.q_scale == 0.0 { 1.0 } else { case.q_scale };
    let scaled: Vec<f32> = unscaled.out.iter().map(|x| x * scale).collect();
    same("outputs times q_scale", &full.out, &scaled)?;
    same("a state without q_scale", &unscaled.state, &full.state)?;
    Ok(())
}
