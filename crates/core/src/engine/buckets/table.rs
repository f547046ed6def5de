//! The bucket table: fixed capacity, open addressing, no lock on the way of a known key.
//!
//! A key lives in one of two groups of [`GROUP`] slots. Each group has a byte of the key's hash per slot, so a look-up
//! reads one line of those bytes and then, nearly always, one slot. Nothing is ever moved or resized; when a key needs
//! room, another one in its two groups leaves ([`Table::enter`]). Of one that is in use a ghost stays (`ghosts.rs`): the
//! slot is taken under the ghost's lock, so whoever does not find the key finds the ghost.
//!
//! A slot is four words: the TAT, the book, and the key's 128 bits. **The TAT word owns the slot**: 0 is vacant,
//! [`CLAIMED`] is being rewritten, anything else is live. Whoever changes a bucket reads the TAT, then makes sure that
//! the slot still carries its key, then swaps the TAT it read for the next one. A slot that was handed to another key
//! in between has another TAT by then (`enter` sees to that), so the swap fails and the search starts again. What is
//! left is a slot that within those few instructions changes hands twice, or changes hands and is charged, and comes
//! back to the very nanosecond: then a check is charged to the wrong key, which can deny too much, never too little,
//! and what was noted for it is refused by the number in the book.
//!
//! Shown by: tests/loom/table.rs.

use super::ghosts::{Ghost, Ghosts};
use super::placement::{halves, mixed, pick};
use crate::engine::atomic::{AtomicU64, Mutex, MutexGuard, Ordering, zeroed};
use crate::pure::sync::{ShareCode, Trigger};
use crate::pure::{Cells, Nanos, Span};

/// Slots of a group: two words of tags.
const GROUP: usize = 16;
/// Words of a slot.
const SLOT_WORDS: usize = 4;
/// Words of a cache line.
const LINE_WORDS: usize = 8;
/// Of ten slots, as many may be in use: above that, two groups are too often both full.
const LOAD_TENTHS: usize = 7;
/// A group that is fuller than this sends a new key to its second group if that is emptier.
const HOME_MAX: u32 = 13;
/// Locks for keys that enter. One key always takes the same one, so it cannot enter twice.
const STRIPES: usize = if cfg!(feature = "loom") { 2 } else { 1024 };

const VACANT: u64 = 0;
const CLAIMED: u64 = u64::MAX;

/// The book of a slot, from the top: which tenancy of the slot it is (14 bits), how large the bucket is (5 bits), whether the
/// fleet's level denies the key, whether a batch with cells of it is under way, whether its share has denied a check, whether
/// it is granted by share, the trigger (7 bits), and the cells admitted and not yet collected. Of a key that is granted by
/// share every cell is a trigger: those bits are its share then.
const PENDING_BITS: u32 = 34;
const PENDING_MAX: u64 = (1 << PENDING_BITS) - 1;
const TRIGGER_SHIFT: u32 = PENDING_BITS;
const TRIGGER_BITS: u64 = 0x7f << TRIGGER_SHIFT;
const BY_SHARE: u64 = 1 << 41;
const SHARE_DENIED: u64 = 1 << 42;
const IN_FLIGHT: u64 = 1 << 43;
const MITIGATED: u64 = 1 << 44;
const SIZE_SHIFT: u32 = 45;
const SIZE_BITS: u64 = 0x1f;
const TENANCY_SHIFT: u32 = 50;

/// A key as the table knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableKey {
    high: u64,
    low: u64,
    /// Each half picks one of its groups.
    spread: u64,
    /// Picks everything else.
    salt: u64,
}

impl TableKey {
    /// What its ghost is found by.
    fn name(&self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }

    /// The byte it is searched by. Never zero, which is the tag of a vacant slot.
    const fn tag(&self) -> u8 {
        (self.salt >> 57) as u8 | 0x80
    }

    /// Where in a group it goes if that place is free, and is looked for first.
    #[inline]
    const fn place(&self) -> usize {
        (self.salt >> 53) as usize % GROUP
    }

    const fn stripe(&self) -> usize {
        self.salt as usize % STRIPES
    }
}

/// What became of an attempt to change a bucket.
#[derive(Debug)]
pub enum Touch<'a, R> {
    /// The key is held, and this is what the caller's function said of it. The tenancy is for [`Table::book`].
    Held(R, Tenancy<'a>),
    /// The key is not held.
    Missing,
}

/// One stay of one key in one slot.
#[derive(Clone, Copy, Debug)]
pub struct Tenancy<'a> {
    slot: Slot<'a>,
    /// The book as it was: its number is that of the stay.
    book: u64,
}

/// How a bucket stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketState {
    /// Its TAT.
    pub tat: Nanos,
    /// Whether the fleet's level denies its key.
    pub mitigated: bool,
    /// The share that this pod grants of its key; `None` if it grants all of it.
    pub granted: Option<ShareCode>,
    /// How large it is.
    pub size: Size,
}

impl BucketState {
    /// A bucket at `tat` of which nothing else is known.
    pub const fn at(tat: Nanos) -> Self {
        Self {
            tat,
            mitigated: false,
            granted: None,
            size: Size::UNKNOWN,
        }
    }
}

/// What became of cells that were noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Booking {
    /// They are pending.
    Noted,
    /// They are pending, and with them the key has reached its trigger.
    Triggered,
    /// The key has left its slot meanwhile: nothing was noted.
    Left,
}

/// How a key got its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotOrigin {
    /// A vacant one.
    Vacant,
    /// One whose key was as good as new: its bucket was full again and everything of it collected.
    Settled,
    /// One whose bucket was full again, but had these cells uncollected.
    Netted(Cells),
    /// One whose bucket was still in use, and least. Its level is remembered, its uncollected cells are lost.
    InUse(Cells),
    /// No slot could be had.
    Nowhere,
}

/// What became of a key that was let in.
#[derive(Clone, Copy, Debug)]
pub struct Entrance<'a> {
    /// How it got its slot.
    pub how: SlotOrigin,
    /// The TAT it started with, and its stay; `None` if it got no slot.
    pub held: Option<(Nanos, Tenancy<'a>)>,
}

/// How large a bucket is: which power of four its capacity fits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(u8);

impl Size {
    /// The size of a bucket of which nothing is known: full as soon as it is in use.
    pub const UNKNOWN: Self = Self(0);

    /// The size of a bucket of this capacity.
    pub const fn of(capacity: Span) -> Self {
        let bits = u64::BITS - capacity.get().saturating_sub(1).leading_zeros();
        // No capacity is longer than a hundred years, which is below 2^62.
        Self(if bits < 62 {
            bits.div_ceil(2) as u8
        } else {
            31
        })
    }

    const fn of_book(book: u64) -> Self {
        Self((book >> SIZE_SHIFT & SIZE_BITS) as u8)
    }

    /// How many of 64 parts of it are in use at `level`, roughly.
    pub const fn part_of(self, level: u64) -> u64 {
        let parts = level.saturating_mul(64) >> (2 * self.0);
        if parts < 64 { parts } else { 64 }
    }
}

/// A bucket on its way into the table or out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its TAT.
    pub tat: Nanos,
    /// Its size.
    pub size: Size,
    /// Its uncollected cells.
    pub pending: Cells,
    /// At how many of them it wants to be collected.
    pub trigger: Trigger,
}

impl Taken {
    /// A bucket at `tat` that nothing is to be told of.
    pub const fn at(tat: Nanos) -> Self {
        Self {
            tat,
            size: Size::UNKNOWN,
            pending: Cells::ZERO,
            trigger: Trigger::NEVER,
        }
    }
}

/// A bucket as it was when its cells were collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collected {
    /// What was pending.
    pub cells: Cells,
    /// Its TAT, with those cells.
    pub tat: Nanos,
}

/// The table. All methods may be called from any thread.
#[derive(Debug)]
pub struct Table {
    tags: Box<[AtomicU64]>,
    words: Box<[AtomicU64]>,
    /// The first word on a cache line of its own: no slot lies across two lines.
    base: usize,
    groups: u64,
    keys_max: u64,
    held: AtomicU64,
    stripes: Box<[Mutex<()>]>,
    seeds: [u64; 2],
    ghosts: Ghosts,
}

/// The right to let a key enter. One key's permits exclude each other.
#[derive(Debug)]
pub struct EntryPermit<'a> {
    _guard: MutexGuard<'a, ()>,
}

impl Table {
    /// A table for at most `keys_max` keys. The seeds decide who shares a group and must not be guessable.
    pub fn new(keys_max: usize, seeds: [u64; 2]) -> Self {
        let groups = (keys_max * 10).div_ceil(LOAD_TENTHS * GROUP).max(1);
        let words = zeroed(groups * GROUP * SLOT_WORDS + LINE_WORDS);
        let misplaced = (words.as_ptr() as usize / size_of::<u64>()) % LINE_WORDS;
        Self {
            tags: zeroed(groups * 2),
            base: if cfg!(feature = "loom") {
                0
            } else {
                (LINE_WORDS - misplaced) % LINE_WORDS
            },
            words,
            groups: groups as u64,
            keys_max: keys_max as u64,
            held: AtomicU64::new(0),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            seeds,
            ghosts: Ghosts::of_times(keys_max, seeds),
        }
    }

    /// Where `name` lives. `variant` makes another key of it that shares its groups and its permit.
    #[inline]
    pub fn key(&self, name: u128, variant: u128) -> TableKey {
        let (salt, lower) = mixed(name, self.seeds);
        let (high, low) = halves(name ^ variant);
        TableKey {
            high,
            low,
            spread: salt ^ lower,
            salt,
        }
    }

    /// The group a key goes to first.
    #[inline]
    const fn home(&self, key: &TableKey) -> usize {
        pick(key.spread >> 32, self.groups)
    }

    /// The group it goes to when that is full.
    const fn other(&self, key: &TableKey) -> usize {
        pick(key.spread, self.groups)
    }

    /// Keys held.
    pub fn held(&self) -> u64 {
        // Ordering: Relaxed. A number for people, and to tell whether the table is full; nothing is published by it.
        self.held.load(Ordering::Relaxed)
    }

    /// The most keys it holds.
    pub const fn keys_max(&self) -> u64 {
        self.keys_max
    }

    /// The TAT of `key`, if it is held.
    pub fn tat(&self, key: &TableKey) -> Option<Nanos> {
        self.look(key).map(|state| state.tat)
    }

    /// How `key` stands, if it is held.
    pub fn look(&self, key: &TableKey) -> Option<BucketState> {
        match self.touch(key, |tat| (None, tat)) {
            Touch::Held(tat, tenancy) => Some(BucketState {
                tat,
                mitigated: tenancy.is_mitigated(),
                granted: tenancy.granted(),
                size: Size::of_book(tenancy.book),
            }),
            Touch::Missing => None,
        }
    }

    /// Gives `step` the TAT of `key` and stores the one it answers, if any. `step` runs again when another thread was
    /// faster; what it said last is what holds.
    #[inline(always)]
    pub fn touch<R>(
        &self,
        key: &TableKey,
        mut step: impl FnMut(Nanos) -> (Option<Nanos>, R),
    ) -> Touch<'_, R> {
        self.touch_granted(key, |tat, _| step(tat))
    }

    /// The same, for a `step` that charges by what the pod grants of the key: all of it, or its share.
    #[inline(always)]
    pub fn touch_granted<R>(
        &self,
        key: &TableKey,
        mut step: impl FnMut(Nanos, Option<ShareCode>) -> (Option<Nanos>, R),
    ) -> Touch<'_, R> {
        while let Some(Found {
            slot,
            book,
            mut tat,
            ..
        }) = self.find(key)
        {
            loop {
                let (next, said) = step(Nanos::new(tat), granted(book));
                let next = match next {
                    Some(next) => next.get(),
                    None if slot.tat().load(Ordering::Acquire) == tat => {
                        return Touch::Held(said, Tenancy { slot, book });
                    }
                    None => break,
                };
                // Ordering: AcqRel. Release hands our view on to the next who reads this TAT; Acquire as in `read`.
                match slot.tat().compare_exchange_weak(
                    tat,
                    next,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                ) {
                    Ok(_) => return Touch::Held(said, Tenancy { slot, book }),
                    Err(current) if is_live(current) && slot.carries(key) => tat = current,
                    Err(_) => break,
                }
            }
        }
        Touch::Missing
    }

    /// Notes `cells` as admitted and not yet collected.
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

    /// Moves the trigger of a key above what is pending: nobody could be told that it was reached.
    #[cold]
    pub fn rearm(&self, tenancy: &Tenancy<'_>) {
        let _ = tenancy.update_book(|book| match book & BY_SHARE {
            0 => {
                let above = u64::from(Trigger::above(pending(book)).code());
                book & !TRIGGER_BITS | above << TRIGGER_SHIFT
            }
            // The bits are its share, and every cell is a trigger.
            _ => book,
        });
    }

    /// Takes back up to so many noted cells, and says how many.
    pub fn unbook(&self, tenancy: &Tenancy<'_>, cells: Cells) -> Cells {
        let taken = |book: u64| cells.min(pending(book));
        match tenancy.update_book(|book| book - taken(book).get()) {
            Some(before) => taken(before),
            None => Cells::ZERO,
        }
    }

    /// Collects what was noted for `key` since the last time. With `freeze` the key is in flight from then on and keeps
    /// its slot until [`Table::land`]. `None` if it is not held.
    pub fn collect(&self, key: &TableKey, freeze: bool) -> Option<Collected> {
        let Touch::Held(tat, tenancy) = self.touch(key, |tat| (None, tat)) else {
            return None;
        };
        let in_flight = if freeze { IN_FLIGHT } else { 0 };
        let before = tenancy.update_book(|book| book & !PENDING_MAX | in_flight)?;
        Some(Collected {
            cells: pending(before),
            tat,
        })
    }

    /// What is noted for `key` and not collected; `None` if it is not held.
    pub fn pending(&self, key: &TableKey) -> Option<Cells> {
        match self.touch(key, |tat| (None, tat)) {
            Touch::Held(_, Tenancy { book, .. }) => Some(pending(book)),
            Touch::Missing => None,
        }
    }

    /// Ends the flight of `key`, if it is in one, grants all of it again, and sets at how many pending cells it wants to be
    /// collected and whether the fleet's level denies it. `true` if as many are pending already.
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

    /// Ends the flight of `key`, if it is in one, and grants it by `share` from now on.
    pub fn grant_by_share(&self, key: &TableKey, share: ShareCode, mitigated: bool) {
        if let Touch::Held(_, tenancy) = self.touch(key, |tat| (None, tat)) {
            let mitigated = if mitigated { MITIGATED } else { 0 };
            let set = u64::from(share.code()) << TRIGGER_SHIFT | mitigated | BY_SHARE;
            let cleared = TRIGGER_BITS | IN_FLIGHT | MITIGATED | SHARE_DENIED;
            let _ = tenancy.update_book(|book| book & !cleared | set);
        }
    }

    /// Notes that the share of a key has denied a check. `true` for the first time since it was granted.
    pub fn note_share_denied(&self, tenancy: &Tenancy<'_>) -> bool {
        let before = tenancy.update_book(|book| match book & BY_SHARE {
            0 => book,
            _ => book | SHARE_DENIED,
        });
        before.is_some_and(|before| before & (BY_SHARE | SHARE_DENIED) == BY_SHARE)
    }

    /// Whether the share of `key` has denied a check since it was granted.
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

    /// The cells pending in all buckets.
    pub fn pending_in_all(&self) -> Cells {
        // Ordering: Relaxed throughout. A number for people; it is exact when nobody is checking.
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

    /// Undoes an admission that made the TAT `after` out of `before`, if nobody has touched the bucket since. Otherwise
    /// the cells stay charged: nobody can tell whether they have drained, and giving them back twice would over-admit.
    pub fn give_back(&self, tenancy: &Tenancy<'_>, after: Nanos, before: Nanos) -> bool {
        // Another key may be here by now, and may have come to the same TAT.
        // Ordering: Acquire, so that the swap below cannot be seen as happening before this look.
        let book = tenancy.slot.book().load(Ordering::Acquire);
        if tenancy_number(book) != tenancy_number(tenancy.book) {
            return false;
        }
        // A bucket that was empty must not become vacant.
        let before = before.get().max(1);
        // Ordering: AcqRel, as every change of a TAT.
        tenancy
            .slot
            .tat()
            .compare_exchange(after.get(), before, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// The right to let `key` enter; to be held from making sure that it is missing until it has entered.
    pub fn permit(&self, key: &TableKey) -> EntryPermit<'_> {
        let guard = self.stripes[key.stripe()]
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        EntryPermit { _guard: guard }
    }

    /// Lets `key`, which is missing, enter with `bucket`: its TAT, or a nanosecond more, and its uncollected cells.
    pub fn enter(
        &self,
        _permit: &EntryPermit<'_>,
        key: &TableKey,
        bucket: Taken,
        now: Nanos,
    ) -> Entrance<'_> {
        let (slot, index, how, old_tat) = match self.claim_vacant(key) {
            // `take` left the last tenant's TAT here.
            Some((slot, index)) => {
                let old_tat = slot.high().load(Ordering::Relaxed);
                (slot, index, SlotOrigin::Vacant, old_tat)
            }
            None => match self.claim_victim(key, now) {
                Some(claimed) => claimed,
                None => {
                    return Entrance {
                        how: SlotOrigin::Nowhere,
                        held: None,
                    };
                }
            },
        };
        // Ordering: Release for the key words. Who reads one of them before the TAT below is published then also reads
        // the slot as claimed, not the former tenant's TAT: tests/loom, a_look_up_never_sees_a_key_half_written.
        slot.high().store(key.high, Ordering::Release);
        slot.low().store(key.low, Ordering::Release);
        let number = tenancy_number(slot.book().load(Ordering::Relaxed));
        // Ordering: Release. Who reads this number before the TAT is published finds the slot claimed.
        let book = number << TENANCY_SHIFT
            | u64::from(bucket.size.0) << SIZE_SHIFT
            | u64::from(bucket.trigger.code()) << TRIGGER_SHIFT
            | bucket.pending.get().min(PENDING_MAX);
        slot.book().store(book, Ordering::Release);
        self.set_tag(index, key.tag());
        // A TAT that differs from the former tenant's, so that nobody mistakes one for the other.
        let mut tat = bucket.tat.get().clamp(1, CLAIMED - 2);
        if tat == old_tat {
            tat += 1;
        }
        slot.tat().store(tat, Ordering::Release);
        Entrance {
            how,
            held: Some((Nanos::new(tat), Tenancy { slot, book })),
        }
    }

    /// The TAT that is remembered of `key`, which is missing, if it had to leave or was not let in while in use.
    pub fn ghost(&self, key: &TableKey, now: Nanos) -> Option<Nanos> {
        let ghost = self.ghosts.find(key.name(), now)?;
        Some(ghost.ends)
    }

    /// Drops what is remembered of `key`.
    pub fn forget_ghost(&self, _permit: &EntryPermit<'_>, key: &TableKey) {
        self.ghosts.forget(key.name());
    }

    /// Remembers of `key`, which is missing, that it is at `tat`, whatever was remembered of it.
    pub fn remember(&self, _permit: &EntryPermit<'_>, key: &TableKey, tat: Nanos, now: Nanos) {
        self.ghosts.replace(key.name(), Ghost::at(tat), now);
    }

    /// Keys whose ghosts had to give way while they were in use.
    pub fn forgotten(&self) -> u64 {
        self.ghosts.forgotten()
    }

    /// Takes `key` out of the table. Its slot is vacant afterwards.
    pub fn take(&self, _permit: &EntryPermit<'_>, key: &TableKey) -> Option<Taken> {
        while let Some(Found {
            slot, index, tat, ..
        }) = self.find(key)
        {
            if slot.claim(tat) {
                let book = slot.end_tenancy();
                self.set_tag(index, 0);
                self.held.fetch_sub(1, Ordering::Relaxed);
                // For `enter`, which gives the next tenant another one.
                slot.high().store(tat, Ordering::Release);
                slot.tat().store(VACANT, Ordering::Release);
                return Some(Taken {
                    tat: Nanos::new(tat),
                    size: Size::of_book(book),
                    pending: pending(book),
                    trigger: trigger(book),
                });
            }
        }
        None
    }

    /// The slot of `key`: first where it would like to be, then by the tags of its two groups.
    #[inline(always)]
    fn find(&self, key: &TableKey) -> Option<Found<'_>> {
        match self.read(self.home(key) * GROUP + key.place(), key) {
            Some(found) => Some(found),
            None => self.find_by_tag(key),
        }
    }

    #[inline]
    fn find_by_tag(&self, key: &TableKey) -> Option<Found<'_>> {
        for group in [self.home(key), self.other(key)] {
            for half in 0..2 {
                // Ordering: Acquire, so that a tag seen means a slot at least claimed for it. A tag is only a hint.
                let word = self.tags[group * 2 + half].load(Ordering::Acquire);
                let mut candidates = bytes_equal(word, key.tag());
                while candidates != 0 {
                    let index =
                        group * GROUP + half * 8 + (candidates.trailing_zeros() / 8) as usize;
                    if let Some(found) = self.read(index, key) {
                        return Some(found);
                    }
                    candidates &= candidates - 1;
                }
            }
        }
        None
    }

    /// The slot at `index`, if it is live and carries `key`.
    #[inline(always)]
    fn read(&self, index: usize, key: &TableKey) -> Option<Found<'_>> {
        let slot = self.slot(index);
        // Ordering: Acquire on the book, before the TAT: if the slot changes hands after this, its number differs from
        // the one read here and `update_book` finds out.
        let book = slot.book().load(Ordering::Acquire);
        // Ordering: Acquire pairs with the Release that published this TAT: the key words read next are at least as new.
        let tat = slot.tat().load(Ordering::Acquire);
        (is_live(tat) && slot.carries(key)).then_some(Found {
            slot,
            index,
            book,
            tat,
        })
    }

    #[inline]
    fn slot(&self, index: usize) -> Slot<'_> {
        let start = self.base + index * SLOT_WORDS;
        match self.words[start..].first_chunk() {
            Some(words) => Slot(words),
            None => unreachable!("the table ends with a whole slot"),
        }
    }

    /// Claims a vacant slot of the home group, or of the emptier one when that is nearly full.
    fn claim_vacant(&self, key: &TableKey) -> Option<(Slot<'_>, usize)> {
        // Ordering: Relaxed; see `held`. Counted before the slot is taken, so the bound is never passed.
        if self.held.fetch_add(1, Ordering::Relaxed) >= self.keys_max {
            self.held.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let [home, other] = [self.home(key), self.other(key)];
        let crowded = self.in_use(home) > HOME_MAX && self.in_use(other) < self.in_use(home);
        let order = if crowded {
            [other, home]
        } else {
            [home, other]
        };
        for index in order
            .into_iter()
            .flat_map(|group| places(group, key.place()))
        {
            let slot = self.slot(index);
            if slot.claim(VACANT) {
                return Some((slot, index));
            }
        }
        self.held.fetch_sub(1, Ordering::Relaxed);
        None
    }

    fn in_use(&self, group: usize) -> u32 {
        (0..2)
            .map(|half| {
                (self.tags[group * 2 + half].load(Ordering::Relaxed) & 0x8080_8080_8080_8080)
                    .count_ones()
            })
            .sum()
    }

    /// Claims the slot of the key that is missed least: one that is full and collected, else one that is full, else the
    /// one of which the smallest part is in use, so that a key at its limit stays; of those the one that will be full
    /// soonest. None in flight, unless it was collected between the look and the claim: its cells are reported all the
    /// same, and its ghost keeps its level.
    fn claim_victim(
        &self,
        key: &TableKey,
        now: Nanos,
    ) -> Option<(Slot<'_>, usize, SlotOrigin, u64)> {
        // Others may change a bucket between looking and claiming. Each try looks anew; under a storm of changes to
        // two whole groups the key stays out.
        for _ in 0..GROUP {
            let candidates = [self.home(key), self.other(key)]
                .into_iter()
                .flat_map(|group| group * GROUP..(group + 1) * GROUP);
            let victim = candidates
                .map(|index| (self.slot(index), index))
                .filter_map(|(slot, index)| {
                    let tat = slot.tat().load(Ordering::Acquire);
                    let book = slot.book().load(Ordering::Acquire);
                    let full = tat <= now.get();
                    let part = Size::of_book(book).part_of(tat.saturating_sub(now.get()));
                    let order = (!full, full && pending(book) > Cells::ZERO, part, tat);
                    let may_leave = is_live(tat) && book & IN_FLIGHT == 0;
                    may_leave.then_some((order, slot, index))
                })
                .min_by_key(|(order, _, _)| *order);
            let ((in_use, _, _, tat), slot, index) = victim?;
            if self.evict(slot, tat, now) {
                let lost = pending(slot.end_tenancy());
                let entered = match (in_use, lost) {
                    (true, lost) => SlotOrigin::InUse(lost),
                    (false, Cells::ZERO) => SlotOrigin::Settled,
                    (false, lost) => SlotOrigin::Netted(lost),
                };
                return Some((slot, index, entered, tat));
            }
        }
        None
    }

    /// Claims a slot at `tat` and remembers its key, if that is in use. `false` if it has changed meanwhile.
    ///
    /// Both under the lock of the ghost: whoever does not find the key from then on finds its ghost, and a key that is
    /// held has none, which would outlive a reset or a refund of it.
    fn evict(&self, slot: Slot<'_>, tat: u64, now: Nanos) -> bool {
        let name = slot.name();
        // Ordering: Acquire, as in `read`: the same TAT before and after means that the name was of that tenancy.
        if slot.tat().load(Ordering::Acquire) != tat {
            return false;
        }
        let ghost = Ghost::at(Nanos::new(tat));
        self.ghosts
            .remember_if(name, ghost, now, || slot.claim(tat))
    }

    fn set_tag(&self, index: usize, tag: u8) {
        let shift = (index % 8) * 8;
        // Ordering: Release, so that who sees the tag sees the slot claimed. Other slots' bytes of the word stay.
        let set = |word: u64| Some(word & !(0xff << shift) | u64::from(tag) << shift);
        let _ = self.tags[index / 8].fetch_update(Ordering::Release, Ordering::Relaxed, set);
    }
}

impl Tenancy<'_> {
    /// Whether the fleet's level was known to deny the key.
    pub const fn is_mitigated(&self) -> bool {
        self.book & MITIGATED != 0
    }

    /// The share that the pod grants of the key; `None` if it grants all of it.
    #[inline]
    pub const fn granted(&self) -> Option<ShareCode> {
        granted(self.book)
    }

    /// Changes the book, as long as the key stays, and answers what it was.
    #[inline(always)]
    fn update_book(&self, change: impl Fn(u64) -> u64) -> Option<u64> {
        let mut book = self.book;
        while tenancy_number(book) == tenancy_number(self.book) {
            let next = change(book);
            // Ordering: Relaxed. Notes and collections share this one word's total order: a cell is in exactly one
            // collection. Nothing else is published by it.
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

/// A slot that carried the key when it was read.
#[derive(Clone, Copy, Debug)]
struct Found<'a> {
    slot: Slot<'a>,
    index: usize,
    book: u64,
    tat: u64,
}

/// The words of a slot.
#[derive(Clone, Copy, Debug)]
struct Slot<'a>(&'a [AtomicU64; SLOT_WORDS]);

impl<'a> Slot<'a> {
    #[inline]
    const fn tat(self) -> &'a AtomicU64 {
        &self.0[0]
    }

    #[inline]
    const fn book(self) -> &'a AtomicU64 {
        &self.0[1]
    }

    #[inline]
    const fn high(self) -> &'a AtomicU64 {
        &self.0[2]
    }

    #[inline]
    const fn low(self) -> &'a AtomicU64 {
        &self.0[3]
    }

    /// The key's 128 bits.
    fn name(&self) -> u128 {
        // Ordering: Acquire, as in `carries`.
        let [high, low] = [self.high(), self.low()].map(|word| word.load(Ordering::Acquire));
        u128::from(high) << 64 | u128::from(low)
    }

    #[inline]
    fn carries(&self, key: &TableKey) -> bool {
        // Ordering: Acquire. The caller has read the TAT before, and swaps or reads it again afterwards. Words of the
        // next tenancy can be seen here, but pairing with the Release in `enter` the TAT then is not what it was.
        self.high().load(Ordering::Acquire) == key.high
            && self.low().load(Ordering::Acquire) == key.low
    }

    fn claim(&self, tat: u64) -> bool {
        // Ordering: AcqRel. From here on only the claimer writes this slot.
        self.tat()
            .compare_exchange(tat, CLAIMED, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Of a claimed slot: its book. Notes of the former tenancy find another number from now on.
    fn end_tenancy(&self) -> u64 {
        // Ordering: AcqRel, so that a note of the former tenancy is either in the value taken here or refused.
        let next = |book| Some((tenancy_number(book) + 1) << TENANCY_SHIFT);
        self.book()
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
            .unwrap_or(0)
    }
}

/// The slots of a group, beginning with `first`.
fn places(group: usize, first: usize) -> impl Iterator<Item = usize> {
    (0..GROUP).map(move |nth| group * GROUP + (first + nth) % GROUP)
}

const fn is_live(tat: u64) -> bool {
    tat != VACANT && tat != CLAIMED
}

/// Which stay of a key in its slot this is. It wraps after 16,384, beyond what one check sleeps through.
const fn tenancy_number(book: u64) -> u64 {
    book >> TENANCY_SHIFT
}

#[inline]
const fn trigger(book: u64) -> Trigger {
    match book & BY_SHARE {
        0 => Trigger::of_code((book >> TRIGGER_SHIFT) as u8),
        _ => Trigger::EACH,
    }
}

#[inline]
const fn granted(book: u64) -> Option<ShareCode> {
    match book & BY_SHARE {
        0 => None,
        _ => Some(ShareCode::of_code((book >> TRIGGER_SHIFT) as u8)),
    }
}

const fn pending(book: u64) -> Cells {
    Cells::new(book & PENDING_MAX)
}

/// The high bit of every byte of `word` that equals `byte`, and now and then of one above such a byte.
const fn bytes_equal(word: u64, byte: u8) -> u64 {
    let different = word ^ (byte as u64 * 0x0101_0101_0101_0101);
    different.wrapping_sub(0x0101_0101_0101_0101) & !different & 0x8080_8080_8080_8080
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// The group that each of so many keys of one home goes to.
    fn groups_of(keys: usize) -> Vec<usize> {
        let table = Table::new(22, [0, 0]);
        let (now, bucket) = (Nanos::new(1), Taken::at(Nanos::new(9)));
        (0..keys)
            .map(|nth| {
                let key = TableKey {
                    high: nth as u64,
                    low: 7,
                    // At home in the first of two groups, with the second one as the other.
                    spread: 0xffff_ffff,
                    salt: (nth as u64) << 53,
                };
                table.enter(&table.permit(&key), &key, bucket, now);
                table
                    .find(&key)
                    .map_or(usize::MAX, |found| found.index / GROUP)
            })
            .collect()
    }

    #[test]
    fn a_key_goes_home_until_home_is_nearly_full() {
        assert_eq!(groups_of(14), [0; 14]);
        assert_eq!(groups_of(22)[14..], [1; 8]);
    }
}
