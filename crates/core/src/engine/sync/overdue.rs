//! Keys that the pod cannot report in time, because its budget for key updates is spent.
//!
//! A key in the send queue is *overdue* once its oldest cell has waited longer than it may, or as soon as its place in the
//! queue says that it will. From then on this pod grants only its share of the key, as if the store were unreachable. Cells
//! that were admitted before are billed in full, cells since then as the share of how far the bucket filled up. The answer
//! to the key's own report ends this, unless the next report would be late again.
//!
//! A short budget is not a store error: this holds for every hybrid rule, whatever its `on_store_error` is.

use super::key_sync::KeySync;
use super::phase::PhaseEvent;
use super::queue::{QueuePlace, Urgency};
use super::{PodSync, SyncContext};
use crate::engine::Engine;
use crate::engine::buckets::SilentCells;
use crate::engine::buckets::{KeyBucket, Subject};
use crate::pure::rule::Consistency;
use crate::pure::sync::{Share, ShareCode, StoreKey};
use crate::pure::{Cells, Limit, Nanos, Span};

/// How many of the keys with the next planned looks the sync tries for one that can leave.
const ROOM_TRIES_MAX: usize = 64;

/// What a pod grants of a key that it cannot report in time. In a flood most tracked keys have one, so it is of bytes alone:
/// nothing of it is padding.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverdueGrant {
    pub(super) share: ShareCode,
    from: [u8; 8],
}

/// What an answer to the report of an overdue key says.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverdueAnswer {
    /// Where the bucket ended before the answer.
    pub(super) before: Option<Nanos>,
    /// Whether the key has no room, by the answer.
    pub(super) is_full: bool,
}

impl OverdueGrant {
    /// A grant of `share` from where the bucket ended when the key became overdue.
    pub(super) const fn new(share: ShareCode, from: Nanos) -> Self {
        Self {
            share,
            from: from.get().to_ne_bytes(),
        }
    }

    /// Where the bucket ended when the key became overdue, or when it was last put in a batch.
    const fn from(&self) -> Nanos {
        Nanos::new(u64::from_ne_bytes(self.from))
    }

    /// The same grant from another end of the bucket.
    pub(super) const fn starting(self, from: Nanos) -> Self {
        Self::new(self.share, from)
    }

    /// The price of the cells that were admitted since: the share of how far the bucket, which ends at `tat`, filled up.
    pub(super) fn price(&self, limit: &Limit, tat: Nanos, now: Nanos) -> Span {
        let share = self.share.share();
        let filled = tat.since(self.from().max(now));
        share.of_span(filled.min(limit.shared(share).capacity()))
    }
}

impl PodSync {
    /// How soon the pod should report a key.
    pub(super) fn urgency(&self, context: &SyncContext<'_>, key: StoreKey) -> Urgency {
        let Some(subject) = context.subject_of_key(key) else {
            return Urgency::Ordinary;
        };
        let contested = subject.limit.burst() < Cells::new(self.fleet_view.pods);
        if context.engine.bucket(&subject).is_share_denied() {
            Urgency::ShareDenied
        } else if contested || context.engine.bucket(&subject).is_half_used() {
            Urgency::Contested
        } else {
            Urgency::Ordinary
        }
    }

    /// Moves a queued key forward, if it has become more urgent.
    pub(super) fn hurry(&mut self, context: &SyncContext<'_>, key: StoreKey) {
        let urgency = self.urgency(context, key);
        let Some(key_sync) = self.keys.get_mut(&key) else {
            return;
        };
        let (place, overdue) = (key_sync.phase.place(), key_sync.overdue);
        if let Some(place) = place.filter(|place| urgency < place.urgency) {
            let since = place.since;
            let sooner = QueuePlace { urgency, since };
            key_sync.happen(PhaseEvent::Enqueue(sooner));
            self.queue.remove(&mut self.keys, key, place);
            self.queue.insert(&mut self.keys, key, sooner);
        }
        if let Some(overdue) = overdue
            && let Some(subject) = context.subject_of_key(key)
            && !context.engine.bucket(&subject).is_share_denied()
        {
            // The bucket may have left the table and come back without the share.
            context
                .engine
                .bucket(&subject)
                .grant_by_share(overdue.share);
        }
    }

    /// Decides whether a queued key is overdue, and plans the next look.
    pub(super) fn watch(&mut self, context: &SyncContext<'_>, key: StoreKey) {
        let now = context.now();
        let (Some(key_sync), Some(subject)) = (self.keys.get(&key), context.subject_of_key(key))
        else {
            return;
        };
        let Some(place) = key_sync.phase.place() else {
            return;
        };
        let (soonest, patience) = self.patience(context, &subject, key_sync);
        if key_sync.overdue.is_some() || self.membership.is_leaving() || !may_be_overdue(&subject) {
            return;
        }
        let waited = now.since(place.since);
        let still_to_wait = match waited {
            Span::ZERO => self.wait_of(place.urgency, now),
            _ => Span::ZERO,
        };
        if waited.plus(still_to_wait) >= patience && self.is_reachable(key.lane()) {
            self.fall_overdue(context, &subject);
            return;
        }
        let next = if waited < soonest { soonest } else { patience };
        let next = place.since.after(next);
        // While its lane is unreachable, there is nothing to decide.
        self.look_again(key, if next > now { next } else { now.after(soonest) });
    }

    /// How long cells of a key may wait: first the time that holds for every key, then the time that holds for this one. A
    /// key far from its limit may wait longer.
    fn patience(
        &self,
        context: &SyncContext<'_>,
        subject: &Subject<'_>,
        key_sync: &KeySync,
    ) -> (Span, Span) {
        let soonest = self.late_after(subject.store_key().lane());
        match key_sync.is_thin || context.engine.bucket(subject).is_half_used() {
            true => (soonest, soonest),
            false => (soonest, soonest.max(self.age_max(subject))),
        }
    }

    /// How long a key that enters the queue now will wait.
    fn wait_of(&self, urgency: Urgency, now: Nanos) -> Span {
        let ahead = self.queue.len_up_to(urgency);
        // Beside the keys ahead, the budget pays for calls, and one call of four goes by age.
        let updates = ahead + ahead.div_ceil(3);
        let kept = match urgency {
            Urgency::ShareDenied | Urgency::Contested => 0,
            Urgency::Ordinary => self.budget.reserve(),
        };
        self.budget.wait_for(updates + kept, now)
    }

    /// Makes a key overdue: from now on this pod grants only its share of it.
    fn fall_overdue(&mut self, context: &SyncContext<'_>, subject: &Subject<'_>) {
        let key = subject.store_key();
        let share = ShareCode::at_most(self.share_of(key));
        let Some(key_sync) = self.keys.get_mut(&key) else {
            return;
        };
        // First the share, then the cells that were admitted before: cells in between are billed in full, too.
        context.engine.bucket(subject).grant_by_share(share);
        let SilentCells { cells, worth } = context.engine.bucket(subject).take_priced();
        key_sync.unsent.gross = key_sync.unsent.gross.plus(cells);
        let price = subject.limit.interval().times(worth);
        key_sync.unsent.price = key_sync.unsent.price.plus(price);
        let from = context
            .engine
            .bucket(subject)
            .tat()
            .unwrap_or_else(|| context.now());
        key_sync.overdue = Some(OverdueGrant::new(share, from));
    }

    /// A refund lowered the bucket of a key: what fills it again is billed from there on.
    pub(super) fn lower_overdue(&mut self, engine: &Engine, subject: &Subject<'_>) {
        let key_sync = self.keys.get_mut(&subject.store_key());
        if let Some(overdue) = key_sync.and_then(|key_sync| key_sync.overdue.as_mut())
            && let Some(tat) = engine.bucket(subject).tat()
        {
            *overdue = overdue.starting(overdue.from().min(tat));
        }
    }

    /// The store answered the report of an overdue key. If the next one would be late again, the key stays overdue: `true`.
    ///
    /// The pod accepts what the answer says, with one exception. Where a share is less than a cell, the pod grants one cell
    /// all the same. If the fleet is over the limit then, the pod raises its bucket to where it ended before the answer, and
    /// so remembers that it has had its cell.
    pub(super) fn stay_overdue(
        &mut self,
        context: &SyncContext<'_>,
        subject: &Subject<'_>,
        overdue: OverdueGrant,
        answer: OverdueAnswer,
    ) -> bool {
        let key = subject.store_key();
        let Some(key_sync) = self.keys.get(&key) else {
            return false;
        };
        let (_, patience) = self.patience(context, subject, key_sync);
        let wait = self.wait_of(self.urgency(context, key), context.now());
        if wait < patience || self.membership.is_leaving() {
            return false;
        }
        let is_one_cell = subject.limit.shared(overdue.share.share()).burst() == Cells::ONE;
        if let Some(before) = answer.before.filter(|_| is_one_cell && answer.is_full) {
            context.engine.bucket(subject).raise_tat(before);
        }
        self.fall_overdue(context, subject);
        let pending = self.keys.get(&key).is_some_and(|key| !key.is_at_rest());
        if pending || context.engine.bucket(subject).pending() > Some(Cells::ZERO) {
            self.want(context, key, super::Reason::Trigger);
        }
        true
    }

    /// Makes room to track `key`. If another key has to leave for it, returns how far that key's even share was in use: the
    /// new key, of which nothing is known, is assumed to have used as much. `None` if no key can leave.
    pub(super) fn make_room(&mut self, context: &SyncContext<'_>, key: StoreKey) -> Option<Span> {
        if self.keys.len() < self.keys_max || self.keys.contains_key(&key) {
            return Some(Span::ZERO);
        }
        let now = context.now();
        let next = self.keys.next_looks(ROOM_TRIES_MAX);
        let rested = next.filter_map(|key| {
            let key_sync = self
                .keys
                .get(&key)
                .filter(|key_sync| key_sync.is_at_rest())?;
            let pending = context
                .subject_of_key(key)
                .map(|subject| context.engine.bucket(&subject).pending());
            let is_idle = !key_sync.is_loud() || pending.flatten() <= Some(Cells::ZERO);
            is_idle.then_some((key_sync.is_loud(), key_sync.even.tat, key))
        });
        let (is_loud, even, least) = rested.min()?;
        let subject = context.subject_of_key(least);
        self.untrack(least);
        if let Some(subject) = subject {
            self.land_silent(context, &subject, self.opening(&subject));
        }
        match is_loud {
            true => Some(Span::ZERO),
            false => Some(even.since(now)),
        }
    }

    /// Handles a key that the sync cannot track: the pod does not report it, and grants only its even share of it.
    pub(super) fn grant_untracked(&mut self, context: &SyncContext<'_>, subject: &Subject<'_>) {
        let SilentCells { cells, .. } = context.engine.bucket(subject).take_silent();
        self.totals.lost.crowd = self.totals.lost.crowd.plus(cells);
        let share = ShareCode::at_most(Share::even(self.fleet_view.pods));
        context.engine.bucket(subject).grant_by_share(share);
    }

    /// The number of overdue keys.
    pub(super) fn overdue(&self) -> u64 {
        let keys = self.keys.values();
        keys.filter(|key_sync| key_sync.overdue.is_some()).count() as u64
    }
}

/// Whether the pod may grant only a share of the key while it cannot report it.
fn may_be_overdue(subject: &Subject<'_>) -> bool {
    subject.rule.spec.consistency == Consistency::Hybrid
}
