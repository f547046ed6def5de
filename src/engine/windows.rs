//! The state of windowed rules: many small shards, each with its lock.
//!
//! A count over windows does not fit one word, so these keys take a lock, for some tens of nanoseconds and shared with
//! few others. A shard is meant for [`SHARD_KEYS`] keys and holds at most twice as many, as chance spreads them: no key
//! waits for a large move. When there is no room, the key in the shard that is missed least leaves.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::pure::algorithm::fixed_window;
use crate::pure::algorithm::window::WindowState;
use crate::pure::{Algorithm, Cells, Limit, Rule, Span, Standing};

/// Keys of one shard when the table is full and they are spread evenly.
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
    /// There was none: nothing was counted.
    Nowhere,
}

/// The table. All methods may be called from any thread.
#[derive(Debug)]
pub struct Windows {
    shards: Box<[Mutex<HashMap<u128, Counted>>]>,
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
        if !keep {
            return (said, Room::Free);
        }
        let room = self.room(&mut shard, key.unix);
        if room != Room::Nowhere {
            let limit = *key.limit;
            shard.insert(key.name, Counted { state, limit });
        }
        (said, room)
    }

    /// Room for one more key in `shard`.
    fn room(&self, shard: &mut HashMap<u128, Counted>, unix: Span) -> Room {
        let one_more = |held| (held < self.keys_max).then_some(held + 1);
        // Ordering: Relaxed; see `held`. Counted before the key is there, so the bound is never passed.
        let relaxed = Ordering::Relaxed;
        if shard.len() < 2 * SHARD_KEYS
            && self.held.fetch_update(relaxed, relaxed, one_more).is_ok()
        {
            return Room::Free;
        }
        make_room(shard, unix)
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
    /// The state, rescaled if it was counted under another limit, and begun anew with what is used if it was counted by
    /// another algorithm.
    fn under(&mut self, key: &WindowKey<'_>) -> &mut WindowState {
        if self.limit != *key.limit {
            self.state.rescale(&self.limit, key.limit, key.unix);
            self.limit = *key.limit;
        }
        if algorithm(&self.state) != key.rule.spec.algorithm {
            self.state = fresh(key, self.used(key.unix));
        }
        &mut self.state
    }

    fn used(&self, unix: Span) -> Cells {
        let left = self.state.look(&self.limit, unix, Cells::ZERO).remaining;
        Cells::new(self.limit.requests()).less(left)
    }

    /// Smaller is missed less: windows that have passed, then the least used part of a limit, then the soonest to pass.
    fn missed(&self, unix: Span) -> (bool, u128, Span) {
        let ends = self.state.ends(&self.limit, unix);
        let used = u128::from(self.used(unix).get()) << 32;
        let part = used / u128::from(self.limit.requests().max(1));
        (ends > Span::ZERO, part, ends)
    }
}

const fn algorithm(state: &WindowState) -> Algorithm {
    match state {
        WindowState::Fixed(_) => Algorithm::FixedWindow,
        WindowState::Sliding(_) => Algorithm::SlidingWindow,
        WindowState::Log(_) => Algorithm::SlidingLog,
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

/// Drops the key that is missed least.
fn make_room(shard: &mut HashMap<u128, Counted>, unix: Span) -> Room {
    let least = shard
        .iter()
        .map(|(name, counted)| (counted.missed(unix), *name))
        .min();
    let Some(((in_use, _, _), name)) = least else {
        return Room::Nowhere;
    };
    shard.remove(&name);
    match in_use {
        true => Room::InUse,
        false => Room::Settled,
    }
}
