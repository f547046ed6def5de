//! Sliding window: the count of this window plus the count of the one before, weighted by the part of it that is still
//! in sight.
//!
//! The estimate is `current + previous · (window − elapsed) / window`. A check passes if the estimate, rounded down,
//! plus its cost is within the limit. Windows are aligned to the Unix epoch. The state is two counts, whatever the
//! limit; the price is the assumption that the checks of the previous window were spread evenly. The arithmetic is
//! exact: products are 128 bits wide.
//!
//! Without new checks the estimate only falls, also across a boundary, where the current count becomes the previous one
//! at full weight. So the wait after a denial has a closed form.

use super::Standing;
use super::window::{WindowPosition, index, scaled};
use crate::pure::limit::Limit;
use crate::pure::time::{Cells, Span, scale_up};

/// The window of the last admission, and the cells counted in it and in the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingWindowState {
    index: u64,
    current: Cells,
    previous: Cells,
}

impl SlidingWindowState {
    /// The position of `unix`, and the state at that time.
    fn seen(&self, limit: &Limit, unix: Span) -> (WindowPosition, Self) {
        let position = WindowPosition::of(limit, unix, self.index);
        let (current, previous) = match position.passed {
            0 => (self.current, self.previous),
            1 => (Cells::ZERO, self.current),
            _ => (Cells::ZERO, Cells::ZERO),
        };
        let state = Self {
            index: position.index,
            current,
            previous,
        };
        (position, state)
    }

    /// `previous · (window − elapsed)`: the weight of the previous window, in cells times nanoseconds.
    fn weight(&self, limit: &Limit, elapsed: Span) -> u128 {
        product(self.previous.get(), limit.window().less(elapsed).get())
    }

    /// The estimate, rounded down.
    fn estimate(&self, limit: &Limit, elapsed: Span) -> Cells {
        let whole = self
            .weight(limit, elapsed)
            .checked_div(u128::from(limit.window().get()));
        self.current.plus(Cells::new(narrow(whole.unwrap_or(0))))
    }

    /// How full the state is, as a part of the window's length, rounded up.
    fn fullness(&self, limit: &Limit, elapsed: Span) -> Span {
        let filled = product(self.current.get(), limit.window().get())
            .saturating_add(self.weight(limit, elapsed));
        match (filled, limit.requests()) {
            (1.., 0) => limit.window(),
            (filled, requests) => Span::nanos(narrow(filled.div_ceil(u128::from(requests.max(1))))),
        }
    }

    /// The time from `elapsed` until the estimate, rounded down, has fallen to `spare`.
    fn wait(&self, limit: &Limit, elapsed: Span, spare: Cells) -> Span {
        if self.current <= spare {
            fades(limit, self.previous, spare.less(self.current)).less(elapsed)
        } else {
            limit
                .window()
                .less(elapsed)
                .plus(fades(limit, self.current, spare))
        }
    }

    /// The counts at `unix`.
    pub(super) fn counts(&self, limit: &Limit, unix: Span) -> SlidingCounts {
        let (position, state) = self.seen(limit, unix);
        SlidingCounts {
            ends: unix.plus(position.left(limit)).plus(limit.window()),
            current: state.current,
            previous: state.previous,
        }
    }

    pub(super) fn look(&self, limit: &Limit, unix: Span, cost: Cells) -> Standing {
        let most = Cells::new(limit.requests());
        let (position, state) = self.seen(limit, unix);
        let estimate = state.estimate(limit, position.elapsed);
        let allowed = estimate.plus(cost) <= most;
        Standing {
            allowed,
            remaining: most.less(estimate),
            retry_after: (!allowed && cost <= most).then(|| {
                state
                    .wait(limit, position.elapsed, most.less(cost))
                    .plus(position.lag)
            }),
            reset_after: self.ends(limit, unix),
            delay: Span::ZERO,
        }
    }

    pub(super) fn charge(&mut self, limit: &Limit, unix: Span, cost: Cells) {
        let (_, state) = self.seen(limit, unix);
        *self = Self {
            current: state.current.plus(cost),
            ..state
        };
    }

    pub(super) fn give_back(&mut self, limit: &Limit, unix: Span, cost: Cells) {
        match self.index.checked_sub(index(limit, unix)) {
            Some(0) => self.current = self.current.less(cost),
            Some(1) => self.previous = self.previous.less(cost),
            Some(_) | None => {}
        }
    }

    /// Refunds cells of the window of `unix`. Returns how many.
    pub(super) fn refund(&mut self, limit: &Limit, unix: Span, cost: Cells) -> Cells {
        let before = self.current.plus(self.previous);
        self.give_back(limit, unix, cost);
        before.less(self.current.plus(self.previous))
    }

    /// If the window has the same length, converts both counts and rounds their sum up: rounding each could add two
    /// cells. Otherwise the estimate becomes the new current count.
    pub(super) fn rescale(&mut self, from: &Limit, to: &Limit, unix: Span) {
        let (position, state) = self.seen(from, unix);
        if from.window() == to.window() {
            let current = scaled(state.current, from, to);
            let total = scaled(state.current.plus(state.previous), from, to);
            *self = Self {
                index: position.index,
                current,
                previous: total.less(current),
            };
            return;
        }
        let fullness = state.fullness(from, position.elapsed);
        *self = Self {
            index: index(to, unix.plus(position.lag)),
            current: Cells::new(scale_up(fullness.get(), from.window().get(), to.requests())),
            previous: Cells::ZERO,
        };
    }

    pub(super) fn ends(&self, limit: &Limit, unix: Span) -> Span {
        let (position, state) = self.seen(limit, unix);
        match (state.current, state.previous) {
            (Cells::ZERO, Cells::ZERO) => Span::ZERO,
            (Cells::ZERO, _) => position.left(limit),
            (_, _) => position.left(limit).plus(limit.window()),
        }
    }
}

/// The counts of a window and of the one before it.
pub(super) struct SlidingCounts {
    /// When the window after the current one ends.
    pub(super) ends: Span,
    pub(super) current: Cells,
    pub(super) previous: Cells,
}

/// The time into a window at which `count` cells of the previous one weigh `spare`, rounded down.
///
/// That is `count · (window − elapsed) < (spare + 1) · window`, solved for the least `elapsed`.
fn fades(limit: &Limit, count: Cells, spare: Cells) -> Span {
    let bound = product(spare.get(), limit.window().get())
        .saturating_add(u128::from(limit.window().get()))
        .div_ceil(u128::from(count.get().max(1)));
    limit
        .window()
        .less(Span::nanos(narrow(bound.saturating_sub(1))))
}

fn product(left: u64, right: u64) -> u128 {
    u128::from(left).saturating_mul(u128::from(right))
}

/// `wide`, or `u64::MAX` if it does not fit.
fn narrow(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::window::WindowState;
    use super::*;
    use crate::pure::limit::Unit;
    use crate::pure::time::SECOND;

    /// The start of some minute, in seconds since the epoch.
    const MINUTE: u64 = 1_700_000_040;

    fn a_minute(requests: u64) -> Limit {
        Limit::new(requests, Unit::Minute, 1, None).unwrap()
    }

    /// A state with so many cells in the previous minute and in the current one.
    fn state(previous: u64, current: u64) -> SlidingWindowState {
        SlidingWindowState {
            index: MINUTE / 60,
            current: Cells::new(current),
            previous: Cells::new(previous),
        }
    }

    /// Feeds ones, at seconds into the minute, and spells the decisions: `a`llow or `d`eny.
    fn check(requests: u64, state: SlidingWindowState, seconds: &[u64], expected: &str) {
        let mut state = WindowState::Sliding(state);
        let seen: String = seconds
            .iter()
            .map(|&at| state.decide(&a_minute(requests), Span::seconds(MINUTE + at), Cells::ONE))
            .map(|standing| if standing.allowed { 'a' } else { 'd' })
            .collect();
        assert_eq!(seen, expected);
    }

    /// 3 + 5 · 0.7 = 6.5, of which 6 count: one passes; then 7 and one more are above 7.
    #[test]
    fn six_and_a_half_of_seven_leave_room_for_one() {
        check(7, state(5, 3), &[18, 18], "ad");
    }

    /// 2 + 4 · 0.5 = 4 of 5.
    #[test]
    fn four_of_five_leave_room_for_one() {
        check(5, state(4, 2), &[30, 30], "ad");
    }

    #[test]
    fn the_window_before_fades_and_then_is_forgotten() {
        check(2, state(2, 0), &[0, 1, 1, 59, 60], "dadad");
        check(2, state(2, 0), &[120, 120, 120], "aad");
    }

    #[test]
    fn a_step_back_admits_nothing_more_and_a_calendar_set_back_starts_afresh() {
        let ahead = state(0, 2);
        for (back, allowed) in [(1, false), (60, false), (61, true)] {
            let unix = Span::seconds(MINUTE - back);
            assert_eq!(
                ahead.look(&a_minute(2), unix, Cells::ONE).allowed,
                allowed,
                "{back}"
            );
        }
    }

    /// The wait is exact: it passes then and not a nanosecond sooner.
    #[test]
    fn a_denial_says_how_long_to_wait() {
        for (previous, current, cost, expected) in [
            (5, 5, 1, Some(18 * SECOND + 1)), // five fade below two
            (5, 6, 1, Some(30 * SECOND + 1)), // five fade below one
            (0, 7, 1, Some(42 * SECOND + 1)), // seven fade below seven, a minute on
            (0, 7, 7, Some(93 * SECOND + 428_571_429)),
            (0, 7, 8, None),
            (u64::MAX, 0, 1, Some(42 * SECOND)),
        ] {
            let (state, unix) = (state(previous, current), Span::seconds(MINUTE + 18));
            let look = |unix| state.look(&a_minute(7), unix, Cells::new(cost));
            let wait = look(unix).retry_after;
            assert!(!look(unix).allowed);
            if let Some(wait) = wait {
                assert!(look(unix.plus(wait)).allowed, "{previous} {current} {cost}");
                assert!(!look(unix.plus(wait).less(Span::nanos(1))).allowed);
            }
            assert_eq!(
                wait,
                expected.map(Span::nanos),
                "{previous} {current} {cost}"
            );
        }
    }

    #[test]
    fn what_is_given_back_leaves_the_window_it_was_in() {
        let mut given = state(5, 3);
        for (before_its_end, cells) in [(0, 8), (1, 1), (59, 1), (61, 2), (121, 4), (181, 4)] {
            let unix = Span::seconds(MINUTE + 60 - before_its_end);
            given.give_back(&a_minute(7), unix, Cells::new(cells));
        }
        assert_eq!(given, state(3, 1));
    }

    #[test]
    fn another_limit_keeps_the_fullness() {
        let mut twice = state(5, 3);
        twice.rescale(&a_minute(7), &a_minute(14), Span::seconds(MINUTE));
        assert_eq!(twice, state(10, 6));
        let mut half = state(5, 3);
        half.rescale(&a_minute(10), &a_minute(5), Span::seconds(MINUTE));
        assert_eq!(half, state(2, 2), "rounded up once, not twice");
        let (mut longer, hour) = (state(4, 3), Limit::new(100, Unit::Hour, 1, None).unwrap());
        longer.rescale(&a_minute(10), &hour, Span::seconds(MINUTE + 30));
        assert_eq!(
            (longer.current, longer.previous),
            (Cells::new(50), Cells::ZERO)
        );
    }
}
