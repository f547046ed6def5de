//! The summary of an evicted windowed key: when it will be idle, and its usage in 64 bits.
//!
//! A state made from a summary never has fewer cells in use than the state that was summarised. Counts are fractions of
//! the limit, rounded up, so that they hold under another limit too. They are exact for limits up to a billion, and for
//! limits of a log up to 128. A log is cut into `LOG_PARTS` parts, and its cells leave up to one part of the window
//! later than they should.

use super::sliding_window::SlidingCounts;
use super::window::WindowState;
use super::{Algorithm, fixed_window};
use crate::pure::limit::Limit;
use crate::pure::time::{Cells, Span, scale_up};

/// The parts of a window in the summary of a log.
pub(super) const LOG_PARTS: usize = 7;
/// The bits of a count. The whole limit is half of the highest count.
const COUNT_BITS: u32 = 31;
const LOG_COUNT_BITS: u32 = 8;
/// The position of the two bits that name the algorithm.
const KIND_SHIFT: u32 = 62;

/// The summary of a [`WindowState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// When the key will be idle, since the Unix epoch.
    pub ends: Span,
    /// The packed counts.
    pub used: u64,
}

/// The unpacked counts of a summary.
enum Counts {
    Fixed(Cells),
    Sliding {
        current: Cells,
        previous: Cells,
    },
    /// Newest first.
    Log([Cells; LOG_PARTS]),
}

impl WindowState {
    /// The summary of this state; `None` if the state is idle or the limit is zero.
    ///
    /// ```
    /// use tidegate_core::pure::{Algorithm, Cells, Limit, LimitFault, Span, Unit, algorithm::window::WindowState};
    /// let limit = Limit::new(5, Unit::Minute, 1, None)?;
    /// for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
    ///     let mut state = WindowState::new(algorithm).unwrap();
    ///     assert_eq!(state.summary(&limit, Span::seconds(7)), None);
    ///     state.charge(&limit, Span::seconds(7), Cells::new(4));
    ///     let summary = state.summary(&limit, Span::seconds(8)).unwrap();
    ///     let again = WindowState::from_summary(algorithm, &limit, summary, Span::seconds(9));
    ///     assert_eq!(again.look(&limit, Span::seconds(9), Cells::ONE).remaining, Cells::ONE);
    /// }
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn summary(&self, limit: &Limit, unix: Span) -> Option<Summary> {
        if self.is_idle(limit, unix) || limit.requests() == 0 {
            return None;
        }
        let (ends, counts) = match self {
            Self::Fixed(state) => (
                unix.plus(state.ends(limit, unix)),
                Counts::Fixed(state.count(limit, unix)),
            ),
            Self::Sliding(state) => {
                let SlidingCounts {
                    ends,
                    current,
                    previous,
                } = state.counts(limit, unix);
                (ends, Counts::Sliding { current, previous })
            }
            Self::Log(state) => (
                unix.plus(state.ends(limit, unix)),
                Counts::Log(state.parts(limit, unix)),
            ),
        };
        Some(Summary {
            ends,
            used: counts.pack(limit),
        })
    }

    /// The state of a key under `algorithm`, restored from its summary.
    pub fn from_summary(algorithm: Algorithm, limit: &Limit, summary: Summary, unix: Span) -> Self {
        let fixed = || Self::Fixed(fixed_window::FixedWindowState::default());
        let mut state = Self::new(algorithm).unwrap_or_else(fixed);
        let left = summary.ends.less(unix);
        if left == Span::ZERO {
            return state;
        }
        let window = limit.window();
        let ahead = |windows| is_ahead(left, window, windows);
        match (algorithm, Counts::unpack(summary.used, limit)) {
            (Algorithm::SlidingWindow, Counts::Sliding { current, previous }) => {
                // The state ends with the window after the one of `current`.
                let at = match ahead(2) {
                    true => summary.ends.less(window).less(window),
                    false => unix,
                };
                let earlier = at.less(window);
                if left > window {
                    state.charge(limit, earlier, previous);
                    state.charge(limit, at, current);
                } else {
                    state.charge(limit, earlier, current);
                }
            }
            (Algorithm::SlidingLog, Counts::Log(parts)) => {
                // The state ends one window after its newest cells. Each part gets its newest time, so that cells leave
                // later, not earlier.
                let newest = summary.ends.less(window);
                let mut at = match ahead(1) {
                    true => newest,
                    false => newest.min(unix),
                };
                let part = part_of(window);
                let moments = parts.map(|cells| {
                    let moment = (at, cells);
                    at = at.less(part);
                    moment
                });
                for (at, cells) in moments.into_iter().rev() {
                    state.charge(limit, at, cells);
                }
            }
            (Algorithm::FixedWindow, Counts::Fixed(cells)) if ahead(1) => {
                state.charge(limit, summary.ends.less(window), cells);
            }
            // A fixed window, or a summary of another algorithm than the present one.
            (_, counts) => state.charge(limit, unix, counts.total()),
        }
        state
    }
}

impl WindowState {
    /// The cells admitted in the calendar's window of `unix`.
    ///
    /// ```
    /// use tidegate_core::pure::{Algorithm, Cells, Limit, LimitFault, Span, Unit, algorithm::window::WindowState};
    /// let limit = Limit::new(5, Unit::Minute, 1, None)?;
    /// let mut state = WindowState::new(Algorithm::SlidingWindow).unwrap();
    /// state.charge(&limit, Span::seconds(7), Cells::new(4));
    /// assert_eq!(state.cells_in_window(&limit, Span::seconds(59)), Cells::new(4));
    /// assert_eq!(state.cells_in_window(&limit, Span::seconds(60)), Cells::ZERO);
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn cells_in_window(&self, limit: &Limit, unix: Span) -> Cells {
        match self {
            Self::Fixed(state) => state.count(limit, unix),
            Self::Sliding(state) => state.counts(limit, unix).current,
            Self::Log(state) => state.count(limit, unix),
        }
    }
}

impl Counts {
    fn pack(&self, limit: &Limit) -> u64 {
        let count = |cells| part(cells, limit, COUNT_BITS);
        match self {
            Self::Fixed(cells) => count(*cells),
            Self::Sliding { current, previous } => {
                1 << KIND_SHIFT | count(*previous) << COUNT_BITS | count(*current)
            }
            Self::Log(parts) => {
                let packed = parts.iter().rev().fold(0, |packed, cells| {
                    packed << LOG_COUNT_BITS | part(*cells, limit, LOG_COUNT_BITS)
                });
                2 << KIND_SHIFT | packed
            }
        }
    }

    fn unpack(used: u64, limit: &Limit) -> Self {
        let count = |used: u64| whole(used, limit, COUNT_BITS);
        match used >> KIND_SHIFT {
            0 => Self::Fixed(count(used)),
            1 => Self::Sliding {
                current: count(used),
                previous: count(used >> COUNT_BITS),
            },
            _ => {
                let mut left = used;
                Self::Log([(); LOG_PARTS].map(|()| {
                    let cells = whole(left, limit, LOG_COUNT_BITS);
                    left >>= LOG_COUNT_BITS;
                    cells
                }))
            }
        }
    }

    fn total(&self) -> Cells {
        match self {
            Self::Fixed(cells) => *cells,
            Self::Sliding { current, previous } => current.plus(*previous),
            Self::Log(parts) => parts
                .iter()
                .fold(Cells::ZERO, |total, cells| total.plus(*cells)),
        }
    }
}

/// Whether the clock was ahead by up to one window when the summary was made: the state ends after `left`, although it
/// should end within so many windows. If the clock was further ahead, only the number of used cells is known.
fn is_ahead(left: Span, window: Span, windows: u64) -> bool {
    let whole = |windows| window.times(Cells::new(windows));
    left > whole(windows) && left <= whole(windows.saturating_add(1))
}

/// The length of one part of a log, rounded up.
pub(super) fn part_of(window: Span) -> Span {
    let parts = u64::try_from(LOG_PARTS).unwrap_or(1);
    Span::nanos(scale_up(window.get(), parts, 1))
}

/// `cells` as a fraction of the limit in so many bits, rounded up. The whole limit is half of the highest number.
fn part(cells: Cells, limit: &Limit, bits: u32) -> u64 {
    let most = u64::MAX >> u64::BITS.saturating_sub(bits);
    scale_up(cells.get(), limit.requests(), most.div_ceil(2)).min(most)
}

/// The cells of such a fraction.
fn whole(part: u64, limit: &Limit, bits: u32) -> Cells {
    let most = u64::MAX >> u64::BITS.saturating_sub(bits);
    let cells = u128::from(part & most).saturating_mul(u128::from(limit.requests()));
    let cells = cells >> bits.saturating_sub(1);
    Cells::new(u64::try_from(cells).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pure::limit::Unit;
    use crate::pure::time::SECOND;
    use proptest::prelude::*;

    const ALGORITHMS: [Algorithm; 3] = [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
    ];
    const START: u64 = 1_700_000_040 * SECOND;

    fn used(state: &WindowState, limit: &Limit, unix: Span) -> Cells {
        let left = state.look(limit, unix, Cells::ZERO).remaining;
        Cells::new(limit.requests()).less(left)
    }

    proptest! {
        /// Whenever the key returns, its restored state allows no more than the true one, and in a fixed or sliding
        /// window no less either.
        #[test]
        fn a_summary_never_forgets(
            algorithm in prop::sample::select(&ALGORITHMS[..]),
            requests in prop::sample::select(&[1_u64, 5, 100, 1_000, 5_000_000_000][..]),
            steps in prop::collection::vec((0..70 * SECOND, 0..1_200_u64), 1..12),
            away in 0..130 * SECOND,
            later in 0..130 * SECOND,
        ) {
            let limit = Limit::new(requests, Unit::Minute, 1, None).unwrap();
            let mut state = WindowState::new(algorithm).unwrap();
            let mut unix = START;
            for (pause, parts) in steps {
                unix += pause;
                let cost = Cells::new(scale_up(parts, 1_000, requests));
                state.decide(&limit, Span::nanos(unix), cost);
            }
            let back = Span::nanos(unix + away);
            let again = match state.summary(&limit, Span::nanos(unix)) {
                Some(summary) => WindowState::from_summary(algorithm, &limit, summary, back),
                None => WindowState::new(algorithm).unwrap(),
            };
            for at in [back, back.plus(Span::nanos(later))] {
                let (now, then) = (used(&again, &limit, at), used(&state, &limit, at));
                prop_assert!(now >= then, "{now} of {then} at {at}");
                let is_exact = algorithm != Algorithm::SlidingLog && requests <= 1_000_000_000;
                prop_assert!(!is_exact || now == then, "{now} instead of {then} at {at}");
            }
        }

        /// The restored state of a log has no more in use than the true one had one part of the window earlier.
        #[test]
        fn of_a_log_cells_leave_a_part_later_at_most(
            steps in prop::collection::vec((0..20 * SECOND, 0..3_u64), 1..12),
            away in 0..90 * SECOND,
        ) {
            let limit = Limit::new(20, Unit::Minute, 1, None).unwrap();
            let mut state = WindowState::new(Algorithm::SlidingLog).unwrap();
            let mut unix = START;
            for (pause, cost) in steps {
                unix += pause;
                state.decide(&limit, Span::nanos(unix), Cells::new(cost));
            }
            let unix = Span::nanos(unix);
            let back = unix.plus(Span::nanos(away));
            if let Some(summary) = state.summary(&limit, unix) {
                let again = WindowState::from_summary(Algorithm::SlidingLog, &limit, summary, back);
                let earlier = back.less(part_of(limit.window()));
                let then = match earlier > unix {
                    true => used(&state, &limit, earlier),
                    false => used(&state, &limit, unix),
                };
                prop_assert!(used(&again, &limit, back) <= then);
            }
        }
    }

    #[test]
    fn another_limit_and_another_algorithm_take_it_as_a_part_of_theirs() {
        let old = Limit::new(10, Unit::Minute, 1, None).unwrap();
        let new = Limit::new(100, Unit::Hour, 1, None).unwrap();
        let unix = Span::nanos(START);
        for from in ALGORITHMS {
            let mut state = WindowState::new(from).unwrap();
            state.charge(&old, unix, Cells::new(5));
            let summary = state.summary(&old, unix).unwrap();
            for to in ALGORITHMS {
                let again = WindowState::from_summary(to, &new, summary, unix);
                // The window of an hour began earlier, so it contains what was used a minute ago.
                let most = match (from, to) {
                    (Algorithm::SlidingWindow, Algorithm::SlidingWindow) => 0..=50,
                    _ => 50..=50,
                };
                let used = used(&again, &new, unix).get();
                assert!(
                    most.contains(&used),
                    "{used} from {} to {}",
                    from.name(),
                    to.name()
                );
            }
        }
    }
}
