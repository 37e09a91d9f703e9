//! Rows of the state in plain loops: the order of operations written out, lane by lane.

use undraft_core::DType;

use super::factor::Factor;
use super::state_rows::{ChainRows, Entry, Row, RowKernel, Rows, Token};
use crate::simd::{LANES, software_fma};

/// No SIMD instructions asked for.
#[derive(Clone, Copy)]
pub(super) struct Loops;

impl RowKernel for Loops {
    #[inline(never)]
    fn replay<const CH: usize, F: Factor<CH>>(self, row: &mut Row<CH>, entries: &[Entry<'_, CH, F>], state: DType) {
        for entry in entries {
            for c in 0..CH {
                let decayed = times(&row[c], &entry.decay.lanes(c));
                software_fma(&[entry.delta; LANES], &entry.k[c], &decayed, &mut row[c]);
            }
            round(row, state);
        }
    }

    #[inline(never)]
    fn token<const CH: usize, F: Factor<CH>>(self, token: Token<'_, CH, F>, rows: Rows<'_, CH>) {
        let Rows { v, from, to, out, mut delta, ahead: _, state } = rows;
        for r in 0..v.len() {
            if let Some(from) = from {
                to[r] = from[r];
            }
            let row = &mut to[r];
            for c in 0..CH {
                row[c] = times(&row[c], &token.decay.lanes(c));
            }
            let d = (v[r] - dot(row, token.k)) * token.beta;
            for (x, k) in row.iter_mut().zip(token.k) {
                let before = *x;
                software_fma(&[d; LANES], k, &before, x);
            }
            out[r] = token.scale * dot(row, token.q);
            round(row, state);
            if let Some(delta) = &mut delta {
                delta[r] = d;
            }
        }
    }

    fn chain<const CH: usize, F: Factor<CH>>(self, tokens: &[Token<'_, CH, F>], rows: ChainRows<'_, CH>) {
        let ChainRows { v, mut from, to, out, delta, ahead, state } = rows;
        for (t, token) in tokens.iter().enumerate() {
            let n = to.len();
            let rows = Rows {
                v: &v[t][..n],
                from: from.take(),
                to: &mut *to,
                out: &mut out[t][..n],
                delta: Some(&mut delta[t][..n]),
                ahead: ahead.clone(),
                state,
            };
            self.token(*token, rows);
        }
    }

    fn with_features<R>(self, f: impl FnOnce() -> R) -> R {
        f()
    }
}

fn round<const CH: usize>(row: &mut Row<CH>, to: DType) {
    if to != DType::F32 {
        row.as_flattened_mut().iter_mut().for_each(|x| *x = to.round(*x));
    }
}

fn times(a: &[f32; LANES], b: &[f32; LANES]) -> [f32; LANES] {
    std::array::from_fn(|i| a[i] * b[i])
}

/// Even vectors into one sum, odd ones into another; then lane i with i + 8, i + 4, i + 2, and the last two.
fn dot<const CH: usize>(a: &Row<CH>, b: &Row<CH>) -> f32 {
    let mut acc = [[0.0; LANES]; 2];
    for c in 0..CH {
        let before = acc[c & 1];
        software_fma(&a[c], &b[c], &before, &mut acc[c & 1]);
    }
    let mut sum: [f32; LANES] = std::array::from_fn(|i| acc[0][i] + acc[1][i]);
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sum[i] += sum[i + half];
        }
    }
    sum[0]
}
