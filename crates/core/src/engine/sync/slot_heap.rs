//! A binary heap of slots of `tracked_keys.rs`. A slot takes four bytes in it, and knows its position, so it can leave at
//! any time.
//!
//! The heap knows no order: [`RankedSlots`] compares two slots and notes where they are.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// The place of a tracked key in memory.
pub(super) type Slot = u32;

/// The position of a slot that is not in the heap.
pub(super) const NOWHERE: u32 = u32::MAX;

/// The slots that a heap orders.
pub(super) trait RankedSlots {
    /// Whether `a` comes before `b`, or after it. No two slots are equal.
    fn order(&self, a: Slot, b: Slot) -> Ordering;
    /// Where `slot` is in the heap; [`NOWHERE`] if it is not there.
    fn position(&self, slot: Slot) -> u32;
    /// Notes where `slot` is from now on.
    fn set_position(&mut self, slot: Slot, position: u32);
}

/// The heap.
#[derive(Debug, Default)]
pub(super) struct SlotHeap {
    slots: Vec<Slot>,
}

impl SlotHeap {
    pub(super) const fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn first(&self) -> Option<Slot> {
        self.slots.first().copied()
    }

    /// Puts a slot in. `false` if it is there already.
    pub(super) fn insert(&mut self, slots: &mut impl RankedSlots, slot: Slot) -> bool {
        if slots.position(slot) != NOWHERE {
            return false;
        }
        self.slots.push(slot);
        self.rise(slots, self.slots.len() - 1);
        true
    }

    /// Takes a slot out. `false` if it is not there.
    pub(super) fn remove(&mut self, slots: &mut impl RankedSlots, slot: Slot) -> bool {
        let position = slots.position(slot);
        if position == NOWHERE {
            return false;
        }
        let position = position as usize;
        self.slots.swap_remove(position);
        slots.set_position(slot, NOWHERE);
        if position < self.slots.len() {
            let position = self.rise(slots, position);
            self.sink(slots, position);
        }
        self.release_room();
        true
    }

    /// Takes the first slot out.
    pub(super) fn pop(&mut self, slots: &mut impl RankedSlots) -> Option<Slot> {
        let first = self.first()?;
        self.remove(slots, first);
        Some(first)
    }

    /// The first `most` slots, in the order of their ranks, which is that of the heap.
    pub(super) fn firsts<R: Ord>(&self, rank: impl Fn(Slot) -> R, most: usize) -> Vec<Slot> {
        let at = |position: usize| {
            let slot = self.slots.get(position)?;
            Some(Reverse((rank(*slot), position)))
        };
        // A slot comes after its parent, so the next one is always among the children of those that came.
        let mut next: BinaryHeap<_> = at(0).into_iter().collect();
        let mut firsts = Vec::new();
        while firsts.len() < most
            && let Some(Reverse((_, position))) = next.pop()
        {
            firsts.push(self.slots[position]);
            next.extend(at(2 * position + 1));
            next.extend(at(2 * position + 2));
        }
        firsts
    }

    /// Moves the slot at `position` towards the first. Returns where it ends.
    fn rise(&mut self, slots: &mut impl RankedSlots, mut position: usize) -> usize {
        let slot = self.slots[position];
        while position > 0 {
            let parent = (position - 1) / 2;
            if slots.order(self.slots[parent], slot).is_lt() {
                break;
            }
            self.put(slots, self.slots[parent], position);
            position = parent;
        }
        self.put(slots, slot, position);
        position
    }

    /// Moves the slot at `position` away from the first.
    fn sink(&mut self, slots: &mut impl RankedSlots, mut position: usize) {
        let slot = self.slots[position];
        loop {
            let children = [2 * position + 1, 2 * position + 2];
            let children = children.into_iter().filter(|at| *at < self.slots.len());
            let least = children.min_by(|a, b| slots.order(self.slots[*a], self.slots[*b]));
            match least {
                Some(child) if slots.order(self.slots[child], slot).is_lt() => {
                    self.put(slots, self.slots[child], position);
                    position = child;
                }
                Some(_) | None => break,
            }
        }
        self.put(slots, slot, position);
    }

    fn put(&mut self, slots: &mut impl RankedSlots, slot: Slot, position: usize) {
        self.slots[position] = slot;
        slots.set_position(slot, u32::try_from(position).unwrap_or(NOWHERE));
    }

    /// After a flood, gives back the room that it took.
    fn release_room(&mut self) {
        if self.slots.len() < self.slots.capacity() / 8 {
            self.slots.shrink_to(self.slots.capacity() / 4);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Slots with a rank each.
    struct Ranks {
        ranks: Vec<u64>,
        positions: Vec<u32>,
    }

    impl RankedSlots for Ranks {
        fn order(&self, a: Slot, b: Slot) -> Ordering {
            let rank = |slot: Slot| (self.ranks[slot as usize], slot);
            rank(a).cmp(&rank(b))
        }

        fn position(&self, slot: Slot) -> u32 {
            self.positions[slot as usize]
        }

        fn set_position(&mut self, slot: Slot, position: u32) {
            self.positions[slot as usize] = position;
        }
    }

    #[test]
    fn a_heap_is_a_sorted_set() {
        let mut ranks = Ranks {
            ranks: (0..200).map(|slot| slot * slot % 37).collect(),
            positions: vec![NOWHERE; 200],
        };
        let (mut heap, mut expected) = (SlotHeap::default(), BTreeSet::new());
        for step in 0..20_000_u64 {
            let slot = u32::try_from(step * step % 199).unwrap();
            let ranked = (ranks.ranks[slot as usize], slot);
            match step % 5 {
                0..=2 => assert_eq!(heap.insert(&mut ranks, slot), expected.insert(ranked)),
                3 => assert_eq!(heap.remove(&mut ranks, slot), expected.remove(&ranked)),
                _ => {
                    let first = expected.pop_first().map(|(_, slot)| slot);
                    assert_eq!(heap.pop(&mut ranks), first);
                }
            }
            assert_eq!(heap.len(), expected.len());
            let first = expected.first().map(|(_, slot)| *slot);
            assert_eq!(heap.first(), first);
        }
        let firsts: Vec<Slot> = expected.iter().take(20).map(|(_, slot)| *slot).collect();
        assert!(firsts.len() == 20);
        let rank = |slot: Slot| (ranks.ranks[slot as usize], slot);
        assert_eq!(heap.firsts(rank, 20), firsts);
        assert_eq!(heap.firsts(rank, 9_999).len(), expected.len());
    }
}
