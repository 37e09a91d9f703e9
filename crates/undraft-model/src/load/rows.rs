//! Taking rows out of a stored matrix.

use undraft::GdnDims;

use crate::weights::WeightData;

/// Some rows of `data`, rows of `in_features`, in this order.
pub(super) fn take_rows(data: &WeightData, in_features: usize, rows: &[usize]) -> WeightData {
    fn take<T: Copy>(data: &[T], in_features: usize, rows: &[usize]) -> Vec<T> {
        rows.iter().flat_map(|row| &data[row * in_features..(row + 1) * in_features]).copied().collect()
    }
    match data {
        WeightData::F32(data) => WeightData::F32(take(data, in_features, rows)),
        WeightData::Bf16(data) => WeightData::Bf16(take(data, in_features, rows)),
        WeightData::F16(data) => WeightData::F16(take(data, in_features, rows)),
    }
}

/// Where Qwen3-Next keeps the rows that Qwen3.5 stores by kind.
///
/// With `r = HV / H`: `in_proj_qkvz` is H groups of `[q: K][k: K][v: r * V][z: r * V]`, `in_proj_ba` H groups of
/// `[b: r][a: r]`; group g holds the value heads `g * r ..`.
pub(super) struct GroupedRows {
    groups: usize,
    key: usize,
    /// `r * V`.
    values: usize,
    /// `r`.
    heads: usize,
}

impl GroupedRows {
    pub(super) fn new(dims: &GdnDims) -> Self {
        let heads = dims.num_v_heads() / dims.num_k_heads();
        Self { groups: dims.num_k_heads(), key: dims.head_k_dim(), values: heads * dims.head_v_dim(), heads }
    }

    /// All q, all k, all v, of `in_proj_qkvz`.
    pub(super) fn qkv(&self) -> Vec<usize> {
        let group = 2 * self.key + 2 * self.values;
        let q = self.rows(group, 0, self.key);
        let k = self.rows(group, self.key, self.key);
        let v = self.rows(group, 2 * self.key, self.values);
        q.chain(k).chain(v).collect()
    }

    /// z of `in_proj_qkvz`.
    pub(super) fn z(&self) -> Vec<usize> {
        self.rows(2 * self.key + 2 * self.values, 2 * self.key + self.values, self.values).collect()
    }

    /// b of `in_proj_ba`.
    pub(super) fn b(&self) -> Vec<usize> {
        self.rows(2 * self.heads, 0, self.heads).collect()
    }

    /// a of `in_proj_ba`.
    pub(super) fn a(&self) -> Vec<usize> {
        self.rows(2 * self.heads, self.heads, self.heads).collect()
    }

    /// `len` rows from `offset` on of every group of `group`.
    fn rows(&self, group: usize, offset: usize, len: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.groups).flat_map(move |g| g * group + offset..g * group + offset + len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_put_together_by_kind() {
        // Two groups of q 0, k 1, v 2 3, z 4 5.
        let rows = GroupedRows::new(&GdnDims::new(2, 4, 1, 1).unwrap());
        assert_eq!(rows.qkv(), [0, 6, 1, 7, 2, 3, 8, 9]);
        assert_eq!(rows.z(), [4, 5, 10, 11]);
        assert_eq!((rows.b(), rows.a()), (vec![0, 1, 4, 5], vec![2, 3, 6, 7]));
    }

    #[test]
    fn rows_are_taken_whole() {
        let data = WeightData::F32((0..6).map(|x| x as f32).collect());
        assert_eq!(take_rows(&data, 2, &[2, 0]), WeightData::F32(vec![4.0, 5.0, 0.0, 1.0]));
    }
}
