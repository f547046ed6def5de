//! Keys that only news denies: the first denied check of such a key makes the sync ask the store.
//!
//! The sync notes here which keys are full by news that the store has not confirmed to this pod. A denied check takes its
//! key out, once, and queues it for the sync. A check of any other key reads one counter.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counters that say which keys cannot be among those noted. A power of two.
const COUNTERS: usize = 4_096;

/// The keys. All methods may be called from any thread.
#[derive(Debug)]
pub struct UnconfirmedKeys {
    names: Mutex<HashSet<u128>>,
    /// How many of the names fall to each counter. One that is at its end stays there.
    counters: Box<[AtomicU16; COUNTERS]>,
}

impl Default for UnconfirmedKeys {
    fn default() -> Self {
        Self {
            names: Mutex::default(),
            counters: Box::new([const { AtomicU16::new(0) }; COUNTERS]),
        }
    }
}

impl UnconfirmedKeys {
    /// Notes that the next denied check of `name` asks the store. The sync notes no more keys than it keeps news of.
    pub fn put(&self, name: u128) {
        let mut names = self.lock();
        if names.insert(name) {
            // Ordering: Relaxed, here and below. The lock orders the changes; a check that reads an older count asks a
            // little later or looks in vain.
            let one_more = |count: u16| count.checked_add(1);
            let _ = self
                .counter(name)
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        }
    }

    /// Takes `name` out. Whether it was noted.
    pub fn take(&self, name: u128) -> bool {
        if !self.may_hold(name) {
            return false;
        }
        let mut names = self.lock();
        let was_held = names.remove(&name);
        if was_held {
            let one_less = |count: u16| (count < u16::MAX).then(|| count.saturating_sub(1));
            let _ = self
                .counter(name)
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        }
        was_held
    }

    /// Whether `name` is noted.
    pub fn holds(&self, name: u128) -> bool {
        self.may_hold(name) && self.lock().contains(&name)
    }

    /// Whether `name` may be noted.
    #[inline]
    pub fn may_hold(&self, name: u128) -> bool {
        self.counter(name).load(Ordering::Relaxed) > 0
    }

    #[inline]
    fn counter(&self, name: u128) -> &AtomicU16 {
        &self.counters[(name >> 64) as usize % COUNTERS]
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<u128>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_check_takes_a_question_and_no_other_does() {
        let unconfirmed = UnconfirmedKeys::default();
        unconfirmed.put(7);
        unconfirmed.put(7);
        assert!(unconfirmed.holds(7) && !unconfirmed.holds(8));
        assert_eq!([unconfirmed.take(7), unconfirmed.take(7)], [true, false]);
        assert!(!unconfirmed.may_hold(7), "nobody looks for it any more");
    }

    #[test]
    fn keys_of_one_counter_keep_their_own_questions() {
        let unconfirmed = UnconfirmedKeys::default();
        for name in 0..70_000 {
            unconfirmed.put(name);
        }
        assert!((0..70_000).all(|name| unconfirmed.take(name)));
        assert!(!unconfirmed.take(0));
    }
}
