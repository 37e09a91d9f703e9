//! Topologies of draft trees.

use crate::Rng;

/// What a tree looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Each token follows the one before it, said with parents.
    Chain,
    /// One root, and all others its children.
    Star,
    /// A chain with a leaf at each of its tokens.
    Comb,
    /// Two children a node, level by level.
    BreadthFirst,
    /// A random tree, each subtree before its next sibling.
    DepthFirst,
    /// Several roots.
    Forest,
    /// Any earlier token, or none.
    Random,
}

impl Topology {
    /// Every topology.
    pub const ALL: [Topology; 7] = [
        Topology::Star,
        Topology::Comb,
        Topology::DepthFirst,
        Topology::Forest,
        Topology::Chain,
        Topology::BreadthFirst,
        Topology::Random,
    ];

    /// Parents of `len` tokens: -1, or an earlier position.
    ///
    /// ```
    /// use undraft_testing::{Rng, cases::Topology};
    /// let rng = &mut Rng::new(1);
    /// assert_eq!(Topology::Star.parents(rng, 4), [-1, 0, 0, 0]);
    /// assert_eq!(Topology::Comb.parents(rng, 5), [-1, 0, 0, 2, 2]);
    /// assert_eq!(Topology::BreadthFirst.parents(rng, 5), [-1, 0, 0, 1, 1]);
    /// ```
    pub fn parents(self, rng: &mut Rng, len: usize) -> Vec<i32> {
        let mut parents: Vec<i32> = Vec::with_capacity(len);
        for t in 0..len as i32 {
            let parent = match self {
                _ if t == 0 => -1,
                Topology::Chain => t - 1,
                Topology::Star => 0,
                Topology::Comb => (t - 1) / 2 * 2,
                Topology::BreadthFirst => (t - 1) / 2,
                Topology::DepthFirst => {
                    // The token before or one of its ancestors: a subtree that was left is never entered again.
                    let mut parent = t - 1;
                    while parents[parent as usize] >= 0 && rng.one_in(2) {
                        parent = parents[parent as usize];
                    }
                    parent
                }
                Topology::Forest if rng.one_in(3) => -1,
                Topology::Forest => rng.below(t as usize) as i32,
                Topology::Random => rng.below(t as usize + 1) as i32 - 1,
            };
            parents.push(parent);
        }
        parents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_first() {
        let mut rng = Rng::new(5);
        for topology in Topology::ALL {
            for len in 0..20 {
                for (t, &parent) in topology.parents(&mut rng, len).iter().enumerate() {
                    assert!((-1..t as i32).contains(&parent), "{topology:?}");
                }
            }
        }
    }
}
