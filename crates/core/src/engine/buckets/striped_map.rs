//! A map of keys whose state does not fit one word: many small stripes, each with a lock.
//!
//! Every access takes the lock of one stripe, for some tens of nanoseconds, and few keys share it. A stripe is sized for
//! [`STRIPE_KEYS`] keys and holds at most [`STRIPE_KEYS_MAX`], because hashing spreads keys unevenly; it grows in small
//! chunks, so no key waits for a large move. When a stripe has no room, the key with the lowest [`EvictionRank`] leaves. If
//! that key is in use, a ghost remembers it (`ghosts.rs`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

use super::ghosts::{Ghost, Ghosts};
use super::placement::{pick, spread};
use crate::pure::{Cells, Nanos, Span};

/// Keys of one stripe when the map is full and the keys are spread evenly.
const STRIPE_KEYS: usize = 768;
/// The most keys of one stripe. By chance, one stripe of half a million has so many.
const STRIPE_KEYS_MAX: usize = 896;
/// A stripe grows by so many keys at a time and moves none of them: unused room stays small beside used room.
const CHUNK: usize = 32;

/// How a key got its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There was room, or the key needed none.
    Free,
    /// A key left that was as good as new. Its unreported cells are lost.
    Settled(Cells),
    /// A key left that was in use. A ghost remembers it; its unreported cells are lost.
    InUse(Cells),
    /// The key was not let in. A ghost remembers what it used.
    Nowhere,
}

/// How a key asks for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admittance {
    /// It gets one, if need be at the cost of another key.
    Sure,
    /// While the map is full, it gets one when it comes a second time.
    IfKnown,
}

/// A key that asks for a place in its stripe.
#[derive(Debug)]
pub struct NewKey<V> {
    /// Its name.
    pub name: u128,
    /// What the map keeps of it.
    pub kept: V,
    /// How it asks.
    pub admittance: Admittance,
}

/// The order in which keys leave; the lowest leaves first. Whether the key is in use, how much of its limit, for how long.
pub type EvictionRank = (bool, u128, Span);

/// What the map keeps of a key. `now` is on the time line that all keys of the map share.
pub trait Evictable {
    /// Cells that the pod has not reported.
    fn pending(&self) -> Cells;
    /// Whether cells of it are in flight: it keeps its place until they land.
    fn is_in_flight(&self) -> bool;
    /// When it leaves, compared with others.
    fn rank(&self, now: Nanos) -> EvictionRank;
    /// Its ghost; `None` if it is as good as new.
    fn ghost(&self, now: Nanos) -> Option<Ghost>;
}

/// The keys of one stripe, by name.
#[derive(Debug)]
pub struct Stripe<V> {
    /// Without gaps, and every chunk full but the last: a hash map of the values would be a third or more empty.
    chunks: Vec<Vec<(u128, V)>>,
    /// The place of each key in `chunks`.
    places: HashTable<u16>,
    seeds: [u64; 2],
}

impl<V> Stripe<V> {
    const fn new(seeds: [u64; 2]) -> Self {
        Self {
            chunks: Vec::new(),
            places: HashTable::new(),
            seeds,
        }
    }

    /// The value of `name`.
    pub fn get(&self, name: u128) -> Option<&V> {
        let place = self.place(name)?;
        Some(&at(&self.chunks, place).1)
    }

    /// The value of `name`, to change it.
    pub fn get_mut(&mut self, name: u128) -> Option<&mut V> {
        let place = usize::from(self.place(name)?);
        Some(&mut self.chunks[place / CHUNK][place % CHUNK].1)
    }

    fn len(&self) -> usize {
        self.places.len()
    }

    fn iter(&self) -> impl Iterator<Item = &(u128, V)> {
        self.chunks.iter().flatten()
    }

    fn place(&self, name: u128) -> Option<u16> {
        let is_it = |place: &u16| at(&self.chunks, *place).0 == name;
        self.places.find(hash(name, self.seeds), is_it).copied()
    }

    /// Adds a key that is not there.
    fn insert(&mut self, name: u128, kept: V) {
        let Ok(place) = u16::try_from(self.len()) else {
            unreachable!("a stripe has fewer keys");
        };
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK => last.push((name, kept)),
            Some(_) | None => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push((name, kept));
                self.chunks.push(chunk);
            }
        }
        let (chunks, seeds) = (&self.chunks, self.seeds);
        let hash_at = |place: &u16| hash(at(chunks, *place).0, seeds);
        self.places.insert_unique(hash(name, seeds), place, hash_at);
    }

    /// Takes a key out. The last key moves to its place.
    fn remove(&mut self, name: u128) -> Option<V> {
        let is_it = |place: &u16| at(&self.chunks, *place).0 == name;
        let entry = self.places.find_entry(hash(name, self.seeds), is_it);
        let (freed, _) = entry.ok()?.remove();
        let last = self.chunks.last_mut()?;
        let moved = last.pop()?;
        if last.is_empty() {
            self.chunks.pop();
        }
        if moved.0 == name {
            return Some(moved.1);
        }
        let from = self.len(); // one is gone already
        let is_last = |place: &u16| usize::from(*place) == from;
        if let Some(place) = self.places.find_mut(hash(moved.0, self.seeds), is_last) {
            *place = freed;
        }
        let freed = usize::from(freed);
        let left = std::mem::replace(&mut self.chunks[freed / CHUNK][freed % CHUNK], moved);
        Some(left.1)
    }
}

fn at<V>(chunks: &[Vec<(u128, V)>], place: u16) -> &(u128, V) {
    let place = usize::from(place);
    &chunks[place / CHUNK][place % CHUNK]
}

/// The map. All methods may be called from any thread.
#[derive(Debug)]
pub struct StripedMap<V> {
    stripes: Box<[Mutex<Stripe<V>>]>,
    keys_max: u64,
    held: AtomicU64,
    ghosts: Ghosts,
    seeds: [u64; 2],
}

impl<V: Evictable> StripedMap<V> {
    /// A map of at most `keys_max` keys, for which `ghosts` is made too. The seeds decide which keys share a stripe and must
    /// not be guessable.
    pub fn new(keys_max: usize, seeds: [u64; 2], ghosts: Ghosts) -> Self {
        let stripes = keys_max.div_ceil(STRIPE_KEYS).max(1);
        Self {
            stripes: (0..stripes)
                .map(|_| Mutex::new(Stripe::new(seeds)))
                .collect(),
            keys_max: keys_max as u64,
            held: AtomicU64::new(0),
            ghosts,
            seeds,
        }
    }

    /// Keys held.
    pub fn held(&self) -> u64 {
        // Ordering: Relaxed. A number for people, and to see whether the map is full.
        self.held.load(Ordering::Relaxed)
    }

    /// The stripe of the key `name`, locked.
    pub fn of(&self, name: u128) -> MutexGuard<'_, Stripe<V>> {
        let bits = spread(name, self.seeds) >> 32;
        lock(&self.stripes[pick(bits, self.stripes.len() as u64)])
    }

    /// Puts a key that is not held into its stripe. Returns how it got its place. If it got one, its ghost is dropped.
    pub fn put(&self, stripe: &mut Stripe<V>, new: NewKey<V>, now: Nanos) -> Room {
        let NewKey {
            name,
            kept,
            admittance,
        } = new;
        let first_sight =
            admittance == Admittance::IfKnown && self.is_full() && self.ghost(name, now).is_none();
        let room = match first_sight {
            true => Room::Nowhere,
            false => self.make_room(stripe, now),
        };
        if room == Room::Nowhere {
            // The new state started from the key's ghost, if it had one, and may end when that ghost does.
            self.set_ghost(name, kept.ghost(now), now);
        } else {
            self.ghosts.forget(name);
            stripe.insert(name, kept);
        }
        room
    }

    /// The ghost of a key that is not held.
    pub fn ghost(&self, name: u128, now: Nanos) -> Option<Ghost> {
        self.ghosts.find(name, now)
    }

    /// Sets the ghost of a key that is not held. The caller holds the lock of the key's stripe.
    pub fn set_ghost(&self, name: u128, ghost: Option<Ghost>, now: Nanos) {
        match ghost {
            Some(ghost) => self.ghosts.replace(name, ghost, now),
            None => self.ghosts.forget(name),
        }
    }

    /// Ghosts that were dropped while their keys were in use.
    pub fn forgotten(&self) -> u64 {
        self.ghosts.forgotten()
    }

    /// Drops the key and its ghost. Returns the pending cells, which are lost.
    pub fn remove(&self, name: u128) -> Cells {
        let mut stripe = self.of(name);
        self.ghosts.forget(name);
        match stripe.remove(name) {
            Some(kept) => {
                self.held.fetch_sub(1, Ordering::Relaxed);
                kept.pending()
            }
            None => Cells::ZERO,
        }
    }

    /// The pending cells of the key; `None` if it is not held.
    pub fn pending(&self, name: u128) -> Option<Cells> {
        self.of(name).get(name).map(Evictable::pending)
    }

    /// The pending cells of all keys.
    pub fn pending_in_all(&self) -> Cells {
        let of_stripe = |stripe: &Mutex<Stripe<V>>| {
            let stripe = lock(stripe);
            let pending = stripe.iter().map(|(_, kept)| kept.pending());
            pending.fold(Cells::ZERO, Cells::plus)
        };
        let stripes = self.stripes.iter().map(of_stripe);
        stripes.fold(Cells::ZERO, Cells::plus)
    }

    fn is_full(&self) -> bool {
        self.held() >= self.keys_max
    }

    fn remember(&self, name: u128, kept: &V, now: Nanos) {
        if let Some(ghost) = kept.ghost(now) {
            self.ghosts.remember(name, ghost, now);
        }
    }

    /// Makes room for one more key. If need be, the key with the lowest rank leaves.
    fn make_room(&self, stripe: &mut Stripe<V>, now: Nanos) -> Room {
        let one_more = |held| (held < self.keys_max).then_some(held + 1);
        // Ordering: Relaxed; see `held`. The key is counted before it is there, so the map never exceeds its bound.
        let relaxed = Ordering::Relaxed;
        if stripe.len() < STRIPE_KEYS_MAX
            && self.held.fetch_update(relaxed, relaxed, one_more).is_ok()
        {
            return Room::Free;
        }
        let may_leave = stripe.iter().filter(|(_, kept)| !kept.is_in_flight());
        let least = may_leave.map(|(name, kept)| (kept.rank(now), *name)).min();
        let Some(((in_use, _, _), name)) = least else {
            return Room::Nowhere;
        };
        let Some(left) = stripe.remove(name) else {
            return Room::Nowhere;
        };
        match in_use {
            true => {
                self.remember(name, &left, now);
                Room::InUse(left.pending())
            }
            false => Room::Settled(left.pending()),
        }
    }
}

/// Begins with other bits than those that pick a stripe.
fn hash(name: u128, seeds: [u64; 2]) -> u64 {
    spread(name, seeds).rotate_left(32)
}

fn lock<V>(stripe: &Mutex<Stripe<V>>) -> MutexGuard<'_, Stripe<V>> {
    stripe.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_is_a_map() {
        let mut stripe = Stripe::new([3, 5]);
        let mut expected = std::collections::BTreeMap::new();
        for step in 0..20_000_u64 {
            // Names that come again, in no order.
            let name = u128::from(step * step % 331) << 64 | u128::from(step % 3);
            match expected.contains_key(&name) {
                false => {
                    stripe.insert(name, step);
                    expected.insert(name, step);
                }
                true if step % 2 == 0 => assert_eq!(stripe.remove(name), expected.remove(&name)),
                true => *stripe.get_mut(name).unwrap() = *expected.get(&name).unwrap(),
            }
            assert_eq!(stripe.get(name), expected.get(&name));
        }
        assert!(expected.len() > 100);
        assert_eq!(stripe.len(), expected.len());
        assert_eq!(stripe.iter().count(), expected.len());
        for (name, kept) in &expected {
            assert_eq!(stripe.get(*name), Some(kept));
        }
        assert_eq!(stripe.remove(u128::MAX), None);
    }
}
