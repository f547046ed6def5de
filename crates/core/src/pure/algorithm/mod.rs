//! The algorithms, one small file each, behind one shape: a state, the time and a cost go in; the state after it and
//! a [`Standing`] come out.
//!
//! Which one a rule uses is its [`Algorithm`]. Those of the level family ([`gcra`], [`token_bucket`],
//! [`leaky_bucket`]) keep a single point in time, their theoretical arrival time; the windowed ones ([`fixed_window`],
//! [`sliding_window`], [`sliding_log`]) keep a [`WindowState`](window::WindowState).

pub mod fixed_window;
pub mod gcra;
pub mod leaky_bucket;
pub mod sliding_log;
pub mod sliding_window;
pub mod summary;
pub mod token_bucket;
pub mod window;

use super::time::{Cells, Span};

/// How a rule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// A burst at once, then one cell per interval.
    #[default]
    Gcra,
    /// The same, told as tokens that refill.
    TokenBucket,
    /// A queue that drains one cell per interval: what is admitted is told how long to wait for its turn.
    LeakyBucket,
    /// So many per calendar window; twice as many can pass around a boundary.
    FixedWindow,
    /// The count of this window plus the weighted count of the one before.
    SlidingWindow,
    /// So many in any window ending now.
    SlidingLog,
}

impl Algorithm {
    /// Every algorithm, in the order of the documentation.
    pub const ALL: [Self; 6] = [
        Self::Gcra,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
    ];

    /// Its name in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gcra => "gcra",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
        }
    }

    /// Whether it counts in windows, which have no burst, rather than keeping a level.
    pub const fn is_windowed(self) -> bool {
        match self {
            Self::Gcra | Self::TokenBucket | Self::LeakyBucket => false,
            Self::FixedWindow | Self::SlidingWindow | Self::SlidingLog => true,
        }
    }
}

/// What a decision tells its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether the check may pass.
    pub allowed: bool,
    /// Cells that would still pass right now, after this decision.
    pub remaining: Cells,
    /// Of a denial: the wait after which the same check passes if nobody else comes. `None`: no wait helps.
    pub retry_after: Option<Span>,
    /// Until the state is as if it had never been used.
    pub reset_after: Span,
    /// Of an admission by a shaping algorithm: how long to hold it back.
    pub delay: Span,
}
