//! Rotary position embedding of the first values of a head.

/// Rotates value `i` with value `i + dim / 2`, for `i < dim / 2`, by the angle `position * theta^(-2 i / dim)`.
#[derive(Clone, Debug)]
pub struct Rope {
    /// `theta^(-2 i / dim)`, `[dim / 2]`.
    frequencies: Vec<f64>,
}

impl Rope {
    /// For the first `dim` values of a head; `dim` is even.
    pub fn new(dim: usize, theta: f64) -> Self {
        let frequency = |i: usize| theta.powf(-2.0 * i as f64 / dim as f64);
        Self { frequencies: (0..dim / 2).map(frequency).collect() }
    }

    /// Values of a head that are rotated.
    pub fn dim(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Cosines, then sines, of positions `start..`: as many rows of [`Rope::dim`] as `table` has room for.
    pub fn table(&self, start: usize, table: &mut [f32]) {
        self.table_of(start.., table);
    }

    /// Cosines, then sines, of some positions, one row of [`Rope::dim`] for each.
    ///
    /// Angles are taken in f64: in f32 they would be off by 4e-3 at position 1e5.
    pub fn table_of(&self, positions: impl IntoIterator<Item = usize>, table: &mut [f32]) {
        let half = self.frequencies.len();
        for (position, row) in positions.into_iter().zip(table.chunks_exact_mut(2 * half)) {
            let (cos, sin) = row.split_at_mut(half);
            for (i, frequency) in self.frequencies.iter().enumerate() {
                let (s, c) = (position as f64 * frequency).sin_cos();
                (cos[i], sin[i]) = (c as f32, s as f32);
            }
        }
    }

    /// Rotates a head in place by one row of [`Rope::table`]; values from [`Rope::dim`] on stay.
    #[inline]
    pub fn rotate(head: &mut [f32], row: &[f32]) {
        let half = row.len() / 2;
        let (cos, sin) = row.split_at(half);
        let (first, second) = head[..row.len()].split_at_mut(half);
        for (((x, y), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            (*x, *y) = (*x * c - *y * s, *y * c + *x * s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_turn_together_and_the_rest_stays() {
        let rope = Rope::new(4, 100.0);
        let mut table = [0.0; 8];
        rope.table(3, &mut table);
        let mut head = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        Rope::rotate(&mut head, &table[..4]);
        // Frequencies 1 and 0.1 at position 3.
        let (s0, c0) = 3.0f64.sin_cos();
        let (s1, c1) = 0.3f64.sin_cos();
        let want = [c0 - 3.0 * s0, 2.0 * c1 - 4.0 * s1, 3.0 * c0 + s0, 4.0 * c1 + 2.0 * s1, 5.0, 6.0];
        for (got, want) in head.iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 1e-6, "{head:?} {want:?}");
        }
        let mut next = [0.0; 4];
        rope.table(4, &mut next);
        assert_eq!(table[4..], next);
    }
}
