//! The algorithms, one file each. All have the same shape: a state, the time and a cost go in; the next state and a
//! [`Standing`] come out.
//!
//! A rule names its [`Algorithm`]. The level family ([`gcra`], [`token_bucket`], [`leaky_bucket`]) keeps a single point
//! in time, the theoretical arrival time. The windowed family ([`fixed_window`], [`sliding_window`], [`sliding_log`])
//! keeps a [`WindowState`](window::WindowState).

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
    /// The same, described as tokens that refill.
    TokenBucket,
    /// A queue that drains one cell per interval: an admitted check learns how long to wait for its turn.
    LeakyBucket,
    /// So many cells per calendar window; twice as many can pass around a boundary.
    FixedWindow,
    /// So many cells by an estimate: the count of this window plus the weighted count of the one before.
    SlidingWindow,
    /// So many cells in any window that ends now.
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

    /// Its name in the configuration.
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

    /// Whether it counts in windows, which have no burst. Otherwise it keeps a level.
    pub const fn is_windowed(self) -> bool {
        match self {
            Self::Gcra | Self::TokenBucket | Self::LeakyBucket => false,
            Self::FixedWindow | Self::SlidingWindow | Self::SlidingLog => true,
        }
    }
}

/// How a key stands after a decision: what the caller learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether the check may pass.
    pub allowed: bool,
    /// The cells that would still pass right now, after this decision.
    pub remaining: Cells,
    /// For a denial: the wait after which the same check passes if nobody else uses the key. `None`: no wait helps.
    pub retry_after: Option<Span>,
    /// The time until the state is as if the key had never been used.
    pub reset_after: Span,
    /// For an admission by the leaky bucket: how long the caller has to wait for its turn.
    pub delay: Span,
}
