//! Who drafts, and how much.

use std::str::FromStr;

use anyhow::{Context, Result};
use clap::ValueEnum;
use undraft_model::drafters::{
    Adaptive, AdaptiveReport, Drafter, LookupDrafter, LookupFirst, LookupOptions, MtpDrafter,
};
use undraft_model::model::TreeShape;

use super::runner::Runner;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DraftArg {
    /// Plain decoding.
    None,
    /// The model's own head for the token after the next.
    Mtp,
    /// A tree from that head: the likeliest tokens at each depth.
    MtpTree,
    /// What followed the last n tokens when they came before.
    Lookup,
    /// By lookup where the last 6 tokens or more came before, else by the head.
    #[value(name = "mtp+lookup")]
    MtpLookup,
}

impl DraftArg {
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mtp => "mtp",
            Self::MtpTree => "mtp-tree",
            Self::Lookup => "lookup",
            Self::MtpLookup => "mtp+lookup",
        }
    }

    /// Drafts a round where nobody says how many.
    fn default_window(self) -> usize {
        match self {
            Self::None => 0,
            Self::Mtp | Self::Lookup | Self::MtpLookup => 3,
            Self::MtpTree => 6,
        }
    }
}

/// Drafts a round: a number, or what pays up to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowArg {
    Fixed(usize),
    Auto(usize),
}

impl WindowArg {
    const MAX: usize = 64;
    /// What `auto` goes up to.
    const AUTO: usize = 8;

    pub fn new(given: Option<Self>, draft: DraftArg) -> Self {
        match (draft, given) {
            (DraftArg::None, _) => Self::Fixed(0),
            (draft, None) => Self::Fixed(draft.default_window()),
            (_, Some(given)) => given,
        }
    }

    pub fn max(self) -> usize {
        match self {
            Self::Fixed(max) | Self::Auto(max) => max,
        }
    }
}

impl FromStr for WindowArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("`--window` is {text}, expected 0..={max}, auto or auto:1..={max}", max = Self::MAX);
        let number = |text: &str, min| text.parse().ok().filter(|n| (min..=Self::MAX).contains(n)).ok_or_else(expected);
        match text.strip_prefix("auto") {
            Some("") => Ok(Self::Auto(Self::AUTO)),
            Some(max) => number(max.strip_prefix(':').ok_or_else(expected)?, 1).map(Self::Auto),
            None => number(text, 0).map(Self::Fixed),
        }
    }
}

/// The drafter of a run over states that lie as `H`.
pub enum Speculation<'m, H: ?Sized> {
    None,
    Fixed(Box<dyn Drafter<H> + 'm>),
    Auto(Box<Adaptive<Box<dyn Drafter<H> + 'm>>>),
}

impl<'m, H: ?Sized + 'm> Speculation<'m, H> {
    /// A drafter for sequences of up to `capacity` tokens, and the bytes that it takes beside the cache.
    pub fn new<M: Runner<Hidden = H>>(
        model: &'m M,
        draft: DraftArg,
        window: WindowArg,
        tree_widths: Option<&[usize]>,
        capacity: usize,
    ) -> Result<(Self, usize)> {
        let no_head = || {
            format!(
                "`--draft {}` needs a model with `mtp.*` tensors, this one has none; use `lookup` or `none`",
                draft.name()
            )
        };
        let (drafter, memory): (Box<dyn Drafter<H> + 'm>, usize) = match draft {
            DraftArg::None => return Ok((Self::None, 0)),
            DraftArg::Lookup => (Box::new(LookupDrafter::new(LookupOptions::default())), 0),
            DraftArg::Mtp => model.mtp(capacity)?.with_context(no_head)?,
            DraftArg::MtpTree => {
                let shape = tree_widths.map_or_else(|| Ok(TreeShape::default()), TreeShape::new)?;
                model.mtp_tree(capacity, shape)?.with_context(no_head)?
            }
            DraftArg::MtpLookup => {
                let (mtp, memory) = model.mtp(capacity)?.with_context(no_head)?;
                (Box::new(LookupFirst::new(LookupFirst::<MtpDrafter<'_>>::MIN_MATCH, mtp)?), memory)
            }
        };
        Ok(match window {
            WindowArg::Fixed(_) => (Self::Fixed(drafter), memory),
            WindowArg::Auto(max) => (Self::Auto(Box::new(Adaptive::new(drafter, max))), memory),
        })
    }

    pub fn drafter(&mut self) -> Option<&mut (dyn Drafter<H> + 'm)> {
        match self {
            Self::None => None,
            Self::Fixed(drafter) => Some(&mut **drafter),
            Self::Auto(drafter) => Some(&mut **drafter),
        }
    }

    /// What an adaptive window came to.
    pub fn report(&self) -> Option<&AdaptiveReport> {
        match self {
            Self::Auto(drafter) => Some(drafter.report()),
            _ => None,
        }
    }
}
