//! The state of windowed rules: many small shards, each with its lock.
//!
//! A count over windows does not fit one word, so these keys take a lock, for some tens of nanoseconds and shared with
//! few others. A shard holds at most [`SHARD_KEYS`] keys and grows by at most doubling that: no key waits for a large
//! move. A full shard lets the key go that is missed least.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::pure::algorithm::fixed_window;
use crate::pure::algorithm::window::WindowState;
use crate::pure::{Cells, Limit, Rule, Span, Standing};

/// Keys of one shard.
const SHARD_KEYS: usize = 512;

/// A key's counts, and the limit they were counted under.
#[derive(Debug)]
struct Counted {
    state: WindowState,
    limit: Limit,
}

/// How a key got its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There was room, or it needed none.
    Free,
    /// A key left whose windows had passed.
    Settled,
    /// A key left whose windows had not passed.
    InUse,
}

/// The table. All methods may be called from any thread.
#[derive(Debug)]
pub struct Windows {
    shards: Box<[Mutex<HashMap<u128, Counted>>]>,
    shard_keys_max: usize,
    keys_max: u64,
    held: AtomicU64,
}

/// A key of a windowed rule at one instant.
#[derive(Clone, Copy, Debug)]
pub struct WindowKey<'a> {
    /// Its name.
    pub name: u128,
    /// Its rule.
    pub rule: &'a Rule,
    /// The rule's limit.
    pub limit: &'a Limit,
    /// The time since the Unix epoch.
    pub unix: Span,
}

impl Windows {
    /// A table for at most `keys_max` keys.
    pub fn new(keys_max: usize) -> Self {
        let shards = keys_max.div_ceil(SHARD_KEYS).next_power_of_two();
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            shard_keys_max: (keys_max / shards).max(1),
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

    /// Whether `key` is held.
    pub fn holds(&self, key: &WindowKey<'_>) -> bool {
        self.shard(key.name).contains_key(&key.name)
    }

    /// What a check of `cost` would be told. Changes nothing.
    pub fn look(&self, key: &WindowKey<'_>, opening: Cells, cost: Cells) -> Standing {
        let mut shard = self.shard(key.name);
        match shard.get_mut(&key.name) {
            Some(counted) => counted.under(key).look(key.limit, key.unix, cost),
            None => fresh(key, opening).look(key.limit, key.unix, cost),
        }
    }

    /// Decides a check of `cost` and counts it if it is allowed. A key that is not held starts with `opening` cells.
    pub fn admit(&self, key: &WindowKey<'_>, opening: Cells, cost: Cells) -> (Standing, Room) {
        self.with(key, opening, |state| {
            let standing = state.decide(key.limit, key.unix, cost);
            (standing, standing.allowed)
        })
    }

    /// Counts `cost` although it was denied.
    pub fn charge(&self, key: &WindowKey<'_>, cost: Cells) -> Room {
        self.with(key, Cells::ZERO, |state| {
            (state.charge(key.limit, key.unix, cost), true)
        })
        .1
    }

    /// Takes back what an admission at this instant counted.
    pub fn give_back(&self, key: &WindowKey<'_>, cost: Cells) {
        if let Some(counted) = self.shard(key.name).get_mut(&key.name) {
            counted.under(key).give_back(key.limit, key.unix, cost);
        }
    }

    /// Runs `step` on the key's state; keeps a state that is new only if `step` says it is worth it.
    fn with<R>(
        &self,
        key: &WindowKey<'_>,
        opening: Cells,
        step: impl FnOnce(&mut WindowState) -> (R, bool),
    ) -> (R, Room) {
        let mut shard = self.shard(key.name);
        if let Some(counted) = shard.get_mut(&key.name) {
            return (step(counted.under(key)).0, Room::Free);
        }
        let mut state = fresh(key, opening);
        let (said, keep) = step(&mut state);
        let mut room = Room::Free;
        if keep {
            if shard.len() >= self.shard_keys_max {
                room = make_room(&mut shard, key.unix);
            } else {
                self.held.fetch_add(1, Ordering::Relaxed);
            }
            shard.insert(
                key.name,
                Counted {
                    state,
                    limit: *key.limit,
                },
            );
        }
        (said, room)
    }

    fn shard(&self, name: u128) -> MutexGuard<'_, HashMap<u128, Counted>> {
        // The top bits: the map inside hashes anew, with a seed of this process.
        let index = (name >> 64) as usize & (self.shards.len() - 1);
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
    /// The state, rescaled if it was counted under another limit.
    fn under(&mut self, key: &WindowKey<'_>) -> &mut WindowState {
        if self.limit != *key.limit {
            self.state.rescale(&self.limit, key.limit, key.unix);
            self.limit = *key.limit;
        }
        &mut self.state
    }
}

fn fresh(key: &WindowKey<'_>, opening: Cells) -> WindowState {
    let counts = || WindowState::Fixed(fixed_window::State::default());
    let mut state = WindowState::new(key.rule.spec.algorithm).unwrap_or_else(counts);
    if opening > Cells::ZERO {
        state.charge(key.limit, key.unix, opening);
    }
    state
}

/// Drops the key whose windows pass soonest.
fn make_room(shard: &mut HashMap<u128, Counted>, unix: Span) -> Room {
    let soonest = shard
        .iter()
        .map(|(name, counted)| (counted.state.ends(&counted.limit, unix), *name))
        .min();
    match soonest {
        Some((ends, name)) => {
            shard.remove(&name);
            if ends == Span::ZERO {
                Room::Settled
            } else {
                Room::InUse
            }
        }
        None => Room::Free,
    }
}
