//! The state of any windowed algorithm.
//!
//! Windows are aligned to the Unix epoch, so time here is a length since the epoch, and it may step back. If the state
//! is a little ahead of a check, the check is decided at the state's time: no cell is admitted twice. If the state is
//! more than a whole window ahead, somebody has set the calendar back: the state starts afresh, and nobody is locked
//! out.
//!
//! A decision is a [`look`](WindowState::look) and, if allowed, a [`charge`](WindowState::charge): a denial changes
//! nothing. The files of the algorithms state the bounds of their memory.

use super::{Algorithm, Standing, fixed_window, sliding_log, sliding_window};
use crate::pure::limit::Limit;
use crate::pure::time::{Cells, Span, scale_up};

/// The state of one key under a windowed rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowState {
    /// One count.
    Fixed(fixed_window::FixedWindowState),
    /// Two counts.
    Sliding(sliding_window::SlidingWindowState),
    /// A list of admissions with their times.
    Log(sliding_log::SlidingLogState),
}

impl WindowState {
    /// The state of an unused key; `None` if the algorithm keeps a level instead.
    ///
    /// ```
    /// use tidegate_core::pure::{Algorithm, algorithm::window::WindowState};
    /// assert!(WindowState::new(Algorithm::SlidingLog).is_some());
    /// assert!(WindowState::new(Algorithm::Gcra).is_none());
    /// ```
    pub fn new(algorithm: Algorithm) -> Option<Self> {
        match algorithm {
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => None,
            Algorithm::FixedWindow => Some(Self::Fixed(fixed_window::FixedWindowState::default())),
            Algorithm::SlidingWindow => {
                Some(Self::Sliding(sliding_window::SlidingWindowState::default()))
            }
            Algorithm::SlidingLog => Some(Self::Log(sliding_log::SlidingLogState::default())),
        }
    }

    /// Admits `cost` cells if they fit. A denial changes nothing.
    ///
    /// ```
    /// use tidegate_core::pure::{Algorithm, Cells, Limit, LimitFault, Span, Unit, algorithm::window::WindowState};
    /// let limit = Limit::new(1, Unit::Minute, 1, None)?;
    /// let mut state = WindowState::new(Algorithm::FixedWindow).unwrap();
    /// assert!(state.decide(&limit, Span::seconds(0), Cells::ONE).allowed);
    /// let denied = state.decide(&limit, Span::seconds(15), Cells::ONE);
    /// assert_eq!(denied.retry_after, Some(Span::seconds(45)));
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn decide(&mut self, limit: &Limit, unix: Span, cost: Cells) -> Standing {
        let standing = self.look(limit, unix, cost);
        if !standing.allowed {
            return standing;
        }
        self.charge(limit, unix, cost);
        Standing {
            remaining: standing.remaining.less(cost),
            reset_after: self.ends(limit, unix),
            ..standing
        }
    }

    /// What [`decide`](Self::decide) would answer, without taking cells: `remaining` is what fits now.
    ///
    /// ```
    /// use tidegate_core::pure::{Algorithm, Cells, Limit, LimitFault, Span, Unit, algorithm::window::WindowState};
    /// let limit = Limit::new(3, Unit::Minute, 1, None)?;
    /// let state = WindowState::new(Algorithm::SlidingWindow).unwrap();
    /// let standing = state.look(&limit, Span::seconds(0), Cells::ONE);
    /// assert_eq!((standing.allowed, standing.remaining), (true, Cells::new(3)));
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn look(&self, limit: &Limit, unix: Span, cost: Cells) -> Standing {
        match self {
            Self::Fixed(state) => state.look(limit, unix, cost),
            Self::Sliding(state) => state.look(limit, unix, cost),
            Self::Log(state) => state.look(limit, unix, cost),
        }
    }

    /// Counts `cost` cells whether or not they fit, for `count_rejected`. A cost of zero changes nothing.
    ///
    /// ```
    /// use tidegate_core::pure::{Algorithm, Cells, Limit, LimitFault, Span, Unit, algorithm::window::WindowState};
    /// let limit = Limit::new(3, Unit::Minute, 1, None)?;
    /// let mut state = WindowState::new(Algorithm::SlidingLog).unwrap();
    /// state.charge(&limit, Span::seconds(0), Cells::new(4));
    /// assert!(!state.look(&limit, Span::seconds(59), Cells::ONE).allowed);
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn charge(&mut self, limit: &Limit, unix: Span, cost: Cells) {
        if cost == Cells::ZERO {
            return;
        }
        match self {
            Self::Fixed(state) => state.charge(limit, unix, cost),
            Self::Sliding(state) => state.charge(limit, unix, cost),
            Self::Log(state) => state.charge(limit, unix, cost),
        }
    }

    /// Undoes an admission of `cost` cells at `unix`. If the window of the admission is over, nothing changes.
    ///
    /// ```
    /// use tidegate_core::pure::{Algorithm, Cells, Limit, LimitFault, Span, Unit, algorithm::window::WindowState};
    /// let limit = Limit::new(3, Unit::Minute, 1, None)?;
    /// let mut state = WindowState::new(Algorithm::FixedWindow).unwrap();
    /// state.decide(&limit, Span::seconds(7), Cells::new(2));
    /// state.give_back(&limit, Span::seconds(7), Cells::new(2));
    /// assert!(state.is_idle(&limit, Span::seconds(7)));
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn give_back(&mut self, limit: &Limit, unix: Span, cost: Cells) {
        match self {
            Self::Fixed(state) => state.give_back(limit, unix, cost),
            Self::Sliding(state) => state.give_back(limit, unix, cost),
            Self::Log(state) => state.give_back(limit, unix, cost),
        }
    }

    /// Refunds `cost` cells, whenever they were admitted, but at most those counted in the window of `unix`. Returns
    /// how many it refunded.
    ///
    /// ```
    /// use tidegate_core::pure::{Algorithm, Cells, Limit, LimitFault, Span, Unit, algorithm::window::WindowState};
    /// let limit = Limit::new(3, Unit::Minute, 1, None)?;
    /// for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
    ///     let mut state = WindowState::new(algorithm).unwrap();
    ///     state.decide(&limit, Span::seconds(7), Cells::new(3));
    ///     state.refund(&limit, Span::seconds(9), Cells::new(2));
    ///     assert_eq!(state.look(&limit, Span::seconds(9), Cells::ZERO).remaining, Cells::new(2));
    ///     assert_eq!(state.refund(&limit, Span::seconds(9), Cells::new(9)), Cells::ONE);
    ///     assert_eq!(state.look(&limit, Span::seconds(9), Cells::ZERO).remaining, Cells::new(3));
    /// }
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn refund(&mut self, limit: &Limit, unix: Span, cost: Cells) -> Cells {
        match self {
            Self::Fixed(state) => state.refund(limit, unix, cost),
            Self::Sliding(state) => state.refund(limit, unix, cost),
            Self::Log(state) => state.refund(limit, unix, cost),
        }
    }

    /// Converts the state to another limit: half full stays half full, rounded up.
    ///
    /// ```
    /// use tidegate_core::pure::{Algorithm, Cells, Limit, LimitFault, Span, Unit, algorithm::window::WindowState};
    /// let (old, new) = (Limit::new(10, Unit::Minute, 1, None)?, Limit::new(300, Unit::Hour, 1, None)?);
    /// let mut state = WindowState::new(Algorithm::SlidingLog).unwrap();
    /// state.decide(&old, Span::seconds(7), Cells::new(5));
    /// state.rescale(&old, &new, Span::seconds(8));
    /// assert_eq!(state.look(&new, Span::seconds(8), Cells::ONE).remaining, Cells::new(150));
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn rescale(&mut self, from: &Limit, to: &Limit, unix: Span) {
        match self {
            Self::Fixed(state) => state.rescale(from, to, unix),
            Self::Sliding(state) => state.rescale(from, to, unix),
            Self::Log(state) => state.rescale(from, to, unix),
        }
    }

    /// Whether the state equals that of an unused key, so that the key may be dropped.
    ///
    /// ```
    /// use tidegate_core::pure::{Algorithm, Cells, Limit, LimitFault, Span, Unit, algorithm::window::WindowState};
    /// let limit = Limit::new(3, Unit::Minute, 1, None)?;
    /// let mut state = WindowState::new(Algorithm::SlidingLog).unwrap();
    /// state.decide(&limit, Span::seconds(7), Cells::ONE);
    /// assert!(!state.is_idle(&limit, Span::seconds(66)));
    /// assert!(state.is_idle(&limit, Span::seconds(67)));
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn is_idle(&self, limit: &Limit, unix: Span) -> bool {
        self.ends(limit, unix) == Span::ZERO
    }

    /// The time until the state is idle.
    ///
    /// ```
    /// use tidegate_core::pure::{Algorithm, Cells, Limit, LimitFault, Span, Unit, algorithm::window::WindowState};
    /// let limit = Limit::new(3, Unit::Minute, 1, None)?;
    /// let mut state = WindowState::new(Algorithm::SlidingWindow).unwrap();
    /// state.decide(&limit, Span::seconds(10), Cells::ONE);
    /// assert_eq!(state.ends(&limit, Span::seconds(10)), Span::seconds(110));
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn ends(&self, limit: &Limit, unix: Span) -> Span {
        match self {
            Self::Fixed(state) => state.ends(limit, unix),
            Self::Sliding(state) => state.ends(limit, unix),
            Self::Log(state) => state.ends(limit, unix),
        }
    }
}

/// The position of a check in the calendar, relative to the window of a state.
pub(super) struct WindowPosition {
    /// The window in which the check is decided, counted from the epoch.
    pub(super) index: u64,
    /// The time since that window began.
    pub(super) elapsed: Span,
    /// How far the state is ahead of the check.
    pub(super) lag: Span,
    /// The windows that began since the state's own. `u64::MAX` if somebody has set the calendar back: then the state
    /// forgets everything.
    pub(super) passed: u64,
}

impl WindowPosition {
    /// The position of `unix` for a state in window `held`.
    pub(super) fn of(limit: &Limit, unix: Span, held: u64) -> Self {
        let index = index(limit, unix);
        let elapsed = unix.less(limit.window().times(Cells::new(index)));
        if index.checked_add(1) == Some(held) {
            return Self {
                index: held,
                elapsed: Span::ZERO,
                lag: limit.window().less(elapsed),
                passed: 0,
            };
        }
        Self {
            index,
            elapsed,
            lag: Span::ZERO,
            passed: index.checked_sub(held).unwrap_or(u64::MAX),
        }
    }

    /// The time from the check to the end of the window.
    pub(super) fn left(&self, limit: &Limit) -> Span {
        limit.window().less(self.elapsed).plus(self.lag)
    }
}

/// The window that contains `unix`, counted from the epoch.
pub(super) fn index(limit: &Limit, unix: Span) -> u64 {
    unix.whole(limit.window()).get()
}

/// Converts `cells` under `from` to cells under `to`, rounded up. Cells counted under a limit of zero fill any other
/// limit.
pub(super) fn scaled(cells: Cells, from: &Limit, to: &Limit) -> Cells {
    match (cells, from.requests()) {
        (Cells::ZERO, _) => Cells::ZERO,
        (_, 0) => Cells::new(to.requests()),
        (cells, requests) => Cells::new(scale_up(cells.get(), requests, to.requests())),
    }
}
