//! Sweeps over a few rows of a state: decay and read, update and output, and both at once for a token and the one after it.
//!
//! Sums have one order whatever the vectors of the instruction set: even vectors of 16 lanes into one sum, odd ones into
//! another, the two added, lane i with i + 8, i with i + 4 (the rest is [`crate::simd::sum_each`]).

use fearless_simd::prelude::*;
use fearless_simd::{Simd, f32x4, f32x8, f32x16};
use undraft_core::DType;

use super::factor::Factor;
use super::state_rows::{Row, Token};
use crate::simd::{self, LANES};

/// Sums of some rows, down to four lanes.
pub(super) type Sums<S, const R: usize> = [f32x4<S>; R];

/// Sixteen lanes added to four: i with i + 8, then with i + 4.
#[inline(always)]
fn fold16<S: Simd>([x]: [f32x16<S>; 1]) -> f32x4<S> {
    simd::fold(x)
}

/// The same from two vectors of eight.
#[inline(always)]
fn fold8<S: Simd>([low, high]: [f32x8<S>; 2]) -> f32x4<S> {
    let (low, high) = (low + high).split();
    low + high
}

/// Runs a body for every vector of a row, `$a` = 0 for even ones and 1 for odd ones, two in each turn of a loop that the
/// compiler must not unroll: it would then move loads far ahead of their use and spill them.
macro_rules! each_vector {
    ($CH:ident, $c:ident, $a:ident => $body:block) => {{
        let end = std::hint::black_box($CH).min($CH);
        let mut first = 0;
        while first + 1 < end {
            {
                let ($c, $a) = (first, 0);
                $body
            }
            {
                let ($c, $a) = (first + 1, 1);
                $body
            }
            first += 2;
        }
        if $CH % 2 == 1 {
            let ($c, $a) = ($CH - 1, 0);
            $body
        }
    }};
}

/// Sweeps with vectors of `$W` lanes, so that `$P` of them hold 16: registers keep the sums of all rows of a sweep.
macro_rules! sweeps {
    ($name:ident, $V:ident, $W:literal, $P:literal, $factor:ident, $fold:ident, $bf16:ident, $f16:ident) => {
        pub(super) mod $name {
            use super::*;

            #[inline(always)]
            fn load<S: Simd>(s: S, x: &[f32; LANES], part: usize) -> $V<S> {
                $V::load_array_ref(s, &x.as_chunks::<$W>().0[part])
            }

            #[inline(always)]
            fn store<S: Simd>(x: $V<S>, to: &mut [f32; LANES], part: usize) {
                x.store_array(&mut to.as_chunks_mut::<$W>().0[part]);
            }

            /// Rounds to the dtype of the state.
            #[inline(always)]
            pub(in super::super) fn round<S: Simd>(x: $V<S>, to: DType) -> $V<S> {
                match to {
                    DType::F32 => x,
                    DType::Bf16 => simd::$bf16(x),
                    DType::F16 => simd::$f16(x),
                }
            }

            /// Decays rows and sums them against k.
            #[inline(always)]
            pub(in super::super) fn decay<S: Simd, F: Factor<CH>, const CH: usize, const R: usize>(
                s: S,
                token: &Token<'_, CH, F>,
                from: Option<&[Row<CH>; R]>,
                to: &mut [Row<CH>; R],
            ) -> Sums<S, R> {
                let mut sums = [[$V::splat(s, 0.0); $P]; R];
                for part in 0..$P {
                    let mut acc = [[$V::splat(s, 0.0); 2]; R];
                    each_vector!(CH, c, a => {
                        let (k, decay) = (load(s, &token.k[c], part), token.decay.$factor(s, c, part));
                        for r in 0..R {
                            let source = match from {
                                Some(from) => &from[r][c],
                                None => &to[r][c],
                            };
                            let x = load(s, source, part) * decay;
                            store(x, &mut to[r][c], part);
                            acc[r][a] = x.mul_add_precise(k, acc[r][a]);
                        }
                    });
                    for r in 0..R {
                        sums[r][part] = acc[r][0] + acc[r][1];
                    }
                }
                fold(s, sums)
            }

            /// Adds delta times k to rows, sums them against q and rounds them to the dtype of the state.
            #[inline(always)]
            pub(in super::super) fn update<S: Simd, F: Factor<CH>, const CH: usize, const R: usize>(
                s: S,
                token: &Token<'_, CH, F>,
                delta: [f32; R],
                rows: &mut [Row<CH>; R],
                state: DType,
            ) -> Sums<S, R> {
                let mut d = [$V::splat(s, 0.0); R];
                for r in 0..R {
                    d[r] = $V::splat(s, delta[r]);
                }
                let mut sums = [[$V::splat(s, 0.0); $P]; R];
                for part in 0..$P {
                    let mut acc = [[$V::splat(s, 0.0); 2]; R];
                    each_vector!(CH, c, a => {
                        let (k, q) = (load(s, &token.k[c], part), load(s, &token.q[c], part));
                        for r in 0..R {
                            let x = d[r].mul_add_precise(k, load(s, &rows[r][c], part));
                            store(round(x, state), &mut rows[r][c], part);
                            acc[r][a] = x.mul_add_precise(q, acc[r][a]);
                        }
                    });
                    for r in 0..R {
                        sums[r][part] = acc[r][0] + acc[r][1];
                    }
                }
                fold(s, sums)
            }

            /// [`update`] for a token and [`decay`] for the next one, the rows loaded and stored once: sums against the
            /// token's q and the next one's k.
            #[inline(always)]
            pub(in super::super) fn update_and_decay<S: Simd, F: Factor<CH>, const CH: usize, const R: usize>(
                s: S,
                token: &Token<'_, CH, F>,
                next: &Token<'_, CH, F>,
                delta: [f32; R],
                rows: &mut [Row<CH>; R],
                state: DType,
            ) -> (Sums<S, R>, Sums<S, R>) {
                let mut d = [$V::splat(s, 0.0); R];
                for r in 0..R {
                    d[r] = $V::splat(s, delta[r]);
                }
                let mut outs = [[$V::splat(s, 0.0); $P]; R];
                let mut reads = [[$V::splat(s, 0.0); $P]; R];
                for part in 0..$P {
                    let mut out = [[$V::splat(s, 0.0); 2]; R];
                    let mut read = [[$V::splat(s, 0.0); 2]; R];
                    each_vector!(CH, c, a => {
                        let (k, q) = (load(s, &token.k[c], part), load(s, &token.q[c], part));
                        let (next_k, decay) = (load(s, &next.k[c], part), next.decay.$factor(s, c, part));
                        for r in 0..R {
                            let x = d[r].mul_add_precise(k, load(s, &rows[r][c], part));
                            out[r][a] = x.mul_add_precise(q, out[r][a]);
                            let x = round(x, state) * decay;
                            store(x, &mut rows[r][c], part);
                            read[r][a] = x.mul_add_precise(next_k, read[r][a]);
                        }
                    });
                    for r in 0..R {
                        outs[r][part] = out[r][0] + out[r][1];
                        reads[r][part] = read[r][0] + read[r][1];
                    }
                }
                (fold(s, outs), fold(s, reads))
            }

            #[inline(always)]
            fn fold<S: Simd, const R: usize>(s: S, sums: [[$V<S>; $P]; R]) -> Sums<S, R> {
                let mut folded = [f32x4::splat(s, 0.0); R];
                for r in 0..R {
                    folded[r] = $fold(sums[r]);
                }
                folded
            }
        }
    };
}

sweeps!(whole, f32x16, 16, 1, vector, fold16, round_bf16, round_f16);
sweeps!(halves, f32x8, 8, 2, half, fold8, round_bf16_half, round_f16_half);
