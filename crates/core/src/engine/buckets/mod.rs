//! The buckets of all keys. The one folder that knows which kinds of buckets there are.
//!
//! | kind | for | state |
//! |---|---|---|
//! | `level.rs` | GCRA, token bucket, leaky bucket | one word of `table` |
//! | `window.rs` | fixed window, sliding window, sliding log | counts in `window_map.rs` |
//! | `caller.rs` | limits that callers supply | a TAT and its price in `caller_map.rs` |
//!
//! [`KeyBucket`] is what a kind has to do, [`Bucket`] is a key's bucket of any kind. A new kind is a file that implements
//! the trait, a variant of [`Bucket`], and one line wherever this file matches: docs/decisions/0022-kinds-of-buckets.md.
//!
//! `ghosts.rs` remembers keys that left a full table; `mitigations.rs` remembers keys that only the fleet knows.

mod admission;
mod caller;
mod caller_map;
mod exchange;
mod fold;
mod ghosts;
mod level;
mod mitigations;
mod news;
mod placement;
mod striped_map;
mod subject;
pub mod table;
mod window;
mod window_entry;
mod window_map;

use std::sync::atomic::{AtomicU64, Ordering};

pub use admission::Stale;
pub(super) use admission::{Admission, Trace};
pub(super) use exchange::{
    BucketAddress, FrozenCells, RefundOutcome, ReportedCells, SilentCells, StoreAnswer,
};
pub(super) use level::KnownKey;
pub(super) use news::{NewsChange, NewsEffect};
pub use striped_map::Room;
pub(super) use subject::Subject;

use super::answer::Source;
use super::charge::Charges;
use super::stats::{Stat, Stats};
use super::sync_queue::SyncQueue;
use crate::pure::limit::CAPACITY_MAX;
use crate::pure::rule::RuleSpec;
use crate::pure::sync::{BucketKind, KnownUsage, ShareCode, StoreKey, StoreState, Trigger};
use crate::pure::{Cells, Limit, Nanos, Span, Standing};
use caller::CallerBucket;
use caller_map::CallerMap;
use level::LevelBucket;
use mitigations::Mitigations;
use news::BucketChange;
use table::{BucketState, Table};
use window::WindowBucket;
use window_map::WindowMap;

/// One mitigation of a key without a bucket for so many keys that are held.
const MITIGATIONS_PART: usize = 16;

/// The buckets, and what every kind shares. All methods may be called from any thread.
#[derive(Debug)]
pub(super) struct Buckets {
    level: Table,
    windows: WindowMap,
    callers: CallerMap,
    mitigations: Mitigations,
    /// The version of the rules in force. A key enters only under these.
    version: AtomicU64,
    /// Keys that wait for a round of the sync.
    pub(super) sync_queue: SyncQueue,
    /// Cells that were charged although they were denied, since the sync last took them.
    pub(super) charges: Charges,
    pub(super) stats: Stats,
}

/// What a bucket does, whatever its kind. `'t` is the lifetime of the tables.
pub(super) trait KeyBucket<'t> {
    /// Takes `cost` cells if the bucket has room for them.
    fn admit(&self, cost: Cells) -> Result<Admission<'t>, Stale>;
    /// How a check of `cost` would stand. Changes nothing.
    fn look(&self, cost: Cells) -> (Standing, Source);
    /// Notes the cells of an admission as pending.
    fn note_admitted(&self, admission: &Admission<'_>, cost: Cells);
    /// Undoes an admission. `false` if the bucket has changed since then.
    fn give_back(&self, admission: &Admission<'_>, cost: Cells) -> bool;
    /// Gives back cells that a caller refunds, as far as they are used.
    fn refund(&self, cost: Cells) -> RefundOutcome;
    /// Charges `cost` cells, whether or not there is room. Returns how many it booked.
    fn charge(&self, cost: Cells) -> Cells;
    /// Moves the bucket to the state of the store, which decides this key.
    fn follow(&self, state: StoreState);
    /// How a check of `cost` stands by the state of the store.
    fn standing_in_store(&self, state: StoreState, cost: Cells) -> Standing;
    /// Lets the key enter, if the sync could not ask the store for it otherwise.
    fn hold(&self) {}

    /// Collects the pending cells for a batch. The key keeps its place until the batch lands. `None` if it is not held.
    fn freeze(&self) -> Option<FrozenCells>;
    /// How full the key is without the cells that were just collected.
    fn known(&self, frozen: &FrozenCells) -> KnownUsage;
    /// Collects the pending cells, which go into no batch.
    fn take_silent(&self) -> SilentCells;
    /// Collects the pending cells that the store bills at their full price although this pod grants only a share from now on.
    fn take_priced(&self) -> SilentCells {
        self.take_silent()
    }
    /// The pending cells; `None` if the key is not held.
    fn pending(&self) -> Option<Cells>;
    /// The TAT of the bucket; `None` if the key is not held, or has no TAT.
    fn tat(&self) -> Option<Nanos>;
    /// Ends a flight without an answer, and sets the trigger. `true` if the key wants a round already.
    fn land(&self, trigger: Trigger) -> bool;
    /// Ends a flight with an answer, and sets the trigger. `true` if the key wants a round already.
    fn fold(&self, answer: &StoreAnswer, trigger: Trigger) -> bool;
    /// Folds the state of a key after the store gave cells of it back while nothing of it was in flight. The store has yet
    /// to give back `refund_due`.
    fn fold_refund(&self, state: StoreState, anchor: Nanos, refund_due: Span);
    /// The address of the bucket, for a flight that may outlive the key's rule.
    fn address(&self) -> BucketAddress;

    /// From now on this pod grants only `share` of the key. Ends the key's flight.
    fn grant_by_share(&self, share: ShareCode);
    /// Whether the share that the pod grants has denied a check.
    fn is_share_denied(&self) -> bool;
    /// Whether more than half of the key is in use, as far as this pod knows.
    fn is_half_used(&self) -> bool;
    /// Raises the bucket to `tat`, if it is below.
    fn raise_tat(&self, tat: Nanos);

    /// Takes in news that the fleet denies the key: its level, or how long its window lasts. That may still include
    /// `unsettled` refunds.
    fn raise(&self, level: Span, unsettled: &ReportedCells) -> NewsEffect;
    /// Lowers the TAT by what news raised it, but no lower than where it ended `before` the news.
    fn lower(&self, by: Span, before: Nanos);
    /// Takes back cells that were counted in the window of this index because of news.
    fn uncount(&self, _index: u64, _cells: Cells) {}
    /// The age at which the store's answer is too old to go by; `None` if only cells that this pod reports make it so.
    fn answer_age_max(&self) -> Option<Span> {
        None
    }
    /// Drops the bucket and its ghost. Returns the pending cells that are lost with it.
    fn forget(&self) -> Cells;
}

/// A key's bucket, of whichever kind.
#[derive(Clone, Copy)]
pub(super) enum Bucket<'t, 's> {
    Level(LevelBucket<'t, 's>),
    Window(WindowBucket<'t, 's>),
    Caller(CallerBucket<'t, 's>),
}

/// Runs `$call` on the bucket of whichever kind.
macro_rules! each_kind {
    ($bucket:expr, $it:ident => $call:expr) => {
        match $bucket {
            Bucket::Level($it) => $call,
            Bucket::Window($it) => $call,
            Bucket::Caller($it) => $call,
        }
    };
}

impl<'t> KeyBucket<'t> for Bucket<'t, '_> {
    #[inline(always)]
    fn admit(&self, cost: Cells) -> Result<Admission<'t>, Stale> {
        each_kind!(self, it => it.admit(cost))
    }

    fn look(&self, cost: Cells) -> (Standing, Source) {
        each_kind!(self, it => it.look(cost))
    }

    #[inline(always)]
    fn note_admitted(&self, admission: &Admission<'_>, cost: Cells) {
        each_kind!(self, it => it.note_admitted(admission, cost));
    }

    fn give_back(&self, admission: &Admission<'_>, cost: Cells) -> bool {
        each_kind!(self, it => it.give_back(admission, cost))
    }

    fn refund(&self, cost: Cells) -> RefundOutcome {
        each_kind!(self, it => it.refund(cost))
    }

    fn charge(&self, cost: Cells) -> Cells {
        each_kind!(self, it => it.charge(cost))
    }

    fn follow(&self, state: StoreState) {
        each_kind!(self, it => it.follow(state));
    }

    fn standing_in_store(&self, state: StoreState, cost: Cells) -> Standing {
        each_kind!(self, it => it.standing_in_store(state, cost))
    }

    fn hold(&self) {
        each_kind!(self, it => it.hold());
    }

    fn freeze(&self) -> Option<FrozenCells> {
        each_kind!(self, it => it.freeze())
    }

    fn known(&self, frozen: &FrozenCells) -> KnownUsage {
        each_kind!(self, it => it.known(frozen))
    }

    fn take_silent(&self) -> SilentCells {
        each_kind!(self, it => it.take_silent())
    }

    fn take_priced(&self) -> SilentCells {
        each_kind!(self, it => it.take_priced())
    }

    fn pending(&self) -> Option<Cells> {
        each_kind!(self, it => it.pending())
    }

    fn tat(&self) -> Option<Nanos> {
        each_kind!(self, it => it.tat())
    }

    fn land(&self, trigger: Trigger) -> bool {
        each_kind!(self, it => it.land(trigger))
    }

    fn fold(&self, answer: &StoreAnswer, trigger: Trigger) -> bool {
        each_kind!(self, it => it.buckets.fold_mitigation(it.subject, answer));
        each_kind!(self, it => it.fold(answer, trigger))
    }

    fn fold_refund(&self, state: StoreState, anchor: Nanos, refund_due: Span) {
        each_kind!(self, it => it.fold_refund(state, anchor, refund_due));
    }

    fn address(&self) -> BucketAddress {
        each_kind!(self, it => it.address())
    }

    fn grant_by_share(&self, share: ShareCode) {
        each_kind!(self, it => it.grant_by_share(share));
    }

    fn is_share_denied(&self) -> bool {
        each_kind!(self, it => it.is_share_denied())
    }

    fn is_half_used(&self) -> bool {
        each_kind!(self, it => it.is_half_used())
    }

    fn raise_tat(&self, tat: Nanos) {
        each_kind!(self, it => it.raise_tat(tat));
    }

    fn raise(&self, level: Span, unsettled: &ReportedCells) -> NewsEffect {
        each_kind!(self, it => it.raise(level, unsettled))
    }

    fn lower(&self, by: Span, before: Nanos) {
        each_kind!(self, it => it.lower(by, before));
    }

    fn uncount(&self, index: u64, cells: Cells) {
        each_kind!(self, it => it.uncount(index, cells));
    }

    fn answer_age_max(&self) -> Option<Span> {
        each_kind!(self, it => it.answer_age_max())
    }

    fn forget(&self) -> Cells {
        let pending = each_kind!(self, it => it.forget());
        each_kind!(self, it => it.buckets.note_reset(it.subject.name, pending));
        pending
    }
}

impl Bucket<'_, '_> {
    /// Undoes what news changed.
    pub(super) fn undo_news(&self, news: &NewsChange) {
        match news.change {
            BucketChange::Level(by) => self.lower(by, news.before),
            BucketChange::Window { index, cells } => self.uncount(index, cells),
        }
    }
}

/// The kind of the buckets of a rule with this `spec`.
pub(super) const fn kind_of(spec: &RuleSpec) -> BucketKind {
    match spec.algorithm.is_windowed() {
        true => BucketKind::Window,
        false => BucketKind::Level,
    }
}

/// The kind of the buckets of caller-supplied limits.
pub(super) const CALLER_KIND: BucketKind = BucketKind::Caller;

impl Buckets {
    /// Buckets for at most `keys_max` keys of each kind, under rules of this version. The seeds place the keys and must not
    /// be guessable.
    pub(super) fn new(keys_max: usize, seeds: [u64; 2], version: u64) -> Self {
        Self {
            level: Table::new(keys_max, seeds),
            windows: WindowMap::new(keys_max, seeds),
            callers: CallerMap::new(keys_max, seeds),
            mitigations: Mitigations::new(keys_max / MITIGATIONS_PART),
            version: AtomicU64::new(version),
            sync_queue: SyncQueue::new(keys_max),
            charges: Charges::default(),
            stats: Stats::default(),
        }
    }

    /// The bucket of `subject`.
    #[inline(always)]
    pub(super) fn of<'t, 's>(&'t self, subject: &'s Subject<'s>) -> Bucket<'t, 's> {
        let buckets = self;
        match subject.state.kind {
            BucketKind::Level => Bucket::Level(LevelBucket { buckets, subject }),
            BucketKind::Window => Bucket::Window(WindowBucket { buckets, subject }),
            BucketKind::Caller => Bucket::Caller(CallerBucket { buckets, subject }),
        }
    }

    /// The limit that the last caller of a held key supplied; `None` where a rule says the limit.
    pub(super) fn caller_limit(&self, key: StoreKey) -> Option<Limit> {
        match key.kind {
            BucketKind::Caller => self.callers.limit(key.name),
            BucketKind::Level | BucketKind::Window => None,
        }
    }

    /// Ends the flight of a bucket whose answer is of no use. Its next cell triggers a report.
    pub(super) fn release(&self, address: BucketAddress) {
        match address {
            BucketAddress::None => {}
            BucketAddress::Level(key) => {
                self.land_level(&key, Trigger::EACH);
            }
            BucketAddress::Caller(name) => {
                self.callers.land(name, Trigger::EACH, None);
            }
            BucketAddress::Window(name) => self.windows.release(name),
        }
    }

    /// Takes in news that the fleet denies a key without a bucket and without a known limit. `None` if its rule is gone.
    pub(super) fn raise_unheld(
        &self,
        key: StoreKey,
        level: Span,
        now: Nanos,
    ) -> Option<NewsEffect> {
        match key.kind {
            BucketKind::Caller => {
                let ends = now.after(level.min(CAPACITY_MAX));
                self.mitigations.put(key.name, ends, now);
                Some(NewsEffect::level(now, ends))
            }
            BucketKind::Level | BucketKind::Window => None,
        }
    }

    /// Forgets a key whose limit is not known.
    pub(super) fn forget_unheld(&self, key: StoreKey) {
        match key.kind {
            BucketKind::Caller => self.note_reset(key.name, self.callers.remove(key.name)),
            BucketKind::Level | BucketKind::Window => {}
        }
    }

    fn note_reset(&self, name: u128, lost: Cells) {
        self.mitigations.remove(name);
        self.stats.count(Stat::CellsReset, lost.get());
    }

    /// Keys held, by the name that metrics have for their kind.
    pub(super) fn held_by_kind(&self) -> [(&'static str, u64); 3] {
        [
            ("level", self.level.held()),
            ("windowed", self.windows.held()),
            ("carried", self.callers.held()),
        ]
    }

    /// Ghosts that were dropped while their keys were in use.
    pub(super) fn forgotten(&self) -> u64 {
        self.level.forgotten() + self.windows.forgotten() + self.callers.forgotten()
    }

    /// The pending cells of all buckets.
    pub(super) fn pending(&self) -> Cells {
        self.level
            .pending_in_all()
            .plus(self.windows.pending_in_all())
            .plus(self.callers.pending_in_all())
    }

    /// Sets how many pods may each be silent about their even share of a caller-supplied limit; 0: none.
    pub(super) fn set_silent_pods(&self, pods: u64) {
        self.callers.set_silent_pods(pods);
    }

    /// Keys without a bucket that the fleet denies.
    pub(super) fn mitigations_unseen(&self) -> usize {
        self.mitigations.count()
    }

    /// Drops mitigations that have ended.
    pub(super) fn drop_ended_mitigations(&self, now: Nanos) {
        self.mitigations.drop_ended(now);
    }

    /// Drops the mitigation of a key that is not held.
    pub(super) fn drop_mitigation(&self, name: u128) {
        self.mitigations.remove(name);
    }

    /// Says that the rules of `version` are in force. Any thread that has these rules may do so, and need not wait for the
    /// thread that reloads.
    pub(super) fn announce(&self, version: u64) {
        // Ordering: Release, after the snapshot: a thread that sees the new version finds the new snapshot.
        self.version.fetch_max(version, Ordering::Release);
    }

    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The TAT of a key that is not held, if the fleet denies it.
    fn mitigation(&self, subject: &Subject<'_>) -> Option<Nanos> {
        let now = subject.moment.now;
        let ends = self.mitigations.get(subject.name, now)?;
        Some(ends.min(now.after(subject.terms().level_max())))
    }

    /// The state that a key which is not held starts with, at least at the TAT `unheld`.
    fn opening(&self, subject: &Subject<'_>, unheld: Nanos) -> BucketState {
        let mitigated = self.mitigation(subject);
        BucketState {
            tat: unheld.max(mitigated.unwrap_or(unheld)),
            mitigated: mitigated.is_some(),
            ..BucketState::at(unheld)
        }
    }

    /// A key that only the fleet denies stays denied for as long as the store says.
    fn fold_mitigation(&self, subject: &Subject<'_>, answer: &StoreAnswer) {
        if self.mitigations.count() == 0 {
            return;
        }
        let now = subject.moment.now;
        if self.mitigations.get(subject.name, now).is_some() {
            self.mitigations.remove(subject.name);
            if let Some(ends) = subject.full_until(answer) {
                self.mitigations.put(subject.name, ends, now);
            }
        }
    }
}
