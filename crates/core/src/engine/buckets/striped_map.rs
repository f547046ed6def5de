//! Keys whose state does not fit one word: many small shards, each with its lock.
//!
//! A key takes a lock, for some tens of nanoseconds and shared with few others. A shard is meant for [`STRIPE_KEYS`]
//! keys and holds at most [`STRIPE_KEYS_MAX`], as chance spreads them: no key waits for a large move. When there is no room,
//! the key in the shard that is missed least leaves. Of one that is in use a ghost stays (`ghosts.rs`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

use super::ghosts::{Ghost, Ghosts};
use super::placement::{pick, spread};
use crate::pure::{Cells, Nanos, Span};

/// Keys of one shard when the table is full and they are spread evenly.
const STRIPE_KEYS: usize = 768;
/// The most keys of one shard. So many are there by chance in one shard of half a million.
const STRIPE_KEYS_MAX: usize = 896;
/// A shard grows by so many keys, which are never moved for that: room that is not used yet is small beside what is.
const CHUNK: usize = 32;

/// How a key got its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There was room, or it needed none.
    Free,
    /// A key left that was as good as new. What was not told of it is lost.
    Settled(Cells),
    /// A key left that was in use. That is remembered; what was not told of it is lost.
    InUse(Cells),
    /// It was not let in. What it has used is remembered.
    Nowhere,
}

/// How a key asks for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admittance {
    /// It gets one, if need be at the cost of another key.
    Sure,
    /// While the table is full, it gets one when it comes a second time.
    IfKnown,
}

/// How much a key would be missed; the least leaves first. Whether it is in use, how much of its limit, for how long.
pub type EvictionRank = (bool, u128, Span);

/// What is kept of a key. `now` is on the time line that the keys of the table share.
pub trait Evictable {
    /// Cells that the store has not been told of.
    fn pending(&self) -> Cells;
    /// Whether some are on their way: it keeps its place until they have landed.
    fn is_in_flight(&self) -> bool;
    /// How much it would be missed.
    fn missed(&self, now: Nanos) -> EvictionRank;
    /// What has to be remembered of it; `None` if it is as good as new.
    fn ghost(&self, now: Nanos) -> Option<Ghost>;
}

/// The keys of one shard, by name.
#[derive(Debug)]
pub struct Stripe<V> {
    /// Without gaps, and all but the last chunk full: a map of them would be a third or more empty.
    chunks: Vec<Vec<(u128, V)>>,
    /// Where in `chunks` each is.
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

    /// What is kept of `name`.
    pub fn get(&self, name: u128) -> Option<&V> {
        let place = self.place(name)?;
        Some(&at(&self.chunks, place).1)
    }

    /// The same, to change it.
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
            unreachable!("a shard has fewer keys");
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

    /// Takes a key out. The last one takes its place.
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

/// The table. All methods may be called from any thread.
#[derive(Debug)]
pub struct StripedMap<V> {
    stripes: Box<[Mutex<Stripe<V>>]>,
    keys_max: u64,
    held: AtomicU64,
    ghosts: Ghosts,
    seeds: [u64; 2],
}

impl<V: Evictable> StripedMap<V> {
    /// A table for as many keys as `ghosts` is made for, `keys_max`. The seeds decide who shares a shard and must not be
    /// guessable.
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
        // Ordering: Relaxed. A number for people, and to tell whether the table is full.
        self.held.load(Ordering::Relaxed)
    }

    /// The shard of the key `name`.
    pub fn of(&self, name: u128) -> MutexGuard<'_, Stripe<V>> {
        let bits = spread(name, self.seeds) >> 32;
        lock(&self.stripes[pick(bits, self.stripes.len() as u64)])
    }

    /// Puts a new key into its shard, and says at whose cost. From then on its ghost is what it was before, if it had one.
    pub fn put(
        &self,
        stripe: &mut Stripe<V>,
        (name, kept): (u128, V),
        entry: Admittance,
        now: Nanos,
    ) -> Room {
        let room =
            match entry == Admittance::IfKnown && self.is_full() && self.ghost(name, now).is_none()
            {
                true => Room::Nowhere,
                false => self.make_room(stripe, now),
            };
        if room == Room::Nowhere {
            // What it is now was made of the ghost that it has, if any, and may end when that does.
            self.set_ghost(name, kept.ghost(now), now);
        } else {
            self.ghosts.forget(name);
            stripe.insert(name, kept);
        }
        room
    }

    /// What is remembered of a key that is not held.
    pub fn ghost(&self, name: u128, now: Nanos) -> Option<Ghost> {
        self.ghosts.find(name, now)
    }

    /// Makes `ghost` what is remembered of a key that is not held. Its shard is held by the caller.
    pub fn set_ghost(&self, name: u128, ghost: Option<Ghost>, now: Nanos) {
        match ghost {
            Some(ghost) => self.ghosts.replace(name, ghost, now),
            None => self.ghosts.forget(name),
        }
    }

    /// Keys whose ghosts had to give way while they were in use.
    pub fn forgotten(&self) -> u64 {
        self.ghosts.forgotten()
    }

    /// Drops the key and its ghost, and says what was not told of it.
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

    /// What was not told of the key; `None` if it is not held.
    pub fn pending(&self, name: u128) -> Option<Cells> {
        self.of(name).get(name).map(Evictable::pending)
    }

    /// What was not told of all keys.
    pub fn pending_in_all(&self) -> Cells {
        let of_shard = |stripe: &Mutex<Stripe<V>>| {
            let stripe = lock(stripe);
            let pending = stripe.iter().map(|(_, kept)| kept.pending());
            pending.fold(Cells::ZERO, Cells::plus)
        };
        let stripes = self.stripes.iter().map(of_shard);
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

    /// Room for one key more. If need be, the key that is missed least leaves.
    fn make_room(&self, stripe: &mut Stripe<V>, now: Nanos) -> Room {
        let one_more = |held| (held < self.keys_max).then_some(held + 1);
        // Ordering: Relaxed; see `held`. Counted before the key is there, so the bound is never passed.
        let relaxed = Ordering::Relaxed;
        if stripe.len() < STRIPE_KEYS_MAX
            && self.held.fetch_update(relaxed, relaxed, one_more).is_ok()
        {
            return Room::Free;
        }
        let may_leave = stripe.iter().filter(|(_, kept)| !kept.is_in_flight());
        let least = may_leave
            .map(|(name, kept)| (kept.missed(now), *name))
            .min();
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

/// Other bits first than those that pick a shard.
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
    fn a_shard_is_a_map() {
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
