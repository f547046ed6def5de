//! How many key updates one pod may send to the store: a token bucket.
//!
//! The store takes [`STORE_UPDATES_PER_SECOND`] from the whole fleet. Each of N pods may send an N-th part, so a
//! growing fleet does not overload the store. The budget is one point in time, like the bucket of a limit: an update
//! costs exactly N · 20 µs.
//!
//! ```
//! use tidegate_core::pure::sync::Budget;
//! use tidegate_core::pure::{Nanos, Span};
//! let now = Nanos::new(0);
//! let mut budget = Budget::new(100); // 500 updates a second
//! assert_eq!(budget.available(now), 100);
//! assert!(budget.take(100, now));
//! assert!(!budget.take(1, now));
//! assert_eq!(budget.next_at(1, now), now.after(Span::nanos(2_000_000)));
//! ```

use super::BATCH_MAX;
use crate::pure::time::SECOND;
use crate::pure::{Cells, Nanos, Span};

/// The price of a call besides its keys, in key updates.
pub const CALL_COST: usize = 1;
/// The key updates that the store takes per second from all pods together.
pub const STORE_UPDATES_PER_SECOND: u64 = 50_000;
/// The key updates per second that a pod may always send, however large the fleet is.
const POD_UPDATES_PER_SECOND_MIN: u64 = 50;
/// The most that a pod saves up: so much time's worth of updates, but at least one full batch.
const HELD_MAX: Span = Span::nanos(100_000_000);

/// The price of an update in a fleet of one pod.
const UPDATE_ALONE: Span = interval(STORE_UPDATES_PER_SECOND);
/// The highest price of an update.
const UPDATE_MAX: Span = interval(POD_UPDATES_PER_SECOND_MIN);

const fn interval(per_second: u64) -> Span {
    match SECOND.checked_div(per_second) {
        Some(nanos) => Span::nanos(nanos),
        None => Span::ZERO,
    }
}

/// The key updates that one pod may send. A new budget is full.
#[derive(Clone, Debug)]
pub struct Budget {
    /// The price of one update.
    update: Span,
    /// When the budget is full again.
    full_at: Nanos,
}

impl Budget {
    /// The budget of one of so many pods. Zero pods count as one.
    pub fn new(pods: u64) -> Self {
        Self {
            update: update(pods),
            full_at: Nanos::new(0),
        }
    }

    /// Changes the number of pods. The budget keeps the updates that it holds, as far as they fit.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Budget;
    /// use tidegate_core::pure::Nanos;
    /// let mut budget = Budget::new(1);
    /// assert!(budget.take(4_950, Nanos::new(0)));
    /// budget.set_pods(10, Nanos::new(0));
    /// assert_eq!(budget.available(Nanos::new(0)), 50);
    /// ```
    pub fn set_pods(&mut self, pods: u64, now: Nanos) {
        let held = self.room(now).whole(self.update);
        self.update = update(pods);
        let used = self.capacity().less(self.update.times(held));
        self.full_at = now.after(used);
    }

    /// The number of updates that the pod may send now.
    pub fn available(&self, now: Nanos) -> usize {
        let updates = self.room(now).whole(self.update).get();
        usize::try_from(updates).unwrap_or(usize::MAX)
    }

    /// Takes so many updates, all or none. If they are more than a full budget holds, it takes them when it is full,
    /// and charges all of them.
    pub fn take(&mut self, keys: usize, now: Nanos) -> bool {
        let price = self.price(keys);
        let taken = price.min(self.capacity()) <= self.room(now);
        if taken {
            self.full_at = self.full_at.max(now).after(price);
        }
        taken
    }

    /// The updates that are reserved for urgent keys: a quarter of a full budget.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Budget;
    /// assert_eq!(Budget::new(100).reserve(), 25);
    /// assert_eq!(Budget::new(1).reserve(), 1_250);
    /// ```
    pub fn reserve(&self) -> usize {
        let updates = self.capacity().whole(self.update).get();
        usize::try_from(updates >> 2).unwrap_or(usize::MAX)
    }

    /// The time until the pod has sent so many updates, if each waits for its turn.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Budget;
    /// use tidegate_core::pure::{Nanos, Span};
    /// let budget = Budget::new(100); // 500 updates a second, 100 of them at once
    /// assert_eq!(budget.wait_for(100, Nanos::new(0)), Span::ZERO);
    /// assert_eq!(budget.wait_for(600, Nanos::new(0)), Span::seconds(1));
    /// ```
    pub fn wait_for(&self, updates: usize, now: Nanos) -> Span {
        self.price(updates).less(self.room(now))
    }

    /// When [`Self::take`] of so many updates will succeed, if nobody takes any before.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Budget;
    /// use tidegate_core::pure::Nanos;
    /// let now = Nanos::new(7);
    /// let mut budget = Budget::new(1_000_000); // the least there is: 50 a second
    /// assert_eq!(budget.next_at(100, now), now);
    /// assert!(budget.take(100, now));
    /// let next = budget.next_at(50, now);
    /// assert!(next.since(now).seconds_up() == 1 && budget.take(50, next));
    /// ```
    pub fn next_at(&self, keys: usize, now: Nanos) -> Nanos {
        let price = self.price(keys).min(self.capacity());
        now.max(self.full_at.before(self.capacity().less(price)))
    }

    fn price(&self, keys: usize) -> Span {
        let keys = u64::try_from(keys).unwrap_or(u64::MAX);
        self.update.times(Cells::new(keys))
    }

    /// What a full budget holds.
    fn capacity(&self) -> Span {
        HELD_MAX.max(self.price(BATCH_MAX))
    }

    /// What the budget holds now.
    fn room(&self, now: Nanos) -> Span {
        self.capacity().less(self.full_at.since(now))
    }
}

/// The price of an update for one of so many pods.
fn update(pods: u64) -> Span {
    UPDATE_ALONE.times(Cells::new(pods.max(1))).min(UPDATE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos::new(0);

    /// The updates that a pod which always wants more takes within ten seconds.
    fn taken_in_ten_seconds(pods: u64) -> u64 {
        let (mut budget, mut taken, mut now) = (Budget::new(pods), 0, START);
        let end = START.after(Span::seconds(10));
        while now <= end {
            if budget.take(50, now) {
                taken += 50;
            } else {
                now = budget.next_at(50, now);
            }
        }
        taken
    }

    #[test]
    fn a_pod_takes_its_part_of_the_store_and_what_was_saved_up() {
        assert_eq!(taken_in_ten_seconds(0), 505_000);
        assert_eq!(taken_in_ten_seconds(1), 505_000);
        assert_eq!(taken_in_ten_seconds(10), 50_500);
        assert_eq!(taken_in_ten_seconds(100), 5_100);
    }

    #[test]
    fn a_pod_takes_fifty_a_second_however_many_there_are() {
        assert_eq!(taken_in_ten_seconds(1_000), 600);
        assert_eq!(taken_in_ten_seconds(u64::MAX), 600);
    }

    #[test]
    fn it_holds_a_tenth_of_a_second_but_at_least_a_batch() {
        for (pods, held) in [(1, 5_000), (10, 500), (50, 100), (100, 100), (9_999, 100)] {
            let budget = Budget::new(pods);
            assert_eq!(budget.available(START), held, "{pods} pods");
            let later = START.after(Span::seconds(3_600));
            assert_eq!(budget.available(later), held, "{pods} pods");
        }
    }

    #[test]
    fn a_take_that_fails_takes_nothing() {
        let mut budget = Budget::new(100);
        assert!(budget.take(60, START));
        assert!(!budget.take(41, START));
        assert!(budget.take(40, START));
        assert_eq!(budget.available(START), 0);
    }

    #[test]
    fn what_will_be_there_is_there_then_and_not_before() {
        let mut budget = Budget::new(3);
        assert!(budget.take(1_666, START));
        let next = budget.next_at(100, START);
        assert!(!budget.clone().take(100, Nanos::new(next.get() - 1)));
        assert!(budget.take(100, next));
    }

    #[test]
    fn more_than_it_holds_waits_until_it_is_full_and_is_charged_in_full() {
        let mut budget = Budget::new(100);
        assert!(budget.take(1_000, START));
        let next = budget.next_at(1_000, START);
        assert_eq!(next, START.after(Span::seconds(2)));
        assert!(!budget.take(1_000, Nanos::new(next.get() - 1)));
        assert!(budget.take(1_000, next));
    }

    #[test]
    fn a_change_of_the_fleet_gives_nothing_away() {
        let mut budget = Budget::new(1);
        assert!(budget.take(5_000, START));
        budget.set_pods(100, START);
        assert_eq!(budget.available(START), 0);
        budget.set_pods(1, START);
        assert_eq!(budget.available(START), 0);
    }
}
