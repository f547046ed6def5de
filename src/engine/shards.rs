//! Keys whose state does not fit one word: many small shards, each with its lock.
//!
//! A key takes a lock, for some tens of nanoseconds and shared with few others. A shard is meant for [`SHARD_KEYS`]
//! keys and holds at most twice as many, as chance spreads them: no key waits for a large move. When there is no room,
//! the key in the shard that is missed least leaves.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::pure::{Cells, Span};

/// Keys of one shard when the table is full and they are spread evenly.
const SHARD_KEYS: usize = 512;

/// How a key got its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There was room, or it needed none.
    Free,
    /// A key left that was as good as new. What was not told of it is lost.
    Settled(Cells),
    /// A key left that was in use. What was not told of it is lost.
    InUse(Cells),
    /// There was none: nothing was counted.
    Nowhere,
}

/// How much a key would be missed; the least leaves first. Whether it is in use, how much of its limit, for how long.
pub type Missed = (bool, u128, Span);

/// What is kept of a key.
pub trait Kept {
    /// Cells that the store has not been told of.
    fn pending(&self) -> Cells;
    /// Whether some are on their way: it keeps its place until they have landed.
    fn is_in_flight(&self) -> bool;
}

/// The keys of one shard, by name.
pub type Shard<V> = HashMap<u128, V>;

/// The table. All methods may be called from any thread.
#[derive(Debug)]
pub struct Shards<V> {
    shards: Box<[Mutex<Shard<V>>]>,
    keys_max: u64,
    held: AtomicU64,
}

impl<V: Kept> Shards<V> {
    /// A table for at most `keys_max` keys.
    pub fn new(keys_max: usize) -> Self {
        let shards = keys_max.div_ceil(SHARD_KEYS).next_power_of_two();
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            keys_max: keys_max as u64,
            held: AtomicU64::new(0),
        }
    }

    /// Keys held.
    pub fn held(&self) -> u64 {
        // Ordering: Relaxed. A number for people and for the doorkeeper's threshold.
        self.held.load(Ordering::Relaxed)
    }

    /// The most keys it holds.
    pub const fn keys_max(&self) -> u64 {
        self.keys_max
    }

    /// The shard of the key `name`.
    pub fn of(&self, name: u128) -> MutexGuard<'_, Shard<V>> {
        // The top bits: the map inside hashes anew, with a seed of this process.
        let index = (name >> 64) as usize & (self.shards.len() - 1);
        lock(&self.shards[index])
    }

    /// Puts a new key into its shard, and says at whose cost.
    pub fn put(
        &self,
        shard: &mut Shard<V>,
        (name, kept): (u128, V),
        missed: impl Fn(&V) -> Missed,
    ) -> Room {
        let one_more = |held| (held < self.keys_max).then_some(held + 1);
        // Ordering: Relaxed; see `held`. Counted before the key is there, so the bound is never passed.
        let relaxed = Ordering::Relaxed;
        let is_free = shard.len() < 2 * SHARD_KEYS
            && self.held.fetch_update(relaxed, relaxed, one_more).is_ok();
        let room = match is_free {
            true => Room::Free,
            false => make_room(shard, missed),
        };
        if room != Room::Nowhere {
            shard.insert(name, kept);
        }
        room
    }

    /// Drops the key, and says what was not told of it.
    pub fn remove(&self, name: u128) -> Cells {
        match self.of(name).remove(&name) {
            Some(kept) => {
                self.held.fetch_sub(1, Ordering::Relaxed);
                kept.pending()
            }
            None => Cells::ZERO,
        }
    }

    /// What was not told of the key; `None` if it is not held.
    pub fn pending(&self, name: u128) -> Option<Cells> {
        self.of(name).get(&name).map(Kept::pending)
    }

    /// What was not told of all keys.
    pub fn pending_in_all(&self) -> Cells {
        let of_shard = |shard: &Mutex<Shard<V>>| {
            let shard = lock(shard);
            shard
                .values()
                .map(Kept::pending)
                .fold(Cells::ZERO, Cells::plus)
        };
        let shards = self.shards.iter().map(of_shard);
        shards.fold(Cells::ZERO, Cells::plus)
    }
}

fn lock<V>(shard: &Mutex<Shard<V>>) -> MutexGuard<'_, Shard<V>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops the key that is missed least.
fn make_room<V: Kept>(shard: &mut Shard<V>, missed: impl Fn(&V) -> Missed) -> Room {
    let least = shard
        .iter()
        .filter(|(_, kept)| !kept.is_in_flight())
        .map(|(name, kept)| (missed(kept), *name))
        .min();
    let Some(((in_use, _, _), name)) = least else {
        return Room::Nowhere;
    };
    let left = shard.remove(&name);
    let untold = left.map_or(Cells::ZERO, |kept| kept.pending());
    match in_use {
        true => Room::InUse(untold),
        false => Room::Settled(untold),
    }
}
