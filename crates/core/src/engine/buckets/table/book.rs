//! The book of a slot: one word that has the pending cells, the trigger or the share, and the state of the key.

use super::slot::{Tenancy, is_live};
use super::{Table, TableKey, Touch};
use crate::engine::atomic::Ordering;
use crate::pure::sync::{ShareCode, Trigger};
use crate::pure::{Cells, Nanos, Span};

/// The book of a slot, from the top: the number of the tenancy (14 bits), the size of the bucket (5 bits), whether the
/// fleet's level denies the key, whether cells of it are in flight, whether its share has denied a check, whether the pod
/// grants only a share of it, the trigger (7 bits), and the pending cells: admitted and not yet collected. While the pod
/// grants only a share, every cell is a trigger, and the trigger's bits are the share.
pub(super) const PENDING_BITS: u32 = 34;
pub(super) const PENDING_MAX: u64 = (1 << PENDING_BITS) - 1;
pub(super) const TRIGGER_SHIFT: u32 = PENDING_BITS;
pub(super) const TRIGGER_BITS: u64 = 0x7f << TRIGGER_SHIFT;
pub(super) const BY_SHARE: u64 = 1 << 41;
pub(super) const SHARE_DENIED: u64 = 1 << 42;
pub(super) const IN_FLIGHT: u64 = 1 << 43;
pub(super) const MITIGATED: u64 = 1 << 44;
pub(super) const SIZE_SHIFT: u32 = 45;
pub(super) const SIZE_BITS: u64 = 0x1f;
pub(super) const TENANCY_SHIFT: u32 = 50;

/// The state of a bucket, without its pending cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketState {
    /// Where it ends.
    pub tat: Nanos,
    /// Whether the fleet's level denies its key.
    pub mitigated: bool,
    /// The share that this pod grants of its key; `None` if it grants the whole key.
    pub granted: Option<ShareCode>,
    /// The size of the bucket.
    pub size: BucketSize,
}

impl BucketState {
    /// A bucket at `tat` of which nothing else is known.
    pub const fn at(tat: Nanos) -> Self {
        Self {
            tat,
            mitigated: false,
            granted: None,
            size: BucketSize::UNKNOWN,
        }
    }
}

/// The result of a note of admitted cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Booking {
    /// The cells are pending.
    Noted,
    /// The cells are pending, and with them the key has reached its trigger.
    Triggered,
    /// The key has left its slot meanwhile: the cells are not noted.
    Left,
}

/// The size of a bucket: the smallest power of four that its capacity fits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSize(pub(super) u8);

impl BucketSize {
    /// The size of a bucket whose capacity is unknown: it counts as full as soon as it is in use.
    pub const UNKNOWN: Self = Self(0);

    /// The size of a bucket with this capacity.
    pub const fn of(capacity: Span) -> Self {
        let bits = u64::BITS - capacity.get().saturating_sub(1).leading_zeros();
        // No capacity is longer than a hundred years, which is below 2^62.
        Self(if bits < 62 {
            bits.div_ceil(2) as u8
        } else {
            31
        })
    }

    pub(super) const fn of_book(book: u64) -> Self {
        Self((book >> SIZE_SHIFT & SIZE_BITS) as u8)
    }

    /// How many 64ths of it are in use at `level`, roughly.
    pub const fn part_of(self, level: u64) -> u64 {
        let parts = level.saturating_mul(64) >> (2 * self.0);
        if parts < 64 { parts } else { 64 }
    }
}

/// A bucket that enters the table, or has left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedBucket {
    /// Where it ends.
    pub tat: Nanos,
    /// Its size.
    pub size: BucketSize,
    /// Its pending cells.
    pub pending: Cells,
    /// How many pending cells trigger a report.
    pub trigger: Trigger,
}

impl MovedBucket {
    /// A bucket at `tat` that is never reported.
    pub const fn at(tat: Nanos) -> Self {
        Self {
            tat,
            size: BucketSize::UNKNOWN,
            pending: Cells::ZERO,
            trigger: Trigger::NEVER,
        }
    }
}

/// A bucket as it was when its cells were collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectedCells {
    /// The cells that were pending.
    pub cells: Cells,
    /// Its TAT, with those cells.
    pub tat: Nanos,
}

impl Table {
    /// Notes admitted `cells` as pending.
    #[inline(always)]
    pub fn book(&self, tenancy: &Tenancy<'_>, cells: Cells) -> Booking {
        let after = |book: u64| {
            (book & PENDING_MAX)
                .saturating_add(cells.get())
                .min(PENDING_MAX)
        };
        let Some(book) = tenancy.update_book(|book| book & !PENDING_MAX | after(book)) else {
            return Booking::Left;
        };
        match trigger(book).is_crossed(book & PENDING_MAX, after(book)) {
            true => Booking::Triggered,
            false => Booking::Noted,
        }
    }

    /// Moves the trigger of a key above its pending cells, because the sync queue had no room for the key.
    #[cold]
    pub fn rearm(&self, tenancy: &Tenancy<'_>) {
        let _ = tenancy.update_book(|book| match book & BY_SHARE {
            0 => {
                let above = u64::from(Trigger::above(pending(book)).code());
                book & !TRIGGER_BITS | above << TRIGGER_SHIFT
            }
            // The bits are the share, and every cell is a trigger.
            _ => book,
        });
    }

    /// Takes back at most `cells` pending cells. Returns how many it took.
    pub fn unbook(&self, tenancy: &Tenancy<'_>, cells: Cells) -> Cells {
        let taken = |book: u64| cells.min(pending(book));
        match tenancy.update_book(|book| book - taken(book).get()) {
            Some(before) => taken(before),
            None => Cells::ZERO,
        }
    }

    /// Collects the pending cells of `key`. With `freeze` the key is in flight from then on and keeps its slot until
    /// [`Table::land`]. `None` if it is not held.
    pub fn collect(&self, key: &TableKey, freeze: bool) -> Option<CollectedCells> {
        let Touch::Held(tat, tenancy) = self.touch(key, |tat| (None, tat)) else {
            return None;
        };
        let in_flight = if freeze { IN_FLIGHT } else { 0 };
        let before = tenancy.update_book(|book| book & !PENDING_MAX | in_flight)?;
        Some(CollectedCells {
            cells: pending(before),
            tat,
        })
    }

    /// The pending cells of `key`; `None` if it is not held.
    pub fn pending(&self, key: &TableKey) -> Option<Cells> {
        match self.touch(key, |tat| (None, tat)) {
            Touch::Held(_, Tenancy { book, .. }) => Some(pending(book)),
            Touch::Missing => None,
        }
    }

    /// Ends the flight of `key`, if it is in one, grants the whole key again, and sets its trigger and whether the fleet's
    /// level denies it. `true` if the pending cells have reached the trigger already.
    pub fn land(&self, key: &TableKey, trigger: Trigger, mitigated: bool) -> bool {
        let Touch::Held(_, tenancy) = self.touch(key, |tat| (None, tat)) else {
            return false;
        };
        let mitigated = if mitigated { MITIGATED } else { 0 };
        let set = u64::from(trigger.code()) << TRIGGER_SHIFT | mitigated;
        let cleared = TRIGGER_BITS | IN_FLIGHT | MITIGATED | BY_SHARE | SHARE_DENIED;
        let before = tenancy
            .update_book(|book| book & !cleared | set)
            .unwrap_or(0);
        trigger.cells().is_some_and(|at| pending(before) >= at)
    }

    /// From now on this pod grants only `share` of `key`. Ends the key's flight.
    pub fn grant_by_share(&self, key: &TableKey, share: ShareCode, mitigated: bool) {
        if let Touch::Held(_, tenancy) = self.touch(key, |tat| (None, tat)) {
            let mitigated = if mitigated { MITIGATED } else { 0 };
            let set = u64::from(share.code()) << TRIGGER_SHIFT | mitigated | BY_SHARE;
            let cleared = TRIGGER_BITS | IN_FLIGHT | MITIGATED | SHARE_DENIED;
            let _ = tenancy.update_book(|book| book & !cleared | set);
        }
    }

    /// Notes that the pod's share of a key has denied a check. `true` for the first denial.
    pub fn note_share_denied(&self, tenancy: &Tenancy<'_>) -> bool {
        let before = tenancy.update_book(|book| match book & BY_SHARE {
            0 => book,
            _ => book | SHARE_DENIED,
        });
        before.is_some_and(|before| before & (BY_SHARE | SHARE_DENIED) == BY_SHARE)
    }

    /// Whether the pod's share of `key` has denied a check since the pod began to grant it.
    pub fn is_share_denied(&self, key: &TableKey) -> bool {
        match self.touch(key, |tat| (None, tat)) {
            Touch::Held(_, Tenancy { book, .. }) => book & SHARE_DENIED != 0,
            Touch::Missing => false,
        }
    }

    /// Sets whether the fleet's level denies `key`.
    pub fn mitigate(&self, key: &TableKey, mitigated: bool) {
        if let Touch::Held(_, tenancy) = self.touch(key, |tat| (None, tat)) {
            let set = if mitigated { MITIGATED } else { 0 };
            let _ = tenancy.update_book(|book| book & !MITIGATED | set);
        }
    }

    /// The pending cells of all buckets.
    pub fn pending_in_all(&self) -> Cells {
        // Ordering: Relaxed throughout. A number for people; it is exact while no check runs.
        let in_use = self.tags.iter().enumerate();
        let in_use = in_use.filter(|(_, word)| word.load(Ordering::Relaxed) != 0);
        let slots = in_use.flat_map(|(word, _)| word * 8..(word + 1) * 8);
        let pending_at = |index| {
            let slot = self.slot(index);
            match is_live(slot.tat().load(Ordering::Relaxed)) {
                true => pending(slot.book().load(Ordering::Relaxed)),
                false => Cells::ZERO,
            }
        };
        slots.map(pending_at).fold(Cells::ZERO, Cells::plus)
    }
}

impl Tenancy<'_> {
    /// Whether the fleet's level denied the key when the book was read.
    pub const fn is_mitigated(&self) -> bool {
        self.book & MITIGATED != 0
    }

    /// The share that the pod grants of the key; `None` if it grants the whole key.
    #[inline]
    pub const fn granted(&self) -> Option<ShareCode> {
        granted(self.book)
    }

    /// Changes the book, unless the key has left. Returns the book before the change.
    #[inline(always)]
    fn update_book(&self, change: impl Fn(u64) -> u64) -> Option<u64> {
        let mut book = self.book;
        while tenancy_number(book) == tenancy_number(self.book) {
            let next = change(book);
            // Ordering: Relaxed. Notes and collections share this one word's total order: a cell is in exactly one
            // collection. The word publishes nothing else.
            match self.slot.book().compare_exchange_weak(
                book,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(book),
                Err(current) => book = current,
            }
        }
        None
    }
}

/// The number of the tenancy. It wraps after 16,384, more than happen during one check.
pub(super) const fn tenancy_number(book: u64) -> u64 {
    book >> TENANCY_SHIFT
}

#[inline]
pub(super) const fn trigger(book: u64) -> Trigger {
    match book & BY_SHARE {
        0 => Trigger::of_code((book >> TRIGGER_SHIFT) as u8),
        _ => Trigger::EACH,
    }
}

#[inline]
pub(super) const fn granted(book: u64) -> Option<ShareCode> {
    match book & BY_SHARE {
        0 => None,
        _ => Some(ShareCode::of_code((book >> TRIGGER_SHIFT) as u8)),
    }
}

pub(super) const fn pending(book: u64) -> Cells {
    Cells::new(book & PENDING_MAX)
}
