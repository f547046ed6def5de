//! The bucket table: fixed capacity, open addressing, and no lock for a key that is held.
//!
//! A key lives in one of two groups of [`GROUP`] slots. Each group has one byte of hash per slot, its tag, so a look-up
//! reads one cache line of tags and then, nearly always, one slot. The table never moves or resizes anything. When a key
//! needs room, another key of its two groups leaves ([`Table::enter`]). If that key is in use, a ghost remembers it
//! (`ghosts.rs`): the table claims the slot under the ghost's lock, so a check that does not find the key finds the ghost.
//!
//! A slot is four words: the TAT, the book, and the key's 128 bits. **The TAT word owns the slot**: 0 is vacant,
//! [`CLAIMED`] is being rewritten, anything else is live. A thread that changes a bucket reads the TAT, then makes sure
//! that the slot still carries the key, then swaps the TAT for the next one. If another key got the slot in between, the
//! slot has another TAT by then (`enter` makes sure of that), so the swap fails and the search starts again. One case is
//! left: within those few instructions the slot changes hands twice, or changes hands and is charged, and comes back to
//! the very same nanosecond. Then the check is charged to the wrong key, which can deny too much, never too little; and
//! the number in the book refuses to note its cells.
//!
//! `key.rs` says where a key may be, `slot.rs` has the words of a slot, `book.rs` the bits of the book.
//! Shown by: tests/loom/table.rs.

mod book;
mod key;
mod slot;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub use book::{Booking, BucketSize, BucketState, CollectedCells, MovedBucket};
pub use key::TableKey;
pub use slot::Tenancy;

use super::ghosts::{Ghost, Ghosts};
use super::placement::{halves, mixed, pick};
use crate::engine::atomic::{AtomicU64, Mutex, MutexGuard, Ordering, zeroed};
use crate::pure::sync::ShareCode;
use crate::pure::{Cells, Nanos};
use book::{
    IN_FLIGHT, PENDING_MAX, SIZE_SHIFT, TENANCY_SHIFT, TRIGGER_SHIFT, granted, pending,
    tenancy_number, trigger,
};
use slot::{CLAIMED, FoundSlot, SLOT_WORDS, SlotWords, VACANT, is_live};

/// Slots of a group: two words of tags.
const GROUP: usize = 16;
/// Words of a cache line.
const LINE_WORDS: usize = 8;
/// So many of ten slots may be in use. Above that, both groups of a key are full too often.
const LOAD_TENTHS: usize = 7;
/// If its first group has more keys than this, a new key goes to its second group, provided that one is emptier.
const HOME_MAX: u32 = 13;
/// Locks for keys that enter. A key always takes the same one, so it cannot enter twice.
const STRIPES: usize = if cfg!(feature = "loom") { 2 } else { 1024 };

/// The result of an attempt to change a bucket.
#[derive(Debug)]
pub enum Touch<'a, R> {
    /// The key is held, and the caller's function returned this. The tenancy is for [`Table::book`].
    Held(R, Tenancy<'a>),
    /// The key is not held.
    Missing,
}

/// How a key got its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotOrigin {
    /// The slot was vacant.
    Vacant,
    /// Its former key was as good as new: its bucket was full again, and no cells of it were pending.
    Settled,
    /// The bucket of its former key was full again, but these cells were pending.
    Netted(Cells),
    /// The bucket of its former key was still in use, and least. A ghost remembers its level; these pending cells are lost.
    InUse(Cells),
    /// The key got no slot.
    Nowhere,
}

/// The result of [`Table::enter`].
#[derive(Clone, Copy, Debug)]
pub struct Entrance<'a> {
    /// How the key got its slot.
    pub how: SlotOrigin,
    /// The TAT that it started with, and its tenancy; `None` if it got no slot.
    pub held: Option<(Nanos, Tenancy<'a>)>,
}

/// The table. All methods may be called from any thread.
#[derive(Debug)]
pub struct Table {
    tags: Box<[AtomicU64]>,
    words: Box<[AtomicU64]>,
    /// The first word that begins a cache line, so that no slot lies across two lines.
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
    /// A table for at most `keys_max` keys. The seeds decide which keys share a group and must not be guessable.
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

    /// The key of `name`. Each `variant` is a key of its own; all of them share their groups and their permit.
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
        // Ordering: Relaxed. A number for people, and to see whether the table is full; it publishes nothing.
        self.held.load(Ordering::Relaxed)
    }

    /// The most keys that the table holds.
    pub const fn keys_max(&self) -> u64 {
        self.keys_max
    }

    /// The TAT of `key`, if it is held.
    pub fn tat(&self, key: &TableKey) -> Option<Nanos> {
        self.look(key).map(|state| state.tat)
    }

    /// The state of `key`, if it is held.
    pub fn look(&self, key: &TableKey) -> Option<BucketState> {
        match self.touch(key, |tat| (None, tat)) {
            Touch::Held(tat, tenancy) => Some(BucketState {
                tat,
                mitigated: tenancy.is_mitigated(),
                granted: tenancy.granted(),
                size: BucketSize::of_book(tenancy.book),
            }),
            Touch::Missing => None,
        }
    }

    /// Gives `step` the TAT of `key` and stores the TAT that it returns, if any. `step` runs again when another thread was
    /// faster; its last result counts.
    #[inline(always)]
    pub fn touch<R>(
        &self,
        key: &TableKey,
        mut step: impl FnMut(Nanos) -> (Option<Nanos>, R),
    ) -> Touch<'_, R> {
        self.touch_granted(key, |tat, _| step(tat))
    }

    /// The same for a `step` that charges by what the pod grants of the key: the whole key, or a share of it.
    #[inline(always)]
    pub fn touch_granted<R>(
        &self,
        key: &TableKey,
        mut step: impl FnMut(Nanos, Option<ShareCode>) -> (Option<Nanos>, R),
    ) -> Touch<'_, R> {
        while let Some(FoundSlot {
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
                // Ordering: AcqRel. Release passes what this thread has seen to the next reader of this TAT; Acquire as in
                // `read`.
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

    /// Undoes an admission that moved the TAT from `before` to `after`, if nothing has changed the bucket since. Otherwise
    /// the cells stay charged: they may have drained already, and to give them back twice would over-admit.
    pub fn give_back(&self, tenancy: &Tenancy<'_>, after: Nanos, before: Nanos) -> bool {
        // Another key may have the slot by now, at the same TAT.
        // Ordering: Acquire, so that the swap below cannot be seen to happen before this read.
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

    /// The right to let `key` enter. The caller takes it before it makes sure that the key is missing, and keeps it until
    /// the key has entered.
    pub fn permit(&self, key: &TableKey) -> EntryPermit<'_> {
        let guard = self.stripes[key.stripe()]
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        EntryPermit { _guard: guard }
    }

    /// Lets `key`, which is missing, enter with `bucket`. Its TAT may become a nanosecond later.
    pub fn enter(
        &self,
        _permit: &EntryPermit<'_>,
        key: &TableKey,
        bucket: MovedBucket,
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
        // Ordering: Release for the key words. A thread that reads one of them before the TAT below is published also
        // reads the slot as claimed, and not the former tenant's TAT.
        // Shown by: tests/loom/table.rs, a_look_up_never_sees_a_key_half_written.
        slot.high().store(key.high, Ordering::Release);
        slot.low().store(key.low, Ordering::Release);
        let number = tenancy_number(slot.book().load(Ordering::Relaxed));
        // Ordering: Release. A thread that reads this number before the TAT is published finds the slot claimed.
        let book = number << TENANCY_SHIFT
            | u64::from(bucket.size.0) << SIZE_SHIFT
            | u64::from(bucket.trigger.code()) << TRIGGER_SHIFT
            | bucket.pending.get().min(PENDING_MAX);
        slot.book().store(book, Ordering::Release);
        self.set_tag(index, key.tag());
        // Not the former tenant's TAT, so that no thread mistakes one for the other.
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

    /// The TAT of the ghost of `key`, which is missing, if it has one.
    pub fn ghost(&self, key: &TableKey, now: Nanos) -> Option<Nanos> {
        let ghost = self.ghosts.find(key.name(), now)?;
        Some(ghost.ends)
    }

    /// Drops the ghost of `key`.
    pub fn forget_ghost(&self, _permit: &EntryPermit<'_>, key: &TableKey) {
        self.ghosts.forget(key.name());
    }

    /// Sets the ghost of `key`, which is missing, to `tat`, whatever it was.
    pub fn remember(&self, _permit: &EntryPermit<'_>, key: &TableKey, tat: Nanos, now: Nanos) {
        self.ghosts.replace(key.name(), Ghost::at(tat), now);
    }

    /// Ghosts that were dropped while their keys were in use.
    pub fn forgotten(&self) -> u64 {
        self.ghosts.forgotten()
    }

    /// Takes `key` out of the table. Its slot is vacant afterwards.
    pub fn take(&self, _permit: &EntryPermit<'_>, key: &TableKey) -> Option<MovedBucket> {
        while let Some(FoundSlot {
            slot, index, tat, ..
        }) = self.find(key)
        {
            if slot.claim(tat) {
                let book = slot.end_tenancy();
                self.set_tag(index, 0);
                self.held.fetch_sub(1, Ordering::Relaxed);
                // For `enter`, which gives the next tenant another TAT.
                slot.high().store(tat, Ordering::Release);
                slot.tat().store(VACANT, Ordering::Release);
                return Some(MovedBucket {
                    tat: Nanos::new(tat),
                    size: BucketSize::of_book(book),
                    pending: pending(book),
                    trigger: trigger(book),
                });
            }
        }
        None
    }

    /// The slot of `key`: first its preferred slot, then by the tags of its two groups.
    #[inline(always)]
    fn find(&self, key: &TableKey) -> Option<FoundSlot<'_>> {
        match self.read(self.home(key) * GROUP + key.place(), key) {
            Some(found) => Some(found),
            None => self.find_by_tag(key),
        }
    }

    #[inline]
    fn find_by_tag(&self, key: &TableKey) -> Option<FoundSlot<'_>> {
        for group in [self.home(key), self.other(key)] {
            for half in 0..2 {
                // Ordering: Acquire, so that a slot whose tag is seen is at least claimed for that key. A tag is a hint.
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
    fn read(&self, index: usize, key: &TableKey) -> Option<FoundSlot<'_>> {
        let slot = self.slot(index);
        // Ordering: Acquire on the book, before the TAT: if the slot changes hands after this, its number differs from
        // the one read here and `update_book` finds out.
        let book = slot.book().load(Ordering::Acquire);
        // Ordering: Acquire pairs with the Release that published this TAT: the key words read next are at least as new.
        let tat = slot.tat().load(Ordering::Acquire);
        (is_live(tat) && slot.carries(key)).then_some(FoundSlot {
            slot,
            index,
            book,
            tat,
        })
    }

    #[inline]
    fn slot(&self, index: usize) -> SlotWords<'_> {
        let start = self.base + index * SLOT_WORDS;
        match self.words[start..].first_chunk() {
            Some(words) => SlotWords(words),
            None => unreachable!("the table ends with a whole slot"),
        }
    }

    /// Claims a vacant slot of the first group, or of the second one if that is emptier and the first is nearly full.
    fn claim_vacant(&self, key: &TableKey) -> Option<(SlotWords<'_>, usize)> {
        // Ordering: Relaxed; see `held`. The key is counted before it has a slot, so the table never exceeds its bound.
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

    /// Claims the slot of the key that the table can spare best: one that is full again without pending cells, else one
    /// that is full again, else the one of which the smallest part is in use, so that a key at its limit stays; of those
    /// the one that will be full first. It claims no key in flight, unless that was collected between the look and the
    /// claim: its cells are reported all the same, and its ghost keeps its level.
    fn claim_victim(
        &self,
        key: &TableKey,
        now: Nanos,
    ) -> Option<(SlotWords<'_>, usize, SlotOrigin, u64)> {
        // Other threads may change a bucket between the look and the claim. Each try looks anew. If both groups change
        // all the time, the key stays out.
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
                    let part = BucketSize::of_book(book).part_of(tat.saturating_sub(now.get()));
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

    /// Claims a slot at `tat`, and leaves a ghost of its key if that is in use. `false` if the slot has changed meanwhile.
    ///
    /// Both happen under the lock of the ghost: a thread that does not find the key afterwards finds its ghost, and a key
    /// that is held has no ghost, which would outlive a reset or a refund of the key.
    fn evict(&self, slot: SlotWords<'_>, tat: u64, now: Nanos) -> bool {
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
        // Ordering: Release, so that a thread that sees the tag sees the slot claimed. The other bytes of the word stay.
        let set = |word: u64| Some(word & !(0xff << shift) | u64::from(tag) << shift);
        let _ = self.tags[index / 8].fetch_update(Ordering::Release, Ordering::Relaxed, set);
    }
}

/// The slots of a group, from `first` on.
fn places(group: usize, first: usize) -> impl Iterator<Item = usize> {
    (0..GROUP).map(move |nth| group * GROUP + (first + nth) % GROUP)
}

/// The high bit of every byte of `word` that equals `byte`, and now and then of the byte above one.
const fn bytes_equal(word: u64, byte: u8) -> u64 {
    let different = word ^ (byte as u64 * 0x0101_0101_0101_0101);
    different.wrapping_sub(0x0101_0101_0101_0101) & !different & 0x8080_8080_8080_8080
}
