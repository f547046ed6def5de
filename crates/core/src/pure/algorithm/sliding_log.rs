//! Sliding log: at most so many cells in any window ending now.
//!
//! The log remembers each admission with its time and drops it when it is exactly one window old: the window is `(now −
//! window, now]`. The log is exact while at most [`ENTRIES_MAX`] different times are in sight. That is always so for a
//! limit of up to that many cells, unless rejected checks count too.
//!
//! With more times, the log bounds its memory without ever admitting too much. It cuts the window into [`PARTS`] parts
//! and merges the entries of one part into one entry with the latest of their times. Merged cells leave later than they
//! should, by less than a part, and never earlier. Parts are aligned to the epoch, not to now: however often the log
//! merges, no entry moves beyond its part. One part more than [`PARTS`] can be in sight, cut off at both ends.

use std::collections::VecDeque;

use super::Standing;
use super::summary::{LOG_PARTS, part_of};
use super::window::{index, scaled};
use crate::pure::limit::Limit;
use crate::pure::time::{Cells, Span};

/// The most entries of one key.
pub const ENTRIES_MAX: usize = 64;

/// The parts of a window into which the log merges entries that would be more than [`ENTRIES_MAX`].
pub const PARTS: u64 = 60;

/// The cells admitted at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogEntry {
    unix: Span,
    cells: Cells,
}

/// The admissions, oldest first. No two have the same time, and none is a window older than the latest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingLogState {
    entries: VecDeque<LogEntry>,
    latest: Span,
}

impl SlidingLogState {
    /// The time at which a check at `unix` is decided.
    fn at(&self, limit: &Limit, unix: Span) -> Span {
        if self.latest.less(unix) > limit.window() {
            unix // somebody has set the calendar back, and nothing is in sight
        } else {
            unix.max(self.latest)
        }
    }

    /// The entries in sight at `at`, oldest first.
    fn seen(&self, limit: &Limit, at: Span) -> impl DoubleEndedIterator<Item = &LogEntry> {
        self.entries
            .iter()
            .filter(move |entry| in_sight(limit, at, entry))
    }

    /// The time from `at` until enough cells have left for `cost` to fit.
    fn wait(&self, limit: &Limit, at: Span, cost: Cells) -> Option<Span> {
        let spare = limit.requests().checked_sub(cost.get())?;
        let mut kept = 0_u128;
        self.seen(limit, at)
            .rev()
            .find(|entry| {
                kept = kept.saturating_add(u128::from(entry.cells.get()));
                kept > u128::from(spare)
            })
            .map(|entry| left(limit, at, entry))
    }

    /// The cells in sight, by parts of the window that ends at the newest entry, newest first.
    pub(super) fn parts(&self, limit: &Limit, unix: Span) -> [Cells; LOG_PARTS] {
        let mut parts = [Cells::ZERO; LOG_PARTS];
        let at = self.at(limit, unix);
        let newest = self.seen(limit, at).next_back();
        let newest = newest.map_or(at, |entry| entry.unix);
        for entry in self.seen(limit, at) {
            let part = newest.less(entry.unix).whole(part_of(limit.window()));
            let part = usize::try_from(part.get()).unwrap_or(LOG_PARTS);
            if let Some(cells) = parts.get_mut(part) {
                *cells = cells.plus(entry.cells);
            }
        }
        parts
    }

    /// The cells in sight that were admitted in the calendar's window of `unix`.
    pub(super) fn count(&self, limit: &Limit, unix: Span) -> Cells {
        let of_window = index(limit, unix);
        self.seen(limit, self.at(limit, unix))
            .filter(|entry| index(limit, entry.unix) == of_window)
            .fold(Cells::ZERO, |count, entry| count.plus(entry.cells))
    }

    pub(super) fn look(&self, limit: &Limit, unix: Span, cost: Cells) -> Standing {
        let most = Cells::new(limit.requests());
        let at = self.at(limit, unix);
        let used = self
            .seen(limit, at)
            .fold(Cells::ZERO, |used, entry| used.plus(entry.cells));
        let allowed = used.plus(cost) <= most;
        let wait = || {
            self.wait(limit, at, cost)
                .map(|wait| wait.plus(at.less(unix)))
        };
        Standing {
            allowed,
            remaining: most.less(used),
            retry_after: if allowed { None } else { wait() },
            reset_after: self.ends(limit, unix),
            delay: Span::ZERO,
        }
    }

    pub(super) fn charge(&mut self, limit: &Limit, unix: Span, cost: Cells) {
        let at = self.at(limit, unix);
        self.entries.retain(|entry| in_sight(limit, at, entry));
        if self.entries.len() >= ENTRIES_MAX && !self.ends_at(at) {
            self.merge(limit);
        }
        self.push(at, cost);
        self.latest = at;
    }

    pub(super) fn give_back(&mut self, limit: &Limit, unix: Span, cost: Cells) {
        if self.latest.less(unix) >= limit.window() {
            return;
        }
        // Its own entry, or the later one into which it was merged.
        let entry = self.entries.iter_mut().find(|entry| entry.unix >= unix);
        if let Some(entry) = entry {
            entry.cells = entry.cells.less(cost);
        }
        self.entries.retain(|entry| entry.cells > Cells::ZERO);
    }

    /// Refunds cells, newest first, because those would have stayed longest. Returns how many.
    pub(super) fn refund(&mut self, limit: &Limit, unix: Span, cost: Cells) -> Cells {
        let at = self.at(limit, unix);
        self.entries.retain(|entry| in_sight(limit, at, entry));
        let mut left = cost;
        for entry in self.entries.iter_mut().rev() {
            let taken = entry.cells.min(left);
            entry.cells = entry.cells.less(taken);
            left = left.less(taken);
        }
        self.entries.retain(|entry| entry.cells > Cells::ZERO);
        cost.less(left)
    }

    /// Scales the counts from the newest entry on and rounds their running sum up. So at any later time the cells in
    /// sight are at most one too many. Scales the ages with the window.
    pub(super) fn rescale(&mut self, from: &Limit, to: &Limit, unix: Span) {
        let at = self.at(from, unix);
        let (mut before, mut after) = (Cells::ZERO, Cells::ZERO);
        let mut entries = VecDeque::new();
        for entry in self.seen(from, at).rev() {
            before = before.plus(entry.cells);
            let sum = scaled(before, from, to);
            let entry = LogEntry {
                unix: at.less(aged(at.less(entry.unix), from, to)),
                cells: sum.less(after),
            };
            after = sum;
            entries.push_front(entry);
        }
        *self = Self {
            entries: VecDeque::new(),
            latest: at,
        };
        for entry in entries {
            self.push(entry.unix, entry.cells);
        }
    }

    pub(super) fn ends(&self, limit: &Limit, unix: Span) -> Span {
        let at = self.at(limit, unix);
        self.seen(limit, at)
            .next_back()
            .map_or(Span::ZERO, |entry| {
                left(limit, at, entry).plus(at.less(unix))
            })
    }

    fn ends_at(&self, at: Span) -> bool {
        self.entries.back().is_some_and(|entry| entry.unix == at)
    }

    /// Adds cells at `at`, which is not before the last entry.
    fn push(&mut self, at: Span, cells: Cells) {
        match self.entries.back_mut() {
            _ if cells == Cells::ZERO => {}
            Some(last) if last.unix == at => last.cells = last.cells.plus(cells),
            Some(_) | None => self.entries.push_back(LogEntry { unix: at, cells }),
        }
    }

    /// Merges the entries of each part of the window into one.
    fn merge(&mut self, limit: &Limit) {
        let part = Span::nanos(limit.window().get().div_ceil(PARTS));
        let mut merged = VecDeque::<LogEntry>::with_capacity(ENTRIES_MAX);
        for entry in &self.entries {
            match merged.back_mut() {
                Some(last) if last.unix.whole(part) == entry.unix.whole(part) => {
                    last.unix = entry.unix;
                    last.cells = last.cells.plus(entry.cells);
                }
                Some(_) | None => merged.push_back(*entry),
            }
        }
        self.entries = merged;
    }
}

/// Whether the entry counts at `at`.
fn in_sight(limit: &Limit, at: Span, entry: &LogEntry) -> bool {
    entry.unix <= at && at.less(entry.unix) < limit.window()
}

/// The time from `at` until the entry leaves.
fn left(limit: &Limit, at: Span, entry: &LogEntry) -> Span {
    limit.window().less(at.less(entry.unix))
}

/// Converts an age in the window of `from` to the window of `to`, rounded down, so that cells leave later, not earlier.
fn aged(age: Span, from: &Limit, to: &Limit) -> Span {
    let left = from.window().less(age).rescaled(from.window(), to.window());
    to.window().less(left)
}

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, window::WindowState};
    use super::*;
    use crate::pure::limit::Unit;

    /// One o'clock of some day, in seconds since the epoch.
    const ONE: u64 = 20_000 * 86_400 + 3_600;

    fn a_minute(requests: u64) -> Limit {
        Limit::new(requests, Unit::Minute, 1, None).unwrap()
    }

    /// Feeds ones, at seconds after one o'clock, to two a minute and spells the decisions: `a`llow or `d`eny.
    fn check(count_rejected: bool, seconds: &[u64], expected: &str) {
        let limit = a_minute(2);
        let mut state = WindowState::new(Algorithm::SlidingLog).unwrap();
        let mut seen = String::new();
        for &at in seconds {
            let unix = Span::seconds(ONE + at);
            let allowed = state.decide(&limit, unix, Cells::ONE).allowed;
            if !allowed && count_rejected {
                state.charge(&limit, unix, Cells::ONE);
            }
            seen.push(if allowed { 'a' } else { 'd' });
        }
        assert_eq!(seen, expected);
    }

    /// 1:00:01, 1:00:30, 1:00:50 and 1:01:40.
    #[test]
    fn two_in_any_minute() {
        check(false, &[1, 30, 50, 100], "aada");
        check(false, &[1, 30, 50, 100, 109], "aadaa");
        check(true, &[1, 30, 50, 100, 109], "aadad"); // the log holds 1:00:50 and 1:01:40
    }

    #[test]
    fn what_is_exactly_one_window_old_is_out() {
        check(false, &[0, 1, 59, 60, 60, 61], "aadada");
    }

    #[test]
    fn a_step_back_admits_nothing_more_and_a_calendar_set_back_starts_afresh() {
        check(false, &[100, 100, 99, 40], "aadd");
        check(false, &[100, 100, 39, 39, 39], "aaaad");
    }

    #[test]
    fn a_denial_says_when_enough_has_left() {
        let (limit, mut state) = (a_minute(10), SlidingLogState::default());
        for (at, cells) in [(0, 3), (10, 3), (20, 4)] {
            state.charge(&limit, Span::seconds(ONE + at), Cells::new(cells));
        }
        for (cost, retry_after) in [
            (1, Some(30)),
            (3, Some(30)),
            (4, Some(40)),
            (10, Some(50)),
            (11, None),
        ] {
            let standing = state.look(&limit, Span::seconds(ONE + 30), Cells::new(cost));
            assert_eq!(
                standing.retry_after,
                retry_after.map(Span::seconds),
                "cost {cost}"
            );
            assert_eq!(standing.reset_after, Span::seconds(50));
        }
    }

    #[test]
    fn beyond_its_bound_it_merges_and_forgets_nothing_early() {
        let (limit, mut state) = (a_minute(1_000), SlidingLogState::default());
        for tenth in 0..600 {
            let unix = Span::nanos((ONE * 10 + tenth) * 100_000_000);
            state.charge(&limit, unix, Cells::ONE);
            assert!(state.entries.len() <= ENTRIES_MAX);
            let used = 1_000 - state.look(&limit, unix, Cells::ZERO).remaining.get();
            assert_eq!(used, tenth + 1);
        }
        // At 1:01:00 exactly one would be out; the first ten leave together, with the last of them.
        for (tenths, used) in [(600, 600), (608, 600), (609, 590)] {
            let unix = Span::nanos((ONE * 10 + tenths) * 100_000_000);
            assert_eq!(
                state.look(&limit, unix, Cells::ZERO).remaining,
                Cells::new(1_000 - used)
            );
        }
    }

    #[test]
    fn what_is_given_back_after_it_left_takes_nothing_from_others() {
        let (limit, mut state) = (a_minute(10), SlidingLogState::default());
        for at in [0, 30, 61] {
            state.charge(&limit, Span::seconds(ONE + at), Cells::new(2));
        }
        state.give_back(&limit, Span::seconds(ONE + 61), Cells::new(2));
        state.give_back(&limit, Span::seconds(ONE), Cells::new(2));
        assert_eq!(
            state
                .look(&limit, Span::seconds(ONE + 61), Cells::ZERO)
                .remaining,
            Cells::new(8)
        );
    }

    #[test]
    fn another_limit_keeps_the_fullness_and_its_ages() {
        let (from, to) = (a_minute(10), Limit::new(5, Unit::Hour, 1, None).unwrap());
        let mut state = SlidingLogState::default();
        for at in [0, 15, 30] {
            state.charge(&from, Span::seconds(ONE + at), Cells::new(2));
        }
        state.rescale(&from, &to, Span::seconds(ONE + 30));
        for (minutes, remaining) in [(0, 2), (29, 2), (30, 3), (45, 4), (60, 5)] {
            let unix = Span::seconds(ONE + 30 + minutes * 60);
            assert_eq!(
                state.look(&to, unix, Cells::ZERO).remaining,
                Cells::new(remaining),
                "{minutes}"
            );
        }
    }
}
