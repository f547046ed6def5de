//! The keys that the sync tracks, in little memory: chunks of entries, an index of four bytes a key, and a heap of the
//! planned looks.
//!
//! A hash map of the entries would be up to half empty, and a sorted set of looks that are planned in their order is. A flood
//! of keys fills a quarter of `keys_max` entries, so each byte here counts (docs/decisions/0025-memory-of-tracked-keys.md).

use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::key_sync::KeySync;
use super::slot_heap::{NOWHERE, RankedSlots, Slot, SlotHeap};
use crate::pure::Nanos;
use crate::pure::sync::StoreKey;

/// The entries grow by so many keys at a time and move none of them.
const CHUNK: usize = 256;
/// No look is planned.
const NEVER: Nanos = Nanos::new(u64::MAX);

/// A tracked key. Its rule and its kind are in the terms of `key_sync`.
#[derive(Debug)]
struct TrackedEntry {
    key_sync: KeySync,
    /// The upper and the lower half of its name.
    name: [u64; 2],
    /// When the sync looks at it again; [`NEVER`]: no look is planned.
    due: Nanos,
    due_position: u32,
    queue_position: u32,
}

impl TrackedEntry {
    fn key(&self) -> StoreKey {
        let [upper, lower] = self.name.map(u128::from);
        StoreKey {
            kind: self.key_sync.terms.kind,
            rule: self.key_sync.terms.rule,
            name: upper << 64 | lower,
        }
    }
}

/// The entries, by slot.
#[derive(Debug, Default)]
struct TrackedEntries {
    chunks: Vec<Vec<Option<TrackedEntry>>>,
    /// Slots of keys that left.
    free: Vec<Slot>,
}

impl TrackedEntries {
    fn get(&self, slot: Slot) -> Option<&TrackedEntry> {
        let slot = slot as usize;
        self.chunks.get(slot / CHUNK)?.get(slot % CHUNK)?.as_ref()
    }

    fn get_mut(&mut self, slot: Slot) -> Option<&mut TrackedEntry> {
        let slot = slot as usize;
        let chunk = self.chunks.get_mut(slot / CHUNK)?;
        chunk.get_mut(slot % CHUNK)?.as_mut()
    }

    fn key(&self, slot: Slot) -> Option<StoreKey> {
        self.get(slot).map(TrackedEntry::key)
    }

    fn insert(&mut self, entry: TrackedEntry) -> Slot {
        if let Some(slot) = self.free.pop() {
            self.chunks[slot as usize / CHUNK][slot as usize % CHUNK] = Some(entry);
            return slot;
        }
        if self.chunks.last().is_none_or(|last| last.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let last = self.chunks.len() - 1;
        self.chunks[last].push(Some(entry));
        let slot = last * CHUNK + self.chunks[last].len() - 1;
        // There are at most `keys_max` / 4 keys. Beyond four billion slots the sync would track no more keys.
        Slot::try_from(slot).unwrap_or(NOWHERE)
    }

    fn remove(&mut self, slot: Slot) -> Option<TrackedEntry> {
        let at = slot as usize;
        let entry = self.chunks.get_mut(at / CHUNK)?.get_mut(at % CHUNK)?.take();
        if entry.is_some() {
            self.free.push(slot);
        }
        entry
    }

    fn due_rank(&self, slot: Slot) -> Option<(Nanos, StoreKey)> {
        self.get(slot).map(|entry| (entry.due, entry.key()))
    }

    fn iter(&self) -> impl Iterator<Item = &TrackedEntry> {
        self.chunks.iter().flatten().flatten()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut TrackedEntry> {
        self.chunks.iter_mut().flatten().flatten()
    }
}

/// The order of the planned looks: the earliest first, then by key.
struct ByDue<'a>(&'a mut TrackedEntries);

impl RankedSlots for ByDue<'_> {
    fn order(&self, a: Slot, b: Slot) -> Ordering {
        self.0.due_rank(a).cmp(&self.0.due_rank(b))
    }

    fn position(&self, slot: Slot) -> u32 {
        self.0.get(slot).map_or(NOWHERE, |entry| entry.due_position)
    }

    fn set_position(&mut self, slot: Slot, position: u32) {
        if let Some(entry) = self.0.get_mut(slot) {
            entry.due_position = position;
        }
    }
}

/// The tracked keys.
#[derive(Debug, Default)]
pub(super) struct TrackedKeys {
    entries: TrackedEntries,
    /// The slot of each key.
    index: HashTable<Slot>,
    /// Keys with a planned look.
    due: SlotHeap,
    hasher: RandomState,
}

impl TrackedKeys {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn slot(&self, key: &StoreKey) -> Option<Slot> {
        let is_it = |slot: &Slot| self.entries.key(*slot) == Some(*key);
        self.index.find(self.hasher.hash_one(key), is_it).copied()
    }

    /// The key in `slot`.
    pub(super) fn key(&self, slot: Slot) -> Option<StoreKey> {
        self.entries.key(slot)
    }

    pub(super) fn contains_key(&self, key: &StoreKey) -> bool {
        self.slot(key).is_some()
    }

    pub(super) fn get(&self, key: &StoreKey) -> Option<&KeySync> {
        let entry = self.entries.get(self.slot(key)?)?;
        Some(&entry.key_sync)
    }

    pub(super) fn get_mut(&mut self, key: &StoreKey) -> Option<&mut KeySync> {
        let slot = self.slot(key)?;
        let entry = self.entries.get_mut(slot)?;
        Some(&mut entry.key_sync)
    }

    /// The state of `key`. If the sync does not track it yet, it starts as `new` says.
    pub(super) fn get_or_insert(
        &mut self,
        key: StoreKey,
        new: impl FnOnce() -> KeySync,
    ) -> &mut KeySync {
        let slot = match self.slot(&key) {
            Some(slot) => slot,
            None => self.insert(key, new()),
        };
        match self.entries.get_mut(slot) {
            Some(entry) => &mut entry.key_sync,
            None => unreachable!("the index names slots that are in use"),
        }
    }

    fn insert(&mut self, key: StoreKey, key_sync: KeySync) -> Slot {
        let [upper, lower] = [key.name >> 64, key.name & u128::from(u64::MAX)];
        let slot = self.entries.insert(TrackedEntry {
            key_sync,
            name: [upper as u64, lower as u64],
            due: NEVER,
            due_position: NOWHERE,
            queue_position: NOWHERE,
        });
        let (entries, hasher) = (&self.entries, &self.hasher);
        let hash_at = |slot: &Slot| entries.key(*slot).map_or(0, |key| hasher.hash_one(key));
        self.index
            .insert_unique(hasher.hash_one(key), slot, hash_at);
        slot
    }

    /// Drops a key that is not queued, and its planned look.
    pub(super) fn remove(&mut self, key: &StoreKey) -> Option<KeySync> {
        self.cancel_look(key);
        let is_it = |slot: &Slot| self.entries.key(*slot) == Some(*key);
        let found = self.index.find_entry(self.hasher.hash_one(key), is_it);
        let (slot, _) = found.ok()?.remove();
        let entry = self.entries.remove(slot)?;
        if self.index.is_empty() {
            // After a flood, gives back the room that it took.
            (self.entries, self.index) = (TrackedEntries::default(), HashTable::new());
        }
        Some(entry.key_sync)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (StoreKey, &KeySync)> {
        let entries = self.entries.iter();
        entries.map(|entry| (entry.key(), &entry.key_sync))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (StoreKey, &mut KeySync)> {
        let entries = self.entries.iter_mut();
        entries.map(|entry| (entry.key(), &mut entry.key_sync))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &KeySync> {
        self.entries.iter().map(|entry| &entry.key_sync)
    }

    /// Plans a look at a key at `at`, unless an earlier one is planned.
    pub(super) fn look_again(&mut self, key: &StoreKey, at: Nanos) {
        let Some(slot) = self.slot(key) else {
            return;
        };
        let planned = self.entries.get(slot).map_or(NEVER, |entry| entry.due);
        if planned <= at {
            return;
        }
        self.due.remove(&mut ByDue(&mut self.entries), slot);
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.due = at;
        }
        self.due.insert(&mut ByDue(&mut self.entries), slot);
    }

    /// Cancels the planned look at a key.
    pub(super) fn cancel_look(&mut self, key: &StoreKey) {
        if let Some(slot) = self.slot(key) {
            self.due.remove(&mut ByDue(&mut self.entries), slot);
            if let Some(entry) = self.entries.get_mut(slot) {
                entry.due = NEVER;
            }
        }
    }

    /// Since when the key in `slot` waits in the send queue.
    pub(super) fn waits_since(&self, slot: Slot) -> Option<Nanos> {
        let place = self.entries.get(slot)?.key_sync.phase.place()?;
        Some(place.since)
    }

    /// When the next look is due.
    pub(super) fn next_look(&self) -> Option<Nanos> {
        let entry = self.entries.get(self.due.first()?)?;
        Some(entry.due)
    }

    /// Takes out the first of the looks that are due at `now`.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<StoreKey> {
        self.next_look().filter(|at| *at <= now)?;
        let slot = self.due.pop(&mut ByDue(&mut self.entries))?;
        let entry = self.entries.get_mut(slot)?;
        entry.due = NEVER;
        Some(entry.key())
    }

    /// The `most` keys whose looks are next, in their order.
    pub(super) fn next_looks(&self, most: usize) -> impl Iterator<Item = StoreKey> {
        let slots = self.due.firsts(|slot| self.entries.due_rank(slot), most);
        slots.into_iter().filter_map(|slot| self.entries.key(slot))
    }
}

/// The order of keys that wait in the send queue: the one that has waited longest first, then by key.
impl RankedSlots for TrackedKeys {
    fn order(&self, a: Slot, b: Slot) -> Ordering {
        let rank = |slot| (self.waits_since(slot), self.key(slot));
        rank(a).cmp(&rank(b))
    }

    fn position(&self, slot: Slot) -> u32 {
        let entry = self.entries.get(slot);
        entry.map_or(NOWHERE, |entry| entry.queue_position)
    }

    fn set_position(&mut self, slot: Slot, position: u32) {
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.queue_position = position;
        }
    }
}
