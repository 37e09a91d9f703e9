//! Random numbers addressed by seed, position, purpose and token: ChaCha8 as a counter-based generator.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// What random numbers are for. Numbers for different purposes are independent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// Gumbel noise of the tokens of a position.
    Gumbel = 0,
    /// A drafter's own draw.
    Draft = 1,
    /// Whether a draft is kept.
    Accept = 2,
    /// The token in the place of a rejected draft, or behind the last accepted one.
    Replace = 3,
}

/// The generator of one seed, purpose and position: key (seed, purpose), stream `position`.
fn generator(seed: u64, purpose: Purpose, position: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8] = purpose as u8;
    let mut generator = ChaCha8Rng::from_seed(key);
    generator.set_stream(position);
    generator
}

/// A uniform number in [0, 1) with 53 bits.
pub(super) fn uniform(seed: u64, purpose: Purpose, position: u64) -> f64 {
    (generator(seed, purpose, position).next_u64() >> 11) as f64 * 2f64.powi(-53)
}

/// An upper bound of all Gumbel noise: `-ln(2^-53)`.
pub(super) const MAX_GUMBEL: f64 = 53.0 * std::f64::consts::LN_2;

/// Gumbel noise of the tokens of one position; token `id` has words `2 id` and `2 id + 1` of the stream.
#[derive(Clone)]
pub(super) struct GumbelNoise {
    generator: ChaCha8Rng,
    /// The token whose bits come next.
    next: u64,
}

impl GumbelNoise {
    pub(super) fn new(seed: u64, position: u64) -> Self {
        Self { generator: generator(seed, Purpose::Gumbel, position), next: 0 }
    }

    /// The random bits of token `id`; fast for rising ids.
    pub(super) fn bits(&mut self, id: u32) -> u64 {
        // The generator makes 4 blocks of 16 words at a time, which are 32 tokens: nearer ones are not worth a seek.
        const NEAR: u64 = 64;
        let id = u64::from(id);
        match id.checked_sub(self.next) {
            Some(skipped) if skipped <= NEAR => {
                for _ in 0..skipped {
                    self.generator.next_u64();
                }
            }
            _ => self.generator.set_word_pos(2 * u128::from(id)),
        }
        self.next = id + 1;
        self.generator.next_u64()
    }

    /// `-ln(-ln(1 - y))` for the uniform `y` in (0, 1) that the bits stand for: standard Gumbel.
    pub(super) fn gumbel(bits: u64) -> f64 {
        // 52 bits and a half keep y and 1 - y away from 0.
        let y = ((bits >> 12) as f64 + 0.5) * 2f64.powi(-52);
        -(-(-y).ln_1p()).ln()
    }

    /// At least [`GumbelNoise::gumbel`] of the same bits, without a logarithm: `-ln(1 - y) >= y` and
    /// `y >= 2^-(leading zeros + 1)`.
    pub(super) fn upper_bound(bits: u64) -> f64 {
        f64::from((bits.leading_zeros() + 1).min(53)) * std::f64::consts::LN_2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_do_not_depend_on_the_order_of_asking() {
        let mut rising = GumbelNoise::new(3, 9);
        let all: Vec<u64> = (0..300).map(|id| rising.bits(id)).collect();
        let mut noise = GumbelNoise::new(3, 9);
        for id in [299u32, 0, 1, 65, 66, 131, 130, 200, 7, 7, 31, 32, 33] {
            assert_eq!(noise.bits(id), all[id as usize], "{id}");
        }
        assert_ne!(GumbelNoise::new(3, 10).bits(0), all[0]);
        assert_ne!(GumbelNoise::new(4, 9).bits(0), all[0]);
        let last = GumbelNoise::new(3, 9).bits(u32::MAX);
        assert_eq!(rising.bits(u32::MAX), last);
        assert_eq!(rising.bits(0), all[0]);
    }

    #[test]
    fn bounds_hold() {
        let mut noise = GumbelNoise::new(1, 1);
        let extremes = [0, 1, u64::MAX, 1 << 63, (1 << 63) - 1, 1 << 11, 1 << 12, 1 << 13];
        for bits in extremes.into_iter().chain((0..100_000).map(|id| noise.bits(id))) {
            let (gumbel, bound) = (GumbelNoise::gumbel(bits), GumbelNoise::upper_bound(bits));
            assert!(gumbel.is_finite() && gumbel <= bound + 1e-12, "{bits:x}: {gumbel} {bound}");
            assert!(bound <= MAX_GUMBEL);
        }
    }

    #[test]
    fn gumbel_moments() {
        let mut noise = GumbelNoise::new(5, 0);
        let n = 200_000;
        let values: Vec<f64> = (0..n).map(|id| GumbelNoise::gumbel(noise.bits(id))).collect();
        let mean = values.iter().sum::<f64>() / f64::from(n);
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
        let (euler_gamma, pi) = (0.577_215_664_9, std::f64::consts::PI);
        // Standard errors are 0.0029 and 0.0077.
        assert!((mean - euler_gamma).abs() < 0.015, "{mean}");
        assert!((variance - pi * pi / 6.0).abs() < 0.04, "{variance}");
    }
}
