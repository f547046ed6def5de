//! A key of the bucket table: its bits, and which slots it may have.

use super::{GROUP, STRIPES};

/// A key as the table knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableKey {
    pub(super) high: u64,
    pub(super) low: u64,
    /// Each half picks one of its groups.
    pub(super) spread: u64,
    /// Picks everything else.
    pub(super) salt: u64,
}

impl TableKey {
    /// What its ghost is found by.
    pub(super) fn name(&self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }

    /// The byte it is searched by. Never zero, which is the tag of a vacant slot.
    pub(super) const fn tag(&self) -> u8 {
        (self.salt >> 57) as u8 | 0x80
    }

    /// Where in a group it goes if that place is free, and is looked for first.
    #[inline]
    pub(super) const fn place(&self) -> usize {
        (self.salt >> 53) as usize % GROUP
    }

    pub(super) const fn stripe(&self) -> usize {
        self.salt as usize % STRIPES
    }
}
