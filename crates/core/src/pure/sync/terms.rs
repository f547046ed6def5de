//! The terms under which the store counts a key, and what a pod knows of the key's usage.
//!
//! A pod sends both with every delta: the store has no rules of its own. `call.rs` has the messages they travel in.

use super::Share;
use crate::pure::{Cells, Limit, Span};

/// The longest debt of a rule that does not charge denied checks, whatever its limit.
const DEBT_MAX: Span = Span::seconds(60);
/// The longest debt that [`Terms::published_every`] asks for.
const DEBT_BETWEEN_NEWS_MAX: Span = Span::seconds(2);
/// The most time's worth of a limit that a pod assumes to be used when it knows nothing of a key.
const ASSUMED_MAX: Span = Span::seconds(60);

/// The terms under which the store counts a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terms {
    /// The store keeps a level.
    Level {
        /// The time that one cell costs.
        interval: Span,
        /// The level that the bucket may reach.
        capacity: Span,
        /// How far above the capacity the store books overshoot.
        debt_max: Span,
    },
    /// The store counts cells per window, aligned to the epoch.
    Window {
        /// The length of a window.
        window: Span,
        /// The cells that one window admits.
        requests: Cells,
        /// Whether the cells of the window before count too, weighted by the part of it that is still in sight. Only a
        /// [`Take`](super::Take) needs to know.
        sliding: bool,
        /// Whether cells that were admitted above the limit count again in the next window, up to a tenth of the limit.
        carries_over: bool,
    },
}

impl Terms {
    /// A bucket of `limit`. Its debt is at most one burst and at most a minute, but at least one cell.
    pub fn level(limit: &Limit) -> Self {
        Self::Level {
            interval: limit.interval(),
            capacity: limit.capacity(),
            debt_max: limit.capacity().min(DEBT_MAX).max(limit.interval()),
        }
    }

    /// A bucket of `limit` whose rule charges the checks that it denies. Its debt is at most one burst, however long
    /// that takes to drain: a day's budget is repaid in days.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Terms;
    /// use tidegate_core::pure::{Limit, LimitFault, Span, Unit};
    /// let limit = Limit::new(1_000_000, Unit::Day, 1, None)?;
    /// assert_eq!(Terms::charging(&limit).level_max(), Span::seconds(2 * 86_400));
    /// assert_eq!(Terms::level(&limit).level_max(), Span::seconds(86_400 + 60));
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn charging(limit: &Limit) -> Self {
        Self::Level {
            interval: limit.interval(),
            capacity: limit.capacity(),
            debt_max: limit.capacity().max(limit.interval()),
        }
    }

    /// The terms of a key whose level is published only every `news_step`. The other pods admit cells in between, so
    /// the store books debt for two such steps, but for at most two seconds.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Terms;
    /// use tidegate_core::pure::{Limit, Span, Unit};
    /// let terms = Terms::level(&Limit::new(30, Unit::Second, 1, None).expect("sound"));
    /// assert_eq!(terms.published_every(Span::nanos(20_000_000)), terms);
    /// let debt_max = |terms| match terms { Terms::Level { debt_max, .. } => debt_max, Terms::Window { .. } => Span::ZERO };
    /// assert_eq!(debt_max(terms.published_every(Span::nanos(700_000_000))), Span::nanos(1_400_000_000));
    /// assert_eq!(debt_max(terms.published_every(Span::seconds(5))), Span::seconds(2));
    /// ```
    #[must_use]
    pub fn published_every(self, news_step: Span) -> Self {
        match self {
            Self::Level {
                interval,
                capacity,
                debt_max,
            } => Self::Level {
                interval,
                capacity,
                debt_max: debt_max.max(news_step.plus(news_step).min(DEBT_BETWEEN_NEWS_MAX)),
            },
            Self::Window { .. } => self,
        }
    }

    /// The highest level that the store books. For windows, their length.
    pub const fn level_max(&self) -> Span {
        match self {
            Self::Level {
                capacity, debt_max, ..
            } => capacity.plus(*debt_max),
            Self::Window { window, .. } => *window,
        }
    }

    /// Windows of `limit`, each counted by itself.
    pub const fn window(limit: &Limit) -> Self {
        Self::Window {
            window: limit.window(),
            requests: Cells::new(limit.requests()),
            sliding: false,
            carries_over: true,
        }
    }

    /// Windows of `limit` that slide.
    pub const fn sliding(limit: &Limit) -> Self {
        Self::Window {
            window: limit.window(),
            requests: Cells::new(limit.requests()),
            sliding: true,
            carries_over: true,
        }
    }

    /// The terms of a rule that charges the checks that it denies. Its windows count denied cells too, and those must not
    /// make the next window smaller.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Terms;
    /// use tidegate_core::pure::{Limit, LimitFault, Unit};
    /// let terms = Terms::window(&Limit::new(10, Unit::Second, 1, None)?);
    /// assert!(matches!(terms, Terms::Window { carries_over: true, .. }));
    /// assert!(matches!(terms.without_carry_over(), Terms::Window { carries_over: false, .. }));
    /// # Ok::<(), LimitFault>(())
    /// ```
    #[must_use]
    pub const fn without_carry_over(self) -> Self {
        match self {
            Self::Window {
                window,
                requests,
                sliding,
                ..
            } => Self::Window {
                window,
                requests,
                sliding,
                carries_over: false,
            },
            Self::Level { .. } => self,
        }
    }
}

/// How full a key is, as far as a pod knows. The store starts again from there when it finds a value that is not ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownUsage {
    /// The level of a bucket; zero for windows.
    pub level: Span,
    /// The cells of the current window; zero for a level.
    pub cells: Cells,
}

impl KnownUsage {
    /// What a pod assumes of a key that it knows nothing of: the key is full, but at most a minute's worth of its
    /// limit.
    ///
    /// ```
    /// use tidegate_core::pure::sync::{KnownUsage, Terms};
    /// use tidegate_core::pure::{Cells, Limit, Span, Unit};
    /// let limit = |unit| Limit::new(100, unit, 1, None).expect("sound");
    /// assert_eq!(KnownUsage::assumed(&Terms::level(&limit(Unit::Second))).level, Span::seconds(1));
    /// assert_eq!(KnownUsage::assumed(&Terms::level(&limit(Unit::Hour))).level, Span::seconds(60));
    /// assert_eq!(KnownUsage::assumed(&Terms::window(&limit(Unit::Minute))).cells, Cells::new(100));
    /// assert_eq!(KnownUsage::assumed(&Terms::window(&limit(Unit::Hour))).cells, Cells::new(2));
    /// ```
    pub fn assumed(terms: &Terms) -> Self {
        match terms {
            Terms::Level { capacity, .. } => Self {
                level: (*capacity).min(ASSUMED_MAX),
                cells: Cells::ZERO,
            },
            Terms::Window {
                window, requests, ..
            } => Self {
                level: Span::ZERO,
                cells: Share::of(ASSUMED_MAX.get(), window.get()).of_cells(*requests),
            },
        }
    }

    /// The usage that is left after `elapsed`: a level drains, and a window ends.
    #[must_use]
    pub(super) fn later(self, elapsed: Span, terms: &Terms) -> Self {
        match terms {
            Terms::Level { .. } => Self {
                level: self.level.less(elapsed),
                ..self
            },
            Terms::Window { window, .. } if elapsed >= *window => Self::default(),
            Terms::Window { .. } => self,
        }
    }
}
