//! Draft trees: in which buffer the state after each token is kept until its last child has read it.

use undraft_core::is_chain;

/// One token of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Buffer of the parent's state; `None` is the committed state.
    pub(super) from: Option<u32>,
    /// Buffer of this token's state; the parent's own for its last child.
    pub(super) to: u32,
}

/// The buffers of every token of a call; memory is kept from call to call.
#[derive(Default)]
pub(super) struct TreePlan {
    /// `[num_tokens]`, or empty if every window is a chain.
    pub(super) steps: Vec<Step>,
    /// Buffers that the largest tree needs.
    pub(super) num_buffers: usize,
    /// Children that a token of the present window still has to serve, and its buffer.
    open: Vec<(u32, u32)>,
    free: Vec<u32>,
}

impl TreePlan {
    /// Plans all windows of a call.
    pub(super) fn prepare(&mut self, cu_seqlens: &[i32], parents: &[i32]) {
        self.steps.clear();
        self.num_buffers = 0;
        let windows = || cu_seqlens.windows(2).map(|w| &parents[w[0] as usize..w[1] as usize]);
        if parents.is_empty() || windows().all(is_chain) {
            return;
        }
        for parents in windows() {
            self.window(parents);
        }
    }

    fn window(&mut self, parents: &[i32]) {
        self.open.clear();
        self.open.resize(parents.len(), (0, 0));
        for &parent in parents {
            if let Ok(parent) = usize::try_from(parent) {
                self.open[parent].0 += 1;
            }
        }
        self.free.clear();
        let mut made = 0;
        for (t, &parent) in parents.iter().enumerate() {
            let parent = usize::try_from(parent).ok();
            let from = parent.map(|p| self.open[p].1);
            let last = parent.is_some_and(|p| {
                self.open[p].0 -= 1;
                self.open[p].0 == 0
            });
            let to = match from {
                Some(buffer) if last => buffer,
                _ => self.free.pop().unwrap_or_else(|| {
                    made += 1;
                    made - 1
                }),
            };
            self.open[t].1 = to;
            if self.open[t].0 == 0 {
                self.free.push(to);
            }
            self.steps.push(Step { from, to });
        }
        self.num_buffers = self.num_buffers.max(made as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(parents: &[i32]) -> TreePlan {
        let mut plan = TreePlan::default();
        plan.prepare(&[0, parents.len() as i32], parents);
        plan
    }

    #[test]
    fn chains_need_no_plan() {
        assert!(plan(&[-1, 0, 1, 2]).steps.is_empty() && plan(&[]).steps.is_empty());
    }

    #[test]
    fn a_last_child_takes_over_and_leaves_free() {
        // 0 -> {1 -> 3, 2}
        let plan = plan(&[-1, 0, 0, 1]);
        let step = |from, to| Step { from, to };
        assert_eq!(plan.steps, [step(None, 0), step(Some(0), 1), step(Some(0), 0), step(Some(1), 1)]);
        assert_eq!(plan.num_buffers, 2);
    }

    /// Runs random plans with the path of each token as its state.
    #[test]
    fn every_token_finds_its_parents_state() {
        let mut seed = 7u32;
        let mut below = |n: usize| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as usize % n
        };
        for _ in 0..500 {
            let parents: Vec<i32> = (0..below(20)).map(|t| below(t + 1) as i32 - 1).collect();
            let plan = plan(&parents);
            let mut buffers = vec![Vec::new(); plan.num_buffers];
            for (t, step) in plan.steps.iter().enumerate() {
                let mut path: Vec<usize> = step.from.map_or_else(Vec::new, |b| buffers[b as usize].clone());
                path.push(t);
                let mut expected = vec![t];
                while let Ok(parent) = usize::try_from(parents[expected[0]]) {
                    expected.insert(0, parent);
                }
                assert_eq!(path, expected, "{parents:?}");
                buffers[step.to as usize] = path;
            }
        }
    }
}
