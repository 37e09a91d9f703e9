//! Draft trees of the multi-token prediction head.

use super::check_tokens;
use super::mtp::{DraftStep, MtpCache, MtpHead};
use crate::dense::{AlignedBuffer, Paths};
use crate::drafters::Drafts;
use crate::error::{ModelError, Result};
use crate::sampling::Candidate;

/// How wide and how deep a draft tree branches.
///
/// Behind the last token known come the `widths[0]` likeliest tokens, behind each of those the `widths[1]` likeliest, and
/// so on. Of all of them those stay that are likeliest as a whole path, as many as are wanted; a token that does not stay
/// is not looked behind, so that the head never runs more than these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeShape {
    widths: Vec<usize>,
}

impl TreeShape {
    /// Deepest tree.
    pub const MAX_DEPTH: usize = 64;
    /// Most tokens behind one.
    pub const MAX_WIDTH: usize = 64;

    /// A shape from the number of tokens behind each token, depth by depth.
    ///
    /// # Errors
    /// [`ModelError::TreeShape`] unless there are 1..=64 widths of 1..=64.
    pub fn new(widths: &[usize]) -> Result<Self> {
        let refuse = |name, found, max| Err(ModelError::TreeShape { name, found, min: 1, max });
        if !(1..=Self::MAX_DEPTH).contains(&widths.len()) {
            return refuse("depth", widths.len(), Self::MAX_DEPTH);
        }
        match widths.iter().find(|width| !(1..=Self::MAX_WIDTH).contains(*width)) {
            Some(&width) => refuse("width", width, Self::MAX_WIDTH),
            None => Ok(Self { widths: widths.to_vec() }),
        }
    }

    /// Tokens behind each token, depth by depth.
    pub fn widths(&self) -> &[usize] {
        &self.widths
    }
}

impl Default for TreeShape {
    /// Three, then twice two, then one at each of three more depths.
    fn default() -> Self {
        Self { widths: vec![3, 2, 2, 1, 1, 1] }
    }
}

/// Clears the candidates and fills in the likeliest tokens of a step, at most as many as the number says.
pub type Rank<'a> = dyn FnMut(DraftStep<'_>, usize, &mut Vec<Candidate>) -> Result<()> + 'a;

/// Scratch memory of [`MtpHead::draft_tree`].
#[derive(Debug, Default)]
pub(super) struct TreeScratch {
    nodes: Vec<Node>,
    /// Numbers of nodes by rank.
    ranked: Vec<u32>,
    candidates: Vec<Candidate>,
    /// The nodes that the head has run, and their paths.
    paths: Paths,
    /// States of those nodes behind the head's norm, `[n, H]`.
    states: AlignedBuffer,
    /// What goes into the block: states of parents, and tokens.
    hidden: Vec<f32>,
    tokens: Vec<u32>,
}

/// A token that may be drafted.
#[derive(Clone, Copy, Debug)]
struct Node {
    token: u32,
    parent: Option<u32>,
    /// Logarithm of the weight of its path.
    log_weight: f64,
    /// Its number among those that the head has run.
    run: Option<u32>,
    stays: bool,
}

impl MtpHead {
    /// Drafts a tree behind the last pair's token into `drafts` (cleared first): up to `max_drafts` tokens, at most
    /// `max_depth` behind one another; gives their number.
    ///
    /// `rank` says the likeliest tokens of a step; their weights decide which paths stay. A shape of width 1 gives what [`MtpHead::draft`] gives.
    ///
    /// Fewer tokens come when the cache has no room for more, and none before the first pair. The pairs held stay as they
    /// are.
    ///
    /// # Errors
    /// [`ModelError::ForeignCache`], [`ModelError::TokenId`] for a candidate that is no token, or that of `rank`.
    pub fn draft_tree(
        &self,
        cache: &mut MtpCache,
        shape: &TreeShape,
        (max_drafts, max_depth): (usize, usize),
        rank: &mut Rank<'_>,
        drafts: &mut Drafts,
    ) -> Result<usize> {
        drafts.clear();
        if cache.model_id != self.model_id {
            return Err(ModelError::ForeignCache);
        }
        if cache.is_empty() || max_drafts == 0 {
            return Ok(0);
        }
        let num_pairs = cache.len();
        let widths = &shape.widths[..max_depth.min(shape.widths.len())];
        let result = self.grow(cache, widths, max_drafts, rank);
        cache.kv.truncate(num_pairs);
        result?;
        cache.tree.write(drafts)?;
        Ok(drafts.len())
    }

    /// Fills the nodes of the cache's tree, level by level.
    fn grow(&self, cache: &mut MtpCache, widths: &[usize], max_drafts: usize, rank: &mut Rank<'_>) -> Result<()> {
        let (hidden_size, vocab_size) = (self.fc.out_features(), self.head.out_features());
        let num_pairs = cache.len();
        cache.tree.nodes.clear();
        cache.tree.paths.clear();
        // Nodes of the depth before.
        let mut level = 0..0;
        for (depth, &width) in widths.iter().enumerate() {
            if depth > 0 {
                self.run_level(cache, level.clone());
            }
            let MtpCache { last, scratch, tree, .. } = cache;
            let TreeScratch { nodes, candidates, states, .. } = tree;
            // Those of the level that were run, in order; at first the last pair.
            let first_run = nodes[level.clone()].iter().find_map(|node| node.run);
            let states = match (depth, first_run) {
                (0, _) => &last[..],
                (_, Some(first)) => {
                    let num_run = nodes[level.clone()].iter().filter(|node| node.run.is_some()).count();
                    &states[first as usize * hidden_size..][..num_run * hidden_size]
                }
                (_, None) => break,
            };
            let logits = scratch.logits.resized(states.len() / hidden_size * vocab_size);
            self.head.forward(&self.compute, states, logits);
            let start = nodes.len();
            let mut parents = level.clone();
            for (hidden, logits) in states.chunks_exact(hidden_size).zip(logits.chunks_exact(vocab_size)) {
                let parent = parents.find(|&node| nodes[node].run.is_some());
                // With n pairs the tokens up to position n are known.
                let step = DraftStep { index: depth, position: num_pairs + 1 + depth, hidden, logits };
                rank(step, width, candidates)?;
                candidates.truncate(width);
                for candidate in candidates.iter() {
                    check_tokens(&[candidate.token], self.embed.out_features())?;
                    // Not above 0, whoever ranks: a path weighs no more than a part of it.
                    let log_weight =
                        parent.map_or(0.0, |parent| nodes[parent].log_weight) + candidate.log_weight.min(0.0);
                    let parent = parent.map(|parent| parent as u32);
                    nodes.push(Node { token: candidate.token, parent, log_weight, run: None, stays: true });
                }
            }
            tree.prune(max_drafts);
            level = start..cache.tree.nodes.len();
        }
        Ok(())
    }

    /// Runs the block over the nodes of a level that stay, as many as there is room for.
    fn run_level(&self, cache: &mut MtpCache, level: std::ops::Range<usize>) {
        let hidden_size = self.fc.out_features();
        let MtpCache { kv, last, scratch, tree, .. } = cache;
        let TreeScratch { nodes, paths, states, hidden, tokens, .. } = tree;
        hidden.clear();
        tokens.clear();
        let first = paths.len();
        for node in level {
            if !nodes[node].stays || tokens.len() == kv.capacity() - kv.len() {
                continue;
            }
            let parent = nodes[node].parent.and_then(|parent| nodes[parent as usize].run);
            hidden.extend_from_slice(match parent {
                Some(run) => &states[run as usize * hidden_size..][..hidden_size],
                None => last,
            });
            tokens.push(nodes[node].token);
            nodes[node].run = Some(paths.len() as u32);
            paths.push(parent.map(|run| run as usize));
        }
        if tokens.is_empty() {
            return;
        }
        self.join(scratch, hidden, tokens);
        let states = &mut states.resized(paths.len() * hidden_size)[first * hidden_size..];
        self.run(scratch, kv, tokens.len(), Some(paths), states);
    }
}

impl TreeScratch {
    /// Lets the `max_drafts` nodes stay whose paths weigh most; of equal ones the first.
    ///
    /// A path weighs no more than a part of it from the root, so that the parent of a node that stays stays as well.
    fn prune(&mut self, max_drafts: usize) {
        let Self { nodes, ranked, .. } = self;
        ranked.clear();
        ranked.extend((0..nodes.len() as u32).filter(|&node| nodes[node as usize].stays));
        if ranked.len() <= max_drafts {
            return;
        }
        let key = |node: u32| nodes[node as usize].log_weight;
        ranked.sort_unstable_by(|&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
        for &node in &ranked[max_drafts..] {
            nodes[node as usize].stays = false;
        }
    }

    /// Puts the nodes that stay into `drafts`.
    fn write(&mut self, drafts: &mut Drafts) -> Result<()> {
        // Their numbers among those that stay.
        let Self { nodes, ranked, .. } = self;
        ranked.clear();
        for node in nodes.iter() {
            ranked.push(drafts.len() as u32);
            if node.stays {
                drafts.push_behind(node.parent.map(|parent| ranked[parent as usize] as usize), node.token)?;
            }
        }
        Ok(())
    }
}
