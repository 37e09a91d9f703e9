//! The nearest of many names, for errors about a missing one.

/// Names whose lengths differ by more are not compared, which bounds the work whatever a file holds.
const MAX_LEN_DIFFERENCE: usize = 12;

/// The candidate that differs least from `name`, if at most a quarter of it differs; the first of equals.
pub(super) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .filter(|candidate| candidate.len().abs_diff(name.len()) <= MAX_LEN_DIFFERENCE)
        .map(|candidate| (edit_distance(name.as_bytes(), candidate.as_bytes()), candidate))
        .min_by_key(|&(distance, _)| distance)
        .filter(|&(distance, _)| distance <= name.len().div_ceil(4))
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance of two byte strings.
fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_by_hand() {
        for (a, b, distance) in
            [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "ba", 2), ("same", "same", 0)]
        {
            assert_eq!(edit_distance(a.as_bytes(), b.as_bytes()), distance, "{a} {b}");
        }
    }

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let names = ["model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight", "model.norm.weight"];
        assert_eq!(nearest("model.layers.0.mlp.gate_prj.weight", names.into_iter()), Some(names[1]));
        assert_eq!(nearest("lm_head.weight", names.into_iter()), None);
        assert_eq!(nearest("x", std::iter::empty()), None);
    }
}
