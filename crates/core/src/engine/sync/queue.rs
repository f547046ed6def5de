//! The send queue: the keys that wait for a report, in the order in which the pod reports them.
//!
//! The order is over keys, not groups: first keys whose share has just denied a check, then contested keys, then the rest;
//! within each of these the key that has waited longest. Groups only say which keys can share a call. One call in
//! [`BY_AGE_EVERY`] takes the keys that have waited longest, however urgent they are, so no key waits for ever.

use super::slot_heap::{Slot, SlotHeap};
use super::tracked_keys::TrackedKeys;
use crate::pure::sync::{Group, Grouping, StoreKey};
use crate::pure::{Nanos, Span};

/// One of so many calls goes by age alone, if a key has waited for [`OLD`].
const BY_AGE_EVERY: u64 = 4;
const OLD: Span = Span::seconds(1);

/// How soon the pod should report a key; the first variant is the most urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Its share has denied a check that the whole limit might have admitted.
    ShareDenied,
    /// Its burst is smaller than the number of pods, or more than half of it is in use: each pod alone could exceed it.
    Contested,
    Ordinary,
}

impl Urgency {
    const ALL: [Self; 3] = [Self::ShareDenied, Self::Contested, Self::Ordinary];
}

/// The place of a key in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuePlace {
    pub(super) urgency: Urgency,
    /// Since when the key waits.
    pub(super) since: Nanos,
}

/// How a call chooses its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueOrder {
    Urgency,
    Age,
}

/// Which keys a call takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallKeys {
    pub(super) group: Group,
    pub(super) order: QueueOrder,
    /// At most so many.
    pub(super) most: usize,
    /// Ordinary ones only while it has taken fewer than this.
    pub(super) ordinary_most: usize,
}

/// The waiting keys of a group.
#[derive(Debug)]
struct GroupQueue {
    keys: [SlotHeap; Urgency::ALL.len()],
    /// Since when the first key of each urgency waits; [`NONE`] if there is none.
    firsts: [Nanos; Urgency::ALL.len()],
}

/// No key waits since then.
const NONE: Nanos = Nanos::new(u64::MAX);

impl Default for GroupQueue {
    fn default() -> Self {
        Self {
            keys: Default::default(),
            firsts: [NONE; Urgency::ALL.len()],
        }
    }
}

impl GroupQueue {
    /// The place of the first key.
    fn head(&self, order: QueueOrder) -> Option<QueuePlace> {
        let heads = Urgency::ALL.into_iter().zip(self.firsts);
        let mut heads = heads
            .filter(|(_, since)| *since < NONE)
            .map(|(urgency, since)| QueuePlace { urgency, since });
        match order {
            QueueOrder::Urgency => heads.next(),
            QueueOrder::Age => heads.min_by_key(|place| place.since),
        }
    }

    fn insert(&mut self, keys: &mut TrackedKeys, slot: Slot, place: QueuePlace) -> bool {
        let index = place.urgency as usize;
        self.firsts[index] = self.firsts[index].min(place.since);
        self.keys[index].insert(keys, slot)
    }

    fn remove(&mut self, keys: &mut TrackedKeys, slot: Slot, urgency: Urgency) -> bool {
        let was_there = self.keys[urgency as usize].remove(keys, slot);
        self.note_first(keys, urgency);
        was_there
    }

    fn pop(&mut self, keys: &mut TrackedKeys, urgency: Urgency) -> Option<StoreKey> {
        let first = self.keys[urgency as usize].pop(keys);
        self.note_first(keys, urgency);
        first.and_then(|slot| keys.key(slot))
    }

    fn note_first(&mut self, keys: &TrackedKeys, urgency: Urgency) {
        let first = self.keys[urgency as usize].first();
        let since = first.and_then(|slot| keys.waits_since(slot));
        self.firsts[urgency as usize] = since.unwrap_or(NONE);
    }

    fn is_empty(&self) -> bool {
        self.firsts == [NONE; Urgency::ALL.len()]
    }
}

/// The send queue.
#[derive(Debug)]
pub(super) struct SendQueue {
    grouping: Grouping,
    groups: Vec<GroupQueue>,
    /// The number of waiting keys, by urgency.
    waiting: [usize; Urgency::ALL.len()],
    calls: u64,
}

impl SendQueue {
    pub(super) fn new(grouping: Grouping) -> Self {
        Self {
            grouping,
            groups: grouping.groups().map(|_| GroupQueue::default()).collect(),
            waiting: [0; Urgency::ALL.len()],
            calls: 0,
        }
    }

    /// Puts the keys into other groups.
    pub(super) fn regroup(&mut self, keys: &mut TrackedKeys, grouping: Grouping) {
        let before = std::mem::replace(self, Self::new(grouping));
        for group in before.groups {
            for (urgency, mut slots) in Urgency::ALL.into_iter().zip(group.keys) {
                while let Some(slot) = slots.pop(keys) {
                    if let (Some(key), Some(since)) = (keys.key(slot), keys.waits_since(slot)) {
                        self.insert(keys, key, QueuePlace { urgency, since });
                    }
                }
            }
        }
    }

    fn of_key(&mut self, key: StoreKey) -> &mut GroupQueue {
        let group = self.grouping.group_of(key.lane());
        &mut self.groups[group.index()]
    }

    /// Puts in a tracked key whose phase has this place.
    pub(super) fn insert(&mut self, keys: &mut TrackedKeys, key: StoreKey, place: QueuePlace) {
        if let Some(slot) = keys.slot(&key) {
            let is_new = self.of_key(key).insert(keys, slot, place);
            self.waiting[place.urgency as usize] += usize::from(is_new);
        }
    }

    /// Takes out a key that had this place.
    pub(super) fn remove(&mut self, keys: &mut TrackedKeys, key: StoreKey, place: QueuePlace) {
        if let Some(slot) = keys.slot(&key) {
            let was_there = self.of_key(key).remove(keys, slot, place.urgency);
            self.waiting[place.urgency as usize] -= usize::from(was_there);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting == [0; Urgency::ALL.len()]
    }

    /// The number of keys that are at least as urgent as this.
    pub(super) fn len_up_to(&self, urgency: Urgency) -> usize {
        self.waiting[..=urgency as usize].iter().sum()
    }

    /// The number of keys of a group that are at least as urgent as this.
    pub(super) fn len_in(&self, group: Group, urgency: Urgency) -> usize {
        let group = &self.groups[group.index()];
        let sets = group.keys[..=urgency as usize].iter();
        sets.map(SlotHeap::len).sum()
    }

    pub(super) fn is_empty_in(&self, group: Group) -> bool {
        self.groups[group.index()].is_empty()
    }

    /// How the next call chooses its keys. While no key is urgent, urgency and age are the same order.
    pub(super) fn order(&self, now: Nanos) -> QueueOrder {
        let urgent = self.len_up_to(Urgency::Contested) > 0;
        if !urgent || self.calls % BY_AGE_EVERY < BY_AGE_EVERY - 1 {
            return QueueOrder::Urgency;
        }
        let mut firsts = self.groups.iter().flat_map(|group| group.firsts);
        match firsts.any(|since| since < NONE && now.since(since) >= OLD) {
            true => QueueOrder::Age,
            false => QueueOrder::Urgency,
        }
    }

    /// The group of `groups` whose first key comes first, and that key's place.
    pub(super) fn first(&self, groups: &[Group], order: QueueOrder) -> Option<(Group, QueuePlace)> {
        let heads = groups.iter().filter_map(|group| {
            let head = self.groups[group.index()].head(order)?;
            Some((*group, head))
        });
        heads.min_by_key(|(_, head)| match order {
            QueueOrder::Urgency => (head.urgency, head.since),
            QueueOrder::Age => (Urgency::Ordinary, head.since),
        })
    }

    /// Takes the keys of a call.
    pub(super) fn take(&mut self, keys: &mut TrackedKeys, call: &CallKeys) -> Vec<StoreKey> {
        let CallKeys {
            group,
            order,
            most,
            ordinary_most,
        } = *call;
        self.calls += 1;
        let queue = &mut self.groups[group.index()];
        let mut taken = Vec::new();
        while let Some(QueuePlace { urgency, .. }) = queue.head(order) {
            let full = match (order, urgency) {
                (QueueOrder::Urgency, Urgency::Ordinary) => taken.len() >= most.min(ordinary_most),
                (QueueOrder::Age, _) | (_, Urgency::ShareDenied | Urgency::Contested) => {
                    taken.len() >= most
                }
            };
            if full {
                break;
            }
            if let Some(key) = queue.pop(keys, urgency) {
                self.waiting[urgency as usize] -= 1;
                taken.push(key);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::sync::key_sync::{KeySync, KeyTerms};
    use crate::engine::sync::phase::PhaseEvent;
    use crate::pure::sync::{Lane, Share, Terms};
    use crate::pure::{Limit, Unit};

    fn insert(queue: &mut SendQueue, keys: &mut TrackedKeys, key: StoreKey, place: QueuePlace) {
        let limit = Limit::new(1, Unit::Second, 1, None).unwrap();
        let terms = KeyTerms {
            kind: key.kind,
            rule: key.rule,
            limit,
            store: Terms::level(&limit),
        };
        let new = || KeySync::new(Arc::new(terms), Share::WHOLE, place.since);
        keys.get_or_insert(key, new)
            .happen(PhaseEvent::Enqueue(place));
        queue.insert(keys, key, place);
    }

    /// A key of the lane of that number.
    fn key(lane: u8, rule: u64) -> StoreKey {
        let name = (0..)
            .find(|name| Lane::of(*name) == Lane::new(lane))
            .unwrap();
        StoreKey::level(rule, name)
    }

    fn place(urgency: Urgency, since: u64) -> QueuePlace {
        let since = Nanos::new(since);
        QueuePlace { urgency, since }
    }

    /// The rules' numbers of the keys that three calls of at most two keys take.
    fn taken(waiting: &[(u8, u64, QueuePlace)], calls: usize) -> Vec<Vec<u64>> {
        let grouping = Grouping::PerLane;
        let (mut queue, mut keys) = (SendQueue::new(grouping), TrackedKeys::default());
        for (lane, rule, place) in waiting {
            insert(&mut queue, &mut keys, key(*lane, *rule), *place);
        }
        let groups: Vec<Group> = grouping.groups().collect();
        let call = |_| {
            let order = queue.order(Nanos::new(2_000_000_000));
            let (group, _) = queue.first(&groups, order)?;
            let call = CallKeys {
                group,
                order,
                most: 2,
                ordinary_most: 2,
            };
            let taken = queue.take(&mut keys, &call);
            Some(taken.iter().map(|key| key.rule).collect())
        };
        (0..calls).map_while(call).collect()
    }

    #[test]
    fn urgent_keys_go_first_whatever_their_group() {
        use Urgency::{Contested, Ordinary, ShareDenied};
        let keys = [
            (0, 1, place(Ordinary, 1)),
            (0, 2, place(Ordinary, 2)),
            (63, 3, place(ShareDenied, 9)),
            (7, 4, place(Contested, 5)),
            (7, 5, place(Ordinary, 3)),
        ];
        let by_call = [vec![3], vec![4, 5], vec![1, 2]];
        assert_eq!(taken(&keys, 9), by_call);
    }

    #[test]
    fn the_oldest_goes_with_every_fourth_call_however_many_are_urgent() {
        let urgent = (0..9).map(|n| (1, 100 + n, place(Urgency::Contested, 50 + n)));
        let old = [(2, 7, place(Urgency::Ordinary, 1))];
        let keys: Vec<_> = urgent.chain(old).collect();
        assert_eq!(taken(&keys, 4)[3], [7]);
    }

    #[test]
    fn a_removed_key_is_gone() {
        let grouping = Grouping::PerLane;
        let (mut queue, mut keys) = (SendQueue::new(grouping), TrackedKeys::default());
        let at = place(Urgency::Contested, 4);
        insert(&mut queue, &mut keys, key(3, 1), at);
        insert(&mut queue, &mut keys, key(3, 1), at);
        let waiting = |urgency| queue.len_up_to(urgency);
        assert_eq!(
            (waiting(Urgency::ShareDenied), waiting(Urgency::Ordinary)),
            (0, 1)
        );
        queue.remove(&mut keys, key(3, 1), at);
        queue.remove(&mut keys, key(3, 1), at);
        assert!(queue.is_empty());
        assert!(queue.is_empty_in(Grouping::PerLane.group_of(Lane::new(3))));
    }

    #[test]
    fn keys_keep_their_places_when_their_group_is_split() {
        let grouping = Grouping::Whole;
        let (mut queue, mut keys) = (SendQueue::new(grouping), TrackedKeys::default());
        let waiting = [(3, 1, 4), (9, 2, 5), (3, 3, 6)];
        for (lane, rule, since) in waiting {
            let at = place(Urgency::Contested, since);
            insert(&mut queue, &mut keys, key(lane, rule), at);
        }
        queue.regroup(&mut keys, Grouping::Split);
        assert_eq!(queue.len_up_to(Urgency::Contested), waiting.len());
        let call = CallKeys {
            group: Grouping::Split.group_of(Lane::new(3)),
            order: QueueOrder::Urgency,
            most: 9,
            ordinary_most: 9,
        };
        assert_eq!(queue.take(&mut keys, &call), [key(3, 1), key(3, 3)]);
    }
}
