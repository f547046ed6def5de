//! Small records of keys that left a full table, or that a full table did not let in.
//!
//! As in caches, a ghost is a small record of an evicted key. It has a fingerprint of the key's name, the time at which the
//! key is as good as new, and for windows what was used when. A key that comes back starts from its ghost, so no key gains
//! a cell by eviction. Once in hundreds of millions two keys share a fingerprint and a place: one of them then starts
//! fuller than it is.
//!
//! A ghost that has ended is free room. There is room for [`GHOSTS_PER_KEY`] times as many ghosts as the table holds keys.
//! A ghost that finds no room replaces another one, which is forgotten and counted. That does not happen while the keys in
//! use are at most three times what the table holds: then two thirds of the room are enough.

use super::placement::{mixed, pick};
use crate::engine::atomic::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, zeroed};
use crate::pure::Nanos;

/// Ghosts of a group. Their fingerprints fill one cache line.
const GROUP: usize = 16;
/// Ghosts per key of the table. With as many ghosts as two tables hold keys, a third of the room stays free, so that both
/// groups of a key are not full by chance.
const GHOSTS_PER_KEY: usize = 3;
/// Locks. Two groups may share one.
const LOCKS: usize = if cfg!(feature = "loom") { 2 } else { 1024 };

/// The record of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ghost {
    /// When the key is as good as new: its TAT, or the end of its windows on the calendar's line.
    pub ends: Nanos,
    /// What was used when, in the form of the key's algorithm; 0 for a TAT, which needs no more.
    pub used: u64,
}

impl Ghost {
    /// The ghost of a bucket at `tat`.
    pub const fn at(tat: Nanos) -> Self {
        Self { ends: tat, used: 0 }
    }
}

/// The ghosts of one table. All methods may be called from any thread.
#[derive(Debug)]
pub struct Ghosts {
    /// Fingerprints; 0 is free.
    marks: Box<[AtomicU32]>,
    /// [`Ghost::ends`] of each.
    ends: Box<[AtomicU64]>,
    /// [`Ghost::used`] of each; empty where every ghost is a TAT.
    used: Box<[AtomicU64]>,
    groups: u64,
    locks: Box<[Mutex<()>]>,
    seeds: [u64; 2],
    forgotten: AtomicU64,
}

/// Where a key's ghost may be.
struct GhostPlace {
    groups: [usize; 2],
    fingerprint: u32,
}

impl GhostPlace {
    fn slots(&self) -> impl Iterator<Item = usize> {
        let [home, other] = self.groups;
        slots(home).chain(slots(other).filter(move |_| other != home))
    }
}

impl Ghosts {
    /// Ghosts for a table of `keys_max` keys, each of which is a TAT.
    pub fn of_times(keys_max: usize, seeds: [u64; 2]) -> Self {
        Self::new(keys_max, seeds, false)
    }

    /// Ghosts for a table of `keys_max` keys, with [`Ghost::used`].
    pub fn of_windows(keys_max: usize, seeds: [u64; 2]) -> Self {
        Self::new(keys_max, seeds, true)
    }

    fn new(keys_max: usize, seeds: [u64; 2], with_used: bool) -> Self {
        let groups = (keys_max * GHOSTS_PER_KEY).div_ceil(GROUP).max(1);
        Self {
            marks: zeroed(groups * GROUP),
            ends: zeroed(groups * GROUP),
            used: zeroed(if with_used { groups * GROUP } else { 0 }),
            groups: groups as u64,
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            seeds,
            forgotten: AtomicU64::new(0),
        }
    }

    /// Ghosts that were replaced before they ended.
    pub fn forgotten(&self) -> u64 {
        // Ordering: Relaxed. A total for people.
        self.forgotten.load(Ordering::Relaxed)
    }

    /// The ghost of `name`, unless it has ended.
    pub fn find(&self, name: u128, now: Nanos) -> Option<Ghost> {
        let place = self.place(name);
        let _locks = self.lock(&place);
        let slot = self.slot_of(&place, now)?;
        Some(self.ghost(slot))
    }

    /// Drops the ghost of `name`.
    pub fn forget(&self, name: u128) {
        let place = self.place(name);
        let _locks = self.lock(&place);
        self.clear(&place);
    }

    /// Remembers `ghost` of `name`. If the key has a ghost already, the one that ends later stays.
    pub fn remember(&self, name: u128, ghost: Ghost, now: Nanos) {
        self.remember_if(name, ghost, now, || true);
    }

    /// The same if `leaves` returns `true`. It runs under the lock, so no reader finds `name` without a ghost in between.
    pub fn remember_if(
        &self,
        name: u128,
        ghost: Ghost,
        now: Nanos,
        leaves: impl FnOnce() -> bool,
    ) -> bool {
        if ghost.ends <= now {
            return leaves();
        }
        let place = self.place(name);
        let _locks = self.lock(&place);
        let left = leaves();
        let known = self.slot_of(&place, now).map(|slot| self.ends(slot));
        if left && known.is_none_or(|ends| ends < ghost.ends) {
            self.write(&place, ghost, now);
        }
        left
    }

    /// Makes `ghost` the ghost of `name`, whatever it was.
    pub fn replace(&self, name: u128, ghost: Ghost, now: Nanos) {
        let place = self.place(name);
        let _locks = self.lock(&place);
        self.clear(&place);
        if ghost.ends > now {
            self.write(&place, ghost, now);
        }
    }

    /// Makes `ghost` the only one of its key.
    fn write(&self, place: &GhostPlace, ghost: Ghost, now: Nanos) {
        self.clear(place);
        let slot = self.free_slot(place, now).unwrap_or_else(|| {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
            // Any of them: the key that is denied most need not be the one that ends first.
            let nth = place.fingerprint as usize % (2 * GROUP);
            place.groups[nth / GROUP] * GROUP + nth % GROUP
        });
        // Ordering: Relaxed, here and below. Every access happens under the lock of its group.
        self.marks[slot].store(place.fingerprint, Ordering::Relaxed);
        self.ends[slot].store(ghost.ends.get(), Ordering::Relaxed);
        if let Some(used) = self.used.get(slot) {
            used.store(ghost.used, Ordering::Relaxed);
        }
    }

    /// Drops every mark of the key. An ended mark may be in one group, and the ghost in the other.
    fn clear(&self, place: &GhostPlace) {
        for slot in place.slots() {
            if self.marks[slot].load(Ordering::Relaxed) == place.fingerprint {
                self.marks[slot].store(0, Ordering::Relaxed);
            }
        }
    }

    fn place(&self, name: u128) -> GhostPlace {
        let (salt, lower) = mixed(name, self.seeds);
        let spread = salt ^ lower;
        GhostPlace {
            groups: [spread >> 32, spread].map(|bits| pick(bits, self.groups)),
            // Never 0, which is the mark of a free slot.
            fingerprint: (salt as u32).max(1),
        }
    }

    /// The right to read and change the groups of `place`.
    fn lock(&self, place: &GhostPlace) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let [mut first, mut second] = place.groups.map(|group| group % LOCKS);
        if first > second {
            // Always in the same order, so that two threads that want both do not wait for each other.
            (first, second) = (second, first);
        }
        let lock = |index: usize| {
            self.locks[index]
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        };
        (lock(first), (first != second).then(|| lock(second)))
    }

    /// The slot with the key's fingerprint, unless that ghost has ended.
    fn slot_of(&self, place: &GhostPlace, now: Nanos) -> Option<usize> {
        place.slots().find(|slot| {
            self.marks[*slot].load(Ordering::Relaxed) == place.fingerprint
                && self.is_live(*slot, now)
        })
    }

    /// A slot without a live ghost, in the emptier group.
    fn free_slot(&self, place: &GhostPlace, now: Nanos) -> Option<usize> {
        let free = |group: usize| slots(group).filter(move |slot| !self.is_live(*slot, now));
        let [home, other] = place.groups;
        let group = match free(other).count() > free(home).count() {
            true => other,
            false => home,
        };
        free(group).next()
    }

    fn is_live(&self, slot: usize, now: Nanos) -> bool {
        self.marks[slot].load(Ordering::Relaxed) != 0 && self.ends(slot) > now
    }

    fn ends(&self, slot: usize) -> Nanos {
        Nanos::new(self.ends[slot].load(Ordering::Relaxed))
    }

    fn ghost(&self, slot: usize) -> Ghost {
        let used = self.used.get(slot);
        Ghost {
            ends: self.ends(slot),
            used: used.map_or(0, |used| used.load(Ordering::Relaxed)),
        }
    }
}

fn slots(group: usize) -> std::ops::Range<usize> {
    group * GROUP..(group + 1) * GROUP
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::new(5 << 30);
    const LATER: u64 = 9 << 30;

    fn ghosts(keys_max: usize) -> Ghosts {
        Ghosts::of_windows(keys_max, [0x5eed_0001, 0x5eed_0002])
    }

    fn ending(ends: u64) -> Ghost {
        let ends = Nanos::new(ends);
        Ghost { ends, used: 7 }
    }

    /// Names as hashing makes them.
    fn name(nth: u64) -> u128 {
        let (high, low) = mixed(
            u128::from(nth) << 64 | u128::from(nth),
            [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f],
        );
        u128::from(high) << 64 | u128::from(low)
    }

    #[test]
    fn a_ghost_never_says_less_than_what_was_used() {
        let ghosts = ghosts(100);
        for (ends, found) in [
            (LATER, LATER),
            (LATER + 1, LATER + 1),
            (LATER - 1, LATER + 1),
        ] {
            ghosts.remember(name(1), ending(ends), NOW);
            assert_eq!(ghosts.find(name(1), NOW), Some(ending(found)));
        }
    }

    #[test]
    fn a_ghost_is_gone_once_it_has_ended_or_was_dropped() {
        let ghosts = ghosts(100);
        ghosts.remember(name(1), ending(LATER), NOW);
        assert!(ghosts.find(name(1), Nanos::new(LATER - 1)).is_some());
        assert_eq!(ghosts.find(name(1), Nanos::new(LATER)), None);
        assert_eq!(ghosts.find(name(2), NOW), None, "another key");
        ghosts.forget(name(1));
        assert_eq!(ghosts.find(name(1), NOW), None);
        ghosts.remember(name(1), ending(NOW.get()), NOW);
        assert_eq!(ghosts.find(name(1), NOW), None, "as good as new");
    }

    /// A key leaves again after its ghost has ended, and finds room in its other group: the old mark is not in the way.
    #[test]
    fn an_ended_ghost_does_not_hide_the_live_one() {
        let ghosts = ghosts(32);
        let again = Nanos::new(LATER);
        for round in 0..200_u64 {
            let (old, new) = (ending(LATER), ending(2 * LATER));
            let other = |nth: u64| name(1_000 + round * 50 + nth);
            ghosts.remember(name(round), old, NOW);
            // Others fill the room, each for longer.
            (0..50).for_each(|nth| ghosts.remember(other(nth), new, NOW));
            ghosts.remember(name(round), new, again);
            ghosts.forget(name(round));
            assert_eq!(ghosts.find(name(round), again), None, "{round}");
            (0..50).for_each(|nth| ghosts.forget(other(nth)));
        }
    }

    #[test]
    fn two_tables_worth_of_ghosts_find_room() {
        const KEYS: u64 = 50_000;
        let ghosts = ghosts(KEYS as usize);
        for nth in 0..2 * KEYS {
            ghosts.remember(name(nth), ending(LATER), NOW);
        }
        assert_eq!(ghosts.forgotten(), 0);
        assert!((0..2 * KEYS).all(|nth| ghosts.find(name(nth), NOW).is_some()));
        let strangers = (2 * KEYS..12 * KEYS).filter(|nth| ghosts.find(name(*nth), NOW).is_some());
        let mistaken = strangers.count();
        assert!(
            mistaken == 0,
            "{mistaken} of 500,000 were taken for another"
        );
    }

    #[test]
    fn beyond_that_others_are_forgotten_and_counted() {
        const KEYS: u64 = 1_000;
        let ghosts = ghosts(KEYS as usize);
        for nth in 0..9 * KEYS {
            ghosts.remember(name(nth), ending(LATER), NOW);
        }
        let found = (0..9 * KEYS).filter(|nth| ghosts.find(name(*nth), NOW).is_some());
        let found = found.count() as u64;
        assert!(found <= 3 * KEYS + 8, "{found}");
        assert_eq!(found + ghosts.forgotten(), 9 * KEYS);
        // Ended ghosts are replaced first.
        let (then, before) = (Nanos::new(LATER), ghosts.forgotten());
        for nth in 0..KEYS {
            ghosts.remember(name(nth), ending(2 * LATER), then);
        }
        assert_eq!(ghosts.forgotten(), before);
    }
}
