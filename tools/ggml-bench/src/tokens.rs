//! What both sides read: the same buffers.

use anyhow::Result;
use undraft::GdnDims;
use undraft::cpu::AlignedBuffer;

/// Sizes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub dims: GdnDims,
    pub num_tokens: usize,
}

/// A window of one sequence.
pub struct Tokens {
    /// `[num_tokens, H, K]`, each head of length 1.
    pub q: AlignedBuffer,
    /// `[num_tokens, H, K]`, each head of length 1.
    pub k: AlignedBuffer,
    /// `[num_tokens, HV, V]`.
    pub v: AlignedBuffer,
    /// Logarithm of the decay, `[num_tokens, HV]`, or `[num_tokens, HV, K]` for a decay per channel.
    pub g: AlignedBuffer,
    /// `[num_tokens, HV]`, between 0 and 1.
    pub beta: AlignedBuffer,
}

impl Tokens {
    /// Random tokens.
    pub fn new(sizes: Sizes, random: &mut Random) -> Result<Self> {
        let Sizes { dims, num_tokens: n } = sizes;
        let mut uniform = |len: usize, low: f32, high: f32| -> Result<AlignedBuffer> {
            let mut buffer = AlignedBuffer::zeroed(len)?;
            random.fill(&mut buffer, low, high);
            Ok(buffer)
        };
        let mut q = uniform(n * dims.key_dim(), -1.0, 1.0)?;
        let mut k = uniform(n * dims.key_dim(), -1.0, 1.0)?;
        for head in q.chunks_exact_mut(dims.head_k_dim()).chain(k.chunks_exact_mut(dims.head_k_dim())) {
            let norm = head.iter().map(|x| x * x).sum::<f32>().sqrt();
            head.iter_mut().for_each(|x| *x /= norm);
        }
        Ok(Self {
            q,
            k,
            v: uniform(n * dims.value_dim(), -1.0, 1.0)?,
            // The state before 64 tokens still counts after them.
            g: uniform(n * dims.decay_len(), -0.1, -0.001)?,
            beta: uniform(n * dims.num_v_heads(), 0.1, 0.9)?,
        })
    }
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    /// Uniform numbers from `low` to `high`.
    pub fn fill(&mut self, buffer: &mut [f32], low: f32, high: f32) {
        for x in buffer {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let unit = ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32;
            *x = low + (high - low) * unit;
        }
    }
}
