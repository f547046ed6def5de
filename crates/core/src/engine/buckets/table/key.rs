//! A key of the bucket table: its bits, and which slots it may have.

use super::{GROUP, STRIPES};

/// A key, hashed for this table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableKey {
    pub(super) high: u64,
    pub(super) low: u64,
    /// Each half picks one of the two groups.
    pub(super) spread: u64,
    /// Picks the tag, the slot and the lock.
    pub(super) salt: u64,
}

impl TableKey {
    /// The name of its ghost.
    pub(super) fn name(&self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }

    /// The byte that a search compares. Never 0, which is the tag of a vacant slot.
    pub(super) const fn tag(&self) -> u8 {
        (self.salt >> 57) as u8 | 0x80
    }

    /// Its preferred slot of a group: the key gets it if it is free, and a search looks there first.
    #[inline]
    pub(super) const fn place(&self) -> usize {
        (self.salt >> 53) as usize % GROUP
    }

    pub(super) const fn stripe(&self) -> usize {
        self.salt as usize % STRIPES
    }
}
