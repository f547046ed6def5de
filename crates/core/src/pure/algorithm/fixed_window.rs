//! Fixed window: so many cells per window of the calendar, aligned to the Unix epoch (UTC).
//!
//! The state is one count, which ends with its window. Around a boundary twice the limit can pass within a moment: at
//! the end of one window and at the start of the next. The sliding algorithms avoid that.

use super::Standing;
use super::window::{WindowPosition, index, scaled};
use crate::pure::limit::Limit;
use crate::pure::time::{Cells, Span};

/// The window of the last admission, and the cells counted in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedWindowState {
    index: u64,
    count: Cells,
}

impl FixedWindowState {
    /// The position of `unix` and the cells that count there.
    fn seen(&self, limit: &Limit, unix: Span) -> (WindowPosition, Cells) {
        let position = WindowPosition::of(limit, unix, self.index);
        let count = match position.passed {
            0 => self.count,
            _ => Cells::ZERO,
        };
        (position, count)
    }

    /// The cells that count at `unix`.
    pub(super) fn count(&self, limit: &Limit, unix: Span) -> Cells {
        self.seen(limit, unix).1
    }

    pub(super) fn look(&self, limit: &Limit, unix: Span, cost: Cells) -> Standing {
        let most = Cells::new(limit.requests());
        let (position, count) = self.seen(limit, unix);
        let allowed = count.plus(cost) <= most;
        Standing {
            allowed,
            remaining: most.less(count),
            retry_after: (!allowed && cost <= most).then(|| position.left(limit)),
            reset_after: self.ends(limit, unix),
            delay: Span::ZERO,
        }
    }

    pub(super) fn charge(&mut self, limit: &Limit, unix: Span, cost: Cells) {
        let (position, count) = self.seen(limit, unix);
        *self = Self {
            index: position.index,
            count: count.plus(cost),
        };
    }

    pub(super) fn give_back(&mut self, limit: &Limit, unix: Span, cost: Cells) {
        if index(limit, unix) == self.index {
            self.count = self.count.less(cost);
        }
    }

    /// Refunds cells of the window of `unix`. Returns how many.
    pub(super) fn refund(&mut self, limit: &Limit, unix: Span, cost: Cells) -> Cells {
        let before = self.count;
        self.give_back(limit, unix, cost);
        before.less(self.count)
    }

    pub(super) fn rescale(&mut self, from: &Limit, to: &Limit, unix: Span) {
        let (position, count) = self.seen(from, unix);
        *self = Self {
            index: index(to, unix.plus(position.lag)),
            count: scaled(count, from, to),
        };
    }

    pub(super) fn ends(&self, limit: &Limit, unix: Span) -> Span {
        match self.seen(limit, unix) {
            (_, Cells::ZERO) => Span::ZERO,
            (position, _) => position.left(limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, window::WindowState};
    use super::*;
    use crate::pure::limit::Unit;

    /// Noon of some day, in seconds since the epoch.
    const NOON: u64 = 20_000 * 86_400 + 12 * 3_600;

    fn five_a_minute() -> Limit {
        Limit::new(5, Unit::Minute, 1, None).unwrap()
    }

    /// Feeds `(seconds after noon, cost)` to five a minute and spells the decisions: `a`llow or `d`eny.
    fn check(checks: &[(u64, u64)], expected: &str) {
        let mut state = WindowState::new(Algorithm::FixedWindow).unwrap();
        let seen: String = checks
            .iter()
            .map(|&(at, cost)| {
                let unix = Span::seconds(NOON + at);
                let standing = state.decide(&five_a_minute(), unix, Cells::new(cost));
                if standing.allowed { 'a' } else { 'd' }
            })
            .collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn the_sixth_of_a_minute_waits_for_the_next() {
        check(&[(0, 5), (30, 1), (59, 1), (60, 1)], "adda");
    }

    #[test]
    fn around_a_boundary_twice_the_limit_passes() {
        check(&[(59, 5), (59, 1), (60, 5), (60, 1)], "adad");
    }

    #[test]
    fn a_step_back_into_the_last_window_admits_nothing_more() {
        check(&[(60, 5), (59, 1), (0, 1), (119, 1), (120, 1)], "addda");
    }

    #[test]
    fn a_calendar_set_back_by_more_than_a_window_starts_afresh() {
        check(&[(7_200, 5), (0, 5), (0, 1)], "aad");
    }

    #[test]
    fn a_denial_says_how_long_the_window_lasts() {
        let mut state = FixedWindowState::default();
        state.charge(&five_a_minute(), Span::seconds(NOON), Cells::new(5));
        for (at, cost, retry_after, reset_after) in [
            (NOON + 30, 1, Some(30), 30),
            (NOON + 30, 5, Some(30), 30),
            (NOON + 30, 6, None, 30),
            (NOON - 10, 1, Some(70), 70), // the state is ahead
            (NOON + 60, 6, None, 0),
        ] {
            let standing = state.look(&five_a_minute(), Span::seconds(at), Cells::new(cost));
            assert_eq!(
                (standing.retry_after, standing.reset_after),
                (retry_after.map(Span::seconds), Span::seconds(reset_after)),
                "cost {cost} at {at}"
            );
        }
    }

    #[test]
    fn what_is_given_back_late_is_gone() {
        let mut state = FixedWindowState::default();
        state.charge(&five_a_minute(), Span::seconds(NOON + 60), Cells::new(2));
        state.give_back(&five_a_minute(), Span::seconds(NOON), Cells::ONE);
        assert_eq!(state.count, Cells::new(2));
        state.give_back(&five_a_minute(), Span::seconds(NOON + 61), Cells::new(9));
        assert_eq!(state.count, Cells::ZERO);
    }

    #[test]
    fn another_limit_keeps_the_fullness() {
        for (requests, unit, expected) in [
            (10, Unit::Minute, 6),
            (7, Unit::Minute, 5),
            (1, Unit::Minute, 1),
            (500, Unit::Day, 300),
            (0, Unit::Day, 0),
        ] {
            let to = Limit::new(requests, unit, 1, None).unwrap();
            let mut state = FixedWindowState::default();
            state.charge(&five_a_minute(), Span::seconds(NOON), Cells::new(3));
            state.rescale(&five_a_minute(), &to, Span::seconds(NOON + 1));
            assert_eq!(state.count, Cells::new(expected), "{to}");
            assert_eq!(state.index, index(&to, Span::seconds(NOON + 1)), "{to}");
        }
    }
}
