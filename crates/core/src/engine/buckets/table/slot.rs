//! The words of a slot: who owns them, how they are claimed, and whose key they carry. The protocol is in `mod.rs`.

use super::TableKey;
use super::book::{TENANCY_SHIFT, tenancy_number};
use crate::engine::atomic::{AtomicU64, Ordering};

pub(super) const VACANT: u64 = 0;
pub(super) const CLAIMED: u64 = u64::MAX;
/// Words of a slot.
pub(super) const SLOT_WORDS: usize = 4;
/// The time that one key has one slot.
#[derive(Clone, Copy, Debug)]
pub struct Tenancy<'a> {
    pub(super) slot: SlotWords<'a>,
    /// The book when it was read. It has the number of the tenancy.
    pub(super) book: u64,
}

/// A slot that carried the key when the search read it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundSlot<'a> {
    pub(super) slot: SlotWords<'a>,
    pub(super) index: usize,
    pub(super) book: u64,
    pub(super) tat: u64,
}

/// The words of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotWords<'a>(pub(super) &'a [AtomicU64; SLOT_WORDS]);

impl<'a> SlotWords<'a> {
    #[inline]
    pub(super) const fn tat(self) -> &'a AtomicU64 {
        &self.0[0]
    }

    #[inline]
    pub(super) const fn book(self) -> &'a AtomicU64 {
        &self.0[1]
    }

    #[inline]
    pub(super) const fn high(self) -> &'a AtomicU64 {
        &self.0[2]
    }

    #[inline]
    pub(super) const fn low(self) -> &'a AtomicU64 {
        &self.0[3]
    }

    /// The key's 128 bits.
    pub(super) fn name(&self) -> u128 {
        // Ordering: Acquire, as in `carries`.
        let [high, low] = [self.high(), self.low()].map(|word| word.load(Ordering::Acquire));
        u128::from(high) << 64 | u128::from(low)
    }

    #[inline]
    pub(super) fn carries(&self, key: &TableKey) -> bool {
        // Ordering: Acquire. The caller has read the TAT before, and swaps or reads it again afterwards. If this reads
        // words of the next tenancy, it pairs with the Release in `enter`, and the TAT is no longer what it was.
        self.high().load(Ordering::Acquire) == key.high
            && self.low().load(Ordering::Acquire) == key.low
    }

    pub(super) fn claim(&self, tat: u64) -> bool {
        // Ordering: AcqRel. From here on only the thread that claimed the slot writes it.
        self.tat()
            .compare_exchange(tat, CLAIMED, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Ends the tenancy of a claimed slot and returns its book. Later notes of that tenancy find another number.
    pub(super) fn end_tenancy(&self) -> u64 {
        // Ordering: AcqRel, so that a note of that tenancy is either in the book that is returned, or refused.
        let next = |book| Some((tenancy_number(book) + 1) << TENANCY_SHIFT);
        self.book()
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
            .unwrap_or(0)
    }
}

pub(super) const fn is_live(tat: u64) -> bool {
    tat != VACANT && tat != CLAIMED
}
