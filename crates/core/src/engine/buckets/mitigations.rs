//! Mitigations of keys that this pod does not hold: the fleet denies them, and no check has asked this pod for them yet.
//!
//! A key that has a bucket has its mitigation there. For the others it waits here until the first check, so that this pod
//! does not admit what all other pods already deny. Bounded: the mitigation that ends first leaves first.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::pure::Nanos;

/// The table. All methods may be called from any thread.
#[derive(Debug)]
pub struct Mitigations {
    held: Mutex<MitigationIndex>,
    /// The number of mitigations, readable without the lock: mostly 0.
    count: AtomicUsize,
    keys_max: usize,
}

#[derive(Debug, Default)]
struct MitigationIndex {
    ends: HashMap<u128, Nanos>,
    soonest: BTreeSet<(Nanos, u128)>,
}

impl Mitigations {
    /// A table for at most `keys_max` keys.
    pub fn new(keys_max: usize) -> Self {
        Self {
            held: Mutex::default(),
            count: AtomicUsize::new(0),
            keys_max: keys_max.max(1),
        }
    }

    /// The number of mitigations.
    pub fn count(&self) -> usize {
        // Ordering: Relaxed. A check that misses one which just came is like a check that ran a little earlier.
        self.count.load(Ordering::Relaxed)
    }

    /// Notes that the fleet denies `name` until its level has fallen, at `ends`.
    pub fn put(&self, name: u128, ends: Nanos, now: Nanos) {
        let mut held = self.lock();
        held.drop_ended(now);
        if held.ends.get(&name).is_some_and(|known| *known >= ends) {
            return;
        }
        held.remove(name);
        held.ends.insert(name, ends);
        held.soonest.insert((ends, name));
        if held.ends.len() > self.keys_max
            && let Some((_, soonest)) = held.soonest.first().copied()
        {
            held.remove(soonest);
        }
        self.count.store(held.ends.len(), Ordering::Relaxed);
    }

    /// The TAT of `name`, if the fleet denies it.
    pub fn get(&self, name: u128, now: Nanos) -> Option<Nanos> {
        if self.count() == 0 {
            return None;
        }
        self.lock()
            .ends
            .get(&name)
            .copied()
            .filter(|ends| *ends > now)
    }

    /// Drops mitigations that have ended.
    pub fn drop_ended(&self, now: Nanos) {
        if self.count() > 0 {
            let mut held = self.lock();
            held.drop_ended(now);
            self.count.store(held.ends.len(), Ordering::Relaxed);
        }
    }

    /// Drops the mitigation of `name`: it has a bucket now, or was reset.
    pub fn remove(&self, name: u128) {
        if self.count() > 0 {
            let mut held = self.lock();
            held.remove(name);
            self.count.store(held.ends.len(), Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, MitigationIndex> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MitigationIndex {
    fn remove(&mut self, name: u128) {
        if let Some(ends) = self.ends.remove(&name) {
            self.soonest.remove(&(ends, name));
        }
    }

    fn drop_ended(&mut self, now: Nanos) {
        while let Some((ends, name)) = self.soonest.first().copied()
            && ends <= now
        {
            self.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::new(10);

    #[test]
    fn the_mitigation_that_ends_first_leaves_first() {
        let table = Mitigations::new(2);
        for (name, ends) in [(1, 30), (2, 20), (3, 40)] {
            table.put(name, Nanos::new(ends), NOW);
        }
        let held = [1, 2, 3].map(|name| table.get(name, NOW).is_some());
        assert_eq!((held, table.count()), ([true, false, true], 2));
    }

    #[test]
    fn news_only_ever_extends_and_ends_by_itself() {
        let table = Mitigations::new(2);
        table.put(1, Nanos::new(30), NOW);
        table.put(1, Nanos::new(20), NOW);
        assert_eq!(table.get(1, NOW), Some(Nanos::new(30)));
        assert_eq!(table.get(1, Nanos::new(30)), None);
        table.put(2, Nanos::new(90), Nanos::new(31));
        assert_eq!(table.count(), 1);
        table.remove(2);
        assert_eq!(table.count(), 0);
    }
}
